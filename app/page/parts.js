/** What several views are made of: a heading, facts, a job's progress, a dialog with a form. */

import { h, openDialog } from "./dom.js";
import { icon } from "./icons.js";
import { busy, problemPlace, showing } from "./problem.js";
import { goBack, link } from "./router.js";

/** A view's title and what it is for; `beside` stands at the other end of the line. */
export const head = (title, lead, ...beside) =>
  h("header.head", {}, h("div", {}, h("h1", {}, title), lead && h("p.lead", {}, lead)), beside);

/** The way back to a gallery. */
export const backTo = (gallery) =>
  h("a.back", { href: link("galleries", gallery), onclick: goBack }, icon("back"), gallery);

/** `[word, value]` pairs as a list; without those that have no value. */
export const facts = (pairs) =>
  h(
    "dl.facts",
    {},
    pairs.filter(([, value]) => value).map(([word, value]) => h("div", {}, h("dt", {}, word), h("dd", {}, value))),
  );

/** Whether a job has not ended. */
export const isOpen = (job) => job?.state === "queued" || job?.state === "running";

/** How far a job is. */
export const progress = (label, job) =>
  h("progress", { "aria-label": label, ...(job.total && { max: String(job.total), value: job.done }) });

/** The last line of a dialog: its buttons, and one that leaves it. */
export const orLeave = (close, words, ...buttons) =>
  h("div.row.end", {}, h("button", { type: "button", onclick: () => close() }, words), buttons);

/** Asks in a dialog for what `fields` hold; `work` is done with it, until it gives something, which is the answer.
 * Gives null where the dialog was left. */
export const request = (title, fields, action, work) =>
  openDialog(title, (close) => {
    const place = problemPlace();
    const button = h("button.primary", { type: "submit" }, action);
    const submit = async () => {
      const done = await showing(place, () => busy(button, work));
      if (done) close(done);
    };
    return h("form", { onsubmit: submit }, fields, place.element, orLeave(close, "Cancel", button));
  });

/** What a view does later, such as reading again: the newest of what was set, and nothing where its `element` is
 * gone by then, as when an answer arrives after the view was left. */
export function later(element) {
  let timer = 0;
  const clear = () => clearTimeout(timer);
  const set = (work, ms) => {
    clear();
    if (element.isConnected) timer = setTimeout(work, ms);
  };
  return { set, clear };
}
