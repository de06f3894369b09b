/** Photos as pictures: decoded, made small enough to send, and labelled where this browser can't show them. */

import { h } from "./dom.js";

/** The most bytes and pixels of a photo that a server accepts by default. */
const LARGEST = 10 * 1024 * 1024;
const MOST_PIXELS = 50_000_000;
/** The factor by which each attempt to make a photo small enough scales its sides. */
const STEP = 0.8;

/** @param {HTMLCanvasElement} canvas */
export const toJpeg = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.95));

/**
 * Return the photo, made a smaller upright JPEG if it is larger than servers accept. If it can't be decoded, it is
 * returned unchanged.
 * @param {Blob} photo
 */
export async function fitted(photo) {
  if (photo.size <= LARGEST) return photo;
  const bitmap = await createImageBitmap(photo).catch(() => null);
  if (!bitmap) return photo;
  const { width, height } = bitmap; // upright: the photo's orientation is applied
  for (let scale = Math.min(1, Math.sqrt(MOST_PIXELS / (width * height))); ; scale *= STEP) {
    const canvas = h("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const smaller = await toJpeg(canvas);
    if (smaller.size <= LARGEST) return smaller;
  }
}

/**
 * Return an image of the photo, null if this browser can't show its kind.
 * @param {string} url
 * @param {string} alt
 */
export async function decoded(url, alt) {
  const image = h("img", { src: url, alt });
  return image.decode().then(
    () => image,
    () => null,
  );
}

/**
 * The kind of a photo that can't be shown, in its place: "HEIC".
 * @param {string} name
 */
export const kindOf = (name) => name.split(".").at(-1)?.toUpperCase() ?? "";

/**
 * A small picture of the photo at `url`; the name of its kind if this browser can't show it.
 * @param {string} url
 * @param {{name: string}} file
 * @param {any} [tag]
 * @param {string} [alt]
 */
export function thumbnail(url, { name }, tag = "img", alt = "") {
  const blank = () =>
    h(`${tag.replace("img", "span")}.blank`, { role: alt ? "img" : null, "aria-label": alt || null }, kindOf(name));
  const image = h(tag, {
    src: url,
    alt,
    loading: "lazy",
    decoding: "async",
    onerror: () => image.replaceWith(blank()),
  });
  return image;
}

/**
 * A placeholder of this size for a photo that can't be shown.
 * @param {Page.Size} size
 */
export const blank = ({ width, height }) =>
  h(
    "div.blank",
    { style: { "aspect-ratio": `${width / height}` } },
    h("p.hint", {}, "This browser can't show this kind of photo; the server may still read it."),
  );
