// OpenAI's SDK for Node: chats, streams, calls, Responses, embeddings.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI();
const messages = [{ role: "user", content: "Hello" }];
const call = [{ role: "user", content: 'Please call get_weather {"city": "Paris"}' }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

const whole = await client.chat.completions.create({ model: "demo", messages, max_completion_tokens: 30 });
let text = "";
for await (const chunk of await client.chat.completions.create({
  model: "demo", messages, max_completion_tokens: 30, stream: true,
})) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(text, whole.choices[0].message.content ?? "");

const asked = [];
const runner = client.chat.completions.runTools({
  model: "demo", messages: call,
  tools: [{
    type: "function",
    function: {
      name: "get_weather", description: "Says it.", parameters, parse: JSON.parse,
      function: ({ city }) => { asked.push(city); return "Sunny"; },
    },
  }],
});
assert.ok(await runner.finalContent());
assert.deepEqual(asked, ["Paris"]);

const tools = [{ type: "function", name: "get_weather", parameters, strict: false }];
const stream = client.responses.stream({ model: "demo", input: call, tools });
const kinds = [];
for await (const event of stream) kinds.push(event.type);
assert.ok(kinds.includes("response.function_call_arguments.done"));
const answer = await stream.finalResponse();
assert.ok(answer.output.some((item) => item.type === "function_call"));
const next = await client.responses.create({
  model: "demo", previous_response_id: answer.id, tools,
  input: answer.output.filter((item) => item.type === "function_call")
    .map((item) => ({ type: "function_call_output", call_id: item.call_id, output: "Sunny" })),
});
assert.ok(next.output_text);

const embedder = new OpenAI({ baseURL: `${process.env.EMBEDDER}/v1` });
const vectors = await embedder.embeddings.create({ model: "embed", input: ["a", "b"] });
assert.deepEqual(vectors.data.map((vector) => vector.embedding.length), [16, 16]);
await assert.rejects(client.chat.completions.create({ model: "nobody", messages }), OpenAI.NotFoundError);
