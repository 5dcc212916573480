/* tests/documents/rag.c - are documents found again by what stands in them, kept up to date, and is no question
 * dangerous? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/status.h"
#include "documents/rag.h"

#include <sqlite3.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static tn_ctx ctx;
static char folder[64], docs[96];
static tn_store *store;
static char notices[4096];

static void note(void *user, const char *line) {
    (void)user;
    size_t n = strlen(notices);
    snprintf(notices + n, sizeof notices - n, "%s\n", line);
}

static void write_file(const char *name, const void *bytes, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", docs, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(bytes, 1, n, f);
    fclose(f);
}

static void write_text(const char *name, const char *text) { write_file(name, text, strlen(text)); }

static int fresh(void **state) {
    (void)state;
    tn_ctx_init(&ctx, NULL);
    strcpy(folder, "/tmp/tern-rag-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    char path[128];
    snprintf(docs, sizeof docs, "%s/docs", folder);
    snprintf(path, sizeof path, "%s/sub", docs);
    mkdir(docs, 0700);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/store.db", folder);
    notices[0] = 0;
    tern_error err;
    return tn_store_open(&ctx, path, NULL, &store, &err) == TERN_OK ? 0 : -1;
}

static int clean(void **state) {
    (void)state;
    tn_store_close(&store);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "/bin/rm -r %s", folder);
    return system(cmd);
}

static tn_rag_added add(const char *path) {
    tn_rag_added a = {0};
    tern_error err = {0};
    const tn_rag_options o = {.notice = note};
    if (tn_rag_add(store, path, &o, NULL, &a, &err) != TERN_OK) fail_msg("%s", err.message);
    return a;
}

/* File name of the best passage, "" for none. */
static const char *best(const char *query) {
    static char name[256];
    tn_rag_hit *hits;
    int32_t n;
    tern_error err = {0};
    if (tn_rag_search(store, query, 3, NULL, &hits, &n, &err) != TERN_OK)
        fail_msg("%s: %s", query, err.message);
    snprintf(name, sizeof name, "%s", n ? strrchr(hits[0].path, '/') + 1 : "");
    for (int32_t i = 1; i < n; i++) assert_true(hits[i].score <= hits[i - 1].score);
    tn_rag_hits_free(&ctx, &hits, n);
    return name;
}

static bool count(void *user, const tn_rag_document *d) {
    assert_true(d->path[0] == '/' && d->n_passages > 0 && d->added > 0);
    ++*(int *)user;
    return true;
}

static int n_documents(void) {
    int n = 0;
    tern_error err;
    assert_int_equal(tn_rag_list(store, count, &n, &err), TERN_OK);
    return n;
}

static void integrity(void) {
    sqlite3 *db = tn_store_db(store);
    assert_int_equal(
        sqlite3_exec(db, "INSERT INTO passage_fts(passage_fts) VALUES('integrity-check')", NULL, NULL, NULL),
        SQLITE_OK);
    sqlite3_stmt *q;
    sqlite3_prepare_v2(
        db, "SELECT (SELECT count(*) FROM passage) = (SELECT coalesce(sum(n_passages), 0) FROM document)", -1,
        &q, NULL);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(q, 0), 1);
    sqlite3_finalize(q);
}

