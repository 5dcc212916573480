#include "params/params.h"

#include "base/status.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) .offset = offsetof(struct tern_options, field)
#define USER .audience = TN_FOR_USERS
#define DEVICE .audience = TN_FOR_DEVICE
#define LAB .audience = TN_FOR_LAB
#define ALL .commands = TN_IN_ALL
#define ANSWER .commands = TN_IN_ANSWERS, .of_answer = true
#define ASKED .commands = TN_IN_ANSWERS | TN_IN_SERVE, .of_answer = true
#define SEES .commands = TN_IN_ANSWERS | TN_IN_SERVE
#define DRAFTS .commands = TN_IN_ANSWERS | TN_IN_BENCH, .of_answer = true
#define NEEDS(what) .needs = TN_NEEDS_##what

/* clang-format off */
static const tn_param table[] = {
    {"n-predict", 'n', TN_PARAM_INT, USER, ASKED, AT(generate.max_tokens), .min = -1, .max = 1e9, .unit = "N", .dflt = "-1",
     .help = "most tokens to generate; -1: until the model ends or the context is full"},
    {"temp", 0, TN_PARAM_FLOAT, USER, ASKED, AT(generate.sampling.temperature), .max = 100, .unit = "T", .dflt = "0.8",
     .help = "temperature; 0: always the most likely token"},
    {"top-k", 0, TN_PARAM_INT, USER, ASKED, AT(generate.sampling.top_k), .max = 1e9, .unit = "K", .dflt = "40",
     .help = "sample from the K most likely tokens; 0: from all"},
    {"top-p", 0, TN_PARAM_FLOAT, USER, ASKED, AT(generate.sampling.top_p), .max = 1, .unit = "P", .dflt = "0.95",
     .help = "sample from the most likely tokens whose probabilities add up to P; 1: from all"},
    {"min-p", 0, TN_PARAM_FLOAT, USER, ASKED, AT(generate.sampling.min_p), .max = 1, .unit = "P", .dflt = "0.05",
     .help = "drop tokens less likely than P times the most likely one"},
    {"seed", 0, TN_PARAM_U64, USER, ASKED, AT(generate.sampling.seed), .unit = "S", .dflt = "random",
     .help = "random seed; the same seed gives the same text"},
    {"repeat-penalty", 0, TN_PARAM_FLOAT, DEVICE, ASKED, AT(generate.sampling.repeat_penalty), .max = 100, .unit = "X", .dflt = "1",
     .help = "penalty for repeated tokens; 1: none"},
    {"repeat-last-n", 0, TN_PARAM_INT, DEVICE, ASKED, AT(generate.sampling.repeat_last_n), .min = -1, .max = 1e9, .unit = "N", .dflt = "64",
     .help = "how many tokens back the repeat penalty looks; -1: all"},
    {"ignore-eos", 0, TN_PARAM_FLAG, LAB, ANSWER, AT(generate.ignore_end), .dflt = "off",
     .help = "continue after the end-of-text token"},
    {"draft", 0, TN_PARAM_TEXT, DEVICE, DRAFTS, AT(session.draft), .unit = "LIST", .dflt = "auto",
     .help = "drafters: none, auto, all, or a list of lookup, sam, calibrated, extend, mtp, head, model:FILE; the text is the same with any of them"},
    {"draft-head", 0, TN_PARAM_TEXT, DEVICE, .commands = TN_IN_ANSWERS | TN_IN_SERVE | TN_IN_BENCH, AT(draft_head), .unit = "FILE", .dflt = "the head beside the model",
     .help = "a head that was trained to draft for this model (EAGLE-3, DFlash, Gemma 4's assistant): a GGUF file or a folder; none: without"},
    {"draft-nodes", 0, TN_PARAM_INT, DEVICE, DRAFTS, AT(generate.draft_nodes), .min = 1, .max = 32, .unit = "N", .dflt = "32",
     .help = "most draft tokens verified in one forward pass"},
    {"draft-eager", 0, TN_PARAM_FLAG, LAB, DRAFTS, AT(generate.draft_eager), .dflt = "off",
     .help = "verify as many drafts as fit, not only those that pay off"},

    {"threads", 't', TN_PARAM_INT, USER, ALL, AT(n_threads), .min = 1, .max = 64, .unit = "N", .dflt = "one per core",
     .help = "worker threads"},
    {"cores", 0, TN_PARAM_TEXT, DEVICE, ALL, AT(cores), .unit = "WHICH", .dflt = "all",
     .help = "which cores the threads use: all, fast (the fast cores of a mixed processor, as /sys lists them), or numbers such as 4-7,2"},
    {"ctx-size", 'c', TN_PARAM_INT, USER, .commands = TN_IN_ANSWERS | TN_IN_EMBED, AT(session.n_ctx), .min = 1, .max = 1 << 24, .unit = "N",
     .dflt = "the smaller of 4096 and the model's", .help = "context length in tokens"},
    {"lora", 0, TN_PARAM_TEXT, DEVICE, ALL, AT(lora), .unit = "LIST", .dflt = "none",
     .help = "LoRA adapters: [NAME=]FILE[:SCALE], separated by commas; GGUF files or PEFT folders. Scale 0 loads an adapter for requests that name it"},
    {"mmproj", 0, TN_PARAM_TEXT, DEVICE, SEES, AT(mmproj), .unit = "FILE", .dflt = "in the package, or the mmproj file beside the model",
     .help = "the encoder of pictures, a GGUF file"},
    {"encoder", 0, TN_PARAM_CHOICE, DEVICE, SEES, AT(encoder), .unit = "FORM", .dflt = "auto", .choices = "auto|float|int8",
     .help = "how the encoder of pictures computes: float; int8, which is faster and a little less exact; auto (int8 where it sees a drawing as float does: judged by tern pack, or by its first picture and kept with what was seen; float where neither is there)"},
    {"keep-encoder", 0, TN_PARAM_CHOICE, DEVICE, SEES, AT(keep_encoder), .unit = "WHEN", .dflt = "auto", .choices = "auto|on|off",
     .help = "whether the encoder's weights stay in memory between pictures: on; off (they are freed after the pictures of a question); auto (they stay; a server frees them after a minute without a picture). tern run needs them once"},
    {"one-view", 0, TN_PARAM_FLAG, DEVICE, SEES, AT(one_view), .dflt = "off",
     .help = "look at each picture once, as a whole, without its tiles: faster, but small details are lost"},
    {"picture-rows", 0, TN_PARAM_INT, DEVICE, SEES, AT(picture_rows), .min = 1, .max = 16384, .unit = "N", .dflt = "1280",
     .help = "the most rows of the prompt that a picture may take, in models that read pictures of any size (Qwen, LFM2-VL, Gemma 4): larger pictures are made smaller; 16384 is those models' own limit"},
    {"picture-memory", 0, TN_PARAM_SIZE, DEVICE, SEES, AT(picture_memory_bytes), .unit = "BYTES", .dflt = "256M",
     .help = "memory for encoded pictures, so that a picture seen before is not encoded again; those of texts in use do not count"},
    {"picture-cache", 0, TN_PARAM_SIZE, DEVICE, SEES, AT(picture_cache_bytes), .unit = "BYTES", .dflt = "1G; 0 for programs of the library",
     .help = "the same on disk, in $XDG_CACHE_HOME/tern/pictures; 0: none"},
    {"exact", 0, TN_PARAM_FLAG, USER, ALL, AT(exact), .dflt = "off",
     .help = "turn off everything that may change a bit compared with full attention"},

    {"trace", 0, TN_PARAM_FLAG, LAB, .commands = 0, AT(trace), .dflt = "off",
     .help = "for programs: record every task, for tern_session_write_trace and tern_session_write_gantt"},
    {"attention", 0, TN_PARAM_CHOICE, DEVICE, ALL, AT(attention), .unit = "HOW", .dflt = "auto",
     .choices = "full|shadow|auto|float-sparse|block-sparse|npu-full",
     .help = "attention of prompts: full; shadow (sparse: estimated in INT8, exact where it matters); auto (shadow where it is possible and pays off); or a baseline"},
    {"attention-decode", 0, TN_PARAM_FLAG, DEVICE, ALL, AT(attention_decode), .dflt = "off",
     .help = "sparse attention in decoding too, from 2048 positions on (attention auto: from 8192 without this); needs attention full, shadow or auto"},
    {"ratio", 0, TN_PARAM_PERCENT, DEVICE, ALL, NEEDS(SPARSE), AT(attention_ratio), .min = 1, .max = 100, .unit = "PERCENT",
     .dflt = "30 of up to 2048 positions, less of more; 10 when decoding", .help = "sparse attention: average share of positions that a row attends to"},
    {"attention-threshold", 0, TN_PARAM_INT, DEVICE, ALL, NEEDS(SPARSE), AT(attention_threshold), .max = 1 << 24, .unit = "N",
     .dflt = "as measured, or 1024", .help = "sparse attention: attend in full to prompts of fewer than N tokens"},
    {"weights", 0, TN_PARAM_CHOICE, DEVICE, ALL, NEEDS(PACKAGE), AT(weights), .unit = "FORM", .dflt = "auto", .choices = "auto|packed|tiles",
     .help = "form of weights below 8 bits in memory: packed (as in the file; less memory), tiles (unpacked once), or auto (packed where this processor has kernels for it)"},
    {"kv", 0, TN_PARAM_CHOICE, DEVICE, ALL, AT(kv), .unit = "TYPE", .dflt = "auto", .choices = "auto|f32|f16|int8|int4",
     .help = "form of keys and values: f32, f16, int8, int4 (keys rotated), or auto (f32 up to a context of 4096 tokens, f16 beyond; fewer bits where max-memory requires it)"},
    {"load", 0, TN_PARAM_CHOICE, DEVICE, ALL, NEEDS(STREAM), AT(load), .unit = "HOW", .dflt = "stream", .choices = "stream|overlap|sequential|mmap",
     .help = "how weights are loaded: stream (while the first prompt is computed), overlap, sequential, or mmap"},
    {"read", 0, TN_PARAM_CHOICE, DEVICE, ALL, NEEDS(STREAM), AT(read), .unit = "BY", .dflt = "the fastest here",
     .choices = "threads|threads-direct|uring|uring-direct", .help = "how the file is read"},
    {"chunk", 0, TN_PARAM_INT, DEVICE, ALL, NEEDS(PACKAGE), AT(chunk), .min = 32, .max = 1024, .step = 32, .unit = "L",
     .dflt = "as measured, or 256", .help = "prompt tokens per chunk"},
    {"policy", 0, TN_PARAM_CHOICE, DEVICE, ALL, NEEDS(PACKAGE), AT(policy), .unit = "NAME", .dflt = "ooe", .choices = "in-order|overlap|ooe|synergy",
     .help = "how the next task is chosen"},
    {"steal", 0, TN_PARAM_STEAL, DEVICE, ALL, NEEDS(PACKAGE), AT(steal), .min = 1, .max = 1 << 20, .unit = "HOW", .dflt = "share-cores",
     .choices = "none|share-cores|measured",
     .help = "how lanes help each other: share-cores (idle workers help), none (as on a phone); with policy synergy also measured, or N (the CPU lane takes a product when more than N wait)"},
    {"npu", 0, TN_PARAM_TEXT, DEVICE, ALL, AT(npu), .unit = "NAME", .dflt = "host",
     .help = "INT8 device. Naming one packs a float model for it at every start"},
    {"npu-threads", 0, TN_PARAM_INT, DEVICE, ALL, NEEDS(PACKAGE), AT(npu_threads), .min = 1, .max = 63, .unit = "N", .dflt = "threads - 1",
     .help = "workers of the NPU lane"},
    {"cpu-threads", 0, TN_PARAM_INT, DEVICE, ALL, NEEDS(PACKAGE), AT(cpu_threads), .min = 1, .max = 63, .unit = "N", .dflt = "1",
     .help = "workers of the CPU lane"},
    {"max-memory", 0, TN_PARAM_SIZE, DEVICE, ALL, AT(max_memory_bytes), .unit = "BYTES", .dflt = "no limit",
     .help = "limit for model, context and working memory together. To fit, weights stay packed, keys and values take fewer bits, and the context is shortened, unless you set them; experts that do not fit are read from packages and quantised files when they are chosen; a model that cannot fit is refused"},
    {"npu-memory", 0, TN_PARAM_SIZE, DEVICE, ALL, NEEDS(PACKAGE), AT(npu_memory_bytes), .unit = "BYTES", .dflt = "no limit",
     .help = "memory that the device can address; the heaviest linears are placed there first"},
    {"npu-vtcm", 0, TN_PARAM_SIZE, DEVICE, ALL, NEEDS(HEXAGON), AT(npu_vtcm_bytes), .min = 16384, .max = 8388608, .unit = "BYTES", .dflt = "8M",
     .help = "npu hexagon: size of the memory that weights are staged in"},

    {"scheme", 0, TN_PARAM_TEXT, LAB, ALL, AT(scheme), .unit = "NAME", .dflt = "blocks where the file is quantised, else float",
     .help = "for models that are not packages: float, blocks (a quantised file's own blocks, activations rounded to INT8), int8 (8-bit blocks, made from floats too; for embedding models, twice as fast), or the baselines llm-int8 and group-w8a8"},
    {"no-chunk-sharing", 0, TN_PARAM_FLAG, LAB, ALL, NEEDS(PACKAGE), AT(no_chunk_sharing), .dflt = "off",
     .help = "give every chunk in flight its own graphs and weights"},
    {"cold-rows", 0, TN_PARAM_CHOICE, LAB, ALL, NEEDS(PACKAGE), AT(cold_rows), .unit = "FROM", .dflt = "weights, where the device allows",
     .choices = "file|weights", .help = "where weight rows for outliers in cold channels are read from"},
    {"products", 0, TN_PARAM_CHOICE, LAB, ALL, NEEDS(PACKAGE), AT(products), .unit = "WHAT", .dflt = "sites", .choices = "sites|operators",
     .help = "tasks of the device: sites (all linears that read the same input in one task) or operators (q, k, v, gate and up each in its own); the same bits"},
    {"npu-separate-weights", 0, TN_PARAM_FLAG, LAB, ALL, NEEDS(PACKAGE), AT(npu_separate_weights), .dflt = "off",
     .help = "the device's graphs share no weights, so it holds one form of each layer at a time"},
    {"switch", 0, TN_PARAM_CHOICE, LAB, ALL, NEEDS(SEPARATE), AT(graph_switch), .unit = "WHEN", .dflt = "progressive",
     .choices = "progressive|async|sync", .help = "with npu-separate-weights: when graph forms are exchanged"},
    {"switch-blocks", 0, TN_PARAM_INT, LAB, ALL, NEEDS(SEPARATE), AT(switch_blocks), .min = 1, .max = 64, .unit = "N", .dflt = "the fastest number",
     .help = "with npu-separate-weights: number of blocks of layers that are exchanged"},
    {"npu-apart", 0, TN_PARAM_FLAG, LAB, ALL, NEEDS(HOST), AT(npu_apart), .dflt = "off",
     .help = "npu host: run on its own threads (npu-threads), as a separate chip would"},
    {"buckets", 0, TN_PARAM_INT, LAB, ALL, NEEDS(SPARSE), AT(attention_buckets), .min = 1, .max = 9, .step = 8, .unit = "N", .dflt = "9",
     .help = "sparse attention: number of scale pairs to choose from, 1 or 9"},
    {"no-head-ratios", 0, TN_PARAM_FLAG, LAB, ALL, NEEDS(SPARSE), AT(no_head_ratios), .dflt = "off",
     .help = "sparse attention: the same ratio for every head"},
    {"attention-share", 0, TN_PARAM_INT, LAB, ALL, NEEDS(SPARSE), AT(attention_share), .min = -1, .max = 8, .unit = "N",
     .dflt = "4, 2 where a KV head has more than four query heads, 8 where it has one",
     .help = "sparse attention: number of neighbouring rows that share one selection with their group of heads; -1: every row and head selects for itself"},
    {"attention-pool", 0, TN_PARAM_INT, LAB, ALL, NEEDS(SPARSE), AT(attention_pool), .min = 1, .max = 1024, .unit = "N", .dflt = "1",
     .help = "sparse attention: number of query heads estimated as one where heads share a selection"},
    {"attention-whole", 0, TN_PARAM_FLAG, LAB, ALL, NEEDS(SPARSE), AT(attention_whole), .dflt = "off",
     .help = "sparse attention: estimate all positions at once instead of in cache-sized parts; the same bits"},
    {"attention-pipeline", 0, TN_PARAM_CHOICE, LAB, ALL, NEEDS(SHADOW), AT(attention_pipeline), .unit = "WHEN",
     .dflt = "auto: where the device has silicon of its own", .choices = "auto|on|off",
     .help = "attention shadow: run heads as tasks on two lanes; the same bits"},
    {"attention-plan", 0, TN_PARAM_TEXT, LAB, ALL, NEEDS(SHADOW), AT(attention_plan), .unit = "HOW", .dflt = "paper",
     .help = "attention-pipeline: paper (planned as in the paper), or that without some of in-order,no-fusion,no-overlap; as-printed: Algorithm 1 without the search after it"},
    {"attention-preset", 0, TN_PARAM_CHOICE, LAB, ALL, NEEDS(SPARSE), AT(attention_preset), .unit = "WHOSE", .dflt = "ours",
     .choices = "ours|paper",
     .help = "paper: sparse attention as printed, for prompts of any length: every row and head selects 20 percent for itself, 9 buckets, heads in a pipeline by Algorithm 1. Options set beside it win"},
    {"attention-check", 0, TN_PARAM_FLAG, LAB, ALL, NEEDS(SPARSE), AT(attention_check), .dflt = "off",
     .help = "sparse attention: also count how many of the exact top positions were selected (slow)"},
};
/* clang-format on */

