"""Documents that nobody should write, for tests/cli/documents.sh: each small on disk, each meant to make a reader work, wait or look where
it should not.

    python3 tests/documents/hostile.py FOLDER SECRET_FILE
"""
import base64
import os
import sys
import zipfile

folder, secret = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
MIB = 1 << 20


def path(name):
    return os.path.join(folder, name)


def plain(name, *parts):
    with open(path(name), "wb") as f:
        for p in parts:
            f.write(p if isinstance(p, bytes) else p.encode())


def packed(name, entries):
    with zipfile.ZipFile(path(name), "w", zipfile.ZIP_DEFLATED) as z:
        for entry, content in entries:
            z.writestr(zipfile.ZipInfo(entry, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED, 1)


def docx(name, body, before=""):
    packed(name, [("word/document.xml", '<?xml version="1.0"?>%s<w:document xmlns:w="w"><w:body>%s</w:body></w:document>' % (before, body))])


def open_document(name, body):
    packed(name, [("content.xml", '<d xmlns:t="t" xmlns:b="b"><body>%s</body></d>' % body)])


def xlsx(name, strings, *sheets):
    packed(name, [("xl/workbook.xml", "<w/>"), ("xl/sharedStrings.xml", "<sst>%s</sst>" % strings)] + list(sheets))


def epub(name, manifest, spine, *chapters):
    packed(name, [("META-INF/container.xml", '<c><rootfile full-path="o.opf"/></c>'),
                  ("o.opf", "<p><manifest>%s</manifest><spine>%s</spine></p>" % (manifest, spine))] + list(chapters))


def said(text):
    return "<w:p><w:r><w:t>%s</w:t></w:r></w:p>" % text


# what an entity, a declaration or a style sheet names is not read
docx("xxe.docx", said("before &x; after"), '<!DOCTYPE d [<!ENTITY x SYSTEM "file://%s">]>' % secret)
docx("xxe-parameter.docx", said("before &y; after"), '<!DOCTYPE d [<!ENTITY %% x SYSTEM "file://%s"> %%x;]>' % secret)
docx("xxe-dtd.docx", said("before after"), '<!DOCTYPE d SYSTEM "file://%s">' % secret)
docx("xinclude.docx", said('before <xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="file://%s" parse="text"/> after' % secret))
docx("laughs.docx", said("&i;"), '<!DOCTYPE d [<!ENTITY a "ha">' + "".join('<!ENTITY %s "%s">' % (chr(98 + i), ("&%s;" % chr(97 + i)) * 10) for i in range(9)) + "]>")

# markup that costs a reader more than it has bytes
docx("attributes.docx", "<w:p %s/>" % " ".join('a%x="" ' % i for i in range(200000)))
docx("namespaces.docx", "<w:p %s/>" % " ".join('xmlns:a%x="u"' % i for i in range(200000)))
docx("attribute.docx", '<w:p a="%s"/>' % ("x" * (9 * MIB)))
docx("comment.docx", "<!--%s-->" % ("x" * (12 * MIB)) + said("after"))
docx("instruction.docx", "<?p %s?>" % ("x" * (12 * MIB)) + said("after"))
docx("cdata.docx", "<w:p><w:r><w:t><![CDATA[%s]]></w:t></w:r></w:p>" % ("x" * (9 * MIB)))
docx("name.docx", "<%s/>" % ("x" * (9 * MIB)))
docx("names.docx", "".join("<w:p%x/>" % i for i in range(1000000)))
docx("deep.docx", "<w:p>" * 250 + "<w:p><w:t>x</w:t></w:p>" * 100000 + "</w:p>" * 250)
docx("deeper.docx", "<w:p>" * 100000)
docx("open.docx", "<w:p " * 1000000)
docx("declarations.docx", said("x"), "<!DOCTYPE d [%s]>" % "".join('<!ENTITY e%x "v">' % i for i in range(300000)))
docx("defaults.docx", "<w:p/>" * 100000, "<!DOCTYPE d [<!ATTLIST w:p %s>]>" % " ".join('a%x CDATA "v"' % i for i in range(2000)))

# repetitions that are only said
open_document("spaces.odt", '<t:p>a<t:s t:c="999999999"/>b%s</t:p>' % ('<t:s t:c="2000000000"/>' * 500000))
open_document("columns.ods", '<b:table><b:table-row b:number-rows-repeated="1048576"><b:table-cell b:number-columns-repeated="16384"><t:p>cell</t:p></b:table-cell></b:table-row></b:table>')
xlsx("rows.xlsx", "<si><t>word</t></si>", ("xl/worksheets/sheet1.xml", '<s><row r="1048576"><c r="XFD1048576" t="s"><v>0</v></c></row></s>'))
xlsx("index.xlsx", "<si><t>word</t></si>", ("xl/worksheets/sheet1.xml", "<s><row>%s</row></s>" % "".join('<c t="s"><v>%s</v></c>' % v for v in ("-1", "1", "4294967296", "18446744073709551616", "0x0", "nan", "", "0"))))
xlsx("strings.xlsx", "<si><t>%s</t></si>" % ("x" * MIB), ("xl/worksheets/sheet1.xml", "<s><row>%s</row></s>" % ('<c t="s"><v>0</v></c>' * 100000)))
xlsx("sheets.xlsx", "", ("xl/worksheets/sheet1.xml", "<s>%s</s>" % ("<row/>" * (2 * MIB))), *[("xl/worksheets/sheet1.xml", "<s>%s</s>" % ("<row/>" * 10)) for i in range(999)])

# books
item, ref = '<item id="a" href="a.html"/>', '<itemref idref="a"/>'
epub("loop.epub", item, ref * 5000, ("a.html", "<p>chapter</p>" + "<!-- -->" * (2 * MIB)))
epub("itself.epub", '<item id="a" href="o.opf"/><item id="b" href="META-INF/container.xml"/>', ref + '<itemref idref="b"/>')
epub("outside.epub", '<item id="a" href="../../../../../..%s"/>' % secret, ref)
epub("no-chapter.epub", item, ref)
epub("no-spine.epub", item, "", ("a.html", "<p>chapter"))
epub("items.epub", item * 500000, ref * 500000, ("a.html", "<p>chapter"))
packed("no-opf.epub", [("META-INF/container.xml", '<c><rootfile full-path="o.opf"/></c>')])
packed("no-root.epub", [("META-INF/container.xml", "<c/>")])

# containers
packed("bomb.docx", [("word/document.xml", b"\0" * (70 * MIB))])
packed("bombs.docx", [("word/%d.xml" % i, b" " * (38 * MIB)) for i in range(7)])
packed("encrypted.epub", [("META-INF/container.xml", "<c/>"), ("META-INF/encryption.xml", "<e/>")])
with open(path("bomb.docx"), "rb") as f:
    whole = f.read()
plain("no-directory.docx", whole[:whole.rindex(b"PK\1\2")])
with zipfile.ZipFile(path("streamed.zip"), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
    media = zipfile.ZipInfo("word/media.bin")
    media.compress_type = zipfile.ZIP_DEFLATED
    with z.open(media, "w", force_zip64=True) as f:
        for i in range(128):
            f.write(b"\0" * MIB)
with open(path("streamed.zip"), "rb") as f:
    whole = bytearray(f.read())
os.remove(path("streamed.zip"))
whole[6] |= 8  # sizes come behind the bytes, and no directory tells them
plain("streamed.docx", bytes(whole[:whole.rindex(b"PK\1\2")]))
zipped = bytearray(open(path("xxe.docx"), "rb").read())
at = zipped.rindex(b"PK\1\2")
zipped[at + 20:at + 28] = b"\xff" * 8
plain("sizes.docx", bytes(zipped))

# mail
HEAD = "From: a@example.org\nSubject: %s\nMIME-Version: 1.0\n"
nested = HEAD % "nested"
for i in range(3000):
    nested += "Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (i, i)
plain("nested.eml", nested + "\nfar inside\n")
plain("same.eml", HEAD % "same", "Content-Type: multipart/mixed; boundary=b\n\n", "--b\nContent-Type: multipart/mixed; boundary=b\n\n" * 200000)
plain("alternatives.eml", HEAD % "alternatives", "Content-Type: multipart/alternative; boundary=b\n\n", "--b\nContent-Type: multipart/alternative; boundary=b\n\n" * 200000)
plain("messages.eml", (HEAD % "messages" + "Content-Type: message/rfc822\n\n") * 20000, "far inside\n")
plain("no-boundary.eml", HEAD % "none", "Content-Type: multipart/mixed\n\n--\nx\n")
plain("no-end.eml", HEAD % "no end", "Content-Type: multipart/mixed; boundary=b\n\n--b\n\nfirst part\n")
plain("garbage.eml", HEAD % "garbage", "Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n", bytes(range(128, 256)) * 50000, "====\n")
plain("binary.eml", HEAD % "binary", "Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n", base64.encodebytes(os.urandom(1 << 16)))
plain("header.eml", "From: ", "a" * (8 * MIB), "\nSubject: ", "=?utf-8?q?=" * 1000000, "\n\nbody\n")
plain("headers.eml", "From: a\n", "X-Header: b\n" * MIB, "\nbody\n")
plain("folded.eml", "From: a\nSubject: x\n", " y\n" * (2 * MIB), "\nbody\n")
plain("charset.eml", HEAD % "=?../../../../tmp/module//TRANSLIT?q?a=E9b?=", "Content-Type: text/plain; charset=\"../../../../tmp/module\"\n\na\xe9b\n".encode("latin-1"))
plain("set.eml", HEAD % "set", "Content-Type: text/plain; charset=ISO-2022-CN-EXT\n\n", b"\x1b$)A\x0e\x1b$*H\x1bN" * 300000, "\n")

# pages
plain("page.html", "<html><head><title>no</title></head><script>hidden_script()</script><style>.hidden_style{}</style><p>shown &amp; &lt;b&gt; &#x41;&#1114112; &nosuch; &",
      "amp" * 1000, "<script src='file://", secret, "'></script><iframe src='file://", secret, "'></iframe>")
plain("open.html", "<p>shown", "<script>" * 1000000)
plain("quotes.html", "<p>shown", "<a b='" * 1000000)
plain("lesser.html", "<p>shown", "<" * (2 * MIB))
plain("comments.html", "<p>shown", "<!--" * MIB)
plain("entities.html", "<p>shown", "&#" * MIB, "&" * MIB)
plain("nested.html", "<p>shown", "<div>" * MIB)

# plain text, and what is none
plain("line.txt", "x" * (8 * MIB))
plain("line.csv", "a,1;" * (2 * MIB))
plain("spaces.txt", "x", " " * (8 * MIB), "y")
plain("newlines.txt", "x", "\n" * (8 * MIB), "y")
plain("zeros.txt", b"\0" * MIB)
plain("wide.txt", b"\xff\xfe" + b"\0\xd8" * MIB)
plain("broken.pdf", b"%PDF-1.7\n", b"1 0 obj <</Length 99999999999 >> stream\n" * 1000)
with open(path("sparse.txt"), "wb") as f:
    f.truncate(3 << 30)
os.symlink("loop.txt", path("loop.txt"))
os.symlink("/dev/zero", path("zero.txt"))
os.symlink(".", path("folder.txt"))
os.symlink(secret, path("secret.txt"))
os.symlink(path("nowhere"), path("gone.txt"))
os.mkfifo(path("pipe.txt"))
