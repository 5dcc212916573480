#include "libraries/stubs.h"

/* clang-format off */
#define FUNCTIONS(F) \
    F(MHD_add_connection) F(MHD_add_response_header) F(MHD_create_response_from_buffer) \
    F(MHD_create_response_from_callback) F(MHD_destroy_response) F(MHD_get_connection_info) \
    F(MHD_lookup_connection_value) F(MHD_queue_response) F(MHD_set_connection_option) F(MHD_start_daemon) \
    F(MHD_stop_daemon)
/* clang-format on */

TN_LOADED(tn_loaded_microhttpd, TN_SO_MICROHTTPD, "libmicrohttpd12", "the server")
