"""A session: one text over a model, and answers that come piece by piece."""
from __future__ import annotations

import asyncio
import atexit
import ctypes as C
import json
import os
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from . import _abi as abi
from ._lib import Cancelled, Options, Value, argument, c_path, c_text, callback, check, int_array, interruptible, lib, whole

if TYPE_CHECKING:
    from ._model import Model

numpy: Any
try:
    import numpy
except ImportError:
    numpy = None

Path = Union[str, "os.PathLike[str]"]
REASONS = {abi.TERN_STOP_LENGTH: "length", abi.TERN_STOP_END: "end", abi.TERN_STOP_STRING: "stop",
           abi.TERN_STOP_CALLBACK: "closed", abi.TERN_STOP_CONTEXT: "context"}


class Token(NamedTuple):
    """A token that was drawn: `text` is what became complete with it, `logprob` the model's own before sampling."""

    id: int
    text: str
    logprob: float


class Handle:
    """A tern_session. It is closed with the last of those that hold it, views of its logits among them, and before its engine."""

    def __init__(self, engine: Any, options: Any) -> None:
        self.engine = engine
        self.pointer = C.c_void_p()
        err = abi.tern_error()
        check(lib.tern_session_open(engine.pointer, C.byref(options), C.byref(self.pointer), C.byref(err)), err)
        engine.sessions.append(self.pointer)

    def __del__(self) -> None:
        if self.pointer:
            self.engine.close_session(self.pointer)


def numbers_of(array: Any, writable: bool) -> Any:
    """A ctypes array of floats as a NumPy array, or as a memoryview where NumPy is not installed. It holds the array."""
    view = memoryview(array).cast("B").cast("f")
    if not writable:
        view = view.toreadonly()  # of which NumPy makes nothing that can be made writable
    return view if numpy is None else numpy.frombuffer(view, dtype=numpy.float32)


def view_of(pointer: Any, n: int, keep: Any) -> Any:
    """n floats where they lie, to be read. The view holds `keep`."""
    array: Any = (C.c_float * n).from_address(C.addressof(pointer.contents))
    array._keep = keep
    return numbers_of(array, False)


class Writer:
    """The thread's side of an answer. It knows nothing of the Answer, so that one that nobody reads any more can go."""

    def __init__(self, session: Session, ids: Any, generate: Any, on_logits: Optional[Callable[[Any], Optional[bool]]]) -> None:
        self.session, self.ids, self.c = session, ids, generate
        self.pieces: queue.SimpleQueue[Union[Token, BaseException, None]] = queue.SimpleQueue()
        self.wanted = threading.Semaphore(0)
        self.stop = False
        self.reason = ""
        self.raised: Optional[BaseException] = None

        def on_token(_: Any, token: int, text: Any, n: int, logprob: float) -> bool:
            self.pieces.put(Token(token, C.string_at(text, n).decode("utf-8", "replace") if n else "", logprob))
            self.wanted.acquire()
            return not self.stop

        def change(_: Any, logits: Any, n: int) -> bool:
            try:
                assert on_logits
                own = (C.c_float * n)()  # on_logits may keep what it sees for longer than the library keeps its own
                C.memmove(own, logits, 4 * n)
                goes_on = on_logits(numbers_of(own, True)) is not False
                C.memmove(logits, own, 4 * n)
                return goes_on
            except BaseException as e:  # it would be lost in the C code above
                self.raised = e
                return False

        self.c.on_token = callback(abi.tern_generate_options, "on_token", on_token)
        if on_logits:
            self.c.on_logits = callback(abi.tern_generate_options, "on_logits", change)

    def run(self) -> None:
        """Reads the prompt and writes the answer."""
        ended: Optional[BaseException] = None
        try:
            ids = self.ids
            if ids is not None:
                self.session._call(lambda p, err: lib.tern_session_prefill(p, ids, len(ids), err))
            result = abi.tern_generate_result()
            self.session._call(lambda p, err: lib.tern_session_generate(p, C.byref(self.c), C.byref(result), err))
            self.reason = REASONS[result.reason]
        except BaseException as e:
            ended = e
        self.pieces.put(self.raised or ended)


