/** The choice of the gallery whose cameras are shown, and how to begin to watch. */

import { get, path } from "../api.js";
import { everyGallery } from "../choosing.js";
import { field, h, select } from "../dom.js";
import { nothing } from "../parts.js";
import { link } from "../router.js";

const PLACE = "likeness.watched";
const LOOKED_AT = 20;

/**
 * Return `show(ids, id)` for the galleries' ids and the one to show: the query's, else the one chosen last, else the
 * one with the latest sighting. If there is no gallery, return advice how to begin.
 * @param {URLSearchParams} query
 * @param {(ids: string[], chosen: string) => Promise<Page.Child>} show
 */
export async function ofGallery(query, show) {
  const ids = (await everyGallery()).map((gallery) => gallery.id);
  const wanted = [query.get("gallery"), sessionStorage.getItem(PLACE)].find((id) => id && ids.includes(id));
  if (ids.length) return show(ids, wanted ?? (ids.length > 1 ? await latest(ids.slice(0, LOOKED_AT)) : ids[0]));
  const why = h("p", {}, "A gallery holds the people whom cameras recognise. Make one, and enroll them.");
  return nothing("No gallery yet", why, h("a.button.primary", { href: link("overview") }, "To the overview"));
}

/** @param {string[]} ids */
async function latest(ids) {
  const pages = await Promise.all(ids.map((id) => get(path("galleries", id, "sightings"), { limit: 1 })));
  const times = pages.map(({ sightings }) => sightings[0]?.last_at ?? "");
  return ids[times.indexOf(times.toSorted().at(-1))];
}

/**
 * A control to choose the gallery; null if there is only one.
 * @param {string[]} ids
 * @param {string} chosen
 * @param {(id: string) => void} onchange
 */
export function galleryChoice(ids, chosen, onchange) {
  if (ids.length < 2) return null;
  const keep = (/** @type {string} */ id) => {
    sessionStorage.setItem(PLACE, id);
    onchange(id);
  };
  const pairs = ids.map((id) => [id, id]);
  return field("Gallery", select(pairs, chosen, keep));
}

/**
 * Instructions how to begin to watch.
 * @param {string} gallery
 * @param {Page.Child} title
 */
export function howToBegin(gallery, title) {
  const id = /^[\w.-]+$/.test(gallery) ? gallery : `'${gallery.replaceAll("'", "'\\''")}'`;
  const key = `likeness keys create --id hall --scope watch --gallery ${id}`;
  const watch = `likeness watch rtsp://CAMERA/stream --name hall --gallery ${id}`;
  const server = `LIKENESS_SERVER=${location.origin} LIKENESS_KEY=… `;
  const people = h("a", { href: link("galleries", gallery) }, `Enroll people in ${gallery}`);
  const install = h("code", {}, "pip install 'likeness-server[video]'");
  const steps = [
    [people, ", and put up a sign."],
    ["Make a key for the cameras, where the server runs: ", h("code", {}, key)],
    ["Beside the cameras, ", install, ", then ", h("code", {}, server + watch)],
  ].map((step) => h("li", {}, step));
  const film = h("p.small", {}, "A film's path also works, in place of the camera's address.");
  return nothing(title, h("ol.begin", {}, steps), film);
}
