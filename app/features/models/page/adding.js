/** Adding models, by the names that this version knows or as files, and following the job that does it. */

import { call, get, path, post } from "../api.js";
import { confirm, field, h, newId, put, select, toast } from "../dom.js";
import { isOpen, later, progress } from "../parts.js";
import { busy, filling, problem, problemPlace, showing } from "../problem.js";
import * as session from "../session.js";
import { bytes, oneIn } from "../words.js";

const EVERY_MS = 1000;
const ARCHIVE = /\.(?:tar|tgz|tar\.gz)$/i;
const GZIP = /gz$/i;
/** Finds the hash in the message of a job that failed because the file's hash is not a published one. */
const UNCONFIRMED = /--sha256 ([0-9a-f]{64})/;
/** Finds the FMR in a model's measured facts, such as "FNMR 1.03% at FMR 0.0001". */
const STATED = / FMR ([\d.e-]+)/;
const PRESETS = [
  ["insightface", "insightface (LVFace and EdgeFace too)"],
  ["adaface", "adaface"],
  ["sface", "sface"],
  ["opencv", "opencv"],
  ["facenet", "facenet"],
  ["imagenet", "imagenet"],
  ["unit", "unit: 0 to 1"],
];

/**
 * The part of Models for keys that may do everything; null for others. `reload` shows the models again.
 * @param {() => Promise<unknown>} reload
 */
export function adding(reload) {
  if (!session.mayEverything()) return null;
  const place = problemPlace();
  const list = h("div.pullable", { tabindex: "0", role: "region", "aria-label": "Models that can be pulled" });
  const status = h("div.stack", { role: "status" });
  const next = later(status);
  const element = h("details.card", {}, h("summary", {}, "Add a model"));
  /** @type {(job: Api.Job, again?: (sha256: string) => Promise<unknown>) => void} */
  const follow = (job, again) => {
    const read = async () => {
      const found = await showing(place, () => get(path("jobs", job.id)));
      if (!found) return;
      if (isOpen(found)) {
        next.set(read, EVERY_MS);
        return;
      }
      put(status, found.error && problem(found.error));
      const [, digest] = UNCONFIRMED.exec(found.error?.message ?? "") ?? [];
      if (digest && again) put(status, problem(found.error), confirming(digest, again));
      if (found.state !== "done") return;
      toast("The model is added.");
      await reload();
    };
    put(status, h("p", {}, "The model is being fetched and checked …"), progress("Adding the model", job));
    next.set(read, EVERY_MS);
  };
  const load = () =>
    filling(place, list, async () => table((await get(path("models", "pullable"))).models, place, follow));
  element.addEventListener("toggle", () => element.open && !list.hasChildNodes() && void load(), { once: true });
  element.append(h("div.stack", {}, list, place.element, status, fileForm(follow)));
  return element;
}

/**
 * @param {Api.PullableModel[]} models
 * @param {Page.Place} place
 * @param {(job: Api.Job, again?: (sha256: string) => Promise<unknown>) => void} follow
 */
function table(models, place, follow) {
  const heads = ["Model", "What was measured", "Size at most", "Licence", "Pull"];
  const row = (/** @type {Api.PullableModel} */ model) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, model.name),
      h("td", {}, model.accuracy?.replace(STATED, (_, rate) => ` FMR ${oneIn(Number(rate))}`) ?? "not measured"),
      h("td", {}, bytes(model.max_bytes)),
      h("td", {}, `${model.licence.name}${model.licence.non_commercial ? ", not for commercial use" : ""}`),
      h("td", {}, model.installed ? "installed" : pulling(model, place, follow)),
    );
  return h(
    "table",
    {},
    h("caption.hidden", {}, "Models that can be pulled"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        heads.map((words) => h("th", { scope: "col" }, words)),
      ),
    ),
    h("tbody", {}, models.map(row)),
  );
}

/**
 * @param {Api.PullableModel} model
 * @param {Page.Place} place
 * @param {(job: Api.Job, again?: (sha256: string) => Promise<unknown>) => void} follow
 */
function pulling(model, place, follow) {
  const { name, licence } = model;
  const send = (/** @type {string | null} */ sha256 = null) =>
    showing(place, async () => {
      const asked = { name, accept_non_commercial: licence.non_commercial, sha256 };
      follow(await post(path("models", "pull"), asked), send);
    });
  const pull = async () => {
    const title = `Pull ${name} for non-commercial use?`;
    const text = `Its licence, ${licence.name}, forbids commercial use.`;
    if (licence.non_commercial && !(await confirm({ title, text, action: "Mine is not commercial" }))) return;
    await busy(button, send);
  };
  const button = h("button.small", { type: "button", "aria-label": `Pull ${name}`, onclick: pull }, "Pull");
  return button;
}

/**
 * @param {string} digest
 * @param {(sha256: string) => Promise<unknown>} again
 */
const confirming = (digest, again) =>
  h("div.row", {}, h("button", { type: "button", onclick: () => again(digest) }, "That is the right SHA-256: add it"));

/** @param {(job: Api.Job) => void} follow */
function fileForm(follow) {
  const place = problemPlace();
  const state = { preset: PRESETS[0][0] };
  const name = h("input", { type: "text", maxlength: 100, autocomplete: "off", spellcheck: "false" });
  const licence = h("input", { type: "text", maxlength: 100, autocomplete: "off", spellcheck: "false" });
  const research = h("input", { type: "checkbox" });
  const facts = h(
    "div.stack",
    { hidden: true },
    h(
      "div.two",
      {},
      field("Name", name, "a-z, 0-9 and . _ -"),
      field(
        "Its input is like that of",
        select(PRESETS, state.preset, (value) => (state.preset = value)),
      ),
    ),
    field("Licence", licence, "An SPDX identifier where there is one, such as MIT."),
    h("label.choice", {}, research, h("span", {}, "The licence forbids commercial use")),
  );
  const file = h("input", {
    type: "file",
    required: true,
    accept: ".onnx,.tar,.tgz,.gz",
    id: newId("model"),
    onchange: () => {
      const plain = Boolean(file.files[0]) && !ARCHIVE.test(file.files[0].name);
      facts.hidden = !plain;
      for (const input of [name, licence]) input.required = plain;
    },
  });
  const button = h("button", { type: "submit" }, "Add the file");
  const send = () => {
    const [model] = file.files;
    const packed = ARCHIVE.test(model.name);
    const type = GZIP.test(model.name) ? "application/gzip" : "application/x-tar";
    const said = {
      name: name.value.trim(),
      preset: state.preset,
      licence: licence.value.trim(),
      non_commercial: research.checked || null,
    };
    return call("POST", path("models"), {
      query: packed ? {} : said,
      body: model,
      type: packed ? type : "application/octet-stream",
    });
  };
  const submit = async () => {
    const job = await showing(place, () => busy(button, send));
    if (job) follow(job);
  };
  const hint =
    "An ONNX file of a face embedder, or the tar of a model package. It is checked in a process of its own, and " +
    "its maker's operating points are believed: add only what you trust.";
  return h(
    "form.stack",
    { onsubmit: submit },
    field("A file of your own", file, hint),
    facts,
    place.element,
    h("div.row", {}, button),
  );
}
