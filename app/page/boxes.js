/** Boxes over a picture, in the picture's own pixels whatever size it is shown at. */

import { h, svg } from "./dom.js";

const CORNER = 0.22;

/** `faces`: [{box, kind, label, index}]; `kind` is a word of the style sheet (`chosen`, `known`, …). */
export function boxes(size, faces, words) {
  const drawing = svg(
    "svg",
    { class: "boxes", viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true", focusable: "false" },
    faces.map((face) => svg("path", { class: face.kind, d: corners(face.box) })),
  );
  const labels = faces.filter((face) => face.label).map((face) => label(face, size));
  return h("div.overlay", { role: "img", "aria-label": words }, drawing, labels);
}

/** A rectangle of which only the corners are drawn, so that the face stays to be seen. */
function corners({ x, y, width, height }) {
  const [w, t] = [width * CORNER, height * CORNER];
  const [right, bottom] = [x + width, y + height];
  return [
    `M${x} ${y + t}V${y}H${x + w}`,
    `M${right - w} ${y}H${right}V${y + t}`,
    `M${right} ${bottom - t}V${bottom}H${right - w}`,
    `M${x + w} ${bottom}H${x}V${bottom - t}`,
  ].join("");
}

function label(face, size) {
  const below = face.box.y / size.height < 0.08;
  const edge = below ? face.box.y + face.box.height : face.box.y;
  const left = Math.min(0.98, Math.max(0, (face.box.x + face.box.width / 2) / size.width));
  const style = { left: `${left * 100}%`, top: `${(Math.min(size.height, edge) / size.height) * 100}%` };
  return h(`span.tag.${face.kind}${below ? ".below" : ""}`, { style }, face.label);
}
