/** The view that checks whether the database and the search index agree. */

import { get, path } from "../api.js";
import { everyGallery } from "../choosing.js";
import { h, put } from "../dom.js";
import { head } from "../parts.js";
import { busy, filling, problemPlace, showing } from "../problem.js";
import { count, whole } from "../words.js";

export function check() {
  const place = problemPlace();
  const body = h("div", {});
  /** @type {any[]} */
  const rows = [];
  const all = h(
    "button.primary",
    { type: "button", hidden: true, onclick: () => busy(all, () => everyOne(rows)) },
    "Check all",
  );
  const element = h(
    "div",
    {},
    head(
      "Gallery check",
      "The search index is built from the database. A check compares the two: the same faces, with the same vectors?",
      all,
    ),
    place.element,
    body,
  );
  const ready = filling(place, body, async () => {
    rows.push(...(await everyGallery()).map(row));
    all.hidden = !rows.length;
    return rows.length
      ? h(
          "ul.stack",
          {},
          rows.map((row) => row.element),
        )
      : h("p.waiting", {}, "There is no gallery yet.");
  });
  return { element, ready };
}

/** @param {any[]} rows */
async function everyOne(rows) {
  for (const row of rows) await row.run();
}

/** @param {Api.Gallery} gallery */
function row(gallery) {
  const outcome = h(
    "div",
    { role: "status" },
    h("p.small", {}, `${count(gallery.subjects, "person", "people")}, ${count(gallery.faces, "face")}`),
  );
  const place = problemPlace();
  const button = h("button", { type: "button", "aria-label": `Check ${gallery.id}`, onclick: () => run() }, "Check");
  const run = () =>
    busy(button, () =>
      showing(place, async () => {
        put(outcome, h("p.small", {}, "Comparing …"));
        put(outcome, said(await get(path("galleries", gallery.id, "check"))));
      }),
    );
  return {
    run,
    element: h("li.card", {}, h("div.row.apart", {}, h("h2", {}, gallery.id), button), outcome, place.element),
  };
}

/** @param {Api.GalleryCheck} report */
function said(report) {
  if (report.ok)
    return h(
      "p",
      {},
      h("span.pill.known", {}, "in order"),
      ` ${count(report.faces, "face")} of ${count(report.subjects, "person", "people")} in the database, ` +
        "as many in the index.",
    );
  return [
    h(
      "p",
      {},
      h("span.pill.bad", {}, "disagree"),
      ` ${count(report.faces, "face")} in the database, ${whole(report.indexed)} in the index.`,
    ),
    h(
      "ul",
      {},
      report.problems.map((problem) => h("li", {}, problem)),
    ),
    report.examples.length ? h("p.small", {}, "For example ", h("code", {}, report.examples.join(", "))) : null,
    h("p", {}, "Restart the server: it builds the index again from the database."),
  ];
}
