/* Adapters beside a model's weights, against the same adapters merged into a copy of its file: logits to
 * 1e-3, in every architecture's naming, order of rows and fusing, from GGUF and from PEFT folders;
 * packages beside the merged floats; texts that know which adapters they were read with; files that are
 * wrong. */
#include "base/rng.h"
#include "session/session.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "quant/pack.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { N_PROMPT = 150, N_CTX = 512, N_NEW = 20 };

static char model[FIXTURE_PATH], merged[FIXTURE_PATH], adapter[FIXTURE_PATH], package[FIXTURE_PATH],
    saved[FIXTURE_PATH];
static int32_t prompt[N_CTX];

static void say_paths(void) {
    fixture_file(model, "m.gguf");
    fixture_file(merged, "merged.gguf");
    fixture_file(adapter, "adapter");
    fixture_file(package, "m.tern");
    fixture_file(saved, "m.state");
}

static int teardown(void **state) {
    (void)state;
    static const char *const inside[] = {"config.json", "model.safetensors", "adapter_config.json",
                                         "adapter_model.safetensors"};
    char *const all[] = {model, merged, adapter, package, saved};
    for (int i = 0; i < 5; i++) {
        char path[2 * FIXTURE_PATH + 40];
        for (int k = 0; k < 4; k++) {
            snprintf(path, sizeof path, "%s/%s", all[i], inside[k]);
            unlink(path);
        }
        snprintf(path, sizeof path, "%s.profile", all[i]);
        unlink(path);
        unlink(all[i]);
        rmdir(all[i]);
    }
    return 0;
}

/* ---- files ------------------------------------------------------------------------------------------- */

/* Tensors in F32 as one safetensors file. */
typedef struct pile {
    char head[1 << 16];
    size_t n_head;
    float *data;
    size_t n, cap;
} pile;

static void put(pile *p, const char *name, const float *v, const uint64_t dims[4], int n_dims) {
    size_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= dims[i];
    if (p->n + n > p->cap) p->data = realloc(p->data, (p->cap = 2 * (p->n + n)) * sizeof *p->data);
    p->n_head += (size_t)snprintf(p->head + p->n_head, sizeof p->head - p->n_head,
                                  "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[", p->n_head ? "," : "{", name);
    for (int i = 0; i < n_dims; i++)
        p->n_head += (size_t)snprintf(p->head + p->n_head, sizeof p->head - p->n_head, "%s%llu", i ? "," : "",
                                      (unsigned long long)dims[i]);
    p->n_head += (size_t)snprintf(p->head + p->n_head, sizeof p->head - p->n_head,
                                  "],\"data_offsets\":[%zu,%zu]}", p->n * 4, (p->n + n) * 4);
    assert_true(p->n_head < sizeof p->head - 200);
    memcpy(p->data + p->n, v, n * sizeof *v);
    p->n += n;
}

static void write_pile(pile *p, const char *path) {
    p->head[p->n_head++] = '}';
    while (p->n_head % 8) p->head[p->n_head++] = ' ';
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    uint64_t n = p->n_head;
    fwrite(&n, 8, 1, f);
    fwrite(p->head, 1, p->n_head, f);
    fwrite(p->data, sizeof *p->data, p->n, f);
    assert_int_equal(fclose(f), 0);
    free(p->data);
    *p = (pile){0};
}

/* ---- an adapter and its merging ---------------------------------------------------------------------- */

static int unread_from = INT_MAX; /* layers whose keys and values nobody reads */

/* Does an adapter change this tensor? Projections of layers, and an output layer. */
static bool target(const tn_tensor *t) {
    static const char *const not [] = {"conv1d",
                                       "shortconv.conv.",
                                       "conv.conv.",
                                       "gate_inp",
                                       "embd",
                                       "embed_tokens",
                                       "router",
                                       "experts",
                                       "shared_expert_gate",
                                       "mlp.gate.weight",
                                       "norm",
                                       "_coef",
                                       "mix_w1",
                                       "mix_w2",
                                       "mix_a1",
                                       "mix_a2",
                                       "mix_v1",
                                       "mix_v2",
                                       "mix_g1",
                                       "mix_g2"};
    size_t n = strlen(t->name);
    int layer, at = 0;
    if ((sscanf(t->name, "blk.%d.attn_%n", &layer, &at) == 1 && at && layer >= unread_from) ||
        (at = 0,
         sscanf(t->name, "model.layers.%d.self_attn.%n", &layer, &at) == 1 && at && layer >= unread_from))
        if (t->name[at] == 'k' || t->name[at] == 'v') return false;
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        if (strstr(t->name, not [i])) return false;
    return n > 7 && !strcmp(t->name + n - 7, ".weight") && t->dims[1] > 1 && t->dims[2] == 1;
}

