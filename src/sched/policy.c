#include "sched/policy.h"

#include "base/status.h"

#include <assert.h>
#include <string.h>

/* A queue's key has the quantity that the policy minimises in the upper 40 bits (0, or nanoseconds: 18
 * minutes) and the task's rank in the lower 24. The rank breaks ties and names the task. */
enum { RANK_BITS = 24 };
static const uint64_t RANK_MASK = (1u << RANK_BITS) - 1, KEY_MAX = (UINT64_C(1) << (64 - RANK_BITS)) - 1;

typedef struct queue {
    uint64_t *key; /* binary heap, least first */
    int32_t n;
} queue;

/* Each lane has two queues and two slots for an open task: one for tasks that only its own workers may take,
 * one for the rest. */
enum { BOUND, STEALABLE, N_SORTS };

struct tn_sched {
    tn_ctx *ctx;
    const tn_graph *g;
    tn_policy policy;
    const int32_t *rank, *by_rank; /* the graph's chunk-major or planned order */
    uint8_t serves[TN_N_LANES];    /* lanes that a worker of this lane serves: bit set */
    queue q[TN_N_LANES][N_SORTS];
    int32_t open[TN_N_LANES][N_SORTS]; /* a task with parts left to hand out, or -1 */
    int32_t next_rank[TN_N_LANES];     /* rank of the first task of the lane that has not started */
    int32_t n_open[TN_N_LANES];        /* tasks of the lane that have started and not finished */
    int32_t n_started, n_running, n_finished;
    tn_sched_counts counts;

    void *block;
    size_t block_bytes;
    uint64_t *keys;        /* [n_tasks] room for all queues, divided at bind */
    int64_t *gain_ns;      /* ooe: NPU time of the tasks that wait only for this one */
    int32_t *n_left;       /* unfinished predecessors */
    int32_t *last_pred;    /* XOR of the unfinished predecessors' ids */
    int32_t *slot;         /* place in its queue while ready */
    int32_t *part, *seq;   /* parts handed out; start number, -1: not started */
    int32_t *n_unfinished; /* unfinished parts of a started task */
};

/* ---- the policies -------------------------------------------------------------------------------- */

static uint64_t capped(int64_t ns) { return ns < (int64_t)KEY_MAX ? (uint64_t)ns : KEY_MAX; }

static uint64_t key_position(const tn_sched *s, int32_t t) { return (uint64_t)s->rank[t]; }

static uint64_t key_ooe(const tn_sched *s, int32_t t) {
    uint64_t cost = 0;
    if (s->g->tasks[t].lane == TN_LANE_NPU) cost = capped(s->g->est_ns[TN_LANE_NPU][t]);
    else if (s->g->tasks[t].lane == TN_LANE_CPU) cost = KEY_MAX - capped(s->gain_ns[t]);
    return cost << RANK_BITS | (uint64_t)s->rank[t];
}

static const queue *best_queue(const tn_sched *s, tn_lane lane) {
    const queue *a = &s->q[lane][BOUND], *b = &s->q[lane][STEALABLE];
    if (!a->n) return b->n ? b : NULL;
    return b->n && b->key[0] < a->key[0] ? b : a;
}

/* Whether the head of a queue of `lane`, with this key, may start now. */
static bool any_time(const tn_sched *s, tn_lane lane, uint64_t key) {
    (void)s, (void)lane, (void)key;
    return true;
}

static bool one_at_a_time(const tn_sched *s, tn_lane lane, uint64_t key) {
    (void)lane;
    /* Ranks respect dependencies: when nothing runs, the task of this rank is ready. */
    return !s->n_running && key == (uint64_t)s->n_finished;
}

static bool in_lane_order(const tn_sched *s, tn_lane lane, uint64_t key) {
    return key == (uint64_t)s->next_rank[lane];
}

static const struct {
    const char *name;
    uint64_t (*key)(const tn_sched *s, int32_t task);
    bool (*may_start)(const tn_sched *s, tn_lane lane, uint64_t key);
} POLICIES[TN_N_POLICIES] = {
    [TN_POLICY_IN_ORDER] = {"in-order", key_position, one_at_a_time},
    [TN_POLICY_OVERLAP] = {"overlap", key_position, in_lane_order},
    [TN_POLICY_OOE] = {"ooe", key_ooe, any_time},
    [TN_POLICY_SYNERGY] = {"synergy", key_position, any_time},
    [TN_POLICY_PLAN] = {"plan", key_position, in_lane_order},
};

