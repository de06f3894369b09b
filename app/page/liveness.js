/** Shows whether a face is live, as the server judged it, and offers to ask for it. */

import { h, select } from "./dom.js";
import { models } from "./models.js";
import { score } from "./words.js";

const VERDICTS = {
  live: ["known", "Live"],
  spoof: ["unknown", "Not live: a picture of a face"],
  uncertain: ["uncertain", "Liveness uncertain"],
  not_measured: ["uncertain", "Liveness not measured"],
};
/** @type {Record<string, any>} */
const REASONS = {
  between_thresholds: "the score lies between the thresholds",
  small_face: "the face is smaller than what was measured",
  no_operating_points: "the model has no operating points yet, so that nothing is decided",
};

/**
 * The server's verdict on a face; null if it was not asked for.
 * @param {{liveness?: Api.Liveness | null}} face
 */
export function verdict(face) {
  const found = face.liveness;
  if (!found) return null;
  const [kind, words] = VERDICTS[found.live];
  const reason = REASONS[found.reason ?? ""];
  return h(
    "p.small.liveness",
    {},
    h(`span.pill.${kind}`, {}, words),
    ` score ${score(found.live_score)}${reason ? `: ${reason}` : ""}`,
  );
}

/**
 * A choice whether to ask for liveness; null if the server has no package for it. `onchange` gets the parameter
 * `liveness`.
 * @param {(value: any) => void} onchange
 */
export async function livenessChoice(onchange) {
  const installed = (await models()).some((/** @type {any} */ model) => model.task === "liveness");
  if (!installed) return null;
  return select(
    [
      ["", "not asked"],
      ["report", "reported"],
      ["require", "required"],
    ],
    "",
    (value) => onchange(value || null),
  );
}
