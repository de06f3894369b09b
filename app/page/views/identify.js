/** The view that identifies who is in a photo, or in front of the camera. */

import { askAnew, path, sendPhoto } from "../api.js";
import { boxes, inReadingOrder, light, sheet } from "../boxes.js";
import * as camera from "../camera.js";
import { challenge, LIMITS } from "../challenge.js";
import { galleryControl, prefer } from "../choosing.js";
import { field, h, put, select } from "../dom.js";
import { icon } from "../icons.js";
import { keep, recall } from "../memory.js";
import { defaults } from "../models.js";
import { adviceLink, head } from "../parts.js";
import { PhotoPlace } from "../photo.js";
import { toJpeg } from "../picture.js";
import { busy, isLasting, problem, problemPlace, showing } from "../problem.js";
import { count, decidedBy, list, nameOf, oneIn, score } from "../words.js";
import { faceCards } from "./found.js";

const LONGEST = 960;
const SMOOTH = 0.85;
const RATES = ["0.1", "0.01", "0.001"];
const STRICTNESS = "identify.strictness";
const RETRY_MS = 1000;

/**
 * `asked.get("gallery")`: the gallery to select first.
 * @param {unknown} _
 * @param {URLSearchParams} asked
 */
export function identify(_, asked) {
  prefer(asked.get("gallery"));
  /** @type {any} */
  const state = { gallery: "", fpir: recall(STRICTNESS) ?? "", shot: null, video: null, asking: null };
  state.place = problemPlace();
  state.status = h("p.small", { role: "status" });
  state.rate = h("span.small", {});
  state.cards = h("div.found", { "aria-label": "Faces found", role: "region" });
  state.photo = new PhotoPlace("Photo", (place) => fromPhoto(state, place), "identify");
  state.live = h(
    "button",
    { type: "button", "aria-pressed": "false", onclick: () => (state.video ? endLive(state) : startLive(state)) },
    icon("camera"),
    "Live",
  );
  state.challenge = h(
    "button",
    { type: "button", onclick: () => showing(state.place, () => withChallenge(state)) },
    icon("person"),
    "Challenge",
  );
  state.turn = h("button", { type: "button", hidden: true, onclick: () => turnCamera(state) }, "Other camera");
  state.photo.element.querySelector(".row").append(state.live, state.challenge, state.turn, state.rate);
  state.again = () => identifyShot(state);
  state.hold = (/** @type {any} */ shot) => hold(state, shot);
  state.point = (/** @type {any} */ index) =>
    state.video || light(state.photo.stage.querySelectorAll(".boxes path"), index);
  const chooser = h("div.choosers", {});
  const element = h(
    "div",
    {},
    head("Identify", "Who of a gallery is in this photo, or in front of the camera? The photo is not stored.", chooser),
    state.place.element,
    h("div.columns.looking", {}, h("div.seen", {}, state.photo.element, state.status), state.cards),
  );
  const leave = () => {
    endLive(state);
    state.asking?.abort();
    state.photo.leave();
  };
  state.ready = showing(state.place, () => choosers(state, chooser));
  return { element, leave, ready: state.ready };
}

/**
 * @param {any} state
 * @param {HTMLElement} place
 */
async function choosers(state, place) {
  const gallery = await galleryControl((id) => {
    state.gallery = id;
    void state.again();
  });
  const { fpir: preset } = await defaults();
  const fpir = select(
    [["", `default (${oneIn(preset)})`], ...RATES.map((rate) => [rate, oneIn(Number(rate))])],
    state.fpir,
    (value) => {
      state.fpir = value;
      keep(STRICTNESS, value);
      void state.again();
    },
  );
  put(place, field("Gallery", gallery), field("Strictness", fpir, "How often a stranger may be taken for somebody."));
}

/**
 * @param {any} state
 * @param {import("../photo.js").PhotoPlace} place
 */
