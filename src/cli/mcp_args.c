#include "cli/mcp_args.h"

#include "cli/output.h"

#include <stdio.h>

int cli_mcp_start(const command *cmd, const arg_list *given, const arg_list *may, bool kept,
                  tn_mcp_servers **out) {
    static const char *const none[] = {NULL};
    tern_error err;
    *out = NULL;
    if (!given->n && !may->n) return -1;
    tern_status st =
        tn_mcp_servers_start(given->n ? given->items : none, may->n ? may->items : none, kept, out, &err);
    if (st == TERN_E_INVALID) return cli_usage_error(cmd, "%s", cli_shown(err.message));
    return st == TERN_OK ? -1 : cli_failed(&err);
}

void cli_mcp_tell(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "tern: %s\n", cli_shown(line));
}
