/* Golden: the vocabularies' own test vectors give exactly their ids. */
#include "text/vocab_gguf.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

static tn_ctx ctx;

static const char *data_dir(void) {
    const char *d = getenv("TERN_DATA");
    return d ? d : TN_SOURCE_DIR "/../shared/data";
}

/* name.inp against name.out; returns the number of texts. */
static int check_vectors(const tn_tokenizer *t, const char *name) {
    static const char sep[] = "\n__ggml_vocab_test__\n";
    char path[4096];
    size_t n_in, n_out;
    snprintf(path, sizeof path, "%s/tokenizers/%s.inp", data_dir(), name);
    char *in = read_whole(path, &n_in);
    snprintf(path, sizeof path, "%s/tokenizers/%s.out", data_dir(), name);
    char *out = read_whole(path, &n_out);
    assert_non_null(in);
    assert_non_null(out);
    int n = 0;
    char *line = out;
    for (char *text = in, *next; text; text = next, n++) {
        next = strstr(text, sep);
        size_t len = next ? (size_t)(next - text) : strlen(text);
        if (next) next += sizeof sep - 1;
        else if (len == 0) break; /* the file ends with a separator */
        int32_t ids[1024], want[1024];
        size_t n_ids, n_want = 0;
        char *eol = strchr(line, '\n');
        assert_non_null(eol);
        *eol = 0;
        for (char *e; ; line = e) {
            long v = strtol(line, &e, 10);
            if (e == line) break;
            want[n_want++] = (int32_t)v;
        }
        line = eol + 1;
        tern_error err = {0};
        assert_int_equal(tn_tokenize(t, text, len, false, false, ids, 1024, &n_ids, &err), TERN_OK);
        bool same = n_ids == n_want && !memcmp(ids, want, n_ids * sizeof *ids);
        if (!same) {
            print_error("%s, text %d \"%.*s\":\n got", name, n, (int)len, text);
            for (size_t i = 0; i < n_ids; i++) print_error(" %d", ids[i]);
            print_error("\nwant");
            for (size_t i = 0; i < n_want; i++) print_error(" %d", want[i]);
            print_error("\n");
        }
        assert_true(same);
    }
    free(in);
    free(out);
    assert_true(n >= 40);
    return n;
}

/* The vectors through a tokenizer and through its copy from a blob. */
static void check_all(tn_tokenizer *t, const char *name) {
    tern_error err;
    uint8_t *blob;
    size_t n;
    int texts = check_vectors(t, name);
    assert_int_equal(tn_tokenizer_save(t, &blob, &n, &err), TERN_OK);
    tn_tokenizer_close(&t);
    assert_int_equal(tn_tokenizer_load(&ctx, blob, n, &t, &err), TERN_OK);
    tn_free(&ctx, blob);
    check_vectors(t, name);
    print_message("%s: %d texts, blob of %zu bytes\n", name, texts, n);
    tn_tokenizer_close(&t);
}

static void gguf_vectors(const char *name) {
    char path[4096];
    vocab_gguf v;
    snprintf(path, sizeof path, "%s/tokenizers/%s", data_dir(), name);
    if (!vocab_gguf_read(path, &v)) {
        print_message("%s is absent\n", path);
        skip();
    }
    tn_tokenizer *t;
    tern_error err = {0};
    tern_status st = tn_tokenizer_open(&ctx, &v.spec, &t, &err);
    if (st != TERN_OK) fail_msg("%s", err.message);
    vocab_gguf_free(&v);
    check_all(t, name);
}

static void gpt2(void **state) { (void)state; gguf_vectors("ggml-vocab-gpt-2.gguf"); }
static void deepseek_coder(void **state) { (void)state; gguf_vectors("ggml-vocab-deepseek-coder.gguf"); }
static void llama_spm(void **state) { (void)state; gguf_vectors("ggml-vocab-llama-spm.gguf"); }
static void phi3(void **state) { (void)state; gguf_vectors("ggml-vocab-phi-3.gguf"); }

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpt2), cmocka_unit_test(deepseek_coder), cmocka_unit_test(llama_spm), cmocka_unit_test(phi3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
