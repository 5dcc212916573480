#include "quant/heads.h"

#include "model/state.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* The paper clamps the product at 1e-3 from above. The lower bound is a hundredth of that, so that no head
 * is left without positions. */
static const float IMPORTANCE_MAX = 1e-3f, IMPORTANCE_MIN = 1e-5f;

/* A window is read in parts, one after the other. Three rules save the later parts for a head: by two
 * standard errors it is beyond a clamp; its error is below a tenth of its loss; or half of the window
 * cannot distinguish its loss from zero. Parts have at least MIN_PART tokens. The products of a part are
 * already bound by arithmetic, so batching several ablations would gain nothing. */
enum { PARTS = 4, MIN_PART = 16 };
static const double ENOUGH = 0.1;

typedef struct observer {
    const tn_model *m;
    int32_t layer, head; /* zeroed; head -1: the whole layer's; layer -1: nothing */
} observer;

static float largest(const float *x, size_t ld, int32_t n_rows, int32_t d) {
    float max = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        for (int32_t j = 0; j < d; j++) max = fmaxf(max, fabsf(x[(size_t)i * ld + (size_t)j]));
    }
    return max;
}

/* scale_q and scale_k are running means of the windows' maxima. Keys shared from an earlier layer have
 * that layer's scale, which came before in the same window. */
void tn_head_profile_observe(void *user, int layer, const float *q, const float *k, int32_t n_rows) {
    tn_head_profile *p = user;
    const tn_hparams *h = p->h;
    size_t d = (size_t)h->d_head, left = p->n_tok - p->seen[layer];
    int32_t n = (size_t)n_rows < left ? n_rows : (int32_t)left;
    if (!n || !tn_layer_may_be_sparse(h, layer)) return;
    const int32_t source = tn_layer_kv(h, layer);
    double sum_q = 0, sum_k = 0;
    for (int32_t a = 0; a < h->n_heads; a++)
        sum_q += (double)largest(q + (size_t)a * d, (size_t)h->n_heads * d, n, h->d_head) / h->n_heads;
    for (int32_t a = 0; a < h->n_kv_heads && source == layer; a++)
        sum_k += (double)largest(k + (size_t)a * d, (size_t)h->n_kv_heads * d, n, h->d_head) / h->n_kv_heads;
    double w = 1.0 / ++p->n_windows[layer];
    p->scale_q[layer] += (float)(w * (fmax(sum_q / 127, 1e-12) - (double)p->scale_q[layer]));
    if (source == layer)
        p->scale_k[layer] += (float)(w * (fmax(sum_k / 127, 1e-12) - (double)p->scale_k[layer]));
    else p->scale_k[layer] = p->scale_k[source];
    p->seen[layer] += (size_t)n;
}

static void on_attention(void *user, int layer, float *att, int32_t n_rows) {
    const observer *o = user;
    const tn_hparams *h = &o->m->h;
    if (layer != o->layer) return;
    size_t d = (size_t)h->d_head, row = (size_t)h->n_heads * d;
    for (int32_t i = 0; i < n_rows; i++) {
        if (o->head < 0) memset(att + (size_t)i * row, 0, row * sizeof *att);
        else memset(att + (size_t)i * row + (size_t)o->head * d, 0, d * sizeof *att);
    }
}

typedef struct run_state {
    tn_pool *pool;
    tn_rows r;
    const int32_t *pos; /* 0, 1, ... */
    tn_acts acts;
    tn_state state;
    float *logits;          /* [LOGIT_ROWS][n_vocab] */
    const int32_t *ids;     /* the window's tokens */
    int32_t n_tok, n_parts; /* part i begins at token n_tok * i / n_parts */
    float *residual;        /* [n_tok][n_embd] before the tested layer */
    double *base;           /* [n_tok] loss of the token after each, with all heads */
} run_state;

enum { LOGIT_ROWS = 16 };

typedef struct row_losses {
    const float *logits; /* [LOGIT_ROWS][n_vocab] */
    const int32_t *ids;  /* the tokens that follow */
    size_t n_vocab;
    double loss[LOGIT_ROWS];
} row_losses;

static void row_loss(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    row_losses *j = arg;
    const float *l = j->logits + (size_t)i_item * j->n_vocab;
    double max = -INFINITY, z = 0;
    for (size_t x = 0; x < j->n_vocab; x++) max = fmax(max, (double)l[x]);
    for (size_t x = 0; x < j->n_vocab; x++) z += exp((double)l[x] - max);
    j->loss[i_item] = (double)l[j->ids[i_item]] - max - log(z);
}

