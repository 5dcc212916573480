/* tern rag - the documents that tern ask answers from: add, ls, rm. */
#include "cli/args.h"
#include "cli/captions.h"
#include "cli/commands.h"
#include "cli/embedding.h"
#include "cli/live.h"
#include "cli/output.h"
#include "cli/store_args.h"

#include "base/clock.h"
#include "server/checkpoints.h"
#include "documents/rag.h"
#include "documents/reader.h"
#include "package/tokens.h"
#include "pictures/sealed.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PATHS = 1024 };

static atomic_bool stopped;
static tern_session *_Atomic looking; /* while files are added; NULL: nobody looks at pictures */

static void on_interrupt(int sig) {
    (void)sig;
    atomic_store(&stopped, true);
    tern_session_cancel(atomic_load(&looking));
}

/* The callbacks of an `add` share this. */
typedef struct adding {
    bool terminal;
    tn_tokenizer *tok; /* NULL: tokens are guessed */
    tn_store *store;
    int32_t *ids;
    size_t cap;
} adding;

static void notice(void *user, const char *line) {
    const adding *a = user;
    if (a->terminal) cli_live_clear();
    fprintf(stderr, "tern: %s\n", cli_shown(line));
}

static void progress(void *user, const char *path, int64_t n_done) {
    (void)path;
    const adding *a = user;
    if (a->terminal && n_done % 16 == 0) cli_live_line("%lld documents", (long long)n_done);
}

static void vector_progress(void *user, int64_t n_done, int64_t n_all) {
    const adding *a = user;
    if (a->terminal) cli_live_line("%lld of %lld vectors", (long long)n_done, (long long)n_all);
}

/* Brings the vectors up to date: with the model given, else with the one that the index has.
 * *info tells how the index stands afterwards. Without a word said, a model that embeds is used where one is at hand. */
static tern_status bring_vectors(adding *a, const char *embed, const char *pooling, tn_vectors_info *info,
                                 int64_t *n_made, tern_error *err) {
    embedding x;
    char found[TN_VECTOR_PATH_MAX];
    tern_status st = TERN_OK;
    *n_made = 0;
    if (embed && !strcmp(embed, "none")) st = tn_vectors_drop(a->store, err);
    if (st == TERN_OK) st = tn_vectors_info_get(a->store, info, err);
    if (st == TERN_OK && !embed && !info->any && !info->declined &&
        cli_embedding_at_hand(found, sizeof found)) {
        embed = found;
        fprintf(stderr, "tern: passages are also found by meaning, with %s (--embed none: by words only)\n",
                cli_shown(found));
    }
    if (st != TERN_OK || (embed ? !strcmp(embed, "none") : !info->any || !info->n_missing)) return st;
    st = embed ? cli_embedding_open(embed, pooling, &x, err) : cli_embedding_open_noted(info, &x, err);
    if (st != TERN_OK) return st;
    st = tn_vectors_fill(a->store, &x.as, &stopped, vector_progress, a, n_made, err);
    if (st == TERN_OK) st = tn_vectors_info_get(a->store, info, err);
    cli_embedding_close(&x);
    return st;
}

static size_t count_tokens(void *user, const char *text, size_t n) {
    adding *a = user;
    size_t n_ids = 0;
    if (n + 16 > a->cap) {
        int32_t *more = realloc(a->ids, (n + 16) * sizeof *more);
        if (!more) return tn_text_count(text, n);
        a->ids = more;
        a->cap = n + 16;
    }
    return tn_tokenize(a->tok, text, n, false, false, a->ids, a->cap, &n_ids, NULL) == TERN_OK
               ? n_ids
               : tn_text_count(text, n);
}

typedef struct index_size {
    int64_t n_documents, n_passages;
} index_size;

/* Says what an addition did. Returns an exit status. */
static int report_added(const tn_rag_added *sum, const index_size *size, const tn_vectors_info *vectors,
                        int64_t n_made, double seconds, bool json) {
    if (json)
        return cli_emit_json(
            tn_json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "added",
                         (json_int_t)sum->n_added, "changed", (json_int_t)sum->n_changed, "unchanged",
                         (json_int_t)sum->n_unchanged, "removed", (json_int_t)sum->n_removed, "skipped",
                         (json_int_t)sum->n_skipped, "passages_written", (json_int_t)sum->n_passages,
                         "captions_written", (json_int_t)sum->n_captions, "empty_pages",
                         (json_int_t)sum->n_empty_pages, "documents", (json_int_t)size->n_documents,
                         "passages", (json_int_t)size->n_passages, "vectors_written", (json_int_t)n_made,
                         "vectors", (json_int_t)vectors->n_vectors, "seconds", seconds),
            JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    printf("%lld added, %lld changed, %lld unchanged, %lld removed, %lld skipped; %lld document%s with %lld "
           "passage%s",
           (long long)sum->n_added, (long long)sum->n_changed, (long long)sum->n_unchanged,
           (long long)sum->n_removed, (long long)sum->n_skipped, (long long)size->n_documents,
           size->n_documents == 1 ? "" : "s", (long long)size->n_passages, size->n_passages == 1 ? "" : "s");
    if (sum->n_captions) printf(" (%lld pictures and pages looked at)", (long long)sum->n_captions);
    if (vectors->any)
        printf(" and %lld vectors (%lld new)", (long long)vectors->n_vectors, (long long)n_made);
    printf(" in %.1f s\n", seconds);
    return EXIT_OK;
}

