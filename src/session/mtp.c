#include "session/mtp_impl.h"

#include "base/clock.h"
#include "base/status.h"
#include "draft/draft.h"
#include "model/sampler.h"
#include "model/streamed.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { TOGETHER = 8 };
/* Price of a token in steps: initially one, with the weight of so many steps. And tokens that follow a right
 * guess. */
static const float PRICED_STEPS = 4, TAIL = 0.5f;

tern_status tn_mtp_open(tern_engine *e, uint32_t drafter, tn_evaluator *evaluator, const tn_state *state,
                        int32_t n_ctx, tn_mtp **out, tern_error *err) {
    tn_ctx *ctx = &e->ctx;
    const tn_model *layer = drafter == TN_DRAFT_HEAD ? e->head : e->model->next;
    const tn_hparams *h = &layer->h;
    const bool assists = tn_is_assistant(h), blocks = tn_is_dflash(h),
               head = drafter == TN_DRAFT_HEAD && !assists && !blocks;
    const bool own_out = head && h->head.own_out,
               rope_long = h->rope_orig_ctx > 0 && n_ctx > h->rope_orig_ctx;
    const size_t rows = assists ? 1 : TN_TREE_MAX + 1,
                 width = (size_t)(assists ? h->head.n_target : h->n_embd),
                 n_drafts = blocks ? (size_t)tn_dflash_rows(h) - 1 : 1;
    tn_mtp *m = *out = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *m);
    TN_FAIL_IF(!m, err, TERN_E_MEMORY, "no memory to guess further");
    *m = (tn_mtp){.ctx = ctx,
                  .e = e,
                  .layer = layer,
                  .ids = own_out ? e->head_ids : NULL,
                  .n_logits = (size_t)(own_out ? h->head.n_vocab : e->model->h.n_vocab),
                  .raw = head || blocks ? (size_t)h->head.n_from * (size_t)h->head.n_target : width,
                  .drafter = drafter,
                  .evaluator = evaluator,
                  .assists = assists,
                  .blocks = blocks,
                  .guessed = -1,
                  .try_after = TN_MTP_TRY_FIRST,
                  .likely = {TN_MTP_LIKELY, TN_MTP_LIKELY},
                  .sum_price = PRICED_STEPS,
                  .sum_steps = PRICED_STEPS,
                  .tail = TAIL};
    for (int i = 0; i < TN_TREE_MAX; i++) m->rate[i] = TN_MTP_LIKELY;
    /* guesses lie after the text, which may fill the context */
    tern_status st =
        assists
            ? tn_assistant_open(ctx, layer, &e->model->h, &state->kv, &e->kern, e->pool, &m->assistant, err)
        : blocks
            ? tn_dflash_open(ctx, layer, &e->kern, e->pool, n_ctx + TN_TREE_MAX, rope_long, &m->dflash, err)
            : tn_next_open(ctx, layer, &e->kern, e->pool, n_ctx + TN_MTP_DEPTH, rope_long, &m->text, err);
    m->embeddings = tn_alloc(ctx, TN_MEM_ACTIVATIONS, rows * width, sizeof *m->embeddings);
    m->states = tn_calloc(ctx, TN_MEM_ACTIVATIONS, rows * m->raw, sizeof *m->states);
    if (head) m->joined = tn_alloc(ctx, TN_MEM_ACTIVATIONS, rows * width, sizeof *m->joined);
    m->out = tn_alloc(ctx, TN_MEM_ACTIVATIONS, (n_drafts + 1) * width, sizeof *m->out); /* and normed */
    m->logits = tn_alloc(ctx, TN_MEM_ACTIVATIONS, n_drafts * m->n_logits, sizeof *m->logits);
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
    tn_dflash_close(&m->dflash);
    tn_free(m->ctx, m->embeddings);
    tn_free(m->ctx, m->states);
    tn_free(m->ctx, m->joined);
    tn_free(m->ctx, m->out);
    tn_free(m->ctx, m->logits);
    tn_free(m->ctx, m);
}

int64_t tn_mtp_note_ns(const tn_mtp *m) { return m->note_ns; }
uint64_t tn_mtp_n_guesses(const tn_mtp *m) { return m->n_guesses; }

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
    if (m->blocks) tn_mtp_block_flush(m);
    else if (m->n_waiting) evaluate(m, NULL);
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
    tn_mtp_embed(m, token, m->embeddings + (size_t)m->n_waiting++ * tn_mtp_width(m));
}

