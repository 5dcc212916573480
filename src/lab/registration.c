/* lab/registration.c - the configurations were read from tables whose figures were covered.
 *
 * Devices: 8 Elite is the profile sd8elite-v79; 8 Elite Gen 5 and X Elite are one factor each from Llama-3.1-8B, as in
 * lab/phones.c. 8 Gen 3 and SA8295P are assumed: 8 Elite's NPU is announced as 45 % faster than 8 Gen 3's, whose memory
 * has 76.8 for 85.3 GB/s; SA8295P has 30 TOPS for X Elite's 45, taken for both. */
#include "lab/registration.h"

#include "base/status.h"
#include "lab/reproduce_impl.h"

#include <assert.h>
#include <string.h>

typedef enum device { ELITE, GEN5, X_ELITE, GEN3, SA8295P, N_DEVICES } device;
static const char *const device_names[N_DEVICES] = {"8 Elite", "8 Elite Gen 5", "X Elite", "8 Gen 3",
                                                    "SA8295P"};

/* A model's first token (128 of the prompt) and decoding over a static context, as AI Hub prints them. */
static const struct {
    device on;
    const char *model, *source;
    double context, ms, tokens_per_s;
    bool same; /* its first token is printed to the last digit as w4a16's, which was known */
} hub[] = {
    {ELITE, "jais-6.7b", "AI Hub w4a16", 4096, 238.231, 13.33, false},
    {GEN3, "llama-2-7b", "AI Hub w4a16", 1024, 1495.83, 12.85, false},
    {X_ELITE, "llama-2-7b", "AI Hub w4a16", 1024, 1919.0, 11.2, false},
    {ELITE, "llama-2-7b", "AI Hub w4a16", 1024, 1440.0, 17.94, false},
    {ELITE, "qwen2.5-1.5b", "AI Hub w4a16", 4096, 95.3727, 23.4892, false},
    {X_ELITE, "qwen2.5-1.5b", "AI Hub w4a16", 4096, 160.2778, 12.98912, false},
    {GEN3, "phi3-3.8b", "AI Hub w4a16", 4096, 146.9056, 13.01, false},
    {GEN5, "llama3.2-3b", "AI Hub w4", 4096, 131.546, 18.00883, false},
    {ELITE, "llama3.2-3b", "AI Hub w4", 4096, 88.195, 13.83, true},
    {SA8295P, "llama3.2-3b", "AI Hub w4", 1024, 373.117, 3.523, false},
    {GEN5, "llama3.2-1b", "AI Hub w4", 4096, 53.757, 36.89705, false},
    {ELITE, "llama3.2-1b", "AI Hub w4", 4096, 81.244, 33.73819, false},
    {SA8295P, "llama3.2-1b", "AI Hub w4", 4096, 225.0, 11.0, false},
};

/* Decoding in ExecuTorch, whose tests expect so many tokens/s: weights of 4 bits, 8 of the last layer, keys and values,
 * 1,024 positions. */
static const struct {
    const char *model;
    double gen3, elite;
} executorch[] = {
    {"gemma-2b", 32, 36},       {"gemma2-2b", 32, 36},    {"gemma3-1b", 70, 100},  {"glm-edge-1.5b", 42, 52},
    {"granite3.3-2b", 20, 22},  {"phi4-mini", 14, 19},    {"llama3.2-1b", 37, 45}, {"llama3.2-3b", 21, 26},
    {"qwen2.5-0.5b", 115, 155}, {"qwen2.5-1.5b", 38, 47}, {"qwen3-0.6b", 47, 68},  {"qwen3-1.7b", 28, 34},
    {"smollm2-135m", 214, 260}, {"smollm3-3b", 23, 28},
};

/* llama.cpp's own page of its Hexagon backend: Llama-3.2-1B, Q4_0, v79; 128 tokens, then 64. */
static const double llama_cpp_prompt = 169.42, llama_cpp_decoding = 51.54;

