"""The shared library, its errors, and calls that Ctrl-C can end."""
from __future__ import annotations

import array
import ctypes as C
import operator
import os
import secrets
import threading
from typing import Any, Callable, Mapping, Optional, TypeVar, Union

from . import _abi as abi

T = TypeVar("T")
Value = Union[str, int, float, bool]


class Error(Exception):
    """What libtern refused or could not do, in its own words. `status` is a TERN_E_ number."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Cancelled(Error):
    """A call was ended by `cancel()`."""


def _load() -> C.CDLL:
    """$TERN_LIBRARY, a library beside this package, or the one that the system finds."""
    name = os.environ.get("TERN_LIBRARY")
    if not name:
        beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libtern.so.1")
        name = beside if os.path.exists(beside) else "libtern.so.1"
    try:
        loaded = C.CDLL(name)
    except OSError as e:
        raise ImportError(f"libtern is not found ({e}); install it, or let $TERN_LIBRARY name the file libtern.so.1") from None
    try:
        abi.declare(loaded)
    except AttributeError as e:
        raise ImportError(f"{name} is older than this binding: {e}") from None
    return loaded


lib: Any = _load()


def version() -> str:
    """The version of the library that is loaded."""
    text: bytes = lib.tern_version()
    return text.decode()


def check(status: int, err: Any) -> None:
    """Raises what a call reported."""
    if status == abi.TERN_OK:
        return
    message = (err.message or lib.tern_status_text(status)).decode("utf-8", "replace")
    raise (Cancelled if status == abi.TERN_E_CANCELLED else Error)(message, status)


def callback(struct: Any, field: str, function: Callable[..., Any]) -> Any:
    """A C function of a struct's field. Keep it as long as the library may call it."""
    return dict(struct._fields_)[field](function)


def argument(function: str, i: int, f: Callable[..., Any]) -> Any:
    """The same for argument i of a function."""
    functions: Any = abi.FUNCTIONS
    return functions[function][1][i](f)


def c_text(value: str, what: str) -> bytes:
    """Text for C, which ends at the first zero: what is behind one would be lost in silence."""
    data = value.encode()
    if b"\0" in data:
        raise ValueError(f"{what} must not contain NUL characters")
    return data


def c_path(path: Union[str, os.PathLike[str]]) -> bytes:
    """A path for C."""
    data = os.fsencode(path)
    if b"\0" in data:
        raise ValueError("a path must not contain NUL characters")
    return data


def whole(value: Any, what: str, last: int = 2**31 - 1) -> int:
    """An int for C, which would take another number for one that is too large."""
    n = operator.index(value)
    if not 0 <= n <= last:
        raise ValueError(f"{what} is {n}: want 0 to {last}")
    return n


class Options:
    """A tern_options: parameters by name, as `tern help set` lists them, with _ for -."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.handle = C.c_void_p()
        err = abi.tern_error()
        check(lib.tern_options_new(C.byref(self.handle), C.byref(err)), err)
        try:
            for name, value in values.items():
                text = ("on" if value else "off") if isinstance(value, bool) else str(value)
                status = lib.tern_options_set(self.handle, c_text(name.replace("_", "-"), "a parameter's name"), c_text(text, name), C.byref(err))
                check(status, err)
        except BaseException:
            self.close()
            raise

    def answer(self, given: Mapping[str, Value]) -> tuple[Any, Any]:
        """(tern_session_options, tern_generate_options); their texts are this object's. Without a seed every answer is another."""
        session, generate, err = abi.tern_session_options(), abi.tern_generate_options(), abi.tern_error()
        check(lib.tern_options_answer_sized(self.handle, C.byref(session), C.sizeof(session), C.byref(generate), C.sizeof(generate),
                                            C.byref(err)), err)
        if "seed" not in given:
            generate.sampling.seed = secrets.randbits(64)
        return session, generate

    def close(self) -> None:
        lib.tern_options_free(C.byref(self.handle))

    def __enter__(self) -> Options:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Hooks:
    """Log and progress of a call, and what ends it: while `stopped` is set, progress says no."""

    def __init__(self, progress: Optional[Callable[[str, float], Optional[bool]]], log: Optional[Callable[[str], object]]) -> None:
        self.stopped = False
        self.raised: Optional[BaseException] = None
        self.c = abi.tern_hooks()
        lib.tern_hooks_init(C.byref(self.c), C.sizeof(self.c))

        def on_progress(_: Any, stage: Any, fraction: float) -> bool:
            try:
                said = progress(C.string_at(stage).decode(), fraction) if progress else True
                return not self.stopped and said is not False
            except BaseException as e:  # it would be lost in the C code above
                self.raised = e
                return False

        def on_log(_: Any, level: int, line: Any) -> None:
            try:
                if log:
                    log(C.string_at(line).decode("utf-8", "replace"))
            except BaseException as e:
                self.raised = e

        self.c.progress = callback(abi.tern_hooks, "progress", on_progress)
        if log:
            self.c.log = callback(abi.tern_hooks, "log", on_log)

    def stop(self) -> None:
        self.stopped = True


def interruptible(call: Callable[[], T], stop: Callable[[], None]) -> T:
    """Runs a long call of the library on a thread of its own, so that Ctrl-C reaches Python: then stop() ends the call, and KeyboardInterrupt
    is raised when it has ended."""
    result: list[T] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            result.append(call())
        except BaseException as e:
            failure.append(e)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True, name="tern").start()
    interrupted: Optional[BaseException] = None
    while not done.is_set():
        try:
            done.wait()
        except BaseException as e:
            interrupted = e
            stop()
    if interrupted:
        raise interrupted
    if failure:
        raise failure[0]
    return result[0]


def int_array(ids: Any) -> Any:
    """int32 values for C: a writable buffer of them (array.array("i"), NumPy's int32) is not copied."""
    try:
        view = memoryview(ids)
    except TypeError:
        numbers = array.array("i", [whole(i, "a token id") for i in ids])
        return (C.c_int32 * len(numbers)).from_buffer(numbers)
    if view.ndim != 1 or not view.contiguous or view.itemsize != 4 or view.format.lstrip("<=@") not in ("i", "l"):
        raise TypeError("token ids are a sequence of int, or a buffer of int32")
    data = view.cast("B")
    return (C.c_int32 * len(view)).from_buffer_copy(data) if view.readonly else (C.c_int32 * len(view)).from_buffer(data)


def counted(call: Callable[[Any, int, Any, Any], int], item: Any) -> Any:
    """Calls twice, for the number and for the items: the cap rule of tern.h."""
    n, err = C.c_size_t(), abi.tern_error()
    status = call(None, 0, C.byref(n), C.byref(err))
    if status not in (abi.TERN_OK, abi.TERN_E_LIMIT):
        check(status, err)
    out = (item * n.value)()
    check(call(out, n.value, C.byref(n), C.byref(err)), err)
    return out
