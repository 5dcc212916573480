#include "session/mtp.h"

#include "base/clock.h"
#include "base/status.h"
#include "draft/draft.h"
#include "model/assistant.h"
#include "model/next.h"
#include "model/sampler.h"
#include "model/streamed.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { DEPTH = 8, TOGETHER = 8, TRY_FIRST = 32, TRY_LAST = 256, COLD = 4 };
static const float LIKELY = 0.6f,
                   LIKELY_SHARE = 0.05f; /* probability of a right guess: its initial value, and the weight
                                            of an observation */
/* Price of a token in steps: initially one, with the weight of PRICED_STEPS steps. Every step scales the
 * older ones by PRICE_KEPT. */
static const float PRICED_STEPS = 4, PRICE_KEPT = 0.9f;
static const float TAIL = 0.5f, TAIL_SHARE = 0.1f;
static const float MARGIN = 1.2f; /* saving that a guess must promise, relative to its cost: both are
                                     estimates */
static const float STEP_RISE = 1.01f;

struct tn_mtp {
    tn_ctx *ctx;
    tern_engine *e;
    const tn_model *layer; /* the model's own, or the head's */
    const int32_t *ids;    /* tokens of the logits; NULL: all */
    size_t n_logits, raw;  /* values of what a token's state comes of */
    uint32_t drafter;
    tn_evaluator *evaluator;
    bool assists;           /* the head is an assistant: then there are no rows, no keys and no values */
    tn_assistant assistant; /* in place of text */
    tn_next_text text;
    int32_t first, end; /* noted positions of the session's text: first .. end - 1 */
    int32_t n_waiting;  /* number of the last rows of first .. end - 2 that wait for their keys and values */
    int32_t
        guessed; /* token of the row after the text if its keys and values are already computed; -1: none */
    bool knows;  /* the state after position end - 1 is known; else it is zeros */
    /* [TN_TREE_MAX + 1] of the waiting rows; after them the state of position end - 1. A head's states wait as the `raw`
     * values that it joins; joined is their place then, else NULL. Of an assistant: one embedding, and what the model's last
     * layer left at position end - 1, before the norm. */
    float *embeddings, *states, *joined;
    float *out; /* [n_embd] state of a guess */
    float *logits;
    float step_ns;    /* time of a guess: the quick end of the measurements, as for steps (proposals.h) */
    float given_cost; /* cost of a guess in steps; 0: derived from step_ns */
    /* Probability that a first guess is right, and one after a guess: running means. */
    float likely[2];
    /* Recent price of a token, and tokens that followed right guesses for free: see learn. */
    float sum_price, sum_steps, tail;
    int32_t n_path, text_end; /* the previous step's guesses, and the length of the text they followed */
    int32_t path[DEPTH];
    int32_t n_skipped, try_after; /* steps without a guess, and the number of them before the next try */
    uint64_t n_guesses;
    int64_t note_ns;
};

tern_status tn_mtp_open(tern_engine *e, uint32_t drafter, tn_evaluator *evaluator, const tn_state *state,
                        int32_t n_ctx, tn_mtp **out, tern_error *err) {
    tn_ctx *ctx = &e->ctx;
    const tn_model *layer = drafter == TN_DRAFT_HEAD ? e->head : e->model->next;
    const bool assists = tn_is_assistant(&layer->h), head = drafter == TN_DRAFT_HEAD && !assists;
    const tn_hparams *h = &layer->h;
    const bool own_out = head && h->head.own_out,
               rope_long = h->rope_orig_ctx > 0 && n_ctx > h->rope_orig_ctx;
    const size_t rows = assists ? 1 : TN_TREE_MAX + 1,
                 width = (size_t)(assists ? h->head.n_target : h->n_embd);
    tn_mtp *m = *out = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *m);
    TN_FAIL_IF(!m, err, TERN_E_MEMORY, "no memory to guess further");
    *m = (tn_mtp){.ctx = ctx,
                  .e = e,
                  .layer = layer,
                  .ids = own_out ? e->head_ids : NULL,
                  .n_logits = (size_t)(own_out ? h->head.n_vocab : e->model->h.n_vocab),
                  .raw = head ? 3 * (size_t)h->head.n_target : width,
                  .drafter = drafter,
                  .evaluator = evaluator,
                  .assists = assists,
                  .guessed = -1,
                  .try_after = TRY_FIRST,
                  .likely = {LIKELY, LIKELY},
                  .sum_price = PRICED_STEPS,
                  .sum_steps = PRICED_STEPS,
                  .tail = TAIL};
    /* guesses lie after the text, which may fill the context */
    tern_status st =
        assists
            ? tn_assistant_open(ctx, layer, &e->model->h, &state->kv, &e->kern, e->pool, &m->assistant, err)
            : tn_next_open(ctx, layer, &e->kern, e->pool, n_ctx + DEPTH, rope_long, &m->text, err);
    m->embeddings = tn_alloc(ctx, TN_MEM_ACTIVATIONS, rows * width, sizeof *m->embeddings);
    m->states = tn_calloc(ctx, TN_MEM_ACTIVATIONS, rows * m->raw, sizeof *m->states);
    if (head) m->joined = tn_alloc(ctx, TN_MEM_ACTIVATIONS, rows * width, sizeof *m->joined);
    m->out = tn_alloc(ctx, TN_MEM_ACTIVATIONS, 2 * width, sizeof *m->out); /* and normed */
    m->logits = tn_alloc(ctx, TN_MEM_ACTIVATIONS, m->n_logits, sizeof *m->logits);
    if (st == TERN_OK && (!m->embeddings || !m->states || (head && !m->joined) || !m->out || !m->logits))
        st = tn_fail(err, TERN_E_MEMORY, "no memory to guess further");
    if (st != TERN_OK) tn_mtp_close(out);
    return st;
}

