/* A decoder of pictures that has been taken over, in its sealed process: it has nothing that was open, reaches nothing, has bounds of
 * memory and of time, and whatever it says is a picture within the limits or one line of an error. */
#include "documents/sandbox.h"
#include "pictures/sealed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static tn_ctx ctx;
static bool has_seal;
static char secret[200]; /* a file of the user's */
static int held[2];      /* a pipe that the program has open */

/* The answers of a decoder, as a picture of its own. */
static tern_status answers(tn_ctx *c, const uint8_t *said, size_t n, tn_picture *out) {
    *out = (tn_picture){.ctx = c, .width = (int32_t)n, .height = 1};
    out->rgb = tn_calloc(c, TN_MEM_OTHER, n, 3);
    if (!out->rgb) return TERN_E_MEMORY;
    for (size_t i = 0; i < n; i++) out->rgb[3 * i] = said[i];
    return TERN_OK;
}

static tern_status reach_out(tn_ctx *c, const uint8_t *bytes, size_t n, tn_picture *out, tern_error *err) {
    (void)bytes, (void)n, (void)err;
    uint8_t can[16] = {0};
    struct stat sb;
    char *const argv[] = {"/bin/true", NULL};
    int n_open = 0;
    for (int fd = 3; fd < 200; fd++) n_open += read(fd, can, 0) >= 0 || write(fd, can, 0) >= 0;
    can[0] = (uint8_t)n_open; /* its way back */
    can[1] = open(secret, O_RDONLY) >= 0;
    can[2] = open("/etc/passwd", O_RDONLY) >= 0;
    can[3] = open(secret, O_WRONLY | O_CREAT, 0600) >= 0;
    can[4] = socket(AF_INET, SOCK_STREAM, 0) >= 0 || socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
    can[5] = !kill(getppid(), 0);
    can[6] = write(held[1], "x", 1) == 1;
    can[7] = !fstat(STDOUT_FILENO, &sb) && !S_ISCHR(sb.st_mode); /* not the terminal, not a log: /dev/null */
    can[8] = !fstat(STDIN_FILENO, &sb) && !S_ISCHR(sb.st_mode);
    can[9] = syscall(SYS_io_uring_setup, 4, NULL) >= 0;
    execv(argv[0], argv); /* who does that is no decoder any more, and says nothing */
    can[10] = !mkdir("/tmp/tern-sealed-was-here", 0700);
    struct rlimit r = {RLIM_INFINITY, RLIM_INFINITY};
    can[11] = !setrlimit(RLIMIT_CPU, &r);
    can[12] = !getrlimit(RLIMIT_CORE, &r) && r.rlim_cur;
    return answers(c, can, sizeof can, out);
}

static tern_status decode_by(tn_picture_decoder *d, int wait_s, tn_picture *out, tern_error *err) {
    *err = (tern_error){0};
    return tn_picture_decode_by(d, wait_s, &ctx, (const uint8_t *)"x", 1, out, err);
}

