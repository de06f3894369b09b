/** The audit log: who did what, when, to whom, and how it went. */

import { askAnew, get, path } from "../api.js";
import { field, h, put } from "../dom.js";
import { head } from "../parts.js";
import { busy, problemPlace, showing } from "../problem.js";
import { link } from "../router.js";
import { count, when } from "../words.js";

const PAGE = 100;
const FIELDS = [
  ["key", "Key"],
  ["operation", "Operation"],
  ["gallery", "Gallery"],
  ["subject", "Person"],
];
const TIMES = [
  ["since", "From"],
  ["until", "Before"],
];

/**
 * @param {unknown} _
 * @param {URLSearchParams} asked
 */
export function audit(_, asked) {
  const place = problemPlace();
  /** @type {any} */
  const state = {
    place,
    rows: h("tbody", {}),
    more: h("div.row", {}),
    shown: h("p.small", { role: "status" }),
    wanted: {},
    asking: null,
  };
  const inputs = [
    ...FIELDS.map(([name, words]) => [
      name,
      words,
      h("input", { type: "text", autocomplete: "off", spellcheck: "false", value: asked.get(name) ?? "" }),
    ]),
    ...TIMES.map(([name, words]) => [name, words, h("input", { type: "datetime-local" })]),
  ];
  const all = h("input", { type: "checkbox", checked: asked.has("all") });
  const read = () => {
    state.wanted = {
      changes: !all.checked && !inputs[1][2].value,
      ...Object.fromEntries(inputs.map(([name, , input]) => [name, value(name, input)])),
    };
    return load(state);
  };
  const button = h("button.primary", { type: "submit" }, "Show");
  const heads = ["When", "Key", "Operation", "Gallery", "Person", "What", "Outcome"];
  const element = h(
    "div",
    {},
    head("Audit log", "Who did what, when and to whom. No photo, no vector and no name is in it."),
    h(
      "form.filter",
      { onsubmit: () => busy(button, read), "aria-label": "Filter" },
      inputs.map(([, words, input]) => field(words, input)),
      h("label.choice", {}, all, h("span", {}, "Also what only reads")),
      button,
    ),
    place.element,
    state.shown,
    h(
      "div.scrolling",
      { tabindex: "0", role: "region", "aria-label": "Entries" },
      h(
        "table.audit",
        {},
        h("caption.hidden", {}, "Entries of the audit log, the newest first"),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map((words) => h("th", { scope: "col" }, words)),
          ),
        ),
        state.rows,
      ),
    ),
    state.more,
  );
  return { element, ready: read() };
}

/**
 * @param {string} name
 * @param {HTMLInputElement} input
 */
const value = (name, input) =>
  name === "since" || name === "until" ? input.value && new Date(input.value).toISOString() : input.value.trim();

/**
 * Loads the newest entries that match the filter, or those after `cursor`. Aborts a request that is not answered yet.
 * @param {any} state
 * @param {string | null} [cursor]
 */
async function load(state, cursor = null) {
  const asking = askAnew(state);
  if (!cursor) put(state.more); // the button "Older" belongs to the filter before
  await showing(state.place, async () => {
    const page = await get(path("audit"), { ...state.wanted, limit: PAGE, cursor }, { signal: asking.signal });
    if (!cursor) put(state.rows);
    state.rows.append(...page.entries.map(row));
    const number = state.rows.childElementCount;
    const { changes } = state.wanted;
    put(
      state.shown,
      number
        ? `${changes ? count(number, "change") : count(number, "entry", "entries")} shown, the newest first`
        : "No entry of the log matches.",
    );
    const older = h(
      "button",
      { type: "button", onclick: () => busy(older, () => load(state, page.next_cursor)) },
      "Older",
    );
    put(state.more, page.next_cursor && older);
  });
}

/**
 * An HTTP status as a word, and its kind.
 * @param {number | null} status
 */
function outcome(status) {
  if (status === null) return ["begun, end unknown", "uncertain"];
  if (status < 400) return ["done", "known"];
  /** @type {Record<number, string>} */
  const known = {
    401: "wrong key",
    403: "not allowed",
    404: "not found",
    409: "conflict",
    413: "too large",
    422: "refused",
    429: "too many",
    499: "caller left",
  };
  return [known[status] ?? (status < 500 ? "refused" : "failed"), "bad"];
}

/** @param {Api.AuditEntry} entry */
function row(entry) {
  const person =
    entry.subject && entry.gallery
      ? h("a", { href: link("galleries", entry.gallery, "people", entry.subject) }, entry.subject)
      : entry.subject;
  const [word, kind] = outcome(entry.status);
  return h(
    "tr",
    { title: `Request ${entry.request_id}` },
    h("td", {}, h("time", { datetime: entry.at }, when(entry.at, true))),
    h("td", {}, entry.key ?? "–"),
    h("td", {}, entry.operation),
    h("td", {}, entry.gallery ?? ""),
    h("td", {}, person ?? ""),
    h(
      "td",
      {},
      entry.target ? h("code", {}, entry.target.length > 14 ? `${entry.target.slice(0, 12)}…` : entry.target) : "",
    ),
    h("td", {}, h(`span.pill.${kind}`, { title: entry.status && `HTTP ${entry.status}` }, word)),
  );
}
