// What the page shows of texts of every kind, and how it looks: conversations are imported, so nothing depends on a model's words.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [tern, work, browserPath, shots, root] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const env = { ...process.env, XDG_DATA_HOME: work + "/data", XDG_CACHE_HOME: work + "/cache", TERN_PACK: "never" };
mkdirSync(shots, { recursive: true });
const p = spawn(tern, ["serve", "-m", root + "/models/tern-tiny", "--port", "0", "-t", "2"], { env, stdio: ["ignore", "ignore", "pipe"] });
process.on("exit", () => p.kill("SIGKILL"));
let log = "";
const url = await new Promise((done, fail) => {
  p.stderr.on("data", (d) => { log += d; const m = /(http:\/\/127\.0\.0\.1:\d+)/.exec(log); if (m) done(m[1]); });
  p.on("exit", () => fail(new Error("the server ended: " + log)));
});
const call = async (path, body) => { const r = await fetch(url + path, { method: "POST", body: JSON.stringify(body) }); return { status: r.status, json: await r.json() }; };
const talk = (title, ...texts) => ({ title, nodes: texts.map((content, i) => ({ id: i + 1, parent: i, role: i % 2 ? "assistant" : "user", content })) });
const imported = async (v) => { const r = await call("/page/talks", v); assert.equal(r.status, 200, JSON.stringify(r.json)); return r.json.id; };

const MATHS = String.raw`The roots of $ax^2+bx+c=0$ are

$$x_{1,2} = \frac{-b \pm \sqrt{b^2-4ac}}{2a}.$$

Inline \(\sum_{i=1}^{n} i = \frac{n(n+1)}{2}\), and

\[
\int_{-\infty}^{\infty} e^{-x^2}\,dx = \sqrt{\pi}, \qquad
A = \begin{pmatrix} 1 & 0 \\ 0 & \lambda \end{pmatrix}, \qquad
f(x) = \begin{cases} x^2 & \text{if } x \ge 0 \\ -x & \text{else} \end{cases}
\]

It costs $5 and then $10, which is no formula; \`$code$\` is none, and $\nonsense{x}$ is shown as it stands.

- $\mathbb{R}^n \to \mathcal{L}(V)$
- $\lim_{h \to 0} \frac{f(x+h)-f(x)}{h} = f'(x)$`.replaceAll("\\`", "`");
const LIST = "- [x] sails mended\n- [ ] anchor **weighed**\n- no task\n\n1. first\n2. second";
const head = ["Port", "Ships", "A column with many words in its heading", "Internationalisation", "Share", "Remarks", "Depth", "Longitude"];
const TABLE = `| ${head.join(" | ")} |\n|:--|--:|:-:|---|--:|---|--:|--:|\n` + Array.from({ length: 24 }, (_, i) => `| Harbour ${i} | ${i * 317} | ${"abc ".repeat(i % 4 + 1)}| Donaudampfschifffahrt | ${i} % | a remark of several words that may break between them | ${i * 3} m | ${i}.25° |`).join("\n");
const ARABIC = "ما هو البحر؟", ARABIC_ANSWER = "البحر هو مسطح مائي كبير.\n\n- نقطة أولى\n- نقطة ثانية\n\n> اقتباس قصير\n\n| المدينة | السكان |\n|---|---|\n| تونس | 12 |\n\nThis paragraph is English, and `code` stays as it is.";
const CODE = "```python\ndef f(x):\n    return x ** 2  # a note\n```\n\nA [link](https://example.org/), *words* and **more**.\n\n## A heading\n\n> A quotation";

const ids = {};
for (const [name, v] of Object.entries({ maths: talk("Mathematics", "How are quadratic equations solved?", MATHS), list: talk("Tasks", "What is to be done?", LIST), table: talk("A long table", "Which harbours are there?", TABLE),
  right: talk("البحر", ARABIC, ARABIC_ANSWER), code: talk("Code", "Show me code", CODE) })) ids[name] = await imported(v);

