/** The view that compares two photos: do they show the same person? */

import { crop } from "../align.js";
import { askAnew, path, sendPhoto, sendPhotos } from "../api.js";
import { inReadingOrder } from "../boxes.js";
import { field, h, put, select } from "../dom.js";
import { livenessChoice, verdict } from "../liveness.js";
import { keep, recall } from "../memory.js";
import { decidingPoints, defaults, runningEmbedder } from "../models.js";
import { head } from "../parts.js";
import { PhotoPlace } from "../photo.js";
import { problem, problemPlace, showing } from "../problem.js";
import { passes, scale, shownPoints } from "../scale.js";
import { count, list, oneIn, reason, score } from "../words.js";

const NARROW = "(max-width: 48rem)";
const STRICTNESS = "compare.strictness";

export function compare() {
  const outcome = h("section.outcome", { "aria-live": "polite", "aria-label": "Answer" });
  const strictness = h("div.strictness", {});
  /** @type {any} */
  const state = { fmr: recall(STRICTNESS), liveness: null, asking: null, outcome, faces: new Map() };
  const places = ["First photo", "Second photo"].map((label) => {
    const place = new PhotoPlace(label, () => found(place, places, state), `compare ${label}`);
    place.note = h("div.note", { "aria-live": "polite" });
    place.element.append(place.note);
    return place;
  });
  state.again = () => decide(places, state);
  const leave = () => {
    for (const place of places) place.leave();
  };
  const element = h(
    "div.compare",
    {},
    head("Compare", "Do two photos show the same person? Neither is stored.", strictness),
    h(
      "div.pair",
      {},
      places.map((place) => place.element),
    ),
    outcome,
  );
  return { element, ready: offer(strictness, state), leave };
}

/**
 * Offers the operating points to decide at, if the model has any.
 * @param {any} strictness
 * @param {any} state
 */
async function offer(strictness, state) {
  const place = problemPlace();
  const model = await showing(place, runningEmbedder);
  const points = model ? shownPoints(await decidingPoints(model.id)) : [];
  if (!points.length) return put(strictness, place.element);
  const pairs = [
    ["", `default (${oneIn((await defaults()).fmr)})`],
    ...points.map((point) => [String(point.fmr), oneIn(point.fmr)]),
  ];
  const choose = (/** @type {any} */ value) => {
    state.fmr = value || null;
    keep(STRICTNESS, state.fmr);
    void state.again();
  };
  const live = await livenessChoice((mode) => {
    state.liveness = mode;
    void state.again();
  });
  put(
    strictness,
    place.element,
    field("Strictness", select(pairs, state.fmr ?? "", choose), "How often two strangers may pass for one person."),
    live && field("Liveness", live),
  );
}

/**
 * Shows a new photo's faces, and compares the photos once both are there. Requests about the photo before are aborted.
 * @param {any} place
 * @param {any[]} places
 * @param {any} state
 */
async function found(place, places, state) {
  const asking = askAnew(place);
  state.faces.delete(place);
  place.picked = null;
  put(place.note);
  if (!place.photo) return put(state.outcome);
  try {
    const answer = await sendPhoto(path("embed"), place.photo, {}, asking.signal);
    answer.faces = inReadingOrder(answer.faces);
    state.faces.set(place, answer);
    draw(place, places, state, null);
    put(place.note, h("p", {}, noted(answer.faces.length)));
  } catch (error) {
    if (error.name === "AbortError") return;
    put(place.note, problem(error));
    put(state.outcome);
    return;
  }
  await decide(places, state);
}

/**
 * @param {any[]} places
 * @param {any} state
 */
async function decide(places, state) {
  const asking = askAnew(state);
  put(state.outcome);
  if (!places.every((place) => state.faces.get(place)?.faces.length)) return;
  put(state.outcome, h("p.waiting", {}, "Comparing …"));
  try {
    const [first, second] = places.map((place) => state.faces.get(place).faces);
    const pair = bestPair(first, second, places[0].picked, places[1].picked);
    const [face1, face2] = places.map((place, index) => state.faces.get(place).faces[pair.at[index]].index);
    const photos = places.map((place, index) => [`image${index + 1}`, place.photo]);
    const answer = await sendPhotos(
      path("verify"),
      photos,
      { fmr: state.fmr, face1, face2, liveness: state.liveness },
      asking.signal,
    );
    const points = await decidingPoints(answer.model);
    if (asking.signal.aborted) return;
    for (const [index, place] of places.entries()) draw(place, places, state, pair.at[index]);
    put(state.outcome, said(answer, points, places, pair.of));
    if (matchMedia(NARROW).matches) state.outcome.scrollIntoView({ block: "center" });
  } catch (error) {
    if (error.name !== "AbortError") put(state.outcome, problem(error));
  }
}

/**
 * Draws the boxes. If there are several faces, each box is a button that chooses its face.
 * @param {any} place
 * @param {any[]} places
 * @param {any} state
 * @param {any} used
 */
