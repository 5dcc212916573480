/* tern inspect - what is in a model file, and what this processor can do. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/inspect.h"
#include "cli/output.h"
#include "cli/packing.h"
#include "cli/stats.h"

#include "base/cpu.h"
#include "base/status.h"
#include "package/npu_model.h"
#include "formats/package.h"
#include "formats/packed.h"
#include "kernels/unpack.h"
#include "model/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *kind_name(uint32_t kind) {
    static const char *const names[] = {"?",      "meta", "tokenizer", "model", "layer", "shadow",
                                        "graphs", "head", "smoothing", "table", "mtp"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : "?";
}

static json_t *hparams_json(const tn_hparams *h) {
    json_t *j = tn_json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:i, s:f}", "arch",
                             h->arch, "name", h->name, "layers", h->n_layers, "embedding", h->n_embd, "heads",
                             h->n_heads, "kv_heads", h->n_kv_heads, "head_size", h->d_head, "feed_forward",
                             h->n_ff, "vocabulary", h->n_vocab, "context", h->ctx_train, "tied", h->tied,
                             "window", h->window, "rope_base", h->rope_base);
    if (h->n_next) tn_json_set(&j, "mtp_layers", json_integer(h->n_next));
    if (h->n_experts)
        tn_json_set(&j, "experts",
                    tn_json_pack("{s:i, s:i, s:i, s:b, s:i}", "number", h->n_experts, "used",
                                 h->n_experts_used, "feed_forward", h->n_ff_exp, "shared", h->shared_expert,
                                 "dense_layers", h->n_dense));
    return j;
}

static void print_hparams(const tn_hparams *h) {
    printf("architecture   %s%s%s\n", h->arch, h->name[0] ? ", " : "", cli_shown(h->name));
    printf("layers         %d of width %d, feed-forward %d\n", h->n_layers, h->n_embd, h->n_ff);
    if (h->n_experts)
        printf("experts        %d of %d a token, feed-forward %d%s\n", h->n_experts_used, h->n_experts,
               h->n_ff_exp,
               h->shared_expert    ? ", beside a shared one"
               : h->experts_beside ? ", beside a dense block"
                                   : "");
    printf("attention      %d heads of %d, %d KV heads%s\n", h->n_heads, h->d_head, h->n_kv_heads,
           h->window ? ", sliding window" : "");
    if (h->window_d_head || h->window_kv_heads)
        printf("               with a window %d heads of %d, %d KV heads\n", h->n_heads,
               h->window_d_head ? h->window_d_head : h->d_head,
               h->window_kv_heads ? h->window_kv_heads : h->n_kv_heads);
    if (h->n_kv_shared)
        printf("               the last %d layers read keys and values of earlier ones; feed-forward %d\n",
               h->n_kv_shared, h->n_ff_shared ? h->n_ff_shared : h->n_ff);
    if (h->n_streams)
        printf("streams        %d, of which layers work on the first (AltUp); rank of the product beside "
               "attention %d\n",
               h->n_streams, h->laurel_rank);
    if (h->n_sparse)
        printf("sparse gates   in %d layers, of what is %g deviations above the mean\n", h->n_sparse,
               (double)h->sparse_deviations);
    if (h->n_ple) printf("layer inputs   %d values of a token for every layer\n", h->n_ple);
    if (h->n_next) printf("guesses        one token further by a layer of its own (MTP)\n");
    printf("vocabulary     %d%s\ncontext        %d tokens\n", h->n_vocab,
           h->tied ? " (head tied to the embedding)" : "", h->ctx_train);
}

uint64_t cli_count_params(const tn_source *s) {
    const tn_hparams *h = tn_source_hparams(s);
    uint64_t n = 0;
    for (int layer = -1; layer < h->n_layers; layer++) {
        for (int r = 0; r < TN_W_N_ROLES; r++) {
            if (tn_role_of_model((tn_role)r) != (layer < 0)) continue;
            int64_t rows, cols;
            tn_role_shape(h, layer, (tn_role)r, &rows, &cols);
            if (tn_source_has(s, layer, (tn_role)r)) n += (uint64_t)(rows * cols);
        }
    }
    return n;
}

/* A number for each way in which tensors are stored: types, none that is read, ways of packing. */
enum { N_STORED = TN_N_DTYPES + TN_PACKING_MLX + 1 };
static int stored_as(const tn_tensor *t) {
    return t->packed ? TN_N_DTYPES + (int)t->packed->kind : (int)t->dtype;
}
static const char *stored_name(int i) {
    if (i > TN_N_DTYPES) return tn_packing_name((tn_packing)(i - TN_N_DTYPES));
    return i < TN_N_DTYPES ? tn_dtype_name((tn_dtype)i) : "?";
}

