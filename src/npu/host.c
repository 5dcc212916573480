/* npu/host.c - the processor's own integer unit as a device: worker threads over the kernels of gemm_s8.h.
 * A job is divided into parts by output columns, so that each weight is read by one thread only. Submitted
 * jobs queue in order; workers and helping threads claim parts of the oldest. */
#include "base/cpu.h"
#include "kernels/kernels.h"
#include "npu/backend.h"

#include <string.h>

enum {
    GROUP = 64,             /* columns that stay together: the widest register tile of the kernels */
    PART_MACS = 8 << 20,    /* a part is worth about 10 us: this much arithmetic... */
    PART_BYTES = 256 << 10, /* ...or weights read */
    MAX_THREADS = 64,
    SPINS = 2000 /* an idle worker spins for some tens of microseconds before it sleeps */
};
_Static_assert(GROUP % TN_TILE_N == 0, "groups are whole tiles");
_Static_assert((int)GROUP == (int)TN_NPU_BLOCK && (int)GROUP == (int)TN_PACKED_BLOCK,
               "packed weights are found by the same blocks");

/* A buffer of tiles, used by one thread at a time that works on packed weights. A cache line of its own,
 * because threads take and give back theirs for every part of a product. */
typedef struct scratch {
    _Alignas(64) atomic_bool taken;
    atomic_uintptr_t last; /* its last user, whose cache has its lines. Relaxed: a preference */
    int8_t *tiles;         /* these belong to the thread that has taken it */
    size_t n_bytes;
} scratch;

typedef struct host {
    tn_kernels own;
    const tn_kernels *kernels;
    tn_npu_device *dev;
    pthread_mutex_t mu; /* not held while computing or completing */
    pthread_cond_t wake;
    tn_npu_job *head, *tail; /* guarded by mu: jobs with unclaimed parts */
    int32_t n_sleeping;      /* guarded by mu */
    bool quit;               /* guarded by mu */
    atomic_int n_waiting;    /* unclaimed parts; relaxed: a hint for spinning workers to look under mu */
    int32_t n_threads;
    pthread_t threads[MAX_THREADS];
    scratch scratch[MAX_THREADS];
    atomic_int scratch_wanted;  /* number of threads waiting for one */
    pthread_mutex_t scratch_mu; /* guards sleeping for a buffer, taken last */
    pthread_cond_t scratch_back;
} host;

/* ---- computing ------------------------------------------------------------------------------------- */

static int32_t n_groups(int32_t n_cols) { return (n_cols + GROUP - 1) / GROUP; }

static scratch *take_one(host *h, int32_t i) {
    scratch *s = &h->scratch[i];
    return atomic_load(&s->taken) || atomic_exchange(&s->taken, true) ? NULL : s;
}

static void put_back(scratch *s) { atomic_store(&s->taken, false); }

/* Tells waiting threads that a buffer is free. A thread announces that it waits, then checks once more. */
static void tell(host *h) {
    if (!atomic_load(&h->scratch_wanted)) return;
    pthread_mutex_lock(&h->scratch_mu);
    pthread_cond_broadcast(&h->scratch_back);
    pthread_mutex_unlock(&h->scratch_mu);
}

static void give_scratch(host *h, scratch *s) {
    put_back(s);
    tell(h);
}

/* Returns a free buffer of n_bytes: preferably this thread's last one, else one that is large enough, else an
 * enlarged one. NULL: all are taken, or memory ran out. */
static scratch *find_scratch(host *h, size_t n_bytes, uintptr_t self) {
    scratch *s = NULL;
    for (int32_t i = 0; i < MAX_THREADS; i++) {
        if (atomic_load_explicit(&h->scratch[i].last, memory_order_relaxed) != self) continue;
        s = take_one(h, i);
        if (s && s->n_bytes >= n_bytes) return s;
        if (s) put_back(s);
    }
    for (int32_t grow = 0; grow < 2; grow++) {
        for (int32_t i = 0; i < MAX_THREADS; i++) {
            if (!(s = take_one(h, i))) continue;
            int8_t *more =
                grow && s->n_bytes < n_bytes ? tn_alloc(h->dev->ctx, TN_MEM_ACTIVATIONS, n_bytes, 1) : NULL;
            if (more) {
                tn_free(h->dev->ctx, s->tiles);
                s->tiles = more;
                s->n_bytes = n_bytes;
            }
            if (s->n_bytes >= n_bytes) return s;
            put_back(s);
            if (grow) return NULL;
        }
    }
    return NULL;
}

