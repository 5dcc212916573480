/* lab/soc_command.c - where the SoCs' data files are. */
#include "lab/soc_command.h"

#include "cli/args.h"
#include "cli/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Looks in $TERN_SHARE, in ../share/tern beside the installed program, and in ../share of a build in the
 * source tree. */
static bool find_soc(const char *name, char *path, size_t cap) {
    char exe[512];
    const char *share = getenv("TERN_SHARE");
    if (strchr(name, '/')) return snprintf(path, cap, "%s", name) < (int)cap && !access(path, R_OK);
    if (share) return snprintf(path, cap, "%s/soc/%s.json", share, name) < (int)cap && !access(path, R_OK);
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return false;
    exe[n] = 0;
    *strrchr(exe, '/') = 0;
    static const char *const places[] = {"../share/tern", "../share"};
    for (int i = 0; i < 2; i++)
        if (snprintf(path, cap, "%s/%s/soc/%s.json", exe, places[i], name) < (int)cap && !access(path, R_OK))
            return true;
    return false;
}

int tn_load_soc_named(const char *name, tn_soc *soc) {
    char path[1024];
    tern_error err;
    if (!find_soc(name, path, sizeof path))
        return cli_failed_text("no data file for SoC '%s'; tern sim --list names those there are", name);
    return tn_soc_load(soc, path, &err) == TERN_OK ? EXIT_OK : cli_failed(&err);
}
