#!/usr/bin/env python3
"""Train a small model that embeds: titles beside the text of their sections, in English, German and Japanese.

    embedding.py pairs FOLDER PAIRS --without TEXT_FOLDER       read the documents below FOLDER
    embedding.py train PAIRS OUT [--minutes 13] [--threads 1]   train, and write OUT as a Hugging Face folder

FOLDER holds what Debian's packages of documents unpack (`apt-get download`, then `dpkg-deb -x`), and lists of packages
with their descriptions (`apt-get update` with Acquire::Languages "en,de,ja" and Acquire::GzipIndexes false; files whose
name has "_i18n_Translation-"). Read are HTML, GNOME's help (.page) and manual pages. A pair is a title and the text
that follows it; of a manual page, what NAME says and DESCRIPTION; of a package, its short and its long description. A
text that shares a run of 40 letters with a page below TEXT_FOLDER is left out, so that what is measured there was not
trained on. The developers' reference (HELD_OUT) is not trained on either: `train` tells how often its sections are
found, and choices are made by that.

The model is a BERT: word pieces made from the training texts, a layer, the mean over its tokens. Loss: each title must
be nearest to its own text among those of its batch, and the other way round (InfoNCE). Most batches are of one language
and nearly half are of one source, since texts that are alike teach more than texts that have nothing in common. Some of
the titles (--cloze) are replaced by words of the text, which are taken out of it: there are few titles. For the share
--alone of the time the words' vectors are trained without the layer, which then begins as nothing.
Needs numpy and torch; Debian's multiplies bf16 on a CPU, and f32 without OpenBLAS fifty times slower.

The model of docs/record/performance.md was made from debian-reference-{en,de,ja}, developers-reference{,-de,-ja},
installation-guide-amd64, maint-guide{,-de,-ja}, debmake-doc, debian-handbook, debian-policy{,-ja},
aptitude-doc-{en,ja}, harden-doc, apt-doc, manpages{,-dev,-de,-de-dev,-ja,-ja-dev}, gimp-help-{en,de,ja},
gnome-user-docs, libreoffice-help-{en-us,de,ja}, kicad-doc-{en,de,ja} and Debian 12's lists.
"""
import argparse
import collections
import gzip
import heapq
import html
import json
import math
import os
import random
import re
import time
import unicodedata

LANGUAGES = ("en", "de", "ja")
HELD_OUT = "developers-reference"
OTHERS = {"C": "en", "en-US": "en", "de-DE": "de", "ja-JP": "ja"}
AN_ENGLISH_ONLY = re.compile("debian-policy/policy|apt-doc|debmake-doc|/usr/share/developers-reference/[^/]*$|man/man")
A_FOREIGN = re.compile(r"\.(?!en|de|ja)[a-z]{2}([-_][A-Za-z]+)?\.html")
NUMBER = re.compile(r"^\s*(Chapter |Kapitel |第 ?)?[A-Z]?[\d.]*\d[\d.]*( ?章)?\.?\s")
CAP = {"packages": 14000, "libreoffice": 7000, "man": 3000}  # pairs of one source and language
ASKED = {  # a title put as a question, as people put them
    "en": ("How do I {}?", "What is {}?", "How can I {}?", "What about {}?", "Where do I find {}?", "Why {}?",
           "What does {} mean?", "Is there {}?"),
    "de": ("Was ist {}?", "Wie kann ich {}?", "Wie funktioniert {}?", "Was bedeutet {}?", "Wo finde ich {}?",
           "Warum {}?", "Gibt es {}?", "Welche {}?"),
    "ja": ("{}とは何ですか？", "{}はどうすればいいですか？", "どのように{}のですか？", "{}はどこにありますか？",
           "なぜ{}のですか？", "{}はありますか？", "{}について教えてください。"),
}


# ---- pairs ---------------------------------------------------------------------------------------------


def plain(s):
    s = re.sub(r"(?is)<(script|style|nav|head)\b.*?</\1>|<!--.*?-->|<div class=\"toc\">.*?</div>", " ", s)
    s = re.sub(r"(?i)</(p|li|pre|dt|dd|div|h\d|tr|title|item)>|<br */?>", "\n", s)
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"[ \t\xa0]+", " ", html.unescape(re.sub(r"<[^>]*>", "", s)))).strip()


