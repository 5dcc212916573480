/* tern serve - models behind HTTP, with OpenAI's interface. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/draft_args.h"
#include "cli/embedding.h"
#include "cli/packing.h"
#include "cli/mcp_args.h"
#include "cli/prompt.h"
#include "cli/serve_files.h"
#include "libraries/library.h"
#include "model/catalogue.h"
#include "server/checkpoints.h"
#include "server/http.h"
#include "server/origins.h"
#include "server/tls.h"
#include "documents/reader.h"
#include "pictures/sealed.h"
#include "documents/sandbox.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Waits for a signal to end. SIGINT and SIGTERM are blocked in every thread. Then what is being answered may end
 * within a time, unless a second signal comes. */
static void wait_for_end(const sigset_t *ends, tn_http *h, int64_t drain_ns) {
    enum { STEP_NS = 50 * 1000 * 1000 };
    int sig, n;
    while (sigwait(ends, &sig)) {
    }
    if (!drain_ns) return;
    tn_http_drain(h);
    if (!(n = tn_http_busy(h))) return;
    fprintf(stderr, "tern serve: %d answer%s may end within %.0f s; a second signal ends %s at once\n", n,
            n == 1 ? "" : "s", (double)drain_ns * 1e-9, n == 1 ? "it" : "them");
    const struct timespec step = {.tv_nsec = STEP_NS};
    for (int64_t left = drain_ns; left > 0 && (n = tn_http_busy(h)); left -= STEP_NS)
        if (sigtimedwait(ends, NULL, &step) > 0) break;
    if ((n = tn_http_busy(h)))
        fprintf(stderr, "tern serve: %d answer%s cut off\n", n, n == 1 ? " is" : "s are");
}

/* Reads the keys of a file that others may not read. Returns NULL with a message printed. */
static char *read_keys(const char *path) {
    struct stat s;
    size_t n;
    if (!stat(path, &s) && (s.st_mode & 077)) {
        cli_failed_text("%s: others may read the API keys; chmod 600 keeps them private", path);
        return NULL;
    }
    char *keys = cli_read_text_file(path, &n);
    if (keys && (strlen(keys) != n || !keys[strspn(keys, "\r\n")])) {
        cli_failed_text("%s holds no API keys: want one a line", path);
        free(keys);
        return NULL;
    }
    return keys;
}

/* Reads a certificate, or the private key of one, which others than its owner and its group may not read. */
static char *read_pem(const char *path, bool secret) {
    struct stat s;
    size_t n;
    if (secret && !stat(path, &s) && (s.st_mode & 037)) {
        cli_failed_text("%s: others may read or change the private key; chmod 600 keeps it private", path);
        return NULL;
    }
    char *text = cli_read_text_file(path, &n);
    if (text && !strstr(text, "-----BEGIN ")) {
        cli_failed_text("%s is not in PEM form: want -----BEGIN %s----- in it", path,
                        secret ? "PRIVATE KEY" : "CERTIFICATE");
        free(text);
        return NULL;
    }
    return text;
}

/* Every connection of TLS has four descriptors, and common limits have room for a thousand. */
static void want_descriptors(void) {
    enum { DESCRIPTORS = 4096 };
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur >= DESCRIPTORS) return;
    l.rlim_cur = l.rlim_max < DESCRIPTORS ? l.rlim_max : DESCRIPTORS;
    (void)setrlimit(RLIMIT_NOFILE, &l);
}

/* The socket that systemd passed (sd_listen_fds(3)): *fd, or -1. Returns false with a message printed. */
static bool passed_socket(int *fd) {
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    *fd = -1;
    if (!pid || !n || strtol(pid, NULL, 10) != (long)getpid()) return true;
    unsetenv("LISTEN_PID");
    if (strcmp(n, "1")) return cli_failed_text("%s sockets were passed: want one", n), false;
    *fd = 3;
    return !fcntl(3, F_SETFD, FD_CLOEXEC) ||
           (cli_failed_text("the socket that was passed is not open"), false);
}

