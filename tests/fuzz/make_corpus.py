"""Seeds of the fuzz targets of the file formats: python3 tests/fuzz/make_corpus.py writes tests/fuzz/corpus/{gguf,safetensors,config,package,run,session,profile,heads,lora,tower,tower_folder,pictures}."""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
FIXTURES = HERE.parent / "oracle" / "fixtures"


def text(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


SCALAR = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?"),
          "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110), 12: (256, 144),
          13: (256, 176), 14: (256, 210), 20: (32, 18), 30: (1, 2)}
# ik_llama.cpp's: bytes of a block of 256, and of a row before its blocks
IK_TYPES = {137: (76, 0), 138: (110, 0), 139: (144, 0), 140: (176, 0), 141: (212, 0), 144: (136, 4), 145: (70, 2), 146: (128, 4), 152: (168, 4), 153: (68, 4), 154: (100, 4), 155: (128, 4),
            156: (102, 2), 157: (86, 2), 158: (56, 4)}


def value(kind, v):
    if isinstance(v, list):
        if kind == "str":
            return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(text(x) for x in v)
        t, fmt = SCALAR[kind]
        return struct.pack("<IIQ", 9, t, len(v)) + b"".join(struct.pack(fmt, x) for x in v)
    if kind == "str":
        return struct.pack("<I", 8) + text(v)
    t, fmt = SCALAR[kind]
    return struct.pack("<I", t) + struct.pack(fmt, v)


