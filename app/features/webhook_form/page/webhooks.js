/** Webhooks: addresses that are told who was before a camera. Made, resumed and deleted here. */

import { get, path, post, remove } from "../api.js";
import { everyGallery } from "../choosing.js";
import { confirm, field, h, openDialog, put, select, toast } from "../dom.js";
import { icon } from "../icons.js";
import { facts, head, nothing, request } from "../parts.js";
import { busy, filling, problemPlace, showing } from "../problem.js";
import { PersonField } from "../suggest.js";
import { list, nameOf, when } from "../words.js";

/** @type {Record<string, string>} */
const KINDS = {
  person_seen: "Somebody known was seen",
  unknown_seen: "Somebody unknown was seen",
  name_changed: "A name was put right",
  left: "Somebody has left",
};
const LEAD =
  "Addresses that the server tells who was before a camera: at least once, in order, and signed as Standard Webhooks " +
  "has it.";
const ALL = "all";
/** People whose names are looked up; others are shown by their ids. */
const LOOKED_UP = 50;

export function webhooks() {
  const place = problemPlace();
  const body = h("div", {});
  const load = () =>
    filling(place, body, async () => {
      const found = (await get(path("webhooks"))).webhooks;
      return cards(found, await namesOf(found.flatMap((/** @type {any} */ one) => one.subjects ?? [])), place, load);
    });
  const make = async () => (await add(place)) && load();
  const button = h("button.primary", { type: "button", onclick: make }, icon("plus"), "New webhook");
  return { element: h("div", {}, head("Webhooks", LEAD, button), place.element, body), ready: load() };
}

/**
 * Return the names of these people, by `who` they are.
 * @param {{gallery: string, subject: string}[]} people
 */
async function namesOf(people) {
  const named = async (/** @type {any} */ one) => {
    const found = await get(path("galleries", one.gallery, "subjects", one.subject)).catch(() => null);
    return /** @type {[string, string]} */ ([who(one), nameOf(found ?? one)]);
  };
  return new Map(await Promise.all(people.slice(0, LOOKED_UP).map(named)));
}

/**
 * @param {any[]} found
 * @param {Map<string, string>} names
 * @param {Page.Place} place
 * @param {() => Promise<unknown>} load
 */
function cards(found, names, place, load) {
  const named = (/** @type {any} */ one) => names.get(who(one)) ?? one.subject;
  const none = h("p", {}, "Make one to have another program told, such as a door or a home's automation.");
  if (!found.length) return nothing("No webhook yet", none);
  const card = (/** @type {any} */ one) => {
    /** @type {(button: any, words: string, work: () => Promise<unknown>) => Promise<unknown>} */
    const act = (button, words, work) =>
      showing(place, async () => {
        await busy(button, work);
        toast(words);
        await load();
      });
    const resume = h("button.small", {
      type: "button",
      onclick: () => act(resume, "It is sent to again.", () => post(`${path("webhooks", one.id)}/resume`)),
    });
    const text = "Nothing is sent there any more, and its secret is gone.";
    const drop = h("button.danger.small", {
      type: "button",
      "aria-label": `Delete ${one.url}`,
      onclick: async () => {
        if (await confirm({ title: "Delete this webhook?", text: `${one.url}. ${text}`, action: "Delete it" }))
          await act(drop, "The webhook is deleted.", () => remove(path("webhooks", one.id)));
      },
    });
    drop.append("Delete");
    resume.append("Resume");
    const [word, kind] = standing(one);
    const problem = `${one.last_error}${one.failing_since ? `, since ${when(one.failing_since)}` : ""}`;
    return h(
      "li.card.webhook",
      {},
      h("div.row.apart", {}, h("h2.url", {}, one.url), h(`span.pill.${kind}`, {}, word)),
      facts([
        ["When", list(one.kinds.map((/** @type {string} */ name) => KINDS[name] ?? name))],
        ["Galleries", one.galleries ? list(one.galleries) : ALL],
        ["Cameras", one.cameras ? list(one.cameras) : ALL],
        ["People", one.subjects ? list(one.subjects.map(named)) || "those it was for are gone: nothing is sent" : ALL],
        ["At most", one.quiet_s && `one like another in ${one.quiet_s} seconds`],
        ["Last delivery", when(one.delivered_at)],
        ["Problem", one.last_error && problem],
      ]),
      h("div.row", {}, one.state === "set_aside" && resume, drop),
    );
  };
  return h("ul.stack", {}, found.map(card));
}

/** @param {{gallery: string, subject: string}} one */
const who = ({ gallery, subject }) => JSON.stringify([gallery, subject]);

/** @param {any} one */
const standing = ({ state, attempts }) => {
  if (state === "set_aside") return ["set aside: it failed for a day", "bad"];
  return attempts ? ["not answering, tried again", "uncertain"] : ["active", "known"];
};

