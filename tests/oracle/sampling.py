"""Brute-force sampling distributions: repetition penalty, top-k, top-p, min-p, temperature, in that order."""
import json
import math


def softmax(pairs):
    top = max(l for _, l in pairs)
    e = [math.exp(l - top) for _, l in pairs]
    return [x / math.fsum(e) for x in e]


def distribution(logits, history, temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n):
    """[(id, probability)] by falling probability, ties by id."""
    recent = set(history if repeat_last_n < 0 else history[len(history) - min(repeat_last_n, len(history)) :])
    c = []
    for i, l in enumerate(logits):
        if i in recent:  # pushed away from being chosen, whatever its sign
            l = l / repeat_penalty if l > 0 else l * repeat_penalty
        c.append((i, l))
    c.sort(key=lambda t: (-t[1], t[0]))
    if temperature == 0:
        return [(c[0][0], 1.0)]
    if top_k > 0:
        c = c[:top_k]
    if top_p < 1:  # the shortest head whose probability reaches top_p
        total, n = 0.0, 0
        for p in softmax(c):
            total, n = total + p, n + 1
            if total >= top_p:
                break
        c = c[:n]
    if min_p > 0:  # at least min_p times as likely as the best
        c = [t for t in c if math.exp(t[1] - c[0][1]) >= min_p]
    return list(zip((i for i, _ in c), softmax([(i, l / temperature) for i, l in c])))


# A flat part, a peak, equal values, negative ones.
LOGITS = [1.5, -0.75, 3.25, 0.0, 2.125, 2.125, -4.5, 0.625, 5.0, -1.0, 4.375, 1.0, -2.25, 0.375, 2.75, 3.875]
HISTORY = [3, 8, 8, 1, 10, 6, 15, 2]
OFF = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0, repeat_last_n=64)
SETTINGS = [
    {},
    dict(temperature=0.0),
    dict(temperature=0.25),
    dict(temperature=3.0),
    dict(top_k=1),
    dict(top_k=6),
    dict(top_k=5),  # cuts between two equal logits' neighbours
    dict(top_k=100),
    dict(top_p=0.5),
    dict(top_p=0.9),
    dict(top_p=0.01),
    dict(min_p=0.1),
    dict(min_p=0.9),
    dict(repeat_penalty=1.75),
    dict(repeat_penalty=1.75, repeat_last_n=-1),
    dict(repeat_penalty=1.75, repeat_last_n=3),
    dict(repeat_penalty=1.75, repeat_last_n=0),
    dict(repeat_penalty=0.5),
    dict(temperature=0.0, repeat_penalty=3.0),
    dict(temperature=2.0, top_p=0.8),  # temperature must come after the filters
    dict(temperature=2.0, min_p=0.2),
    dict(top_k=4, top_p=0.9),  # top-p over what top-k kept
    dict(top_k=12, top_p=0.95, min_p=0.05, temperature=0.8),
    dict(top_k=9, top_p=0.97, min_p=0.03, temperature=1.4, repeat_penalty=1.3, repeat_last_n=5),
]


def vectors():
    cases = []
    for s in SETTINGS:
        s = {**OFF, **s}
        d = distribution(LOGITS, HISTORY, **s)
        cases.append({**s, "ids": [i for i, _ in d], "p": [float(f"{p:.9g}") for _, p in d]})
    body = ",\n    ".join(json.dumps(c) for c in cases)
    return f'{{\n  "logits": {json.dumps(LOGITS)},\n  "history": {json.dumps(HISTORY)},\n  "cases": [\n    {body}\n  ]\n}}\n'
