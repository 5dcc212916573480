// zod's types: the JSON schema that zod makes of each is taken, and zod takes the answer. What is checked behind the answer says so, and fits or not.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import assert from "node:assert/strict";
import { z } from "zod";

const [tern, model] = process.argv.slice(2);
const server = spawn(tern, ["serve", "-m", model, "--port", "0", "-t", "2", "--cache-size", "0"], { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, TERN_PACK: "never" } });
const url = await new Promise((ok, no) => {
    createInterface({ input: server.stderr }).on("line", (line) => { const m = line.match(/http:\/\/[0-9.]+:\d+/); if (m) ok(m[0]); });
    server.on("exit", (code) => no(new Error(`the server ended with ${code}`)));
});
process.on("exit", () => server.kill());

const short = z.string().max(8);
const tree = z.object({ name: short, get children() { return z.array(tree).max(1); } });
const types = {
    string: short, "min and max": z.string().min(2).max(5), regex: z.string().regex(/^[a-c]{2}-\d+$/).max(9), "starts with": z.string().startsWith("ab").max(9), email: z.email(), url: z.url(), uuid: z.uuid(),
    datetime: z.iso.datetime(), date: z.iso.date(), time: z.iso.time(), ipv4: z.ipv4(), number: z.number(), int: z.int(), "positive int": z.int().positive().max(99), "multiple of": z.int().min(0).max(40).multipleOf(5),
    boolean: z.boolean(), null: z.null(), literal: z.literal("tern"), enum: z.enum(["red", "green"]), array: z.array(z.boolean()).min(1).max(3), tuple: z.tuple([z.boolean(), z.enum(["a", "b"])]),
    object: z.object({ a: z.boolean(), b: z.enum(["x", "y"]) }), optional: z.object({ a: z.boolean(), b: z.boolean().optional() }), record: z.object({ r: z.record(z.enum(["k", "l"]), z.boolean()) }),
    union: z.union([z.boolean(), z.int().min(0).max(9)]), "discriminated union": z.discriminatedUnion("kind", [z.object({ kind: z.literal("a"), n: z.int().min(0).max(9) }), z.object({ kind: z.literal("b"), s: short })]),
    nullable: z.boolean().nullable(), intersection: z.intersection(z.object({ a: z.boolean() }), z.object({ b: z.boolean() })), recursive: tree, default: z.object({ a: z.boolean().default(true) }),
};
const turns = [{ role: "user", content: "Answer in JSON." }];
const doors = {
    responses: (schema) => ({ url: "/v1/responses", body: { input: "Answer in JSON.", max_output_tokens: 160, temperature: 0, text: { format: { type: "json_schema", name: "answer", schema } } },
        text: (v) => JSON.parse(v.output.at(-1).content[0].text), cut: (v) => v.status === "incomplete" }),
    messages: (schema) => ({ url: "/v1/messages", body: { messages: turns, max_tokens: 160, temperature: 0, output_config: { format: { type: "json_schema", schema } } },
        text: (v) => JSON.parse(v.content.at(-1).text), cut: (v) => v.stop_reason === "max_tokens" }),
    ollama: (schema) => ({ url: "/api/chat", body: { model: "x", messages: turns, stream: false, format: schema, options: { num_predict: 160, temperature: 0 } },
        text: (v) => JSON.parse(v.message.content), cut: (v) => v.done_reason === "length" }),
    "a required call": ({ $schema, ...schema }) => ({ url: "/v1/chat/completions", body: { messages: turns, max_tokens: 160, temperature: 0, tool_choice: "required",
        tools: [{ type: "function", function: { name: "answer", parameters: { type: "object", properties: { v: schema }, required: ["v"], additionalProperties: false } } }] },
        text: (v) => JSON.parse(v.choices[0].message.tool_calls[0].function.arguments).v, cut: (v) => v.choices[0].finish_reason === "length" }),
};
const failed = [];
for (const [name, type] of Object.entries(types)) {
    const schema = z.toJSONSchema(type);
    const body = { messages: [{ role: "user", content: "Answer in JSON." }], max_tokens: 160, temperature: 0, response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema } } };
    const r = await fetch(url + "/v1/chat/completions", { method: "POST", body: JSON.stringify(body) }), v = await r.json();
    if (r.status !== 200) { failed.push(`${name}: ${JSON.stringify(v.error.message)} of ${JSON.stringify(schema)}`); continue; }
    const choice = v.choices[0], text = choice.message.content, checked = choice.schema_check;
    let taken = false;
    try { taken = type.safeParse(JSON.parse(text)).success; } catch { /* no JSON */ }
    const right = checked && !checked.fits ? !taken || choice.finish_reason === "length" : taken; // one that was cut is never said to fit
    if (!right) failed.push(`${name}: ${text} (${choice.finish_reason}, ${JSON.stringify(checked)}) of ${JSON.stringify(schema)}`);
    for (const [door, ask] of checked ? Object.entries(doors) : []) { // what cannot be held is the matter of every API
        const { url: to, body, text: said, cut } = ask(schema);
        const r = await fetch(url + to, { method: "POST", body: JSON.stringify(body) }), v = await r.json();
        if (r.status !== 200) { failed.push(`${door}, ${name}: ${JSON.stringify(v)}`); continue; }
        const check = v.schema_check ?? v.choices?.[0].schema_check;
        let fits = false;
        try { fits = type.safeParse(said(v)).success; } catch { /* no JSON */ }
        if (check?.checked !== checked.checked || (check.fits ? !fits : fits && !cut(v))) failed.push(`${door}, ${name}: ${JSON.stringify(v)}`);
    }
}
console.log(`${Object.keys(types).length - failed.length} of ${Object.keys(types).length} types of zod`);
assert.deepEqual(failed, []);
server.kill();
