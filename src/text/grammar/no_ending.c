/* Replaces ending.c in minimal builds (TERN_MINIMAL): a limit simply cuts the text. */
#include "base/status.h"
#include "text/grammar/ending.h"
#include "text/grammar/grammar.h"

void tn_ending_close(tn_ending **e) { (void)e; }
void tn_ending_forget(tn_ending *e) { (void)e; }

tern_status tn_grammar_take_within(tn_grammar *g, int32_t *id, size_t left, bool *forced, tern_error *err) {
    (void)left, (void)forced;
    TN_FAIL_IF(!tn_grammar_take(g, *id), err, TERN_E_INVALID,
               "the model's logits leave no token that the grammar allows");
    return TERN_OK;
}
