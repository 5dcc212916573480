/* Heads that draft for a model (EAGLE-3): do they draft what the float64 reference says, from folders and from GGUF, however the
 * text came? Is a head that knows the model taken for many tokens a forward, and one that knows nothing soon left alone, with
 * the same text? Are heads of other models refused, and found where they lie? */
#include "draft/draft.h"
#include "engine/head.h"
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"
#include "fixture/guesses.h"
#include "fixture/heads.h"

#define FIXTURES TN_SOURCE_DIR "/tests/oracle/fixtures/heads/"

static guesses vectors;

static void as_the_reference(void **state) {
    (void)state;
    static const char *const heads[] = {"eagle3", "eagle3-wide", "eagle3-bare"};
    for (int i = 0; i < 12; i++) { /* the model and the head, each as a folder and as GGUF */
        char folder[400], head[410], name[100];
        const char *model = i & 1 ? FIXTURES "model.gguf" : FIXTURES "model";
        snprintf(folder, sizeof folder, FIXTURES "%s", heads[i / 4]);
        snprintf(head, sizeof head, "%s%s", folder, i & 2 ? ".gguf" : "");
        snprintf(name, sizeof name, "%s, %s", strrchr(model, '/') + 1, strrchr(head, '/') + 1);
        guesses_read(&vectors, folder);
        tern_engine *e = heads_open(model, head, "float", NULL);
        tern_session *s = fixture_session(e, 80, "head");
        guesses_compare_all(&vectors, s, s->drafting.head, name);
        assert_int_equal(e->head->h.head.n_vocab, vectors.n_known);
        assert_memory_equal(e->head_ids, vectors.known, vectors.n_known * sizeof *vectors.known);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

static void together(void **state) {
    (void)state;
    heads_draft_together(&vectors, FIXTURES "model", FIXTURES "eagle3");
}

/* A copied text brings what the head knows of it, a loaded one does not. */
static void copied_and_loaded(void **state) {
    (void)state;
    guesses_read(&vectors, FIXTURES "eagle3-wide");
    tern_engine *e = heads_open(FIXTURES "model", FIXTURES "eagle3-wide", "float", NULL);
    tern_session *s = fixture_session(e, 80, "head"), *other = fixture_session(e, 80, "head");
    tern_error err = {0};
    char path[FIXTURE_PATH];
    fixture_file(path, "saved");
    const int32_t longest = vectors.pos[vectors.n_pos - 1] + 1;
    for (size_t i = 0; i < vectors.n_pos; i++) {
        const int32_t n = vectors.pos[i] + 1;
        for (int whole = 0; whole < 2; whole++) { /* of this text, and of one that goes on */
            must(tern_session_truncate(s, 0, &err), &err);
            must(tern_session_prefill(s, vectors.ids, (size_t)(whole ? longest : n), &err), &err);
            must(tern_session_prefill(other, vectors.ids + 3, 20, &err), &err); /* what lay there */
            must(tn_session_copy(other, s, n, &err), &err);
            if (!whole || n > TN_TREE_MAX)
                guesses_compare(&vectors, other->drafting.head, i, "copied", "eagle3-wide"); /* those wait */
            else assert_null(tn_mtp_logits(other->drafting.head, 1, 0));
        }
    }
    /* one that came before is not known, and no longer in the way */
    must(tern_session_truncate(s, 0, &err), &err);
    must(tern_session_prefill(s, vectors.ids, 20, &err), &err);
    must(tern_session_save(s, path, &err), &err);
    must(tern_session_prefill(other, vectors.ids + 3, 20, &err), &err);
    must(tern_session_load(other, path, &err), &err);
    assert_null(tn_mtp_logits(other->drafting.head, 1, 0));
    must(tern_session_step(other, vectors.ids[20], &err), &err);
    assert_non_null(tn_mtp_logits(other->drafting.head, 1, 0));
    tern_session_close(&other);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* ---- what they bring -------------------------------------------------------------------------------- */

static void many_tokens_a_forward(void **state) {
    (void)state;
    char package[FIXTURE_PATH];
    fixture_package(package, "chain.tern", FIXTURES "chain.gguf", NULL);
    heads_know_the_model(FIXTURES "chain.gguf", FIXTURES "chain-eagle3.gguf");
    heads_know_the_model(package, FIXTURES "chain-eagle3.gguf");
}

/* Where drafts are wrong they are soon no longer made, and no forward is more than one token's. */
static void left_alone_where_wrong(void **state) {
    (void)state;
    enum { N = 500 };
    guesses_read(&vectors, FIXTURES "eagle3");
    tern_engine *e = heads_open(FIXTURES "model.gguf", FIXTURES "eagle3.gguf", NULL, NULL);
    tern_session *s = fixture_session(e, 600, "head"), *without = fixture_session(e, 600, "none");
    assert_in_range(heads_know_nothing(s, without, vectors.ids, N, 5), 1, 3 * N / 10);
    tern_session_close(&s);
    tern_session_close(&without);
    tern_engine_close(&e);
}

/* ---- files ------------------------------------------------------------------------------------------ */

#define MODEL FIXTURES "model.gguf"
#define HEAD FIXTURES "eagle3.gguf"
#define WIDE FIXTURES "eagle3-wide.gguf"
#define U32(key) key "\4\0\0\0"
#define CHANGED HEADS_CHANGED

static void of_another_model(void **state) {
    (void)state;
    char other[FIXTURE_PATH];
    heads_refused(MODEL, FIXTURES "chain-eagle3.gguf", "it reads layers 64 values wide, this model's are 32");
    heads_refused(FIXTURES "chain.gguf", HEAD, "it reads layers 32 values wide, this model's are 64");
    fixture_llama(other, "other.gguf", 3);
    heads_refused(other, HEAD, "a head of another model");
    heads_refused(MODEL,
                  CHANGED(WIDE, "target_layers\11\0\0\0\4\0\0\0\3\0\0\0\0\0\0\0\1\0\0\0\3\0\0\0\5\0\0\0",
                          "target_layers\11\0\0\0\4\0\0\0\3\0\0\0\0\0\0\0\1\0\0\0\3\0\0\0\7\0\0\0"),
                  "it reads layer 7, this model has 6");
    heads_refused(MODEL,
                  CHANGED(WIDE, "target_layers\11\0\0\0\4\0\0\0\3\0\0\0\0\0\0\0\1\0\0\0\3\0\0\0\5\0\0\0",
                          "target_layers\11\0\0\0\4\0\0\0\3\0\0\0\0\0\0\0\1\0\0\0\3\0\0\0\6\0\0\0"),
                  "it reads what the last layer leaves");
    heads_refused(MODEL, CHANGED(HEAD, U32("eagle3.vocab_size") "\x30", U32("eagle3.vocab_size") "\x31"),
                  "its vocabulary has 49 tokens, this model's 48");
}

static void odd_files(void **state) {
    (void)state;
    char copy[FIXTURE_PATH];
    tern_engine *e = NULL;
    tern_error err = {0};
    heads_refused(MODEL, MODEL, "no head that drafts for a model");
    heads_refused(HEAD, NULL, "which is no model by itself");
    heads_refused(FIXTURES "eagle3", NULL, "which is no model by itself");
    heads_refused(MODEL, FIXTURES "model", "no head that drafts for a model");
    heads_refused(MODEL, CHANGED(HEAD, "fc.weight", "xx.weight"), "tensor fc.weight is missing");
    heads_refused(MODEL, CHANGED(HEAD, "blk.0.attn_norm_2.weight", "blk.0.attn_norm_3.weight"), "attn_norm_");
    heads_refused(MODEL, CHANGED(HEAD, "eagle3.target_layers", "eagle3.target_layerz"), "target_layerz");
    heads_refused(MODEL, CHANGED(WIDE, "norm_before_residual", "norm_before_residuum"),
                  "norm_before_residuum");
    heads_refused(MODEL, CHANGED(HEAD, U32("eagle3.block_count") "\1", U32("eagle3.block_count") "\2"),
                  "a head of 2 layers");
    heads_refused(MODEL,
                  CHANGED(HEAD, U32("eagle3.target_hidden_size") "\x20\0\0\0",
                          U32("eagle3.target_hidden_size") "\0\0\0\x7f"),
                  "values wide");
    /* a token beyond the vocabulary: d2t is the first tensor, at the beginning of the data */
    heads_refused(
        MODEL, CHANGED(HEAD, "d2t\1\0\0\0\x14\0\0\0\0\0\0\0\x1b", "d2t\1\0\0\0\x14\0\0\0\0\0\0\0\0"), "d2t");
    assert_true(snprintf(copy, sizeof copy, "%s", heads_changed(HEAD, "d2t", "d2x", 3)) > 0);
    heads_refused(MODEL, copy, "tensor output.weight");
    static const struct {
        const char *edit, *says;
    } edits[] = {
        {"/norm_before_residual/d", "'norm_before_residual' is missing, which readers take in two ways"},
        {"s/\"speculators_version\"/\"fc_bias\"/", "'fc_bias' may change what the head computes"},
        {"s/\"num_hidden_layers\": 1/\"num_hidden_layers\": 2/", "a head of 2 layers"},
        {"s/\"target_hidden_size\": 32/\"target_hidden_size\": 24/", "tensor fc.weight"}};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        heads_refused(MODEL, heads_edited("eagle3-wide", edits[i].edit), edits[i].says);
    must(heads_try_open(MODEL, "none", NULL, NULL, &e, &err), &err);
    assert_null(e->head);
    tern_session_options so;
    tern_session *s;
    tern_session_options_defaults(&so);
    so.draft = "head";
    assert_int_equal(tern_session_open(e, &so, &s, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "needs a head"));
    tern_engine_close(&e);
}

/* A head beside the model is taken by its name; one of another model is left where it lies, with a line that says so. */
static void found_beside(void **state) {
    (void)state;
    char model[FIXTURE_PATH], head[FIXTURE_PATH], another[FIXTURE_PATH];
    fixture_copy_as(MODEL, model, "beside.gguf");
    heads_not_found(model, "auto", NULL);
    fixture_copy_as(HEAD, head, "beside-eagle3.gguf");
    tern_engine *e = heads_open_logging(model, "auto");
    assert_non_null(e->head);
    assert_int_equal(heads_n_logged, 0);
    tern_session *s = fixture_session(e, 80, "auto");
    assert_non_null(s->drafting.head);
    tern_session_close(&s);
    tern_engine_close(&e);
    heads_not_found(model, "sam", NULL);                    /* nobody drafts with it */
    fixture_copy_as(HEAD, another, "beside-eagle3-2.gguf"); /* as good */
    heads_not_found(model, "auto", "2 heads");
    assert_int_equal(unlink(head), 0);
    assert_int_equal(unlink(another), 0);
    fixture_copy_as(FIXTURES "chain-eagle3.gguf", head, "eagle3.gguf");
    heads_not_found(model, "auto", "a head of another model");
    assert_int_equal(unlink(head), 0);
}

static void without_memory(void **state) {
    (void)state;
    heads_without_memory(MODEL, WIDE);
}

static void steps_do_not_allocate(void **state) {
    (void)state;
    heads_do_not_allocate(FIXTURES "chain.gguf", FIXTURES "chain-eagle3.gguf");
}

static void estimated(void **state) {
    (void)state;
    heads_estimated(MODEL, WIDE, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_reference),
                                       cmocka_unit_test(together),
                                       cmocka_unit_test(copied_and_loaded),
                                       cmocka_unit_test(many_tokens_a_forward),
                                       cmocka_unit_test(left_alone_where_wrong),
                                       cmocka_unit_test(of_another_model),
                                       cmocka_unit_test(odd_files),
                                       cmocka_unit_test(found_beside),
                                       cmocka_unit_test(without_memory),
                                       cmocka_unit_test(steps_do_not_allocate),
                                       cmocka_unit_test(estimated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
