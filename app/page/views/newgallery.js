/** A new gallery, as the overview and the list of galleries make it. */

import { path, post } from "../api.js";
import { field, h } from "../dom.js";
import { request } from "../parts.js";
import { go } from "../router.js";

/** Asks for a new gallery, and goes there. */
export async function newGallery() {
  const id = h("input", { type: "text", required: true, maxlength: 255, autocomplete: "off", spellcheck: "false" });
  const crops = h("input", { type: "checkbox", checked: true });
  const fields = [
    field("Id", id, "What programs call it, such as staff. It can't be changed later."),
    h("label.choice", {}, crops, h("span", {}, "Keep each face's crop, to show it here and to move to another model")),
  ];
  const made = await request("New gallery", fields, "Create", () =>
    post(path("galleries"), { id: id.value.trim(), store: crops.checked ? "crop" : "none" }),
  );
  if (made) go("galleries", made.id);
}
