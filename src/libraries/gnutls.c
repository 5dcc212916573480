#include "libraries/stubs.h"

/* clang-format off */
#define FUNCTIONS(F) \
    F(gnutls_alert_send_appropriate) F(gnutls_alpn_set_protocols) F(gnutls_bye) \
    F(gnutls_certificate_allocate_credentials) F(gnutls_certificate_free_credentials) \
    F(gnutls_certificate_set_x509_key_mem2) F(gnutls_credentials_set) F(gnutls_deinit) \
    F(gnutls_error_is_fatal) F(gnutls_handshake) F(gnutls_init) F(gnutls_priority_deinit) \
    F(gnutls_priority_init) F(gnutls_priority_set) F(gnutls_record_recv) F(gnutls_record_send) \
    F(gnutls_strerror) F(gnutls_transport_set_int2)
/* clang-format on */

TN_LOADED(tn_loaded_gnutls, TN_SO_GNUTLS, "libgnutls30", "TLS")
