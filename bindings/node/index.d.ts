/** Parameters of `tern help set`: nPredict, temp, seed, threads, ctxSize... */
export type Parameters = Record<string, string | number | boolean | undefined>;
/** A file's path, its bytes (PNG, JPEG, WebP), or pixels: three bytes each, red, green and blue, row after row. */
export type Image = string | Uint8Array | { width: number; height: number; rgb: Uint8Array };
/** content: a text, or parts {type: "text", text} and {type: "image", image: Image}. */
export interface Message { role: string; content: unknown; [key: string]: unknown }
export interface AnswerOptions {
  /** The answer is JSON that is valid under this schema. */
  schema?: object | boolean | string;
  /** GBNF, as llama.cpp has it. */
  grammar?: string;
  stop?: string[];
  /** Ends the prompt that is read, or the answer that is written. */
  signal?: AbortSignal;
  onEnd?: (end: { reason: "length" | "end" | "stop" | "closed" | "context"; nTokens: number }) => void;
  [parameter: string]: unknown;
}
export interface ChatOptions { tools?: object[]; variables?: object; chatTemplate?: string }

export class TernError extends Error {
  status: number;
}
export function version(): string;

export class Session {
  readonly logits: Float32Array | null;
  readonly tokens: Int32Array;
  readonly length: number;
  readonly capacity: number;
  /** What the session did, counted, by name. */
  readonly counters: Record<string, number>;
  likeliest(k: number): { token: number; logprob: number }[];
  prefill(prompt: string | ArrayLike<number>): Promise<void>;
  /** The prompt of a conversation with pictures, for prefill and generate. What is not known of them is encoded. */
  look(messages: Message[], options?: ChatOptions): Promise<Int32Array>;
  step(token: number): Promise<void>;
  generate(prompt?: string | ArrayLike<number> | null, options?: AnswerOptions): AsyncGenerator<string>;
  truncate(n: number): Promise<void>;
  save(path: string): Promise<void>;
  load(path: string): Promise<void>;
  cancel(): void;
  close(): void;
}

export class Model {
  static open(path: string, options?: Parameters): Promise<Model>;
  readonly info: { arch: string; name: string; scheme: string; n_vocab: number; n_embd: number; ctx_train: number; [field: string]: unknown };
  /** It has an encoder of pictures. */
  readonly sees: boolean;
  tokenize(text: string, options?: { special?: boolean; parseSpecial?: boolean }): Int32Array;
  detokenize(ids: Iterable<number>, options?: { special?: boolean }): string;
  chatTokens(messages: string | Message[], options?: ChatOptions): Int32Array;
  chat(messages: string | Message[], options?: ChatOptions & AnswerOptions): AsyncGenerator<string>;
  complete(prompt: string | Message[], options?: AnswerOptions & { schema?: undefined }): Promise<string>;
  complete(prompt: string | Message[], options: AnswerOptions): Promise<unknown>;
  embed(text: string, options?: { mean?: boolean }): Promise<Float32Array>;
  embed(texts: string[], options?: { mean?: boolean }): Promise<Float32Array[]>;
  session(options?: Parameters): Session;
  close(): void;
}

export function pack(src: string, out: string, options?: {
  scheme?: string; bits?: number; calibration?: string; threads?: number; progress?: (stage: string, fraction: number) => boolean | void;
}): Promise<{ package_bytes: number; n_calibration_tokens: number; n_sites: number; n_outlier_sites: number }>;
