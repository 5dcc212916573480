/* Experts of a file in blocks that are read when rows choose them: the bits of everything in memory, within max-memory, as
 * many reads as an independent replay says, and one clear error where the file is not what it was. */
#include "base/rng.h"
#include "engine/engine.h"
#include "model/file_experts.h"
#include "model/source.h"
#include "model/streamed.h"
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"
#include "fixture/held.h"

enum { N_PROMPT = 150, N_STEPS = 24, N_VOCAB = 512, N_CTX = 256, N_MIXTURES = 4 };

static const struct {
    const char *arch;
    int dtype;
} mixtures[N_MIXTURES] = {{"tiny-qwen3moe", TN_Q8_0},
                          {"tiny-olmoe", TN_Q4_0},
                          {"tiny-granitemoe", TN_Q4_0},
                          {"tiny-gpt-oss", TN_Q8_0}}; /* experts with biases */
static char files[N_MIXTURES][FIXTURE_PATH];
static int32_t prompt[N_PROMPT];
static float want[(N_STEPS + 1) * N_VOCAB], got[(N_STEPS + 1) * N_VOCAB];

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < N_MIXTURES; i++) {
        char name[32];
        snprintf(name, sizeof name, "mixture%d.gguf", i);
        fixture_model(files[i], name, mixtures[i].arch, 5, mixtures[i].dtype);
    }
    fixture_prompt(prompt, N_PROMPT);
    return 0;
}

static tern_options options(int n_threads) {
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = n_threads;
    o.session.n_ctx = N_CTX;
    o.kv = "f32";
    return o;
}

/* max-memory that leaves this share of the experts' bytes for them, or the least. */
static uint64_t memory_for(const char *path, const tern_options *o, double share, tn_experts_need *need) {
    tn_ctx ctx;
    tern_error err;
    tn_source *src;
    tern_estimate e;
    tn_ctx_init(&ctx, NULL);
    must(tn_source_open(&ctx, path, &src, &err), &err);
    tn_file_experts_need_of(src, need);
    tn_source_close(&src);
    must(tern_engine_estimate(path, o, &e, &err), &err);
    uint64_t room = (uint64_t)(share * (double)need->all_bytes);
    if (room < need->least_bytes) room = need->least_bytes;
    return e.weight_bytes + e.kv_bytes + e.work_bytes - need->all_bytes + room;
}

/* Logits after the prompt, in pieces, and after every one of some tokens. */
static void logits_of(tern_engine *e, size_t piece, float *out) {
    tern_session *s = fixture_session(e, N_CTX, "none");
    tern_error err;
    for (size_t n = piece; n < N_PROMPT + piece; n += piece)
        must(tern_session_prefill(s, prompt, n < N_PROMPT ? n : N_PROMPT, &err), &err);
    for (size_t i = 0; i <= N_STEPS; i++) {
        if (i) must(tern_session_step(s, (int32_t)(i * 37 % 400), &err), &err);
        memcpy(out + i * N_VOCAB, tern_session_logits(s), N_VOCAB * sizeof *out);
    }
    tern_session_close(&s);
}

static void same_bits(void **state) {
    (void)state;
    static const double shares[] = {0, 0.3, 0.7};
    static const size_t pieces[] = {N_PROMPT, 40, 3};
    for (int p = 0; p < N_MIXTURES; p++) {
        tern_options o = options(1);
        tern_engine *e = fixture_engine(files[p], &o);
        assert_null(e->model->file_experts);
        logits_of(e, N_PROMPT, want);
        const uint64_t whole = tn_model_fingerprint(e->model);
        tern_engine_close(&e);
        for (int i = 0; i < 3; i++) {
            for (int n_threads = 1; n_threads <= 4; n_threads *= 2) {
                tn_experts_need need;
                tn_file_experts_stats s;
                o = options(n_threads);
                o.max_memory_bytes = memory_for(files[p], &o, shares[i], &need);
                assert_true(need.can);
                e = fixture_engine(files[p], &o);
                assert_non_null(e->model->file_experts);
                assert_null(e->model->next);
                logits_of(e, pieces[(i + n_threads) % 3], got);
                if (memcmp(want, got, sizeof got))
                    fail_msg("%s: other bits with %.0f %% of the experts", mixtures[p].arch, 100 * shares[i]);
                tn_file_experts_stats_get(e->model->file_experts, &s);
                assert_int_equal(s.all_bytes, need.all_bytes);
                assert_true(s.n_hits < s.n_taken && s.n_read_bytes && s.n_slots < s.n_units);
                assert_true(i < 2 || s.n_hits > s.n_taken / 3);
                assert_true((uint64_t)s.n_slots * s.slot_bytes <= e->experts_bytes);
                assert_true(tn_model_fingerprint(e->model) != ~tn_hparams_identity(&e->model->h));
                assert_true(tn_model_fingerprint(e->model) !=
                            whole); /* what it read is not hashed as tiles */
                tern_engine_close(&e);
            }
        }
    }
}