static int32_t part_begin(const run_state *s, int32_t part) {
    return (int32_t)((int64_t)s->n_tok * part / s->n_parts);
}

/* The rows of a part; their keys and values follow those of earlier parts. */
static void take_part(run_state *s, int32_t part) {
    int32_t at = part_begin(s, part);
    s->r.pos = s->r.slot = s->pos + at;
    s->r.n_rows = part_begin(s, part + 1) - at;
    tn_forward_begin(&s->r, &s->acts, false);
}

/* Negative log-likelihoods of the tokens after a part's, with o zeroed, from the residual of the part before
 * layer `from`; the earlier parts must have been read in the same way just before. Returns how many. */
static int32_t losses_of(observer *o, run_state *s, int32_t part, int from, double *loss) {
    take_part(s, part);
    int32_t at = part_begin(s, part), n = s->r.n_rows < s->n_tok - 1 - at ? s->r.n_rows : s->n_tok - 1 - at;
    size_t width = (size_t)tn_residual_width(&o->m->h);
    tn_forward_hooks hooks = {.attention_out = on_attention, .user = o};
    memcpy(s->acts.buf[TN_BUF_X], s->residual + (size_t)at * width,
           (size_t)s->r.n_rows * width * sizeof *s->residual);
    for (int layer = from; layer < o->m->h.n_layers; layer++)
        tn_forward_layer(o->m, s->pool, &s->r, &s->acts, layer, &hooks);
    for (int32_t i = 0; i < n; i += LOGIT_ROWS) {
        int32_t rows = n - i < LOGIT_ROWS ? n - i : LOGIT_ROWS;
        tn_forward_logits(o->m, s->pool, &s->r, &s->acts, i, rows, s->logits);
        row_losses j = {.logits = s->logits, .ids = s->ids + at + i + 1, .n_vocab = (size_t)o->m->h.n_vocab};
        tn_pool_for(s->pool, rows, row_loss, &j);
        for (int32_t r = 0; r < rows; r++) loss[i + r] = -j.loss[r];
    }
    return n;
}

/* The mean loss of the tokens so far. */
typedef struct damage {
    double sum, sq;
    int32_t n;
} damage;

static double mean_of(const damage *d) { return d->sum / d->n; }

/* Two standard errors of the mean. */
static double doubt_of(const damage *d) {
    return 2 * sqrt(fmax(d->sq / d->n - mean_of(d) * mean_of(d), 0) / fmax(d->n - 1, 1));
}

/* Whether more of the n_tok tokens would hardly change a head's weight, given its layer's loss. */
static bool is_judged(const damage *d, double layer_loss, int32_t n_tok) {
    double doubt = doubt_of(d), mean = mean_of(d);
    return layer_loss * (mean - doubt) >= (double)IMPORTANCE_MAX ||
           layer_loss * (mean + doubt) <= (double)IMPORTANCE_MIN || doubt / 2 <= ENOUGH * mean ||
           (d->n >= n_tok / 2 && fabs(mean) <= doubt / 2);
}

/* ---- journal: losses of parts in the order of measurement, so that a killed process can resume */

const tn_outkind tn_heads_journal_kind = {
    .what = "a journal of heads", .begins = {"TNHEADS3", "TNHEADS2"}, .is_private = true};

typedef struct journal_header {
    char magic[8];
    int32_t n_layers, n_heads, n_tok, zero;
    uint64_t ids_hash;
    double
        base; /* loss with all heads: measured at every start, it depends on every weight that the rest does */
    uint64_t check;
} journal_header;

typedef struct journal_record {
    double sum, sq; /* of the losses of a part's tokens minus those with all heads; of their squares */
    uint64_t check; /* of these, their place and the header's */
} journal_record;

_Static_assert(sizeof(journal_header) == 48 && sizeof(journal_record) == 24, "on disk");

typedef struct journal {
    tn_ctx *ctx;
    const char *path;
    int fd; /* -1: none is kept */
    uint64_t check;
    size_t n_known, at; /* number of existing records; place of the next */
} journal;

static uint64_t record_check(const journal *j, const journal_record *r, size_t at) {
    return XXH3_64bits_withSeed(r, offsetof(journal_record, check), j->check + at);
}

