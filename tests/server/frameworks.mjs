// Vercel's and LangChain's packages, as programs use them: whole answers, streams, objects, tools; and real MCP servers, as tern chat uses them. The first check
// that fails ends the test.
import { spawn, spawnSync } from "node:child_process";
import { createInterface } from "node:readline";
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, isStepCount, streamText, tool } from "ai";
import { ChatAnthropic } from "@langchain/anthropic";
import { ChatOllama, OllamaEmbeddings } from "@langchain/ollama";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { AIMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool as langTool } from "@langchain/core/tools";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { z } from "zod";

const [tern, model, says, notes] = process.argv.slice(2);
async function serve(...options) {
    const server = spawn(tern, ["serve", "--port", "0", "-t", "2", "--cache-size", "0", ...options], { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, TERN_PACK: "never" } });
    process.on("exit", () => server.kill());
    return new Promise((ok, no) => {
        createInterface({ input: server.stderr }).on("line", (line) => { const m = line.match(/http:\/\/[0-9.]+:\d+/); if (m) ok(m[0]); });
        server.on("exit", (code) => no(new Error(`the server ended with ${code}`)));
    });
}
const url = await serve("-m", model), saying = await serve("-m", says);
const city = z.object({ city: z.string().max(12), days: z.number().int().min(1).max(9) });
let n = 0;
const check = async (what, f) => { await f(); n++; console.log("ok:", what); };

// ---- Vercel's
const provider = createOpenAICompatible({ name: "tern", baseURL: url + "/v1", includeUsage: true, supportsStructuredOutputs: true }), chat = provider("tern-tiny");
const asked = { model: chat, prompt: "How is the weather?", temperature: 0, maxOutputTokens: 16, maxRetries: 0 };
let text;
await check("ai: generateText", async () => {
    const r = await generateText(asked);
    text = r.text;
    assert.ok(text && r.usage.outputTokens > 0, JSON.stringify(r.usage));
});
await check("ai: streamText", async () => {
    const r = streamText(asked);
    let streamed = "";
    for await (const part of r.textStream) streamed += part;
    assert.equal(streamed, text);
    assert.ok((await r.usage).inputTokens > 0);
});
await check("ai: an object", async () => {
    const r = await generateText({ ...asked, maxOutputTokens: 200, output: Output.object({ schema: city }) });
    assert.ok(city.parse(r.output));
});
await check("ai: an object, streamed", async () => {
    const r = streamText({ ...asked, maxOutputTokens: 200, output: Output.object({ schema: city }) });
    let last;
    for await (const part of r.partialOutputStream) last = part;
    assert.ok(city.parse(last));
});
const weather = tool({ description: "The weather of a city", inputSchema: city, execute: async (a) => `Rain in ${a.city} for ${a.days} days` });
await check("ai: a tool that must be called", async () => {
    const r = await generateText({ ...asked, maxOutputTokens: 200, tools: { weather }, toolChoice: "required" });
    assert.equal(r.toolCalls[0].toolName, "weather");
    assert.match(r.toolResults[0].output, /^Rain in /);
});
const says_ = createOpenAICompatible({ name: "tern", baseURL: saying + "/v1", supportsStructuredOutputs: true })("say");
const add = tool({ inputSchema: z.object({ a: z.number(), b: z.number() }), execute: async (v) => String(v.a + v.b) });
await check("ai: a tool that is called by itself, and the answer after it", async () => {
    const r = await generateText({ model: says_, prompt: "A", tools: { add }, stopWhen: isStepCount(3), maxRetries: 0 });
    assert.equal(r.text, "It is five.");
    assert.equal(r.steps.length, 2);
});
await check("ai: the same, streamed, its arguments in pieces", async () => {
    const r = streamText({ model: says_, prompt: "A", tools: { add }, stopWhen: isStepCount(3), maxRetries: 0 }), pieces = [];
    let said = "";
    for await (const e of r.fullStream ?? r.stream) {
        if (e.type === "tool-input-delta") pieces.push(e.delta ?? e.inputTextDelta);
        if (e.type === "text-delta") said += e.text ?? e.delta;
    }
    assert.deepEqual(JSON.parse(pieces.join("")), { a: 2, b: 3 });
    assert.ok(pieces.length >= 2, JSON.stringify(pieces));
    assert.match(said, /It is five\.$/);
});
for (const [what, use] of [["ai", says_], ["ai, openai", createOpenAI({ baseURL: saying + "/v1", apiKey: "none" })("say")]])
    await check(`${what}: a tool, and then an object`, async () => {
        const shape = z.object({ sum: z.number().int().min(0).max(99) });
        const r = await generateText({ model: use, prompt: "Q", temperature: 0, tools: { add }, output: Output.object({ schema: shape }), stopWhen: isStepCount(3), maxRetries: 0 });
        assert.deepEqual(r.steps[0].toolCalls.map((c) => [c.toolName, c.input]), [["add", { a: 3, b: 2 }]]);
        assert.ok(shape.parse(r.output));
    });
