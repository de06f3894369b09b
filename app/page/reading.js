/** Faces in the order in which one reads: row by row, from left to right. */

const SAME_ROW = 0.5;

/** `faces`: [{box}], each of which gets its `index`. A row holds those whose centres are within half a face's height
 * of its
 * first one's. */
export function inReadingOrder(faces) {
  const rows = [];
  for (const face of faces.map((face, index) => ({ ...face, index })).sort((a, b) => middle(a.box) - middle(b.box))) {
    const row = rows.at(-1);
    if (row && middle(face.box) - middle(row[0].box) < SAME_ROW * row[0].box.height) row.push(face);
    else rows.push([face]);
  }
  return rows.flatMap((row) => row.sort((a, b) => a.box.x - b.box.x));
}

const middle = (box) => box.y + box.height / 2;
