/* The tokenizer on vocabularies made here (always) and on SmolLM's and Llama's (when present): golden against
 * the oracle, properties on random text, damage to blobs, memory running out, threads. */
#include "text/small_vocab.h"
#include "text/vocab_gguf.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

#include <cmocka.h>

static tn_ctx ctx;

enum { TEXT_CAP = 1 << 12, ID_CAP = 1 << 13 };

static tn_tokenizer *open_spec(const tn_tokenizer_spec *spec) {
    tn_tokenizer *t;
    tern_error err = {0};
    if (tn_tokenizer_open(&ctx, spec, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    return t;
}

static tn_tokenizer *open_small(void) {
    static small_vocab v;
    small_vocab_make(&v, 7);
    return open_spec(&v.spec);
}

/* NULL when absent */
static tn_tokenizer *open_data(const char *name) {
    const char *d = getenv("TERN_DATA");
    char path[4096];
    tn_tokenizer *t = NULL;
    tern_error err = {0};
    snprintf(path, sizeof path, "%s/tokenizers/%s", d ? d : TN_SOURCE_DIR "/../shared/data", name);
    if (strstr(name, ".gguf")) {
        vocab_gguf v;
        if (vocab_gguf_read(path, &v)) {
            t = open_spec(&v.spec);
            vocab_gguf_free(&v);
        }
    } else if (tn_tokenizer_open_hf(&ctx, path, &t, &err) != TERN_OK && err.code != TERN_E_FORMAT) {
        fail_msg("%s", err.message);
    }
    if (!t) print_message("%s is absent\n", path);
    return t;
}

static size_t encode(const tn_tokenizer *t, const char *text, size_t n, bool special, int32_t *ids) {
    size_t n_ids;
    tern_error err = {0};
    if (tn_tokenize(t, text, n, false, special, ids, ID_CAP, &n_ids, &err) != TERN_OK)
        fail_msg("%s", err.message);
    return n_ids;
}

static size_t bytes_of(const tn_tokenizer *t, const int32_t *ids, size_t n, char *out, size_t cap) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        at += tn_token_bytes(t, ids[i], true, out + at, cap - at);
        assert_true(at <= cap);
    }
    return at;
}

/* ---- random text -------------------------------------------------------------------------------- */

static size_t random_utf8(tn_rng *r, char *out, size_t max) {
    static const uint32_t lo[] = {0x20,   0x61,   0x20,   0x09,   0xa0,   0x300,  0x391,   0x900,  0x1100,
                                  0x2000, 0x2581, 0x3041, 0x4e00, 0xac00, 0xfb00, 0x1d400, 0x1f300};
    static const uint32_t hi[] = {0x7e,   0x7a,   0x20,   0x0d,   0x24f,  0x36f,  0x3c9,   0x97f,  0x11ff,
                                  0x206f, 0x2581, 0x30ff, 0x9fa5, 0xd7a3, 0xfb4f, 0x1d7ff, 0x1f5ff};
    size_t n = 0, target = tn_rng_below(r, max - 3);
    while (n < target) {
        size_t k = tn_rng_below(r, sizeof lo / sizeof *lo);
        for (size_t run = 1 + tn_rng_below(r, 6); run-- && n < target;)
            n += tn_utf8_encode((uint32_t)(lo[k] + tn_rng_below(r, hi[k] - lo[k] + 1)), (uint8_t *)out + n);
    }
    return n;
}

static size_t random_bytes(tn_rng *r, char *out, size_t max) {
    size_t n = tn_rng_below(r, max);
    for (size_t i = 0; i < n; i++) out[i] = (char)tn_rng_u64(r);
    return n;
}

/* ---- golden ------------------------------------------------------------------------------------- */

static void smollm_oracle(void **state) {
    (void)state;
    tn_tokenizer *t = open_data("smollm");
    if (!t) skip();
    FILE *f = fopen(TN_SOURCE_DIR "/tests/text/smollm_vectors.jsonl", "r");
    assert_non_null(f);
    int n = 0;
    for (json_t *row; (row = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL)); n++) {
        const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, "ids");
        int32_t ids[ID_CAP];
        size_t n_ids = encode(t, json_string_value(text), json_string_length(text), true, ids);
        bool same = n_ids == json_array_size(want);
        for (size_t i = 0; same && i < n_ids; i++)
            same = ids[i] == json_integer_value(json_array_get(want, i));
        if (!same) fail_msg("line %d of the vectors: %s", n + 1, json_string_value(text));
        json_decref(row);
    }
    fclose(f);
    assert_int_equal(n, 177);
    assert_true(tn_tokenizer_is_end(t, tn_tokenizer_find(t, "<|im_end|>")));
    assert_int_equal(tn_tokenizer_find(t, "<|im_start|>"), 1);
    assert_int_equal(tn_tokenizer_find(t, "no such token"), -1);
    tn_tokenizer_close(&t);
}