def of_marks(page, title):
    """Sections of HTML or of a help page: what follows a title, until the next."""
    found = list(re.finditer(title, page))
    for i, m in enumerate(found):
        text = page[m.end():found[i + 1].start() if i + 1 < len(found) else len(page)]
        yield plain(m[2]), plain(re.split(r'<div class="navfooter"|<footer|<div id="footer|</body', text)[0])


def of_manual(page):
    page = re.sub(r'(?m)^[.\'](\\".*|(TH|de|ig|so|if|ie|el|nr|ds|hy|ad|PD|tr|ne|ft|ce|in)\b.*)\n', "", page)
    parts = dict(re.findall(r'(?ms)^\.S[Hh] +"?([^"\n]*)"?\n(.*?)(?=^\.S[Hh]|\Z)', page))
    parts = {k.strip().upper(): v for k, v in parts.items()}
    name = next((parts[k] for k in ("NAME", "BEZEICHNUNG", "名前", "名称") if k in parts), None)
    text = next((parts[k] for k in ("DESCRIPTION", "BESCHREIBUNG", "説明") if k in parts), None)
    if name and text:
        said = [re.sub(r"^\.[A-Za-z]+ ?", "", x) for x in (name, text[:4000])]
        said = [re.sub(r"(?m)^\.[A-Za-z]+ ?|\\f.|\\f\(..|\\m\[.*?\]|\\s[-+]?\d", "", x) for x in said]
        said = [re.sub(r"\\(\(em|\(en|-)", "-", re.sub(r"\\[&,/|^%c]", "", x)).replace("\\(aq", "'") for x in said]
        yield re.sub(r"\s+", " ", re.split(r"\s[-–—]+\s", said[0], 1)[-1]).strip(), re.sub(r"\\.", " ", said[1])


def of_packages(path, language):
    told = open(path, encoding="utf-8").read()
    for m in re.finditer(r"(?ms)^Description-%s: (.*?)\n(.*?)(?=^\S|\Z)" % language, told):
        yield m[1], re.sub(r"(?m)^ \.$|^ +", "", m[2])


def documents(folder):
    """(language, source, sections) of every file that is read."""
    for at, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            path = os.path.join(at, name)
            words = re.split(r"[/._]", path)
            language = next((OTHERS.get(w, w) for w in reversed(words) if w in LANGUAGES or w in OTHERS), None)
            if not language and AN_ENGLISH_ONLY.search(path):
                language = "en"
            if "_i18n_Translation-" in name:
                language = name[-2:]
                if language in LANGUAGES:
                    yield language, "packages", of_packages(path, language)
                continue
            if not language or A_FOREIGN.search(name) or "/share/" not in path or os.path.islink(path):
                continue
            said = path.split("/share/")[1].split("/")
            source = "gnome" if said[0] == "help" else said[1] if said[0] == "doc" and len(said) > 2 else said[0]
            source = re.sub(r"-(en|de|ja|en-us|dev)$", "", source)
            if said[0] == "man" and name.endswith(".gz"):
                yield language, "man", of_manual(gzip.open(path, "rt", encoding="utf-8", errors="replace").read())
            elif name.endswith((".html", ".html.gz")) and "index" not in name:
                read = gzip.open if name.endswith("gz") else open
                page = read(path, "rt", encoding="utf-8", errors="replace").read()
                yield language, source, of_marks(page, r"(?is)<(h[1-6])\b[^>]*>(.*?)</\1>")
            elif name.endswith(".page"):
                page = re.sub(r"(?s)<(info|comment)\b.*?</\1>", " ", open(path, encoding="utf-8").read())
                yield language, source, of_marks(page, r"(?s)<(title)\b[^>]*>(.*?)</\1>")


def language_of(text):
    if 20 * len(re.findall("[\u3040-\u30ff]", text)) > len(text):
        return "ja"
    words = re.findall(r"\w+", text.lower())
    german, english = (sum(w in own for w in words) for own in ({"der", "die", "und", "ist", "sie", "von", "den", "zu"},
                                                                {"the", "of", "and", "is", "to", "for", "you", "a"}))
    return "de" if german > english else "en" if english else None


