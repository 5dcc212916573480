#include "runtime.h"

#include "ops.h"

/* The memory at a place, which must be mapped. */
static uint8_t *at(const tn_hex_runtime *t, uint32_t place) {
    uint32_t i = 0;
    for (; place >= t->hello.arena_bytes && i + 1 < t->hello.n_arenas; i++) place -= t->hello.arena_bytes;
    return t->arenas[i] + place;
}

static void forget(const tn_hex_runtime *t, uint32_t place, uint64_t bytes) {
    if (t->platform.forget && place) t->platform.forget(at(t, place), (uint32_t)bytes);
}

static void write_back(const tn_hex_runtime *t, uint32_t place, uint64_t bytes) {
    if (t->platform.write_back) t->platform.write_back(at(t, place), (uint32_t)bytes);
}

static uint64_t padded(uint32_t n) { return ((uint64_t)n + 15) / 16 * 16; }

/* ---- mapped memory ----------------------------------------------------------------------------------- */

/* Finds the first map that ends after place. */
static uint32_t find(const tn_hex_runtime *t, uint32_t place) {
    uint32_t lo = 0, hi = t->n_maps;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (t->maps[mid].place + t->maps[mid].size > place) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

static int within(const tn_hex_map *a, uint32_t place, uint64_t bytes) {
    return place >= a->place && place - a->place <= a->size && bytes <= a->size - (place - a->place);
}

static int mapped(const tn_hex_runtime *t, uint32_t place, uint64_t bytes, uint32_t align) {
    uint32_t i = find(t, place);
    tn_hex_map window = {t->hello.window, t->hello.window_bytes};
    return place % align == 0 &&
           (within(&window, place, bytes) || (i < t->n_maps && within(&t->maps[i], place, bytes)));
}

static int disjoint(const tn_hex_map *a, uint32_t place, uint32_t size) {
    return place >= a->place + a->size || place + size <= a->place;
}

static tn_hex_status map(tn_hex_runtime *t, const tn_hex_map *m) {
    uint32_t i = find(t, m->place);
    tn_hex_map window = {t->hello.window, t->hello.window_bytes};
    uint32_t inside = m->place, arena = 0; /* arena and offset in it: nothing crosses into the next */
    for (; inside >= t->hello.arena_bytes && arena < t->hello.n_arenas; arena++)
        inside -= t->hello.arena_bytes;
    if (!m->size || !m->place || arena == t->hello.n_arenas || m->size > t->hello.arena_bytes - inside)
        return TN_HEX_E_PLACE;
    if (!disjoint(&window, m->place, m->size) || (i < t->n_maps && !disjoint(&t->maps[i], m->place, m->size)))
        return TN_HEX_E_PLACE;
    if (t->n_maps == TN_HEX_MAX_MAPS || (t->hello.cap_bytes && m->size > t->hello.cap_bytes - t->used_bytes))
        return TN_HEX_E_LIMIT;
    for (uint32_t j = t->n_maps++; j > i; j--) t->maps[j] = t->maps[j - 1];
    t->maps[i] = *m;
    t->used_bytes += m->size;
    return TN_HEX_OK;
}

static int uses(const tn_hex_map *m, uint32_t place) {
    return place && place >= m->place && place - m->place < m->size;
}

static tn_hex_status unmap(tn_hex_runtime *t, const tn_hex_map *m) {
    uint32_t i = find(t, m->place);
    if (i == t->n_maps || t->maps[i].place != m->place || t->maps[i].size != m->size) return TN_HEX_E_PLACE;
    for (uint32_t g = 0; g < t->n_graphs; g++) {
        const tn_hex_load *d = &t->graphs[g].desc;
        for (uint32_t o = 0; t->graphs[g].loaded && o < d->n_ops; o++) {
            if (uses(m, d->ops[o].tiles) || uses(m, d->ops[o].scale) || uses(m, d->ops[o].bias))
                return TN_HEX_E_PLACE;
        }
    }
    t->used_bytes -= m->size;
    t->n_maps--;
    for (; i < t->n_maps; i++) t->maps[i] = t->maps[i + 1];
    return TN_HEX_OK;
}

/* ---- threads ----------------------------------------------------------------------------------------- */

/* The work of all threads of a product, a selection or an unpacking: columns, rows or channels, in parts that
 * are multiples of a step. Every thread has its own part of VTCM and its own transfers, and stages the rows
 * for itself. */
typedef struct shared_work {
    const tn_hex_runtime *t;
    tn_hex_dma *dma;
    const tn_hex_op *op;          /* or NULL: */
    const tn_hex_topk_rows *rows; /* or NULL: unpack */
    uint32_t n, step, n_threads;
    const uint8_t *src, *widths;
    uint8_t *tiles;
    uint32_t k;
} shared_work;

static void one_part(void *arg, uint32_t i) {
    const shared_work *w = arg;
    uint32_t steps = (w->n + w->step - 1) / w->step, k4 = (w->k + 3) / 4 * 4,
             from = steps * i / w->n_threads * w->step, to = steps * (i + 1) / w->n_threads * w->step,
             room = w->t->hello.vtcm_bytes / w->n_threads / 128 * 128;
    if (to > w->n) to = w->n;
    if (from == to) return;
    tn_hex_scratch s = {w->t->vtcm + i * room, room, &w->dma[i], &w->t->spreads};
    if (w->op) {
        tn_hex_op part = *w->op;
        part.n = to - from, part.tiles += from * k4, part.scale += from;
        if (part.bias) part.bias += from;
        part.out += from * (part.out_form < 2 ? 4 : 1);
        tn_hex_linear(&s, &part);
        return;
    }
    for (uint32_t r = from; w->rows && r < to; r++) {
        tn_hex_top top = {.scores = (const int32_t *)at(w->t, w->rows->rows[r].scores),
                          .n = w->rows->rows[r].n,
                          .k = w->rows->rows[r].k,
                          .bound = (int32_t)w->rows->bound,
                          .idx = (uint32_t *)at(w->t, w->rows->rows[r].idx)};
        tn_hex_topk(&s, &top);
    }
    if (w->rows) return;
    const uint8_t *src = w->src;
    for (uint32_t c = 0; c < from; c++) src += w->widths[c] * ((w->k + 127) / 128) * 16;
    tn_hex_unpack_tiles(&s, src, w->widths + from, to - from, w->k, w->tiles + from * k4);
}

static void in_parts(tn_hex_runtime *t, shared_work w) {
    uint32_t steps = (w.n + w.step - 1) / w.step;
    w.t = t, w.dma = t->dma, w.n_threads = t->n_threads < steps ? t->n_threads : steps;
    if (t->n_used < w.n_threads) t->n_used = w.n_threads;
    if (w.n_threads > 1) t->platform.on_threads(one_part, &w, w.n_threads);
    else one_part(&w, 0);
}

/* ---- graphs ------------------------------------------------------------------------------------------ */

static tn_hex_status load(tn_hex_runtime *t, uint32_t id, const tn_hex_load *d) {
    if (id >= TN_HEX_MAX_GRAPHS || t->graphs[id].loaded) return TN_HEX_E_GRAPH;
    if (d->is_qk > 1 || !d->m || d->m > TN_HEX_MAX_ROWS || !d->k || d->k > TN_HEX_MAX_K || !d->n_ops ||
        d->n_ops > TN_HEX_MAX_OPS)
        return TN_HEX_E_SHAPE;
    for (uint32_t i = 0; i < d->n_ops; i++) {
        uint32_t n = d->ops[i].n;
        if (!n || n > TN_HEX_MAX_N || d->ops[i].out_form > 3) return TN_HEX_E_SHAPE;
        if (!mapped(t, d->ops[i].scale, padded(n) * 4, 8) ||
            (d->ops[i].bias && !mapped(t, d->ops[i].bias, padded(n) * 4, 8)))
            return TN_HEX_E_PLACE;
        if (d->is_qk ? d->ops[i].tiles != 0
                     : !mapped(t, d->ops[i].tiles, padded(n) * ((d->k + 3) / 4 * 4), 64))
            return TN_HEX_E_PLACE;
    }
    for (uint32_t i = 0; i < d->n_ops; i++) {
        forget(t, d->ops[i].scale, padded(d->ops[i].n) * 4);
        forget(t, d->ops[i].bias, padded(d->ops[i].n) * 4);
        forget(t, d->ops[i].tiles, padded(d->ops[i].n) * ((d->k + 3) / 4 * 4));
    }
    t->graphs[id] = (tn_hex_graph){1, *d};
    if (t->n_graphs <= id) t->n_graphs = id + 1;
    return TN_HEX_OK;
}

static tn_hex_status run(tn_hex_runtime *t, uint32_t id, const tn_hex_run *r) {
    if (id >= TN_HEX_MAX_GRAPHS || !t->graphs[id].loaded) return TN_HEX_E_GRAPH;
    const tn_hex_load *d = &t->graphs[id].desc;
    uint32_t k4 = (d->k + 3) / 4 * 4;
    if (!r->n_rows || r->n_rows > d->m) return TN_HEX_E_SHAPE;
    for (int pass = 0; pass < 2; pass++) { /* a request with any error computes nothing */
        for (uint32_t i = 0; i < d->n_ops; i++) {
            uint32_t o = d->is_qk ? i : 0, cols = r->ops[i].cols,
                     tiles = d->is_qk ? r->ops[i].tiles : d->ops[i].tiles;
            uint32_t element = d->ops[i].out_form < 2 ? 4 : 1, last = r->n_rows - 1;
            if (!cols) continue;
            if (pass) {
                tn_hex_op op = {.m = r->n_rows,
                                .n = cols,
                                .k = k4,
                                .out_form = d->ops[i].out_form,
                                .in_stride = r->ops[o].in_stride,
                                .out_stride = r->ops[i].out_stride,
                                .in = at(t, r->ops[o].in),
                                .tiles = at(t, tiles),
                                .scale = (const float *)at(t, d->ops[i].scale),
                                .bias = d->ops[i].bias ? (const float *)at(t, d->ops[i].bias) : 0,
                                .out = at(t, r->ops[i].out)};
                if (d->is_qk || i == 0) forget(t, r->ops[o].in, (uint64_t)last * r->ops[o].in_stride + k4);
                if (d->is_qk) forget(t, tiles, padded(cols) * k4);
                in_parts(t, (shared_work){.op = &op, .n = cols, .step = TN_HEX_COLS, .k = k4});
                write_back(t, r->ops[i].out, ((uint64_t)last * r->ops[i].out_stride + cols) * element);
                continue;
            }
            if ((d->is_qk ? cols > d->ops[i].n : cols != d->ops[i].n) || r->ops[i].out_stride < cols ||
                r->ops[o].in_stride < k4)
                return TN_HEX_E_SHAPE;
            if (r->ops[o].in_stride % TN_HEX_IN_ALIGN ||
                !mapped(t, r->ops[o].in, (uint64_t)last * r->ops[o].in_stride + k4, TN_HEX_IN_ALIGN))
                return TN_HEX_E_PLACE;
            if (!mapped(t, r->ops[i].out, ((uint64_t)last * r->ops[i].out_stride + cols) * element, element))
                return TN_HEX_E_PLACE;
            if (d->is_qk && !mapped(t, tiles, padded(cols) * k4, 64)) return TN_HEX_E_PLACE;
        }
    }
    return TN_HEX_OK;
}

/* ---- weightlets -------------------------------------------------------------------------------------- */

static tn_hex_status unpack(tn_hex_runtime *t, const tn_hex_unpack *u) {
    uint8_t widths[TN_HEX_MAX_CHANNELS];
    uint64_t sum = 0;
    if (!u->n_channels || u->n_channels > TN_HEX_MAX_CHANNELS || !u->k || u->k > TN_HEX_MAX_K)
        return TN_HEX_E_SHAPE;
    for (uint32_t c = 0; c < u->n_channels; c++) {
        uint32_t two = u->bits[c * 3 / 8] | (uint32_t)u->bits[c * 3 / 8 + 1] << 8;
        widths[c] = (uint8_t)((two >> c * 3 % 8 & 7) + 1);
        sum += widths[c];
    }
    if (u->src_bytes != sum * ((u->k + 127) / 128) * 16) return TN_HEX_E_SHAPE;
    if (!mapped(t, u->src, u->src_bytes, 1) ||
        !mapped(t, u->tiles, padded(u->n_channels) * ((u->k + 3) / 4 * 4), 64))
        return TN_HEX_E_PLACE;
    forget(t, u->src, u->src_bytes);
    in_parts(t, (shared_work){.n = u->n_channels,
                              .step = 16,
                              .src = at(t, u->src),
                              .widths = widths,
                              .tiles = at(t, u->tiles),
                              .k = u->k});
    write_back(t, u->tiles, padded(u->n_channels) * ((u->k + 3) / 4 * 4));
    return TN_HEX_OK;
}

static tn_hex_status topk(tn_hex_runtime *t, const tn_hex_topk_rows *r) {
    if (!r->n_rows || r->n_rows > TN_HEX_TOP_ROWS || !r->bound || r->bound > TN_HEX_MAX_BOUND)
        return TN_HEX_E_SHAPE;
    for (uint32_t i = 0; i < r->n_rows; i++) {
        uint32_t n = r->rows[i].n, k = r->rows[i].k;
        if (!n || n > TN_HEX_MAX_N || !k || k > n) return TN_HEX_E_SHAPE;
        if (!mapped(t, r->rows[i].scores, (uint64_t)n * 4, 4) ||
            !mapped(t, r->rows[i].idx, (uint64_t)k * 4, 4))
            return TN_HEX_E_PLACE;
    }
    for (uint32_t i = 0; i < r->n_rows; i++) forget(t, r->rows[i].scores, (uint64_t)r->rows[i].n * 4);
    in_parts(t, (shared_work){.rows = r, .n = r->n_rows, .step = 1});
    for (uint32_t i = 0; i < r->n_rows; i++) write_back(t, r->rows[i].idx, (uint64_t)r->rows[i].k * 4);
    return TN_HEX_OK;
}

/* ---- messages ---------------------------------------------------------------------------------------- */

static tn_hex_status hello(tn_hex_runtime *t, const tn_hex_hello *h) {
    if (t->arenas[0] || h->version != TN_HEX_VERSION) return TN_HEX_E_MESSAGE;
    if (!h->n_arenas || h->n_arenas > TN_HEX_MAX_ARENAS ||
        (uint64_t)h->n_arenas * h->arena_bytes > UINT32_MAX)
        return TN_HEX_E_PLACE;
    if (!h->arena_bytes || !h->window || h->window > h->arena_bytes ||
        h->window_bytes > h->arena_bytes - h->window)
        return TN_HEX_E_PLACE;
    if (h->vtcm_bytes < TN_HEX_VTCM_LEAST || h->vtcm_bytes > TN_HEX_VTCM_MOST || !h->n_threads ||
        h->n_threads > TN_HEX_MAX_THREADS)
        return TN_HEX_E_LIMIT;
    if (!t->vtcm) t->vtcm = t->platform.get_vtcm(h->vtcm_bytes);
    if (!t->vtcm) return TN_HEX_E_LIMIT;
    for (uint32_t i = h->n_arenas; i--;) /* the first one is written last: it marks all as complete */
        if (!(t->arenas[i] = t->platform.map_arena(i, h->arena_bytes))) return TN_HEX_E_LIMIT;
    t->hello = *h;
    tn_hex_spreads_init(&t->spreads);
    for (uint32_t i = 0; i < TN_HEX_MAX_THREADS; i++) t->dma[i].poison = (h->flags & TN_HEX_POISON) != 0;
    t->n_threads = h->n_threads;
    while (t->n_threads > 1 && h->vtcm_bytes / t->n_threads < TN_HEX_VTCM_LEAST) t->n_threads--;
    if (!t->platform.make_threads || t->platform.make_threads(t->n_threads)) t->n_threads = 1;
    return TN_HEX_OK;
}

void tn_hex_answer(tn_hex_runtime *t, const tn_hex_request *g, tn_hex_reply *reply) {
    tn_hex_status st = TN_HEX_E_MESSAGE;
    t->n_used = 0;
    if (g->what == TN_HEX_HELLO) st = hello(t, &g->hello);
    else if (!t->arenas[0]) st = TN_HEX_E_MESSAGE;
    else if (g->what == TN_HEX_MAP) st = map(t, &g->map);
    else if (g->what == TN_HEX_UNMAP) st = unmap(t, &g->map);
    else if (g->what == TN_HEX_LOAD) st = load(t, g->id, &g->load);
    else if (g->what == TN_HEX_RUN) st = run(t, g->id, &g->run);
    else if (g->what == TN_HEX_UNPACK) st = unpack(t, &g->unpack);
    else if (g->what == TN_HEX_TOPK) st = topk(t, &g->topk);
    else if (g->what == TN_HEX_FREE) {
        st = g->id < TN_HEX_MAX_GRAPHS && t->graphs[g->id].loaded ? TN_HEX_OK : TN_HEX_E_GRAPH;
        if (st == TN_HEX_OK) t->graphs[g->id].loaded = 0;
        while (t->n_graphs && !t->graphs[t->n_graphs - 1].loaded) t->n_graphs--;
    }
    *reply = (tn_hex_reply){
        .serial = g->serial, .status = (uint32_t)st, .used_bytes = t->used_bytes, .n_threads = t->n_used};
}
