/* tern - the command line. One file per subcommand; this one only dispatches. */
#include "tern.h"

#include <stdio.h>

int main(void) {
    printf("tern %s\n", tern_version());
    return 0;
}