enum { N_PARAMS = sizeof table / sizeof table[0] };
_Static_assert((int)N_PARAMS <= (int)TN_MAX_PARAMS, "a bit of `given` and a place in `texts` for each");

static const tn_param_alias aliases[] = {
    {"no-steal", "steal", "none"},
    {"steal-above", "steal", NULL},
};

size_t tn_params_count(void) { return N_PARAMS; }
const tn_param *tn_param_at(size_t i) { return i < N_PARAMS ? &table[i] : NULL; }

static bool same_name(const char *name, const char *given, size_t n) {
    return strlen(name) == n && !memcmp(name, given, n);
}

const tn_param *tn_param_find(const char *name, size_t n_name) {
    for (size_t i = 0; i < N_PARAMS; i++)
        if (same_name(table[i].name, name, n_name)) return &table[i];
    return NULL;
}

const tn_param_alias *tn_param_alias_find(const char *name, size_t n_name) {
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (same_name(aliases[i].name, name, n_name)) return &aliases[i];
    return NULL;
}

static const void *field(const tern_options *o, const tn_param *p) { return (const char *)o + p->offset; }
static uint64_t bit_of(const tn_param *p) { return (uint64_t)1 << (p - table); }
bool tn_param_given(const tern_options *o, const tn_param *p) { return o->given & bit_of(p); }

