#include "base/background.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST = 4096, MOST_WORDS = 8 };

/* Detaches from terminal and files, because others wait for their ends and for locks. The intermediate
 * process does it, so nothing is held when the command has ended. It reads `from`; -1: nothing. */
static bool let_go(int from) {
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) (void)dup2(fd || from < 0 ? null : from, fd);
    (void)syscall(SYS_close_range, 3, ~0U, 0); /* musl has no function for it */
    return null >= 0 && setsid() >= 0;
}

/* The lowest priority. Where Linux shares processors among sessions first, a process's niceness counts within its
 * session only, and the session of let_go has its own (sched(7), autogroups). */
static void stand_back(void) {
    (void)!nice(19);
    int f = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
    if (f < 0) return;
    /* it is written once in a tenth of a second, whoever does */
    for (int i = 0; write(f, "19", 2) < 0 && errno == EAGAIN && i < 100; i++) poll(NULL, 0, 20);
    close(f);
}

static void become(const char *const *words, const char *last) {
    char *argv[MOST_WORDS + 3] = {(char *)"tern"};
    int n = 1;
    while (*words && n <= MOST_WORDS) argv[n++] = (char *)*words++;
    argv[n] = (char *)last;
    stand_back();
    execv("/proc/self/exe", argv);
    _exit(127);
}

static int prepared = -1; /* the last word is written here; if none is written, there is nothing to do */

void tn_background_prepare(const char *const *words) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return;
    pid_t child = fork();
    if (!child) {
        char last[LONGEST] = "";
        size_t n = 0;
        ssize_t k;
        if (!let_go(ends[0]) || fork()) _exit(0);
        while (n < sizeof last - 1 && (k = read(0, last + n, sizeof last - 1 - n)) != 0) {
            if (k > 0) n += (size_t)k;
            else if (errno != EINTR) break;
        }
        if (n) become(words, last);
        _exit(0);
    }
    close(ends[0]);
    if (child > 0 && waitpid(child, NULL, 0) == child) prepared = ends[1];
    else close(ends[1]);
}

bool tn_background_run(const char *const *words, const char *last) {
    /* It starts when this process has ended. */
    if (prepared >= 0) return write(prepared, last, strlen(last)) == (ssize_t)strlen(last);
    pid_t child = fork();
    if (child < 0) return false;
    if (!child) {
        /* twice, so that no parent has to wait for it */
        if (!let_go(-1) || fork()) _exit(0);
        become(words, last);
    }
    (void)waitpid(child, NULL, 0);
    return true;
}
