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
    cfg = M.config_of(c["cfg"])
    os.makedirs(out, exist_ok=True)
    tensors = {k: t.numpy() for k, t in M.unflatten(cfg, c["w"]).items()}
    safetensors.write(f"{out}/model.safetensors", tensors)
    shutil.copy(f"{run}/tokenizer.json", f"{out}/tokenizer.json")
    tok = Tokenizer.load(f"{out}/tokenizer.json")
    end, start, stop = (tok.ids[s] for s in SPECIALS)
    dump(f"{out}/config.json", {**M.module_of(cfg).hf_config(cfg), "bos_token_id": end, "eos_token_id": stop, "pad_token_id": end})
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
