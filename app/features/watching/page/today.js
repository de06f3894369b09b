/** The view Today: the sightings hour by hour, as they happen, and unknown people to name. */

import { get, path } from "../api.js";
import { debounce, field, h, put, select } from "../dom.js";
import { head, nothing } from "../parts.js";
import { filling, problemPlace, showing } from "../problem.js";
import { link, remember } from "../router.js";
import { PersonField } from "../suggest.js";
import { listen } from "./live.js";
import { card, clock, pathOf, whoOf } from "./sighting.js";
import { Waiting } from "./waiting.js";
import { galleryChoice, howToBegin, ofGallery } from "./watched.js";

const PAGE = 60;
const SOON_MS = 300;
const HOUR_MS = 3600 * 1000;
const FILTERS = ["subject", "camera", "decision"];
const DECISIONS = [
  ["", "Everybody"],
  ["known", "Known"],
  ["uncertain", "Uncertain"],
  ["unknown", "Unknown"],
];
/** @type {Record<string, number>} */
const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };

/**
 * `#/today`; the query may have `gallery` and the filters.
 * @param {string[]} _segments
 * @param {URLSearchParams} query
 */
export function today(_segments, query) {
  const place = problemPlace();
  const live = h("p.small", { role: "status" });
  const body = h("div.stack", {});
  const element = h("div", {}, head("Today", null, live), place.element, body);
  /** @type {Day | null} */
  let day = null;
  let left = false;
  const open = async (/** @type {string[]} */ ids, /** @type {string} */ gallery, /** @type {any} */ filter) => {
    day?.leave();
    day = new Day(gallery, filter, place, live);
    day.note();
    const choice = galleryChoice(ids, gallery, (id) => showing(place, async () => put(body, await open(ids, id, {}))));
    const shown = await day.open(choice);
    if (!left) day.follow();
    return shown;
  };
  const asked = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
  const ready = filling(place, body, () => ofGallery(query, (ids, gallery) => open(ids, gallery, asked)));
  const leave = () => {
    left = true;
    day?.leave();
  };
  return { element, ready, leave };
}

/** One gallery's sightings in this view. */
class Day {
  /**
   * @param {string} gallery
   * @param {Record<string, string>} filter
   * @param {Page.Place} place
   * @param {HTMLElement} live says whether events arrive
   */
  constructor(gallery, filter, place, live) {
    this.gallery = gallery;
    this.where = `${path("galleries", gallery)}/sightings`;
    this.filter = filter;
    this.place = place;
    this.live = live;
    /** @type {Map<string, [any, string]>} */
    this.rows = new Map();
    this.days = h("div.stack", { onkeydown: steer });
    this.more = h("div.row", {});
    this.cameras = select([["", "All"]], "", (name) => this.choose("camera", name));
    this.name(filter.camera);
    this.cameras.value = filter.camera ?? "";
    this.waiting = new Waiting(gallery, () => this.reload());
    this.leave = () => {};
  }

  /** Writes the gallery and the filters into the address. */
  note() {
    remember({ gallery: this.gallery, ...this.filter });
  }

  /** @param {Page.Child} choice */
  async open(choice) {
    await Promise.all([this.waiting.load(), this.reload()]);
    return [this.waiting.element, h("div.filter", {}, choice, this.filters()), this.days, this.more];
  }

  /**
   * @param {string} name
   * @param {string} value
   */
  choose(name, value) {
    this.filter[name] = value;
    this.note();
    return this.reload();
  }

  /**
   * Adds a camera to the choice if it is missing.
   * @param {string | undefined} name
   */
  name(name) {
    if (name && !Array.from(this.cameras.options, (option) => option.value).includes(name))
      this.cameras.append(h("option", { value: name }, name));
  }

  filters() {
    const choose = () => this.choose("subject", who.id);
    const asked = { placeholder: "Anybody", value: this.filter.subject ?? "", onchange: () => who.chosen || choose() };
    const who = new PersonField(() => this.gallery, asked, choose);
    void who.named();
    const decided = select(DECISIONS, this.filter.decision, (decision) => this.choose("decision", decision));
    return [
      h("div.field", {}, h("label", { for: who.input.id }, "Person"), who.element),
      field("Camera", this.cameras),
      field("Decision", decided),
    ];
  }

  /** @param {string | null} [cursor] */
  read(cursor) {
    return showing(this.place, () => get(this.where, { ...this.filter, limit: PAGE, cursor }));
  }

  /** Shows the newest sightings that match the filters: in place of those shown if `anew`, else beside them. */
  async reload(anew = true) {
    const page = await this.read();
    if (!page) return;
    if (anew) {
      this.rows.clear();
      put(this.days, !page.sightings.length && this.nobody());
      this.add(page);
    } else for (const sighting of page.sightings) this.show(sighting);
  }

