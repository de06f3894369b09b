/** The page's sections, and which keys may see each. */

import { h, put } from "./dom.js";
import { problem } from "./problem.js";
import * as session from "./session.js";
import { home } from "./views/home.js";

/**
 * Return a view whose module is loaded when it is first opened.
 * @param {() => Promise<(...given: any[]) => Page.View>} load
 * @returns {(...given: any[]) => Page.View}
 */
export const lazy =
  (load) =>
  (...given) => {
    const element = h("div", {}, h("p.waiting", {}, "Loading …"));
    /** @type {Page.View | null} */
    let view = null;
    let left = false;
    const fill = async () => {
      const make = await load();
      if (left) return;
      view = make(...given);
      element.replaceWith(view.element);
      await view.ready;
    };
    const ready = fill().catch((error) => {
      if (view) throw error;
      console.error(error);
      put(element, problem({ code: "page", message: "This view could not be loaded. Load the page again." }));
    });
    const leave = () => {
      left = true;
      view?.leave?.();
    };
    return { element, ready, leave };
  };

const enrollsOnly = () => session.may("enroll") && !session.may("read");

export const SECTIONS = [
  { name: "overview", title: "Overview", icon: "home", group: "", view: home, allowed: () => true },
  {
    name: "compare",
    title: "Compare",
    icon: "compare",
    group: "Recognise",
    view: lazy(async () => (await import("./views/compare.js")).compare),
    allowed: () => session.may("recognize"),
  },
  {
    name: "identify",
    title: "Identify",
    icon: "identify",
    group: "Recognise",
    view: lazy(async () => (await import("./views/identify.js")).identify),
    allowed: () => session.may("recognize"),
  },
  {
    name: "galleries",
    title: "Galleries",
    icon: "galleries",
    group: "People",
    view: lazy(async () => (await import("./views/galleries.js")).galleries),
    allowed: () => session.may("read"),
  },
  {
    name: "enroll",
    title: "Enroll",
    icon: "plus",
    group: "People",
    view: lazy(async () => (await import("./views/enroll.js")).enrollAnywhere),
    allowed: enrollsOnly,
  },
  {
    name: "jobs",
    title: "Jobs",
    icon: "jobs",
    group: "People",
    view: lazy(async () => (await import("./views/jobs.js")).jobs),
    allowed: () => session.may("read"),
  },
  {
    name: "check",
    title: "Gallery check",
    icon: "check",
    group: "Server",
    view: lazy(async () => (await import("./views/check.js")).check),
    allowed: () => session.may("admin"),
  },
  {
    name: "keys",
    title: "Keys",
    icon: "keys",
    group: "Server",
    view: lazy(async () => (await import("./views/keys.js")).keys),
    allowed: session.mayEverything,
  },
  {
    name: "audit",
    title: "Audit log",
    icon: "audit",
    group: "Server",
    view: lazy(async () => (await import("./views/audit.js")).audit),
    allowed: session.mayEverything,
  },
  {
    name: "models",
    title: "Models",
    icon: "models",
    group: "Server",
    view: lazy(async () => (await import("./views/models.js")).models),
    allowed: () => true,
  },
  {
    name: "advice",
    title: "Good photos",
    view: lazy(async () => (await import("./views/advice.js")).advice),
    allowed: () => true,
  }, // not in the menu: other views link to it
];

/**
 * Return the section of that name; the first section that the key may see if the name is empty or the key may not see
 * the named one; null if no section has the name.
 */
export function find(name = "") {
  const named = SECTIONS.find((section) => section.name === name);
  if (name && !named) return null;
  return named?.allowed() ? named : (SECTIONS.find((section) => section.allowed()) ?? null);
}
