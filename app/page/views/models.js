/** Model cards: what each package is for, its source, and how its thresholds were measured. */

import { MODEL_PARTS, MODELS_PARTS } from "../additions.js";
import { biasCard } from "../biascard.js";
import { chart } from "../charts.js";
import { everyGallery } from "../choosing.js";
import { h, put, select } from "../dom.js";
import { loadModels } from "../models.js";
import { facts, head } from "../parts.js";
import { busy, filling, problemPlace, showing } from "../problem.js";
import { go } from "../router.js";
import * as session from "../session.js";
import { axisPercent, count, list, oneIn, percent, score, whole } from "../words.js";
import { newGallery } from "./newgallery.js";
import { moveGallery } from "./settings.js";

/** @type {Record<string, any>} */
const TASKS = { detect: "finds faces", embed: "makes templates" };
const LEAST_FNMR = 1e-4;
const LEAST_DENSITY = 1e-7;

export function models() {
  const place = problemPlace();
  const body = h("div.stack", {});
  const added = h("div.stack", {});
  const element = h(
    "div",
    {},
    head("Models", "The model packages of this server: where they come from, and what was measured with them."),
    place.element,
    added,
    body,
  );
  const load = () =>
    filling(place, body, async () => {
      const { models: found, skipped } = await loadModels();
      const galleries = session.mayEverything() ? await everyGallery() : [];
      const ordered = [...found].sort((a, b) => b.loaded - a.loaded);
      return [skipped.map(warning), ordered.map((model) => card(model, galleries, load))];
    });
  const parts = async () => put(added, await Promise.all(MODELS_PARTS.map((make) => make(load))));
  return { element, ready: Promise.all([load(), parts()]) };
}

/**
 * A folder whose manifest can't be used: the server runs without it.
 * @param {Api.SkippedModel} skipped
 */
function warning({ folder, problem }) {
  return h(
    "section.card",
    { role: "alert", "aria-label": `Skipped: ${folder}` },
    h("h2", {}, `${folder} is skipped`),
    h("p", {}, problem),
  );
}

/**
 * @param {any} model
 * @param {Api.Gallery[]} galleries
 * @param {() => Promise<unknown>} reload
 */
function card(model, galleries, reload) {
  const { text, url, figures, ...rest } = model.provenance;
  const known = [
    ["Package", h("code", {}, model.id)],
    ["Task", TASKS[model.task] ?? model.task],
    ["Templates", model.dimension && `${count(model.dimension, "number")} each`],
    ["Runs on", model.loaded ? `${model.device}, ${model.providers.join(", ")}` : "not loaded"],
    ["Licence", `${model.licence.name}${model.licence.non_commercial ? ", not for commercial use" : ""}`],
    ["SHA-256", h("code", {}, model.sha256)],
    ["From", text],
    ["Source", url && h("span.mono", {}, url)],
  ];
  return h(
    "section.card.model",
    { "aria-label": model.title },
    h(
      "details",
      { open: model.loaded },
      h(
        "summary",
        {},
        h("h2", {}, model.title),
        h(`span.pill${model.loaded ? ".known" : ""}`, {}, model.loaded ? "running" : "not loaded"),
      ),
      h(
        "div.halves",
        {},
        h(
          "div.stack",
          {},
          h("p", {}, model.description),
          facts(known),
          model.task === "embed" && session.mayEverything() && usage(model, galleries),
          MODEL_PARTS.map((make) => make(model, reload)),
          figuresOf({ ...figures, ...rest }),
        ),
        model.task === "embed" ? measured(model) : null,
      ),
    ),
  );
}

/**
 * Ways to use an embedder: for a new gallery, or by moving a gallery to it.
 * @param {any} model
 * @param {Api.Gallery[]} galleries
 */
function usage(model, galleries) {
  const place = problemPlace();
  const users = galleries.filter((gallery) => gallery.embedder === model.id);
  const others = galleries.filter((gallery) => gallery.embedder !== model.id);
  const names = others.map((gallery) => [gallery.id, gallery.id]);
  const wanted = select([["", "Choose a gallery"], ...names], "", () => {}, {
    "aria-label": `Gallery to move to ${model.title}`,
  });
  const named = (/** @type {string} */ words) => ({ type: "button", "aria-label": `${words}: ${model.title}` });
  const onmove = () => showing(place, () => busy(move, begin));
  const move = h("button", { ...named("Move it here"), onclick: onmove }, "Move it here");
  const begin = async () => {
    const gallery = others.find((other) => other.id === wanted.value);
    if (gallery && (await moveGallery(gallery, model))) go("galleries", gallery.id, "settings");
  };
  return h(
    "div.stack",
    {},
    h("p", {}, users.length ? `Used by ${list(users.map((gallery) => gallery.id))}.` : "No gallery uses it."),
    h(
      "div.row",
      {},
      h("button", { ...named("New gallery with it"), onclick: () => newGallery(model) }, "New gallery with it"),
      others.length > 0 && [wanted, move],
    ),
    place.element,
  );
}

/** @param {any} figures */
function figuresOf(figures) {
  const flat = Object.entries(figures ?? {}).filter(([, value]) => ["string", "number"].includes(typeof value));
  if (!flat.length) return null;
  const said = (/** @type {any} */ value) =>
    typeof value === "number" ? Number(value.toPrecision(5)).toLocaleString("en", { maximumFractionDigits: 6 }) : value;
  return h(
    "details",
    {},
    h("summary", {}, "Figures of its making"),
    facts(flat.map(([word, value]) => [word.replaceAll("_", " "), said(value)])),
  );
}

