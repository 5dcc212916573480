/* What a store gives the sessions of later processes: drafts copied from what was said, from the second token on too,
 * and what the model expected at every row. */
#include "session/session.h"
#include "store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sqlite3.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { N_PROMPT = 40, N_ANSWER = 60 };

static char model[FIXTURE_PATH], store[FIXTURE_PATH];

typedef struct answer {
    fixture_heard said;
    uint64_t n_forwards;
    size_t n_recalled; /* numbers of predictions that the session knew before its answer, and after it */
} answer;

/* A process of its own, as far as a session knows: it asks for N_ANSWER tokens. */
static answer ask(const char *path, const char *draft) {
    tern_error err = {0};
    tern_session *s;
    tern_session_options so;
    tern_generate_options o;
    int32_t prompt[N_PROMPT];
    answer out;
    tern_engine *e = fixture_engine(model, NULL);
    tern_session_options_defaults(&so);
    so.n_ctx = 256;
    so.store = path;
    so.draft = draft;
    must(tern_session_open(e, &so, &s, &err), &err);
    fixture_prompt(prompt, N_PROMPT);
    must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
    fixture_hear(&o, N_ANSWER, &out.said);
    o.draft_eager = true; /* nothing depends on what forwards take */
    if (s->drafting.draft) must(tn_storing_learn(s, &err), &err);
    out.n_recalled = s->drafting.draft ? tn_draft_recalled(s->drafting.draft, NULL) : 0;
    must(tern_session_generate(s, &o, NULL, &err), &err);
    tn_draft_stats st;
    tn_session_draft_stats(s, &st);
    out.n_forwards = st.n_steps;
    tern_session_close(&s);
    tern_engine_close(&e);
    return out;
}

static void a_second_process(void **state) {
    (void)state;
    const answer plain = ask(NULL, "none"), alone = ask(NULL, "sam"), first = ask(store, "sam"),
                 second = ask(store, "sam");
    assert_int_equal(plain.said.n, N_ANSWER);
    assert_memory_equal(&plain.said, &first.said, sizeof plain.said);
    assert_memory_equal(&plain.said, &second.said, sizeof plain.said);
    print_message("%d tokens in %d forwards with the text's own drafts, %d with the store's\n", N_ANSWER,
                  (int)alone.n_forwards, (int)second.n_forwards);
    assert_int_equal(alone.n_forwards, first.n_forwards); /* there was nothing in it */
    assert_true(second.n_forwards <= 3);                  /* of up to 32 rows, all of them right */
    assert_true(alone.n_forwards > 2 * second.n_forwards);
}

static void what_was_expected(void **state) {
    (void)state;
    const answer first = ask(store, "sam,calibrated"), second = ask(store, "sam,calibrated");
    assert_true(second.n_recalled > first.n_recalled);
    assert_memory_equal(&first.said, &second.said, sizeof first.said);
}

/* Of two conversations that went on differently from the same words, drafts follow the one that was stored last. */
static void the_newest_first(void **state) {
    (void)state;
    static const int32_t said[2][6] = {{300, 301, 302, 310, 311, 312}, {300, 301, 302, 320, 321, 322}};
    for (int newest = 0; newest < 2; newest++) {
        tern_error err = {0};
        tern_session *s;
        tern_session_options so;
        tern_engine *e = fixture_engine(model, NULL);
        tern_session_options_defaults(&so);
        so.n_ctx = 256;
        so.store = store;
        so.draft = "sam";
        unlink(store);
        must(tern_session_open(e, &so, &s, &err), &err);
        for (int i = 0; i < 2; i++) {
            int64_t id = 0;
            must(tn_store_put(s->storing.store, TN_SEQUENCE_CHAT, said[i == newest], 6, 3, &id, &err), &err);
        }
        must(tern_session_prefill(s, said[0], 3, &err), &err);
        must(tn_storing_learn(s, &err), &err);
        must(tn_draft_sync(s->drafting.draft, said[0], 3, &err), &err);
        tn_tree t;
        tn_draft_plan(s->drafting.draft, TN_DRAFT_SAM, 2, 0, true, &t);
        assert_int_equal(t.n, 2);
        assert_int_equal(t.token[1], newest ? 320 : 310);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

/* What was given and what was said are told apart. */
static void prompts_are_prompts(void **state) {
    (void)state;
    (void)ask(store, "sam");
    sqlite3 *db;
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_open(store, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT n_prompt FROM sequence", -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(q, 0), N_PROMPT);
    assert_int_equal(sqlite3_step(q), SQLITE_DONE);
    sqlite3_finalize(q);
    sqlite3_close(db);
}

static int setup(void **state) {
    (void)state;
    fixture_model(model, "m.gguf", "tiny-qwen2", 7, TN_F32);
    fixture_file(store, "said.db");
    tn_storing_provide(&tn_store_plugin);
    return 0;
}

static int anew(void **state) {
    (void)state;
    unlink(store);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(a_second_process, anew, anew),
                                       cmocka_unit_test_setup_teardown(what_was_expected, anew, anew),
                                       cmocka_unit_test_setup_teardown(the_newest_first, anew, anew),
                                       cmocka_unit_test_setup_teardown(prompts_are_prompts, anew, anew)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
