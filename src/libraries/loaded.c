/* For tern and tern-lab: opens a library when somebody asks for it. dlopen gets the SONAME of the library that CMake
 * found (TN_SO_...) and searches the usual folders for it. */
#include "libraries/library.h"
#include "libraries/stubs.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern const tn_loaded tn_loaded_sqlite, tn_loaded_archive, tn_loaded_xml, tn_loaded_microhttpd,
    tn_loaded_gnutls, tn_loaded_edit, tn_loaded_png, tn_loaded_jpeg, tn_loaded_webp;

typedef enum state { UNTRIED, LOADED, LACKING } state;

typedef struct library {
    const tn_loaded *is; /* NULL: tern was built without it */
    _Atomic(state) at;   /* released after the slots are filled, or `why` is written: neither changes later */
    char why[384];
} library;

static library libraries[TN_N_LIBRARIES] = {
#ifdef TN_SO_SQLITE
    [TN_LIBRARY_SQLITE] = {&tn_loaded_sqlite},
#endif
#ifdef TN_SO_ARCHIVE
    [TN_LIBRARY_ARCHIVE] = {&tn_loaded_archive},
#endif
#ifdef TN_SO_XML
    [TN_LIBRARY_XML] = {&tn_loaded_xml},
#endif
#ifdef TN_SO_MICROHTTPD
    [TN_LIBRARY_MICROHTTPD] = {&tn_loaded_microhttpd},
#endif
#ifdef TN_SO_GNUTLS
    [TN_LIBRARY_GNUTLS] = {&tn_loaded_gnutls},
#endif
#ifdef TN_SO_EDIT
    [TN_LIBRARY_EDIT] = {&tn_loaded_edit},
#endif
#ifdef TN_SO_PNG
    [TN_LIBRARY_PNG] = {&tn_loaded_png},
#endif
#ifdef TN_SO_JPEG
    [TN_LIBRARY_JPEG] = {&tn_loaded_jpeg},
#endif
#ifdef TN_SO_WEBP
    [TN_LIBRARY_WEBP] = {&tn_loaded_webp},
#endif
};
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

void tn_library_not_loaded(void) {
    fputs("tern: a library was called before it was asked for\n", stderr);
    abort();
}

/* Lets the pages of a library's slots be written, or takes that back. */
static bool protect(const tn_stub *stubs, int how) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = UINTPTR_MAX, to = 0;
    for (const tn_stub *s = stubs; s->name; s++) {
        const uintptr_t at = (uintptr_t)s->slot & ~(page - 1);
        if (at < from) from = at;
        if (at + page > to) to = at + page;
    }
    return !mprotect((void *)from, to - from, how);
}

/* Returns what is wrong, NULL: nothing. */
static const char *load(const tn_loaded *l) {
    void *library = dlopen(l->file, RTLD_NOW | RTLD_LOCAL);
    const char *why = library ? NULL : dlerror();
    if (why || !protect(l->stubs, PROT_READ | PROT_WRITE)) return why ? why : strerror(errno);
    for (const tn_stub *s = l->stubs; s->name && !why; s++)
        if (!(*s->slot = dlsym(library, s->name))) why = dlerror();
    (void)protect(l->stubs, PROT_READ);
    return why;
}

const char *tn_library_lacks(tn_library which) {
    library *l = &libraries[which];
    if (!l->is) return "tern was built without this library";
    state at = atomic_load_explicit(&l->at, memory_order_acquire);
    if (at == UNTRIED) {
        pthread_mutex_lock(&loading);
        if ((at = atomic_load(&l->at)) == UNTRIED) {
            const char *why = load(l->is);
            at = why ? LACKING : LOADED;
            if (why) /* the loader's words may hold a path, which the server cuts off for clients: they come last */
                snprintf(l->why, sizeof l->why,
                         "%s, for %s, cannot be loaded (Debian: apt-get install %s): %s", l->is->file,
                         l->is->what, l->is->package, why);
            atomic_store_explicit(&l->at, at, memory_order_release);
        }
        pthread_mutex_unlock(&loading);
    }
    return at == LOADED ? NULL : l->why;
}
