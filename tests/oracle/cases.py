"""The oracle's cases: tiny random checkpoints of every family, in the files people have, with the logits they must give.

  cases.py          writes fixtures/ (run it through make.sh)
  cases.py --check  regenerates into a temporary folder and compares with fixtures/
  cases.py --gguf-f32 DIR   GGUF files with all weights widened, to show another engine the same models
"""
import json
import pathlib
import re
import shutil
import sys
import tempfile
import zlib

import numpy as np

import assistants
import chunked
import dflash
import families
import heads
import kda
import latent
import ling
import reference
import sampling
import single
import wkv
from files import Stored, gguf_from_hf, write_gguf, write_hf_folder

HERE = pathlib.Path(__file__).parent


NEXT = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


def uniform(name, shape):
    """Values in [-1, 1) from splitmix64 seeded by the name: integer arithmetic, the same everywhere."""
    n = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = np.uint64(zlib.crc32(name.encode())) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1).reshape(shape)


def checkpoint(name, cfg, dtype, vector_dtype, mlp_dtype):
    """The family's tensors by their real names. Q and K are drawn large so that attention is far from uniform: only
    then do positions, windows and caps show in the logits."""
    family = cfg["model_type"]
    for module in (families, latent, single, chunked, wkv, kda, ling):
        if family in module.FAMILIES:
            return module.checkpoint(name, cfg, dtype, vector_dtype, uniform)
    c, f, v = cfg["hidden_size"], cfg["intermediate_size"], cfg["vocab_size"]
    n_heads, n_kv, d = reference.geometry(cfg)
    gemma, phi = family in ("gemma", "gemma2", "gemma3_text"), family == "phi"
    post_only = family in ("olmo2", "olmo3", "exaone4")
    head_norms = {"qwen3": ("q_norm", "k_norm"), "gemma3_text": ("q_norm", "k_norm"), "exaone4": ("q_norm", "k_norm"),
                  "olmo2": ("q_norm", "k_norm"), "olmo3": ("q_norm", "k_norm"),
                  "qwen3_moe": ("q_norm", "k_norm"), "olmoe": ("q_norm", "k_norm"),
                  "hunyuan_v1_dense": ("query_layernorm", "key_layernorm")}.get(family)
    whole = family in ("olmo2", "olmo3", "olmoe")
    out = {}

    def matrix(key, rows, cols, gain=1.0):
        out[key + ".weight"] = Stored(uniform(name + key, (rows, cols)) * gain * (3 / cols) ** 0.5, mlp_dtype if ".mlp." in key else dtype)

    def vector(key, n, centre, spread):  # in 1/128: exact in every storage type, also after Gemma's +1
        out[key] = Stored(np.round((centre + spread * uniform(name + key, (n,))) * 128) / 128, vector_dtype)

    def norm(key, n=c):
        vector(key + ".weight", n, 0.0 if gemma else 1.0, 0.5)
        if phi:
            vector(key + ".bias", n, 0.0, 0.5)

    def biased(key, rows, cols, gain=1.0):
        matrix(key, rows, cols, gain)
        if phi or (family == "qwen2" and key[-6:] in ("q_proj", "k_proj", "v_proj")):
            vector(key + ".bias", rows, 0.0, 1.0)

    matrix("model.embed_tokens", v, c, 1.0 if gemma else c**0.5 / 2)
    if family in NEXT:
        further = "mtp_use_dedicated_embeddings" in cfg
        for i, kind in enumerate(cfg["layer_types"] + ["full_attention"] * further):
            p = f"model.layers.{i}." if i < len(cfg["layer_types"]) else "mtp.layers.0."
            vector(p + "input_layernorm.weight", c, 0.0, 0.5)
            vector(p + "post_attention_layernorm.weight", c, 0.0, 0.5)
            if kind == "linear_attention":
                keys = cfg["linear_num_key_heads"] * cfg["linear_key_head_dim"]
                n_v, d_v = cfg["linear_num_value_heads"], cfg["linear_value_head_dim"]
                a = p + "linear_attn."
                parts = {"in_proj_qkvz": 2 * keys + 2 * n_v * d_v, "in_proj_ba": 2 * n_v}
                if family != "qwen3_next":
                    parts = {"in_proj_qkv": 2 * keys + n_v * d_v, "in_proj_z": n_v * d_v, "in_proj_b": n_v, "in_proj_a": n_v}
                for n, rows in parts.items():
                    matrix(a + n, rows, c, 1.5)
                matrix(a + "out_proj", c, n_v * d_v, 2.0)
                taps = cfg["linear_conv_kernel_dim"]
                out[a + "conv1d.weight"] = Stored(uniform(name + a + "conv1d", (2 * keys + n_v * d_v, 1, taps)), dtype)
                vector(a + "A_log", n_v, 0.0, 0.75)
                vector(a + "dt_bias", n_v, -2.0, 1.5)
                vector(a + "norm.weight", d_v, 1.0, 0.5)
            else:
                for n, rows in (("q_proj", 2 * n_heads * d), ("k_proj", n_kv * d), ("v_proj", n_kv * d)):
                    matrix(p + "self_attn." + n, rows, c, 1.5)
                matrix(p + "self_attn.o_proj", c, n_heads * d, 2.0)
                vector(p + "self_attn.q_norm.weight", d, 0.5, 0.5)
                vector(p + "self_attn.k_norm.weight", d, 0.5, 0.5)
            blocks = [("mlp.", f)]
            if cfg.get("num_experts"):
                size, n_x = cfg["moe_intermediate_size"], cfg["num_experts"]
                matrix(p + "mlp.gate", n_x, c, 3.0)
                matrix(p + "mlp.shared_expert_gate", 1, c, 2.0)
                blocks = [("mlp.shared_expert.", cfg["shared_expert_intermediate_size"])]
                if family == "qwen3_next":
                    blocks += [(f"mlp.experts.{e}.", size) for e in range(n_x)]
                else:
                    for key, shape in (("gate_up_proj", (n_x, 2 * size, c)), ("down_proj", (n_x, c, size))):
                        key = p + "mlp.experts." + key
                        out[key] = Stored(uniform(name + key, shape) * 1.5 * (3 / shape[2]) ** 0.5, dtype)
            for block, size in blocks:
                matrix(p + block + "gate_proj", size, c, 1.5)
                matrix(p + block + "up_proj", size, c, 1.5)
                matrix(p + block + "down_proj", c, size)
        if further:
            matrix("mtp.fc", c, 2 * c, 1.5)
            for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
                vector(f"mtp.{n}.weight", c, 0.0, 0.5)
        vector("model.norm.weight", c, 0.0, 0.5)
        if not cfg["tie_word_embeddings"]:
            matrix("lm_head", v, c)
        return out
    if family == "granitemoehybrid":
        inner = cfg["mamba_n_heads"] * cfg["mamba_d_head"]
        channels = inner + 2 * cfg["mamba_d_state"]
        for i, kind in enumerate(cfg["layer_types"]):
            p = f"model.layers.{i}."
            norm(p + "input_layernorm")
            norm(p + "post_attention_layernorm")
            if kind == "mamba":
                matrix(p + "mamba.in_proj", inner + channels + cfg["mamba_n_heads"], c, 1.5)
                matrix(p + "mamba.out_proj", c, inner)
                out[p + "mamba.conv1d.weight"] = Stored(uniform(name + p + "conv", (channels, 1, cfg["mamba_d_conv"])), dtype)
                vector(p + "mamba.conv1d.bias", channels, 0.0, 0.5)
                for part, mean, width in (("A_log", 0.0, 0.5), ("dt_bias", -1.5, 1.0), ("D", 1.0, 0.5)):
                    vector(p + "mamba." + part, cfg["mamba_n_heads"], mean, width)
                vector(p + "mamba.norm.weight", inner, 1.0, 0.5)
            else:
                for n, rows in (("q_proj", n_heads * d), ("k_proj", n_kv * d), ("v_proj", n_kv * d), ("o_proj", c)):
                    matrix(p + "self_attn." + n, rows, c, 1.5)
            size = cfg["shared_intermediate_size"]
            matrix(p + "shared_mlp.input_linear", 2 * size, c, 1.5)
            matrix(p + "shared_mlp.output_linear", c, size)
            if cfg["num_local_experts"]:
                n, moe = cfg["num_local_experts"], p + "block_sparse_moe."
                matrix(moe + "router.layer", n, c, 3.0)
                for key, rows, cols, gain in (("input_linear", 2 * f, c, 1.5), ("output_linear", c, f, 1.0)):
                    out[moe + key + ".weight"] = Stored(uniform(name + moe + key, (n, rows, cols)) * gain * (3 / cols) ** 0.5, dtype)
        norm("model.norm")
        return out
    if family == "falcon_h1":
        inner, n_h = cfg["mamba_d_ssm"], cfg["mamba_n_heads"]
        channels = inner + 2 * cfg["mamba_n_groups"] * cfg["mamba_d_state"]
        for i in range(cfg["num_hidden_layers"]):
            p = f"model.layers.{i}."
            norm(p + "input_layernorm")
            norm(p + "pre_ff_layernorm")
            matrix(p + "mamba.in_proj", inner + channels + n_h, c, 1.5)
            matrix(p + "mamba.out_proj", c, inner)
            out[p + "mamba.conv1d.weight"] = Stored(uniform(name + p + "conv", (channels, 1, cfg["mamba_d_conv"])), dtype)
            vector(p + "mamba.conv1d.bias", channels, 0.0, 0.5)
            for part, mean, width in (("A_log", 0.0, 0.5), ("dt_bias", -1.5, 1.0), ("D", 1.0, 0.5)):
                vector(p + "mamba." + part, n_h, mean, width)
            if cfg["mamba_rms_norm"]:
                vector(p + "mamba.norm.weight", inner, 1.0, 0.5)
            for n, rows, cols in (("q", n_heads * d, c), ("k", n_kv * d, c), ("v", n_kv * d, c), ("o", c, n_heads * d)):
                matrix(p + f"self_attn.{n}_proj", rows, cols, 3.0 if n in "qk" else 1.5)
            for n, rows, cols in (("gate", f, c), ("up", f, c), ("down", c, f)):
                matrix(p + f"feed_forward.{n}_proj", rows, cols, 1.5)
        norm("model.final_layernorm")
        if not cfg["tie_word_embeddings"]:
            matrix("lm_head", v, c)
        return out
    if family == "gemma3n_text":
        n, ple, rank, streams = cfg["num_hidden_layers"], cfg["hidden_size_per_layer_input"], cfg["laurel_rank"], cfg["altup_num_inputs"]
        matrix("model.embed_tokens_per_layer", cfg["vocab_size_per_layer_input"], n * ple)
        matrix("model.per_layer_model_projection", n * ple, c, 2.0)
        norm("model.per_layer_projection_norm", ple)
        for i in range(streams - 1):
            matrix(f"model.altup_projections.{i}", c, c, 1.5)
            matrix(f"model.altup_unembed_projections.{i}", c, c, 1.5)
        for i in range(n):
            p = f"model.layers.{i}."
            for key in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
                norm(p + key + "_layernorm")
            for key, rows, cols in (("q", n_heads * d, c), ("k", n_kv * d, c), ("v", n_kv * d, c), ("o", c, n_heads * d)):
                matrix(p + f"self_attn.{key}_proj", rows, cols, 1.5)
            vector(p + "self_attn.q_norm.weight", d, 1.0, 0.5)
            vector(p + "self_attn.k_norm.weight", d, 1.0, 0.5)
            for key, rows, cols in (("gate", f[i], c), ("up", f[i], c), ("down", c, f[i])):
                matrix(p + f"mlp.{key}_proj", rows, cols, 1.5)
            matrix(p + "altup.modality_router", streams, c, c**0.5)
            matrix(p + "altup.prediction_coefs", streams**2, streams, 0.3)
            matrix(p + "altup.correction_coefs", streams, streams, 0.5)
            vector(p + "altup.correct_output_scale", c, 1.0, 0.5)
            matrix(p + "laurel.linear_left", rank, c, 1.5)
            matrix(p + "laurel.linear_right", c, rank, 1.5)
            matrix(p + "per_layer_input_gate", ple, c, 1.5)
            matrix(p + "per_layer_projection", c, ple)
            for key in ("altup.router_norm", "laurel.post_laurel_norm", "post_per_layer_input_norm"):
                norm(p + key)
        norm("model.norm")
        return out
    if family == "gemma4_text":
        n, ple = cfg["num_hidden_layers"], cfg["hidden_size_per_layer_input"]
        own = n - cfg["num_kv_shared_layers"]
        if ple:
            matrix("model.embed_tokens_per_layer", v, n * ple)
            matrix("model.per_layer_model_projection", n * ple, c, 2.0)
            norm("model.per_layer_projection_norm", ple)
        for i, kind in enumerate(cfg["layer_types"]):
            p, sliding = f"model.layers.{i}.", kind == SLIDING
            d = cfg["head_dim"] if sliding else cfg["global_head_dim"]
            same = cfg["attention_k_eq_v"] and not sliding
            kv = (cfg["num_global_key_value_heads"] if same else n_kv) * d
            ff = 2 * f if cfg["use_double_wide_mlp"] and i >= own else f
            for key in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
                norm(p + key + "_layernorm")
            matrix(p + "self_attn.q_proj", n_heads * d, c, 1.5)
            vector(p + "self_attn.q_norm.weight", d, 1.0, 0.5)
            if i < own:
                matrix(p + "self_attn.k_proj", kv, c, 1.5)
                vector(p + "self_attn.k_norm.weight", d, 1.0, 0.5)
            if i < own and not same:
                matrix(p + "self_attn.v_proj", kv, c, 1.5)
            matrix(p + "self_attn.o_proj", c, n_heads * d)
            for key, rows, cols in (("gate", ff, c), ("up", ff, c), ("down", c, ff)):
                matrix(p + f"mlp.{key}_proj", rows, cols, 1.5)
            if ple:
                matrix(p + "per_layer_input_gate", ple, c, 1.5)
                matrix(p + "per_layer_projection", c, ple)
                norm(p + "post_per_layer_input_norm")
            if cfg["enable_moe_block"]:
                n_x, size = cfg["num_experts"], cfg["moe_intermediate_size"]
                matrix(p + "router.proj", n_x, c, 3.0 * c**0.5)
                vector(p + "router.scale", c, 1.0, 0.5)
                vector(p + "router.per_expert_scale", n_x, 1.0, 0.5)
                for key, shape in (("gate_up_proj", (n_x, 2 * size, c)), ("down_proj", (n_x, c, size))):
                    key = p + "experts." + key
                    out[key] = Stored(uniform(name + key, shape) * 1.5 * (3 / shape[2]) ** 0.5, dtype)
                for key in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
                    norm(p + key)
            vector(p + "layer_scalar", 1, 0.75, 0.25)
        norm("model.norm")
        return out
    if family in ("lfm2", "lfm2_moe"):
        for i, kind in enumerate(cfg["layer_types"]):
            p = f"model.layers.{i}."
            norm(p + "operator_norm")
            norm(p + "ffn_norm")
            if kind == "conv":
                matrix(p + "conv.in_proj", 3 * c, c, 1.5)
                matrix(p + "conv.out_proj", c, c)
                out[p + "conv.conv.weight"] = Stored(uniform(name + p + "conv", (c, 1, cfg["conv_L_cache"])), dtype)
            else:
                for n, rows in (("q_proj", n_heads * d), ("k_proj", n_kv * d), ("v_proj", n_kv * d), ("out_proj", c)):
                    matrix(p + "self_attn." + n, rows, c, 1.5)
                vector(p + "self_attn.q_layernorm.weight", d, 1.5, 0.5)
                vector(p + "self_attn.k_layernorm.weight", d, 1.5, 0.5)
            ff, blocks = cfg.get("adjusted_ff_dim", f), ["feed_forward."]
            if i >= cfg.get("num_dense_layers", cfg["num_hidden_layers"]):
                ff, n_x = cfg["moe_intermediate_size"], cfg["num_experts"]
                blocks = [f"feed_forward.experts.{e}." for e in range(n_x)]
                matrix(p + "feed_forward.gate", n_x, c, 2.0)
                vector(p + "feed_forward.expert_bias", n_x, 0.0, 0.5)
            for block in blocks:
                for n, rows, cols in (("w1", ff, c), ("w3", ff, c), ("w2", c, ff)):
                    matrix(p + block + n, rows, cols, 1.5)
        norm("model.embedding_norm")
        return out
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        if not post_only:
            norm(p + "input_layernorm")
        if family == "phi3":
            matrix(p + "self_attn.qkv_proj", (n_heads + 2 * n_kv) * d, c, 1.5)
        else:
            biased(p + "self_attn.q_proj", n_heads * d, c, 1.7)
            biased(p + "self_attn.k_proj", n_kv * d, c, 1.7)
            biased(p + "self_attn.v_proj", n_kv * d, c)
        if head_norms:
            for which, n in zip(head_norms, (n_heads, n_kv)):
                vector(p + f"self_attn.{which}.weight", n * d if whole else d, 0.5 if gemma else 1.5, 0.5)
        biased(p + ("self_attn.dense" if phi else "self_attn.o_proj"), c, n_heads * d)
        if not phi:
            norm(p + "post_attention_layernorm")
        if post_only:
            norm(p + "post_feedforward_layernorm")
        if family in ("gemma2", "gemma3_text"):
            norm(p + "pre_feedforward_layernorm")
            norm(p + "post_feedforward_layernorm")
        if phi:
            biased(p + "mlp.fc1", f, c, 1.0)
            biased(p + "mlp.fc2", c, f, 4.0)
        elif family in ("qwen3_moe", "olmoe"):
            matrix(p + "mlp.gate", cfg["num_experts"], c, 3.0)
            for e in range(cfg["num_experts"]):
                size = cfg.get("moe_intermediate_size", f)
                matrix(p + f"mlp.experts.{e}.gate_proj", size, c, 1.5)
                matrix(p + f"mlp.experts.{e}.up_proj", size, c, 1.5)
                matrix(p + f"mlp.experts.{e}.down_proj", c, size)
        elif family == "granitemoe":
            n, moe = cfg["num_local_experts"], p + "block_sparse_moe."
            matrix(moe + "router.layer", n, c, 3.0)
            for key, rows, cols, gain in (("input_linear", 2 * f, c, 1.5), ("output_linear", c, f, 1.0)):
                out[moe + key + ".weight"] = Stored(uniform(name + moe + key, (n, rows, cols)) * gain * (3 / cols) ** 0.5, dtype)
        elif family == "phi3":
            matrix(p + "mlp.gate_up_proj", 2 * f, c, 1.5)
            matrix(p + "mlp.down_proj", c, f)
        else:
            matrix(p + "mlp.gate_proj", f, c, 1.5)
            matrix(p + "mlp.up_proj", f, c, 1.5)
            matrix(p + "mlp.down_proj", c, f)
    norm("model.final_layernorm" if phi else "model.norm")
    if not gemma and not cfg.get("tie_word_embeddings"):
        biased("lm_head", v, c)
    return out


