/** API keys: to create for people and programs, to hand over as a link or as text, to revoke. */

import { call, every, path, post, remove } from "../api.js";
import { everyGallery } from "../choosing.js";
import { confirm, field, h, newId, put, toast } from "../dom.js";
import { icon } from "../icons.js";
import { copied, facts, galleryTicks, head, nothing, request, showOnce, ticks } from "../parts.js";
import { busy, filling, problemPlace, showing } from "../problem.js";
import { when } from "../words.js";

/** What each scope allows, in the order of the form. */
const SCOPES = {
  recognize: "Compare photos, and identify people in them",
  read: "See galleries, people and their faces",
  enroll: "Enroll, change and delete people and faces",
  admin: "Everything but exact scores, including keys and the audit log",
  delete: "Delete through CompreFace's, Rekognition's and DeepStack's interfaces, where one call may delete everybody",
  metrics: "Read the server's metrics",
  watch: "Tell of sightings: for a watcher beside cameras",
  templates: "See exact scores of enrolled faces; with enough of them a template can be reconstructed",
};

/** Choices of what a key is for, and the scopes that this takes. The last choice shows all scopes. */
/** @type {[string, string[] | null][]} */
const ROLES = [
  ["See who somebody is", ["recognize", "read"]],
  ["That, and enroll people", ["recognize", "read", "enroll"]],
  ["Everything, keys too", ["admin"]],
  ["Something else, for a program", null],
];
const CUSTOM = ROLES.length - 1;

export function keys() {
  const place = problemPlace();
  const body = h("div", {});
  /** @type {any} */
  const state = { place, body };
  const create = h("button.primary", { type: "button", onclick: () => make(state) }, icon("plus"), "New key");
  const element = h(
    "div",
    {},
    head(
      "Keys",
      "A key for each person and each program, with no more than it needs. The server stores only the hash " +
        "of its secret.",
      create,
    ),
    place.element,
    body,
  );
  return { element, ready: filling(place, body, () => list(state)) };
}

/** @param {any} state */
const list = async (state) => listed(state, (await every(path("keys"), "keys")).reverse());
/** @param {any} state */
const load = (state) => showing(state.place, async () => put(state.body, await list(state)));

/**
 * @param {any} state
 * @param {Api.Key[]} found
 */
function listed(state, found) {
  if (!found.length)
    return nothing("No key but admin.key yet", h("p", {}, "Create one for everybody else who uses this server."));
  return h(
    "ul.stack",
    {},
    found.map((key) => card(state, key)),
  );
}

/**
 * @param {any} state
 * @param {Api.Key} key
 */
function card(state, key) {
  const [word, kind] = standing(key);
  const known = [
    ["May", key.scopes.join(", ")],
    ["Galleries", key.galleries?.join(", ") ?? "all"],
    ["Rate", key.rate ?? "the server's default"],
    ["Made", when(key.created_at)],
    ["Expires", when(key.expires_at)],
    ["Rotated", key.rotated_at && when(key.rotated_at)],
    ["Declared", key.declared && "in the server's keys file"],
  ];
  return h(
    "li.card.key",
    {},
    h(
      "div.row.apart",
      {},
      h("h2", {}, key.id, key.name && h("span.lead", {}, ` ${key.name}`)),
      h(`span.pill.${kind}`, {}, word),
    ),
    facts(known),
    !key.revoked_at &&
      h(
        "div.row",
        {},
        h(
          "button.small",
          { type: "button", "aria-label": `New secret for ${key.id}`, onclick: () => rotate(state, key) },
          "New secret",
        ),
        h(
          "button.danger.small",
          { type: "button", "aria-label": `Revoke ${key.id}`, onclick: () => revoke(state, key) },
          "Revoke",
        ),
      ),
  );
}

/** @param {Api.Key} key */
function standing(key) {
  if (key.revoked_at) return [`revoked ${when(key.revoked_at)}`, "bad"];
  return key.expires_at && new Date(key.expires_at) < new Date() ? ["expired", "bad"] : ["valid", "known"];
}

