#!/usr/bin/python3
"""The oracle: decoder forwards in float64 NumPy, written from the families' published definitions.

It shares no code with the engine. Every formula is spelled out, sums run in a fixed order (no BLAS), and the random
weights come from integer arithmetic, so the same files come out everywhere.

Conventions: x is [T, C], one row per token. Linear weights are [out, in] and y = x W^T + b, as in checkpoints.
Rotary pairs are (i, i + n_rot/2) ("rotate half"), as in Hugging Face checkpoints.
"""
import math

import numpy as np

# ---- operators ----------------------------------------------------------------------------------------


any_order = False  # of sums in linear: for vectors that are not kept


def linear(x, w, b=None):
    """y[t, n] = b[n] + sum_k x[t, k] w[n, k], k ascending: the same bits on every machine."""
    if any_order:
        return x @ w.T if b is None else x @ w.T + b
    y = np.zeros((x.shape[0], w.shape[0]))
    for k in range(w.shape[1]):
        y += x[:, k : k + 1] * w[:, k]
    return y if b is None else y + b


def row_sum(x):
    return np.add.accumulate(x, axis=-1)[..., -1:]


def rms_norm(x, weight, eps):
    return x / np.sqrt(row_sum(x * x) / x.shape[-1] + eps) * weight


def layer_norm(x, weight, bias, eps):
    d = x - row_sum(x) / x.shape[-1]
    return d / np.sqrt(row_sum(d * d) / x.shape[-1] + eps) * weight + bias


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / row_sum(e)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu_erf(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def relu(x):
    return np.maximum(x, 0)


# What `hidden_act` means. Gemma 1 checkpoints say "gelu" and mean the tanh form (their code overrides the word).
ACTIVATIONS = {"silu": silu, "gelu_new": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh, "gelu": gelu_erf, "relu": relu}


def soft_cap(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)


# ---- rotary positions ---------------------------------------------------------------------------------


def rope_frequencies(cfg, n_rot, n_ctx):
    """(inverse frequencies [n_rot/2], factor on cos and sin) after the checkpoint's scaling."""
    s = cfg.get("rope_parameters") or cfg.get("rope_scaling") or {}  # the first word is the newer one, with the base inside
    base = s.get("rope_theta", cfg.get("rope_theta"))
    freq = base ** (-np.arange(0, n_rot, 2) / n_rot)
    kind = s.get("rope_type", s.get("type", "default"))
    if kind == "default":
        return freq, 1.0
    if kind == "linear":  # positions are divided by the factor
        return freq / s["factor"], 1.0
    if kind == "llama3":  # long waves are slowed by the factor, short ones kept, a ramp between
        wave = 2 * math.pi / freq
        n_orig, low, high = s["original_max_position_embeddings"], s["low_freq_factor"], s["high_freq_factor"]
        keep = np.clip((n_orig / wave - low) / (high - low), 0, 1)
        return keep * freq + (1 - keep) * freq / s["factor"], 1.0
    if kind == "longrope":  # one divisor per pair, another set when the context outgrows the original one
        n_orig = cfg["original_max_position_embeddings"]
        factors = s["long_factor"] if n_ctx > n_orig else s["short_factor"]
        stretch = cfg["max_position_embeddings"] / n_orig
        mscale = math.sqrt(1 + math.log(stretch) / math.log(n_orig)) if stretch > 1 else 1.0
        return freq / np.array(factors), mscale
    if kind == "yarn":  # pairs that turn often are kept, those that turn seldom are slowed, a ramp between
        n_orig, factor = s["original_max_position_embeddings"], s["factor"]
        pair = lambda turns: n_rot * math.log(n_orig / (turns * 2 * math.pi)) / (2 * math.log(base))
        low, high = math.floor(pair(s.get("beta_fast", 32))), math.ceil(pair(s.get("beta_slow", 1)))
        low, high = max(low, 0), min(high, n_rot - 1)
        slowed = np.clip((np.arange(n_rot // 2) - low) / max(high - low, 1e-3), 0, 1)
        grow = lambda m: 1 + 0.1 * m * math.log(factor)
        m, every = s.get("mscale"), s.get("mscale_all_dim")
        return freq * (1 - slowed) + freq / factor * slowed, grow(m) / grow(every) if m and every else grow(1)
    if kind == "dynamic":  # Hunyuan: the base grows with alpha, whatever the length
        base *= s["alpha"] ** (n_rot / (n_rot - 2))
        return base ** (-np.arange(0, n_rot, 2) / n_rot), 1.0
    raise ValueError(kind)


def rotate(x, freq, mscale):
    """x [T, H, d]: the first 2 len(freq) values of each head turn by position * freq, the rest pass."""
    n = len(freq)
    angle = np.arange(x.shape[0])[:, None] * freq
    c, s = mscale * np.cos(angle)[:, None, :], mscale * np.sin(angle)[:, None, :]
    a, b = x[..., :n], x[..., n : 2 * n]
    return np.concatenate([a * c - b * s, b * c + a * s, x[..., 2 * n :]], axis=-1)


# ---- attention ----------------------------------------------------------------------------------------


def attention(q, k, v, scale, window=None, cap=None):
    """Causal attention. q [T, H, d]; k, v [T, G, d]; query head h reads group h // (H/G).
    With a window W a token sees itself and the W - 1 before it."""
    n_tok, n_heads, _ = q.shape
    per_group = n_heads // k.shape[1]
    t = np.arange(n_tok)
    visible = t[:, None] >= t[None, :]
    if window is not None:
        visible &= t[:, None] - t[None, :] < window
    out = np.zeros_like(q)
    for h in range(n_heads):
        g = h // per_group
        score = soft_cap(linear(q[:, h], k[:, g]) * scale, cap)
        out[:, h] = linear(softmax(np.where(visible, score, -np.inf)), v[:, g].T)
    return out.reshape(n_tok, -1)


def heads(x, n):
    return x.reshape(x.shape[0], n, -1)


# ---- families -----------------------------------------------------------------------------------------
# w(name) is the checkpoint's tensor in float64, or None.


def geometry(cfg):
    n_heads = cfg["num_attention_heads"]
    n_kv = cfg.get("num_key_value_heads", n_heads)
    d = cfg.get("head_dim") or cfg["hidden_size"] // n_heads
    return n_heads, n_kv, d


def forward_llama_like(cfg, w, ids, n_ctx):
    """Llama, Mistral, Qwen2, Qwen3, PhoneLM: pre-norm blocks, rotary attention, gated MLP."""
    n_heads, n_kv, d = geometry(cfg)
    eps, act, family = cfg["rms_norm_eps"], ACTIVATIONS[cfg["hidden_act"]], cfg["model_type"]
    window = cfg.get("sliding_window") if family == "mistral" else None
    if family in ("qwen2", "qwen3") and cfg.get("use_sliding_window"):
        raise ValueError("not covered")
    freq, mscale = rope_frequencies(cfg, d, n_ctx)
    x = w("model.embed_tokens.weight")[ids]
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = rms_norm(x, w(p + "input_layernorm.weight"), eps)
        q, k, v = (
            linear(h, w(p + f"self_attn.{n}_proj.weight"), w(p + f"self_attn.{n}_proj.bias")) for n in "qkv"
        )  # the biases exist in Qwen2 only
        q, k, v = heads(q, n_heads), heads(k, n_kv), heads(v, n_kv)
        if family == "qwen3":
            q = rms_norm(q, w(p + "self_attn.q_norm.weight"), eps)
            k = rms_norm(k, w(p + "self_attn.k_norm.weight"), eps)
        a = attention(rotate(q, freq, mscale), rotate(k, freq, mscale), v, 1 / math.sqrt(d), window)
        x = x + linear(a, w(p + "self_attn.o_proj.weight"))
        h = rms_norm(x, w(p + "post_attention_layernorm.weight"), eps)
        gate, up = linear(h, w(p + "mlp.gate_proj.weight")), linear(h, w(p + "mlp.up_proj.weight"))
        x = x + linear(act(gate) * up, w(p + "mlp.down_proj.weight"))
    x = rms_norm(x, w("model.norm.weight"), eps)
    head = w("model.embed_tokens.weight" if cfg.get("tie_word_embeddings") else "lm_head.weight")
    return linear(x, head)


def forward_gemma(cfg, w, ids, n_ctx):
    """Gemma 1 and 2: embeddings times sqrt(C), norms by (1 + weight), tanh GeGLU, tied head. Gemma 2 adds norms after
    attention and MLP, soft caps, an attention scale of its own, and a window on layers 0, 2, 4..."""
    second = cfg["model_type"] == "gemma2"
    n_heads, n_kv, d = geometry(cfg)
    eps = cfg["rms_norm_eps"]
    norm = lambda x, name: rms_norm(x, 1 + w(name), eps)
    freq, mscale = rope_frequencies(cfg, d, n_ctx)
    scale = 1 / math.sqrt(cfg["query_pre_attn_scalar"] if second else d)
    x = w("model.embed_tokens.weight")[ids] * math.sqrt(cfg["hidden_size"])
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = (linear(h, w(p + f"self_attn.{n}_proj.weight")) for n in "qkv")
        q, k, v = rotate(heads(q, n_heads), freq, mscale), rotate(heads(k, n_kv), freq, mscale), heads(v, n_kv)
        window = cfg["sliding_window"] if second and i % 2 == 0 else None
        h = linear(attention(q, k, v, scale, window, cfg.get("attn_logit_softcapping")), w(p + "self_attn.o_proj.weight"))
        x = x + (norm(h, p + "post_attention_layernorm.weight") if second else h)
        h = norm(x, p + ("pre_feedforward_layernorm.weight" if second else "post_attention_layernorm.weight"))
        h = gelu_tanh(linear(h, w(p + "mlp.gate_proj.weight"))) * linear(h, w(p + "mlp.up_proj.weight"))
        h = linear(h, w(p + "mlp.down_proj.weight"))
        x = x + (norm(h, p + "post_feedforward_layernorm.weight") if second else h)
    logits = linear(norm(x, "model.norm.weight"), w("model.embed_tokens.weight"))
    return soft_cap(logits, cfg.get("final_logit_softcapping"))


def forward_phi(cfg, w, ids, n_ctx):
    """Phi-2: attention and MLP read one LayerNorm and are added together; part of each head rotates; biases everywhere."""
    n_heads, n_kv, d = geometry(cfg)
    eps, act = cfg["layer_norm_eps"], ACTIVATIONS[cfg["hidden_act"]]
    freq, mscale = rope_frequencies(cfg, int(cfg["partial_rotary_factor"] * d), n_ctx)
    lin = lambda x, name: linear(x, w(name + ".weight"), w(name + ".bias"))
    x = w("model.embed_tokens.weight")[ids]
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = layer_norm(x, w(p + "input_layernorm.weight"), w(p + "input_layernorm.bias"), eps)
        q, k, v = (lin(h, p + f"self_attn.{n}_proj") for n in "qkv")
        q, k, v = rotate(heads(q, n_heads), freq, mscale), rotate(heads(k, n_kv), freq, mscale), heads(v, n_kv)
        a = lin(attention(q, k, v, 1 / math.sqrt(d)), p + "self_attn.dense")
        x = x + a + lin(act(lin(h, p + "mlp.fc1")), p + "mlp.fc2")
    x = layer_norm(x, w("model.final_layernorm.weight"), w("model.final_layernorm.bias"), eps)
    return lin(x, "lm_head")


def forward_phi3(cfg, w, ids, n_ctx):
    """Phi-3: a Llama block with fused projections: rows [Q; K; V] and [gate; up]."""
    n_heads, n_kv, d = geometry(cfg)
    eps, act = cfg["rms_norm_eps"], ACTIVATIONS[cfg["hidden_act"]]
    freq, mscale = rope_frequencies(cfg, int(cfg.get("partial_rotary_factor", 1.0) * d), n_ctx)
    x = w("model.embed_tokens.weight")[ids]
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        qkv = linear(rms_norm(x, w(p + "input_layernorm.weight"), eps), w(p + "self_attn.qkv_proj.weight"))
        q, k, v = np.split(qkv, [n_heads * d, (n_heads + n_kv) * d], axis=1)
        q, k, v = rotate(heads(q, n_heads), freq, mscale), rotate(heads(k, n_kv), freq, mscale), heads(v, n_kv)
        x = x + linear(attention(q, k, v, 1 / math.sqrt(d), cfg.get("sliding_window")), w(p + "self_attn.o_proj.weight"))
        h = linear(rms_norm(x, w(p + "post_attention_layernorm.weight"), eps), w(p + "mlp.gate_up_proj.weight"))
        gate, up = np.split(h, 2, axis=1)
        x = x + linear(act(gate) * up, w(p + "mlp.down_proj.weight"))
    return linear(rms_norm(x, w("model.norm.weight"), eps), w("model.embed_tokens.weight" if cfg.get("tie_word_embeddings") else "lm_head.weight"))


def layer_kinds(cfg):
    """Of every layer: its window or None, and which rope it has: "full", "local" or None."""
    family, n = cfg["model_type"], cfg["num_hidden_layers"]
    sliding = [t == "sliding_attention" for t in cfg.get("layer_types", ["full_attention"] * n)]
    for i in range(n):
        rope = "full"
        if family == "smollm3":
            rope = "full" if cfg["no_rope_layers"][i] else None
        elif family == "exaone4" and any(sliding):
            rope = "full" if sliding[i] else None
        elif family in ("gemma3_text", "olmo3"):
            rope = "local" if sliding[i] else "full"
        yield cfg["sliding_window"] if sliding[i] else None, rope


MIXTURES = ("qwen3_moe", "olmoe", "granitemoe")


def gated(x, gate, up, down, act):
    return linear(act(linear(x, gate)) * linear(x, up), down)


def experts(cfg, w, p, x, act):
    """Of every row the experts with the largest router scores, weighted: by the softmax over all experts, made to add up
    to 1 where the configuration says so; Granite's by the softmax over the chosen."""
    granite = cfg["model_type"] in ("granitemoe", "granitemoehybrid")
    n, used = cfg["num_local_experts" if granite else "num_experts"], cfg["num_experts_per_tok"]
    score = linear(x, w(p + ("block_sparse_moe.router.layer.weight" if granite else "mlp.gate.weight")))
    chosen = np.argsort(-score, axis=1, kind="stable")[:, :used]
    share = softmax(score)
    out = np.zeros_like(x)
    for e in range(n):
        if granite:
            both, down = w(p + "block_sparse_moe.input_linear.weight")[e], w(p + "block_sparse_moe.output_linear.weight")[e]
            gate, up = np.split(both, 2)
        elif w(p + "mlp.experts.gate_up_proj") is not None:
            gate, up = np.split(w(p + "mlp.experts.gate_up_proj")[e], 2)
            down = w(p + "mlp.experts.down_proj")[e]
        else:
            gate, up, down = (w(p + f"mlp.experts.{e}.{k}_proj.weight") for k in ("gate", "up", "down"))
        of_chosen = np.take_along_axis(share, chosen, axis=1).sum(axis=1)
        weight = np.where((chosen == e).any(axis=1), share[:, e], 0)
        if granite or cfg.get("norm_topk_prob", True):
            weight = weight / of_chosen
        out += weight[:, None] * gated(x, gate, up, down, act)
    return out


def forward_modern(cfg, w, ids, n_ctx):
    """Blocks of attention and gated MLP of 2025: where norms stand, what they norm, which layers rotate and see how far,
    and what is scaled, differs by family. Each statement is one of the published definitions."""
    family = cfg["model_type"]
    n_heads, n_kv, d = geometry(cfg)
    eps, act = cfg["rms_norm_eps"], ACTIVATIONS[cfg["hidden_act" if "hidden_act" in cfg else "hidden_activation"]]
    unit = 1 if family == "gemma3_text" else 0  # its norms multiply by 1 + weight
    norm = lambda x, name: rms_norm(x, unit + w(name), eps)
    post_only = family in ("olmo2", "olmo3", "exaone4")
    freqs = {"full": rope_frequencies(cfg, d, n_ctx)}
    plain = {k: v for k, v in cfg.items() if k not in ("rope_scaling", "rope_parameters")}
    local_base = cfg.get("rope_local_base_freq") or cfg.get("rope_theta") or cfg["rope_parameters"]["rope_theta"]
    freqs["local"] = rope_frequencies({**plain, "rope_theta": local_base}, d, n_ctx)

    kind = "granite" if family == "granitemoe" else family
    embed_by = {"gemma3_text": math.sqrt(cfg["hidden_size"]), "granite": cfg.get("embedding_multiplier"),
                "minicpm": cfg.get("scale_emb")}.get(kind) or 1.0
    add_by = {"granite": cfg.get("residual_multiplier"),
              "minicpm": cfg.get("scale_depth", 1) / math.sqrt(cfg["num_hidden_layers"])}.get(kind) or 1.0
    score_by = {"gemma3_text": cfg.get("query_pre_attn_scalar", d) ** -0.5,
                "granite": cfg.get("attention_multiplier")}.get(kind) or 1 / math.sqrt(d)

    x = w("model.embed_tokens.weight")[ids] * embed_by
    t = np.arange(len(ids))
    for i, (window, rope) in enumerate(layer_kinds(cfg)):
        p = f"model.layers.{i}."
        h = x if post_only else norm(x, p + "input_layernorm.weight")
        q, k, v = (linear(h, w(p + f"self_attn.{n}_proj.weight")) for n in "qkv")
        if family in ("olmo2", "olmo3", "olmoe"):  # one norm over all heads
            q, k = norm(q, p + "self_attn.q_norm.weight"), norm(k, p + "self_attn.k_norm.weight")
        q, k, v = heads(q, n_heads), heads(k, n_kv), heads(v, n_kv)
        if family in ("gemma3_text", "exaone4", "qwen3_moe"):
            q, k = norm(q, p + "self_attn.q_norm.weight"), norm(k, p + "self_attn.k_norm.weight")
        if rope:
            q, k = rotate(q, *freqs[rope]), rotate(k, *freqs[rope])
        if family == "hunyuan_v1_dense":
            q, k = norm(q, p + "self_attn.query_layernorm.weight"), norm(k, p + "self_attn.key_layernorm.weight")
        if family == "ministral3":
            r = cfg["rope_parameters"]
            heat = 1 + r["llama_4_scaling_beta"] * np.log(1 + np.floor(t / r["original_max_position_embeddings"]))
            q = q * heat[:, None, None]
        a = linear(attention(q, k, v, score_by, window), w(p + "self_attn.o_proj.weight"))
        after = post_only or family == "gemma3_text"
        x = x + add_by * (norm(a, p + "post_attention_layernorm.weight") if after else a)
        before_mlp = {"gemma3_text": "pre_feedforward_layernorm.weight"}.get(family, "post_attention_layernorm.weight")
        h = x if post_only else norm(x, p + before_mlp)
        h = experts(cfg, w, p, h, act) if family in MIXTURES else gated(h, *(w(p + f"mlp.{n}_proj.weight") for n in ("gate", "up", "down")), act)
        x = x + add_by * (norm(h, p + "post_feedforward_layernorm.weight") if after else h)
    x = norm(x, "model.norm.weight")
    if family == "minicpm":
        x = x / (cfg["hidden_size"] / cfg["dim_model_base"])
    tied = cfg.get("tie_word_embeddings", family == "gemma3_text")
    logits = linear(x, w("model.embed_tokens.weight" if tied else "lm_head.weight"))
    return logits / cfg["logits_scaling"] if family in ("granite", "granitemoe") else logits


def experts_by_sigmoid(cfg, w, p, x):
    """LFM2-MoE: a bias is added to the sigmoids of the router's scores where experts are chosen; their weights are the
    sigmoids, made to add up to 1 (with 1e-6 beside them) and scaled."""
    share = 1 / (1 + np.exp(-linear(x, w(p + "gate.weight"))))
    chosen = np.argsort(-(share + w(p + "expert_bias")), axis=1, kind="stable")[:, : cfg["num_experts_per_tok"]]
    of_chosen = np.take_along_axis(share, chosen, axis=1).sum(axis=1) + 1e-6
    out = np.zeros_like(x)
    for e in range(cfg["num_experts"]):
        weight = np.where((chosen == e).any(axis=1), share[:, e], 0) / of_chosen * cfg["routed_scaling_factor"]
        out += weight[:, None] * gated(x, *(w(p + f"experts.{e}.{n}.weight") for n in ("w1", "w3", "w2")), silu)
    return out


def causal_convolution(x, kernel):
    """Every channel by itself: y[t] = sum over k of kernel[:, k] x[t - (taps - 1) + k]."""
    taps = kernel.shape[1]
    seen = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    y = np.zeros_like(x)
    for k in range(taps):
        y += kernel[:, k] * seen[k : k + x.shape[0]]
    return y


def to_length_one(x):
    return x / np.sqrt(row_sum(x * x) + 1e-6)


def delta_net(cfg, w, p, x):
    """Gated delta net, token by token as it is defined. Value head h reads key head h // (value heads / key heads)."""
    n_k, n_v = cfg["linear_num_key_heads"], cfg["linear_num_value_heads"]
    d_k, d_v, n_tok, each = cfg["linear_key_head_dim"], cfg["linear_value_head_dim"], x.shape[0], n_v // n_k
    if w(p + "in_proj_qkvz.weight") is not None:  # by key head: q, k, v of its value heads, z of them; b, a
        mixed = linear(x, w(p + "in_proj_qkvz.weight")).reshape(n_tok, n_k, -1)
        q, k, v, z = np.split(mixed, [d_k, 2 * d_k, 2 * d_k + each * d_v], axis=2)
        b, a = np.split(linear(x, w(p + "in_proj_ba.weight")).reshape(n_tok, n_k, -1), 2, axis=2)
        qkv = np.concatenate([t.reshape(n_tok, -1) for t in (q, k, v)], axis=1)
    else:
        qkv, z, b, a = (linear(x, w(p + f"in_proj_{n}.weight")) for n in ("qkv", "z", "b", "a"))
    z, b, a = z.reshape(n_tok, n_v, d_v), b.reshape(n_tok, n_v), a.reshape(n_tok, n_v)
    qkv = silu(causal_convolution(qkv, w(p + "conv1d.weight")[:, 0]))
    q, k, v = np.split(qkv, [n_k * d_k, 2 * n_k * d_k], axis=1)
    q, k = to_length_one(heads(q, n_k)) / math.sqrt(d_k), to_length_one(heads(k, n_k))
    v = heads(v, n_v)
    beta = 1 / (1 + np.exp(-b))
    decay = np.exp(-np.exp(w(p + "A_log")) * np.log1p(np.exp(a + w(p + "dt_bias"))))
    out = np.zeros_like(v)
    for h in range(n_v):
        state = np.zeros((d_k, d_v))
        for t in range(n_tok):
            key, query = k[t, h // each], q[t, h // each]
            state = state * decay[t, h]
            known = np.add.reduce(state * key[:, None], axis=0)
            state = state + key[:, None] * (beta[t, h] * (v[t, h] - known))
            out[t, h] = np.add.reduce(state * query[:, None], axis=0)
    out = rms_norm(out, w(p + "norm.weight"), cfg["rms_norm_eps"]) * silu(z)
    return linear(out.reshape(n_tok, -1), w(p + "out_proj.weight"))


def feed_forward_next(cfg, w, p, h):
    if not cfg.get("num_experts"):
        return gated(h, *(w(p + f"mlp.{n}_proj.weight") for n in ("gate", "up", "down")), silu)
    shared = gated(h, *(w(p + f"mlp.shared_expert.{n}_proj.weight") for n in ("gate", "up", "down")), silu)
    return experts(cfg, w, p, h, silu) + shared / (1 + np.exp(-linear(h, w(p + "mlp.shared_expert_gate.weight"))))


def forward_next(cfg, w, ids, n_ctx, states=False):
    """Qwen3-Next and Qwen3.5: three layers of four are gated delta nets; attention rotates a part of every head and gates
    what it gives; feed-forward blocks are dense, or experts beside a shared one that has a gate."""
    n_heads, n_kv, d = geometry(cfg)
    eps, n_tok = cfg["rms_norm_eps"], len(ids)
    norm = lambda x, name: rms_norm(x, 1 + w(name), eps)
    rope = cfg.get("rope_parameters") or cfg
    freq, mscale = rope_frequencies(cfg, int(rope["partial_rotary_factor"] * d), n_ctx)
    x = w("model.embed_tokens.weight")[ids]
    for i, kind in enumerate(cfg["layer_types"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        if kind == "linear_attention":
            x = x + delta_net(cfg, w, p + "linear_attn.", h)
        else:
            q, gate = np.split(heads(linear(h, w(p + "self_attn.q_proj.weight")), n_heads), 2, axis=2)
            k, v = (heads(linear(h, w(p + f"self_attn.{n}_proj.weight")), n_kv) for n in "kv")
            q, k = norm(q, p + "self_attn.q_norm.weight"), norm(k, p + "self_attn.k_norm.weight")
            a = attention(rotate(q, freq, mscale), rotate(k, freq, mscale), v, 1 / math.sqrt(d))
            x = x + linear(a / (1 + np.exp(-gate.reshape(n_tok, -1))), w(p + "self_attn.o_proj.weight"))
        h = norm(x, p + "post_attention_layernorm.weight")
        x = x + feed_forward_next(cfg, w, p, h)
    if states:
        return norm(x, "model.norm.weight")
    return linear(norm(x, "model.norm.weight"), w("model.embed_tokens.weight" if cfg["tie_word_embeddings"] else "lm_head.weight"))


def guess_further(cfg, tensors, ids, last):
    """Qwen3.5's layer that guesses one token further, of the text ids[0..last + 1]: row i reads the embedding of token i + 1
    and the model's hidden state i behind its last norm, each normed, side by side through one projection; then comes a decoder
    layer that attends, a norm, and the model's output layer: logits of token last + 2. And those of token last + 3, where a
    row more reads token last + 2 beside the first guess's normed state."""
    w = lambda name: tensors[name].astype(np.float64) if name in tensors else None
    n_heads, n_kv, d = geometry(cfg)
    norm = lambda x, name: rms_norm(x, 1 + w(name), cfg["rms_norm_eps"])
    freq, mscale = rope_frequencies(cfg, int(cfg["rope_parameters"]["partial_rotary_factor"] * d), len(ids))
    states, out = forward_next(cfg, w, np.array(ids[: last + 1]), len(ids), states=True), []
    for n in (last + 1, last + 2):
        e = w("model.embed_tokens.weight")[np.array(ids[1 : n + 1])]
        both = np.concatenate([norm(e, "mtp.pre_fc_norm_embedding.weight"), norm(states, "mtp.pre_fc_norm_hidden.weight")], axis=1)
        x, p = linear(both, w("mtp.fc.weight")), "mtp.layers.0."
        h = norm(x, p + "input_layernorm.weight")
        q, gate = np.split(heads(linear(h, w(p + "self_attn.q_proj.weight")), n_heads), 2, axis=2)
        k, v = (heads(linear(h, w(p + f"self_attn.{m}_proj.weight")), n_kv) for m in "kv")
        q, k = norm(q, p + "self_attn.q_norm.weight"), norm(k, p + "self_attn.k_norm.weight")
        a = attention(rotate(q, freq, mscale), rotate(k, freq, mscale), v, 1 / math.sqrt(d))
        x = x + linear(a / (1 + np.exp(-gate.reshape(n, -1))), w(p + "self_attn.o_proj.weight"))
        h = norm(x, p + "post_attention_layernorm.weight")
        x = x + feed_forward_next(cfg, w, p, h)
        guess = norm(x, "mtp.norm.weight")[-1:]
        out.append(linear(guess, w("model.embed_tokens.weight" if cfg["tie_word_embeddings"] else "lm_head.weight"))[0])
        states = np.concatenate([states, guess])
    return out


def mamba2(cfg, w, p, x):
    """Mamba 2 as it is defined, token by token: one projection gives the gate, the values, keys (B), queries (C) and steps;
    values, keys and queries pass a causal convolution with a bias, and SiLU; the state of a head forgets at the rate
    exp(-exp(A_log) step), takes step times key by value, and is asked by the query; values pass by it (D); the gated result is
    normed, the heads that share keys together. Falcon-H1 multiplies the five parts of the projection, and may norm in front of
    the gate, or not at all."""
    n_h, n_s, n_g, n_tok = *(cfg["mamba_" + n] for n in ("n_heads", "d_state", "n_groups")), x.shape[0]
    d_h = w(p + "out_proj.weight").shape[1] // n_h
    inner, keys = n_h * d_h, n_g * n_s
    by = np.repeat(cfg.get("ssm_multipliers", [1.0] * 5), [inner, inner, keys, keys, n_h])
    row = linear(x * cfg.get("ssm_in_multiplier", 1.0), w(p + "in_proj.weight")) * by
    z, xbc, dt = np.split(row, [inner, 2 * inner + 2 * keys], axis=1)
    xbc = silu(causal_convolution(xbc, w(p + "conv1d.weight")[:, 0]) + w(p + "conv1d.bias"))
    v, key, query = np.split(xbc, [inner, inner + keys], axis=1)
    key, query = heads(key, n_g), heads(query, n_g)
    v, step = v.reshape(n_tok, n_h, d_h), np.log1p(np.exp(dt + w(p + "dt_bias")))
    decay = np.exp(-np.exp(w(p + "A_log")) * step)
    out = np.zeros_like(v)
    for h in range(n_h):
        state, g = np.zeros((d_h, n_s)), h // (n_h // n_g)
        for t in range(n_tok):
            state = decay[t, h] * state + step[t, h] * v[t, h][:, None] * key[t, g]
            out[t, h] = np.add.reduce(state * query[t, g], axis=1) + w(p + "D")[h] * v[t, h]
    y, first = out.reshape(n_tok, inner), cfg.get("mamba_norm_before_gate", False)
    norm = lambda y: rms_norm(heads(y, n_g), w(p + "norm.weight").reshape(n_g, -1), cfg["rms_norm_eps"]).reshape(n_tok, inner)
    if not cfg.get("mamba_rms_norm", True):
        y = y * silu(z)
    else:
        y = norm(y) * silu(z) if first else norm(y * silu(z))
    return linear(y, w(p + "out_proj.weight"))


def forward_falcon_h1(cfg, w, ids, n_ctx):
    """Falcon-H1: attention and Mamba 2 read one norm and are added together; multipliers of what linears read and give."""
    n_heads, n_kv, d = geometry(cfg)
    norm = lambda x, name: rms_norm(x, w(name), cfg["rms_norm_eps"])
    freq, mscale = rope_frequencies(cfg, d, n_ctx)
    x = w("model.embed_tokens.weight")[ids] * cfg["embedding_multiplier"]
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = (heads(linear(h * cfg["attention_in_multiplier"], w(p + f"self_attn.{n}_proj.weight")), m)
                   for n, m in zip("qkv", (n_heads, n_kv, n_kv)))
        k = k * cfg["key_multiplier"]
        a = attention(rotate(q, freq, mscale), rotate(k, freq, mscale), v, 1 / math.sqrt(d))
        a = linear(a, w(p + "self_attn.o_proj.weight")) * cfg["attention_out_multiplier"]
        x = x + a + mamba2(cfg, w, p + "mamba.", h) * cfg["ssm_out_multiplier"]
        h = norm(x, p + "pre_ff_layernorm.weight")
        gate, up = (linear(h, w(p + f"feed_forward.{n}_proj.weight")) for n in ("gate", "up"))
        h = linear(silu(gate * cfg["mlp_multipliers"][0]) * up, w(p + "feed_forward.down_proj.weight"))
        x = x + h * cfg["mlp_multipliers"][1]
    head = w("model.embed_tokens.weight" if cfg["tie_word_embeddings"] else "lm_head.weight")
    return linear(norm(x, "model.final_layernorm.weight"), head) * cfg["lm_head_multiplier"]


def forward_granite4(cfg, w, ids, n_ctx):
    """Granite 4: layers of Mamba 2 and of attention without rope; a feed-forward block, which is shared beside experts where
    there are some; Granite's multipliers."""
    n_heads, n_kv, d = geometry(cfg)
    norm = lambda x, name: rms_norm(x, w(name), cfg["rms_norm_eps"])
    freq, mscale = rope_frequencies(cfg, d, n_ctx)
    turn = (lambda a: rotate(a, freq, mscale)) if cfg["position_embedding_type"] == "rope" else (lambda a: a)
    x = w("model.embed_tokens.weight")[ids] * cfg["embedding_multiplier"]
    for i, kind in enumerate(cfg["layer_types"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        if kind == "mamba":
            a = mamba2(cfg, w, p + "mamba.", h)
        else:
            q, k, v = (heads(linear(h, w(p + f"self_attn.{n}_proj.weight")), m) for n, m in zip("qkv", (n_heads, n_kv, n_kv)))
            a = linear(attention(turn(q), turn(k), v, cfg["attention_multiplier"]), w(p + "self_attn.o_proj.weight"))
        x = x + cfg["residual_multiplier"] * a
        h = norm(x, p + "post_attention_layernorm.weight")
        gate, up = np.split(w(p + "shared_mlp.input_linear.weight"), 2)
        y = gated(h, gate, up, w(p + "shared_mlp.output_linear.weight"), silu)
        if cfg["num_local_experts"]:
            y = y + experts(cfg, w, p, h, silu)
        x = x + cfg["residual_multiplier"] * y
    return linear(norm(x, "model.norm.weight"), w("model.embed_tokens.weight")) / cfg["logits_scaling"]


def forward_lfm2(cfg, w, ids, n_ctx):
    """LFM2: most layers convolve: b, c, x from one projection; c times the causal convolution of b x, projected. The
    others attend with normed heads."""
    n_heads, n_kv, d = geometry(cfg)
    eps = cfg["norm_eps"]
    freq, mscale = rope_frequencies(cfg, d, n_ctx)
    x = w("model.embed_tokens.weight")[ids]
    for i, kind in enumerate(cfg["layer_types"]):
        p = f"model.layers.{i}."
        h = rms_norm(x, w(p + "operator_norm.weight"), eps)
        if kind == "conv":
            b, c, v = np.split(linear(h, w(p + "conv.in_proj.weight")), 3, axis=1)
            y = causal_convolution(b * v, w(p + "conv.conv.weight")[:, 0])
            x = x + linear(c * y, w(p + "conv.out_proj.weight"))
        else:
            q, k, v = (heads(linear(h, w(p + f"self_attn.{n}_proj.weight")), m) for n, m in zip("qkv", (n_heads, n_kv, n_kv)))
            q = rotate(rms_norm(q, w(p + "self_attn.q_layernorm.weight"), eps), freq, mscale)
            k = rotate(rms_norm(k, w(p + "self_attn.k_layernorm.weight"), eps), freq, mscale)
            x = x + linear(attention(q, k, v, 1 / math.sqrt(d)), w(p + "self_attn.out_proj.weight"))
        h = rms_norm(x, w(p + "ffn_norm.weight"), eps)
        if i < cfg.get("num_dense_layers", len(cfg["layer_types"])):
            x = x + gated(h, *(w(p + f"feed_forward.{n}.weight") for n in ("w1", "w3", "w2")), silu)
        else:
            x = x + experts_by_sigmoid(cfg, w, p + "feed_forward.", h)
    return linear(rms_norm(x, w("model.embedding_norm.weight"), eps), w("model.embed_tokens.weight"))


def experts_beside(cfg, w, p, x, act):
    """The experts of Gemma 4: the router reads the residual by a norm of its own, divided by the root of its size; a row's
    experts share the softmax of their scores, and each has a scale."""
    eps = cfg["rms_norm_eps"]
    scores = linear(rms_norm(x, w(p + "router.scale"), eps) / math.sqrt(cfg["hidden_size"]), w(p + "router.proj.weight"))
    h, y = rms_norm(x, w(p + "pre_feedforward_layernorm_2.weight"), eps), np.zeros_like(x)
    for t in range(x.shape[0]):
        chosen = np.argsort(-scores[t], kind="stable")[: cfg["top_k_experts"]]
        for e, share in zip(chosen, softmax(scores[t][chosen][None])[0]):
            gate, up = np.split(w(p + "experts.gate_up_proj")[e], 2)
            y[t] += share * w(p + "router.per_expert_scale")[e] * gated(h[t : t + 1], gate, up, w(p + "experts.down_proj")[e], act)[0]
    return rms_norm(y, w(p + "post_feedforward_layernorm_2.weight"), eps)


def gemma4_frequencies(rope, d):
    """Of a head of size d: a proportional rope leaves the last pairs as they are."""
    freq = rope["rope_theta"] ** (-np.arange(0, d, 2) / d)
    if rope["rope_type"] == "proportional":
        freq = np.where(np.arange(d // 2) < int(rope["partial_rotary_factor"] * d / 2), freq, 0)
    return freq


def gemma4_states(cfg, w, ids):
    """Gemma 4: what its output layer reads, and the keys and values that the last layers of either kind read. Layers with
    a window have heads of another size than the others; the last layers read the keys and values of the last layer before
    them that is of their kind; every layer adds, gated, what it takes of the token's embedding and of a second embedding of
    its own. Scores are not scaled: queries, keys and values are normed."""
    n, eps, act = cfg["num_hidden_layers"], cfg["rms_norm_eps"], ACTIVATIONS[cfg["hidden_activation"]]
    n_heads, ple = cfg["num_attention_heads"], cfg.get("hidden_size_per_layer_input") or 0
    norm = lambda x, name: rms_norm(x, w(name), eps)
    emb = w("model.embed_tokens.weight")[ids] * math.sqrt(cfg["hidden_size"])
    x, kept = emb, {}
    own = n - cfg.get("num_kv_shared_layers", 0)
    if ple:
        taken = linear(emb, w("model.per_layer_model_projection.weight")) * cfg["hidden_size"] ** -0.5
        taken = norm(taken.reshape(len(ids), n, ple), "model.per_layer_projection_norm.weight")
        second = w("model.embed_tokens_per_layer.weight")[ids].reshape(len(ids), n, ple) * math.sqrt(ple)
        layer_input = (taken + second) / math.sqrt(2)
    for i, kind in enumerate(cfg["layer_types"]):
        p, sliding = f"model.layers.{i}.", kind == "sliding_attention"
        rope = cfg["rope_parameters"][kind]
        d = cfg["head_dim"] if sliding else cfg["global_head_dim"]
        same = cfg.get("attention_k_eq_v", False) and not sliding
        n_kv = cfg["num_global_key_value_heads"] if same else cfg["num_key_value_heads"]
        freq = gemma4_frequencies(rope, d)
        h = norm(x, p + "input_layernorm.weight")
        q = rotate(norm(heads(linear(h, w(p + "self_attn.q_proj.weight")), n_heads), p + "self_attn.q_norm.weight"), freq, 1)
        if i < own:
            k = heads(linear(h, w(p + "self_attn.k_proj.weight")), n_kv)
            v = k if same else heads(linear(h, w(p + "self_attn.v_proj.weight")), n_kv)
            k = rotate(norm(k, p + "self_attn.k_norm.weight"), freq, 1)
            kept[kind] = k, rms_norm(v, 1.0, eps)
        a = attention(q, *kept[kind], 1.0, cfg["sliding_window"] if sliding else None)
        x = x + norm(linear(a, w(p + "self_attn.o_proj.weight")), p + "post_attention_layernorm.weight")
        h = norm(x, p + "pre_feedforward_layernorm.weight")
        h = gated(h, *(w(p + f"mlp.{m}_proj.weight") for m in ("gate", "up", "down")), act)
        if cfg["enable_moe_block"]:
            h = norm(h, p + "post_feedforward_layernorm_1.weight") + experts_beside(cfg, w, p, x, act)
        x = x + norm(h, p + "post_feedforward_layernorm.weight")
        if ple:
            h = act(linear(x, w(p + "per_layer_input_gate.weight"))) * layer_input[:, i]
            x = x + norm(linear(h, w(p + "per_layer_projection.weight")), p + "post_per_layer_input_norm.weight")
        x = x * w(p + "layer_scalar")
    return norm(x, "model.norm.weight"), kept


def forward_gemma4(cfg, w, ids, n_ctx):
    logits = linear(gemma4_states(cfg, w, ids)[0], w("model.embed_tokens.weight"))
    return soft_cap(logits, cfg.get("final_logit_softcapping"))


def deviations_above(share):
    """How many deviations above the mean of a normal distribution this share of it ends: by bisection."""
    low, high = 0.0, 40.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * math.erfc(-middle / math.sqrt(2)) < share else (low, middle)
    return low


def forward_gemma3n(cfg, w, ids, n_ctx):
    """Gemma 3n: several residual streams, of which a layer works on the first. What all will be behind it is predicted from
    what they are, and corrected by what the layer gave (AltUp); what the layer's first norm leaves goes by itself and
    through a product of low rank beside attention (Laurel); the first layers keep the largest gates; the last ones read the keys and
    values of earlier ones; and what a layer takes of the token's embedding and of a second one goes to the other streams."""
    n, eps, act, e = cfg["num_hidden_layers"], cfg["rms_norm_eps"], ACTIVATIONS[cfg["hidden_activation"]], cfg["hidden_size"]
    n_heads, n_kv, d = geometry(cfg)
    ple, n_s = cfg["hidden_size_per_layer_input"], cfg["altup_num_inputs"]
    norm = lambda x, name: rms_norm(x, w(name), eps)
    size = lambda x: np.sqrt(row_sum(x * x) / e)
    alike = lambda x, first: x * size(first) / np.sqrt(np.maximum(size(x) ** 2, 1e-5))
    emb, kept = w("model.embed_tokens.weight")[ids] * math.sqrt(e), {}
    taken = linear(emb, w("model.per_layer_model_projection.weight")) * e**-0.5
    taken = norm(taken.reshape(len(ids), n, ple), "model.per_layer_projection_norm.weight")
    second = w("model.embed_tokens_per_layer.weight")[ids].reshape(len(ids), n, ple) * math.sqrt(ple)
    layer_input = (taken + second) / math.sqrt(2)
    streams = [emb] + [alike(linear(emb, w(f"model.altup_projections.{i}.weight")), emb) for i in range(n_s - 1)]
    for i, kind in enumerate(cfg["layer_types"]):
        p, sliding = f"model.layers.{i}.", kind == "sliding_attention"
        scores = lambda x: np.tanh(linear(norm(x, p + "altup.router_norm.weight") / e, w(p + "altup.modality_router.weight")))
        c = linear(scores(streams[0]), w(p + "altup.prediction_coefs.weight")).reshape(-1, n_s, n_s)
        expected = [s + sum(c[:, j, k : k + 1] * streams[k] for k in range(n_s)) for j, s in enumerate(streams)]
        x = expected[0]
        h = norm(x, p + "input_layernorm.weight")
        laurel = linear(linear(h, w(p + "laurel.linear_left.weight")), w(p + "laurel.linear_right.weight"))
        laurel = h + norm(laurel, p + "laurel.post_laurel_norm.weight")
        freq = (cfg["rope_local_base_freq"] if sliding else cfg["rope_theta"]) ** (-np.arange(0, d, 2) / d)
        q = rotate(norm(heads(linear(h, w(p + "self_attn.q_proj.weight")), n_heads), p + "self_attn.q_norm.weight"), freq, 1)
        if i < n - cfg["num_kv_shared_layers"]:
            k, v = (heads(linear(h, w(p + f"self_attn.{m}_proj.weight")), n_kv) for m in "kv")
            kept[kind] = rotate(norm(k, p + "self_attn.k_norm.weight"), freq, 1), rms_norm(v, 1.0, eps)
        a = attention(q, *kept[kind], 1.0, cfg["sliding_window"] if sliding else None)
        a = norm(linear(a, w(p + "self_attn.o_proj.weight")), p + "post_attention_layernorm.weight")
        x = (x + a + laurel) / math.sqrt(2)
        h = norm(x, p + "pre_feedforward_layernorm.weight")
        gate, up = (linear(h, w(p + f"mlp.{m}_proj.weight")) for m in ("gate", "up"))
        if cfg["activation_sparsity_pattern"][i] > 0:
            mean = row_sum(gate) / gate.shape[1]
            deviation = np.sqrt(row_sum((gate - mean) ** 2) / gate.shape[1])
            gate = np.maximum(gate - mean - deviations_above(cfg["activation_sparsity_pattern"][i]) * deviation, 0)
        h = linear(act(gate) * up, w(p + "mlp.down_proj.weight"))
        x = x + norm(h, p + "post_feedforward_layernorm.weight")
        c = linear(scores(x), w(p + "altup.correction_coefs.weight")) + 1
        streams = [s + c[:, j : j + 1] * (x - expected[0]) for j, s in enumerate(expected)]
        h = act(linear(streams[0] * w(p + "altup.correct_output_scale"), w(p + "per_layer_input_gate.weight"))) * layer_input[:, i]
        h = norm(linear(h, w(p + "per_layer_projection.weight")), p + "post_per_layer_input_norm.weight")
        streams = [streams[0]] + [s + h for s in streams[1:]]
    left = [alike(linear(s, w(f"model.altup_unembed_projections.{i}.weight")), streams[0]) for i, s in enumerate(streams[1:])]
    x = sum(left, streams[0]) / n_s
    logits = linear(norm(x, "model.norm.weight"), w("model.embed_tokens.weight")[: cfg["vocab_size_per_layer_input"]])
    return soft_cap(logits, cfg.get("final_logit_softcapping"))


FORWARD = {
    "gemma3n_text": forward_gemma3n,
    "gemma4_text": forward_gemma4,
    "lfm2": forward_lfm2,
    "lfm2_moe": forward_lfm2,
    "granitemoehybrid": forward_granite4,
    "falcon_h1": forward_falcon_h1,
    "qwen3_next": forward_next,
    "qwen3_5_text": forward_next,
    "qwen3_5_moe_text": forward_next,
    **{f: forward_modern for f in (
        "gemma3_text", "smollm3", "olmo2", "olmo3", "exaone4", "hunyuan_v1_dense", "granite", "minicpm", "ministral3", *MIXTURES)},
    "llama": forward_llama_like,
    "mistral": forward_llama_like,
    "qwen2": forward_llama_like,
    "qwen3": forward_llama_like,
    "phonelm": forward_llama_like,
    "gemma": forward_gemma,
    "gemma2": forward_gemma,
    "phi": forward_phi,
    "phi3": forward_phi3,
}


def forward(cfg, tensors, ids, n_ctx):
    """Logits [T, V] of the tokens ids. n_ctx: context the session is opened for (it chooses longrope's factors)."""
    w = lambda name: tensors[name].astype(np.float64) if name in tensors else None
    return FORWARD[cfg["model_type"]](cfg, w, np.array(ids), n_ctx)


def perplexity(logits, ids):
    """exp of the mean of -log p(ids[t+1] | ids[..t]) over all t."""
    p = softmax(logits[:-1])[np.arange(len(ids) - 1), ids[1:]]
    return math.exp(-math.fsum(np.log(p)) / (len(ids) - 1))
