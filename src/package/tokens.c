#include "package/tokens.h"

#include "base/status.h"
#include "formats/package.h"
#include "model/gguf_vocab.h"

#include <sys/stat.h>

/* Opens a package's tokenizer and closes p. */
static tern_status from_package(tn_ctx *ctx, tn_pkg *p, const char *path, tn_tokenizer **out,
                                tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(p, TN_PKG_TOKENIZER, -1);
    uint8_t *blob = s ? tn_alloc(ctx, TN_MEM_OTHER, s->size_bytes, 1) : NULL;
    tern_status st = !s      ? tn_fail(err, TERN_E_UNSUPPORTED, "%s: has no tokenizer", path)
                     : !blob ? tn_fail(err, TERN_E_MEMORY, "no memory for the tokenizer")
                             : tn_pkg_read(p, s, blob, err);
    if (st == TERN_OK) st = tn_tokenizer_load(ctx, blob, s->size_bytes, out, err);
    tn_free(ctx, blob);
    tn_pkg_close(&p);
    return st;
}

tern_status tn_tokens_open(tn_ctx *ctx, const char *path, tn_tokenizer **out, tern_error *err) {
    *out = NULL;
    struct stat sb;
    if (!stat(path, &sb) && S_ISDIR(sb.st_mode)) return tn_tokenizer_open_hf(ctx, path, out, err);
    tn_pkg *p;
    TN_TRY(tn_pkg_open_if(ctx, path, &p, err));
    if (p) return from_package(ctx, p, path, out, err);
    tn_gguf *g;
    TN_TRY(tn_gguf_open(ctx, path, &g, err));
    tern_status st = tn_gguf_tokenizer(ctx, g, out, err);
    if (st == TERN_OK && !*out) st = tn_fail(err, TERN_E_UNSUPPORTED, "%s: has no tokenizer", path);
    if (tn_gguf_changed(g)) {
        tn_tokenizer_close(out);
        st = tn_fail(err, TERN_E_IO, "%s: was written to while it was read", path);
    }
    tn_gguf_close(&g);
    return st;
}
