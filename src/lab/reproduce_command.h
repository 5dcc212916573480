/* lab/reproduce_command.h - what tern-lab sim reproduce prints; all return the exit status. */
#ifndef TN_LAB_REPRODUCE_COMMAND_H
#define TN_LAB_REPRODUCE_COMMAND_H

#include "cli/output.h"
#include "lab/reproduce.h"

extern const tn_outkind tn_svg_kind; /* what a figure's file begins with */

/* The papers' results beside ours, of one paper or of all (NULL); svg: a folder for figures, or NULL. */
int tn_print_reproduced(const char *paper, bool json, const char *svg);
int tn_print_parameters(bool json);
/* Fits five times: to all four papers, and without each. */
int tn_print_held_out(bool json);
/* A table of predictions that were written down before the published figures were looked up. */
int tn_print_registration(void);

#endif
