/* What tern for Windows does without, so far: documents, the server, tern pull, the laboratory, stores of conversations and two of the
 * measurements. Each says so and fails; docs/reference/architecture.md (Other systems) tells what is missing of each. */
#include "cli/args.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/pull.h"

#include "base/status.h"
#include "documents/reader.h"
#include "store/store.h"

static int absent(const char *what) {
    return cli_failed_text(
        "%s is not in tern for Windows yet (docs/reference/architecture.md, Other systems)", what);
}

#define ABSENT(name)                                                                                         \
    int cmd_##name(int argc, char **argv) {                                                                  \
        (void)argc, (void)argv;                                                                              \
        return absent("tern " #name);                                                                        \
    }
ABSENT(ask)
ABSENT(forget)
ABSENT(mcp)
ABSENT(pull)
ABSENT(rag)
ABSENT(serve)

int cmd_lab(int argc, char **argv) {
    (void)argc, (void)argv;
    return absent("tern-lab");
}

int cli_bench_limits(int32_t n_threads, const char *file, bool json) {
    (void)n_threads, (void)file, (void)json;
    return absent("tern bench limits");
}

int cli_bench_cold(const command *c, const model_args *ma, int argc, char **argv, const int32_t *prompts,
                   int n_prompts, int32_t repeats, bool prime, bool json) {
    (void)c, (void)ma, (void)argc, (void)argv, (void)prompts, (void)n_prompts, (void)repeats, (void)prime,
        (void)json;
    return absent("tern bench --cold");
}

int cli_bench_once(const command *c, const model_args *ma, int32_t n_prompt, int64_t start_ns) {
    (void)c, (void)ma, (void)n_prompt, (void)start_ns;
    return absent("tern bench --cold");
}

bool cli_pull_offer(const char *name) { return (void)name, false; }

/* ---- documents and stores */

tern_status tn_reader_open(int n, int wait_s, tn_reader **out, tern_error *err) {
    (void)n, (void)wait_s, (void)err;
    *out = NULL;
    return TERN_OK; /* a chat asks for it before it knows whether a document comes */
}

void tn_reader_close(tn_reader **r) { *r = NULL; }

tern_status tn_reader_text(tn_reader *r, const char *path, size_t max_bytes, char **out, size_t *n,
                           tern_error *err) {
    (void)r, (void)path, (void)max_bytes;
    *out = NULL;
    *n = 0;
    return tn_fail(err, TERN_E_UNSUPPORTED, "tern for Windows reads no documents yet");
}

tern_status tn_store_default_path(tn_ctx *ctx, char **out, tern_error *err) {
    *out = tn_strdup(ctx, TN_MEM_OTHER, "store.db");
    return *out ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for a path");
}

tern_status tn_store_open(tn_ctx *ctx, const char *path, const tn_store_options *opt, tn_store **out,
                          tern_error *err) {
    (void)ctx, (void)path, (void)opt;
    *out = NULL;
    return tn_fail(err, TERN_E_UNSUPPORTED,
                   "tern for Windows keeps no conversations yet (--no-store says so too)");
}

void tn_store_close(tn_store **s) { *s = NULL; }

tern_status tn_store_erase(tn_store *s, int64_t id, int64_t *n, tern_error *err) {
    (void)s, (void)id;
    *n = 0;
    return tn_fail(err, TERN_E_UNSUPPORTED, "tern for Windows keeps no conversations yet");
}

const tn_store_ops tn_store_plugin = {.size_bytes = sizeof(tn_store_ops),
                                      .version = TERN_VERSION_STRING,
                                      .open = tn_store_open,
                                      .close = tn_store_close};
