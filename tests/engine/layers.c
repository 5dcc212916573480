/* Layers that differ in their heads, share keys and values and have embeddings of their own (Gemma 4), or work on
 * one of several streams (Gemma 3n): do
 * texts that are evaluated together get what they get alone, is a package that streams in the package that
 * is there, are rows of the table that are damaged refused, is the tokenizer of such files the folder's? */
#include "formats/gguf.h"
#include "formats/package.h"
#include "model/gguf_vocab.h"
#include "package/npu_model.h"
#include "quant/pack.h"
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { N_PROMPT = 70, N_TEXTS = 3, N_CTX = 512 };

static const char *model;
static char gguf[FIXTURE_PATH], package[FIXTURE_PATH];
static int32_t prompt[N_PROMPT];

static int setup(void **state) {
    (void)state;
    fixture_model(gguf, "m.gguf", model, 3, TN_F16);
    fixture_file(package, "m.tern");
    unlink(package); /* the model's before */
    fixture_package(package, "m.tern", gguf, NULL);
    fixture_prompt(prompt, N_PROMPT);
    return 0;
}

static tern_engine *open_engine(const char *path, const char *load) {
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = 2;
    if (load) o.load = load;
    return fixture_engine(path, &o);
}

/* Buffers are not as wide in all layers: a text's rows must lie where the products read and write them. */
static void together(void **state) {
    const char *path = *state ? package : gguf;
    tern_error err = {0};
    tern_engine *e = open_engine(path, NULL);
    size_t n_bytes = (size_t)e->model->h.n_vocab * sizeof(float);
    tern_session *all[N_TEXTS], *alone[N_TEXTS];
    tn_turn turns[N_TEXTS];
    for (int i = 0; i < N_TEXTS; i++) {
        all[i] = fixture_session(e, N_CTX, "none");
        alone[i] = fixture_session(e, N_CTX, "none");
        must(tern_session_prefill(all[i], prompt, (size_t)(N_PROMPT - 20 * i), &err), &err);
        must(tern_session_prefill(alone[i], prompt, (size_t)(N_PROMPT - 20 * i), &err), &err);
    }
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < N_TEXTS; i++) {
            turns[i] = (tn_turn){.s = all[i], .tree.n = 1, .tree.token[0] = 3 + 7 * i + k};
            must(tern_session_step(alone[i], 3 + 7 * i + k, &err), &err);
        }
        tn_sessions_forward(turns, N_TEXTS);
        for (int i = 0; i < N_TEXTS; i++) {
            must(turns[i].status, &turns[i].err);
            assert_memory_equal(tern_session_logits(all[i]), tern_session_logits(alone[i]), n_bytes);
        }
    }
    for (int i = 0; i < N_TEXTS; i++) tern_session_close(&all[i]), tern_session_close(&alone[i]);
    tern_engine_close(&e);
}