/* ---- merging against the definition ------------------------------------------------------------- */

static size_t naive_merge(const small_vocab *v, const char *text, size_t n, int32_t *ids) {
    for (size_t i = 0; i < n; i++) ids[i] = (uint8_t)text[i];
    for (;;) {
        uint32_t best = SMALL_MERGES;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (uint32_t m = 0; m < best; m++)
                if (ids[i] == (int32_t)v->left[m] && ids[i + 1] == (int32_t)v->right[m]) best = m, at = i;
        if (best == SMALL_MERGES) return n;
        ids[at] = 256 + (int32_t)best;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

/* Words of every length across the switch from scanning to the heap. */
static void merges_by_definition(void **state) {
    (void)state;
    static small_vocab v;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        small_vocab_make(&v, seed);
        tn_tokenizer *t = open_spec(&v.spec);
        tn_rng rng = {seed};
        for (size_t n = 1; n <= 160; n++)
            for (int rep = 0; rep < 3; rep++) {
                char text[160];
                int32_t got[ID_CAP], want[160];
                for (size_t i = 0; i < n; i++) text[i] = "abcd"[tn_rng_below(&rng, rep + 2)];
                size_t n_got = encode(t, text, n, false, got), n_want = naive_merge(&v, text, n, want);
                if (n_got != n_want || memcmp(got, want, n_got * sizeof *got))
                    fail_msg("seed %d: %.*s", (int)seed, (int)n, text);
            }
        tn_tokenizer_close(&t);
    }
}

/* Of tokens with one text merges mean the first, wherever a vocabulary goes on from one merge to the next. */
static void twins(void **state) {
    (void)state;
    static small_vocab v;
    small_vocab_make(&v, 7);
    static const char *const text[] = {"YZ", "WX", "YZ"}, *const merge[] = {"W X", "Y Z"};
    for (int i = 0; i < 3; i++) strcpy(v.text[256 + i], text[i]);
    for (int i = 0; i < 3; i++) v.token_bytes[256 + i] = 2;
    for (int i = 0; i < 2; i++) v.merges[i] = merge[i];
    for (int i = 0; i < 2; i++) v.merge_bytes[i] = 3;
    v.spec.n_merges = 2;
    tn_tokenizer *t = open_spec(&v.spec);
    for (int time = 0; time < 2; time++) {
        int32_t ids[ID_CAP];
        assert_int_equal(encode(t, "WXYZ", 4, false, ids), 2);
        assert_true(ids[0] == 257 && ids[1] == 256);
    }
    tn_tokenizer_close(&t);
}

/* A word that is a token's text and yet merges to others does so each time. */
static void words_seen_before(void **state) {
    (void)state;
    static small_vocab v;
    small_vocab_make(&v, 7);
    strcpy(v.text[256], "WX"), v.token_bytes[256] = 2;
    strcpy(v.text[257], "WXY"), v.token_bytes[257] = 3;
    v.merges[0] = "W X", v.merge_bytes[0] = 3;
    v.spec.n_merges = 1;
    tn_tokenizer *t = open_spec(&v.spec);
    for (int time = 0; time < 3; time++) {
        int32_t ids[ID_CAP];
        assert_int_equal(encode(t, "WX", 2, false, ids), 1);
        assert_int_equal(ids[0], 256);
        assert_int_equal(encode(t, "WXY", 3, false, ids), 2);
        assert_true(ids[0] == 256 && ids[1] == 'Y');
    }
    tn_tokenizer_close(&t);
    /* an unknown letter becomes the token whose text the word is, and more follows */
    static const char *const tokens[] = {"<unk>", "u", "n", "k", ">", "un"};
    static const size_t bytes[] = {5, 1, 1, 1, 1, 2};
    static const float scores[] = {-9, -1, -1, -1, -1, -.5f};
    tn_tokenizer_spec spec;
    tn_tokenizer_spec_defaults(&spec, TN_TOK_BPE_SPM, NULL);
    spec.tokens = tokens, spec.token_bytes = bytes, spec.scores = scores, spec.n_vocab = 6, spec.unk = 0;
    spec.add_bos = spec.add_space_prefix = false;
    t = open_spec(&spec);
    for (int time = 0; time < 3; time++) {
        int32_t ids[ID_CAP];
        assert_int_equal(encode(t, "<unk>", 5, false, ids), 4);
        assert_true(ids[0] == 0 && ids[1] == 5 && ids[2] == 3 && ids[3] == 4);
    }
    tn_tokenizer_close(&t);
}

/* Scores instead of merges: the result with the best score wins, whatever makes it. */
static void scores_by_definition(void **state) {
    (void)state;
    static small_vocab v;
    small_vocab_make(&v, 3);
    float scores[SMALL_VOCAB];
    for (int i = 0; i < SMALL_VOCAB; i++) scores[i] = -(float)i;
    tn_tokenizer_spec spec = v.spec;
    spec.merges = NULL;
    spec.n_merges = 0;
    spec.scores = scores;
    tn_tokenizer *t = open_spec(&spec);
    tn_rng rng = {5};
    for (int rep = 0; rep < 300; rep++) {
        char text[100];
        size_t n = 1 + tn_rng_below(&rng, sizeof text - 1);
        for (size_t i = 0; i < n; i++) text[i] = "abcd"[tn_rng_below(&rng, 4)];
        /* textbook: symbols as spans, the concatenation looked up among the tokens */
        size_t at[101], k = n;
        int32_t want[100], got[ID_CAP];
        for (size_t i = 0; i <= n; i++) at[i] = i;
        for (;;) {
            int best = SMALL_VOCAB;
            size_t where = 0;
            for (size_t i = 0; i + 1 < k; i++)
                for (int id = 256; id < best && id < 256 + SMALL_MERGES; id++) {
                    /* in the GPT-2 alphabet a, b, c, d are themselves */
                    size_t len = at[i + 2] - at[i];
                    if (v.token_bytes[id] == len && !memcmp(v.text[id], text + at[i], len))
                        best = id, where = i;
                }
            if (best == SMALL_VOCAB) break;
            memmove(at + where + 1, at + where + 2, (k - where - 1) * sizeof *at);
            k--;
        }
        for (size_t i = 0; i < k; i++) {
            want[i] = -1;
            for (int id = 0; id < 256 + SMALL_MERGES; id++)
                if (v.token_bytes[id] == at[i + 1] - at[i] &&
                    !memcmp(v.text[id], text + at[i], v.token_bytes[id]))
                    want[i] = id;
        }
        size_t n_got = encode(t, text, n, false, got);
        if (n_got != k || memcmp(got, want, k * sizeof *got)) fail_msg("%.*s", (int)n, text);
    }
    tn_tokenizer_close(&t);
}

/* A pre-token of a megabyte is no different from a long text. */
static void long_words(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    tn_tokenizer *t = open_small();
    char *text = malloc(N);
    int32_t *ids = malloc(N * sizeof *ids);
    char *back = malloc(N);
    tn_rng rng = {1};
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < N; i++)
            text[i] = kind == 0 ? 'a' : kind == 1 ? ' ' : "abcd"[tn_rng_below(&rng, 4)];
        size_t n;
        assert_int_equal(tn_tokenize(t, text, N, false, true, ids, N, &n, NULL), TERN_OK);
        assert_int_equal(bytes_of(t, ids, n, back, N), N);
        assert_memory_equal(back, text, N);
    }
    free(text);
    free(ids);
    free(back);
    tn_tokenizer_close(&t);
}

