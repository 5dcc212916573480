"""Popular models as they are published: their configurations (popular.json has each with its source), shrunk in what only costs room, with random
weights, as Hugging Face folders and as the GGUF files that llama.cpp's converter makes of them, and the logits of the float64 models.

  popular.py OUT [MODEL ...]   writes OUT/MODEL/ (the folder, with vectors.json) and OUT/MODEL.gguf

A GGUF file is written by a recipe that was read off the converter's own file (tools/oracle/popular.py): every key, and of every tensor its type and
what was done to the folder's tensors. Nothing here knows the engine.
"""
import copy
import json
import pathlib
import re
import struct
import sys

import numpy as np

import cases
import reference
from families import text_of
from files import Stored, write_gguf, write_hf_folder

HERE = pathlib.Path(__file__).parent
TABLE = json.loads((HERE / "popular.json").read_text())
SLIDING = "sliding_attention"


def file_name(model):
    return model.split("/")[1]


# ---- what only costs room -----------------------------------------------------------------------------


def period(kinds):
    """Layers until every kind has occurred."""
    return max(kinds.index(k) for k in set(kinds)) + 1


def n_layers(t):
    """The fewest in which every kind of layer occurs, and one more."""
    if t.get("num_kv_shared_layers"):
        return 3 * period(t["layer_types"])
    if "hybrid_override_pattern" in t:
        return period(t["hybrid_override_pattern"])
    if "full_attn_idxs" in t:
        return t["full_attn_idxs"][1] + 1
    for key in ("layer_types", "no_rope_layers"):
        if len(set(t.get(key, []))) > 1:
            return period(t[key]) + 1
    if "sliding_window_pattern" in t:
        return t["sliding_window_pattern"] + 1
    return t.get("first_k_dense_replace", 1) + 2


