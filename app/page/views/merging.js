/** Two people who are one: all faces go to one of them. */

import { path, post } from "../api.js";
import { forget } from "../crops.js";
import { h, newId, select, tell } from "../dom.js";
import { request } from "../parts.js";
import { PersonField } from "../suggest.js";
import { list } from "../words.js";

const nameOf = (subject) => subject.name ?? subject.id;

/** Asks into whom `subjects` are merged, and does it; gives the id of who is left, or null. */
export async function merge(gallery, subjects) {
  const who = subjects.length > 1 ? oneOf(subjects) : new PersonField(() => gallery, { required: true });
  const fields = [
    h("p", {}, "All faces go to the person below, who keeps name and metadata, and takes those that are missing. The other is deleted."),
    h("div.field", {}, h("label", { for: who.input.id }, subjects.length > 1 ? "Who stays?" : "Into whom?"), who.element),
  ];
  const into = await request(`Merge ${list(subjects.map(nameOf))}`, fields, "Merge", () => mergeAll(gallery, subjects, who.id));
  if (into === null) return null;
  forget();
  tell(`Merged into ${into}.`);
  return into;
}

/** The field for one of these, in the form of a PersonField. */
function oneOf(subjects) {
  const input = select(subjects.map((one) => [one.id, one.name ? `${one.name} (${one.id})` : one.id]), subjects[0].id, () => {}, { id: newId("who") });
  return { input, element: input, get id() { return input.value; } };
}

async function mergeAll(gallery, subjects, into) {
  for (const subject of subjects) if (subject.id !== into) await post(`${path("galleries", gallery, "subjects", subject.id)}/merge`, { into });
  return into;
}
