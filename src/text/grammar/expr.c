#include "text/grammar/expr.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool tn_gvec_room(tn_ctx *ctx, void **p, size_t *cap, size_t need, size_t size) {
    if (need <= *cap) return true;
    size_t want = *cap * 2 > need ? *cap * 2 : need + 16;
    void *more = tn_realloc(ctx, TN_MEM_TEXT, *p, want, size);
    if (!more) return false;
    *p = more;
    *cap = want;
    return true;
}

static bool room(tn_gb *b, void **p, size_t *cap, size_t need, size_t size) {
    if (b->st != TERN_OK) return false;
    if (need > TN_GX_MAX) b->st = TERN_E_LIMIT;
    else if (!tn_gvec_room(b->ctx, p, cap, need, size)) b->st = TERN_E_MEMORY;
    return b->st == TERN_OK;
}
#define ROOM(b, v, cap, need) room(b, (void **)&(b)->v, &(b)->cap, need, sizeof *(b)->v)

static tn_gx add(tn_gb *b, tn_gx_node x) {
    if (!ROOM(b, x, cap_x, b->n_x + 1)) return TN_GX_NEVER;
    b->x[b->n_x] = x;
    return (tn_gx)b->n_x++;
}

void tn_gb_open(tn_gb *b, tn_ctx *ctx) {
    *b = (tn_gb){.ctx = ctx};
    add(b, (tn_gx_node){.kind = TN_GXK_NEVER});
    add(b, (tn_gx_node){.kind = TN_GXK_EMPTY});
}

void tn_gb_close(tn_gb *b) {
    tn_free(b->ctx, b->x);
    tn_free(b->ctx, b->ranges);
    tn_free(b->ctx, b->kids);
    tn_free(b->ctx, b->text);
    tn_free(b->ctx, b->rules);
    tn_free(b->ctx, b->by_name);
}

tern_status tn_gb_status(const tn_gb *b, tern_error *err) {
    TN_FAIL_IF(b->st == TERN_E_LIMIT, err, TERN_E_LIMIT, "the grammar is too large: more than %d parts",
               TN_GX_MAX);
    TN_FAIL_IF(b->st != TERN_OK, err, TERN_E_MEMORY, "no memory for the grammar");
    return TERN_OK;
}

/* ---- sets of code points -------------------------------------------------------------------------- */