const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
const problems = [];
async function tab(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 820 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(250000);
  page.on("pageerror", (e) => problems.push("error: " + e.message));
  page.on("console", (m) => { if (/Content.Security|Trusted/i.test(m.text())) problems.push("policy: " + m.text()); });
  return page;
}
const show = async (page, name) => { await page.goto(url + "/#" + ids[name]); await page.reload(); await page.waitForSelector("article.assistant .body > *"); };
const shot = (page, name) => page.screenshot({ path: `${shots}/${name}.png` });
let n = 0;
async function check(what, f) { await f(); n++; console.log("ok:", what); }

const page = await tab();
await check("mathematics is MathML, prices and code are not, and what is unknown is shown as it stands", async () => {
  await show(page, "maths");
  const seen = await page.evaluate(() => [...document.querySelectorAll("article.assistant math")].map((e) => [e.getAttribute("display"), e.namespaceURI.endsWith("MathML"), e.querySelector("annotation").textContent]));
  assert.equal(seen.length, 6, JSON.stringify(seen));
  assert.ok(seen.every((x) => x[1]));
  assert.deepEqual(seen.map((x) => x[0]), ["inline", "block", "inline", "block", "inline", "inline"]);
  assert.equal(await page.locator("article.assistant math mtable").count(), 2);
  assert.deepEqual(await page.locator("article.assistant math mtext").allTextContents(), ["if\u00a0", "else"]);
  const text = await page.locator("article.assistant .body").innerText();
  assert.match(text, /\$5 and then \$10/);
  assert.deepEqual(await page.locator("article.assistant code").allInnerTexts(), ["$code$", String.raw`$\nonsense{x}$`]);
  const [a, b] = await page.evaluate(() => { const f = document.querySelector("math mfrac"); return [f.children[0].getBoundingClientRect().bottom, f.children[1].getBoundingClientRect().top]; });
  assert.ok(a <= b + 1, "the numerator is above the denominator");
  await shot(page, "look-maths");
});

await check("brackets by themselves do not grow", async () => {
  await show(page, "maths");
  const [bracket, letter] = await page.evaluate(() => { const all = [...document.querySelectorAll("article.assistant li math *")], of = (t) => all.find((e) => !e.children.length && e.textContent === t).getBoundingClientRect().height; return [of("("), of("V")]; });
  assert.ok(bracket < 1.6 * letter, `${bracket} beside ${letter}`);
});

await check("hostile mathematics is text, and ends", async () => {
  const bad = String.raw`$\text{<img src=x onerror=window.pwned=1>}$ $$\begin{matrix}<script>window.pwned=2</script>\end{matrix}$$ ` + "$" + "{".repeat(3000) + "$ $" + "\\sqrt".repeat(700) + "$ $" + "x^".repeat(1500) + "$ " + "$$ ".repeat(3000);
  ids.bad = await imported(talk("Bad", "Go", bad));
  await show(page, "bad");
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  assert.equal(await page.locator("article.assistant .body img, article.assistant .body script").count(), 0);
});

await check("tasks are boxes, tables keep their sides and do not break words", async () => {
  await show(page, "list");
  assert.deepEqual(await page.locator("li.task input").evaluateAll((all) => all.map((e) => [e.checked, e.disabled, e.getAttribute("aria-label")])), [[true, true, "Done"], [false, true, "To do"]]);
  assert.equal(await page.locator("article.assistant li").count(), 5);
  await show(page, "table");
  const cells = await page.locator("article.assistant tbody tr:first-child td").evaluateAll((all) => all.map((e) => getComputedStyle(e).textAlign));
  assert.deepEqual(cells, ["start", "end", "center", "start", "end", "start", "end", "end"]);
  const lines = await page.evaluate(() => { const td = document.querySelector("article.assistant tbody td:nth-child(4)"), r = document.createRange(); r.selectNodeContents(td); return new Set([...r.getClientRects()].map((x) => Math.round(x.top))).size; });
  assert.equal(lines, 1, "a word is on one line");
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page itself does not scroll sideways");
  await shot(page, "look-table");
});

