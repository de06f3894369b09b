/** The bias card of a model: the false match rates measured within groups of people, beside the stated ones. */

import { h } from "./dom.js";
import { table } from "./parts.js";
import { sentence } from "./words.js";

const PARTS = "By sex and ethnic group";
const SHOWN = [1e-2, 1e-3, 1e-4];

/**
 * The card as a section. Parts of groups are folded away.
 * @param {Api.BiasCard} card
 * @param {string} title the model's title
 */
export function biasCard(card, title) {
  if (!card) return h("p.small", {}, "How its error rates differ between groups of people was not measured.");
  const rates = SHOWN.filter((fmr) => card.groups.some((group) => rateOf(group, fmr)));
  const main = card.groups.filter((group) => !group.name.includes("/"));
  const parts = card.groups.filter((group) => group.name.includes("/"));
  return h(
    "section.groups",
    { "aria-label": "Error rates within groups" },
    h("h3", {}, "Within groups of people"),
    h(
      "p.small",
      {},
      "How often two different people of one group pass for one person, at the threshold of each stated rate (95 % " +
        `interval). Bold: the whole interval lies above the stated rate. ${card.measured_on}.`,
    ),
    ratesOf("Groups", main, rates),
    parts.length
      ? h(
          "details",
          {},
          h("summary", { "aria-label": `${PARTS}: ${title}` }, PARTS),
          ratesOf("Parts of groups", parts, rates),
        )
      : null,
    h("p.small", {}, `People who appear twice: ${card.repeats}.`),
  );
}

/**
 * @param {string} caption
 * @param {Api.Group[]} groups
 * @param {number[]} rates
 */
const ratesOf = (caption, groups, rates) =>
  table(
    caption,
    ["Group", ...rates.map((fmr) => `Stated ${share(fmr)}`)],
    groups.map((group) => [named(group.name), ...rates.map((fmr) => cell(rateOf(group, fmr)))]),
  );

/**
 * @param {Api.Group} group
 * @param {number} fmr
 */
const rateOf = (group, fmr) => group.rates.find((rate) => rate.fmr === fmr);

/**
 * `adults-18-59/female-asian` as "Adults 18–59, female asian".
 * @param {string} name
 */
const named = (name) =>
  sentence(
    name
      .replace(/(\d)-(\d)/, "$1–$2")
      .replace("/", ", ")
      .replaceAll("-", " "),
  );

/** @param {Api.GroupRate | undefined} rate */
function cell(rate) {
  if (!rate) return "";
  const found = share(rate.found);
  const range = h("span.range", {}, `${share(rate.low)} to ${share(rate.high)}`);
  return rate.low > rate.fmr
    ? [h("strong", {}, found, h("span.hidden", {}, " (above the stated rate)")), range]
    : [found, range];
}

/**
 * A rate in percent, with two significant digits.
 * @param {number} rate
 */
const share = (rate) => `${Number((rate * 100).toPrecision(2)).toLocaleString("en", { maximumFractionDigits: 5 })} %`;
