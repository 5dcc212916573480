/* What each drafter proposes on texts made for it, which proposals are chosen, and how rates and costs are
 * learned. */
#include "base/rng.h"
#include "draft/draft.h"
#include "draft/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_VOCAB = 64, N_CTX = 512 };
static tn_ctx ctx;
static tern_error err;

static tn_draft *draft_of(const int32_t *text, int32_t n) {
    tn_draft *d;
    tn_ctx_init(&ctx, NULL);
    assert_int_equal(tn_draft_open(&ctx, N_VOCAB, N_CTX, &d, &err), TERN_OK);
    assert_int_equal(tn_draft_sync(d, text, n, &err), TERN_OK);
    return d;
}

/* Is ids[0..n) a path of the tree below its root? */
static bool has_path(const tn_tree *t, const int32_t *ids, int32_t n) {
    int32_t row = 0;
    for (int32_t i = 0; i < n && row >= 0; i++) row = tn_tree_child(t, row, ids[i]);
    return row >= 0;
}

static void well_formed(const tn_tree *t, int32_t max_rows) {
    assert_in_range(t->n, 1, max_rows);
    for (int32_t i = 1; i < t->n; i++) {
        assert_in_range(t->parent[i], 0, i - 1);
        for (int32_t j = 1; j < i; j++)
            assert_false(t->parent[j] == t->parent[i] && t->token[j] == t->token[i]); /* no branch twice */
    }
}

static void names(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t want;
        const char *model;
    } good[] = {{NULL, 0, NULL},
                {"none", 0, NULL},
                {"auto", TN_DRAFT_ALL, NULL},
                {"all", TN_DRAFT_ALL, NULL},
                {"lookup", TN_DRAFT_LOOKUP, NULL},
                {"sam,extend", TN_DRAFT_SAM | TN_DRAFT_EXTEND, NULL},
                {"all,model:a,b", TN_DRAFT_ALL | TN_DRAFT_MODEL, "a,b"},
                {"sam,mtp", TN_DRAFT_SAM | TN_DRAFT_MTP, NULL}};
    uint32_t bits;
    const char *model;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(tn_draft_parse(good[i].text, &bits, &model, &err), TERN_OK);
        assert_int_equal(bits, good[i].want);
        assert_true(good[i].model ? model && !strcmp(model, good[i].model) : !model);
    }
    static const char *const bad[] = {"sams", "sa", "sam;lookup", "model:", ",", "none,x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tn_draft_parse(bad[i], &bits, &model, &err), TERN_E_INVALID);
}

static void copies_of_the_text(void **state) {
    (void)state;
    static const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 3, 4, 20, 21, 30, 2, 3, 4},
                         full[] = {5, 6, 7, 8, 9, 10, 11, 12}, other[] = {20, 21};
    int32_t n = sizeof text / sizeof *text;
    tn_draft *d = draft_of(text, n);
    tn_tree t;
    tn_draft_plan(d, TN_DRAFT_LOOKUP, 32, 0, true, &t);
    well_formed(&t, 32);
    assert_true(has_path(&t, full, 8)); /* 2 3 4 occurred once: its continuation, ten tokens of it */
    assert_int_equal(t.n, 11);
    tn_draft_plan(d, TN_DRAFT_SAM, 32, 0, true, &t);
    well_formed(&t, 32);
    assert_true(has_path(&t, full, 8));
    assert_true(has_path(&t, other, 2)); /* after the shorter match 3 4 */
    tn_draft_plan(d, TN_DRAFT_SAM, 4, 0, true, &t);
    well_formed(&t, 4);
    assert_true(has_path(&t, full, 3)); /* the longer match is the likelier */
    tn_draft_plan(d, 0, 32, 0, true, &t);
    assert_int_equal(t.n, 1);
    tn_draft_plan(d, TN_DRAFT_ALL, 1, 0, true, &t);
    assert_int_equal(t.n, 1);
    tn_draft_close(&d);
    static const int32_t period[] = {7, 8, 9, 7, 8, 9, 7}, goes_on[] = {8, 9, 7, 8, 9, 7, 8, 9, 7};
    d = draft_of(period, 7);
    tn_draft_plan(d, TN_DRAFT_SAM, 32, 0, true, &t);
    assert_true(has_path(&t, goes_on, 9)); /* a copy that reaches the end of the text goes on with itself */
    tn_draft_close(&d);
    static const int32_t twice[] = {5, 6, 7, 30, 5, 6, 8, 31, 5, 6}, latest[] = {8, 31}, oldest[] = {7};
    d = draft_of(twice, 10);
    tn_draft_plan(d, TN_DRAFT_LOOKUP, 32, 0, true, &t);
    assert_true(has_path(&t, latest, 2)); /* of equally long matches the latest */
    assert_false(has_path(&t, oldest, 1));
    tn_draft_close(&d);
}

