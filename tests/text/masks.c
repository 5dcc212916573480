/* Masks of rich schemas, every bit, against the machine that follows each token's bytes one by one.
 *
 * A mask is made in leaps: what a string allows is found once for all places, subtrees of bytes that
 * change nothing are ranges (text/grammar/local.h). tn_grammar_take knows nothing of that. The vocabulary
 * has what leaps could get wrong: long runs, characters of every length, broken ones, quotes and escapes
 * within tokens. */
#include "base/rng.h"
#include "text/grammar/grammar.h"
#include "text/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_PIECES = 1500, N_TOKENS = 256 + N_PIECES + 1, PIECE_BYTES = 96 };

static tn_ctx ctx;
static tn_rng rng;
static uint64_t seed;
static tn_tokenizer *tok;
static tn_gvocab *vocab;
static const char *mark; /* in place of the grammar, or NULL */

static size_t random_piece(char *out) {
    static const char *const parts[] = {"a",
                                        "b",
                                        "e",
                                        "n",
                                        "x",
                                        "Z",
                                        "7",
                                        "0",
                                        " ",
                                        " ",
                                        "_",
                                        "-",
                                        ".",
                                        ":",
                                        ",",
                                        "\"",
                                        "\\",
                                        "\\n",
                                        "\\u00",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "/",
                                        "@",
                                        "#",
                                        "'",
                                        "~",
                                        "\n",
                                        "\t",
                                        "\x7f",
                                        "\xc3\xa9",
                                        "\xd0\xb6",
                                        "\xe2\x82\xac",
                                        "\xe4\xb8\xad",
                                        "\xed\x9f\xbf",
                                        "\xf0\x9f\x98\x80",
                                        "\xf4\x8f\xbf\xbf",
                                        "\xed\xa0\x80",
                                        "\xc0\x80",
                                        "\x80",
                                        "\xbf",
                                        "\xff",
                                        "\xf5",
                                        "\xe2\x82",
                                        "\xf0\x9f",
                                        "true",
                                        "null",
                                        "id",
                                        "name",
                                        "\",\"",
                                        "\": ",
                                        "\"}"};
    size_t n = 0, n_parts = sizeof parts / sizeof *parts;
    if (!tn_rng_below(&rng, 12)) { /* a run */
        const char *one = parts[tn_rng_below(&rng, n_parts)];
        for (uint64_t k = 2 + tn_rng_below(&rng, 20); k && n + 6 < PIECE_BYTES; k--, n += strlen(one))
            memcpy(out + n, one, strlen(one));
        return n;
    }
    bool plain = tn_rng_below(&rng, 2); /* half of all are letters, as in real vocabularies */
    for (uint64_t k = 1 + tn_rng_below(&rng, 7); k; k--) {
        const char *one = parts[tn_rng_below(&rng, plain ? 9 : n_parts)];
        memcpy(out + n, one, strlen(one));
        n += strlen(one);
    }
    return n;
}

static int open_vocab(void **state) {
    (void)state;
    static char text[N_TOKENS][2 * PIECE_BYTES + 8];
    static const char *tokens[N_TOKENS];
    static size_t lens[N_TOKENS];
    static float scores[N_TOKENS];
    static uint8_t types[N_TOKENS];
    tern_error err = {0};
    const char *given = getenv("TERN_SEED");
    seed = given ? strtoull(given, NULL, 10) : 1;
    rng = (tn_rng){seed};
    tn_ctx_init(&ctx, NULL);
    for (int i = 0; i < N_TOKENS - 1; i++) {
        char piece[PIECE_BYTES];
        size_t n = 1, m = 0;
        if (i < 256) piece[0] = (char)i;
        else n = random_piece(piece);
        for (size_t k = 0; k < n; k++)
            m += tn_utf8_encode(tn_byte_to_alphabet((uint8_t)piece[k]), (uint8_t *)text[i] + m);
        tokens[i] = text[i];
        lens[i] = m;
        scores[i] = (float)-i;
    }
    tokens[N_TOKENS - 1] = "<end>";
    lens[N_TOKENS - 1] = 5;
    types[N_TOKENS - 1] = TN_TOKEN_CONTROL;
    tn_tokenizer_spec s;
    tn_tokenizer_spec_defaults(&s, TN_TOK_BPE_BYTES, NULL);
    s.n_vocab = N_TOKENS, s.tokens = tokens, s.token_bytes = lens, s.scores = scores, s.types = types;
    s.eos = N_TOKENS - 1;
    if (tn_tokenizer_open(&ctx, &s, &tok, &err) != TERN_OK) fail_msg("%s", err.message);
    if (tn_gvocab_open(&ctx, tok, N_TOKENS, &vocab, &err) != TERN_OK) fail_msg("%s", err.message);
    return 0;
}

