#include "engine/sight_encoder.h"

#include "base/status.h"
#include "engine/sight_place.h"
#include "params/options.h"
#include "quant/content.h"

#include <stddef.h>
#include <string.h>
#include <xxhash.h>

struct tn_encoder {
    tern_engine *e;
    tn_encoder_place place;
    tern_error blind;     /* code TERN_OK: there is one */
    tn_tower_shape said;  /* by the metadata */
    tn_tower_shape shape; /* the same within the options' limits */
    tn_tower_scheme scheme;
    bool chosen; /* scheme is */
    tn_tower_verdict verdict;
    const char *why; /* chosen without one */
    bool known;
    uint64_t fingerprint; /* once known */
    tn_tower *tower;      /* NULL: its weights are not in memory */
    tn_kept *kept;
    _Atomic uint64_t n_reads, held_bytes; /* any thread asks for them */
};

/* ---- what goes together --------------------------------------------------------------------------------- */

/* What the language model lacks for pictures. */
static tern_status check_model(const tern_engine *e, tern_error *err) {
    const tn_hparams *h = &e->model->h;
    TN_FAIL_IF(h->n_streams || h->bidirectional, err, TERN_E_UNSUPPORTED,
               "architecture %s takes no rows of pictures", h->arch);
    TN_FAIL_IF(!e->model->tokenizer, err, TERN_E_UNSUPPORTED, "the model has no tokenizer");
    return TERN_OK;
}

bool tn_encoder_sees_itself(const tern_engine *e, tn_tower_kind kind) {
    return (kind == TN_TOWER_GEMMA3 || kind == TN_TOWER_GEMMA4) && tn_pictures_see_themselves(&e->model->h);
}

/* What the encoder's rows need of the language model. */
static tern_status check_tower(const tern_engine *e, const tn_tower_shape *shape, tern_error *err) {
    const tn_hparams *h = &e->model->h;
    TN_FAIL_IF(
        tn_tower_has_axes(shape->kind) && !tn_has_axes(h), err, TERN_E_UNSUPPORTED,
        "pictures of Qwen's encoders need a model whose rope has three axes, and the file of this one (%s) "
        "says nothing about them%s",
        h->arch, e->npu ? ": a package of an older tern must be packed again" : "");
    TN_FAIL_IF(tn_tower_has_axes(shape->kind) && h->rope_interleaved != (shape->kind == TN_TOWER_QWEN3VL),
               err, TERN_E_INVALID,
               "the encoder is of another model: its rows turn by axes %s, and the model's %s",
               h->rope_interleaved ? "one after another (Qwen2.5-VL)" : "in turns (Qwen3-VL)",
               h->rope_interleaved ? "in turns" : "one after another");
    TN_FAIL_IF(
        shape->n_deep != h->n_deepstack, err, TERN_E_INVALID,
        "the encoder is of another model: it gives rows for %d first layers (deepstack), and the model's "
        "read %d",
        shape->n_deep, h->n_deepstack);
    return TERN_OK;
}

/* A package reads a picture whose rows see each other in one chunk. Where a picture may have any number of
 * rows, it has no more than a chunk. */
static tern_status fit_chunk(const tern_engine *e, tn_tower_shape *s, tern_error *err) {
    enum { LEAST = 256 }; /* rows: with fewer such a picture is a blur */
    if (!e->npu || !tn_encoder_sees_itself(e, s->kind)) return TERN_OK;
    const int64_t area = (int64_t)s->patch * s->shuffle * s->patch * s->shuffle, chunk = e->npu->chunk;
    const bool any_size = tn_tower_any_size(s->kind);
    const int64_t rows = any_size ? s->max_pixels / area : tn_tower_rows(s, tn_tower_tile(s));
    if (rows <= chunk) return TERN_OK;
    TN_FAIL_IF(!any_size || chunk < LEAST, err, TERN_E_UNSUPPORTED,
               "the rows of a picture see each other, up to %" PRId64 ", and a chunk has %" PRId64
               ": --set chunk=%" PRId64 " or more",
               rows, chunk, any_size ? LEAST : (rows + 31) / 32 * 32);
    tn_encoder_limit_rows(s, chunk);
    return TERN_OK;
}

