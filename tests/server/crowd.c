/* Many clients of one queue: texts are what one client alone gets, nobody waits longer than a chunk, who
 * leaves ends its answer, a text that several want is read once. To be run under the thread sanitizer too. */
#include "base/rng.h"
#include "session/session.h"
#include "lab/synth.h"
#include "server/queue.h"
#include "server/refusals.h"
#include "server/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { N_CLIENTS = 8, MOST_EACH = 3, N_CTX = 4096, CHUNK = 256, MAX_REPLY = 1 << 16 };

static char gguf[256];
static int n_each; /* requests of a client */
static tern_engine *e;

static tn_queue *open_queue_of(int32_t n_ctx, int32_t n_sessions, int32_t max_waiting, const char *draft,
                               tn_turns *turns) {
    tn_queue *q;
    tern_error err = {0};
    const tn_queue_options o = {.e = e,
                                .model = "m",
                                .n_ctx = n_ctx,
                                .n_sessions = n_sessions,
                                .max_waiting = max_waiting,
                                .draft = draft,
                                .turns = turns};
    must(tn_queue_open(&o, &q, &err), &err);
    return q;
}

static tn_queue *open_queue(const char *draft) { return open_queue_of(N_CTX, 8, 100, draft, NULL); }

/* Whose turn it is holds the queue's worker between two rounds: what is asked meanwhile is there before the
 * next one, however busy the machine. This lets the worker do at most one round. */
static void let_one_round(tn_turns *t) {
    pthread_mutex_lock(&t->mu);
    uint64_t mine = t->n_asked++;
    t->n_given++;
    pthread_cond_broadcast(&t->next);
    while (t->n_given != mine) pthread_cond_wait(&t->next, &t->mu);
    pthread_mutex_unlock(&t->mu);
}

static void let_it_begin(tn_turns *t, tn_job *j) {
    bool begun = false;
    while (!tn_job_done(j, &begun) && !begun) let_one_round(t);
    assert_true(begun);
}

/* A text of about n tokens that begins in its own way. */
static void words(char *to, size_t n, uint64_t seed) {
    tn_rng rng = {.s = seed};
    for (size_t i = 0; i < n; i++) to[i] = "etaoin shrdlu"[tn_rng_below(&rng, 13)];
    to[n] = 0;
}

/* asked_ns 0: now */
static tn_job *ask_when(tn_queue *q, int priority, uint64_t client, int64_t asked_ns, const char *prompt,
                        const char *more) {
    static const char form[] = "{\"prompt\": \"%s\", %s}";
    size_t cap = strlen(prompt) + strlen(more) + sizeof form;
    char *body = malloc(cap);
    tn_request r;
    tn_job *j;
    tern_error err = {0};
    int n = snprintf(body, cap, form, prompt, more);
    must(tn_request_read(TN_API_COMPLETIONS, body, (size_t)n, &r, &err), &err);
    free(body);
    r.client = client;
    r.priority = priority;
    r.asked_ns = asked_ns;
    must(tn_queue_put(q, &r, &j, &err), &err);
    return j;
}

static tn_job *ask_at(tn_queue *q, int priority, uint64_t client, const char *prompt, const char *more) {
    return ask_when(q, priority, client, 0, prompt, more);
}

static tn_job *ask_as(tn_queue *q, uint64_t client, const char *prompt, const char *more) {
    return ask_when(q, TN_ORDINARY, client, 0, prompt, more);
}

static tn_job *ask(tn_queue *q, const char *prompt, const char *more) { return ask_as(q, 0, prompt, more); }

/* The text of the reply, which it leaves. */
static void reply(tn_job *j, char out[MAX_REPLY]) {
    bool begun;
    while (!tn_job_done(j, &begun)) tn_job_wait(j, 1000);
    assert_int_equal(j->err.code, TERN_OK);
    snprintf(out, MAX_REPLY, "%s", j->a.said.text.p ? j->a.said.text.p : "");
    tn_job_leave(j);
}

/* ---- the same texts ------------------------------------------------------------------------------------ */

