/* draft/source.h - inside tn_draft: the indexed text, and the drafters as functions that add proposals to a
 * tree. */
#ifndef TN_DRAFT_SOURCE_H
#define TN_DRAFT_SOURCE_H

#include "draft/draft.h"

/* The session's text. prev chains the places of one token; last[id] is the latest. */
typedef struct tn_text {
    int32_t *ids, *prev; /* [cap] */
    int32_t *last;       /* [n_vocab], -1: the token does not occur */
    int32_t n, cap;
    int32_t *vocab; /* [TN_DRAFT_VOCAB] distinct tokens by first occurrence */
    int32_t n_vocab;
} tn_text;

/* Classes of proposals (proposals.h), by drafter. */
enum { TN_N_LENGTHS = 8 }; /* levels of match length */
enum {
    TN_CLASS_LOOKUP = 0,                                      /* [3 lengths][4 depths] */
    TN_CLASS_SAM = 12,                                        /* [TN_N_LENGTHS] the latest continuation */
    TN_CLASS_SAM_OTHER = TN_CLASS_SAM + TN_N_LENGTHS,         /* other continuations */
    TN_CLASS_SAM_SHORTER = TN_CLASS_SAM_OTHER + TN_N_LENGTHS, /* continuations of a shorter match */
    TN_CLASS_STORE = TN_CLASS_SAM_SHORTER + TN_N_LENGTHS,     /* [TN_N_LENGTHS] */
    TN_CLASS_STORE_OTHER = TN_CLASS_STORE + TN_N_LENGTHS,     /* [TN_N_LENGTHS] */
    TN_CLASS_CALIBRATED =
        TN_CLASS_STORE_OTHER + TN_N_LENGTHS,      /* [pair matches or token only][3 ranks][4 gaps] */
    TN_CLASS_RECALLED = TN_CLASS_CALIBRATED + 24, /* [pair matches or token only][6 ranks][4 gaps] */
    TN_CLASS_EXTEND = TN_CLASS_RECALLED + 48,     /* [4 ages][first or later token] */
    TN_CLASS_MODEL = TN_CLASS_EXTEND + 8,         /* [8 levels of the draft model's confidence] */
    TN_CLASS_MTP = TN_CLASS_MODEL + 8,            /* the same for the layer that guesses one token further */
    TN_CLASS_HEAD = TN_CLASS_MTP + 8,             /* and for a head */
    TN_CLASS_END = TN_CLASS_HEAD + 8
};

void tn_source_guesses(tn_proposals *p);

/* ---- retrieval.c ---- */
void tn_propose_lookup(const tn_text *t, tn_proposals *p);
/* Both propose continuations of the longest matches: in the text itself, or in the store at *m. */
void tn_propose_sam(const tn_sam *text, tn_proposals *p);
void tn_propose_store(const tn_sam *store, const tn_sam_match *m, tn_proposals *p);
/* Proposes after a node what followed the last place where the text's end, matched like this, was continued
 * with that node. */
void tn_propose_behind(const tn_sam *s, tn_sam_match m, int class0, int32_t node, tn_proposals *p);

/* ---- calibrated.c: in-context distribution calibration ---- */
enum { TN_SUCCESSORS = 3, TN_RECALLED = 6, TN_RECALLS = 2048 };
typedef struct tn_successors {  /* of a place of the prompt */
    int32_t id[TN_SUCCESSORS];  /* likeliest first, -1 = none */
    uint8_t gap[TN_SUCCESSORS]; /* level of certainty */
} tn_successors;
/* A recall is the model's prediction at a row of a recent forward, also of a rejected draft. */
typedef struct tn_recall {
    int32_t token, before;   /* the row's token, and the previous one */
    int32_t older;           /* number of the previous recall with the same token */
    int32_t id[TN_RECALLED]; /* likeliest first, -1 = none */
    uint8_t gap[TN_RECALLED];
} tn_recall;
typedef struct tn_recalls {
    int32_t *latest; /* [n_vocab] number + 1 of the token's latest recall */
    tn_recall *ring; /* [TN_RECALLS] */
    int32_t n;       /* number of the next recall, stored at number % TN_RECALLS */
} tn_recalls;
void tn_successors_of(const float *logits, const int32_t *ids, int32_t n, tn_successors *out);
enum {
    TN_RECALL_NUMBERS = TN_RECALLED + 3
}; /* words of an exported recall: token, previous token, successors, gaps of two bits */
size_t tn_recalls_out(const tn_recalls *r, int32_t *out);
void tn_recalls_in(tn_recalls *r, const int32_t *in, size_t n, int32_t n_vocab);
void tn_recalls_add(tn_recalls *r, int32_t before, int32_t token, const float *logits, size_t n_vocab);
void tn_propose_calibrated(const tn_text *t, const tn_successors *succ, int32_t n_succ,
                           const tn_recalls *recalls, tn_proposals *p);

/* ---- extend.c: draft extension ---- */
enum { TN_SEGMENTS = 4, TN_SEGMENT_LIFE = 4 /* steps */ };
typedef struct tn_segment {
    int32_t ids[TN_TREE_MAX], n, age;
} tn_segment;
typedef struct tn_segments {
    tn_segment seg[TN_SEGMENTS];
    int32_t next;
} tn_segments;
void tn_segments_keep(tn_segments *s, const tn_text *t, const tn_tree *tree, int32_t last,
                      const float *logits, size_t n_vocab);
void tn_segments_age(tn_segments *s);
void tn_propose_extended(const tn_segments *s, tn_proposals *p);

#endif
