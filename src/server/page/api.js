// What the page asks of its server. Replies are JSON; streams are server-sent events, read by fetch so that a key can go along.
let key = sessionStorage.getItem("tern-key") || "";
let askForKey = async () => "", asking = null; // the question that stands; one for all requests that want a key

export function onKeyNeeded(f) { askForKey = f; }

export class Failed extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

async function request(method, path, body, signal, raw) {
  const headers = {}, sent = key;
  if (sent) headers.Authorization = "Bearer " + sent;
  if (body !== undefined && !raw) headers["Content-Type"] = "application/json";
  let r;
  try {
    r = await fetch(path, { method, headers, signal, body: raw ? body : body === undefined ? undefined : JSON.stringify(body) });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Failed("The server does not answer.", 0);
  }
  if (r.status === 401) {
    if (sent === key) { // else another was given meanwhile
      asking = asking || askForKey(Boolean(key)).finally(() => { asking = null; });
      key = await asking;
      if (!key) throw new Failed("The server wants a key.", 401);
      sessionStorage.setItem("tern-key", key);
    }
    return request(method, path, body, signal, raw);
  }
  if (r.ok) return r;
  const text = await r.text();
  let message = text.slice(0, 300) || "status " + r.status;
  try { message = JSON.parse(text).error.message; } catch { /* not JSON: the text itself */ }
  throw new Failed(message, r.status);
}

export async function call(method, path, body) { return (await request(method, path, body)).json(); }
export async function text(path) { return (await request("GET", path)).text(); }
export async function upload(path, blob) { return (await request("POST", path, blob, undefined, true)).json(); }

// The events of a stream as values, until it ends or `signal` is aborted.
export async function* events(path, signal) {
  const reader = (await request("GET", path, undefined, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const p of parts) if (p.startsWith("data: ")) yield JSON.parse(p.slice(6));
  }
}
