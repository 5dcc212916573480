// tern: language models on your own machine. index.d.ts says what there is; docs/guide/node.md shows it.
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { Handle, Struct, TernError, address, call, callback, constants, copied, counted, int, later, lib, string, text, utf8 } from "./library.js";

export { TernError };
export const version = () => lib.tern_version();

const REASONS = ["length", "end", "stop", "closed", "context"];

/** A tern_options: parameters by name; nPredict and n_predict are n-predict. */
function optionsOf(values) {
  const options = new Handle(lib.tern_options_free);
  call(lib.tern_options_new, options.place);
  try {
    for (const [name, value] of Object.entries(values)) {
      if (value === undefined) continue;
      const dashed = name.replace(/_/g, "-").replace(/[A-Z]/g, (c) => "-" + c.toLowerCase());
      call(lib.tern_options_set, options.pointer, dashed, typeof value === "boolean" ? (value ? "on" : "off") : String(value));
    }
  } catch (e) {
    options.close();
    throw e;
  }
  return options;
}

/** [tern_session_options, tern_generate_options] of options; without a seed every answer is another. */
function answerOf(options, given) {
  const session = new Struct("tern_session_options");
  const generate = new Struct("tern_generate_options");
  call(lib.tern_options_answer_sized, options.pointer, session.buffer, session.size, generate.buffer, generate.size);
  if (given.seed === undefined) {
    const { sampling } = generate.type.members;
    randomBytes(8).copy(generate.buffer, sampling.offset + sampling.type.members.seed.offset);
  }
  return [session, generate];
}

const idOf = (id) => int(id, "a token id");
const idsOf = (model, prompt) => (typeof prompt === "string" ? model.tokenize(prompt) : Int32Array.from(Array.from(prompt, idOf)));

