/** Parts that several views share: a heading, facts, a job's progress, a dialog with a form. */

import { field, h, openDialog, toast } from "./dom.js";
import { icon } from "./icons.js";
import { busy, problemPlace, showing } from "./problem.js";
import { link, linkBack } from "./router.js";

/**
 * A view's title and purpose; `beside` stands at the other end of the line.
 * @param {string} title
 * @param {Page.Child} lead
 * @param {...Page.Child} beside
 */
export const head = (title, lead, ...beside) =>
  h("header.head", {}, h("div", {}, h("h1", {}, title), lead && h("p.lead", {}, lead)), beside);

/**
 * A link back to a gallery.
 * @param {string} gallery
 */
export const backTo = (gallery) =>
  h(
    "a.back",
    {
      href: link("galleries", gallery),
      onclick: (/** @type {any} */ event) => linkBack(event, "galleries", gallery),
    },
    icon("back"),
    gallery,
  );

/** A link to the advice about photos. */
export const adviceLink = (words = "Which photos are good?") => h("a", { href: link("advice") }, words);

/**
 * A list of `[word, value]` pairs, without those that have no value.
 * @param {Page.Fact[]} pairs
 */
export const facts = (pairs) =>
  h(
    "dl.facts",
    {},
    pairs.filter(([, value]) => value).map(([word, value]) => h("div", {}, h("dt", {}, word), h("dd", {}, value))),
  );

/**
 * A notice where there is nothing yet: what is missing, and what to do.
 * @param {Page.Child} title
 * @param {...Page.Child} contents
 */
export const nothing = (title, ...contents) => h("div.nothing", {}, h("h2", {}, title), contents);

/**
 * Whether a job has not ended.
 * @param {Api.Job | null | undefined} job
 */
export const isOpen = (job) => job?.state === "queued" || job?.state === "running";

/**
 * A bar that shows how far a job is.
 * @param {string} label
 * @param {any} job
 */
export const progress = (label, job) =>
  h("progress", { "aria-label": label, ...(job.total && { max: String(job.total), value: job.done }) });

/**
 * The last line of a dialog: its buttons, and one that leaves it.
 * @param {() => void} close
 * @param {string} words
 * @param {...Node} buttons
 */
export const orLeave = (close, words, ...buttons) =>
  h("div.row.end", {}, h("button", { type: "button", onclick: () => close() }, words), buttons);

/**
 * Opens a dialog with `fields`. When the form is sent, calls `work`; if that gives something, the dialog closes, and
 * this is the answer. Null if the dialog was left.
 * @param {string} title
 * @param {Page.Child} fields
 * @param {string} action
 * @param {() => Promise<any>} work
 */
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

/**
 * Checkboxes for `[value, words]` pairs; `chosen()` gives the values of the ticked ones.
 * @param {string} legend
 * @param {[string, string][]} pairs
 * @param {{tag?: string, ticked?: string[]}} [how]
 */
export function ticks(legend, pairs, { tag = "fieldset", ticked = [] } = {}) {
  const boxes = pairs.map(([value]) => h("input", { type: "checkbox", value, checked: ticked.includes(value) }));
  const rows = pairs.map(([, words], index) => h("label.choice", {}, boxes[index], h("span", {}, words)));
  const chosen = () => boxes.filter((box) => box.checked).map((box) => /** @type {string} */ (box.value));
  return { element: h(tag, {}, h("legend", {}, legend), rows), chosen };
}

/**
 * Checkboxes for the galleries to restrict something to.
 * @param {string[]} ids
 */
export const galleryTicks = (ids) =>
  ticks(
    "Only in these galleries (all of them, if none is ticked)",
    ids.map((id) => [id, id]),
    { tag: "fieldset.few" },
  );

/**
 * A field with a text and a button to copy it.
 * @param {string} label
 * @param {string} value
 * @param {string} hint
 */
export function copied(label, value, hint) {
  const text = h("input.mono", { type: "text", readonly: true, value, onfocus: () => text.select() });
  const copy = async () => (await copyText(text)) && toast("Copied.");
  const button = h(
    "button",
    { type: "button", "aria-label": `Copy the ${label.toLowerCase()}`, onclick: copy },
    "Copy",
  );
  return h("div.row.copying", {}, field(label, text, hint), button);
}

/** @param {HTMLInputElement} input */
async function copyText(input) {
  input.select();
  try {
    await navigator.clipboard.writeText(input.value);
    return true;
  } catch {
    return false; // the text is selected, so Ctrl+C copies it
  }
}

/**
 * Shows something that can't be looked up again, such as a secret: only the dialog's own button closes it.
 * @param {string} title
 * @param {...Page.Child} contents
 */
export const showOnce = (title, ...contents) =>
  openDialog(
    title,
    (close) =>
      h(
        "div",
        {},
        contents,
        h("div.row.end", {}, h("button", { type: "button", onclick: () => close() }, "I have it")),
      ),
    { held: true },
  );

/**
 * A timer for what a view does later, such as reading again. `set(work, ms)` replaces what was set before; it does
 * nothing if `element` is not on the page, as when an answer arrives after the view was left. `clear()` cancels.
 * @param {HTMLElement} element
 */
export function later(element) {
  let timer = 0;
  const clear = () => clearTimeout(timer);
  const set = (/** @type {any} */ work, /** @type {any} */ ms) => {
    clear();
    if (element.isConnected) timer = setTimeout(work, ms);
  };
  return { set, clear };
}

/**
 * A table that scrolls by itself where it is too wide; each row begins with its heading.
 * @param {string} caption
 * @param {string[]} heads
 * @param {any[][]} rows
 */
export function table(caption, heads, rows) {
  return h(
    "div.scrolling",
    { tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption.hidden", {}, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((words) => h("th", { scope: "col" }, words)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(([first, ...rest]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, first),
            rest.map((words) => h("td", {}, words)),
          ),
        ),
      ),
    ),
  );
}