/* Complete records stay. A file of another run, or a partial record of a killed process, is dropped. */
static void journal_open(tn_ctx *ctx, const char *path, const tn_hparams *h, const int32_t *ids, int32_t n,
                         double base, journal *j) {
    *j =
        (journal){.ctx = ctx,
                  .path = path,
                  .fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600) : -1};
    if (j->fd < 0) {
        if (path)
            tn_log(ctx, TERN_LOG_WARN, "%s: cannot be kept, so that this measurement cannot go on later: %s",
                   path, strerror(errno));
        return;
    }
    journal_header want = {.magic = "TNHEADS3",
                           .n_layers = h->n_layers,
                           .n_heads = h->n_heads,
                           .n_tok = n,
                           .ids_hash =
                               XXH3_64bits_withSeed(ids, (size_t)n * sizeof *ids, tn_hparams_identity(h)),
                           .base = base},
                   got;
    want.check = j->check = XXH3_64bits(&want, offsetof(journal_header, check));
    struct stat sb;
    bool empty = !fstat(j->fd, &sb) && !sb.st_size;
    if (!empty && read(j->fd, &got, sizeof got) == sizeof got && !memcmp(&got, &want, sizeof got)) {
        journal_record r;
        bool is_whole;
        while ((is_whole = read(j->fd, &r, sizeof r) == sizeof r) &&
               r.check == record_check(j, &r, j->n_known))
            j->n_known++;
        if (is_whole)
            tn_log(ctx, TERN_LOG_WARN, "%s: is damaged after %zu measurements; measuring from there", path,
                   j->n_known);
        else if (j->n_known)
            tn_log(ctx, TERN_LOG_INFO, "%s: goes on after %zu measurements", path, j->n_known);
    } else if (!empty) {
        tn_log(ctx, TERN_LOG_WARN, "%s: is damaged or of another model or text; measuring from the beginning",
               path);
    }
    off_t end = (off_t)(sizeof want + j->n_known * sizeof(journal_record));
    if (ftruncate(j->fd, end) || pwrite(j->fd, &want, sizeof want, 0) != sizeof want) {
        tn_log(ctx, TERN_LOG_WARN, "%s: cannot be written: %s", path, strerror(errno));
        if (ftruncate(j->fd, 0)) {
        } /* the next run would report half a header as damaged */
        close(j->fd);
        j->fd = -1;
        j->n_known = 0;
    }
}

static bool journal_next(journal *j, journal_record *r) {
    if (j->at >= j->n_known) return false;
    if (pread(j->fd, r, sizeof *r, (off_t)(sizeof(journal_header) + j->at * sizeof *r)) != sizeof *r) {
        j->n_known = j->at;
        return false;
    }
    j->at++;
    return true;
}

static void journal_put(journal *j, journal_record r) {
    r.check = record_check(j, &r, j->at);
    size_t at = j->at++;
    if (j->fd < 0 || pwrite(j->fd, &r, sizeof r, (off_t)(sizeof(journal_header) + at * sizeof r)) == sizeof r)
        return;
    tn_log(j->ctx, TERN_LOG_WARN, "%s: cannot be written: %s", j->path, strerror(errno));
    close(j->fd);
    j->fd = -1;
}

/* Adds the loss of a part with o zeroed. If an ablation's first parts are in the journal and its next is not,
 * the first are read again, because the next attends to their keys. */
static void add_part(observer *o, run_state *s, int32_t part, int32_t *n_read, journal *j, damage *d) {
    int32_t at = part_begin(s, part), n = part_begin(s, part + 1) - at;
    double loss[s->n_tok / s->n_parts + 1];
    journal_record r = {0};
    if (part + 1 == s->n_parts) n--; /* nothing follows the last token */
    if (!journal_next(j, &r)) {
        for (int32_t p = *n_read; p <= part; p++) losses_of(o, s, p, o->layer, loss);
        *n_read = part + 1;
        for (int32_t i = 0; i < n; i++) {
            double more = loss[i] - s->base[at + i];
            r.sum += more;
            r.sq += more * more;
        }
        journal_put(j, r);
    }
    d->sum += r.sum;
    d->sq += r.sq;
    d->n += n;
}