def shrunk_heads(t):
    n, kv = t["num_attention_heads"], t.get("num_key_value_heads", t["num_attention_heads"])
    few = min(kv, 2)
    t["num_attention_heads"] = n // kv * few
    if "num_key_value_heads" in t:
        t["num_key_value_heads"] = few
    if t.get("num_global_key_value_heads"):
        t["num_global_key_value_heads"] = max(few * t["num_global_key_value_heads"] // kv, 1)
    if t.get("model_type") == "bailing_moe":  # whose readers take the heads together to be as wide as a row
        return t["num_attention_heads"] * t["head_dim"]
    if t.get("head_dim") or "kv_lora_rank" in t:
        return 64
    scaled_by_pair = "long_factor" in (t.get("rope_scaling") or {})
    return t["num_attention_heads"] * (reference.geometry({**t, "num_attention_heads": n})[2] if scaled_by_pair else 32)


def shrunk(published, n_vocab, ids):
    """The configuration with fewer and smaller layers, heads, experts and a smaller vocabulary. What has a meaning of its own stays as it was:
    ratios of heads, sizes of heads that are given, rope, patterns of layers, multipliers. ids: published token -> token of the small vocabulary."""
    c = copy.deepcopy(published)
    t = c.get("text_config", c)
    layers, whole = n_layers(t), t["num_hidden_layers"]
    width = shrunk_heads(t)
    for key in ("conv_dim", "conv_dim_out", "block_dim"):
        if key in t:
            t[key] = width
    if "block_ff_dim" in t:
        t["block_ff_dim"] = 96 if t.get("intermediate_size") else width * t["block_ff_dim"] // t["hidden_size"]
    t["hidden_size"] = width
    if t.get("num_kv_shared_layers"):
        t["num_kv_shared_layers"] = 2 * layers // 3
    t["num_hidden_layers"] = layers
    for key in ("layer_types", "no_rope_layers", "hybrid_override_pattern", "activation_sparsity_pattern"):
        if key in t:
            assert len(t[key]) == whole
            t[key] = t[key][:layers]
    if "full_attn_idxs" in t:
        t["full_attn_idxs"] = [i for i in t["full_attn_idxs"] if i < layers]
    if "moe_shared_expert_intermediate_size" in t:
        t["moe_shared_expert_intermediate_size"] = 32 * t["moe_shared_expert_intermediate_size"] // t["moe_intermediate_size"]
    for key, size in dict(intermediate_size=96, moe_intermediate_size=32, shared_expert_intermediate_size=32, hidden_size_per_layer_input=32,
                          q_lora_rank=64, kv_lora_rank=64, mamba_head_dim=16, ssm_state_size=16, num_experts=16, n_routed_experts=16).items():
        if t.get(key):
            t[key] = size
    for many, few in (("linear_num_value_heads", "linear_num_key_heads"), ("mamba_num_heads", "n_groups")):
        if many in t:
            t[many], t[few] = 2 * t[many] // t[few], 2
    if t.get("sliding_window") and t["sliding_window"] < t["max_position_embeddings"]:
        t["sliding_window"] = min(max(t["sliding_window"] // 64, 8), 24)  # a short text shows it
    for o in [c] if t is c else [c, t]:
        if "vocab_size_per_layer_input" in o:
            o["vocab_size_per_layer_input"] = n_vocab - (o["vocab_size"] - o["vocab_size_per_layer_input"])
        if "vocab_size" in o:
            o["vocab_size"] = n_vocab
        for key, v in o.items():
            if re.search(r"_token_(id|index)$", key) and v is not None:
                o[key] = [ids[i] for i in v] if isinstance(v, list) else ids[v]
    return c


# ---- weights ------------------------------------------------------------------------------------------


def flat(config):
    """The configuration of the text alone, in the float64 models' words, with what the family's layers are where the configuration leaves it out."""
    t = text_of(config)
    family = (config.get("text_config") or {}).get("model_type", t["model_type"])
    t = {**t, "model_type": {"gemma4": "gemma4_text", "qwen3_vl_text": "qwen3_vl", "bailing_moe": "bailing_moe_v2"}.get(family, family)}
    family, n = t["model_type"], t["num_hidden_layers"]
    t.pop("vision_config", None)
    if family == "gemma3_text" and "layer_types" not in t:
        t["layer_types"] = [SLIDING if (i + 1) % t["sliding_window_pattern"] else "full_attention" for i in range(n)]
    if family == "lfm2":
        t.setdefault("layer_types", ["full_attention" if i in t.get("full_attn_idxs", []) else "conv" for i in range(n)])
        t.setdefault("intermediate_size", t["block_ff_dim"])
        every = t["block_multiple_of"]
        if t["block_auto_adjust_ff_dim"]:
            t["adjusted_ff_dim"] = -(-int(2 * t["block_ff_dim"] / 3) // every) * every
    if family == "minicpm":
        t["rope_theta"] = t.get("rope_theta", 10000.0)
    if family == "qwen3_5_moe_text":
        t.setdefault("intermediate_size", 0)
    t.setdefault("tie_word_embeddings", family in ("gemma2", "gemma3_text", "smollm3"))
    return t


def prefixed(key, model):
    """Published checkpoints that see keep the text's tensors under another name."""
    prefix = model.get("prefix")
    return key if not prefix or key.startswith(("lm_head", "mtp.")) else key.replace("model.", prefix, 1)


def dtype_of(config):
    t = text_of(config)
    return {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[t.get("dtype") or t.get("torch_dtype") or "bfloat16"]


def weights(name, config):
    t, dtype = flat(config), dtype_of(config)
    out = cases.checkpoint(name, t, dtype, dtype, dtype)
    for key, v in out.items():  # Gemma 4 does not scale scores: heads of hundreds of values would make attention all or nothing
        if t["model_type"] == "gemma4_text" and key.endswith("q_norm.weight"):
            out[key] = Stored(v.values / 8, dtype)
    return out


def guessing_layer(name, config, tensors):
    """One layer more, which guesses a token further: the last one's tensors by random ones of their shapes, and what joins it to the others."""
    t = flat(config)
    n, c = t["num_hidden_layers"], t["hidden_size"]
    last, more = f"model.layers.{n - 1}.", f"model.layers.{n}."
    shapes = {more + k[len(last):]: v.values.shape for k, v in tensors.items() if k.startswith(last)}
    shapes |= {more + "eh_proj.weight": (c, 2 * c), more + "enorm.weight": (c,), more + "hnorm.weight": (c,), more + "shared_head.norm.weight": (c,)}
    dtypes = {more + k[len(last):]: v.dtype for k, v in tensors.items() if k.startswith(last)}
    return {k: Stored(cases.uniform(name + k, s), dtypes.get(k, "BF16")) for k, s in shapes.items()}


# ---- tokenizers ---------------------------------------------------------------------------------------

WORDS = "t h|h e|i n|a n|r e|th e|an d|o u|S t|o r|in g|S the|S and|S a|l l|e r|S w|w o|wo r|wor l|worl d|S world|1 2|12 3".split("|")


def byte_alphabet():
    """GPT-2's letters for bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) if b in keep else chr(256 + sum(x not in keep for x in range(b))) for b in range(256)]


class Tokens:
    """A small vocabulary in the form of the model's: its added tokens in their order, at the front or the back as they are published, and rows of the
    embedding that stand for no token."""

    def __init__(self, model):
        t = TABLE["tokenizers"][model["tokenizer"]]
        self.t, self.bytes = t, t["kind"] == "bytes"
        space = "Ġ" if self.bytes else "▁"
        self.merges = [tuple(m.replace("S", space).split(" ")) for m in WORDS]
        added = {int(k): v for k, v in t["added"].items()}
        for_ids = set(added)
        front = [added[i] for i in sorted(for_ids) if i < t["first"]]
        back = [added[i] for i in sorted(for_ids) if i >= t["first"]]
        if self.bytes:
            base = byte_alphabet()
        else:
            base = [f"<0x{b:02X}>" for b in range(256)]
            front = front + base
            base = [space, *"abcdefghijklmnopqrstuvwxyz0123456789.,!?'"]
        base = base + ["".join(m) for m in self.merges]
        self.texts = front + base + back
        self.added = {self.texts.index(a) if a in self.texts else 0: a for a in added.values()}
        self.id = {published: self.texts.index(text) for published, text in added.items()}
        self.n_vocab = len(self.texts) + t["unused"]
        if t["unused"]:
            self.n_vocab += -self.n_vocab % 8  # as all that are padded

    def special(self, text):
        return text not in self.t.get("user", [])

    def ids(self, published):
        """Of the configuration's tokens; those of pictures, which the tokenizer's list here leaves out, are tokens without a text."""
        out, spare = dict(self.id), len(self.texts)
        t = published.get("text_config", published)
        for o in (published, t):
            for key, v in o.items():
                for i in (v if isinstance(v, list) else [v]) if re.search(r"_token_(id|index)$", key) else []:
                    if i is not None and i not in out:
                        out[i] = min(spare, self.n_vocab - 1)
                        spare += 1
        return out

    def tokenizer_json(self):
        added = [dict(id=i, content=a, single_word=False, lstrip=False, rstrip=False, normalized=False, special=self.special(a))
                 for i, a in sorted(self.added.items())]
        vocab = {x: i for i, x in enumerate(self.texts) if i not in self.added or not self.bytes}
        model = dict(type="BPE", dropout=None, unk_token=None if self.bytes else "<unk>", continuing_subword_prefix=None, end_of_word_suffix=None,
                     fuse_unk=not self.bytes, byte_fallback=not self.bytes, ignore_merges=self.t.get("ignore_merges", False), vocab=vocab,
                     merges=[" ".join(m) for m in self.merges])
        level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
        if not self.bytes:
            steps = [dict(type="Replace", pattern={"String": " "}, content="▁")]
            if self.t["prefix"]:
                steps.insert(0, dict(type="Prepend", prepend="▁"))
            normalizer, pre = (dict(type="Sequence", normalizers=steps) if len(steps) > 1 else steps[0]), None
        elif self.t["pre"] in ("smollm", "refact"):
            normalizer, pre = None, dict(type="Sequence", pretokenizers=[dict(type="Digits", individual_digits=True), {**level, "use_regex": True}])
        else:
            normalizer = dict(type="NFC") if "qwen" in self.t["pre"] else None
            split = dict(type="Split", pattern={"Regex": TABLE["patterns"][self.t["pre"]]}, behavior="Isolated", invert=False)
            pre = dict(type="Sequence", pretokenizers=[split, level])
        post = None
        if self.t.get("bos"):
            bos = self.t["bos"]
            post = dict(type="TemplateProcessing", single=[{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                        pair=[{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                        special_tokens={bos: dict(id=bos, ids=[self.texts.index(bos)], tokens=[bos])})
        decoder = level if self.bytes else dict(type="Sequence", decoders=[
            dict(type="Replace", pattern={"String": "▁"}, content=" "), dict(type="ByteFallback"), dict(type="Fuse"),
            *([dict(type="Strip", content=" ", start=1, stop=0)] if self.t["prefix"] else [])])
        return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=normalizer, pre_tokenizer=pre, post_processor=post,
                    decoder=decoder, model=model)

    def config(self):
        t = self.t
        decoder = {str(i): dict(content=a, lstrip=False, normalized=False, rstrip=False, single_word=False, special=self.special(a))
                   for i, a in sorted(self.added.items())}
        out = dict(added_tokens_decoder=decoder, tokenizer_class=t["class"], eos_token=t["eos"], clean_up_tokenization_spaces=False)
        if not self.bytes:
            out["legacy"] = False if not t["prefix"] else None
        for key, word in (("bos", "bos_token"), ("pad", "pad_token"), ("unk", "unk_token")):
            if t.get(key):
                out[word] = t[key]
        out["add_bos_token"] = bool(t.get("bos"))
        if t.get("template"):
            out["chat_template"] = (HERE / "templates" / t["template"]).read_text()
        return {k: v for k, v in out.items() if v is not None}

    def sentencepiece(self):
        """tokenizer.model: pieces with scores in the order of the merges, and settings, in the form of its protocol buffers."""
        def field(number, kind, payload):
            return bytes([number << 3 | kind]) + payload

        def varint(n):
            out = b""
            while n > 127:
                out, n = out + bytes([n & 127 | 128]), n >> 7
            return out + bytes([n])

        def text(number, b):
            return field(number, 2, varint(len(b)) + b)

        kinds = {"<unk>": 2}
        out = b""
        for i, x in enumerate(self.texts):
            kind = kinds.get(x, 3 if i in self.added and self.special(x) else 4 if i in self.added else 6 if re.fullmatch(r"<0x..>", x) else 1)
            out += text(1, text(1, x.encode()) + field(2, 5, struct.pack("<f", self.score(i))) + field(3, 0, varint(kind)))
        trainer = field(3, 0, varint(2)) + field(35, 0, varint(1))[1:] if False else field(3, 0, varint(2))
        trainer += bytes([35 << 3 & 127 | 128, 35 << 3 >> 7]) + varint(1)  # byte_fallback
        normalizer = text(1, b"identity") + field(3, 0, varint(int(self.t["prefix"]))) + field(4, 0, varint(0)) + field(5, 0, varint(1))
        return out + text(2, trainer) + text(3, normalizer)

    def score(self, i):
        x = self.texts[i]
        if i in self.added or re.fullmatch(r"<0x..>", x):
            return 0.0
        made = ["".join(m) for m in self.merges]
        return -float(made.index(x)) if x in made else -100.0 - i


# ---- files --------------------------------------------------------------------------------------------


def build(name):
    """(configuration, tensors, tokens) of a model of the table."""
    model = TABLE["models"][name]
    tokens = Tokens(model)
    config = shrunk(model["config"], tokens.n_vocab, tokens.ids(model["config"]))
    for path, value in model.get("shown", {}).items():  # what a short text could not show
        o = config
        *where, key = path.split(".")
        for k in where:
            o = o[k]
        o[key] = value
    tensors = weights(name, config)
    if flat(config).get("num_nextn_predict_layers"):
        tensors |= guessing_layer(name, config, tensors)
    return config, tensors, tokens


def keep_recipe(name, keys, tensors):
    """In the table; what several models' tensors are made by is there once."""
    made = TABLE.setdefault("tensors", {})
    arch = keys["general.architecture"]
    known = next((k for k, v in made.items() if v == tensors), None)
    if not known:
        known = arch if arch not in made else f"{arch}, {file_name(name)}"
        made[known] = tensors
    TABLE["models"][name]["gguf"] = {"keys": keys, "tensors": known}


def write_table():
    used = {m["gguf"]["tensors"] for m in TABLE["models"].values() if "gguf" in m}
    TABLE["tensors"] = {k: v for k, v in TABLE.get("tensors", {}).items() if k in used}
    lines = lambda o: ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in o.items())
    (HERE / "popular.json").write_text("{\n" + ",\n".join(
        f'"{k}": {{\n{lines(v)}\n}}' for k, v in TABLE.items()) + "\n}\n")


def write_folder(folder, model, config, tensors, tokens):
    folder.mkdir(parents=True)
    write_hf_folder(folder, config, {prefixed(k, model): t for k, t in tensors.items()}, 1)
    dump = lambda file, o: (folder / file).write_text(json.dumps(o, indent=2, ensure_ascii=False) + "\n")
    dump("tokenizer.json", tokens.tokenizer_json())
    dump("tokenizer_config.json", tokens.config())
    if not tokens.bytes:
        (folder / "tokenizer.model").write_bytes(tokens.sentencepiece())
    if tokens.t.get("stops"):
        dump("generation_config.json", {"eos_token_id": [tokens.id[i] for i in tokens.t["stops"]]})


# ---- GGUF, by a recipe --------------------------------------------------------------------------------


def listed(word, tokens):
    """A list of the vocabulary, which the recipe only names."""
    n, added = tokens.n_vocab, tokens.added
    padded = [f"[PAD{i}]" for i in range(len(tokens.texts), n)]
    if word == "tokens":
        return tokens.texts + padded
    if word == "merges":
        return [" ".join(m) for m in tokens.merges]
    kinds = [3 if i in added and tokens.special(x) else 4 if i in added else 6 if not tokens.bytes and re.fullmatch(r"<0x..>", x) else 1
             for i, x in enumerate(tokens.texts)]
    if word == "types":
        return kinds + [5] * len(padded)
    return [-1000.0 if i in added else tokens.score(i) for i in range(len(tokens.texts))] + [-10000.0] * len(padded)


def done(spec, tensors):
    """A GGUF tensor's values: of one of the folder's, or of all of one name's experts; its rows from a to b of an axis; f of each; blocks of rows
    exchanged."""
    source = spec["of"]
    if isinstance(source, list):
        return np.array(source)
    if "{e}" in source:
        n = 0
        while source.replace("{e}", str(n)) in tensors:
            n += 1
        v = np.stack([tensors[source.replace("{e}", str(e))].values for e in range(n)])
    elif "{k}" in source:  # matrices of several names, one more dimension
        v = np.stack([tensors[k].values for k in sorted(tensors) if re.fullmatch(source.replace("{k}", r"\d+").replace(".", r"\."), k)])
    else:
        v = tensors[source].values
    if "heads" in spec:
        v = v.reshape(spec["heads"], -1, v.shape[1])
    if "rows" in spec:
        axis, a, b = spec["rows"]
        v = v.take(range(a, b), axis)
    f = spec.get("f")
    v = v + 1 if f == "+1" else -np.exp(v.astype(np.float32)) if f == "-exp" else v
    if "swap" in spec:  # of the axis, after its first rows: [n, a, b, w] becomes [n, b, a, w]
        axis, first, n, a, b, w = spec["swap"]
        moved = np.moveaxis(v.squeeze() if v.ndim == 3 and 1 in v.shape else v, axis, 0)
        rest = moved[first:].reshape(n, a, b, w, *moved.shape[1:]).swapaxes(1, 2).reshape(moved[first:].shape)
        v = np.moveaxis(np.concatenate([moved[:first], rest]), 0, axis)
    if spec.get("turned"):
        v = v.swapaxes(-1, -2)
    return v.reshape(spec["shape"]) if "shape" in spec else v


def by_recipe(recipe, config, tensors, tokens):
    """(keys, tensors) of the GGUF file."""
    meta = {}
    for key, v in recipe["keys"].items():
        if isinstance(v, list) and isinstance(v[1], str) and v[1].startswith("@"):
            v = [v[0], (HERE / "templates" / tokens.t["template"]).read_text() if v[1] == "@template" else listed(v[1][1:], tokens)]
        meta[key] = tuple(v) if isinstance(v, list) else v
    out = {}
    for template, spec in TABLE["tensors"][recipe["tensors"]].items():
        spec = dict(zip(("type", "of"), spec.split(" "))) if isinstance(spec, str) else spec  # as it is
        if "{i}" not in template:
            out[template] = Stored(done(spec, tensors), spec["type"])
            continue
        layers = spec.get("layers") or range(flat(config)["num_hidden_layers"] + 1)
        for i in layers:
            one = {**spec, "of": spec["of"].replace("{i}", str(i))}
            if any(k.startswith(re.split("[{]", one["of"])[0]) for k in tensors):
                out[template.split("#")[0].replace("{i}", str(i))] = Stored(done(one, tensors), spec["type"])
    return meta, out


def vectors(name, config, tensors, n_ctx):
    t = flat(config)
    n = t.get("vocab_size_per_layer_input") or t["vocab_size"]
    reference.any_order = True
    ids = ((cases.uniform(name + "tokens", (48,)) + 1) / 2 * n).astype(int).tolist()
    logits = reference.forward(t, {k: v.values for k, v in tensors.items()}, ids, n_ctx)
    at = [0, 1, 7, 8, 9, 31, 46, 47]
    return dict(n_ctx=n_ctx, tokens=ids, perplexity=reference.perplexity(logits, ids), positions=at, logits=[cases.rounded(logits[p]) for p in at])


def main():
    out = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or TABLE["models"]:
        model = TABLE["models"][name]
        config, tensors, tokens = build(name)
        folder = out / file_name(name)
        write_folder(folder, model, config, tensors, tokens)
        if "gguf" in model:
            write_gguf(out / f"{file_name(name)}.gguf", *by_recipe(model["gguf"], config, tensors, tokens))
        more = {"ends_not_in_file": [tokens.id[i] for i in model.get("ends_not_in_file", [])]}
        (folder / "vectors.json").write_text(json.dumps({**vectors(name, config, tensors, 128), **more}))


if __name__ == "__main__":
    main()