/* "90s", "5m", "2h", or seconds; 0: never. */
static bool parse_time(const char *text, int64_t *ns) {
    char *end;
    double x = strtod(text, &end), unit = !strcmp(end, "h") ? 3600 : !strcmp(end, "m") ? 60 : 1;
    if (end == text || (*end && strcmp(end, "s") && unit == 1) || !(x >= 0 && x * unit <= 1e9)) return false;
    *ns = (int64_t)(x * unit * 1e9);
    return true;
}

/* What the server's options say, and what is open while it serves. */
typedef struct serving {
    model_args ma;
    const char *host, *key_file, *draft, *name, *template, *on_full, *folder, *idle, *drain;
    int32_t port, n_ctx, n_sessions, max_waiting, cache_mib;
    const char *origins, *hosts;
    bool strict, verbose;
    const char *thoughts;
    int thinking;
    packing_when when;
    int64_t idle_ns, drain_ns;
    const char *pooling, *slot_folder;
    const char *cert_file, *tls_key_file;
    char *source, *keys, *cert, *tls_key;
    int listen_fd;
    tern_hooks hooks;
    tn_reader *reader;
    tn_images_turns *turns;
    arg_list mcp, may; /* servers of tools, and what may be called */
    tn_mcp_servers *tools;
    arg_list folders; /* of pictures that requests may name */
    const char *rerank;
    char rerank_path[MODEL_PATH_MAX];
    reranking reranker;
    tn_models *models;
    tern_error err; /* of the first model that could not be listed */
} serving;

/* The package of a model, where the cache has one and packages may be used. */
static void place(void *user, const char *path, char out[TN_MODELS_PATH]) {
    const serving *s = user;
    _Static_assert((int)TN_MODELS_PATH >= (int)TN_CACHE_PATH, "a package's path fits");
    if (s->when == PACKING_NEVER || !cli_packing_find(path, out)) snprintf(out, TN_MODELS_PATH, "%s", path);
    else if (s->folder) cli_packing_tell(path, out); /* of the one model of -m it is told when it is open */
}

static void say(void *user, const char *line) {
    const serving *s = user;
    s->hooks.log(s->hooks.user, TERN_LOG_WARN, line);
}

static bool add_model(void *user, const tn_catalogue_entry *e) {
    serving *s = user;
    if (!tn_catalogue_is_model(e)) return true; /* it is no model by itself */
    return tn_models_add(s->models, e->name, e->path, &s->err) == TERN_OK;
}

/* Models that came into the folder since. What is wrong with one is told when it is asked for. */
static void look(void *user) {
    serving *s = user;
    if (!strcmp(s->folder, "all")) tn_catalogue_each(add_model, s);
    else tn_catalogue_folder(s->folder, add_model, s);
}

