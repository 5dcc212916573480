/* Estimates a model's memory from its header and shapes alone. */
#include "base/cpu.h"
#include "base/sized.h"
#include "base/status.h"
#include "engine/adapters.h"
#include "engine/engine.h"
#include "engine/head.h"
#include "engine/imports.h"
#include "engine/sight_place.h"
#include "attention/sparse_attn.h"
#include "draft/draft.h"
#include "model/next.h"
#include "model/state.h"
#include "package/on_demand.h"
#include "package/tuned.h"
#include "params/params.h"

#include <stdio.h>
#include <string.h>

/* *next_bytes: the share of the layer that guesses one token further. */
static tern_status package_weights(tn_ctx *ctx, const char *path, bool packed, tn_hparams *h,
                                   uint64_t *n_bytes, uint64_t *next_bytes, tn_experts_need *experts,
                                   uint64_t *fingerprint, tern_error *err) {
    char scheme[24], description[64];
    uint64_t n_params;
    tn_pkg *p;
    TN_TRY(tn_pkg_open(ctx, path, &p, err));
    tern_status st = tn_package_hparams(ctx, p, h, scheme, description, &n_params, err);
    *n_bytes = *next_bytes = 0;
    *fingerprint = st == TERN_OK ? tn_package_fingerprint(p, h) : 0;
    for (size_t i = 0; st == TERN_OK && i < tn_pkg_n_sections(p); i++) {
        const tn_pkg_section *s = tn_pkg_section_at(p, i);
        size_t n;
        const tn_pkg_record *r = tn_pkg_records(p, s, &n);
        if (s->kind == TN_PKG_ENCODER) continue; /* counted apart */
        if (!n) *n_bytes += s->size_bytes;       /* tokenizer, graphs, metadata */
        for (size_t k = 0; k < n; k++) {
            if (s->kind == TN_PKG_TABLE && r[k].part == TN_PKG_ROWS) continue; /* read row by row */
            bool unpacked = r[k].part == TN_PKG_WEIGHTLETS && (!packed || r[k].flags & TN_PKG_HAS_OUTLIERS);
            *n_bytes += unpacked ? (uint64_t)r[k].n * (uint64_t)r[k].k : tn_pkg_plain_bytes(&r[k]);
            *next_bytes += s->kind == TN_PKG_NEXT ? r[k].size_bytes : 0;
        }
    }
    if (st == TERN_OK) tn_experts_need_of(p, h, packed, experts);
    tn_pkg_close(&p);
    return st;
}

/* Rows in flight: a chunk of a float model, a wave of a package. Each has its residual, its projections,
 * its part of the feed-forward network or of all its experts, and rows of attention scores. */
static uint64_t work_bytes(const tn_hparams *h, int64_t rows, int32_t n_ctx, int n_threads) {
    int64_t d = tn_widest_head(h), ff = h->n_ff_shared > h->n_ff ? h->n_ff_shared : h->n_ff,
            n_kv = h->window_kv_heads > h->n_kv_heads ? h->window_kv_heads : h->n_kv_heads;
    int64_t streams = h->n_streams        ? (2 * h->n_streams - 1) * (int64_t)h->n_embd + h->laurel_rank
                      : h->experts_beside ? h->n_embd
                                          : 0;
    int64_t wide = streams + (h->n_ple ? 4 : 3) * (int64_t)h->n_embd + 2 * h->n_heads * d + 2 * n_kv * d +
                   2 * ff + (int64_t)h->n_ple * (h->n_layers + 2) +
                   (int64_t)h->n_experts_used * (2 * (int64_t)h->n_ff_exp + h->n_embd);
    if (tn_latent(h))
        wide +=
            (int64_t)h->n_heads * (h->latent.d_nope + h->n_rot + h->latent.d_value) + h->latent.q_rank + d;
    if (rows > n_ctx) rows = n_ctx;
    return (uint64_t)(rows * wide + (int64_t)h->n_vocab + (int64_t)n_threads * n_ctx) * sizeof(float);
}

/* The layer that guesses one token further has rows, logits and scores of its own. */
static uint64_t next_work_bytes(const tn_hparams *h, int32_t n_ctx, int n_threads) {
    return work_bytes(h, TN_TREE_MAX, n_ctx, n_threads) + tn_next_work_bytes(h, n_ctx, n_threads);
}

/* Memory of the process itself (code, libraries, buffers) and of a tokenizer's tables, which grow with the
 * vocabulary. Measured as the resident set of tern run beyond the model, its context and its work, at
 * vocabularies of 8,000 and 152,000. The libraries that a server loads take 7 MB more, which are not counted. */
static uint64_t process_bytes(const tn_hparams *h) { return (8u << 20) + 100 * (uint64_t)h->n_vocab; }