/* Of variance 1. */
static double uniform(tn_rng *rng) { return (2 * tn_rng_f64(rng) - 1) * sqrt(3); }

/* A and B for a tensor w, so that their product, at `scale`, changes it by about a third. w becomes the
 * sum. */
static void learn(float *w, size_t n, size_t k, size_t rank, double scale, uint64_t seed, float *a,
                  float *b) {
    tn_rng rng = {seed};
    double square = 0;
    for (size_t i = 0; i < n * k; i++) square += (double)w[i] * (double)w[i];
    double rms = sqrt(square / (double)(n * k)) / 3 / scale / sqrt((double)rank);
    for (size_t i = 0; i < rank * k; i++) a[i] = (float)uniform(&rng);
    for (size_t i = 0; i < n * rank; i++) b[i] = (float)(rms * uniform(&rng));
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < k; c++) {
            double sum = 0;
            for (size_t r = 0; r < rank; r++) sum += (double)b[i * rank + r] * (double)a[r * k + c];
            w[i * k + c] = (float)((double)w[i * k + c] + scale * sum);
        }
    }
}

static const double ALPHA = 12, SCALE = 0.7; /* the adapter's own, and the session's */

/* A small model of this name, an adapter for it and the two merged. */
static void make_gguf(const char *name, const char *arch) {
    tn_ctx ctx;
    tern_error err = {0};
    tn_gguf *g;
    tn_gguf_writer *w;
    size_t n_bytes, n = 0, n_targets = 0;
    tn_ctx_init(&ctx, NULL);
    fixture_model(model, "m.gguf", name, 5, TN_F32);
    char *bytes = fixture_read(model, &n_bytes);
    must(tn_gguf_open(&ctx, model, &g, &err), &err);
    must(tn_gguf_create(&ctx, adapter, &w, &err), &err);
    tn_gguf_put_str(w, "general.type", "adapter");
    tn_gguf_put_str(w, "adapter.type", "lora");
    tn_gguf_put_str(w, "general.architecture", arch);
    tn_gguf_put_f32(w, "adapter.lora.alpha", (float)ALPHA);
    float *all[1024];
    size_t sizes[1024];
    for (size_t i = 0; i < tn_gguf_n_tensors(g); i++) {
        static const size_t ranks[] = {8, 3, 17, 33};
        const tn_tensor *t = tn_gguf_tensor_at(g, i);
        char part[200];
        size_t rank = ranks[n_targets % 4];
        if (!target(t)) continue;
        assert_int_equal(t->dtype, TN_F32);
        float *a = malloc(rank * t->dims[1] * 4), *b = malloc(t->dims[0] * rank * 4);
        learn((float *)(bytes + t->off_bytes), t->dims[0], t->dims[1], rank, ALPHA / (double)rank * SCALE,
              77 + i, a, b);
        snprintf(part, sizeof part, "%s.lora_a", t->name);
        tn_gguf_add_tensor(w, part, TN_F32, 2, (const uint64_t[]){rank, t->dims[1]});
        snprintf(part, sizeof part, "%s.lora_b", t->name);
        tn_gguf_add_tensor(w, part, TN_F32, 2, (const uint64_t[]){t->dims[0], rank});
        all[n] = a, sizes[n++] = rank * t->dims[1] * 4;
        all[n] = b, sizes[n++] = t->dims[0] * rank * 4;
        n_targets++;
    }
    assert_true(n_targets > 3 && n <= 1024);
    must(tn_gguf_begin_data(w, &err), &err);
    for (size_t i = 0; i < n; i++) {
        must(tn_gguf_write(w, all[i], sizes[i], &err), &err);
        free(all[i]);
    }
    must(tn_gguf_finish(&w, &err), &err);
    tn_gguf_close(&g);
    fixture_write(merged, bytes, n_bytes);
    free(bytes);
}

