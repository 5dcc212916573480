#include "lab/sim_views.h"

/* What a task of a view is, in the order of a layer. */
typedef enum view_step { NORM, QKV, ATTENTION, OUT, NORM_FF, UP, ACT, DOWN, N_VIEW_STEPS } view_step;

double tn_sim_encoder_bytes(const tn_sim_encoder *e) {
    const double w = e->width, ff = e->ff;
    return e->n_layers * (4 * w * w + (e->gated ? 3 : 2) * w * ff) + (double)e->joined * e->out;
}

static double product_ns(const tn_soc *c, double k, double n, double rows) {
    return tn_sim_product_ns(c, k * n, k + n, rows);
}

static double step_ns(const tn_soc *c, const tn_sim_encoder *e, view_step s) {
    const double rows = e->patches, w = e->width, ff = e->ff;
    switch (s) {
    case QKV: return product_ns(c, w, 3 * w, rows);
    case ATTENTION: return 2 * rows * rows * w * (c->device_attention ? c->mac_ns : c->attn_mac_ns);
    case OUT: return product_ns(c, w, w, rows);
    case UP: return product_ns(c, w, (e->gated ? 2 : 1) * ff, rows);
    case ACT: return rows * ff * c->elem_ns;
    case DOWN: return product_ns(c, ff, w, rows);
    default: return rows * w * c->elem_ns;
    }
}

static bool on_device(const tn_soc *c, view_step s) {
    return s == QKV || s == OUT || s == UP || s == DOWN || (s == ATTENTION && c->device_attention);
}

static int32_t add(tn_graph *g, const char *name, int32_t chunk, int32_t place, tn_lane lane, double ns,
                   int32_t after) {
    tn_task t = {.name = name, .chunk = chunk, .subgraph = place, .lane = lane, .n_parts = 1};
    t.est_us[lane] = (float)(ns / 1e3);
    const int32_t id = tn_graph_add(g, &t);
    if (after >= 0) tn_graph_depend(g, after, id);
    return id;
}

/* Returns the task that ends with the view's rows. */
static int32_t add_view(const tn_soc *c, const tn_sim_encoder *e, int32_t chunk, tn_graph *g) {
    static const char *const names[N_VIEW_STEPS] = {"view norm",   "view qkv", "view attention", "view out",
                                                    "view norm 2", "view up",  "view act",       "view down"};
    int32_t last = -1, place = 0;
    for (int32_t layer = 0; layer < e->n_layers; layer++)
        for (int s = 0; s < N_VIEW_STEPS; s++)
            last = add(g, names[s], chunk, place++, on_device(c, (view_step)s) ? TN_LANE_NPU : TN_LANE_CPU,
                       step_ns(c, e, (view_step)s), last);
    return add(g, "view rows", chunk, place, TN_LANE_NPU, product_ns(c, e->joined, e->out, e->rows), last);
}

void tn_sim_add_views(const tn_sim_request *r, bool apart, int32_t n_chunks, int32_t n_steps, tn_graph *g) {
    const tn_sim_encoder *e = &r->encoder;
    for (int32_t v = 0; v < r->n_views; v++) {
        const int32_t first = (r->n_before + v * e->rows) / r->n_chunk,
                      last = add_view(r->soc, e, apart ? 0 : first, g);
        /* later chunks wait for earlier ones anyway */
        for (int32_t i = apart ? 0 : first; i < n_chunks; i++) tn_graph_depend(g, last, i * n_steps);
    }
}
