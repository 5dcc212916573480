/* A plugin for QEMU's user emulation that counts executed instructions and prints their number at the end, for
 * bench/arm-counts.sh. QEMU's own header is not in distributions' packages: what is used of it is declared here.
 * API_VERSION: what this QEMU wants, which the script tries. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct qemu_plugin_tb;
typedef uint64_t plugin_id;

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*f)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, void (*f)(unsigned, void *), int flags,
                                          void *data);
void qemu_plugin_register_atexit_cb(plugin_id id, void (*f)(plugin_id, void *), void *data);

#define SHOWN __attribute__((visibility("default")))
SHOWN int qemu_plugin_version = API_VERSION;

static uint64_t n_executed; /* the programs have one thread */

static void executed(unsigned cpu, void *n) {
    (void)cpu;
    n_executed += (uintptr_t)n;
}

static void translated(plugin_id id, struct qemu_plugin_tb *tb) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, 0, (void *)(uintptr_t)qemu_plugin_tb_n_insns(tb));
}

static void done(plugin_id id, void *data) {
    (void)id, (void)data;
    printf("%" PRIu64 "\n", n_executed);
    fflush(stdout);
}

SHOWN int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, done, NULL);
    return 0;
}
