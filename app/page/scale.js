/** The score on the scale of cosine similarity, with the thresholds of the measured operating points. */

import { h } from "./dom.js";
import { oneIn, score as scoreText } from "./words.js";

const SHOWN = [1e-2, 1e-3, 1e-4, 1e-5, 1e-6];
const LEAST = -0.2;

/**
 * @param {number} a
 * @param {number} b
 */
const same = (a, b) => Math.abs(a / b - 1) < 1e-6;
/** @param {number} value */
const place = (value) => `${((Math.min(1, Math.max(LEAST, value)) - LEAST) / (1 - LEAST)) * 100}%`;

/**
 * The operating points of 1e-2 to 1e-6 that `points` has.
 * @param {Api.OperatingPoint[]} points
 */
export const shownPoints = (points) => SHOWN.flatMap((fmr) => points.find((point) => same(point.fmr, fmr)) ?? []);

/**
 * `answer`: {decision, score, threshold, fmr}; `points`: [{fmr, threshold}].
 * @param {any} answer
 * @param {any[]} points
 */
export function scale(answer, points) {
  const shown = shownPoints(points);
  const words = `The score is ${scoreText(answer.score)}; the threshold is ${scoreText(answer.threshold)}.`;
  const ticks = shown.map((point, index) =>
    h(
      `span.tick${same(point.fmr, answer.fmr) ? ".used" : ""}${index % (shown.length - 1 || 1) ? "" : ".outer"}`,
      { style: { left: place(point.threshold) } },
      h("span", {}, oneIn(point.fmr)),
    ),
  );
  return h(
    `div.scale.${answer.decision}`,
    { role: "img", "aria-label": words },
    h("div.bar", {}, h("span.reach", { style: { width: place(answer.score) } }), ticks),
    h("span.marker", { style: { left: place(answer.score) } }, h("span", {}, scoreText(answer.score))),
    h("div.ends", {}, h("span", {}, "different"), h("span", {}, "the same picture")),
  );
}

/**
 * Which thresholds the score passes, as a table.
 * @param {Api.VerifyAnswer} answer
 * @param {any[]} points
 */
export function passes(answer, points) {
  const rows = shownPoints(points).map((point) => {
    const passed = answer.score >= point.threshold;
    return h(
      "tr",
      same(point.fmr, answer.fmr) ? { "aria-current": "true" } : {},
      h("th", { scope: "row" }, oneIn(point.fmr)),
      h("td.number", {}, scoreText(point.threshold)),
      h(`td.${passed ? "yes" : "no"}`, {}, passed ? "reached" : "not reached"),
    );
  });
  return h(
    "table.passes",
    {},
    h("caption", {}, "How strict a threshold the score reaches"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, "Strangers who would pass"),
        h("th.number", { scope: "col" }, "Threshold"),
        h("th", { scope: "col" }, "This score"),
      ),
    ),
    h("tbody", {}, rows),
  );
}