static int by_lo(const void *a, const void *b) {
    const tn_grange *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

size_t tn_granges_normal(tn_grange *r, size_t n) {
    if (!n) return 0;
    qsort(r, n, sizeof *r, by_lo);
    size_t k = 0;
    for (size_t i = 1; i < n; i++) {
        if (r[i].lo <= r[k].hi || r[i].lo == r[k].hi + 1) r[k].hi = r[i].hi > r[k].hi ? r[i].hi : r[k].hi;
        else r[++k] = r[i];
    }
    return k + 1;
}

size_t tn_granges_complement(const tn_grange *r, size_t n, tn_grange *out) {
    size_t k = 0;
    uint32_t at = 0;
    bool cut = false; /* surrogates are not characters */
    for (size_t i = 0; i <= n; i++) {
        uint32_t lo = i < n ? r[i].lo : 0x110000;
        if (at < lo) {
            uint32_t hi = lo - 1;
            if (!cut && at < 0xd800 && hi >= 0xd800) {
                out[k++] = (tn_grange){at, 0xd7ff};
                at = 0xe000;
                cut = true;
            }
            if (at >= 0xd800 && at < 0xe000) at = 0xe000;
            if (hi >= 0xd800 && hi < 0xe000) hi = 0xd7ff;
            if (at <= hi) out[k++] = (tn_grange){at, hi};
        }
        if (i < n && r[i].hi + 1 > at) at = r[i].hi + 1;
    }
    return k;
}

static tn_gx set_of(tn_gb *b, const tn_grange *r, size_t n, bool negated) {
    size_t first = b->n_ranges;
    if (!ROOM(b, ranges, cap_ranges, first + 2 * n + 4)) return TN_GX_NEVER;
    tn_grange *at = b->ranges + first;
    if (n) memcpy(at, r, n * sizeof *r);
    n = tn_granges_normal(at, n);
    if (negated) {
        size_t m = tn_granges_complement(at, n, at + n);
        memmove(at, at + n, m * sizeof *at);
        n = m;
    }
    b->n_ranges += n;
    return n ? add(b, (tn_gx_node){.kind = TN_GXK_SET, .first = (uint32_t)first, .n = (uint32_t)n})
             : TN_GX_NEVER;
}

tn_gx tn_gx_set(tn_gb *b, const tn_grange *r, size_t n) { return set_of(b, r, n, false); }
tn_gx tn_gx_not(tn_gb *b, const tn_grange *r, size_t n) { return set_of(b, r, n, true); }

/* ---- what expressions are made of ----------------------------------------------------------------- */

tn_gx tn_gx_text(tn_gb *b, const char *text, size_t n_bytes) {
    if (!n_bytes) return TN_GX_EMPTY;
    size_t first = b->n_text;
    if (!ROOM(b, text, cap_text, first + n_bytes)) return TN_GX_NEVER;
    memcpy(b->text + first, text, n_bytes);
    b->n_text += n_bytes;
    return add(b, (tn_gx_node){.kind = TN_GXK_TEXT, .first = (uint32_t)first, .n = (uint32_t)n_bytes});
}

tn_gx tn_gx_str(tn_gb *b, const char *text) { return tn_gx_text(b, text, strlen(text)); }

/* Makes a list. Children equal to `skip` add nothing and are left out; a child equal to `whole` decides the
 * result alone. */
static tn_gx list_of(tn_gb *b, tn_gx_kind kind, const tn_gx *x, size_t n, tn_gx skip, tn_gx whole) {
    size_t first = b->n_kids, k = 0;
    if (!ROOM(b, kids, cap_kids, first + n)) return TN_GX_NEVER;
    for (size_t i = 0; i < n; i++) {
        if (x[i] == whole && whole != UINT32_MAX) return whole;
        if (x[i] != skip) b->kids[first + k++] = x[i];
    }
    if (!k) return skip;
    if (k == 1) return b->kids[first];
    b->n_kids += k;
    return add(b, (tn_gx_node){.kind = kind, .first = (uint32_t)first, .n = (uint32_t)k});
}

tn_gx tn_gx_seq(tn_gb *b, const tn_gx *x, size_t n) {
    return list_of(b, TN_GXK_SEQ, x, n, TN_GX_EMPTY, TN_GX_NEVER);
}

tn_gx tn_gx_alt(tn_gb *b, const tn_gx *x, size_t n) {
    return list_of(b, TN_GXK_ALT, x, n, TN_GX_NEVER, UINT32_MAX);
}

tn_gx tn_gx_rep(tn_gb *b, tn_gx x, uint32_t min, uint32_t max) {
    if (min > max) return TN_GX_NEVER;
    if (!max || x == TN_GX_EMPTY) return TN_GX_EMPTY;
    if (x == TN_GX_NEVER) return min ? TN_GX_NEVER : TN_GX_EMPTY;
    if (min == 1 && max == 1) return x;
    return add(b, (tn_gx_node){.kind = TN_GXK_REP, .first = x, .min = min, .max = max});
}

tn_gx tn_gx_rule(tn_gb *b, tn_grule r) { return add(b, (tn_gx_node){.kind = TN_GXK_RULE, .first = r}); }

/* ---- rules ---------------------------------------------------------------------------------------- */

tn_grule tn_gb_rule(tn_gb *b, const char *name, size_t n_name) {
    if (!ROOM(b, rules, cap_rules, b->n_rules + 1) || !ROOM(b, text, cap_text, b->n_text + n_name)) return 0;
    if (n_name) memcpy(b->text + b->n_text, name, n_name);
    b->rules[b->n_rules] = (tn_grule_def){.name = (uint32_t)b->n_text, .n_name = (uint32_t)n_name};
    b->n_text += n_name;
    return (tn_grule)b->n_rules++;
}

void tn_gb_define(tn_gb *b, tn_grule r, tn_gx body) {
    if (b->st != TERN_OK) return;
    b->rules[r].body = body;
    b->rules[r].defined = true;
}

static size_t slot_of(const tn_gb *b, const char *name, size_t n_name) {
    size_t mask = b->cap_by_name - 1, i = (size_t)XXH3_64bits(name, n_name) & mask;
    for (; b->by_name[i]; i = (i + 1) & mask) {
        const tn_grule_def *d = &b->rules[b->by_name[i] - 1];
        if (d->n_name == n_name && !memcmp(b->text + d->name, name, n_name)) break;
    }
    return i;
}

bool tn_gb_has(const tn_gb *b, const char *name, size_t n_name, tn_grule *r) {
    if (!b->cap_by_name) return false;
    size_t i = slot_of(b, name, n_name);
    if (!b->by_name[i]) return false;
    *r = b->by_name[i] - 1;
    return true;
}

tn_grule tn_gb_named(tn_gb *b, const char *name, size_t n_name) {
    tn_grule r;
    if (tn_gb_has(b, name, n_name, &r)) return r;
    if (2 * (b->n_rules + 1) >= b->cap_by_name) {
        size_t cap = b->cap_by_name ? 2 * b->cap_by_name : 64;
        uint32_t *more = tn_calloc(b->ctx, TN_MEM_TEXT, cap, sizeof *more), *old = b->by_name;
        if (!more) b->st = b->st == TERN_OK ? TERN_E_MEMORY : b->st;
        if (!more) return 0;
        size_t n_old = b->cap_by_name;
        b->by_name = more;
        b->cap_by_name = cap;
        for (size_t i = 0; i < n_old; i++) {
            if (!old[i]) continue;
            const tn_grule_def *d = &b->rules[old[i] - 1];
            more[slot_of(b, b->text + d->name, d->n_name)] = old[i];
        }
        tn_free(b->ctx, old);
    }
    r = tn_gb_rule(b, name, n_name);
    if (b->st == TERN_OK) b->by_name[slot_of(b, name, n_name)] = r + 1;
    return r;
}
