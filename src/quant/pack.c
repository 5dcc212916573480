/* quant/pack.c - calibrate, choose scales and outlier paths per site, quantise, write. */
#include "model/tower.h"
#include "quant/pack.h"

#include "base/cpu.h"
#include "base/file.h"
#include "base/status.h"
#include "formats/gguf.h"
#include "package/npu_model.h"
#include "quant/packer.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

const char *tn_scheme_name(tn_scheme s) {
    static const char *const names[TN_N_SCHEMES] = {"llm-npu", "naive-w8a8", "edgeflow", "smoothquant",
                                                    "gram"};
    return names[s];
}

const char *tn_words_name(tn_words k) {
    static const char *const names[TN_N_WORDS] = {"the model's own text", "the model's own conversations",
                                                  "the calibration text"};
    return names[k];
}

bool tn_allocation_parse(const char *name, tn_allocation *out) {
    static const char *const names[TN_N_ALLOCATIONS] = {"", "re", "uniform", "cmpq", "loss"};
    for (int i = 1; i < TN_N_ALLOCATIONS; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (tn_allocation)i;
        return true;
    }
    return false;
}

void tn_pack_defaults(tn_pack_options *o) {
    *o = (tn_pack_options){.scheme = TN_SCHEME_GRAM,
                           .calib_window = 512,
                           .own_tokens = -1,
                           .prune_percent = 85,
                           .prune_error = 0.001f,
                           .outlier_share = 0.002f,
                           .hot_coverage = 0.9f,
                           .hot_max = 0.25f,
                           .output_beta = 1,
                           .compress_rate = 1};
}

uint64_t tn_pack_options_identity(const tn_pack_options *o) {
#define OF(field)                                                                                            \
    { offsetof(tn_pack_options, field), sizeof o->field }
    static const struct {
        size_t at, n;
    } all[] = {OF(scheme),        OF(calib_tokens),  OF(own_tokens),    OF(calib_window),
               OF(prune_percent), OF(prune_error),   OF(outlier_share), OF(hot_coverage),
               OF(hot_max),       OF(bits),          OF(quality),       OF(quick),
               OF(allocation),    OF(bits_of_model), OF(outliers),      OF(head_importance),
               OF(output_int8),   OF(output_beta),   OF(compress),      OF(compress_rate)};
#undef OF
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) h = XXH64((const char *)o + all[i].at, all[i].n, h);
    return h;
}

const tn_npu_layout tn_pack_layout = {.id = TN_NPU_LAYOUT_16X4, .tile_n = 16, .tile_k = 4};

enum { MOST_OWN_TOKENS = 1 << 20 };

/* A file beside the package, while it is made. */
static tern_status name_beside(packer *p, const char *out, const char *ending, const tn_outkind *kind,
                               char **path) {
    size_t cap = strlen(out) + strlen(ending) + 1;
    *path = tn_alloc(p->ctx, TN_MEM_OTHER, cap, 1);
    TN_FAIL_IF(!*path, p->err, TERN_E_MEMORY, "no memory for a file's name");
    snprintf(*path, cap, "%s%s", out, ending);
    return tn_outfile_may(*path, kind, p->err);
}

/* A package may replace another, but never the file it is made from. A GGUF file replaces nothing: what lies there may be
 * a model that was fetched for an hour, or a part of the source. */
static tern_status target(const char *src, const char *out, bool gguf, tern_error *err) {
    struct stat from, to;
    const bool is_there = !stat(out, &to);
    if (is_there && !stat(src, &from))
        TN_FAIL_IF(from.st_dev == to.st_dev && from.st_ino == to.st_ino, err, TERN_E_INVALID,
                   "%s: is what is to be packed", out);
    TN_FAIL_IF(gguf && is_there && S_ISREG(to.st_mode) && to.st_size, err, TERN_E_IO,
               "%s: exists, and no GGUF file is written over another: choose another name", out);
    TN_TRY(tn_outfile_may(out, gguf ? &tn_gguf_new : &tn_pkg_kind_of_file, err));
    if (!is_there || stat(src, &from)) return TERN_OK;
    if (!S_ISDIR(from.st_mode)) return TERN_OK;
    char within[4096];
    const char *slash = strrchr(out, '/'), *name = slash ? slash + 1 : out, *dot = strrchr(name, '.');
    int n = snprintf(within, sizeof within, "%s/%s", src, name);
    bool there = n > 0 && (size_t)n < sizeof within && !stat(within, &from) && from.st_dev == to.st_dev &&
                 from.st_ino == to.st_ino;
    TN_FAIL_IF(there && (!dot || strcmp(dot, ".tern")), err, TERN_E_INVALID,
               "%s: is a file of the model that is to be packed", out);
    return TERN_OK;
}