tn_policy tn_policy_defaults(tn_policy_kind kind) {
    return (tn_policy){.kind = kind, .steal_above = kind == TN_POLICY_SYNERGY ? 5 : -1};
}

const char *tn_policy_name(tn_policy_kind kind) { return POLICIES[kind].name; }

bool tn_policy_parse(const char *name, tn_policy *out) {
    for (int k = 0; k < TN_N_POLICIES; k++) {
        if (!strcmp(name, POLICIES[k].name)) {
            *out = tn_policy_defaults((tn_policy_kind)k);
            return true;
        }
    }
    return false;
}

int32_t tn_policy_steal_above(const tn_graph *g) {
    int64_t ns[TN_N_LANES] = {0};
    for (int32_t t = 0; t < g->n_tasks; t++) {
        if (g->tasks[t].lane != TN_LANE_NPU || !g->tasks[t].can_steal) continue;
        ns[TN_LANE_CPU] += g->est_ns[TN_LANE_CPU][t];
        ns[TN_LANE_NPU] += g->est_ns[TN_LANE_NPU][t];
    }
    if (ns[TN_LANE_NPU] <= 0 || ns[TN_LANE_CPU] <= ns[TN_LANE_NPU]) return 1;
    int64_t up = (ns[TN_LANE_CPU] - 1) / ns[TN_LANE_NPU] + 1;
    return up < INT32_MAX ? (int32_t)up : INT32_MAX;
}

typedef enum choice_kind { NOTHING, JOIN, START } choice_kind;

typedef struct choice {
    choice_kind kind;
    tn_lane lane; /* of the task */
    int sort;
} choice;

/* Decides the next part for an idle worker of `lane`, without side effects. */
static choice choose(const tn_sched *s, tn_lane lane) {
    /* own lane first; then the lanes it stands in for */
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < TN_N_LANES; i++) {
            tn_lane l = (tn_lane)((lane + i) % TN_N_LANES);
            if (!(s->serves[lane] >> l & 1)) continue;
            if (pass == 0) {
                for (int sort = 0; sort < N_SORTS; sort++)
                    if (s->open[l][sort] >= 0) return (choice){JOIN, l, sort};
            } else {
                const queue *q = best_queue(s, l);
                if (q && POLICIES[s->policy.kind].may_start(s, l, q->key[0]))
                    return (choice){START, l, (int)(q - s->q[l])};
            }
        }
    }
    if (lane == TN_LANE_IO) return (choice){.kind = NOTHING};
    tn_lane other = lane == TN_LANE_CPU ? TN_LANE_NPU : TN_LANE_CPU;
    const queue *q = &s->q[other][STEALABLE];
    bool steal = s->policy.keep_busy || (lane == TN_LANE_CPU && s->policy.steal_above >= 0 &&
                                         q->n + s->q[other][BOUND].n > s->policy.steal_above);
    /* the rest of a task already begun is the head of the queue; where parts are operators, that is the
     * next operator */
    if (steal && s->open[other][STEALABLE] >= 0) return (choice){JOIN, other, STEALABLE};
    if (steal && q->n && POLICIES[s->policy.kind].may_start(s, other, q->key[0]))
        return (choice){START, other, STEALABLE};
    return (choice){.kind = NOTHING};
}

/* ---- ready queues -------------------------------------------------------------------------------- */

static void place(tn_sched *s, queue *q, int32_t i, uint64_t key) {
    q->key[i] = key;
    s->slot[s->by_rank[key & RANK_MASK]] = i;
}

static void sift_up(tn_sched *s, queue *q, int32_t i, uint64_t key) {
    for (; i && key < q->key[(i - 1) / 2]; i = (i - 1) / 2) place(s, q, i, q->key[(i - 1) / 2]);
    place(s, q, i, key);
}

static queue *home(tn_sched *s, int32_t t) {
    return &s->q[s->g->tasks[t].lane][s->g->tasks[t].can_steal ? STEALABLE : BOUND];
}

