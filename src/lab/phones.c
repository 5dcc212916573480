/* lab/phones.c - public figures of runs wholly on a Hexagon, beside the profile that was fitted to two of them.
 *
 * sd8elite-v79 is made of two models' times on one SoC (share/soc/sd8elite-v79.json). Everything else is
 * predicted: other models on the same SoC, other SoCs from one model's times there, and other runtimes, of whom
 * nothing is taken. The longest time to the first token that the same source prints is the shortest times the
 * context over 128, so it is no measurement and not here. AI Hub's rows are the perf.yaml of quic/ai-hub-models, commit
 * 33c3d032. The same commit's export sets keys, values and the last layer to 8 bits. */
#include "lab/reproduce_impl.h"

#include "base/status.h"

#include <string.h>

enum { ROWS = 128 }; /* of the prompt in AI Hub's figures, and of a chunk */

#define AI_HUB "AI Hub"
#define FITTED "one of two models that the profile is fitted to"
#define SCALED "gives how much faster this SoC is than 8 Elite"

/* A model's shortest time to the first token and its speed of decoding, Genie, w4a16, a context of 4096. */
typedef struct hub_row {
    const char *model, *prefill, *decode;
    double ms, tokens_per_s;
    const char *note_prefill, *note_decode;
} hub_row;

static const hub_row v79[] = {
    {"llama3.2-1b", "8 Elite, llama3.2-1b, first token", "8 Elite, llama3.2-1b, decoding", 37.0651, 53.6399,
     FITTED, FITTED},
    {"llama3-8b", "8 Elite, llama3.1-8b, first token", "8 Elite, llama3.1-8b, decoding", 154.517, 13.0546,
     FITTED, FITTED},
    {"llama3.2-3b", "8 Elite, llama3.2-3b, first token", "8 Elite, llama3.2-3b, decoding", 88.195, 23.4718,
     "", ""},
    {"phi3-3.8b", "8 Elite, phi3.5-mini, first token", "8 Elite, phi3.5-mini, decoding", 119.5948, 14.73, "",
     ""},
    {"mistral-7b", "8 Elite, mistral-7b, first token", "8 Elite, mistral-7b, decoding", 165.65, 12.56, "",
     "the size printed for its weights"},
    {"qwen2.5-7b", "8 Elite, qwen2.5-7b, first token", "8 Elite, qwen2.5-7b, decoding", 135.6538, 15.40274,
     "", ""},
    {"falcon3-7b", "8 Elite, falcon3-7b, first token", "8 Elite, falcon3-7b, decoding", 126.5205, 14.02985,
     "", ""},
    {"granite3.1-8b", "8 Elite, granite3.1-8b, first token", "8 Elite, granite3.1-8b, decoding", 196.7925,
     11.01293, "", ""},
    {"baichuan2-7b", "8 Elite, baichuan2-7b, first token", "8 Elite, baichuan2-7b, decoding", 208.048, 7.72,
     "", "the size printed for its weights"},
};

static const hub_row v81[] = {
    {"llama3-8b", "8 Elite Gen 5, llama3.1-8b, first token", "8 Elite Gen 5, llama3.1-8b, decoding", 109.992,
     14.91757, SCALED, SCALED},
    {"llama3.2-1b", "8 Elite Gen 5, llama3.2-1b, first token", "8 Elite Gen 5, llama3.2-1b, decoding", 30.937,
     64.04112, "", ""},
    {"llama3.2-3b", "8 Elite Gen 5, llama3.2-3b, first token", "8 Elite Gen 5, llama3.2-3b, decoding", 58.016,
     29.48402, "", ""},
    {"falcon3-7b", "8 Elite Gen 5, falcon3-7b, first token", "8 Elite Gen 5, falcon3-7b, decoding", 109.03,
     15.8303, "", ""},
};

static const hub_row x_elite[] = {
    {"llama3-8b", "X Elite, llama3.1-8b, first token", "X Elite, llama3.1-8b, decoding", 207.727, 9.357,
     SCALED, SCALED},
    {"llama3.2-3b", "X Elite, llama3.2-3b, first token", "X Elite, llama3.2-3b, decoding", 125.936, 18.4176,
     "", ""},
    {"phi3-3.8b", "X Elite, phi3.5-mini, first token", "X Elite, phi3.5-mini, decoding", 185.833, 6.2, "",
     "too much because it is printed at 42 % of this model's speed on 8 Elite, and the others at 71 to 80 %"},
    {"qwen2.5-7b", "X Elite, qwen2.5-7b, first token", "X Elite, qwen2.5-7b, decoding", 174.9494, 12.33811,
     "", ""},
    {"falcon3-7b", "X Elite, falcon3-7b, first token", "X Elite, falcon3-7b, decoding", 197.3798, 9.96829, "",
     ""},
    {"granite3.1-8b", "X Elite, granite3.1-8b, first token", "X Elite, granite3.1-8b, decoding", 295.3902,
     8.01724, "", ""},
};

/* The size of a model's weights in GB where the source prints it; 0: 4 bits each, and 8 of the last layer's. */
static double printed_gb(const char *model) {
    return !strcmp(model, "mistral-7b") ? 4.17 : !strcmp(model, "baichuan2-7b") ? 5.06 : 0;
}

static tern_status run(tn_book *b, const tn_soc *soc, const char *model, int32_t n_prompt, tn_sim_result *o,
                       tern_error *err) {
    const tn_sim_request r = {.soc = soc,
                              .model = tn_book_model(model),
                              .n_tokens = n_prompt,
                              .n_chunk = ROWS,
                              .policy = tn_policy_defaults(TN_POLICY_OOE),
                              .n_gen = 1};
    return tn_sim_run(b->s, &r, NULL, o, err);
}

