#include "quant/readback.h"

#include "package/npu_model.h"

tern_status tn_pack_read_back(tn_ctx *ctx, const tn_pkg_writer *w, const tn_model *model, tern_error *err) {
    tn_pkg *pkg;
    tn_hparams h = {0};
    char scheme[24], description[64];
    uint64_t n_params = 0;
    tn_tokenizer *tok = NULL;
    TN_TRY(tn_pkg_reopen(w, &pkg, err));
    tern_status st = tn_package_hparams(ctx, pkg, &h, scheme, description, &n_params, err);
    for (size_t i = 0; i < tn_pkg_n_sections(pkg) && st == TERN_OK; i++) {
        const tn_pkg_section *s = tn_pkg_section_at(pkg, i);
        uint8_t *bytes = tn_alloc(ctx, TN_MEM_OTHER, s->size_bytes, 1);
        st = bytes ? tn_pkg_read(pkg, s, bytes, err)
                   : tn_fail(err, TERN_E_MEMORY, "no memory to read the package back");
        if (st == TERN_OK && s->kind == TN_PKG_TOKENIZER)
            st = tn_tokenizer_load(ctx, bytes, s->size_bytes, &tok, err);
        tn_free(ctx, bytes);
    }
    const tn_hparams *m = &model->h;
    if (st == TERN_OK && (!tok || tn_tokenizer_n_vocab(tok) != tn_tokenizer_n_vocab(model->tokenizer) ||
                          h.n_layers != m->n_layers || h.n_embd != m->n_embd || h.n_vocab != m->n_vocab ||
                          n_params != model->n_params))
        st = tn_fail(err, TERN_E_IO, "%s: what was written reads back as another model", tn_pkg_path(pkg));
    tn_tokenizer_close(&tok);
    tn_pkg_close(&pkg);
    return st;
}
