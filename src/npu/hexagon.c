/* npu/hexagon.c - host side of the Hexagon backend.
 *
 * Everything the device addresses lies in an arena that both sides see (hexagon/transport.h). It is mapped
 * on the DSP block by block, under its memory cap. Graphs are loaded there once and run by number. One
 * thread runs jobs in order. Rows outside the arena pass through a window of it.
 *
 * Every wait has a limit. A DSP that dies, hangs, answers nonsense or refuses wrongly is lost for good: it
 * is killed, with one message. The host's kernels then run this job, all later ones and unpacking, since
 * weights and tiles lie in the shared arena. So the session continues with the same bits. */
#ifdef TERN_HEXAGON
#include "base/cpu.h"
#include "kernels/kernels.h"
#include "kernels/unpack.h"
#include "npu/backend.h"
#include "npu/hexagon/message.h"
#include "npu/hexagon/transport.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 128,
    START_MS = 10000,
    RUN_MS = 30000,
    TILE_N = 16,
    /* the window, after place 0, which means none */
    WINDOW = 4096,
    IN_BYTES = 8 << 20,
    K_BYTES = 8 << 20, /* 8 ops' column tile of the longest K */
    OUT_BYTES = 16 << 20,
    WINDOW_BYTES = IN_BYTES + K_BYTES + OUT_BYTES,
};
_Static_assert(WINDOW_BYTES >= TN_HEX_MAX_CHANNELS * TN_HEX_MAX_K,
               "packed channels of one message fit the window");
_Static_assert(K_BYTES >= TN_HEX_MAX_OPS * TILE_N * TN_HEX_MAX_K && OUT_BYTES >= 4 * TN_HEX_MAX_N,
               "a tile and a row fit");
_Static_assert((int)TN_HEX_MAX_OPS == (int)TN_NPU_MAX_OPS && TN_NPU_OUT_F32 == 0 && TN_NPU_OUT_S32 == 1 &&
                   TN_NPU_OUT_U8 == 2 && TN_NPU_OUT_S8 == 3,
               "messages speak npu.h");

/* A block is a used part of the arena. Blocks are in the order of their places. */
typedef struct block {
    struct block *next;
    uint32_t at, room, n_bytes;
    tn_mem_cat cat;
} block;

typedef struct hexagon {
    tn_hex_link *link;
    tn_npu_device *dev;
    tn_kernels kern; /* for the case that it is lost */
    int wait_ms;     /* time limit for an answer */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mu;
    pthread_cond_t wake;
    tn_npu_job *head, *tail; /* guarded by mu */
    bool quit;               /* guarded by mu */
    pthread_mutex_t talk;    /* guards what follows, the link and the window; not taken under mu */
    uint32_t serial;
    bool greeted, lost;
    block *blocks;
    bool id_used[TN_HEX_MAX_GRAPHS];
} hexagon;

/* A loaded graph has a number and the places of its constants. */
typedef struct resident {
    uint32_t id;
} resident;

/* ---- messages: under talk ------------------------------------------------------------------------------ */

static void lose(hexagon *h, const char *why) {
    if (h->lost) return;
    h->lost = true;
    tn_hex_transport_here.kill(h->link);
    if (h->greeted)
        tn_log(h->dev->ctx, TERN_LOG_WARN, "the Hexagon DSP is lost: %s; the CPU takes over", why);
}

/* Returns the DSP's status, or 0 when the DSP is lost. */
static uint32_t ask_for(hexagon *h, tn_hex_request *g, int limit_ms) {
    tn_hex_reply r = {0};
    if (h->lost) return 0;
    g->serial = ++h->serial;
    tn_hex_receipt came = tn_hex_transport_here.send(h->link, g, sizeof *g)
                              ? tn_hex_transport_here.receive(h->link, &r, sizeof r, limit_ms)
                              : TN_HEX_ENDED;
    if (came == TN_HEX_CAME && r.serial == g->serial && r.status >= TN_HEX_OK && r.status <= TN_HEX_E_SHAPE)
        return r.status;
    lose(h, came == TN_HEX_LATE    ? "it gave no answer in time"
            : came == TN_HEX_ENDED ? "it ended"
                                   : "it gave no sane answer");
    return 0;
}