static void reaches_nothing(void **state) {
    (void)state;
    if (!has_seal) skip();
    tn_picture p;
    tern_error err;
    char c;
    FILE *f = fopen(secret, "w");
    assert_true(f && fputs("secret", f) >= 0 && !fclose(f));
    assert_int_equal(pipe(held) | fcntl(held[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(decode_by(reach_out, 60, &p, &err), TERN_OK);
    assert_int_equal(p.rgb[0], 1);
    for (int i = 1; i < 16; i++)
        if (p.rgb[3 * i]) fail_msg("a sealed decoder can do number %d", i);
    assert_int_equal(read(held[0], &c, 1), -1);
    tn_picture_free(&p);
    close(held[0]), close(held[1]);
    unlink(secret);
}

static tern_status sleep_for_ever(tn_ctx *c, const uint8_t *bytes, size_t n, tn_picture *out,
                                  tern_error *err) {
    (void)c, (void)bytes, (void)n, (void)out, (void)err;
    do (void)select(0, NULL, NULL, NULL, NULL);
    while (!c || c);
    return TERN_OK;
}

static tern_status say_half(tn_ctx *c, const uint8_t *bytes, size_t n, tn_picture *out, tern_error *err) {
    const int32_t head[4] = {TERN_OK, 1000, 1000, 0};
    for (int fd = 3; fd < 200; fd++) (void)!write(fd, head, sizeof head);
    return sleep_for_ever(c, bytes, n, out, err);
}

static void is_not_waited_for(void **state) {
    (void)state;
    tn_picture p;
    tern_error err;
    assert_int_equal(decode_by(sleep_for_ever, 1, &p, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "too long"));
    assert_int_equal(decode_by(say_half, 1, &p, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "too long"));
    assert_null(p.rgb);
}

static tern_status die(tn_ctx *c, const uint8_t *bytes, size_t n, tn_picture *out, tern_error *err) {
    (void)c, (void)bytes, (void)n, (void)out, (void)err;
    _exit(0);
}

static int32_t lie[4];
static size_t n_lie; /* bytes after it */

static tern_status tell_lies(tn_ctx *c, const uint8_t *bytes, size_t n, tn_picture *out, tern_error *err) {
    (void)c, (void)bytes, (void)n, (void)out, (void)err;
    static char rest[1 << 16];
    for (int fd = 3; fd < 200; fd++) {
        if (write(fd, lie, sizeof lie) != sizeof lie) continue;
        memset(rest, 'x', sizeof rest);
        (void)!write(fd, rest, n_lie < sizeof rest ? n_lie : sizeof rest);
    }
    _exit(0);
}

static void may_say_anything(void **state) {
    (void)state;
    static const int32_t numbers[] = {0,   1,     2,     3,       4,         5,  7,        255,
                                      256, 65535, 65536, 1 << 24, INT32_MAX, -1, INT32_MIN};
    enum { N = sizeof numbers / sizeof *numbers };
    tn_picture p;
    tern_error err;
    assert_int_equal(decode_by(die, 60, &p, &err), TERN_E_FORMAT);
    for (int i = 0; i < N * N; i++) {
        const int32_t a = numbers[i / N], b = numbers[i % N];
        const int32_t lies[][4] = {{0, a, b, 0}, {a, b, 1, b}, {a, 1, 1, b}};
        for (int k = 0; k < 3; k++) {
            if (i % 7 != k) continue;
            memcpy(lie, lies[k], sizeof lie);
            n_lie = (size_t)(i % 3) * 30000;
            tern_status st = decode_by(tell_lies, 60, &p, &err);
            if (st == TERN_OK) {
                assert_true(lie[0] == 0 && p.width == lie[1] && p.height == lie[2] && p.width > 0 &&
                            p.height > 0);
                assert_true((size_t)p.width * (size_t)p.height * 3 <= n_lie);
            } else {
                assert_true(st == TERN_E_FORMAT || st == TERN_E_LIMIT || st == TERN_E_MEMORY ||
                            st == TERN_E_UNSUPPORTED);
                assert_true(err.message[0] && !p.rgb);
            }
            tn_picture_free(&p);
        }
    }
}

/* Asks for 64 GiB, and counts what it got. */
static tern_status take_memory(tn_ctx *c, const uint8_t *bytes, size_t n, tn_picture *out, tern_error *err) {
    (void)bytes, (void)n, (void)err;
    uint8_t got[1] = {0};
    for (int i = 0; i < 255 && malloc(256 << 20); i++) got[0]++;
    return answers(c, got, 1, out);
}

static void memory_is_bounded(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    tn_picture p;
    tern_error err;
    assert_int_equal(decode_by(take_memory, 60, &p, &err), TERN_OK);
    assert_in_range(p.rgb[0], 1, 6);
    tn_picture_free(&p);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    has_seal = tn_sandbox_has_files(); /* kernels that have it have the filter, too */
    snprintf(secret, sizeof secret, TN_BINARY_DIR "/sealed-secret-%ld", (long)getpid());
    const struct CMUnitTest tests[] = {cmocka_unit_test(reaches_nothing), cmocka_unit_test(is_not_waited_for),
                                       cmocka_unit_test(may_say_anything),
                                       cmocka_unit_test(memory_is_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
