/* measure/suite.c - a run: what is asked, what is known of it already, and the rest item by item. */
#include "measure/suite.h"

#include "base/status.h"
#include "measure/suite_impl.h"
#include "model/lora.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tn_suite_task *const tasks[] = {&tn_suite_mmlu, &tn_suite_ruler, &tn_suite_bfcl,
                                             &tn_suite_ifeval};
enum { N_TASKS = sizeof tasks / sizeof *tasks };

static const tn_suite_task *find(const char *name) {
    for (size_t i = 0; i < N_TASKS; i++)
        if (!strcmp(tasks[i]->name, name)) return tasks[i];
    return NULL;
}

bool tn_suite_is(const char *task) { return find(task) != NULL; }

/* ---- what was measured --------------------------------------------------------------------------- */

static json_t *number_text(uint64_t v) {
    char text[17];
    int n = snprintf(text, sizeof text, "%016llx", (unsigned long long)v);
    return tn_json_string(text, (size_t)n);
}

static json_t *model_json(const tn_suite *u) {
    tern_model_info info;
    (void)tern_engine_info(u->e, &info);
    json_t *v =
        tn_json_pack("{s:s, s:s, s:b}", "arch", info.arch, "name", info.name, "package", (int)info.package);
    tn_json_set(&v, "fingerprint", number_text(tn_model_fingerprint(u->e->model)));
    return v;
}

/* What of its options an answer's bits depend on, as the engine has settled it: not the threads, nor how it is loaded. */
static json_t *form_json(const tn_suite *u) {
    const tern_engine *e = u->e;
    const tn_attn_options *a = &e->attention;
    tern_model_info info;
    (void)tern_engine_info(e, &info);
    json_t *v = tn_json_pack("{s:s, s:i, s:i, s:i, s:i, s:b, s:b}", "scheme", info.scheme, "context",
                             (int)tern_session_capacity(u->s), "kv", (int)u->s->state.kv.type, "chunk",
                             e->npu ? (int)e->npu->chunk : 0, "attention", (int)a->mode,
                             "attention_automatic", (int)a->automatic, "attention_decode", (int)a->decode);
    if (u->fresh || a->decode) {
        tn_json_set(&v, "ratio", tn_json_real((double)a->ratio));
        tn_json_set(&v, "decode_ratio", tn_json_real((double)a->decode_ratio));
        tn_json_set(&v, "buckets", json_integer(a->n_buckets));
        tn_json_set(&v, "head_ratios", json_boolean(!a->no_head_ratios));
        tn_json_set(&v, "share_rows", json_integer(a->share_rows));
        tn_json_set(&v, "pool_heads", json_integer(a->pool_heads));
        tn_json_set(&v, "threshold", json_integer(a->threshold));
    }
    tn_json_set(&v, "adapters", number_text(tn_lora_mix_id(&u->s->mix)));
    return v;
}

static json_t *head_json(tn_suite *u) {
    char sum[TN_SUM_TEXT];
    tn_sum_end(&u->sum, sum);
    json_t *v = tn_json_pack("{s:i, s:s, s:s}", "tern_eval", 1, "tern", tern_version(), "task", u->o->task);
    tn_json_set(&v, "model", model_json(u));
    tn_json_set(&v, "form", form_json(u));
    tn_json_set(&v, "data", tn_json_pack("{s:s}", "sha256", sum));
    tn_json_set(&v, "asked", json_incref(u->asked));
    return v;
}

/* ---- which items --------------------------------------------------------------------------------- */

/* A group's name, or what comes after the stroke in it: "4096/vt" is "vt", too. */
static bool in_groups(const json_t *item, const char *word, size_t n) {
    const json_t *g;
    size_t i;
    json_array_foreach(json_object_get(item, "groups"), i, g) {
        const char *name = json_string_value(g), *part = strchr(name, '/');
        if ((strlen(name) == n && !memcmp(name, word, n)) ||
            (part && strlen(part + 1) == n && !memcmp(part + 1, word, n)))
            return true;
    }
    return false;
}

