/* RWKV's tokenizer: are texts cut as an independent trie cuts them (tests/oracle/rwkv_vocab.py), the same from the
 * vocabulary, from what a package keeps and from tokens as GGUF files write them; are broken vocabularies refused? */
#include "text/rwkv.h"
#include "text/tokenizer_impl.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER TN_SOURCE_DIR "/tests/oracle/rwkv"
enum { CAP = 4096, MOST = 512 };

static tn_ctx ctx;

static tn_tokenizer *open_folder(void) {
    tn_tokenizer *t;
    tern_error err = {0};
    if (tn_tokenizer_open_hf(&ctx, FOLDER, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    return t;
}

/* As a converter writes them: every byte that is not plain by its number. */
static tn_tokenizer *as_in_gguf(const tn_tokenizer *from) {
    static char text[MOST][128];
    static const char *tokens[MOST];
    static size_t sizes[MOST];
    static uint8_t types[MOST];
    const size_t n_vocab = tn_tokenizer_n_vocab(from);
    tn_tokenizer_spec s;
    tn_tokenizer *t;
    tern_error err = {0};
    assert_true(n_vocab <= MOST);
    for (size_t i = 0; i < n_vocab; i++) {
        size_t n, m = 0;
        const uint8_t *p = tn_tok_text(from, (uint32_t)i, &n);
        for (size_t k = 0; k < n; k++) {
            const bool plain = p[k] >= ' ' && p[k] < 0x7f && p[k] != '\\' && p[k] != '\'';
            if (plain || !i) text[i][m++] = (char)p[k];
            else m += (size_t)snprintf(text[i] + m, sizeof text[i] - m, "\\x%02x", p[k]);
        }
        tokens[i] = text[i], sizes[i] = m, types[i] = i ? TN_TOKEN_NORMAL : TN_TOKEN_CONTROL;
    }
    tn_tokenizer_spec_defaults(&s, TN_TOK_LONGEST, NULL);
    s.n_vocab = n_vocab, s.tokens = tokens, s.token_bytes = sizes, s.types = types, s.bos = s.eos = 0;
    if (tn_tokenizer_open(&ctx, &s, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    return t;
}

static void check(const tn_tokenizer *t, const json_t *told, const char *how) {
    const json_t *text = json_object_get(told, "text"), *want = json_object_get(told, "ids");
    int32_t ids[CAP];
    size_t n, i, n_back = 0;
    json_t *id;
    char back[CAP];
    tern_error err = {0};
    assert_int_equal(
        tn_tokenize(t, json_string_value(text), json_string_length(text), true, false, ids, CAP, &n, &err),
        TERN_OK);
    bool same = n == json_array_size(want);
    json_array_foreach(want, i, id) same = same && ids[i] == json_integer_value(id);
    if (!same) fail_msg("%s: \"%s\" is cut into %zu tokens", how, json_string_value(text), n);
    for (i = 0; i < n; i++) n_back += tn_token_bytes(t, ids[i], false, back + n_back, CAP - n_back);
    assert_int_equal(n_back, json_string_length(text));
    assert_memory_equal(back, json_string_value(text), n_back);
}

static void is_cut_as_it_should(void **state) {
    (void)state;
    tn_tokenizer *t = open_folder(), *again, *gguf = as_in_gguf(t);
    uint8_t *blob;
    size_t n_blob;
    tern_error err = {0};
    char line[8192];
    int n = 0;
    FILE *f = fopen(FOLDER "/texts.jsonl", "r");
    assert_non_null(f);
    assert_int_equal(tn_tokenizer_save(t, &blob, &n_blob, &err), TERN_OK);
    assert_int_equal(tn_tokenizer_load(&ctx, blob, n_blob, &again, &err), TERN_OK);
    for (; fgets(line, sizeof line, f); n++) {
        json_t *told = json_loads(line, JSON_ALLOW_NUL, NULL);
        check(t, told, "folder");
        check(again, told, "package");
        check(gguf, told, "GGUF");
        json_decref(told);
    }
    assert_true(n >= 40);
    /* the token that ends texts is none of a text; an empty line ends a turn */
    int32_t ids[4];
    size_t n_ids;
    assert_int_equal(tn_tokenize(t, "<s>", 3, false, false, ids, 4, &n_ids, &err), TERN_OK);
    assert_true(n_ids == 1 && ids[0] > 256); /* the vocabulary's own */
    assert_int_equal(tn_tokenizer_eos(t), 0);
    assert_int_equal(tn_tokenize(t, "\n\n", 2, false, false, ids, 4, &n_ids, &err), TERN_OK);
    assert_true(n_ids == 1 && tn_tokenizer_is_end(t, ids[0]));
    fclose(f);
    tn_free(&ctx, blob);
    tn_tokenizer_close(&t);
    tn_tokenizer_close(&again);
    tn_tokenizer_close(&gguf);
}

static tern_status count(void *user, int32_t id, const char *bytes, size_t n) {
    (void)id, (void)bytes;
    *(size_t *)user += n;
    return TERN_OK;
}

static void broken(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n; /* bytes of its tokens; 0: it is refused */
    } cases[] = {{"1 '\\x80' 2\n2 b'\\x80' 1", 3},
                 {"1 '\\u4f60\\U0001f600' 7\r\n", 7},
                 {"1 \"'\" 1\n2 '\\'\"' 2\n3 ' ' 1\n", 4},
                 {"", 0},
                 {"2 'a' 1", 0},
                 {"1 'a' 1\n3 'b' 1", 0},
                 {"1 'a' 2", 0},
                 {"1 '' 0", 0},
                 {"1 'a 1", 0},
                 {"1 'a\" 1", 0},
                 {"1 a 1", 0},
                 {"1 'a'", 0},
                 {"1 '\\q' 2", 0},
                 {"1 '\\x8' 1", 0},
                 {"1 '\\ud800' 3", 0},
                 {"1 '\\U00110000' 4", 0},
                 {"1 b'\\u4f60' 3", 0},
                 {"1 'a' 1\n\n2 'b' 1", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = 0;
        tern_error err = {0};
        const tern_status st = tn_rwkv_read(cases[i].text, strlen(cases[i].text), count, &n, &err);
        if (st != (cases[i].n ? TERN_OK : TERN_E_FORMAT) || (cases[i].n && n != cases[i].n))
            fail_msg("'%s': %s, %zu bytes", cases[i].text, err.message, n);
    }
}

/* All bytes must have a token, and no token may be longer than it is worth looking for. */
static void vocabularies(void **state) {
    (void)state;
    static char text[257][2048];
    static const char *tokens[257];
    static size_t sizes[257];
    for (int what = 0; what < 4;
         what++) { /* whole; a byte missing; a broken escape; a token that is too long */
        tn_tokenizer_spec s;
        tn_tokenizer *t;
        tern_error err = {0};
        for (int i = 0; i < 256; i++) sizes[i] = (size_t)snprintf(text[i], sizeof text[i], "\\x%02x", i);
        memset(text[256], 'a', sizeof text[256]);
        sizes[256] = what == 3 ? 1025 : 1024;
        if (what == 1) sizes[7] = (size_t)snprintf(text[7], sizeof text[7], "ab");
        if (what == 2) sizes[7] = (size_t)snprintf(text[7], sizeof text[7], "\\xzz");
        for (int i = 0; i < 257; i++) tokens[i] = text[i];
        tn_tokenizer_spec_defaults(&s, TN_TOK_LONGEST, NULL);
        s.n_vocab = 257, s.tokens = tokens, s.token_bytes = sizes;
        static const char *const part[] = {NULL, "no token for byte 7", "token 7 is not written",
                                           "1025 bytes"};
        const tern_status st = tn_tokenizer_open(&ctx, &s, &t, &err);
        assert_int_equal(st, part[what] ? TERN_E_FORMAT : TERN_OK);
        if (part[what] && !strstr(err.message, part[what])) fail_msg("%s", err.message);
        tn_tokenizer_close(&t);
    }
}

static int setup(void **state) {
    (void)state;
    tn_ctx_init(&ctx, NULL);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_cut_as_it_should), cmocka_unit_test(broken),
                                       cmocka_unit_test(vocabularies)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
