#!/usr/bin/env bash
# Documents that nobody should write (tests/documents/hostile.py): each gives a bounded text or one line that says why not, and what it refers
# to is not read. The limits of time and memory are far above what is needed, and far below what each document was made for.
set -u
tern=$(realpath "$1")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_DATA_HOME=$tmp/data XDG_CACHE_HOME=$tmp/cache XDG_STATE_HOME=$tmp/state TERN_PACK=never PATH=$tmp/bin:$PATH
fail() { echo "FAILED: $*"; tail -5 "$tmp/err"; exit 1; }
sanitized=1
grep -q "TERN_SANITIZE:STRING=." "$(dirname "$tern")/CMakeCache.txt" 2>/dev/null || sanitized=
bounded() { (ulimit -t 300; [ "$sanitized" ] || ulimit -v 1500000; exec timeout 600 "$@") >"$tmp/out" 2>"$tmp/err"; }

# in the place of pdftotext: one that takes memory, time or place without end. Where it runs only the system's files are seen.
mkdir "$tmp/bin"
cat >"$tmp/bin/pdftotext" <<'P'
#!/usr/bin/python3
import sys, resource
words = open(sys.argv[-2], "rb").read()
if b"limits" in words:
    print(*(resource.getrlimit(x)[1] for x in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)))
elif b"memory" in words:
    print(len(bytearray(3 << 30)))
else:
    while True:
        print("word " * 1000)
P
chmod +x "$tmp/bin/pdftotext"

echo "the Quizzaciously secret" >"$tmp/secret"
python3 -W ignore tests/documents/hostile.py "$tmp/docs" "$tmp/secret" || fail "the documents"
for what in memory text limits; do printf '%%PDF-1.7\n%s\n' $what >"$tmp/docs/$what.pdf"; done
bounded "$tern" rag add "$tmp/docs" || fail "rag add ends with $?"

skipped() { # words, names of documents
    for name in "${@:2}"; do grep -q "/$name: skipped: .*$1" "$tmp/err" || fail "$name is not skipped: $1: $(grep "/$name:" "$tmp/err")"; done
}
"$tern" rag ls >"$tmp/listed" || fail "rag ls"
added() {
    for name in "$@"; do grep -q "/$name\$" "$tmp/listed" || fail "$name is not there: $(grep "/$name:" "$tmp/err")"; done
}
skipped "declares entities" xxe.docx xxe-parameter.docx laughs.docx declarations.docx defaults.docx
skipped "too many attributes" attributes.docx namespaces.docx
skipped "too deeply" deeper.docx
skipped "damaged" comment.docx instruction.docx name.docx names.docx open.docx no-directory.docx streamed.docx sizes.docx
skipped "more text" spaces.odt strings.xlsx text.pdf
skipped "unfolds to more" bomb.docx bombs.docx
skipped "no text" attribute.docx sheets.xlsx itself.epub outside.epub no-chapter.epub no-spine.epub
skipped "lacks the document" no-opf.epub no-root.epub
skipped "encrypted" encrypted.epub
skipped "binary" zeros.txt
skipped "larger" sparse.txt
skipped "more than" nested.eml messages.eml same.eml
skipped "link" loop.txt zero.txt folder.txt secret.txt gone.txt
skipped "no ordinary file" pipe.txt
skipped "pdftotext cannot" memory.pdf
added xxe-dtd.docx xinclude.docx cdata.docx deep.docx columns.ods rows.xlsx index.xlsx loop.epub items.epub \
    alternatives.eml no-boundary.eml no-end.eml garbage.eml binary.eml header.eml headers.eml folded.eml charset.eml set.eml \
    page.html open.html quotes.html lesser.html comments.html entities.html nested.html line.txt line.csv spaces.txt newlines.txt wide.txt limits.pdf
n=$(find "$tmp/docs" -mindepth 1 | wc -l)
[ $(($(wc -l <"$tmp/listed") + $(grep -c ": skipped: " "$tmp/err"))) = "$n" ] || fail "not every one of $n documents is told"
python3 - "$tmp/data/tern/store.db" <<'P' || fail "what the documents hold"
import sqlite3, sys
text = dict(sqlite3.connect(sys.argv[1]).execute("SELECT path, group_concat(text, ' ') FROM document JOIN passage ON document = document.id GROUP BY path"))
text = {path.rsplit("/", 1)[1]: t for path, t in text.items()}
for name, t in text.items():
    assert "Quizzaciously" not in t, name
assert text["index.xlsx"].split() == ["word"] and text["rows.xlsx"] == "word", (text["index.xlsx"], text["rows.xlsx"])
assert text["columns.ods"] == "cell" and text["loop.epub"] == "chapter" and text["items.epub"] == "chapter"
assert "hidden" not in text["page.html"] and "shown & <b> A" in text["page.html"], text["page.html"][:200]
assert text["limits.pdf"].split() == [str(1 << 30), "120", "0"], text["limits.pdf"]
P

# one at a time: what a link leads to, and files that never end
one() { # words, path
    rm -rf "$tmp/data"
    bounded "$tern" rag add "$2" && fail "$2 is taken, or that it is not is no failure"
    grep -q "^[1-9].* added" "$tmp/out" && fail "$2 is taken"
    grep -q "$1" "$tmp/err" || fail "$2: not \"$1\""
}
one "Too many levels" "$tmp/docs/loop.txt"
one "no ordinary file" "$tmp/docs/zero.txt"
one "No such file" "$tmp/docs/gone.txt"
one "no ordinary file" "$tmp/docs/pipe.txt"
one "larger than a document" "$tmp/docs/sparse.txt"
bounded "$tern" rag add "$tmp/docs/secret.txt" || fail "a link that a person names is followed"
"$tern" rag ls | grep -q "$tmp/secret" || fail "a link is known by what it leads to"

# /attach reads in the same way
[ -r models/tern-tiny/model.safetensors ] || { echo "ok, without /attach: no models/tern-tiny"; exit 0; }
for name in zero.txt pipe.txt loop.txt folder.txt sparse.txt attributes.docx bomb.docx spaces.odt; do echo "/attach $tmp/docs/$name"; done >"$tmp/talk"
bounded "$tern" chat -m models/tern-tiny --no-store <"$tmp/talk" && fail "a script does not see what /attach refuses"
for words in "zero.txt: .*no ordinary" "pipe.txt: .*no ordinary" "loop.txt: .*Too many" "folder.txt: .*no ordinary" "sparse.txt: .*more than" "attributes.docx: .*too many" "bomb.docx: .*unfolds" "spaces.odt: .*more text"; do
    grep -q "$words" "$tmp/err" || fail "/attach: $words"
done
echo "ok"
