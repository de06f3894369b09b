/** Which view the address names: `#/galleries/crew/people/eileen`. What follows `#` never leaves the browser. */

history.scrollRestoration = "manual"; // views fill later than browsers scroll

/** The entries of the tab's history that were shown, by their ids: the address before each, and where it was left. */
const entries = new Map();
/** @type {{from: string, top: number, hash: string} | null} */
let current = null;

/** Return the decoded segments after `#/` and the query after `?`; segments are null for a malformed address. */
export function here() {
  const [where, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { segments: decoded(where.split("/").filter(Boolean)), query: new URLSearchParams(query) };
}

/** @param {string[]} segments */
function decoded(segments) {
  try {
    return segments.map(decodeURIComponent);
  } catch {
    return null; // a "%" that begins no character
  }
}

/** @param {...string} segments */
export const link = (...segments) => `#/${segments.map(encodeURIComponent).join("/")}`;
/** @param {...string} segments */
export const go = (...segments) => (location.hash = link(...segments));

/**
 * For a click on a link to the view that is open, which is then shown anew.
 * @param {any} event
 */
export const reopen = (event) =>
  event.currentTarget.hash === location.hash && dispatchEvent(new HashChangeEvent("hashchange"));

/** Note that the address's view is about to be shown. Return how far it was scrolled when it was left, 0 if it is
 * new. */
export function arrive() {
  if (current) current.top = scrollY;
  const before = current;
  let shown = entries.get(history.state?.entry);
  if (!shown) {
    const entry = `${performance.timeOrigin}-${entries.size}`; // entries of before a reload stay in the history
    shown = { from: before?.hash ?? "", top: 0 };
    entries.set(entry, shown);
    history.replaceState({ entry }, "");
  }
  shown.hash = location.hash;
  current = shown;
  return shown.top;
}

/**
 * Set the query of the open view's address, so that the way back leads to what was looked at.
 * @param {Record<string, string>} query
 */
export function remember(query) {
  const [where] = location.hash.split("?");
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  history.replaceState(history.state, "", asked.size ? `${where}?${asked}` : where);
}

/**
 * For a click on a link to the view that led here: go back to it as it was left.
 * @param {any} event
 */
export function goBack(event) {
  if (event.ctrlKey || event.metaKey || event.shiftKey || current?.from.split("?")[0] !== event.currentTarget.hash)
    return;
  event.preventDefault();
  history.back();
}