tn_kv_type tn_options_kv(const tern_options *o, int32_t n_ctx) {
    if (o->kv && strcmp(o->kv, "auto")) return tn_kv_type_parse(o->kv);
    const char *mode = tn_options_attention(o);
    bool floats = o->attention_check || o->attention_share < 0 ||
                  (strcmp(mode, "full") && strcmp(mode, "shadow") && strcmp(mode, "auto"));
    return o->exact || floats || n_ctx <= TN_KV_FLOATS ? TN_KV_F32 : TN_KV_F16;
}

/* Sparse attention, from prompts of `from` tokens on, keeps the keys as INT8 panels and as rows. always:
 * without being asked. */
static uint64_t sparse_bytes(const tn_hparams *h, const tern_options *o, int32_t n_ctx, int32_t from,
                             tn_kv_type kv, bool always) {
    const char *mode = tn_options_attention(o);
    if (tn_sparse_attn_why_not(h)) return 0;
    if (!always && !strcmp(mode, "auto") && !o->attention_decode) return 0;
    if ((!strcmp(mode, "full") && !o->attention_decode) || (!strcmp(mode, "auto") && n_ctx < from)) return 0;
    return (uint64_t)n_ctx * (uint64_t)(tn_n_sparse(h) * h->n_kv_heads) *
           (tn_kv_panel_bytes(kv, (size_t)h->d_head) / TN_KV_PANEL + (uint64_t)h->d_head);
}

/* Whether a package opened with o could keep its weights packed. */
static bool may_stay_packed(const tern_options *o) {
    return (!o->npu || !strcmp(o->npu, "host")) && !o->npu_separate_weights && !o->no_chunk_sharing &&
           !o->npu_memory_bytes && !(o->products && !strcmp(o->products, "operators"));
}

/* Whether the weights of a package opened with o stay packed; a device's refusal is reported when it
 * opens. */
static bool stays_packed(const tern_options *o) {
    if (o->weights && strcmp(o->weights, "auto")) return !strcmp(o->weights, "packed");
    if (!may_stay_packed(o)) return false;
    tn_kernels kern;
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    return kern.gemm_packed != NULL;
}

static uint64_t all_of(const tern_estimate *e) { return e->weight_bytes + e->kv_bytes + e->work_bytes; }

/* Whether a package or a file opened with o could read its experts on demand. */
static bool may_be_on_demand(const tern_options *o) {
    return (!o->npu || !strcmp(o->npu, "host")) && !o->npu_apart && !o->npu_separate_weights &&
           !o->no_chunk_sharing && !o->npu_memory_bytes && !(o->load && !strcmp(o->load, "mmap"));
}

/* If max-memory does not hold all experts, weights counts everything except experts, and *experts_bytes is
 * the memory left for them (0: all are in memory). next: the share in *e of the layer that guesses one
 * token further, which is then left out. */
static void leave_for_experts(const tern_options *o, const tn_experts_need *need, const tern_estimate *next,
                              uint64_t encoder_bytes, tern_estimate *e, uint64_t *experts_bytes) {
    *experts_bytes = 0;
    if (!o->max_memory_bytes || all_of(e) <= o->max_memory_bytes || !need->can || !may_be_on_demand(o))
        return;
    e->weight_bytes -= next->weight_bytes;
    e->kv_bytes -= next->kv_bytes;
    e->work_bytes -= next->work_bytes;
    uint64_t others = all_of(e) - need->all_bytes;
    *experts_bytes = need->least_bytes;
    if (o->max_memory_bytes > others + need->least_bytes) *experts_bytes = o->max_memory_bytes - others;
    if (*experts_bytes > need->least_bytes + encoder_bytes) *experts_bytes -= encoder_bytes;
    if (*experts_bytes > need->all_bytes) *experts_bytes = need->all_bytes;
    e->weight_bytes -= need->all_bytes - *experts_bytes;
}

/* The chunk length and the start of sparse attention that the engine will use: as given, as measured for
 * this package, lanes and machine, or the defaults. */
static void measured_lengths(const char *path, const tern_options *o, uint64_t fingerprint, int32_t *chunk,
                             int32_t *from) {
    char profile[4096];
    int32_t n_lane_workers[TN_N_LANES];
    tn_tuned t = {0};
    tn_engine_lanes(o, tn_engine_threads(o), n_lane_workers);
    if (tn_tuned_path(path, profile, sizeof profile))
        tn_tuned_load(profile, tn_cpu_flags(NULL), n_lane_workers, &t);
    const bool ours = t.chunk && t.fingerprint == fingerprint;
    *chunk = o->chunk ? o->chunk : ours ? t.chunk : TN_CHUNK_DEFAULT;
    *from = ours && *chunk == t.chunk && t.attn_threshold ? t.attn_threshold : TN_ATTN_FROM;
}

