/** What a view does later, such as reading again: the newest of what was set, and nothing where its `element` is
 * gone by
 * then, as when an answer arrives after the view was left. */

export function later(element) {
  let timer = 0;
  const clear = () => clearTimeout(timer);
  const set = (work, ms) => {
    clear();
    if (element.isConnected) timer = setTimeout(work, ms);
  };
  return { set, clear };
}
