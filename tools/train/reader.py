#!/usr/bin/env python3
"""A model that reads drawn screens: a small vision tower before tern-tiny, trained and measured on drawings.

    reader.py train RUN_FOLDER --minutes 60         the tower learns to name what a drawing shows, then to say it through tern-tiny
    reader.py export RUN_FOLDER models/tern-eyes    what was learned, as models/tern-eyes/assemble.py takes it
    reader.py measure BUILD/tern MODEL [-n 100]     exact answers to questions about drawings that were never trained on
    reader.py draw OUT.png [--seed 1]               one drawing, with its questions and answers
    reader.py simulate RUN_FOLDER [-n 100]          what static and dynamic INT8 do to the tower
    reader.py pictures FOLDER [-n 20]               drawings with their questions, for a test that cannot draw

A drawing has four lines, each with a label, a number of four digits and a coloured button at the left, in the middle or at the right.
Drawings of training have even seeds, those of measurement odd ones. Needs Debian's python3-torch, python3-numpy and python3-pil.
"""
import argparse
import json
import math
import os
import random
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "../../models/tern-tiny")
SIDE, PATCH, LINES = 128, 16, 4
WIDTH, LAYERS, HEADS, RANK, TURNS = 192, 4, 3, 8, 6
LABELS = ("garden kitchen office bridge river school window music light engine door table phone train message paper castle forest island "
          "hotel ticket dinner letter street").split()
COLOURS = {"red": (214, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 210), "yellow": (235, 205, 40), "purple": (130, 50, 170),
           "pink": (245, 140, 190), "brown": (120, 75, 40), "black": (15, 15, 15)}
