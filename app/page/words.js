/** Sentences for the page's users: what each error code means, and what to do about it. */

/** @type {Record<string, any>} */
const PROBLEMS = {
  unreachable:
    "The server can't be reached. Check that it runs and that this machine is still connected, then try again.",
  missing_key: "You are signed out. Paste a key to go on.",
  wrong_key: "This server does not know that key. Check that all of it was pasted, and that it is for this server.",
  expired_key: "That key has expired. Ask the administrator of this server for a new one.",
  revoked_key: "That key was revoked. Ask the administrator of this server for a new one.",
  wrong_sign_in_code:
    "This link was used already, or is too old. Ask whoever sent it for a new one; likeness keys link prints one.",
  session_ended: "You are signed out on this device. Paste a key to go on.",
  sessions_not_allowed: "This server lets nobody stay signed in: you are signed in in this tab only.",
  missing_scope: "Your key doesn't allow this. Sign in with one that does, or ask for the scope.",
  gallery_restricted: "Your key is restricted to some galleries, and this concerns all of them.",
  not_found: "There is nothing here any more. Go back and look again.",
  gallery_not_found: "This gallery doesn't exist, or your key has no access to it.",
  subject_not_found: "This person is not in the gallery; somebody may have deleted them.",
  review_not_found: "This gallery was never reviewed.",
  finding_not_found: "This finding is gone: its faces were changed, or the gallery was reviewed again.",
  face_not_found: "This face no longer exists; somebody may have deleted it.",
  crop_not_stored: "This gallery keeps no pictures of its faces.",
  correction_not_found: "This is gone already: somebody said that it is this person after all.",
  receipt_not_found: "The receipt isn't ready yet: what was erased is still being cleared. Try again in a minute.",
  sighting_not_found: "This visit is gone: it was deleted, or older than visits are kept.",
  stranger_not_found: "This stranger is gone: named, joined with another, or older than strangers are kept.",
  sighting_without_face: "The picture of this visit is no longer kept, so nobody can be enrolled from it. Add a photo.",
  correction_unlikely: "The photo shows this person beyond doubt. Say so again only if you are sure that it does not.",
  key_not_found: "There is no such key.",
  gallery_exists: "A gallery with this id exists already. Choose another id.",
  subject_exists: "A person with this id exists already. Choose another id, or add the photos to that person.",
  subject_without_faces: "This person has no enrolled face to compare with. Add a photo first.",
  key_exists: "A key with this id exists already, or did once. Choose another id.",
  key_revoked: "This key was revoked for good. Make a new one.",
  webhook_not_found: "This webhook is gone; somebody may have deleted it.",
  webhook_refused:
    "The server may not send to this address. Take one on the internet, or have its network named in " +
    "LIKENESS_WEBHOOK_NETWORKS.",
  reembedding_not_found: "This gallery isn't moving to another model: it has arrived, or somebody cancelled the move.",
  reembedding_not_switched: "The new model doesn't answer yet, so there is nothing to go back from. Cancel the move.",
  reembedding_switched: "The new model answers already. Go back first, or delete the old templates.",
  package_unchanged: "This gallery has this model already. Choose another.",
  two_packages: "This gallery is moving to another model. Wait until it has arrived, then try again.",
  package_mismatch:
    "This gallery was made with another model than the server runs now. Re-embed it, or start the server " +
    "with its model.",
  payload_too_large: "That is more than the server accepts at once. Send fewer or smaller photos.",
  image_too_large: "The photo is larger than the server allows. Make it smaller and try again.",
  unsupported_media_type: "The server does not accept this kind of file.",
  unsupported_image: "This file is not a photo that can be read. Send JPEG, PNG, WebP, HEIC, AVIF, BMP, TIFF or GIF.",
  empty_image: "The file is empty. Choose another.",
  image_too_small: "The photo is too small to hold a face.",
  invalid_image: "The photo's file is damaged or was cut short. Export or copy it again.",
  no_face: "No face was found. Use a photo in which the face is at least 20 pixels wide and can be seen.",
  face_unalignable: "There is a face, but its eyes, nose and mouth can't be told well enough to compare it.",
  ambiguous_face: "Several faces are equally prominent, so it is not clear whose photo this is. Crop it to one person.",
  not_live: "Liveness is required here, and this does not look like a live person in front of the camera.",
  liveness_unavailable:
    "Liveness was asked for, and this server has no model that can judge it. The administrator should add one.",
  liveness_not_measured:
    "Liveness is required, and its error rates were never measured. The administrator has to measure them first.",
  low_quality: "The face is too poor to be recognised later.",
  duplicate_face: "The same photo is enrolled already.",
  face_conflict: "The face matches somebody else of this gallery.",
  nothing_enrolled: "None of the photos was accepted.",
  operating_point_unavailable: "This error rate was never measured for this model. Choose another.",
  package_unavailable:
    "The model is not installed on this server, or its file is damaged. The administrator should check why.",
  package_not_found: "This model is gone; somebody may have removed it.",
  package_shipped: "This model came with the server. Only its operator can remove it, from the models folder.",
  package_not_measured: "This model was never measured, so it would name nobody. Measure it, or choose another.",
  licence_not_accepted:
    "This model's licence forbids commercial use. If your use is not commercial, say so; else choose another model.",
  upload_not_kept: "The server could not store the upload. Its disk may be full; the administrator should check.",
  search_unavailable: "This server can't search in this way. Choose another.",
  index_unavailable: "The search index can't be reached. The administrator of the server should check why.",
  subject_expired: "This person has expired, and is about to be erased.",
  invalid_consent: "The note of consent is empty, too long, or holds characters that can't be shown. Write it anew.",
  wrong_challenge: "These steps were used already, or took too long. Begin again.",
  too_many_images: "Those are more photos than the server takes at once. Send fewer.",
  job_not_found: "This job doesn't exist, or your key has no access to it.",
  result_not_found: "The job made no file, or the file is on another server.",
  empty_upload: "This file is empty. Choose another.",
  invalid_id: "An id is 1 to 255 characters, without control characters, and neither . nor ..",
  invalid_name: "A name is 1 to 255 characters, without control or invisible characters.",
  invalid_search: "That can't be searched for: it is too long, or holds control characters.",
  invalid_cursor: "The list has changed. Load it again.",
  invalid_metadata: "The metadata is not a JSON object, or is too large.",
  invalid_key_id: "A key's id is 1 to 63 of a–z, 0–9 and hyphens inside.",
  invalid_rate: "A rate is like 10/s, 600/m, or 600/m:20 with a burst.",
  invalid_expiry: "This time has passed: the key would have expired already.",
  overloaded: "The server is busy. Wait a moment and try again.",
  rate_limited: "Your key has sent too many requests. Wait a moment and try again.",
  too_many_failures: "Too many wrong keys came from your address. Wait a minute and try again.",
  not_ready: "The server is starting. Try again in a few seconds.",
  too_many_connections: "The server has too many connections. Wait a moment and try again.",
  shutting_down: "The server is stopping. Try again when it runs again.",
  request_timeout: "That took longer than a request may. Try again, with fewer or smaller photos.",
  body_timeout: "The photo did not arrive in time. Check the connection and try again.",
  database_busy: "The database is busy. Try again in a moment.",
  database_unavailable: "The database can't be reached. The administrator of the server should check why.",
  workers_unusable:
    "The server can't read photos: none of its processes for that starts. The administrator should run likeness " +
    "doctor.",
  sealed_unreadable:
    "What was stored is encrypted with a key that the server does not have. The administrator has to put the key back.",
  unusable: "Something is wrong with the installation. The administrator should run likeness doctor.",
  internal_error: "Something went wrong in the server. Its log has it under the request id below.",
};

