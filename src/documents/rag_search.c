/* Finding passages: by words (BM25), by meaning where the index has vectors, fused; the prompt; what an
 * answer came from. */
#include "documents/rag.h"

#include "base/status.h"
#include "store/words.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    MAX_TERMS = 48, /* words of a query that are looked for */
    MAX_WORD = 64,
    COMMON_SHARE = 4, /* a word in more than 1 / 4 of the passages tells nothing... */
    COMMON_MIN = 64,  /* ...when there are so many passages */
    PAIRS_SHARE = 20, /* one in more than 1 / 20 makes no pairs: "wie kann" would count as much as a name */
    RANK_ADDED = 60,  /* a passage at rank r of a list gets 1 / (60 + r) of it */
    DEPTH = 4,        /* each list is so many times as long as what is asked for... */
    DEPTH_MIN = 32,   /* ...and at least so long */
    DEPTH_MAX = DEPTH * TN_RAG_MAX_K,
    MAX_ANSWER_WORDS = 1024,
};

/* ---- words ----------------------------------------------------------------------------------------- */

/* Letters, marks and digits of any script make words. Everything else, FTS5's syntax included, is between
 * them. */
static bool is_word_char(utf8proc_int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NO) || k == UTF8PROC_CATEGORY_CO;
}

/* Takes the next word of *text, or returns false. Lower case is FTS5's affair. Words of more bytes than cap -
 * 1 are cut. */
static bool next_word(const char **text, char *word, size_t cap, bool *adjacent) {
    size_t n = 0;
    *adjacent = true; /* only one sign since the word before */
    int gap = 0;
    while (**text) {
        utf8proc_int32_t c;
        utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)*text, -1, &c);
        bool in = len > 0 && is_word_char(c);
        if (len < 1) len = 1;
        if (!in && n) break;
        if (!in && ++gap > 1) *adjacent = false;
        if (in && n + (size_t)len < cap) {
            memcpy(word + n, *text, (size_t)len);
            n += (size_t)len;
        }
        *text += len;
    }
    word[n] = 0;
    return n > 0;
}

/* Pieces of a question that are all Hiragana are endings and particles. */
static bool is_hiragana(const char *w) {
    for (; *w; w += 3)
        if (memcmp(w, "\xe3\x81", 2) && (memcmp(w, "\xe3\x82", 2) || (unsigned char)w[2] > 0x9f))
            return false;
    return true;
}

/* These are words of questions that say nothing about their subject; of scripts without spaces, their pieces. */
static bool is_stop_word(const char *w) {
    bool is_short;
    if (tn_words_is_piece(w, &is_short) && is_hiragana(w)) return true;
    static const char list[] =
        " 什么 么时 时候 哪里 哪儿 在哪 哪个 哪些 哪一 怎么 么办 怎样 如何 为什 为何 多少 几个 几点 是谁 "
        "谁是 是什 是几 请问 吗 呢 "
        "何が 何を 何で 何は 誰が 誰で どこ いつ なぜ いく くら "
        "อะไ ะไร ทไห ไหน เมอ มอไ อไร อไห ไหร อยา ยาง างไ งไร ทำไ ำไม ใคร ไดก เทา ทาไ าไร "
        "어디 디에 에서 무엇 언제 누가 누구 얼마 나요 까요 인가 가요 "
        "a about an and any are as at be been but by can could did do does find for "
        "from get give had has have he her his how i if in into is it its "
        "let like look may me mine my need no not of on or our please quote say says "
        "said she show should so some tell than that the their them then there "
        "these they this those to up us want was we were what when where which who "
        "whom whose why will with would you your ";
    char key[MAX_WORD + 2];
    size_t n = strlen(w);
    if (n > MAX_WORD - 1) return false;
    key[0] = ' ';
    for (size_t i = 0; i < n; i++) key[i + 1] = w[i] >= 'A' && w[i] <= 'Z' ? (char)(w[i] | 32) : w[i];
    key[n + 1] = ' ';
    return memmem(list, sizeof list - 1, key, n + 2) != NULL;
}

