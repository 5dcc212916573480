"""The decoder that is trained: a Llama (RoPE rotate-half, RMSNorm, SwiGLU, grouped-query attention, tied embedding).

Parameters are kept in f32 under their Hugging Face names; a step runs on bf16 copies, because oneDNN multiplies bf16
several times faster than f32 on a CPU with bf16 instructions. The three element-wise pieces that autograd would
split into many memory passes (norm, SwiGLU, attention) are written as functions with their own backward.
"""
import math
import sys
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 4096
    d_model: int = 256
    n_layers: int = 6
    n_heads: int = 4
    n_kv_heads: int = 2
    d_head: int = 64
    d_ff: int = 768
    rope_theta: float = 10000.0
    eps: float = 1e-5
    max_ctx: int = 2048

    def dict(self):
        return asdict(self)


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        xf = x.float()
        r = torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, w, r)
        return (xf * r).mul_(w).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, w, r = ctx.saved_tensors
        xh = x.float() * r
        g = g.float()
        dw = (g * xh).sum(0)
        g = g * w
        m = (g * xh).mean(-1, keepdim=True)
        return g.sub_(xh.mul_(m)).mul_(r).to(x.dtype), dw, None


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gu):
        g, u = gu.chunk(2, -1)
        s = torch.sigmoid(g)  # kept: on a CPU it costs more than the multiplications
        ctx.save_for_backward(gu, s)
        return (g * s).mul_(u)

    @staticmethod
    def backward(ctx, d):
        gu, s = ctx.saved_tensors
        g, u = gu.chunk(2, -1)
        gs = g * s
        out = torch.empty_like(gu)
        n = g.shape[-1]
        torch.mul(d, gs, out=out[:, n:])
        # silu' = s + g s (1 - s)
        torch.mul(d.mul(u), gs.neg().add_(1).mul_(s).add_(gs), out=out[:, :n])
        return out


class Attention(torch.autograd.Function):
    """q [B,KV,G,T,D], k v [B,KV,T,D] -> [B,KV,G,T,D]; causal, by query blocks so that only the prefix is touched."""

    BLOCK = 256

    @staticmethod
    def forward(ctx, q, k, v):
        B, KV, G, T, D = q.shape
        c = 1.0 / math.sqrt(D)
        q = q * c
        out = torch.empty_like(q)
        bl = min(Attention.BLOCK, T)
        probs = []
        for t0 in range(0, T, bl):
            t1 = min(T, t0 + bl)
            n = t1 - t0
            s = torch.matmul(q[:, :, :, t0:t1].reshape(B, KV, G * n, D), k[:, :, :t1].transpose(2, 3))
            s = s.view(B, KV, G, n, t1)
            mask = torch.full((n, n), float("-inf"), dtype=s.dtype, device=s.device).triu_(1)
            s[..., t0:] += mask
            p = torch.softmax(s, -1)
            probs.append(p)
            out[:, :, :, t0:t1] = torch.matmul(p.view(B, KV, G * n, t1), v[:, :, :t1]).view(B, KV, G, n, D)
        ctx.save_for_backward(q, k, v, *probs)
        return out

    @staticmethod
    def backward(ctx, do):
        q, k, v, *probs = ctx.saved_tensors
        B, KV, G, T, D = q.shape
        c = 1.0 / math.sqrt(D)
        dq = torch.empty_like(q)
        dk = torch.zeros_like(k)
        dv = torch.zeros_like(v)
        bl = min(Attention.BLOCK, T)
        for i, t0 in enumerate(range(0, T, bl)):
            t1 = min(T, t0 + bl)
            n = t1 - t0
            p = probs[i]
            d = do[:, :, :, t0:t1].reshape(B, KV, G * n, D)
            dp = torch.matmul(d, v[:, :, :t1].transpose(2, 3)).view(B, KV, G, n, t1)
            ds = torch._softmax_backward_data(dp, p, -1, p.dtype).view(B, KV, G * n, t1)
            pf = p.view(B, KV, G * n, t1)
            dv[:, :, :t1] += torch.matmul(pf.transpose(2, 3), d)
            qb = q[:, :, :, t0:t1].reshape(B, KV, G * n, D)
            dk[:, :, :t1] += torch.matmul(ds.transpose(2, 3), qb)
            dq[:, :, :, t0:t1] = torch.matmul(ds, k[:, :, :t1]).mul_(c).view(B, KV, G, n, D)
        return dq, dk, dv


