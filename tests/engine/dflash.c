/* Drafters of DFlash: do they draft what the float64 reference says, every row of a block, from folders and
 * from GGUF, however the text came? Is one that knows the model taken for many tokens a forward, and one that
 * knows nothing soon left alone, with the same text? Does a block have as many rows as pay? Are drafters of
 * other models and other forms refused, and found where they lie? */
#include "draft/draft.h"
#include "session/mtp_impl.h"
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
#define MODEL FIXTURES "model.gguf"
#define PLAIN FIXTURES "dflash.gguf"
#define WINDOWS FIXTURES "dflash-windows.gguf"
#define CHAIN FIXTURES "chain.gguf"
#define OF_CHAIN FIXTURES "chain-dflash.gguf"
#define U32(key) key "\4\0\0\0"
#define CHANGED HEADS_CHANGED

static guesses vectors;

static void compare_all(const char *model, const char *head, const char *name) {
    tern_engine *e = heads_open(model, head, "float", NULL);
    tern_session *s = fixture_session(e, 80, "head");
    guesses_compare_all(&vectors, s, s->drafting.head, name);
    print_message("%s: %.1e of the largest logit\n", name, vectors.worst);
    tern_session_close(&s);
    tern_engine_close(&e);
}

static void as_the_reference(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) { /* the model and the drafter, each as a folder and as GGUF */
        char folder[400], head[410], name[100];
        const char *model = i & 1 ? MODEL : FIXTURES "model";
        snprintf(folder, sizeof folder, FIXTURES "%s", i & 4 ? "dflash-windows" : "dflash");
        snprintf(head, sizeof head, "%s%s", folder, i & 2 ? ".gguf" : "");
        snprintf(name, sizeof name, "%s, %s", strrchr(model, '/') + 1, strrchr(head, '/') + 1);
        guesses_read(&vectors, folder);
        compare_all(model, head, name);
    }
}

/* What a configuration says beside the rest: fewer rows, a number that embeddings are multiplied by, which
 * rows see which. */
static void otherwise(void **state) {
    (void)state;
    static const struct {
        const char *folder, *edit, *vectors;
    } forms[] = {
        {"dflash", "s/\"block_size\": 8/\"block_size\": 3/", "dflash-few"},
        {"dflash", "s/\"mask_token_id\"/\"input_embedding_scale\": 2.5, \"mask_token_id\"/", "dflash-scaled"},
        {"dflash-windows", "s/\"block_size\"/\"is_causal\": false, \"block_size\"/", "dflash-all"},
        {"dflash-windows", "s/\"block_size\"/\"is_causal\": true, \"block_size\"/", "dflash-before"},
        {"dflash-windows", "s/\"mask_token_id\"/\"causal\": true, \"mask_token_id\"/", "dflash-before"}};
    char folder[400];
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        snprintf(folder, sizeof folder, FIXTURES "%s", forms[i].vectors);
        guesses_read(&vectors, folder);
        compare_all(MODEL, heads_edited(forms[i].folder, forms[i].edit), forms[i].vectors);
    }
    guesses_read(&vectors, FIXTURES "dflash-few");
    compare_all(MODEL, CHANGED(PLAIN, U32("dflash.block_size") "\x8", U32("dflash.block_size") "\x3"),
                "dflash-few.gguf");
}

static void together(void **state) {
    (void)state;
    heads_draft_together(&vectors, FIXTURES "model", FIXTURES "dflash");
}

/* A text that is copied, whole or in part, or cut back, is known; one that is loaded is not. */
static void copied_cut_and_loaded(void **state) {
    (void)state;
    guesses_read(&vectors, FIXTURES "dflash-windows");
    tern_engine *e = heads_open(FIXTURES "model", FIXTURES "dflash-windows", "float", NULL);
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
            guesses_compare(&vectors, other->drafting.head, i, "copied", "dflash-windows");
        }
        must(tern_session_truncate(s, (size_t)n - 1, &err), &err);
        must(tern_session_step(s, vectors.ids[n - 1], &err), &err);
        guesses_compare(&vectors, s->drafting.head, i, "cut back", "dflash-windows");
    }
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
    fixture_package(package, "chain.tern", CHAIN, NULL);
    heads_know_the_model(CHAIN, OF_CHAIN);
    heads_know_the_model(package, OF_CHAIN);
}

