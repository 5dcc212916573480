/* Memory that is missing once, at every place where it is asked for: opening a model of each architecture (floats, blocks that
 * stream, experts on demand, a package), reading a prompt or a picture, answering with drafts, saving, going back. The call that
 * missed it says so, the next one gives the right text, and nothing stays behind. */
#include "formats/tensor.h"
#include "lab/synth.h"
#include "model/file_experts.h"
#include "model/source.h"
#include "params/options.h"
#include "quant/pack.h"

#include <tern.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"
#include "fixture/scarce.h"

enum { N_PROMPT = 48, N_BACK = 20, N_TOKENS = 6, N_CTX = 96, N_SEEN = 700, N_TEXTS = 3 };
static long n_missed; /* allocations, of all scenes */
static int32_t prompt[N_PROMPT];
static char saved[FIXTURE_PATH];

/* What is opened, and what is asked. */
typedef struct scene {
    const char *path;
    char what[80];
    uint64_t most_bytes; /* max-memory; 0: none */
    const char *encoder; /* of the picture that is asked about; NULL: a text is */
    bool every;          /* allocation, not some */
} scene;

static tern_status say(tern_session *s, const int32_t *ids, size_t n, fixture_heard *out, tern_error *err) {
    tern_generate_options g;
    fixture_hear(&g, N_TOKENS, out);
    tern_status st = tern_session_prefill(s, ids, n, err);
    return st == TERN_OK ? tern_session_generate(s, &g, NULL, err) : st;
}

static tern_status see(tern_session *s, fixture_heard *out, tern_error *err) {
    static uint8_t rgb[40 * 20 * 3];
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)(i * 7);
    const tern_image image = {40, 20, rgb};
    const tern_message msg = {"user", "what?"};
    int32_t ids[N_SEEN];
    size_t n;
    tern_status st = tern_session_look(s, &msg, 1, NULL, &image, 1, ids, N_SEEN, &n, err);
    return st == TERN_OK ? say(s, ids, n, out, err) : st;
}

/* Everything that a session does. Texts that are not reached have no tokens. */
static tern_status use(const scene *k, tern_session *s, fixture_heard out[N_TEXTS], tern_error *err) {
    memset(out, 0, N_TEXTS * sizeof *out);
    if (k->encoder) return see(s, &out[0], err);
    tern_status st = say(s, prompt, N_PROMPT, &out[0], err);
    if (st == TERN_OK) st = tern_session_save(s, saved, err);
    if (st == TERN_OK) st = say(s, prompt, N_BACK, &out[1], err);
    if (st == TERN_OK) st = tern_session_load(s, saved, err);
    return st == TERN_OK ? say(s, prompt, N_PROMPT, &out[2], err) : st;
}

static void fine(const scene *k, long i, tern_status st, const tern_error *err) {
    if (st != TERN_OK && (st != TERN_E_MEMORY || !err->message[0]))
        fail_msg("%s, allocation %ld: status %d, '%s'", k->what, i, st, err->message);
}

/* Allocation i is missing; -1: none, and `want` is what the texts are. Returns how many were made. */
static long missing(const scene *k, long i, fixture_heard want[N_TEXTS]) {
    scarce memory = {.left = i};
    tern_hooks hooks;
    scarce_hooks(&hooks, &memory);
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.hooks = &hooks;
    o.session.n_ctx = k->encoder ? N_SEEN : N_CTX;
    o.session.draft = "all";
    o.max_memory_bytes = k->most_bytes;
    o.encoder = k->encoder;
    tern_engine *e = NULL;
    tern_session *s = NULL;
    tern_error err = {0};
    fixture_heard got[N_TEXTS] = {0};
    tern_status st = tern_engine_open(k->path, &o, &e, &err);
    if (st == TERN_OK) st = tern_session_open(e, NULL, &s, &err);
    if (st == TERN_OK) st = use(k, s, got, &err);
    if (i < 0) must(st, &err);
    if (i < 0) memcpy(want, got, sizeof got);
    fine(k, i, st, &err);
    if (st != TERN_OK && s) { /* again; weights that were not read stay so until the engine is opened again */
        st = use(k, s, got, &err);
        fine(k, i, st, &err);
    }
    for (int t = 0; t < N_TEXTS; t++)
        if ((st == TERN_OK || got[t].n == N_TOKENS) && memcmp(&got[t], &want[t], sizeof got[t]) != 0)
            fail_msg("%s, allocation %ld: another text", k->what, i);
    tern_session_close(&s);
    tern_engine_close(&e);
    if (memory.live) fail_msg("%s, allocation %ld: %ld stay behind", k->what, i, memory.live);
    return memory.made;
}