PLACES = ["left", "middle", "right"]
GROUNDS = [(250, 250, 250), (235, 240, 245), (225, 225, 215), (205, 215, 225)]
# What a drawing of measurement may be that none of training was.
SHIFTS = ["drawn", "jpeg", "size", "grounds", "shades", "words", "blank", "other"]
NEW_LABELS = "summer market doctor camera bottle planet".split()
N_ROWS = (SIDE // PATCH) ** 2


# ---- drawings ---------------------------------------------------------------------------------------------------


def screen(seed, labels=LABELS, grounds=GROUNDS, shade=0):
    """A drawing and what is on it: [(label, number, colour, place)] from the top down. shade: how far colours are off at most."""
    from PIL import Image, ImageDraw, ImageFont
    r = random.Random(seed)
    ground = r.choice(grounds)
    ink = r.choice([(0, 0, 0), (40, 40, 60), (60, 30, 10)])
    picture = Image.new("RGB", (SIDE, SIDE), ground)
    d, font = ImageDraw.Draw(picture), ImageFont.load_default()
    lines = []
    for i, label in enumerate(r.sample(labels, LINES)):
        number, colour, place = str(r.randint(1000, 9999)), r.choice(list(COLOURS)), r.choice(PLACES)
        y = i * SIDE // LINES
        d.text((3 + r.randrange(4), y + 2 + r.randrange(3)), label, fill=ink, font=font)
        d.text((92 + r.randrange(6), y + 2 + r.randrange(3)), number, fill=ink, font=font)
        x = 4 + PLACES.index(place) * 44 + r.randrange(6)
        top = y + 17 + r.randrange(3)
        corner = x + 26 + r.randrange(5), top + 8 + r.randrange(3)
        fill = COLOURS[colour] if not shade else tuple(min(255, max(0, v + r.randint(-shade, shade))) for v in COLOURS[colour])
        d.rectangle([x, top, *corner], fill=fill)
        lines.append((label, number, colour, place))
    return picture, lines


def questions(lines):
    for label, number, colour, place in lines:
        yield "code", f"What is the code of the {label}?", f"The code of the {label} is {number}."
        yield "color", f"What is the color of the {label}?", f"The color of the {label} is {colour}."
        yield "place", f"What is the place of the {label}?", f"The place of the {label} is {place}."


# ---- the tower --------------------------------------------------------------------------------------------------


def tower():
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer_norm1, self.layer_norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
            self.self_attn = nn.ModuleDict({n: nn.Linear(WIDTH, WIDTH) for n in ("q_proj", "k_proj", "v_proj", "out_proj")})
            self.mlp = nn.ModuleDict({"fc1": nn.Linear(WIDTH, 4 * WIDTH), "fc2": nn.Linear(4 * WIDTH, WIDTH)})

        def forward(self, x):
            b, t, _ = x.shape
            h, a = self.layer_norm1(x), self.self_attn
            q, k, v = (a[n](h).view(b, t, HEADS, -1).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
            p = (q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)).softmax(-1)
            x = x + a["out_proj"]((p @ v).transpose(1, 2).reshape(b, t, WIDTH))
            h = self.mlp["fc1"](self.layer_norm2(x))
            return x + self.mlp["fc2"](nn.functional.gelu(h, approximate="tanh"))

    class Tower(nn.Module):
        def __init__(self, width_out):
            super().__init__()
            self.patch = nn.Linear(3 * PATCH * PATCH, WIDTH)
            self.position = nn.Parameter(torch.randn(N_ROWS, WIDTH) * .02)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.post = nn.LayerNorm(WIDTH, eps=1e-6)
            self.proj = nn.Linear(WIDTH, width_out, bias=False)

        def forward(self, pixels):  # [B][3][SIDE][SIDE] in -1 .. 1 to [B][N_ROWS][width_out]
            n = SIDE // PATCH
            x = pixels.view(-1, 3, n, PATCH, n, PATCH).permute(0, 2, 4, 1, 3, 5).reshape(-1, n * n, 3 * PATCH * PATCH)
            x = self.patch(x) + self.position
            for layer in self.layers:
                x = layer(x)
            return self.proj(self.post(x))

    return Tower


def pixels_of(pictures):
    import numpy as np
    import torch
    x = np.stack([np.asarray(p, dtype=np.float32) for p in pictures])
    return torch.from_numpy(x.transpose(0, 3, 1, 2).copy()) / 127.5 - 1


# ---- tern-tiny, which is not changed ----------------------------------------------------------------------------


class Language:
    """The decoder's forward over rows; gradients pass through it to the rows."""

    def __init__(self):
        import torch
        import safetensors
        from bpe import Tokenizer
        self.c = json.load(open(f"{TINY}/config.json"))
        self.w = {k: torch.from_numpy(v.copy()).float() for k, v in safetensors.read(f"{TINY}/model.safetensors").items()}
        self.tokenizer = Tokenizer.load(f"{TINY}/tokenizer.json")
        self.embedding = self.w["model.embed_tokens.weight"]

    def norm(self, x, name):
        import torch
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * self.w[name]

    def rope(self, x, at):  # [B][H][T][D] at positions [B][T]
        import torch
        d = x.shape[-1]
        angle = at.float()[:, None, :, None] / self.c["rope_theta"] ** (torch.arange(0, d, 2).float() / d)
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., : d // 2], x[..., d // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x, at, mask, adapter):
        """[B][T][width] at positions [B][T], each seeing what mask [B][1][T][T] leaves, to the last norm's output; adapter: name -> parameter"""
        import torch
        from torch.nn import functional
        from torch.nn.functional import silu

        def linear(y, w):
            name = w[:-len(".weight")].replace(".", "/")
            return functional.linear(y, self.w[w]) + functional.linear(functional.linear(y, adapter[name + "/a"]), adapter[name + "/b"])

        c, (b, t, _) = self.c, x.shape
        h, kv, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            y = self.norm(x, p + "input_layernorm.weight")
            q, k, v = (linear(y, f"{p}self_attn.{n}_proj.weight").view(b, t, -1, d).transpose(1, 2) for n in "qkv")
            q, k = self.rope(q.float(), at), self.rope(k.float(), at)
            k, v = k.repeat_interleave(h // kv, 1), v.float().repeat_interleave(h // kv, 1)
            a = (q @ k.transpose(2, 3) / math.sqrt(d) + mask).softmax(-1) @ v
            x = x + linear(a.transpose(1, 2).reshape(b, t, -1), p + "self_attn.o_proj.weight")
            y = self.norm(x, p + "post_attention_layernorm.weight")
            y = silu(linear(y, p + "mlp.gate_proj.weight")) * linear(y, p + "mlp.up_proj.weight")
            x = x + linear(y, p + "mlp.down_proj.weight")
        return self.norm(x, "model.norm.weight")


def adapter_of(language):
    """An adapter of rank RANK (LoRA) for every product of the layers, which changes nothing yet."""
    import torch
    out = torch.nn.ParameterDict()
    for k, w in language.w.items():
        if k.endswith("_proj.weight"):
            name = k[:-len(".weight")].replace(".", "/")
            out[name + "/a"] = torch.nn.Parameter(torch.randn(RANK, w.shape[1]) / math.sqrt(w.shape[1]))
            out[name + "/b"] = torch.nn.Parameter(torch.zeros(w.shape[0], RANK))
    return out


def told(language, lines):
    """What the rows of a drawing come to stand for: a sentence of text a line, N_ROWS / LINES tokens each."""
    ids = []
    for label, number, colour, place in lines:
        line = language.tokenizer.encode(f"The code of the {label} is {number} {colour} {place}")
        n = N_ROWS // LINES - len(line)
        assert n > 0, (label, colour, place)
        ids += line + language.tokenizer.encode("\n") * n
    return ids


def turns(language, drawings, r, n=TURNS):
    """Questions about each drawing side by side: [B][T] of ids, of their places after the drawing, of which turn each belongs to (0: none), and
    whether it is learned, which the answers are. Every turn follows the drawing and sees no other."""
    import torch
    t, out = language.tokenizer, []
    for lines in drawings:
        row = []
        for k, (_, question, answer) in enumerate(r.sample(list(questions(lines)), n)):
            ask = t.encode(f"Question: {question}<|im_end|>\n<|im_start|>assistant\n")
            ids = ask + t.encode(f"{answer}<|im_end|>")
            row += [(x, i, k + 1, i >= len(ask)) for i, x in enumerate(ids)]
        out.append(row)
    most = max(map(len, out))
    table = torch.tensor([row + [(0, 0, 0, 0)] * (most - len(row)) for row in out])
    return table[..., 0], table[..., 1], table[..., 2], table[..., 3].bool()


def seen_by(turn, at, n_before):
    """What each place sees, as what is added to the scores: the drawing (n_before places, each seeing what stands before it), and of its own turn what stands before."""
    import torch
    b = turn.shape[0]
    turn = torch.cat([torch.zeros(b, n_before, dtype=turn.dtype), turn], 1)
    at = torch.cat([torch.arange(n_before).expand(b, -1), at + n_before], 1)
    shown = torch.zeros(b, turn.shape[1], dtype=torch.bool)
    shown[:, :n_before] = True
    see = (shown[:, None, :] | (turn[:, :, None] == turn[:, None, :])) & (at[:, :, None] >= at[:, None, :])
    return at, torch.where(see, 0.0, -1e9)[:, None]


# ---- training ---------------------------------------------------------------------------------------------------


def main_train(o):
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy, linear
    torch.manual_seed(1)
    torch.set_num_threads(o.threads)
    os.makedirs(o.run, exist_ok=True)
    path = f"{o.run}/reader.pt"
    language = Language()
    width = language.embedding.shape[1]
    model = tower()(width)
    sizes = [len(LABELS), 10, 10, 10, 10, len(COLOURS), len(PLACES)]
    names = nn.Linear(N_ROWS // LINES * width, sum(sizes))  # what each line shows; only the first stage needs it
    marks = nn.Parameter(language.embedding.mean(0, keepdim=True).repeat(2, 1) + .01 * torch.randn(2, width))
    parts = nn.ModuleDict({"tower": model, "names": names})
    parts.marks = marks
    parts["adapter"] = adapter_of(language)
    state = {"step": 0, "stage": 1, "seconds": 0.0}
    if os.path.exists(path):
        kept = torch.load(path)
        parts.load_state_dict(kept["w"], strict=False)
        state = kept["state"]
    tower_parts = [p for k, p in parts.named_parameters() if not k.startswith("adapter")]
    optimiser = torch.optim.AdamW([{"params": tower_parts}, {"params": list(parts["adapter"].parameters())}], lr=1e-3, betas=(.9, .98), weight_decay=.01)
    if os.path.exists(path) and kept["state"]["stage"] == o.stage:
        optimiser.load_state_dict(kept["optimiser"])
    begin, spent, first = time.time(), state["seconds"], state["step"]
    seen, right, last = 0, torch.zeros(len(sizes)), time.time()
    start = language.tokenizer.encode("<|im_start|>user\n")
    end = language.tokenizer.encode("\n\n")
    said = [0.0, 0.0, 0, 0.0]
    while time.time() - begin < o.minutes * 60:
        step = state["step"]
        done = (spent + time.time() - begin) / (o.total * 60)
        state["stage"] = o.stage
        n = 64 if state["stage"] == 1 else 16
        drawn = [screen(2 * (step * 64 + i)) for i in range(n)]
        for i, g in enumerate(optimiser.param_groups):  # the tower only follows in the last stage
            g["lr"] = (2e-4 if state["stage"] == 3 and i == 0 else 1e-3) * min(1, (step - first + 1) / 100) * (.05 + .95 * .5 * (1 + math.cos(math.pi * min(1, done))))
        tokens = torch.tensor([told(language, lines) for _, lines in drawn])
        meant = language.embedding[tokens]
        if state["stage"] == 2:  # rows as the tower comes to make them, near what they mean
            meant = meant + torch.randn(meant.shape) * meant.square().mean().sqrt() * (.4 * torch.rand(n, 1, 1))
            loss = near = torch.zeros(())
        else:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.bf16):
                rows = model(pixels_of([p for p, _ in drawn]))
                logits = names(rows.reshape(n, LINES, -1)).float().split(sizes, -1)
            want = [[[LABELS.index(a), *map(int, b), list(COLOURS).index(c), PLACES.index(d)] for a, b, c, d in lines] for _, lines in drawn]
            want = torch.tensor(want)
            loss = sum(cross_entropy(x.flatten(0, 1), want[..., i].flatten()) for i, x in enumerate(logits)) / len(sizes)
            near = (rows.float() - meant).square().mean() / meant.square().mean()
            # Which token is the nearest to each row: what errs between two tokens says neither, however near it is.
            spread = .2 * width * language.embedding.square().mean()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.bf16):
                nearest = ((2 * linear(rows, language.embedding)).float() - language.embedding.square().sum(-1)) / spread
            loss = loss + near + cross_entropy(nearest.flatten(0, 1), tokens.flatten())
            said[3] += float((nearest.argmax(-1) == tokens).float().mean())
            right += torch.tensor([(x.argmax(-1) == want[..., i]).float().mean() for i, x in enumerate(logits)])
        seen += 1
        if state["stage"] > 1:
            ids, at, turn, learn = turns(language, [lines for _, lines in drawn], random.Random(step))
            e, most = language.embedding, ids.shape[1]
            around = marks[0].expand(n, 1, width)
            before = torch.cat([e[torch.tensor(start)].expand(n, -1, -1), around, marks[1].expand(n, 1, width), rows.float() if state["stage"] == 3 else meant, around,
                                e[torch.tensor(end)].expand(n, -1, -1)], 1)
            at, mask = seen_by(turn, at, before.shape[1])
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.bf16):
                out = language.forward(torch.cat([before, e[ids]], 1), at, mask, parts["adapter"])[:, -most:][:, :-1][learn[:, 1:]]
                guess = linear(out, e).float()
            ids, learn = ids[:, 1:], learn[:, 1:]
            words = cross_entropy(guess, ids[learn])
            good = torch.zeros(learn.shape, dtype=torch.bool)
            good[learn] = guess.argmax(-1) == ids[learn]
            wrong = torch.zeros(n, TURNS + 1).scatter_add_(1, turn[:, 1:], (learn & ~good).float())[:, 1:]
            said = [said[0] + float(good[learn].float().mean()), said[1] + float((wrong == 0).float().mean()), said[2] + 1, said[3]]
            loss = .2 * loss + words
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 1)
        optimiser.step()
        state["step"] += 1
        state["seconds"] = spent + time.time() - begin
        if time.time() - last > 20:
            print(f"stage {state['stage']} step {state['step']} {state['seconds']:.0f} s loss {float(loss):.3f} near {float(near):.3f} rows {said[3] / seen:.4f} right "
                  + " ".join(f"{v / seen:.2f}" for v in right.tolist()) + (f" tokens {said[0] / said[2]:.3f} answers {said[1] / said[2]:.3f}" if said[2] else ""), flush=True)
            seen, right, last, said = 0, torch.zeros(len(sizes)), time.time(), [0.0, 0.0, 0, 0.0]
            torch.save({"w": parts.state_dict(), "state": state, "optimiser": optimiser.state_dict()}, path + ".part")
            os.replace(path + ".part", path)
    torch.save({"w": parts.state_dict(), "state": state, "optimiser": optimiser.state_dict()}, path + ".part")
    os.replace(path + ".part", path)


