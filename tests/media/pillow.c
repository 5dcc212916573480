/* Pictures and tiles against Pillow, bit for bit: every form of file that it writes (pillow.py), resampling in three
 * filters, and the tiles of the family. Skipped where Debian's python3-pil is not there. */
#include "base/file.h"
#include "base/status.h"
#include "media/medium.h"
#include "media/resample.h"
#include "pictures/picture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "fixture/fixture.h"

static tn_ctx ctx;
static char folder[FIXTURE_PATH];
static char *list;
static size_t n_decoded, n_resized, n_tiled, n_fitted, n_refused, n_cut, n_whole, n_long;

static char *slurp(const char *name, size_t *n) {
    char path[2 * FIXTURE_PATH], *bytes;
    tern_error err;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    must(tn_file_slurp(path, 64 << 20, &bytes, n, &err), &err);
    return bytes;
}

/* A raw picture: two sizes, then the bytes. */
static tn_picture raw(const char *name) {
    size_t n;
    uint32_t size[2];
    char *bytes = slurp(name, &n);
    assert_true(n > sizeof size);
    memcpy(size, bytes, sizeof size);
    tn_picture p = {&ctx, (int32_t)size[0], (int32_t)size[1], tn_alloc(&ctx, TN_MEM_OTHER, n, 1)};
    assert_int_equal(n - sizeof size, size[0] * size[1] * 3);
    memcpy(p.rgb, bytes + sizeof size, n - sizeof size);
    free(bytes);
    return p;
}

static void same(const char *what, const uint8_t *got, size_t n, const char *name) {
    size_t n_want;
    char *want = slurp(name, &n_want);
    if (n != n_want) fail_msg("%s: %zu bytes, Pillow has %zu", what, n, n_want);
    for (size_t i = 0; i < n; i++)
        if (got[i] != (uint8_t)want[i])
            fail_msg("%s: byte %zu of %zu is %d, Pillow's is %d", what, i, n, got[i], (uint8_t)want[i]);
    free(want);
}

static void decode(const char *file, const char *expected, int width, int height) {
    size_t n;
    tn_picture p;
    tern_error err = {0};
    char *bytes = slurp(file, &n);
    if (tn_picture_decode(&ctx, (uint8_t *)bytes, n, &p, &err) != TERN_OK)
        fail_msg("%s: %s", file, err.message);
    if (p.width != width || p.height != height)
        fail_msg("%s: %d x %d, Pillow has %d x %d", file, p.width, p.height, width, height);
    same(file, p.rgb, (size_t)width * (size_t)height * 3, expected);
    tn_picture_free(&p);
    free(bytes);
    n_decoded++;
}

static void resize(const char *file, const char *filter, const char *expected, int width, int height) {
    tern_error err;
    tn_picture p = raw(file), out;
    tn_filter f = !strcmp(filter, "lanczos")   ? TN_FILTER_LANCZOS
                  : !strcmp(filter, "bicubic") ? TN_FILTER_BICUBIC
                                               : TN_FILTER_BILINEAR;
    must(tn_picture_resize(&p, f, width, height, &out, &err), &err);
    same(expected, out.rgb, (size_t)width * (size_t)height * 3, expected);
    tn_picture_free(&out);
    tn_picture_free(&p);
    n_resized++;
}

static void tile(const char *file, int side, int longest, bool one_view, const char *expected, int rows,
                 int columns) {
    tern_error err;
    tn_picture p = raw(file);
    tn_medium m;
    const tn_tower_shape s = {.image = side, .patch = 1, .shuffle = 1, .longest = longest};
    must(tn_medium_make(&ctx, &s, &p, one_view, &m, &err), &err);
    if (m.rows != rows || m.columns != columns)
        fail_msg("%s: %d x %d tiles, not %d x %d", expected, m.rows, m.columns, rows, columns);
    assert_int_equal(m.n_views, rows * columns + 1);
    same(expected, m.rgb, (size_t)m.n_views * (size_t)side * (size_t)side * 3, expected);
    tn_medium_free(&m);
    tn_picture_free(&p);
    n_tiled++;
}