/* Each in turn, or some of them, which are not the same ones of every scene. */
static void each(const scene *k) {
    static long n_scenes;
    fixture_heard want[N_TEXTS];
    const long n = missing(k, -1, want), some = fixture_level(4, 5, 10),
               step = k->every || getenv("TERN_TEST_ROUNDS") ? 1 : n / some + 1;
    for (long i = n_scenes++ % step; i < n; i += step, n_missed++) missing(k, i, want);
}

static void open_and_ask(const char *path, uint64_t most_bytes, const char *encoder, const char *name,
                         const char *form) {
    scene k = {.path = path, .most_bytes = most_bytes, .encoder = encoder};
    k.every = !strcmp(name, "tiny-smolvlm-mmproj"); /* the quickest that has a template */
    snprintf(k.what, sizeof k.what, "%s%s", name, form);
    each(&k);
}

/* max-memory in which as few of the file's experts fit as may be; 0: it has none. */
static uint64_t memory_of_few(const char *path) {
    tn_ctx ctx;
    tern_error err;
    tn_source *src;
    tern_estimate e;
    tern_options o;
    tn_experts_need need;
    tn_ctx_init(&ctx, NULL);
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.session.n_ctx = N_CTX;
    must(tn_source_open(&ctx, path, &src, &err), &err);
    tn_file_experts_need_of(src, &need);
    tn_source_close(&src);
    if (!need.can) return 0;
    must(tern_engine_estimate(path, &o, &e, &err), &err);
    return e.weight_bytes + e.kv_bytes + e.work_bytes - need.all_bytes + need.least_bytes;
}

/* Whether TERN_ONLY, a model's name, leaves this one out. */
static bool left_out(const char *name) {
    const char *only = getenv("TERN_ONLY");
    return only && strcmp(only, name) != 0;
}

static void texts(void **state) {
    (void)state;
    char path[FIXTURE_PATH], package[FIXTURE_PATH];
    for (size_t i = 0; tn_synth_name(i); i++) {
        const char *name = tn_synth_name(i);
        if (strncmp(name, "tiny-", 5) != 0 || strstr(name, "mmproj") || left_out(name)) continue;
        if (getenv("TERN_TEST_QUICK") && i % 4) continue;
        fixture_model(path, "m.gguf", name, 3, TN_F32);
        open_and_ask(path, 0, NULL, name, "");
        if (i % 3 == 0 || getenv("TERN_TEST_ROUNDS")) { /* packing takes longer than the rest */
            fixture_package(package, "m.tern", path, NULL);
            open_and_ask(package, 0, NULL, name, ", a package");
        }
        fixture_model(path, "m.gguf", name, 3, TN_Q8_0);
        open_and_ask(path, 0, NULL, name, ", in blocks");
        const uint64_t few = memory_of_few(path);
        if (few) open_and_ask(path, few, NULL, name, ", experts on demand");
    }
}

static void pictures(void **state) {
    (void)state;
    static const char *const pairs[][2] = {{"tiny-llama+sees", "tiny-smolvlm-mmproj"},
                                           {"tiny-lfm2+sees", "tiny-lfm2vl-mmproj"},
                                           {"tiny-qwen2+sees", "tiny-internvl-mmproj"},
                                           {"tiny-gemma4+sees", "tiny-gemma4-mmproj"},
                                           {"tiny-qwen3vl+sees", "tiny-qwen3vl-mmproj"}};
    char path[FIXTURE_PATH], tower[FIXTURE_PATH];
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (left_out(pairs[i][1])) continue;
        fixture_model(path, "sees.gguf", pairs[i][0], 1, TN_F32);
        fixture_tower(tower, "mmproj-sees.gguf", pairs[i][1], 1, TN_F32);
        open_and_ask(path, 0, "float", pairs[i][1], "");
        open_and_ask(path, 0, "int8", pairs[i][1], ", INT8");
    }
}

static int told(void **state) {
    (void)state;
    print_message("%ld allocations were missed\n", n_missed);
    return 0;
}

static int setup(void **state) {
    (void)state;
    fixture_prompt(prompt, N_PROMPT);
    fixture_file(saved, "saved.state");
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(pictures)};
    return cmocka_run_group_tests(tests, setup, told);
}
