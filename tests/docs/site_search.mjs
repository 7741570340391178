// Searches a built site as its pages do, with the site's own program: node site_search.mjs SITE
// Reads a JSON list of queries from stdin, and writes for each the pages found, the best first.
import { readdirSync, readFileSync } from "node:fs";

const site = process.argv[2];
const workers = `${site}/assets/javascripts/workers`;
const program = readdirSync(workers).find((name) => /^search\..*\.js$/.test(name));

let handle, reply;
globalThis.self = globalThis;
globalThis.addEventListener = (_, listener) => { handle = listener; };
globalThis.postMessage = (message) => reply(message);
(0, eval)(readFileSync(`${workers}/${program}`, "utf8"));

// The types of messages: 0 gives the index, 2 is a query.
const ask = (type, data) => new Promise((resolve) => { reply = resolve; handle({ data: { type, data } }); });

await ask(0, { ...JSON.parse(readFileSync(`${site}/search/search_index.json`, "utf8")), options: {} });
const found = {};
for (const query of JSON.parse(readFileSync(0, "utf8"))) {
  const { data } = await ask(2, query);
  found[query] = data.items.map(([best]) => best.location.split("#")[0]);
}
console.log(JSON.stringify(found));
