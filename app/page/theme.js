/**
 * The theme: light, dark, or the system's. The choice stays in this browser after sign-out, since it reveals nothing
 * about anybody.
 */

const PLACE = "likeness.theme";
const SAME = "system";

export const THEMES = [
  [SAME, "As the system"],
  ["light", "Light"],
  ["dark", "Dark"],
];
export const chosen = () => localStorage.getItem(PLACE) ?? SAME;

/** @param {string} name */
export function choose(name) {
  if (name === SAME) localStorage.removeItem(PLACE);
  else localStorage.setItem(PLACE, name);
  apply();
}

export function apply() {
  const name = chosen();
  if (name === SAME) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}
