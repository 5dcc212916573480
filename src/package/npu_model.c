#include "package/npu_model.h"

#include "base/status.h"
#include "package/impl.h"
#include "package/loader.h"
#include "package/on_demand.h"
#include "package/switching.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Places of the embedding's column tiles in the file. */
static tern_status open_embedding(tn_npu_model *m, const section_view *v, const tn_pkg_record *r,
                                  tern_error *err) {
    size_t n = (size_t)r->n, k = (size_t)r->k, tile_n = (size_t)m->layout->tile_n,
           n_tiles = (n + tile_n - 1) / tile_n;
    m->embd_off = tn_alloc(m->ctx, TN_MEM_OTHER, n_tiles + 1, sizeof *m->embd_off);
    TN_FAIL_IF(!m->embd_off, err, TERN_E_MEMORY, "no memory for the embedding's %zu tiles", n_tiles);
    if (r->part == TN_PKG_WEIGHTLETS) {
        m->embd_bits =
            tn_section_payload(v, TN_W_EMBD, TN_PKG_CHANNEL_BITS, tn_channel_bits_bytes(n), -1, err);
        if (!m->embd_bits) return TERN_E_FORMAT;
    }
    m->embd_off[0] = 0;
    for (size_t i = 0; i < n_tiles; i++) {
        size_t end = (i + 1) * tile_n < n ? (i + 1) * tile_n : n;
        m->embd_off[i + 1] =
            m->embd_off[i] + (m->embd_bits ? tn_weightlets_bytes(m->embd_bits, i * tile_n, end, k)
                                           : tn_npu_tiles_bytes(m->layout, (int64_t)tile_n, r->k));
    }
    TN_FAIL_IF(m->embd_off[n_tiles] != tn_pkg_plain_bytes(r), err, TERN_E_FORMAT,
               "the embedding has %" PRIu64 " bytes, its shape and widths need %" PRIu64,
               tn_pkg_plain_bytes(r), m->embd_off[n_tiles]);
    return TERN_OK;
}

static tern_status open_model_level(tn_npu_model *m, tn_model *model, tern_error *err) {
    tn_hparams *h = &model->h;
    TN_FAIL_IF(!tn_pkg_find(m->pkg, TN_PKG_LM_HEAD, -1), err, TERN_E_FORMAT,
               "%s: the section of lm_head is missing", tn_pkg_path(m->pkg));
    TN_TRY(tn_table_open(m, h, err));
    TN_TRY(tn_room_small(m, -1, err));
    const tn_pkg_section *section = tn_pkg_find(m->pkg, TN_PKG_MODEL, -1);
    if (!m->map) TN_TRY(tn_pkg_read_small(m->pkg, section, m->small[0], err));
    else if (tn_pkg_small_bytes(m->pkg, section))
        TN_TRY(tn_pkg_check(m->pkg, section, NULL, 0, m->small[0], tn_pkg_small_bytes(m->pkg, section), err));
    const section_view v = tn_section_view(m, -1);
    uint64_t rope_bytes = (uint64_t)(h->n_rot / 2) * sizeof(float);
    const void *inv = tn_section_payload(&v, TN_W_Q_NORM, TN_PKG_F32, rope_bytes, -1, err);
    const void *inv_long = inv ? tn_section_payload(&v, TN_W_K_NORM, TN_PKG_F32, rope_bytes, -1, err) : NULL;
    if (!inv_long) return TERN_E_FORMAT;
    memcpy(h->inv_freq, inv, rope_bytes);
    memcpy(h->inv_freq_long, inv_long, rope_bytes);
    if (h->local_rope) {
        const void *local = tn_section_payload(&v, TN_W_ATTN_NORM, TN_PKG_F32, rope_bytes, -1, err);
        if (!local) return TERN_E_FORMAT;
        memcpy(h->inv_freq_local, local, rope_bytes);
    }
    float **top = model->top.vectors;
    TN_TRY(tn_section_vector(m->ctx, &v, h, -1, TN_W_OUT_NORM, true, &top[TN_W_OUT_NORM], err));
    TN_TRY(tn_section_vector(m->ctx, &v, h, -1, TN_W_OUT_NORM_B, false, &top[TN_W_OUT_NORM_B], err));
    tile_room room;
    tn_npu_site *lm_head = tn_npu_site_at(m, 0, TN_SITE_LM_HEAD);
    TN_TRY(tn_room_tiles(m, h, -1, &room, err));
    TN_TRY(tn_site_open(m, (int32_t)(lm_head - m->sites), &room, err));
    if (lm_head->has_outliers) TN_TRY(tn_site_read_hot(lm_head, &v, -1, err));
    const tn_pkg_record *r = tn_section_tiles(m, TN_W_EMBD, h->n_vocab, h->n_embd, -1, err);
    if (!r) return TERN_E_FORMAT;
    m->embd_packed = tn_npu_stays_packed(m, r);
    const tn_npu_weights_data *image = &lm_head->image[0];
    m->embd_weights =
        h->tied ? m->embd_packed ? (const int8_t *)image->packed : image->tiles
        : tn_npu_in_place(m, r)
            ? (const int8_t *)m->map->data + tn_pkg_find(m->pkg, TN_PKG_LM_HEAD, -1)->off_bytes + r->off_bytes
            : room.at[0] + tn_file_phase(tn_pkg_find(m->pkg, TN_PKG_LM_HEAD, -1), r);
    TN_TRY(open_embedding(m, &v, r, err));
    TN_TRY(tn_sites_read_rows(m, -1, err));
    m->embd_rotated = h->tied ? lm_head->rotated : 0;
    m->embd_scale = image->scale;
    if (!h->tied) {
        size_t n_pad = tn_padded(m, h->n_vocab);
        m->embd_scale = (const float *)room.rows;
        TN_TRY(tn_pkg_rows(v.records, v.n, v.base, TN_W_EMBD, n_pad, (float *)room.rows,
                           (int32_t *)(room.rows + 4 * n_pad), err));
    }
    const int64_t each = tn_pkg_is_coded(r) ? tn_pkg_stream_channels(true) : m->layout->tile_n;
    m->embd_tile_hash = tn_section_payload(&v, TN_W_EMBD, TN_PKG_TILE_HASH,
                                           (uint64_t)((h->n_vocab + each - 1) / each) * 4, -1, err);
    return m->embd_tile_hash ? TERN_OK : TERN_E_FORMAT;
}