static void close_adding(adding *a, tn_reader **reader, char *file) {
    free(file);
    tn_reader_close(reader);
    tn_store_close(&a->store);
    tn_tokenizer_close(&a->tok);
    free(a->ids);
}

/* Files and folders, in the order that they were named in. *unread: one that was named itself was skipped; in a folder some
 * are expected to be no text. */
static tern_status add_paths(const adding *a, const char *const *paths, const tn_rag_options *o,
                             tn_rag_added *sum, bool *unread, tern_error *err) {
    tern_status st = TERN_OK;
    *unread = false;
    atomic_store(&looking, ((const captions *)o->caption_user)->s);
    for (const char *const *p = paths; *p && st == TERN_OK; p++) {
        const int64_t before = sum->n_skipped;
        struct stat at;
        st = tn_rag_add(a->store, *p, o, &stopped, sum, err);
        *unread |= sum->n_skipped > before && (stat(*p, &at) || !S_ISDIR(at.st_mode));
    }
    atomic_store(&looking, NULL);
    return st;
}

/* Returns -1 to go on, or an exit status. */
static int check_add(const command *c, int32_t max_tokens, int32_t overlap, const char *embed,
                     const char *pooling) {
    if (overlap >= max_tokens)
        return cli_usage_error(c, "--overlap %d: want less than --passage %d", overlap, max_tokens);
    if (pooling && (!embed || (strcmp(pooling, "last") && strcmp(pooling, "mean"))))
        return cli_usage_error(c, "--pooling %s: want mean or last, beside --embed MODEL", pooling);
    return -1;
}