static tern_status check_options(const tn_pack_options *o, tern_error *err) {
    TN_FAIL_IF(
        o->gguf_form && (o->scheme != TN_SCHEME_GRAM || o->bits != 0 || o->quality > 0 || o->allocation ||
                         o->bits_of_model || o->compress || o->output_int8 || o->head_importance ||
                         o->outliers != TN_OUTLIERS_AUTO),
        err, TERN_E_INVALID,
        "a GGUF file is of one type: what chooses a package's scheme, bits and outputs does not go with it");
    TN_FAIL_IF(!(o->prune_percent >= 0 && o->prune_percent <= 100), err, TERN_E_INVALID,
               "prune %g %%: want 0 to 100", (double)o->prune_percent);
    TN_FAIL_IF(!(o->prune_error >= 0), err, TERN_E_INVALID, "prune error %g: want 0 or more",
               (double)o->prune_error);
    TN_FAIL_IF(!(o->outlier_share >= 0 && o->outlier_share < 0.5f), err, TERN_E_INVALID,
               "outlier share %g: want 0 to 0.5", (double)o->outlier_share);
    TN_FAIL_IF(!(o->output_beta >= 0 && o->output_beta <= 1), err, TERN_E_INVALID,
               "output beta %g: want 0 to 1", (double)o->output_beta);
    TN_FAIL_IF(!(o->compress_rate >= 0 && o->compress_rate <= 4), err, TERN_E_INVALID,
               "compress rate %g: want 0 to 4", (double)o->compress_rate);
    TN_FAIL_IF(o->own_tokens < -1 || o->own_tokens > MOST_OWN_TOKENS, err, TERN_E_INVALID,
               "%d tokens of the model's own: want 0 to %d", o->own_tokens, MOST_OWN_TOKENS);
    TN_FAIL_IF((o->calib_tokens && o->calib_tokens < 64) || o->calib_window < 16, err, TERN_E_INVALID,
               "calibration wants at least 64 tokens in windows of at least 16");
    return TERN_OK;
}

/* Resolves the options, and checks that they go together. */
static tern_status settle(packer *p, tern_error *err) {
    const tn_pack_options *o = p->o;
    bool gram = o->scheme == TN_SCHEME_GRAM, edgeflow = gram || o->scheme == TN_SCHEME_EDGEFLOW;
    p->bits = o->bits != 0 ? o->bits : o->quick ? 6 : edgeflow ? 5 : 8;
    TN_FAIL_IF(!(o->quality >= 0 && o->quality < 1), err, TERN_E_INVALID, "loss %g: want 0 to 1", o->quality);
    TN_FAIL_IF(
        o->quality > 0 && (!gram || o->bits != 0 || o->allocation == TN_ALLOCATE_UNIFORM), err,
        TERN_E_INVALID,
        "a wanted loss chooses the bits of scheme gram; it goes with no others and with no other scheme");
    TN_FAIL_IF(o->quick && (!gram || o->quality > 0), err, TERN_E_INVALID,
               "quick belongs to scheme gram, and goes with no wanted loss");
    bool measured = gram && !(o->quick && p->bits == floor(p->bits));
    p->allocation = o->allocation       ? o->allocation
                    : measured          ? TN_ALLOCATE_LOSS
                    : edgeflow && !gram ? TN_ALLOCATE_RE
                                        : TN_ALLOCATE_UNIFORM;
    bool fits = gram ? p->allocation == TN_ALLOCATE_LOSS || p->allocation == TN_ALLOCATE_UNIFORM
                     : p->allocation != TN_ALLOCATE_LOSS;
    TN_FAIL_IF(gram && o->outliers == TN_OUTLIERS_ON, err, TERN_E_INVALID,
               "scheme gram has no outlier paths; edgeflow and llm-npu have");
    TN_FAIL_IF(!fits, err, TERN_E_INVALID, "%s",
               gram ? "scheme gram allocates bits by loss or uniform"
                    : "allocation by loss belongs to scheme gram");
    TN_FAIL_IF(p->allocation == TN_ALLOCATE_LOSS && p->bits < 2, err, TERN_E_INVALID,
               "%g bits by loss: want 2 to 8", p->bits);
    TN_FAIL_IF(!(p->bits >= 1 && p->bits <= 8), err, TERN_E_INVALID, "%g bits: want 1 to 8", o->bits);
    TN_FAIL_IF(p->allocation != TN_ALLOCATE_RE && p->allocation != TN_ALLOCATE_LOSS &&
                   p->bits != floor(p->bits),
               err, TERN_E_INVALID, "%g bits for everyone: want a whole number", p->bits);
    TN_FAIL_IF(o->bits_of_model && p->allocation != TN_ALLOCATE_RE, err, TERN_E_INVALID,
               "one budget for the whole model needs allocation by relative error (loss has no other)");
    return TERN_OK;
}