static const char *const manners[] = {
    "\"max_tokens\": 30, \"temperature\": 0",
    "\"max_tokens\": 40, \"temperature\": 1, \"seed\": 5",
    "\"max_tokens\": 25, \"temperature\": 1, \"seed\": 6, \"grammar\": \"root ::= [a-z ]{30}\"",
    "\"max_tokens\": 12, \"temperature\": 0.7, \"seed\": 7, \"logprobs\": 0",
};

typedef struct client {
    tn_queue *q;
    int number;
    char (*got)[MAX_REPLY]; /* [n_each] */
    bool leaves;
} client;

static void prompt_of(int number, int k, char *to) {
    size_t common = 700; /* a system prompt that all share */
    words(to, common, 1);
    words(to + common, 40 + (size_t)(number * 97 + k * 31) % 900, (uint64_t)(number * 10 + k + 2));
}

static void *be_client(void *arg) {
    client *c = arg;
    char prompt[2048];
    for (int k = 0; k < n_each; k++) {
        prompt_of(c->number, k, prompt);
        if (c->leaves) { /* some at once, some when it has begun, some in between */
            tn_job *gone = ask(c->q, prompt, "\"max_tokens\": 500, \"stream\": true");
            char part[256];
            bool begun = false, done = false;
            for (int i = 0; i < (c->number + k) % 3 && !done; i++) {
                while (!tn_job_done(gone, &begun) && !begun) tn_job_wait(gone, 100);
                tn_job_take(gone, part, sizeof part, &done);
            }
            tn_job_cancel(gone);
            tn_job_leave(gone);
        }
        const int priority = (c->number + k) % TN_PRIORITIES + TN_BACKGROUND;
        reply(ask_at(c->q, priority, 0, prompt, manners[(c->number + k) % 4]), c->got[k]);
    }
    return NULL;
}

static void crowd(const char *draft) {
    static char want[N_CLIENTS][MOST_EACH][MAX_REPLY], got[N_CLIENTS][MOST_EACH][MAX_REPLY];
    client c[N_CLIENTS];
    pthread_t t[N_CLIENTS];
    for (int i = 0; i < N_CLIENTS; i++) {
        for (int k = 0; k < n_each; k++) { /* alone, with nothing known */
            char prompt[2048];
            tn_queue *q = open_queue(draft);
            prompt_of(i, k, prompt);
            reply(ask(q, prompt, manners[(i + k) % 4]), want[i][k]);
            tn_queue_close(&q);
        }
    }
    tn_queue *q = open_queue(draft);
    for (int i = 0; i < N_CLIENTS; i++) {
        c[i] = (client){q, i, got[i], i % 2 != 0};
        assert_int_equal(pthread_create(&t[i], NULL, be_client, &c[i]), 0);
    }
    for (int i = 0; i < N_CLIENTS; i++) pthread_join(t[i], NULL);
    tn_queue_counts n = tn_queue_count(q);
    tn_queue_close(&q);
    for (int i = 0; i < N_CLIENTS; i++)
        for (int k = 0; k < n_each; k++) assert_string_equal(got[i][k], want[i][k]);
    print_message("%llu prompt tokens, %llu known; at most %d answers in a step\n",
                  (unsigned long long)n.prompt_tokens, (unsigned long long)n.cached_tokens, n.most_together);
    /* An answer that nobody waits for may end before its client has left. */
    assert_in_range(n.n_done, N_CLIENTS * n_each, (N_CLIENTS + N_CLIENTS / 2) * n_each);
    assert_int_equal(n.n_failed, 0);
    assert_true(n.most_together >= 2);
}

static void plain(void **state) {
    (void)state;
    crowd("none");
}

static void drafted(void **state) {
    (void)state;
    crowd("all");
}

/* ---- turns -------------------------------------------------------------------------------------------- */

static size_t events(tn_job *j) {
    static char part[MAX_REPLY];
    size_t n_events = 0, n;
    bool done;
    do {
        n = tn_job_take(j, part, sizeof part - 1, &done);
        part[n] = 0;
        for (char *p = part; (p = strstr(p, "data: ")); p++) n_events++;
    } while (n);
    return n_events;
}

/* While a long prompt is read an answer that runs gets a token with every chunk at least; a second prompt
 * that comes meanwhile has its chunks in between. */
