/* A package that is opened, prefilled and asked for tokens, without drafts and with. The input is a list of
 * changes to one of four true packages: what is changed gets true checksums again, so the fuzzer works on what
 * lies after them. Coverage leads it: with libFuzzer, changes are made and crossed by LLVMFuzzerCustomMutator.
 *
 * A change: u8 section (the first one's two highest bits choose the package), u8 kind, u16 where, u8 n, then n
 * bytes.
 *   kind 0  bytes at `where` (scaled to the section's length) of what the section holds
 *        1  bytes at `where` of its table of contents      2  field `where` of its entry in the index
 *        3  metadata: the number that is `where`-th in its JSON is replaced by the text of n bytes */
#include "tiny.h"
#include "true_package.h"

#include <math.h>

/* A layer that guesses further; layers that attend beside a state space; delta nets and a layer that guesses;
 * state spaces and layers that attend by turns. */
static const char *const kinds[] = {"tiny-qwen2+mtp", "tiny-falcon-h1+norm", "tiny-qwen35+mtp",
                                    "tiny-granite4"};
enum { N_KINDS = sizeof kinds / sizeof *kinds, MAX_PACKAGE = 2 << 20 };

static uint8_t *wholes[N_KINDS], *whole, *b;
static size_t n_wholes[N_KINDS], n_whole;

/* The nth number of a JSON text becomes other text, where it fits: blanks fill up, or the end of the
 * object is lost. */
static void change_number(uint8_t *text, size_t n_text, uint32_t nth, const uint8_t *with, size_t n) {
    for (size_t i = 0; i < n_text; i++) {
        if (text[i] != ':' && text[i] != ',' && text[i] != '[') continue;
        size_t from = i + 1, end;
        while (from < n_text && text[from] == ' ') from++;
        for (end = from; end < n_text && strchr("+-.0123456789eE", text[end]) && text[end];) end++;
        if (end == from || nth--) continue;
        for (size_t k = from; k < end; k++) text[k] = k - from < n ? with[k - from] : ' ';
        return;
    }
}

static void change(const uint8_t *c, size_t n) {
    uint32_t n_sections;
    memcpy(&n_sections, b + 12, 4);
    if (!n_sections || !n) return;
    uint8_t *entry = b + PACKAGE_INDEX + PACKAGE_SECTION * ((c[0] & 63) % n_sections);
    tn_pkg_section s;
    memcpy(&s, whole + (entry - b), PACKAGE_SECTION); /* where things lie, the true package says */
    size_t where = (size_t)c[2] | (size_t)c[3] << 8;
    uint8_t *to;
    size_t room;
    switch (c[1] % 4) {
    case 1:
        to = b + PACKAGE_INDEX + s.toc_off_bytes;
        room = s.toc_bytes;
        break;
    case 2:
        to = entry;
        room = PACKAGE_SECTION;
        break;
    case 3:
        if (s.kind == TN_PKG_META)
            change_number(b + s.off_bytes, s.size_bytes, (uint32_t)where % 64, c + 5, n);
        return;
    default:
        to = b + s.off_bytes;
        room = s.size_bytes;
        where = (size_t)((uint64_t)where * room >> 16);
    }
    if (!room) return;
    where %= room;
    memcpy(to + where, c + 5, n < room - where ? n : room - where);
}