static tern_status open_layer(tn_npu_model *m, const tn_hparams *h, int layer, tern_error *err) {
    tile_room room;
    TN_TRY(tn_room_small(m, layer, err));
    TN_TRY(tn_room_tiles(m, h, layer, &room, err));
    int32_t first, n = tn_program_layer_sites(&m->model->program, layer, &first);
    for (int32_t i = first; i < first + n; i++) TN_TRY(tn_site_open(m, i, &room, err));
    return TERN_OK;
}

/* Opens the package's compiled graphs. Without them they are compiled. */
static tern_status open_pkg_graphs(tn_npu_model *m, tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(m->pkg, TN_PKG_GRAPHS, -1);
    if (!s) return TERN_OK;
    m->graph_section = tn_alloc(m->ctx, TN_MEM_GRAPHS, s->size_bytes, 1);
    TN_FAIL_IF(!m->graph_section, err, TERN_E_MEMORY, "no memory for compiled graphs");
    TN_TRY(tn_pkg_read(m->pkg, s, m->graph_section, err));
    uint32_t n = 0;
    if (s->size_bytes >= 8) memcpy(&n, m->graph_section, sizeof n);
    TN_FAIL_IF(s->size_bytes < 8 || (s->size_bytes - 8) / sizeof(tn_pkg_graph) < n, err, TERN_E_FORMAT,
               "%s: %u compiled graphs do not fit their section", tn_pkg_path(m->pkg), n);
    m->pkg_graphs = (const tn_pkg_graph *)((const char *)m->graph_section + 8);
    for (uint32_t i = 0; i < n; i++) {
        TN_FAIL_IF(m->pkg_graphs[i].off_bytes > s->size_bytes ||
                       m->pkg_graphs[i].size_bytes > s->size_bytes - m->pkg_graphs[i].off_bytes,
                   err, TERN_E_FORMAT, "%s: compiled graph %u is outside its section", tn_pkg_path(m->pkg),
                   i);
    }
    m->n_pkg_graphs = n;
    return TERN_OK;
}

static tern_status read_tokenizer(tn_npu_model *m, uint8_t **blob, tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(m->pkg, TN_PKG_TOKENIZER, -1);
    if (!s) return TERN_OK;
    *blob = tn_alloc(m->ctx, TN_MEM_OTHER, s->size_bytes, 1);
    TN_FAIL_IF(!*blob, err, TERN_E_MEMORY, "no memory for the tokenizer");
    return tn_pkg_read(m->pkg, s, *blob, err);
}

