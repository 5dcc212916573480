/* cli/pull_hub.c - Hugging Face: hub/models--ORG--REPO/{blobs/SUM, snapshots/COMMIT/FILE -> ../../blobs/SUM, refs/main}. */
#include "cli/pull_plan.h"

#include "base/json.h"
#include "cli/output.h"
#include "model/catalogue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static bool is_hex(const char *s, size_t n) {
    return s && strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

static bool env(const char *name, char *out, size_t cap, const char *more) {
    const char *v = getenv(name);
    return v && *v && snprintf(out, cap, "%s%s", v, more) < (int)cap;
}

/* As huggingface_hub looks for them. */
static tern_status home_of(char out[PULL_PATH], const char *what, tern_error *err) {
    char more[64];
    snprintf(more, sizeof more, "/%s", what);
    if (env("HF_HOME", out, PULL_PATH, more)) return TERN_OK;
    snprintf(more, sizeof more, "/huggingface/%s", what);
    if (env("XDG_CACHE_HOME", out, PULL_PATH, more)) return TERN_OK;
    snprintf(more, sizeof more, "/.cache/huggingface/%s", what);
    if (env("HOME", out, PULL_PATH, more)) return TERN_OK;
    return tn_fail(err, TERN_E_IO, "there is no folder for models: set HF_HOME, XDG_CACHE_HOME or HOME");
}

static tern_status hub_of(char out[PULL_PATH], tern_error *err) {
    return env("HF_HUB_CACHE", out, PULL_PATH, "") ? TERN_OK : home_of(out, "hub", err);
}

/* $HF_TOKEN, or the file that `hf auth login` writes. Without one the request goes out without. */
static void find_token(char out[1024]) {
    char path[PULL_PATH];
    if (!env("HF_TOKEN", out, 1024, "")) {
        FILE *f = NULL;
        out[0] = 0;
        if (env("HF_TOKEN_PATH", path, sizeof path, "") || home_of(path, "token", NULL) == TERN_OK)
            f = fopen(path, "re");
        if (f && !fgets(out, 1024, f)) out[0] = 0;
        if (f) fclose(f);
    }
    out[strcspn(out, " \t\r\n")] = 0;
}

const char *cli_pull_endpoint(void) {
    static char out[512];
    if (!env("HF_ENDPOINT", out, sizeof out, "")) snprintf(out, sizeof out, "https://huggingface.co");
    for (size_t n = strlen(out); n && out[n - 1] == '/';) out[--n] = 0;
    return out;
}

/* ---- which files ------------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcasecmp(s + n - k, end);
}

static bool is_gguf(const char *file) {
    return ends_with(file, ".gguf") && !tn_catalogue_is_beside(file) && !strcasestr(file, "imatrix");
}

static bool belongs_to_folder(const char *file) {
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "tokenizer.model",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "model.safetensors.index.json",
                                        "preprocessor_config.json",
                                        "processor_config.json",
                                        "README.md"}; /* which tells rerankers */
    if (strchr(file, '/')) return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(file, names[i])) return true;
    return ends_with(file, ".safetensors");
}

/* The stem of one part of several: "x" of "x-00001-of-00003.gguf"; the whole name else. */
static size_t stem_of(const char *file) {
    size_t n = strlen(file);
    int part, parts, used = 0;
    bool split =
        n > 20 && sscanf(file + n - 20, "-%5d-of-%5d.gguf%n", &part, &parts, &used) == 2 && used == 20;
    return split ? n - 20 : n;
}

/* A quantisation stands between signs: "Q4_K_M" is not meant by "Q4_K". */
static bool has_quant(const char *file, const char *quant) {
    size_t n = strlen(quant);
    for (const char *p = file; (p = strcasestr(p, quant)); p++)
        if ((p == file || strchr("-._/", p[-1])) && (!p[n] || strchr("-./", p[n]))) return true;
    return false;
}

/* The first file of this quantisation; of any for NULL. */
static const char *first_gguf(const json_t *files, const char *quant) {
    const json_t *f;
    size_t i;
    json_array_foreach(files, i, f) {
        const char *name = json_string_value(json_object_get(f, "rfilename"));
        if (name && is_gguf(name) && (!quant || has_quant(name, quant))) return name;
    }
    return NULL;
}

/* The file that stands for what was asked: the quantisation, else the usual ones in their order, else the first. */
static const char *choose_gguf(const json_t *files, const char *quant) {
    static const char *const usual[] = {"Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0"};
    if (*quant) return first_gguf(files, quant);
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        const char *name = first_gguf(files, usual[i]);
        if (name) return name;
    }
    return first_gguf(files, NULL);
}

static void list_quants(const json_t *files, char *out, size_t cap) {
    const json_t *f;
    size_t i, at = 0;
    out[0] = 0;
    json_array_foreach(files, i, f) {
        const char *name = json_string_value(json_object_get(f, "rfilename"));
        if (name && is_gguf(name) && at + strlen(name) + 3 < cap)
            at += (size_t)snprintf(out + at, cap - at, "%s%s", at ? ", " : "", name);
    }
}

