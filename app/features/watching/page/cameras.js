/** The view of the cameras: whether pictures arrive, who was seen in the last hour, and why nobody is recognised. */

import { get, path } from "../api.js";
import { h, put } from "../dom.js";
import { facts, head, later } from "../parts.js";
import { filling, problemPlace, showing } from "../problem.js";
import { link, remember } from "../router.js";
import { count, percent, whole } from "../words.js";
import { moment, pictureOf } from "./sighting.js";
import { galleryChoice, howToBegin, ofGallery } from "./watched.js";

const EVERY_MS = 15_000;
/** Without a report for this long, a watcher is silent. Watchers report on their cameras every 30 seconds. */
const SILENT_MS = 90_000;
const USABLE = 0.2;
/** Faces narrower than this, in pixels, are called too small. */
const NARROW = 30;
const SILENT = "Its watcher is silent: is likeness watch running, and does it reach this server?";
const UNTOLD = "Nobody reports how it is: a film, or sightings that another program has sent.";
const GONE = "check its address, its password and the network. It is tried again.";
const NO_FACES = "No face was seen in the last hour. If people came by: move the camera, or use the main stream.";
/** @type {Record<string, string>} */
const ADVICE = {
  low_sharpness: "Faces are blurred: light the place, clean the lens, or set a shorter exposure.",
  low_brightness: "Faces are too dark: light the place, or turn the camera away from the window.",
  overexposed: "Faces are too bright: turn the camera away from the light.",
  extreme_pose: "Faces are turned away: hang the camera lower, where people look towards it.",
  cut_off: "Faces are cut off by the picture's edge: turn the camera, or widen its --roi.",
  low_score: "What is seen hardly looks like faces: turn the camera to where people come towards it.",
  unalignable: "Eyes, nose and mouth are hidden or turned away: hang the camera lower.",
};

/**
 * `#/cameras`; the query may have `gallery`.
 * @param {string[]} _segments
 * @param {URLSearchParams} query
 */
export function cameras(_segments, query) {
  const place = problemPlace();
  const body = h("div.stack", {});
  const choice = h("div", {});
  const again = later(body);
  const top = head("Cameras", "Whether they are there, and what they have shown in the last hour.", choice);
  const element = h("div", {}, top, place.element, body);
  const load = async (/** @type {string} */ gallery) => {
    const { cameras } = await get(path("galleries", gallery, "cameras"));
    again.set(() => refresh(gallery), EVERY_MS);
    const cards = cameras.map((/** @type {Api.CameraState} */ camera) => card(gallery, camera));
    return cards.length ? h("ul.cards", {}, cards) : howToBegin(gallery, "No camera yet");
  };
  const refresh = (/** @type {string} */ gallery) =>
    showing(place, async () => {
      again.set(() => refresh(gallery), EVERY_MS); // also after an error
      const shown = await load(gallery);
      const focused = [...body.querySelectorAll("a")].indexOf(document.activeElement);
      put(body, shown);
      body.querySelectorAll("a")[focused]?.focus({ preventScroll: true });
    });
  const open = (/** @type {string} */ gallery) => {
    remember({ gallery });
    return refresh(gallery);
  };
  const begin = (/** @type {string[]} */ ids, /** @type {string} */ gallery) => {
    put(choice, galleryChoice(ids, gallery, open));
    return load(gallery);
  };
  const ready = filling(place, body, () => ofGallery(query, begin));
  return { element, ready, leave: again.clear };
}

/**
 * @param {string} gallery
 * @param {Api.CameraState} camera
 */
function card(gallery, camera) {
  const [words, kind, advice] = stateOf(gallery, camera);
  const sightings = `${link("today")}?${new URLSearchParams({ gallery, camera: camera.name })}`;
  const picture = camera.picture && pictureOf(gallery, { id: camera.picture }, `The last face before ${camera.name}`);
  const title = h("div", {}, h("h2", {}, camera.name), h(`span.pill.${kind}`, {}, words));
  const shown = facts([
    ["Last hour", `${count(camera.visits, "visit")}, ${camera.known} by known people`],
    ["Faces", facesOf(camera)],
    ["Last seen", camera.last_at ? moment(camera.last_at) : "nobody yet"],
  ]);
  const all = h("p", {}, h("a", { href: sightings, "aria-label": `Sightings of ${camera.name}` }, "Sightings"));
  return h("li.card.camera", {}, h("div.who", {}, picture, title), shown, advice && h("p.advice", {}, advice), all);
}

/** @param {Api.CameraState} camera */
const facesOf = ({ faces = 0, usable = 0, width }) =>
  faces > 0 &&
  `${whole(faces)} in its pictures, ${percent(usable / faces)} usable` +
    (width ? `, ${Math.round(width)} px wide` : "");

/**
 * The camera's state: [a word, the style of its label, what to do].
 * @param {string} gallery
 * @param {Api.CameraState} camera
 * @returns {[string, string, string?]}
 */
function stateOf(gallery, camera) {
  const { told_at: told, problem, faces = 0, usable = 0, visits, known } = camera;
  if (!told) return ["no report", "unknown", UNTOLD];
  if (Date.now() - Date.parse(told) > SILENT_MS) return ["silent", "bad", `${SILENT} Last heard of ${moment(told)}.`];
  if (problem) return ["no pictures", "bad", `No pictures come (${problem}): ${GONE}`];
  if (!faces && !visits) return ["watching", "known", NO_FACES]; // its watcher may have begun to count just now
  if (usable < USABLE * faces) return ["watching", "known", whyPoor(camera)];
  if (visits && !known) return ["watching", "known", `Only people who are not enrolled in ${gallery} came by.`];
  return ["watching", "known"];
}

/** @param {Api.CameraState} camera */
function whyPoor({ reasons = {}, width }) {
  const [worst] = Object.entries(reasons).sort(([, first], [, second]) => second - first)[0] ?? ["small_face"];
  if (worst === "small_face" || (width && width < NARROW))
    return `Faces are ${width ? `${Math.round(width)} px wide` : "too small"}: move the camera or use the main stream.`;
  return ADVICE[worst] ?? "Faces are too poor to be compared: light the place, or move the camera nearer.";
}