/**
 * What to do, for error codes whose message from the server is shown too, since it names what the error is about.
 * @type {Record<string, string>}
 */
const REMEDIES = {
  package_in_use: "Move its galleries to another model first; the server's own models stay.",
  package_unknown: "Choose one of the list, or add it under Models.",
  package_ambiguous: "Choose one of them, with its version.",
  challenge_failed: "Begin again, with one face in the picture and good light.",
  reembedding_exists: "Wait until the gallery has arrived, or cancel the move in its settings.",
  crops_missing: "Enroll these people again, or stay with the model.",
};

/** @type {Record<string, string>} */
export const REASONS = {
  small_face: "the face is small",
  low_sharpness: "it is blurred",
  low_brightness: "it is too dark",
  overexposed: "it is overexposed",
  extreme_pose: "the head is turned far away",
  cut_off: "part of the face is outside the picture",
  low_score: "it hardly looks like a face",
  unalignable: "its eyes, nose and mouth can't be told",
};

/** @type {Record<string, string>} */
export const ADVICE = {
  small_face: "come closer or use a larger photo",
  low_sharpness: "hold still, or focus",
  low_brightness: "add light",
  overexposed: "use less light",
  extreme_pose: "look towards the camera",
  cut_off: "show the whole face",
  unalignable: "hold the head upright and show the whole face",
};

/**
 * An error in words.
 * @param {any} error
 */
