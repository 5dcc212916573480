/* What a kept conversation belongs to: the model, and every option that changes a bit of its state. The table of parameters is walked,
 * so that a new one is either a part of the identity or named here as one that changes no bits. */
#include "engine/engine.h"
#include "params/params.h"
#include "server/checkpoints.h"
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "fixture/fixture.h"

/* Values that are not the default. */
static const char *const changes[][2] = {
    {"exact", "on"},
    {"attention", "full"},
    {"attention-decode", "on"},
    {"ratio", "50"},
    {"attention-threshold", "100"},
    {"kv", "f16"},
    {"chunk", "64"},
    {"buckets", "1"},
    {"no-head-ratios", "on"},
    {"attention-share", "2"},
    {"attention-pool", "2"},
    {"attention-preset", "paper"},
};
/* The text's own, where and how fast it is computed, and what a saved session says itself (its context's length, its adapters). The
 * scheme is a part of the model's identity. */
static const char *const same_bits[] = {
    "n-predict",
    "temp",
    "top-k",
    "top-p",
    "min-p",
    "seed",
    "repeat-penalty",
    "repeat-last-n",
    "ignore-eos",
    "draft",
    "draft-nodes",
    "draft-head",
    "draft-eager",
    "threads",
    "cores",
    "ctx-size",
    "lora",
    "trace",
    "weights",
    "load",
    "read",
    "policy",
    "steal",
    "npu",
    "npu-threads",
    "cpu-threads",
    "max-memory",
    "npu-memory",
    "npu-vtcm",
    "scheme",
    "no-chunk-sharing",
    "cold-rows",
    "products",
    "npu-separate-weights",
    "mmproj", /* the ids of pictures' rows are those of what was seen, by which encoder and in how many views */
    "encoder",
    "keep-encoder",
    "one-view",
    "picture-rows",
    "picture-memory",
    "picture-cache",
    "switch",
    "switch-blocks",
    "npu-apart",
    "attention-whole",
    "attention-pipeline",
    "attention-plan",
    "attention-check",
};

static char gguf[FIXTURE_PATH], package[FIXTURE_PATH];

static uint64_t identity(const char *name, const char *value, int32_t tuned) {
    tern_error err;
    tern_options *o;
    tern_engine *e;
    must(tern_options_new(&o, &err), &err);
    if (name) must(tern_options_set(o, name, value, &err), &err);
    must(tern_engine_open(package, o, &e, &err), &err);
    assert_non_null(e->npu);
    if (tuned) e->npu->tuned.attn_threshold = tuned;
    tern_session *s = fixture_session(e, 256, NULL);
    uint64_t id = tn_checkpoints_identity(s);
    tern_session_close(&s);
    tern_engine_close(&e);
    tern_options_free(&o);
    return id;
}

static void every_parameter(void **state) {
    (void)state;
    const uint64_t plain = identity(NULL, NULL, 0);
    assert_true(identity(NULL, NULL, 0) == plain);
    const tn_param *p;
    for (size_t i = 0; (p = tn_param_at(i)); i++) {
        const char *value = NULL;
        bool same = false;
        for (size_t k = 0; k < sizeof changes / sizeof *changes; k++)
            if (!strcmp(changes[k][0], p->name)) value = changes[k][1];
        for (size_t k = 0; k < sizeof same_bits / sizeof *same_bits; k++)
            same = same || !strcmp(same_bits[k], p->name);
        if (!!value == same) fail_msg("does %s change bits of a kept conversation?", p->name);
        if (value && identity(p->name, value, 0) == plain)
            fail_msg("%s=%s: a conversation kept without it would be continued", p->name, value);
    }
}

/* Where sparse attention begins is measured after the first answer: what was read before belongs to another beginning. */
static void what_is_tuned(void **state) {
    (void)state;
    assert_true(identity(NULL, NULL, 2048) != identity(NULL, NULL, 4096));
}

int main(void) {
    fixture_llama(gguf, "kept.gguf", 5);
    fixture_package(package, "kept.tern", gguf, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_parameter), cmocka_unit_test(what_is_tuned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
