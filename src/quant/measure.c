/* quant/measure.c - the model over the calibration text, for the papers' schemes: what every site's inputs
 * look like. */
#include "base/status.h"
#include "quant/builtin_corpus.h"
#include "quant/packer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LARGE = 1000 * 1000 * 1000
}; /* parameters; a layer's inputs are kept of some 2000 tokens then, not of all */

tern_status tn_pack_ids(packer *p, int32_t **ids, size_t *n, tern_error *err) {
    TN_FAIL_IF(!p->m->tokenizer, err, TERN_E_UNSUPPORTED,
               "the model has no tokenizer: it cannot be calibrated on text");
    int32_t most = p->o->calib_tokens ? p->o->calib_tokens : p->m->n_params > LARGE ? 2048 : 4096;
    const char *text = tn_builtin_corpus;
    char *file_text = NULL;
    size_t n_bytes = strlen(text);
    if (p->o->calib_path) {
        FILE *f = fopen(p->o->calib_path, "rb");
        TN_FAIL_IF(!f, err, TERN_E_IO, "%s: cannot read: %s", p->o->calib_path, strerror(errno));
        size_t cap = (size_t)most * 16 + 1; /* enough text for the tokens wanted */
        file_text = malloc(cap);
        n_bytes = file_text ? fread(file_text, 1, cap - 1, f) : 0;
        int failed = ferror(f) ? errno : 0;
        fclose(f);
        TN_FAIL_IF(!file_text, err, TERN_E_MEMORY, "no memory for the calibration corpus");
        if (failed) {
            free(file_text);
            return tn_fail(err, TERN_E_IO, "%s: cannot read: %s", p->o->calib_path, strerror(failed));
        }
        file_text[n_bytes] = 0;
        while (n_bytes && ((unsigned char)file_text[n_bytes - 1] & 0xc0) == 0x80)
            n_bytes--; /* no half character at the end */
        text = file_text;
    }
    size_t cap = n_bytes + 16;
    *ids = tn_alloc(p->ctx, TN_MEM_OTHER, cap, sizeof **ids);
    tern_status st = *ids ? tn_tokenize(p->m->tokenizer, text, n_bytes, true, true, *ids, cap, n, err)
                          : tn_fail(err, TERN_E_MEMORY, "no memory for the calibration corpus");
    free(file_text);
    if (st != TERN_OK) return st;
    if (*n > (size_t)most) *n = (size_t)most;
    TN_FAIL_IF(*n < 64, err, TERN_E_INVALID, "the calibration corpus has %zu tokens, at least 64 are needed",
               *n);
    return TERN_OK;
}

/* The layer's inputs are measured, with edgeflow also behind smoothing; nothing is decided that other layers
 * have a say in. */
static tern_status calibrate_layer(packer *p, tn_corpus *corpus, int layer) {
    bool smooth = p->o->scheme == TN_SCHEME_EDGEFLOW;
    double share = (double)p->o->outlier_share;
    TN_TRY(tn_corpus_begin_layer(corpus, layer, p->err));
    tn_calibrate_layer(&p->cal, corpus, layer, share, tn_head_profile_observe, &p->heads, !smooth);
    tern_status st = TERN_OK;
    int32_t first, n = tn_program_layer_sites(&p->m->program, layer, &first);
    const tn_program_site *sites = p->m->program.sites;
    for (int32_t i = first; i < first + n && smooth && st == TERN_OK; i++)
        st = tn_plan_edgeflow(p, layer, sites[i].kind);
    if (smooth && st == TERN_OK) {
        const float *divide_by[TN_N_SITES] = {0};
        for (int32_t i = first; i < first + n; i++) divide_by[sites[i].kind] = p->plans[i].smooth;
        tn_calibrate_smoothed(&p->cal, corpus, layer, divide_by, share, true);
    }
    tn_corpus_end_layer(corpus, layer);
    return st;
}

tern_status tn_pack_by_layer(packer *p, const int32_t *ids, size_t n_ids, int32_t window, const char *stage,
                             tern_status (*layer)(packer *p, tn_corpus *corpus, int layer),
                             tn_corpus *corpus) {
    *corpus = (tn_corpus){.kern = &p->kern,
                          .pool = p->pool,
                          .src = p->src,
                          .m = p->m,
                          .ids = ids,
                          .n_tok = n_ids,
                          .window = window};
    tern_status st = tn_corpus_open(corpus, p->err);
    for (int i = 0; i < p->m->h.n_layers && st == TERN_OK; i++) {
        st = layer(p, corpus, i);
        if (st == TERN_OK && !tn_progress(p->ctx, stage, (i + 1.0) / p->m->h.n_layers))
            st = tn_fail(p->err, TERN_E_CANCELLED, "calibration was cancelled");
    }
    return st;
}

tern_status tn_pack_calibrate(packer *p, const int32_t *ids, size_t n_ids, int32_t window) {
    enum { HEAD_TOKENS = 2048 }; /* enough for a mean of maxima */
    size_t n_sites = (size_t)p->m->program.n_sites;
    p->plans = tn_calloc(p->ctx, TN_MEM_OTHER, n_sites, sizeof *p->plans);
    TN_FAIL_IF(!p->plans, p->err, TERN_E_MEMORY, "no memory to plan %zu sites", n_sites);
    TN_TRY(tn_calibration_open(p->ctx, &p->m->program, &p->cal, p->err));
    TN_TRY(tn_head_profile_open(p->ctx, &p->m->h, HEAD_TOKENS, &p->heads, p->err));
    tn_corpus corpus;
    tern_status st = tn_pack_by_layer(p, ids, n_ids, window, "calibrate", calibrate_layer, &corpus);
    if (st == TERN_OK) tn_calibrate_lm_head(&p->cal, &corpus, (double)p->o->outlier_share);
    tn_corpus_close(&corpus);
    return st;
}

/* The whole model, for as long as it takes. Its weights are in 8 bits, with a scale of 32, as are the rows that meet
 * them: what a head is worth is a difference of two losses of one model, and both are of this one. A process that
 * is killed at it goes on where it was. */
tern_status tn_pack_importance(packer *p, const int32_t *ids, size_t n_ids, int32_t window) {
    tn_model *m = NULL;
    tern_status st = tn_model_load_q8(p->ctx, p->pool, p->src, &m, p->err);
    if (st == TERN_OK)
        st = tn_head_profile_importance(&p->heads, m, &p->kern, p->pool, ids,
                                        n_ids < (size_t)window ? (int32_t)n_ids : window, p->journal, p->err);
    tn_model_close(&m);
    return st;
}
