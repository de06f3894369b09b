/** Draws the aligned crop that the server embeds, from the landmarks in the server's answer. */

import { h } from "./dom.js";
import { toJpeg } from "./picture.js";

const SIDE = 112;
/** x, y in a crop of 112×112: the ArcFace reference points, as in the server's `app/face/align.py`. */
const CANONICAL = [
  [38.2946, 51.6963],
  [73.5318, 51.5014],
  [56.0252, 71.7366],
  [41.5493, 92.3655],
  [70.7299, 92.2041],
];

/** @param {number[][]} points */
const mean = (points) => points.reduce(([a, b], [x, y]) => [a + x / points.length, b + y / points.length], [0, 0]);

/**
 * The rotation, scale and shift that map `from` to `to` with least squares: [a, b, shift x, shift y], where x' = a·x −
 * b·y + shift x and y' = b·x + a·y + shift y.
 * @param {number[][]} from
 * @param {number[][]} to
 */
export function similarity(from, to) {
  const [px, py] = mean(from);
  const [qx, qy] = mean(to);
  let spread = 0;
  let a = 0;
  let b = 0;
  from.forEach(([x, y], i) => {
    const [dx, dy, u, v] = [x - px, y - py, to[i][0] - qx, to[i][1] - qy];
    spread += dx * dx + dy * dy;
    a += dx * u + dy * v;
    b += dx * v - dy * u;
  });
  a /= spread;
  b /= spread;
  return [a, b, qx - a * px + b * py, qy - b * px - a * py];
}

/**
 * A square canvas with the face of `landmarks`, aligned. `picture`: anything that a canvas can draw; `side`: in pixels.
 * @param {CanvasImageSource} picture
 * @param {number[][]} landmarks
 * @param {string} words
 * @param {any} [side]
 */
export function crop(picture, landmarks, words, side = SIDE * 2) {
  const [a, b, x, y] = similarity(
    landmarks,
    CANONICAL.map((point) => point.map((value) => (value * side) / SIDE)),
  );
  const canvas = h("canvas.crop", { role: "img", "aria-label": words, width: side, height: side });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.setTransform(a, b, -b, a, x, y);
  context.drawImage(picture, 0, 0);
  return canvas;
}

/**
 * The part of `picture` around `box` as a JPEG, so that the server gets the face and little else. `margin`: on each
 * side, as a share of the box's width and height.
 * @param {CanvasImageSource} picture
 * @param {Api.Box} box
 * @param {Page.Size} size
 * @param {any} [margin]
 */
export async function cutOut(picture, box, size, margin = 0.5) {
  const left = Math.max(0, Math.floor(box.x - box.width * margin));
  const top = Math.max(0, Math.floor(box.y - box.height * margin));
  const width = Math.min(size.width, Math.ceil(box.x + box.width * (1 + margin))) - left;
  const height = Math.min(size.height, Math.ceil(box.y + box.height * (1 + margin))) - top;
  const canvas = h("canvas", { width, height });
  canvas.getContext("2d").drawImage(picture, left, top, width, height, 0, 0, width, height);
  return toJpeg(canvas);
}
