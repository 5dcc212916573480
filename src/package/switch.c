#include "package/switch.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const char *const names[TN_N_SWITCHES] = {"progressive", "async", "sync"};

bool tn_switch_parse(const char *name, tn_switch_kind *out) {
    for (int i = 0; i < TN_N_SWITCHES; i++) {
        if (strcmp(names[i], name)) continue;
        *out = (tn_switch_kind)i;
        return true;
    }
    return false;
}

int32_t tn_switch_window(const double *step_us, int32_t n, double load_us) {
    double sum = 0;
    for (int32_t k = 0; k < n; k++) {
        sum += step_us[k];
        if (load_us <= sum) return k + 1;
    }
    return n + 1;
}

/* Insertion sort by (start, higher block first): the blocks are few and nearly sorted. */
static void make_order(tn_switch_plan *p) {
    for (int32_t i = 0; i < p->n_blocks; i++) {
        int32_t b = p->n_blocks - 1 - i, at = i;
        for (; at > 0 && p->start[p->order[at - 1]] > p->start[b]; at--) p->order[at] = p->order[at - 1];
        p->order[at] = b;
    }
}

static double share_of(const tn_switch_costs *c, int32_t step) {
    return c->last_chunk > 0 && step >= c->n_blocks * (c->n_chunks - 1) ? c->last_chunk : 1;
}

void tn_switch_simulate(const tn_switch_costs *c, tn_switch_plan *p) {
    double t = 0, loader_free = 0, finish[TN_SWITCH_MAX_BLOCKS];
    int32_t n_steps = c->n_blocks * c->n_chunks, next = 0;
    p->n_blocks = c->n_blocks;
    p->n_chunks = c->n_chunks;
    p->stall_us = p->slower_us = 0;
    make_order(p);
    for (int32_t s = 0; s <= n_steps; s++) {
        for (; next < c->n_blocks && p->start[p->order[next]] <= s; next++) {
            int32_t b = p->order[next];
            loader_free = finish[b] = fmax(loader_free, t) + c->load_us[b];
        }
        if (s == n_steps) break;
        int32_t b = s % c->n_blocks;
        if (p->start[b] > s) {
            t += share_of(c, s) * c->g1_us[b];
            continue;
        }
        if (finish[b] > t) {
            p->stall_us += finish[b] - t;
            t = finish[b];
        }
        t += share_of(c, s) * c->g2_us[b];
        p->slower_us += share_of(c, s) * (c->g2_us[b] - c->g1_us[b]);
    }
    p->prefill_us = t;
    p->total_us = fmax(t, loader_free);
    p->stall_us += p->total_us - t;
}

/* ---- the greedy ----------------------------------------------------------------------------------- */

/* Computes the times of the n steps from s on. Blocks whose load has been requested compute on G2. */
static void step_times(const tn_switch_costs *c, const tn_switch_plan *p, int32_t s, int32_t n, double *us) {
    for (int32_t i = 0; i < n; i++) {
        int32_t b = (s + i) % c->n_blocks;
        us[i] = share_of(c, s + i) * (p->start[b] <= s ? c->g2_us[b] : c->g1_us[b]);
    }
}

/* Counts the steps from s until block b computes again, which is the time for its load. Beyond the end of
 * prefill it counts all that are left. */
static int32_t steps_until(const tn_switch_costs *c, int32_t s, int32_t b) {
    int32_t n_steps = c->n_blocks * c->n_chunks, n = (b - s % c->n_blocks + c->n_blocks) % c->n_blocks;
    return n < n_steps - s ? n : n_steps - s;
}

/* Begins at step `first`. While some block is on G1 it loads the last one whose load is hidden by the
 * computation until its next step. If there is none, it takes the block with the least exposed time; a
 * patient greedy first computes one step and tries again. */
