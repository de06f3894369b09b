/** What the page has, and which key may see it. */

import * as session from "./session.js";
import { compare } from "./views/compare.js";
import { enrollAnywhere } from "./views/enroll.js";
import { galleries } from "./views/galleries.js";
import { identify } from "./views/identify.js";

const enrollsOnly = () => session.may("enroll") && !session.may("read");

export const SECTIONS = [
  { name: "compare", title: "Compare", icon: "compare", group: "Recognise", view: compare, allowed: () => session.may("recognize") },
  { name: "identify", title: "Identify", icon: "identify", group: "Recognise", view: identify, allowed: () => session.may("recognize") },
  { name: "galleries", title: "Galleries", icon: "galleries", group: "People", view: galleries, allowed: () => session.may("read") },
  { name: "enroll", title: "Enroll", icon: "plus", group: "People", view: enrollAnywhere, allowed: enrollsOnly },
];

/** The section of that name; the first one that the key may see where there is none. */
export function find(name) {
  const open = SECTIONS.filter((section) => section.allowed());
  return open.find((section) => section.name === name) ?? open[0] ?? null;
}
