#!/usr/bin/env python3
"""Writes what a build of tern is made of, as CycloneDX 1.5: sbom.py OUT.json VERSION FILE... [deb:PACKAGE...]

The components are the files themselves, with their SHA-256, and the Debian packages of the libraries in them: the shared libraries that a file is linked
with or loads when it needs them (scripts/loads.py), found by the dynamic linker, or, of a static program beside which lies FILE.map, the archives that the linker took members of. deb:PACKAGE is a library that a
file is compiled with from its header. The same build gives the same bytes."""
import hashlib
import json
import os
import re
import subprocess
import sys

from loads import loads


def libraries(path):
    """The libraries that the dynamic linker would load for a file, or that its linker's map names."""
    if os.path.exists(path + ".map"):
        text = open(path + ".map", encoding="utf-8", errors="replace").read()
        members = text.split("\nMemory Configuration")[0].split("\n\n", 1)[1]
        found = {os.path.realpath(m[1]) for m in re.finditer(r"^(/\S+\.a)\(\S+\)$", members, re.M)}
        return found | {os.path.realpath(m[1]) for m in re.finditer(r"^LOAD (/\S+/crt1\.o|/\S+/rcrt1\.o)$", text, re.M)}
    # what it would load is listed as if it were loaded at once
    said = subprocess.run(["ldd", path], capture_output=True, text=True, check=True, env={**os.environ, "LD_PRELOAD": " ".join(loads(path))})
    out = said.stdout
    missing = re.findall(r"(\S+) => not found", out) + re.findall(r"object '(\S+)' from LD_PRELOAD cannot be preloaded", said.stderr)
    if missing:
        sys.exit(f"sbom.py: {path} needs {missing[0]}, which is not there")
    return {m.group(1) for m in re.finditer(r"(/\S+) \(0x", out)}


def described(owner):
    """The name, version, architecture and source of a package."""
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture} ${source:Package}\n", owner],
                           capture_output=True, text=True, check=True)
    return tuple(shown.stdout.split("\n")[0].split(" "))


def package_of(library):
    """The package that owns a library."""
    real = os.path.realpath(library)
    for name in (library, real, library.removeprefix("/usr"), real.removeprefix("/usr"), "/usr" + library):
        found = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        if found.returncode == 0:
            owner = found.stdout.split(": ")[0].split(",")[0]
            return described(owner)
    sys.exit(f"sbom.py: no package owns {library}")


def component(package):
    name, version, arch, source = package
    purl = f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}?arch={arch}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
            "properties": [{"name": "debian:source", "value": source}]}


def main():
    out, version, files = sys.argv[1], sys.argv[2], [f for f in sys.argv[3:] if not f.startswith("deb:")]
    compiled = {described(f[4:]) for f in sys.argv[3:] if f.startswith("deb:")}
    parts, needs, owners = [], {}, {}
    own = {os.path.realpath(f) for f in files}
    for f in files:
        digest = hashlib.sha256(open(f, "rb").read()).hexdigest()
        ref = "tern/" + os.path.basename(f)
        parts.append({"type": "file", "bom-ref": ref, "name": os.path.basename(f), "version": version,
                      "hashes": [{"alg": "SHA-256", "content": digest}]})
        packages = {package_of(x) for x in libraries(f) if os.path.realpath(x) not in own} | compiled
        for p in packages:
            owners[component(p)["bom-ref"]] = component(p)
        needs[ref] = sorted(component(p)["bom-ref"] for p in packages)
    root = f"pkg:generic/tern@{version}"
    bom = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
           "metadata": {"component": {"type": "application", "bom-ref": root, "name": "tern", "version": version}},
           "components": parts + [owners[k] for k in sorted(owners)],
           "dependencies": [{"ref": root, "dependsOn": [p["bom-ref"] for p in parts]}] +
                           [{"ref": k, "dependsOn": v} for k, v in sorted(needs.items())] +
                           [{"ref": k, "dependsOn": []} for k in sorted(owners)]}
    with open(out, "w", encoding="utf-8") as f:
        json.dump(bom, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
