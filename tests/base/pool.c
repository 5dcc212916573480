/* Does a loop run every item exactly once, whatever the threads do? */
#include "base/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

typedef struct tally {
    atomic_int hits[512];
    atomic_int bad_thread;
    int n_threads;
} tally;

static void hit(void *arg, int i_item, int i_thread) {
    tally *t = arg;
    atomic_fetch_add(&t->hits[i_item], 1);
    if (i_thread < 0 || i_thread >= t->n_threads) atomic_store(&t->bad_thread, 1);
}

static void every_item_once(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    int rounds = getenv("TERN_TEST_QUICK") ? 300 : 3000;
    for (int n_threads = 1; n_threads <= 5; n_threads++) {
        tn_pool *p;
        assert_int_equal(tn_pool_open(&ctx, n_threads, &p, NULL), TERN_OK);
        assert_int_equal(tn_pool_size(p), n_threads);
        for (int round = 0; round < rounds; round++) {
            int n = (round * 37) % 512;
            tally t = {.n_threads = n_threads};
            tn_pool_for(p, n, hit, &t);
            for (int i = 0; i < 512; i++) assert_int_equal(atomic_load(&t.hits[i]), i < n);
            assert_int_equal(atomic_load(&t.bad_thread), 0);
        }
        tn_pool_close(&p);
        assert_null(p);
    }
}

typedef struct stuck {
    atomic_int n_done, gave_up;
    int n_items, i_stuck;
} stuck;

static void wait_for_the_others(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    stuck *s = arg;
    const time_t give_up = time(NULL) + 60;
    while (i_item == s->i_stuck && atomic_load(&s->n_done) < s->n_items - 1 && !atomic_load(&s->gave_up)) {
        sched_yield();
        if (time(NULL) > give_up) atomic_store(&s->gave_up, 1);
    }
    atomic_fetch_add(&s->n_done, 1);
}

/* A thread that is stuck in one item loses the rest of its share to the others. */
static void shares_move(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    for (int n_threads = 2; n_threads <= 4; n_threads++) {
        tn_pool *p;
        assert_int_equal(tn_pool_open(&ctx, n_threads, &p, NULL), TERN_OK);
        for (int i = 0; i < 64; i++) {
            stuck s = {.n_items = 64, .i_stuck = i};
            tn_pool_for(p, 64, wait_for_the_others, &s);
            assert_int_equal(atomic_load(&s.n_done), 64);
            assert_int_equal(atomic_load(&s.gave_up), 0);
        }
        tn_pool_close(&p);
    }
}

static void *loops(void *arg) {
    tn_pool *p = arg;
    for (int round = 0; round < 200; round++) {
        tally t = {.n_threads = tn_pool_size(p)};
        tn_pool_for(p, 64, hit, &t);
        for (int i = 0; i < 64; i++) assert_int_equal(atomic_load(&t.hits[i]), 1);
    }
    return NULL;
}

/* Two callers take turns. */
static void two_callers(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pool *p;
    assert_int_equal(tn_pool_open(&ctx, 3, &p, NULL), TERN_OK);
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, loops, p), 0);
    loops(p);
    pthread_join(other, NULL);
    tn_pool_close(&p);
}

static void absurd_sizes(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pool *p;
    tern_error err;
    assert_int_equal(tn_pool_open(&ctx, 0, &p, &err), TERN_E_INVALID);
    assert_int_equal(tn_pool_open(&ctx, 100000, &p, &err), TERN_E_INVALID);
    assert_null(p);
    tn_pool_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_item_once), cmocka_unit_test(shares_move),
                                       cmocka_unit_test(two_callers), cmocka_unit_test(absurd_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
