/** What the page has more where models can be added: a part of Models, and one of each model's card. */

import { MODEL_PARTS, MODELS_PARTS } from "../additions.js";
import { removing } from "./removing.js";

MODELS_PARTS.push(async (reload) => (await import("./adding.js")).adding(reload));
MODEL_PARTS.push(removing);
