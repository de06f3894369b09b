/** The key and what it may do. It lives in this tab's session storage: gone with the tab, and in no other. */

const PLACE = "likeness.key";
const IN_LINK = /^#key=([^&]+)/;

let own = null;

/** The key of a link such as `/#key=…`, which is taken out of the address bar and of the history at once. */
export function keyFromLink() {
  const found = IN_LINK.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", location.pathname);
  return decodeURIComponent(found[1]);
}

export const key = () => sessionStorage.getItem(PLACE);

/** Keeps the key, and what `/v1/key` says of it. */
export function begin(secret, allowed) {
  sessionStorage.setItem(PLACE, secret);
  own = allowed;
}

export function end() {
  sessionStorage.removeItem(PLACE);
  own = null;
}

export const who = () => own;

/** Whether the key has a scope, among `read`, `recognize`, `enroll`, `admin`. */
export const may = (scope) => own !== null && (own.scopes.includes(scope) || own.scopes.includes("admin"));

/** Whether it is an `admin` key that is not restricted to galleries. */
export const mayEverything = () => may("admin") && own.galleries === null;
