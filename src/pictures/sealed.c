#include "pictures/sealed.h"

#include "base/clock.h"
#include "base/status.h"
#include "documents/pipes.h"
#include "documents/sandbox.h"
#include "pictures/formats.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CPU_SECONDS = 60, MEMORY_BYTES = 1536 << 20 };

/* In front of the pixels, or of the message of an error. */
typedef struct head {
    int32_t status; /* no wider than what it becomes: a status that is none must not become TERN_OK */
    int32_t width, height, n_message;
} head;

/* Where the kernel has only one of both, that holds; where it has neither the picture is decoded as it is. */
static tern_status seal(tern_error *err) {
    tern_error why;
    tern_status st = tn_sandbox_files(NULL, 0, true, &why);
    if (st == TERN_OK || st == TERN_E_UNSUPPORTED) st = tn_sandbox_enter(TN_SANDBOX_READER, &why);
    if (st != TERN_OK && st != TERN_E_UNSUPPORTED) *err = why;
    return st == TERN_E_UNSUPPORTED ? TERN_OK : st;
}

static void decode_and_end(tn_picture_decoder *decode, const uint8_t *bytes, size_t n, int fd) {
    tn_ctx ctx;
    tn_picture p = {0};
    tern_error err = {0};
    tn_pipe_keep(&fd, &fd);
    (void)setrlimit(RLIMIT_CPU, &(struct rlimit){CPU_SECONDS, CPU_SECONDS});
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose shadow would count */
    (void)setrlimit(RLIMIT_DATA, &(struct rlimit){MEMORY_BYTES, MEMORY_BYTES});
#endif
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    tn_ctx_init(&ctx, NULL);
    tern_status st = seal(&err);
    if (st == TERN_OK) st = decode(&ctx, bytes, n, &p, &err);
    const head h = {st, p.width, p.height, st == TERN_OK ? 0 : (int32_t)strlen(err.message)};
    bool ok = tn_pipe_write(fd, &h, sizeof h);
    if (ok && st == TERN_OK) ok = tn_pipe_write(fd, p.rgb, 3 * (size_t)p.width * (size_t)p.height);
    else if (ok) ok = tn_pipe_write(fd, err.message, (size_t)h.n_message);
    _exit(ok ? 0 : 1);
}

/* The status that a number stands for, among those that a picture may have. */
static tern_status status_of(int32_t said) {
    static const tern_status may[] = {TERN_E_LIMIT, TERN_E_MEMORY, TERN_E_UNSUPPORTED};
    for (size_t i = 0; i < sizeof may / sizeof *may; i++)
        if (said == (int32_t)may[i]) return may[i];
    return TERN_E_FORMAT;
}

/* What the process says may be anything, too. */
static tern_status take(tn_ctx *ctx, int fd, int64_t end_ns, tn_picture *out, tern_error *err) {
    head h;
    char message[sizeof err->message] = "";
    bool ok = tn_pipe_read(fd, &h, sizeof h, end_ns);
    if (ok && h.status != TERN_OK) {
        ok = h.n_message > 0 && (size_t)h.n_message < sizeof message &&
             tn_pipe_read(fd, message, (size_t)h.n_message, end_ns);
        if (ok) return tn_fail(err, status_of(h.status), "%s", message);
    }
    if (ok && h.width > 0 && h.height > 0) {
        TN_TRY(tn_picture_make(ctx, "picture", (uint64_t)h.width, (uint64_t)h.height, out, err));
        if (tn_pipe_read(fd, out->rgb, 3 * (size_t)h.width * (size_t)h.height, end_ns)) return TERN_OK;
        tn_picture_free(out);
    }
    return tn_fail(err, TERN_E_FORMAT, "%s",
                   tn_now_ns() >= end_ns ? "the picture takes too long to read"
                                         : "the picture could not be read: its reader ended");
}

tern_status tn_picture_decode_by(tn_picture_decoder *decode, int wait_s, tn_ctx *ctx, const uint8_t *bytes,
                                 size_t n, tn_picture *out, tern_error *err) {
    int fds[2];
    *out = (tn_picture){0};
    TN_TRY(tn_picture_need(bytes, n, err));
    TN_FAIL_IF(pipe2(fds, O_CLOEXEC), err, TERN_E_IO, "no pipe to decode a picture: %s", strerror(errno));
    const int64_t end_ns = tn_now_ns() + wait_s * INT64_C(1000000000);
    pid_t pid = fork();
    if (!pid) decode_and_end(decode, bytes, n, fds[1]);
    const int why = errno;
    close(fds[1]);
    tern_status st = pid > 0
                         ? take(ctx, fds[0], end_ns, out, err)
                         : tn_fail(err, TERN_E_MEMORY, "no process to decode a picture: %s", strerror(why));
    close(fds[0]);
    if (pid < 0) return st;
    (void)kill(pid, SIGKILL); /* it has said all, or has been taken over */
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return st;
}

/* ---- by a reader --------------------------------------------------------------------------------------- */

/* In front of the pixels. */
typedef struct size_head {
    int32_t width, height;
} size_head;

static tern_status decode_for_reader(const uint8_t *in, size_t n, char **out, size_t *n_out,
                                     tern_error *err) {
    tn_ctx ctx;
    tn_picture p;
    tn_ctx_init(&ctx, NULL);
    TN_TRY(tn_picture_decode_by(tn_picture_decode, TN_PICTURE_WAIT_S, &ctx, in, n, &p, err));
    const size_head h = {p.width, p.height};
    const size_t n_pixels = 3 * (size_t)p.width * (size_t)p.height;
    *n_out = sizeof h + n_pixels;
    *out = malloc(*n_out);
    if (*out) {
        memcpy(*out, &h, sizeof h);
        memcpy(*out + sizeof h, p.rgb, n_pixels);
    }
    tn_picture_free(&p);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for the pixels of a picture");
    return TERN_OK;
}

void tn_picture_provide(void) { tn_reader_provide(decode_for_reader); }

static tern_status take_said(tn_ctx *ctx, const char *said, size_t n, tn_picture *out, tern_error *err) {
    size_head h = {0};
    if (n >= sizeof h) memcpy(&h, said, sizeof h);
    TN_FAIL_IF(h.width < 1 || h.height < 1 || n - sizeof h != 3 * (uint64_t)h.width * (uint64_t)h.height, err,
               TERN_E_FORMAT, "the picture could not be read: its reader ended");
    TN_TRY(tn_picture_make(ctx, "picture", (uint64_t)h.width, (uint64_t)h.height, out, err));
    memcpy(out->rgb, said + sizeof h, n - sizeof h);
    return TERN_OK;
}

tern_status tn_picture_decode_sealed(tn_reader *r, tn_ctx *ctx, const uint8_t *bytes, size_t n,
                                     tn_picture *out, tern_error *err) {
    const size_t most = sizeof(size_head) + 3 * (size_t)TN_PICTURE_MAX_PIXELS;
    char *said;
    size_t n_said;
    *out = (tn_picture){0};
    TN_FAIL_IF(n > TN_PICTURE_MAX_BYTES, err, TERN_E_LIMIT, "the picture has %zu bytes; up to %d are read", n,
               TN_PICTURE_MAX_BYTES);
    TN_TRY(tn_reader_bytes(r, bytes, n, most, &said, &n_said, err));
    tern_status st = take_said(ctx, said, n_said, out, err);
    free(said);
    return st;
}