def gguf(keys, tensors, version=3, align=32):
    """keys: name -> (kind, value); tensors: name -> (dims innermost first, ggml type)"""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for k, (kind, v) in keys.items():
        out += text(k) + value(kind, v)
    data = b""
    for name, (dims, t) in tensors.items():
        out += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t, len(data))
        n = 1
        for d in dims:
            n *= d
        if t in IK_TYPES:
            data += bytes(b % 251 for b in range(n // 256 * IK_TYPES[t][0] + n // dims[0] * IK_TYPES[t][1]))
        else:
            block, size = BLOCKS[t]
            data += bytes(n // block * size)
        data += b"\0" * (-len(data) % align)
    return out + b"\0" * (-len(out) % align) + data


def model(arch, extra_keys, extra_tensors):
    a = arch
    keys = {"general.architecture": ("str", a), f"{a}.block_count": ("u32", 1), f"{a}.embedding_length": ("u32", 8), f"{a}.attention.head_count": ("u32", 2),
            f"{a}.attention.head_count_kv": ("u32", 1), f"{a}.feed_forward_length": ("u32", 8), f"{a}.context_length": ("u64", 64),
            f"{a}.attention.layer_norm_rms_epsilon": ("f32", 1e-5), f"{a}.rope.freq_base": ("f32", 1e4)}
    return gguf({**keys, **extra_keys}, {"token_embd.weight": ((8, 4), 1), "output_norm.weight": ((8,), 0), **extra_tensors})


def ggufs():
    yield "empty_v2", gguf({}, {}, version=2)
    yield "kinds", gguf({**{f"k.{k}": (k, 1) for k in SCALAR}, **{f"a.{k}": (k, [0, 1]) for k in SCALAR}, "s": ("str", "x"), "a.str": ("str", ["a", ""])}, {})
    yield "types", gguf({}, {f"t{t}": ((block,), t) for t, (block, _) in BLOCKS.items()})
    yield "ik_types", gguf({}, {f"t{t}": ((256, 2), t) for t in IK_TYPES})
    yield "aligned", gguf({"general.alignment": ("u32", 64)}, {"a": ((3, 2, 1, 2), 0), "b": ((1,), 1)}, align=64)
    yield "llama", model("llama", {}, {"rope_freqs.weight": ((2,), 0)})
    yield "linear", model("llama", {"llama.rope.scaling.type": ("str", "linear"), "llama.rope.scaling.factor": ("f32", 2)}, {})
    yield "yarn", model("qwen2", {"qwen2.rope.scaling.type": ("str", "yarn")}, {})
    yield "gemma2", model("gemma2", {"gemma2.attn_logit_softcapping": ("f32", 50), "gemma2.attention.key_length": ("u32", 8)}, {})
    yield "longrope", model("phi3", {"phi3.rope.scaling.original_context_length": ("u32", 32)}, {"rope_factors_long.weight": ((2,), 0), "rope_factors_short.weight": ((2,), 0)})
    yield "eagle3", model("eagle3", {"eagle3.target_layers": ("i32", [1, 2, 3]), "eagle3.target_hidden_size": ("u32", 8), "eagle3.vocab_size": ("u32", 4), "eagle3.norm_before_fc": ("bool", True)}, {})
    yield "assistant", model("gemma4-assistant", {"gemma4-assistant.embedding_length_out": ("u32", 8), "gemma4-assistant.attention.sliding_window": ("u32", 4), "gemma4-assistant.attention.key_length_swa": ("u32", 4)}, {"rope_freqs.weight": ((2,), 0)})
    yield "dflash", model("dflash", {"dflash.target_layers": ("i32", [1, 2, 3]), "dflash.block_size": ("u32", 4), "dflash.vocab_size": ("u32", 4), "tokenizer.ggml.mask_token_id": ("u32", 3)}, {})
    yield "bpe", gguf({"tokenizer.ggml.model": ("str", "gpt2"), "tokenizer.ggml.pre": ("str", "qwen2"), "tokenizer.ggml.tokens": ("str", ["a", "b", "ab", "<|end|>"]),
                       "tokenizer.ggml.token_type": ("i32", [1, 1, 1, 3]), "tokenizer.ggml.merges": ("str", ["a b"]), "tokenizer.ggml.eos_token_id": ("u32", 3)}, {})
    yield "rwkv", gguf({"tokenizer.ggml.model": ("str", "rwkv"), "tokenizer.ggml.tokens": ("str", ["<s>"] + [f"\\x{i:02x}" for i in range(256)] + ["\\n\\n", "ab"]),
                        "tokenizer.ggml.token_type": ("i32", [3] + [1] * 258), "tokenizer.ggml.eos_token_id": ("u32", 0)}, {})
    yield "spm", gguf({"tokenizer.ggml.model": ("str", "llama"), "tokenizer.ggml.tokens": ("str", ["<unk>", "<0x41>", "\u2581a"]), "tokenizer.ggml.scores": ("f32", [0, 0, -1]),
                       "tokenizer.ggml.token_type": ("i32", [2, 6, 1]), "tokenizer.ggml.add_space_prefix": ("bool", True)}, {})


def safetensors(head, n_data):
    h = head if isinstance(head, bytes) else json.dumps(head, separators=(",", ":")).encode()
    return struct.pack("<Q", len(h)) + h + bytes(range(n_data % 256)) + bytes(n_data - n_data % 256)


def safetensors_files():
    yield "empty", safetensors({}, 0)
    yield "three", safetensors({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
                                "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]}, "c": {"dtype": "F16", "shape": [], "data_offsets": [22, 24]}}, 24)
    yield "none_and_ints", safetensors({"z": {"dtype": "F32", "shape": [0, 4], "data_offsets": [4, 4]}, "i": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}, 8)
    yield "overlap", safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, 8)
    yield "huge", safetensors({"a": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 0]}}, 0)
    yield "no_json", safetensors(b"[1,", 0)
    # matrices packed for MLX, by GPTQ and by AWQ, whose file's length chooses kind, bits and groups (fuzz_safetensors.c)
    for kind, bits in ((2, 4), (2, 3), (0, 4), (0, 8), (1, 4)):
        rows, cols, n = 32, 64, 2
        if kind == 2:
            parts = {"m.weight": ("U32", [rows, cols * bits // 32]), "m.scales": ("F16", [rows, n]), "m.biases": ("F16", [rows, n])}
        else:
            words = [cols, rows // 8] if kind else [cols * bits // 32, rows]
            parts = {"m.qweight": ("I32", words), "m.qzeros": ("I32", [n, rows * bits // 32]), "m.scales": ("F16", [n, rows])}
        head, at = {}, 0
        for name, (t, shape) in parts.items():
            size = shape[0] * shape[1] * (2 if t == "F16" else 4)
            head[name] = {"dtype": t, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text, pad = json.dumps(head), 0
        while (8 + len(text) + pad + at) % 3 != kind or (8 + len(text) + pad + at) // 3 % 7 != bits - 2 or (8 + len(text) + pad + at) // 21 % 2:
            pad += 1
        yield f"packed_{kind}_{bits}", safetensors((text + " " * pad).encode(), at)


F32, TILES, SCALE, COL_SUM, BIAS, HOT, HOT_ROWS, ROWS, WEIGHTLETS, CHANNEL_BITS, ROW_HASH, TILE_HASH = range(1, 13)  # parts of a package's tensors
ROWS16, STREAMS, CODED = 16, 18, 64
LARGE = (TILES, WEIGHTLETS, ROWS)
BLOCK = 256 << 10
EMBD, OUT_NORM, ATTN_NORM, Q, K, V, O, FFN_NORM, GATE, UP, DOWN, ROUTER, GATES, UPS, DOWNS = 0, 1, 5, 7, 8, 9, 10, 18, 20, 21, 22, 28, 30, 31, 32
SITES = (((Q, K, V), (16, 8, 8), 16), ((O,), (16,), 16), ((GATE, UP), (32, 32), 16), ((DOWN,), (16,), 32))
EXPERTS = SITES[:2] + (((GATES, UPS), (32, 32), 16), ((DOWNS,), (32,), 16))  # two of 16 channels


def tensors(records, claimed=None, page=4096):
    """records: (role, part, n, k, size, flags), and bytes, where they are not zero. Returns the table of contents, with room for the checksums, and the section. page: where
    large tensors begin; in version 6 short ones do at 128."""
    at, places = 0, {}
    for large in (False, True):
        for i, (_, part, _, _, size, *_) in enumerate(records):
            if (part in LARGE) == large:
                places[i] = -(-at // (page if large else 64)) * (page if large else 64)
                at = places[i] + size
        small = small if large else at
    blocks = -(-small // BLOCK) + sum(-(-r[4] // BLOCK) for r in records if r[1] in LARGE)
    table = b"".join(struct.pack("<IIqqQQfIQ", role, part, n, k, places[i], size, 0.5 if part in (TILES, WEIGHTLETS) else 0, flags,
                                 16 * -(-k // 128) * n if flags & CODED else 0)
                     for i, (role, part, n, k, size, flags, *_) in enumerate(records))
    body = bytearray(at)
    for i, (*_, size, _, data) in ((i, r) for i, r in enumerate(records) if len(r) > 6):
        body[places[i]:places[i] + size] = data
    return struct.pack("<IIQ", len(records) if claimed is None else claimed, blocks, small) + table + bytes(8 * blocks), bytes(body)


def vector(role, n):
    return [(role, F32, 1, n, 4 * n, 0)]


def coded(role, n, k):
    """Zeros in one stream, k <= 64: a symbol that is always the same takes no words, and 128 from its state's lowest 12 bits (the first bucket is filled last)."""
    states = [(1 << 16) + 128 * n % 4096 * (i < k) for i in range(64)]
    about = struct.pack("<IH", 256, 4096) + bytes(62) + bytes(-(-n // 2))
    return [(role, STREAMS, 1, 1, len(about), 0, about), (role, WEIGHTLETS, n, k, 256, CODED, struct.pack("<64I", *states))]


def site(roles, outputs, k, shadow, packed=False, short=False, streams=False):
    out = []
    for role, n in zip(roles, outputs):
        padded = -(-n // 16) * 16
        out += [(role, CHANNEL_BITS, n, 1, -(-3 * n // 8), 0)] + coded(role, n, k) if streams else \
                [(role, CHANNEL_BITS, n, 1, -(-3 * n // 8), 0), (role, WEIGHTLETS, n, k, 16 * -(-k // 128) * n, int(shadow))] if packed else \
               [(role, TILES, n, k, padded * k, int(shadow))]
        out += [(role, ROWS16, n, 1, 4 * padded, 0)] if short else [(role, SCALE, n, 1, 4 * padded, 0), (role, COL_SUM, n, 1, 4 * padded, 0)]
    return out + ([(roles[0], HOT, 1, 1, 4, 0), (roles[0], HOT_ROWS, 1, sum(outputs), sum(outputs), 0), (roles[0], ROW_HASH, k, 1, 4 * k, 0)] if shadow else [])


def package(shadow=False, packed=False, claimed=None, sites=SITES, short=False, streams=False):
    """Checksums and the file's length are left out: the target puts them in. Packed: every channel has 1 bit."""
    meta = {"format": "tern", "scheme": "llm-npu", "layout": 2, "source": "x", "n_params": 1,
            "hparams": {"arch": "llama", "name": "x", "n_layers": 1, "n_embd": 16, "n_heads": 2, "n_kv_heads": 1, "d_head": 8, "n_ff": 32, "n_vocab": 32, "ctx_train": 64},
            "operators": {"norm": 0, "norm_eps": 1e-5, "act": 0, "gated": True, "parallel_block": False, "post_norms": False, "qk_norm": False, "tied": True,
                          "embd_scale": 1.0, "attn_scale": 0.35, "attn_soft_cap": 0.0, "logit_soft_cap": 0.0, "window": 0, "window_pattern": 0},
            "rope": {"n_rot": 8, "rope_base": 1e4, "rope_orig_ctx": 0, "rope_mscale": 1.0}}
    if sites is EXPERTS:
        meta["operators"] |= {"experts": 2, "experts_used": 1, "experts_ff": 16, "experts_norm": 1}
    layer = vector(ATTN_NORM, 16) + vector(FFN_NORM, 16) + (vector(ROUTER, 32) if sites is EXPERTS else []) + [r for roles, outputs, k in sites for r in site(roles, outputs, k, shadow, packed, short, streams)]
    head = site((EMBD,), (32,), 16, False, short=short, streams=streams)
    large = [r for r in head if r[1] in LARGE]
    page = 128 if short else 4096
    graphs = struct.pack("<IIiIiII", 1, 0, 0, 0, 256, 28, 4) + b"TNPG"
    sections = [(1, -1, b"", json.dumps(meta, separators=(",", ":")).encode()),
                (3, -1, *tensors(vector(OUT_NORM, 16) + [r for r in head if r not in large] + [(EMBD, TILE_HASH, 1, 1, 4, 0) if streams else (EMBD, TILE_HASH, 2, 1, 8, 0)] + vector(15, 4) + vector(16, 4))),
                (4, 0, *tensors(layer, page=page)), (7, -1, *tensors(large))]
    if shadow:
        sections.append((5, 0, *tensors([(roles[0], ROWS, k, sum(outputs), k * sum(outputs), 0) for roles, outputs, k in SITES], claimed)))
    if packed:
        sections.append((6, -1, b"", graphs))
    table, tocs, data = b"", b"", b""
    for kind, index, toc, body in sections:
        table += struct.pack("<IiQQQII", kind, index, 8192 + len(data), len(body), 0, 40 * len(sections) + len(tocs) if toc else 0, len(toc))
        tocs += toc
        data += body + bytes(-len(body) % page)
    index = table + tocs
    data += bytes(-len(data) % 4096)
    head = b"TERNPKG\n" + struct.pack("<IIQQQQQ", 3, len(sections), 8192 + len(data), len(index), 0, 0, 0) + bytes(8) + index
    return head + bytes(8192 - len(head)) + data


def packages():
    yield "plain", package()
    yield "outliers", package(shadow=True)
    yield "packed", package(packed=True)
    yield "short", package(short=True)
    yield "short_packed", package(packed=True, short=True)
    yield "experts", package(sites=EXPERTS)
    yield "experts_packed", package(packed=True, sites=EXPERTS)
    yield "streams", package(streams=True, short=True)
    yield "long_table", package(shadow=True, claimed=120)
    yield "cut", package()[:8292]


def change(section, kind, where, data):
    """One entry of fuzz_run's list."""
    return struct.pack("<BBHB", section, kind, where, len(data)) + data


def runs():
    """Changes to a true package. Sections: metadata first, as tern pack writes them."""
    yield "none", b""
    for i, number in enumerate((b"0", b"-1", b"1e39", b"7", b"65536", b"0.5", b"[]", b"null")):
        yield f"meta{i}", b"".join(change(0, 3, i + 8 * k, number) for k in range(8))
    for i in range(6):
        yield f"data{i}", change(i, 0, 9000 * i, bytes([0, 0, 192, 127] * 8))  # NaN as F32
        yield f"records{i}", change(i, 1, 16 + 56 * i, bytes([255] * 8))
    yield "index", change(1, 2, 4, b"\x01\0\0\0")
    for name, choice in (("beside", 64), ("hybrid", 128), ("mamba", 192)):  # the other packages, to their last sections
        for i in range(12):
            yield f"{name}_data{i}", change(choice | i, 0, 5000 * i, bytes([0, 0, 192, 127] * 8))
            yield f"{name}_records{i}", change(choice | i, 1, 16 + 56 * i, bytes([255] * 8))
        yield f"{name}_meta", b"".join(change(choice if k == 0 else 0, 3, 8 * k, b"7") for k in range(8))


def sessions():
    """Two bytes say where in a true session the others go."""
    yield "tokens", struct.pack(">H", 12) + struct.pack("<i", 0) + b""
    yield "nan", struct.pack(">H", 48 + 12) + struct.pack("<f", float("nan")) * 64
    yield "big", struct.pack(">H", 12) + struct.pack("<iiiii", 1 << 30, 2, 2, 16, 512)
    yield "magic", b"TERNSTA\0" + struct.pack("<I", 1)


def profiles():
    yield "times", json.dumps({"key": "", "stage_us": {"qkv": 1, "ffn": 2}, "attention_us_per_position": 1, "rest_us": 1, "prefill_us": 1, "prefill_tokens": 1,
                               "forward_rows": [1, 2, 1e9], "forward_relative": [1, 1.5, -1]}).encode()
    yield "tuned", json.dumps({"tuned": {"any": {"fingerprint": "0", "chunk": 64, "threshold": 512}}, "read": {"method": "uring"}}).encode()
    yield "odd", b'{"key":1,"stage_us":[],"forward_rows":{},"tuned":{"any":[]},"read":1e999}'


def heads():
    yield "losses", struct.pack("<10d", *(5 + i / 10 for i in range(10)))
    yield "odd", struct.pack("<10d", float("nan"), float("inf"), -1, 0, 1e308, -1e308, 1e-308, 5, 5, 5)
    yield "magic", b"TNHEADS1" + bytes(40)


def loras():
    linears = {"attn_q": (8, 8), "attn_k": (4, 8), "attn_output": (8, 8), "ffn_gate": (12, 8), "ffn_up": (12, 8), "ffn_down": (8, 12)}
    own = {"general.type": ("str", "adapter"), "adapter.type": ("str", "lora"), "adapter.lora.alpha": ("f32", 4)}
    pairs = {}
    for name, (n, k) in linears.items():
        pairs[f"blk.0.{name}.weight.lora_a"] = ((k, 2), 0)
        pairs[f"blk.0.{name}.weight.lora_b"] = ((2, n), 1)
    yield "gguf", b"\0" + gguf({"general.architecture": ("str", "llama"), **own}, pairs)
    fused = {"blk.0.attn_qkv.weight.lora_a": ((8, 3), 0), "blk.0.attn_qkv.weight.lora_b": ((3, 16), 0),
             "blk.0.ffn_up.weight.lora_a": ((8, 2), 0), "blk.0.ffn_up.weight.lora_b": ((2, 24), 0)}
    yield "fused", b"\0" + gguf({"general.architecture": ("str", "phi3"), **own}, fused)
    config = json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_rslora": True, "bias": "none"}).encode()
    head, at = {}, 0
    for name, (n, k) in {"self_attn.q_proj": (8, 8), "mlp.down_proj": (8, 12)}.items():
        for which, shape in (("A", [2, k]), ("B", [n, 2])):
            size = 4 * shape[0] * shape[1]
            head[f"base_model.model.model.layers.0.{name}.lora_{which}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
            at += size
    rows = {"token_embd.weight.lora_a": ((2, 16), 0), "token_embd.weight.lora_b": ((2, 8), 0), "token_types.weight.lora_a": ((8, 2), 0), "token_types.weight.lora_b": ((2, 1), 0)}
    yield "embedding", b"\0" + gguf({"general.architecture": ("str", "jina-bert-v3"), **own, "adapter.lora.task_name": ("str", "it"), "adapter.lora.prompt_prefix": ("str", "of it: ")}, rows)
    of_tasks, end = {}, 0
    for name, a, b in (("embeddings.word_embeddings", [2, 16, 2], [2, 2, 8]), ("embeddings.token_type_embeddings", [2, 1, 2], [2, 2, 8]),
                       ("encoder.layers.0.mixer.Wqkv", [2, 2, 8], [2, 16, 2]), ("encoder.layers.0.mlp.fc1", [2, 2, 8], [2, 12, 2])):
        for which, shape in (("A", a), ("B", b)):
            size = 4 * shape[0] * shape[1] * shape[2]
            of_tasks[f"roberta.{name}.parametrizations.weight.0.lora_{which}"] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
            end += size
    yield "tasks", b"\2\1" + safetensors(of_tasks, end)
    yield "peft", b"\1" + struct.pack("<H", len(config)) + config + safetensors(head, at)


def towers():
    def tower(width, heads, ff, image, patch, shuffle, out, layers, changes={}, types=0, swap=False):
        side = image // patch
        keys = {"general.architecture": ("str", "clip"), "clip.has_vision_encoder": ("bool", True), "clip.projector_type": ("str", "idefics3"), "clip.use_gelu": ("bool", True)}
        for k, v in {"image_size": image, "patch_size": patch, "embedding_length": width, "feed_forward_length": ff, "block_count": layers, "projection_dim": out,
                     "attention.head_count": heads, "projector.scale_factor": shuffle}.items():
            keys["clip.vision." + k] = ("u32", v)
        keys["clip.vision.attention.layer_norm_epsilon"] = ("f32", 1e-6)
        keys["clip.vision.image_mean"] = keys["clip.vision.image_std"] = ("f32", [0.5, 0.5, 0.5])
        t = {"v.patch_embd.weight": ((patch, patch, 3, width), types), "v.patch_embd.bias": ((width,), 0), "v.position_embd.weight": ((width, side * side), 0)}
        up, down = ("ffn_down", "ffn_up") if swap else ("ffn_up", "ffn_down")
        for i in range(layers):
            for n in ("ln1", "ln2"):
                t[f"v.blk.{i}.{n}.weight"] = t[f"v.blk.{i}.{n}.bias"] = ((width,), 0)
            for n, (rows, k) in {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width), "attn_out": (width, width), up: (ff, width), down: (width, ff)}.items():
                t[f"v.blk.{i}.{n}.weight"] = ((k, rows), types)
                t[f"v.blk.{i}.{n}.bias"] = ((rows,), 0)
        t["v.post_ln.weight"] = t["v.post_ln.bias"] = ((width,), 0)
        t["mm.model.fc.weight"] = ((width * shuffle * shuffle, out), types)
        return gguf({**keys, **changes}, t)

    def qwen(width, heads, ff, image, patch, merge, out, deep, changes={}, more={}, types=0):
        """Of any size: one tensor for queries, keys and values, two moments of a patch, layers that are read beside the last."""
        wide, side = width * merge * merge, image // patch
        keys = {"general.architecture": ("str", "clip"), "clip.projector_type": ("str", "qwen3vl_merger"), "clip.use_gelu": ("bool", True),
                "clip.vision.is_deepstack_layers": ("bool", deep), "clip.vision.attention.layer_norm_epsilon": ("f32", 1e-6)}
        for k, v in {"image_size": image, "patch_size": patch, "embedding_length": width, "feed_forward_length": ff, "block_count": len(deep), "projection_dim": out,
                     "attention.head_count": heads, "spatial_merge_size": merge}.items():
            keys["clip.vision." + k] = ("u32", v)
        keys["clip.vision.image_mean"] = keys["clip.vision.image_std"] = ("f32", [0.5, 0.5, 0.5])
        t = {"v.patch_embd.weight": ((patch, patch, 3, width), types), "v.patch_embd.weight.1": ((patch, patch, 3, width), types), "v.patch_embd.bias": ((width,), 0),
             "v.position_embd.weight": ((width, side * side), 0)}

        def norm(name, n):
            t[name + ".weight"] = t[name + ".bias"] = ((n,), 0)

        def linear(name, rows, k):
            t[name + ".weight"], t[name + ".bias"] = ((k, rows), types), ((rows,), 0)

        for i, read in enumerate(deep):
            norm(f"v.blk.{i}.ln1", width)
            norm(f"v.blk.{i}.ln2", width)
            for n, rows, k in (("attn_qkv", 3 * width, width), ("attn_out", width, width), ("ffn_up", ff, width), ("ffn_down", width, ff)):
                linear(f"v.blk.{i}.{n}", rows, k)
            if read:
                norm(f"v.deepstack.{i}.norm", wide)
                linear(f"v.deepstack.{i}.fc1", wide, wide)
                linear(f"v.deepstack.{i}.fc2", out, wide)
        norm("v.post_ln", width)
        linear("mm.0", wide, wide)
        linear("mm.2", out, wide)
        return gguf({**keys, **changes}, {**t, **more})

    def windows(width, heads, ff, patch, merge, out, layers, window, changes={}, types=0):
        keys = {"general.architecture": ("str", "clip"), "clip.projector_type": ("str", "qwen2.5vl_merger"), "clip.use_silu": ("bool", True),
                "clip.vision.attention.layer_norm_epsilon": ("f32", 1e-6)}
        for k, v in {"image_size": 4 * patch, "patch_size": patch, "embedding_length": width, "feed_forward_length": ff, "block_count": layers, "projection_dim": out,
                     "attention.head_count": heads, "spatial_merge_size": merge, "n_wa_pattern": 2, "window_size": window}.items():
            keys["clip.vision." + k] = ("u32", v)
        keys["clip.vision.image_mean"] = keys["clip.vision.image_std"] = ("f32", [0.5, 0.5, 0.5])
        wide, t = width * merge * merge, {"v.patch_embd.weight": ((patch, patch, 3, width), types), "v.patch_embd.weight.1": ((patch, patch, 3, width), types), "v.post_ln.weight": ((width,), 0)}

        def linear(name, rows, k):
            t[name + ".weight"], t[name + ".bias"] = ((k, rows), types), ((rows,), 0)

        for i in range(layers):
            t[f"v.blk.{i}.ln1.weight"] = t[f"v.blk.{i}.ln2.weight"] = ((width,), 0)
            for n, rows, k in (("attn_q", width, width), ("attn_k", width, width), ("attn_v", width, width), ("attn_out", width, width), ("ffn_gate", ff, width), ("ffn_up", ff, width),
                               ("ffn_down", width, ff)):
                linear(f"v.blk.{i}.{n}", rows, k)
        linear("mm.0", wide, wide)
        linear("mm.2", out, wide)
        return gguf({**keys, **changes}, t)

    def queries(width, heads, ff, image, patch, places, n, out=128):
        """Learned queries make the rows; heads have 128 values, so their linears are in Q8_0."""
        keys = {"general.architecture": ("str", "clip"), "clip.projector_type": ("str", "resampler"), "clip.use_gelu": ("bool", True),
                "clip.minicpmv_version": ("i32", 3), "clip.has_minicpmv_projector": ("bool", True)}
        for k, v in {"image_size": image, "patch_size": patch, "embedding_length": width, "feed_forward_length": ff, "block_count": 1, "projection_dim": 0,
                     "attention.head_count": heads}.items():
            keys["clip.vision." + k] = ("u32", v)
        keys["clip.vision.attention.layer_norm_epsilon"] = ("f32", 1e-6)
        keys["clip.vision.image_mean"] = keys["clip.vision.image_std"] = ("f32", [0.5, 0.5, 0.5])
        t = {"v.patch_embd.weight": ((patch, patch, 3, width), 0), "v.patch_embd.bias": ((width,), 0), "v.position_embd.weight": ((width, places * places), 0)}
        for name, (rows, k) in {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width), "attn_out": (width, width), "ffn_up": (ff, width),
                                "ffn_down": (width, ff)}.items():
            t[f"v.blk.0.{name}.weight"], t[f"v.blk.0.{name}.bias"] = ((k, rows), 0), ((rows,), 0)
        for name in ("v.blk.0.ln1", "v.blk.0.ln2", "v.post_ln"):
            t[name + ".weight"] = t[name + ".bias"] = ((width,), 0)
        for name in ("q", "kv", "post"):
            t[f"resampler.ln_{name}.weight"] = t[f"resampler.ln_{name}.bias"] = ((out,), 0)
        for name in ("q", "k", "v", "out"):
            t[f"resampler.attn.{name}.weight"], t[f"resampler.attn.{name}.bias"] = ((out, out), 8), ((out,), 0)
        t.update({"resampler.query": ((out, n), 0), "resampler.kv.weight": ((width, out), 0), "resampler.proj.weight": ((out, out), 8)})
        return gguf(keys, t)

    yield "queries", queries(4, 1, 8, 6, 3, 2, 2)
    yield "windows", windows(4, 1, 8, 3, 1, 4, 2, 6)
    yield "windows_of_one", windows(4, 1, 8, 2, 2, 4, 1, 5, types=1)
    yield "windows_small", windows(4, 1, 8, 3, 2, 4, 1, 5)
    yield "small", tower(8, 2, 12, 8, 2, 2, 8, 1)
    yield "any_size", qwen(8, 2, 12, 6, 2, 2, 8, [True, False])
    yield "any_size_halves", qwen(4, 1, 8, 9, 3, 1, 4, [False], types=1)
    yield "any_size_pixels", qwen(4, 1, 8, 6, 3, 1, 4, [False], {"clip.vision.image_min_pixels": ("u32", 9), "clip.vision.image_max_pixels": ("u32", 900)})
    yield "any_size_flags", qwen(4, 1, 8, 6, 3, 1, 4, [True], {"clip.vision.is_deepstack_layers": ("bool", [True, True])})
    yield "any_size_left", qwen(4, 1, 8, 6, 3, 1, 4, [False], more={"v.deepstack.0.norm.weight": ((4,), 0)})
    yield "tile_deep", tower(4, 1, 8, 6, 3, 1, 4, 1, {"clip.vision.is_deepstack_layers": ("bool", [True])})
    yield "halves", tower(4, 1, 8, 6, 3, 1, 4, 2, types=1)
    yield "swapped", tower(4, 1, 8, 6, 3, 2, 4, 1, swap=True)
    yield "unknown", tower(4, 1, 8, 6, 3, 1, 4, 1, {"clip.vision.n_wa_pattern": ("u32", 8)})
    yield "quick", tower(4, 1, 8, 6, 3, 1, 4, 1, {"clip.use_gelu": ("bool", False)})


def tower_folders():
    """{"config", "processor"}, a zero byte, and a safetensors file: one of each family's way with its patches."""
    def seed(config, processor, tensors):
        head, n = {}, 0
        for name, shape in tensors.items():
            size = 4
            for d in shape:
                size *= d
            head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [n, n + size]}
            n += size
        data = b"".join(struct.pack("<f", ((i * 37) % 19 - 9) / 16) for i in range(n // 4))
        text = json.dumps(head).encode()
        return json.dumps({"config": config, "processor": processor}).encode() + b"\0" + struct.pack("<Q", len(text)) + text + data

    def linears(names, bias=True):
        out = {}
        for name, (n, k) in names.items():
            out[name + ".weight"] = [n, k]
            if bias:
                out[name + ".bias"] = [n]
        return out

    def norms(*names, n=8, bias=True):
        return {name + end: [n] for name in names for end in ([".weight", ".bias"] if bias else [".weight"])}

    halves = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 2}
    v, layer = "model.vision_model.", "model.vision_model.encoder.layers.0."
    siglip = {v + "embeddings.patch_embedding.bias": [8], v + "embeddings.position_embedding.weight": [16, 8],
              **norms(v + "post_layernorm", layer + "layer_norm1", layer + "layer_norm2"),
              **linears({layer + f"self_attn.{p}_proj": (8, 8) for p in ("q", "k", "v", "out")}), **linears({layer + "mlp.fc1": (12, 8), layer + "mlp.fc2": (8, 12)})}
    yield "smolvlm", seed({"model_type": "smolvlm", "scale_factor": 2, "text_config": {"hidden_size": 8}, "vision_config": {**sizes, "image_size": 8}},
                          {**halves, "resample": 1, "size": {"longest_edge": 16}, "max_image_size": {"longest_edge": 8}},
                          {**siglip, v + "embeddings.patch_embedding.weight": [8, 3, 2, 2], "model.connector.modality_projection.proj.weight": [8, 32]})
    lfm2 = {n.replace(v, "model.vision_tower.vision_model."): s for n, s in siglip.items()}
    p = "model.multi_modal_projector."
    yield "lfm2", seed({"model_type": "lfm2_vl", "downsample_factor": 2, "text_config": {"hidden_size": 8}, "vision_config": {**sizes, "num_patches": 16}},
                       {**halves, "resample": 2, "tile_size": 64},
                       {**lfm2, "model.vision_tower.vision_model.embeddings.patch_embedding.weight": [8, 12], **norms(p + "layer_norm", n=32),
                        **linears({p + "linear_1": (4, 32), p + "linear_2": (8, 4)})})
    q = "model.visual."
    b, m, d = q + "blocks.0.", q + "merger.", q + "deepstack_merger_list.0."
    qwen = {"depth": 1, "num_heads": 2, "hidden_size": 8, "intermediate_size": 12, "patch_size": 2, "out_hidden_size": 8, "num_position_embeddings": 16}
    yield "qwen3vl", seed({"model_type": "qwen3_vl", "text_config": {"hidden_size": 8}, "vision_config": {**qwen, "deepstack_visual_indexes": [0]}},
                          {**halves, "resample": 3, "size": {"shortest_edge": 16, "longest_edge": 4096}, "patch_size": 2, "merge_size": 2},
                          {q + "patch_embed.proj.weight": [8, 3, 2, 2, 2], q + "patch_embed.proj.bias": [8], q + "pos_embed.weight": [16, 8],
                           **norms(b + "norm1", b + "norm2", m + "norm"), **norms(d + "norm", n=32),
                           **linears({b + "attn.qkv": (24, 8), b + "attn.proj": (8, 8), b + "mlp.linear_fc1": (12, 8), b + "mlp.linear_fc2": (8, 12),
                                      m + "linear_fc1": (32, 32), m + "linear_fc2": (8, 32), d + "linear_fc1": (32, 32), d + "linear_fc2": (8, 32)})})
    g = "vision_tower."
    e = g + "encoder.layers.0."
    linear = {f"self_attn.{x}_proj": (8, 8) for x in "qkvo"} | {"mlp.gate_proj": (12, 8), "mlp.up_proj": (12, 8), "mlp.down_proj": (8, 12)}
    yield "gemma4", seed({"model_type": "gemma4", "text_config": {"hidden_size": 8},
                          "vision_config": {**sizes, "pooling_kernel_size": 2, "head_dim": 4, "num_key_value_heads": 2, "use_clipped_linears": True}},
                         {"do_normalize": False, "resample": 3, "patch_size": 2, "pooling_kernel_size": 2},
                         {g + "patch_embedder.input_proj.weight": [8, 12], g + "patch_embedder.position_embedding_table": [2, 9, 8],
                          **norms(*(e + n for n in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")), bias=False),
                          **norms(e + "self_attn.q_norm", e + "self_attn.k_norm", n=4, bias=False),
                          **linears({e + n + ".linear": s for n, s in linear.items()}, bias=False),
                          **{e + n + end: [] for n in linear for end in (".input_min", ".input_max", ".output_min", ".output_max")},
                          "embed_vision.embedding_projection.weight": [8, 8]})
    i = "vision_model."
    c = i + "encoder.layers.0."
    yield "internvl", seed({"model_type": "internvl_chat", "downsample_ratio": 0.5, "llm_config": {"hidden_size": 8, "model_type": "qwen2"},
                            "vision_config": {**sizes, "image_size": 8, "qkv_bias": True}},
                           {**halves, "resample": 3, "size": {"height": 8, "width": 8}},
                           {i + "embeddings.class_embedding": [1, 1, 8], i + "embeddings.position_embedding": [1, 17, 8], i + "embeddings.patch_embedding.bias": [8],
                            i + "embeddings.patch_embedding.weight": [8, 3, 2, 2], **norms(c + "norm1", c + "norm2"), c + "ls1": [8], c + "ls2": [8],
                            **linears({c + "attn.qkv": (24, 8), c + "attn.proj": (8, 8), c + "mlp.fc1": (12, 8), c + "mlp.fc2": (8, 12)}),
                            **norms("mlp1.0", n=32), **linears({"mlp1.1": (4, 32), "mlp1.3": (8, 4)})})


def pictures():
    """What the standard library can make: PNG. Files of the other formats were made by Pillow."""
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def png(w, h, colour, bits, n_row, extra=b"", interlaced=0, rows=None):
        head = struct.pack(">IIBBBBB", w, h, bits, colour, 0, 0, interlaced)
        data = rows if rows is not None else b"".join(b"\0" + bytes((i * 37 + y * 11) % 256 for i in range(n_row)) for y in range(h))
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")

    exif = b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    yield "rgb.png", b"\0" + png(7, 5, 2, 8, 21)
    yield "rgba.png", b"\1" + png(7, 5, 6, 8, 28)
    yield "grey1.png", b"\2" + png(9, 3, 0, 1, 2)
    yield "grey16.png", b"\3" + png(3, 4, 0, 16, 6)
    yield "palette.png", b"\0" + png(4, 4, 3, 2, 1, chunk(b"PLTE", bytes(range(12))) + chunk(b"tRNS", b"\x80\0"))
    yield "turned.png", b"\2" + png(7, 5, 2, 8, 21, chunk(b"eXIf", exif))
    yield "interlaced.png", b"\0" + png(2, 2, 0, 8, 2, b"", 1, b"\0\x10\0\x20\0\x30\x40")
    yield "bomb.png", b"\0" + png(60000, 60000, 2, 8, 0, rows=b"\0" * 100)


def main():
    for folder, files in (("gguf", ggufs()), ("safetensors", safetensors_files()), ("package", packages()), ("run", runs()), ("session", sessions()),
                          ("profile", profiles()), ("heads", heads()), ("lora", loras()), ("tower", towers()), ("tower_folder", tower_folders()), ("pictures", pictures())):
        (HERE / "corpus" / folder).mkdir(parents=True, exist_ok=True)
        for name, data in files:
            (HERE / "corpus" / folder / name).write_bytes(data)
    (HERE / "corpus" / "config").mkdir(parents=True, exist_ok=True)
    for name in ("falcon-h1-norm", "gemma2", "gemma3n", "gemma4", "gemma4-dense", "gemma4-moe", "llama-linear-rope", "llama3-rope", "llama3-rope-v5", "mistral-window", "phi2", "phi3-long", "phonelm", "qwen2", "qwen3", "heads/eagle3", "heads/eagle3-wide", "heads/eagle3-bare", "heads/assistant", "heads/assistant-wide", "heads/dflash", "heads/dflash-windows"):
        config = json.loads((FIXTURES / name / "config.json").read_text())
        (HERE / "corpus" / "config" / f"{name.split('/')[-1]}.json").write_text(json.dumps(config, separators=(",", ":")) + "\n")
    (HERE / "corpus" / "config" / "nulls.json").write_text('{"hidden_size":null,"num_hidden_layers":1e99,"rope_scaling":[]}\n')


if __name__ == "__main__":
    main()