static void files(void) {
    write_text("bees.txt",
               "Honey bees dance to tell where flowers are.\n\nA waggle dance shows the direction.\n");
    write_text("sub/tea.md", "# Tea\n\nGreen tea is steeped at eighty degrees.\n");
    write_text("sub/page.html", "<html><head><title>x</title></head><body><p>The caf&eacute; opens at "
                                "<b>nine</b>.</p><script>var hidden_word;</script></body></html>");
    write_text(".hidden", "secret hidden file");
    write_file("picture.png", "\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
    write_text("empty.txt", " \n");
}

static void found_again(void **state) {
    (void)state;
    files();
    tn_rag_added a = add(docs);
    assert_int_equal(a.n_added, 3);
    assert_int_equal(a.n_skipped, 2);
    assert_non_null(strstr(notices, "picture.png: skipped: it is binary"));
    assert_non_null(strstr(notices, "empty.txt: skipped: it has no text"));
    assert_int_equal(n_documents(), 3);
    assert_string_equal(best("Which bee dances?"), "bees.txt"); /* stems */
    assert_string_equal(best("how hot for green tea"), "tea.md");
    assert_string_equal(best("CAFE opening"), "page.html"); /* no diacritics, no case, entities read */
    assert_string_equal(best("hidden_word"), "");
    assert_string_equal(best("nothing of the kind exists: zyzzyva"), "");
    integrity();
}

static void up_to_date(void **state) {
    (void)state;
    files();
    add(docs);
    notices[0] = 0;
    tn_rag_added a = add(docs);
    assert_int_equal(a.n_added + a.n_changed + a.n_removed, 0);
    assert_int_equal(a.n_unchanged, 3);
    write_text("bees.txt", "Wasps build nests of paper.\n");
    write_text("new.txt", "Ants walk in rows.\n");
    char path[256];
    snprintf(path, sizeof path, "%s/sub/tea.md", docs);
    remove(path);
    a = add(docs);
    assert_int_equal(a.n_added, 1);
    assert_int_equal(a.n_changed, 1);
    assert_int_equal(a.n_removed, 1);
    assert_string_equal(best("honey"), "");
    assert_string_equal(best("steeped"), "");
    assert_string_equal(best("wasp nests"), "bees.txt");
    assert_string_equal(best("ant"), "new.txt");
    integrity();
    int64_t n;
    tern_error err;
    snprintf(path, sizeof path, "%s/sub", docs);
    assert_int_equal(tn_rag_remove(store, path, &n, &err), TERN_OK);
    assert_int_equal(n, 1); /* the page */
    assert_int_equal(n_documents(), 2);
    assert_int_equal(tn_rag_remove(store, docs, &n, &err), TERN_OK);
    assert_int_equal(n, 2);
    assert_string_equal(best("wasp"), "");
    assert_int_equal(tn_rag_remove(store, "/no/such", &n, &err), TERN_OK);
    assert_int_equal(n, 0);
    integrity();
    tn_rag_added none = {0};
    assert_int_equal(tn_rag_add(store, "/no/such", NULL, NULL, &none, &err), TERN_E_IO);
}

static void no_question_is_dangerous(void **state) {
    (void)state;
    files();
    add(docs);
    static const char *const hostile[] = {
        "\"",
        "\"\"\"",
        "'",
        "bees\" OR \"tea",
        "text:bees",
        "-text : bees",
        "NEAR(bees dance, 2)",
        "bees*",
        "^bees",
        "bees AND",
        "NOT",
        "OR OR OR",
        "(",
        ")",
        "((((",
        "{text} : bees",
        "+ + +",
        "bees + dance",
        "'; DROP TABLE document; --",
        "\\",
        "%",
        "_",
        "*",
        "",
        "   ",
        "\n\t",
        "\xff\xfe\x80",
        "bees\xff",
        "\xf0\x9f\x98\x80",
        "\x01\x02",
        "AND AND",
        "col:",
        ": :",
        "\xe2\x80\x9c\142ees\xe2\x80\x9d",
        "a\xcc\x81\xcc\x81\xcc\x81",
    };
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) best(hostile[i]);
    assert_string_equal(best("bees\" OR \"zzz"), "bees.txt");
    assert_string_equal(best("NEAR(bees)"), "bees.txt");
    assert_string_equal(best("bees*"), "bees.txt");
    uint64_t rng = 3;
    char q[4000];
    for (int trial = 0; trial < 500; trial++) {
        size_t n = (size_t)trial * 7 % sizeof q;
        for (size_t i = 0; i < n; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            q[i] = trial % 2 ? "\"'()*:+-^{} aAnNdDoOrR"[(rng >> 40) % 22] : (char)(1 + (rng >> 40) % 255);
        }
        q[n] = 0;
        best(q);
    }
    memset(q, 'x', sizeof q - 1);
    q[sizeof q - 1] = 0;
    best(q);
    assert_int_equal(n_documents(), 3);
    integrity();
    tn_rag_hit *hits;
    int32_t n;
    tern_error err;
    assert_int_equal(tn_rag_search(store, "bees", 0, NULL, &hits, &n, &err), TERN_E_INVALID);
    assert_int_equal(tn_rag_search(store, "bees", TN_RAG_MAX_K + 1, NULL, &hits, &n, &err), TERN_E_INVALID);
}

