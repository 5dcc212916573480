/* quant/content.h - which bytes a file holds: a hash of all of them.
 *
 * Reading gigabytes at every start would take seconds, so a hash is taken once and kept, with what the kernel says of the
 * file: inode, size, and the times of its last writing and of its last change. While all of these are the same, so
 * are the bytes, because nobody can set the time of a change. A hash that was begun within two seconds of that time is
 * not believed: a later write could bear the same.
 *
 * Other things that were found out of a file's bytes may be kept in the same way, under its mark. */
#ifndef TN_QUANT_CONTENT_H
#define TN_QUANT_CONTENT_H

#include "base/ctx.h"

typedef struct tn_content {
    uint64_t high, low;
} tn_content;

typedef enum tn_content_from {
    TN_CONTENT_KNOWN, /* a kept hash, or that of a file so small that it is read at once */
    TN_CONTENT_READ   /* every byte, now; the hash is kept */
} tn_content_from;

enum {
    TN_CONTENT_SMALL = 64 << 20, /* bytes */
    TN_CONTENT_MOST = 1024       /* hashes that are kept; the oldest leave first */
};

/* *known false: nothing is kept of it, and it is not small. folder: where hashes are kept; NULL: nowhere. Where they cannot
 * be kept, it is hashed all the same. */
tern_status tn_content_of(tn_ctx *ctx, const char *folder, const char *path, tn_content_from from,
                          tn_content *out, bool *known, tern_error *err);

/* A mark of a file, or of all .json and .safetensors files of a folder, which is another after every change
 * of their bytes: it is made of what the kernel says of them, and nothing is read. *settled: the last change
 * is so long ago that a later one cannot bear the same time; what is found out now may be kept under the
 * mark, once the mark is still the same after the reading. false: there is none (a split file, or no such
 * file). */
bool tn_content_mark(const char *path, tn_content *out, bool *settled);

#endif
