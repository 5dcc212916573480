"""models/tern-tiny, rounded and packed as AutoGPTQ, AutoAWQ and mlx-lm write it, beside a folder of the float32 values that those formats define
(packed and dequantised here with NumPy, by their own words): perplexities in floats have the same digits, because weights have the same bits; in blocks, the default, they are close."""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy as np

TERN, SOURCE = sys.argv[1], pathlib.Path("models/tern-tiny")
rng = np.random.default_rng(3)


def load(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            raw = data[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]]
            out[name] = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view("<f4").reshape(t["shape"])
    return out


def bf16(x):
    u = np.ascontiguousarray(x, dtype="<f4").view("<u4").astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("<u2")


def save(folder, tensors, config):
    """tensors: arrays, whose types are the file's; uint16 is BF16."""
    folder.mkdir()
    kinds = {"<f4": "F32", "<f2": "F16", "<u2": "BF16", "<i4": "I32", "<u4": "U32"}
    head, at = {}, 0
    for name, a in tensors.items():
        head[name] = {"dtype": kinds[a.dtype.str], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    head = json.dumps(head).encode()
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + b"".join(np.ascontiguousarray(a).tobytes() for a in tensors.values()))
    (folder / "config.json").write_text(json.dumps(dict(json.loads((SOURCE / "config.json").read_text()), **config)))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SOURCE / name, folder)


def stream(values, bits):
    """Rows of whole numbers as one stream of bits each, lowest first, in words of 32."""
    b = (values[:, :, None].astype(np.uint32) >> np.arange(bits, dtype=np.uint32) & 1).astype(np.uint8).reshape(len(values), -1)
    return np.ascontiguousarray(np.packbits(b, axis=1, bitorder="little")).view("<u4")