/* Before a layer's attention its experts are guessed, and the system is told of those that are not in memory: far more
 * often rightly than by chance, and of steps alone, not of prompts. */
static void foresees_experts_of_steps(void **state) {
    (void)state;
    for (int p = 0; p < N_MIXTURES; p++) {
        tern_options o = options(2);
        tn_experts_need need;
        tn_file_experts_stats s;
        o.max_memory_bytes = memory_for(files[p], &o, 0.3, &need);
        tern_engine *e = fixture_engine(files[p], &o);
        const tn_hparams *h = &e->model->h;
        logits_of(e, N_PROMPT, got);
        tn_file_experts_stats_get(e->model->file_experts, &s);
        const uint64_t chosen = (uint64_t)N_STEPS * (uint64_t)(h->n_layers - 1) * (uint64_t)h->n_experts_used;
        const double by_chance = (double)h->n_experts_used / h->n_experts,
                     right = (double)s.n_right / (double)s.n_predicted;
        printf("%s: %.2f right, %.2f by chance; %llu of %llu read were told of\n", mixtures[p].arch, right,
               by_chance, (unsigned long long)s.n_ahead, (unsigned long long)(s.n_taken - s.n_hits));
        assert_int_equal(s.n_predicted, chosen);
        assert_true(right > by_chance + 0.2);
        assert_true(s.n_ahead && s.n_ahead < s.n_taken - s.n_hits);
        tern_engine_close(&e);
    }
}

/* Rows of several texts choose experts together. */
static void several_texts(void **state) {
    (void)state;
    tern_error err;
    for (int some = 0; some < 2; some++) {
        tern_options o = options(2);
        tn_experts_need need;
        tn_turn turns[3];
        tern_session *s[3];
        if (some) o.max_memory_bytes = memory_for(files[0], &o, 0.3, &need);
        tern_engine *e = fixture_engine(files[0], &o);
        for (int i = 0; i < 3; i++) {
            s[i] = fixture_session(e, N_CTX, "none");
            must(tern_session_prefill(s[i], prompt, 40 + 10 * (size_t)i, &err), &err);
            turns[i] = (tn_turn){.s = s[i], .tree = {.n = 1, .token = {7 + i}, .parent = {-1}, .mask = {1}}};
        }
        tn_sessions_forward(turns, 3);
        for (int i = 0; i < 3; i++) {
            must(turns[i].status, &turns[i].err);
            memcpy((some ? got : want) + i * N_VOCAB, tern_session_logits(s[i]), N_VOCAB * sizeof *got);
            tern_session_close(&s[i]);
        }
        tern_engine_close(&e);
    }
    assert_memory_equal(got, want, (size_t)3 * N_VOCAB * sizeof *got);
}

/* ---- memory ------------------------------------------------------------------------------------------ */

/* The most that was held while it was opened and ran. */
static long long most_held(const char *path, const tern_options *o) {
    tern_hooks hooks;
    held memory = {0};
    held_hooks(&hooks, &memory);
    tern_options with = *o;
    with.hooks = &hooks;
    tern_engine *e = fixture_engine(path, &with);
    logits_of(e, N_PROMPT, got);
    tern_engine_close(&e);
    assert_int_equal(memory.now, 0);
    return memory.most;
}

