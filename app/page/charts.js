/** Line charts, as SVG that fills the space it is given. */

import { h, svg } from "./dom.js";

const STYLES = 7;
const SIZE = 1000;

/**
 * `series`: [{name, points: [[x, y]], band: [[x, low, high]]}] (null y: a gap). `x`, `y`: {min, max, log, ticks:
 * [[value, words]], title}. `words`: a sentence that describes the chart to those who can't see it.
 * @param {Page.Chart} chart
 */
export function chart({ title, words, series, x, y }) {
  const caption = h("figcaption", {}, h("h3", {}, title), series.length > 1 ? legend(series) : null);
  return h(
    "figure.chart",
    {},
    caption,
    h("div.plot", { role: "img", "aria-label": `${title}. ${words}` }, drawing({ series, x, y })),
  );
}

/** @param {Page.Chart} chart */
function drawing({ series, x, y }) {
  const placeX = scaleOf(x);
  const placeY = scaleOf(y);
  const at = (/** @type {Page.Point} */ [a, b]) =>
    `${(placeX(a) * SIZE).toFixed(1)} ${((1 - placeY(b)) * SIZE).toFixed(1)}`;
  const lines = svg(
    "svg",
    { viewBox: `0 0 ${SIZE} ${SIZE}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" },
    y.ticks.map((/** @type {any[]} */ [value]) =>
      svg("path", { class: "rule", d: `M0 ${(1 - placeY(value)) * SIZE}H${SIZE}` }),
    ),
    x.log
      ? x.ticks.map((/** @type {any[]} */ [value]) =>
          svg("path", { class: "rule", d: `M${placeX(value) * SIZE} 0V${SIZE}` }),
        )
      : [],
    series.map(
      (line, index) =>
        line.band?.length && svg("path", { class: `band s${index % STYLES}`, d: bandPath(line.band, at) }),
    ),
    series.map((line, index) => svg("path", { class: `line s${index % STYLES}`, d: linePath(line.points, at) })),
    series.map(
      (line, index) =>
        line.marks &&
        svg("path", {
          class: `marks s${index % STYLES}`,
          d: line.points.map((/** @type {any} */ point) => `M${at(point)}h0`).join(""),
        }),
    ),
  );
  const left = y.ticks.map((/** @type {any[]} */ [value, text]) =>
    h("span", { style: { top: `${(1 - placeY(value)) * 100}%` } }, text),
  );
  const below = x.ticks.map((/** @type {any[]} */ [value, text]) =>
    h("span", { style: { left: `${placeX(value) * 100}%` } }, text),
  );
  return [
    y.title && h("p.axis-title", {}, y.title),
    h("div.axis-y", {}, left),
    h("div.area", {}, lines),
    h("div.axis-x", {}, below),
    x.title && h("p.axis-title.across", {}, x.title),
  ].filter(Boolean);
}

/** @param {Page.Axis} axis */
function scaleOf({ min, max, log }) {
  if (!log) return (/** @type {any} */ value) => (max === min ? 0 : (value - min) / (max - min));
  const [low, high] = [Math.log10(min), Math.log10(max)];
  return (/** @type {any} */ value) => (Math.log10(Math.max(value, min)) - low) / (high - low);
}

/**
 * @param {Page.Point[]} points
 * @param {(point: any) => any} at
 */
function linePath(points, at) {
  let drawn = "";
  let open = false;
  for (const point of points) {
    if (point[1] === null) open = false;
    else {
      drawn += `${open ? "L" : "M"}${at(point)}`;
      open = true;
    }
  }
  return drawn;
}

/**
 * @param {any} band
 * @param {(point: any) => any} at
 */
const bandPath = (band, at) =>
  `M${band.map((/** @type {any[]} */ [x, low]) => at([x, low])).join("L")}L${[...band]
    .reverse()
    .map(([x, , high]) => at([x, high]))
    .join("L")}Z`;

/** @param {any[]} series */
const legend = (series) =>
  h(
    "ul.legend",
    {},
    series.map((line, index) => h("li", {}, swatch(index), line.name)),
  );

/** @param {number} index */
const swatch = (index) =>
  svg(
    "svg",
    { viewBox: "0 0 20 6", class: "swatch", "aria-hidden": "true" },
    svg("path", { class: `line s${index % STYLES}`, d: "M0 3H20" }),
  );
