/* base/process.h - what the system tells of this process. For Windows there is base/windows/process.c. */
#ifndef TN_BASE_PROCESS_H
#define TN_BASE_PROCESS_H

#include <stdint.h>

double tn_process_age_s(void);        /* since it was started; 0: not known */
uint64_t tn_process_peak_bytes(void); /* the most memory that it had; 0: not known */

#endif