/* ---- its bytes ------------------------------------------------------------------------------------------- */

/* Pages leave memory when they were summed up. */
static tern_status check_sum(const tn_encoder *x, const uint8_t *at, tern_error *err) {
    enum { PIECE = 1 << 20 };
    const tn_pkg_section *s = x->place.section;
    XXH64_state_t *h = XXH64_createState();
    TN_FAIL_IF(!h, err, TERN_E_MEMORY, "no memory for a sum");
    XXH64_reset(h, 0);
    for (uint64_t i = 0; i < s->size_bytes; i += PIECE) {
        const size_t n = (size_t)(s->size_bytes - i < PIECE ? s->size_bytes - i : PIECE);
        XXH64_update(h, at + i, n);
        tn_file_release(at + i, n);
    }
    const bool same = XXH64_digest(h) == s->xxh64;
    XXH64_freeState(h);
    TN_FAIL_IF(!same, err, TERN_E_FORMAT,
               "%s: its encoder of pictures at offset %" PRIu64 " is damaged (checksum differs)",
               tn_pkg_path(x->e->npu->pkg), s->off_bytes);
    return TERN_OK;
}

static tern_status open_packed(tn_encoder *x, tn_tower_scheme scheme, tern_error *err) {
    tern_engine *e = x->e;
    const tn_pkg *pkg = e->npu->pkg;
    const uint8_t *at;
    tn_file *f;
    TN_TRY(tn_encoder_place_map(&x->place, &f, &at, err));
    tern_status st = check_sum(x, at, err);
    if (st == TERN_OK)
        st = tn_tower_open_mapped(&e->ctx, e->pool, at, x->place.section->size_bytes, e->model->h.n_embd,
                                  scheme, &x->tower, err);
    if (tn_file_was_written(f, tn_pkg_fd(pkg))) {
        st = tn_fail(err, TERN_E_IO, "%s was written to while it was read", tn_pkg_path(pkg));
        tn_tower_close(&x->tower);
    }
    tn_file_close(&f);
    return st;
}

/* ---- opening --------------------------------------------------------------------------------------------- */

/* Asked for; or else a verdict decides, when the first picture comes. */
static void set_scheme(tn_encoder *x, const tern_options *o) {
    const bool asked = o->encoder && strcmp(o->encoder, "auto");
    x->scheme = asked && !strcmp(o->encoder, "int8") ? TN_TOWER_INT8 : TN_TOWER_FLOAT;
    x->why = asked ? "asked for" : o->exact ? "exact" : NULL;
    x->chosen = x->why;
}

/* Whether it fits beside the model into what max-memory allows. A form that is not known yet is judged, in
 * floats too. */
static tern_status check_room(tn_encoder *x, const tn_tower *t, const tern_options *o, tern_error *err) {
    const tern_engine *e = x->e;
    const double mib = 1048576;
    if (e->encoder_bytes == UINT64_MAX) return TERN_OK;
    (void)tn_encoder_recall(x);
    const bool is_int8 = x->chosen && x->scheme == TN_TOWER_INT8;
    const uint64_t need = tn_encoder_bytes(t, o, &e->kern, tn_pool_size(e->pool), is_int8);
    TN_FAIL_IF(need > e->encoder_bytes, err, TERN_E_LIMIT,
               "the encoder of pictures needs about %.0f MiB while it works, and max-memory leaves %.0f "
               "beside the model%s",
               (double)need / mib, (double)e->encoder_bytes / mib,
               is_int8 ? "" : " (encoder int8 needs less)");
    return TERN_OK;
}

static tern_status read_metadata(tn_encoder *x, const tern_options *o, tern_error *err) {
    tn_tower *t = NULL;
    TN_TRY(tn_encoder_place_peek(&x->place, &t, err));
    tern_status st = check_tower(x->e, tn_tower_shape_of(t), err);
    x->said = x->shape = *tn_tower_shape_of(t);
    tn_encoder_limit(&x->shape, o);
    if (st == TERN_OK) st = fit_chunk(x->e, &x->shape, err);
    if (st == TERN_OK) st = check_room(x, t, o, err);
    tn_tower_close(&t);
    return st;
}

