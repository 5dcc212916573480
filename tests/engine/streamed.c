/* Quantised files whose weights arrive while the first prompt is computed: the same bits as a model that was loaded
 * whole, whatever the architecture, the way of reading and who asks first; and one clear error, once and for all, where
 * the file is not what it was. */
#include "engine/engine.h"
#include "fixture/fixture.h"
#include "formats/gguf.h"
#include "model/streamed.h"
#include "params/options.h"
#include "session/session.h"
#include "tern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { N_TOK = 40, N_VOCAB_MAX = 1024 };

static tern_engine *open_as(const char *path, const char *load, const char *by) {
    tern_options o;
    tn_options_defaults(&o);
    o.load = load;
    o.read = by;
    o.n_threads = 2;
    return fixture_engine(path, &o);
}

static size_t n_vocab(const tern_engine *e) { return (uint32_t)e->model->h.n_vocab; }

static void tokens(const tern_engine *e, int32_t *ids) {
    for (int i = 0; i < N_TOK; i++) ids[i] = (int32_t)(((uint32_t)i * 2654435761u >> 8) % n_vocab(e));
    ids[7] = ids[3]; /* one that comes twice */
}

static tern_status prefill(tern_session *s, const tern_engine *e, int32_t n, tern_error *err) {
    int32_t ids[N_TOK];
    tokens(e, ids);
    return tern_session_prefill(s, ids, (size_t)n, err);
}

static void logits(tern_engine *e, float *out) {
    tern_error err = {0};
    tern_session *s = fixture_session(e, 64, "none");
    assert_in_range(n_vocab(e), 1, N_VOCAB_MAX);
    must(prefill(s, e, N_TOK, &err), &err);
    memcpy(out, tern_session_logits(s), n_vocab(e) * sizeof *out);
    tern_session_close(&s);
}

/* With rows of queries and keys in another order, experts, fused matrices, an output layer of their own, states. */
static const char *const archs[] = {"tiny-llama",
                                    "tiny-qwen2",
                                    "tiny-qwen3moe",
                                    "tiny-phi3",
                                    "tiny-gemma3",
                                    "tiny-granitemoe",
                                    "tiny-qwen3next",
                                    "tiny-lfm2",
                                    "tiny-glm4",
                                    "tiny-ernie4_5-moe",
                                    "tiny-falcon-h1",
                                    "tiny-deepseek2",
                                    "tiny-deepseek2+joint",
                                    "tiny-starcoder2",
                                    "tiny-bitnet",
                                    "tiny-mistral4",
                                    "tiny-llama4",
                                    "tiny-mamba2",
                                    "tiny-rwkv7",
                                    "tiny-kimi-linear",
                                    "tiny-bailingmoe3",
                                    "tiny-qwen2+mtp",
                                    "tiny-qwen35+mtp"};
static const char *const ways[] = {"threads", "threads-direct", "uring", "uring-direct"};

static void as_loaded_whole(void **state) {
    (void)state;
    static float want[N_VOCAB_MAX], got[N_VOCAB_MAX];
    int n = 0;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        for (int q8 = 0; q8 < 2; q8++, n++) {
            char path[FIXTURE_PATH];
            fixture_model(path, "streamed.gguf", archs[i], 7 + i, q8 ? TN_Q8_0 : TN_Q4_0);
            tern_engine *whole = open_as(path, "sequential", NULL), *e = open_as(path, "stream", ways[n % 4]);
            assert_null(whole->model->streamed);
            if (!e->model->streamed) fail_msg("%s is not streamed", archs[i]);
            assert_int_equal(e->model->weight_bytes, whole->model->weight_bytes);
            assert_int_equal(e->model->n_params, whole->model->n_params);
            logits(whole, want);
            logits(e, got);
            if (memcmp(got, want, n_vocab(e) * sizeof *got)) fail_msg("%s: other bits", archs[i]);
            if (tn_model_fingerprint(e->model) != tn_model_fingerprint(whole->model))
                fail_msg("%s: another fingerprint", archs[i]);
            tn_streamed_stats t;
            tn_streamed_stats_get(e->model->streamed, &t);
            /* keys that lie turned in one tensor with values become floats */
            assert_true(e->model->h.n_next || strstr(archs[i], "+joint") ||
                        t.n_read_bytes * 10 > whole->model->weight_bytes * 9);
            assert_in_range(t.n_first_bytes, 1, t.n_read_bytes);
            assert_true(t.done_ns > 0);
            tern_engine_close(&e);
            tern_engine_close(&whole);
        }
    }
}

