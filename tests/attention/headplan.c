/* tests/attention/headplan.c - are head plans valid, near the best there is, and does every switch do what it
 * says? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "attention/headplan.h"

#include <math.h>
#include <string.h>

static uint64_t rng = 0x5eed4ead;
static uint32_t next_u32(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33);
}
static double uniform(double lo, double hi) { return lo + (hi - lo) * next_u32() / 2147483648.0; }

static tn_headplan make(const tn_headplan_costs *c, tn_headplan_switches sw) {
    tn_headplan p;
    tern_error err;
    assert_int_equal(tn_headplan_make(c, sw, &p, &err), TERN_OK);
    return p;
}

/* The launch times of the paper's example: 2, 3 and 4 ms for 1, 2 and 4 heads. */
static tn_headplan_costs paper_costs(int32_t n_heads) {
    return (tn_headplan_costs){.n_heads = n_heads,
                               .n_widths = 3,
                               .width = {1, 2, 4},
                               .launch_us = {2000, 3000, 4000},
                               .topk_apart = true};
}

static tn_headplan_costs random_costs(int32_t n_heads) {
    tn_headplan_costs c = paper_costs(n_heads);
    double launch = uniform(0.05, 3), gain = uniform(0.5, 1), work = uniform(0.2, 2);
    for (int32_t w = 0; w < 3; w++) c.launch_us[w] = launch * pow(c.width[w], gain);
    c.topk_apart = next_u32() % 2;
    uint32_t n_buckets = 1 + next_u32() % 4;
    for (int32_t i = 0; i < n_heads; i++) {
        double ratio =
            uniform(0.05, 1); /* both stages grow with a head's share of the positions, top-k less */
        c.bucket[i] = (int32_t)(next_u32() % n_buckets) * 7;
        c.topk_us[i] = work * (0.3 + 0.3 * ratio) * uniform(0.9, 1.1);
        c.attend_us[i] = work * 3 * ratio * uniform(0.9, 1.1);
        if (next_u32() % 4 == 0) c.topk_us[i] = uniform(0, 3); /* and sometimes anything */
        if (next_u32() % 4 == 0) c.attend_us[i] = uniform(0, 3);
    }
    return c;
}

static void check_valid(const tn_headplan_costs *c, const tn_headplan *p) {
    bool seen[TN_HEADPLAN_MAX_HEADS] = {false};
    int32_t n_in[TN_HEADPLAN_MAX_HEADS] = {0}, bucket[TN_HEADPLAN_MAX_HEADS];
    assert_int_equal(p->n_heads, c->n_heads);
    for (int32_t i = 0; i < c->n_heads; i++) {
        int32_t head = p->order[i], l = p->launch[head];
        assert_true(head >= 0 && head < c->n_heads && !seen[head]);
        assert_true(l >= 0 && l < p->n_launches);
        seen[head] = true;
        if (n_in[l]++) assert_int_equal(bucket[l], c->bucket[head]);
        bucket[l] = c->bucket[head];
    }
    for (int32_t l = 0; l < p->n_launches; l++) assert_int_equal(n_in[l], p->width[l]);
}

/* ---- the best there is: every order of heads, every cut of every bucket's heads into launches -------- */

typedef struct search {
    const tn_headplan_costs *c;
    double best;
    bool used[8];
    int32_t room[8]; /* of each bucket the heads its last launch still has place for */
    double ready[8], attend_left;
} search;

static void go_on(search *s, int32_t n_done, double npu, double topk, double attend) {
    const tn_headplan_costs *c = s->c;
    if (fmax(attend, fmax(npu, topk)) >= s->best || attend + s->attend_left >= s->best) return;
    if (n_done == c->n_heads) {
        for (int32_t b = 0; b < 8; b++) {
            if (s->room[b]) return; /* a launch with places left over: another cut */
        }
        s->best = attend;
        return;
    }
    for (int32_t h = 0; h < c->n_heads; h++) {
        if (s->used[h]) continue;
        int32_t b = c->bucket[h] / 7;
        s->used[h] = true;
        s->attend_left -= c->attend_us[h];
        int32_t room = s->room[b];
        double ready_was = s->ready[b];
        for (int32_t w = 0; w < (room ? 1 : c->n_widths); w++) {
            double t_npu = npu;
            if (!room) {
                t_npu += c->launch_us[w];
                s->ready[b] = t_npu;
                s->room[b] = c->width[w];
            }
            s->room[b]--;
            double t_topk = fmax(s->ready[b], c->topk_apart ? topk : attend) + c->topk_us[h],
                   t_attend = fmax(t_topk, attend) + c->attend_us[h];
            go_on(s, n_done + 1, t_npu, t_topk, t_attend);
            s->room[b] = room;
            s->ready[b] = ready_was;
        }
        s->attend_left += c->attend_us[h];
        s->used[h] = false;
    }
}

static double best_of(const tn_headplan_costs *c) {
    search s = {.c = c, .best = INFINITY};
    for (int32_t i = 0; i < c->n_heads; i++) s.attend_left += c->attend_us[i];
    go_on(&s, 0, 0, 0, 0);
    return s.best;
}

