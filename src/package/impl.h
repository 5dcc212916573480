/* package/impl.h - shared by the files that open a package: meta.c (its metadata), sites.c (weights and
 * graphs of its sites), npu_model.c (opening and closing). */
#ifndef TN_PACKAGE_IMPL_H
#define TN_PACKAGE_IMPL_H

#include "package/npu_model.h"

/* ---- meta.c ---- */
/* Reads the data for sparse attention. A package without it only lacks that. */
/* The embeddings for every layer, if the model has some. */
tern_status tn_table_open(tn_npu_model *m, const tn_hparams *h, tern_error *err);
void tn_table_close(tn_npu_model *m);
tern_status tn_npu_model_read_heads(tn_npu_model *m, const tn_hparams *h, tern_error *err);

/* ---- next.c ---- */
/* The layer that guesses one token further, if the package has one: m->model->next without weights, and
 * memory for them. */
tern_status tn_package_next_open(tn_npu_model *m, tern_error *err);
/* Called by the loader when they are loaded. */
tern_status tn_package_next_ready(tn_npu_model *m, tern_error *err);

/* ---- sites.c ---- */
/* The place of a section's small tensors, also before they are read. */
typedef struct section_view {
    const char *base;
    const tn_pkg_record *records;
    size_t n;
} section_view;

section_view tn_section_view(const tn_npu_model *m, int layer);
/* Returns the payload of a record that must have exactly n_bytes, or NULL with err filled when it is missing
 * or has another size. */
const void *tn_section_payload(const section_view *v, tn_role role, tn_pkg_part part, uint64_t n_bytes,
                               int layer, tern_error *err);
tern_status tn_section_vector(tn_ctx *ctx, const section_view *v, const tn_hparams *h, int layer,
                              tn_role role, bool required, float **out, tern_error *err);
/* Reads a layer's router, which is float, for the CPU. */
tern_status tn_section_router(tn_npu_model *m, const section_view *v, int32_t layer, tn_linear *l,
                              tern_error *err);
/* Returns the large record of a linear, of the right shape: tiles or, in layers only, weightlets. */
const tn_pkg_record *tn_section_tiles(const tn_npu_model *m, tn_role role, int64_t n, int64_t k, int layer,
                                      tern_error *err);
/* Returns how many output channels the device's tiles hold. */
static inline uint64_t tn_padded(const tn_npu_model *m, int64_t n) {
    int64_t tile_n = m->layout->tile_n;
    return (uint64_t)((n + tile_n - 1) / tile_n * tile_n);
}

/* Memory for the weights of a layer, the process's or the device's, and for their scales and sums. */
typedef struct tile_room {
    int8_t *at[2];
    char *rows;
} tile_room;

/* Offset of a tensor in its first page of the file. Whole pages are read, so it has the same offset in
 * memory. */
static inline uint64_t tn_file_phase(const tn_pkg_section *s, const tn_pkg_record *r) {
    return (s->off_bytes + (r ? r->off_bytes : 0)) % TN_AIO_ALIGN;
}

/* The first allocates memory for the small tensors of a section (*at; *block: the allocation), the second for
 * those of the model (-1) or a layer, the third for its weights (-1: lm_head and embedding). */
tern_status tn_room_section(tn_npu_model *m, const tn_pkg_section *s, char **at, char **block,
                            tern_error *err);
tern_status tn_room_small(tn_npu_model *m, int layer, tern_error *err);
tern_status tn_room_tiles(tn_npu_model *m, const tn_hparams *h, int layer, tile_room *room, tern_error *err);
/* Decides which sites the device computes under the cap of its memory. */
tern_status tn_sites_place(tn_npu_model *m, uint64_t cap, tern_error *err);
/* Opens a site. Its weights take space from the room, unless they are used in the mapping. */
tern_status tn_site_open(tn_npu_model *m, int32_t i_site, tile_room *room, tern_error *err);
void tn_site_close_experts(tn_npu_model *m, tn_npu_site *s);
/* Loads and unloads the graphs of an expert over its part of each linear (tiles or packed), which stays
 * the caller's. */
tern_status tn_site_load_expert(const tn_npu_model *m, const tn_npu_site *s, int32_t e, int8_t *const *parts,
                                tern_error *err);
void tn_site_drop_expert(const tn_npu_site *s, int32_t e);
/* Reads scales and sums of a layer's linears (-1: of the model level), once its small tensors are loaded. */
tern_status tn_sites_read_rows(tn_npu_model *m, int layer, tern_error *err);
/* Reads the hot channels, once their rows are loaded. */
tern_status tn_site_read_hot(tn_npu_site *s, const section_view *v, int layer, tern_error *err);

#endif