await check("a text is written in its own direction", async () => {
  await show(page, "right");
  const sides = await page.evaluate(() => [document.querySelector("article.user .body"), ...document.querySelectorAll("article.assistant p, article.assistant li, article.assistant td")].map((e) => getComputedStyle(e).direction));
  assert.deepEqual(sides, ["rtl", "rtl", "rtl", "rtl", "rtl", "rtl", "ltr", "ltr"].slice(0, 1).concat(await page.evaluate(() => [...document.querySelectorAll("article.assistant p, article.assistant li, article.assistant td")].map((e) => (/[\u0600-\u06ff]/.test(e.textContent) ? "rtl" : "ltr")))));
  await page.fill("#box", ARABIC);
  assert.equal(await page.evaluate(() => getComputedStyle(document.getElementById("box")).direction), "rtl");
  const [inside, around] = await page.evaluate(() => [document.querySelector(".wide-table table"), document.querySelector(".wide-table")].map((e) => e.getBoundingClientRect().right));
  assert.ok(Math.abs(inside - around) < 1, "a table that is read from the right begins there");
  await shot(page, "look-right-to-left");
  await page.fill("#box", "");
});

await check("a search shows what was found, and scrolls to it on its branch", async () => {
  const filler = Array.from({ length: 60 }, (_, i) => `Paragraph ${i} of other words.`).join("\n\n");
  const id = await imported({ title: "Branches", leaf: 3, nodes: [{ id: 1, parent: 0, role: "user", content: "Ask" }, { id: 2, parent: 1, role: "assistant", content: filler + "\n\nThe **narwhal** has a tusk.\n\n" + filler }, { id: 3, parent: 1, role: "assistant", content: "Another answer." }] });
  await page.goto(url + "/");
  await page.fill("#search", "narwhal tusk");
  await page.waitForFunction(() => document.querySelectorAll("#talks a").length === 1);
  assert.deepEqual(await page.locator("#talks mark").allInnerTexts(), ["narwhal", "tusk"]);
  await page.click("#talks a");
  await page.waitForFunction(() => /narwhal/.test(document.querySelector("article.assistant .body")?.textContent || ""));
  await page.waitForFunction(() => { const r = document.querySelector("article.assistant strong").getBoundingClientRect(); return r.top > 0 && r.bottom < innerHeight; });
  assert.equal(await page.evaluate(() => CSS.highlights.get("found").size), 2);
  await page.fill("#search", "");
  ids.branches = id;
});

await check("presets fill in the sampling, and the server is told of it", async () => {
  await show(page, "code");
  await page.evaluate(() => { document.getElementById("more").open = true; });
  await page.click("#options");
  await page.selectOption("#dialog select", "free");
  assert.equal(await page.inputValue("#dialog .fields input"), "1.1");
  await page.fill("#dialog .fields label:nth-child(4) input", "0.1");
  assert.equal(await page.inputValue("#dialog select"), "own");
  await shot(page, "look-settings");
  await page.click("#dialog-ok");
  await page.waitForFunction(() => !document.getElementById("dialog").open);
  let settings = {}; // they are sent when the dialog closes
  while (settings.settings?.temperature === undefined) settings = await (await fetch(`${url}/page/talks/${ids.code}`)).json();
  assert.deepEqual(settings.settings, { temperature: 1.1, top_p: 1, top_k: 0, min_p: 0.1 });
});

await check("an answer that the limit cut says so", async () => {
  const id = await imported({ ...talk("Cut", "Hello", "Hi."), settings: { max_tokens: 3, temperature: 0 } });
  await page.goto(url + "/#" + id);
  await page.reload();
  await page.waitForSelector("article.assistant");
  await page.fill("#box", "Tell me a story");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".notice");
  assert.match(await page.textContent(".notice"), /was cut: it reached the most tokens/);
});

