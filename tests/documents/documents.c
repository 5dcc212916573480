/* tests/documents/documents.c - does the text come out of documents that other programs wrote
 * (tests/documents/fixtures/make.sh), and does nothing worse than "no text" come of documents that nobody
 * should write? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "documents/documents.h"
#include "documents/office.h"
#include "documents/markup.h"

#include "base/rng.h"

#include <archive.h>
#include <archive_entry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tn_ctx ctx;

static char *file(const char *name, size_t *n) {
    char path[600];
    snprintf(path, sizeof path, TN_SOURCE_DIR "/tests/documents/fixtures/%s", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *p = malloc(1 << 16);
    *n = fread(p, 1, 1 << 16, f);
    fclose(f);
    return p;
}

static void text_is(const char *name, const char *bytes, size_t n, const char *want) {
    char *out;
    size_t n_out;
    const char *why;
    tern_error err = {0};
    if (tn_document_text(&ctx, name, bytes, n, 1 << 24, &out, &n_out, &why, &err) != TERN_OK)
        fail_msg("%s", err.message);
    if (why) fail_msg("%s: %s", name, why);
    assert_string_equal(out, want);
    assert_int_equal(n_out, strlen(want));
    tn_free(&ctx, out);
}

/* want_why is a part of the reason. */
static void has_none(const char *name, const char *bytes, size_t n, const char *want_why) {
    char *out;
    size_t n_out;
    const char *why;
    tern_error err = {0};
    if (tn_document_text(&ctx, name, bytes, n, 1 << 24, &out, &n_out, &why, &err) != TERN_OK)
        fail_msg("%s", err.message);
    assert_null(out);
    assert_non_null(why);
    if (!strstr(why, want_why)) fail_msg("%s: \"%s\", want \"%s\"", name, why, want_why);
}

static void fixture_is(const char *name, const char *want) {
    size_t n;
    char *bytes = file(name, &n);
    text_is(name, bytes, n, want);
    free(bytes);
}

static void from_other_programs(void **state) {
    (void)state;
    fixture_is("report.docx", "The harbour report\nFerries & tides\nThe second ferry leaves at 7:45; it "
                              "carries 120 people. Größe: 3 "
                              "< 4 & 5 > 2.\nRope\nLantern\n\nPort \tDepth \t\nKiel \t12 m \t\nŁódź \t0 "
                              "m\n\n Counted on 3 May.\n\n");
    fixture_is(
        "report.odt",
        "The harbour report\nFerries & tides\nThe second ferry leaves at 7:45; it carries 120 "
        "people.1Counted "
        "on 3 May.\n Größe: 3 < 4 & 5 > 2.\nRope\nLantern\n\nPort \tDepth\nKiel \t12 m\nŁódź \t0 m\n\n");
    fixture_is(
        "report.epub",
        "The harbour report\n\nFerries & tides\n\nThe second ferry leaves at 7:45; it carries 120 people.1 "
        "Größe: 3 < 4 & 5 > 2.\n\n- Rope\n- Lantern\n\nPort Depth\nKiel 12 m\nŁódź 0 m\n\n-\n\nCounted on 3 "
        "May.↩︎\n\n");
    fixture_is("ships.xlsx",
               "Ship\tLength\tActive\nMöwe & Co\t31.5\t1\nMöwe & Co\t7\t0\n\nTara\tcaptain\n\n");
    fixture_is("letter.eml", "Subject: Die Fähre – morgen\nFrom: Jürgen <j@example.org>\nTo: "
                             "tara@example.org\nDate: Mon, 04 May 2026 10:00:00 "
                             "+0200\n\nHallo Tara,\ndie Fähre fährt um 7:45. lang lang lang lang lang lang "
                             "lang lang lang lang lang lang lang lang "
                             "lang lang lang lang lang lang lang lang lang lang lang lang lang lang lang "
                             "lang lang lang lang lang lang lang lang "
                             "lang lang lang\n\n[attachment: plan.bin]\n\n[attachment: a.txt]\n\nSubject: "
                             "Weiter\nFrom: x@example.org\n\nGröße: "
                             "zwölf Meter\n\n");
}