/* The encoder of pictures, which works beside all the others: *n_bytes. Without a limit it counts where it
 * stays whatever comes. */
static tern_status with_encoder(tn_ctx *ctx, const char *path, const tern_options *o, const tn_hparams *h,
                                int n_threads, uint64_t *n_bytes, tern_error *err) {
    const bool stays = o->keep_encoder && !strcmp(o->keep_encoder, "on");
    *n_bytes = 0;
    if (!o->max_memory_bytes && !stays) return TERN_OK;
#ifndef TERN_MINIMAL
    return tn_encoder_estimate(ctx, path, o, h->n_embd, n_threads, n_bytes, err);
#else
    return (void)ctx, (void)path, (void)h, (void)n_threads, (void)err, TERN_OK;
#endif
}

/* Counts it if it is to stay, was named, or fits. */
static uint64_t count_encoder(const tern_options *o, uint64_t n_bytes, tern_estimate *e) {
    const bool must = o->mmproj || (o->keep_encoder && !strcmp(o->keep_encoder, "on")),
               fits = all_of(e) <= o->max_memory_bytes && n_bytes <= o->max_memory_bytes - all_of(e);
    if (!must && !fits) return 0;
    e->weight_bytes += n_bytes;
    return n_bytes;
}

static tern_status estimate(const char *path, const tern_options *opt, tern_estimate *out, tn_fit *fit,
                            tern_error *err) {
    TN_FAIL_IF(!path || !*path || !out, err, TERN_E_INVALID,
               "no model path or no place for the estimate given");
    tern_options o;
    if (opt) o = *opt;
    else tn_options_defaults(&o);
    TN_TRY(tn_params_check(&o, err));
    tn_params_preset(&o);
    tn_ctx ctx;
    tn_ctx_init(&ctx, o.hooks);
    tn_hparams h;
    tern_estimate e = {0}, next = {0};
    tn_experts_need experts = {0};
    bool package = tn_pkg_is(path), packed = stays_packed(&o), quantised = package;
    uint64_t fingerprint = 0;
    if (package)
        TN_TRY(package_weights(&ctx, path, packed, &h, &e.weight_bytes, &next.weight_bytes, &experts,
                               &fingerprint, err));
    else
        TN_TRY(tn_import_estimate(&ctx, path, o.scheme, &h, &e.weight_bytes, &next.weight_bytes, &experts,
                                  &quantised, err));
    snprintf(e.arch, sizeof e.arch, "%s", h.arch);
    e.n_ctx = o.session.n_ctx ? o.session.n_ctx : h.ctx_train < 4096 ? h.ctx_train : 4096;
    tn_kv_type kv = tn_options_kv(&o, e.n_ctx);
    e.kv_bytes = tn_state_bytes_of(&h, e.n_ctx, kv);
    uint32_t drafters;
    const char *draft_model;
    TN_TRY(tn_draft_parse(o.session.draft, &drafters, &draft_model, err));
    const int n_threads = o.n_threads ? o.n_threads : 2;
    int32_t chunk = o.chunk, from = TN_ATTN_FROM;
    if (package) measured_lengths(path, &o, fingerprint, &chunk, &from);
    const int64_t n_rows = package           ? TN_WAVE_CHUNKS * (int64_t)chunk
                           : h.bidirectional ? e.n_ctx
                                             : tn_float_chunk(&h);
    e.work_bytes = work_bytes(&h, n_rows, e.n_ctx, n_threads) + process_bytes(&h) +
                   tn_adapters_bytes(path, &h, o.lora) + sparse_bytes(&h, &o, e.n_ctx, from, kv, quantised);
    if (h.n_next && drafters & TN_DRAFT_MTP) {
        e.kv_bytes += next.kv_bytes = tn_next_bytes_of(&h, e.n_ctx);
        e.work_bytes += next.work_bytes = next_work_bytes(&h, e.n_ctx, n_threads);
    }
#ifndef TERN_MINIMAL
    const tn_head_need head = tn_head_estimate(&ctx, path, &h, quantised, &o, e.n_ctx, n_threads);
    e.weight_bytes += head.weight_bytes;
    e.kv_bytes += head.kv_bytes;
    e.work_bytes +=
        head.work_bytes + (uint64_t)n_rows * (uint64_t)head.n_taps * (uint64_t)h.n_embd * sizeof(float);
#endif
    uint64_t encoder_bytes;
    TN_TRY(with_encoder(&ctx, path, &o, &h, n_threads, &encoder_bytes, err));
    leave_for_experts(&o, &experts, &next, encoder_bytes, &e, &fit->experts_bytes);
    encoder_bytes = count_encoder(&o, encoder_bytes, &e);
    fit->encoder_bytes = !o.max_memory_bytes               ? UINT64_MAX
                         : all_of(&e) > o.max_memory_bytes ? encoder_bytes
                                                           : o.max_memory_bytes - all_of(&e) + encoder_bytes;
    *out = e;
    return TERN_OK;
}

