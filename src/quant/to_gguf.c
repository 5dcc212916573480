/* quant/to_gguf.c - a quantised GGUF file from another, its weights rounded with knowledge of their inputs.
 * Keys and tensors are those of the source, in its order. Matrices that the layers multiply by become
 * what the form says; so do the output layer, or the embedding that serves as it, and any other
 * embedding, each weight by itself. The rest is unchanged. */
#include "base/status.h"
#include "formats/gguf.h"
#include "quant/packer.h"
#include "quant/round_blocks.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { ROWS = 16 };
static const float DAMPING = 0.01f;

/* ---- what becomes what ------------------------------------------------------------------------------- */

struct tn_gguf_form {
    const char *name;
    tn_dtype most, output;
    bool more;          /* values and down projections of some layers, and fused matrices, take more bits */
    uint32_t file_type; /* ggml's number */
};

static const tn_gguf_form forms[] = {
    {"q4_0", TN_Q4_0, TN_Q8_0, false, 2},
    {"q4_k_s", TN_Q4_K, TN_Q6_K, false, 14},
    {"q4_k_m", TN_Q4_K, TN_Q6_K, true, 15},
    {"q5_k_s", TN_Q5_K, TN_Q6_K, false, 16},
    {"q5_k_m", TN_Q5_K, TN_Q6_K, true, 17},
    {"q6_k", TN_Q6_K, TN_Q6_K, false, 18},
    {"iq4_xs", TN_IQ4_XS, TN_Q6_K, false, 30},
    {"iq4_nl", TN_IQ4_NL, TN_Q6_K, false, 25},
    {"q4_k", TN_Q4_K, TN_Q6_K, true, 15},
    {"q5_k", TN_Q5_K, TN_Q6_K, true, 17}}; /* the last two: other tools' words */

const tn_gguf_form *tn_gguf_form_named(const char *name) {
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (!strcasecmp(name, forms[i].name)) return &forms[i];
    return NULL;
}

static bool ends_in(const char *s, const char *tail) {
    const size_t n = strlen(s), k = strlen(tail);
    return n >= k && !strcmp(s + n - k, tail);
}

