/**
 * A sighting: its card in lists, its dialog, in which the user says who it is, and the sightings on a person's page.
 */

import { get, path, post, remove } from "../api.js";
import { pictureAt } from "../crops.js";
import { confirm, h, openDialog, toast } from "../dom.js";
import { facts, orLeave } from "../parts.js";
import { busy, filling, problemPlace, showing } from "../problem.js";
import { link } from "../router.js";
import * as session from "../session.js";
import { PersonField } from "../suggest.js";
import { count, nameOf, oneIn, score, when } from "../words.js";

const SHOWN = 12;

/**
 * @param {string} gallery
 * @param {string} id
 */
export const pathOf = (gallery, id) => path("galleries", gallery, "sightings", id);

/**
 * The picture of a sighting. Its address changes with the number of frames, since a better picture may replace it.
 * @param {string} gallery
 * @param {{id: string, has_crop?: boolean, frames?: number}} sighting
 * @param {string} [words] describe it; leave them out if text beside it does
 */
export const pictureOf = (gallery, { id, has_crop = true, frames = 0 }, words = "") =>
  pictureAt(has_crop ? `${pathOf(gallery, id)}/crop#${frames}` : null, "?", words);

/**
 * Who was seen, as far as it is known.
 * @param {Pick<Api.Sighting, "decision" | "subject" | "name">} sighting
 */
export function whoOf({ decision, subject, name }) {
  if (decision === "unknown") return "Unknown";
  return `${nameOf({ subject, name })}${decision === "uncertain" ? "?" : ""}`;
}

/** @param {string | number} at */
export const clock = (at) => new Date(at).toLocaleTimeString(undefined, { timeStyle: "short" });

/** @param {string} at */
export const moment = (at) => (new Date(at).toDateString() === new Date().toDateString() ? clock(at) : when(at));

/** @param {Pick<Api.Sighting, "first_at" | "last_at" | "ended">} sighting */
export function spell({ first_at, last_at, ended }) {
  const [from, to] = [clock(first_at), clock(last_at)];
  if (!ended) return `since ${from}`;
  return from === to ? from : `${from}–${to}`;
}

/**
 * A sighting in a list. A click opens its dialog; `onchange` is called when something was changed there.
 * @param {string} gallery
 * @param {Api.Sighting} sighting
 * @param {() => unknown} onchange
 * @param {boolean} [day] whether to show the day, too
 */
export function card(gallery, sighting, onchange, day = false) {
  const words = `${sighting.camera}, ${day ? moment(sighting.first_at) : spell(sighting)}`;
  const about = h("span.about", {}, h("strong.name", {}, whoOf(sighting)), h("span.small", {}, words));
  const here = !sighting.ended && h("span.pill.known", {}, "here");
  const props = { type: "button", onclick: () => show(gallery, sighting, onchange) };
  const button = h(`button.sighting.${sighting.decision}`, props, pictureOf(gallery, sighting), about, here);
  return h("li", { "data-at": sighting.first_at }, button);
}

/**
 * @param {string} gallery
 * @param {Api.Sighting} sighting
 * @param {() => unknown} onchange
 */
async function show(gallery, sighting, onchange) {
  const who = whoOf(sighting);
  const about = h("div.who", {}, pictureOf(gallery, sighting, who), aboutOf(gallery, sighting));
  const changed = await openDialog(who, (close) =>
    h("div", {}, about, session.may("enroll") && saying(gallery, sighting, close), orLeave(close, "Close")),
  );
  if (changed) await onchange();
}

/**
 * @param {string} gallery
 * @param {Api.Sighting} sighting
 */
function aboutOf(gallery, sighting) {
  const { decision, subject, threshold, frames, quality } = sighting;
  const href = link("galleries", gallery, "people", subject ?? "");
  const reached = sighting.score === null ? "below every operating point" : score(sighting.score);
  const needed = `${score(threshold)} is enough, which ${oneIn(sighting.fpir)} visits of others reach`;
  const byHand = decision === "known" && (sighting.score ?? 0) < threshold;
  return facts([
    ["Camera", sighting.camera],
    ["Zone", sighting.zone],
    ["From", when(sighting.first_at, true)],
    ["To", sighting.ended ? when(sighting.last_at, true) : "still here"],
    ["Score", !byHand && `${reached}; ${needed}`],
    ["Named", byHand && "by a person"],
    ["Seen by", `${count(frames, "photo")}, the best of quality ${Math.round(quality)}`],
    ["Kept until", when(sighting.expires_at)],
    ["Person", decision === "known" && subject && h("a", { href }, nameOf(sighting))],
  ]);
}

/**
 * The dialog's buttons: "Not this person", "This is …", and "Delete".
 * @param {string} gallery
 * @param {Api.Sighting} sighting
 * @param {(done?: boolean) => void} close
 */
function saying(gallery, sighting, close) {
  const where = pathOf(gallery, sighting.id);
  const place = problemPlace();
  const enroll = h("input", { type: "checkbox" });
  const doing = (/** @type {any} */ button, /** @type {() => Promise<unknown>} */ work, /** @type {string} */ words) =>
    showing(place, () => busy(button, work).then(() => [toast(words), close(true)]));
  const say = () => {
    const subject = who.id;
    if (!subject) return who.input.focus();
    const body = { subject, enroll: enroll.checked || !who.chosen };
    return doing(save, () => post(`${where}/who`, body), `This is ${nameOf(who.chosen ?? { subject })} from now on.`);
  };
  const who = new PersonField(() => gallery, { placeholder: "Name or id" });
  const save = h("button.primary", { type: "submit" }, "Save");
  const not = (/** @type {any} */ event) =>
    doing(event.currentTarget, () => post(`${where}/who`, { subject: null }), "That is noted.");
  const drop = async (/** @type {any} */ event) => {
    const button = event.currentTarget;
    if (await confirm({ title: "Delete this sighting?", text: "Its picture and its events go too.", action: "Delete" }))
      await doing(button, () => remove(where), "Deleted.");
  };
  const denying = sighting.subject && h("button", { type: "button", onclick: not }, `Not ${nameOf(sighting)}`);
  const deleting = h("button.danger", { type: "button", onclick: drop }, "Delete");
  return h(
    "form.stack",
    { onsubmit: say },
    h("div.row", {}, denying, deleting),
    h("div.field", {}, h("label", { for: who.input.id }, "This is"), h("div.row", {}, who.element, save)),
    h("label.choice", {}, enroll, h("span", {}, "Also enroll this picture. A new person's picture always is.")),
    place.element,
  );
}

/**
 * The part of a person's page that shows where and when the person was seen.
 * @param {string} gallery
 * @param {string} subject
 */
export function seen(gallery, subject) {
  const place = problemPlace();
  const body = h("div.stack", {});
  const all = `${link("today")}?${new URLSearchParams({ gallery, subject })}`;
  const again = () => filling(place, body, load);
  const load = async () => {
    const asked = { subject, limit: SHOWN };
    const { sightings, next_cursor: more } = await get(path("galleries", gallery, "sightings"), asked);
    if (!sightings.length) return h("p.small", {}, "No sighting of this person is kept.");
    const row = (/** @type {Api.Sighting} */ shown) => card(gallery, shown, again, true);
    return [h("ul.seen", {}, sightings.map(row)), more && h("p", {}, h("a", { href: all }, "All of them"))];
  };
  void again();
  return h("section.stack", { "aria-label": "Seen" }, h("h2", {}, "Seen"), place.element, body);
}