static void push(tn_sched *s, int32_t t) {
    queue *q = home(s, t);
    sift_up(s, q, q->n++, POLICIES[s->policy.kind].key(s, t));
}

static int32_t pop(tn_sched *s, queue *q) {
    int32_t first = s->by_rank[q->key[0] & RANK_MASK], n = --q->n, i = 0;
    uint64_t last = q->key[n];
    s->slot[first] = -1;
    if (!n) return first;
    for (int32_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && q->key[c + 1] < q->key[c]) c++;
        if (last <= q->key[c]) break;
        place(s, q, i, q->key[c]);
    }
    place(s, q, i, last);
    return first;
}

/* ---- a run --------------------------------------------------------------------------------------- */

tern_status tn_sched_open(tn_ctx *ctx, tn_sched **out, tern_error *err) {
    *out = tn_calloc(ctx, TN_MEM_GRAPHS, 1, sizeof **out);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for a scheduler");
    (*out)->ctx = ctx;
    return TERN_OK;
}

void tn_sched_close(tn_sched **ps) {
    tn_sched *s = *ps;
    if (!s) return;
    *ps = NULL;
    tn_free(s->ctx, s->block);
    tn_free(s->ctx, s);
}

tern_status tn_sched_bind(tn_sched *s, const tn_graph *g, tern_error *err) {
    assert(g->sealed);
    size_t n = (size_t)g->n_tasks, need = n * (sizeof *s->keys + sizeof *s->gain_ns + 6 * sizeof(int32_t));
    s->g = NULL;
    if (!s->block || need > s->block_bytes) {
        tn_free(s->ctx, s->block);
        s->block_bytes = 0;
        s->block = tn_alloc(s->ctx, TN_MEM_GRAPHS, need, 1);
        TN_FAIL_IF(!s->block, err, TERN_E_MEMORY, "no memory to schedule %" PRId32 " tasks", g->n_tasks);
        s->block_bytes = need;
    }
    s->keys = s->block;
    s->gain_ns = (int64_t *)(s->keys + n);
    int32_t *p = (int32_t *)(s->gain_ns + n);
    s->n_left = p;
    s->last_pred = p + n;
    s->slot = p + 2 * n;
    s->part = p + 3 * n;
    s->seq = p + 4 * n;
    s->n_unfinished = p + 5 * n;

    int32_t count[TN_N_LANES][N_SORTS] = {0};
    for (int32_t t = 0; t < g->n_tasks; t++)
        count[g->tasks[t].lane][g->tasks[t].can_steal ? STEALABLE : BOUND]++;
    uint64_t *room = s->keys;
    for (int l = 0; l < TN_N_LANES; l++) {
        for (int sort = 0; sort < N_SORTS; sort++) {
            s->q[l][sort].key = room;
            room += count[l][sort];
        }
    }
    s->g = g;
    return TERN_OK;
}

/* Advances next_rank to the lane's next task in the order that has not started, if any. */
static void skip_others(tn_sched *s, tn_lane lane) {
    int32_t r = s->next_rank[lane];
    while (r < s->g->n_tasks && (s->g->tasks[s->by_rank[r]].lane != lane || s->seq[s->by_rank[r]] >= 0)) r++;
    s->next_rank[lane] = r;
}

static void count_start(tn_sched *s, tn_lane lane, int32_t t) {
    s->n_open[lane]++;
    if (lane == TN_LANE_IO) return;
    s->counts.n_tasks++;
    s->counts.n_ahead += s->rank[t] > s->next_rank[lane];
    s->counts.n_beside += s->n_open[lane == TN_LANE_CPU ? TN_LANE_NPU : TN_LANE_CPU] > 0;
}

