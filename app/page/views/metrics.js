/** What the server is doing, drawn from `/metrics` while somebody looks. */

import { call } from "../api.js";
import { chart, niceTicks } from "../charts.js";
import { h, put } from "../dom.js";
import { later } from "../later.js";
import { growth, mean, parse, quantile, total, values } from "../metrics.js";
import { head } from "../parts.js";
import { problemPlace, showing } from "../problem.js";
import { bytes, count } from "../words.js";

const EVERY_MS = 5000;
const SOON_MS = 1500;
const KEPT = 360;
const STAGE = "likeness_stage_seconds";
const REQUESTS = "likeness_requests_total";
const BATCH = "likeness_batch_size";

/** Readings of this visit to the page: [{at, samples}]. */
const readings = [];

export function metrics() {
  const place = problemPlace();
  const tiles = h("dl.tiles", {});
  const charts = h("div.charts", {});
  const stages = h("div", {});
  const element = h(
    "div",
    {},
    head("Metrics", "What the server is doing, read every five seconds while this is open. For longer, have Prometheus read /metrics."),
    place.element,
    tiles,
    charts,
    stages,
  );
  const figuresOf = new Map();
  const keep = (options) => {
    figuresOf.set(options.title, chart(options));
    return figuresOf.get(options.title);
  };
  const next = later(element);
  const read = async () => {
    await showing(place, async () => {
      readings.push({ at: Date.now() / 1000, samples: parse(await call("GET", "/metrics", { as: "text" })) });
      if (readings.length > KEPT) readings.shift();
      const now = readings.at(-1).samples;
      put(tiles, figures(now));
      put(stages, stageTable(now));
      for (const options of drawn()) {
        if (!figuresOf.has(options.title)) charts.append(keep(options));
        figuresOf.get(options.title).update(options);
      }
    });
    next.set(read, readings.length < 2 ? SOON_MS : EVERY_MS);
  };
  return { element, ready: read(), leave: next.clear };
}

function figures(samples) {
  const one = (word, value) => h("div", {}, h("dt", {}, word), h("dd", {}, value));
  const failed = total(samples, REQUESTS, (labels) => labels.status >= "500" && labels.route !== "/readyz"); // which says 503 while it starts
  const started = total(samples, "process_start_time_seconds");
  return [
    one("Running for", span(Date.now() / 1000 - started)),
    one("Requests", total(samples, REQUESTS).toLocaleString("en")),
    one("Server errors", failed.toLocaleString("en")),
    one("People", total(samples, "likeness_subjects").toLocaleString("en")),
    one("Faces", total(samples, "likeness_faces").toLocaleString("en")),
    one("Memory", bytes(total(samples, "process_resident_memory_bytes"))),
    one("Search indexes", bytes(total(samples, "likeness_index_bytes"))),
    one("In progress", count(total(samples, "likeness_requests_admitted"), "request")),
  ];
}

function span(seconds) {
  const [minutes, hours] = [seconds / 60, seconds / 3600];
  if (hours >= 48) return count(Math.floor(hours / 24), "day");
  if (minutes < 1) return "a moment";
  return hours >= 2 ? count(Math.floor(hours), "hour") : count(Math.floor(minutes), "minute");
}

function drawn() {
  const kinds = [["answered", (s) => s < "400"], ["refused", (s) => s >= "400" && s < "500"], ["failed", (s) => s >= "500"]];
  const requests = kinds.map(([name, keep]) =>
    over(name, (before, after, seconds) => growth(before, after, REQUESTS, (labels) => keep(labels.status)) / seconds, (value) => `${value.toFixed(1)}/s`),
  );
  const samples = readings.at(-1).samples;
  const stages = values(samples, `${STAGE}_count`, "stage").map((stage) =>
    over(stage, (before, after) => thousandfold(mean(before, after, STAGE, (labels) => labels.stage === stage)), ms),
  );
  const batches = values(samples, `${BATCH}_count`, "batcher").map((name) =>
    over(name, (before, after) => mean(before, after, BATCH, (labels) => labels.batcher === name), (value) => value.toFixed(1)),
  );
  const memory = [
    level("process", "process_resident_memory_bytes", bytes),
    level("search indexes", "likeness_index_bytes", bytes),
  ];
  return [
    timed("Requests a second", requests, (value) => value.toLocaleString("en")),
    timed("Mean latency by stage", stages, (value) => `${value} ms`),
    timed("Mean batch size", batches, (value) => value.toLocaleString("en")),
    timed("Memory", memory, bytes, true),
  ];
}

const ms = (value) => `${value.toFixed(value < 10 ? 1 : 0)} ms`;
const thousandfold = (value) => (value === null ? null : value * 1000);

/** A series of `measure(before, after, seconds)` over the readings; the first is held against the server's start. */
function over(name, measure, words) {
  const before = [{ at: total(readings[0].samples, "process_start_time_seconds"), samples: [] }, ...readings];
  return series(name, readings.map(({ at, samples }, index) => [at, measure(before[index].samples, samples, at - before[index].at)]), words);
}

/** A series of what a gauge says. */
const level = (name, gauge, words) => series(name, readings.map(({ at, samples }) => [at, total(samples, gauge)]), words);

function series(name, points, words) {
  const known = points.filter(([, value]) => value !== null);
  return { name, points, words, last: known.length ? words(known.at(-1)[1]) : "–", marks: known.length === 1 };
}

function timed(title, all, tickWords, binary = false) {
  const end = readings.at(-1).at;
  const start = Math.min(readings[0].at, end - 60);
  const most = Math.max(0, ...all.flatMap((one) => one.points.map(([, value]) => value ?? 0)));
  const ticks = niceTicks(most, tickWords, binary);
  const rows = () => (all[0]?.points ?? []).map(([at], index) => [new Date(at * 1000).toLocaleTimeString(), ...all.map((one) => (one.points[index][1] === null ? "–" : one.words(one.points[index][1])))]).reverse();
  return {
    title,
    words: all.length ? `Now ${all.map((one) => `${one.name} ${one.last}`).join(", ")}.` : "Nothing yet.",
    series: all,
    x: { min: start, max: end, ticks: [[start, ago(end - start)], [end, "now"]] },
    y: { min: 0, max: ticks.at(-1)[0], ticks },
    columns: { heads: ["Time", ...all.map((one) => one.name)], rows },
  };
}

const ago = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`);

function stageTable(samples) {
  const stages = values(samples, `${STAGE}_count`, "stage");
  const row = (stage) => {
    const keep = (labels) => labels.stage === stage;
    const at = (share) => (quantile(samples, STAGE, share, keep) === null ? "–" : ms(quantile(samples, STAGE, share, keep) * 1000));
    return h("tr", {}, h("th", { scope: "row" }, stage), h("td.number", {}, total(samples, `${STAGE}_count`, keep).toLocaleString("en")), [0.5, 0.95, 0.99].map((share) => h("td.number", {}, at(share))));
  };
  const heads = ["Stage", "Photos", "Half within", "95 % within", "99 % within"];
  return h(
    "section.card",
    { "aria-label": "Latency since the start" },
    h("h2", {}, "Since the server started"),
    h("div.scrolling", { tabindex: "0", role: "region", "aria-label": "Latency by stage" }, h("table", {}, h("caption", {}, "Estimated from the histograms' buckets, waiting for a batch included"), h("thead", {}, h("tr", {}, heads.map((words, index) => h(index ? "th.number" : "th", { scope: "col" }, words)))), h("tbody", {}, stages.map(row)))),
  );
}
