/** Starts the page: signs in, draws the frame around every view, and shows the view of the address. */

import { call, path, post, remove } from "./api.js";
import { expectGalleries, firstGalleries } from "./choosing.js";
import * as crops from "./crops.js";
import { byId, confirm, field, focusHeading, h, leaveDialogs, put, select, toast, whenDrawn } from "./dom.js";
import { icon, mark } from "./icons.js";
import * as memory from "./memory.js";
import { head } from "./parts.js";
import { arrive, here, link } from "./router.js";
import { find, SECTIONS } from "./sections.js";
import * as session from "./session.js";
import { signIn } from "./signin.js";
import * as theme from "./theme.js";
import { discardAll, showUnderWay, underWay } from "./views/underway.js";
import { explain, list } from "./words.js";

const UNAUTHORIZED = 401;
const shell = byId("shell");
let leave = () => {};
let shown = 0;
/**
 * What is left, hidden, of a session that the server ended: its key, and the page with all that was typed.
 * @type {{signedInAs: Api.OwnKey, hash: string, nodes: Node[], dialogs: HTMLDialogElement[]} | null}
 */
let suspended = null;
/** The fields in which the user has typed or chosen something. */
const touched = new WeakSet();

addEventListener("input", ({ target }) => target && touched.add(target));

addEventListener("hashchange", (event) => {
  const code = session.fromLink();
  if (code) void follow(exchange(code, event.oldURL));
  else if (session.who()) void show();
});
addEventListener(
  "signed-out",
  (event) => session.who() && event instanceof CustomEvent && suspend(event.detail), // the first error says why
);
void begin();
// Only now, while the server is asked: the browser's storage takes a while.
theme.apply();
for (const kind of ["storage", "pageshow"]) addEventListener(kind, followDevice); // pageshow: back from history

async function begin() {
  const code = session.fromLink();
  const exchanged = code ? exchange(code) : null;
  const key = session.key();
  if (key) await enter(key);
  else if (session.stays()) await resume();
  else if (!exchanged) showSignIn();
  if (exchanged) await follow(exchanged);
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  byId("main").focus();
}

/**
 * Asks the server what a key, or this device's session, may do. If the last key of this browser could read galleries,
 * asks for those at the same time, since the first view shows them.
 * @param {string} [secret]
 */
function askAbout(secret) {
  const goesOn = (secret ?? null) === session.key() && session.couldRead();
  const galleries = goesOn ? firstGalleries(secret).catch(() => null) : null; // the view asks again
  return Promise.all([call("GET", path("key"), { secret }), galleries]);
}

/** Continues this device's session. */
async function resume() {
  try {
    const [allowed, galleries] = await askAbout();
    session.begin(null, allowed);
    await open(galleries);
  } catch (error) {
    if (error.status === UNAUTHORIZED) session.end();
    showSignIn(error);
  }
}

/**
 * Asks the server what `secret` may do, and opens the page.
 * @param {string} secret
 * @param {boolean} [stay] whether this device shall stay signed in
 */
async function enter(secret, stay = false) {
  let galleries = null;
  try {
    const [allowed, page] = await askAbout(secret);
    session.begin(secret, allowed);
    galleries = page;
  } catch (error) {
    session.end();
    showSignIn(error);
    return;
  }
  if (stay) await keep();
  await open(stay ? null : galleries);
}

/**
 * @param {any} [galleries] the first page of galleries, if it is there already
 */
async function open(galleries = null) {
  if (goesOn()) return;
  expectGalleries(galleries);
  frame();
  await show();
  expectGalleries(null); // they may have changed when the next view asks
  whenDrawn(fetchOtherViews);
}

/** Has the browser fetch the other views' modules in advance. */
function fetchOtherViews() {
  const later = /** @type {HTMLTemplateElement | null} */ (document.getElementById("later"));
  if (later) document.head.append(later.content);
}

/** Stays signed in on this device: the browser keeps a session, and this tab forgets the key. */
async function keep() {
  try {
    await post(path("session"));
    session.begin(null, session.signedIn());
    toast("You stay signed in on this device.");
  } catch (error) {
    toast(explain(error));
  }
}

/**
 * Begins to exchange a link's code for its key, and removes the code from the address. The caller shows errors.
 * @param {string} code
 * @param {string} [before] the address that the link was opened from
 */
function exchange(code, before) {
  const answer = call("POST", path("sign-in"), { secret: code });
  answer.catch(() => {});
  session.leaveLink(before);
  return answer;
}

