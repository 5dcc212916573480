/* tests/documents/extract.c - does a reader's text come out of pages and odd encodings, and do passages cover it?
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "documents/extract.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_ctx ctx;

static void html_is(const char *html, const char *want) {
    char *out;
    size_t n;
    tern_error err;
    assert_int_equal(tn_text_from_html(&ctx, html, strlen(html), &out, &n, &err), TERN_OK);
    assert_string_equal(out, want);
    assert_int_equal(n, strlen(want));
    tn_free(&ctx, out);
}

static void html(void **state) {
    (void)state;
    html_is("<html><head><title>T</title><style>p{}</style></head><body><h1>A  title</h1><p>One\n "
            "two</p><p>Three</p></body></html>",
            "A title\n\nOne two\n\nThree");
    html_is("a<br>b<br/>c", "a\nb\nc");
    html_is("<ul><li>x<li>y</ul>z", "- x\n- y\n\nz");
    html_is("<table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>", "1 2\n3");
    html_is("a<script>if (a < b) { document.write('<p>no</p>'); }</script>b", "ab");
    html_is("a<!-- <p>no</p> -->b<!DOCTYPE html>c<?php echo ?>d", "abcd");
    html_is("<p title=\"a > b\">x</p><a href='>'>y</a>", "x\n\ny");
    html_is("fish &amp; chips &lt;b&gt; &#65;&#x42;&eacute;&nbsp;&hellip;&euro;",
            "fish & chips <b> AB\xc3\xa9 \xe2\x80\xa6\xe2\x82\xac");
    html_is("AT&T &unknown; &; &# 3 < 4 > 2", "AT&T &unknown; &; &# 3 < 4 > 2");
    html_is("&#0;&#xD800;&#99999999999;", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    html_is("<pre>a\n  b\n</pre>c", "a\n  b\n\n\nc");
    html_is("<b>bold</b>er <SCRIPT>x</ScRiPt>end", "bolder end");
    html_is("<script>never closed", "");
    html_is("<p", "");
    html_is("", "");
}

static void decode_is(const char *bytes, size_t n, const char *want) {
    char *out;
    size_t n_out;
    tern_error err;
    assert_int_equal(tn_text_decode(&ctx, bytes, n, &out, &n_out, &err), TERN_OK);
    assert_string_equal(out, want);
    tn_free(&ctx, out);
}

static void encodings(void **state) {
    (void)state;
    decode_is("\xef\xbb\xbfh\xc3\xa9", 6, "h\xc3\xa9");
    decode_is("a\r\nb\rc\fd\x01", 9, "a\nb\nc\nd");
    decode_is("h\xe9 \x80 \x93x\x94", 8, "h\xc3\xa9 \xe2\x82\xac \xe2\x80\x9cx\xe2\x80\x9d");
    decode_is("\xff\xfeh\0\xe9\0\x3d\xd8\x00\xde", 10, "h\xc3\xa9\xf0\x9f\x98\x80");
    decode_is("\xfe\xff\0h\0\xe9\xd8\x3d", 8, "h\xc3\xa9\xef\xbf\xbd");
    assert_true(tn_text_is_binary("ab\0cd", 5));
    assert_true(tn_text_is_binary("\x01\x02\x03\x04\x05", 5));
    assert_false(tn_text_is_binary("\xff\xfeh\0", 4));
    assert_false(tn_text_is_binary("plain\n\ttext\x1b[0m", 15));
    assert_false(tn_text_is_binary("", 0));
}

typedef struct cover {
    const char *text, *end, *start; /* end of the passage before; start of it */
    size_t max_tokens, overlap, n, sum;
    bool stop;
} cover;

static bool check(void *user, const char *p, size_t n) {
    cover *c = user;
    assert_true(n > 0 && p[0] != ' ' && p[0] != '\n' && p[n - 1] != ' ' && p[n - 1] != '\n');
    assert_true(tn_text_count(p, n) <= c->max_tokens || n <= 4);
    for (const char *q = c->end; q < p; q++)
        assert_true(*q == ' ' || *q == '\n' || *q == '\t'); /* nothing is left out */
    assert_true(p > c->start || !c->n);
    assert_true((p[0] & 0xc0) != 0x80);
    c->start = p;
    c->end = p + n;
    c->n++;
    return !c->stop;
}