static void greedy(const tn_switch_costs *c, int32_t first, bool patient, tn_switch_plan *p) {
    int32_t n_steps = c->n_blocks * c->n_chunks, left = c->n_blocks;
    double us[TN_SWITCH_MAX_BLOCKS];
    for (int32_t b = 0; b < c->n_blocks; b++) p->start[b] = n_steps;
    for (int32_t s = first; s < n_steps && left;) {
        int32_t best = -1, best_k = 1;
        double best_left = INFINITY;
        step_times(c, p, s, c->n_blocks, us);
        for (int32_t b = c->n_blocks - 1; b >= 0; b--) {
            if (p->start[b] < n_steps) continue;
            int32_t n = steps_until(c, s, b);
            bool last_use = s + n == n_steps; /* only decoding waits for it */
            int32_t k = tn_switch_window(us, n, c->load_us[b]);
            if (n && (k <= n || last_use)) {
                best = b;
                best_k = k <= n ? k : n;
                break;
            }
            double rest = c->load_us[b];
            for (int32_t i = 0; i < n; i++) rest -= us[i];
            if (patient || !n || rest >= best_left) continue;
            best = b;
            best_k = n;
            best_left = rest;
        }
        if (best >= 0) {
            p->start[best] = s;
            left--;
        }
        s += best_k;
    }
}

static void keep_better(const tn_switch_costs *c, tn_switch_plan *p, tn_switch_plan *best) {
    tn_switch_simulate(c, p);
    if (p->total_us < best->total_us) *best = *p;
}

/* Moves one block at a time to its best start until nothing changes. This repairs greedy choices that were
 * bad for later blocks. */
static void polish(const tn_switch_costs *c, tn_switch_plan *best) {
    enum { MAX_WORK = 4 << 20 }; /* simulated steps in a round: milliseconds */
    int32_t n_steps = c->n_blocks * c->n_chunks, span = n_steps < 4 * c->n_blocks ? n_steps : 4 * c->n_blocks;
    if ((int64_t)c->n_blocks * span * n_steps > MAX_WORK) return;
    for (int round = 0; round < 4; round++) {
        double before = best->total_us;
        for (int32_t b = 0; b < c->n_blocks; b++) {
            tn_switch_plan p = *best;
            for (int32_t s = n_steps - span; s <= n_steps; s++) {
                p.start[b] = s;
                keep_better(c, &p, best);
            }
        }
        if (best->total_us >= before) return;
    }
}

static bool is_time(double us) { return isfinite(us) && us >= 0; }

tern_status tn_switch_plan_make(const tn_switch_costs *c, tn_switch_kind kind, tn_switch_plan *out,
                                tern_error *err) {
    TN_FAIL_IF(c->n_blocks < 1 || c->n_blocks > TN_SWITCH_MAX_BLOCKS || c->n_chunks < 1 ||
                   c->n_chunks > TN_SWITCH_MAX_STEPS / c->n_blocks,
               err, TERN_E_INVALID,
               "switching %d blocks during %d chunks: 1 to %d blocks and %d steps in all are possible",
               c->n_blocks, c->n_chunks, TN_SWITCH_MAX_BLOCKS, TN_SWITCH_MAX_STEPS);
    TN_FAIL_IF(!is_time(c->last_chunk) || c->last_chunk > 1, err, TERN_E_INVALID, "a last chunk of %g chunks",
               c->last_chunk);
    for (int32_t i = 0; i < c->n_blocks; i++) {
        TN_FAIL_IF(!is_time(c->load_us[i]) || !is_time(c->g1_us[i]) || !is_time(c->g2_us[i]), err,
                   TERN_E_INVALID, "block %d has an impossible time", i);
    }
    int32_t n_steps = c->n_blocks * c->n_chunks;
    tn_switch_plan p;
    for (int32_t b = 0; b < c->n_blocks; b++) out->start[b] = n_steps;
    tn_switch_simulate(c, out);
    if (kind == TN_SWITCH_SYNC) return TERN_OK;
    for (int32_t b = 0; b < c->n_blocks; b++) p.start[b] = n_steps - c->n_blocks + b + 1;
    if (kind == TN_SWITCH_ASYNC) {
        *out = p;
        tn_switch_simulate(c, out);
        return TERN_OK;
    }
    keep_better(c, &p, out);
    /* Tries every start in the last two rounds of the model, and before that chunk boundaries at growing
     * distances: a load that starts too early makes computing slower (G2), one that starts too late is
     * exposed. */
    for (int32_t s = n_steps - 1, stride = c->n_blocks; s >= 0;) {
        for (int patient = 0; patient < 2; patient++) {
            greedy(c, s, patient, &p);
            keep_better(c, &p, out);
        }
        if (s > n_steps - 2 * c->n_blocks || s == 0) {
            s--;
            continue;
        }
        s = s > stride ? s - stride : 0;
        stride *= 2;
    }
    polish(c, out);
    return TERN_OK;
}