/* ---- properties --------------------------------------------------------------------------------- */

static void round_trip(const tn_tokenizer *t, uint64_t seed, bool any_bytes) {
    tn_rng rng = {seed};
    for (int rep = 0; rep < 400; rep++) {
        char text[TEXT_CAP], back[TEXT_CAP];
        int32_t ids[ID_CAP];
        size_t n = any_bytes && rep % 2 ? random_bytes(&rng, text, 300) : random_utf8(&rng, text, 300);
        size_t n_ids = encode(t, text, n, false, ids);
        size_t n_back = bytes_of(t, ids, n_ids, back, sizeof back);
        if (n_back != n || memcmp(back, text, n))
            fail_msg("seed %d, text %d does not come back", (int)seed, rep);
    }
}

static void byte_level_round_trip(void **state) {
    (void)state;
    tn_tokenizer *t = open_small();
    round_trip(t, 1, true);
    tn_tokenizer_close(&t);
    static const char *const names[] = {"smollm", "llama3", "ggml-vocab-gpt-2.gguf"};
    for (int i = 0; i < 3; i++) {
        if (!(t = open_data(names[i]))) continue;
        round_trip(t, 2 + (uint64_t)i, i > 0); /* SmolLM lacks the bytes its training text had not */
        tn_tokenizer_close(&t);
    }
}

