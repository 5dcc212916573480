#include "draft/draft.h"

#include "base/status.h"
#include "draft/source.h"

#include <string.h>

struct tn_draft {
    tn_ctx *ctx;
    int32_t vocab_size;
    tn_text text;
    tn_sam *sam;
    tn_sam *store; /* NULL until something is learned */
    tn_sam_match in_store;
    tn_successors *succ; /* [cap] by position */
    int32_t n_succ;      /* positions before it are filled or marked unknown */
    tn_recalls recalls;
    tn_segments segments;
    tn_proposals props;
    struct {
        tn_draft_outside propose;
        void *user;
    } outside[3]; /* by outside_of */
};

/* Drafters from outside, in the order in which they are asked. */
static const struct {
    uint32_t drafter;
    int class0; /* [8] */
} outside_of[] = {
    {TN_DRAFT_MODEL, TN_CLASS_MODEL}, {TN_DRAFT_MTP, TN_CLASS_MTP}, {TN_DRAFT_HEAD, TN_CLASS_HEAD}};
enum { N_OUTSIDE = sizeof outside_of / sizeof *outside_of };

tern_status tn_draft_parse(const char *text, uint32_t *drafters, const char **model, tern_error *err) {
    static const struct {
        const char *name;
        uint32_t bits;
    } names[] = {{"none", 0},
                 {"auto", TN_DRAFT_ALL},
                 {"all", TN_DRAFT_ALL},
                 {"lookup", TN_DRAFT_LOOKUP},
                 {"sam", TN_DRAFT_SAM},
                 {"calibrated", TN_DRAFT_CALIBRATED},
                 {"extend", TN_DRAFT_EXTEND},
                 {"mtp", TN_DRAFT_MTP},
                 {"head", TN_DRAFT_HEAD}};
    *drafters = 0;
    *model = NULL;
    for (const char *p = text ? text : "none"; *p;) {
        if (!strncmp(p, "model:", 6) && p[6]) {
            *drafters |= TN_DRAFT_MODEL;
            *model = p + 6;
            return TERN_OK;
        }
        size_t len = strcspn(p, ","), i = 0, n = sizeof names / sizeof *names;
        while (i < n && (strlen(names[i].name) != len || strncmp(names[i].name, p, len))) i++;
        TN_FAIL_IF(i == n, err, TERN_E_INVALID,
                   "no drafter is called '%.*s': want none, auto, all, or a list of lookup, sam, calibrated, "
                   "extend, mtp, head, model:FILE",
                   (int)(len < 40 ? len : 40), p);
        *drafters |= names[i].bits;
        p += len + (p[len] == ',');
    }
    return TERN_OK;
}

static void clear_text(tn_draft *d) {
    d->text.n = d->text.n_vocab = d->n_succ = 0;
    memset(d->text.last, 0xff, (size_t)d->vocab_size * sizeof *d->text.last);
    d->in_store = (tn_sam_match){0};
    d->props.at = -1;
}

tern_status tn_draft_open(tn_ctx *ctx, int32_t n_vocab, int32_t n_ctx, tn_draft **out, tern_error *err) {
    *out = NULL;
    tn_draft *d = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *d);
    TN_FAIL_IF(!d, err, TERN_E_MEMORY, "no memory for drafts");
    d->ctx = ctx;
    d->vocab_size = n_vocab;
    d->text.cap = n_ctx + 1; /* the drawn token may exceed the context by one */
    size_t cap = (size_t)d->text.cap;
    d->text.ids = tn_alloc(ctx, TN_MEM_OTHER, cap, sizeof *d->text.ids);
    d->text.prev = tn_alloc(ctx, TN_MEM_OTHER, cap, sizeof *d->text.prev);
    d->text.last = tn_alloc(ctx, TN_MEM_OTHER, (size_t)n_vocab, sizeof *d->text.last);
    d->text.vocab = tn_alloc(ctx, TN_MEM_OTHER, TN_DRAFT_VOCAB, sizeof *d->text.vocab);
    d->succ = tn_alloc(ctx, TN_MEM_OTHER, cap, sizeof *d->succ);
    d->recalls.latest = tn_calloc(ctx, TN_MEM_OTHER, (size_t)n_vocab, sizeof *d->recalls.latest);
    d->recalls.ring = tn_alloc(ctx, TN_MEM_OTHER, TN_RECALLS, sizeof *d->recalls.ring);
    bool ok = d->recalls.latest && d->recalls.ring && d->text.ids && d->text.prev && d->text.last &&
              d->text.vocab && d->succ;
    tern_status st = ok ? tn_sam_open(ctx, d->text.cap, &d->sam, err)
                        : tn_fail(err, TERN_E_MEMORY, "no memory for drafts of %d tokens", n_ctx);
    if (st != TERN_OK) {
        tn_draft_close(&d);
        return st;
    }
    clear_text(d);
    tn_source_guesses(&d->props);
    *out = d;
    return TERN_OK;
}