static void against_exhaustive_search(void **state) {
    (void)state;
    double sum = 0, worst = 1;
    int n_best = 0, n = 0;
    for (int trial = 0; trial < 300; trial++) {
        tn_headplan_costs c = random_costs(1 + (int32_t)(next_u32() % 7));
        tn_headplan p = make(&c, (tn_headplan_switches){0});
        check_valid(&c, &p);
        double best = best_of(&c), ratio = p.total_us / best;
        assert_true(ratio >= 1 - 1e-9);
        sum += ratio;
        worst = fmax(worst, ratio);
        n_best += ratio < 1 + 1e-9;
        n++;
    }
    print_message("plan / best: mean %.5f, worst %.4f, best in %d of %d\n", sum / n, worst, n_best, n);
    assert_true(worst <= 1.05);
}

/* What the paper's figure 9 shows on two heads: each of the three means shortens the time. */
static void figure_9(void **state) {
    (void)state;
    tn_headplan_costs c = paper_costs(2);
    c.topk_us[0] = c.topk_us[1] = 1000;
    c.attend_us[0] = 3000;
    c.attend_us[1] = 1000;
    tn_headplan naive =
        make(&c, (tn_headplan_switches){.in_order = true, .no_fusion = true, .no_overlap = true});
    tn_headplan overlapped = make(&c, (tn_headplan_switches){.in_order = true, .no_fusion = true});
    tn_headplan fused = make(&c, (tn_headplan_switches){.in_order = true});
    assert_true(naive.total_us == 10000);
    assert_true(overlapped.total_us == 7000); /* 2 + 1 + 3, then the second's 1 */
    assert_true(fused.total_us == 7000);
    c.attend_us[0] = 1000;
    c.attend_us[1] = 3000;
    overlapped = make(&c, (tn_headplan_switches){.in_order = true, .no_fusion = true});
    tn_headplan ordered = make(&c, (tn_headplan_switches){.no_fusion = true});
    assert_true(overlapped.total_us == 8000 && ordered.total_us == 7000); /* the long one first */
    assert_int_equal(ordered.order[0], 1);
    c.launch_us[1] = 2200;
    fused = make(&c, (tn_headplan_switches){.in_order = true});
    assert_int_equal(fused.n_launches, 1);
    assert_true(fused.total_us == 2200 + 1000 + 1000 + 3000);
    c.bucket[1] = 1; /* another scale: nothing to fuse */
    fused = make(&c, (tn_headplan_switches){.in_order = true});
    assert_int_equal(fused.n_launches, 2);
}

/* More freedom never costs, whatever the number of heads; the accounts add up. */
static void switches(void **state) {
    (void)state;
    for (int trial = 0; trial < 300; trial++) {
        tn_headplan_costs c = random_costs(1 + (int32_t)(next_u32() % 40));
        double total[8];
        for (unsigned s = 0; s < 8; s++) {
            tn_headplan_switches sw = {.in_order = s & 1, .no_fusion = s & 2, .no_overlap = s & 4};
            tn_headplan p = make(&c, sw);
            check_valid(&c, &p);
            total[s] = p.total_us;
            assert_true(fabs(tn_headplan_simulate(&c, sw.no_overlap, &p) - p.total_us) < 1e-9);
            assert_true(p.total_us <= p.device_us + p.cpu_us + 1e-9 && p.total_us >= p.device_us - 1e-9);
            if (!c.topk_apart) assert_true(p.total_us >= p.cpu_us - 1e-9);
            if (sw.no_overlap) assert_true(fabs(p.total_us - p.device_us - p.cpu_us) < 1e-9);
            for (int32_t l = 0; sw.no_fusion && l < p.n_launches; l++) assert_int_equal(p.width[l], 1);
            for (int32_t i = 0; sw.in_order && i < p.n_heads; i++) assert_int_equal(p.order[i], i);
        }
        for (unsigned s = 1; s < 8; s++)
            assert_true(total[0] <= total[s] * 1.03); /* two searches, each of them only near the best */
        assert_true(total[0] <= total[4] + 1e-9 && total[2] <= total[6] + 1e-9);
    }
}

/* Algorithm 1, written again from the paper: launches as wide as there are heads for them, bucket by
 * bucket; the next launch is the one whose heads are attended first; within a launch the next head is the
 * one attended first. */