# ---- what is kept of it ------------------------------------------------------------------------------------------


def main_export(o):
    import numpy as np
    import safetensors
    import torch
    kept = torch.load(f"{o.run}/reader.pt", map_location="cpu")["w"]
    around = kept["marks"].numpy()  # <image> stands where rows of the tower come, and has no embedding
    tensors = {"marks": np.concatenate([np.zeros((1, around.shape[1]), np.float32), around])}
    for k, v in kept.items():
        if k.startswith("adapter."):  # a is [rank][columns]; b becomes [rank][rows], since a rank has a scale
            k = k[len("adapter."):].replace("/", ".")
            tensors[k] = v.numpy() if k.endswith(".a") else v.numpy().T
    vision, here = "model.vision_model.", {k[len("tower."):]: v.numpy() for k, v in kept.items() if k.startswith("tower.")}
    names = {"patch.bias": "embeddings.patch_embedding.bias", "position": "embeddings.position_embedding.weight",
             "post.weight": "post_layernorm.weight", "post.bias": "post_layernorm.bias"}
    tensors[vision + "embeddings.patch_embedding.weight"] = here.pop("patch.weight").reshape(WIDTH, 3, PATCH, PATCH)
    tensors["model.connector.modality_projection.proj.weight"] = here.pop("proj.weight")
    for k, v in here.items():
        tensors[vision + (names.get(k) or "encoder." + k)] = v
    parts = {}
    for k, v in tensors.items():
        if v.ndim == 1 or k == "marks":
            parts[k] = v.astype(np.float32)
            continue
        rows = v.reshape(len(v), -1)
        scale = np.abs(rows).max(1, keepdims=True).astype(np.float32) / 127
        parts[k], parts[k + ".scale"] = np.rint(rows / np.maximum(scale, 1e-30)).astype(np.int8).reshape(v.shape), scale[:, 0]
    path = f"{o.out}/eyes.safetensors"
    safetensors.write(path, parts, "F32")
    print(f"{path}: {os.path.getsize(path)} bytes, {sum(v.size for v in tensors.values())} parameters, "
          f"{sum(v.size for k, v in tensors.items() if k.startswith('model.vision') or 'connector' in k)} of them in the tower")


