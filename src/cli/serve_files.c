#include "cli/serve_files.h"

#include "base/file.h"
#include "model/catalogue.h"
#include "documents/sandbox.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

typedef struct list {
    tn_sandbox_path *at;
    size_t n, cap;
    bool failed;
} list;

/* A copy of the path; what does not exist is left out later. */
static void add(list *l, const char *path, bool writes) {
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->at[i].path, path) && l->at[i].writes >= writes) return;
    if (l->n == l->cap) {
        size_t cap = 2 * l->cap + 32;
        tn_sandbox_path *more = realloc(l->at, cap * sizeof *more);
        l->failed |= !more;
        if (!more) return;
        l->at = more;
        l->cap = cap;
    }
    char *copy = strdup(path);
    l->failed |= !copy;
    if (copy) l->at[l->n++] = (tn_sandbox_path){copy, writes};
}

/* Whether the user's own folder is this one or lies in it. */
static bool holds_home(const char *folder) {
    char *home = getenv("HOME") ? realpath(getenv("HOME"), NULL) : NULL;
    size_t n = strlen(folder);
    bool holds = home && !strncmp(home, folder, n) && (!home[n] || home[n] == '/');
    free(home);
    return holds;
}

/* A file and those beside it whose names begin as its own does: its further parts, and what was measured for it. */
static void add_parts(list *l, const char *folder, const char *name) {
    char path[PATH_MAX];
    const char *part = strstr(name, "-00001-of-"), *dot = strrchr(name, '.');
    size_t n = part ? (size_t)(part - name) : dot && dot != name ? (size_t)(dot - name) : strlen(name);
    DIR *d = opendir(folder);
    for (struct dirent *f; d && (f = readdir(d));)
        if (!strncmp(f->d_name, name, n) &&
            snprintf(path, sizeof path, "%s/%s", folder, f->d_name) < (int)sizeof path)
            add(l, path, false);
    if (d) closedir(d);
}

/* The folder of what a path leads to: parts of a model and what was measured for it lie beside it. Where that is the
 * user's own folder, its parts alone: what else lies there is nobody's affair. */
static void add_place(list *l, const char *path) {
    char *real = realpath(path, NULL), *slash = real ? strrchr(real, '/') : NULL;
    struct stat sb;
    bool file = real && !stat(real, &sb) && !S_ISDIR(sb.st_mode);
    if (file && slash && slash != real) *slash = 0;
    if (file && slash && slash != real && holds_home(real)) add_parts(l, real, slash + 1);
    else if (real && strcmp(real, "/")) add(l, real, false);
    free(real);
}

/* A model's place, and the places that links in its folder lead to (a cache of Hugging Face is full of them). */
static void add_model(list *l, const char *path) {
    char inner[PATH_MAX];
    add_place(l, path);
    DIR *d = opendir(path);
    for (struct dirent *f; d && (f = readdir(d));) {
        struct stat sb;
        bool fits = snprintf(inner, sizeof inner, "%s/%s", path, f->d_name) < (int)sizeof inner;
        if (fits && !lstat(inner, &sb) && S_ISLNK(sb.st_mode)) add_place(l, inner);
    }
    if (d) closedir(d);
}

static bool add_entry(void *user, const tn_catalogue_entry *e) {
    add_model(user, e->path);
    return true;
}

/* Words of the command line and of tern's environment that are paths, whole or in part: "NAME=FILE:SCALE,FILE". */
static void add_words(list *l, const char *text) {
    struct stat sb;
    if (!stat(text, &sb)) add_model(l, text);
    char *copy = strdup(text), *rest = copy;
    l->failed |= !copy;
    for (char *part; rest && (part = strsep(&rest, ",:="));)
        if (*part && strcmp(part, text) != 0 && !stat(part, &sb)) add_model(l, part);
    free(copy);
}

/* tern's own folder below one of the user's, made where it is missing: it could not be later. */
static void add_own(list *l, const char *variable, const char *below_home) {
    const char *base = getenv(variable), *home = getenv("HOME");
    char path[PATH_MAX];
    int n = base && tn_file_is_absolute(base)   ? snprintf(path, sizeof path, "%s/tern", base)
            : home && tn_file_is_absolute(home) ? snprintf(path, sizeof path, "%s/%s/tern", home, below_home)
                                                : -1;
    if (n < 0 || n >= (int)sizeof path) return;
    (void)tn_file_private_folder(path, NULL);
    add(l, path, true);
}

static void add_program(list *l) {
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 8);
    if (n <= 0) return;
    path[n] = 0;
    add_place(l, path); /* libraries in a tree that is built lie beside it */
    char *slash = strrchr(path, '/');
    if (!slash) return;
    snprintf(slash, 8, "/../lib");
    add(l, path, false);
}

/* Where pdftotext may be: those who read documents are held to the server's files, too. */
static void add_programs(list *l) {
    char *folders = strdup(getenv("PATH") ? getenv("PATH") : ""), *rest = folders;
    l->failed |= !folders;
    for (char *f; rest && (f = strsep(&rest, ":"));)
        if (*f == '/') add_place(l, f);
    free(folders);
}

tern_status cli_serve_files(char **argv, const char *model, const char *models, const char *reranker,
                            const char *slots, tern_error *err) {
    static const char *const system[] = {"/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc",
                                         "/opt", "/nix", "/gnu",   "/proc",  "/sys", "/dev"};
    list l = {0};
    if (!tn_sandbox_has_files()) return tn_fail(err, TERN_E_UNSUPPORTED, "this kernel has no Landlock");
    for (size_t i = 0; i < sizeof system / sizeof *system; i++) add(&l, system[i], false);
    add(&l, "/dev/null", true);
    add_program(&l);
    add_programs(&l);
    add_own(&l, "XDG_CACHE_HOME", ".cache");
    add_own(&l, "XDG_DATA_HOME", ".local/share");
    for (; *argv; argv++) { /* the keys have been read */
        if (!strcmp(*argv, "--api-key-file") && argv[1]) argv++;
        else if (strncmp(*argv, "--api-key-file=", 15) != 0) add_words(&l, *argv);
    }
    for (char **e = environ; *e; e++)
        if (!strncmp(*e, "TERN_", 5)) add_words(&l, strchr(*e, '=') + 1);
    if (model) add_model(&l, model);
    if (reranker) add_model(&l, reranker);
    if (slots) add(&l, slots, true);
    if (models && !strcmp(models, "all")) tn_catalogue_each(add_entry, &l);
    else if (models) tn_catalogue_folder(models, add_entry, &l);
    tern_status st = l.failed ? tn_fail(err, TERN_E_MEMORY, "no memory for the list of files")
                              : tn_sandbox_files(l.at, l.n, false, err);
    for (size_t i = 0; i < l.n; i++) free((char *)(uintptr_t)l.at[i].path);
    free(l.at);
    return st;
}
