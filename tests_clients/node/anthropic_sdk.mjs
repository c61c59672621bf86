// Anthropic's SDK for TypeScript: messages, streams, tools, thinking, counting.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic();
const messages = [{ role: "user", content: "Hello" }];
const call = [{ role: "user", content: 'Please call get_weather {"city": "Paris"}' }];
const tools = [{
  name: "get_weather", description: "Says it.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
}];

const whole = await client.messages.create({ model: "demo", max_tokens: 60, messages });
const stream = client.messages.stream({ model: "demo", max_tokens: 60, messages });
const final = await stream.finalMessage();
const texts = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text);
assert.deepEqual(texts(final), texts(whole));
assert.deepEqual([final.stop_reason, final.usage.output_tokens], ["max_tokens", 60]);

const asked = await client.messages.stream({ model: "demo", max_tokens: 900, messages: call, tools }).finalMessage();
const use = asked.content.find((block) => block.type === "tool_use");
assert.deepEqual([asked.stop_reason, use.input], ["tool_use", { city: "Paris" }]);
const history = [
  ...call, { role: "assistant", content: asked.content },
  { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "Sunny" }] },
];
const told = await client.messages.create({ model: "demo", max_tokens: 900, messages: history, tools });
assert.notEqual(told.stop_reason, "tool_use");

const counted = await client.messages.countTokens({ model: "demo", messages });
const read = whole.usage.cache_read_input_tokens ?? 0; // of prompts that others have sent
assert.equal(counted.input_tokens, whole.usage.input_tokens + read);
const names = [];
for await (const model of client.models.list()) names.push(model.id);
assert.ok(names.includes("demo"));
await assert.rejects(client.messages.create({ model: "nobody", max_tokens: 5, messages }), Anthropic.NotFoundError);