static void nobody_waits(void **state) {
    (void)state;
    static char text[N_CTX];
    tn_turns turns;
    tn_turns_init(&turns);
    tn_queue *q = open_queue_of(N_CTX, 8, 100, "none", &turns);
    bool begun = false;
    tn_turns_take(&turns, TN_BACKGROUND);
    tn_job *a =
        ask(q, "It runs.", "\"max_tokens\": 1500, \"stream\": true, \"grammar\": \"root ::= [a-z ]{4000}\"");
    let_it_begin(&turns, a);
    words(text, 12 * CHUNK, 77);
    (void)events(a);
    tn_job *b = ask(q, text, "\"max_tokens\": 1");
    words(text, CHUNK / 2, 78);
    tn_job *c = ask(q, text, "\"max_tokens\": 1");
    while (!tn_job_done(c, &begun)) let_one_round(&turns);
    tn_queue_counts n = tn_queue_count(q);
    bool b_done = tn_job_done(b, &begun);
    tn_turns_give(&turns);
    while (!tn_job_done(b, &begun)) tn_job_wait(b, 1000);
    size_t between = events(a);
    assert_true(b->a.said.n_ids > 10 * CHUNK); /* letters are tokens of this model, nearly */
    assert_false(b_done);                      /* the short prompt did not wait for the long one */
    assert_true(n.n_chunks <= 6);
    n = tn_queue_count(q);
    assert_true(between + 1 >= b->a.said.n_ids / CHUNK);
    assert_int_equal(n.most_chunks_apart, 1);
    tn_job_cancel(a);
    tn_job_leave(a);
    tn_job_leave(b);
    tn_job_leave(c);
    tn_queue_close(&q);
    tn_turns_destroy(&turns);
}

/* ---- what goes first ---------------------------------------------------------------------------------- */

/* The worker has given out the seats and waits for its turn: who asks now is not seated in the next round. */
static void let_it_wait(tn_turns *t, uint64_t n_asked) {
    for (uint64_t n = 0; n < n_asked;) {
        pthread_mutex_lock(&t->mu);
        n = t->n_asked;
        pthread_mutex_unlock(&t->mu);
        sched_yield();
    }
}

/* A prompt that goes first is read in the middle of another's chunk; one of the same priority is not. */
static void in_the_middle(void **state) {
    (void)state;
    static char text[N_CTX];
    for (int priority = TN_BACKGROUND; priority <= TN_INTERACTIVE; priority++) {
        for (int of_long = TN_BACKGROUND; of_long <= TN_INTERACTIVE; of_long++) {
            tn_turns turns;
            bool begun;
            tn_turns_init(&turns);
            tn_queue *q = open_queue_of(N_CTX, 8, 100, "none", &turns);
            tn_turns_take(&turns, TN_BACKGROUND);
            words(text, 6 * CHUNK, 91);
            tn_job *b = ask_at(q, of_long, 1, text, "\"max_tokens\": 1");
            let_it_wait(&turns, 2);
            tn_job *first = ask_at(q, priority, 2, "Now.", "\"max_tokens\": 1");
            let_one_round(&turns);
            const bool went = tn_job_done(first, &begun);
            tn_queue_counts n = tn_queue_count(q);
            assert_int_equal(went, priority > of_long);
            assert_int_equal(n.n_pauses, priority > of_long);
            assert_int_equal(n.n_chunks, 1 + (priority > of_long));
            assert_false(tn_job_done(b, &begun));
            tn_turns_give(&turns);
            char got[MAX_REPLY];
            reply(first, got);
            reply(b, got);
            tn_queue_close(&q);
            tn_turns_destroy(&turns);
        }
    }
}

typedef struct embedding {
    tn_queue *q;
    const char *text;
    float *v;
} embedding;

static bool stays(void *user) { return (void)user, false; }

static void *embed(void *arg) {
    embedding *m = arg;
    size_t n = 0;
    tern_error err = {0};
    json_t *text = json_string(m->text);
    tern_model_info info;
    float *v;
    must(tn_queue_embed(m->q, text, NULL, TN_POOL_UNSAID, 1, TN_BACKGROUND, stays, NULL, &v, &n, &err), &err);
    tern_engine_info(e, &info);
    memcpy(m->v, v, (size_t)info.n_embd * sizeof *v);
    free(v);
    json_decref(text);
    return NULL;
}

