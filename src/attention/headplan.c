#include "attention/headplan.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    MAX = TN_HEADPLAN_MAX_HEADS,
    SEARCH_STEPS = 48 * 1024
}; /* heads considered while improving: some hundred microseconds */

/* A candidate plan: the heads in CPU order, and for every bucket the widths of its launches in order of
 * need, as indices into c->width. */
typedef struct candidate {
    uint8_t order[MAX];
    uint8_t widths[MAX]; /* bucket b's at first[b].. */
    uint8_t n_widths[MAX];
    double total_us;
} candidate;

typedef struct planner {
    const tn_headplan_costs *c;
    tn_headplan_switches sw;
    int32_t n_buckets;
    uint8_t bucket[MAX];           /* [head] 0..n_buckets-1 */
    int32_t first[MAX], n_in[MAX]; /* [bucket] */
    uint64_t rng;
    candidate best;
} planner;

_Static_assert(MAX < 256, "heads, buckets and their counts are bytes");

/* Clocks of the three stages. */
typedef struct clocks {
    double npu, topk, attend;
} clocks;

static void cpu_step(const tn_headplan_costs *c, clocks *t, double ready, int32_t head) {
    if (c->topk_apart) {
        t->topk = fmax(ready, t->topk) + c->topk_us[head];
        t->attend = fmax(t->attend, t->topk) + c->attend_us[head];
    } else {
        t->attend = fmax(ready, t->attend) + c->topk_us[head] + c->attend_us[head];
    }
}

static double no_overlap_us(const tn_headplan_costs *c, const int32_t *width, int32_t n_launches) {
    double t = 0;
    for (int32_t i = 0; i < c->n_heads; i++) t += c->topk_us[i] + c->attend_us[i];
    for (int32_t l = 0; l < n_launches; l++) {
        int32_t w = 0;
        while (c->width[w] != width[l]) w++;
        t += c->launch_us[w];
    }
    return t;
}

double tn_headplan_simulate(const tn_headplan_costs *c, bool no_overlap, const tn_headplan *p) {
    if (no_overlap) return no_overlap_us(c, p->width, p->n_launches);
    double ready[MAX];
    clocks t = {0};
    for (int32_t l = 0; l < p->n_launches; l++) {
        int32_t w = 0;
        while (c->width[w] != p->width[l]) w++;
        ready[l] = t.npu += c->launch_us[w];
    }
    for (int32_t i = 0; i < p->n_heads; i++) cpu_step(c, &t, ready[p->launch[p->order[i]]], p->order[i]);
    return t.attend;
}

/* ---- candidates ----------------------------------------------------------------------------------- */

/* Computes a candidate's time. Launches follow from order and widths. With `out` it also writes the plan. */
static double evaluate(const planner *p, const candidate *a, tn_headplan *out) {
    const tn_headplan_costs *c = p->c;
    clocks t = {0};
    double ready[MAX], cpu = 0;
    uint8_t left[MAX], next[MAX], launch[MAX];
    int32_t n_launches = 0;
    memset(left, 0, (size_t)p->n_buckets);
    memset(next, 0, (size_t)p->n_buckets);
    for (int32_t i = 0; i < c->n_heads; i++) {
        int32_t head = a->order[i], b = p->bucket[head];
        if (!left[b]) {
            int32_t w = a->widths[p->first[b] + next[b]++];
            left[b] = (uint8_t)c->width[w];
            ready[b] = t.npu += c->launch_us[w];
            launch[b] = (uint8_t)n_launches;
            if (out) out->width[n_launches] = c->width[w];
            n_launches++;
        }
        left[b]--;
        if (out) {
            out->order[i] = head;
            out->launch[head] = launch[b];
        }
        cpu += c->topk_us[head] + c->attend_us[head];
        cpu_step(c, &t, ready[b], head);
    }
    if (p->sw.no_overlap) t.attend = t.npu + cpu;
    if (out) {
        out->n_heads = c->n_heads;
        out->n_launches = n_launches;
        out->total_us = t.attend;
        out->device_us = t.npu;
        out->cpu_us = cpu;
    }
    return t.attend;
}

