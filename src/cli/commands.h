/* cli/commands.h - one function per subcommand; each returns the exit status. argv[0] is the command's name.
 */
#ifndef TN_CLI_COMMANDS_H
#define TN_CLI_COMMANDS_H

#include <stdbool.h>
#include <stdint.h>

int cmd_run(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_forget(int argc, char **argv);
int cmd_pull(int argc, char **argv);
int cmd_models(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_ask(int argc, char **argv);
int cmd_mcp(int argc, char **argv);
int cmd_rag(int argc, char **argv);
int cmd_embed(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_cache(int argc, char **argv);
int cmd_pack(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_lab(int argc, char **argv); /* tern-lab takes the place of the process */
int cli_bench_limits(int32_t n_threads, const char *file, bool json); /* tern bench limits */

#endif
