/** What `/v1/models` says, asked for once: a server's models stay as they are until it starts again. */

import { get, path } from "./api.js";

let asked = null;

export function models() {
  asked ??= get(path("models")).then((answer) => answer.models);
  asked.catch(() => (asked = null));
  return asked;
}

/** The operating points that decide for a model (`name@version`), strict ones last; none where it was not measured. */
export async function decidingPoints(id) {
  const found = (await models()).find((one) => one.id === id);
  return (found?.calibrations ?? []).find((one) => one.default)?.points ?? [];
}

/** The embedder that this server runs. */
export const runningEmbedder = async () => (await models()).find((one) => one.loaded && one.task === "embed");
