/** A gallery's own operating points, measured among its people, beside the package's; and which of them decide. */

import { get, patch, path, post } from "../api.js";
import { field, h, put, select, toast } from "../dom.js";
import { backTo, head, isOpen, later, progress } from "../parts.js";
import { busy, problemPlace, showing } from "../problem.js";
import { link } from "../router.js";
import { aboutOneIn, count, decidedBy, form, nameOf, oneIn, score, when, whole } from "../words.js";
import { histogram } from "./models.js";

const EVERY_MS = 1000;
const SOURCES = [
  ["package", "the model package's"],
  ["gallery", "the gallery's own, where its people support the rate"],
];

/**
 * `#/galleries/ID/calibration`, for `admin` keys.
 * @param {string} gallery
 */
export function calibration(gallery) {
  const place = problemPlace();
  const body = h("div.stack", {}, h("p.waiting", {}, "Loading …"));
  const element = h(
    "div",
    {},
    backTo(gallery),
    head("Calibration", "How alike the different people of this gallery are, and which thresholds follow from it."),
    place.element,
    body,
  );
  const where = path("galleries", gallery, "calibration");
  const next = later(element);
  const show = (/** @type {any} */ found) => {
    if (!found) return;
    put(
      body,
      settings(found, place, read),
      measuring(found, place, where, show),
      found.measured && figures(found),
      found.pairs.length > 0 && suspicious(found),
    );
    if (isOpen(found.job)) next.set(read, EVERY_MS);
    else next.clear();
  };
  const read = async () => show(await showing(place, () => get(where)));
  return { element, ready: read(), leave: next.clear };
}

/**
 * @param {Api.GalleryCalibration} found
 * @param {Page.Place} place
 * @param {(...given: any[]) => unknown} again
 */
function settings(found, place, again) {
  const change = async (/** @type {any} */ changes, /** @type {any} */ words) => {
    if (!(await showing(place, () => patch(path("galleries", found.gallery), changes)))) return;
    toast(words);
    await again();
  };
  const source = select(SOURCES, found.calibration, (calibration) =>
    change({ calibration }, "The calibration is changed."),
  );
  const laxer = h("input", {
    type: "checkbox",
    checked: found.allow_laxer,
    onchange: () => change({ allow_laxer: laxer.checked }, "The floor is changed."),
  });
  return h(
    "section.card.stack",
    { "aria-label": "What decides" },
    field("Thresholds that decide", source, `Now: ${decidedBy(found.decides)}.`),
    h(
      "label.choice",
      {},
      laxer,
      h("span", {}, "Allow thresholds far laxer than the package's (below its threshold at 3.2 times the FMR)"),
    ),
  );
}

/**
 * @param {Api.GalleryCalibration} found
 * @param {Page.Place} place
 * @param {string} where
 * @param {(shown: any) => unknown} show
 */
function measuring(found, place, where, show) {
  const button = h(
    "button.primary",
    { type: "button", onclick: () => busy(button, async () => show(await showing(place, () => post(where)))) },
    found.measured ? "Measure again" : "Measure",
  );
  const open = isOpen(found.job);
  button.disabled = open;
  return h(
    "section.card.stack",
    { "aria-label": "Measurement" },
    h(
      "p",
      {},
      found.measured ? summary(found.measured) : "Not measured yet. People who are enrolled twice are found, too.",
    ),
    open && progress("Measuring", found.job),
    found.job?.error && h("p.problem", {}, found.job.error.message),
    h("div.row", {}, button),
  );
}

/** @param {Api.GalleryMeasured} measured */
function summary(measured) {
  const changed = measured.changed >= 0.005 ? `; ${Math.round(measured.changed * 100)} % of it has changed since` : "";
  if (!measured.comparisons)
    return (
      `${count(measured.subjects, "person is", "people are")} too few to measure anything ` +
      `(${when(measured.measured_at)}${changed}).`
    );
  return (
    `${count(measured.comparisons, "pair")} of ` +
    `${count(measured.compared_subjects, "person", "people")} of ${whole(measured.subjects)}, ` +
    `${when(measured.measured_at)}${changed}.`
  );
}

/** @param {{gallery: string} & Record<string, any>} shown */
function figures({ gallery, measured, points }) {
  const number = (/** @type {any} */ value) => (value === null ? "–" : score(value));
  const range = (/** @type {any} */ point) =>
    point.threshold_low === null ? "" : ` (${score(point.threshold_low)} to ${score(point.threshold_high)})`;
  const row = (/** @type {any} */ point) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, oneIn(point.fmr)),
      h("td.number", {}, number(point.threshold) + range(point)),
      h("td.number", {}, number(point.package)),
      h("td.number", {}, point.found === null ? "–" : point.found ? aboutOneIn(point.found) : "none"),
      h("td.number", {}, number(point.decides)),
    );
  const heads = [
    "Strangers who pass (FMR)",
    "Threshold here (95 % interval)",
    "Package's threshold",
    "Strangers here who pass the package's",
    "Threshold with the gallery's switched on",
  ];
  return h(
    "section.card.stack",
    { "aria-label": "Operating points" },
    h("h2", {}, "Operating points"),
    h(
      "div.scrolling",
      { tabindex: "0", role: "region", "aria-label": "Operating points of this gallery" },
      h(
        "table",
        {},
        h("caption.hidden", {}, `Operating points of ${gallery}`),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((words, index) => h(index ? "th.number" : "th", { scope: "col" }, words)),
          ),
        ),
        h("tbody", {}, points.map(row)),
      ),
    ),
    measured.scores && histogram({ name: gallery, scores: measured.scores }),
  );
}

/** @param {{gallery: string} & Record<string, any>} shown */
function suspicious({ gallery, measured, pairs }) {
  const expected = measured?.suspicious_expected;
  const person = (/** @type {{subject: string, name: string | null}} */ who) =>
    h("a", { href: link("galleries", gallery, "people", who.subject) }, nameOf(who));
  const number = expected < 0.1 ? "less than 0.1" : expected?.toFixed(1);
  const byChance = expected === null ? "" : `; ${number} would be by chance`;
  return h(
    "section.card.stack",
    { "aria-label": "Perhaps one person twice" },
    h("h2", {}, "Perhaps one person twice"),
    h(
      "p",
      {},
      `${count(measured.suspicious, "pair")} of people, each other's most alike and above the package's strictest ` +
        `threshold${byChance}. ${form(measured.suspicious, "It is", "They are")} left out of the measurement.`,
    ),
    h(
      "ul",
      {},
      pairs.map((/** @type {any} */ pair) =>
        h("li", {}, person(pair.first), " and ", person(pair.second), `, score ${score(pair.score)}`),
      ),
    ),
  );
}
