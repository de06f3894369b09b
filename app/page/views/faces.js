/** The faces of a person: to see large, to select, to move to another person, to delete. */

import { get, patch, path, post, remove } from "../api.js";
import { crop, facePicture, forget } from "../crops.js";
import { confirm, h, openDialog, put, toast } from "../dom.js";
import { facts, request } from "../parts.js";
import { busy, showing } from "../problem.js";
import * as session from "../session.js";
import { PersonField } from "../suggest.js";
import { count, form, list, reason, sentence, when } from "../words.js";

const FACES = 60;

/**
 * `state`: {galleryId, subjectId, where, place} of the person. `changed()` is called after faces were moved or deleted.
 * @param {any} state
 * @param {any} changed
 */
export function faces(state, changed) {
  const listed = {
    ...state,
    changed,
    chosen: new Map(),
    element: h("div.stack", {}),
    cards: h("ul.faces", {}),
    more: h("div.row", {}),
  };
  listed.bar = session.may("enroll") ? toolbar(listed) : null;
  return { element: listed.element, load: () => load(listed) };
}

/** @param {any} listed */
async function load(listed) {
  listed.chosen.clear();
  const page = await get(`${listed.where}/faces`, { limit: FACES });
  put(listed.cards);
  if (page.faces.length) put(listed.element, listed.bar?.element, listed.cards, listed.more);
  else put(listed.element, h("p.waiting", {}, "No face is enrolled, so nothing can be recognised as this person."));
  add(listed, page);
}

/**
 * @param {any} listed
 * @param {Api.FacePage} page
 */
function add(listed, page) {
  const before = listed.cards.childElementCount;
  listed.cards.append(...page.faces.map((face, index) => card(listed, face, before + index + 1)));
  listed.bar?.update();
  const next = h(
    "button",
    { type: "button", onclick: () => busy(next, () => showing(listed.place, more)) },
    "More faces",
  );
  const more = async () => add(listed, await get(`${listed.where}/faces`, { limit: FACES, cursor: page.next_cursor }));
  put(listed.more, page.next_cursor && next);
}

/** @param {any} listed */
function toolbar(listed) {
  const all = h("input", {
    type: "checkbox",
    onchange: () => {
      for (const box of listed.cards.querySelectorAll("input")) if (box.checked !== all.checked) box.click();
    },
  });
  const told = h("span.small", { role: "status" });
  const acts = [
    h("button.small", { type: "button", onclick: () => move(listed) }, "Move selected"),
    h("button.small.danger", { type: "button", onclick: () => drop(listed) }, "Delete selected"),
  ];
  const update = () => {
    const number = listed.chosen.size;
    all.checked = number > 0 && number === listed.cards.childElementCount;
    all.indeterminate = number > 0 && !all.checked;
    put(told, number ? `${count(number, "face")} selected` : "");
    for (const button of acts) button.disabled = !number;
  };
  return {
    update,
    element: h(
      "div.row",
      { role: "group", "aria-label": "Selected faces" },
      h("label.choice", {}, all, h("span", {}, "All")),
      acts,
      told,
    ),
  };
}

/** @param {Api.StoredFace} face */
const looks = (face) => (face.quality.reasons.length ? sentence(list(face.quality.reasons.map(reason))) : "Good");

/**
 * @param {any} listed
 * @param {Api.StoredFace} face
 * @param {number} number
 */
function card(listed, face, number) {
  const quality = Math.round(face.quality.score);
  const box = h("input", { type: "checkbox", "aria-label": `Select face ${number} of quality ${quality}` });
  const heard = () => {
    if (box.checked) listed.chosen.set(face.face_id, face);
    else listed.chosen.delete(face.face_id);
    listed.bar.update();
  };
  box.addEventListener("change", heard);
  const picture = facePicture(listed.galleryId, listed.subjectId, face, `Enrolled face, quality ${quality}`);
  return h(
    "li",
    {},
    h(
      "button.enlarge",
      {
        type: "button",
        "aria-label": `Enlarge face ${number} of quality ${quality}`,
        onclick: () => enlarge(listed, face),
      },
      picture,
    ),
    h(
      "div",
      {},
      h("p", {}, h("strong", {}, `Quality ${quality}`)),
      h("p.small", {}, looks(face)),
      h("p.small", {}, when(face.created_at)),
      listed.bar && h("label.choice", {}, box, h("span", { "aria-hidden": "true" }, "Select")),
    ),
  );
}