static void fit(const char *file, int of, int least, int most, const char *expected, int width, int height) {
    tern_error err;
    tn_picture p = raw(file);
    tn_medium m;
    const tn_tower_shape s = {
        .kind = TN_TOWER_QWEN3VL, .patch = of / 2, .shuffle = 2, .min_pixels = least, .max_pixels = most};
    tern_status st = tn_medium_make(&ctx, &s, &p, false, &m, &err);
    if ((st == TERN_OK) != (width > 0)) fail_msg("%s: status %d", expected, (int)st);
    if (width) {
        if (m.views->width != width || m.views->height != height)
            fail_msg("%s: %d x %d, not %d x %d", expected, m.views->width, m.views->height, width, height);
        assert_int_equal(m.n_views, 1);
        assert_int_equal(m.views->columns, width / of);
        assert_int_equal(m.views->n_rows, width / of * (height / of));
        same(expected, m.rgb, (size_t)width * (size_t)height * 3, expected);
        tn_medium_free(&m);
    }
    tn_picture_free(&p);
    n_fitted += width > 0;
    n_refused += !width;
}

typedef struct grid {
    int rows, columns, width, height; /* of the tiles, and of the view of the whole; width 0: it is refused */
} grid;

static void cut(const char *file, const tn_tower_shape *s, bool one_view, const char *expected, grid want) {
    tern_error err;
    tn_picture p = raw(file);
    tn_medium m;
    size_t n = 0;
    tern_status st = tn_medium_make(&ctx, s, &p, one_view, &m, &err);
    if ((st == TERN_OK) != (want.width > 0)) fail_msg("%s: status %d", expected, (int)st);
    tn_picture_free(&p);
    n_long += !want.width;
    if (!want.width) {
        assert_int_equal(st, TERN_E_UNSUPPORTED);
        return;
    }
    if (m.rows != want.rows || m.columns != want.columns)
        fail_msg("%s: %d x %d tiles, not %d x %d", expected, m.rows, m.columns, want.rows, want.columns);
    assert_int_equal(m.n_views, want.rows * want.columns + 1);
    for (int32_t i = 0; i < m.n_views; i++) {
        const tn_view *v = &m.views[i];
        assert_int_equal(v->at, n);
        const int all = v->width * v->height / (s->patch * s->patch * s->shuffle * s->shuffle);
        assert_int_equal(v->n_rows, s->queries ? s->queries : all);
        assert_int_equal(v->columns, 0);
        n += (size_t)v->width * (size_t)v->height * 3;
    }
    const tn_view *whole = &m.views[s->kind == TN_TOWER_MINICPM ? 0 : m.n_views - 1];
    assert_int_equal(whole->width, want.width);
    assert_int_equal(whole->height, want.height);
    same(expected, m.rgb, n, expected);
    n_cut += m.rows > 0;
    n_whole += !m.rows;
    tn_medium_free(&m);
}

/* As the family's file is read: a tile has 256 rows, a view of the whole 64 to 256. */
static tn_tower_shape lfm2(int patch, int shuffle) {
    const int of = patch * shuffle;
    return (tn_tower_shape){.kind = TN_TOWER_LFM2,
                            .image = 5 * patch,
                            .patch = patch,
                            .shuffle = shuffle,
                            .min_pixels = 64 * of * of,
                            .max_pixels = 256 * of * of,
                            .tile = 16 * of,
                            .min_tiles = 2,
                            .max_tiles = 10};
}

