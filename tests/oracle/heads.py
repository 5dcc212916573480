"""Heads that draft for a model (EAGLE-3) for the oracle: a model of Llama's kind, heads for it in the forms that folders and GGUF
files have, and the logits of the first two drafts after every place of a text, in float64 from the published definition."""
import json
import math

import numpy as np

from files import GGUF_NAMES, Stored, gguf_from_hf, interleave_pairs, write_gguf, write_hf_folder
from reference import attention, gated, geometry, heads, linear, rms_norm, rope_frequencies, rotate, silu

N_LAYERS, N_TOK, N_VOCAB, WIDTH = 6, 40, 48, 32
MODEL = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=N_VOCAB, hidden_size=WIDTH, intermediate_size=48,
    num_hidden_layers=N_LAYERS, num_attention_heads=4, num_key_value_heads=2, hidden_act="silu", max_position_embeddings=64,
    rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
)
# Of each: its layer, what its configuration says beside that, and what it has.
LAYER = dict(
    model_type="llama", vocab_size=N_VOCAB, hidden_size=WIDTH, intermediate_size=56, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, hidden_act="silu", max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=20000.0, tie_word_embeddings=False,
)
HEADS = {
    # as SafeAILab's folders are: few tokens, the model's embedding, the usual layers
    "eagle3": dict(layer=LAYER, layers=[2, N_LAYERS // 2, N_LAYERS - 3], said=False, n_draft=20, embd=False, out=True, residual=False,
                   norm_in=False),
    # as speculators' are: the configuration of the layer apart; wider than the model, with an embedding of its own, all tokens
    "eagle3-wide": dict(layer={**LAYER, "hidden_size": 40, "head_dim": 16, "rms_norm_eps": 1e-6}, layers=[1, 3, 5], said=True,
                        n_draft=N_VOCAB, embd=True, out=True, residual=True, norm_in=True),
    # the model's embedding and output layer
    "eagle3-bare": dict(layer=LAYER, layers=[1, 2, 4], said=True, n_draft=N_VOCAB, embd=False, out=False, residual=False, norm_in=False),
}


class Numbers:
    """A tensor of whole numbers."""

    dtype = "I64"

    def __init__(self, values):
        self.values = np.asarray(values, dtype=np.int64)

    def bytes(self):
        return self.values.astype("<i8").tobytes()


def weights(out, name, uniform, dtype):
    """Two functions that add random tensors of this type to out: a linear's, and a norm's."""

    def matrix(key, rows, cols, gain=1.0):
        out[key + ".weight"] = Stored(uniform(name + key, (rows, cols)) * gain * (3 / cols) ** 0.5, dtype)

    def vector(key, n):
        out[key + ".weight"] = Stored(np.round((1 + 0.5 * uniform(name + key, (n,))) * 128) / 128, dtype)

    return matrix, vector


def words(n):
    """A vocabulary of n letters."""
    letters = ["<unk>", "<s>", "</s>", "\u2581", ".", ","] + [chr(ord("a") + i) for i in range(26)] + [chr(ord("A") + i) for i in range(26)]
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": letters[:n], "tokenizer.ggml.scores": [0.0] * n,
            "tokenizer.ggml.token_type": [2, 3, 3] + [1] * (n - 3), "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}


def write_vectors(folder, ids, positions, rows, known=None):
    """rows: of each position, the logits of its drafts. known: the tokens that a head knows."""
    lines = ",\n    ".join(json.dumps(row) for row in rows)
    listed = "" if known is None else f'  "known": {json.dumps(known)},\n'
    (folder / "vectors.json").write_text(
        f'{{\n  "tokens": {json.dumps(ids)},\n{listed}  "positions": {json.dumps(positions)},\n  "further": [\n    {lines}\n  ]\n}}\n'
    )


def model(uniform):
    c, f, d, out = WIDTH, MODEL["intermediate_size"], WIDTH // 4, {}
    matrix, vector = weights(out, "heads-model", uniform, "F32")
    matrix("model.embed_tokens", N_VOCAB, c, c**0.5 / 2)
    for i in range(N_LAYERS):
        p = f"model.layers.{i}."
        for n, rows in (("q_proj", 4 * d), ("k_proj", 2 * d), ("v_proj", 2 * d), ("o_proj", c)):
            matrix(p + "self_attn." + n, rows, c, 1.5)
        matrix(p + "mlp.gate_proj", f, c, 1.5)
        matrix(p + "mlp.up_proj", f, c, 1.5)
        matrix(p + "mlp.down_proj", c, f)
        vector(p + "input_layernorm", c)
        vector(p + "post_attention_layernorm", c)
    vector("model.norm", c)
    matrix("lm_head", N_VOCAB, c)
    return out


def head(name, h, uniform):
    cfg, out = h["layer"], {}
    n_heads, n_kv, d = geometry(cfg)
    c, f = cfg["hidden_size"], cfg["intermediate_size"]
    p = "layers.0." if h["embd"] else "midlayer."
    matrix, vector = weights(out, name, uniform, "F32")

    matrix("fc", c, 3 * WIDTH, 1.5)
    if h["norm_in"]:
        vector("input_norm", 3 * WIDTH)
    if h["embd"]:
        matrix("embed_tokens", N_VOCAB, c, c**0.5 / 2)
    for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        vector(p + n, c)
    for n, rows in (("q_proj", n_heads * d), ("k_proj", n_kv * d), ("v_proj", n_kv * d)):
        matrix(p + "self_attn." + n, rows, 2 * c, 1.5)
    matrix(p + "self_attn.o_proj", c, n_heads * d, 2.0)
    matrix(p + "mlp.gate_proj", f, c, 1.5)
    matrix(p + "mlp.up_proj", f, c, 1.5)
    matrix(p + "mlp.down_proj", c, f)
    vector("norm", c)
    if h["out"]:
        matrix("lm_head", h["n_draft"], c)
    return out


def tokens_of(h, uniform):
    """Those that the head's output layer knows, ascending."""
    order = np.argsort(uniform("heads-d2t", (N_VOCAB,)), kind="stable")
    return np.sort(order[: h["n_draft"]])


def inputs(w, layers, ids):
    """What these layers of the model are given, side by side."""
    n_heads, n_kv, d = geometry(MODEL)
    freq, mscale = rope_frequencies(MODEL, d, len(ids))
    x, taken = w("model.embed_tokens.weight")[ids], {}
    for i in range(N_LAYERS):
        taken[i], p = x, f"model.layers.{i}."
        h = rms_norm(x, w(p + "input_layernorm.weight"), MODEL["rms_norm_eps"])
        q, k, v = (heads(linear(h, w(p + f"self_attn.{n}_proj.weight")), m) for n, m in (("q", n_heads), ("k", n_kv), ("v", n_kv)))
        x = x + linear(attention(rotate(q, freq, mscale), rotate(k, freq, mscale), v, 1 / math.sqrt(d)), w(p + "self_attn.o_proj.weight"))
        h = rms_norm(x, w(p + "post_attention_layernorm.weight"), MODEL["rms_norm_eps"])
        x = x + gated(h, *(w(p + f"mlp.{n}_proj.weight") for n in ("gate", "up", "down")), silu)
    return np.concatenate([taken[i] for i in layers], axis=1)


def drafts(h, model_w, head_w, ids, last):
    """Logits over the head's tokens for token last + 2 of ids[0..last + 1], and for token last + 3: row i reads the embedding of
    token i + 1 and the state of token i. That is what the projection makes of three layers' inputs, or, of the first draft,
    what the layer left."""
    w = lambda name: next((t[name] for t in (head_w, model_w) if name in t), None)
    p = "layers.0." if h["embd"] else "midlayer."
    cfg = h["layer"]
    n_heads, n_kv, d = geometry(cfg)
    norm = lambda x, name: rms_norm(x, w(name + ".weight"), cfg["rms_norm_eps"])
    freq, mscale = rope_frequencies(cfg, d, len(ids))
    taken, out = inputs(lambda name: model_w[name], h["layers"], np.array(ids[: last + 1])), []
    states = linear(norm(taken, "input_norm") if h["norm_in"] else taken, w("fc.weight"))
    for n in (last + 1, last + 2):
        e = w("embed_tokens.weight" if h["embd"] else "model.embed_tokens.weight")[np.array(ids[1 : n + 1])]
        state = norm(states, p + "hidden_norm")
        both = np.concatenate([norm(e, p + "input_layernorm"), state], axis=1)
        q, k, v = (heads(linear(both, w(p + f"self_attn.{m}_proj.weight")), g) for m, g in (("q", n_heads), ("k", n_kv), ("v", n_kv)))
        a = attention(rotate(q, freq, mscale), rotate(k, freq, mscale), v, 1 / math.sqrt(d))
        x = (state if h["residual"] else states) + linear(a, w(p + "self_attn.o_proj.weight"))
        x = x + gated(norm(x, p + "post_attention_layernorm"), *(w(p + f"mlp.{m}_proj.weight") for m in ("gate", "up", "down")), silu)
        out.append(linear(norm(x[-1:], "norm"), w("lm_head.weight"))[0])
        states = np.concatenate([states, x[-1:]])
    return out


def folder_of(h):
    own = dict(draft_vocab_size=h["n_draft"])
    if not h["embd"]:
        return {**h["layer"], **own, "architectures": ["LlamaForCausalLMEagle3"]} | (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": h["layers"], "use_aux_hidden_state": True}} if h["said"] else {})
    return {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.1.0", **own,
        "transformer_layer_config": h["layer"], "norm_before_residual": h["residual"], "norm_before_fc": h["norm_in"],
        "eagle_aux_hidden_state_layer_ids": h["layers"], "target_hidden_size": WIDTH, "tie_word_embeddings": False,
    }


def gguf_of(h, tensors, known):
    cfg = h["layer"]
    n_heads, n_kv, d = geometry(cfg)
    meta = {
        "general.architecture": "eagle3", "general.name": "head", "eagle3.vocab_size": N_VOCAB,
        "eagle3.context_length": cfg["max_position_embeddings"], "eagle3.embedding_length": cfg["hidden_size"],
        "eagle3.block_count": 1, "eagle3.feed_forward_length": cfg["intermediate_size"], "eagle3.attention.head_count": n_heads,
        "eagle3.attention.head_count_kv": n_kv, "eagle3.attention.layer_norm_rms_epsilon": cfg["rms_norm_eps"],
        "eagle3.attention.key_length": d, "eagle3.attention.value_length": d, "eagle3.rope.freq_base": cfg["rope_theta"],
        "eagle3.rope.dimension_count": d, "eagle3.target_layers": h["layers"], "eagle3.target_hidden_size": WIDTH,
        "eagle3.norm_before_residual": h["residual"], "eagle3.norm_before_fc": h["norm_in"], "tokenizer.ggml.model": "none",
    }
    own = {"fc": "fc", "input_norm": "enc.output_norm", "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
           "hidden_norm": "blk.0.attn_norm_2"}
    out = {} if known is None else {"d2t": Numbers(known)}
    for name, t in tensors.items():
        stem = name[: -len(".weight")].removeprefix("layers.0.").removeprefix("midlayer.")
        v = t.values
        if stem.endswith("q_proj"):
            v = interleave_pairs(v, n_heads)
        if stem.endswith("k_proj"):
            v = interleave_pairs(v, n_kv)
        out[own.get(stem) + ".weight" if stem in own else f"blk.0.{GGUF_NAMES[stem]}.weight"] = Stored(v, t.dtype)
    return meta, out


CHAIN, CHAIN_WIDTH = 32, 64


def chain(out):
    """A model that says 5 t + 3 (mod 32) after token t, whatever stands in front of it, and a head that knows: its attention sees
    the row itself alone and passes its embedding on, which its output layer maps as the model's does."""
    after = [(5 * t + 3) % CHAIN for t in range(CHAIN)]
    cfg = {**MODEL, "vocab_size": CHAIN, "hidden_size": CHAIN_WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
           "intermediate_size": 32, "max_position_embeddings": 512}
    layer = {**cfg, "num_hidden_layers": 1}
    embedding = np.eye(CHAIN, CHAIN_WIDTH)
    embedding[:, CHAIN] = 1  # the same of every token
    says = np.zeros((CHAIN, CHAIN_WIDTH))
    says[after, np.arange(CHAIN)] = 4
    zeros, ones = (lambda n, k: Stored(np.zeros((n, k)), "Q8_0")), Stored(np.ones(CHAIN_WIDTH), "F32")

    def block(p, k, names):
        of = {"q_proj": (CHAIN_WIDTH, k), "k_proj": (CHAIN_WIDTH, k), "v_proj": (CHAIN_WIDTH, k), "o_proj": (CHAIN_WIDTH, CHAIN_WIDTH)}
        ff = {"gate_proj": (32, CHAIN_WIDTH), "up_proj": (32, CHAIN_WIDTH), "down_proj": (CHAIN_WIDTH, 32)}
        out = {f"{p}self_attn.{n}.weight": zeros(*s) for n, s in of.items()} | {f"{p}mlp.{n}.weight": zeros(*s) for n, s in ff.items()}
        return out | {f"{p}{n}.weight": ones for n in names}

    model = {"model.embed_tokens.weight": Stored(embedding, "Q8_0"), "model.norm.weight": ones, "lm_head.weight": Stored(says, "Q8_0")}
    for i in range(4):
        model |= block(f"model.layers.{i}.", CHAIN_WIDTH, ("input_layernorm", "post_attention_layernorm"))
    meta, tensors = gguf_from_hf(cfg, model, "chain")
    write_gguf(out / "chain.gguf", meta | words(CHAIN), tensors)
    head = {"fc.weight": zeros(CHAIN_WIDTH, 3 * CHAIN_WIDTH), "norm.weight": ones, "lm_head.weight": Stored(says, "F32")}
    head |= block("midlayer.", 2 * CHAIN_WIDTH, ("input_layernorm", "hidden_norm", "post_attention_layernorm"))
    same, pairs = np.zeros((CHAIN_WIDTH, 2 * CHAIN_WIDTH)), np.zeros((CHAIN_WIDTH, 2 * CHAIN_WIDTH))
    same[:, :CHAIN_WIDTH] = np.eye(CHAIN_WIDTH)
    pairs[np.arange(CHAIN_WIDTH) % 16 < 8, CHAIN] = 8  # turned as far as the row is away: nearest to itself
    for n, v in (("q_proj", pairs), ("k_proj", pairs), ("v_proj", same), ("o_proj", np.eye(CHAIN_WIDTH))):
        head[f"midlayer.self_attn.{n}.weight"] = Stored(v, "F32")
    head["midlayer.hidden_norm.weight"] = Stored(np.zeros(CHAIN_WIDTH), "F32")  # and nothing of the state in front of it
    h = dict(layer=layer, layers=[1, 2, 3], residual=True, norm_in=False)
    meta, tensors = gguf_of(h, head, None)
    meta |= {"eagle3.vocab_size": CHAIN, "eagle3.target_hidden_size": CHAIN_WIDTH}
    write_gguf(out / "chain-eagle3.gguf", meta, tensors)


def make_all(out, uniform, rounded):
    out = out / "heads"
    stored = model(uniform)
    (out / "model").mkdir(parents=True)
    write_hf_folder(out / "model", MODEL, stored, 1)
    write_gguf(out / "model.gguf", *gguf_from_hf(MODEL, stored, "model"))
    model_w = {k: t.values for k, t in stored.items()}
    ids = ((uniform("heads-tokens", (N_TOK,)) + 1) / 2 * N_VOCAB).astype(int).tolist()
    positions = [0, 1, 7, 8, 31, 32, N_TOK - 3]
    chain(out)
    for name, h in HEADS.items():
        tensors, known = head(name, h, uniform), tokens_of(h, uniform)
        few = h["n_draft"] < N_VOCAB
        (out / name).mkdir()
        folder = dict(tensors)
        if few:  # how much further each token is
            folder["d2t"] = Numbers(known - np.arange(len(known)))
        write_hf_folder(out / name, folder_of(h), folder, 1)
        write_gguf(out / f"{name}.gguf", *gguf_of(h, tensors, known if few else None))
        head_w = {k: t.values for k, t in tensors.items()}
        rows = [drafts(h, model_w, head_w, ids, p) for p in positions]
        for k, v in head_w.items():  # each shows in the second draft
            lost = drafts(h, model_w, {**head_w, k: v * 0}, ids, 32)[1]
            whole = rows[positions.index(32)][1]
            if np.abs(lost - whole).max() / np.abs(whole).max() < 2e-3:
                raise SystemExit(f"{name}: {k} does not show")
        write_vectors(out / name, ids, positions, [[rounded(a), rounded(b)] for a, b in rows], known.tolist())
