// One conversation: a tree of nodes, of which one path is shown. The server keeps it and writes its answers.
import { call, events } from "./api.js";
import { el, markdown } from "./markdown.js";
import { shown } from "./pictures.js";

const GREETINGS = ["Explain what a mixture of experts is", "Write a haiku about the sea", "What can you help me with?"];

export class Talk {
  constructor(id, log, page) {
    Object.assign(this, { id, log, page, title: "", nodes: new Map(), leaf: 0, settings: {}, live: null, shown: new Map() });
    if (!id) this.settings = JSON.parse(localStorage.getItem("tern-settings") || "{}");
  }

  async load() {
    this.log.replaceChildren();
    this.shown.clear();
    if (!this.id) { this.showEmpty(); return; }
    const v = await call("GET", "/page/talks/" + this.id);
    if (this.closed) return; // the log shows another conversation
    this.read(v);
    this.render();
    this.log.scrollTop = this.log.scrollHeight;
  }

  read(v) {
    this.title = v.title || "";
    this.leaf = this.kept = v.leaf || 0; // kept: by the server; a search looks at another branch without changing it
    this.settings = v.settings || {};
    this.nodes = new Map(v.nodes.map((n) => [n.id, n]));
    if (!this.nodes.has(this.leaf)) this.leaf = v.nodes.length ? v.nodes[v.nodes.length - 1].id : 0;
  }

  // Another page, or this one before it was loaded again, may have gone on.
  async refresh() {
    if (!this.id || this.writing() || this.log.querySelector(".edit")) return;
    const v = await call("GET", "/page/talks/" + this.id);
    const looked = v.leaf === this.kept && v.nodes.some((n) => n.id === this.leaf) ? this.leaf : v.leaf;
    if (this.closed || this.writing() || JSON.stringify(v.nodes) + looked + v.title === JSON.stringify([...this.nodes.values()]) + this.leaf + this.title) return;
    this.read(v);
    this.leaf = this.nodes.has(looked) ? looked : this.leaf;
    this.render();
  }

  close() { this.closed = true; if (this.live) this.live.abort.abort(); }
  writing() { return this.live || this.asking; }

  path() {
    const out = [];
    for (let n = this.nodes.get(this.leaf); n; n = this.nodes.get(n.parent)) out.unshift(n);
    return out;
  }
  branches(node) { return [...this.nodes.values()].filter((n) => n.parent === node.parent && n.role === node.role).sort((a, b) => a.id - b.id); }

  contextUsed() {
    const last = this.path().filter((n) => n.role === "assistant" && n.stats).pop();
    return last ? (last.stats.prompt_tokens || 0) + (last.stats.tokens || 0) : 0;
  }

  // ---- what the person does

  async ensure() {
    if (this.id) return;
    const v = await call("POST", "/page/talks", {});
    this.id = v.id;
    if (!this.closed) history.replaceState(null, "", "#" + this.id);
    if (Object.keys(this.settings).length) await this.change({ settings: this.settings });
  }

  async change(what) { await call("POST", "/page/talks/" + this.id, what); Object.assign(this, what); }

  async keepSettings(settings) {
    this.settings = settings;
    localStorage.setItem("tern-settings", JSON.stringify(settings));
    if (this.id) await this.change({ settings });
  }

  async say(content, parent = this.leaf, images = []) { await this.ask(images.length ? { parent, content, images } : { parent, content }); }
  async again(question) { await this.ask({ parent: question }); }

  async ask(body) {
    if (this.writing()) return;
    this.asking = true; // one question at a time, also before the server has said that it heard it
    this.page.updateHead();
    try { await this.put(body); } finally {
      this.asking = false;
      if (!this.closed) this.page.updateHead();
    }
  }

  async put(body) {
    await this.ensure();
    const m = this.page.model(), settings = m && this.page.several() ? { ...this.settings, model: m.id } : this.settings;
    if (m && m.state !== "ready") this.page.say(`${m.id} is being loaded.`);
    const r = await call("POST", `/page/talks/${this.id}/say`, { ...body, settings, ...this.page.documents.wanted(), ...this.page.tools.wanted() });
    for (const n of r.nodes) { this.nodes.set(n.id, n); this.leaf = n.id; }
    this.title = r.title || this.title;
    if (this.closed) return;
    this.asking = false;
    this.render();
    this.log.scrollTop = this.log.scrollHeight;
  }

