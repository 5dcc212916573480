"""A model: chat, completion, embeddings, sessions; and packing."""
from __future__ import annotations

import array
import ctypes as C
import json
import os
import threading
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Union, overload

from . import _abi as abi
from ._lib import Error, Hooks, Options, Value, c_path, c_text, check, counted, int_array, interruptible, lib, whole
from ._session import Answer, Handle, Path, Session
from . import _session

Message = Mapping[str, Any]
Messages = Union[str, Sequence[Message]]
Progress = Callable[[str, float], Optional[bool]]
Log = Callable[[str], object]


class PackReport(NamedTuple):
    """What a package holds."""

    package_bytes: int
    n_calibration_tokens: int
    n_sites: int
    n_outlier_sites: int


class Estimate(NamedTuple):
    """What a model will take, in bytes, before it is opened."""

    arch: str
    weight_bytes: int
    kv_bytes: int
    work_bytes: int
    n_ctx: int


def joined(message: Message) -> Message:
    """A message whose content is a list of parts, as OpenAI's API has them, with their text: a line each, the assistant's without a break."""
    parts = message.get("content")
    if not isinstance(parts, (list, tuple)):
        return message
    if any(isinstance(p, Mapping) and p.get("type") == "image" for p in parts):
        return {**message, "content": [{k: v for k, v in p.items() if k != "image"} for p in parts]}
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError("only parts of type text are supported")
    return {**message, "content": ("" if message.get("role") == "assistant" else "\n").join(p["text"] for p in parts)}


def images_of(messages: Messages) -> list[Any]:
    """The images of the parts {"type": "image", "image": X}, in their order."""
    found = []
    for m in [] if isinstance(messages, str) else messages:
        parts = m.get("content") if isinstance(m, Mapping) else None
        for p in parts if isinstance(parts, (list, tuple)) else ():
            if isinstance(p, Mapping) and p.get("type") == "image":
                found.append(p.get("image"))
    return found


class Pixels:
    """Pixels of a picture: a file's path, its bytes, a Pillow image, or (width, height, RGB bytes)."""

    def __init__(self, image: Any) -> None:
        self.c = abi.tern_image()
        self._keep: Any = None
        self._decoded = False
        if isinstance(image, (str, os.PathLike)):
            with open(image, "rb") as f:
                image = f.read()
        if isinstance(image, (bytes, bytearray, memoryview)):
            data, err = bytes(image), abi.tern_error()
            check(lib.tern_image_decode(data, len(data), C.byref(self.c), C.byref(err)), err)
            self._decoded = True
            return
        if hasattr(image, "convert") and hasattr(image, "tobytes"):
            rgb = image.convert("RGB")
            image = (rgb.width, rgb.height, rgb.tobytes())
        if not isinstance(image, tuple) or len(image) != 3:
            raise TypeError("an image is a path, a file's bytes, a Pillow image, or (width, height, RGB bytes)")
        width, height, data = whole(image[0], "a width"), whole(image[1], "a height"), bytes(image[2])
        if width < 1 or height < 1 or len(data) != 3 * width * height:
            raise ValueError(f"{width} x {height} pixels take {3 * width * height} bytes, and there are {len(data)}")
        self._keep = (C.c_uint8 * len(data)).from_buffer_copy(data)
        self.c.width, self.c.height, self.c.rgb = width, height, C.cast(self._keep, type(self.c.rgb))

    def close(self) -> None:
        if self._decoded:
            lib.tern_image_free(C.byref(self.c))
        self._decoded = False


class Engine:
    """A tern_engine with what it calls. It is closed with the last of those that hold it."""

    def __init__(self, path: Path, options: Mapping[str, Value], hooks: Hooks) -> None:
        self.pointer = C.c_void_p()
        self.sessions: list[C.c_void_p] = []  # that are open
        self.hooks = hooks
        err = abi.tern_error()
        with Options(options) as o:
            check(lib.tern_options_set_hooks(o.handle, C.byref(hooks.c), C.byref(err)), err)
            status = lib.tern_engine_open(c_path(path), o.handle, C.byref(self.pointer), C.byref(err))
        if hooks.raised:
            raise hooks.raised
        check(status, err)

    def close_session(self, pointer: C.c_void_p) -> None:
        self.sessions[:] = [p for p in self.sessions if p is not pointer]
        lib.tern_session_close(C.byref(pointer))

    def __del__(self) -> None:
        # The collector ends what is in a cycle in any order: sessions may still be there.
        for pointer in self.sessions:
            lib.tern_session_close(C.byref(pointer))
        if self.pointer:
            lib.tern_engine_close(C.byref(self.pointer))