/* Sends a request that the DSP has no reason to refuse. work is the number of multiply-adds, which sets the
 * time limit for the slowest DSP: an emulator on a busy machine does more than 10^5 a ms. */
static bool ask(hexagon *h, tn_hex_request *g, uint64_t work) {
    uint64_t more_ms = work / 100000;
    uint32_t st = ask_for(h, g, h->wait_ms + (int)(more_ms < 3600000 ? more_ms : 3600000));
    if (st && st != TN_HEX_OK) lose(h, "it refuses a sound request");
    return st == TN_HEX_OK;
}

/* ---- arena ----------------------------------------------------------------------------------------- */

/* Returns a pointer's place in the arenas, or 0 outside them. */
static uint32_t place(const hexagon *h, const void *p) {
    const tn_hex_link *l = h->link;
    for (uint32_t i = 0; p && i < l->n_arenas; i++) {
        uintptr_t off = (uintptr_t)p - (uintptr_t)l->arenas[i];
        if (off < l->arena_bytes) return i * l->arena_bytes + (uint32_t)off;
    }
    return 0;
}

/* Returns the first place at or after `at` where this many bytes lie within one arena. Does not check the
 * end of the last one. */
static uint32_t in_one(const tn_hex_link *l, uint32_t at, uint32_t room) {
    uint32_t inside = at % l->arena_bytes;
    return inside + room <= l->arena_bytes ? at : at - inside + l->arena_bytes;
}

/* Finds a gap for b among the blocks. Returns the link to set to it. */
static block **gap(hexagon *h, block *b) {
    block **p = &h->blocks;
    b->at = WINDOW + WINDOW_BYTES;
    for (;; p = &(*p)->next) {
        b->at = in_one(h->link, b->at, b->room);
        if (!*p || ((*p)->at >= b->at && (*p)->at - b->at >= b->room)) return p;
        if ((*p)->at + (*p)->room > b->at) b->at = (*p)->at + (*p)->room;
    }
}

static bool owns(tn_npu_device *d, const void *p) { return place(d->impl, p) != 0; }

static tern_status arena_alloc(tn_npu_device *d, uint64_t n_bytes, tn_mem_cat cat, void **out,
                               tern_error *err) {
    hexagon *h = d->impl;
    uint32_t arena = h->link->arena_bytes, all = arena * h->link->n_arenas;
    TN_FAIL_IF(n_bytes > arena - (h->link->n_arenas > 1 ? ALIGN : WINDOW + WINDOW_BYTES), err, TERN_E_LIMIT,
               "%" PRIu64 " bytes in one piece; an arena of the DSP has %u", n_bytes, arena);
    block *b = tn_calloc(d->ctx, cat, 1, sizeof *b);
    TN_FAIL_IF(!b, err, TERN_E_MEMORY, "no memory for a block of the DSP's arena");
    b->cat = cat;
    b->n_bytes = (uint32_t)(n_bytes ? n_bytes : 1);
    b->room = (b->n_bytes + ALIGN - 1) & ~(uint32_t)(ALIGN - 1);
    pthread_mutex_lock(&h->talk);
    block **p = gap(h, b);
    bool fits = b->at < all && b->room <= all - b->at;
    tn_hex_request g = {.what = TN_HEX_MAP, .map = {b->at, b->n_bytes}};
    uint32_t st = fits ? ask_for(h, &g, h->wait_ms) : 0;
    bool refused = st == TN_HEX_E_LIMIT;
    if (st && st != TN_HEX_OK && !refused) lose(h, "it refuses a sound request");
    if (fits && !refused) {
        b->next = *p;
        *p = b;
    }
    pthread_mutex_unlock(&h->talk);
    if (fits && !refused) {
        atomic_fetch_add_explicit(&d->ctx->live_bytes[cat], b->n_bytes, memory_order_relaxed);
        *out = h->link->arenas[b->at / arena] + b->at % arena;
        return TERN_OK;
    }
    tn_free(d->ctx, b);
    TN_FAIL_IF(refused, err, TERN_E_LIMIT,
               "the DSP refuses to map %" PRIu64
               " bytes more (a smaller --npu-memory leaves more to the CPU)",
               n_bytes);
    return tn_fail(err, TERN_E_LIMIT,
                   "the DSP's memory of %u bytes has no room for %" PRIu64
                   " more (a smaller --npu-memory leaves more to the CPU)",
                   all, n_bytes);
}

