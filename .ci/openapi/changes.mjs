/**
 * Says what a program that uses the document BEFORE would trip over in AFTER: `node changes.mjs BEFORE.json AFTER.json`.
 *
 * Exits with 1 if something breaks and the version promises that nothing does: from 1.0.0 on the first number says so,
 * before it the second. api-smart-diff compares the documents and knows what breaks.
 */

import { readFileSync } from "node:fs";
import process from "node:process";
import { apiCompare } from "api-smart-diff";

const SHOWN = 100;
const [before, after] = process.argv.slice(2).map((path) => JSON.parse(readFileSync(path, "utf8")));

/** @param {string} version */
const promise = (version) => version.split(".").slice(0, version.startsWith("0.") ? 2 : 1).join(".");

// A changed type of an answer's field breaks programs, too, which api-smart-diff takes for harmless.
const breaks = ({ type, action, path }) => type === "breaking" || (action === "replace" && path.at(-1) === "type");
const breaking = apiCompare(before, after).diffs.filter((diff) => diff.path[0] === "paths" && breaks(diff));
const lines = [...new Set(breaking.map(({ action, path }) => `${action} ${path.slice(1).join(" ")}`))].sort();
for (const line of lines.slice(0, SHOWN)) console.log(line);
if (lines.length > SHOWN) console.log(`and ${lines.length - SHOWN} more`);

const [from, to] = [before.info.version, after.info.version];
const promised = promise(from) === promise(to);
console.log(`${from} to ${to}: ${lines.length} breaking changes${lines.length && !promised ? ", which the version says" : ""}`);
process.exitCode = lines.length && promised ? 1 : 0;
