/** What the page has more where cameras are watched: Webhooks, for keys that may do everything. */

import { lazy, SECTIONS } from "../sections.js";
import * as session from "../session.js";

SECTIONS.push({
  name: "webhooks",
  title: "Webhooks",
  icon: "out",
  group: "Server",
  view: lazy(async () => (await import("./webhooks.js")).webhooks),
  allowed: session.mayEverything,
});