def runs(text, n=40):
    """Runs of n letters: two texts that say the same in the same words share some."""
    text = re.sub(r"\W+", "", text).lower()
    return {text[i:i + n] for i in range(len(text) - n + 1)}


def pairs(a):
    measured = set()
    for at, _, names in os.walk(a.without):
        for name in names:
            if name.endswith(".html"):
                page = open(os.path.join(at, name), encoding="utf-8").read()
                measured |= runs(plain(page.split('<div class="navfooter"')[0]))
    r, by, n_shared = random.Random(1), collections.defaultdict(dict), 0
    for language, source, sections in documents(a.folder):
        for title, text in sections:
            title = re.sub(r"\s+", " ", NUMBER.sub("", title)).strip(" \uf0c1¶:：")
            if not 3 < len(title) < 120 or len(text) < 80 or language_of(text) != language:
                continue
            if a.without and any(text_run in measured for text_run in runs(text[:4000])):
                n_shared += 1
                continue
            by[language, source].setdefault((title, text[:4000]), None)
    with open(a.out, "w", encoding="utf-8") as f:
        for (language, source), found in sorted(by.items()):
            often = collections.Counter(title for title, _ in found)
            found = [p for p in found if often[p[0]] < 4]
            r.shuffle(found)
            for title, text in found[:CAP.get(source, 5000)]:
                text = text[:4000 if source == HELD_OUT else 1600]
                f.write(json.dumps([language, source, title, text], ensure_ascii=False) + "\n")
            print(f"{language} {source}: {min(len(found), CAP.get(source, 5000))} pairs")
    print(f"{n_shared} sections left out that share text with {a.without}")
    counts = collections.Counter()
    for language in LANGUAGES:  # which get the same weight
        of = [pair for k, source in by if k == language and source != HELD_OUT for pair in by[k, source]]
        of = [text for pair in of for text in pair]
        of = collections.Counter(w for text in r.sample(of, min(len(of), 10000)) for w in words_of(text[:1600]))
        for w, k in of.items():
            counts[w] += k * 1e6 / sum(of.values())
    with open(a.out + ".pieces", "w", encoding="utf-8") as f:
        f.write("".join(piece + "\n" for piece in make_pieces(counts, a.vocabulary)))


# ---- word pieces -----------------------------------------------------------------------------------------

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
IDEOGRAPHS = ((0x3400, 0x4dbf), (0x4e00, 0x9fff), (0xf900, 0xfaff), (0x20000, 0x2a6df))


def kinds(c):
    k = unicodedata.category(c)
    if c in "\t\n\r" or k[0] == "Z":
        return " "
    if k in ("Cc", "Cf", "Co", "Mn") or c == "\ufffd":
        return ""
    if k[0] == "P" or (c.isascii() and not c.isalnum()) or any(lo <= ord(c) <= hi for lo, hi in IDEOGRAPHS):
        return f" {c} "
    return c


class Kinds(dict):
    def __missing__(self, c):
        self[c] = kinds(chr(c))
        return self[c]


KINDS = Kinds()


def words_of(text):
    """BERT's words: lower case, no accents, every mark and ideograph alone."""
    return unicodedata.normalize("NFD", text).lower().translate(KINDS).split()


