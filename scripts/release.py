#!/usr/bin/env python3
"""Writes the installer of a release: release.py TEMPLATE OUT VERSION ADDRESS TARBALL..."""
import hashlib
import os
import sys


def main():
    template, out, version, address, *tarballs = sys.argv[1:]
    if any(c in address for c in "'\\\n"):
        sys.exit("release.py: the address has characters that no address has")
    sums = []
    for path in sorted(tarballs):
        with open(path, "rb") as f:
            sums.append(hashlib.sha256(f.read()).hexdigest() + "  " + os.path.basename(path))
    with open(template, encoding="utf-8") as f:
        text = f.read()
    for name, value in (("@VERSION@", version), ("@FROM@", address.rstrip("/")), ("@SUMS@", "\n".join(sums))):
        if name not in text:
            sys.exit(f"release.py: {template} has no {name}")
        text = text.replace(name, value)
    with open(out, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(out, 0o755)


if __name__ == "__main__":
    main()
