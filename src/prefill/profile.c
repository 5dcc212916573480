/* Stage and forward times, measured once per machine, model and settings and cached beside the package. */
#include "prefill/profile.h"
#include "prefill/steps.h"

#include "base/json.h"
#include "base/outfile.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tn_profile_load(const tn_profile_file *f, const tn_program *program, tn_step_profile *p) {
    *p = (tn_step_profile){0};
    json_t *j;
    if (!f->path || tn_json_read(f->path, 0, &j, NULL) != TERN_OK) return;
    const char *stored = json_string_value(json_object_get(j, "key"));
    const json_t *us = json_object_get(j, "stage_us");
    if (stored && !strcmp(stored, f->key)) {
        const json_t *rows = json_object_get(j, "forward_rows"),
                     *relative = json_object_get(j, "forward_relative");
        for (size_t i = 0; i < json_array_size(rows) && i < TN_PROFILE_FORWARDS; i++) {
            double r = json_number_value(json_array_get(rows, i)),
                   t = json_number_value(json_array_get(relative, i));
            if (!(r >= 1 && r <= TN_TREE_MAX && t > 0 && t < 1e3)) continue;
            p->forward_rows[p->n_forwards] = (float)r;
            p->forward_relative[p->n_forwards++] = (float)t;
        }
    }
    if (stored && !strcmp(stored, f->key) && json_is_object(us)) {
        bool ok = true;
        tn_step_types types;
        tn_step_types_of(program, &types);
        for (int32_t s = 0; s < types.n && ok; s++) {
            const json_t *v = json_object_get(us, types.at[s].name);
            p->us[s] = json_number_value(v);
            ok = json_is_number(v) && p->us[s] >= 0 && p->us[s] < 1e9;
        }
        const json_t *cpu_us = json_object_get(j, "cpu_us"); /* not in every profile */
        for (int32_t s = 0; s < types.n; s++) {
            double v = json_number_value(json_object_get(cpu_us, types.at[s].name));
            p->cpu_us[s] = v > 0 && v < 1e9 ? v : 0;
        }
        p->attn_us_per_pos = json_number_value(json_object_get(j, "attention_us_per_position"));
        p->rest_us = json_number_value(json_object_get(j, "rest_us"));
        p->whole_us = json_number_value(json_object_get(j, "prefill_us"));
        double whole_tok = json_number_value(json_object_get(j, "prefill_tokens"));
        if (!(p->rest_us >= 0 && p->rest_us < 1e9)) p->rest_us = 0;
        if (!(p->whole_us >= 0 && p->whole_us < 1e12 && whole_tok >= 1 && whole_tok <= 1 << 24))
            p->whole_us = whole_tok = 0;
        p->whole_tok = (int32_t)whole_tok;
        double waves = json_number_value(json_object_get(j, "waves")); /* older ones have none */
        p->n_waves = waves >= 1 && waves <= TN_PROFILE_WAVES ? (int32_t)waves : 1;
        p->measured = ok && p->attn_us_per_pos >= 0 && p->attn_us_per_pos < 1e9;
    }
    json_decref(j);
}

bool tn_profile_put(tn_ctx *ctx, const char *path, const json_t *j) {
    static const tn_outkind kind = {.what = "a profile", .begins = {"{"}, .is_private = true};
    char *text;
    tn_outfile *file = NULL;
    if (!path || tn_json_text(j, JSON_INDENT(1) | JSON_REAL_PRECISION(6), &text, NULL) != TERN_OK)
        return false;
    bool ok = tn_outfile_open(ctx, path, &kind, &file, NULL) == TERN_OK &&
              tn_outfile_write(file, text, strlen(text), NULL) == TERN_OK &&
              tn_outfile_commit(&file, NULL) == TERN_OK;
    tn_outfile_abort(&file);
    free(text);
    return ok;
}

void tn_profile_save(tn_ctx *ctx, const tn_profile_file *f, const tn_program *program,
                     const tn_step_profile *p) {
    json_t *old;
    if (!f->path) return;
    if (tn_json_read(f->path, 0, &old, NULL) == TERN_E_MEMORY)
        return; /* existing contents must not be lost */
    static const char *const kept[] = {"tuned", "tuned_else", "read"}; /* tune.h's: stay as they are */
    json_t *us = json_object(), *cpu_us = json_object(), *rows = json_array(), *relative = json_array();
    for (int32_t i = 0; i < p->n_forwards; i++) {
        tn_json_append(&rows, tn_json_real((double)p->forward_rows[i]));
        tn_json_append(&relative, tn_json_real((double)p->forward_relative[i]));
    }
    tn_step_types types;
    tn_step_types_of(program, &types);
    for (int32_t s = 0; p->measured && s < types.n; s++)
        tn_json_set(&us, types.at[s].name, tn_json_real(p->us[s]));
    for (int32_t s = 0; p->measured && s < types.n; s++)
        if (p->cpu_us[s] > 0) tn_json_set(&cpu_us, types.at[s].name, tn_json_real(p->cpu_us[s]));
    json_t *j =
        tn_json_pack("{s:s, s:i, s:o, s:o, s:f, s:f, s:f, s:i, s:o, s:o}", "key", f->key, "waves", p->n_waves,
                     "stage_us", us, "cpu_us", cpu_us, "attention_us_per_position", p->attn_us_per_pos,
                     "rest_us", p->rest_us, "prefill_us", p->whole_us, "prefill_tokens", p->whole_tok,
                     "forward_rows", rows, "forward_relative", relative);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *as_it_is = json_object_get(old, kept[i]);
        if (as_it_is) tn_json_set(&j, kept[i], json_incref(as_it_is));
    }
    json_decref(old);
    /* a read-only folder costs one measured wave per process, nothing else */
    if (j && !tn_profile_put(ctx, f->path, j)) {
        tn_log(ctx, TERN_LOG_DEBUG, "%s: the profile cannot be kept", f->path);
    }
    json_decref(j);
}
