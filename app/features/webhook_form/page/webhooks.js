/** Webhooks: addresses that are told who was before a camera. Made, resumed and deleted here. */

import { get, path, post, remove } from "../api.js";
import { everyGallery } from "../choosing.js";
import { confirm, field, h, put, select, toast } from "../dom.js";
import { icon } from "../icons.js";
import { copied, facts, galleryTicks, head, nothing, request, showOnce, ticks } from "../parts.js";
import { busy, filling, problemPlace, showing } from "../problem.js";
import { PersonField } from "../suggest.js";
import { count, list, nameOf, sentence, when } from "../words.js";

/** @type {Record<string, string>} */
const KINDS = {
  person_seen: "somebody known was seen",
  unknown_seen: "somebody unknown was seen",
  name_changed: "a name was put right",
  left: "somebody has left",
};
const LEAD =
  "Addresses that the server tells who was before a camera: at least once, in order, and signed as Standard Webhooks " +
  "has it.";
const ALL = "all";
const DROP = "Nothing is sent there any more, and its secret is gone.";
/** People whose names are looked up; others are shown by their ids. */
const LOOKED_UP = 50;

export function webhooks() {
  const place = problemPlace();
  const body = h("div", {});
  const load = () =>
    filling(place, body, async () => {
      /** @type {Api.Webhook[]} */
      const found = (await get(path("webhooks"))).webhooks;
      const names = await namesOf(found.flatMap((webhook) => webhook.subjects ?? []));
      if (found.length)
        return h(
          "ul.stack",
          {},
          found.map((webhook) => card(webhook, names, act)),
        );
      return nothing(
        "No webhook yet",
        h("p", {}, "Make one to have another program told, such as a door or a home's automation."),
      );
    });
  /** @type {Act} */
  const act = (button, words, work) =>
    showing(place, async () => {
      await busy(button, work);
      toast(words);
      await load();
    });
  const make = async () => (await add(place)) && load();
  const button = h("button.primary", { type: "button", onclick: make }, icon("plus"), "New webhook");
  return { element: h("div", {}, head("Webhooks", LEAD, button), place.element, body), ready: load() };
}

/**
 * Return these people's names, by the keys that `who` gives.
 * @param {Api.WebhookSubject[]} people
 */
async function namesOf(people) {
  const named = async (/** @type {Api.WebhookSubject} */ person) => {
    const found = await get(path("galleries", person.gallery, "subjects", person.subject)).catch(() => null);
    return /** @type {[string, string]} */ ([who(person), nameOf(found ?? person)]);
  };
  return new Map(await Promise.all(people.slice(0, LOOKED_UP).map(named)));
}

/**
 * @typedef {(button: any, words: string, work: () => Promise<unknown>) => Promise<unknown>} Act does the work, shows
 *   the words as a message, and reads the webhooks again
 * @param {Api.Webhook} webhook
 * @param {Map<string, string>} names
 * @param {Act} act
 */
function card(webhook, names, act) {
  const named = (/** @type {Api.WebhookSubject} */ person) => names.get(who(person)) ?? person.subject;
  const where = path("webhooks", webhook.id);
  const onresume = (/** @type {any} */ event) =>
    act(event.currentTarget, "It is sent to again.", () => post(`${where}/resume`));
  const ondrop = async (/** @type {any} */ event) => {
    const button = event.currentTarget;
    if (await confirm({ title: "Delete this webhook?", text: `${webhook.url}. ${DROP}`, action: "Delete it" }))
      await act(button, "The webhook is deleted.", () => remove(where));
  };
  const [word, kind] = standing(webhook);
  return h(
    "li.card.webhook",
    {},
    h("div.row.apart", {}, h("h2.url", {}, webhook.url), h(`span.pill.${kind}`, {}, word)),
    facts([
      ["When", sentence(list(webhook.kinds.map((name) => KINDS[name] ?? name)))],
      ["Galleries", webhook.galleries ? list(webhook.galleries) : ALL],
      ["Cameras", webhook.cameras ? list(webhook.cameras) : ALL],
      [
        "People",
        webhook.subjects ? list(webhook.subjects.map(named)) || "those it was for are gone: nothing is sent" : ALL,
      ],
      ["At most", webhook.quiet_s && `one like another in ${count(webhook.quiet_s, "second")}`],
      ["Last delivery", when(webhook.delivered_at)],
      ["Problem", webhook.last_error],
      ["Failing since", webhook.failing_since && when(webhook.failing_since)],
    ]),
    h(
      "div.row",
      {},
      webhook.state === "set_aside" &&
        h("button.small", { type: "button", "aria-label": `Resume ${webhook.url}`, onclick: onresume }, "Resume"),
      h("button.danger.small", { type: "button", "aria-label": `Delete ${webhook.url}`, onclick: ondrop }, "Delete"),
    ),
  );
}