void tn_sched_start(tn_sched *s, const tn_policy *policy, const int32_t n_workers[TN_N_LANES]) {
    const tn_graph *g = s->g;
    size_t n = (size_t)g->n_tasks;
    assert(n_workers[0] + n_workers[1] + n_workers[2] > 0);
    s->policy = *policy;
    s->rank = policy->kind == TN_POLICY_PLAN ? g->plan_rank : g->rank;
    s->by_rank = policy->kind == TN_POLICY_PLAN ? g->by_plan_rank : g->by_rank;
    tn_lane stand_in = n_workers[TN_LANE_CPU]   ? TN_LANE_CPU
                       : n_workers[TN_LANE_NPU] ? TN_LANE_NPU
                                                : TN_LANE_IO;
    for (int l = 0; l < TN_N_LANES; l++) s->serves[l] = (uint8_t)(1u << l);
    for (int l = 0; l < TN_N_LANES; l++)
        if (!n_workers[l]) s->serves[stand_in] |= (uint8_t)(1u << l);
    for (int l = 0; l < TN_N_LANES; l++) {
        for (int sort = 0; sort < N_SORTS; sort++) {
            s->q[l][sort].n = 0;
            s->open[l][sort] = -1;
        }
        s->next_rank[l] = 0;
        s->n_open[l] = 0;
    }
    memset(s->seq, 0xff, n * sizeof *s->seq);
    for (int l = 0; l < TN_N_LANES; l++) skip_others(s, (tn_lane)l);
    s->n_started = s->n_running = s->n_finished = 0;
    s->counts = (tn_sched_counts){0};
    memcpy(s->n_left, g->n_preds, n * sizeof *s->n_left);
    if (policy->kind == TN_POLICY_OOE) {
        memcpy(s->last_pred, g->pred_xor, n * sizeof *s->last_pred);
        memset(s->gain_ns, 0, n * sizeof *s->gain_ns);
        for (int32_t t = 0; t < g->n_tasks; t++)
            if (g->n_preds[t] == 1 && g->tasks[t].lane == TN_LANE_NPU)
                s->gain_ns[g->pred_xor[t]] += g->est_ns[TN_LANE_NPU][t];
        memset(s->slot, 0xff, n * sizeof *s->slot);
    }
    for (int32_t t = 0; t < g->n_tasks; t++)
        if (!g->n_preds[t]) push(s, t);
}

bool tn_sched_can_pick(const tn_sched *s, tn_lane lane) { return choose(s, lane).kind != NOTHING; }

bool tn_sched_pick(tn_sched *s, tn_lane lane, tn_pick *out) {
    choice c = choose(s, lane);
    if (c.kind == NOTHING) return false;
    int32_t *open = &s->open[c.lane][c.sort];
    if (c.kind == JOIN) {
        int32_t t = *open;
        *out = (tn_pick){.task = t, .part = s->part[t]++, .seq = s->seq[t]};
        if (s->part[t] == s->g->tasks[t].n_parts) *open = -1;
        return true;
    }
    int32_t t = pop(s, &s->q[c.lane][c.sort]);
    s->part[t] = 1;
    count_start(s, c.lane, t);
    s->seq[t] = s->n_started++;
    s->n_unfinished[t] = s->g->tasks[t].n_parts;
    s->n_running++;
    if (s->n_unfinished[t] > 1) *open = t;
    skip_others(s, c.lane);
    *out = (tn_pick){.task = t, .part = 0, .seq = s->seq[t]};
    return true;
}

bool tn_sched_done(tn_sched *s, int32_t t) {
    const tn_graph *g = s->g;
    assert(s->n_unfinished[t] > 0);
    if (--s->n_unfinished[t]) return false;
    s->n_running--;
    s->n_open[g->tasks[t].lane]--;
    s->n_finished++;
    bool ooe = s->policy.kind == TN_POLICY_OOE;
    for (int32_t e = g->succ_off[t]; e < g->succ_off[t + 1]; e++) {
        int32_t h = g->succ[e], left = --s->n_left[h];
        if (!left) push(s, h);
        if (!ooe) continue;
        s->last_pred[h] ^= t;
        if (left == 1 && g->tasks[h].lane == TN_LANE_NPU) {
            /* h now waits for only one task, which becomes more urgent */
            int32_t waits_for = s->last_pred[h];
            s->gain_ns[waits_for] += g->est_ns[TN_LANE_NPU][h];
            if (s->slot[waits_for] >= 0)
                sift_up(s, home(s, waits_for), s->slot[waits_for], key_ooe(s, waits_for));
        }
    }
    return true;
}

bool tn_sched_finished(const tn_sched *s) { return s->n_finished == s->g->n_tasks; }

const tn_sched_counts *tn_sched_counted(const tn_sched *s) { return &s->counts; }

const tn_graph *tn_sched_graph(const tn_sched *s) { return s->g; }
