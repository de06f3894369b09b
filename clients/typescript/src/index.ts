/** A client for a Likeness server. `new Client({ url, key })` has a method for each operation. */

export { type Image, LikenessError, type Options } from "./call.ts";
export { Client } from "./client.ts";
export * from "./types.ts";
