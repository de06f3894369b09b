/** The people of a gallery, as a grid: to search, and to select several. */

import { get, path, remove } from "../api.js";
import { portrait } from "../crops.js";
import { confirm, debounce, h, put, toast } from "../dom.js";
import { dropped, hand, isPhoto } from "../files.js";
import { FIRST, Grid } from "../grid.js";
import { icon } from "../icons.js";
import { keep, recall } from "../memory.js";
import { filling, problemPlace, showing } from "../problem.js";
import { go, link, remember } from "../router.js";
import * as session from "../session.js";
import { count, nameOf, whole } from "../words.js";
import { enrollPanel } from "./enroll.js";
import { exportGallery } from "./importing.js";
import { merge } from "./merging.js";

const CELL = { width: 148, more: 60 };
const DEBOUNCE_MS = 100;
const SUBJECT = /^\/v1\/galleries\/([^/]+)\/subjects\/([^/]+)/;

addEventListener("changed", (event) => event instanceof CustomEvent && withdraw(event.detail));

/**
 * Removes the person that a call has changed from the remembered people, so that coming back doesn't show outdated
 * facts.
 * @param {string} where the path that was called
 */
function withdraw(where) {
  const [, gallery, subject] = (SUBJECT.exec(where) ?? []).map(decodeURIComponent);
  const kept = recall(`people ${gallery}`);
  for (const [index, item] of kept?.items ?? []) if (item.id === subject) kept.items.delete(index);
}

/**
 * Return the people that were shown last, to show at once when the user comes back. Null if that was another search, or
 * a deleted gallery of the same id.
 * @param {any} gallery
 * @param {string} search
 */
function remembered(gallery, search) {
  const kept = recall(`people ${gallery.id}`);
  return kept?.search === search && kept.since === gallery.created_at ? kept.items : null;
}

/**
 * The view of one gallery; `query.get("search")` is what to search for.
 * @param {string} id
 * @param {URLSearchParams} query
 */
export function people(id, query) {
  const place = problemPlace();
  const body = h("div.people", {});
  const heading = h("h1", {}, id);
  const about = h("p.lead", {});
  const actions = h("div.row", {});
  const ondrop = async (/** @type {any} */ event) => {
    event.preventDefault();
    const found = await dropped(event.dataTransfer);
    if (!found.some(isPhoto) || !session.may("enroll")) return;
    hand(found);
    go("galleries", id, "enroll");
  };
  const element = h(
    "div",
    { ondrop },
    h("a.back", { href: link("galleries") }, icon("back"), "Galleries"),
    h("header.head", {}, h("div", {}, heading, about), actions),
    place.element,
    body,
  );
  /** @type {any} */
  const state = { grid: null, panel: null, chosen: null, bar: null, search: query.get("search") ?? "" };
  state.first = beginning(id, state.search);
  const ready = filling(place, body, async () => {
    const gallery = await get(path("galleries", id));
    put(about, `${count(gallery.subjects, "person", "people")}, ${count(gallery.faces, "face")}`);
    put(actions, offered(gallery, place));
    return contents(gallery, state, place);
  });
  const leave = () => {
    state.grid?.leave();
    state.panel?.leave();
  };
  return { element, ready, leave };
}

/**
 * Request the first people while the gallery itself is read; null if remembered people are shown instead.
 * @param {string} id
 * @param {string} search
 */
function beginning(id, search) {
  if (recall(`people ${id}`)?.search === search) return null;
  const answer = subjects(id, 0, FIRST, search);
  answer.catch(() => {}); // the error is shown where the answer is awaited
  return { search, answer };
}

/**
 * @param {string} gallery
 * @param {number} offset
 * @param {number} limit
 * @param {string} search
 */
const subjects = (gallery, offset, limit, search) =>
  get(path("galleries", gallery, "subjects"), { limit, offset, search: search || null });

/**
 * @param {any} gallery
 * @param {any} place
 */
function offered(gallery, place) {
  return [
    session.may("enroll") &&
      h("a.button.primary", { href: link("galleries", gallery.id, "enroll") }, icon("plus"), "Enroll photos"),
    session.may("recognize") &&
      h(
        "a.button",
        { href: `${link("identify")}?${new URLSearchParams({ gallery: gallery.id })}` },
        icon("identify"),
        "Identify here",
      ),
    h("a.button", { href: link("galleries", gallery.id, "review") }, icon("check"), "Review"),
    session.may("admin") &&
      h("a.button", { href: link("galleries", gallery.id, "settings") }, icon("settings"), "Settings"),
    session.may("admin") && h("button", { type: "button", onclick: () => exportGallery(gallery.id, place) }, "Export"),
    session.mayEverything() && h("button.danger", { type: "button", onclick: () => drop(gallery) }, "Delete"),
  ];
}

/** @param {any} gallery */
async function drop(gallery) {
  const sure = await confirm({
    title: `Delete ${gallery.id}?`,
    text:
      `This deletes ${count(gallery.subjects, "person", "people")} with all their faces, crops and ` +
      "vectors. There is no way back.",
    action: "Delete the gallery",
    typed: gallery.id,
  });
  if (!sure) return;
  const place = problemPlace();
  await showing(place, async () => {
    await remove(path("galleries", gallery.id));
    toast(`${gallery.id} is deleted.`);
    go("galleries");
  });
  document.querySelector("main .head")?.after(place.element);
}

/**
 * The people; if there are none yet, a place for their photos.
 * @param {any} gallery
 * @param {any} state
 * @param {any} place
 */
