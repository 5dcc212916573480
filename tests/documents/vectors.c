/* Are passages found by their vectors as float64 finds them, fused with the words as the formula says, and
 * are vectors made once, gone with their passages, and harmless when they come from elsewhere? */
#include "base/half.h"
#include "documents/rag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { N = 37, N_DOCS = 200 }; /* no multiple of a register's lanes */

static tn_ctx ctx;
static char folder[100], docs[120], path[120];
static tn_store *store;
static int n_embedded;
static atomic_bool cancel_at_last;
static int cancel_after;

static void write_text(const char *name, const char *text) {
    char file[300];
    snprintf(file, sizeof file, "%s/%s", docs, name);
    FILE *f = fopen(file, "w");
    assert_true(f && fputs(text, f) >= 0);
    fclose(f);
}

/* A stand-in for a model: every word adds a direction of its own, but words of one meaning ("auto", "car")
 * the same; all texts share one large direction, as those of language models do. */
static tern_status embed(void *user, const char *text, size_t n, float *out, tern_error *err) {
    (void)err;
    uint64_t salt = user ? *(const uint64_t *)user : 0;
    double v[N], square = 0;
    for (int k = 0; k < N; k++) v[k] = k == 5 ? 12 : 0;
    char word[64];
    size_t m = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && text[i] > ' ' && m < sizeof word - 1) {
            word[m++] = text[i];
            continue;
        }
        word[m] = 0;
        if (m) {
            uint64_t h = salt + 99;
            if (!strcmp(word, "auto")) strcpy(word, "car");
            for (char *p = word; *p; p++) h = h * 6364136223846793005u + (uint8_t)*p;
            for (int k = 0; k < N; k++) {
                h = h * 6364136223846793005u + 1442695040888963407u;
                v[k] += (double)(int32_t)(h >> 32) / 2147483648.0;
            }
        }
        m = 0;
    }
    for (int k = 0; k < N; k++) square += v[k] * v[k];
    for (int k = 0; k < N; k++) out[k] = (float)(v[k] / sqrt(square));
    n_embedded++;
    if (cancel_after && n_embedded >= cancel_after) atomic_store(&cancel_at_last, true);
    return TERN_OK;
}

static const tn_embedder embedder = {
    .model = "/models/one", .fingerprint = 11, .n = N, .mean = true, .embed = embed};