static void pdf(void **state) {
    (void)state;
    write_text("paper.pdf", "%PDF-1.4\n\x01\x02\x03");
    char bin[128], cmd[512], *old = strdup(getenv("PATH"));
    snprintf(bin, sizeof bin, "%s/bin", folder);
    mkdir(bin, 0700);
    setenv("PATH", bin, 1); /* a machine without pdftotext */
    tn_rag_added a = add(docs);
    assert_int_equal(a.n_added, 0);
    assert_non_null(strstr(notices, "poppler-utils"));
    snprintf(cmd, sizeof cmd, "%s/pdftotext", bin);
    FILE *f = fopen(cmd, "w"); /* one that reads everything the same */
    fprintf(f, "#!/bin/sh\ncase $4 in /*) printf 'Of birds.\\n\\fPenguins swim under ice.\\n\\f';; *) exit "
               "3;; esac\n");
    fclose(f);
    chmod(cmd, 0700);
    a = add(docs);
    assert_int_equal(a.n_added, 1);
    assert_string_equal(best("penguin"), "paper.pdf");
    char paper[256];
    tn_rag_hit *hit;
    tern_error err;
    snprintf(paper, sizeof paper, "%s/paper.pdf", docs);
    assert_int_equal(tn_rag_passage(store, paper, 1, &hit, &err), TERN_OK);
    assert_true(hit->page == 1 && hit->line == 0 && !strchr(hit->text, '\f'));
    tn_rag_hits_free(&ctx, &hit, 1);
    f = fopen(cmd, "w"); /* pages that are blank, or pictures */
    fprintf(f, "#!/bin/sh\nprintf '\\f \n\\fOf ice.\n\\f\\fOf snow.\\f\\f\\f\\f'\n");
    fclose(f);
    write_text("paper.pdf", "%PDF-1.6\n");
    a = add(docs);
    assert_true(a.n_changed == 1 && a.n_empty_pages == 6);
    assert_non_null(strstr(notices, "paper.pdf: pages 1 to 2, 4, 6 to 8: no text, so left out"));
    f = fopen(cmd, "w");
    fprintf(f, "#!/bin/sh\nexit 1\n");
    fclose(f);
    write_text("paper.pdf", "%PDF-1.5\n");
    notices[0] = 0;
    a = add(docs);
    assert_int_equal(a.n_skipped, 1);
    assert_non_null(strstr(notices, "cannot read"));
    setenv("PATH", old, 1);
    free(old);
}

