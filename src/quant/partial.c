#include "quant/partial.h"

#include "base/file.h"
#include "base/status.h"
#include "kernels/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { ALIGN = 4096, PIECE = 1 << 20 };

const tn_outkind tn_partial_kind = {
    .what = "a partial package", .begins = {"TNPART04", "TNPART03"}, .is_private = true};

/* Precedes the contents of a record. `check` covers everything and is written last. */
typedef struct record {
    uint64_t pass, layer, n_bytes, check;
} record;

static uint64_t round_up(uint64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

static uint64_t header_check(const tn_partial_header *h) {
    return XXH3_64bits(h, offsetof(tn_partial_header, check));
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

static bool put_at(tn_partial *f, const void *p, uint64_t n, uint64_t at) {
    const uint8_t *b = p;
    while (n) {
        ssize_t some = pwrite(f->fd, b, n < 1 << 30 ? n : 1 << 30, (off_t)at);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) {
            tn_log(f->ctx, TERN_LOG_INFO, "%s: cannot be written, packing goes on without: %s", f->path,
                   some ? strerror(errno) : "no room");
            f->is_full = true;
            return false;
        }
        b += some;
        at += (uint64_t)some;
        n -= (uint64_t)some;
    }
    return true;
}

static bool get_at(const tn_partial *f, void *p, uint64_t n, uint64_t at) {
    return tn_file_read_at(f->fd, f->path, p, n, at, NULL) == TERN_OK;
}

static void put_header(tn_partial *f) {
    f->head.check = header_check(&f->head);
    if (f->fd >= 0 && !f->is_full) (void)put_at(f, &f->head, sizeof f->head, 0);
}

/* Hash of bytes in pieces, so that those in a file need not be in memory at once. */
static uint64_t check_of(const void *p, uint64_t n, uint64_t seed) {
    for (uint64_t at = 0; at < n; at += PIECE)
        seed = XXH3_64bits_withSeed((const uint8_t *)p + at, n - at < PIECE ? n - at : PIECE, seed);
    return seed;
}

/* A record being read or written, field by field in the same order. */
typedef struct stream {
    tn_partial *f;
    uint64_t at, end, check;
    bool is_writing, ok;
} stream;

static void move(stream *s, void *p, uint64_t n) {
    if (s->ok && !s->is_writing) s->ok = n <= s->end - s->at && get_at(s->f, p, n, s->at);
    else if (s->ok) s->ok = put_at(s->f, p, n, s->at);
    s->at += n;
    if (s->ok) s->check = check_of(p, n, s->check);
}

/* Codes stay in the file when a record is read, unless `keep` is set. */
static void move_codes(stream *s, tn_rounded *l, struct tn_partial_codes *place, bool keep) {
    if (s->is_writing) {
        struct tn_partial_codes there = {s->at, check_of(l->weightlets, l->n_bytes, 0)};
        move(s, l->weightlets, l->n_bytes);
        *place = there;
        return;
    }
    if (!s->ok || l->n_bytes > s->end - s->at) {
        s->ok = false;
        return;
    }
    uint8_t *piece = tn_alloc(s->f->ctx, TN_MEM_OTHER, keep ? l->n_bytes : PIECE, 1);
    s->ok = piece != NULL;
    uint64_t own = 0, first = s->at;
    for (uint64_t at = 0; s->ok && at < l->n_bytes; at += PIECE) {
        uint64_t n = l->n_bytes - at < PIECE ? l->n_bytes - at : PIECE;
        uint8_t *to = keep ? piece + at : piece;
        s->ok = get_at(s->f, to, n, first + at);
        if (!s->ok) break;
        s->check = XXH3_64bits_withSeed(to, n, s->check);
        own = XXH3_64bits_withSeed(to, n, own);
    }
    s->at += l->n_bytes;
    *place = (struct tn_partial_codes){first, own};
    if (keep && s->ok) l->weightlets = piece;
    else tn_free(s->f->ctx, piece);
}

static void move_linear(stream *s, tn_rounded *l, int32_t n, int32_t k, const uint8_t *bits,
                        struct tn_partial_codes *place, bool keep) {
    if (!s->is_writing && s->ok) s->ok = tn_rounded_open(s->f->ctx, n, k, bits, false, l, NULL) == TERN_OK;
    if (!s->ok) return;
    uint64_t pad = ((uint64_t)n + 15) / 16 * 16;
    move(s, l->col_sum, pad * sizeof *l->col_sum);
    move(s, l->scale, pad * sizeof *l->scale);
    move_codes(s, l, place, keep);
}

static void move_site(stream *s, const tn_site_ops *ops, tn_recipe_site *m, const uint8_t *bits,
                      struct tn_partial_codes *places, bool keep) {
    struct {
        float clip, alpha;
        double error;
        uint32_t rotated, n_smooth, smooth, unused;
    } fixed = {m->clip,           m->alpha, m->error, (uint32_t)m->rotated, (uint32_t)m->n_smooth,
               m->smooth != NULL, 0};
    const uint64_t k = (uint64_t)ops->k;
    move(s, &fixed, sizeof fixed);
    if (!s->is_writing && s->ok) {
        *m = (tn_recipe_site){.clip = fixed.clip,
                              .alpha = fixed.alpha,
                              .rotated = (int32_t)fixed.rotated,
                              .n_smooth = (int32_t)fixed.n_smooth,
                              .error = fixed.error};
        s->ok = !fixed.n_smooth || (fixed.smooth && fixed.n_smooth == (uint32_t)ops->n_experts);
        const size_t n = (size_t)k * (fixed.n_smooth ? fixed.n_smooth : 1);
        if (s->ok && fixed.smooth) m->smooth = tn_alloc(s->f->ctx, TN_MEM_OTHER, n, sizeof *m->smooth);
        s->ok = s->ok && (!fixed.smooth || m->smooth);
    }
    if (s->ok && fixed.smooth)
        move(s, m->smooth, k * (fixed.n_smooth ? fixed.n_smooth : 1) * sizeof *m->smooth);
    for (int32_t op = 0; op < ops->n_ops && s->ok; bits += ops->n[op++])
        move_linear(s, &m->ops[op], ops->n[op], ops->k, bits, &places[op], keep);
}

/* ---- records ----------------------------------------------------------------------------------------- */

static int32_t sites_of(const tn_program *p, int32_t layer, int32_t *first) {
    *first = p->n_sites - 1;
    return layer < p->n_layers ? tn_program_layer_sites(p, layer, first) : 1;
}

static uint64_t place_of(const tn_partial *f, int32_t layer) {
    return f->places_at + (uint64_t)(layer % 2) * f->place_bytes;
}

static uint64_t residuals_check(const tn_partial_layer *l) {
    uint64_t check = (uint64_t)l->layer;
    for (int i = 0; i < 2; i++) check = check_of(l->residuals[i], l->n_residuals[i] * sizeof(float), check);
    return check;
}

/* residuals: their check. */
static void move_layer(stream *s, tn_partial_layer *l, uint64_t *residuals) {
    const bool tables = l->layer == l->program->n_layers;
    const uint8_t *bits = l->bits;
    int32_t first, n = sites_of(l->program, l->layer, &first);
    move(s, l->head, sizeof l->head);
    move(s, residuals, sizeof *residuals);
    for (int32_t i = 0; i < n && s->ok; i++) {
        const tn_site_ops *ops = tn_program_linears(l->program, first + i);
        move_site(s, ops, &l->made[i], bits, s->f->codes + (size_t)(first + i) * TN_SITE_MAX_OPS, tables);
        bits += ops->n_total;
    }
    struct tn_partial_codes unused;
    const tn_site_ops *last = tn_program_linears(l->program, l->program->n_sites - 1);
    if (tables && l->embedding && s->ok)
        move_linear(s, l->embedding, last->n[0], last->k, bits, &unused, true);
}

void tn_partial_put_layer(tn_partial *f, tn_partial_layer *l) {
    if (f->fd < 0 || f->is_full) return;
    uint64_t at = place_of(f, l->layer), check = residuals_check(l);
    for (int i = 0; i < 2 && l->layer < l->program->n_layers; i++) {
        uint64_t n = l->n_residuals[i] * sizeof(float);
        if (!put_at(f, l->residuals[i], n, at)) return;
        at += n;
    }
    stream s = {.f = f, .at = f->end + sizeof(record), .is_writing = true, .ok = true};
    move_layer(&s, l, &check);
    const record r = {
        .pass = f->pass, .layer = (uint64_t)l->layer, .n_bytes = s.at - f->end - sizeof r, .check = s.check};
    if (!s.ok || !put_at(f, &r, sizeof r, f->end)) {
        int32_t first, n = sites_of(l->program, l->layer, &first);
        memset(f->codes + (size_t)first * TN_SITE_MAX_OPS, 0, (size_t)n * TN_SITE_MAX_OPS * sizeof *f->codes);
        return;
    }
    f->end = s.at;
    int32_t first, n = l->layer < l->program->n_layers ? sites_of(l->program, l->layer, &first) : 0;
    for (int32_t i = 0; i < n; i++) tn_recipe_codes_free(f->ctx, &l->made[i]);
}

bool tn_partial_next_layer(tn_partial *f, tn_partial_layer *l) {
    record r;
    if (f->fd < 0 || !get_at(f, &r, sizeof r, f->end) || r.pass != f->pass || r.layer != (uint64_t)l->layer)
        return false;
    uint64_t first_byte = f->end + sizeof r, residuals = 0;
    if (r.n_bytes > UINT64_MAX - first_byte) return false;
    stream s = {.f = f, .at = first_byte, .end = first_byte + r.n_bytes, .ok = true};
    move_layer(&s, l, &residuals);
    if (s.ok && s.at == s.end && s.check == r.check) {
        f->end = s.end;
        f->residuals_check = residuals;
        return true;
    }
    int32_t first, n = sites_of(l->program, l->layer, &first);
    for (int32_t i = 0; i < n; i++) tn_recipe_site_free(f->ctx, &l->made[i]);
    if (l->embedding) tn_rounded_free(f->ctx, l->embedding);
    memset(f->codes + (size_t)first * TN_SITE_MAX_OPS, 0, (size_t)n * TN_SITE_MAX_OPS * sizeof *f->codes);
    return false;
}

bool tn_partial_residuals(tn_partial *f, tn_partial_layer *l) {
    uint64_t at = place_of(f, l->layer);
    for (int i = 0; i < 2; i++) {
        if (!get_at(f, l->residuals[i], l->n_residuals[i] * sizeof(float), at)) return false;
        at += l->n_residuals[i] * sizeof(float);
    }
    return residuals_check(l) == f->residuals_check;
}

tern_status tn_partial_fetch(const tn_partial *f, const tn_program *program, int32_t layer,
                             tn_recipe_site *made, tern_error *err) {
    int32_t first, n = sites_of(program, layer, &first);
    for (int32_t i = 0; i < n; i++) {
        const tn_site_ops *ops = tn_program_linears(program, first + i);
        for (int32_t op = 0; op < ops->n_ops; op++) {
            tn_rounded *l = &made[i].ops[op];
            if (l->weightlets) continue;
            const struct tn_partial_codes *c = &f->codes[(first + i) * TN_SITE_MAX_OPS + op];
            l->weightlets = tn_alloc(f->ctx, TN_MEM_OTHER, l->n_bytes, 1);
            TN_FAIL_IF(!l->weightlets, err, TERN_E_MEMORY, "no memory for a linear's codes");
            TN_TRY(tn_file_read_at(f->fd, f->path, l->weightlets, l->n_bytes, c->at, err));
            TN_FAIL_IF(check_of(l->weightlets, l->n_bytes, 0) != c->check, err, TERN_E_IO,
                       "%s: another program wrote into it", f->path);
        }
    }
    return TERN_OK;
}

/* ---- costs and passes -------------------------------------------------------------------------------- */

bool tn_partial_costs(tn_partial *f, float *cost, size_t n) {
    if (f->fd < 0 || f->head.n_costs != n || !get_at(f, cost, n * sizeof *cost, ALIGN)) return false;
    return check_of(cost, n * sizeof *cost, 0) == f->head.costs_check;
}

void tn_partial_put_costs(tn_partial *f, const float *cost, size_t n) {
    if (f->fd < 0 || f->is_full || !put_at(f, cost, n * sizeof *cost, ALIGN)) return;
    f->head.n_costs = n;
    f->head.costs_check = check_of(cost, n * sizeof *cost, 0);
    f->head.n_losses = 0;
    put_header(f);
}

void tn_partial_begin_pass(tn_partial *f, uint64_t pass) {
    f->pass = pass;
    f->end = f->log_at;
}

void tn_partial_put_loss(tn_partial *f, const tn_losses *loss) {
    if (f->head.n_losses == TN_PARTIAL_PASSES) return;
    f->head.losses[f->head.n_losses++] = *loss;
    put_header(f);
}

void tn_partial_drop_losses(tn_partial *f, uint64_t n_left) {
    f->head.n_losses = n_left;
    put_header(f);
}

/* ---- life -------------------------------------------------------------------------------------------- */

/* Opens the file for this process alone, or returns -1 with errno; errno 0: another process has it. */
static int open_locked(const char *path) {
    for (;;) {
        struct stat opened, named;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0) return -1;
        errno = EPERM;
        bool ours = !fstat(fd, &opened) && S_ISREG(opened.st_mode) && opened.st_uid == geteuid() &&
                    opened.st_nlink <= 1 && !fchmod(fd, 0600);
        if (!ours || flock(fd, LOCK_EX | LOCK_NB)) {
            int why = errno;
            close(fd);
            errno = why;
            return -1;
        }
        /* The last holder may have removed the name meanwhile. */
        if (opened.st_nlink && !lstat(path, &named) && opened.st_ino == named.st_ino &&
            opened.st_dev == named.st_dev)
            return fd;
        close(fd);
    }
}

