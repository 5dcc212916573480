// The page as a person uses it, in headless Chromium. Nothing here asserts on elapsed time: whatever is waited for comes, or the test ends.
import assert from "node:assert/strict";
import { spawn, execFileSync } from "node:child_process";
import { createServer } from "node:http";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { chromium } from "playwright-core";

const [tern, work, browserPath, shots] = process.argv.slice(2), data = work + "/data", folder = data + "/tern/conversations";
const env = { ...process.env, XDG_DATA_HOME: data, XDG_CACHE_HOME: work + "/cache", TERN_PACK: "never", MALLOC_PERTURB_: "165" }; // memory that nobody has set is no zeros
mkdirSync(shots, { recursive: true });
const PATIENCE = 250000; // ms: a machine that does much else is no failure
const STORY = "Tell me a story about the sea.";
const LONG = { temperature: 2, seed: 1, max_tokens: 900 }; // an answer that goes on for long: the seed is looked for, models change
const HOSTILE = `<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>
[click](javascript:window.pwned=3) [data](data:text/html,<script>window.pwned=4</script>) ![p](https://example.invalid/x.png)
# <svg onload=window.pwned=5>
| <b onmouseover=window.pwned=6>a</b> | b |
|---|---|
| <iframe src="javascript:window.pwned=7"> | "><style>*{display:none}</style> |

\`\`\`html"><script>window.pwned=8</script>
</code></pre><script>window.pwned=9</script>
\`\`\`
[[[[((((****____~~~~\`\`\`\`<a href="vbscript:x">`;

class Server {
  async start(...options) {
    const which = options.includes("--models") || options.includes("-m") ? [] : ["-m", work + "/tern-tiny.tern"];
    this.p = spawn(tern, ["serve", ...which, "--port", "0", "-t", "2", ...options], { env, stdio: ["ignore", "ignore", "pipe"] });
    process.on("exit", () => this.p.kill("SIGKILL")); // also when a check throws
    this.log = "";
    this.port = await new Promise((done, fail) => {
      this.p.stderr.on("data", (d) => { this.log += d; const m = /http:\/\/127\.0\.0\.1:(\d+)/.exec(this.log); if (m) done(Number(m[1])); });
      this.p.on("exit", () => fail(new Error("the server ended: " + this.log)));
    });
    this.url = `http://127.0.0.1:${this.port}`;
    return this;
  }
  async end(signal) {
    const gone = new Promise((done) => this.p.on("exit", (code) => done(code)));
    this.p.kill(signal);
    return gone;
  }
  async call(method, path, body, headers = {}) {
    const r = await fetch(this.url + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    return { status: r.status, headers: r.headers, json: r.headers.get("content-type").includes("json") ? await r.json() : null };
  }
  async talk(id) { return (await this.call("GET", "/page/talks/" + id)).json; }
}

const server = await new Server().start();
const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
const problems = [], allowed = new Set([server.url]); // the servers that pages may ask
async function tab(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 820 }, acceptDownloads: true, ...options });
  await context.addInitScript(() => { localStorage.setItem("tern-settings", '{"temperature":0,"seed":1}'); }); // the same answers every time
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("pageerror", (e) => problems.push("error: " + e.message));
  page.on("console", (m) => { if (/Content.Security|Trusted/i.test(m.text())) problems.push("policy: " + m.text()); });
  page.on("request", (r) => { if (![...allowed].some((u) => r.url().startsWith(u)) && !/^(data|blob):/.test(r.url())) problems.push("asked elsewhere: " + r.url()); });
  return page;
}
const idOf = (page) => page.evaluate(() => location.hash.slice(1));
const show = async (page, id) => { await page.goto(server.url + "/#" + id); await page.reload(); };
const complete = (page) => page.waitForFunction(() => document.querySelector("article.assistant") && !document.querySelector("#send").hidden && !document.querySelector(".caret"), null, { timeout: PATIENCE });
const shot = (page, name) => page.screenshot({ path: `${shots}/${name}.png` });
const until = async (what, f, seen = () => "") => { for (let i = 0; i < 2500; i++) { const v = await f(); if (v) return v; await new Promise((d) => setTimeout(d, 100)); } throw new Error(`never: ${what}\n${await seen()}`); };
let n = 0;
async function check(what, f) { await f(); n++; console.log("ok:", what); }

