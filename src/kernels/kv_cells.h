/* kernels/kv_cells.h - the forms in which one KV head's keys and values are kept, and the floats they stand for.
 *
 * A cache is a row of panels, TN_KV_PANEL positions each.
 *   f32, f16    keys [d_head][position of the panel], values [position][d_head]
 *   int8, int4  the values of a position come in groups of TN_KV_GROUP neighbours (the last is filled up with zeros), and
 *               every group has a scale, a half float. A panel of keys is, group by group, 32 scales [position] and then
 *               the codes [32][position]; a panel of values is its scales [position][group] and then the codes
 *               [position][group][32].
 * A code of int8 is a byte. In int4 a byte has the codes of neighbours i (low half) and i + 16 (high half), each plus 8,
 * so that there are 16 for 32 neighbours, and threads that write different positions never write the same byte.
 * What a cell stands for is exact: the float, the half as a float, or the code times the scale, rounded once to a float.
 * All kernels compute with exactly these floats. So within a form, bits depend neither on the instruction set nor on how
 * a row was reached. */
#ifndef TN_KERNELS_KV_CELLS_H
#define TN_KERNELS_KV_CELLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tn_kv_type { TN_KV_F32, TN_KV_F16, TN_KV_INT8, TN_KV_INT4, TN_N_KV_TYPES } tn_kv_type;

enum { TN_KV_PANEL = 32, TN_KV_GROUP = 32 };
enum { TN_MAX_HEAD = 640 }; /* values of a head, at most; more than 512 in latent attention alone */

/* Returns the type of that name ("f32", "f16", "int8", "int4"), or TN_N_KV_TYPES. */
tn_kv_type tn_kv_type_parse(const char *name);
const char *tn_kv_type_name(tn_kv_type type);

static inline size_t tn_kv_groups(size_t d_head) { return (d_head + TN_KV_GROUP - 1) / TN_KV_GROUP; }
/* Bytes of a panel of keys, and as many of values. */
static inline size_t tn_kv_panel_bytes(tn_kv_type type, size_t d_head) {
    size_t codes = TN_KV_PANEL * TN_KV_GROUP, scales = TN_KV_PANEL * sizeof(uint16_t);
    switch (type) {
    case TN_KV_F16: return TN_KV_PANEL * d_head * sizeof(uint16_t);
    case TN_KV_INT8: return tn_kv_groups(d_head) * (scales + codes);
    case TN_KV_INT4: return tn_kv_groups(d_head) * (scales + codes / 2);
    default: return TN_KV_PANEL * d_head * sizeof(float);
    }
}

/* Positions whose floats a kernel holds at a time, and the floats of that: few enough for the first cache. */
static inline size_t tn_kv_span(size_t d_head) { return d_head <= 64 ? 2 * TN_KV_PANEL : TN_KV_PANEL; }
static inline size_t tn_kv_span_floats(size_t d_head) { return tn_kv_span(d_head) * d_head; }

/* Keeps the d_head values x of a position as a key or as a value. What is beyond the largest half is kept
 * as that one; what is not finite leaves something that is not finite. */
void tn_kv_put_key(tn_kv_type type, size_t d_head, void *panels, size_t pos, const float *x);
void tn_kv_put_value(tn_kv_type type, size_t d_head, void *panels, size_t pos, const float *x);
/* The float of one cell. */
float tn_kv_key(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t i);
float tn_kv_value(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t i);
/* Copies cells as they are: a key or a value to another position, or a key to where it lies as a value
 * would. */
void tn_kv_copy_key(tn_kv_type type, size_t d_head, void *panels, size_t from, size_t to);
void tn_kv_copy_value(tn_kv_type type, size_t d_head, void *panels, size_t from, size_t to);
void tn_kv_key_as_value(tn_kv_type type, size_t d_head, const void *keys, size_t pos, void *values);
/* out [n][d_head]: the floats of values pos .. pos + n - 1. */
typedef void (*tn_kv_rows_fn)(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t n,
                              float *out);
void tn_kv_rows_ref(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t n, float *out);

#endif
