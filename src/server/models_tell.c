/* What is told of the models: their list, and the figures of /metrics. */
#include "engine/sight.h"
#include "server/models_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_times(tn_times *to, const tn_times *t) {
    for (int i = 0; i <= TN_TIMES; i++) to->n[i] += t->n[i];
    to->count += t->count;
    to->sum_s += t->sum_s;
}

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
    to->n_pauses += n->n_pauses;
    add_times(&to->first, &n->first);
    add_times(&to->between, &n->between);
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
    json_t *v = tn_json_pack("{s:s, s:s, s:I, s:i, s:I, s:i, s:i, s:b, s:b}", "arch", info.arch, "scheme",
                             info.scheme, "n_params", (json_int_t)info.n_params, "n_layers",
                             (int)info.n_layers, "weight_bytes", (json_int_t)info.weight_bytes, "ctx_train",
                             (int)info.ctx_train, "n_ctx", (int)tn_queue_opts(k->q)->n_ctx, "package",
                             k->e->npu != NULL, "chat", tern_has_chat_template(k->e));
    tern_error why = {0};
    const bool sees = tn_sight_can(k->e, &why), unknown = !sees && why.code == TERN_E_MEMORY;
    tn_json_set(&v, "sees", unknown ? NULL : json_boolean(sees));
    tn_queue_tell_from(tn_queue_opts(k->q), &v);
    return v;
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
    if (k->state == TN_SERVED_READY && k->idle_ns >= 0)
        tn_json_set(&v, "idle_s", json_integer(k->idle_ns / 1000000000));
    return v;
}

json_t *tn_models_list(tn_models *m, const char *name) {
    if (!name || !tn_models_find(m, name)) tn_models_look_again(m);
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

static void put_head(tn_bytes *b, const char *name, const char *type, const char *help) {
    put(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_models(const tn_models *m, tn_bytes *b) {
    static const struct {
        const char *name, *type, *help;
    } all[] = {{"tern_model_ready", "gauge", "Whether the model is in memory."},
               {"tern_model_memory_bytes", "gauge", "Memory counted for the model."},
               {"tern_model_loads_total", "counter", "Times that the model was loaded."},
               {"tern_model_unloads_total", "counter", "Times that it left memory."},
               {"tern_model_load_seconds", "gauge", "What the last loading took."},
               {"tern_model_cold_first_token_seconds", "gauge",
                "From the request that loaded the model to its first token."}};
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++) {
        put_head(b, all[i].name, all[i].type, all[i].help);
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

static void put_count(tn_bytes *b, const char *name, const char *help, uint64_t n) {
    put_head(b, name, "counter", help);
    put(b, "%s %" PRIu64 "\n", name, n);
}

static void put_number(tn_bytes *b, const char *name, const char *type, const char *help, double x) {
    put_head(b, name, type, help);
    put(b, "%s %.9g\n", name, x);
}

/* A class counts those before it too. */
static void put_times(tn_bytes *b, const char *name, const char *help, const tn_times *t) {
    uint64_t n = 0;
    put_head(b, name, "histogram", help);
    for (int i = 0; i < TN_TIMES; i++)
        put(b, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, tn_times_s[i], n += t->n[i]);
    put(b, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %.6f\n%s_count %" PRIu64 "\n", name, t->count, name,
        t->sum_s, name, t->count);
}

/* Of the models in memory. */
static void put_pictures(const tn_models *m, tn_bytes *b) {
    tn_sight_counts all = {0};
    for (const tn_served *k = m->first; k; k = k->next) {
        if (k->state != TN_SERVED_READY) continue;
        const tn_sight_counts c = tn_sight_count(k->e);
        all.encoded += c.encoded;
        all.in_memory += c.in_memory;
        all.on_disk += c.on_disk;
        all.row_bytes += c.row_bytes;
        all.encoder_bytes += c.encoder_bytes;
        all.encode_s += c.encode_s;
    }
    put_head(b, "tern_pictures_views_total", "counter", "Views of pictures, by where their rows came from.");
    put(b,
        "tern_pictures_views_total{from=\"encoder\"} %" PRIu64
        "\ntern_pictures_views_total{from=\"memory\"} %" PRIu64
        "\ntern_pictures_views_total{from=\"disk\"} %" PRIu64 "\n",
        all.encoded, all.in_memory, all.on_disk);
    put_number(b, "tern_pictures_encode_seconds_total", "counter", "Time in which views were encoded.",
               all.encode_s);
    put_number(b, "tern_pictures_memory_bytes", "gauge", "Memory of rows of pictures.",
               (double)all.row_bytes);
    put_number(b, "tern_pictures_encoder_bytes", "gauge", "Memory of the weights of encoders of pictures.",
               (double)all.encoder_bytes);
}

char *tn_models_metrics(tn_models *m) {
    const tn_queue_counts n = tn_models_counts(m);
    tn_bytes b = {0};
    put_head(&b, "tern_requests_total", "counter", "Requests that are over, by how they ended.");
    put(&b,
        "tern_requests_total{result=\"done\"} %" PRIu64 "\ntern_requests_total{result=\"failed\"} %" PRIu64
        "\ntern_requests_total{result=\"cancelled\"} %" PRIu64 "\n",
        n.n_done, n.n_failed, n.n_cancelled);
    put_count(&b, "tern_prompt_tokens_total", "Tokens of prompts, known before or not.", n.prompt_tokens);
    put_count(&b, "tern_cached_tokens_total", "Tokens of prompts that were known before.", n.cached_tokens);
    put_count(&b, "tern_output_tokens_total", "Tokens of answers.", n.output_tokens);
    put_number(&b, "tern_prefill_seconds_total", "counter", "Time in which prompts were read.", n.prefill_s);
    put_number(&b, "tern_decode_seconds_total", "counter", "Time from answers' first tokens to their last.",
               n.decode_s);
    put_times(&b, "tern_first_token_seconds", "From a request to the first token of its answer.", &n.first);
    put_times(&b, "tern_token_seconds", "From a token of an answer to the next.", &n.between);
    put_count(&b, "tern_pauses_total", "Times that a prompt was paused for one that goes first.", n.n_pauses);
    put_number(&b, "tern_requests_waiting", "gauge", "Requests that wait.", n.waiting);
    put_number(&b, "tern_requests_running", "gauge", "Requests that are being answered.", n.running);
    pthread_mutex_lock(&m->mu);
    put_models(m, &b);
    put_pictures(m, &b);
    pthread_mutex_unlock(&m->mu);
    return b.p;
}
