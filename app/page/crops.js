/** Stored crops. They are fetched with the key, AT_ONCE at a time, and only for elements that are still on the page. */

import { get, path } from "./api.js";
import { h } from "./dom.js";
import * as session from "./session.js";
import { nameOf } from "./words.js";

const AT_ONCE = 4;
const KEPT = 800;
const PAUSE_MS = 120;
const LONGEST_PAUSE_MS = 30_000;

/** URLs of crops by their paths. */
const urls = new Map();
/** @type {{element: HTMLElement, load: () => Promise<string | null | undefined>}[]} */
const waiting = [];
let working = 0;

/**
 * The picture of a subject: its cover, else its first face, else its initial if there is no crop.
 * @param {string} gallery
 * @param {Pick<Api.Subject, "id" | "name" | "portrait">} subject
 */
export const portrait = (gallery, subject) => pictureAt(portraitPath(gallery, subject), initials(nameOf(subject)), "");

/**
 * The picture of one face.
 * @param {string} gallery
 * @param {string} subject
 * @param {{has_crop: boolean, face_id: string}} face
 * @param {string} words
 */
export function facePicture(gallery, subject, face, words) {
  const element = h("span.portrait", { role: "img", "aria-label": words }, initials(subject));
  if (face.has_crop) later(element, () => crop(gallery, subject, face.face_id));
  return element;
}

/**
 * The picture at a path; `letters` until it has loaded, or if the path is null. What follows `#` in the path tells
 * versions apart. `words` describe the picture; leave them empty if text beside it does.
 * @param {string | null} where
 * @param {string} letters
 * @param {string} words
 */
export function pictureAt(where, letters, words) {
  const read = words ? { role: "img", "aria-label": words } : { "aria-hidden": "true" };
  const element = h("span.portrait", read, letters);
  if (where) later(element, () => urlOf(where));
  return element;
}

/**
 * The stored crop of a face, or a sentence if none is kept or the key may not see it.
 * @param {string} gallery
 * @param {string} subject
 * @param {string | null} face
 * @param {string} words
 */
export function storedCrop(gallery, subject, face, words) {
  const place = h("div.crop", {}, "No picture is kept");
  if (face && session.may("read"))
    crop(gallery, subject, face).then(
      (url) => place.replaceWith(h("img.crop", { src: url, alt: words })),
      () => {},
    );
  return place;
}

/**
 * A picture with a caption below it.
 * @param {string} words
 * @param {Node} picture
 */
export const captioned = (words, picture) => h("figure", {}, picture, h("figcaption.small", {}, words));

/** @param {string} name */
const initials = (name) => [...name.trim()].slice(0, 1).join("").toUpperCase();
/**
 * @param {string} gallery
 * @param {string} subject
 * @param {string} face
 */
const pathOf = (gallery, subject, face) => path("galleries", gallery, "subjects", subject, "faces", face, "crop");

/**
 * Return the path of the crop that stands for a subject, null if there is none.
 * @param {string} gallery
 * @param {Pick<Api.Subject, "id" | "portrait">} subject
 */
export const portraitPath = (gallery, { id, portrait: face }) => (face ? pathOf(gallery, id, face) : null);

/**
 * Return a URL of the crop, which is fetched once.
 * @param {string} gallery
 * @param {string} subject
 * @param {string} face
 */
export const crop = (gallery, subject, face) => urlOf(pathOf(gallery, subject, face));

/** @param {string | null} where */
async function urlOf(where) {
  if (where && !urls.has(where)) keep(where, URL.createObjectURL(await get(where, {}, { as: "blob" })));
  return urls.get(where);
}

/**
 * Keep a crop's URL; drop the oldest if there are too many.
 * @param {string} where
 * @param {string} url
 */
function keep(where, url) {
  urls.set(where, url);
  if (urls.size <= KEPT) return;
  const [oldest, old] = /** @type {[string, string]} */ (urls.entries().next().value);
  urls.delete(oldest);
  URL.revokeObjectURL(old);
}

/** Forgets everything, since another key may see less. */
export function forget() {
  for (const url of urls.values()) URL.revokeObjectURL(url);
  urls.clear();
}

/**
 * Load the picture soon, or as soon as the element is on the page: views put it there once all their answers have come.
 * @param {HTMLElement} element
 * @param {() => Promise<string | null | undefined>} load
 */
function later(element, load, pause = PAUSE_MS) {
  setTimeout(() => {
    if (element.isConnected) {
      waiting.push({ element, load });
      void work();
    } else if (pause < LONGEST_PAUSE_MS) later(element, load, 2 * pause);
  }, pause);
}

async function work() {
  if (working === AT_ONCE) return;
  working++;
  for (let next = waiting.shift(); next; next = waiting.shift()) if (next.element.isConnected) await show(next);
  working--;
}

/** @param {{element: HTMLElement, load: () => Promise<string | null | undefined>}} next */
async function show({ element, load }) {
  try {
    const url = await load();
    if (url) element.replaceChildren(h("img", { src: url, alt: "", width: 112, height: 112 }));
  } catch {
    // The initial stays: a picture that somebody has just deleted is not worth an error.
  }
}