/* SentencePiece: a space in front, U+2581 is a space; otherwise bytes come back. */
static void spm_round_trip(void **state) {
    (void)state;
    tn_tokenizer *t = open_data("ggml-vocab-llama-spm.gguf");
    if (!t) skip();
    tn_rng rng = {3};
    for (int rep = 0; rep < 400; rep++) {
        char text[TEXT_CAP], want[TEXT_CAP] = " ", back[TEXT_CAP];
        int32_t ids[ID_CAP];
        size_t n = rep % 2 ? random_bytes(&rng, text, 300) : random_utf8(&rng, text, 300), n_want = n > 0;
        for (size_t i = 0; i < n;) {
            if (n - i >= 3 && !memcmp(text + i, "\xe2\x96\x81", 3)) {
                want[n_want++] = ' ';
                i += 3;
            } else {
                want[n_want++] = text[i++];
            }
        }
        size_t n_ids = encode(t, text, n, false, ids), n_back = bytes_of(t, ids, n_ids, back, sizeof back);
        if (n_back != n_want || memcmp(back, want, n_back)) fail_msg("text %d does not come back", rep);
    }
    tn_tokenizer_close(&t);
}

/* What bytes become when each maximal unfinished sequence is one U+FFFD. */
static size_t repaired(const uint8_t *p, size_t n, char *out) {
    size_t m = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = tn_utf8_decode(p + i, p + n, &cp), k = 1;
        if (len) {
            memcpy(out + m, p + i, len);
            m += len;
            i += len;
            continue;
        }
        /* by Table 3-7 of the Unicode standard: how far does a well-formed sequence start here? */
        uint8_t a = p[i];
        int need = a >= 0xc2 && a < 0xe0 ? 2 : a >= 0xe0 && a < 0xf0 ? 3 : a >= 0xf0 && a < 0xf5 ? 4 : 1;
        if (need > 2 && i + 1 < n) {
            uint8_t b = p[i + 1],
                    lo = a == 0xe0   ? 0xa0
                         : a == 0xf0 ? 0x90
                                     : 0x80,
                    hi = a == 0xed   ? 0x9f
                         : a == 0xf4 ? 0x8f
                                     : 0xbf;
            if (b >= lo && b <= hi) k = need == 4 && i + 2 < n && p[i + 2] >> 6 == 2 ? 3 : 2;
        }
        memcpy(out + m, "\xef\xbf\xbd", 3);
        m += 3;
        i += k;
    }
    return m;
}

static void streaming(void **state) {
    (void)state;
    tn_tokenizer *t = open_small();
    tn_rng rng = {4};
    for (int rep = 0; rep < 2000; rep++) {
        int32_t ids[64];
        size_t n = tn_rng_below(&rng, 64);
        char whole[TEXT_CAP], want[TEXT_CAP], got[TEXT_CAP];
        if (rep % 2) { /* UTF-8 as bytes, cut anywhere, with damage */
            char text[64];
            n = random_utf8(&rng, text, sizeof text);
            for (size_t i = 0; i < n; i++)
                ids[i] = tn_rng_below(&rng, 8) ? (uint8_t)text[i] : (uint8_t)tn_rng_u64(&rng);
        } else {
            for (size_t i = 0; i < n; i++) ids[i] = (int32_t)tn_rng_below(&rng, SMALL_VOCAB);
        }
        size_t n_whole = bytes_of(t, ids, n, whole, sizeof whole),
               n_want = repaired((uint8_t *)whole, n_whole, want), n_got = 0;
        tn_detok d;
        tn_detok_init(&d, t, true, true);
        size_t cap = 4 * tn_tokenizer_max_token_bytes(t) + 16;
        for (size_t i = 0; i < n; i++) {
            char *buf = malloc(cap);
            size_t m = tn_detok_push(&d, ids[i], buf, cap);
            memcpy(got + n_got, buf, m);
            free(buf);
            /* each step alone is complete UTF-8 */
            for (size_t k = 0; k < m;) {
                uint32_t cp;
                size_t len = tn_utf8_decode((uint8_t *)got + n_got + k, (uint8_t *)got + n_got + m, &cp);
                assert_true(len > 0);
                k += len;
            }
            n_got += m;
        }
        n_got += tn_detok_flush(&d, got + n_got, cap);
        if (n_got != n_want || memcmp(got, want, n_got)) fail_msg("case %d differs", rep);
    }
    tn_tokenizer_close(&t);
}

