#include "server/origins.h"

#include <string.h>
#include <strings.h>

static const char *const own[] = {"localhost", "127.0.0.1", "[::1]"};

static bool is_word(const char *entry, size_t n, const char *word) {
    return strlen(word) == n && !strncmp(entry, word, n);
}

tern_status tn_origins_check(const char *list, bool keys, tern_error *err) {
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        bool all = is_word(p, n, "*"), word = is_word(p, n, "null") || is_word(p, n, "localhost");
        const char *scheme = memmem(p, n, "://", 3), *star = memchr(p, '*', n);
        TN_FAIL_IF(
            all && !keys, err, TERN_E_INVALID,
            "--allow-origin '*' lets every site ask that somebody visits: give keys too (--api-key-file), or "
            "name the sites");
        TN_FAIL_IF(
            !all && !word && (!scheme || scheme == p || scheme + 3 == p + n), err, TERN_E_INVALID,
            "--allow-origin %.*s: want origins such as https://a.example or http://localhost:3000, with "
            "commas between them",
            (int)n, p);
        TN_FAIL_IF(star && star != p + n - 1, err, TERN_E_INVALID,
                   "--allow-origin %.*s: '*' stands at the end alone", (int)n, p);
        /* https://good* would mean https://good.evil.example too; of what no name of a host follows there is none */
        TN_FAIL_IF(star && !all && scheme && !strncmp(p, "http", 4) && star[-1] != ':', err, TERN_E_INVALID,
                   "--allow-origin %.*s: of a site '*' stands for its port alone, http://localhost:*", (int)n,
                   p);
        p += n + (p[n] == ',');
    }
    return TERN_OK;
}

/* A page that this machine serves, at any port: http://localhost:3000. */
static bool is_of_this_machine(const char *origin) {
    if (!strncmp(origin, "http://", 7)) return tn_host_allowed(NULL, origin + 7);
    return !strncmp(origin, "https://", 8) && tn_host_allowed(NULL, origin + 8);
}

bool tn_origin_allowed(const char *list, const char *origin) {
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ",");
        bool begins = n && p[n - 1] == '*';
        if (begins ? !strncmp(p, origin, n - 1) : is_word(p, n, origin)) return true;
        if (is_word(p, n, "localhost") && is_of_this_machine(origin)) return true;
        p += n + (p[n] == ',');
    }
    return false;
}

tern_status tn_hosts_check(const char *list, tern_error *err) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
    for (const char *p = list;;) {
        size_t n = strspn(p, letters);
        TN_FAIL_IF(!n || (p[n] && p[n] != ','), err, TERN_E_INVALID,
                   "--allow-host %.*s: want host names such as tern.example, without ports, with commas "
                   "between them",
                   (int)strcspn(p, ","), p);
        if (!p[n]) return TERN_OK;
        p += n + 1;
    }
}

/* A host's name with or without a port; upper case is the same. */
static bool is_host(const char *host, const char *name, size_t n) {
    if (strncasecmp(host, name, n) != 0) return false;
    const char *port = host + n + (host[n] == ':');
    return !host[n] || (host[n] == ':' && port[strspn(port, "0123456789")] == '\0');
}

/* Any address of this machine's own network, in numbers: no name leads there that is another's. */
static bool is_loopback(const char *host) {
    return !strncmp(host, "127.", 4) && is_host(host, host, strspn(host, "0123456789."));
}

bool tn_host_allowed(const char *list, const char *host) {
    if (is_loopback(host)) return true;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (is_host(host, own[i], strlen(own[i]))) return true;
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ",");
        if (n && is_host(host, p, n)) return true;
        p += n + (p[n] == ',');
    }
    return false;
}