/* ---- ranges -------------------------------------------------------------------------------------- */

void tn_param_range(const tn_param *p, char *buf, size_t cap) {
    bool whole = p->kind == TN_PARAM_INT || p->kind == TN_PARAM_U64 || p->kind == TN_PARAM_STEAL;
    const char *what = whole                         ? "a whole number"
                       : p->kind == TN_PARAM_PERCENT ? "a percentage"
                       : p->kind == TN_PARAM_SIZE    ? "bytes (or K, M or G of them)"
                                                     : "a number";
    if (p->kind == TN_PARAM_FLAG) snprintf(buf, cap, "on or off");
    else if (p->kind == TN_PARAM_TEXT) snprintf(buf, cap, "text");
    else if (p->kind == TN_PARAM_CHOICE) snprintf(buf, cap, "%s", p->choices);
    else if (p->step > 1 && p->min + p->step == p->max) snprintf(buf, cap, "%.10g or %.10g", p->min, p->max);
    else if (p->step > 1)
        snprintf(buf, cap, "a multiple of %.10g from %.10g to %.10g", p->step, p->min, p->max);
    else if (p->kind == TN_PARAM_STEAL)
        snprintf(buf, cap, "%s, or %s from %.10g to %.10g", p->choices, what, p->min, p->max);
    else if (p->min == 0 && p->max == 0)
        snprintf(buf, cap, "%s%s", what, p->kind == TN_PARAM_U64 ? " from 0" : "");
    else snprintf(buf, cap, "%s from %.10g to %.10g", what, p->min, p->max);
}

