/* Drafting, measured: accepted length and time per token for every set of drafters over prompt sets, the
 * share of verification that was of use, and what one forward of M rows costs. The tables of sd.npu 5.5 in
 * shape.
 *   bench_spec MODEL [-n ITEMS] [-s SKIPPED] [-x REPEATS] [-t TOKENS] [-m EXTRA_DRAFTERS] [-e] [-k CURVE] [-r SHAPE]
 *   SET...   a SET is a jsonl file of {prompt}, {turns} or {text}, or plain text -k tiny | 0.5b | 1.5b | constant:
 *   decide, and count time, by what a forward of n rows costs at that shape on a quiet 2-core Zen 5 instead
 *   of by
 *      what is measured: the same figures on every machine, and what the drafts would be worth to a larger
 *      model. constant: a forward of 32 rows takes as long as one of a row, on the device and so in the plan
 *   -r SHAPE: by the clock at the shape of another model (of random weights, say): MODEL writes the text and
 *   its logits decide which drafts
 *      are accepted, as always, and SHAPE evaluates every tree too; what counts is the time of SHAPE's
 *      forwards and of all the rest of a step (drafting, drawing a token from SHAPE's logits, moving its keys
 *      and values), not the time of MODEL's forwards. So a real text's acceptance meets a large model's real
 *      forwards; prefill and calibration are not replayed.
 *   bench_spec MODEL -v [-c CONTEXT] [-w packed]                     one forward of 1, 2, 4 .. 32 rows after
 *   CONTEXT tokens -s N: not the first N items of a set, so that what is chosen by some is measured on others
 *   -x N: every answer N times by turns, the quickest counts (for machines that others use too) -o 1,5: only these of the modes (0: none, always .. 6: all, store)
 * -e: eager, drafts fill the budget; without it only those that pay are verified. Greedy, except that plain
 * text is sampled at temperature 1, so that there is nothing to copy. */
#include "base/clock.h"
#include "base/order.h"
#include "base/rng.h"
#include "session/session.h"
#include "model/sampler.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_MODES = 12, MAX_SETS = 32, PLAIN_PROMPT_BYTES = 160 };

