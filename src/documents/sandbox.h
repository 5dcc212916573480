/* documents/sandbox.h - what a process may no longer ask of the kernel, for good, and nothing that it starts either.
 *
 *   calls   a filter of system calls (seccomp): other programs, other processes, other connections, other rights, other
 *           namespaces, the kernel's own machinery
 *   files   the files below some folders, and no others (Landlock); and no other process's memory
 *
 * A server that has opened everything enters both, and a process that reads one document from anywhere does. */
#ifndef TN_DOCUMENTS_SANDBOX_H
#define TN_DOCUMENTS_SANDBOX_H

#include "base/status.h"

typedef enum tn_sandbox_kind {
    TN_SANDBOX_SERVER, /* reads and writes files and sockets that are open, opens files, starts threads, waits */
    TN_SANDBOX_READER,  /* reads a document that it holds: opens files to read them, writes to what is open */
    TN_SANDBOX_STARTER, /* starts a program that reads a document, and waits for it */
} tn_sandbox_kind;

/* For all threads of the process; none may be debugged or dumped any more. TERN_E_UNSUPPORTED where the kernel or this
 * processor has no such filters. */
tern_status tn_sandbox_enter(tn_sandbox_kind kind, tern_error *err);

typedef struct tn_sandbox_path {
    const char *path; /* a file, or a folder with all below it; one that does not exist allows nothing */
    bool writes;
} tn_sandbox_path;

/* For this thread and those that it starts. Processes outside are out of reach, too: their memory, signals to them, and
 * with `alone` what listens on TCP. TERN_E_UNSUPPORTED where the kernel has no Landlock. */
tern_status tn_sandbox_files(const tn_sandbox_path *paths, size_t n, bool alone, tern_error *err);
/* Tells whether this kernel has it. */
bool tn_sandbox_has_files(void);

#endif