/** @param {any} model */
function measured(model) {
  if (!model.calibrations.length)
    return h("p", {}, "No operating point was measured for this package: it makes templates and decides nothing.");
  return h(
    "div.stack",
    {},
    det(model),
    biasCard(model.bias_card, model.title),
    [...model.calibrations].sort((a, b) => b.default - a.default).map(points),
  );
}

/**
 * The distributions of the scores of mated and non-mated pairs. The less they overlap, the better.
 * @param {any} calibration
 */
export function histogram({ name, scores }) {
  if (!scores) return h("p.small", {}, `The manifest has no scores of ${name}, so there is no histogram.`);
  const density = (/** @type {any} */ counts) => {
    const total = counts.reduce((/** @type {any} */ sum, /** @type {any} */ count) => sum + count, 0);
    return counts.map((/** @type {any} */ count, /** @type {any} */ bin) => [
      ((bin + 0.5) * 2) / counts.length - 1,
      count ? (count / total) * (counts.length / 2) : null,
    ]);
  };
  const rates = [1e-6, 1e-4, 1e-2, 1];
  return chart({
    title: `Scores of ${name}`,
    words: "How often pairs of different people and pairs of one person have each score.",
    series: [
      { name: "one person", points: density(scores.mated) },
      { name: "different people", points: density(scores.nonmated) },
    ],
    x: { title: "score", min: -0.6, max: 1, ticks: [-0.5, 0, 0.5, 1].map((value) => [value, String(value)]) },
    y: {
      title: "share of the pairs, per unit of score",
      min: LEAST_DENSITY,
      max: 10,
      log: true,
      ticks: rates.map((rate) => [rate, axisPercent(rate)]),
    },
  });
}

/**
 * The detection error trade-off (DET) at the measured operating points, with 95 % intervals of the FNMR.
 * @param {any} model
 */
function det(model) {
  const series = [...model.calibrations]
    .sort((a, b) => b.default - a.default)
    .map((calibration) => {
      const known = calibration.points.filter((/** @type {any} */ point) => point.fnmr !== null);
      return {
        name: calibration.name + (calibration.default ? " (decides)" : ""),
        points: known.map((/** @type {any} */ point) => [point.fmr, Math.max(point.fnmr, LEAST_FNMR)]),
        band: known
          .filter((/** @type {any} */ point) => point.fnmr_low !== null)
          .map((/** @type {any} */ point) => [point.fmr, Math.max(point.fnmr_low, LEAST_FNMR), point.fnmr_high]),
        marks: true,
      };
    })
    .filter((curve) => curve.points.length);
  if (!series.length) return h("p.small", {}, "FNMR was not measured, so there is no DET curve.");
  const fmrs = series.flatMap((curve) => curve.points.map((/** @type {any[]} */ [fmr]) => fmr));
  const rates = [1e-4, 1e-3, 1e-2, 0.1, 1];
  return chart({
    title: "DET curve",
    words:
      "FNMR against FMR at " +
      `${series.map((curve) => `${curve.points.length} operating points of ${curve.name}`).join(" and ")}; the ` +
      "tables have the figures.",
    series,
    x: {
      title: "FMR: strangers who pass",
      min: Math.min(...fmrs),
      max: Math.max(...fmrs),
      log: true,
      ticks: [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
        .filter((fmr) => fmr >= Math.min(...fmrs) * 0.99 && fmr <= Math.max(...fmrs) * 1.01)
        .map((fmr) => [fmr, oneIn(fmr)]),
    },
    y: {
      title: "FNMR: the same person refused",
      min: LEAST_FNMR,
      max: 1,
      log: true,
      ticks: rates.map((rate) => [rate, axisPercent(rate)]),
    },
  });
}

/** @param {any} calibration */
function points(calibration) {
  const range = (/** @type {any} */ low, /** @type {any} */ high) =>
    low === null || high === null ? "" : ` (${percent(low)} to ${percent(high)})`;
  const row = (/** @type {any} */ point) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, oneIn(point.fmr)),
      h("td.number", {}, score(point.threshold)),
      h("td", {}, point.fnmr === null ? "not measured" : percent(point.fnmr) + range(point.fnmr_low, point.fnmr_high)),
    );
  return h(
    "details",
    {},
    h("summary", {}, `${calibration.name}${calibration.default ? ", which decides" : ""}`),
    h(
      "p.small",
      {},
      `${calibration.measured_on}. ${count(calibration.comparisons, "pair")} of different ` +
        `people, ${whole(calibration.mated)} of the same.`,
    ),
    histogram(calibration),
    h(
      "div.scrolling",
      { tabindex: "0", role: "region", "aria-label": `Operating points of ${calibration.name}` },
      h(
        "table",
        {},
        h("caption.hidden", {}, `Operating points of ${calibration.name}`),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "Strangers who pass (FMR)"),
            h("th.number", { scope: "col" }, "Threshold"),
            h("th", { scope: "col" }, "The same person refused (FNMR; 95 % interval)"),
          ),
        ),
        h("tbody", {}, calibration.points.map(row)),
      ),
    ),
  );
}
