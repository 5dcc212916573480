/* Rows of a picture in a session's text. Rows that are embeddings of tokens must give the bits of these tokens, in files,
 * packages and blocks, in whatever pieces; pictures are told apart by their content alone; drafts, penalties and saved
 * sessions go with them; and rows leave memory when nobody needs them. */
#include "session/pictures.h"
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { N = 90, FIRST = 11, N_ROWS = 40, N_MODELS = 3, CTX = 1024 };

static char models[N_MODELS + 1][FIXTURE_PATH];
static int32_t prompt[N];

static int make_models(void **state) {
    (void)state;
    char gguf[FIXTURE_PATH];
    fixture_both(models[0], models[1], 0, "tiny-llama", 3, TN_F32, NULL);
    fixture_both(models[2], gguf, 1, "tiny-qwen3", 3, TN_Q8_0, NULL);
    fixture_model(models[3], "ple.gguf", "tiny-gemma3n", 3, TN_F32);
    fixture_prompt(prompt, N);
    return 0;
}

/* The prompt with a view of that key in place of tokens, which the session is told of. */
static tn_seen *with_rows(tern_session *s, uint8_t name, const float *rows, int32_t *ids) {
    uint8_t key[TN_VIEW_KEY] = {name};
    tn_seen *v;
    tern_error err;
    must(tn_sight_view(s->e, key, N_ROWS, &v, &err), &err);
    must(tn_sight_give(s->e, v, rows, &err), &err);
    must(tn_session_see(s, &v, 1, &err), &err);
    memcpy(ids, prompt, sizeof prompt);
    for (int32_t i = 0; i < N_ROWS; i++) ids[FIRST + i] = v->first + i;
    tn_sight_let_go(s->e, v); /* the session holds it */
    return v;
}

static void embeddings_are_tokens(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        tern_engine *e = fixture_engine(models[m], NULL);
        tern_session *s = fixture_session(e, 128, NULL), *t = fixture_session(e, 128, NULL);
        size_t bytes = (size_t)e->model->h.n_vocab * sizeof(float);
        int32_t ids[N];
        float *want = fixture_logits(s, prompt, N); /* loads what a package reads first */
        float *rows = fixture_embeddings(e, prompt + FIRST, N_ROWS);
        with_rows(t, 1, rows, ids);
        float *got = fixture_logits(t, ids, N);
        assert_memory_equal(got, want, bytes);
        free(got);
        tern_error err;
        must(tern_session_truncate(t, 0, &err), &err);
        free(fixture_logits(t, ids, FIRST + 7)); /* a cut inside the picture, then the rest */
        got = fixture_logits(t, ids, N);
        assert_memory_equal(got, want, bytes);
        assert_int_equal(t->n_known, FIRST + 7);
        free(got), free(want), free(rows);
        tern_session_close(&s);
        tern_session_close(&t);
        tern_engine_close(&e);
    }
}

static void pictures_are_told_apart(void **state) {
    (void)state;
    tern_engine *e = fixture_engine(models[0], NULL);
    tern_session *s = fixture_session(e, 128, NULL), *t = fixture_session(e, 128, NULL);
    size_t bytes = (size_t)e->model->h.n_vocab * sizeof(float);
    int32_t a[N], b[N], again[N], copied[N];
    tern_error err;
    float *rows = fixture_embeddings(e, prompt, N_ROWS), *others = fixture_embeddings(e, prompt + 20, N_ROWS);
    with_rows(s, 1, rows, a);
    float *la = fixture_logits(s, a, N);
    with_rows(s, 2, others, b);
    float *lb = fixture_logits(s, b, N);
    assert_int_equal(s->n_known, FIRST); /* up to the picture */
    assert_memory_not_equal(la, lb, bytes);
    with_rows(s, 1, rows, again);
    assert_memory_equal(a, again, sizeof a);
    with_rows(t, 2, others, copied); /* another session of the engine has the same ids */
    assert_memory_equal(copied, b, sizeof b);
    float *alone = fixture_logits(t, copied, N);
    assert_memory_equal(alone, lb, bytes);
    free(alone);
    /* a copy has its pictures */
    must(tern_session_copy(t, s, &err), &err);
    float *after = fixture_logits(t, a, N);
    assert_memory_equal(after, la, bytes);
    assert_int_equal(t->n_known, FIRST);
    /* an id of no picture, and one of a picture that the session was not told of */
    assert_int_equal(tern_session_prefill(t, b, N, &err), TERN_E_INVALID);
    a[0] = INT32_MAX;
    assert_int_equal(tern_session_prefill(s, a, N, &err), TERN_E_INVALID);
    must(tn_session_see(s, NULL, 0, &err), &err);
    assert_int_equal(tern_session_prefill(s, again, N, &err), TERN_E_INVALID);
    free(la), free(lb), free(after), free(rows), free(others);
    tern_session_close(&s);
    tern_session_close(&t);
    tern_engine_close(&e);
}