/* Tells how much of the file each storage type takes. */
static json_t *storage_json(const tn_source *s) {
    struct {
        json_int_t n, bytes;
    } by[N_STORED] = {0};
    for (size_t i = 0; i < tn_source_n_tensors(s); i++) {
        const tn_tensor *t = tn_source_tensor_at(s, i);
        by[stored_as(t)].n++;
        by[stored_as(t)].bytes += (json_int_t)t->size_bytes;
    }
    json_t *a = json_array();
    for (int d = 0; d < N_STORED; d++) {
        if (by[d].n)
            tn_json_append(&a, tn_json_pack("{s:s, s:I, s:I}", "type", stored_name(d), "tensors", by[d].n,
                                            "bytes", by[d].bytes));
    }
    return a;
}

static json_t *tensors_json(const tn_source *s) {
    json_t *a = json_array();
    for (size_t i = 0; i < tn_source_n_tensors(s); i++) {
        const tn_tensor *t = tn_source_tensor_at(s, i);
        json_t *dims = json_array();
        for (int32_t d = 0; d < t->n_dims; d++) tn_json_append(&dims, json_integer((json_int_t)t->dims[d]));
        tn_json_append(&a, tn_json_pack("{s:s, s:s, s:o, s:I, s:I}", "name", t->name, "type",
                                        stored_name(stored_as(t)), "shape", dims, "offset",
                                        (json_int_t)t->off_bytes, "bytes", (json_int_t)t->size_bytes));
    }
    return a;
}

static void print_tensors(const tn_source *s) {
    printf("\n%-48s %-6s %16s %14s %14s\n", "tensor", "type", "shape", "offset", "bytes");
    for (size_t i = 0; i < tn_source_n_tensors(s); i++) {
        const tn_tensor *t = tn_source_tensor_at(s, i);
        char shape[96] = "";
        for (int32_t d = 0, n = 0; d < t->n_dims; d++)
            n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%" PRIu64, d ? "x" : "", t->dims[d]);
        printf("%-48s %-6s %16s %14" PRIu64 " %14" PRIu64 "\n", cli_shown(t->name), stored_name(stored_as(t)),
               shape, t->off_bytes, t->size_bytes);
    }
}

static const char *tokenizer_name(const tn_tokenizer *t) {
    return !t                                         ? "none"
           : tn_tokenizer_kind(t) == TN_TOK_BPE_BYTES ? "byte-level BPE"
           : tn_tokenizer_kind(t) == TN_TOK_LONGEST   ? "longest tokens"
                                                      : "SentencePiece BPE";
}

/* The kinds of state that a layer writes. */
static uint32_t state_of(const tn_op *op, int32_t n) {
    uint32_t kinds = 0;
    for (int32_t i = 0; i < n; i++) kinds |= op[i].state_writes;
    return kinds;
}