/** @param {any} state */
async function make(state) {
  const id = h("input", {
    type: "text",
    maxlength: 63,
    autocomplete: "off",
    spellcheck: "false",
    pattern: "[a-z0-9]([a-z0-9\\-]*[a-z0-9])?",
  });
  const name = h("input", { type: "text", maxlength: 255, autocomplete: "off" });
  const rate = h("input", { type: "text", maxlength: 32, autocomplete: "off", placeholder: "10/s" });
  const expires = h("input", { type: "datetime-local" });
  const known = await showing(state.place, everyGallery);
  if (!known) return;
  let role = 0;
  const scopes = ticks("It may", Object.entries(SCOPES));
  const galleries = galleryTicks(known.map((/** @type {any} */ gallery) => gallery.id));
  const asked = () => ({
    scopes: ROLES[role][1] ?? scopes.chosen(),
    ...(id.value && { id: id.value }),
    ...(name.value.trim() && { name: name.value.trim() }),
    ...(galleries.chosen().length && { galleries: galleries.chosen() }),
    ...(rate.value.trim() && { rate: rate.value.trim() }),
    ...(expires.value && { expires_at: new Date(expires.value).toISOString() }),
  });
  const choose = (/** @type {number} */ index) => {
    role = index;
    scopes.element.hidden = index !== CUSTOM;
  };
  choose(role);
  const fields = [
    field("Whose is it?", name, "A person's name, or a program's. Each gets a key of their own."),
    roles(choose),
    scopes.element,
    known.length > 0 && galleries.element,
    h(
      "details.stack",
      {},
      h("summary", {}, "Id, rate and expiry"),
      h(
        "div.two",
        {},
        field("Id", id, "a–z, 0–9, hyphens; made up if empty"),
        field("Rate", rate, "the server's default, if empty"),
      ),
      field("Expires", expires, "never, if empty"),
    ),
  ];
  const made = await request("New key", fields, "Create", async () => {
    if (role === CUSTOM && !scopes.chosen().length)
      throw Object.assign(new Error("Tick at least one thing that it may do."), { code: "no_scope" });
    return post(path("keys"), asked());
  });
  if (!made) return;
  await load(state);
  await showSecret(made);
}

/** @param {(index: number) => void} choose */
function roles(choose) {
  const name = newId("role");
  return h(
    "fieldset",
    {},
    h("legend", {}, "They may"),
    ROLES.map(([words], index) =>
      h(
        "label.choice",
        {},
        h("input", { type: "radio", name, checked: index === 0, onchange: () => choose(index) }),
        h("span", {}, words),
      ),
    ),
  );
}

/**
 * Shows the key, which can't be looked up again, and offers a link that signs its holder in.
 * @param {Api.NewKey} key
 */
function showSecret(key) {
  const place = problemPlace();
  const linked = h("div", {});
  const invite = h(
    "button.primary",
    { type: "button", onclick: () => showing(place, () => busy(invite, link)) },
    "Make a link",
  );
  const link = async () => {
    const made = await call("POST", path("sign-in-codes"), { secret: key.secret, query: { valid: "day" } });
    const hint = `Send it to nobody else. It signs in once, until ${when(made.expires_at)}.`;
    put(linked, copied("Link", `${location.origin}/#code=${made.code}`, hint));
  };
  put(
    linked,
    h("p", {}, "For a person: a link that signs them in, once within a day. No key has to be typed."),
    h("div.row", {}, invite),
  );
  return showOnce(
    `The key ${key.name ? `of ${key.name}` : key.id}`,
    linked,
    place.element,
    copied("Key", key.secret, "For a program, or to sign in again later. It is shown only this once."),
  );
}

/**
 * @param {any} state
 * @param {Api.Key} key
 */
async function rotate(state, key) {
  const sure = await confirm({
    title: `A new secret for ${key.id}?`,
    text: "The current secret stops working at once. What the key allows stays the same.",
    action: "Make a new secret",
  });
  if (!sure) return;
  const made = await showing(state.place, () => post(`${path("keys", key.id)}/rotate`, {}));
  if (!made) return;
  await load(state);
  await showSecret(made);
}

/**
 * @param {any} state
 * @param {Api.Key} key
 */
async function revoke(state, key) {
  const sure = await confirm({
    title: `Revoke ${key.id}?`,
    text: "Everybody who uses it is locked out at once, for good.",
    action: "Revoke the key",
  });
  if (!sure) return;
  await showing(state.place, async () => {
    await remove(path("keys", key.id));
    toast(`${key.id} is revoked.`);
  });
  await load(state);
}
