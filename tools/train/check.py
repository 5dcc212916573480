#!/usr/bin/env python3
"""How far the trained form and tern's float forward differ: check.py FOLDER [--tokens N]

FOLDER is an exported folder. The logits of every position of one sequence, here in f32 and there through the Python binding
($TERN_LIBRARY names another library than the build's). Ends with 1 where the largest difference of a position is more than 1e-3
of its largest logit.
"""
import argparse
import ctypes as C
import os
import sys

import torch
import torch.nn.functional as F

import evaluate
import model as M

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(TOP, "bindings", "python"))
os.environ.setdefault("TERN_LIBRARY", os.path.join(TOP, "build", "libtern.so.1"))
LIMIT = 1e-3


def tern_logits(folder, ids):
    """[T, V] by the engine, of the file as it is."""
    import tern
    from tern._abi import tern_error
    from tern._lib import check, lib

    out = []
    m = tern.Model(folder, attention="full", ctx_size=len(ids))
    handle, n_vocab, err = m.session()._handle, m.info["n_vocab"], tern_error()

    @C.CFUNCTYPE(C.c_bool, C.c_void_p, C.c_size_t, C.POINTER(C.c_float))
    def take(_, i, logits):
        out.append(torch.tensor(logits[:n_vocab]))
        return True

    check(lib.tern_session_score(handle.pointer, (C.c_int32 * len(ids))(*ids), len(ids), 0, take, None, C.byref(err)), err)
    return torch.stack(out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("folder")
    ap.add_argument("--tokens", type=int, default=600)
    a = ap.parse_args()
    torch.set_num_threads(1)
    cfg, p, _ = evaluate.load(a.folder)
    g = torch.Generator().manual_seed(7)
    ids = torch.randint(0, cfg.vocab_size - 3, (1, a.tokens), generator=g)
    with torch.no_grad():
        ours = F.linear(M.module_of(cfg).forward(p, cfg, ids, torch.float32), p["model.embed_tokens.weight"])
    theirs = tern_logits(a.folder, ids[0].tolist())
    worst = float(((ours - theirs).abs().amax(-1) / ours.abs().amax(-1)).max())
    print(f"{a.tokens} positions: largest difference {worst:.2g} of the position's largest logit (limit {LIMIT:g})")
    sys.exit(worst > LIMIT)


if __name__ == "__main__":
    main()
