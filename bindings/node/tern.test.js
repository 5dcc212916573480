// The Node binding beside the program: $TERN_PROGRAM, $TERN_LIBRARY; in the tree's root (tests/bindings/node.sh).
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import * as tern from "./index.js";

const { Model, Session, TernError, pack, version } = tern;

const PATH = "models/tern-tiny";
const LONG = "The little dog went to the park and saw a bird. ".repeat(60); // more than a chunk
const program = (...words) => execFileSync(process.env.TERN_PROGRAM, words, { encoding: "utf8" });
const folder = mkdtempSync(join(tmpdir(), "tern-node-"));
let model;

async function all(pieces) {
  let said = "";
  for await (const p of pieces) said += p;
  return said;
}

before(async () => {
  model = await Model.open(PATH, { temp: 0, nPredict: 12, threads: 2 });
});
after(() => {
  model.close();
  rmSync(folder, { recursive: true });
});

test("answers are the program's", async () => {
  const raw = program("run", PATH, "Once upon a time", "--raw", "--temp", "0", "-n", "12", "-t", "2").replace(/\n$/, "");
  assert.equal(await model.complete("Once upon a time"), raw);
  const chat = program("run", PATH, "What is a dog?", "--temp", "0", "-n", "12", "-t", "2").replace(/\n$/, "");
  assert.equal(await all(model.chat("What is a dog?")), chat);
  assert.equal(await all(model.chat([{ role: "user", content: "What is a dog?" }])), chat);
  assert.equal(model.detokenize(model.tokenize("It's 日本語", { special: false })), "It's 日本語");
  assert.match(program("--version"), new RegExp(version().replace(/\./g, "\\.")));
});

test("a schema, a grammar, stop texts", async () => {
  const schema = { type: "object", properties: { n: { type: "integer", maximum: 9 } }, required: ["n"], additionalProperties: false };
  const value = await model.complete([{ role: "user", content: "A number?" }], { schema });
  assert.deepEqual(Object.keys(value), ["n"]);
  assert.ok(Number.isInteger(value.n));
  await assert.rejects(model.complete("A number?", { schema, nPredict: 2 }), /cut off after 2 tokens/);
  assert.match(await model.complete("Say", { grammar: 'root ::= "yes" | "no"' }), /^(yes|no)$/);
  const whole = await model.complete("Once upon a time");
  assert.equal(await model.complete("Once upon a time", { stop: ["nowhere", whole.slice(4, 9)] }), whole.slice(0, whole.indexOf(whole.slice(4, 9))));
});

test("an embedding is a vector of length 1", async () => {
  const a = await model.embed("a dog");
  const b = await model.embed("the stock market");
  const product = (x, y) => x.reduce((sum, v, i) => sum + v * y[i], 0);
  assert.equal(a.length, model.info.n_embd);
  assert.ok(Math.abs(product(a, a) - 1) < 1e-5);
  assert.ok(product(a, b) < 0.999);
  const both = await model.embed(["a dog", "the stock market"]);
  assert.deepEqual(both, [a, b]);
  assert.deepEqual(await model.embed([]), []);
});

test("the types name what there is", () => {
  const types = readFileSync(new URL("./index.d.ts", import.meta.url), "utf8");
  for (const C of [Model, Session]) {
    const body = types.match(new RegExp(`export class ${C.name} \\{(.*?)\\n\\}`, "s"))[1];
    const named = new Set([...body.matchAll(/^ {2}(?:readonly |static )?(\w+)/gm)].map((m) => m[1]));
    named.delete("constructor");
    for (const name of named)
      assert.ok(name in C.prototype || name in C || (C === Model ? model : {})[name] !== undefined, `${C.name}.${name} is in the types alone`);
  }
  for (const [, name] of types.matchAll(/^export (?:function|class) (\w+)/gm)) assert.ok(name in tern, `${name} is in the types alone`);
  for (const name in tern) assert.ok(types.includes(name), `${name} has no type`);
});

test("parts of text are joined", () => {
  const parts = [{ type: "text", text: "Who is" }, { type: "text", text: "Lily?" }];
  assert.deepEqual(model.chatTokens([{ role: "user", content: parts }]), model.chatTokens("Who is\nLily?"));
  assert.throws(() => model.chatTokens([{ role: "user", content: [{ type: "image_url" }] }]), /only parts of type text/);
});