static void arena_free(tn_npu_device *d, void *mem) {
    hexagon *h = d->impl;
    if (!mem) return;
    pthread_mutex_lock(&h->talk);
    block **p = &h->blocks;
    while ((*p)->at != place(h, mem)) p = &(*p)->next;
    block *b = *p;
    *p = b->next;
    tn_hex_request g = {.what = TN_HEX_UNMAP, .map = {b->at, b->n_bytes}};
    ask(h, &g, 0);
    pthread_mutex_unlock(&h->talk);
    atomic_fetch_sub_explicit(&d->ctx->live_bytes[b->cat], b->n_bytes, memory_order_relaxed);
    tn_free(d->ctx, b);
}

/* ---- jobs ------------------------------------------------------------------------------------------ */

static uint32_t width_of(const tn_npu_op *op) {
    return op->out == TN_NPU_OUT_F32 || op->out == TN_NPU_OUT_S32 ? 4 : 1;
}

/* Runs rows row0..row0+n-1 and columns col0[i]..+cols[i]-1 of the ops; an op without columns is skipped. Rows
 * and K outside the arena pass through the window. */
static bool run_piece(hexagon *h, const tn_npu_job *j, int32_t row0, int32_t n, const int32_t *col0,
                      const int32_t *cols) {
    const tn_npu_graph *g = j->graph;
    uint8_t *arena = h->link->arena;
    uint32_t k4 = (uint32_t)(g->desc.k + 3) & ~3u, k8 = (k4 + 7) & ~7u, in = WINDOW, k = WINDOW + IN_BYTES,
             out = WINDOW + IN_BYTES + K_BYTES;
    bool linears = g->desc.kind == TN_NPU_LINEARS, direct[TN_NPU_MAX_OPS] = {0};
    uint64_t work = 0;
    tn_hex_request m = {
        .what = TN_HEX_RUN, .id = ((const resident *)g->impl)->id, .run = {.n_rows = (uint32_t)n}};
    for (int32_t i = 0; i < g->desc.n_ops; i++) {
        const tn_npu_op *op = &g->desc.ops[i];
        uint32_t width = width_of(op), stride = (uint32_t)g->desc.in_stride;
        const uint8_t *rows = tn_npu_op_in(j, i) + (size_t)row0 * stride;
        m.run.ops[i].cols = (uint32_t)cols[i];
        if ((linears && !i) || (!linears && cols[i])) {
            m.run.ops[i].in = place(h, rows);
            m.run.ops[i].in_stride = stride;
            if (!m.run.ops[i].in || m.run.ops[i].in % TN_HEX_IN_ALIGN || stride % TN_HEX_IN_ALIGN) {
                for (int32_t r = 0; r < n; r++)
                    memcpy(arena + in + (size_t)r * k8, rows + (size_t)r * stride, k4);
                m.run.ops[i].in = in;
                m.run.ops[i].in_stride = k8;
                in += (uint32_t)n * k8;
            }
        }
        if (!cols[i]) continue;
        work += (uint64_t)n * (uint64_t)cols[i] * k4;
        if (!linears) {
            const int8_t *tiles = j->k[i].tiles + (size_t)col0[i] * k4;
            if (!(m.run.ops[i].tiles = place(h, tiles))) {
                uint32_t bytes = (uint32_t)(cols[i] + TILE_N - 1) / TILE_N * TILE_N * k4;
                memcpy(arena + k, tiles, bytes);
                m.run.ops[i].tiles = k;
                k += bytes;
            }
        }
        void *to = (char *)j->out[i] + ((size_t)row0 * (size_t)op->out_stride + (size_t)col0[i]) * width;
        m.run.ops[i].out = place(h, to);
        m.run.ops[i].out_stride = (uint32_t)op->out_stride;
        direct[i] = m.run.ops[i].out && m.run.ops[i].out % width == 0;
        if (!direct[i]) {
            m.run.ops[i].out = out;
            m.run.ops[i].out_stride = m.run.ops[i].cols;
            out += ((uint32_t)n * m.run.ops[i].cols * width + 3) & ~3u;
        }
    }
    if (!ask(h, &m, work)) return false;
    for (int32_t i = 0; i < g->desc.n_ops; i++) {
        const tn_npu_op *op = &g->desc.ops[i];
        uint32_t width = width_of(op), row = m.run.ops[i].cols * width;
        for (int32_t r = 0; r < n && !direct[i] && cols[i]; r++)
            memcpy((char *)j->out[i] +
                       ((size_t)(row0 + r) * (size_t)op->out_stride + (size_t)col0[i]) * width,
                   arena + m.run.ops[i].out + (size_t)r * row, row);
    }
    return true;
}