static tern_status find_and_peek(tn_encoder *x, const char *path, const tern_options *o, tern_error *err) {
    tern_engine *e = x->e;
    TN_TRY(check_model(e, err));
    TN_TRY(tn_encoder_place_find(&e->ctx, path, e->npu ? e->npu->pkg : NULL, o, e->model->h.n_embd, &x->place,
                                 err));
    tern_status st = read_metadata(x, o, err);
    if (st != TERN_OK && st != TERN_E_MEMORY && st != TERN_E_INVALID && !o->mmproj)
        tn_log(&e->ctx, TERN_LOG_WARN, "pictures are not seen: %s", err->message);
    return st;
}

tern_status tn_encoder_open(tern_engine *e, const char *path, const tern_options *o, tn_kept *kept,
                            tn_encoder **out, tern_error *err) {
    tern_error why = {0};
    tn_encoder *x = *out = tn_calloc(&e->ctx, TN_MEM_OTHER, 1, sizeof *x);
    TN_FAIL_IF(!x, err, TERN_E_MEMORY, "no memory for an engine");
    x->e = e;
    x->kept = kept;
    set_scheme(x, o);
    tern_status st = find_and_peek(x, path, o, &why);
    if (st == TERN_OK) return TERN_OK;
    x->blind = why;
    if (st != TERN_E_MEMORY && !o->mmproj) return TERN_OK;
    /* the file is at fault, no call */
    return tn_fail(err, st == TERN_E_INVALID ? TERN_E_FORMAT : st, "%s", why.message);
}

void tn_encoder_close(tn_encoder **px) {
    tn_encoder *x = *px;
    *px = NULL;
    if (!x) return;
    tn_ctx *ctx = &x->e->ctx;
    tn_tower_close(&x->tower);
    tn_encoder_place_free(&x->place);
    tn_free(ctx, x);
}

const tern_error *tn_encoder_blind(const tn_encoder *x) { return x->blind.code ? &x->blind : NULL; }
const tn_tower_shape *tn_encoder_shape(const tn_encoder *x) { return &x->shape; }

/* ---- which one it is --------------------------------------------------------------------------------------- */

/* A mark of its bytes, which are not read. *settled: what is found out now may be kept under it. */
static bool mark(const tn_encoder *x, tn_content *out, bool *settled) {
    *settled = true;
    if (!x->place.section) return tn_content_mark(x->place.path, out, settled);
    *out = (tn_content){x->place.section->xxh64, x->place.section->size_bytes};
    return true;
}

/* What is kept under a key stands for the words that the key is made of. */
static void key_of(const uint64_t *words, size_t n, uint8_t key[TN_VIEW_KEY]) {
    for (uint64_t i = 0; i < TN_VIEW_KEY / sizeof i; i++) {
        const uint64_t h = XXH64(words, n * sizeof *words, i);
        memcpy(key + i * sizeof h, &h, sizeof h);
    }
}

static void fingerprint_key(tn_content mark, tn_tower_scheme scheme, uint8_t key[TN_VIEW_KEY]) {
    const uint64_t words[] = {0x66696e676572ull /* "finger": no view's */, mark.high, mark.low,
                              (uint64_t)scheme, XXH64(TERN_VERSION_STRING, sizeof TERN_VERSION_STRING, 0)};
    key_of(words, sizeof words / sizeof *words, key);
}

enum { PARTS = 4 }; /* of a fingerprint, 16 bits each, which floats hold */

static bool recall_fingerprint(const tn_encoder *x, tn_tower_scheme scheme, uint64_t *out) {
    uint8_t key[TN_VIEW_KEY];
    float kept[PARTS];
    tn_content m;
    bool settled;
    if (!mark(x, &m, &settled)) return false;
    fingerprint_key(m, scheme, key);
    if (!tn_kept_read(x->kept, key, 1, PARTS, kept)) return false;
    *out = 0;
    for (int i = 0; i < PARTS; i++) *out |= (uint64_t)kept[i] << 16 * i;
    return true;
}

