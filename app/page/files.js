/** Photos from the disk, chosen or dropped, one by one or as folders; and photos that one view hands to the next. */

import { h, newId } from "./dom.js";
import { icon } from "./icons.js";

const IMAGE = /\.(jpe?g|png|webp|bmp|tiff?|gif|hei[cf]|avif)$/i;

/** @type {Page.Chosen[]} */
let handed = [];

/**
 * Keeps `found` for the view that opens next, which takes it.
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
 * Ways to choose files: the button's words and icon, and the attributes of its input.
 * @typedef {{words: string, sign: "photo" | "galleries" | "camera", multiple?: boolean, accept?: string,
 *   webkitdirectory?: boolean, capture?: string}} Way
 * @type {Record<"photos" | "folder" | "camera", Way>}
 */
const WAYS = {
  photos: { words: "Choose photos", sign: "photo", multiple: true, accept: "image/*" },
  folder: { words: "Choose a folder", sign: "galleries", multiple: true, webkitdirectory: true },
  // The phone's camera app: unlike the page's own use of the camera, it works without HTTPS.
  camera: { words: "Take a photo", sign: "camera", capture: "environment", accept: "image/*" },
};

/**
 * The ways that this device offers: a folder only if `folders`, a camera only on phones and tablets.
 * @param {boolean} folders
 * @returns {(keyof typeof WAYS)[]}
 */
export const ways = (folders) => [
  ...(matchMedia("(pointer: coarse)").matches ? [/** @type {"camera"} */ ("camera")] : []),
  "photos",
  ...(folders ? [/** @type {"folder"} */ ("folder")] : []),
];

/**
 * A button to choose files in one of the `WAYS`. `onchosen` is called with [{file, name}], where names contain the
 * folders.
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
 * Every file that was dropped, including all files in dropped folders.
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
  const read = () => new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // gives some entries a call
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
