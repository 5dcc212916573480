#include "model/catalogue.h"

#include "base/json.h"
#include "base/status.h"
#include "model/arch.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_PATH = 2048, MAX_DEPTH = 4, MAX_MANIFEST = 1 << 20 };

typedef struct place {
    uint64_t device, inode;
} place;

typedef struct walk {
    bool (*on_entry)(void *user, const tn_catalogue_entry *e);
    void *user;
    const char *where, *root;
    place *
        seen; /* [cap_seen]: folders above and below the one that is walked, and files; links lead to no second time */
    size_t n_seen, cap_seen;
    bool stopped;
} walk;

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n > k && !strcmp(s + n - k, end);
}

/* The part of "...-00002-of-00003.gguf", and how many there are; 0 for a file of its own. */
static int split_part(const char *name, int *n_parts) {
    int part = 0, used = 0;
    size_t n = strlen(name);
    const char *tail = n > 20 ? name + n - 20 : "";
    if (sscanf(tail, "-%5d-of-%5d.gguf%n", &part, n_parts, &used) == 2 && used == 20) return part;
    return 0;
}

static uint64_t bytes_of(const char *path) {
    struct stat sb;
    return !stat(path, &sb) && S_ISREG(sb.st_mode) ? (uint64_t)sb.st_size : 0;
}

static uint64_t bytes_of_parts(const char *path, int n_parts) {
    uint64_t sum = 0;
    char part[MAX_PATH];
    for (int i = 1; i <= n_parts && i <= 999; i++) {
        snprintf(part, sizeof part, "%.*s-%05d-of-%05d.gguf", (int)(strlen(path) - 20), path, i, n_parts);
        sum += bytes_of(part);
    }
    return sum;
}

static void give(walk *w, const char *name, const char *path, uint64_t n_bytes) {
    const tn_catalogue_entry e = {.name = name, .path = path, .where = w->where, .n_bytes = n_bytes};
    w->stopped = w->stopped || !w->on_entry(w->user, &e);
}

/* Notes it; false: it was there. Without memory it is not noted, and links go as deep as folders do. */
static bool is_new(walk *w, const struct stat *sb) {
    for (size_t i = 0; i < w->n_seen; i++)
        if (w->seen[i].device == (uint64_t)sb->st_dev && w->seen[i].inode == (uint64_t)sb->st_ino)
            return false;
    if (w->n_seen == w->cap_seen) {
        size_t cap = 2 * w->cap_seen + 64;
        place *more = realloc(w->seen, cap * sizeof *more);
        if (!more) return true;
        w->seen = more;
        w->cap_seen = cap;
    }
    w->seen[w->n_seen++] = (place){(uint64_t)sb->st_dev, (uint64_t)sb->st_ino};
    return true;
}

static int visible(const struct dirent *d) { return d->d_name[0] != '.'; }

/* A folder of safetensors with its config is one model. */
static uint64_t safetensors_in(const char *folder) {
    char file[MAX_PATH];
    struct dirent **list;
    uint64_t sum = 0;
    if (snprintf(file, sizeof file, "%s/config.json", folder) >= (int)sizeof file || !bytes_of(file))
        return 0;
    int n = scandir(folder, &list, visible, alphasort);
    for (int i = 0; i < n; i++) {
        bool fits = snprintf(file, sizeof file, "%s/%s", folder, list[i]->d_name) < (int)sizeof file;
        if (fits && ends_with(file, ".safetensors")) sum += bytes_of(file);
        free(list[i]);
    }
    if (n >= 0) free(list);
    return sum;
}

uint64_t tn_catalogue_bytes(const char *path) {
    int n_parts = 0;
    const uint64_t own = bytes_of(path);
    if (!own) return safetensors_in(path);
    return split_part(path, &n_parts) ? bytes_of_parts(path, n_parts) : own;
}

static void folder(walk *w, const char *path, const char *name, int depth);

static void in_folder(walk *w, const char *path, const char *name, const char *file, int depth) {
    char full[MAX_PATH], shown[MAX_PATH];
    struct stat sb;
    int n_parts = 0;
    if (snprintf(full, sizeof full, "%s/%s", path, file) >= (int)sizeof full || stat(full, &sb)) return;
    snprintf(shown, sizeof shown, "%s%s%s", name, *name ? "/" : "", file);
    if (S_ISDIR(sb.st_mode)) {
        folder(w, full, shown, depth + 1);
    } else if (S_ISREG(sb.st_mode) && (ends_with(file, ".gguf") || ends_with(file, ".tern"))) {
        int part = split_part(file, &n_parts);
        if (part <= 1 && is_new(w, &sb))
            give(w, shown, full, part ? bytes_of_parts(full, n_parts) : (uint64_t)sb.st_size);
    }
}

