/** The faces that were found, each with who it may be, and what to do if that is wrong. */

import { crop, cutOut } from "../align.js";
import { get, patch, path, remove, sendPhotos } from "../api.js";
import { captioned, storedCrop } from "../crops.js";
import { confirm, h, openDialog, toast } from "../dom.js";
import { verdict } from "../liveness.js";
import { orLeave } from "../parts.js";
import { busy, problemPlace, showing } from "../problem.js";
import { link } from "../router.js";
import * as session from "../session.js";
import { PersonField } from "../suggest.js";
import { list, nameOf, reason, score } from "../words.js";

const MARGIN = 0.6;

/**
 * A card for each face. `shot`: {picture, photo, answer}. `state`: the view's, with `gallery`; `hold(shot)`, called
 * before the user acts on a face; and `again()`, called afterwards.
 * @param {any} state
 * @param {Page.Shot} shot
 */
export const faceCards = (state, shot) =>
  h(
    "ul.stack",
    {},
    shot.answer.faces.map((face, index) => card(state, shot, face, index)),
  );

/**
 * @param {any} state
 * @param {Page.Shot} shot
 * @param {Page.Identified} face
 * @param {number} index
 */
function card(state, shot, face, index) {
  const best = face.candidates[0];
  const named = best && face.decision !== "unknown";
  const title = named ? nameOf(best) : "Unknown";
  const poor = face.quality.reasons.length ? `, ${list(face.quality.reasons.map(reason))}` : "";
  return h(
    "li.card.face",
    {
      onmouseenter: () => state.point(index),
      onmouseleave: () => state.point(null),
      onfocusin: () => state.point(index),
      onfocusout: () => state.point(null),
    },
    h(
      "div.summary",
      {},
      shot.picture && face.landmarks && crop(shot.picture, face.landmarks, `Face ${index + 1}, aligned`, 160),
      h(
        "div",
        {},
        h(
          "h3",
          {},
          shot.answer.faces.length > 1 && h("span.place", { "aria-label": `Face ${index + 1}:` }, String(index + 1)),
          named && session.may("read")
            ? h("a", { href: link("galleries", state.gallery, "people", best.subject) }, title)
            : title,
        ),
        h("p", {}, h(`span.pill.${face.decision}`, {}, face.decision)),
        h("p.small", {}, `Quality ${Math.round(face.quality.score)}${poor}${face.reason ? ": proves nothing" : ""}`),
        verdict(face),
        face.displaced_by !== null &&
          h("p.small", {}, `Looks most like the person of face ${face.displaced_by + 1}, who can't be here twice.`),
      ),
    ),
    face.candidates.length ? candidates(face) : h("p.small", {}, withoutCandidates(shot.answer, face)),
    session.may("enroll") && actions(state, shot, face, best),
  );
}

/**
 * Why a face has no candidates.
 * @param {any} answer
 * @param {Api.IdentifiedFace} face
 */
function withoutCandidates(answer, face) {
  if (!answer.subjects) return "Nobody in this gallery has a face yet.";
  if (face.quality.reasons.includes("unalignable")) return "It was compared with nobody: take a photo that shows them.";
  return `Nobody ${face.displaced_by === null ? "" : "else "}of this gallery comes near.`;
}

/** @param {Api.IdentifiedFace} face */
function candidates(face) {
  const bar = (/** @type {any} */ value) => {
    const element = h("span.meter", { "aria-hidden": "true" }, h("span", {}));
    element.firstChild.style.width = `${Math.max(0, Math.min(1, value)) * 100}%`;
    element.style.setProperty("--threshold", `${face.threshold * 100}%`);
    return element;
  };
  return h(
    "ol.candidates",
    { "aria-label": `Candidates; known from ${score(face.threshold)} on` },
    face.candidates.map((candidate) =>
      h(
        "li",
        {},
        h("span.name", {}, nameOf(candidate)),
        bar(candidate.score),
        h("span.number", {}, score(candidate.score)),
      ),
    ),
  );
}

/**
 * @param {any} state
 * @param {Page.Shot} shot
 * @param {Page.Identified} face
 * @param {Api.Candidate} best
 */
function actions(state, shot, face, best) {
  if (!shot.picture && shot.answer.faces.length > 1) return null; // this face can't be cut out of the photo
  const place = problemPlace();
  if (face.decision === "known")
    return h(
      "div.row",
      {},
      h(
        "button.small",
        {
          type: "button",
          "aria-label": `Not this person: ${nameOf(best)}`,
          onclick: () => deny(state, shot, face, best),
        },
        "Not this person",
      ),
      place.element,
    );
  return h(
    "div.stack",
    {},
    face.decision === "uncertain" && confirming(state, shot, face, best, place),
    naming(state, shot, face, place),
    place.element,
  );
}

/**
 * A button that confirms who it may be.
 * @param {any} state
 * @param {Page.Shot} shot
 * @param {Page.Identified} face
 * @param {Api.Candidate} best
 * @param {Page.Place} place
 */
function confirming(state, shot, face, best, place) {
  const button = h(
    "button",
    {
      type: "button",
      onclick: () =>
        enrolling(state, shot, place, button, () => add(state, shot, face, { id: best.subject, name: null })),
    },
    `It is ${nameOf(best)}: enroll`,
  );
  return h("div.row", {}, button);
}

