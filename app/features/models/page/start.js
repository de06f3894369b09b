/** What this feature adds to the page: a part of Models, and a part of each model's card. */

import { MODEL_PARTS, MODELS_PARTS } from "../additions.js";
import { removing } from "./removing.js";

MODELS_PARTS.push(async (reload) => (await import("./adding.js")).adding(reload));
MODEL_PARTS.push(removing);
