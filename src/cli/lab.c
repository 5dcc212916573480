/* tern sim, tern synth: tern-lab, where it is installed. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cmd_lab(int argc, char **argv) {
    static char name[] = "tern-lab";
    char path[4096];
    char **args = calloc((size_t)argc + 2, sizeof *args);
    if (!args) return cli_failed_text("no memory to start tern-lab");
    args[0] = name;
    memcpy(args + 1, argv, (size_t)argc * sizeof *argv);
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof name);
    if (n > 0) { /* beside this program */
        path[n] = 0;
        strcpy(strrchr(path, '/') + 1, name);
        execv(path, args);
    }
    execvp(name, args);
    int why = errno;
    free(args);
    if (why != ENOENT) return cli_failed_text("tern-lab cannot be started: %s", strerror(why));
    return cli_failed_text(
        "tern %s is a command of tern-lab, which is not installed (Debian: package tern-lab)", argv[0]);
}
