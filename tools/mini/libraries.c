/* What the static libraries of a minimal build leave to be done.
 *
 * xxHash is compiled from its header, so that only the functions in use take room.
 *
 * Debian builds libjansson.a for programs: its json_loadf asks for stdin where it would lie in a program, and no
 * shared library can be linked with that. Nothing here calls json_loadf, so it is given a stdin of its own. */
#define XXH_IMPLEMENTATION
#define XXH_STATIC_LINKING_ONLY
#include <stdio.h>
#include <xxhash.h>

extern FILE *__wrap_stdin; /* what -Wl,--wrap=stdin puts in its place */
FILE *__wrap_stdin = NULL;