static void copies_of_the_store(void **state) {
    (void)state;
    static const int32_t text[] = {1, 2, 40, 41}, a[] = {39, 40, 41, 42, 43, 44}, b[] = {45, 46},
                         want[] = {42, 43, 44}, beyond[] = {42, 43, 44, 45};
    tn_draft *d = draft_of(text, 4);
    tn_tree t;
    tn_draft_plan(d, TN_DRAFT_SAM, 32, 0, true, &t);
    assert_int_equal(t.n, 1);
    size_t before = tn_draft_bytes(d);
    assert_int_equal(tn_draft_learn(d, a, 6, &err), TERN_OK);
    assert_int_equal(tn_draft_learn(d, b, 2, &err), TERN_OK);
    assert_true(tn_draft_bytes(d) > before);
    tn_draft_plan(d, TN_DRAFT_SAM, 32, 0, true, &t);
    assert_true(has_path(&t, want, 3));
    assert_false(has_path(&t, beyond, 4)); /* not from one text into the next */
    for (int i = 0; i < 2; i++) {          /* the place in the store moves with the text */
        assert_int_equal(tn_draft_push(d, a[3 + i], &err), TERN_OK);
        tn_draft_plan(d, TN_DRAFT_SAM, 32, 0, true, &t);
        assert_true(has_path(&t, a + 4 + i, 1));
        assert_false(has_path(&t, want, 1));
    }
    static const int32_t bad[] = {1, N_VOCAB};
    assert_int_equal(tn_draft_learn(d, bad, 2, &err), TERN_E_INVALID);
    tn_draft_close(&d);
}

/* The text says 1 -> 2, the model says 1 -> 5, 5 -> 9 and 9 -> 4: the tree of 1 holds 5 9 4. */
static void calibrated_tree(void **state) {
    (void)state;
    static const int32_t text[] = {1, 2, 5, 6, 9, 4, 8, 1}, want[] = {5, 9, 4};
    static const int32_t says[] = {5, 5, 9, 9, 4, 8, 1};
    tn_draft *d = draft_of(text, 8);
    int32_t n;
    const int32_t *vocab = tn_draft_vocabulary(d, &n);
    assert_int_equal(n, 7);
    for (int32_t pos = 0; pos < 7; pos++) {
        float of_vocab[N_VOCAB];
        for (int32_t i = 0; i < n; i++) of_vocab[i] = vocab[i] == says[pos] ? 10 : 0;
        tn_draft_successors(d, pos, of_vocab, n);
    }
    tn_tree t;
    tn_draft_plan(d, TN_DRAFT_CALIBRATED, 32, 0, true, &t);
    well_formed(&t, 32);
    assert_true(has_path(&t, want, 3));
    static const int32_t copied[] = {2};
    tn_draft_plan(d, TN_DRAFT_SAM, 32, 0, true, &t);
    assert_true(has_path(&t, copied, 1));
    assert_false(has_path(&t, want, 1));
    assert_int_equal(tn_draft_truncate(d, 5, &err), TERN_OK); /* what is known of the first five stays */
    assert_int_equal(tn_draft_push(d, 1, &err), TERN_OK);
    tn_draft_plan(d, TN_DRAFT_CALIBRATED, 32, 0, true, &t);
    assert_true(has_path(&t, want, 2));
    tn_draft_close(&d);
}

