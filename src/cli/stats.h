/* cli/stats.h - what a session did, as run and ask report it. */
#ifndef TN_CLI_STATS_H
#define TN_CLI_STATS_H

#include "base/machine.h"
#include "measure/explain.h"
#include "model/attn_times.h"
#include "session/stats.h"

#include <jansson.h>

json_t *cli_prefill_json(const tn_stats *t);
json_t *cli_attention_json(const tn_stats *t); /* sparse attention */
json_t *cli_switching_json(const tn_stats *t); /* devices that hold one form of a graph: t->n_switched > 0 */
json_t *cli_experts_json(const tn_stats *t);   /* experts on demand: t->experts_bytes > 0 */
void cli_print_attn_times(const tn_attn_times *t); /* on standard output */
/* One line for a person: what was answered, how fast, after how long it began, and in how much memory. */
void cli_stats_line(int32_t n_tokens, double tokens_per_second, double first_s);
void cli_prefill_print(const tn_stats *t);
json_t *cli_power_json(const tn_power_total *t);
void cli_power_print(
    const tn_power_total *t); /* on standard error; nothing where the machine tells nothing */
/* Puts power and temperature into the session's trace, where it has one. */
tern_status cli_power_trace(const tn_power *p, const tern_session *s, tern_error *err);
/* Every mechanism of measure/explain.h, of what the session did since the mark; NULL: since it was opened. */
json_t *cli_explain_json(const tern_session *s, const tn_explain_mark *since);
void cli_explain_print(const tern_session *s, const tn_explain_mark *since); /* on standard error */

#endif
