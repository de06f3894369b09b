/**
 * Faces of a photo: their reading order, and boxes over them. Boxes are in the photo's pixels, whatever its size on the
 * page.
 */

import { h, svg } from "./dom.js";

const CORNER = 0.22;
const GAP = 4;

/**
 * `faces`: [{box, kind, label, detail, number}]; `kind` is a word of the style sheet (`chosen`, `known`, …), `detail`
 * is left out on small screens. With `onpick(index)`, each box is a button. `onpoint(index)` is called with the face
 * under the mouse, or null.
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
 * An element of the photo's shape, for the photo and the boxes over it.
 * @param {Page.Size} size
 * @param {...Page.Child} children
 */
export const sheet = ({ width, height }, ...children) =>
  h("div.sheet", { style: { "--ratio": `${width / height}` } }, children);

/**
 * Mark the box or card with that index, and unmark the others. Null: mark none.
 * @param {any} elements
 * @param {number | null} index
 */
export function light(elements, index) {
  for (const [at, element] of elements.entries()) element.classList.toggle("lit", at === index);
}

/**
 * Only the corners of a rectangle, so that the face stays visible.
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
 * The area over a face that can be pointed at or picked.
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
 * Gives each label a free place near its face. If there is none, only the face's number is shown.
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
 * Places in the order of preference: above the face, below it, a line further up or down, and on its lower edge. Above
 * it if all are taken.
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
 * Return the faces, [{box}], row by row, each with its `index` in the photo's answer. A row holds the faces whose
 * centre is within half a face's height of the first face's.
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