/* What the model said at a rejected row is known when its token comes: 15 was rejected after 9, and the
 * model would have said 40, which the text does not know, then 41. */
static void rejected_rows_calibrate(void **state) {
    (void)state;
    static const int32_t text[] = {1, 2, 9}, says[] = {3, 40, 41}, want[] = {40, 41};
    tn_draft *d = draft_of(text, 3);
    tn_tree t = {0}, got;
    tn_tree_add(&t, -1, 9);
    tn_tree_add(&t, 0, 15);
    tn_tree_add(&t, 1, 40);
    static float logits[3][N_VOCAB];
    for (int i = 0; i < 3; i++) logits[i][says[i]] = 10;
    tn_draft_verified(d, &t, &logits[0][0]);
    for (int i = 0; i < 2; i++) assert_int_equal(tn_draft_push(d, (int32_t[]){3, 15}[i], &err), TERN_OK);
    tn_draft_plan(d, TN_DRAFT_CALIBRATED, 32, 0, true, &got);
    well_formed(&got, 32);
    assert_true(has_path(&got, want, 2));
    static int32_t kept[TN_DRAFT_RECALLED],
        bad[] = {N_VOCAB, 0, 1, 2, 3, 4, 5, 6, 0, 9, 9, N_VOCAB, -5, 1, 1, 1, 1, -1, 15};
    size_t n = tn_draft_recalled(d, kept);
    assert_int_equal(n, tn_draft_recalled(d, NULL));
    tn_draft *other = draft_of((const int32_t[]){3, 15}, 2);
    tn_draft_recall(other, bad, sizeof bad / sizeof *bad); /* from a file: makes no sense, does no harm */
    tn_draft_plan(other, TN_DRAFT_CALIBRATED, 32, 0, true, &got);
    assert_int_equal(got.n, 1);
    tn_draft_recall(other, kept, n);
    tn_draft_plan(other, TN_DRAFT_CALIBRATED, 32, 0, true, &got);
    assert_true(has_path(&got, want, 2));
    tn_draft_close(&other);
    tn_tree one = {0};
    tn_tree_add(&one, -1, 7);
    for (int i = 0; i < TN_RECALLS; i++)
        tn_draft_verified(d, &one, &logits[0][0]); /* the ring has gone round: 15 and 40 are forgotten */
    tn_draft_plan(d, TN_DRAFT_CALIBRATED, 32, 0, true, &got);
    assert_false(has_path(&got, want, 1));
    tn_draft_close(&d);
}

/* After the same two tokens counts more than after the one alone, of what the model said and of places of the prompt,
 * also where the one alone was later. */
static void pairs_come_first(void **state) {
    (void)state;
    static const int32_t text[] = {1, 9, 15}, said[2][3] = {{9, 15, 40}, {8, 15, 41}};
    tn_draft *d = draft_of(text, 3);
    tn_tree got;
    for (int i = 0; i < 2; i++) {
        static float logits[2][N_VOCAB];
        memset(logits, 0, sizeof logits);
        logits[0][said[i][1]] = logits[1][said[i][2]] = 10;
        tn_tree t = {0};
        tn_tree_add(&t, -1, said[i][0]);
        tn_tree_add(&t, 0, said[i][1]);
        tn_draft_verified(d, &t, &logits[0][0]);
    }
    tn_draft_plan(d, TN_DRAFT_CALIBRATED, 2, 0, true, &got);
    assert_int_equal(got.n, 2);
    assert_int_equal(got.token[1], 40);
    tn_draft_close(&d);
    static const int32_t prompt[] = {1, 5, 2, 5, 10, 11, 1, 5}, says[] = {5, 10, 5, 11, 2, 1, 5};
    d = draft_of(prompt, 8);
    int32_t n;
    const int32_t *vocab = tn_draft_vocabulary(d, &n);
    for (int32_t pos = 0; pos < 7; pos++) {
        float of_vocab[N_VOCAB];
        for (int32_t i = 0; i < n; i++) of_vocab[i] = vocab[i] == says[pos] ? 10 : 0;
        tn_draft_successors(d, pos, of_vocab, n);
    }
    tn_draft_plan(d, TN_DRAFT_CALIBRATED, 2, 0, true, &got);
    assert_int_equal(got.n, 2);
    assert_int_equal(got.token[1], 10);
    tn_draft_close(&d);
}