  nobody() {
    if (!Object.values(this.filter).some(Boolean)) return howToBegin(this.gallery, "Nobody was seen yet");
    const all = `${link("today")}?${new URLSearchParams({ gallery: this.gallery })}`;
    return nothing("Nobody fits", h("a.button", { href: all }, "Show everybody"));
  }

  /** @param {Api.SightingPage} page */
  add({ sightings, next_cursor: cursor }) {
    for (const sighting of sightings) this.show(sighting);
    const earlier = async () => {
      const page = await this.read(cursor);
      if (page) this.add(page);
    };
    put(this.more, cursor && h("button", { type: "button", onclick: earlier }, "Earlier"));
  }

  /**
   * Puts a sighting below its day and hour, newest first.
   * @param {Api.Sighting} sighting
   */
  show(sighting) {
    const text = JSON.stringify(sighting);
    const [old, before] = this.rows.get(sighting.id) ?? [];
    if (text === before) return;
    const row = card(this.gallery, sighting, () => Promise.all([this.again(sighting.id), this.waiting.load()]));
    this.rows.set(sighting.id, [row, text]);
    this.name(sighting.camera);
    if (old) {
      const focused = old.contains(document.activeElement);
      old.replaceWith(row);
      if (focused) row.querySelector("button").focus({ preventScroll: true });
      return;
    }
    this.days.querySelector(".nothing")?.remove();
    const hour = new Date(sighting.first_at).setMinutes(0, 0, 0);
    const day = new Date(hour).setHours(0, 0, 0, 0);
    const hours = `${clock(hour)}–${clock(hour + HOUR_MS)}`;
    const home = within(this.days, "section.stack", day, () => h("h2", {}, dayName(day)));
    const part = within(home, "section.stack", hour, () => [h("h3", {}, hours), h("ul.seen")]);
    const items = part.querySelector("ul");
    items.insertBefore(row, [...items.children].find((item) => item.dataset.at < row.dataset.at) ?? null);
  }

  /**
   * Reads a sighting again, and shows it.
   * @param {string} id
   */
  async again(id) {
    const sighting = await get(pathOf(this.gallery, id)).catch((error) => {
      if (error.code !== "sighting_not_found") throw error;
    });
    if (sighting && FILTERS.every((name) => !this.filter[name] || this.filter[name] === sighting[name]))
      return this.show(sighting);
    const [row] = this.rows.get(id) ?? [];
    const part = row?.closest("section");
    row?.remove();
    this.rows.delete(id);
    if (part && !part.querySelector("li")) part.remove();
  }

  /** Follows the gallery's events until the view is left. */
  follow() {
    /** @type {Set<string>} */
    const due = new Set();
    let left = false;
    const look = debounce(SOON_MS, () =>
      showing(this.place, async () => {
        const ids = [...due];
        due.clear();
        if (!left) await Promise.all([...ids.map((id) => this.again(id)), this.waiting.load()]);
      }),
    );
    const onevent = (/** @type {Api.Event} */ event) => {
      due.add(event.sighting);
      look();
      if (event.event !== "left") put(this.live, `Live. ${whoOf(event)}, ${event.camera}, ${clock(event.seen_at)}`);
    };
    const end = listen(this.gallery, onevent, (live) => {
      put(this.live, live ? "Live" : "Not connected; trying again");
      if (live) void this.reload(false); // what was missed
    });
    this.leave = () => {
      left = true;
      end();
    };
  }
}

/**
 * Return the part of `home` for a day or hour; if it is missing, make it, above the earlier ones.
 * @param {any} home
 * @param {string} tag
 * @param {number} at
 * @param {() => Page.Child} contents
 */
function within(home, tag, at, contents) {
  const parts = [...home.children].filter((part) => part.dataset.at);
  const next = parts.find((part) => Number(part.dataset.at) <= at);
  if (next && Number(next.dataset.at) === at) return next;
  const made = h(tag, { "data-at": String(at) }, contents());
  home.insertBefore(made, next ?? null);
  return made;
}

/** @param {number} day */
function dayName(day) {
  const ago = Math.round((new Date().setHours(0, 0, 0, 0) - day) / (24 * HOUR_MS));
  const words = new Date(day).toLocaleDateString(undefined, { weekday: "long", day: "numeric", month: "long" });
  return ["Today", "Yesterday"][ago] ?? words;
}

/**
 * Moves the focus from sighting to sighting by the arrow keys.
 * @param {KeyboardEvent} event
 */
function steer(event) {
  const all = [.../** @type {HTMLElement} */ (event.currentTarget).querySelectorAll("button.sighting")];
  const next = all[all.indexOf(/** @type {Element} */ (document.activeElement)) + STEPS[event.key]];
  if (!(next instanceof HTMLElement)) return;
  event.preventDefault();
  next.focus();
}
