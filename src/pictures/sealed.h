/* pictures/sealed.h - decoding in a process of its own, because pictures come from anywhere and their formats are large.
 *
 * The process holds the file's bytes and its way back, and nothing else that was open; before it looks at them it gives up
 * every file, connection and program (documents/sandbox.h). It has a minute of a processor, 1.5 GiB, and
 * TN_PICTURE_WAIT_S by the clock. A picture that breaks its decoder, or holds it for ever, costs one error. */
#ifndef TN_PICTURES_SEALED_H
#define TN_PICTURES_SEALED_H

#include "documents/reader.h"
#include "pictures/picture.h"

enum { TN_PICTURE_WAIT_S = 300 };
typedef tern_status tn_picture_decoder(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_picture *out,
                                       tern_error *err);
/* Any decoder in such a process, for so long. To be called while there is one thread. */
tern_status tn_picture_decode_by(tn_picture_decoder *decode, int wait_s, tn_ctx *ctx, const uint8_t *bytes,
                                 size_t n, tn_picture *out, tern_error *err);
/* Readers that are opened from now on let pictures be decoded so: they have one thread each, whoever asks them. */
void tn_picture_provide(void);
/* tn_picture_decode in such a process of a reader's. Any thread may call. */
tern_status tn_picture_decode_sealed(tn_reader *r, tn_ctx *ctx, const uint8_t *bytes, size_t n,
                                     tn_picture *out, tern_error *err);

#endif