class Answer(Iterator[str]):
    """The pieces of an answer, as they are written. What is not asked for is not computed: `close()`, leaving a `with` block, or forgetting it ends
    it.

    `text`, `tokens`, `n_tokens` and `reason` ("end", "length", "stop", "context", "closed") say what came so far."""

    def __init__(self, writer: Writer, keep: Any, at_end: Optional[Callable[[], None]]) -> None:
        self.tokens: list[Token] = []
        self.reason = ""
        self._writer, self._keep, self._at_end = writer, keep, at_end
        self._started = self._ended = False
        self._reading = threading.RLock()  # one thread at a time: with `async` they change

    def _end(self) -> None:
        if self._started:
            self._writer.session._busy.release()
        self._ended = True
        self.reason = self._writer.reason or "closed"
        _open.discard(self)
        if self._at_end:
            self._at_end()

    def _take(self) -> Optional[Token]:
        """The next token, or None at the end."""
        piece = self._writer.pieces.get()
        if isinstance(piece, Token):
            return piece
        self._end()
        if piece and not (self._writer.stop and isinstance(piece, Cancelled)):
            raise piece
        return None

    def __next__(self) -> str:
        with self._reading:
            return self._next()

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> str:
        """The same for `async for`: the event loop goes on meanwhile. A task that is cancelled here ends the answer."""
        try:
            piece = await asyncio.get_running_loop().run_in_executor(None, lambda: next(self, None))
        except asyncio.CancelledError:
            self._writer.stop = True
            self._writer.session.cancel()
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def _next(self) -> str:
        try:
            while not self._ended:
                if not self._started:
                    self._writer.session._begin()
                    self._started = True
                    _open.add(self)
                    threading.Thread(target=self._writer.run, daemon=True, name="tern").start()
                else:
                    self._writer.wanted.release()
                token = self._take()
                if token:
                    self.tokens.append(token)
                    if token.text:
                        return token.text
        except KeyboardInterrupt:
            self.close()
            raise
        raise StopIteration

    def close(self) -> None:
        """Ends the answer where it is. The session keeps what was written."""
        if self._started and not self._ended:
            self._writer.stop = True
            self._writer.session.cancel()  # a prompt may still be read
        with self._reading:
            if not self._started and not self._ended:
                self._end()
            while not self._ended:
                self._writer.wanted.release()
                self._take()

    @property
    def text(self) -> str:
        return "".join(t.text for t in self.tokens)

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


_open: weakref.WeakSet[Answer] = weakref.WeakSet()


@atexit.register
def _close_answers() -> None:
    for answer in list(_open):
        answer.close()


