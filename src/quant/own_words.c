#include "quant/own_words.h"

#include "base/rng.h"
#include "base/status.h"
#include "model/forward.h"
#include "model/state.h"
#include "text/chat.h"

#include <math.h>
#include <string.h>

/* The template's text before and after a message, as tokens. */
typedef struct piece {
    int32_t *ids;
    size_t n;
} piece;

enum {
    BEGIN,   /* before a text, or before a question */
    BETWEEN, /* after the question, before the answer */
    N_PIECES,
    QUESTION_TOKENS = 48 /* longer questions are cut: the answers matter more */
};

typedef struct stream {
    tn_state state;
    tn_rng rng;
    const piece *pieces; /* [N_PIECES]; BETWEEN is empty for a free text */
    const piece *forced; /* its tokens come next, from `at` on; NULL: the model writes */
    size_t at, n_written;
    bool asks;       /* the model writes a question */
    int32_t *ids;    /* [window] written or forced so far */
    int32_t n, next; /* next: the token to be evaluated */
    int32_t pos, slot;
} stream;

typedef struct writers {
    const tn_own_words_args *a;
    stream s[TN_MAX_TEXTS];
    int32_t n;
    tn_acts acts;
    float *logits; /* [TN_MAX_TEXTS][n_vocab] */
} writers;

static tern_status open_writers(writers *w, const tn_own_words_args *a, tern_error *err) {
    *w = (writers){.a = a, .n = TN_MAX_TEXTS};
    const tn_model *m = a->m;
    w->logits = tn_alloc(a->ctx, TN_MEM_OTHER, (size_t)w->n * (size_t)m->h.n_vocab, sizeof *w->logits);
    TN_FAIL_IF(!w->logits, err, TERN_E_MEMORY, "no memory for the model's own words");
    for (int32_t i = 0; i < w->n; i++)
        TN_TRY(tn_state_open(a->ctx, &m->program, &m->h, a->window, TN_KV_F16, &w->s[i].state, err));
    return tn_acts_open(a->ctx, m, w->n, w->s[0].state.kv.cap_tok, tn_pool_size(a->pool), &w->acts, err);
}

static void close_writers(writers *w) {
    if (w->acts.ctx) tn_acts_close(&w->acts);
    for (int32_t i = 0; i < w->n; i++)
        if (w->s[i].state.ctx) tn_state_close(&w->s[i].state);
    tn_free(w->a->ctx, w->logits);
}

/* One forward for the next token of every stream. */
static void step(writers *w) {
    const tn_model *m = w->a->m;
    tn_rows rows[TN_MAX_TEXTS], all;
    int32_t ids[TN_MAX_TEXTS];
    bool rope_long[TN_MAX_TEXTS];
    for (int32_t i = 0; i < w->n; i++) {
        stream *s = &w->s[i];
        s->pos = s->slot = s->state.n_tok;
        rows[i] = (tn_rows){.h = &m->h,
                            .kern = w->a->kern,
                            .kv = &s->state.kv,
                            .conv = tn_state_conv(&s->state),
                            .delta = tn_state_delta(&s->state),
                            .n_rows = 1,
                            .pos = &s->pos,
                            .slot = &s->slot,
                            .tree_base = -1};
        ids[i] = s->next;
        rope_long[i] = false;
    }
    tn_forward_texts(m, w->a->pool, rows, rope_long, w->n, &w->acts, ids, &all);
    for (int32_t i = 0; i < w->n; i++) tn_state_append(&w->s[i].state, 1);
    tn_forward_logits(m, w->a->pool, &all, &w->acts, 0, w->n, w->logits);
}

/* ---- drawing ------------------------------------------------------------------------------------------ */

static double sum_of(const float *logits, int32_t n, float *largest) {
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)expf(logits[i] - max);
    *largest = max;
    return sum;
}

/* Draws a token from the whole distribution. If the logits are not numbers it takes the last one. */
static int32_t draw(tn_rng *rng, const float *logits, int32_t n) {
    float max;
    double left = sum_of(logits, n, &max) * tn_rng_f64(rng);
    for (int32_t i = 0; i < n - 1; i++) {
        left -= (double)expf(logits[i] - max);
        if (left < 0) return i;
    }
    return n - 1;
}

