/* Does packing that was killed go on where it was: at any step, with whatever was left, is the package the same
 * as one made in one go, and is what is left of another run or damaged noticed? */
#include "quant/pack.h"
#include "quant/partial.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

typedef struct steps {
    int n, last; /* progress so far; where it ends (-1: never) */
    bool kill;   /* by a signal that nobody can catch, else by asking */
} steps;

static bool step(void *user, const char *stage, double fraction) {
    (void)fraction;
    steps *s = user;
    /* The model writes the same again: nothing of that is kept. */
    if (!strcmp(stage, "sample") || !strcmp(stage, "load")) return true;
    if (s->n++ != s->last) return true;
    if (s->kill) raise(SIGKILL);
    return false;
}

static char model[FIXTURE_PATH], package[FIXTURE_PATH], partial[FIXTURE_PATH + 8];

static bool output_int8; /* of the next */

static tern_status pack(const char *from, const char *to, double bits, steps *s, tn_pack_report *r) {
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.progress = step;
    hooks.user = s;
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.bits = bits;
    o.calib_tokens = 256;
    o.calib_window = 64;
    o.n_threads = 2;
    o.output_int8 = output_int8;
    tern_error err = {0};
    return tn_pack(&ctx, from, to, &o, r, &err);
}

/* In a process of its own, which is killed at a step. Returns whether it was. */
static bool pack_killed(double bits, int last) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        steps s = {.last = last, .kill = true};
        _exit(pack(model, package, bits, &s, NULL) == TERN_OK ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) return true;
    assert_int_equal(WEXITSTATUS(status), 0);
    return false;
}

/* Made now, whatever is there of it: the same as made in one go. Returns the layers that were there. */
static int finish(double bits, const char *whole, size_t n_whole) {
    steps s = {.last = -1};
    tn_pack_report r;
    assert_int_equal(pack(model, package, bits, &s, &r), TERN_OK);
    size_t n;
    char *text = fixture_read(package, &n);
    assert_int_equal(n, n_whole);
    assert_memory_equal(text, whole, n);
    free(text);
    assert_int_equal(access(partial, F_OK), -1);
    unlink(package);
    return r.n_resumed;
}

/* Progress of a whole run comes n_steps times. */
static int n_steps;

static char *in_one_go(double bits, size_t *n) {
    steps s = {.last = -1};
    char path[FIXTURE_PATH];
    fixture_file(path, "whole.tern");
    assert_int_equal(pack(model, path, bits, &s, NULL), TERN_OK);
    n_steps = s.n;
    return fixture_read(path, n);
}

static void killed_at_every_step(void **state) {
    (void)state;
    static const char *const archs[] = {"tiny-llama", "tiny-gemma", "tiny-qwen3moe", "tiny-qwen35"};
    const int each = fixture_level(9, 3, 1);
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        fixture_model(model, "model.gguf", archs[i], 7, 1);
        size_t n;
        char *whole = in_one_go(0, &n);
        int most = 0;
        for (int last = n_steps - 1; last >= 0; last -= i ? 3 * each : each) {
            struct stat sb;
            assert_true(pack_killed(0, last));
            assert_int_equal(stat(partial, &sb), 0);
            assert_int_equal(sb.st_mode & 0777, 0600);
            int there = finish(0, whole, n);
            most = there > most ? there : most;
        }
        assert_true(most > 1);
        free(whole);
        /* Twice, both times while the package is written. */
        whole = in_one_go(5, &n);
        assert_true(pack_killed(5, n_steps - 1));
        assert_true(pack_killed(5, 1));
        assert_true(finish(5, whole, n) > 0);
        free(whole);
    }
}

/* Damage anywhere costs time at most. */
static void damaged(void **state) {
    (void)state;
    fixture_llama(model, "model.gguf", 3);
    size_t n, n_left;
    char *whole = in_one_go(5, &n);
    assert_true(pack_killed(5, n_steps - 1));
    char *left = fixture_read(partial, &n_left);
    assert_true(finish(5, whole, n) > 1);
    for (size_t i = 0; i < 24; i += fixture_level(9, 3, 1)) {
        size_t at = i < 8 ? i * 16 : (n_left - 1) * (i - 7) / 16;
        left[at] ^= 1;
        fixture_write(partial, left, n_left);
        left[at] ^= 1;
        if (at >= 8) (void)finish(5, whole, n); /* before, it is a file of another kind */
        fixture_write(partial, left, at);
        if (at >= 8 || !at) (void)finish(5, whole, n);
        unlink(partial);
    }
    free(left);
    free(whole);
}

static void of_another_run(void **state) {
    (void)state;
    fixture_llama(model, "model.gguf", 3);
    size_t n;
    char *whole = in_one_go(4, &n);
    assert_true(pack_killed(5, 4));
    assert_int_equal(access(partial, F_OK), 0);
    assert_int_equal(finish(4, whole, n), 0);
    free(whole);
    whole = in_one_go(4, &n);
    output_int8 = true; /* another option */
    assert_true(pack_killed(4, 4));
    output_int8 = false;
    assert_int_equal(finish(4, whole, n), 0);
    assert_true(pack_killed(4, 4));
    fixture_llama(model, "model.gguf", 4); /* another model under its name */
    free(whole);
    whole = in_one_go(4, &n);
    assert_int_equal(finish(4, whole, n), 0);
    free(whole);
}

/* Every byte of the options counts but for those of paths (an encoder is written at the end) and of the threads, and those between fields: a new field has
 * its part in the identity, or this fails. */
static void every_option(void **state) {
    (void)state;
    tn_pack_options o;
    memset(&o, 0, sizeof o);
    const uint64_t none = tn_pack_options_identity(&o);
    const size_t left_out = sizeof o.calib_path + sizeof o.mmproj + sizeof o.n_threads,
                 between = 3 * 3 + 2 + 4 * 4;
    size_t n = 0;
    for (size_t i = 0; i < sizeof o; i++) {
        ((uint8_t *)&o)[i] = 1;
        const bool counts = tn_pack_options_identity(&o) != none;
        ((uint8_t *)&o)[i] = 0;
        n += !counts;
        if (counts)
            assert_true(i < offsetof(tn_pack_options, n_threads) ||
                        i >= offsetof(tn_pack_options, n_threads) + 4);
    }
    assert_int_equal(n, left_out + between);
}

/* Who stops it goes on later; what failed leaves nothing; what is no such file stays. */
static void what_stays(void **state) {
    (void)state;
    fixture_llama(model, "model.gguf", 3);
    steps s = {.last = 4};
    assert_int_equal(pack(model, package, 5, &s, NULL), TERN_E_CANCELLED);
    assert_int_equal(access(partial, F_OK), 0);
    unlink(partial);
    fixture_write(partial, "a letter", 8);
    s = (steps){.last = -1};
    assert_int_equal(pack(model, package, 5, &s, NULL), TERN_E_IO);
    size_t n;
    char *text = fixture_read(partial, &n);
    assert_int_equal(n, 8);
    free(text);
    unlink(partial);
}

int main(void) {
    fixture_file(package, "made.tern");
    snprintf(partial, sizeof partial, "%s" TN_PARTIAL_ENDING, package);
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed_at_every_step), cmocka_unit_test(damaged),
                                       cmocka_unit_test(of_another_run), cmocka_unit_test(every_option),
                                       cmocka_unit_test(what_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
