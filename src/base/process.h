/* base/process.h - facts about this process from the system. On Windows: base/windows/process.c. */
#ifndef TN_BASE_PROCESS_H
#define TN_BASE_PROCESS_H

#include <stdint.h>

double tn_process_age_s(void);        /* since it was started; 0: not known */
uint64_t tn_process_peak_bytes(void); /* its peak memory; 0: unknown */

#endif
