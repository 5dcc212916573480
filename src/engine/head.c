#include "engine/head.h"

#include "base/status.h"
#include "draft/draft.h"
#include "engine/beside.h"
#include "model/assistant.h"
#include "model/blocks.h"
#include "model/dflash.h"
#include "model/next.h"
#include "model/source.h"

#include <stdlib.h>
#include <string.h>

/* The file beside the model that its name says to draft for it, to be freed with free; NULL: none, or one of
 * several. An assistant's is only looked for beside a model that there are any for. */
static char *beside(tn_ctx *ctx, const char *of, const tn_hparams *model) {
    static const char *const words[] = {"eagle3", "dflash", "assistant", "mtp-"};
    const int n_words = strncmp(model->arch, "gemma4", 6) ? 2 : 4;
    for (int i = 0; i < n_words; i++) {
        int n;
        char *found = tn_beside_find(of, words[i], &n);
        if (n > 1 && ctx)
            tn_log(ctx, TERN_LOG_WARN,
                   "%s has %d heads that draft (%s) beside it: choose one with draft-head", of, n, words[i]);
        if (n) return found;
    }
    return NULL;
}

/* The file that is wanted, to be freed with free; NULL: none. */
static char *wanted(tn_ctx *ctx, const char *path, const tn_hparams *model, const tern_options *o) {
    uint32_t drafters;
    const char *of_draft, *named = o->draft_head;
    if (tn_draft_parse(o->session.draft, &drafters, &of_draft, NULL) != TERN_OK ||
        !(drafters & TN_DRAFT_HEAD))
        return NULL;
    if (named && !strcmp(named, "none")) return NULL;
    if (named) return strdup(named);
    return beside(ctx, o->beside ? o->beside : path, model);
}

/* Its matrices can be blocks of 8 bits, as those of a quantised model are. */
static bool fits_blocks(const tn_hparams *h) {
    const int32_t block = 32;
    if (h->window_d_head && h->n_heads * h->window_d_head % block) return false;
    return !(h->n_embd % block || h->n_ff % block || h->n_heads * h->d_head % block ||
             h->head.n_target % block);
}

/* Where the file does not say which, they are those that EAGLE-3's authors took. */
static void choose_layers(const tn_hparams *model, const tn_hparams *head, int32_t layers[TN_MAX_TAPS]) {
    const int32_t n = model->n_layers, usual[] = {2, n / 2, n - 3};
    bool said = tn_is_dflash(head);
    for (int32_t i = 0; i < head->head.n_from; i++) said = said || head->head.from[i];
    memcpy(layers, head->head.from, sizeof head->head.from);
    if (!said) memcpy(layers, usual, sizeof usual);
}

/* Do both files mean the same by every token? */
static tern_status check_tokens(const tern_engine *e, const tn_source *src, const char *path,
                                tern_error *err) {
    const tn_tokenizer *a = e->model->tokenizer, *b = tn_source_tokenizer(src);
    for (int32_t id = 0; a && b && id < e->model->h.n_vocab; id++) {
        char x[64], y[64];
        const size_t n = tn_token_bytes(a, id, true, x, sizeof x),
                     k = tn_token_bytes(b, id, true, y, sizeof y);
        TN_FAIL_IF(n != k || memcmp(x, y, n < sizeof x ? n : sizeof x), err, TERN_E_INVALID,
                   "%s: a head of another model: its token %d is another", path, id);
    }
    return TERN_OK;
}

static tern_status check_assistant(const tn_hparams *model, const tn_hparams *head, const char *path,
                                   tern_error *err) {
    const char *differs = tn_assistant_differs(head, model);
    TN_FAIL_IF(differs && !strcmp(differs, "architecture"), err, TERN_E_INVALID,
               "%s: Gemma 4's assistant, which drafts for no model of architecture %s", path, model->arch);
    TN_FAIL_IF(
        differs, err, TERN_E_INVALID,
        "%s: an assistant of another model, by its %s: it is for models %d values wide with %d tokens, KV "
        "heads of %d values (%d with a window of %d); this model is %d wide with %d tokens, %d values (%d "
        "with "
        "a window of %d)",
        path, differs, head->head.n_target, head->n_vocab, head->d_head,
        head->window_d_head ? head->window_d_head : head->d_head, head->window, model->n_embd, model->n_vocab,
        model->d_head, model->window_d_head ? model->window_d_head : model->d_head, model->window);
    return TERN_OK;
}

