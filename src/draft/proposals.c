#include "draft/proposals.h"

#include <math.h>
#include <string.h>

static const float GUESS_WEIGHT = 10,
                   MEMORY = 96;           /* weight of the first guess in observations; about as many are
                                             remembered */
static const float MIN_P = 0.02f;         /* a less likely node is not worth a row */
static const float MARGIN = 1.05f;        /* gain a draft must promise, because measured times are not
                                             exact */
static const float ROW_COST = 0.015f;     /* of a further row, relative to a forward of one, until measured */
static const float TRUST = 0.95f;         /* decay of the share of kept promises */
static const float FLOOR_RISE = 1.01f;    /* rise of a floor with every new time */
static const float RELATIVE_SHARE = 0.1f; /* weight of a new relative time in the running mean */
enum { FEW_TIMES = 3, FRESH_STEPS = 200 }; /* times a floor needs; steps it stays fresh */
static const float STALE = 0.5f; /* times are dropped if rows take less than this of what they added */
/* Steps before times are tried again, doubled up to this often; rows of the tree that tries them, enough to see
 * whether rows are dear. */
enum { PATIENCE = 32, MOST_PROBED = 16, PROBE_ROWS = 4 };

void tn_prop_guess(tn_proposals *p, int class_, float rate) {
    p->tried[class_] = GUESS_WEIGHT;
    p->accepted[class_] = GUESS_WEIGHT * rate;
}

float tn_prop_rate(const tn_proposals *p, int class_) { return p->accepted[class_] / p->tried[class_]; }

int tn_prop_cost_class(int32_t n_rows) {
    static const int32_t up_to[TN_PROP_COSTS] = {1, 2, 4, 8, 12, 16, 20, 24, TN_TREE_MAX};
    int c = 0;
    while (n_rows > up_to[c]) c++;
    return c;
}

/* Fills in the relative time of every number of rows: linear between the known classes, with the slope of
 * the last class beyond. It never falls: n rows take no longer than more rows, so a time above that of a
 * larger class was disturbed. Without measurements it is the line of ROW_COST. */
static void fill_costs(const tn_proposals *p, bool measured, float *cost) {
    float r0 = 1, t0 = 1, slope = ROW_COST, at_most[TN_PROP_COSTS], least = INFINITY;
    int32_t i = 2;
    cost[1] = 1;
    for (int c = TN_PROP_COSTS - 1; c > 0; c--) {
        if (measured && p->cost[c].known && p->cost[c].relative < least) least = p->cost[c].relative;
        at_most[c] = least;
    }
    for (int c = 1; c < TN_PROP_COSTS; c++) {
        if (!measured || !p->cost[c].known) continue;
        float r1 = p->cost[c].rows, t1 = at_most[c] > t0 ? at_most[c] : t0;
        slope = (t1 - t0) / (r1 - r0);
        for (; i <= TN_TREE_MAX && (float)i <= r1; i++) cost[i] = t0 + slope * ((float)i - r0);
        r0 = r1;
        t0 = t1;
    }
    for (; i <= TN_TREE_MAX; i++) cost[i] = t0 + slope * ((float)i - r0);
}

/* Current times, filled in once a step or when they have changed. */
static const float *costs(tn_proposals *p) {
    if (!p->is_filled) fill_costs(p, true, p->cost_of);
    p->is_filled = true;
    return p->cost_of;
}

void tn_prop_begin(tn_proposals *p, int32_t root) {
    p->last_tokens = p->n_rows ? 1 + p->kept : 0;
    p->last_cost = p->n_rows ? costs(p)[p->n_rows] + p->spent : 0;
    p->n_rows = 0;
    p->spent = 0;
    if (p->promised > 0) {
        p->sum_promised = TRUST * p->sum_promised + p->promised;
        p->sum_kept = TRUST * p->sum_kept + p->kept;
    } else {
        p->sum_kept += (1 - TRUST) * 0.25f * (p->sum_promised - p->sum_kept); /* not tried: slowly recovers */
    }
    p->promised = p->kept = 0;
    memset(p->chosen, 0, sizeof p->chosen);
    p->n = 1;
    p->at = 0;
    p->node[0] = (tn_prop){.token = root, .parent = -1, .child = -1, .sibling = -1, .p = 1};
}

static float node_rate(const tn_proposals *p, const tn_prop *x) {
    float best = 0;
    for (int i = 0; i < x->n_classes; i++) {
        float r = tn_prop_rate(p, x->classes[i]);
        best = r > best ? r : best;
    }
    return best;
}

/* The class whose rate counts. */
static int best_class(const tn_proposals *p, const tn_prop *x) {
    int best = x->classes[0];
    for (int i = 1; i < x->n_classes; i++)
        if (tn_prop_rate(p, x->classes[i]) > tn_prop_rate(p, best)) best = x->classes[i];
    return best;
}

