"""The hybrid that is trained: three of four layers a gated delta net, the fourth attends, every feed-forward block a few
experts beside a shared one. It is the architecture of Qwen3.5-MoE, so that the exported folder opens like any of them.

The delta net is computed in the chunked form: within a chunk of CHUNK tokens the rows of a recurrence
    S_t = d_t S_{t-1} + k_t (b_t (v_t - (d_t S_{t-1})^T k_t))^T
are a triangular system, solved for all chunks and heads together; only the states between chunks wait for each other.
As in model.py the large products run on bf16 copies; what adds up over many tokens (decays, the system, states) is f32.
"""
import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

from model import Attention, RMSNorm, Rotate, SwiGLU, rope_tables

MODEL_TYPE = "qwen3_5_moe_text"
CHUNK = 32
BALANCE = 0.01  # share of the loss that keeps the experts in equal use


@dataclass
class Config:
    kind: str = "hybrid"
    vocab_size: int = 4096
    d_model: int = 128
    n_layers: int = 8
    attend_every: int = 4  # the last of so many layers attends
    n_heads: int = 4
    n_kv_heads: int = 2
    d_head: int = 32
    rotary: float = 0.25  # share of a head that turns
    delta_key_heads: int = 2
    delta_heads: int = 4
    delta_key: int = 32
    delta_value: int = 32
    taps: int = 4  # of the convolution in front of the delta net
    n_experts: int = 8
    n_used: int = 2
    d_expert: int = 64
    d_shared: int = 64
    rope_theta: float = 10000.0
    eps: float = 1e-6
    max_ctx: int = 2048

    def dict(self):
        return asdict(self)

    def attends(self, i):
        return (i + 1) % self.attend_every == 0


def init_params(cfg, seed):
    g = torch.Generator().manual_seed(seed)
    d, hd, L = cfg.d_model, cfg.d_head, cfg.n_layers

    def lin(*shape, std=None):
        return torch.randn(*shape, generator=g) * (std or 1 / math.sqrt(shape[-1]))

    p = {"model.embed_tokens.weight": lin(cfg.vocab_size, d, std=0.02)}
    res = 1 / math.sqrt(2 * L)
    keys, values = cfg.delta_key_heads * cfg.delta_key, cfg.delta_heads * cfg.delta_value
    for i in range(L):
        n = f"model.layers.{i}."
        p[n + "input_layernorm.weight"] = torch.zeros(d)  # norms multiply by 1 + weight
        p[n + "post_attention_layernorm.weight"] = torch.zeros(d)
        if cfg.attends(i):
            a = n + "self_attn."
            p[a + "q_proj.weight"] = lin(2 * cfg.n_heads * hd, d)  # of every head its query and its gate
            p[a + "k_proj.weight"] = lin(cfg.n_kv_heads * hd, d)
            p[a + "v_proj.weight"] = lin(cfg.n_kv_heads * hd, d)
            p[a + "o_proj.weight"] = lin(d, cfg.n_heads * hd) * res
            p[a + "q_norm.weight"] = torch.zeros(hd)
            p[a + "k_norm.weight"] = torch.zeros(hd)
        else:
            a = n + "linear_attn."
            p[a + "in_proj_qkv.weight"] = lin(2 * keys + values, d)
            p[a + "in_proj_z.weight"] = lin(values, d)
            p[a + "in_proj_b.weight"] = lin(cfg.delta_heads, d)
            p[a + "in_proj_a.weight"] = lin(cfg.delta_heads, d)
            p[a + "conv1d.weight"] = lin(2 * keys + values, 1, cfg.taps)
            # heads that forget over 1 to about 100 tokens to begin with
            p[a + "A_log"] = torch.linspace(0, math.log(16), cfg.delta_heads)
            p[a + "dt_bias"] = torch.full((cfg.delta_heads,), math.log(math.expm1(0.02)))
            p[a + "norm.weight"] = torch.ones(cfg.delta_value)  # this one multiplies as it is
            p[a + "out_proj.weight"] = lin(d, values) * res
        p[n + "mlp.gate.weight"] = lin(cfg.n_experts, d)
        p[n + "mlp.experts.gate_up_proj"] = lin(cfg.n_experts, 2 * cfg.d_expert, d)
        p[n + "mlp.experts.down_proj"] = lin(cfg.n_experts, d, cfg.d_expert) * res
        p[n + "mlp.shared_expert_gate.weight"] = lin(1, d)
        for k in ("gate", "up"):
            p[n + f"mlp.shared_expert.{k}_proj.weight"] = lin(cfg.d_shared, d)
        p[n + "mlp.shared_expert.down_proj.weight"] = lin(d, cfg.d_shared) * res
    p["model.norm.weight"] = torch.zeros(d)
    for t in p.values():
        t.requires_grad_(True)
    return p


