/** A challenge: shows the steps to follow in front of the camera, and sends the server a frame of each. */

import { path, post, sendPhotos } from "./api.js";
import * as camera from "./camera.js";
import { h, openDialog, put } from "./dom.js";
import { orLeave } from "./parts.js";
import { toJpeg } from "./picture.js";
import { problem } from "./problem.js";

const STEP_S = 3;
/** @type {Record<string, any>} */
const WORDS = {
  ahead: "Look straight into the camera",
  left: "Turn your head to your left",
  right: "Turn your head to your right",
  nearer: "Come nearer, and look straight into the camera",
};
const SECOND_MS = 1000;

export const LIMITS =
  "This stops a photo that is held up, and steps in the wrong order. It does not stop a film of the right " +
  "steps, replayed or generated, nor photos of all the poses.";

/**
 * Identifies a person in the gallery by the frames of a new challenge. Gives `{answer, picture, photo}`, where picture
 * and photo are the first frame; null if the dialog was left.
 * @param {string} gallery
 */
export async function challenge(gallery) {
  /** @type {any} */
  let video = null;
  let left = false;
  const found = await openDialog("Identify with a challenge", (close) => {
    const place = h("div.viewfinder", { "aria-live": "polite" }, h("p.hint", {}, "Waiting for the camera …"));
    const told = h(
      "p.step",
      { role: "status" },
      "Keep one face in the picture, and follow four steps of three seconds each.",
    );
    const begin = h("button.primary", { type: "button", disabled: true, onclick: () => void follow() }, "Begin");
    const follow = async () => {
      begin.disabled = true;
      try {
        const frames = await film(gallery, video, told, () => left);
        if (!frames) return;
        put(told, "Checking …");
        const answer = await sendPhotos(
          path("galleries", gallery, "challenges", "answer"),
          frames.photos.map((photo) => ["images", photo]),
          { challenge: frames.token },
        );
        close({ answer: answer.identify, picture: frames.picture, photo: frames.photos[0] });
      } catch (error) {
        put(told, problem(error));
        put(begin, "Try again");
      }
      begin.disabled = false;
    };
    camera.start("user").then(
      (started) => {
        video = started;
        if (left) return camera.stop(video);
        place.replaceChildren(video);
        begin.disabled = false;
        begin.focus();
      },
      (error) => place.replaceChildren(problem(error)),
    );
    return h("div", {}, place, told, h("p.small", {}, LIMITS), orLeave(close, "Cancel", begin));
  });
  left = true;
  camera.stop(video);
  return found;
}

/**
 * Shows the steps of a new challenge one after the other, and takes a frame at the end of each. Null if `isLeft()`
 * becomes true.
 * @param {string} gallery
 * @param {HTMLVideoElement} video
 * @param {HTMLElement} told
 * @param {() => boolean} isLeft
 */
async function film(gallery, video, told, isLeft) {
  const { challenge: token, steps } = await post(path("galleries", gallery, "challenges"), { operation: "identify" });
  const photos = [];
  let picture = null;
  for (const step of steps) {
    put(told, h("strong", { "data-step": step }, WORDS[step]), " ", countdown());
    await new Promise((resolve) => setTimeout(resolve, STEP_S * SECOND_MS));
    if (isLeft()) return null;
    const seen = camera.frame(video);
    picture ??= seen;
    photos.push(await toJpeg(seen));
  }
  return { token, picture, photos };
}

/** The seconds that are left. Hidden from screen readers, which would otherwise interrupt the instruction. */
function countdown() {
  const number = h("span.number", { "aria-hidden": "true" }, String(STEP_S));
  for (let second = 1; second < STEP_S; second++)
    setTimeout(() => put(number, String(STEP_S - second)), second * SECOND_MS);
  return number;
}