/** @param {Api.WebhookSubject} one */
const who = ({ gallery, subject }) => JSON.stringify([gallery, subject]);

/** @param {Api.Webhook} one */
const standing = ({ state, attempts }) => {
  if (state === "set_aside") return ["set aside: it failed for a day", "bad"];
  return attempts ? ["not answering, tried again", "uncertain"] : ["active", "known"];
};

/**
 * Creates a webhook in a dialog, and shows its secret. Returns whether one was created.
 * @param {Page.Place} place
 */
async function add(place) {
  const found = await showing(place, everyGallery);
  if (!found) return false;
  const ids = found.map((/** @type {Api.Gallery} */ gallery) => gallery.id);
  const url = h("input", {
    type: "url",
    required: true,
    maxlength: 2048,
    placeholder: "https://",
    autocomplete: "off",
  });
  const cameras = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const quiet = h("input", { type: "number", min: 0, max: 86_400, value: "0" });
  const names = Object.keys(KINDS);
  const words = Object.entries(KINDS).map(([name, text]) => /** @type {[string, string]} */ ([name, sentence(text)]));
  const kinds = ticks("When", words, { ticked: names.filter((name) => name !== "left") });
  const galleries = galleryTicks(ids);
  const people = new People(ids);
  const asked = () => ({
    url: url.value.trim(),
    kinds: kinds.chosen(),
    galleries: orNull(galleries.chosen()),
    cameras: orNull(cameras.value.split(",").flatMap((/** @type {string} */ name) => name.trim() || [])),
    subjects: orNull(people.chosen.map(({ gallery, subject }) => ({ gallery, subject }))),
    quiet_s: Number(quiet.value),
  });
  const fields = [
    field("Address", url, "Where events are posted. Private ones need LIKENESS_WEBHOOK_NETWORKS."),
    kinds.element,
    ids.length > 1 && galleries.element,
    ids.length > 0 && people.element,
    field("Only of these cameras", cameras, "Names with commas between; all cameras, if empty."),
    field(
      "Quiet seconds",
      quiet,
      "After an event, others of the same kind, camera and person are left out for so long.",
    ),
  ];
  const made = await request("New webhook", fields, "Make it", () => post(path("webhooks"), asked()));
  const hint = "Its receiver checks signatures with it. It is shown only this once.";
  if (made) await showOnce("The webhook's secret", copied("Secret", made.secret, hint));
  return Boolean(made);
}

/** Who a webhook is about, chosen one after the other; nobody: it is about everybody. */
class People {
  /** @param {string[]} galleries */
  constructor(galleries) {
    /** @type {(Api.WebhookSubject & {name: string})[]} */
    this.chosen = [];
    this.shown = h("div.people-chosen", {});
    const options = galleries.map((id) => /** @type {Page.Option} */ ([id, id]));
    const gallery = select(options, galleries[0], () => {}, { "aria-label": "Gallery of the person" });
    const finder = new PersonField(
      () => gallery.value,
      {},
      (/** @type {Api.Subject} */ subject) => {
        finder.input.value = "";
        finder.chosen = null;
        this.take({ gallery: gallery.value, subject: subject.id, name: nameOf(subject) });
      },
    );
    const label = h("label", { for: finder.input.id }, "Only about these people");
    const row = h("div.row", {}, finder.element, galleries.length > 1 && gallery);
    this.element = h("div.field", {}, label, row, h("p.hint", {}, "Everybody, if nobody is chosen."), this.shown);
  }

  /** @param {Api.WebhookSubject & {name: string}} person */
  take(person) {
    if (!this.chosen.some((other) => who(other) === who(person))) this.chosen.push(person);
    this.show();
  }

  show() {
    const button = (/** @type {Api.WebhookSubject & {name: string}} */ person) => {
      const onclick = () => {
        this.chosen = this.chosen.filter((other) => other !== person);
        this.show();
      };
      return h("button.small", { type: "button", "aria-label": `Without ${person.name}`, onclick }, person.name, " ×");
    };
    put(this.shown, this.chosen.map(button));
  }
}

/** @param {any[]} values */
const orNull = (values) => (values.length ? values : null);