static size_t decode(const tn_tokenizer *t, bool special, bool at_start, const int32_t *ids, size_t n,
                     char *out, size_t cap) {
    tn_detok d;
    tn_detok_init(&d, t, special, at_start);
    size_t m = 0;
    for (size_t i = 0; i < n; i++) m += tn_detok_push(&d, ids[i], out + m, cap - m);
    m += tn_detok_flush(&d, out + m, cap - m);
    out[m] = 0;
    return m;
}

static void spm_streaming(void **state) {
    (void)state;
    tn_tokenizer *t = open_data("ggml-vocab-llama-spm.gguf");
    if (!t) skip();
    int32_t ids[ID_CAP];
    char out[TEXT_CAP];
    size_t n;
    static const char text[] = "Once upon \xf0\x9f\xa6\x99";
    assert_int_equal(tn_tokenize(t, text, strlen(text), true, true, ids, ID_CAP, &n, NULL), TERN_OK);
    assert_int_equal(ids[0], 1);
    decode(t, false, true, ids, n, out, sizeof out);
    assert_string_equal(out, text);
    decode(t, false, false, ids, n, out, sizeof out); /* after other text the space is meant */
    assert_string_equal(out, " Once upon \xf0\x9f\xa6\x99");
    decode(t, true, true, ids, n, out, sizeof out);
    assert_string_equal(out, "<s> Once upon \xf0\x9f\xa6\x99");
    tn_tokenizer_close(&t);
}

/* NFC in pieces is NFC of the whole; bytes that are no text stay. */
static void nfc(void **state) {
    (void)state;
    static small_vocab v;
    small_vocab_make(&v, 7);
    v.spec.nfc = true;
    tn_tokenizer *t = open_spec(&v.spec);
    tn_rng rng = {6};
    for (int rep = 0; rep < 3000; rep++) {
        char text[TEXT_CAP], back[TEXT_CAP];
        int32_t ids[ID_CAP];
        size_t n = random_utf8(&rng, text, rep % 50 ? 120 : 2500), n_ids = encode(t, text, n, false, ids);
        text[n] = 0;
        size_t n_back = bytes_of(t, ids, n_ids, back, sizeof back);
        uint8_t *want = utf8proc_NFC((uint8_t *)text);
        if (n_back != strlen((char *)want) || memcmp(back, want, n_back)) fail_msg("case %d: %s", rep, text);
        free(want);
    }
    static const char broken[] = "e\xcc\x81\xff\xfe"
                                 "e\xcc";
    int32_t ids[ID_CAP];
    char back[64];
    size_t n = encode(t, broken, strlen(broken), false, ids);
    assert_int_equal(bytes_of(t, ids, n, back, sizeof back), 6);
    assert_memory_equal(back,
                        "\xc3\xa9\xff\xfe"
                        "e\xcc",
                        6);
    /* marks without end, the worst case of canonical ordering */
    enum { MARKS = 1 << 18 };
    char *text = malloc(2 * MARKS);
    int32_t *many = malloc(4 * MARKS * sizeof *many);
    for (size_t i = 0; i < MARKS; i++) memcpy(text + 2 * i, i % 2 ? "\xcc\x81" : "\xcc\xa3", 2);
    assert_int_equal(tn_tokenize(t, text, 2 * MARKS, false, false, many, 4 * MARKS, &n, NULL), TERN_OK);
    free(text);
    free(many);
    tn_tokenizer_close(&t);
}

/* ---- special tokens ----------------------------------------------------------------------------- */

static void check_ids(const tn_tokenizer *t, const char *text, bool special, const int32_t *want,
                      size_t n_want) {
    int32_t ids[ID_CAP];
    size_t n = encode(t, text, strlen(text), special, ids);
    if (n != n_want || memcmp(ids, want, n * sizeof *ids)) fail_msg("\"%s\" makes %zu ids", text, n);
}