static int sub_add(int argc, char **argv) {
    const char *store = NULL, *model = NULL, *embed = NULL, *pooling = NULL, *captioner = NULL;
    int32_t max_tokens = TN_RAG_PASSAGE_TOKENS, overlap = TN_RAG_OVERLAP_TOKENS, max_mib = 32;
    bool json = false;
    const arg_spec specs[] = {
        {"store", 0, "FILE", ARG_STR, &store, 0, 0, STORE_OF_DOCUMENTS},
        {"model", 'm', "MODEL", ARG_STR, &model, 0, 0,
         "count tokens with this model's tokenizer (default: 4 bytes per token)"},
        {"embed", 0, "MODEL", ARG_STR, &embed, 0, 0,
         "also find passages by meaning, with this embedding model (default: the smallest that `tern models` "
         "lists); later additions use it too; none: by words only"},
        {"pooling", 0, "mean|last", ARG_STR, &pooling, 0, 0,
         "which output becomes a passage's vector: the mean over its tokens, or the last token (default: as "
         "the model file says, else the mean)"},
        {"captions", 0, "MODEL", ARG_STR, &captioner, 0, 0,
         "let this model, which sees, describe pictures, PDF pages without text and the pictures of "
         "office documents (default: they are skipped)"},
        {"passage", 0, "N", ARG_INT, &max_tokens, 16, 4096, "most tokens per passage (default 192)"},
        {"overlap", 0, "N", ARG_INT, &overlap, 0, 4095,
         "tokens that a passage repeats from the one before (default 24)"},
        {"max-file", 0, "MIB", ARG_INT, &max_mib, 1, 1024, "skip larger files (default 32)"},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print one JSON object"},
        {0},
    };
    const command c = {"rag add", "PATH... [OPTIONS]",
                       "Index files, and folders with everything below them: text, Markdown, HTML, office "
                       "documents, books, mail, and PDF if pdftotext is installed.\nUnchanged files are not "
                       "read again, and files gone from a folder leave the index. Fails if a file that you "
                       "named cannot be read, or if reading one failed; the others are added.",
                       specs, MAX_PATHS};
    const char *paths[MAX_PATHS + 1];
    int rc = cli_args_parse(&c, argc, argv, paths);
    if (rc >= 0) return rc;
    if (!paths[0]) return cli_usage_error(&c, "no PATH given");
    rc = check_add(&c, max_tokens, overlap, embed, pooling);
    if (rc >= 0) return rc;
    tn_ctx ctx;
    tern_error err;
    cli_store_ctx(&ctx);
    adding a = {.terminal = cli_live()};
    char *file = cli_store_path(store);
    if (!file) return EXIT_FAILED;
    tn_reader *reader;
    if (captioner) tn_picture_provide();
    tern_status st = tn_reader_open(1, TN_READER_WAIT_S, &reader, &err); /* while there is one thread */
    captions looks = {.reader = reader, .stopped = &stopped, .terminal = a.terminal};
    if (st == TERN_OK && model) st = tn_tokens_open(&ctx, model, &a.tok, &err);
    if (st == TERN_OK) st = tn_store_open(&ctx, file, NULL, &a.store, &err);
    const tn_rag_options o = {.passages = {.max_tokens = (size_t)max_tokens,
                                           .overlap_tokens = (size_t)overlap,
                                           .count = a.tok ? count_tokens : NULL,
                                           .user = &a},
                              .max_file_bytes = (uint64_t)max_mib << 20,
                              .notice = notice,
                              .progress = progress,
                              .user = &a,
                              .caption = captioner ? cli_captions_make : NULL,
                              .caption_user = &looks,
                              .reader = reader};
    tn_rag_added sum = {0};
    signal(SIGINT, on_interrupt);
    double t0 = tn_now_s();
    bool unread = false;
    rc = st == TERN_OK && captioner ? cli_captions_open(&looks, captioner) : -1;
    if (st == TERN_OK && rc < 0) st = add_paths(&a, paths, &o, &sum, &unread, &err);
    cli_captions_close(&looks);
    tn_vectors_info vectors = {0};
    index_size size = {0};
    int64_t n_made = 0;
    if (st == TERN_OK && rc < 0) st = bring_vectors(&a, embed, pooling, &vectors, &n_made, &err);
    if (a.terminal) cli_live_clear();
    if (st == TERN_OK && rc < 0) st = tn_rag_counts(a.store, &size.n_documents, &size.n_passages, &err);
    if (st == TERN_OK && rc < 0) rc = report_added(&sum, &size, &vectors, n_made, tn_now_s() - t0, json);
    if (st == TERN_OK && (unread || sum.n_unread) && rc == EXIT_OK) rc = EXIT_FAILED;
    if (st != TERN_OK) rc = cli_failed(&err);
    close_adding(&a, &reader, file);
    return rc;
}

typedef struct listing {
    bool as_json;
    json_t *json;
    int64_t n;
} listing;

static bool list_one(void *user, const tn_rag_document *d) {
    listing *l = user;
    l->n++;
    if (l->as_json) {
        tn_json_append(&l->json, tn_json_pack("{s:s, s:I, s:I, s:I}", "path", d->path, "passages",
                                              (json_int_t)d->n_passages, "bytes", (json_int_t)d->n_bytes,
                                              "added", (json_int_t)d->added));
        return true;
    }
    char when[32];
    time_t t = (time_t)d->added;
    struct tm tm;
    strftime(when, sizeof when, "%Y-%m-%d %H:%M", localtime_r(&t, &tm));
    printf("%s  %6lld passage%s  %10lld bytes  %s\n", when, (long long)d->n_passages,
           d->n_passages == 1 ? " " : "s", (long long)d->n_bytes, cli_shown(d->path));
    return !ferror(stdout);
}

static int sub_ls(int argc, char **argv) {
    const char *store = NULL;
    bool json = false;
    const arg_spec specs[] = {
        {"store", 0, "FILE", ARG_STR, &store, 0, 0, STORE_OF_DOCUMENTS},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print a JSON array"},
        {0},
    };
    const command c = {"rag ls", "[OPTIONS]", "List the documents of the index.", specs, 0};
    const char *words[1];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    tn_ctx ctx;
    cli_store_ctx(&ctx);
    tn_store *s = cli_store_open_existing(&ctx, store, &rc);
    if (!s && rc != EXIT_OK) return rc;
    listing l = {.as_json = json, .json = json ? json_array() : NULL};
    tern_error err;
    tern_status st = s ? tn_rag_list(s, list_one, &l, &err) : TERN_OK;
    tn_store_close(&s);
    if (st != TERN_OK) {
        json_decref(l.json);
        return cli_failed(&err);
    }
    if (json) return cli_emit_json(l.json, JSON_INDENT(2));
    if (!l.n) fputs("tern: no documents: add some with tern rag add PATH\n", stderr);
    return EXIT_OK;
}