static void within_the_budget(void **state) {
    (void)state;
    for (int p = 0; p < N_MIXTURES; p++) {
        tern_options o = options(1);
        tern_error err;
        tn_experts_need need;
        tern_engine *e;
        const long long all = most_held(files[p], &o);
        o.max_memory_bytes = memory_for(files[p], &o, 0.3, &need);
        const long long some = most_held(files[p], &o);
        const uint64_t room = (uint64_t)fmax(0.3 * (double)need.all_bytes, (double)need.least_bytes);
        assert_true(some <= (long long)o.max_memory_bytes);
        if (all - some < (long long)(need.all_bytes - room) * 3 / 4)
            fail_msg("%s: %lld bytes, %lld with room for less", mixtures[p].arch, all, some);
        o.max_memory_bytes = memory_for(files[p], &o, 0, &need) - 1; /* not even the least */
        assert_int_equal(tern_engine_open(files[p], &o, &e, &err), TERN_E_LIMIT);
    }
}

/* ---- what goes --------------------------------------------------------------------------------------- */

/* Counts that are halved as time goes by, all of them at every use. */
static void used_least_goes_first(void **state) {
    (void)state;
    for (int p = 0; p < N_MIXTURES; p++) {
        tern_options o = options(1);
        tn_experts_need need;
        tn_file_experts_stats s;
        tn_rng rng = {3};
        o.max_memory_bytes = memory_for(files[p], &o, 0.5, &need);
        tern_engine *e = fixture_engine(files[p], &o);
        tn_file_experts *x = e->model->file_experts;
        const int32_t n = e->model->h.n_experts, n_layers = e->model->h.n_layers;
        int32_t first_layer = 0, n_in = 0, n_read = 0, n_taken = 0;
        while (!e->model->layers[first_layer].experts[0]) first_layer++;
        tn_file_experts_stats_get(x, &s);
        double *count = calloc((size_t)(n_layers * n), sizeof *count);
        bool *in = calloc((size_t)(n_layers * n), sizeof *in);
        const double half = 64.0 * (n_layers - first_layer) * e->model->h.n_experts_used;
        for (int i = 0; i < 3000; i++) {
            /* some experts are chosen more often than others, and later others */
            const int32_t layer =
                first_layer + (int32_t)tn_rng_below(&rng, (uint32_t)(n_layers - first_layer));
            int32_t one = (int32_t)tn_rng_below(&rng, 1 + tn_rng_below(&rng, (uint32_t)n));
            if (i > 1500) one = n - 1 - one;
            int32_t first[TN_MAX_EXPERTS + 1] = {0};
            for (int32_t k = one + 1; k <= n; k++) first[k] = 1;
            tn_file_experts_begin(x);
            assert_true(tn_file_experts_take(x, layer, first, 0, n, false, true));
            tn_file_experts_end(x);
            const int32_t unit = layer * n + one;
            if (!in[unit]) {
                if (n_in == s.n_slots) { /* of other layers, as long as there are any */
                    int32_t out = -1;
                    for (int other = 1; other >= 0 && out < 0; other--)
                        for (int32_t k = 0; k < n_layers * n; k++)
                            if (in[k] && (k / n != layer) == other && (out < 0 || count[k] < count[out]))
                                out = k;
                    in[out] = false;
                    n_in--;
                }
                in[unit] = true;
                n_in++;
                n_read++;
            }
            for (int32_t k = 0; k < n_layers * n; k++) count[k] *= pow(0.5, 1 / half);
            count[unit] += 1;
            n_taken++;
        }
        tn_file_experts_stats_get(x, &s);
        assert_int_equal(s.n_taken, n_taken);
        assert_int_equal(s.n_taken - s.n_hits, n_read);
        assert_true(n_read > 100 && s.n_hits > 100);
        free(count);
        free(in);
        tern_engine_close(&e);
    }
}

