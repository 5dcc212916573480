/* Gemma 4's assistants: do they draft what the float64 reference says, from folders and from GGUF, however
 * the text came and whatever form its keys and values have? Is one that knows the model taken for many tokens
 * a forward, and one that knows nothing soon left alone, with the same text? Are those of other models
 * refused, and found where they lie? */
#include "draft/draft.h"
#include "model/assistant.h"
#include "session/session.h"

#include <math.h>
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

#define ORACLE TN_SOURCE_DIR "/tests/oracle/fixtures/"
#define FIXTURES ORACLE "heads/"
#define MODEL ORACLE "gemma4"
#define WIDE FIXTURES "gemma4-wide.gguf"
#define OF_MODEL FIXTURES "assistant.gguf"
#define OF_WIDE FIXTURES "assistant-wide.gguf"
#define CHAIN FIXTURES "chain-gemma4.gguf"
#define OF_CHAIN FIXTURES "chain-gemma4-it-assistant.gguf"

static guesses vectors;

static void as_the_reference(void **state) {
    (void)state;
    static const struct {
        const char *model, *folder;
    } pairs[] = {{MODEL, FIXTURES "assistant"},
                 {FIXTURES "gemma4-wide", FIXTURES "assistant-wide"},
                 {WIDE, FIXTURES "assistant-wide"}};
    for (size_t i = 0; i < 2 * sizeof pairs / sizeof *pairs; i++) {
        char head[410], name[100];
        snprintf(head, sizeof head, "%s%s", pairs[i / 2].folder, i & 1 ? ".gguf" : "");
        snprintf(name, sizeof name, "%s, %s", strrchr(pairs[i / 2].model, '/') + 1, strrchr(head, '/') + 1);
        guesses_read(&vectors, pairs[i / 2].folder);
        assert_int_equal(vectors.n_deep, 3);
        tern_engine *e = heads_open(pairs[i / 2].model, head, "float", NULL);
        assert_true(tn_is_assistant(&e->head->h));
        tern_session *s = fixture_session(e, 80, "head");
        guesses_compare_all(&vectors, s, s->drafting.head, name);
        print_message("%s: %.1e of the largest logit\n", name, vectors.worst);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

static void together(void **state) {
    (void)state;
    heads_draft_together(&vectors, MODEL, FIXTURES "assistant");
}

/* What is known of a text is what its keys and values tell, and the state after its last token: it comes with
 * a copy of the whole text, and with the next token of one that was cut back, copied in part, or loaded. */
static void copied_cut_and_loaded(void **state) {
    (void)state;
    guesses_read(&vectors, FIXTURES "assistant");
    tern_engine *e = heads_open(MODEL, OF_MODEL, "float", NULL);
    tern_session *s = fixture_session(e, 80, "head"), *other = fixture_session(e, 80, "head");
    tern_error err = {0};
    char path[FIXTURE_PATH];
    fixture_file(path, "saved");
    const int32_t longest = vectors.pos[vectors.n_pos - 1] + 1;
    for (size_t i = 0; i < vectors.n_pos; i++) {
        const int32_t n = vectors.pos[i] + 1;
        tn_mtp *m = other->drafting.head;
        must(tern_session_truncate(s, 0, &err), &err);
        must(tern_session_prefill(s, vectors.ids, (size_t)n, &err), &err);
        must(tern_session_prefill(other, vectors.ids + 3, 20, &err), &err); /* what lay there */
        must(tn_session_copy(other, s, n, &err), &err);
        guesses_compare(&vectors, m, i, "copied", "assistant");
        guesses_compare(&vectors, s->drafting.head, i, "where it was copied from", "assistant");
        if (n == 1) continue;
        must(tern_session_prefill(s, vectors.ids, (size_t)longest, &err), &err);
        must(tern_session_prefill(other, vectors.ids + 3, 20, &err), &err);
        must(tn_session_copy(other, s, n - 1, &err), &err);
        assert_true(n == longest + 1 || !tn_mtp_logits(m, 1, 0));
        must(tern_session_step(other, vectors.ids[n - 1], &err), &err);
        guesses_compare(&vectors, m, i, "copied in part", "assistant");
        must(tern_session_truncate(s, (size_t)n - 1, &err), &err);
        must(tern_session_step(s, vectors.ids[n - 1], &err), &err);
        guesses_compare(&vectors, s->drafting.head, i, "cut back", "assistant");
        must(tern_session_truncate(s, (size_t)n - 1, &err), &err);
        must(tern_session_save(s, path, &err), &err);
        must(tern_session_prefill(other, vectors.ids + 3, 20, &err), &err);
        must(tern_session_load(other, path, &err), &err);
        assert_null(tn_mtp_logits(m, 1, 0));
        must(tern_session_step(other, vectors.ids[n - 1], &err), &err);
        guesses_compare(&vectors, m, i, "loaded", "assistant");
    }
    tern_session_close(&other);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Logits of a draft by keys and values of some form, less those by the same as floats: a part of the
 * largest. */
static double read_otherwise(tern_engine *e, const tn_kv *kv, int32_t n_tok, const float *inputs) {
    enum { MOST = 64 };
    float logits[2][MOST], state[MOST];
    tern_error err = {0};
    tn_kv floats;
    const int32_t n = e->model->h.n_vocab, wide = e->model->h.n_embd;
    double diff = 0, size = 0;
    assert_true(n <= MOST && wide <= MOST);
    must(tn_kv_open(&e->ctx, &e->model->h, kv->cap_tok, TN_KV_F32, &floats, &err), &err);
    tn_kv_convert(kv, n_tok, &floats);
    for (int i = 0; i < 2; i++) {
        tn_assistant a;
        must(tn_assistant_open(&e->ctx, e->head, &e->model->h, i ? &floats : kv, &e->kern, e->pool, &a, &err),
             &err);
        tn_assistant_run(&a, n_tok, inputs, inputs + wide, logits[i], state);
        tn_assistant_close(&a);
    }
    tn_kv_close(&floats);
    for (int32_t i = 0; i < n; i++) {
        diff = fmax(diff, fabs((double)(logits[0][i] - logits[1][i])));
        size = fmax(size, fabs((double)logits[1][i]));
    }
    return diff / size;
}

/* Keys and values as they may be kept: an assistant reads what they stand for; and what they lose is what
 * drafts lose. */
static void other_keys_and_values(void **state) {
    (void)state;
    static const struct {
        const char *kv;
        tn_kv_type type;
        double most, least; /* off the reference */
    } forms[] = {{"f32", TN_KV_F32, 1e-5, 0},
                 {"f16", TN_KV_F16, 2e-2, 1e-7},
                 {"int8", TN_KV_INT8, 0.3, 1e-4},
                 {"int4", TN_KV_INT4, 2, 1e-3}};
    tern_error err = {0};
    float inputs[64];
    for (int i = 0; i < 64; i++) inputs[i] = (float)((i * 37) % 64 - 32) / 16;
    guesses_read(&vectors, FIXTURES "assistant-wide");
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
        tern_engine *e = heads_open(FIXTURES "gemma4-wide", OF_WIDE, "float", forms[k].kv);
        tern_session *s = fixture_session(e, 80, "head");
        double worst = 0, misread = 0;
        assert_int_equal(s->state.kv.type, forms[k].type);
        for (size_t i = 0; i < vectors.n_pos; i++) {
            must(tern_session_prefill(s, vectors.ids, (size_t)vectors.pos[i] + 1, &err), &err);
            worst = fmax(worst, guesses_off(&vectors, s->drafting.head, i));
            misread = fmax(misread, read_otherwise(e, &s->state.kv, vectors.pos[i] + 1, inputs));
        }
        print_message("keys and values of %s: %.1e of the largest logit off the reference, %.1e off floats\n",
                      forms[k].kv, worst, misread);
        assert_true(worst < forms[k].most && worst >= forms[k].least && misread < 1e-5);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

/* ---- what they bring -------------------------------------------------------------------------------- */

static void many_tokens_a_forward(void **state) {
    (void)state;
    char package[FIXTURE_PATH];
    fixture_package(package, "chain.tern", CHAIN, NULL);
    heads_know_the_model(CHAIN, OF_CHAIN);
    heads_know_the_model(package, OF_CHAIN);
}

/* Beside a package its matrices are blocks of 8 bits: the drafts of a random pair are near the
 * reference's. */
static void beside_a_package(void **state) {
    (void)state;
    char package[FIXTURE_PATH];
    tern_error err = {0};
    fixture_package(package, "wide.tern", WIDE, NULL);
    guesses_read(&vectors, FIXTURES "assistant-wide");
    tern_engine *e = heads_open(package, OF_WIDE, NULL, NULL);
    tern_session *s = fixture_session(e, 80, "head");
    double worst = 0;
    for (size_t i = 0; i < vectors.n_pos; i++) {
        must(tern_session_prefill(s, vectors.ids, (size_t)vectors.pos[i] + 1, &err), &err);
        const double off = guesses_off(&vectors, s->drafting.head, i);
        worst = off > worst ? off : worst;
    }
    print_message("beside a package: %.1e of the largest logit\n", worst);
    assert_true(worst > 1e-4 && worst < 0.5);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Where drafts are wrong they are soon no longer made, and no forward is more than one token's. */
static void left_alone_where_wrong(void **state) {
    (void)state;
    enum { N = 150 };
    guesses_read(&vectors, FIXTURES "assistant");
    tern_engine *e = heads_open(MODEL, OF_MODEL, NULL, NULL);
    tern_session *s = fixture_session(e, 256, "head"), *without = fixture_session(e, 256, "none");
    assert_in_range(heads_know_nothing(s, without, vectors.ids, N, 0), 1, 3 * N / 2);
    tern_session_close(&s);
    tern_session_close(&without);
    tern_engine_close(&e);
}

/* ---- files ------------------------------------------------------------------------------------------ */

#define U32(key) key "\4\0\0\0"
#define A "gemma4-assistant."

static void of_another_model(void **state) {
    (void)state;
    char llama[FIXTURE_PATH];
    fixture_llama(llama, "llama.gguf", 3);
    heads_refused(llama, OF_MODEL, "which drafts for no model of architecture llama");
    heads_refused(CHAIN, OF_WIDE,
                  "an assistant of another model, by its width: it is for models 32 values wide");
    heads_refused(WIDE, OF_CHAIN, "by its width: it is for models 64 values wide");
    heads_refused(WIDE, OF_MODEL, "by its head size");
    heads_refused(MODEL, OF_WIDE, "by its head size");
    heads_refused(WIDE,
                  HEADS_CHANGED(OF_WIDE, U32(A "attention.sliding_window") "\x8",
                                U32(A "attention.sliding_window") "\x9"),
                  "by its window");
    heads_refused(WIDE,
                  HEADS_CHANGED(OF_WIDE, A "attention.head_count_kv\11\0\0\0\4\0\0\0\2\0\0\0\0\0\0\0\2",
                                A "attention.head_count_kv\11\0\0\0\4\0\0\0\2\0\0\0\0\0\0\0\1"),
                  "by its number of KV heads");
    heads_refused(
        WIDE,
        HEADS_CHANGED(OF_WIDE, U32(A "embedding_length_out") "\x20", U32(A "embedding_length_out") "\x21"),
        "tensor nextn.pre_projection.weight");
}

static void odd_files(void **state) {
    (void)state;
    tern_engine *e = NULL;
    tern_error err = {0};
    heads_refused(MODEL, MODEL, "no head that drafts for a model");
    heads_refused(OF_MODEL, NULL, "which is no model by itself");
    heads_refused(FIXTURES "assistant", NULL, "which is no model by itself");
    heads_refused(MODEL, HEADS_CHANGED(OF_MODEL, "nextn.pre_projection", "nextn.xxx_projection"),
                  "tensor nextn.pre_projection.weight is missing");
    heads_refused(MODEL, HEADS_CHANGED(OF_MODEL, "nextn.post_projection", "nextn.xxxx_projection"),
                  "tensor nextn.post_projection.weight is missing");
    heads_refused(MODEL, HEADS_CHANGED(OF_MODEL, A "embedding_length_out", A "embedding_length_owt"),
                  "embedding_length_o");
    heads_refused(
        MODEL,
        HEADS_CHANGED(OF_MODEL, U32(A "nextn_predict_layers") "\3", U32(A "nextn_predict_layers") "\2"),
        "2 of 3 layers draft");
    heads_refused(MODEL,
                  HEADS_CHANGED(OF_MODEL, U32(A "attention.shared_kv_layers") "\3",
                                U32(A "attention.shared_kv_layers") "\2"),
                  "2 of 3 layers have no keys and values");
    heads_refused(MODEL,
                  HEADS_CHANGED(OF_MODEL, U32(A "embedding_length_per_layer_input") "\0",
                                U32(A "embedding_length_per_layer_input") "\4"),
                  "an assistant with 4 values of a token for every layer");
    heads_refused(MODEL, HEADS_CHANGED(OF_MODEL, "blk.2.layer_output_scale", "blk.2.layer_output_skale"),
                  "tensor blk.2.layer_output_");
    static const struct {
        const char *edit, *says;
    } edits[] = {
        {"s/\"boa_token_id\"/\"layer_gain\"/", "'layer_gain' may change what the assistant computes"},
        {"s/\"attention_bias\"/\"attention_gain\"/;s/_gain\": false/_gain\": true/", "'attention_gain'"},
        {"s/\"backbone_hidden_size\": 32/\"backbone_hidden_size\": 24/", "tensor pre_projection.weight"},
        {"/\"backbone_hidden_size\"/d", "backbone_hidden_size"},
        {"s/\"use_double_wide_mlp\": false/\"use_double_wide_mlp\": true/", "use_double_wide_mlp"},
        {"s/\"enable_moe_block\": false/\"enable_moe_block\": true/", "enable_moe_block"},
        {"s/\"tie_word_embeddings\": true/\"tie_word_embeddings\": false/",
         "tensor lm_head.weight is missing"}};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        heads_refused(MODEL, heads_edited("assistant", edits[i].edit), edits[i].says);
    must(heads_try_open(MODEL, "none", NULL, NULL, &e, &err), &err);
    assert_null(e->head);
    tern_engine_close(&e);
}

/* One beside the model is taken by its name, by either of the words that files have for it. */
static void found_beside(void **state) {
    (void)state;
    static const char *const names[] = {"gemma-4-wide-it-assistant-Q4_0.gguf", "mtp-gemma-4-wide-it.gguf"};
    char model[FIXTURE_PATH], head[FIXTURE_PATH], other[FIXTURE_PATH], llama[FIXTURE_PATH];
    fixture_copy_as(WIDE, model, "gemma-4-wide-it-Q8_0.gguf");
    fixture_llama(llama, "gemma-4.gguf", 3);
    heads_not_found(model, "auto", NULL);
    for (int i = 0; i < 2; i++) {
        fixture_copy_as(OF_WIDE, head, names[i]);
        tern_engine *e = heads_open_logging(model, "auto");
        assert_non_null(e->head);
        assert_int_equal(heads_n_logged, 0);
        tern_engine_close(&e);
        heads_not_found(model, "sam", NULL);  /* nobody drafts with it */
        heads_not_found(llama, "auto", NULL); /* nor for another family */
        assert_int_equal(unlink(head), 0);
    }
    fixture_copy_as(OF_WIDE, head, names[0]);
    fixture_copy_as(OF_WIDE, other, "gemma-4-wide-it-assistant-F16.gguf"); /* as good */
    heads_not_found(model, "auto", "2 heads");
    assert_int_equal(unlink(head), 0);
    assert_int_equal(unlink(other), 0);
    fixture_copy_as(OF_CHAIN, head, names[0]);
    heads_not_found(model, "auto", "an assistant of another model");
    /* a head of EAGLE-3 goes first */
    fixture_copy_as(FIXTURES "eagle3.gguf", other, "gemma-4-wide-eagle3.gguf");
    tern_engine *e = heads_open_logging(model, "auto");
    assert_true(e->head && !tn_is_assistant(&e->head->h));
    tern_engine_close(&e);
    assert_int_equal(unlink(head), 0);
    assert_int_equal(unlink(other), 0);
}

static void without_memory(void **state) {
    (void)state;
    heads_without_memory(MODEL, OF_MODEL);
}

static void steps_do_not_allocate(void **state) {
    (void)state;
    heads_do_not_allocate(CHAIN, OF_CHAIN);
}

static void estimated(void **state) {
    (void)state;
    heads_estimated(MODEL, OF_MODEL, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_reference),
                                       cmocka_unit_test(together),
                                       cmocka_unit_test(copied_cut_and_loaded),
                                       cmocka_unit_test(other_keys_and_values),
                                       cmocka_unit_test(many_tokens_a_forward),
                                       cmocka_unit_test(beside_a_package),
                                       cmocka_unit_test(left_alone_where_wrong),
                                       cmocka_unit_test(of_another_model),
                                       cmocka_unit_test(odd_files),
                                       cmocka_unit_test(found_beside),
                                       cmocka_unit_test(without_memory),
                                       cmocka_unit_test(steps_do_not_allocate),
                                       cmocka_unit_test(estimated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
