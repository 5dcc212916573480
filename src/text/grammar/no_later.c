/* Replaces schema_later.c in minimal builds (TERN_MINIMAL): keywords that the rules cannot enforce are
 * refused. */
#include "text/grammar/grammar.h"
#include "text/grammar/schema_impl.h"

bool tn_schema_checks(void) { return false; }
void tn_sc_later_ready(tn_sc *c) { (void)c; }
unsigned tn_sc_later_types(tn_sc *c, const tn_goal *g, unsigned types) { return (void)c, (void)g, types; }
tn_gx tn_sc_later_string(tn_sc *c, const tn_goal *g) { return (void)c, (void)g, TN_GX_NEVER; }
tn_gx tn_sc_later_members(tn_sc *c, const tn_goal *g) { return (void)c, (void)g, TN_GX_NEVER; }
bool tn_sc_later_key(tn_sc *c, const tn_goal *g, const char *const *names, size_t n, tn_gx *key) {
    return (void)c, (void)g, (void)names, (void)n, (void)key, false;
}
bool tn_schema_fits(tn_ctx *ctx, const char *schema, size_t n_schema, const char *text, size_t n_bytes) {
    return (void)ctx, (void)schema, (void)n_schema, (void)text, (void)n_bytes, false;
}
