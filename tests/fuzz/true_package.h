/* tests/fuzz/true_package.h - checksums and lengths of a package whose bytes were changed become true again, so that a
 * fuzzer works on what lies after them. */
#ifndef TN_TESTS_FUZZ_TRUE_PACKAGE_H
#define TN_TESTS_FUZZ_TRUE_PACKAGE_H

#include "formats/package.h"

#include <string.h>
#include <xxhash.h>

enum { PACKAGE_INDEX = 64, PACKAGE_SECTION = sizeof(tn_pkg_section) };

static inline void package_put(uint8_t *p, uint64_t v, int n) {
    for (int i = 0; i < n; i++) p[i] = (uint8_t)(v >> 8 * i);
}

/* Checksums of the blocks of a table of contents, where they fit it. */
static inline void package_true_blocks(const uint8_t *b, size_t size, const tn_pkg_section *s, uint8_t *toc) {
    uint32_t n_records, n_hashes, h = 0;
    uint64_t small;
    memcpy(&n_records, toc, 4);
    memcpy(&n_hashes, toc + 4, 4);
    memcpy(&small, toc + 8, 8);
    if (n_records > (s->toc_bytes - 16) / sizeof(tn_pkg_record) ||
        n_hashes > (s->toc_bytes - 16 - n_records * sizeof(tn_pkg_record)) / 8)
        return;
    uint8_t *hashes = toc + 16 + n_records * sizeof(tn_pkg_record);
    for (uint32_t i = 0; i <= n_records; i++) {
        tn_pkg_record r = {.part = TN_PKG_TILES, .size_bytes = small};
        if (i) memcpy(&r, toc + 16 + (i - 1) * sizeof r, sizeof r);
        if (!tn_pkg_is_large(r.part) || s->off_bytes > size || r.off_bytes > size - s->off_bytes ||
            r.size_bytes > size - s->off_bytes - r.off_bytes)
            continue;
        for (uint64_t at = 0; at < r.size_bytes && h < n_hashes; at += TN_PKG_BLOCK, h++) {
            uint64_t n = r.size_bytes - at < TN_PKG_BLOCK ? r.size_bytes - at : TN_PKG_BLOCK;
            package_put(hashes + 8 * h, XXH3_64bits(b + s->off_bytes + r.off_bytes + at, n), 8);
        }
    }
}

/* size >= PACKAGE_INDEX */
static inline void package_make_true(uint8_t *b, size_t size) {
    uint32_t n;
    uint64_t index_bytes;
    memcpy(&n, b + 12, 4);
    memcpy(&index_bytes, b + 24, 8);
    if (index_bytes > size - PACKAGE_INDEX) index_bytes = size - PACKAGE_INDEX;
    if (n > index_bytes / PACKAGE_SECTION) n = (uint32_t)(index_bytes / PACKAGE_SECTION);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *entry = b + PACKAGE_INDEX + PACKAGE_SECTION * i;
        tn_pkg_section s;
        memcpy(&s, entry, PACKAGE_SECTION);
        if (s.toc_bytes >= 16 && s.toc_off_bytes <= index_bytes &&
            s.toc_bytes <= index_bytes - s.toc_off_bytes) {
            package_true_blocks(b, size, &s, b + PACKAGE_INDEX + s.toc_off_bytes);
            package_put(entry + 24, XXH64(b + PACKAGE_INDEX + s.toc_off_bytes, s.toc_bytes, 0), 8);
        } else if (s.off_bytes <= size && s.size_bytes <= size - s.off_bytes) {
            package_put(entry + 24, XXH64(b + s.off_bytes, s.size_bytes, 0), 8);
        }
    }
    package_put(b + 12, n, 4);
    package_put(b + 16, size, 8);
    package_put(b + 24, index_bytes, 8);
    package_put(b + 32, XXH64(b + PACKAGE_INDEX, index_bytes, 0), 8);
    package_put(b + 48, XXH64(b, 48, 0), 8);
}

#endif