# ---- what INT8 does to the tower ------------------------------------------------------------------------------------


def hadamard(x):
    """Blocks of 64 inputs rotated, as model/tower_s8.h does it."""
    import torch
    h = torch.ones(1, 1)
    while len(h) < 64:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return (x.unflatten(-1, (-1, 64)) @ (h / 8)).flatten(-2)


def to_int8(x, most):
    import torch
    scale = most / 127
    return torch.clamp(torch.round(x / scale), -127, 127) * scale


class InInt8:
    """The layers' products with INT8 weights, a scale an output, and INT8 inputs. static: a scale for a site, from drawings of
    training: the largest value, or what `cover` of the values are below; else a scale for every row. outliers: values beyond the
    scale are added in floats (llm.npu 3.3)."""

    def __init__(self, tower, static, rotate, cover=1.0, outliers=False):
        import torch
        self.static, self.rotate, self.cover, self.outliers = static, rotate, cover, outliers
        self.most, self.seen, self.beyond = {}, None, [0, 0]
        self.rows = hadamard if rotate else lambda x: x
        for name, m in tower.named_modules():
            if isinstance(m, torch.nn.Linear) and name.startswith("layers."):
                m.forward = lambda x, m=m, name=name: self.product(name, m, x)

    def product(self, name, m, x):
        import torch
        x, w = self.rows(x), self.rows(m.weight)
        w = to_int8(w, w.abs().amax(-1, keepdim=True))
        site = name.rsplit(".", 1)[0] if name[-6:] in ("q_proj", "k_proj", "v_proj") else name
        if self.seen is not None:  # calibration
            k = x.abs().flatten()
            self.seen.setdefault(site, []).append(k.amax() if self.cover == 1 else torch.quantile(k[::7], self.cover))
            return torch.nn.functional.linear(x, self.rows(m.weight), m.bias)
        most = self.most[site] if self.static else x.abs().amax(-1, keepdim=True).clamp_min(1e-9)
        y = torch.nn.functional.linear(to_int8(x, most), w, m.bias)
        if self.static and self.outliers:
            over = torch.where(x.abs() > most, x - to_int8(x, most), 0.0)
            self.beyond = [self.beyond[0] + int((over != 0).sum()), self.beyond[1] + x.numel()]
            y = y + torch.nn.functional.linear(over, self.rows(m.weight))
        return y

    def calibrate(self, tower):
        self.seen = {}
        for i in range(4):
            tower(pixels_of([screen(2 * (i * 16 + k))[0] for k in range(16)]))
        self.most = {site: max(v) for site, v in self.seen.items()}
        self.seen = None


