/* base/machine.h - facts about the machine from /sys: which cores are fast, energy spent, temperature.
 * TERN_SYS names another folder instead, for tests and for a tree copied from another machine. */
#ifndef TN_BASE_MACHINE_H
#define TN_BASE_MACHINE_H

#include "base/ctx.h"

const char *tn_machine_root(void); /* "/sys", or $TERN_SYS */

/* ---- cores */

enum { TN_MAX_CORES = 256 };

typedef struct tn_cores {
    int32_t n;
    int32_t cpu[TN_MAX_CORES];   /* numbers of those online, ascending */
    int64_t speed[TN_MAX_CORES]; /* cpu_capacity, else the highest frequency in kHz; 0: unknown */
    bool by_capacity;
} tn_cores;

void tn_cores_read(const char *root, tn_cores *out);
/* Keeps the cores of a choice: "fast" (at least half of the largest capacity, or four fifths of the highest
 * frequency where only frequencies are known) or a list like "4-7,2". It fails with TERN_E_INVALID where the
 * list is malformed or none is left. */
tern_status tn_cores_choose(tn_cores *c, const char *choice, tern_error *err);
/* Reads, chooses and pins, unless the choice is NULL or "all". */
tern_status tn_cores_use(const char *choice, tern_error *err);
/* Restricts the calling thread, and threads that it starts afterwards, to these cores. */
tern_status tn_cores_pin(const tn_cores *c, tern_error *err);

/* ---- energy and temperature */

typedef enum tn_power_source {
    TN_POWER_NONE,
    TN_POWER_RAPL,   /* counters of the processor's packages: exact, for everything that runs there */
    TN_POWER_BATTERY /* power of the battery, for the whole device; not while charging */
} tn_power_source;

const char *tn_power_source_name(tn_power_source s); /* "none", "rapl", "battery" */

typedef struct tn_power_sample {
    int64_t ns;
    double joules;  /* since the meter was opened; 0 without a source */
    double watts;   /* since the previous sample; 0 for the first */
    double celsius; /* of the hottest zone; 0: unknown */
} tn_power_sample;

typedef struct tn_power_total {
    tn_power_source source;
    double seconds, joules, watts; /* watts: the mean */
    double celsius_first, celsius_max;
    size_t n_samples;
} tn_power_total;

typedef struct tn_power tn_power;

/* Finds the sources. A machine that reports nothing gives a meter with source none. */
tern_status tn_power_open(tn_ctx *ctx, const char *root, tn_power **out, tern_error *err);
/* Takes a sample at this time. Beyond TN_POWER_SAMPLES every other earlier sample is dropped. */
void tn_power_take(tn_power *p, int64_t now_ns);
/* Takes a sample now and every tenth of a second on a thread of its own, until the stop, which takes the
 * last. If the thread cannot be made, only the first and last sample exist. */
void tn_power_start(tn_power *p);
void tn_power_stop(tn_power *p);
/* The *n samples kept, to be read when no thread takes them. */
const tn_power_sample *tn_power_samples(const tn_power *p, size_t *n);
tn_power_total tn_power_total_of(const tn_power *p);
void tn_power_close(tn_power **p); /* NULL-safe */

enum { TN_POWER_SAMPLES = 4096 };

#endif