await check("ai: embedMany", async () => {
    const r = await embedMany({ model: provider.embeddingModel("tern-tiny"), values: ["a cat", "a dog"], maxRetries: 0 });
    assert.equal(r.embeddings.length, 2);
});
await check("ai: an error", async () => {
    await assert.rejects(generateText({ ...asked, prompt: "word ".repeat(9000) }), (e) => e.statusCode === 400 && /context/.test(e.message));
});

// its own package for OpenAI asks for Responses, and names earlier items by their ids
const responses = createOpenAI({ baseURL: url + "/v1", apiKey: "none" }), sent = [];
const responds = createOpenAI({ baseURL: saying + "/v1", apiKey: "none", fetch: (u, o) => { sent.push(o.body); return fetch(u, o); } });
await check("ai, openai: generateText", async () => {
    assert.equal((await generateText({ ...asked, model: responses("tern-tiny") })).text, text);
});
await check("ai, openai: an object", async () => {
    assert.ok(city.parse((await generateText({ ...asked, model: responses("tern-tiny"), maxOutputTokens: 200, output: Output.object({ schema: city }) })).output));
});
await check("ai, openai: a tool, and the answer after it", async () => {
    const r = await generateText({ model: responds("say"), prompt: "A", tools: { add }, stopWhen: isStepCount(3), maxRetries: 0 });
    assert.equal(r.text, "It is five.");
    assert.equal(r.steps.length, 2);
    const again = await generateText({ model: responds("say"), messages: [{ role: "user", content: "A" }, ...r.response.messages, { role: "user", content: "d" }], maxRetries: 0 });
    assert.equal(again.text, "A list.");
    assert.match(sent.at(-1), /"item_reference","id":"msg_/);
});
await check("ai, openai: the same, streamed", async () => {
    const r = streamText({ model: responds("say"), prompt: "A", tools: { add }, stopWhen: isStepCount(3), maxRetries: 0 });
    let said = "";
    for await (const part of r.textStream) said += part;
    assert.match(said, /It is five\.$/);
});
await check("ai, openai: a chat, a completion and embeddings", async () => {
    assert.equal((await generateText({ ...asked, model: responses.chat("tern-tiny") })).text, text);
    assert.ok((await generateText({ ...asked, model: responses.completion("tern-tiny") })).text);
    assert.equal((await embedMany({ model: responses.embedding("tern-tiny"), values: ["a cat"], maxRetries: 0 })).embeddings.length, 1);
});

await check("ai, openai: log-probabilities of a response, whole and streamed", async () => {
    const wants = { ...asked, model: responses("tern-tiny"), providerOptions: { openai: { logprobs: 2 } } };
    const whole = (await generateText(wants)).providerMetadata.openai.logprobs.flat(), r = streamText(wants);
    for await (const _ of r.textStream);
    assert.equal(whole.map((t) => t.token).join("").trim(), text.trim());
    assert.deepEqual((await r.providerMetadata).openai.logprobs.flat(), whole);
});

// Anthropic's form
const messages = (u) => createAnthropic({ baseURL: u + "/v1", apiKey: "none" })("m");
await check("ai, anthropic: generateText, an object", async () => {
    assert.equal((await generateText({ ...asked, model: messages(url) })).text, text);
    assert.ok(city.parse((await generateText({ ...asked, model: messages(url), maxOutputTokens: 200, output: Output.object({ schema: city }) })).output));
});
await check("ai, anthropic: a tool, and the answer after it, whole and streamed", async () => {
    const ask = { model: messages(saying), prompt: "A", tools: { add }, stopWhen: isStepCount(3), maxRetries: 0 };
    assert.equal((await generateText(ask)).text, "It is five.");
    let said = "";
    for await (const part of streamText(ask).textStream) said += part;
    assert.match(said, /It is five\.$/);
});

// ---- LangChain's
const at = (u, more = {}) => new ChatOpenAI({ model: "tern-tiny", apiKey: "none", temperature: 0, maxTokens: 200, maxRetries: 0, configuration: { baseURL: u + "/v1" }, ...more });
await check("langchain: invoke", async () => {
    const r = await at(url, { maxTokens: 16 }).invoke("How is the weather?");
    assert.equal(r.content, text);
    assert.ok(r.usage_metadata.output_tokens > 0);
});
await check("langchain: stream", async () => {
    let streamed = "";
    for await (const part of await at(url, { maxTokens: 16 }).stream("How is the weather?")) streamed += part.content;
    assert.equal(streamed, text);
});
await check("langchain: batch", async () => {
    assert.equal((await at(url, { maxTokens: 4 }).batch(["One", "Two", "Three"])).length, 3);
});
for (const method of ["jsonSchema", "functionCalling"])
    await check(`langchain: withStructuredOutput, ${method}`, async () => {
        assert.ok(city.parse(await at(url).withStructuredOutput(city, { method, name: "weather" }).invoke("How is the weather?")));
    });
const adds = langTool(async (v) => String(v.a + v.b), { name: "add", description: "Adds", schema: z.object({ a: z.number(), b: z.number() }) });
await check("langchain: bindTools, and the answer after it", async () => {
    const bound = at(saying).bindTools([adds]), turns = [new HumanMessage("A")], first = await bound.invoke(turns);
    assert.deepEqual(first.tool_calls.map((c) => [c.name, c.args]), [["add", { a: 2, b: 3 }]]);
    turns.push(first, await adds.invoke(first.tool_calls[0]));
    assert.ok(turns[1] instanceof AIMessage && turns[2] instanceof ToolMessage);
    assert.equal((await bound.invoke(turns)).content, "It is five.");
});
await check("langchain: tools, streamed in pieces", async () => {
    let all, pieces = 0;
    for await (const part of await at(saying).bindTools([adds]).stream("A")) {
        all = all ? all.concat(part) : part;
        pieces += (part.tool_call_chunks ?? []).length;
    }
    assert.deepEqual(all.tool_calls.map((c) => [c.name, c.args]), [["add", { a: 2, b: 3 }]]);
    assert.ok(pieces >= 3, String(pieces));
});
await check("langchain: Responses", async () => {
    assert.ok((await at(url, { useResponsesApi: true, maxTokens: 16 }).invoke("How is the weather?")).text);
});
await check("langchain: embeddings", async () => {
    const e = new OpenAIEmbeddings({ model: "tern-tiny", apiKey: "none", maxRetries: 0, configuration: { baseURL: url + "/v1" } });
    assert.equal((await e.embedDocuments(["a cat", "a dog"])).length, 2);
});
const claude = (u) => new ChatAnthropic({ model: "m", apiKey: "none", anthropicApiUrl: u, maxTokens: 200, temperature: 0, maxRetries: 0 });
const llama = (u, model, more = {}) => new ChatOllama({ model, baseUrl: u, temperature: 0, ...more });
for (const [form, plain, say] of [["anthropic", claude(url), claude(saying)], ["ollama", llama(url, "tern-tiny", { numPredict: 200 }), llama(saying, "say.gguf")]]) {
    await check(`langchain, ${form}: invoke, stream`, async () => {
        const whole = (await plain.invoke("Count")).text;
        let streamed = "";
        for await (const part of await plain.stream("Count")) streamed += part.text;
        assert.ok(whole);
        assert.equal(streamed, whole);
    });
    await check(`langchain, ${form}: withStructuredOutput`, async () => {
        assert.ok(city.parse(await plain.withStructuredOutput(city).invoke("How is the weather?")));
    });
    await check(`langchain, ${form}: bindTools, and the answer after it`, async () => {
        const bound = say.bindTools([adds]), turns = [new HumanMessage("A")], first = await bound.invoke(turns);
        assert.deepEqual(first.tool_calls.map((c) => [c.name, c.args]), [["add", { a: 2, b: 3 }]]);
        turns.push(first, await adds.invoke(first.tool_calls[0]));
        assert.equal((await bound.invoke(turns)).text, "It is five.");
    });
}
await check("langchain, ollama: embeddings", async () => {
    assert.equal((await new OllamaEmbeddings({ model: "tern-tiny", baseUrl: url }).embedDocuments(["a cat", "a dog"])).length, 2);
});
// ---- tern as a server of tools, and servers of others in tern chat
assert.equal(spawnSync(tern, ["rag", "add", notes]).status, 0);
for (const [how, transport] of [["standard input and output", () => new StdioClientTransport({ command: tern, args: ["mcp"], env: process.env })], ["HTTP", () => new StreamableHTTPClientTransport(new URL(url + "/mcp"))]])
    await check(`MCP's client, ${how}`, async () => {
        const client = new Client({ name: "test", version: "1" });
        await client.connect(transport());
        assert.ok((await client.listTools()).tools.some((t) => t.name === "search_documents"));
        assert.equal((await client.listResources()).resources.length, 1);
        assert.match((await client.callTool({ name: "search_documents", arguments: { query: "valve" } })).content[0].text, /froze on Tuesday/);
        await client.close();
    });
const bin = new URL("./node_modules/.bin/", import.meta.url).pathname;
const talk = (said, ...options) => {
    const r = spawnSync(tern, ["chat", says, "--no-store", "--pack", "never", "-c", "16000", ...options], { input: said, encoding: "utf8" });
    assert.equal(r.status, 0, r.stderr);
    return r;
};
await check("MCP: server-filesystem", async () => {
    const server = ["--mcp", `files=${bin}mcp-server-filesystem ${notes}`];
    const r = talk("L\nR\nP\n", ...server, "--mcp-allow", "files.*");
    assert.equal(r.stdout, "A list.\nIt froze.\nIt may not.\n");
    assert.match(r.stderr, /Access denied/);
    assert.match(talk("L\n", ...server).stderr, /it was not called: --mcp-allow files.list_directory/);
});
await check("MCP: server-everything", async () => {
    const r = talk("/tools\nE\n", "--mcp", `e=${bin}mcp-server-everything stdio`, "--mcp-allow", "e.echo");
    assert.match(r.stderr, /^e\.echo \(allowed\): /m);
    assert.equal(r.stdout, "It is five.\n");
});
console.log(`frameworks: ${n} checks passed`);
process.exit(0);
