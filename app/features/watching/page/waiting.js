/** Unknown people whom the user names, ignores, tells apart or merges. */

import { get, patch, path, post, remove } from "../api.js";
import { confirm, h, openDialog, put, toast } from "../dom.js";
import { orLeave, request } from "../parts.js";
import { busy, problemPlace, showing } from "../problem.js";
import * as session from "../session.js";
import { PersonField } from "../suggest.js";
import { count, list, nameOf } from "../words.js";
import { moment, pathOf, pictureOf, whoOf } from "./sighting.js";

const SHOWN = 12;
const MOST = 100;

/** @param {Api.Stranger} stranger */
const bestOf = ({ best, sightings }) => ({ id: best, frames: sightings });
/** @param {Api.Sighting} sighting */
const whereAndWhen = ({ camera, first_at: at }) => `${camera}, ${moment(at)}`;

/** The section of unknown people. */
export class Waiting {
  /**
   * @param {string} gallery
   * @param {() => unknown} onchange called when the user has decided about somebody
   */
  constructor(gallery, onchange) {
    this.gallery = gallery;
    this.home = path("galleries", gallery);
    this.onchange = onchange;
    this.place = problemPlace();
    this.body = h("div.stack", {});
    this.element = h("section.stack", { "aria-label": "Unknown people", hidden: true }, this.place.element, this.body);
    /** @type {Api.Stranger[]} */
    this.strangers = [];
  }

  load() {
    return showing(this.place, async () => {
      const asked = [
        get(`${this.home}/strangers`, { ignored: false, limit: SHOWN }),
        get(`${this.home}/strangers`, { ignored: true, limit: MOST }),
        get(`${this.home}/sightings`, { decision: "unknown", limit: MOST }),
        get(`${this.home}/sightings`, { decision: "uncertain", limit: SHOWN }),
      ];
      const [{ strangers }, { strangers: ignored }, ...pages] = await Promise.all(asked);
      if (this.body.querySelector("input:focus")?.value) return; // somebody types
      /** @type {Api.Sighting[]} */
      const single = pages
        .flatMap((page) => page.sightings)
        .filter((sighting) => !sighting.stranger && sighting.has_crop);
      this.strangers = strangers;
      const shown = single.slice(0, SHOWN).map((sighting) => this.single(sighting));
      const cards = [...this.strangers.map((stranger) => this.stranger(stranger)), ...shown];
      const asking = [
        h("h2", {}, "Who is this?"),
        h("p.small", {}, "A name enrolls the picture: from then on the person is recognised."),
        h("ul.cards.unnamed", {}, cards),
      ];
      this.element.hidden = !cards.length && !ignored.length;
      put(this.body, cards.length > 0 && asking, ignored.length > 0 && this.ignored(ignored));
    });
  }

  /**
   * Does `work`, shows who is left, and focuses the next unknown person.
   * @param {any} button
   * @param {() => Promise<string | null>} work gives the message to show, null if the user has changed their mind
   */
  async doing(button, work) {
    const at = [...this.body.querySelectorAll("li")].indexOf(button.closest("li"));
    const words = await showing(this.place, () => busy(button, work));
    if (!words) return;
    toast(words);
    button.focus(); // away from the field, which is removed
    await Promise.all([this.load(), this.onchange()]);
    const cards = this.body.querySelectorAll(".unnamed > li");
    cards[Math.min(at, cards.length - 1)]?.querySelector("input, button")?.focus({ preventScroll: true });
  }

  /**
   * A button that does `work` (see `doing`).
   * @param {string} words
   * @param {() => Promise<string | null>} work
   */
  act(words, work) {
    const onclick = (/** @type {any} */ event) => this.doing(event.currentTarget, work);
    return h("button.quiet.small", { type: "button", onclick }, words);
  }

  /**
   * @param {{picture: Node, title: string, words: string, acts: any[]}} shown
   * @param {(subject: string) => Promise<string | null>} name
   */
  card({ picture, title, words, acts }, name) {
    const submit = () => (who.id ? this.doing(save, () => name(who.id)) : who.input.focus());
    const who = new PersonField(
      () => this.gallery,
      { "aria-label": `Who is it? ${title}, ${words}`, placeholder: "Who is it?" },
      submit,
    );
    const save = h("button.small", { type: "submit" }, "Name");
    for (const button of [save, ...acts])
      if (button) button.setAttribute("aria-label", `${button.textContent}: ${title}, ${words}`);
    const naming = [h("form.row", { onsubmit: submit }, who.element, save), h("div.row", {}, acts)];
    const about = h("div", {}, h("h3", {}, title), h("p.small", {}, words));
    return h("li.card", {}, h("div.who", {}, picture, about), session.may("enroll") && naming);
  }

  /** @param {Api.Stranger} stranger */
  stranger(stranger) {
    const where = `${this.home}/strangers/${stranger.id}`;
    const ignore = (/** @type {object} */ note) => async () => {
      await patch(where, { ignored: true, ...note });
      return "This person is ignored from now on.";
    };
    const sort = async () => ((await this.sort(stranger, where)) ? "That is noted." : null);
    const title = stranger.sightings === 1 ? "Seen once" : `Seen ${count(stranger.sightings, "time")}`;
    const acts = [
      this.act("Ignore", ignore({})),
      this.act("Not a face", ignore({ note: "not a face" })), // a poster is seen again: deleting is not enough
      (stranger.sightings > 1 || this.strangers.length > 1) && this.act("Sort out", sort),
    ];
    const words = `${list(stranger.cameras)}, last ${moment(stranger.last_at)}`;
    const picture = pictureOf(this.gallery, bestOf(stranger));
    return this.card({ picture, title, words, acts }, (subject) => this.name(where, subject));
  }