/* Runs a job in pieces: as many rows and ops at once as fit the window, and for Q.K as many columns. */
static bool run_job(hexagon *h, const tn_npu_job *j) {
    const tn_npu_graph_desc *d = &j->graph->desc;
    bool qk = d->kind == TN_NPU_QK;
    uint32_t k4 = (uint32_t)(d->k + 3) & ~3u, in_row = ((k4 + 7) & ~7u) * (qk ? (uint32_t)d->n_ops : 1);
    int32_t most_cols = qk ? (int32_t)(K_BYTES / (uint32_t)d->n_ops / (TILE_N * k4)) * TILE_N : TN_HEX_MAX_N;
    for (int32_t first = 0, end; first < d->n_ops; first = end) {
        uint32_t out_row = 0;
        for (end = first; end < d->n_ops; end++) {
            uint32_t more = (uint32_t)tn_npu_op_cols(j, end) * 4 + 4;
            if (end > first && more > OUT_BYTES - out_row) break;
            out_row += more;
        }
        int32_t rows =
            (int32_t)(IN_BYTES / in_row < OUT_BYTES / out_row ? IN_BYTES / in_row : OUT_BYTES / out_row);
        if (rows < 1) rows = 1;
        for (int32_t row = 0; row < j->n_rows; row += rows) {
            for (int32_t col = 0, more = 1; more; col += most_cols) {
                int32_t col0[TN_NPU_MAX_OPS] = {0}, cols[TN_NPU_MAX_OPS] = {0};
                more = 0;
                for (int32_t i = first; i < end; i++) {
                    int32_t left = tn_npu_op_cols(j, i) - col;
                    col0[i] = col;
                    cols[i] = left < 0 ? 0 : left < most_cols ? left : most_cols;
                    more |= left > most_cols;
                }
                if (!run_piece(h, j, row, j->n_rows - row < rows ? j->n_rows - row : rows, col0, cols))
                    return false;
            }
        }
    }
    return true;
}

static void *worker_main(void *arg) {
    hexagon *h = arg;
    pthread_mutex_lock(&h->mu);
    for (;;) {
        while (!h->head && !h->quit) pthread_cond_wait(&h->wake, &h->mu);
        tn_npu_job *j = h->head;
        if (!j) break;
        h->head = j->next;
        if (!h->head) h->tail = NULL;
        pthread_mutex_unlock(&h->mu);
        pthread_mutex_lock(&h->talk);
        bool done = !h->lost && run_job(h, j);
        pthread_mutex_unlock(&h->talk);
        if (!done) tn_npu_host_compute(&h->kern, j);
        tn_npu_complete(h->dev, j, TERN_OK);
        pthread_mutex_lock(&h->mu);
    }
    pthread_mutex_unlock(&h->mu);
    return NULL;
}