/* A passage says the line or page that it begins on, where its document has them. */
static void places(void **state) {
    (void)state;
    char text[8192] = "", path[256];
    size_t at = 0;
    for (int i = 1; i <= 120; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "Line %d is about number %d.\r\n\r\n", i, i * 7);
    write_text("lines.txt", text);
    write_text("page.html", "<p>One.</p>\n\n\n<p>Two.</p>");
    add(docs);
    snprintf(path, sizeof path, "%s/lines.txt", docs);
    tn_rag_hit *hit;
    tern_error err;
    for (int k = 1; k <= 4; k++) {
        int number = 0;
        assert_int_equal(tn_rag_passage(store, path, k, &hit, &err), TERN_OK);
        assert_int_equal(sscanf(hit->text, "Line %d", &number), 1);
        assert_int_equal(hit->line, 2 * number - 1);
        assert_int_equal(hit->number, k);
        tn_rag_hits_free(&ctx, &hit, 1);
    }
    assert_int_equal(tn_rag_passage(store, path, 99, &hit, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "none of number 99"));
    assert_int_equal(tn_rag_passage(store, "/none", 1, &hit, &err), TERN_E_INVALID);
    snprintf(path, sizeof path, "%s/page.html", docs);
    assert_int_equal(tn_rag_passage(store, path, 1, &hit, &err), TERN_OK);
    assert_true(!hit->line && !hit->page);
    tn_rag_hits_free(&ctx, &hit, 1);
}

static void whole_text(void **state) {
    (void)state;
    files();
    add(docs);
    char path[256], *text;
    size_t n;
    tern_error err;
    snprintf(path, sizeof path, "%s/bees.txt", docs);
    assert_int_equal(tn_rag_text(store, path, 1000, &text, &n, &err), TERN_OK);
    assert_true(n == strlen(text) && strstr(text, "Honey bees") && strstr(text, "the direction."));
    tn_free(&ctx, text);
    assert_int_equal(tn_rag_text(store, path, 10, &text, &n, &err), TERN_OK); /* no part of a passage */
    assert_int_equal(n, 0);
    tn_free(&ctx, text);
    assert_int_equal(tn_rag_text(store, "/no/such", 1000, &text, &n, &err), TERN_OK);
    assert_int_equal(n, 0);
    tn_free(&ctx, text);
}

static void bounds(void **state) {
    (void)state;
    write_text("long.txt", "0123456789012345678901234567890");
    tern_error err;
    tn_rag_added a = {0};
    tn_rag_options o = {.notice = note, .max_file_bytes = 16};
    assert_int_equal(tn_rag_add(store, docs, &o, NULL, &a, &err), TERN_OK);
    assert_int_equal(a.n_skipped, 1);
    assert_non_null(strstr(notices, "larger than"));
    char path[256];
    snprintf(path, sizeof path, "%s/fifo", docs);
    mkfifo(path, 0600);
    a = add(path); /* does not wait for a writer */
    assert_int_equal(a.n_skipped, 1);
    snprintf(path, sizeof path, "%s/sub/loop", docs);
    assert_int_equal(symlink(docs, path), 0);
    a = add(docs);
    assert_int_equal(a.n_added, 1);
    atomic_bool cancel = true;
    assert_int_equal(tn_rag_add(store, docs, NULL, &cancel, &a, &err), TERN_E_CANCELLED);
    o = (tn_rag_options){.passages = {.max_tokens = 8, .overlap_tokens = 8}};
    assert_int_equal(tn_rag_add(store, docs, &o, NULL, &a, &err), TERN_E_INVALID);
    o.passages.overlap_tokens = 2;
    a = (tn_rag_added){0};
    assert_int_equal(tn_rag_add(store, docs, &o, NULL, &a, &err), TERN_OK);
    assert_int_equal(a.n_changed, 1); /* cut up in another way */
}

/* Allocation number `left` fails, and all after it. */
static int left;
static void *failing_alloc(void *user, size_t n_bytes, size_t align) {
    (void)user;
    return left-- > 0 ? aligned_alloc(align, (n_bytes + align - 1) / align * align) : NULL;
}
static void failing_release(void *user, void *p) {
    (void)user;
    free(p);
}