static int fresh(void **state) {
    (void)state;
    tn_ctx_init(&ctx, NULL);
    snprintf(folder, sizeof folder, "/tmp/tern-vectors-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(docs, sizeof docs, "%s/docs", folder);
    snprintf(path, sizeof path, "%s/s.db", folder);
    mkdir(docs, 0700);
    n_embedded = cancel_after = 0;
    atomic_store(&cancel_at_last, false);
    tern_error err;
    return tn_store_open(&ctx, path, NULL, &store, &err) == TERN_OK ? 0 : -1;
}

static int clean(void **state) {
    (void)state;
    char command[160];
    tn_store_close(&store);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void add(void) {
    tern_error err;
    tn_rag_added sum = {0};
    if (tn_rag_add(store, docs, NULL, NULL, &sum, &err) != TERN_OK) fail_msg("%s", err.message);
}

static int64_t fill(const tn_embedder *e) {
    tern_error err;
    int64_t n = 0;
    if (tn_vectors_fill(store, e, NULL, NULL, NULL, &n, &err) != TERN_OK) fail_msg("%s", err.message);
    return n;
}

static tn_vectors_info info(void) {
    tn_vectors_info i;
    tern_error err;
    assert_int_equal(tn_vectors_info_get(store, &i, &err), TERN_OK);
    return i;
}

/* Documents of five random words each, "w0" to "w59", so that some words are rare and some passages are
 * alike. */
static void many_documents(void) {
    uint64_t h = 7;
    for (int d = 0; d < N_DOCS; d++) {
        char name[32], text[128] = "";
        for (int w = 0; w < 5; w++) {
            h = h * 6364136223846793005u + 1442695040888963407u;
            snprintf(text + strlen(text), sizeof text - strlen(text), "w%d ", (int)((h >> 33) % 60));
        }
        snprintf(name, sizeof name, "%03d.txt", d);
        write_text(name, text);
    }
    add();
}

/* The similarities of all passages by the definition, in float64: the mean of all vectors, then cosines. */
static void by_definition(const char *query, double *out, int64_t *ids, int *n_out) {
    sqlite3_stmt *q;
    static double v[N_DOCS][N];
    double mean[N] = {0}, question[N];
    float row[N];
    int n = 0;
    sqlite3_prepare_v2(tn_store_db(store), "SELECT passage, data FROM vector ORDER BY passage", -1, &q, NULL);
    for (; sqlite3_step(q) == SQLITE_ROW; n++) {
        const uint8_t *p = sqlite3_column_blob(q, 1);
        assert_int_equal(sqlite3_column_bytes(q, 1), N * 2);
        ids[n] = sqlite3_column_int64(q, 0);
        for (int k = 0; k < N; k++) {
            v[n][k] = (double)tn_f16_f32((uint16_t)(p[2 * k] | p[2 * k + 1] << 8));
            mean[k] += v[n][k];
        }
    }
    sqlite3_finalize(q);
    embed(NULL, query, strlen(query), row, NULL);
    for (int k = 0; k < N; k++) {
        mean[k] /= n;
        question[k] = (double)row[k] - mean[k];
    }
    for (int i = 0; i < n; i++) {
        double dot = 0, a = 0, b = 0;
        for (int k = 0; k < N; k++) {
            double p = v[i][k] - mean[k];
            dot += p * question[k];
            a += p * p;
            b += question[k] * question[k];
        }
        out[i] = dot / sqrt(a * b);
    }
    *n_out = n;
}

static void as_float64_finds_them(void **state) {
    (void)state;
    many_documents();
    assert_int_equal(fill(&embedder), N_DOCS);
    static double want[N_DOCS];
    static int64_t ids[N_DOCS];
    tern_error err;
    for (int trial = 0; trial < 20; trial++) {
        char query[64];
        snprintf(query, sizeof query, "w%d w%d w%d", trial, (trial * 7 + 3) % 60, (trial * 11 + 5) % 60);
        int n_all;
        by_definition(query, want, ids, &n_all);
        assert_int_equal(n_all, N_DOCS);
        tn_vector_hit hits[40];
        int32_t n;
        bool centred;
        assert_int_equal(tn_vectors_search(store, &embedder, query, 40, hits, &n, &centred, &err), TERN_OK);
        assert_true(centred && n == 40);
        double mean = 0, square = 0;
        for (int i = 0; i < n_all; i++) {
            mean += want[i] / n_all;
            square += want[i] * want[i] / n_all;
        }
        for (int r = 0; r < n; r++) {
            int at = 0, above = 0;
            while (ids[at] != hits[r].passage) at++;
            /* halves are off by 2^-11 of themselves; passages lie at about 0.4 from the centre */
            if (fabs((double)hits[r].similarity - want[at]) > 2e-3) fail_msg("%g", want[at]);
            double z = (want[at] - mean) / sqrt(square - mean * mean);
            assert_true(fabs((double)hits[r].stands_out - z) < 0.02);
            for (int i = 0; i < n_all; i++) above += want[i] > want[at] + 4e-3;
            assert_true(above <= r);
            if (r) assert_true(hits[r].similarity <= hits[r - 1].similarity);
        }
    }
}

/* Ranks by words and by nearness, added as 1 / (60 + rank). */
static void fused(void **state) {
    (void)state;
    many_documents();
    fill(&embedder);
    tern_error err;
    tn_rag_hit *words, *both;
    tn_vector_hit near[32];
    int32_t n_words, n_both, n_near;
    bool centred;
    const char *query = "w3 w17 w44";
    assert_int_equal(tn_rag_search(store, query, 32, NULL, &words, &n_words, &err), TERN_OK);
    assert_int_equal(tn_vectors_search(store, &embedder, query, 32, near, &n_near, &centred, &err), TERN_OK);
    assert_int_equal(tn_rag_search(store, query, 8, &embedder, &both, &n_both, &err), TERN_OK);
    assert_int_equal(n_both, 8);
    int n_two = 0;
    for (int i = 0; i < n_both; i++) {
        double score = 0;
        int lists = 0;
        for (int r = 0; r < n_words; r++) {
            if (strcmp(words[r].path, both[i].path)) continue;
            score += 1.0 / (61 + r);
            lists++;
        }
        for (int r = 0; r < n_near; r++) {
            char file[160];
            snprintf(file, sizeof file, "%s/%03d.txt", docs,
                     (int)near[r].passage - 1); /* added in this order */
            if (strcmp(file, both[i].path)) continue;
            score += 1.0 / (61 + r);
            lists++;
            assert_true(both[i].similarity == near[r].similarity);
        }
        n_two += lists == 2;
        if (fabs(score - (double)both[i].score) > 1e-6) fail_msg("%s: %g", both[i].path, score);
        if (i) assert_true(both[i].score <= both[i - 1].score);
    }
    assert_true(n_two >= 1);
    tn_rag_hits_free(&ctx, &words, n_words);
    tn_rag_hits_free(&ctx, &both, n_both);
}

/* No word in common: the words find nothing, the meaning does. And what means nothing here fits nothing. */
static void by_meaning(void **state) {
    (void)state;
    many_documents();
    write_text("garage.txt", "car");
    add();
    fill(&embedder);
    tern_error err;
    tn_rag_hit *hits;
    int32_t n;
    assert_int_equal(tn_rag_search(store, "auto", 3, NULL, &hits, &n, &err), TERN_OK);
    assert_int_equal(n, 0);
    tn_rag_hits_free(&ctx, &hits, n);
    assert_int_equal(tn_rag_search(store, "auto", 3, &embedder, &hits, &n, &err), TERN_OK);
    assert_true(n == 3 && strstr(hits[0].path, "garage.txt") && hits[0].fits && hits[0].similarity > 0.9f);
    tn_rag_hits_free(&ctx, &hits, n);
    assert_int_equal(tn_rag_search(store, "zyzzyva", 3, &embedder, &hits, &n, &err), TERN_OK);
    assert_int_equal(n, 3);
    for (int i = 0; i < n; i++) assert_false(hits[i].fits);
    tn_rag_hits_free(&ctx, &hits, n);
    assert_int_equal(tn_rag_search(store, "?!", 3, &embedder, &hits, &n, &err), TERN_OK);
    tn_rag_hits_free(&ctx, &hits, n);
}

/* What is there is not made again; another model makes all again; a stop keeps what is done. */
static void made_once(void **state) {
    (void)state;
    many_documents();
    assert_int_equal(fill(&embedder), N_DOCS);
    assert_int_equal(fill(&embedder), 0);
    assert_int_equal(n_embedded, N_DOCS);
    write_text("007.txt", "changed words");
    write_text("new.txt", "other words");
    add();
    assert_int_equal(info().n_missing, 2);
    assert_int_equal(fill(&embedder), 2);
    tn_embedder last = embedder, other = embedder;
    last.mean = false;
    assert_int_equal(fill(&last), N_DOCS + 1);
    assert_false(info().mean);
    other.fingerprint = 12;
    tern_error err;
    tn_vector_hit hit;
    int32_t n;
    bool centred;
    assert_int_equal(tn_vectors_search(store, &other, "w1", 1, &hit, &n, &centred, &err), TERN_E_INVALID);
    cancel_after = n_embedded + 40;
    int64_t n_made = 0;
    assert_int_equal(tn_vectors_fill(store, &other, &cancel_at_last, NULL, NULL, &n_made, &err),
                     TERN_E_CANCELLED);
    assert_true(n_made >= 32 && n_made < N_DOCS && info().n_vectors == n_made && info().fingerprint == 12);
    assert_int_equal(fill(&other), N_DOCS + 1 - n_made);
    assert_int_equal(tn_vectors_drop(store, &err), TERN_OK);
    assert_false(info().any);
}

/* How often bytes stand in the store's files. */
static int count(const void *needle, size_t n) {
    static const char *const ends[] = {"", "-wal", "-journal"};
    static char bytes[8 << 20];
    int found = 0;
    for (int i = 0; i < 3; i++) {
        char name[200];
        snprintf(name, sizeof name, "%s%s", path, ends[i]);
        FILE *f = fopen(name, "rb");
        if (!f) continue;
        size_t size = fread(bytes, 1, sizeof bytes, f);
        fclose(f);
        for (char *p = bytes; (p = memmem(p, size - (size_t)(p - bytes), needle, n)); p++) found++;
    }
    return found;
}

static void erased(void **state) {
    (void)state;
    static const char secret[] = "the vault opens with quizzaciously", other[] = "the inn is near the weir";
    char file[200];
    float row[N];
    uint16_t gone[N], stays[N];
    tern_error err;
    int64_t n;
    embed(NULL, secret, strlen(secret), row, NULL);
    for (int k = 0; k < N; k++) gone[k] = tn_f32_f16(row[k]);
    embed(NULL, other, strlen(other), row, NULL);
    for (int k = 0; k < N; k++) stays[k] = tn_f32_f16(row[k]);
    snprintf(file, sizeof file, "%s/secret.txt", docs);
    for (int way = 0; way < 4; way++) {
        write_text("secret.txt", secret);
        write_text("other.txt", other);
        add();
        fill(&embedder);
        assert_true(count(gone, sizeof gone) >= 1 && count(stays, sizeof stays) >= 1);
        if (way == 0) assert_int_equal(tn_rag_remove(store, file, &n, &err), TERN_OK);
        if (way == 1) { /* it vanishes, and its folder is read again */
            assert_int_equal(remove(file), 0);
            add();
        }
        if (way == 2) assert_int_equal(tn_rag_remove(store, NULL, &n, &err), TERN_OK);
        if (way == 3) assert_int_equal(tn_vectors_drop(store, &err), TERN_OK);
        assert_int_equal(count(gone, sizeof gone), 0);
        assert_int_equal(count(stays, sizeof stays) >= 1, way < 2);
        assert_int_equal(info().any, way < 2);
        assert_int_equal(count("/models/one", 11) >= 1, way < 2);
    }
}

/* Vectors from elsewhere: of another length, not numbers, none at all; a note that says nonsense. */
static void from_elsewhere(void **state) {
    (void)state;
    static const char *const tricks[] = {
        "UPDATE vector SET data = x'00' WHERE passage % 3 = 0",
        "UPDATE vector SET data = randomblob(74) WHERE passage % 3 = 1",
        "UPDATE vector SET data = x'007c' || substr(data, 3)",
        "UPDATE vector SET data = zeroblob(1 << 20) WHERE passage < 4; UPDATE vector SET data = 'text' WHERE "
        "passage = 9",
        "UPDATE embedder SET model = zeroblob(100000), n = 37",
        "UPDATE embedder SET n = -1",
        "UPDATE embedder SET n = 1 << 40",
        "PRAGMA foreign_keys = OFF; INSERT INTO vector VALUES(1 << 50, x'00'), (-5, x'00')",
        "DELETE FROM embedder",
        "DELETE FROM passage_fts; DELETE FROM vector",
    };
    many_documents();
    fill(&embedder);
    for (size_t i = 0; i < sizeof tricks / sizeof *tricks; i++) {
        tern_error err;
        tn_rag_hit *hits = NULL;
        int32_t n = 0;
        char *message = NULL;
        if (sqlite3_exec(tn_store_db(store), tricks[i], NULL, NULL, &message) != SQLITE_OK)
            fail_msg("%s: %s", tricks[i], message);
        tern_status st = tn_rag_search(store, "w1 w2", 4, &embedder, &hits, &n, &err);
        assert_true(st == TERN_OK || ((st == TERN_E_INVALID || st == TERN_E_FORMAT) && err.message[0]));
        for (int h = 0; h < n; h++) assert_true(isfinite(hits[h].score) && isfinite(hits[h].similarity));
        tn_rag_hits_free(&ctx, &hits, n);
        tn_vectors_info now;
        assert_int_equal(tn_vectors_info_get(store, &now, &err), TERN_OK);
    }
    tern_error err;
    tn_embedder large = embedder;
    int64_t n_made = 0;
    large.n = TN_VECTOR_MAX + 1;
    assert_int_equal(tn_vectors_fill(store, &large, NULL, NULL, NULL, &n_made, &err), TERN_E_UNSUPPORTED);
}

/* An answer cites what it came from alone. */
static void cited(void **state) {
    (void)state;
    tn_rag_hit h[3] = {
        {.path = "/a", .text = "The door code of the Marbury office is 58213. Ida keeps the keys."},
        {.path = "/b", .text = "The door code of the Zanfeld office is 40077."},
        {.path = "/c", .text = "Lunch in Marbury is at noon."}};
    const char *question = "What is the door code of the Marbury office?";
    tn_rag_support(h, 3, question, "The door code of the Marbury office is 58213.");
    assert_true(h[0].cited && !h[1].cited && !h[2].cited && h[0].support == 1 && h[1].support == 0);
    tn_rag_support(h, 3, question, "The door code is 99999."); /* nowhere */
    assert_true(!h[0].cited && !h[1].cited && !h[2].cited);
    tn_rag_support(h, 3, question, "It is 58213, and lunch is at noon."); /* of two */
    assert_true(h[0].cited && !h[1].cited && h[2].cited);
    tn_rag_support(h, 3, question, "The door code of the Marbury office."); /* the question's words alone */
    assert_true(h[0].cited && !h[2].cited);
    tn_rag_support(h, 3, question,
                   "Paris, Lyon, Marseille, Bordeaux, Nice and keys."); /* one word of six by chance */
    assert_true(!h[0].cited && h[0].support > 0);
    tn_rag_support(h, 3, question, "");
    assert_true(!h[0].cited);
}

/* A question whose words are not there fits nothing; one of whose words few are, does. */
static void fits(void **state) {
    (void)state;
    write_text("boiler.txt", "The boiler was serviced on 4 May by Ida Holm.");
    write_text("garden.txt", "The garden is watered in the evening.");
    add();
    static const struct {
        const char *question;
        bool fits;
    } all[] = {
        {"When was the boiler serviced?", true},
        {"Which plumber repaired the boiler last winter?", true},
        {"Name the capital city of France, its mayor, its river, its oldest bridge and its boiler", false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tn_rag_hit *hits;
        int32_t n;
        tern_error err;
        assert_int_equal(tn_rag_search(store, all[i].question, 2, NULL, &hits, &n, &err), TERN_OK);
        assert_true(n >= 1 && hits[0].fits == all[i].fits);
        tn_rag_hits_free(&ctx, &hits, n);
    }
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, fresh, clean)
    const struct CMUnitTest tests[] = {
        T(as_float64_finds_them), T(fused), T(by_meaning), T(made_once), T(erased),
        T(from_elsewhere),        T(cited), T(fits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