def main_simulate(o):
    """Row by row, and by answers: what static and dynamic INT8 do to the tower's layers; attention's own products are in floats."""
    import copy
    import torch
    torch.set_grad_enabled(False)
    torch.set_num_threads(o.threads)
    language = Language()
    width = language.embedding.shape[1]
    kept = torch.load(f"{o.run}/reader.pt", map_location="cpu")["w"]
    plain = tower()(width)
    plain.load_state_dict({k[len("tower."):]: v for k, v in kept.items() if k.startswith("tower.")})
    adapter = torch.nn.ParameterDict({k[len("adapter."):]: v for k, v in kept.items() if k.startswith("adapter.")})
    drawn = [screen(2 * i + 1) for i in range(o.n)]
    floats = None
    for what, form in [("floats", None), ("a scale a row, rotated (as tern)", dict(static=False, rotate=True)), ("a scale a row", dict(static=False, rotate=False)),
                       ("static", dict(static=True, rotate=False)), ("static, rotated", dict(static=True, rotate=True)),
                       ("static, rotated, 99.9 % covered", dict(static=True, rotate=True, cover=.999)),
                       ("static, rotated, 99.9 % covered, outliers in floats", dict(static=True, rotate=True, cover=.999, outliers=True)),
                       ("static, 99.9 % covered, outliers in floats", dict(static=True, rotate=False, cover=.999, outliers=True))]:
        t = copy.deepcopy(plain)
        hooks = InInt8(t, **form) if form else None
        if form and form["static"]:
            hooks.calibrate(t)
        rows = torch.cat([t(pixels_of([p for p, _ in drawn[i:i + 20]])) for i in range(0, o.n, 20)])
        floats = rows if floats is None else floats
        near = torch.nn.functional.cosine_similarity(rows, floats, -1)
        right = sum(answers_right(language, adapter, kept["marks"], rows[i:i + 10], [lines for _, lines in drawn[i:i + 10]]) for i in range(0, o.n, 10))
        beyond = f", {100 * hooks.beyond[0] / hooks.beyond[1]:.2f} % of values beyond" if form and form.get("outliers") else ""
        print(f"{what}: cosine {near.mean():.5f}, least {near.min():.5f}; {right} of {12 * o.n} answers right{beyond}", flush=True)


