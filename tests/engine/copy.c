/* A session that cannot be copied for want of memory leaves its destination as it was: every allocation of a copy fails
 * once, in models of every kind of state, and the destination goes on with the bits of one that nobody copied to. */
#include "fixture/fixture.h"
#include "fixture/scarce.h"
#include "tern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SRC = 70, N_DST = 40 };

static scarce memory = {.left = -1};

static tern_engine *open_engine(const char *path) {
    static tern_hooks h;
    tern_options *o;
    tern_engine *e;
    tern_error err;
    scarce_hooks(&h, &memory);
    must(tern_options_new(&o, &err), &err);
    must(tern_options_set_hooks(o, &h, &err), &err);
    must(tern_options_set(o, "threads", "2", &err), &err);
    must(tern_engine_open(path, o, &e, &err), &err);
    tern_options_free(&o);
    return e;
}

/* What the session says to four tokens more. */
static float *goes_on(tern_session *s, size_t n_vocab) {
    tern_error err;
    float *all = malloc(4 * n_vocab * sizeof *all);
    assert_non_null(all);
    for (int32_t i = 0; i < 4; i++) {
        must(tern_session_step(s, 7 + 11 * i, &err), &err);
        memcpy(all + (size_t)i * n_vocab, tern_session_logits(s), n_vocab * sizeof *all);
    }
    return all;
}

static long copies_fail(const char *arch) {
    char path[FIXTURE_PATH];
    int32_t ids[N_SRC + N_DST];
    tern_error err;
    tern_model_info info;
    fixture_model(path, "copied.gguf", arch, 5, 0);
    fixture_prompt(ids, N_SRC + N_DST);
    tern_engine *e = open_engine(path);
    tern_engine_info(e, &info);
    const size_t n_vocab = (size_t)info.n_vocab, bytes = n_vocab * sizeof(float);
    tern_session *src = fixture_session(e, 128, "none"), *alone = fixture_session(e, 128, "none");
    must(tern_session_prefill(src, ids, N_SRC, &err), &err);
    must(tern_session_prefill(alone, ids + N_SRC, N_DST, &err), &err);
    float *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, tern_session_logits(alone), bytes);
    float *want = goes_on(alone, n_vocab);
    long n = 0;
    for (tern_status st = TERN_E_MEMORY; st != TERN_OK; n++) {
        tern_session *dst = fixture_session(e, 128, "none");
        must(tern_session_prefill(dst, ids + N_SRC, N_DST, &err), &err);
        memory.left = n;
        st = tern_session_copy(dst, src, &err);
        bool failed = atomic_exchange(&memory.left, -1) < 0;
        assert_int_equal(st, failed ? TERN_E_MEMORY : TERN_OK);
        assert_int_equal(tern_session_length(dst), failed ? N_DST : N_SRC);
        assert_memory_equal(tern_session_tokens(dst), failed ? ids + N_SRC : ids,
                            (failed ? N_DST : N_SRC) * sizeof *ids);
        if (failed) {
            assert_non_null(tern_session_logits(dst));
            assert_memory_equal(tern_session_logits(dst), before, bytes);
        }
        float *got = goes_on(dst, n_vocab);
        if (failed) assert_memory_equal(got, want, 4 * bytes);
        free(got);
        tern_session_close(&dst);
    }
    tern_session_close(&src), tern_session_close(&alone);
    tern_engine_close(&e);
    free(before), free(want);
    return n - 1;
}

static void as_before(void **state) {
    (void)state;
    static const char *const archs[] = {"tiny-llama",     "tiny-gemma3",   "tiny-lfm2",      "tiny-qwen35",
                                        "tiny-falcon-h1", "tiny-granite4", "tiny-qwen3next", "tiny-deepseek2",
                                        "tiny-mamba2",    "tiny-rwkv7"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        long n = copies_fail(archs[i]);
        print_message("%s: %ld allocations failed\n", archs[i], n);
        assert_true(n >= 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
