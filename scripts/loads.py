#!/usr/bin/env python3
"""The libraries that a program loads when it needs them:  loads.py FILE...

The program names them itself, in ELF notes (https://systemd.io/ELF_DLOPEN_METADATA, src/libraries/stubs.h). One line each: its SONAME and what it is for."""
import json
import struct
import sys

PT_NOTE, FDO_DLOPEN = 4, 0x407C0C0A


def padded(n):
    return (n + 3) & ~3


def notes(data):
    """The type, owner and bytes of each note of a 64-bit little-endian ELF file."""
    at, = struct.unpack_from("<Q", data, 32)
    size, n = struct.unpack_from("<HH", data, 54)
    for i in range(n):
        kind, _, off, _, _, n_bytes, _, align = struct.unpack_from("<IIQQQQQQ", data, at + i * size)
        if kind != PT_NOTE or align > 4:  # notes of 8 bytes are GNU's properties
            continue
        end = off + n_bytes
        while off < end:
            n_name, n_desc, type_ = struct.unpack_from("<III", data, off)
            name, desc = off + 12, off + 12 + padded(n_name)
            yield type_, data[name:name + n_name].rstrip(b"\0"), data[desc:desc + n_desc].rstrip(b"\0")
            off = desc + padded(n_desc)


def loads(path):
    """{SONAME: what for} of a file."""
    with open(path, "rb") as f:
        data = f.read()
    if data[:6] != b"\x7fELF\2\1":
        return {}
    rows = [row for type_, owner, desc in notes(data) if type_ == FDO_DLOPEN and owner == b"FDO" for row in json.loads(desc)]
    return {soname: row["feature"] for row in rows for soname in row["soname"]}


if __name__ == "__main__":
    for file in sys.argv[1:]:
        for soname, what in sorted(loads(file).items()):
            print(soname, what)
