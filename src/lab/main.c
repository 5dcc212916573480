/* tern-lab - what tern was developed with: a simulator of phones, the papers' tables, random models. */
#include "cli/args.h"
#include "cli/output.h"
#include "lab/commands.h"
#include "session/session.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
    bool as_word; /* the name is a word of this command's: tern-lab sweep is tern-lab sim sweep */
} commands[] = {
    {"synth", "write a random model in the exact shapes of a real one", cmd_synth, false},
    {"sim", "what a model would do on a phone's processor", cmd_sim, false},
    {"reproduce", "the papers' results beside the simulator's", cmd_sim, true},
    {"sweep", "a request of the simulator with settings varied, as CSV", cmd_sim, true},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *f) {
    fprintf(f,
            "tern-lab %s - simulator and random models beside tern\n\nusage: tern-lab COMMAND [OPTIONS]\n\n",
            tern_version());
    for (int i = 0; i < N_COMMANDS; i++) fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(f,
            "\ntern-lab COMMAND --help tells the options of each; exit status: 0 done, 1 failed, 2 usage.\n");
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is a full disk: an error of the write */
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) {
        print_help(stdout);
        return cli_written(EXIT_OK);
    }
    if (!strcmp(argv[1], "--version")) {
        printf("tern-lab %s\n", tern_version());
        return cli_written(EXIT_OK);
    }
    static char sim[] = "sim";
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name)) continue;
        if (!commands[i].as_word) return cli_written(commands[i].run(argc - 1, argv + 1));
        argv[0] = sim;
        return cli_written(commands[i].run(argc, argv));
    }
    fprintf(stderr, "tern-lab: unknown command '%s' (see tern-lab --help)\n", cli_shown(argv[1]));
    return EXIT_USAGE;
}
