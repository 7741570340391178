// A second implementation of the digests: reads lines [kind, value], writes a digest for each.
import { createHash } from "node:crypto";
import { createInterface } from "node:readline";

function canonical(value) {
  if (Array.isArray(value)) return "[" + value.map(canonical).join(",") + "]";
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).sort(); // by UTF-16 code units, as RFC 8785 wants it
  return "{" + names.map((name) => JSON.stringify(name) + ":" + canonical(value[name])).join(",") + "}";
}

for await (const line of createInterface({ input: process.stdin })) {
  const [kind, value] = JSON.parse(line);
  const text = "celery-graph-runner/" + kind + "/v2\n" + canonical(value);
  console.log("sha256:" + createHash("sha256").update(text, "utf8").digest("hex"));
}
