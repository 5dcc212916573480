#include "libraries/stubs.h"

/* clang-format off */
#define FUNCTIONS(F) \
    F(archive_entry_pathname) F(archive_read_data) F(archive_read_free) F(archive_read_new) \
    F(archive_read_next_header) F(archive_read_open_memory) F(archive_read_support_format_zip_seekable)
/* clang-format on */

TN_LOADED(tn_loaded_archive, TN_SO_ARCHIVE, "libarchive13", "office documents and books")
