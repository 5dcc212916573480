"""Gemma 4's assistants for the oracle: models of Gemma 4's kind, assistants for them in the forms that folders and GGUF files have,
and the logits of the first three drafts after every place of a text, in float64 from the published definition."""
import math

import numpy as np

from files import GGUF_NAMES, GGUF_NAMES_GEMMA2, Stored, write_gguf, write_hf_folder
from heads import CHAIN, CHAIN_WIDTH, Numbers, words, write_vectors
from reference import ACTIVATIONS, gated, gemma4_frequencies, gemma4_states, heads, linear, rms_norm, softmax

SLIDING, FULL = "sliding_attention", "full_attention"
N_TOK, N_VOCAB, DRAFTS = 44, 48, 3
ROPE = {
    FULL: {"rope_theta": 10000.0, "rope_type": "proportional", "partial_rotary_factor": 0.5},
    SLIDING: {"rope_theta": 100.0, "rope_type": "default"},
}
COMMON = dict(
    model_type="gemma4_text", vocab_size=N_VOCAB, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=256, rms_norm_eps=1e-6,
    attention_bias=False, tie_word_embeddings=True, enable_moe_block=False, rope_parameters=ROPE, sliding_window=8, use_double_wide_mlp=False,
    final_logit_softcapping=None,
)
# A model whose heads are as large as quantised keys and values want them, and whose last layer has no values of its own.
WIDE = dict(
    architectures=["Gemma4ForCausalLM"], **{**COMMON, "final_logit_softcapping": 4.0}, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
    num_attention_heads=2, num_key_value_heads=2, head_dim=64, global_head_dim=128, layer_types=[SLIDING, FULL] * 2, num_kv_shared_layers=0,
    hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
)
# Of each: the model's fixture, its own layers, what its configuration says beside them.
ASSISTANTS = {
    # as those of E2B and E4B: centroids, and a model whose last layers share keys and values
    "assistant": dict(
        model="gemma4", dtype="F32", centroids=8, said_shared=3,
        text=dict(**COMMON, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                  global_head_dim=16, layer_types=[SLIDING, SLIDING, FULL], attention_k_eq_v=False, num_global_key_value_heads=None),
    ),
    # as those of 26B-A4B and 31B: heads of the two kinds of layers differ in number
    "assistant-wide": dict(
        model="gemma4-wide", dtype="BF16", centroids=0, said_shared=0,
        text=dict(**COMMON, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=64,
                  global_head_dim=128, layer_types=[SLIDING, FULL], attention_k_eq_v=True, num_global_key_value_heads=1),
    ),
}


def matrices_of(name, uniform, dtype, out):
    def matrix(key, rows, cols, gain=1.0):
        out[key + ".weight"] = Stored(uniform(name + key, (rows, cols)) * gain * (3 / cols) ** 0.5, dtype)

    def vector(key, n, centre=1.0, spread=0.5):
        out[key] = Stored(np.round((centre + spread * uniform(name + key, (n,))) * 128) / 128, dtype)

    return matrix, vector


def assistant(name, a, n_target, uniform):
    cfg, out = a["text"], {}
    matrix, vector = matrices_of(name, uniform, a["dtype"], out)
    c, f, n_heads = cfg["hidden_size"], cfg["intermediate_size"], cfg["num_attention_heads"]
    matrix("pre_projection", c, 2 * n_target, 2.0)
    matrix("post_projection", n_target, c, 1.5)
    matrix("model.embed_tokens", N_VOCAB, c, 2.0)
    for i, kind in enumerate(cfg["layer_types"]):
        p, d = f"model.layers.{i}.", cfg["head_dim"] if kind == SLIDING else cfg["global_head_dim"]
        for key in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            vector(p + key + "_layernorm.weight", c)
        matrix(p + "self_attn.q_proj", n_heads * d, c, 1.5)
        vector(p + "self_attn.q_norm.weight", d)
        matrix(p + "self_attn.o_proj", c, n_heads * d, 2.0)
        for key, rows, cols in (("gate", f, c), ("up", f, c), ("down", c, f)):
            matrix(p + f"mlp.{key}_proj", rows, cols, 1.5)
        vector(p + "layer_scalar", 1, 0.75, 0.25)
    vector("model.norm.weight", c)
    return out