/**
 * Shows the face in a dialog, with all that is known about it.
 * @param {any} listed
 * @param {Api.StoredFace} face
 */
function enlarge(listed, face) {
  const home = h(
    "div.large",
    {},
    face.has_crop ? h("p.waiting", {}, "Loading …") : h("p.hint", {}, "This gallery keeps no pictures of its faces."),
  );
  if (face.has_crop)
    crop(listed.galleryId, listed.subjectId, face.face_id).then(
      (url) => put(home, h("img", { src: url, alt: "The enrolled face" })),
      () => put(home, h("p.hint", {}, "The picture can't be loaded.")),
    );
  const { x, y, width, height } = Object.fromEntries(
    Object.entries(face.box).map(([side, value]) => [side, Math.round(value)]),
  );
  const known = [
    ["Quality", `${Math.round(face.quality.score)}. ${looks(face)}`],
    ["Enrolled", when(face.created_at)],
    ["In its photo", `${width} × ${height} pixels at ${x}, ${y}`],
    ["Model", face.model],
    ["Face id", h("code", {}, face.face_id)],
  ];
  return openDialog("Enrolled face", (close) =>
    h(
      "div",
      {},
      home,
      facts(known),
      h(
        "div.row.end",
        {},
        listed.bar &&
          h(
            "button",
            { type: "button", onclick: () => showing(listed.place, () => cover(listed, face)).then(() => close()) },
            "Use as cover",
          ),
        h("button", { type: "button", onclick: () => close() }, "Close"),
      ),
    ),
  );
}

/**
 * Makes the face the person's cover, which is shown wherever the person is.
 * @param {any} listed
 * @param {Api.StoredFace} face
 */
async function cover(listed, face) {
  await patch(listed.where, { cover: face.face_id });
  toast("This is the cover now.");
  await listed.changed();
}

/**
 * @param {any} listed
 * @param {string} face
 */
const pathOf = (listed, face) => `${listed.where}/faces/${encodeURIComponent(face)}`;

/** @param {any} listed */
async function drop(listed) {
  const number = listed.chosen.size;
  const sure = await confirm({
    title: `Delete ${count(number, "face")}?`,
    text: `Crops and vectors go with ${form(number, "it", "them")}. The person stays.`,
    action: `Delete the ${form(number, "face")}`,
  });
  if (!sure) return;
  await showing(listed.place, async () => {
    for (const face of [...listed.chosen.keys()]) await remove(pathOf(listed, face));
    forget(); // a portrait may show a deleted face
    toast(`${count(number, "face is", "faces are")} deleted.`);
  });
  await listed.changed();
}

/**
 * Moves the selected faces to another person of the gallery, or to a new one.
 * @param {any} listed
 */
async function move(listed) {
  const number = listed.chosen.size;
  const who = new PersonField(() => listed.galleryId, { required: true });
  const label = h(
    "div.field",
    {},
    h("label", { for: who.input.id }, "To whom?"),
    who.element,
    h("p.hint", {}, "A name of this gallery; any other makes a new person."),
  );
  const moved = await request(`Move ${count(number, "face")}`, label, "Move", async () => {
    const target = await who.meant();
    if (!target) return null;
    await post(`${listed.where}/faces/move`, { faces: [...listed.chosen.keys()], subject: target.id, create: true });
    if (target.name) await patch(path("galleries", listed.galleryId, "subjects", target.id), { name: target.name });
    return target;
  });
  if (moved === null) return;
  forget();
  toast(`Moved to ${who.input.value.trim()}.`);
  await listed.changed();
}
