"""Folders as transformers publishes them are made of GGUF files here: names, layouts and keys are written down from transformers' models and
configurations, not from the engine. A folder's encoder must be the GGUF file's, weight by weight (the keys of what was seen say so), and the
whole model must answer the same. What a folder may say wrong is refused by its name."""
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from array import array

TERN = os.path.abspath(sys.argv[1])
TMP = tempfile.mkdtemp()
os.environ["TERN_PACK"] = "never"
os.environ["XDG_CACHE_HOME"] = TMP + "/cache"
KEPT = TMP + "/cache/tern/pictures"


# ---- GGUF, as its specification has it ----------------------------------------------------------------------

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_gguf(path):
    """Keys, and tensors as (shape from the outermost, floats). All are F32 here."""
    data = open(path, "rb").read()
    at = 8

    def take(fmt):
        nonlocal at
        v = struct.unpack_from("<" + fmt, data, at)[0]
        at += struct.calcsize("<" + fmt)
        return v

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            of, n = take("I"), take("Q")
            return [value(of) for _ in range(n)]
        return take(SCALARS[kind])

    n_tensors, n_keys = take("Q"), take("Q")
    keys, infos, tensors = {}, [], {}
    for _ in range(n_keys):
        name = text()
        keys[name] = value(take("I"))
    for _ in range(n_tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))][::-1]
        assert take("I") == 0, name
        infos.append((name, dims, take("Q")))
    start = (at + 31) // 32 * 32
    for name, dims, off in infos:
        v = array("f")
        v.frombytes(data[start + off:start + off + 4 * math.prod(dims)])
        tensors[name] = (dims, v)
    return keys, tensors


# ---- a folder -----------------------------------------------------------------------------------------------

def write_safetensors(path, tensors):
    head, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (shape, v) in tensors.items():
        raw = v.tobytes()
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def write_tokenizer(folder, keys):
    """Byte-level BPE, as Qwen2's; marks and control tokens are added ones."""
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    end = tokens[keys["tokenizer.ggml.eos_token_id"]]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False}
    added = [{"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
             for i, t in enumerate(tokens) if types[i] == 3]
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens) if types[i] != 3}, "merges": keys["tokenizer.ggml.merges"]}
    put(folder, "tokenizer.json", {"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"},
                                   "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
                                   "post_processor": byte_level, "decoder": byte_level, "model": model})
    put(folder, "tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer", "eos_token": end, "pad_token": end, "bos_token": None,
                                          "add_bos_token": False, "chat_template": keys["tokenizer.chat_template"]})


def put(folder, name, value):
    with open(os.path.join(TMP, folder, name), "w") as f:
        json.dump(value, f)


def get(folder, name):
    with open(os.path.join(TMP, folder, name)) as f:
        return json.load(f)


# ---- layouts ------------------------------------------------------------------------------------------------

def as_is(t):
    return t


def less_one(t):
    return t[0], array("f", [x - 1 for x in t[1]])


def unshuffle(t):
    """[width][colour][y][x] as a linear over [y][x][colour]."""
    (w, c, h, k), v = t
    out = array("f", [v[((i * c + ch) * h + y) * k + x] for i in range(w) for y in range(h) for x in range(k) for ch in range(c)])
    return [w, h * k * c], out


def film(a, b):
    """Two kernels [width][3][y][x] as one of two moments, [width][3][2][y][x]."""
    (w, c, h, k), v = a
    n = h * k
    out = array("f")
    for i in range(w * c):
        out += v[i * n:(i + 1) * n] + b[1][i * n:(i + 1) * n]
    return [w, c, 2, h, k], out


def together(*ts):
    out = array("f")
    for t in ts:
        out += t[1]
    return [sum(t[0][0] for t in ts), *ts[0][0][1:]], out


def halves_apart(t, heads):
    """Llama's rows in GGUF are interleaved by rotary pairs; transformers has the first half of a head, then the second."""
    shape, v = t
    rows, cols = shape[0], (shape[1] if len(shape) > 1 else 1)
    d = rows // heads
    out = array("f")
    for h in range(heads):
        for i in range(d):
            r = h * d + (2 * i if i < d // 2 else 2 * (i - d // 2) + 1)
            out += v[r * cols:(r + 1) * cols]
    return shape, out


# ---- texts --------------------------------------------------------------------------------------------------

NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate_inp": "mlp.gate"}
GEMMA = {**NAMES, "ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm"}
LFM2 = {**NAMES, "attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "attn_output": "self_attn.out_proj", "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm", "ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2",
        "shortconv.conv": "conv.conv", "shortconv.in_proj": "conv.in_proj", "shortconv.out_proj": "conv.out_proj"}


def text_part(keys, tensors, names, prefix, head):
    """prefix: what stands before "layers.0". GGUF's conventions are undone."""
    arch, out = keys["general.architecture"], {}
    n_heads, n_kv = keys[arch + ".attention.head_count"], keys[arch + ".attention.head_count_kv"]
    n_kv = max(n_kv) if isinstance(n_kv, list) else n_kv
    for name, t in tensors.items():
        if name == "rope_freqs.weight":
            continue
        stem, end = name.rsplit(".", 1)
        if arch == "gemma3" and "norm" in name:
            t = less_one(t)
        if arch == "llama" and (".attn_q." in name or ".attn_k." in name):
            t = halves_apart(t, n_heads if ".attn_q." in name else n_kv)
        if stem.startswith("blk."):
            _, layer, part = stem.split(".", 2)
            if part == "shortconv.conv":
                t = [t[0][0], 1, t[0][1]], t[1]
            if part.endswith("_exps"):
                continue  # below
            out[f"{prefix}layers.{layer}.{names[part]}.{end}"] = t
        else:
            whole = {"token_embd": prefix + "embed_tokens", "output_norm": prefix + "norm", "output": head, "token_embd_norm": prefix + "embedding_norm"}
            out[f"{whole[stem]}.{end}"] = t
    for layer in range(keys[arch + ".block_count"]):
        if f"blk.{layer}.ffn_gate_exps.weight" not in tensors:
            continue
        (e, f, w), gate = tensors[f"blk.{layer}.ffn_gate_exps.weight"]
        up, down = tensors[f"blk.{layer}.ffn_up_exps.weight"][1], tensors[f"blk.{layer}.ffn_down_exps.weight"][1]
        both, turned = array("f"), array("f")
        for x in range(e):  # [expert][width][gate, then up]; [expert][inner][width]
            for c in range(w):
                both += array("f", [gate[(x * f + r) * w + c] for r in range(f)]) + array("f", [up[(x * f + r) * w + c] for r in range(f)])
            for r in range(f):
                turned += array("f", [down[(x * w + c) * f + r] for c in range(w)])
        out[f"{prefix}layers.{layer}.mlp.experts.gate_up_proj"] = [e, w, 2 * f], both
        out[f"{prefix}layers.{layer}.mlp.experts.down_proj"] = [e, f, w], turned
    return out


def text_config(keys, model_type):
    a = keys["general.architecture"]

    def k(name, default=None):
        return keys.get(f"{a}.{name}", default)

    n_kv = k("attention.head_count_kv")
    return {"model_type": model_type, "vocab_size": len(keys["tokenizer.ggml.tokens"]), "hidden_size": k("embedding_length"),
            "intermediate_size": k("feed_forward_length"), "num_hidden_layers": k("block_count"), "num_attention_heads": k("attention.head_count"),
            "num_key_value_heads": max(n_kv) if isinstance(n_kv, list) else n_kv, "max_position_embeddings": k("context_length"),
            "rms_norm_eps": k("attention.layer_norm_rms_epsilon"), "rope_theta": k("rope.freq_base")}


# ---- encoders -----------------------------------------------------------------------------------------------

SIGLIP = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.out_proj",
          "ln1": "layer_norm1", "ln2": "layer_norm2", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}