/* An ordinary answer is begun in the middle of an embedding, whose vector is that which it is alone. */
static void beside_embeddings(void **state) {
    (void)state;
    static char text[N_CTX];
    tern_model_info info;
    tn_turns turns;
    pthread_t t;
    bool begun;
    char got[MAX_REPLY];
    tern_engine_info(e, &info);
    const size_t n = (size_t)info.n_embd;
    float *want = calloc(2 * n, sizeof *want);
    words(text, 2 * CHUNK, 92);
    tn_turns_init(&turns);
    tn_queue *q = open_queue_of(N_CTX, 8, 100, "none", &turns);
    embedding alone = {q, text, want}, beside = {q, text, want + n};
    (void)embed(&alone);
    tn_turns_take(&turns, TN_BACKGROUND);
    const uint64_t n_asked = turns.n_asked;
    assert_int_equal(pthread_create(&t, NULL, embed, &beside), 0);
    let_it_wait(&turns, n_asked + 1);
    tn_job *first = ask_at(q, TN_ORDINARY, 2, "Now.", "\"max_tokens\": 1");
    let_one_round(&turns);
    assert_true(tn_job_done(first, &begun));
    assert_int_equal(tn_queue_count(q).n_pauses, 1);
    tn_turns_give(&turns);
    pthread_join(t, NULL);
    assert_memory_equal(want, want + n, n * sizeof *want);
    reply(first, got);
    tn_queue_close(&q);
    tn_turns_destroy(&turns);
    free(want);
}

/* Background work leaves a seat to others, and is passed over four times in a row, not more. */
static void nobody_starves(void **state) {
    (void)state;
    static char text[N_CTX];
    tn_turns turns;
    bool begun;
    tn_turns_init(&turns);
    tn_queue *q = open_queue_of(N_CTX, 3, 100, "none", &turns);
    tn_turns_take(&turns, TN_BACKGROUND);
    tn_job *little[3], *much;
    char got[MAX_REPLY];
    words(text, 12 * CHUNK, 94);
    much = ask_at(q, TN_ORDINARY, 2, text, "\"max_tokens\": 1");
    let_it_wait(&turns, 2);
    for (int i = 0; i < 3; i++) {
        words(text, CHUNK / 2, 95 + (uint64_t)i);
        little[i] = ask_at(q, TN_BACKGROUND, 1, text, "\"max_tokens\": 1");
    }
    for (int waiting = 3; !tn_job_done(little[0], &begun);) {
        assert_in_range(waiting, 1, 3); /* of three seats two are for background work */
        let_one_round(&turns);
        waiting = tn_queue_count(q).waiting;
    }
    /* one alone, four that go first, its own; its only token may come with a further one */
    assert_in_range(tn_queue_count(q).n_chunks, 6, 7);
    assert_false(tn_job_done(much, &begun));
    tn_turns_give(&turns);
    for (int i = 0; i < 3; i++) reply(little[i], got);
    reply(much, got);
    tn_queue_close(&q);
    tn_turns_destroy(&turns);
}

/* Eight that come at once with one long beginning: it is read once. */
static void read_once(void **state) {
    (void)state;
    static char text[2 * N_CTX];
    enum { COMMON = 8 * CHUNK };
    tn_queue *q = open_queue("none");
    tn_job *hold = ask(q, "Wait.", "\"max_tokens\": 1"), *j[N_CLIENTS];
    for (int i = 0; i < N_CLIENTS; i++) {
        words(text, COMMON, 5);
        words(text + COMMON, 60, (uint64_t)(100 + i));
        j[i] = ask(q, text, "\"max_tokens\": 2");
    }
    size_t n_new = 0;
    for (int i = 0; i < N_CLIENTS; i++) {
        bool begun;
        while (!tn_job_done(j[i], &begun)) tn_job_wait(j[i], 1000);
        assert_int_equal(j[i]->err.code, TERN_OK);
        n_new += j[i]->a.said.n_ids - j[i]->a.said.n_cached;
        assert_true(j[i]->a.said.n_ids > COMMON * 3 / 4);
    }
    assert_true(n_new < j[0]->a.said.n_ids + N_CLIENTS * 120);
    for (int i = 0; i < N_CLIENTS; i++) tn_job_leave(j[i]);
    tn_job_leave(hold);
    tn_queue_close(&q);
}