static void specials(void **state) {
    (void)state;
    tn_tokenizer *t = open_small();
    enum { S = 256 + SMALL_MERGES, E, SS, USER, PAD };
    check_ids(t, "<s>x</s>", true, (int32_t[]){S, 'x', E}, 3);
    check_ids(t, "<s><s>", true, (int32_t[]){SS}, 1); /* the longest */
    check_ids(t, "<s><s><s>", true, (int32_t[]){SS, S}, 2);
    check_ids(t, "<s", true, (int32_t[]){'<', 's'}, 2);
    check_ids(t, "<s>", false, (int32_t[]){'<', 's', '>'}, 3);
    check_ids(t, "x!user!x", false, (int32_t[]){'x', USER, 'x'}, 3); /* user-defined ones are text */
    check_ids(t, "x \n<pad> \ty", true, (int32_t[]){'x', PAD, 'y'}, 3);
    check_ids(t, "\xff<s>\xff", true, (int32_t[]){255, S, 255}, 3);
    char out[64];
    assert_int_equal(decode(t, false, true, (int32_t[]){S, 'a', USER, E}, 4, out, sizeof out), 7);
    assert_string_equal(out, "a!user!");
    decode(t, true, true, (int32_t[]){S, 'a', E}, 3, out, sizeof out);
    assert_string_equal(out, "<s>a</s>");
    /* around the prompt, and the cap rule */
    int32_t ids[3] = {0, 0, -7};
    size_t n;
    assert_int_equal(tn_tokenize(t, "xyz", 3, true, false, ids, 2, &n, NULL), TERN_E_LIMIT);
    assert_int_equal(n, 4);
    assert_true(ids[0] == S && ids[1] == 'x' && ids[2] == -7);
    assert_int_equal(tn_tokenize(t, NULL, 0, true, false, ids, 1, &n, NULL), TERN_OK);
    assert_int_equal(n, 1);
    assert_int_equal(tn_token_bytes(t, -1, true, out, 4) + tn_token_bytes(t, SMALL_VOCAB, true, out, 4), 0);
    assert_true(tn_tokenizer_is_end(t, E) && !tn_tokenizer_is_end(t, S) && tn_tokenizer_bos(t) == S);
    tn_tokenizer_close(&t);
}

/* ---- blobs -------------------------------------------------------------------------------------- */

static void blob_same(void **state) {
    (void)state;
    static const char *const names[] = {"", "smollm", "ggml-vocab-llama-spm.gguf", "llama3"};
    for (int k = 0; k < 4; k++) {
        tn_tokenizer *t = k ? open_data(names[k]) : open_small(), *u;
        if (!t) continue;
        uint8_t *blob, *again;
        size_t n, n_again;
        tern_error err = {0};
        assert_int_equal(tn_tokenizer_save(t, &blob, &n, &err), TERN_OK);
        if (tn_tokenizer_load(&ctx, blob, n, &u, &err) != TERN_OK) fail_msg("%s", err.message);
        assert_int_equal(tn_tokenizer_save(u, &again, &n_again, &err), TERN_OK);
        assert_int_equal(n, n_again);
        assert_memory_equal(blob, again, n);
        tn_rng rng = {8};
        tn_tokenizer *other =
            k ? open_data(names[k]) : open_small(); /* what was read before does not matter */
        int32_t some[ID_CAP];
        for (int32_t id = 0; id < 400; id += 3) {
            char word[64];
            const size_t n_word = tn_token_bytes(other, id, true, word, sizeof word);
            if (n_word <= sizeof word) (void)encode(other, word, n_word, false, some);
        }
        tn_free(&ctx, again);
        assert_int_equal(tn_tokenizer_save(other, &again, &n_again, &err), TERN_OK);
        assert_int_equal(n, n_again);
        assert_memory_equal(blob, again, n);
        tn_tokenizer_close(&other);
        for (int rep = 0; rep < 300; rep++) {
            char text[TEXT_CAP];
            int32_t a[ID_CAP], b[ID_CAP];
            size_t len = random_utf8(&rng, text, 400), na = encode(t, text, len, true, a),
                   nb = encode(u, text, len, true, b);
            assert_int_equal(na, nb);
            assert_memory_equal(a, b, na * sizeof *a);
        }
        tn_free(&ctx, blob);
        tn_free(&ctx, again);
        tn_tokenizer_close(&t);
        tn_tokenizer_close(&u);
    }
}

static uint8_t *corpus(const char *name, size_t *n) {
    char at[300];
    snprintf(at, sizeof at, TN_SOURCE_DIR "/tests/fuzz/corpus/tokenizer_blob/%s.blob", name);
    FILE *f = fopen(at, "rb");
    assert_non_null(f);
    uint8_t *b = malloc(1 << 16);
    *n = fread(b, 1, 1 << 16, f);
    fclose(f);
    XXH64_hash_t h = XXH3_64bits(b + 16, *n - 16);
    memcpy(b + 8, &h, 8);
    return b;
}

