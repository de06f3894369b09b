/** Merges subjects that are one person: all faces go to one of them. */

import { get, path, post, sendPhoto } from "../api.js";
import { captioned, forget, portrait, portraitPath } from "../crops.js";
import { confirm, h, newId, put, select, toast } from "../dom.js";
import { request } from "../parts.js";
import * as session from "../session.js";
import { PersonField } from "../suggest.js";
import { explain, list, nameOf, score } from "../words.js";

/**
 * @param {string} gallery
 * @param {string} id
 */
const pathOf = (gallery, id) => path("galleries", gallery, "subjects", id);

/**
 * Asks into which of `subjects` to merge the others, and does it. Returns the id of the one that is left, null if the
 * dialog was left.
 * @param {string} gallery
 * @param {Api.Subject[]} subjects
 */
export async function merge(gallery, subjects) {
  const pairs = h("div.stack", { "aria-live": "polite" });
  /** @type {{id: string | null, pairs: Promise<any[]>}} */
  let compared = { id: null, pairs: Promise.resolve([]) };
  const compare = async (/** @type {any} */ id, known = subjects.find((subject) => subject.id === id)) => {
    if (!session.may("read")) return [];
    const into = known ?? (await get(pathOf(gallery, id)));
    if (compared.id !== id) compared = { id, pairs: compareAll(gallery, subjects, into, pairs) };
    return compared.pairs;
  };
  const who =
    subjects.length > 1
      ? oneOf(subjects, compare)
      : new PersonField(
          () => gallery,
          { required: true },
          (/** @type {any} */ subject) => compare(subject.id, subject),
        );
  const fields = [
    h(
      "p",
      {},
      "All faces go to the person below, who keeps name and metadata, and gets what is missing from the other. " +
        "The other is deleted.",
    ),
    h(
      "div.field",
      {},
      h("label", { for: who.input.id }, subjects.length > 1 ? "Who stays?" : "Into whom?"),
      who.element,
    ),
    pairs,
  ];
  if (subjects.length > 1) void compare(subjects[0].id);
  const into = await request(`Merge ${list(subjects.map(nameOf))}`, fields, "Merge", async () => {
    const unlike = (await compare(who.id))
      .filter((pair) => pair.decision === "unknown")
      .map((pair) => nameOf(pair.subject));
    if (unlike.length && !(await confirm(surely(unlike, who.id)))) return null;
    return mergeAll(gallery, subjects, who.id);
  });
  if (into === null) return null;
  forget();
  toast(`Merged into ${into}.`);
  return into;
}

/**
 * @param {string[]} unlike
 * @param {string} into
 */
const surely = (unlike, into) => ({
  title: `Surely the same person as ${into}?`,
  text:
    `By their faces, ${list(unlike)} and ${into} are different people. Merging mixes their faces, and ` +
    `whoever looks like either is then taken for ${into}.`,
  action: "Merge all the same",
});

/**
 * A field to choose one of these, with the same members as a PersonField.
 * @param {Api.Subject[]} subjects
 * @param {(id: string) => void} onchange
 */
function oneOf(subjects, onchange) {
  const input = select(
    subjects.map((subject) => [subject.id, subject.name ? `${subject.name} (${subject.id})` : subject.id]),
    subjects[0].id,
    onchange,
    { id: newId("who") },
  );
  return {
    input,
    element: input,
    get id() {
      return input.value;
    },
  };
}

/**
 * Show each pair's pictures and score in `place`. Return [{subject, decision, words}]; `decision` is null if the two
 * can't be compared.
 * @param {string} gallery
 * @param {Api.Subject[]} subjects
 * @param {Api.Subject} into
 * @param {HTMLElement} place
 */
function compareAll(gallery, subjects, into, place) {
  const others = subjects.filter((subject) => subject.id !== into.id);
  const said = others.map(() => h("p", {}, "Comparing …"));
  put(
    place,
    others.map((other, index) =>
      h("div.row", {}, h("div.sides", {}, picture(gallery, other), picture(gallery, into)), said[index]),
    ),
  );
  return Promise.all(
    others.map(async (subject, index) => {
      const found = await compare(gallery, subject, into);
      put(said[index], found.words);
      return { subject, ...found };
    }),
  );
}

/**
 * @param {string} gallery
 * @param {Api.Subject} subject
 */
const picture = (gallery, subject) => captioned(nameOf(subject), portrait(gallery, subject));

const PEOPLE = { known: "one person", uncertain: "perhaps one person", unknown: "two people" };

/**
 * Compare one person's cover or first face with the other person.
 * @param {string} gallery
 * @param {Api.Subject} subject
 * @param {Api.Subject} into
 */
async function compare(gallery, subject, into) {
  if (!session.may("recognize")) return { decision: null, words: "Your key may not compare the two." };
  try {
    const crop = portraitPath(gallery, subject);
    if (!crop) return { decision: null, words: "No picture is kept, so the two can't be compared." };
    const picture = await get(crop, {}, { as: "blob" });
    const answer = await sendPhoto(`${pathOf(gallery, into.id)}/verify`, picture, { quality: "none" });
    const reached = answer.score === null ? "The score" : `The score ${score(answer.score)}`;
    const words = answer.match ? "reaches" : "stays below";
    return {
      decision: answer.decision,
      words:
        `${reached} ${words} the threshold ${score(answer.threshold)}: ` +
        `${PEOPLE[/** @type {keyof typeof PEOPLE} */ (answer.decision)]}, by these faces.`,
    };
  } catch (error) {
    return { decision: null, words: explain(error) };
  }
}

/**
 * @param {string} gallery
 * @param {Api.Subject[]} subjects
 * @param {string} into
 */
async function mergeAll(gallery, subjects, into) {
  for (const subject of subjects) if (subject.id !== into) await post(`${pathOf(gallery, subject.id)}/merge`, { into });
  return into;
}
