/** LangChain for JavaScript: `ChatOpenAI` whole, streamed and with tools; `OpenAIEmbeddings`. */
import assert from "node:assert/strict";

import { HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";

const { EMBEDDER, OPENAI_BASE_URL } = process.env;
const configuration = { baseURL: OPENAI_BASE_URL };
const model = new ChatOpenAI({ model: "demo", maxTokens: 400, configuration });

const whole = await model.invoke([new HumanMessage("Say hello.")]);
assert(whole.text.length > 0);
assert(whole.usage_metadata.output_tokens > 0);

let text = "";
for await (const chunk of await model.stream("Say hello.")) text += chunk.text;
assert(text.length > 0);

const weather = tool(async ({ city }) => `Rain in ${city}.`, {
  name: "weather", description: "The weather of a city.", schema: z.object({ city: z.enum(["Rome", "Oslo"]) }),
});
const called = await model.bindTools([weather], { tool_choice: "weather" }).invoke("What is the weather in Rome?");
assert.equal(called.tool_calls[0].name, "weather");
assert.match(await weather.invoke(called.tool_calls[0].args), /^Rain in (Rome|Oslo)\.$/);

const embeddings = new OpenAIEmbeddings({ model: "embed", configuration: { baseURL: `${EMBEDDER}/v1` } });
const vectors = await embeddings.embedDocuments(["a", "b"]);
assert.deepEqual(vectors.map((vector) => vector.length), [16, 16]);
