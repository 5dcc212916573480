#include "server/mcp_store.h"

#include "base/status.h"

enum { READ_BYTES = 1 << 20 };

json_t *tn_mcp_sources(const tn_rag_hit *hits, int32_t n) {
    json_t *all = json_array();
    for (int32_t i = 0; i < n; i++) {
        json_t *v = tn_json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:b, s:s}", "path", hits[i].path, "passage",
                                 (int)hits[i].number, "score", (double)hits[i].score, "similarity",
                                 (double)hits[i].similarity, "coverage", (double)hits[i].coverage, "support",
                                 (double)hits[i].support, "cited", (int)hits[i].cited, "text", hits[i].text);
        if (hits[i].reranked) tn_json_set(&v, "relevance_score", tn_json_real((double)hits[i].relevance));
        if (hits[i].line) tn_json_set(&v, "line", json_integer(hits[i].line));
        if (hits[i].page) tn_json_set(&v, "page", json_integer(hits[i].page));
        tn_json_append(&all, v);
    }
    return all;
}

tern_status tn_mcp_store_read(tn_ctx *ctx, tn_store *s, const char *path, int32_t passage, json_t **out,
                              tern_error *err) {
    if (passage) {
        tn_rag_hit *hit = NULL;
        TN_TRY(tn_rag_passage(s, path, passage, &hit, err));
        *out = tn_json_pack("{s:s, s:i, s:s}", "path", hit->path, "passage", (int)hit->number, "text",
                            hit->text);
        tn_rag_hits_free(ctx, &hit, 1);
        return TERN_OK;
    }
    int64_t id = 0;
    char *text = NULL;
    size_t n = 0;
    TN_TRY(tn_rag_id(s, path, &id, err));
    TN_FAIL_IF(!id, err, TERN_E_INVALID, "%s is none of the documents; list_documents tells those there are",
               path);
    TN_TRY(tn_rag_text(s, path, READ_BYTES, &text, &n, err));
    *out = tn_json_pack("{s:s, s:s%, s:b}", "path", path, "text", text, n, "truncated",
                        (int)(n >= READ_BYTES - 4096));
    tn_free(ctx, text);
    return TERN_OK;
}

static bool list_one(void *user, const tn_rag_document *d) {
    tn_json_append(user, tn_json_pack("{s:s, s:I, s:I, s:I}", "path", d->path, "passages",
                                      (json_int_t)d->n_passages, "bytes", (json_int_t)d->n_bytes, "added",
                                      (json_int_t)d->added));
    return true;
}

tern_status tn_mcp_store_list(tn_store *s, json_t **out, tern_error *err) {
    *out = json_array();
    const tern_status st = tn_rag_list(s, list_one, out, err);
    if (st == TERN_OK) return st;
    json_decref(*out);
    *out = NULL;
    return st;
}
