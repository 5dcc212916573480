/* tern pull - fetches a model. The only command that opens a connection. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/live.h"
#include "cli/output.h"
#include "cli/pull.h"
#include "cli/pull_plan.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/outfile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { STALL_S = 60 };

/* The folder that is there already of a path, for its file system. */
static bool free_bytes(const char *path, uint64_t *out) {
    char at[PULL_PATH];
    struct statvfs v;
    snprintf(at, sizeof at, "%s", path);
    while (statvfs(at, &v)) {
        char *slash = strrchr(at, '/');
        if (errno != ENOENT || !slash) return false;
        if (slash == at) slash[1] = 0;
        else *slash = 0;
        if (!strcmp(at, "/") && statvfs(at, &v)) return false;
    }
    *out = (uint64_t)v.f_bavail * v.f_frsize;
    return true;
}

/* Checks that the disk has room for what is not there yet. Nothing has been fetched then. */
static tern_status check_room(const pull_plan *p, tern_error *err) {
    uint64_t want = 0, have;
    for (int i = 0; i < p->n; i++) {
        struct stat sb;
        char part[PULL_PATH + 16];
        const pull_item *x = &p->items[i];
        if (!stat(x->blob, &sb) && (uint64_t)sb.st_size == x->file.n_bytes) continue;
        snprintf(part, sizeof part, "%s.incomplete", x->blob);
        uint64_t there = !stat(part, &sb) ? (uint64_t)sb.st_size : 0;
        want += x->file.n_bytes > there ? x->file.n_bytes - there : 0;
    }
    if (!free_bytes(p->root, &have) || have > want) return TERN_OK;
    return tn_fail(err, TERN_E_IO, "%s: no room: %" PRIu64 " MiB are wanted, %" PRIu64 " MiB are free",
                   p->root, (want >> 20) + 1, have >> 20);
}

static tern_status make_parents(const char *path, tern_error *err) {
    char *copy = strdup(path);
    TN_FAIL_IF(!copy, err, TERN_E_MEMORY, "no memory for a path");
    tern_status st = tn_file_make_parents(copy, err);
    free(copy);
    return st;
}

/* A link that is there already is replaced in one step, so that no reader finds none. */
static tern_status make_link(const pull_item *i, tern_error *err) {
    char beside[PULL_PATH + 16];
    TN_TRY(make_parents(i->link, err));
    snprintf(beside, sizeof beside, "%s.%d.new", i->link, (int)getpid());
    (void)unlink(beside);
    if (!symlink(i->target, beside) && !rename(beside, i->link)) return TERN_OK;
    tern_status st = tn_fail(err, TERN_E_IO, "%s: %s", i->link, strerror(errno));
    (void)unlink(beside);
    return st;
}

static tern_status write_ref(const pull_plan *p, tern_error *err) {
    static const tn_outkind kind = {.what = "a registry's note", .begins = {""}};
    tn_outfile *f;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    TN_TRY(make_parents(p->ref, err));
    TN_TRY(tn_outfile_open(&ctx, p->ref, &kind, &f, err));
    tern_status st = tn_outfile_write(f, p->ref_text, strlen(p->ref_text), err);
    if (st == TERN_OK) st = tn_outfile_commit(&f, err);
    tn_outfile_abort(&f);
    return st;
}

static tern_status plan(pull_http *h, pull_plan *p, tern_error *err) {
    switch (p->name.from) {
    case PULL_HUB: return cli_pull_plan_hub(h, p, err);
    case PULL_OLLAMA: return cli_pull_plan_ollama(h, p, err);
    default: return cli_pull_plan_url(p, err);
    }
}

static tern_status fetch(pull_http *h, pull_plan *p, tern_error *err) {
    pull_progress shown = {.terminal = cli_live(), .started_s = tn_now_s()};
    for (int i = 0; i < p->n; i++) shown.all += p->items[i].file.n_bytes;
    if (!shown.terminal && shown.all)
        fprintf(stderr, "tern: fetching %s, %.1f MiB\n", cli_shown(p->shown), (double)shown.all / 1048576);
    else if (!shown.terminal) fprintf(stderr, "tern: fetching %s\n", cli_shown(p->shown));
    tern_status st = TERN_OK;
    for (int i = 0; i < p->n && st == TERN_OK; i++) {
        cli_pull_show(&shown, p->items[i].name, true);
        st = make_parents(p->items[i].blob, err);
        if (st == TERN_OK) st = cli_pull_file(h, &p->items[i].file, &shown, err);
        cli_pull_show(&shown, p->items[i].name, true);
    }
    cli_pull_show_end(&shown);
    if (st == TERN_OK && p->name.from == PULL_URL) st = cli_pull_settle_url(p, err);
    for (int i = 0; i < p->n && st == TERN_OK; i++)
        if (p->items[i].link[0]) st = make_link(&p->items[i], err);
    return st == TERN_OK ? write_ref(p, err) : st;
}

