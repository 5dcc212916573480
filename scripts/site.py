#!/usr/bin/env python3
"""The documents as a static site:  site.py [FOLDER]   (make site; default: build/site)

Every page of docs/, and the README, CONTRIBUTING, SECURITY and CHANGELOG of the tree, become HTML by pandoc, with the navigation beside them.
docs/guide/README.md orders the guide, docs/README.md the rest. A document that neither names is an error. Nothing is loaded from elsewhere, and
no script is needed. tests/tools/site.sh follows every link."""
import html
import os
import posixpath
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOME = {"README.md": "index.html", "CONTRIBUTING.md": "contributing.html", "SECURITY.md": "security.html", "CHANGELOG.md": "changes.html",
        "docs/README.md": "documents.html"}
LABEL = {"README.md": "tern", "docs/README.md": "All documents", "docs/guide/README.md": "About the guide"}
HEADS = 12  # a longer page shows so many of its headings at most in the navigation


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def address(path):
    """Where a document of the tree lies in the site."""
    if path in HOME:
        return HOME[path]
    path = re.sub(r"^docs/", "", path)
    return re.sub(r"README\.md$", "index.html", path) if path.endswith("README.md") else re.sub(r"\.md$", ".html", path)


def order():
    """[(heading, [document])]: what the navigation lists."""
    named = [posixpath.normpath("docs/" + m) for m in re.findall(r"\]\(([a-z/-]+\.md)\)", read("docs/README.md"))]
    guide = ["docs/guide/README.md"] + ["docs/guide/" + m for m in re.findall(r"\]\(([a-z-]+\.md)\)", read("docs/guide/README.md"))]
    parts = [("Start", ["README.md", "docs/README.md", "docs/compare.md"]), ("Guide", guide)]
    parts += [(part.capitalize(), [d for d in named if d.startswith(f"docs/{part}/")]) for part in ("reference", "record")]
    parts.append(("Project", ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]))
    listed = [d for _, documents in parts for d in documents]
    there = [os.path.relpath(os.path.join(at, n), ROOT) for at, _, names in os.walk(os.path.join(ROOT, "docs")) for n in names if n.endswith(".md")]
    missing = sorted(set(there) - set(listed))
    if missing:
        raise SystemExit(f"site.py: docs/README.md or docs/guide/README.md must name {', '.join(missing)}")
    if len(set(listed)) != len(listed):
        raise SystemExit(f"site.py: named twice: {', '.join(sorted({d for d in listed if listed.count(d) > 1}))}")
    return parts


def relative(target, page):
    return posixpath.relpath(target, posixpath.dirname(address(page)) or ".")


def converted(page):
    """A document's HTML, as pandoc writes it."""
    ran = subprocess.run(["pandoc", "--from=gfm", "--to=html5", "--no-highlight", "--wrap=none"], input=read(page), capture_output=True, text=True,
                         encoding="utf-8", check=False)
    if ran.returncode:
        raise SystemExit(f"site.py: pandoc and {page}: {ran.stderr.strip()}")
    return ran.stdout


def linked(body, page, titles, figures):
    """Links lead to pages of the site; paths of documents in backticks become links by their titles; what the site does not have loses its link."""

    def target(href):
        if re.match(r"[a-z]+:|#", href):
            return href
        path, _, anchor = href.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if path in titles:
            return relative(address(path), page) + ("#" + anchor if anchor else "")
        return None

    def link(m):
        href = target(html.unescape(m[1]))
        return f'<a href="{html.escape(href)}">{m[2]}</a>' if href else m[2]

    def picture(m):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), html.unescape(m[1])))
        figures.add(path)
        said = m[2]
        return (f'<figure><div class="picture"><img src="{relative(re.sub("^docs/", "", path), page)}" alt="{said}"></div>'
                f"<figcaption>{said}</figcaption></figure>")

    body = re.sub(r'<a href="([^"]*)"[^>]*>(.*?)</a>', link, body, flags=re.S)
    alone = r'<img src="([^"]*)" alt="([^"]*)"[^>]*/?>'
    body = re.sub(rf"<p>((?:{alone}\s*)+)</p>", lambda m: re.sub(alone, picture, m[1]), body)
    body = re.sub(rf"<figure>\s*{alone}\s*<figcaption[^>]*>.*?</figcaption>\s*</figure>", picture, body, flags=re.S)

    def named(m):
        return f'<a href="{relative(address(m[1]), page)}">{titles[m[1]]}</a>' if m[1] in titles and m[1] != page else m[0]

    body = re.sub(r"(?<!\">)<code>([A-Za-z/-]+\.md)</code>", named, body)
    body = re.sub(r"<colgroup>.*?</colgroup>", "", body, flags=re.S)
    return body.replace("<table", '<div class="table"><table').replace("</table>", "</table></div>")