def config(architecture, model_type, vocab, hidden, ff, layers, n_heads, n_kv, **more):
    """Keys as the family's published config.json has them."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": ff,
        "num_hidden_layers": layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv,
        **{"bos_token_id": 1, "eos_token_id": 2, **more},
    }


LLAMA = dict(
    hidden_act="silu", max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False
)
LONGROPE_SHORT = [1.0, 1.05, 1.2, 1.5]
LONGROPE_LONG = [1.1, 1.9, 3.3, 6.0]
PHI3 = dict(
    hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, sliding_window=2047, tie_word_embeddings=False,
    rope_scaling={"type": "longrope", "short_factor": LONGROPE_SHORT, "long_factor": LONGROPE_LONG},
)
GEMMA = dict(
    head_dim=16, hidden_act="gelu", hidden_activation=None, max_position_embeddings=64, rms_norm_eps=1e-6,
    rope_theta=10000.0, attention_bias=False,
)
GEMMA2 = dict(
    head_dim=16, hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", max_position_embeddings=64,
    rms_norm_eps=1e-6, rope_theta=10000.0, attention_bias=False, attn_logit_softcapping=3.0,
    final_logit_softcapping=4.0, sliding_window=8,
)

GRANITE4 = dict(
    tie_word_embeddings=True, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.3, logits_scaling=4.0,
    mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=24, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=256,
    mamba_conv_bias=True, mamba_proj_bias=False,
)
FALCON_H1 = dict(
    head_dim=16, mamba_d_ssm=96, mamba_n_heads=6, mamba_d_head=16, mamba_d_state=24, mamba_d_conv=4, mamba_expand=2,
    mamba_chunk_size=128, mamba_conv_bias=True, mamba_proj_bias=False, projectors_bias=False, mlp_bias=False,
    mamba_use_mlp=True, attn_layer_indices=None, sliding_window=None, rope_scaling=None,
    embedding_multiplier=2.5, lm_head_multiplier=0.4, key_multiplier=0.6, attention_in_multiplier=1.3, attention_out_multiplier=0.7,
    ssm_in_multiplier=1.25, ssm_out_multiplier=0.55, ssm_multipliers=[0.8, 0.6, 1.4, 0.9, 0.45], mlp_multipliers=[0.75, 0.6],
)

# name: config, storage type of matrices and of vectors, tokens, and what must show in the logits: changes to the config
# that a wrong reader would amount to.
CASES = {
    "llama": dict(  # multi-head attention, two shards
        cfg=config("LlamaForCausalLM", "llama", 48, 32, 56, 2, 4, 4, **LLAMA),
        dtype="F32", vectors="F32", n_tok=24, shards=2, gguf=True,
        shows=[dict(rope_theta=1e6), dict(rms_norm_eps=0.1)],
    ),
    "llama3-rope": dict(
        cfg=config(
            "LlamaForCausalLM", "llama", 48, 48, 64, 2, 4, 2,
            **{**LLAMA, "rope_theta": 20000.0, "head_dim": 16, "max_position_embeddings": 512},
            attention_bias=False, mlp_bias=False, eos_token_id=[2, 3],
            rope_scaling={
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64, "rope_type": "llama3",
            },
        ),
        dtype="BF16", vectors="BF16", n_tok=40, gguf=True, shows=[dict(rope_scaling=None)],
    ),
    "llama-linear-rope": dict(
        cfg=config(
            "LlamaForCausalLM", "llama", 48, 48, 64, 2, 4, 2,
            **{**LLAMA, "max_position_embeddings": 256}, rope_scaling={"type": "linear", "factor": 4.0},
        ),
        dtype="F16", vectors="F16", n_tok=32, gguf=True, shows=[dict(rope_scaling=None)],
    ),
    "llama3-rope-v5": dict(  # the same words as transformers 5 writes them
        cfg=config(
            "LlamaForCausalLM", "llama", 40, 32, 48, 2, 2, 1,
            hidden_act="silu", max_position_embeddings=512, rms_norm_eps=1e-5, head_dim=16, dtype="bfloat16",
            rope_parameters={
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64, "rope_theta": 20000.0, "rope_type": "llama3",
            },
        ),
        dtype="BF16", vectors="BF16", n_tok=40,
        shows=[dict(rope_parameters={"rope_theta": 20000.0}), dict(rope_parameters={"rope_theta": 10000.0})],
    ),
    "qwen2-quantised": dict(  # blocks in GGUF; the expected logits are those of the values the blocks mean
        cfg=config(
            "Qwen2ForCausalLM", "qwen2", 48, 64, 96, 2, 4, 2, **{**LLAMA, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0}
        ),
        dtype="Q8_0", mlp="Q4_0", vectors="F32", n_tok=24, gguf=True, gguf_only=True, shows=[dict(rope_theta=10000.0)],
    ),
    "tinyllama-gqa": dict(  # four query heads on one KV head, tied head
        cfg=config("LlamaForCausalLM", "llama", 56, 32, 72, 3, 4, 1, **{**LLAMA, "tie_word_embeddings": True}),
        dtype="BF16", vectors="F32", n_tok=24, shows=[dict(rope_theta=1e6)],
    ),
    "mistral-window": dict(
        cfg=config(
            "MistralForCausalLM", "mistral", 48, 32, 64, 3, 4, 2,
            **{**LLAMA, "max_position_embeddings": 128}, sliding_window=8, head_dim=None,
        ),
        dtype="BF16", vectors="BF16", n_tok=40,
        shows=[dict(sliding_window=None), dict(sliding_window=7), dict(sliding_window=9)],
    ),
    "mistral-long": dict(  # several prefill chunks and cache pages
        cfg=config(
            "MistralForCausalLM", "mistral", 40, 32, 48, 3, 4, 2,
            **{**LLAMA, "max_position_embeddings": 1024}, sliding_window=100, head_dim=None,
        ),
        dtype="F16", vectors="F16", n_tok=600, n_ctx=640,
        shows=[dict(sliding_window=None), dict(sliding_window=99), dict(sliding_window=101)],
    ),
    "qwen2": dict(  # the window in the config is switched off
        cfg=config(
            "Qwen2ForCausalLM", "qwen2", 48, 48, 64, 2, 3, 1,
            **{**LLAMA, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0},
            sliding_window=8, use_sliding_window=False, max_window_layers=2, rope_scaling=None,
        ),
        dtype="F16", vectors="F16", n_tok=24, gguf=True, shows=[dict(model_type="llama", drop=".bias")],
    ),
    "qwen3": dict(  # head_dim * heads is not hidden_size
        cfg=config(
            "Qwen3ForCausalLM", "qwen3", 48, 40, 64, 2, 4, 2,
            **{**LLAMA, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True},
            head_dim=16, attention_bias=False, sliding_window=None, use_sliding_window=False, max_window_layers=2,
        ),
        dtype="BF16", vectors="BF16", n_tok=24, gguf=True, shows=[dict(model_type="llama"), dict(rope_theta=10000.0)],
    ),
    "gemma": dict(
        cfg=config("GemmaForCausalLM", "gemma", 64, 32, 64, 2, 4, 1, **GEMMA),
        dtype="F16", vectors="F32", n_tok=24, gguf=True, shows=[dict(rope_theta=1e6), dict(rms_norm_eps=0.1)],
    ),
    "gemma2": dict(
        cfg=config("Gemma2ForCausalLM", "gemma2", 64, 32, 48, 3, 4, 2, **GEMMA2, query_pre_attn_scalar=16),
        dtype="BF16", vectors="BF16", n_tok=32, gguf=True,
        shows=[
            dict(attn_logit_softcapping=None), dict(final_logit_softcapping=None), dict(query_pre_attn_scalar=8),
            dict(sliding_window=64), dict(sliding_window=7), dict(sliding_window=9),
        ],
    ),
    "gemma2-scalar": dict(  # as in the 27B model: the attention scale is not head_dim's
        cfg=config("Gemma2ForCausalLM", "gemma2", 48, 48, 48, 2, 4, 2, **GEMMA2, query_pre_attn_scalar=12),
        dtype="BF16", vectors="BF16", n_tok=32, shows=[dict(query_pre_attn_scalar=16)],
    ),
    "phi2": dict(
        cfg=config(
            "PhiForCausalLM", "phi", 48, 40, 96, 2, 2, 2,
            hidden_act="gelu_new", layer_norm_eps=1e-5, max_position_embeddings=64, partial_rotary_factor=0.4,
            qk_layernorm=False, rope_scaling=None, rope_theta=10000.0, tie_word_embeddings=False,
        ),
        dtype="F16", vectors="F16", n_tok=24, gguf=True,
        shows=[dict(partial_rotary_factor=1.0), dict(partial_rotary_factor=0.5), dict(hidden_act="gelu", at_least=2e-4), dict(drop=".bias")],
    ),
    "phi3-short": dict(
        cfg=config(
            "Phi3ForCausalLM", "phi3", 48, 32, 56, 2, 4, 4,
            max_position_embeddings=128, original_max_position_embeddings=32, **PHI3,
        ),
        dtype="BF16", vectors="BF16", n_tok=32, n_ctx=32, gguf=True,
        shows=[dict(n_ctx=64), dict(rope_scaling=None), dict(max_position_embeddings=32)],
    ),
    "phi3-long": dict(
        cfg=config(
            "Phi3ForCausalLM", "phi3", 48, 32, 56, 2, 4, 2,
            max_position_embeddings=128, original_max_position_embeddings=16, **PHI3,
        ),
        dtype="F16", vectors="F16", n_tok=40, gguf=True,
        shows=[dict(n_ctx=16), dict(rope_scaling=None), dict(max_position_embeddings=16)],
    ),
    "phi3-window": dict(  # as Phi-3-mini-4k: no rope scaling, a window
        cfg=config(
            "Phi3ForCausalLM", "phi3", 40, 32, 48, 2, 2, 1,
            max_position_embeddings=64, original_max_position_embeddings=64,
            **{**PHI3, "rope_scaling": None, "sliding_window": 11},
        ),
        dtype="BF16", vectors="BF16", n_tok=40, shows=[dict(sliding_window=10), dict(sliding_window=12)],
    ),
    "phonelm": dict(  # ReLU in the GLU; the float rotary of the definition, not the authors' 8-bit table of it
        cfg=config(
            "PhoneLMForCausalLM", "phonelm", 64, 48, 88, 2, 3, 3,
            hidden_act="relu", max_position_embeddings=64, rms_norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None,
            attention_bias=False, pretraining_tp=1, tie_word_embeddings=True,
        ),
        dtype="BF16", vectors="BF16", n_tok=24, shows=[dict(hidden_act="silu"), dict(rope_theta=1e6)],
    ),
}

MODERN = dict(
    hidden_act="silu", max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=10000.0, attention_bias=False,
)
SLIDING, FULL, DELTA = "sliding_attention", "full_attention", "linear_attention"
GEMMA4_ROPE = lambda local, part: {
    FULL: {"rope_theta": 10000.0, "rope_type": "proportional", "partial_rotary_factor": part},
    SLIDING: {"rope_theta": local, "rope_type": "default"},
}
GEMMA4 = dict(
    hidden_activation="gelu_pytorch_tanh", max_position_embeddings=256, rms_norm_eps=1e-6, attention_bias=False,
    final_logit_softcapping=4.0, tie_word_embeddings=True, enable_moe_block=False, rope_parameters=GEMMA4_ROPE(100.0, 0.5),
)
CASES |= {
    "gemma3": dict(
        cfg=config(
            "Gemma3ForCausalLM", "gemma3_text", 48, 32, 48, 7, 4, 2,
            head_dim=16, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=256, rms_norm_eps=1e-6,
            rope_theta=100000.0, rope_local_base_freq=1000.0, rope_scaling={"factor": 8.0, "rope_type": "linear"},
            query_pre_attn_scalar=12, sliding_window=8, sliding_window_pattern=6, attn_logit_softcapping=None,
            final_logit_softcapping=None, attention_bias=False, layer_types=[SLIDING] * 5 + [FULL, SLIDING],
        ),
        dtype="BF16", vectors="BF16", n_tok=40,
        shows=[dict(rope_local_base_freq=100000.0), dict(rope_scaling=None, at_least=1e-3), dict(sliding_window=9), dict(query_pre_attn_scalar=16),
               dict(layer_types=[SLIDING] * 4 + [FULL] + [SLIDING] * 2)],
    ),
    "gemma4": dict(
        cfg=config(
            "Gemma4ForCausalLM", "gemma4_text", 48, 32, 48, 6, 4, 2, head_dim=8, global_head_dim=16, sliding_window=8,
            layer_types=[SLIDING, FULL] * 3, num_kv_shared_layers=2, use_double_wide_mlp=True,
            hidden_size_per_layer_input=8, vocab_size_per_layer_input=48, attention_k_eq_v=False,
            num_global_key_value_heads=None, **GEMMA4,
        ),
        dtype="F32", vectors="F32", n_tok=40,
        shows=[dict(sliding_window=9), dict(final_logit_softcapping=None, at_least=1e-3), dict(rms_norm_eps=0.1),
               dict(rope_parameters=GEMMA4_ROPE(1000.0, 0.5)), dict(rope_parameters=GEMMA4_ROPE(100.0, 0.25)),
               dict(drop="layer_scalar"), dict(drop="embed_tokens_per_layer.weight"),
               dict(drop="per_layer_model_projection.weight")],
    ),
    "gemma3n": dict(  # rows 44 to 47 of the embedding stand for no text
        cfg=config(
            "Gemma3nForCausalLM", "gemma3n_text", 48, 32, [48] * 6, 6, 4, 2, head_dim=8, sliding_window=8,
            layer_types=[SLIDING, SLIDING, FULL] * 2, num_kv_shared_layers=2, hidden_activation="gelu_pytorch_tanh",
            hidden_size_per_layer_input=8, vocab_size_per_layer_input=44, altup_num_inputs=4, altup_active_idx=0,
            altup_coef_clip=120.0, altup_correct_scale=True, laurel_rank=6, activation_sparsity_pattern=[0.75] * 3 + [0.0] * 3,
            max_position_embeddings=256, rms_norm_eps=1e-6, attention_bias=False, final_logit_softcapping=4.0,
            rope_theta=10000.0, rope_local_base_freq=100.0, rope_scaling=None, tie_word_embeddings=True,
        ),
        dtype="F32", vectors="F32", n_tok=40,
        shows=[dict(sliding_window=9), dict(final_logit_softcapping=None, at_least=1e-3), dict(rms_norm_eps=0.1),
               dict(rope_local_base_freq=200.0), dict(activation_sparsity_pattern=[0.75] * 2 + [0.0] * 4),
               dict(activation_sparsity_pattern=[0.8] * 3 + [0.0] * 3),
               dict(drop="altup.correct_output_scale"), dict(drop="altup.prediction_coefs.weight"),
               dict(drop="altup.correction_coefs.weight"), dict(drop="altup.router_norm.weight"),
               dict(drop="laurel.linear_right.weight"), dict(drop="embed_tokens_per_layer.weight"),
               dict(drop="altup_projections.1.weight"), dict(drop="altup_unembed_projections.2.weight"),
               dict(drop="per_layer_model_projection.weight")],
    ),
    "gemma4-dense": dict(
        cfg=config(
            "Gemma4ForCausalLM", "gemma4_text", 48, 32, 48, 4, 4, 2, head_dim=8, global_head_dim=16, sliding_window=8,
            layer_types=[SLIDING, FULL] * 2, num_kv_shared_layers=0, use_double_wide_mlp=False,
            hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1, **GEMMA4,
        ),
        dtype="BF16", vectors="BF16", n_tok=40, shows=[dict(sliding_window=9), dict(rms_norm_eps=0.1)],
    ),
    "gemma4-moe": dict(
        cfg=config(
            "Gemma4ForCausalLM", "gemma4_text", 48, 32, 48, 4, 4, 2, head_dim=8, global_head_dim=16, sliding_window=8,
            layer_types=[SLIDING, FULL] * 2, num_kv_shared_layers=0, use_double_wide_mlp=False,
            hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
            num_experts=6, top_k_experts=2, moe_intermediate_size=16, **{**GEMMA4, "enable_moe_block": True},
        ),
        dtype="BF16", vectors="BF16", n_tok=40,
        shows=[dict(top_k_experts=3), dict(rms_norm_eps=0.1), dict(drop="router.scale"), dict(drop="router.per_expert_scale"),
               dict(drop="pre_feedforward_layernorm_2.weight"), dict(drop="post_feedforward_layernorm_1.weight"),
               dict(drop="post_feedforward_layernorm_2.weight"), dict(drop="mlp.down_proj.weight")],
    ),
    "smollm3": dict(
        cfg=config(
            "SmolLM3ForCausalLM", "smollm3", 48, 32, 48, 5, 4, 2, **MODERN, tie_word_embeddings=True,
            no_rope_layers=[1, 1, 1, 0, 1], no_rope_layer_interval=4, use_sliding_window=False, sliding_window=None,
            layer_types=[FULL] * 5,
        ),
        dtype="BF16", vectors="BF16", n_tok=32, shows=[dict(no_rope_layers=[1] * 5), dict(no_rope_layers=[1, 1, 0, 1, 1])],
    ),
    "olmo2": dict(
        cfg=config("Olmo2ForCausalLM", "olmo2", 48, 32, 48, 2, 4, 2, **MODERN, tie_word_embeddings=False),
        dtype="F16", vectors="F16", n_tok=32, shows=[dict(rope_theta=1e6), dict(rms_norm_eps=0.1)],
    ),
    "olmo3": dict(
        cfg=config(
            "Olmo3ForCausalLM", "olmo3", 48, 32, 48, 5, 4, 4, **MODERN, tie_word_embeddings=False, sliding_window=9,
            layer_types=[SLIDING] * 3 + [FULL, SLIDING],
            rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
        ),
        dtype="BF16", vectors="BF16", n_tok=40,
        shows=[dict(rope_scaling=None), dict(sliding_window=10), dict(layer_types=[SLIDING] * 4 + [FULL])],
    ),
    "exaone4": dict(
        cfg=config(
            "Exaone4ForCausalLM", "exaone4", 48, 32, 48, 5, 4, 2, **MODERN, tie_word_embeddings=False, sliding_window=9,
            sliding_window_pattern="LLLG", layer_types=[SLIDING] * 3 + [FULL, SLIDING],
        ),
        dtype="BF16", vectors="BF16", n_tok=40, shows=[dict(sliding_window=10), dict(layer_types=[FULL] * 5)],
    ),
    "exaone4-full": dict(
        cfg=config(
            "Exaone4ForCausalLM", "exaone4", 48, 32, 48, 2, 4, 2, **MODERN, tie_word_embeddings=True, sliding_window=None,
            rope_scaling={
                "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64, "rope_type": "llama3",
            },
        ),
        dtype="F16", vectors="F16", n_tok=40, shows=[dict(rope_scaling=None)],
    ),
    "hunyuan": dict(
        cfg=config(
            "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", 48, 32, 48, 2, 4, 2, **MODERN, tie_word_embeddings=True,
            head_dim=16, use_qk_norm=True, use_cla=False, num_experts=1,
            rope_scaling={"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "dynamic"},
        ),
        dtype="BF16", vectors="BF16", n_tok=32, shows=[dict(rope_scaling=None), dict(rope_theta=1e5)],
    ),
    "granite": dict(
        cfg=config(
            "GraniteForCausalLM", "granite", 48, 32, 48, 2, 4, 2, **MODERN, tie_word_embeddings=True, mlp_bias=False,
            embedding_multiplier=3.0, residual_multiplier=0.22, attention_multiplier=0.2, logits_scaling=4.0,
        ),
        dtype="BF16", vectors="BF16", n_tok=32,
        shows=[dict(embedding_multiplier=1.0), dict(residual_multiplier=1.0), dict(attention_multiplier=None), dict(logits_scaling=1.0)],
    ),
    "minicpm": dict(
        cfg=config(
            "MiniCPMForCausalLM", "minicpm", 48, 32, 48, 3, 4, 2, **MODERN, tie_word_embeddings=False,
            scale_emb=3, scale_depth=1.4, dim_model_base=8,
        ),
        dtype="F16", vectors="F16", n_tok=32, shows=[dict(scale_emb=1), dict(scale_depth=1.0), dict(dim_model_base=32)],
    ),
    "qwen3moe": dict(
        cfg=config(
            "Qwen3MoeForCausalLM", "qwen3_moe", 48, 32, 80, 2, 4, 2, **MODERN, tie_word_embeddings=False, head_dim=16,
            moe_intermediate_size=24, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1,
            mlp_only_layers=[], use_sliding_window=False, sliding_window=None,
        ),
        dtype="BF16", vectors="BF16", n_tok=32, shows=[dict(num_experts_per_tok=2), dict(norm_topk_prob=False)],
    ),
    "olmoe": dict(
        cfg=config(
            "OlmoeForCausalLM", "olmoe", 48, 32, 24, 2, 4, 4, **MODERN, tie_word_embeddings=False,
            num_experts=8, num_experts_per_tok=2, norm_topk_prob=False, clip_qkv=None,
        ),
        dtype="F16", vectors="F16", n_tok=32, shows=[dict(num_experts_per_tok=3), dict(norm_topk_prob=True)],
    ),
    "granitemoe": dict(
        cfg=config(
            "GraniteMoeForCausalLM", "granitemoe", 48, 32, 24, 2, 4, 2, **MODERN, tie_word_embeddings=True,
            num_local_experts=6, num_experts_per_tok=2, embedding_multiplier=3.0, residual_multiplier=0.5,
            attention_multiplier=0.2, logits_scaling=4.0,
        ),
        dtype="BF16", vectors="BF16", n_tok=32, shows=[dict(num_experts_per_tok=3), dict(residual_multiplier=1.0)],
    ),
    "lfm2": dict(
        cfg=config(
            "Lfm2ForCausalLM", "lfm2", 48, 32, 72, 5, 4, 2, max_position_embeddings=512, norm_eps=1e-5, rope_theta=10000.0,
            tie_embedding=True, conv_L_cache=3, conv_bias=False, block_ff_dim=72, block_auto_adjust_ff_dim=True,
            block_multiple_of=8, block_ffn_dim_multiplier=1.0, adjusted_ff_dim=48,
            layer_types=["conv", "conv", FULL, "conv", FULL],
        ),
        dtype="BF16", vectors="BF16", n_tok=40, shows=[dict(rope_theta=1e5), dict(norm_eps=0.1)],
    ),
    "lfm2moe": dict(
        cfg=config(
            "Lfm2MoeForCausalLM", "lfm2_moe", 48, 32, 48, 4, 4, 2, max_position_embeddings=512, norm_eps=1e-5, rope_theta=10000.0,
            tie_word_embeddings=True, conv_L_cache=3, conv_bias=False, layer_types=["conv", "conv", FULL, "conv"],
            num_dense_layers=1, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True,
            use_expert_bias=True, routed_scaling_factor=1.5,
        ),
        dtype="BF16", vectors="BF16", n_tok=40, shows=[dict(num_experts_per_tok=3), dict(routed_scaling_factor=1.0), dict(drop="expert_bias")],
    ),
    "granite4": dict(
        cfg=config(
            "GraniteMoeHybridForCausalLM", "granitemoehybrid", 48, 32, 24, 5, 4, 2, **MODERN, **GRANITE4,
            layer_types=["mamba", "mamba", "attention", "mamba", "attention"], num_local_experts=0, num_experts_per_tok=0,
            shared_intermediate_size=48, position_embedding_type="nope",
        ),
        dtype="BF16", vectors="BF16", n_tok=300, n_ctx=320,
        shows=[dict(position_embedding_type="rope"), dict(drop="A_log"), dict(drop="dt_bias"), dict(drop="mamba.D"), dict(drop="conv1d.bias")],
    ),
    "falcon-h1": dict(  # gated alone, as most published ones
        cfg=config(
            "FalconH1ForCausalLM", "falcon_h1", 48, 32, 48, 3, 4, 2, **{**MODERN, "rope_theta": 1e11}, **FALCON_H1,
            tie_word_embeddings=False, mamba_n_groups=2, mamba_rms_norm=False, mamba_norm_before_gate=False,
        ),
        dtype="BF16", vectors="BF16", n_tok=300, n_ctx=320,
        shows=[dict(rope_theta=1e4), dict(embedding_multiplier=1.0), dict(lm_head_multiplier=1.0), dict(key_multiplier=1.0),
               dict(attention_in_multiplier=1.0), dict(attention_out_multiplier=1.0), dict(ssm_in_multiplier=1.0),
               dict(ssm_out_multiplier=1.0), dict(mlp_multipliers=[1.0, 0.6]), dict(mlp_multipliers=[0.75, 1.0]),
               dict(ssm_multipliers=[1.0, 0.6, 1.4, 0.9, 0.45]), dict(ssm_multipliers=[0.8, 1.0, 1.4, 0.9, 0.45]),
               dict(ssm_multipliers=[0.8, 0.6, 0.9, 1.4, 0.45]), dict(ssm_multipliers=[0.8, 0.6, 1.4, 0.9, 1.0]),
               dict(drop="A_log"), dict(drop="dt_bias"), dict(drop="mamba.D"), dict(drop="conv1d.bias")],
    ),
    "falcon-h1-norm": dict(  # normed behind the gate; the head is the embedding, each with its multiplier
        cfg=config(
            "FalconH1ForCausalLM", "falcon_h1", 48, 32, 48, 2, 4, 2, **{**MODERN, "rope_theta": 1e11}, **FALCON_H1,
            tie_word_embeddings=True, mamba_n_groups=2, mamba_rms_norm=True, mamba_norm_before_gate=False,
        ),
        dtype="F16", vectors="F16", n_tok=40,
        shows=[dict(mamba_norm_before_gate=True), dict(mamba_rms_norm=False), dict(embedding_multiplier=1.0), dict(lm_head_multiplier=1.0)],
    ),
    "falcon-h1-norm-first": dict(  # and in front of it
        cfg=config(
            "FalconH1ForCausalLM", "falcon_h1", 48, 32, 48, 2, 4, 2, **{**MODERN, "rope_theta": 1e11},
            **{**FALCON_H1, "mamba_d_head": "auto"},
            tie_word_embeddings=False, mamba_n_groups=3, mamba_rms_norm=True, mamba_norm_before_gate=True,
        ),
        dtype="F16", vectors="F16", n_tok=40,
        shows=[dict(mamba_norm_before_gate=False), dict(mamba_rms_norm=False)],
    ),
    "granite4moe": dict(
        cfg=config(
            "GraniteMoeHybridForCausalLM", "granitemoehybrid", 48, 32, 24, 4, 4, 2, **MODERN, **GRANITE4,
            layer_types=["mamba", "attention", "mamba", "mamba"], num_local_experts=6, num_experts_per_tok=2,
            shared_intermediate_size=16, position_embedding_type="rope",
        ),
        dtype="F16", vectors="F16", n_tok=40,
        shows=[dict(num_experts_per_tok=3), dict(position_embedding_type="nope"), dict(drop="conv1d.weight"), dict(drop="mamba.norm.weight"),
               dict(drop="shared_mlp.output_linear.weight")],
    ),
    "qwen3next": dict(
        cfg=config(
            "Qwen3NextForCausalLM", "qwen3_next", 48, 32, 40, 5, 4, 2, **MODERN, tie_word_embeddings=False, head_dim=16,
            partial_rotary_factor=0.25, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=16,
            linear_num_key_heads=2, linear_num_value_heads=4, moe_intermediate_size=24, shared_expert_intermediate_size=16,
            num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
            rope_scaling=None, layer_types=[DELTA] * 3 + [FULL, DELTA],
        ),
        dtype="BF16", vectors="BF16", n_tok=40, gguf=True,
        shows=[dict(partial_rotary_factor=0.5), dict(num_experts_per_tok=3), dict(drop="dt_bias"), dict(drop="A_log"), dict(drop="conv1d.weight"),
               dict(drop="shared_expert_gate.weight")],
    ),
    "qwen35": dict(  # six value heads for two of keys, in another order than GGUF's; values wider than keys
        cfg=config(
            "Qwen3_5ForCausalLM", "qwen3_5_text", 48, 32, 48, 5, 4, 2,
            **{k: v for k, v in MODERN.items() if k != "rope_theta"}, tie_word_embeddings=True, head_dim=16,
            attn_output_gate=True, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=16,
            linear_num_key_heads=2, linear_num_value_heads=6, full_attention_interval=4, mtp_num_hidden_layers=1,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                             "mrope_section": [1, 1, 0], "mrope_interleaved": True},
            layer_types=[DELTA] * 3 + [FULL, DELTA],
        ),
        dtype="F16", vectors="F16", n_tok=300, n_ctx=320, gguf=True,
        shows=[dict(layer_types=[DELTA] * 3 + [FULL, DELTA], linear_num_key_heads=2, drop="A_log"), dict(drop="self_attn.q_norm.weight")],
    ),
    "qwen35-mtp": dict(  # with a layer that guesses one token further
        cfg=config(
            "Qwen3_5ForCausalLM", "qwen3_5_text", 48, 32, 48, 2, 4, 2,
            **{k: v for k, v in MODERN.items() if k != "rope_theta"}, tie_word_embeddings=True, head_dim=16,
            attn_output_gate=True, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=16,
            linear_num_key_heads=2, linear_num_value_heads=4, full_attention_interval=2, mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            layer_types=[DELTA, FULL],
        ),
        dtype="F16", vectors="F16", n_tok=70, n_ctx=80, gguf=True, shows=[dict(drop="A_log")],
        mtp_shows=["mtp.pre_fc_norm_hidden.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.norm.weight",
                   "mtp.layers.0.self_attn.k_norm.weight", "mtp.layers.0.mlp.up_proj.weight"],
    ),
    "qwen35moe-mtp": dict(  # whose feed-forward block is experts, too
        cfg=config(
            "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 48, 32, 40, 2, 4, 2,
            **{k: v for k, v in MODERN.items() if k != "rope_theta"}, tie_word_embeddings=False, head_dim=16,
            attn_output_gate=True, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=16,
            linear_num_key_heads=2, linear_num_value_heads=4, full_attention_interval=2, mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False,
            moe_intermediate_size=24, shared_expert_intermediate_size=16, num_experts=6, num_experts_per_tok=2,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            layer_types=[DELTA, FULL],
        ),
        dtype="F16", vectors="F16", n_tok=70, n_ctx=80, gguf=True, shows=[dict(num_experts_per_tok=3)],
        mtp_shows=["mtp.pre_fc_norm_hidden.weight", "mtp.layers.0.mlp.gate.weight", "mtp.layers.0.mlp.experts.down_proj",
                   "mtp.layers.0.mlp.shared_expert_gate.weight", "mtp.layers.0.mlp.shared_expert.up_proj.weight"],
    ),
    "qwen35moe": dict(
        cfg=config(
            "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 48, 32, 40, 4, 4, 2,
            **{k: v for k, v in MODERN.items() if k != "rope_theta"}, tie_word_embeddings=False, head_dim=16,
            attn_output_gate=True, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=16,
            linear_num_key_heads=2, linear_num_value_heads=4, full_attention_interval=4,
            moe_intermediate_size=24, shared_expert_intermediate_size=16, num_experts=6, num_experts_per_tok=2,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            layer_types=[DELTA] * 3 + [FULL],
        ),
        dtype="BF16", vectors="BF16", n_tok=40, shows=[dict(num_experts_per_tok=3), dict(drop="shared_expert_gate.weight")],
    ),
    "ministral3": dict(
        cfg=config(
            "Ministral3ForCausalLM", "ministral3", 48, 32, 48, 2, 4, 2, **{k: v for k, v in MODERN.items() if k != "rope_theta"},
            tie_word_embeddings=True, head_dim=16, sliding_window=None,
            rope_parameters={
                "type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.2,
            },
        ),
        dtype="BF16", vectors="BF16", n_tok=40,
        shows=[dict(rope_parameters={"rope_theta": 10000.0, "llama_4_scaling_beta": 0.2, "original_max_position_embeddings": 16}),
               dict(rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                                     "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.0})],
    ),
}

CASES |= families.CASES | latent.CASES | single.CASES | chunked.CASES | wkv.CASES | kda.CASES | ling.CASES

MUST_SHOW = 2e-3  # twenty times the error a test allows (the two GELUs differ by 5e-4 at most anywhere: at_least)


def relative_error(a, b):
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


def assert_shows(name, case, values, ids, n_ctx, logits):
    """A vector that a wrong reader would also pass is no test: each listed mistake must move the logits."""
    for change in case["shows"]:
        change = dict(change)
        drop, ctx, at_least = change.pop("drop", None), change.pop("n_ctx", n_ctx), change.pop("at_least", MUST_SHOW)
        kept = {k: (v * 0 if drop and k.endswith(drop) else v) for k, v in values.items()}
        err = relative_error(reference.forward({**case["cfg"], **change}, kept, ids, ctx), logits)
        if err < at_least:
            raise SystemExit(f"{name}: {change or drop} moves the logits by {err:.1e} only")


def rounded(x):
    """Nine significant digits: beyond float32, short of the last bits that mathematical libraries disagree on."""
    return [float(f"{v:.9g}") for v in x]


def make_case(name, case, out, gguf_f32=None):
    cfg = case["cfg"]
    stored = checkpoint(name, cfg, case["dtype"], case["vectors"], case.get("mlp", case["dtype"]))
    values = {k: t.values for k, t in stored.items()}
    n_tok, n_ctx = case["n_tok"], case.get("n_ctx", 64)
    n_text = cfg.get("vocab_size_per_layer_input", families.text_of(cfg)["vocab_size"])
    ids = ((uniform(name + "tokens", (n_tok,)) + 1) / 2 * n_text).astype(int).tolist()
    to_gguf = next((m.gguf for m in (families, latent, single, chunked, wkv, kda, ling) if cfg["model_type"] in m.FAMILIES), gguf_from_hf)
    meta, tensors = to_gguf(cfg, stored, name, widen=gguf_f32 is not None) if case.get("gguf") else ({}, {})
    if gguf_f32:
        if tensors:
            write_gguf(gguf_f32 / f"{name}.gguf", meta, tensors)
        return
    logits = reference.forward(cfg, values, ids, n_ctx)
    assert_shows(name, case, values, ids, n_ctx, logits)
    (out / name).mkdir(parents=True)
    if not case.get("gguf_only"):
        write_hf_folder(out / name, cfg, stored, case.get("shards", 1))
    if tensors:
        write_gguf(out / f"{name}.gguf", meta, tensors)
    around_edges = {0, 1, 6, 7, 8, 9, 31, 32, 100, 255, 256, 257, 511, 512, n_tok // 2, n_tok - 2, n_tok - 1}
    positions = sorted(p for p in around_edges if p < n_tok)
    lines = ",\n    ".join(json.dumps(rounded(logits[p])) for p in positions)
    further = ""
    if "mtp_use_dedicated_embeddings" in cfg:
        guesses = [reference.guess_further(cfg, values, ids, p) for p in positions if p < n_tok - 2]
        for drop in case["mtp_shows"]:
            lost = {k: (v * 0 if k == drop else v) for k, v in values.items()}
            if relative_error(reference.guess_further(cfg, lost, ids, 32)[1], reference.guess_further(cfg, values, ids, 32)[1]) < MUST_SHOW:
                raise SystemExit(f"{name}: {drop} does not show in the second guess")
        rows = ",\n    ".join(json.dumps([rounded(a), rounded(b)]) for a, b in guesses)
        further = f',\n  "further": [\n    {rows}\n  ]'
    (out / name / "vectors.json").write_text(
        "{\n"
        f'  "n_ctx": {n_ctx},\n  "tokens": {json.dumps(ids)},\n  "perplexity": {reference.perplexity(logits, ids):.9g},\n'
        f'  "positions": {json.dumps(positions)},\n  "logits": [\n    {lines}\n  ]{further}\n}}\n'
    )


def make_all(out):
    for name, case in CASES.items():
        make_case(name, case, out)
    heads.make_all(out, uniform, rounded)
    dflash.make_all(out, uniform, rounded)
    gemma4 = CASES["gemma4"]
    model = checkpoint("gemma4", gemma4["cfg"], gemma4["dtype"], gemma4["vectors"], gemma4["dtype"])
    assistants.make_all(out, uniform, rounded, {"gemma4": (gemma4["cfg"], model), "checkpoint": checkpoint})
    (out / "sampling.json").write_text(sampling.vectors())


def same(a, b):
    """Equal bytes; numbers of JSON vectors within 1e-7, since exp and sin differ in the last bit between libraries."""
    if a.read_bytes() == b.read_bytes():
        return True
    if a.name not in ("vectors.json", "sampling.json"):
        return False
    number = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
    ta, tb = a.read_text(), b.read_text()
    if re.sub(number, "#", ta) != re.sub(number, "#", tb):
        return False
    na, nb = (np.array(re.findall(number, t), dtype=float) for t in (ta, tb))
    return bool(np.all(np.abs(na - nb) <= 1e-7 * (1 + np.abs(na))))


def check():
    with tempfile.TemporaryDirectory() as tmp:
        new, old = pathlib.Path(tmp), HERE / "fixtures"
        make_all(new)
        names = {p.relative_to(r) for r in (new, old) for p in r.rglob("*") if p.is_file()}
        bad = [str(n) for n in sorted(names) if not ((new / n).is_file() and (old / n).is_file() and same(new / n, old / n))]
    for n in bad:
        print(f"{n}: is not what make.sh makes")
    sys.exit(bool(bad))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check()
    elif sys.argv[1:2] == ["--gguf-f32"]:
        for name, case in CASES.items():
            make_case(name, case, None, gguf_f32=pathlib.Path(sys.argv[2]))
    else:
        shutil.rmtree(HERE / "fixtures", ignore_errors=True)
        make_all(HERE / "fixtures")
