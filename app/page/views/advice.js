/** Advice: which photos to enroll and how many, why a face was refused, and what to try where an answer is wrong. */

import { h } from "../dom.js";
import { head, table } from "../parts.js";
import { ADVICE, explain, REASONS, sentence } from "../words.js";

/**
 * The photos of `samples`, by their names: what is good about it, or the reason for which it is refused. A test has the
 * server judge each.
 * @type {[string, string | null, string | null][]}
 */
const SHEET = [
  ["portrait", null, "Sharp, evenly lit, looking at the camera"],
  ["again", null, "Another light and a tilted head: a good second one"],
  ["everyday", null, "With the glasses or the hat of every day"],
  ["small", "small_face", null],
  ["blurred", "low_sharpness", null],
  ["dark", "low_brightness", null],
  ["bright", "overexposed", null],
  ["cut", "cut_off", null],
  ["pair", "ambiguous_face", null],
];
/** How many people were not found, by the photos enrolled of each: docs/decisions/several-photos.md. */
const MISSED = [
  ["1 photo", "28 %"],
  ["2 photos", "16 %"],
  ["3 photos", "11 %"],
  ["5 photos", "7 %"],
  ["10 photos", "6 %"],
];
const WRONG = [
  [
    "Somebody enrolled is unknown",
    "Enroll two or three more photos of them: of the camera that asks, of day and night, with and without glasses.",
  ],
  [
    "Somebody is uncertain",
    "The photo is poor, or alike and not alike enough. Take another; a laxer strictness lets more strangers pass, too.",
  ],
  [
    "A stranger is taken for somebody",
    "Say so by “Not this person”. A stricter strictness helps where it happens again; relatives and children look " +
      "more alike than the rates say.",
  ],
  [
    "One person is there twice",
    "Review the gallery: it finds people who look like one, and faces that are with the wrong person.",
  ],
];

/** `#/advice`. */
export function advice() {
  return {
    element: h(
      "div.stack",
      {},
      head("Good photos", "Which to enroll and how many, why a face was refused, and what to try."),
      section(
        "Which photos",
        h("ul.samples", {}, SHEET.map(tile)),
        h("p.small", {}, "Samples: NASA and US Navy, public domain; the poor ones are made from them."),
      ),
      section(
        "How many",
        h(
          "p",
          {},
          "Two or three photos of each person, of different days, light and angles. Photos of one moment bring little.",
        ),
        table("People who were not found, though enrolled", ["Enrolled of each", "Not found"], MISSED),
        h(
          "p.small",
          {},
          "Hard photos, galleries of 250 people, at a rate at which 1 in 100 strangers is taken for somebody.",
        ),
      ),
      section(
        "Why was this face refused?",
        table("Reasons, and what to try", ["Why", "What to try"], [...reasons(), ...others()]),
      ),
      section("The answer is wrong", table("Wrong answers, and what to try", ["What you see", "What to try"], WRONG)),
    ),
  };
}

/**
 * @param {string} title
 * @param {...Page.Child} children
 */
const section = (title, ...children) => h("section.card", { "aria-label": title }, h("h2", {}, title), children);

/** @param {[string, string | null, string | null]} photo */
function tile([name, reason, words]) {
  const why = words ?? sentence(reason === "ambiguous_face" ? "two people: whose photo is it?" : REASONS[reason ?? ""]);
  const src = new URL(`../samples/${name}.webp`, import.meta.url).href;
  return h(
    "li",
    {},
    h("img", { src, alt: "", width: 240, height: 240, loading: "lazy" }),
    h("p", {}, h(`span.pill.${reason ? "bad" : "known"}`, {}, reason ? "refused" : "good")),
    h("p.small", {}, why),
  );
}

/** Every reason of poor quality, with what helps. */
const reasons = () =>
  Object.entries(REASONS).map(([code, why]) => [sentence(why), sentence(ADVICE[code] ?? "take another photo")]);

/** What else a photo is refused for, in the words of its error. */
const others = () =>
  ["no_face", "ambiguous_face", "duplicate_face", "face_conflict"].map((code) => {
    const [why, ...rest] = explain({ code }).split(". ");
    return [why.replace(/\.$/, ""), rest.join(". ").replace(/\.$/, "") || "Look at both pictures, and choose"];
  });