def headings(body):
    found = [(m[1], re.sub(r"<[^>]*>", "", m[2])) for m in re.finditer(r'<h2 id="([^"]*)">(.*?)</h2>', body, re.S)]
    return found[:HEADS] if len(found) > 1 else []


def navigation(parts, page, titles, body):
    out = []
    for heading, documents in parts:
        out.append(f"<h2>{heading}</h2>\n<ul>")
        for d in documents:
            here = d == page
            inside = headings(body) if here else []
            below = "".join(f'<li><a href="#{i}">{t}</a></li>' for i, t in inside)
            out.append(f'<li><a href="{relative(address(d), page)}"{" aria-current=page" if here else ""}>{titles[d].split(":")[0]}</a>{f"<ul>{below}</ul>" if below else ""}</li>')
        out.append("</ul>")
    return "\n".join(out)


def turning(parts, page, titles):
    """The page before and the page after, within the guide."""
    guide = next(documents for heading, documents in parts if heading == "Guide")
    if page not in guide:
        return ""
    i = guide.index(page)
    before = f'<a rel="prev" href="{relative(address(guide[i - 1]), page)}">← {titles[guide[i - 1]]}</a>' if i else "<span></span>"
    after = f'<a rel="next" href="{relative(address(guide[i + 1]), page)}">{titles[guide[i + 1]]} →</a>' if i + 1 < len(guide) else ""
    return f'<div class="turn">{before}{after}</div>\n'


def whole(page, body, nav, turn, title, version):
    name = "tern" if page == "README.md" else f"{title} · tern"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{relative("style.css", page)}">
</head>
<body>
<a class="skip" href="#text">To the text</a>
<header><a class="name" href="{relative("index.html", page)}">tern</a><span class="version">{version}</span><a class="contents" href="#contents">Contents</a></header>
<div class="page">
<main id="text">
{body}{turn}</main>
<nav class="all" id="contents" aria-label="Contents">
{nav}
</nav>
</div>
</body>
</html>
"""


def main():
    out = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "site"))
    if not shutil.which("pandoc"):
        raise SystemExit("site.py: no pandoc (Debian: pandoc; scripts/setup.sh --site)")
    version = re.search(r"project\(tern VERSION ([0-9.]+)", read("CMakeLists.txt"))[1]
    parts = order()
    pages = [d for _, documents in parts for d in documents]
    bodies = {page: converted(page) for page in pages}
    titles = {page: LABEL.get(page) or re.sub(r"<[^>]*>", "", re.search(r"<h1[^>]*>(.*?)</h1>", bodies[page], re.S)[1]) for page in pages}
    if os.path.isdir(out):
        if os.listdir(out) and not os.path.exists(os.path.join(out, "style.css")):
            raise SystemExit(f"site.py: {out} holds something else than a site")
        shutil.rmtree(out)
    figures = set()
    for page in pages:
        body = linked(bodies[page], page, titles, figures)
        at = os.path.join(out, address(page))
        os.makedirs(os.path.dirname(at), exist_ok=True)
        with open(at, "w", encoding="utf-8") as f:
            f.write(whole(page, body, navigation(parts, page, titles, body), turning(parts, page, titles), titles[page], version))
    for path in sorted(figures):
        to = os.path.join(out, re.sub("^docs/", "", path))
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copyfile(os.path.join(ROOT, path), to)
    shutil.copyfile(os.path.join(ROOT, "share", "site", "style.css"), os.path.join(out, "style.css"))
    print(f"{len(pages)} pages, {len(figures)} figures: {os.path.relpath(os.path.join(out, 'index.html'))}")


main()
