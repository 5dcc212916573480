/* tests/documents/scripts.c - are passages found in scripts that write no borders between words? Questions of fixtures/questions.tsv; before
 * store/words.h, 1 of its 40 in Chinese, Japanese, Thai and Korean had its passage first. And is text of other scripts indexed as ever? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "documents/rag.h"
#include "store/words.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX = 128, LANGUAGES = 5 };
static const char *const languages[LANGUAGES] = {"zh", "ja", "th", "ko", "en"};

static tn_ctx ctx;
static char folder[64], database[96];
static tn_store *store;
static struct { char *line, *passage, *question; /* passage "-": none */ } all[MAX];
static int n_all;

static void in_folder(char out[96], const char *name) { snprintf(out, 96, "%s/%s", folder, name); }

static int fill(void **state) {
    (void)state;
    char path[96], *line = NULL;
    size_t cap = 0;
    tern_error err;
    tn_rag_added sum = {0};
    tn_ctx_init(&ctx, NULL);
    strcpy(folder, "/tmp/tern-scripts-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    FILE *f = fopen(TN_SOURCE_DIR "/tests/documents/fixtures/questions.tsv", "r");
    if (!f) return -1;
    in_folder(path, "docs");
    mkdir(path, 0700);
    while (getline(&line, &cap, f) > 0 && n_all < MAX) {
        if (line[0] == '#') continue;
        char *copy = strdup(line);
        copy[strcspn(copy, "\n")] = 0;
        all[n_all].line = copy;
        all[n_all].passage = strchr(copy, '\t') + 1;
        all[n_all].question = strchr(all[n_all].passage, '\t');
        *all[n_all].question++ = 0;
        if (strcmp(all[n_all].passage, "-")) {
            char name[128];
            snprintf(name, sizeof name, "%s/%d.txt", path, n_all);
            FILE *doc = fopen(name, "w");
            if (!doc || fputs(all[n_all].passage, doc) < 0 || fclose(doc)) return -1;
        }
        n_all++;
    }
    free(line);
    fclose(f);
    in_folder(database, "store.db");
    if (tn_store_open(&ctx, database, NULL, &store, &err) != TERN_OK) return -1;
    return tn_rag_add(store, path, NULL, NULL, &sum, &err) == TERN_OK ? 0 : -1;
}

static int clean(void **state) {
    (void)state;
    char command[96];
    tn_store_close(&store);
    for (int i = 0; i < n_all; i++) free(all[i].line);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static void asked_in_their_own_words(void **state) {
    (void)state;
    int first[LANGUAGES] = {0}, five[LANGUAGES] = {0}, fit[LANGUAGES] = {0}, of[LANGUAGES] = {0}, wrong = 0;
    for (int i = 0; i < n_all; i++) {
        int lang = 0;
        while (strncmp(all[i].line, languages[lang], 2)) lang++;
        tn_rag_hit *hits;
        int32_t n;
        tern_error err;
        assert_int_equal(tn_rag_search(store, all[i].question, 5, NULL, &hits, &n, &err), TERN_OK);
        bool none = !strcmp(all[i].passage, "-");
        of[lang] += !none;
        for (int32_t h = 0; h < n; h++) {
            wrong += none && h == 0 && hits[h].fits;
            if (none || strcmp(hits[h].text, all[i].passage)) continue;
            first[lang] += h == 0;
            five[lang]++;
            fit[lang] += hits[h].fits;
        }
        tn_rag_hits_free(&ctx, &hits, n);
    }
    for (int l = 0; l < LANGUAGES; l++)
        printf("%s: %d of %d first, %d among five, %d fit\n", languages[l], first[l], of[l], five[l], fit[l]);
    printf("%d of 6 questions without an answer have a passage that fits\n", wrong);
    for (int l = 0; l < LANGUAGES; l++) {
        assert_true(first[l] >= of[l] - 1);
        assert_int_equal(five[l], of[l]);
        assert_int_equal(fit[l], of[l]);
    }
}

static void spread_is(const char *text, tn_words_for use, const char *want) {
    size_t n;
    char *got = tn_words_spread(text, strlen(text), use, &n);
    assert_non_null(got);
    assert_string_equal(got, want);
    assert_int_equal(n, strlen(want));
    free(got);
}

static void pieces(void **state) {
    (void)state;
    spread_is("Plain text, été, Ωμέγα, слово.", TN_WORDS_INDEX, "Plain text, été, Ωμέγα, слово.");
    spread_is("绿茶水", TN_WORDS_INDEX, "绿茶 茶水 水 ");
    spread_is("绿茶水", TN_WORDS_QUERY, "绿茶 茶水 ");
    spread_is("茶", TN_WORDS_QUERY, "茶 ");
    spread_is("用E4水。", TN_WORDS_INDEX, "用 E4 水 。");
    spread_is("ที่ไหน", TN_WORDS_QUERY, "ทไห ไหน "); /* without marks */
    spread_is("ที่", TN_WORDS_QUERY, "ท ");
    spread_is("データ・表", TN_WORDS_INDEX, "デー ータ タ ・ 表 ");
    spread_is("\xe7\xbb", TN_WORDS_INDEX, "\xe7\xbb"); /* half a character */
}

/* A single character is found wherever it stands. */
static void one_character(void **state) {
    (void)state;
    tn_rag_hit *hits;
    int32_t n;
    tern_error err;
    assert_int_equal(tn_rag_search(store, "猫？", 5, NULL, &hits, &n, &err), TERN_OK);
    assert_int_equal(n, 2);
    tn_rag_hits_free(&ctx, &hits, n);
}

/* What an answer came from is seen in these scripts too. */
static void support(void **state) {
    (void)state;
    tn_rag_hit hits[2] = {{.text = (char *)"公司规定员工每年有十五天带薪年假。"},
                          {.text = (char *)"绿茶应当用八十度的水冲泡，时间不超过两分钟。"}};
    tn_rag_support(hits, 2, "泡绿茶用多少度的水？", "应当用八十度的水。");
    assert_true(hits[1].cited && !hits[0].cited);
}

/* A store of before is indexed anew where it has such text, and goes on to forget what is removed. */
static void older_store(void **state) {
    (void)state;
    char path[96];
    tern_error err;
    tn_rag_hit *hits;
    int32_t n;
    int64_t n_removed;
    sqlite3 *db;
    tn_store *old;
    in_folder(path, "old.db");
    assert_int_equal(tn_store_open(&ctx, path, NULL, &old, &err), TERN_OK);
    tn_store_close(&old);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(
            db,
            "ALTER TABLE passage DROP COLUMN place;"
            "INSERT INTO document VALUES(1, '/a.txt', 1, 1, 1, 1), (2, '/b.txt', 1, 1, 1, 1);"
            "INSERT INTO passage VALUES(1, 1, 1, '泡绿茶要用八十度的水'), (2, 2, 1, 'a plain passage');"
            "INSERT INTO passage_fts(rowid, text) SELECT id, text FROM passage;"
            "PRAGMA user_version = 5",
            NULL, NULL, NULL),
        SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(tn_store_open(&ctx, path, NULL, &old, &err), TERN_OK);
    assert_int_equal(tn_rag_search(old, "绿茶", 5, NULL, &hits, &n, &err), TERN_OK);
    assert_int_equal(n, 1);
    tn_rag_hits_free(&ctx, &hits, n);
    assert_int_equal(tn_rag_remove(old, "/a.txt", &n_removed, &err), TERN_OK);
    assert_int_equal(n_removed, 1);
    assert_int_equal(tn_rag_search(old, "绿茶", 5, NULL, &hits, &n, &err), TERN_OK);
    assert_int_equal(n, 0);
    tn_rag_hits_free(&ctx, &hits, n);
    assert_int_equal(tn_rag_search(old, "plain", 5, NULL, &hits, &n, &err), TERN_OK);
    assert_int_equal(n, 1);
    tn_rag_hits_free(&ctx, &hits, n);
    tn_store_close(&old);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(asked_in_their_own_words), cmocka_unit_test(pieces),
                                       cmocka_unit_test(one_character), cmocka_unit_test(support),
                                       cmocka_unit_test(older_store)};
    return cmocka_run_group_tests(tests, fill, clean);
}
