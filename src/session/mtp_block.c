/* Drafts by blocks (DFlash): one forward gives a chain of them. How many rows it has follows from what is
 * expected to pay: the time of a block of so many rows, its output layer included, against the chance of
 * every further token. */
#include "session/mtp_impl.h"

#include "base/clock.h"
#include "draft/draft.h"
#include "model/sampler.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { TRIED = 4 }; /* drafts where they have not paid */
enum { PRIOR = 2 }; /* observations that the initial rates weigh as much as */

/* ---- keeping up ------------------------------------------------------------------------------------- */

/* Row of the text's end. */
static int32_t n_rows_of(const tn_mtp *m) { return m->end - m->first; }

void tn_mtp_block_flush(tn_mtp *m) {
    if (m->n_waiting) tn_dflash_keep(&m->dflash, n_rows_of(m) - m->n_waiting, m->n_waiting, m->states);
    m->n_waiting = 0;
}

void tn_mtp_block_note(tn_mtp *m, const float *taps) {
    memcpy(m->states + (size_t)m->n_waiting++ * m->raw, taps, m->raw * sizeof *taps);
    m->end++;
    if (m->n_waiting == TN_TREE_MAX) tn_mtp_block_flush(m);
}

void tn_mtp_block_copy(tn_mtp *dst, const tn_mtp *src, int32_t n) {
    if (n <= src->first || n > src->end) return;
    const int32_t done = n_rows_of(src) - src->n_waiting, rows = n - src->first,
                  kept = rows < done ? rows : done;
    tn_kv_convert(&src->dflash.state.kv, kept, &dst->dflash.state.kv);
    dst->first = src->first;
    dst->n_waiting = rows - kept;
    memcpy(dst->states, src->states, (size_t)dst->n_waiting * src->raw * sizeof *dst->states);
}

/* ---- drafting --------------------------------------------------------------------------------------- */

bool tn_mtp_block_logits(tn_mtp *m, int32_t token, int32_t n_rows) {
    const size_t e = tn_mtp_width(m);
    assert(n_rows > 1 && n_rows <= tn_dflash_rows(&m->layer->h));
    if (m->end == m->first || n_rows_of(m) + n_rows > m->dflash.state.kv.cap_tok) return false;
    tn_mtp_block_flush(m);
    tn_mtp_embed(m, token, m->embeddings);
    tn_mtp_embed(m, m->layer->h.head.mask, m->embeddings + e);
    for (int32_t i = 2; i < n_rows; i++)
        memcpy(m->embeddings + (size_t)i * e, m->embeddings + e, e * sizeof *m->embeddings);
    tn_dflash_block(&m->dflash, n_rows_of(m), n_rows, m->embeddings, m->out);
    return m->evaluator->ops->head(m->evaluator, m->out + e, n_rows - 1, m->logits, NULL) == TERN_OK;
}

/* The time of a block, at most: no more than that of a larger one, nor than rows by rows of a smaller one; 0:
 * not known. */
static float block_ns(const tn_mtp *m, int32_t n_rows) {
    float least = 0;
    for (int32_t i = 2; i <= TN_TREE_MAX; i++) {
        const float ns = m->block_ns[i] * (i < n_rows ? (float)n_rows / (float)i : 1);
        if (ns > 0 && !(least > 0 && least <= ns)) least = ns;
    }
    return least;
}

/* The same in steps of one row. */
static float cost_of(const tn_mtp *m, tn_proposals *p, int32_t n_drafts) {
    if (m->given_cost > 0) return m->given_cost * (float)n_drafts;
    return tn_prop_step_ns(p) > 0 ? block_ns(m, n_drafts + 1) / tn_prop_step_ns(p) : 0;
}

/* As many as a block has, and as may be verified. */
static int32_t most_drafts(const tn_mtp *m, const tn_proposals *p) {
    const int32_t rows = tn_dflash_rows(&m->layer->h);
    return (p->most_rows > 0 && p->most_rows < rows ? p->most_rows : rows) - 1;
}

/* Drafts that are likely to save most beyond what they cost; 0: none do. Where others propose what follows
 * the token and are surer than a draft is, there are none; else drafts count where those are wrong. */
