// Documents that answers may use: dropped in, listed, asked; and the passages that an answer was given.
import { call, upload } from "./api.js";
import { el } from "./markdown.js";
import { isPicture } from "./pictures.js";

const $ = (id) => document.getElementById(id), LARGEST = 8 << 20;

export class Documents {
  constructor(page) {
    Object.assign(this, { page, list: [], others: 0, busy: [], use: localStorage.getItem("tern-documents") === "on" });
    $("attach").addEventListener("click", () => $("files").click());
    $("files").addEventListener("change", () => { this.add([...$("files").files]); $("files").value = ""; });
    const main = $("main");
    main.addEventListener("dragover", (e) => { if ([...e.dataTransfer.types].includes("Files")) { e.preventDefault(); main.classList.add("dropping"); } });
    main.addEventListener("dragleave", (e) => { if (!main.contains(e.relatedTarget)) main.classList.remove("dropping"); });
    main.addEventListener("drop", (e) => { e.preventDefault(); main.classList.remove("dropping"); this.sort([...e.dataTransfer.files]); });
    $("box").addEventListener("paste", (e) => { if (e.clipboardData.files.length) { e.preventDefault(); this.sort([...e.clipboardData.files]); } });
  }

  async load() {
    const can = Boolean(this.page.state && this.page.state.documents);
    $("attach").hidden = !can;
    if (!can) return;
    try {
      const v = await call("GET", "/page/documents");
      this.list = v.documents;
      this.others = v.others;
    } catch (e) { this.page.failed(e); }
    this.show();
  }

  // What the next question carries.
  wanted() { return this.use && (this.list.length || this.others) ? { documents: true } : {}; }

  // Pictures go with the question, everything else is read.
  sort(files) {
    const seen = files.filter(isPicture), read = files.filter((f) => !isPicture(f));
    if (seen.length) this.page.pictures.add(seen);
    if (read.length) this.add(read);
  }

  async add(files) {
    for (const f of files) {
      const one = { title: f.name };
      if (f.size > LARGEST) { one.failed = "It has more than 8 MiB."; this.busy.push(one); this.show(); continue; }
      this.busy.push(one);
      this.show();
      try {
        const d = await upload("/page/documents?name=" + encodeURIComponent(f.name), f);
        this.busy.splice(this.busy.indexOf(one), 1);
        this.list.push(d);
        this.turn(true);
        this.page.say(`${d.title} was read: ${d.passages} passages.`);
      } catch (e) {
        one.failed = e.message;
        this.page.say(`${f.name} could not be added: ${e.message}`);
      }
      this.show();
    }
  }

  turn(on) {
    this.use = on;
    localStorage.setItem("tern-documents", on ? "on" : "");
  }

  async remove(d) {
    try { await call("DELETE", "/page/documents/" + d.id); } catch (e) { this.page.failed(e); return; }
    this.list = this.list.filter((x) => x !== d);
    this.page.say(d.title + " is erased.");
    this.show();
    $("box").focus();
  }

  show() {
    const all = this.list.length + this.others, out = [];
    if (all) {
      const use = el("input", { type: "checkbox", id: "use-docs" });
      use.checked = this.use;
      use.addEventListener("change", () => this.turn(use.checked));
      out.push(el("li", { class: "use" }, el("label", {}, use, all === 1 ? "Answer from the document" : `Answer from ${all} documents`)));
    }
    for (const d of this.list.slice(-12)) out.push(el("li", { title: `${d.passages} passages` }, el("span", {}, d.title),
      el("button", { type: "button", "aria-label": "Erase " + d.title, title: "Erase it", on: { click: () => this.remove(d) } }, "✕")));
    for (const b of this.busy) out.push(el("li", { class: b.failed ? "failed" : "", title: b.failed || "" }, el("span", {}, b.failed ? `${b.title}: ${b.failed}` : b.title + " is being read…"),
      b.failed ? el("button", { type: "button", "aria-label": "Dismiss " + b.title, on: { click: () => { this.busy.splice(this.busy.indexOf(b), 1); this.show(); } } }, "✕") : null));
    $("docs").hidden = !out.length;
    $("docs").replaceChildren(...out);
  }

  sourcesOf(node) {
    const n = node.sources.length;
    return el("details", { class: "sources" }, el("summary", {}, n === 1 ? "1 passage of your documents was read" : `${n} passages of your documents were read`),
      el("ol", {}, ...node.sources.map((s) => el("li", {}, el("strong", {}, s.title), s.number ? ` (passage ${s.number})` : "", el("blockquote", {}, s.text)))));
  }
}
