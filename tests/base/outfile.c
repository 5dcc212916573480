/* Outputs: whole or not at all, never in the place of something else, private where they should be. */
#include "base/outfile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const tn_outkind kind = {.what = "a letter", .begins = {"Dear ", "To "}, .is_private = true},
                        open_kind = {.what = "a letter", .begins = {"Dear "}};
static char folder[200], path[256];
static tn_ctx ctx;

static int setup(void **state) {
    (void)state;
    tn_ctx_init(&ctx, NULL);
    snprintf(folder, sizeof folder, TN_BINARY_DIR "/outfile-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/letter", folder);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void put(const char *file, const char *text) {
    FILE *f = fopen(file, "w");
    assert_true(f && fputs(text, f) >= 0);
    fclose(f);
}

static void holds(const char *file, const char *text) {
    char buffer[64] = {0};
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    (void)!fread(buffer, 1, sizeof buffer - 1, f);
    fclose(f);
    assert_string_equal(buffer, text);
}

static int n_files(void) {
    char pattern[300];
    glob_t g;
    snprintf(pattern, sizeof pattern, "%s/*", folder);
    int n = glob(pattern, 0, NULL, &g) ? 0 : (int)g.gl_pathc;
    globfree(&g);
    return n;
}

static tern_status write_letter(const tn_outkind *k, const char *text, tern_error *err) {
    tn_outfile *o;
    tern_status st = tn_outfile_open(&ctx, path, k, &o, err);
    if (st == TERN_OK) st = tn_outfile_write(o, text, strlen(text), err);
    return st == TERN_OK ? tn_outfile_commit(&o, err) : st;
}

static void only_its_own_kind_is_replaced(void **state) {
    (void)state;
    tern_error err;
    assert_int_equal(write_letter(&kind, "Dear A", &err), TERN_OK);
    assert_int_equal(write_letter(&kind, "To B", &err), TERN_OK);
    assert_int_equal(write_letter(&kind, "Dear C", &err), TERN_OK);
    holds(path, "Dear C");
    put(path, "a will");
    assert_int_equal(write_letter(&kind, "Dear D", &err), TERN_E_IO);
    assert_non_null(strstr(err.message, "exists and is not a letter"));
    holds(path, "a will");
    put(path, "");
    assert_int_equal(write_letter(&kind, "Dear E", &err), TERN_OK);
    /* what takes the name in between is looked at too */
    tn_outfile *o;
    unlink(path);
    assert_int_equal(tn_outfile_open(&ctx, path, &kind, &o, &err), TERN_OK);
    assert_int_equal(tn_outfile_write(o, "Dear F", 6, &err), TERN_OK);
    put(path, "a will");
    assert_int_equal(tn_outfile_commit(&o, &err), TERN_E_IO);
    assert_null(o);
    holds(path, "a will");
    assert_int_equal(n_files(), 1);
    unlink(path);
}

static void what_is_no_file_is_left_alone(void **state) {
    (void)state;
    tern_error err;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(write_letter(&kind, "Dear A", &err), TERN_E_IO);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(write_letter(&kind, "Dear A", &err), TERN_E_IO);
    rmdir(path);
    assert_int_equal(symlink("nowhere", path), 0);
    assert_int_equal(write_letter(&kind, "Dear A", &err), TERN_E_IO);
    unlink(path);
    /* a link is followed, and what it points to is held to the same */
    char real[300];
    snprintf(real, sizeof real, "%s/real", folder);
    put(real, "a will");
    assert_int_equal(symlink(real, path), 0);
    assert_int_equal(write_letter(&kind, "Dear A", &err), TERN_E_IO);
    holds(real, "a will");
    put(real, "To A");
    assert_int_equal(write_letter(&kind, "Dear A", &err), TERN_OK);
    holds(real, "Dear A");
    struct stat sb;
    assert_true(!lstat(path, &sb) && S_ISLNK(sb.st_mode));
    unlink(path);
    unlink(real);
    assert_int_equal(n_files(), 0);
}

static void modes(void **state) {
    (void)state;
    static const mode_t masks[] = {0, 022, 077};
    mode_t before = umask(0);
    for (int i = 0; i < 3; i++) {
        tern_error err;
        struct stat sb;
        umask(masks[i]);
        put(path, "Dear old");
        chmod(path, 0644);
        assert_int_equal(write_letter(&kind, "Dear A", &err), TERN_OK); /* a wider one is narrowed */
        assert_true(!stat(path, &sb) && (sb.st_mode & 0777) == 0600);
        unlink(path);
        assert_int_equal(write_letter(&open_kind, "Dear A", &err), TERN_OK);
        assert_true(!stat(path, &sb) && (sb.st_mode & 0777) == (0666 & ~masks[i]));
        unlink(path);
    }
    umask(before);
}

static void killed_or_given_up(void **state) {
    (void)state;
    tern_error err;
    put(path, "Dear old");
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        tn_outfile *o;
        if (tn_outfile_open(&ctx, path, &kind, &o, &err) != TERN_OK) _exit(1);
        if (tn_outfile_write(o, "Dear", 4, &err) != TERN_OK) _exit(1);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    tn_outfile *o;
    assert_int_equal(tn_outfile_open(&ctx, path, &kind, &o, &err), TERN_OK);
    tn_outfile_abort(&o);
    assert_null(o);
    tn_outfile_abort(&o);
    holds(path, "Dear old");
    assert_int_equal(n_files(), 1);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_its_own_kind_is_replaced),
        cmocka_unit_test(what_is_no_file_is_left_alone),
        cmocka_unit_test(modes),
        cmocka_unit_test(killed_or_given_up),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