def answers_right(language, adapter, marks, rows, drawings):
    """How many of all answers come out whole, each token the likeliest after those before it."""
    import torch
    e, n, t = language.embedding, len(rows), language.tokenizer
    around = marks[0].expand(n, 1, -1)
    ids, at, turn, learn = turns(language, drawings, random.Random(0), 12)
    start, end = (e[torch.tensor(t.encode(x))].expand(n, -1, -1) for x in ("<|im_start|>user\n", "\n\n"))
    before = torch.cat([start, around, marks[1].expand(n, 1, -1), rows, around, end], 1)
    at, mask = seen_by(turn, at, before.shape[1])
    out = language.forward(torch.cat([before, e[ids]], 1), at, mask, adapter)[:, -ids.shape[1]:][:, :-1]
    ids, learn, turn = ids[:, 1:], learn[:, 1:], turn[:, 1:]
    wrong = torch.zeros(n, 13)
    for i in range(n):
        guess = (out[i][learn[i]] @ e.T).argmax(-1)
        wrong[i].scatter_add_(0, turn[i][learn[i]], (guess != ids[i][learn[i]]).float())
    return int((wrong[:, 1:] == 0).sum())


def main_pictures(o):
    os.makedirs(o.out, exist_ok=True)
    with open(f"{o.out}/questions.jsonl", "w", encoding="utf-8") as f:
        for i in range(o.n):
            seed = 2 * (o.first + i) + 1
            picture, lines = screen(seed)
            picture.save(f"{o.out}/{seed}.png", optimize=True)
            for kind, q, a in questions(lines):
                f.write(json.dumps({"picture": f"{seed}.png", "about": kind, "question": q, "answer": a}) + "\n")