class Model:
    """An opened model: a GGUF file, a Hugging Face folder or a package.

    Options are the parameters of `tern help set`, with _ for -: threads=2, ctx_size=2048, attention="full"; those of answers (temp, n_predict,
    seed...) are the defaults of its answers. Threads may share a model.

    progress(stage, fraction) is called while the model is opened and long prompts are read, and ends that with False; log(line) gets warnings.
    Both may come from any thread."""

    def __init__(self, path: Path, *, progress: Optional[Progress] = None, log: Optional[Log] = None, **options: Value) -> None:
        self._options = dict(options)
        hooks = Hooks(progress, log)
        self._engine: Engine = interruptible(lambda: Engine(path, options, hooks), hooks.stop)
        self._idle: list[Handle] = []  # sessions of chat, complete and embed; the next call finds the beginning of its prompt there
        self._lock = threading.Lock()

    @property
    def info(self) -> dict[str, Any]:
        """Its architecture, name, shapes and sizes: tern_model_info of tern.h."""
        i = abi.tern_model_info()
        lib.tern_engine_info_sized(self._engine.pointer, C.byref(i), C.sizeof(i))
        values = {name: getattr(i, name) for name, _ in i._fields_}
        return {name: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for name, v in values.items()}

    # ---- text ----

    def tokenize(self, text: str, *, special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids. special: with what the model wants around a prompt. parse_special: the text of control tokens becomes their ids."""
        data = text.encode()
        return list(counted(lambda out, cap, n, err: lib.tern_tokenize(self._engine.pointer, data, len(data), special, parse_special, out, cap, n, err),
                            C.c_int32))

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens. special: with that of control tokens."""
        out, buf = b"", C.create_string_buffer(256)
        for token in (whole(i, "a token id") for i in ids):
            n = lib.tern_token_bytes(self._engine.pointer, token, special, buf, len(buf))
            if n > len(buf):
                buf = C.create_string_buffer(n)
                n = lib.tern_token_bytes(self._engine.pointer, token, special, buf, n)
            out += buf.raw[:n]
        return out.decode("utf-8", "replace")

    def chat_tokens(self, messages: Messages, *, tools: Optional[Sequence[Mapping[str, Any]]] = None, chat_template: Optional[str] = None,
                    **variables: Any) -> list[int]:
        """The prompt of a conversation, by the model's template. What messages spell never becomes a control token."""
        c = self._chat_options(messages, tools, chat_template, variables)
        return list(counted(lambda out, cap, n, err: lib.tern_chat_tokens(self._engine.pointer, None, 0, C.byref(c), out, cap, n, err), C.c_int32))

    def _chat_options(self, messages: Messages, tools: Any, chat_template: Optional[str], variables: Mapping[str, Any]) -> Any:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        c = abi.tern_chat_options()
        lib.tern_chat_options_init(C.byref(c), C.sizeof(c))
        c.messages = json.dumps([joined(m) if isinstance(m, Mapping) else m for m in messages]).encode()
        c.tools = json.dumps(list(tools)).encode() if tools else None
        c.variables = json.dumps(variables).encode() if variables else None
        c.chat_template = c_text(chat_template, "chat_template") if chat_template else None
        return c

    @property
    def sees(self) -> bool:
        """Whether the model has an encoder of pictures: messages may then have parts {"type": "image", "image": X}."""
        return bool(lib.tern_engine_sees(self._engine.pointer))

    # ---- answers ----

    def _borrow(self) -> Session:
        with self._lock:
            handle = self._idle.pop() if self._idle else None
        return Session(self, self._options, handle)

    def _give_back(self, session: Session) -> None:
        with self._lock:
            if not self._idle and session._handle:
                self._idle.append(session._handle)

    def chat(self, messages: Messages, *, tools: Optional[Sequence[Mapping[str, Any]]] = None, variables: Optional[Mapping[str, Any]] = None,
             chat_template: Optional[str] = None, schema: Union[Mapping[str, Any], bool, str, None] = None, grammar: Optional[str] = None,
             stop: Sequence[str] = (), **options: Value) -> Answer:
        """The answer to a conversation, piece by piece. A text alone is one message of the user. Of a conversation that grows only the new
        messages are read."""
        images = images_of(messages)
        if images:
            c = self._chat_options(messages, tools, chat_template, dict(variables or {}))
            return self._stream(lambda session: session._look(c, images), schema, grammar, stop, options)
        ids = int_array(self.chat_tokens(messages, tools=tools, chat_template=chat_template, **dict(variables or {})))
        return self._stream(ids, schema, grammar, stop, options)

    def _stream(self, ids: Any, schema: Any, grammar: Optional[str], stop: Sequence[str], options: Mapping[str, Value]) -> Answer:
        if "ctx_size" in options:
            session = Session(self, {**self._options, **options})
            ids = ids(session) if callable(ids) else ids
            return session._answer(ids, schema, grammar, stop, None, False, options)
        session = self._borrow()
        try:
            ids = ids(session) if callable(ids) else ids
            return session._answer(ids, schema, grammar, stop, None, False, options, lambda: self._give_back(session))
        except BaseException:
            self._give_back(session)
            raise

    @overload
    def complete(self, prompt: Messages, *, schema: Union[Mapping[str, Any], bool, str], grammar: None = ..., stop: Sequence[str] = ...,
                 **options: Value) -> Any: ...

    @overload
    def complete(self, prompt: Messages, *, schema: None = ..., grammar: Optional[str] = ..., stop: Sequence[str] = ..., **options: Value) -> str: ...

    def complete(self, prompt: Messages, *, schema: Any = None, grammar: Optional[str] = None, stop: Sequence[str] = (), **options: Value) -> Any:
        """The whole answer. A text is what the model goes on from; messages are a conversation. With a JSON schema the answer is the value it
        describes, already parsed: the model cannot write anything else."""
        images = images_of(prompt)
        ids: Any = None
        if images:
            c = self._chat_options(prompt, None, None, {})
            ids = lambda session: session._look(c, images)  # noqa: E731
        else:
            ids = int_array(self.tokenize(prompt) if isinstance(prompt, str) else self.chat_tokens(prompt))
        if schema is not None:
            options.setdefault("n_predict", -1)
        with self._stream(ids, schema, grammar, stop, options) as answer:
            text = "".join(answer)
        if schema is None:
            return text
        if answer.reason in ("length", "context"):
            raise Error(f"the JSON was cut off after {answer.n_tokens} tokens ({answer.reason}): give it more n_predict or ctx_size", abi.TERN_E_LIMIT)
        return json.loads(text)

    def embed(self, text: Union[str, Sequence[str]], *, mean: bool = False) -> Any:
        """A text as a vector of length 1, float32: a NumPy array, or an array.array without NumPy. Of its last token, or with `mean` over all.
        Of several texts their vectors: an array of rows, or a list without NumPy."""
        texts = [text] if isinstance(text, str) else list(text)
        n = self.info["n_embd"]
        all_of = array.array("f", bytes(4 * n * len(texts)))
        session = self._borrow()
        try:
            for i, one in enumerate(texts):
                ids, floats = int_array(self.tokenize(one)), (C.c_float * n).from_buffer(all_of, 4 * n * i)
                session._alone(lambda p, err: lib.tern_session_embed(p, ids, len(ids), mean, floats, n, err))
        finally:
            self._give_back(session)
        if _session.numpy is not None:
            rows = _session.numpy.frombuffer(all_of, dtype=_session.numpy.float32).reshape(len(texts), n)
            return rows[0] if isinstance(text, str) else rows
        return all_of if isinstance(text, str) else [all_of[n * i : n * (i + 1)] for i in range(len(texts))]

    def session(self, **options: Value) -> Session:
        """A text of your own over the model."""
        return Session(self, {**self._options, **options})


def pack(src: Path, out: Path, *, scheme: Optional[str] = None, bits: float = 0, calibration: Optional[Path] = None, threads: int = 0,
         progress: Optional[Progress] = None, log: Optional[Log] = None) -> PackReport:
    """Quantises a GGUF file or a Hugging Face folder into a package, which is there whole or not at all."""
    hooks, c, report, err = Hooks(progress, log), abi.tern_pack_options(), abi.tern_pack_report(), abi.tern_error()
    lib.tern_pack_options_init(C.byref(c), C.sizeof(c))
    c.hooks = C.pointer(hooks.c)
    c.scheme = c_text(scheme, "scheme") if scheme else None
    c.bits, c.n_threads = bits, whole(threads, "threads")
    c.calibration = c_path(calibration) if calibration else None
    status = interruptible(lambda: lib.tern_pack_sized(c_path(src), c_path(out), C.byref(c), C.byref(report), C.sizeof(report), C.byref(err)),
                           hooks.stop)
    if hooks.raised:
        raise hooks.raised
    check(status, err)
    return PackReport(*(getattr(report, name) for name, _ in report._fields_))


def estimate(path: Path, **options: Value) -> Estimate:
    """What a model will take; nothing is loaded."""
    e, err = abi.tern_estimate(), abi.tern_error()
    with Options(options) as o:
        check(lib.tern_engine_estimate_sized(c_path(path), o.handle, C.byref(e), C.sizeof(e), C.byref(err)), err)
    return Estimate(e.arch.decode(), e.weight_bytes, e.kv_bytes, e.work_bytes, e.n_ctx)
