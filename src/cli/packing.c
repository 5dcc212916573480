#include "cli/packing.h"

#include "cli/args.h"
#include "cli/live.h"
#include "cli/output.h"
#include "cli/pack_progress.h"

#include "base/background.h"
#include "formats/package.h"
#include "measure/tune.h"
#include "model/blocks.h"
#include "model/source.h"

#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRUSTED_TOKENS = 1000 }; /* a loss measured on fewer has no scatter worth telling */

static void notice(const char *what, const tern_error *err) {
    fprintf(stderr, "tern: %s: %s\n", what, cli_shown(err->message));
}

/* A package learns once what suits this machine, so that nobody has to ask for it. Without that it runs as
 * well, by what is usual. */
bool cli_packing_measure(const char *package) {
    tern_error err;
    tern_options o;
    tn_options_defaults(&o);
    if (cli_live()) cli_live_line("measuring this machine");
    bool busy = false, ok = tn_tune_by_itself(package, &o, &busy, &err) == TERN_OK;
    if (cli_live()) cli_live_clear();
    if (!ok) notice("this machine was not measured", &err);
    else if (busy) fprintf(stderr, "tern: another process is measuring for %s\n", cli_shown(package));
    return ok;
}

bool cli_packing_now(const char *model) {
    if (tn_pkg_is(model)) return cli_packing_measure(model);
    char folder[TN_CACHE_PATH], package[TN_CACHE_PATH];
    tern_error err;
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = cli_log_line;
    pack_progress shown = {0};
    hooks.user = &shown;
    if (cli_live()) hooks.progress = cli_pack_progress_show;
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    tn_pack_options o;
    bool busy = false;
    uint64_t limit_bytes;
    tern_status st = tn_cache_folder(folder, true, &err);
    if (st == TERN_OK) st = tn_cache_options(&ctx, model, &o, &err);
    if (st == TERN_OK) st = tn_cache_limit(folder, &limit_bytes, &err);
    if (st == TERN_OK) st = tn_cache_make(&ctx, folder, model, &o, limit_bytes, &busy, &err);
    cli_pack_progress_done(&shown);
    if (st != TERN_OK) notice("no package was made", &err);
    else if (busy) fprintf(stderr, "tern: another process is packing %s\n", cli_shown(model));
    else if (cli_packing_find(model, package)) (void)cli_packing_measure(package);
    return st == TERN_OK && !busy;
}

bool cli_packing_later(const char *model) {
    tn_ctx ctx;
    tn_source *src;
    tn_ctx_init(&ctx, NULL);
    if (tn_pkg_is(model) || tn_source_open(&ctx, model, &src, NULL) != TERN_OK) return cli_packing_now(model);
    const bool quantised = tn_blocks_in_source(src);
    tn_source_close(&src);
    return quantised ? cli_packing_measure(model) : cli_packing_now(model);
}

/* Whether a package is what its checksums say: its index, with `whole` all of it. */
static bool sound(const char *path, bool whole) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pkg *pkg;
    tern_status st = tn_pkg_open(&ctx, path, &pkg, NULL);
    for (size_t i = 0; st == TERN_OK && whole && i < tn_pkg_n_sections(pkg); i++) {
        const tn_pkg_section *s = tn_pkg_section_at(pkg, i);
        void *buf = tn_alloc(&ctx, TN_MEM_OTHER, s->size_bytes, 1);
        st = buf ? tn_pkg_read(pkg, s, buf, NULL) : TERN_E_MEMORY;
        tn_free(&ctx, buf);
    }
    tn_pkg_close(&pkg);
    return st != TERN_E_FORMAT && st != TERN_E_UNSUPPORTED;
}

static void remove_damaged(const char *folder, const char *key, const char *model) {
    tern_error err;
    if (tn_cache_remove(folder, key, &err) != TERN_OK)
        notice("a damaged package could not be removed from the cache", &err);
    else fprintf(stderr, "tern: the package of %s was damaged and has been removed\n", cli_shown(model));
}

