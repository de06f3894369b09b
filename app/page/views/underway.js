/** Shows the runs of enrolling that go on, in every view. */

import { h, put } from "../dom.js";
import { link } from "../router.js";
import { whole } from "../words.js";

/** @type {Set<any>} */
export const runs = new Set();

const strip = h("aside.underway", { "aria-label": "Enrolling", hidden: true });

addEventListener(
  "beforeunload",
  (event) => [...runs].some((run) => !run.ended || run.queue.length) && event.preventDefault(),
);

/** @param {any} run */
export function discard(run) {
  runs.delete(run);
  for (const url of run.urls) URL.revokeObjectURL(url);
  showUnderWay();
}

/** Stops all runs, since the next key may allow less. */
export function discardAll() {
  for (const run of [...runs]) {
    run.stop.abort();
    discard(run);
  }
}

/** The strip at the edge of every view that shows the runs. */
export const underWay = () => strip;

export function showUnderWay() {
  const unseen = [...runs].filter((run) => !run.view.element.isConnected);
  strip.hidden = !unseen.length;
  put(strip, unseen.map(line));
}

/** @param {any} run */
function line(run) {
  const where = run.subject
    ? link("galleries", run.gallery, "people", run.subject)
    : link("galleries", run.gallery, "enroll");
  const words = `${run.gallery}: ${soFar(run.tally)}`;
  return h(
    "div",
    {},
    h(
      "p.small",
      {},
      h("a", { href: where }, run.ended ? (run.queue.length ? "Stopped" : "Enrolled") : "Enrolling"),
      ` ${words}`,
    ),
    run.ended
      ? null
      : h("progress", { max: String(run.tally.all), value: run.tally.done, "aria-label": "Photos done" }),
  );
}

/** @param {any} tally */
export const soFar = (tally) =>
  `${whole(tally.done)} of ${whole(tally.all)}: ` +
  `${whole(tally.enrolled)} enrolled, ${whole(tally.refused)} refused`;
