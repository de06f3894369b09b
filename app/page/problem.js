/** An error where it happened, in words. */

import { h, put } from "./dom.js";
import { explain } from "./words.js";

/** A box for problems beside what they are about; read out when it fills. */
export function problemPlace() {
  const place = h("div.problems", { role: "alert" });
  return {
    element: place,
    clear: () => place.replaceChildren(),
    show: (error) => put(place, problem(error)),
  };
}

export function problem(error) {
  if (!("code" in error)) console.error(error);
  const id = error.code === "internal_error" && error.requestId;
  return h("div.problem", {}, h("p", {}, explain(error)), id && h("p.small", {}, "Request id: ", h("code", {}, id)));
}

/** Runs `work`, showing what it throws; the answer is null then. */
export async function showing(place, work) {
  place.clear();
  try {
    return await work();
  } catch (error) {
    if (error.name !== "AbortError") place.show(error);
    return null;
  }
}

/** Disables `button` while `work` runs, so that nothing is asked twice. */
export async function busy(button, work) {
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    return await work();
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
}
