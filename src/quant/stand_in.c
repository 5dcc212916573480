#include "quant/stand_in.h"

tern_status tn_stand_in_open(const tn_model *m, int layer, tn_role role, tn_stand_in *out, tern_error *err) {
    const tn_linear *own = tn_model_linears(m, layer, role, &out->n);
    out->l = tn_calloc(m->ctx, TN_MEM_OTHER, (size_t)out->n, sizeof *out->l);
    bool ok = out->l != NULL;
    for (int32_t i = 0; i < out->n && ok; i++) {
        size_t bytes = tn_panels_bytes(TN_PANEL_F32, (size_t)own[i].n, (size_t)own[i].k);
        out->l[i] = own[i];
        out->l[i].dtype = TN_PANEL_F32;
        out->l[i].panels = tn_alloc(m->ctx, TN_MEM_OTHER, bytes, 1);
        ok = out->l[i].panels != NULL;
    }
    if (ok) return TERN_OK;
    tn_stand_in_close(m, out);
    return tn_fail(err, TERN_E_MEMORY, "no memory for rounded weights of %s", tn_role_name(role));
}

void tn_stand_in_swap(const tn_model *m, int layer, tn_role role, tn_stand_in *s) {
    tn_linear *own = tn_model_linears(m, layer, role, &s->n);
    for (int32_t i = 0; i < s->n; i++) {
        tn_linear other = s->l[i];
        s->l[i] = own[i];
        own[i] = other;
    }
}

void tn_stand_in_close(const tn_model *m, tn_stand_in *s) {
    for (int32_t i = 0; s->l && i < s->n; i++) tn_free(m->ctx, s->l[i].panels);
    tn_free(m->ctx, s->l);
    *s = (tn_stand_in){0};
}