/* A draft rejected at its first token, whose later tokens the model agreed with, comes back. */
static void rejects_come_back(void **state) {
    (void)state;
    static const int32_t text[] = {1, 2, 3, 4, 10, 11, 12, 13, 14, 15};
    tn_draft *d = draft_of(text, 10);
    tn_tree t = {0};
    tn_tree_add(&t, -1, 15);
    for (int32_t i = 0; i < 5; i++) tn_tree_add(&t, i, 10 + i); /* 10 11 12 13 14 */
    static float logits[6][N_VOCAB];
    static const int32_t model_says[6] = {3, 4, 12, 13,
                                          2, 1}; /* rejects 10, then 11; agrees with 12 and 13; not with 14 */
    for (int i = 0; i < 6; i++) logits[i][model_says[i]] = 5;
    tn_draft_rejected(d, &t, 0, &logits[0][0]);
    assert_int_equal(tn_draft_push(d, 3, &err), TERN_OK);
    static const int32_t segment[] = {12, 13}, longer[] = {12, 13, 14};
    tn_tree got;
    for (int step = 0; step < TN_SEGMENT_LIFE; step++) {
        tn_draft_plan(d, TN_DRAFT_EXTEND, 32, 0, true, &got);
        well_formed(&got, 32);
        assert_true(has_path(&got, segment, 2));
        assert_false(has_path(&got, longer, 3));
    }
    tn_draft_plan(d, TN_DRAFT_EXTEND, 32, 0, true, &got); /* its time is over */
    assert_int_equal(got.n, 1);
    tn_draft_rejected(d, &t, 0, &logits[0][0]);
    /* It also follows the likeliest draft: what came after the first 3 is copied to the text's end. */
    static const int32_t behind[] = {4, 10, 11, 12, 13, 14, 15, 3, 12, 13};
    tn_draft_plan(d, TN_DRAFT_LOOKUP | TN_DRAFT_EXTEND, 32, 0, true, &got);
    assert_true(has_path(&got, behind, 10));
    /* Where the text has reached it, its rest follows, and not its beginning again. */
    assert_int_equal(tn_draft_push(d, 12, &err), TERN_OK);
    tn_draft_plan(d, TN_DRAFT_EXTEND, 32, 0, true, &got);
    assert_true(has_path(&got, segment + 1, 1));
    assert_false(has_path(&got, segment, 1));
    tn_draft_close(&d);
}

/* Where the model agrees with all that follows the rejected token, it may only have wanted something before it: the draft
 * comes back with that token. */
static void a_whole_draft_comes_back(void **state) {
    (void)state;
    static const int32_t text[] = {10, 11, 12, 13, 3, 4, 15}, whole[] = {10, 11, 12};
    static const int32_t model_says[5] = {3, 11, 12, 4,
                                          0}; /* rejects 10, agrees with 11 and 12, not with 13 */
    tn_draft *d = draft_of(text, 7);
    tn_tree t = {0}, got;
    static float logits[5][N_VOCAB];
    tn_tree_add(&t, -1, 15);
    for (int32_t i = 0; i < 4; i++) tn_tree_add(&t, i, 10 + i);
    for (int i = 0; i < 5; i++) logits[i][model_says[i]] = 5;
    tn_draft_rejected(d, &t, 0, &logits[0][0]);
    assert_int_equal(tn_draft_push(d, 3, &err), TERN_OK);
    tn_draft_plan(d, TN_DRAFT_EXTEND, 32, 0, true, &got);
    assert_true(has_path(&got, whole, 3));
    tn_draft_close(&d);
}

/* What rows cost: those of other texts stand beside the drafts, more rows never take less, and what was measured long ago
 * is measured anew. */