/* Drafts and penalties read texts with pictures: the answer is the same with any of them. */
static void drafted_texts_are_the_same(void **state) {
    (void)state;
    static const char *const drafts[] = {"all", "lookup", "none"};
    uint64_t n_drafted = 0;
    for (int m = 0; m < N_MODELS; m++) {
        tern_engine *e = fixture_engine(models[m], NULL);
        int32_t want[128], n_want = 0, ids[N];
        tern_session *first = fixture_session(e, 128, NULL);
        free(fixture_logits(first, prompt, N)); /* loads what a package reads first */
        tern_session_close(&first);
        float *rows = fixture_embeddings(e, prompt + FIRST, N_ROWS);
        for (int d = 2; d >= 0; d--) {
            tern_session *s = fixture_session(e, 128, drafts[d]);
            tern_error err;
            tern_generate_options g;
            tern_generate_result res;
            tern_generate_options_defaults(&g);
            g.max_tokens = 30;
            g.ignore_end = g.draft_eager = true;
            g.sampling.temperature = 0;
            g.sampling.repeat_penalty = d ? 1 : 1.01f;
            g.sampling.repeat_last_n = -1; /* the picture is within */
            with_rows(s, 1, rows, ids);
            must(tern_session_prefill(s, ids, N, &err), &err);
            must(tern_session_generate(s, &g, &res, &err), &err);
            if (d == 2) memcpy(want, s->tokens, (size_t)(n_want = s->n_tok) * sizeof *want);
            if (d == 1) {
                assert_int_equal(s->n_tok, n_want);
                assert_memory_equal(s->tokens, want, (size_t)n_want * sizeof *want);
            }
            n_drafted += s->drafting.n_rows - s->drafting.n_steps;
            tern_session_close(&s);
        }
        free(rows);
        tern_engine_close(&e);
    }
    assert_true(n_drafted > 0);
}

/* A saved session with a picture goes on in another process, whose ids are others. */
static void saved_ones_go_on(void **state) {
    (void)state;
    static fixture_saved x;
    for (int m = 0; m < N_MODELS; m++) {
        int32_t ids[N + 1], others[N];
        tern_error err;
        tern_engine *e = fixture_engine(models[m], NULL), *f = fixture_engine(models[m], NULL);
        tern_session *s = fixture_session(e, 128, NULL), *t = fixture_session(f, 128, NULL);
        free(fixture_logits(s, prompt, N));
        float *rows = fixture_embeddings(e, prompt + FIRST, N_ROWS),
              *more = fixture_embeddings(e, prompt + 3, N_ROWS);
        with_rows(s, 1, rows, ids);
        free(fixture_logits(s, ids, N));
        fixture_save(s, &x);
        ids[N] = 7;
        float *want = fixture_logits(s, ids, N + 1);
        with_rows(t, 2, more, others); /* takes the first ids there */
        must(tern_session_load_from(t, x.bytes, x.n, &err), &err);
        assert_int_not_equal(t->tokens[FIRST], ids[FIRST]);
        with_rows(t, 1, rows, ids);
        float *got = fixture_logits(t, ids, N + 1);
        assert_int_equal(t->n_known, N);
        assert_memory_equal(got, want, (size_t)e->model->h.n_vocab * sizeof *got);
        /* every byte matters, and nothing that is damaged is taken */
        for (size_t at = 0; at < x.n; at += at < 400 ? 1 : 997) {
            x.bytes[at] ^= 0x20;
            assert_int_not_equal(tern_session_load_from(t, x.bytes, x.n, &err), TERN_OK);
            x.bytes[at] ^= 0x20;
        }
        for (size_t n = 0; n < 300 && n < x.n; n++)
            assert_int_not_equal(tern_session_load_from(t, x.bytes, n, &err), TERN_OK);
        free(got), free(want), free(rows), free(more);
        tern_session_close(&s);
        tern_session_close(&t);
        tern_engine_close(&e);
        tern_engine_close(&f);
    }
}

