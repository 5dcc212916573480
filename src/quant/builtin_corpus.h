/* quant/builtin_corpus.h - a few pages of text for calibration when the user gives none: letters, notes,
 * lists, code and numbers, written for this purpose. */
#ifndef TN_QUANT_BUILTIN_CORPUS_H
#define TN_QUANT_BUILTIN_CORPUS_H

extern const char tn_builtin_corpus[];

#endif