/* What became of the process's model. */
static struct {
    char package[TN_CACHE_PATH]; /* opened in its place; "": none */
    const char *model;           /* NULL: none was opened */
    const char *later;           /* packed, or this machine measured for it, after the command; NULL: none */
    const char *const *words;    /* of the command that does it */
} used;

/* Whether the cache holds the model's package, and its path. */
static bool find(const char *model, char path[TN_CACHE_PATH], tern_error *err) {
    char folder[TN_CACHE_PATH], key[TN_CACHE_KEY];
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    *err = (tern_error){0};
    if (tn_cache_folder(folder, false, err) != TERN_OK ||
        tn_cache_key(&ctx, folder, model, TN_CONTENT_KNOWN, key, err) != TERN_OK || !*key ||
        !tn_cache_find(folder, key, path))
        return false;
    if (sound(path, false)) return true;
    remove_damaged(folder, key, model);
    return false;
}

bool cli_packing_find(const char *model, char path[TN_CACHE_PATH]) {
    tern_error err;
    return !tn_pkg_is(model) && find(model, path, &err);
}

bool cli_packing_parse(const char *text, packing_when *out) {
    static const char *const names[PACKING_N] = {"auto", "never", "later", "now"};
    if (!text) text = getenv("TERN_PACK");
    *out = PACKING_AUTO;
    if (!text || !*text) return true;
    for (int i = 0; i < PACKING_N; i++) {
        if (strcmp(text, names[i])) continue;
        *out = (packing_when)i;
        return true;
    }
    return false;
}

const char *cli_packing_model(packing_when when, const char *model) {
    used.package[0] = 0;
    used.later = NULL;
    used.model = when == PACKING_NEVER || tn_pkg_is(model) ? NULL : model;
    if (!used.model) return model;
    tern_error err;
    if (find(model, used.package, &err)) return used.package;
    if (err.message[0]) { /* a model that cannot be read gets its message from who opens it */
        if (when != PACKING_AUTO) notice("packages are not kept", &err);
        used.model = NULL;
    } else if (when == PACKING_NOW && cli_packing_now(model) && find(model, used.package, &err)) {
        return used.package;
    } else {
        if (when == PACKING_LATER) used.later = model;
    }
    used.package[0] = 0;
    return model;
}

/* Whether a profile can be kept beside the file, so that measuring is worth its while. */
static bool beside_is_writable(const char *path) {
    char folder[TN_CACHE_PATH];
    if (strlen(path) >= sizeof folder) return false;
    memcpy(folder, path, strlen(path) + 1);
    return !access(dirname(folder), W_OK);
}

const char *cli_loss_words(double kl, double kl_stderr, uint64_t n_tokens, char out[48]) {
    const double loss = 100 * expm1(kl), scatter = 100 * kl_stderr;
    if (n_tokens >= TRUSTED_TOKENS && scatter < loss / 2) snprintf(out, 48, "%.2f ± %.2f %%", loss, scatter);
    else snprintf(out, 48, "about %.*g %%", loss < 10 ? 1 : 2, loss);
    return out;
}

const char *cli_packing_words(const tn_cache_about *a, char *out, size_t cap) {
    char loss[48];
    if (a->bits <= 0) snprintf(out, cap, "what it loses is not known");
    else if (!a->n_held_tokens)
        snprintf(out, cap, "%.3g bits per weight; its loss was not measured", a->bits);
    else
        snprintf(out, cap,
                 "%.3g bits per weight, %s lost on text like the model's own, perhaps more on other text",
                 a->bits, cli_loss_words(a->kl, a->kl_stderr, a->n_held_tokens, loss));
    return out;
}

/* Who asks for a model reads once that its package answers. */
void cli_packing_tell(const char *model, const char *package) {
    tn_cache_about about;
    char words[160];
    tn_cache_about_get(package, &about);
    if (about.told) return;
    cli_progress_done();
    fprintf(stderr,
            "tern: %s: this answer and later ones come from its package: %s. Answers differ from the file's "
            "(to use the file: --pack never)\n",
            cli_shown(model), cli_packing_words(&about, words, sizeof words));
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    about.told = true;
    (void)tn_cache_about_put(&ctx, package, &about, NULL); /* else it is told again, which is no harm */
}

