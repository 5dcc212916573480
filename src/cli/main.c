/* tern - the command line. One file per subcommand; this one only dispatches. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/packing.h"
#include "cli/pull_name.h"
#include "cli/spelling.h"
#include "cli/suggest.h"
#include "session/session.h"
#include "model/catalogue.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"run", "answer one prompt", cmd_run},
    {"chat", "talk with a model", cmd_chat},
    {"pull", "fetch a model (nothing else opens a connection)", cmd_pull},
    {"models", "list the models on this machine", cmd_models},
    {"serve", "serve the APIs of OpenAI, Anthropic and Ollama, and a web page", cmd_serve},
    {"ask", "answer a question from your documents", cmd_ask},
    {"mcp", "offer your documents to an agent as tools (Model Context Protocol)", cmd_mcp},
    {"rag", "manage the documents that ask answers from", cmd_rag},
    {"forget", "erase stored conversations and documents", cmd_forget},
    {"embed", "turn texts into vectors, or score them with a reranker", cmd_embed},
    {"tokenize", "turn text into token ids, or back", cmd_tokenize},
    {"eval", "measure perplexity and task accuracy", cmd_eval},
    {"pack", "quantise a model into a package", cmd_pack},
    {"cache", "manage the packages that tern keeps", cmd_cache},
    {"inspect", "show what is in a model file, or what this processor can do", cmd_inspect},
    {"synth", "write a random model in the exact shapes of a real one (tern-lab)", cmd_lab},
    {"bench", "measure prefill and decode speed, and this machine's limits", cmd_bench},
    {"sim", "simulate a model on a phone's processor (tern-lab)", cmd_lab},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

/* Prints what a newcomer types next. */
static void print_start(void) {
    fputs("tern MODEL \"question\"          answers; tern MODEL chats\n"
          "tern models                    lists the models on this machine\n"
          "tern pull ORG/NAME             fetches one from Hugging Face; tern pull qwen3:0.6b from Ollama's "
          "registry\n"
          "... | tern MODEL - \"question\" asks about a text\n"
          "tern pack MODEL -o FILE.tern   makes a package, which starts and runs faster\n"
          "tern --help                    lists the commands; MODEL: a GGUF file, a Hugging Face folder, a "
          "package, a name\n",
          stderr);
    if (isatty(STDERR_FILENO)) cli_suggest_here();
}

static void print_help(FILE *f) {
    fprintf(f,
            "tern %s - an on-device language model engine\n\nusage: tern MODEL [TEXT]  or  tern COMMAND "
            "[OPTIONS]\n\n",
            tern_version());
    for (int i = 0; i < N_COMMANDS; i++) fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "\ntern COMMAND --help lists the common options, tern help COMMAND all of them, tern help set "
               "every parameter.\nExit status: 0 done, 1 failed, 2 wrong usage.\n");
}

/* Handles tern help set and tern help COMMAND, which print all that --help leaves out. */
static int help_on(int argc, char **argv) {
    static char all[] = "--help=all";
    char *args[] = {argv[0], argc > 1 ? argv[1] : all, all, NULL};
    if (!strcmp(argv[0], "set")) return cli_help_set();
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(argv[0], commands[i].name)) return commands[i].run(argc > 1 ? 3 : 2, args);
    fprintf(stderr, "tern: unknown command '%s' (see tern --help)\n", cli_shown(argv[0]));
    return EXIT_USAGE;
}

/* What llama.cpp, Ollama and others call it. */
static const char *const elsewhere[][2] = {
    {"list", "models"},     {"ls", "models"},         {"ps", "models"},     {"show", "inspect"},
    {"info", "inspect"},    {"get", "pull"},          {"download", "pull"}, {"fetch", "pull"},
    {"quantize", "pack"},   {"convert", "pack"},      {"create", "pack"},   {"server", "serve"},
    {"cli", "chat"},        {"completion", "run"},    {"generate", "run"},  {"perplexity", "eval"},
    {"embedding", "embed"}, {"version", "--version"}, {"search", "pull"},
};

/* The command that a word means, in `out`; NULL: none. */
static const char *nearest_command(const char *word, spelling *out) {
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++)
        if (!strcmp(word, elsewhere[i][0])) return elsewhere[i][1];
    cli_spelling_begin(out, word);
    for (int i = 0; i < N_COMMANDS; i++) cli_spelling_try(out, commands[i].name, strlen(commands[i].name));
    return *out->meant ? out->meant : NULL;
}

/* Handles tern MODEL and tern MODEL TEXT: chat, or answer. The model may be the value of an option. */
static int short_way(int argc, char **argv) {
    char path[4096];
    bool option = !strcmp(argv[1], "-m") || !strcmp(argv[1], "-hf") || !strcmp(argv[1], "--model") ||
                  !strncmp(argv[1], "--model=", 8);
    if (!option &&
        (argv[1][0] == '-' || (access(argv[1], F_OK) && !tn_catalogue_find(argv[1], path, sizeof path) &&
                               !cli_pull_found(argv[1], path, sizeof path)))) {
        spelling near;
        const char *meant = nearest_command(argv[1], &near);
        bool name = argv[1][0] != '-' && strpbrk(argv[1], "/:.0123456789");
        if (name && !meant) return cli_no_model(argv[1]), EXIT_USAGE;
        fprintf(stderr, "tern: '%s' is neither a command nor a model%s%s%s (see tern --help, tern models)\n",
                cli_shown(argv[1]), meant ? "; did you mean tern " : "", meant ? meant : "",
                meant ? "?" : "");
        return EXIT_USAGE;
    }
    int after = option && !strchr(argv[1], '=') ? 3 : 2;
    bool text = argc > after && (argv[after][0] != '-' || !argv[after][1]);
    for (int i = after; i < argc; i++)
        text |= !strcmp(argv[i], "-p") || !strcmp(argv[i], "-f") || !strncmp(argv[i], "--prompt", 8) ||
                !strncmp(argv[i], "--file", 6) || !strcmp(argv[i], "-");
    int rc = text ? cmd_run(argc, argv) : cmd_chat(argc, argv);
    cli_packing_end(rc != EXIT_OK);
    return cli_written(rc);
}

int main(int argc, char **argv) {
    tn_storing_provide(&tn_store_plugin);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is a full disk: an error of the write */
    if (argc < 2) {
        print_start();
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "help") && argc > 2) return cli_written(help_on(argc - 2, argv + 2));
    if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) {
        print_help(stdout);
        return cli_written(EXIT_OK);
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        printf("tern %s\n", tern_version());
        return cli_written(EXIT_OK);
    }
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name)) continue;
        int rc = commands[i].run(argc - 1, argv + 1);
        cli_packing_end(rc != EXIT_OK);
        return cli_written(rc);
    }
    return short_way(argc, argv);
}