/* The same of a folder: the model and the merged one in F32, the adapter as PEFT writes it. */
static void make_folder(const char *fixture) {
    tn_ctx ctx;
    tern_error err = {0};
    tn_safetensors *s;
    char path[400];
    size_t n_config;
    pile plain = {0}, sum = {0}, pairs = {0};
    snprintf(path, sizeof path, TN_SOURCE_DIR "/tests/oracle/fixtures/%s", fixture);
    tn_ctx_init(&ctx, NULL);
    must(tn_safetensors_open(&ctx, path, &s, &err), &err);
    mkdir(model, 0700), mkdir(merged, 0700), mkdir(adapter, 0700);
    size_t rank = 6, n_targets = 0;
    for (size_t i = 0; i < tn_safetensors_n_tensors(s); i++) {
        const tn_tensor *t = tn_safetensors_tensor_at(s, i);
        size_t n = t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        float *w = malloc(n * sizeof *w);
        tn_dequantise(t->dtype, t->data, w, n);
        put(&plain, t->name, w, t->dims, t->n_dims);
        if (target(t)) {
            float *a = malloc(rank * t->dims[1] * 4), *b = malloc(t->dims[0] * rank * 4);
            learn(w, t->dims[0], t->dims[1], rank, ALPHA / sqrt((double)rank) * SCALE, 9 + i, a, b);
            snprintf(path, sizeof path, "base_model.model.%.*s.lora_A.weight", (int)strlen(t->name) - 7,
                     t->name);
            put(&pairs, path, a, (const uint64_t[]){rank, t->dims[1], 1, 1}, 2);
            snprintf(path, sizeof path, "base_model.model.%.*s.lora_B.weight", (int)strlen(t->name) - 7,
                     t->name);
            put(&pairs, path, b, (const uint64_t[]){t->dims[0], rank, 1, 1}, 2);
            free(a), free(b);
            n_targets++;
        }
        put(&sum, t->name, w, t->dims, t->n_dims);
        free(w);
    }
    assert_true(n_targets > 3);
    tn_safetensors_close(&s);
    snprintf(path, sizeof path, TN_SOURCE_DIR "/tests/oracle/fixtures/%s/config.json", fixture);
    char *config = fixture_read(path, &n_config);
    char *const folders[] = {model, merged};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/config.json", folders[i]);
        fixture_write(path, config, n_config);
        snprintf(path, sizeof path, "%s/model.safetensors", folders[i]);
        write_pile(i ? &sum : &plain, path);
    }
    free(config);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", adapter);
    write_pile(&pairs, path);
    static const char text[] =
        "{\"peft_type\":\"LORA\",\"r\":6,\"lora_alpha\":12,\"use_rslora\":true,\"bias\":\"none\","
        "\"lora_dropout\":0.05,\"target_modules\":[\"q_proj\"],\"use_dora\":false,"
        "\"modules_to_save\":null,\"rank_pattern\":{},\"init_lora_weights\":true}";
    snprintf(path, sizeof path, "%s/adapter_config.json", adapter);
    fixture_write(path, text, sizeof text - 1);
}

/* ---- engines ----------------------------------------------------------------------------------------- */

static tern_status try_open(const char *path, const char *lora, tern_engine **e, tern_error *err) {
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.attention = "full";
    o.lora = lora;
    return tern_engine_open(path, &o, e, err);
}

static tern_engine *open_engine(const char *path, const char *lora) {
    tern_error err = {0};
    tern_engine *e;
    must(try_open(path, lora, &e, &err), &err);
    return e;
}

static tern_session *open_session(tern_engine *e, const char *draft) {
    for (int i = 0; i < N_CTX; i++) prompt[i] = (60 + (i * 37 + i / 5) % 180) % e->model->h.n_vocab;
    return fixture_session(e, N_CTX, draft);
}

typedef struct heard {
    float *logits; /* [n][n_vocab] */
    size_t n, n_vocab;
} heard;

static bool on_logits(void *user, size_t i, const float *logits) {
    heard *h = user;
    memcpy(h->logits + i * h->n_vocab, logits, h->n_vocab * sizeof *logits);
    h->n = i + 1;
    return true;
}