/* Types whose values lie in another order in the tiles, and one of code books whose rows are the tiles' own; of the
 * others tiles are larger than the file, which is loaded whole. */
static void types_that_are_reordered(void **state) {
    (void)state;
    static const tn_dtype types[] = {TN_Q1_0,   TN_Q2_0,  TN_NVFP4,  TN_MXFP4,  TN_TQ2_0,
                                     TN_IQ2_K,  TN_IQ3_K, TN_IQ4_K,  TN_IQ5_K,  TN_IQ6_K,
                                     TN_IQ2_XS, TN_TQ1_0, TN_IQ4_KS, TN_IQ2_KT, TN_Q6_0};
    static float want[N_VOCAB_MAX], got[N_VOCAB_MAX];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char path[FIXTURE_PATH];
        fixture_model(path, "streamed-types.gguf", i % 2 ? "tiny-llama+256" : "tiny-qwen3moe+256", 7 + i,
                      types[i]);
        tern_engine *whole = open_as(path, "sequential", NULL), *e = open_as(path, "stream", NULL);
        if (!e->model->streamed != (i > 9)) fail_msg("%s: streamed or not", tn_dtype_name(types[i]));
        logits(whole, want);
        logits(e, got);
        if (memcmp(got, want, n_vocab(e) * sizeof *got)) fail_msg("%s: other bits", tn_dtype_name(types[i]));
        tern_engine_close(&e);
        tern_engine_close(&whole);
    }
}

/* Rows that are read before the embedding have its very values. */
static void rows_of_the_embedding(void **state) {
    (void)state;
    char path[FIXTURE_PATH];
    tern_error err = {0};
    for (int untied = 0; untied < 2; untied++) {
        fixture_model(path, "streamed-rows.gguf", untied ? "tiny-llama" : "tiny-qwen2", 3, TN_Q4_0);
        tern_engine *e = open_as(path, "stream", NULL);
        tn_model *m = e->model;
        const int32_t ids[] = {9, m->h.n_vocab + 3, 2, 100, 9, m->h.n_vocab - 1, 0};
        tn_streamed_rows rows = {0}, none = {0};
        must(tn_streamed_rows_read(m->streamed, ids, 7, &rows, &err), &err);
        assert_non_null(rows.values);
        must(tn_model_need(m, m->h.n_layers, &err), &err); /* the output layer, which may be another */
        must(tn_model_need(m, TN_NEED_ALL, &err), &err);
        assert_int_equal(rows.n, 5);
        assert_null(tn_streamed_row(&rows, ids[1])); /* a picture's, perhaps */
        for (int i = 0; i < 7; i++) {
            float row[1024];
            if (ids[i] >= m->h.n_vocab) continue;
            assert_in_range(m->h.n_embd, 1, 1024);
            tn_linear_row(tn_model_linear(m, -1, TN_W_EMBD), (size_t)ids[i], row);
            assert_memory_equal(row, tn_streamed_row(&rows, ids[i]), (size_t)m->h.n_embd * sizeof *row);
        }
        tn_streamed_rows_close(&rows);
        must(tn_streamed_rows_read(m->streamed, ids, 7, &none, &err), &err);
        assert_null(none.values); /* it is there */
        tern_engine_close(&e);
    }
}

/* A layer is waited for when it is needed, and no later one. */
static void layer_by_layer(void **state) {
    (void)state;
    char path[FIXTURE_PATH];
    tern_error err = {0};
    fixture_model(path, "streamed-layers.gguf", "tiny-llama", 3, TN_Q4_0);
    tern_engine *e = open_as(path, "stream", NULL);
    tn_model *m = e->model;
    assert_null(m->layers[0].vectors[TN_W_FFN_NORM]);
    must(tn_model_need(m, 0, &err), &err);
    assert_non_null(m->layers[0].vectors[TN_W_FFN_NORM]);
    assert_null(m->layers[1].vectors[TN_W_FFN_NORM]);
    tn_streamed_stats t;
    tn_streamed_stats_get(m->streamed, &t);
    assert_int_equal(t.done_ns, 0);
    tern_engine_close(&e);
    e = open_as(path, "overlap", NULL);
    tn_streamed_stats_get(e->model->streamed, &t);
    assert_true(t.done_ns > 0);
    tern_engine_close(&e);
    for (int i = 0; i < 8; i++) { /* closed while it reads */
        e = open_as(path, "stream", ways[i % 4]);
        tern_engine_close(&e);
    }
}

