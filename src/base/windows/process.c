#include "base/process.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <psapi.h>

static double seconds_of(FILETIME t) {
    return (double)((uint64_t)t.dwHighDateTime << 32 | t.dwLowDateTime) * 1e-7;
}

double tn_process_age_s(void) {
    FILETIME begin, end, kernel, user, now;
    if (!GetProcessTimes(GetCurrentProcess(), &begin, &end, &kernel, &user)) return 0;
    GetSystemTimeAsFileTime(&now);
    return seconds_of(now) - seconds_of(begin);
}

uint64_t tn_process_peak_bytes(void) {
    PROCESS_MEMORY_COUNTERS m;
    return K32GetProcessMemoryInfo(GetCurrentProcess(), &m, sizeof m) ? m.PeakWorkingSetSize : 0;
}