typedef struct term {
    char word[MAX_WORD];
    bool piece, prefix; /* a piece of a run (words.h); shorter than one */
    bool stop, after;   /* after: it followed the term before directly */
    bool pairs;         /* rare enough that beside a neighbour it tells more than alone */
    double weight;      /* of a term that is looked for: rare ones tell more */
} term;

static tern_status split_query(const char *question, term *terms, int32_t *n_terms, tern_error *err) {
    int32_t n = 0;
    bool adjacent;
    size_t n_bytes;
    char *pieces = tn_words_spread(question, strlen(question), TN_WORDS_QUERY, &n_bytes);
    const char *query = pieces;
    TN_FAIL_IF(!pieces, err, TERN_E_MEMORY, "no memory for a question");
    while (n < MAX_TERMS && next_word(&query, terms[n].word, MAX_WORD, &adjacent)) {
        terms[n].piece = tn_words_is_piece(terms[n].word, &terms[n].prefix);
        terms[n].stop = is_stop_word(terms[n].word);
        terms[n].after = n && adjacent;
        terms[n].pairs = false;
        terms[n].weight = 0;
        n++;
    }
    free(pieces);
    *n_terms = n;
    return TERN_OK;
}

/* How many bytes of a word stand for its family ("Pakete" and "Paketverwaltung" for "Paket"): all letters but the last
 * three, at least four. 0: the word is too short for that, a number, or a piece. English stems are FTS5's affair; this
 * finds what inflects or compounds otherwise. */
static size_t family_bytes(const term *t) {
    size_t ends[MAX_WORD], n = 0;
    for (const char *p = t->word; *p && !t->piece; p++) {
        if (*p >= '0' && *p <= '9') return 0;
        if ((p[1] & 0xc0) != 0x80) ends[n++] = (size_t)(p + 1 - t->word);
    }
    return n < 5 ? 0 : ends[n < 7 ? 3 : n - 4];
}

static char *append(char *p, const char *text) {
    const size_t n = strlen(text);
    memcpy(p, text, n + 1);
    return p + n;
}

/* A word is a quoted string to FTS5, in which it sees no syntax; next_word lets no quote through. */
static void bind_word(sqlite3_stmt *q, const term *t, char quoted[MAX_WORD + 4]) {
    append(append(append(quoted, "\""), t->word), t->prefix ? "\"*" : "\"");
    sqlite3_bind_text(q, 1, quoted, -1, SQLITE_STATIC);
}

static void bind_family(sqlite3_stmt *q, const term *t, char quoted[MAX_WORD + 4]) {
    snprintf(quoted, MAX_WORD + 4, "\"%.*s\"*", (int)family_bytes(t), t->word);
    sqlite3_bind_text(q, 1, quoted, -1, SQLITE_STATIC);
}

static tern_status one_int(tn_store *s, sqlite3_stmt *q, int64_t *out, tern_error *err) {
    int rc = sqlite3_step(q);
    *out = rc == SQLITE_ROW ? sqlite3_column_int64(q, 0) : 0;
    tern_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "search it", err);
    sqlite3_reset(q);
    return st;
}

/* Weighs the terms by how many passages have them. Common ones are marked as stop words while others
 * remain. */
static tern_status weigh_terms(tn_store *s, term *terms, int32_t n, tern_error *err) {
    sqlite3_stmt *q;
    int64_t n_passages = 0, found;
    TN_TRY(tn_store_prepare(s, "SELECT coalesce(max(id), 0) FROM passage", &q,
                            err)); /* about: at once, where counting
                                                                                         is not */
    tern_status st = one_int(s, q, &n_passages, err);
    sqlite3_finalize(q);
    bool common[MAX_TERMS], any = false;
    int32_t left = 0;
    int64_t limit = n_passages >= COMMON_MIN ? n_passages / COMMON_SHARE + 1 : INT64_MAX;
    for (int32_t i = 0; i < n; i++) any = any || !terms[i].stop;
    if (st == TERN_OK)
        st = tn_store_prepare(
            s, "SELECT count(*) FROM (SELECT 1 FROM passage_fts WHERE passage_fts MATCH ?1 LIMIT ?2)", &q,
            err);
    if (st != TERN_OK) return st;
    for (int32_t i = 0; i < n && st == TERN_OK; i++) {
        char quoted[MAX_WORD + 4];
        common[i] = terms[i].stop;
        if (any && terms[i].stop) continue;
        bind_word(q, &terms[i], quoted);
        sqlite3_bind_int64(q, 2, limit);
        st = one_int(s, q, &found, err);
        common[i] = common[i] || found == limit;
        left += found > 0 && !common[i];
        terms[i].pairs = n_passages < COMMON_MIN || found <= n_passages / PAIRS_SHARE;
        terms[i].weight = log(2 + (double)n_passages / (double)(found + 1));
        if (terms[i].piece && !found) terms[i].weight /= 2; /* many lie across the borders of words */
    }
    sqlite3_finalize(q);
    for (int32_t i = 0; i < n && left; i++) {
        terms[i].stop = common[i];
        if (common[i]) terms[i].weight = 0;
    }
    return st;
}