/* Gathers everything about the sites, before anything is written. */
static tern_status decide(packer *p, const char *out, tern_error *err) {
    const tn_pack_options *o = p->o;
    bool gram = o->scheme == TN_SCHEME_GRAM;
    tn_calib_text text = {0};
    int32_t window = o->calib_window, n_sites = p->m->program.n_sites;
    if (window > p->m->h.ctx_train) window = p->m->h.ctx_train;
    tern_status st = tn_pack_text(p, &text, err);
    const int32_t *ids = text.ids;
    const size_t n_ids = text.n;
    p->report->n_calib_tokens = n_ids;
    if (st == TERN_OK && gram)
        st = name_beside(p, out, TN_PARTIAL_ENDING, &tn_partial_kind, &p->partial_path);
    if (st == TERN_OK) st = gram ? tn_pack_gram(p, &text, window) : tn_pack_calibrate(p, ids, n_ids, window);
    if (st == TERN_OK && o->head_importance)
        st = name_beside(p, out, ".heads", &tn_heads_journal_kind, &p->journal);
    if (st == TERN_OK && o->head_importance) st = tn_pack_importance(p, ids, n_ids, window);
    if (st == TERN_OK && o->output_int8) st = tn_pack_outputs(p, ids, n_ids, window);
    tn_free(p->ctx, text.ids);
    if (st == TERN_OK && !gram) st = tn_plan_sites(p);
    if (st == TERN_OK && gram) {
        p->report->n_sites = n_sites;
    }
    for (int32_t i = 0; st == TERN_OK && o->scheme == TN_SCHEME_SMOOTHQUANT && i < n_sites; i++) {
        const tn_program_site *site = &p->m->program.sites[i];
        if (site->layer < p->m->h.n_layers && tn_program_source(&p->m->program, i)->kind == TN_OP_NORM)
            st = tn_plan_smooth(p, site->layer, site->kind);
    }
    if (st == TERN_OK && o->scheme == TN_SCHEME_EDGEFLOW) st = tn_plan_edgeflow_clips(p);
    if (st == TERN_OK && o->bits_of_model) st = tn_rows_allocate_model(p, err);
    return st;
}

static void close_packer(packer *p) {
    tn_ctx *ctx = p->ctx;
    tn_pkg_abort(&p->w);
    for (int32_t i = 0; p->plans && i < p->m->program.n_sites; i++) {
        tn_free(ctx, p->plans[i].hot);
        if (!p->made) tn_free(ctx, p->plans[i].smooth);
    }
    for (int32_t i = 0; p->made && i < p->m->program.n_sites; i++) tn_recipe_site_free(ctx, &p->made[i]);
    if (p->m) tn_pack_outputs_free(p);
    tn_rounded_free(ctx, &p->embedding);
    tn_free(ctx, p->made);
    tn_free(ctx, p->plans);
    tn_free(ctx, p->model_bits);
    tn_free(ctx, p->journal);
    tn_free(ctx, p->partial_path);
    if (p->cal.sites) tn_calibration_close(&p->cal);
    tn_head_profile_close(&p->heads);
    tn_model_close(&p->m);
    tn_source_close(&p->src);
    tn_pool_close(&p->pool);
}

