"""inject_outliers.py for hybrids of gated delta nets, attention and experts (Qwen3.5-MoE folders): what scales may move.

  gain of a norm (stored as the gain less 1) * s    columns of its readers / s: the delta net's four projections or q, k, v;
                                                    the router, the shared expert's gate, gate and up of all experts
  row c of v * s                                    columns of o that read value channel c, in every query head of the group / s
  gain c of the delta net's norm * s                column c of out_proj in every head / s
  row c of an expert's up * s                       column c of its down / s; of the shared expert too
What passes a convolution and SiLU, or is normed behind its projection (q, k, the delta net's v), has no such place.
"""
import numpy as np

MODEL_TYPE = "qwen3_5_moe_text"
DELTA_IN = [f"linear_attn.in_proj_{n}.weight" for n in ("qkv", "z", "b", "a")]
ATTN_IN = [f"self_attn.{n}_proj.weight" for n in "qkv"]
MLP_IN = ["mlp.gate.weight", "mlp.shared_expert_gate.weight", "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight",
          "mlp.experts.gate_up_proj"]


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def rms(x, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def delta_net(cfg, w, n, h, see):
    nk, nv, dk, dv = (cfg[f"linear_{k}"] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    T, each, keys = len(h), nv // nk, nk * dk
    see(n + DELTA_IN[0], h)
    qkv, z, b, a = (h @ w[n + k].T for k in DELTA_IN)
    taps = w[n + "linear_attn.conv1d.weight"][:, 0]
    seen = np.concatenate([np.zeros((taps.shape[1] - 1, qkv.shape[1]), h.dtype), qkv])
    qkv = silu(sum(taps[:, k] * seen[k : k + T] for k in range(taps.shape[1])))
    q, k, v = np.split(qkv, [keys, 2 * keys], 1)

    def unit(x):
        x = x.reshape(T, nk, dk)
        return np.repeat(x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6), each, 1)

    q, k, v = unit(q) * dk**-0.5, unit(k), v.reshape(T, nv, dv)
    decay = np.exp(-np.exp(w[n + "linear_attn.A_log"]) * np.log1p(np.exp(a + w[n + "linear_attn.dt_bias"])))
    rate, state, out = sigmoid(b), np.zeros((nv, dk, dv), h.dtype), np.zeros_like(v)
    for t in range(T):
        state = state * decay[t, :, None, None]
        known = (state * k[t, :, :, None]).sum(1)
        state = state + k[t, :, :, None] * (rate[t, :, None] * (v[t] - known))[:, None]
        out[t] = (state * q[t, :, :, None]).sum(1)
    out = (rms(out, cfg["rms_norm_eps"]) * w[n + "linear_attn.norm.weight"] * silu(z.reshape(T, nv, dv))).reshape(T, -1)
    see(n + "linear_attn.out_proj.weight", out)
    return out @ w[n + "linear_attn.out_proj.weight"].T


def attention(cfg, w, n, h, see):
    H, KV, D, T, eps = cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["head_dim"], len(h), cfg["rms_norm_eps"]
    rope = cfg["rope_parameters"]
    half = int(rope["partial_rotary_factor"] * D) // 2
    a = np.outer(np.arange(T), rope["rope_theta"] ** (-np.arange(half) / half)).astype(h.dtype)[:, None]
    cos, sin = np.cos(a), np.sin(a)

    def turned(x, norm):
        x = rms(x, eps) * (1 + w[n + norm])
        l, r, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([l * cos - r * sin, r * cos + l * sin, rest], -1)

    see(n + ATTN_IN[0], h)
    q, k, v = (h @ w[n + p].T for p in ATTN_IN)
    q, gate = np.split(q.reshape(T, H, 2 * D), 2, -1)
    q, k, v = turned(q, "self_attn.q_norm.weight"), turned(k.reshape(T, KV, D), "self_attn.k_norm.weight"), v.reshape(T, KV, D)
    mask, out = np.triu(np.full((T, T), -np.inf, h.dtype), 1), np.zeros_like(q)
    for j in range(H):
        g = j // (H // KV)
        out[:, j] = softmax(q[:, j] @ k[:, g].T / np.sqrt(D).astype(h.dtype) + mask) @ v[:, g]
    out = (out * sigmoid(gate)).reshape(T, -1)
    see(n + "self_attn.o_proj.weight", out)
    return out @ w[n + "self_attn.o_proj.weight"].T


def mixture(cfg, w, n, h, see):
    see(n + MLP_IN[0], h)
    used, share = cfg["num_experts_per_tok"], softmax(h @ w[n + "mlp.gate.weight"].T)
    m = n + "mlp.shared_expert."
    x = silu(h @ w[m + "gate_proj.weight"].T) * (h @ w[m + "up_proj.weight"].T)
    see(m + "down_proj.weight", x)
    out = (x @ w[m + "down_proj.weight"].T) * sigmoid(h @ w[n + "mlp.shared_expert_gate.weight"].T)
    chosen = np.argsort(-share, 1, kind="stable")[:, :used]
    total = np.take_along_axis(share, chosen, 1).sum(1)
    for e in range(cfg["num_experts"]):
        rows = np.nonzero((chosen == e).any(1))[0]
        if len(rows):
            g, u = np.split(h[rows] @ w[n + "mlp.experts.gate_up_proj"][e].T, 2, 1)
            x = silu(g) * u
            see(n + f"mlp.experts.{e}", x)
            out[rows] += (share[rows, e] / total[rows])[:, None] * (x @ w[n + "mlp.experts.down_proj"][e].T)
    return out


def forward(cfg, w, ids, see=None):
    """Logits [T, V] of one sequence, in the type of the weights; see(name, x) is shown the inputs of every site."""
    see = see or (lambda name, x: None)
    x = w["model.embed_tokens.weight"][ids]

    def norm(x, g):
        return rms(x, cfg["rms_norm_eps"]) * (1 + w[g])

    for i, kind in enumerate(cfg["layer_types"]):
        n = f"model.layers.{i}."
        x = x + (delta_net if kind == "linear_attention" else attention)(cfg, w, n, norm(x, n + "input_layernorm.weight"), see)
        x = x + mixture(cfg, w, n, norm(x, n + "post_attention_layernorm.weight"), see)
    return norm(x, "model.norm.weight") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def variation(x):
    """Per channel: how much its largest tokens stand out (peak over root mean square)."""
    return np.abs(x).max(0) / np.sqrt((x * x).mean(0) + 1e-12)


def plan(cfg, w, ids, seed, strength):
    """[(layer, site, channel, scale)] with site in attn, mlp, value, delta, shared, or the number of an expert: as inject_outliers.plan."""
    rng, L, seen = np.random.default_rng(seed), cfg["num_hidden_layers"], {}
    forward(cfg, w, ids, lambda n, x: seen.__setitem__(n, x))
    delta = [k == "linear_attention" for k in cfg["layer_types"]]
    first = [f"model.layers.{i}." + (DELTA_IN if delta[i] else ATTN_IN)[0] for i in range(L)]
    hidden = sum(np.log(variation(seen[first[i]])) + np.log(variation(seen[f"model.layers.{i}.{MLP_IN[0]}"])) for i in range(L))
    pool, share, out = np.argsort(-hidden)[:4], np.array([8.0, 4.0, 2.0, 1.0]), []
    hd, group = cfg["head_dim"], cfg["num_attention_heads"] // cfg["num_key_value_heads"]
    for i in range(L):
        n, edge = f"model.layers.{i}.", i == 0 or i == L - 1
        s = strength * (4 if edge else 1)
        for site in ("attn", "mlp"):
            count = 3 if edge else int(rng.integers(1, 3))
            chosen = rng.choice(4, count, replace=False, p=share / share.sum())
            out += [(i, site, int(pool[c]), float(s / 2 ** min(rank, 2))) for rank, c in enumerate(sorted(chosen))]
        if delta[i]:
            x = variation(seen[n + "linear_attn.out_proj.weight"]).reshape(-1, cfg["linear_value_head_dim"]).max(0)
            out.append((i, "delta", int(np.argmax(x)), float(s / 4)))
        else:
            x = variation(seen[n + "self_attn.o_proj.weight"]).reshape(-1, group, hd).max(1).reshape(-1)
            out.append((i, "value", int(np.argmax(x)), float(s / 4)))
        for e in ["shared", *range(cfg["num_experts"])]:
            x = seen.get(n + ("mlp.shared_expert.down_proj.weight" if e == "shared" else f"mlp.experts.{e}"))
            if x is not None:
                out.append((i, e, int(np.argmax(variation(x) * np.abs(x).max(0))), float(s)))
    return out


def apply(cfg, w, steps):
    w = {k: v.copy() for k, v in w.items()}
    hd, group, dv = cfg["head_dim"], cfg["num_attention_heads"] // cfg["num_key_value_heads"], cfg["linear_value_head_dim"]
    for i, site, c, s in steps:
        assert s == 2.0 ** round(np.log2(s)), "scales are powers of two"
        n = f"model.layers.{i}."
        if site in ("attn", "mlp"):
            norm = n + ("input" if site == "attn" else "post_attention") + "_layernorm.weight"
            w[norm][c] = (1 + w[norm][c]) * s - 1
            readers = MLP_IN if site == "mlp" else DELTA_IN if cfg["layer_types"][i] == "linear_attention" else ATTN_IN
            for r in readers:
                w[n + r][..., c] /= s
        elif site == "value":
            kv, e = divmod(c, hd)
            w[n + "self_attn.v_proj.weight"][c] *= s
            for h in range(kv * group, kv * group + group):
                w[n + "self_attn.o_proj.weight"][:, h * hd + e] /= s
        elif site == "delta":
            w[n + "linear_attn.norm.weight"][c] *= s
            w[n + "linear_attn.out_proj.weight"][:, c::dv] /= s
        elif site == "shared":
            w[n + "mlp.shared_expert.up_proj.weight"][c] *= s
            w[n + "mlp.shared_expert.down_proj.weight"][:, c] /= s
        else:
            w[n + "mlp.experts.gate_up_proj"][site, cfg["moe_intermediate_size"] + c] *= s
            w[n + "mlp.experts.down_proj"][site][:, c] /= s
    return w
