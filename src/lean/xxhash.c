/* lean/xxhash.c - xxHash's own header as code, for builds that bring no libxxhash (TERN_MINIMAL). */
#define XXH_IMPLEMENTATION
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
