// The page: conversations at the left, the one that is open in the middle, the engine at the right.
import { Failed, call, events, onKeyNeeded } from "./api.js";
import { el } from "./markdown.js";
import { Talk } from "./talk.js";
import { Engine } from "./engine.js";
import { Documents } from "./documents.js";
import { Pictures } from "./pictures.js";
import { Tools } from "./tools.js";
import { askFor, confirm, tell, settingsDialog, figures } from "./dialogs.js";
import { conversations } from "./imported.js";

const $ = (id) => document.getElementById(id);
const page = { talks: [], open: null, state: null, changes: -1, say: announce, banner, failed };

function announce(text) { $("status").textContent = text; }

let bannerFor = "";
function banner(text, why = "") {
  if (!text && why !== bannerFor) return;
  bannerFor = why;
  $("banner").hidden = !text;
  $("banner").textContent = text || "";
}

function failed(e) {
  if (e.name === "AbortError") return;
  banner(e instanceof Failed ? e.message : "Something went wrong: " + e.message, e.status === 0 ? "gone" : "request");
}

// ---- the list

function when(t) {
  const days = Math.floor((new Date().setHours(0, 0, 0, 0) - new Date(t * 1000).setHours(0, 0, 0, 0)) / 864e5);
  return days <= 0 ? "Today" : days === 1 ? "Yesterday" : days < 7 ? "This week" : days < 31 ? "This month" : "Before";
}

// The words that were looked for, marked.
function marked(text, words) {
  const all = words.trim().split(/\s+/).filter(Boolean).map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!all.length) return [text];
  return text.split(new RegExp(`(${all.join("|")})`, "giu")).map((part, i) => (i % 2 ? el("mark", {}, part) : part));
}

function showList() {
  const writing = new Set(((page.state && page.state.running) || []).map((r) => r.talk)), list = $("talks");
  const focus = document.activeElement && document.activeElement.closest && document.activeElement.closest("#talks a");
  const held = focus ? focus.dataset.id : null;
  let group = "";
  list.replaceChildren(...page.talks.flatMap((t) => {
    const name = when(t.updated), head = name === group ? [] : [el("li", { class: "group" }, name)];
    group = name;
    const a = el("a", { href: "#" + t.id, "data-id": t.id, "aria-current": page.open && page.open.id === t.id ? "page" : null, class: writing.has(t.id) ? "writing" : "" },
      el("span", { dir: "auto" }, t.title || "New conversation"), t.found ? el("small", { dir: "auto" }, ...marked(t.found, $("search").value)) : null);
    return [...head, el("li", {}, a)];
  }));
  if (!page.talks.length && $("search").value) list.append(el("li", { class: "group" }, "Nothing found"));
  if (held) { const a = list.querySelector(`a[data-id="${held}"]`); if (a) a.focus(); }
}

let listsAsked = 0;
async function loadList() {
  const q = $("search").value.trim(), asked = ++listsAsked;
  const found = (await call("GET", "/page/talks" + (q ? "?q=" + encodeURIComponent(q) : ""))).talks;
  if (asked !== listsAsked) return; // what was asked for later is on its way, or there
  page.talks = found;
  showList();
}

// ---- what the server is doing

const mib = (n) => (n >= 1 << 30 ? (n / (1 << 30)).toFixed(2) + " GiB" : (n / (1 << 20)).toFixed(0) + " MiB");
const count = (n) => (n >= 1e9 ? (n / 1e9).toFixed(1) + " B" : n >= 1e6 ? (n / 1e6).toFixed(1) + " M" : String(n));

// The model that answers the conversation which is open: what was chosen for it, else the server's own.
page.model = () => {
  const all = (page.state && page.state.models) || [], chosen = page.open && page.open.settings.model;
  return all.find((m) => m.id === chosen) || all.find((m) => m.default) || all.find((m) => m.state === "ready") || all[0] || null;
};
const several = () => page.state && page.state.models.length > 1;
page.several = several;

const STATES = { ready: "in memory", loading: "being loaded", away: "loaded when it is asked", failed: "cannot be used" };

