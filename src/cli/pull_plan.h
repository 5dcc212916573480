/* cli/pull_plan.h - what is to be fetched for a name, and where it is put: the layouts of Hugging Face's and Ollama's own caches, so that
 * other programs find it too. */
#ifndef TN_CLI_PULL_PLAN_H
#define TN_CLI_PULL_PLAN_H

#include "cli/pull_file.h"
#include "cli/pull_name.h"

enum { PULL_FILES = 512, PULL_PATH = 4096, PULL_ROOT = 2048 };

typedef struct pull_item {
    char name[2 * PULL_TEXT]; /* in the repository: "config.json" */
    char url[4096];
    char blob[PULL_PATH];   /* the bytes */
    char link[PULL_PATH];   /* that is made to it; "": none */
    char target[PULL_TEXT]; /* what the link says */
    pull_file file;
} pull_item;

typedef struct pull_plan {
    pull_name name;
    char token[1024]; /* for Hugging Face; "": none */
    char root[PULL_ROOT];
    char shown[PULL_TEXT * 4];              /* what to run it by */
    char model[PULL_PATH];                  /* what to open: a file or a folder */
    char ref[PULL_PATH], ref_text[1 << 16]; /* written last: which snapshot is current, or the manifest */
    pull_item *items;                       /* [n], with room for PULL_FILES */
    int n;
} pull_plan;

/* Asks the registry. The folders that the plan wants are made by cli_pull_folders. */
tern_status cli_pull_plan_hub(pull_http *h, pull_plan *p, tern_error *err);
tern_status cli_pull_plan_ollama(pull_http *h, pull_plan *p, tern_error *err);
tern_status cli_pull_plan_url(pull_plan *p, tern_error *err);
/* $HF_ENDPOINT, or Hugging Face's own address. */
const char *cli_pull_endpoint(void);
/* The sum of an item of a URL is known only when it is there: its blob gets its name then. */
tern_status cli_pull_settle_url(pull_plan *p, tern_error *err);
#endif