/* The first n_fitted rows are inputs. */
static tern_status hub_rows(tn_book *b, const tn_soc *soc, const hub_row *rows, int32_t n, int32_t n_fitted,
                            tern_error *err) {
    for (int32_t i = 0; i < n; i++) {
        tn_sim_result o;
        tn_claim_kind kind = i < n_fitted ? TN_CLAIM_INPUT : TN_CLAIM_PREDICTED;
        const tn_sim_model *m = tn_book_model(rows[i].model);
        tn_soc mine = *soc;
        double gb = printed_gb(m->name);
        if (gb > 0)
            mine.step_weight_bits = 8 * (gb * 1e9 - (double)m->n_vocab * m->n_embd) / tn_sim_weight_bytes(m);
        TN_TRY(run(b, &mine, rows[i].model, ROWS, &o, err));
        tn_book_add(b, kind, AI_HUB, rows[i].prefill, "ms", rows[i].ms, o.ttft_ms, rows[i].note_prefill);
        tn_book_add(b, kind, AI_HUB, rows[i].decode, "tokens/s", rows[i].tokens_per_s, 1e3 / o.step_ms,
                    rows[i].note_decode);
    }
    return TERN_OK;
}

/* Another SoC of the family: one factor for all that a prefill does and one for a decode step, both from one
 * model. */
static tern_status other_soc(tn_book *b, const tn_soc *soc, const hub_row *one, tn_soc *out,
                             tern_error *err) {
    tn_sim_result o;
    TN_TRY(run(b, soc, one->model, ROWS, &o, err));
    double prefill = one->ms / o.ttft_ms, decode = 1e3 / one->tokens_per_s / o.step_ms;
    *out = *soc;
    out->launch_ns *= prefill, out->mac_ns *= prefill, out->elem_ns *= prefill, out->attn_mac_ns *= prefill,
        out->vector_mac_ns *= prefill;
    out->step_layer_ns *= decode, out->step_byte_ns *= decode;
    return TERN_OK;
}

/* Runtimes with kernels of their own, whose attention reads what there is and not a whole context. Nothing of
 * them was fitted. */
static tern_status other_runtimes(tn_book *b, const tn_soc *elite, const tn_soc *gen5, tern_error *err) {
    tn_soc own = *elite, own5 = *gen5;
    own.step_context = own5.step_context = 64; /* half of the 128 tokens decoded from nothing */
    own.prefill_context = own5.prefill_context = 0;
    own.step_kv_bytes = own5.step_kv_bytes = 2;
    tn_sim_result o;
    TN_TRY(run(b, &own, "qwen3-0.6b", 512, &o, err));
    tn_book_add(b, TN_CLAIM_PREDICTED, "MNN", "8 Elite, qwen3-0.6b, prompt of 512", "tokens/s", 2728.66,
                o.tokens_per_second, "MNN #4633, July 2026, 4 bits in blocks of 64");
    tn_book_add(b, TN_CLAIM_PREDICTED, "MNN", "8 Elite, qwen3-0.6b, decoding", "tokens/s", 76.16,
                1e3 / o.step_ms, "the same");
    TN_TRY(run(b, &own5, "qwen3.5-0.8b", 1024, &o, err));
    tn_book_add(b, TN_CLAIM_PREDICTED, "llama.cpp", "8 Elite Gen 5, qwen3.5-0.8b, prompt of 1024", "tokens/s",
                3477.30, o.tokens_per_second,
                "18 of 24 layers are delta nets; llama.cpp #29199, September 2026");
    TN_TRY(run(b, &own5, "qwen3-4b", 512, &o, err));
    tn_book_add(b, TN_CLAIM_PREDICTED, "llama.cpp", "8 Elite Gen 5, qwen3-4b, prompt of 512", "tokens/s",
                689.97, o.tokens_per_second,
                "too much because it turns Q4_0 into 16-bit floats before every product; llama.cpp #23368");
    return TERN_OK;
}

tern_status tn_phones_gen5(tn_book *b, tn_soc *out, tern_error *err) {
    return other_soc(b, &b->socs[TN_SOC_V79], &v81[0], out, err);
}

tern_status tn_phones_x_elite(tn_book *b, tn_soc *out, tern_error *err) {
    return other_soc(b, &b->socs[TN_SOC_V79], &x_elite[0], out, err);
}

tern_status tn_reproduce_phones(tn_book *b, tern_error *err) {
    const tn_soc *elite = &b->socs[TN_SOC_V79];
    tn_soc gen5, laptop;
    TN_TRY(tn_phones_gen5(b, &gen5, err));
    TN_TRY(tn_phones_x_elite(b, &laptop, err));
    TN_TRY(hub_rows(b, elite, v79, (int32_t)(sizeof v79 / sizeof *v79), 2, err));
    TN_TRY(hub_rows(b, &gen5, v81, (int32_t)(sizeof v81 / sizeof *v81), 1, err));
    TN_TRY(hub_rows(b, &laptop, x_elite, (int32_t)(sizeof x_elite / sizeof *x_elite), 1, err));
    tn_sim_result o;
    TN_TRY(run(b, elite, "qwen2.5-7b", ROWS, &o, err));
    tn_book_add(
        b, TN_CLAIM_UNCOUNTED, AI_HUB, "8 Elite, qwen2-7b, first token", "ms", 170.593, o.ttft_ms,
        "the shapes of qwen2.5-7b, whose printed time is a fifth shorter: how far the source is from itself");
    return other_runtimes(b, elite, &gen5, err);
}
