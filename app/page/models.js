/** The answer of `/v1/models`, kept until a view loads it again. */

import { get, path } from "./api.js";

/** @type {Promise<any> | null} */
let answer = null;

/** Loads the packages and the skipped folders from the server. */
export function loadModels() {
  const asked = get(path("models"));
  answer = asked;
  asked.catch(() => {
    answer = null;
  });
  return asked;
}

export async function models() {
  return (await (answer ?? loadModels())).models;
}

/** The server's default error rates and embedder: {fmr, fpir, embedder}. */
export async function defaults() {
  return (await (answer ?? loadModels())).defaults;
}

/**
 * The operating points that decide for a model (`name@version`), the strictest last; none if it was not measured.
 * @param {string} id
 */
export async function decidingPoints(id) {
  const found = (await models()).find((/** @type {any} */ model) => model.id === id);
  return (found?.calibrations ?? []).find((/** @type {any} */ calibration) => calibration.default)?.points ?? [];
}

/** The embedder that this server runs. */
export const runningEmbedder = async () =>
  (await models()).find((/** @type {any} */ model) => model.loaded && model.task === "embed");
