/* tern - the command line. One file per subcommand; this one only dispatches. */
#include "cli/args.h"
#include "cli/commands.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"run", "answer one prompt", cmd_run},
    {"chat", "talk with a model", cmd_chat},
    {"serve", "answer requests over HTTP, with OpenAI's interface", cmd_serve},
    {"ask", "answer a question from your documents", cmd_ask},
    {"rag", "the documents that ask answers from", cmd_rag},
    {"tokenize", "text to token ids and back", cmd_tokenize},
    {"eval", "perplexity and task accuracy", cmd_eval},
    {"pack", "quantise a model into a package", cmd_pack},
    {"inspect", "what is in a model file; what this processor can do", cmd_inspect},
    {"synth", "write a random model in the exact shapes of a real one", cmd_synth},
    {"bench", "measure prefill and decode speed, and this machine's limits", cmd_bench},
    {"sim", "what a model would do on a phone's processor", cmd_sim},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *f) {
    fprintf(f, "tern %s - an on-device language model engine\n\nusage: tern COMMAND [OPTIONS]\n\n",
            tern_version());
    for (int i = 0; i < N_COMMANDS; i++) fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "\ntern COMMAND --help tells the options of each; exit status: 0 done, 1 failed, 2 usage.\n");
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
        return EXIT_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("tern %s\n", tern_version());
        return EXIT_OK;
    }
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name)) continue;
        int rc = commands[i].run(argc - 1, argv + 1);
        if (fflush(stdout) && rc == EXIT_OK) rc = failed_text("cannot write the output");
        return rc;
    }
    fprintf(stderr, "tern: unknown command '%s' (see tern --help)\n", argv[1]);
    return EXIT_USAGE;
}
