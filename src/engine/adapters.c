#include "engine/adapters.h"

#include "base/status.h"
#include "package/smoothing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SPEC_BYTES = 4096 };
static const double MAX_SCALE = 1000;

/* ---- lists ------------------------------------------------------------------------------------------- */

/* The next item of a list, without separators; false: no more. */
static bool next_part(const char **list, char part[SPEC_BYTES], tern_error *err, tern_status *st) {
    *st = TERN_OK;
    if (!**list) return false;
    size_t n = strcspn(*list, ",");
    if (n == 0 || n >= SPEC_BYTES) {
        *st = tn_fail(err, TERN_E_INVALID, "a list of adapters has a part that is empty or too long");
        return false;
    }
    memcpy(part, *list, n);
    part[n] = 0;
    *list += n + ((*list)[n] == ',');
    return true;
}

/* Cuts off ":SCALE". If the text after the last colon is not a number, it belongs to the name. Returns
 * false for a scale out of range. */
static bool cut_scale(char *part, float *scale) {
    char *colon = strrchr(part, ':'), *end;
    if (!colon || !colon[1]) return true;
    double v = strtod(colon + 1, &end);
    if (*end) return true;
    *colon = 0;
    *scale = (float)v;
    return isfinite(v) && fabs(v) <= MAX_SCALE;
}

/* "NAME=FILE" or "FILE"; the latter is named by its last part without ".gguf". *file points into part. */
static void name_of(char *part, char name[TN_LORA_NAME], char **file) {
    char *equals = strchr(part, '='), *slash = strchr(part, '/');
    *file = part;
    if (equals && equals != part && (!slash || equals < slash)) {
        *equals = 0;
        snprintf(name, TN_LORA_NAME, "%.*s", TN_LORA_NAME - 1, part);
        *file = equals + 1;
        return;
    }
    size_t n = strlen(part);
    while (n > 1 && part[n - 1] == '/') n--;
    size_t from = n;
    while (from && part[from - 1] != '/') from--;
    if (n - from > 5 && !memcmp(part + n - 5, ".gguf", 5)) n -= 5;
    snprintf(name, TN_LORA_NAME, "%.*s", (int)(n - from < TN_LORA_NAME ? n - from : TN_LORA_NAME - 1),
             part + from);
}

static int32_t find(const tn_model *m, const char *name) {
    for (int32_t i = 0; i < m->n_loras; i++)
        if (!strcmp(m->loras[i]->name, name)) return i;
    return -1;
}

/* ---- opening ----------------------------------------------------------------------------------------- */

static const tn_lora *of_task(const tn_model *m, const char *task) {
    for (int32_t i = 0; i < m->n_loras; i++)
        if (!strcmp(m->loras[i]->task, task)) return m->loras[i];
    return NULL;
}

static void announce(tern_engine *e, const tn_lora *l) {
    tn_log(&e->ctx, TERN_LOG_INFO, "adapter %s: %d linears changed, %.1f MiB%s%s", l->name, l->n_linears,
           (double)l->n_bytes / 1048576, *l->task ? ", for the task " : "", l->task);
}

static tern_status open_one(tern_engine *e, char *part, const tn_lora_basis *basis, tern_error *err) {
    tn_model *m = e->model;
    float scale = NAN;
    char name[TN_LORA_NAME], *file;
    tn_lora *l;
    TN_FAIL_IF(!cut_scale(part, &scale), err, TERN_E_INVALID,
               "adapter %s: a scale is a number from -%g to %g", part, MAX_SCALE, MAX_SCALE);
    name_of(part, name, &file);
    TN_FAIL_IF(!*name || strpbrk(name, ":,=") || !strcmp(name, "none"), err, TERN_E_INVALID,
               "'%s' is no name for an adapter; give it one: NAME=FILE", name);
    TN_FAIL_IF(find(m, name) >= 0, err, TERN_E_INVALID, "two adapters are called '%s'; name one: NAME=FILE",
               name);
    TN_FAIL_IF(m->n_loras == TN_MAX_LORAS, err, TERN_E_LIMIT, "more than %d adapters", TN_MAX_LORAS);
    TN_TRY(tn_lora_open(&e->ctx, file, &m->h, &m->program, basis, &l, err));
    if (*l->task && of_task(m, l->task)) {
        tern_status st = tn_fail(err, TERN_E_INVALID, "%s: adapter %s is for the task %s, too", file,
                                 of_task(m, l->task)->name, l->task);
        tn_lora_close(&l);
        return st;
    }
    snprintf(l->name, sizeof l->name, "%s", name);
    l->scale = !isnan(scale) ? scale : *l->task ? 0 : 1;
    m->loras[m->n_loras++] = l;
    announce(e, l);
    return TERN_OK;
}

/* Those that the model's folder holds. Their rows are those of the file, so no basis is asked for. */
static tern_status open_tasks(tern_engine *e, const char *path, tern_error *err) {
    tn_model *m = e->model;
    if (e->npu || (m->scheme != TN_FLOAT && m->scheme != TN_FLOAT_BLOCKS)) return TERN_OK;
    TN_TRY(tn_lora_open_tasks(&e->ctx, path, &m->h, &m->program, m->loras, &m->n_loras, err));
    for (int32_t i = 0; i < m->n_loras; i++) announce(e, m->loras[i]);
    return TERN_OK;
}

