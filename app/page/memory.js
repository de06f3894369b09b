/** What views keep for the way back, such as a photo: in this tab's memory only, and until somebody signs out. */

/** @type {Map<string, any>} */
const kept = new Map();

/**
 * Keep `value` under `name`; null or undefined forgets it.
 * @param {string} name
 * @param {any} value
 */
export const keep = (name, value) => {
  if (value === null || value === undefined) kept.delete(name);
  else kept.set(name, value);
};

/** @param {string} name */
export const recall = (name) => kept.get(name) ?? null;

export const forget = () => kept.clear();
