/* The files that a server may open: its model, wherever links lead, and what is its own; no others. */
#include "cli/serve_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77 };

static char home[64], path[300];
static int failures;
#define WANT(what) ((what) ? (void)0 : (void)(failures++, fprintf(stderr, "not so: %s\n", #what)))

static const char *at(const char *name) {
    snprintf(path, sizeof path, "%s/%s", home, name);
    return path;
}

static bool opens(const char *name, int flags) {
    int fd = open(at(name), flags | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static int make_home(void **state) {
    static const char *const folders[] = {"model", "blobs", "hub", "hub/m", "other", ".ssh", "keys"},
                             *const files[] = {"model/part.gguf", "blobs/weights",          "blobs/neighbour",
                                               "other/lora.gguf", "hub/m/a.gguf",           ".ssh/key",
                                               "solo.gguf",       "solo.gguf.tern.profile", "keys/keys",
                                               "private"};
    (void)state;
    snprintf(home, sizeof home, "/tmp/tern-files-XXXXXX");
    assert_non_null(mkdtemp(home));
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        assert_int_equal(mkdir(at(folders[i]), 0700), 0);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_true(opens(files[i], O_WRONLY | O_CREAT));
    char link[300];
    snprintf(link, sizeof link, "%s", at("model/model.safetensors"));
    assert_int_equal(symlink("../blobs/weights", link), 0);
    return 0;
}

static int remove_home(void **state) {
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", home);
    return system(command);
}

/* A model in the user's own folder, and a file of keys: neither opens what lies beside it. */
static int alone(void) {
    char model[300], keys[300];
    tern_error err;
    snprintf(model, sizeof model, "%s", at("solo.gguf"));
    snprintf(keys, sizeof keys, "%s", at("keys/keys"));
    char *argv[] = {"serve", model, "--api-key-file", keys, NULL};
    setenv("HOME", home, 1);
    tern_status st = cli_serve_files(argv, model, NULL, NULL, NULL, &err);
    if (st == TERN_E_UNSUPPORTED) return SKIPPED;
    WANT(st == TERN_OK);
    WANT(opens("solo.gguf", O_RDONLY));
    WANT(opens("solo.gguf.tern.profile", O_RDONLY));
    WANT(!opens("private", O_RDONLY));
    WANT(!opens(".ssh/key", O_RDONLY));
    WANT(!opens("keys/keys", O_RDONLY));
    WANT(!opens("model/part.gguf", O_RDONLY));
    return failures != 0;
}

static int inside(void) {
    char model[300], hub[300], lora[320], slots[300];
    tern_error err;
    snprintf(model, sizeof model, "%s", at("model"));
    snprintf(hub, sizeof hub, "%s", at("hub"));
    snprintf(slots, sizeof slots, "%s", at("slots"));
    (void)mkdir(slots, 0700);
    snprintf(lora, sizeof lora, "mine=%s:0.5", at("other/lora.gguf"));
    char *argv[] = {"serve", "--lora", lora, "--port", "0", NULL};
    setenv("HOME", home, 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("XDG_DATA_HOME");
    tern_status st = cli_serve_files(argv, model, hub, NULL, slots, &err);
    if (st == TERN_E_UNSUPPORTED) return SKIPPED;
    WANT(st == TERN_OK);
    WANT(opens("model/part.gguf", O_RDONLY));
    WANT(opens("model/model.safetensors", O_RDONLY));
    WANT(opens("other/lora.gguf", O_RDONLY));
    WANT(opens("hub/m/a.gguf", O_RDONLY));
    WANT(!opens(".ssh/key", O_RDONLY));
    WANT(!opens("model/part.gguf", O_WRONLY));
    WANT(!opens("model/new", O_WRONLY | O_CREAT));
    WANT(!opens(".bashrc", O_WRONLY | O_CREAT));
    WANT(opens(".cache/tern/new", O_WRONLY | O_CREAT));
    WANT(opens(".local/share/tern/new", O_WRONLY | O_CREAT));
    WANT(opens("slots/new", O_WRONLY | O_CREAT));
    WANT(!unlink(at(".cache/tern/new")));
    WANT(!opens("../../etc/tern-new", O_WRONLY | O_CREAT));
    snprintf(path, sizeof path, "/proc/%d/mem", (int)getppid());
    WANT(open(path, O_RDWR | O_CLOEXEC) < 0);
    WANT(open("/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0);
    return failures != 0;
}

static void in_a_child(int (*check)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) _exit(check());
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void server(void **state) {
    (void)state;
    in_a_child(inside);
}

static void model_at_home(void **state) {
    (void)state;
    in_a_child(alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(server), cmocka_unit_test(model_at_home)};
    return cmocka_run_group_tests(tests, make_home, remove_home);
}
