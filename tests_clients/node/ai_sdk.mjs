// Vercel's AI SDK: its providers for OpenAI's APIs, for compatible servers and for Anthropic's API.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const base = `${process.env.SERVER}/v1`;
const compatible = createOpenAICompatible({
  name: "dynamo", baseURL: base, apiKey: "any", includeUsage: true, supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL: base, apiKey: "any" });
const anthropic = createAnthropic({ baseURL: base, apiKey: "any" });
const prompt = 'Please call get_weather {"city": "Paris"}';

for (const [name, model] of Object.entries({
  compatible: compatible("demo"), chat: openai.chat("demo"), responses: openai.responses("demo"),
  messages: anthropic("demo"),
})) {
  const whole = await generateText({ model, prompt: "Hello", maxOutputTokens: 300 });
  const stream = streamText({ model, prompt: "Hello", maxOutputTokens: 300 });
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  assert.equal(text, whole.text, name);
  assert.ok((await stream.usage).outputTokens > 0, name);

  const asked = [];
  const tools = {
    get_weather: tool({
      description: "Says it.", inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => { asked.push(city); return "Sunny"; },
    }),
  };
  const steps = streamText({ model, prompt, tools, stopWhen: stepCountIs(4) });
  assert.ok(await steps.text, name);
  assert.deepEqual(asked, ["Paris"], name);

  const schema = z.object({ name: z.string(), seats: z.number().int() });
  const { output } = await generateText({ model, prompt: "When?", output: Output.object({ schema }) });
  assert.equal(typeof output.name, "string", name);
}

const embedder = createOpenAICompatible({ name: "dynamo", baseURL: `${process.env.EMBEDDER}/v1` });
const vectors = await embedMany({ model: embedder.embeddingModel("embed"), values: ["a", "b"] });
assert.deepEqual(vectors.embeddings.map((vector) => vector.length), [16, 16]);