enum { QUERY_BYTES = MAX_TERMS * (4 * MAX_WORD + 32) };

/* Writes "first" OR "fir"* OR "second" OR "sec"* OR "first second": any of the words or of their families, better in the
 * order they were asked. It uses stop words only when there are no others. out [QUERY_BYTES]: a word, its family and a
 * pair take at most 4 words and 24 signs. */
static void write_query(const term *terms, int32_t n, char *out) {
    bool any = false;
    char *p = out;
    for (int32_t i = 0; i < n; i++) any = any || !terms[i].stop;
    *p = 0;
    for (int32_t i = 0; i < n; i++) {
        if (any && terms[i].stop) continue;
        p = append(append(append(p, p > out ? " OR \"" : "\""), terms[i].word),
                   terms[i].prefix ? "\"*" : "\"");
        const size_t n_family = family_bytes(&terms[i]);
        if (n_family) p += snprintf(p, MAX_WORD + 16, " OR \"%.*s\"*", (int)n_family, terms[i].word);
        if (!terms[i].after || terms[i].prefix || terms[i - 1].prefix || (any && terms[i - 1].stop)) continue;
        if (!terms[i].pairs || !terms[i - 1].pairs) continue;
        p = append(append(append(append(append(p, " OR \""), terms[i - 1].word), " "), terms[i].word), "\"");
    }
}

/* ---- the two lists, and one of them ------------------------------------------------------------------ */

typedef struct candidate {
    int64_t passage;
    int32_t word_rank, vector_rank; /* from 1; 0: not in that list */
    float bm25, similarity, stands_out, fused;
} candidate;

typedef struct candidates {
    candidate c[2 * DEPTH_MAX];
    int32_t n;
    bool centred;
} candidates;

static tern_status by_words(tn_store *s, const term *terms, int32_t n_terms, int32_t depth, candidates *all,
                            tern_error *err) {
    char match[QUERY_BYTES];
    sqlite3_stmt *q;
    if (!n_terms) return TERN_OK;
    write_query(terms, n_terms, match);
    TN_TRY(tn_store_prepare(s,
                            "SELECT id, score FROM (SELECT rowid AS id, rank AS score FROM passage_fts WHERE "
                            "passage_fts MATCH ?1 ORDER BY rank LIMIT ?2) ORDER BY score, id",
                            &q, err));
    sqlite3_bind_text(q, 1, match, -1, SQLITE_STATIC);
    sqlite3_bind_int(q, 2, depth);
    int rc = SQLITE_DONE;
    while (all->n < depth && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        all->c[all->n] = (candidate){.passage = sqlite3_column_int64(q, 0),
                                     .word_rank = all->n + 1,
                                     .bm25 = -(float)sqlite3_column_double(q, 1)};
        all->n++;
    }
    tern_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "search it", err);
    sqlite3_finalize(q);
    return st;
}

static tern_status by_meaning(tn_store *s, const tn_embedder *e, const char *query, int32_t depth,
                              candidates *all, tern_error *err) {
    tn_vector_hit near[DEPTH_MAX];
    int32_t n_near, n_words = all->n;
    TN_TRY(tn_vectors_search(s, e, query, depth, near, &n_near, &all->centred, err));
    for (int32_t r = 0; r < n_near; r++) {
        int32_t i = 0;
        while (i < n_words && all->c[i].passage != near[r].passage) i++;
        if (i == n_words) {
            i = all->n++;
            all->c[i] = (candidate){.passage = near[r].passage};
        }
        all->c[i].vector_rank = r + 1;
        all->c[i].similarity = near[r].similarity;
        all->c[i].stands_out = all->centred ? near[r].stands_out : INFINITY;
    }
    return TERN_OK;
}