def by_names(tensors, layers, whole):
    """layers: a template with the layer's number and the part; whole: names outside of them, "" leaves one out."""
    template, parts = layers
    out = {}
    for name, t in tensors.items():
        m = re.fullmatch(r"v\.blk\.(\d+)\.(\w+)\.(\w+)", name)
        if m and m[2] in parts:
            out[template.format(m[1], parts[m[2]]) + ("" if parts[m[2]].endswith("!") else "." + m[3])] = t
            continue
        stem = name.rsplit(".", 1)
        if name in whole:
            if whole[name]:
                out[whole[name]] = t
        elif stem[0] in whole:
            out[f"{whole[stem[0]]}.{stem[1]}"] = t
        elif not m or m[2] in parts:
            raise AssertionError(name)
    return {n.replace("!", ""): t for n, t in out.items()}


def siglip(tensors, where, projector, patches):
    whole = {"v.patch_embd.weight": "", "v.patch_embd.bias": where + "embeddings.patch_embedding.bias",
             "v.position_embd": where + "embeddings.position_embedding", "v.post_ln": where + "post_layernorm", **projector}
    out = by_names(tensors, (where + "encoder.layers.{}.{}", SIGLIP), whole)
    out[where + "embeddings.patch_embedding.weight"] = patches(tensors["v.patch_embd.weight"])
    return out


def smolvlm(k, t):
    return siglip(t, "model.vision_model.", {"mm.model.fc": "model.connector.modality_projection.proj"}, as_is)


def gemma3(k, t):
    t = {**t, "mm.soft_emb_norm.weight": less_one(t["mm.soft_emb_norm.weight"])}
    return siglip(t, "vision_tower.vision_model.", {"mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
                                                    "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight"}, as_is)


def lfm2(k, t):
    where = "model.multi_modal_projector."
    return siglip(t, "model.vision_tower.vision_model.", {"mm.input_norm": where + "layer_norm", "mm.1": where + "linear_1", "mm.2": where + "linear_2"}, unshuffle)