static void rows_have_their_price(void **state) {
    (void)state;
    static const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 1, 2, 3, 4, 5};
    static const float rows[] = {1, 8, 32}, steep[] = {1, 1, 40}, few[] = {1, 2, 8},
                       disturbed[] = {1, 3, 1.2f};
    tn_draft *d = draft_of(text, 15);
    tn_tree t;
    tn_draft_give_costs(d, rows, steep, 3, true);
    tn_draft_plan(d, TN_DRAFT_SAM, 32, 0, false, &t);
    assert_in_range(t.n, 3, 9);
    tn_draft_plan(d, TN_DRAFT_SAM, 24, 8, false, &t);
    assert_int_equal(t.n, 1); /* eight of others: the ninth row costs more than the eight */
    tn_draft_give_costs(d, few, disturbed, 3, true);
    tn_draft_plan(d, TN_DRAFT_SAM, 2, 0, false, &t);
    assert_int_equal(t.n, 2);
    tn_draft_close(&d);
    static tn_proposals p;
    const int c = tn_prop_cost_class(8);
    for (int i = 0; i < 4; i++) tn_prop_timed(&p, 1, 1000), tn_prop_timed(&p, 8, 2000);
    const float before = p.cost[c].floor_ns;
    for (int i = 0; i < 250; i++) tn_prop_timed(&p, 1, 1000);
    tn_prop_timed(&p, 8, 9000);
    assert_true(p.cost[c].floor_ns > 3 * before);
}

/* Rates are learned whether a proposal was verified or not; what never comes true is no longer verified; what
 * does, is again. */
static void throttling(void **state) {
    (void)state;
    tn_draft *d = draft_of((const int32_t[]){1, 2, 3}, 3);
    static const float rows[] = {1, 8, 32};
    static const float ms[] = {1, 2, 6};
    tn_draft_give_costs(d, rows, ms, 3, true);
    tn_tree t;
    int32_t early = 0, late = 0;
    tn_rng rng = {1};
    for (int32_t i = 0; i < 400; i++) { /* nothing follows from anything */
        tn_draft_plan(d, TN_DRAFT_ALL, 32, 0, false, &t);
        *(i < 200 ? &early : &late) += t.n - 1;
        assert_int_equal(tn_draft_push(d, (int32_t)tn_rng_below(&rng, N_VOCAB), &err), TERN_OK);
    }
    if (!early || late >= 20) fail_msg("%d drafts early, %d late", early, late);
    assert_int_equal(tn_draft_truncate(d, 3, &err), TERN_OK);
    for (int32_t i = 0; i < 200; i++) {
        tn_draft_plan(d, TN_DRAFT_SAM, 32, 0, false, &t);
        assert_int_equal(tn_draft_push(d, 10 + i % 20, &err), TERN_OK);
    }
    assert_true(t.n > 5);
    tn_draft_close(&d);
}

static void best_nodes(void **state) {
    (void)state;
    static tn_proposals p;
    memset(&p, 0, sizeof p);
    p.at = -1;
    tn_prop_guess(&p, 0, 0.9f);
    tn_prop_guess(&p, 1, 0.2f);
    tn_prop_guess(&p, 2, 0.05f);
    tn_prop_begin(&p, 1);
    int32_t a = tn_prop_add(&p, 0, 2, 0), b = tn_prop_add(&p, a, 3, 0), c = tn_prop_add(&p, 0, 9, 2),
            e = tn_prop_add(&p, a, 8, 1);
    assert_int_equal(tn_prop_add(&p, 0, 2, 1), a); /* the same proposal again */
    assert_true(b > a && c > b && e > c);
    tn_tree t;
    for (int i = 0; i < 4; i++) {
        tn_prop_timed(&p, 1, i == 1 ? 9000 : 1000); /* something else ran meanwhile */
        tn_prop_timed(&p, 4, i == 2 ? 9000 : 1300);
    }
    tn_prop_choose(&p, 32, 0, false, &t);
    assert_true(has_path(&t, (const int32_t[]){2, 3}, 2));
    assert_false(has_path(&t, (const int32_t[]){9}, 1)); /* 5 % of a token for 10 % of a forward */
    tn_prop_choose(&p, 32, 0, true, &t);
    assert_int_equal(t.n, 5);
    tn_prop_choose(&p, 3, 0, true, &t);
    assert_int_equal(t.n, 3);
    assert_true(has_path(&t, (const int32_t[]){2, 3}, 2));
    float before = tn_prop_rate(&p, 0);
    tn_prop_judge(&p, 9); /* neither of the likely ones */
    assert_true(tn_prop_rate(&p, 0) < before && tn_prop_rate(&p, 2) > 0.05f);
    assert_int_equal(p.at, c);
    for (int32_t i = 0; i < 2 * TN_PROP_MAX; i++) { /* more than fit */
        tn_prop_begin(&p, 0);
        for (int32_t j = 0, node = 0; j < 2 * TN_PROP_MAX && node >= 0; j++)
            node = tn_prop_add(&p, i % 2 ? node : 0, j, 0);
        assert_int_equal(p.n, TN_PROP_MAX);
        tn_prop_choose(&p, 32, 0, true, &t);
        well_formed(&t, 32);
    }
}