/* The layers in which llama.cpp's tools give values and down projections more bits. */
static bool takes_more(int layer, int n_layers) {
    return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

/* The type of a layer's matrix of that name, before its width is looked at. */
static tn_dtype type_in_layer(const tn_gguf_form *f, const char *name, int layer, int n_layers) {
    if (!f->more) return f->most;
    if (ends_in(name, ".attn_qkv.weight")) return f->most == TN_Q4_K ? TN_Q5_K : TN_Q6_K;
    const bool some = ends_in(name, ".attn_v.weight") || ends_in(name, ".ffn_down.weight") ||
                      ends_in(name, ".ffn_down_exps.weight");
    return some && takes_more(layer, n_layers) ? TN_Q6_K : f->most;
}

/* Rows that are no multiple of a block take blocks of 32. */
static tn_dtype type_of_width(tn_dtype d, int64_t k) {
    if (d == TN_Q8_0 || k % tn_block_form_of(d)->n == 0) return d;
    return d == TN_Q6_K ? TN_Q8_0 : d == TN_IQ4_XS ? TN_IQ4_NL : TN_Q5_0;
}

/* A tensor of the file that is written anew. */
typedef struct tensor {
    const tn_tensor *from;
    tn_dtype dtype;
    uint64_t n_bytes;
    bool anew;     /* or as it was */
    int32_t layer; /* after which all of it is there; -1: before the layers */
    uint8_t *data; /* from its first rows until it is written */
} tensor;

/* Tensors are written in the source's order, as soon as they and all before them are there. */
typedef struct writing {
    packer *p;
    tn_gguf *g;
    tn_gguf_writer *to;
    tensor *tensors;
    size_t n, n_written;
} writing;

/* ---- rounding ---------------------------------------------------------------------------------------- */

typedef struct job {
    const writing *w;
    const tn_factor *f;
    int layer;
    tn_role role;
    int64_t n;
    tensor *to;
    atomic_bool failed;
    tern_error err; /* of the first thread that failed */
} job;

/* The place of a role's row in the file's tensor, of which the role may be a part. */
static uint64_t file_row(const job *j, int64_t row) {
    const tn_tensor *t = tn_source_tensor(j->w->p->src, j->layer, j->role);
    const uint64_t row_bytes = tn_dtype_row_bytes(t->dtype, (uint64_t)j->f->k);
    return (uint64_t)(tn_source_row(j->w->p->src, j->layer, j->role, row) - t->data) / row_bytes;
}

static void round_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    job *j = arg;
    if (atomic_load(&j->failed)) return;
    packer *p = j->w->p;
    const int64_t n0 = (int64_t)i_item * ROWS, n1 = n0 + ROWS < j->n ? n0 + ROWS : j->n;
    const tn_block_form *form = tn_block_form_of(j->to->dtype); /* NULL: Q8_0 */
    const size_t k = (size_t)j->f->k, row_bytes = k / (size_t)tn_dtype_block(j->to->dtype) *
                                                  (size_t)tn_dtype_block_bytes(j->to->dtype);
    float *w = tn_alloc(p->ctx, TN_MEM_OTHER, ROWS * k, sizeof *w);
    float *scratch = tn_alloc(p->ctx, TN_MEM_OTHER, tn_round_blocks_scratch(j->f), sizeof *scratch);
    uint8_t *out = tn_alloc(p->ctx, TN_MEM_OTHER, ROWS * row_bytes, 1);
    tern_error err;
    tern_status st = w && scratch && out ? tn_source_read(p->src, j->layer, j->role, n0, n1, w, &err)
                                         : tn_fail(&err, TERN_E_MEMORY, "no memory to round weights");
    if (st == TERN_OK && !form) tn_quantise_q8_0(w, out, (uint64_t)(n1 - n0) * k);
    else if (st == TERN_OK) tn_round_blocks(j->f, &p->kern, form, w, (int32_t)(n1 - n0), out, scratch);
    for (int64_t n = n0; n < n1 && st == TERN_OK; n++)
        memcpy(j->to->data + file_row(j, n) * row_bytes, out + (size_t)(n - n0) * row_bytes, row_bytes);
    if (st != TERN_OK && !atomic_exchange(&j->failed, true)) j->err = err;
    tn_free(p->ctx, w);
    tn_free(p->ctx, scratch);
    tn_free(p->ctx, out);
}

static tensor *tensor_of(const writing *w, int layer, tn_role role) {
    const tn_tensor *t = tn_source_tensor(w->p->src, layer, role);
    for (size_t i = 0; t && i < w->n; i++)
        if (!strcmp(w->tensors[i].from->name, t->name)) return &w->tensors[i];
    return NULL;
}

static tern_status round_role(const writing *w, int layer, tn_role role, int64_t n, const tn_factor *f) {
    tensor *to = tensor_of(w, layer, role);
    if (!to || !to->anew) return TERN_OK;
    if (!to->data) to->data = tn_calloc(w->p->ctx, TN_MEM_OTHER, to->n_bytes, 1);
    TN_FAIL_IF(!to->data, w->p->err, TERN_E_MEMORY, "no memory for the blocks of %s", to->from->name);
    job j = {.w = w, .f = f, .layer = layer, .role = role, .n = n, .to = to};
    tn_pool_for(w->p->pool, (int)((n + ROWS - 1) / ROWS), round_item, &j);
    if (!atomic_load(&j.failed)) return TERN_OK;
    *w->p->err = j.err;
    return j.err.code;
}

static void capture_input(void *user, int layer, tn_site site, float *x, size_t ldx, int32_t n_rows) {
    (void)layer;
    tn_capture_add(user, site, x, ldx, n_rows);
}

static void capture_route(void *user, int layer, const float *chosen) {
    (void)layer;
    tn_capture_route(user, chosen);
}