/* Items of the groups that were named; a name that no item has is an error. */
static tern_status keep_groups(tn_suite *u, tern_error *err) {
    json_t *kept = json_array(), *item;
    uint8_t *in = calloc(json_array_size(u->items) + 1, 1);
    tern_status st = in && kept ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for the items");
    size_t i;
    for (const char *word = u->o->only; word && st == TERN_OK;) {
        size_t n = strcspn(word, ",");
        bool any = false;
        json_array_foreach(u->items, i, item) {
            bool is = in_groups(item, word, n);
            in[i] |= is;
            any = any || is;
        }
        if (!any) st = tn_fail(err, TERN_E_INVALID, "--only %.*s: no item is in such a group", (int)n, word);
        word = word[n] ? word + n + 1 : NULL;
    }
    json_array_foreach(u->items, i, item) if (st == TERN_OK && in[i])
        tn_json_append(&kept, json_incref(item));
    free(in);
    if (st == TERN_OK && !kept) st = tn_fail(err, TERN_E_MEMORY, "no memory for the items");
    if (st == TERN_OK) {
        json_decref(u->items);
        u->items = json_incref(kept);
    }
    json_decref(kept);
    return st;
}

typedef struct lot {
    uint64_t key;
    size_t i;
} lot;

static int by_lot(const void *a, const void *b) {
    const lot *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->i > y->i) - (x->i < y->i);
}

uint64_t tn_suite_number(uint64_t seed, const char *id) {
    tn_sum s;
    uint8_t sum[32];
    uint64_t key;
    tn_sum_begin(&s, false);
    tn_sum_add(&s, &seed, sizeof seed);
    tn_sum_add(&s, id, strlen(id));
    tn_sum_bytes(&s, sum);
    memcpy(&key, sum, sizeof key);
    return key;
}

/* So many items, drawn by their names: a larger number keeps those of a smaller one. They stay in their order. */
static tern_status draw(tn_suite *u, tern_error *err) {
    size_t n = json_array_size(u->items), limit = (size_t)u->o->limit;
    lot *lots = malloc((n + 1) * sizeof *lots);
    uint8_t *in = calloc(n + 1, 1);
    json_t *kept = lots && in ? json_array() : NULL, *item;
    size_t i;
    if (kept) {
        json_array_foreach(u->items, i, item) lots[i] =
            (lot){tn_suite_number(u->o->seed, json_string_value(json_object_get(item, "id"))), i};
        qsort(lots, n, sizeof *lots, by_lot);
        for (i = 0; i < limit && i < n; i++) in[lots[i].i] = 1;
    }
    json_array_foreach(u->items, i, item) if (kept && in[i]) tn_json_append(&kept, json_incref(item));
    free(lots);
    free(in);
    TN_FAIL_IF(!kept, err, TERN_E_MEMORY, "no memory for the items");
    json_decref(u->items);
    u->items = kept;
    return TERN_OK;
}

/* Items are known by their names, so each has its own. */
static tern_status own_names(tn_suite *u, tern_error *err) {
    json_t *seen = json_object(), *item;
    tern_status st = TERN_OK;
    size_t i;
    json_array_foreach(u->items, i, item) {
        const char *id = json_string_value(json_object_get(item, "id"));
        if (st == TERN_OK && json_object_get(seen, id))
            st = tn_fail(err, TERN_E_FORMAT, "%s: two items are named %.80s", u->o->data, id);
        tn_json_set(&seen, id, json_true());
    }
    if (st == TERN_OK && !seen) st = tn_fail(err, TERN_E_MEMORY, "no memory for the items");
    u->names = seen;
    return st;
}

