#include "draft/sam.h"

#include "base/status.h"

#include <string.h>

enum { MAX_TOKENS = 1 << 27 };
enum { NONE = -1, ROOT = 0, REFRESHED = 4 /* number of suffixes per token whose latest place is updated */ };

typedef struct state {
    int32_t len;   /* longest string of the state */
    int32_t link;  /* suffix link */
    int32_t end;   /* one past the latest known occurrence */
    int32_t edges; /* first of its list, or NONE */
} state;

typedef struct edge {
    int32_t from, token, to, next;
} edge;

struct tn_sam {
    tn_ctx *ctx;
    int32_t *text;
    state *states;
    edge *edges;
    int32_t *hash; /* open addressing over (from, token): edge or NONE; a power of two, at most half full */
    int32_t n_text, n_states, n_edges, cap_text, cap_edges, cap_hash, last;
};

static uint32_t slot_of(const tn_sam *s, int32_t from, int32_t token) {
    uint64_t x = ((uint64_t)(uint32_t)from << 32 | (uint32_t)token) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(x >> 32) & (uint32_t)(s->cap_hash - 1);
}

static int32_t find(const tn_sam *s, int32_t from, int32_t token) {
    for (uint32_t h = slot_of(s, from, token);; h = (h + 1) & (uint32_t)(s->cap_hash - 1)) {
        int32_t e = s->hash[h];
        if (e == NONE || (s->edges[e].from == from && s->edges[e].token == token)) return e;
    }
}

static void enter(tn_sam *s, int32_t e) {
    uint32_t h = slot_of(s, s->edges[e].from, s->edges[e].token);
    while (s->hash[h] != NONE) h = (h + 1) & (uint32_t)(s->cap_hash - 1);
    s->hash[h] = e;
}

static void connect(tn_sam *s, int32_t from, int32_t token, int32_t to) {
    int32_t e = s->n_edges++;
    s->edges[e] = (edge){from, token, to, s->states[from].edges};
    s->states[from].edges = e;
    enter(s, e);
}

static tern_status grow(tn_ctx *ctx, void **p, size_t n, size_t size, tern_error *err) {
    void *q = tn_realloc(ctx, TN_MEM_OTHER, *p, n, size);
    TN_FAIL_IF(!q, err, TERN_E_MEMORY, "no memory for a suffix automaton of %zu entries", n);
    *p = q;
    return TERN_OK;
}

/* Makes room for n more tokens in the worst case: two states and three transitions each. A clone copies the
 * transitions of another state, but their total stays within the bound. */
static tern_status reserve(tn_sam *s, int32_t n, tern_error *err) {
    TN_FAIL_IF(n > MAX_TOKENS - s->n_text, err, TERN_E_LIMIT, "a suffix automaton holds at most %d tokens",
               MAX_TOKENS);
    int32_t all = s->n_text + n, half = s->cap_text + s->cap_text / 2;
    if (all <= s->cap_text) return TERN_OK;
    if (all < half) all = half < MAX_TOKENS ? half : MAX_TOKENS;
    TN_TRY(grow(s->ctx, (void **)&s->text, (size_t)all, sizeof *s->text, err));
    TN_TRY(grow(s->ctx, (void **)&s->states, 2 * (size_t)all + 2, sizeof *s->states, err));
    TN_TRY(grow(s->ctx, (void **)&s->edges, 3 * (size_t)all + 2, sizeof *s->edges, err));
    s->cap_edges = 3 * all + 2;
    int32_t cap = s->cap_hash ? s->cap_hash : 64;
    while (cap / 2 < s->cap_edges) cap *= 2;
    if (cap == s->cap_hash) {
        s->cap_text = all;
        return TERN_OK;
    }
    int32_t *hash = tn_realloc(s->ctx, TN_MEM_OTHER, s->hash, (size_t)cap, sizeof *hash);
    TN_FAIL_IF(!hash, err, TERN_E_MEMORY, "no memory for a suffix automaton of %d transitions", cap);
    s->hash = hash;
    s->cap_hash = cap;
    memset(hash, 0xff, (size_t)cap * sizeof *hash);
    for (int32_t e = 0; e < s->n_edges; e++) enter(s, e);
    s->cap_text = all;
    return TERN_OK;
}

void tn_sam_clear(tn_sam *s) {
    s->n_text = s->n_edges = 0;
    s->n_states = 1;
    s->last = ROOT;
    s->states[ROOT] = (state){.link = NONE, .edges = NONE};
    memset(s->hash, 0xff, (size_t)s->cap_hash * sizeof *s->hash);
}

tern_status tn_sam_open(tn_ctx *ctx, int32_t n, tn_sam **out, tern_error *err) {
    *out = NULL;
    tn_sam *s = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for a suffix automaton");
    s->ctx = ctx;
    tern_status st = reserve(s, n > 16 ? n : 16, err);
    if (st != TERN_OK) {
        tn_sam_close(&s);
        return st;
    }
    tn_sam_clear(s);
    *out = s;
    return TERN_OK;
}