def make_pieces(counts, n):
    """Byte-pair merges over letters, the most frequent pair first; pieces inside a word begin with ##."""
    letters = collections.Counter()
    for w, k in counts.items():
        for i, c in enumerate(w):
            letters["##" * (i > 0) + c] += k
    vocabulary = SPECIAL + [c for c, k in letters.most_common(5000) if k > 5]
    kept = set(vocabulary)
    spelled = {w: ["##" * (i > 0) + c for i, c in enumerate(w)] for w in counts if len(w) < 40}
    spelled = {w: s for w, s in spelled.items() if all(c in kept for c in s)}
    where, total = collections.defaultdict(set), collections.Counter()
    for w, s in spelled.items():
        for p in zip(s, s[1:]):
            where[p].add(w)
            total[p] += counts[w]
    queue = [(-k, p) for p, k in total.items()]
    heapq.heapify(queue)
    while len(vocabulary) < n and queue:
        k, best = heapq.heappop(queue)
        if -k != total[best] or best not in where:
            continue  # it was counted again since
        merged, changed = best[0] + best[1][2:], set()
        if merged not in kept:
            vocabulary.append(merged)
            kept.add(merged)
        for w in where.pop(best):
            s, new = spelled[w], []
            for c in s:
                if new and (new[-1], c) == best:
                    new[-1] = merged
                else:
                    new.append(c)
            spelled[w] = new
            for sign, spelling in ((-1, s), (1, new)):
                for p in zip(spelling, spelling[1:]):
                    total[p] += sign * counts[w]
                    if p != best:
                        where[p].add(w)
                        changed.add(p)
        for p in changed:
            heapq.heappush(queue, (-total[p], p))
    return vocabulary


class Pieces:
    def __init__(self, vocabulary):
        self.ids = {t: i for i, t in enumerate(vocabulary)}
        self.known = {}

    def word(self, w):
        if w not in self.known:
            out, at = [], 0
            while at < len(w) <= 100:
                end = next((e for e in range(len(w), at, -1) if "##" * (at > 0) + w[at:e] in self.ids), None)
                if end is None:
                    break
                out.append(self.ids["##" * (at > 0) + w[at:end]])
                at = end
            self.known[w] = out if at == len(w) else [1]
        return self.known[w]

    def __call__(self, text):
        return [i for w in words_of(text) for i in self.word(w)]


# ---- training --------------------------------------------------------------------------------------------