int32_t tn_prop_add(tn_proposals *p, int32_t parent, int32_t token, int class_) {
    tn_prop *up = &p->node[parent];
    int32_t i = up->child;
    while (i >= 0 && p->node[i].token != token) i = p->node[i].sibling;
    if (i < 0) {
        if (p->n == TN_PROP_MAX) return -1;
        i = p->n++;
        p->node[i] = (tn_prop){.token = token,
                               .parent = (int16_t)parent,
                               .child = -1,
                               .sibling = up->child,
                               .depth = (int16_t)(up->depth + 1)};
        up->child = (int16_t)i;
    }
    tn_prop *x = &p->node[i];
    bool known = x->n_classes == TN_PROP_EVIDENCE;
    for (int c = 0; c < x->n_classes; c++) known |= x->classes[c] == class_;
    if (!known) x->classes[x->n_classes++] = (uint8_t)class_;
    x->p = up->p * node_rate(p, x);
    return i;
}

void tn_prop_judge(tn_proposals *p, int32_t token) {
    if (p->at < 0) return;
    int32_t next = -1;
    for (int32_t i = p->node[p->at].child; i >= 0; i = p->node[i].sibling) {
        const tn_prop *x = &p->node[i];
        bool hit = x->token == token;
        if (hit) next = i;
        p->kept += hit && p->chosen[i];
        if (hit && p->chosen[i]) p->n_accepted[x->by]++;
        for (int c = 0; c < x->n_classes; c++) {
            float *tried = &p->tried[x->classes[c]], *accepted = &p->accepted[x->classes[c]];
            if (*tried >= MEMORY) {
                *tried *= 0.5f;
                *accepted *= 0.5f;
            }
            *tried += 1;
            *accepted += hit;
        }
    }
    p->at = next;
}

float tn_prop_worth(tn_proposals *p) {
    const float *cost = costs(p);
    float half_row = 0.5f * (cost[8] - cost[1]) / 7; /* of the first few only half: it is an estimate */
    return half_row > MIN_P ? half_row : MIN_P;
}

/* Ends a probe: drops the times if they are those of a busier moment. */
static void end_probe(tn_proposals *p, int32_t n_rows, int64_t ns) {
    if (!p->probing || n_rows < 2) return;
    p->probing = false;
    if (!p->cost[0].n) return;
    const float more = (float)ns / p->cost[0].floor_ns - 1;
    if (more >= STALE * (costs(p)[n_rows] - 1)) return;
    for (int c = 1; c < TN_PROP_COSTS; c++) p->cost[c].known = false, p->cost[c].n = 0;
    p->is_filled = false;
}

void tn_prop_timed(tn_proposals *p, int32_t n_rows, int64_t ns) {
    if (p->cost_given) return;
    end_probe(p, n_rows, ns);
    int c = tn_prop_cost_class(n_rows);
    const float *cost = costs(p);
    float x = (float)ns;
    if (p->cost[c].rows <= 0) p->cost[c].rows = (float)n_rows;
    /* as if it had been the class's own number of rows */
    float rows = p->cost[c].rows, below = cost[(int)rows],
          above = cost[(int)rows < TN_TREE_MAX ? (int)rows + 1 : TN_TREE_MAX];
    x *= (below + (above - below) * (rows - (float)(int)rows)) / cost[n_rows];
    bool stale = p->n_steps - p->cost[c].last > FRESH_STEPS;
    if (stale) p->cost[c].n = 0;
    float risen = p->cost[c].floor_ns * FLOOR_RISE;
    p->cost[c].floor_ns = p->cost[c].n && risen < x ? risen : x;
    p->cost[c].n++;
    p->cost[c].last = ++p->n_steps;
    if (p->cost[0].n < FEW_TIMES || p->n_steps - p->cost[0].last > FRESH_STEPS) return;
    for (c = 1; c < TN_PROP_COSTS; c++) {
        if (p->cost[c].n < FEW_TIMES || p->n_steps - p->cost[c].last > FRESH_STEPS) continue;
        float now = p->cost[c].floor_ns / p->cost[0].floor_ns, *relative = &p->cost[c].relative;
        *relative = p->cost[c].known ? *relative + (now - *relative) * RELATIVE_SHARE : now;
        p->cost[c].known = true;
    }
    p->is_filled = false;
}

float tn_prop_step_ns(tn_proposals *p) {
    for (int c = 0; c < TN_PROP_COSTS; c++)
        if (p->cost[c].n) return p->cost[c].floor_ns / costs(p)[c ? (int)(p->cost[c].rows + 0.5f) : 1];
    return 0;
}

