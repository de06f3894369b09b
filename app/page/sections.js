/** What the page has, and which key may see it. */

import * as session from "./session.js";
import { advice } from "./views/advice.js";
import { audit } from "./views/audit.js";
import { check } from "./views/check.js";
import { compare } from "./views/compare.js";
import { enrollAnywhere } from "./views/enroll.js";
import { galleries } from "./views/galleries.js";
import { home } from "./views/home.js";
import { identify } from "./views/identify.js";
import { jobs } from "./views/jobs.js";
import { keys } from "./views/keys.js";
import { models } from "./views/models.js";

const enrollsOnly = () => session.may("enroll") && !session.may("read");

export const SECTIONS = [
  { name: "overview", title: "Overview", icon: "home", group: "", view: home, allowed: () => true },
  {
    name: "compare",
    title: "Compare",
    icon: "compare",
    group: "Recognise",
    view: compare,
    allowed: () => session.may("recognize"),
  },
  {
    name: "identify",
    title: "Identify",
    icon: "identify",
    group: "Recognise",
    view: identify,
    allowed: () => session.may("recognize"),
  },
  {
    name: "galleries",
    title: "Galleries",
    icon: "galleries",
    group: "People",
    view: galleries,
    allowed: () => session.may("read"),
  },
  { name: "enroll", title: "Enroll", icon: "plus", group: "People", view: enrollAnywhere, allowed: enrollsOnly },
  { name: "jobs", title: "Jobs", icon: "jobs", group: "People", view: jobs, allowed: () => session.may("read") },
  {
    name: "check",
    title: "Gallery check",
    icon: "check",
    group: "Server",
    view: check,
    allowed: () => session.may("admin"),
  },
  { name: "keys", title: "Keys", icon: "keys", group: "Server", view: keys, allowed: session.mayEverything },
  { name: "audit", title: "Audit log", icon: "audit", group: "Server", view: audit, allowed: session.mayEverything },
  { name: "models", title: "Models", icon: "models", group: "Server", view: models, allowed: () => true },
  { name: "advice", title: "Good photos", view: advice, allowed: () => true }, // not in the menu: views lead to it
];

/** Return the section of that name: the first one without a name or for one that the key may not see, null for any
 * other. */
export function find(name = "") {
  const named = SECTIONS.find((section) => section.name === name);
  if (name && !named) return null;
  return named?.allowed() ? named : (SECTIONS.find((section) => section.allowed()) ?? null);
}
