#include "server/origins.h"

#include <string.h>

tern_status tn_origins_check(const char *list, bool keys, tern_error *err) {
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        bool all = n == 1 && *p == '*',
             word = (n == 4 && !strncmp(p, "null", 4)) || (n == 9 && !strncmp(p, "localhost", 9));
        const char *scheme = memmem(p, n, "://", 3), *star = memchr(p, '*', n);
        TN_FAIL_IF(
            all && !keys, err, TERN_E_INVALID,
            "--allow-origin '*' lets every site ask that somebody visits: give keys too (--api-key-file), or "
            "name the sites");
        TN_FAIL_IF(!all && !word && (!scheme || scheme == p || scheme + 3 == p + n), err, TERN_E_INVALID,
                   "--allow-origin %.*s: want origins such as https://a.example or http://localhost:3000, or "
                   "localhost "
                   "for all of this machine, with commas between them",
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

/* A page that this machine serves, at whatever port. */
static bool is_local(const char *origin) {
    static const char *const hosts[] = {"://localhost", "://127.0.0.1", "://[::1]"};
    const char *rest = !strncmp(origin, "https", 5)  ? origin + 5
                       : !strncmp(origin, "http", 4) ? origin + 4
                                                     : "";
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const size_t n = strlen(hosts[i]);
        if (strncmp(rest, hosts[i], n)) continue;
        return !rest[n] ||
               (rest[n] == ':' && rest[n + 1] && strspn(rest + n + 1, "0123456789") == strlen(rest + n + 1));
    }
    return false;
}

bool tn_origin_allowed(const char *list, const char *origin) {
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ",");
        bool begins = n && p[n - 1] == '*';
        const bool local = n == 9 && !strncmp(p, "localhost", 9);
        if (local    ? is_local(origin)
            : begins ? !strncmp(p, origin, n - 1)
                     : strlen(origin) == n && !strncmp(p, origin, n))
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}