/* The first prompt of a package that is still being read, and of one that is there or mapped. */
static void streamed(void **state) {
    (void)state;
    static const char *const modes[] = {"sequential", "stream", "mmap"};
    float *first = NULL;
    for (int i = 0; i < 3; i++) {
        tern_error err = {0};
        tern_engine *e = open_engine(package, modes[i]);
        tern_session *s = fixture_session(e, N_CTX, "none");
        size_t n_bytes = (size_t)e->model->h.n_vocab * sizeof(float);
        must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
        if (!first) first = memcpy(malloc(n_bytes), tern_session_logits(s), n_bytes);
        assert_memory_equal(tern_session_logits(s), first, n_bytes);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
    free(first);
}

/* A row of the table is read when its token comes, and seen to be damaged then. The next text is well. */
static void damaged_row(void **state) {
    (void)state;
    tern_error err = {0};
    tn_ctx ctx;
    tn_pkg *pkg;
    size_t n;
    char path[FIXTURE_PATH];
    fixture_file(path, "damaged.tern");
    tn_ctx_init(&ctx, NULL);
    must(tn_pkg_open(&ctx, package, &pkg, &err), &err);
    const tn_pkg_section *table = tn_pkg_find(pkg, TN_PKG_TABLE, 0);
    assert_non_null(table);
    const tn_pkg_record *all = tn_pkg_records(pkg, table, &n),
                        *rows = tn_pkg_record_find(all, n, TN_W_PLE_EMBD, TN_PKG_ROWS);
    assert_non_null(rows);
    uint64_t at = table->off_bytes + rows->off_bytes + 77 * (uint64_t)rows->k + 5,
             size = tn_pkg_file_bytes(pkg);
    tn_pkg_close(&pkg);
    FILE *in = fopen(package, "rb"), *out = fopen(path, "wb");
    assert_true(in && out);
    for (uint64_t i = 0; i < size; i++) assert_true(putc(getc(in) ^ (i == at ? 1 : 0), out) != EOF);
    fclose(in), fclose(out);
    tern_engine *e = open_engine(path, NULL);
    tern_session *s = fixture_session(e, N_CTX, "none");
    const int32_t bad[] = {76, 77, 78}, good[] = {76, 78};
    assert_int_equal(tern_session_prefill(s, bad, 3, &err), TERN_E_FORMAT);
    if (!strstr(err.message, "embeddings for every layer are damaged")) fail_msg("'%s'", err.message);
    must(tern_session_prefill(s, good, 2, &err), &err);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Spaces are shown, merges are ranked, what has no token is bytes, and a text begins with <bos>. */
static void tokens_of_files(void **state) {
    (void)state;
    static const char *const words[] = {"\n",   "\xe2\x96\x81",     "h",   "e", "l", "o", "he", "ll",
                                        "hell", "\xe2\x96\x81hell", "\n\n"},
                             *const control[] = {"<pad>", "<eos>", "<bos>", "<unk>", "<turn|>"},
                             *const merges[] = {"h e", "l l", "he ll", "\xe2\x96\x81 hell", "\n \n"};
    enum { N_CONTROL = 5, N_WORDS = 11, FIRST = N_CONTROL + 256, N = FIRST + N_WORDS };
    const char *tokens[N];
    static char bytes[256][8];
    size_t lens[N], merge_lens[5];
    int32_t types[N], ids[32];
    for (int i = 0; i < N; i++) {
        int b = i - N_CONTROL;
        if (b >= 0 && b < 256) snprintf(bytes[b], sizeof bytes[b], "<0x%02X>", (unsigned)b);
        tokens[i] = i < N_CONTROL ? control[i] : i < FIRST ? bytes[b] : words[i - FIRST];
        types[i] = i < N_CONTROL ? (i == 3 ? 2 : 3) : i < FIRST ? 6 : 1;
        lens[i] = strlen(tokens[i]);
    }
    for (int i = 0; i < 5; i++) merge_lens[i] = strlen(merges[i]);
    tn_ctx ctx;
    tn_gguf_writer *w;
    tn_gguf *g;
    tn_tokenizer *t;
    tern_error err = {0};
    char path[FIXTURE_PATH];
    fixture_file(path, "v.gguf");
    tn_ctx_init(&ctx, NULL);
    static const struct {
        const char *model, *pre;
        bool merges;
    } files[] = {{"gemma4", NULL, false},      {"gemma4", NULL, true},
                 {"gpt2", "sarvam-moe", true}, {"gpt2", "granite-embed-multi-311m", true},
                 {"gpt2", "gemma4", true},     {"gpt2", "sarvam-moe", false}};
    static const char text[] = "hello hell\n\n!";
    const int32_t want[] = {2, FIRST + 8, FIRST + 5, FIRST + 9, FIRST + 10, N_CONTROL + '!'};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        must(tn_gguf_create(&ctx, path, &w, &err), &err);
        tn_gguf_put_str(w, "tokenizer.ggml.model", files[i].model);
        if (files[i].pre) tn_gguf_put_str(w, "tokenizer.ggml.pre", files[i].pre);
        tn_gguf_put_arr_str(w, "tokenizer.ggml.tokens", tokens, lens, N);
        tn_gguf_put_arr_i32(w, "tokenizer.ggml.token_type", types, N);
        if (files[i].merges) tn_gguf_put_arr_str(w, "tokenizer.ggml.merges", merges, merge_lens, 5);
        tn_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", 2);
        tn_gguf_put_u32(w, "tokenizer.ggml.eos_token_id", 1);
        tn_gguf_put_u32(w, "tokenizer.ggml.unknown_token_id", 3);
        if (!files[i].pre) tn_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", false);
        if (!files[i].pre) tn_gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", false);
        must(tn_gguf_begin_data(w, &err), &err);
        must(tn_gguf_finish(&w, &err), &err);
        must(tn_gguf_open(&ctx, path, &g, &err), &err);
        tern_status st = tn_gguf_tokenizer(&ctx, g, &t, &err);
        tn_gguf_close(&g);
        if (!files[i].merges) {
            assert_int_equal(st, TERN_E_FORMAT);
            assert_non_null(strstr(err.message, "'tokenizer.ggml.merges' is missing"));
            continue;
        }
        must(st, &err);
        const size_t first = files[i].pre ? 1 : 0; /* only Gemma's own begin with its first token unasked */
        size_t n;
        must(tn_tokenize(t, text, strlen(text), true, true, ids, 32, &n, &err), &err);
        assert_int_equal(n, sizeof want / sizeof *want - first);
        assert_memory_equal(ids, want + first, n * sizeof *want);
        assert_true(tn_tokenizer_is_end(t, 4));
        tn_tokenizer_close(&t);
    }
}

int main(void) {
    static char of_package;
    const struct CMUnitTest tests[] = {
        {"texts together", together, NULL, NULL, NULL},
        {"texts together in a package", together, NULL, NULL, &of_package},
        cmocka_unit_test(streamed),
        cmocka_unit_test(damaged_row),
        cmocka_unit_test(tokens_of_files),
    };
    static const char *const models[] = {"tiny-gemma4", "tiny-gemma3n"};
    int failed = 0;
    for (size_t i = getenv("TERN_TEST_QUICK") ? 1 : 0; i < sizeof models / sizeof *models; i++) {
        model = models[i];
        failed += cmocka_run_group_tests(tests, setup, NULL);
    }
    return failed;
}
