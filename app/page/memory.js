/**
 * What views keep to show when the user comes back, such as a photo. It is in this tab's memory only, until sign-out.
 */

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
