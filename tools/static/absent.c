/* What a static tern does without. Debian's static libmicrohttpd is built with TLS and its libxml2 with ICU,
 * both of which are far larger than tern: their names are given here instead. The server speaks HTTP alone,
 * so nothing of TLS but its start and end is ever called. XML in an encoding that libxml2 and the C library
 * do not know is refused by libxml2 where ucnv_open opens nothing.
 *
 * The types are those of the libraries as far as they are returned; arguments are not looked at. */
#include <stddef.h>
#include <stdlib.h>

int gnutls_global_init(void);
int gnutls_global_init(void) { return 0; }
void gnutls_global_deinit(void);
void gnutls_global_deinit(void) {}

void *ucnv_open_72(const char *name, int *error);
void *ucnv_open_72(const char *name, int *error) {
    (void)name;
    *error = 4; /* U_FILE_ACCESS_ERROR: there is no table of that name */
    return NULL;
}

/* Never called: without a TLS daemon, without an open converter. A hole in that would end the program, and
 * not go on with rubbish. */
#define NEVER(name)                                                                                          \
    void name(void);                                                                                         \
    void name(void) { abort(); }
NEVER(ucnv_close_72)
NEVER(ucnv_convertEx_72)
NEVER(ucnv_setFromUCallBack_72)
NEVER(ucnv_setToUCallBack_72)
NEVER(UCNV_FROM_U_CALLBACK_STOP_72)
NEVER(UCNV_TO_U_CALLBACK_STOP_72)
NEVER(gnutls_alpn_set_protocols)
NEVER(gnutls_bye)
NEVER(gnutls_certificate_allocate_credentials)
NEVER(gnutls_certificate_free_credentials)
NEVER(gnutls_certificate_server_set_request)
NEVER(gnutls_certificate_set_dh_params)
NEVER(gnutls_certificate_set_retrieve_function2)
NEVER(gnutls_certificate_set_retrieve_function3)
NEVER(gnutls_certificate_set_x509_key_mem)
NEVER(gnutls_certificate_set_x509_key_mem2)
NEVER(gnutls_certificate_set_x509_trust_mem)
NEVER(gnutls_cipher_get)
NEVER(gnutls_credentials_set)
NEVER(gnutls_deinit)
NEVER(gnutls_dh_params_deinit)
NEVER(gnutls_dh_params_import_pkcs3)
NEVER(gnutls_dh_params_init)
NEVER(gnutls_handshake)
NEVER(gnutls_init)
NEVER(gnutls_malloc)
NEVER(gnutls_priority_deinit)
NEVER(gnutls_priority_init)
NEVER(gnutls_priority_set)
NEVER(gnutls_protocol_get_version)
NEVER(gnutls_psk_allocate_server_credentials)
NEVER(gnutls_psk_free_server_credentials)
NEVER(gnutls_psk_set_server_credentials_function)
NEVER(gnutls_record_check_pending)
NEVER(gnutls_record_get_direction)
NEVER(gnutls_record_recv)
NEVER(gnutls_record_send)
NEVER(gnutls_session_get_ptr)
NEVER(gnutls_session_set_ptr)
NEVER(gnutls_strerror)
NEVER(gnutls_transport_set_int2)
