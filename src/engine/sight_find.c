#include "engine/sight_find.h"

#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_mmproj(const char *name) {
    size_t n = strlen(name);
    return strcasestr(name, "mmproj") && n > 5 && !strcasecmp(name + n - 5, ".gguf");
}

/* Files are called mmproj-MODEL.gguf or MODEL-mmproj.gguf: where the model's name begins. */
static const char *of_model(const char *name) {
    if (strncasecmp(name, "mmproj", 6)) return name;
    return name + 6 + (name[6] == '-' || name[6] == '_');
}

static size_t same_beginning(const char *a, const char *b) {
    size_t n = 0;
    while (a[n] && a[n] == b[n]) n++;
    return n;
}

char *tn_sight_find(const char *model, tern_error *err) {
    const char *slash = strrchr(model, '/');
    struct stat sb;
    bool is_folder = !stat(model, &sb) && S_ISDIR(sb.st_mode);
    char *folder = strdup(is_folder || slash ? model : ".");
    if (folder && slash && !is_folder) folder[slash - model + 1] = 0;
    const char *name = is_folder ? "" : slash ? slash + 1 : model;
    char best[256] = "";
    size_t most = 0;
    int n_best = 0;
    errno = 0;
    DIR *d = folder ? opendir(folder) : NULL;
    bool unknown = !folder || (!d && (errno == ENOMEM || errno == EMFILE || errno == ENFILE));
    for (struct dirent *f; d && (f = readdir(d));) {
        size_t same = same_beginning(of_model(f->d_name), name);
        if (!is_mmproj(f->d_name) || strlen(f->d_name) >= sizeof best || (n_best && same < most)) continue;
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
    if (unknown)
        (void)tn_fail(err, TERN_E_MEMORY, "no memory, or no free descriptor, to look for a picture encoder");
    else if (n_best > 1)
        (void)tn_fail(err, TERN_E_UNSUPPORTED,
                      "%s has several picture encoders beside it: choose one with --mmproj FILE", folder);
    else if (!path)
        (void)tn_fail(
            err, TERN_E_UNSUPPORTED,
            "%s has no picture encoder beside it (a file mmproj*.gguf): give one with --mmproj FILE", model);
    free(folder);
    return path;
}