static float trust(const tn_proposals *p) { return p->sum_promised > 0 ? p->sum_kept / p->sum_promised : 1; }

float tn_prop_gain(tn_proposals *p, float tokens, float price, int32_t n_rows) {
    const float *cost = costs(p);
    return trust(p) * tokens * price - (cost[n_rows < TN_TREE_MAX ? n_rows + 1 : TN_TREE_MAX] - cost[n_rows]);
}

/* Computes the probability of every node. Siblings exclude each other: the likeliest keeps its rate, the
 * others share the rest. */
static void settle(tn_proposals *p) {
    float rate[TN_PROP_MAX], best[TN_PROP_MAX] = {0}, sum[TN_PROP_MAX] = {0};
    for (int32_t i = 1; i < p->n; i++) {
        int32_t up = p->node[i].parent;
        rate[i] = node_rate(p, &p->node[i]);
        sum[up] += rate[i];
        if (rate[i] > best[up]) best[up] = rate[i];
    }
    for (int32_t i = 1; i < p->n; i++) {
        int32_t up = p->node[i].parent;
        float others = sum[up] - best[up],
              share = sum[up] > 1 && rate[i] < best[up] ? (1 - best[up]) / others : 1;
        p->node[i].p = p->node[up].p * rate[i] * share;
    }
}

/* Before any time is known, a few forwards of one row measure the unit. */
static bool needs_measure(const tn_proposals *p) {
    if (p->cost_given || p->cost[0].n >= FEW_TIMES) return false;
    for (int c = 1; c < TN_PROP_COSTS; c++) {
        if (p->cost[c].known) return false;
    }
    return true;
}

/* Number of the likeliest nodes that are worth their rows. cost: relative times by number of rows. */
static int32_t paying(const tn_proposals *p, const int32_t *order, int32_t n, int32_t n_beside,
                      const float *cost) {
    float sum = 1 + (float)n_beside, kept = trust(p),
          best_gain = MARGIN * sum / cost[n_beside + 1]; /* every row of other texts gives a token */
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += kept * p->node[order[i]].p;
        float gain = sum / cost[n_beside + i + 2];
        if (gain <= best_gain) continue;
        best_gain = gain;
        best = i + 1;
    }
    return best;
}

/* The same with the known times. */
static int32_t paying_here(tn_proposals *p, const int32_t *order, int32_t n, int32_t n_beside) {
    int32_t best = paying(p, order, n, n_beside, costs(p));
    if (best || p->cost_given) return best;
    float unmeasured[TN_TREE_MAX + 1];
    fill_costs(p, false, unmeasured);
    best = paying(p, order, n, n_beside, unmeasured);
    if (!best) return 0;
    if (++p->n_waited <= PATIENCE << p->n_probed) {
        p->n_refused++;
        return 0;
    }
    p->n_waited = 0;
    p->probing = true;
    if (p->n_probed < MOST_PROBED) p->n_probed++;
    return best < PROBE_ROWS - 1 ? best : PROBE_ROWS - 1;
}

void tn_prop_choose(tn_proposals *p, int32_t max_rows, int32_t n_beside, bool eager, tn_tree *out) {
    int32_t order[TN_PROP_MAX], row_of[TN_PROP_MAX], n = 0;
    *out = (tn_tree){0};
    tn_tree_add(out, -1, p->node[0].token);
    p->n_rows = 1;
    if (max_rows > TN_TREE_MAX - n_beside) max_rows = TN_TREE_MAX - n_beside;
    if (max_rows <= 1 || p->n == 1 || (!eager && needs_measure(p))) return;
    settle(p);
    /* selects the likeliest max_rows - 1 nodes by insertion: a parent is never less likely than its child and
     * comes first among equals */
    int32_t want = max_rows - 1;
    for (int32_t i = 1; i < p->n; i++) {
        float x = p->node[i].p;
        if (!eager && x < MIN_P) continue;
        if (n == want && x <= p->node[order[n - 1]].p) continue;
        int32_t j = n < want ? n++ : n - 1;
        for (; j > 0 && p->node[order[j - 1]].p < x; j--) order[j] = order[j - 1];
        order[j] = i;
    }
    int32_t best = eager ? n : paying_here(p, order, n, n_beside);
    row_of[0] = 0;
    for (int32_t i = 0; i < best; i++) {
        tn_prop *x = &p->node[order[i]];
        row_of[order[i]] = tn_tree_add(out, row_of[x->parent], x->token);
        p->chosen[order[i]] = true;
        x->by = (uint8_t)best_class(p, x);
        p->n_verified[x->by]++;
        p->promised += x->p;
    }
    p->n_rows = out->n;
}
