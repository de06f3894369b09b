/** What can be done about a refused photo: take it anyway, or say which face is meant. */

import { path, sendPhoto } from "../api.js";
import { boxes, inReadingOrder, sheet } from "../boxes.js";
import { h, openDialog } from "../dom.js";
import { orLeave } from "../parts.js";
import { blank, decoded } from "../picture.js";
import { busy, problem } from "../problem.js";
import * as session from "../session.js";
import { nameOf } from "../words.js";
import { finding } from "./conflicts.js";

/**
 * Buttons for an error. `again(query, subject)` sends the photo again with these parameters, which include those of the
 * last attempt, and for another person if `subject` is given.
 * @param {any} photo
 * @param {any} error
 * @param {Record<string, any>} query
 * @param {(...given: any[]) => unknown} again
 */
export function remedies(photo, error, query, again) {
  const offered = [];
  const other = finding(error.details?.rejected?.[0]);
  if (other) offered.push(["Take it anyway", () => again({ ...query, on_conflict: "allow" })]);
  if (other?.subject && other.subject !== photo.subject)
    offered.push([`Take it as ${nameOf(other)}`, () => again({ ...query, on_conflict: "allow" }, other.subject)]);
  if (error.code === "low_quality") offered.push(["Take it anyway", () => again({ ...query, quality: "none" })]);
  if (error.code === "ambiguous_face" && session.may("recognize"))
    offered.push(["Choose the face", () => choose(photo, query, again)]);
  if (!offered.length) return null;
  const button = (/** @type {any[]} */ [words, act]) => {
    const element = h(
      "button.small",
      { type: "button", "aria-label": `${words}: ${photo.name}`, onclick: () => busy(element, act) },
      words,
    );
    return element;
  };
  return h("div.row", {}, offered.map(button));
}

/**
 * @param {any} photo
 * @param {Record<string, any>} query
 * @param {(...given: any[]) => unknown} again
 */
async function choose(photo, query, again) {
  const face = await openDialog(
    "Which face is it?",
    (close) => {
      const place = h("div.picking", { "aria-live": "polite" }, h("p.waiting", {}, "Looking …"));
      void shown(photo.file, close).then(
        (element) => place.replaceChildren(element),
        (error) => place.replaceChildren(problem(error)),
      );
      return h("div", {}, h("p", {}, "Choose the face of the person to enroll."), place, orLeave(close, "Cancel"));
    },
    { wide: true },
  );
  if (face !== null) await again({ ...query, face });
}

/**
 * The photo with a button over each face, which calls `close` with the face's index.
 * @param {any} file
 * @param {(value?: any) => void} close
 */
async function shown(file, close) {
  const answer = await sendPhoto(path("detect"), file);
  const faces = inReadingOrder(answer.faces).map((face) => ({ ...face, kind: "other" }));
  const url = URL.createObjectURL(file);
  const image = await decoded(url, "The photo");
  URL.revokeObjectURL(url);
  const onpick = (/** @type {any} */ index) => close(faces[index].index);
  return sheet(
    answer.image,
    image ?? blank(answer.image),
    boxes(answer.image, faces, "Faces of the photo", { onpick }),
  );
}
