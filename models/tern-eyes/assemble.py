#!/usr/bin/env python3
"""Puts tern-eyes together: tern-tiny with the tower and the adapter that were trained on top of it, as a Hugging Face folder (Idefics3).

    models/tern-eyes/assemble.py OUT_FOLDER

Only what was learned is kept in the repository (eyes.safetensors: matrices as int8 with a scale a row, vectors as float32). Needs Python alone.
"""
import json
import os
import shutil
import sys
from array import array

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "../tern-tiny")
MARKS = ["<image>", "<fake_token_around_image>", "<global-img>"]


def read(path):
    """name -> (type, shape, bytes)"""
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        head = json.loads(f.read(n))
        data = f.read()
    return {k: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for k, t in head.items() if k != "__metadata__"}


def write(path, tensors):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        kind, shape, data = tensors[name]
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            f.write(tensors[name][2])
    os.replace(path + ".part", path)


def little(values):
    if sys.byteorder == "big":
        values.byteswap()
    return values


def from_bf16(data):
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return little(array("f", bytes(wide)))


def to_bf16(values):
    """Rounded to the nearest, halves to even ones."""
    bits = array("I", array("f", values).tobytes())
    return little(array("H", [(x + 0x7FFF + (x >> 16 & 1)) >> 16 for x in bits])).tobytes()


def learned(path):
    """name -> (shape, values of a kept tensor), its codes times the scales of their rows."""
    kept, out = read(path), {}
    for name, (kind, shape, data) in kept.items():
        if kind == "F32" and not name.endswith(".scale"):
            out[name] = shape, little(array("f", data))
        elif kind == "I8":
            codes, scales = array("b", data), little(array("f", kept[name + ".scale"][2]))
            n = len(codes) // len(scales)
            values = array("f")
            for i, scale in enumerate(scales):
                values.extend([scale * x for x in codes[i * n:i * n + n]])
            out[name] = shape, values
    return out


def adapted(weight, rows, a, b, rank):
    """weight + b a, where a is [rank][columns] and b is kept as [rank][rows]; rank is 8."""
    width = len(weight) // rows
    assert rank == 8
    parts = [a[r * width:r * width + width] for r in range(rank)]
    out = array("f")
    for i in range(rows):
        s, t, u, v, w, x, y, z = b[i::rows]
        row = weight[i * width:i * width + width]
        out.extend([q + s * c + t * d + u * e + v * f + w * g + x * h + y * j + z * k for q, c, d, e, f, g, h, j, k in zip(row, *parts)])
    return out


def weights():
    eyes, tensors = learned(f"{HERE}/eyes.safetensors"), {}
    for name, (kind, shape, data) in read(f"{TINY}/model.safetensors").items():
        assert kind == "BF16", name
        pair = name[:-len(".weight")]
        if pair + ".a" in eyes:
            (rank, _), a = eyes.pop(pair + ".a")
            data = to_bf16(adapted(from_bf16(data), shape[0], a, eyes.pop(pair + ".b")[1], rank))
        if name == "model.embed_tokens.weight":
            (rows, width), marks = eyes.pop("marks")
            assert rows == len(MARKS) and width == shape[1]
            shape, data = [shape[0] + rows, width], data + to_bf16(marks)
        tensors["model.text_model." + name[len("model."):]] = kind, shape, data
    for name, (shape, values) in eyes.items():
        tensors[name] = "BF16", shape, to_bf16(values)
    return tensors


def dump(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    for name in ("config.json", "preprocessor_config.json", "chat_template.jinja"):
        shutil.copyfile(f"{HERE}/{name}", f"{out}/{name}")
    shutil.copyfile(f"{TINY}/generation_config.json", f"{out}/generation_config.json")
    tokenizer = json.load(open(f"{TINY}/tokenizer.json", encoding="utf-8"))
    said = json.load(open(f"{TINY}/tokenizer_config.json", encoding="utf-8"))
    first = json.load(open(f"{HERE}/config.json", encoding="utf-8"))["image_token_id"]
    for i, mark in enumerate(MARKS):
        how = {"content": mark, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
        tokenizer["added_tokens"].append({"id": first + i, **how})
        said["added_tokens_decoder"][str(first + i)] = how
    said.pop("chat_template", None)
    dump(f"{out}/tokenizer.json", tokenizer)
    dump(f"{out}/tokenizer_config.json", said)
    write(f"{out}/model.safetensors", weights())  # last: where it is, the folder is whole


if __name__ == "__main__":
    main()
