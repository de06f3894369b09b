/** What a view does later, such as reading again: the newest of what was set, and nothing once the view is left, also where
 * an answer arrives after that. */

export function later() {
  let timer = 0;
  let left = false;
  const clear = () => clearTimeout(timer);
  const set = (work, ms) => {
    clear();
    if (!left) timer = setTimeout(work, ms);
  };
  const leave = () => {
    left = true;
    clear();
  };
  return { set, clear, leave };
}
