/** Which view the address names: `#/galleries/crew/people/eileen`. What follows `#` never leaves the browser. */

/** The decoded segments after `#/`, and what follows a `?`. */
export function here() {
  const [where, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { segments: where.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

export const link = (...segments) => `#/${segments.map(encodeURIComponent).join("/")}`;
export const go = (...segments) => (location.hash = link(...segments));

/** For a click on a link to the view that is open, which is then shown anew. */
export const reopen = (event) => event.currentTarget.hash === location.hash && dispatchEvent(new HashChangeEvent("hashchange"));
