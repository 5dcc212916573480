/* What both ways of drafting need: embeddings, what a token has cost lately, when to try again. */
#include "session/mtp_impl.h"

#include "draft/draft.h"

/* Every step scales what older ones tell of the price of a token; the weight of what followed right
 * guesses. */
static const float PRICE_KEPT = 0.9f, TAIL_SHARE = 0.1f;

size_t tn_mtp_width(const tn_mtp *m) {
    const tn_hparams *h = &m->layer->h;
    return (size_t)(m->assists ? h->head.n_target : h->n_embd);
}

/* A head was trained on embeddings as they are stored, one of DFlash times what it says, an assistant on
 * those that the model's first layer gets. */
void tn_mtp_embed(const tn_mtp *m, int32_t token, float *out) {
    const tn_hparams *h = &m->e->model->h;
    const bool scaled = m->drafter == TN_DRAFT_MTP || m->assists;
    const float by = scaled ? h->embd_scale : m->blocks ? m->layer->h.embd_scale : 1;
    if (tn_is_head(&m->layer->h) && m->layer->h.head.own_embd && !m->assists) {
        tn_linear_row(tn_model_linear(m->layer, -1, TN_W_EMBD), (size_t)token, out);
        return;
    }
    if (m->e->npu) tn_npu_model_embed(m->e->npu, h, token, out);
    else tn_linear_row(tn_model_linear(m->e->model, -1, TN_W_EMBD), (size_t)token, out);
    for (size_t i = 0; by != 1.0f && i < tn_mtp_width(m); i++) out[i] *= by;
}

bool tn_mtp_is_timed(const tn_mtp *m, tn_proposals *p) { return m->given_cost > 0 || tn_prop_step_ns(p) > 0; }

/* The cheaper tokens have lately been without guesses, the less a right guess is worth. And a right guess may
 * bring further tokens: where the text then repeats, retrieval knows what follows. */
void tn_mtp_learn(tn_mtp *m, const tn_proposals *p, const int32_t *text, int32_t n) {
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

bool tn_mtp_try(tn_mtp *m, tn_proposals *p) {
    if (!tn_mtp_is_timed(m, p) || ++m->n_skipped < m->try_after) return false;
    m->n_skipped = 0;
    m->try_after = m->try_after < TN_MTP_TRY_LAST ? 2 * m->try_after : TN_MTP_TRY_LAST;
    return true;
}