/* Of every position of the prompt, then of tokens one by one. */
static heard listen(tern_session *s) {
    tern_error err = {0};
    size_t n_vocab = (size_t)s->e->model->h.n_vocab;
    heard h = {malloc((N_PROMPT + N_NEW) * n_vocab * sizeof(float)), 0, n_vocab};
    must(tern_session_score(s, prompt, N_PROMPT, 0, on_logits, &h, &err), &err);
    for (int i = 0; i < N_NEW; i++) {
        must(tern_session_step(s, prompt[N_PROMPT + i], &err), &err);
        on_logits(&h, h.n, tern_session_logits(s));
    }
    return h;
}

/* The largest difference of a logit, as a share of the largest of its position. */
static double apart(const heard *a, const heard *b) {
    double worst = 0;
    for (size_t i = 0; i < a->n; i++) {
        double top = 0, off = 0;
        for (size_t v = 0; v < a->n_vocab; v++) {
            double x = (double)a->logits[i * a->n_vocab + v], y = (double)b->logits[i * a->n_vocab + v];
            top = fmax(top, fabs(x));
            off = fmax(off, fabs(x - y));
        }
        worst = fmax(worst, off / top);
    }
    return worst;
}

static double divergence(const heard *a, const heard *b) {
    double kl = 0;
    for (size_t i = 0; i < a->n; i++) {
        const float *x = a->logits + i * a->n_vocab, *y = b->logits + i * a->n_vocab;
        double sx = 0, sy = 0;
        for (size_t v = 0; v < a->n_vocab; v++)
            sx += exp((double)x[v] - (double)x[0]), sy += exp((double)y[v] - (double)y[0]);
        for (size_t v = 0; v < a->n_vocab; v++) {
            double lx = (double)x[v] - (double)x[0] - log(sx), ly = (double)y[v] - (double)y[0] - log(sy);
            kl += exp(lx) * (lx - ly) / (double)a->n;
        }
    }
    return kl;
}

static void drop(heard *h) { free(h->logits); }

/* Adapter and model side by side, at this scale, are the merged model; without it the model is as it was,
 * bit for bit. */
static void as_merged(const char *name) {
    char lora[2 * FIXTURE_PATH];
    tern_error err = {0};
    snprintf(lora, sizeof lora, "it=%s:%g", adapter, SCALE);
    tern_engine *plain = open_engine(model, NULL), *with = open_engine(model, lora),
                *sum = open_engine(merged, NULL);
    tern_session *a = open_session(plain, "none"), *b = open_session(with, "none"),
                 *c = open_session(sum, "none");
    heard base = listen(a), beside = listen(b), want = listen(c);
    print_message("%s: %.1e from merged weights, which are %.2f from the model\n", name,
                  apart(&want, &beside), apart(&want, &base));
    assert_true(apart(&want, &beside) < 1e-3);
    assert_true(apart(&want, &base) > 0.1);
    must(tern_session_lora(b, "none", &err), &err);
    assert_int_equal(tern_session_length(b), 0);
    heard without = listen(b);
    assert_memory_equal(base.logits, without.logits, base.n * base.n_vocab * sizeof(float));
    drop(&base), drop(&beside), drop(&want), drop(&without);
    tern_session_close(&a), tern_session_close(&b), tern_session_close(&c);
    tern_engine_close(&plain), tern_engine_close(&with), tern_engine_close(&sum);
}

static const struct {
    const char *name, *arch;
} ggufs[] = {
    {"tiny-llama", "llama"},     {"tiny-qwen2", "qwen2"},         {"tiny-gemma3", "gemma3"},
    {"tiny-phi2", "phi2"},       {"tiny-phi3", "phi3"},           {"tiny-olmo2", "olmo2"},
    {"tiny-granite", "granite"}, {"tiny-lfm2", "lfm2"},           {"tiny-qwen3next", "qwen3next"},
    {"tiny-qwen35", "qwen35"},   {"tiny-qwen3moe", "qwen3moe"},   {"tiny-granite4", "granitehybrid"},
    {"tiny-gemma3n", "gemma3n"}, {"tiny-falcon-h1", "falcon-h1"}, {"tiny-deepseek2", "deepseek2"},
    {"tiny-rwkv7", "rwkv7"},
};
enum { N_GGUFS = sizeof ggufs / sizeof *ggufs };

