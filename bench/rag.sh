#!/usr/bin/env bash
# Indexing and retrieval at 10000 documents: bench/rag.sh TERN [DOCUMENTS] [FOLDER]
# Documents are made by seed: Zipf-distributed words, names and facts; 200 questions ask for one fact each. Prints the time to index, to look
# again (nothing changed), the store's size, the time of a retrieval inside tern (bench_rag) and the share of questions whose document is first.
set -euo pipefail
tern=$1 n=${2:-10000} work=${3:-}
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -r "$work"' EXIT
fi
python3 - "$work" "$n" <<'PY'
import itertools, pathlib, random, sys
work, n = pathlib.Path(sys.argv[1]), int(sys.argv[2])
r = random.Random(20240229)
syllables = [a + b for a in "b d f g h k l m n p r s t v w z".split() for b in "a e i o u al en or is".split()]
words = ["".join(r.choice(syllables) for _ in range(r.randint(1, 3))) for _ in range(30000)]
cumulative = list(itertools.accumulate(1 / (i + 10) for i in range(len(words))))
kinds = "door code,customer number,review date,phone,address,reference".split(",")
questions = []
for i in range(n):
    name = "".join(r.choice(syllables) for _ in range(3)).capitalize() + " " + "".join(r.choice(syllables) for _ in range(3)).capitalize()
    kind, value = r.choice(kinds), r.randint(10000, 9999999)
    text = [" ".join(r.choices(words, cum_weights=cumulative, k=r.randint(40, 120))).capitalize() + "." for _ in range(r.randint(2, 6))]
    text.insert(r.randint(0, len(text)), f"The {kind} of {name} is {value}.")
    folder = work / "docs" / f"{i // 500:03}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{i:05}.txt").write_text("\n\n".join(text) + "\n")
    if i % (n // 200 or 1) == 0:
        questions.append(f"{folder / f'{i:05}.txt'}\tWhat is the {kind} of {name}?")
(work / "questions").write_text("\n".join(questions) + "\n")
PY
echo "$(find "$work/docs" -type f | wc -l) documents, $(du -sm --apparent-size "$work/docs" | cut -f1) MB of text"
"$tern" rag add "$work/docs" --store "$work/store.db"
"$tern" rag add "$work/docs" --store "$work/store.db"
echo "store: $(du -m "$work/store.db" | cut -f1) MB"
"$(dirname "$tern")/bench_rag" "$work/store.db" "$work/questions"
