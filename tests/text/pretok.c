/* Golden: every pre-tokenisation that a GGUF file can name cuts texts as another implementation does
 * (tests/oracle/pretok_vectors.py wrote the vectors from llama.cpp's tokenizer, over GPT-2's vocabulary); and
 * bytes without a token never become the end of the text. */
#include "text/pretok.h"
#include "text/vocab_gguf.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <jansson.h>

static tn_ctx ctx;
static vocab_gguf vocab;

static int setup(void **state) {
    (void)state;
    const char *d = getenv("TERN_DATA");
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizers/ggml-vocab-gpt-2.gguf",
             d ? d : TN_SOURCE_DIR "/../shared/data");
    tn_ctx_init(&ctx, NULL);
    if (vocab_gguf_read(path, &vocab)) return 0;
    print_message("%s is absent\n", path);
    exit(77);
}

static int teardown(void **state) {
    (void)state;
    vocab_gguf_free(&vocab);
    return 0;
}

static tn_tokenizer *tokenizer_of(const char *pre, int32_t unk, size_t n_merges) {
    tn_tokenizer_spec s;
    tn_tokenizer_spec_defaults(&s, TN_TOK_BPE_BYTES, pre);
    s.tokens = vocab.spec.tokens, s.token_bytes = vocab.spec.token_bytes, s.n_vocab = vocab.spec.n_vocab;
    s.merges = vocab.spec.merges, s.merge_bytes = vocab.spec.merge_bytes, s.n_merges = n_merges;
    s.types = vocab.spec.types;
    s.bos = s.eos = vocab.spec.eos;
    s.nfc = false; /* the other implementation normalises nothing */
    s.unk = unk;
    tn_tokenizer *t = NULL;
    tern_error err = {0};
    if (tn_tokenizer_open(&ctx, &s, &t, &err) != TERN_OK) fail_msg("%s: %s", pre, err.message);
    return t;
}

static void check(const char *pre, const json_t *text, const json_t *want) {
    tn_tokenizer *t = tokenizer_of(pre, -1, vocab.spec.n_merges);
    int32_t ids[512];
    size_t n;
    for (size_t i = 0; i < json_array_size(text); i++) {
        const json_t *s = json_array_get(text, i), *w = json_array_get(want, i);
        assert_int_equal(
            tn_tokenize(t, json_string_value(s), json_string_length(s), false, false, ids, 512, &n, NULL),
            TERN_OK);
        bool same = n == json_array_size(w);
        for (size_t k = 0; same && k < n; k++) same = ids[k] == json_integer_value(json_array_get(w, k));
        if (!same) fail_msg("%s cuts \"%s\" otherwise", pre, json_string_value(s));
    }
    tn_tokenizer_close(&t);
}

static void as_others_cut(void **state) {
    (void)state;
    json_error_t je;
    json_t *j = json_load_file(TN_SOURCE_DIR "/tests/text/pretok_vectors.json", 0, &je);
    if (!j) fail_msg("%s", je.text);
    const char *name;
    json_t *i_class;
    int n = 0;
    json_object_foreach(json_object_get(j, "names"), name, i_class) {
        check(name, json_object_get(j, "texts"),
              json_array_get(json_object_get(j, "classes"), (size_t)json_integer_value(i_class)));
        n++;
    }
    assert_int_equal(n, 64);
    json_decref(j);
}

static tern_status note_piece(void *user, const char *piece, size_t n) {
    char *out = user;
    size_t len = strlen(out);
    snprintf(out + len, 128 - len, "%s%.*s", len ? "|" : "", (int)n, piece);
    return TERN_OK;
}

/* Families that the other implementation does not know yet, or that GPT-2's vocabulary cannot tell apart: the
 * pieces themselves, from the models' own patterns. */