static void from_gguf(void **state) {
    size_t i = (size_t)(uintptr_t)*state;
    unread_from = strcmp(ggufs[i].arch, "gemma3n") ? INT_MAX : 20;
    make_gguf(ggufs[i].name, ggufs[i].arch);
    unread_from = INT_MAX;
    as_merged(ggufs[i].name);
}

static const char *const folders[] = {"qwen2",     "gemma2", "phi3-short", "lfm2",     "qwen35",
                                      "qwen3next", "olmo2",  "phi2",       "granite4", "gemma3n"};
enum { N_FOLDERS = sizeof folders / sizeof *folders };

static void from_folder(void **state) {
    const char *fixture = *state;
    unread_from = strcmp(fixture, "gemma3n") ? INT_MAX : 4;
    make_folder(fixture);
    unread_from = INT_MAX;
    as_merged(fixture);
}

/* ---- packages ---------------------------------------------------------------------------------------- */

static void pack(tn_scheme scheme) {
    tn_ctx ctx;
    tern_error err = {0};
    tn_pack_options o;
    tn_ctx_init(&ctx, NULL);
    tn_pack_defaults(&o);
    o.scheme = scheme;
    o.prune_percent = 0;
    o.bits = scheme == TN_SCHEME_LLM_NPU ? 0 : 8;
    o.calib_tokens = 512;
    must(tn_pack(&ctx, model, package, &o, NULL, &err), &err);
}

static void in_package(void **state) {
    static const tn_scheme schemes[] = {TN_SCHEME_LLM_NPU, TN_SCHEME_GRAM, TN_SCHEME_SMOOTHQUANT};
    const char *name = ggufs[(size_t)(uintptr_t)*state].name;
    char lora[2 * FIXTURE_PATH];
    tern_error err = {0};
    make_gguf(name, ggufs[(size_t)(uintptr_t)*state].arch);
    snprintf(lora, sizeof lora, "it=%s:%g", adapter, SCALE);
    tern_engine *sum = open_engine(merged, NULL), *floats = open_engine(model, NULL);
    tern_session *m = open_session(sum, "none"), *f = open_session(floats, "none");
    heard want = listen(m), before = listen(f);
    for (int k = 0; k < 3; k++) {
        pack(schemes[k]);
        tern_engine *e = open_engine(package, lora), *plain = open_engine(package, NULL);
        tern_session *a = open_session(e, "none"), *b = open_session(plain, "none"),
                     *one = open_session(e, "none");
        heard with = listen(a), base = listen(b);
        double off = divergence(&want, &with), far = divergence(&want, &base),
               own = divergence(&before, &base);
        print_message("%s, %s: KL divergence from merged floats %.4f, without the adapter %.3f, the "
                      "package's own %.4f\n",
                      name, tn_scheme_name(schemes[k]), off, far, own);
        assert_true(far > 0.2 && off < 2 * own + 0.002);
        /* the same bits in whatever pieces, and none are changed by an adapter that is not asked for */
        must(tern_session_prefill(one, prompt, 40, &err), &err);
        for (int i = 40; i < N_PROMPT + N_NEW; i++) must(tern_session_step(one, prompt[i], &err), &err);
        assert_memory_equal(tern_session_logits(one), tern_session_logits(a), want.n_vocab * sizeof(float));
        must(tern_session_lora(one, "none", &err), &err);
        heard without = listen(one);
        assert_memory_equal(without.logits, base.logits, base.n * base.n_vocab * sizeof(float));
        drop(&with), drop(&base), drop(&without);
        tern_session_close(&a), tern_session_close(&b), tern_session_close(&one);
        tern_engine_close(&e), tern_engine_close(&plain);
        unlink(package);
    }
    drop(&want), drop(&before);
    tern_session_close(&m), tern_session_close(&f);
    tern_engine_close(&sum), tern_engine_close(&floats);
}

/* ---- texts ------------------------------------------------------------------------------------------- */

static fixture_heard generate(tern_session *s) {
    tern_generate_options o;
    tern_generate_result r;
    tern_error err = {0};
    fixture_heard h;
    must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
    fixture_hear(&o, N_NEW, &h);
    must(tern_session_generate(s, &o, &r, &err), &err);
    return h;
}

