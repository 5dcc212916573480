/* WordPiece and unigram: are texts cut as an independent tokenizer cuts them (tests/oracle/embedding.py), the same
 * after being saved in a package, whatever a damaged map of characters says? */
#include "base/rng.h"
#include "text/tokenizer_impl.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CASES TN_SOURCE_DIR "/tests/oracle/embedding/"
enum { CAP = 1024 };

static tn_ctx ctx;

static tn_tokenizer *open_folder(const char *name) {
    char path[600];
    tn_tokenizer *t;
    tern_error err = {0};
    snprintf(path, sizeof path, CASES "%s/hf", name);
    if (tn_tokenizer_open_hf(&ctx, path, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    return t;
}

static void check(const tn_tokenizer *t, const json_t *told, const char *kind) {
    const json_t *text = json_object_get(told, "text"), *want = json_object_get(told, kind);
    int32_t ids[CAP];
    size_t n, i;
    json_t *id;
    tern_error err = {0};
    assert_int_equal(
        tn_tokenize(t, json_string_value(text), json_string_length(text), false, false, ids, CAP, &n, &err),
        TERN_OK);
    bool same = n == json_array_size(want);
    json_array_foreach(want, i, id) same = same && ids[i] == json_integer_value(id);
    if (!same) {
        for (i = 0; i < n; i++) print_error("%d ", ids[i]);
        fail_msg("%s of \"%s\"", kind, json_string_value(text));
    }
}

/* From the folder, and from what a package keeps of it. */
static void is_cut_as_it_should(void **state) {
    (void)state;
    static const char *const kinds[] = {"wordpiece", "unigram"}, *const names[] = {"bert", "xlm-roberta"};
    for (int k = 0; k < 2; k++) {
        tn_tokenizer *t = open_folder(names[k]), *again;
        uint8_t *blob;
        size_t n_blob;
        tern_error err = {0};
        char line[4096];
        int n = 0;
        FILE *f = fopen(CASES "pieces.jsonl", "r");
        assert_non_null(f);
        assert_int_equal(tn_tokenizer_save(t, &blob, &n_blob, &err), TERN_OK);
        assert_int_equal(tn_tokenizer_load(&ctx, blob, n_blob, &again, &err), TERN_OK);
        for (; fgets(line, sizeof line, f); n++) {
            json_t *told = json_loads(line, JSON_ALLOW_NUL, NULL);
            check(t, told, kinds[k]);
            check(again, told, kinds[k]);
            json_decref(told);
        }
        assert_true(n >= 10);
        fclose(f);
        tn_free(&ctx, blob);
        tn_tokenizer_close(&t);
        tn_tokenizer_close(&again);
    }
}

/* A question and a text: BERT's kind has one separator between them, RoBERTa's two. */
static void pairs(void **state) {
    (void)state;
    static const char *const names[] = {"bert", "xlm-roberta"}, *const texts[2] = {"fox", "a line"};
    static const int32_t first[] = {2, 0}, last[] = {3, 2};
    for (int k = 0; k < 2; k++) {
        tn_tokenizer *t = open_folder(names[k]);
        tern_error err = {0};
        int32_t a[CAP], b[CAP], ids[CAP];
        size_t n_a, n_b, n;
        assert_int_equal(tn_tokenize(t, texts[0], 3, false, false, a, CAP, &n_a, &err), TERN_OK);
        assert_int_equal(tn_tokenize(t, texts[1], 6, false, false, b, CAP, &n_b, &err), TERN_OK);
        assert_int_equal(tn_tokenize_pair(t, texts, (const size_t[]){3, 6}, ids, CAP, &n, &err), TERN_OK);
        assert_int_equal(n, n_a + n_b + 3 + (size_t)k);
        assert_int_equal(ids[0], first[k]);
        assert_memory_equal(ids + 1, a, n_a * sizeof *a);
        for (int i = 0; i <= k; i++) assert_int_equal(ids[1 + n_a + (size_t)i], last[k]);
        assert_memory_equal(ids + 2 + n_a + k, b, n_b * sizeof *b);
        assert_int_equal(ids[n - 1], last[k]);
        for (size_t cap = 0; cap < n;
             cap++) { /* no room: the number that is needed, and nothing behind the room */
            size_t wanted;
            ids[cap] = -7;
            assert_int_equal(tn_tokenize_pair(t, texts, (const size_t[]){3, 6}, ids, cap, &wanted, &err),
                             TERN_E_LIMIT);
            assert_int_equal(wanted, n);
            assert_int_equal(ids[cap], -7);
        }
        tn_tokenizer_close(&t);
    }
}

/* Content does not become a control token. */
static void content_is_not_control(void **state) {
    (void)state;
    tn_tokenizer *t = open_folder("bert");
    tern_error err = {0};
    int32_t ids[CAP];
    size_t n;
    assert_int_equal(tn_tokenize(t, "a [SEP] b", 9, false, false, ids, CAP, &n, &err), TERN_OK);
    for (size_t i = 0; i < n; i++) assert_true(ids[i] != 3);
    assert_int_equal(tn_tokenize(t, "a [SEP] b", 9, false, true, ids, CAP, &n, &err), TERN_OK);
    assert_int_equal(n, 3);
    tn_tokenizer_close(&t);
}

/* Whatever bytes stand in the map, looking into it ends and stays inside it. */
static void damaged_maps(void **state) {
    (void)state;
    tn_tokenizer *t = open_folder("xlm-roberta");
    tn_rng rng = {11};
    uint8_t *whole = malloc(t->charsmap_bytes);
    assert_non_null(whole);
    memcpy(whole, t->charsmap, t->charsmap_bytes);
    static const char text[] = "\xef\xac\x81ts \xef\xbc\x91 e\xcc\x81 \xe2\x80\x8b \t x\xff\xfe";
    for (int round = 0; round < 3000; round++) {
        int32_t ids[CAP];
        size_t n;
        tern_error err = {0};
        memcpy(t->charsmap, whole, t->charsmap_bytes);
        for (int i = 0; i < 1 + round % 40; i++) {
            size_t at =
                4 + tn_rng_u64(&rng) % (t->charsmap_bytes - 5); /* size and last byte were looked at */
            t->charsmap[at] = (uint8_t)tn_rng_u64(&rng);
        }
        assert_int_equal(tn_tokenize(t, text, sizeof text - 1, false, false, ids, CAP, &n, &err), TERN_OK);
    }
    free(whole);
    tn_tokenizer_close(&t);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_cut_as_it_should),
        cmocka_unit_test(pairs),
        cmocka_unit_test(content_is_not_control),
        cmocka_unit_test(damaged_maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