await check("nothing but the page's own files may run, and other sites may not ask", async () => {
  const r = await server.call("GET", "/"), policy = r.headers.get("content-security-policy");
  assert.equal(r.status, 200);
  assert.match(policy, /default-src 'none'; script-src 'self'; style-src 'self'/);
  assert.ok(!/unsafe|https?:|\*/.test(policy), policy);
  assert.match(policy, /require-trusted-types-for 'script'/);
  assert.match(policy, /frame-ancestors 'none'/);
  assert.equal(r.headers.get("x-content-type-options"), "nosniff");
  const html = await (await fetch(server.url + "/")).text();
  assert.ok(!/ on\w+=| style=|<style|https?:\/\//.test(html), "the page has inline code, or names another site");
  assert.equal((await server.call("POST", "/page/talks", {}, { Origin: "http://evil.example" })).status, 403);
  assert.equal((await server.call("POST", "/page/talks", {}, { "Sec-Fetch-Site": "cross-site" })).status, 403);
  assert.equal((await server.call("POST", "/page/talks", {}, { Origin: server.url })).status, 200);
  for (const bad of ["../../etc/passwd", "..%2f..%2fx", "0123", "0123456789abcdeg", "0123456789abcdef"]) assert.equal((await server.call("GET", "/page/talks/" + bad)).status, 404, bad);
  assert.equal((await server.call("POST", "/page/talks/0123456789abcdef/say", { parent: 0, content: "x" })).status, 404);
  assert.equal((await server.call("POST", "/page/talks", [1])).status, 400);
  assert.equal((await server.call("PUT", "/page/talks")).status, 405);
});

const page = await tab();
let first;
await check("a conversation by keyboard alone", async () => {
  await page.goto(server.url);
  await page.waitForSelector("#model strong");
  assert.equal(await page.evaluate(() => document.activeElement.id), "box");
  await page.keyboard.type("What colour is");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("the sea?");
  await page.keyboard.press("Enter");
  await complete(page);
  first = await idOf(page);
  const t = await server.talk(first);
  assert.equal(t.nodes[0].content, "What colour is\nthe sea?");
  assert.equal(t.nodes[1].state, "done");
  assert.ok(t.nodes[1].content.length > 0);
  assert.ok(t.nodes[1].stats.tokens > 0 && t.nodes[1].stats.prompt_tokens > 0);
  const words = (s) => s.replace(/\s+/g, "");
  assert.equal(words(await page.textContent("article.assistant .body")), words(t.nodes[1].content));
  assert.match(await page.textContent("article.assistant .stats"), /tokens\/s/);
  assert.match(await page.textContent("#meter"), /of 2,048 tokens/);
  assert.match(await page.textContent("#status"), /The answer is complete/);
});

await check("editing and another answer are branches, by keyboard", async () => {
  await page.keyboard.press("ArrowUp"); // in the empty box: the last question
  await page.waitForSelector(".edit textarea");
  await page.keyboard.press("Control+A");
  await page.keyboard.type("What colour is the sky?");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("article.user .body")?.textContent === "What colour is the sky?");
  await complete(page);
  assert.match(await page.textContent("article.user .branches"), /2 \/ 2/);
  await page.focus("article.user .branches button:not(:disabled)");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("article.user .body").textContent.includes("the sea"));
  assert.match(await page.textContent("article.user .branches"), /1 \/ 2/);
  await page.keyboard.press("Alt+r");
  await page.waitForFunction(() => /2 \/ 2/.test(document.querySelector("article.assistant .branches")?.textContent || ""));
  await complete(page);
  const t = await server.talk(first);
  assert.deepEqual(t.nodes.map((x) => [x.parent, x.role]), [[0, "user"], [1, "assistant"], [0, "user"], [3, "assistant"], [1, "assistant"]]);
  await page.reload();
  await page.waitForSelector("article.assistant");
  assert.match(await page.textContent("article.assistant .branches"), /2 \/ 2/, "the branch that was shown is shown again");
});

await check("who is quicker than the server or the browser loses nothing", async () => {
  // a new conversation, and words in the same moment: the browser tells of the changed address later
  const kept = await page.evaluate(async () => {
    const box = document.getElementById("box");
    document.dispatchEvent(new KeyboardEvent("keydown", { key: "n", altKey: true, bubbles: true, cancelable: true }));
    box.value = "typed at once";
    box.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((done) => setTimeout(done, 50));
    return [box.value, location.hash];
  });
  assert.deepEqual(kept, ["typed at once", ""]);
  await page.goBack();
  await page.waitForFunction((id) => location.hash === "#" + id && document.querySelector("article.assistant"), first);
  assert.equal(await page.inputValue("#box"), "", "the words are the new conversation's");
  await page.evaluate(() => sessionStorage.removeItem("tern-words-new"));
  // two conversations one after the other, of which the first comes last
  const now = Math.floor(Date.now() / 1000), ids = ["00000000000000a1", "00000000000000a2"];
  for (const id of ids) writeFileSync(`${folder}/${id}.json`, JSON.stringify({ version: 1, id, title: "Quick " + id, created: now, updated: now, leaf: 1, settings: {}, nodes: [{ id: 1, parent: 0, role: "user", content: "Words of " + id, created: now }] }), { mode: 0o600 });
  let release;
  const held = new Promise((done) => { release = done; });
  await page.route("**/page/talks/" + ids[0], async (r) => { await held; await r.continue(); });
  const late = page.waitForResponse((r) => r.url().endsWith(ids[0]));
  await page.evaluate((id) => { location.hash = id; }, ids[0]);
  await page.waitForFunction(() => !document.querySelector("#log article"));
  await page.evaluate((id) => { location.hash = id; }, ids[1]);
  await page.waitForFunction((id) => document.querySelector("#log").textContent.includes("Words of " + id), ids[1]);
  release();
  await (await late).finished();
  await page.evaluate(() => new Promise((done) => setTimeout(done, 50)));
  assert.match(await page.textContent("#log"), new RegExp("Words of " + ids[1]));
  assert.equal(await page.textContent("#title"), "Quick " + ids[1]);
  await page.unroute("**/page/talks/" + ids[0]);
  // Again, twice in one moment, is one answer
  await show(page, first);
  await page.waitForSelector("article.assistant");
  const had = (await server.talk(first)).nodes.length;
  await page.evaluate(() => { for (let i = 0; i < 2; i++) document.dispatchEvent(new KeyboardEvent("keydown", { key: "r", altKey: true, bubbles: true, cancelable: true })); });
  await page.waitForFunction(() => /3 \/ 3/.test(document.querySelector("article.assistant .branches")?.textContent || ""));
  await complete(page);
  assert.equal((await server.talk(first)).nodes.length, had + 1);
  for (const id of ids) assert.equal((await server.call("DELETE", "/page/talks/" + id)).status, 200);
});

