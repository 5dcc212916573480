#include "quant/readback.h"

#include "package/npu_model.h"

#include <stdatomic.h>

/* All threads read sections; one of them reads the tokenizer. */
typedef struct reading {
    tn_ctx *ctx;
    const tn_pkg *pkg;
    tn_tokenizer *tok;
    atomic_bool failed;
    tern_error err; /* of the first thread that failed */
} reading;

static void read_section(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    reading *r = arg;
    if (atomic_load(&r->failed)) return;
    const tn_pkg_section *s = tn_pkg_section_at(r->pkg, (size_t)i_item);
    uint8_t *bytes = tn_alloc(r->ctx, TN_MEM_OTHER, s->size_bytes, 1);
    tern_error err;
    tern_status st = bytes ? tn_pkg_read(r->pkg, s, bytes, &err)
                           : tn_fail(&err, TERN_E_MEMORY, "no memory to read the package back");
    if (st == TERN_OK && s->kind == TN_PKG_TOKENIZER && !r->tok)
        st = tn_tokenizer_load(r->ctx, bytes, s->size_bytes, &r->tok, &err);
    if (st != TERN_OK && !atomic_exchange(&r->failed, true)) r->err = err;
    tn_free(r->ctx, bytes);
}

tern_status tn_pack_read_back(tn_ctx *ctx, tn_pool *pool, const tn_pkg_writer *w, const tn_model *model,
                              tern_error *err) {
    tn_pkg *pkg;
    tn_hparams h = {0};
    char scheme[24], description[64];
    uint64_t n_params = 0;
    TN_TRY(tn_pkg_reopen(w, &pkg, err));
    reading r = {.ctx = ctx, .pkg = pkg};
    tern_status st = tn_package_hparams(ctx, pkg, &h, scheme, description, &n_params, err);
    if (st == TERN_OK) tn_pool_for(pool, (int)tn_pkg_n_sections(pkg), read_section, &r);
    if (st == TERN_OK && atomic_load(&r.failed)) {
        st = r.err.code;
        if (err) *err = r.err;
    }
    const tn_hparams *m = &model->h;
    if (st == TERN_OK && (!r.tok || tn_tokenizer_n_vocab(r.tok) != tn_tokenizer_n_vocab(model->tokenizer) ||
                          h.n_layers != m->n_layers || h.n_embd != m->n_embd || h.n_vocab != m->n_vocab ||
                          h.n_next != m->n_next || n_params != model->n_params))
        st = tn_fail(err, TERN_E_IO, "%s: what was written reads back as another model", tn_pkg_path(pkg));
    tn_tokenizer_close(&r.tok);
    tn_pkg_close(&pkg);
    return st;
}