/* Several sessions of one engine, each with adapters of its own, in one forward: the bits they get alone. */
static void together(tern_engine *e) {
    static const char *const mixes[] = {"it:0.7", "none", "it:-0.5,other", "other:0.25"};
    size_t n_bytes = (size_t)e->model->h.n_vocab * sizeof(float);
    tern_session *s[4], *alone[4];
    tern_error err = {0};
    for (int i = 0; i < 4; i++) {
        s[i] = open_session(e, "none"), alone[i] = open_session(e, "none");
        must(tern_session_lora(s[i], mixes[i], &err), &err);
        must(tern_session_lora(alone[i], mixes[i], &err), &err);
        must(tern_session_prefill(s[i], prompt, (size_t)(20 + i), &err), &err);
        must(tern_session_prefill(alone[i], prompt, (size_t)(20 + i), &err), &err);
    }
    for (int k = 0; k < 5; k++) {
        tn_turn turns[4] = {0};
        for (int i = 0; i < 4; i++) {
            turns[i].s = s[i];
            turns[i].tree.n = 1;
            turns[i].tree.token[0] = prompt[70 + k];
            must(tern_session_step(alone[i], prompt[70 + k], &err), &err);
        }
        tn_sessions_forward(turns, 4);
        for (int i = 0; i < 4; i++) {
            must(turns[i].status, &turns[i].err);
            assert_memory_equal(tern_session_logits(s[i]), tern_session_logits(alone[i]), n_bytes);
            if (i) assert_true(memcmp(tern_session_logits(s[i]), tern_session_logits(s[0]), n_bytes) != 0);
        }
    }
    for (int i = 0; i < 4; i++) tern_session_close(&s[i]), tern_session_close(&alone[i]);
}

static void texts_know(tern_engine *e) {
    tern_error err = {0};
    tern_session *a = open_session(e, "none"), *b = open_session(e, "none"),
                 *drafted = open_session(e, "lookup,sam");
    assert_string_equal(tern_engine_lora(e, 0), "it");
    assert_string_equal(tern_engine_lora(e, 1), "other");
    assert_null(tern_engine_lora(e, 2));
    must(tern_session_prefill(a, prompt, 60, &err), &err);
    must(tern_session_lora(a, "it:0.7", &err), &err); /* what it has */
    assert_int_equal(tern_session_length(a), 60);
    must(tern_session_save(a, saved, &err), &err);
    must(tern_session_load(b, saved, &err), &err);
    assert_int_equal(tern_session_length(b), 60);
    must(tern_session_lora(b, "it:0.6", &err), &err);
    assert_int_equal(tern_session_length(b), 0);
    assert_null(tern_session_logits(b));
    assert_int_equal(tern_session_load(b, saved, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "other adapters"));
    assert_non_null(strstr(err.message, "it:0.6"));
    assert_int_equal(tern_session_copy(b, a, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "different adapters"));
    static const char *const wrong[] = {"nobody", "it,it", "it:1e9", "it,,other", "it:nan"};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(tern_session_lora(b, wrong[i], &err), TERN_E_INVALID);
        assert_true(strlen(err.message) > 10);
    }
    /* drafts change no token of a text with adapters */
    must(tern_session_lora(b, "it:0.7,other:0.2", &err), &err);
    must(tern_session_lora(drafted, "other:0.2,it:0.7", &err), &err);
    fixture_heard x = generate(b), y = generate(drafted);
    assert_memory_equal(&x, &y, sizeof x);
    tern_session_close(&a), tern_session_close(&b), tern_session_close(&drafted);
    together(e);
}

static void sessions(void **state) {
    size_t i = (size_t)(uintptr_t)*state;
    char lora[2 * FIXTURE_PATH + 40];
    make_gguf(ggufs[i].name, ggufs[i].arch);
    snprintf(lora, sizeof lora, "it=%s:%g,other=%s:0", adapter, SCALE, adapter);
    tern_engine *e = open_engine(model, lora);
    texts_know(e);
    tern_engine_close(&e);
    pack(TN_SCHEME_GRAM);
    e = open_engine(package, lora);
    texts_know(e);
    tern_engine_close(&e);
}