static float share_of(int32_t rank) { return rank ? 1.0f / (float)(RANK_ADDED + rank) : 0; }

static int by_fused(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->fused != y->fused) return x->fused > y->fused ? -1 : 1;
    return (x->passage > y->passage) - (x->passage < y->passage);
}

/* ---- hits -------------------------------------------------------------------------------------------- */

/* How much of the question's weight stands in the passage; of a word that only its family stands for, half. */
static tern_status coverage_of(tn_store *s, sqlite3_stmt *q, const term *terms, int32_t n, int64_t passage,
                               float *out, tern_error *err) {
    double in = 0, all = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!(terms[i].weight > 0)) continue;
        char quoted[MAX_WORD + 4];
        int64_t found;
        bind_word(q, &terms[i], quoted);
        sqlite3_bind_int64(q, 2, passage);
        TN_TRY(one_int(s, q, &found, err));
        all += terms[i].weight;
        in += found ? terms[i].weight : 0;
        if (found || !family_bytes(&terms[i])) continue;
        bind_family(q, &terms[i], quoted);
        TN_TRY(one_int(s, q, &found, err));
        in += found ? terms[i].weight / 2 : 0;
    }
    *out = all > 0 ? (float)(in / all) : 0;
    return TERN_OK;
}

static tern_status take_hit(tn_ctx *ctx, sqlite3_stmt *q, tn_rag_hit *h, tern_error *err) {
    const char *path = (const char *)sqlite3_column_text(q, 0),
               *text = (const char *)sqlite3_column_text(q, 2);
    int place = sqlite3_column_int(q, 3);
    *h = (tn_rag_hit){
        .number = sqlite3_column_int(q, 1), .line = place > 0 ? place : 0, .page = place < 0 ? -place : 0};
    h->path = tn_strdup(ctx, TN_MEM_TEXT, path ? path : "");
    h->text = tn_strdup(ctx, TN_MEM_TEXT, text ? text : "");
    TN_FAIL_IF(!h->path || !h->text, err, TERN_E_MEMORY, "no memory for a passage");
    return TERN_OK;
}

/* The texts of the first k candidates that are still there. */
static tern_status take_hits(tn_store *s, const candidates *all, const term *terms, int32_t n_terms,
                             bool fused, int32_t k, tn_rag_hit *hits, int32_t *n, tern_error *err) {
    sqlite3_stmt *q = NULL, *has = NULL;
    tern_status st = tn_store_prepare(s,
                                      "SELECT d.path, p.number, p.text, p.place FROM passage p JOIN document "
                                      "d ON d.id = p.document WHERE p.id = ?",
                                      &q, err);
    if (st == TERN_OK)
        st = tn_store_prepare(s, "SELECT 1 FROM passage_fts WHERE passage_fts MATCH ?1 AND rowid = ?2", &has,
                              err);
    for (int32_t i = 0; st == TERN_OK && i < all->n && *n < k; i++) {
        const candidate *c = &all->c[i];
        sqlite3_bind_int64(q, 1, c->passage);
        int rc = sqlite3_step(q);
        if (rc == SQLITE_ROW) {
            tn_rag_hit *h = &hits[(*n)++];
            st = take_hit(tn_store_ctx(s), q, h, err);
            if (st == TERN_OK) st = coverage_of(s, has, terms, n_terms, c->passage, &h->coverage, err);
            h->score = fused ? c->fused : c->bm25;
            h->similarity = c->similarity;
            h->fits = h->coverage >= TN_RAG_COVERAGE || c->stands_out >= TN_RAG_STANDS_OUT;
        } else if (rc != SQLITE_DONE) {
            st = tn_store_failed(s, "search it", err);
        }
        sqlite3_reset(q);
    }
    sqlite3_finalize(q);
    sqlite3_finalize(has);
    return st;
}

