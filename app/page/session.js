/**
 * Who is signed in, and what they may do. The key is kept in the session storage of this tab, which other tabs can't
 * read and which ends with the tab. On a device that stays signed in no key is kept: the browser has a cookie that no
 * script can read.
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
 * Replaces the address by `before`. Browsers may still keep the link in their history.
 * @param {string} [before]
 */
export function leaveLink(before = location.pathname) {
  const { pathname, hash } = new URL(before, location.href);
  history.replaceState(null, "", pathname + (IN_LINK.test(hash) ? "" : hash));
}

export const key = () => sessionStorage.getItem(PLACE);

/**
 * Keeps the key, and what `/v1/key` says about it.
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

/** The storage for facts about the key, which last as long as the key does. */
const place = () => (key() === null ? localStorage : sessionStorage);

/** Whether the last key of this tab or device could read galleries. */
export const couldRead = () => place().getItem(READS) !== null;

/** Whether this device, not only one tab, is signed in. */
export const stays = () => localStorage.getItem(STAYS) !== null;

/** Whether this tab uses a session of the device that another tab has ended or replaced by another key's. */
export const isOver = () => signedInAs !== null && key() === null && localStorage.getItem(STAYS) !== signedInAs.id;

export function end() {
  if (key() === null) for (const name of [STAYS, READS]) localStorage.removeItem(name);
  sessionStorage.clear(); // the key, and what views noted
  signedInAs = null;
}

export const who = () => signedInAs;

/** Return what the key may do. Throws if nobody is signed in. */
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
