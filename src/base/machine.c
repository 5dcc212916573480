#include "base/machine.h"

#include "base/clock.h"
#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tn_machine_root(void) {
    const char *root = getenv("TERN_SYS");
    return root && *root ? root : "/sys";
}

/* Returns the first line of root/path, "" where there is none. */
static void read_line(const char *root, const char *path, char *out, size_t cap) {
    char full[512];
    out[0] = 0;
    if ((size_t)snprintf(full, sizeof full, "%s/%s", root, path) >= sizeof full) return;
    FILE *f = fopen(full, "re");
    if (!f) return;
    if (!fgets(out, (int)cap, f)) out[0] = 0;
    fclose(f);
    out[strcspn(out, "\n")] = 0;
}

static bool read_number(const char *root, const char *path, double *out) {
    char line[64], *end;
    read_line(root, path, line, sizeof line);
    *out = strtod(line, &end);
    return end != line && isfinite(*out);
}

/* ---- cores --------------------------------------------------------------------------------------- */

/* Reads "0-3,6" into a set. Returns false where it is malformed or names a core beyond the set. */
static bool parse_list(const char *s, bool set[TN_MAX_CORES]) {
    memset(set, 0, TN_MAX_CORES * sizeof *set);
    do {
        char *end;
        if (*s < '0' || *s > '9') return false;
        unsigned long a = strtoul(s, &end, 10), b = a;
        if (*end == '-') {
            s = end + 1;
            if (*s < '0' || *s > '9') return false;
            b = strtoul(s, &end, 10);
        }
        if (a > b || b >= TN_MAX_CORES) return false;
        for (unsigned long i = a; i <= b; i++) set[i] = true;
        s = end;
    } while (*s++ == ',');
    return !s[-1];
}

void tn_cores_read(const char *root, tn_cores *out) {
    char line[256], path[96];
    bool online[TN_MAX_CORES];
    *out = (tn_cores){.by_capacity = true};
    read_line(root, "devices/system/cpu/online", line, sizeof line);
    if (!parse_list(line, online)) return;
    for (int pass = 0; pass < 2; pass++) { /* capacities if all cores have one, else frequencies */
        out->n = 0;
        out->by_capacity = !pass;
        bool all = true;
        for (int32_t i = 0; i < TN_MAX_CORES; i++) {
            if (!online[i]) continue;
            double x;
            snprintf(path, sizeof path, "devices/system/cpu/cpu%d/%s", (int)i,
                     pass ? "cpufreq/cpuinfo_max_freq" : "cpu_capacity");
            bool known = read_number(root, path, &x) && x >= 0 && x < 1e12;
            all = all && known;
            out->cpu[out->n] = i;
            out->speed[out->n++] = known ? (int64_t)x : 0;
        }
        if (all) return;
    }
}

tern_status tn_cores_choose(tn_cores *c, const char *choice, tern_error *err) {
    bool fast = !strcmp(choice, "fast"), named[TN_MAX_CORES];
    int64_t most = 0, least = INT64_MAX;
    for (int32_t i = 0; i < c->n; i++) {
        most = c->speed[i] > most ? c->speed[i] : most;
        least = c->speed[i] < least ? c->speed[i] : least;
    }
    TN_FAIL_IF(!fast && !parse_list(choice, named), err, TERN_E_INVALID,
               "cores '%s': there are all, fast, or numbers like 4-7 or 0,2", choice);
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        bool keep = !fast            ? named[c->cpu[i]]
                    : !least         ? true /* some are unknown: keep all */
                    : c->by_capacity ? 2 * c->speed[i] >= most
                                     : 5 * c->speed[i] >= 4 * most;
        if (!keep) continue;
        c->cpu[n] = c->cpu[i];
        c->speed[n++] = c->speed[i];
    }
    TN_FAIL_IF(!n, err, TERN_E_INVALID, "cores '%s': none of them is online", choice);
    c->n = n;
    return TERN_OK;
}

tern_status tn_cores_pin(const tn_cores *c, tern_error *err) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int32_t i = 0; i < c->n; i++) CPU_SET((size_t)c->cpu[i], &set);
    TN_FAIL_IF(sched_setaffinity(0, sizeof set, &set), err, TERN_E_INVALID,
               "cannot run on the cores chosen: %s", strerror(errno));
    return TERN_OK;
}

