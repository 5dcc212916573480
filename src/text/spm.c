#include "text/spm.h"

#include <string.h>

/* Fields of sentencepiece_model.proto. */
enum { MODEL_PIECE = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum { TRAINER_KIND = 3, TRAINER_UNK = 40, TRAINER_BOS = 41, TRAINER_EOS = 42, TRAINER_PAD = 43 };
enum { NORMALIZER_MAP = 2, NORMALIZER_DUMMY_PREFIX = 3, NORMALIZER_SQUEEZE = 4 };
enum { KIND_UNIGRAM = 1, KIND_BPE = 2 };
enum { VARINT = 0, WIDE = 1, BYTES = 2, NARROW = 5 };

typedef struct reader {
    const uint8_t *at, *end;
    bool bad;
} reader;

typedef struct field {
    uint32_t number, wire;
    uint64_t value; /* VARINT, NARROW */
    reader bytes;   /* BYTES */
} field;

static uint64_t varint(reader *r) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->at == r->end) break;
        uint8_t b = *r->at++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return v;
    }
    r->bad = true;
    return 0;
}

/* Reads the next field. Returns false at the end, or if the bytes are not a field. */
static bool next(reader *r, field *f) {
    if (r->bad || r->at == r->end) return false;
    uint64_t key = varint(r);
    *f = (field){.number = (uint32_t)(key >> 3), .wire = (uint32_t)(key & 7)};
    size_t left = (size_t)(r->end - r->at);
    uint64_t n = f->wire == WIDE ? 8 : 4;
    switch (f->wire) {
    case VARINT: f->value = varint(r); break;
    case WIDE:
    case NARROW:
        r->bad = r->bad || left < n;
        if (r->bad) return false;
        if (f->wire == NARROW) memcpy(&f->value, r->at, 4);
        r->at += n;
        break;
    case BYTES:
        n = varint(r);
        r->bad = r->bad || n > (uint64_t)(r->end - r->at);
        if (r->bad) return false;
        f->bytes = (reader){.at = r->at, .end = r->at + n};
        r->at += n;
        break;
    default: r->bad = true;
    }
    return !r->bad;
}

bool tn_spm_is(const void *data, size_t n_bytes) {
    const uint8_t *p = data;
    return n_bytes > 2 && p[0] == (MODEL_PIECE << 3 | BYTES);
}

static tern_status read_piece(reader r, int32_t id, tn_spm_piece on_piece, void *user, tern_error *err) {
    field f;
    reader text = {0};
    float score = 0;
    uint64_t type = 1;
    while (next(&r, &f)) {
        if (f.number == PIECE_TEXT && f.wire == BYTES) text = f.bytes;
        else if (f.number == PIECE_SCORE && f.wire == NARROW) memcpy(&score, &f.value, sizeof score);
        else if (f.number == PIECE_TYPE && f.wire == VARINT) type = f.value;
    }
    TN_FAIL_IF(r.bad || type < 1 || type > TN_TOKEN_BYTE + 1, err, TERN_E_FORMAT,
               "tokenizer.model: piece %d is broken", (int)id);
    return on_piece(user, id, (const char *)text.at, (size_t)(text.end - text.at), score,
                    (tn_token_type)(type - 1));
}

static tern_status read_trainer(reader r, tn_spm *out, tern_error *err) {
    field f;
    uint64_t kind = KIND_UNIGRAM;
    while (next(&r, &f)) {
        if (f.wire != VARINT) continue;
        if (f.number == TRAINER_KIND) kind = f.value;
        if (f.number == TRAINER_UNK) out->unk = (int32_t)f.value;
        if (f.number == TRAINER_BOS) out->bos = (int32_t)f.value;
        if (f.number == TRAINER_EOS) out->eos = (int32_t)f.value;
        if (f.number == TRAINER_PAD) out->pad = (int32_t)f.value;
    }
    TN_FAIL_IF(r.bad, err, TERN_E_FORMAT, "tokenizer.model: the trainer's settings are broken");
    TN_FAIL_IF(
        kind != KIND_BPE, err, TERN_E_UNSUPPORTED,
        "tokenizer.model is SentencePiece's, of kind %s; tern reads those of kind BPE (a tokenizer.json "
        "of the model works too)",
        kind == KIND_UNIGRAM ? "unigram" : "words or characters");
    return TERN_OK;
}

static tern_status read_normalizer(reader r, tn_spm *out, tern_error *err) {
    field f;
    bool maps = false, squeezes = true;
    while (next(&r, &f)) {
        if (f.number == NORMALIZER_MAP && f.wire == BYTES) maps = f.bytes.at != f.bytes.end;
        if (f.number == NORMALIZER_DUMMY_PREFIX && f.wire == VARINT) out->dummy_prefix = f.value != 0;
        if (f.number == NORMALIZER_SQUEEZE && f.wire == VARINT) squeezes = f.value != 0;
    }
    TN_FAIL_IF(r.bad, err, TERN_E_FORMAT, "tokenizer.model: its normaliser is broken");
    TN_FAIL_IF(maps || squeezes, err, TERN_E_UNSUPPORTED,
               "tokenizer.model is SentencePiece's and %s, which tern does not do; a tokenizer.json of the "
               "model may "
               "work",
               maps ? "replaces characters before it cuts the text up"
                    : "removes spaces that follow each other");
    return TERN_OK;
}

tern_status tn_spm_read(const void *data, size_t n_bytes, tn_spm *out, tn_spm_piece on_piece, void *user,
                        tern_error *err) {
    *out = (tn_spm){.unk = 0, .bos = 1, .eos = 2, .pad = -1, .dummy_prefix = true};
    reader r = {.at = data, .end = (const uint8_t *)data + n_bytes};
    field f;
    int32_t n = 0;
    bool trained = false, normalises = false;
    while (next(&r, &f)) {
        if (f.wire != BYTES) continue;
        if (f.number == MODEL_PIECE) TN_TRY(read_piece(f.bytes, n++, on_piece, user, err));
        if (f.number == MODEL_TRAINER) {
            trained = true;
            TN_TRY(read_trainer(f.bytes, out, err));
        }
        if (f.number == MODEL_NORMALIZER) {
            normalises = true;
            TN_TRY(read_normalizer(f.bytes, out, err));
        }
    }
    TN_FAIL_IF(r.bad, err, TERN_E_FORMAT,
               "tokenizer.model is cut off or no SentencePiece file, after %d pieces", (int)n);
    TN_FAIL_IF(!trained || !normalises, err, TERN_E_FORMAT,
               "tokenizer.model does not say how it splits text (its trainer's or its normaliser's part is "
               "missing)");
    int32_t *ids[] = {&out->unk, &out->bos, &out->eos, &out->pad};
    for (size_t i = 0; i < 4; i++)
        if (*ids[i] < 0 || *ids[i] >= n) *ids[i] = -1;
    return TERN_OK;
}
