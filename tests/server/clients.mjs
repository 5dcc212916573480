// What the real clients make of the server: each check says what it found; the first that fails ends the test.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import assert from "node:assert/strict";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";

const [tern, model] = process.argv.slice(2);
const server = spawn(tern, ["serve", "-m", model, "--port", "0", "-t", "2", "--cache-size", "0"], { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, TERN_PACK: "never" } });
const url = await new Promise((ok, no) => {
    createInterface({ input: server.stderr }).on("line", (line) => {
        const m = line.match(/http:\/\/[0-9.]+:\d+/);
        if (m) ok(m[0]);
    });
    server.on("exit", (code) => no(new Error(`the server ended with ${code}`)));
});
process.on("exit", () => server.kill());

const parameters = { type: "object", properties: { city: { type: "string", maxLength: 12 }, days: { type: "integer", minimum: 1, maximum: 9 } }, required: ["city", "days"], additionalProperties: false };
const user = { role: "user", content: "How is the weather?" };
const openai = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });

// ---- openai
{
    assert.equal((await openai.models.list()).data[0].id, "tern-tiny");
    const ask = { model: "tern-tiny", messages: [user], max_tokens: 16, temperature: 0 };
    const whole = await openai.chat.completions.create(ask);
    const text = whole.choices[0].message.content;
    let streamed = "", usage;
    for await (const e of await openai.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
        streamed += e.choices[0]?.delta.content ?? "";
        usage = e.usage ?? usage;
    }
    assert.equal(streamed, text);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
    assert.ok(usage.prompt_tokens_details.cached_tokens > 0);

    const tools = [{ type: "function", function: { name: "weather", parameters } }];
    const forced = { ...ask, max_tokens: 200, tools, tool_choice: "required" };
    const called = (await openai.chat.completions.create(forced)).choices[0];
    assert.equal(called.finish_reason, "tool_calls");
    const args = JSON.parse(called.message.tool_calls[0].function.arguments);
    assert.ok(args.days >= 1 && args.days <= 9);
    const final = await openai.chat.completions.stream(forced).finalChatCompletion(); // the client's own joining of deltas
    assert.deepEqual(JSON.parse(final.choices[0].message.tool_calls[0].function.arguments), args);

    const turns = [user, called.message, { role: "tool", tool_call_id: called.message.tool_calls[0].id, content: "Rain." }];
    assert.ok((await openai.chat.completions.create({ ...ask, messages: turns, tools })).choices[0].message);
    let runs = 0;
    const runner = openai.chat.completions.runTools({
        ...ask, max_tokens: 200, tool_choice: { type: "function", function: { name: "weather" } },
        tools: [{ type: "function", function: { name: "weather", description: "d", parameters, parse: JSON.parse, function: (a) => { runs++; return `Rain in ${a.city}`; } } }],
    });
    await runner.done();
    assert.equal(runs, 1);

    const format = { type: "json_schema", json_schema: { name: "w", strict: true, schema: parameters } };
    const parsed = await openai.chat.completions.parse({ ...ask, max_tokens: 200, response_format: format });
    assert.ok(parsed.choices[0].message.parsed.days >= 1);
    const vectors = (await openai.embeddings.create({ model: "tern-tiny", input: ["a cat", "a dog"] })).data;
    assert.equal(vectors.length, 2);
    assert.ok(Math.abs(vectors[0].embedding.reduce((s, x) => s + x * x, 0) - 1) < 1e-4);
    const top = (await openai.chat.completions.create({ ...ask, logprobs: true, top_logprobs: 3 })).choices[0].logprobs.content;
    assert.equal(top[0].top_logprobs.length, 3);
    assert.deepEqual((await openai.chat.completions.create({ ...ask, n: 2 })).choices.map((c) => [c.index, c.message.content]), [[0, text], [1, text]]);
    await assert.rejects(openai.chat.completions.create({ ...ask, messages: [{ role: "user", content: "word ".repeat(9000) }] }), (e) => e instanceof OpenAI.BadRequestError && e.code === "context_length_exceeded");
    const stream = await openai.chat.completions.create({ ...ask, stream: true, max_tokens: 400, temperature: 1 });
    for await (const _ of stream) break; // the client goes away
    assert.ok((await openai.completions.create({ model: "tern-tiny", prompt: "Once", max_tokens: 4 })).choices[0].text);
    // Responses, with the client's own joining of events
    const asked = { model: "tern-tiny", input: user.content, max_output_tokens: 16, temperature: 0 };
    const response = await openai.responses.create(asked);
    assert.equal(response.output_text, text);
    assert.equal((await openai.responses.stream(asked).finalResponse()).output_text, text);
    assert.ok((await openai.responses.create({ ...asked, input: "And?", previous_response_id: response.id })).output_text);
    const fn = { type: "function", name: "weather", parameters, strict: true };
    const call = (await openai.responses.stream({ ...asked, max_output_tokens: 200, tools: [fn], tool_choice: "required" }).finalResponse()).output[0];
    assert.ok(JSON.parse(call.arguments).days >= 1);
    const shaped = await openai.responses.parse({ ...asked, max_output_tokens: 200, text: { format: { type: "json_schema", name: "w", strict: true, schema: parameters } } });
    assert.ok(JSON.parse(shaped.output_text).days >= 1);
    assert.equal((await openai.responses.retrieve(response.id)).id, response.id);
    const told = (await openai.responses.stream({ ...asked, include: ["message.output_text.logprobs"], top_logprobs: 2 }).finalResponse()).output[0].content[0];
    assert.equal(told.logprobs.map((t) => t.token).join("").trim(), told.text.trim());
    assert.equal((await openai.responses.inputTokens.count({ model: "tern-tiny", input: asked.input })).input_tokens, response.usage.input_tokens);
    const scored = (await openai.completions.create({ model: "tern-tiny", prompt: "Once upon a time", echo: true, logprobs: 1, max_tokens: 1 })).choices[0].logprobs;
    assert.ok(scored.token_logprobs[0] === null && scored.token_logprobs.length === scored.tokens.length && scored.tokens[0] === "Once");
    console.log("openai ok");
}

