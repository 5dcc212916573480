/* bench/peer/mtmd_tower.cpp - what bench_tower does, computed by llama.cpp's mtmd: mtmd_tower MMPROJ [THREADS [SIDE
 * [RUNS [ROWS [flash]]]]]. The pixels are bench_tower's; they go to the encoder as they are, without mtmd's own resizing.
 * ROWS: a file for the rows as f32 (- for none). Flash attention is off unless it is asked for. Its sources, not only its
 * library, are needed: the header is internal. */
#include "clip-impl.h"
#include "clip.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/resource.h>

static double cpu_s() {
    rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static double now_ms() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/* Three numbers of the file. */
static bool of_file(const char *path, const char *key, float out[3]) {
    gguf_context *g = gguf_init_from_file(path, {true, NULL});
    const int64_t at = g ? gguf_find_key(g, key) : -1;
    const bool ok = at >= 0 && gguf_get_arr_type(g, at) == GGUF_TYPE_FLOAT32 && gguf_get_arr_n(g, at) >= 3;
    if (ok) memcpy(out, gguf_get_arr_data(g, at), 3 * sizeof *out);
    gguf_free(g);
    return ok;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const int n_threads = argc > 2 ? atoi(argv[2]) : 2, side = argc > 3 ? atoi(argv[3]) : 512,
              runs = argc > 4 ? atoi(argv[4]) : 5;
    const bool flash = argc > 6 && !strcmp(argv[6], "flash");
    clip_context_params p = {};
    p.flash_attn_type = flash ? CLIP_FLASH_ATTN_TYPE_ENABLED : CLIP_FLASH_ATTN_TYPE_DISABLED;
    p.image_min_tokens = p.image_max_tokens = -1;
    const double opening = now_ms();
    clip_ctx *ctx = clip_init(argv[1], p).ctx_v;
    if (!ctx) return 1;
    printf("opened in %.1f ms\n", now_ms() - opening);
    std::vector<uint8_t> rgb((size_t)side * side * 3);
    for (size_t i = 0; i < rgb.size(); i++) rgb[i] = (uint8_t)(i * 2654435761u >> 13);
    clip_image_u8 bytes;
    bytes.set_size({side, side}, false);
    bytes.cpy_buf(rgb);
    clip_image_f32 image;
    image.from_u8(bytes);
    float mean[3], spread[3];
    if (!of_file(argv[1], "clip.vision.image_mean", mean) || !of_file(argv[1], "clip.vision.image_std", spread)) return 1;
    image.normalize(mean, spread);
    std::vector<float> rows((size_t)clip_n_output_tokens(ctx, &image) * (size_t)clip_n_mmproj_embd(ctx));
    for (int i = 0; i < runs; i++) {
        const double c0 = cpu_s(), t0 = now_ms();
        if (!clip_image_encode(ctx, n_threads, &image, rows)) return 1;
        printf("%7.1f ms, %7.1f ms of processor time\n", now_ms() - t0, (cpu_s() - c0) * 1e3);
    }
    rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("%ld MiB at most\n", u.ru_maxrss >> 10);
    FILE *f = argc > 5 && strcmp(argv[5], "-") ? fopen(argv[5], "wb") : NULL;
    if (f && (fwrite(rows.data(), sizeof(float), rows.size(), f) != rows.size() || fclose(f))) return 1;
    clip_free(ctx);
}