/* What goes together, and what the texts mean. Returns -1 to go on, or an exit status. */
static int check(const command *cmd, serving *s) {
    if (!s->ma.model && !s->folder) return cli_usage_error(cmd, "MODEL or --models DIR is required");
    if (s->ma.model && access(s->ma.model, F_OK)) return cli_no_model(s->ma.model);
    if (strcmp(s->on_full, "shift") && strcmp(s->on_full, "stop"))
        return cli_usage_error(cmd, "--on-full %s: want shift or stop", s->on_full);
    if (s->folder && s->template)
        return cli_usage_error(cmd, "--chat-template is for one model, and --models for several");
    const char *const of_one[][2] = {{"draft-head", s->ma.o.draft_head}, {"mmproj", s->ma.o.mmproj}};
    for (int i = 0; i < 2; i++)
        if (s->folder && of_one[i][1] && strcmp(of_one[i][1], "none"))
            return cli_usage_error(cmd, "--%s is for one model, and --models for several", of_one[i][0]);
    if (s->folder && strstr(s->draft, "model:"))
        return cli_usage_error(cmd, "--draft model:FILE is for one model, and --models for several");
    if (s->pooling && strcmp(s->pooling, "mean") && strcmp(s->pooling, "none"))
        return cli_usage_error(cmd, "--pooling %s: want mean or none", s->pooling);
    if (s->thoughts && strcmp(s->thoughts, "on") && strcmp(s->thoughts, "off"))
        return cli_usage_error(cmd, "--thinking %s: want on or off", s->thoughts);
    if (s->thoughts) s->thinking = strcmp(s->thoughts, "on") ? -1 : 1;
    struct stat sb;
    if (s->slot_folder && (stat(s->slot_folder, &sb) || !S_ISDIR(sb.st_mode)))
        return cli_usage_error(cmd, "--slot-save-path %s: there is no such folder", s->slot_folder);
    if (!s->idle) s->idle = s->folder ? "5m" : "0";
    if (!parse_time(s->idle, &s->idle_ns))
        return cli_usage_error(cmd, "--idle %s: want a time such as 90s, 5m or 1h; 0 = never", s->idle);
    if (!parse_time(s->drain, &s->drain_ns))
        return cli_usage_error(cmd, "--drain %s: want a time such as 10s or 1m; 0 = end at once", s->drain);
    if (s->rerank && strcmp(s->rerank, "none")) s->rerank = cli_model_path(s->rerank, s->rerank_path);
    s->when = PACKING_NEVER; /* where the file itself was asked for too */
    if (s->ma.pack || !(s->ma.o.exact || s->ma.o.scheme)) (void)cli_packing_parse(s->ma.pack, &s->when);
    if (!passed_socket(&s->listen_fd) || !cli_prompt_template(s->template, &s->source)) return EXIT_FAILED;
    tern_error err;
    if ((s->origins && tn_origins_check(s->origins, s->key_file != NULL, &err) != TERN_OK) ||
        (s->hosts && tn_hosts_check(s->hosts, &err) != TERN_OK))
        return cli_usage_error(cmd, "%s", err.message);
    if (!s->cert_file != !s->tls_key_file)
        return cli_usage_error(cmd, "--tls-cert FILE and --tls-key FILE go together");
    if (s->key_file && !(s->keys = read_keys(s->key_file))) return EXIT_FAILED;
    if (s->cert_file &&
        (!(s->cert = read_pem(s->cert_file, false)) || !(s->tls_key = read_pem(s->tls_key_file, true))))
        return EXIT_FAILED;
    if (s->cert && tn_tls_check(s->cert, s->tls_key, &err) != TERN_OK) return cli_failed(&err);
    if (s->cert) want_descriptors();
    return -1;
}

/* What holds for requests that do not say it. */
static tn_usual usual_of(const serving *s) {
    const tern_generate_options *g = &s->ma.o.generate;
    return (tn_usual){.sampling = g->sampling,
                      .known = true,
                      .max_tokens = g->max_tokens,
                      .seeded = cli_args_given(&s->ma, "seed"),
                      .limited = cli_args_given(&s->ma, "n-predict"),
                      .thinking = s->thinking,
                      .verbose = s->verbose};
}

/* The list of models; the one of -m is in memory from the start, and what is wrong with it ends the
 * program. */
static tern_status open_models(serving *s, tern_error *err) {
    const char *model = s->ma.model, *slash = model ? strrchr(model, '/') : NULL, *name = s->name;
    if (model && !name) name = slash && slash[1] ? slash + 1 : model;
    tern_hooks_defaults(&s->hooks);
    s->hooks.log = cli_log_line;
    s->ma.o.hooks = &s->hooks;
    s->ma.o.session.draft = s->draft; /* what is opened to draft with */
    const char *const *folders = s->folders.n ? s->folders.items : NULL;
    const tn_models_options mo = {.queue = {.n_ctx = s->n_ctx,
                                            .n_sessions = s->n_sessions,
                                            .max_waiting = s->max_waiting,
                                            .slot_folder = s->slot_folder,
                                            .pooling = s->pooling,
                                            .draft = s->draft,
                                            .chat_template = s->source,
                                            .usual = usual_of(s),
                                            .cache_bytes = (uint64_t)s->cache_mib << 20,
                                            .images = {s->reader, s->turns, folders},
                                            .shift = !strcmp(s->on_full, "shift")},
                                  .engine = s->ma.o,
                                  .idle_ns = s->idle_ns,
                                  .any_name = !s->folder,
                                  .place = place,
                                  .look = s->folder ? look : NULL,
                                  .tell = s->folder || s->idle_ns ? say : NULL,
                                  .user = s};
    TN_TRY(tn_models_open(&mo, &s->models, err));
    if (model) TN_TRY(tn_models_add(s->models, name, model, err));
    if (s->folder) look(s);
    if (s->err.code != TERN_OK) *err = s->err;
    if (s->err.code != TERN_OK) return s->err.code;
    TN_FAIL_IF(!tn_models_count(s->models), err, TERN_E_IO, "there are no models in %s", s->folder);
    tn_models_default(s->models, model ? name : NULL);
    if (!model) return TERN_OK;
    tn_served *k;
    (void)cli_packing_model(s->when, model);
    TN_TRY(tn_models_use(s->models, NULL, NULL, NULL, &k, err));
    cli_packing_opened(s->when, model, tn_queue_opts(tn_served_queue(k))->e, !s->ma.o.max_memory_bytes);
    tn_models_leave(k);
    return TERN_OK;
}