static void slower(tn_soc *c, double prefill, double decode) {
    c->launch_ns *= prefill, c->mac_ns *= prefill, c->vector_mac_ns *= prefill;
    c->step_layer_ns *= decode, c->step_byte_ns *= decode;
}

static tern_status devices(tn_book *b, tn_soc out[N_DEVICES], tern_error *err) {
    out[ELITE] = b->socs[TN_SOC_V79];
    TN_TRY(tn_phones_gen5(b, &out[GEN5], err));
    TN_TRY(tn_phones_x_elite(b, &out[X_ELITE], err));
    out[GEN3] = out[ELITE], slower(&out[GEN3], 1.45, 85.3 / 76.8);
    out[SA8295P] = out[X_ELITE], slower(&out[SA8295P], 45.0 / 30, 45.0 / 30);
    return TERN_OK;
}

static tern_status run(tn_book *b, const tn_soc *soc, const char *model, tn_sim_result *o, tern_error *err) {
    const tn_sim_request r = {.soc = soc,
                              .model = tn_book_model(model),
                              .n_tokens = 128,
                              .n_chunk = 128,
                              .policy = tn_policy_defaults(TN_POLICY_OOE),
                              .n_gen = 1};
    return tn_book_run(b, &r, o, err);
}

tern_status tn_registration(const tn_inputs *in, tn_sim *s, tn_registered *out, int32_t *n, tern_error *err) {
    tn_book b = {.in = in, .socs = in->socs, .s = s};
    tn_soc soc[N_DEVICES];
    tn_sim_result o;
    int32_t k = 0;
    TN_TRY(devices(&b, soc, err));
    for (size_t i = 0; i < sizeof hub / sizeof *hub; i++) {
        tn_soc c = soc[hub[i].on];
        c.prefill_context = c.step_context = hub[i].context;
        TN_TRY(run(&b, &c, hub[i].model, &o, err));
        tn_registered row = {
            .source = hub[i].source, .device = device_names[hub[i].on], .model = hub[i].model};
        bool is_short = hub[i].context < 4096;
        row.what = is_short ? "first token, context of 1,024" : "first token, context of 4,096";
        row.unit = "ms", row.predicted = o.ttft_ms, row.published = hub[i].ms, row.same = hub[i].same;
        out[k++] = row;
        row.what = is_short ? "decoding, context of 1,024" : "decoding, context of 4,096";
        row.unit = "tokens/s", row.predicted = 1e3 / o.step_ms, row.published = hub[i].tokens_per_s,
        row.same = false;
        out[k++] = row;
    }
    for (size_t i = 0; i < sizeof executorch / sizeof *executorch; i++)
        for (int e = 0; e < 2; e++) {
            tn_soc c = soc[e ? ELITE : GEN3];
            c.prefill_context = c.step_context = 1024;
            TN_TRY(run(&b, &c, executorch[i].model, &o, err));
            out[k++] = (tn_registered){"ExecuTorch 16a4w",
                                       device_names[e ? ELITE : GEN3],
                                       executorch[i].model,
                                       "decoding, context of 1,024",
                                       "tokens/s",
                                       1e3 / o.step_ms,
                                       e ? executorch[i].elite : executorch[i].gen3,
                                       !strncmp(executorch[i].model, "llama", 5),
                                       false};
        }
    tn_soc c = soc[ELITE];
    c.prefill_context = 0, c.step_context = 32, c.step_kv_bytes = 2;
    TN_TRY(run(&b, &c, "llama3.2-1b", &o, err));
    out[k++] = (tn_registered){"llama.cpp Q4_0", "8 Elite",  "llama3.2-1b",
                               "prompt of 128",  "tokens/s", o.tokens_per_second,
                               llama_cpp_prompt, false,      false};
    out[k++] = (tn_registered){"llama.cpp Q4_0",     "8 Elite",  "llama3.2-1b",
                               "decoding 64 tokens", "tokens/s", 1e3 / o.step_ms,
                               llama_cpp_decoding,   false,      false};
    assert(k <= TN_MAX_REGISTERED);
    *n = k;
    return TERN_OK;
}
