/* server/mcp_store.h - an index of documents as the tools of mcp.h. */
#ifndef TN_SERVER_MCP_STORE_H
#define TN_SERVER_MCP_STORE_H

#include "base/json.h"
#include "documents/rag.h"

/* Passages as programs read them: [{path, passage, line?, page?, score, similarity, coverage, relevance_score?, support, cited,
 * text}]; NULL: no memory. */
json_t *tn_mcp_sources(const tn_rag_hit *hits, int32_t n);

/* The tools of that name. *out may be NULL for want of memory. */
tern_status tn_mcp_store_read(tn_ctx *ctx, tn_store *s, const char *path, int32_t passage, json_t **out,
                              tern_error *err);
tern_status tn_mcp_store_list(tn_store *s, json_t **out, tern_error *err);

#endif