/* Threads that work on packed weights take a buffer and give it back. They all do so at the beginning of
 * each product, so it must not need a contended lock. Loading a graph has made one buffer that is large
 * enough. More are made when more threads ask at once; without memory for that they wait for each other. */
static scratch *take_scratch(host *h, size_t n_bytes) {
    static _Thread_local char self; /* its address tells threads apart */
    scratch *s = find_scratch(h, n_bytes, (uintptr_t)&self);
    tell(h); /* another thread may have looked while this one held an unusable buffer */
    if (!s) {
        pthread_mutex_lock(&h->scratch_mu);
        atomic_fetch_add(&h->scratch_wanted, 1);
        while (!(s = find_scratch(h, n_bytes, (uintptr_t)&self)))
            pthread_cond_wait(&h->scratch_back, &h->scratch_mu);
        atomic_fetch_sub(&h->scratch_wanted, 1);
        pthread_mutex_unlock(&h->scratch_mu);
    }
    atomic_store_explicit(&s->last, (uintptr_t)&self, memory_order_relaxed);
    return s;
}

static tern_status load_graph(tn_npu_device *d, tn_npu_graph *g, tern_error *err) {
    host *h = d->impl;
    bool packed = false;
    for (int32_t i = 0; i < g->desc.n_ops; i++)
        packed = packed || (g->weights[i] && g->weights[i]->block_off);
    if (!packed) return TERN_OK;
    scratch *s = find_scratch(h, tn_gemm_packed_scratch_bytes((size_t)g->desc.k), 0);
    tell(h);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for a block of unpacked weights");
    give_scratch(h, s);
    return TERN_OK;
}

static void run_packed(host *h, const tn_npu_weights *w, const tn_gemm_s8_args *a, int32_t rows_per_run) {
    scratch *s = take_scratch(h, tn_gemm_packed_scratch_bytes(a->k));
    tn_gemm_packed(h->kernels, a, (size_t)rows_per_run, w->data.packed + w->block_off[a->n0 / GROUP],
                   w->data.bits, s->tiles);
    give_scratch(h, s);
}

/* Computes columns [c0, c1) of one op, all rows, rows_per_run at a time. h is NULL where weights are
 * tiles. */
static void run_cols(const tn_kernels *k, host *h, const tn_npu_job *j, int32_t i_op, int32_t c0,
                     int32_t c1) {
    const tn_npu_graph *g = j->graph;
    const tn_npu_op *op = &g->desc.ops[i_op];
    const tn_npu_weights *w = g->weights[i_op];
    bool packed = w && w->block_off;
    int32_t step = packed ? j->n_rows : g->desc.rows_per_run; /* packed weights are unpacked for all rows */
    for (int32_t r = 0; r < j->n_rows; r += step) {
        tn_gemm_s8_args a = {
            .a = tn_npu_op_in(j, i_op) + (size_t)r * g->desc.in_stride,
            .lda = (size_t)g->desc.in_stride,
            .tiles = tn_npu_op_tiles(j, i_op),
            .col_sum = tn_npu_op_col_sum(j, i_op),
            .m = (size_t)(j->n_rows - r < step ? j->n_rows - r : step),
            .n = (size_t)tn_npu_op_cols(j, i_op),
            .k = (size_t)g->desc.k,
            .n0 = (size_t)c0,
            .n1 = (size_t)c1,
            .ldo = (size_t)op->out_stride,
            .scale = g->scale[i_op],
            .bias = g->bias[i_op],
        };
        size_t at = (size_t)r * op->out_stride;
        if (op->out == TN_NPU_OUT_S32) a.out_s32 = (int32_t *)j->out[i_op] + at;
        else if (op->out == TN_NPU_OUT_F32) a.out_f32 = (float *)j->out[i_op] + at;
        else a.out_u8 = (uint8_t *)j->out[i_op] + at;
        if (packed) run_packed(h, w, &a, g->desc.rows_per_run);
        else k->gemm_s8(&a);
        for (size_t m = 0; m < a.m && op->out == TN_NPU_OUT_S8; m++) {
            uint8_t *row = a.out_u8 + m * a.ldo;
            for (size_t n = a.n0; n < a.n1; n++) row[n] ^= 0x80; /* less 128 */
        }
    }
}

