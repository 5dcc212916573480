// The Node binding beside the program: $TERN_PROGRAM, $TERN_LIBRARY; in the tree's root (tests/bindings/node.sh).
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Model, TernError, pack, version } from "./index.js";

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
});

test("a session is saved, loaded, looked into", async () => {
  const path = join(folder, "s");
  const s = model.session();
  await s.prefill("Once upon a time there was a");
  await s.save(path);
  const best = s.logits.indexOf(Math.max(...s.logits));
  const want = await all(s.generate());
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
