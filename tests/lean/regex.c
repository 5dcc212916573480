/* Golden: own regular expressions cut as PCRE2 does, byte for byte: every family of tokenizers over real
 * texts and random characters, and patterns of which each shows one rule. What is not known is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* A minimal build's pre-tokeniser under other names, beside that of this build. */
#define tn_pretok_open own_open
#define tn_pretok_close own_close
#define tn_pretok_run own_run
#include "text/pretok_lean.c"
#undef tn_pretok_open
#undef tn_pretok_close
#undef tn_pretok_run

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tern_status tn_pretok_open(tn_ctx *ctx, const char *const *patterns, size_t n, tn_pretok **out,
                           tern_error *err);
void tn_pretok_close(tn_pretok **p);
tern_status tn_pretok_run(const tn_pretok *p, const char *text, size_t n, tn_piece_fn fn, void *user,
                          tern_error *err);

static tn_ctx ctx;

/* Where a text was cut. */
typedef struct cuts {
    const char *text;
    size_t *at, n, cap;
} cuts;

static tern_status note(void *user, const char *piece, size_t n) {
    cuts *c = user;
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 1024;
        c->at = realloc(c->at, c->cap * sizeof *c->at);
        assert_non_null(c->at);
    }
    c->at[c->n++] = (size_t)(piece - c->text) + n;
    return TERN_OK;
}

static void compare_cuts(const char *name, const cuts *own, const cuts *other) {
    for (size_t i = 0; i < own->n || i < other->n; i++) {
        size_t a = i < own->n ? own->at[i] : 0, b = i < other->n ? other->at[i] : 0,
               from = i ? own->at[i - 1] : 0;
        if (a != b)
            fail_msg("%s: from byte %zu own patterns cut at %zu, PCRE2 at %zu: \"%.40s\"", name, from, a, b,
                     own->text + from);
    }
}

static void compare(const char *name, const char *const *patterns, size_t n_patterns, const char *text,
                    size_t n) {
    tern_error err;
    tn_pretok *own, *other;
    cuts a = {.text = text}, b = {.text = text};
    if (own_open(&ctx, patterns, n_patterns, &own, &err) != TERN_OK) fail_msg("%s: %s", name, err.message);
    assert_int_equal(tn_pretok_open(&ctx, patterns, n_patterns, &other, &err), TERN_OK);
    if (own_run(own, text, n, note, &a, &err) != TERN_OK) fail_msg("%s: %s", name, err.message);
    tern_status st = tn_pretok_run(other, text, n, note, &b, &err);
    if (st == TERN_E_LIMIT) a.n = b.n; /* it gave up: so far they are compared */
    else if (st != TERN_OK) fail_msg("%s: %s", name, err.message);
    own_close(&own);
    tn_pretok_close(&other);
    compare_cuts(name, &a, &b);
    free(a.at);
    free(b.at);
}

static const char *const names[] = {
    "default",      "gpt-2",          "smollm", "llama-bpe",  "qwen2",       "qwen35",
    "deepseek-llm", "deepseek-coder", "falcon", "gpt-4o",     "deepseek-v3", "tekken",
    "youtu",        "tiny_aya",       "bloom",  "viking",     "superbpe",    "jais-2",
    "bailingmoe",   "seed-coder",     "afmoe",  "exaone-moe", "kimi-k2",     "chameleon"};

static void all_families(const char *text, size_t n) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const tn_pretok_family *f = tn_pretok_named(names[i]);
        size_t n_patterns = 0;
        assert_non_null(f);
        while (f->patterns[n_patterns]) n_patterns++;
        compare(names[i], f->patterns, n_patterns, text, n);
    }
}

static void texts_are_cut_alike(void **state) {
    (void)state;
    static const char *const files[] = {"models/tern-tiny/calib.txt",
                                        "src/text/pretok_families.c",
                                        "tests/text/pretok_vectors.json",
                                        "../shared/data/text/wikitext2_valid.tokens.txt",
                                        "../shared/data/text/spec_bench.jsonl",
                                        "../shared/data/text/hellaswag_val.txt",
                                        "../shared/data/text/arxiv_sample.jsonl",
                                        "../shared/data/text/triviaqa_sm_sub.jsonl",
                                        "../shared/data/text/autodroid_ui_states.json"};
    size_t cap = getenv("TERN_TEST_QUICK") ? 4000 : 15000, n_read = 0;
    char *text = malloc(cap);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", TN_SOURCE_DIR, files[i]);
        FILE *f = fopen(path, "rb");
        if (!f && !strncmp(files[i], "..", 2)) continue;
        assert_non_null(f);
        size_t n = fread(text, 1, cap, f);
        fclose(f);
        all_families(text, n);
        n_read++;
    }
    print_message("%zu texts\n", n_read);
    free(text);
}

