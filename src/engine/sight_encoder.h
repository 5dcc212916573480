/* engine/sight_encoder.h - the encoder of pictures of an engine: where it lies, what it wants of pictures,
 * which one it is, and its weights.
 *
 *   opening   where it lies, and its metadata: keys, and names, types and sizes of tensors; no weight is read
 *   recall    which one it is (its fingerprint) and how it computes, by what was kept of the same bytes, which
 *             are not read
 *   need      its weights, in memory, and with them all of the former
 *   rest      its weights leave memory
 *
 * An encoder that was named must be usable: anything else is an error of opening. One that was found beside
 * the model, or that is in the package, is told of in a warning where it is not, and the engine sees no
 * pictures.
 *
 * One thread at a time; what tn_encoder_blind and tn_encoder_shape tell never changes. */
#ifndef TN_ENGINE_SIGHT_ENCODER_H
#define TN_ENGINE_SIGHT_ENCODER_H

#include "engine/engine.h"
#include "engine/sight_kept.h"
#include "model/tower_judge.h"

typedef struct tn_encoder tn_encoder;

/* How it computes, once that is known: in INT8 or in floats; why NULL: by the verdict. */
typedef struct tn_encoder_form {
    bool int8, known;
    const char *why;
    tn_tower_verdict verdict;
} tn_encoder_form;

/* path: the model's. kept: where verdicts and fingerprints are kept; it stays the caller's. */
tern_status tn_encoder_open(tern_engine *e, const char *path, const tern_options *o, tn_kept *kept,
                            tn_encoder **out, tern_error *err);
void tn_encoder_close(tn_encoder **x);
/* Why there is none that may be used; NULL: there is one. */
const tern_error *tn_encoder_blind(const tn_encoder *x);
const tn_tower_shape *tn_encoder_shape(const tn_encoder *x);
/* A picture's rows of such an encoder see each other. */
bool tn_encoder_sees_itself(const tern_engine *e, tn_tower_kind kind);

/* Whether the fingerprint is known. */
bool tn_encoder_recall(tn_encoder *x);
/* *out stays the encoder's. Its bytes must be those of what was told before: TERN_E_IO. */
tern_status tn_encoder_need(tn_encoder *x, tn_tower **out, tern_error *err);
uint64_t tn_encoder_fingerprint(const tn_encoder *x);
void tn_encoder_rest(tn_encoder *x);
bool tn_encoder_is_read(const tn_encoder *x); /* its weights are in memory */
void tn_encoder_form_of(const tn_encoder *x, tn_encoder_form *out);
/* For any thread: times that weights were read, and those that are in memory. */
uint64_t tn_encoder_reads(const tn_encoder *x);
uint64_t tn_encoder_held(const tn_encoder *x);

#endif