test("a session is saved, loaded, looked into", async () => {
  const path = join(folder, "s");
  const s = model.session();
  await s.prefill("Once upon a time there was a");
  await s.save(path);
  const best = s.logits.indexOf(Math.max(...s.logits));
  const likeliest = s.likeliest(2);
  assert.equal(likeliest[0].token, best);
  assert.ok(likeliest.length === 2 && likeliest[0].logprob < 0 && likeliest[1].logprob <= likeliest[0].logprob);
  const want = await all(s.generate());
  assert.ok(s.counters.kv_bytes > 0);
  assert.ok(want.startsWith(model.detokenize([best])));
  const t = model.session();
  await t.load(path);
  assert.deepEqual(t.tokens, model.tokenize("Once upon a time there was a"));
  assert.equal(await all(t.generate()), want);
  await t.truncate(3);
  assert.equal(t.length, 3);
  assert.equal(t.logits, null);
  s.close();
  t.close();
  assert.throws(() => s.length, /closed/);
});

test("an answer can be left, and aborted", async () => {
  const s = model.session({ ignoreEos: true, nPredict: 400 });
  let n = 0;
  for await (const _ of s.generate("Once upon a time")) if (++n === 3) break;
  assert.ok(s.length < 300);
  const abort = new AbortController();
  await assert.rejects(async () => {
    for await (const _ of s.generate("Once upon a time", { signal: abort.signal })) abort.abort();
  }, { name: "AbortError" });
  const reading = s.prefill(LONG);
  await assert.rejects(s.prefill("Another"), /at work/);
  s.cancel();
  await assert.rejects(reading, { name: "AbortError" });
  assert.ok(s.length < model.tokenize(LONG).length);
  await s.prefill("Once upon a time"); // goes on
  s.cancel(); // nothing runs: nobody else is ended
  await s.prefill("Once upon a time there");
  s.close();
});

test("packages", async () => {
  const src = join(folder, "m.gguf"), out = join(folder, "m.tern"), seen = [];
  program("synth", "--arch", "tiny-qwen2", "-o", src);
  const report = await pack(src, out, { scheme: "llm-npu", progress: (stage, fraction) => void seen.push(fraction) });
  assert.equal(Number(report.package_bytes), statSync(out).size);
  assert.ok(seen.length && Math.max(...seen) <= 1);
  const packed = await Model.open(out, { temp: 0, nPredict: 5 });
  assert.equal(packed.info.scheme, "llm-npu");
  assert.equal(await packed.complete("Once upon"), program("run", out, "Once upon", "--raw", "--temp", "0", "-n", "5").replace(/\n$/, ""));
  packed.close();
  await assert.rejects(pack(src, out + "2", { progress: () => false }), { name: "AbortError" });
  assert.ok(!existsSync(out + "2"));
});

test("errors are the library's", async () => {
  await assert.rejects(Model.open("nowhere.gguf"), (e) => e instanceof TernError && /nowhere.gguf: cannot open/.test(e.message));
  await assert.rejects(Model.open(PATH, { thread: 1 }), /no parameter is called 'thread'/);
  await assert.rejects(model.complete("a", { temp: "hot" }), /temp hot: want a number/);
});

test("numbers and texts are not cut", async () => {
  const s = model.session();
  for (const bad of [2 ** 32 + 5, 2 ** 31, -1, 1.5, NaN, "5", undefined]) {
    for (const call of [() => s.prefill([1, bad]), () => s.step(bad), async () => model.detokenize([bad]), () => all(s.generate([bad])), () => s.truncate(bad === 2 ** 32 + 5 || bad === 2 ** 31 ? -2 : bad)])
      await assert.rejects(call(), RangeError, String(bad));
  }
  await assert.rejects(pack(PATH, join(folder, "no"), { threads: 2 ** 32 + 1 }), RangeError);
  for (const bits of [2 ** 32 + 4, -4, 4.5, "4"]) await assert.rejects(pack(PATH, join(folder, "no"), { bits }), RangeError);
  assert.ok(!existsSync(join(folder, "no")));
  await s.prefill("Once");
  const path = join(folder, "cut");
  for (const call of [() => s.save(path + "\0more"), () => s.load(path + "\0more"), () => Model.open(PATH + "\0more"), () => Model.open(PATH, { draft: "none\0more" }),
    () => Model.open(PATH, { "temp\0more": 0 }), () => all(s.generate(null, { grammar: 'root ::= "yes"\0 | "no"' })), () => all(s.generate(null, { schema: '{"type": "string"}\0' })),
    () => all(s.generate(null, { stop: ["a\0b"] })), async () => model.chatTokens("Hello", { chatTemplate: "{{ x }}\0" }), () => pack(PATH, path + "\0"), () => pack(PATH, path, { scheme: "gram\0" })])
    await assert.rejects(call(), /NUL/);
  assert.ok(!existsSync(path));
  assert.equal(model.detokenize(model.tokenize("a\0b", { special: false })), "a\0b");
  s.close();
});