  /**
   * The card of somebody with only one sighting, or who may be one of the gallery's people.
   * @param {Api.Sighting} sighting
   */
  single(sighting) {
    const where = pathOf(this.gallery, sighting.id);
    const say = (/** @type {string | null} */ subject, enroll = false) =>
      post(`${where}/who`, { subject, enroll }).then(() => "That is noted.");
    const perhaps = sighting.decision === "uncertain";
    const acts = [
      perhaps && this.act(`It is ${nameOf(sighting)}`, () => say(sighting.subject)),
      perhaps && this.act(`Not ${nameOf(sighting)}`, () => say(null)),
      this.act("Not a face", () => remove(where).then(() => "The picture is deleted.")),
    ];
    const title = perhaps ? whoOf(sighting) : "Seen once";
    const picture = pictureOf(this.gallery, sighting);
    return this.card({ picture, title, words: whereAndWhen(sighting), acts }, (subject) => say(subject, true));
  }

  /**
   * Names a stranger, and those of the similar sightings that the user accepts.
   * @param {string} where
   * @param {string} subject
   */
  async name(where, subject) {
    const { resembling } = await get(`${where}/resembling`);
    const also = resembling.length ? await this.also(subject, resembling) : [];
    if (!also) return null;
    const { sightings } = await post(`${where}/name`, { subject, also });
    return `${count(sightings.length, "sighting")} of ${nameOf(sightings[0] ?? { subject })}.`;
  }

  /**
   * Asks which earlier sightings to name, too. Null if the user has changed their mind.
   * @param {string} subject
   * @param {Api.Resembling[]} resembling
   * @returns {Promise<string[] | null>}
   */
  also(subject, resembling) {
    const row = (/** @type {Api.Resembling} */ { sighting }) => {
      const box = h("input", { type: "checkbox", checked: true, value: sighting.id });
      const picture = pictureOf(this.gallery, sighting);
      return h("li", {}, h("label.choice", {}, box, picture, h("span", {}, whereAndWhen(sighting))));
    };
    const lead = h("p", {}, "These look like the same person. Untick whoever is somebody else.");
    const rows = h("ul.tiles", {}, resembling.map(row));
    const chosen = async () => Array.from(rows.querySelectorAll(":checked"), (/** @type {any} */ box) => box.value);
    return request(`Is this ${subject} too?`, [lead, rows], `Name ${subject}`, chosen);
  }

  /**
   * Shows a stranger's sightings, to mark those of somebody else, and the other strangers, to mark those who are the
   * same person. Returns whether something was marked.
   * @param {Api.Stranger} stranger
   * @param {string} where
   */
  async sort(stranger, where) {
    const { sightings } = await get(`${this.home}/sightings`, { stranger: stranger.id, limit: MOST });
    const others = this.strangers.filter((other) => other.id !== stranger.id);
    const part = (/** @type {string} */ id) => post(`${where}/part`, { sightings: [id], alike: true });
    const join = (/** @type {string} */ id) => post(`${this.home}/strangers/${id}/merge`, { into: stranger.id });
    const place = problemPlace();
    const build = (/** @type {(done?: boolean) => void} */ close) => {
      const doing = (/** @type {any} */ button, /** @type {() => Promise<unknown>} */ work) =>
        showing(place, () => busy(button, () => work().then(() => close(true))));
      const tile = (/** @type {any} */ shown, /** @type {string} */ label, /** @type {any} */ work) => {
        const words = shown.cameras ? `${list(shown.cameras)}, ${moment(shown.last_at)}` : whereAndWhen(shown);
        const onclick = (/** @type {any} */ event) => doing(event.currentTarget, () => work(shown.id));
        const picture = pictureOf(this.gallery, shown.best ? bestOf(shown) : shown);
        const props = { type: "button", "aria-label": `${label}: ${words}`, onclick };
        return h("li", {}, h("button.person", props, picture, h("span.small", {}, words)));
      };
      const apart = sightings.map((/** @type {any} */ sighting) => tile(sighting, "Somebody else", part));
      const same = others.map((other) => tile(other, "The same person", join));
      const forget = async (/** @type {any} */ event) => {
        const button = event.currentTarget;
        const text = `${count(stranger.sightings, "sighting")} of this person go, with pictures and events.`;
        const sure = await confirm({ title: "Forget this person?", text, action: "Forget" });
        if (sure) await doing(button, () => remove(where));
      };
      const tiles = (/** @type {string} */ lead, /** @type {Node[]} */ shown) =>
        h("section.stack", {}, h("p", {}, lead), h("ul.tiles", {}, shown));
      return h(
        "div",
        {},
        place.element,
        apart.length > 1 && tiles("Click a picture of somebody else: those that are more like it go along.", apart),
        same.length > 0 && tiles("Click whoever is the same person as this one.", same),
        orLeave(close, "Close", h("button.danger", { type: "button", onclick: forget }, "Forget")),
      );
    };
    return openDialog("One person?", build, { wide: true });
  }

  /** @param {Api.Stranger[]} ignored */
  ignored(ignored) {
    const again = (/** @type {Api.Stranger} */ stranger) => async () => {
      await patch(`${this.home}/strangers/${stranger.id}`, { ignored: false });
      return "This person is asked about again.";
    };
    const row = (/** @type {Api.Stranger} */ stranger) => {
      const words = h("span", {}, `${stranger.note ?? "ignored"}, last ${moment(stranger.last_at)}`);
      const asking = session.may("enroll") && this.act("Ask again", again(stranger));
      return h("li.row", {}, pictureOf(this.gallery, bestOf(stranger)), words, asking);
    };
    return h("details", {}, h("summary", {}, `Ignored: ${ignored.length}`), h("ul.tiles", {}, ignored.map(row)));
  }
}
