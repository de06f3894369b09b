/** Enrolling many photos: dropped or chosen, told apart by folder or file name, each refusal beside its photo. */

import { path, patiently, send } from "../api.js";
import { field, h, newId, put, select } from "../dom.js";
import { icon } from "../icons.js";
import { verdict } from "../liveness.js";
import { link } from "../router.js";
import * as session from "../session.js";
import { galleryControl } from "../choosing.js";
import { problem, problemPlace, showing } from "../problem.js";
import { count, explain } from "../words.js";
import { importPanel } from "./importing.js";

const AT_ONCE = 3;
const REFUSED_SHOWN = 200;
const IMAGE = /\.(jpe?g|png|webp|bmp|tiff?|gif)$/i;
const NUMBER = /[ _.-]*\(?\d+\)?$/;
const GIVE_UP = new Set(["missing_key", "wrong_key", "expired_key", "revoked_key", "missing_scope", "gallery_not_found", "package_mismatch", "unreachable"]);

const MODES = [
  ["folder", "Each folder is one person, and its name is their id"],
  ["file", "The file names say who: anna_1.jpg and anna_2.jpg are anna"],
  ["one", "All of them show one person"],
];
const GATES = [["high", "high"], ["medium", "medium"], ["low", "low"], ["none", "any"]];

/** The view of a gallery's `enroll`. */
export function enrolling(gallery) {
  const element = h(
    "div",
    {},
    h("a.back", { href: link("galleries", gallery) }, icon("back"), gallery),
    h("header.head", {}, h("div", {}, h("h1", {}, "Enroll photos"), h("p.lead", {}, `Into ${gallery}. Every photo is checked; one that would be hard to recognise by is refused, and says why.`))),
  );
  const panel = enrollPanel({ gallery });
  element.append(panel.element);
  if (session.may("admin")) element.append(importPanel(gallery));
  return { element, leave: panel.leave };
}

/** For keys that may enroll and not read: the gallery is typed, or one of their own. */
export function enrollAnywhere() {
  const place = problemPlace();
  const home = h("div", {});
  let panel = null;
  const open = (gallery) => {
    panel?.leave();
    panel = gallery ? enrollPanel({ gallery }) : null;
    put(home, panel?.element);
  };
  const chooser = h("div.strictness", {});
  const element = h("div", {}, h("header.head", {}, h("div", {}, h("h1", {}, "Enroll photos")), chooser), place.element, home);
  const ready = showing(place, async () => put(chooser, field("Gallery", await galleryControl(open))));
  return { element, ready, leave: () => panel?.leave() };
}

/** A place to drop photos, and what becomes of them; `subject` where it is known who they show. */
export function enrollPanel({ gallery, subject = null, onenrolled = () => {} }) {
  const state = { gallery, subject, onenrolled, photos: [], mode: "file", who: "", gate: "medium", stop: null, urls: [] };
  state.plan = h("div.plan", {});
  state.results = h("div.results", {});
  const [files, folder] = [false, true].map((whole) => picker(whole, (found) => chosen(state, found)));
  const zone = h(
    "div.zone",
    {
      ondragover: (event) => (event.preventDefault(), zone.classList.add("over")),
      ondragleave: () => zone.classList.remove("over"),
      ondrop: async (event) => {
        event.preventDefault();
        zone.classList.remove("over");
        chosen(state, await dropped(event.dataTransfer));
      },
    },
    h("p", {}, subject ? "Drop photos here" : "Drop photos or folders here"),
    h("div.row", {}, files, subject ? null : folder),
  );
  const element = h("section.enroll", { "aria-label": "Photos to enroll" }, zone, state.plan, state.results);
  const leave = () => {
    state.stop?.abort();
    state.urls.forEach((url) => URL.revokeObjectURL(url));
  };
  return { element, leave };
}

function picker(whole, onchosen) {
  const input = h("input.hidden", { type: "file", multiple: true, id: newId("photos"), webkitdirectory: whole, accept: whole ? null : "image/*" });
  input.addEventListener("change", () => {
    onchosen([...input.files].map((file) => ({ file, name: file.webkitRelativePath || file.name })));
    input.value = "";
  });
  return [input, h("label.button", { for: input.id }, icon(whole ? "galleries" : "photo"), whole ? "Choose a folder" : "Choose photos")];
}

/** Every file of what was dropped, folders with all that is in them. */
async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => ({ file, name: file.name }));
  const found = [];
  for (const entry of entries) await walk(entry, "", found);
  return found;
}

async function walk(entry, prefix, found) {
  const name = prefix + entry.name;
  if (entry.isFile) {
    found.push({ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), name });
    return;
  }
  const reader = entry.createReader();
  for (let batch; (batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject))).length; )
    for (const inner of batch) await walk(inner, `${name}/`, found);
}

function chosen(state, found) {
  if (state.stop || !found.length) return;
  state.photos = found.filter(({ file, name }) => !name.split("/").at(-1).startsWith(".") && (file.type.startsWith("image/") || IMAGE.test(name)));
  state.left = found.length - state.photos.length;
  state.mode = state.subject ? "one" : state.photos.some(({ name }) => name.includes("/")) ? "folder" : "file";
  put(state.results);
  showPlan(state);
}

/** Whose photo it is, as the mode has it. */
function subjectOf(state, name) {
  if (state.subject) return state.subject;
  if (state.mode === "one") return state.who.trim();
  const parts = name.split("/");
  if (state.mode === "folder" && parts.length > 1) return parts.at(-2);
  const base = parts.at(-1).replace(/\.[^.]*$/, "");
  return base.replace(NUMBER, "") || base;
}

