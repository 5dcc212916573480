/* quant/allocate.c - greedy allocation over a max-heap. */
#include "quant/allocate.h"

#include <math.h>

typedef struct bid {
    double gain; /* (RE(B) - RE(B + 1)) per bit of cost */
    uint32_t channel;
} bid;

static bool before(bid a, bid b) { return a.gain != b.gain ? a.gain > b.gain : a.channel < b.channel; }

static void sift_down(bid *heap, size_t n, size_t i) {
    bid x = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], x)) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

/* Lloyd and Max's uniform quantisers of 1 to 256 levels. */
double tn_normal_error(unsigned bits) {
    static const double error[9] = {1,        0.3634,   0.1188,    0.03744,   0.01154,
                                    0.003495, 0.001041, 0.0003035, 0.00008714};
    return error[bits];
}

static double law(unsigned bits) { return exp2(-2.0 * bits); }

static tern_status allocate(tn_ctx *ctx, double (*error)(unsigned), const float *peak,
                            const uint32_t *n_weights, size_t n, double average, unsigned least, bool skip,
                            uint8_t *bits, tern_error *err) {
    TN_FAIL_IF(!(average >= least && average <= 8), err, TERN_E_INVALID, "%g bits per weight: want %u to 8",
               average, least);
    bid *heap = tn_alloc(ctx, TN_MEM_OTHER, n, sizeof *heap);
    TN_FAIL_IF(!heap, err, TERN_E_MEMORY, "no memory to allocate bits");
    double gain[8], total = 0;
    for (unsigned b = 0; b < 8; b++) gain[b] = error(b) - error(b + 1);
    for (size_t i = 0; i < n; i++) {
        double cost = n_weights ? (double)n_weights[i] : 1;
        bits[i] = (uint8_t)least;
        heap[i] = (bid){.gain = gain[least] * (double)peak[i] / cost, .channel = (uint32_t)i};
        total += cost;
    }
    for (size_t i = n / 2; i-- > 0;) sift_down(heap, n, i);
    double left = floor((average - least) * total + 1e-6);
    for (size_t n_heap = n; n_heap;) {
        double cost = n_weights ? (double)n_weights[heap[0].channel] : 1;
        if (cost > left && !skip) break;
        if (cost > left || bits[heap[0].channel] == 8) {
            heap[0] = heap[--n_heap];
        } else {
            left -= cost;
            if (++bits[heap[0].channel] == 8) heap[0] = heap[--n_heap];
            else heap[0].gain = gain[bits[heap[0].channel]] * (double)peak[heap[0].channel] / cost;
        }
        if (n_heap) sift_down(heap, n_heap, 0);
    }
    tn_free(ctx, heap);
    return TERN_OK;
}

tern_status tn_allocate_bits(tn_ctx *ctx, const float *peak, const uint32_t *n_weights, size_t n,
                             double average, uint8_t *bits, tern_error *err) {
    return allocate(ctx, law, peak, n_weights, n, average, 1, false, bits, err);
}

tern_status tn_allocate_bits_from(tn_ctx *ctx, const float *cost, const uint32_t *n_weights, size_t n,
                                  double average, unsigned least, uint8_t *bits, tern_error *err) {
    return allocate(ctx, tn_normal_error, cost, n_weights, n, average, least, true, bits, err);
}