static tern_status open_model(packer *p, const char *src, tern_error *err) {
    TN_TRY(tn_source_open(p->ctx, src, &p->src, err));
    const tn_hparams *h = tn_source_hparams(p->src);
    TN_FAIL_IF(h->bidirectional, err, TERN_E_UNSUPPORTED,
               "%s: a model that embeds is not packed: a package reads a text in chunks, and its rows see "
               "all of it; "
               "the file itself runs in INT8 with --scheme int8",
               src);
    const bool kept = h->n_next && tn_package_holds_next(h);
    if (h->n_next && !kept)
        tn_log(p->ctx, TERN_LOG_WARN,
               "the layer of %s that guesses one token further (MTP) is not kept in the package: drafts are "
               "without it (packages hold those of widths that are multiples of 32)",
               src);
    if (tn_source_without_next(p->src)) tn_log(p->ctx, TERN_LOG_WARN, "%s", tn_source_without_next(p->src));
    TN_FAIL_IF(
        h->n_experts && (h->n_ff_exp % TN_EXPERT_CHANNELS || h->n_embd % TN_EXPERT_CHANNELS), err,
        TERN_E_UNSUPPORTED,
        "%s: experts of %d channels in a model of %d: packages hold those that are multiples of %d; tern "
        "run opens the file itself",
        src, h->n_ff_exp, h->n_embd, TN_EXPERT_CHANNELS);
    TN_TRY(tn_model_outline(p->ctx, p->pool, p->src, &p->m, err));
    p->m->h.n_next = kept;
    return TERN_OK;
}

static tern_status write_gguf(packer *p, const char *out, tern_error *err) {
    tn_calib_text text = {0};
    int32_t window = p->o->calib_window < p->m->h.ctx_train ? p->o->calib_window : p->m->h.ctx_train;
    tern_status st = tn_pack_text(p, &text, err);
    p->report->n_calib_tokens = text.n;
    if (st == TERN_OK) st = tn_pack_to_gguf(p, &text, window, out);
    tn_free(p->ctx, text.ids);
    return st;
}

static tern_status open_encoder(void *user, tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    const packer *p = user;
    return tn_tower_open(p->ctx, p->pool, p->o->mmproj, p->m->h.n_embd, scheme, out, err);
}

/* That it is one, and of this model: now, not after the calibration. And whether it computes in INT8, which the first
 * picture would have to wait for. */
static tern_status check_encoder(packer *p, tern_error *err) {
    const tn_tower_judging j = {p->ctx, &p->kern, p->pool, open_encoder, p};
    tn_tower *t = NULL;
    if (!p->o->mmproj) return TERN_OK;
    TN_TRY(open_encoder(p, TN_TOWER_INT8, &t, err));
    p->encoder = tn_tower_fingerprint(t);
    tern_status st = tn_tower_judge(&j, &t, &p->report->encoder, err);
    tn_tower_close(&t);
    p->report->has_encoder = st == TERN_OK;
    return st;
}

tern_status tn_pack(tn_ctx *ctx, const char *src, const char *out, const tn_pack_options *opt,
                    tn_pack_report *report, tern_error *err) {
    tn_pack_report dummy;
    if (!report) report = &dummy;
    *report = (tn_pack_report){0};
    TN_TRY(check_options(opt, err));
    packer p = {.ctx = ctx, .o = opt, .report = report, .err = err, .partial.fd = -1, .source_path = src};
    TN_TRY(settle(&p, err));
    TN_TRY(target(src, out, opt->gguf_form, err)); /* now, not after the calibration */
    tn_kernels_init(&p.kern, tn_cpu_flags(NULL));
    tn_stage_enter(&p.clock, TN_STAGE_OPEN);
    tern_status st = tn_pool_open(ctx, opt->n_threads ? opt->n_threads : tn_cpu_count(), &p.pool, err);
    if (st == TERN_OK) st = open_model(&p, src, err);
    if (st == TERN_OK) report->source_bits = tn_source_bits(p.src);
    if (st == TERN_OK && opt->gguf_form) {
        st = write_gguf(&p, out, err);
    } else {
        if (st == TERN_OK) st = check_encoder(&p, err);
        if (st == TERN_OK) st = decide(&p, out, err);
        tn_stage_enter(&p.clock, TN_STAGE_WRITE);
        if (st == TERN_OK) st = tn_pack_write(&p, out, err);
    }
    tn_stage_enter(&p.clock, TN_STAGE_OPEN);
    memcpy(report->stages, p.clock.spent, sizeof report->stages);
    if (st == TERN_OK && p.journal) unlink(p.journal);
    struct stat sb;
    if (st == TERN_OK && !stat(out, &sb)) report->package_bytes = (uint64_t)sb.st_size;
    tn_partial_close(&p.partial, st == TERN_E_CANCELLED);
    close_packer(&p);
    return st;
}
