#!/usr/bin/env python3
"""The Python tools: tokenizer, generator, safetensors, outlier injection. Runs with numpy alone:
python3 tests/tools/test_train.py"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

try:
    import numpy as np
except ImportError:
    print("skipped: needs numpy")
    sys.exit(77)

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path[:0] = [os.path.join(TOP, "tools"), os.path.join(TOP, "tools", "train")]
import as_q4_0  # noqa: E402
import as_shape  # noqa: E402
import bpe  # noqa: E402
import data  # noqa: E402
import embedding  # noqa: E402
import inject_outliers  # noqa: E402
import safetensors  # noqa: E402

MODEL = os.path.join(TOP, "models", "tern-tiny")
ODD = ["", " ", "a", "  two  spaces\n\n\ttab\r\nend ", "naïve café 北京 🙂 ½ x² ", "it's WE'LL don'T 12345", "\u3000wide\u00a0space", '<div id=12 text="OK">', "\x00\x7f\x85"]


class English:
    """A stand-in for the corpora, which are not part of the repository."""

    sentences = {s: [f"{s} sentence number {i} is quite plain." for i in range(50)] for s in data.SPLIT_SEED}


def tiny_llama(seed):
    cfg = {"hidden_size": 32, "head_dim": 8, "rms_norm_eps": 1e-5, "num_attention_heads": 4, "num_key_value_heads": 2,
           "rope_theta": 10000.0, "num_hidden_layers": 3, "vocab_size": 300}
    g = np.random.default_rng(seed)
    shapes = {"self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32),
              "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48)}
    w = {"model.embed_tokens.weight": g.normal(size=(300, 32)), "model.norm.weight": g.uniform(0.5, 2, 32)}
    for i in range(3):
        for n, s in shapes.items():
            w[f"model.layers.{i}.{n}.weight"] = g.normal(size=s) * 0.2
        for n in ("input_layernorm", "post_attention_layernorm"):
            w[f"model.layers.{i}.{n}.weight"] = g.uniform(0.5, 2, 32)
    return cfg, {k: safetensors.from_bf16(safetensors.to_bf16(v)) for k, v in w.items()}


class Bpe(unittest.TestCase):
    def test_pretokens_cover_the_text(self):
        for t in ODD:
            self.assertEqual("".join(bpe.pretoken_re().findall(t)), t)

    def test_qwen2_splits(self):
        f = bpe.pretoken_re().findall
        self.assertEqual(f("Room K27, it's 09:30"), ["Room", " K", "2", "7", ",", " it", "'s", " ", "0", "9", ":", "3", "0"])
        self.assertEqual(f("a  b\n\n c"), ["a", " ", " b", "\n\n", " c"])
        self.assertEqual(f('x="OK">\n'), ["x", '="', "OK", '">\n'])

    def test_train_and_round_trip(self):
        vocab, merges = bpe.train(["the cat and the hat and the bat " * 20, "low lower lowest " * 10], 280)
        t = bpe.Tokenizer(vocab, merges)
        self.assertEqual(len(set(vocab)), len(vocab))
        for s in ODD:
            self.assertEqual(t.decode(t.encode(s)), s)
        self.assertEqual(len(t.encode(" the")), 1)
        with tempfile.TemporaryDirectory() as d:
            t.save(f"{d}/tokenizer.json")
            self.assertEqual(bpe.Tokenizer.load(f"{d}/tokenizer.json").vocab, vocab)

    def test_specials_are_one_token(self):
        vocab, merges = bpe.train(["ab"], 259)
        t = bpe.Tokenizer(vocab, merges)
        self.assertEqual(t.encode("<|im_end|>a<|im_start|>"), [258, t.ids["a"], 257])

    @unittest.skipUnless(os.path.exists(f"{MODEL}/tokenizer.json"), "no shipped tokenizer")
    def test_shipped_tokenizer(self):
        t = bpe.Tokenizer.load(f"{MODEL}/tokenizer.json")
        self.assertEqual(t.vocab[-3:], bpe.SPECIALS)
        for s in ODD:
            self.assertEqual(t.decode(t.encode(s)), s)


class Generator(unittest.TestCase):
    def maker(self, split="train", index=0):
        return data.Maker(split, index, English)

    @staticmethod
    def count(s):
        return len(s) // 3

    def test_seed_decides(self):
        a, b = (self.maker().item("extraction", 400, self.count) for _ in range(2))
        self.assertEqual(a, b)
        self.assertNotEqual(a, self.maker("test").item("extraction", 400, self.count))

    def test_answers_stand_in_the_document(self):
        m = self.maker()
        for _ in range(500):
            doc, qa, _ = m.item("extraction", 500, self.count)
            for q, a in qa:
                value = a if a[0] == "[" else a.rsplit(" is ", 1)[1].rstrip(".")
                value = value.removeprefix("on ").removeprefix("about ")
                self.assertIn(value, doc, (q, a))

    def test_ui_and_call(self):
        m = self.maker()
        for _ in range(100):
            doc, qa, _ = m.item("ui_action", 400, self.count)
            q, a = qa[0]
            el = next(x for x in doc.split("\n") if x.startswith("<") and f'"{q.split(chr(34))[-2]}"' in x)
            if not q.startswith("Type"):
                self.assertIn(el.split("id=")[1].rstrip(">"), a)
            doc, qa, _ = m.item("function_call", 400, self.count)
            self.assertIn(qa[0][1].split("(")[0] + "(", doc)

    def test_length_is_kept(self):
        m = self.maker()
        for n in (200, 500, 1000, 2000):
            for task in m.KINDS:
                it = m.item(task, n, self.count, 2)
                if it:
                    self.assertLessEqual(self.count("".join(t for t, _ in data.render(it[0], it[1]))), n + 40)


class Safetensors(unittest.TestCase):
    def test_round_trip(self):
        _, w = tiny_llama(1)
        with tempfile.TemporaryDirectory() as d:
            for dtype in ("BF16", "F32"):
                safetensors.write(f"{d}/m", w, dtype)
                back = safetensors.read(f"{d}/m")
                self.assertEqual(set(back), set(w))
                for k in w:
                    np.testing.assert_array_equal(back[k], w[k])

    def test_bf16_rounds_to_nearest_even(self):
        x = np.array([1.0, 1.00390625, 1.01171875, -3.14159], np.float32)
        np.testing.assert_array_equal(safetensors.from_bf16(safetensors.to_bf16(x)), np.array([1.0, 1.0, 1.015625, -3.140625], np.float32))


class AsShape(unittest.TestCase):
    def test_same_logits_in_another_shape(self):
        shape = (5, 96, 6, 16, 80, 320)
        cfg, w = tiny_llama(1)
        w["mtp.fc.weight"] = np.arange(32 * 64, dtype=np.float32).reshape(32, 64)
        ids = np.random.default_rng(1).integers(0, 300, 40)
        of, rng = as_shape.plan(cfg, w, shape), np.random.default_rng(1)
        big = {n: as_shape.grown(w[o], o, cfg, shape, rng, n != o) for n, o in of.items()}
        for n, t in big.items():
            self.assertEqual(t.shape, as_shape.shape_of(n, shape), n)
        self.assertTrue(big["model.layers.4.mlp.up_proj.weight"].any())
        fc = big.pop("mtp.fc.weight")  # a row's first half is of the token, its second of the state
        np.testing.assert_array_equal(fc[:32, :32], w["mtp.fc.weight"][:, :32])
        np.testing.assert_array_equal(fc[:32, 96:128], w.pop("mtp.fc.weight")[:, 32:])
        self.assertEqual(np.count_nonzero(fc), 32 * 64 - 1)
        want = inject_outliers.forward(cfg, {k: v.astype(np.float64) for k, v in w.items()}, ids)
        got = inject_outliers.forward(as_shape.config_of(cfg, shape), {k: v.astype(np.float64) for k, v in big.items()}, ids)
        np.testing.assert_allclose(got[:, :300], want, rtol=0, atol=1e-5 * np.abs(want).max())
        self.assertEqual(np.abs(got[:, 300:]).max(), 0)


class Outliers(unittest.TestCase):
    def test_same_logits_larger_activations(self):
        for seed in range(3):
            cfg, w = tiny_llama(seed)
            ids = np.random.default_rng(seed).integers(0, 300, 40)
            steps = inject_outliers.plan(cfg, w, ids, seed, 32)
            self.assertEqual({s[1] for s in steps}, {"attn", "mlp", "down", "value"})
            out = inject_outliers.apply(cfg, w, steps)
            for t in (np.float64, np.float32):
                peaks = []
                logits = []
                for m in (w, out):
                    seen = {}
                    logits.append(inject_outliers.forward(cfg, {k: v.astype(t) for k, v in m.items()}, ids, lambda n, x: seen.__setitem__(n, np.abs(x).max(0))))
                    peaks.append(seen)
                np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=1e-10 if t is np.float64 else 1e-4)
            for n in peaks[0]:
                ratio = peaks[1][n].max() / np.median(peaks[1][n])
                if "layers.0" in n:
                    self.assertGreater(ratio, 10, n)
            np.testing.assert_array_equal(out["model.embed_tokens.weight"], w["model.embed_tokens.weight"])
            np.testing.assert_array_equal(out["model.norm.weight"], w["model.norm.weight"])

    def test_keys_with_outliers_change_nothing(self):
        for seed in range(3):
            cfg, w = tiny_llama(seed)
            ids = np.random.default_rng(seed).integers(0, 300, 40)
            steps = inject_outliers.plan_keys(cfg, w, ids, 32)
            self.assertEqual(len(steps), cfg["num_hidden_layers"] * cfg["num_key_value_heads"])
            out = inject_outliers.apply(cfg, w, steps)
            a, b = (inject_outliers.forward(cfg, {k: v.astype(np.float32) for k, v in m.items()}, ids) for m in (w, out))
            np.testing.assert_array_equal(a, b)  # powers of two, and rope turns both channels of a pair alike
            k = "model.layers.0.self_attn.k_proj.weight"
            self.assertEqual(int((out[k] != w[k]).any(1).sum()), 2 * cfg["num_key_value_heads"])

    def write_energies(self, path, layers, spread):
        """An importance matrix in llama.cpp's old form: sums over 7 calls, channels of a site `spread` apart in all."""
        rows = {}
        for i in range(layers):
            for k, (site, n) in enumerate((("attn_q", 64), ("ffn_gate", 64), ("attn_output", 64), ("ffn_down", 96))):
                rows[f"blk.{i}.{site}.weight"] = spread ** (2 * (np.arange(n)[::-1] / (n - 1) - 0.5) * (1 + k + i))
        with open(path, "wb") as f:
            f.write(struct.pack("<i", len(rows)))
            for name, e in rows.items():
                f.write(struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 7, len(e)) + (7 * e).astype("<f4").tobytes())
        return rows

    def test_energies_of_a_real_model(self):
        for seed in range(2):
            cfg, w = tiny_llama(seed)
            ids = np.random.default_rng(seed).integers(0, 300, 60)
            with tempfile.TemporaryDirectory() as d:
                rows = self.write_energies(f"{d}/e.dat", 5, 3.0)
                read = inject_outliers.read_energies(f"{d}/e.dat")
            for name, e in rows.items():
                np.testing.assert_allclose(read[name], e, rtol=1e-6)
            steps = inject_outliers.plan_energies(cfg, w, ids, read, seed)
            self.assertEqual({s[1] for s in steps}, {"attn", "mlp", "down", "value"})
            out = inject_outliers.apply(cfg, w, steps)
            a, b = (inject_outliers.forward(cfg, {k: v.astype(np.float64) for k, v in m.items()}, ids) for m in (w, out))
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)
            # Layer i of 3 is as layer 2 i of 5 there: its channels over their median, in order, are those, within the power of two.
            seen = {}
            inject_outliers.forward(cfg, out, ids, lambda n, x: seen.__setitem__(n, np.sqrt((x * x).mean(0))))
            for i in range(3):
                for ours, theirs in (("self_attn.q_proj", "attn_q"), ("mlp.gate_proj", "ffn_gate"), ("mlp.down_proj", "ffn_down")):
                    got = np.sort(seen[f"model.layers.{i}.{ours}.weight"])[::-1]
                    e = np.sqrt(read[f"blk.{2 * i}.{theirs}.weight"])
                    want = np.sort(e)[::-1][np.arange(len(got)) * len(e) // len(got)]
                    ratio = np.log2((got / np.median(got)) / (want / np.median(e)))
                    self.assertLess(np.abs(ratio - np.median(ratio)).max(), 1.3, f"layer {i} {ours}")

    @unittest.skipUnless(os.path.exists(f"{MODEL}/model.safetensors"), "no shipped model")
    def test_shipped_model(self):
        with tempfile.TemporaryDirectory() as d:
            r = subprocess.run([sys.executable, f"{TOP}/tools/inject_outliers.py", MODEL, d, "--tokens", "256", "--check"], capture_output=True, text=True)
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            with open(f"{d}/config.json") as f:
                self.assertEqual(json.load(f)["model_type"], "llama")

    @unittest.skipUnless(os.path.exists(f"{MODEL}/model.safetensors"), "no shipped model")
    def test_changed_function_is_not_written(self):
        def wrong(cfg, w, steps):
            return dict(w, **{"model.norm.weight": w["model.norm.weight"] * 2})

        with tempfile.TemporaryDirectory() as d:
            argv = ["inject_outliers.py", MODEL, f"{d}/out", "--tokens", "32"]
            with unittest.mock.patch.object(inject_outliers, "apply", wrong), unittest.mock.patch.object(sys, "argv", argv):
                with self.assertRaises(SystemExit) as e:
                    inject_outliers.main()
            self.assertIn("nothing was written", str(e.exception))
            self.assertEqual(os.listdir(d), [])


class Blocks(unittest.TestCase):
    def test_q4_0(self):
        code = np.arange(32) % 16 - 8
        block = code * np.array([[0.5], [-0.25], [0]], np.float32)  # what the format can say stays
        np.testing.assert_array_equal(as_q4_0.rounded(block), block)
        x = np.random.default_rng(1).normal(size=(64, 96)).astype(np.float32)
        error, top = np.abs(as_q4_0.rounded(x) - x).reshape(-1, 32), np.abs(x).reshape(-1, 32).max(1)
        self.assertTrue((error <= top[:, None] / 8 * 1.001).all())  # a whole step at the end that has no code of its own
        self.assertGreater(error.mean(), top.mean() / 64)


class Embedding(unittest.TestCase):
    """tools/train/embedding.py, without its training, which needs torch."""

    def test_words_are_cut_as_the_oracle_cuts_them(self):
        at = os.path.join(TOP, "tests", "oracle", "embedding")
        with open(os.path.join(at, "bert", "hf", "tokenizer.json"), encoding="utf-8") as f:
            ids = json.load(f)["model"]["vocab"]
        cut = embedding.Pieces(sorted(ids, key=ids.get))
        with open(os.path.join(at, "pieces.jsonl"), encoding="utf-8") as f:
            for line in map(json.loads, f):
                self.assertEqual(cut(line["text"]), line["wordpiece"], line["text"])

    def test_pieces_are_the_most_frequent_pairs(self):
        made = embedding.make_pieces({"lower": 50, "low": 90, "slow": 10, "er": 8}, 15)
        self.assertEqual(made[:5], embedding.SPECIAL)
        self.assertEqual(set(made[5:13]), {"l", "s", "e", "##l", "##o", "##w", "##e", "##r"})
        self.assertEqual(made[13:], ["##ow", "low"])

    def test_sections_manuals_and_languages(self):
        page = '<h1>1. First</h1><p>one<br>two</p><h2 class="title">Second &amp; last</h2><p>three</p><div class="navfooter">no'
        self.assertEqual(list(embedding.of_marks(page, r"(?is)<(h[1-6])\b[^>]*>(.*?)</\1>")), [("1. First", "one\ntwo"), ("Second & last", "three")])
        manual = '.TH X 1\n.SH NAME\nx \\- does \\fBmuch\\fR\n.SH SYNOPSIS\nx\n.SH DESCRIPTION\n.B x\ndoes it.\n'
        self.assertEqual([(a, b.split()) for a, b in embedding.of_manual(manual)], [("does much", ["x", "does", "it."])])
        for text, language in (("Der Rechner ist an.", "de"), ("The machine is on.", "en"), ("電源が入っています。", "ja"), ("12 34", None)):
            self.assertEqual(embedding.language_of(text), language)
        self.assertEqual([embedding.NUMBER.sub("", s) for s in ("B.7.2.3. Disks", "3D view", "Kapitel 2. APT", "第 5 章 x")], ["Disks", "3D view", "APT", "x"])


if __name__ == "__main__":
    random.seed(0)
    unittest.main()