function showPlan(state) {
  const go = h("button.primary", { type: "submit" }, `Enroll ${count(state.photos.length, "photo")}`);
  const summary = h("p.small", { role: "status" });
  const tally = () => {
    const people = new Set(state.photos.map(({ name }) => subjectOf(state, name)).filter(Boolean));
    const left = state.left ? ` ${count(state.left, "other file")} left out.` : "";
    put(summary, state.photos.length ? `${count(state.photos.length, "photo")} of ${count(people.size, "person", "people")}.${left}` : `There is no photo among these files.${left}`);
    go.disabled = !people.size;
  };
  const who = h("input", { type: "text", maxlength: 255, autocomplete: "off", value: state.who, oninput: () => ((state.who = who.value), tally()) });
  const whose = h("div", {}, field("Their id", who));
  whose.hidden = state.mode !== "one";
  const choose = (mode) => {
    state.mode = mode;
    whose.hidden = mode !== "one";
    tally();
  };
  const gate = field("Least quality", select(GATES, state.gate, (value) => (state.gate = value)));
  const submit = (event) => {
    event.preventDefault();
    void run(state);
  };
  put(state.plan, h("form.card", { onsubmit: submit }, summary, state.subject ? null : modes(state, choose), state.subject ? null : whose, h("div.row.apart", {}, gate, go)));
  tally();
}

function modes(state, choose) {
  const name = newId("mode");
  return h(
    "fieldset",
    {},
    h("legend", {}, "Who is in them?"),
    MODES.map(([value, words]) => h("label.choice", {}, h("input", { type: "radio", name, value, checked: value === state.mode, onchange: () => choose(value) }), h("span", {}, words))),
  );
}

async function run(state) {
  const stop = (state.stop = new AbortController());
  const queue = state.photos.map(({ file, name }) => ({ file, name, subject: subjectOf(state, name) }));
  const tally = { done: 0, all: queue.length, enrolled: 0, refused: 0, people: new Set() };
  const view = resultView(state, tally, stop);
  put(state.plan);
  put(state.results, view.element);
  view.heading.focus();
  const worker = async () => {
    for (let photo = queue.shift(); photo && !stop.signal.aborted; photo = queue.shift()) await enroll(state, photo, tally, view, stop);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  state.stop = null;
  view.finish(stop.signal.aborted);
  state.onenrolled(tally);
}

async function enroll(state, photo, tally, view, stop) {
  const where = path("galleries", state.gallery, "subjects", photo.subject, "faces");
  try {
    const answer = await patiently(() => send(where, [["images", photo.file]], { quality: state.gate }, stop.signal), stop.signal);
    const liveness = verdict(answer.enrolled[0]);
    if (liveness) view.report(photo, liveness);
    tally.enrolled++;
    tally.people.add(photo.subject);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (GIVE_UP.has(error.code)) {
      stop.abort();
      view.fail(error);
      return;
    }
    tally.refused++;
    view.refuse(photo, error);
  }
  tally.done++;
  view.update();
}

function resultView(state, tally, stop) {
  const heading = h("h2", { tabindex: "-1" }, "Enrolling …");
  const bar = h("progress", { max: String(tally.all), value: 0, "aria-label": "Photos done" });
  const told = h("p", { role: "status" });
  const failed = problemPlace();
  const halt = h("button", { type: "button", onclick: () => stop.abort() }, "Stop");
  const rows = h("ul.refusals", { "aria-label": "Refused photos" });
  const more = h("p.small", {});
  const element = h("div.card", {}, h("div.row.apart", {}, heading, halt), bar, told, failed.element, rows, more);
  const update = () => {
    bar.value = tally.done;
    put(told, `${tally.done.toLocaleString("en")} of ${tally.all.toLocaleString("en")}: ${tally.enrolled.toLocaleString("en")} enrolled, ${tally.refused.toLocaleString("en")} refused`);
  };
  update();
  return {
    element,
    heading,
    update,
    fail: (error) => failed.show(error),
    report: (photo, liveness) => {
      if (rows.childElementCount < REFUSED_SHOWN) rows.append(h("li", {}, h("div", {}, h("h3", {}, photo.name), liveness)));
    },
    refuse: (photo, error) => {
      if (rows.childElementCount < REFUSED_SHOWN) rows.append(refusal(state, photo, error));
      else put(more, `${count(tally.refused - REFUSED_SHOWN, "more refusal")}, not shown.`);
    },
    finish: (stopped) => {
      halt.remove();
      put(heading, stopped ? "Stopped" : "Done");
      put(told, `${count(tally.enrolled, "photo")} of ${count(tally.people.size, "person", "people")} enrolled, ${tally.refused.toLocaleString("en")} refused.`);
      if (!state.subject && tally.people.size) told.append(" ", h("a", { href: link("galleries", state.gallery) }, `See ${state.gallery}`));
    },
  };
}

function refusal(state, photo, error) {
  const url = URL.createObjectURL(photo.file);
  state.urls.push(url);
  const said = error.code === "nothing_enrolled" || !("code" in error) ? problem(error) : h("p", {}, explain(error));
  return h("li", {}, h("img", { src: url, alt: "", loading: "lazy" }), h("div", {}, h("h3", {}, photo.name), said));
}