/* Several answers to one prompt, as `n` asks for them: it is read once, its logits are for all, and they go forward together
 * from the first token to the last, also where sessions hold it with other answers. Each is what it is alone. */
static void one_prompt_for_all(void **state) {
    (void)state;
    enum { ANSWERS = 4, TOKENS = 12 };
    static char text[CHUNK], want[ANSWERS][MAX_REPLY], got[MAX_REPLY];
    char more[ANSWERS][100];
    tn_turns turns;
    bool begun;
    words(text, sizeof text - 1, 7);
    for (int i = 0; i < ANSWERS; i++) {
        snprintf(more[i], sizeof more[i],
                 "\"max_tokens\": %d, \"temperature\": 1, \"seed\": %d, \"ignore_eos\": true", TOKENS, i);
        tn_queue *alone = open_queue("none");
        reply(ask(alone, text, more[i]), want[i]);
        tn_queue_close(&alone);
    }
    tn_turns_init(&turns);
    tn_queue *q = open_queue_of(N_CTX, 8, 100, "none", &turns);
    for (int round = 0; round < 3; round++) {
        tn_turns_take(&turns, TN_ORDINARY); /* all are there before the first begins */
        const tn_queue_counts before = tn_queue_count(q);
        tn_job *j[ANSWERS];
        size_t n_read = 0;
        for (int i = 0; i < ANSWERS; i++) j[i] = ask(q, text, more[i]);
        tn_turns_give(&turns);
        for (int i = 0; i < ANSWERS; i++) {
            while (!tn_job_done(j[i], &begun)) tn_job_wait(j[i], 1000);
            n_read += j[i]->a.said.n_ids - j[i]->a.said.n_cached;
            if (i == ANSWERS - 1) assert_int_equal(n_read, round ? 1 : j[i]->a.said.n_ids);
        }
        for (int i = 0; i < ANSWERS; i++) {
            reply(j[i], got);
            assert_string_equal(got, want[i]);
        }
        assert_int_equal(tn_queue_count(q).n_steps - before.n_steps, TOKENS - 1);
        assert_int_equal(tn_queue_count(q).most_together, ANSWERS);
    }
    tn_queue_close(&q);
    tn_turns_destroy(&turns);
}

/* Answers to one prompt, again and again, go to sessions that have it, and leave another conversation where it is. */
static void leaves_the_others(void **state) {
    (void)state;
    static char text[CHUNK], other[CHUNK], got[MAX_REPLY];
    tn_turns turns;
    bool begun;
    words(text, sizeof text - 1, 8);
    words(other, sizeof other - 1, 9);
    tn_turns_init(&turns);
    tn_queue *q = open_queue_of(N_CTX, 3, 100, "none", &turns);
    reply(ask(q, other, "\"max_tokens\": 2"), got);
    for (int round = 0; round < 3; round++) {
        tn_turns_take(&turns, TN_ORDINARY);
        tn_job *a = ask(q, text, "\"max_tokens\": 8, \"seed\": 1"),
               *b = ask(q, text, "\"max_tokens\": 8, \"seed\": 2");
        tn_turns_give(&turns);
        reply(a, got);
        reply(b, got);
    }
    tn_job *j = ask(q, other, "\"max_tokens\": 2");
    while (!tn_job_done(j, &begun)) tn_job_wait(j, 1000);
    assert_int_equal(j->a.said.n_ids - j->a.said.n_cached, 1);
    reply(j, got);
    tn_queue_close(&q);
    tn_turns_destroy(&turns);
}

/* A client with ten requests, and one with a single request that comes last: it is not the last to be
 * answered, but the second, as there is one seat and the first was taken when it came. */
