// Conversations of other programs, and tern's own, from a file: what the server is given of each is {title, leaf, nodes}.

const TITLE = 60, WORDS = 1 << 20;

// Neighbours of one side become one message, because questions and answers alternate; what is neither is left out.
function chain(messages, title) {
  const nodes = [];
  for (const m of messages) {
    const role = m.role === "human" ? "user" : m.role === "model" ? "assistant" : m.role, text = wordsOf(m.content !== undefined ? m.content : m.text).trim();
    if ((role !== "user" && role !== "assistant") || !text) continue;
    const last = nodes[nodes.length - 1];
    if (last && last.role === role) last.content = (last.content + "\n\n" + text).slice(0, WORDS);
    else if (last || role === "user") nodes.push({ id: nodes.length + 1, parent: nodes.length, role, content: text.slice(0, WORDS) });
  }
  return nodes.length ? { title: titleOf(title, nodes), nodes, leaf: nodes.length } : null;
}

const wordsOf = (c) => (typeof c === "string" ? c : Array.isArray(c) ? c.map((p) => (typeof p === "string" ? p : (p && p.text) || "")).filter(Boolean).join("\n") : c && c.parts ? wordsOf(c.parts) : c && typeof c.text === "string" ? c.text : "");
const titleOf = (title, nodes) => (typeof title === "string" && title.trim() ? title : nodes[0].content.split("\n")[0]).slice(0, TITLE);

// ChatGPT's export: a tree of messages, of which the branch is taken that was shown last.
function ofMapping(v) {
  const out = [], seen = new Set();
  let at = v.current_node && v.mapping[v.current_node] ? v.current_node : Object.keys(v.mapping).find((k) => !((v.mapping[k].children || []).length));
  for (; at && v.mapping[at] && !seen.has(at); at = v.mapping[at].parent) {
    seen.add(at);
    const m = v.mapping[at].message;
    if (m && m.author) out.unshift({ role: m.author.role, content: m.content });
  }
  return chain(out, v.title);
}

function one(v) {
  if (!v || typeof v !== "object") return null;
  if (Array.isArray(v.nodes)) { // tern's own, with its branches; numbers that are left out leave no gap that matters
    return { title: titleOf(v.title, v.nodes.length ? v.nodes : [{ content: "" }]), leaf: v.leaf, settings: v.settings && typeof v.settings === "object" ? v.settings : undefined,
      nodes: v.nodes.map(({ id, parent, role, content, thinking, created }) => ({ id, parent, role, content, thinking, created })) };
  }
  if (v.mapping && typeof v.mapping === "object") return ofMapping(v);
  for (const key of ["messages", "chat_messages", "conversation", "conversations", "turns"]) {
    if (!Array.isArray(v[key])) continue;
    if (v[key].length && v[key].every((x) => x && (x.role || x.sender || x.from))) return chain(v[key].map((x) => ({ ...x, role: x.role || x.sender || { gpt: "assistant" }[x.from] || x.from, content: x.content || x.text || x.value })), v.title || v.name);
  }
  return null;
}

// What a file holds: one conversation, a list of them, messages alone, or a conversation a line.
export function conversations(text) {
  let v;
  try { v = JSON.parse(text); } catch { v = text.split("\n").filter((l) => l.trim()).map((l) => JSON.parse(l)); }
  if (Array.isArray(v) && v.length && v.every((x) => x && typeof x.role === "string")) return [chain(v, "")].filter(Boolean);
  if (v && !Array.isArray(v) && Array.isArray(v.conversations) && !v.conversations.every((x) => x && (x.role || x.from))) v = v.conversations;
  return (Array.isArray(v) ? v : [v]).map(one).filter(Boolean);
}
