/* Pictures whose rows see each other (Gemma 3, the larger Gemma 4): read as a model that reads texts as a
 * whole reads these rows, wherever they stand among chunks and in whatever pieces the text comes, from files
 * and from packages. */
#include "package/npu_model.h"
#include "package/tuned.h"
#include "session/pictures.h"
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { N = 90, CTX = 1024 };

static char gemma3[2][FIXTURE_PATH], gemma4[2][FIXTURE_PATH]; /* a file, and its package */
static char llama[FIXTURE_PATH];
static int32_t prompt[N];

static int make_models(void **state) {
    (void)state;
    fixture_both(gemma3[0], gemma3[1], 0, "tiny-gemma3", 3, TN_F32, NULL);
    fixture_both(gemma4[0], gemma4[1], 1, "tiny-gemma4+dense", 3, TN_F32, NULL);
    fixture_both(NULL, llama, 2, "tiny-llama", 3, TN_F32, NULL);
    fixture_prompt(prompt, N);
    return 0;
}

/* A view of n rows, which are embeddings of tokens as the layers get them. The session is told of it. */
static tn_seen *view(tern_session *s, int32_t n, bool in_windows) {
    const size_t width = (size_t)s->e->model->h.n_embd;
    const uint8_t key[TN_VIEW_KEY] = {1};
    tn_seen *v;
    tern_error err;
    int32_t ids[CTX];
    for (int32_t i = 0; i < n; i++) ids[i] = prompt[i % N];
    float *rows = fixture_embeddings(s->e, ids, n);
    for (size_t i = 0; i < (size_t)n * width; i++) rows[i] *= s->e->model->h.embd_scale;
    must(tn_sight_view(s->e, key, n, &v, &err), &err);
    must(tn_sight_give(s->e, v, rows, &err), &err);
    atomic_store(&v->whole, true);
    atomic_store(&v->in_windows, in_windows);
    must(tn_session_see(s, &v, 1, &err), &err);
    free(rows);
    return v;
}

/* A text of n tokens with the view after the first `before`. */
static void text_with(const tn_seen *v, int32_t before, int32_t n, int32_t *ids) {
    for (int32_t i = 0; i < n; i++) ids[i] = prompt[i % N];
    for (int32_t i = 0; i < v->n; i++) ids[before + i] = v->first + i;
}

/* A text that is one picture. Its rows are those of a model that reads texts as a whole
 * (tests/model/bidirectional.c compares that one with double precision). */
static void pictures_alone(void **state) {
    (void)state;
    const int32_t lengths[] = {24, 31}; /* within half a window of the sliding layers */
    for (int m = 0; m < 2; m++) {
        for (int k = 0; k < 2; k++) {
            const int32_t n = lengths[k];
            tern_error err;
            tern_engine *e = fixture_engine(gemma3[m], NULL), *f = fixture_engine(gemma3[m], NULL);
            const size_t width = (size_t)e->model->h.n_embd;
            tern_session *s = fixture_session(e, CTX, NULL), *t = fixture_session(f, CTX, NULL);
            free(fixture_logits(s, prompt, N)); /* loads what a package reads first */
            must(tern_session_truncate(s, 0, &err), &err);
            tn_seen *v = view(s, n, false);
            float *got = malloc((size_t)n * width * sizeof *got);
            int32_t ids[CTX];
            text_with(v, 0, n, ids);
            must(tern_session_prefill(s, ids, (size_t)n, &err), &err);
            for (int32_t i = 0; i < n; i++)
                memcpy(got + (size_t)i * width, tn_session_row(s, i), width * sizeof *got);
            free(fixture_logits(t, prompt, N));
            must(tern_session_truncate(t, 0, &err), &err);
            f->model->h.bidirectional = true;
            must(tn_session_append(t, prompt, (size_t)n, NULL, &err), &err);
            for (int32_t i = 0; i < n; i++)
                assert_memory_equal(got + (size_t)i * width, tn_session_row(t, i), width * sizeof *got);
            f->model->h.bidirectional = false;
            free(got);
            tn_sight_let_go(e, v);
            tern_session_close(&s);
            tern_session_close(&t);
            tern_engine_close(&e);
            tern_engine_close(&f);
        }
    }
}

