/* tern forget - what tern keeps of a person, out of its files. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/store_args.h"

#include "base/status.h"
#include "server/checkpoints.h"
#include "server/talks.h"
#include "server/uploads.h"
#include "documents/rag.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct listing {
    json_t *json; /* or NULL: as lines */
    int64_t n;
} listing;

static bool list_one(void *user, const tn_store_sequence *s) {
    listing *l = user;
    l->n++;
    if (l->json) {
        tn_json_append(&l->json,
                       tn_json_pack("{s:I, s:s, s:I, s:I}", "id", (json_int_t)s->id, "kind",
                                    s->kind == TN_SEQUENCE_CHAT ? "conversation" : "document", "tokens",
                                    (json_int_t)s->n_tokens, "created", (json_int_t)s->created));
        return l->json != NULL;
    }
    char when[32] = "";
    struct tm tm;
    time_t t = (time_t)s->created;
    if (localtime_r(&t, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
    printf("%6lld  %s  %s of %lld tokens\n", (long long)s->id, when,
           s->kind == TN_SEQUENCE_CHAT ? "conversation" : "text of a document", (long long)s->n_tokens);
    return !ferror(stdout);
}

/* Zeros over the bytes, then away with the file. */
static bool erase_file(const char *path) {
    FILE *f = fopen(path, "r+b");
    if (!f) return errno == ENOENT;
    static const char zeros[4096];
    bool ok = !fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    for (long at = 0; ok && at < size; at += (long)sizeof zeros)
        ok = fwrite(zeros, 1, size - at < (long)sizeof zeros ? (size_t)(size - at) : sizeof zeros, f) > 0;
    ok = !fflush(f) && !fsync(fileno(f)) && ok;
    return !fclose(f) && !unlink(path) && ok;
}

/* What lies beside the store: lines that were typed, and the page's conversations. */
static tern_status forget_others(int64_t *n_talks, tern_error *err) {
    char path[4096];
    if (cli_history_path(path, sizeof path) && !erase_file(path))
        return tn_fail(err, TERN_E_IO, "%s: cannot be erased: %s", path, strerror(errno));
    return tn_talks_clear(n_talks, err);
}

static int list(const char *store, bool json) {
    tn_ctx ctx;
    cli_store_ctx(&ctx);
    tern_error err;
    int rc;
    tn_store *s = cli_store_open_existing(&ctx, store, &rc);
    if (!s && rc != EXIT_OK) return rc;
    listing l = {.json = json ? json_array() : NULL};
    tern_status st = s ? tn_store_list(s, list_one, &l, &err) : TERN_OK;
    tn_store_close(&s);
    if (st != TERN_OK) {
        json_decref(l.json);
        return cli_failed(&err);
    }
    if (json) return cli_emit_json(l.json, JSON_INDENT(2));
    if (!l.n) fputs("tern: there are no stored conversations\n", stderr);
    return EXIT_OK;
}

int cmd_forget(int argc, char **argv) {
    const char *store = NULL;
    bool all = false, documents = false, lists = false, json = false;
    const arg_spec specs[] = {
        {"all", 0, NULL, ARG_FLAG, &all, 0, 0,
         "conversations, documents, typed lines, and everything the server and its page keep"},
        {"documents", 0, NULL, ARG_FLAG, &documents, 0, 0,
         "documents, answers that quote them, and the server's saved conversations"},
        {"list", 0, NULL, ARG_FLAG, &lists, 0, 0, "only list conversations and texts with their ids"},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "list as a JSON array"},
        {"store", 0, "FILE", ARG_STR, &store, 0, 0, STORE_OF_DOCUMENTS},
        {0},
    };
    const command c = {"forget", "ID | --documents | --all | --list [OPTIONS]",
                       "Erase what tern keeps; the bytes are overwritten. With --store, only in that file.",
                       specs, 1};
    const char *words[2];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if ((words[0] != NULL) + all + documents + (lists || json) != 1)
        return cli_usage_error(&c, "give one of ID, --documents, --all and --list");
    if (lists || json) return list(store, json);
    char *end = NULL;
    int64_t id = words[0] ? strtoll(words[0], &end, 10) : 0, n_documents = 0, n = 0, n_prefixes = 0,
            n_talks = 0;
    if (words[0] && (*end || id < 1))
        return cli_usage_error(&c, "'%s' is not an ID: tern forget --list lists them", words[0]);
    tn_ctx ctx;
    cli_store_ctx(&ctx);
    tern_error err;
    tn_store *s = cli_store_open_existing(&ctx, store, &rc);
    if (!s && rc != EXIT_OK) return rc;
    tern_status st = TERN_OK;
    if (s && !id) st = tn_rag_remove(s, NULL, &n_documents, &err);
    if (s && st == TERN_OK && !documents) st = tn_store_erase(s, id, &n, &err);
    tn_store_close(&s);
    int64_t n_uploads;
    if (st == TERN_OK && !id && !store)
        st = tn_uploads_clear(&n_uploads, &err); /* their texts, already counted */
    if (st == TERN_OK && all && !store) st = forget_others(&n_talks, &err);
    if (st == TERN_OK && !id && !store) /* conversations that the server knows the states of: any may quote */
        st = tn_checkpoints_clear(&n_prefixes, &err);
    if (st != TERN_OK) return cli_failed(&err);
    if (id && !n)
        return cli_failed_text("nothing has the ID %lld: tern forget --list lists the IDs", (long long)id);
    printf("erased: %lld conversations and texts", (long long)n);
    if (!id) printf(", %lld documents", (long long)n_documents);
    if (n_talks) printf(", %lld conversations of the page", (long long)n_talks);
    if (n_prefixes) printf(", %lld conversations of the server", (long long)n_prefixes);
    putchar('\n');
    return EXIT_OK;
}