/** One text over a model. One call at a time; cancel() may come during one. */
export class Session {
  constructor(model, options) {
    this.model = model;
    this.given = options;
    this.handle = new Handle(lib.tern_session_close);
    this.busy = false;
    this.asked = false;
    const o = optionsOf(options);
    try {
      call(lib.tern_session_open, model.pointer, answerOf(o, options)[0].buffer, this.handle.place);
    } finally {
      o.close();
    }
    this.nVocab = model.info.n_vocab;
    model.sessions.add(this);
  }
  /** A cancel that came too late for the call before is not for this one. */
  async run(f, ...args) {
    for (;;) {
      try {
        return await later(f, this.handle.pointer, ...args);
      } catch (e) {
        if (e.status !== constants.TERN_E_CANCELLED || this.asked) throw e;
      }
    }
  }
  async alone(work) {
    if (this.busy) throw new Error("the session is at work: await what it does first");
    this.busy = true;
    this.asked = false;
    try {
      return await work();
    } finally {
      this.busy = false;
    }
  }
  async prefill(prompt) {
    const ids = idsOf(this.model, prompt);
    await this.alone(() => this.run(lib.tern_session_prefill, ids, ids.length));
  }
  async step(token) {
    idOf(token);
    return this.alone(() => this.run(lib.tern_session_step, token));
  }
  /** The pieces of an answer behind the text, or behind a prompt. */
  /** The prompt of a conversation with pictures, for generate; what is not known of them is encoded. */
  async look(messages, options = {}) {
    const c = this.model.chatOptions(messages, options), pixels = [];
    try {
      for (const image of imagesOf(messages)) pixels.push(pixelsOf(image));
      const all = Buffer.concat(pixels.map((p) => p.c.buffer)), ids = new Int32Array(this.capacity), n = Buffer.alloc(8);
      await this.alone(() => this.run(lib.tern_session_look, null, 0, c.buffer, all, pixels.length, ids, ids.length, n));
      return ids.slice(0, Number(n.readBigUInt64LE()));
    } finally {
      for (const p of pixels) p.free();
    }
  }
  async *generate(prompt = null, { schema, grammar, stop = [], signal, onEnd, ...options } = {}) {
    signal?.throwIfAborted();
    const given = { ...this.given, ...options };
    const o = optionsOf(given);
    const pieces = [];
    let wake = () => {}, stopped = false, ended = false, failure = null;
    const onToken = callback("tern_generate_options_on_token", (_user, _token, piece, n) => {
      if (n) pieces.push(utf8(piece, n));
      wake();
      return !stopped;
    });
    const abort = () => {
      stopped = true;
      this.cancel();
    };
    let work = Promise.resolve();
    try {
      const [, c] = answerOf(o, given);
      c.set("on_token", onToken.pointer);
      if (schema !== undefined) c.set("json_schema", typeof schema === "string" ? schema : JSON.stringify(schema));
      if (grammar !== undefined) c.set("grammar", grammar);
      const stops = Buffer.alloc(8 * (stop.length + 1));
      const texts = stop.map((s) => text(s));
      texts.forEach((t, i) => stops.writeBigUInt64LE(address(t), 8 * i));
      if (stop.length) c.set("stop", stops);
      const result = new Struct("tern_generate_result");
      const ids = prompt === null ? null : idsOf(this.model, prompt);
      signal?.addEventListener("abort", abort);
      work = this.alone(async () => {
        if (ids) await this.run(lib.tern_session_prefill, ids, ids.length);
        if (!stopped) await this.run(lib.tern_session_generate, c.buffer, result.buffer);
      })
        .catch((e) => (failure = e))
        .finally(() => {
          ended = true;
          wake();
        });
      while (!ended || pieces.length) {
        if (pieces.length) yield pieces.shift();
        else await new Promise((resolve) => (wake = resolve));
      }
      signal?.throwIfAborted();
      if (failure) throw failure;
      onEnd?.({ reason: REASONS[result.get("reason")], nTokens: result.get("n_tokens"), kept: texts.length });
    } finally {
      stopped = true;
      if (!ended) this.cancel();
      await work;
      signal?.removeEventListener("abort", abort);
      onToken.free();
      o.close();
    }
  }
  /** Ends what runs: its promise fails with a TernError whose name is AbortError. */
  cancel() {
    this.asked = true;
    lib.tern_session_cancel(this.handle.pointer);
  }
  /** What another thread is writing is neither read nor copied. */
  resting() {
    if (this.busy) throw new Error("the session is at work: await what it does first");
  }
  /** Logits after the last token, copied. */
  get logits() {
    this.resting();
    return copied(lib.tern_session_logits(this.handle.pointer), this.nVocab, Float32Array);
  }
  /** The k likeliest next tokens: [{ token, logprob }], likeliest first. */
  likeliest(k) {
    this.resting();
    int(k, "k", 2 ** 31 - 1);
    const most = Math.min(k, this.nVocab), ids = new Int32Array(most), logprobs = new Float32Array(most);
    const n = Number(lib.tern_session_likeliest(this.handle.pointer, most, ids, logprobs));
    return Array.from({ length: n }, (_, i) => ({ token: ids[i], logprob: logprobs[i] }));
  }
  /** What the session did, counted, by name. */
  get counters() {
    this.resting();
    const value = new Float64Array(1), all = {};
    for (let i = 0, name; (name = lib.tern_session_counter(this.handle.pointer, i, value)); i++) all[name] = value[0];
    return all;
  }
  get tokens() {
    this.resting();
    return copied(lib.tern_session_tokens(this.handle.pointer), this.length, Int32Array) ?? new Int32Array(0);
  }
  get capacity() {
    return lib.tern_session_capacity(this.handle.pointer);
  }
  get length() {
    return Number(lib.tern_session_length(this.handle.pointer));
  }
  async truncate(n) {
    int(n, "n", Number.MAX_SAFE_INTEGER);
    return this.alone(() => this.run(lib.tern_session_truncate, n));
  }
  save(path) {
    return this.alone(() => this.run(lib.tern_session_save, path));
  }
  load(path) {
    return this.alone(() => this.run(lib.tern_session_load, path));
  }
  close() {
    if (this.busy) throw new Error("the session is at work: await what it does first");
    this.handle.close();
    this.model.sessions.delete(this);
    this.model.end();
  }
}