void tn_mtp_note(tn_mtp *m, int32_t pos, int32_t token, const float *x) {
    int64_t t0 = tn_now_ns();
    /* The embedding may be the last to arrive. Where it does not, the text's own evaluation tells. */
    if (tn_model_need(m->e->model, TN_NEED_ALL, NULL) != TERN_OK) return;
    if (pos != m->end) go_back(m, pos);
    if (m->blocks) {
        tn_mtp_block_note(m, x);
        m->note_ns += tn_now_ns() - t0;
        return;
    }
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
    if (src && src->blocks) {
        tn_mtp_block_copy(dst, src, n);
        return;
    }
    if (!src || src->assists || n <= src->first || n > src->end) return;
    const int32_t done = next_row(src) - src->n_waiting, rows = n - src->first - 1,
                  kept = rows < done ? rows : done;
    tn_kv_convert(&src->text.state.kv, kept, &dst->text.state.kv);
    dst->first = src->first;
    if (rows < done) return; /* the state of the last token is gone */
    dst->n_waiting = rows - done;
    memcpy(dst->embeddings, src->embeddings,
           (size_t)dst->n_waiting * tn_mtp_width(src) * sizeof *dst->embeddings);
    memcpy(dst->states, src->states, (size_t)(dst->n_waiting + 1) * src->raw * sizeof *dst->states);
    dst->knows = dst->n_waiting < src->n_waiting || src->knows;
}

/* ---- guessing --------------------------------------------------------------------------------------- */

/* A draft of an assistant after this token, from the state in m->out. */
static bool assist(tn_mtp *m, int32_t token) {
    tn_mtp_embed(m, token, m->embeddings);
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
        tn_forward_out_norm(m->layer, &m->e->kern, m->out, m->out + tn_mtp_width(m), 1),
            normed += tn_mtp_width(m);
    return m->evaluator->ops->head(m->evaluator, normed, 1, m->logits, NULL) == TERN_OK;
}

/* The first guess: evaluates the waiting rows and that of the drawn token. They stay unchanged for
 * tn_mtp_note. */
static bool first_guess(tn_mtp *m, int32_t token) {
    if (m->assists) {
        if (!m->knows) return false;
        tn_forward_out_norm(m->e->model, &m->e->kern, m->states, m->out, 1);
        return assist(m, token);
    }
    if (!m->knows || m->end - m->first >= m->text.state.kv.cap_tok - TN_MTP_DEPTH) return false;
    if (m->n_waiting >= TOGETHER) flush(m); /* the end of a prompt */
    tn_mtp_embed(m, token, m->embeddings + (size_t)m->n_waiting * tn_mtp_width(m));
    evaluate(m, m->out);
    m->guessed = token;
    return compute_logits(m);
}

/* A guess after a guess. */
static bool further(tn_mtp *m, int32_t row, int32_t token) {
    if (m->assists) return assist(m, token);
    float *e = m->embeddings + TN_TREE_MAX * tn_mtp_width(m); /* nothing waits there */
    tn_mtp_embed(m, token, e);
    tn_next_rows(&m->text, row, 1, e, m->out, m->out);
    return compute_logits(m);
}

const float *tn_mtp_logits(tn_mtp *m, int32_t token, int32_t depth) {
    if (m->blocks) {
        if (!depth && !tn_mtp_block_logits(m, token, tn_dflash_rows(&m->layer->h))) return NULL;
        return m->logits + (size_t)depth * m->n_logits;
    }
    return (depth ? further(m, next_row(m) + depth, token) : first_guess(m, token)) ? m->logits : NULL;
}

/* Cost of a guess in steps of one row. */
static float cost_of(const tn_mtp *m, tn_proposals *p) {
    if (m->given_cost > 0) return m->given_cost;
    return tn_prop_step_ns(p) > 0 ? m->step_ns / tn_prop_step_ns(p) : 0;
}

void tn_mtp_give_cost(tn_mtp *m, float steps) { m->given_cost = steps; }

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
    if (!tn_mtp_is_timed(m, p)) return p->cost_given;
    float price = m->sum_price / m->sum_steps, tokens = p->node[node].p * fresh(m, p, node) * (1 + m->tail);
    float gain = tn_prop_gain(p, tokens, price < 1 ? price : 1, p->node[node].depth + 1);
    return gain > (m->given_cost > 0 || m->n_guesses >= TN_MTP_COLD ? TN_MTP_MARGIN * cost_of(m, p) : 0);
}

/* Where guesses cost more than they save, they are tried again at growing intervals. */
static bool worth(tn_mtp *m, tn_proposals *p) {
    if (fresh(m, p, 0) <= 0) return false;
    if (pays(m, p, 0)) {
        m->n_skipped = 0;
        m->try_after = TN_MTP_TRY_FIRST;
        return true;
    }
    return tn_mtp_try(m, p);
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
    float ns = (float)(tn_now_ns() - t0), risen = m->step_ns * TN_MTP_STEP_RISE;
    m->step_ns = m->step_ns > 0 && risen < ns ? risen : ns;
    p->spent += cost_of(m, p);
    if (node < 0) return -1;
    m->likely[depth > 0] += TN_MTP_LIKELY_SHARE * (tn_prop_rate(p, class_) - m->likely[depth > 0]);
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
    if (m->blocks) {
        tn_mtp_block_propose(m, p, text, n);
        return;
    }
    tn_mtp_learn(m, p, text, n);
    if (n - 1 != m->end || !worth(m, p)) return;
    int32_t node = guess(m, p, 0, 0);
    for (int32_t i = 1; i < TN_MTP_DEPTH && node >= 0 && fresh(m, p, node) > 0 && pays(m, p, node); i++)
        node = guess(m, p, node, i);
}