/* What a layer does, in one line: "norm, qkv, rope, attention of 512 tokens, o, residual, ...". */
static void describe_layer(const tn_program *p, int32_t layer, char *line, size_t cap) {
    int32_t n;
    const tn_op *op = tn_program_layer(p, layer, &n);
    size_t at = 0;
    for (int32_t i = 0; i < n && at < cap; i++) {
        char more[64] = "";
        if (op[i].kind == TN_OP_ATTEND && op[i].attend.window)
            snprintf(more, sizeof more, " of %d tokens", op[i].attend.window);
        if (op[i].kind == TN_OP_ROPE && (!op[i].rope.n_rot || op[i].rope.table))
            snprintf(more, sizeof more, op[i].rope.table ? " (local)" : " (none)");
        if (op[i].kind == TN_OP_ROPE && op[i].rope.v_is_k) snprintf(more, sizeof more, " (values as keys)");
        if (op[i].kind == TN_OP_ATTEND && !(state_of(op, n) >> TN_STATE_KV & 1))
            snprintf(more, sizeof more, " of an earlier layer%s",
                     op[i].attend.window ? " within the window" : "");
        if (op[i].kind == TN_OP_CONV) snprintf(more, sizeof more, " of %d", op[i].conv.len);
        if (op[i].kind == TN_OP_ROUTE)
            snprintf(more, sizeof more, " %d of %d", op[i].experts.used, op[i].experts.n);
        at += (size_t)snprintf(line + at, cap - at, "%s%s%s", i ? ", " : "", op[i].name, more);
    }
}

/* Layers that do the same, together. */
static void print_program(tn_ctx *ctx, const tn_hparams *h) {
    tn_program p;
    tern_error err;
    char line[512], other[512];
    if (tn_program_make(ctx, h, &p, &err) != TERN_OK) return;
    for (int32_t layer = 0; layer < h->n_layers; layer++) {
        bool first = true;
        describe_layer(&p, layer, line, sizeof line);
        for (int32_t l = 0; l < layer && first; l++) {
            describe_layer(&p, l, other, sizeof other);
            first = strcmp(line, other) != 0;
        }
        if (!first) continue;
        printf(layer ? "               layer" : "program        layer");
        for (int32_t l = layer, n = 0; l < h->n_layers; l++) {
            describe_layer(&p, l, other, sizeof other);
            if (strcmp(line, other)) continue;
            if (n++ < 12) printf(" %d", l);
            else if (n == 13) printf(" ...");
        }
        printf(": %s\n", line);
    }
    tn_program_free(&p);
}

/* Which of the two answers come from, the file or a package that tern made of it. */
static json_t *answers_json(const char *path) {
    char package[TN_CACHE_PATH];
    packing_when when;
    tn_cache_about about;
    if (!cli_packing_parse(NULL, &when) || when == PACKING_NEVER || !cli_packing_find(path, package))
        return tn_json_pack("{s:s}", "from", "file");
    json_t *j = tn_json_pack("{s:s, s:s}", "from", "cache", "package", package);
    tn_cache_about_get(package, &about);
    tn_cache_about_json(&about, &j);
    return j;
}

static void print_answers(const json_t *answers) {
    const char *package = json_string_value(json_object_get(answers, "package"));
    tn_cache_about about;
    char words[160];
    if (!package) return;
    tn_cache_about_get(package, &about);
    printf("answers        from its package, unless --pack never: %s\n               %s\n",
           cli_packing_words(&about, words, sizeof words), cli_shown(package));
}