/* Opens the tokenizer and takes the blob. */
static tern_status open_tokenizer(tn_npu_model *m, tn_model *model, uint8_t *blob, tern_error *err) {
    if (!blob) return TERN_OK;
    const tn_pkg_section *s = tn_pkg_find(m->pkg, TN_PKG_TOKENIZER, -1);
    tern_status st = tn_tokenizer_load(m->ctx, blob, s->size_bytes, &model->tokenizer, err);
    tn_free(m->ctx, blob);
    TN_TRY(st);
    TN_FAIL_IF(tn_tokenizer_n_vocab(model->tokenizer) > (size_t)model->h.n_vocab, err, TERN_E_FORMAT,
               "the tokenizer has %zu tokens, the embedding %d", tn_tokenizer_n_vocab(model->tokenizer),
               model->h.n_vocab);
    return TERN_OK;
}

static bool is_of_weights(const tn_pkg_section *s) {
    return s->kind == TN_PKG_MODEL || s->kind == TN_PKG_LAYER || s->kind == TN_PKG_LM_HEAD ||
           s->kind == TN_PKG_TABLE;
}

uint64_t tn_package_fingerprint(const tn_pkg *p, const tn_hparams *h) {
    uint64_t print = tn_hparams_identity(h);
    for (size_t i = 0; i < tn_pkg_n_sections(p); i++) {
        const tn_pkg_section *s = tn_pkg_section_at(p, i);
        if (is_of_weights(s) || s->kind == TN_PKG_TOKENIZER)
            print = XXH64(&s->xxh64, sizeof(uint64_t), print);
    }
    return print;
}

/* Allocates the arrays, with sizes from the index. */
static tern_status open_arrays(tn_npu_model *m, tn_model *model, const char *path,
                               const tn_npu_model_options *opt, tern_error *err) {
    tn_ctx *ctx = m->ctx;
    m->n_layers = model->h.n_layers;
    TN_TRY(tn_program_make(ctx, &model->h, &model->program, err));
    TN_TRY(tn_npu_model_read_heads(m, &model->h, err));
    size_t n_parts = (size_t)m->n_layers + 1;
    m->small = tn_calloc(ctx, TN_MEM_OTHER, n_parts, sizeof *m->small);
    m->small_blocks = tn_calloc(ctx, TN_MEM_OTHER, n_parts, sizeof *m->small_blocks);
    m->tile_blocks = tn_calloc(ctx, TN_MEM_OTHER, n_parts, sizeof *m->tile_blocks);
    m->row_blocks = tn_calloc(ctx, TN_MEM_OTHER, n_parts, sizeof *m->row_blocks);
    m->device_blocks = tn_calloc(ctx, TN_MEM_OTHER, n_parts, sizeof *m->device_blocks);
    m->sites = tn_calloc(ctx, TN_MEM_OTHER, (size_t)model->program.n_sites, sizeof *m->sites);
    m->n_sites = model->program.n_sites;
    model->layers = tn_calloc(ctx, TN_MEM_OTHER, (size_t)m->n_layers, sizeof *model->layers);
    TN_FAIL_IF(!m->small || !m->small_blocks || !m->tile_blocks || !m->row_blocks || !m->device_blocks ||
                   !m->sites || !model->layers,
               err, TERN_E_MEMORY, "no memory for a model");
    if (opt->load == TN_LOAD_MMAP) TN_TRY(tn_file_map(ctx, tn_pkg_fd(m->pkg), path, &m->map, err));
    for (size_t i = 0; i < tn_pkg_n_sections(m->pkg); i++) {
        const tn_pkg_section *s = tn_pkg_section_at(m->pkg, i);
        if (is_of_weights(s) && s->kind != TN_PKG_TABLE) /* which stays in the file */
            model->weight_bytes += s->size_bytes;
    }
    model->fingerprint = tn_package_fingerprint(m->pkg, &model->h);
    bool tuned = opt->tuned.chunk && opt->tuned.fingerprint == model->fingerprint;
    m->chunk = opt->chunk ? opt->chunk : tuned ? opt->tuned.chunk : TN_CHUNK_DEFAULT;
    /* one chunk reads a whole picture, whatever was measured on texts */
    if (!opt->chunk && m->chunk < TN_CHUNK_DEFAULT && tn_pictures_see_themselves(&model->h))
        m->chunk = TN_CHUNK_DEFAULT;
    if (tuned && m->chunk == opt->tuned.chunk) m->tuned = opt->tuned;
    if (tuned) m->tuned.attn_times = opt->tuned.attn_times; /* for chunks of any length */
    if (tuned) memcpy(m->tuned.packed_form, opt->tuned.packed_form, sizeof m->tuned.packed_form);
    return TERN_OK;
}