/**
 * Asks for a new webhook, and shows its secret; whether one was made.
 * @param {Page.Place} place
 */
async function add(place) {
  const galleries = await showing(place, everyGallery);
  if (!galleries) return false;
  const url = h("input", {
    type: "url",
    required: true,
    maxlength: 2048,
    placeholder: "https://",
    autocomplete: "off",
  });
  const cameras = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const quiet = h("input", { type: "number", min: 0, max: 86_400, value: "0" });
  const kinds = Object.entries(KINDS).map(([name, words]) => [name, box(), words]);
  const boxes = galleries.map((/** @type {any} */ one) => [one.id, box(), one.id]);
  const people = new People(galleries.map((/** @type {any} */ one) => one.id));
  for (const [name, one] of kinds) one.checked = name !== "left";
  const asked = () => ({
    url: url.value.trim(),
    kinds: chosen(kinds),
    galleries: orNull(chosen(boxes)),
    cameras: orNull(
      cameras.value
        .split(",")
        .map((/** @type {string} */ name) => name.trim())
        .filter(Boolean),
    ),
    subjects: orNull(people.chosen.map(({ gallery, subject }) => ({ gallery, subject }))),
    quiet_s: Number(quiet.value),
  });
  const fields = [
    field("Address", url, "Where events are posted. Private ones need LIKENESS_WEBHOOK_NETWORKS."),
    ticks("When", kinds),
    boxes.length > 1 && ticks("Only in these galleries (all of them, if none is ticked)", boxes),
    boxes.length > 0 && people.element,
    field("Only of these cameras", cameras, "Names with commas between; all cameras, if empty."),
    field(
      "Quiet seconds",
      quiet,
      "After an event, others of the same kind, camera and person are left out for so long.",
    ),
  ];
  const made = await request("New webhook", fields, "Make it", () => post(path("webhooks"), asked()));
  if (made) await showSecret(made);
  return Boolean(made);
}

/** Who a webhook is about, chosen one after the other; nobody: it is about everybody. */
class People {
  /** @param {string[]} galleries */
  constructor(galleries) {
    /** @type {{gallery: string, subject: string, name: string}[]} */
    this.chosen = [];
    this.shown = h("div.people-chosen", {});
    const gallery = select(
      galleries.map((id) => [id, id]),
      galleries[0],
      () => {},
      { "aria-label": "Gallery of the person" },
    );
    const one = new PersonField(
      () => gallery.value,
      {},
      (/** @type {any} */ subject) => {
        one.input.value = "";
        one.chosen = null;
        this.take({ gallery: gallery.value, subject: subject.id, name: nameOf(subject) });
      },
    );
    const label = h("label", { for: one.input.id }, "Only about these people");
    const row = h("div.row", {}, one.element, galleries.length > 1 && gallery);
    this.element = h("div.field", {}, label, row, h("p.hint", {}, "Everybody, if nobody is chosen."), this.shown);
  }

  /** @param {{gallery: string, subject: string, name: string}} one */
  take(one) {
    if (!this.chosen.some((other) => who(other) === who(one))) this.chosen.push(one);
    this.show();
  }

  show() {
    const drop = (/** @type {any} */ one) => {
      this.chosen = this.chosen.filter((other) => other !== one);
      this.show();
    };
    const button = (/** @type {any} */ one) =>
      h(
        "button.small",
        { type: "button", "aria-label": `Without ${one.name}`, onclick: () => drop(one) },
        one.name,
        " ×",
      );
    put(this.shown, this.chosen.map(button));
  }
}

const box = () => h("input", { type: "checkbox" });
/** @param {any[][]} boxes */
const chosen = (boxes) => boxes.filter(([, one]) => one.checked).map(([name]) => name);
/** @param {any[]} values */
const orNull = (values) => (values.length ? values : null);

/**
 * @param {string} title
 * @param {any[][]} boxes
 */
const ticks = (title, boxes) =>
  h(
    "fieldset",
    {},
    h("legend", {}, title),
    boxes.map(([, one, words]) => h("label.choice", {}, one, h("span", {}, words))),
  );

/** @param {any} made */
const showSecret = (made) =>
  openDialog(
    "The webhook's secret",
    (close) => {
      const secret = h("input.mono", {
        type: "text",
        readonly: true,
        value: made.secret,
        onfocus: () => secret.select(),
      });
      const hint = "Its receiver checks signatures with it. It is shown only this once.";
      const done = h("button", { type: "button", onclick: () => close() }, "I have it");
      return h("div", {}, field("Secret", secret, hint), h("div.row.end", {}, done));
    },
    { held: true },
  );
