/* cli/pull_ollama.c - Ollama's registry: manifests/HOST/ORG/NAME/TAG names blobs/sha256-SUM. */
#include "cli/pull_plan.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where Ollama of this user keeps its models. */
static tern_status place(char out[PULL_ROOT], tern_error *err) {
    const char *store = getenv("OLLAMA_MODELS"), *home = getenv("HOME");
    int n = store && *store ? snprintf(out, PULL_ROOT, "%s", store)
            : home && *home ? snprintf(out, PULL_ROOT, "%s/.ollama/models", home)
                            : -1;
    TN_FAIL_IF(n < 0 || n >= PULL_ROOT, err, TERN_E_IO,
               "there is no folder for models of Ollama's registry: set OLLAMA_MODELS or HOME");
    return TERN_OK;
}

/* On this machine itself registries have no certificates. */
static const char *scheme(const char *host) {
    return !strncmp(host, "127.0.0.1", 9) || !strncmp(host, "localhost", 9) ? "http" : "https";
}

static tern_status add_layer(pull_plan *p, const json_t *layer, tern_error *err) {
    const char *digest = json_string_value(json_object_get(layer, "digest")),
               *type = json_string_value(json_object_get(layer, "mediaType"));
    json_int_t n = json_integer_value(json_object_get(layer, "size"));
    TN_FAIL_IF(p->n == PULL_FILES, err, TERN_E_LIMIT, "more than %d layers", PULL_FILES);
    TN_FAIL_IF(!digest || strncmp(digest, "sha256:", 7) || strlen(digest) != 71 ||
                   strspn(digest + 7, "0123456789abcdef") != 64 || n <= 0,
               err, TERN_E_FORMAT, "the registry's description of a layer is not understood");
    pull_item *i = &p->items[p->n++];
    const pull_name *m = &p->name;
    *i = (pull_item){.file = {.url = i->url, .shown = i->name, .into = i->blob, .n_bytes = (uint64_t)n}};
    snprintf(i->name, sizeof i->name, "%s:%s", m->model, m->tag);
    snprintf(i->file.sum, sizeof i->file.sum, "%s", digest + 7);
    snprintf(i->url, sizeof i->url, "%s://%s/v2/%s/%s/blobs/%s", scheme(m->host), m->host, m->org, m->model,
             digest);
    snprintf(i->blob, PULL_PATH, "%s/blobs/sha256-%s", p->root, digest + 7);
    if (type && !strcmp(type, "application/vnd.ollama.image.model"))
        snprintf(p->model, sizeof p->model, "%s", i->blob);
    return TERN_OK;
}

tern_status cli_pull_plan_ollama(pull_http *h, pull_plan *p, tern_error *err) {
    const pull_name *m = &p->name;
    char url[4096], *body = NULL;
    size_t n = 0, i;
    long status;
    const json_t *layer;
    TN_TRY(place(p->root, err));
    snprintf(url, sizeof url, "%s://%s/v2/%s/%s/manifests/%s", scheme(m->host), m->host, m->org, m->model,
             m->tag);
    TN_TRY(cli_pull_text(h, url, NULL, "application/vnd.docker.distribution.manifest.v2+json", &body, &n,
                         &status, err));
    json_t *j = status == 200 ? tn_json_parse(body ? body : "", n, 0, NULL) : NULL;
    tern_status st = TERN_OK;
    if (status != 200)
        st = tn_fail(err, status == 404 || status == 401 ? TERN_E_INVALID : TERN_E_IO,
                     "%s:%s: %s (%s says %ld)", m->model, m->tag,
                     status == 404 ? "there is no such model" : "the registry does not give it", m->host,
                     status);
    else if (!json_is_array(json_object_get(j, "layers")) || n >= sizeof p->ref_text)
        st = tn_fail(err, TERN_E_FORMAT, "%s: the manifest is not understood", url);
    if (st == TERN_OK)
        json_array_foreach(json_object_get(j, "layers"), i, layer) if (st == TERN_OK) st =
            add_layer(p, layer, err);
    const json_t *config = json_object_get(j, "config");
    if (st == TERN_OK && config) st = add_layer(p, config, err);
    if (st == TERN_OK && !p->model[0])
        st = tn_fail(err, TERN_E_FORMAT, "%s:%s has no model in it", m->model, m->tag);
    if (st == TERN_OK) {
        snprintf(p->ref, sizeof p->ref, "%s/manifests/%.400s/%.400s/%.400s/%.400s", p->root, m->host, m->org,
                 m->model, m->tag);
        memcpy(p->ref_text, body, n + 1); /* as it came: others compare its sum */
        bool library = !strcmp(m->org, "library");
        snprintf(p->shown, sizeof p->shown, "%s%s%s:%s", library ? "" : m->org, library ? "" : "/", m->model,
                 m->tag);
    }
    json_decref(j);
    free(body);
    return st;
}