/**
 * Signs in by a link. If somebody is signed in already, asks before changing the key.
 * @param {Promise<any>} exchanged
 */
async function follow(exchanged) {
  try {
    const found = await exchanged;
    const before = session.who();
    if (before && !(await agrees(before, found))) return;
    if (!suspended) forget();
    session.begin(found.secret, found);
    await open(before ? null : found.gallery_page); // it may be old after the question
  } catch (error) {
    if (session.who()) toast(explain(error));
    else showSignIn(error);
  }
}

/**
 * Asks whether to change from the key `now` to the key `next`.
 * @param {any} now
 * @param {any} next
 */
function agrees(now, next) {
  if (now.id === next.id) {
    toast(`You are signed in as ${now.id} already.`);
    return false;
  }
  return confirm({
    title: `Sign in as ${next.id}?`,
    text:
      `A link was opened. This tab is signed in as ${named(now)}. By the link it would be signed in as ` +
      `${named(next)}, and everything you do here would be done with that key.`,
    action: `Sign in as ${next.id}`,
  });
}

/** @param {any} own */
const named = ({ id, scopes, galleries }) =>
  `${id} (${list(scopes)}${galleries ? `, in ${list(galleries)} only` : ""})`;

/** @param {{code: string} | null} error what was wrong with the last key */
function showSignIn(error = null) {
  if (!suspended) leaveView();
  document.title = "Sign in · Likeness";
  put(shell, signIn(enter, error));
}

/** @param {string | null} [code] why, as a code of errors */
function end(code = null) {
  session.end();
  forget();
  showSignIn(code === null ? null : { code });
}

/**
 * Asks for the key again after the server has ended the session. If something was typed, the page is hidden and kept:
 * it comes back for the same key, and is forgotten for another.
 * @param {string} code
 */
function suspend(code) {
  const dialogs = /** @type {HTMLDialogElement[]} */ ([...document.querySelectorAll("dialog[open]")]);
  if (![shell, ...dialogs].some(isTyped)) return end(code);
  suspended = { signedInAs: session.signedIn(), hash: location.hash, nodes: [...shell.childNodes], dialogs };
  session.end();
  document.title = "Sign in · Likeness";
  shell.replaceChildren(signIn(enter, { code }));
  for (const dialog of dialogs) dialog.remove();
}

/**
 * Shows the suspended page again if it belongs to the key that is signed in now; otherwise forgets it. Returns whether
 * it was shown.
 */
function goesOn() {
  if (!suspended) return false;
  const { signedInAs, hash, nodes, dialogs } = suspended;
  suspended = null;
  const now = session.signedIn();
  const said = (/** @type {any} */ { id, scopes, galleries }) => JSON.stringify([id, scopes, galleries]);
  if (said(signedInAs) !== said(now) || hash !== location.hash) {
    forget();
    return false;
  }
  shell.replaceChildren(...nodes);
  for (const dialog of dialogs) {
    dialog.open = false;
    document.body.append(dialog);
    dialog.showModal();
  }
  for (const place of document.querySelectorAll(".problems")) place.replaceChildren(); // "session ended" is over
  document.title = `${document.querySelector("main h1")?.textContent} · Likeness`;
  if (!dialogs.length) focusHeading(byId("main"));
  return true;
}

/**
 * Whether there is text that was typed, or photos that were chosen, but not sent.
 * @param {Element} node
 */
const isTyped = (node) =>
  node.querySelector(".plan form, .enroll progress") !== null ||
  [...node.querySelectorAll("form :is(input, select, textarea)")].some((input) => touched.has(input));

/** Forgets all that was shown with the last key, since the next one may see less. */
function forget() {
  leaveView(); // first: a view may keep something when left
  crops.forget();
  memory.forget();
  discardAll();
}

/** Hides the page if another tab has ended the session; continues with the new session if that tab has begun one. */
function followDevice() {
  if (!session.isOver()) return;
  if (!session.stays()) return end("session_ended");
  forget();
  sessionStorage.clear(); // what views noted
  location.reload();
}

async function signOut() {
  try {
    if (session.key() === null) await remove(path("session"));
  } catch (error) {
    return toast(explain(error)); // stay on the page: the device is still signed in
  }
  end();
  toast("Signed out.");
}