static tern_status check(const tn_hparams *model, const tn_hparams *head, const char *path, tern_error *err) {
    int32_t layers[TN_MAX_TAPS];
    if (tn_is_assistant(head)) return check_assistant(model, head, path, err);
    TN_FAIL_IF(model->n_streams || model->bidirectional, err, TERN_E_UNSUPPORTED,
               "%s: no head drafts for architecture %s", path, model->arch);
    TN_FAIL_IF(head->head.n_target != model->n_embd, err, TERN_E_INVALID,
               "%s: a head of another model: it reads layers %d values wide, this model's are %d", path,
               head->head.n_target, model->n_embd);
    TN_FAIL_IF(head->n_vocab != model->n_vocab, err, TERN_E_INVALID,
               "%s: a head of another model: its vocabulary has %d tokens, this model's %d", path,
               head->n_vocab, model->n_vocab);
    TN_FAIL_IF(
        (!head->head.own_embd || !head->head.own_out) && head->n_embd != model->n_embd, err, TERN_E_INVALID,
        "%s: a head of another model: it is %d values wide and has no %s of its own, this model is %d wide",
        path, head->n_embd, head->head.own_embd ? "output layer" : "embedding", model->n_embd);
    TN_FAIL_IF(!head->head.own_out && head->head.n_vocab != model->n_vocab, err, TERN_E_FORMAT,
               "%s: %d tokens of an output layer that is not there", path, head->head.n_vocab);
    TN_FAIL_IF(head->head.n_of && head->head.n_of != model->n_layers, err, TERN_E_INVALID,
               "%s: a head of another model: it is for one of %d layers, this model has %d", path,
               head->head.n_of, model->n_layers);
    choose_layers(model, head, layers);
    for (int32_t i = 0; i < head->head.n_from; i++) {
        TN_FAIL_IF(layers[i] == model->n_layers, err, TERN_E_UNSUPPORTED,
                   "%s: it reads what the last layer leaves, which files mean in two ways: not supported",
                   path);
        TN_FAIL_IF(layers[i] < 0 || layers[i] > model->n_layers, err, TERN_E_INVALID,
                   "%s: a head of another model: it reads layer %d, this model has %d", path, layers[i],
                   model->n_layers);
    }
    return TERN_OK;
}

static tern_status open_head(tern_engine *e, const char *path, tern_error *err) {
    tn_ctx *ctx = &e->ctx;
    tn_source *src;
    int32_t layers[TN_MAX_TAPS];
    TN_TRY(tn_source_open_head(ctx, path, &src, err));
    const tn_hparams *h = tn_source_hparams(src);
    const bool quantised = e->npu || e->model->scheme == TN_FLOAT_BLOCKS;
    tern_status st = check(&e->model->h, h, path, err);
    if (st == TERN_OK) st = check_tokens(e, src, path, err);
    if (st == TERN_OK && tn_is_eagle(h)) {
        e->head_ids = tn_alloc(ctx, TN_MEM_WEIGHTS, (size_t)h->head.n_vocab, sizeof *e->head_ids);
        if (!e->head_ids)
            st = tn_fail(err, TERN_E_MEMORY, "no memory for %d tokens of a head", h->head.n_vocab);
    }
    if (st == TERN_OK && e->head_ids) st = tn_source_head_ids(src, e->head_ids, err);
    if (st == TERN_OK)
        st = quantised && fits_blocks(h)
                 ? tn_model_load_q8(ctx, e->pool, src, &e->head, err)
                 : tn_model_load(ctx, e->pool, src, tn_blocks_in_source(src) ? TN_FLOAT_BLOCKS : TN_FLOAT,
                                 &e->head, err);
    if (st == TERN_OK && !tn_is_assistant(h)) {
        choose_layers(&e->model->h, h, layers);
        st = tn_program_tap(&e->model->program, &e->model->h, layers, h->head.n_from, err);
    }
    tn_source_close(&src);
    if (st != TERN_OK) tn_head_close(e);
    return st;
}

tern_status tn_head_open(tern_engine *e, const char *path, const tern_options *o, tern_error *err) {
    char *file = wanted(&e->ctx, path, &e->model->h, o);
    tern_error why = {0};
    if (!file) return TERN_OK;
    tern_status st = open_head(e, file, &why);
    free(file);
    if (st == TERN_OK) return TERN_OK;
    if (!o->draft_head && st != TERN_E_MEMORY && st != TERN_E_CANCELLED) {
        tn_log(&e->ctx, TERN_LOG_WARN, "%s: it is not drafted with", why.message);
        return TERN_OK;
    }
    if (err) *err = why;
    return st;
}

void tn_head_close(tern_engine *e) {
    tn_model_close(&e->head);
    tn_free(&e->ctx, e->head_ids);
    e->head_ids = NULL;
}

tn_head_need tn_head_estimate(tn_ctx *ctx, const char *path, const tn_hparams *model, bool quantised,
                              const tern_options *o, int32_t n_ctx, int n_threads) {
    tn_head_need need = {0};
    char *file = wanted(NULL, path, model, o);
    tn_source *src = NULL;
    if (file && tn_source_open_head(ctx, file, &src, NULL) == TERN_OK) {
        const tn_hparams *h = tn_source_hparams(src);
        if (check(model, h, file, NULL) == TERN_OK) {
            const bool q8 = quantised && fits_blocks(h);
            for (int layer = -1; layer < h->n_layers; layer++)
                for (tn_role r = 0; r < TN_W_N_ROLES; r++) {
                    const uint64_t as_is = tn_model_role_bytes(src, TN_FLOAT_BLOCKS, layer, r);
                    int64_t rows, cols;
                    tn_role_shape(h, layer < 0 ? 0 : layer, r, &rows, &cols);
                    const uint64_t as_blocks = (uint64_t)rows * (uint64_t)cols / 32 * 34;
                    need.weight_bytes += q8 && rows > 1 && as_is > as_blocks ? as_blocks : as_is;
                }
            need.n_taps = h->head.n_from;
            if (tn_is_dflash(h)) {
                need.kv_bytes = tn_dflash_bytes_of(h, n_ctx);
                need.work_bytes = tn_dflash_work_bytes(h, n_ctx, n_threads);
            } else if (tn_is_assistant(h)) need.work_bytes = tn_assistant_work_bytes(h, n_ctx, n_threads);
            else {
                need.kv_bytes = tn_next_bytes_of(h, n_ctx);
                need.work_bytes = tn_next_work_bytes(h, n_ctx, n_threads);
            }
        }
    }
    tn_source_close(&src);
    free(file);
    return need;
}