test("nothing reads or writes what is closed", async () => {
  const own = await Model.open(PATH, { temp: 0, nPredict: 4, threads: 2 });
  const s = own.session();
  await s.prefill("Once upon a time");
  const kept = s.logits, before = Float32Array.from(kept);
  const want = await all(model.session().generate("Once upon a time", { nPredict: 4 }));
  kept.fill(1e9); // its own memory: the session's is as before
  own.close(); // the engine outlives the session that is open
  assert.throws(() => own.session(), /closed/);
  assert.throws(() => own.tokenize("x"), /closed/);
  assert.equal(await all(s.generate()), want);
  assert.deepEqual(Array.from(kept.subarray(0, 3)), [1e9, 1e9, 1e9]);
  assert.equal(s.logits.length, before.length);
  s.close();
  assert.throws(() => s.logits, /closed/);
  own.close();
});

test("what another thread writes is not looked into", async () => {
  const s = model.session();
  const work = s.prefill("Once upon a time there was a house. ".repeat(8));
  assert.throws(() => s.logits, /at work/); // its memory moves meanwhile
  assert.throws(() => s.tokens, /at work/);
  assert.throws(() => s.close(), /at work/);
  await work;
  assert.equal(s.tokens.length, s.length);
  assert.ok(s.logits.length > 0);
  s.close();
});

test("whatever is given in the place of texts and lists is refused or taken whole", async () => {
  const s = model.session();
  const huge = { length: 2 ** 40, [Symbol.iterator]: function* () { yield 1; yield 2n ** 70n; } };
  for (const bad of [huge, [1n], [{ valueOf: () => 5 }], [[5]], [true], [null]]) await assert.rejects(s.prefill(bad), RangeError);
  assert.equal(model.detokenize(model.tokenize("a\ud800b", { special: false })), "a\ufffdb"); // half a pair is no character
  for (const bad of [5, null, {}, ["x"]]) assert.throws(() => model.tokenize(bad), TypeError);
  await assert.rejects(model.complete("a", { seed: "18446744073709551616" }), TernError); // 2^64
  await assert.rejects(all(s.generate("a", { stop: [5] })), Error);
  const broken = all(s.generate("Once", { nPredict: 4, onEnd: () => { throw new Error("mine"); } }));
  await assert.rejects(broken, /mine/);
  assert.ok(await all(s.generate("Once", { nPredict: 4 })), "the session goes on after what its caller threw");
  for await (const piece of s.generate("Once upon", { nPredict: 40 })) { assert.ok(piece); break; } // left in the middle
  assert.equal(typeof (await all(s.generate("Once", { nPredict: 2 }))), "string");
  s.close();
});

test("pictures", async () => {
  const path = join(folder, "sees.gguf");
  program("synth", "--arch", "tiny-llama+sees", "--type", "f32", "-o", path);
  program("synth", "--arch", "tiny-smolvlm-mmproj", "--type", "f32", "-o", join(folder, "mmproj-sees.gguf"));
  const m = await Model.open(path, { temp: 0, nPredict: 6, threads: 2 });
  const ask = (image) => [{ role: "user", content: [{ type: "image", image }, { type: "text", text: "what?" }] }];
  const rgb = (k) => Uint8Array.from({ length: 40 * 20 * 3 }, (_, i) => (i * k) % 256);
  assert.equal(m.sees, true);
  assert.equal(model.sees, false);
  const said = await all(m.chat(ask({ width: 40, height: 20, rgb: rgb(7) })));
  assert.equal(await m.complete(ask({ width: 40, height: 20, rgb: rgb(7) })), said);
  const s = m.session({ ctxSize: 200 });
  const ids = await s.look(ask({ width: 40, height: 20, rgb: rgb(7) }));
  assert.ok(ids.some((i) => i >= m.info.n_vocab));
  assert.equal(await all(s.generate(ids, { nPredict: 6, temp: 0 })), said);
  assert.notDeepEqual(await s.look(ask({ width: 40, height: 20, rgb: rgb(11) })), ids);
  s.close();
  await assert.rejects(all(m.chat(ask({ width: 40, height: 20, rgb: rgb(7).subarray(1) }))), /three bytes a pixel/);
  await assert.rejects(all(m.chat(ask(Buffer.from("nothing")))), /no picture|libtern-pictures/);
  if (existsSync("docs/figures/page.png")) assert.equal(typeof (await m.complete(ask("docs/figures/page.png"))), "string");
  await assert.rejects(all(model.chat(ask({ width: 1, height: 1, rgb: new Uint8Array(3) }))), /has no picture encoder/);
  m.close();
});
