/* tern serve - a model behind HTTP, with OpenAI's interface. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/draft_args.h"
#include "cli/prompt.h"
#include "server/http.h"
#include "server/reader.h"
#include "server/sandbox.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Waits for a signal to end. SIGINT and SIGTERM are blocked in every thread. */
static void wait_for_end(const sigset_t *ends) {
    int sig;
    while (sigwait(ends, &sig)) {
    }
}

/* Reads the keys of a file that others may not read. Returns NULL with a message printed. */
static char *read_keys(const char *path) {
    struct stat s;
    size_t n;
    if (!stat(path, &s) && (s.st_mode & 077)) {
        failed_text("%s: others may read the API keys; chmod 600 keeps them private", path);
        return NULL;
    }
    char *keys = read_text_file(path, &n);
    if (keys && (strlen(keys) != n || !keys[strspn(keys, "\r\n")])) {
        failed_text("%s holds no API keys: want one a line", path);
        free(keys);
        return NULL;
    }
    return keys;
}

/* The socket that systemd passed (sd_listen_fds(3)): *fd, or -1. Returns false with a message printed. */
static bool passed_socket(int *fd) {
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    *fd = -1;
    if (!pid || !n || strtol(pid, NULL, 10) != (long)getpid()) return true;
    unsetenv("LISTEN_PID");
    if (strcmp(n, "1")) return failed_text("%s sockets were passed: want one", n), false;
    *fd = 3;
    return !fcntl(3, F_SETFD, FD_CLOEXEC) || (failed_text("the socket that was passed is not open"), false);
}

int cmd_serve(int argc, char **argv) {
    model_args ma;
    model_args_defaults(&ma, TN_IN_SERVE);
    const char *host = "127.0.0.1", *key_file = NULL, *draft = "auto", *name = NULL, *template = NULL,
               *on_full = "stop";
    char *source = NULL;
    int32_t port = 8080, n_ctx = 0, n_sessions = 8, max_waiting = 32, cache_mib = 2048;
    const arg_spec specs[] = {
        MODEL_ARGS(ma),
        PACK_ARG(ma),
        {"host", 0, "ADDRESS", ARG_STR, &host, 0, 0,
         "IPv4 address to listen on; other machines reach only one with --api-key-file (default 127.0.0.1)"},
        {"port", 0, "N", ARG_INT, &port, 0, 65535, "port; 0 = any that is free (default 8080)"},
        {"api-key-file", 0, "FILE", ARG_STR, &key_file, 0, 0,
         "requests need one of the keys in FILE, one a line, which others may not read"},
        {"model-name", 0, "NAME", ARG_STR, &name, 0, 0, "what replies call the model (default: its file)"},
        {"ctx-size", 'c', "N", ARG_INT, &n_ctx, 1, 1 << 24,
         "context of a conversation in tokens (default: the smaller of 4096 and the model's)"},
        {"sessions", 0, "N", ARG_INT, &n_sessions, 1, 256,
         "conversations kept in memory for their next turn, of which 8 are answered together (default 8)"},
        {"queue", 0, "N", ARG_INT, &max_waiting, 1, 1000, "requests that may wait (default 32)"},
        {"cache-size", 0, "MIB", ARG_INT, &cache_mib, 0, 1 << 20,
         "conversations kept on disk for their next turn, also after a restart; 0 = none (default 2048)"},
        {"on-full", 0, "shift|stop", ARG_STR, &on_full, 0, 0,
         "a conversation beyond the context: its oldest turns leave, or it is refused (default stop)"},
        TEMPLATE_ARG(template),
        {"draft", 0, "LIST", ARG_STR, &draft, 0, 0,
         "drafters: auto, all, none or a list of lookup, sam, calibrated, extend, model:FILE (default auto)"},
        {0},
    };
    const command cmd = {"serve", "-m MODEL [OPTIONS]",
                         "Answer requests over HTTP as OpenAI's and Anthropic's APIs have them.", specs, 0};
    const char *words[1];
    int rc = args_parse(&cmd, argc, argv, words);
    if (rc >= 0) return rc;
    bool shift = !strcmp(on_full, "shift");
    if (!shift && strcmp(on_full, "stop"))
        return usage_error(&cmd, "--on-full %s: want shift or stop", on_full);
    char *keys = NULL;
    int listen_fd;
    if (!passed_socket(&listen_fd)) return EXIT_FAILED;
    if (!prompt_template(template, &source)) return EXIT_FAILED;
    if (key_file && !(keys = read_keys(key_file))) {
        free(source);
        return EXIT_FAILED;
    }
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    tern_engine *e = NULL;
    tn_reader *reader = NULL;
    tn_queue *q = NULL;
    tn_http *h = NULL;
    tern_error err;
    if (tn_reader_open(&reader, &err) != TERN_OK) /* now, while there is one thread */
        fprintf(stderr, "tern serve: the page reads no documents: %s\n", err.message);
    rc = open_engine(&cmd, &ma, &e);
    if (rc >= 0) {
        tn_reader_close(&reader);
        free(keys);
        free(source);
        return rc;
    }
    const char *slash = strrchr(ma.model, '/');
    tn_queue_options qo = {.e = e,
                           .model = name                ? name
                                    : slash && slash[1] ? slash + 1
                                                        : ma.model,
                           .n_ctx = n_ctx,
                           .n_sessions = n_sessions,
                           .max_waiting = max_waiting,
                           .draft = draft,
                           .chat_template = source,
                           .cache_bytes = (uint64_t)cache_mib << 20,
                           .shift = shift};
    qo.reader = reader;
    rc = EXIT_FAILED;
    if (tn_queue_open(&qo, &q, &err) != TERN_OK) {
        failed(&err);
    } else if (tn_http_open(
                   &(tn_http_options){
                       .q = q, .host = host, .port = port, .listen_fd = listen_fd, .keys = keys},
                   &h, &err) != TERN_OK) {
        failed(&err);
    } else {
        if (tn_sandbox_enter(&err) != TERN_OK) fprintf(stderr, "tern serve: no sandbox: %s\n", err.message);
        if (tn_queue_cache_folder(q))
            fprintf(
                stderr,
                "tern keeps conversations in %s (--cache-size 0: nowhere; tern forget --all erases them)\n",
                tn_queue_cache_folder(q));
        fprintf(stderr, "tern serves %s on http://%s:%d\n", qo.model, listen_fd < 0 ? host : "127.0.0.1",
                tn_http_port(h));
        wait_for_end(&ends);
        rc = EXIT_OK;
    }
    tn_queue_stop(q); /* connections wait for their jobs */
    tn_http_close(&h);
    tn_queue_close(&q);
    tn_reader_close(&reader);
    tern_engine_close(&e);
    free(keys);
    free(source);
    return rc;
}