/* All linears of a site; experts share the inputs of all. */
static tern_status round_site(const writing *w, int layer, tn_site site, const tn_capture *c) {
    packer *p = w->p;
    const int32_t i_site = tn_program_site_index(&p->m->program, layer, site);
    const tn_site_ops *ops = tn_program_linears(&p->m->program, i_site);
    const tn_inputs in = tn_capture_inputs(c, site);
    tn_factor f;
    tn_stage_enter(&p->clock, TN_STAGE_FACTOR);
    TN_TRY(tn_factor_make(p->ctx, p->pool, &p->kern, in.x, in.n_rows, ops->k, DAMPING,
                          p->o->quick ? TN_GRAM_BLOCK_QUICK : TN_GRAM_BLOCK_MAX, &f, p->err));
    tn_stage_enter(&p->clock, TN_STAGE_ROUND);
    tern_status st = TERN_OK;
    for (int32_t op = 0; op < ops->n_ops && st == TERN_OK; op++)
        st = round_role(w, layer, ops->roles[op], ops->n[op], &f);
    tn_factor_close(&f);
    return st;
}

static tern_status round_layer(const writing *w, tn_corpus *corpus, int layer) {
    packer *p = w->p;
    tn_capture c;
    tn_stage_enter(&p->clock, TN_STAGE_FORWARD);
    TN_TRY(tn_capture_open(p->ctx, &p->m->program, layer, corpus->n_tok, &c, p->err));
    tern_status st = tn_corpus_begin_layer(corpus, layer, p->err);
    if (st == TERN_OK) {
        tn_forward_hooks hooks = {.site_input = capture_input, .routed = capture_route, .user = &c};
        tn_corpus_pass(corpus, layer, &hooks, true);
    }
    int32_t first, n = tn_program_layer_sites(&p->m->program, layer, &first);
    for (int32_t i = first; i < first + n && st == TERN_OK; i++)
        st = round_site(w, layer, p->m->program.sites[i].kind, &c);
    tn_capture_close(&c);
    tn_corpus_end_layer(corpus, layer);
    return st;
}

/* Writes what is there after a layer. */
static tern_status write_tensors(writing *w, int32_t layer) {
    for (; w->n_written < w->n; w->n_written++) {
        tensor *t = &w->tensors[w->n_written];
        if (t->anew && t->layer > layer) return TERN_OK;
        tn_stage_enter(&w->p->clock, TN_STAGE_WRITE);
        TN_TRY(tn_gguf_write(w->to, t->anew ? t->data : t->from->data, t->n_bytes, w->p->err));
        tn_free(w->p->ctx, t->data);
        t->data = NULL;
    }
    return TERN_OK;
}

/* The embedding and the output layer, whose rows nothing is known of. */
static tern_status round_words(writing *w) {
    const tn_hparams *h = &w->p->m->h;
    const tn_factor none = {.ctx = w->p->ctx, .k = h->n_embd};
    tn_stage_enter(&w->p->clock, TN_STAGE_ROUND);
    TN_TRY(round_role(w, -1, TN_W_EMBD, h->n_vocab, &none));
    return h->tied ? TERN_OK : round_role(w, -1, TN_W_OUT, h->n_vocab, &none);
}

