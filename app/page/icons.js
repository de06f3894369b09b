/** Line icons of 20 by 20 units, drawn for this page. They always stand beside words, so screen readers skip them. */

import { svg } from "./dom.js";

const PATHS = {
  compare: "M7.5 4.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11Zm5 0a5.5 5.5 0 1 1 0 11",
  home: "M3 9.5 10 3.500l7 6V16.500h-4.500V12h-5v4.500H3z",
  today: "M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14ZM10 6v4.2l2.8 1.8",
  settings: "M4 6h7m4 0h1M4 14h1m4 0h7M13 4v4M7 12v4",
  identify:
    "M3 7V4.5A1.5 1.5 0 0 1 4.5 3H7m6 0h2.500A1.5 1.5 0 0 1 17 4.500V7m0 6v2.500a1.5 1.5 0 0 1-1.5 " +
    "1.500H13m-6 0H4.500A1.5 1.5 0 0 1 3 15.500V13M10 6.500a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.400ZM6.5 " +
    "14.200c.6-1.3 1.9-1.9 3.5-1.900s2.9.6 3.5 1.9",
  galleries: "M3 3.500h5.500V9H3zm8.5 0H17V9h-5.500zM3 11.500h5.500V17H3zm8.5 0H17V17h-5.500z",
  jobs: "M4 5h12M4 10h12M4 15h7",
  check: "m3.5 10.5 4 4 9-9",
  keys: "M12.8 3a4.2 4.2 0 1 0 0 8.4 4.2 4.2 0 0 0 0-8.400ZM9.7 10.3 3.5 16.500m2-2 2 2",
  audit: "M5 3h10v14H5zM8 7h4m-4 3h4m-4 3h2",
  models: "m10 2.8 6.5 3.600v7.200L10 17.200l-6.5-3.600V6.400zm0 7.2 6.3-3.500M10 10v7M10 10 3.7 6.5",
  camera: "M3 6.500h3l1.2-2h5.600l1.2 2h3v9.500H3zM10 8.200a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.600Z",
  photo: "M3 4h14v12H3zm0 9.5 4-4 3.5 3.5 2-2 4.5 4.500M13 7.500h.01",
  menu: "M3 5.500h14M3 10h14M3 14.500h14",
  out: "M8 3H4v14h4m-1-7h10m-3.5-3.500L17 10l-3.5 3.5",
  plus: "M10 4v12M4 10h12",
  person: "M10 3.500a3.3 3.3 0 1 0 0 6.6 3.3 3.3 0 0 0 0-6.600ZM3.8 16.800c.8-3 3.2-4.5 6.2-4.500s5.4 1.5 6.2 4.5",
  back: "M11.5 4.5 6 10l5.5 5.5",
};

/** @param {keyof typeof PATHS} name */
export const icon = (name) =>
  svg(
    "svg",
    { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: PATHS[name] }),
  );

export const mark = () =>
  svg(
    "svg",
    { viewBox: "0 0 32 32", class: "mark", "aria-hidden": "true", focusable: "false" },
    svg("circle", { cx: 12, cy: 16, r: 8.2 }),
    svg("circle", { cx: 20, cy: 16, r: 8.2 }),
  );