static cover cut_up(const char *t, size_t n, size_t max_tokens, size_t overlap) {
    cover c = {.text = t, .end = t, .start = t, .max_tokens = max_tokens, .overlap = overlap};
    const tn_passage_options o = {.max_tokens = max_tokens, .overlap_tokens = overlap};
    tn_passages(t, n, &o, check, &c);
    for (const char *q = c.end; q < t + n; q++) assert_true(*q == ' ' || *q == '\n' || *q == '\t');
    return c;
}

static bool collect(void *user, const char *p, size_t n) {
    char *buf = user;
    size_t at = strlen(buf);
    snprintf(buf + at, 1000 - at, "[%.*s]", (int)n, p);
    return true;
}

static void passages_are(const char *t, size_t max_tokens, size_t overlap, const char *want) {
    char buf[1000] = "";
    const tn_passage_options o = {.max_tokens = max_tokens, .overlap_tokens = overlap};
    tn_passages(t, strlen(t), &o, collect, buf);
    assert_string_equal(buf, want);
}

static void passages(void **state) {
    (void)state;
    assert_int_equal(tn_text_count("a word, longer", 14), 1 + 1 + 1 + 2);
    passages_are("", 10, 2, "");
    passages_are("  \n\n ", 10, 2, "");
    passages_are("One two.\n\nThree four.\n\nFive six.", 100, 10, "[One two.\n\nThree four.\n\nFive six.]");
    passages_are("One two.\n\nThree four.\n\nFive six.", 9, 0, "[One two.\n\nThree four.][Five six.]");
    passages_are("One two.\nThree four.\nFive six.", 8, 4, "[One two.\nThree four.][Three four.\nFive six.]");
    passages_are("aaaa bbbb cccc dddd", 2, 0, "[aaaa bbbb][cccc dddd]");
    passages_are("abcdefghijkl", 2, 0, "[abcdefgh][ijkl]");
    uint64_t rng = 7;
    static char big[20000];
    static const char *const pieces[] = {"word ",
                                         "a",
                                         ". ",
                                         "\n",
                                         "\n\n",
                                         "# head\n",
                                         "\xc3\xa9",
                                         "\xf0\x9f\x98\x80",
                                         "!? ",
                                         "  ",
                                         "12345678901234567890"};
    for (int trial = 0; trial < 300; trial++) {
        size_t n = 0, want = (size_t)trial * 60;
        while (n < want) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            const char *p = pieces[(rng >> 33) % 11];
            memcpy(big + n, p, strlen(p));
            n += strlen(p);
        }
        size_t max_tokens = 1 + (size_t)trial % 40;
        cut_up(big, n, max_tokens, (size_t)trial % 3 ? max_tokens / 4 : 0);
    }
}

/* This counts like tn_text_count, and adds up what it was asked about. */
static size_t asked_count(void *user, const char *t, size_t n) {
    *(size_t *)user += n;
    return tn_text_count(t, n);
}

static bool go_on(void *user, const char *p, size_t n) {
    (void)p;
    *(size_t *)user += n;
    return true;
}

/* What a tokenizer is asked about does not grow with the length of a line, whether it has words or not. */
static void work_of_long_lines(void **state) {
    (void)state;
    static const char *const lines[] = {"x", "a,1;", "word ", "One sentence. ", "\xc3\xa9", " "};
    size_t n = 1 << 20, asked, covered;
    char *t = malloc(n);
    for (size_t k = 0; k < sizeof lines / sizeof lines[0]; k++) {
        for (size_t i = 0; i < n; i++) t[i] = lines[k][i % strlen(lines[k])];
        const tn_passage_options o = {.max_tokens = 192, .overlap_tokens = 0, asked_count, &asked};
        asked = covered = 0;
        tn_passages(t, n, &o, go_on, &covered);
        if (asked > 24 * n) fail_msg("\"%s\": %zu times the text", lines[k], asked / n);
        assert_true(lines[k][0] == ' ' ? !covered : covered > n - n / 8);
    }
    free(t);
}

/* One endless line must not take quadratic time. */
static void long_lines(void **state) {
    (void)state;
    size_t n = 8 << 20;
    char *t = malloc(n);
    memset(t, 'x', n);
    cover c = cut_up(t, n, 200, 20);
    assert_true(c.n >= n / 800 && c.n < n / 500);
    memset(t, ' ', n);
    t[n - 1] = 'x';
    assert_int_equal(cut_up(t, n, 200, 20).n, 1);
    free(t);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(html), cmocka_unit_test(encodings),
                                       cmocka_unit_test(passages), cmocka_unit_test(work_of_long_lines),
                                       cmocka_unit_test(long_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