tern_status tn_engine_open_adapters(tern_engine *e, const char *path, const char *list, tern_error *err) {
    TN_TRY(open_tasks(e, path, err));
    if (!list || !*list) return TERN_OK;
    const tn_model *m = e->model;
    char part[SPEC_BYTES];
    tn_smoothing smoothing = {0};
    tn_lora_basis basis;
    TN_FAIL_IF(!e->npu && m->scheme != TN_FLOAT && m->scheme != TN_FLOAT_BLOCKS, err, TERN_E_UNSUPPORTED,
               "adapters go with packages and the schemes float and blocks, not with %s",
               tn_float_scheme_name(m->scheme));
    TN_FAIL_IF(e->npu && e->npu->max_output_n, err, TERN_E_UNSUPPORTED,
               "adapters do not go with a package whose outputs leave the device in 8 bits; pack it without");
    if (e->npu) TN_TRY(tn_smoothing_read(&e->ctx, e->npu, m, &smoothing, err));
    basis = tn_smoothing_basis(&smoothing);
    tern_status st = TERN_OK;
    while (st == TERN_OK && next_part(&list, part, err, &st))
        st = open_one(e, part, e->npu ? &basis : NULL, err);
    tn_smoothing_free(&smoothing);
    if (st != TERN_OK) return st;
    tn_lora_mix mix; /* more adapters than a session can apply by itself are refused here, not when a
                        session opens */
    return tn_mix_parse(e, NULL, &mix, err);
}

uint64_t tn_adapters_bytes(const char *model, const tn_hparams *h, const char *list) {
    enum { WIDENED = 4 }; /* converted to float, and ranks to panels */
    char part[SPEC_BYTES], name[TN_LORA_NAME], path[SPEC_BYTES + 64], *file;
    tern_status st;
    uint64_t n = tn_lora_tasks_bytes(model, h);
    while (list && next_part(&list, part, NULL, &st)) {
        float scale;
        struct stat sb;
        (void)cut_scale(part, &scale);
        name_of(part, name, &file);
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", file);
        if (!stat(path, &sb) || !stat(file, &sb)) n += WIDENED * (uint64_t)sb.st_size;
    }
    return n;
}

/* ---- mixes ------------------------------------------------------------------------------------------- */

static tern_status unknown(const tn_model *m, const char *name, tern_error *err) {
    char names[300] = "";
    size_t n = 0;
    for (int32_t i = 0; i < m->n_loras && n < sizeof names - TN_LORA_NAME - 2; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", m->loras[i]->name);
    return tn_fail(err, TERN_E_INVALID, "no adapter is called '%.60s'; there %s %s", name,
                   m->n_loras == 1 ? "is" : "are", n ? names : "none");
}

tern_status tn_mix_parse(const tern_engine *e, const char *text, tn_lora_mix *out, tern_error *err) {
    const tn_model *m = e->model;
    float scale[TN_MAX_LORAS] = {0};
    bool named[TN_MAX_LORAS] = {0};
    char part[SPEC_BYTES];
    tern_status st = TERN_OK;
    for (int32_t i = 0; !text && i < m->n_loras; i++) scale[i] = m->loras[i]->scale;
    if (text && !strcmp(text, "none")) text = "";
    while (text && next_part(&text, part, err, &st)) {
        float s = 1;
        TN_FAIL_IF(!cut_scale(part, &s), err, TERN_E_INVALID,
                   "adapter %.60s: a scale is a number from -%g to %g", part, MAX_SCALE, MAX_SCALE);
        int32_t i = find(m, part);
        if (i < 0) return unknown(m, part, err);
        TN_FAIL_IF(named[i], err, TERN_E_INVALID, "adapter %.60s is named twice", part);
        named[i] = true;
        scale[i] = s;
    }
    TN_TRY(st);
    *out = (tn_lora_mix){0};
    for (int32_t i = 0; i < m->n_loras; i++) {
        if (scale[i] == 0) continue;
        TN_FAIL_IF(out->n == TN_LORA_MIX, err, TERN_E_LIMIT,
                   "more than %d adapters at a time; with a scale of 0 they wait until one is asked for",
                   TN_LORA_MIX);
        out->at[out->n] = m->loras[i];
        out->scale[out->n++] = scale[i];
    }
    return TERN_OK;
}

const char *tern_engine_lora(const tern_engine *e, size_t i) {
    return e && i < (size_t)e->model->n_loras ? e->model->loras[i]->name : NULL;
}

const char *tern_engine_lora_task(const tern_engine *e, size_t i, const char **prefix) {
    const tn_lora *l = e && i < (size_t)e->model->n_loras ? e->model->loras[i] : NULL;
    if (!l || !*l->task) return NULL;
    if (prefix) *prefix = l->prefix ? l->prefix : "";
    return l->task;
}

bool tn_engine_has_tasks(const tern_engine *e) {
    for (int32_t i = 0; i < e->model->n_loras; i++)
        if (*e->model->loras[i]->task) return true;
    return false;
}

tern_status tn_task_parse(const tern_engine *e, const char *task, tn_lora_mix *out, const char **prefix,
                          tern_error *err) {
    const tn_model *m = e->model;
    const tn_lora *l = *task ? of_task(m, task) : NULL;
    char names[TN_LORA_NAME * 8] = "";
    size_t n = 0;
    for (int32_t i = 0; i < m->n_loras && n < sizeof names - TN_LORA_NAME - 2; i++)
        if (*m->loras[i]->task)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", m->loras[i]->task);
    TN_FAIL_IF(
        !n, err, TERN_E_UNSUPPORTED,
        "task '%.60s': this model has no adapters of tasks (jina-embeddings-v3 has: in its folder, or as "
        "GGUF files for the option lora)",
        task);
    TN_FAIL_IF(!l, err, TERN_E_INVALID, "no task is called '%.60s'; there are %s", task, names);
    *out = (tn_lora_mix){.n = 1, .at = {l}, .scale = {l->scale == 0 ? 1 : l->scale}};
    *prefix = l->prefix ? l->prefix : "";
    return TERN_OK;
}
