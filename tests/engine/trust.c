/* Files that others replace, cut or fill with nonsense while they are opened and used: the right answer or
 * one error. */
#include "base/finite.h"
#include "base/cpu.h"
#include "session/session.h"
#include "formats/gguf.h"
#include "formats/package.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { N_PROMPT = 40, MAX_VOCAB = 4096 };

static char gguf[2][FIXTURE_PATH], blocks[FIXTURE_PATH], packages[2][FIXTURE_PATH], target[FIXTURE_PATH];
static int32_t prompt[N_PROMPT];

static int setup(void **state) {
    (void)state;
    fixture_file(target, "model");
    for (int i = 0; i < 2; i++) {
        tn_pack_options o;
        tn_pack_defaults(&o);
        o.calib_tokens = 256;
        o.bits = i ? 8 : 5; /* another layout too */
        fixture_model(gguf[i], i ? "1.gguf" : "0.gguf", "tiny-llama", 7 + (uint64_t)i, TN_F32);
        fixture_package(packages[i], i ? "1.tern" : "0.tern", gguf[i], &o);
    }
    fixture_model(blocks, "blocks.gguf", "tiny-llama", 7, TN_Q8_0);
    fixture_prompt(prompt, N_PROMPT);
    return 0;
}

/* ---- something happens at the Nth allocation -------------------------------------------------------- */

typedef struct event {
    long left;
    void (*happens)(void);
} event;

static void *counting_alloc(void *user, size_t n, size_t align) {
    event *e = user;
    void *p = NULL;
    if (e->left-- == 0) e->happens();
    return posix_memalign(&p, align, n) ? NULL : p;
}

static void plain_release(void *user, void *p) {
    (void)user;
    free(p);
}

static tern_status answer(const char *load, const char *read, event *e, float *logits, tern_error *err) {
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.alloc = counting_alloc;
    hooks.release = plain_release;
    hooks.user = e;
    tern_options o;
    tn_options_defaults(&o);
    o.hooks = &hooks;
    o.n_threads = 1;
    o.load = load;
    o.read = read;
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = 64;
    so.draft = "none";
    tern_engine *engine = NULL;
    tern_session *s = NULL;
    tern_model_info info;
    tern_status st = tern_engine_open(target, &o, &engine, err);
    if (st == TERN_OK) st = tern_session_open(engine, &so, &s, err);
    if (st == TERN_OK) st = tern_session_prefill(s, prompt, N_PROMPT, err);
    if (st == TERN_OK) {
        tern_engine_info(engine, &info);
        memcpy(logits, tern_session_logits(s), (size_t)info.n_vocab * sizeof *logits);
    }
    tern_session_close(&s);
    tern_engine_close(&engine);
    return st;
}

static const char *other; /* what takes the target's name */

static void replace(void) {
    char tmp[FIXTURE_PATH + 8];
    snprintf(tmp, sizeof tmp, "%s.next", target);
    unlink(tmp);
    assert_int_equal(link(other, tmp), 0);
    assert_int_equal(rename(tmp, target), 0);
}

static void replaced(const char *const files[2], const char *load, const char *read) {
    static float want[2][MAX_VOCAB], got[MAX_VOCAB];
    tern_error err;
    for (int i = 0; i < 2; i++) {
        event never = {.left = -1};
        other = files[i];
        replace();
        if (answer(load, read, &never, want[i], &err) != TERN_OK) fail_msg("%s", err.message);
    }
    assert_memory_not_equal(want[0], want[1], 500 * sizeof(float));
    bool seen[2] = {false, false};
    for (long n = 0;; n += 2) {
        event e = {.left = n, .happens = replace};
        other = files[0];
        replace();
        other = files[1];
        if (answer(load, read, &e, got, &err) != TERN_OK)
            fail_msg("replaced at allocation %ld, %s: %s", n, load ? load : "float", err.message);
        int which = !memcmp(got, want[1], 500 * sizeof(float));
        if (!which) assert_memory_equal(got, want[0], 500 * sizeof(float));
        seen[which] = true;
        if (e.left >= 0) break;
    }
    assert_true(seen[0] && seen[1]);
}