/* Of several conversations that begin alike, a turn goes to the one that it continues. */
static void goes_on_where_it_was(void **state) {
    (void)state;
    static char text[N_CTX];
    enum { ALIKE = 40, OWN = 600, N = 3 };
    tn_queue *q = open_queue("none");
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < N; i++) {
            bool begun;
            words(text, ALIKE, 9);
            words(text + ALIKE, OWN, (uint64_t)(200 + i));
            if (turn) words(text + ALIKE + OWN, 60, (uint64_t)(300 + i));
            tn_job *j = ask(q, text, "\"max_tokens\": 2");
            while (!tn_job_done(j, &begun)) tn_job_wait(j, 1000);
            assert_int_equal(j->err.code, TERN_OK);
            if (turn) assert_true(j->a.said.n_ids - j->a.said.n_cached < 60 + 20);
            tn_job_leave(j);
        }
    }
    tn_queue_close(&q);
}

static void shares(void **state) {
    (void)state;
    enum { MANY = 10 };
    tn_turns turns;
    tn_turns_init(&turns);
    tn_queue *q = open_queue_of(512, 1, 100, "none", &turns);
    tn_turns_take(&turns, TN_BACKGROUND);
    tn_job *hold = ask_as(q, 1, "It runs.",
                          "\"max_tokens\": 400, \"stream\": true, \"grammar\": \"root ::= [a-z ]{900}\""),
           *many[MANY], *one;
    bool begun = false;
    let_it_begin(&turns, hold);
    for (int i = 0; i < MANY; i++) many[i] = ask_as(q, 1, "A story.", "\"max_tokens\": 3");
    one = ask_as(q, 2, "A tale.", "\"max_tokens\": 3");
    tn_job_cancel(hold);
    tn_turns_give(&turns);
    while (!tn_job_done(one, &begun)) tn_job_wait(one, 1000);
    print_message("a client with one request beside one with %d: %d of those were begun before it\n", MANY,
                  (int)one->seated - 2);
    assert_int_equal(one->seated, 2);
    for (int i = 0; i < MANY; i++) {
        while (!tn_job_done(many[i], &begun)) tn_job_wait(many[i], 1000);
        assert_int_equal(many[i]->err.code, TERN_OK);
        assert_int_equal(many[i]->seated, 3 + i); /* among his own they are answered as they came */
        tn_job_leave(many[i]);
    }
    tn_job_leave(hold);
    tn_job_leave(one);
    tn_queue_close(&q);
    tn_turns_destroy(&turns);
}

/* Of one client's requests a short one passes long ones, by ten seconds at most; each client's wait for themselves. */
static void short_ones_first(void **state) {
    (void)state;
    tn_turns turns;
    tn_turns_init(&turns);
    tn_queue *q = open_queue_of(512, 1, 100, "none", &turns);
    tn_turns_take(&turns, TN_BACKGROUND);
    tn_job *hold = ask_as(q, 2, "It runs.",
                          "\"max_tokens\": 400, \"stream\": true, \"grammar\": \"root ::= [a-z ]{900}\"");
    bool begun = false;
    let_it_begin(&turns, hold);
    static const struct {
        int s, max_tokens, place; /* when it came; when it is answered */
    } asked[] = {{1, 9, 2}, {1, -1, 4}, {10, 4, 3}, {12, 4, 5}, {12, 200, 6}};
    enum { N = sizeof asked / sizeof *asked };
    tn_job *j[N];
    for (int i = 0; i < N; i++) {
        char more[100];
        snprintf(more, sizeof more, "\"max_tokens\": %d, \"grammar\": \"root ::= [a-z]\"",
                 asked[i].max_tokens);
        j[i] = ask_when(q, TN_ORDINARY, 1, asked[i].s * 1000000000ll, "A story.", more);
    }
    tn_job_cancel(hold);
    tn_turns_give(&turns);
    for (int i = 0; i < N; i++) {
        while (!tn_job_done(j[i], &begun)) tn_job_wait(j[i], 1000);
        assert_int_equal(j[i]->err.code, TERN_OK);
        assert_int_equal(j[i]->seated, asked[i].place);
        tn_job_leave(j[i]);
    }
    tn_job_leave(hold);
    tn_queue_close(&q);
    tn_turns_destroy(&turns);
}

