/**
 * Who is signed in, and what they may do. The key lives in this tab's session storage: gone with the tab, and in no
 * other. On a device that stays signed in there is no key here: the browser has a cookie that no script can read.
 */

const PLACE = "likeness.key";
const STAYS = "likeness.stays";
const READS = "likeness.reads";
const IN_LINK = /^#code=([^&]+)/;

/** @type {Api.OwnKey | null} */
let signedInAs = null;

/** The code of a link such as `/#code=…`, or null. */
export const fromLink = () => IN_LINK.exec(location.hash)?.[1] ?? null;

/**
 * Makes the address that of `before` again. Browsers keep the link in their history all the same.
 * @param {string} [before]
 */
export function leaveLink(before = location.pathname) {
  const { pathname, hash } = new URL(before, location.href);
  history.replaceState(null, "", pathname + (IN_LINK.test(hash) ? "" : hash));
}

export const key = () => sessionStorage.getItem(PLACE);

/**
 * Keeps the key, and what `/v1/key` says of it.
 * @param {string | null} secret null: the browser's session stands for the key
 * @param {Api.OwnKey} allowed
 */
export function begin(secret, allowed) {
  if (secret === null) {
    for (const name of [PLACE, READS]) sessionStorage.removeItem(name);
    localStorage.setItem(STAYS, allowed.id);
  } else sessionStorage.setItem(PLACE, secret);
  signedInAs = allowed;
  if (may("read")) place().setItem(READS, "yes");
  else place().removeItem(READS);
}

/** Where what is known of the key is kept: as long as the key. */
const place = () => (key() === null ? localStorage : sessionStorage);

/** Whether the key that this tab or device went by last could read galleries. */
export const couldRead = () => place().getItem(READS) !== null;

/** Whether this device, and not one tab alone, was signed in and not signed out again. */
export const stays = () => localStorage.getItem(STAYS) !== null;

/** Whether this tab goes by a session of the device that another tab has ended, or begun anew for another key. */
export const isOver = () => signedInAs !== null && key() === null && localStorage.getItem(STAYS) !== signedInAs.id;

export function end() {
  if (key() === null) for (const name of [STAYS, READS]) localStorage.removeItem(name);
  sessionStorage.clear(); // the key, and what views noted
  signedInAs = null;
}

export const who = () => signedInAs;

/** Return what the key may do, for views that only somebody signed in sees. */
export function signedIn() {
  if (!signedInAs) throw new Error("Nobody is signed in.");
  return signedInAs;
}

/**
 * Whether the key has a scope, among `read`, `recognize`, `enroll`, `admin`.
 * @param {string} scope
 */
export const may = (scope) => signedInAs?.scopes.some((mine) => mine === scope || mine === "admin") ?? false;

/** Whether it is an `admin` key that is not restricted to galleries. */
export const mayEverything = () => may("admin") && signedInAs?.galleries === null;