/* Characters of every kind, with runs and line ends, where the rules meet. */
static void random_texts_are_cut_alike(void **state) {
    (void)state;
    static const char *const parts[] = {" ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "\xc2\xa0",
                                        "\xe3\x80\x80",
                                        "'s",
                                        "'LL",
                                        "'\xc5\xbf",
                                        "\xc5\xbf",
                                        "abc",
                                        "Ab",
                                        "ABc",
                                        "1",
                                        "12",
                                        "1234567",
                                        "\xd9\xa3",
                                        "\xe2\x85\xa7",
                                        "\xc2\xb2",
                                        "!",
                                        "...",
                                        "_",
                                        "-",
                                        "/",
                                        "\xe4\xb8\xad\xe6\x96\x87",
                                        "\xe3\x81\x82",
                                        "\xed\x95\x9c",
                                        "e\xcc\x81",
                                        "\xcc\x81",
                                        "\xe0\xa4\xb9\xe0\xa4\xbf",
                                        "\xf0\x9f\x98\x80",
                                        "\xe2\x80\x99",
                                        "\xc7\x85",
                                        "\xca\xb0",
                                        "\xe1\xa0\x8e",
                                        "\xc2\x85",
                                        "\xe2\x80\xa8",
                                        "$",
                                        "+",
                                        "\xe2\x82\xac",
                                        "\xff",
                                        "\xe2\x84\xaa",
                                        "IMGIMGAZ",
                                        "<sentinel:12>",
                                        "\xf3\xa0\x80\x81",
                                        "\xef\xbb\xbf"};
    enum { N_PARTS = sizeof parts / sizeof *parts };
    tn_rng rng = {11};
    int rounds = getenv("TERN_TEST_QUICK") ? 20 : 100;
    for (int round = 0; round < rounds; round++) {
        char text[512];
        size_t n = 0;
        while (n < 400) {
            const char *part = parts[tn_rng_u64(&rng) % N_PARTS];
            size_t times = tn_rng_u64(&rng) % 8 ? 1 : 1 + tn_rng_u64(&rng) % 5, len = strlen(part);
            for (; times-- && n + len < sizeof text; n += len) memcpy(text + n, part, len);
        }
        all_families(text, n);
    }
}

static void rules_are_those_of_pcre2(void **state) {
    (void)state;
    static const char *const patterns[] = {"a|ab|abc",
                                           "(?:ab|a)b*c?",
                                           "a{2}",
                                           "a{2,}b",
                                           "a{1,2}a",
                                           "(?:ab){2,3}",
                                           "(?:a|b){0,2}c",
                                           "(ab)?c",
                                           "(?:a(?:b|c)+)+d",
                                           "a++b",
                                           "a*+",
                                           "[^a-c\\n]+",
                                           "[]a]+",
                                           "[a\\]b-]+",
                                           "[\\s\\p{L}]+",
                                           "[^\\S\\n]+",
                                           "\\P{L}+",
                                           "\\p{^L}+",
                                           "\\pL\\PN",
                                           "^a",
                                           "a$",
                                           "\\bab\\b",
                                           "\\B.",
                                           "a(?=b)",
                                           "a(?!b)",
                                           "(?=(?:\\d{3})*(?!\\d))\\d{1,3}",
                                           "(?i:k)+",
                                           "(?i:ST|[a-f])+",
                                           "\\x41+",
                                           "\\x{41}|\\xe9",
                                           ".+",
                                           "\\w+|\\W",
                                           "\\Aab|\\z",
                                           "{",
                                           "a{,3}",
                                           "a{x}",
                                           "(?:)a",
                                           "a||b",
                                           "(?:a|)b",
                                           "\\p{Han}+",
                                           "[\\x{4e00}-\\x{9fa5}]+",
                                           "\xc3\xa9+",
                                           "(?:(?!a)\\w)+",
                                           "\\p{Lu}\\p{Ll}*",
                                           "\\s+$",
                                           "\\\\|\\.|\\/"};
    static const char text[] = "abcabc aabbcc ababab aaaab AaKk\xe2\x84\xaa stST\xc5\xbf 123456 1234 "
                               "\xc3\xa9\xc3\x89 {}{,3} a{,3} a{x} x]-b "
                               "\xe4\xb8\xad\xe6\x96\x87\xe3\x80\x85 acbd acd\n\nabc\\ . / ab\n";
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        for (size_t n = 0; n < sizeof text; n++) /* every place is the text's end once */
            if (((uint8_t)text[n] & 0xc0) != 0x80) compare(patterns[i], &patterns[i], 1, text, n);
}

static void what_is_unknown_is_refused(void **state) {
    (void)state;
    static const char *const patterns[] = {
        "(?<=a)b",       "(?<!a)b", "(a)\\1",      "a*?",        "a+?",        "(?:a*)*", "(?:a|)+",
        "(?>a)",         "(?i)a",   "[[:alpha:]]", "\\p{Greek}", "\\p{",       "\\R",     "\\K",
        "\\Qa\\E",       "[b-a]",   "[a",          "(a",         "a)",         "*a",      "(?i:\\p{Lu})",
        "(?i:\xc3\xa9)", "\\",      "a{99999}",    "[\\d-z]",    "\\x{110000}"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        tn_regex *r;
        tern_error err;
        tern_status st = tn_regex_open(&ctx, patterns[i], &r, &err);
        if (st != TERN_E_UNSUPPORTED)
            fail_msg("%s is %s", patterns[i], st == TERN_OK ? "taken" : err.message);
        assert_null(r);
    }
    char deep[2048];
    tn_regex *r;
    memset(deep, '(', 1000), memset(deep + 1000, ')', 1000), deep[2000] = 0;
    assert_int_equal(tn_regex_open(&ctx, deep, &r, NULL), TERN_E_LIMIT);
}

static void cost_is_bounded(void **state) {
    (void)state;
    const char *pattern = "(?:a|aa)+$";
    tn_pretok *p;
    assert_int_equal(own_open(&ctx, &pattern, 1, &p, NULL), TERN_OK);
    char text[200];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    cuts c = {.text = text};
    assert_int_equal(own_run(p, text, sizeof text, note, &c, NULL), TERN_E_LIMIT);
    own_close(&p);
    free(c.at);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_are_those_of_pcre2), cmocka_unit_test(what_is_unknown_is_refused),
        cmocka_unit_test(cost_is_bounded),          cmocka_unit_test(random_texts_are_cut_alike),
        cmocka_unit_test(texts_are_cut_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
