/* What tern for Windows does without, so far: tern pull, the laboratory, two of the measurements, sandboxes, and the server's question whose
 * a connection is. Each says so; docs/reference/architecture.md (Other systems) tells what is missing of each. */
#include "cli/args.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/pull.h"

#include "base/status.h"
#include "documents/sandbox.h"
#include "pictures/sealed.h"
#include "server/peer.h"

static int absent(const char *what) {
    return cli_failed_text(
        "%s is not in tern for Windows yet (docs/reference/architecture.md, Other systems)", what);
}

#define ABSENT(name)                                                                                         \
    int cmd_##name(int argc, char **argv) {                                                                  \
        (void)argc, (void)argv;                                                                              \
        return absent("tern " #name);                                                                        \
    }
ABSENT(pull)

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

/* ---- what Windows has in another form, of which nothing is used yet */

tern_status tn_peers_open(int ways, tn_peers **out, tern_error *err) {
    (void)ways;
    *out = NULL;
    return tn_fail(err, TERN_E_UNSUPPORTED, "tern for Windows does not know yet whose a connection is");
}

void tn_peers_close(tn_peers **p) { *p = NULL; }

bool tn_peers_uid(tn_peers *p, int fd, uid_t *uid) { return (void)p, (void)fd, (void)uid, false; }

tern_status tn_sandbox_enter(tn_sandbox_kind kind, tern_error *err) {
    (void)kind;
    return tn_fail(err, TERN_E_UNSUPPORTED, "there is none in tern for Windows yet");
}

tern_status tn_sandbox_files(const tn_sandbox_path *paths, size_t n, bool alone, tern_error *err) {
    (void)paths, (void)n, (void)alone;
    return tn_fail(err, TERN_E_UNSUPPORTED, "there is none in tern for Windows yet");
}

bool tn_sandbox_has_files(void) { return false; }

/* Decoded as it is: nothing seals a process here. */
void tn_picture_provide(void) {}

tern_status tn_picture_decode_sealed(tn_reader *r, tn_ctx *ctx, const uint8_t *bytes, size_t n,
                                     tn_picture *out, tern_error *err) {
    (void)r;
    return tn_picture_decode(ctx, bytes, n, out, err);
}