/* An answer that nobody reads goes on while nobody waits, and makes room for who does. */
static void makes_room(void **state) {
    (void)state;
    for (int waits = 0; waits < 2; waits++) {
        tn_turns turns;
        tn_turns_init(&turns);
        tn_queue *q = open_queue_of(2048, 1, 100, "none", &turns);
        bool begun = false;
        tn_turns_take(&turns, TN_BACKGROUND);
        tn_job *unread =
                   ask_as(q, 1, "It runs.",
                          "\"max_tokens\": 1500, \"stream\": true, \"grammar\": \"root ::= [a-z ]{4000}\""),
               *other = NULL;
        let_it_begin(&turns, unread);
        if (waits) other = ask_as(q, 1, "A tale.", "\"max_tokens\": 3");
        tn_turns_give(&turns);
        while (!tn_job_done(unread, &begun)) tn_job_wait(unread, 1000);
        assert_true(unread->out.n > TN_UNREAD_PRESSED_BYTES);
        assert_int_equal(unread->err.code, waits ? TERN_E_LIMIT : TERN_OK);
        if (waits) {
            assert_non_null(strstr(unread->err.message, "does not read"));
            while (!tn_job_done(other, &begun)) tn_job_wait(other, 1000);
            assert_int_equal(other->err.code, TERN_OK);
            tn_job_leave(other);
        }
        tn_job_leave(unread);
        tn_queue_close(&q);
        tn_turns_destroy(&turns);
    }
}

/* Who has filled the queue is refused; another client may wait once more; nobody may beyond twice its
 * size. */
static void fills_the_queue(void **state) {
    (void)state;
    enum { ROOM = 3 };
    tern_error err = {0};
    tn_turns turns;
    tn_turns_init(&turns);
    tn_queue *q = open_queue_of(512, 1, ROOM, "none", &turns);
    tn_turns_take(&turns, TN_BACKGROUND);
    tn_job *hold = ask_as(q, 1, "It runs.",
                          "\"max_tokens\": 400, \"stream\": true, \"grammar\": \"root ::= [a-z ]{900}\""),
           *in[2 * ROOM], *none;
    bool begun = false;
    int n = 0;
    let_it_begin(&turns, hold);
    for (uint64_t client = 1; n < 2 * ROOM; client++) {
        do in[n++] = ask_as(q, client, "A story.", "\"max_tokens\": 2");
        while (n < ROOM);
        tn_request r;
        must(tn_request_read(TN_API_COMPLETIONS, "{\"prompt\": \"x\"}", 15, &r, &err), &err);
        r.client = client; /* it waits already */
        assert_int_equal(tn_queue_put(q, &r, &none, &err), TN_E_BUSY);
    }
    tn_request r;
    must(tn_request_read(TN_API_COMPLETIONS, "{\"prompt\": \"x\"}", 15, &r, &err), &err);
    r.client = 99;
    assert_int_equal(tn_queue_put(q, &r, &none, &err), TN_E_BUSY);
    tn_job_cancel(hold);
    tn_turns_give(&turns);
    tn_job_leave(hold);
    for (int i = 0; i < n; i++) {
        while (!tn_job_done(in[i], &begun)) tn_job_wait(in[i], 1000);
        assert_int_equal(in[i]->err.code, TERN_OK);
        tn_job_leave(in[i]);
    }
    tn_queue_close(&q);
    tn_turns_destroy(&turns);
}

/* ---- without memory ------------------------------------------------------------------------------------ */

static atomic_long left; /* allocations of jansson's before the one that fails; negative: none does */
static pthread_t asker;  /* whose own never fail */
static void *scarce_json(size_t n) {
    bool counts = !pthread_equal(asker, pthread_self());
    return counts && atomic_fetch_sub(&left, 1) == 0 ? NULL : malloc(n);
}

/* The stream of an answer, while an allocation fails: it ends with a reason or with an error, or it is known that it does
 * not, so that its connection says so. */