static int inspect_source(tn_ctx *ctx, const char *path, bool json, bool tensors) {
    tn_source *s;
    tern_error err;
    tern_status st = tn_source_open(ctx, path, &s, &err);
    if (st == TERN_E_UNSUPPORTED) return cli_inspect_foreign(ctx, path, &err, json, tensors);
    if (st != TERN_OK) return cli_failed(&err);
    const tn_hparams *h = tn_source_hparams(s);
    const tn_tokenizer *t = tn_source_tokenizer(s);
    uint64_t n_params = cli_count_params(s);
    json_t *storage = storage_json(s);
    int rc = storage ? EXIT_OK : cli_failed_text("no memory to describe %s", path);
    if (rc == EXIT_OK && json) {
        json_t *j = tn_json_pack("{s:s, s:s, s:I, s:I, s:s, s:O, s:o}", "file", path, "format",
                                 tn_source_description(s), "parameters", (json_int_t)n_params, "tokens",
                                 (json_int_t)(t ? tn_tokenizer_n_vocab(t) : 0), "tokenizer",
                                 tokenizer_name(t), "storage", storage, "hyperparameters", hparams_json(h));
        tn_json_set(&j, "answers", answers_json(path));
        if (tensors) tn_json_set(&j, "tensors", tensors_json(s));
        rc = cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    } else if (rc == EXIT_OK) {
        printf("format         %s\n", tn_source_description(s));
        print_hparams(h);
        printf("parameters     %.1f million\ntokenizer      %s", (double)n_params * 1e-6, tokenizer_name(t));
        if (t) printf(", %zu tokens", tn_tokenizer_n_vocab(t));
        size_t i;
        json_t *v;
        json_array_foreach(storage, i, v) {
            printf("\n%-14s %-6s %lld tensors, %.1f MB", i ? "" : "storage",
                   json_string_value(json_object_get(v, "type")),
                   json_integer_value(json_object_get(v, "tensors")),
                   (double)json_integer_value(json_object_get(v, "bytes")) * 1e-6);
        }
        putchar('\n');
        json_t *answers = answers_json(path);
        print_answers(answers);
        json_decref(answers);
        print_program(ctx, h);
        if (tensors) print_tensors(s);
    }
    json_decref(storage);
    tn_source_close(&s);
    return rc;
}

/* Counts the compiled graphs of each number of rows: {"256": 112, "32": 113}. */
static void count_graphs(const char *base, uint64_t n_bytes, json_t **graphs) {
    uint32_t n = 0;
    if (n_bytes >= 8) memcpy(&n, base, sizeof n);
    for (uint32_t i = 0; i < n && (n_bytes - 8) / sizeof(tn_pkg_graph) > i; i++) {
        tn_pkg_graph g;
        char rows[16];
        memcpy(&g, base + 8 + i * sizeof g, sizeof g);
        snprintf(rows, sizeof rows, "%d", g.m);
        tn_json_set(graphs, rows, json_integer(json_integer_value(json_object_get(*graphs, rows)) + 1));
    }
}

/* Reads a section whole, which checks it. The records of tensor sections are listed into `sites`, and graphs
 * are counted. */
static tern_status read_section(tn_ctx *ctx, const tn_pkg *p, const tn_pkg_section *s, json_t **sites,
                                json_t **graphs, tern_error *err) {
    char *base = tn_alloc(ctx, TN_MEM_OTHER, s->size_bytes, 1);
    TN_FAIL_IF(!base, err, TERN_E_MEMORY, "no memory for a section of %" PRIu64 " bytes", s->size_bytes);
    tern_status st = tn_pkg_read(p, s, base, err);
    if (st == TERN_OK && s->kind == TN_PKG_GRAPHS) count_graphs(base, s->size_bytes, graphs);
    size_t n = 0;
    const tn_pkg_record *r = tn_pkg_records(p, s, &n);
    if (st != TERN_OK || (s->kind != TN_PKG_LAYER && s->kind != TN_PKG_LM_HEAD)) n = 0;
    for (size_t i = 0; i < n; i++) {
        if ((r[i].part != TN_PKG_TILES && r[i].part != TN_PKG_WEIGHTLETS) || r[i].role >= TN_W_N_ROLES)
            continue;
        const tn_pkg_record *hot = tn_pkg_record_find(r, n, r[i].role, TN_PKG_HOT);
        json_t *site = tn_json_pack(
            "{s:i, s:s, s:I, s:I, s:I, s:f, s:b, s:I}", "layer", (int)s->layer, "linear",
            tn_role_name((tn_role)r[i].role), "outputs", (json_int_t)r[i].n, "inputs", (json_int_t)r[i].k,
            "bytes", (json_int_t)r[i].size_bytes, "act_scale", (double)r[i].act_scale, "outlier_path",
            (int)((r[i].flags & TN_PKG_HAS_OUTLIERS) != 0), "hot_channels", (json_int_t)(hot ? hot->n : 0));
        if (tn_pkg_is_coded(&r[i]))
            tn_json_set(&site, "decoded_bytes", json_integer((json_int_t)r[i].plain_bytes));
        const uint8_t *bits;
        const tn_pkg_record *weightlets;
        bool head = s->kind == TN_PKG_LM_HEAD; /* its widths are in MODEL */
        if (head && r[i].part == TN_PKG_WEIGHTLETS && r[i].n > 0 && r[i].k > 0)
            tn_json_set(&site, "bits",
                        tn_json_real((double)tn_pkg_plain_bytes(&r[i]) / 16 /
                                     ((double)r[i].n * (double)((r[i].k + 127) / 128))));
        if (r[i].part == TN_PKG_WEIGHTLETS && st == TERN_OK && !head)
            st = tn_pkg_weightlets(r, n, base, r[i].role, r[i].n, r[i].k, &bits, &weightlets, err);
        if (r[i].part == TN_PKG_WEIGHTLETS && st == TERN_OK && !head) {
            json_int_t count[8] = {0};
            for (size_t c = 0; c < (size_t)r[i].n; c++) count[tn_channel_bits_get(bits, c) - 1]++;
            json_t *histogram = json_array();
            for (int b = 0; b < 8; b++) tn_json_append(&histogram, json_integer(count[b]));
            tn_json_set(&site, "channels_by_bits", histogram); /* of 1, 2 ... 8 bits */
        }
        tn_json_append(sites, site);
    }
    tn_free(ctx, base);
    return st;
}