/* Reads of single rows wait until memory was taken for a layer. */
typedef struct row_gate {
    atomic_bool closed;
    atomic_int n_taken;
} row_gate;

static void *take_counted(void *user, size_t n_bytes, size_t align) {
    row_gate *g = user;
    atomic_fetch_add(&g->n_taken, 1);
    return aligned_alloc(align, (n_bytes + align - 1) / align * align);
}

static void give(void *user, void *p) {
    (void)user;
    free(p);
}

static ssize_t wait_for_a_layer(void *user, uint64_t off_bytes, uint64_t n_bytes) {
    row_gate *g = user;
    const struct timespec a_little = {.tv_nsec = 1000 * 1000};
    const int before = atomic_load(&g->n_taken);
    (void)off_bytes;
    for (int i = 0;
         i < 3000 && atomic_load(&g->closed) && n_bytes < 4096 && atomic_load(&g->n_taken) == before; i++)
        nanosleep(&a_little, NULL);
    return 0;
}

/* While the rows of a prompt come, layers are turned. */
static void turned_while_rows_come(void **state) {
    (void)state;
    char path[FIXTURE_PATH];
    const struct timespec a_little = {.tv_nsec = 1000 * 1000};
    const int32_t id = 3;
    row_gate g = {0};
    const tern_hooks hooks = {.alloc = take_counted, .release = give, .user = &g};
    tern_error err = {0};
    tn_source *src;
    tn_model *m;
    tn_aio_options io;
    tern_options o;
    fixture_model(path, "streamed-meanwhile.gguf", "tiny-llama", 3, TN_Q4_0);
    tn_options_defaults(&o);
    o.hooks = &hooks;
    o.n_threads = 1;
    o.load = "sequential";
    tern_engine *whole = fixture_engine(path, &o);
    tn_aio_defaults(&io);
    io.fault = wait_for_a_layer;
    io.fault_user = &g;
    must(tn_source_open_weights(&whole->ctx, path, &src, &err), &err);
    assert_null(tn_source_tokenizer(src));
    must(tn_streamed_open(&whole->ctx, whole->pool, &src, &io, &m, &err), &err);
    assert_non_null(m->tokenizer);
    tn_streamed_stats t = {0};
    uint64_t before = 1;
    for (int still = 0; still < 50;) { /* until nothing more comes */
        nanosleep(&a_little, NULL);
        tn_streamed_stats_get(m->streamed, &t);
        still = t.n_read_bytes && t.n_read_bytes == before ? still + 1 : 0;
        before = t.n_read_bytes;
    }
    assert_int_equal(t.n_early, 0);
    atomic_store(&g.closed, true);
    tn_streamed_rows rows = {0};
    must(tn_streamed_rows_read(m->streamed, &id, 1, &rows, &err), &err);
    tn_streamed_rows_close(&rows);
    tn_streamed_stats_get(m->streamed, &t);
    assert_in_range(t.n_early, 1, m->h.n_layers);
    must(tn_model_need(m, TN_NEED_ALL, &err), &err);
    assert_true(tn_model_fingerprint(m) == tn_model_fingerprint(whole->model));
    tn_model_close(&m);
    tern_engine_close(&whole);
}

/* A vocabulary of more tokens than the embedding has rows is told, although the weights are on their way by then. */
static void too_many_tokens(void **state) {
    (void)state;
    static const char name[] = "token_embd.weight";
    char path[FIXTURE_PATH];
    const uint64_t rows = 496;
    size_t n;
    tern_engine *e = NULL;
    tern_error err = {0};
    fixture_model(path, "streamed-tokens.gguf", "tiny-qwen2", 3, TN_Q4_0);
    char *bytes = fixture_read(path, &n), *at = memmem(bytes, n, name, strlen(name));
    assert_non_null(at);
    memcpy(at + strlen(name) + 4 + 8, &rows,
           sizeof rows); /* after the number of dimensions and the first of them */
    fixture_write(path, bytes, n);
    free(bytes);
    assert_int_equal(tern_engine_open(path, NULL, &e, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "the tokenizer has 512 tokens, the embedding 496"));
}