static tern_status choose(tn_suite *u, const tn_suite_task *t, tern_error *err) {
    TN_FAIL_IF(t->needs_data && !u->o->data, err, TERN_E_INVALID, "task %s needs its data (--data)", t->name);
    tn_sum_begin(&u->sum, false);
    u->asked = json_object();
    tern_status st = t->open(u, err);
    if (st == TERN_OK && (!u->items || !u->asked))
        st = tn_fail(err, TERN_E_MEMORY, "no memory for the items");
    if (st == TERN_OK) st = own_names(u, err);
    if (st == TERN_OK && u->o->only) st = keep_groups(u, err);
    if (st == TERN_OK && u->o->limit > 0) st = draw(u, err);
    return st;
}

/* ---- the run ------------------------------------------------------------------------------------- */

static tern_status open_session(tn_suite *u, const tn_suite_task *t, tern_error *err) {
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = u->o->n_ctx ? u->o->n_ctx : u->n_ctx;
    TN_FAIL_IF(!u->e->model->tokenizer, err, TERN_E_UNSUPPORTED, "this model has no tokenizer");
    TN_TRY(tern_session_open(u->e, &so, &u->s, err));
    /* sparse attention selects by chunks, which begin where what is known ends */
    u->fresh = u->e->attention.mode != TN_ATTN_FULL || u->e->attention.automatic;
    if (t->max_tokens) tn_json_set(&u->asked, "max_tokens", json_integer(tn_suite_max_tokens(u, t)));
    if (u->o->thinking) tn_json_set(&u->asked, "thinking", json_boolean(u->o->thinking > 0));
    TN_FAIL_IF(!u->asked, err, TERN_E_MEMORY, "no memory for what is asked");
    return TERN_OK;
}

static tern_status answer(tn_suite *u, const tn_suite_task *t, const json_t *item, json_t **record,
                          tern_error *err) {
    *record = tn_json_pack("{s:O, s:O}", "id", json_object_get(item, "id"), "groups",
                           json_object_get(item, "groups"));
    tern_status st = t->item(u, item, record, err);
    if (st == TERN_OK && !*record) st = tn_fail(err, TERN_E_MEMORY, "no memory for a result");
    if (st != TERN_OK) {
        json_decref(*record);
        *record = NULL;
    }
    return st;
}

typedef struct so_far {
    double sum;
    int64_t n, done;
} so_far;

static void note(tn_suite *u, so_far *f, const json_t *record) {
    const json_t *score = json_object_get(record, "score");
    f->done++;
    f->n += json_is_number(score);
    f->sum += json_number_value(score);
    if (u->o->progress)
        u->o->progress(u->o->user, f->done, (int64_t)json_array_size(u->items),
                       f->n ? f->sum / (double)f->n : 0);
}

/* Results are of items of the data. Ruler's are of lengths and samples, too, that are not asked for now. */
static tern_status are_items(const tn_suite *u, const tn_suite_task *t, const json_t *known,
                             tern_error *err) {
    const json_t *record;
    size_t i;
    json_array_foreach(known, i, record) {
        const char *id = json_string_value(json_object_get(record, "id"));
        TN_FAIL_IF(t->needs_data && !json_object_get(u->names, id), err, TERN_E_FORMAT,
                   "%s has a result of %.80s, and there is no such item in the data. Name another file, or "
                   "remove it",
                   u->o->results, id);
    }
    return TERN_OK;
}

/* Every item's record in its order, from the file or from the model. */
static tern_status answer_all(tn_suite *u, const tn_suite_task *t, tn_suite_file *file, const json_t *known,
                              json_t **records, tern_error *err) {
    json_t *by_id = json_object(), *item, *record;
    tern_status st = TERN_OK;
    so_far f = {0};
    size_t i, n_known = 0;
    json_array_foreach(known, i, record)
        tn_json_set(&by_id, json_string_value(json_object_get(record, "id")), json_incref(record));
    if (!by_id) st = tn_fail(err, TERN_E_MEMORY, "no memory for the results");
    json_array_foreach(u->items, i, item) n_known +=
        json_object_get(by_id, json_string_value(json_object_get(item, "id"))) != NULL;
    if (n_known)
        tn_suite_notice(u, "%s has %zu of the %zu results already", u->o->results, n_known,
                        json_array_size(u->items));
    json_array_foreach(u->items, i, item) {
        if (st != TERN_OK) break;
        record = json_incref(json_object_get(by_id, json_string_value(json_object_get(item, "id"))));
        if (!record) {
            st = answer(u, t, item, &record, err);
            if (st == TERN_OK && file) st = tn_suite_file_put(file, record, err);
        }
        if (st == TERN_OK) note(u, &f, record);
        tn_json_append(records, record); /* NULL after a failure */
        if (st == TERN_OK && !*records) st = tn_fail(err, TERN_E_MEMORY, "no memory for the results");
    }
    json_decref(by_id);
    return st;
}

