/** One person of a gallery: faces, name, metadata, deletion and erasure. */

import { PERSON_PARTS } from "../additions.js";
import { get, patch, path, remove } from "../api.js";
import { portrait } from "../crops.js";
import { confirm, field, h, put, toast } from "../dom.js";
import { MetadataFields, metadataFacts } from "../metadata.js";
import { backTo, facts } from "../parts.js";
import { busy, problemPlace, showing } from "../problem.js";
import { go, goBack, replace } from "../router.js";
import * as session from "../session.js";
import { count, nameOf, when } from "../words.js";
import { enrollPanel } from "./enroll.js";
import { erase } from "./erasing.js";
import { faces } from "./faces.js";
import { merge } from "./merging.js";

/** An id that the server has made up, which says nothing to people. */
const MADE_UP = /^[0-9a-f]{32}$/;

/**
 * @param {any} galleryId
 * @param {any} subjectId
 */
export function person(galleryId, subjectId) {
  const place = problemPlace();
  /** @type {any} */
  const state = { galleryId, subjectId, place, where: path("galleries", galleryId, "subjects", subjectId) };
  state.head = h("header.head", {}, h("h1", {}, subjectId));
  state.about = h("section.card", { "aria-label": "About" });
  state.wrong = h("section.stack", { "aria-label": "Photos of others" });
  state.faces = faces(state, () => load(state));
  const more = session.may("enroll")
    ? enrollPanel({ gallery: galleryId, subject: subjectId, onenrolled: () => load(state) })
    : null;
  const added = PERSON_PARTS.map((part) => part(galleryId, subjectId));
  const element = h(
    "div",
    {},
    backTo(galleryId),
    state.head,
    place.element,
    h(
      "div.columns",
      {},
      h("div.stack", {}, h("h2", {}, "Faces"), state.faces.element, more?.element, state.wrong, added),
      state.about,
    ),
  );
  return { element, ready: load(state), leave: () => more?.leave() };
}

/** @param {any} state */
async function load(state) {
  await showing(state.place, async () => {
    const asked = [get(state.where), get(`${state.where}/corrections`), state.faces.load()];
    const [subject, { corrections }] = await Promise.all(asked);
    state.subject = subject;
    showWrong(state, corrections);
    showHead(state);
    showAbout(state);
  });
}

/**
 * @param {any} state
 */
function showHead(state) {
  const { subject } = state;
  const heading = h("h1", {}, nameOf(subject));
  const id = subject.name && !MADE_UP.test(subject.id) ? `${subject.id}, ` : "";
  put(
    state.head,
    h(
      "div.who",
      {},
      portrait(state.galleryId, subject),
      h("div", {}, heading, h("p.lead", {}, `${id}${count(subject.face_count, "face")}`)),
    ),
  );
}

/**
 * Shows the photos that were recorded as not this person.
 * @param {any} state
 * @param {any} corrections
 */
function showWrong(state, corrections) {
  const forget = (/** @type {any} */ correction) => (/** @type {any} */ event) =>
    showing(state.place, () =>
      busy(event.currentTarget, () => remove(`${state.where}/corrections/${correction.id}`).then(() => load(state))),
    );
  const row = (/** @type {any} */ correction) =>
    h(
      "li.row",
      {},
      h("span", {}, `Said ${when(correction.created_at)}, kept until ${when(correction.expires_at)}`),
      session.may("enroll") &&
        h(
          "button.small",
          {
            type: "button",
            "aria-label": `Forget what was said ${when(correction.created_at)}`,
            onclick: forget(correction),
          },
          "Forget",
        ),
    );
  state.wrong.hidden = !corrections.length;
  put(
    state.wrong,
    h("h2", {}, "Not this person"),
    h("p.small", {}, "Faces that are more like these photos than like the faces above are not taken for this person."),
    h("ul.stack", {}, corrections.map(row)),
  );
}

/** @param {any} state */
function showAbout(state) {
  const { subject } = state;
  const known = facts([
    ["Id", subject.id],
    ["Since", when(subject.created_at)],
    ["Changed", when(subject.updated_at)],
    ["Expires", subject.expires_at && when(subject.expires_at)],
    ["Consent", subject.consent && `${subject.consent.note} (${when(subject.consent.given_at)})`],
  ]);
  if (!session.may("enroll")) {
    put(state.about, h("h2", {}, "About"), known, metadataFacts(subject.metadata));
    return;
  }
  put(state.about, h("h2", {}, "About"), known, editor(state), endings(state));
}

/**
 * Buttons to delete, for keys that may enroll, and to erase with a receipt, for `admin` keys.
 * @param {any} state
 */
function endings(state) {
  return h(
    "div.stack.endings",
    {},
    h(
      "div.row",
      {},
      h("button", { type: "button", onclick: () => mergeAway(state) }, "Merge"),
      h("button.danger", { type: "button", onclick: () => drop(state) }, "Delete"),
      session.may("admin") &&
        h("button.danger", { type: "button", onclick: () => eraseAll(state) }, "Erase, with a receipt"),
    ),
    session.may("admin") &&
      h(
        "p.small",
        {},
        "Deleting removes the person from the gallery. Erasing also clears what the disk may still hold, " +
          "and gives a signed receipt.",
      ),
  );
}

/** @param {any} state */
async function mergeAway(state) {
  const into = await merge(state.galleryId, [state.subject]);
  if (into) go("galleries", state.galleryId, "people", into);
}

/** @param {any} state */
async function eraseAll(state) {
  if (await erase(state.subject, state.where, state.place)) goBack("galleries", state.galleryId);
}

/** @param {any} state */
function editor(state) {
  const { subject } = state;
  const text = { type: "text", maxlength: 255, autocomplete: "off" };
  const name = h("input", { ...text, value: subject.name ?? "" });
  const id = h("input.mono", { ...text, required: true, spellcheck: "false", value: subject.id });
  const metadata = new MetadataFields(subject.metadata);
  const place = problemPlace();
  const button = h("button.primary", { type: "submit" }, "Save");
  const save = () =>
    showing(place, () =>
      busy(button, async () => {
        const wanted = { name: name.value.trim() || null, metadata: metadata.value };
        const changed = id.value.trim() === subject.id ? {} : { id: id.value.trim() };
        const saved = await patch(state.where, { ...wanted, ...changed });
        toast("Saved.");
        if (saved.id === subject.id) await load(state);
        else replace("galleries", state.galleryId, "people", saved.id);
      }),
    );
  return h(
    "form.stack",
    { onsubmit: save },
    field("Name", name),
    metadata.element,
    h(
      "details",
      {},
      h("summary", {}, "Change the id"),
      field("Id", id, "What programs call this person. Faces, sightings and corrections follow a new one."),
    ),
    place.element,
    h("div.row", {}, button),
  );
}

/** @param {any} state */
async function drop(state) {
  const { subject } = state;
  const sure = await confirm({
    title: `Delete ${nameOf(subject)}?`,
    text: `This deletes the person with ${count(subject.face_count, "face")}, crops and vectors. There is no way back.`,
    action: "Delete the person",
  });
  if (!sure) return;
  await showing(state.place, async () => {
    await remove(state.where);
    toast(`${nameOf(subject)} is deleted.`);
    goBack("galleries", state.galleryId);
  });
}