await check("a server with keys asks for one once, however many requests want it", async () => {
  const keys = work + "/keys", p = await tab();
  writeFileSync(keys, "the right key\n", { mode: 0o600 });
  const locked = await new Server().start("--api-key-file", keys);
  allowed.add(locked.url);
  await p.addInitScript(() => localStorage.setItem("tern-engine", "open")); // its stream wants the key too
  await p.goto(locked.url);
  await p.waitForSelector("#dialog[open] input");
  await p.evaluate(() => { document.querySelector("#dialog-body input").dataset.first = "yes"; });
  for (const [key, left] of [["a wrong key", true], ["the right key", false]]) {
    await p.fill("#dialog-body input", key);
    await p.evaluate(() => new Promise((done) => setTimeout(done, 800))); // whoever else wants a key has asked by now
    assert.equal(await p.inputValue("#dialog-body input"), key, "the question was asked again while it was answered");
    await p.keyboard.press("Enter");
    if (left) await p.waitForFunction(() => { const i = document.querySelector("#dialog[open] input"); return i && !i.dataset.first && document.querySelector("#dialog-body").textContent.includes("wrong"); });
  }
  await p.waitForSelector("#model strong");
  await p.waitForFunction(() => !document.querySelector("#dialog[open]") && document.querySelectorAll("#sums tbody tr").length >= 4);
  assert.equal(await p.isVisible("#banner"), false);
  await p.context().close();
  assert.equal(await locked.end("SIGTERM"), 0);
});

await check("text of people, models and documents never becomes markup", async () => {
  const id = "00000000000000ff", now = Math.floor(Date.now() / 1000);
  const node = (i, role, more = {}) => ({ id: i, parent: i - 1, role, content: HOSTILE, created: now, ...more });
  writeFileSync(`${folder}/${id}.json`, JSON.stringify({ version: 1, id, title: HOSTILE.slice(0, 60), created: now, updated: now, leaf: 2, settings: {},
    nodes: [node(1, "user"), node(2, "assistant", { state: "failed", thinking: HOSTILE, error: HOSTILE, stats: { tokens: 3 }, sources: [{ title: HOSTILE, text: HOSTILE, number: 1 }] })] }), { mode: 0o600 });
  await show(page, id);
  await page.waitForSelector("article.assistant > .body .block");
  await page.evaluate(() => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
  const found = await page.evaluate(() => {
    const all = [...document.querySelectorAll("#app *")], of = (name) => all.filter((e) => e.matches(name)).length;
    return { pwned: window.pwned, scripts: of("script, iframe, style, object, embed, svg"), images: of("#log img"), handlers: all.filter((e) => [...e.attributes].some((a) => /^on/i.test(a.name))).length,
      links: [...document.querySelectorAll("#log a")].map((a) => a.protocol + a.rel), title: document.title, told: document.querySelector("article.user .body").textContent };
  });
  assert.equal(found.pwned, undefined);
  assert.equal(found.scripts + found.images + found.handlers, 0, JSON.stringify(found));
  for (const l of found.links) assert.match(l, /^https?:noopener noreferrer/);
  assert.ok(found.told.includes("<script>window.pwned=2</script>"), "it is shown as text");
  await shot(page, "hostile");
});

for (let tokens = 0; tokens < 300; LONG.seed++) {
  assert.ok(LONG.seed < 50, "no seed gives a long answer");
  const id = (await server.call("POST", "/page/talks", {})).json.id;
  await server.call("POST", `/page/talks/${id}/say`, { parent: 0, content: STORY, settings: LONG });
  tokens = await until("an answer of any length", async () => { const a = (await server.talk(id)).nodes[1]; return a?.state === "done" && a.stats.tokens; });
  await server.call("DELETE", "/page/talks/" + id);
  if (tokens >= 300) break;
}

await check("loaded again in the middle of an answer, it goes on; another tab sees it too", async () => {
  const id = (await server.call("POST", "/page/talks", {})).json.id;
  await show(page, id);
  const other = await (await page.context().newPage());
  await other.goto(server.url + "/#" + id);
  await server.call("POST", `/page/talks/${id}/say`, { parent: 0, content: STORY, settings: LONG });
  await page.waitForFunction(() => (document.querySelector("article.assistant .body")?.textContent || "").length > 60, null, { timeout: PATIENCE });
  const running = (await server.call("GET", "/page/state")).json.running.length;
  await page.reload();
  await page.waitForSelector("article.assistant");
  await complete(page);
  await complete(other);
  const t = await server.talk(id), end = t.nodes[1];
  assert.equal(end.state, "done");
  assert.ok(end.stats.tokens > 100, "the answer was meant to be long: " + end.stats.tokens);
  const tail = end.content.replace(/[^\p{L}]+/gu, "").slice(-40), seen = (p) => p.evaluate(() => document.querySelector("article.assistant .body").textContent.replace(/[^\p{L}]+/gu, ""));
  assert.ok((await seen(page)).endsWith(tail));
  assert.ok((await seen(other)).endsWith(tail));
  console.log(`   ${end.stats.tokens} tokens, ${running} answer was running when the page was loaded again`);
  await other.close();
});

await check("what another client says while the page is loaded is shown", async () => {
  const id = (await server.call("POST", "/page/talks", {})).json.id, p = await tab();
  let asks, said;
  const asked = new Promise((done) => { asks = done; }), held = new Promise((done) => { said = done; });
  await p.route("**/page/state", async (r) => { asks(); await held; await r.continue(); });
  await p.goto(server.url + "/#" + id);
  await asked; // so the conversation has been read, and nothing of what changes
  await server.call("POST", `/page/talks/${id}/say`, { parent: 0, content: "Tell me a story about a cat.", settings: { max_tokens: 8 } });
  await until("its answer", async () => (await server.talk(id)).nodes[1]?.state === "done");
  said();
  await p.waitForSelector("article.assistant");
  await complete(p);
  await p.context().close();
});

await check("stop keeps what there is", async () => {
  const id = (await server.call("POST", "/page/talks", {})).json.id;
  await server.call("POST", `/page/talks/${id}/say`, { parent: 0, content: STORY, settings: LONG });
  await show(page, id);
  const written = () => !document.querySelector("article.assistant .waiting") && (document.querySelector("article.assistant .body")?.textContent || "").length > 20; // not "Waiting for its turn"
  await page.waitForFunction(written, null, { timeout: PATIENCE });
  await page.keyboard.press("Escape");
  await complete(page);
  const t = await server.talk(id);
  assert.ok(["stopped", "done"].includes(t.nodes[1].state)); // done: it was quicker than the key
  assert.ok(t.nodes[1].content.length > 20);
});

await check("the engine's panel: lanes with tasks, chunks by layers, drafts, what each mechanism did", async () => {
  await page.keyboard.press("Alt+n");
  await page.keyboard.press("Alt+e");
  await page.waitForSelector("#engine:not([hidden])");
  await page.waitForFunction(() => document.querySelectorAll("#sums tbody tr").length >= 4);
  await page.keyboard.press("Alt+m");
  await page.fill("#box", "Here is what the keeper wrote. " + Array.from({ length: 60 }, (_, i) => `On day ${i} the birds came back from the sea and sat on the old tower.`).join(" ") + " Repeat the last line of the keeper.");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /(\d+) %/.exec(document.querySelector("#sums tbody tr td")?.textContent || "")?.[1] > 0, null, { timeout: PATIENCE });
  await shot(page, "engine-running");
  await complete(page);
  await page.waitForFunction(() => document.querySelectorAll("#saved li.on").length >= 2, null, { timeout: PATIENCE });
  const got = await page.evaluate(() => {
    const c = document.querySelector("#lanes"), px = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, colours = new Set();
    for (let i = 0; i < px.length; i += 4) if (px[i + 3] === 255) colours.add((px[i] << 16) | (px[i + 1] << 8) | px[i + 2]);
    return { colours: colours.size, kinds: [0x2f6fde, 0xd9822b, 0x5fa04a].map((k) => colours.has(k)), lanes: [...document.querySelectorAll("#sums tbody tr")].map((r) => r.textContent),
      saved: [...document.querySelectorAll("#saved li")].map((l) => l.textContent), grid: document.querySelector("#grid").getAttribute("aria-label") };
  });
  assert.ok(got.kinds.some(Boolean) && got.colours > 12, "tasks of several kinds are drawn: " + got.colours); // narrow ones blend
  assert.match(got.lanes.join("\n"), /attention/);
  assert.equal(got.saved.length, 6);
  assert.match(got.saved.join("\n"), /out of order.*beg(in|un) before an earlier one/);
  assert.match(got.grid, /chunks of the prompt by \d+ layers/);
  assert.match(got.lanes[0], /CPU.*%/);
  await page.focus("#lanes");
  for (const k of [".", ".", "+", "ArrowRight", "0", ","]) await page.keyboard.press(k);
  assert.match(await page.textContent("#tip"), /on (CPU|Device|IO|Request).*: [\d.]+ [µm]?s/);
  await page.click("article.assistant [aria-pressed]");
  await page.waitForSelector("article.assistant .tokens-key");
  const id = await idOf(page), how = (await server.call("GET", `/page/talks/${id}/answers/2/how`)).json, t = await server.talk(id);
  assert.equal(how.tokens.join("").trim(), t.nodes[1].content.trim(), "the tokens are the answer");
  assert.ok(how.steps.reduce((s, [ok]) => s + 1 + ok, 0) >= how.tokens.length - 1, "every token but the last was evaluated");
  await shot(page, "engine");
  await page.keyboard.press("Alt+e");
});