void tn_mtp_close(tn_mtp **pm) {
    tn_mtp *m = *pm;
    if (!m) return;
    *pm = NULL;
    tn_next_close(&m->text);
    tn_assistant_close(&m->assistant);
    tn_free(m->ctx, m->embeddings);
    tn_free(m->ctx, m->states);
    tn_free(m->ctx, m->joined);
    tn_free(m->ctx, m->out);
    tn_free(m->ctx, m->logits);
    tn_free(m->ctx, m);
}

int64_t tn_mtp_note_ns(const tn_mtp *m) { return m->note_ns; }
uint64_t tn_mtp_n_guesses(const tn_mtp *m) { return m->n_guesses; }

/* Values of an embedding, and of the state for a guess further. */
static size_t width(const tn_mtp *m) {
    const tn_hparams *h = &m->layer->h;
    return (size_t)(m->assists ? h->head.n_target : h->n_embd);
}

/* A head was trained on embeddings as they are stored, an assistant on those that the model's first layer gets. */
static void embed(const tn_mtp *m, int32_t token, float *out) {
    const tn_hparams *h = &m->e->model->h;
    const bool scaled = m->drafter == TN_DRAFT_MTP || m->assists;
    if (tn_is_head(&m->layer->h) && m->layer->h.head.own_embd && !m->assists) {
        tn_linear_row(tn_model_linear(m->layer, -1, TN_W_EMBD), (size_t)token, out);
        return;
    }
    if (m->e->npu) tn_npu_model_embed(m->e->npu, h, token, out);
    else tn_linear_row(tn_model_linear(m->e->model, -1, TN_W_EMBD), (size_t)token, out);
    for (size_t i = 0; scaled && h->embd_scale != 1.0f && i < width(m); i++) out[i] *= h->embd_scale;
}

/* ---- keeping up ------------------------------------------------------------------------------------- */

/* The row after all waiting ones. */
static int32_t next_row(const tn_mtp *m) { return m->end - m->first - 1; }

/* Evaluates the waiting rows, and, for a guess, that of the token after them. The state of the last token stays. */
static void evaluate(tn_mtp *m, float *out) {
    const int32_t n = m->n_waiting + (out != NULL), row0 = next_row(m) - m->n_waiting;
    if (m->joined) tn_next_join(&m->text, m->states, n, m->joined);
    tn_next_rows(&m->text, row0, n, m->embeddings, m->joined ? m->joined : m->states, out);
    memmove(m->states, m->states + (size_t)m->n_waiting * m->raw, m->raw * sizeof *m->states);
    m->n_waiting = 0;
}

static void flush(tn_mtp *m) {
    if (m->n_waiting) evaluate(m, NULL);
}

/* Returns to a text of n tokens, or starts anew after them. */
static void go_back(tn_mtp *m, int32_t n) {
    flush(m);
    m->guessed = -1;
    if (n <= m->first || n > m->end) m->first = n;
    m->end = n;
    m->knows = false;
    memset(m->states, 0, m->raw * sizeof *m->states);
}

/* The token at position end is known, so the row before it is complete. */
static void complete(tn_mtp *m, int32_t token) {
    bool done = m->guessed == token; /* and no row before it waits */
    m->guessed = -1;
    if (m->end == m->first || done || m->assists) return;
    embed(m, token, m->embeddings + (size_t)m->n_waiting++ * width(m));
}

