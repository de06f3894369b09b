/**
 * A grid of any number of cells. Only cells in sight are elements, and only their items are requested from the server.
 */

import { h } from "./dom.js";

const MARGIN_ROWS = 3;
/** Items per page that is requested; consecutive missing pages in sight are requested together. */
const PAGE = 50;
/** Items to read before it is known how many cells are in sight. */
export const FIRST = 2 * PAGE;
/** The most pages that one request reads. */
const MOST_PAGES = 20;

export class Grid {
  /**
   * `load(offset, limit)` gives {items, more}, or null if it failed; `cell(item)` gives an element. `total`: the number
   * of items, null if it is unknown. Cells are at least `width` pixels wide, and `more` pixels higher than wide.
   * `onload(count, done)` is called with the number of items found so far, and whether these are all. `known`: items
   * that another grid had read, shown until they have been read again.
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
    /** @type {number | null} the number of items, once the last page was read */
    this.end = null;
    this.sight = [0, known ? 0 : FIRST];
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

  /** Return the offset and limit of the first pages in sight that were not read; null if all were. */
  missing() {
    const [first, last] = this.sight;
    const end = Math.ceil(Math.min(last, this.end ?? this.total ?? last) / PAGE);
    let page = Math.floor(first / PAGE);
    while (page < end && this.pages.has(page)) page++;
    let pages = 0;
    while (page + pages < end && pages < MOST_PAGES && !this.pages.has(page + pages)) pages++;
    return pages ? { offset: page * PAGE, limit: pages * PAGE } : null;
  }

  /** Reads the items in sight, until all are read. What was scrolled past meanwhile is not read. */
  async fill() {
    if (this.loading) return;
    this.loading = true;
    try {
      for (let wanted = this.missing(); wanted && !this.left; wanted = this.missing()) {
        const found = await this.load(wanted.offset, wanted.limit);
        if (this.left || !found) return;
        this.take(wanted, found);
      }
    } finally {
      this.loading = false;
    }
  }

  /**
   * @param {{offset: number, limit: number}} wanted
   * @param {{items: any[], more: boolean}} found
   */
  take({ offset, limit }, { items, more }) {
    for (let page = offset / PAGE; page * PAGE < offset + limit; page++) this.pages.add(page);
    for (const [index, item] of items.entries()) this.put(offset + index, item);
    if (!more) this.end = offset + items.length;
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
    // Measure before changing anything: measuring after a change makes the browser lay out the page again.
    const { columns, height } = this;
    const top = -this.element.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / height) - MARGIN_ROWS) * columns;
    this.sight = [first, (Math.ceil((top + innerHeight) / height) + MARGIN_ROWS) * columns];
    void this.fill(); // the server works while the browser draws
    const { count } = this;
    const last = Math.min(count, this.sight[1]);
    this.element.style.height = `${Math.ceil(count / columns) * height}px`;
    for (const [index, element] of this.cells)
      if ((index < first || index >= last) && !element.contains(document.activeElement)) this.drop(index, element);
    for (let index = last - 1; index >= first; index--) this.place(index, columns, height); // before the next one
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
   * @param {number} columns
   * @param {number} height of a cell, in pixels
   */
  place(index, columns, height) {
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
    element.style.height = `${height}px`;
    element.style.left = `${((index % columns) * 100) / columns}%`;
    element.style.top = `${Math.floor(index / columns) * height}px`;
  }

  /**
   * Moves the focus from cell to cell by the arrow keys.
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
