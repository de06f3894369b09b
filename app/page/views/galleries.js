/** All galleries that the key sees, and where each of their views is. */

import { path, post } from "../api.js";
import { everyGallery } from "../choosing.js";
import { ask, field, h } from "../dom.js";
import { icon } from "../icons.js";
import { busy, filling, problemPlace, showing } from "../problem.js";
import { go, link } from "../router.js";
import * as session from "../session.js";
import { count, when } from "../words.js";
import { calibration } from "./calibration.js";
import { enrolling } from "./enroll.js";
import { people } from "./people.js";
import { person } from "./person.js";
import { review } from "./review.js";
import { settings } from "./settings.js";

<<<<<<< HEAD
const PAGE = 1000;
const FIRST_PAGE = 200;
const CELL = { width: 148, more: 60 };
const CALM_MS = 220;

/** `#/galleries`, `#/galleries/ID`, and below it `enroll`, `settings`, `review` and `people/SUBJECT`. */
=======
/** `#/galleries`, `#/galleries/ID`, `#/galleries/ID/enroll`, `#/galleries/ID/settings`, `#/galleries/ID/people/SUBJECT`. */
>>>>>>> main
export function galleries([gallery, what, subject]) {
  if (!gallery) return all();
  if (what === "people" && subject) return person(gallery, subject);
  if (what === "review") return review(gallery);
  if (what === "settings" && session.may("admin")) return settings(gallery);
  if (what === "enroll" && session.may("enroll")) return enrolling(gallery);
  if (what === "calibration" && session.may("admin")) return calibration(gallery);
  return people(gallery);
}

function all() {
  const place = problemPlace();
  const body = h("div", {});
  const create = session.mayEverything() && h("button.primary", { type: "button", onclick: newGallery }, icon("plus"), "New gallery");
  const element = h(
    "div",
    {},
    h("header.head", {}, h("div", {}, h("h1", {}, "Galleries"), h("p.lead", {}, "A gallery is a set of enrolled people who can be identified.")), create),
    place.element,
    body,
  );
  return { element, ready: filling(place, body, async () => listed(await everyGallery())) };
}

function listed(found) {
  if (!found.length)
    return h("div.nothing", {}, h("h2", {}, "No gallery yet"), h("p", {}, session.mayEverything() ? "Make one, then enroll people in it." : "Somebody with an unrestricted admin key can make one."));
  return h(
    "ul.cards",
    {},
    found.map((gallery) =>
      h(
        "li",
        {},
        h(
          "a.card.gallery",
          { href: link("galleries", gallery.id) },
          h("h2", {}, gallery.id),
          h("p", {}, h("strong", {}, gallery.subjects.toLocaleString("en")), gallery.subjects === 1 ? " person, " : " people, ", count(gallery.faces, "face")),
          h("p.small", {}, `${gallery.embedder}, ${gallery.store === "crop" ? "keeps crops" : "keeps no pictures"}, since ${when(gallery.created_at)}`),
        ),
      ),
    ),
  );
}

/** Asks for a new gallery, and goes there. */
export async function newGallery() {
  const id = h("input", { type: "text", required: true, maxlength: 255, autocomplete: "off", spellcheck: "false" });
  const crops = h("input", { type: "checkbox", checked: true });
  const place = problemPlace();
  const made = await ask("New gallery", (close) => {
    const button = h("button.primary", { type: "submit" }, "Create");
    const send = () => showing(place, () => post(path("galleries"), { id: id.value.trim(), store: crops.checked ? "crop" : "none" }));
    const submit = async (event) => {
      event.preventDefault();
      const answer = await busy(button, send);
      if (answer) close(answer);
    };
    return h(
      "form",
      { onsubmit: submit },
      field("Id", id, "What programs call it, such as staff. It can't be changed later."),
      h("label.choice", {}, crops, h("span", {}, "Keep each face's crop, to show it here and to move to another model")),
      place.element,
      h("div.row.end", {}, h("button", { type: "button", onclick: () => close() }, "Cancel"), button),
    );
  });
  if (made) go("galleries", made.id);
}
<<<<<<< HEAD

