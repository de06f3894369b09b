/** A person's metadata as fields, each with a name and a value. Values that are not texts are shown as JSON. */

import { h, put } from "./dom.js";
import { icon } from "./icons.js";
import { facts } from "./parts.js";

/** @param {any} value */
const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/**
 * The metadata as a list to read; null if there is none.
 * @param {Record<string, any>} metadata
 */
export const metadataFacts = (metadata) =>
  Object.keys(metadata).length
    ? facts(Object.entries(metadata).map(([word, value]) => [word, written(value) || "–"]))
    : null;

/** Fields to edit metadata; `value` is the metadata in them. */
export class MetadataFields {
  /** @param {Record<string, any>} metadata */
  constructor(metadata) {
    this.rows = Object.entries(metadata).map(([word, value]) => this.row(word, value));
    this.list = h("ul.stack", {});
    const add = h("button.small", { type: "button", onclick: () => this.add() }, icon("plus"), "Add a field");
    this.element = h("fieldset.stack.metadata", {}, h("legend", {}, "More about them"), this.list, h("div", {}, add));
    this.show();
  }

  add() {
    this.rows.push(this.row("", ""));
    this.show();
    this.rows.at(-1)?.word.focus();
  }

  show() {
    put(
      this.list,
      this.rows.map(({ element }) => element),
    );
  }

  /**
   * @param {string} word
   * @param {any} value
   */
  row(word, value) {
    const input = (/** @type {string} */ text, /** @type {string} */ label) =>
      h("input", { type: "text", autocomplete: "off", value: text, placeholder: label, "aria-label": label });
    const row = { word: input(word, "Field"), text: input(written(value), "Value"), value, element: null };
    if (word) {
      row.word.setAttribute("aria-label", `Name of ${word}`);
      row.text.setAttribute("aria-label", `Value of ${word}`);
    }
    const drop = () => {
      this.rows = this.rows.filter((other) => other !== row);
      this.show();
    };
    const remove = h(
      "button.quiet.small",
      { type: "button", "aria-label": word ? `Remove ${word}` : "Remove the field", onclick: drop },
      "×",
    );
    row.element = h("li.row", {}, row.word, row.text, remove);
    return row;
  }

  /** Throws an error with a message for the user if a value has no name, two have the same, or JSON is invalid. */
  get value() {
    /** @type {[string, any][]} */
    const pairs = [];
    for (const { word, text, value } of this.rows) {
      const name = word.value.trim();
      if (!name && !text.value) continue;
      if (!name) throw wrong(`Say what “${text.value}” is: its field has no name.`);
      if (pairs.some(([other]) => other === name)) throw wrong(`Two fields are called “${name}”. Rename one.`);
      pairs.push([name, read(name, text.value, value)]);
    }
    return Object.fromEntries(pairs);
  }
}

/**
 * Return the value of a field's text; it keeps the type of the value before, if the text can be read as such.
 * @param {string} name
 * @param {string} text
 * @param {any} before
 */
function read(name, text, before) {
  if (typeof before === "string") return text;
  if (text === written(before)) return before;
  try {
    return JSON.parse(text);
  } catch {
    if (typeof before !== "object" || before === null) return text;
    throw wrong(`“${name}” holds a list or an object: check its brackets, quotes and commas.`);
  }
}

/** @param {string} message */
const wrong = (message) => Object.assign(new Error(message), { code: "metadata" });
