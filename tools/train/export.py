#!/usr/bin/env python3
"""Write a checkpoint as a Hugging Face folder: export.py RUN_FOLDER OUT_FOLDER"""
import json
import os
import shutil
import sys

import torch

import model as M
import safetensors
from bpe import SPECIALS, Tokenizer

CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def dump(path, obj):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(obj, f, indent=2, ensure_ascii=False)
        f.write("\n")


def main():
    run, out = sys.argv[1:3]
    c = torch.load(f"{run}/ckpt.pt", map_location="cpu")
    cfg = M.Config(**c["cfg"])
    os.makedirs(out, exist_ok=True)
    tensors, o = {}, 0
    for k, t in M.init_params(cfg, 0).items():
        tensors[k] = c["w"][o : o + t.numel()].view(t.shape).numpy()
        o += t.numel()
    safetensors.write(f"{out}/model.safetensors", tensors)
    shutil.copy(f"{run}/tokenizer.json", f"{out}/tokenizer.json")
    tok = Tokenizer.load(f"{out}/tokenizer.json")
    end, start, stop = (tok.ids[s] for s in SPECIALS)
    dump(f"{out}/config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": end, "eos_token_id": stop, "pad_token_id": end, "head_dim": cfg.d_head, "hidden_act": "silu",
        "hidden_size": cfg.d_model, "initializer_range": 0.02, "intermediate_size": cfg.d_ff,
        "max_position_embeddings": cfg.max_ctx, "mlp_bias": False, "num_attention_heads": cfg.n_heads,
        "num_hidden_layers": cfg.n_layers, "num_key_value_heads": cfg.n_kv_heads, "rms_norm_eps": cfg.eps,
        "rope_scaling": None, "rope_theta": cfg.rope_theta, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_cache": True, "vocab_size": cfg.vocab_size})
    dump(f"{out}/generation_config.json", {"bos_token_id": end, "eos_token_id": [stop, end], "pad_token_id": end, "do_sample": False})
    dump(f"{out}/tokenizer_config.json", {
        "added_tokens_decoder": {str(tok.ids[s]): {"content": s, "lstrip": False, "normalized": False, "rstrip": False,
                                                   "single_word": False, "special": True} for s in SPECIALS},
        "add_bos_token": False, "add_prefix_space": False, "bos_token": SPECIALS[0], "eos_token": SPECIALS[2],
        "pad_token": SPECIALS[0], "unk_token": None, "chat_template": CHAT, "clean_up_tokenization_spaces": False,
        "model_max_length": cfg.max_ctx, "split_special_tokens": False, "tokenizer_class": "PreTrainedTokenizerFast"})
    print(f"{out}: {sum(t.size for t in tensors.values())} parameters, step {c['state']['step']}, {c['state']['tok']} tokens")


if __name__ == "__main__":
    main()
