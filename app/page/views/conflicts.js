/** A face that resembles an enrolled face: both pictures side by side, and what can be done. */

import { path, post, remove } from "../api.js";
import { captioned, storedCrop } from "../crops.js";
import { h, put } from "../dom.js";
import { thumbnail } from "../picture.js";
import { busy, problemPlace, showing } from "../problem.js";
import { nameOf, score } from "../words.js";

/**
 * The enrolled face that `found`, a row of an enrollment's answer, resembles: {subject, name, face_id, score}; all
 * fields are null for keys without `recognize`. Null if it resembles none.
 * @param {any} found
 */
export const finding = (found) => found?.conflict ?? found?.duplicate ?? null;

/**
 * Describes the finding in a sentence.
 * @param {any} found
 * @param {string} subject
 */
export function said(found, subject) {
  const other = finding(found);
  if (!found.conflict)
    return other.subject === subject
      ? "The same photo is enrolled for this person already."
      : `The same photo is enrolled already, as ${nameOf(other)}.`;
  return other.subject
    ? `This face matches ${nameOf(other)}, score ${score(other.score)}. Either both are one person, or one ` +
        "of the two faces is the wrong person's."
    : "This face matches somebody else of this gallery.";
}

/**
 * The photo at `url` beside the enrolled face.
 * @param {string} gallery
 * @param {string} url
 * @param {any} photo
 * @param {any} other
 */
export function sides(gallery, url, photo, other) {
  const stored = storedCrop(gallery, other.subject, other.face_id, `The face enrolled as ${nameOf(other)}`);
  return h(
    "div.sides",
    {},
    captioned("This photo", thumbnail(url, photo, "img.crop", "The new photo")),
    captioned(other.subject ? `Enrolled as ${nameOf(other)}` : "Enrolled", stored),
  );
}

/**
 * Buttons for what can be done; `acts` are [words, what is said afterwards, work]. After one, `home` shows what was
 * done.
 * @param {any} home
 * @param {string} label
 * @param {any} acts
 */
export function choices(home, label, acts) {
  const place = problemPlace();
  const button = (/** @type {any[]} */ [words, done, work]) => {
    const act = async () => {
      await work();
      put(home, h("h3", { tabindex: "-1" }, label), h("p", {}, done));
      home.firstChild.focus();
    };
    const props = {
      type: "button",
      "aria-label": `${words}: ${label}`,
      onclick: () => showing(place, () => busy(element, act)),
    };
    const element = h("button.small", props, words);
    return element;
  };
  return h("div.stack", {}, h("div.row", {}, acts.map(button)), place.element);
}

/**
 * Buttons for a face that was enrolled although it resembles another; `undone()` is called after it was deleted again.
 * @param {string} gallery
 * @param {string} subject
 * @param {any} found
 * @param {any} undone
 */
export function afterwards(gallery, subject, found, undone) {
  const other = finding(found);
  const faces = (/** @type {any} */ who) => path("galleries", gallery, "subjects", who, "faces");
  const mine = `${faces(subject)}/${found.face_id}`;
  const elsewhere = other.subject && other.subject !== subject && other.face_id;
  return [
    ["Keep it", `Kept as ${subject}.`, async () => {}],
    elsewhere && [
      `Take it as ${nameOf(other)}`,
      `Enrolled as ${nameOf(other)}.`,
      () => post(`${mine}/move`, { subject: other.subject }),
    ],
    elsewhere && [
      `Move ${nameOf(other)}'s face here`,
      `Both are ${subject} now.`,
      () => post(`${faces(other.subject)}/${other.face_id}/move`, { subject }),
    ],
    ["Don't take it", "Not taken.", () => remove(mine).then(undone)],
  ].filter(Boolean);
}
