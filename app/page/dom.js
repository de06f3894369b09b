/** Makes elements without parsing HTML, so that texts of users and servers can't become markup. */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set([
  "value",
  "checked",
  "disabled",
  "hidden",
  "srcObject",
  "indeterminate",
  "selected",
  "open",
  "muted",
]);

/**
 * Return the element of index.html with that id.
 * @param {string} id
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`index.html has no #${id}.`);
  return element;
}

/**
 * Return an element: `h("button.quiet", {onclick: f, "aria-label": "Close"}, "×")`. The browser does not send a form
 * with
 * `onsubmit`.
 * @param {string} tag its name and classes
 * @param {Record<string, any>} props listeners, properties and attributes; null and false are left out
 * @param {...Page.Child} children
 * @returns {any} an element of that tag's own type
 */
export function h(tag, props = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  return fill(dress(element, props), children);
}

/**
 * Return an SVG element; all props are attributes.
 * @param {string} tag
 * @param {Record<string, any>} props
 * @param {...Page.Child} children
 */
export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(props))
    if (value !== null && value !== false) element.setAttribute(key, value);
  return fill(element, children);
}

/**
 * Replaces what `element` holds by `children`. If the focus was in it, it is given back as by `holdFocus`.
 * @param {Element} element
 * @param {...Page.Child} children
 */
export function put(element, ...children) {
  const restore = element.contains(document.activeElement) ? holdFocus() : null;
  element.replaceChildren();
  fill(element, children);
  restore?.();
  return element;
}

/**
 * Remember what has the focus. Return a function that gives it back: to the same element, else to the one now in its
 * place with the same name, else to the heading of the view or dialog. It does nothing if the user has moved the focus
 * meanwhile.
 */
export function holdFocus() {
  const held = /** @type {HTMLElement} */ (document.activeElement);
  const within = held.closest("dialog, main");
  const at = within ? alike(within, held, nameOf(held)).indexOf(held) : 0;
  const name = nameOf(held);
  return () => {
    const now = document.activeElement;
    if (now !== document.body && !(held.isConnected && now?.matches("h1, h2"))) return; // the user moved it
    const home = within?.isConnected ? within : document.getElementById("main");
    if (held.isConnected) held.focus({ preventScroll: true });
    else if (home) alike(home, held, name).at(at)?.focus({ preventScroll: true });
    if (document.activeElement === document.body) focusHeading(home);
  };
}

/**
 * The elements within `home` with the same tag and the given name.
 * @param {Element} home
 * @param {Element} element
 * @param {string} name
 * @returns {HTMLElement[]}
 */
const alike = (home, element, name) =>
  /** @type {any[]} */ ([...home.querySelectorAll(element.tagName)]).filter((other) => nameOf(other) === name);

/** @param {any} element */
const nameOf = (element) =>
  element.getAttribute("aria-label") ?? element.labels?.[0]?.textContent ?? element.textContent;

/**
 * Focuses the title of a view or dialog: screen readers read it out, and Tab continues from there.
 * @param {Element | null} home
 */
export function focusHeading(home) {
  const heading = home?.querySelector("h1") ?? home?.querySelector("h2");
  if (!heading) return;
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
}

/**
 * @param {any} element
 * @param {Record<string, any>} props
 */
function dress(element, props) {
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "onsubmit")
      element.addEventListener("submit", (/** @type {any} */ event) => event.preventDefault() ?? value());
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, text] of Object.entries(value)) element.style.setProperty(name, text);
    else if (PROPERTIES.has(key)) element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  return element;
}

/**
 * @param {any} element
 * @param {Page.Child[]} children
 */
function fill(element, children) {
  for (const child of /** @type {any[]} */ (children).flat(Infinity))
    if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}

/**
 * Calls `act` after the browser has drawn the page's present content.
 * @param {() => unknown} act
 */
export const whenDrawn = (act) => requestAnimationFrame(() => setTimeout(act));

let made = 0;

/**
 * A new id that begins with `word`, to connect a label to its control.
 * @param {string} word
 */
export const newId = (word) => `${word}-${++made}`;