static int close_vocab(void **state) {
    (void)state;
    tn_gvocab_close(&vocab);
    tn_tokenizer_close(&tok);
    for (int i = 0; i < TN_MEM_N_CATS; i++) assert_int_equal(ctx.live_bytes[i], 0);
    return 0;
}

static tn_grammar *open_grammar(const char *text) {
    tern_error err = {0};
    tn_grammar *g;
    tern_status st = text[0] == 'r' ? tn_grammar_open_gbnf(&ctx, text, strlen(text), &g, &err)
                                    : tn_grammar_open_schema(&ctx, text, strlen(text), &g, &err);
    if (st == TERN_OK) st = tn_grammar_bind(g, vocab, &err);
    if (st != TERN_OK) fail_msg("%s: %s", text, err.message);
    assert_true(tn_grammar_unless(g, mark));
    assert_int_equal(tn_grammar_begin(g, NULL, &err), TERN_OK);
    return g;
}

static void replay(tn_grammar *g, const int32_t *ids, int n) {
    tern_error err = {0};
    assert_int_equal(tn_grammar_begin(g, NULL, &err), TERN_OK);
    for (int i = 0; i < n; i++) assert_true(tn_grammar_take(g, ids[i]));
}

/* A random walk: at every step each token is taken by a grammar that never made a mask. */
static void compare(const char *text, int n_steps) {
    tn_grammar *fast = open_grammar(text), *slow = open_grammar(text);
    int32_t way[64];
    for (int step = 0; step < n_steps; step++) {
        const uint64_t *mask;
        tern_error err = {0};
        int32_t pick = -1;
        uint64_t n = 0;
        if (tn_grammar_mask(fast, &mask, &err) != TERN_OK) fail_msg("%s: %s", text, err.message);
        for (int32_t id = 0; id < N_TOKENS - 1; id++) {
            bool takes = tn_grammar_take(slow, id), says = mask[id >> 6] >> (id & 63) & 1;
            if (takes != says)
                fail_msg("seed %llu, %s, step %d: token %d %s", (unsigned long long)seed, text, step, id,
                         takes ? "is missing" : "is allowed");
            if (!takes) continue;
            replay(slow, way, step);
            if (!tn_rng_below(&rng, ++n)) pick = id;
        }
        if (pick < 0) break;
        way[step] = pick;
        assert_true(tn_grammar_take(fast, pick) && tn_grammar_take(slow, pick));
    }
    tn_grammar_close(&fast);
    tn_grammar_close(&slow);
}

static void rich(void **state) {
    (void)state;
    static const char *const all[] = {
        "{\"type\":\"string\"}",
        "{\"type\":\"string\",\"maxLength\":5}",
        "{\"type\":\"string\",\"minLength\":3,\"maxLength\":30}",
        "{\"type\":\"string\",\"minLength\":12}",
        "{\"type\":\"string\",\"pattern\":\"^[a-z ]{2,9}[a-z0-9_]*$\"}",
        "{\"type\":\"string\",\"pattern\":\"^[^x\\\"]*$\",\"maxLength\":20}",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":12},\"minItems\":1}",
        "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"string\",\"maxLength\":4},\"name\":{"
        "\"type\":\"string\"}}}",
        "{\"type\":\"object\",\"additionalProperties\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":7},{"
        "\"type\":\"null\"}]}}",
        "true",
        /* rounds of two characters, of a character of one class, of characters that are not ASCII alone;
         * two loops in a row */
        "root ::= ([a-z~] [^\"]){2,6} \"\\\"\"",
        "root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]{0,9} [a-zA-Z0-9 \\x80-\\U0010ffff]{4,40} \"\\\"\"",
        "root ::= ([^\\x00-\\x7f] | \"a\" | \"b\" | [n-z]){1,8} \" \"",
        "root ::= [^\\u4e00-\\u9fff\"]{1,20} \"\\\"\" [^\\U0001f600]*",
    };
    int n_walks = getenv("TERN_TEST_QUICK") ? 2 : 8;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int k = 0; k < n_walks; k++) compare(all[i], 14);
}