  modelChanged() { if (!this.path().length) this.showEmpty(); }
  contextSize() { const last = this.path().filter((n) => n.role === "assistant" && n.stats).pop(); return last ? last.stats.n_ctx || 0 : 0; }

  async stop() {
    if (!this.live) return;
    const node = this.live.node;
    await call("POST", `/page/talks/${this.id}/answers/${node}/stop`, {}).catch(this.page.failed);
  }

  againLast() {
    const last = this.path().filter((n) => n.role === "user").pop();
    if (last && !this.writing()) this.again(last.id).catch(this.page.failed);
  }
  editLast() {
    const last = this.path().filter((n) => n.role === "user").pop();
    if (last && !this.writing()) this.edit(last);
  }

  edit(node) {
    const view = this.shown.get(node.id), area = el("textarea", { "aria-label": "Your message", maxlength: "400000" }), save = el("button", { class: "primary", type: "button" }, "Send"), cancel = el("button", { type: "button" }, "Cancel");
    area.value = node.content;
    const back = () => { this.shown.delete(node.id); this.render(); document.getElementById("box").focus(); };
    const go = async () => {
      if (!area.value.trim()) return;
      this.shown.delete(node.id);
      try { await this.say(area.value.trim(), node.parent, node.images); } catch (e) { this.page.failed(e); }
      document.getElementById("box").focus();
    };
    save.addEventListener("click", go);
    cancel.addEventListener("click", back);
    area.addEventListener("keydown", (e) => {
      if (e.key === "Escape") { e.stopPropagation(); back(); }
      if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); go(); }
    });
    view.article.replaceChildren(el("div", { class: "edit" }, area, el("div", { class: "buttons" }, cancel, save)));
    area.focus();
  }

  // The newest end of this branch.
  end(node) {
    let leaf = node;
    for (let next = leaf; next;) { leaf = next; next = [...this.nodes.values()].filter((n) => n.parent === leaf.id).sort((a, b) => b.id - a.id)[0]; }
    return leaf;
  }

  async goTo(node) {
    this.leaf = this.end(node).id;
    this.render();
    const view = this.shown.get(node.id), button = view && view.article.querySelector(".branches button:not(:disabled)");
    if (button) button.focus();
    await this.change({ leaf: this.leaf }).catch(this.page.failed);
  }

  // ---- what is shown

  showEmpty() {
    const m = this.page.model();
    this.log.replaceChildren(el("div", { class: "empty" }, el("img", { src: "/page/icon.svg", alt: "", width: "56", height: "56" }), el("h2", {}, "What would you like to know?"),
      el("p", {}, m ? m.id + " answers on this machine. Nothing leaves it." : "Answers are made on this machine. Nothing leaves it."),
      m && m.meta && !m.meta.chat ? el("p", { class: "problem" }, "This model has no chat template, so it cannot hold a conversation.") : null,
      el("div", { class: "tries" }, ...GREETINGS.map((g) => el("button", { type: "button", on: { click: () => this.say(g).then(() => this.page.updateHead()).catch(this.page.failed) } }, g)))));
  }

  render() {
    const path = this.path(), near = this.atEnd();
    if (!path.length) { this.showEmpty(); return; }
    const keep = new Set(path.map((n) => n.id));
    for (const [id] of this.shown) if (!keep.has(id)) this.shown.delete(id);
    const articles = path.map((n) => this.view(n).article), now = [...this.log.children];
    if (articles.length !== now.length || articles.some((a, i) => a !== now[i])) this.log.replaceChildren(...articles); // else whoever has the focus keeps it
    const last = path[path.length - 1];
    if (last.state === "writing" && !this.live) this.follow(last);
    else if (last.role === "assistant" && last.state !== "writing") this.tellEngine();
    this.page.updateHead();
    if (near) this.log.scrollTop = this.log.scrollHeight;
  }

  // Shows the message in which most of the words stand, on its own branch, with the words marked.
  find(words) {
    const low = words.map((w) => w.toLowerCase()), score = (n) => low.filter((w) => n.content.toLowerCase().includes(w)).length, shown = new Set(this.path().map((n) => n.id));
    const best = [...this.nodes.values()].sort((a, b) => score(b) - score(a) || shown.has(b.id) - shown.has(a.id) || a.id - b.id)[0];
    if (!best || !score(best)) return;
    if (!shown.has(best.id)) { this.leaf = this.end(best).id; this.render(); }
    const v = this.shown.get(best.id), ranges = [];
    if (v.more && !v.open) v.more.click(); // a folded question
    for (const body of this.log.querySelectorAll("article .body")) {
      const walk = document.createTreeWalker(body, NodeFilter.SHOW_TEXT);
      for (let t = walk.nextNode(); t; t = walk.nextNode()) {
        const text = t.data.toLowerCase();
        for (const w of low) for (let at = text.length === t.data.length ? text.indexOf(w) : -1; at >= 0 && ranges.length < 500; at = text.indexOf(w, at + w.length)) {
          const r = document.createRange();
          r.setStart(t, at);
          r.setEnd(t, at + w.length);
          ranges.push(r);
        }
      }
    }
    if (globalThis.Highlight) CSS.highlights.set("found", new Highlight(...ranges));
    const first = ranges.find((r) => v.article.contains(r.startContainer));
    (first ? first.startContainer.parentElement : v.article).scrollIntoView({ block: "center" });
  }

  atEnd() { return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 80; }

  view(node) {
    let v = this.shown.get(node.id);
    if (!v) {
      v = { article: el("article", { class: node.role, "data-node": String(node.id) }), drafts: false, open: false };
      this.shown.set(node.id, v);
    }
    const key = [node.content.length, node.state, (node.thinking || "").length, (node.steps || []).flatMap((s) => s.calls.map((c) => c.state)).join(" "), this.branches(node).length, v.drafts, Boolean(this.live)].join();
    if (v.key !== key) { v.key = key; this.fill(node, v); }
    return v;
  }

  fill(node, v) {
    const user = node.role === "user";
    const focused = v.article.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    v.body = el("div", { class: "body", dir: user ? "auto" : undefined });
    v.thought = null;
    if (user) this.fillQuestion(node, v);
    else this.fillAnswer(node, v);
    v.article.replaceChildren(el("h2", { class: "unseen" }, user ? "You" : "tern"), ...this.page.tools.stepsOf(this, node, markdown), ...(v.thought ? [v.thought] : []), v.body, ...this.extras(node), this.foot(node, v));
    const again = focused && [...v.article.querySelectorAll("button")].find((b) => b.getAttribute("aria-label") === focused);
    if (again) again.focus();
  }

  // Pasted pages are folded.
  fillQuestion(node, v) {
    v.body.append(...shown(node.images || []), node.content);
    if (node.content.length < 1200 && node.content.split("\n").length < 16) return;
    v.body.classList.toggle("folded", !v.open);
    v.more = el("button", { type: "button", "aria-expanded": String(Boolean(v.open)), on: { click: () => {
      v.open = !v.open;
      v.body.classList.toggle("folded", !v.open);
      v.more.setAttribute("aria-expanded", String(v.open));
      v.more.textContent = v.open ? "Show less" : "Show all";
    } } }, v.open ? "Show less" : "Show all");
  }

  fillAnswer(node, v) {
    if (node.thinking) v.thought = this.thought(node, v);
    v.body.classList.toggle("caret", node.state === "writing" && Boolean(node.content));
    if (v.drafts) { this.showDrafts(node, v); return; }
    if (node.content) v.body.append(...markdown(node.content));
    else if (node.state === "writing" && !node.thinking && !this.calling(node)) v.body.append(el("p", { class: "waiting" }, node.waiting || "Reading…"));
  }

  // A call is decided or made, and nothing is read or written meanwhile.
  calling(node) { return (node.steps || []).some((s) => s.calls.some((c) => c.state === "asked" || c.state === "running")); }

  thought(node, v) {
    const writing = node.state === "writing" && !node.content;
    const d = el("details", { class: "thinking", open: v.open }, el("summary", { class: writing ? "writing" : "" }, writing ? "Thinking" : "Thoughts"), el("div", { class: "body" }, ...markdown(node.thinking)));
    d.addEventListener("toggle", () => { v.open = d.open; });
    return d;
  }

  extras(node) {
    const out = [];
    if (node.error) {
      const full = /context/.test(node.error);
      out.push(el("div", { class: "problem", role: "alert" }, (node.state === "failed" ? "This answer failed: " : "") + node.error,
        full ? el("p", {}, "A new conversation begins with an empty context (Alt N); branches from an earlier question are shorter too.") : null));
    }
    if (node.sources && node.sources.length) out.push(this.page.documents.sourcesOf(node));
    else if (node.sources) out.push(el("p", { class: "quiet" }, "Nothing in your documents fits this question."));
    if (node.cut === "tokens") out.push(el("p", { class: "notice" }, "This answer was cut: it reached the most tokens that the settings allow. Say “go on”, or raise the limit in Settings."));
    if (node.cut === "context") out.push(el("p", { class: "notice" }, "This answer was cut: the context is full. A new conversation begins with an empty one (Alt N)."));
    if (node.state === "stopped" && !node.error) out.push(el("p", { class: "quiet" }, "Stopped here."));
    return out;
  }

  foot(node, v) {
    const button = (label, title, f, more = {}) => el("button", { type: "button", title, "aria-label": title, ...more, on: { click: f } }, label), foot = el("div", { class: "foot" });
    const branches = this.branches(node), at = branches.findIndex((b) => b.id === node.id), writing = node.state === "writing";
    if (branches.length > 1) foot.append(el("span", { class: "branches", role: "group", "aria-label": "Versions" }, button("‹", "Version before", () => this.goTo(branches[at - 1]), { disabled: at === 0 }),
      `${at + 1} / ${branches.length}`, button("›", "Next version", () => this.goTo(branches[at + 1]), { disabled: at === branches.length - 1 })));
    if (v.more) foot.append(v.more);
    if (!writing && node.content) foot.append(button("Copy", "Copy this text", async (e) => { await navigator.clipboard.writeText(node.content).catch(() => {}); e.target.textContent = "Copied"; }));
    if (node.role === "user" && !this.live) foot.append(button("Edit", "Edit this question", () => this.edit(node)));
    if (node.role === "assistant" && !writing && !this.live) foot.append(button("Again", "Another answer", () => this.again(node.parent).catch(this.page.failed)));
    if (node.role === "assistant") foot.append(button("Drafts", "Show which words were guessed and verified", () => this.toggleDrafts(node, v), { "aria-pressed": String(v.drafts) }));
    v.stats = el("span", { class: "stats" }, this.statsOf(node));
    if (node.role === "assistant") foot.append(v.stats);
    return foot;
  }

  statsOf(node) {
    const s = node.stats, out = [];
    if (!s || !s.tokens) return "";
    out.push(`${s.tokens} token${s.tokens === 1 ? "" : "s"}`);
    if (s.tokens > 1 && s.decode_s > 0) out.push(`${((s.tokens - 1) / s.decode_s).toFixed(1)} tokens/s`); // from the first to the last
    if (s.prefill_s) out.push(`first after ${s.prefill_s < 1 ? (s.prefill_s * 1000).toFixed(0) + " ms" : s.prefill_s.toFixed(1) + " s"}`);
    if (s.cached_tokens) out.push(`${s.cached_tokens} of ${s.prompt_tokens} known`);
    return out.join(" · ");
  }

  // ---- how a text came: drafts

  async toggleDrafts(node, v) {
    v.drafts = !v.drafts;
    if (v.drafts) v.how = await this.how(node);
    v.key = "";
    this.view(node);
    const b = v.article.querySelector("[aria-pressed]");
    if (b) b.focus();
  }

  async how(node) {
    try { return await call("GET", `/page/talks/${this.id}/answers/${node.id}/how`); } catch { return null; }
  }

  showDrafts(node, v) {
    const h = v.how, out = el("div", { class: "tokens" });
    if (!h) { v.body.append(el("p", { class: "quiet" }, "How this answer came is known only until the server ends or 32 others were written."), ...markdown(node.content)); return; }
    let i = 0, accepted = 0, proposed = 0;
    for (const [ok, n, wrong] of h.steps) {
      out.append(h.tokens[i] ?? "");
      const good = h.tokens.slice(i + 1, i + 1 + ok).join("");
      if (good) out.append(el("span", { class: "ok", title: `${ok} of ${n} drafts were right` }, good));
      if (wrong) out.append(el("del", { title: "guessed, verified, and wrong" }, wrong.replace(/\n/g, "⏎")));
      accepted += ok;
      proposed += n;
      i += ok + 1;
    }
    out.append(h.tokens.slice(i).join(""));
    const forwards = h.steps.length;
    v.body.append(el("p", { class: "tokens-key" }, proposed ? `${accepted} of ${proposed} drafts were right: ${h.tokens.length} tokens took ${forwards} forwards. ` : "Nothing was guessed for this answer. ",
      el("span", { class: "tokens" }, el("span", { class: "ok" }, "right"), " ", el("del", {}, "wrong"))), out);
  }

  async tellEngine() {
    const last = this.path().pop();
    if (!last || last.role !== "assistant" || !this.page.engine.shown || last.state === "writing") return;
    const h = await this.how(last);
    if (h && this.leaf === last.id) this.page.engine.answer(h);
  }

  // ---- an answer that is being written

  async follow(node) {
    const abort = new AbortController(), live = this.live = { abort, node: node.id };
    node.content = "";
    node.thinking = "";
    let ended = false, drawn = 0, timer = 0;
    const draw = () => {
      timer = 0;
      drawn = performance.now();
      const near = this.atEnd(), v = this.shown.get(node.id);
      if (v && this.live === live) { v.key = ""; this.view(node); }
      if (near) this.log.scrollTop = this.log.scrollHeight;
    };
    const soon = () => { if (!timer) timer = setTimeout(draw, Math.max(0, 45 + node.content.length / 200 - (performance.now() - drawn))); };
    this.page.updateHead();
    this.page.say("The answer is being written.");
    for (let tries = 0; !ended && tries < 20 && !abort.signal.aborted; tries++) {
      try {
        node.content = "";
        node.thinking = "";
        for await (const v of events(`/page/talks/${this.id}/answers/${node.id}`, abort.signal)) {
          if (v.type === "content") node.content += v.text;
          else if (v.type === "thinking") node.thinking += v.text;
          else if (v.type === "steps") { node.steps = v.steps; node.content = node.thinking = ""; }
          else if (v.type === "progress") this.progress(node, v);
          else if (v.type === "end") { ended = true; if (v.node) Object.assign(node, v.node); else node.state = "done"; }
          soon();
        }
      } catch (e) {
        if (e.name === "AbortError") break;
        if (e.status === 404) { ended = true; await this.reread(); break; }
        this.page.failed(e);
      }
      if (!ended) await new Promise((f) => setTimeout(f, Math.min(500 * (tries + 1), 4000)));
    }
    clearTimeout(timer);
    if (this.closed) return;
    this.live = null;
    draw();
    this.shown.forEach((v) => { v.key = ""; });
    this.render();
    this.page.say(node.state === "failed" ? "The answer failed." : "The answer is complete: " + node.content.slice(0, 2000));
    this.page.updateHead();
  }

  // The server began anew while an answer was written: what it kept is shown.
  async reread() { this.read(await call("GET", "/page/talks/" + this.id)); }

  progress(node, p) {
    node.stats = p;
    node.waiting = p.state === "waiting" ? "Waiting for its turn…" : p.state === "reading" ? `Reading ${(p.prompt_tokens - p.cached_tokens).toLocaleString("en")} tokens…` : "Writing…";
    const v = this.shown.get(node.id);
    if (v && v.stats && p.tokens) v.stats.textContent = this.statsOf(node);
    if (v && v.drafts) this.how(node).then((h) => { v.how = h; v.key = ""; });
    this.page.engine.progress(p);
    this.page.updateHead();
  }

  asMarkdown() {
    const who = { user: "You", assistant: "tern", system: "Instructions" }, parts = ["# " + (this.title || "Conversation")];
    if (this.settings.system) parts.push("## Instructions\n\n" + this.settings.system);
    for (const n of this.path()) {
      parts.push("## " + who[n.role] + "\n\n" + (n.images || []).map((url, i) => `![Picture ${i + 1}](${url})\n\n`).join("") + this.page.tools.asMarkdown(n) + n.content);
      if (n.sources && n.sources.length) parts.push("Sources:\n\n" + n.sources.map((s, i) => `${i + 1}. ${s.title}`).join("\n"));
    }
    return parts.join("\n\n") + "\n";
  }
}
