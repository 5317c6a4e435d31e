// The OpenAI SDK for Node.
import assert from "node:assert/strict";
import OpenAI from "openai";

const { MINI_VLLM_URL: url, MINI_VLLM_KEY: apiKey, MINI_VLLM_MODEL: model } = process.env;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France? Answer in one word." }];
const settings = { model, messages, temperature: 0, max_tokens: 12 };

const whole = await client.chat.completions.create(settings);
assert.match(whole.choices[0].message.content, /Paris/);

let text = "", usage = null;
const stream = await client.chat.completions.create({ ...settings, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);

const tool = { type: "function", function: { name: "pick", parameters: { type: "object", properties: { n: { enum: [1, 2] } }, required: ["n"] } } };
const called = await client.chat.completions.create({ ...settings, max_tokens: 80, tools: [tool], tool_choice: { type: "function", function: { name: "pick" } } });
assert.equal(called.choices[0].finish_reason, "tool_calls");
assert.ok([1, 2].includes(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments).n));

const vectors = await client.embeddings.create({ model, input: ["a cat", "a dog"] });
assert.deepEqual(vectors.data.map((each) => each.embedding.length), [576, 576]);

const kinds = [];
for await (const event of await client.responses.create({ model, input: "Hi", max_output_tokens: 8, stream: true })) kinds.push(event.type);
assert.equal(kinds[0], "response.created");
assert.ok(kinds.includes("response.output_text.delta"));

await assert.rejects(client.chat.completions.create({ ...settings, model: "nobody" }), OpenAI.NotFoundError);
await assert.rejects(client.chat.completions.create({ ...settings, temperature: 9 }), OpenAI.BadRequestError);

const running = async () => (await (await fetch(`${url}/stats`, { headers: { authorization: `Bearer ${apiKey}` } })).json()).active_requests;
const controller = new AbortController();
const left = await client.chat.completions.create({ ...settings, max_tokens: 1800, ignore_eos: true, stream: true }, { signal: controller.signal });
for await (const _ of left) { controller.abort(); break; }
const deadline = Date.now() + 5000;
while (await running()) {
  assert.ok(Date.now() < deadline, "an aborted request goes on");
  await new Promise((resolve) => setTimeout(resolve, 50));
}
