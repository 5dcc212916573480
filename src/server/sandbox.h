/* server/sandbox.h - what a server that has opened everything may no longer ask of the kernel.
 *
 * Its threads answer requests: they read and write files and sockets that are open, open files of the
 * model's, start threads and wait. What a taken-over process would want besides is refused with EPERM:
 * other programs, other processes, other connections, other rights, other namespaces, the kernel's own
 * machinery. */
#ifndef TN_SERVER_SANDBOX_H
#define TN_SERVER_SANDBOX_H

#include "base/status.h"

/* For all threads of the process, for good, and for what they start. TERN_E_UNSUPPORTED where the kernel
 * or this processor has no such filters. */
tern_status tn_sandbox_enter(tern_error *err);

#endif