static int sub_rm(int argc, char **argv) {
    const char *store = NULL;
    bool all = false;
    const arg_spec specs[] = {
        {"store", 0, "FILE", ARG_STR, &store, 0, 0, STORE_OF_DOCUMENTS},
        {"all", 0, NULL, ARG_FLAG, &all, 0, 0, "every document"},
        {0},
    };
    const command c = {"rag rm", "PATH... | --all [OPTIONS]",
                       "Remove documents, or everything below a folder, from the index. The files stay.",
                       specs, MAX_PATHS};
    const char *paths[MAX_PATHS + 1];
    int rc = cli_args_parse(&c, argc, argv, paths);
    if (rc >= 0) return rc;
    if (!paths[0] != all) return cli_usage_error(&c, "want either PATH... or --all");
    tn_ctx ctx;
    cli_store_ctx(&ctx);
    tn_store *s = cli_store_open_existing(&ctx, store, &rc);
    if (!s && rc != EXIT_OK) return rc;
    int64_t sum = 0;
    tern_error err;
    tern_status st = TERN_OK;
    bool missing = false;
    for (int i = 0; st == TERN_OK && (all ? i < 1 : paths[i] != NULL); i++) {
        int64_t n = 0;
        if (s) st = tn_rag_remove(s, paths[i], &n, &err);
        if (st == TERN_OK && !n && paths[i]) {
            fprintf(stderr, "tern: %s: not in the index\n", cli_shown(paths[i]));
            missing = true;
        }
        sum += n;
    }
    tn_store_close(&s);
    int64_t n_prefixes;
    if (st == TERN_OK && sum && !store) st = tn_checkpoints_clear(&n_prefixes, &err); /* they may quote it */
    if (st != TERN_OK) return cli_failed(&err);
    printf("%lld removed\n", (long long)sum);
    return missing ? EXIT_FAILED : EXIT_OK;
}

static int sub_show(int argc, char **argv) {
    const char *store = NULL;
    bool json = false;
    const arg_spec specs[] = {
        {"store", 0, "FILE", ARG_STR, &store, 0, 0, STORE_OF_DOCUMENTS},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print one JSON object"},
        {0},
    };
    const command c = {"rag show", "PATH NUMBER [OPTIONS]",
                       "Print one passage of a document, by the number that tern ask gives in its sources.",
                       specs, 2};
    const char *words[3] = {0};
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    int32_t number;
    if (!words[0] || !words[1]) return cli_usage_error(&c, "want PATH and the passage's NUMBER");
    if (cli_parse_int_list(words[1], &number, 1, INT32_MAX) != 1)
        return cli_usage_error(&c, "%s: want the number of a passage", words[1]);
    tn_ctx ctx;
    cli_store_ctx(&ctx);
    tern_error err;
    tn_rag_hit *hit = NULL;
    tn_store *s = cli_store_open_existing(&ctx, store, &rc);
    if (!s) return rc == EXIT_OK ? cli_failed_text("%s: not in the index", words[0]) : rc;
    char *path = realpath(words[0], NULL); /* a file that is gone is named as it is in the index */
    tern_status st = tn_rag_passage(s, path ? path : words[0], number, &hit, &err);
    free(path);
    tn_store_close(&s);
    if (st != TERN_OK) return cli_failed(&err);
    if (json) {
        rc = cli_emit_json(tn_json_pack("{s:s, s:i, s:i, s:i, s:s}", "path", hit->path, "passage",
                                        (int)hit->number, "line", (int)hit->line, "page", (int)hit->page,
                                        "text", hit->text),
                           JSON_INDENT(2));
    } else {
        if (hit->line) printf("%s, line %d:\n", cli_shown(hit->path), hit->line);
        else if (hit->page) printf("%s, page %d:\n", cli_shown(hit->path), hit->page);
        else printf("%s:\n", cli_shown(hit->path));
        cli_put_answer(hit->text, strlen(hit->text));
        putchar('\n');
        rc = EXIT_OK;
    }
    tn_rag_hits_free(&ctx, &hit, 1);
    return rc;
}

int cmd_rag(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } subs[] = {{"add", sub_add}, {"ls", sub_ls}, {"rm", sub_rm}, {"show", sub_show}};
    static const arg_spec none[] = {{0}};
    const command c = {
        "rag", "add PATH... | ls | rm PATH... | show PATH NUMBER",
        "The documents that tern ask answers from. Options of a subcommand: tern rag add --help, and so on.",
        none, 1};
    for (size_t i = 0; argc > 1 && i < sizeof subs / sizeof subs[0]; i++) {
        if (!strcmp(argv[1], subs[i].name)) return subs[i].run(argc - 1, argv + 1);
    }
    const char *words[2];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    return words[0] ? cli_usage_error(&c, "unknown command '%s'", words[0])
                    : cli_usage_error(&c, "want add, ls, rm or show");
}
