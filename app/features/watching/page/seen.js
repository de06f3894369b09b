/** Where and when a person was seen: a part of the person's page. */

import { get, path } from "../api.js";
import { h } from "../dom.js";
import { filling, problemPlace } from "../problem.js";
import { link } from "../router.js";
import { card } from "./sighting.js";

const SHOWN = 12;

/**
 * @param {string} gallery
 * @param {string} subject
 */
export function seen(gallery, subject) {
  const place = problemPlace();
  const body = h("div.stack", {});
  const all = `${link("today")}?${new URLSearchParams({ gallery, subject })}`;
  const load = async () => {
    const asked = { subject, limit: SHOWN };
    const { sightings, next_cursor: more } = await get(path("galleries", gallery, "sightings"), asked);
    if (!sightings.length) return h("p.small", {}, "By no camera, as far as sightings are kept.");
    const row = (/** @type {Api.Sighting} */ one) => card(gallery, one, show, true);
    return [h("ul.seen", {}, sightings.map(row)), more && h("p", {}, h("a", { href: all }, "All of them"))];
  };
  const show = () => filling(place, body, load);
  void show();
  return h("section.stack", { "aria-label": "Seen" }, h("h2", {}, "Seen"), place.element, body);
}
