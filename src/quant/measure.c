/* quant/measure.c - runs the model over the calibration text, for the papers' schemes: statistics of every
 * site's inputs. */
#include "base/status.h"
#include "quant/builtin_corpus.h"
#include "quant/own_words.h"
#include "quant/packer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LARGE =
        1000 * 1000 *
        1000,   /* from this many parameters on a layer's inputs are kept for some 2000 tokens, not for all */
    OWN = 2048, /* tokens that the model writes itself; half of that for large models */
    SHORTEST = 64,  /* of a stream */
    SURPRISE = 1024 /* tokens of a text that tell whether a model can read it */
};

/* A model whose surprise per byte of a text exceeds this, in nats, cannot read it: it knows little more
 * than the frequency of letters. */
static const double READS = 2.2;

/* Tokens of the text; a large model captures the inputs of this many. */
static size_t text_tokens(const packer *p, size_t n_own) {
    if (p->o->calib_tokens) return (size_t)p->o->calib_tokens;
    if (p->m->n_params <= LARGE) return 4096;
    return n_own < 1024 ? 2048 - n_own : 1024;
}

static size_t own_tokens(const packer *p) {
    const tn_pack_options *o = p->o;
    if (o->own_tokens >= 0) return (size_t)o->own_tokens;
    if (o->scheme != TN_SCHEME_GRAM || o->calib_path) return 0;
    size_t n = p->m->n_params > LARGE ? OWN / 2 : OWN;
    return o->calib_tokens && (size_t)o->calib_tokens < n ? (size_t)o->calib_tokens : n;
}

/* ---- the user's text, or the built-in one ------------------------------------------------------------- */

static tern_status read_file(const packer *p, size_t most_bytes, char **text, size_t *n_bytes,
                             tern_error *err) {
    FILE *f = fopen(p->o->calib_path, "rb");
    TN_FAIL_IF(!f, err, TERN_E_IO, "%s: cannot read: %s", p->o->calib_path, strerror(errno));
    *text = malloc(most_bytes + 1);
    *n_bytes = *text ? fread(*text, 1, most_bytes, f) : 0;
    int failed = ferror(f) ? errno : 0;
    fclose(f);
    TN_FAIL_IF(!*text, err, TERN_E_MEMORY, "no memory for the calibration corpus");
    if (failed) {
        free(*text);
        return tn_fail(err, TERN_E_IO, "%s: cannot read: %s", p->o->calib_path, strerror(failed));
    }
    while (*n_bytes && ((unsigned char)(*text)[*n_bytes - 1] & 0xc0) == 0x80)
        (*n_bytes)--; /* do not end inside a character */
    return TERN_OK;
}

/* At most this many tokens of it, with the bytes per token. */
static tern_status tokens_of_text(const packer *p, size_t most, int32_t **ids, size_t *n,
                                  double *bytes_a_token, tern_error *err) {
    const char *text = tn_builtin_corpus;
    char *file_text = NULL;
    size_t n_bytes = strlen(text);
    if (p->o->calib_path)
        TN_TRY(read_file(p, most * 16 /* enough for the tokens wanted */, &file_text, &n_bytes, err));
    size_t cap = n_bytes + 16;
    *ids = tn_alloc(p->ctx, TN_MEM_OTHER, cap, sizeof **ids);
    tern_status st = *ids ? tn_tokenize(p->m->tokenizer, file_text ? file_text : text, n_bytes, true, true,
                                        *ids, cap, n, err)
                          : tn_fail(err, TERN_E_MEMORY, "no memory for the calibration corpus");
    free(file_text);
    *bytes_a_token = st == TERN_OK && *n ? (double)n_bytes / (double)*n : 1;
    if (st == TERN_OK && *n > most) *n = most;
    return st;
}

/* ---- what the model writes ---------------------------------------------------------------------------- */

static bool writing(void *user, double fraction) {
    return tn_progress(((packer *)user)->ctx, "sample", fraction);
}

/* While the model writes, it is in memory in 8 bits. */
static bool has_memory_to_write(const packer *p) {
    const double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    return (double)p->m->n_params * 1.1 < bytes / 2;
}

/* At least n tokens written by the model, in as many streams as run together, and its surprise per token
 * of `text`. */