/* Measures the loss of the window without o's layer or head, until it can be judged. */
static tern_status measure_damage(observer *o, run_state *s, double layer_loss, double done, double cost,
                                  journal *j, damage *d, tern_error *err) {
    int32_t n_read = 0;
    *d = (damage){0};
    for (int32_t part = 0; part < s->n_parts && !(part && o->head >= 0 && is_judged(d, layer_loss, s->n_tok));
         part++) {
        bool known = j->at < j->n_known;
        add_part(o, s, part, &n_read, j, d);
        double fraction = done + cost * (part + 1) / s->n_parts;
        if (!known && !tn_progress(o->m->ctx, "heads", fmin(fraction, 1)))
            return tn_fail(err, TERN_E_CANCELLED, "measuring the heads was cancelled");
    }
    return TERN_OK;
}

/* The residual before the first layer, and the tokens' loss with all heads. */
static double measure_base(observer *o, run_state *s) {
    size_t width = (size_t)tn_residual_width(&o->m->h);
    double sum = 0;
    o->layer = -1;
    for (int32_t part = 0; part < s->n_parts; part++) {
        int32_t at = part_begin(s, part);
        take_part(s, part);
        tn_forward_embed(o->m, s->pool, &s->r, &s->acts, s->ids + at);
        memcpy(s->residual + (size_t)at * width, s->acts.buf[TN_BUF_X],
               (size_t)s->r.n_rows * width * sizeof *s->residual);
        int32_t n = losses_of(o, s, part, 0, s->base + at);
        for (int32_t i = 0; i < n; i++) sum += s->base[at + i];
    }
    return sum / (s->n_tok - 1);
}

/* Passes the residual through a layer, with all heads. */
static void pass_layer(const observer *o, run_state *s) {
    size_t width = (size_t)tn_residual_width(&o->m->h);
    for (int32_t part = 0; part < s->n_parts; part++) {
        take_part(s, part);
        float *at = s->residual + (size_t)part_begin(s, part) * width;
        size_t n_bytes = (size_t)s->r.n_rows * width * sizeof *at;
        memcpy(s->acts.buf[TN_BUF_X], at, n_bytes);
        tn_forward_layer(o->m, s->pool, &s->r, &s->acts, o->layer, NULL);
        memcpy(at, s->acts.buf[TN_BUF_X], n_bytes);
    }
}

static tern_status measure_importance(tn_head_profile *p, observer *o, run_state *s, const char *path,
                                      tern_error *err) {
    const tn_hparams *h = &o->m->h;
    const size_t n_heads = (size_t)h->n_heads;
    const double head_cost = 1,
                 all_cost = h->n_layers * (h->n_layers + 1) / 2.0 +
                            head_cost * h->n_layers; /* in layers, for one ablation per layer */
    double done = 0, sum = 0;
    tern_status st = TERN_OK;
    journal j;
    journal_open(o->m->ctx, path, h, s->ids, s->n_tok, measure_base(o, s), &j);
    for (o->layer = 0; o->layer < h->n_layers && st == TERN_OK; o->layer++) {
        double cost = (h->n_layers - o->layer + head_cost) / (h->n_heads + 1) / all_cost, layer_loss = 0;
        const bool asked = tn_layer_may_be_sparse(h, o->layer);
        if (!asked) done += cost * (h->n_heads + 1);
        for (o->head = -1; asked && o->head < h->n_heads && st == TERN_OK; o->head++, done += cost) {
            damage d = {0};
            /* if a layer's loss is zero, its heads weigh the least */
            bool idle = o->head >= 0 && layer_loss <= 0;
            if (!idle) st = measure_damage(o, s, layer_loss, done, cost, &j, &d, err);
            if (st != TERN_OK) break;
            if (o->head < 0) {
                layer_loss = mean_of(&d);
                continue;
            }
            double w = idle ? 0 : fmax(layer_loss, 0) * fmax(mean_of(&d), 0);
            w = fmin(fmax(w, (double)IMPORTANCE_MIN), (double)IMPORTANCE_MAX);
            p->weight[(size_t)o->layer * (size_t)h->n_heads + (size_t)o->head] = (float)w;
            sum += w;
        }
        pass_layer(o, s);
    }
    if (j.fd >= 0) close(j.fd);
    const double n_sparse = (double)tn_n_sparse(h) * h->n_heads;
    for (size_t i = 0; i < (size_t)h->n_layers * n_heads; i++)
        if (tn_layer_may_be_sparse(h, (int32_t)(i / n_heads)))
            p->weight[i] = (float)((double)p->weight[i] * n_sparse / sum);
    return st;
}

