/** Sends calls and reads answers for the generated operations. Works in browsers, Node.js 20+, Deno and Bun. */

/** An image file: the Blob that a file input, a canvas or `fetch` returns, or the file's bytes. */
export type Image = Blob | Uint8Array<ArrayBuffer>;

/** A parameter, a field of a body, or nothing. */
type Value = unknown;

/** The server's answer to a call that failed; decide by `code`. `status` is 0 if no server answered. */
export class LikenessError extends Error {
  readonly status: number;
  readonly code: string;
  readonly details: Record<string, unknown>;
  readonly requestId: string;

  constructor(status: number, code: string, message: string, details: Record<string, unknown> = {}, requestId = "") {
    super(message);
    this.name = "LikenessError";
    this.status = status;
    this.code = code;
    this.details = details;
    this.requestId = requestId;
  }
}

/** One call: what to send, and where. */
export type Call = {
  method: string;
  path: string;
  query?: Record<string, Value>;
  json?: Record<string, Value>;
  images?: Record<string, Image | readonly Image[]>;
  body?: Blob | ReadableStream<Uint8Array>;
  /** The form of the answer; JSON by default. */
  answer?: "blob" | "nothing";
};

export type Options = {
  /** The server's address, such as `https://faces.example.org`; in a page that it serves, its own origin. */
  url?: string;
  /** An API key. */
  key?: string;
  /** How often a call to a busy server (429) is sent again, after the seconds that it names; 5 unless given. */
  retries?: number;
  fetch?: typeof globalThis.fetch;
};

const BUSY = 429;
/** Matches a path with an id that URLs lose, with ".." together with the id before: it would be another path. */
const LOST_ID = /\/\.{0,2}(\/|$)/;
const MAX_WAIT_S = 10;

/** Sends calls to one server. */
export class Sender {
  readonly #options: Options;

  constructor(options: Options = {}) {
    this.#options = options;
  }

  /** Send a call and return its answer. Throws LikenessError. */
  async send<Answer>(call: Call): Promise<Answer> {
    const response = await this.#answered(call);
    if (!response.ok) throw await errorOf(response);
    if (call.answer === "nothing") return undefined as Answer;
    return (call.answer === "blob" ? await response.blob() : await response.json()) as Answer;
  }

  async #answered(call: Call): Promise<Response> {
    if (LOST_ID.test(call.path)) throw new LikenessError(0, "invalid_id", 'No URL can hold the ids "", "." and "..".');
    const { url = "", key, retries = 5, fetch = globalThis.fetch } = this.#options;
    const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {};
    if (call.json) headers["content-type"] = "application/json";
    if (call.body) headers["content-type"] = "application/x-tar";
    const target = url.replace(/\/$/, "") + call.path + queryOf(call.query ?? {});
    for (let attempt = 0; ; attempt++) {
      const body = call.images ? formOf(call.images) : call.json ? JSON.stringify(call.json) : call.body;
      const init: RequestInit & { duplex?: "half" } = { method: call.method, headers };
      if (body) init.body = body;
      if (body instanceof ReadableStream) init.duplex = "half";
      let response: Response;
      try {
        response = await fetch(target, init);
      } catch (error) {
        throw new LikenessError(0, "unreachable", `${target}: ${String(error)}`);
      }
      if (response.status !== BUSY || attempt >= retries || body instanceof ReadableStream) return response;
      const seconds = Number(response.headers.get("retry-after") ?? 1) || 1;
      await new Promise((resolve) => setTimeout(resolve, Math.min(seconds, MAX_WAIT_S) * 1000));
    }
  }
}

/** Fill the ids into a path, percent-encoded: `/v1/galleries/{gallery}`. */
export function path(template: string, ids: Record<string, string>): string {
  return template.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(ids[name] ?? ""));
}

/** Yields the items of every page; a page is fetched when its items are needed. */
export async function* pages<Page extends { next_cursor: string | null }, Item>(
  get: (cursor: string | undefined) => Promise<Page>,
  items: (page: Page) => readonly Item[],
): AsyncGenerator<Item> {
  let cursor: string | null | undefined;
  do {
    const page = await get(cursor ?? undefined);
    yield* items(page);
    cursor = page.next_cursor;
  } while (cursor !== null);
}

function queryOf(query: Record<string, Value>): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== undefined && item !== null) given.append(name, String(item));
    }
  }
  const text = given.toString();
  return text && `?${text}`;
}

function formOf(images: Record<string, Image | readonly Image[]>): FormData {
  const form = new FormData();
  for (const [name, some] of Object.entries(images)) {
    for (const image of Array.isArray(some) ? (some as Image[]) : [some as Image]) {
      // The file's own name is not sent: it may hold personal data.
      form.append(name, image instanceof Blob ? image : new Blob([image]), "image");
    }
  }
  return form;
}

async function errorOf(response: Response): Promise<LikenessError> {
  try {
    const { error, request_id } = await response.json();
    return new LikenessError(response.status, error.code, error.message, error.details, request_id);
  } catch {
    return new LikenessError(response.status, "not_likeness", `HTTP ${response.status}: the answer is not from Likeness`);
  }
}
