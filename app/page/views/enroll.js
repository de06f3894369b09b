/**
 * Enrolling many photos: they are dropped or chosen, sorted by folder or file name, and shown for a check before it
 * starts.
 */

import { galleryControl } from "../choosing.js";
import { field, h, newId, put, select } from "../dom.js";
import { dropped, isPhoto, picker, takeHanded, ways } from "../files.js";
import { keep, recall } from "../memory.js";
import { adviceLink, backTo, head } from "../parts.js";
import { thumbnail } from "../picture.js";
import { busy, problemPlace, showing } from "../problem.js";
import * as session from "../session.js";
import { PersonField } from "../suggest.js";
import { count, whole } from "../words.js";
import { begin, runOf } from "./enrolling.js";
import { importPanel } from "./importing.js";
import { discard } from "./underway.js";

const PEOPLE_SHOWN = 60;
const PHOTOS_SHOWN = 3;
/** File names that cameras and messengers give, which don't tell who is shown. */
const CAMERAS = new RegExp(
  [
    "^(?:img|dsc|dscn|dscf|pxl|mvimg|screenshot|signal|whatsapp image)[ _-]*e?\\d",
    "^p?\\d{6,}",
    "^(?:image|photo)[ _-]*(?:\\(?\\d*\\)?(?:\\.|$)|\\d{4}-)",
  ].join("|"),
  "i",
);
const NUMBER = /[ _.-]*\(?\d+\)?$/;

const MODES = [
  ["folder", "Each folder is one person: its name says who"],
  ["file", "The file names say who: anna_1.jpg and anna_2.jpg are anna"],
  ["one", "All of them show one person"],
  ["group", "Several people, unsorted: group them by face, then I name each person"],
];
const GATES = [
  ["high", "only very good ones"],
  ["medium", "good ones"],
  ["low", "also poor ones"],
  ["none", "any that show a face"],
];

/**
 * The view of a gallery's `enroll`.
 * @param {string} gallery
 */
export function enrolling(gallery) {
  const element = h(
    "div",
    {},
    backTo(gallery),
    head("Enroll photos", [
      `Into ${gallery}. Each photo is checked; a poor one is refused, with the reason. `,
      adviceLink(),
    ]),
  );
  const panel = enrollPanel({ gallery });
  element.append(panel.element);
  if (session.may("admin")) element.append(importPanel(gallery));
  return { element, leave: panel.leave };
}

/**
 * The view for keys that may enroll but not read: the gallery is typed, or chosen among those that the key is
 * restricted to.
 */
export function enrollAnywhere() {
  const place = problemPlace();
  const home = h("div", {});
  /** @type {{element: any, leave: () => void} | null} */
  let panel = null;
  const open = (/** @type {any} */ gallery) => {
    panel?.leave();
    panel = gallery ? enrollPanel({ gallery }) : null;
    put(home, panel?.element);
  };
  const chooser = h("div.strictness", {});
  const element = h("div", {}, head("Enroll photos", adviceLink(), chooser), place.element, home);
  const ready = showing(place, async () => put(chooser, field("Gallery", await galleryControl(open))));
  return { element, ready, leave: () => panel?.leave() };
}

/**
 * A place to drop photos, and the results. `subject`: whom all photos show, if that is known. A run into the same place
 * that is under way, or whose end was not seen yet, is shown at once. Runs go on when the view is left.
 * @param {any} given
 */
export function enrollPanel({ gallery, subject = null, onenrolled = () => {} }) {
  /** @type {any} */
  const state = {
    gallery,
    subject,
    onenrolled,
    photos: [],
    mode: "file",
    who: "",
    other: "",
    gate: "medium",
    urls: [],
  };
  state.plan = h("div.plan", {});
  state.results = h("div.results", {});
  const pickers = ways(!subject).map((way) =>
    picker(way, (found) => (way === "camera" ? took(state, found) : chosen(state, found))),
  );
  const zone = h(
    "div.zone",
    {
      onclick: (/** @type {any} */ event) =>
        event.target.closest("label, input") || zone.querySelector("input").click(),
      ondragover: (/** @type {any} */ event) => event.preventDefault() ?? zone.classList.add("over"),
      ondragleave: () => zone.classList.remove("over"),
      ondrop: async (/** @type {any} */ event) => {
        event.preventDefault();
        event.stopPropagation();
        zone.classList.remove("over");
        chosen(state, await dropped(event.dataTransfer));
      },
    },
    h("p", {}, drops(subject)),
    h("div.row", {}, pickers),
  );
  const element = h("section.enroll", { "aria-label": "Photos to enroll" }, zone, state.plan, state.results);
  const earlier = runOf(gallery, subject);
  if (earlier) show(state, earlier);
  const handed = takeHanded();
  const kept = recall(placeOf(state));
  if (handed.length) chosen(state, handed);
  else if (kept && !earlier) showPlan(Object.assign(state, kept));
  return { element, leave: () => leave(state) };
}

