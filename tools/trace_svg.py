#!/usr/bin/env python3
"""Draws a trace of `tern run --trace` as the figure of docs/guide/how-it-works.md: who worked when, in which of the four stages.

    tools/trace_svg.py TRACE.json FIGURE.svg [--title TEXT]

A row is a lane. A column takes the colour of the stage that most of its busy time belongs to; it stays empty where the lane was
idle for more than half of it. What the program measures once for its profile is left out, and so is the time it took."""
import argparse
import json
from xml.sax.saxutils import escape

STAGES = [
    ("start", "1 the weights arrive: read, unpack, load"),
    ("read", "2 the prompt is read: INT8 products, the rest beside them"),
    ("attend", "3 attention where it matters: estimate, select, attend"),
    ("answer", "4 the answer: guessed, then verified together"),
]
OF = {"read": 0, "unpack": 0, "load": 0, "plan": 2, "estimate": 2, "select": 2, "attend": 2, "attention": 2}
LANES = [("io", "disk"), ("cpu", "CPU"), ("npu", "NPU"), ("session", "answer")]
STYLE = """text{fill:#1b1f24;font:13px sans-serif}.title{font-size:16px;font-weight:bold}.small{font-size:11px;fill:#57606a}
.paper{fill:#ffffff}.lane{fill:#eef1f4}.start{fill:#b8860b}.read{fill:#2f6fde}.attend{fill:#d2571e}.answer{fill:#2e8b57}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9aa5b1}.paper{fill:#161b22}.lane{fill:#2a313a}
.start{fill:#e3b341}.read{fill:#6ea8fe}.attend{fill:#ff9b5e}.answer{fill:#56d39b}}"""


def load(path):
    """Events as (lane, stage, from, to) in ms, with the time of profiling taken out, and when the answer began."""
    events = json.load(open(path, encoding="utf-8"))
    events = events["traceEvents"] if isinstance(events, dict) else events
    lane = {e["tid"]: e["args"]["name"].split()[0] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    done = [(lane[e["tid"]], e["name"], e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3) for e in events if e["ph"] == "X"]
    cuts = [(a, b) for _, name, a, b in done if name == "profile forwards"]
    kept = []
    for where, name, a, b in done:
        if any(a >= c and b <= d for c, d in cuts):
            continue
        gone = sum(d - c for c, d in cuts if d <= a)
        if where == "session":  # what runs inside a verification is a part of it
            if name in ("draft", "verify", "step", "calibrate"):
                kept.append((where, 3 if name != "calibrate" else 1, a - gone, b - gone))
        else:
            kept.append((where, OF.get(name, 1), a - gone, b - gone))
    first = min(a for _, _, a, _ in kept)
    return [(w, s, a - first, b - first) for w, s, a, b in kept]


def columns(events, where, per_ms, n):
    """What a lane did in each column: a stage, or None."""
    busy = [[0.0] * len(STAGES) for _ in range(n)]
    for w, stage, a, b in events:
        if w != where:
            continue
        a, b = a * per_ms, b * per_ms
        for c in range(int(a), min(n, int(b) + 1)):
            busy[c][stage] += max(0.0, min(b, c + 1) - max(a, c))
    return [max(range(len(STAGES)), key=lambda s: c[s]) if sum(c) >= 0.5 else None for c in busy]


def draw(events, title):
    left, width, height, top = 60, 900, 30, 78
    end = max(b for _, _, _, b in events)
    lanes = [lane for lane in LANES if any(w == lane[0] for w, *_ in events)]
    bottom = top + len(lanes) * (height + 8)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {bottom + 30}" width="{left + width + 20}" height="{bottom + 30}">',
           f"<style>{STYLE}</style>", f'<rect class="paper" width="{left + width + 20}" height="{bottom + 30}"/>',
           f'<text class="title" x="10" y="22">{escape(title)}</text>']
    for i, (name, text) in enumerate(STAGES):
        x, y = left + 450 * (i % 2), 36 + 18 * (i // 2)
        out += [f'<rect class="{name}" x="{x}" y="{y}" width="12" height="12"/>', f'<text x="{x + 18}" y="{y + 11}">{escape(text)}</text>']
    for row, (where, label) in enumerate(lanes):
        y = top + row * (height + 8)
        out += [f'<text x="{left - 8}" y="{y + 20}" text-anchor="end">{label}</text>', f'<rect class="lane" x="{left}" y="{y}" width="{width}" height="{height}"/>']
        did = columns(events, where, width / end, width)
        paths = {}
        c = 0
        while c < width:
            e = c + 1
            while e < width and did[e] == did[c]:
                e += 1
            if did[c] is not None:
                paths.setdefault(did[c], []).append(f"M{left + c} {y}h{e - c}v{height}h-{e - c}z")
            c = e
        out += [f'<path class="{STAGES[s][0]}" d="{"".join(p)}"/>' for s, p in sorted(paths.items())]
    first = max(b for w, s, _, b in events if w != "session")
    ticks = [(0, "start"), (first, f"prompt read, {first:.0f} ms"), (end, f"answer complete, {end:.0f} ms")]
    for ms, text in ticks:
        x = left + width * ms / end
        anchor = "start" if ms == 0 else "end"
        out.append(f'<text class="small" x="{x:.0f}" y="{bottom + 12}" text-anchor="{anchor}">{escape(text)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("trace")
    p.add_argument("figure")
    p.add_argument("--title", default="One request on a timeline")
    a = p.parse_args()
    with open(a.figure, "w", encoding="utf-8") as f:
        f.write(draw(load(a.trace), a.title))


main()