/* What nobody holds leaves memory when there is no room, the oldest first; what is held stays. */
static void rows_leave_memory(void **state) {
    (void)state;
    tern_options *o;
    tern_error err;
    must(tern_options_new(&o, &err), &err);
    tern_engine *e = fixture_engine(models[0], NULL);
    const size_t one = N_ROWS * (size_t)e->model->h.n_embd * sizeof(float);
    tern_engine_close(&e);
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%zu", 2 * one);
    must(tern_options_set(o, "picture-memory", bytes, &err), &err);
    e = fixture_engine(models[0], o);
    tern_session *s = fixture_session(e, 128, NULL);
    int32_t ids[N];
    float *rows = fixture_embeddings(e, prompt, N_ROWS);
    const tn_seen *first = with_rows(s, 1, rows, ids);
    tn_seen *v[4];
    for (uint8_t i = 0; i < 4; i++) {
        const uint8_t key[TN_VIEW_KEY] = {(uint8_t)(i + 2)};
        must(tn_sight_view(e, key, N_ROWS, &v[i], &err), &err);
        must(tn_sight_give(e, v[i], rows, &err), &err);
        tn_sight_let_go(e, v[i]);
        assert_true(tn_sight_count(e).row_bytes <= 2 * one);
    }
    assert_non_null(first->x); /* the session's */
    assert_null(v[0]->x);
    assert_null(v[2]->x);
    assert_non_null(v[3]->x);
    free(fixture_logits(s, ids, N));
    free(rows);
    tern_session_close(&s);
    tern_engine_close(&e);
    tern_options_free(&o);
}

