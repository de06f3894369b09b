/** Lines over an axis, as SVG that fills whatever room it has; every figure drawn is in a table beneath, too. */

import { h, put, svg } from "./dom.js";

const STYLES = 7;
const SIZE = 1000;

/** `series`: [{name, points: [[x, y]], band: [[x, low, high]]}] (null y: a gap). `x`, `y`: {min, max, log, ticks: [[value, words]], title}.
 * `words` says in a sentence what is to be seen; `columns` heads the table. */
export function chart(options) {
  const [caption, plot] = [h("figcaption", {}), h("div.plot", { role: "img" })];
  const rows = h("div.scrolling", { tabindex: "0", role: "region", "aria-label": `${options.title}, figures` });
  const details = options.columns && h("details", {}, h("summary", {}, "Figures"), rows);
  const figure = h("figure.chart", {}, caption, plot, details);
  /** The same figure with other values; what is open in it stays open. */
  figure.update = (next) => {
    put(caption, h("h3", {}, next.title), next.series.length > 1 || next.series[0]?.last ? legend(next.series) : null);
    plot.setAttribute("aria-label", `${next.title}. ${next.words}`);
    put(plot, drawing(next));
    if (details) put(rows, table(next));
  };
  figure.update(options);
  return figure;
}

function drawing({ series, x, y }) {
  const placeX = scaleOf(x);
  const placeY = scaleOf(y);
  const at = ([a, b]) => `${(placeX(a) * SIZE).toFixed(1)} ${((1 - placeY(b)) * SIZE).toFixed(1)}`;
  const lines = svg(
    "svg",
    { viewBox: `0 0 ${SIZE} ${SIZE}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" },
    y.ticks.map(([value]) => svg("path", { class: "rule", d: `M0 ${(1 - placeY(value)) * SIZE}H${SIZE}` })),
    x.log ? x.ticks.map(([value]) => svg("path", { class: "rule", d: `M${placeX(value) * SIZE} 0V${SIZE}` })) : [],
    series.map((one, index) => one.band?.length && svg("path", { class: `band s${index % STYLES}`, d: bandPath(one.band, at) })),
    series.map((one, index) => svg("path", { class: `line s${index % STYLES}`, d: linePath(one.points, at) })),
    series.map((one, index) => one.marks && svg("path", { class: `marks s${index % STYLES}`, d: one.points.map((point) => `M${at(point)}h0`).join("") })),
  );
  const left = y.ticks.map(([value, text]) => h("span", { style: { top: `${(1 - placeY(value)) * 100}%` } }, text));
  const below = x.ticks.map(([value, text]) => h("span", { style: { left: `${placeX(value) * 100}%` } }, text));
  return [
    y.title && h("p.axis-title", {}, y.title),
    h("div.axis-y", {}, left),
    h("div.area", {}, lines),
    h("div.axis-x", {}, below),
    x.title && h("p.axis-title.across", {}, x.title),
  ].filter(Boolean);
}

function scaleOf({ min, max, log }) {
  if (!log) return (value) => (max === min ? 0 : (value - min) / (max - min));
  const [low, high] = [Math.log10(min), Math.log10(max)];
  return (value) => (Math.log10(Math.max(value, min)) - low) / (high - low);
}

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

const bandPath = (band, at) =>
  `M${band.map(([x, low]) => at([x, low])).join("L")}L${[...band].reverse().map(([x, , high]) => at([x, high])).join("L")}Z`;

const legend = (series) =>
  h(
    "ul.legend",
    {},
    series.map((one, index) => h("li", {}, swatch(index), one.name, one.last && h("strong", {}, one.last))),
  );

const swatch = (index) =>
  svg("svg", { viewBox: "0 0 20 6", class: "swatch", "aria-hidden": "true" }, svg("path", { class: `line s${index % STYLES}`, d: "M0 3H20" }));

function table({ title, columns, series }) {
  const row = (values) => h("tr", {}, values.map((value, index) => (index ? h("td.number", {}, value) : h("th", { scope: "row" }, value))));
  return h(
    "table",
    {},
    h("caption.hidden", {}, title),
    h("thead", {}, h("tr", {}, columns.heads.map((head, index) => h(index ? "th.number" : "th", { scope: "col" }, head)))),
    h("tbody", {}, columns.rows(series).map(row)),
  );
}

/** A few round values from 0 to at least `most`, with their words; `binary` ones are round in powers of two. */
export function niceTicks(most, words, binary = false) {
  const step = binary ? 2 ** Math.ceil(Math.log2(most / 3 || 1)) : niceStep(most / 3 || 1);
  const ticks = [];
  for (let value = 0; value < most + step * 0.999; value += step) ticks.push([value, words(value)]);
  return ticks.length > 1 ? ticks : [[0, words(0)], [step, words(step)]];
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}