def train(a):
    import numpy as np
    import torch
    import torch.nn.functional as F
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    r = random.Random(1)
    data = [json.loads(line) for line in open(a.pairs, encoding="utf-8")]
    taught = [d for d in data if d[1] != HELD_OUT]
    vocabulary = open(a.pairs + ".pieces", encoding="utf-8").read().splitlines()
    cut = Pieces(vocabulary)
    print(f"{len(taught)} pairs to learn from, {len(data) - len(taught)} held out, {len(vocabulary)} pieces")
    E, FF, HEADS, N_POS = a.width, 2 * a.width, a.width // 32, 320
    w = {}

    def tensor(name, *shape, scale=.02, offset=0.):
        w[name] = torch.nn.Parameter(offset + scale * torch.randn(*shape))

    def norm(name):
        tensor(name + ".weight", E, scale=0., offset=1.)
        tensor(name + ".bias", E, scale=0.)

    def linear(name, n, m):
        tensor(name + ".weight", n, m, scale=m ** -.5)
        tensor(name + ".bias", n, scale=0.)

    tensor("embeddings.word_embeddings.weight", len(vocabulary), E, scale=.05)
    tensor("embeddings.position_embeddings.weight", N_POS, E, scale=.01)
    tensor("embeddings.token_type_embeddings.weight", 2, E, scale=0.)
    norm("embeddings.LayerNorm")
    for i in range(a.layers):
        p = f"encoder.layer.{i}."
        for k in ("query", "key", "value"):
            linear(p + "attention.self." + k, E, E)
        linear(p + "attention.output.dense", E, E)
        norm(p + "attention.output.LayerNorm")
        linear(p + "intermediate.dense", FF, E)
        linear(p + "output.dense", E, FF)
        norm(p + "output.LayerNorm")
        w[p + "output.dense.weight"].data.zero_()  # a layer begins as nothing
        w[p + "attention.output.dense.weight"].data.zero_()
    last = f"encoder.layer.{a.layers - 1}.output.LayerNorm"
    w[last + ".weight"].data[0] = 0

    def ln(x, name):
        return F.layer_norm(x, (E,), w[name + ".weight"], w[name + ".bias"], 1e-12)

    def lin(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    half = torch.autocast("cpu", dtype=torch.bfloat16)  # products: several times as fast as f32 with Debian's torch

    @half
    def embed(ids, shift=0, drop=0., layers=a.layers):
        n, mask = ids.shape[1], ids != 0
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][shift:shift + n]
        x = F.dropout(ln(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"), drop, drop > 0)
        hidden = torch.zeros(mask.shape).masked_fill(~mask, -1e9)[:, None, None]
        for i in range(layers):
            p = f"encoder.layer.{i}."
            q, k, v = (lin(x, p + "attention.self." + c).view(*ids.shape, HEADS, -1).transpose(1, 2)
                       for c in ("query", "key", "value"))
            y = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(E // HEADS) + hidden, -1) @ v
            y = lin(y.transpose(1, 2).reshape(x.shape), p + "attention.output.dense")
            x = ln(x + F.dropout(y, drop, drop > 0), p + "attention.output.LayerNorm")
            y = lin(F.gelu(lin(x, p + "intermediate.dense")), p + "output.dense")
            x = ln(x + F.dropout(y, drop, drop > 0), p + "output.LayerNorm")
        x = x if layers else ln(x, last)
        m = mask[:, :, None].float()
        return F.normalize((x.float() * m).sum(1) / m.sum(1), dim=1)

    def batch_of(lists):
        n = max(map(len, lists)) + 2
        return torch.tensor([[2] + x + [3] + [0] * (n - 2 - len(x)) for x in lists])

    def found(layers=a.layers):
        """Of the held-out sections, cut roughly as tern cuts them: how often a title finds its own."""
        told = {}
        with torch.no_grad():
            passages = [(i, d[5][at:at + 190]) for i, d in enumerate(held) for at in range(0, len(d[5]), 160)]
            p, q = (torch.cat([embed(batch_of(lists[k:k + 64]), layers=layers) for k in range(0, len(lists), 64)])
                    for lists in ([x for _, x in passages], [d[4] for d in held]))
            centre = p.mean(0)
            with half:
                s = ((q - centre) @ F.normalize(p - centre, dim=1).T).float()
            of = np.array([i for i, _ in passages])
            for language in LANGUAGES:
                own = [i for i, d in enumerate(held) if d[0] == language]
                top = [of[s[i].topk(5).indices.numpy()] for i in own]
                told[language] = (len(own), *(sum(i in t[:n] for t, i in zip(top, own)) for n in (1, 5)))
        return told

    for d in data:
        d.append(cut(d[2])[:48])
        d.append(cut(d[3])[:1200])
    held = [d for d in data if d[1] == HELD_OUT]
    # The last norm divides by channel 0 too and then takes it away: where it is large, a word is small in the mean.
    # Common words begin so.
    often = collections.Counter(i for d in taught for i in d[5])
    share = torch.tensor([often[i] / sum(often.values()) for i in range(len(vocabulary))])
    weight = (1e-3 / (1e-3 + share)).clamp(min=.1)
    weight[2:4] = .1
    w["embeddings.word_embeddings.weight"].data[:, 0] = .05 * E ** .5 * (weight ** -2 - 1).clamp(min=0) ** .5
    groups = collections.defaultdict(list)
    for i, d in enumerate(taught):
        groups[d[0], d[1]].append(i)
    lots = {language: [i for (k, _), v in groups.items() if k == language for i in v] for language in LANGUAGES}
    sources = {g: len(v) ** .5 for g, v in groups.items() if len(v) >= a.batch // 2}

    def draw(n):
        kind = r.random()
        if kind < .45:
            lot = groups[r.choices(list(sources), list(sources.values()))[0]]
        elif kind < .85:
            lot = lots[r.choice(LANGUAGES)]
        else:
            lot = range(len(taught))
        asked, texts = [], []
        for i in r.sample(lot, min(n, len(lot))):
            language, _, title, _, ids, text = taught[i]
            if r.random() < a.cloze and len(text) > 40:
                i = r.randrange(len(text) - 20)
                j = i + r.randrange(6, 20)
                asked.append(text[i:j])
                texts.append((text[max(0, i - a.tokens // 2):i] + text[j:])[:a.tokens])
                continue
            if r.random() < .3:
                ids = cut(r.choice(ASKED[language]).format(title.rstrip("?？")))
            at = 0 if r.random() < .6 else r.randrange(max(len(text) - 40, 1))
            asked.append(ids[:30])
            texts.append(text[at:at + a.tokens])
        return batch_of(asked), batch_of(texts)

    vectors = w["embeddings.word_embeddings.weight"]
    others = [x for x in w.values() if x is not vectors]
    opt = torch.optim.AdamW([{"params": [vectors], "rate": 2 * a.rate}, {"params": others, "rate": a.rate}],
                            betas=(.9, .98), weight_decay=.01)
    begun, step, mean, told = time.time(), 0, 0., time.time()
    print("held out", found(0), flush=True)
    while True:
        done = (time.time() - begun) / (60 * a.minutes)
        if done >= 1:
            break
        layers = a.layers if done > a.alone else 0  # words alone first: a step costs a tenth
        for g in opt.param_groups:
            g["lr"] = g["rate"] * min(1, (step + 1) / 60) * (1 if done < .4 else max(.02, (1 - done) / .6))
        asked, texts = draw(a.batch if layers else 2 * a.batch)
        shift = r.randrange(N_POS - texts.shape[1]) if r.random() < .3 else 0
        asked, texts = embed(asked, 0, a.drop, layers), embed(texts, shift, a.drop, layers)
        with half:
            s = (asked @ texts.T).float()
        own = torch.arange(len(s))
        loss = (F.cross_entropy(s / a.heat, own) + F.cross_entropy(s.T / a.heat, own)) / 2
        opt.zero_grad()
        loss.backward()
        opt.step()
        step, mean = step + 1, .98 * mean + .02 * float(loss.detach())
        if time.time() - told > 60 * a.tell:
            told = time.time()
            print(f"{step} steps, {told - begun:.0f} s, {layers} layers, loss {mean / (1 - .98 ** step):.3f}",
                  "held out", found(layers), flush=True)
    print(f"{step} steps, held out (questions, first, one of five): {found()}")
    export(a.out, vocabulary, {k: v.detach().numpy() for k, v in w.items()}, E, FF, HEADS, a.layers, N_POS)


def export(out, vocabulary, tensors, width, ff, heads, layers, n_positions):
    import safetensors
    os.makedirs(out + "/1_Pooling", exist_ok=True)
    safetensors.write(out + "/model.safetensors", tensors, "F32")

    def write(name, what):
        with open(f"{out}/{name}", "w", encoding="utf-8") as f:
            json.dump(what, f)

    write("config.json", {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": width,
                          "hidden_act": "gelu", "num_attention_heads": heads, "num_hidden_layers": layers,
                          "intermediate_size": ff,
                          "layer_norm_eps": 1e-12, "max_position_embeddings": n_positions, "type_vocab_size": 2,
                          "vocab_size": len(vocabulary), "position_embedding_type": "absolute", "pad_token_id": 0})
    write("1_Pooling/config.json", {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True})
    write("modules.json", [{"idx": i, "type": f"sentence_transformers.models.{k}"}
                           for i, k in enumerate(("Transformer", "Pooling", "Normalize"))])
    around = [{"SpecialToken": {"id": "[CLS]"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "[SEP]"}}]
    write("tokenizer.json", {
        "added_tokens": [{"id": i, "content": s, "special": True} for i, s in enumerate(SPECIAL)],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": around,
                           "special_tokens": {"[CLS]": {"ids": [2]}, "[SEP]": {"ids": [3]}}},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {s: i for i, s in enumerate(vocabulary)}}})


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    of = a.add_subparsers(dest="what", required=True)
    p = of.add_parser("pairs")
    p.add_argument("folder")
    p.add_argument("out")
    p.add_argument("--without", default="", metavar="TEXT_FOLDER")
    p.add_argument("--vocabulary", type=int, default=12000)
    p = of.add_parser("train")
    p.add_argument("pairs")
    p.add_argument("out")
    for name, value in (("minutes", 13.), ("rate", 2e-3), ("drop", .15), ("heat", .05), ("threads", 1),
                        ("width", 192), ("layers", 1), ("batch", 256), ("tokens", 80), ("alone", .6),
                        ("cloze", .35), ("tell", 2.)):
        p.add_argument("--" + name, type=type(value), default=value)
    a = a.parse_args()
    (pairs if a.what == "pairs" else train)(a)


if __name__ == "__main__":
    main()
