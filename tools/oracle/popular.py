#!/usr/bin/env python3
"""Runs llama.cpp's own converter on the folders of tests/oracle/popular.py, and keeps what it did to them as recipes in tests/oracle/popular.json.

    popular.py LLAMA [--keep DIR] [--write] [MODEL ...]
    popular.py LLAMA --logits LOGITS [MODEL ...]     llama.cpp's answers to the same files (LOGITS: logits.cpp beside this, built)

LLAMA is llama.cpp's source. Needs PyTorch and sentencepiece (Debian: python3-torch python3-sentencepiece); transformers is stood in for, since the
converter asks it only for the vocabulary, which lies in the folder. Without them it says so and exits with 77. Without --write a recipe that differs from
the table's is an error; --keep leaves folders and the converter's files in DIR.
"""
import argparse
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import types

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parents[1] / "tests" / "oracle"))
import popular  # noqa: E402


# ---- the converter, in a process of its own -----------------------------------------------------------


class Vocabulary:
    """What the converter asks of transformers' AutoTokenizer, of a folder's tokenizer.json."""

    def __init__(self, folder):
        t = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())
        self.base, added = t["model"]["vocab"], t["added_tokens"]
        self.added_tokens_decoder = {a["id"]: types.SimpleNamespace(**a) for a in added}
        self.vocab = {**self.base, **{a["content"]: a["id"] for a in added}}
        self.vocab_size = len(self.base)
        self.all_special_ids = [a["id"] for a in added if a["special"]]
        self.all_special_tokens = [a["content"] for a in added if a["special"]]
        self.is_fast = True

    @classmethod
    def from_pretrained(cls, folder, **_):
        return cls(folder)

    def get_vocab(self):
        return self.vocab

    def get_added_vocab(self):
        return {a.content: i for i, a in self.added_tokens_decoder.items()}

    def encode(self, text, **_):  # of added tokens alone, which are what they say
        return [text]

    def decode(self, ids, **_):
        return "".join(ids)


def configuration(folder, **_):
    """config.json with what transformers' classes derive where it is left out, as the converter needs it."""
    c = json.loads((pathlib.Path(folder) / "config.json").read_text())
    t = c.get("text_config", c)
    if "full_attn_idxs" in t:
        t["layer_types"] = ["full_attention" if i in t["full_attn_idxs"] else "conv" for i in range(t["num_hidden_layers"])]
    if c["model_type"] == "gemma4":
        t.setdefault("moe_intermediate_size", None)
    return types.SimpleNamespace(to_dict=lambda: c)


