/* What is told of the models: their list, and the figures of /metrics. */
#include "engine/engine.h"
#include "server/models_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tn_counts_add(tn_queue_counts *to, const tn_queue_counts *n) {
    to->n_done += n->n_done;
    to->n_failed += n->n_failed;
    to->n_cancelled += n->n_cancelled;
    to->prompt_tokens += n->prompt_tokens;
    to->cached_tokens += n->cached_tokens;
    to->output_tokens += n->output_tokens;
    to->prefill_s += n->prefill_s;
    to->decode_s += n->decode_s;
    to->n_chunks += n->n_chunks;
    to->n_steps += n->n_steps;
    to->n_first += n->n_first;
    to->first_s += n->first_s;
    to->waiting += n->waiting;
    to->running += n->running;
    if (n->most_together > to->most_together) to->most_together = n->most_together;
    if (n->most_chunks_apart > to->most_chunks_apart) to->most_chunks_apart = n->most_chunks_apart;
}

/* With the lock. */
static tn_queue_counts counts_of(const tn_served *k) {
    tn_queue_counts n = k->before;
    if (k->state != TN_SERVED_READY) return n;
    const tn_queue_counts now = tn_queue_count(k->q);
    tn_counts_add(&n, &now);
    return n;
}

tn_queue_counts tn_models_counts(tn_models *m) {
    tn_queue_counts sum = {0};
    pthread_mutex_lock(&m->mu);
    for (const tn_served *k = m->first; k; k = k->next) {
        const tn_queue_counts n = counts_of(k);
        tn_counts_add(&sum, &n);
    }
    sum.waiting += m->n_waiting;
    pthread_mutex_unlock(&m->mu);
    return sum;
}

uint64_t tn_models_memory(tn_models *m) {
    pthread_mutex_lock(&m->mu);
    uint64_t n = m->held_bytes;
    pthread_mutex_unlock(&m->mu);
    return n;
}

/* What is known of a model while it is in memory. */
static json_t *details_of(const tn_served *k) {
    tern_model_info info;
    tern_engine_info(k->e, &info);
    return tn_json_pack("{s:s, s:s, s:I, s:i, s:I, s:i, s:i, s:b, s:b}", "arch", info.arch, "scheme",
                        info.scheme, "n_params", (json_int_t)info.n_params, "n_layers", (int)info.n_layers,
                        "weight_bytes", (json_int_t)info.weight_bytes, "ctx_train", (int)info.ctx_train,
                        "n_ctx", (int)tn_queue_opts(k->q)->n_ctx, "package", k->e->npu != NULL, "chat",
                        tern_has_chat_template(k->e));
}

static json_t *adapters_of(const tn_served *k) {
    json_t *list = json_array();
    const char *name;
    for (size_t i = 0; (name = tern_engine_lora(k->e, i)); i++)
        tn_json_append(&list, tn_json_string(name, strlen(name)));
    return list;
}

/* With the lock. */
static json_t *entry_of(const tn_served *k) {
    static const char *const states[TN_SERVED_N] = {"away", "loading", "ready"};
    bool failed = k->state == TN_SERVED_AWAY && k->why.code != TERN_OK;
    json_t *v = tn_json_pack("{s:s, s:s, s:I, s:s, s:s, s:b, s:I, s:I, s:I}", "id", k->name, "object",
                             "model", "created", (json_int_t)k->made_s, "owned_by", "tern", "state",
                             failed ? "failed" : states[k->state], "default", k == k->all->deflt,
                             "file_bytes", (json_int_t)k->n_bytes, "memory_bytes", (json_int_t)k->held_bytes,
                             "loads", (json_int_t)k->n_loads);
    if (failed) tn_json_set(&v, "error", tn_json_string(k->why.message, strlen(k->why.message)));
    if (k->n_loads) tn_json_set(&v, "load_s", tn_json_real(k->load_s));
    double first_s = k->state == TN_SERVED_READY ? tn_queue_count(k->q).opened_first_s : k->first_s;
    if (first_s > 0) tn_json_set(&v, "first_token_s", tn_json_real(first_s));
    if (k->state == TN_SERVED_READY) tn_json_set(&v, "meta", details_of(k));
    if (k->state == TN_SERVED_READY) tn_json_set(&v, "adapters", adapters_of(k));
    return v;
}

