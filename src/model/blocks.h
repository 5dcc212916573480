/* model/blocks.h - linears whose weights stay in the file's blocks (scheme "blocks").
 * The file's bytes are read once, turned to tiles and let go: memory holds one copy, of the file's size. Types of code
 * books (formats/code_books.h) take more, because a product names its values one by one: 3.3 bits a weight for IQ1 and
 * IQ2, 4.2 for IQ3, 2.1 for TQ. So do ik_llama.cpp's types whose rows have a head (formats/ik_types.h): its number lies in
 * every block, and of trellises the values are kept in 8.4 bits. */
#ifndef TN_MODEL_BLOCKS_H
#define TN_MODEL_BLOCKS_H

#include "model/model.h"

/* Whether any linear of the source is stored in blocks: then "blocks" is what runs by default. */
bool tn_blocks_in_source(const tn_source *s);
/* Bytes of the room that the linears of a layer take for what they have in blocks; layer >= 0. experts: those of experts,
 * too. */
size_t tn_blocks_room(const tn_source *s, int layer, bool experts);
/* Of that, what one linear of rows x cols of a role takes; 0: it is not stored in blocks. */
size_t tn_blocks_linear_room(const tn_source *s, int layer, tn_role role, int64_t rows, int64_t cols);
/* Bytes of rows x cols of a role as blocks; 0: it is not stored in blocks. */
size_t tn_blocks_role_bytes(const tn_source *s, int layer, tn_role role, int64_t rows, int64_t cols);
/* l (n, k are set) takes the tensor as it is stored; where it is not stored in blocks, l->blocks stays
 * NULL and nothing happens. row0: where its rows begin in the tensor. room: where tiles go, moved on after
 * them; NULL or *room NULL: l gets its own memory. Numbers that are none are an error that names the tensor. */
tern_status tn_blocks_load(tn_ctx *ctx, tn_pool *pool, const tn_source *src, int layer, tn_role role,
                           int64_t row0, uint8_t **room, tn_linear *l, tern_error *err);

/* Tells whether a role's tensor is in blocks that memory holds as many bytes of, in tiles. */
bool tn_blocks_stay(const tn_source *s, int layer, tn_role role);
/* Blocks that are turned where they were read to (EdgeFlow 4.2). tensor: memory for the bytes of the role's whole
 * tensor, as the file has them. has_more: a tile's rows fit in behind them. Gives l (n, k are set) its place there; false,
 * and l->blocks is NULL: it is not stored in blocks, or its tiles would not lie where its rows do. */
bool tn_blocks_place(const tn_source *src, int layer, tn_role role, int64_t row0, uint8_t *tensor,
                     bool has_more, tn_linear *l);
/* Turns them, once, when they are there. Numbers that are none are an error that names the tensor. */
tern_status tn_blocks_turn(tn_ctx *ctx, tn_pool *pool, const tn_source *src, int layer, tn_role role,
                           int64_t row0, tn_linear *l, tern_error *err);

/* Turns a linear's panels into blocks of 8 bits (Q8_0), one scale of 32 inputs, and lets the panels go; one whose
 * inputs are no multiple of 32 stays as it is. *n_bytes: of its weights then. */
tern_status tn_blocks_from_panels(tn_ctx *ctx, tn_pool *pool, tn_linear *l, size_t *n_bytes, tern_error *err);

/* Quantised rows of a linear of k input channels, as tn_linears_run wants them: how many for n_rows rows. */
size_t tn_blocks_acts(size_t k, size_t n_rows);
/* tn_linears_run of such linears. Those whose blocks want rows in one form are one loop of the pool. */
void tn_blocks_run(const tn_product *p, size_t n, const tn_kernels *kern, tn_pool *pool, const float *x,
                   size_t ldx, tn_blocks_act *acts);

#endif