static void keep_if_better(planner *p, const candidate *a, double us) {
    if (us >= p->best.total_us) return;
    p->best = *a;
    p->best.total_us = us;
}

/* Finds the widths that hold n heads in the least device time: none above c->width[cap], wide ones first. */
static int32_t fill_widths(const tn_headplan_costs *c, int32_t n, int32_t cap, uint8_t *widths) {
    double least[MAX + 1];
    uint8_t choice[MAX + 1];
    least[0] = 0;
    for (int32_t i = 1; i <= n; i++) {
        least[i] = INFINITY;
        for (int32_t w = 0; w <= cap && c->width[w] <= i; w++) {
            double us = least[i - c->width[w]] + c->launch_us[w];
            if (us < least[i] || w == 0) {
                least[i] = us;
                choice[i] = (uint8_t)w;
            }
        }
    }
    int32_t n_widths = 0;
    for (int32_t i = n; i > 0; i -= c->width[choice[i]]) widths[n_widths++] = choice[i];
    for (int32_t i = 1; i < n_widths; i++) { /* insertion sort, descending */
        uint8_t w = widths[i];
        int32_t at = i;
        for (; at > 0 && widths[at - 1] < w; at--) widths[at] = widths[at - 1];
        widths[at] = w;
    }
    return n_widths;
}

/* ---- Algorithm 1 ------------------------------------------------------------------------------------ */

typedef struct group { /* heads fused in a launch */
    const int32_t *heads;
    int32_t n, bucket;
    uint8_t width;
    bool done;
} group;

/* Orders the group's heads as the paper's C/GPUPlan does: it repeatedly takes the head whose attend ends
 * first. */
static void cpu_plan(const tn_headplan_costs *c, clocks *t, const group *g, uint8_t *order) {
    bool done[MAX] = {false};
    for (int32_t i = 0; i < g->n; i++) {
        int32_t best = -1;
        clocks t_best = *t;
        for (int32_t j = 0; j < g->n; j++) {
            if (done[j]) continue;
            clocks u = *t;
            cpu_step(c, &u, t->npu, g->heads[j]);
            if (best >= 0 && u.attend >= t_best.attend) continue;
            best = j;
            t_best = u;
        }
        done[best] = true;
        order[i] = (uint8_t)g->heads[best];
        *t = t_best;
    }
}

/* Fuses the heads of every bucket in the given order, then repeatedly takes the launch whose heads are
 * attended first. */
static void greedy(planner *p, int32_t cap, candidate *a) {
    const tn_headplan_costs *c = p->c;
    int32_t members[MAX], n_groups = 0, at = 0;
    group groups[MAX];
    for (int32_t b = 0; b < p->n_buckets; b++) {
        int32_t begin = at;
        for (int32_t i = 0; i < c->n_heads; i++) {
            if (p->bucket[i] == b) members[at++] = i;
        }
        a->n_widths[b] = (uint8_t)fill_widths(c, at - begin, cap, a->widths + p->first[b]);
        for (int32_t w = 0; w < a->n_widths[b]; w++) {
            uint8_t width = a->widths[p->first[b] + w];
            groups[n_groups++] =
                (group){.heads = members + begin, .n = c->width[width], .bucket = b, .width = width};
            begin += c->width[width];
        }
        a->n_widths[b] = 0; /* filled again below, in the order of launches */
    }
    clocks t = {0};
    for (int32_t n_done = 0, step = 0; step < n_groups; step++) {
        group *best = NULL;
        clocks t_best = t;
        uint8_t order[MAX];
        for (int32_t i = 0; i < n_groups; i++) {
            if (groups[i].done) continue;
            clocks u = t;
            u.npu += c->launch_us[groups[i].width];
            cpu_plan(c, &u, &groups[i], order);
            if (best && u.attend >= t_best.attend) continue;
            best = &groups[i];
            t_best = u;
        }
        t.npu += c->launch_us[best->width];
        cpu_plan(c, &t, best, a->order + n_done);
        n_done += best->n;
        best->done = true;
        a->widths[p->first[best->bucket] + a->n_widths[best->bucket]++] = best->width;
    }
    for (int32_t i = 0; p->sw.in_order && i < c->n_heads; i++) a->order[i] = (uint8_t)i;
}

