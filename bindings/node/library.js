// libtern through koffi. Its declarations are abi.json, which scripts/bindings.py writes from the headers.
// Structs are buffers of the size that C gives them; pointers in them are addresses of buffers that the caller keeps.
import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import koffi from "koffi";

const abi = JSON.parse(readFileSync(new URL("./abi.json", import.meta.url), "utf8"));
const enums = new Set(Object.keys(abi.enums));

/** What koffi calls a C type. Text goes in and comes out as a string; every other pointer is an address. */
function typeOf(c, text) {
  const plain = c.replace(/^const /, "").trim();
  if (c.includes("*")) return text && c.startsWith("const char *") && !plain.includes("**") ? "str" : "void *";
  return enums.has(plain) ? "int" : plain;
}

const structs = {};
for (const [name, fields] of Object.entries(abi.structs)) {
  const members = {};
  for (const [type, field, length] of fields) {
    const member = structs[type] ?? typeOf(type, false);
    members[field] = length === undefined ? member : koffi.array(member, length, type === "char" ? "String" : "Array");
  }
  structs[name] = koffi.struct(name, members);
}

const prototypes = {};
for (const [name, c] of Object.entries(abi.callbacks)) {
  const [, returns, params] = c.match(/^(.*?)\w+\((.*)\)$/);
  const types = params.split(", ").map((p) => typeOf(p.replace(/\w+$/, "").trim(), false));
  prototypes[name] = koffi.pointer(koffi.proto(name, typeOf(returns.trim(), false), types));
}

function load() {
  const beside = fileURLToPath(new URL(`./lib/linux-${process.arch}/libtern.so.1`, import.meta.url)); // in a package of a registry
  const file = process.env.TERN_LIBRARY ?? (existsSync(beside) ? beside : "libtern.so.1");
  let library;
  try {
    library = koffi.load(file);
  } catch (e) {
    throw new Error(`libtern is not found (${e.message}); install it, or let $TERN_LIBRARY name the file libtern.so.1`);
  }
  const functions = {};
  for (const [name, c] of Object.entries(abi.functions)) {
    const [, returns, params] = c.match(/^(.*?)\w+\((.*)\)$/);
    const types = params === "void" ? [] : params.split(", ").map((p) => typeOf(p.replace(/\w+$/, "").trim(), true));
    functions[name] = library.func(name, typeOf(returns.trim(), true), types);
  }
  return functions;
}

export const lib = load();
export const constants = Object.assign({}, ...Object.values(abi.enums));

/** What libtern refused or could not do, in its own words. `status` is one of its numbers. */
export class TernError extends Error {
  constructor(message, status) {
    super(message);
    this.name = status === constants.TERN_E_CANCELLED ? "AbortError" : "TernError";
    this.status = status;
  }
}

/** Text for C, which ends at the first zero: what is behind one would be lost in silence. */
function whole(s) {
  if (s.includes("\0")) throw new TypeError("texts for the library must not contain NUL characters");
  return s;
}

/** A number for C, which would take another one for what is too large or not whole. */
export function int(value, what, last = 2 ** 31 - 1) {
  if (!Number.isInteger(value) || value < 0 || value > last) throw new RangeError(`${what} is ${value}: want a whole number from 0 to ${last}`);
  return value;
}

/** A struct in memory of its own: `c.buffer` is passed to C, fields are read and written with get and set. */
export class Struct {
  constructor(name, values = {}) {
    this.type = structs[name];
    this.buffer = Buffer.alloc(koffi.sizeof(this.type));
    this.kept = [];
    for (const [field, value] of Object.entries(values)) this.set(field, value);
  }
  get size() {
    return this.buffer.length;
  }
  all() {
    return koffi.decode(this.buffer, this.type);
  }
  get(field) {
    return this.all()[field];
  }
  /** A string, a buffer or another struct becomes its address, and is kept. */
  set(field, value) {
    const { offset, type } = this.type.members[field];
    if (typeof value === "string") value = text(value);
    if (value instanceof Struct) {
      this.kept.push(value);
      value = value.buffer;
    }
    if (Buffer.isBuffer(value)) {
      this.kept.push(value);
      value = koffi.address(value);
    }
    koffi.encode(this.buffer, offset, type, value);
  }
}

/** The address of text that C finds there as long as the result is kept. */
export const text = (s) => Buffer.from(whole(s) + "\0");
export const address = (buffer) => koffi.address(buffer);
/** A JS function for C; free() when the call that it was for is over. */
export function callback(name, f) {
  const pointer = koffi.register(f, prototypes[name]);
  return { pointer, free: () => koffi.unregister(pointer) };
}
/** n bytes at a pointer that C gave, copied into a string. */
export const utf8 = (pointer, n) => (n ? Buffer.from(koffi.view(pointer, Number(n))).toString("utf8") : "");
/** Text with an end at a pointer that C gave. */
export const string = (pointer) => (pointer ? koffi.decode.string(pointer) : "");
/** Numbers at a pointer that C gave, copied: a view could be read and written when their owner is closed. */
export const copied = (pointer, n, Kind) => (pointer ? Kind.from(new Kind(koffi.view(pointer, n * Kind.BYTES_PER_ELEMENT))) : null);

function check(status, err) {
  if (status === constants.TERN_OK) return;
  throw new TernError(err.get("message") || lib.tern_status_text(status), status);
}

const checked = (args) => args.map((a) => (typeof a === "string" ? whole(a) : a));

/** Calls a function that ends in tern_error *err, at once. */
export function call(f, ...args) {
  const err = new Struct("tern_error");
  args = checked(args);
  check(f(...args, err.buffer), err);
}

/** The same on another thread. */
export async function later(f, ...args) {
  const err = new Struct("tern_error");
  args = checked(args);
  return new Promise((resolve, reject) => {
    f.async(...args, err.buffer, (failure, status) => {
      try {
        if (failure) throw failure;
        check(status, err);
        resolve();
      } catch (e) {
        reject(e);
      }
    });
  });
}

/** A handle that C writes into a place of eight bytes. */
export class Handle {
  constructor(close) {
    this.place = Buffer.alloc(8);
    this.closer = close;
  }
  get pointer() {
    const p = this.place.readBigUInt64LE();
    if (!p) throw new Error("it is closed");
    return p;
  }
  close() {
    if (this.place.readBigUInt64LE()) this.closer(this.place);
  }
}

/** The cap rule of tern.h: asks for the number, then for the items. Text among the arguments has its length beside it, and any characters. */
export function counted(f, ...args) {
  const n = Buffer.alloc(8);
  const err = new Struct("tern_error");
  const status = f(...args, null, 0, n, err.buffer);
  if (status !== constants.TERN_E_LIMIT) check(status, err);
  const ids = new Int32Array(Number(n.readBigUInt64LE()));
  if (ids.length) check(f(...args, ids, ids.length, n, err.buffer), err);
  return ids;
}
