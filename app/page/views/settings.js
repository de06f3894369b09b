/** A gallery's settings. */

import { call, get, patch, path, post } from "../api.js";
import { confirm, field, h, put, select, toast } from "../dom.js";
import { defaults, models } from "../models.js";
import { backTo, head } from "../parts.js";
import { busy, filling, problemPlace, showing } from "../problem.js";
import { link } from "../router.js";
import { count } from "../words.js";

const SEARCHES = [
  ["fp32", "fp32: the vectors as they are"],
  ["int8", "int8: a small copy first; faster, a quarter more memory"],
];
const CONFLICTS = [
  ["warn", "Enroll it, and ask what to do"],
  ["reject", "Refuse it"],
  ["allow", "Don't look"],
];
/** @type {Record<string, any>} */
const MOVES = {
  embedding: "The faces get templates of the new model; the old one answers until then.",
  ready: "All faces have templates of both models. The old one answers.",
  switched: "The new model answers. You can go back until the old templates are deleted.",
  ending: "Templates that are no longer needed are being deleted.",
};

/** @param {string} id */
export function settings(id) {
  const place = problemPlace();
  const body = h("div.stack.settings", {});
  const element = h("div", {}, backTo(id), head("Settings", `Of the gallery ${id}.`), place.element, body);
  const load = async () => {
    const gallery = await get(path("galleries", id));
    return await Promise.all([conflictsOf, searchOf, calibrationOf, modelOf].map((section) => section(gallery)));
  };
  return { element, ready: filling(place, body, load) };
}

/**
 * @param {string} title
 * @param {...Page.Child} children
 */
const section = (title, ...children) => h("section.card", { "aria-label": title }, h("h2", {}, title), children);

/**
 * A setting that is stored as soon as it is chosen.
 * @param {any} gallery
 * @param {string} label
 * @param {string} name
 * @param {any[]} pairs
 * @param {any} hint
 */
export function stored(gallery, label, name, pairs, hint) {
  const place = problemPlace();
  const change = (/** @type {any} */ value) =>
    showing(place, async () => {
      await patch(path("galleries", gallery.id), { [name]: value });
      toast("Saved.");
    });
  return [field(label, select(pairs, gallery[name], change), hint), place.element];
}

/** @param {any} gallery */
const conflictsOf = (gallery) =>
  section(
    "Conflicts",
    stored(
      gallery,
      "A new face that is enrolled already, or matches somebody else",
      "on_conflict",
      CONFLICTS,
      "Used unless an enrollment says otherwise.",
    ),
  );
/** @param {any} gallery */
const searchOf = (gallery) =>
  section("Search", stored(gallery, "How the vectors are searched", "search", SEARCHES, "The answers are the same."));

/** @param {any} gallery */
const calibrationOf = (gallery) =>
  section(
    "Calibration",
    h("p", {}, "Which thresholds decide here, and how alike its own people are."),
    h("div.row", {}, h("a.button", { href: link("galleries", gallery.id, "calibration") }, "Calibration")),
  );

/** @param {any} gallery */
async function modelOf(gallery) {
  const home = h("div.stack", {});
  put(home, await modelBody(gallery, home));
  return section("Model", home);
}

/**
 * @param {any} gallery
 * @param {any} home
 */
async function modelBody(gallery, home) {
  const moving = await get(path("galleries", gallery.id, "reembed")).catch((error) =>
    error.code === "reembedding_not_found" ? null : Promise.reject(error),
  );
  const place = problemPlace();
  const again = async () => put(home, await modelBody(await get(path("galleries", gallery.id)), home));
  const act = (/** @type {any} */ words, /** @type {any} */ work) => {
    const button = h(
      "button",
      {
        type: "button",
        onclick: () =>
          showing(place, () => busy(button, async () => ((await work()) === false ? null : await again()))),
      },
      words,
    );
    return button;
  };
  const where = path("galleries", gallery.id, "reembed");
  const current = h("p", {}, "Its templates are of ", h("code", {}, gallery.embedder), ".");
  if (moving) return [current, ...underWay(moving, where, act), place.element];
  const others = (await models()).filter(
    (/** @type {any} */ model) => model.task === "embed" && model.id !== gallery.embedder,
  );
  if (!others.length) return [current, h("p.small", {}, "No other model is installed.")];
  const { embedder: preferred } = await defaults();
  const first = others.some((/** @type {any} */ model) => model.id === preferred) ? preferred : "";
  const choices = [
    ...(first ? [] : [["", "Choose a model"]]),
    ...others.map((/** @type {any} */ model) => [model.id, model.title]),
  ];
  const wanted = select(choices, first, () => {}, { "aria-label": "Other model" });
  const start = act("Move the gallery to it", () =>
    moveGallery(
      gallery,
      others.find((/** @type {any} */ model) => model.id === wanted.value),
    ),
  );
  return [
    current,
    h("div.row", {}, wanted, start),
    gallery.store === "crop"
      ? null
      : h("p.small", {}, "This gallery keeps no crops, so its people would have to be enrolled again."),
    place.element,
  ];
}

/**
 * Ask, and begin to move the gallery to a model; return false if it was refused. By the dialog the user accepts what it
 * says about the model.
 * @param {any} gallery
 * @param {Api.Model} model
 */
export async function moveGallery(gallery, model) {
  if (!model) return false;
  const { name, non_commercial: research } = model.licence;
  const unmeasured = !model.calibrations.length;
  const text = [
    `${count(gallery.faces, "face gets a new template", "faces get new templates")}, ` +
      "in the background; the gallery answers meanwhile. " +
      "For 7 days you can go back.",
    `Its licence: ${name}.`,
    research ? "It may not be used commercially." : "",
    unmeasured ? "It was never measured: after the move nobody is identified until its thresholds are." : "",
  ]
    .filter(Boolean)
    .join(" ");
  const action = research || unmeasured ? "Move it anyway" : "Move it";
  if (!(await confirm({ title: `Move ${gallery.id} to ${model.id}?`, text, action }))) return false;
  return post(path("galleries", gallery.id, "reembed"), {
    embedder: model.id,
    force: unmeasured,
    accept_non_commercial: research,
  });
}

/**
 * @param {any} moving
 * @param {string} where
 * @param {(...given: any[]) => unknown} act
 */
function underWay(moving, where, act) {
  /** @type {Record<string, any[]>} */
  const acts = {
    embedding: [act("Cancel", () => call("DELETE", where))],
    ready: [act("Cancel", () => call("DELETE", where))],
    switched: [
      act("Go back", () => post(`${where}/rollback`)),
      act("Delete the old templates", () => post(`${where}/finish`)),
    ],
    ending: [],
  };
  return [
    h(
      "p",
      {},
      `From ${moving.source} to ${moving.target}: ${MOVES[moving.state]} `,
      h("a", { href: link("jobs") }, "See the jobs"),
    ),
    h("div.row", {}, acts[moving.state]),
  ];
}
