/* lab/registration.h - predictions that were written down before anybody here had seen the published figure. */
#ifndef TN_LAB_REGISTRATION_H
#define TN_LAB_REGISTRATION_H

#include "lab/reproduce.h"

typedef struct tn_registered {
    const char *source, *device, *model, *what, *unit;
    double predicted, published; /* published: 0 until it was looked up */
    bool seen;                   /* a figure of the same model on such a phone had been seen: not counted */
    bool same;                   /* turned out to be a figure that had been compared before: not counted */
} tn_registered;

enum { TN_MAX_REGISTERED = 64 };

/* Computes the predictions, of which there are at most TN_MAX_REGISTERED. */
tern_status tn_registration(const tn_inputs *in, tn_sim *s, tn_registered *out, int32_t *n, tern_error *err);

#endif