def by_muon(name, w):
    """Matrices, and experts' stacks of them. What feeds a sigmoid or a softmax by a few rows is left to Adam."""
    small = ("embed", "mlp.gate.", "expert_gate", "in_proj_a", "in_proj_b", "conv1d")
    return w.dim() >= 2 and not any(s in name for s in small)


class Inverse(torch.autograd.Function):
    """(I + L)^-1 of strictly lower triangular L [..., C, C], by (I - L)(I + L^2)(I + L^4)..., which ends at L^C = 0."""

    @staticmethod
    def forward(ctx, low):
        eye = torch.eye(low.shape[-1], dtype=low.dtype, device=low.device)
        inv, power, n = eye - low, low, 2
        while n < low.shape[-1]:
            power = power @ power
            inv = inv @ (eye + power)
            n *= 2
        ctx.save_for_backward(inv)
        return inv

    @staticmethod
    def backward(ctx, g):
        (inv,) = ctx.saved_tensors
        t = inv.transpose(-1, -2)
        return (t @ g @ t).neg_().tril_(-1)


def delta_rule(q, k, v, log_decay, rate, dtype=torch.float32):
    """q, k [B,H,T,K], v [B,H,T,V], log_decay, rate [B,H,T], all f32 -> what the queries find, [B,H,T,V]; states begin at 0.
    Products other than those of the triangular system multiply in dtype; everything adds up in f32."""
    B, H, T, K = q.shape
    V, n = v.shape[-1], -(-T // CHUNK)
    pad = n * CHUNK - T
    if pad:  # rows behind the text: rate 0 puts nothing in
        q, k, v = (F.pad(t, (0, 0, 0, pad)) for t in (q, k, v))
        log_decay, rate = F.pad(log_decay, (0, pad)), F.pad(rate, (0, pad))

    def mm(a, b):
        return torch.matmul(a.to(dtype), b.to(dtype)).float()

    q, k, v = (t.reshape(B * H, n, CHUNK, -1) for t in (q, k, v))
    total = log_decay.reshape(B * H, n, CHUNK).cumsum(-1)  # log of what is left of a state from before the chunk
    rate = rate.reshape(B * H, n, CHUNK, 1)
    grown = total.exp().unsqueeze(-1)
    # between two rows of a chunk; the mask goes in before exp, which would overflow above the diagonal
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu_(1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(future, float("-inf")).exp()
    kt = k.transpose(-1, -2)
    solved = Inverse.apply((mm(k, kt) * (rate * between)).tril(-1))
    new, known = mm(solved, torch.cat([v * rate, k * (rate * grown)], -1)).split([V, K], -1)
    scores = (mm(q, kt) * between).to(dtype)
    last = total[..., -1:]
    kt = (k * (last - total).exp().unsqueeze(-1)).transpose(-1, -2).to(dtype)
    left = last.exp().unsqueeze(-1)
    reads = torch.cat([known, q * grown], -2).to(dtype)  # of the state: what its keys know, what the queries find
    state, out = torch.zeros(B * H, K, V, dtype=q.dtype, device=q.device), []
    for now, scores, reads, kt, left in zip(*(t.unbind(1) for t in (new, scores, reads, kt, left))):
        known, found = mm(reads, state).split(CHUNK, -2)
        added = now - known
        out.append(found + mm(scores, added))
        state = state * left + mm(kt, added)
    return torch.stack(out, 1).reshape(B, H, n * CHUNK, V)[:, :, :T]


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def delta_net(p, a, cfg, x, B, T, lin, dtype):
    nk, nv, dk, dv = cfg.delta_key_heads, cfg.delta_heads, cfg.delta_key, cfg.delta_value
    keys, values = nk * dk, nv * dv
    mixed = lin(x, *(a + f"in_proj_{n}.weight" for n in ("qkv", "z", "b", "a")))
    qkv, z, b, s = mixed.split([2 * keys + values, values, nv, nv], -1)
    qkv = qkv.view(B, T, -1).transpose(1, 2)
    taps = p[a + "conv1d.weight"]
    qkv = F.silu(F.conv1d(F.pad(qkv.float(), (cfg.taps - 1, 0)), taps, groups=taps.shape[0]))
    q, k, v = qkv.split([keys, keys, values], 1)
    q, k = (unit(t.reshape(B, nk, dk, T).transpose(2, 3)).repeat_interleave(nv // nk, 1) for t in (q, k))
    v = v.reshape(B, nv, dv, T).transpose(2, 3)
    rate = torch.sigmoid(b.float()).view(B, T, nv).transpose(1, 2)
    s = s.float().view(B, T, nv).transpose(1, 2)
    log_decay = -p[a + "A_log"].exp().view(1, -1, 1) * F.softplus(s + p[a + "dt_bias"].view(1, -1, 1))
    o = delta_rule(q * dk**-0.5, k, v, log_decay, rate, dtype).transpose(1, 2).reshape(B * T * nv, dv)
    o = RMSNorm.apply(o, p[a + "norm.weight"], cfg.eps).to(dtype) * F.silu(z.reshape(B * T * nv, dv))
    return lin(o.reshape(B * T, values), a + "out_proj.weight")


def attention(p, a, cfg, x, B, T, lin, cos, sin):
    H, KV, D = cfg.n_heads, cfg.n_kv_heads, cfg.d_head
    q, k, v = lin(x, *(a + f"{n}_proj.weight" for n in "qkv")).split([2 * H * D, KV * D, KV * D], -1)
    q, gate = q.reshape(B * T, H, 2 * D).split(D, -1)

    def head(t, name):
        n = t.numel() // (B * T * D)
        t = RMSNorm.apply(t.reshape(-1, D), 1 + p[a + name], cfg.eps).view(B, T, n, D).transpose(1, 2)
        r = cos.shape[-1]
        return torch.cat([Rotate.apply(t[..., :r], cos, sin), t[..., r:]], -1)

    q, k = head(q, "q_norm.weight"), head(k, "k_norm.weight")
    v = v.reshape(B, T, KV, D).transpose(1, 2)
    o = Attention.apply(q.reshape(B, KV, H // KV, T, D), k, v).reshape(B, H, T, D).transpose(1, 2)
    return lin((o.reshape(B * T, H, D) * torch.sigmoid(gate)).reshape(B * T, H * D), a + "o_proj.weight")


def experts(p, m, cfg, x, lin, aux):
    """The shared expert by its gate, and of every row its n_used experts by their shares of the chosen ones' softmax."""
    gates = lin(x, m + "gate.weight", m + "shared_expert_gate.weight").float()
    share = torch.softmax(gates[:, :-1], -1)
    weight, chosen = share.topk(cfg.n_used, -1)
    weight = weight / weight.sum(-1, keepdim=True)
    gu = lin(x, m + "shared_expert.gate_proj.weight", m + "shared_expert.up_proj.weight")
    out = lin(SwiGLU.apply(gu), m + "shared_expert.down_proj.weight").float() * torch.sigmoid(gates[:, -1:])
    order = chosen.reshape(-1).argsort(stable=True)
    counts = torch.bincount(chosen.reshape(-1), minlength=cfg.n_experts)
    rows = order.div(cfg.n_used, rounding_mode="floor")
    parts, of = [], x[rows].split(counts.tolist())
    for e in range(cfg.n_experts):
        gu = lin(of[e], (m + "experts.gate_up_proj", e))
        parts.append(lin(SwiGLU.apply(gu), (m + "experts.down_proj", e)))
    out = out.index_add(0, rows, torch.cat(parts).float() * weight.reshape(-1)[order].unsqueeze(-1))
    if aux is not None:  # Switch Transformers (Fedus et al. 2021), equation 4
        aux.append(BALANCE / cfg.n_layers * cfg.n_experts * (share.mean(0) * counts / counts.sum()).sum())
    return out.to(x.dtype)


def forward(p, cfg, ids, dtype=torch.bfloat16, trace=None, aux=None):
    """Hidden states after the last norm, [B*T, d]. trace(names, x) may change the input of the linears named; aux, a list,
    gets what keeps every layer's experts in balance, to be added to the mean loss."""
    B, T = ids.shape

    def weight(n):
        return p[n[0]][n[1]] if isinstance(n, tuple) else p[n]

    def lin(x, *names):
        w = weight(names[0]) if len(names) == 1 else torch.cat([weight(n) for n in names])
        if trace is not None:
            x = trace(names, x)
        return F.linear(x, w.to(dtype))

    def norm(x, name):
        return RMSNorm.apply(x, 1 + p[name], cfg.eps)

    turned = int(cfg.d_head * cfg.rotary)
    cos, sin = rope_tables(cfg, T, ids.device, turned)
    cos, sin = cos.to(dtype), sin.to(dtype)
    x = F.embedding(ids.reshape(-1), p["model.embed_tokens.weight"]).to(dtype)
    for i in range(cfg.n_layers):
        n = f"model.layers.{i}."
        h = norm(x, n + "input_layernorm.weight")
        if cfg.attends(i):
            x = x + attention(p, n + "self_attn.", cfg, h, B, T, lin, cos, sin)
        else:
            x = x + delta_net(p, n + "linear_attn.", cfg, h, B, T, lin, dtype)
        x = x + experts(p, n + "mlp.", cfg, norm(x, n + "post_attention_layernorm.weight"), lin, aux)
    return norm(x, "model.norm.weight")


def hf_config(cfg):
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": MODEL_TYPE, "attention_bias": False, "attention_dropout": 0.0,
        "attn_output_gate": True, "full_attention_interval": cfg.attend_every, "head_dim": cfg.d_head, "hidden_act": "silu",
        "hidden_size": cfg.d_model, "initializer_range": 0.02,
        "layer_types": ["full_attention" if cfg.attends(i) else "linear_attention" for i in range(cfg.n_layers)],
        "linear_conv_kernel_dim": cfg.taps, "linear_key_head_dim": cfg.delta_key, "linear_num_key_heads": cfg.delta_key_heads,
        "linear_num_value_heads": cfg.delta_heads, "linear_value_head_dim": cfg.delta_value, "max_position_embeddings": cfg.max_ctx,
        "moe_intermediate_size": cfg.d_expert, "num_attention_heads": cfg.n_heads, "num_experts": cfg.n_experts,
        "num_experts_per_tok": cfg.n_used, "num_hidden_layers": cfg.n_layers, "num_key_value_heads": cfg.n_kv_heads,
        "rms_norm_eps": cfg.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": cfg.rope_theta, "partial_rotary_factor": cfg.rotary},
        "shared_expert_intermediate_size": cfg.d_shared, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
        "vocab_size": cfg.vocab_size}


def read_hf_config(j):
    """The Config of a folder that hf_config described."""
    rope = j["rope_parameters"]
    return Config(
        vocab_size=j["vocab_size"], d_model=j["hidden_size"], n_layers=j["num_hidden_layers"], attend_every=j["full_attention_interval"],
        n_heads=j["num_attention_heads"], n_kv_heads=j["num_key_value_heads"], d_head=j["head_dim"], rotary=rope["partial_rotary_factor"],
        delta_key_heads=j["linear_num_key_heads"], delta_heads=j["linear_num_value_heads"], delta_key=j["linear_key_head_dim"],
        delta_value=j["linear_value_head_dim"], taps=j["linear_conv_kernel_dim"], n_experts=j["num_experts"],
        n_used=j["num_experts_per_tok"], d_expert=j["moe_intermediate_size"], d_shared=j["shared_expert_intermediate_size"],
        rope_theta=rope["rope_theta"], eps=j["rms_norm_eps"], max_ctx=j["max_position_embeddings"])
