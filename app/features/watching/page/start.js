/** What the page has more where cameras are watched: Today and Cameras, and where a person was seen. */

import { PERSON_PARTS } from "../additions.js";
import { SECTIONS } from "../sections.js";
import * as session from "../session.js";
import { cameras } from "./cameras.js";
import { seen } from "./sighting.js";
import { today } from "./today.js";

const allowed = () => session.may("read");

SECTIONS.unshift(
  { name: "today", title: "Today", icon: "today", group: "", view: today, allowed },
  { name: "cameras", title: "Cameras", icon: "camera", group: "", view: cameras, allowed },
);
PERSON_PARTS.push(seen);