/* ---- containers made here -------------------------------------------------------------------------- */

typedef struct zip {
    char *p;
    size_t n, cap;
    struct archive *a;
} zip;

static void zip_open(zip *z, size_t cap) {
    *z = (zip){.p = malloc(cap), .cap = cap, .a = archive_write_new()};
    archive_write_set_format_zip(z->a);
    archive_write_open_memory(z->a, z->p, z->cap, &z->n);
}

/* times: the content so often. */
static void zip_add(zip *z, const char *name, const char *content, size_t times) {
    size_t n = strlen(content);
    struct archive_entry *e = archive_entry_new();
    archive_entry_set_pathname(e, name);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_size(e, (la_int64_t)(n * times));
    assert_int_equal(archive_write_header(z->a, e), ARCHIVE_OK);
    while (times--) assert_int_equal(archive_write_data(z->a, content, n), (la_ssize_t)n);
    archive_entry_free(e);
}

static void zip_close(zip *z) {
    assert_int_equal(archive_write_close(z->a), ARCHIVE_OK);
    archive_write_free(z->a);
}

static void odt_is(const char *xml, const char *want, const char *why) {
    zip z;
    zip_open(&z, 16 << 20);
    zip_add(&z, "content.xml", xml, 1);
    zip_close(&z);
    if (want) text_is("a.odt", z.p, z.n, want);
    else has_none("a.odt", z.p, z.n, why);
    free(z.p);
}

#define ODT(inside) "<?xml version=\"1.0\"?>" inside
#define BODY(inside) "<d xmlns:t=\"u\"><body>" inside "</body></d>"

static void hostile_markup(void **state) {
    (void)state;
    odt_is(ODT(BODY("<t:p>a<t:annotation><t:p>no</t:p></t:annotation>b<t:s "
                    "t:c=\"3\"/>c<t:tab/>d<t:line-break/>e</t:p>")),
           "ab   c\td\ne\n", NULL);
    /* entities are not opened: neither the file nor the thousand million laughs */
    char xml[400];
    snprintf(xml, sizeof xml,
             ODT("<!DOCTYPE d [<!ENTITY f SYSTEM \"file://%s/LICENSE\">]>") BODY("<t:p>a&f;b</t:p>"),
             TN_SOURCE_DIR);
    odt_is(xml, NULL, "declares entities");
    odt_is(ODT("<!DOCTYPE d PUBLIC \"-//d\" \"[d.dtd\">") BODY("<t:p>a</t:p>"), "a\n", NULL);
    odt_is(ODT("<!DOCTYPE d SYSTEM 'd.dtd'>") BODY("<t:p>a&f;b</t:p>"), "ab\n", NULL);
    odt_is(ODT("<!DOCTYPE d [<!ENTITY a \"ha\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;\"><!ENTITY c "
               "\"&b;&b;&b;&b;&b;&b;&b;&b;\">"
               "<!ENTITY e \"&c;&c;&c;&c;&c;&c;&c;&c;&c;\">]>") BODY("<t:p>x&e;&e;y</t:p>"),
           NULL, "declares entities");
    odt_is(ODT("<d><body><p>cut"), NULL, "damaged");
    odt_is("no xml", NULL, "damaged");
    /* what is no tag does not count as one */
    odt_is(ODT(BODY("<!-- <p <p \"'[ --><?x <p?><t:p>a<![CDATA[<p>\"]]>b</t:p>")), "a<p>\"b\n", NULL);
    /* nested too deeply */
    char *deep = malloc(1 << 18), *p = deep;
    p += sprintf(p, "<d><body>");
    for (int i = 0; i < 20000; i++) p += sprintf(p, "<p>");
    odt_is(deep, NULL, "too deeply");
    free(deep);
}

/* Puts n pieces, each with its number, between two texts. The caller frees it. */
static char *repeated(const char *before, const char *piece, int n, const char *after) {
    size_t cap = strlen(before) + strlen(after) + (strlen(piece) + 12) * (size_t)n + 1;
    char *xml = malloc(cap), *p = xml + sprintf(xml, "%s", before);
    for (int i = 0; i < n; i++) p += snprintf(p, cap - (size_t)(p - xml), piece, i);
    strcpy(p, after);
    return xml;
}