static void pieces(void **state) {
    (void)state;
    static const struct {
        const char *pre, *text, *want;
    } cases[] = {
        {"smollm", "a'S 12", "a|'|S| |1|2"},
        {"qwen2", "a'S 12", "a|'S| |1|2"},
        {"qwen2", "e\xcc\x81 x!\n\ny", "e|\xcc\x81| x|!\n\n|y"},
        {"qwen35", "e\xcc\x81 x!\n\ny", "e\xcc\x81| x|!\n\n|y"},
        {"bailingmoe", "a'LL 12", "a|'LL| |1|2"},
        {"seed-coder", "x!\ny", "x|!|\n|y"},
        {"exaone-moe", "ab cd1", "ab cd|1"},
        {"solar-open", "a'S 12", "a|'S| |1|2"},
        {"kormo", "12", "1|2"},
        {"openpangu", "12", "1|2"},
        {"f2llmv2", "12", "1|2"},
        {"mellum2", "12", "1|2"},
        {"cohere2_moe", "12", "1|2"},
        {"modern-bert", "a 12", "a| 12"},
        {"laguna", "x 12!\n\n y", "x| |1|2|!|\n\n| y"},
        {"jina-v5-nano", "12345", "123|45"},
        {"joyai-llm", "12345", "123|45"},
        {"kanana2", "aB12345", "a|B|123|45"},
        {"youtu",
         "\xea\xb0\x80\xe4\xb8\x80"
         "12",
         "\xea\xb0\x80|\xe4\xb8\x80|1|2"},
        {"tiny_aya", "12345", "12|345"},
        {"cohere2moe", "12345", "12|345"},
        {"talkie", "aB12345", "a|B|123|45"},
        {"granite-embed-multi-97m", "aB12345", "a|B|123|45"},
        {"granite-embed-multi-97m", "e\xcc\x81 x!\n", "e\xcc\x81| x|!\n"},
        {"minicpm5", "a'LL x12345!\n", "a|'LL| x|123|45|!\n"},
        {"jais-2", "a       b", "a|    |  | b"},
        {"afmoe", "12345", "12|345"},
        {"kimi-k2", "aBc\xe4\xbd\xa0x12345", "a|Bc|\xe4\xbd\xa0|x|123|45"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tn_pretok_family *f = tn_pretok_named(cases[i].pre);
        size_t n = 0;
        assert_non_null(f);
        while (f->patterns[n]) n++;
        tn_pretok *p;
        tern_error err = {0};
        char got[128] = "";
        if (tn_pretok_open(&ctx, f->patterns, n, &p, &err) != TERN_OK) fail_msg("%s", err.message);
        assert_int_equal(tn_pretok_run(p, cases[i].text, strlen(cases[i].text), note_piece, got, &err),
                         TERN_OK);
        if (strcmp(got, cases[i].want))
            fail_msg("%s: got \"%s\", want \"%s\"", cases[i].pre, got, cases[i].want);
        tn_pretok_close(&p);
    }
}

/* A vocabulary without the token of a byte: U+FFFD stands for it, whatever the unknown token is. */
static void unknown_bytes(void **state) {
    (void)state;
    tn_tokenizer_spec s;
    tn_tokenizer_spec_defaults(&s, TN_TOK_BPE_BYTES, "gpt-2");
    /* a, the three bytes of U+FFFD in the alphabet of byte-level vocabularies, the end */
    const char *tokens[] = {"a", "\xc3\xaf", "\xc2\xbf", "\xc2\xbd", "<|endoftext|>"};
    size_t lens[] = {1, 2, 2, 2, 13};
    uint8_t types[] = {TN_TOKEN_NORMAL, TN_TOKEN_NORMAL, TN_TOKEN_NORMAL, TN_TOKEN_NORMAL, TN_TOKEN_CONTROL};
    s.tokens = tokens, s.token_bytes = lens, s.types = types;
    s.eos = s.unk = 4;
    for (int replaceable = 1; replaceable >= 0; replaceable--) {
        s.n_vocab = 5;
        if (!replaceable) tokens[3] = "b", lens[3] = 1;
        tn_tokenizer *t = NULL;
        tern_error err = {0};
        if (tn_tokenizer_open(&ctx, &s, &t, &err) != TERN_OK) fail_msg("%s", err.message);
        static const char text[] = "a\xff"
                                   "a\xc3\xa9";
        int32_t ids[16], want[] = {0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3};
        size_t n;
        assert_int_equal(tn_tokenize(t, text, 5, false, true, ids, 16, &n, &err), TERN_OK);
        if (replaceable) {
            assert_int_equal(n, 11); /* one for each byte without a token */
            assert_memory_equal(ids, want, sizeof want);
        } else {
            assert_int_equal(n, 2);
            assert_true(ids[0] == 0 && ids[1] == 0);
        }
        for (size_t i = 0; i < n; i++) assert_int_not_equal(ids[i], 4);
        tn_tokenizer_close(&t);
    }
}

/* The pieces of a text as one number: where each ends. */
static tern_status note_end(void *user, const char *piece, size_t n) {
    uint64_t *sum = user;
    sum[1] += n;
    sum[0] = (sum[0] ^ sum[1]) * 0x9e3779b97f4a7c15u;
    (void)piece;
    return TERN_OK;
}

/* A window that is too small costs a second look and changes no piece, for any family. */
static void windows(void **state) {
    (void)state;
    json_error_t je;
    json_t *j = json_load_file(TN_SOURCE_DIR "/tests/text/pretok_vectors.json", 0, &je), *s;
    if (!j) fail_msg("%s", je.text);
    enum { CAP = 1 << 16 };
    char *text = malloc(CAP);
    size_t n = 0, i, n_seen = 0;
    assert_non_null(text);
    json_array_foreach(json_object_get(j, "texts"), i, s) {
        assert_true(n + json_string_length(s) + 4096 < CAP);
        memcpy(text + n, json_string_value(s), json_string_length(s));
        n += json_string_length(s);
    }
    /* runs that are longer than any of the windows but the last */
    const char *const runs[] = {" ", "7", "a", "\n", "!", "\xe4\xbd\xa0", "A", " \t"};
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++)
        for (int c = 0; c < 300 && n + 8 < CAP; c++) {
            memcpy(text + n, runs[k], strlen(runs[k]));
            n += strlen(runs[k]);
        }
    const char *name;
    json_t *i_class;
    json_object_foreach(json_object_get(j, "names"), name, i_class) {
        const tn_pretok_family *f = tn_pretok_named(name);
        size_t n_pat = 0;
        if (!f) continue; /* "llama-spm" and the like cut otherwise */
        while (f->patterns[n_pat]) n_pat++;
        tn_pretok *p;
        tern_error err = {0};
        if (tn_pretok_open(&ctx, f->patterns, n_pat, &p, &err) != TERN_OK) fail_msg("%s", err.message);
        uint64_t want[2] = {0};
        const size_t sizes[] = {CAP, 1, 7, 64, 512};
        for (size_t w = 0; w < sizeof sizes / sizeof *sizes; w++) {
            uint64_t got[2] = {0};
            if (tn_pretok_run_windows(p, text, n, sizes[w], note_end, got, &err) != TERN_OK)
                fail_msg("%s, window %zu: %s", name, sizes[w], err.message);
            assert_true(got[1] == n);
            if (!w) memcpy(want, got, sizeof want);
            else if (got[0] != want[0]) fail_msg("%s: a window of %zu changes the pieces", name, sizes[w]);
        }
        n_seen++;
        tn_pretok_close(&p);
    }
    assert_true(n_seen > 40);
    free(text);
    json_decref(j);
}