/* Whatever allocation fails: a clear status, nothing lost of what was there, and the index stays whole. */
static void out_of_memory(void **state) {
    (void)state;
    files();
    add(docs);
    write_text("new.txt", "Ants walk in rows.\n\nAnts carry leaves.\n");
    char path[128];
    snprintf(path, sizeof path, "%s/store.db", folder);
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.alloc = failing_alloc;
    hooks.release = failing_release;
    tern_status st = TERN_E_MEMORY;
    int n;
    for (n = 0; st == TERN_E_MEMORY && n < 1000; n++) {
        tn_ctx poor;
        tn_ctx_init(&poor, &hooks);
        tn_store *s = NULL;
        tn_rag_added a = {0};
        tn_rag_hit *hits = NULL;
        int32_t n_hits = 0;
        tern_error err;
        left = n;
        st = tn_store_open(&poor, path, NULL, &s, &err);
        if (st == TERN_OK) st = tn_rag_add(s, docs, NULL, NULL, &a, &err);
        if (st == TERN_OK) st = tn_rag_search(s, "leaves", 2, NULL, &hits, &n_hits, &err);
        if (st == TERN_OK) assert_true(n_hits == 1);
        else assert_true(st == TERN_E_MEMORY && err.message[0]);
        tn_rag_hits_free(&poor, &hits, n_hits);
        if (s) tn_store_close(&s);
        assert_string_equal(best("steeped"), "tea.md");
        integrity();
    }
    assert_int_equal(st, TERN_OK);
    assert_true(n > 5);
}

static void prompt_and_support(void **state) {
    (void)state;
    tn_rag_hit hits[2] = {{.path = "/a", .text = "Best passage about Anna Lind.", .number = 1},
                          {.path = "/b", .text = "Second.", .number = 4}};
    char *p = tn_rag_prompt(&ctx, "Where is Anna?", hits, 2);
    assert_string_equal(p, "Second.\n\nBest passage about Anna Lind.\n\nQuestion: Where is Anna?");
    tn_free(&ctx, p);
    p = tn_rag_prompt(&ctx, "Where is Anna?", hits, 0);
    assert_string_equal(p, "Where is Anna?");
    tn_free(&ctx, p);
    tn_rag_support(hits, 2, "Who is it?", "The best is Anna Lind.");
    assert_true(hits[0].support == 1 && hits[1].support == 0);
    tn_rag_support(hits, 2, "Who is it?", "");
    assert_true(hits[0].support == 0);
}

/* Which share of the question's weight stands in the file's passage; -1 where it is not found. */
static float coverage_of(const char *query, const char *name) {
    tn_rag_hit *hits;
    int32_t n;
    float share = -1;
    tern_error err = {0};
    if (tn_rag_search(store, query, 16, NULL, &hits, &n, &err) != TERN_OK) fail_msg("%s", err.message);
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(strrchr(hits[i].path, '/') + 1, name)) share = hits[i].coverage;
    tn_rag_hits_free(&ctx, &hits, n);
    return share;
}

/* A word that nearly every passage has tells less than one that a single passage has. */
static void rare_words_tell_more(void **state) {
    (void)state;
    char name[32];
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "%d.txt", i);
        write_text(name, i == 3 ? "The ferry is called quillon." : "A lighthouse stands here.");
    }
    assert_int_equal(add(docs).n_added, 10);
    float rare = coverage_of("quillon lighthouse", "3.txt"),
          common = coverage_of("quillon lighthouse", "4.txt");
    assert_true(common > 0 && rare > 0.6f && rare > common);
    assert_true(fabsf(rare + common - 1) < 1e-5f); /* together they are the whole question */
}

/* A word finds its inflections and compounds, which English stems do not know, and they count for half: a passage that has the word
 * itself comes first. */
static void families_of_words(void **state) {
    (void)state;
    tn_rag_hit *hits;
    int32_t n;
    tern_error err;
    char name[32];
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "%d.txt", i);
        write_text(name, i == 3   ? "Die Paketverwaltung steht im Keller."
                         : i == 6 ? "Das Paket liegt im Keller."
                                  : "Ein Leuchtturm steht hier.");
    }
    assert_int_equal(add(docs).n_added, 10);
    assert_int_equal(tn_rag_search(store, "Paket", 4, NULL, &hits, &n, &err), TERN_OK);
    assert_int_equal(n, 2);
    assert_non_null(strstr(hits[0].path, "6.txt"));
    assert_non_null(strstr(hits[1].path, "3.txt"));
    assert_true(hits[0].coverage == 1 && hits[1].coverage == 0.5f && hits[1].fits);
    tn_rag_hits_free(&ctx, &hits, n);
    assert_int_equal(tn_rag_search(store, "4711", 4, NULL, &hits, &n, &err),
                     TERN_OK); /* numbers have no family */
    assert_int_equal(n, 0);
    tn_rag_hits_free(&ctx, &hits, n);
}