/* Inspects a package and closes p. */
static void print_linears(const json_t *sites) {
    size_t i;
    json_t *v;
    printf("\n%5s %-12s %15s %10s %5s %11s  %-13s %s\n", "layer", "linear", "out x in", "bytes", "bits",
           "input scale", "outlier path", "channels of 1, 2 ... 8 bits");
    json_array_foreach(sites, i, v) {
        bool path_on = json_is_true(json_object_get(v, "outlier_path"));
        json_int_t outputs = json_integer_value(json_object_get(v, "outputs"));
        const json_t *histogram = json_object_get(v, "channels_by_bits");
        char hot[32] = "-";
        const json_t *average = json_object_get(v, "bits");
        double bits = histogram ? 0 : average ? json_number_value(average) : 8;
        for (size_t b = 0; b < json_array_size(histogram); b++)
            bits +=
                (double)(b + 1) * (double)json_integer_value(json_array_get(histogram, b)) / (double)outputs;
        if (path_on)
            snprintf(hot, sizeof hot, "%lld hot", json_integer_value(json_object_get(v, "hot_channels")));
        printf("%5lld %-12s %7lld x %-6lld %10lld %5.2f %11.5g  %-13s",
               json_integer_value(json_object_get(v, "layer")),
               json_string_value(json_object_get(v, "linear")), outputs,
               json_integer_value(json_object_get(v, "inputs")),
               json_integer_value(json_object_get(v, "bytes")), bits,
               json_real_value(json_object_get(v, "act_scale")), hot);
        for (size_t b = 0; b < json_array_size(histogram); b++)
            printf(" %lld", json_integer_value(json_array_get(histogram, b)));
        putchar('\n');
    }
}

