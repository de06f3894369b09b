/** The overview: first steps, the state of the server, and help. */

import { call, get, path } from "../api.js";
import { everyGallery, preferred } from "../choosing.js";
import { h, whenDrawn } from "../dom.js";
import { icon } from "../icons.js";
import { adviceLink, facts, head } from "../parts.js";
import { filling, problemPlace } from "../problem.js";
import { link } from "../router.js";
import * as session from "../session.js";
import { count, form } from "../words.js";
import { newGallery } from "./newgallery.js";

/** @type {Record<string, any>} */
const STATES = {
  ok: ["ready", "known"],
  starting: ["starting", "uncertain"],
  draining: ["stopping", "uncertain"],
  index_unavailable: ["search unavailable", "bad"],
  audit_unavailable: ["can't write the audit log's copy (LIKENESS_AUDIT_SINK).", "bad"],
  storage_unavailable: ["can't write: is the disk full?", "bad"],
};
const WORDS = [
  ["Gallery", "a set of people who can be recognised, such as staff"],
  ["Enroll", "to add a photo's face to a person of a gallery"],
  ["Identify", "who of a gallery is in this photo?"],
  ["Compare", "do two photos show the same person? No gallery is needed"],
  ["Score", "how alike two faces are, from −1 to 1"],
  ["Strictness", "how often strangers may be taken for somebody; it sets the score that is enough"],
];

export function home() {
  const place = problemPlace();
  const body = h("div.stack.home", {});
  const element = h(
    "div",
    {},
    head("Overview", "Recognise people in photos, on this server: no photo leaves it."),
    place.element,
    body,
  );
  return { element, ready: filling(place, body, contents) };
}

async function contents() {
  const galleries = session.may("read") ? await everyGallery() : null;
  return [steps(galleries), h("div.halves", {}, health(), help())];
}

/** @param {any} galleries */
function steps(galleries) {
  const people =
    galleries?.reduce((/** @type {any} */ sum, /** @type {any} */ gallery) => sum + gallery.subjects, 0) ?? 0;
  const all = [
    galleries && first(galleries),
    galleries && second(galleries, people),
    third(!galleries || people > 0),
  ].filter(Boolean);
  return h(
    "ol.steps",
    {},
    all.map(([title, done, words, acts], index) => step(index + 1, title, done, words, acts.filter(Boolean))),
  );
}

/**
 * @param {number} number
 * @param {string} title
 * @param {boolean} done
 * @param {string} words
 * @param {any} acts
 */
function step(number, title, done, words, acts) {
  return h(
    "li.card",
    {},
    h("h2", {}, h("span.place", { "aria-hidden": "true" }, done ? "✓" : String(number)), title),
    h("p", {}, words),
    acts.length ? h("div.row", {}, acts) : null,
  );
}

/** @param {any} galleries */
function first(galleries) {
  const make =
    session.mayEverything() &&
    h(
      galleries.length ? "button" : "button.primary",
      { type: "button", onclick: () => newGallery() },
      icon("plus"),
      "New gallery",
    );
  const open = galleries.length ? h("a.button", { href: link("galleries") }, icon("galleries"), "Open") : null;
  const none = session.mayEverything()
    ? "A set of people who can be recognised."
    : "There is none yet. Somebody with an unrestricted admin key can make one.";
  return [
    "Make a gallery",
    galleries.length > 0,
    galleries.length
      ? `There ${form(galleries.length, "is", "are")} ${count(galleries.length, "gallery", "galleries")}.`
      : none,
    [make, open],
  ];
}

/**
 * @param {Api.Gallery[]} galleries
 * @param {any} people
 */
function second(galleries, people) {
  const least = [...galleries].sort((a, b) => a.subjects - b.subjects)[0];
  const meant = galleries.find(({ id }) => id === preferred()) ?? least;
  const add =
    meant &&
    session.may("enroll") &&
    h(
      people ? "a.button" : "a.button.primary",
      { href: link("galleries", meant.id, "enroll") },
      icon("plus"),
      `Enroll into ${meant.id}`,
    );
  return [
    "Add people",
    people > 0,
    people
      ? `${count(people, "person", "people")} can be recognised.`
      : "Photos, or a folder that has one folder for each person.",
    [add],
  ];
}

/** @param {boolean} ready */
function third(ready) {
  if (!session.may("recognize")) return null;
  const kind = ready ? "a.button.primary" : "a.button";
  return [
    "Try it",
    false,
    "Who is in this photo? Or do two photos show one person?",
    [
      h(kind, { href: link("identify") }, icon("identify"), "Identify"),
      h("a.button", { href: link("compare") }, icon("compare"), "Compare"),
    ],
  ];
}

function health() {
  const place = problemPlace();
  const body = h("div", {}, h("p.waiting", {}, "Loading …"));
  whenDrawn(() => filling(place, body, server)); // the steps are drawn first
  return h("section.card", { "aria-label": "Server" }, h("h2", {}, "Server"), place.element, body);
}

async function server() {
  const ready = call("GET", "/readyz").catch((error) => (error.status === 503 ? error.details : Promise.reject(error)));
  const [state, version, models] = await Promise.all([ready, get("/version"), get(path("models"))]);
  const [word, kind] = STATES[state.status] ?? [state.status ?? "not ready", "uncertain"];
  const running = models.models
    .filter((/** @type {any} */ model) => model.loaded && model.task === "embed")
    .map((/** @type {any} */ model) => model.title);
  const key = session.signedIn();
  return facts([
    ["State", h(`span.pill.${kind}`, {}, word)],
    ["Version", version.version],
    ["Model", running.join(", ") || "none is loaded"],
    ["Your key", `${key.id}: ${key.scopes.join(", ")}`],
  ]);
}

function help() {
  return h(
    "section.card",
    { "aria-label": "Help" },
    h("h2", {}, "Help"),
    facts(WORDS),
    h(
      "p",
      {},
      h("a", { href: "/docs" }, "The REST interface"),
      ", to try out each call. It asks for your key as the password.",
    ),
    h("p", {}, adviceLink("Good photos"), ": which to enroll, and what to try where an answer is wrong."),
    h(
      "p",
      {},
      "In a terminal: ",
      h("code", {}, "likeness --help"),
      "; ",
      h("code", {}, "likeness doctor"),
      " finds what is wrong.",
    ),
  );
}
