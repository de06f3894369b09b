/** Erases a person, and shows the signed receipt. */

import { call } from "../api.js";
import { forget } from "../crops.js";
import { confirm, h, openDialog } from "../dom.js";
import { save } from "../files.js";
import { facts } from "../parts.js";
import { showing } from "../problem.js";
import { count, list, nameOf, when } from "../words.js";

/**
 * Asks for confirmation, erases, and shows the receipt. Returns whether the person was erased.
 * @param {Api.Subject} subject
 * @param {string} where
 * @param {Page.Place} place
 */
export async function erase(subject, where, place) {
  const sure = await confirm({
    title: `Erase ${nameOf(subject)}?`,
    text:
      `This deletes the person with ${count(subject.face_count, "face")}, and clears what the disk may ` +
      "still hold of them. There is no way back. You get a signed receipt of it.",
    action: "Erase the person",
    typed: subject.id,
  });
  if (!sure) return false;
  const document = await showing(place, () => call("POST", `${where}/erase`, { as: "text" }));
  if (document === null) return false;
  forget();
  await showReceipt(document);
  return true;
}

/**
 * `document`: the receipt as the server sent it, so that the saved file is what was signed.
 * @param {any} document
 */
function showReceipt(document) {
  const receipt = JSON.parse(document);
  const { faces, templates, crops } = receipt.erased;
  const cleared = Object.entries(receipt.cleared).map(([what, how]) => `${what.replaceAll("_", " ")} ${how}`);
  const known = [
    ["Receipt", h("code", {}, receipt.id)],
    ["Erased", `${count(faces, "face")}, ${count(templates, "template")}, ${count(crops, "crop")}`],
    ["When", when(receipt.erased_at)],
    ["On disk", receipt.complete ? list(cleared) : "is being cleared; the server ends it by itself"],
    ["Not reached", list(receipt.not_reached) || "nothing"],
    ["Signed by", h("code", {}, receipt.signature.key_id)],
  ];
  return openDialog("Erased", (close) =>
    h(
      "div",
      {},
      h(
        "p",
        {},
        "Keep the receipt: with the person's id it proves what was erased and when; without the id it names nobody.",
      ),
      facts(known),
      h(
        "div.row.end",
        {},
        h(
          "button",
          {
            type: "button",
            onclick: () => save(new Blob([document], { type: "application/json" }), `receipt-${receipt.id}.json`),
          },
          "Save the receipt",
        ),
        h("button.primary", { type: "button", onclick: () => close() }, "Done"),
      ),
    ),
  );
}