void tn_sam_close(tn_sam **ps) {
    tn_sam *s = *ps;
    if (!s) return;
    *ps = NULL;
    tn_free(s->ctx, s->text);
    tn_free(s->ctx, s->states);
    tn_free(s->ctx, s->edges);
    tn_free(s->ctx, s->hash);
    tn_free(s->ctx, s);
}

tern_status tn_sam_push(tn_sam *s, int32_t token, tern_error *err) {
    if (s->n_text == s->cap_text) TN_TRY(reserve(s, 1, err));
    int32_t k = 0;
    for (int32_t v = s->states[s->last].link; v > ROOT && k < REFRESHED; v = s->states[v].link, k++)
        s->states[v].end = s->n_text;
    s->text[s->n_text++] = token;
    if (token == TN_SAM_SEPARATOR) {
        s->last = ROOT;
        return TERN_OK;
    }
    int32_t p = s->last, e = find(s, p, token), q = e == NONE ? NONE : s->edges[e].to;
    if (q != NONE && s->states[q].len == s->states[p].len + 1) { /* a text that begins like an earlier one */
        s->last = q;
        return TERN_OK;
    }
    int32_t cur = NONE;
    if (q == NONE) {
        cur = s->n_states++;
        s->states[cur] = (state){.len = s->states[p].len + 1, .end = s->n_text, .edges = NONE};
        for (; p != NONE && (e = find(s, p, token)) == NONE; p = s->states[p].link) connect(s, p, token, cur);
        s->last = cur;
        if (p == NONE) {
            s->states[cur].link = ROOT;
            return TERN_OK;
        }
        q = s->edges[e].to;
        if (s->states[q].len == s->states[p].len + 1) {
            s->states[cur].link = q;
            return TERN_OK;
        }
    }
    int32_t clone = s->n_states++;
    s->states[clone] = (state){
        .len = s->states[p].len + 1, .link = s->states[q].link, .end = s->states[q].end, .edges = NONE};
    for (int32_t i = s->states[q].edges; i != NONE; i = s->edges[i].next)
        connect(s, clone, s->edges[i].token, s->edges[i].to);
    for (; p != NONE && (e = find(s, p, token)) != NONE && s->edges[e].to == q; p = s->states[p].link)
        s->edges[e].to = clone;
    s->states[q].link = clone;
    if (cur == NONE) s->last = clone;
    else s->states[cur].link = clone;
    return TERN_OK;
}

int32_t tn_sam_length(const tn_sam *s) { return s->n_text; }
int32_t tn_sam_token(const tn_sam *s, int32_t i) { return i < s->n_text ? s->text[i] : TN_SAM_SEPARATOR; }

size_t tn_sam_bytes(const tn_sam *s) {
    return sizeof *s + (size_t)s->cap_text * sizeof *s->text +
           (2 * (size_t)s->cap_text + 2) * sizeof *s->states + (size_t)s->cap_edges * sizeof *s->edges +
           (size_t)s->cap_hash * sizeof *s->hash;
}

static tn_sam_match match_of(const tn_sam *s, int32_t v) {
    return v > ROOT ? (tn_sam_match){.state = v, .length = s->states[v].len, .end = s->states[v].end}
                    : (tn_sam_match){0};
}

tn_sam_match tn_sam_self(const tn_sam *s) { return match_of(s, s->states[s->last].link); }
tn_sam_match tn_sam_shorter(const tn_sam *s, const tn_sam_match *m) {
    return match_of(s, m->state > ROOT ? s->states[m->state].link : NONE);
}

void tn_sam_follow(const tn_sam *s, tn_sam_match *m, int32_t token) {
    int32_t v = m->state, len = m->length, e;
    while ((e = find(s, v, token)) == NONE && v != ROOT) {
        v = s->states[v].link;
        len = s->states[v].len;
    }
    if (e == NONE) {
        *m = (tn_sam_match){0};
        return;
    }
    v = s->edges[e].to;
    *m = (tn_sam_match){.state = v, .length = len + 1, .end = s->states[v].end};
}

int32_t tn_sam_next(const tn_sam *s, const tn_sam_match *m, int32_t *pos, int32_t cap) {
    enum { SCANNED = 64 };
    if (m->state == ROOT) return 0;
    int32_t n = 0, seen = 0;
    for (int32_t e = s->states[m->state].edges; e != NONE && seen < SCANNED; e = s->edges[e].next, seen++) {
        int32_t at = s->states[s->edges[e].to].end - 1, i = n < cap ? n++ : cap - 1;
        if (n == cap && seen >= cap && pos[i] >= at) continue; /* full of more recent ones */
        for (; i > 0 && pos[i - 1] < at; i--) pos[i] = pos[i - 1];
        pos[i] = at;
    }
    return n;
}
