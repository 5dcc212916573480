/* When an encoder of pictures is read, and when it leaves: its metadata when a model is opened, its weights
 * when a view is not known, and nothing of it where all are; a package's in pieces; out of memory as
 * keep-encoder and max-memory say. */
#include "package/npu_model.h"
#include "quant/content.h"
#include "quant/pack.h"
#include "session/pictures.h"
#include "session/session.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { CTX = 1024 };

typedef struct seeing {
    char model[FIXTURE_PATH], tower[FIXTURE_PATH];
    uint8_t rgb[40 * 30 * 3];
    tern_options *o; /* with a cache of its own, which is empty */
} seeing;

/* name: of a folder of its own */
static void begin_seeing(seeing *x, const char *name, const char *cache_bytes) {
    char folder[FIXTURE_PATH], path[2 * FIXTURE_PATH];
    tern_error err;
    fixture_file(folder, name);
    assert_int_equal(mkdir(folder, 0700), 0);
    setenv("XDG_CACHE_HOME", folder, 1);
    snprintf(path, sizeof path, "%s/m.gguf", name);
    fixture_model(x->model, path, "tiny-llama+sees", 1, TN_F32);
    snprintf(path, sizeof path, "%s/mmproj-m.gguf", name);
    fixture_tower(x->tower, path, "tiny-smolvlm-mmproj", 1, TN_F32);
    for (size_t i = 0; i < sizeof x->rgb; i++) x->rgb[i] = (uint8_t)(i * 7);
    must(tern_options_new(&x->o, &err), &err);
    must(tern_options_set(x->o, "picture-cache", cache_bytes, &err), &err);
}

/* A prompt with the picture, of up to cap tokens. */
static tern_status ask_about(seeing *x, tern_session *s, int32_t *ids, size_t cap, size_t *n) {
    const tern_message msg = {"user", "what?"};
    const tern_image image = {40, 30, x->rgb};
    tern_error err;
    return tern_session_look(s, &msg, 1, NULL, &image, 1, ids, cap, n, &err);
}

/* Sees the picture with a new engine. Returns its logits. */
static float *see_anew(seeing *x, tn_sight_counts *out) {
    int32_t ids[CTX];
    size_t n;
    tern_engine *e = fixture_engine(x->model, x->o);
    tern_session *s = fixture_session(e, CTX, NULL);
    assert_int_equal(tn_sight_count(e).reads, 0); /* opening reads the metadata alone */
    assert_int_equal(ask_about(x, s, ids, 4, &n), TERN_E_LIMIT);
    assert_int_equal(tn_sight_count(e).reads, 0); /* what does not fit is found before */
    assert_int_equal(ask_about(x, s, ids, CTX, &n), TERN_OK);
    float *logits = fixture_logits(s, ids, (int32_t)n);
    *out = tn_sight_count(e);
    tern_session_close(&s);
    tern_engine_close(&e);
    return logits;
}

/* Until the file's last change is so long ago that a later one bears another time. */
static void let_settle(const char *path) {
    tn_content mark;
    for (bool settled = false; !settled; usleep(20000)) assert_true(tn_content_mark(path, &mark, &settled));
}

/* In a later process a picture that was seen costs nothing of the encoder; other weights in its place are
 * others, also where size and time of writing are the same. */
static void known_pictures_read_nothing(void **state) {
    (void)state;
    seeing x;
    tn_sight_counts c;
    struct stat sb;
    begin_seeing(&x, "known", "1M");
    const size_t bytes = 512 * sizeof(float); /* of the logits */
    let_settle(x.tower);
    float *first = see_anew(&x, &c);
    assert_true(c.reads > 0 && c.encoded > 0);
    float *again = see_anew(&x, &c);
    assert_int_equal(c.reads, 0);
    assert_int_equal(c.encoded, 0);
    assert_memory_equal(again, first, bytes);
    free(again);
    for (int in_place = 0; in_place < 2; in_place++) {
        let_settle(x.tower);
        free(see_anew(&x, &c));
        free(see_anew(&x, &c));
        assert_int_equal(c.reads, 0); /* this one is known as well */
        assert_int_equal(stat(x.tower, &sb), 0);
        char other[FIXTURE_PATH], command[4 * FIXTURE_PATH];
        fixture_tower(other, "known/new.gguf", "tiny-smolvlm-mmproj", 2 + (uint64_t)in_place, TN_F32);
        snprintf(command, sizeof command, in_place ? "cat '%s' >'%s'" : "mv '%s' '%s'", other, x.tower);
        assert_int_equal(system(command), 0);
        const struct timespec times[] = {sb.st_atim, sb.st_mtim};
        assert_int_equal(utimensat(AT_FDCWD, x.tower, times, 0), 0);
        again = see_anew(&x, &c);
        assert_true(c.reads > 0 && c.encoded > 0);
        assert_memory_not_equal(again, first, bytes);
        free(again);
    }
    free(first);
    tern_options_free(&x.o);
}