tern_status tn_head_profile_open(tn_ctx *ctx, const tn_hparams *h, size_t n_tok, tn_head_profile *out,
                                 tern_error *err) {
    size_t n_layers = (size_t)h->n_layers, n_all = n_layers * (size_t)h->n_heads;
    *out = (tn_head_profile){.ctx = ctx,
                             .h = h,
                             .n_layers = h->n_layers,
                             .n_heads = h->n_heads,
                             .n_tok = n_tok ? n_tok : SIZE_MAX};
    out->scale_q = tn_calloc(ctx, TN_MEM_OTHER, n_layers, sizeof(float));
    out->scale_k = tn_calloc(ctx, TN_MEM_OTHER, n_layers, sizeof(float));
    out->weight = tn_calloc(ctx, TN_MEM_OTHER, n_all, sizeof(float));
    out->seen = tn_calloc(ctx, TN_MEM_OTHER, n_layers, sizeof *out->seen);
    out->n_windows = tn_calloc(ctx, TN_MEM_OTHER, n_layers, sizeof *out->n_windows);
    bool ok = out->scale_q && out->scale_k && out->weight && out->seen && out->n_windows;
    for (size_t i = 0; ok && i < n_all; i++) out->weight[i] = 1;
    for (size_t i = 0; ok && i < n_layers; i++) /* those of other layers are not used */
        if (!tn_layer_may_be_sparse(h, (int32_t)i)) out->scale_q[i] = out->scale_k[i] = 1;
    if (ok) return TERN_OK;
    tn_head_profile_close(out);
    return tn_fail(err, TERN_E_MEMORY, "no memory to measure the heads");
}

tern_status tn_head_profile_importance(tn_head_profile *p, const tn_model *m, const tn_kernels *kern,
                                       tn_pool *pool, const int32_t *ids, int32_t n, const char *journal_path,
                                       tern_error *err) {
    const tn_hparams *h = &m->h;
    observer o = {.m = m};
    run_state s = {.pool = pool, .ids = ids, .n_tok = n, .n_parts = n >= PARTS * MIN_PART ? PARTS : 1};
    int32_t *pos = tn_alloc(m->ctx, TN_MEM_OTHER, (size_t)n, sizeof *pos);
    s.residual = tn_alloc(m->ctx, TN_MEM_OTHER, (size_t)n * (size_t)tn_residual_width(h), sizeof *s.residual);
    s.base = tn_alloc(m->ctx, TN_MEM_OTHER, (size_t)n, sizeof *s.base);
    s.logits = tn_alloc(m->ctx, TN_MEM_OTHER, LOGIT_ROWS * (size_t)h->n_vocab, sizeof(float));
    tern_status st = TERN_OK;
    TN_BAIL_IF(!pos || !s.logits || !s.residual || !s.base, err, TERN_E_MEMORY,
               "no memory to measure the heads");
    for (int32_t i = 0; i < n; i++) pos[i] = i;
    s.pos = pos;
    if ((st = tn_state_open(m->ctx, &m->program, h, n, TN_KV_F32, &s.state, err)) != TERN_OK) goto out;
    if ((st = tn_acts_open(m->ctx, m, n, s.state.kv.cap_tok, tn_pool_size(pool), &s.acts, err)) != TERN_OK)
        goto out;
    s.r = (tn_rows){.h = h,
                    .kern = kern,
                    .kv = &s.state.kv,
                    .conv = tn_state_conv(&s.state),
                    .delta = tn_state_delta(&s.state),
                    .tree_base = -1};
    /* states that cannot be restored to the middle, and inputs of layers beside the residual */
    if (s.r.conv || s.r.delta || h->n_ple || h->n_streams) s.n_parts = 1;
    st = measure_importance(p, &o, &s, journal_path, err);
out:
    tn_state_close(&s.state);
    if (s.acts.ctx) tn_acts_close(&s.acts);
    tn_free(m->ctx, pos);
    tn_free(m->ctx, s.residual);
    tn_free(m->ctx, s.base);
    tn_free(m->ctx, s.logits);
    return st;
}

void tn_head_profile_close(tn_head_profile *p) {
    if (!p->ctx) return;
    tn_free(p->ctx, p->scale_q);
    tn_free(p->ctx, p->scale_k);
    tn_free(p->ctx, p->weight);
    tn_free(p->ctx, p->seen);
    tn_free(p->ctx, p->n_windows);
    *p = (tn_head_profile){0};
}
