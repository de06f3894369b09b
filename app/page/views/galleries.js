/** The list of galleries that the key may see, and the addresses of each gallery's views. */

import { everyGallery, prefer } from "../choosing.js";
import { h } from "../dom.js";
import { icon } from "../icons.js";
import { head } from "../parts.js";
import { filling, problemPlace } from "../problem.js";
import { link } from "../router.js";
import * as session from "../session.js";
import { count, form, when, whole } from "../words.js";
import { calibration } from "./calibration.js";
import { enrolling } from "./enroll.js";
import { newGallery } from "./newgallery.js";
import { people } from "./people.js";
import { person } from "./person.js";
import { review } from "./review.js";
import { settings } from "./settings.js";

/**
 * `#/galleries`, `#/galleries/ID`, and below it `enroll`, `settings`, `review`, `calibration` and `people/SUBJECT`.
 * @param {string[]} segments
 * @param {URLSearchParams} query
 */
export function galleries([gallery, what, subject], query) {
  if (!gallery) return all();
  prefer(gallery);
  if (what === "people" && subject) return person(gallery, subject);
  if (what === "review") return review(gallery);
  if (what === "settings" && session.may("admin")) return settings(gallery);
  if (what === "enroll" && session.may("enroll")) return enrolling(gallery);
  if (what === "calibration" && session.may("admin")) return calibration(gallery);
  return people(gallery, query);
}

function all() {
  const place = problemPlace();
  const body = h("div", {});
  const create =
    session.mayEverything() &&
    h("button.primary", { type: "button", onclick: () => newGallery() }, icon("plus"), "New gallery");
  const element = h(
    "div",
    {},
    head("Galleries", "A gallery is a set of enrolled people who can be identified.", create),
    place.element,
    body,
  );
  return { element, ready: filling(place, body, async () => listed(await everyGallery())) };
}

/** @param {Api.Gallery[]} found */
function listed(found) {
  if (!found.length)
    return h(
      "div.nothing",
      {},
      h("h2", {}, "No gallery yet"),
      h(
        "p",
        {},
        session.mayEverything()
          ? "Make one, then enroll people in it."
          : "Somebody with an unrestricted admin key can make one.",
      ),
    );
  return h(
    "ul.cards",
    {},
    found.map((gallery) =>
      h(
        "li",
        {},
        h(
          "a.card.gallery",
          { href: link("galleries", gallery.id) },
          h("h2", {}, gallery.id),
          h(
            "p",
            {},
            h("strong", {}, whole(gallery.subjects)),
            ` ${form(gallery.subjects, "person", "people")}, `,
            count(gallery.faces, "face"),
          ),
          h(
            "p.small",
            {},
            `${gallery.embedder}, ${gallery.store === "crop" ? "keeps crops" : "keeps no pictures"}, since ` +
              `${when(gallery.created_at)}`,
          ),
        ),
      ),
    ),
  );
}
