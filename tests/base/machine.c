/* What the kernel tells of cores, energy and temperature, read from trees made for it: phones with unlike cores,
 * counters that wrap, batteries that are charged, sensors that tell nonsense. */
#include "base/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char root[256];
static tn_ctx ctx;

static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = strchr(full + strlen(root) + 1, '/'); p; p = strchr(p + 1, '/')) {
        char cmd[600];
        *p = 0;
        snprintf(cmd, sizeof cmd, "mkdir -p '%s'", full);
        if (access(full, F_OK)) assert_int_equal(system(cmd), 0);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int fresh(void **state) {
    (void)state;
    static int n;
    tn_ctx_init(&ctx, NULL);
    snprintf(root, sizeof root, TN_BINARY_DIR "/machine-%ld-%d", (long)getpid(), n++);
    put("devices/system/cpu/online", "0\n");
    return 0;
}

static int gone(void **state) {
    (void)state;
    char cmd[400];
    snprintf(cmd, sizeof cmd, "rm -r '%s'", root);
    return system(cmd);
}

/* ---- cores */

static void eight_cores(const char *file, const int *values) {
    put("devices/system/cpu/online", "0-7\n");
    for (int i = 0; i < 8; i++) {
        char path[96], text[32];
        snprintf(path, sizeof path, "devices/system/cpu/cpu%d/%s", i, file);
        snprintf(text, sizeof text, "%d\n", values[i]);
        put(path, text);
    }
}

static void check_cores(const char *choice, const char *want) {
    tn_cores c;
    tern_error err = {0};
    char got[128] = "";
    tn_cores_read(root, &c);
    if (tn_cores_choose(&c, choice, &err) != TERN_OK) snprintf(got, sizeof got, "refused");
    for (int32_t i = 0; i < c.n && strcmp(got, "refused"); i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i ? " " : "", c.cpu[i]);
    assert_string_equal(got, want);
}

static void cores_of_phones(void **state) {
    (void)state;
    eight_cores("cpu_capacity", (const int[]){250, 250, 250, 250, 774, 774, 774, 1024}); /* 4 + 3 + 1 */
    check_cores("fast", "4 5 6 7");
    check_cores("2,6-7", "2 6 7");
    check_cores("7", "7");
    check_cores("8", "refused");
    check_cores("7-6", "refused");
    check_cores("1,", "refused");
    check_cores("big", "refused");
    check_cores("999", "refused");
    /* not all capacities are known: frequencies tell */
    put("devices/system/cpu/cpu3/cpu_capacity", "nothing\n");
    eight_cores("cpufreq/cpuinfo_max_freq",
                (const int[]){2016000, 2016000, 2016000, 2016000, 2803200, 2803200, 2803200, 3187200});
    check_cores("fast", "4 5 6 7");
    put("devices/system/cpu/online", "0-3,7\n");
    check_cores("fast", "7");
}

static void alike_and_unknown_cores_are_all_fast(void **state) {
    (void)state;
    eight_cores("cpufreq/cpuinfo_max_freq", (const int[]){3000, 3000, 2900, 3000, 3000, 3000, 3000, 3000});
    check_cores("fast", "0 1 2 3 4 5 6 7");
    put("devices/system/cpu/cpu2/cpufreq/cpuinfo_max_freq", "\n");
    check_cores("fast", "0 1 2 3 4 5 6 7");
    put("devices/system/cpu/online", "what\n");
    check_cores("fast", "refused");
}

static void pins(void **state) {
    (void)state;
    cpu_set_t before, set;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int first = 0;
    while (!CPU_ISSET((size_t)first, &before)) first++;
    tn_cores c = {.n = 1, .cpu = {first}};
    assert_int_equal(tn_cores_pin(&c, NULL), TERN_OK);
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_true(CPU_COUNT(&set) == 1 && CPU_ISSET((size_t)first, &set));
    c.n = 0;
    assert_int_equal(tn_cores_pin(&c, NULL), TERN_E_INVALID);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* ---- energy */

enum { SECOND = 1000000000 };

static tn_power *meter(void) {
    tn_power *p;
    assert_int_equal(tn_power_open(&ctx, root, &p, NULL), TERN_OK);
    return p;
}

static void near(double got, double want) { assert_true(fabs(got - want) <= 1e-9 * fabs(want) + 1e-12); }

#define RAPL "class/powercap/intel-rapl:"
static void counters_of_processors(void **state) {
    (void)state;
    put(RAPL "0/energy_uj", "9000000\n");
    put(RAPL "0/max_energy_range_uj", "10000000\n");
    put(RAPL "1/energy_uj", "100\n");
    put(RAPL "1/max_energy_range_uj", "10000000\n");
    put(RAPL "0:0/energy_uj", "5\n"); /* the cores of package 0: in its count already */
    put(RAPL "0:0/max_energy_range_uj", "10000000\n");
    put("class/power_supply/BAT0/type", "Battery\n"); /* counters come first */
    put("class/power_supply/BAT0/status", "Discharging\n");
    put("class/power_supply/BAT0/power_now", "9000000\n");
    tn_power *p = meter();
    tn_power_take(p, 5 * (int64_t)SECOND);
    put(RAPL "0/energy_uj", "9500000\n");
    put(RAPL "0:0/energy_uj", "400000\n");
    tn_power_take(p, 6 * (int64_t)SECOND);
    put(RAPL "0/energy_uj", "250000\n"); /* over the end: .5 J to it and .25 after */
    put(RAPL "1/energy_uj", "2000100\n");
    tn_power_take(p, 8 * (int64_t)SECOND);
    tn_power_total t = tn_power_total_of(p);
    assert_int_equal(t.source, TN_POWER_RAPL);
    near(t.joules, 0.5 + 0.75 + 2);
    near(t.seconds, 3);
    near(t.watts, 3.25 / 3);
    size_t n;
    const tn_power_sample *s = tn_power_samples(p, &n);
    assert_int_equal(n, 3);
    near(s[0].watts, 0);
    near(s[1].watts, 0.5);
    near(s[2].watts, 2.75 / 2);
    tn_power_close(&p);
    tn_power_close(&p);
}

#define BATTERY "class/power_supply/battery/"
static void batteries(void **state) {
    (void)state;
    put("class/power_supply/usb/type", "USB\n");
    put("class/power_supply/usb/power_now", "1\n");
    put(BATTERY "type", "Battery\n");
    put(BATTERY "status", "Charging\n");
    put(BATTERY "current_now", "-500000\n"); /* some phones give what leaves a sign */
    put(BATTERY "voltage_now", "4000000\n");
    tn_power *p = meter();
    assert_int_equal(tn_power_total_of(p).source,
                     TN_POWER_NONE); /* what comes in tells nothing of what is spent */
    tn_power_take(p, 0);
    tn_power_take(p, SECOND);
    near(tn_power_total_of(p).joules, 0);
    tn_power_close(&p);
    put(BATTERY "status", "Discharging\n");
    p = meter();
    assert_int_equal(tn_power_total_of(p).source, TN_POWER_BATTERY);
    tn_power_take(p, 0); /* 2 W */
    put(BATTERY "current_now", "1500000\n");
    tn_power_take(p, 2 * (int64_t)SECOND); /* 6 W: 4 on average */
    near(tn_power_total_of(p).joules, 8);
    put(BATTERY "power_now", "1000000\n"); /* where it tells power, that counts */
    tn_power_take(p, 3 * (int64_t)SECOND);
    near(tn_power_total_of(p).joules, 8 + 3.5);
    tn_power_close(&p);
}

static void temperatures(void **state) {
    (void)state;
    put("class/thermal/thermal_zone0/temp", "41000\n");
    put("class/thermal/thermal_zone1/temp", "-274000\n");
    put("class/thermal/thermal_zone2/temp", "2147483647\n");
    put("class/thermal/thermal_zone3/temp", "38500\n");
    put("class/thermal/cooling_device0/temp", "99000\n");
    tn_power *p = meter();
    tn_power_take(p, 0);
    put("class/thermal/thermal_zone3/temp", "52500\n");
    tn_power_take(p, SECOND);
    put("class/thermal/thermal_zone3/temp", "40000\n");
    tn_power_take(p, 2 * (int64_t)SECOND);
    tn_power_total t = tn_power_total_of(p);
    near(t.celsius_first, 41);
    near(t.celsius_max, 52.5);
    assert_int_equal(t.source, TN_POWER_NONE);
    tn_power_close(&p);
}

/* Samples of a long run thin out, evenly; the sums do not suffer. */
static void long_runs(void **state) {
    (void)state;
    put(BATTERY "type", "Battery\n");
    put(BATTERY "status", "Discharging\n");
    put(BATTERY "power_now", "2000000\n");
    tn_power *p = meter();
    for (int64_t i = 0; i < 2 * TN_POWER_SAMPLES + 2; i++) tn_power_take(p, i * SECOND);
    size_t n;
    const tn_power_sample *s = tn_power_samples(p, &n);
    assert_in_range(n, TN_POWER_SAMPLES / 2, TN_POWER_SAMPLES);
    for (size_t i = 2; i < n; i++) assert_true(s[i].ns - s[i - 1].ns == s[1].ns - s[0].ns);
    tn_power_total t = tn_power_total_of(p);
    near(t.joules, 2.0 * (2 * TN_POWER_SAMPLES + 1));
    assert_int_equal(t.n_samples, 2 * TN_POWER_SAMPLES + 2);
    tn_power_close(&p);
}

static void by_itself(void **state) {
    (void)state;
    put(BATTERY "type", "Battery\n");
    put(BATTERY "status", "Discharging\n");
    put(BATTERY "power_now", "3000000\n");
    tn_power *p = meter();
    tn_power_start(p);
    tn_power_stop(p);
    tn_power_total t = tn_power_total_of(p);
    assert_true(t.n_samples >= 2 && fabs(t.joules - 3 * t.seconds) < 1e-9);
    tn_power_start(p);
    tn_power_close(&p); /* while it runs */
    snprintf(root + strlen(root), 8, "/none");
    p = meter();
    tn_power_start(p);
    tn_power_stop(p);
    assert_int_equal(tn_power_total_of(p).source, TN_POWER_NONE);
    tn_power_close(&p);
    *strrchr(root, '/') = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cores_of_phones, fresh, gone),
        cmocka_unit_test_setup_teardown(alike_and_unknown_cores_are_all_fast, fresh, gone),
        cmocka_unit_test_setup_teardown(pins, fresh, gone),
        cmocka_unit_test_setup_teardown(counters_of_processors, fresh, gone),
        cmocka_unit_test_setup_teardown(batteries, fresh, gone),
        cmocka_unit_test_setup_teardown(temperatures, fresh, gone),
        cmocka_unit_test_setup_teardown(long_runs, fresh, gone),
        cmocka_unit_test_setup_teardown(by_itself, fresh, gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
