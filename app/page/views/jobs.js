/** Jobs, which do work that takes longer than a request, such as imports: their progress, and what they refused. */

import { call, get, path, post } from "../api.js";
import { confirm, h, openDialog, put, toast } from "../dom.js";
import { save } from "../files.js";
import { head, isOpen, later, orLeave, progress } from "../parts.js";
import { busy, isLasting, problemPlace, showing } from "../problem.js";
import * as session from "../session.js";
import { count, form, refused, when, whole } from "../words.js";

/** Counts whose names are plurals. Other names, such as "enrolled", stay the same for a count of one. */
const PLURAL = /(subject|face|finding|point|photo|template|correction)s$/;
const EVERY_MS = 2000;
const PAGE = 50;
const REFUSALS = 200;
const STATES = { queued: "uncertain", running: "uncertain", done: "known", failed: "bad", cancelled: "" };

export function jobs() {
  const place = problemPlace();
  const body = h("ul.stack", {}, h("li.waiting", {}, "Loading …"));
  const element = h(
    "div",
    {},
    head(
      "Jobs",
      "Work that takes longer than a request: imports, exports, re-embedding. It goes on when this page is " +
        "closed, and when the server starts again.",
    ),
    place.element,
    body,
  );
  const next = later(element);
  const read = async () => {
    const page = await showing(place, () => get(path("jobs"), { limit: PAGE }));
    const held = body.contains(document.activeElement);
    if (!page) body.querySelector(".waiting")?.remove(); // an error is shown above
    if (page && !held)
      put(
        body,
        page.jobs.length
          ? page.jobs.map((/** @type {any} */ job) => card(job, read, place))
          : h("li.waiting", {}, "There is no job."),
      );
    if (!isLasting(place.error)) next.set(read, page?.jobs.some(isOpen) ? EVERY_MS : EVERY_MS * 5);
  };
  return { element, ready: read(), leave: next.clear };
}

/**
 * @param {Api.Job} job
 * @param {(...given: any[]) => unknown} again
 * @param {Page.Place} place
 */
function card(job, again, place) {
  const far = job.total ? `${whole(job.done)} of ${whole(job.total)}` : `${whole(job.done)} done`;
  const counts = Object.entries(job.counts).map(([name, number]) => {
    const word = name.replaceAll("_", " ");
    return `${whole(number)} ${form(number, word.replace(PLURAL, "$1"), word)}`;
  });
  const title = `${job.kind.replaceAll("_", " ")}${job.gallery ? `: ${job.gallery}` : ""}`;
  const named = (/** @type {string} */ words) => `${words}, ${title}, ${when(job.created_at, true)}`;
  return h(
    "li.card",
    {},
    h("div.row.apart", {}, h("h2", {}, title), h(`span.pill.${STATES[job.state] || "none"}`, {}, job.state)),
    isOpen(job) && progress(named("Progress"), job),
    h("p", {}, [far, ...counts].join(", ")),
    job.error && h("p.problem", {}, job.error.message),
    h(
      "p.small",
      {},
      `Asked for by ${job.key ?? "nobody known"} ` +
        `${when(job.created_at)}${job.finished_at ? `, ended ${when(job.finished_at)}` : ""}`,
    ),
    h(
      "div.row",
      {},
      job.counts.refused
        ? h(
            "button.small",
            { type: "button", "aria-label": named("What was refused"), onclick: () => report(job) },
            "What was refused",
          )
        : null,
      job.has_result && job.kind === "export" && session.may("admin") ? fetching(job, named, place) : null,
      isOpen(job) && session.may("admin")
        ? h(
            "button.danger.small",
            { type: "button", "aria-label": named("Cancel"), onclick: () => cancel(job, again) },
            "Cancel",
          )
        : null,
    ),
  );
}

/**
 * @param {Api.Job} job
 * @param {(words: string) => string} named
 * @param {Page.Place} place
 */
function fetching(job, named, place) {
  const fetched = () => call("GET", `${path("jobs", job.id)}/result`, { as: "blob" });
  const button = h(
    "button.small",
    {
      type: "button",
      "aria-label": named("Save its file"),
      onclick: () =>
        showing(place, () =>
          busy(button, async () => save(await fetched(), `${job.gallery}-${job.id.slice(0, 8)}.tar`)),
        ),
    },
    "Save its file",
  );
  return button;
}

/**
 * @param {Api.Job} job
 * @param {(...given: any[]) => unknown} again
 */
async function cancel(job, again) {
  const sure = await confirm({
    title: "Cancel this job?",
    text: "What it has done so far stays.",
    action: "Cancel the job",
  });
  if (!sure) return;
  await post(`${path("jobs", job.id)}/cancel`);
  toast("The job is being cancelled.");
  await again();
}

/** @param {Api.Job} job */
function report(job) {
  return openDialog("What was refused", (close) => {
    const place = problemPlace();
    const body = h(
      "div.report",
      { tabindex: "0", role: "region", "aria-label": "Refused" },
      h("p.waiting", {}, "Loading …"),
    );
    void showing(place, async () =>
      put(body, lines(await call("GET", `${path("jobs", job.id)}/report`, { as: "text" }))),
    );
    return h("div", {}, place.element, body, orLeave(close, "Close"));
  });
}

/** @param {string} text */
function lines(text) {
  const found = text
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));
  const items = found
    .slice(0, REFUSALS)
    .map((item) =>
      h("li", {}, h("h3", {}, item.name || `Item ${item.item}`), h("p", {}, refused({ reasons: [], ...item }))),
    );
  return [
    h("ul.stack", {}, items),
    found.length > REFUSALS
      ? h("p.small", {}, `${count(found.length - REFUSALS, "more")} are in the report itself: likeness jobs report.`)
      : null,
  ];
}