static bool is_of(const tn_partial_header *h, const uint64_t id[2]) {
    return !memcmp(h->magic, tn_partial_kind.begins[0], sizeof h->magic) && h->check == header_check(h) &&
           !memcmp(h->id, id, sizeof h->id) && h->n_losses <= TN_PARTIAL_PASSES;
}

tern_status tn_partial_open(tn_partial *f, tn_ctx *ctx, const char *path, const uint64_t id[2],
                            const tn_program *program, size_t n_costs, size_t n_residuals, tern_error *err) {
    *f = (tn_partial){.ctx = ctx, .path = path, .fd = -1};
    f->codes = tn_calloc(ctx, TN_MEM_OTHER, (size_t)program->n_sites * TN_SITE_MAX_OPS, sizeof *f->codes);
    TN_FAIL_IF(!f->codes, err, TERN_E_MEMORY, "no memory to pack");
    f->places_at = ALIGN + round_up(n_costs * sizeof(float));
    f->place_bytes = round_up(n_residuals * sizeof(float));
    f->log_at = f->end = f->places_at + 2 * f->place_bytes;
    f->fd = open_locked(path);
    if (f->fd < 0) {
        tn_log(ctx, TERN_LOG_INFO, "%s: cannot be kept, so that packing cannot go on later: %s", path,
               errno == EWOULDBLOCK ? "another process packs there" : strerror(errno));
        return TERN_OK;
    }
    struct stat sb;
    bool empty = !fstat(f->fd, &sb) && !sb.st_size;
    if (!empty && get_at(f, &f->head, sizeof f->head, 0) && is_of(&f->head, id)) return TERN_OK;
    if (!empty)
        tn_log(ctx, TERN_LOG_WARN,
               "%s: is damaged, or of another model, text or options; packing from the beginning", path);
    f->head = (tn_partial_header){.id = {id[0], id[1]}};
    memcpy(f->head.magic, tn_partial_kind.begins[0], sizeof f->head.magic);
    if (ftruncate(f->fd, 0)) f->is_full = true;
    put_header(f);
    return TERN_OK;
}

void tn_partial_close(tn_partial *f, bool keep) {
    if (f->fd >= 0) {
        if (!keep) (void)unlink(f->path);
        close(f->fd);
    }
    if (f->ctx) tn_free(f->ctx, f->codes);
    *f = (tn_partial){.fd = -1};
}
