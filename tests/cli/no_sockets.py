"""A filter of system calls for what a test starts: no other command than tern pull opens a connection."""
import ctypes
import platform
import struct


def without(names):
    """Ends the process at these system calls (seccomp, in what Popen starts)."""
    numbers = {"x86_64": {"socket": 41, "connect": 42, "arch": 0xC000003E}, "aarch64": {"socket": 198, "connect": 203, "arch": 0xC00000B7}}.get(platform.machine())
    if not numbers:
        return None
    LD, JEQ, RET, KILL, ALLOW = 0x20, 0x15, 0x06, 0x80000000, 0x7FFF0000
    code = [(LD, 0, 0, 4), (JEQ, 1, 0, numbers["arch"]), (RET, 0, 0, ALLOW), (LD, 0, 0, 0)]
    for n in names:
        code += [(JEQ, 0, 1, numbers[n]), (RET, 0, 0, KILL)]
    code.append((RET, 0, 0, ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *c) for c in code))
    head = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)

    def enter():
        assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
        assert libc.prctl(22, 2, head, 0, 0) == 0
        _ = program
    return enter