export function explain(error) {
  const problem = PROBLEMS[error.code];
  if (error.code === "invalid_request") return `The server did not take this: ${invalid(error)}.`;
  if (problem && error.code === "low_quality" && error.details?.rejected?.[0])
    return refused(error.details.rejected[0]);
  if (problem) return problem;
  const remedy = REMEDIES[error.code];
  if (remedy) return `${error.message.replace(/\.?$/, ".")} ${remedy}`;
  return error.message || "Something went wrong.";
}

/** @param {any} error */
const invalid = (error) =>
  (error.details?.errors ?? []).map((/** @type {any} */ wrong) => `${wrong.where}: ${wrong.what}`).join("; ") ||
  error.message;

/**
 * The reason why a photo of an enrollment was refused.
 * @param {Api.RejectedImage} rejected
 */
export function refused(rejected) {
  const problem = PROBLEMS[rejected.code] ?? `${rejected.message}.`;
  return rejected.reasons?.length
    ? `${problem} ${sentence(list(rejected.reasons.map(reason)))}${advice(rejected.reasons)}`
    : problem;
}

/** @param {string[]} reasons */
const advice = (reasons) => {
  const found = reasons.map((cause) => ADVICE[cause]).filter(Boolean);
  return found.length ? `: ${list(found)}.` : ".";
};

/** @param {string} code */
export const reason = (code) => REASONS[code] ?? code.replaceAll("_", " ");
/** @param {string} text */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
/** @param {string[]} words */
export const list = (words) =>
  words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
/**
 * Return a whole number as people write it: 12,345. `toLocaleString` reads the browser's tables of languages first,
 * which takes longer than all other scripts of the first view.
 * @param {number} n
 */
export const whole = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

/**
 * Return the word's form for a number of things.
 * @param {number} n
 * @param {string} one
 * @param {string} [many]
 */
export const form = (n, one, many = `${one}s`) => (n === 1 ? one : many);

/**
 * @param {number} n
 * @param {string} one
 * @param {string} [many]
 */
export const count = (n, one, many) => `${whole(n)} ${form(n, one, many)}`;
/** @param {number} value */
export const score = (value) => value.toFixed(3).replace("-", "−");

/**
 * 1e-4 as "1 in 10,000".
 * @param {number} rate
 */
export const oneIn = (rate) => `1 in ${whole(Math.round(1 / rate))}`;

/**
 * A measured rate as "1 in 4,300", to two digits.
 * @param {number} rate
 */
export const aboutOneIn = (rate) => `1 in ${Number((1 / rate).toPrecision(2)).toLocaleString("en")}`;

/** @type {Record<string, any>} */
const FALLBACKS = {
  not_measured: "the gallery's own are not measured yet",
  too_few_subjects: "the gallery has too few people",
  other_model: "the gallery's own were measured with another model",
  rate_not_supported: "the gallery's people do not support the rate",
};

/**
 * Whose thresholds decided, in words, from the `calibration` of an answer.
 * @param {Api.DecidedBy} calibration
 */
export function decidedBy({ source, name, fallback, ratio }) {
  const whose =
    source === "gallery"
      ? "the gallery's own thresholds"
      : name
        ? `the model's thresholds (${name})`
        : "nothing, since no thresholds were measured for the model";
  const corrected = ratio ? `; its rates are multiplied by ${ratio.toFixed(2)}, which they show at higher ones` : "";
  return fallback ? `${whose}, because ${FALLBACKS[fallback]}${corrected}` : whose;
}

/**
 * A miss rate on an axis: 0.001 as "0.1 %".
 * @param {number} rate
 */
export const axisPercent = (rate) => `${Number((rate * 100).toPrecision(1))} %`;

/** @param {number} share */
export const percent = (share) =>
  share < 0.001 ? "less than 0.1 %" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;

/**
 * Return a time in the format of the reader's language, "never" for null.
 * @param {string | null | undefined} text
 * @param {any} [seconds]
 */
export function when(text, seconds = false) {
  const timeStyle = seconds ? "medium" : "short";
  return text ? new Date(text).toLocaleString(undefined, { dateStyle: "medium", timeStyle }) : "never";
}

/** @param {number} n */
export function bytes(n) {
  const step = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(n, 1)) / 10)));
  const value = n / 1024 ** step;
  return `${value.toFixed(value < 10 && step ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
}

/**
 * Return the name of a subject or candidate, its id if it has no name, "somebody else" if the key may see neither.
 * @param {{name?: string | null, subject?: string | null, id?: string}} who
 */
export const nameOf = (who) => who.name ?? who.subject ?? who.id ?? "somebody else";
