#include "engine/beside.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_called(const char *name, const char *word) {
    size_t n = strlen(name);
    return strcasestr(name, word) && n > 5 && !strcasecmp(name + n - 5, ".gguf");
}

/* Files are called WORD-MODEL.gguf or MODEL-WORD.gguf: where the model's name begins. */
static const char *of_model(const char *name, const char *word) {
    size_t n = strlen(word);
    if (strncasecmp(name, word, n)) return name;
    return name + n + (name[n] == '-' || name[n] == '_');
}

static size_t same_beginning(const char *a, const char *b) {
    size_t n = 0;
    while (a[n] && a[n] == b[n]) n++;
    return n;
}

char *tn_beside_find(const char *model, const char *word, int *n_found) {
    const char *slash = strrchr(model, '/');
    struct stat sb;
    bool is_folder = !stat(model, &sb) && S_ISDIR(sb.st_mode);
    char *folder = strdup(is_folder || slash ? model : ".");
    if (folder && slash && !is_folder) folder[slash > model ? slash - model : 1] = 0;
    const char *name = is_folder ? "" : slash ? slash + 1 : model;
    char best[256] = "";
    size_t most = 0;
    int n_best = 0;
    errno = 0;
    DIR *d = folder ? opendir(folder) : NULL;
    bool unknown = !folder || (!d && (errno == ENOMEM || errno == EMFILE || errno == ENFILE));
    for (struct dirent *f; d && (f = readdir(d));) {
        size_t same = same_beginning(of_model(f->d_name, word), name);
        if (!is_called(f->d_name, word) || !strcmp(f->d_name, name) || strlen(f->d_name) >= sizeof best ||
            (n_best && same < most))
            continue;
        n_best = n_best && same == most ? n_best + 1 : 1;
        most = same;
        strcpy(best, f->d_name);
    }
    if (d) closedir(d);
    char *path = NULL;
    if (n_best == 1 && asprintf(&path, "%s/%s", folder, best) < 0) {
        path = NULL;
        unknown = true;
    }
    free(folder);
    *n_found = unknown ? -1 : n_best;
    return path;
}