/** A message whose content is a list of parts, as OpenAI's API has them, with their text: a line each, the assistant's without a break. */
function joined(message) {
  if (!Array.isArray(message?.content)) return message;
  if (message.content.some((p) => p?.type === "image")) return { ...message, content: message.content.map(({ image, ...p }) => p) };
  for (const p of message.content) if (p?.type !== "text" || typeof p.text !== "string") throw new TypeError("only parts of type text are supported");
  return { ...message, content: message.content.map((p) => p.text).join(message.role === "assistant" ? "" : "\n") };
}

/** The images of the parts {type: "image", image}, in their order. */
const imagesOf = (messages) => (typeof messages === "string" ? [] : messages.flatMap((m) => (Array.isArray(m?.content) ? m.content.filter((p) => p?.type === "image").map((p) => p.image) : [])));

/** Pixels for C: of a file's path or bytes, decoded by the library, or {width, height, rgb}. free() ends them. */
function pixelsOf(image) {
  const c = new Struct("tern_image");
  if (typeof image === "string") image = readFileSync(image);
  if (image instanceof Uint8Array) {
    const bytes = Buffer.from(image.buffer, image.byteOffset, image.byteLength);
    call(lib.tern_image_decode, bytes, bytes.length, c.buffer);
    return { c, free: () => lib.tern_image_free(c.buffer) };
  }
  const { width, height, rgb } = image ?? {};
  int(width, "a width");
  int(height, "a height");
  if (!(rgb instanceof Uint8Array) || !width || !height || rgb.length !== 3 * width * height) throw new TypeError("an image is a path, a file's bytes, or {width, height, rgb} with three bytes a pixel");
  c.set("width", width);
  c.set("height", height);
  c.set("rgb", Buffer.from(rgb));
  return { c, free: () => {} };
}