/* What cannot arrive so is loaded whole. */
static void loaded_whole(void **state) {
    (void)state;
    static const char *const others[] = {"tiny-gemma3n"};
    char path[FIXTURE_PATH];
    for (int i = 0; i < 1; i++) {
        fixture_model(path, "streamed-not.gguf", others[i], 3, TN_Q4_0);
        tern_engine *e = open_as(path, NULL, NULL);
        assert_null(e->model->streamed);
        tern_engine_close(&e);
    }
}

/* Where the offset of a tensor stands in its file: behind name, dimensions and type. */
static size_t place_of_offset(const uint8_t *bytes, size_t n, const tn_tensor *t) {
    char name[96];
    const uint64_t length = strlen(t->name);
    assert_in_range(length, 1, sizeof name - 8);
    memcpy(name, &length, 8);
    for (size_t i = 0; i < length; i++) name[8 + i] = t->name[i];
    const uint8_t *at = memmem(bytes, n, name, 8 + length);
    assert_non_null(at);
    return (size_t)(at - bytes) + 8 + length + 4 + (size_t)t->n_dims * 8 + 4;
}

/* How a model is copied: tensors in the opposite order; those of its two layers by turns; with more tokens, so that the
 * vocabulary ends within a tile. */
enum { BACKWARDS, BY_TURNS, MORE_TOKENS, N_COPIES, N_MORE = 5 };

static void copy(const char *from, const char *to, int how) {
    tn_ctx ctx;
    tn_gguf *g;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    must(tn_gguf_open(&ctx, from, &g, &err), &err);
    const size_t n = tn_gguf_n_tensors(g), n_bytes = tn_gguf_file(g)->size_bytes;
    uint64_t data_off = n_bytes;
    for (size_t i = 0; i < n; i++)
        if (tn_gguf_tensor_at(g, i)->off_bytes < data_off) data_off = tn_gguf_tensor_at(g, i)->off_bytes;
    uint8_t *bytes = calloc(1, 2 * n_bytes + n * 32);
    assert_non_null(bytes);
    memcpy(bytes, tn_gguf_file(g)->data, data_off);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const tn_tensor *t =
            tn_gguf_tensor_at(g, how == BY_TURNS ? (i % 2 ? i / 2 : n - 1 - i / 2) : n - 1 - i);
        const size_t place = place_of_offset(bytes, data_off, t);
        memcpy(bytes + data_off + at, t->data, t->size_bytes);
        memcpy(bytes + place, &at, sizeof at);
        at += t->size_bytes;
        if (how == MORE_TOKENS && t->dims[0] == 512) { /* the first ones again */
            const uint64_t rows = t->dims[0] + N_MORE, more = t->size_bytes / t->dims[0] * N_MORE;
            memcpy(bytes + data_off + at, t->data, more);
            memcpy(bytes + place - 4 - 8, &rows, sizeof rows);
            at += more;
        }
        at = (at + 31) / 32 * 32;
    }
    fixture_write(to, bytes, data_off + at);
    free(bytes);
    tn_gguf_close(&g);
}

static void other_orders(void **state) {
    (void)state;
    static float want[N_VOCAB_MAX], got[N_VOCAB_MAX];
    char path[FIXTURE_PATH], other[FIXTURE_PATH];
    fixture_model(path, "streamed-order.gguf", "tiny-llama", 3, TN_Q4_0);
    fixture_file(other, "streamed-other-order.gguf");
    for (int how = 0; how < N_COPIES; how++) {
        copy(path, other, how);
        tern_engine *e = open_as(other, "sequential", NULL);
        logits(e, want);
        tern_engine_close(&e);
        e = open_as(other, NULL, NULL);
        assert_int_equal(e->model->streamed == NULL, how == BY_TURNS);
        assert_int_equal(n_vocab(e), how == MORE_TOKENS ? 512 + N_MORE : 512);
        logits(e, got);
        assert_memory_equal(got, want, n_vocab(e) * sizeof *got);
        tern_engine_close(&e);
    }
}