static void keep_fingerprint(const tn_encoder *x, tn_content m, tn_tower_scheme scheme, uint64_t is) {
    uint8_t key[TN_VIEW_KEY];
    float kept[PARTS];
    fingerprint_key(m, scheme, key);
    for (int i = 0; i < PARTS; i++) kept[i] = (float)(is >> 16 * i & 0xffff);
    tn_kept_write(&x->e->ctx, x->kept, key, 1, PARTS, kept);
}

/* ---- its weights ------------------------------------------------------------------------------------------- */

/* Reads them. What they are is kept if they are the same bytes before and after. */
static tern_status open_tower(tn_encoder *x, tn_tower_scheme scheme, tern_error *err) {
    tern_engine *e = x->e;
    tn_content before, after;
    bool settled, same;
    const bool marked = mark(x, &before, &settled) && settled;
    atomic_fetch_add(&x->n_reads, 1);
    TN_TRY(x->place.section
               ? open_packed(x, scheme, err)
               : tn_tower_open(&e->ctx, e->pool, x->place.path, e->model->h.n_embd, scheme, &x->tower, err));
    /* up to the last field: bytes that fill a struct up are anything */
    const size_t all = offsetof(tn_tower_shape, places) + sizeof x->said.places;
    if (memcmp(tn_tower_shape_of(x->tower), &x->said, all) != 0) {
        tn_tower_close(&x->tower);
        return tn_fail(err, TERN_E_IO, "the encoder of pictures was changed while it was in use");
    }
    same = marked && mark(x, &after, &settled) && after.high == before.high && after.low == before.low;
    if (same && x->kept->limit_bytes) keep_fingerprint(x, before, scheme, tn_tower_fingerprint(x->tower));
    return TERN_OK;
}

static tern_status open_form(void *user, tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    tn_encoder *x = user;
    tern_status st = open_tower(x, scheme, err);
    *out = x->tower;
    return st;
}

/* ---- how it computes --------------------------------------------------------------------------------------- */

/* The verdict that packing wrote beside the encoder; NULL: none, or a later tern's. */
static const tn_pkg_section *packed_verdict(const tn_encoder *x) {
    const tn_pkg_section *v = x->e->npu ? tn_pkg_find(x->e->npu->pkg, TN_PKG_VERDICT, -1) : NULL;
    return v && v->size_bytes == sizeof(tn_pkg_verdict) ? v : NULL;
}

/* Takes it if it is of this encoder and of this judge. */
static tern_status read_verdict(tn_encoder *x, uint64_t fingerprint, bool *known, tern_error *err) {
    const tn_pkg_section *section = packed_verdict(x);
    tn_pkg_verdict v;
    *known = false;
    if (!section) return TERN_OK;
    TN_TRY(tn_pkg_read(x->e->npu->pkg, section, &v, err));
    *known = v.version == TN_TOWER_VERDICT && v.fingerprint == fingerprint;
    if (*known) x->verdict = (tn_tower_verdict){v.mean, v.least};
    return TERN_OK;
}

enum { VERDICT_FLOATS = sizeof(tn_tower_verdict) / sizeof(float) };

static void verdict_key(uint64_t fingerprint, uint8_t key[TN_VIEW_KEY]) {
    const uint64_t words[] = {0x6a75646765ull /* "judge": no view's */, TN_TOWER_VERDICT, fingerprint};
    key_of(words, sizeof words / sizeof *words, key);
}

static bool kept_verdict(tn_encoder *x, uint64_t fingerprint) {
    uint8_t key[TN_VIEW_KEY];
    float kept[VERDICT_FLOATS];
    verdict_key(fingerprint, key);
    if (!tn_kept_read(x->kept, key, 1, VERDICT_FLOATS, kept)) return false;
    memcpy(&x->verdict, kept, sizeof kept);
    return true;
}

