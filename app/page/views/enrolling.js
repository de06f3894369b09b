/** Runs of enrolling. Each goes on while other views are open, with its progress in sight. */

import { patch, path, patiently, sendPhotos } from "../api.js";
import { ABOUT } from "../codes.js";
import { h, put, toast } from "../dom.js";
import { verdict } from "../liveness.js";
import { adviceLink } from "../parts.js";
import { fitted, thumbnail } from "../picture.js";
import { isLasting, problem, problemPlace } from "../problem.js";
import { link, reopen } from "../router.js";
import { count, explain, whole } from "../words.js";
import { afterwards, choices, finding, said, sides } from "./conflicts.js";
import { remedies } from "./remedies.js";
import { runs, showUnderWay, soFar } from "./underway.js";

const AT_ONCE = 3;
const REFUSED_SHOWN = 200;

/**
 * The run into `gallery`, for one `subject` or null, that is under way, or that has ended while its view was closed.
 * @param {string} gallery
 * @param {Api.Subject} subject
 */
export const runOf = (gallery, subject) =>
  [...runs].find((run) => run.gallery === gallery && run.subject === subject) ?? null;

/**
 * Begins to enroll `photos`, [{file, name, subject, face}]. `face`: optionally, which of the photo's faces is meant.
 * `names`: the names of new subjects, by id.
 * @param {any} given
 */
export function begin({ gallery, subject, photos, names, gate }) {
  const tally = { done: 0, all: photos.length, enrolled: 0, refused: 0, people: new Set() };
  /** @type {any} */
  const run = {
    gallery,
    subject,
    names,
    titles: { ...names },
    gate,
    tally,
    queue: [...photos],
    stop: new AbortController(),
    urls: [],
    ended: false,
  };
  run.view = viewOf(run);
  runs.add(run);
  void work(run);
  return run;
}