/**
 * A labelled field. Screen readers read `hint` with it.
 * @param {string} label
 * @param {any} control
 * @param {string | null} hint
 */
export function field(label, control, hint = null) {
  control.id ||= newId("field");
  const told = hint && h("p.hint", { id: newId("hint") }, hint);
  if (told) control.setAttribute("aria-describedby", told.id);
  return h("div.field", {}, h("label", { for: control.id }, label), control, told);
}

/**
 * A select of `[value, words]` pairs.
 * @param {Page.Option[]} pairs
 * @param {string | null | undefined} chosen
 * @param {(value: string) => void} onchange
 * @param {Record<string, any>} [props]
 */
export function select(pairs, chosen, onchange, props = {}) {
  const options = pairs.map(([value, words]) => h("option", { value, selected: value === chosen }, words));
  return h("select", { ...props, onchange: (/** @type {any} */ event) => onchange(event.target.value) }, options);
}

let clearing = 0;

/**
 * Shows a message at the edge of the page for a while; screen readers read it out.
 * @param {string} words
 */
export function toast(words) {
  const place = byId("told");
  put(place, h("p", {}, words));
  clearTimeout(clearing);
  clearing = setTimeout(() => place.replaceChildren(), 7000);
}

/**
 * Return a function that calls `act` once it has not been called for `ms` milliseconds. Its `now` calls `act` at once,
 * and cancels the waiting call.
 * @param {number} ms
 * @param {(...given: any[]) => void} act
 */
export function debounce(ms, act) {
  let timer = 0;
  const soon = (/** @type {any[]} */ ...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), ms);
  };
  const now = (/** @type {any[]} */ ...given) => {
    clearTimeout(timer);
    act(...given);
  };
  return Object.assign(soon, { now });
}

/**
 * Opens a modal dialog. Escape closes it, unless it is `held`: then only its own buttons do. `build(close)` gives its
 * content. The promise resolves to what `close` was called with, or null if the dialog was left.
 * @param {string} title
 * @param {(close: (value?: any) => void) => Node} build
 * @param {{held?: boolean, wide?: boolean}} [how]
 */
export function openDialog(title, build, { held = false, wide = false } = {}) {
  return new Promise((resolve) => {
    const heading = h("h2", { id: newId("title") }, title);
    /** @type {any} */
    let answer = null;
    let done = !held;
    const close = (value = null) => {
      answer = value;
      done = true;
      dialog.close();
    };
    const restore = holdFocus();
    const dialog = h(`dialog${wide ? ".wide" : ""}`, { "aria-labelledby": heading.id }, heading, build(close));
    dialog.addEventListener("cancel", (/** @type {any} */ event) => done || event.preventDefault());
    dialog.addEventListener("close", () => {
      if (!done) return dialog.showModal(); // browsers may close a held dialog all the same
      dialog.remove();
      restore();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    if (document.activeElement?.matches(".danger")) focusHeading(dialog); // Enter must not delete
  });
}

/** Leaves every open dialog as Escape does; held dialogs stay open. */
export function leaveDialogs() {
  for (const dialog of /** @type {NodeListOf<HTMLDialogElement>} */ (document.querySelectorAll("dialog[open]")))
    if (dialog.dispatchEvent(new Event("cancel", { cancelable: true }))) dialog.close();
}

/**
 * Asks for confirmation of something that can't be undone. With `typed`, the user must type that word first.
 * @param {{title: string, text: string, action: string, typed?: string | null}} question
 */
export function confirm({ title, text, action, typed = null }) {
  return openDialog(title, (close) => {
    const go = h("button.danger", { type: "submit", disabled: typed !== null }, action);
    const word =
      typed !== null &&
      h("input", { type: "text", autocomplete: "off", oninput: () => (go.disabled = word.value !== typed) });
    return h(
      "form",
      { onsubmit: () => close(true) },
      h("p", {}, text),
      word && field(`Type ${typed} to go on`, word),
      h("div.row.end", {}, h("button", { type: "button", onclick: () => close() }, "Cancel"), go),
    );
  });
}