/* A context that a block's rows would not fit in is drafted for, up to its end. */
static void in_a_short_context(void **state) {
    (void)state;
    static fixture_heard plain, drafted;
    const int32_t prompt[] = {7, 3, 9};
    tern_engine *e = heads_open(CHAIN, OF_CHAIN, NULL, NULL);
    for (int32_t n_ctx = 20; n_ctx < 32; n_ctx++) {
        tern_session *s = fixture_session(e, n_ctx, "head"), *without = fixture_session(e, n_ctx, "none");
        heads_make_cheap(s);
        heads_answer(without, prompt, 3, 100, 0, 1, &plain);
        heads_answer(s, prompt, 3, 100, 0, 1, &drafted);
        heads_same_text(&plain, &drafted);
        assert_true(plain.n >= n_ctx - 3 && tn_mtp_n_guesses(s->drafting.head) > 0);
        tern_session_close(&s);
        tern_session_close(&without);
    }
    tern_engine_close(&e);
}

/* Where drafts are wrong they are soon no longer made, and no forward is more than one token's. */
static void left_alone_where_wrong(void **state) {
    (void)state;
    enum { N = 500 };
    guesses_read(&vectors, FIXTURES "dflash");
    tern_engine *e = heads_open(MODEL, PLAIN, NULL, NULL);
    tern_session *s = fixture_session(e, 600, "head"), *without = fixture_session(e, 600, "none");
    assert_in_range(heads_know_nothing(s, without, vectors.ids, N, 5), 1, 3 * N / 10);
    assert_in_range(s->drafting.head->n_blocks, 1, 3 * N / 40);
    tern_session_close(&s);
    tern_session_close(&without);
    tern_engine_close(&e);
}

/* How many drafts there are after a text, where a forward of one row takes so long and every further row a
 * hundredth of that. */
static int32_t n_proposed(tern_session *s, float step_ns, int32_t most_rows) {
    static tn_proposals p;
    const int32_t all = TN_TREE_MAX;
    const float slower = 1.31f;
    const int last = tn_prop_cost_class(all);
    int32_t text[64];
    memset(&p, 0, sizeof p);
    p.cost[0].n = p.cost[last].n = 8;
    p.cost[0].known = p.cost[last].known = true;
    p.cost[0].rows = p.cost[0].relative = 1;
    p.cost[last].rows = (float)all;
    p.cost[last].relative = slower;
    p.cost[0].floor_ns = step_ns;
    p.cost[last].floor_ns = step_ns * slower;
    p.most_rows = most_rows;
    tn_prop_begin(&p, 5);
    memcpy(text, s->tokens, (size_t)s->n_tok * sizeof *text);
    text[s->n_tok] = 5;
    tn_mtp_propose(s->drafting.head, &p, text, s->n_tok + 1);
    return p.n - 1;
}

/* The same, by how often drafts of each depth were right and what blocks of so many rows took. */
static int32_t n_where(tern_session *s, const float rates[7], float step_ns, const float took[9]) {
    tn_mtp *m = s->drafting.head;
    memset(m->rate, 0, sizeof m->rate);
    memset(m->block_ns, 0, sizeof m->block_ns);
    memcpy(m->rate, rates, 7 * sizeof *rates);
    memcpy(m->block_ns, took, 9 * sizeof *took);
    m->n_blocks = TN_MTP_COLD;
    m->n_path = m->n_skipped = 0;
    return n_proposed(s, step_ns, 0);
}