/* ---- streams ------------------------------------------------------------------------------------------ */

static void begin_text(stream *s) {
    (void)tn_state_truncate(&s->state, 0);
    s->forced = &s->pieces[BEGIN];
    s->at = s->n_written = 0;
    s->asks = s->pieces[BETWEEN].n > 0;
}

/* The stream's next token, after the evaluated one. */
static void go_on(stream *s, const tn_own_words_args *a, const float *logits) {
    if (s->forced && s->at == s->forced->n) s->forced = NULL;
    if (s->forced) {
        s->next = s->forced->ids[s->at++];
        return;
    }
    int32_t id = draw(&s->rng, logits, a->m->h.n_vocab);
    bool ends = tn_tokenizer_is_end(a->t, id);
    if (s->asks && (ends || ++s->n_written == QUESTION_TOKENS)) {
        s->asks = false;
        s->forced = &s->pieces[BETWEEN];
        s->at = 0;
        s->next = s->forced->ids[s->at++];
    } else if (ends) {
        begin_text(s);
        s->next = s->forced->ids[s->at++];
    } else {
        s->next = id;
    }
}

static void keep(stream *s) { s->ids[s->n++] = s->next; }

/* Writes streams first .. first + w->n - 1 into ids; those before n_free write freely. */
static tern_status write_streams(writers *w, int32_t first, int32_t n_free, const piece (*pieces)[N_PIECES],
                                 int32_t *ids, tern_error *err) {
    const tn_own_words_args *a = w->a;
    for (int32_t i = 0; i < w->n; i++) {
        stream *s = &w->s[i];
        s->rng = (tn_rng){.s = 0x7e54u + (uint64_t)(first + i)};
        s->pieces = pieces[first + i >= n_free];
        s->ids = ids + (size_t)(first + i) * (size_t)a->window;
        s->n = 0;
        begin_text(s);
        s->next = s->forced->ids[s->at++];
        keep(s);
    }
    for (int32_t n = 1; n < a->window; n++) {
        step(w);
        for (int32_t i = 0; i < w->n; i++) {
            go_on(&w->s[i], a, w->logits + (size_t)i * (size_t)a->m->h.n_vocab);
            keep(&w->s[i]);
        }
        double done = (double)first / a->n_streams + (double)n / a->window * w->n / a->n_streams;
        TN_FAIL_IF(a->progress && !a->progress(a->user, done), err, TERN_E_CANCELLED,
                   "packing was cancelled while the model wrote");
    }
    return TERN_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------- */

static tern_status tokens_of(const tn_own_words_args *a, const char *text, size_t n_bytes, bool begins,
                             piece *out, tern_error *err) {
    const size_t cap = n_bytes + 16;
    out->ids = tn_alloc(a->ctx, TN_MEM_OTHER, cap, sizeof *out->ids);
    TN_FAIL_IF(!out->ids, err, TERN_E_MEMORY, "no memory for a chat template's text");
    return tn_tokenize(a->t, text, n_bytes, begins, true, out->ids, cap, &out->n, err);
}

/* The first token of a model's texts: its BOS token, else its end-of-text token, else a line end. */
static tern_status free_pieces(const tn_own_words_args *a, piece out[N_PIECES], tern_error *err) {
    int32_t id = tn_tokenizer_bos(a->t);
    if (id < 0) id = tn_tokenizer_eos(a->t);
    if (id < 0) return tokens_of(a, "\n", 1, true, &out[BEGIN], err);
    out[BEGIN].ids = tn_alloc(a->ctx, TN_MEM_OTHER, 1, sizeof *out[BEGIN].ids);
    TN_FAIL_IF(!out[BEGIN].ids, err, TERN_E_MEMORY, "no memory for the model's own words");
    out[BEGIN].ids[0] = id;
    out[BEGIN].n = 1;
    return TERN_OK;
}

/* The template around a question. *has: there is a template that renders one, with text after it. */
static tern_status chat_pieces(const tn_own_words_args *a, piece out[N_PIECES], bool *has, tern_error *err) {
    static const char mark[] = "QqQ";
    const tern_message question = {.role = "user", .content = mark};
    const tern_chat_options o = {.size_bytes = sizeof o, .now_s = 1767225600}; /* a day that stays the same */
    tn_segments s;
    *has = false;
    if (!tn_tokenizer_has_template(a->t)) return TERN_OK;
    tn_segments_init(&s, a->ctx);
    tern_status st = tn_chat_segments(a->t, &question, 1, &o, &s, NULL);
    const char *at = st == TERN_OK && !s.failed ? memmem(s.text, s.n_bytes, mark, sizeof mark - 1) : NULL;
    st = TERN_OK; /* errors of a template are reported elsewhere */
    if (at) {
        const char *after = at + sizeof mark - 1;
        st = tokens_of(a, s.text, (size_t)(at - s.text), true, &out[BEGIN], err);
        if (st == TERN_OK)
            st = tokens_of(a, after, s.n_bytes - (size_t)(after - s.text), false, &out[BETWEEN], err);
        *has = st == TERN_OK && out[BEGIN].n && out[BETWEEN].n &&
               out[BEGIN].n + out[BETWEEN].n + QUESTION_TOKENS < (size_t)a->window;
    }
    tn_segments_free(&s);
    return st;
}

tern_status tn_own_words_write(const tn_own_words_args *a, tn_own_words *out, tern_error *err) {
    writers w = {.a = a};
    piece pieces[2][N_PIECES] = {0};
    bool chats = false;
    const size_t n = (size_t)a->n_streams * (size_t)a->window;
    *out = (tn_own_words){.ctx = a->ctx};
    out->ids = tn_alloc(a->ctx, TN_MEM_OTHER, n, sizeof *out->ids);
    tern_status st = out->ids ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for %zu tokens", n);
    if (st == TERN_OK) st = free_pieces(a, pieces[0], err);
    if (st == TERN_OK) st = chat_pieces(a, pieces[1], &chats, err);
    if (st == TERN_OK) st = open_writers(&w, a, err);
    const int32_t n_free = chats ? a->n_streams / 2 : a->n_streams;
    for (int32_t i = 0; i < a->n_streams && st == TERN_OK; i += TN_MAX_TEXTS) {
        w.n = a->n_streams - i < TN_MAX_TEXTS ? a->n_streams - i : TN_MAX_TEXTS;
        st = write_streams(&w, i, n_free, (const piece(*)[N_PIECES])pieces, out->ids, err);
    }
    w.n = TN_MAX_TEXTS;
    close_writers(&w);
    for (int i = 0; i < 2 * N_PIECES; i++) tn_free(a->ctx, pieces[i / N_PIECES][i % N_PIECES].ids);
    out->n_free = (size_t)n_free * (size_t)a->window;
    out->n_chat = n - out->n_free;
    if (st != TERN_OK) tn_own_words_free(out);
    return st;
}

void tn_own_words_free(tn_own_words *w) {
    if (w->ctx) tn_free(w->ctx, w->ids);
    *w = (tn_own_words){0};
}

tern_status tn_own_words_surprise(const tn_own_words_args *a, const int32_t *ids, size_t n_ids, double *nats,
                                  tern_error *err) {
    const int32_t n_vocab = a->m->h.n_vocab;
    const size_t part = n_ids / TN_MAX_TEXTS < (size_t)a->window ? n_ids / TN_MAX_TEXTS : (size_t)a->window;
    writers w;
    double sum = 0;
    *nats = 0;
    if (part < 2) return TERN_OK;
    tern_status st = open_writers(&w, a, err);
    for (size_t t = 0; t + 1 < part && st == TERN_OK; t++) {
        for (size_t i = 0; i < TN_MAX_TEXTS; i++) w.s[i].next = ids[i * part + t];
        step(&w);
        for (size_t i = 0; i < TN_MAX_TEXTS; i++) {
            const float *logits = w.logits + i * (size_t)n_vocab;
            float max;
            double total = sum_of(logits, n_vocab, &max);
            sum += log(total) - (double)(logits[ids[i * part + t + 1]] - max);
        }
    }
    close_writers(&w);
    *nats = sum / (double)((part - 1) * TN_MAX_TEXTS);
    return st;
}