await check("documents that are dropped in are asked, shown beside the answer, and erased", async () => {
  const uploads = data + "/tern/uploads", db = data + "/tern/store.db";
  execFileSync("python3", ["-c", `import zipfile,sys
z = zipfile.ZipFile(sys.argv[1], "w")
z.writestr("[Content_Types].xml", "<Types/>")
z.writestr("word/document.xml", '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>Oda Brennt painted the harbour of Vesterby in ochre.</w:t></w:r></w:p></w:body></w:document>')
z.close()`, work + "/harbour.docx"]);
  const pdf = "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj 3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 100]/Contents 4 0 R/Resources<</Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>>>endobj 4 0 obj<</Length 62>>stream\nBT /F 12 Tf 10 50 Td (The ferry of Vesterby is called Quillon.) Tj ET\nendstream endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n";
  await page.keyboard.press("Alt+n");
  await page.waitForSelector("#attach:not([hidden])");
  await page.setInputFiles("#files", [{ name: "<img src=x onerror=window.pwned=10>.txt", mimeType: "text/plain", buffer: Buffer.from("The lighthouse of Kallo was painted violet by Oda Brennt in the year 1873.") },
    { name: "harbour.docx", mimeType: "application/zip", buffer: readFileSync(work + "/harbour.docx") }, { name: "ferry.pdf", mimeType: "application/pdf", buffer: Buffer.from(pdf) }, { name: "empty.txt", mimeType: "text/plain", buffer: Buffer.from("  ") }]);
  const read = () => page.evaluate(() => [...document.querySelectorAll("#docs li:not(.use)")].map((l) => l.textContent));
  const told = await until("all are read", async () => { const l = await read(); return l.length === 4 && !l.some((t) => /being read/.test(t)) && l; });
  assert.match(told.join("\n"), /empty.txt: .*no text/);
  if (!/pdftotext/.test(told.join())) assert.ok(told.some((t) => t.startsWith("ferry.pdf✕")), told.join());
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  await page.fill("#box", "Which colour has the lighthouse of Kallo?");
  await page.keyboard.press("Enter");
  await complete(page);
  await page.click("article.assistant .sources summary");
  assert.match(await page.textContent("article.assistant .sources"), /painted violet/);
  await shot(page, "sources");
  const t = await server.talk(await idOf(page));
  assert.equal(t.nodes[0].content, "Which colour has the lighthouse of Kallo?", "the passages are not the person's words");
  assert.match(t.nodes[1].sources[0].title, /^<img src=x/);
  assert.equal(statSync(uploads).mode & 0o777, 0o700);
  for (const f of readdirSync(uploads)) { assert.match(f, /^[0-9a-f]{16}\.txt$/); assert.equal(statSync(uploads + "/" + f).mode & 0o777, 0o600); }
  for (let left = (await server.call("GET", "/page/documents")).json.documents.length; left; left--) await page.click("#docs [aria-label^=Erase]").then(() => until("erased", async () => (await server.call("GET", "/page/documents")).json.documents.length === left - 1));
  assert.deepEqual(readdirSync(uploads), []);
  for (const f of [db, db + "-wal"]) { let b = ""; try { b = readFileSync(f, "latin1"); } catch { continue; } assert.ok(!/painted violet/.test(b), f + " still holds the text"); }
  assert.equal((await server.call("DELETE", "/page/documents/..%2f..%2fstore")).status, 404);
  await page.click("#docs [aria-label^=Dismiss]").catch(() => {});
});

