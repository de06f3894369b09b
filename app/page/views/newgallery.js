/** The dialog for a new gallery, which the overview, the list of galleries and Models share. */

import { path, post } from "../api.js";
import { field, h } from "../dom.js";
import { request } from "../parts.js";
import { go } from "../router.js";

/**
 * Creates a gallery, and opens it. `model`: its embedder, by default the server's.
 * @param {any} [model]
 */
export async function newGallery(model = null) {
  const id = h("input", { type: "text", required: true, maxlength: 255, autocomplete: "off", spellcheck: "false" });
  const crops = h("input", { type: "checkbox", checked: true });
  const fields = [
    field("Id", id, "What programs call it, such as staff. It can't be changed later."),
    h(
      "label.choice",
      {},
      crops,
      h("span", {}, "Keep a small picture of each face, to show it here and to move to another model"),
    ),
    model && h("p.small", {}, `Its templates will be of ${model.id}.`, ...doubts(model)),
  ];
  const terms = model && {
    embedder: model.id,
    force: !model.calibrations.length,
    accept_non_commercial: model.licence.non_commercial,
  };
  const made = await request("New gallery", fields, "Create", () =>
    post(path("galleries"), { id: id.value.trim(), store: crops.checked ? "crop" : "none", ...terms }),
  );
  if (made) go("galleries", made.id);
}

/**
 * What the user accepts about the model by creating the gallery.
 * @param {any} model
 */
const doubts = ({ licence, calibrations }) => [
  licence.non_commercial ? ` It may not be used commercially (${licence.name}).` : "",
  calibrations.length ? "" : " It was never measured: nobody is identified until its thresholds are.",
];