static int32_t most_saving(const tn_mtp *m, tn_proposals *p) {
    const bool costs = m->given_cost > 0 || m->n_blocks >= TN_MTP_COLD;
    const float mean = m->sum_price / m->sum_steps, price = mean < 1 ? mean : 1;
    float proposed = 0, reached = 1, saved = 0, most = 0;
    int32_t best = 0;
    for (int32_t i = p->node[0].child; i >= 0; i = p->node[i].sibling)
        proposed = p->node[i].p > proposed ? p->node[i].p : proposed;
    if (proposed > m->rate[0]) return 0;
    for (int32_t n = 1; n <= most_drafts(m, p); n++) {
        reached *= m->rate[n - 1];
        saved += tn_prop_gain(p, reached * (1 - proposed), price, n);
        const float gain = saved - (costs ? TN_MTP_MARGIN * cost_of(m, p, n) : 0);
        if (gain > most) most = gain, best = n;
    }
    return best;
}

/* How many drafts there are to be. */
static int32_t choose(tn_mtp *m, tn_proposals *p) {
    const int32_t most = most_drafts(m, p), few = TRIED < most ? TRIED : most;
    if (!tn_mtp_is_timed(m, p)) return p->cost_given ? most_saving(m, p) : 0;
    const int32_t n = most_saving(m, p);
    if (n) {
        m->n_skipped = 0;
        m->try_after = TN_MTP_TRY_FIRST;
        return n;
    }
    return few && tn_mtp_try(m, p) ? few : 0;
}

/* What became of the previous step's drafts, as far as the text tells. Where all were right, the next depth,
 * which was not drafted, is taken to be nearer to the last one than it was: else it would never be drafted
 * again. */
static void learn_rates(tn_mtp *m, const int32_t *text, int32_t n) {
    const int32_t last = m->n_path;
    for (int32_t i = 0; i < last; i++) {
        if (m->text_end + i >= n) return;
        const bool right = text[m->text_end + i] == m->path[i];
        const float of_few = 1 / (float)(PRIOR + ++m->n_seen[i]);
        const float share = of_few > TN_MTP_LIKELY_SHARE ? of_few : TN_MTP_LIKELY_SHARE;
        m->rate[i] += share * ((float)right - m->rate[i]);
        if (!right) return;
    }
    if (last && last < TN_TREE_MAX && m->rate[last] < m->rate[last - 1])
        m->rate[last] += TN_MTP_LIKELY_SHARE * (m->rate[last - 1] - m->rate[last]);
}

static void took(tn_mtp *m, tn_proposals *p, int32_t n_drafts, int64_t ns) {
    float *known = &m->block_ns[n_drafts + 1], risen = *known * TN_MTP_STEP_RISE;
    *known = *known > 0 && risen < (float)ns ? risen : (float)ns;
    m->n_blocks++;
    m->n_guesses += (uint64_t)n_drafts;
    p->spent += cost_of(m, p, n_drafts);
}

void tn_mtp_block_propose(tn_mtp *m, tn_proposals *p, const int32_t *text, int32_t n) {
    learn_rates(m, text, n);
    tn_mtp_learn(m, p, text, n);
    if (n - 1 != m->end) return;
    const int32_t n_drafts = choose(m, p);
    if (!n_drafts) return;
    int64_t t0 = tn_now_ns();
    tn_mtp_block_flush(m); /* which is no cost of the block */
    m->note_ns += tn_now_ns() - t0;
    t0 = tn_now_ns();
    if (!tn_mtp_block_logits(m, p->node[0].token, n_drafts + 1)) return;
    int32_t tokens[TN_TREE_MAX], classes[TN_TREE_MAX], n_good = 0;
    while (n_good < n_drafts) {
        const float *logits = m->logits + (size_t)n_good * m->n_logits;
        const int32_t token = tn_argmax(logits, m->n_logits);
        const float confidence = expf(tn_logprob(logits, m->n_logits, token));
        if (!(confidence >= 0)) break; /* weights that are no numbers */
        classes[n_good] = tn_draft_outside_class(m->drafter, confidence);
        tokens[n_good++] = token;
    }
    took(m, p, n_drafts, tn_now_ns() - t0);
    memcpy(m->path, tokens, (size_t)n_good * sizeof *tokens);
    m->n_path = n_good;
    int32_t node = 0;
    for (int32_t i = 0; i < n_good && node >= 0; i++) node = tn_prop_add(p, node, tokens[i], classes[i]);
    if (node > 0 && p->node[node].child < 0 && p->behind) p->behind(p->behind_user, p, node);
}