await check("search, export, delete", async () => {
  await page.keyboard.press("Alt+k");
  await page.keyboard.type("KEEPER wrote");
  await page.waitForFunction(() => document.querySelectorAll("#talks a").length === 1);
  assert.match(await page.textContent("#talks a small"), /keeper wrote/i);
  await page.keyboard.press("Control+A");
  await page.keyboard.type("colour sky");
  await page.waitForFunction(() => document.querySelectorAll("#talks a").length === 1 && /What colour/.test(document.querySelector("#talks a").textContent) && !/keeper/i.test(document.querySelector("#talks a small")?.textContent || "")); // no longer what KEEPER found
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await page.waitForFunction((id) => location.hash === "#" + id, first);
  await page.waitForFunction(() => /sky/.test(document.querySelector("article.user .body")?.textContent || "")); // the branch that was searched for
  await server.call("POST", "/page/talks/" + first, { title: "What colour is" }); // it changes elsewhere, and is read again
  await page.waitForTimeout(2500);
  assert.match(await page.textContent("article.user .body"), /sky/, "the branch that was searched for stays");
  for (const [button, looks] of [["#export-md", /^# What colour is\n\n## You\n\nWhat colour is\s+the s(ky|ea)\?\n\n## tern\n\n/], ["#export-json", /"nodes": \[/]]) {
    await page.click("#more summary");
    const [file] = await Promise.all([page.waitForEvent("download"), page.click(button)]);
    assert.match(readFileSync(await file.path(), "utf8"), looks);
    assert.match(file.suggestedFilename(), /^What colour is\.(md|json)$/);
  }
  assert.equal(statSync(folder).mode & 0o777, 0o700);
  for (const f of readdirSync(folder)) assert.equal(statSync(folder + "/" + f).mode & 0o777, 0o600, f);
  await page.focus("#talks a");
  await page.keyboard.press("Delete");
  await page.waitForSelector("dialog[open]");
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "hidden" });
  assert.ok(readdirSync(folder).includes(first + ".json"), "Escape deletes nothing");
  // asked again before the browser has told of the first question's end: the answer belongs to the second
  await page.evaluate(() => {
    const a = document.querySelector("#talks a"), ask = () => { a.focus(); a.dispatchEvent(new KeyboardEvent("keydown", { key: "Delete", bubbles: true, cancelable: true })); };
    ask();
    document.getElementById("dialog").close("");
    ask();
  });
  await page.waitForSelector("dialog[open]");
  await page.evaluate(() => new Promise((done) => setTimeout(done, 50)));
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await until("the file is gone", () => !readdirSync(folder).includes(first + ".json"), async () => (await page.textContent("body")).slice(0, 3000));
  await page.waitForFunction(() => !location.hash);
});