static void a_package_is_replaced(void **state) {
    (void)state;
    const char *const files[] = {packages[0], packages[1]};
    replaced(files, "sequential", "threads");
    replaced(files, "stream", "uring-direct");
    replaced(files, "mmap", NULL);
}

static void a_gguf_file_is_replaced(void **state) {
    (void)state;
    const char *const files[] = {gguf[0], gguf[1]};
    replaced(files, NULL, NULL);
}

/* ---- shorter --------------------------------------------------------------------------------------- */

static void cut(void) { assert_int_equal(truncate(target, 4096), 0); }

/* Cut at every stage of opening: the answer, where all was read, or one error; never a signal. */
static void a_file_is_cut_while_it_is_opened(void **state) {
    (void)state;
    static float want[MAX_VOCAB], got[MAX_VOCAB];
    const struct {
        const char *file, *load;
    } kinds[] = {{gguf[0], NULL}, {packages[0], "mmap"}, {packages[0], "stream"}};
    for (int k = 0; k < 3; k++) {
        tern_error err;
        event never = {.left = -1};
        int n_refused = 0;
        fixture_copy(kinds[k].file, target);
        assert_int_equal(answer(kinds[k].load, "threads", &never, want, &err), TERN_OK);
        for (long n = 0;; n += 7) {
            event e = {.left = n, .happens = cut};
            fixture_copy(kinds[k].file, target);
            tern_status st = answer(kinds[k].load, "threads", &e, got, &err);
            if (e.left >= 0) break;
            if (st == TERN_OK) assert_memory_equal(got, want, 500 * sizeof(float));
            else assert_true(st == TERN_E_IO || st == TERN_E_FORMAT);
            n_refused += st != TERN_OK;
        }
        assert_true(n_refused > 3);
    }
}

