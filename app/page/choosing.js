/**
 * The choice of a gallery: from the server's list if the key may read it, else among the galleries that the key is
 * restricted to, else typed.
 */

import { call, every, MOST, path } from "./api.js";
import { h, select } from "./dom.js";
import * as session from "./session.js";

const PLACE = "likeness.gallery";

/**
 * The first page of galleries, if it was requested when signing in.
 * @type {any}
 */
let firstPage = null;

/**
 * Keeps the first page of galleries for `everyGallery`; null forgets it.
 * @param {any} page
 */
export const expectGalleries = (page) => (firstPage = page);

/**
 * Requests the first page of galleries, also with a key that is not signed in yet.
 * @param {string} [secret]
 */
export const firstGalleries = (secret) => call("GET", path("galleries"), { secret, query: { limit: MOST } });

/** Every gallery that the key may see. */
export const everyGallery = () => every(path("galleries"), "galleries", firstPage);

/**
 * Remembers the gallery that was last opened or chosen: controls select it first.
 * @param {string | null} gallery
 */
export const prefer = (gallery) => gallery && sessionStorage.setItem(PLACE, gallery);

/** The gallery that was last looked at or chosen; null if there was none. */
export const preferred = () => sessionStorage.getItem(PLACE);

/**
 * A control whose `value` is the gallery's id, or empty. `onchange(id)` is called after each choice, and for the
 * initial one.
 * @param {(gallery: string) => void} onchange
 */
export async function galleryControl(onchange) {
  const chosen = (/** @type {any} */ id) => {
    if (id) sessionStorage.setItem(PLACE, id);
    onchange(id);
  };
  const ids = session.may("read") ? (await everyGallery()).map((gallery) => gallery.id) : session.signedIn().galleries;
  if (!ids)
    return h("input", {
      type: "text",
      autocomplete: "off",
      placeholder: "Its id",
      onchange: (/** @type {any} */ event) => chosen(event.target.value.trim()),
    });
  const last = ids.includes(preferred()) ? preferred() : (ids[0] ?? "");
  const control = select(ids.length ? ids.map((id) => [id, id]) : [["", "There is none yet"]], last, chosen);
  onchange(last);
  return control;
}
