/* The cache of packages: keys follow the files' contents, packages appear whole or not at all whatever
 * kills the process that makes them, two never make the same one, those used longest ago go, and folders
 * or files that are not this user's own are not believed. */
#include "quant/cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

static char home[200], model[300], other[300], folder[TN_CACHE_PATH];
static tn_ctx ctx;
static tn_pack_options quick;
static const uint64_t no_limit = UINT64_MAX;

static void shell(const char *fmt, ...) {
    char cmd[2000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cmd, sizeof cmd, fmt, ap);
    va_end(ap);
    if (system(cmd)) fail_msg("%s", cmd);
}

static int setup(void **state) {
    (void)state;
    snprintf(home, sizeof home, "%s/cache-%ld", TN_BINARY_DIR, (long)getpid());
    snprintf(model, sizeof model, "%s/a.gguf", home);
    snprintf(other, sizeof other, "%s/b.gguf", home);
    shell("rm -rf %s; mkdir %s && " TN_TERN " synth --arch tiny-llama --type q4_0 -o %s && " TN_TERN
          " synth --arch tiny-llama --seed 2 -o %s",
          home, home, model, other);
    setenv("XDG_CACHE_HOME", home, 1);
    tn_ctx_init(&ctx, NULL);
    tern_error err = {0};
    if (tn_cache_options(&ctx, model, &quick, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_true(quick.bits == 6); /* 4.5 in the file */
    quick.calib_tokens = 64;
    quick.calib_window = 32;
    if (tn_cache_folder(folder, true, &err) != TERN_OK) fail_msg("%s", err.message);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    shell("rm -rf %s", home);
    return 0;
}

static void make(const char *path, uint64_t limit_bytes) {
    bool busy = true;
    tern_error err = {0};
    if (tn_cache_make(&ctx, folder, path, &quick, limit_bytes, &busy, &err) != TERN_OK)
        fail_msg("%s", err.message);
    assert_false(busy);
}

static bool there(const char *path) {
    char key[TN_CACHE_KEY], package[TN_CACHE_PATH];
    tern_error err;
    assert_int_equal(tn_cache_key(&ctx, folder, path, TN_CONTENT_KNOWN, key, &err), TERN_OK);
    return tn_cache_find(folder, key, package);
}

static size_t n_files(void) {
    size_t n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void empty(void) { shell("rm -rf %s/*", folder); }

/* The key, of every byte. */
static void key_of(const char *path, char key[TN_CACHE_KEY]) {
    tern_error err = {0};
    if (tn_cache_key(&ctx, NULL, path, TN_CONTENT_READ, key, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_int_equal(strlen(key), TN_CACHE_KEY - 1);
}

/* Whether what a file holds is known without reading it. */
static bool is_known(const char *path, char key[TN_CACHE_KEY]) {
    tern_error err = {0};
    if (tn_cache_key(&ctx, folder, path, TN_CONTENT_KNOWN, key, &err) != TERN_OK) fail_msg("%s", err.message);
    return *key;
}

/* A record of quant/content.c. */
enum { RECORD = 80, BEGUN = 48, CHECK = 72 };

/* As if all that is kept had been hashed by so much later, with true checksums. */
static void hashed_later(int64_t by_ns) {
    char path[TN_CACHE_PATH + 16];
    uint8_t all[8 + 16 * RECORD];
    snprintf(path, sizeof path, "%s/contents", folder);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    const size_t n = fread(all, 1, sizeof all, f);
    assert_true(n > 8 && (n - 8) % RECORD == 0);
    for (uint8_t *r = all + 8; r < all + n; r += RECORD) {
        int64_t begun;
        memcpy(&begun, r + BEGUN, 8);
        begun += by_ns;
        memcpy(r + BEGUN, &begun, 8);
        const uint64_t check = XXH3_64bits(r, CHECK);
        memcpy(r + CHECK, &check, 8);
    }
    rewind(f);
    assert_int_equal(fwrite(all, 1, n, f), n);
    fclose(f);
}

/* Size and time of writing are kept, and a byte is another, somewhere in a large file: nothing is known of it any more, and
 * its key is another. */
static void replaced(void **state) {
    (void)state;
    char a[TN_CACHE_KEY], b[TN_CACHE_KEY], big[300];
    tern_error err;
    empty();
    snprintf(big, sizeof big, "%s/big.gguf", home);
    shell("truncate -s 65M %s && touch -d '2001-02-03 04:05:06' %s", big, big);
    assert_false(is_known(big, a));
    assert_int_equal(tn_cache_key(&ctx, folder, big, TN_CONTENT_READ, a, &err), TERN_OK);
    assert_false(is_known(big, b)); /* it was changed just now: a write to come could bear the same time */
    hashed_later(10000000000);
    assert_true(is_known(big, b));
    assert_string_equal(a, b);
    shell(
        "printf x | dd of=%s bs=1 seek=500001 conv=notrunc 2>/dev/null && touch -d '2001-02-03 04:05:06' %s",
        big, big);
    assert_false(is_known(big, b));
    key_of(big, b);
    assert_string_not_equal(a, b);
    shell("truncate -s 65M %s.new && touch -r %s %s.new && mv %s.new %s", big, big, big, big, big);
    assert_false(is_known(big, b));
    key_of(big, b);
    assert_string_equal(a, b); /* the first bytes again */
    shell("rm %s", big);
}

/* Every bit of one byte of the list is another. */
static void flip(int at) {
    char path[TN_CACHE_PATH + 16];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/contents", folder);
    const int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0xff;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* What is kept is believed with its checksum alone, and what is no list of hashes is replaced. */
static void damaged_list(void **state) {
    (void)state;
    char a[TN_CACHE_KEY], b[TN_CACHE_KEY], big[300];
    tern_error err;
    empty();
    snprintf(big, sizeof big, "%s/big.gguf", home);
    shell("truncate -s 65M %s", big);
    for (int at = 8; at < 8 + RECORD; at += 7) {
        assert_int_equal(tn_cache_key(&ctx, folder, big, TN_CONTENT_READ, a, &err), TERN_OK);
        hashed_later(10000000000);
        assert_true(is_known(big, b));
        flip(at);
        assert_false(is_known(big, b));
    }
    shell("echo 'no such list' >%s/contents", folder);
    assert_false(is_known(big, b));
    assert_int_equal(tn_cache_key(&ctx, folder, big, TN_CONTENT_READ, a, &err), TERN_OK);
    hashed_later(10000000000);
    assert_true(is_known(big, b));
    struct stat sb;
    char list[TN_CACHE_PATH + 16];
    snprintf(list, sizeof list, "%s/contents", folder);
    assert_int_equal(stat(list, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    for (int i = 0; i < 3; i++) /* a file's record takes the place of its last one */
        assert_int_equal(tn_cache_key(&ctx, folder, model, TN_CONTENT_READ, a, &err), TERN_OK);
    assert_int_equal(stat(list, &sb), 0);
    assert_int_equal(sb.st_size, 8 + 2 * RECORD);
    shell("rm %s", big);
}

static void keys(void **state) {
    (void)state;
    char a[TN_CACHE_KEY], b[TN_CACHE_KEY];
    tern_error err;
    key_of(model, a);
    shell("ln -s %s %s/moved.gguf", model, home);
    char moved[300];
    snprintf(moved, sizeof moved, "%s/moved.gguf", home);
    key_of(moved, b);
    assert_string_equal(a, b); /* the name does not matter */
    shell("rm %s && cp %s %s && touch -d '2001-02-03 04:05:06' %s", moved, model, moved, moved);
    key_of(moved, b);
    assert_string_equal(a, b);       /* nor do times: a copy has the same bytes */
    assert_true(is_known(moved, b)); /* small files are read */
    assert_string_equal(a, b);
    key_of(other, b);
    assert_string_not_equal(a, b);
    struct stat sb;
    assert_int_equal(stat(moved, &sb), 0);
    for (int i = 0; i < 48; i++) { /* from the first byte to the last */
        shell(
            "cp %s %s && printf '\\252' | dd of=%s bs=1 seek=%lld conv=notrunc 2>/dev/null && touch -r %s %s",
            model, moved, moved, (long long)(sb.st_size - 1) * i / 47, model, moved);
        key_of(moved, b);
        assert_string_not_equal(a, b);
    }
    key_of(TN_SOURCE_DIR "/models/tern-tiny", a);
    shell("rm %s", moved);
    assert_int_equal(tn_cache_key(&ctx, NULL, moved, TN_CONTENT_READ, a, &err), TERN_E_IO);
}

static void made_once(void **state) {
    (void)state;
    empty();
    assert_false(there(model));
    make(model, no_limit);
    assert_true(there(model));
    char key[TN_CACHE_KEY], path[TN_CACHE_PATH];
    tern_error err;
    struct stat first, again;
    key_of(model, key);
    assert_true(tn_cache_find(folder, key, path));
    assert_int_equal(stat(path, &first), 0);
    assert_int_equal(first.st_mode & 0777, 0600);
    make(model, no_limit);
    assert_int_equal(stat(path, &again), 0);
    assert_int_equal(first.st_ino, again.st_ino);
    assert_int_equal(stat(folder, &first), 0);
    assert_int_equal(first.st_mode & 0777, 0700);
    assert_int_equal(n_files(), 4); /* the package, where it comes from, what is known of it, of files */
    tn_cache_about about;
    tn_cache_about_get(path, &about);
    assert_true(about.bits > 1 && about.kl > 0 && about.n_held_tokens > 0 && !about.told);
    tn_cache_entry *e;
    size_t n;
    assert_int_equal(tn_cache_list(&ctx, folder, &e, &n, &err), TERN_OK);
    assert_int_equal(n, 1);
    char *full = realpath(model, NULL);
    assert_string_equal(e[0].source, full);
    assert_string_equal(e[0].key, key);
    assert_true(e[0].bytes == (uint64_t)again.st_size);
    free(full);
    tn_free(&ctx, e);
    bool busy;
    assert_int_equal(tn_cache_make(&ctx, folder, path, &quick, no_limit, &busy, &err),
                     TERN_E_INVALID); /* a package */
    assert_int_equal(tn_cache_remove(folder, key, &err), TERN_OK);
    assert_int_equal(tn_cache_remove(folder, key, &err), TERN_E_INVALID);
    assert_int_equal(tn_cache_remove(folder, "../../escape", &err), TERN_E_INVALID);
    assert_int_equal(n_files(), 1); /* the hashes of files */
}

static void one_makes_it(void **state) {
    (void)state;
    empty();
    char key[TN_CACHE_KEY], path[TN_CACHE_PATH + 64];
    tern_error err = {0};
    key_of(model, key);
    snprintf(path, sizeof path, "%s/%s.lock", folder, key);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    bool busy = false;
    assert_int_equal(tn_cache_make(&ctx, folder, model, &quick, no_limit, &busy, &err), TERN_OK);
    assert_true(busy);
    assert_false(there(model));
    close(fd);
    make(model, no_limit);
    assert_true(there(model));
}

static void longest_unused_goes(void **state) {
    (void)state;
    empty();
    char key[TN_CACHE_KEY], third[300];
    snprintf(third, sizeof third, "%s/c.gguf", home);
    shell(TN_TERN " synth --arch tiny-llama --type q4_0 --seed 3 -o %s", third);
    make(model, no_limit);
    make(other, no_limit);
    /* model was used last: other goes when a third package does not fit */
    tern_error err;
    key_of(other, key);
    shell("touch -d '2001-01-01' %s/%s.source", folder, key);
    assert_true(there(model));
    tn_cache_entry *e;
    size_t n;
    assert_int_equal(tn_cache_list(&ctx, folder, &e, &n, &err), TERN_OK);
    assert_int_equal(n, 2);
    assert_string_equal(e[1].key, key);
    uint64_t two = e[0].bytes + e[1].bytes;
    tn_free(&ctx, e);
    make(third, two + two / 8); /* a package of its shape may take a little more */
    assert_true(there(third) && there(model));
    assert_false(there(other));
    make(other, 0); /* what was just made stays */
    assert_true(there(other));
    assert_false(there(model) || there(third));
}

static void what_is_no_package_is_replaced(void **state) {
    (void)state;
    empty();
    char key[TN_CACHE_KEY];
    key_of(model, key);
    shell("echo garbage >%s/%s.tern", folder, key);
    assert_false(there(model));
    make(model, no_limit);
    assert_true(there(model));
    shell("mv %s/%s.tern %s/elsewhere && ln -s %s/elsewhere %s/%s.tern", folder, key, home, home, folder,
          key);
    assert_false(there(model)); /* a link may lead anywhere */
    make(model, no_limit);
    assert_true(there(model));
}

static int calls;
static bool kill_self(void *user, const char *stage, double fraction) {
    (void)user, (void)stage, (void)fraction;
    if (++calls == 4) raise(SIGKILL);
    return true;
}

static void killed_in_between(void **state) {
    (void)state;
    empty();
    pid_t child = fork();
    if (!child) {
        tern_hooks hooks;
        tern_hooks_defaults(&hooks);
        hooks.progress = kill_self;
        tn_ctx doomed;
        tn_ctx_init(&doomed, &hooks);
        bool busy;
        tern_error err;
        (void)tn_cache_make(&doomed, folder, model, &quick, no_limit, &busy, &err);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_false(there(model));
    make(model, no_limit); /* its lock is gone with it */
    assert_true(there(model));
    assert_int_equal(n_files(), 4);
}

static bool replace_model(void *user, const char *stage, double fraction) {
    (void)user, (void)stage, (void)fraction;
    shell("cp %s %s/new.gguf && mv %s/new.gguf %s/replaced.gguf", other, home, home, home);
    return true;
}

static void replaced_meanwhile(void **state) {
    (void)state;
    empty();
    char replaced[300];
    snprintf(replaced, sizeof replaced, "%s/replaced.gguf", home);
    shell("cp %s %s", model, replaced);
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.progress = replace_model;
    tn_ctx touching;
    tn_ctx_init(&touching, &hooks);
    bool busy;
    tern_error err;
    assert_int_equal(tn_cache_make(&touching, folder, replaced, &quick, no_limit, &busy, &err), TERN_E_IO);
    assert_non_null(strstr(err.message, "was replaced while it was packed"));
    assert_int_equal(n_files(), 1);
}

static void folders(void **state) {
    (void)state;
    char path[TN_CACHE_PATH];
    tern_error err;
    shell("chmod 0777 %s", folder);
    assert_int_equal(tn_cache_folder(path, true, &err), TERN_E_IO);
    assert_non_null(strstr(err.message, "others may write"));
    shell("chmod 0700 %s", folder);
    setenv("XDG_CACHE_HOME", model, 1); /* a file */
    assert_int_equal(tn_cache_folder(path, true, &err), TERN_E_IO);
    setenv("XDG_CACHE_HOME", "", 1);
    setenv("HOME", home, 1);
    assert_int_equal(tn_cache_folder(path, true, &err), TERN_OK);
    assert_non_null(strstr(path, "/.cache/tern/packages"));
    unsetenv("HOME");
    assert_int_equal(tn_cache_folder(path, true, &err), TERN_E_IO);
    setenv("HOME", home, 1);
    setenv("XDG_CACHE_HOME", home, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys),
                                       cmocka_unit_test(replaced),
                                       cmocka_unit_test(damaged_list),
                                       cmocka_unit_test(made_once),
                                       cmocka_unit_test(one_makes_it),
                                       cmocka_unit_test(longest_unused_goes),
                                       cmocka_unit_test(what_is_no_package_is_replaced),
                                       cmocka_unit_test(killed_in_between),
                                       cmocka_unit_test(replaced_meanwhile),
                                       cmocka_unit_test(folders)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