static bool in_range(const tn_param *p, double v) {
    if (p->min == 0 && p->max == 0) return v >= 0;
    return v >= p->min && v <= p->max && (p->step <= 0 || fmod(v - p->min, p->step) == 0);
}

/* Returns the index of value in "a|b|c", or -1. */
static int choice_of(const char *choices, const char *value) {
    size_t n = strlen(value);
    int i = 0;
    for (const char *c = choices; *c; i++) {
        size_t len = strcspn(c, "|");
        if (n == len && !memcmp(c, value, n)) return i;
        c += len + (c[len] == '|');
    }
    return -1;
}

/* Writes "a|b|c" as "a, b, c". */
static const char *listed(const char *choices, char *buf, size_t cap) {
    size_t n = 0;
    for (const char *c = choices; *c && n + 3 < cap; c++) {
        buf[n++] = *c == '|' ? ',' : *c;
        if (*c == '|') buf[n++] = ' ';
    }
    buf[n] = 0;
    return buf;
}

static tern_status refuse(const tn_param *p, const char *value, tern_error *err) {
    char range[160], names[160];
    if (p->kind == TN_PARAM_CHOICE)
        return tn_fail(err, TERN_E_INVALID, "%s '%s' is unknown; there are %s", p->name, value,
                       listed(p->choices, names, sizeof names));
    tn_param_range(p, range, sizeof range);
    if (p->kind == TN_PARAM_STEAL)
        snprintf(range, sizeof range, "%s, or a number from 1 to 1048576",
                 listed(p->choices, names, sizeof names));
    return tn_fail(err, TERN_E_INVALID, "%s %s: want %s", p->name, value, range);
}