/* A text that may begin with a mark in place of the grammar: the same walks, into the mark and after it. */
static void marks(void **state) {
    (void)state;
    static const char object[] = "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}";
    static const char *const all[] = {"a", "e ", "ab", "the mark"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        mark = all[i];
        for (int k = 0; k < 6; k++) compare(object, 14);
        tn_grammar *g = open_grammar(object);
        tern_error err = {0};
        const uint64_t *mask;
        const int32_t whole = tn_tokenizer_find(tok, mark);
        if (whole >= 0) assert_true(tn_grammar_take(g, whole));
        for (const char *p = mark; *p && whole < 0; p++) {
            assert_false(tn_grammar_can_end(g));
            assert_true(tn_grammar_take(g, *p)); /* tokens below 256 are bytes */
        }
        assert_true(tn_grammar_can_end(g) && !tn_grammar_must_end(g));
        assert_true(tn_grammar_take(g, '}') && tn_grammar_take(g, 0xff));
        assert_int_equal(tn_grammar_mask(g, &mask, &err), TERN_OK);
        assert_true(mask[(N_TOKENS - 1) >> 6] >> ((N_TOKENS - 1) & 63) & 1); /* the end */
        bool forced = false;
        int32_t id = 'x';
        assert_int_equal(tn_grammar_take_within(g, &id, 0, &forced, &err), TERN_OK);
        assert_true(!forced && id == 'x');
        /* once words of the grammar have begun there is no mark, and none where the grammar begins like it */
        assert_int_equal(tn_grammar_begin(g, NULL, &err), TERN_OK);
        assert_true(tn_grammar_take(g, '{') && !tn_grammar_take(g, *mark));
        assert_false(tn_grammar_unless(g, "{x"));
        assert_int_equal(tn_grammar_begin(g, NULL, &err), TERN_OK);
        assert_true(tn_grammar_take(g, '{') && tn_grammar_take(g, '}'));
        assert_int_equal(tn_grammar_begin(g, NULL, &err), TERN_OK);
        assert_false(tn_grammar_take(g, *mark));
        tn_grammar_close(&g);
    }
    mark = NULL;
}

/* Characters as the vocabulary counts them, against a decoder. */
static void characters(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp += cp < 0x900 ? 1 : 37) {
        uint8_t buf[4], need = 0, lo = 0, hi = 0;
        if (cp >= 0xd800 && cp <= 0xdfff) continue;
        size_t n = tn_utf8_encode(cp, buf);
        for (size_t i = 0; i < n; i++) {
            assert_true(tn_gvocab_utf8(buf[i], &need, &lo, &hi));
            assert_int_equal(need, n - 1 - i);
        }
    }
    for (int trial = 0; trial < 200000; trial++) {
        uint8_t b[4], need = 0, lo = 0, hi = 0;
        uint32_t cp = 0;
        bool good = true;
        for (int i = 0; i < 4; i++)
            b[i] = (uint8_t)(tn_rng_below(&rng, 2) ? 0x80 + tn_rng_below(&rng, 64)
                                                   : 0xc0 + tn_rng_below(&rng, 64));
        b[0] |= 0xc0;
        size_t n = tn_utf8_decode(b, b + 4, &cp), k = 0;
        do good = tn_gvocab_utf8(b[k++], &need, &lo, &hi);
        while (good && need && k < 4);
        bool valid = n >= 2 && cp >= 0x80 && tn_utf8_encode(cp, (uint8_t[4]){0}) == n &&
                     !(cp >= 0xd800 && cp <= 0xdfff);
        if (good != valid || (good && k != n)) fail_msg("%02x %02x %02x %02x", b[0], b[1], b[2], b[3]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rich), cmocka_unit_test(marks),
                                       cmocka_unit_test(characters)};
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
