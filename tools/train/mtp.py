#!/usr/bin/env python3
"""Train one layer that guesses one token further (MTP) on a frozen dense model: mtp.py MODEL_FOLDER TEXT_FOLDER OUT_FOLDER

The layer reads the embedding of a token beside the last hidden state in front of it, each normed, through one projection;
then comes a decoder layer like the model's, a norm, and the model's own output layer. It learns the model's distributions,
two guesses deep: the second guess reads the hidden state of the first. OUT_FOLDER is the model's folder with the layer in
it. --minutes bounds the run; it saves as it goes.
"""
import argparse
import json
import math
import os
import shutil
import time

import torch
import torch.nn.functional as F

import model as M
import safetensors
from bpe import Tokenizer
from data import English
from train import Stream, orthogonalize

LAYER = ("input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
         "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def begin(p, cfg, seed):
    """The decoder layer begins as the model's last one, the projection lets token and state through in equal parts."""
    g = torch.Generator().manual_seed(seed)
    d = cfg.d_model
    q = {f"layers.0.{n}.weight": p[f"model.layers.{cfg.n_layers - 1}.{n}.weight"].clone() for n in LAYER}
    q["fc.weight"] = torch.randn(d, 2 * d, generator=g) * 0.02 + 0.5 * torch.cat([torch.eye(d)] * 2, 1)
    for n in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        q[f"{n}.weight"] = torch.ones(d)
    return {k: v.requires_grad_() for k, v in q.items()}


def norm(x, w, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def layer(p, q, cfg, ids, h, cos, sin):
    """Normed states behind the layer of rows that read the states h [B, T, d] and the tokens ids behind them."""
    B, T = ids.shape
    e = F.embedding(ids, p["model.embed_tokens.weight"])
    x = F.linear(torch.cat([norm(e, q["pre_fc_norm_embedding.weight"], cfg.eps), norm(h, q["pre_fc_norm_hidden.weight"], cfg.eps)], -1),
                 q["fc.weight"])
    w = lambda n: q[f"layers.0.{n}.weight"]
    a = norm(x, w("input_layernorm"), cfg.eps)
    heads = lambda n, k: F.linear(a, w(f"self_attn.{n}_proj")).view(B, T, k, cfg.d_head).transpose(1, 2)
    k, v = heads("k", cfg.n_kv_heads), heads("v", cfg.n_kv_heads)
    turn = lambda t: t * cos + torch.cat([-t[..., cfg.d_head // 2:], t[..., :cfg.d_head // 2]], -1) * sin
    each = cfg.n_heads // cfg.n_kv_heads
    k, v = turn(k).repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    s = turn(heads("q", cfg.n_heads)) @ k.transpose(2, 3) / math.sqrt(cfg.d_head)
    s = s + torch.full((T, T), float("-inf")).triu(1)
    x = x + F.linear((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1), w("self_attn.o_proj"))
    m = norm(x, w("post_attention_layernorm"), cfg.eps)
    x = x + F.linear(F.silu(F.linear(m, w("mlp.gate_proj"))) * F.linear(m, w("mlp.up_proj")), w("mlp.down_proj"))
    return norm(x, q["norm.weight"], cfg.eps)


def save(folder, given, p, q):
    os.makedirs(folder, exist_ok=True)
    for n in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(f"{given}/{n}", folder)
    c = json.load(open(f"{given}/config.json"))
    json.dump({**c, "mtp_num_hidden_layers": 1}, open(f"{folder}/config.json", "w"), indent=2)
    safetensors.write(f"{folder}/model.safetensors",
                      {**{k: v.numpy() for k, v in p.items()}, **{f"mtp.{k}": v.detach().numpy() for k, v in q.items()}})


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model"), ap.add_argument("text"), ap.add_argument("out")
    ap.add_argument("--minutes", type=float, default=30)
    ap.add_argument("--rows", type=int, default=6)
    ap.add_argument("--ctx", type=int, default=256)
    ap.add_argument("--qa", type=int, default=4, help="questions about one document")
    ap.add_argument("--english", type=float, default=1.0, help="as in the stages of train.py")
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(1)
    cfg = M.config_of(M.read_hf_config(json.load(open(f"{a.model}/config.json"))).dict())
    p = {k: torch.from_numpy(v) for k, v in safetensors.read(f"{a.model}/model.safetensors").items()}
    q = begin(p, cfg, a.seed)
    stream = Stream(Tokenizer.load(f"{a.model}/tokenizer.json"), English(a.text), a.seed)
    lengths = [n for n in (60, 100, 160, 250, 350, 500) if n < a.ctx]
    stage = {"ctx": a.ctx, "lengths": lengths, "qa": a.qa, "english": a.english, "drill": 0.05}
    freq = cfg.rope_theta ** (-torch.arange(0, cfg.d_head, 2) / cfg.d_head)
    angle = torch.arange(a.ctx - 1)[:, None] * torch.cat([freq, freq])
    matrices = [v for v in q.values() if v.dim() == 2]
    opt = torch.optim.Adam([v for v in q.values() if v.dim() == 1], lr=a.lr / 10, betas=(0.9, 0.95))
    momentum = [torch.zeros_like(v) for v in matrices]
    t0, step, saved = time.time(), 0, time.time()
    while (done := (time.time() - t0) / 60 / a.minutes) < 1:
        ids, _, weight = stream.batch(stage, a.rows * a.ctx, "cpu")
        B, T = ids.shape
        weight = weight.view(B, T)
        with torch.no_grad():
            h = M.forward(p, cfg, ids).view(B, T, -1).float()
            truth = F.softmax(F.linear(h, p["model.embed_tokens.weight"]), -1)
        n = T - 1
        state, loss, right = h[:, :n], 0, []
        for depth in range(2):
            cut = slice(0, n - depth)
            state = layer(p, q, cfg, ids[:, 1 + depth:], state[:, cut], angle.cos()[cut], angle.sin()[cut])
            logits = F.linear(state, p["model.embed_tokens.weight"])
            want = truth[:, 1 + depth:]
            w = weight[:, 1 + depth:] / weight[:, 1 + depth:].sum()
            loss = loss + (1, 0.5)[depth] * -((want * F.log_softmax(logits, -1)).sum(-1) * w).sum()
            right.append(((logits.argmax(-1) == want.argmax(-1)) * w).sum().item())
        share = min(1, (step + 1) / 10) * (0.05 + 0.95 * (1 - done))
        opt.param_groups[0]["lr"] = share * a.lr / 10
        opt.zero_grad()
        for v in matrices:
            v.grad = None
        loss.backward()
        opt.step()
        with torch.no_grad():  # Muon: steps of one size in every direction
            for v, m in zip(matrices, momentum):
                m.mul_(0.9).add_(v.grad)
                v -= share * a.lr * max(1, v.shape[0] / v.shape[1]) ** 0.5 * orthogonalize(v.grad + 0.9 * m).float()
        step += 1
        if step % 20 == 1:
            print(f"{step} {time.time() - t0:.0f} s, {step * B * T} tokens: loss {loss.item():.3f}, as the model {right[0]:.3f} {right[1]:.3f}", flush=True)
        if time.time() - saved > 120:
            save(a.out, a.model, p, q)
            saved = time.time()
    save(a.out, a.model, p, q)
    print(f"{a.out}: {sum(v.numel() for v in q.values())} parameters, {step} steps, {step * B * T} tokens")


if __name__ == "__main__":
    main()
