/** Unsorted photos: the server groups the faces by person, and the user names each group. */

import { call, get, path } from "../api.js";
import { h, put, select } from "../dom.js";
import { isOpen, later } from "../parts.js";
import { fitted, kindOf } from "../picture.js";
import { problem, problemPlace, showing } from "../problem.js";
import * as session from "../session.js";
import { PersonField } from "../suggest.js";
import { tar } from "../tar.js";
import { count, list, whole } from "../words.js";

const EVERY_MS = 500;
const FACES_SHOWN = 8;
const GROUPS_SHOWN = 30;
const NAMES_SHOWN = 8;
const SIDE = 96;
/** Margin on each side of a face in its picture, as a share of the larger side of its box. */
const MARGIN = 0.25;

/**
 * Sends the photos of `state`, {gallery, photos}, and shows the groups. `onnamed(photos, names)` is called with the
 * photos of the people who got a name.
 * @param {any} state
 * @param {(photos: Page.Photo[], names: Record<string, string>) => unknown} onnamed
 */
export function grouping(state, onnamed) {
  const place = problemPlace();
  const told = h("p", { role: "status" }, "Sending the photos …");
  const bar = h("progress", { "aria-label": "Photos looked at" });
  const body = h("div.stack", {});
  const element = h("section.stack", { "aria-label": "Faces by person" }, place.element, told, bar, body);
  const next = later(element);
  const where = `${path("galleries", state.gallery)}/group`;
  const stop = new AbortController();
  const read = async (/** @type {string} */ job) => {
    const found = await showing(place, () => get(`${where}/${job}`));
    if (!found) return;
    bar.max = state.photos.length;
    bar.value = found.job.done;
    put(told, `${whole(found.job.done)} of ${count(state.photos.length, "photo")} looked at`);
    if (isOpen(found.job)) {
      next.set(() => read(job), EVERY_MS);
      return;
    }
    bar.remove();
    told.remove();
    put(body, found.job.error ? problem(found.job.error) : named(state, found, onnamed));
  };
  const send = () =>
    showing(place, async () => {
      const files = [];
      for (const photo of state.photos) files.push(await fitted(photo.file)); // one at a time: each is decoded
      const { signal } = stop;
      const job = await call("POST", where, { body: tar(files), type: "application/x-tar", signal });
      await read(job.id);
    });
  const leave = () => {
    stop.abort();
    next.clear();
  };
  queueMicrotask(send);
  return { element, leave };
}

/**
 * @param {any} state
 * @param {Api.PhotoGroups} found
 * @param {(photos: Page.Photo[], names: Record<string, string>) => unknown} onnamed
 */
function named(state, found, onnamed) {
  const place = problemPlace();
  const summary = h("p", { role: "status" });
  const cards = h("ul.cards.grouped", {});
  const unused = withoutFace(state.photos, found);
  const groups = found.groups.map((faces, index) => new Group(state, faces, index + 1));
  const go = h("button.primary", { type: "submit" }, "Enroll those who have a name");
  const more = h("button", { type: "button", onclick: () => show(groups.length) }, "Show all");
  const merge = (/** @type {Group} */ group, /** @type {Group} */ other) => {
    other.faces.push(...group.faces);
    other.draw();
    groups.splice(groups.indexOf(group), 1);
    show(cards.childElementCount);
    other.who.input.focus();
  };
  const show = (/** @type {number} */ most) => {
    const faces = found.groups.flat().length;
    put(
      summary,
      `${count(faces, "face")} of ${count(groups.length, "person", "people")}` +
        `${unused && `; ${unused}`}. ` +
        "Give a name to those you want; the others are left out.",
    );
    const shown = groups.slice(0, most);
    put(
      cards,
      shown.map((group) => group.card(shown, merge)),
    );
    more.hidden = shown.length === groups.length;
  };
  show(GROUPS_SHOWN);
  const submit = () =>
    showing(place, async () => {
      const chosen = await whom(groups);
      if (chosen?.photos.length) onnamed(chosen.photos, chosen.names);
    });
  if (!groups.length) return h("p", {}, "No photo shows a face that can be recognised.");
  return h("form.stack", { onsubmit: submit }, summary, cards, place.element, h("div.row", {}, go, more));
}

/**
 * Say how many photos are in no group, and which; empty if there are none.
 * @param {Page.Photo[]} photos
 * @param {Api.PhotoGroups} found
 */
function withoutFace(photos, found) {
  const used = new Set(found.groups.flat().map((face) => face.photo));
  const names = photos.flatMap(({ name }, place) => (used.has(place) ? [] : name));
  if (!names.length) return "";
  const why = names.length > found.without ? "that can't be read or show no usable face" : "without a usable face";
  const rest = names.length - NAMES_SHOWN;
  const told = rest > 0 ? [...names.slice(0, NAMES_SHOWN), `${whole(rest)} more`] : names;
  return `${count(names.length, "photo")} ${why}: ${list(told)}`;
}

