/** Maps addresses such as `#/galleries/crew/people/eileen` to views. What follows `#` never leaves the browser. */

history.scrollRestoration = "manual"; // browsers would scroll before the view is filled

/**
 * The entries of the tab's history that were shown, by their ids: the address before each, and how far it was scrolled.
 */
const entries = new Map();
/** @type {{from: string, top: number, hash: string} | null} */
let current = null;
/**
 * The last entry of each view, by its address without a query; `resumed` is the one that a new entry shall be shown
 * like.
 */
const lasts = new Map();
/** @type {{top: number, hash: string} | null} */
let resumed = null;

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
 * Go to a view, whose address replaces the current one in the history.
 * @param {...string} segments
 */
export const replace = (...segments) => location.replace(link(...segments));

/**
 * Listener for clicks on a link to the open view: shows it again.
 * @param {any} event
 */
export const reopen = (event) =>
  event.currentTarget.hash === location.hash && dispatchEvent(new HashChangeEvent("hashchange"));

/**
 * Note that the view of the address is about to be shown. Return how far it was scrolled when it was left, 0 for a new
 * entry.
 */
export function arrive() {
  if (current) current.top = scrollY;
  const before = current;
  let shown = entries.get(history.state?.entry);
  if (!shown) {
    const entry = `${performance.timeOrigin}-${entries.size}`; // unique after a reload, too
    shown = { from: before?.hash ?? "", top: resumed?.top ?? 0 };
    entries.set(entry, shown);
    history.replaceState({ entry }, "");
  }
  resumed = null;
  shown.hash = location.hash;
  current = shown;
  lasts.set(view(shown.hash), shown);
  return shown.top;
}

/**
 * Set the query of the open view's address, so that coming back shows the same.
 * @param {Record<string, string>} query
 */
export function remember(query) {
  const [where] = (location.hash || link()).split("?"); // a query before the # would be sent to the server
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  history.replaceState(history.state, "", asked.size ? `${where}?${asked}` : where);
  if (current) current.hash = location.hash;
}

/** @param {string} hash */
const view = (hash) => hash.split("?")[0];

/**
 * Go to a view as it was left: with its query and scroll position.
 * @param {...string} segments
 */
export function goBack(...segments) {
  const where = link(...segments);
  if (view(current?.from ?? "") === where) return history.back();
  resumed = lasts.get(where) ?? null;
  location.hash = resumed?.hash ?? where;
}

/**
 * Listener for clicks on a link to a view: shows it as it was left.
 * @param {any} event
 * @param {...string} segments
 */
export function linkBack(event, ...segments) {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  goBack(...segments);
}
