/** Which faces of two photos are most alike. */

/** `first`, `second`: faces with an `embedding`, a vector of length 1; `one`, `other`: the index that is fixed, or null.
 * Gives {at: [index, index], of: number of pairs}. */
export function bestPair(first, second, one = null, other = null) {
  const among = (faces, fixed) => (fixed === null ? faces.map((_, index) => index) : [fixed]);
  const pairs = among(first, one).flatMap((a) => among(second, other).map((b) => ({ at: [a, b], score: dot(first[a].embedding, second[b].embedding) })));
  return { at: pairs.reduce((best, pair) => (pair.score > best.score ? pair : best)).at, of: pairs.length };
}

const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);
