/** A grid of any number of cells, of which only those in sight exist. The server is asked for the pages in sight. */

import { h } from "./dom.js";

const MARGIN_ROWS = 3;
const PAGE = 100;

export class Grid {
  /**
   * `load(offset, limit)` gives {items, more}, or null where it failed; `cell(item)` an element; `total` how many there
   * will be, null: nobody knows. Cells are at least `width` pixels wide, and `more` higher than wide. `onload(count,
   * done)` hears how many are known of, and whether there are no others. `known` is what another grid had read, which
   * is shown until it has been read again.
   * @param {any} options
   */
  constructor({ load, cell, total, width, more, label, onload, known = null }) {
    this.load = load;
    this.cell = cell;
    this.total = total;
    this.width = width;
    this.more = more;
    this.onload = onload;
    /** @type {Map<number, any>} */
    this.items = new Map(known);
    this.pages = new Set();
    /** @type {number | null} how many there are, once the last page was read */
    this.end = null;
    this.sight = [0, 1];
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
    return this.end ?? this.total ?? this.items.size;
  }

  get columns() {
    return Math.max(1, Math.floor((this.element.clientWidth || this.width) / this.width));
  }

  get height() {
    return Math.floor((this.element.clientWidth || this.width) / this.columns) + this.more;
  }

  /** Return the first page in sight that was not read, null if there is none. */
  missing() {
    const [first, last] = this.sight;
    const most = Math.min(last, this.end ?? this.total ?? last);
    for (let page = Math.floor(first / PAGE); page * PAGE < most; page++) if (!this.pages.has(page)) return page;
    return null;
  }

  /** Reads the pages in sight one after the other; those that were passed by meanwhile are not read. */
  async fill() {
    if (this.loading) return;
    this.loading = true;
    try {
      for (let page = this.missing(); page !== null && !this.left; page = this.missing()) {
        const found = await this.load(page * PAGE, PAGE);
        if (this.left || !found) return;
        this.take(page, found);
      }
    } finally {
      this.loading = false;
    }
  }

  /**
   * @param {number} page
   * @param {{items: any[], more: boolean}} found
   */
  take(page, { items, more }) {
    this.pages.add(page);
    for (const [index, item] of items.entries()) this.put(page * PAGE + index, item);
    if (!more) this.end = page * PAGE + items.length;
    this.onload(this.count, this.end !== null);
    this.soon();
  }

  /**
   * @param {number} index
   * @param {any} item
   */
  put(index, item) {
    const shown = this.cells.get(index);
    if (shown && JSON.stringify(this.items.get(index)) !== JSON.stringify(item)) this.drop(index, shown);
    this.items.set(index, item);
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
    this.sight = [first, (Math.ceil((top + innerHeight) / height) + MARGIN_ROWS) * columns];
    const last = Math.min(this.count, this.sight[1]);
    for (const [index, element] of this.cells)
      if ((index < first || index >= last) && !element.contains(document.activeElement)) this.drop(index, element);
    for (let index = last - 1; index >= first; index--) this.place(index, columns); // each before the one after it
    void this.fill();
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
    const item = this.items.get(index);
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
          "aria-setsize": this.count,
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
    if (!step || index === undefined || !this.items.has(index + step)) return;
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