static tern_status own_words(packer *p, size_t n, const tn_calib_text *text, tn_own_words *out, double *nats,
                             tern_error *err) {
    tn_model *m = NULL;
    int32_t most = p->o->calib_window < p->m->h.ctx_train ? p->o->calib_window : p->m->h.ctx_train;
    int32_t window = (int32_t)(n / TN_MAX_TEXTS), n_streams = TN_MAX_TEXTS;
    window = window < SHORTEST ? SHORTEST : window;
    window = window > most ? most : window;
    while ((size_t)n_streams * (size_t)window < n) n_streams += 2;
    TN_TRY(tn_model_load_q8(p->ctx, p->pool, p->src, &m, err));
    const tn_own_words_args a = {.ctx = p->ctx,
                                 .pool = p->pool,
                                 .kern = &p->kern,
                                 .m = m,
                                 .t = p->m->tokenizer,
                                 .n_streams = n_streams,
                                 .window = window,
                                 .progress = writing,
                                 .user = p};
    tern_status st = tn_own_words_write(&a, out, err);
    if (st == TERN_OK)
        st = tn_own_words_surprise(&a, text->ids, text->n < SURPRISE ? text->n : SURPRISE, nats, err);
    tn_model_close(&m);
    return st;
}

tern_status tn_pack_text(packer *p, tn_calib_text *out, tern_error *err) {
    const tn_pack_options *o = p->o;
    size_t n_own = own_tokens(p);
    const size_t most = text_tokens(p, n_own);
    tn_own_words own = {0};
    tn_calib_text text = {0};
    double nats = 0, bytes_a_token = 1;
    TN_FAIL_IF(!p->m->tokenizer, err, TERN_E_UNSUPPORTED,
               "the model has no tokenizer: it cannot be calibrated on text");
    tern_status st = tokens_of_text(p, most, &text.ids, &text.n, &bytes_a_token, err);
    if (st == TERN_OK && n_own && !has_memory_to_write(p)) {
        tn_log(p->ctx, TERN_LOG_WARN,
               "this machine's memory is too small for the model to write text of its own: it is calibrated "
               "on %s alone",
               o->calib_path ? o->calib_path : "the built-in text");
        n_own = 0;
    }
    if (st == TERN_OK && n_own) st = own_words(p, n_own, &text, &own, &nats, err);
    p->report->surprise = nats / bytes_a_token;
    p->report->n_own_tokens = own.n_free + own.n_chat;
    p->report->text_not_read = !o->calib_path && p->report->surprise > READS;
    *out = (tn_calib_text){
        .n = own.n_free + own.n_chat + text.n,
        .n_of = {[TN_WORDS_OWN] = own.n_free, [TN_WORDS_CHAT] = own.n_chat, [TN_WORDS_TEXT] = text.n}};
    if (st == TERN_OK && out->n < 64)
        st = tn_fail(err, TERN_E_INVALID, "the calibration corpus has %zu tokens, at least 64 are needed",
                     out->n);
    if (st == TERN_OK) out->ids = tn_alloc(p->ctx, TN_MEM_OTHER, out->n, sizeof *out->ids);
    if (st == TERN_OK && !out->ids) st = tn_fail(err, TERN_E_MEMORY, "no memory for the calibration corpus");
    if (st == TERN_OK) {
        if (own.ids) memcpy(out->ids, own.ids, (own.n_free + own.n_chat) * sizeof *out->ids);
        memcpy(out->ids + own.n_free + own.n_chat, text.ids, text.n * sizeof *out->ids);
    }
    tn_own_words_free(&own);
    tn_free(p->ctx, text.ids);
    return st;
}

/* ---- layers -------------------------------------------------------------------------------------------- */

/* Measures the layer's inputs, with edgeflow also after smoothing. No decision depends on other layers. */
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

/* Measures the whole model. Weights and rows have 8 bits with a scale for 32 values: a head's importance
 * is the difference of two losses of the same model, so that does not matter. A killed process resumes. */
tern_status tn_pack_importance(packer *p, const int32_t *ids, size_t n_ids, int32_t window) {
    tn_model *m = NULL;
    tern_status st = tn_model_load_q8(p->ctx, p->pool, p->src, &m, p->err);
    if (st == TERN_OK)
        st = tn_head_profile_importance(&p->heads, m, &p->kern, p->pool, ids,
                                        n_ids < (size_t)window ? (int32_t)n_ids : window, p->journal, p->err);
    tn_model_close(&m);
    return st;
}