static void announce(const serving *s, const tn_http *h) {
    char folder[TN_CHECKPOINTS_PATH];
    const size_t n = tn_models_count(s->models);
    if (!tn_http_is_private(h))
        fprintf(stderr,
                "tern serve: this kernel does not tell whose a connection is: every user of this machine may "
                "read and erase the conversations and documents of this server (--api-key-file FILE keeps "
                "them out)\n");
    if (s->cache_mib && tn_checkpoints_place(folder))
        fprintf(stderr,
                "tern keeps conversations in %s (--cache-size 0: nowhere; tern forget --all erases them)\n",
                folder);
    fprintf(stderr, "tern serves ");
    if (s->folder) fprintf(stderr, "%zu model%s", n, n == 1 ? "" : "s");
    else
        fprintf(stderr, "%s",
                s->name                     ? s->name
                : strrchr(s->ma.model, '/') ? strrchr(s->ma.model, '/') + 1
                                            : s->ma.model);
    const bool brackets = s->listen_fd < 0 && strchr(s->host, ':') && s->host[0] != '[';
    fprintf(stderr, " on %s://%s%s%s:%d%s\n", s->cert ? "https" : "http", brackets ? "[" : "",
            s->listen_fd < 0 ? s->host : "127.0.0.1", brackets ? "]" : "", tn_http_port(h),
            s->keys                 ? " to who has a key"
            : tn_http_is_private(h) ? " to this user's programs"
                                    : "");
}

/* Has one of the signals come that are blocked until the server looks for them? */
static bool is_told_to_end(void *ends) {
    sigset_t come;
    if (sigpending(&come)) return false;
    return (sigismember(ends, SIGINT) && sigismember(&come, SIGINT)) ||
           (sigismember(ends, SIGTERM) && sigismember(&come, SIGTERM));
}

/* Before the server gives up its files, and once for the readers that are forked from it. A library that documents or
 * pictures lack is reported when one is sent. */
static tern_status load_libraries(tern_error *err) {
    static const tn_library others[] = {TN_LIBRARY_SQLITE, TN_LIBRARY_ARCHIVE, TN_LIBRARY_XML,
                                        TN_LIBRARY_PNG,    TN_LIBRARY_JPEG,    TN_LIBRARY_WEBP};
    TN_TRY(tn_library_need(TN_LIBRARY_MICROHTTPD, err));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) (void)tn_library_lacks(others[i]);
    return TERN_OK;
}

