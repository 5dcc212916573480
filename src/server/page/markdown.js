// Markdown as elements. Text becomes text nodes and nothing else: no markup of a model or a document is ever parsed as HTML.

import { math } from "./math.js";

export function el(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (k === "on") for (const [event, f] of Object.entries(v)) e.addEventListener(event, f);
    else if (k === "class") e.className = v;
    else if (v === true) e.setAttribute(k, "");
    else if (v !== false && v !== undefined && v !== null) e.setAttribute(k, v);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

const DEPTH = 12;
const SAFE = /^(https?:\/\/|mailto:)/i;

// ---- within a line

function link(label, url, depth) {
  let safe = null;
  try { safe = SAFE.test(url) ? new URL(url).href : null; } catch { /* no address: its words stay */ }
  if (!safe) return el("span", {}, ...inline(label, depth + 1));
  return el("a", { href: safe, rel: "noopener noreferrer nofollow", target: "_blank", title: safe }, ...inline(label, depth + 1));
}

const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const wordy = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);

function marked(s, i, depth, missing) {
  for (const [mark, tag] of MARKS) {
    if (!s.startsWith(mark, i) || missing.has(mark)) continue;
    const from = i + mark.length;
    if (/\s/.test(s[from] || " ") || (mark[0] === "_" && wordy(s[i - 1]))) continue;
    for (let end = s.indexOf(mark, from + 1), tries = 0; ; end = s.indexOf(mark, end + 1)) {
      if (end < 0 || ++tries > 50) { missing.add(mark); break; }
      if (/\s/.test(s[end - 1]) || (mark[0] === "_" && wordy(s[end + mark.length]))) continue;
      return { node: el(tag, {}, ...inline(s.slice(from, end), depth + 1)), to: end + mark.length };
    }
  }
  return null;
}

function bracketed(s, i, depth) {
  const image = s[i] === "!", from = image ? i + 2 : i + 1;
  let level = 1, end = from;
  for (; end < s.length && end - from < 2000; end++) {
    if (s[end] === "\\") end++;
    else if (s[end] === "[") level++;
    else if (s[end] === "]" && !--level) break;
  }
  if (level || s[end + 1] !== "(") return null;
  const close = s.indexOf(")", end);
  if (close < 0 || close - end > 2000) return null;
  const url = s.slice(end + 2, close).trim().split(/\s/)[0].replace(/^<|>$/g, "");
  return { node: link(s.slice(from, end) || url, url, depth), to: close + 1 }; // pictures are links too: nothing is loaded
}

