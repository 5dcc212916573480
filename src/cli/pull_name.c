#include "cli/pull_name.h"

#include "model/catalogue.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_part(const char *s) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    return *s && s[0] != '.' && s[0] != '-' && strspn(s, letters) == strlen(s);
}

bool cli_pull_path_ok(const char *path) {
    for (const char *p = path;;) {
        size_t n = strcspn(p, "/");
        if (!n || p[0] == '.' || n > 200) return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < 32 || p[i] == 127 || p[i] == '\\') return false;
        if (!p[n]) return strlen(path) < PULL_TEXT;
        p += n + 1;
    }
}

/* Cuts the text at the sign; returns what follows, or NULL. */
static char *cut(char *text, char sign) {
    char *at = strchr(text, sign);
    if (at) *at++ = 0;
    return at;
}

static void put(char to[PULL_TEXT], const char *text) { snprintf(to, PULL_TEXT, "%s", text); }

static const char *after(const char *text, const char *prefix) {
    size_t n = strlen(prefix);
    return strncasecmp(text, prefix, n) ? NULL : text + n;
}

/* ORG/REPO[/FILE][:QUANT] */
static bool hub_name(const char *text, pull_name *o) {
    char copy[PULL_TEXT], *model, *file, *tag;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy) return false;
    o->from = PULL_HUB;
    tag = cut(copy, ':');
    if (!(model = cut(copy, '/'))) return false;
    file = cut(model, '/');
    if (!is_part(copy) || !is_part(model) || (tag && !is_part(tag)) ||
        (file && (tag || !cli_pull_path_ok(file))))
        return false;
    put(o->org, copy);
    put(o->model, model);
    put(o->tag, tag ? tag : "");
    put(o->file, file ? file : "");
    return true;
}

/* [HOST/][ORG/]NAME[:TAG] */
static bool ollama_name(const char *text, pull_name *o) {
    char copy[PULL_TEXT], *tag = NULL, *part[3];
    int n = 1;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy) return false;
    o->from = PULL_OLLAMA;
    char *colon = strrchr(copy, ':');
    if (colon && !strchr(colon, '/')) *colon = 0, tag = colon + 1;
    for (part[0] = copy; n < 3 && (part[n] = cut(part[n - 1], '/')); n++) {
    }
    const char *host = n == 3 ? part[0] : "registry.ollama.ai", *org = n > 1 ? part[n - 2] : "library";
    char name[PULL_TEXT];
    snprintf(name, sizeof name, "%s", host);
    char *port = cut(name, ':');
    if (!is_part(name) || (port && (!*port || strspn(port, "0123456789") != strlen(port))) || !is_part(org) ||
        !is_part(part[n - 1]) || (tag && !is_part(tag)))
        return false;
    put(o->host, host);
    put(o->org, org);
    put(o->model, part[n - 1]);
    put(o->tag, tag ? tag : "latest");
    return true;
}

/* An address: of Hugging Face's a name, else a file. */
static bool address(const char *text, pull_name *o) {
    const char *rest = strstr(text, "://"), *page;
    rest += 3;
    if ((page = after(rest, "huggingface.co/")) || (page = after(rest, "hf.co/"))) {
        char copy[PULL_TEXT], *kind;
        if (snprintf(copy, sizeof copy, "%s", page) >= (int)sizeof copy) return false;
        copy[strcspn(copy, "?#")] = 0;
        for (const char *const *k =
                 (const char *const[]){"/resolve/main/", "/blob/main/", "/tree/main", NULL};
             *k; k++) {
            if (!(kind = strstr(copy, *k))) continue;
            memmove(kind + 1, kind + strlen(*k), strlen(kind + strlen(*k)) + 1);
            *kind = kind[1] ? '/' : 0;
        }
        return hub_name(copy, o);
    }
    o->from = PULL_URL;
    size_t n_host = strcspn(rest, "/?#");
    const char *path = rest + n_host, *end = path + strcspn(path, "?#"), *slash = end;
    while (slash > path && slash[-1] != '/') slash--;
    if (!n_host || n_host >= PULL_TEXT || memchr(rest, '@', n_host) || end - slash >= 200 ||
        snprintf(o->url, sizeof o->url, "%s", text) >= (int)sizeof o->url)
        return false;
    snprintf(o->host, sizeof o->host, "%.*s", (int)n_host, rest);
    snprintf(o->model, sizeof o->model, "%.*s", (int)(end - slash), slash);
    for (char *p = o->host; (p = strchr(p, ':'));) *p = '-'; /* a port, in the name of a folder */
    return cli_pull_path_ok(o->model) && cli_pull_path_ok(o->host) && !strchr(text, ' ');
}

bool cli_pull_name(const char *text, pull_name *o) {
    *o = (pull_name){0};
    const char *rest;
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p <= 32 || *p == 127) return false;
    if (after(text, "http://") || after(text, "https://")) return address(text, o);
    if (strstr(text, "://")) return false;
    if ((rest = after(text, "hf.co/")) || (rest = after(text, "huggingface.co/"))) return hub_name(rest, o);
    if ((rest = after(text, "ollama.com/"))) return ollama_name(rest, o);
    const char *slash = strchr(text, '/');
    if (!slash) return ollama_name(text, o);
    size_t host = strcspn(text, "/");
    bool has_host = memchr(text, '.', host) || memchr(text, ':', host);
    return has_host && strchr(slash + 1, '/') ? ollama_name(text, o) : hub_name(text, o);
}

/* ---- on this machine --------------------------------------------------------------------------------- */

typedef struct search {
    const char *repo, *quant;
    char *path;
    size_t cap;
    int n;
} search;

static bool look(void *user, const tn_catalogue_entry *e) {
    search *s = user;
    size_t n = strlen(s->repo);
    if (strncasecmp(e->name, s->repo, n) || e->name[n] != '/' || tn_catalogue_is_beside(e->name + n) ||
        (*s->quant && !strcasestr(e->name + n, s->quant)))
        return true;
    if (!s->n++) snprintf(s->path, s->cap, "%s", e->path);
    return true;
}

bool cli_pull_found(const char *name, char *path, size_t cap) {
    pull_name p;
    char repo[2 * PULL_TEXT];
    if (!strchr(name, '/') || !cli_pull_name(name, &p) || p.from != PULL_HUB || p.file[0]) return false;
    snprintf(repo, sizeof repo, "%s/%s", p.org, p.model);
    search s = {.repo = repo, .quant = p.tag, .path = path, .cap = cap};
    tn_catalogue_each(look, &s);
    return s.n == 1;
}