def round_groups(w, bits, groups):
    """Asymmetric rounding of w [out][in]: numbers, and scale and zero of each output channel and group."""
    n, top = groups.max() + 1, 2**bits - 1
    q, scales, zeros = np.zeros(w.shape, np.int64), np.zeros((len(w), n), "<f2"), np.zeros((len(w), n), np.int64)
    for g in range(n):
        part = w[:, groups == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        scales[:, g] = np.maximum((high - low) / top, 1e-4)
        s = scales[:, g].astype(np.float64)
        zeros[:, g] = np.clip(np.rint(-low / s), 0, top)
        q[:, groups == g] = np.clip(np.rint(part / s[:, None]) + zeros[:, g : g + 1], 0, top)
    return q, scales, zeros


def gptq(w, bits, group, v2, ordered):
    k = np.arange(w.shape[1])
    groups = (rng.permutation(k) if ordered else k) // group
    q, scales, zeros = round_groups(w, bits, groups)
    stored = zeros if v2 else (zeros - 1) % 2**bits
    packed = {"qweight": stream(q, bits).T.view("<i4"), "qzeros": stream(stored.T, bits).view("<i4"), "scales": scales.T, "g_idx": groups.astype("<i4")}
    if not ordered and not v2:
        del packed["g_idx"]
        packed["bias"] = np.zeros(len(w), "<f2")  # AutoGPTQ wrote one for every module
    return packed, scales[:, groups].astype("<f4") * (q - zeros[:, groups]).astype("<f4")


def awq_words(values):
    """Along the last axis, eight values a word in the order of AutoAWQ's packer."""
    out = np.zeros((len(values), values.shape[1] // 8), np.uint32)
    for i, j in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
        out |= values[:, j::8].astype(np.uint32) << np.uint32(4 * i)
    return out.view("<i4")


def awq(w, bits, group):
    groups = np.arange(w.shape[1]) // group
    q, scales, zeros = round_groups(w, bits, groups)
    packed = {"qweight": awq_words(q.T), "qzeros": awq_words(zeros.T), "scales": scales.T}
    return packed, (q - zeros[:, groups]).astype("<f4") * scales[:, groups].astype("<f4")


def mlx(w, bits, group):
    parts = w.reshape(len(w), -1, group)
    low, high = parts.min(2), parts.max(2)
    down = np.arange(low.shape[1]) % 2 > 0  # mlx-lm counts from the end that is farther from 0, down with a negative scale
    scales = bf16(np.where(down, -1, 1) * np.maximum((high - low) / (2**bits - 1), 1e-6))
    biases = bf16(np.where(down, high, low))
    s, b = ((x.astype(np.uint32) << 16).view("<f4")[:, :, None] for x in (scales, biases))
    q = np.clip(np.rint((parts - b) / s), 0, 2**bits - 1)
    return {"weight": stream(q.reshape(w.shape), bits), "scales": scales, "biases": biases}, (s * q.astype("<f4") + b).reshape(w.shape)


def run(*args, fails=False):
    p = subprocess.run([TERN, *map(str, args)], capture_output=True, text=True)
    if (p.returncode != 0) != fails:
        sys.exit(f"FAILED: tern {' '.join(map(str, args))}: {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stderr if fails else p.stdout


def perplexity(folder, text, scheme="float"):
    r = json.loads(run("eval", folder, "--task", "ppl", "--data", text, "--scheme", scheme, "-c", "128", "--json"))
    return json.dumps({k: v for k, v in r.items() if "ppl" in k or "perplexity" in k or "nll" in k or "value" in k}), r


def folders(tmp, name, source, config, pack, chosen):
    """The packed folder and its reference; pack(module, w) gives what is stored and what it means."""
    packed, plain = {}, {}
    for key, w in source.items():
        module = key.removesuffix(".weight")
        if w.ndim == 2 and chosen(module):
            stored, plain[key] = pack(module, w.astype(np.float64))
            packed.update({f"{module}.{part}": a for part, a in stored.items()})
        else:
            packed[key] = plain[key] = bf16(w)
    save(tmp / name, packed, config)
    save(tmp / (name + "-plain"), plain, {})
    return tmp / name, tmp / (name + "-plain"), packed


def experts(tmp, text, bits, shared=False):
    """A small random mixture of experts as mlx-lm writes it, their matrices one after another (0 bits: as they are), beside a folder of its values. shared: with a shared expert, whose gate is a product of one output."""
    e, ff, n, heads, d, packed, plain = 64, 96, 4, 4, 16, {}, {}
    name = f"experts{bits}" + ("-shared" if shared else "")

    def put(module, shape):
        w = rng.standard_normal(shape) * (0.3 if "embed" in module else shape[-1] ** -0.5 * 2)
        flat = w.reshape(-1, shape[-1])
        stored, meant = mlx(flat, bits, 32) if bits else ({"weight": bf16(flat)}, (bf16(flat).astype(np.uint32) << 16).view("<f4"))
        for part, a in stored.items():
            packed[f"{module}.{part}"] = a.reshape(*shape[:-1], a.shape[1])
        if len(shape) == 2:
            plain[module + ".weight"] = meant
        for x in range(n) if len(shape) == 3 else ():
            plain[module.replace("switch_mlp", f"experts.{x}") + ".weight"] = meant.reshape(shape)[x]

    put("model.embed_tokens", (4096, e))
    for i in range(2):
        p = f"model.layers.{i}."
        for part, rows in (("q", heads * d), ("k", 2 * d), ("v", 2 * d)):
            put(p + f"self_attn.{part}_proj", (rows, e))
        put(p + "self_attn.o_proj", (e, heads * d))
        put(p + "mlp.gate", (n, e))
        for part, shape in (("gate", (n, ff, e)), ("up", (n, ff, e)), ("down", (n, e, ff))):
            put(p + f"mlp.switch_mlp.{part}_proj", shape)
        for part, shape in (("shared_expert.gate_proj", (ff, e)), ("shared_expert.up_proj", (ff, e)), ("shared_expert.down_proj", (e, ff)), ("shared_expert_gate", (1, e))) if shared else ():
            put(p + "mlp." + part, shape)
        for part, size in (("q", heads * d), ("k", 2 * d), ("v", 2 * d)) if shared else ():
            packed[p + f"self_attn.{part}_proj.bias"] = plain[p + f"self_attn.{part}_proj.bias"] = np.zeros(size, "<f4")
        for norm, size in (("input_layernorm", e), ("post_attention_layernorm", e)) + (() if shared else (("self_attn.q_norm", d), ("self_attn.k_norm", d))):
            packed[f"{p}{norm}.weight"] = plain[f"{p}{norm}.weight"] = np.ones(size, "<f4")
    packed["model.norm.weight"] = plain["model.norm.weight"] = np.ones(e, "<f4")
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": e, "head_dim": d, "num_hidden_layers": 2, "intermediate_size": ff,
              "moe_intermediate_size": ff, "num_experts": n, "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    if shared:
        config.update(architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", shared_expert_intermediate_size=ff)
    words = {"group_size": 32, "bits": bits, "model.layers.1.mlp.switch_mlp.up_proj": {"group_size": 32, "bits": bits}} if bits else None
    save(tmp / name, packed, dict(config, quantization=words))
    save(tmp / (name + "-plain"), plain, config)
    got, want = perplexity(tmp / name, text), perplexity(tmp / (name + "-plain"), text)
    if got[0] != want[0] or len(got[0]) < 10:
        sys.exit(f"FAILED: {name}: {got} instead of {want}")
    blocks = perplexity(tmp / name, text, "blocks")[1]["perplexity"]
    if abs(blocks / got[1]["perplexity"] - 1) > 0.02 or (bits and blocks == got[1]["perplexity"]):
        sys.exit(f"FAILED: {name}: {blocks} in blocks, {got[1]['perplexity']} in floats")
    print(f"{name}: {got[0]}")
    return packed, dict(config, quantization=words)


def latent(tmp, text, name, words, pack, apart=False):
    """A small random DeepSeek V2 whose linears are packed, latent projections too, beside a folder of its values. A head's keys
    are rows of kv_b_proj that are read as columns: in floats nothing is rounded, in blocks they have 8 bits. apart: as mlx-lm writes it
    now, what makes keys and values by themselves, head by head, keys turned."""
    e, ff, heads, nope, rope, value, rank, q_rank, layers, packed, plain = 64, 128, 16, 32, 16, 32, 64, 96, 2, {}, {}
    for module, shape in [("model.embed_tokens", (4096, e)), ("lm_head", (4096, e))] + [
            (f"model.layers.{i}.{m}", s) for i in range(layers) for m, s in (
                ("self_attn.q_a_proj", (q_rank, e)), ("self_attn.q_b_proj", (heads * (nope + rope), q_rank)), ("self_attn.kv_a_proj_with_mqa", (rank + rope, e)),
                ("self_attn.kv_b_proj", (heads * (nope + value), rank)), ("self_attn.o_proj", (e, heads * value)),
                *[(f"mlp.{at}{m}_proj", s) for at in (("experts.0.", "experts.1.", "shared_experts.") if i else ("",)) for m, s in (("gate", (ff, e)), ("up", (ff, e)), ("down", (e, ff)))])]:
        w = rng.standard_normal(shape) * (0.3 if "embed" in module else shape[-1] ** -0.5 * 2)
        if "layers" not in module:
            packed[module + ".weight"] = plain[module + ".weight"] = bf16(w)
            continue
        if apart and "kv_b_proj" in module:
            w, meant = w.reshape(heads, nope + value, rank), []
            for part, x in (("embed_q", w[:, :nope].swapaxes(1, 2)), ("unembed_out", w[:, nope:])):
                stored, m = pack(np.ascontiguousarray(x).reshape(-1, x.shape[2]))
                packed.update({f"{module.replace('kv_b_proj', part)}.{k}": a.reshape(heads, x.shape[1], -1) for k, a in stored.items()})
                meant.append(m.reshape(x.shape))
            plain[module + ".weight"] = np.concatenate([meant[0].swapaxes(1, 2), meant[1]], 1).reshape(-1, rank)
            continue
        stored, plain[module + ".weight"] = pack(w)
        packed.update({f"{module}.{part}": a for part, a in stored.items()})
    for i in range(layers):
        for norm, size in (("input_layernorm", e), ("post_attention_layernorm", e), ("self_attn.q_a_layernorm", q_rank), ("self_attn.kv_a_layernorm", rank)):
            packed[f"model.layers.{i}.{norm}.weight"] = plain[f"model.layers.{i}.{norm}.weight"] = np.ones(size, "<f4")
    packed["model.layers.1.mlp.gate.weight"] = plain["model.layers.1.mlp.gate.weight"] = bf16(rng.standard_normal((2, e)))
    packed["model.norm.weight"] = plain["model.norm.weight"] = np.ones(e, "<f4")
    config = {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": e, "num_hidden_layers": layers, "intermediate_size": ff,
              "num_attention_heads": heads, "num_key_value_heads": heads, "q_lora_rank": q_rank, "kv_lora_rank": rank, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope,
              "v_head_dim": value, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1, "moe_intermediate_size": ff, "first_k_dense_replace": 1, "moe_layer_freq": 1,
              "norm_topk_prob": False, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_method": "greedy", "n_group": 1, "topk_group": 1, "tie_word_embeddings": False,
              "rope_scaling": None}
    save(tmp / name, packed, dict(config, **words))
    save(tmp / (name + "-plain"), plain, config)
    got, want = perplexity(tmp / name, text), perplexity(tmp / (name + "-plain"), text)
    if got[0] != want[0] or len(got[0]) < 10:
        sys.exit(f"FAILED: {name}: {got} instead of {want}")
    blocks, floats = perplexity(tmp / name, text, "blocks")[1]["perplexity"], got[1]["perplexity"]
    if abs(blocks / floats - 1) > 0.05 or (bool(words) == (blocks == floats)):
        sys.exit(f"FAILED: {name}: {blocks} in blocks, {floats} in floats")
    memory = float(run("bench", tmp / name, "-p", "8", "-n", "1", "-r", "1").split("weights ")[1].split(" MiB")[0])
    print(f"{name}: {got[0]}, {blocks} in blocks of {memory} MiB")
    return memory


def refusals(tmp, name, packed, config, cases):
    for i, (change, words) in enumerate(cases):
        tensors, c = dict(packed), json.loads(json.dumps(config))
        change(tensors, next(iter(c.values())))
        save(tmp / f"{name}-{i}", tensors, c)
        err = run("inspect", tmp / f"{name}-{i}", fails=True)
        if words not in err or err.count("\n") != 1:
            sys.exit(f"FAILED: {name}, {words}: {err}")


def main(tmp):
    source = load(SOURCE / "model.safetensors")
    text = tmp / "text.txt"
    text.write_text((SOURCE / "demo.txt").read_text())
    linear, every = lambda m: "layers" in m, lambda m: True
    special = "model.layers.1.mlp.down_proj"
    base = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False, "damp_percent": 0.01, "true_sequential": True}

    def mlx_case(bits, group, **more):
        sizes = lambda m: (more[m]["bits"], more[m]["group_size"]) if m in more else (bits, group)
        return {"quantization": {"group_size": group, "bits": bits, **more}}, lambda m, w: mlx(w, *sizes(m)), every, f"MLX, {bits} bits in groups of {group}"

    cases = {
        "gptq4": ({"quantization_config": base}, lambda m, w: gptq(w, 4, 128, False, False), linear, "GPTQ, 4 bits in groups of 128"),
        "gptq4-ordered": ({"quantization_config": dict(base, group_size=64, desc_act=True)}, lambda m, w: gptq(w, 4, 64, False, True), linear, "GPTQ, 4 bits in groups of 64"),
        "gptq8-v2": ({"quantization_config": dict(base, bits=8, group_size=-1, checkpoint_format="gptq_v2", dynamic={}, lm_head=False)}, lambda m, w: gptq(w, 8, 1 << 20, True, False), linear, "GPTQ, 8 bits"),
        "gptq3": ({"quantization_config": dict(base, bits=3, pack_dtype="int32")}, lambda m, w: gptq(w, 3, 128, False, False), linear, "GPTQ, 3 bits in groups of 128"),
        "awq": ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True, "modules_to_not_convert": None}}, lambda m, w: awq(w, 4, 64), linear, "AWQ, 4 bits in groups of 64"),
        "mlx4": mlx_case(4, 64, **{special: {"bits": 8, "group_size": 32}, "model.embed_tokens": {"bits": 6, "group_size": 128}}),
        "mlx2": mlx_case(2, 32), "mlx3": mlx_case(3, 64), "mlx5": mlx_case(5, 64), "mlx6": mlx_case(6, 128), "mlx8": mlx_case(8, 64),
    }
    made = {}
    for name, (config, pack, chosen, words) in cases.items():
        packed, plain, made[name] = folders(tmp, name, source, config, pack, chosen)
        told = run("inspect", packed)
        got, want = perplexity(packed, text), perplexity(plain, text)
        if got[0] != want[0] or len(got[0]) < 10 or f"safetensors, {words}" not in told or words.split(",")[0] not in told.split("\nstorage")[1]:
            sys.exit(f"FAILED: {name}: {got} instead of {want}\n{told}")
        blocks = perplexity(packed, text, "blocks")[1]["perplexity"]
        if got[1]["perplexity"] == blocks or abs(blocks / got[1]["perplexity"] - 1) > 0.01:
            sys.exit(f"FAILED: {name}: {blocks} in blocks, {got[1]['perplexity']} in floats")
        print(f"{name}: {got[0]}, {blocks} in blocks")
    experts(tmp, text, 0)
    experts(tmp, text, 4, shared=True)
    stacked, config = experts(tmp, text, 4)
    latent(tmp, text, "latent-gptq", {"quantization_config": dict(base, group_size=32, checkpoint_format="gptq_v2")}, lambda w: gptq(w, 4, 32, True, False))
    latent(tmp, text, "latent-gptq-ordered", {"quantization_config": dict(base, bits=8, group_size=32, desc_act=True)}, lambda w: gptq(w, 8, 32, False, True))
    latent(tmp, text, "latent-awq", {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}}, lambda w: awq(w, 4, 32))
    across = latent(tmp, text, "latent-mlx", {"quantization": {"group_size": 32, "bits": 4}}, lambda w: mlx(w, 4, 32))
    along = latent(tmp, text, "latent-mlx-apart", {"quantization": {"group_size": 32, "bits": 4}}, lambda w: mlx(w, 4, 32), apart=True)
    if across > along + 0.1:  # 8 bits in place of 5; as floats 0.2 MiB more
        sys.exit(f"FAILED: projections that are read across take {across} MiB with the rest, others {along}")
    latent(tmp, text, "latent-apart", {}, lambda w: ({"weight": bf16(w)}, (bf16(w).astype(np.uint32) << 16).view("<f4")), apart=True)
    run("pack", tmp / "latent-mlx", "-o", tmp / "l.tern", "--quick")
    run("pack", tmp / "experts4", "-o", tmp / "x.tern", "--quick")

    def lose_one(t, q):
        t["model.layers.0.mlp.switch_mlp.up_proj.scales"] = t["model.layers.0.mlp.switch_mlp.up_proj.scales"][:3]

    def flatten(t, q):
        t["model.layers.1.mlp.switch_mlp.down_proj.biases"] = t["model.layers.1.mlp.switch_mlp.down_proj.biases"].reshape(-1, 3)

    whole = dict(quantization=config["quantization"], **{k: v for k, v in config.items() if k != "quantization"})
    refusals(tmp, "no-experts", stacked, whole, [(lose_one, "is of 3 matrices"), (flatten, "matrices")])
    other = perplexity(SOURCE, text)
    if other[0] == want[0]:
        sys.exit("FAILED: the rounded weights are not what was read")

    def drop(ending):
        return lambda t, q: [t.pop(k) for k in list(t) if k.endswith("layers.3.mlp.up_proj" + ending)]

    def index(t, q):
        t["model.layers.0.mlp.up_proj.g_idx"] = t["model.layers.0.mlp.up_proj.g_idx"] + 1

    def no_number(t, q):
        t["model.layers.0.mlp.up_proj.scales"][0, 3] = np.inf

    def cut(t, q):
        k = "model.layers.0.mlp.up_proj.scales"
        t[k] = t[k][:-1]

    refusals(tmp, "no-gptq", made["gptq4-ordered"], cases["gptq4-ordered"][0], [
        (lambda t, q: q.update(dynamic={"-:.*": {}}), "'dynamic'"), (lambda t, q: q.update(checkpoint_format="marlin"), "'checkpoint_format'"),
        (lambda t, q: q.update(hadamard=True), "'hadamard'"), (lambda t, q: q.update(quant_method="aqlm"), "'aqlm'"), (lambda t, q: q.update(bits=9), "'bits'"),
        (lambda t, q: q.update(pack_dtype="int16"), "'pack_dtype'"), (drop(".g_idx"), "desc_act"), (drop(".qzeros"), ".qzeros"), (index, "names group"), (cut, "groups want"),
        (lambda t, q: q.update(group_size=96), "groups want"), (drop(".scales"), ".scales")])
    refusals(tmp, "no-awq", made["awq"], cases["awq"][0], [(lambda t, q: q.update(version="gemv"), "'version'"), (lambda t, q: q.update(version=5), "'version'"), (lambda t, q: q.update(zero_point=False), "'zero_point'"),
        (lambda t, q: q.update(quantization_mode="online", quant_method="bitnet"), "'bitnet'")])
    refusals(tmp, "no-mlx", made["mlx4"], cases["mlx4"][0], [
        (lambda t, q: q.update(mode="mxfp4"), "'mode'"), (lambda t, q: q[special].update(mode="nvfp4"), "'mode'"), (lambda t, q: q.update(rotated=True), "'rotated'"),
        (lambda t, q: q[special].update(bits=4), "groups want"), (lambda t, q: q[special].update(group_size=48), "no groups of 48"), (drop(".biases"), ".biases")])
    both = dict(cases["mlx4"][0], quantization_config=base)
    refusals(tmp, "no-two", made["mlx4"], both, [(lambda t, q: None, "beside another"), (lambda t, q: q.clear(), "beside another")])
    refusals(tmp, "no-word", made["mlx4"], {"quantization_config": None, "quantization": "mlx"}, [(lambda t, q: None, "'quantization' is not supported in this form")])
    no_number(made["gptq4"], None)
    save(tmp / "no-number", made["gptq4"], cases["gptq4"][0])
    err = run(tmp / "no-number", "hello", fails=True)
    if "up_proj" not in err or "row 3" not in err or err.count("\n") != 1:
        sys.exit(f"FAILED: a scale that is no number: {err}")
    told = subprocess.run([TERN, str(tmp / "awq"), "Say a word.", "-n", "4", "--explain", "--pack", "never"], capture_output=True, text=True)
    if told.returncode or "on the file's own blocks" not in told.stdout + told.stderr:
        sys.exit(f"FAILED: by default: {told.stdout}{told.stderr}")
    out = subprocess.run([TERN, "pack", str(tmp / "mlx4"), "-o", str(tmp / "m.tern"), "--quick"], capture_output=True, text=True)
    if out.returncode or "rounding them again loses more" not in out.stdout + out.stderr:
        sys.exit(f"FAILED: pack: {out.stdout}{out.stderr}")
    print(out.stdout + out.stderr)
    print("packed: fine")


with tempfile.TemporaryDirectory() as folder:
    main(pathlib.Path(folder))