void tn_npu_host_compute(const tn_kernels *k, const tn_npu_job *j) {
    for (int32_t i = 0; i < j->graph->desc.n_ops; i++) run_cols(k, NULL, j, i, 0, tn_npu_op_cols(j, i));
}

static int32_t job_groups(const tn_npu_job *j) {
    int32_t total = 0;
    for (int32_t i = 0; i < j->graph->desc.n_ops; i++) total += n_groups(tn_npu_op_cols(j, i));
    return total;
}

static void run_part(tn_npu_device *d, const tn_npu_job *j, int32_t i, int32_t n) {
    host *h = d->impl;
    int64_t total = job_groups(j);
    int32_t from = (int32_t)(total * i / n), to = (int32_t)(total * (i + 1) / n),
            first = 0; /* of the op's groups */
    for (int32_t op = 0; op < j->graph->desc.n_ops && first < to; op++) {
        int32_t cols = tn_npu_op_cols(j, op), groups = n_groups(cols);
        int32_t g0 = from > first ? from - first : 0, g1 = to - first < groups ? to - first : groups;
        if (g0 < g1) run_cols(h->kernels, h, j, op, g0 * GROUP, g1 * GROUP < cols ? g1 * GROUP : cols);
        first += groups;
    }
}

static int32_t n_parts(const tn_npu_device *d, const tn_npu_job *j) {
    (void)d;
    int64_t bytes = 0;
    for (int32_t i = 0; i < j->graph->desc.n_ops; i++)
        bytes += (int64_t)tn_npu_op_cols(j, i) * j->graph->desc.k;
    int64_t by_macs = bytes * j->n_rows / PART_MACS, by_bytes = bytes / PART_BYTES;
    int64_t n = by_macs > by_bytes ? by_macs : by_bytes, most = job_groups(j);
    return (int32_t)(n < 1 ? 1 : n > most ? most : n);
}

/* ---- queue ----------------------------------------------------------------------------------------- */

/* Claims and runs one part. mu is held on entry and on return. Returns false when there is nothing to
 * claim. */
static bool run_one(host *h) {
    tn_npu_job *j = h->head;
    if (!j) return false;
    int32_t i = j->next_part++;
    atomic_fetch_sub_explicit(&h->n_waiting, 1, memory_order_relaxed);
    if (j->next_part == j->n_parts) {
        h->head = j->next;
        if (!h->head) h->tail = NULL;
    }
    pthread_mutex_unlock(&h->mu);
    run_part(h->dev, j, i, j->n_parts);
    pthread_mutex_lock(&h->mu);
    if (--j->n_left == 0) {
        pthread_mutex_unlock(&h->mu);
        tn_npu_complete(h->dev, j, TERN_OK);
        pthread_mutex_lock(&h->mu);
    }
    return true;
}

static void *worker_main(void *arg) {
    host *h = arg;
    pthread_mutex_lock(&h->mu);
    while (!h->quit) {
        if (run_one(h)) continue;
        pthread_mutex_unlock(&h->mu);
        for (int i = 0; i < SPINS && !atomic_load_explicit(&h->n_waiting, memory_order_relaxed); i++) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        pthread_mutex_lock(&h->mu);
        h->n_sleeping++;
        while (!h->head && !h->quit) pthread_cond_wait(&h->wake, &h->mu);
        h->n_sleeping--;
    }
    pthread_mutex_unlock(&h->mu);
    return NULL;
}