/* ---- text to value and back ---------------------------------------------------------------------- */

static bool parse_flag(const char *value, bool *out) {
    static const char *const words[2][4] = {{"off", "false", "no", "0"}, {"on", "true", "yes", "1"}};
    for (int on = 0; on < 2; on++)
        for (int i = 0; i < 4; i++)
            if (!strcmp(value, words[on][i])) return *out = on, true;
    return false;
}

bool tn_params_u64(const char *value, bool size, uint64_t *out) {
    char *end;
    errno = 0;
    if (*value < '0' || *value > '9') return false;
    unsigned long long v = strtoull(value, &end, 10);
    static const char units[] = "KMG";
    const char *unit = size && *end ? strchr(units, *end) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (unit) end++;
    if (*end || errno || (shift && v > UINT64_MAX >> shift)) return false;
    *out = (uint64_t)v << shift;
    return true;
}

static bool parse_int(const char *value, int32_t *out) {
    char *end;
    errno = 0;
    long v = strtol(value, &end, 10);
    if (end == value || *end || errno || v < INT32_MIN || v > INT32_MAX) return false;
    *out = (int32_t)v;
    return true;
}

static bool parse_steal(const tn_param *p, const char *value, int32_t *out) {
    static const int32_t named[] = {TN_STEAL_NONE, TN_STEAL_SHARE_CORES, TN_STEAL_MEASURED};
    int i = choice_of(p->choices, value);
    if (i >= 0) return *out = named[i], true;
    if (!parse_int(value, out)) return false;
    return *out == -1 || in_range(p, *out); /* -1 is how earlier versions said none */
}