def qwen25(k, t):
    t, n = dict(t), k["clip.vision.block_count"]
    out = {"visual.patch_embed.proj.weight": film(t.pop("v.patch_embd.weight"), t.pop("v.patch_embd.weight.1"))}
    for i in range(n):
        for end in "weight", "bias":
            out[f"visual.blocks.{i}.attn.qkv.{end}"] = together(*(t.pop(f"v.blk.{i}.attn_{p}.{end}") for p in "qkv"))
    parts = {"ln1": "norm1", "ln2": "norm2", "attn_out": "attn.proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    out.update(by_names(t, ("visual.blocks.{}.{}", parts), {"v.post_ln": "visual.merger.ln_q", "mm.0": "visual.merger.mlp.0", "mm.2": "visual.merger.mlp.2"}))
    return out


def qwen3(k, t):
    t = dict(t)
    out = {"model.visual.patch_embed.proj.weight": film(t.pop("v.patch_embd.weight"), t.pop("v.patch_embd.weight.1"))}
    deep = [i for i, on in enumerate(k["clip.vision.is_deepstack_layers"]) if on]
    whole = {"v.patch_embd": "model.visual.patch_embed.proj", "v.position_embd": "model.visual.pos_embed", "v.post_ln": "model.visual.merger.norm",
             "mm.0": "model.visual.merger.linear_fc1", "mm.2": "model.visual.merger.linear_fc2"}
    for n, i in enumerate(deep):
        for a, b in ("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2"):
            whole[f"v.deepstack.{i}.{a}"] = f"model.visual.deepstack_merger_list.{n}.{b}"
    parts = {"ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv", "attn_out": "attn.proj", "ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
    out.update(by_names(t, ("model.visual.blocks.{}.{}", parts), whole))
    return out


def internvl(k, t):
    parts = {"attn_q": "attention.q_proj", "attn_k": "attention.k_proj", "attn_v": "attention.v_proj", "attn_out": "attention.projection_layer",
             "ln1": "layernorm_before", "ln2": "layernorm_after", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2", "ls1": "lambda_1!", "ls2": "lambda_2!"}
    where = "multi_modal_projector."
    whole = {"v.class_embd": "vision_tower.embeddings.cls_token", "v.position_embd.weight": "vision_tower.embeddings.position_embeddings",
             "v.patch_embd": "vision_tower.embeddings.patch_embeddings.projection", "mm.model.mlp.0": where + "layer_norm",
             "mm.model.mlp.1": where + "linear_1", "mm.model.mlp.3": where + "linear_2"}
    return by_names(t, ("vision_tower.encoder.layer.{}.{}", parts), whole)


def internvl_chat(k, t):
    t = dict(t)
    out = {}
    for i in range(k["clip.vision.block_count"]):
        for end in "weight", "bias":
            out[f"vision_model.encoder.layers.{i}.attn.qkv.{end}"] = together(*(t.pop(f"v.blk.{i}.attn_{p}.{end}") for p in "qkv"))
    parts = {"attn_out": "attn.proj", "ln1": "norm1", "ln2": "norm2", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2", "ls1": "ls1!", "ls2": "ls2!"}
    whole = {"v.class_embd": "vision_model.embeddings.class_embedding", "v.position_embd.weight": "vision_model.embeddings.position_embedding",
             "v.patch_embd": "vision_model.embeddings.patch_embedding", "mm.model.mlp.0": "mlp1.0", "mm.model.mlp.1": "mlp1.1", "mm.model.mlp.3": "mlp1.3"}
    out.update(by_names(t, ("vision_model.encoder.layers.{}.{}", parts), whole))
    return out


def gemma4(k, t):
    parts = {"ln1": "input_layernorm", "ln2": "pre_feedforward_layernorm", "attn_post_norm": "post_attention_layernorm",
             "ffn_post_norm": "post_feedforward_layernorm", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
    linears = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.o_proj",
               "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    out, rest = {}, {}
    for name, x in t.items():
        m = re.fullmatch(r"v\.blk\.(\d+)\.(\w+)\.(\w+)", name)
        if m and m[2] in linears:
            end = ".linear.weight" if m[3] == "weight" else "." + m[3]
            out[f"model.vision_tower.encoder.layers.{m[1]}.{linears[m[2]]}{end}"] = x if m[3] == "weight" else ([], x[1])
        elif name.startswith(("a.", "mm.a.")):
            out["model.audio_tower." + name] = x
        else:
            rest[name] = x
    where = "model.vision_tower."
    out[where + "patch_embedder.input_proj.weight"] = unshuffle(rest["v.patch_embd.weight"])
    whole = {"v.patch_embd.weight": "", "v.position_embd.weight": where + "patch_embedder.position_embedding_table", "v.std_bias": where + "std_bias",
             "v.std_scale": where + "std_scale", "mm.input_projection": "model.embed_vision.embedding_projection"}
    out.update(by_names(rest, (where + "encoder.layers.{}.{}", parts), whole))
    return out


def minicpm(k, t):
    t, out = dict(t), {}
    del t["resampler.pos_embed_k"]
    for end in "weight", "bias":
        out["resampler.attn.in_proj_" + end] = together(*(t.pop(f"resampler.attn.{p}.{end}") for p in "qkv"))
    (n, m), v = t.pop("resampler.proj.weight")
    out["resampler.proj"] = [m, n], array("f", [v[i * m + j] for j in range(m) for i in range(n)])
    out["resampler.query"] = t.pop("resampler.query")
    names = {"resampler.kv": "resampler.kv_proj", "resampler.attn.out": "resampler.attn.out_proj", **{f"resampler.ln_{x}": f"resampler.ln_{x}" for x in ("q", "kv", "post")}}
    out.update(siglip(t, "vpm.", names, as_is))
    return out


def sizes(k):
    v = "clip.vision."
    return {"hidden_size": k[v + "embedding_length"], "intermediate_size": k[v + "feed_forward_length"], "num_hidden_layers": k[v + "block_count"],
            "num_attention_heads": k[v + "attention.head_count"], "patch_size": k[v + "patch_size"]}


def qwen_sizes(k):
    s = sizes(k)
    return {"depth": s["num_hidden_layers"], "num_heads": s["num_attention_heads"], "hidden_size": s["hidden_size"], "patch_size": s["patch_size"],
            "intermediate_size": s["intermediate_size"], "spatial_merge_size": k["clip.vision.spatial_merge_size"], "in_channels": 3, "temporal_patch_size": 2,
            "out_hidden_size": k["clip.vision.projection_dim"], "initializer_range": 0.02}


HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255}


def family(name, k):
    """vision_config, what stands beside it, and the processor."""
    v, s = "clip.vision.", sizes(k)
    image, patch, eps = k[v + "image_size"], k[v + "patch_size"], k[v + "attention.layer_norm_epsilon"]
    gelu = {"hidden_act": "gelu_pytorch_tanh", "num_channels": 3, "layer_norm_eps": eps, "attention_dropout": 0.0, "torch_dtype": "bfloat16"}
    if name == "smolvlm":
        return ({**s, **gelu, "image_size": image, "model_type": "smolvlm_vision", "max_image_size": {"longest_edge": image}, "use_base_siglip": True},
                {"scale_factor": k[v + "projector.scale_factor"], "image_token_id": 7},
                {**HALVES, "resample": 1, "size": {"longest_edge": k[v + "preproc_image_size"]}, "max_image_size": {"longest_edge": image},
                 "do_image_splitting": True, "do_pad": True, "image_processor_type": "SmolVLMImageProcessor"})
    if name == "gemma3":
        rows = (image // patch // k[v + "projector.scale_factor"]) ** 2
        return ({**s, "image_size": image, "layer_norm_eps": eps, "model_type": "siglip_vision_model", "vision_use_head": False},
                {"mm_tokens_per_image": rows, "boi_token_index": 3, "image_token_index": 4},
                {**HALVES, "resample": 2, "size": {"height": image, "width": image}, "do_pan_and_scan": None, "image_seq_length": rows})
    if name == "lfm2":
        f = k[v + "projector.scale_factor"]
        return ({**s, **gelu, "model_type": "siglip2_vision_model", "num_patches": (image // patch) ** 2, "vision_use_head": False},
                {"downsample_factor": f, "projector_bias": True, "projector_hidden_act": "gelu", "vision_feature_layer": -1, "do_image_splitting": True,
                 "encoder_patch_size": patch, "max_image_tokens": 256, "min_image_tokens": 64, "min_tiles": 2, "max_tiles": 10, "tile_size": 16 * f * patch,
                 "use_thumbnail": True, "max_pixels_tolerance": 2.0, "use_image_special_tokens": True, "projector_use_layernorm": True},
                {**HALVES, "resample": 2, "do_resize": False, "encoder_patch_size": patch, "max_num_patches": 1024, "return_row_col_info": True,
                 "tile_size": 16 * f * patch, "size": {"height": 512, "width": 512}})
    if name == "qwen25":
        every = k[v + "n_wa_pattern"]
        return ({**qwen_sizes(k), "hidden_act": "silu", "window_size": 112, "fullatt_block_indexes": list(range(every - 1, s["num_hidden_layers"], every)),
                 "tokens_per_second": 2, "spatial_patch_size": patch}, {"image_token_id": 5, "vision_start_token_id": 6},
                {**HALVES, "resample": 3, "min_pixels": 3136, "max_pixels": 12845056, "patch_size": patch, "temporal_patch_size": 2,
                 "merge_size": k[v + "spatial_merge_size"]})
    if name == "qwen3":
        deep = [i for i, on in enumerate(k[v + "is_deepstack_layers"]) if on]
        return ({**qwen_sizes(k), "hidden_act": "gelu_pytorch_tanh", "num_position_embeddings": (image // patch) ** 2, "deepstack_visual_indexes": deep},
                {"image_token_id": 5, "video_token_id": 6},
                {**HALVES, "resample": 3, "size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": patch, "temporal_patch_size": 2,
                 "merge_size": k[v + "spatial_merge_size"]})
    if name.startswith("internvl"):
        same = {**s, "hidden_act": "gelu", "layer_norm_eps": eps, "norm_type": "layer_norm"}
        ratio = 1 / k[v + "projector.scale_factor"]
        p = {**HALVES, "resample": 3, "size": {"height": image, "width": image}, "min_patches": 1, "max_patches": 12, "crop_to_patches": False}
        if name == "internvl":
            return ({**same, "image_size": [image, image], "patch_size": [patch, patch], "attention_bias": True, "use_absolute_position_embeddings": True,
                     "use_mean_pooling": True, "layer_scale_init_value": 0.1},
                    {"downsample_ratio": ratio, "projector_hidden_act": "gelu", "vision_feature_layer": -1, "vision_feature_select_strategy": "default"}, p)
        return ({**same, "image_size": image, "qkv_bias": True, "qk_normalization": False, "drop_path_rate": 0.1, "use_flash_attn": True, "num_beams": 1},
                {"downsample_ratio": ratio, "force_image_size": image, "min_dynamic_patch": 1, "max_dynamic_patch": 12, "ps_version": "v2", "select_layer": -1,
                 "dynamic_image_size": True, "use_thumbnail": True, "template": "internvl2_5", "use_backbone_lora": 0, "pad2square": False}, p)
    if name == "minicpm":
        return ({**s, "image_size": k["places"] * patch, "model_type": "siglip"},
                {"version": 2.6, "query_num": k["queries"], "image_size": 448, "patch_size": patch, "slice_mode": True, "drop_vision_last_layer": False,
                 "batch_vision_input": True, "slice_config": {"max_slice_nums": 9, "patch_size": patch, "model_type": "minicpmv", "scale_resolution": image}},
                {"image_processor_type": "MiniCPMVImageProcessor", "max_slice_nums": 9, "scale_resolution": image, "patch_size": patch, "use_image_id": True,
                 "image_feature_size": k["queries"], "im_start": "<image>", "im_end": "</image>", "slice_start": "<slice>", "slice_end": "</slice>", "unk": "<unk>",
                 "im_id_start": "<image_id>", "im_id_end": "</image_id>", "slice_mode": True, "norm_mean": [0.5] * 3, "norm_std": [0.5] * 3, "version": 2.6})
    limited = k["limited"]
    f = k[v + "projector.scale_factor"]
    return ({**s, "rms_norm_eps": eps, "hidden_activation": "gelu_pytorch_tanh", "pooling_kernel_size": f, "head_dim": s["hidden_size"] // s["num_attention_heads"],
             "num_key_value_heads": s["num_attention_heads"], "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
             "position_embedding_size": 900, "use_clipped_linears": limited, "standardize": not limited, "default_output_length": 280,
             "attention_bias": False, "max_position_embeddings": 131072},
            {"vision_soft_tokens_per_image": 280, "audio_config": {"x": 1}, "boi_token_id": 1},
            {"do_normalize": False, "do_rescale": True, "do_resize": True, "rescale_factor": 1 / 255, "resample": 3, "max_soft_tokens": 280, "patch_size": patch,
             "pooling_kernel_size": f, "image_seq_length": 280})


# ---- pictures -----------------------------------------------------------------------------------------------

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png(path, w, h, seed):
    rng = random.Random(seed)
    rows = b"".join(b"\0" + bytes(rng.randrange(256) for _ in range(w * 3)) for _ in range(h))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def call(*args, rc=0, err=None):
    r = subprocess.run([TERN, *args], capture_output=True, cwd=TMP)
    said = r.stderr.decode(errors="replace")
    assert r.returncode == rc, (args, r.returncode, said)
    assert err is None or err in said, (args, err, said)
    if rc:
        lines = [line for line in said.strip().split("\n") if not line.startswith("tern: pictures are not seen: ")]
        assert not r.stdout and len(lines) == 1, (args, said)
    return r.stdout, said


def look(model, *more):
    j = json.loads(call("run", model, *more, "small.png", "wide.png", "what is this?", "-n", "24", "--temp", "0", "--picture-rows", "100", "--json")[0])
    return j["text"], j["pictures"]


def forget():
    shutil.rmtree(KEPT, ignore_errors=True)


def synth(arch, name, numbers):
    """With other numbers of these keys."""
    call("synth", "--arch", arch, "--type", "f32", "-o", name)
    with open(os.path.join(TMP, name), "r+b") as f:
        data = f.read()
        for key, value in numbers.items():
            at = key.encode() + struct.pack("<I", 6 if isinstance(value, float) else 4)
            f.seek(data.index(at) + len(at))
            f.write(struct.pack("<f" if isinstance(value, float) else "<I", value))


# What transformers does not let a folder say; the side is of no consequence, and converters write one and the same.
EPS, SIDE = "clip.vision.attention.layer_norm_epsilon", "clip.vision.image_size"
FIXED = {"qwen25": {SIDE: 560, EPS: 1e-6}, "qwen3": {EPS: 1e-6}, "gemma4": {SIDE: 224}}


def write_folder(name, keys, parts, configs, model_type, mkeys, mtensors):
    """parts(keys, tensors): the text; configs: of the text, beside it."""
    os.makedirs(os.path.join(TMP, name))
    vision, beside, processor = family(FAMILY[name], mkeys)
    tensors = {**parts, **ENCODERS[FAMILY[name]](mkeys, mtensors)}
    write_safetensors(os.path.join(TMP, name, "model.safetensors"), tensors)
    text = "llm_config" if FAMILY[name] == "internvl_chat" else "text_config"
    texts = configs if FAMILY[name] == "minicpm" else {text: configs}
    put(name, "config.json", {"architectures": ["X"], **texts, "model_type": model_type, "vision_config": vision, "transformers_version": "4.57.0", **beside})
    put(name, "preprocessor_config.json", processor)
    write_tokenizer(name, keys)


ENCODERS = {"smolvlm": smolvlm, "gemma3": gemma3, "lfm2": lfm2, "qwen25": qwen25, "qwen3": qwen3, "internvl": internvl, "internvl_chat": internvl_chat,
            "gemma4": gemma4, "minicpm": minicpm}
FAMILY = {}


def whole_model(name, fam, text, tower, model_type, text_type, names, prefix, head, more):
    """The folder answers as the two GGUF files do; first by rows that are known: its encoder's weights are the same."""
    FAMILY[name] = fam
    synth(text, name + ".gguf", {"qwen3vlmoe.n_deepstack_layers": 2} if "moe" in text else {})  # as many as the encoder has
    synth(tower, name + "-encoder.gguf", FIXED.get(fam, {}))
    keys, tensors = read_gguf(os.path.join(TMP, name + ".gguf"))
    mkeys, mtensors = read_gguf(os.path.join(TMP, name + "-encoder.gguf"))
    if fam == "minicpm":
        mkeys.update(queries=mtensors["resampler.query"][0][0], places=math.isqrt(mtensors["v.position_embd.weight"][0][0]))
    config = {**text_config(keys, text_type), **more(keys)}
    write_folder(name, keys, text_part(keys, tensors, names, prefix, head), config, model_type, mkeys, mtensors)
    forget()
    want, seen = look(name + ".gguf", "--mmproj", name + "-encoder.gguf")
    assert all(p["encoded"] == p["views"] for p in seen), seen
    got, again = look(name)
    assert got == want, (name, got, want)
    assert all(p["encoded"] == 0 and p["from_disk"] == p["views"] for p in again), (name, again)
    forget()
    got, again = look(name)
    assert got == want and all(p["encoded"] == p["views"] for p in again), (name, got, want, again)
    print(f"{name}: {sum(p['rows'] for p in seen)} rows, the same weights and the same answer")


def encoder_alone(name, tower, text, model_type):
    """The text's own reader is tested elsewhere: a folder is named as the encoder of a GGUF file."""
    fam = FAMILY[name] = "gemma4" if "gemma4" in name else "qwen3"
    call("synth", "--arch", text, "--type", "f32", "-o", name + ".gguf")
    synth(tower, name + "-encoder.gguf", FIXED.get(fam, {}))
    keys, _ = read_gguf(os.path.join(TMP, name + ".gguf"))
    mkeys, mtensors = read_gguf(os.path.join(TMP, name + "-encoder.gguf"))
    mkeys["limited"] = "v.blk.0.attn_q.input_min" in mtensors
    write_folder(name, keys, {}, {"hidden_size": mkeys["clip.vision.projection_dim"], "model_type": fam}, model_type, mkeys, mtensors)
    forget()
    # in floats: whether INT8 sees as much would be judged by drawings of thousands of such small patches, and is tested above
    want, _ = look(name + ".gguf", "--mmproj", name + "-encoder.gguf", "--encoder", "float")
    got, again = look(name + ".gguf", "--mmproj", name, "--encoder", "float")
    assert got == want and all(p["encoded"] == 0 for p in again), (name, again)
    forget()
    assert look(name + ".gguf", "--mmproj", name, "--encoder", "float")[0] == want
    print(f"{name}: the same weights")


write_png(os.path.join(TMP, "small.png"), 40, 30, 1)
write_png(os.path.join(TMP, "wide.png"), 150, 70, 2)
call("synth", "--arch", "tiny-llama", "--type", "f32", "-o", "blind.gguf")
if b"was built without" in subprocess.run([TERN, "run", "blind.gguf", "small.png", "x"], capture_output=True, cwd=TMP).stderr:
    print("skipped: this tern reads no PNG (libpng-dev)")
    sys.exit(77)


def axes(keys):
    a = keys["general.architecture"]
    d = keys.get(a + ".attention.key_length", keys[a + ".embedding_length"] // keys[a + ".attention.head_count"])
    return {"head_dim": d, "rope_scaling": {"rope_type": "default", "mrope_section": keys[a + ".rope.dimension_sections"][:3]}}


def gemma_more(keys):  # the folder leaves out what transformers takes by itself
    return {"sliding_window": keys["gemma3.attention.sliding_window"], "head_dim": keys["gemma3.attention.key_length"], "hidden_activation": "gelu_pytorch_tanh",
            "rope_scaling": {"rope_type": "linear", "factor": keys["gemma3.rope.scaling.factor"]},
            "query_pre_attn_scalar": keys["gemma3.attention.key_length"]}


def lfm2_more(keys):
    kinds = ["full_attention" if n else "conv" for n in keys["lfm2.attention.head_count_kv"]]
    return {"layer_types": kinds, "conv_L_cache": keys["lfm2.shortconv.l_cache"], "block_auto_adjust_ff_dim": False, "norm_eps": keys["lfm2.attention.layer_norm_rms_epsilon"]}


whole_model("SmolVLM", "smolvlm", "tiny-llama+sees", "tiny-smolvlm-mmproj", "smolvlm", "llama", NAMES, "model.text_model.", "lm_head",
            lambda k: {"perceiver_config": {"resampler_depth": 6}, "use_resampler": False, "is_llama_config": True, "pixel_shuffle_factor": 4})
whole_model("Gemma-3", "gemma3", "tiny-gemma3+sees", "tiny-gemma3-mmproj", "gemma3", "gemma3_text", GEMMA, "language_model.model.", "language_model.lm_head",
            gemma_more)
whole_model("LFM2-VL", "lfm2", "tiny-lfm2+sees", "tiny-lfm2vl-mmproj", "lfm2_vl", "lfm2", LFM2, "model.language_model.", "lm_head", lfm2_more)
whole_model("InternVL-hf", "internvl", "tiny-qwen2+sees", "tiny-internvl-mmproj", "internvl", "qwen2", NAMES, "language_model.model.", "language_model.lm_head",
            lambda k: {})
whole_model("InternVL", "internvl_chat", "tiny-qwen2+sees", "tiny-internvl-mmproj", "internvl_chat", "qwen2", NAMES, "language_model.model.",
            "language_model.lm_head", lambda k: {"top_k": 50, "max_length": 20, "temperature": 1.0})
whole_model("Qwen2.5-VL", "qwen25", "tiny-qwen2vl+sees", "tiny-qwen25vl-mmproj", "qwen2_5_vl", "qwen2_5_vl_text", NAMES, "model.", "lm_head", axes)
whole_model("Qwen3-VL", "qwen3", "tiny-qwen3vl+sees", "tiny-qwen3vl-mmproj", "qwen3_vl", "qwen3_vl_text", NAMES, "model.language_model.", "lm_head", axes)


def experts(keys):
    a = keys["general.architecture"]
    return {**axes(keys), "num_experts": keys[a + ".expert_count"], "num_experts_per_tok": keys[a + ".expert_used_count"],
            "moe_intermediate_size": keys[a + ".expert_feed_forward_length"], "norm_topk_prob": True}


whole_model("Qwen3-VL-MoE", "qwen3", "tiny-qwen3vlmoe+sees", "tiny-qwen3vl-mmproj", "qwen3_vl_moe", "qwen3_vl_moe_text", NAMES, "model.language_model.",
            "lm_head", experts)
whole_model("MiniCPM-V", "minicpm", "tiny-qwen2+wide+sees", "tiny-minicpmv-mmproj", "minicpmv", "qwen2", NAMES, "llm.model.", "llm.lm_head",
            lambda k: {"_name_or_path": "x", "auto_map": {"AutoModel": "x"}, "attention_dropout": 0.0, "max_window_layers": 36, "use_sliding_window": False,
                       "sliding_window": None, "batch_3d_resampler": True, "use_image_id": True, "vision_batch_size": 16})  # what published ones say, too
encoder_alone("Qwen3.5", "tiny-qwen35-mmproj", "tiny-qwen35+sees", "qwen3_5")
encoder_alone("gemma4-E2B", "tiny-gemma4-mmproj", "tiny-gemma4+sees", "gemma4")
encoder_alone("gemma4-31B", "tiny-gemma4-31b-mmproj", "tiny-gemma4+dense+sees", "gemma4")

# LFM2.5-VL has no norm in its projector
FAMILY["LFM2.5-VL"] = "lfm2"
synth("tiny-lfm2.5vl-mmproj", "bare.gguf", {})
bare_keys, bare = read_gguf(TMP + "/bare.gguf")
write_folder("LFM2.5-VL", read_gguf(TMP + "/LFM2-VL.gguf")[0], {}, {"hidden_size": 64}, "lfm2_vl", bare_keys, bare)
forget()
call("run", "LFM2-VL.gguf", "--mmproj", "bare.gguf", "small.png", "x", "-n", "1")
assert json.loads(call("run", "LFM2-VL.gguf", "--mmproj", "LFM2.5-VL", "small.png", "x", "-n", "1", "--json")[0])["pictures"][0]["encoded"] == 0


# ---- packages, and the other ways in -----------------------------------------------------------------------

for name in "SmolVLM", "Qwen3-VL", "MiniCPM-V":
    forget()
    want, _ = look(name)
    said = call("pack", name, "-o", name + ".tern")[1]
    assert f"the encoder of pictures {name} goes into the package" in said, said
    _, seen = look(name + ".tern")
    assert all(p["encoded"] == 0 for p in seen), (name, seen)  # the same encoder
    said = call("run", name + ".tern", "small.png", "what?", "-n", "2", "--explain", "--picture-cache", "0")[1]
    assert "encoder of pictures: INT8 (a drawing's rows" in said, said  # with the verdict of packing
said = call("run", "SmolVLM", "small.png", "what?", "-n", "2", "--explain")[1]
assert "picture small.png: 40 x 30 pixels" in said, said
os.makedirs(TMP + "/halves")  # the same folder in BF16, and its pieces named by an index
shutil.copytree(TMP + "/SmolVLM", TMP + "/halves", dirs_exist_ok=True)
with open(TMP + "/halves/model.safetensors", "rb") as f:
    raw = f.read()
size = struct.unpack("<Q", raw[:8])[0]
head, body = json.loads(raw[8:8 + size]), raw[8 + size:]
halves = {}
for n, t in head.items():
    if n != "__metadata__":
        b = body[t["data_offsets"][0]:t["data_offsets"][1]]
        halves[n] = t["shape"], b"".join(b[i + 2:i + 4] for i in range(0, len(b), 4))


def write_halves(file, names):
    head, data = {}, b""
    for n in names:
        head[n] = {"dtype": "BF16", "shape": halves[n][0], "data_offsets": [len(data), len(data) + len(halves[n][1])]}
        data += halves[n][1]
    text = json.dumps(head).encode()
    with open(TMP + "/halves/" + file, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


os.remove(TMP + "/halves/model.safetensors")
some = sorted(halves)
write_halves("model-00001-of-00002.safetensors", some[::2])
write_halves("model-00002-of-00002.safetensors", some[1::2])
put("halves", "model.safetensors.index.json", {"weight_map": {n: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, n in enumerate(some)}})
forget()
_, seen = look("halves")
assert all(p["encoded"] == p["views"] for p in seen), seen


# ---- what a folder may say wrong ---------------------------------------------------------------------------

def refused(folder, file, change, err, more=()):
    """change: of the JSON of that file."""
    was = get(folder, file)
    now = json.loads(json.dumps(was))
    change(now)
    put(folder, file, now)
    call("run", folder, *more, "small.png", "what?", "-n", "1", rc=1, err=err)
    put(folder, file, was)


def vision(**values):
    return lambda c: c["vision_config"].update(values)


def top(**values):
    return lambda c: c.update(values)


C, P = "config.json", "preprocessor_config.json"
# a name that ends where no part of it says of what it is
with open(TMP + "/Qwen2.5-VL/model.safetensors", "rb") as f:
    was = f.read()
n = struct.unpack("<Q", was[:8])[0]
now = was[8:8 + n].replace(b'"visual.blocks.0.attn.qkv.weight"', b'"visual.blocks.0.attn.qkv"')
with open(TMP + "/Qwen2.5-VL/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(now)) + now + was[8 + n:])
call("run", "Qwen2.5-VL", "small.png", "what?", "-n", "1", "--picture-cache", "0", rc=1, err="v.blk.0.attn_q")
with open(TMP + "/Qwen2.5-VL/model.safetensors", "wb") as f:
    f.write(was)

for change, err in ((lambda c: c.update(version=2.5), "version 2.5 of MiniCPM-V; 2.6, 4.0 and 4.5 are read from folders"),
                    (lambda c: c.pop("version"), "'version' of MiniCPM-V is missing, or no number"),
                    (lambda c: c.pop("drop_vision_last_layer"), "'drop_vision_last_layer' of an encoder of pictures is not false"),
                    (lambda c: c["slice_config"].update(max_slice_nums=4), "'max_slice_nums' of an encoder of pictures is not 9"),
                    (lambda c: c["slice_config"].update(scale_resolution=64), "'scale_resolution' is 32; it is supported as 64"),
                    (lambda c: c.update(query_num=6), "'image_feature_size' is 5; it is supported as 6"),
                    (lambda c: c["vision_config"].update(image_size=32), "v.position_embd.weight has 49 places, and config.json says 64")):
    refused("MiniCPM-V", "config.json", change, err, ("--picture-cache", "0"))
refused("MiniCPM-V", "preprocessor_config.json", lambda c: c.update(im_start="<img>"), "'im_start' of an encoder of pictures is not <image>")
refused("SmolVLM", C, vision(sparkle=3), "'sparkle' is not known, and what it says could change every picture")
refused("SmolVLM", C, top(sparkle=True), "'sparkle' is not known, and what it says could change every picture")
refused("SmolVLM", P, top(sparkle="x"), "'sparkle' is not known, and what it says could change every picture")
refused("SmolVLM", C, vision(hidden_act="quick_gelu"), "'hidden_act' of an encoder of pictures is not gelu_pytorch_tanh, which is not supported")
refused("SmolVLM", C, vision(num_channels=4), "'num_channels' of an encoder of pictures is not 3")
refused("SmolVLM", C, vision(hidden_size=-1), "'hidden_size' is no whole number")
refused("SmolVLM", C, vision(hidden_size="many"), "'hidden_size' is no whole number")
refused("SmolVLM", C, vision(num_hidden_layers=3), "lacks the tensor v.blk.2.ln1.weight, as GGUF names it")
refused("SmolVLM", C, vision(num_hidden_layers=1), "v.blk.1.")
refused("SmolVLM", C, vision(num_hidden_layers=0), "an encoder of 0 layers")
refused("SmolVLM", C, vision(patch_size=7), "v.patch_embd.weight has")
refused("SmolVLM", C, top(scale_factor=3), "do not go together")
refused("SmolVLM", P, top(resample=3), "'resample' of an encoder of pictures is not 1")
refused("SmolVLM", P, top(rescale_factor=0.5), "'rescale_factor' is 0.5; it is supported as 1/255")
refused("SmolVLM", P, top(do_image_splitting=False), "'do_image_splitting' of an encoder of pictures is not true")
refused("SmolVLM", P, top(max_image_size={"longest_edge": 64}), "'longest_edge' is 64; it is supported as 32")
refused("SmolVLM", P, lambda c: c.pop("size"), "says no 'longest_edge' of the encoder of pictures")
refused("SmolVLM", P, lambda c: c.pop("image_std"), "'image_std' must have 3 numbers")
refused("SmolVLM", P, top(image_mean=[0, 0, "x"]), "'image_mean' must have 3 numbers")
refused("LFM2-VL", C, top(vision_feature_layer=-2), "'vision_feature_layer' of an encoder of pictures is not -1")
refused("LFM2-VL", C, top(max_image_tokens=512), "'max_image_tokens' of an encoder of pictures is not 256")
refused("LFM2-VL", P, top(tile_size=512), "'tile_size' is 512; it is supported as 128")
refused("LFM2-VL", C, vision(num_patches=24), "24 positions are no square")
refused("Qwen2.5-VL", C, vision(fullatt_block_indexes=[0, 2]), "'fullatt_block_indexes' is no layer of every so many")
refused("Qwen2.5-VL", P, top(merge_size=3), "'merge_size' is 3; it is supported as 2")
refused("Qwen2.5-VL", C, vision(temporal_patch_size=1), "'temporal_patch_size' of an encoder of pictures is not 2")
refused("Qwen3-VL", C, vision(out_hidden_size=32), "the encoder's rows have 32 values, and the text's 64")
refused("Qwen3-VL", C, vision(deepstack_visual_indexes=[2, 0]), "is no rising list of layers")
refused("Gemma-3", C, top(mm_tokens_per_image=10), "10 rows are no square part of 8 x 8 patches")
refused("InternVL", C, top(downsample_ratio=0.7), "'downsample_ratio' is 0.7")
refused("InternVL", C, top(ps_version="v1"), "'ps_version' of an encoder of pictures is not v2")
refused("InternVL-hf", C, vision(use_mean_pooling=False), "'use_mean_pooling' of an encoder of pictures is not true")
alone = ("--mmproj", "gemma4-E2B")
for change, err in ((vision(use_clipped_linears=False), "the encoder's linears have their limits, and 'use_clipped_linears' says otherwise"),
                    (vision(standardize=True), "the encoder has no std_bias, and 'standardize' says otherwise"),
                    (vision(rope_parameters={"rope_theta": 1e4}), "the encoder's rope is of type default and base 10000"),
                    (vision(num_key_value_heads=1), "'num_key_value_heads' is 1; it is supported as 2")):
    was = get("gemma4-E2B", C)
    now = json.loads(json.dumps(was))
    change(now)
    put("gemma4-E2B", C, now)
    call("run", "gemma4-E2B.gguf", *alone, "small.png", "what?", "-n", "1", rc=1, err=err)
    put("gemma4-E2B", C, was)

# tensors: one more, one that is there twice, one that is not finite
names = dict(halves)
for name, err in (("model.vision_model.encoder.layers.0.self_attn.sinks", "is not known, and the encoder of pictures would be another without it"),
                  ("model.vision_model.encoder.layers.00.layer_norm1.weight", "is not known"),
                  ("vision_model.post_layernorm.weight", "has v.post_ln.weight twice")):
    halves[name] = halves["model.vision_model.post_layernorm.weight"]
    write_halves("model-00001-of-00002.safetensors", some[::2] + [name])
    index = get("halves", "model.safetensors.index.json")
    put("halves", "model.safetensors.index.json", {"weight_map": {**index["weight_map"], name: "model-00001-of-00002.safetensors"}})
    call("run", "halves", "small.png", "what?", "-n", "1", rc=1, err=err)
    put("halves", "model.safetensors.index.json", index)
shape, raw = halves["model.vision_model.post_layernorm.weight"]
halves["model.vision_model.post_layernorm.weight"] = shape, b"\x80\x7f" + raw[2:]
for part in 0, 1:
    write_halves(f"model-0000{part + 1}-of-00002.safetensors", some[part::2])
call("run", "halves", "small.png", "what?", "-n", "1", rc=1, err="v.post_ln.weight holds values that are not finite")

# the processor's other place; and none
other = get("SmolVLM", P)
os.remove(TMP + "/SmolVLM/" + P)
call("run", "SmolVLM", "small.png", "what?", "-n", "1", rc=1, err="has no preprocessor_config.json: how its model wants pictures is not known")
put("SmolVLM", "processor_config.json", {"processor_class": "SmolVLMProcessor", "image_seq_len": 64})
call("run", "SmolVLM", "small.png", "what?", "-n", "1", rc=1, err="says nothing of pictures ('image_processor')")
put("SmolVLM", "processor_config.json", {"image_processor": other, "image_seq_len": 64})
call("run", "SmolVLM", "small.png", "what?", "-n", "1")
put("SmolVLM", P, other)

# an mmproj file in the folder is the user's word; a text without an encoder, and a wrapper of an unknown text
shutil.copy(TMP + "/SmolVLM-encoder.gguf", TMP + "/SmolVLM/mmproj-f32.gguf")
refusing = get("SmolVLM", C)
put("SmolVLM", C, {**refusing, "vision_config": {**refusing["vision_config"], "sparkle": 3}})
call("run", "SmolVLM", "small.png", "what?", "-n", "1")
os.remove(TMP + "/SmolVLM/mmproj-f32.gguf")
put("SmolVLM", C, {k: v for k, v in refusing.items() if k != "vision_config"})
call("run", "SmolVLM", "small.png", "what?", "-n", "1", rc=1, err="SmolVLM has no picture encoder that is read, in itself or beside it")
call("run", "SmolVLM", "what?", "-n", "1")
put("SmolVLM", C, {k: v for k, v in refusing.items() if k != "text_config"})
call("run", "SmolVLM", "what?", "-n", "1", rc=1, err="says nothing of the model's text ('text_config')")
put("SmolVLM", C, {**refusing, "text_config": {**refusing["text_config"], "model_type": "mamba9"}})
call("run", "SmolVLM", "what?", "-n", "1", rc=1, err="model type 'mamba9' is not supported")
put("SmolVLM", C, refusing)
shutil.rmtree(TMP)
