/** A gallery's events as they happen: by fetch, since an EventSource can't send the key. */

import { get } from "../api.js";

const AGAIN_MS = 5000;
const DATA = "data: ";
/** HTTP statuses after which trying again is useless. */
const FINAL = new Set([401, 403, 404]);

/**
 * Call `onevent` with each new event of the gallery, and `onstate` with true or false when the connection begins or
 * ends. Return a function that stops it. There is no connection while the tab is hidden.
 * @param {string} gallery
 * @param {(event: Api.Event) => void} onevent
 * @param {(live: boolean) => void} onstate
 */
export function listen(gallery, onevent, onstate) {
  let over = new AbortController();
  const begin = () => {
    over.abort();
    over = new AbortController();
    if (!document.hidden) void follow(over.signal);
  };
  const follow = async (/** @type {AbortSignal} */ signal) => {
    while (!signal.aborted) {
      let wait = AGAIN_MS;
      try {
        const body = await get("/v1/events", { gallery }, { as: "stream", signal });
        onstate(true);
        for await (const event of eventsOf(body)) onevent(event);
      } catch (error) {
        if (signal.aborted || FINAL.has(error.status)) return;
        wait = Math.max(wait, (error.retryAfter ?? 0) * 1000);
      }
      if (signal.aborted) return;
      onstate(false);
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  };
  document.addEventListener("visibilitychange", begin);
  begin();
  return () => {
    document.removeEventListener("visibilitychange", begin);
    over.abort();
  };
}

/**
 * Yield the data of server-sent events.
 * @param {ReadableStream<Uint8Array<ArrayBuffer>>} body
 * @returns {AsyncGenerator<Api.Event>}
 */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    const lines = (waiting + piece.value).split("\n");
    waiting = lines.pop() ?? "";
    for (const line of lines) if (line.startsWith(DATA)) yield JSON.parse(line.slice(DATA.length));
  }
}