// Mathematics between its marks: $...$ where it looks like some (no space inside, no figure behind: prices are none), $$...$$, \(...\), \[...\].
const MATH = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];
function formula(s, i) {
  for (const [open, close, block] of MATH) {
    if (!s.startsWith(open, i)) continue;
    const from = i + open.length;
    let end = from;
    for (; end < s.length && end - from <= 4000; end++) {
      if (s.startsWith(close, end)) break;
      if (s[end] === "\\") end++;
      else if (open === "$" && s[end] === "\n") return null;
    }
    if (!s.startsWith(close, end) || end === from) return null;
    const source = s.slice(from, end);
    if (open === "$" && (/`|^\s|\s$/.test(source) || /\d/.test(s[end + 1] || ""))) return null;
    const shown = math(source, block);
    return { node: shown ? (block ? el("span", { class: "formula", tabindex: "0", role: "group", "aria-label": "Formula" }, shown) : shown) : el("code", { class: "tex", dir: "ltr" }, s.slice(i, end + close.length)), to: end + close.length };
  }
  return null;
}

export function inline(s, depth = 0) {
  const out = [], missing = new Set();
  let plain = "";
  const flush = () => { if (plain) out.push(plain); plain = ""; };
  if (depth > DEPTH) return [s];
  for (let i = 0; i < s.length;) {
    const c = s[i];
    let hit = c === "$" || (c === "\\" && (s[i + 1] === "(" || s[i + 1] === "[")) ? formula(s, i) : null;
    if (hit) { flush(); out.push(hit.node); i = hit.to; continue; }
    if (c === "\\" && /[\\`*_{}[\]()#+\-.!~|>]/.test(s[i + 1] || "")) { plain += s[i + 1]; i += 2; continue; }
    if (c === "`") {
      const ticks = /^`+/.exec(s.slice(i, i + 20))[0], end = missing.has(ticks) ? -1 : s.indexOf(ticks, i + ticks.length);
      if (end > 0) hit = { node: el("code", {}, s.slice(i + ticks.length, end).replace(/^ (.*) $/, "$1")), to: end + ticks.length };
      else { missing.add(ticks); plain += ticks; i += ticks.length; continue; }
    } else if (c === "*" || c === "_" || c === "~") hit = marked(s, i, depth, missing);
    else if (c === "[" || (c === "!" && s[i + 1] === "[")) hit = bracketed(s, i, depth);
    else if (c === "h" && !wordy(s[i - 1])) {
      const m = /^https?:\/\/[^\s<>"'`)\]]+[^\s<>"'`)\].,;:!?]/.exec(s.slice(i, i + 2000));
      if (m) hit = { node: link(m[0].replace(/[_*~`[\]]/g, "\\$&"), m[0], depth + 1), to: i + m[0].length };
    } else if (c === "\n") hit = { node: el("br"), to: i + 1 };
    if (!hit) { plain += c; i++; continue; }
    flush();
    out.push(hit.node);
    i = hit.to;
  }
  flush();
  return out;
}

// ---- code

const WORDS = new Set(("abstract and as assert async await auto bool boolean break case catch char class const continue def default defer del delete do double elif else enum " +
  "except export extends extern false final finally float fn for from func function global if impl implements import in include inline int interface is lambda let long loop " +
  "match mod mut namespace new nil None not null or package pass print private protected pub public raise return self short signed sizeof static struct super switch template this " +
  "throw trait True False true try type typedef typeof undefined union unsigned use using var virtual void volatile where while with yield SELECT FROM WHERE INSERT UPDATE echo then fi done").split(" "));
const PIECE = /(\/\/[^\n]*|\/\*[\s\S]{0,20000}?\*\/|#[^\n]*|--[^\n]*)|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)|(\b\d[\w.]*)|([A-Za-z_]\w*)|([\s\S])/g;

function coloured(code, lang) {
  if (code.length > 40000 || /^(text|txt|plain|output|console|markdown|md|)$/.test(lang)) return [code];
  const out = [], hash = /^(py|python|sh|bash|shell|rb|ruby|yaml|yml|toml|make|makefile|perl|r|cmake)$/.test(lang), dash = /^(sql|lua|haskell|hs)$/.test(lang);
  for (const m of code.matchAll(PIECE)) {
    const note = m[1] && !(m[1][0] === "#" && !hash) && !(m[1][0] === "-" && !dash) && !(m[1][0] === "/" && hash);
    const kind = note ? "k-note" : m[2] ? "k-text" : m[3] ? "k-number" : m[4] && WORDS.has(m[4]) ? "k-word" : "";
    const last = out[out.length - 1];
    if (kind) out.push(el("span", { class: kind }, m[0]));
    else if (typeof last === "string") out[out.length - 1] = last + m[0];
    else out.push(m[0]);
  }
  return out;
}

function codeBlock(code, lang) {
  const copy = el("button", { type: "button", "aria-label": "Copy this code" }, "Copy");
  copy.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(code); copy.textContent = "Copied"; } catch { copy.textContent = "Cannot copy"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return el("div", { class: "block" }, el("div", { class: "head" }, el("span", {}, lang || "text"), copy),
    el("pre", { tabindex: "0", dir: "ltr" }, el("code", {}, ...coloured(code, lang.toLowerCase()))));
}

// ---- blocks

// Marks of lists, borders of quotations and columns of tables stand where the words begin. (dir="auto" does not look into children with a dir of their own.)
const RIGHT = /^[^\p{L}]*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u;
function sided(e) {
  if (RIGHT.test(e.textContent.slice(0, 500))) e.setAttribute("dir", "rtl");
  return e;
}

const LIST = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const FENCE = /^(\s{0,3})(`{3,}|~{3,})([^`]*)$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const HEAD = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const aligned = (rule) => cells(rule).map((c) => (/^:-*:$/.test(c) ? "centre" : /:$/.test(c) ? "end" : ""));
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((c) => c.trim());

function fenced(lines, i, m) {
  const code = [];
  let j = i + 1;
  for (; j < lines.length; j++) {
    const end = /^\s{0,3}(`{3,}|~{3,})\s*$/.exec(lines[j]);
    if (end && end[1][0] === m[2][0] && end[1].length >= m[2].length) break;
    code.push(lines[j].startsWith(m[1]) ? lines[j].slice(m[1].length) : lines[j]);
  }
  return { node: codeBlock(code.join("\n"), m[3].trim().split(/\s/)[0].slice(0, 30)), to: j + 1 };
}

function list(lines, i, depth) {
  const first = LIST.exec(lines[i]), ordered = /\d/.test(first[2]), out = el(ordered ? "ol" : "ul", {});
  const start = ordered ? parseInt(first[2], 10) : 1;
  if (start !== 1) out.setAttribute("start", String(start));
  let j = i;
  while (j < lines.length) {
    const m = LIST.exec(lines[j]);
    if (!m || m[1].length !== first[1].length || /\d/.test(m[2]) !== ordered) break;
    const task = /^\[([ xX])\]\s+(.*)$/.exec(m[4]), indent = m[1].length + m[2].length + Math.min(m[3].length, 4), item = [task ? task[2] : m[4]];
    for (j++; j < lines.length; j++) {
      const line = lines[j], space = /^\s*/.exec(line)[0].length;
      if (!line.trim()) {
        const next = lines[j + 1];
        if (next === undefined || (/^\s*/.exec(next)[0].length < indent && !LIST.test(next))) break;
        item.push("");
      } else if (space >= Math.min(indent, m[1].length + 2)) item.push(line.slice(Math.min(space, indent)));
      else if (LIST.test(line) || FENCE.test(line) || HEAD.test(line) || !item[item.length - 1].trim()) break;
      else item.push(line.trim());
    }
    while (j < lines.length && !lines[j].trim() && LIST.test(lines[j + 1] || "")) j++;
    const tight = blocks(item, depth + 1);
    const box = task && el("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": task[1] === " " ? "To do" : "Done" });
    out.append(el("li", { dir: "auto", class: task ? "task" : undefined }, box, ...tight.flatMap((n) => (n.nodeName === "P" && tight.length <= 2 ? [...n.childNodes] : [n]))));
  }
  return { node: sided(out), to: j };
}

function table(lines, i) {
  const head = cells(lines[i]);
  let j = i + 2;
  const body = [];
  for (; j < lines.length && lines[j].includes("|") && lines[j].trim(); j++) body.push(cells(lines[j]));
  const side = aligned(lines[i + 1]), cell = (tag, c, k) => el(tag, { dir: "auto", class: side[k] || undefined, scope: tag === "th" ? "col" : undefined }, ...inline(c));
  const shown = el("table", {}, el("thead", {}, el("tr", {}, ...head.map((c, k) => cell("th", c, k)))),
    el("tbody", {}, ...body.map((r) => el("tr", {}, ...head.map((_, k) => cell("td", r[k] || "", k))))));
  return { node: sided(el("div", { class: "wide-table", tabindex: "0", role: "group", "aria-label": "Table" }, shown)), to: j };
}

// Headings of a text stand below that of its message (h2), and none is left out, whatever number the text begins with.
let above = [];
function levelOf(n) {
  while (above.length && above[above.length - 1] >= n) above.pop();
  above.push(n);
  return Math.min(6, 2 + above.length);
}

function special(lines, i, depth) {
  const line = lines[i];
  let m;
  if ((m = FENCE.exec(line))) return fenced(lines, i, m);
  if ((m = HEAD.exec(line))) return { node: el("h" + levelOf(m[1].length), { dir: "auto" }, ...inline(m[2])), to: i + 1 };
  if (RULE.test(line)) return { node: el("hr"), to: i + 1 };
  if ((m = /^\s{0,3}(\$\$|\\\[)/.exec(line))) {
    const close = m[1] === "$$" ? "$$" : "\\]";
    for (let j = i, text = ""; j < lines.length && j - i < 60; j++) {
      text += (j > i ? "\n" : "") + lines[j].trim();
      const hit = text.indexOf(close, 2) === text.length - 2 && text.length > 4 ? formula(text, 0) : null;
      if (hit) return { node: el("p", {}, hit.node), to: j + 1 };
      if (text.indexOf(close, 2) >= 0) break;
    }
  }
  if (depth < DEPTH && /^\s{0,3}>/.test(line)) {
    let j = i;
    const inner = [];
    for (; j < lines.length && /^\s{0,3}>/.test(lines[j]); j++) inner.push(lines[j].replace(/^\s{0,3}> ?/, ""));
    return { node: sided(el("blockquote", {}, ...blocks(inner, depth + 1))), to: j };
  }
  if (depth < DEPTH && LIST.test(line)) return list(lines, i, depth);
  const next = (lines[i + 1] || "").trim(); // a long line is no rule of a table: the expression looks at spaces again and again
  if (line.includes("|") && next.length < 2000 && next.includes("-") && /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/.test(next)) return table(lines, i);
  return null;
}

function blocks(lines, depth) {
  const out = [];
  let text = [];
  const flush = () => { if (text.length) out.push(el("p", { dir: "auto" }, ...inline(text.join("\n")))); text = []; };
  for (let i = 0; i < lines.length;) {
    if (!lines[i].trim()) { flush(); i++; continue; }
    const hit = special(lines, i, depth);
    if (!hit) { text.push(lines[i].trimEnd()); i++; continue; }
    flush();
    out.push(hit.node);
    i = hit.to;
  }
  flush();
  return out;
}

export function markdown(text) {
  above = [];
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}
