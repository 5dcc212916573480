/* Golden: the vocabularies' own test vectors give exactly their ids. */
#include "text/vocab_gguf.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
#include <unistd.h>

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
        for (char *e;; line = e) {
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
    if (strstr(name, "phi-3")) { /* its special tokens swallow the white space after them */
        int32_t ids[8];
        size_t n;
        char word[8];
        assert_int_equal(tn_tokenize(t, "<|user|>\nHi<|end|>\n", 19, false, true, ids, 8, &n, NULL), TERN_OK);
        assert_int_equal(n, 3);
        assert_true(ids[0] == 32010 && ids[2] == 32007 && tn_tokenizer_is_end(t, ids[2]));
        assert_int_equal(tn_token_bytes(t, ids[1], false, word, 8), 3);
        assert_memory_equal(word, " Hi", 3);
    }
    check_all(t, name);
}

static void gpt2(void **state) {
    (void)state;
    gguf_vectors("ggml-vocab-gpt-2.gguf");
}
static void deepseek_coder(void **state) {
    (void)state;
    gguf_vectors("ggml-vocab-deepseek-coder.gguf");
}
static void llama_spm(void **state) {
    (void)state;
    gguf_vectors("ggml-vocab-llama-spm.gguf");
}
static void phi3(void **state) {
    (void)state;
    gguf_vectors("ggml-vocab-phi-3.gguf");
}

static tn_tokenizer *open_folder(const char *folder) {
    tn_tokenizer *t;
    tern_error err = {0};
    if (tn_tokenizer_open_hf(&ctx, folder, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    return t;
}

static void require(const char *path) {
    if (access(path, R_OK) == 0) return;
    print_message("%s is absent\n", path);
    skip();
}

/* vocab.json + merges.txt; the family is in tokenizer_config.json, which the data set lacks */
static void qwen2(void **state) {
    (void)state;
    char path[4096], folder[] = "/tmp/tern-test-XXXXXX", link[64];
    static const char *const files[] = {"vocab.json", "merges.txt"};
    snprintf(path, sizeof path, "%s/tokenizers/qwen2/vocab.json", data_dir());
    require(path);
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/tokenizers/qwen2/%s", data_dir(), files[i]);
        char *real = realpath(path, NULL);
        snprintf(link, sizeof link, "%s/%s", folder, files[i]);
        assert_int_equal(symlink(real, link), 0);
        free(real);
    }
    char config[64];
    snprintf(config, sizeof config, "%s/tokenizer_config.json", folder);
    FILE *f = fopen(config, "w");
    fputs("{\"tokenizer_class\": \"Qwen2Tokenizer\", \"eos_token\": \"<|im_end|>\", \"bos_token\": null, "
          "\"added_tokens_decoder\": {"
          "\"151643\": {\"content\": \"<|endoftext|>\", \"special\": true}, \"151644\": {\"content\": "
          "\"<|im_start|>\", \"special\": true},"
          "\"151645\": {\"content\": \"<|im_end|>\", \"special\": true}}}",
          f);
    fclose(f);
    tn_tokenizer *t = open_folder(folder);
    for (int i = 0; i < 2; i++) {
        snprintf(link, sizeof link, "%s/%s", folder, files[i]);
        unlink(link);
    }
    unlink(config);
    rmdir(folder);
    assert_int_equal(tn_tokenizer_n_vocab(t), 151646);
    assert_true(tn_tokenizer_is_end(t, 151645) && tn_tokenizer_is_end(t, 151643) &&
                !tn_tokenizer_is_end(t, 151644));
    int32_t ids[8];
    size_t n;
    static const char text[] = "<|im_start|>user\n";
    assert_int_equal(tn_tokenize(t, text, strlen(text), true, true, ids, 8, &n, NULL), TERN_OK);
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], 151644);
    check_all(t, "ggml-vocab-qwen2.gguf");
}

static void llama3_tiktoken(void **state) {
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizers/llama3", data_dir());
    require(path);
    tn_tokenizer *t = open_folder(path);
    int32_t ids[8];
    size_t n;
    static const char text[] = "<|eot_id|>";
    assert_int_equal(tn_tokenize(t, text, strlen(text), true, true, ids, 8, &n, NULL), TERN_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 128000);
    assert_int_equal(ids[1], 128009);
    assert_true(tn_tokenizer_is_end(t, 128009));
    check_all(t, "ggml-vocab-llama-bpe.gguf");
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpt2),      cmocka_unit_test(deepseek_coder),
                                       cmocka_unit_test(llama_spm), cmocka_unit_test(phi3),
                                       cmocka_unit_test(qwen2),     cmocka_unit_test(llama3_tiktoken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