/* Checks that the device supports the options. */
static tern_status check_device(tn_npu_model *m, const tn_npu_model_options *opt, tern_error *err) {
    const tn_npu_caps *caps = tn_npu_device_caps(m->dev);
    TN_FAIL_IF(caps->layout.id != TN_NPU_LAYOUT_16X4, err, TERN_E_UNSUPPORTED,
               "device '%s' wants weights in layout %u, packages have them in %d: it cannot run one",
               caps->name, caps->layout.id, TN_NPU_LAYOUT_16X4);
    TN_FAIL_IF(caps->max_m < m->chunk, err, TERN_E_INVALID,
               "device '%s' runs at most %d rows at once, chunks have %d", caps->name, caps->max_m, m->chunk);
    TN_FAIL_IF(opt->cold_rows && strcmp(opt->cold_rows, "file") && strcmp(opt->cold_rows, "weights"), err,
               TERN_E_INVALID, "rows of cold channels from '%s': there are weights and file", opt->cold_rows);
    TN_FAIL_IF(opt->no_chunk_sharing && (opt->separate_weights || opt->memory_cap_bytes), err, TERN_E_INVALID,
               "graphs per chunk (no chunk sharing) need a device without a memory cap and without separate "
               "weights");
    TN_FAIL_IF(m->model->h.bidirectional, err, TERN_E_UNSUPPORTED,
               "packages of models that read texts as a whole are not run");
    TN_FAIL_IF(m->model->h.n_experts && (opt->no_chunk_sharing || !caps->shares_weights), err,
               TERN_E_UNSUPPORTED,
               "a mixture of experts needs a device whose graphs share their weights, and chunks that share "
               "graphs (no separate weights, chunk sharing)");
    m->no_chunk_sharing = opt->no_chunk_sharing;
    TN_FAIL_IF(
        opt->experts_bytes &&
            (!caps->has_parts || !caps->shares_weights || opt->memory_cap_bytes || opt->load == TN_LOAD_MMAP),
        err, TERN_E_INVALID,
        "experts on demand need the host device, not apart, without a memory cap, and a package that is "
        "not mapped");
    m->experts_bytes = m->model->h.n_experts ? opt->experts_bytes : 0;
    bool can_pack =
        caps->has_weightlets && caps->shares_weights && !opt->no_chunk_sharing && !opt->memory_cap_bytes;
    TN_FAIL_IF(opt->weights == TN_WEIGHTS_PACKED && !can_pack, err, TERN_E_INVALID,
               "weights that stay packed need a device that reads them (host), without a memory cap, "
               "separate weights or graphs per chunk");
    m->operators = opt->operators;
    TN_FAIL_IF(opt->operators && (!caps->shares_weights || opt->no_chunk_sharing || opt->separate_weights ||
                                  opt->weights == TN_WEIGHTS_PACKED),
               err, TERN_E_INVALID,
               "products operators needs a device whose graphs share weights, and weights that are neither "
               "packed nor of one chunk each");
    m->packed = opt->weights == TN_WEIGHTS_PACKED ||
                (opt->weights == TN_WEIGHTS_AUTO && can_pack && caps->packed_pays && !opt->operators);
    m->cold_from_file = opt->cold_rows ? !strcmp(opt->cold_rows, "file") : !caps->shared_memory;
    TN_FAIL_IF(!m->cold_from_file && !caps->shared_memory, err, TERN_E_INVALID,
               "the CPU cannot read the weights of device '%s': its cold rows come from the file",
               caps->name);
    m->layout = &caps->layout;
    m->by_operator = opt->operators || (opt->steals && !caps->has_parts && caps->cpu_computes &&
                                        caps->shares_weights && !opt->no_chunk_sharing);
    return TERN_OK;
}

