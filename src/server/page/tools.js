// Tools of MCP servers that the server was started with: whether answers may call them, and each call as a card that asks.
import { call } from "./api.js";
import { el } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const STATES = { asked: "would like to be called", running: "is running…", done: "was called", failed: "failed", refused: "was refused" };

// Control characters, marks of direction and what nobody sees, as what they are: nobody is to allow what he did not read.
const plainly = (text) => text.replace(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\u{e0000}-\u{e007f}]/gu, (c) => c.codePointAt(0) > 0xffff ? `\\u{${c.codePointAt(0).toString(16)}}` : "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

// JSON with a line for each member. Everything else is as it was written: numbers, escapes, keys that come twice.
function pretty(text) {
  try { JSON.parse(text); } catch { return plainly(text); }
  let out = "", depth = 0;
  for (const [part] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{[]\s*[}\]]|[{}[\],:]|[^\s"{}[\],:]+/g)) {
    const line = () => "\n" + "  ".repeat(depth);
    if (part === "{" || part === "[") out += part + (depth++, line());
    else if (part === "}" || part === "]") out += (depth--, line()) + part;
    else out += part === "," ? part + line() : part === ":" ? ": " : part;
  }
  return plainly(out);
}

export class Tools {
  constructor(page) { Object.assign(this, { page, list: [], use: localStorage.getItem("tern-tools") === "on", key: "" }); }

  show() {
    this.list = (this.page.state && this.page.state.tools) || [];
    const key = JSON.stringify(this.list), names = [...new Set(this.list.map((t) => t.server))].map(plainly);
    if (key === this.key) return;
    this.key = key;
    $("tools").hidden = !this.list.length;
    if (!this.list.length) return;
    const use = el("input", { type: "checkbox", id: "use-tools" });
    use.checked = this.use;
    use.addEventListener("change", () => { this.use = use.checked; localStorage.setItem("tern-tools", use.checked ? "on" : ""); this.tell(); });
    this.tell();
    $("tools").replaceChildren(el("label", {}, use, `Tools of ${names.join(", ")} may be used`),
      el("details", { class: "popup" }, el("summary", { "aria-label": "Which tools there are" }, `${this.list.length}`), el("ul", { class: "list" }, ...this.list.map((t) =>
        el("li", {}, el("strong", {}, plainly(`${t.server}.${t.tool}`)), t.allowed ? " (never asks)" : "", t.description ? el("small", { dir: "auto" }, plainly(t.description.split("\n")[0].slice(0, 160))) : null)))));
  }

  // A tool is a program of the user's, which may do what it likes.
  tell() { $("stays").textContent = this.use ? "Tools are programs of yours, and may ask elsewhere." : "Everything stays on this machine."; }

  // What the next question carries.
  wanted() { return this.use && this.list.length ? { tools: true } : {}; }

  // What an answer said and called before its last words. open: the cards whose result is shown.
  stepsOf(talk, node, markdown) {
    return (node.steps || []).flatMap((s) => [...(s.content ? [el("div", { class: "body" }, ...markdown(s.content))] : []), ...s.calls.map((c) => this.card(talk, node, c))]);
  }

  asMarkdown(node) {
    return (node.steps || []).map((s) => (s.content ? s.content + "\n\n" : "") + s.calls.map((c) => `> \`${c.server ? `${c.server}.${c.tool}` : c.name}\` ${STATES[c.state] || c.state}: \`${c.arguments}\`\n\n`).join("")).join("");
  }

  card(talk, node, c) {
    const name = plainly(c.server ? `${c.server}.${c.tool}` : c.name), asks = c.state === "asked" && node.state === "writing";
    const decide = (allow) => async () => {
      try { await call("POST", `/page/talks/${talk.id}/answers/${node.id}/calls/${c.id}`, { allow }); } catch (e) { this.page.failed(e); }
    };
    const button = (text, allow, kind = "") => el("button", { type: "button", class: kind, on: { click: decide(allow) } }, text);
    const state = c.state === "asked" && !asks ? "was not decided" : STATES[c.state] || c.state;
    if (asks && !c.told) { c.told = true; this.page.say(`The tool ${name} would like to be called. Allow it, or refuse it.`); }
    return el("div", { class: "call " + c.state, role: "group", "aria-label": "Call of " + name }, el("p", {}, el("strong", {}, name), " ", state),
      el("pre", { tabindex: "0", "aria-label": "Arguments" }, pretty(c.arguments)),
      asks ? el("div", { class: "buttons" }, button("Allow once", "once", "primary"), button("Always in this conversation", "always"), button("Refuse", "no")) : null,
      c.result && c.state !== "refused" ? el("details", {}, el("summary", {}, "What it said"), el("pre", { tabindex: "0", "aria-label": "Result", dir: "auto" }, plainly(c.result))) : null);
  }
}