/* Words that many passages have make no pairs: beside each other they say as little as alone. */
static void common_pairs_tell_nothing(void **state) {
    (void)state;
    tn_rag_hit *hits;
    int32_t n;
    tern_error err;
    char name[32], text[96];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "%d.txt", i);
        snprintf(text, sizeof text, "%s Haus %d hat Fenster und ein Dach.",
                 i == 40   ? "Womit kann"
                 : i == 70 ? "Quillon."
                 : i % 6   ? ""
                 : i % 4   ? "Womit"
                           : "Hier kann es",
                 i);
        write_text(name, text);
    }
    assert_int_equal(add(docs).n_added, 100);
    assert_int_equal(tn_rag_search(store, "Womit kann Quillon?", 4, NULL, &hits, &n, &err), TERN_OK);
    assert_true(n > 0 && strstr(hits[0].path, "70.txt"));
    tn_rag_hits_free(&ctx, &hits, n);
}

/* Three processes add and remove the same folder over and over: nobody fails, and the last addition finds
 * everything once. */
static void many_processes(void **state) {
    (void)state;
    enum { N_DOCS = 40, N_PROCESSES = 3, N_ROUNDS = 12 };
    char path[128], name[32], text[64];
    snprintf(path, sizeof path, "%s/store.db", folder);
    for (int i = 0; i < N_DOCS; i++) {
        snprintf(name, sizeof name, "%d.txt", i);
        snprintf(text, sizeof text, "the number of this one is pelican%d", i);
        write_text(name, text);
    }
    tn_store_close(&store);
    for (int p = 0; p < N_PROCESSES; p++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid) continue;
        tern_error err;
        tn_store *s;
        bool ok = tn_store_open(&ctx, path, NULL, &s, &err) == TERN_OK;
        for (int r = 0; ok && r < N_ROUNDS; r++) {
            tn_rag_added added = {0};
            int64_t n;
            ok = tn_rag_add(s, docs, NULL, NULL, &added, &err) == TERN_OK &&
                 (r % 2 || tn_rag_remove(s, docs, &n, &err) == TERN_OK);
        }
        if (!ok) fprintf(stderr, "%s\n", err.message);
        _exit(ok ? 0 : 1);
    }
    for (int p = 0; p < N_PROCESSES; p++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    tern_error err;
    assert_int_equal(tn_store_open(&ctx, path, NULL, &store, &err), TERN_OK);
    tn_rag_added added = {0};
    assert_int_equal(tn_rag_add(store, docs, NULL, NULL, &added, &err), TERN_OK);
    int64_t n_documents, n_passages;
    assert_int_equal(tn_rag_counts(store, &n_documents, &n_passages, &err), TERN_OK);
    assert_int_equal(n_documents, N_DOCS);
    assert_int_equal(n_passages, N_DOCS);
}

/* A document that was removed is not in the file any more. */
static void removed_is_gone(void **state) {
    (void)state;
    size_t n = 0, cap = 4 << 20;
    char *text = malloc(cap), path[128];
    while (n + 40 < cap) n += (size_t)sprintf(text + n, "pelican%zu sails alone\n", n);
    write_file("large.txt", text, n);
    free(text);
    tern_error err;
    tn_rag_added added = {0};
    assert_int_equal(tn_rag_add(store, docs, NULL, NULL, &added, &err), TERN_OK);
    int64_t n_gone;
    assert_int_equal(tn_rag_remove(store, docs, &n_gone, &err), TERN_OK);
    assert_int_equal(n_gone, 1);
    tn_store_close(&store);
    struct stat info;
    snprintf(path, sizeof path, "%s/store.db", folder);
    assert_int_equal(stat(path, &info), 0);
    if (info.st_size > 200000) fail_msg("%lld bytes are left", (long long)info.st_size);
}