/* Blobs of packages before version 6 are read, and what is written of them is the same tokenizer. */
static void blob_of_before(void **state) {
    (void)state;
    static const char *const names[] = {"byte_level", "scores", "gemma"};
    for (int k = 0; k < 3; k++) {
        size_t n, n_new;
        uint8_t *old = corpus(names[k], &n), *new;
        tn_tokenizer *t, *u;
        tern_error err = {0};
        assert_memory_equal(old, "TNTOKEN1", 8);
        if (tn_tokenizer_load(&ctx, old, n, &t, &err) != TERN_OK) fail_msg("%s: %s", names[k], err.message);
        assert_int_equal(tn_tokenizer_save(t, &new, &n_new, &err), TERN_OK);
        assert_memory_equal(new, "TNTOKEN2", 8);
        assert_true(n_new < n);
        if (tn_tokenizer_load(&ctx, new, n_new, &u, &err) != TERN_OK)
            fail_msg("%s: %s", names[k], err.message);
        assert_int_equal(tn_tokenizer_n_vocab(t), tn_tokenizer_n_vocab(u));
        for (int32_t id = 0; id < (int32_t)tn_tokenizer_n_vocab(t); id++) {
            char a[64], b[64];
            size_t len = tn_token_bytes(t, id, true, a, sizeof a);
            assert_int_equal(tn_token_bytes(u, id, true, b, sizeof b), len);
            assert_memory_equal(a, b, len < sizeof a ? len : sizeof a);
        }
        tn_rng rng = {3};
        for (int rep = 0; rep < 100; rep++) {
            char text[TEXT_CAP];
            int32_t a[ID_CAP], b[ID_CAP];
            size_t len = random_utf8(&rng, text, 200), na = encode(t, text, len, true, a);
            assert_int_equal(encode(u, text, len, true, b), na);
            assert_memory_equal(a, b, na * sizeof *a);
        }
        free(old);
        tn_free(&ctx, new);
        tn_tokenizer_close(&t);
        tn_tokenizer_close(&u);
    }
}

static void blob_damage(void **state) {
    (void)state;
    tn_tokenizer *t = open_small(), *u;
    uint8_t *blob;
    size_t n;
    tern_error err = {0};
    assert_int_equal(tn_tokenizer_save(t, &blob, &n, &err), TERN_OK);
    tn_tokenizer_close(&t);
    uint8_t *copy = malloc(n);
    for (size_t len = 0; len < n; len++) {    /* cut, with and without a checksum that fits */
        uint8_t *cut = malloc(len ? len : 1); /* its exact size: reading after it shows */
        memcpy(cut, blob, len);
        for (int fix = 0; fix < 2; fix++) {
            if (fix && len >= 16) {
                XXH64_hash_t h = XXH3_64bits(cut + 16, len - 16);
                memcpy(cut + 8, &h, 8);
            }
            assert_int_equal(tn_tokenizer_load(&ctx, cut, len, &u, &err), TERN_E_FORMAT);
            assert_null(u);
        }
        free(cut);
    }
    tn_rng rng = {9};
    for (int rep = 0; rep < 1500; rep++) {
        memcpy(copy, blob, n);
        /* the counts in front are worth more attempts than the text after */
        size_t at = tn_rng_below(&rng, rep % 2 ? 64 : n);
        copy[at] ^= (uint8_t)(1u << tn_rng_below(&rng, 8));
        assert_int_equal(tn_tokenizer_load(&ctx, copy, n, &u, &err), TERN_E_FORMAT);
        XXH64_hash_t h = XXH3_64bits(copy + 16, n - 16);
        memcpy(copy + 8, &h, 8);
        if (tn_tokenizer_load(&ctx, copy, n, &u, &err) ==
            TERN_OK) { /* damaged but consistent: it must still be safe to use */
            int32_t ids[ID_CAP];
            size_t n_ids;
            tn_tokenize(u, "ab cd <s> abcdabcd 11", 21, true, true, ids, ID_CAP, &n_ids, &err);
            tn_tokenizer_close(&u);
        }
    }
    free(copy);
    tn_free(&ctx, blob);
}

/* ---- memory running out ------------------------------------------------------------------------- */

typedef struct failing {
    int left; /* allocations until one fails; negative: never */
    int live;
} failing;

static void *failing_alloc(void *user, size_t n, size_t align) {
    failing *f = user;
    if (f->left == 0) return NULL;
    if (f->left > 0) f->left--;
    f->live++;
    return aligned_alloc(align, (n + align - 1) / align * align);
}
static void failing_release(void *user, void *p) {
    if (p) ((failing *)user)->live--;
    free(p);
}

