/** Advice: which photos to enroll and how many, why a face was refused, and what to try if an answer is wrong. */

import { h } from "../dom.js";
import { head, table } from "../parts.js";
import { ADVICE, explain, REASONS, sentence } from "../words.js";

/**
 * The photos in `samples`: [name, the reason why the server refuses it or null, words instead of the reason's]. A test
 * checks each with the server.
 * @type {[string, string | null, string | null][]}
 */
const SHEET = [
  ["portrait", null, "Sharp, evenly lit, looking at the camera"],
  ["again", null, "Another light and a tilted head: a good second photo"],
  ["everyday", null, "With the glasses or hat worn every day"],
  ["small", "small_face", null],
  ["blurred", "low_sharpness", null],
  ["dark", "low_brightness", null],
  ["bright", "overexposed", null],
  ["cut", "cut_off", null],
  ["pair", "ambiguous_face", null],
];
/**
 * The share of people who were not found, by the number of photos enrolled of each: docs/decisions/several-photos.md.
 */
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
    "The photo is poor, or the face is similar, but not enough. Take another; " +
      "a laxer strictness lets more strangers pass.",
  ],
  [
    "A stranger is taken for somebody",
    "Say so by “Not this person”. If it happens again, choose a stricter setting; relatives and children look " +
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
          "Two or three photos of each person, taken on different days, in different light, " +
            "from different angles. Photos taken at one moment add little.",
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

/** Rows with every reason of poor quality, and what helps. */
const reasons = () =>
  Object.entries(REASONS).map(([code, why]) => [sentence(why), sentence(ADVICE[code] ?? "take another photo")]);

/** Rows with the other reasons to refuse a photo, in the words of their errors. */
const others = () =>
  ["no_face", "ambiguous_face", "duplicate_face", "face_conflict"].map((code) => {
    const [why, ...rest] = explain({ code }).split(". ");
    return [why.replace(/\.$/, ""), rest.join(". ").replace(/\.$/, "") || "Look at both pictures, and choose"];
  });