/* Views that were looked at before anybody knew which encoder it is are those that a saved text names,
 * whichever came first. Nothing is kept on disk, so that the weights tell it. */
static void saved_texts_name_what_is_looked_at(void **state) {
    (void)state;
    static fixture_saved x;
    seeing y;
    int32_t ids[CTX], other[CTX];
    size_t n, k;
    tern_error err;
    begin_seeing(&y, "named", "0");
    tern_engine *e = fixture_engine(y.model, y.o);
    tern_session *s = fixture_session(e, CTX, NULL);
    assert_int_equal(ask_about(&y, s, ids, CTX, &n), TERN_OK);
    free(fixture_logits(s, ids, (int32_t)n));
    fixture_save(s, &x);
    tern_session_close(&s);
    tern_engine_close(&e);
    for (int looked_before = 0; looked_before < 2; looked_before++) {
        const tn_picture p = {.width = 40, .height = 30, .rgb = y.rgb};
        tn_look *l = NULL;
        e = fixture_engine(y.model, y.o);
        s = fixture_session(e, CTX, NULL);
        if (looked_before) must(tn_look_at(e, &p, false, &l, &err), &err);
        if (looked_before) assert_int_equal(tn_sight_count(e).reads, 0);
        must(tern_session_load_from(s, x.bytes, x.n, &err), &err);
        if (!looked_before) must(tn_look_at(e, &p, false, &l, &err), &err);
        assert_int_equal(ask_about(&y, s, other, CTX, &k), TERN_OK);
        assert_int_equal(k, n);
        assert_memory_equal(other, s->tokens, n * sizeof *other);
        free(fixture_logits(s, other, (int32_t)n));
        assert_int_equal(s->n_known, (int32_t)n);
        tn_look_close(&l);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
    tern_options_free(&y.o);
}

/* Whether a piece of memory of that size was asked for. */
typedef struct sized {
    size_t bytes;
    atomic_bool was;
} sized;

static void *measured_alloc(void *user, size_t n_bytes, size_t align) {
    sized *x = user;
    void *p = NULL;
    if (n_bytes == x->bytes) atomic_store(&x->was, true);
    return posix_memalign(&p, align, n_bytes) ? NULL : p;
}

static void measured_release(void *user, void *p) {
    (void)user;
    free(p);
}

/* The encoder of a package is read a tensor at a time, as that of a file. */
static void packed_encoders_are_read_in_pieces(void **state) {
    (void)state;
    seeing x;
    char package[FIXTURE_PATH];
    struct stat sb;
    tern_hooks hooks;
    sized whole = {0};
    tern_error err;
    tn_pack_options po;
    int32_t ids[CTX];
    size_t n;
    begin_seeing(&x, "pieces", "1M");
    assert_int_equal(stat(x.tower, &sb), 0);
    whole.bytes = (size_t)sb.st_size;
    tn_pack_defaults(&po);
    po.calib_tokens = 256;
    po.mmproj = x.tower;
    fixture_package(package, "pieces/p.tern", x.model, &po);
    tern_hooks_defaults(&hooks);
    hooks.alloc = measured_alloc;
    hooks.release = measured_release;
    hooks.user = &whole;
    x.o->hooks = &hooks;
    tern_engine *e = fixture_engine(package, x.o);
    tern_session *s = fixture_session(e, CTX, NULL);
    assert_int_equal(ask_about(&x, s, ids, CTX, &n), TERN_OK);
    const tn_sight_counts c = tn_sight_count(e);
    assert_true(c.reads > 0 && c.encoded > 0);
    assert_false(whole.was);
    tern_session_close(&s);
    tern_engine_close(&e);
    /* what was written to it since is found before it is used */
    e = fixture_engine(package, x.o);
    s = fixture_session(e, CTX, NULL);
    const tn_pkg_section *section = tn_pkg_find(e->npu->pkg, TN_PKG_ENCODER, -1);
    fixture_write_at(package, section->off_bytes + section->size_bytes - 100, "damage", 6);
    x.rgb[0] ^= 0xff; /* another picture */
    const tern_message msg = {"user", "what?"};
    const tern_image image = {40, 30, x.rgb};
    assert_int_not_equal(tern_session_look(s, &msg, 1, NULL, &image, 1, ids, CTX, &n, &err), TERN_OK);
    assert_non_null(strstr(err.message, "p.tern"));
    tern_session_close(&s);
    tern_engine_close(&e);
    x.o->hooks = NULL;
    tern_options_free(&x.o);
}

/* An encoder that was named and cannot be used is an error of opening; one that was found is none, and the
 * engine does not see. */
static void encoders_are_checked_when_opened(void **state) {
    (void)state;
    seeing x;
    tern_error err;
    tern_engine *e = NULL;
    begin_seeing(&x, "checked", "0");
    must(tern_options_set(x.o, "mmproj", "none.gguf", &err), &err);
    assert_int_equal(tern_engine_open(x.model, x.o, &e, &err), TERN_E_IO);
    must(tern_options_set(x.o, "mmproj", x.model, &err), &err);
    assert_int_equal(tern_engine_open(x.model, x.o, &e, &err), TERN_E_FORMAT);
    tern_options_free(&x.o);
    must(tern_options_new(&x.o, &err), &err);
    assert_int_equal(truncate(x.tower, 4000), 0);
    e = fixture_engine(x.model, x.o);
    assert_false(tern_engine_sees(e));
    assert_false(tn_sight_can(e, &err));
    assert_non_null(strstr(err.message, "mmproj-m.gguf"));
    tern_engine_close(&e);
    tern_options_free(&x.o);
}

/* ---- leaving memory ----------------------------------------------------------------------------------------- */

/* An engine that is asked about a picture with these options, and whether it holds the weights after that. */
static bool stays(seeing *x, const char *keep, int64_t *n_idle) {
    int32_t ids[CTX];
    size_t n;
    tern_error err;
    must(tern_options_set(x->o, "keep-encoder", keep, &err), &err);
    tern_engine *e = fixture_engine(x->model, x->o);
    tern_session *s = fixture_session(e, CTX, NULL);
    assert_int_equal(tn_sight_idle(e, 5), -1);
    assert_int_equal(ask_about(x, s, ids, CTX, &n), TERN_OK);
    const bool is = tn_sight_count(e).encoder_bytes > 0;
    const int64_t minute = INT64_C(60000000000);
    /* in a server, by its clock; a minute begins when the keeper sees that a view was encoded */
    *n_idle = tn_sight_idle(e, 7);
    assert_int_equal(tn_sight_idle(e, 7 + minute - 1), *n_idle < 0 ? -1 : 1);
    assert_int_equal(tn_sight_count(e).encoder_bytes > 0, is);
    assert_int_equal(tn_sight_idle(e, 7 + minute), -1);
    assert_int_equal(tn_sight_count(e).encoder_bytes > 0, is && *n_idle < 0);
    /* and it is read again when it is needed again */
    x->rgb[1] ^= 0xff;
    const uint64_t reads = tn_sight_count(e).reads;
    assert_int_equal(ask_about(x, s, ids, CTX, &n), TERN_OK);
    assert_int_equal(tn_sight_count(e).reads - reads, is && *n_idle < 0 ? 0 : 1);
    tern_session_close(&s);
    tern_engine_close(&e);
    return is;
}

static void weights_leave(void **state) {
    (void)state;
    seeing x;
    int64_t n_idle;
    begin_seeing(&x, "leave", "0");
    assert_true(stays(&x, "on", &n_idle));
    assert_int_equal(n_idle, -1);
    assert_true(stays(&x, "auto", &n_idle));
    assert_int_equal(n_idle, INT64_C(60000000000));
    assert_false(stays(&x, "off", &n_idle));
    assert_int_equal(n_idle, -1);
    tern_options_free(&x.o);
}

/* Off: they stay until the last picture of a question is encoded, and leave where one is given up. */
static void weights_wait_for_the_last_picture(void **state) {
    (void)state;
    seeing x;
    tern_error err;
    bool more;
    tn_look *l[2];
    begin_seeing(&x, "last", "0");
    must(tern_options_set(x.o, "keep-encoder", "off", &err), &err);
    must(tern_options_set(x.o, "one-view", "on", &err), &err);
    for (int given_up = 0; given_up < 2; given_up++) {
        tern_engine *e = fixture_engine(x.model, x.o);
        for (int i = 0; i < 2; i++) {
            const tn_picture p = {.width = 40, .height = 30, .rgb = x.rgb};
            must(tn_look_at(e, &p, false, &l[i], &err), &err);
            x.rgb[2] ^= 0xff;
        }
        must(tn_look_encode(l[0], NULL, &more, &err), &err);
        assert_true(tn_look_done(l[0]));
        assert_true(tn_sight_count(e).encoder_bytes > 0);
        if (!given_up) must(tn_look_encode(l[1], NULL, &more, &err), &err);
        tn_look_close(&l[1]);
        assert_int_equal(tn_sight_count(e).encoder_bytes, 0);
        assert_int_equal(tn_sight_count(e).reads, 1);
        tn_look_close(&l[0]);
        tern_engine_close(&e);
    }
    tern_options_free(&x.o);
}

/* max-memory has room for the encoder beside the model, or the engine says that it does not see, with the
 * numbers. */
static void memory_is_for_the_encoder_too(void **state) {
    (void)state;
    seeing x;
    tern_error err;
    tern_estimate text, with;
    tern_engine *e = NULL;
    char bytes[32];
    begin_seeing(&x, "room", "0");
    must(tern_options_set(x.o, "ctx-size", "256", &err), &err);
    must(tern_engine_estimate(x.model, x.o, &text, &err), &err);
    must(tern_options_set(x.o, "keep-encoder", "on", &err), &err);
    must(tern_engine_estimate(x.model, x.o, &with, &err), &err);
    const uint64_t all = text.weight_bytes + text.kv_bytes + text.work_bytes,
                   encoder = with.weight_bytes + with.kv_bytes + with.work_bytes - all;
    assert_true(encoder > 100000);
    for (int keep = 0; keep < 2; keep++)
        for (int fits = 0; fits < 2; fits++) {
            must(tern_options_set(x.o, "keep-encoder", keep ? "on" : "auto", &err), &err);
            snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)(all + encoder - !fits));
            must(tern_options_set(x.o, "max-memory", bytes, &err), &err);
            must(tern_options_set(x.o, "kv", "f32", &err), &err);
            const tern_status st = tern_engine_open(x.model, x.o, &e, &err);
            assert_int_equal(st, keep && !fits ? TERN_E_LIMIT : TERN_OK);
            if (st != TERN_OK) continue;
            assert_int_equal(tern_engine_sees(e), fits);
            if (!fits) assert_false(tn_sight_can(e, &err));
            if (!fits) assert_non_null(strstr(err.message, "max-memory leaves"));
            must(tern_engine_estimate(x.model, x.o, &with, &err), &err);
            assert_int_equal(with.weight_bytes - text.weight_bytes, fits ? encoder : 0);
            tern_engine_close(&e);
        }
    tern_options_free(&x.o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_pictures_read_nothing),
        cmocka_unit_test(saved_texts_name_what_is_looked_at),
        cmocka_unit_test(encoders_are_checked_when_opened),
        cmocka_unit_test(packed_encoders_are_read_in_pieces),
        cmocka_unit_test(weights_leave),
        cmocka_unit_test(weights_wait_for_the_last_picture),
        cmocka_unit_test(memory_is_for_the_encoder_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