static tern_status round_all(writing *w, const tn_calib_text *text, int32_t window) {
    packer *p = w->p;
    const tn_hparams *h = &p->m->h;
    TN_TRY(round_words(w));
    TN_TRY(write_tensors(w, -1));
    tn_corpus corpus = {.kern = &p->kern,
                        .pool = p->pool,
                        .src = p->src,
                        .m = p->m,
                        .ids = text->ids,
                        .n_tok = text->n,
                        .window = window};
    tern_status st = tn_corpus_open(&corpus, p->err);
    for (int i = 0; i < h->n_layers && st == TERN_OK; i++) {
        st = round_layer(w, &corpus, i);
        if (st == TERN_OK) st = write_tensors(w, i);
        if (st == TERN_OK && !tn_progress(p->ctx, "calibrate", (i + 1.0) / h->n_layers))
            st = tn_fail(p->err, TERN_E_CANCELLED, "calibration was cancelled");
    }
    tn_corpus_close(&corpus);
    return st;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

/* A matrix that is written anew as dtype, or as what takes its place for such rows. */
static void anew(writing *w, int layer, tn_role role, int64_t k, tn_dtype dtype) {
    tensor *t = tensor_of(w, layer, role);
    if (!t || k % 32) return;
    t->layer = layer; /* the last of its roles counts */
    if (t->anew) return;
    t->anew = true;
    t->dtype = dtype = type_of_width(dtype, k);
    t->n_bytes =
        tn_tensor_values(t->from) / (uint64_t)tn_dtype_block(dtype) * (uint64_t)tn_dtype_block_bytes(dtype);
}

static tern_status plan(writing *w) {
    packer *p = w->p;
    const tn_program *prog = &p->m->program;
    const tn_gguf_form *f = p->o->gguf_form;
    w->n = tn_gguf_n_tensors(w->g);
    w->tensors = tn_calloc(p->ctx, TN_MEM_OTHER, w->n, sizeof *w->tensors);
    TN_FAIL_IF(!w->tensors, p->err, TERN_E_MEMORY, "no memory for %zu tensors", w->n);
    for (size_t i = 0; i < w->n; i++) {
        const tn_tensor *t = tn_gguf_tensor_at(w->g, i);
        w->tensors[i] = (tensor){.from = t, .dtype = t->dtype, .n_bytes = t->size_bytes};
    }
    anew(w, -1, TN_W_EMBD, p->m->h.n_embd, p->m->h.tied ? f->output : f->most);
    if (!p->m->h.tied) anew(w, -1, TN_W_OUT, p->m->h.n_embd, f->output);
    for (int layer = 0; layer < prog->n_layers; layer++) {
        int32_t first, n = tn_program_layer_sites(prog, layer, &first);
        for (int32_t i = first; i < first + n; i++) {
            const tn_site_ops *ops = tn_program_linears(prog, i);
            for (int32_t op = 0; op < ops->n_ops; op++) {
                const tensor *t = tensor_of(w, layer, ops->roles[op]);
                if (!t) continue;
                anew(w, layer, ops->roles[op], ops->k,
                     type_in_layer(f, t->from->name, layer, prog->n_layers));
            }
        }
    }
    return TERN_OK;
}

/* All in front of the tensors' bytes. */
static tern_status begin_file(writing *w, const char *out) {
    packer *p = w->p;
    TN_TRY(tn_gguf_create_new(p->ctx, out, &w->to, p->err));
    tn_gguf_writer *to = w->to;
    static const char *const changed[] = {"general.file_type",
                                          "general.quantization_version",
                                          "general.alignment",
                                          "split.no",
                                          "split.count",
                                          "split.tensors.count",
                                          NULL};
    tn_gguf_put_keys(to, w->g, changed);
    tn_gguf_put_u32(to, "general.file_type", w->p->o->gguf_form->file_type);
    tn_gguf_put_u32(to, "general.quantization_version", 2);
    uint64_t bits = 0, values = 0;
    for (size_t i = 0; i < w->n; i++) {
        const tensor *t = &w->tensors[i];
        tn_gguf_add_tensor(to, t->from->name, t->dtype, t->from->n_dims, t->from->dims);
        if (!t->anew) continue;
        bits += 8 * t->n_bytes;
        values += t->n_bytes / (uint64_t)tn_dtype_block_bytes(t->dtype) * (uint64_t)tn_dtype_block(t->dtype);
    }
    p->report->bits = values ? (double)bits / (double)values : 0;
    return tn_gguf_begin_data(to, p->err);
}

tern_status tn_pack_to_gguf(packer *p, const tn_calib_text *text, int32_t window, const char *out) {
    writing w = {.p = p};
    struct stat sb;
    TN_FAIL_IF(!stat(p->source_path, &sb) && S_ISDIR(sb.st_mode), p->err, TERN_E_UNSUPPORTED,
               "%s is a folder; a GGUF file is written from a GGUF file (llama.cpp's convert_hf_to_gguf.py "
               "makes one)",
               p->source_path);
    TN_TRY(tn_gguf_open(p->ctx, p->source_path, &w.g, p->err));
    tern_status st = plan(&w);
    if (st == TERN_OK) st = begin_file(&w, out);
    if (st == TERN_OK) st = round_all(&w, text, window);
    tn_stage_enter(&p->clock, TN_STAGE_WRITE);
    if (st == TERN_OK) st = tn_gguf_finish(&w.to, p->err);
    tn_gguf_abort(&w.to);
    for (size_t i = 0; w.tensors && i < w.n; i++) tn_free(p->ctx, w.tensors[i].data);
    tn_free(p->ctx, w.tensors);
    tn_gguf_close(&w.g);
    return st;
}