static void submit(tn_npu_device *d, tn_npu_job *j) {
    hexagon *h = d->impl;
    j->next = NULL;
    pthread_mutex_lock(&h->mu);
    if (h->tail) h->tail->next = j;
    else h->head = j;
    h->tail = j;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->mu);
}

/* ---- weightlets ------------------------------------------------------------------------------------ */

static void unpack(tn_npu_device *d, const uint8_t *src, const uint8_t *bits, int64_t n0, int64_t n1,
                   int64_t k, int8_t *tiles) {
    hexagon *h = d->impl;
    for (int64_t n = n0, end; n < n1; n = end) {
        end = n1 - n < TN_HEX_MAX_CHANNELS ? n1 : n + TN_HEX_MAX_CHANNELS;
        size_t bytes = tn_weightlets_bytes(bits, (size_t)n, (size_t)end, (size_t)k);
        tn_hex_request g = {.what = TN_HEX_UNPACK,
                            .unpack = {.src = place(h, src),
                                       .src_bytes = (uint32_t)bytes,
                                       .n_channels = (uint32_t)(end - n),
                                       .k = (uint32_t)k}};
        g.unpack.tiles = place(h, tiles + n * ((k + 3) / 4 * 4));
        for (int64_t c = n; c < end; c++)
            tn_channel_bits_put(g.unpack.bits, (size_t)(c - n), tn_channel_bits_get(bits, (size_t)c));
        pthread_mutex_lock(&h->talk);
        if (!g.unpack.src && !h->lost) {
            memcpy(h->link->arena + WINDOW, src, bytes);
            g.unpack.src = WINDOW;
        }
        bool done = ask(h, &g, (uint64_t)(end - n) * (uint64_t)k);
        pthread_mutex_unlock(&h->talk);
        if (!done)
            tn_weightlets_unpack(h->kern.unpack_tile, src, bits, (size_t)n, (size_t)end, (size_t)k, tiles);
        src += bytes;
    }
}

/* ---- graphs ---------------------------------------------------------------------------------------- */

/* Finds the places of an op's tiles and bias. Those of borrowed weights are copied once, for all graphs. */
static tern_status constants(tn_npu_device *d, tn_npu_graph *g, int32_t i, uint32_t *tiles, uint32_t *bias,
                             tern_error *err) {
    hexagon *h = d->impl;
    tn_npu_weights *w = g->weights[i];
    *tiles = w ? place(h, w->data.tiles) : 0;
    *bias = place(h, g->bias[i]);
    uint64_t n_tiles = w && !*tiles ? tn_npu_tiles_bytes(&d->caps.layout, w->n, w->k) : 0;
    uint64_t n_bias = w && w->data.bias && !place(h, w->data.bias)
                          ? (uint64_t)(w->n + TILE_N - 1) / TILE_N * TILE_N * sizeof(float)
                          : 0;
    if (!n_tiles && !n_bias) return TERN_OK;
    pthread_mutex_lock(&d->mu);
    char *copy = w->copy;
    pthread_mutex_unlock(&d->mu);
    if (!copy) {
        void *fresh;
        TN_TRY(arena_alloc(d, n_tiles + n_bias, TN_MEM_WEIGHTS, &fresh, err));
        if (n_tiles) memcpy(fresh, w->data.tiles, n_tiles);
        if (n_bias) memcpy((char *)fresh + n_tiles, w->data.bias, n_bias);
        pthread_mutex_lock(&d->mu);
        copy = w->copy;
        if (!copy) copy = w->copy = fresh;
        pthread_mutex_unlock(&d->mu);
        if (copy != fresh) arena_free(d, fresh); /* another thread was faster */
    }
    if (n_tiles) *tiles = place(h, copy);
    if (g->bias[i] && !*bias) *bias = place(h, copy + n_tiles);
    return TERN_OK;
}