static tern_status open_device(tn_npu_model *m, const tn_npu_model_options *opt, tern_error *err) {
    tn_ctx *ctx = m->ctx;
    tn_npu_options dev;
    tn_npu_options_defaults(&dev);
    dev.n_threads = opt->n_threads > 0 ? opt->n_threads : 1;
    dev.memory_cap_bytes = opt->memory_cap_bytes;
    dev.scratch_bytes = opt->scratch_bytes;
    dev.separate_weights = opt->separate_weights;
    dev.apart = opt->apart;
    TN_FAIL_IF(opt->apart && opt->backend && strcmp(opt->backend, "host"), err, TERN_E_INVALID,
               "device '%s' has silicon of its own: only the host device works apart", opt->backend);
    dev.kernels = m->kern;
    TN_TRY(tn_npu_open(ctx, opt->backend ? opt->backend : tn_npu_backend_name(0), &dev, &m->dev, err));
    TN_TRY(check_device(m, opt, err));
    const tn_npu_caps *caps = tn_npu_device_caps(m->dev);
    if (caps->memory_cap_bytes) {
        TN_TRY(tn_sites_place(m, caps->memory_cap_bytes, err));
        dev.memory_cap_bytes = 0;
        dev.separate_weights = dev.apart = false;
        if (m->n_on_cpu) TN_TRY(tn_npu_open(ctx, "host", &dev, &m->cpu_dev, err));
        if (m->n_on_cpu || opt->memory_cap_bytes)
            tn_log(ctx, TERN_LOG_INFO,
                   "%d of %d sites do not fit the device's %" PRIu64 " bytes and run on the CPU", m->n_on_cpu,
                   m->n_sites, caps->memory_cap_bytes);
    }
    return TERN_OK;
}

/* Makes graphs and memory for everything, then starts loading. */
static tern_status open_weights(tn_npu_model *m, tn_pool *pool, const char *path,
                                const tn_npu_model_options *opt, tern_error *err) {
    tn_model *model = m->model;
    const tn_npu_caps *caps = tn_npu_device_caps(m->dev);
    TN_TRY(open_pkg_graphs(m, err));
    TN_TRY(open_model_level(m, model, err));
    for (int i = 0; i < m->n_layers; i++) TN_TRY(open_layer(m, &model->h, i, err));
    TN_TRY(tn_package_next_open(m, err));
    if (m->n_compiled)
        tn_log(m->ctx, TERN_LOG_DEBUG, "%s: %d graphs are not in the package and were compiled", path,
               m->n_compiled);
    /* after the loader's reads the tokenizer's would have to wait; while it is made, layers arrive */
    uint8_t *tokenizer = NULL;
    tern_status rc = read_tokenizer(m, &tokenizer, err);
    if (rc == TERN_OK) rc = tn_loader_open(m, path, opt, &m->loader, err);
    if (rc != TERN_OK) {
        tn_free(m->ctx, tokenizer);
        return rc;
    }
    TN_TRY(open_tokenizer(m, model, tokenizer, err));
    /* graphs that are exchanged, or have copies of the weights, are made from loaded weights */
    bool now =
        opt->load != TN_LOAD_STREAM || m->experts_bytes || !caps->shares_weights || m->no_chunk_sharing;
    if (now) TN_TRY(tn_loader_finish(m->loader, pool, m->n_layers, err));
    if (m->experts_bytes) TN_TRY(tn_on_demand_open(m, path, m->experts_bytes, &opt->io, &m->on_demand, err));
    TN_FAIL_IF(!tn_progress(m->ctx, "load", 1), err, TERN_E_CANCELLED, "loading was cancelled");
    return caps->shares_weights ? TERN_OK : tn_switcher_open(m, opt, &m->switcher, err);
}

tern_status tn_npu_model_open(tn_ctx *ctx, tn_pool *pool, const tn_kernels *kern, const char *path,
                              const tn_npu_model_options *opt, tn_npu_model **out, tn_model **model_out,
                              tern_error *err) {
    *out = NULL;
    *model_out = NULL;
    tn_npu_model *m = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *m);
    tn_model *model = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *model);
    tern_status st;
    if (m) *m = (tn_npu_model){.ctx = ctx, .kern = kern, .model = model};
    if (model) model->ctx = ctx;
    TN_BAIL_IF(!m || !model, err, TERN_E_MEMORY, "no memory for a model");
    if (opt->pkg) {
        m->pkg = *opt->pkg;
        *opt->pkg = NULL;
    } else if ((st = tn_pkg_open(ctx, path, &m->pkg, err)) != TERN_OK) {
        goto out;
    }
    tn_pkg_fetch_front(m->pkg);
    if ((st = tn_package_hparams(ctx, m->pkg, &model->h, m->scheme, model->description, &model->n_params,
                                 err)) != TERN_OK)
        goto out;
    if ((st = open_arrays(m, model, path, opt, err)) != TERN_OK ||
        (st = open_device(m, opt, err)) != TERN_OK || (st = open_weights(m, pool, path, opt, err)) != TERN_OK)
        goto out;
    *out = m;
    *model_out = model;
    m = NULL;
    model = NULL;
