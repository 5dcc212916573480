#!/usr/bin/env python3
"""Writes src/lean/unicode_table.c: what a minimal build knows of Unicode, as the installed utf8proc has it.

  scripts/unicode_tables.py >src/lean/unicode_table.c

The characters of the Han script are those that PCRE2's \\p{Han} matches. tests/lean/unicode.c compares the tables
with both libraries, so that a newer library is noticed there."""
import ctypes

u = ctypes.CDLL("libutf8proc.so.2")
u.utf8proc_decompose.restype = ctypes.c_ssize_t
u.utf8proc_unicode_version.restype = ctypes.c_char_p
LAST = 0x110000
STABLE, DECOMPOSE, COMPOSE = 2, 16, 8
category = [u.utf8proc_category(c) for c in range(LAST)]


class Property(ctypes.Structure):
    _fields_ = [("category", ctypes.c_int16), ("combining_class", ctypes.c_int16)]


u.utf8proc_get_property.restype = ctypes.POINTER(Property)


def map_with(cps, flags):
    buf = (ctypes.c_int32 * 16)()
    text = "".join(map(chr, cps)).encode()
    n = u.utf8proc_decompose(text, ctypes.c_ssize_t(len(text)), buf, ctypes.c_ssize_t(16), flags)
    if flags & COMPOSE:
        u.utf8proc_normalize_utf32.restype = ctypes.c_ssize_t
        n = u.utf8proc_normalize_utf32(buf, ctypes.c_ssize_t(n), STABLE | COMPOSE)
    return list(buf[:n])


def runs(values):
    out = []
    for cp, v in enumerate(values):
        if not out or out[-1][1] != v:
            out.append((cp, v))
    return out


def han():
    p = ctypes.CDLL("libpcre2-8.so.0")
    for f in ("pcre2_compile_8", "pcre2_match_data_create_8"):
        getattr(p, f).restype = ctypes.c_void_p
    p.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
    utf_ucp, code, at = ctypes.c_uint32(0x00080000 | 0x00020000), ctypes.c_int(), ctypes.c_size_t()
    pattern = rb"\p{Han}+"
    re = ctypes.c_void_p(p.pcre2_compile_8(pattern, ctypes.c_size_t(len(pattern)), utf_ucp, ctypes.byref(code), ctypes.byref(at), None))
    md = ctypes.c_void_p(p.pcre2_match_data_create_8(1, None))
    text = "".join(chr(c) for c in range(LAST) if not 0xD800 <= c < 0xE000).encode()
    ov, pos, out = p.pcre2_get_ovector_pointer_8(md), 0, []
    while p.pcre2_match_8(re, text, ctypes.c_size_t(len(text)), ctypes.c_size_t(pos), ctypes.c_uint32(0), md, None) > 0:
        run = text[ov[0]:ov[1]].decode()
        out.append((ord(run[0]), ord(run[-1])))
        pos = ov[1]
    return out


def cases():
    """Runs of characters, every one or every second, that one number takes to their other case."""
    out = []
    for kind, f in enumerate(("utf8proc_toupper", "utf8proc_tolower", "utf8proc_totitle")):
        mapped = [(c, getattr(u, f)(c) - c) for c in range(LAST) if getattr(u, f)(c) != c]
        i = 0
        while i < len(mapped):
            cp, delta = mapped[i]
            step = mapped[i + 1][0] - cp if i + 1 < len(mapped) and mapped[i + 1][1] == delta else 1
            step = step if step in (1, 2) else 1
            n = 1
            while i + n < len(mapped) and mapped[i + n] == (cp + n * step, delta) and n < 65535:
                n += 1
            out.append((kind, cp, n, step, delta))
            i += n
    return out


def canonical():
    """One step of canonical decomposition: the first of a full one and the rest are themselves pairs or single."""
    out = []
    full = {}
    for c in range(LAST):
        if 0xD800 <= c < 0xE000 or 0xAC00 <= c < 0xD7A4:
            continue
        d = map_with([c], STABLE | DECOMPOSE)
        if d != [c]:
            full[c] = d
    whole = {tuple(d): c for c, d in full.items() if len(d) > 1 and map_with([c], STABLE | COMPOSE) == [c]}
    for c, d in sorted(full.items()):
        if len(d) == 1:
            out.append((c, d[0], 0, False))
            continue
        # the pair it was composed of: everything but the last, composed, and the last
        head = map_with(d[:-1], STABLE | COMPOSE)
        if len(head) > 1 and len(d) > 2:  # what never composes
            head = [next(k for k, v in full.items() if v == d[:-1])]
        first = head[0] if len(head) == 1 else d[0]
        out.append((c, first, d[-1], map_with([first, d[-1]], STABLE | COMPOSE) == [c] and whole.get(tuple(d)) == c))
    return out


def table(kind, name, rows, per_line=8):
    print(f"const {kind} {name}[] = {{")
    for i in range(0, len(rows), per_line):
        print("    " + ", ".join(rows[i:i + per_line]) + ",")
    print("};")
    print(f"const size_t {name}_n = sizeof {name} / sizeof *{name};\n")


print("/* Written by scripts/unicode_tables.py from utf8proc, Unicode %s. */" % u.utf8proc_unicode_version().decode())
print("/* clang-format off */")
print('#include "lean/unicode_table.h"\n')
table("uint32_t", "tn_uni_categories", [f"0x{cp << 5 | v:x}" for cp, v in runs(category)], 16)
classes = [u.utf8proc_get_property(c).contents.combining_class for c in range(LAST)]
table("uint32_t", "tn_uni_classes", [f"0x{cp << 8 | v:x}" for cp, v in runs(classes)], 12)
table("tn_uni_case", "tn_uni_cases", ["{0x%x, %d, %d, %d, %d}" % (cp, n, step, kind, delta) for kind, cp, n, step, delta in cases()], 8)
pairs = canonical()
table("uint64_t", "tn_uni_pairs", [f"0x{(ok << 63) | c << 42 | a << 21 | b:x}" for c, a, b, ok in pairs], 10)
order = sorted((i for i, p in enumerate(pairs) if p[3]), key=lambda i: (pairs[i][1], pairs[i][2]))
table("uint16_t", "tn_uni_composed", [str(i) for i in order], 32)
table("tn_uni_range", "tn_uni_han", ["{0x%x, 0x%x}" % r for r in han()], 8)