static void as_many_rows_as_pay(void **state) {
    (void)state;
    static const float sure[7] = {1, 1, 1, 1, 1, 1, 1}, two[7] = {1, 1, 0, 1, 1, 1, 1}, never[7] = {0},
                       often[7] = {.8f, .8f, .8f, .8f, .8f, .8f, .8f};
    static const float same[9] = {[8] = 1e5f}, small[9] = {[3] = 2e5f}, /* a row takes 0.3 steps of 1e6: */
        rising[9] = {0, 0, 6e5f, 9e5f, 12e5f, 15e5f, 18e5f, 21e5f, 24e5f};
    const float step = 1e6f, quick = 1e5f;
    tern_error err = {0};
    guesses_read(&vectors, FIXTURES "dflash");
    tern_engine *e = heads_open(MODEL, PLAIN, NULL, NULL);
    tern_session *s = fixture_session(e, 80, "head");
    tn_mtp *m = s->drafting.head;
    must(tern_session_prefill(s, vectors.ids, 20, &err), &err);
    assert_int_equal(n_where(s, sure, step, same), 7);
    assert_int_equal(n_where(s, two, step, same), 2); /* no row is for what cannot come */
    assert_int_equal(n_where(s, never, step, same), 0);
    assert_int_equal(n_where(s, sure, step, rising), 7);
    assert_int_equal(n_where(s, often, step, rising), 4); /* 0.8^5 is less than 1.2 * 0.3 + 0.01 */
    assert_int_equal(n_where(s, sure, quick, rising), 0); /* three steps a draft */
    assert_int_equal(n_where(s, sure, step, small), 7);   /* eight rows take 0.53 steps at most, for 6.93 */
    assert_int_equal(n_where(s, sure, quick, small), 7);  /* 5.3 for 6.93 are worth the margin of a fifth */
    assert_int_equal(n_where(s, sure, quick / 2, small), 0); /* 10.7 are not */
    memcpy(m->rate, sure, sizeof sure);
    assert_int_equal(n_proposed(s, step, 3), 2); /* no more than may be verified */
    /* tried again at growing intervals, with few */
    (void)n_where(s, never, step, same);
    int32_t at[3], n_tries = 0;
    m->try_after = TN_MTP_TRY_FIRST;
    m->n_skipped = 0;
    for (int32_t i = 1; n_tries < 3 && i < 1000; i++) {
        memset(m->rate, 0, sizeof m->rate);
        const int32_t n = n_proposed(s, step, 0);
        if (!n) continue;
        assert_int_equal(n, 4);
        at[n_tries++] = i;
    }
    assert_int_equal(n_tries, 3);
    assert_int_equal(at[0], 32);
    assert_int_equal(at[1], 32 + 64);
    assert_int_equal(at[2], 32 + 64 + 128);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Rates are of drafts whose predecessors were right, as far as the text tells. */
static void rates_by_depth(void **state) {
    (void)state;
    static const float same[9] = {[8] = 1e5f}, most[7] = {.9f, .9f, .9f, .9f, .9f, .9f, .9f};
    tern_error err = {0};
    guesses_read(&vectors, FIXTURES "dflash");
    tern_engine *e = heads_open(MODEL, PLAIN, NULL, NULL);
    tern_session *s = fixture_session(e, 80, "head");
    tn_mtp *m = s->drafting.head;
    must(tern_session_prefill(s, vectors.ids, 20, &err), &err);
    assert_int_equal(n_where(s, most, 1e6f, same), 7);
    int32_t text[64];
    memcpy(text, s->tokens, 20 * sizeof *text);
    text[20] = 5;
    text[21] = m->path[0];
    text[22] = m->path[1];
    text[23] = m->path[2] ^ 1;
    text[24] = m->path[3];
    static tn_proposals p;
    tn_prop_begin(&p, text[24]);
    tn_mtp_propose(m, &p, text, 25);
    for (int i = 0; i < 7; i++) {
        if (i < 2) assert_true(m->rate[i] > .9f);
        else if (i == 2) assert_true(m->rate[i] < .9f);
        else assert_true(m->rate[i] == .9f);
    }
    assert_int_equal(m->n_path, 0);
    /* a depth that was given up is drafted again in the end, where all in front of it are right */
    static const float three[7] = {.95f, .95f, .95f, .001f, .9f, .9f, .9f};
    assert_int_equal(n_where(s, three, 1e6f, same), 3);
    const int32_t drafted[3] = {m->path[0], m->path[1], m->path[2]};
    m->text_end -= 4; /* as if the text had gone on with the drafts and one more */
    memcpy(s->tokens + m->text_end, drafted, sizeof drafted);
    assert_true(n_proposed(s, 1e6f, 0) > 3);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* ---- files ------------------------------------------------------------------------------------------ */

#define LAYERS(last) "dflash.target_layers\11\0\0\0\4\0\0\0\4\0\0\0\0\0\0\0\1\0\0\0\3\0\0\0\4\0\0\0" last

static void of_another_model(void **state) {
    (void)state;
    char other[FIXTURE_PATH];
    heads_refused(MODEL, OF_CHAIN, "it reads layers 64 values wide, this model's are 32");
    heads_refused(CHAIN, PLAIN, "it reads layers 32 values wide, this model's are 64");
    fixture_llama(other, "other.gguf", 3);
    heads_refused(other, PLAIN, "a head of another model");
    heads_refused(MODEL, CHANGED(PLAIN, LAYERS("\5"), LAYERS("\7")), "it reads layer 7, this model has 6");
    heads_refused(MODEL, CHANGED(PLAIN, LAYERS("\5"), LAYERS("\6")), "it reads what the last layer leaves");
    heads_refused(MODEL, CHANGED(PLAIN, U32("dflash.vocab_size") "\x30", U32("dflash.vocab_size") "\x31"),
                  "its vocabulary has 49 tokens, this model's 48");
    heads_refused(MODEL, heads_edited("dflash", "s/\"num_target_layers\": 6/\"num_target_layers\": 36/"),
                  "it is for one of 36 layers, this model has 6");
}

static void odd_files(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *says;
        size_t n;
    } changes[] = {
#define CHANGE(a, b, says) {a, b, says, sizeof a - 1}
        CHANGE("fc.weight", "fx.weight", "tensor fc.weight is missing"),
        CHANGE("enc.output_norm.weight", "enc.output_form.weight", "enc.output_"),
        CHANGE("blk.1.attn_q_norm", "blk.1.attn_q_form", "blk.1.attn_q_"),
        CHANGE("fc.weight\2", "d2t\0\0\0\0\0\0\2", "tokens of its own (tensor d2t)"),
        CHANGE("dflash.target_layers", "dflash.target_layerz", "target_layer"),
        CHANGE("dflash.block_size", "dflash.block_sise", "dflash.block_sise"),
        CHANGE(U32("dflash.block_size") "\x8", U32("dflash.block_size") "\x1", "a block of 1 rows"),
        CHANGE("ggml.mask_token_id", "ggml.mask_tokem_id", "'tokenizer.ggml.mask_token_id' is missing"),
        CHANGE(U32("ggml.mask_token_id") "\x2f", U32("ggml.mask_token_id") "\x30",
               "the mask is token 48 of 48"),
        CHANGE("output_norm.weight\1", "markov_w1l.weight\1", "markov_w1l"),
#undef CHANGE
    };
    heads_refused(MODEL, MODEL, "no head that drafts for a model");
    heads_refused(PLAIN, NULL, "which is no model by itself");
    heads_refused(FIXTURES "dflash", NULL, "which is no model by itself");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        heads_refused(MODEL, heads_changed(PLAIN, changes[i].from, changes[i].to, changes[i].n),
                      changes[i].says);
}

/* Folders of other forms, and keys that would change what is computed. */
static void odd_folders(void **state) {
    (void)state;
    static const struct {
        const char *of, *edit, *says;
    } edits[] = {{"dflash", "s/DFlashDraftModel\"$/Qwen3DSparkModel\"/",
                  "architecture 'Qwen3DSparkModel' is not supported"},
                 {"dflash", "s/DFlashDraftModel\"$/DFlash2DraftModel\"/",
                  "architecture 'DFlash2DraftModel' is not supported"},
                 {"dflash", "s/\"qwen3\"/\"deepseek_v4\"/", "model type 'deepseek_v4' is not supported"},
                 {"dflash", "s/\"bos_token_id\"/\"conv_gain\"/", "conv_gain"},
                 {"dflash", "s/\"mask_token_id\"/\"conv_group_size\": 4, \"mask_token_id\"/",
                  "'conv_group_size' of 'dflash_config' may change what the drafter computes"},
                 {"dflash", "s/\"mask_token_id\"/\"output_multiplier\": 2, \"mask_token_id\"/",
                  "'output_multiplier' not 1"},
                 {"dflash", "s/\"mask_token_id\"/\"input_embedding_scale\": 0, \"mask_token_id\"/",
                  "'input_embedding_scale' is 0"},
                 {"dflash", "/\"mask_token_id\"/d", "'mask_token_id' is missing"},
                 {"dflash", "s/\"target_layer_ids\"/\"aux_layer_ids\"/", "aux_layer_ids"},
                 {"dflash", "s/\"mask_token_id\": 47/\"mask_token_id\": 48/", "the mask is token 48 of 48"},
                 {"dflash", "s/\"block_size\": 8/\"block_size\": 1/", "a block of 1 rows"},
                 {"dflash", "s/\"block_size\"/\"is_causal\": 1, \"block_size\"/",
                  "'is_causal' is neither true nor false"},
                 {"dflash", "s/\"hidden_size\": 32/\"hidden_size\": 24/", "tensor"},
                 {"dflash-windows", "s/\"use_sliding_window\": true/\"use_sliding_window\": false/",
                  "'use_sliding_window' is false"},
                 {"dflash-windows", "s/\"sliding_window\": 6/\"sliding_window\": 5/",
                  "a window of 5 tokens is smaller than a block of 6"}};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        heads_refused(MODEL, heads_edited(edits[i].of, edits[i].edit), edits[i].says);
}

/* One beside the model is taken by its name, after a head of EAGLE-3; one of another model is left where it
 * lies. */
static void found_beside(void **state) {
    (void)state;
    char model[FIXTURE_PATH], head[FIXTURE_PATH], other[FIXTURE_PATH];
    fixture_copy_as(MODEL, model, "beside.gguf");
    fixture_copy_as(PLAIN, head, "beside-DFlash-b16-Q8_0.gguf");
    tern_engine *e = heads_open_logging(model, "auto");
    assert_true(e->head && tn_is_dflash(&e->head->h));
    assert_int_equal(heads_n_logged, 0);
    tern_session *s = fixture_session(e, 80, "auto");
    assert_non_null(s->drafting.head);
    tern_session_close(&s);
    tern_engine_close(&e);
    heads_not_found(model, "sam", NULL); /* nobody drafts with it */
    fixture_copy_as(FIXTURES "eagle3.gguf", other, "beside-eagle3.gguf");
    e = heads_open_logging(model, "auto");
    assert_true(e->head && tn_is_eagle(&e->head->h));
    tern_engine_close(&e);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(unlink(head), 0);
    fixture_copy_as(OF_CHAIN, head, "dflash.gguf");
    heads_not_found(model, "auto", "a head of another model");
    assert_int_equal(unlink(head), 0);
}

static void without_memory(void **state) {
    (void)state;
    heads_without_memory(MODEL, WINDOWS);
}

static void steps_do_not_allocate(void **state) {
    (void)state;
    heads_do_not_allocate(CHAIN, OF_CHAIN);
}

static void estimated(void **state) {
    (void)state;
    heads_estimated(MODEL, PLAIN, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_reference),
                                       cmocka_unit_test(otherwise),
                                       cmocka_unit_test(together),
                                       cmocka_unit_test(copied_cut_and_loaded),
                                       cmocka_unit_test(many_tokens_a_forward),
                                       cmocka_unit_test(in_a_short_context),
                                       cmocka_unit_test(left_alone_where_wrong),
                                       cmocka_unit_test(as_many_rows_as_pay),
                                       cmocka_unit_test(rates_by_depth),
                                       cmocka_unit_test(of_another_model),
                                       cmocka_unit_test(odd_files),
                                       cmocka_unit_test(odd_folders),
                                       cmocka_unit_test(found_beside),
                                       cmocka_unit_test(without_memory),
                                       cmocka_unit_test(steps_do_not_allocate),
                                       cmocka_unit_test(estimated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