static bool parse_float(const char *value, float *out) {
    char *end;
    double v = strtod(value, &end);
    if (end == value || *end || !isfinite(v)) return false;
    *out = (float)v;
    return true;
}

tern_status tn_param_set(tern_options *o, const tn_param *p, const char *value, tern_error *err) {
    void *at = (char *)o + p->offset;
    bool ok = false, flag = true;
    int32_t i;
    uint64_t u;
    float f;
    TN_FAIL_IF(!value && p->kind != TN_PARAM_FLAG, err, TERN_E_INVALID, "%s needs a value", p->name);
    switch (p->kind) {
    case TN_PARAM_FLAG:
        if ((ok = !value || parse_flag(value, &flag))) *(bool *)at = flag;
        break;
    case TN_PARAM_INT:
        if ((ok = parse_int(value, &i) && in_range(p, i))) *(int32_t *)at = i;
        break;
    case TN_PARAM_STEAL:
        if ((ok = parse_steal(p, value, &i))) *(int32_t *)at = i;
        break;
    case TN_PARAM_U64:
    case TN_PARAM_SIZE:
        ok = tn_params_u64(value, p->kind == TN_PARAM_SIZE, &u) && (p->max == 0 || in_range(p, (double)u));
        if (ok) *(uint64_t *)at = u;
        break;
    case TN_PARAM_FLOAT:
    case TN_PARAM_PERCENT:
        ok = parse_float(value, &f) && in_range(p, (double)f);
        if (ok) *(float *)at = p->kind == TN_PARAM_PERCENT ? f / 100 : f;
        break;
    case TN_PARAM_CHOICE: ok = choice_of(p->choices, value) >= 0; /* fall through */
    case TN_PARAM_TEXT:
        if ((ok = ok || p->kind == TN_PARAM_TEXT)) *(const char **)at = value;
        break;
    }
    if (!ok) return refuse(p, value, err);
    o->given |= bit_of(p);
    return TERN_OK;
}