static void folder(walk *w, const char *path, const char *name, int depth) {
    struct dirent **list;
    struct stat sb;
    if (depth > MAX_DEPTH || w->stopped || stat(path, &sb) || !is_new(w, &sb)) return;
    uint64_t n_bytes = safetensors_in(path);
    if (n_bytes) give(w, *name ? name : path, path, n_bytes);
    int n = scandir(path, &list, visible, alphasort);
    for (int i = 0; i < n; i++) {
        if (!w->stopped) in_folder(w, path, name, list[i]->d_name, depth);
        free(list[i]);
    }
    if (n >= 0) free(list);
}

/* A folder of its own: what an earlier one had is given again. What lies above it is not its. */
static void top_folder(walk *w, const char *path, const char *name, int depth) {
    char up[MAX_PATH];
    struct stat sb;
    int n = snprintf(up, sizeof up, "%s", path);
    w->n_seen = 0;
    while (n > 0 && n + 4 < (int)sizeof up) {
        memcpy(up + n, "/..", 4);
        n += 3;
        if (stat(up, &sb) || !is_new(w, &sb)) break; /* the root is above itself */
    }
    folder(w, path, name, depth);
    free(w->seen);
    w->seen = NULL;
    w->n_seen = w->cap_seen = 0;
}

/* ---- Hugging Face: models--ORG--NAME/snapshots/REVISION/files ------------------------------------- */

static void hf_model(walk *w, const char *hub, const char *entry) {
    char path[MAX_PATH], name[MAX_PATH], inner[MAX_PATH];
    struct dirent **list;
    snprintf(name, sizeof name, "%s", entry + strlen("models--"));
    char *dash = strstr(name, "--");
    if (dash) *dash = '/', memmove(dash + 1, dash + 2, strlen(dash + 2) + 1);
    if (snprintf(path, sizeof path, "%s/%s/snapshots", hub, entry) >= (int)sizeof path) return;
    int n = scandir(path, &list, visible, alphasort);
    for (int i = 0; i < n; i++) {
        bool fits = snprintf(inner, sizeof inner, "%s/%s", path, list[i]->d_name) < (int)sizeof inner;
        if (fits && i == n - 1) top_folder(w, inner, name, 1); /* one snapshot: names would be the same */
        free(list[i]);
    }
    if (n >= 0) free(list);
}

static void hugging_face(walk *w) {
    const char *hub = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME"),
               *user = getenv("HOME");
    char path[MAX_PATH];
    if (hub && *hub) snprintf(path, sizeof path, "%s", hub);
    else if (home && *home) snprintf(path, sizeof path, "%s/hub", home);
    else if (cache && *cache) snprintf(path, sizeof path, "%s/huggingface/hub", cache);
    else if (user && *user) snprintf(path, sizeof path, "%s/.cache/huggingface/hub", user);
    else return;
    struct dirent **list;
    int n = scandir(path, &list, visible, alphasort);
    for (int i = 0; i < n; i++) {
        if (!w->stopped && !strncmp(list[i]->d_name, "models--", 8)) hf_model(w, path, list[i]->d_name);
        free(list[i]);
    }
    if (n >= 0) free(list);
}

/* ---- Ollama: manifests/HOST/ORG/NAME/TAG say which blob ------------------------------------------ */

static void ollama_manifest(walk *w, const char *file, const char *name) {
    char path[MAX_PATH];
    if (bytes_of(file) == 0 || bytes_of(file) > MAX_MANIFEST) return;
    json_t *j, *layer;
    if (tn_json_read(file, JSON_REJECT_DUPLICATES, &j, NULL) != TERN_OK) return;
    size_t i;
    json_array_foreach(json_object_get(j, "layers"), i, layer) {
        const char *type = json_string_value(json_object_get(layer, "mediaType")),
                   *digest = json_string_value(json_object_get(layer, "digest"));
        bool model = type && digest && !strcmp(type, "application/vnd.ollama.image.model") &&
                     !strncmp(digest, "sha256:", 7) &&
                     strspn(digest + 7, "0123456789abcdef") == strlen(digest + 7);
        if (!model ||
            snprintf(path, sizeof path, "%s/blobs/sha256-%s", w->root, digest + 7) >= (int)sizeof path)
            continue;
        if (bytes_of(path)) give(w, name, path, bytes_of(path));
    }
    json_decref(j);
}

/* depth 0: host, 1: organisation, 2: name, 3: tag */
static void ollama(walk *w, const char *path, const char *name, int depth) {
    char full[MAX_PATH], shown[MAX_PATH];
    struct dirent **list;
    int n = scandir(path, &list, visible, alphasort);
    for (int i = 0; i < n; i++) {
        const char *d = list[i]->d_name;
        bool fits = snprintf(full, sizeof full, "%s/%s", path, d) < (int)sizeof full;
        bool first = depth == 0 || (depth == 1 && !strcmp(d, "library")); /* not part of a name */
        snprintf(shown, sizeof shown, "%s%s%s", name,
                 first || !*name ? ""
                 : depth == 3    ? ":"
                                 : "/",
                 first ? "" : d);
        if (fits && !w->stopped && depth < 3) ollama(w, full, shown, depth + 1);
        else if (fits && !w->stopped) ollama_manifest(w, full, shown);
        free(list[i]);
    }
    if (n >= 0) free(list);
}