/* ---- improvement: annealing ------------------------------------------------------------------------- */

static uint32_t below(planner *p, int32_t n) {
    p->rng = p->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((p->rng >> 33) * (uint64_t)n >> 31);
}

static void move_head(candidate *a, uint32_t from, uint32_t to) {
    uint8_t head = a->order[from];
    if (from < to) memmove(a->order + from, a->order + from + 1, to - from);
    else memmove(a->order + to + 1, a->order + to, from - to);
    a->order[to] = head;
}

static void swap_bytes(uint8_t *x, uint8_t *y) {
    uint8_t t = *x;
    *x = *y;
    *y = t;
}

static int32_t width_index(const tn_headplan_costs *c, int32_t width) {
    for (int32_t w = 0; w < c->n_widths; w++) {
        if (c->width[w] == width) return w;
    }
    return -1;
}

/* Splits a launch in two, merges two, or swaps two neighbours, at a random place. Returns false where that is
 * not possible. */
static bool change_widths(planner *p, candidate *a) {
    const tn_headplan_costs *c = p->c;
    uint32_t b = below(p, p->n_buckets), n = a->n_widths[b], at = below(p, (int32_t)n);
    uint8_t *to = a->widths + p->first[b] + at;
    if (below(p, 2)) {
        int32_t w = (int32_t)below(p, c->n_widths), rest = width_index(c, c->width[to[0]] - c->width[w]);
        if (rest < 0) return false;
        memmove(to + 1, to, n - at);
        to[0] = (uint8_t)w;
        to[1] = (uint8_t)rest;
        a->n_widths[b]++;
        return true;
    }
    if (at + 1 >= n) return false;
    int32_t both = below(p, 2) ? width_index(c, c->width[to[0]] + c->width[to[1]]) : -1;
    if (both < 0) {
        swap_bytes(&to[0], &to[1]);
        return to[0] != to[1];
    }
    to[0] = (uint8_t)both;
    memmove(to + 1, to + 2, n - at - 2);
    a->n_widths[b]--;
    return true;
}

static bool change(planner *p, candidate *a) {
    int32_t n = p->c->n_heads;
    uint32_t kind = below(p, 8);
    if (p->sw.in_order || (kind < 2 && !p->sw.no_fusion)) return change_widths(p, a);
    uint32_t i = below(p, n), j = below(p, n);
    if (kind < 6) move_head(a, i, j);
    else swap_bytes(&a->order[i], &a->order[j]);
    return i != j;
}

/* Returns a time that no plan can beat: every stage's work, plus the shortest lead-in of the stages before it
 * and the shortest lead-out of the stages after it. */
static double bound_us(const planner *p) {
    const tn_headplan_costs *c = p->c;
    double topk = 0, attend = 0, least_topk = INFINITY, least_attend = INFINITY, least_both = INFINITY,
           device = 0, first = INFINITY;
    for (int32_t i = 0; i < c->n_heads; i++) {
        topk += c->topk_us[i];
        attend += c->attend_us[i];
        least_topk = fmin(least_topk, c->topk_us[i]);
        least_attend = fmin(least_attend, c->attend_us[i]);
        least_both = fmin(least_both, c->topk_us[i] + c->attend_us[i]);
    }
    int32_t cap = p->sw.no_fusion ? 0 : c->n_widths - 1;
    for (int32_t w = 0; w <= cap; w++) first = fmin(first, c->launch_us[w]);
    for (int32_t b = 0; b < p->n_buckets; b++) {
        uint8_t widths[MAX];
        for (int32_t w = fill_widths(c, p->n_in[b], cap, widths); w-- > 0;) device += c->launch_us[widths[w]];
    }
    double cpu = c->topk_apart ? fmax(least_topk + attend, topk + least_attend) : topk + attend;
    return fmax(first + cpu, device + least_both);
}

/* Anneals from the greedy plan, several times if steps are left, each time from the best so far. It ends when
 * the lower bound is met or the steps are spent. */