/* ---- the plan ---------------------------------------------------------------------------------------- */

static tern_status add_item(pull_plan *p, const json_t *f, const char *commit, tern_error *err) {
    const char *name = json_string_value(json_object_get(f, "rfilename"));
    const json_t *lfs = json_object_get(f, "lfs");
    const char *sum = json_string_value(json_object_get(lfs, "sha256")),
               *blob = json_string_value(json_object_get(f, "blobId"));
    json_int_t n = json_integer_value(json_object_get(lfs ? lfs : f, "size"));
    bool git = !lfs;
    if (git) sum = blob;
    TN_FAIL_IF(p->n == PULL_FILES, err, TERN_E_LIMIT, "the repository has more than %d files of this model",
               PULL_FILES);
    TN_FAIL_IF(!cli_pull_path_ok(name) || !is_hex(sum, git ? 40 : 64) || n < 0, err, TERN_E_FORMAT,
               "the server's description of %s is not understood", cli_shown(name));
    pull_item *i = &p->items[p->n++];
    *i = (pull_item){.file = {.url = i->url,
                              .token = p->token[0] ? p->token : NULL,
                              .shown = i->name,
                              .into = i->blob,
                              .n_bytes = (uint64_t)n,
                              .git = git}};
    snprintf(i->name, sizeof i->name, "%s", name);
    snprintf(i->file.sum, sizeof i->file.sum, "%s", sum);
    int depth = 2;
    for (const char *s = name; (s = strchr(s, '/')); s++) depth++;
    for (int d = 0; d < depth; d++) strcat(i->target, "../");
    snprintf(i->target + strlen(i->target), sizeof i->target - strlen(i->target), "blobs/%s", sum);
    bool fits = snprintf(i->url, sizeof i->url, "%s/%s/%s/resolve/%s/%s", cli_pull_endpoint(), p->name.org,
                         p->name.model, commit, name) < (int)sizeof i->url &&
                snprintf(i->blob, PULL_PATH, "%s/blobs/%s", p->root, sum) < PULL_PATH &&
                snprintf(i->link, PULL_PATH, "%s/snapshots/%s/%s", p->root, commit, name) < PULL_PATH;
    for (char *s = i->url; (s = strchr(s, ' '));) { /* names of files may have spaces */
        if (strlen(i->url) + 3 > sizeof i->url)
            return tn_fail(err, TERN_E_INVALID, "%s: name too long", name);
        memmove(s + 3, s + 1, strlen(s));
        memcpy(s, "%20", 3);
    }
    TN_FAIL_IF(!fits, err, TERN_E_INVALID, "%s: path too long", name);
    return TERN_OK;
}

/* One GGUF file with all its parts, one file that was named, or the folder of safetensors. */
static tern_status choose(pull_plan *p, const json_t *files, const char *commit, tern_error *err) {
    const char *one = p->name.file[0] ? p->name.file : choose_gguf(files, p->name.tag);
    char have[400];
    const json_t *f;
    size_t i;
    list_quants(files, have, sizeof have);
    TN_FAIL_IF(p->name.tag[0] && !one, err, TERN_E_INVALID, "%s/%s has no file of %s%s%s", p->name.org,
               p->name.model, p->name.tag, have[0] ? "; there are " : "", have);
    size_t stem = one ? stem_of(one) : 0;
    json_array_foreach(files, i, f) {
        const char *name = json_string_value(json_object_get(f, "rfilename"));
        if (!name) continue;
        bool part = one && !strncmp(name, one, stem) && stem_of(name) == stem && (name[stem] == one[stem]);
        if (one ? part : belongs_to_folder(name)) TN_TRY(add_item(p, f, commit, err));
        const pull_item *added = p->n ? &p->items[p->n - 1] : NULL;
        if (one && part && (!p->model[0] || strcmp(added->link, p->model) < 0))
            snprintf(p->model, sizeof p->model, "%s", added->link);
    }
    TN_FAIL_IF(!p->n && p->name.file[0], err, TERN_E_INVALID, "%s/%s has no file %s", p->name.org,
               p->name.model, p->name.file);
    bool weights = one != NULL;
    for (int k = 0; k < p->n; k++) weights = weights || ends_with(p->items[k].name, ".safetensors");
    TN_FAIL_IF(!weights, err, TERN_E_INVALID, "%s/%s has neither GGUF files nor safetensors", p->name.org,
               p->name.model);
    if (!one) snprintf(p->model, sizeof p->model, "%s/snapshots/%s", p->root, commit);
    return TERN_OK;
}

