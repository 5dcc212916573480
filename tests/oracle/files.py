"""Writers of the two checkpoint formats, and the tensors in their storage types. Independent of the engine's readers."""
import json
import struct

import numpy as np

from reference import rope_frequencies


class Stored:
    """A tensor as it lies in a file: `bits` are its bytes' integers, `values` what they mean in float64."""

    def __init__(self, values, dtype):
        v = np.asarray(values, dtype=np.float32)
        self.dtype = dtype
        if dtype == "F32":
            self.bits, self.values = v, v.astype(np.float64)
        elif dtype == "F16":
            self.bits = v.astype(np.float16)
            self.values = self.bits.astype(np.float64)
        elif dtype == "BF16":  # the upper half of a float, rounded to nearest even
            u = np.ascontiguousarray(v).view(np.uint32)
            self.bits = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
            self.values = (self.bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        elif dtype in ("Q8_0", "Q4_0"):  # blocks of 32 along a row: one F16 scale, then the integers
            b = v.reshape(-1, 32)
            if dtype == "Q8_0":
                scale = (np.abs(b).max(axis=1, keepdims=True) / 127).astype(np.float16)
                q = np.clip(np.rint(b / np.where(scale == 0, 1, scale).astype(np.float32)), -127, 127)
                raw = q.astype(np.int8).view(np.uint8)
            else:  # the value of largest magnitude becomes -8; nibbles: value i low, value i + 16 high
                extreme = np.take_along_axis(b, np.abs(b).argmax(axis=1)[:, None], axis=1)
                scale = (extreme / -8).astype(np.float16)
                q = np.clip(np.rint(b / scale.astype(np.float32)), -8, 7)
                nibble = (q + 8).astype(np.uint8)
                raw = nibble[:, :16] | nibble[:, 16:] << 4
            self.bits = np.concatenate([scale.view(np.uint8).reshape(-1, 2), raw], axis=1)
            self.values = (q * scale.astype(np.float64)).reshape(v.shape)
        else:
            raise ValueError(dtype)

    def bytes(self):
        return self.bits.astype(self.bits.dtype.newbyteorder("<")).tobytes()


def write_safetensors(path, tensors):
    """u64 header length, JSON header padded with spaces to 8 bytes, data. tensors: name -> Stored."""
    head, data = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(tensors):
        t = tensors[name]
        raw = t.bytes()
        head[name] = {"dtype": t.dtype, "shape": list(t.values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_hf_folder(folder, cfg, tensors, n_shards):
    (folder / "config.json").write_text(json.dumps(cfg, indent=2) + "\n")
    if n_shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = sorted(tensors)
    weight_map = {}
    for s in range(n_shards):
        part = names[s * len(names) // n_shards : (s + 1) * len(names) // n_shards]
        file = f"model-{s + 1:05d}-of-{n_shards:05d}.safetensors"
        write_safetensors(folder / file, {n: tensors[n] for n in part})
        weight_map.update({n: file for n in part})
    total = sum(len(t.bytes()) for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


# ---- GGUF v3 ------------------------------------------------------------------------------------------

GGUF_TYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "I64": 27, "BF16": 30}


def gguf_string(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


GGUF_KINDS = {"uint32": (4, "<I"), "int32": (5, "<i"), "float32": (6, "<f"), "bool": (7, "<?"), "uint64": (10, "<Q")}


def gguf_typed(kind, v):
    """A value whose type is named: "uint32", or "uint32[]" for a list."""
    if kind.endswith("[]"):
        each = [gguf_typed(kind[:-2], x) for x in v]
        return struct.pack("<I", 9) + each[0][:4] + struct.pack("<Q", len(v)) + b"".join(x[4:] for x in each)
    if kind == "string":
        return struct.pack("<I", 8) + gguf_string(v)
    number, form = GGUF_KINDS[kind]
    return struct.pack("<I", number) + struct.pack(form, v)


def gguf_value(v):
    if isinstance(v, tuple):
        return gguf_typed(*v)
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, bytes):
        return struct.pack("<IIQ", 9, 0, len(v)) + v
    if isinstance(v, list):  # of one kind
        kind = gguf_value(v[0])[:4]
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(v)) + b"".join(gguf_value(x)[4:] for x in v)
    return struct.pack("<I", 8) + gguf_string(v)


def write_gguf(path, meta, tensors):
    """meta: key -> int | float | bool | str; tensors: name -> Stored. Dimensions are stored innermost first."""
    align = 32
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    for key, v in meta.items():
        out += gguf_string(key) + gguf_value(v)
    data = b""
    for name, t in tensors.items():
        shape = t.values.shape[::-1]
        out += gguf_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        out += struct.pack("<IQ", GGUF_TYPE[t.dtype], len(data))
        data += t.bytes()
        data += b"\0" * (-len(data) % align)
    path.write_bytes(out + b"\0" * (-len(out) % align) + data)


def interleave_pairs(w, n_heads):
    """Llama's Q and K rows in GGUF: within a head, row i and row i + d/2 (a rotary pair) become neighbours."""
    d = w.shape[0] // n_heads
    return w.reshape(n_heads, 2, d // 2, -1).swapaxes(1, 2).reshape(w.shape)


# Hugging Face name -> GGUF name, by the part after "model.layers.N." (or the whole name).
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.final_layernorm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.dense": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
GGUF_NAMES_NEXT = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkvz": "ssm_in",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.out_proj": "ssm_out",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
GGUF_NAMES_GEMMA2 = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_next(cfg, tensors, name, widen):
    """Qwen3-Next and Qwen3.5: decays as the factors they stand for, convolutions without their empty dimension, experts
    one behind the other; Qwen3.5's value heads so that those of one key head are n_k apart instead of side by side."""
    arch = {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}[cfg["model_type"]]
    n_k, n_v, d_v = cfg["linear_num_key_heads"], cfg["linear_num_value_heads"], cfg["linear_value_head_dim"]
    keys = n_k * cfg["linear_key_head_dim"]
    rope = cfg.get("rope_parameters") or cfg
    meta = {
        "general.architecture": arch,
        "general.name": name,
        f"{arch}.context_length": cfg["max_position_embeddings"],
        f"{arch}.embedding_length": cfg["hidden_size"],
        f"{arch}.block_count": cfg["num_hidden_layers"],
        f"{arch}.feed_forward_length": cfg["intermediate_size"],
        f"{arch}.attention.head_count": cfg["num_attention_heads"],
        f"{arch}.attention.head_count_kv": cfg["num_key_value_heads"],
        f"{arch}.attention.key_length": cfg["head_dim"],
        f"{arch}.attention.value_length": cfg["head_dim"],
        f"{arch}.attention.layer_norm_rms_epsilon": cfg["rms_norm_eps"],
        f"{arch}.rope.freq_base": rope["rope_theta"],
        f"{arch}.rope.dimension_count": int(rope["partial_rotary_factor"] * cfg["head_dim"]),
        f"{arch}.ssm.conv_kernel": cfg["linear_conv_kernel_dim"],
        f"{arch}.ssm.state_size": cfg["linear_key_head_dim"],
        f"{arch}.ssm.group_count": n_k,
        f"{arch}.ssm.time_step_rank": n_v,
        f"{arch}.ssm.inner_size": n_v * d_v,
        "tokenizer.ggml.model": "none",
    }
    if cfg.get("num_experts"):
        meta[f"{arch}.expert_count"], meta[f"{arch}.expert_used_count"] = cfg["num_experts"], cfg["num_experts_per_tok"]
        meta[f"{arch}.expert_feed_forward_length"] = cfg["moe_intermediate_size"]
        meta[f"{arch}.expert_shared_feed_forward_length"] = cfg["shared_expert_intermediate_size"]

    def tiled(v, width, axis=0):
        shape = v.shape
        v = np.moveaxis(v, axis, 0)
        moved = v.reshape(n_k, n_v // n_k, width, -1).swapaxes(0, 1).reshape(v.shape)
        return np.moveaxis(moved, 0, axis).reshape(shape)

    out, experts = {}, {}
    n_layers = cfg["num_hidden_layers"]
    if cfg.get("full_attention_interval", 4) != 4:  # what readers take where nothing is said
        meta[f"{arch}.full_attention_interval"] = cfg["full_attention_interval"]
    next_names = {"mtp.fc": "eh_proj", "mtp.norm": "shared_head_norm", "mtp.pre_fc_norm_embedding": "enorm", "mtp.pre_fc_norm_hidden": "hnorm"}
    if any(n.startswith("mtp.") for n in tensors):  # the layer that guesses further is one more, and counted
        meta[f"{arch}.block_count"], meta[f"{arch}.nextn_predict_layers"] = n_layers + 1, 1
    for hf_name, t in tensors.items():
        v = t.values
        hf_name = hf_name.replace("mtp.layers.0.", f"model.layers.{n_layers}.")
        if ".experts." in hf_name:
            layer, part = hf_name.split(".")[2], hf_name.split(".")[-2 if hf_name.endswith("weight") else -1].split("_")[0]
            if hf_name.endswith("gate_up_proj"):  # of all experts, and gate and up, in one
                for e in t.values:
                    for part, rows in zip(("gate", "up"), np.split(e, 2)):
                        experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", []).append(Stored(rows, t.dtype))
            elif not hf_name.endswith("weight"):
                experts[f"blk.{layer}.ffn_{part}_exps.weight"] = [Stored(e, t.dtype) for e in t.values]
            else:
                experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", []).append(t)
            continue
        stem, end = hf_name.rsplit(".", 1)
        if (stem.endswith("norm") or "pre_fc_norm" in stem) and not stem.endswith("linear_attn.norm"):
            v = v + 1
        if hf_name.endswith("A_log"):
            v = -np.exp(v)
        if stem.endswith("conv1d"):
            v = v[:, 0]
        if stem.endswith("shared_expert_gate"):
            v = v[0]
        if arch != "qwen3next":
            part = hf_name.split("linear_attn.")[-1]
            if part.split(".")[0] in ("in_proj_b", "in_proj_a", "A_log", "dt_bias"):
                v = tiled(v, 1)
            if part.startswith("in_proj_z"):
                v = tiled(v, d_v)
            if part.startswith(("in_proj_qkv", "conv1d")):
                v = np.concatenate([v[: 2 * keys], tiled(v[2 * keys :], d_v)])
            if part.startswith("out_proj"):
                v = tiled(v, d_v, axis=1)
        if stem in next_names:
            new = f"blk.{n_layers}.nextn.{next_names[stem]}.{end}"
        elif not stem.startswith("model.layers."):
            new = f"{GGUF_NAMES[stem]}.{end}"
        else:
            layer, part = hf_name[len("model.layers.") :].split(".", 1)
            whole = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
            stem = part.rsplit(".", 1)[0]
            new = f"blk.{layer}." + (whole.get(part) or f"{({**GGUF_NAMES, **GGUF_NAMES_NEXT})[stem]}.{end}")
        out[new] = Stored(v, "F32" if v.ndim == 1 or "conv1d" in new or widen else t.dtype)
    for new, each in experts.items():
        out[new] = Stored(np.stack([t.values for t in each]), "F32" if widen else each[0].dtype)
    return meta, out


def gguf_from_hf(cfg, tensors, name, widen=False):
    """(meta, tensors) by the conventions of GGUF files in circulation: vectors in F32, Llama's interleaved Q/K, Gemma's norm
    weights with their +1, rope factors as tensors. widen: all in F32, for engines that round activations to F16."""
    family = cfg["model_type"]
    if family in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        return gguf_next(cfg, tensors, name, widen)
    arch = {"phi": "phi2", "mistral": "llama"}.get(family, family)
    n_heads = cfg["num_attention_heads"]
    n_kv = cfg.get("num_key_value_heads", n_heads)
    d = cfg.get("head_dim") or cfg["hidden_size"] // n_heads
    n_rot = int(cfg.get("partial_rotary_factor", 1.0) * d)
    meta = {
        "general.architecture": arch,
        "general.name": name,
        f"{arch}.vocab_size": cfg["vocab_size"],
        f"{arch}.context_length": cfg["max_position_embeddings"],
        f"{arch}.embedding_length": cfg["hidden_size"],
        f"{arch}.block_count": cfg["num_hidden_layers"],
        f"{arch}.feed_forward_length": cfg["intermediate_size"],
        f"{arch}.attention.head_count": n_heads,
        f"{arch}.attention.head_count_kv": n_kv,
    }
    if arch == "phi2":
        meta["phi2.attention.layer_norm_epsilon"] = cfg["layer_norm_eps"]
    else:
        meta[f"{arch}.attention.layer_norm_rms_epsilon"] = cfg["rms_norm_eps"]
    if cfg.get("head_dim"):
        meta[f"{arch}.attention.key_length"] = meta[f"{arch}.attention.value_length"] = d
    if arch not in ("gemma", "gemma2"):
        meta[f"{arch}.rope.freq_base"] = cfg["rope_theta"]
    if arch in ("llama", "phi2", "phi3"):
        meta[f"{arch}.rope.dimension_count"] = n_rot
    if arch == "gemma2":
        meta["gemma2.attn_logit_softcapping"] = cfg["attn_logit_softcapping"]
        meta["gemma2.final_logit_softcapping"] = cfg["final_logit_softcapping"]
        meta["gemma2.attention.sliding_window"] = cfg["sliding_window"]

    extra = {}
    s = cfg.get("rope_scaling")
    kind = s.get("rope_type", s.get("type")) if s else None
    half = n_rot // 2
    if kind == "linear":
        meta[f"{arch}.rope.scaling.type"] = "linear"
        meta[f"{arch}.rope.scaling.factor"] = s["factor"]
    elif kind == "llama3":  # divisors of the frequencies, one per pair
        plain = {k: v for k, v in cfg.items() if k != "rope_scaling"}
        factor = rope_frequencies(plain, n_rot, 0)[0] / rope_frequencies(cfg, n_rot, 0)[0]
        extra["rope_freqs.weight"] = Stored(factor, "F32")
    elif kind == "longrope":
        n_orig, n_max = cfg["original_max_position_embeddings"], cfg["max_position_embeddings"]
        meta[f"{arch}.rope.scaling.original_context_length"] = n_orig
        meta[f"{arch}.rope.scaling.attn_factor"] = float(np.sqrt(1 + np.log(n_max / n_orig) / np.log(n_orig)))
        meta[f"{arch}.attention.sliding_window"] = 0
        extra["rope_factors_long.weight"] = Stored(s["long_factor"], "F32")
        extra["rope_factors_short.weight"] = Stored(s["short_factor"], "F32")
        assert len(s["long_factor"]) == half
    meta["tokenizer.ggml.model"] = "none"

    out = dict(extra)
    for hf_name in tensors:
        t, (stem, end) = tensors[hf_name], hf_name.rsplit(".", 1)
        v = t.values
        if stem.startswith("model.layers."):
            layer, part = stem[len("model.layers.") :].split(".", 1)
            names = {**GGUF_NAMES, **GGUF_NAMES_GEMMA2} if arch == "gemma2" else GGUF_NAMES
            new = f"blk.{layer}.{names[part]}.{end}"
        else:
            new = f"{GGUF_NAMES[stem]}.{end}"
        if arch == "llama" and stem.endswith("q_proj"):
            v = interleave_pairs(v, n_heads)
        if arch == "llama" and stem.endswith("k_proj"):
            v = interleave_pairs(v, n_kv)
        if arch in ("gemma", "gemma2") and stem.endswith("norm"):
            v = v + 1
        out[new] = Stored(v, "F32" if v.ndim == 1 or widen else t.dtype)
    return meta, out