static void improve(planner *p) {
    int32_t n = p->c->n_heads, left = SEARCH_STEPS / n, rounds = left / (64 * n);
    if ((p->sw.in_order && p->sw.no_fusion) || n == 1) return;
    if (left > 1024 * n) left = 1024 * n;
    rounds = rounds < 1 ? 1 : rounds > 16 ? 16 : rounds;
    double bound = bound_us(p) * (1 + 1e-9);
    for (int32_t per_round = left / rounds; rounds > 0 && p->best.total_us > bound; rounds--) {
        candidate now = p->best;
        double now_us = now.total_us;
        for (left = per_round; left > 0 && p->best.total_us > bound; left--) {
            candidate trial = now;
            if (!change(p, &trial)) continue;
            double heat = 0.8 / n * p->best.total_us * left / per_round, us = evaluate(p, &trial, NULL);
            if (us > now_us + heat * (double)below(p, 1 << 20) / (1 << 20)) continue;
            now = trial;
            now_us = us;
            keep_if_better(p, &trial, us);
        }
    }
}

/* ---- the plan --------------------------------------------------------------------------------------- */

static tern_status check(const tn_headplan_costs *c, tern_error *err) {
    TN_FAIL_IF(c->n_heads < 1 || c->n_heads > MAX, err, TERN_E_INVALID,
               "%d heads to plan, 1..%d are possible", c->n_heads, MAX);
    TN_FAIL_IF(c->n_widths < 1 || c->n_widths > TN_HEADPLAN_MAX_WIDTHS || c->width[0] != 1, err,
               TERN_E_INVALID, "%d widths of launches, the first must be 1", c->n_widths);
    for (int32_t w = 0; w < c->n_widths; w++) {
        TN_FAIL_IF((w && c->width[w] <= c->width[w - 1]) || c->width[w] > MAX, err, TERN_E_INVALID,
                   "widths of launches must ascend, none above %d", MAX);
        TN_FAIL_IF(!(c->launch_us[w] >= 0) || isinf(c->launch_us[w]), err, TERN_E_INVALID,
                   "a launch of %d heads cannot take %g us", c->width[w], c->launch_us[w]);
    }
    for (int32_t i = 0; i < c->n_heads; i++) {
        TN_FAIL_IF(!(c->topk_us[i] >= 0) || isinf(c->topk_us[i]) || !(c->attend_us[i] >= 0) ||
                       isinf(c->attend_us[i]),
                   err, TERN_E_INVALID, "head %d cannot take %g + %g us", i, c->topk_us[i], c->attend_us[i]);
    }
    return TERN_OK;
}

static void number_buckets(planner *p) {
    for (int32_t i = 0; i < p->c->n_heads; i++) {
        int32_t same = 0;
        while (p->c->bucket[same] != p->c->bucket[i]) same++;
        p->bucket[i] = same < i ? p->bucket[same] : (uint8_t)p->n_buckets++;
        p->n_in[p->bucket[i]]++;
    }
    for (int32_t b = 1; b < p->n_buckets; b++) p->first[b] = p->first[b - 1] + p->n_in[b - 1];
}

tern_status tn_headplan_make(const tn_headplan_costs *c, tn_headplan_switches switches, tn_headplan *out,
                             tern_error *err) {
    TN_TRY(check(c, err));
    planner p = {.c = c, .sw = switches, .best.total_us = INFINITY};
    number_buckets(&p);
    int32_t cap = switches.no_fusion ? 0 : c->n_widths - 1;
    for (int32_t w = switches.no_overlap || switches.as_printed ? cap : 0; w <= cap; w++) {
        candidate a;
        greedy(&p, w, &a);
        keep_if_better(&p, &a, evaluate(&p, &a, NULL));
    }
    if (!switches.no_overlap && !switches.as_printed) improve(&p);
    evaluate(&p, &p.best, out);
    assert(fabs(tn_headplan_simulate(c, switches.no_overlap, out) - out->total_us) <= 1e-9 * out->total_us);
    return TERN_OK;
}