/* ---- what is wrong ----------------------------------------------------------------------------------- */

static void refused(const char *lora, const char *says) {
    tern_error err = {0};
    tern_engine *e;
    assert_int_not_equal(try_open(model, lora, &e, &err), TERN_OK);
    if (!strstr(err.message, says)) fail_msg("'%s' does not say '%s'", err.message, says);
}

/* The adapter's file with these bytes in place of others of the same length, wherever they are. */
static void replaced(const char *from, const char *to, const char *says) {
    size_t n, len = strlen(from);
    char *bytes = fixture_read(adapter, &n), *kept = malloc(n), path[FIXTURE_PATH + 8];
    int n_found = 0;
    memcpy(kept, bytes, n);
    for (size_t i = 0; i + len <= n; i++)
        if (!memcmp(bytes + i, from, len)) memcpy(bytes + i, to, len), n_found++;
    assert_true(n_found > 0 && strlen(to) == len);
    snprintf(path, sizeof path, "it=%s", adapter);
    fixture_write(adapter, bytes, n);
    refused(path, says);
    fixture_write(adapter, kept, n);
    free(bytes), free(kept);
}

static void wrong_files(void **state) {
    (void)state;
    char text[2 * FIXTURE_PATH + 40], path[400];
    make_gguf("tiny-qwen2", "qwen2");
    replaced("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_x", "no A beside it");
    replaced("blk.0.attn_q.weight.lora_b", "blk.0.attn_q.weight.lora_x", "no partner");
    replaced("blk.0.attn_q.weight", "blk.0.attn_w.weight", "changes none of the linears");
    replaced("blk.0.attn_k.weight.lora_", "blk.0.attn_q.weight.lora_", "attn_q");
    replaced("blk.0.ffn_up.weight.lora_", "blk.9.ffn_up.weight.lora_", "changes none of the linears");
    replaced("adapter.type", "adapter.tipe", "of another kind");
    replaced("general.type", "general.tipe", "no adapter");
    replaced("qwen2", "llama", "an adapter for architecture 'llama', the model is qwen2");
    replaced("adapter.lora.alpha", "adapter.lora.alphb", "is none that tern knows");
    const float bad[] = {NAN, INFINITY, 1e30f};
    for (int i = 0; i < 3; i++) {
        const float alpha = (float)ALPHA;
        char from[24] = "adapter.lora.alpha", *at;
        size_t n;
        char *bytes = fixture_read(adapter, &n), *kept = malloc(n);
        memcpy(kept, bytes, n);
        for (at = bytes; memcmp(at, from, 18); at++) {
        }
        assert_memory_equal(at + 22, &alpha, 4); /* after its kind */
        memcpy(at + 22, &bad[i], 4);
        fixture_write(adapter, bytes, n);
        snprintf(path, sizeof path, "it=%s", adapter);
        refused(path, "alpha is no number");
        fixture_write(adapter, kept, n);
        free(bytes), free(kept);
    }
    tern_engine *none;
    tern_error err = {0};
    assert_int_equal(try_open(adapter, NULL, &none, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "an adapter, not a model"));
    snprintf(text, sizeof text, "a=%s,a=%s", adapter, adapter);
    refused(text, "two adapters are called 'a'");
    snprintf(text, sizeof text, "a=%s:1e9", adapter);
    refused(text, "a scale is a number");
    refused("/nowhere/it.gguf", "/nowhere/it.gguf");
    refused(",b", "empty");
    snprintf(text, sizeof text, "none=%s", adapter);
    refused(text, "no name for an adapter");
    unlink(model), unlink(merged), unlink(adapter);

    make_folder("qwen2");
    static const struct {
        const char *config, *says;
    } configs[] = {
        {"{\"peft_type\":\"LORA\",\"r\":6,\"lora_alpha\":12,\"use_dora\":true}", "'use_dora'"},
        {"{\"peft_type\":\"LORA\",\"r\":6,\"lora_alpha\":12,\"bias\":\"all\"}", "'bias'"},
        {"{\"peft_type\":\"LORA\",\"r\":6,\"lora_alpha\":12,\"modules_to_save\":[\"lm_head\"]}",
         "'modules_to_save'"},
        {"{\"peft_type\":\"LORA\",\"r\":6,\"lora_alpha\":12,\"alpha_pattern\":{\"q_proj\":3}}",
         "'alpha_pattern'"},
        {"{\"peft_type\":\"LORA\",\"r\":6,\"lora_alpha\":12,\"init_lora_weights\":\"pissa\"}", "'pissa'"},
        {"{\"peft_type\":\"LORA\",\"r\":6,\"lora_alpha\":12,\"something_new\":3}", "'something_new'"},
        {"{\"peft_type\":\"IA3\",\"r\":6,\"lora_alpha\":12}", "another kind"},
        {"{\"peft_type\":\"LORA\",\"r\":7,\"lora_alpha\":12}", "want 7"},
        {"{\"peft_type\":\"LORA\",\"r\":0,\"lora_alpha\":12}", "rank 0"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":12}", "needs numbers"},
        {"[1]", "no configuration"},
        {"{", "no JSON"},
    };
    snprintf(path, sizeof path, "%s/adapter_config.json", adapter);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        fixture_write(path, configs[i].config, strlen(configs[i].config));
        refused(adapter, configs[i].says);
    }
    assert_int_equal(try_open(adapter, NULL, &none, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "an adapter, not a model"));
    unlink(path);
    refused(adapter, "adapter_config.json");
    /* what is learned there is multiplied too, and the model's multipliers are in its weights */
    make_folder("falcon-h1");
    refused(adapter, "convert it to GGUF");
}