static tern_status load(tn_npu_device *d, tn_npu_graph *g, tern_error *err) {
    hexagon *h = d->impl;
    tn_hex_request m = {.what = TN_HEX_LOAD,
                        .load = {g->desc.kind == TN_NPU_QK,
                                 (uint32_t)g->desc.m,
                                 (uint32_t)g->desc.k,
                                 (uint32_t)g->desc.n_ops,
                                 {{0}}}};
    for (int32_t i = 0; i < g->desc.n_ops; i++) {
        m.load.ops[i].n = (uint32_t)g->desc.ops[i].n;
        m.load.ops[i].out_form = (uint32_t)g->desc.ops[i].out;
        m.load.ops[i].scale = place(h, g->scale[i]);
        TN_TRY(constants(d, g, i, &m.load.ops[i].tiles, &m.load.ops[i].bias, err));
    }
    resident *r = tn_calloc(d->ctx, TN_MEM_GRAPHS, 1, sizeof *r);
    TN_FAIL_IF(!r, err, TERN_E_MEMORY, "no memory for a graph of the DSP");
    pthread_mutex_lock(&h->talk);
    while (r->id < TN_HEX_MAX_GRAPHS && h->id_used[r->id]) r->id++;
    bool room = r->id < TN_HEX_MAX_GRAPHS;
    if (room) {
        h->id_used[r->id] = true;
        m.id = r->id;
        ask(h, &m, 0);
    }
    pthread_mutex_unlock(&h->talk);
    if (!room) tn_free(d->ctx, r);
    TN_FAIL_IF(!room, err, TERN_E_LIMIT, "the DSP holds %d graphs at most", TN_HEX_MAX_GRAPHS);
    g->impl = r;
    return TERN_OK;
}

static void unload(tn_npu_device *d, tn_npu_graph *g) {
    hexagon *h = d->impl;
    resident *r = g->impl;
    tn_hex_request m = {.what = TN_HEX_FREE, .id = r->id};
    pthread_mutex_lock(&h->talk);
    ask(h, &m, 0);
    h->id_used[r->id] = false;
    pthread_mutex_unlock(&h->talk);
    tn_free(d->ctx, r);
    g->impl = NULL;
}

/* ---- life ------------------------------------------------------------------------------------------ */

static void close_device(tn_npu_device *d) {
    hexagon *h = d->impl;
    if (h->has_thread) {
        pthread_mutex_lock(&h->mu);
        h->quit = true;
        pthread_cond_signal(&h->wake);
        pthread_mutex_unlock(&h->mu);
        pthread_join(h->thread, NULL);
    }
    tn_hex_transport_here.close(&h->link);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->mu);
    pthread_mutex_destroy(&h->talk);
    tn_free(d->ctx, h);
}