/* Cut while it is in use: a mapped package's weights are gone, and the next forward says so. */
static void a_mapped_package_is_cut(void **state) {
    (void)state;
    tern_options o;
    tn_options_defaults(&o);
    o.load = "mmap";
    tern_engine *e;
    tern_session *s;
    tern_error err;
    fixture_copy(packages[1], target); /* 8 bits: tiles that are used where they lie */
    assert_int_equal(tern_engine_open(target, &o, &e, &err), TERN_OK);
    assert_int_equal(tern_session_open(e, NULL, &s, &err), TERN_OK);
    assert_int_equal(tern_session_prefill(s, prompt, N_PROMPT, &err), TERN_OK);
    assert_int_equal(truncate(target, 4096), 0);
    assert_int_equal(tern_session_step(s, 7, &err), TERN_E_IO);
    assert_non_null(strstr(err.message, "became shorter"));
    assert_null(tern_session_logits(s));
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* ---- written to ------------------------------------------------------------------------------------ */

static void write_over(void) {
    static const char nothing[1 << 16];
    struct stat sb;
    const int fd = open(target, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0 && !fstat(fd, &sb));
    for (off_t at = sb.st_size / 8, n; at < sb.st_size; at += n) { /* beyond the metadata */
        n = sb.st_size - at < (off_t)sizeof nothing ? sb.st_size - at : (off_t)sizeof nothing;
        assert_int_equal(pwrite(fd, nothing, (size_t)n, at), n);
    }
    close(fd);
}

/* Its last change was long ago: clocks of files are coarse. */
static void copy_of_before(const char *from) {
    const struct timespec long_ago[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    fixture_copy(from, target);
    assert_int_equal(utimensat(AT_FDCWD, target, long_ago, 0), 0);
}

/* Written over in its place, at every stage of opening: the answer of what was there or of what is, or one error. */
static void a_file_is_written_over_while_it_is_opened(void **state) {
    (void)state;
    static float want[2][MAX_VOCAB], got[MAX_VOCAB];
    const struct {
        const char *file, *load;
    } kinds[] = {{gguf[0], NULL}, {blocks, "mmap"}, {blocks, "stream"}};
    for (int k = 0; k < 3; k++) {
        tern_error err;
        event never = {.left = -1};
        int n_refused = 0;
        copy_of_before(kinds[k].file);
        assert_int_equal(answer(kinds[k].load, "threads", &never, want[0], &err), TERN_OK);
        write_over();
        assert_int_equal(answer(kinds[k].load, "threads", &never, want[1], &err), TERN_OK);
        for (long n = 0;; n += 5) {
            event e = {.left = n, .happens = write_over};
            copy_of_before(kinds[k].file);
            tern_status st = answer(kinds[k].load, "threads", &e, got, &err);
            if (e.left >= 0) break;
            if (st == TERN_OK && memcmp(got, want[0], 500 * sizeof(float)) != 0 &&
                memcmp(got, want[1], 500 * sizeof(float)) != 0)
                fail_msg("kind %d, written over at allocation %ld: another answer", k, n);
            assert_true(st == TERN_OK || st == TERN_E_IO || st == TERN_E_FORMAT);
            n_refused += st != TERN_OK;
        }
        assert_true(n_refused > 3);
    }
}

/* Written over in use: an embedding with an output layer beside it is the last to be read, row by row until then. */
static void a_streamed_file_is_written_over(void **state) {
    (void)state;
    tern_error err;
    copy_of_before(blocks);
    tern_engine *e = fixture_engine(target, NULL);
    tern_session *s = fixture_session(e, 64, "none");
    must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
    write_over();
    assert_int_equal(tern_session_step(s, 7, &err), TERN_E_IO);
    assert_non_null(strstr(err.message, "was written to while it was read"));
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* ---- not finite ------------------------------------------------------------------------------------ */

static void spoil(const char *tensor) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_gguf *g;
    tern_error err;
    fixture_copy(gguf[0], target);
    assert_int_equal(tn_gguf_open(&ctx, target, &g, &err), TERN_OK);
    const tn_tensor *t = tn_gguf_tensor(g, tensor);
    assert_non_null(t);
    uint64_t off = t->off_bytes, n = t->size_bytes / sizeof(float);
    tn_gguf_close(&g);
    FILE *f = fopen(target, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)off, SEEK_SET), 0);
    for (uint64_t i = 0; i < n; i++) {
        float v = i % 2 ? -3e38f : 3e38f; /* finite as they stand in the file, their products are not */
        assert_int_equal(fwrite(&v, sizeof v, 1, f), 1);
    }
    fclose(f);
}