/* Steps that verify something, of n whose next token is all but certain, on a machine where a forward of rows takes
 * so long; and the most steps between two of them. */
static int tries(tn_proposals *p, int n, int64_t ns_of_a_row_more, int *most_between) {
    int n_tries = 0, last = -1;
    *most_between = 0;
    for (int i = 0; i < n; i++) {
        tn_tree t;
        tn_prop_begin(p, 0);
        tn_prop_add(p, 0, 5, 0);
        tn_prop_choose(p, 32, 0, false, &t);
        tn_prop_judge(p, 5);
        tn_prop_timed(p, t.n, 1000 + (t.n - 1) * ns_of_a_row_more);
        if (t.n == 1) continue;
        if (i - last - 1 > *most_between) *most_between = i - last - 1;
        last = i;
        n_tries++;
    }
    return n_tries;
}

static void a_busy_moment_is_forgotten(void **state) {
    (void)state;
    static const int32_t rows[] = {2, 4, 8, 16};
    static tn_proposals p;
    for (int k = 0; k < 3; k++) {
        bool dear = k == 1, for_good = k == 2;
        memset(&p, 0, sizeof p);
        p.at = -1;
        p.cost_given = for_good;
        tn_prop_guess(&p, 0, 0.95f);
        for (int i = 0; i < 4; i++) {
            int c = tn_prop_cost_class(rows[i]);
            p.cost[c].rows = (float)rows[i];
            p.cost[c].relative = (float)rows[i] + 3;
            p.cost[c].known = true;
        }
        int between, n = tries(&p, 400, dear ? 4000 : 20, &between);
        if (for_good) {
            assert_int_equal(n, 0);
        } else if (dear) { /* one small tree after 32, 64 and 128 steps, and no more */
            assert_int_equal(n, 3);
            assert_int_equal(between, 128);
            assert_int_equal(p.n_refused, 400 - n);
        } else {
            assert_int_equal(n, 400 - 32);
            assert_int_equal(p.n_refused, 32);
        }
    }
}

/* A drafter from outside that says 3, and 4 after it, and asks what comes after each. */
static void says_3_4(void *user, tn_proposals *p, const int32_t *text, int32_t n) {
    (void)text, (void)n;
    bool *asked = user;
    int32_t node = 0;
    *asked = p->behind;
    for (int32_t i = 3; i < 5; i++) {
        node = tn_prop_add(p, node, i, tn_draft_outside_class(TN_DRAFT_MTP, 1));
        if (p->behind) p->behind(p->behind_user, p, node);
    }
}