tern_status tern_engine_estimate_sized(const char *path, const tern_options *opt, tern_estimate *out,
                                       size_t size_bytes, tern_error *err) {
    tern_estimate e = {0};
    tn_fit fit;
    TN_TRY(estimate(path, opt, out ? &e : NULL, &fit, err));
    TN_FAIL_IF(tn_sized_out(out, size_bytes, &e, sizeof e, TN_SIZE_UP_TO(tern_estimate, n_ctx)) != TERN_OK,
               err, TERN_E_INVALID, "an estimate of %zu bytes is smaller than any version's", size_bytes);
    return TERN_OK;
}

/* Bisection: a context's memory grows with its length, and only the model's header is read. */
static tern_status longest_context(const char *path, const tern_options *o, tern_estimate *e,
                                   tern_error *err) {
    tern_options with = *o;
    int32_t fits = 0, too_long = e->n_ctx;
    while (too_long - fits > TN_LEAST_CTX / 4) {
        with.session.n_ctx = fits + (too_long - fits) / 2;
        TN_TRY(tern_engine_estimate(path, &with, e, err));
        *(all_of(e) <= o->max_memory_bytes ? &fits : &too_long) = with.session.n_ctx;
    }
    with.session.n_ctx = fits < TN_LEAST_CTX ? TN_LEAST_CTX : fits;
    return tern_engine_estimate(path, &with, e, err);
}

/* Keys and values in as many bits as fit, or in the fewest without a measurable loss in tasks. */
static tern_status narrower_cache(const char *path, tern_options *o, tern_estimate *e, tern_error *err) {
    static const tn_kv_type forms[] = {TN_KV_F16, TN_KV_INT8};
    bool floats = o->exact || tn_options_kv(o, INT32_MAX) == TN_KV_F32; /* something needs them */
    for (size_t i = 0; i < 2 && !floats && all_of(e) > o->max_memory_bytes; i++) {
        tern_estimate less;
        const char *before = o->kv;
        o->kv = tn_kv_type_name(forms[i]);
        TN_TRY(tern_engine_estimate(path, o, &less, err));
        if (all_of(&less) < all_of(e)) *e = less;
        else o->kv = before; /* small heads are padded to whole groups of codes */
    }
    return TERN_OK;
}

tern_status tn_fit_memory(const char *path, tern_options *o, tn_fit *out, tern_error *err) {
    *out = (tn_fit){.encoder_bytes = UINT64_MAX};
    if (!o->max_memory_bytes) return TERN_OK;
    tern_estimate e;
    TN_TRY(tern_engine_estimate(path, o, &e, err));
    if (all_of(&e) > o->max_memory_bytes && tn_pkg_is(path) && !o->weights && !stays_packed(o) &&
        may_stay_packed(o)) {
        const uint64_t as_tiles = all_of(&e);
        o->weights = "packed";
        TN_TRY(tern_engine_estimate(path, o, &e, err));
        if (all_of(&e) > as_tiles) {
            /* A very small model's tables of packed channels take more than the bits saved. */
            o->weights = NULL;
            TN_TRY(tern_engine_estimate(path, o, &e, err));
        }
    }
    if (all_of(&e) > o->max_memory_bytes && tn_pkg_is(path) && !o->chunk) {
        /* A longer chunk that was measured to be faster takes more memory than the usual one. */
        tern_estimate usual;
        o->chunk = TN_CHUNK_DEFAULT;
        TN_TRY(tern_engine_estimate(path, o, &usual, err));
        if (all_of(&usual) < all_of(&e)) e = usual;
        else o->chunk = 0;
    }
    if (!o->kv || !strcmp(o->kv, "auto")) TN_TRY(narrower_cache(path, o, &e, err));
    if (all_of(&e) > o->max_memory_bytes && !o->session.n_ctx && e.n_ctx > TN_LEAST_CTX)
        TN_TRY(longest_context(path, o, &e, err));
    const double mib = 1048576;
    TN_FAIL_IF(all_of(&e) > o->max_memory_bytes, err, TERN_E_LIMIT,
               "%s needs about %.0f MiB with a context of %d tokens (weights %.0f, keys and values %.0f, "
               "work %.0f); max-memory allows %.0f",
               path, (double)all_of(&e) / mib, e.n_ctx, (double)e.weight_bytes / mib,
               (double)e.kv_bytes / mib, (double)e.work_bytes / mib, (double)o->max_memory_bytes / mib);
    out->n_ctx = e.n_ctx;
    tern_options with = *o;
    if (!with.session.n_ctx) with.session.n_ctx = e.n_ctx;
    return estimate(path, &with, &e, out, err);
}