async function fromPhoto(state, place) {
  endLive(state);
  state.shot = place.photo && { photo: place.photo, picture: place.picture };
  if (state.shot) return identifyShot(state);
  state.asking?.abort();
  put(state.cards);
  put(state.status);
}

/**
 * Identifies the faces of the present photo; called again after every change.
 * @param {any} state
 */
async function identifyShot(state) {
  if (!state.shot || !state.gallery || state.video) return;
  const asking = askAnew(state);
  const shot = state.shot;
  put(state.cards, h("p.waiting", {}, "Looking …"));
  put(state.status); // the result of the photo before
  try {
    const answer = await inquire(state, shot.photo, asking.signal);
    state.photo.show(marked(answer), answer.image, words(answer), pointing(state));
    show(state, { ...shot, answer });
  } catch (error) {
    if (error.name !== "AbortError") put(state.cards, h("div", { role: "alert" }, problem(error)));
  }
}

/**
 * @param {any} state
 * @param {Blob} photo
 * @param {AbortSignal} signal
 */
async function inquire(state, photo, signal) {
  return ordered(
    await sendPhoto(path("galleries", state.gallery, "identify"), photo, { fpir: state.fpir, limit: 3 }, signal),
  );
}

/** @param {Api.IdentifyAnswer} answer */
const ordered = (answer) => ({ ...answer, faces: inReadingOrder(answer.faces) });

/**
 * Identifies whoever follows the steps of a challenge, by its first frame and the server's own strictness.
 * @param {any} state
 */
async function withChallenge(state) {
  await busy(state.challenge, () => state.ready); // the galleries may not have loaded yet
  if (!state.place.element.isConnected) return;
  if (!state.gallery) throw Object.assign(new Error("Choose a gallery."), { code: "no_gallery" });
  endLive(state);
  const found = await challenge(state.gallery);
  if (!found) return;
  const shot = { ...found, answer: ordered(found.answer) };
  showPicture(state, shot);
  show(state, shot);
  state.cards.prepend(
    h(
      "div.card",
      { role: "status" },
      h("p", {}, h("span.pill.known", {}, "Challenge passed"), " All steps were shown, by one person."),
      h("p.small", {}, LIMITS),
    ),
  );
}

/**
 * Pointing at a box marks its card, and pointing at a card marks its box.
 * @param {any} state
 */
const pointing = (state) => ({
  onpoint: (/** @type {any} */ index) => light(state.cards.querySelectorAll(".card.face"), index),
});

/** @param {Api.IdentifyAnswer} answer */
const marked = (answer) =>
  answer.faces.map((face, index) => {
    const best = face.candidates[0];
    const named = face.decision !== "unknown" && best;
    const label = named ? `${nameOf(best)}${face.decision === "uncertain" ? "?" : ""}` : "unknown";
    return {
      box: face.box,
      kind: face.decision,
      label,
      detail: named && score(best.score),
      number: answer.faces.length > 1 && String(index + 1),
    };
  });

/**
 * The people found, as a sentence.
 * @param {Api.IdentifyAnswer} answer
 */
function words(answer) {
  const named = (/** @type {any} */ decision) =>
    answer.faces.filter((face) => face.decision === decision).map((face) => nameOf(face.candidates[0]));
  const unknown = answer.faces.filter((face) => face.decision === "unknown").length;
  const parts = [...named("known"), ...named("uncertain").map((name) => `perhaps ${name}`)];
  if (unknown) parts.push(`${count(unknown, "unknown face")}`);
  return parts.length ? `${list(parts)}.` : "No face.";
}

/** @param {Api.IdentifiedFace} face */
const unsure = (face) => face.decision !== "known";

/**
 * @param {any} state
 * @param {any} shot
 */