/* The logits after a text that comes in pieces of `step` tokens, or as many as there are in front of the
 * picture, with it, and after it. */
static float *in_pieces(tern_session *s, const int32_t *ids, int32_t n, const tn_seen *v, int32_t before,
                        int32_t step) {
    tern_error err;
    must(tern_session_truncate(s, 0, &err), &err);
    for (int32_t at = step; at < n; at += step) {
        const int32_t end = at <= before ? at : at < before + v->n ? before + v->n : at;
        must(tern_session_prefill(s, ids, (size_t)end, &err), &err);
    }
    return fixture_logits(s, ids, n);
}

/* Pictures as long as a chunk at most, at the beginning of the text, across the ends of chunks, and at its end. */
static void anywhere_among_chunks(void **state) {
    (void)state;
    static const struct {
        int32_t before, n_rows, n;
    } at[] = {{0, 24, 60},    {3, 256, 300},   {16, 256, 272},  {240, 24, 284},  {247, 24, 291},
              {254, 24, 298}, {300, 256, 900}, {511, 100, 911}, {700, 256, 956}, {768, 200, 1000}};
    const char *const paths[] = {gemma3[0], gemma3[1], gemma4[0], gemma4[1]};
    const int32_t by = getenv("TERN_TEST_QUICK") ? CTX : 137;
    for (int m = 0; m < 4; m++) {
        tern_engine *e = fixture_engine(paths[m], NULL);
        const size_t bytes = (size_t)e->model->h.n_vocab * sizeof(float);
        tern_session *s = fixture_session(e, CTX, NULL);
        free(fixture_logits(s, prompt, N)); /* loads what a package reads first */
        for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
            const int32_t before = at[k].before, n = at[k].n;
            int32_t ids[CTX];
            tern_error err;
            tn_seen *v = view(s, at[k].n_rows, m >= 2);
            text_with(v, before, n, ids);
            float *whole = in_pieces(s, ids, n, v, before, n);
            for (int32_t step = before ? before : 7; step < n; step += by) {
                float *pieces = in_pieces(s, ids, n, v, before, step);
                assert_memory_equal(pieces, whole, bytes);
                free(pieces);
            }
            atomic_store(&v->whole, false);
            must(tn_session_see(s, &v, 1, &err), &err);
            float *in_order = in_pieces(s, ids, n, v, before, n);
            assert_memory_not_equal(in_order, whole, bytes);
            free(whole), free(in_order);
            tn_sight_let_go(e, v);
        }
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

/* A package's answer is near its file's, and nearer than to what the file says of rows that see only what
 * came before. */
static void packages_see_what_files_see(void **state) {
    (void)state;
    enum { BEFORE = 200, ROWS = 256, TEXT = 470 };
    for (int m = 0; m < 2; m++) {
        const char *const *paths =
            (const char *const[]){m ? gemma4[0] : gemma3[0], m ? gemma4[1] : gemma3[1]};
        float *logits[3]; /* the file's, the package's, the file's one after another */
        int32_t ids[CTX], n_vocab = 0;
        for (int k = 0; k < 3; k++) {
            tern_engine *e = fixture_engine(paths[k % 2], NULL);
            tern_session *s = fixture_session(e, CTX, NULL);
            free(fixture_logits(s, prompt, N)); /* loads what a package reads first */
            tn_seen *v = view(s, ROWS, m);
            tern_error err;
            atomic_store(&v->whole, k < 2);
            must(tn_session_see(s, &v, 1, &err), &err);
            text_with(v, BEFORE, TEXT, ids);
            logits[k] = fixture_logits(s, ids, TEXT);
            n_vocab = e->model->h.n_vocab;
            tn_sight_let_go(e, v);
            tern_session_close(&s);
            tern_engine_close(&e);
        }
        double near = 0, far = 0;
        for (int32_t i = 0; i < n_vocab; i++) {
            near += (logits[1][i] - logits[0][i]) * (logits[1][i] - logits[0][i]);
            far += (logits[1][i] - logits[2][i]) * (logits[1][i] - logits[2][i]);
        }
        print_message("%s: %.3g of the distance\n", paths[0], near / far);
        assert_true(near < .25 * far);
        for (int k = 0; k < 3; k++) free(logits[k]);
    }
}

/* A picture attends in full, although other chunks that end so late attend sparsely. */
static void in_full_among_sparse_chunks(void **state) {
    (void)state;
    enum { BEFORE = 300, ROWS = 256, TEXT = 800 };
    const char *const paths[] = {gemma3[0], gemma3[1], gemma4[1]};
    for (int m = 0; m < 3; m++) {
        float
            *logits[2]
                   [2]; /* in full, and sparsely from the picture's rows on: after it, and after more text */
        size_t bytes = 0;
        for (int sparse = 0; sparse < 2; sparse++) {
            tern_options o;
            int32_t ids[CTX];
            tn_options_defaults(&o);
            o.attention = sparse ? "shadow" : "full";
            o.attention_threshold = sparse ? BEFORE + 1 : 0;
            tern_engine *e = fixture_engine(paths[m], &o);
            tern_session *s = fixture_session(e, CTX, NULL);
            free(fixture_logits(s, prompt, N)); /* loads what a package reads first */
            tn_seen *v = view(s, ROWS, m == 2);
            text_with(v, BEFORE, TEXT, ids);
            logits[sparse][0] = fixture_logits(s, ids, BEFORE + ROWS);
            logits[sparse][1] = fixture_logits(s, ids, TEXT);
            bytes = (size_t)e->model->h.n_vocab * sizeof(float);
            tn_sight_let_go(e, v);
            tern_session_close(&s);
            tern_engine_close(&e);
        }
        assert_memory_equal(logits[1][0], logits[0][0], bytes);
        if (m)
            assert_memory_not_equal(logits[1][1], logits[0][1],
                                    bytes); /* files begin when they are quantised */
        for (int i = 0; i < 4; i++) free(logits[i / 2][i % 2]);
    }
}

/* Chunks that were measured as quicker, but are too short for a picture, are for models whose pictures need
 * no whole one. */
static void measured_chunks_hold_pictures(void **state) {
    (void)state;
    const struct {
        const char *path;
        int32_t chunk;
    } wants[] = {{gemma3[1], 256}, {gemma4[1], 256}, {llama, 128}};
    for (int i = 0; i < 3; i++) {
        char key[40], profile[FIXTURE_PATH + 16], text[200];
        tern_engine *e = fixture_engine(wants[i].path, NULL);
        tn_tuned_key(e->kern.cpu, e->n_lane_workers, key);
        const int n = snprintf(text, sizeof text,
                               "{\"tuned\": {\"key\": \"%s\", \"fingerprint\": \"%016llx\", \"chunk\": 128}}",
                               key, (unsigned long long)e->npu->model->fingerprint);
        tern_engine_close(&e);
        assert_true(tn_tuned_path(wants[i].path, profile, sizeof profile));
        fixture_write(profile, text, (size_t)n);
        e = fixture_engine(wants[i].path, NULL);
        assert_int_equal(e->npu->chunk, wants[i].chunk);
        tern_engine_close(&e);
        assert_int_equal(remove(profile), 0);
    }
}

/* What is no whole picture is told, or read in order. */
static void parts_of_pictures(void **state) {
    (void)state;
    for (int m = 0; m < 2; m++) {
        tern_engine *e = fixture_engine(gemma3[m], NULL);
        tern_session *s = fixture_session(e, CTX, NULL);
        tern_error err;
        int32_t ids[CTX];
        free(fixture_logits(s, prompt, N)); /* loads what a package reads first */
        must(tern_session_truncate(s, 0, &err), &err);
        tn_seen *v = view(s, 24, false);
        text_with(v, 240, 284, ids);
        assert_int_equal(tern_session_prefill(s, ids, 243, &err), TERN_E_INVALID);
        assert_non_null(strstr(err.message, "ends within a picture: 21 rows are missing"));
        for (int32_t i = 0; i < 24; i++) ids[i] = v->first + (i < 2 ? 1 - i : i); /* two in the wrong order */
        must(tern_session_prefill(s, ids, 24, &err), &err);
        const tn_extra_span span = {.first = v->first, .n = 24, .whole = true};
        const tn_extra_rows rows = {.first = v->first, .n = 1, .spans = &span};
        tn_row_picture of[24];
        assert_true(tn_rows_pictures(&rows, ids, 24, 0, of));
        assert_int_equal(of[0].end, 0); /* it would begin in front of the text */
        assert_int_equal(of[1].end, 0); /* it would end after it */
        assert_int_equal(of[2].end, 24);
        tn_sight_let_go(e, v);
        v = view(s, 257, false); /* longer than a chunk */
        text_with(v, 3, 300, ids);
        assert_int_equal(tern_session_prefill(s, ids, 300, &err), TERN_E_LIMIT);
        assert_non_null(
            strstr(err.message, "a picture has 257 rows that see each other, and 256 are read at once"));
        tn_sight_let_go(e, v);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

/* Rows of larger ones see their picture in layers with a window alone, where later rows are within it. */
static void pictures_in_windows(void **state) {
    (void)state;
    enum { ROWS = 80, TEXT = 130 }; /* a picture is longer than the window, 64 */
    tern_error err;
    tern_engine *e = fixture_engine(gemma4[0], NULL);
    tn_hparams *h = &e->model->h;
    const size_t bytes = (size_t)h->n_vocab * sizeof(float);
    int32_t pos[TEXT], first, end, n_windows = 0;
    tn_row_picture of[TEXT] = {{0}};
    for (int32_t i = 0; i < TEXT; i++) pos[i] = i;
    for (int32_t i = 20; i < 20 + ROWS; i++) of[i] = (tn_row_picture){20, 20 + ROWS, true};
    const tn_rows r = {.h = h, .pos = pos, .n_rows = TEXT, .picture = of};
    for (int layer = 0; layer < h->n_layers; layer++) {
        const int32_t window = tn_layer_window(h, layer);
        n_windows += window > 0;
        tn_rows_seen(&r, layer, 90, &first, &end);
        assert_int_equal(first, window ? 90 - window + 1 : 0);
        assert_int_equal(end, window ? 20 + ROWS : 91);
        tn_rows_seen(&r, layer, 110, &first, &end);
        assert_int_equal(end, 111);
    }
    assert_true(n_windows > 0 && n_windows < h->n_layers);
    tern_session *s = fixture_session(e, 256, NULL);
    const uint8_t key[TN_VIEW_KEY] = {1};
    tn_seen *v;
    int32_t ids[TEXT];
    float *rows = fixture_embeddings(e, prompt, ROWS), *got[3];
    must(tn_sight_view(e, key, ROWS, &v, &err), &err);
    must(tn_sight_give(e, v, rows, &err), &err);
    for (int32_t i = 0; i < TEXT; i++) ids[i] = prompt[i % N];
    for (int32_t i = 0; i < ROWS; i++) ids[20 + i] = v->first + i;
    for (int k = 0; k < 3; k++) { /* one after another; seeing each other; the same in pieces */
        atomic_store(&v->whole, k > 0);
        atomic_store(&v->in_windows, k > 0);
        must(tn_session_see(s, &v, 1, &err), &err);
        must(tern_session_truncate(s, 0, &err), &err);
        if (k == 2) free(fixture_logits(s, ids, 20));
        got[k] = fixture_logits(s, ids, TEXT);
    }
    assert_memory_not_equal(got[0], got[1], bytes);
    assert_memory_equal(got[2], got[1], bytes);
    for (int k = 0; k < 3; k++) free(got[k]);
    free(rows);
    tn_sight_let_go(e, v);
    tern_session_close(&s);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_alone),
        cmocka_unit_test(anywhere_among_chunks),
        cmocka_unit_test(packages_see_what_files_see),
        cmocka_unit_test(in_full_among_sparse_chunks),
        cmocka_unit_test(measured_chunks_hold_pictures),
        cmocka_unit_test(parts_of_pictures),
        cmocka_unit_test(pictures_in_windows),
    };
    return cmocka_run_group_tests(tests, make_models, NULL);
}