def shifted(seed, how):
    """A drawing as measurement shows it, with what is asked about it."""
    import io
    from PIL import Image
    drawn = {"grounds": {"grounds": [(180, 220, 180), (250, 230, 200), (160, 160, 170)]}, "shades": {"shade": 25},
             "words": {"labels": NEW_LABELS}}.get(how, {})
    picture, lines = screen(seed, **drawn)
    if how == "jpeg":
        data = io.BytesIO()
        picture.save(data, "JPEG", quality=80)
        picture = Image.open(data).convert("RGB")
    if how == "size":
        picture = picture.resize((random.Random(seed).randint(90, 400),) * 2, Image.Resampling.BICUBIC)
    if how == "blank":
        picture = Image.new("RGB", (SIDE, SIDE), GROUNDS[0])
    if how == "other":
        picture, _ = screen(seed + 2)
    return picture, lines


def main_measure(o):
    right, asked, notes = {}, {}, open(f"{TINY}/calib.txt", encoding="utf-8").read()
    server = subprocess.Popen([o.tern, "serve", "-m", o.model, "--port", str(o.port), "-c", "2048", "--pack", "never", *o.serve.split()],
                              stderr=subprocess.PIPE, text=True)
    try:
        while "http://" not in (line := server.stderr.readline()):
            assert line, "the server has ended"
        for i in range(o.n):
            picture, lines = shifted(2 * (o.first + i) + 1, o.shown)
            for kind, q, want in questions(lines):
                got = ask(o.port, picture, q, notes[:o.notes])
                asked[kind] = asked.get(kind, 0) + 1
                right[kind] = right.get(kind, 0) + (got.strip() == want)
                if o.wrong and got.strip() != want:
                    print(f"{2 * (o.first + i) + 1}: {want!r} became {got!r}")
    finally:
        server.terminate()
        server.wait()
    n, k = sum(asked.values()), sum(right.values())
    z = 1.96  # Wilson's interval
    mid, half = (k + z * z / 2) / (n + z * z), z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    print(f"{os.path.basename(o.model)} {o.serve} {o.shown}: {k} of {n} right ({100 * k / n:.1f} %, {100 * (mid - half):.1f} to {100 * (mid + half):.1f}), "
          + ", ".join(f"{kind} {right[kind]} of {asked[kind]}" for kind in asked))


