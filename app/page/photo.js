/** A place for one photo: dropped, pasted, chosen, or taken with the camera. */

import { boxes, sheet } from "./boxes.js";
import { takePhoto } from "./camera.js";
import { h, newId, put } from "./dom.js";
import { icon } from "./icons.js";
import { keep, recall } from "./memory.js";
import { blank, decoded, fitted } from "./picture.js";

/** The label of a place that is the view's only one. */
const ONLY = "Photo";
const places = new Set();
/** The assumed shape of a photo that the browser can't decode, until the server says how large it is. */
const UNKNOWN = { width: 4, height: 3 };

addEventListener("paste", (event) => {
  const photo = [...(event.clipboardData?.files ?? [])].find((file) => file.type.startsWith("image/"));
  const open = [...places].filter((place) => place.element.isConnected);
  const place =
    open.find((other) => other.element.contains(document.activeElement)) ??
    open.find((other) => !other.coming) ??
    open.at(-1);
  if (photo && place) void place.take(photo);
});
/** So that a photo dropped beside a place does not replace the page. */
for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());

/**
 * Calls `onphoto(place)` for each new photo: `place.photo` is the Blob, `place.picture` what can be drawn of it (null
 * if this browser can't show its kind). The photo is kept for when the user comes back to the view, until it is
 * removed; then `onphoto` is called with `place.photo` null.
 */
export class PhotoPlace {
  /**
   * @param {string} label
   * @param {(place: PhotoPlace) => unknown} onphoto
   * @param {string} name what the photo is kept under
   */
  constructor(label, onphoto, name) {
    this.coming = null; // the photo that was chosen and is being read
    /** @type {Blob | null} */
    this.photo = null;
    /** @type {any} */
    this.picture = null;
    this.url = "";
    /** @type {any} what a view notes below the photo */
    this.note = null;
    this.onphoto = onphoto;
    this.label = label;
    this.name = name;
    // If a view has several places, their buttons' names contain the places' labels.
    const named = (/** @type {string} */ words) => ({
      "aria-label": label === ONLY ? null : `${words}: ${label.toLowerCase()}`,
    });
    this.input = h("input.hidden", {
      ...named("Choose a photo"),
      type: "file",
      accept: "image/*",
      id: newId("photo"),
      onchange: () => this.chosen(),
    });
    this.stage = h("div.stage", { onclick: () => this.stage.querySelector(".invitation") && this.input.click() });
    const camera = h(
      "button",
      { ...named("Camera"), type: "button", onclick: async () => this.take(await takePhoto()) },
      icon("camera"),
      "Camera",
    );
    const choose = h("label.button", { for: this.input.id }, icon("photo"), "Choose a photo");
    const remove = { ...named("Remove"), type: "button", hidden: true, onclick: () => this.remove() };
    this.removal = h("button.quiet", remove, "Remove");
    this.element = h(
      "section.photo",
      {
        "aria-label": label,
        ondragover: (/** @type {any} */ event) => this.over(event, true),
        ondragleave: (/** @type {any} */ event) => this.over(event, false),
        ondrop: (/** @type {any} */ event) => this.dropped(event),
      },
      h("h2", {}, label),
      this.stage,
      h("div.row", {}, this.input, choose, camera, this.removal),
    );
    this.empty();
    places.add(this);
    queueMicrotask(() => this.take(recall(name)));
  }

  /** Ends the place when its view is left; the photo is kept. */
  leave() {
    places.delete(this);
    if (this.url) URL.revokeObjectURL(this.url);
  }

  /** Forgets the photo. */
  drop() {
    if (this.url) URL.revokeObjectURL(this.url);
    Object.assign(this, { coming: null, photo: null, url: "", picture: null });
    keep(this.name, null);
    this.removal.hidden = true;
  }

  remove() {
    this.drop();
    this.empty();
    this.input.focus();
    return this.onphoto(this);
  }

  /**
   * Takes a photo that the stage shows already.
   * @param {Blob} photo
   * @param {any} picture what can be drawn of it
   */
  have(photo, picture) {
    Object.assign(this, { photo, picture });
    keep(this.name, photo);
    this.removal.hidden = false;
  }

  empty() {
    put(
      this.stage,
      h("p.invitation", {}, icon("person"), h("span", {}, "Drop a photo here, paste one, or click to choose")),
    );
  }

  chosen() {
    const [file] = this.input.files;
    this.input.value = "";
    return this.take(file);
  }

  /**
   * @param {any} event
   * @param {any} is
   */
  over(event, is) {
    event.preventDefault();
    this.element.classList.toggle("over", is);
  }

  /** @param {any} event */
  dropped(event) {
    this.over(event, false);
    return this.take([...event.dataTransfer.files][0]);
  }

  /** @param {any} chosen */
  async take(chosen) {
    if (!chosen) return;
    this.coming = chosen;
    const photo = await fitted(chosen);
    const url = URL.createObjectURL(photo);
    const picture = await decoded(url, `${this.label}, as chosen`);
    if (this.coming !== chosen || !places.has(this)) return URL.revokeObjectURL(url); // outdated
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = url;
    this.have(photo, picture);
    this.show([]);
    await this.onphoto(this);
  }

  /**
   * Draws boxes over the photo; `heard` as in `boxes`. `size`: the photo's, if the server said it.
   * @param {Page.Boxed[]} faces
   * @param {Page.Size | null} [size]
   * @param {string} [words]
   * @param {Page.Heard} [heard]
   */
  show(faces, size = null, words = "", heard = {}) {
    const shown =
      size ?? (this.picture ? { width: this.picture.naturalWidth, height: this.picture.naturalHeight } : UNKNOWN);
    put(
      this.stage,
      sheet(shown, this.picture ?? blank(shown), faces.length ? boxes(shown, faces, words, heard) : null),
    );
  }
}