await check("conversations of other programs are imported from files", async () => {
  const chatgpt = [{ title: "From elsewhere", current_node: "c", mapping: { r: { parent: null, children: ["a"] }, a: { parent: "r", children: ["b", "x"], message: { author: { role: "user" }, content: { parts: ["What is a tern?"] } } },
    b: { parent: "a", children: ["c"], message: { author: { role: "assistant" }, content: { parts: ["A sea"] } } }, c: { parent: "b", children: [], message: { author: { role: "assistant" }, content: { parts: ["bird."] } } },
    x: { parent: "a", children: [], message: { author: { role: "assistant" }, content: { parts: ["another branch"] } } } } }];
  writeFileSync(work + "/chatgpt.json", JSON.stringify(chatgpt));
  writeFileSync(work + "/lines.jsonl", ['{"messages":[{"role":"system","content":"s"},{"role":"user","content":"one"},{"role":"assistant","content":"two"}]}', '{"conversations":[{"from":"human","value":"three"},{"from":"gpt","value":"four"}]}'].join("\n"));
  writeFileSync(work + "/own.json", JSON.stringify(await (await fetch(`${url}/page/talks/${ids.branches}`)).json()));
  writeFileSync(work + "/none.json", "{\"a\": 1}");
  const before = (await (await fetch(url + "/page/talks")).json()).talks.length;
  await page.setInputFiles("#import-files", ["chatgpt.json", "lines.jsonl", "own.json", "none.json"].map((f) => work + "/" + f));
  await page.waitForSelector("#banner:not([hidden])");
  assert.match(await page.textContent("#banner"), /none\.json: there is no conversation in it/);
  const talks = (await (await fetch(url + "/page/talks")).json()).talks;
  assert.equal(talks.length, before + 4);
  const got = async (title) => (await (await fetch(`${url}/page/talks/${talks.find((t) => t.title === title).id}`)).json()).nodes.map((x) => [x.parent, x.role, x.content]);
  assert.deepEqual(await got("From elsewhere"), [[0, "user", "What is a tern?"], [1, "assistant", "A sea\n\nbird."]]);
  assert.deepEqual(await got("one"), [[0, "user", "one"], [1, "assistant", "two"]]);
  assert.deepEqual(await got("three"), [[0, "user", "three"], [1, "assistant", "four"]]);
  assert.equal((await got("Branches")).length, 3);
  for (const bad of [{ nodes: [] }, { nodes: [{ id: 1, parent: 1, role: "user", content: "x" }] }, { nodes: [{ id: 1, parent: 0, role: "system", content: "x" }] }, { nodes: [{ id: 2, parent: 0, role: "user", content: "x" }, { id: 1, parent: 2, role: "assistant", content: "y" }] },
    { nodes: [{ id: 1, parent: 0, role: "user", content: 3 }] }, { nodes: [{ id: 1, parent: 0, role: "assistant", content: "x" }] }, { nodes: [{ id: 1, parent: 0, role: "user", content: "x" }], title: 3 }])
    assert.equal((await call("/page/talks", bad)).status, 400, JSON.stringify(bad));
});

ids.all = await imported(talk("All of it", ARABIC, [MATHS, LIST, CODE, ARABIC_ANSWER, TABLE.split("\n").slice(0, 6).join("\n")].join("\n\n")));
await check("axe finds nothing: both themes, wide and on a phone, with dialogs and the engine's panel", async () => {
  const found = [];
  for (const [size, viewport] of Object.entries({ wide: { width: 1280, height: 820 }, phone: { width: 390, height: 780 } })) {
    for (const colorScheme of ["light", "dark"]) {
      const q = await tab({ viewport, colorScheme, reducedMotion: "reduce", bypassCSP: true }); // axe is injected
      const look = async (where) => {
        await q.evaluate(axe);
        const r = await q.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
        for (const v of r.violations) found.push(`${size} ${colorScheme} ${where}: ${v.id} (${v.impact}): ${v.nodes.slice(0, 3).map((x) => x.html.slice(0, 150)).join(" | ")}`);
        await shot(q, `look-${where}-${size}-${colorScheme}`);
      };
      await show(q, "all");
      await look("all");
      for (const name of size === "phone" ? ["maths", "table", "right"] : []) { await show(q, name); await shot(q, `look-${name}-${size}-${colorScheme}`); }
      if (size === "wide") { await q.click("#engine-open"); await look("engine"); await q.click("#engine-close"); }
      else { await q.click("#menu"); await look("menu"); await q.keyboard.press("Escape"); }
      await q.evaluate(() => { document.getElementById("more").open = true; });
      await q.click("#options");
      await look("settings");
      await q.context().close();
    }
  }
  assert.deepEqual(found, []);
});

assert.deepEqual(problems, []);
await browser.close();
p.kill("SIGTERM");
console.log(`${n} checks`);