tern_status tn_params_assign(tern_options *o, const char *assignment, tern_error *err) {
    size_t n = strcspn(assignment, "=");
    const char *value = assignment[n] ? assignment + n + 1 : NULL;
    const tn_param *p = tn_param_find(assignment, n);
    TN_FAIL_IF(!p, err, TERN_E_INVALID, "no parameter is called '%.*s' (tern help set lists them)", (int)n,
               assignment);
    return tn_param_set(o, p, value, err);
}

void tn_param_format(const tern_options *o, const tn_param *p, char *buf, size_t cap) {
    const void *at = field(o, p);
    static const char *const steals[] = {"measured", "none", "share-cores"};
    switch (p->kind) {
    case TN_PARAM_FLAG: snprintf(buf, cap, "%s", *(const bool *)at ? "on" : "off"); return;
    case TN_PARAM_INT: snprintf(buf, cap, "%d", *(const int32_t *)at); return;
    case TN_PARAM_U64:
    case TN_PARAM_SIZE: snprintf(buf, cap, "%llu", *(const unsigned long long *)at); return;
    case TN_PARAM_FLOAT: snprintf(buf, cap, "%.7g", (double)*(const float *)at); return;
    case TN_PARAM_PERCENT: snprintf(buf, cap, "%.7g", (double)*(const float *)at * 100); return;
    case TN_PARAM_CHOICE:
    case TN_PARAM_TEXT:
        snprintf(buf, cap, "%s", *(const char *const *)at ? *(const char *const *)at : "");
        return;
    case TN_PARAM_STEAL: {
        int32_t v = *(const int32_t *)at;
        if (v <= 0) snprintf(buf, cap, "%s", steals[v - TN_STEAL_MEASURED]);
        else snprintf(buf, cap, "%d", v);
        return;
    }
    }
}

/* ---- checks -------------------------------------------------------------------------------------- */

static tern_status check_one(const tern_options *o, const tern_options *defaults, const tn_param *p,
                             tern_error *err) {
    const void *at = field(o, p), *standard = field(defaults, p);
    char value[64];
    bool ok = true;
    switch (p->kind) {
    case TN_PARAM_INT: {
        int32_t v = *(const int32_t *)at;
        ok = v == *(const int32_t *)standard || v == 0 || in_range(p, v);
        break;
    }
    case TN_PARAM_STEAL: ok = *(const int32_t *)at >= TN_STEAL_MEASURED; break;
    case TN_PARAM_FLOAT:
    case TN_PARAM_PERCENT: {
        double v = (double)*(const float *)at, share = p->kind == TN_PARAM_PERCENT ? p->max / 100 : p->max;
        ok = v == (double)*(const float *)standard || (v >= (p->min < 0 ? p->min : 0) && v <= share);
        break;
    }
    case TN_PARAM_SIZE: {
        uint64_t v = *(const uint64_t *)at;
        ok = !v || p->max == 0 || in_range(p, (double)v);
        break;
    }
    case TN_PARAM_CHOICE: {
        const char *v = *(const char *const *)at;
        if (v && choice_of(p->choices, v) < 0) return refuse(p, v, err);
        return TERN_OK;
    }
    case TN_PARAM_FLAG:
    case TN_PARAM_TEXT:
    case TN_PARAM_U64: return TERN_OK;
    }
    if (ok) return TERN_OK;
    tn_param_format(o, p, value, sizeof value);
    return refuse(p, value, err);
}