class Session:
    """One text over a model. One thread at a time uses it; `cancel()` may come from any."""

    def __init__(self, model: Model, options: Mapping[str, Value], handle: Optional[Handle] = None) -> None:
        self.model = model
        self._given = dict(options)
        self._handle: Optional[Handle] = handle
        self._busy = threading.Lock()
        self._asked = False  # cancel() was called and nothing has noticed
        if handle:
            return
        with Options(self._given) as o:
            self._handle = Handle(model._engine, o.answer(self._given)[0])

    def _pointer(self) -> Any:
        if self._handle is None:
            raise ValueError("the session is closed")
        return self._handle.pointer

    def _begin(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("the session is writing an answer: read it to its end or close it first")
        self._asked = False

    def _call(self, call: Callable[[Any, Any], int]) -> None:
        """A cancel that came too late for the call before is not for this one."""
        err = abi.tern_error()
        while True:
            status = call(self._pointer(), C.byref(err))
            if status != abi.TERN_E_CANCELLED or self._asked:
                check(status, err)
                return

    def _alone(self, call: Callable[[Any, Any], int]) -> None:
        self._begin()
        try:
            interruptible(lambda: self._call(call), self.cancel)
        finally:
            self._busy.release()

    def prefill(self, prompt: Union[str, Sequence[int], Any]) -> None:
        """Makes a text, or token ids, what the session knows; only what is new is computed."""
        ids = int_array(self.model.tokenize(prompt) if isinstance(prompt, str) else prompt)
        self._alone(lambda p, err: lib.tern_session_prefill(p, ids, len(ids), err))

    def look(self, messages: Any, *, chat_template: Optional[str] = None) -> Any:
        """The prompt of a conversation with pictures, for `prefill` and `generate`: parts {"type": "image", "image": X} of a content, where X is a
        path, a file's bytes, a Pillow image, or (width, height, RGB bytes). What is not known is encoded; the session holds it until it looks again."""
        from ._model import images_of

        return self._look(self.model._chat_options(messages, None, chat_template, {}), images_of(messages))

    def _look(self, options: Any, images: Sequence[Any]) -> Any:
        from ._model import Pixels

        pixels: list[Any] = []
        ids, n = (C.c_int32 * self.capacity)(), C.c_size_t()
        try:
            for image in images:
                pixels.append(Pixels(image))
            all_of = (abi.tern_image * max(len(pixels), 1))(*[p.c for p in pixels])
            self._alone(lambda p, err: lib.tern_session_look(p, None, 0, C.byref(options), all_of, len(pixels), ids, len(ids), C.byref(n), err))
        finally:
            for p in pixels:
                p.close()
        return int_array(ids[: n.value])

    def step(self, token: int) -> None:
        """Appends one token and evaluates it."""
        n = whole(token, "a token id")
        self._alone(lambda p, err: lib.tern_session_step(p, n, err))

    def generate(self, prompt: Union[str, Sequence[int], None] = None, *, schema: Union[Mapping[str, Any], bool, str, None] = None,
                 grammar: Optional[str] = None, stop: Sequence[str] = (), on_logits: Optional[Callable[[Any], Optional[bool]]] = None,
                 special_text: bool = False, **options: Value) -> Answer:
        """Goes on from what the session knows, or from a prompt. Options are those of `tern help set` with _ for -: n_predict, temp, seed...

        on_logits gets the model's logits before every draw, float32 of the vocabulary's size, to change in place; False ends the answer. What is
        written after on_logits has returned changes nothing."""
        ids = None
        if prompt is not None:
            ids = int_array(self.model.tokenize(prompt) if isinstance(prompt, str) else prompt)
        return self._answer(ids, schema, grammar, stop, on_logits, special_text, options)

    def _answer(self, ids: Any, schema: Any, grammar: Optional[str], stop: Sequence[str], on_logits: Any, special_text: bool,
                options: Mapping[str, Value], at_end: Optional[Callable[[], None]] = None) -> Answer:
        given = {**self._given, **options}
        o = Options(given)
        weakref.finalize(o, lib.tern_options_free, C.pointer(o.handle))
        _, c = o.answer(given)
        if schema is not None:
            c.json_schema = c_text(schema if isinstance(schema, str) else json.dumps(schema), "schema")
        if grammar is not None:
            c.grammar = c_text(grammar, "grammar")
        stops = (C.c_char_p * (len(stop) + 1))(*[c_text(s, "stop") for s in stop], None)
        if stop:
            c.stop = stops
        c.special_text = special_text
        return Answer(Writer(self, ids, c, on_logits), (o, stops), at_end)

    def cancel(self) -> None:
        """From any thread: ends what runs, which raises Cancelled."""
        self._asked = True
        handle = self._handle
        if handle:
            lib.tern_session_cancel(handle.pointer)

    @property
    def logits(self) -> Any:
        """The logits behind the last token where they lie, not copied: valid until the next call on the session. None where there are none."""
        p = lib.tern_session_logits(self._pointer())
        return view_of(p, self.model.info["n_vocab"], self._handle) if p else None

    @property
    def tokens(self) -> list[int]:
        p = lib.tern_session_tokens(self._pointer())
        return list(p[: len(self)]) if p else []

    def __len__(self) -> int:
        n: int = lib.tern_session_length(self._pointer())
        return n

    @property
    def capacity(self) -> int:
        n: int = lib.tern_session_capacity(self._pointer())
        return n

    def truncate(self, n: int) -> None:
        """Forgets all but the first n tokens."""
        kept = whole(n, "n", 2**63 - 1)
        self._alone(lambda p, err: lib.tern_session_truncate(p, kept, err))

    def copy(self) -> Session:
        """Another session that goes on from the same text."""
        other, err = Session(self.model, self._given), abi.tern_error()
        check(lib.tern_session_copy(other._pointer(), self._pointer(), C.byref(err)), err)
        return other

    def save(self, path: Path) -> None:
        """Writes the tokens and what the model remembers of them to a file."""
        name = c_path(path)
        self._alone(lambda p, err: lib.tern_session_save(p, name, err))

    def load(self, path: Path) -> None:
        """Goes on from what `save` wrote, with the same model."""
        name = c_path(path)
        self._alone(lambda p, err: lib.tern_session_load(p, name, err))

    def stats(self) -> dict[str, Any]:
        """What the session did, counted: the counters of `tern_session_counter` by name."""
        value = C.c_double()
        out: dict[str, Any] = {}
        while name := lib.tern_session_counter(self._pointer(), len(out), C.byref(value)):
            out[name.decode()] = value.value
        return out

    def likeliest(self, k: int) -> list[tuple[int, float]]:
        """The k likeliest next tokens, each with the logarithm of its probability."""
        k = max(0, min(int(k), self.model.info["n_vocab"]))
        ids, logprobs = (C.c_int32 * k)(), (C.c_float * k)()
        n = lib.tern_session_likeliest(self._pointer(), k, ids, logprobs)
        return list(zip(ids[:n], logprobs[:n]))

    def dump(self) -> bytes:
        """What `save` writes, as bytes."""
        parts: list[bytes] = []

        def write(_: Any, p: int, n: int) -> bool:
            parts.append(C.string_at(p, n))
            return True

        take = argument("tern_session_save_to", 1, write)
        self._alone(lambda p, err: lib.tern_session_save_to(p, take, None, err))
        return b"".join(parts)

    def restore(self, data: bytes) -> None:
        """Goes on from what `dump` gave, with the same model."""
        self._alone(lambda p, err: lib.tern_session_load_from(p, data, len(data), err))

    def close(self) -> None:
        """Lets go of the session. Its memory goes with the last view of its logits."""
        self._handle = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
