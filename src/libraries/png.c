#include "libraries/stubs.h"

/* clang-format off */
#define FUNCTIONS(F) \
    F(png_create_info_struct) F(png_create_read_struct) F(png_destroy_read_struct) F(png_error) \
    F(png_get_eXIf_1) F(png_get_error_ptr) F(png_get_image_height) F(png_get_image_width) \
    F(png_get_interlace_type) F(png_get_io_ptr) F(png_get_rowbytes) F(png_longjmp) F(png_read_end) \
    F(png_read_info) F(png_read_row) F(png_read_update_info) F(png_set_add_alpha) \
    F(png_set_chunk_cache_max) F(png_set_chunk_malloc_max) F(png_set_expand) F(png_set_gray_to_rgb) \
    F(png_set_interlace_handling) F(png_set_longjmp_fn) F(png_set_read_fn) F(png_set_strip_16) \
    F(png_set_user_limits)
/* clang-format on */

TN_LOADED(tn_loaded_png, TN_SO_PNG, "libpng16-16", "PNG pictures")
