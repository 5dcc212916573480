#!/usr/bin/env python3
"""What an encoder in INT8 changes in a model's answers: KL divergence of the next token's probabilities to those with the encoder in floats.

    bench/encoder_kl.py BUILD MODEL PICTURE...                    after a question about each picture
    bench/encoder_kl.py BUILD MODEL --questions FILE.jsonl        at every token of the answers that a file has (models/tern-eyes/unseen)

MODEL is opened twice, with --encoder float and int8. KL in nats: the mean, and the largest of a position.
"""
import argparse
import json
import math
import os
import sys

a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("build")
a.add_argument("model")
a.add_argument("pictures", nargs="*")
a.add_argument("--questions")
o = a.parse_args()
os.environ["TERN_LIBRARY"] = os.path.abspath(f"{o.build}/libtern.so.1")
os.environ["TERN_PACK"] = "never"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bindings/python"))
import tern

asked = [(p, "What is this?", None) for p in o.pictures]
if o.questions:
    folder = os.path.dirname(o.questions)
    asked += [(f"{folder}/{q['picture']}", q["question"], q["answer"]) for q in map(json.loads, open(o.questions, encoding="utf-8"))]
models = [tern.Model(o.model, encoder=e, picture_cache=0) for e in ("float", "int8")]
divergences = []


def logprobs(logits):
    most = max(logits)
    total = math.log(sum(math.exp(x - most) for x in logits)) + most
    return [x - total for x in logits]


for picture, question, answer in asked:
    sessions, begun = [m.session() for m in models], []
    for s in sessions:
        begun.append(list(s.look([{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": question}]}])))
    told = models[0].tokenize(answer) if answer else []
    for n in range(len(told) + 1):
        after = []
        for s, ids in zip(sessions, begun):
            s.prefill(ids + list(told[:n]))
            after.append(logprobs(list(s.logits)))
        divergences.append(sum(math.exp(x) * (x - y) for x, y in zip(*after)))
print(f"{os.path.basename(o.model)}: {len(asked)} questions, {len(divergences)} positions: KL {sum(divergences) / len(divergences):.6f}, at most {max(divergences):.6f}")
