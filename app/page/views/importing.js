/** Imports a tar into a gallery, and exports galleries. Both are done by a job of the server. */

import { call, path, post } from "../api.js";
import { field, h, newId, select, toast } from "../dom.js";
import { busy, problemPlace, showing } from "../problem.js";
import { go } from "../router.js";
import { bytes } from "../words.js";

const CONTENTS = [
  ["photos", "photos, in one folder for each person"],
  ["archive", "a gallery that a server exported"],
];
const GZIP = /\.t?gz$/i;

/**
 * A form to import a tar into `gallery`, for `admin` keys.
 * @param {string} gallery
 */
export function importPanel(gallery) {
  const place = problemPlace();
  /** @type {any} */
  const state = { content: "photos" };
  const file = h("input", { type: "file", required: true, accept: ".tar,.tgz,.gz", id: newId("tar") });
  const trust = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const trusted = h(
    "div",
    { hidden: true },
    field(
      "Public key of the server that signed it",
      trust,
      "From its /v1/server-key; not needed for exports of this server.",
    ),
  );
  const contents = select(CONTENTS, state.content, (value) => {
    state.content = value;
    trusted.hidden = value !== "archive";
  });
  const button = h("button", { type: "submit" }, "Import");
  const status = h("p.small", { role: "status" });
  const send = () => {
    const [tar] = file.files;
    status.textContent = `Sending ${bytes(tar.size)} …`;
    const query = { content: state.content, trust: state.content === "archive" ? trust.value.trim() : null };
    return call("POST", `${path("galleries", gallery)}/import`, {
      query,
      body: tar,
      type: GZIP.test(tar.name) ? "application/gzip" : "application/x-tar",
    });
  };
  const submit = async () => {
    const job = await showing(place, () => busy(button, send));
    status.textContent = "";
    if (!job) return;
    toast("The import goes on by itself.");
    go("jobs");
  };
  return h(
    "details.card",
    {},
    h("summary", {}, "Import a tar instead"),
    h(
      "form.stack",
      { onsubmit: submit },
      h(
        "p.hint",
        {},
        "For thousands of photos: the server takes the whole file, answers with a job, and goes on when " +
          "this page is closed.",
      ),
      h("div.two", {}, field("File", file), field("It holds", contents)),
      trusted,
      place.element,
      status,
      h("div.row", {}, button),
    ),
  );
}

/**
 * Begins an export, and shows the jobs, where its file can be saved.
 * @param {string} gallery
 * @param {Page.Place} place
 */
export async function exportGallery(gallery, place) {
  const job = await showing(place, () => post(`${path("galleries", gallery)}/export`));
  if (!job) return;
  toast("The export goes on by itself; its file will be here.");
  go("jobs");
}
