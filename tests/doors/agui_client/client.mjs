// Drives an agent by the client of AG-UI, which checks every event: asks, answers, and prints what it has got.
import { HttpAgent, buildResumeArray } from "@ag-ui/client";

const [url, text, ...payloads] = process.argv.slice(2);
const agent = new HttpAgent({ url, threadId: "node" });
const seen = [];
const subscriber = { onEvent: ({ event }) => void seen.push(event.type) };

agent.addMessage({ id: "first", role: "user", content: text });
let last = await agent.runAgent({}, subscriber);
const asked = [];
for (const payload of payloads) {
  asked.push(...agent.pendingInterrupts.map(({ reason, message }) => ({ reason, message })));
  const response = { status: "resolved", payload: JSON.parse(payload) };
  const responses = Object.fromEntries(agent.pendingInterrupts.map(({ id }) => [id, response]));
  last = await agent.runAgent({ resume: buildResumeArray(agent.pendingInterrupts, responses) }, subscriber);
}
const pending = agent.pendingInterrupts.length;
console.log(JSON.stringify({ asked, pending, seen, result: last.result, messages: agent.messages, state: agent.state }));