/* By the verdict that is kept, or by a new one. */
static tern_status judge(tn_encoder *x, uint64_t fingerprint, tern_error *err) {
    const tn_tower_judging j = {&x->e->ctx, &x->e->kern, x->e->pool, open_form, x};
    uint8_t key[TN_VIEW_KEY];
    float kept[VERDICT_FLOATS];
    if (kept_verdict(x, fingerprint)) return TERN_OK;
    TN_TRY(tn_tower_judge(&j, &x->tower, &x->verdict, err));
    memcpy(kept, &x->verdict, sizeof kept);
    verdict_key(fingerprint, key);
    tn_kept_write(&x->e->ctx, x->kept, key, 1, VERDICT_FLOATS, kept);
    return TERN_OK;
}

/* INT8 where it sees what floats see. */
static void set_form(tn_encoder *x, bool judged) {
    x->why = judged ? NULL : "nothing is kept on disk, so INT8 was not judged";
    x->scheme = judged && tn_tower_holds(x->verdict) ? TN_TOWER_INT8 : TN_TOWER_FLOAT;
    x->chosen = true;
}

/* A verdict takes as long as a picture in floats at worst, so none is made where none can be kept. */
static tern_status choose(tn_encoder *x, tern_error *err) {
    bool judged = false;
    if (x->kept->limit_bytes || packed_verdict(x)) {
        if (!x->tower) TN_TRY(open_tower(x, TN_TOWER_INT8, err));
        const uint64_t fingerprint = tn_tower_fingerprint(x->tower);
        TN_TRY(read_verdict(x, fingerprint, &judged, err));
        if (!judged && x->kept->limit_bytes) {
            TN_TRY(judge(x, fingerprint, err));
            judged = true;
        }
    }
    set_form(x, judged);
    if (x->tower && tn_tower_scheme_of(x->tower) != x->scheme) tn_tower_close(&x->tower);
    return TERN_OK;
}

/* The form, as far as it is known without the weights. */
static bool recall_form(tn_encoder *x) {
    uint64_t fingerprint;
    bool judged = false;
    if (x->chosen) return true;
    if (x->kept->limit_bytes || packed_verdict(x)) {
        if (!recall_fingerprint(x, TN_TOWER_INT8, &fingerprint)) return false;
        judged = (read_verdict(x, fingerprint, &judged, NULL) == TERN_OK && judged) ||
                 kept_verdict(x, fingerprint);
        if (!judged) return false;
    }
    set_form(x, judged);
    return true;
}

bool tn_encoder_recall(tn_encoder *x) {
    if (!x->known && recall_form(x)) x->known = recall_fingerprint(x, x->scheme, &x->fingerprint);
    return x->known;
}

void tn_encoder_rest(tn_encoder *x) {
    if (!x->tower) return;
    tn_tower_close(&x->tower);
    atomic_store(&x->held_bytes, 0);
    tn_mem_trim();
}

tern_status tn_encoder_need(tn_encoder *x, tn_tower **out, tern_error *err) {
    *out = NULL;
    if (x->blind.code) return tn_fail(err, x->blind.code, "%s", x->blind.message);
    tern_status st = x->chosen ? TERN_OK : choose(x, err);
    if (st == TERN_OK && !x->tower) st = open_tower(x, x->scheme, err);
    if (st == TERN_OK && x->known && tn_tower_fingerprint(x->tower) != x->fingerprint)
        st = tn_fail(err, TERN_E_IO, "the encoder of pictures was changed while it was in use");
    if (st != TERN_OK) {
        tn_encoder_rest(x);
        return st;
    }
    x->fingerprint = tn_tower_fingerprint(x->tower);
    x->known = true;
    atomic_store(&x->held_bytes, tn_tower_bytes(x->tower));
    *out = x->tower;
    return TERN_OK;
}

uint64_t tn_encoder_fingerprint(const tn_encoder *x) { return x->fingerprint; }
uint64_t tn_encoder_reads(const tn_encoder *x) { return atomic_load(&x->n_reads); }
uint64_t tn_encoder_held(const tn_encoder *x) { return atomic_load(&x->held_bytes); }
bool tn_encoder_is_read(const tn_encoder *x) { return x->tower; }

void tn_encoder_form_of(const tn_encoder *x, tn_encoder_form *out) {
    *out = (tn_encoder_form){
        .int8 = x->scheme == TN_TOWER_INT8, .known = x->chosen, .why = x->why, .verdict = x->verdict};
}