static tern_status run(tn_suite *u, const tn_suite_task *t, json_t **results, tern_error *err) {
    tn_suite_file *file = NULL;
    json_t *known = NULL, *head = NULL, *records = NULL;
    TN_TRY(choose(u, t, err));
    tern_status st = open_session(u, t, err);
    records = json_array();
    if (st == TERN_OK && !(head = head_json(u)))
        st = tn_fail(err, TERN_E_MEMORY, "no memory for the results");
    if (st == TERN_OK && u->o->results)
        st = tn_suite_file_open(u->o->results, head, u->o->of_file, &file, &known, err);
    if (st == TERN_OK) st = are_items(u, t, known, err);
    if (st == TERN_OK) st = answer_all(u, t, file, known, &records, err);
    tern_status closed = tn_suite_file_close(&file, st == TERN_OK ? err : NULL);
    if (st == TERN_OK) st = closed;
    if (st == TERN_OK) {
        *results = tn_json_pack("{s:O, s:O}", "head", head, "items", records);
        if (!*results) st = tn_fail(err, TERN_E_MEMORY, "no memory for the results");
    }
    json_decref(known);
    json_decref(head);
    json_decref(records);
    return st;
}

static void close_suite(tn_suite *u) {
    tern_session_close(&u->s);
    json_decref(u->items);
    json_decref(u->names);
    json_decref(u->shared);
    json_decref(u->asked);
}

/* A conversation that a template refuses is the item's matter. */
static tern_status try_template(const tn_suite *u, const tn_suite_task *t, tern_error *err) {
    tn_suite_prompt p = {0};
    json_t *messages = json_array(), *tools = t->calls ? json_array() : NULL;
    tn_json_append(&messages, tn_json_pack("{s:s, s:s}", "role", "user", "content", "x"));
    if (tools)
        tn_json_append(&tools, tn_json_pack("{s:s, s:{s:s, s:{s:s}}}", "type", "function", "function", "name",
                                            "x", "parameters", "type", "object"));
    tern_status st = messages && (tools || !t->calls) ? tn_suite_chat(u, messages, tools, NULL, &p, err)
                                                      : tn_fail(err, TERN_E_MEMORY, "no memory for a prompt");
    free(p.ids);
    json_decref(messages);
    json_decref(tools);
    return st == TERN_E_INVALID ? TERN_OK : st;
}

tern_status tn_suite_check(tern_engine *e, const tn_suite_options *o, tern_error *err) {
    const tn_suite_task *t = find(o->task);
    tn_suite_options silent = *o; /* the run itself says what is left out */
    silent.notice = NULL;
    tn_suite u = {.o = &silent, .e = e};
    TN_FAIL_IF(!t, err, TERN_E_INVALID, "there is no task %s", o->task);
    tern_status st = choose(&u, t, err);
    if (st == TERN_OK) st = open_session(&u, t, err);
    if (st == TERN_OK && t->chats) st = try_template(&u, t, err);
    close_suite(&u);
    return st;
}

tern_status tn_suite_run(tern_engine *e, const tn_suite_options *o, json_t **results, tern_error *err) {
    const tn_suite_task *t = find(o->task);
    tn_suite u = {.o = o, .e = e};
    *results = NULL;
    TN_FAIL_IF(!t, err, TERN_E_INVALID, "there is no task %s", o->task);
    tern_status st = run(&u, t, results, err);
    close_suite(&u);
    return st;
}