void tn_mtp_note(tn_mtp *m, int32_t pos, int32_t token, const float *x) {
    int64_t t0 = tn_now_ns();
    /* The embedding may be the last to arrive. Where it does not, the text's own evaluation tells. */
    if (tn_model_need(m->e->model, TN_NEED_ALL, NULL) != TERN_OK) return;
    if (pos != m->end) go_back(m, pos);
    complete(m, token);
    float *state = m->states + (size_t)m->n_waiting * m->raw;
    if (m->joined || m->assists) memcpy(state, x, m->raw * sizeof *x);
    else tn_forward_out_norm(m->e->model, &m->e->kern, x, state, 1);
    m->knows = true;
    m->end++;
    if (m->n_waiting == TN_TREE_MAX) flush(m);
    m->note_ns += tn_now_ns() - t0;
}

void tn_mtp_copy(tn_mtp *dst, const tn_mtp *src, int32_t n) {
    dst->n_waiting = 0;
    dst->first = dst->end = n;
    go_back(dst, n);
    if (src && src->assists && n == src->end && src->knows) {
        memcpy(dst->states, src->states, src->raw * sizeof *dst->states);
        dst->knows = true;
    }
    if (!src || src->assists || n <= src->first || n > src->end) return;
    const int32_t done = next_row(src) - src->n_waiting, rows = n - src->first - 1,
                  kept = rows < done ? rows : done;
    tn_kv_convert(&src->text.state.kv, kept, &dst->text.state.kv);
    dst->first = src->first;
    if (rows < done) return; /* the state of the last token is gone */
    dst->n_waiting = rows - done;
    memcpy(dst->embeddings, src->embeddings, (size_t)dst->n_waiting * width(src) * sizeof *dst->embeddings);
    memcpy(dst->states, src->states, (size_t)(dst->n_waiting + 1) * src->raw * sizeof *dst->states);
    dst->knows = dst->n_waiting < src->n_waiting || src->knows;
}

/* ---- guessing --------------------------------------------------------------------------------------- */

/* A draft of an assistant after this token, from the state in m->out. */
static bool assist(tn_mtp *m, int32_t token) {
    embed(m, token, m->embeddings);
    tn_assistant_run(&m->assistant, m->end, m->embeddings, m->out, m->logits, m->out);
    return true;
}

static bool compute_logits(tn_mtp *m) {
    const float *normed = m->out;
    if (m->ids) {
        tn_next_logits(&m->text, m->out, m->logits);
        return true;
    }
    if (m->joined)
        tn_forward_out_norm(m->layer, &m->e->kern, m->out, m->out + width(m), 1), normed += width(m);
    return m->evaluator->ops->head(m->evaluator, normed, m->logits, NULL) == TERN_OK;
}

/* The first guess: evaluates the waiting rows and that of the drawn token. They stay unchanged for
 * tn_mtp_note. */
static bool first_guess(tn_mtp *m, int32_t token) {
    if (m->assists) {
        if (!m->knows) return false;
        tn_forward_out_norm(m->e->model, &m->e->kern, m->states, m->out, 1);
        return assist(m, token);
    }
    if (!m->knows || m->end - m->first >= m->text.state.kv.cap_tok - DEPTH) return false;
    if (m->n_waiting >= TOGETHER) flush(m); /* the end of a prompt */
    embed(m, token, m->embeddings + (size_t)m->n_waiting * width(m));
    evaluate(m, m->out);
    m->guessed = token;
    return compute_logits(m);
}

/* A guess after a guess. */
static bool further(tn_mtp *m, int32_t row, int32_t token) {
    if (m->assists) return assist(m, token);
    float *e = m->embeddings + TN_TREE_MAX * width(m); /* nothing waits there */
    embed(m, token, e);
    tn_next_rows(&m->text, row, 1, e, m->out, m->out);
    return compute_logits(m);
}

const float *tn_mtp_logits(tn_mtp *m, int32_t token, int32_t depth) {
    return (depth ? further(m, next_row(m) + depth, token) : first_guess(m, token)) ? m->logits : NULL;
}

/* Cost of a guess in steps of one row. */
static float cost_of(const tn_mtp *m, tn_proposals *p) {
    if (m->given_cost > 0) return m->given_cost;
    return tn_prop_step_ns(p) > 0 ? m->step_ns / tn_prop_step_ns(p) : 0;
}

void tn_mtp_give_cost(tn_mtp *m, float steps) { m->given_cost = steps; }

static bool is_timed(const tn_mtp *m, tn_proposals *p) { return m->given_cost > 0 || tn_prop_step_ns(p) > 0; }

/* Learns from the previous step. The cheaper tokens have lately been without guesses, the less a right guess
 * is worth. And a right guess may bring further tokens: where the text then repeats, retrieval knows what
 * follows. */