static tern_status refused(const pull_plan *p, long status, tern_error *err) {
    const char *org = p->name.org, *model = p->name.model;
    if (status == 401 || status == 403)
        return tn_fail(err, TERN_E_INVALID,
                       "%s/%s: there is no such repository, or it is gated or private%s: accept its terms at "
                       "%s/%s/%s and put a token of "
                       "yours into HF_TOKEN (or run `hf auth login`)",
                       org, model, p->token[0] ? " (a token was sent)" : "", cli_pull_endpoint(), org, model);
    return tn_fail(err, TERN_E_IO, "%s/%s: %s (the server says %ld)", org, model,
                   status == 404 ? "there is no such repository" : "the server does not list its files",
                   status);
}

tern_status cli_pull_plan_hub(pull_http *h, pull_plan *p, tern_error *err) {
    char hub[PULL_PATH], url[2048], *body = NULL;
    size_t n = 0;
    long status;
    TN_TRY(hub_of(hub, err));
    find_token(p->token);
    TN_FAIL_IF(snprintf(p->root, PULL_ROOT, "%s/models--%s--%s", hub, p->name.org, p->name.model) >=
                   PULL_PATH - 700,
               err, TERN_E_INVALID, "%s: path too long", hub);
    snprintf(url, sizeof url, "%s/api/models/%s/%s/revision/main?blobs=true", cli_pull_endpoint(),
             p->name.org, p->name.model);
    TN_TRY(cli_pull_text(h, url, p->token[0] ? p->token : NULL, "application/json", &body, &n, &status, err));
    json_t *j = status == 200 ? tn_json_parse(body ? body : "", n, 0, NULL) : NULL;
    free(body);
    if (status != 200) return refused(p, status, err);
    const char *commit = json_string_value(json_object_get(j, "sha"));
    const json_t *files = json_object_get(j, "siblings");
    tern_status st = TERN_OK;
    if (!is_hex(commit, 40) || !json_is_array(files))
        st = tn_fail(err, TERN_E_FORMAT, "%s: the answer is not understood", url);
    if (st == TERN_OK) st = choose(p, files, commit, err);
    if (st == TERN_OK) {
        snprintf(p->ref, sizeof p->ref, "%s/refs/main", p->root);
        snprintf(p->ref_text, sizeof p->ref_text, "%s", commit);
        snprintf(p->shown, sizeof p->shown, "%s/%s%s%s", p->name.org, p->name.model,
                 p->name.tag[0] ? ":" : "", p->name.tag);
        if (p->name.file[0])
            snprintf(p->shown, sizeof p->shown, "%s/%s/%s", p->name.org, p->name.model, p->name.file);
    }
    json_decref(j);
    return st;
}

/* ---- an address -------------------------------------------------------------------------------------- */

/* Before its sum is known the blob has the name of the address. */
tern_status cli_pull_plan_url(pull_plan *p, tern_error *err) {
    char hub[PULL_PATH], sum[TN_SUM_TEXT];
    tn_sum s;
    TN_TRY(hub_of(hub, err));
    TN_FAIL_IF(!ends_with(p->name.model, ".gguf") && !ends_with(p->name.model, ".tern"), err, TERN_E_INVALID,
               "%s: want the address of a .gguf or .tern file", p->name.url);
    tn_sum_begin(&s, false);
    tn_sum_add(&s, p->name.url, strlen(p->name.url));
    tn_sum_end(&s, sum);
    pull_item *i = &p->items[p->n++];
    *i = (pull_item){.file = {.url = i->url, .shown = i->name, .into = i->blob}};
    snprintf(i->name, sizeof i->name, "%s", p->name.model);
    snprintf(i->url, sizeof i->url, "%s", p->name.url);
    int stem = (int)(strlen(p->name.model) - 5);
    TN_FAIL_IF(snprintf(p->root, PULL_ROOT, "%s/models--%s--%.*s", hub, p->name.host, stem, p->name.model) >=
                       PULL_PATH - 700 ||
                   snprintf(i->blob, PULL_PATH, "%s/blobs/%s", p->root, sum) >= PULL_PATH - 100,
               err, TERN_E_INVALID, "%s: path too long", hub);
    snprintf(p->shown, sizeof p->shown, "%s/%.*s/%s", p->name.host, stem, p->name.model, p->name.model);
    return TERN_OK;
}

tern_status cli_pull_settle_url(pull_plan *p, tern_error *err) {
    pull_item *i = &p->items[0];
    char blob[PULL_PATH];
    snprintf(blob, sizeof blob, "%s/blobs/%s", p->root, i->file.sum);
    TN_FAIL_IF(rename(i->blob, blob), err, TERN_E_IO, "%s: %s", blob, strerror(errno));
    snprintf(i->link, sizeof i->link, "%s/snapshots/%.40s/%s", p->root, i->file.sum, i->name);
    snprintf(i->target, sizeof i->target, "../../blobs/%s", i->file.sum);
    snprintf(p->model, sizeof p->model, "%s", i->link);
    snprintf(p->ref, sizeof p->ref, "%s/refs/main", p->root);
    snprintf(p->ref_text, sizeof p->ref_text, "%.40s", i->file.sum);
    return TERN_OK;
}