/* Patterns whose work grows with the square of the text, or worse: an error, not hours. PCRE2's match
 * limit sees only the last of them. */
static void too_much_work(void **state) {
    (void)state;
    static const char *const patterns[] = {"(?=[\\s\\S]*+)", "a(?=[\\s\\S]*+)", "[ab]*+c", "(?<=a)(?=a*+$)",
                                           "(?:a|a)*c"};
    enum { N = 1 << 20 };
    char *text = malloc(N);
    assert_non_null(text);
    memset(text, 'a', N);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        tn_pretok *p;
        tern_error err = {0};
        uint64_t got[2] = {0};
        if (tn_pretok_open(&ctx, &patterns[i], 1, &p, &err) != TERN_OK) fail_msg("%s", err.message);
        assert_int_equal(tn_pretok_run(p, text, N, note_end, got, &err), TERN_E_LIMIT);
        assert_non_null(strstr(err.message, "gave up"));
        tn_pretok_close(&p);
    }
    free(text);
}

static bool stop_at_half(void *user, const char *stage, double fraction) {
    if (!strcmp(stage, "text")) ++*(int *)user;
    return fraction < 0.5;
}

/* A long text asks the host whether to go on. */
static void cancelled(void **state) {
    (void)state;
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    int n_calls = 0;
    hooks.progress = stop_at_half;
    hooks.user = &n_calls;
    tn_ctx asking;
    tn_ctx_init(&asking, &hooks);
    tn_tokenizer_spec s;
    tn_tokenizer_spec_defaults(&s, TN_TOK_BPE_BYTES, "gpt-2");
    const char *tokens[] = {"a", "\xc4\xa0"};
    size_t lens[] = {1, 2};
    s.tokens = tokens, s.token_bytes = lens, s.n_vocab = 2;
    tn_tokenizer *t = NULL;
    tern_error err = {0};
    assert_int_equal(tn_tokenizer_open(&asking, &s, &t, &err), TERN_OK);
    enum { N = 2 << 20 };
    char *text = malloc(N);
    int32_t *ids = malloc(N * sizeof *ids);
    size_t n;
    assert_true(text && ids);
    for (size_t i = 0; i < N; i++) text[i] = i % 8 ? 'a' : ' ';
    assert_int_equal(tn_tokenize(t, text, N, false, false, ids, N, &n, &err), TERN_E_CANCELLED);
    assert_true(n_calls >= 4 && n_calls <= 6); /* 256 KiB each, until half; then the end */
    n_calls = 0;
    assert_int_equal(tn_tokenize(t, text, 100 << 10, false, false, ids, N, &n, &err), TERN_OK);
    assert_int_equal(n_calls, 0);
    free(text);
    free(ids);
    tn_tokenizer_close(&t);
}