static void says_how_it_ended(void **state) {
    (void)state;
    tn_queue *q = open_queue("none");
    char *out = malloc(MAX_REPLY);
    int n_told = 0, n_untold = 0;
    bool failed = true;
    asker = pthread_self();
    assert_non_null(out);
    for (long at = 0; failed; at++) {
        size_t n = 0;
        bool done = false;
        atomic_store(&left, at);
        json_set_alloc_funcs(scarce_json, free);
        tn_job *j = ask(q, "hello the world", "\"max_tokens\": 3, \"temperature\": 0, \"stream\": true");
        while (!done) {
            tn_job_wait(j, 1000);
            n += tn_job_take(j, out + n, MAX_REPLY - 1 - n, &done);
        }
        failed = atomic_load(&left) < 0;
        json_set_alloc_funcs(malloc, free);
        out[n] = 0;
        bool reason = strstr(out, "\"finish_reason\":\"length\"") != NULL,
             error = strstr(out, "\"error\"") != NULL;
        if (j->err.code == TERN_OK) assert_true(reason && !error);
        else if (j->a.begun) assert_true(!reason && j->a.told == error);
        n_told += j->err.code != TERN_OK && error;
        n_untold += j->err.code != TERN_OK && j->a.begun && !error;
        tn_job_leave(j);
    }
    print_message("%d failures are told by an event, %d are left to the connection\n", n_told, n_untold);
    assert_true(n_told > 5 && n_untold > 2);
    free(out);
    tn_queue_close(&q);
}

static int setup(void **state) {
    (void)state;
    n_each = getenv("TERN_TEST_QUICK") ? 1 : MOST_EACH;
    tn_ctx ctx;
    tn_pool *pool;
    tern_options o;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    snprintf(gguf, sizeof gguf, TN_BINARY_DIR "/crowd-%ld.gguf", (long)getpid());
    tern_status st = tn_pool_open(&ctx, 2, &pool, &err);
    if (st == TERN_OK) st = tn_synth(&ctx, pool, "tiny-gemma3", gguf, 5, TN_F16, &err);
    tn_pool_close(&pool);
    tn_options_defaults(&o);
    o.n_threads = 2;
    if (st == TERN_OK) st = tern_engine_open(gguf, &o, &e, &err);
    if (st != TERN_OK) print_message("%s\n", err.message);
    return st == TERN_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    tern_engine_close(&e);
    unlink(gguf);
    return 0;
}

/* While somebody else's step holds the queue's worker, a grammar is compiled all the same: what is wrong with one is
 * told at once, and the worker has nothing to compile when the turn comes. */
static void compiles_beside(void **state) {
    (void)state;
    static const char *const bad[] = {"\"grammar\": \"root ::= (\"", "\"json_schema\": {\"type\": \"wish\"}"};
    static char got[MAX_REPLY], want[MAX_REPLY];
    const char *more = "\"max_tokens\": 12, \"temperature\": 0, \"grammar\": \"root ::= [a-c ]{30}\"";
    tn_turns turns;
    tn_turns_init(&turns);
    tn_queue *q = open_queue_of(N_CTX, 8, 100, "none", &turns);
    tn_turns_take(&turns, TN_BACKGROUND);
    for (int i = 0; i < 2; i++) {
        tn_request r;
        tn_job *j;
        tern_error err = {0};
        char body[200];
        int n = snprintf(body, sizeof body, "{\"prompt\": \"x\", \"max_tokens\": 3, %s}", bad[i]);
        must(tn_request_read(TN_API_COMPLETIONS, body, (size_t)n, &r, &err), &err);
        assert_int_not_equal(tn_queue_put(q, &r, &j, &err), TERN_OK);
    }
    tn_job *j = ask(q, "It runs.", more);
    assert_non_null(j->grammar);
    tn_turns_give(&turns);
    reply(j, want);
    reply(ask(q, "It runs.", more), got); /* with the grammar that the session kept */
    assert_string_equal(got, want);
    tn_queue_close(&q);
    tn_turns_destroy(&turns);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain),
                                       cmocka_unit_test(compiles_beside),
                                       cmocka_unit_test(drafted),
                                       cmocka_unit_test(nobody_waits),
                                       cmocka_unit_test(in_the_middle),
                                       cmocka_unit_test(beside_embeddings),
                                       cmocka_unit_test(nobody_starves),
                                       cmocka_unit_test(read_once),
                                       cmocka_unit_test(one_prompt_for_all),
                                       cmocka_unit_test(leaves_the_others),
                                       cmocka_unit_test(goes_on_where_it_was),
                                       cmocka_unit_test(shares),
                                       cmocka_unit_test(short_ones_first),
                                       cmocka_unit_test(makes_room),
                                       cmocka_unit_test(fills_the_queue),
                                       cmocka_unit_test(says_how_it_ended)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