/* What libxml2 looks through one by one: so much is read, one more is refused. */
static void costly_markup(void **state) {
    (void)state;
    static const struct {
        const char *before, *piece;
        int most;
        const char *after, *why;
    } cases[] = {
        {"<d><body><p", " a%d=''", TN_MARKUP_ATTRIBUTES, ">x</p></body></d>", "too many attributes"},
        {"<d><body><p", " xmlns:a%d=\"u\"", TN_MARKUP_ATTRIBUTES, ">x</p></body></d>", "too many attributes"},
        {"<d><body><p>x</p>", "<a xmlns:a%d='u' ><b xmlns='v'/></a>", 5000, "</body></d>", NULL},
        {"<d><body>", "<p%d a='>'/>", 5000, "<p>x</p></body></d>", NULL},
        {"<d><body>", "<p%d/>", 2 * TN_MARKUP_NAME_BYTES / 5, "<p>x</p></body></d>", "damaged"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *xml;
        if (cases[i].why && strcmp(cases[i].why, "damaged")) {
            xml = repeated(cases[i].before, cases[i].piece, cases[i].most + 1, cases[i].after);
            odt_is(xml, NULL, cases[i].why);
            free(xml);
            odt_is(xml = repeated(cases[i].before, cases[i].piece, cases[i].most, cases[i].after), "x\n",
                   NULL);
        } else {
            xml = repeated(cases[i].before, cases[i].piece, cases[i].most, cases[i].after);
            odt_is(xml, cases[i].why ? NULL : "x\n", cases[i].why);
        }
        free(xml);
    }
    /* namespaces that elements around declare are looked through, too */
    char *all = repeated("<a", " xmlns:a%d='u'", 200, ">"), *xml = malloc(1 << 16);
    for (int depth = 2; depth <= 3; depth++) {
        char *p = xml;
        for (int i = 0; i < depth; i++) p += sprintf(p, "%s", all);
        p += sprintf(p, "<body><p>x</p></body>");
        for (int i = 0; i < depth; i++) p += sprintf(p, "</a>");
        odt_is(xml, depth == 2 ? "x\n" : NULL, "too many namespaces");
    }
    free(xml);
    free(all);
}

static void hostile_containers(void **state) {
    (void)state;
    zip z;
    zip_open(&z, 1 << 20);
    zip_add(&z, "a.txt", "x", 1);
    zip_close(&z);
    has_none("a.docx", z.p, z.n, "it is an archive");
    has_none("a.docx", z.p, z.n / 3, "");
    free(z.p);
    zip_open(&z, 4 << 20); /* 80 MB of one letter */
    char *block = malloc((1 << 20) + 1);
    memset(block, 'a', 1 << 20);
    block[1 << 20] = 0;
    zip_add(&z, "word/document.xml", block, 80);
    zip_close(&z);
    assert_true(z.n < 1 << 20);
    has_none("bomb.docx", z.p, z.n, "unfolds to more");
    free(z.p);
    free(block);
    zip_open(&z, 8 << 20);
    for (int i = 0; i < TN_DOC_ZIP_ENTRIES + 1; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d", i);
        zip_add(&z, name, "", 0);
    }
    zip_close(&z);
    has_none("many.docx", z.p, z.n, "too many entries");
    free(z.p);
    zip_open(&z,
             1 << 16); /* an index into no strings, a name that leads elsewhere, a book without chapters */
    zip_add(&z, "xl/workbook.xml", "<w/>", 1);
    zip_add(&z, "xl/worksheets/sheet1.xml",
            "<s><row><c t=\"s\"><v>99999999999999999999</v></c><c><v>5</v></c></row></s>", 1);
    zip_close(&z);
    text_is("a.xlsx", z.p, z.n, "\t5\n\n");
    free(z.p);
    zip_open(&z, 1 << 16);
    zip_add(&z, "META-INF/container.xml", "<c><rootfile full-path=\"../../etc/passwd\"/></c>", 1);
    zip_close(&z);
    has_none("a.epub", z.p, z.n, "lacks the document");
    free(z.p);
    zip_open(&z, 1 << 16);
    zip_add(&z, "META-INF/container.xml", "<c><rootfile full-path=\"o.opf\"/></c>", 1);
    zip_add(
        &z, "o.opf",
        "<p><manifest><item id=\"a\" href=\"b%20c.html#x\"/></manifest><spine><itemref idref=\"z\"/><itemref "
        "idref=\"a\"/></spine></p>",
        1);
    zip_add(&z, "b c.html", "<p>chapter", 1);
    zip_close(&z);
    text_is("a.epub", z.p, z.n, "chapter\n\n");
    free(z.p);
    /* an entry is read once, however often it is named */
    char *spine =
        repeated("<p><manifest><item id='a' href='a.html'/><item id='b' href='%61.html'/></manifest><spine>",
                 "<itemref idref='a'/><itemref idref='b'/>", 100, "</spine></p>");
    zip_open(&z, 1 << 16);
    zip_add(&z, "META-INF/container.xml", "<c><rootfile full-path=\"o.opf\"/></c>", 1);
    zip_add(&z, "o.opf", spine, 1);
    zip_add(&z, "a.html", "<p>chapter", 1);
    zip_close(&z);
    text_is("a.epub", z.p, z.n, "chapter\n\n");
    free(z.p);
    free(spine);
    zip_open(&z, 1 << 16);
    zip_add(&z, "xl/workbook.xml", "<w/>", 1);
    for (int i = 0; i < 20; i++)
        zip_add(&z, "xl/worksheets/sheet1.xml", "<s><row><c><v>5</v></c></row></s>", 1);
    zip_close(&z);
    text_is("a.xlsx", z.p, z.n, "5\n\n");
    /* a container without its directory is a stream, which would have to be unfolded to be passed over */
    has_none("a.xlsx", z.p, z.n - 22, "damaged");
    free(z.p);
}

static void mail_is(const char *bytes, const char *want) { text_is("a.eml", bytes, strlen(bytes), want); }

static void odd_mail(void **state) {
    (void)state;
    /* what would be read in part is refused, and says why */
    char *many = repeated("From: a\n", "Content-Type: message/rfc822\n\nFrom: a\n", 20, "\nbody\n");
    has_none("a.eml", many, strlen(many), "more than 8 deep");
    free(many);
    many =
        repeated("From: a\nContent-Type: multipart/mixed; boundary=x\n\n", "--x\n\nbody\n", 300, "--x--\n");
    has_none("a.eml", many, strlen(many), "more than 256 parts");
    free(many);
    mail_is("From: a\nSubject: x\n y\n\nbody\n", "Subject: x y\nFrom: a\n\nbody\n\n");
    mail_is("From: a\r\nContent-Type: multipart/mixed; "
            "boundary=b\r\n\r\npreamble\r\n--bb\r\nno\r\n--b\r\n\r\none\r\n--b \r\n\r\ntwo",
            "From: a\n\none\n\ntwo\n\n");
    mail_is("From: =?utf-8?B?w6k=?= =?iso-8859-1?Q?=E9_x?= =?bad\n\ny=3Dz", "From: éé x=?bad\n\ny=3Dz\n\n");
    mail_is("From: a\nContent-Type: text/plain; charset=koi8-r\nContent-Transfer-Encoding: "
            "quoted-printable\n\n=F0=D2=C9=D7=C5=D4=\n!=",
            "From: a\n\nПривет!=\n\n");
    /* sets that iconv knows and mail does not have, and flags after a name: the bytes are guessed */
    mail_is("From: a\nContent-Type: text/plain; charset=ibm037\n\n\xc1\xe9", "From: a\n\nÁé\n\n");
    mail_is("From: =?koi8-r//IGNORE?q?=C1?=\n\nx", "From: Á\n\nx\n\n");
    mail_is("From: a\nContent-Type: multipart/alternative; boundary=\"q\"\n\n--q\nContent-Type: "
            "text/html\n\n<p>h\n--q--\nrest",
            "From: a\n\nh\n\n");
    /* parts within parts end */
    char *deep = malloc(1 << 16), *p = deep;
    p += sprintf(p, "From: a\n");
    for (int i = 0; i < 100; i++)
        p += sprintf(p, "Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n", i, i);
    p += sprintf(p, "\nfar inside");
    has_none("a.eml", deep, strlen(deep), "more than 8 deep");
    free(deep);
    has_none("a.eml", "\0\1\2", 3, "binary");
    text_is("a.eml", "no header at all", 16, "no header at all");
}

/* Cut anywhere, or with bytes changed: some text, or a reason; memory is given back. */
static void damaged(void **state) {
    (void)state;
    static const char *const names[] = {"report.docx", "report.odt", "report.epub", "ships.xlsx",
                                        "letter.eml"};
    tn_rng rng = {7};
    int rounds = getenv("TERN_TEST_QUICK") ? 60 : 400;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t n, n_out;
        char *bytes = file(names[i], &n), *copy = malloc(n), *out;
        for (int r = 0; r < rounds; r++) {
            memcpy(copy, bytes, n);
            size_t len = r % 2 ? n : tn_rng_below(&rng, n);
            for (int k = 0; k < r % 8; k++) copy[tn_rng_below(&rng, n)] = (char)tn_rng_below(&rng, 256);
            const char *why;
            tern_error err = {0};
            assert_int_equal(tn_document_text(&ctx, names[i], copy, len, 1 << 20, &out, &n_out, &why, &err),
                             TERN_OK);
            assert_true(!out == !!why);
            tn_free(&ctx, out);
        }
        free(copy);
        free(bytes);
    }
    for (int i = 0; i < TN_MEM_N_CATS; i++) assert_int_equal(ctx.live_bytes[i], 0);
}