function draw(place, places, state, used) {
  const { faces, image } = state.faces.get(place);
  const boxes = faces.map((/** @type {any} */ face, /** @type {any} */ index) => ({
    box: face.box,
    kind: used === null || index === used ? "chosen" : "other",
  }));
  const onpick = (/** @type {any} */ index) => {
    place.picked = index;
    draw(place, places, state, index);
    void decide(places, state);
  };
  const focused = [...place.stage.querySelectorAll(".spot")].indexOf(document.activeElement);
  place.show(boxes, image, `${count(faces.length, "face")} marked`, { onpick: faces.length > 1 ? onpick : null });
  if (focused >= 0) place.stage.querySelectorAll(".spot")[focused]?.focus();
}

/** @param {number} number */
const noted = (number) =>
  number
    ? `${count(number, "face")}${number > 1 ? ". Click one to compare it; otherwise the best pair counts." : ""}`
    : "No face was found in this photo. Choose another.";

/**
 * `pairs`: the number of pairs of faces, of which the answer is about the best.
 * @param {any} answer
 * @param {any[]} points
 * @param {any[]} places
 * @param {any} pairs
 */
function said(answer, points, places, pairs) {
  const crops = places.map((place, index) => {
    const face = answer[`face${index + 1}`];
    return h(
      "figure",
      {},
      place.picture &&
        face.landmarks &&
        crop(place.picture, face.landmarks, `The face of the ${index ? "second" : "first"} photo, aligned`),
      h(
        "figcaption",
        {},
        h("strong", {}, `Quality ${Math.round(face.quality.score)}`),
        poor(face.quality),
        others(face, places[index]),
        verdict(face),
      ),
    );
  });
  return h(
    `div.answer.${answer.decision}`,
    {},
    h("div.crops", {}, crops),
    h(
      "div.said",
      {},
      h("h2", {}, SAID[/** @type {keyof typeof SAID} */ (answer.decision)]),
      h("p", {}, sentence(answer)),
      pairs > 1 &&
        h(
          "p.small",
          {},
          `The best of ${count(pairs, "pair")} of faces. The rate is that of one pair: among ${pairs}, strangers ` +
            `reach it up to ${count(pairs, "time")} as often.`,
        ),
      scale(answer, points),
    ),
    h(
      "details",
      {},
      h("summary", {}, "How strict is that?"),
      passes(answer, points),
      h("p.small", {}, `Decided by ${answer.model}.`),
    ),
  );
}

const SAID = {
  known: "The same person",
  uncertain: "Uncertain: perhaps the same person",
  unknown: "Not the same person",
};

/** @param {Api.Quality} quality */
const poor = (quality) => (quality.reasons.length ? h("span", {}, list(quality.reasons.map(reason))) : null);
/**
 * @param {any} face
 * @param {any} place
 */
const others = (face, place) =>
  face.faces > 1
    ? h("span", {}, `${place.picked === null ? "in the best pair" : "chosen"}, of ${count(face.faces, "face")}`)
    : null;

/**
 * The answer as a sentence, and how often strangers would get it.
 * @param {Api.VerifyAnswer} answer
 */
function sentence(answer) {
  const strangers = `about ${oneIn(answer.fmr)} pairs of different people reach`;
  const reached =
    `The score ${score(answer.score)} reaches the threshold ${score(answer.threshold)}, ` + `which ${strangers} too.`;
  const missed =
    `The score ${score(answer.score)} stays below the threshold ${score(answer.threshold)}, ` + `which ${strangers}.`;
  if (answer.reason) return `${reached} But such a poor photo proves nothing.`;
  if (answer.decision === "uncertain") return `${missed} Many pairs of one person's photos stay below it too.`;
  return answer.match ? reached : missed;
}

/**
 * Which faces of two photos are most alike. `first`, `second`: faces with an `embedding`, a vector of length 1; `one`,
 * `other`: the index that is fixed, or null. Gives {at: [index, index], of: number of pairs}.
 * @param {any} first
 * @param {any} second
 * @param {any} [chosen]
 * @param {any} [otherChosen]
 */
function bestPair(first, second, chosen = null, otherChosen = null) {
  const among = (/** @type {any} */ faces, /** @type {any} */ fixed) =>
    fixed === null ? faces.map((/** @type {any} */ _, /** @type {any} */ index) => index) : [fixed];
  const pairs = among(first, chosen).flatMap((/** @type {any} */ a) =>
    among(second, otherChosen).map((/** @type {any} */ b) => ({
      at: [a, b],
      score: dot(first[a].embedding, second[b].embedding),
    })),
  );
  return {
    at: pairs.reduce((/** @type {any} */ best, /** @type {any} */ pair) => (pair.score > best.score ? pair : best)).at,
    of: pairs.length,
  };
}

/**
 * @param {number[]} a
 * @param {number[]} b
 */
const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);