def rope_tables(cfg, n, device=None, turned=None):
    """cos and sin [n, turned] of the values of a head that turn (default: all)."""
    turned = turned or cfg.d_head
    inv = 1.0 / cfg.rope_theta ** (torch.arange(0, turned, 2, device=device).float() / turned)
    a = torch.outer(torch.arange(n, device=device).float(), inv)
    a = torch.cat([a, a], -1)
    return a.cos(), a.sin()


def rotate(x, cos, sin):
    """x [B,H,T,D]: the Hugging Face convention, halves rotated."""
    h = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., h:], x[..., :h]], -1) * sin


class Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return rotate(x, cos, sin)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return rotate(g, cos, -sin), None, None


def by_muon(name, w):
    """Whether Muon updates a tensor; Adam does the others."""
    return w.dim() == 2 and "embed" not in name


def init_params(cfg, seed):
    g = torch.Generator().manual_seed(seed)
    d, hd = cfg.d_model, cfg.d_head

    def lin(o, i, std):
        return torch.randn(o, i, generator=g) * std

    p = {"model.embed_tokens.weight": lin(cfg.vocab_size, d, 0.02)}
    s = 1.0 / math.sqrt(d)
    res = s / math.sqrt(2 * cfg.n_layers)
    for i in range(cfg.n_layers):
        n = f"model.layers.{i}."
        p[n + "input_layernorm.weight"] = torch.ones(d)
        p[n + "self_attn.q_proj.weight"] = lin(cfg.n_heads * hd, d, s)
        p[n + "self_attn.k_proj.weight"] = lin(cfg.n_kv_heads * hd, d, s)
        p[n + "self_attn.v_proj.weight"] = lin(cfg.n_kv_heads * hd, d, s)
        p[n + "self_attn.o_proj.weight"] = lin(d, cfg.n_heads * hd, res)
        p[n + "post_attention_layernorm.weight"] = torch.ones(d)
        p[n + "mlp.gate_proj.weight"] = lin(cfg.d_ff, d, s)
        p[n + "mlp.up_proj.weight"] = lin(cfg.d_ff, d, s)
        p[n + "mlp.down_proj.weight"] = lin(d, cfg.d_ff, res * math.sqrt(d / cfg.d_ff))
    p["model.norm.weight"] = torch.ones(d)
    for t in p.values():
        t.requires_grad_(True)
    return p