/* Opens the package, prefills, takes steps and generates. */
static tern_status ask(const uint8_t *bytes, size_t n_bytes) {
    char path[64];
    int fd = tiny_file(bytes, n_bytes, path);
    tern_engine *e = NULL;
    tern_session *s = NULL;
    tern_options *o = NULL;
    tern_error err = {0};
    if (tern_options_new(&o, &err) != TERN_OK || tern_options_set(o, "threads", "1", &err) != TERN_OK)
        abort();
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = 64;
    so.draft = "auto"; /* the layer guesses where there is one */
    tern_status st = tern_engine_open(path, o, &e, &err);
    if (st == TERN_OK) st = tern_session_open(e, &so, &s, &err);
    if (st == TERN_OK) st = tern_session_prefill(s, (const int32_t[]){1, 2, 3, 4, 5}, 5, &err);
    for (int i = 0; i < 3 && st == TERN_OK; i++) {
        tern_model_info info;
        tern_engine_info(e, &info);
        const float *l = tern_session_logits(s);
        for (int32_t k = 0; k < info.n_vocab; k++)
            if (!isfinite(l[k])) abort(); /* they are an error, not an answer */
        st = tern_session_step(s, 7 + i, &err);
    }
    tern_generate_options g;
    tern_generate_options_defaults(&g);
    g.max_tokens = 8;
    g.ignore_end = g.draft_eager = true;
    if (st == TERN_OK) st = tern_session_generate(s, &g, NULL, &err);
    if (st != TERN_OK && !err.message[0]) abort();
    tern_session_close(&s);
    tern_engine_close(&e);
    tern_options_free(&o);
    close(fd);
    return st;
}

static void setup(void) {
    b = malloc(MAX_PACKAGE);
    for (int i = 0; i < N_KINDS; i++) {
        tiny_make(kinds[i], true);
        FILE *f = fopen(tiny_package, "rb");
        wholes[i] = malloc(MAX_PACKAGE);
        if (!f || !wholes[i] || !b) abort();
        n_wholes[i] = fread(wholes[i], 1, MAX_PACKAGE, f);
        if (n_wholes[i] == MAX_PACKAGE) abort();
        fclose(f);
        if (ask(wholes[i], n_wholes[i]) != TERN_OK) abort(); /* or nothing after its opening would be tried */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!b) setup();
    int kind = size > 0 ? data[0] >> 6 : 0;
    whole = wholes[kind], n_whole = n_wholes[kind];
    memcpy(b, whole, n_whole);
    for (size_t at = 0; at + 5 <= size;) {
        size_t n = data[at + 4] < size - at - 5 ? data[at + 4] : size - at - 5;
        change(data + at, n);
        at += 5 + n;
    }
    package_make_true(b, n_whole);
    (void)ask(b, n_whole);
    return 0;
}

#ifdef TERN_FUZZING
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

/* A change more, one less, or one of them mutated. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    static const char *const numbers[] = {"0",   "-1",   "1",  "2",    "1e39",  "-5", "65536",
                                          "0.5", "1e-9", "[]", "null", "\"x\"", "7"};
    unsigned r = seed * 2654435761u;
    size_t starts[64], n_starts = 0;
    for (size_t at = 0; at + 5 <= size && n_starts < 64; at += 5 + (size_t)data[at + 4])
        starts[n_starts++] = at;
    unsigned what = r >> 8 & 7;
    if (!n_starts || (what < 3 && size + 13 <= max && n_starts < 16)) {
        uint8_t c[13] = {(uint8_t)(r >> 11), (uint8_t)(r >> 19 & 3), (uint8_t)(seed >> 3),
                         (uint8_t)(seed >> 9), 8};
        const char *number = numbers[(r >> 21) % (sizeof numbers / sizeof *numbers)];
        for (int i = 0; i < 8; i++)
            c[5 + i] = (uint8_t)(c[1] == 3 ? (i < (int)strlen(number) ? number[i] : ' ') : seed >> i);
        if (size + sizeof c > max) return size;
        memcpy(data + size, c, sizeof c);
        return size + sizeof c;
    }
    size_t at = starts[(r >> 12) % n_starts], n = data[at + 4];
    if (n > size - at - 5) n = size - at - 5;
    if (what == 3 && n_starts > 1) {
        memmove(data + at, data + at + 5 + n, size - at - 5 - n);
        return size - 5 - n;
    }
    if (what == 4) data[at + 2] = (uint8_t)(seed >> 5), data[at + 3] = (uint8_t)(seed >> 13);
    else if (n) (void)LLVMFuzzerMutate(data + at + 5, n, n);
    return size;
}
#endif