tern_status tn_cores_use(const char *choice, tern_error *err) {
    if (!choice || !strcmp(choice, "all")) return TERN_OK;
    tn_cores c;
    tn_cores_read(tn_machine_root(), &c);
    TN_TRY(tn_cores_choose(&c, choice, err));
    return tn_cores_pin(&c, err);
}

/* ---- energy and temperature ------------------------------------------------------------------------ */

enum { MAX_PLACES = 16, MAX_ZONES = 64, EVERY_NS = 100000000 };

typedef struct place {
    char path[288];
    double last, range; /* RAPL, in microjoules: the last count, and its wrap-around */
} place;

struct tn_power {
    tn_ctx *ctx;
    char root[256];
    tn_power_source source;
    place places[MAX_PLACES], zones[MAX_ZONES];
    int32_t n_places, n_zones;
    double battery_w; /* of the previous sample */
    tn_power_sample samples[TN_POWER_SAMPLES];
    size_t n, n_taken, stride; /* one of `stride` samples is kept, besides the latest */
    double celsius_max;
    tn_power_sample first, latest;
    pthread_t thread;
    pthread_mutex_t mu; /* guards all of the above while the thread runs, and `stop` */
    pthread_cond_t wake;
    bool runs, stop;
};

const char *tn_power_source_name(tn_power_source s) {
    static const char *const names[] = {"none", "rapl", "battery"};
    return names[s];
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const place *)a)->path, ((const place *)b)->path);
}

/* Folders under root/folder whose names begin with a prefix and that `want` accepts, sorted by name. */
static int32_t list_places(const char *root, const char *folder, const char *begins, place *out, int32_t cap,
                           bool (*want)(const char *root, place *p)) {
    char full[512];
    int32_t n = 0;
    if ((size_t)snprintf(full, sizeof full, "%s/%s", root, folder) >= sizeof full) return 0;
    DIR *d = opendir(full);
    for (struct dirent *e; d && n < cap && (e = readdir(d));) {
        if (e->d_name[0] == '.' || strncmp(e->d_name, begins, strlen(begins))) continue;
        out[n] = (place){.last = NAN};
        if ((size_t)snprintf(out[n].path, sizeof out[n].path, "%s/%s", folder, e->d_name) >=
            sizeof out[n].path)
            continue;
        n += want(root, &out[n]);
    }
    if (d) closedir(d);
    qsort(out, (size_t)n, sizeof *out, by_name);
    return n;
}

static bool number_at(const char *root, const place *p, const char *file, double *out) {
    char path[320];
    return (size_t)snprintf(path, sizeof path, "%s/%s", p->path, file) < sizeof path &&
           read_number(root, path, out);
}

static bool is_package(const char *root, place *p) {
    const char *name = strrchr(p->path, '/') + 1;
    double now;
    if (strchr(name, ':') != strrchr(name, ':')) return false; /* part of a package, already counted there */
    return number_at(root, p, "energy_uj", &now) && number_at(root, p, "max_energy_range_uj", &p->range) &&
           p->range > 0;
}

static bool battery_watts(const char *root, const place *p, double *watts) {
    char path[320], status[32];
    double x, volts;
    snprintf(path, sizeof path, "%.300s/status", p->path);
    read_line(root, path, status, sizeof status);
    if (strcmp(status, "Discharging")) return false;
    if (number_at(root, p, "power_now", &x)) {
        *watts = fabs(x) * 1e-6;
        return true;
    }
    if (!number_at(root, p, "current_now", &x) || !number_at(root, p, "voltage_now", &volts)) return false;
    *watts = fabs(x) * 1e-6 * fabs(volts) * 1e-6;
    return true;
}

static bool is_battery(const char *root, place *p) {
    char path[320], type[32];
    double watts;
    snprintf(path, sizeof path, "%.300s/type", p->path);
    read_line(root, path, type, sizeof type);
    return !strcmp(type, "Battery") && battery_watts(root, p, &watts);
}

static bool is_zone(const char *root, place *p) {
    double t;
    return number_at(root, p, "temp", &t);
}

tern_status tn_power_open(tn_ctx *ctx, const char *root, tn_power **out, tern_error *err) {
    tn_power *p = *out = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "no memory to measure energy");
    p->ctx = ctx;
    snprintf(p->root, sizeof p->root, "%s", root);
    p->stride = 1;
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->n_places = list_places(root, "class/powercap", "intel-rapl:", p->places, MAX_PLACES, is_package);
    p->source = p->n_places ? TN_POWER_RAPL : TN_POWER_NONE;
    if (!p->n_places) {
        p->n_places = list_places(root, "class/power_supply", "", p->places, MAX_PLACES, is_battery);
        p->source = p->n_places ? TN_POWER_BATTERY : TN_POWER_NONE;
    }
    p->n_zones = list_places(root, "class/thermal", "thermal_zone", p->zones, MAX_ZONES, is_zone);
    return TERN_OK;
}

