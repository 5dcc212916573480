#!/usr/bin/env bash
# The static site: every document is in it and can be reached, every link leads to a page and a heading that are there, nothing comes from elsewhere.
# That the same documents give the same bytes is seen by make deb-test.
set -euo pipefail
command -v pandoc >/dev/null || { echo "skipped: no pandoc (scripts/setup.sh --site)"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 scripts/site.py "$tmp/site" >/dev/null
cat >"$tmp/check.py" <<'END'
import html.parser
import os
import posixpath
import re
import sys

site = sys.argv[1]


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.loaded, self.problems, self.open = set(), [], [], [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            if attrs["id"] in self.ids:
                self.problems.append(f"id {attrs['id']} twice")
            self.ids.add(attrs["id"])
        if tag == "a":
            self.links.append(attrs.get("href", ""))
        self.loaded += [attrs[k] for k in ("src", "srcset", "data") if k in attrs] + ([attrs["href"]] if tag == "link" else [])
        if tag == "script":
            self.problems.append("a script")
        if tag == "img" and not attrs.get("alt"):
            self.problems.append("a picture without words")
        if tag not in ("meta", "link", "img", "br", "hr", "col", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in ("img", "br", "hr", "col", "input"):
            return
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")


pages = {}
files = {os.path.relpath(os.path.join(at, n), site) for at, _, names in os.walk(site) for n in names}
for name in sorted(f for f in files if f.endswith(".html")):
    pages[name] = Page()
    pages[name].feed(open(os.path.join(site, name), encoding="utf-8").read())
wrong, outside = [], 0
for name, page in pages.items():
    wrong += [f"{name}: {p}" for p in page.problems] + ([f"{name}: <{page.open[-1]}> stays open"] if page.open else [])
    for address in page.loaded:
        if address != "data:," and posixpath.normpath(posixpath.join(posixpath.dirname(name), address)) not in files:
            wrong.append(f"{name} loads {address}")
    for address in page.links:
        if address.startswith(("https://", "http://")):
            outside += 1
            continue
        path, _, anchor = address.partition("#")
        to = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
        if to not in pages:
            wrong.append(f"{name}: no page {address!r}")
        elif anchor and anchor not in pages[to].ids:
            wrong.append(f"{name}: no heading {address}")
for name in sorted(f for f in files if f.endswith((".css", ".svg"))):
    text = re.sub(r'xmlns(:\w+)?="[^"]*"', "", open(os.path.join(site, name), encoding="utf-8").read())
    if re.search(r"https?:|@import|<script", text):
        wrong.append(f"{name} names something elsewhere")
    if "prefers-color-scheme" not in text:
        wrong.append(f"{name} has no dark colours")
reached, todo = {"index.html"}, ["index.html"]
while todo:
    name = todo.pop()
    for address in pages[name].links:
        to = posixpath.normpath(posixpath.join(posixpath.dirname(name), address.split("#")[0]))
        if "://" not in address and to in pages and to not in reached:
            reached.add(to)
            todo.append(to)
wrong += [f"{name} cannot be reached" for name in sorted(set(pages) - reached)]
n_documents = sum(n.endswith(".md") for _, _, names in os.walk("docs") for n in names)
if len(pages) != n_documents + 4:
    wrong.append(f"{len(pages)} pages of {n_documents} documents and 4 others")
if wrong:
    raise SystemExit("FAILED: " + "\n".join(wrong))
print(f"site: {len(pages)} pages, {sum(len(p.links) for p in pages.values()) - outside} links within, {outside} to elsewhere")
END
python3 "$tmp/check.py" "$tmp/site"
# The check itself: a link, a heading and a script are seen.
broken() { # sed expression, page, what is said
    rm -rf "$tmp/broken"
    cp -r "$tmp/site" "$tmp/broken"
    sed -i "$1" "$tmp/broken/$2"
    ! python3 "$tmp/check.py" "$tmp/broken" 2>"$tmp/err" || { echo "FAILED: the check does not see: $1"; exit 1; }
    grep -q "$3" "$tmp/err" || { cat "$tmp/err"; exit 1; }
}
broken 's|href="chat.html"|href="cat.html"|' guide/serve.html "no page 'cat.html'"
broken 's|<h2 id="ask-about-a-document"|<h2 id="x"|' guide/first-answer.html "no heading #ask-about-a-document"
broken 's|<main|<script src="https://example.org/a.js"></script><main|' index.html "loads https://example.org"
# A document that no list names is an error.
mkdir "$tmp/tree"
cp -r docs share scripts CMakeLists.txt ./*.md "$tmp/tree/"
echo '# Lost' >"$tmp/tree/docs/guide/lost.md"
! python3 "$tmp/tree/scripts/site.py" "$tmp/lost" 2>"$tmp/err" || { echo "FAILED: a page that nothing names"; exit 1; }
grep -q "must name .*lost.md" "$tmp/err"