function frame() {
  const open = SECTIONS.filter((section) => section.icon && section.allowed());
  const groups = [...new Set(open.map((section) => section.group))].map((group) =>
    h(
      "div.group",
      {},
      group && h("h2", {}, group),
      h(
        "ul",
        {},
        open.filter((section) => section.group === group).map((section) => h("li", {}, entry(section))),
      ),
    ),
  );
  const menu = h("div.menu", { id: "menu" }, h("nav", { "aria-label": "Main" }, groups), foot());
  const button = h(
    "button.quiet.opener",
    { type: "button", "aria-expanded": "false", "aria-controls": "menu", onclick: () => toggle(menu, button) },
    icon("menu"),
    "Menu",
  );
  menu.addEventListener(
    "click",
    (/** @type {any} */ event) => event.target.closest("a") && toggle(menu, button, false),
  );
  const header = h("header.top", {}, h("a.brand", { href: link() }, mark(), "Likeness"), button, menu);
  header.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape" || !menu.classList.contains("open")) return;
    toggle(menu, button, false);
    button.focus();
  });
  put(
    shell,
    h(
      "div.frame",
      {},
      h("a.skip", { href: "#main", onclick: skip }, "Skip to the content"),
      header,
      h("main", { id: "main", tabindex: "-1" }),
      underWay(),
    ),
  );
}

/**
 * @param {HTMLElement} menu
 * @param {HTMLButtonElement} button
 * @param {boolean} [open]
 */
function toggle(menu, button, open = !menu.classList.contains("open")) {
  menu.classList.toggle("open", open);
  button.setAttribute("aria-expanded", String(open));
}

/** @param {any} section */
const entry = (section) =>
  h("a", { href: link(section.name), "data-section": section.name }, icon(section.icon), section.title);

function foot() {
  const key = session.signedIn();
  return h(
    "div.foot",
    {},
    h("p.small", {}, "Signed in as ", h("strong", {}, key.id), key.galleries && ` for ${key.galleries.join(", ")}`),
    field("Colours", select(theme.THEMES, theme.chosen(), theme.choose)),
    session.key() && h("button.quiet", { type: "button", onclick: keepHere }, "Stay signed in"),
    h("button.quiet", { type: "button", onclick: signOut }, icon("out"), "Sign out"),
  );
}

async function keepHere() {
  await keep();
  await open();
}

function leaveView() {
  leave();
  leave = () => {};
  leaveDialogs();
}

async function show() {
  const mine = ++shown;
  const { segments, query } = here();
  const section = segments && find(segments[0]);
  const top = arrive();
  const main = byId("main");
  leaveView();
  for (const node of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-section]")))
    if (node.dataset.section === section?.name) node.setAttribute("aria-current", "page");
    else node.removeAttribute("aria-current");
  if (!section) {
    put(
      main,
      h(
        "div",
        {},
        head("Not found", "Nothing is at this address."),
        h("p", {}, h("a", { href: link("overview") }, "To the overview")),
      ),
    );
    return settle(main, 0);
  }
  document.title = `${section.title} · Likeness`;
  /** @type {Page.View} */
  const view = section.view(segments.slice(1), query);
  leave = view.leave ?? leave;
  main.replaceChildren(view.element); // once it is complete, its heading gets the focus
  showUnderWay();
  await view.ready;
  showUnderWay(); // a view that had to be loaded may be the one that shows it
  if (mine === shown) settle(main, top);
}

/**
 * Scroll to `top` and focus the new view's heading: screen readers read it out, and Tab continues from there.
 * @param {HTMLElement} main
 * @param {number} top
 */
function settle(main, top) {
  const heading = main.querySelector("h1");
  if (!heading) return;
  document.title = `${heading.textContent} · Likeness`;
  const focused = document.activeElement;
  if (main.contains(focused) && focused !== main && focused !== heading) return;
  focusHeading(main);
  scrollBack(main, top);
}

/**
 * Scroll to `top`, and again while the view grows, until it is long enough or the user scrolls or leaves.
 * @param {HTMLElement} main
 * @param {number} top
 */
function scrollBack(main, top) {
  scrollTo(0, top);
  if (scrollY >= top - 1) return;
  const over = new AbortController();
  const grown = new ResizeObserver(() => {
    scrollTo(0, top);
    if (scrollY >= top - 1) over.abort();
  });
  grown.observe(main);
  over.signal.addEventListener("abort", () => grown.disconnect());
  for (const kind of ["wheel", "touchstart", "pointerdown", "keydown", "hashchange"])
    addEventListener(kind, () => over.abort(), { signal: over.signal });
}