static void values_that_are_not_finite(void **state) {
    (void)state;
    static float got[MAX_VOCAB];
    static const struct {
        const char *tensor, *where;
    } cases[] = {{"blk.0.ffn_down.weight", "layer 1 is the first"},
                 {"blk.1.attn_v.weight", "layer 1 is the first"},
                 {"blk.1.ffn_down.weight", "after the attention of layer 1, the last"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tern_error err;
        event never = {.left = -1};
        spoil(cases[i].tensor);
        assert_int_equal(answer(NULL, NULL, &never, got, &err), TERN_E_FORMAT);
        if (!strstr(err.message, "not finite") || !strstr(err.message, cases[i].where))
            fail_msg("%s: %s", cases[i].tensor, err.message);
    }
}

/* A package of this metadata, with true checksums, is refused with the key's name. Takes j. */
static void metadata_refused(tn_ctx *ctx, json_t *j, const char *key) {
    tern_error err;
    char *text = json_dumps(j, JSON_REAL_PRECISION(17));
    tn_pkg_writer *w;
    unlink(target);
    assert_int_equal(tn_pkg_create(ctx, target, 1, 0, &w, &err), TERN_OK);
    assert_int_equal(tn_pkg_put_section(w, TN_PKG_META, -1, text, strlen(text), &err), TERN_OK);
    assert_int_equal(tn_pkg_finish(&w, &err), TERN_OK);
    free(text);
    json_decref(j);
    tern_engine *e = NULL;
    assert_int_equal(tern_engine_open(target, NULL, &e, &err), TERN_E_FORMAT);
    if (!strstr(err.message, key)) fail_msg("%s: %s", key, err.message);
}

/* What layers mix their tokens by must be a program that there is. */
static void kinds_of_layers(tn_ctx *ctx, const char *meta) {
    static const struct {
        char kind;
        const char *more, *told;
    } cases[] = {{'b', "{}", "layer_kinds"}, /* a gated delta net is not beside attention */
                 {'b', "{\"delta_mamba\":1,\"attn_gate\":1}", "layer_kinds"},
                 {'b', "{\"delta_mamba\":1,\"delta_heads\":3}", "delta_heads"},
                 {'e', "{}", "layer_kinds"},
                 {'d', "{\"delta_no_norm\":1}", "delta_no_norm"},
                 {'d', "{\"delta_norm_first\":1}", "delta_norm_first"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char kinds[TN_MAX_LAYERS + 1] = {0};
        json_t *j = json_loads(meta, 0, NULL), *o = json_object_get(j, "operators");
        json_int_t n = json_integer_value(json_object_get(json_object_get(j, "hparams"), "n_layers"));
        assert_true(n > 1 && n < TN_MAX_LAYERS);
        memset(kinds, cases[i].kind, (size_t)n);
        if (cases[i].kind == 'd') kinds[0] = 'a';
        fixture_patch(o, "{\"delta_heads\":4,\"delta_key_heads\":2,\"delta_d_key\":8,"
                         "\"delta_d_value\":16,\"conv_len\":4}");
        fixture_patch(o, cases[i].more);
        assert_int_equal(json_object_set_new(o, "layer_kinds", json_string(kinds)), 0);
        metadata_refused(ctx, j, cases[i].told);
    }
}

/* Metadata of a package, with true checksums, is held to what config.json is held to. */
static void metadata_out_of_range(void **state) {
    (void)state;
    static const struct {
        const char *section, *key;
        double value;
    } cases[] = {{"operators", "norm_eps", 0},        {"operators", "norm_eps", -1e-5},
                 {"operators", "attn_soft_cap", -30}, {"operators", "logit_soft_cap", -30},
                 {"operators", "attn_scale", 0},      {"operators", "embd_scale", -1},
                 {"rope", "rope_base", -5},           {"rope", "rope_base", 1e39},
                 {"rope", "rope_mscale", 0}};
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tern_error err;
    tn_pkg *p;
    assert_int_equal(tn_pkg_open(&ctx, packages[0], &p, &err), TERN_OK);
    const tn_pkg_section *s = tn_pkg_find(p, TN_PKG_META, -1);
    char *meta = calloc(1, s->size_bytes + 1);
    assert_int_equal(tn_pkg_read(p, s, meta, &err), TERN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *j = json_loads(meta, 0, NULL), *o = json_object_get(j, cases[i].section);
        assert_non_null(json_object_get(o, cases[i].key));
        json_object_set_new(o, cases[i].key, json_real(cases[i].value));
        metadata_refused(&ctx, j, cases[i].key);
    }
    kinds_of_layers(&ctx, meta);
    free(meta);
    tn_pkg_close(&p);
}

static void finite_or_not(void **state) {
    (void)state;
    static float x[3000];
    for (size_t n = 0; n < 3000; n += n < 40 ? 1 : 211) {
        for (size_t i = 0; i < n; i++) x[i] = i % 2 ? 3.4e38f : -1e-44f;
        assert_true(tn_all_finite(x, n));
        for (size_t at = 0; at < n; at += 1 + n / 9) {
            float was = x[at];
            static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
            for (int k = 0; k < 4; k++) {
                x[at] = bad[k];
                assert_false(tn_all_finite(x, n));
            }
            x[at] = was;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_package_is_replaced),
        cmocka_unit_test(a_gguf_file_is_replaced),
        cmocka_unit_test(a_file_is_cut_while_it_is_opened),
        cmocka_unit_test(a_mapped_package_is_cut),
        cmocka_unit_test(a_file_is_written_over_while_it_is_opened),
        cmocka_unit_test(a_streamed_file_is_written_over),
        cmocka_unit_test(values_that_are_not_finite),
        cmocka_unit_test(metadata_out_of_range),
        cmocka_unit_test(finite_or_not),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
