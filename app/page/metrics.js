/** Prometheus' text format, as `/metrics` gives it, and what follows from two readings of it. */

const LINE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** [{name, labels, value}] of every sample. */
export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : LINE.exec(line);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value]));
    samples.push({ name: found[1], labels, value: Number(found[3].replace("+Inf", "Infinity")) });
  }
  return samples;
}

/** The sum of all samples of `name` whose labels `keep` likes. */
export const total = (samples, name, keep = () => true) => samples.reduce((sum, one) => (one.name === name && keep(one.labels) ? sum + one.value : sum), 0);

/** The values that a label has in samples of `name`. */
export const values = (samples, name, label) => [...new Set(samples.filter((one) => one.name === name).map((one) => one.labels[label]))];

/** What a counter grew by; a server that has started again counts from 0. */
export function growth(before, after, name, keep) {
  const grown = total(after, name, keep) - total(before, name, keep);
  return grown < 0 ? total(after, name, keep) : grown;
}

/** The mean of what a histogram took in between two readings; null where that was nothing. */
export function mean(before, after, name, keep) {
  const number = growth(before, after, `${name}_count`, keep);
  return number ? growth(before, after, `${name}_sum`, keep) / number : null;
}

/** A quantile of a histogram, as Prometheus estimates it: straight lines within buckets; null where it is empty. */
export function quantile(samples, name, share, keep = () => true) {
  const buckets = new Map();
  for (const one of samples) {
    if (one.name !== `${name}_bucket` || !keep(one.labels)) continue;
    const end = Number(one.labels.le.replace("+Inf", "Infinity"));
    buckets.set(end, (buckets.get(end) ?? 0) + one.value);
  }
  const ends = [...buckets.keys()].sort((a, b) => a - b);
  const wanted = share * (buckets.get(Infinity) ?? 0);
  if (!wanted) return null;
  let [start, below] = [0, 0];
  for (const end of ends) {
    const upTo = buckets.get(end);
    if (upTo >= wanted) return end === Infinity ? start : start + ((end - start) * (wanted - below)) / (upTo - below);
    [start, below] = [end, upTo];
  }
  return start;
}