int cli_pull(const char *text, int stall_s, pull_print print) {
    tern_error err = {0};
    pull_http *h = NULL;
    pull_plan *p = calloc(1, sizeof *p);
    if (p) p->items = calloc(PULL_FILES, sizeof *p->items);
    tern_status st = TERN_E_INVALID;
    if (!p || !p->items) st = tn_fail(&err, TERN_E_MEMORY, "no memory to plan");
    else if (!cli_pull_name(text, &p->name))
        st = tn_fail(&err, TERN_E_INVALID,
                     "%s: give ORG/REPO or ORG/REPO:QUANT (Hugging Face), NAME or NAME:TAG (Ollama's "
                     "registry), or the address of a GGUF file",
                     text);
    else if (!cli_http_open(&h, stall_s, &err)) st = TERN_E_UNSUPPORTED;
    else st = plan(h, p, &err);
    if (st == TERN_OK) st = check_room(p, &err);
    if (st == TERN_OK) st = fetch(h, p, &err);
    cli_http_close(&h);
    int rc = st == TERN_OK ? EXIT_OK : cli_failed(&err);
    if (st == TERN_OK && print == PULL_JSON) {
        uint64_t n = 0;
        for (int i = 0; i < p->n; i++) n += p->items[i].file.n_bytes;
        rc = cli_emit_json(tn_json_pack("{s:s, s:s, s:i, s:I}", "name", p->shown, "path", p->model, "files",
                                        p->n, "bytes", (json_int_t)n),
                           JSON_INDENT(2));
    } else if (st == TERN_OK && print == PULL_PATH_LINE) {
        puts(p->model);
        fprintf(stderr, "tern: it is here: tern %s \"a question\"\n", cli_shown(p->shown));
    }
    if (p) free(p->items);
    free(p);
    return rc;
}

bool cli_pull_offer(const char *text) {
    pull_name name;
    char answer[16] = "";
    pull_http *h;
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO) || !cli_pull_name(text, &name) ||
        strchr("./~", text[0]))
        return false;
    if (!cli_http_open(&h, STALL_S, NULL)) return false; /* nothing could be fetched */
    cli_http_close(&h);
    fprintf(stderr, "tern: %s is not on this machine. Fetch it from %s now (tern pull)? [y/N] ",
            cli_shown(text),
            name.from == PULL_HUB      ? "Hugging Face"
            : name.from == PULL_OLLAMA ? "Ollama's registry"
                                       : "there");
    if (!fgets(answer, sizeof answer, stdin)) return false;
    return (answer[0] == 'y' || answer[0] == 'Y') && cli_pull(text, STALL_S, PULL_NOTHING) == EXIT_OK;
}

int cmd_pull(int argc, char **argv) {
    bool json = false;
    int32_t stall_s = STALL_S;
    const arg_spec specs[] = {
        {"timeout", 0, "SECONDS", ARG_INT, &stall_s, 1, 3600,
         "retry after this long without a byte (default 60)"},
        {"json", 0, NULL, ARG_FLAG, &json, 0, 0, "print one JSON object: name, path, files, bytes"},
        {0},
    };
    const command c = {
        "pull", "NAME [OPTIONS]",
        "Fetch a model and print where it is. NAME is ORG/REPO or ORG/REPO:QUANT (Hugging Face), NAME:TAG "
        "(Ollama's registry), or the address of a GGUF file.\nModels go into those programs' own caches, so "
        "that they find them too. An interrupted download continues where it stopped. $HF_TOKEN, "
        "$HF_ENDPOINT and proxy settings are followed. No other command opens a connection.",
        specs, 1};
    const char *words[2] = {0};
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    if (!words[0]) return cli_usage_error(&c, "NAME is required");
    return cli_pull(words[0], stall_s, json ? PULL_JSON : PULL_PATH_LINE);
}
