/** The view of what is probably wrong in a gallery: one finding after the other, decided by mouse or single keys. */

import { get, path, post, remove } from "../api.js";
import { facePicture } from "../crops.js";
import { confirm, h, put, select, toast } from "../dom.js";
import { backTo, facts, head, isOpen, later, progress } from "../parts.js";
import { busy, problemPlace, showing } from "../problem.js";
import { link } from "../router.js";
import * as session from "../session.js";
import { count, nameOf, percent, score, when, whole } from "../words.js";

const PAGE = 100;
const EVERY_MS = 1000;
/** @type {Record<string, any>} */
const KINDS = {
  same_person: "May be one person",
  two_people: "May be two people",
  misplaced_face: "Looks like somebody else",
  corrected_face: "Looks like a recorded wrong answer",
  outlier: "Looks like none of its own",
  poor_face: "Poor, and easily confused",
  no_good_face: "No good face",
};
/** @type {Record<string, any>} */
const DONE = {
  merge: "Merge",
  part: "Part them",
  move: "Move the face",
  delete: "Delete the face",
  enroll: "Enroll a better photo",
};
/** @type {Record<string, any>} */
const KEYS = { merge: "m", part: "t", move: "v", delete: "d", right: "r", next: "n", previous: "p" };
/** @type {Record<string, any>} */
const ARROWS = { ArrowRight: KEYS.next, ArrowLeft: KEYS.previous };

/**
 * `#/galleries/ID/review`.
 * @param {string} gallery
 */
export function review(gallery) {
  /** @type {any} */
  const state = {
    gallery,
    where: path("galleries", gallery, "review"),
    place: problemPlace(),
    kind: "",
    findings: [],
    at: 0,
    cursor: null,
    working: false,
  };
  state.about = h("div.stack", {});
  state.body = h("div.stack", {});
  state.start = h("button.primary", { type: "button", onclick: () => begin(state) }, "Review the gallery");
  const element = h(
    "div.review",
    {},
    backTo(gallery),
    head(
      "Review",
      "What is probably wrong in this gallery: people who are there twice, faces of somebody else, poor faces.",
      session.may("admin") && state.start,
    ),
    state.place.element,
    state.about,
    state.body,
  );
  state.next = later(element);
  const typed = (/** @type {any} */ event) => key(state, event);
  document.addEventListener("keydown", typed);
  const leave = () => {
    state.next.clear();
    document.removeEventListener("keydown", typed);
  };
  return { element, ready: load(state), leave };
}

/** @param {any} state */
async function begin(state) {
  await busy(state.start, () => showing(state.place, () => post(state.where)));
  await load(state);
}

/**
 * Reads the first page of findings, and reads it again while a job runs.
 * @param {any} state
 */
async function load(state) {
  state.next.clear();
  const answer = await showing(state.place, async () => {
    try {
      return await get(state.where, { limit: PAGE, kind: state.kind });
    } catch (error) {
      if (error.code !== "review_not_found") throw error;
      return { job: null, summary: null, findings: [], next_cursor: null };
    }
  });
  if (!answer) return;
  Object.assign(state, { summary: answer.summary, findings: answer.findings, cursor: answer.next_cursor });
  while (state.cursor && state.at >= state.findings.length && (await more(state)));
  state.at = Math.min(state.at, Math.max(0, state.findings.length - 1));
  showAbout(state, answer.job);
  show(state);
  if (isOpen(answer.job)) state.next.set(() => follow(state, answer.job.id), EVERY_MS);
}

/**
 * Shows the job's progress, and its findings once it has ended.
 * @param {any} state
 * @param {string} id
 */
async function follow(state, id) {
  const job = await showing(state.place, () => get(path("jobs", id)));
  if (!job) return;
  showAbout(state, job);
  if (isOpen(job)) state.next.set(() => follow(state, id), EVERY_MS);
  else await load(state);
}

/**
 * @param {any} state
 * @param {any} job
 */
function showAbout(state, job) {
  const { summary } = state;
  state.start.disabled = isOpen(job);
  const far =
    isOpen(job) &&
    h(
      "div",
      { role: "status" },
      h("p.small", {}, job.total ? `Reviewing: ${whole(job.done)} of ${count(job.total, "face")}` : "Reviewing …"),
      progress("Progress of the review", job),
    );
  const failed = job?.state === "failed" && h("p.problem", {}, job.error.message);
  put(state.about, far, failed, summary && last(state));
}

