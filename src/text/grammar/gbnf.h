/* text/grammar/gbnf.h - reading llama.cpp's GBNF.
 *
 *   root  ::= "yes" | "no" [.!]? | list      # a comment
 *   list  ::= item (", " item){0,9}
 *
 * A rule ends with its line, except inside brackets and after "|" and "::=". Literals are code points with
 * the escapes \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH; [a-z], [^...] and "." stand for one. "." is any
 * character at all. */
#ifndef TN_TEXT_GRAMMAR_GBNF_H
#define TN_TEXT_GRAMMAR_GBNF_H

#include "text/grammar/expr.h"

tern_status tn_gbnf_read(tn_gb *b, const char *text, size_t n_bytes, tn_grule *root, tern_error *err);

#endif