static tern_status count_piece(void *user, const char *p, size_t n) {
    (void)p, (void)n;
    ++*(size_t *)user;
    return TERN_OK;
}

/* What is long and all alike is cut within the budget by every family: a number of 60,000 digits, letters
 * without any. */
static void long_runs(void **state) {
    (void)state;
    static const char *const parts[] = {"1", "1a", "a",        "A",        " ",           "\n",
                                        "!", "_",  "\xd9\xa1", "\xcc\x81", "\xe4\xb8\xad"},
                             *const names[] = {"gpt-2",    "llama-bpe", "gpt-4o", "deepseek-v3",
                                               "tiny_aya", "superbpe",  "afmoe",  "kimi-k2"};
    enum { LONG = 60000 };
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        const tn_pretok_family *family = tn_pretok_named(names[f]);
        size_t n_patterns = 0;
        tn_pretok *p;
        tern_error err = {0};
        while (family->patterns[n_patterns]) n_patterns++;
        assert_int_equal(tn_pretok_open(&ctx, family->patterns, n_patterns, &p, &err), TERN_OK);
        for (size_t i = 0; i < 2 * sizeof parts / sizeof *parts; i++) {
            const char *part = parts[i / 2];
            size_t n = 0, pieces = 0;
            for (; n + strlen(part) <= LONG; n += strlen(part)) memcpy(text + n, part, strlen(part));
            if (i % 2) text[n++] = 'x';
            if (tn_pretok_run(p, text, n, count_piece, &pieces, &err) != TERN_OK)
                fail_msg("%s, %zu: %s", names[f], i, err.message);
            assert_true(pieces >= 1);
            if (i == 0 && f >= 4 && f <= 6) assert_int_equal(pieces, (LONG + 2) / 3);
        }
        tn_pretok_close(&p);
    }
    free(text);
}

/* Digits are grouped from the end of their number, where there is one. */
static void grouped(void **state) {
    (void)state;
    static const struct {
        const char *family, *text, *want;
    } cases[] = {
        {"tiny_aya", "1234567 12", "1|234|567| |12"},
        {"tiny_aya", "ab12345", "ab|12|345"},
        {"tiny_aya", "12345ab", "123|45|ab"},       /* no edge after it: from the front */
        {"tiny_aya", "12345_ 12", "123|45|_| |12"}, /* nor there */
        {"tiny_aya", "\xd9\xa1\xd9\xa2\xd9\xa3\xd9\xa4", "\xd9\xa1|\xd9\xa2\xd9\xa3\xd9\xa4"},
        {"superbpe", "12345ab", "12|345|ab"},
        {"afmoe",
         "x\xc2\xb2"
         "123",
         "x|\xc2\xb2|123"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tn_pretok_family *f = tn_pretok_named(cases[i].family);
        size_t n = 0;
        tn_pretok *p;
        tern_error err = {0};
        char got[128] = "";
        while (f->patterns[n]) n++;
        assert_int_equal(tn_pretok_open(&ctx, f->patterns, n, &p, &err), TERN_OK);
        assert_int_equal(tn_pretok_run(p, cases[i].text, strlen(cases[i].text), note_piece, got, &err),
                         TERN_OK);
        if (strcmp(got, cases[i].want))
            fail_msg("%s: \"%s\", want \"%s\"", cases[i].text, got, cases[i].want);
        tn_pretok_close(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_others_cut), cmocka_unit_test(pieces),        cmocka_unit_test(unknown_bytes),
        cmocka_unit_test(windows),       cmocka_unit_test(too_much_work), cmocka_unit_test(cancelled),
        cmocka_unit_test(long_runs),     cmocka_unit_test(grouped),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