await check("every control has a name, text can be read, and nothing is wider than a phone", async () => {
  await page.fill("#search", "");
  await page.goto(server.url + "/#00000000000000ff");
  await page.waitForSelector("article.assistant");
  await page.keyboard.press("Alt+e");
  const audit = async (p) => p.evaluate(() => {
    const rgb = (c) => c.match(/[\d.]+/g).map(Number), lum = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0.9) return c; } return [255, 255, 255]; };
    const shown = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.disabled, bad = [];
    for (const e of document.querySelectorAll("button, input, textarea, select, a, summary, canvas"))
      if (shown(e) && !(e.getAttribute("aria-label") || e.getAttribute("alt") || e.textContent.trim() || e.labels?.length)) bad.push("no name: " + e.outerHTML.slice(0, 80));
    for (const e of document.querySelectorAll("#app *, dialog *")) {
      if (!shown(e) || ![...e.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim())) continue;
      const a = lum(rgb(getComputedStyle(e).color)), b = lum(ground(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) bad.push(`contrast ${ratio.toFixed(2)}: ${e.tagName} ${e.className} ${e.textContent.slice(0, 30)}`);
    }
    if (document.documentElement.scrollWidth > innerWidth) bad.push("wider than the window: " + document.documentElement.scrollWidth);
    const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
    if (new Set(ids).size !== ids.length) bad.push("an id twice");
    return bad;
  });
  assert.deepEqual(await audit(page), []);
  const shown = "00000000000000fe", now = Math.floor(Date.now() / 1000), turn = (i, role, content, more = {}) => ({ id: i, parent: i - 1, role, content, created: now, ...more });
  writeFileSync(`${folder}/${shown}.json`, JSON.stringify({ version: 1, id: shown, title: "Counting birds", created: now, updated: now, leaf: 4, settings: {}, nodes: [turn(1, "user", "How do I count the birds in a file?"),
    turn(2, "assistant", "One bird a line, so **count the lines**:\n\n```sh\nsort birds.txt | uniq -c | sort -rn\n```\n\n1. `sort` brings the same names together\n2. `uniq -c` counts them\n\n| bird | seen |\n|---|---|\n| tern | 12 |\n| gull | 7 |",
      { state: "done", thinking: "The file has a bird a line.", stats: { tokens: 64, prompt_tokens: 30, cached_tokens: 12, n_ctx: 2048, decode_s: 0.6, prefill_s: 0.05 } }),
    turn(3, "user", "And which was seen most?"), turn(4, "assistant", "The **tern**, twelve times.", { state: "done", stats: { tokens: 9, prompt_tokens: 120, cached_tokens: 110, n_ctx: 2048, decode_s: 0.1, prefill_s: 0.02 } })] }), { mode: 0o600 });
  await page.goto(server.url + "/#" + shown);
  await page.waitForFunction(() => document.querySelectorAll("article.assistant").length === 2);
  assert.deepEqual(await audit(page), []);
  await shot(page, "light");
  const dark = await tab({ colorScheme: "dark" });
  await dark.goto(server.url + "/#00000000000000ff");
  await dark.waitForSelector("article.assistant");
  assert.deepEqual(await audit(dark), []);
  await dark.goto(server.url + "/#" + shown);
  await dark.waitForFunction(() => document.querySelectorAll("article.assistant").length === 2);
  assert.deepEqual(await audit(dark), []);
  await shot(dark, "dark");
  const phone = await tab({ viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });
  await phone.goto(server.url + "/#00000000000000ff");
  await phone.waitForSelector("article.assistant");
  assert.deepEqual(await audit(phone), []);
  await phone.click("#menu");
  await phone.waitForSelector("#side.open");
  await shot(phone, "phone-list");
  await phone.click("#side-close");
  await phone.click("#engine-open");
  assert.deepEqual(await audit(phone), []);
  await shot(phone, "phone-engine");
  await phone.click("#engine-close");
  await phone.goto(server.url + "/#" + shown);
  await phone.waitForFunction(() => document.querySelectorAll("article.assistant").length === 2);
  assert.deepEqual(await audit(phone), []);
  await shot(phone, "phone");
  await dark.context().close();
  await phone.context().close();
});

await check("several models: one is chosen, loaded when it is asked, and has its own timeline", async () => {
  mkdirSync(work + "/models");
  for (const name of ["gull", "tern"]) copyFileSync(work + "/tern-tiny.tern", `${work}/models/${name}.tern`);
  const many = await new Server().start("--models", work + "/models", "--idle", "1s"), p = await tab({ viewport: { width: 1280, height: 820 } });
  const of = async (name) => (await many.call("GET", "/v1/models/" + name)).json;
  allowed.add(many.url);
  await p.addInitScript(() => { localStorage.setItem("tern-settings", '{"temperature":0,"seed":1,"max_tokens":24}'); }); // room for the second question
  await p.goto(many.url);
  await p.waitForSelector("#choose-label:not([hidden])");
  assert.deepEqual(await p.$$eval("#choose option", (all) => all.map((o) => o.value)), ["gull.tern", "tern.tern"]);
  assert.equal((await of("tern")).state, "away");
  await p.focus("#choose");
  await p.keyboard.press("ArrowDown");
  await p.waitForFunction(() => document.querySelector("#model").textContent.includes("loaded when it is asked") && document.querySelector("#model strong").textContent === "tern.tern");
  await p.keyboard.press("Alt+e");
  await p.waitForSelector("#engine:not([hidden])");
  await p.keyboard.press("Alt+m");
  await p.keyboard.type("What colour is the sea?");
  await p.keyboard.press("Enter");
  await complete(p);
  const t = await many.talk(await idOf(p));
  assert.equal(t.nodes[1].model, "tern.tern");
  assert.equal((await of("gull")).loads, 0);
  assert.ok((await of("tern")).loads >= 1);
  await p.waitForFunction(() => [...document.querySelectorAll("#sums tbody tr")].some((r) => /\d %/.test(r.textContent)));
  await shot(p, "models");
  await until("it is away when nobody asks", async () => (await of("tern")).state === "away");
  await p.fill("#box", "And the sky?");
  await p.keyboard.press("Enter");
  await p.waitForFunction(() => document.querySelectorAll("article.assistant").length === 2);
  await complete(p);
  assert.equal((await many.talk(t.id)).nodes[3].state, "done");
  await p.context().close();
  assert.equal(await many.end("SIGTERM"), 0);
});

await check("a server that is killed keeps what it had, and the page goes on when it is back", async () => {
  const id = (await server.call("POST", "/page/talks", {})).json.id;
  await show(page, id);
  await server.call("POST", `/page/talks/${id}/say`, { parent: 0, content: STORY, settings: LONG });
  await page.waitForFunction(() => (document.querySelector("article.assistant .body")?.textContent || "").length > 60, null, { timeout: PATIENCE });
  const port = server.port;
  await server.end("SIGKILL");
  await page.waitForFunction(() => /does not answer/.test(document.querySelector("#banner").textContent), null, { timeout: PATIENCE });
  await page.fill("#box", "words that stay");
  const again = await new Server().start("--port", String(port));
  const t = await again.talk(id);
  assert.equal(t.nodes[0].content, STORY);
  assert.ok(["stopped", "done"].includes(t.nodes[1].state), t.nodes[1].state);
  await page.waitForFunction(() => document.querySelector("#banner").hidden && document.querySelector("article.assistant") && !document.querySelector("#send").hidden, null, { timeout: PATIENCE });
  assert.equal(await page.inputValue("#box"), "words that stay");
  assert.equal(await again.end("SIGTERM"), 0);
});