static void as_pillow_has_them(void **state) {
    (void)state;
    for (char *line = strtok(list, "\n"); line; line = strtok(NULL, "\n")) {
        char a[64], b[64], c[64];
        int v[8];
        if (sscanf(line, "decode %63s %63s %d %d", a, b, &v[0], &v[1]) == 4) decode(a, b, v[0], v[1]);
        else if (sscanf(line, "resize %63s %63s %63s %d %d", a, b, c, &v[0], &v[1]) == 5)
            resize(a, b, c, v[0], v[1]);
        else if (sscanf(line, "tiles %63s %d %d %d %63s %d %d", a, &v[0], &v[1], &v[2], b, &v[3], &v[4]) == 7)
            tile(a, v[0], v[1], v[2], b, v[3], v[4]);
        else if (sscanf(line, "blocks %63s %d %d %d %63s %d %d", a, &v[0], &v[1], &v[2], b, &v[3], &v[4]) ==
                 7)
            fit(a, v[0], v[1], v[2], b, v[3], v[4]);
        else if (sscanf(line, "lfm2 %63s %d %d %d %63s %d %d %d %d", a, &v[0], &v[1], &v[2], b, &v[3], &v[4],
                        &v[5], &v[6]) == 9) {
            const tn_tower_shape s = lfm2(v[0], v[1]);
            cut(a, &s, v[2], b, (grid){v[3], v[4], v[5], v[6]});
        } else if (sscanf(line, "internvl %63s %d %d %d %d %63s %d %d", a, &v[0], &v[1], &v[2], &v[3], b,
                          &v[4], &v[5]) == 8) {
            const tn_tower_shape s = {.kind = TN_TOWER_INTERNVL,
                                      .image = v[0],
                                      .patch = 1,
                                      .shuffle = 1,
                                      .min_tiles = v[1],
                                      .max_tiles = v[2]};
            cut(a, &s, v[3], b, (grid){v[4], v[5], v[0], v[0]});
        } else if (sscanf(line, "gemma4 %63s %d %d %63s %d %d", a, &v[0], &v[1], b, &v[2], &v[3]) == 6) {
            const tn_tower_shape s = {.kind = TN_TOWER_GEMMA4,
                                      .image = 1,
                                      .patch = v[0] / 2,
                                      .shuffle = 2,
                                      .max_pixels = v[1] * v[0] * v[0]};
            cut(a, &s, false, b, (grid){0, 0, v[2], v[3]});
        } else if (sscanf(line, "minicpm %63s %d %d %d %63s %d %d %d %d", a, &v[0], &v[1], &v[2], b, &v[3],
                          &v[4], &v[5], &v[6]) == 9) {
            const tn_tower_shape s = {
                .kind = TN_TOWER_MINICPM, .image = v[0], .patch = v[1], .shuffle = 1, .queries = 7};
            cut(a, &s, v[2], b, (grid){v[3], v[4], v[5], v[6]});
        } else fail_msg("'%s' is no case", line);
    }
    print_message("as Pillow has them: %zu files, %zu resized, %zu tiled, %zu in blocks, %zu refused\n",
                  n_decoded, n_resized, n_tiled, n_fitted, n_refused);
    print_message("and of grids: %zu cut, %zu whole, %zu refused\n", n_cut, n_whole, n_long);
    assert_true(n_cut > 20 && n_whole > 40 && n_long > 0);
    assert_true(n_resized > 100 && n_tiled > 50 && n_fitted > 40 && n_refused > 0);
    free(list);
}

/* Lets Pillow write the cases; the exit code of it. */
static int make_cases(void) {
    static const struct {
        tn_picture_kind kind;
        const char *name;
    } kinds[] = {{TN_PICTURE_PNG, "png"}, {TN_PICTURE_JPEG, "jpeg"}, {TN_PICTURE_WEBP, "webp"}};
    char line[3 * FIXTURE_PATH], formats[32] = "none";
    for (int i = 0; i < 3; i++)
        if (tn_picture_reads(kinds[i].kind)) strcat(strcat(formats, ","), kinds[i].name);
    fixture_file(folder, "pillow");
    mkdir(folder, 0700);
    snprintf(line, sizeof line, "/usr/bin/python3 " TN_SOURCE_DIR "/tests/media/pillow.py %s 1 %s >%s/list",
             folder, formats, folder);
    int rc = system(line);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    int rc = make_cases();
    if (rc == 77 || rc == 127) {
        puts("skipped: no /usr/bin/python3 with Pillow (scripts/setup.sh --oracle)");
        return 77;
    }
    if (rc) return 1;
    size_t n;
    list = slurp("list", &n);
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_pillow_has_them)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
