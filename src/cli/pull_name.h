/* cli/pull_name.h - what a name that people give to tern pull means. */
#ifndef TN_CLI_PULL_NAME_H
#define TN_CLI_PULL_NAME_H

#include <stdbool.h>
#include <stddef.h>

typedef enum pull_from { PULL_HUB, PULL_OLLAMA, PULL_URL } pull_from;

enum { PULL_TEXT = 512 };

typedef struct pull_name {
    pull_from from;
    char host[PULL_TEXT];  /* Ollama: "registry.ollama.ai"; a URL: its host */
    char org[PULL_TEXT];   /* "Qwen", "library" */
    char model[PULL_TEXT]; /* "Qwen3-0.6B-GGUF", "qwen3"; a URL: its file's name */
    char tag[PULL_TEXT];   /* Hugging Face: the quantisation or "", Ollama: "0.6b" or "latest" */
    char file[PULL_TEXT];  /* Hugging Face: one file of the repository, or "" */
    char url[2048];        /* of a file */
} pull_name;

/* ORG/REPO[:QUANT], ORG/REPO/FILE, hf.co/ORG/REPO[:QUANT], an address of Hugging Face: that; NAME[:TAG],
 * ollama.com/[library/]NAME[:TAG], HOST/ORG/NAME[:TAG]: Ollama's registry; http(s)://...: a file. False: none of these. */
bool cli_pull_name(const char *text, pull_name *out);
/* Whether a path that a server names may be made below a folder: no empty, hidden or climbing part, no control characters. */
bool cli_pull_path_ok(const char *path);

/* The model on this machine that a name of Hugging Face with a quantisation or without means, among those that tern models lists. */
bool cli_pull_found(const char *name, char *path, size_t cap);
#endif