json_t *tn_models_list(tn_models *m, const char *name) {
    const tn_served *one = name ? tn_models_find(m, name) : NULL;
    if (name && !one) return NULL;
    json_t *list = name ? NULL : json_array();
    pthread_mutex_lock(&m->mu);
    if (one) list = entry_of(one);
    for (const tn_served *k = m->first; !name && k; k = k->next) tn_json_append(&list, entry_of(k));
    pthread_mutex_unlock(&m->mu);
    return list;
}

/* ---- Prometheus -------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void put(tn_bytes *b, const char *fmt, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n < sizeof line) (void)tn_bytes_add(b, line, (size_t)n);
}

/* A name as the value of a label. */
static void put_label(tn_bytes *b, const char *metric, const char *name) {
    put(b, "%s{model=\"", metric);
    for (const char *p = name; *p; p++) {
        if (*p == '\n') put(b, "\\n");
        else put(b, *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
    }
    put(b, "\"} ");
}

static void put_models(const tn_models *m, tn_bytes *b) {
    static const struct {
        const char *name, *type;
    } all[] = {{"tern_model_ready", "gauge"},         {"tern_model_memory_bytes", "gauge"},
               {"tern_model_loads_total", "counter"}, {"tern_model_unloads_total", "counter"},
               {"tern_model_load_seconds", "gauge"},  {"tern_model_cold_first_token_seconds", "gauge"}};
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++) {
        put(b, "# TYPE %s %s\n", all[i].name, all[i].type);
        for (const tn_served *k = m->first; k; k = k->next) {
            bool ready = k->state == TN_SERVED_READY;
            double first_s = ready ? tn_queue_count(k->q).opened_first_s : k->first_s;
            if (i >= 4 && !k->n_loads) continue;
            if (i == 5 && first_s <= 0) continue;
            put_label(b, all[i].name, k->name);
            if (i == 4) put(b, "%.6f\n", k->load_s);
            else if (i == 5) put(b, "%.6f\n", first_s);
            else
                put(b, "%" PRIu64 "\n",
                    i == 0   ? (uint64_t)ready
                    : i == 1 ? k->held_bytes
                    : i == 2 ? k->n_loads
                             : k->n_unloads);
        }
    }
}

char *tn_models_metrics(tn_models *m) {
    const tn_queue_counts n = tn_models_counts(m);
    tn_bytes b = {0};
    put(&b,
        "# TYPE tern_requests_total counter\n"
        "tern_requests_total{result=\"done\"} %" PRIu64 "\ntern_requests_total{result=\"failed\"} %" PRIu64
        "\ntern_requests_total{result=\"cancelled\"} %" PRIu64 "\n",
        n.n_done, n.n_failed, n.n_cancelled);
    put(&b,
        "# TYPE tern_prompt_tokens_total counter\ntern_prompt_tokens_total %" PRIu64
        "\n# TYPE tern_cached_tokens_total counter\ntern_cached_tokens_total %" PRIu64
        "\n# TYPE tern_output_tokens_total counter\ntern_output_tokens_total %" PRIu64 "\n",
        n.prompt_tokens, n.cached_tokens, n.output_tokens);
    put(&b,
        "# TYPE tern_prefill_seconds_total counter\ntern_prefill_seconds_total %.6f\n"
        "# TYPE tern_decode_seconds_total counter\ntern_decode_seconds_total %.6f\n"
        "# TYPE tern_first_token_seconds summary\ntern_first_token_seconds_sum %.6f\n"
        "tern_first_token_seconds_count %" PRIu64 "\n",
        n.prefill_s, n.decode_s, n.first_s, n.n_first);
    put(&b,
        "# TYPE tern_requests_waiting gauge\ntern_requests_waiting %d\n"
        "# TYPE tern_requests_running gauge\ntern_requests_running %d\n",
        n.waiting, n.running);
    pthread_mutex_lock(&m->mu);
    put_models(m, &b);
    pthread_mutex_unlock(&m->mu);
    return b.p;
}