function showModel() {
  const m = page.model(), select = $("choose"), info = m && m.meta;
  if (!m) return;
  const shown = page.state.models.map((x) => x.id + x.state).join();
  $("choose-label").hidden = !several();
  if (several() && select.dataset.shown !== shown && document.activeElement !== select) {
    select.replaceChildren(...page.state.models.map((x) => el("option", { value: x.id }, x.id + (x.state === "ready" ? " •" : x.state === "failed" ? " (cannot be used)" : ""))));
    select.dataset.shown = shown;
  }
  if (document.activeElement !== select) select.value = m.id;
  $("model").replaceChildren(el("strong", {}, m.id), el("br"),
    ...(info ? [`${count(info.n_params)} parameters, ${info.arch}, ${info.scheme}`, el("br"), `${mib(page.state.resident_bytes)} in memory, context ${info.n_ctx.toLocaleString("en")}`]
      : [STATES[m.state] + (m.error ? ": " + m.error : "")]),
    ...(m.first_token_s ? [el("br"), `first token ${m.first_token_s.toFixed(2)} s from cold`] : []),
    ...(page.state.counts.waiting ? [el("br"), `${page.state.counts.waiting} waiting`] : []));
  page.engine.watch(several() ? m.id : "");
  page.pictures.show();
  page.tools.show();
}
page.showModel = showModel;

$("choose").addEventListener("change", () => {
  const settings = { ...page.open.settings, model: $("choose").value };
  page.open.keepSettings(settings).then(() => { showModel(); page.open.modelChanged(); }).catch(failed);
});

async function look() {
  const was = page.state, before = page.changes;
  page.state = await call("GET", "/page/state");
  page.changes = page.state.changes;
  banner("", "gone");
  showModel();
  if (!was) page.open.modelChanged();
  if (page.state.no_talks) { $("no-talks").hidden = false; $("no-talks").textContent = "Conversations cannot be kept: " + page.state.no_talks; return; }
  const running = JSON.stringify((page.state.running || []).map((r) => r.talk + r.node));
  if (before !== page.changes || !was || running !== page.running) {
    page.running = running;
    await loadList();
    if (page.open) await page.open.refresh();
    updateHead();
  }
  const mine = (page.state.running || []).find((r) => page.open && r.talk === page.open.id);
  page.engine.progress(mine ? mine.progress : null);
}

let lookTimer = 0;
async function looking() {
  clearTimeout(lookTimer);
  try { await look(); } catch (e) {
    if (e.status === 0) banner("The server does not answer. What you typed stays here; the page goes on when the server is back.", "gone");
    else failed(e);
  }
  lookTimer = setTimeout(looking, document.hidden ? 15000 : (page.state && page.state.running && page.state.running.length ? 1000 : 2500));
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) looking(); });

// ---- which conversation is open

function updateHead() {
  const t = page.open, title = (t && t.title) || "New conversation";
  $("title").textContent = title;
  document.title = t && t.title ? t.title + " · tern" : "tern";
  for (const id of ["rename", "export-md", "export-json", "erase"]) $(id).disabled = !t || !t.id;
  const used = t ? t.contextUsed() : 0, m = page.model(), n = m && m.meta ? m.meta.n_ctx : t ? t.contextSize() : 0;
  $("meter").hidden = !used || !n;
  if (used && n) {
    const share = Math.min(1, used / n);
    $("meter").querySelector("i").style.width = (100 * share).toFixed(1) + "%";
    $("meter").querySelector(".label").textContent = `${used.toLocaleString("en")} of ${n.toLocaleString("en")} tokens`;
    $("meter").setAttribute("aria-label", `Context: ${used} of ${n} tokens used`);
    $("meter").classList.toggle("full", share > 0.9);
  }
  const writing = t && t.writing();
  $("send").hidden = Boolean(writing);
  $("stop").hidden = !writing;
}
page.updateHead = updateHead;