// ---- @anthropic-ai/sdk
{
    const ask = { model: "tern-tiny", max_tokens: 16, temperature: 0, system: "You are brief.", messages: [user] };
    const whole = await anthropic.messages.create(ask);
    assert.equal(whole.content[0].type, "text");
    const stream = anthropic.messages.stream(ask);
    let text = "";
    stream.on("text", (t) => (text += t));
    const final = await stream.finalMessage();
    assert.equal(text, whole.content[0].text);
    assert.deepEqual(final.content.map((b) => b.text), whole.content.map((b) => b.text));
    assert.equal(final.stop_reason, whole.stop_reason);
    assert.equal(final.usage.output_tokens, whole.usage.output_tokens);

    const tools = [{ name: "weather", description: "d", input_schema: parameters }];
    const forced = { ...ask, max_tokens: 200, tools, tool_choice: { type: "any" } };
    const called = await anthropic.messages.create(forced);
    assert.equal(called.stop_reason, "tool_use");
    const use = called.content.find((b) => b.type === "tool_use");
    assert.ok(use.input.days >= 1);
    const again = await anthropic.messages.stream(forced).finalMessage();
    assert.deepEqual(again.content.find((b) => b.type === "tool_use").input, use.input);
    const turns = [user, { role: "assistant", content: called.content }, { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "Rain." }] }];
    assert.ok((await anthropic.messages.create({ ...ask, tools, messages: turns })).content);
    assert.ok((await anthropic.messages.countTokens({ model: "tern-tiny", messages: [user] })).input_tokens > 0);
    const known = [];
    for await (const m of anthropic.models.list()) known.push([m.id, m.type, m.display_name, typeof m.created_at]);
    assert.deepEqual(known, [["tern-tiny", "model", "tern-tiny", "string"]]);
    assert.equal((await anthropic.models.retrieve("tern-tiny")).display_name, "tern-tiny");
    await assert.rejects(anthropic.messages.create({ ...ask, messages: [] }), (e) => e instanceof Anthropic.BadRequestError && /at least one message/.test(e.message));
    console.log("anthropic ok");
}

// ---- ollama
{
    const ollama = new Ollama({ host: url });
    assert.deepEqual((await ollama.list()).models.map((m) => m.name), ["tern-tiny"]);
    assert.ok((await ollama.show({ model: "tern-tiny" })).capabilities.includes("completion"));
    assert.match((await ollama.version()).version, /^\d+\.\d+\.\d+$/);
    const ask = { model: "tern-tiny", messages: [user], options: { temperature: 0, num_predict: 12 } };
    const whole = (await ollama.chat(ask)).message.content;
    let text = "", last;
    for await (const part of await ollama.chat({ ...ask, stream: true })) {
        text += part.message.content;
        last = part;
    }
    assert.equal(text, whole);
    assert.ok(last.done && last.eval_count > 0);
    const tools = [{ type: "function", function: { name: "weather", description: "d", parameters } }];
    const called = await ollama.chat({ ...ask, tools, options: { num_predict: 200, grammar: 'root ::= "<tool_call>{\\"name\\": \\"weather\\", \\"arguments\\": {\\"city\\": \\"Bonn\\", \\"days\\": 2}}</tool_call>"' } });
    assert.deepEqual(called.message.tool_calls[0].function.arguments, { city: "Bonn", days: 2 });
    assert.ok((await ollama.chat({ ...ask, tools, messages: [user, called.message, { role: "tool", tool_name: "weather", content: "Rain." }] })).message.content);
    assert.ok(JSON.parse((await ollama.chat({ ...ask, format: parameters, options: { num_predict: 200 } })).message.content).days >= 1);
    assert.ok((await ollama.generate({ model: "tern-tiny", prompt: "Once", options: ask.options })).response);
    assert.equal((await ollama.embed({ model: "tern-tiny", input: ["a cat", "a dog"] })).embeddings.length, 2);
    const told = await ollama.generate({ model: "tern-tiny", prompt: "Once", raw: true, logprobs: true, top_logprobs: 2, options: ask.options });
    assert.equal(told.logprobs.map((t) => t.token).join(""), told.response);
    assert.equal(told.logprobs[0].top_logprobs.length, 2);
    assert.equal((await ollama.ps()).models.length, 1);
    await assert.rejects(ollama.chat({ ...ask, format: "xml" }), (e) => /'format'/.test(e.message));
    await assert.rejects(ollama.pull({ model: "x" }), (e) => e.status_code === 501);
    console.log("ollama ok");
}

server.removeAllListeners("exit");
server.kill("SIGTERM");
assert.equal(await new Promise((ok) => server.on("exit", ok)), 0);
