#include "libraries/stubs.h"

/* clang-format off */
#define FUNCTIONS(F) \
    F(jpeg_CreateDecompress) F(jpeg_destroy_decompress) F(jpeg_finish_decompress) F(jpeg_mem_src) \
    F(jpeg_read_header) F(jpeg_read_scanlines) F(jpeg_save_markers) F(jpeg_start_decompress) \
    F(jpeg_std_error)
/* clang-format on */

TN_LOADED(tn_loaded_jpeg, TN_SO_JPEG, "libjpeg62-turbo", "JPEG pictures")