static int serve(const command *cmd, serving *s, char **argv) {
    sigset_t ends;
    tern_error err = {0}, no_files = {0};
    tn_http *h = NULL;
    tn_images_turns turns = TN_IMAGES_TURNS;
    s->turns = &turns;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (load_libraries(&err) != TERN_OK) return cli_failed(&err);
    /* now, while there is one thread and no sandbox */
    if (s->ma.model && s->when != PACKING_NEVER) cli_packing_prepare(s->when);
    /* the user's own programs: they read their own files, and a process outside the sandbox keeps them */
    int rc = cli_mcp_start(cmd, &s->mcp, &s->may, true, &s->tools);
    if (rc >= 0) return rc;
    tern_status st = cli_serve_files(argv, s->ma.model, s->folder, s->rerank, s->slot_folder, &no_files);
    /* its threads inherit it, and so do those who read documents: they read no file for the server that it may not */
    tn_picture_provide();
    if (tn_reader_open(TN_READERS, TN_READER_WAIT_S, &s->reader, &err) != TERN_OK)
        fprintf(stderr, "tern serve: the server reads no documents and no pictures: %s\n", err.message);
    if (st == TERN_OK || st == TERN_E_UNSUPPORTED) st = open_models(s, &err);
    else err = no_files;
    if (st == TERN_OK) st = cli_reranking_open(s->rerank ? s->rerank : "none", &s->reranker, &err);
    if (s->tools && st == TERN_OK) tn_mcp_servers_open(s->tools, cli_mcp_tell, is_told_to_end, &ends);
    if (s->tools) tn_mcp_servers_revive(s->tools, cli_mcp_tell, NULL);
    bool misused = st == TERN_E_INVALID; /* a flag's value that only the engine knows to be wrong */
    if (st == TERN_OK) {
        const tn_http_options ho = {.models = s->models,
                                    .tools = s->tools,
                                    .reader = s->reader,
                                    .reranker = s->reranker.v ? &s->reranker.as : NULL,
                                    .host = s->host,
                                    .port = s->port,
                                    .listen_fd = s->listen_fd,
                                    .strict = s->strict,
                                    .origins = s->origins,
                                    .hosts = s->hosts,
                                    .tls_cert = s->cert,
                                    .tls_key = s->tls_key,
                                    .keys = s->keys};
        st = tn_http_open(&ho, &h, &err);
    }
    if (st != TERN_OK) {
        (void)cli_failed(&err);
    } else {
        if (tn_sandbox_enter(TN_SANDBOX_SERVER, &err) != TERN_OK)
            fprintf(stderr, "tern serve: no sandbox: %s\n", err.message);
        if (no_files.code != TERN_OK)
            fprintf(stderr, "tern serve: no sandbox of files: %s\n", no_files.message);
        announce(s, h);
        wait_for_end(&ends, h, s->drain_ns);
    }
    tn_models_stop(s->models); /* connections wait for their jobs */
    tn_http_close(&h);
    cli_reranking_close(&s->reranker);
    tn_models_close(&s->models);
    tn_reader_close(&s->reader);
    tn_mcp_servers_close(&s->tools);
    return st == TERN_OK ? EXIT_OK : misused ? EXIT_USAGE : EXIT_FAILED;
}

static void let_go(serving *s) {
    free(s->keys);
    free(s->cert);
    free(s->tls_key);
    free(s->source);
}

static const serving as_usual = {.host = "127.0.0.1",
                                 .drain = "10s",
                                 .draft = "auto",
                                 .on_full = "stop",
                                 .port = 8080,
                                 .n_sessions = 8,
                                 .max_waiting = 32,
                                 .cache_mib = 2048,
                                 .listen_fd = -1};