/**
 * Return the photos to enroll, and the names of new people. Groups with the same name are one person. Null if the user
 * does not answer a question about a name.
 * @param {Group[]} groups
 */
async function whom(groups) {
  /** @type {Map<string, {id: string, name: string | null}>} */
  const people = new Map();
  /** @type {Page.Photo[]} */
  const photos = [];
  for (const group of groups) {
    if (!group.who.id) continue;
    const key = group.who.chosen ? group.who.id : group.who.input.value.trim().toLowerCase();
    const meant = people.get(key) ?? (await group.who.meant());
    if (!meant) return null;
    people.set(key, meant);
    photos.push(...group.photos(meant.id));
  }
  const names = Object.fromEntries([...people.values()].flatMap(({ id, name }) => (name ? [[id, name]] : [])));
  return { photos, names };
}

/** The faces of one person. */
class Group {
  /**
   * @param {any} state
   * @param {Api.GroupedFace[]} faces
   * @param {number} number
   */
  constructor(state, faces, number) {
    this.state = state;
    this.faces = [...faces];
    this.number = number;
    this.left = new Set();
    this.shown = FACES_SHOWN;
    this.pictures = h("div.faces", { role: "group", "aria-label": `Faces of person ${number}` });
    const words = session.may("read") ? "Who is it?" : "Their id";
    this.who = new PersonField(() => state.gallery, { placeholder: words, "aria-label": `Name of person ${number}` });
    this.draw();
  }

  draw() {
    const rest = this.faces.length - this.shown;
    const all = () => {
      this.shown = this.faces.length;
      this.draw();
    };
    put(
      this.pictures,
      this.faces.slice(0, this.shown).map((face, place) => this.face(face, place)),
      rest > 0 && h("button.small", { type: "button", onclick: all }, `${rest} more`),
    );
  }

  /**
   * A face, which can be left out.
   * @param {Api.GroupedFace} face
   * @param {number} place
   */
  face(face, place) {
    const { file, name } = this.state.photos[face.photo];
    const button = h(
      "button.face",
      {
        type: "button",
        "aria-pressed": String(!this.left.has(face)),
        "aria-label": `Face ${place + 1} of person ${this.number} belongs to them`,
        title: name,
        onclick: () => {
          if (!this.left.delete(face)) this.left.add(face);
          button.setAttribute("aria-pressed", String(!this.left.has(face)));
        },
      },
      h("span.blank", {}),
    );
    void cut(file, face.box).then((canvas) => put(button, canvas ?? h("span.blank", {}, kindOf(name))));
    return button;
  }

  /**
   * @param {Group[]} all
   * @param {(group: Group, other: Group) => void} merge
   */
  card(all, merge) {
    const others = all
      .filter((other) => other !== this)
      .map((other) => [String(other.number), `Person ${other.number}`]);
    const choose = (/** @type {string} */ number) => {
      const other = all.find((group) => String(group.number) === number);
      if (other) merge(this, other);
    };
    const same = select([["", "Same as …"], ...others], "", choose, { "aria-label": `Person ${this.number} is` });
    return h(
      "li.card",
      {},
      h("h2", {}, `Person ${this.number}: ${count(this.faces.length, "face")}`),
      this.pictures,
      this.who.element,
      others.length > 0 && same,
    );
  }

  /**
   * Return the photos to enroll for this person, each with its face.
   * @param {string} subject
   * @returns {Page.Photo[]}
   */
  photos(subject) {
    const kept = this.faces.filter((face) => !this.left.has(face));
    return kept.map(({ photo, face }) => ({ ...this.state.photos[photo], subject, face }));
  }
}

/** @type {Promise<unknown>} one photo is decoded at a time */
let cutting = Promise.resolve();

/**
 * Return the face as a small picture; null if this browser can't show the photo's kind.
 * @param {Blob} file
 * @param {Api.Box} box
 * @returns {Promise<HTMLCanvasElement | null>}
 */
function cut(file, box) {
  const work = async () => {
    const bitmap = await createImageBitmap(await fitted(file)).catch(() => null);
    if (!bitmap) return null;
    const side = Math.max(box.width, box.height) * (1 + 2 * MARGIN);
    const [left, top] = [box.x + (box.width - side) / 2, box.y + (box.height - side) / 2];
    const canvas = h("canvas", { width: SIDE, height: SIDE });
    canvas.getContext("2d").drawImage(bitmap, left, top, side, side, 0, 0, SIDE, SIDE);
    bitmap.close();
    return canvas;
  };
  const mine = cutting.then(work);
  cutting = mine.catch(() => null);
  return mine;
}