/** @param {any} state */
function last(state) {
  const { summary } = state;
  const all = Object.values(summary.counts).reduce((sum, number) => sum + number, 0);
  const kinds = [
    ["", `Everything (${all})`],
    ...Object.entries(KINDS).map(([kind, words]) => [kind, `${words} (${summary.counts[kind]})`]),
  ];
  const chosen = (/** @type {any} */ kind) => {
    Object.assign(state, { kind, at: 0 });
    void load(state);
  };
  return h(
    "section.card",
    { "aria-label": "The last review" },
    facts([
      [
        "Reviewed",
        `${count(summary.subjects, "person", "people")}, ${count(summary.faces, "face")}, ${when(summary.finished_at)}`,
      ],
      [
        "Own faces missed",
        `${rate(summary.fnmr)}${summary.fnmr ? ` at 1 in ${whole(Math.round(1 / summary.fmr))} false matches` : ""}`,
      ],
      ["Strangers taken for somebody", `${rate(summary.fpir)}; ${percent(summary.fpir_expected)} expected`],
    ]),
    h("label.choice", {}, h("span", {}, "Show"), select(kinds, state.kind, chosen, {})),
  );
}

/** @param {Api.ErrorRate | null | undefined} measured */
const rate = (measured) =>
  measured
    ? `${percent(measured.value)} (${percent(measured.low)} to ${percent(measured.high)})`
    : "too few people to say";

/** @param {any} state */
function show(state) {
  const finding = state.findings[state.at];
  if (!finding) {
    const words = state.summary ? "Nothing is left to look at." : "This gallery was never reviewed.";
    put(state.body, h("p.waiting", {}, words));
    return;
  }
  const total = state.kind
    ? state.summary.counts[state.kind]
    : Object.values(state.summary.counts).reduce((sum, number) => sum + number, 0);
  put(
    state.body,
    h("p.small", { role: "status" }, `${whole(state.at + 1)} of ${whole(Math.max(total, state.findings.length))}`),
    h(
      "section.card.finding",
      { "aria-label": "Finding" },
      h("h2", {}, KINDS[finding.kind]),
      h(
        "div.sides",
        {},
        side(state, finding.face, finding.kind === "same_person" ? "One" : "The face"),
        finding.other &&
          side(state, finding.other, finding.other.subject === finding.face.subject ? "Its nearest" : "The other"),
      ),
      h("p", {}, because(finding)),
      buttons(state, finding),
    ),
  );
}

/**
 * @param {any} state
 * @param {Api.FindingFace} face
 * @param {string} words
 */
function side(state, face, words) {
  const name = nameOf(face);
  return h(
    "div.side",
    {},
    facePicture(state.gallery, face.subject, face, `${words}: ${name}`),
    h("p", {}, h("a", { href: link("galleries", state.gallery, "people", face.subject) }, name)),
    h(
      "p.small",
      {},
      `${face.name ? `${face.subject}, ` : ""}${count(face.faces, "face")}, quality ${Math.round(face.quality)}`,
    ),
  );
}

/** @param {any} finding */
function because({ kind, evidence }) {
  const { score: both, own_score: ownScore, matching, fmr } = evidence;
  const rare = fmr ? `, which ${percent(fmr)} of strangers reach` : "";
  const known = (/** @type {any} */ value) => (value === null ? "less than any operating point" : score(value));
  if (kind === "same_person")
    return `The two faces score ${known(both)}${rare}; ${percent(matching)} of the faces or more match the other side.`;
  if (kind === "outlier") return `The face scores ${known(ownScore)} at best with this person's other faces.`;
  if (kind === "corrected_face")
    return (
      `The face scores ${known(both)} with a photo that was recorded as not this person, and ` +
      `${known(ownScore)} at best with this person's other faces.`
    );
  if (kind === "no_good_face") return "No enrolled face of this person is good enough to be recognised reliably.";
  return `The face scores ${known(both)} with the other person${rare}, and ${known(ownScore)} at best with its own.`;
}

/**
 * @param {any} state
 * @param {Api.Finding} finding
 */
function buttons(state, finding) {
  const may = session.may("enroll");
  const acts = may ? finding.actions.map((action) => act(state, finding, action)) : [];
  return h(
    "div.row.apart",
    {},
    h("div.row", {}, acts, may && button("This is right", KEYS.right, () => dismiss(state, finding))),
    h(
      "div.row",
      {},
      button("Previous", KEYS.previous, () => step(state, -1), state.at === 0),
      button("Next", KEYS.next, () => step(state, 1), state.at + 1 >= state.findings.length && !state.cursor),
    ),
  );
}

