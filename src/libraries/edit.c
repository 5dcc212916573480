#include "libraries/stubs.h"

/* clang-format off */
#define FUNCTIONS(F) \
    F(el_end) F(el_get) F(el_gets) F(el_init) F(el_push) F(el_reset) F(el_set) F(history) F(history_end) \
    F(history_init)
/* clang-format on */

TN_LOADED(tn_loaded_edit, TN_SO_EDIT, "libedit2", "typed lines")