void cli_packing_measured(model_args *a) {
    packing_when when = PACKING_NEVER; /* where the file itself was asked for too */
    if (!a->model || tn_pkg_is(a->model)) {
        a->from = a->model ? "package" : "file";
        return;
    }
    if (a->pack || !(a->o.exact || a->o.scheme)) (void)cli_packing_parse(a->pack, &when);
    a->from = "file";
    const char *opened = cli_packing_model(when, a->model);
    if (opened == a->model) return;
    tn_cache_about about;
    char words[160];
    tn_cache_about_get(opened, &about);
    fprintf(
        stderr,
        "tern: %s: measuring its package, where answers come from: %s (to measure the file: --pack never)\n",
        cli_shown(a->model), cli_packing_words(&about, words, sizeof words));
    a->model = opened;
    a->from = "cache";
}

/* What goes on in the background is decided there, where it costs no start: a quantised file that nobody asked to pack
 * stays what its user chose, and this machine is measured for it. */
static const char *const packer_words[] = {"cache", "add", "--", NULL};
static const char *const later_words[] = {"cache", "later", "--", NULL};

static const char *const *words_for(packing_when when) {
    return when == PACKING_AUTO ? later_words : packer_words;
}

void cli_packing_prepare(packing_when when) { tn_background_prepare(words_for(when)); }

/* Whether a process that an earlier answer started makes the package now. */
static bool being_packed(const char *model) {
    char folder[TN_CACHE_PATH], key[TN_CACHE_KEY];
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    return tn_cache_folder(folder, false, NULL) == TERN_OK &&
           tn_cache_key(&ctx, folder, model, TN_CONTENT_KNOWN, key, NULL) == TERN_OK && *key &&
           tn_cache_making(folder, key);
}

void cli_packing_opened(packing_when when, const char *model, const tern_engine *e, bool measures) {
    const char *opened = used.package[0] ? used.package : model;
    if (used.package[0]) cli_packing_tell(model, used.package);
    tern_model_info info;
    tern_engine_info(e, &info);
    const bool quantised = !strcmp(info.scheme, "blocks") && !info.embeds;
    const bool of_file = quantised && when == PACKING_AUTO,
               of_package = tn_pkg_is(opened) && beside_is_writable(opened);
    used.words = words_for(when);
    if (measures && when != PACKING_NEVER && (of_file || of_package) && tn_tune_wanted(e, opened)) {
        used.later = opened;
        if (opened == model) /* whose package was made by itself has heard of that */
            fprintf(stderr,
                    "tern: measuring this machine for %s in the background, once (seconds, or minutes for a "
                    "large model; to skip it: --pack never)\n",
                    cli_shown(model));
    }
    if (when != PACKING_AUTO || !used.model || used.package[0] || info.embeds ||
        strcmp(info.scheme, "float") || being_packed(model))
        return;
    used.later = model;
    fprintf(stderr,
            "tern: packing %s in the background: later starts use the package, which is smaller and faster "
            "(tern cache lists packages; to keep to the file: --pack never)\n",
            cli_shown(model));
}

void cli_packing_end(bool failed) {
    char folder[TN_CACHE_PATH], key[TN_CACHE_KEY];
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    if (!failed) {
        if (used.later && !tn_background_run(used.words ? used.words : packer_words, used.later))
            fprintf(stderr, "tern: packing cannot be started in the background: %s\n", strerror(errno));
    } else if (used.package[0] && !sound(used.package, true) &&
               tn_cache_folder(folder, false, NULL) == TERN_OK &&
               tn_cache_key(&ctx, folder, used.model, TN_CONTENT_KNOWN, key, NULL) == TERN_OK && *key) {
        remove_damaged(folder, key, used.model);
    }
}