static void memory_runs_out(void **state) {
    (void)state;
    static small_vocab v;
    small_vocab_make(&v, 7);
    v.spec.nfc = true;
    v.spec.chat_template = "<|im_start|><|im_end|>";
    char text[400];
    for (size_t i = 0; i < sizeof text; i++) text[i] = "abcd"[i * i % 4];
    memcpy(text, "e\xcc\x81 <s>", 7);
    for (int n = 0;; n++) {
        failing f = {.left = n};
        tern_hooks hooks;
        tern_hooks_defaults(&hooks);
        hooks.alloc = failing_alloc;
        hooks.release = failing_release;
        hooks.user = &f;
        tn_ctx c;
        tn_ctx_init(&c, &hooks);
        tn_tokenizer *t = NULL, *u = NULL;
        uint8_t *blob = NULL;
        size_t n_blob, n_ids;
        int32_t ids[1024];
        tern_error err = {0};
        tern_status st = tn_tokenizer_open(&c, &v.spec, &t, &err);
        if (st == TERN_OK) st = tn_tokenize(t, text, sizeof text, true, true, ids, 1024, &n_ids, &err);
        if (st == TERN_OK) st = tn_tokenizer_save(t, &blob, &n_blob, &err);
        if (st == TERN_OK) st = tn_tokenizer_load(&c, blob, n_blob, &u, &err);
        tn_free(&c, blob);
        tn_tokenizer_close(&t);
        tn_tokenizer_close(&u);
        assert_int_equal(f.live, 0);
        if (st == TERN_OK) {
            assert_true(n > 20);
            break;
        }
        assert_int_equal(st, TERN_E_MEMORY);
    }
}

/* ---- threads ------------------------------------------------------------------------------------ */

static void *tokenise_much(void *arg) {
    const tn_tokenizer *t = arg;
    tn_rng rng = {10};
    uint64_t sum = 0;
    for (int rep = 0; rep < 100; rep++) {
        char text[TEXT_CAP];
        int32_t ids[ID_CAP];
        size_t n_ids, n = random_utf8(&rng, text, 400);
        if (tn_tokenize(t, text, n, true, true, ids, ID_CAP, &n_ids, NULL) != TERN_OK) return NULL;
        sum = sum * 31 + XXH3_64bits(ids, n_ids * sizeof *ids);
    }
    return (void *)(uintptr_t)(sum | 1);
}

static void shared_by_threads(void **state) {
    (void)state;
    tn_tokenizer *t = open_small();
    pthread_t thread[4];
    void *want = tokenise_much(t), *got;
    assert_non_null(want);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, tokenise_much, t), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], &got);
        assert_ptr_equal(got, want);
    }
    tn_tokenizer_close(&t);
}

/* ---- descriptions that cannot be ---------------------------------------------------------------- */

static void refused(void **state) {
    (void)state;
    static small_vocab v;
    tn_tokenizer *t;
    tern_error err;
    small_vocab_make(&v, 7);
    v.spec.pre = "no such family";
    assert_int_equal(tn_tokenizer_open(&ctx, &v.spec, &t, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "no such family"));
    v.spec.pre_regex = (const char *const[]){"(", NULL};
    assert_int_equal(tn_tokenizer_open(&ctx, &v.spec, &t, &err), TERN_E_UNSUPPORTED);
    v.spec.pre_regex = (const char *const[]){"(?:a+)+b|x", NULL}; /* exponential: given up, not waited for */
    assert_int_equal(tn_tokenizer_open(&ctx, &v.spec, &t, &err), TERN_OK);
    int32_t ids[64];
    size_t n;
    assert_int_equal(
        tn_tokenize(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", 45, false, false, ids, 64, &n, &err),
        TERN_E_LIMIT);
    tn_tokenizer_close(&t);
    v.spec.n_vocab = 0;
    assert_int_equal(tn_tokenizer_open(&ctx, &v.spec, &t, &err), TERN_E_FORMAT);
    assert_null(t);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm_oracle),
        cmocka_unit_test(merges_by_definition),
        cmocka_unit_test(twins),
        cmocka_unit_test(words_seen_before),
        cmocka_unit_test(scores_by_definition),
        cmocka_unit_test(long_words),
        cmocka_unit_test(byte_level_round_trip),
        cmocka_unit_test(spm_round_trip),
        cmocka_unit_test(streaming),
        cmocka_unit_test(spm_streaming),
        cmocka_unit_test(nfc),
        cmocka_unit_test(specials),
        cmocka_unit_test(blob_same),
        cmocka_unit_test(blob_of_before),
        cmocka_unit_test(blob_damage),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(shared_by_threads),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