out:
    tn_npu_model_close(&m); /* its loader may be writing to the model */
    if (model) tn_model_close(&model);
    return st;
}

void tn_npu_model_close(tn_npu_model **pm) {
    tn_npu_model *m = *pm;
    if (!m) return;
    *pm = NULL;
    tn_loader_close(&m->loader);            /* reads end here */
    tn_on_demand *on_demand = m->on_demand; /* graphs are loaded over its slots until the sites are closed */
    tn_free(m->ctx, m->embd_off);
    tn_free(m->ctx, m->attn_scale_q);
    tn_free(m->ctx, m->attn_scale_k);
    tn_free(m->ctx, m->attn_head_weight);
    tn_switcher_close(&m->switcher);
    for (int32_t i = 0; m->sites && i < m->n_sites; i++) {
        tn_npu_site *s = &m->sites[i];
        tn_site_close_experts(m, s);
        for (int f = 0; f < TN_N_FORMS; f++) tn_npu_graph_close(&s->graphs[f]);
        for (int op = 0; op < TN_SITE_MAX_OPS; op++) tn_npu_graph_close(&s->op_graphs[op]);
        for (int c = 0; c < TN_WAVE_CHUNKS - 1; c++) {
            tn_npu_graph_close(&s->chunk_graphs[c]);
            for (int w = 0; w < TN_SITE_MAX_OPS; w++) tn_npu_weights_close(&s->chunk_weights[c][w]);
        }
        for (int w = 0; w < TN_SITE_MAX_OPS; w++) tn_npu_weights_close(&s->weights[w]);
        tn_free(m->ctx, s->hot_rows);
    }
    tn_on_demand_close(&on_demand);
    for (int i = 0; m->device_blocks && i < m->n_layers + 1; i++)
        tn_npu_mem_free(m->dev, m->device_blocks[i]);
    tn_free(m->ctx, m->device_blocks);
    tn_npu_close(&m->dev);
    tn_npu_close(&m->cpu_dev);
    for (int i = 0; i < m->n_layers + 1; i++) {
        if (m->small_blocks) tn_free(m->ctx, m->small_blocks[i]);
        if (m->tile_blocks) tn_free(m->ctx, m->tile_blocks[i]);
        if (m->row_blocks) tn_free(m->ctx, m->row_blocks[i]);
    }
    tn_table_close(m);
    tn_free(m->ctx, m->next_block);
    tn_free(m->ctx, m->small);
    tn_free(m->ctx, m->small_blocks);
    tn_free(m->ctx, m->tile_blocks);
    tn_free(m->ctx, m->row_blocks);
    tn_free(m->ctx, m->graph_section);
    tn_file_close(&m->map);
    tn_free(m->ctx, m->sites);
    tn_pkg_close(&m->pkg);
    tn_free(m->ctx, m);
}

void tn_npu_model_embed(const tn_npu_model *m, const tn_hparams *h, int32_t id, float *out) {
    int8_t *q = (int8_t *)out; /* the row is unpacked into the beginning of out and widened from its end */
    bool packed;
    const int8_t *tile = tn_loader_row_tile(m->loader, id, &packed);
    if (packed)
        tn_weightlets_row((const uint8_t *)tile, m->embd_bits, (size_t)id, (size_t)h->n_vocab,
                          (size_t)h->n_embd, q);
    else tn_npu_tiles_row(m->layout, tile, id % m->layout->tile_n, h->n_embd, q);
    for (int32_t i = h->n_embd; i-- > 0;) {
        float v = (float)q[i] * m->embd_scale[id];
        memcpy((char *)out + (size_t)i * sizeof v, &v, sizeof v);
    }
    if (m->embd_rotated) /* its own inverse */
        tn_hadamard_wide(m->kern->hadamard_f32, out, (size_t)h->n_embd, (size_t)m->embd_rotated);
}