/* What a program of tern.h does: a prompt with pixels, encoded once, and the same ids for the same picture. */
static void looks(const char *model, const char *encoder, size_t at_least) {
    char path[FIXTURE_PATH], tower[FIXTURE_PATH];
    tern_error err;
    fixture_model(path, "sees.gguf", model, 1, TN_F32);
    fixture_tower(tower, "mmproj-sees.gguf", encoder, 1, TN_F32);
    tern_engine *e = fixture_engine(path, NULL);
    tern_session *s = fixture_session(e, CTX, NULL), *t = fixture_session(e, CTX, NULL);
    uint8_t rgb[2][40 * 30 * 3];
    for (size_t i = 0; i < sizeof rgb[0]; i++) rgb[0][i] = (uint8_t)(i * 7), rgb[1][i] = (uint8_t)(i * 11);
    const tern_image images[] = {{40, 30, rgb[0]}, {40, 30, rgb[1]}};
    const tern_message msgs[] = {{"system", "Be brief."}, {"user", "what?"}};
    int32_t ids[CTX], again[CTX];
    size_t n, n_again;
    assert_true(tern_engine_sees(e));
    assert_int_equal(tern_session_look(s, msgs, 2, NULL, images, 1, ids, 4, &n, &err), TERN_E_LIMIT);
    assert_true(n > at_least && n < CTX);
    assert_int_equal(tn_sight_count(e).encoded, 0); /* what does not fit is not encoded */
    must(tern_session_look(s, msgs, 2, NULL, images, 1, ids, CTX, &n, &err), &err);
    must(tern_session_prefill(s, ids, n, &err), &err);
    const uint64_t encoded = tn_sight_count(e).encoded;
    assert_true(encoded > 0);
    must(tern_session_look(t, msgs, 2, NULL, images, 1, again, CTX, &n_again, &err), &err);
    assert_int_equal(n_again, n);
    assert_memory_equal(again, ids, n * sizeof *ids);
    must(tern_session_prefill(t, again, n, &err), &err);
    assert_memory_equal(tern_session_logits(s), tern_session_logits(t),
                        (size_t)e->model->h.n_vocab * sizeof(float));
    assert_int_equal(tn_sight_count(e).encoded, encoded);
    must(tern_session_look(t, msgs, 2, NULL, images + 1, 1, again, CTX, &n_again, &err), &err);
    assert_memory_not_equal(again, ids, n * sizeof *ids);
    must(tern_session_look(t, msgs, 2, NULL, NULL, 0, again, CTX, &n_again, &err), &err); /* none */
    must(tern_chat_tokens(e, msgs, 2, NULL, ids, CTX, &n, &err), &err);
    assert_true(n > 4);
    assert_int_equal(n, n_again);
    assert_memory_equal(ids, again, n * sizeof *ids);
    tern_chat_options o;
    tern_chat_options_defaults(&o);
    o.messages = "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"},{\"type\":\"image\"},"
                 "{\"type\":\"text\",\"text\":\"both?\"}]}]";
    must(tern_session_look(t, NULL, 0, &o, images, 2, again, CTX, &n_again, &err), &err);
    must(tern_session_prefill(t, again, n_again, &err), &err);
    assert_int_equal(tern_session_look(t, NULL, 0, &o, images, 1, again, CTX, &n_again, &err),
                     TERN_E_INVALID);
    const tern_image none = {0, 3, rgb[0]}, huge = {65535, 65535, rgb[0]};
    assert_int_equal(tern_session_look(t, msgs, 2, NULL, &none, 1, again, CTX, &n_again, &err),
                     TERN_E_INVALID);
    assert_int_equal(tern_session_look(t, msgs, 2, NULL, &huge, 1, again, CTX, &n_again, &err), TERN_E_LIMIT);
    tern_session_close(&s);
    tern_session_close(&t);
    tern_engine_close(&e);
}

/* ---- pauses ------------------------------------------------------------------------------------------- */

typedef struct urgent {
    tern_engine *e;
    const tn_picture *picture;
    int asked, n_run;
} urgent;

static bool always(void *user) {
    urgent *u = user;
    u->asked++;
    return true;
}

/* What goes first looks at a picture too, and wants the encoder to leave memory. */
static void look_first(void *user) {
    urgent *u = user;
    tn_look *l;
    tern_error err;
    u->n_run++;
    must(tn_look_at(u->e, u->picture, false, &l, &err), &err);
    for (bool more = true; more;) must(tn_look_encode(l, NULL, &more, &err), &err);
    tn_look_close(&l);
    tn_sight_rest(u->e);
}

/* Between two layers a view lets others go first, who may encode themselves, and goes on to the same bits. */
static void views_let_others_go_first(void **state) {
    (void)state;
    enum { LAYERS = 2 };
    static uint8_t rgb[2][32 * 32 * 3];
    char path[FIXTURE_PATH], tower[FIXTURE_PATH];
    tern_error err;
    float *rows[2];
    size_t n = 0;
    fixture_model(path, "sees.gguf", "tiny-llama+sees", 1, TN_F32);
    fixture_tower(tower, "mmproj-sees.gguf", "tiny-smolvlm-mmproj", 1, TN_F32);
    for (size_t i = 0; i < sizeof rgb[0]; i++) rgb[0][i] = (uint8_t)(i * 13), rgb[1][i] = (uint8_t)(i * 17);
    const tn_picture pictures[] = {{.width = 32, .height = 32, .rgb = rgb[0]},
                                   {.width = 32, .height = 32, .rgb = rgb[1]}};
    for (int paused = 0; paused < 2; paused++) {
        tern_engine *e = fixture_engine(path, NULL);
        urgent u = {.e = e, .picture = &pictures[1]};
        const tn_pause pause = {.wanted = always, .run = look_first, .user = &u};
        tn_look *l;
        int n_views = 0;
        must(tn_look_at(e, &pictures[0], true, &l, &err), &err);
        if (paused) l->pause = &pause;
        for (bool more = true; more; n_views++) must(tn_look_encode(l, NULL, &more, &err), &err);
        assert_int_equal(n_views, 1);
        assert_int_equal(u.n_run, paused ? LAYERS : 0);
        assert_int_equal(u.asked, u.n_run);
        n = (size_t)l->n_rows * tn_sight_row_width(e);
        rows[paused] = malloc(n * sizeof(float));
        memcpy(rows[paused], atomic_load(&l->views[0]->x), n * sizeof(float));
        tn_look_close(&l);
        tern_engine_close(&e);
    }
    assert_true(n > 0);
    assert_memory_equal(rows[0], rows[1], n * sizeof(float));
    free(rows[0]), free(rows[1]);
}