static int inspect_package(tn_ctx *ctx, tn_pkg *p, const char *path, bool json, bool tensors) {
    tern_error err;
    tn_hparams h;
    char scheme[24], description[64];
    uint64_t n_params;
    json_t *sections = json_array(), *sites = json_array(), *graphs = json_object();
    tn_attn_times times = {0};
    tern_status st = tn_package_hparams(ctx, p, &h, scheme, description, &n_params, &err);
    if (st == TERN_OK) st = tn_package_attn_times(ctx, p, &times, &err);
    for (size_t i = 0; i < tn_pkg_n_sections(p) && st == TERN_OK; i++) {
        const tn_pkg_section *s = tn_pkg_section_at(p, i);
        st = read_section(ctx, p, s, &sites, &graphs, &err);
        tn_json_append(&sections, tn_json_pack("{s:s, s:i, s:I, s:I}", "kind", kind_name(s->kind), "layer",
                                               (int)s->layer, "offset", (json_int_t)s->off_bytes, "bytes",
                                               (json_int_t)s->size_bytes));
    }
    char format[40];
    snprintf(format, sizeof format, "tern package, version %d", TN_PKG_VERSION); /* the only one that opens */
    if (st == TERN_OK && (!sections || !sites || !graphs))
        st = tn_fail(&err, TERN_E_MEMORY, "no memory to describe %s", path);
    int rc = st == TERN_OK ? EXIT_OK : cli_failed(&err);
    if (rc == EXIT_OK && json) {
        json_t *j =
            tn_json_pack("{s:s, s:s, s:s, s:I, s:o, s:O, s:O, s:O}", "file", path, "format", format, "scheme",
                         scheme, "parameters", (json_int_t)n_params, "hyperparameters", hparams_json(&h),
                         "sections", sections, "graphs_by_rows", graphs, "linears", sites);
        if (times.n_widths) tn_json_set(&j, "attention_times", tn_attn_times_json(&times));
        rc = cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    } else if (rc == EXIT_OK) {
        printf("format         %s, scheme %s; all checksums hold\n", format, scheme);
        print_hparams(&h);
        if (times.n_widths) cli_print_attn_times(&times);
        printf("parameters     %.1f million\ngraphs         ", (double)n_params * 1e-6);
        const char *rows;
        json_t *v;
        bool first = true;
        json_object_foreach(graphs, rows, v) {
            printf("%s%lld of %s rows", first ? "" : ", ", json_integer_value(v), rows);
            first = false;
        }
        printf("%s\n\n%-10s %6s %12s %12s\n", first ? "none" : "", "section", "layer", "offset", "bytes");
        size_t i;
        json_array_foreach(sections, i, v) {
            printf("%-10s %6lld %12lld %12lld\n", json_string_value(json_object_get(v, "kind")),
                   json_integer_value(json_object_get(v, "layer")),
                   json_integer_value(json_object_get(v, "offset")),
                   json_integer_value(json_object_get(v, "bytes")));
        }
        if (tensors) print_linears(sites);
    }
    json_decref(sections);
    json_decref(sites);
    json_decref(graphs);
    tn_pkg_close(&p);
    return rc;
}

/* Finds the set that each kernel of the table was compiled for, by asking which smaller set still picks
 * it. */
static const char *picked_by(size_t offset, const tn_kernels *k) {
    void *want, *got;
    memcpy(&want, (const char *)k + offset, sizeof want);
    for (size_t i = 0; tn_cpu_word(i); i++) {
        tn_kernels small;
        tn_kernels_init(&small, tn_cpu_limit(tn_cpu_word(i), k->cpu));
        memcpy(&got, (const char *)&small + offset, sizeof got);
        if (got == want) return tn_cpu_word(i);
    }
    return "?";
}