/**
 * @param {any} state
 * @param {Api.Finding} finding
 * @param {any} action
 */
function act(state, finding, action) {
  if (action.do === "enroll")
    return h("a.button", { href: link("galleries", state.gallery, "people", action.subject) }, DONE.enroll);
  if (action.do === "part")
    return button(`${DONE.part}: ${count(action.faces.length, "face")} to ${action.to}`, KEYS.part, () =>
      carryOut(state, action),
    );
  const to = action.to && (action.to === finding.face.subject ? finding.face : finding.other);
  const words = to ? `${DONE[action.do]} ${action.do === "merge" ? "into" : "to"} ${nameOf(to)}` : DONE[action.do];
  return button(words, KEYS[action.do], () => carryOut(state, action));
}

/**
 * @param {string} words
 * @param {string} letter
 * @param {() => unknown} onclick
 * @param {any} [disabled]
 */
const button = (words, letter, onclick, disabled = false) =>
  h(
    "button",
    { type: "button", "aria-keyshortcuts": letter, "data-key": letter, disabled, onclick },
    words,
    " ",
    h("kbd", { "aria-hidden": "true" }, letter),
  );

/**
 * Clicks the button that belongs to a key, unless the focus is in a field or a dialog is open.
 * @param {any} state
 * @param {KeyboardEvent} event
 */
function key(state, event) {
  if (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    /** @type {Element | null} */ (event.target)?.closest?.("input, textarea, select") ||
    document.querySelector("dialog[open]")
  )
    return;
  const letter = ARROWS[event.key] ?? event.key.toLowerCase();
  const found = [...state.body.querySelectorAll("[data-key]")].find(
    (button) => button.dataset.key === letter && !button.disabled,
  );
  if (!found) return;
  event.preventDefault();
  found.click();
}

/**
 * Reads the next page.
 * @param {any} state
 */
async function more(state) {
  const page = await showing(state.place, () =>
    get(state.where, { limit: PAGE, kind: state.kind, cursor: state.cursor }),
  );
  if (!page) return false;
  state.findings.push(...page.findings);
  state.cursor = page.next_cursor;
  return true;
}

/**
 * @param {any} state
 * @param {number} by
 */
async function step(state, by) {
  const at = state.at + by;
  if (at >= state.findings.length && state.cursor && !(await more(state))) return;
  state.at = Math.max(0, Math.min(at, state.findings.length - 1));
  show(state);
}

/** @type {Record<string, any>} */
/** @type {Record<string, string>} */
const SAID = { merge: "Merged.", part: "Parted.", move: "Moved.", delete: "Deleted." };

/** @type {Record<string, (action: any) => any>} */
const SURE = {
  merge: (/** @type {any} */ action) => ({
    title: `Merge ${action.subject} into ${action.to}?`,
    text: `All faces of ${action.subject} become ${action.to}'s, and ${action.subject} is deleted.`,
    action: "Merge",
  }),
  delete: (/** @type {any} */ action) => ({
    title: "Delete this face?",
    text: `The face, its crop and its vector go. ${action.subject} stays.`,
    action: "Delete the face",
  }),
};

/**
 * @param {any} state
 * @param {any} action
 */
async function carryOut(state, action) {
  if (SURE[action.do] && !(await confirm(SURE[action.do](action)))) return;
  const subject = path("galleries", state.gallery, "subjects", action.subject);
  const face = action.face_id && `${subject}/faces/${encodeURIComponent(action.face_id)}`;
  /** @type {Record<string, () => Promise<unknown>>} */
  const works = {
    merge: () => post(`${subject}/merge`, { into: action.to }),
    part: () => post(`${subject}/faces/move`, { subject: action.to, faces: action.faces, create: true }),
    move: () => post(`${face}/move`, { subject: action.to }),
    delete: () => remove(face),
  };
  await after(state, works[action.do], SAID[action.do]);
}

/**
 * @param {any} state
 * @param {Api.Finding} finding
 */
async function dismiss(state, finding) {
  await after(state, () => post(`${state.where}/${finding.id}/dismiss`), "It is not asked again.");
}

/**
 * Does `work`, unless other work is still running, and shows what is left.
 * @param {any} state
 * @param {() => Promise<unknown>} work
 * @param {string} words
 */
async function after(state, work, words) {
  if (state.working) return;
  state.working = true;
  const done = await showing(state.place, async () => {
    await work();
    return true;
  });
  state.working = false;
  if (!done) return;
  toast(words);
  await load(state);
}