static void by_the_public_interface(void **state) {
    (void)state;
    looks("tiny-llama+sees", "tiny-smolvlm-mmproj", 16);
    looks("tiny-lfm2+sees", "tiny-lfm2vl-mmproj", 64);
    looks("tiny-qwen2+sees", "tiny-internvl-mmproj", 9);
    looks("tiny-gemma4+sees", "tiny-gemma4-mmproj", 200);
    looks("tiny-gemma4+dense+sees", "tiny-gemma4-31b-mmproj", 265); /* more than 256 are read at once */
    looks("tiny-qwen3vl+sees", "tiny-qwen3vl-mmproj", 256); /* 65,536 pixels at least, of 16 x 16 a row */
}

/* Rows of Gemma 4 that are embeddings of its padding are that token, whose embeddings for layers they have. */
static void rows_have_the_paddings_layers(void **state) {
    (void)state;
    char paths[2][FIXTURE_PATH];
    fixture_both(paths[0], paths[1], 4, "tiny-gemma4", 3, TN_F32, NULL);
    for (int m = 0; m < 2; m++) {
        tern_engine *e = fixture_engine(paths[m], NULL);
        tern_session *s = fixture_session(e, 128, NULL), *t = fixture_session(e, 128, NULL);
        int32_t ids[N], plain[N], padding[N_ROWS] = {0};
        memcpy(plain, prompt, sizeof plain);
        memcpy(plain + FIRST, padding, sizeof padding);
        float *want = fixture_logits(s, plain, N), *rows = fixture_embeddings(e, padding, N_ROWS);
        for (size_t i = 0; i < (size_t)N_ROWS * (size_t)e->model->h.n_embd; i++)
            rows[i] *= e->model->h.embd_scale;
        with_rows(t, 1, rows, ids);
        float *got = fixture_logits(t, ids, N);
        assert_memory_equal(got, want, (size_t)e->model->h.n_vocab * sizeof(float));
        free(got), free(want), free(rows);
        tern_session_close(&s);
        tern_session_close(&t);
        tern_engine_close(&e);
    }
}

static void other_models_say_so(void **state) {
    (void)state;
    tern_engine *e = fixture_engine(models[3], NULL);
    const tn_tower_shape *shape;
    tern_error err;
    assert_false(tn_sight_can(e, &err));
    assert_non_null(strstr(err.message, "takes no rows of pictures"));
    assert_int_equal(tn_sight_shape(e, &shape, &err), TERN_E_UNSUPPORTED);
    tern_engine_close(&e);
    e = fixture_engine(models[0], NULL);
    assert_int_equal(tn_sight_shape(e, &shape, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "has no picture encoder beside it"));
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_are_tokens),      cmocka_unit_test(pictures_are_told_apart),
        cmocka_unit_test(drafted_texts_are_the_same), cmocka_unit_test(saved_ones_go_on),
        cmocka_unit_test(rows_leave_memory),          cmocka_unit_test(rows_have_the_paddings_layers),
        cmocka_unit_test(other_models_say_so), /* before there is an encoder */
        cmocka_unit_test(views_let_others_go_first),  cmocka_unit_test(by_the_public_interface),
    };
    return cmocka_run_group_tests(tests, make_models, NULL);
}