/**
 * A field for the name under which to enroll the face.
 * @param {any} state
 * @param {Page.Shot} shot
 * @param {Page.Identified} face
 * @param {Page.Place} place
 * @param {any} [done]
 */
function naming(state, shot, face, place, done = () => {}) {
  const { faces } = shot.answer;
  const which = faces.length > 1 ? ` Face ${faces.indexOf(face) + 1}` : "";
  const who = new PersonField(() => state.gallery, {
    required: true,
    placeholder: "Who is it?",
    "aria-label": `Who is it?${which}`,
  });
  const button = h("button", { type: "submit", "aria-label": `Enroll${which}` }, "Enroll");
  const submit = () =>
    enrolling(state, shot, place, button, async () => add(state, shot, face, await who.meant()), done);
  return h("form.row.naming", { onsubmit: submit }, who.element, button);
}

/**
 * @param {any} state
 * @param {Page.Shot} shot
 * @param {Page.Place} place
 * @param {HTMLButtonElement} button
 * @param {() => any} work
 * @param {any} [done]
 */
async function enrolling(state, shot, place, button, work, done = () => {}) {
  state.hold(shot);
  const enrolled = await showing(place, () => busy(button, work));
  if (!enrolled) return;
  done();
  toast(`Enrolled as ${enrolled}.`);
  await state.again();
}

/**
 * @param {any} state
 * @param {Page.Shot} shot
 * @param {Page.Identified} face
 * @param {{id: string, name: string | null} | null} who with the name of somebody new
 */
async function add(state, shot, face, who) {
  if (!who) return null;
  const subject = path("galleries", state.gallery, "subjects", who.id);
  const photo = shot.picture ? await cutOut(shot.picture, face.box, shot.answer.image, MARGIN) : shot.photo;
  const answer = await sendPhotos(`${subject}/faces`, [["images", photo]], { quality: "low" });
  const { conflict } = answer.enrolled[0];
  if (who.name) await patch(subject, { name: who.name });
  const name = who.name ?? nameOf(session.may("read") ? await get(subject) : who);
  return conflict ? `${name}; the face also matches ${nameOf(conflict)}` : name;
}

/**
 * Records that the face is not the subject's; asks first if it matches beyond doubt. Returns false if it was not
 * recorded.
 * @param {string} subject
 * @param {string} name
 * @param {Page.Shot} shot
 * @param {Page.Identified} face
 */
async function correct(subject, name, shot, face) {
  const record = (/** @type {any} */ options) =>
    sendPhotos(`${subject}/corrections`, [["image", shot.photo]], { face: face.index, ...options });
  try {
    return await record({});
  } catch (error) {
    if (error.code !== "correction_unlikely") throw error;
    const text =
      `This face matches ${name} beyond doubt. If it is ${name} and you remember that it is ` +
      `not, ${name} is no longer known.`;
    if (!(await confirm({ title: `Surely not ${name}?`, text, action: "Remember it all the same" }))) return false;
    return record({ confirm: true });
  }
}

/**
 * Shows the two pictures that were taken for one person, and what to do if this one or the enrolled one is wrong.
 * @param {any} state
 * @param {Page.Shot} shot
 * @param {Page.Identified} face
 * @param {Api.Candidate} best
 */
async function deny(state, shot, face, best) {
  state.hold(shot);
  const name = nameOf(best);
  const subject = path("galleries", state.gallery, "subjects", best.subject);
  const changed = await openDialog(`Not ${name}?`, (close) => {
    const place = problemPlace();
    const act = (/** @type {any} */ words, /** @type {any} */ work) => (/** @type {any} */ event) =>
      showing(place, () => busy(event.currentTarget, async () => (await work()) !== false && close(words)));
    const remember = act(`Whoever looks like this is no longer taken for ${name}.`, () =>
      correct(subject, name, shot, face),
    );
    const drop = act(`That face of ${name} is deleted.`, () =>
      remove(`${subject}/faces/${encodeURIComponent(best.face_id)}`),
    );
    return h(
      "div",
      {},
      h(
        "p",
        {},
        `This face scored ${score(best.score)} against a face enrolled as ${name}, above the threshold ` +
          `${score(face.threshold)}.`,
      ),
      h(
        "div.row.two",
        {},
        captioned(
          "In this photo",
          shot.picture && face.landmarks
            ? crop(shot.picture, face.landmarks, "The face in this photo")
            : "This browser can't show it.",
        ),
        captioned(
          `Enrolled as ${name}`,
          storedCrop(state.gallery, best.subject, best.face_id, `The face enrolled as ${name}`),
        ),
      ),
      h("h3", {}, `This face is not ${name}`),
      h(
        "div.row",
        {},
        h("button.primary", { type: "button", onclick: remember }, "Remember that"),
        h(
          "p.small",
          {},
          `A face that is more like this one than like ${name} is then unknown. The photo's template is ` +
            `kept with ${name}.`,
        ),
      ),
      h("h3", {}, `The enrolled picture is not ${name} either`),
      h("div.row", {}, h("button.danger", { type: "button", onclick: drop }, "Delete that enrolled face")),
      h("h3", {}, "This face is somebody else, who is not enrolled yet"),
      naming(state, shot, face, place, () => close()),
      place.element,
      orLeave(close, "Cancel"),
    );
  });
  if (!changed) return;
  toast(changed);
  await state.again();
}