static void learn(tn_mtp *m, const tn_proposals *p, const int32_t *text, int32_t n) {
    int32_t n_right = 0;
    if (p->last_tokens > 0) {
        m->sum_price = PRICE_KEPT * m->sum_price + p->last_cost / p->last_tokens;
        m->sum_steps = PRICE_KEPT * m->sum_steps + 1;
    }
    while (n_right < m->n_path && m->text_end + n_right < n &&
           text[m->text_end + n_right] == m->path[n_right])
        n_right++;
    if (m->n_path && n_right == m->n_path && p->last_tokens > (float)n_right)
        m->tail += TAIL_SHARE * (p->last_tokens - 1 - (float)n_right - m->tail);
    m->n_path = 0;
    m->text_end = n;
}

/* Probability that a guess after this node brings a token that others do not propose there: its own
 * probability where they are wrong, zero where they are surer than a guess is. */
static float fresh(const tn_mtp *m, const tn_proposals *p, int32_t node) {
    const tn_prop *at = &p->node[node];
    float likely = m->likely[node > 0], proposed = 0;
    for (int32_t i = at->child; i >= 0; i = p->node[i].sibling)
        proposed = p->node[i].p > proposed ? p->node[i].p : proposed;
    proposed = at->p > 0 ? proposed / at->p : 0;
    return proposed > likely ? 0 : likely * (1 - proposed);
}

/* Tells whether such a guess is likely to save more than it costs. The first guesses read cold weights, so
 * their times are ignored: answers are short, and one that was held up would be the last. There is no guess
 * before a forward was timed. */
static bool pays(const tn_mtp *m, tn_proposals *p, int32_t node) {
    if (!is_timed(m, p)) return p->cost_given;
    float price = m->sum_price / m->sum_steps, tokens = p->node[node].p * fresh(m, p, node) * (1 + m->tail);
    float gain = tn_prop_gain(p, tokens, price < 1 ? price : 1, p->node[node].depth + 1);
    return gain > (m->given_cost > 0 || m->n_guesses >= COLD ? MARGIN * cost_of(m, p) : 0);
}

/* Where guesses cost more than they save, they are tried again at growing intervals. */
static bool worth(tn_mtp *m, tn_proposals *p) {
    if (fresh(m, p, 0) <= 0) return false;
    if (pays(m, p, 0)) {
        m->n_skipped = 0;
        m->try_after = TRY_FIRST;
        return true;
    }
    if (!is_timed(m, p) || ++m->n_skipped < m->try_after) return false;
    m->n_skipped = 0;
    m->try_after = m->try_after < TRY_LAST ? 2 * m->try_after : TRY_LAST;
    return true;
}

/* Guesses the token after the node. Returns its node, or -1 if there is none or nothing may follow it. */
static int32_t guess(tn_mtp *m, tn_proposals *p, int32_t node, int32_t depth) {
    int64_t t0 = tn_now_ns();
    int32_t token = p->node[node].token;
    if (!(depth ? further(m, next_row(m) + depth, token) : first_guess(m, token))) return -1;
    m->n_guesses++;
    token = tn_argmax(m->logits, m->n_logits);
    float confidence = expf(tn_logprob(m->logits, m->n_logits, token));
    if (!(confidence >= 0)) return -1; /* weights that are no numbers */
    if (m->ids) token = m->ids[token];
    int class_ = tn_draft_outside_class(m->drafter, confidence);
    node = tn_prop_add(p, node, token, class_);
    float ns = (float)(tn_now_ns() - t0), risen = m->step_ns * STEP_RISE;
    m->step_ns = m->step_ns > 0 && risen < ns ? risen : ns;
    p->spent += cost_of(m, p);
    if (node < 0) return -1;
    m->likely[depth > 0] += LIKELY_SHARE * (tn_prop_rate(p, class_) - m->likely[depth > 0]);
    m->path[m->n_path++] = token;
    if (p->node[node].child >= 0) { /* others proposed it and its continuation: no merit of the guess */
        m->n_path = 0;
        return -1;
    }
    if (p->behind) p->behind(p->behind_user, p, node);
    return node;
}

void tn_mtp_propose(void *user, tn_proposals *p, const int32_t *text, int32_t n) {
    tn_mtp *m = user;
    if (!m) return;
    learn(m, p, text, n);
    if (n - 1 != m->end || !worth(m, p)) return;
    int32_t node = guess(m, p, 0, 0);
    for (int32_t i = 1; i < DEPTH && node >= 0 && fresh(m, p, node) > 0 && pays(m, p, node); i++)
        node = guess(m, p, node, i);
}