static tern_status greet(hexagon *h, const tn_npu_options *opt, tern_error *err) {
    tn_hex_hello hello = {.version = TN_HEX_VERSION,
                          .arena_bytes = h->link->arena_bytes,
                          .window = WINDOW,
                          .window_bytes = WINDOW_BYTES,
                          .vtcm_bytes = opt->scratch_bytes ? (uint32_t)opt->scratch_bytes : TN_HEX_VTCM_MOST,
                          .flags = getenv("TERN_HEXAGON_POISON") ? TN_HEX_POISON : 0,
                          .n_threads = 4, /* a v73 has four HVX contexts */
                          .n_arenas = h->link->n_arenas};
    const char *threads = getenv("TERN_HEXAGON_THREADS");
    if (threads && atoi(threads) >= 1 && atoi(threads) <= TN_HEX_MAX_THREADS)
        hello.n_threads = (uint32_t)atoi(threads);
    TN_FAIL_IF(opt->scratch_bytes &&
                   (opt->scratch_bytes < TN_HEX_VTCM_LEAST || opt->scratch_bytes > TN_HEX_VTCM_MOST),
               err, TERN_E_INVALID, "%" PRIu64 " bytes of VTCM: want %d to %d", opt->scratch_bytes,
               TN_HEX_VTCM_LEAST, TN_HEX_VTCM_MOST);
    /* The arenas less the window, the gaps between blocks and the unused ends of arenas; or the user's cap if
     * that is less. */
    uint64_t arena = h->link->arena_bytes, n = h->link->n_arenas,
             room = n * arena - WINDOW - WINDOW_BYTES - arena / 64 - (n - 1) * (arena / 16),
             cap = h->dev->caps.memory_cap_bytes;
    h->dev->caps.memory_cap_bytes = cap && cap < room ? cap : room;
    hello.cap_bytes = (uint32_t)h->dev->caps.memory_cap_bytes;
    tn_hex_request g = {.what = TN_HEX_HELLO, .hello = hello};
    uint32_t st = ask_for(h, &g, START_MS);
    TN_FAIL_IF(!st, err, TERN_E_DEVICE,
               "the DSP program ended, or gave no sane answer within %d s (transport %s)", START_MS / 1000,
               tn_hex_transport_here.name);
    TN_FAIL_IF(st != TN_HEX_OK, err, TERN_E_DEVICE,
               "the DSP program refused to start (transport %s, status %u)", tn_hex_transport_here.name, st);
    h->greeted = true;
    return TERN_OK;
}

static tern_status open_device(tn_npu_device *d, const tn_npu_options *opt, tern_error *err) {
    hexagon *h = d->impl = tn_calloc(d->ctx, TN_MEM_OTHER, 1, sizeof *h);
    TN_FAIL_IF(!h, err, TERN_E_MEMORY, "no memory for the Hexagon NPU");
    h->dev = d;
    const char *wait = getenv("TERN_HEXAGON_WAIT_MS");
    h->wait_ms = wait && atoi(wait) > 0 ? atoi(wait) : RUN_MS;
    if (opt->kernels) h->kern = *opt->kernels;
    else tn_kernels_init(&h->kern, tn_cpu_flags(NULL));
    pthread_mutex_init(&h->mu, NULL);
    pthread_mutex_init(&h->talk, NULL);
    pthread_cond_init(&h->wake, NULL);
    tern_status st = tn_hex_transport_here.open(d->ctx, &h->link, err);
    if (st == TERN_OK) st = greet(h, opt, err);
    if (st == TERN_OK && pthread_create(&h->thread, NULL, worker_main, h))
        st = tn_fail(err, TERN_E_MEMORY, "cannot start the thread of the Hexagon NPU");
    h->has_thread = st == TERN_OK;
    if (st != TERN_OK) {
        close_device(d);
        return st;
    }
    d->caps.layout = (tn_npu_layout){TN_NPU_LAYOUT_16X4, TILE_N, 4};
    d->caps.max_m = TN_HEX_MAX_ROWS;
    d->caps.max_n = TN_HEX_MAX_N;
    d->caps.max_k = TN_HEX_MAX_K;
    d->caps.efficient_m = 4;
    d->caps.out_forms = (1u << TN_NPU_N_OUTS) - 1;
    d->caps.shared_memory = true;
    return TERN_OK;
}

const tn_npu_backend tn_npu_hexagon = {.name = "hexagon",
                                       .open = open_device,
                                       .close = close_device,
                                       .submit = submit,
                                       .mem_alloc = arena_alloc,
                                       .mem_free = arena_free,
                                       .owns = owns,
                                       .unpack = unpack,
                                       .load = load,
                                       .unload = unload,
                                       .wants_all_factors = true,
                                       .compute = tn_npu_host_compute};
#endif
