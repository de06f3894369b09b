/** What the page has more where models can be added: a part of Models. */

import { MODELS_PARTS } from "../additions.js";

MODELS_PARTS.push(async (reload) => (await import("./adding.js")).adding(reload));
