/** A file for the person in front of the page. */

import { h } from "./dom.js";

const LATER_MS = 60_000;

/** Has the browser save `blob` under `name`. */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), LATER_MS);
}
