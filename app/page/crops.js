/** Stored crops: fetched with the key, a few at a time, and only for what is still to be seen. */

import { get, path } from "./api.js";
import { h } from "./dom.js";

const AT_ONCE = 4;
const KEPT = 800;
const PAUSE_MS = 120;

const kept = new Map();
const waiting = [];
let working = 0;

/** The picture of a subject: its cover, else the first of its faces, or its initials where there is no crop. */
export function portrait(gallery, subject, stored) {
  const element = h("span.portrait", { "aria-hidden": "true" }, initials(subject.name ?? subject.id));
  if (stored && subject.face_count > 0) later(element, () => (subject.cover ? crop(gallery, subject.id, subject.cover) : firstCrop(gallery, subject)));
  return element;
}

/** The picture of one face. */
export function facePicture(gallery, subject, face, words) {
  const element = h("span.portrait", { role: "img", "aria-label": words }, initials(subject));
  if (face.has_crop) later(element, () => crop(gallery, subject, face.face_id));
  return element;
}

const initials = (name) => [...name.trim()].slice(0, 1).join("").toUpperCase();

/** Return a URL of the first face's crop. It is kept for this version of the subject: the next one with its id is another. */
async function firstCrop(gallery, subject) {
  const where = path("galleries", gallery, "subjects", subject.id, "faces");
  const version = `${where} ${subject.updated_at}`;
  const known = kept.get(version);
  if (known) return known;
  const { faces } = await get(where, { limit: 1 });
  return faces[0]?.has_crop ? keep(version, await crop(gallery, subject.id, faces[0].face_id)) : null;
}

/** Return a URL of the crop, which is fetched once. */
export async function crop(gallery, subject, face) {
  const where = path("galleries", gallery, "subjects", subject, "faces", face, "crop");
  const known = kept.get(where);
  if (known) return known;
  return keep(where, URL.createObjectURL(await get(where, {}, { as: "blob" })));
}

function keep(name, url) {
  kept.set(name, url);
  if (kept.size > KEPT) {
    const [oldest, old] = kept.entries().next().value;
    kept.delete(oldest);
    if (![...kept.values()].includes(old)) URL.revokeObjectURL(old);
  }
  return url;
}

/** Forgets everything, since another key may see less. */
export function forget() {
  for (const url of new Set(kept.values())) URL.revokeObjectURL(url);
  kept.clear();
}

function later(element, load) {
  setTimeout(() => {
    if (!element.isConnected) return;
    waiting.push({ element, load });
    void work();
  }, PAUSE_MS);
}

async function work() {
  if (working === AT_ONCE) return;
  working++;
  for (let next = waiting.shift(); next; next = waiting.shift()) if (next.element.isConnected) await show(next);
  working--;
}

async function show({ element, load }) {
  try {
    const url = await load();
    if (url) element.replaceChildren(h("img", { src: url, alt: "", width: 112, height: 112 }));
  } catch {
    // The initials stay: a picture that somebody has just deleted is no news.
  }
}
