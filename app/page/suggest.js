/**
 * A field for a person of a gallery. It suggests enrolled people while the user types; any other name is a new person.
 */

import { get, path } from "./api.js";
import { portrait } from "./crops.js";
import { debounce, h, newId, openDialog, put } from "./dom.js";
import { orLeave } from "./parts.js";
import * as session from "./session.js";
import { count, nameOf } from "./words.js";

const DEBOUNCE_MS = 200;
const SHOWN = 6;
const ALIKE = 1000;
const ID_BYTES = 16;

export class PersonField {
  /**
   * `gallery()` gives the gallery's id; `props` are the input's; `onpick(subject)` is called when a person is chosen
   * from the list.
   * @param {() => string} gallery
   * @param {Record<string, any>} props
   * @param {any} [onpick]
   */
  constructor(gallery, props, onpick = (/** @type {any} */ _subject) => {}) {
    this.gallery = gallery;
    this.onpick = onpick;
    /** @type {{id: string, name: string | null} | null} */
    this.chosen = null;
    /** @type {any[]} */
    this.found = [];
    this.at = -1;
    this.list = h("ul.suggestions", {
      role: "listbox",
      id: newId("people"),
      "aria-label": "Suggestions",
      hidden: true,
    });
    const open = {
      role: "combobox",
      "aria-expanded": "false",
      "aria-autocomplete": "list",
      "aria-controls": this.list.id,
    };
    const heard = {
      oninput: () => this.typed(),
      onkeydown: (/** @type {any} */ event) => this.steer(event),
      onblur: () => this.close(),
    };
    this.input = h("input", {
      type: "text",
      maxlength: 255,
      autocomplete: "off",
      spellcheck: "false",
      id: newId("who"),
      ...props,
      ...(session.may("read") ? { ...open, ...heard } : {}),
    });
    this.look = debounce(DEBOUNCE_MS, () => this.suggest());
    this.element = h("div.suggesting", {}, this.input, this.list);
  }

  /** The id of the person chosen, else what was typed. */
  get id() {
    return this.chosen?.id ?? this.input.value.trim();
  }

  /**
   * Return the id of the person meant, and the name if they are new. If somebody has the name already, ask whether they
   * are meant; null if the user does not answer. With a key that can't look people up, the text is the id.
   * @returns {Promise<{id: string, name: string | null} | null>}
   */
  async meant() {
    const words = this.input.value.trim();
    if (this.chosen || !session.may("read")) return { id: this.id, name: null };
    const known = await namesake(this.gallery(), words);
    const same = known && (await askWhether(known));
    if (known && same === null) return null;
    return same ? { id: known.id, name: null } : { id: madeId(), name: words };
  }

  /** Replaces an id in the field by the person's name. */
  async named() {
    const { id } = this;
    if (!id) return;
    const found = await get(path("galleries", this.gallery(), "subjects", id)).catch(() => null);
    if (!found || this.chosen || this.id !== id) return;
    this.chosen = found;
    this.input.value = nameOf(found);
  }

  typed() {
    this.chosen = null;
    this.look();
  }

  async suggest() {
    const words = this.input.value.trim();
    if (!words || !this.gallery()) return this.close();
    let page = { subjects: [] };
    try {
      page = await get(path("galleries", this.gallery(), "subjects"), { search: words, limit: SHOWN });
    } catch {
      // Without suggestions, the user can still type the whole name.
    }
    if (words !== this.input.value.trim() || this.input !== document.activeElement) return;
    this.found = page.subjects;
    put(
      this.list,
      page.subjects.map((subject, index) => this.option(subject, index)),
    );
    this.list.hidden = !page.subjects.length;
    this.input.setAttribute("aria-expanded", String(!this.list.hidden));
    this.mark(-1);
  }

  /**
   * @param {Api.Subject} subject
   * @param {number} index
   */
  option(subject, index) {
    const detail = [subject.name && subject.id, count(subject.face_count, "face")].filter(Boolean).join(", ");
    return h(
      "li",
      {
        role: "option",
        id: `${this.list.id}-${index}`,
        "aria-selected": "false",
        onmousedown: (/** @type {any} */ event) => event.preventDefault() ?? this.pick(subject),
      },
      portrait(this.gallery(), subject),
      h("span.name", {}, nameOf(subject)),
      h("span.small", {}, detail),
    );
  }

  /** @param {number} index */
  mark(index) {
    this.at = index;
    for (const [place, option] of [...this.list.children].entries())
      option.setAttribute("aria-selected", String(place === index));
    if (index < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", this.list.children[index].id);
  }

  /** @param {KeyboardEvent} event */
  steer(event) {
    if (this.list.hidden) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) this.mark((this.at + step + this.found.length + Number(this.at < 0 && step < 0)) % this.found.length);
    else if (event.key === "Enter" && this.at >= 0) this.pick(this.found[this.at]);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
  }

  /** @param {Pick<Api.Subject, "id" | "name">} subject */
  pick(subject) {
    this.chosen = subject;
    this.input.value = nameOf(subject);
    this.close();
    this.onpick(subject);
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}

/** A new id, of the form that the server makes. */
const madeId = () =>
  [...crypto.getRandomValues(new Uint8Array(ID_BYTES))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/**
 * Return the person of the gallery who has exactly this id or name, null if nobody has.
 * @param {string} gallery
 * @param {string} words
 * @returns {Promise<Api.Subject | null>}
 */
async function namesake(gallery, words) {
  const wanted = words.normalize("NFC");
  /** @type {{subjects: Api.Subject[]}} */
  const { subjects } = await get(path("galleries", gallery, "subjects"), { search: wanted, limit: ALIKE });
  return subjects.find(({ id }) => id === wanted) ?? subjects.find(({ name }) => name === wanted) ?? null;
}

/**
 * Ask whether the person of this name is meant: true, false for a new person of the same name, null without an answer.
 * @param {Api.Subject} known
 */
const askWhether = (known) =>
  openDialog(`Is it the same ${nameOf(known)}?`, (close) =>
    h(
      "div",
      {},
      h("p", {}, `${nameOf(known)} is in this gallery already, with ${count(known.face_count, "face")}.`),
      orLeave(
        close,
        "Cancel",
        h("button", { type: "button", onclick: () => close(false) }, "Somebody else of that name"),
        h("button.primary", { type: "button", onclick: () => close(true) }, "The same"),
      ),
    ),
  );