/** @param {any} run */
async function work(run) {
  run.ended = false;
  run.view.begin();
  const worker = async () => {
    while (run.queue.length && !run.stop.signal.aborted) await enroll(run, run.queue.shift());
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  run.ended = true;
  run.view.finish();
  if (run.view.element.isConnected) run.onend?.(run.tally);
  else if (runs.has(run))
    toast(
      `Enrolling into ${run.gallery} has ended: ${whole(run.tally.enrolled)} enrolled, ` +
        `${whole(run.tally.refused)} refused.`,
    );
  showUnderWay();
}

/**
 * Continues a stopped run with the photos that were not sent.
 * @param {any} run
 */
function goOn(run) {
  run.stop = new AbortController();
  run.view.heading.focus();
  void work(run);
}

/**
 * @param {any} run
 * @param {Page.Photo} photo
 */
async function enroll(run, photo) {
  try {
    const found = await sent(run, photo, {});
    if (finding(found)) run.view.doubt(photo, found);
  } catch (error) {
    const lost = error.code === "unreachable" || isLasting(error);
    if (lost && !run.stop.signal.aborted) {
      run.stop.abort();
      run.view.fail(error);
    }
    if (lost || error.name === "AbortError") {
      run.queue.push(photo); // for when the run is continued
      return;
    }
    run.tally.refused++;
    run.view.refuse(photo, error);
  }
  run.tally.done++;
  run.view.update();
  showUnderWay();
}

/**
 * Sends one photo with the run's parameters and those of `query`. Returns its face; throws if it is refused.
 * @param {any} run
 * @param {Page.Photo} photo
 * @param {Record<string, any>} query
 */
async function sent(run, photo, query) {
  const where = path("galleries", run.gallery, "subjects", photo.subject);
  photo.file = await fitted(photo.file);
  const answer = await patiently(
    () =>
      sendPhotos(
        `${where}/faces`,
        [["images", photo.file]],
        { quality: run.gate, face: photo.face, ...query },
        run.stop.signal,
      ),
    run.stop.signal,
  );
  const liveness = verdict(answer.enrolled[0]);
  if (liveness) run.view.report(photo, liveness);
  run.tally.enrolled++;
  run.tally.people.add(photo.subject);
  const name = run.names[photo.subject];
  delete run.names[photo.subject];
  if (name) await patch(where, { name });
  return answer.enrolled[0];
}

/** @param {any} run */
function viewOf(run) {
  const { tally } = run;
  const heading = h("h2", { tabindex: "-1" }, "Enrolling …");
  const bar = h("progress", { max: String(tally.all), value: 0, "aria-label": "Photos done" });
  const told = h("p", { role: "status" });
  const failed = problemPlace();
  const halt = h("button", { type: "button", onclick: () => run.stop.abort() }, "Stop");
  const on = h("button.primary", { type: "button", hidden: true, onclick: () => goOn(run) }, "Go on");
  const doubts = h("ul.refusals", { "aria-label": "Faces that resemble enrolled ones" });
  const rows = h("ul.refusals", { "aria-label": "Refused photos" });
  const more = h("p.small", {});
  const element = h(
    "div.card",
    {},
    h("div.row.apart", {}, heading, halt, on),
    bar,
    told,
    failed.element,
    doubts,
    rows,
    more,
  );
  const update = () => {
    bar.value = tally.done;
    if (run.ended) {
      put(
        told,
        `${count(tally.enrolled, "photo")} of ${count(tally.people.size, "person", "people")} enrolled, ` +
          `${whole(tally.refused)} refused.`,
      );
      if (!run.subject && tally.people.size)
        told.append(" ", h("a", { href: link("galleries", run.gallery), onclick: reopen }, `See ${run.gallery}`));
    } else put(told, soFar(tally));
  };
  update();
  return {
    element,
    heading,
    update,
    fail: (/** @type {any} */ error) => failed.show(error),
    report: (/** @type {any} */ photo, /** @type {any} */ liveness) => {
      if (rows.childElementCount < REFUSED_SHOWN)
        rows.append(h("li", {}, h("div", {}, h("h3", {}, photo.name), liveness)));
    },
    doubt: (/** @type {any} */ photo, /** @type {any} */ found) => doubts.append(doubtful(run, photo, found)),
    refuse: (/** @type {any} */ photo, /** @type {any} */ error) => {
      if (rows.childElementCount < REFUSED_SHOWN) rows.append(refusal(run, photo, error));
      else put(more, `${count(tally.refused - REFUSED_SHOWN, "more refusal")}, not shown.`);
    },
    begin: () => {
      halt.hidden = false;
      on.hidden = true;
      failed.clear();
      put(heading, "Enrolling …");
    },
    finish: () => {
      const stopped = run.stop.signal.aborted && run.queue.length > 0;
      halt.hidden = true;
      on.hidden = !stopped;
      put(heading, stopped ? "Stopped" : "Done");
      update();
    },
  };
}

/**
 * @param {any} run
 * @param {Page.Photo} photo
 */
const pictureOf = (run, photo) => {
  run.urls.push(URL.createObjectURL(photo.file));
  return run.urls.at(-1);
};

/**
 * Shows an enrolled face that resembles another: both pictures, and what can be done.
 * @param {any} run
 * @param {Page.Photo} photo
 * @param {any} found
 */
function doubtful(run, photo, found) {
  const body = h("li", {});
  const undone = () => {
    run.tally.enrolled--;
    run.view.update();
  };
  const acts = choices(body, photo.name, afterwards(run.gallery, photo.subject, found, undone));
  put(
    body,
    sides(run.gallery, pictureOf(run, photo), photo, finding(found)),
    h("div.stack", {}, h("h3", {}, photo.name), h("p", {}, said(found, photo.subject)), acts),
  );
  return body;
}

/**
 * Shows a refused photo, the reason, and buttons that send it again.
 * @param {any} run
 * @param {Page.Photo} photo
 * @param {any} error
 */
function refusal(run, photo, error) {
  const url = pictureOf(run, photo);
  const body = h("div", { "aria-live": "polite" });
  const say = (/** @type {any} */ found, /** @type {any} */ query) =>
    put(body, h("h3", {}, photo.name), why(found, photo), remedies(photo, found, query, again));
  const again = async (/** @type {any} */ query, subject = photo.subject) => {
    photo.subject = subject;
    try {
      await sent({ ...run, stop: new AbortController() }, photo, query);
    } catch (found) {
      say(found, query);
      return;
    }
    run.tally.refused--;
    run.view.update();
    put(body, h("h3", {}, photo.name), h("p", {}, h("span.pill.known", {}, "enrolled"), ` as ${title(run, photo)}`));
  };
  say(error, {});
  const other = finding(error.details?.rejected?.[0]);
  return h("li", {}, other ? sides(run.gallery, url, photo, other) : thumbnail(url, photo), body);
}

/**
 * Return the name of the person that the photo enrolls if they are new, else their id.
 * @param {any} run
 * @param {Page.Photo} photo
 */
const title = (run, photo) => run.titles[photo.subject] ?? photo.subject;

/**
 * @param {any} error
 * @param {Page.Photo} photo
 */
function why(error, photo) {
  const found = error.details?.rejected?.[0];
  if (finding(found)) return h("p", {}, said(found, photo.subject));
  if (error.code === "nothing_enrolled" || !("code" in error)) return problem(error);
  return h("p", {}, explain(error), ABOUT[error.code] === "photo" && [" ", adviceLink("What to try")]);
}