/* After a guess that leads back to where the text, or the store, has been, comes what followed there. */
static void copies_behind_guesses(void **state) {
    (void)state;
    static const int32_t text[] = {2, 3, 4, 5, 6, 7, 3, 9, 40}, want[] = {3, 4, 5, 6, 7}, one[] = {3, 9},
                         beyond[] = {3, 4, 50, 51};
    bool asked;
    tn_tree t;
    tn_draft *d = draft_of(text, 9);
    tn_draft_set_outside(d, TN_DRAFT_MTP, says_3_4, &asked);
    tn_draft_plan(d, TN_DRAFT_SAM, 32, 0, true, &t);
    assert_int_equal(t.n, 1); /* 40 is new */
    tn_draft_plan(d, TN_DRAFT_MTP, 32, 0, true, &t);
    assert_false(asked); /* without the drafter whose proposals those are */
    assert_int_equal(t.n, 3);
    tn_draft_plan(d, TN_DRAFT_SAM | TN_DRAFT_MTP, 32, 0, true, &t);
    well_formed(&t, 32);
    assert_true(asked && has_path(&t, want, 5));
    assert_false(has_path(&t, one, 2)); /* one token alone says little */
    assert_int_equal(tn_draft_learn(d, (const int32_t[]){40, 3, 4, 50, 51}, 5, &err), TERN_OK);
    tn_draft_plan(d, TN_DRAFT_SAM | TN_DRAFT_MTP, 32, 0, true, &t);
    assert_true(has_path(&t, want, 5) && has_path(&t, beyond, 4));
    tn_draft_close(&d);
}

/* What the step before took and gave is known, and what a row saves is by what a token takes and by the rows in front. */
static void steps_are_accounted(void **state) {
    (void)state;
    static const float rows[] = {1, 4, 8}, ms[] = {1, 1.3f, 2.1f};
    tn_tree t;
    static tn_proposals p;
    p = (tn_proposals){.at = -1, .cost_given = true};
    for (int i = 1; i < 3; i++) {
        int c = tn_prop_cost_class((int32_t)rows[i]);
        p.cost[c].rows = rows[i];
        p.cost[c].relative = ms[i];
        p.cost[c].known = true;
    }
    tn_prop_guess(&p, 0, 0.9f);
    tn_prop_begin(&p, 1);
    assert_true(p.last_tokens == 0); /* there was none */
    int32_t a = tn_prop_add(&p, 0, 2, 0);
    (void)tn_prop_add(&p, a, 3, 0);
    p.spent = 0.5f;
    tn_prop_choose(&p, 32, 0, false, &t);
    assert_int_equal(t.n, 3);
    tn_prop_judge(&p, 2);
    tn_prop_judge(&p, 9);
    tn_prop_begin(&p, 9);
    assert_true(p.last_tokens == 2);
    assert_true(fabsf(p.last_cost - 1.7f) < 1e-6f); /* three rows, and what was guessed */
    tn_prop_choose(&p, 32, 0, false, &t);
    tn_prop_begin(&p, 9);
    assert_true(p.last_tokens == 1 && p.last_cost == 1);
    p.sum_kept = p.sum_promised = 1;
    assert_true(fabsf(tn_prop_gain(&p, 0.8f, 1, 1) - 0.7f) < 1e-6f);
    assert_true(fabsf(tn_prop_gain(&p, 0.8f, 0.25f, 1) - 0.1f) < 1e-6f);
    assert_true(fabsf(tn_prop_gain(&p, 0.8f, 1, 5) - 0.6f) < 1e-6f);
    assert_true(tn_prop_step_ns(&p) == 0);
    p.cost_given = false;
    tn_prop_timed(&p, 4, 2600); /* nobody has evaluated one row alone yet */
    assert_true(fabsf(tn_prop_step_ns(&p) - 2000) < 1);
    tn_prop_timed(&p, 1, 1900);
    assert_true(tn_prop_step_ns(&p) == 1900);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names),
                                       cmocka_unit_test(copies_of_the_text),
                                       cmocka_unit_test(copies_of_the_store),
                                       cmocka_unit_test(calibrated_tree),
                                       cmocka_unit_test(rejected_rows_calibrate),
                                       cmocka_unit_test(rejects_come_back),
                                       cmocka_unit_test(pairs_come_first),
                                       cmocka_unit_test(a_whole_draft_comes_back),
                                       cmocka_unit_test(rows_have_their_price),
                                       cmocka_unit_test(throttling),
                                       cmocka_unit_test(best_nodes),
                                       cmocka_unit_test(a_busy_moment_is_forgotten),
                                       cmocka_unit_test(copies_behind_guesses),
                                       cmocka_unit_test(steps_are_accounted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
