/** The camera, for one photo or many. It is requested when it is needed, and released at once after use. */

import { h, openDialog } from "./dom.js";
import { orLeave } from "./parts.js";
import { toJpeg } from "./picture.js";
import { problem } from "./problem.js";

const PHONE = "(pointer: coarse)";

/** @type {"environment" | "user" | null} */
let side = null;

/** Which camera to use: by default the back camera of a phone, and the front camera elsewhere. */
const facing = () => side ?? (matchMedia(PHONE).matches ? "environment" : "user");
/** @param {string} side */
const wanted = (side) => ({
  video: { width: { ideal: 1280 }, height: { ideal: 720 }, facingMode: side },
  audio: false,
});

/** Whether there is a second camera to switch to. Browsers tell only while a camera is in use. */
export async function canTurn() {
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices.filter((device) => device.kind === "videoinput").length > 1;
}

export function turn() {
  side = facing() === "user" ? "environment" : "user";
  return side;
}

/** @type {Record<string, any>} */
const REFUSED = {
  NotAllowedError: "The browser may not use the camera. Allow it for this page (next to the address), then try again.",
  NotFoundError: "This machine has no camera. Choose a photo instead.",
  NotReadableError: "Another program is using the camera. Close that one, then try again.",
};

/**
 * A video element that plays the camera's picture; `stop(video)` ends it. Throws an Error whose message is for the
 * user.
 */
export async function start(side = facing()) {
  if (!navigator.mediaDevices)
    throw new CameraError(
      "A browser gives the camera to pages over HTTPS or on this machine only. Serve over HTTPS, or choose a photo.",
    );
  const video = h("video", { playsinline: true, muted: true, autoplay: true });
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia(wanted(side));
  } catch (error) {
    throw new CameraError(REFUSED[error.name] ?? "The camera can't be used. Choose a photo instead.");
  }
  await video.play();
  return video;
}

/** @param {HTMLVideoElement | null} video */
export function stop(video) {
  for (const track of /** @type {MediaStream | null} */ (video?.srcObject)?.getTracks() ?? []) track.stop();
}

class CameraError extends Error {
  code = "camera";
}

/**
 * The video's current picture on a canvas, no side longer than `longest` pixels.
 * @param {HTMLVideoElement} video
 * @param {any} [longest]
 */
export function frame(video, longest = 1280) {
  const scale = Math.min(1, longest / Math.max(video.videoWidth, video.videoHeight));
  const canvas = h("canvas", {
    width: Math.round(video.videoWidth * scale),
    height: Math.round(video.videoHeight * scale),
  });
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** Takes one photo in a dialog; null if the dialog was left. */
export async function takePhoto() {
  /** @type {any} */
  let video = null;
  let left = false;
  const photo = await openDialog("Take a photo", (close) => {
    const place = h("div.viewfinder", { "aria-live": "polite" }, h("p.hint", {}, "Waiting for the camera …"));
    const shoot = h(
      "button.primary",
      { type: "button", disabled: true, onclick: async () => close(await toJpeg(frame(video))) },
      "Take the photo",
    );
    const other = h("button", { type: "button", hidden: true, onclick: () => begin(turn()) }, "Other camera");
    const begin = (side = facing()) => {
      stop(video);
      start(side).then(
        async (found) => {
          video = found;
          if (left) return stop(video);
          place.replaceChildren(video);
          shoot.disabled = false;
          shoot.focus();
          other.hidden = !(await canTurn());
        },
        (error) => place.replaceChildren(problem(error)),
      );
    };
    begin();
    return h("div", {}, place, orLeave(close, "Cancel", other, shoot));
  });
  left = true;
  stop(video);
  return photo;
}