/* A text that may not be so long is refused, not cut. */
static void bounded(void **state) {
    (void)state;
    size_t n, n_out;
    char *bytes = file("ships.xlsx", &n), *out;
    const char *why;
    assert_int_equal(tn_document_text(&ctx, "ships.xlsx", bytes, n, 30, &out, &n_out, &why, NULL), TERN_OK);
    assert_null(out);
    assert_non_null(strstr(why, "more text"));
    free(bytes);
}

static int allocations_left;

static void *failing_alloc(void *user, size_t n, size_t align) {
    (void)user;
    if (allocations_left-- <= 0) return NULL;
    return aligned_alloc(align, (n + align - 1) / align * align);
}
static void release(void *user, void *p) {
    (void)user;
    free(p);
}

/* Without memory at any point: an error, never a part of the text. */
static void no_memory(void **state) {
    (void)state;
    static const char *const names[] = {"report.docx", "report.epub", "ships.xlsx", "letter.eml"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t n, n_whole = 0, n_out;
        char *bytes = file(names[i], &n), *out;
        const char *why;
        tern_error err;
        assert_int_equal(tn_document_text(&ctx, names[i], bytes, n, 1 << 24, &out, &n_whole, &why, &err),
                         TERN_OK);
        tn_free(&ctx, out);
        bool done = false;
        for (int k = 0; !done; k++) {
            tern_hooks hooks;
            tern_hooks_defaults(&hooks);
            hooks.alloc = failing_alloc;
            hooks.release = release;
            tn_ctx poor;
            tn_ctx_init(&poor, &hooks);
            allocations_left = k;
            tern_status st = tn_document_text(&poor, names[i], bytes, n, 1 << 24, &out, &n_out, &why, &err);
            done = allocations_left > 0;
            if (st == TERN_OK) {
                assert_null(why);
                assert_int_equal(n_out, n_whole);
            } else {
                assert_int_equal(st, TERN_E_MEMORY);
            }
            tn_free(&poor, out);
            for (int c = 0; c < TN_MEM_N_CATS; c++) assert_int_equal(poor.live_bytes[c], 0);
        }
        free(bytes);
    }
}

static int setup(void **state) {
    (void)state;
    tn_ctx_init(&ctx, NULL);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_other_programs),
        cmocka_unit_test(hostile_markup),
        cmocka_unit_test(costly_markup),
        cmocka_unit_test(hostile_containers),
        cmocka_unit_test(odd_mail),
        cmocka_unit_test(damaged),
        cmocka_unit_test(bounded),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