/**
 * What the place for photos says: on phones and tablets, photos can't be dropped.
 * @param {string | null} subject
 */
const drops = (subject) =>
  ways(false).includes("camera") ? "Add photos" : subject ? "Drop photos here" : "Drop photos or folders here";

/**
 * The name under which the photos for a gallery or person are kept until they are sent.
 * @param {any} state
 */
const placeOf = ({ gallery, subject }) => `enroll ${gallery} ${subject ?? ""}`;

addEventListener("beforeunload", (event) => document.querySelector(".plan form") && event.preventDefault());

/** @param {any} state */
function leave(state) {
  const { photos, left, mode, who, other, gate } = state;
  keep(placeOf(state), state.plan.firstChild ? { photos, left, mode, who, other, gate } : null);
  state.grouping?.leave();
  for (const url of state.urls) URL.revokeObjectURL(url);
  const run = runOf(state.gallery, state.subject);
  if (run?.ended && !run.queue.length) discard(run);
}

/**
 * Adds photos from a phone's camera to those taken before. They all show one person, since their names don't tell who.
 * @param {any} state
 * @param {Page.Chosen[]} found
 */
function took(state, found) {
  if (!state.plan.firstChild) return chosen(state, found.length ? [{ ...found[0], name: "image.jpg" }] : []);
  state.photos = [...state.photos, ...found];
  showPlan(state);
}

/**
 * @param {any} state
 * @param {Page.Chosen[]} found
 */
function chosen(state, found) {
  const run = runOf(state.gallery, state.subject);
  if (!found.length || (run && !run.ended)) return;
  if (run) discard(run);
  state.photos = found.filter(isPhoto);
  state.left = found.length - state.photos.length;
  state.grouping?.leave();
  state.mode = state.subject
    ? "one"
    : state.photos.some((/** @type {Page.Chosen} */ { name }) => name.includes("/"))
      ? "folder"
      : state.photos.every((/** @type {Page.Chosen} */ { name }) => CAMERAS.test(name))
        ? "one"
        : "file";
  put(state.results);
  showPlan(state);
}

/**
 * Whose photo it is, according to the mode.
 * @param {any} state
 * @param {string} name
 */
function subjectOf(state, name) {
  if (state.subject) return state.subject;
  if (state.mode === "one") return state.who;
  const parts = name.split("/");
  if (state.mode === "folder" && parts.length > 1) return parts.at(-2);
  const base = parts[parts.length - 1].replace(/\.[^.]*$/, "");
  if (CAMERAS.test(base)) return "";
  return base.replace(NUMBER, "") || base;
}

/** @param {any} state */
function showPlan(state) {
  const go = h("button.primary", { type: "submit" });
  const summary = h("p.small", { role: "status" });
  const place = problemPlace();
  const people = h("ul.planned", { tabindex: "0", "aria-label": "Who will be enrolled" });
  const tally = () => {
    const unsaid = state.mode === "group";
    put(go, `${unsaid ? "Group" : "Enroll"} ${count(state.photos.length, "photo")}`);
    const groups = Map.groupBy(state.photos, ({ name }) => subjectOf(state, name));
    const named = [...groups.keys()].filter(Boolean).length;
    const of = named && !unsaid ? ` of ${count(named, "person", "people")}` : "";
    const left = state.left ? ` ${count(state.left, "other file")} left out.` : "";
    put(
      summary,
      state.photos.length
        ? `${count(state.photos.length, "photo")}${of}.${left}`
        : `There is no photo among these files.${left}`,
    );
    put(people, !unsaid && preview(state, groups));
    go.disabled = unsaid ? !state.photos.length : !named;
  };
  const whose = whoseFields(state, tally);
  const choose = (/** @type {any} */ mode) => {
    state.mode = mode;
    whose.hidden = mode !== "one";
    tally();
  };
  whose.hidden = state.mode !== "one";
  const gate = field(
    "Photos to accept",
    select(GATES, state.gate, (value) => (state.gate = value)),
  );
  put(
    state.plan,
    h(
      "form.card",
      { onsubmit: () => start(state, place, go) },
      summary,
      state.subject ? null : [modes(state, choose), whose],
      people,
      place.element,
      h("div.row.apart", {}, gate, go),
    ),
  );
  tally();
}