/* A package that does not say what its inputs were divided by is told from one that divides by nothing. */
static void other_packages(void **state) {
    (void)state;
    char lora[2 * FIXTURE_PATH];
    tern_error err = {0};
    tern_engine *e;
    make_gguf("tiny-qwen2", "qwen2");
    pack(TN_SCHEME_GRAM);
    size_t n;
    char *bytes = fixture_read(package, &n);
    snprintf(lora, sizeof lora, "it=%s", adapter);
    must(try_open(package, lora, &e, &err), &err);
    tern_engine_close(&e);
    /* damaged: the checksum tells */
    const tn_pkg_section *s;
    tn_ctx ctx;
    tn_pkg *p;
    tn_ctx_init(&ctx, NULL);
    must(tn_pkg_open(&ctx, package, &p, &err), &err);
    s = tn_pkg_find(p, TN_PKG_SMOOTHING, -1);
    assert_non_null(s);
    bytes[s->off_bytes + s->size_bytes / 2] ^= 1;
    tn_pkg_close(&p);
    fixture_write(package, bytes, n);
    assert_int_equal(try_open(package, lora, &e, &err), TERN_E_FORMAT);
    must(try_open(package, NULL, &e, &err), &err); /* nobody else needs it */
    tern_engine_close(&e);
    free(bytes);
}

int main(void) {
    struct CMUnitTest tests[N_GGUFS + N_FOLDERS + 14];
    static const size_t packages[] = {0, 4, 5, 7, 8, 9, 10}, talks[] = {1, 9};
    size_t n = 0;
    say_paths();
    const size_t each = getenv("TERN_TEST_QUICK") ? 3 : 1;
    for (size_t i = 0; i < N_GGUFS; i += each)
        tests[n++] = (struct CMUnitTest){ggufs[i].name, from_gguf, NULL, teardown, (void *)(uintptr_t)i};
    for (size_t i = 0; i < N_FOLDERS; i += each)
        tests[n++] =
            (struct CMUnitTest){folders[i], from_folder, NULL, teardown, (void *)(uintptr_t)folders[i]};
    for (size_t i = 0; i < sizeof packages / sizeof *packages; i += each)
        tests[n++] =
            (struct CMUnitTest){"packages", in_package, NULL, teardown, (void *)(uintptr_t)packages[i]};
    for (size_t i = 0; i < 2; i++)
        tests[n++] = (struct CMUnitTest){"sessions", sessions, NULL, teardown, (void *)(uintptr_t)talks[i]};
    tests[n++] = (struct CMUnitTest){"wrong files", wrong_files, NULL, teardown, NULL};
    tests[n++] = (struct CMUnitTest){"other packages", other_packages, NULL, teardown, NULL};
    return _cmocka_run_group_tests("lora", tests, n, NULL, NULL);
}