int cmd_serve(int argc, char **argv) {
    serving s = as_usual;
    cli_model_args_defaults(&s.ma, TN_IN_SERVE);
    const arg_spec specs[] = {
        MODEL_ARGS(s.ma),
        PACK_ARG(s.ma),
        {"models", 0, "DIR", ARG_STR, &s.folder, 0, 0,
         "serve all models in DIR, including those added later (all: those that tern models lists); each is "
         "loaded on its first request"},
        {"allow-path", 0, "DIR", ARG_LIST, &s.folders, 0, 0,
         "let requests name pictures below DIR by their path; may be repeated (default: none)"},
        {"idle", 0, "TIME", ARG_STR, &s.idle, 0, 0,
         "unload a model after this long without a request; 0 = never (default 5m with --models, else 0)"},
        {"host", 0, "ADDRESS", ARG_STR, &s.host, 0, 0,
         "address to listen on: IPv4, IPv6 or localhost; an address that other machines reach needs "
         "--api-key-file (default 127.0.0.1)"},
        {"port", 0, "N", ARG_INT, &s.port, 0, 65535, "port; 0 = any free port (default 8080)"},
        {"drain", 0, "TIME", ARG_STR, &s.drain, 0, 0,
         "after SIGTERM or SIGINT, wait at most TIME for answers to finish; a second signal, or 0, ends them "
         "at once (default 10s)"},
        {"api-key-file", 0, "FILE", ARG_STR, &s.key_file, 0, 0,
         "requests need a key from FILE (one per line; only you may read the file)"},
        {"tls-cert", 0, "FILE", ARG_STR, &s.cert_file, 0, 0,
         "serve only TLS (https), with the certificate chain in FILE (PEM); needs --tls-key"},
        {"tls-key", 0, "FILE", ARG_STR, &s.tls_key_file, 0, 0,
         "private key of the certificate (PEM; only you may read the file)"},
        {"model-name", 0, "NAME", ARG_STR, &s.name, 0, 0,
         "name of the model in replies (default: its file name)"},
        {"pooling", 0, "mean|none", ARG_STR | ARG_MORE, &s.pooling, 0, 0,
         "how embeddings are made of tokens where a request does not say: the mean, or one each "
         "(/embeddings; "
         "default: as the model's file says)"},
        {"ctx-size", 'c', "N", ARG_INT, &s.n_ctx, 0, 1 << 24,
         "context length of a conversation in tokens (0, the default: the smaller of 4096 and the model's)"},
        {"sessions", 0, "N", ARG_INT, &s.n_sessions, 1, 256,
         "conversations kept in memory for their next turn; up to 8 are answered together (default 8)"},
        {"queue", 0, "N", ARG_INT, &s.max_waiting, 1, 1000, "most requests that wait (default 32)"},
        {"cache-size", 0, "MIB", ARG_INT, &s.cache_mib, 0, 1 << 20,
         "disk space for conversations, so that their next turn starts quickly even after a restart; 0 = "
         "none (default 2048)"},
        {"slot-save-path", 0, "DIR", ARG_STR, &s.slot_folder, 0, 0,
         "let clients save a session to a file in DIR and restore it (POST /slots/N?action=save|restore; "
         "default: refused)"},
        {"on-full", 0, "shift|stop", ARG_STR, &s.on_full, 0, 0,
         "when a conversation outgrows the context: drop its oldest turns, or refuse it (default stop)"},
        {"allow-origin", 0, "LIST", ARG_STR, &s.origins, 0, 0,
         "other sites whose pages may send requests: https://a.example,app://obsidian.md,http://localhost:*; "
         "localhost: every page of this machine (default: none)"},
        {"allow-host", 0, "LIST", ARG_STR, &s.hosts, 0, 0,
         "other host names that are served without keys: tern.example,box.local (default: none)"},
        RERANK_ARG(s.rerank, "as they were found"),
        MCP_ARGS(s.mcp, s.may),
        {"strict", 0, NULL, ARG_FLAG, &s.strict, 0, 0,
         "refuse requests with unsupported fields; otherwise the reply header X-Tern-Ignored lists them"},
        {"thinking", 0, "on|off", ARG_STR, &s.thoughts, 0, 0,
         "whether models think first when a request does not say (default: as their templates do)"},
        {"verbose", 0, NULL, ARG_FLAG | ARG_MORE, &s.verbose, 0, 0,
         "add `__verbose` to replies of OpenAI's API: the prompt as text, the settings, the tokens"},
        TEMPLATE_ARG(s.template),
        {"draft", 0, "LIST", ARG_STR, &s.draft, 0, 0,
         "drafters: auto, all, none, or a list of lookup, sam, calibrated, extend, mtp, head, model:FILE "
         "(default auto)"},
        {0},
    };
    const command cmd = {
        "serve", "MODEL | -m MODEL | --models DIR [OPTIONS]",
        "Serve models over HTTP with the APIs of OpenAI, Anthropic and Ollama, and a web page.", specs, 1};
    const char *words[2];
    int rc = cli_args_parse(&cmd, argc, argv, words);
    if (rc < 0) rc = cli_args_model_word(&cmd, &s.ma, words[0]);
    if (rc < 0) rc = check(&cmd, &s);
    if (rc < 0) rc = serve(&cmd, &s, argv);
    let_go(&s);
    return rc;
}
