/** Photos from the disk: chosen, dropped, or handed from one view to the next; folders with all that is in them. */

import { h, newId } from "./dom.js";
import { icon } from "./icons.js";

const IMAGE = /\.(jpe?g|png|webp|bmp|tiff?|gif|hei[cf]|avif)$/i;

/** @type {Page.Chosen[]} */
let handed = [];

/**
 * Keeps `found` for the view that is about to come, which takes it.
 * @param {Page.Chosen[]} found
 */
export const hand = (found) => (handed = found);

export function takeHanded() {
  const found = handed;
  handed = [];
  return found;
}

/** @param {Page.Chosen} chosen */
export const isPhoto = ({ file, name }) =>
  !name.split("/").at(-1)?.startsWith(".") && (file.type.startsWith("image/") || IMAGE.test(name));

/**
 * Ways to choose files: the words, the icon, and what the browser is told of it.
 * @typedef {{words: string, sign: "photo" | "galleries" | "camera", multiple?: boolean, accept?: string,
 *   webkitdirectory?: boolean, capture?: string}} Way
 * @type {Record<"photos" | "folder" | "camera", Way>}
 */
const WAYS = {
  photos: { words: "Choose photos", sign: "photo", multiple: true, accept: "image/*" },
  folder: { words: "Choose a folder", sign: "galleries", multiple: true, webkitdirectory: true },
  // A telephone's own camera: it needs no HTTPS, as the page's does.
  camera: { words: "Take a photo", sign: "camera", capture: "environment", accept: "image/*" },
};

/**
 * The ways that there are here: a folder only where `folders` are of use, a camera only on telephones and tablets.
 * @param {boolean} folders
 * @returns {(keyof typeof WAYS)[]}
 */
export const ways = (folders) => [
  ...(matchMedia("(pointer: coarse)").matches ? [/** @type {"camera"} */ ("camera")] : []),
  "photos",
  ...(folders ? [/** @type {"folder"} */ ("folder")] : []),
];

/**
 * A button that lets files be chosen in one of the `WAYS`; `onchosen` hears [{file, name}], names with their folders.
 * @param {keyof typeof WAYS} way
 * @param {(chosen: Page.Chosen[]) => void} onchosen
 */
export function picker(way, onchosen) {
  const { words, sign, ...told } = WAYS[way];
  const input = h("input.hidden", { type: "file", id: newId("photos"), ...told });
  input.addEventListener("change", () => {
    onchosen([...input.files].map((file) => ({ file, name: file.webkitRelativePath || file.name })));
    input.value = "";
  });
  return [input, h("label.button", { for: input.id }, icon(sign), words)];
}

/**
 * Every file of what was dropped, folders with all that is in them.
 * @param {DataTransfer} transfer
 */
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => ({ file, name: file.name }));
  /** @type {Page.Chosen[]} */
  const found = [];
  for (const entry of entries) await walk(entry, "", found);
  return found;
}

/**
 * @param {any} entry
 * @param {string} prefix
 * @param {Page.Chosen[]} found
 */
async function walk(entry, prefix, found) {
  const name = prefix + entry.name;
  if (entry.isFile) {
    found.push({ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), name });
    return;
  }
  const reader = entry.createReader();
  const read = () => new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // some at a time
  for (let batch = await read(); batch.length; batch = await read())
    for (const inner of batch) await walk(inner, `${name}/`, found);
}

const LATER_MS = 60_000;

/**
 * Has the browser save `blob` under `name`.
 * @param {Blob} blob
 * @param {string} name
 */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), LATER_MS);
}