function contents(gallery, state, place) {
  if (!gallery.subjects) return empty(gallery, state);
  const shown = h("p.small", { role: "status" });
  const home = h("div", {});
  const search = h("input", {
    type: "search",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "Name or id",
    "aria-label": "Search people",
    value: state.search,
  });
  const start = () => {
    state.grid?.leave();
    state.grid = gridOf(gallery, state, search.value.trim(), shown, place, home);
    put(home, state.grid.element);
    void state.grid.fill(); // request the first items before the grid is drawn
    state.grid.soon();
  };
  const searchFor = () => {
    remember({ search: search.value.trim() });
    start();
  };
  const soon = debounce(DEBOUNCE_MS, searchFor);
  search.addEventListener("input", () => (search.value.trim() ? soon() : soon.now()));
  queueMicrotask(start);
  state.bar = session.may("enroll") ? selecting(gallery, state, start, place) : null;
  return [h("div.row.apart", {}, h("div.search", {}, search), shown, state.bar?.element), home];
}

/**
 * @param {any} gallery
 * @param {any} state
 */
function empty(gallery, state) {
  if (!session.may("enroll"))
    return h("div.nothing", {}, h("h2", {}, "Nobody is enrolled yet"), h("p", {}, "Your key may not enroll."));
  state.panel = enrollPanel({ gallery: gallery.id });
  return [
    h("h2", {}, "Nobody is enrolled yet"),
    h("p.lead", {}, "Add photos of people, or a folder that has one folder for each person."),
    state.panel.element,
  ];
}

/**
 * @param {any} gallery
 * @param {any} state
 * @param {string} search
 * @param {any} shown
 * @param {any} place
 * @param {any} home
 */
function gridOf(gallery, state, search, shown, place, home) {
  const total = search ? null : gallery.subjects;
  const grid = new Grid({
    ...CELL,
    total,
    label: search ? `People found for ${search}` : "People",
    cell: (/** @type {any} */ subject) => cell(gallery, subject, state),
    known: remembered(gallery, search) ?? (search ? null : state.everybody),
    load: async (/** @type {number} */ offset, /** @type {number} */ limit) => {
      const begun = offset === 0 && state.first?.search === search ? state.first.answer : null;
      state.first = null;
      const page = await showing(place, () => begun ?? subjects(gallery.id, offset, limit, search));
      return page && { items: page.subjects, more: page.next_cursor !== null };
    },
    onload: (/** @type {number} */ known, /** @type {boolean} */ done) => {
      put(shown, search && found(known, done));
      keep(`people ${gallery.id}`, { search, since: gallery.created_at, items: grid.items }); // for coming back
      if (!search) state.everybody = grid.items;
      if (done && !known) put(home, h("p.waiting", {}, `Nobody's name or id contains “${search}”.`));
    },
  });
  return grid;
}

/**
 * @param {number} known
 * @param {boolean} done
 */
const found = (known, done) => `${whole(known)}${done ? "" : " or more"} found`;

/**
 * A person of the grid: a link, or, while people are being selected, a toggle button.
 * @param {any} gallery
 * @param {Api.Subject} subject
 * @param {any} state
 */
function cell(gallery, subject, state) {
  const inside = [
    portrait(gallery.id, subject),
    h("span.name", {}, nameOf(subject)),
    h("span.small", {}, count(subject.face_count, "face")),
  ];
  const href = link("galleries", gallery.id, "people", subject.id);
  if (!state.chosen) return h("a.person", { href, title: subject.id }, inside);
  const button = h("button.person", { type: "button", "aria-pressed": String(state.chosen.has(subject.id)) }, inside);
  button.addEventListener("click", () => {
    if (!state.chosen.delete(subject.id)) state.chosen.set(subject.id, subject);
    button.setAttribute("aria-pressed", String(state.chosen.has(subject.id)));
    state.bar.update();
  });
  return button;
}

/**
 * The button "Select", and the actions on those who are selected. The selection stays while the user searches.
 * @param {any} gallery
 * @param {any} state
 * @param {any} start
 * @param {any} place
 */
function selecting(gallery, state, start, place) {
  const told = h("span.small", { role: "status" });
  const acts = [
    h("button.small", { type: "button", onclick: () => mergeChosen(gallery, state) }, "Merge"),
    h("button.small.danger", { type: "button", onclick: () => deleteChosen(gallery, state, place) }, "Delete selected"),
  ];
  const toggle = h("button.small", { type: "button", "aria-pressed": "false" }, "Select");
  toggle.addEventListener("click", () => {
    state.chosen = state.chosen ? null : new Map();
    toggle.setAttribute("aria-pressed", String(state.chosen !== null));
    start();
    update();
  });
  const update = () => {
    for (const button of acts) Object.assign(button, { hidden: !state.chosen, disabled: !state.chosen?.size });
    put(told, state.chosen ? `${count(state.chosen.size, "person", "people")} selected` : "");
  };
  update();
  return { update, element: h("div.row", { role: "group", "aria-label": "Selected people" }, toggle, acts, told) };
}

const again = () => dispatchEvent(new HashChangeEvent("hashchange"));

/**
 * @param {any} gallery
 * @param {any} state
 */
async function mergeChosen(gallery, state) {
  if (await merge(gallery.id, [...state.chosen.values()])) again();
}

/**
 * @param {any} gallery
 * @param {any} state
 * @param {Page.Place} place
 */
async function deleteChosen(gallery, state, place) {
  const number = state.chosen.size;
  const sure = await confirm({
    title: `Delete ${count(number, "person", "people")}?`,
    text: "They are deleted with all their faces, crops and vectors. There is no way back.",
    action: "Delete them",
  });
  if (!sure) return;
  await showing(place, async () => {
    for (const subject of [...state.chosen.keys()]) {
      await remove(path("galleries", gallery.id, "subjects", subject));
      state.chosen.delete(subject);
    }
    toast(`${count(number, "person is", "people are")} deleted.`);
    again();
  });
}