tern_status tn_rag_search(tn_store *s, const char *query, int32_t k, const tn_embedder *e, tn_rag_hit **out,
                          int32_t *n, tern_error *err) {
    tn_ctx *ctx = tn_store_ctx(s);
    *out = NULL;
    *n = 0;
    TN_FAIL_IF(k < 1 || k > TN_RAG_MAX_K, err, TERN_E_INVALID, "%d passages: want 1 to %d", k, TN_RAG_MAX_K);
    term terms[MAX_TERMS];
    int32_t n_terms;
    TN_TRY(split_query(query, terms, &n_terms, err));
    int32_t depth = !e ? k : k * DEPTH < DEPTH_MIN ? DEPTH_MIN : k * DEPTH;
    if (!n_terms && !e) return TERN_OK;
    TN_TRY(weigh_terms(s, terms, n_terms, err));
    candidates *all = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *all);
    tn_rag_hit *hits = tn_calloc(ctx, TN_MEM_TEXT, (size_t)k, sizeof *hits);
    tern_status st = all && hits ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for %d passages", k);
    if (st == TERN_OK) st = by_words(s, terms, n_terms, depth, all, err);
    if (st == TERN_OK && e) {
        st = by_meaning(s, e, query, depth, all, err);
        for (int32_t i = 0; i < all->n; i++)
            all->c[i].fused = share_of(all->c[i].word_rank) + share_of(all->c[i].vector_rank);
        qsort(all->c, (size_t)all->n, sizeof all->c[0], by_fused);
    }
    if (st == TERN_OK) st = take_hits(s, all, terms, n_terms, e != NULL, k, hits, n, err);
    tn_free(ctx, all);
    if (st == TERN_OK) *out = hits;
    else tn_rag_hits_free(ctx, &hits, *n);
    return st;
}

tern_status tn_rag_passage(tn_store *s, const char *path, int32_t number, tn_rag_hit **hit, tern_error *err) {
    tn_ctx *ctx = tn_store_ctx(s);
    sqlite3_stmt *q;
    *hit = NULL;
    TN_TRY(tn_store_prepare(
        s,
        "SELECT d.path, p.number, p.text, p.place FROM passage p JOIN document d ON d.id = "
        "p.document WHERE d.path = ?1 AND p.number = ?2 UNION ALL SELECT d.path, d.n_passages, "
        "NULL, 0 FROM document d WHERE d.path = ?1",
        &q, err));
    sqlite3_bind_text(q, 1, path, -1, SQLITE_STATIC);
    sqlite3_bind_int(q, 2, number);
    tern_status st = TERN_OK;
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW && sqlite3_column_text(q, 2)) {
        *hit = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof **hit);
        st = *hit ? take_hit(ctx, q, *hit, err) : tn_fail(err, TERN_E_MEMORY, "no memory for a passage");
        if (st != TERN_OK) tn_rag_hits_free(ctx, hit, 1);
    } else if (rc == SQLITE_ROW) {
        st = tn_fail(err, TERN_E_INVALID, "%s has %d passage%s, and none of number %d", path,
                     sqlite3_column_int(q, 1), sqlite3_column_int(q, 1) == 1 ? "" : "s", number);
    } else {
        st = rc == SQLITE_DONE ? tn_fail(err, TERN_E_INVALID, "%s: not in the index", path)
                               : tn_store_failed(s, "read it", err);
    }
    sqlite3_finalize(q);
    return st;
}

void tn_rag_hits_free(tn_ctx *ctx, tn_rag_hit **hits, int32_t n) {
    for (int32_t i = 0; *hits && i < n; i++) {
        tn_free(ctx, (*hits)[i].path);
        tn_free(ctx, (*hits)[i].text);
    }
    tn_free(ctx, *hits);
    *hits = NULL;
}

/* ---- prompt and sources ---------------------------------------------------------------------------- */

char *tn_rag_prompt(tn_ctx *ctx, const char *question, const tn_rag_hit *hits, int32_t n) {
    size_t cap = strlen(question) + 64, at = 0;
    for (int32_t i = 0; i < n; i++) cap += strlen(hits[i].text) + 2;
    char *out = tn_alloc(ctx, TN_MEM_TEXT, cap, 1);
    if (!out) return NULL;
    for (int32_t i = n; i-- > 0;) at += (size_t)snprintf(out + at, cap - at, "%s\n\n", hits[i].text);
    snprintf(out + at, cap - at, n ? "Question: %s" : "%s", question);
    return out;
}