def attend(q, k, v, window):
    """One row of queries [H, d] at the position after the last of k and v [T, G, d], of which it sees the last window - 1."""
    first = max(0, len(k) - window + 1) if window else 0
    per_group = q.shape[0] // k.shape[1]
    out = [linear(softmax(linear(q[h : h + 1], k[first:, h // per_group])), v[first:, h // per_group].T) for h in range(q.shape[0])]
    return np.concatenate(out, axis=1)


def turned(x, freq, position):
    """x [H, d] at a position."""
    n, angle = len(freq), position * freq
    a, b = x[:, :n], x[:, n : 2 * n]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), x[:, 2 * n :]], axis=1)


def drafts(cfg, w, kept, state, embedding, ids, pos):
    """Logits of the tokens after ids[pos], ids[pos + 1] and ids[pos + 2], where ids[:pos] are evaluated: kept are the model's
    keys and values of these, state [1, C] is the model's after its last norm at the last of them. Every draft is at position pos."""
    act, eps, out = ACTIVATIONS[cfg["hidden_activation"]], cfg["rms_norm_eps"], []
    norm = lambda x, name: rms_norm(x, w(name), eps)
    for token in ids[pos : pos + DRAFTS]:
        e = embedding[token : token + 1] * math.sqrt(embedding.shape[1])
        x = linear(np.concatenate([e, state], axis=1), w("pre_projection.weight"))
        for i, kind in enumerate(cfg["layer_types"]):
            p, sliding = f"model.layers.{i}.", kind == SLIDING
            rope, d = cfg["rope_parameters"][kind], cfg["head_dim"] if sliding else cfg["global_head_dim"]
            freq = gemma4_frequencies(rope, d)
            q = heads(linear(norm(x, p + "input_layernorm.weight"), w(p + "self_attn.q_proj.weight")), cfg["num_attention_heads"])[0]
            q = turned(norm(q, p + "self_attn.q_norm.weight"), freq, pos)
            a = attend(q, *kept[kind], cfg["sliding_window"] if sliding else None)
            x = x + norm(linear(a, w(p + "self_attn.o_proj.weight")), p + "post_attention_layernorm.weight")
            h = norm(x, p + "pre_feedforward_layernorm.weight")
            h = gated(h, *(w(p + f"mlp.{m}_proj.weight") for m in ("gate", "up", "down")), act)
            x = (x + norm(h, p + "post_feedforward_layernorm.weight")) * w(p + "layer_scalar")
        x = norm(x, "model.norm.weight")
        out.append(linear(x, w("model.embed_tokens.weight"))[0])
        state = linear(x, w("post_projection.weight"))
    return out


def folder_of(a, n_target):
    """With every key of the configuration that google/gemma-4-E2B-it-assistant has; the larger models' see pictures both ways."""
    text = {
        "_name_or_path": "", "architectures": None, **a["text"], "attention_dropout": 0.0, "bos_token_id": 2, "chunk_size_feed_forward": 0,
        "dtype": "bfloat16", "eos_token_id": 1, "hidden_size_per_layer_input": 0, "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
        "initializer_range": 0.02, "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "moe_intermediate_size": None,
        "num_experts": None, "num_kv_shared_layers": a["said_shared"], "output_attentions": False, "output_hidden_states": False,
        "pad_token_id": 0, "problem_type": None, "return_dict": True, "top_k_experts": None,
        "use_bidirectional_attention": None if a["centroids"] else "vision", "use_cache": True, "vocab_size_per_layer_input": 0,
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"], "audio_token_id": 46, "backbone_hidden_size": n_target, "boa_token_id": 45,
        "boi_token_id": 44, "centroid_intermediate_top_k": 2, "dtype": "bfloat16", "eoa_token_id": 43, "eoi_token_id": 42,
        "image_token_id": 41, "model_type": "gemma4_assistant", "num_centroids": 8, "text_config": text, "tie_word_embeddings": True,
        "transformers_version": "5.7.0.dev0", "use_ordered_embeddings": a["centroids"] > 0,
    }


def gguf_of(arch, cfg, tensors, name, more):
    """As llama.cpp's converter makes it of a folder of the kind."""
    n_rot = cfg["global_head_dim"]
    sliding = [kind == SLIDING for kind in cfg["layer_types"]]
    kv, all_kv = cfg["num_key_value_heads"], cfg["num_global_key_value_heads"]
    shared, wide = cfg.get("num_kv_shared_layers", 0), cfg["use_double_wide_mlp"]
    ff = [cfg["intermediate_size"] * (2 if wide and i >= len(sliding) - shared else 1) for i in range(len(sliding))]
    meta = {
        "general.architecture": arch, "general.name": name, f"{arch}.block_count": cfg["num_hidden_layers"],
        f"{arch}.context_length": cfg["max_position_embeddings"], f"{arch}.embedding_length": cfg["hidden_size"],
        f"{arch}.feed_forward_length": ff if wide else ff[0], f"{arch}.attention.head_count": cfg["num_attention_heads"],
        f"{arch}.attention.head_count_kv": kv if all_kv is None else [kv if s else all_kv for s in sliding],
        f"{arch}.rope.freq_base": cfg["rope_parameters"][FULL]["rope_theta"],
        f"{arch}.rope.freq_base_swa": cfg["rope_parameters"][SLIDING]["rope_theta"],
        f"{arch}.attention.layer_norm_rms_epsilon": cfg["rms_norm_eps"], f"{arch}.attention.key_length": n_rot,
        f"{arch}.attention.value_length": n_rot, f"{arch}.attention.sliding_window": cfg["sliding_window"],
        f"{arch}.attention.shared_kv_layers": shared,
        f"{arch}.embedding_length_per_layer_input": cfg.get("hidden_size_per_layer_input", 0),
        f"{arch}.attention.sliding_window_pattern": sliding, f"{arch}.attention.key_length_swa": cfg["head_dim"],
        f"{arch}.attention.value_length_swa": cfg["head_dim"], f"{arch}.rope.dimension_count": n_rot,
        f"{arch}.rope.dimension_count_swa": cfg["head_dim"], "tokenizer.ggml.model": "none", **more,
    }
    if cfg["final_logit_softcapping"] is not None:
        meta[f"{arch}.final_logit_softcapping"] = cfg["final_logit_softcapping"]
    own = {"pre_projection": "nextn.pre_projection", "post_projection": "nextn.post_projection", "layer_scalar": "layer_output_scale",
           "model.embed_tokens_per_layer": "per_layer_token_embd", "model.per_layer_model_projection": "per_layer_model_proj",
           "model.per_layer_projection_norm": "per_layer_proj_norm", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
           "post_per_layer_input_norm": "post_norm"}
    names = {**GGUF_NAMES, **GGUF_NAMES_GEMMA2, **own}
    turns = int(cfg["rope_parameters"][FULL]["partial_rotary_factor"] * n_rot / 2)
    out = {"rope_freqs.weight": Stored([1.0] * turns + [1e30] * (n_rot // 2 - turns), "F32")}
    for hf, t in tensors.items():
        if hf.startswith("masked_embedding"):
            continue
        stem, at = hf.removesuffix(".weight"), ""
        if stem.startswith("model.layers."):
            layer, stem = stem[len("model.layers.") :].split(".", 1)
            at = f"blk.{layer}."
        out[f"{at}{names[stem]}.weight"] = Stored(t.values, "F32" if t.values.ndim == 1 else t.dtype)
    return meta, out


def draft_keys(a, n_target):
    arch = "gemma4-assistant"
    return {f"{arch}.embedding_length_out": n_target, f"{arch}.nextn_predict_layers": a["text"]["num_hidden_layers"]}


def chain(out):
    """A model that says 5 t + 3 (mod 32) after token t, whatever came before it, and an assistant that knows: what it reads of the
    token's embedding goes to the same output layer, past layers that add nothing."""
    after = [(5 * t + 3) % CHAIN for t in range(CHAIN)]
    cfg = {**WIDE, "vocab_size": CHAIN, "hidden_size": CHAIN_WIDTH, "intermediate_size": 32, "max_position_embeddings": 512,
           "num_attention_heads": 4, "head_dim": 32, "global_head_dim": 64}
    zeros, ones = (lambda n, k: Stored(np.zeros((n, k)), "Q8_0")), Stored(np.ones(CHAIN_WIDTH), "F32")
    says = np.zeros((CHAIN, CHAIN_WIDTH))
    says[after, np.arange(CHAIN)] = 4

    def block(i, kind, own_kv):
        p, sliding = f"model.layers.{i}.", kind == SLIDING
        d, n_kv = (32, 2) if sliding else (64, 1)
        of = {"self_attn.q_proj": (4 * d, CHAIN_WIDTH), "self_attn.o_proj": (CHAIN_WIDTH, 4 * d), "mlp.gate_proj": (32, CHAIN_WIDTH),
              "mlp.up_proj": (32, CHAIN_WIDTH), "mlp.down_proj": (CHAIN_WIDTH, 32)}
        if own_kv:
            of["self_attn.k_proj"] = (n_kv * d, CHAIN_WIDTH)
        if own_kv and sliding:
            of["self_attn.v_proj"] = (n_kv * d, CHAIN_WIDTH)
        out = {f"{p}{n}.weight": zeros(*s) for n, s in of.items()}
        out |= {f"{p}{n}_layernorm.weight": ones for n in ("input", "post_attention", "pre_feedforward", "post_feedforward")}
        out |= {f"{p}self_attn.{n}_norm.weight": Stored(np.ones(d), "F32") for n in ("q", "k")[: 1 + own_kv]}
        return out | {p + "layer_scalar": Stored(np.ones(1), "F32")}

    model = {"model.embed_tokens.weight": Stored(np.eye(CHAIN, CHAIN_WIDTH), "Q8_0"), "model.norm.weight": ones, "lm_head.weight": Stored(says, "Q8_0")}
    for i, kind in enumerate(cfg["layer_types"]):
        model |= block(i, kind, True)
    write_gguf(out / "chain-gemma4.gguf", *gguf_of("gemma4", cfg, model, "chain", words(CHAIN)))
    text = {**cfg, "num_hidden_layers": 2, "layer_types": [SLIDING, FULL], "final_logit_softcapping": None}
    both = np.eye(CHAIN_WIDTH, 2 * CHAIN_WIDTH) / CHAIN_WIDTH**0.5  # the embedding as it is stored, and nothing of the state
    head = {"pre_projection.weight": Stored(both, "F32"), "post_projection.weight": zeros(CHAIN_WIDTH, CHAIN_WIDTH),
            "model.embed_tokens.weight": Stored(says, "F32"), "model.norm.weight": ones}
    for i, kind in enumerate(text["layer_types"]):
        head |= block(i, kind, False)
    meta = {**words(CHAIN), **draft_keys(dict(text=text), CHAIN_WIDTH)}
    write_gguf(out / "chain-gemma4-it-assistant.gguf", *gguf_of("gemma4-assistant", text, head, "chain", meta))


def make_all(out, uniform, rounded, models):
    """models: name -> (configuration, tensors) of Gemma 4's cases."""
    out = out / "heads"
    models = {**models, "gemma4-wide": (WIDE, wide_model(uniform, models["checkpoint"]))}
    (out / "gemma4-wide").mkdir()
    write_hf_folder(out / "gemma4-wide", *models["gemma4-wide"], 1)
    write_gguf(out / "gemma4-wide.gguf", *gguf_of("gemma4", *models["gemma4-wide"], "gemma4-wide", words(N_VOCAB)))
    chain(out)
    ids = ((uniform("assistants-tokens", (N_TOK,)) + 1) / 2 * N_VOCAB).astype(int).tolist()
    positions = [0, 1, 6, 7, 8, 31, 32, N_TOK - DRAFTS - 1]
    for name, a in ASSISTANTS.items():
        cfg, stored = models[a["model"]]
        model_w = {k: t.values for k, t in stored.items()}
        n_target = cfg["hidden_size"]
        tensors = assistant(name, a, n_target, uniform)
        folder = dict(tensors)
        if a["centroids"]:
            folder["masked_embedding.centroids.weight"] = Stored(uniform(name + "centroids", (8, a["text"]["hidden_size"])), a["dtype"])
            folder["masked_embedding.token_ordering"] = Numbers(np.argsort(uniform(name + "ordering", (N_VOCAB,)), kind="stable"))
        (out / name).mkdir()
        write_hf_folder(out / name, folder_of(a, n_target), folder, 1)
        write_gguf(out / f"{name}.gguf", *gguf_of("gemma4-assistant", {**a["text"], "num_kv_shared_layers": a["said_shared"]}, tensors, name,
                                                  draft_keys(a, n_target)))
        head_w = {k: t.values for k, t in tensors.items()}
        kept_of = {p: gemma4_states(cfg, lambda k: model_w.get(k), np.array(ids[: p + 1])) for p in positions}

        def after(p, w, cut=0):
            states, kept = kept_of[p]
            return drafts(a["text"] if not cut else {**a["text"], "sliding_window": cut}, lambda k: w[k], kept, states[-1:],
                          model_w["model.embed_tokens.weight"], ids, p + 1)

        rows = [after(p, head_w) for p in positions]
        whole = rows[positions.index(32)][DRAFTS - 1]
        for k in head_w:  # each shows in the last draft, and so does where the window ends
            lost = after(32, {**head_w, k: head_w[k] * 0})[DRAFTS - 1]
            if np.abs(lost - whole).max() / np.abs(whole).max() < 2e-3:
                raise SystemExit(f"{name}: {k} does not show")
        for cut in (7, 9):
            if np.abs(after(32, head_w, cut)[0] - rows[positions.index(32)][0]).max() / np.abs(whole).max() < 1e-3:
                raise SystemExit(f"{name}: a window of {cut} does not show")
        write_vectors(out / name, ids, positions, [[rounded(x) for x in row] for row in rows], [])


def wide_model(uniform, checkpoint):
    return checkpoint("gemma4-wide", WIDE, "BF16", "BF16", "BF16")
