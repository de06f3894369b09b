/** Removing a model that was added here. */

import { path, remove } from "../api.js";
import { confirm, h, toast } from "../dom.js";
import { busy, problemPlace, showing } from "../problem.js";
import * as session from "../session.js";

/**
 * A button to remove a model; null if it was not added here, or the key may not remove models.
 * @param {Api.Model} model
 * @param {() => Promise<unknown>} reload
 */
export function removing(model, reload) {
  if (!model.added || !session.mayEverything()) return null;
  const place = problemPlace();
  const act = async () => {
    const sure = await confirm({
      title: `Remove ${model.id}?`,
      text: "Its files are deleted from this server. To have it again, pull it or add its file.",
      action: "Remove the model",
    });
    if (!sure) return;
    const done = await showing(place, () => busy(button, async () => (await remove(path("models", model.id))) ?? true));
    if (!done) return;
    toast(`${model.id} is removed.`);
    await reload();
  };
  const button = h("button.danger", { type: "button", onclick: act, "aria-label": `Remove ${model.id}` }, "Remove");
  return h("div.stack", {}, h("div.row", {}, button), place.element);
}