await check("tern forget erases the page's conversations", async () => {
  const had = readdirSync(folder).filter((f) => f.endsWith(".json")).length;
  const out = execFileSync(tern, ["forget", "--all"], { env, encoding: "utf8" });
  assert.match(out, new RegExp(`${had} conversations of the page`));
  assert.deepEqual(readdirSync(folder).filter((f) => f.endsWith(".json")), []);
});

// docs/figures/page.png is this one: cp build/page-shots/readme.png docs/figures/page.png
await check("the picture of the README: a question about a document, and where its time went", async () => {
  const s = await new Server().start(), p = await tab();
  allowed.add(s.url);
  await p.goto(s.url);
  await p.waitForSelector("#model strong");
  await p.keyboard.press("Alt+e");
  await p.waitForSelector("#engine:not([hidden])");
  await p.keyboard.press("Alt+m");
  await p.fill("#box", readFileSync("models/tern-tiny/demo.txt", "utf8").trim());
  await p.keyboard.press("Enter");
  await complete(p);
  await p.waitForFunction(() => document.querySelectorAll("#saved li.on").length >= 2, null, { timeout: PATIENCE });
  assert.match(await p.textContent("article.assistant .body"), /4471/);
  await shot(p, "readme");
  assert.equal(await s.end("SIGTERM"), 0);
});

await check("pictures go with a question, are shown in the conversation and stay there", async () => {
  mkdirSync(work + "/seeing");
  execFileSync(tern, ["synth", "--arch", "tiny-llama+sees", "--type", "f32", "-o", work + "/seeing/sees.gguf"], { env, stdio: "ignore" });
  execFileSync(tern, ["synth", "--arch", "tiny-smolvlm-mmproj", "--type", "f32", "-o", work + "/seeing/mmproj-sees.gguf"], { env, stdio: "ignore" });
  const s = await new Server().start("-m", work + "/seeing/sees.gguf"), p = await tab(), blind = await tab();
  const other = await new Server().start(); // whose model does not see
  allowed.add(other.url);
  await blind.goto(other.url);
  await blind.waitForSelector("#model strong");
  assert.equal(await blind.isVisible("#look"), false, "a model that does not see is offered pictures");
  assert.equal(await other.end("SIGTERM"), 0);
  allowed.add(s.url);
  await p.goto(s.url);
  await p.waitForSelector("#look:not([hidden])");
  await p.setInputFiles("#shots", "docs/figures/page.png"); // a button that opens the system's own dialogue
  await p.waitForSelector("#pictures li img");
  await p.evaluate(async () => { // pasted, and larger than the model looks at
    const c = document.createElement("canvas");
    c.width = 3000;
    c.height = 300;
    const g = c.getContext("2d");
    for (let i = 0; i < 3000; i += 3) { g.fillStyle = `hsl(${i} 80% 50%)`; g.fillRect(i, 0, 3, 300); }
    const blob = await new Promise((f) => c.toBlob(f, "image/png")), d = new DataTransfer();
    d.items.add(new File([blob], "wide.png", { type: "image/png" }));
    document.getElementById("box").dispatchEvent(new ClipboardEvent("paste", { clipboardData: d, bubbles: true, cancelable: true }));
  });
  await p.waitForFunction(() => document.querySelectorAll("#pictures li").length === 2);
  await p.evaluate(() => { // dropped, and no picture
    const d = new DataTransfer();
    d.items.add(new File(["GIF89a nothing"], "bad.gif", { type: "image/gif" }));
    document.getElementById("main").dispatchEvent(new DragEvent("drop", { dataTransfer: d, bubbles: true, cancelable: true }));
  });
  await p.waitForFunction(() => /bad.gif cannot be added/.test(document.getElementById("banner").textContent));
  await p.fill("#box", "What is it?");
  await p.keyboard.press("Enter");
  await complete(p);
  assert.equal(await p.isVisible("#pictures"), false);
  const sizes = () => p.evaluate(async () => Promise.all([...document.querySelectorAll("article.user img.picture")].map(async (i) => { await i.decode(); return i.naturalWidth; })));
  const widths = await sizes();
  assert.equal(widths.length, 2);
  assert.equal(widths[1], 2048);
  const id = await idOf(p), talk = await s.talk(id);
  assert.equal(talk.nodes[0].images.length, 2);
  assert.match(talk.nodes[0].images[1], /^data:image\/jpeg;base64,/);
  assert.equal(talk.nodes[1].state, "done", talk.nodes[1].error);
  assert.ok(talk.nodes[1].stats.prompt_tokens > 24, "the pictures are not in the prompt");
  await p.reload();
  await p.waitForSelector("article.user img.picture");
  assert.deepEqual(await sizes(), widths);
  for (const images of [["https://evil.example/x.png"], "x", ["javascript:1"], [3]]) assert.equal((await s.call("POST", `/page/talks/${id}/say`, { parent: talk.nodes[1].id, content: "x", images })).status, 400, JSON.stringify(images));
  await shot(p, "picture");
  assert.equal(await s.end("SIGTERM"), 0);
});

