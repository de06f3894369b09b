/** The faces of a person: looked at large, chosen one by one or all, moved to another person, deleted. */

import { get, patch, path, post, remove } from "../api.js";
import { crop, facePicture, forget } from "../crops.js";
import { confirm, h, openDialog, put, toast } from "../dom.js";
import { facts, request } from "../parts.js";
import { busy, showing } from "../problem.js";
import * as session from "../session.js";
import { PersonField } from "../suggest.js";
import { count, list, reason, sentence, when } from "../words.js";

const FACES = 60;

/**
 * `state`: {galleryId, subjectId, where, place} of the person; `changed()` is called when faces have gone.
 * @param {any} state
 * @param {any} changed
 */
export function faces(state, changed) {
  const own = {
    ...state,
    changed,
    chosen: new Map(),
    element: h("div.stack", {}),
    cards: h("ul.faces", {}),
    more: h("div.row", {}),
  };
  own.bar = session.may("enroll") ? toolbar(own) : null;
  return { element: own.element, load: () => load(own) };
}

/** @param {any} own */
async function load(own) {
  own.chosen.clear();
  const page = await get(`${own.where}/faces`, { limit: FACES });
  put(own.cards);
  if (page.faces.length) put(own.element, own.bar?.element, own.cards, own.more);
  else put(own.element, h("p.waiting", {}, "No face is enrolled, so nothing can be recognised as this person."));
  add(own, page);
}

/**
 * @param {any} own
 * @param {Api.FacePage} page
 */
function add(own, page) {
  const before = own.cards.childElementCount;
  own.cards.append(...page.faces.map((face, index) => card(own, face, before + index + 1)));
  own.bar?.update();
  const next = h("button", { type: "button", onclick: () => busy(next, () => showing(own.place, more)) }, "More faces");
  const more = async () => add(own, await get(`${own.where}/faces`, { limit: FACES, cursor: page.next_cursor }));
  put(own.more, page.next_cursor && next);
}

/** @param {any} own */
function toolbar(own) {
  const all = h("input", {
    type: "checkbox",
    onchange: () => {
      for (const box of own.cards.querySelectorAll("input")) if (box.checked !== all.checked) box.click();
    },
  });
  const told = h("span.small", { role: "status" });
  const acts = [
    h("button.small", { type: "button", onclick: () => move(own) }, "Move selected"),
    h("button.small.danger", { type: "button", onclick: () => drop(own) }, "Delete selected"),
  ];
  const update = () => {
    const number = own.chosen.size;
    all.checked = number > 0 && number === own.cards.childElementCount;
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
 * @param {any} own
 * @param {Api.StoredFace} face
 * @param {number} number
 */
function card(own, face, number) {
  const quality = Math.round(face.quality.score);
  const box = h("input", { type: "checkbox", "aria-label": `Select face ${number} of quality ${quality}` });
  const heard = () => {
    if (box.checked) own.chosen.set(face.face_id, face);
    else own.chosen.delete(face.face_id);
    own.bar.update();
  };
  box.addEventListener("change", heard);
  const picture = facePicture(own.galleryId, own.subjectId, face, `Enrolled face, quality ${quality}`);
  return h(
    "li",
    {},
    h(
      "button.enlarge",
      {
        type: "button",
        "aria-label": `Enlarge face ${number} of quality ${quality}`,
        onclick: () => enlarge(own, face),
      },
      picture,
    ),
    h(
      "div",
      {},
      h("p", {}, h("strong", {}, `Quality ${quality}`)),
      h("p.small", {}, looks(face)),
      h("p.small", {}, when(face.created_at)),
      own.bar && h("label.choice", {}, box, h("span", { "aria-hidden": "true" }, "Select")),
    ),
  );
}

/**
 * The face as large as a dialog, with all that is known of it.
 * @param {any} own
 * @param {Api.StoredFace} face
 */
function enlarge(own, face) {
  const home = h(
    "div.large",
    {},
    face.has_crop ? h("p.waiting", {}, "Loading …") : h("p.hint", {}, "This gallery keeps no pictures of its faces."),
  );
  if (face.has_crop)
    crop(own.galleryId, own.subjectId, face.face_id).then(
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
        own.bar &&
          h(
            "button",
            { type: "button", onclick: () => showing(own.place, () => cover(own, face)).then(() => close()) },
            "Use as cover",
          ),
        h("button", { type: "button", onclick: () => close() }, "Close"),
      ),
    ),
  );
}

/**
 * The face stands for the person wherever the person is shown.
 * @param {any} own
 * @param {Api.StoredFace} face
 */
async function cover(own, face) {
  await patch(own.where, { cover: face.face_id });
  toast("This is the cover now.");
  await own.changed();
}

/**
 * @param {any} own
 * @param {string} face
 */
const pathOf = (own, face) => `${own.where}/faces/${encodeURIComponent(face)}`;

/** @param {any} own */
async function drop(own) {
  const number = own.chosen.size;
  const sure = await confirm({
    title: `Delete ${count(number, "face")}?`,
    text: `Crops and vectors go with ${number === 1 ? "it" : "them"}. The person stays.`,
    action: number === 1 ? "Delete the face" : "Delete the faces",
  });
  if (!sure) return;
  await showing(own.place, async () => {
    for (const face of [...own.chosen.keys()]) await remove(pathOf(own, face));
    forget(); // a portrait may be of a face that has gone
    toast(number === 1 ? "The face is deleted." : `${count(number, "face")} are deleted.`);
  });
  await own.changed();
}

/**
 * To somebody of the gallery, or to a new person.
 * @param {any} own
 */
async function move(own) {
  const number = own.chosen.size;
  const who = new PersonField(() => own.galleryId, { required: true });
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
    await post(`${own.where}/faces/move`, { faces: [...own.chosen.keys()], subject: target.id, create: true });
    if (target.name) await patch(path("galleries", own.galleryId, "subjects", target.id), { name: target.name });
    return target;
  });
  if (moved === null) return;
  forget();
  toast(`Moved to ${who.input.value.trim()}.`);
  await own.changed();
}
