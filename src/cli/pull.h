/* cli/pull.h - a model is fetched, when somebody says so. */
#ifndef TN_CLI_PULL_H
#define TN_CLI_PULL_H

#include <stdbool.h>

typedef enum pull_print { PULL_NOTHING, PULL_PATH_LINE, PULL_JSON } pull_print;

/* Fetches what the name means and prints where it is. Returns an exit status; what went wrong was printed. */
int cli_pull(const char *name, int stall_s, pull_print print);
/* On a terminal: asks whether to fetch a model that is not here, and does it. True: it is here now. */
bool cli_pull_offer(const char *name);
#endif
