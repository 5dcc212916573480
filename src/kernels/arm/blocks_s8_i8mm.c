/* kernels/arm/blocks_s8_i8mm.c - products over ggml's blocks on SMMLA: one instruction is 2 rows x 2 channels
 * x 8 input channels. Lines are zipped in the file's form, before their fields are separated. A panel holds
 * 32 input channels of each of eight pairs of channels; eight input channels of a channel lie beside those of
 * its neighbour. */
#include "kernels/blocks_s8.h"

#include <arm_neon.h>
#include <string.h>

#define MAX_ROWS 4
#define TILES 4
#define MICRO "kernels/arm/blocks_rows_i8mm.h"
#define ONE_ROW tn_blocks_gemm_dotprod /* half of a pair's products would be wasted */
#define BY_FOURS "kernels/arm/blocks_fours_i8mm.h"

#define FEW_ROWS few_rows
#include "kernels/arm/blocks_s8_128.h"

void tn_blocks_gemm_i8mm(const tn_blocks_args *g) { gemm(g); }
