/** A grid of any number of cells, of which only those in sight exist. Rows come from the server page by page. */

import { h } from "./dom.js";

const MARGIN_ROWS = 3;

export class Grid {
  /**
   * `load(cursor)` gives {items, next}; `cell(item)` an element; `total` how many there will be, null: nobody knows.
   * Cells are at least `width` pixels wide, and `more` higher than wide. `onload(count, done)` hears how far it is.
   * @param {any} options
   */
  constructor({ load, cell, total, width, more, label, onload }) {
    this.load = load;
    this.cell = cell;
    this.total = total;
    this.width = width;
    this.more = more;
    this.onload = onload;
    /** @type {any[]} */
    this.items = [];
    /** @type {string | null} */
    this.cursor = null;
    this.done = false;
    this.loading = false;
    this.cells = new Map();
    this.element = h("div.grid", {
      role: "list",
      "aria-label": label,
      onkeydown: (/** @type {any} */ event) => this.steer(event),
    });
    this.draw = this.draw.bind(this);
    this.soon = () => (this.frame ??= requestAnimationFrame(this.draw));
    this.seen = new ResizeObserver(this.soon);
    this.seen.observe(this.element);
    addEventListener("scroll", this.soon, { passive: true });
  }

  leave() {
    this.left = true;
    this.seen.disconnect();
    removeEventListener("scroll", this.soon);
  }

  get count() {
    return this.done ? this.items.length : Math.max(this.total ?? 0, this.items.length);
  }

  get columns() {
    return Math.max(1, Math.floor((this.element.clientWidth || this.width) / this.width));
  }

  get height() {
    return Math.floor((this.element.clientWidth || this.width) / this.columns) + this.more;
  }

  /**
   * Fetches pages until the one with `index` is there.
   * @param {number} index
   */
  async reach(index) {
    if (this.loading) return;
    this.loading = true;
    try {
      while (!this.done && !this.left && this.items.length <= Math.max(index, this.wanted ?? 0)) {
        const page = await this.load(this.cursor);
        if (this.left) return;
        this.items.push(...page.items);
        this.cursor = page.next;
        this.done = page.next === null;
        this.onload(this.items.length, this.done);
        this.soon();
      }
    } finally {
      this.loading = false;
    }
  }

  draw() {
    /** @type {number | null} */
    this.frame = null;
    if (this.left || !this.element.isConnected) return;
    const { columns, height } = this;
    const rows = Math.ceil(this.count / columns);
    this.element.style.height = `${rows * height}px`;
    const top = -this.element.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / height) - MARGIN_ROWS) * columns;
    const last = Math.min(this.count, (Math.ceil((top + innerHeight) / height) + MARGIN_ROWS) * columns);
    this.wanted = last;
    for (const [index, element] of this.cells)
      if ((index < first || index >= last) && !element.contains(document.activeElement)) this.drop(index, element);
    for (let index = last - 1; index >= first; index--) this.place(index, columns); // each before the one after it
    if (!this.done) void this.reach(last);
  }

  /**
   * @param {number} index
   * @param {HTMLElement} element
   */
  drop(index, element) {
    element.remove();
    this.cells.delete(index);
  }

  /**
   * @param {number} index
   * @param {any} columns
   */
  place(index, columns) {
    const item = this.items[index];
    let element = this.cells.get(index);
    if (item && element?.classList.contains("empty")) {
      this.drop(index, element);
      element = null;
    }
    if (!element) {
      element = h(
        `div.cell${item ? "" : ".empty"}`,
        {
          role: "listitem",
          "aria-setsize": this.done || this.total === null ? this.count : this.total,
          "aria-posinset": index + 1,
        },
        item && this.cell(item),
      );
      this.cells.set(index, element);
      this.element.insertBefore(element, this.cells.get(index + 1) ?? null);
    }
    element.style.width = `${100 / columns}%`;
    element.style.height = `${this.height}px`;
    element.style.left = `${((index % columns) * 100) / columns}%`;
    element.style.top = `${Math.floor(index / columns) * this.height}px`;
  }

  /**
   * Arrow keys go from cell to cell.
   * @param {KeyboardEvent} event
   */
  steer(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
    const [index] = [...this.cells].find(([, element]) => element.contains(event.target)) ?? [];
    if (!step || index === undefined || !this.items[index + step]) return;
    event.preventDefault();
    const top = this.element.getBoundingClientRect().top + Math.floor((index + step) / this.columns) * this.height;
    if (top < this.height || top + this.height > innerHeight) scrollBy(0, top - innerHeight / 2);
    this.draw();
    this.cells
      .get(index + step)
      ?.querySelector("a, button")
      ?.focus({ preventScroll: true });
  }
}