/* Energy used by the packages since the last reading. */
static double rapl_joules(tn_power *p) {
    double sum = 0, now;
    for (int32_t i = 0; i < p->n_places; i++) {
        place *x = &p->places[i];
        if (!number_at(p->root, x, "energy_uj", &now)) continue;
        double more = isnan(x->last) ? 0 : now - x->last;
        sum += more < 0 ? more + x->range : more;
        x->last = now;
    }
    return sum * 1e-6;
}

/* Energy from the batteries: the mean power of the interval's ends, times its length. */
static double battery_joules(tn_power *p, bool is_first, double seconds) {
    double sum = 0, watts, before = p->battery_w;
    for (int32_t i = 0; i < p->n_places; i++)
        if (battery_watts(p->root, &p->places[i], &watts)) sum += watts;
    p->battery_w = sum;
    return is_first ? 0 : (before + sum) / 2 * seconds;
}

static void keep(tn_power *p, const tn_power_sample *s) {
    if (p->n_taken++ % p->stride) return;
    if (p->n == TN_POWER_SAMPLES) {
        for (size_t i = 0; i < TN_POWER_SAMPLES / 2; i++) p->samples[i] = p->samples[2 * i];
        p->n = TN_POWER_SAMPLES / 2;
        p->stride *= 2;
    }
    p->samples[p->n++] = *s;
}

void tn_power_take(tn_power *p, int64_t now_ns) {
    bool is_first = !p->n_taken;
    double seconds = is_first ? 0 : (double)(now_ns - p->latest.ns) * 1e-9, t;
    double more = p->source == TN_POWER_RAPL      ? rapl_joules(p)
                  : p->source == TN_POWER_BATTERY ? battery_joules(p, is_first, seconds)
                                                  : 0;
    tn_power_sample s = {.ns = now_ns, .joules = p->latest.joules + more};
    s.watts = seconds > 0 ? more / seconds : 0;
    for (int32_t i = 0; i < p->n_zones; i++) /* zones without a sensor report implausible values */
        if (number_at(p->root, &p->zones[i], "temp", &t) && t > 0 && t < 150e3)
            s.celsius = fmax(s.celsius, t * 1e-3);
    p->celsius_max = fmax(p->celsius_max, s.celsius);
    if (is_first) p->first = s;
    p->latest = s;
    keep(p, &s);
}

static void *sample(void *arg) {
    tn_power *p = arg;
    pthread_mutex_lock(&p->mu);
    while (!p->stop) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += EVERY_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&p->wake, &p->mu, &until);
        if (!p->stop) tn_power_take(p, tn_now_ns());
    }
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

void tn_power_start(tn_power *p) {
    tn_power_take(p, tn_now_ns());
    p->stop = false;
    p->runs = (p->source != TN_POWER_NONE || p->n_zones) && !pthread_create(&p->thread, NULL, sample, p);
}

void tn_power_stop(tn_power *p) {
    if (p->runs) {
        pthread_mutex_lock(&p->mu);
        p->stop = true;
        pthread_cond_signal(&p->wake);
        pthread_mutex_unlock(&p->mu);
        pthread_join(p->thread, NULL);
        p->runs = false;
    }
    tn_power_take(p, tn_now_ns());
}

const tn_power_sample *tn_power_samples(const tn_power *p, size_t *n) {
    *n = p->n;
    return p->samples;
}

tn_power_total tn_power_total_of(const tn_power *p) {
    tn_power_total t = {.source = p->source,
                        .seconds = (double)(p->latest.ns - p->first.ns) * 1e-9,
                        .joules = p->latest.joules,
                        .celsius_first = p->first.celsius,
                        .celsius_max = p->celsius_max,
                        .n_samples = p->n_taken};
    t.watts = t.seconds > 0 ? t.joules / t.seconds : 0;
    return t;
}

void tn_power_close(tn_power **pp) {
    tn_power *p = *pp;
    if (!p) return;
    *pp = NULL;
    if (p->runs) tn_power_stop(p);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mu);
    tn_free(p->ctx, p);
}