/**
 * The first photos of each person; the others are only counted.
 * @param {any} state
 * @param {Map<string, Page.Photo[]>} groups
 */
function preview(state, groups) {
  for (const url of state.urls) URL.revokeObjectURL(url);
  state.urls = [];
  const picture = (/** @type {any} */ photo) => {
    state.urls.push(URL.createObjectURL(photo.file));
    return thumbnail(state.urls.at(-1), photo);
  };
  const rows = [...groups]
    .slice(0, PEOPLE_SHOWN)
    .map(([who, photos]) =>
      h(
        "li",
        {},
        h("span.thumbs", {}, photos.slice(0, PHOTOS_SHOWN).map(picture)),
        h("span.name", {}, who || "?"),
        h("span.small", {}, count(photos.length, "photo")),
      ),
    );
  return [rows, groups.size > PEOPLE_SHOWN ? h("li.small", {}, `and ${whole(groups.size - PEOPLE_SHOWN)} more`) : null];
}

/**
 * Fields for the one person on all photos: the name, and an optional id. With keys that can't look people up, the id
 * comes first. `state.meant()` then returns the person, as `PersonField.meant` does.
 * @param {any} state
 * @param {() => void} onchange
 */
function whoseFields(state, onchange) {
  const heard = () => {
    state.who = who.input.value.trim();
    onchange();
  };
  const who = new PersonField(() => state.gallery, { value: state.who }, heard);
  who.input.addEventListener("input", heard);
  const other = h("input", {
    type: "text",
    maxlength: 255,
    autocomplete: "off",
    spellcheck: "false",
    value: state.other,
    oninput: () => (state.other = other.value),
  });
  const reads = session.may("read");
  state.meant = () => {
    const text = other.value.trim();
    if (!reads) return { id: who.id, name: text || null };
    return text && !who.chosen ? { id: text, name: state.who } : who.meant();
  };
  const label = h("div.field", {}, h("label", { for: who.input.id }, reads ? "Their name" : "Their id"), who.element);
  return h("div.two", {}, label, field(reads ? "Id (made unless you give one)" : "Name (optional)", other));
}

/**
 * @param {any} state
 * @param {(value: any) => void} choose
 */
function modes(state, choose) {
  const name = newId("mode");
  return h(
    "fieldset",
    {},
    h("legend", {}, "Who is in them?"),
    MODES.map(([value, words]) =>
      h(
        "label.choice",
        {},
        h("input", { type: "radio", name, value, checked: value === state.mode, onchange: () => choose(value) }),
        h("span", {}, words),
      ),
    ),
  );
}

/**
 * @param {any} state
 * @param {Page.Place} place
 * @param {HTMLButtonElement} button
 */
async function start(state, place, button) {
  if (state.mode === "group") return showing(place, () => busy(button, () => group(state)));
  const asksWho = state.mode === "one" && !state.subject;
  const who = asksWho ? await showing(place, () => busy(button, state.meant)) : null;
  if (asksWho && !who) return;
  const photos = state.photos
    .map((/** @type {Page.Chosen} */ { file, name }) => ({ file, name, subject: who?.id ?? subjectOf(state, name) }))
    .filter((/** @type {Page.Photo} */ { subject }) => subject);
  const names = who?.name ? { [who.id]: who.name } : {};
  put(state.plan);
  show(state, begin({ gallery: state.gallery, subject: state.subject, photos, names, gate: state.gate }));
}

/**
 * Has the server group the photos by person. The groups that get a name are then enrolled.
 * @param {any} state
 */
async function group(state) {
  const { grouping } = await import("./grouping.js");
  state.grouping = grouping(state, (photos, names) => {
    put(state.plan);
    show(state, begin({ gallery: state.gallery, subject: null, photos, names, gate: state.gate }));
  });
  put(state.plan);
  put(state.results, state.grouping.element);
}

/**
 * @param {any} state
 * @param {any} run
 */
function show(state, run) {
  put(state.results, run.view.element);
  run.onend = state.onenrolled;
  if (!run.ended) queueMicrotask(() => run.view.heading.focus());
}