static void must(tern_status st, const tern_error *err) {
    if (st == TERN_OK) return;
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

static tern_session *open_session(tern_engine *e, const char *draft, int32_t n_ctx) {
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.draft = draft;
    so.n_ctx = n_ctx;
    tern_session *s;
    tern_error err;
    must(tern_session_open(e, &so, &s, &err), &err);
    return s;
}

/* ---- cost of M rows -------------------------------------------------------------------------------- */

static void verify_cost(tern_engine *e, int32_t n_ctx) {
    enum { REPEATS = 15 };
    static const int32_t rows[] = {1, 2, 4, 8, 12, 16, 20, 24, 32};
    enum { N = sizeof rows / sizeof *rows };
    tern_session *s = open_session(e, NULL, n_ctx + TN_TREE_MAX);
    size_t n_vocab = (size_t)e->model->h.n_vocab;
    int32_t *ids = malloc((size_t)n_ctx * sizeof *ids);
    tn_rng rng = {1};
    tern_error err;
    for (int32_t i = 0; i < n_ctx; i++) ids[i] = (int32_t)tn_rng_below(&rng, n_vocab);
    must(tern_session_prefill(s, ids, (size_t)n_ctx, &err), &err);
    static double ms[N][REPEATS];
    for (int r = -1; r < REPEATS; r++) {
        for (int i = 0; i < N; i++) {
            tn_tree t = {0};
            for (int32_t j = 0; j < rows[i]; j++) tn_tree_add(&t, j ? (j - 1) / 2 : -1, ids[j % n_ctx]);
            double t0 = tn_now_s();
            must(tn_session_verify(s, &t, &err), &err);
            if (r >= 0) ms[i][r] = (tn_now_s() - t0) * 1e3;
        }
    }
    printf("| rows | ms | against one |\n|---|---|---|\n");
    for (int i = 0; i < N; i++) {
        qsort(ms[i], REPEATS, sizeof **ms, tn_by_double);
        printf("| %d | %.2f | %.2f |\n", rows[i], ms[i][REPEATS / 2],
               ms[i][REPEATS / 2] / ms[0][REPEATS / 2]);
    }
    tern_session_close(&s);
    s = open_session(e, "calibrated", n_ctx);
    for (int32_t i = 0; i < n_ctx; i++)
        ids[i] = (int32_t)tn_rng_below(
            &rng, (uint64_t)(n_ctx < 1200 ? n_ctx / 3 + 1 : 400)); /* as texts have them */
    must(tern_session_prefill(s, ids, (size_t)n_ctx, &err), &err);
    tn_draft_stats cold, t;
    tn_session_draft_stats(s, &cold);
    ids[0] ^= 1;
    double t0 = tn_now_s();
    must(tern_session_prefill(s, ids, (size_t)n_ctx, &err), &err);
    double all = tn_now_s() - t0;
    tn_session_draft_stats(s, &t);
    printf(
        "calibration of %d tokens: %.1f ms, %.2f %% of the rest of their prefill (%.1f ms the first time)\n",
        n_ctx, (t.calibrate_s - cold.calibrate_s) * 1e3,
        (t.calibrate_s - cold.calibrate_s) / (all - (t.calibrate_s - cold.calibrate_s)) * 100,
        cold.calibrate_s * 1e3);
    tern_session_close(&s);
    free(ids);
}

/* ---- sets ------------------------------------------------------------------------------------------ */

static const float curve_rows[] = {1, 2, 4, 8, 12, 16, 20, 24, 32};
enum { N_CURVE = sizeof curve_rows / sizeof *curve_rows };
static const struct curve {
    const char *name;
    float ms[N_CURVE];
    float
        guess; /* of an MTP layer, in steps of one row: its bytes (8 bits) and the output layer's, of all that a step
                    reads at 5 bits; nothing of this is timed */
} curves[] = {
    {"tiny", {0.16f, 0.19f, 0.26f, 0.42f, 0.60f, 0.79f, 0.95f, 1.03f, 1.30f}, 0.3f},
    {"0.5b", {11.1f, 11.1f, 11.7f, 12.6f, 13.7f, 15.5f, 19.4f, 20.1f, 26.1f}, 0.33f},
    {"1.5b", {34.9f, 34.9f, 35.9f, 38.6f, 40.2f, 43.7f, 50.0f, 53.3f, 69.4f}, 0.21f},
    {"constant", {1, 1, 1, 1, 1, 1, 1, 1, 1}, 0.21f}, /* a device that always computes 32 rows (sd.npu 3.2) */
};

/* Time of all forwards by the curve. */
static double curve_ms(const struct curve *c, const uint64_t *n_steps_of) {
    double sum = 0;
    for (int32_t n = 1; n <= TN_TREE_MAX; n++) {
        int i = 0;
        while (curve_rows[i] < (float)n) i++;
        double at = i ? (double)(((float)n - curve_rows[i - 1]) / (curve_rows[i] - curve_rows[i - 1])) : 1;
        sum += (double)n_steps_of[n] * ((i ? (1 - at) * (double)c->ms[i - 1] : 0) + at * (double)c->ms[i]);
    }
    return sum;
}

/* Of the rows of a device that always computes TN_TREE_MAX, those without which a token of text comes about: the
 * share of what decoding without drafts spends on nothing, all but one row a token, that is spent no more where
 * a forward gives so many tokens. */
static double recovered(double accepted_length) {
    return 1 - (TN_TREE_MAX / accepted_length - 1) / (TN_TREE_MAX - 1);
}

struct costs {
    float rows[TN_PROP_COSTS], relative[TN_PROP_COSTS];
    int n;
};

typedef struct mode {
    const char *draft;
    bool stores; /* its answers go to the store, as a session with a database has them */
    tern_session
        *s; /* of one item: nothing but the store and the times of forwards is known from items before */
    double decode_s, prefill_s;
    int64_t n_tokens;
    double worst;                              /* by a curve: the least speed of an item, against none */
    uint64_t n_guesses;                        /* of an MTP layer */
    tn_drafting sum;                           /* counts of all items */
    double kept_kept, kept_steps, steps_steps; /* sums over items of their products, for the standard error */
    int32_t *answers;                          /* [n_answers], ended by TN_SAM_SEPARATOR each */
    size_t n_answers;
    int32_t *recalled; /* [n_recalled] as the store keeps it */
    size_t n_recalled;
} mode;

/* Time of a token by the curve, of what m has counted since then. */
static double curve_ms_a_token(const mode *m, const struct curve *c, const mode *then) {
    uint64_t n_steps_of[TN_TREE_MAX + 1];
    for (int i = 0; i <= TN_TREE_MAX; i++) n_steps_of[i] = m->sum.n_steps_of[i] - then->sum.n_steps_of[i];
    return (curve_ms(c, n_steps_of) +
            (double)(m->n_guesses - then->n_guesses) * (double)(c->guess * c->ms[0])) /
           (double)(m->n_tokens - then->n_tokens);
}

static void end_session(mode *m, bool others_times) {
    if (!m->s) return;
    tn_drafting *d = &m->s->drafting, *sum = &m->sum;
    for (int i = 0; i <= TN_TREE_MAX; i++) sum->n_steps_of[i] += d->n_steps_of[i];
    if (d->mtp) m->n_guesses += tn_mtp_n_guesses(d->mtp);
    double kept = (double)(d->n_steps + d->n_accepted), steps = (double)d->n_steps;
    m->kept_kept += kept * kept;
    m->kept_steps += kept * steps;
    m->steps_steps += steps * steps;
    sum->n_steps += d->n_steps;
    sum->n_rows += d->n_rows;
    sum->n_accepted += d->n_accepted;
    sum->n_offered += d->n_offered;
    sum->draft_ns += d->draft_ns;
    sum->verify_ns += d->verify_ns;
    sum->calibrate_ns += d->calibrate_ns;
    if (d->draft && others_times)
        tn_draft_give_costs(d->draft, NULL, NULL, 0, true); /* not into this package's profile */
    tern_session_close(&m->s);
}

/* Of the accepted length, a ratio of two sums over n items, each repeated (linearised, as for any ratio estimate). */
static double standard_error(const mode *m, double n, double repeats, double steps, double length) {
    double squares = m->kept_kept - 2 * length * m->kept_steps + length * length * m->steps_steps;
    return n > 1 && squares > 0 ? sqrt(squares * repeats * n / (n - 1)) / steps : 0;
}

static void begin_session(tern_engine *e, mode *m, int32_t n_ctx, const struct curve *curve,
                          const struct costs *shape_costs) {
    m->s = open_session(e, m->draft, n_ctx);
    tern_error err;
    tn_draft *d = m->s->drafting.draft;
    if (d && curve) {
        float relative[N_CURVE];
        for (int k = 0; k < N_CURVE; k++) relative[k] = curve->ms[k] / curve->ms[0];
        tn_draft_give_costs(d, curve_rows, relative, N_CURVE, true);
        if (m->s->drafting.mtp) tn_mtp_give_cost(m->s->drafting.mtp, curve->guess);
    } else if (d && shape_costs->n) {
        tn_draft_give_costs(d, shape_costs->rows, shape_costs->relative, shape_costs->n, false);
    }
    for (size_t i = 0, end; i < m->n_answers; i = end + 1) {
        for (end = i; m->answers[end] != TN_SAM_SEPARATOR;) end++;
        must(tern_session_learn(m->s, m->answers + i, end - i, &err), &err);
    }
    if (d && m->n_recalled) tn_draft_recall(d, m->recalled, m->n_recalled);
}

static void keep_answer(mode *m, size_t n_prompt) {
    m->n_recalled = tn_draft_recalled(m->s->drafting.draft, NULL);
    m->recalled = realloc(m->recalled, (m->n_recalled + 1) * sizeof *m->recalled);
    tn_draft_recalled(m->s->drafting.draft, m->recalled);
    size_t n = (size_t)m->s->n_tok - n_prompt;
    m->answers = realloc(m->answers, (m->n_answers + n + 1) * sizeof *m->answers);
    memcpy(m->answers + m->n_answers, m->s->tokens + n_prompt, n * sizeof *m->answers);
    m->n_answers += n;
    m->answers[m->n_answers++] = TN_SAM_SEPARATOR;
}

/* Greedy decoding of `text`, which has evaluated its prompt; every forward again in `shape`, after as many
 * tokens, and timed there. The loop of engine/generate.c for two sessions. */
static void replay(mode *m, tern_session *shape, const tern_generate_options *o) {
    tern_session *text = m->s;
    int32_t max_tokens = o->max_tokens;
    tn_sampler sampler, wide;
    tern_error err;
    uint32_t drafters;
    must(tn_drafting_use(text, NULL, &drafters, &err), &err);
    tn_drafting *d = &text->drafting;
    size_t n_vocab = (size_t)text->e->model->h.n_vocab, n_wide = (size_t)shape->e->model->h.n_vocab;
    if (drafters) must(tn_draft_sync(d->draft, text->tokens, text->n_tok, &err), &err);
    shape->n_tok = text->n_tok; /* its cache is filled once, to the end (main) */
    must(tn_sampler_open(&text->e->ctx, &o->sampling, n_vocab, &sampler, &err), &err);
    must(tn_sampler_open(&text->e->ctx, &o->sampling, n_wide, &wide, &err), &err);
    int32_t token = tn_sampler_draw(&sampler, text->logits, text->tokens, (size_t)text->n_tok), n = 0;
    while (n < max_tokens && (o->ignore_end || !tern_token_is_end(text->e, token))) {
        tn_tree tree = {0};
        tn_tree_add(&tree, -1, token);
        double t0 = tn_now_s();
        if (drafters) {
            must(tn_draft_push(d->draft, token, &err), &err);
            tn_draft_plan(d->draft, drafters, max_tokens - n < TN_TREE_MAX ? max_tokens - n : TN_TREE_MAX, 0,
                          false, &tree);
        }
        double t1 = tn_now_s();
        must(tree.n > 1 ? tn_session_verify(shape, &tree, &err) : tern_session_step(shape, token, &err),
             &err);
        double t2 = tn_now_s(), step_s = t2 - t0;
        if (drafters) {
            tn_draft_timed(d->draft, tree.n, (int64_t)((t2 - t1) * 1e9));
            d->draft_ns += (int64_t)((t1 - t0) * 1e9);
            d->verify_ns += (int64_t)((t2 - t1) * 1e9);
            d->n_steps++;
            d->n_rows += (uint64_t)tree.n;
            d->n_offered += TN_TREE_MAX;
        }
        must(tn_session_verify(text, &tree, &err), &err); /* the same bits as a step */
        t0 = tn_now_s();
        if (drafters & TN_DRAFT_CALIBRATED) tn_draft_verified(d->draft, &tree, text->tree_logits);
        for (int32_t row = 0, next;; row = next, d->n_accepted++) {
            const float *logits = text->tree_logits + (size_t)row * n_vocab;
            tn_session_keep(text, &tree, row);
            if (tree.n > 1) tn_session_keep(shape, &tree, row);
            tn_sampler_draw(&wide, tree.n > 1 ? shape->tree_logits + (size_t)row * n_wide : shape->logits,
                            shape->tokens, (size_t)shape->n_tok);
            n++;
            token = tn_sampler_draw(&sampler, logits, text->tokens, (size_t)text->n_tok);
            next = n < max_tokens && (o->ignore_end || !tern_token_is_end(text->e, token))
                       ? tn_tree_child(&tree, row, token)
                       : -1;
            if (next < 0) {
                if (tree.n > 1 && drafters & TN_DRAFT_EXTEND)
                    tn_draft_rejected(d->draft, &tree, row, text->tree_logits);
                if (tree.n > 1) tn_session_settle(shape, row);
                break;
            }
            must(tn_draft_push(d->draft, token, &err), &err);
        }
        m->decode_s += step_s + tn_now_s() - t0;
    }
    m->n_tokens += n + 1; /* one is drawn more than evaluated, as by generate */
    tn_sampler_close(&sampler);
    tn_sampler_close(&wide);
}

/* The prompt of a line as ids; TERN_E_INVALID where it has none. */
static tern_status prompt_of(const tern_engine *e, const char *line, int32_t *ids, size_t cap,
                             size_t *n_ids) {
    json_t *j = json_loads(line, 0, NULL);
    const char *p = json_string_value(json_object_get(j, "prompt")),
               *turn = json_string_value(json_array_get(json_object_get(j, "turns"), 0));
    tern_status st = TERN_E_INVALID;
    if (p) {
        st = tern_tokenize(e, p, strlen(p), true, true, ids, cap, n_ids, NULL);
    } else if (turn) {
        const tern_message m = {"user", turn};
        st = tern_chat_tokens(e, &m, 1, NULL, ids, cap, n_ids, NULL);
        if (st == TERN_E_UNSUPPORTED)
            st = tern_tokenize(e, turn, strlen(turn), true, false, ids, cap, n_ids, NULL);
    }
    json_decref(j);
    return st;
}

static void run(mode *m, tern_session *shape, const int32_t *ids, size_t n_ids, int32_t max_tokens,
                bool sampled, bool eager, uint64_t seed, bool last, int32_t *hash) {
    tern_error err;
    tern_generate_options o;
    tern_generate_options_defaults(&o);
    o.max_tokens = max_tokens;
    o.sampling.temperature = sampled ? 1 : 0;
    o.sampling.top_k = 0;
    o.sampling.top_p = 1;
    o.sampling.min_p = 0;
    o.sampling.seed = seed;
    o.ignore_end = sampled;
    o.draft_eager = eager;
    double t0 = tn_now_s();
    must(tern_session_prefill(m->s, ids, n_ids, &err), &err);
    m->prefill_s += tn_now_s() - t0;
    if (shape) {
        replay(m, shape, &o);
    } else {
        tern_generate_result res;
        must(tern_session_generate(m->s, &o, &res, &err), &err);
        m->decode_s += res.decode_s;
        m->n_tokens += res.n_tokens;
    }
    if (m->stores && last) keep_answer(m, n_ids);
    for (int32_t i = (int32_t)n_ids; i < m->s->n_tok; i++)
        *hash = (int32_t)((uint32_t)*hash * 31 + (uint32_t)m->s->tokens[i]);
}

static void bench_set(tern_engine *e, const char *path, mode *modes, int n_modes, int n_items, int n_skipped,
                      int repeats, int32_t max_tokens, int32_t n_ctx, bool eager, const struct curve *curve,
                      tern_session *shape, const struct costs *shape_costs) {
    FILE *f = fopen(path, "r");
    if (!f) {
        fprintf(stderr, "%s: cannot read\n", path);
        exit(1);
    }
    bool plain = !strstr(path, ".jsonl");
    char *line = NULL, block[PLAIN_PROMPT_BYTES + 1];
    size_t cap = 0;
    int n = 0;
    int32_t *ids = malloc((size_t)n_ctx * sizeof *ids);
    for (int i = 0; i < n_modes; i++) {
        modes[i] = (mode){.draft = modes[i].draft, .stores = modes[i].stores, .worst = INFINITY};
    }
    while (n < n_items) {
        size_t n_ids = 0, room = (size_t)(n_ctx - max_tokens);
        tern_status st;
        if (plain) {
            size_t got = fread(block, 1, PLAIN_PROMPT_BYTES, f);
            if (got < PLAIN_PROMPT_BYTES) break;
            st = tern_tokenize(e, block, got, true, true, ids, room, &n_ids, NULL);
        } else {
            if (getline(&line, &cap, f) < 0) break;
            st = prompt_of(e, line, ids, room, &n_ids);
        }
        if (st != TERN_OK || !n_ids || n_skipped-- > 0) continue;
        int32_t want = 0;
        double best[MAX_MODES];
        for (int k = 0; k < n_modes * repeats; k++) {
            int i = (k + n) % n_modes, r = k / n_modes; /* no mode always comes first */
            int32_t hash = 0;
            mode *m = &modes[i];
            double before_s = m->decode_s;
            const mode before = *m;
            begin_session(e, m, n_ctx, curve, shape_costs);
            run(m, shape, ids, n_ids, max_tokens, plain, eager, (uint64_t)n, r == repeats - 1, &hash);
            end_session(m, shape);
            if (curve && i && m->n_tokens > before.n_tokens) {
                double speed = (double)curve->ms[0] / curve_ms_a_token(m, curve, &before);
                if (speed < m->worst) m->worst = speed;
            }
            double took_s = m->decode_s - before_s;
            best[i] = r && best[i] < took_s ? best[i] : took_s;
            m->decode_s = before_s + (r == repeats - 1 ? best[i] * repeats : 0);
            if (k && hash != want) {
                fprintf(stderr, "%s item %d: %s gives another text\n", path, n, m->draft);
                exit(1);
            }
            want = hash;
        }
        n++;
    }
    fclose(f);
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    for (int i = 0; i < n_modes; i++) {
        mode *m = &modes[i];
        const tn_drafting *t = &m->sum;
        double steps = t->n_steps ? (double)t->n_steps : 1, offered = t->n_offered ? (double)t->n_offered : 1,
               kept = (double)(t->n_steps + t->n_accepted);
        double per_token =
            m->decode_s * 1e3 / (double)(m->n_tokens > n * repeats ? m->n_tokens - n * repeats : 1);
        double none = modes[0].decode_s * 1e3 /
                      (double)(modes[0].n_tokens > n * repeats ? modes[0].n_tokens - n * repeats : 1);
        if (curve) {
            none = (double)curve->ms[0];
            per_token = i ? curve_ms_a_token(m, curve, &(mode){0}) : none;
        }
        printf(
            "| %s | %s%s | %.2f ± %.2f | %.3f | %.2f | %.2f | %.0f / %.0f / %.0f | %.1f | %.3f | %.3f | %.1f "
            "| %.2f |\n",
            i ? "" : name, m->draft, m->stores ? ", store" : "", i ? kept / steps : 1,
            i ? standard_error(m, n, repeats, steps, kept / steps) : 0, per_token, none / per_token,
            curve && i ? m->worst : 0, kept / offered * 100, ((double)t->n_rows - kept) / offered * 100,
            t->n_offered ? 100 - (double)t->n_rows / offered * 100 : 0, recovered(i ? kept / steps : 1) * 100,
            (double)t->draft_ns * 1e-6 / steps, (double)t->verify_ns * 1e-6 / steps,
            m->prefill_s > 0
                ? (double)t->calibrate_ns * 1e-9 / (m->prefill_s - (double)t->calibrate_ns * 1e-9) * 100
                : 0,
            (double)m->n_guesses / steps);
        fflush(stdout);
        free(m->answers);
        free(m->recalled);
    }
    free(ids);
    free(line);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr,
                "usage: bench_spec MODEL [-n ITEMS] [-s SKIPPED] [-x REPEATS] [-t TOKENS] [-m DRAFTERS]... "
                "[-o MODE,...] [-e] [-k CURVE] [-r SHAPE] SET...\n       bench_spec MODEL -v [-c CONTEXT] "
                "[-w WEIGHTS]\n");
        return 2;
    }
    const char *model = argv[1];
    int n_items = 20, n_skipped = 0, n_modes = 7, repeats = 1, opt;
    int32_t max_tokens = 96, n_ctx = 512;
    bool eager = false, verify = false;
    mode modes[MAX_MODES] = {{.draft = "none"},
                             {.draft = "lookup"},
                             {.draft = "sam"},
                             {.draft = "sam,calibrated"},
                             {.draft = "sam,extend"},
                             {.draft = "all"},
                             {.draft = "all", .stores = true}};
    argv++;
    argc--;
    const struct curve *curve = NULL;
    const char *shape_path = NULL, *weights = NULL;
    while ((opt = getopt(argc, argv, "n:s:t:m:o:evc:k:r:x:w:")) >= 0) {
        switch (opt) {
        case 'n': n_items = atoi(optarg); break;
        case 's': n_skipped = atoi(optarg); break;
        case 't': max_tokens = atoi(optarg); break;
        case 'm':
            if (n_modes < MAX_MODES) modes[n_modes++].draft = optarg;
            break;
        case 'k':
            for (size_t i = 0; i < sizeof curves / sizeof *curves; i++)
                curve = strcmp(curves[i].name, optarg) ? curve : &curves[i];
            break;
        case 'o': { /* the numbers of the modes wanted, 0 always */
            int kept = 1;
            for (const char *p = optarg; *p; p += *p != 0) {
                int i = (int)strtol(p, (char **)&p, 10);
                if (i > 0 && i < n_modes && i >= kept) modes[kept++] = modes[i];
            }
            n_modes = kept;
            break;
        }
        case 'r': shape_path = optarg; break;
        case 'x': repeats = atoi(optarg) > 0 ? atoi(optarg) : 1; break;
        case 'e': eager = true; break;
        case 'v': verify = true; break;
        case 'w': weights = optarg; break;
        case 'c': n_ctx = atoi(optarg); break;
        default: return 2;
        }
    }
    tern_options o;
    tn_options_defaults(&o);
    o.weights = weights;
    tern_engine *e;
    tern_error err;
    must(tern_engine_open(model, &o, &e, &err), &err);
    int32_t n_set_ctx = e->model->h.ctx_train < 4096 ? e->model->h.ctx_train : 4096;
    tern_engine *shape_engine = NULL;
    tern_session *shape = NULL;
    struct costs shape_costs = {.n = 0};
    if (shape_path) { /* what stands in the context does not matter to the time: any tokens, once, and every
                         prompt takes as many as it has */
        must(tern_engine_open(shape_path, &o, &shape_engine, &err), &err);
        shape = open_session(shape_engine, NULL, n_set_ctx);
        int32_t *ids = malloc((size_t)n_set_ctx * sizeof *ids);
        tn_rng rng = {1};
        for (int32_t i = 0; i < n_set_ctx - max_tokens; i++)
            ids[i] = (int32_t)tn_rng_below(&rng, (uint64_t)shape_engine->model->h.n_vocab);
        must(tern_session_prefill(shape, ids, (size_t)(n_set_ctx - max_tokens), &err), &err);
        shape->n_tok = 512;
        must(tn_drafting_measure(shape, shape_costs.rows, shape_costs.relative, &shape_costs.n, &err), &err);
        free(ids);
    } else if (!curve && !verify) { /* the forwards' times into the profile, before anything is counted */
        tern_session *s = open_session(e, "all", n_set_ctx);
        tern_generate_options g;
        tern_generate_options_defaults(&g);
        g.ignore_end = true;
        int32_t *ids = malloc(512 * sizeof *ids);
        tn_rng rng = {1};
        for (int i = 0; i < 512; i++) ids[i] = (int32_t)tn_rng_below(&rng, (uint64_t)e->model->h.n_vocab);
        must(tern_session_prefill(s, ids, 512, &err), &err);
        must(tern_session_generate(s, &g, NULL, &err), &err);
        tern_session_close(&s);
        free(ids);
    }
    if (verify) {
        verify_cost(e, n_ctx);
    } else {
        printf("| set | drafters | accepted length and its standard error | ms/token | speed | of the worst "
               "item (-k) | valid / "
               "wasted / unused %% | "
               "recovered %% | draft ms/step | forward ms/step | calibration, %% of prefill "
               "| guesses a step |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
        for (int i = optind; i < argc; i++)
            bench_set(e, argv[i], modes, n_modes, n_items, n_skipped, repeats, max_tokens, n_set_ctx, eager,
                      curve, shape, &shape_costs);
    }
    tern_session_close(&shape);
    tern_engine_close(&shape_engine);
    tern_engine_close(&e);
    return 0;
}