/* Tells whether the word stands in text, as a word. Case of ASCII letters does not matter. */
static bool has_word(const char *text, const char *word) {
    size_t n = strlen(word);
    for (const char *p = text; (p = strcasestr(p, word)); p++) {
        bool left = p == text || !(((p[-1] | 32) >= 'a' && (p[-1] | 32) <= 'z') ||
                                   (p[-1] >= '0' && p[-1] <= '9') || p[-1] & 0x80);
        bool right =
            !(((p[n] | 32) >= 'a' && (p[n] | 32) <= 'z') || (p[n] >= '0' && p[n] <= '9') || p[n] & 0x80);
        if (left && right) return true;
    }
    return false;
}

/* The words of the answer that say something, each with the passages it stands in. */
typedef struct evidence {
    uint64_t in[MAX_ANSWER_WORDS]; /* bit i: of passage i */
    int32_t n;
} evidence;

/* The text in pieces where its script has no spaces; the text itself without memory. *made is to be freed. */
static const char *in_pieces(const char *text, tn_words_for use, char **made) {
    size_t n;
    *made = tn_words_spread(text, strlen(text), use, &n);
    return *made ? *made : text;
}

static void gather(evidence *v, const tn_rag_hit *hits, int32_t n, const char *question, const char *answer) {
    char word[MAX_WORD], *made[TN_RAG_MAX_K], *made_question = NULL, *made_answer;
    const char *texts[TN_RAG_MAX_K];
    bool adjacent;
    v->n = 0;
    if (question) question = in_pieces(question, TN_WORDS_INDEX, &made_question);
    answer = in_pieces(answer, TN_WORDS_QUERY, &made_answer);
    for (int32_t i = 0; i < n; i++) texts[i] = in_pieces(hits[i].text, TN_WORDS_INDEX, &made[i]);
    while (v->n < MAX_ANSWER_WORDS && next_word(&answer, word, sizeof word, &adjacent)) {
        if (is_stop_word(word) || (question && has_word(question, word))) continue;
        uint64_t in = 0;
        for (int32_t i = 0; i < n; i++) in |= (uint64_t)has_word(texts[i], word) << i;
        v->in[v->n++] = in;
    }
    for (int32_t i = 0; i < n; i++) free(made[i]);
    free(made_question);
    free(made_answer);
}

void tn_rag_support(tn_rag_hit *hits, int32_t n, const char *question, const char *answer) {
    _Static_assert(TN_RAG_MAX_K <= 64, "a word's passages are bits");
    evidence v;
    gather(&v, hits, n, question, answer);
    if (!v.n) gather(&v, hits, n, NULL, answer); /* it only says the question's words again */
    for (int32_t i = 0; i < n; i++) {
        int32_t found = 0;
        for (int32_t w = 0; w < v.n; w++) found += (int32_t)(v.in[w] >> i & 1);
        hits[i].support = v.n ? (float)found / (float)v.n : 0;
        hits[i].cited = false;
    }
    uint64_t cited = 0;
    for (;;) { /* the passage that explains most of what the ones before do not */
        int32_t best = 0, most = 0;
        for (int32_t i = 0; i < n; i++) {
            int32_t gain = 0;
            for (int32_t w = 0; w < v.n; w++) gain += (v.in[w] >> i & 1) && !(v.in[w] & cited);
            if (gain > most) {
                most = gain;
                best = i;
            }
        }
        float share = v.n ? (float)most / (float)v.n : 0;
        if (!most || share < (cited ? TN_RAG_CITED_MORE : TN_RAG_CITED)) break;
        cited |= UINT64_C(1) << best;
        hits[best].cited = true;
    }
}

int tn_rag_by_support(const void *a, const void *b) {
    const tn_rag_hit *x = a, *y = b;
    if (x->support != y->support) return x->support > y->support ? -1 : 1;
    if (x->relevance != y->relevance) return x->relevance > y->relevance ? -1 : 1;
    return (x->score < y->score) - (x->score > y->score);
}
