/** A tar of files, as a Blob that refers to the files without copying them. */

const BLOCK = 512;
const encoder = new TextEncoder();

/**
 * The header of a file (POSIX.1-1988); only name, size and kind matter here.
 * @param {string} name at most 100 characters of ASCII
 * @param {number} size
 */
function header(name, size) {
  const block = new Uint8Array(BLOCK);
  const put = (/** @type {number} */ place, /** @type {string} */ text) => block.set(encoder.encode(text), place);
  const octal = (/** @type {number} */ value, /** @type {number} */ digits) => value.toString(8).padStart(digits, "0");
  put(0, name);
  put(100, "0000600\0");
  put(108, "0000000\0");
  put(116, "0000000\0");
  put(124, `${octal(size, 11)}\0`);
  put(136, `${octal(0, 11)}\0`);
  put(148, "        "); // the checksum's own field counts as blanks
  put(156, "0");
  put(257, "ustar\x0000");
  const sum = block.reduce((total, byte) => total + byte, 0);
  put(148, `${octal(sum, 6)}\0 `);
  return block;
}

/** @param {Blob[]} files their names in the tar are their indices: 0, 1, 2 and so on */
export function tar(files) {
  const parts = files.flatMap((file, place) => [
    header(String(place), file.size),
    file,
    new Uint8Array((BLOCK - (file.size % BLOCK)) % BLOCK),
  ]);
  return new Blob([...parts, new Uint8Array(2 * BLOCK)], { type: "application/x-tar" });
}