function people(id) {
  const place = problemPlace();
  const body = h("div.people", {});
  const heading = h("h1", {}, id);
  const about = h("p.lead", {});
  const actions = h("div.row", {});
  const ondrop = async (event) => {
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
  const state = { grid: null, panel: null };
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

function offered(gallery, place) {
  return [
    session.may("enroll") && h("a.button.primary", { href: link("galleries", gallery.id, "enroll") }, icon("plus"), "Enroll photos"),
    h("a.button", { href: link("galleries", gallery.id, "review") }, icon("check"), "Review"),
    session.may("recognize") && h("a.button", { href: `${link("identify")}?${new URLSearchParams({ gallery: gallery.id })}` }, icon("identify"), "Identify here"),
    session.may("admin") && h("a.button", { href: link("galleries", gallery.id, "settings") }, icon("settings"), "Settings"),
    session.may("admin") && h("button", { type: "button", onclick: () => exportGallery(gallery.id, place) }, "Export"),
    session.mayEverything() && h("button.danger", { type: "button", onclick: () => drop(gallery) }, "Delete"),
  ];
}

async function drop(gallery) {
  const sure = await confirm({
    title: `Delete ${gallery.id}?`,
    text: `This deletes ${count(gallery.subjects, "person", "people")} with all their faces, crops and vectors. There is no way back.`,
    action: "Delete the gallery",
    typed: gallery.id,
  });
  if (!sure) return;
  const place = problemPlace();
  await showing(place, async () => {
    await remove(path("galleries", gallery.id));
    tell(`${gallery.id} is deleted.`);
    go("galleries");
  });
  document.querySelector("main .head")?.after(place.element);
}

/** The people, or, where there is nobody yet, a place for their photos. */
function contents(gallery, state, place) {
  if (!gallery.subjects) return empty(gallery, state);
  const shown = h("p.small", { role: "status" });
  const home = h("div", {});
  const search = h("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: "Name or id", "aria-label": "Search people" });
  const start = () => {
    state.grid?.leave();
    state.grid = gridOf(gallery, search.value.trim(), shown, place, home);
    put(home, state.grid.element);
    state.grid.soon();
  };
  search.addEventListener("input", calmly(CALM_MS, start));
  queueMicrotask(start);
  return [h("div.row.apart", {}, h("div.search", {}, search), shown), home];
}

function empty(gallery, state) {
  if (!session.may("enroll")) return h("div.nothing", {}, h("h2", {}, "Nobody is enrolled yet"), h("p", {}, "Your key may not enroll."));
  state.panel = enrollPanel({ gallery: gallery.id });
  return [h("h2", {}, "Nobody is enrolled yet"), h("p.lead", {}, "Drop photos of people, or a folder with one folder a person."), state.panel.element];
}

function gridOf(gallery, search, shown, place, home) {
  const total = search ? null : gallery.subjects;
  const grid = new Grid({
    ...CELL,
    total,
    label: search ? `People found for ${search}` : "People",
    cell: (subject) => cell(gallery, subject),
    load: async (cursor) => {
      const page = await showing(place, () =>
        get(path("galleries", gallery.id, "subjects"), { limit: cursor ? PAGE : FIRST_PAGE, cursor, search: search || null }),
      );
      return page ? { items: page.subjects, next: page.next_cursor } : { items: [], next: null };
    },
    onload: (loaded, done) => {
      put(shown, search ? found(loaded, done) : done ? "" : `${loaded.toLocaleString("en")} of ${total.toLocaleString("en")} loaded; scroll for more`);
      if (done && !loaded) put(home, h("p.waiting", {}, `Nobody's name or id contains “${search}”.`));
    },
  });
  return grid;
}

const found = (loaded, done) => `${loaded.toLocaleString("en")}${done ? "" : " or more"} found`;

function cell(gallery, subject) {
  return h(
    "a.person",
    { href: link("galleries", gallery.id, "people", subject.id) },
    portrait(gallery.id, subject, gallery.store === "crop"),
    h("span.name", {}, subject.name ?? subject.id),
    h("span.small", {}, count(subject.face_count, "face")),
  );
}
=======
>>>>>>> main