function show(state, shot) {
  const { answer } = shot;
  const told = words(answer);
  if (state.status.textContent !== told) put(state.status, told);
  if (state.video && state.cards.matches(":hover, :focus-within")) return; // the user is about to use a card
  const limited = answer.limited ? ", more than the server's default, for which too few pairs were measured" : "";
  const among =
    `Among ${count(answer.subjects, "person", "people")}; a stranger is taken for one of them in ` +
    `${oneIn(answer.fpir)} cases${limited}. Decided by ${decidedBy(answer.calibration)}.`;
  put(
    state.cards,
    h("h2", {}, answer.faces.length ? count(answer.faces.length, "face") : "No face"),
    faceCards(state, shot),
    h("p.small", {}, among, answer.faces.some(unsure) && [" ", adviceLink("Wrong? What to try")]),
    (answer.warnings ?? []).map((/** @type {any} */ warning) => h("p.small", { role: "note" }, warning.message)),
  );
}

// ---------------------------------------------------------------- live

/** @param {any} state */
async function startLive(state) {
  const video = await showing(state.place, () => camera.start());
  if (!video) return;
  // The view was left meanwhile, or the button pressed twice.
  if (!state.place.element.isConnected || state.video) return camera.stop(video);
  state.video = video;
  state.shot = null;
  state.photo.drop();
  state.live.setAttribute("aria-pressed", "true");
  put(state.live, icon("camera"), "Stop");
  const overlay = h("div", {});
  put(
    state.photo.stage,
    sheet({ width: state.video.videoWidth, height: state.video.videoHeight }, state.video, overlay),
  );
  void watch(state, state.video, overlay);
  state.turn.hidden = !(await camera.canTurn());
}

/** @param {any} state */
function turnCamera(state) {
  endLive(state);
  camera.turn();
  return startLive(state);
}

/** @param {any} state */
function endLive(state) {
  if (!state.video) return;
  camera.stop(state.video);
  state.video = null;
  state.asking?.abort();
  state.live.setAttribute("aria-pressed", "false");
  state.turn.hidden = true;
  put(state.live, icon("camera"), "Live");
  put(state.rate);
  if (state.photo.stage.querySelector("video")) state.photo.empty();
}

/**
 * Sends the newest picture as soon as the last one was answered, so one at a time.
 * @param {any} state
 * @param {HTMLVideoElement} video
 * @param {HTMLElement} overlay
 */
async function watch(state, video, overlay) {
  /** @type {number | null} */
  let pace = null;
  while (state.video === video) {
    const began = performance.now();
    const picture = camera.frame(video, LONGEST);
    const asking = askAnew(state);
    try {
      if (!state.gallery) throw Object.assign(new Error("Choose a gallery."), { code: "no_gallery" });
      const photo = await toJpeg(picture);
      const answer = await inquire(state, photo, asking.signal);
      if (state.video !== video) return;
      state.place.clear();
      put(overlay, boxes(answer.image, marked(answer), words(answer)));
      show(state, { picture, photo, answer });
      const took = performance.now() - began;
      pace = pace === null ? took : SMOOTH * pace + (1 - SMOOTH) * took;
      put(state.rate, `${(1000 / pace).toFixed(1)} pictures a second`);
    } catch (error) {
      if (state.video !== video || error.name === "AbortError") return;
      state.place.show(error);
      if (isLasting(error)) return endLive(state);
      await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 1) * RETRY_MS));
    }
    await new Promise((resolve) => requestAnimationFrame(resolve)); // a hidden tab asks nothing
  }
}

/**
 * Stops the live view at the picture that the user acts on, and treats it as a photo.
 * @param {any} state
 * @param {any} shot
 */
function hold(state, shot) {
  if (!state.video) return;
  endLive(state);
  showPicture(state, shot);
}

/**
 * Shows a camera picture as if it were a chosen photo.
 * @param {any} state
 * @param {any} shot
 */
function showPicture(state, shot) {
  state.shot = shot;
  put(
    state.photo.stage,
    sheet(
      shot.picture,
      shot.picture,
      boxes(shot.answer.image, marked(shot.answer), words(shot.answer), pointing(state)),
    ),
  );
  state.photo.have(shot.photo, shot.picture);
}