/* Passes through everything, as prompts make them: what fits stays, so each pass finds about that share. */
static void passes_keep_what_fits(void **state) {
    (void)state;
    tern_options o = options(1);
    tn_experts_need need;
    tn_file_experts_stats s, before;
    o.max_memory_bytes = memory_for(files[0], &o, 0.6, &need);
    tern_engine *e = fixture_engine(files[0], &o);
    tn_file_experts *x = e->model->file_experts;
    const int32_t n = e->model->h.n_experts;
    int32_t first[TN_MAX_EXPERTS + 1];
    for (int32_t k = 0; k <= n; k++) first[k] = k;
    for (int pass = 0; pass < 4; pass++) {
        tn_file_experts_stats_get(x, &before);
        for (int32_t layer = 0; layer < e->model->h.n_layers; layer++) {
            tn_file_experts_begin(x);
            for (int down = 0; down < 2; down++)
                for (int32_t k = 0; k < n; k++)
                    assert_true(tn_file_experts_take(x, layer, first, k, k + 1, true, !down));
            tn_file_experts_end(x);
        }
        tn_file_experts_stats_get(x, &s);
        const double share = (double)(s.n_hits - before.n_hits) / s.n_units,
                     fits = (double)s.n_slots / s.n_units;
        const uint64_t n_read = s.n_read_bytes - before.n_read_bytes,
                       n_missed = s.n_taken - s.n_hits - before.n_taken + before.n_hits;
        print_message("pass %d: %.3f of the experts were there, %.3f fit\n", pass, share, fits);
        assert_true(pass ? share > fits - 1.5 * n / s.n_units && share <= fits : share == 0);
        assert_true(n_read <= n_missed * s.slot_bytes); /* none is read again for its down */
    }
    tern_engine_close(&e);
}

/* ---- files that change ------------------------------------------------------------------------------- */

/* Scales of blocks that are no numbers. */
static void write_scales(const char *path, uint64_t at) {
    for (int i = 0; i < 64; i++) fixture_write_at(path, at + 34 * 4 * (uint64_t)i, "\0\x7e", 2);
}

static uint64_t place_of_experts(const char *path, int layer, tn_role role) {
    tn_ctx ctx;
    tern_error err;
    tn_source *src;
    tn_ctx_init(&ctx, NULL);
    must(tn_source_open(&ctx, path, &src, &err), &err);
    const uint64_t at = tn_source_tensor(src, layer, role)->off_bytes;
    tn_source_close(&src);
    return at;
}

static void what_changed_is_an_error(void **state) {
    (void)state;
    enum { WRITTEN, CUT, WRITTEN_NO_NUMBER, NO_NUMBER, N_WAYS };
    static const char *const words[N_WAYS] = {
        "was written to while it was in use", "was written to while it was in use",
        "was written to while it was in use", "blk.1.ffn_down_exps.weight"};
    char path[FIXTURE_PATH];
    fixture_file(path, "changes.gguf");
    for (int way = 0; way < N_WAYS; way++) {
        tern_options o = options(2);
        tern_error err, again;
        tn_experts_need need;
        fixture_copy(files[0], path);
        const uint64_t at = place_of_experts(path, 1, TN_W_DOWN_EXPS),
                       first = place_of_experts(path, 0, TN_W_GATE_EXPS);
        if (way == NO_NUMBER) write_scales(path, at);
        o.max_memory_bytes = memory_for(path, &o, 0.3, &need);
        tern_engine *e = fixture_engine(path, &o);
        tern_session *s = fixture_session(e, N_CTX, "none");
        usleep(20000); /* another time of writing */
        if (way == WRITTEN) fixture_write_at(path, at, "\1\2\3\4", 4);
        if (way == WRITTEN_NO_NUMBER) write_scales(path, first);
        if (way == CUT) assert_int_equal(truncate(path, (off_t)at), 0);
        tern_status st = tern_session_prefill(s, prompt, N_PROMPT, &err);
        assert_int_equal(st, way == NO_NUMBER ? TERN_E_FORMAT : TERN_E_IO);
        if (!strstr(err.message, words[way])) fail_msg("%s", err.message);
        assert_null(tern_session_logits(s));
        assert_int_equal(tern_session_prefill(s, prompt, 3, &again), st); /* it stays */
        assert_string_equal(again.message, err.message);
        tern_session_close(&s);
        tern_engine_close(&e);
        unlink(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits),
                                       cmocka_unit_test(foresees_experts_of_steps),
                                       cmocka_unit_test(several_texts),
                                       cmocka_unit_test(within_the_budget),
                                       cmocka_unit_test(used_least_goes_first),
                                       cmocka_unit_test(passes_keep_what_fits),
                                       cmocka_unit_test(what_changed_is_an_error)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
