#include "libraries/stubs.h"

/* clang-format off */
#define FUNCTIONS(F) \
    F(sqlite3_bind_blob) F(sqlite3_bind_blob64) F(sqlite3_bind_int) F(sqlite3_bind_int64) \
    F(sqlite3_bind_text) F(sqlite3_bind_text64) F(sqlite3_busy_timeout) F(sqlite3_changes64) \
    F(sqlite3_clear_bindings) F(sqlite3_close) F(sqlite3_column_blob) F(sqlite3_column_bytes) \
    F(sqlite3_column_double) F(sqlite3_column_int) F(sqlite3_column_int64) F(sqlite3_column_text) \
    F(sqlite3_create_function) F(sqlite3_db_config) F(sqlite3_errcode) F(sqlite3_errmsg) F(sqlite3_exec) \
    F(sqlite3_extended_result_codes) F(sqlite3_finalize) F(sqlite3_get_autocommit) \
    F(sqlite3_last_insert_rowid) F(sqlite3_open_v2) F(sqlite3_prepare_v2) F(sqlite3_reset) \
    F(sqlite3_result_error_nomem) F(sqlite3_result_text64) F(sqlite3_step) F(sqlite3_system_errno) \
    F(sqlite3_value_bytes) F(sqlite3_value_text)
/* clang-format on */

TN_LOADED(tn_loaded_sqlite, TN_SO_SQLITE, "libsqlite3-0", "stores and indexes")