/* Of a file that changed after it was opened: nothing of it is computed with. */
static void a_changed_file(void **state) {
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        char path[FIXTURE_PATH];
        tern_error err = {0};
        fixture_model(path, "streamed-changed.gguf", "tiny-llama", 3, TN_Q4_0);
        tern_engine *e = open_as(path, NULL, NULL);
        tern_session *s = fixture_session(e, 64, "none");
        const struct timespec a_little = {.tv_nsec = 20 * 1000 * 1000}; /* clocks of files are coarse */
        nanosleep(&a_little, NULL);
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        if (cut) assert_int_equal(ftruncate(fileno(f), 50000), 0);
        else assert_int_equal(fputc('G', f), 'G');
        assert_int_equal(fclose(f), 0);
        for (int again = 0; again < 2; again++) {
            tern_status st = prefill(s, e, N_TOK, &err);
            if (st != TERN_E_IO && !(cut && st == TERN_E_FORMAT)) fail_msg("%d: %s", (int)st, err.message);
            assert_non_null(strstr(err.message, path));
        }
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

static ssize_t slow(void *user, uint64_t off_bytes, uint64_t n_bytes) {
    const int64_t *fails_from = user;
    const struct timespec a_little = {.tv_nsec = 10 * 1000 * 1000};
    (void)n_bytes;
    nanosleep(&a_little, NULL);
    return *fails_from >= 0 && off_bytes >= (uint64_t)*fails_from ? -EIO : 0;
}

/* Weights that come later than they are asked for are waited for; of those that do not come the first failure stays. */
static void slow_and_failing_reads(void **state) {
    (void)state;
    char path[FIXTURE_PATH];
    fixture_model(path, "streamed-slow.gguf", "tiny-llama", 3, TN_Q4_0);
    tern_engine *whole = open_as(path, "sequential", NULL);
    for (int fails = 0; fails < 2; fails++) {
        int64_t fails_from = fails ? 40000 : -1;
        tern_error err = {0}, again = {0};
        tn_source *src;
        tn_model *m;
        tn_aio_options io;
        tn_aio_defaults(&io);
        io.fault = slow;
        io.fault_user = &fails_from;
        must(tn_source_open(&whole->ctx, path, &src, &err), &err);
        must(tn_streamed_open(&whole->ctx, whole->pool, &src, &io, &m, &err), &err);
        assert_null(src);
        const tern_status st = tn_model_need(m, TN_NEED_ALL, &err);
        if (!fails) {
            must(st, &err);
            assert_true(tn_model_fingerprint(m) == tn_model_fingerprint(whole->model));
        } else {
            const int32_t id = 0;
            tn_streamed_rows rows = {0};
            assert_int_equal(st, TERN_E_IO);
            assert_non_null(strstr(err.message, path));
            assert_int_equal(tn_model_need(m, TN_NEED_ALL, &again), TERN_E_IO);
            assert_string_equal(again.message, err.message);
            assert_int_equal(tn_streamed_rows_read(m->streamed, &id, 1, &rows, &again), TERN_E_IO);
        }
        tn_model_close(&m);
    }
    tern_engine_close(&whole);
}

static int n_calls;

static bool refuse_once(void *user, const char *stage, double fraction) {
    (void)user, (void)fraction;
    return strcmp(stage, "load") != 0 || ++n_calls != 2;
}

static void cancelled_and_gone_on_with(void **state) {
    (void)state;
    static float want[N_VOCAB_MAX], got[N_VOCAB_MAX];
    char path[FIXTURE_PATH];
    tern_error err = {0};
    fixture_model(path, "streamed-cancelled.gguf", "tiny-llama", 3, TN_Q4_0);
    tern_engine *e = open_as(path, "sequential", NULL);
    logits(e, want);
    tern_engine_close(&e);
    tern_options o;
    const tern_hooks hooks = {.progress = refuse_once};
    tn_options_defaults(&o);
    o.hooks = &hooks;
    n_calls = 0;
    e = fixture_engine(path, &o);
    tern_session *s = fixture_session(e, 64, "none");
    assert_int_equal(prefill(s, e, N_TOK, &err), TERN_E_CANCELLED);
    tern_session_close(&s);
    logits(e, got);
    assert_memory_equal(got, want, n_vocab(e) * sizeof *got);
    tern_engine_close(&e);
}

/* Where loading fails or is cancelled no model is told by what came, and later, when all is there, it is. */
static void fingerprints_of_a_part(void **state) {
    (void)state;
    char path[FIXTURE_PATH], saved[FIXTURE_PATH];
    tern_error err = {0};
    fixture_model(path, "streamed-part.gguf", "tiny-qwen3moe", 3, TN_Q8_0); /* its routers are float */
    fixture_file(saved, "streamed-part.state");
    tern_engine *e = open_as(path, "sequential", NULL);
    const uint64_t print = tn_model_fingerprint(e->model);
    tern_session *s = fixture_session(e, 64, "none");
    must(prefill(s, e, N_TOK, &err), &err);
    must(tern_session_save(s, saved, &err), &err);
    tern_session_close(&s);
    tern_engine_close(&e);
    tern_options o;
    const tern_hooks hooks = {.progress = refuse_once};
    tn_options_defaults(&o);
    o.hooks = &hooks;
    n_calls = 0;
    e = fixture_engine(path, &o);
    assert_true(tn_model_fingerprint(e->model) != print);
    assert_true(tn_model_fingerprint(e->model) == print);
    tern_engine_close(&e);
    tn_gguf *g;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    must(tn_gguf_open(&ctx, path, &g, &err), &err);
    const uint64_t at = tn_gguf_tensor(g, "blk.0.ffn_down_exps.weight")->off_bytes;
    tn_gguf_close(&g);
    fixture_write_at(path, at, "\0\x7e", 2); /* a scale that is no number */
    e = open_as(path, NULL, NULL);
    assert_non_null(e->model->streamed);
    assert_true(tn_model_fingerprint(e->model) != print);
    s = fixture_session(e, 64, "none");
    assert_int_equal(tern_session_load(s, saved, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "blk.0.ffn_down_exps.weight"));
    tn_state_places places;
    int32_t *ids, n; /* the file is of another model then, and no damaged one: a server removes those */
    assert_int_equal(tn_session_peek(s, saved, &ids, &n, &places, &err), TERN_E_INVALID);
    tern_session_close(&s);
    tern_engine_close(&e);
    remove(saved);
}

typedef struct asker {
    tern_engine *e;
    float out[N_VOCAB_MAX];
    uint64_t print;
} asker;

static void *ask(void *arg) {
    asker *a = arg;
    tern_error err = {0};
    tern_session *s = NULL;
    tern_session_options o;
    tern_session_options_defaults(&o);
    o.n_ctx = 64;
    if (tern_session_open(a->e, &o, &s, &err) == TERN_OK && prefill(s, a->e, N_TOK, &err) == TERN_OK)
        memcpy(a->out, tern_session_logits(s), n_vocab(a->e) * sizeof(float));
    tern_session_close(&s);
    a->print = tn_model_fingerprint(a->e->model);
    return NULL;
}

static void several_at_once(void **state) {
    (void)state;
    static asker askers[3];
    static float want[N_VOCAB_MAX];
    char path[FIXTURE_PATH];
    fixture_model(path, "streamed-crowd.gguf", "tiny-qwen3moe", 3, TN_Q4_0);
    tern_engine *e = open_as(path, "sequential", NULL);
    const uint64_t print = tn_model_fingerprint(e->model);
    logits(e, want);
    tern_engine_close(&e);
    for (int ahead = 0; ahead < 2; ahead++) {
        e = open_as(path, "stream", NULL);
        if (ahead) tn_streamed_ahead(e->model->streamed);
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) {
            askers[i] = (asker){.e = e};
            assert_int_equal(pthread_create(&threads[i], NULL, ask, &askers[i]), 0);
        }
        for (int i = 0; i < 3; i++) {
            pthread_join(threads[i], NULL);
            assert_memory_equal(askers[i].out, want, n_vocab(e) * sizeof *want);
            assert_true(askers[i].print == print);
        }
        tern_engine_close(&e);
    }
    for (int i = 0; i < 8; i++) { /* closed meanwhile */
        e = open_as(path, "stream", ways[i % 4]);
        tn_streamed_ahead(e->model->streamed);
        tern_engine_close(&e);
    }
    e = open_as(path, "stream", NULL); /* nobody asks, and it is there in the end */
    tn_streamed_ahead(e->model->streamed);
    tn_streamed_stats t = {0};
    while (!t.done_ns) tn_streamed_stats_get(e->model->streamed, &t);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_loaded_whole),
        cmocka_unit_test(types_that_are_reordered),
        cmocka_unit_test(rows_of_the_embedding),
        cmocka_unit_test(layer_by_layer),
        cmocka_unit_test(turned_while_rows_come),
        cmocka_unit_test(too_many_tokens),
        cmocka_unit_test(loaded_whole),
        cmocka_unit_test(other_orders),
        cmocka_unit_test(a_changed_file),
        cmocka_unit_test(slow_and_failing_reads),
        cmocka_unit_test(cancelled_and_gone_on_with),
        cmocka_unit_test(fingerprints_of_a_part),
        cmocka_unit_test(several_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