static double algorithm_1(const tn_headplan_costs *c, int32_t *order) {
    int32_t group_of[TN_HEADPLAN_MAX_HEADS], group_width[TN_HEADPLAN_MAX_HEADS], n_groups = 0, n = 0;
    for (int32_t bucket = 0; bucket < 8; bucket++) {
        int32_t left = 0, room = 0;
        for (int32_t i = 0; i < c->n_heads; i++) left += c->bucket[i] == bucket * 7;
        for (int32_t i = 0; i < c->n_heads; i++) {
            if (c->bucket[i] != bucket * 7) continue;
            if (!room) { /* 4, 2, 1: what still fits */
                int32_t w = c->n_widths - 1;
                while (c->width[w] > left) w--;
                room = group_width[n_groups++] = c->width[w];
                left -= room;
            }
            group_of[i] = n_groups - 1;
            room--;
        }
    }
    double npu = 0, topk = 0, attend = 0;
    bool launched[TN_HEADPLAN_MAX_HEADS] = {false};
    for (int32_t step = 0; step < n_groups; step++) {
        int32_t best = -1, best_order[TN_HEADPLAN_MAX_HEADS];
        double at[3] = {0};
        for (int32_t g = 0; g < n_groups; g++) {
            if (launched[g]) continue;
            int32_t w = 0, some[TN_HEADPLAN_MAX_HEADS], k = 0;
            while (c->width[w] != group_width[g]) w++;
            double t[3] = {npu + c->launch_us[w], topk, attend};
            bool done[TN_HEADPLAN_MAX_HEADS] = {false};
            for (; k < group_width[g]; k++) {
                double end[2] = {0};
                some[k] = -1;
                for (int32_t i = 0; i < c->n_heads; i++) {
                    if (group_of[i] != g || done[i]) continue;
                    double a = fmax(t[0], t[1]) + c->topk_us[i], b = fmax(t[2], a) + c->attend_us[i];
                    if (some[k] >= 0 && b >= end[1]) continue;
                    some[k] = i, end[0] = a, end[1] = b;
                }
                done[some[k]] = true, t[1] = end[0], t[2] = end[1];
            }
            if (best >= 0 && t[2] >= at[2]) continue;
            best = g;
            memcpy(at, t, sizeof at);
            memcpy(best_order, some, (size_t)k * sizeof *some);
        }
        launched[best] = true;
        npu = at[0], topk = at[1], attend = at[2];
        for (int32_t k = 0; k < group_width[best]; k++) order[n++] = best_order[k];
    }
    return attend;
}

static void as_the_paper_prints_it(void **state) {
    (void)state;
    for (int trial = 0; trial < 200; trial++) {
        tn_headplan_costs c = random_costs(1 + (int32_t)(next_u32() % 24));
        int32_t order[TN_HEADPLAN_MAX_HEADS];
        c.topk_apart = true;            /* as in the paper's recurrence */
        for (int32_t w = 1; w < 3; w++) /* where wider launches pay, "fuse the heads" has one meaning */
            c.launch_us[w] = c.launch_us[w - 1] * 1.2;
        double total = algorithm_1(&c, order);
        tn_headplan p = make(&c, (tn_headplan_switches){.as_printed = true});
        check_valid(&c, &p);
        assert_true(fabs(p.total_us - total) < 1e-9 * total + 1e-9);
        for (int32_t i = 0; i < c.n_heads; i++) assert_int_equal(p.order[i], order[i]);
        assert_true(make(&c, (tn_headplan_switches){0}).total_us <= p.total_us + 1e-9);
    }
}

/* The most heads, all alike, all different, nothing to do. */
static void extremes(void **state) {
    (void)state;
    tn_headplan_costs c = paper_costs(TN_HEADPLAN_MAX_HEADS);
    tn_headplan p = make(&c, (tn_headplan_switches){0});
    check_valid(&c, &p);
    assert_int_equal(p.n_launches, TN_HEADPLAN_MAX_HEADS / 4);
    for (int32_t i = 0; i < c.n_heads; i++) c.bucket[i] = -i;
    p = make(&c, (tn_headplan_switches){0});
    check_valid(&c, &p);
    assert_int_equal(p.n_launches, TN_HEADPLAN_MAX_HEADS);
    memset(c.launch_us, 0, sizeof c.launch_us);
    p = make(&c, (tn_headplan_switches){0});
    check_valid(&c, &p);
    assert_true(p.total_us == 0);
}

static void refuses_nonsense(void **state) {
    (void)state;
    tn_headplan p;
    tern_error err;
    tn_headplan_switches sw = {0};
    tn_headplan_costs c = paper_costs(0);
    assert_int_equal(tn_headplan_make(&c, sw, &p, &err), TERN_E_INVALID);
    c = paper_costs(TN_HEADPLAN_MAX_HEADS + 1);
    assert_int_equal(tn_headplan_make(&c, sw, &p, &err), TERN_E_INVALID);
    c = paper_costs(2);
    c.width[0] = 2;
    assert_int_equal(tn_headplan_make(&c, sw, &p, &err), TERN_E_INVALID);
    c = paper_costs(2);
    c.width[2] = 2;
    assert_int_equal(tn_headplan_make(&c, sw, &p, &err), TERN_E_INVALID);
    c = paper_costs(2);
    c.launch_us[1] = NAN;
    assert_int_equal(tn_headplan_make(&c, sw, &p, &err), TERN_E_INVALID);
    c = paper_costs(2);
    c.attend_us[1] = -1;
    assert_int_equal(tn_headplan_make(&c, sw, &p, &err), TERN_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_exhaustive_search),
        cmocka_unit_test(figure_9),
        cmocka_unit_test(switches),
        cmocka_unit_test(as_the_paper_prints_it),
        cmocka_unit_test(extremes),
        cmocka_unit_test(refuses_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