async function open(id) {
  if (page.open) page.open.close();
  closeSide();
  const talk = page.open = new Talk(id, $("log"), page);
  $("box").value = sessionStorage.getItem("tern-words-" + (id || "new")) || "";
  grow();
  try { await talk.load(); } catch (e) {
    if (page.open !== talk) return undefined; // another is open by now
    if (e.status === 404) { history.replaceState(null, "", location.pathname); return open(null); }
    failed(e);
  }
  if (page.open !== talk) return undefined;
  if (id && $("search").value.trim()) talk.find($("search").value.trim().split(/\s+/));
  updateHead();
  showList();
  return undefined;
}

addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (!page.open || (page.open.id || "") !== id) open(id || null);
});

// At once: what is typed next belongs to the new conversation, and a browser tells of a changed address later.
function startNew() {
  if (location.hash) history.pushState(null, "", location.pathname);
  open(null);
  $("box").focus();
}

// ---- saying something

const box = $("box");
function grow() { box.style.height = "auto"; box.style.height = Math.min(box.scrollHeight, innerHeight * 0.4) + "px"; }
const wordsKey = () => "tern-words-" + ((page.open && page.open.id) || "new");
box.addEventListener("input", () => { grow(); sessionStorage.setItem(wordsKey(), box.value); });

async function send() {
  const words = box.value.trim();
  if (!words || (page.open && page.open.writing())) return;
  const key = wordsKey(), pictures = page.pictures.take();
  box.value = "";
  grow();
  try {
    banner("", "request");
    await page.open.say(words, page.open.leaf, pictures.map((p) => p.url));
    sessionStorage.removeItem(key);
    looking();
  } catch (e) {
    if (!box.value) { box.value = words; grow(); }
    page.pictures.giveBack(pictures);
    failed(e);
  }
  updateHead();
}

$("ask").addEventListener("submit", (e) => { e.preventDefault(); send(); });
box.addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
  if (e.key === "ArrowUp" && !box.value && page.open) { e.preventDefault(); page.open.editLast(); }
});
$("stop").addEventListener("click", () => page.open && page.open.stop());

// ---- the rest of the controls

function closeSide() { $("side").classList.remove("open"); }
$("menu").addEventListener("click", () => { $("side").classList.add("open"); $("search").focus(); });
$("side-close").addEventListener("click", () => { closeSide(); $("menu").focus(); });
$("new").addEventListener("click", startNew);
let searchTimer = 0;
$("search").addEventListener("input", () => { clearTimeout(searchTimer); searchTimer = setTimeout(() => loadList().catch(failed), 150); });
$("search").addEventListener("keydown", (e) => {
  if (e.key === "ArrowDown") { const a = $("talks").querySelector("a"); if (a) { e.preventDefault(); a.focus(); } }
});
$("talks").addEventListener("keydown", (e) => {
  const all = [...$("talks").querySelectorAll("a")], i = all.indexOf(document.activeElement);
  if (i < 0) return;
  if (e.key === "ArrowDown" && all[i + 1]) { e.preventDefault(); all[i + 1].focus(); }
  if (e.key === "ArrowUp") { e.preventDefault(); (all[i - 1] || $("search")).focus(); }
  if (e.key === "Delete") { e.preventDefault(); erase(all[i].dataset.id); }
});

async function erase(id) {
  const t = page.talks.find((x) => x.id === id);
  if (!await confirm("Delete this conversation?", `“${(t && t.title) || "New conversation"}” and all its branches are erased from the server's disk. This cannot be undone.`, "Delete")) return;
  try {
    await call("DELETE", "/page/talks/" + id);
    announce("The conversation is deleted.");
    if (page.open && page.open.id === id) startNew();
    await loadList();
  } catch (e) { failed(e); }
}