/* ---- all ----------------------------------------------------------------------------------------- */

static void own_folders(walk *w) {
    const char *places = getenv("TERN_MODELS");
    char path[MAX_PATH];
    for (const char *p = places; p && *p && !w->stopped;) {
        size_t n = strcspn(p, ":");
        if (n && n < sizeof path) {
            snprintf(path, sizeof path, "%.*s", (int)n, p);
            top_folder(w, path, "", 0);
        }
        p += n + (p[n] == ':');
    }
}

void tn_catalogue_each(bool (*on_entry)(void *, const tn_catalogue_entry *), void *user) {
    walk w = {.on_entry = on_entry, .user = user, .where = "TERN_MODELS"};
    const char *home = getenv("HOME"), *store = getenv("OLLAMA_MODELS");
    char path[MAX_PATH], manifests[MAX_PATH + 16];
    own_folders(&w);
    w.where = "Hugging Face";
    hugging_face(&w);
    w.where = "Ollama";
    const char *const ollamas[] = {store && *store ? store : NULL, home, "/usr/share/ollama"};
    for (int i = 0; i < 3; i++) {
        if (!ollamas[i] || (i && ollamas[0])) continue;
        snprintf(path, sizeof path, i ? "%s/.ollama/models" : "%s", ollamas[i]);
        snprintf(manifests, sizeof manifests, "%s/manifests", path);
        w.root = path;
        ollama(&w, manifests, "", 0);
    }
    w.where = "LM Studio";
    static const char *const studios[] = {".lmstudio/models", ".cache/lm-studio/models"};
    for (int i = 0; home && i < 2; i++) {
        if (snprintf(path, sizeof path, "%s/%s", home, studios[i]) < (int)sizeof path)
            top_folder(&w, path, "", 0);
    }
}

void tn_catalogue_folder(const char *path, bool (*on_entry)(void *, const tn_catalogue_entry *), void *user) {
    walk w = {.on_entry = on_entry, .user = user, .where = path};
    top_folder(&w, path, "", 0);
}

typedef struct search {
    const char *name;
    char *path;
    size_t cap;
    int n_whole, n_last;
    char last[MAX_PATH];
} search;

bool tn_catalogue_is_beside(const char *name) {
    return strcasestr(name, "mmproj") || strcasestr(name, "eagle3") || strcasestr(name, "dflash") ||
           strcasestr(name, "-it-assistant") || strcasestr(name, "mtp-gemma");
}

bool tn_catalogue_is_model(const tn_catalogue_entry *e) {
    char file[MAX_PATH];
    json_t *config;
    if (tn_catalogue_is_beside(e->name)) return false;
    if (snprintf(file, sizeof file, "%s/config.json", e->path) >= (int)sizeof file || !bytes_of(file) ||
        bytes_of(file) > MAX_MANIFEST || tn_json_read(file, 0, &config, NULL) != TERN_OK)
        return true; /* what is wrong with it is told when it is opened */
    bool head = tn_arch_of_head_hf(config) != NULL;
    json_decref(config);
    return !head;
}

bool tn_catalogue_last_part(const char *entry, const char *name) {
    const char *slash = strrchr(entry, '/');
    const char *last = slash ? slash + 1 : entry;
    size_t n = strlen(name);
    if (strncmp(last, name, n)) return false;
    return !last[n] || !strcmp(last + n, ".gguf") || !strcmp(last + n, ".tern") ||
           !strcmp(last + n, ":latest");
}

static bool compare(void *user, const tn_catalogue_entry *e) {
    search *s = user;
    size_t n = strlen(e->path);
    if (n >= s->cap || n >= sizeof s->last) return true;
    if (!strcmp(e->name, s->name)) {
        if (!s->n_whole++) memcpy(s->path, e->path, n + 1);
    } else if (tn_catalogue_last_part(e->name, s->name)) {
        if (!s->n_last++) memcpy(s->last, e->path, n + 1);
    }
    return true;
}

bool tn_catalogue_find(const char *name, char *path, size_t cap) {
    search s = {.name = name, .path = path, .cap = cap};
    if (!*name || name[0] == '.' || name[0] == '/') return false;
    tn_catalogue_each(compare, &s);
    if (!s.n_whole && s.n_last == 1) snprintf(path, cap, "%s", s.last);
    return s.n_whole > 0 || s.n_last == 1;
}

/* Copies the path of a model; the first one is enough. */
static bool first_model(void *user, const tn_catalogue_entry *e) {
    if (tn_catalogue_is_model(e)) snprintf(user, 4096, "%s", e->path);
    return !*(char *)user;
}

tern_status tn_catalogue_refuse(const char *path, tern_error *err) {
    char model[4096] = "";
    tn_catalogue_folder(path, first_model, model);
    if (!*model)
        return tn_fail(
            err, TERN_E_FORMAT,
            "%s: no model: there is no config.json in it, as in Hugging Face's folders, and no GGUF "
            "file",
            path);
    return tn_fail(err, TERN_E_FORMAT,
                   "%s: a folder of models (no config.json): give one of them, such as %s", path, model);
}