void tn_draft_close(tn_draft **pd) {
    tn_draft *d = *pd;
    if (!d) return;
    *pd = NULL;
    tn_sam_close(&d->sam);
    tn_sam_close(&d->store);
    tn_free(d->ctx, d->text.ids);
    tn_free(d->ctx, d->text.prev);
    tn_free(d->ctx, d->text.last);
    tn_free(d->ctx, d->text.vocab);
    tn_free(d->ctx, d->succ);
    tn_free(d->ctx, d->recalls.latest);
    tn_free(d->ctx, d->recalls.ring);
    tn_free(d->ctx, d);
}

size_t tn_draft_bytes(const tn_draft *d) {
    size_t cap = (size_t)d->text.cap;
    return sizeof *d + cap * (2 * sizeof(int32_t) + sizeof *d->succ) +
           (2 * (size_t)d->vocab_size + TN_DRAFT_VOCAB) * sizeof(int32_t) + TN_RECALLS * sizeof(tn_recall) +
           tn_sam_bytes(d->sam) + (d->store ? tn_sam_bytes(d->store) : 0);
}

static int32_t as_token(const tn_draft *d, int32_t id) { return id < d->vocab_size ? id : 0; }

tern_status tn_draft_push(tn_draft *d, int32_t id, tern_error *err) {
    tn_text *t = &d->text;
    const int32_t token = as_token(d, id);
    assert(t->n < t->cap && token >= 0);
    TN_TRY(tn_sam_push(d->sam, token, err));
    tn_prop_judge(&d->props, token);
    if (d->store) tn_sam_follow(d->store, &d->in_store, token);
    if (t->last[token] < 0 && t->n_vocab < TN_DRAFT_VOCAB) t->vocab[t->n_vocab++] = token;
    t->prev[t->n] = t->last[token];
    t->last[token] = t->n;
    t->ids[t->n++] = token;
    return TERN_OK;
}

tern_status tn_draft_truncate(tn_draft *d, int32_t n, tern_error *err) {
    tn_text *t = &d->text;
    if (n >= t->n) return TERN_OK;
    int32_t n_succ = d->n_succ < n ? d->n_succ : n;
    clear_text(d);
    tn_sam_clear(d->sam);
    for (int32_t i = 0; i < n; i++) TN_TRY(tn_draft_push(d, t->ids[i], err));
    d->n_succ = n_succ;
    return TERN_OK;
}

tern_status tn_draft_sync(tn_draft *d, const int32_t *tokens, int32_t n, tern_error *err) {
    int32_t same = 0;
    while (same < n && same < d->text.n && d->text.ids[same] == as_token(d, tokens[same])) same++;
    TN_TRY(tn_draft_truncate(d, same, err));
    for (int32_t i = same; i < n; i++) TN_TRY(tn_draft_push(d, tokens[i], err));
    return TERN_OK;
}

tern_status tn_draft_learn(tn_draft *d, const int32_t *tokens, size_t n, tern_error *err) {
    for (size_t i = 0; i < n; i++) {
        TN_FAIL_IF(tokens[i] < 0 || tokens[i] >= d->vocab_size, err, TERN_E_INVALID,
                   "token %d at position %zu is outside the vocabulary of %d", tokens[i], i, d->vocab_size);
    }
    if (!d->store) TN_TRY(tn_sam_open(d->ctx, n < 1 << 20 ? (int32_t)n + 1 : 1 << 20, &d->store, err));
    tern_status st = TERN_OK;
    for (size_t i = 0; i < n && st == TERN_OK; i++) st = tn_sam_push(d->store, tokens[i], err);
    if (st == TERN_OK) st = tn_sam_push(d->store, TN_SAM_SEPARATOR, err);
    d->in_store = (tn_sam_match){0};
    for (int32_t i = 0; i < d->text.n; i++) tn_sam_follow(d->store, &d->in_store, d->text.ids[i]);
    return st;
}

const int32_t *tn_draft_vocabulary(const tn_draft *d, int32_t *n) {
    *n = d->text.n_vocab;
    return d->text.vocab;
}

void tn_draft_successors(tn_draft *d, int32_t pos, const float *logits, int32_t n_vocabulary) {
    assert(pos < d->text.cap && n_vocabulary <= d->text.n_vocab);
    for (; d->n_succ < pos; d->n_succ++) d->succ[d->n_succ].id[0] = -1;
    tn_successors_of(logits, d->text.vocab, n_vocabulary, &d->succ[pos]);
    if (pos == d->n_succ) d->n_succ++;
}

void tn_draft_verified(tn_draft *d, const tn_tree *tree, const float *logits) {
    for (int32_t row = tree->n - 1; row >= 0;
         row--) { /* likelier ones are added last, so that they are found first */
        int32_t before = row             ? tree->token[tree->parent[row]]
                         : d->text.n > 1 ? d->text.ids[d->text.n - 2]
                                         : -1;
        tn_recalls_add(&d->recalls, before, tree->token[row], logits + (size_t)row * (size_t)d->vocab_size,
                       (size_t)d->vocab_size);
    }
}

_Static_assert((int)TN_DRAFT_RECALLED == (int)TN_RECALLS * (int)TN_RECALL_NUMBERS, "all of the ring");

