/* npu/hexagon/message.h - what travels between host and DSP: one fixed message per op, answered by one word. Places are byte
 * offsets into the shared arena; nothing is an address. Both sides are little-endian 32-bit fields. */
#ifndef TN_HEXAGON_MESSAGE_H
#define TN_HEXAGON_MESSAGE_H

#include <stdint.h>

enum { TN_HEX_HELLO = 0x48584e54, TN_HEX_RUN = 0x52584e54, TN_HEX_OK = 1, TN_HEX_BAD = 2 };

/* in: rows of k bytes, k a multiple of 4. tiles: 16x4. out: rows of out_stride elements. scale and bias: n floats rounded
 * up to 16; bias 0 is none. hello: arena_bytes only. */
typedef struct tn_hex_message {
    uint32_t what, arena_bytes, in, tiles, scale, bias, out, out_stride, out_form, m, n, k;
} tn_hex_message;

#endif
