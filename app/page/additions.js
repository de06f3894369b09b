/** What features add to the page's own views. Each feature's `start.js` adds its parts before the page starts. */

/**
 * Parts of a person's page; each gets the ids of the gallery and the subject.
 * @type {((gallery: string, subject: string) => HTMLElement)[]}
 */
export const PERSON_PARTS = [];

/**
 * Parts of the view Models. Each gets a function that shows the models again, and gives an element, or null if the key
 * may not use the part.
 * @type {((reload: () => Promise<unknown>) => Promise<HTMLElement | null>)[]}
 */
export const MODELS_PARTS = [];

/**
 * Parts of a model's card. Each gets the model and a function that shows the models again, and gives an element, or
 * null for none.
 * @type {((model: Api.Model, reload: () => Promise<unknown>) => HTMLElement | null)[]}
 */
export const MODEL_PARTS = [];