size_t tn_draft_recalled(const tn_draft *d, int32_t *out) { return tn_recalls_out(&d->recalls, out); }

void tn_draft_recall(tn_draft *d, const int32_t *in, size_t n) {
    tn_recalls_in(&d->recalls, in, n, d->vocab_size);
}

static int number_of(uint32_t drafter) {
    int i = 0;
    while (i < N_OUTSIDE - 1 && outside_of[i].drafter != drafter) i++;
    assert(outside_of[i].drafter == drafter);
    return i;
}

int tn_draft_outside_class(uint32_t drafter, float confidence) {
    int level = (int)(confidence * 8);
    return outside_of[number_of(drafter)].class0 + (level < 0 ? 0 : level > 7 ? 7 : level);
}

void tn_draft_set_outside(tn_draft *d, uint32_t drafter, tn_draft_outside propose, void *user) {
    int i = number_of(drafter);
    d->outside[i].propose = propose;
    d->outside[i].user = user;
}

/* The drafter of a class of proposals. */
static uint32_t drafter_of(int class_) {
    if (class_ < TN_CLASS_SAM) return TN_DRAFT_LOOKUP;
    if (class_ < TN_CLASS_CALIBRATED) return TN_DRAFT_SAM;
    if (class_ < TN_CLASS_EXTEND) return TN_DRAFT_CALIBRATED;
    if (class_ < TN_CLASS_MODEL) return TN_DRAFT_EXTEND;
    if (class_ < TN_CLASS_MTP) return TN_DRAFT_MODEL;
    return class_ < TN_CLASS_HEAD ? TN_DRAFT_MTP : TN_DRAFT_HEAD;
}

void tn_draft_counts(const tn_draft *d, uint32_t drafters, uint64_t *n_verified, uint64_t *n_accepted) {
    *n_verified = *n_accepted = 0;
    for (int c = 0; c < TN_CLASS_END; c++) {
        if (!(drafter_of(c) & drafters)) continue;
        *n_verified += d->props.n_verified[c];
        *n_accepted += d->props.n_accepted[c];
    }
}

static void propose_behind(void *user, tn_proposals *p, int32_t node) {
    const tn_draft *d = user;
    tn_propose_behind(d->sam, tn_sam_self(d->sam), TN_CLASS_SAM, node, p);
    if (d->store) tn_propose_behind(d->store, d->in_store, TN_CLASS_STORE, node, p);
}

void tn_draft_plan(tn_draft *d, uint32_t drafters, int32_t max_rows, int32_t n_beside, bool eager,
                   tn_tree *out) {
    tn_text *t = &d->text;
    tn_proposals *p = &d->props;
    assert(t->n > 0);
    tn_prop_begin(p, t->ids[t->n - 1]);
    p->most_rows = max_rows;
    p->behind = drafters & TN_DRAFT_SAM ? propose_behind : NULL;
    p->behind_user = d;
    if (drafters & TN_DRAFT_SAM) tn_propose_sam(d->sam, p);
    if (drafters & TN_DRAFT_SAM && d->store) tn_propose_store(d->store, &d->in_store, p);
    if (drafters & TN_DRAFT_LOOKUP) tn_propose_lookup(t, p);
    if (drafters & TN_DRAFT_EXTEND) tn_propose_extended(&d->segments, p);
    for (int i = 0; i < N_OUTSIDE; i++) {
        if (drafters & outside_of[i].drafter && d->outside[i].propose)
            d->outside[i].propose(d->outside[i].user, p, t->ids, t->n);
    }
    if (drafters & TN_DRAFT_CALIBRATED) tn_propose_calibrated(t, d->succ, d->n_succ, &d->recalls, p);
    tn_segments_age(&d->segments);
    tn_prop_choose(p, max_rows, n_beside, eager, out);
}

void tn_draft_timed(tn_draft *d, int32_t n_rows, int64_t ns) { tn_prop_timed(&d->props, n_rows, ns); }

uint64_t tn_draft_refused(const tn_draft *d) { return d->props.n_refused; }

void tn_draft_give_costs(tn_draft *d, const float *rows, const float *relative, int n, bool fixed) {
    tn_proposals *p = &d->props;
    memset(p->cost, 0, sizeof p->cost);
    for (int i = 0; i < n; i++) {
        int c = tn_prop_cost_class((int32_t)(rows[i] + 0.5f));
        p->cost[c].rows = rows[i];
        p->cost[c].relative = relative[i];
        p->cost[c].known = true;
    }
    p->cost_given = fixed;
    p->is_filled = false;
}

int tn_draft_costs(const tn_draft *d, float *rows, float *relative) {
    const tn_proposals *p = &d->props;
    int n = 0;
    for (int c = 1; c < TN_PROP_COSTS && !p->cost_given; c++) {
        if (!p->cost[c].known) continue;
        rows[n] = p->cost[c].rows;
        relative[n++] = p->cost[c].relative;
    }
    return n;
}

void tn_draft_rejected(tn_draft *d, const tn_tree *tree, int32_t last, const float *logits) {
    tn_segments_keep(&d->segments, &d->text, tree, last, logits, (size_t)d->vocab_size);
}