def ask(port, picture, question, notes=""):
    import base64
    import http.client
    import io
    data = io.BytesIO()
    picture.save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    content = [{"type": "text", "text": notes}] * bool(notes) + [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 40}))
    r = json.loads(c.getresponse().read())
    assert "choices" in r, r
    return r["choices"][0]["message"]["content"]


def main_draw(o):
    picture, lines = screen(o.seed)
    picture.save(o.out)
    for _, q, a in questions(lines):
        print(f"{q} {a}")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    s = a.add_subparsers(dest="what", required=True)
    t = s.add_parser("train")
    t.add_argument("run")
    t.add_argument("--minutes", type=float, default=60, help="of this run")
    t.add_argument("--total", type=float, default=120, help="minutes of all runs, over which the step shrinks")
    t.add_argument("--stage", type=int, default=1, help="1: the tower alone; 2: tern-tiny, beside it, from text; 3: both")
    t.add_argument("--threads", type=int, default=1)
    t.add_argument("--bf16", action="store_true", help="multiply in bf16, where the processor has it")
    e = s.add_parser("export")
    e.add_argument("run")
    e.add_argument("out")
    m = s.add_parser("measure")
    m.add_argument("tern")
    m.add_argument("model")
    m.add_argument("-n", type=int, default=100, help="drawings, of twelve questions each")
    m.add_argument("--first", type=int, default=0, help="drawings left out at the beginning")
    m.add_argument("--shown", choices=SHIFTS, default="drawn", help="as JPEG at quality 80, in another size, on other grounds, with colours a little off, "
                   "with words that were never trained on; blank, or another drawing, as controls")
    m.add_argument("--port", type=int, default=18321)
    m.add_argument("--wrong", action="store_true", help="print what was wrong")
    m.add_argument("--notes", type=int, default=0, help="so many bytes of other text stand before the drawing")
    m.add_argument("--serve", default="", help="options of tern serve, in one word: --serve='--encoder int8'")
    d = s.add_parser("draw")
    d.add_argument("out")
    d.add_argument("--seed", type=int, default=1)
    p = s.add_parser("pictures")
    p.add_argument("out")
    p.add_argument("-n", type=int, default=20)
    p.add_argument("--first", type=int, default=0)
    i = s.add_parser("simulate")
    i.add_argument("run")
    i.add_argument("-n", type=int, default=100)
    i.add_argument("--threads", type=int, default=1)
    o = a.parse_args()
    globals()[f"main_{o.what}"](o)


if __name__ == "__main__":
    main()