static bool is(const char *value, const char *name) { return value && !strcmp(value, name); }

void tn_params_preset(tern_options *o) {
    if (!is(o->attention_preset, "paper")) return;
    if (!o->attention) o->attention = "shadow";
    if (!o->attention_threshold) o->attention_threshold = 1;
    if (!(o->attention_ratio > 0)) o->attention_ratio = 0.2f;
    if (!o->attention_share) o->attention_share = -1;
    bool shadow = is(o->attention, "shadow") || is(o->attention, "auto");
    if (!o->attention_pipeline && shadow) o->attention_pipeline = "on";
    if (!o->attention_plan) o->attention_plan = "as-printed";
}

tern_status tn_params_check(const tern_options *o, tern_error *err) {
    tern_options defaults;
    tn_options_defaults(&defaults);
    for (size_t i = 0; i < N_PARAMS; i++) TN_TRY(check_one(o, &defaults, &table[i], err));
    TN_FAIL_IF((o->steal > 0 || o->steal == TN_STEAL_MEASURED) && !is(o->policy, "synergy"), err,
               TERN_E_INVALID,
               "a threshold for stealing goes with policy synergy; the others steal none or share-cores");
    TN_FAIL_IF(o->exact && o->attention && !is(o->attention, "full"), err, TERN_E_INVALID,
               "exact excludes attention %s, which may change bits", o->attention);
    TN_FAIL_IF(o->exact && is(o->attention_preset, "paper"), err, TERN_E_INVALID,
               "exact excludes attention-preset paper, which may change bits");
    TN_FAIL_IF(o->exact && o->attention_decode, err, TERN_E_INVALID,
               "exact excludes attention-decode, which may change bits");
    TN_FAIL_IF(o->exact && o->kv && !is(o->kv, "auto") && !is(o->kv, "f32"), err, TERN_E_INVALID,
               "exact excludes kv %s, which changes bits", o->kv);
    return TERN_OK;
}

static bool met(const tern_options *o, tn_param_need need, bool package, bool blocks, bool may_be_sparse) {
    const char *attention = tn_options_attention(o);
    bool shadow = is(attention, "shadow") || is(attention, "auto");
    bool sparse = strcmp(attention, "full") || o->attention_decode;
    switch (need) {
    case TN_NEEDS_NOTHING: return true;
    case TN_NEEDS_PACKAGE: return package;
    case TN_NEEDS_STREAM: return package || blocks;
    case TN_NEEDS_HEXAGON: return package && is(o->npu, "hexagon");
    case TN_NEEDS_HOST: return package && (!o->npu || is(o->npu, "host"));
    case TN_NEEDS_SEPARATE: return package && o->npu_separate_weights;
    case TN_NEEDS_SPARSE: return sparse && may_be_sparse;
    case TN_NEEDS_SHADOW: return package && shadow;
    case TN_N_NEEDS: break;
    }
    return false;
}

void tn_params_announce(const tern_options *o, tn_ctx *ctx, const char *path, bool package, bool blocks,
                        bool sparse) {
    static const char *const goes[TN_N_NEEDS] = {
        [TN_NEEDS_PACKAGE] = "packages",
        [TN_NEEDS_STREAM] = "packages and quantised files",
        [TN_NEEDS_HEXAGON] = "npu hexagon",
        [TN_NEEDS_HOST] = "npu host",
        [TN_NEEDS_SEPARATE] = "npu-separate-weights",
        [TN_NEEDS_SPARSE] = "sparse attention (attention or attention-decode)",
        [TN_NEEDS_SHADOW] = "attention shadow or auto",
    };
    for (const tn_param *p = table; p < table + N_PARAMS; p++) {
        if (!tn_param_given(o, p) || met(o, p->needs, package, blocks, sparse)) continue;
        if (!package && p->needs != TN_NEEDS_SPARSE && p->needs != TN_NEEDS_STREAM)
            tn_log(ctx, TERN_LOG_WARN, "%s has no effect: it goes with %s, and %s is no package", p->name,
                   goes[p->needs], path);
        else tn_log(ctx, TERN_LOG_WARN, "%s has no effect: it goes with %s", p->name, goes[p->needs]);
    }
}