function menuItem(id, f) { $(id).addEventListener("click", () => { $("more").open = false; Promise.resolve(f()).catch(failed); }); }
menuItem("rename", async () => {
  const title = await askFor("Rename the conversation", "Title", page.open.title);
  if (title === null) return;
  await page.open.change({ title: title.slice(0, 60) });
  updateHead();
  await loadList();
});
menuItem("erase", () => erase(page.open.id));
menuItem("export-md", () => save(page.open.asMarkdown(), "text/markdown", "md"));
menuItem("export-json", async () => save(JSON.stringify(await call("GET", "/page/talks/" + page.open.id), null, 1), "application/json", "json"));
menuItem("import", () => $("import-files").click());
$("import-files").addEventListener("change", async () => {
  const files = [...$("import-files").files];
  let n = 0, last = null, why = "";
  $("import-files").value = "";
  for (const f of files) {
    try {
      const list = conversations(await f.text());
      if (!list.length) why = `${f.name}: there is no conversation in it.`;
      for (const v of list) { last = (await call("POST", "/page/talks", v)).id; n++; }
    } catch (e) { why = `${f.name}: ${e instanceof SyntaxError ? "not JSON" : e.message}`; }
  }
  if (n) {
    await loadList();
    announce(n === 1 ? "One conversation is imported." : `${n} conversations are imported.`);
    location.hash = last;
  }
  if (why) banner(why, "request");
});
menuItem("options", async () => { await settingsDialog(page.open); });
menuItem("show-metrics", () => figures());
menuItem("help", () => tell("Keyboard", [["Enter", "send"], ["Shift Enter", "a new line"], ["Esc", "stop the answer, close what is open"], ["↑ in an empty box", "edit the last question"],
  ["Alt N", "new conversation"], ["Alt K", "search"], ["Alt M", "to the message box"], ["Alt E", "the engine's panel"], ["Alt R", "another answer to the last question"],
  ["Delete in the list", "delete a conversation"], [", and . in the timeline", "the task before, the next one"], ["+ − 0 ← → in the timeline", "zoom, whole request, earlier and later"]]));

function save(text, type, ending) {
  const name = (page.open.title || "conversation").replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 60) || "conversation";
  const a = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name + "." + ending });
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10000);
}

function toggleEngine() {
  const shown = $("engine").hidden;
  $("engine").hidden = !shown;
  $("engine-open").setAttribute("aria-expanded", String(shown));
  localStorage.setItem("tern-engine", shown ? "open" : "");
  if (shown) { page.engine.start(); if (page.open) page.open.tellEngine(); } else page.engine.stop();
}
$("engine-open").addEventListener("click", toggleEngine);
$("engine-close").addEventListener("click", () => { toggleEngine(); $("engine-open").focus(); });

$("theme").addEventListener("click", () => {
  const dark = (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("tern-theme", dark ? "light" : "dark");
  page.engine.redraw();
});
if (localStorage.getItem("tern-theme")) document.documentElement.dataset.theme = localStorage.getItem("tern-theme");

document.addEventListener("keydown", (e) => {
  if (e.altKey && !e.ctrlKey && !e.metaKey) {
    const does = { n: startNew, k: () => { $("side").classList.add("open"); $("search").focus(); }, m: () => box.focus(), e: toggleEngine, r: () => page.open && page.open.againLast() }[e.key.toLowerCase()];
    if (does) { e.preventDefault(); does(); }
  }
  if (e.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if ($("more").open) { $("more").open = false; $("more").querySelector("summary").focus(); }
  else if ($("side").classList.contains("open")) { closeSide(); $("menu").focus(); }
  else if (page.open && page.open.writing()) page.open.stop();
});
document.addEventListener("click", (e) => { if ($("more").open && !$("more").contains(e.target)) $("more").open = false; });
$("skip").addEventListener("click", (e) => { e.preventDefault(); box.focus(); });

onKeyNeeded(async (wrong) => (await askFor("This server wants a key", wrong ? "That key was wrong. Key" : "Key (from the file given with --api-key-file)", "", "password")) || "");

page.engine = new Engine(page, events);
page.documents = new Documents(page);
page.pictures = new Pictures(page);
page.tools = new Tools(page);
(async () => {
  const opened = open(location.hash.slice(1) || null); // first of all: whoever types has somewhere to say it
  if (innerWidth > 980) box.focus();
  if (localStorage.getItem("tern-engine") && innerWidth > 980) toggleEngine();
  await opened;
  await looking();
  page.documents.load();
})();
