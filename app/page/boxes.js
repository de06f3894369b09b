/** Faces of a photo: in reading order, and boxes over them in its own pixels, whatever size it is shown at. */

import { h, svg } from "./dom.js";

const CORNER = 0.22;
const GAP = 4;

/**
 * `faces`: [{box, kind, label, detail, number}]; `kind` is a word of the style sheet (`chosen`, `known`, …),
 * `detail` what small screens leave out. `onpick(index)` makes a button of each; `onpoint(index)` hears what the
 * mouse is over, or null.
 * @param {Page.Size} size
 * @param {Page.Boxed[]} faces
 * @param {string} words
 * @param {Page.Heard} [heard]
 */
export function boxes(size, faces, words, { onpick = null, onpoint = null } = {}) {
  const drawing = svg(
    "svg",
    { class: "boxes", viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true", focusable: "false" },
    faces.map((face) => svg("path", { class: face.kind, d: corners(face.box) })),
  );
  const tags = faces.map((face) => face.label && tag(face));
  const spots =
    onpick || onpoint ? faces.map((face, index) => spot(size, face, index, faces.length, onpick, onpoint)) : null;
  const overlay = h("div.overlay", { role: onpick ? "group" : "img", "aria-label": words }, drawing, spots, tags);
  if (tags.some(Boolean)) new ResizeObserver(() => arrange(overlay, size, faces, tags)).observe(overlay);
  return overlay;
}

/**
 * What a photo of this size lies on, with boxes over it.
 * @param {Page.Size} size
 * @param {...Page.Child} children
 */
export const sheet = ({ width, height }, ...children) =>
  h("div.sheet", { style: { "--ratio": `${width / height}` } }, children);

/**
 * Mark the one with that index among the boxes or cards, or none.
 * @param {any} elements
 * @param {number | null} index
 */
export function light(elements, index) {
  for (const [at, element] of elements.entries()) element.classList.toggle("lit", at === index);
}

/**
 * A rectangle of which only the corners are drawn, so that the face stays to be seen.
 * @param {Api.Box} box
 */
function corners({ x, y, width, height }) {
  const [w, t] = [width * CORNER, height * CORNER];
  const [right, bottom] = [x + width, y + height];
  return [
    `M${x} ${y + t}V${y}H${x + w}`,
    `M${right - w} ${y}H${right}V${y + t}`,
    `M${right} ${bottom - t}V${bottom}H${right - w}`,
    `M${x + w} ${bottom}H${x}V${bottom - t}`,
  ].join("");
}

/** @param {Page.Boxed} face */
function tag({ kind, label, detail, number }) {
  return h(
    `span.tag.${kind}`,
    {},
    number && [h("b", {}, number), " "],
    h("span", {}, label, detail && h("span.detail", {}, ` ${detail}`)),
  );
}

/**
 * What of a face can be pointed at or picked.
 * @param {Page.Size} size
 * @param {Page.Boxed} face
 * @param {number} index
 * @param {number} all
 * @param {Page.Heard["onpick"]} onpick
 * @param {Page.Heard["onpoint"]} onpoint
 */
function spot(size, { box, kind }, index, all, onpick, onpoint) {
  const share = (/** @type {any} */ value, /** @type {any} */ whole) => `${(value / whole) * 100}%`;
  const style = {
    left: share(box.x, size.width),
    top: share(box.y, size.height),
    width: share(box.width, size.width),
    height: share(box.height, size.height),
  };
  const pointing = onpoint && { onmouseenter: () => onpoint(index), onmouseleave: () => onpoint(null) };
  if (!onpick) return h("span.spot", { style, ...pointing });
  return h("button.spot", {
    type: "button",
    style,
    "aria-label": `Face ${index + 1} of ${all}`,
    "aria-pressed": String(kind === "chosen"),
    onclick: () => onpick(index),
    ...pointing,
  });
}

/**
 * Gives each label a place at its face that no earlier one has; where there is none, its number alone.
 * @param {HTMLElement} overlay
 * @param {Page.Size} size
 * @param {Page.Boxed[]} faces
 * @param {(HTMLElement | "" | null | undefined)[]} tags
 */
function arrange(overlay, size, faces, tags) {
  const scale = overlay.clientWidth / size.width;
  /** @type {Page.Spot[]} */
  const placed = [];
  tags.forEach((tag, index) => {
    if (!tag) return;
    const face = /** @type {any} */ (
      Object.fromEntries(Object.entries(faces[index].box).map(([side, value]) => [side, value * scale]))
    );
    tag.classList.remove("brief");
    let found = freePlace(overlay, face, tag, placed);
    if (!found.free && faces[index].number) {
      tag.classList.add("brief");
      found = freePlace(overlay, face, tag, placed);
    }
    placed.push(found);
    tag.style.left = `${found.left}px`;
    tag.style.top = `${found.top}px`;
  });
}

/**
 * Above the face, below it, a line further up or down, or in its lower edge; above it where all of these are taken.
 * @param {HTMLElement} overlay
 * @param {Api.Box} face
 * @param {HTMLElement} tag
 * @param {Page.Spot[]} placed
 */
function freePlace(overlay, face, tag, placed) {
  const [width, height] = [tag.offsetWidth, tag.offsetHeight];
  const left = Math.max(0, Math.min(overlay.clientWidth - width, face.x + face.width / 2 - width / 2));
  const [above, below] = [face.y - height - GAP, face.y + face.height + GAP];
  const room = overlay.clientHeight - height;
  const rows = [above, below, above - height - GAP, below + height + GAP, below - height - 2 * GAP].map((top) => ({
    left,
    top,
    width,
    height,
  }));
  const open = rows.find(
    ({ top }) => top >= 0 && top <= room && !placed.some((other) => overlaps({ left, top, width, height }, other)),
  );
  return open ? { ...open, free: true } : { ...rows[0], top: Math.max(0, Math.min(room, above)), free: false };
}

/**
 * @param {Page.Spot} a
 * @param {Page.Spot} b
 */
const overlaps = (a, b) =>
  a.left < b.left + b.width && b.left < a.left + a.width && a.top < b.top + b.height && b.top < a.top + a.height;

const SAME_ROW = 0.5;

/**
 * `faces`: [{box}], each of which gets its `index`. A row holds those whose centres are within half a face's height
 * of its first one's.
 * @param {any[]} faces
 */
export function inReadingOrder(faces) {
  /** @type {any[][]} */
  const rows = [];
  for (const face of faces.map((face, index) => ({ ...face, index })).sort((a, b) => middle(a.box) - middle(b.box))) {
    const row = rows.at(-1);
    if (row && middle(face.box) - middle(row[0].box) < SAME_ROW * row[0].box.height) row.push(face);
    else rows.push([face]);
  }
  return rows.flatMap((row) => row.sort((a, b) => a.box.x - b.box.x));
}

/** @param {Api.Box} box */
const middle = (box) => box.y + box.height / 2;
