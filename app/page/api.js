/** Calls of the REST interface, which is the one that all other clients use. */

import * as session from "./session.js";

const BUSY = 429;
const PATIENCE = 8;
/** The most items that one page of a list may have. */
export const MOST = 1000;

/** An error that the server answered. `code` is stable; `words.js` has a sentence for each code. */
export class Refusal extends Error {
  /**
   * @param {number} status the answer's HTTP status, 0 without an answer
   * @param {{code: string, message: string, details?: object}} problem
   * @param {string | null} requestId
   * @param {number | null} retryAfter seconds
   */
  constructor(status, problem, requestId, retryAfter) {
    super(problem.message);
    Object.assign(this, { status, code: problem.code, details: problem.details ?? {}, requestId, retryAfter });
  }
}

/**
 * Return `/v1/` and the segments, each percent-encoded: ids may hold any character.
 * @param {...string} segments
 */
export const path = (...segments) => `/v1/${segments.map(encodeURIComponent).join("/")}`;

/**
 * Options of a call: what is sent, and how the answer is read.
 * @typedef {object} Call
 * @property {Record<string, any>} [query] values that are null, undefined or "" are not sent
 * @property {unknown} [json] the body as a value, in place of `body`
 * @property {BodyInit | null} [body]
 * @property {string} [type] the body's content type
 * @property {AbortSignal} [signal]
 * @property {string} [secret] a key to try, in place of the session's
 * @property {"json" | "text" | "blob" | "stream"} [as]
 */

/**
 * Return the server's answer. After a call that may have changed what is at the path, dispatch the event `changed`.
 * Throws Refusal, and an AbortError if the session that asked has ended meanwhile.
 * @param {string} method
 * @param {string} where a path
 * @param {Call} [options]
 * @returns {Promise<any>}
 */
export async function call(method, where, { query, json, body, type, signal, secret, as = "json" } = {}) {
  // Such segments are lost in a URL, with ".." the one before too: deleting a subject would delete the gallery.
  if (/\/\.{0,2}(\/|$)/.test(where)) throw new Refusal(0, { code: "invalid_id", message: "" }, null, null);
  const asking = session.who();
  /** @type {Record<string, string>} */
  const headers = {};
  const key = secret ?? session.key();
  // Other sites' pages can't send this header.
  if (key === null) headers["x-likeness-session"] = "page";
  else headers["x-api-key"] = key;
  if (json !== undefined) headers["content-type"] = "application/json";
  if (type) headers["content-type"] = type;
  const asked = new URLSearchParams(
    Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  let response;
  try {
    response = await fetch(asked.size ? `${where}?${asked}` : where, {
      method,
      headers,
      signal,
      body: json === undefined ? body : JSON.stringify(json),
      cache: "no-store",
      credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { code: "unreachable", message: "" }, null, null);
  }
  const trying = secret !== undefined;
  const answer = response.ok ? await read(response, as) : await refusal(response);
  if (!trying && session.who() !== asking) throw new DOMException("Signed out meanwhile.", "AbortError");
  if (response.ok && method !== "GET") dispatchEvent(new CustomEvent("changed", { detail: where }));
  if (response.ok) return answer;
  if (response.status === 401 && !trying) dispatchEvent(new CustomEvent("signed-out", { detail: answer.code }));
  throw answer;
}

/**
 * @param {Response} response
 * @param {string | undefined} as
 */
function read(response, as) {
  if (response.status === 204) return null;
  if (as === "stream") return response.body;
  return as === "blob" ? response.blob() : as === "text" ? response.text() : response.json();
}

/** @param {Response} response */
async function refusal(response) {
  /** @type {any} */
  let said = {};
  try {
    said = await response.json();
  } catch {
    // A proxy answered, not the server.
  }
  const problem = said.error ?? {
    code: `http_${response.status}`,
    message: `The answer was ${response.status}.`,
    details: said,
  };
  const wait = Number(response.headers.get("retry-after")) || null;
  return new Refusal(response.status, problem, said.request_id ?? null, wait);
}

/** @type {(where: string, query?: Record<string, unknown>, more?: Call) => Promise<any>} */
export const get = (where, query, more) => call("GET", where, { query, ...more });
/** @type {(where: string, json?: unknown, more?: Call) => Promise<any>} */
export const post = (where, json, more) => call("POST", where, { json, ...more });
/**
 * @param {string} where
 * @param {unknown} json
 */
export const patch = (where, json) => call("PATCH", where, { json });
/** @param {string} where */
export const remove = (where) => call("DELETE", where);

/**
 * All items of a list that comes in pages. `name`: the pages' field that holds the items.
 * @param {string} where
 * @param {string} name
 * @param {any} [first] the first page, if it was read already
 */
export async function every(where, name, first = null) {
  const found = [];
  for (let page = first; ; ) {
    page ??= await get(where, { limit: MOST, cursor: null });
    found.push(...page[name]);
    if (!page.next_cursor) return found;
    page = await get(where, { limit: MOST, cursor: page.next_cursor });
  }
}

/**
 * Send a photo as the raw body.
 * @param {string} where
 * @param {Blob} photo
 * @param {Record<string, any>} [query]
 * @param {AbortSignal} [signal]
 */
export const sendPhoto = (where, photo, query, signal) =>
  call("POST", where, {
    body: photo,
    type: photo.type.startsWith("image/") ? photo.type : "application/octet-stream",
    query,
    signal,
  });

/**
 * Send a multipart form of photos, `[field, blob]` pairs, without the files' names.
 * @param {string} where
 * @param {any[][]} photos
 * @param {Record<string, any>} [query]
 * @param {AbortSignal} [signal]
 */
export function sendPhotos(where, photos, query, signal) {
  const form = new FormData();
  for (const [name, photo] of photos) form.append(name, photo, "image");
  return call("POST", where, { body: form, query, signal });
}

/**
 * Abort the last request of `owner`. Return the controller for its next one.
 * @param {{asking?: AbortController | null}} owner
 */
export function askAnew(owner) {
  owner.asking?.abort();
  owner.asking = new AbortController();
  return owner.asking;
}

/**
 * Calls `attempt`; if the server is busy, waits as long as it asks for, and tries again, up to PATIENCE times.
 * @param {() => Promise<any>} attempt
 * @param {AbortSignal} [signal]
 */
export async function patiently(attempt, signal) {
  for (let tries = 0; ; tries++) {
    try {
      return await attempt();
    } catch (error) {
      if (error.status !== BUSY || tries === PATIENCE || signal?.aborted) throw error;
      await new Promise((resolve) => setTimeout(resolve, (error.retryAfter ?? 1) * 1000));
    }
  }
}
