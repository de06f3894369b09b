/** What the page has, and which key may see it. */

import * as session from "./session.js";
import { compare } from "./views/compare.js";

export const SECTIONS = [
  { name: "compare", title: "Compare", icon: "compare", group: "Recognise", view: compare, allowed: () => session.may("recognize") },
];

/** The section of that name; the first one that the key may see where there is none. */
export function find(name) {
  const open = SECTIONS.filter((section) => section.allowed());
  return open.find((section) => section.name === name) ?? open[0] ?? null;
}