export class Model {
  /** Opens a GGUF file, a Hugging Face folder or a package. */
  static async open(path, options = {}) {
    const model = new Model();
    model.given = options;
    model.handle = new Handle(lib.tern_engine_close);
    model.idle = null;
    model.closed = false;
    model.sessions = new Set(); // that are open
    const o = optionsOf(options);
    try {
      await later(lib.tern_engine_open, path, o.pointer, model.handle.place);
    } finally {
      o.close();
    }
    return model;
  }
  get pointer() {
    if (this.closed) throw new Error("the model is closed");
    return this.handle.pointer;
  }
  get info() {
    const info = new Struct("tern_model_info");
    lib.tern_engine_info_sized(this.pointer, info.buffer, info.size);
    const all = info.all();
    return { ...all, arch: string(all.arch), name: string(all.name), scheme: string(all.scheme) };
  }
  tokenize(s, { special = true, parseSpecial = false } = {}) {
    return counted(lib.tern_tokenize, this.pointer, s, Buffer.byteLength(s), special, parseSpecial);
  }
  detokenize(ids, { special = false } = {}) {
    const parts = [];
    for (const id of ids) {
      let buf = Buffer.alloc(256);
      idOf(id);
      let n = Number(lib.tern_token_bytes(this.pointer, id, special, buf, buf.length));
      if (n > buf.length) {
        buf = Buffer.alloc(n);
        n = Number(lib.tern_token_bytes(this.pointer, id, special, buf, n));
      }
      parts.push(buf.subarray(0, n));
    }
    return Buffer.concat(parts).toString("utf8");
  }
  chatOptions(messages, { tools, variables, chatTemplate } = {}) {
    const c = new Struct("tern_chat_options");
    lib.tern_chat_options_init(c.buffer, c.size);
    c.set("messages", JSON.stringify(typeof messages === "string" ? [{ role: "user", content: messages }] : messages.map(joined)));
    if (tools) c.set("tools", JSON.stringify(tools));
    if (variables) c.set("variables", JSON.stringify(variables));
    if (chatTemplate) c.set("chat_template", chatTemplate);
    return c;
  }
  chatTokens(messages, options = {}) {
    return counted(lib.tern_chat_tokens, this.pointer, null, 0, this.chatOptions(messages, options).buffer);
  }
  /** Whether the model has an encoder of pictures: messages may then have parts {type: "image", image}. */
  get sees() {
    return lib.tern_engine_sees(this.pointer);
  }
  /** What a session's answer is asked with: tokens, or what makes them in the session, where there are pictures. */
  asked(messages, options) {
    const images = imagesOf(messages);
    return images.length ? (session) => session.look(messages, options) : this.chatTokens(messages, options);
  }
  session(options = {}) {
    return new Session(this, { ...this.given, ...options });
  }
  /** A session for one answer: the one of the answer before, where it is free, so that a conversation's beginning is known. */
  async *stream(ids, options) {
    const own = this.idle ?? this.session(options.ctxSize ? { ctxSize: options.ctxSize } : {});
    this.idle = null;
    try {
      yield* own.generate(typeof ids === "function" ? await ids(own) : ids, options);
    } finally {
      if (this.idle || options.ctxSize || this.closed) own.close();
      else this.idle = own;
    }
  }
  chat(messages, { tools, variables, chatTemplate, ...options } = {}) {
    return this.stream(this.asked(messages, { tools, variables, chatTemplate }), options);
  }
  async complete(prompt, options = {}) {
    const ids = typeof prompt === "string" ? this.tokenize(prompt) : this.asked(prompt);
    const schema = options.schema;
    if (schema !== undefined) options = { nPredict: -1, ...options };
    let said = "", end;
    for await (const piece of this.stream(ids, { ...options, onEnd: (e) => (end = e) })) said += piece;
    if (schema === undefined) return said;
    if (end.reason === "length" || end.reason === "context")
      throw new TernError(`the JSON was cut off after ${end.nTokens} tokens (${end.reason}): give it more nPredict or ctxSize`, constants.TERN_E_LIMIT);
    return JSON.parse(said);
  }
  /** A text's vector, or of a list of texts theirs. */
  async embed(texts, { mean = false } = {}) {
    const session = this.session();
    const vectors = [];
    try {
      for (const text of Array.isArray(texts) ? texts : [texts]) {
        const ids = this.tokenize(text);
        const out = new Float32Array(this.info.n_embd);
        await session.alone(() => session.run(lib.tern_session_embed, ids, ids.length, mean, out, out.length));
        vectors.push(out);
      }
    } finally {
      session.close();
    }
    return Array.isArray(texts) ? vectors : vectors[0];
  }
  /** Nothing new is asked of it. What its open sessions need goes with the last of them. */
  close() {
    this.closed = true;
    this.idle?.close();
    this.idle = null;
    this.end();
  }
  end() {
    if (this.closed && !this.sessions.size) this.handle.close();
  }
}

/** Quantises a GGUF file or a Hugging Face folder into a package. progress(stage, fraction) ends it with false. */
export async function pack(src, out, { scheme, bits = 0, calibration, threads = 0, progress } = {}) {
  const c = new Struct("tern_pack_options");
  const report = new Struct("tern_pack_report");
  lib.tern_pack_options_init(c.buffer, c.size);
  if (scheme) c.set("scheme", scheme);
  if (calibration) c.set("calibration", calibration);
  c.set("bits", int(bits, "bits"));
  c.set("n_threads", int(threads, "threads"));
  let hook = null, failure = null;
  if (progress) {
    const hooks = new Struct("tern_hooks");
    lib.tern_hooks_init(hooks.buffer, hooks.size);
    hook = callback("tern_hooks_progress", (_user, stage, fraction) => {
      try {
        return progress(string(stage), fraction) !== false;
      } catch (e) {
        failure = e;
        return false;
      }
    });
    hooks.set("progress", hook.pointer);
    c.set("hooks", hooks);
  }
  try {
    await later(lib.tern_pack_sized, src, out, c.buffer, report.buffer, report.size);
  } catch (e) {
    throw failure ?? e;
  } finally {
    hook?.free();
  }
  return report.all();
}
