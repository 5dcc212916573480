#!/usr/bin/env python3
"""What registries take:  scripts/wheel.py BUILD... [--out FOLDER]   (make packages; default folder: packages in the first BUILD)

FOLDER gets libtern-VERSION-py3-none-manylinux_2_NN_ARCH.whl for each build, the Python binding with libtern in it, and libtern-VERSION.tgz, the Node
binding with the libtern of every build in it: one package serves all its processors. The libraries are those of the targets tern_bundled and tern_store_bundled, which have their dependencies inside: what they still want of the
system is looked at here, as auditwheel does, and names the wheel. The same tree gives the same bytes: times are those of $SOURCE_DATE_EPOCH, or 1980.
Nothing is sent anywhere."""
import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
NODE = {"x86_64": "x64", "aarch64": "arm64"}
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))


def read(path):
    with open(os.path.join(ROOT, path), "rb") as f:
        return f.read()


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def processor(library):
    header = said("readelf", "-hW", library)
    for word, arch in (("X86-64", "x86_64"), ("AArch64", "aarch64")):
        if re.search(rf"Machine: .*{word}", header):
            return arch
    raise SystemExit(f"wheel.py: {library} is for a processor that registries have no name for here")


def looked_at(library):
    """The newest GLIBC that it asks for. What else it wants of the system than the C library is an error, and so are paths to look for libraries."""
    dynamic = said("readelf", "-dW", library)
    wanted = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    if wanted - SYSTEM:
        raise SystemExit(f"wheel.py: {library} wants {', '.join(sorted(wanted - SYSTEM))}, which not every system has")
    if any(p != "$ORIGIN" for line in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic) for p in line.split(":")):
        raise SystemExit(f"wheel.py: {library} looks for libraries in a folder of this machine")
    return max(tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", said("readelf", "-VW", library)))


def wheel(libraries, version, tag, out):
    name, data = f"libtern-{version}-py3-none-{tag}.whl", {}
    for f in sorted(os.listdir(os.path.join(ROOT, "bindings/python/tern"))):
        if f.endswith(".py") or f == "py.typed":
            data["tern/" + f] = read("bindings/python/tern/" + f)
    for f, path in libraries.items():
        with open(path, "rb") as lib:
            data["tern/" + f] = lib.read()
    info = f"libtern-{version}.dist-info/"
    project = read("bindings/python/pyproject.toml").decode()
    summary = re.search(r'^description = "(.*)"', project, re.M)[1]
    python = re.search(r'^requires-python = "(.*)"', project, re.M)[1]
    data[info + "METADATA"] = (f"Metadata-Version: 2.1\nName: libtern\nVersion: {version}\nSummary: {summary}\nLicense: MIT\nRequires-Python: {python}\n"
                               "Provides-Extra: numpy\nRequires-Dist: numpy; extra == 'numpy'\nClassifier: License :: OSI Approved :: MIT License\n"
                               "Classifier: Operating System :: POSIX :: Linux\nClassifier: Typing :: Typed\nDescription-Content-Type: text/markdown\n\n"
                               ).encode() + read("bindings/python/README.md")
    data[info + "WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tern scripts/wheel.py\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n".encode()
    data[info + "LICENSE"] = read("LICENSE")
    record = "".join(f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b'=').decode()},{len(b)}\n" for n, b in data.items())
    data[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    when = max(time.gmtime(EPOCH)[:6], (1980, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(os.path.join(out, name), "w", zipfile.ZIP_DEFLATED) as z:
        for n, b in data.items():
            entry = zipfile.ZipInfo(n, when)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100755 if ".so" in n else 0o100644) << 16
            z.writestr(entry, b)
    return name


def npm(by_arch, version, out):
    package = json.loads(read("bindings/node/package.json"))
    files = {f: read("bindings/node/" + f) for f in package["files"] if os.path.isfile(os.path.join(ROOT, "bindings/node", f))}
    files["package.json"], files["LICENSE"] = read("bindings/node/package.json"), read("LICENSE")
    for arch, libraries in by_arch.items():
        for f, path in libraries.items():
            with open(path, "rb") as lib:
                files[f"lib/linux-{NODE[arch]}/{f}"] = lib.read()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as t:
        for n in sorted(files):
            e = tarfile.TarInfo("package/" + n)
            e.size, e.mtime, e.mode = len(files[n]), EPOCH, 0o755 if ".so" in n else 0o644
            t.addfile(e, io.BytesIO(files[n]))
    name = f"{package['name']}-{version}.tgz"
    with open(os.path.join(out, name), "wb") as f, gzip.GzipFile(filename="", mode="wb", fileobj=f, mtime=EPOCH) as g:
        g.write(raw.getvalue())
    return name


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("build", nargs="+")
    ap.add_argument("--out")
    a = ap.parse_args()
    out = os.path.abspath(a.out or os.path.join(a.build[0], "packages"))
    os.makedirs(out, exist_ok=True)
    version = re.search(r"^project\(tern VERSION (\S+)", read("CMakeLists.txt").decode(), re.M)[1]
    by_arch, names = {}, []
    for build in a.build:
        libraries = {n: os.path.join(os.path.abspath(build), "bundled", n) for n in ("libtern.so.1", "libtern-store.so.1")}
        glibc, arch = max(looked_at(p) for p in libraries.values()), processor(libraries["libtern.so.1"])
        if arch in by_arch:
            raise SystemExit(f"wheel.py: two builds for {arch}")
        by_arch[arch] = libraries
        names.append(wheel(libraries, version, f"manylinux_{glibc[0]}_{glibc[1]}_{arch}", out))
    for name in names + [npm(by_arch, version, out)]:
        with open(os.path.join(out, name), "rb") as f:
            data = f.read()
        print(f"{hashlib.sha256(data).hexdigest()}  {name}  {len(data) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