def convert(llama, folder, out, pre, outtype):
    import torch
    for dtype in ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"):
        if not hasattr(torch, dtype):
            setattr(torch, dtype, f"no {dtype}")
    stand_in = types.ModuleType("transformers")
    stand_in.AutoTokenizer, stand_in.AutoConfig = Vocabulary, types.SimpleNamespace(from_pretrained=configuration)
    stand_in.PreTrainedTokenizer = stand_in.PreTrainedTokenizerFast = Vocabulary
    sys.modules["transformers"] = stand_in
    sys.path.insert(0, llama)
    sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", out, "--outtype", outtype]
    spec = importlib.util.spec_from_file_location("convert_hf_to_gguf", pathlib.Path(llama) / "convert_hf_to_gguf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import conversion
    conversion.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre  # it knows vocabularies by a hash, and not small ones
    module.main()


# ---- recipes ------------------------------------------------------------------------------------------


def read_gguf(llama, path):
    """(keys, tensors: name -> (type, array))."""
    sys.path.insert(0, str(pathlib.Path(llama) / "gguf-py"))
    import gguf
    r = gguf.GGUFReader(str(path))
    keys = {}
    for f in r.fields.values():
        if not f.name.startswith("GGUF."):
            v = f.contents()
            keys[f.name] = [f.types[-1].name.lower(), v] if f.types[0] != gguf.GGUFValueType.ARRAY else [f.types[-1].name.lower() + "[]", v]
    tensors = {}
    for t in r.tensors:
        data = np.array(t.data)
        if t.tensor_type.name == "BF16":
            data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        tensors[t.name] = t.tensor_type.name, data.reshape([int(n) for n in t.shape][::-1]).astype(np.float64)
    return keys, tensors


def source_key(name):
    """The name with its layer and its expert left open."""
    if name.startswith("mtp."):
        return name, "mtp"
    layer = re.search(r"\.(?:layers|h)\.(\d+)\.", name)
    key = re.sub(r"\.((?:layers|h))\.\d+\.", r".\1.{i}.", name)
    return re.sub(r"\.experts\.\d+\.", ".experts.{e}.", key), layer and int(layer[1])


def fingerprint(v):
    """The same for the same values in any order."""
    v = np.asarray(v, np.float32).astype(np.float64)
    return v.size, round(float(v.sum()), 3), round(float((v * v).sum()), 3)


def swap_of(source, target):
    """How blocks of rows, or of columns, were exchanged: [axis, first, n, a, b, w]; None: not so."""
    if source.ndim == 3 and 1 in source.shape:
        source = source.squeeze()
    if source.ndim == 3 and source.reshape(target.shape).shape == target.shape:
        source = source.reshape(target.shape)
    for axis in range(source.ndim):
        if source.shape != target.shape:
            continue
        s, t = np.moveaxis(source, axis, 0), np.moveaxis(target, axis, 0)
        rows = {r.tobytes(): i for i, r in enumerate(np.ascontiguousarray(s))}
        order = [rows.get(r.tobytes()) for r in np.ascontiguousarray(t)]
        if len(rows) != len(s) <= 64:  # some are equal
            for n, a, b in ((n, a, b) for n in range(1, 9) for a in range(2, 17) for b in range(2, 17) if n * a * b == len(s)):
                if np.array_equal(s.reshape(n, a, b, *s.shape[1:]).swapaxes(1, 2).reshape(s.shape), t):
                    return [axis, 0, n, a, b, 1]
        if None in order or len(rows) != len(s):
            continue
        n_rows = len(order)
        first = next((i for i in range(n_rows) if order[i] != i), n_rows)
        for start in [f for f in range(first, -1, -1) if f in (0, first) or n_rows - f in (n_rows // 2, n_rows // 3)] + list(range(first, -1, -1)):
            size = n_rows - start
            w = 1
            while start + w < n_rows and order[start + w] == order[start] + w:
                w += 1
            for a in range(2, size // w + 1):
                for b in range(2, size // (a * w) + 1):
                    if size % (a * b * w):
                        continue
                    n = size // (a * b * w)
                    want = start + np.arange(size).reshape(n, a, b, w).swapaxes(1, 2).reshape(-1)
                    if order[start:] == want.tolist():
                        return [axis, start, n, a, b, w]
    return None


def spec_of(kind, target, sources):
    """How a GGUF tensor was made of the folder's: the first way that gives its values."""
    exact = lambda v: np.asarray(v, np.float32).astype(np.float64)
    for f, cut in ((None, False), ("+1", False), ("-exp", False), (None, True)):  # parts of a tensor last
        for name, v in sources.items():
            whole = v + 1 if f == "+1" else -np.exp(np.minimum(v, 80).astype(np.float32)) if f == "-exp" else v
            near = (lambda a, b: np.allclose(a, b, rtol=1e-6, atol=0)) if f == "-exp" else np.array_equal
            parts = [(None, whole)] if whole.size == target.size and not cut else []
            if cut and whole.size > target.size and f is None:
                for axis in range(min(whole.ndim, 2)):
                    n, rest = whole.shape[axis], whole.size // whole.shape[axis]
                    if target.size % rest == 0:
                        rows = target.size // rest
                        parts += [([axis, a, a + rows], whole.take(range(a, a + rows), axis)) for a in range(0, n - rows + 1, max(rows // 4, 1))]
            if cut and whole.ndim == 2 and target.ndim == 3 and f is None and whole.size > target.size:  # parts of every head's rows
                by = whole.reshape(target.shape[0], -1, whole.shape[1])
                for n in set(target.shape[1:]):
                    if n * by.shape[0] * by.shape[2] != target.size:
                        continue
                    parts += [([1, a, a + n], by[:, a:a + n]) for a in (0, by.shape[1] - n)]
            for rows, part in parts:
                spec = {"type": kind, "of": name}
                if rows:
                    spec["rows"] = rows
                    if part.ndim > whole.ndim:
                        spec["heads"] = target.shape[0]
                if f:
                    spec["f"] = f
                part = exact(part)
                if f == "-exp" and part.size == target.size:  # two libraries' exp may differ in the last bit
                    at = np.sort(part.reshape(-1))
                    nearest = at[np.clip(np.searchsorted(at, target * (1 + 1e-6)), 0, at.size - 1)]
                    target = nearest if np.allclose(nearest, target, rtol=1e-6, atol=0) else target
                if near(part.reshape(target.shape), target):
                    if part.shape != target.shape:
                        spec["shape"] = list(target.shape)
                    return spec
                if fingerprint(part) == fingerprint(target):
                    swap = swap_of(part, target)
                    if swap:
                        spec["swap"] = swap
                        got = popular.done({**spec, "of": "x"} | ({"rows": rows} if rows else {}), {"x": types.SimpleNamespace(values=v)})
                        if got.shape != target.shape:
                            spec["shape"] = list(target.shape)
                        return spec
                if part.ndim >= 2 and part.swapaxes(-1, -2).shape == target.shape and near(part.swapaxes(-1, -2), target):
                    return {**spec, "turned": True}
    return None


def recipe_of(keys, stored, tensors, tokens, config):
    """(recipe, what no recipe was found for)."""
    strange, out = [], {}
    names = {"@" + w: popular.listed(w, tokens) for w in ("tokens", "merges", "types", "scores")}
    for key, (kind, v) in keys.items():
        if key.startswith("general.") and key != "general.architecture":
            continue
        if kind == "string" and key.startswith("tokenizer.chat_template"):
            template = tokens.config().get("chat_template")
            out[key] = [kind, "@template" if v == template else v]
            continue
        known = next((n for n, w in names.items() if isinstance(v, list) and v == w), None)
        plain = {"uint32": int, "float32": float, "bool": bool, "string": str}.get(kind)
        v = known or (float(f"{v:.9g}") if kind == "float32" else v)
        if isinstance(v, list) and len(v) > 600:
            strange.append(f"{key} is none of the vocabulary's lists")
        out[key] = v if plain and not known and isinstance(v, plain) else [kind, v]
    groups = {}
    for name, v in tensors.items():
        key, layer = source_key(name)
        groups.setdefault((key, layer), []).append(v)
    made = {}
    for name, (kind, target) in stored.items():
        template = re.sub(r"^blk\.\d+\.", "blk.{i}.", name)
        layer = int(name.split(".")[1]) if template != name else None
        near = {k: np.stack(v) if "{e}" in k else v[0] for (k, l), v in groups.items()
                if l == layer or (l == "mtp" and layer == popular.flat(config)["num_hidden_layers"])}
        spec = spec_of(kind, target, near)
        if spec is None and layer is None and name.startswith("rope_"):
            spec = {"type": kind, "of": [float(f"{x:.9g}") for x in target.reshape(-1)]}
        if spec is None:
            strange.append(f"{name} {list(target.shape)} is made of nothing that is known")
            continue
        made.setdefault(template, {}).setdefault(json.dumps(spec), []).append(layer)
    specs = {}
    for template, ways in made.items():
        for text, layers in ways.items():
            spec = json.loads(text)
            if layers != [None]:
                all_of_it = [l for (k, l) in groups if k == spec["of"]]
                if "mtp" in all_of_it or sorted(all_of_it) != sorted(layers) or len(ways) > 1:
                    spec["layers"] = layers
            name = template if len(ways) == 1 else template + "#" + str(layers[0])
            specs[name] = f"{spec['type']} {spec['of']}" if set(spec) == {"type", "of"} and isinstance(spec["of"], str) else spec
    return (out, specs), strange


def answers(program, name, where):
    """How far llama.cpp's logits are from the float64 model's, as a share of the largest of their position; or what it says instead."""
    model = popular.TABLE["models"][name]
    config, tensors, tokens = popular.build(name)
    keys, stored = popular.by_recipe(model["gguf"], config, tensors, tokens)
    wide = {k: popular.Stored(t.values, "F32") for k, t in stored.items()}  # it rounds what halves are multiplied by
    v = popular.vectors(name, config, tensors, 128)
    popular.write_gguf(where / "wide.gguf", keys, wide)
    (where / "ids").write_text(" ".join(map(str, v["tokens"])))
    run = subprocess.run([program, where / "wide.gguf", where / "ids", where / "out"], capture_output=True, text=True)
    if run.returncode:
        return "llama.cpp says: " + " ".join(run.stderr.split("\n"))[-200:]
    got = np.fromfile(where / "out", np.float32).reshape(len(v["tokens"]), -1)[v["positions"]]
    want = np.array(v["logits"])
    return f"{np.max(np.abs(got - want).max(axis=1) / np.abs(want).max(axis=1)):.1e}"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("llama")
    p.add_argument("--keep", type=pathlib.Path)
    p.add_argument("--write", action="store_true")
    p.add_argument("--logits")
    p.add_argument("--convert", nargs=4, help=argparse.SUPPRESS)
    p.add_argument("models", nargs="*")
    o = p.parse_intermixed_args()
    if o.convert:
        return convert(o.llama, *o.convert)
    if o.logits:
        with tempfile.TemporaryDirectory() as tmp:
            for name in o.models or popular.TABLE["models"]:
                print(f"{name}: {answers(o.logits, name, pathlib.Path(tmp))}", flush=True)
        return
    for need in ("torch", "sentencepiece"):
        if importlib.util.find_spec(need) is None:
            print(f"{need} is not installed; skipped")
            sys.exit(77)
    if not (pathlib.Path(o.llama) / "convert_hf_to_gguf.py").exists():
        print(f"{o.llama} is not llama.cpp's source; skipped")
        sys.exit(77)
    bad = []
    with tempfile.TemporaryDirectory() as tmp:
        where = o.keep or pathlib.Path(tmp)
        for name in o.models or popular.TABLE["models"]:
            model = popular.TABLE["models"][name]
            config, tensors, tokens = popular.build(name)
            folder, out = where / popular.file_name(name), where / f"{popular.file_name(name)}.converted.gguf"
            if not folder.exists():
                popular.write_folder(folder, model, config, tensors, tokens)
            run = subprocess.run([sys.executable, __file__, o.llama, "--convert", str(folder), str(out), tokens.t["pre"],
                                  popular.dtype_of(config).lower()], capture_output=True, text=True)
            if run.returncode:
                bad.append(name)
                print(f"{name}: the converter says: {run.stderr.strip().splitlines()[-1]}")
                continue
            keys, stored = read_gguf(o.llama, out)
            recipe, strange = recipe_of(keys, stored, {k: t.values for k, t in tensors.items()}, tokens, config)
            for s in strange:
                print(f"{name}: {s}")
            if o.write and not strange:
                popular.keep_recipe(name, *recipe)
            elif strange or list(recipe) != [g["keys"], popular.TABLE["tensors"][g["tensors"]]] if (g := model.get("gguf")) else True:
                bad.append(name)
                print(f"{name}: the recipe is not the table's")
    if o.write:
        popular.write_table()
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