def forward(p, cfg, ids, dtype=torch.bfloat16, kv=None, pos0=0, trace=None, aux=None):
    """Hidden states after the last norm, [B*T, d]. kv: list of [k, v] per layer, extended in place (inference). aux: not used,
    for losses beside the mean one's (hybrid.py)."""
    B, T = ids.shape
    H, KV, D = cfg.n_heads, cfg.n_kv_heads, cfg.d_head
    cos, sin = rope_tables(cfg, pos0 + T, ids.device)
    cos, sin = cos[pos0:].to(dtype), sin[pos0:].to(dtype)

    def lin(x, *names):
        w = p[names[0]] if len(names) == 1 else torch.cat([p[n] for n in names])
        if trace is not None:
            x = trace(names, x)
        return F.linear(x, w.to(dtype))

    x = F.embedding(ids.reshape(-1), p["model.embed_tokens.weight"]).to(dtype)
    for i in range(cfg.n_layers):
        n = f"model.layers.{i}."
        h = RMSNorm.apply(x, p[n + "input_layernorm.weight"], cfg.eps)
        qkv = lin(h, n + "self_attn.q_proj.weight", n + "self_attn.k_proj.weight", n + "self_attn.v_proj.weight")
        qkv = qkv.view(B, T, H + 2 * KV, D).transpose(1, 2)
        qk = Rotate.apply(qkv[:, : H + KV], cos, sin)
        q, k, v = qk[:, :H], qk[:, H:], qkv[:, H + KV :]
        if kv is not None:
            if kv[i] is not None:
                k, v = torch.cat([kv[i][0], k], 2), torch.cat([kv[i][1], v], 2)
            kv[i] = (k, v)
        q = q.reshape(B, KV, H // KV, T, D)
        if T == 1:
            s = torch.matmul(q.squeeze(3), k.transpose(2, 3)).float() / math.sqrt(D)
            a = torch.matmul(torch.softmax(s, -1).to(dtype), v)
        else:
            assert pos0 == 0
            a = Attention.apply(q, k, v)
        a = a.reshape(B, H, T, D).transpose(1, 2).reshape(B * T, H * D)
        x = x + lin(a, n + "self_attn.o_proj.weight")
        h = RMSNorm.apply(x, p[n + "post_attention_layernorm.weight"], cfg.eps)
        gu = lin(h, n + "mlp.gate_proj.weight", n + "mlp.up_proj.weight")
        x = x + lin(SwiGLU.apply(gu), n + "mlp.down_proj.weight")
    return RMSNorm.apply(x, p["model.norm.weight"], cfg.eps)


class CrossEntropy(torch.autograd.Function):
    """Weighted sum of cross entropies of h W^T, the gradient made on the way: logits are never kept. h [N,d], w [V,d]"""

    CHUNK = 512

    @staticmethod
    def forward(ctx, h, w, targets, weights):
        dh, dw, total = torch.empty_like(h), torch.zeros_like(w, dtype=torch.float32), 0.0
        for i in range(0, h.shape[0], CrossEntropy.CHUNK):
            hc, t, wt = (x[i : i + CrossEntropy.CHUNK] for x in (h, targets, weights))
            p = F.linear(hc, w).float()
            p.sub_(p.amax(-1, keepdim=True))
            at = torch.arange(len(t), device=h.device)
            right = p[at, t]
            z = p.exp_().sum(-1)
            total = total + ((z.log() - right) * wt).sum()
            p.mul_((wt / z).unsqueeze(1))
            p[at, t] -= wt
            g = p.to(h.dtype)
            dh[i : i + CrossEntropy.CHUNK] = g @ w
            dw += g.t() @ hc
        ctx.save_for_backward(dh, dw)
        return total

    @staticmethod
    def backward(ctx, d):
        dh, dw = ctx.saved_tensors
        return dh * d.to(dh.dtype), dw * d, None, None


def loss_sum(p, h, targets, weights, dtype=torch.bfloat16):
    return CrossEntropy.apply(h, p["model.embed_tokens.weight"].to(dtype), targets, weights)


def hf_config(cfg):
    """What the folder's config.json says of the architecture."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0,
        "head_dim": cfg.d_head, "hidden_act": "silu", "hidden_size": cfg.d_model, "initializer_range": 0.02,
        "intermediate_size": cfg.d_ff, "max_position_embeddings": cfg.max_ctx, "mlp_bias": False, "num_attention_heads": cfg.n_heads,
        "num_hidden_layers": cfg.n_layers, "num_key_value_heads": cfg.n_kv_heads, "rms_norm_eps": cfg.eps,
        "rope_scaling": None, "rope_theta": cfg.rope_theta, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_cache": True, "vocab_size": cfg.vocab_size}


def read_hf_config(j):
    """The Config of a folder that hf_config described."""
    return Config(j["vocab_size"], j["hidden_size"], j["num_hidden_layers"], j["num_attention_heads"], j["num_key_value_heads"],
                  j["head_dim"], j["intermediate_size"], j["rope_theta"], j["rms_norm_eps"], j["max_position_embeddings"])


def module_of(cfg):
    """The module with init_params, forward and the rest of this Config's architecture."""
    return sys.modules[type(cfg).__module__]


def config_of(given):
    """The Config of what a checkpoint (kind) or an exported folder (model_type) says."""
    import hybrid

    if "model_type" in given:
        return (hybrid if given["model_type"] == hybrid.MODEL_TYPE else sys.modules[__name__]).read_hf_config(given)
    return (hybrid if given.get("kind") == "hybrid" else sys.modules[__name__]).Config(**given)


def unflatten(cfg, flat):
    """{name: view} of a checkpoint's flat tensor, in the order of init_params."""
    p, o = {}, 0
    for k, t in module_of(cfg).init_params(cfg, 0).items():
        p[k] = flat[o : o + t.numel()].view(t.shape)
        o += t.numel()
    return p
