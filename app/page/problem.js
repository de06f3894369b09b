/** Shows errors in words, where they happened. */

import { ABOUT } from "./codes.js";
import { h, holdFocus, put } from "./dom.js";
import { explain } from "./words.js";

/** What errors are about that the same request would meet again. */
const LASTING = new Set(["key", "missing", "state"]);

/**
 * Return whether repeating the request is useless until somebody changes something; false for null.
 * @param {any} error
 */
export const isLasting = (error) => LASTING.has(ABOUT[error?.code]);

/** A box for errors beside what they are about. Screen readers read out what is put into it. */
export function problemPlace() {
  const place = h("div.problems", { role: "alert" });
  const box = {
    element: place,
    error: null,
    clear: () => {
      box.error = null;
      place.replaceChildren();
    },
    show: (/** @type {any} */ error) => {
      box.error = error;
      put(place, problem(error));
    },
  };
  return box;
}

/** @param {any} error */
export function problem(error) {
  if (!("code" in error)) console.error(error);
  const id = error.code === "internal_error" && error.requestId;
  return h("div.problem", {}, h("p", {}, explain(error)), id && h("p.small", {}, "Request id: ", h("code", {}, id)));
}

/**
 * Returns what `work` gives. If it throws, shows the error in `place` and returns null.
 * @param {Page.Place} place
 * @param {() => any} work
 */
export async function showing(place, work) {
  place.clear();
  try {
    return await work();
  } catch (error) {
    if (error.name !== "AbortError") place.show(error);
    return null;
  }
}

/**
 * Fills `body` with what `load` gives, and with "Loading …" until then. If it fails, shows the error and a button to
 * try again.
 * @param {Page.Place} place
 * @param {Element} body
 * @param {() => Promise<Page.Child>} load
 */
export async function filling(place, body, load) {
  put(body, h("p.waiting", {}, "Loading …"));
  const found = await showing(place, load);
  const again = h("button", { type: "button", onclick: () => filling(place, body, load) }, "Try again");
  put(body, found ?? again);
}

/**
 * Disables `button` while `work` runs, so that nothing is sent twice; then gives it back the focus if it had it.
 * @param {HTMLButtonElement} button
 * @param {() => any} work
 */
export async function busy(button, work) {
  const restore = button === document.activeElement ? holdFocus() : null;
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    return await work();
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
    restore?.();
  }
}