static int inspect_cpu(bool json) {
    const char *bad;
    tn_kernels k;
    tn_kernels_init(&k, tn_cpu_flags(&bad));
    if (bad)
        return cli_failed_text("TERN_CPU=%s is unknown; there are scalar, avx2, avxvnni, avx512, avx512vnni, "
                               "amxint8, neon, dotprod, i8mm",
                               bad);
    static const struct {
        const char *name;
        size_t offset;
    } rows[] = {{"gemm_f32", offsetof(tn_kernels, gemm_f32)},
                {"attn_f32", offsetof(tn_kernels, attn_f32)},
                {"rmsnorm_f32", offsetof(tn_kernels, rmsnorm_f32)},
                {"layernorm_f32", offsetof(tn_kernels, layernorm_f32)},
                {"rope_f32", offsetof(tn_kernels, rope_f32)},
                {"glu_f32", offsetof(tn_kernels, glu_f32)},
                {"act_f32", offsetof(tn_kernels, act_f32)},
                {"add_f32", offsetof(tn_kernels, add_f32)},
                {"softmax_f32", offsetof(tn_kernels, softmax_f32)},
                {"shares_u8", offsetof(tn_kernels, shares_u8)},
                {"absmax_f32", offsetof(tn_kernels, absmax_f32)},
                {"gemm_s8", offsetof(tn_kernels, gemm_s8)},
                {"quantise_s8", offsetof(tn_kernels, quantise_s8)},
                {"hadamard_f32", offsetof(tn_kernels, hadamard_f32)},
                {"grid_errors", offsetof(tn_kernels, grid_errors)},
                {"grid_apply", offsetof(tn_kernels, grid_apply)},
                {"round_panel", offsetof(tn_kernels, round_panel)},
                {"quantise_outliers", offsetof(tn_kernels, quantise_outliers)},
                {"outlier_f32", offsetof(tn_kernels, outlier_f32)},
                {"unpack_tile", offsetof(tn_kernels, unpack_tile)},
                {"gemm_packed", offsetof(tn_kernels, gemm_packed)},
                {"blocks_gemm", offsetof(tn_kernels, blocks_gemm)},
                {"blocks_quantise", offsetof(tn_kernels, blocks_quantise)},
                {"topk", offsetof(tn_kernels, topk)},
                {"attn_sparse", offsetof(tn_kernels, attn_sparse)}};
    json_t *features = json_array(), *kernels = json_object();
    for (uint32_t bit = 1; bit; bit <<= 1) {
        if (k.cpu & bit) tn_json_append(&features, tn_json_pack("s", tn_cpu_flag_name(bit)));
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        tn_json_set(&kernels, rows[i].name, tn_json_pack("s", picked_by(rows[i].offset, &k)));
    int rc = features && kernels ? EXIT_OK : cli_failed_text("no memory to describe the processor");
    if (rc == EXIT_OK && json) {
        json_t *j = tn_json_pack("{s:i, s:O, s:O}", "cores", tn_cpu_count(), "features", features, "kernels",
                                 kernels);
        rc = cli_emit_json(j, JSON_INDENT(2));
    } else if (rc == EXIT_OK) {
        printf("%d cores;", tn_cpu_count());
        size_t i;
        json_t *v;
        json_array_foreach(features, i, v) printf(" %s", json_string_value(v));
        puts("\n");
        for (i = 0; i < sizeof rows / sizeof rows[0]; i++)
            printf("%-20s %s\n", rows[i].name, json_string_value(json_object_get(kernels, rows[i].name)));
    }
    json_decref(features);
    json_decref(kernels);
    return rc;
}

int cmd_inspect(int argc, char **argv) {
    bool json = false, cpu = false, tensors = false;
    const arg_spec specs[] = {
        {"tensors", 0, NULL, ARG_FLAG, &tensors, 0, 0,
         "list every tensor with type, shape and offset (packages: every linear with bytes, bits, input "
         "scale and outlier path)"},
        {"cpu", 0, NULL, ARG_FLAG, &cpu, 0, 0,
         "show the processor's features and the kernels they select (TERN_CPU lowers them)"},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print one JSON object"},
        {0},
    };
    const command c = {"inspect", "MODEL [--tensors] [--json]   or: tern inspect --cpu",
                       "Show what is in a GGUF file, a Hugging Face folder or a package, whose checksums are "
                       "verified. MODEL may be a name that tern models lists.",
                       specs, 1};
    const char *words[2] = {0};
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (cpu) return inspect_cpu(json);
    if (!words[0]) return cli_usage_error(&c, "MODEL is required");
    char path[MODEL_PATH_MAX];
    if ((rc = cli_model_word(&words[0], path)) >= 0) return rc;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pkg *p;
    tern_error err;
    if (tn_pkg_open_if(&ctx, words[0], &p, &err) != TERN_OK) return cli_failed(&err);
    return p ? inspect_package(&ctx, p, words[0], json, tensors)
             : inspect_source(&ctx, words[0], json, tensors);
}