static void submit(tn_npu_device *d, tn_npu_job *j) {
    host *h = d->impl;
    j->next = NULL;
    j->next_part = 0;
    j->n_parts = j->n_left = n_parts(d, j);
    pthread_mutex_lock(&h->mu);
    if (h->tail) h->tail->next = j;
    else h->head = j;
    h->tail = j;
    atomic_fetch_add_explicit(&h->n_waiting, j->n_parts, memory_order_relaxed);
    if (h->n_sleeping) pthread_cond_broadcast(&h->wake);
    pthread_mutex_unlock(&h->mu);
}

static bool help(tn_npu_device *d) {
    host *h = d->impl;
    if (!atomic_load_explicit(&h->n_waiting, memory_order_relaxed)) return false;
    pthread_mutex_lock(&h->mu);
    bool did = run_one(h);
    pthread_mutex_unlock(&h->mu);
    return did;
}

/* ---- life ------------------------------------------------------------------------------------------ */

static void close_device(tn_npu_device *d) {
    host *h = d->impl;
    pthread_mutex_lock(&h->mu);
    h->quit = true;
    pthread_cond_broadcast(&h->wake);
    pthread_mutex_unlock(&h->mu);
    for (int32_t i = 0; i < h->n_threads; i++) pthread_join(h->threads[i], NULL);
    for (int32_t i = 0; i < MAX_THREADS; i++) tn_free(d->ctx, h->scratch[i].tiles);
    pthread_cond_destroy(&h->scratch_back);
    pthread_mutex_destroy(&h->scratch_mu);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->mu);
    tn_free(d->ctx, h);
}

static tern_status open_device(tn_npu_device *d, const tn_npu_options *opt, tern_error *err) {
    TN_FAIL_IF(opt->n_threads < 1 || opt->n_threads > MAX_THREADS, err, TERN_E_INVALID,
               "%d NPU threads asked for, 1 to %d are possible", opt->n_threads, MAX_THREADS);
    host *h = tn_calloc(d->ctx, TN_MEM_OTHER, 1, sizeof *h);
    TN_FAIL_IF(!h, err, TERN_E_MEMORY, "no memory for the host NPU");
    if (!opt->kernels) tn_kernels_init(&h->own, tn_cpu_flags(NULL));
    h->kernels = opt->kernels ? opt->kernels : &h->own;
    h->dev = d;
    d->impl = h;
    pthread_mutex_init(&h->mu, NULL);
    pthread_cond_init(&h->wake, NULL);
    pthread_mutex_init(&h->scratch_mu, NULL);
    pthread_cond_init(&h->scratch_back, NULL);
    for (int32_t i = 0; i < opt->n_threads; i++) {
        int rc = pthread_create(&h->threads[i], NULL, worker_main, h);
        if (rc) {
            close_device(d);
            return tn_fail(err, TERN_E_MEMORY, "cannot start NPU thread %d of %d (error %d)", i + 1,
                           opt->n_threads, rc);
        }
        h->n_threads++;
    }
    d->caps.layout = (tn_npu_layout){TN_NPU_LAYOUT_16X4, TN_TILE_N, TN_TILE_K};
    d->caps.max_m = 4096;
    d->caps.max_n = 1 << 20;
    d->caps.max_k = TN_S8_MAX_K;
    d->caps.efficient_m = 16;
    static const int32_t splits[] = {256, 128, 64, 32};
    d->caps.n_splits = sizeof splits / sizeof splits[0];
    memcpy(d->caps.splits, splits, sizeof splits);
    d->caps.out_forms = (1u << TN_NPU_N_OUTS) - 1;
    d->caps.shared_memory = !opt->separate_weights;
    d->caps.has_parts = !opt->apart;
    d->caps.part_n = opt->apart ? 0 : GROUP;
    d->caps.has_weightlets = !opt->separate_weights;
    d->caps.packed_pays = d->caps.has_weightlets && h->kernels->gemm_packed;
    d->caps.n_threads = opt->n_threads;
    return TERN_OK;
}

const tn_npu_backend tn_npu_host = {.name = "host",
                                    .open = open_device,
                                    .close = close_device,
                                    .submit = submit,
                                    .load = load_graph,
                                    .run_part = run_part,
                                    .n_parts = n_parts,
                                    .help = help};