/* Stands for a model. */
typedef struct looker {
    int n_calls;
    bool stops; /* at the second document */
} looker;

static tern_status tell(void *user, const char *path, const char *bytes, size_t n, const char *had,
                        char **text, int64_t *n_told, tern_error *err) {
    looker *l = user;
    const char which = strrchr(path, '/')[1];
    l->n_calls++;
    assert_true(n == 2 && !bytes[0] && !had);
    assert_true(sqlite3_get_autocommit(tn_store_db(store))); /* others may write meanwhile */
    *text = NULL;
    if (which == '2' && l->stops) return tn_fail(err, TERN_E_CANCELLED, "indexing was stopped");
    if (which == '3') return tn_fail(err, TERN_E_FORMAT, "the picture is torn");
    if (which == '4') return TERN_OK;
    *text = strdup(which == '1'   ? "A heron wades.\f\fAn otter sleeps. It sleeps long."
                   : which == '5' ? "\f"
                                  : "A lynx.");
    assert_non_null(*text);
    *n_told = which == '1' ? 2 : which != '5';
    return TERN_OK;
}

static void captions(void **state) {
    (void)state;
    looker l = {.stops = true};
    const tn_rag_options o = {.notice = note,
                              .caption = tell,
                              .caption_user = &l,
                              .passages = {.max_tokens = 4, .overlap_tokens = 1}};
    tn_rag_added a = {0};
    tern_error err;
    char path[256];
    tn_rag_hit *hit;
    for (char name[] = "1.bin"; name[0] <= '5'; name[0]++) write_file(name, "\0x", 2);
    assert_int_equal(tn_rag_add(store, docs, &o, NULL, &a, &err), TERN_E_CANCELLED);
    assert_true(a.n_added == 1 && a.n_captions == 2 && a.n_passages == 2);
    assert_int_equal(n_documents(), 1); /* what was done stays */
    l.stops = false;
    a = (tn_rag_added){0};
    assert_int_equal(tn_rag_add(store, docs, &o, NULL, &a, &err), TERN_OK);
    assert_true(a.n_unchanged == 1 && a.n_added == 1 && a.n_skipped == 3 && !a.n_unread && a.n_captions == 1);
    assert_int_equal(l.n_calls, 2 + 4);
    assert_non_null(strstr(notices, "3.bin: skipped: the picture is torn"));
    assert_non_null(strstr(notices, "4.bin: skipped: it is binary"));
    assert_non_null(strstr(notices, "5.bin: skipped: it has no text, and the model says nothing of it"));
    assert_string_equal(best("otters"), "1.bin");
    snprintf(path, sizeof path, "%s/1.bin", docs); /* a passage is a page, however long */
    assert_int_equal(tn_rag_passage(store, path, 2, &hit, &err), TERN_OK);
    assert_string_equal(hit->text, "An otter sleeps. It sleeps long.");
    tn_rag_hits_free(&ctx, &hit, 1);
    integrity();
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, fresh, clean)
    const struct CMUnitTest tests[] = {T(found_again),
                                       T(up_to_date),
                                       T(no_question_is_dangerous),
                                       T(pdf),
                                       T(whole_text),
                                       T(places),
                                       T(bounds),
                                       T(out_of_memory),
                                       T(prompt_and_support),
                                       T(rare_words_tell_more),
                                       T(families_of_words),
                                       T(common_pairs_tell_nothing),
                                       T(many_processes),
                                       T(removed_is_gone),
                                       T(captions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
