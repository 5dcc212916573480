/* text/rwkv.h - RWKV's own vocabulary: a file of one token a line ("12 '\x0b' 1": its number, its bytes as Python writes
 * them, as a text or as bytes, and how many they are), and the way it is used: at every place of a text the longest
 * token that stands there. Token 0 ends a text and stands for none of it. */
#ifndef TN_TEXT_RWKV_H
#define TN_TEXT_RWKV_H

#include "base/status.h"

#include <stddef.h>

/* Called for every token, from 1 on in the order of ids; the bytes are not zero-terminated and gone afterwards. */
typedef tern_status (*tn_rwkv_token)(void *user, int32_t id, const char *bytes, size_t n);

/* Reads a vocabulary's text. Numbers that do not follow each other, and literals whose bytes are not as many as the line
 * says, are TERN_E_FORMAT. */
tern_status tn_rwkv_read(const char *text, size_t n_bytes, tn_rwkv_token on_token, void *user,
                         tern_error *err);

/* Bytes of a token as GGUF files have it: between the quotes of a Python literal of bytes. out has room for n bytes.
 * Returns their number; SIZE_MAX: it is no such text. */
size_t tn_rwkv_bytes(const char *text, size_t n, char *out);

#endif
