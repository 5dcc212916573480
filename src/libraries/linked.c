/* For whatever is linked with the libraries: they are there, or it would not run. */
#include "libraries/library.h"

const char *tn_library_lacks(tn_library l) {
    (void)l;
    return NULL;
}
