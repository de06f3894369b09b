/** Where features add to the page's own views. Their `start.js` does so before the page begins. */

/**
 * Parts of a person's page; each gets the ids of the gallery and the subject.
 * @type {((gallery: string, subject: string) => HTMLElement)[]}
 */
export const PERSON_PARTS = [];

/**
 * Parts of Models; each gets what shows the models anew, and gives an element, or null for keys that may not use it.
 * @type {((reload: () => Promise<unknown>) => Promise<HTMLElement | null>)[]}
 */
export const MODELS_PARTS = [];

/**
 * Parts of a model's card; each gets the model and what shows the models anew, and gives an element, or null.
 * @type {((model: Api.Model, reload: () => Promise<unknown>) => HTMLElement | null)[]}
 */
export const MODEL_PARTS = [];