// docs/figures/page-picture.png is this one: cp build/page-shots/eyes.png docs/figures/page-picture.png
await check("the picture of the guide: a drawing is dropped and asked about", async () => {
  execFileSync("python3", ["models/tern-eyes/assemble.py", work + "/tern-eyes"]);
  execFileSync(tern, ["pack", work + "/tern-eyes", "-o", work + "/tern-eyes.tern", "--calib-tokens", "1024"], { env, stdio: "ignore" });
  const s = await new Server().start("-m", work + "/tern-eyes.tern"), p = await tab();
  allowed.add(s.url);
  await p.goto(s.url);
  await p.waitForSelector("#look:not([hidden])");
  await p.keyboard.press("Alt+e");
  await p.waitForSelector("#engine:not([hidden])");
  await p.evaluate((data) => {
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0)), d = new DataTransfer();
    d.items.add(new File([bytes], "demo.png", { type: "image/png" }));
    document.getElementById("main").dispatchEvent(new DragEvent("drop", { dataTransfer: d, bubbles: true, cancelable: true }));
  }, readFileSync("models/tern-eyes/demo.png").toString("base64"));
  await p.waitForSelector("#pictures li img");
  await p.fill("#box", "What is the code of the garden?");
  await p.keyboard.press("Enter");
  await complete(p);
  assert.match(await p.textContent("article.assistant .body"), /2207/);
  await shot(p, "eyes");
  assert.equal(await s.end("SIGTERM"), 0);
});

await check("tools are off at first, asked for one by one, and what they say becomes no markup", async () => {
  execFileSync("python3", ["-c", `import sys
sys.path.insert(0, "tests/fixture")
import saying
saying.write(sys.argv[1], {"A": ["I add. ", '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'], "5": ["It is five."], ".": ["It may not be."],
                           "E": ['<tool_call>{"name": "echo", "arguments": {"n": [1.50, 1e2], "text": "<img src=x onerror=window.pwned=20>\u202e\u200e\u2029\u3164\u{e0041}5"}}</tool_call>']})`, work + "/say.gguf"]);
  const s = await new Server().start("-m", work + "/say.gguf", "--mcp", `t=exec python3 ${process.cwd()}/tests/fixture/mcp_server.py good`), p = await tab();
  const say = async (words) => { await p.fill("#box", words); await p.keyboard.press("Enter"); };
  const last = () => p.evaluate(() => [...[...document.querySelectorAll("article.assistant")].pop().querySelectorAll(":scope > .body")].pop().textContent.trim());
  const asked = (n) => p.waitForFunction((k) => document.querySelectorAll(".call").length === k && document.querySelectorAll(".call.asked button").length, n);
  allowed.add(s.url);
  await p.goto(s.url);
  await p.waitForSelector("#tools:not([hidden])");
  assert.equal(await p.isChecked("#use-tools"), false);
  await say("A");
  await complete(p);
  assert.equal(await p.locator(".call").count(), 0, "tools that nobody turned on");
  await p.check("#use-tools");
  await p.keyboard.press("Alt+n");
  await say("A");
  await asked(1);
  assert.match(await p.textContent(".call"), /t\.add would like to be called\s*{\s*"a": 2,\s*"b": 3\s*}/);
  await shot(p, "tool");
  await p.reload(); // the question stands
  await asked(1);
  await p.click("text=Allow once");
  await complete(p);
  assert.equal(await last(), "It is five.");
  assert.match(await p.textContent(".call"), /t\.add was called/);
  await say("A");
  await asked(2);
  await p.click("text=Refuse");
  await complete(p);
  assert.equal(await last(), "It may not be.");
  await say("A");
  await asked(3);
  await p.click("text=Always in this conversation");
  await complete(p);
  await say("A");
  await p.waitForFunction(() => document.querySelectorAll(".call.done").length === 3);
  await complete(p);
  assert.equal(await last(), "It is five.", "always asks again");
  await say("E"); // of another tool
  await asked(5);
  assert.match(await p.textContent(".call.asked pre"), /"n": \[\s*1\.50,\s*1e2\s*\],\s*"text": "<img src=x onerror=window.pwned=20>\\u202e\\u200e\\u2029\\u3164\\u\{e0041\}5"/);
  await p.click("text=Allow once");
  await complete(p);
  await p.click("article:last-of-type .call summary");
  assert.match(await p.textContent("article:last-of-type .call details pre"), /^<img src=x onerror=window.pwned=20>\\u202e\\u200e\\u2029\\u3164\\u\{e0041\}5$/);
  assert.equal(await p.evaluate(() => window.pwned), undefined);
  await shot(p, "tools");
  assert.equal(await s.end("SIGTERM"), 0);
});

// A browser that met llama-server's page at this address has its worker, which answers with that page.
await check("a browser that has another server's worker shows this page", async () => {
  const files = { "/": ["text/html", "<title>other</title><script>navigator.serviceWorker.register('/sw.js')</script>"],
    "/sw.js": ["text/javascript", `addEventListener("install", (e) => e.waitUntil(caches.open("kept").then((c) => c.add("/")).then(() => skipWaiting())));
      addEventListener("activate", (e) => e.waitUntil(clients.claim()));
      addEventListener("fetch", (e) => { if (e.request.mode === "navigate") e.respondWith(caches.match("/")); });`] };
  const other = createServer((q, r) => { const [type, text] = files[q.url] ?? ["text/plain", ""]; r.writeHead(files[q.url] ? 200 : 404, { "content-type": type }); r.end(text); });
  await new Promise((done) => other.listen(0, "127.0.0.1", done));
  const port = other.address().port, url = `http://127.0.0.1:${port}`;
  allowed.add(url);
  const p = await (await browser.newContext()).newPage();
  p.setDefaultTimeout(PATIENCE);
  await p.goto(url);
  await p.waitForFunction(() => navigator.serviceWorker.controller);
  other.closeAllConnections();
  await new Promise((done) => other.close(done));
  const s = await new Server().start("--port", String(port));
  await p.goto(url);
  await p.waitForFunction(() => document.title === "tern");
  await p.waitForFunction(async () => !(await caches.keys()).length && !(await navigator.serviceWorker.getRegistrations()).length);
  await p.reload();
  assert.equal(await p.title(), "tern");
  assert.equal(await s.end("SIGTERM"), 0);
});

await browser.close();
assert.deepEqual(problems, []);
console.log(`${n} checks passed; screenshots are in ${shots}`);
