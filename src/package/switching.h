/* package/switching.h - a device that holds one graph of a layer at a time: prefill or decode form (sd.npu
 * 4.2).
 *
 * If graphs cannot share weights, loading a layer's other form writes its weights from the package's image
 * over those in the device's memory. So the memory cap only needs room for one form, and switching takes
 * real time. package/switch.h plans the switches. A chunk computes with whatever form its layers have,
 * with the same bits.
 *
 * There is one switcher per opened model. Its device belongs to one forward at a time (tn_switcher_lock).
 * Only that forward changes the form of a layer: by its load tasks, which the task graph orders before and
 * after the layer's products, or by tn_switcher_ensure. */
#ifndef TN_PACKAGE_SWITCHING_H
#define TN_PACKAGE_SWITCHING_H

#include "package/npu_model.h"
#include "package/switch.h"

/* Waits for another session's forward. */
void tn_switcher_lock(tn_switcher *w);
void tn_switcher_unlock(tn_switcher *w);

tn_form tn_switcher_form(const tn_switcher *w, int32_t layer);

/* Brings layers layer0..layer1-1 into a form. Layers that have it are left alone. */
tern_status tn_switcher_load(tn_switcher *w, int32_t layer0, int32_t layer1, tn_form form, tern_error *err);
/* Brings all layers into a form before they are needed. */
tern_status tn_switcher_ensure(tn_switcher *w, tn_form form, tern_error *err);

/* Brackets every computation that runs while graphs load. A load is exposed while there is none. */
void tn_switcher_compute(tn_switcher *w, bool begins);

/* Gives times for planning: of one layer and a full chunk. They are used until they are measured. */
void tn_switcher_measured(tn_switcher *w, tn_form form, double product_us, double other_us);

bool tn_switcher_has_times(const tn_switcher *w);

/* Plans the next n_waves waves of n_chunks chunks, the last one with this share of a wave's rows. Chunks
 * of one wave are in flight together, so a layer changes its form between waves: the waves are the chunks
 * of package/switch.h. Its blocks are equal numbers of layers; their number is the user's, or the one that
 * promises the shortest prefill. *plan NULL: no layer changes. Layers that an earlier request left in the
 * decode form are switched back at once if that pays. */
tern_status tn_switcher_plan(tn_switcher *w, int32_t n_waves, int32_t n_chunks, double last_wave,
                             const tn_switch_plan **plan, tern_error *err);
/* Returns the first layer of block b of the plan. */
static inline int32_t tn_switch_layer(const tn_switch_plan *p, int32_t n_layers, int32_t b) {
    return (int32_t)((int64_t)n_layers * b / p->n_blocks);
}

typedef struct tn_switcher_stats {
    int64_t n_loads;                            /* of layers */
    int64_t load_ns, exposed_ns;                /* while loading; of that, while nothing computed */
    int32_t n_blocks;                           /* of the last plan */
    double planned_stall_us, planned_slower_us; /* of the last plan */
} tn_switcher_stats;

void tn_switcher_stats_get(tn_switcher *w, tn_switcher_stats *out);

/* Called by npu_model.c once sites and layers exist, with every layer in the chunk form. Loads one layer
 * again to measure the time. */
tern_status tn_switcher_open(tn_npu_model *m, const tn_npu_model_options *opt, tn_switcher **out,
                             tern_error *err);
void tn_switcher_close(tn_switcher **w);
/* Loads the weights of a site from the package's image into the device's memory, and the graph of this form
 * over them. */
tern_status tn_switcher_load_site(const tn_npu_model *m, tn_npu_site *s, tn_form form, tern_error *err);

#endif
