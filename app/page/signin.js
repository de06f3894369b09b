/** The view for signing in with a pasted key. */

import { field, h } from "./dom.js";
import { mark } from "./icons.js";
import { busy, problemPlace } from "./problem.js";

/**
 * `enter(secret, stay)` tries a key; `error`: what was wrong with the last one.
 * @param {(secret: string, stay: boolean) => Promise<unknown>} enter
 * @param {any} error
 */
export function signIn(enter, error) {
  const place = problemPlace();
  const key = h("input", {
    type: "password",
    name: "key",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    autocapitalize: "none",
    placeholder: "lk_…",
  });
  const stay = h("input", { type: "checkbox", name: "stay" });
  const button = h("button.primary", { type: "submit" }, "Sign in");
  if (error) place.show(error);
  queueMicrotask(() => key.focus());
  return h(
    "main.signin",
    { id: "main" },
    h("div.brand.large", {}, mark(), "Likeness"),
    h("h1", {}, "Sign in"),
    h(
      "form",
      { onsubmit: () => busy(button, () => enter(key.value.trim(), stay.checked)) },
      field("Key", key, "The key is kept in this tab only, until you close it."),
      h("label.choice", {}, stay, h("span", {}, "Stay signed in on this device")),
      place.element,
      button,
    ),
    h(
      "details",
      {},
      h("summary", {}, "Where do I get a key?"),
      h(
        "ul",
        {},
        h(
          "li",
          {},
          "From the administrator of this server. Each person and program gets a separate key, for what it needs.",
        ),
        h(
          "li",
          {},
          "The admin key, which allows everything, is in the data folder, in ",
          h("code", {}, "admin.key"),
          ". On that machine, ",
          h("code", {}, "likeness keys link"),
          " prints a link that signs you in: once, within a minute.",
        ),
      ),
    ),
  );
}
