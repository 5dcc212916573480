/* tern-lab sim reproduce - the papers' results beside the simulator's, what it is made of, and how well it predicts a
 * paper that it was not fitted to. */
#include "lab/reproduce_command.h"

#include "cli/args.h"
#include "cli/output.h"
#include "lab/parameters.h"
#include "lab/registration.h"
#include "lab/soc_command.h"
#include "lab/svg.h"

#include <stdio.h>
#include <string.h>

static void print_claims(tn_paper p, const tn_claim *c, int32_t n, bool json) {
    static const char *const heads[] = {"Inputs: they tell parameters", "Not counted",
                                        "Derived from inputs (no schedule asked)",
                                        "Predicted (fitted to as well)"};
    bool first = true;
    if (json)
        printf(
            "{\"paper\": \"%s\", \"median_error\": %.4f, \"median_error_with_derived\": %.4f, \"claims\": [",
            tn_paper_name(p), tn_claims_median_error(c, n, false), tn_claims_median_error(c, n, true));
    else printf("== %s ==\n", tn_paper_name(p));
    for (int k = TN_CLAIM_INPUT; k <= TN_CLAIM_PREDICTED; k++) {
        if (!json)
            printf("%s%-52s %-9s %10s %10s %8s\n", k ? "\n" : "", heads[k], "where", "paper", "simulated",
                   "error");
        for (int32_t i = 0; i < n; i++) {
            if (c[i].kind != (tn_claim_kind)k) continue;
            char paper[32] = "-", error[32] = "";
            if (c[i].paper > 0)
                snprintf(paper, sizeof paper, json ? "%.4g" : "%.2f", c[i].paper),
                    snprintf(error, sizeof error, json ? "%.4f" : "%+.1f%%",
                             tn_claim_error(&c[i]) * (json ? 1 : 100));
            if (json)
                printf("%s\n{\"kind\": \"%s\", \"what\": \"%s\", \"unit\": \"%s\", \"where\": \"%s\", "
                       "\"paper\": %s, \"simulated\": %.4g, \"error\": %s, \"note\": \"%s\"}",
                       first ? "" : ",", tn_claim_kind_names[k], c[i].what, c[i].unit, c[i].where,
                       c[i].paper > 0 ? paper : "null", c[i].simulated, *error ? error : "null", c[i].note);
            else
                printf("%-52s %-9s %10s %10.2f %8s  %s%s%s\n", c[i].what, c[i].where, paper, c[i].simulated,
                       error, c[i].unit, *c[i].note ? "; " : "", c[i].note);
            first = false;
        }
    }
    if (json) printf("\n]}");
    else
        printf("\n%s: median error of what is predicted, fitted: %.1f %% (with what is derived: %.1f %%)\n\n",
               tn_paper_name(p), tn_claims_median_error(c, n, false) * 100,
               tn_claims_median_error(c, n, true) * 100);
}

const tn_outkind tn_svg_kind = {.what = "an SVG figure", .begins = {"<svg ", "<?xml"}};

/* Writes the figure DIR/PAPER.svg. */
static int write_claims(const char *dir, tn_paper p, const tn_claim *c, int32_t n) {
    char path[1024], title[128];
    snprintf(path, sizeof path, "%s/%s.svg", dir, tn_paper_name(p));
    snprintf(title, sizeof title,
             "%s: printed and simulated (median error of what is predicted, fitted: %.1f %%)",
             tn_paper_name(p), tn_claims_median_error(c, n, false) * 100);
    output_file f;
    if (!cli_output_open(&f, path, &tn_svg_kind)) return EXIT_FAILED;
    tn_svg_claims(f.stream, title, c, n);
    return cli_output_close(&f);
}

/* A simulator and the SoCs of the papers. */
typedef struct lab {
    tn_ctx ctx;
    tn_sim s;
    tn_inputs in;
} lab;

static int open_lab(lab *l) {
    tern_hooks hooks;
    tern_error err;
    tern_hooks_defaults(&hooks);
    tn_ctx_init(&l->ctx, &hooks);
    tn_inputs_defaults(&l->in);
    for (int i = 0; i < TN_N_SOCS; i++) {
        int rc = tn_load_soc_named(tn_soc_names[i], &l->in.socs[i]);
        if (rc != EXIT_OK) return rc;
    }
    return tn_sim_open(&l->ctx, &l->s, &err) == TERN_OK ? EXIT_OK : cli_failed(&err);
}

int tn_print_reproduced(const char *word, bool json, const char *svg) {
    tn_claim claims[TN_N_PAPERS * TN_MAX_CLAIMS];
    int32_t n_all = 0, n_papers = 0; /* n_papers: without the public figures */
    tern_error err;
    lab l;
    int rc = open_lab(&l);
    if (rc != EXIT_OK) return rc;
    if (json) printf("{\"papers\": [");
    for (int p = 0; p < TN_N_PAPERS && rc == EXIT_OK; p++) {
        if (word && strcmp(word, tn_paper_name((tn_paper)p))) continue;
        int32_t n = 0;
        if (tn_sim_reproduce((tn_paper)p, &l.in, &l.s, claims + n_all, &n, &err) != TERN_OK)
            rc = cli_failed(&err);
        else if (json && n_all) printf(",\n");
        if (rc == EXIT_OK) print_claims((tn_paper)p, claims + n_all, n, json);
        if (rc == EXIT_OK && svg) rc = write_claims(svg, (tn_paper)p, claims + n_all, n);
        n_all += n;
        if (p != TN_PAPER_HEXAGON) n_papers = n_all;
    }
    int32_t counted = 0, of_papers = 0, derived = 0;
    for (int32_t i = 0; i < n_all; i++) {
        counted += claims[i].kind == TN_CLAIM_PREDICTED;
        of_papers += i < n_papers && claims[i].kind == TN_CLAIM_PREDICTED;
        derived += claims[i].kind == TN_CLAIM_DERIVED;
    }
    double median = tn_claims_median_error(claims, n_all, false) * 100,
           with_derived = tn_claims_median_error(claims, n_all, true) * 100;
    if (json && rc == EXIT_OK)
        printf("], \"predicted\": %d, \"median_error\": %.4f, \"derived\": %d, "
               "\"median_error_with_derived\": %.4f}\n",
               counted, median / 100, derived, with_derived / 100);
    else if (!word && rc == EXIT_OK)
        printf(
            "all: median error of %d predicted results, fitted: %.1f %% (the papers' %d: %.1f %%); with %d "
            "derived from inputs: %.1f %%\n"
            "--held-out predicts each of the four papers by a fit to the other three\n",
            counted, median, of_papers, tn_claims_median_error(claims, n_papers, false) * 100, derived,
            with_derived);
    tn_sim_close(&l.s);
    return rc;
}

/* ---- parameters and fits --------------------------------------------------------------------------- */

/* Writes the names of the papers in a set. */
static const char *papers_in(unsigned set, char *out, size_t cap) {
    size_t n = 0;
    *out = 0;
    for (int p = 0; p < TN_N_PAPERS; p++)
        if (set >> p & 1 && n < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", tn_paper_name((tn_paper)p));
    return out;
}

int tn_print_parameters(bool json) {
    static const char *const heads[] = {"Measured: printed of a component", "Solved: numbers for unknowns",
                                        "Fitted", "Assumed, and fitted", "Set: in no fit"};
    lab l;
    int rc = open_lab(&l), n_free = 0;
    if (rc != EXIT_OK) return rc;
    if (json) printf("{\"parameters\": [");
    for (int k = 0; k < TN_N_SIM_PARAM_KINDS; k++) {
        if (!json)
            printf("%s%-34s %10s %-10s %-36s %s\n", k ? "\n" : "", heads[k], "value", "unit", "moves",
                   "source");
        for (int32_t i = 0, n = 0; tn_sim_param_at(i); i++) {
            const tn_sim_param *p = tn_sim_param_at(i);
            char moves[128], from[128];
            if (p->kind != (tn_sim_param_kind)k) continue;
            papers_in(p->papers, moves, sizeof moves), papers_in(p->from, from, sizeof from);
            double value = tn_sim_param_get(p, &l.in);
            n_free += tn_sim_param_is_free(p);
            if (!json) {
                printf("%-34s %10.4g %-10s %-36s %s\n", p->name, value, p->unit, moves, p->source);
                if (tn_sim_param_is_free(p))
                    printf("%-34s %10.4g %-10s %-36s a fit begins here, within %g .. %g: %s\n", "", p->prior,
                           p->unit, "", p->least, p->most, p->prior_source);
                continue;
            }
            printf("%s\n{\"name\": \"%s\", \"kind\": \"%s\", \"value\": %.5g, \"unit\": \"%s\", \"source\": "
                   "\"%s\", "
                   "\"from\": \"%s\", \"moves\": \"%s\"",
                   k || n ? "," : "", p->name, tn_sim_param_kind_names[k], value, p->unit, p->source, from,
                   moves);
            if (tn_sim_param_is_free(p))
                printf(", \"prior\": %.5g, \"least\": %g, \"most\": %g, \"prior_source\": \"%s\"", p->prior,
                       p->least, p->most, p->prior_source);
            printf("}");
            n++;
        }
    }
    if (json) printf("\n], \"free\": %d}\n", n_free);
    else printf("\n%d free parameters (fitted or assumed)\n", n_free);
    tn_sim_close(&l.s);
    return EXIT_OK;
}

enum { N_FITS = TN_PAPER_HEXAGON + 1 }; /* without each of the four papers, and to all */

/* Sorts what was predicted of every paper by the fit without it, or by the fit to all. */
static double median_of_all(const tn_fit fits[N_FITS], bool held_out, int32_t *n) {
    static tn_claim all[TN_PAPER_HEXAGON * TN_MAX_CLAIMS];
    *n = 0;
    for (int p = 0; p < TN_PAPER_HEXAGON; p++) {
        const tn_fit *f = &fits[held_out ? p : TN_PAPER_HEXAGON];
        memcpy(all + *n, f->claims[p], (size_t)f->n_claims[p] * sizeof *all);
        *n += f->n_claims[p];
    }
    double median = tn_claims_median_error(all, *n, false);
    int32_t counted = 0;
    for (int32_t i = 0; i < *n; i++) counted += all[i].kind == TN_CLAIM_PREDICTED;
    *n = counted;
    return median;
}

static void print_fits_json(const tn_inputs in[N_FITS], const tn_fit fits[N_FITS]) {
    int32_t n;
    printf("{\"fits\": [");
    for (int w = 0; w < N_FITS; w++) {
        printf("%s\n{\"without\": \"%s\", \"before\": %.4f, \"after\": %.4f, \"parameters\": {", w ? "," : "",
               w < TN_PAPER_HEXAGON ? tn_paper_name((tn_paper)w) : "", fits[w].before, fits[w].after);
        for (int32_t i = 0, k = 0; tn_sim_param_at(i); i++)
            if (tn_sim_param_is_free(tn_sim_param_at(i)))
                printf("%s\"%s\": %.5g", k++ ? ", " : "", tn_sim_param_at(i)->name,
                       tn_sim_param_get(tn_sim_param_at(i), &in[w]));
        printf("}, \"median_errors\": {");
        for (int p = 0; p < TN_PAPER_HEXAGON; p++)
            printf("%s\"%s\": %.4f", p ? ", " : "", tn_paper_name((tn_paper)p), fits[w].median[p]);
        printf("}, \"predicted\": [");
        for (int p = 0, k = 0; p < TN_PAPER_HEXAGON; p++)
            for (int32_t i = 0; i < fits[w].n_claims[p] && (p == w || w == TN_PAPER_HEXAGON); i++)
                if (fits[w].claims[p][i].kind == TN_CLAIM_PREDICTED)
                    printf("%s\n{\"what\": \"%s\", \"paper\": %.6g, \"simulated\": %.6g}", k++ ? "," : "",
                           fits[w].claims[p][i].what, fits[w].claims[p][i].paper,
                           fits[w].claims[p][i].simulated);
        printf("]}");
    }
    double fitted = median_of_all(fits, false, &n), held_out = median_of_all(fits, true, &n);
    printf("\n], \"predicted\": %d, \"median_fitted\": %.4f, \"median_held_out\": %.4f}\n", n, fitted,
           held_out);
}

static void print_fits_text(const tn_inputs in[N_FITS], const tn_fit fits[N_FITS]) {
    int32_t n;
    for (int p = 0; p < TN_PAPER_HEXAGON; p++) {
        const tn_fit *f = &fits[p];
        printf("== %s, predicted by a fit to the other three ==\n", tn_paper_name((tn_paper)p));
        for (int32_t i = 0; i < f->n_claims[p]; i++)
            if (f->claims[p][i].kind == TN_CLAIM_PREDICTED)
                printf("%-52s %10.2f %10.2f %+7.1f%%  %s\n", f->claims[p][i].what, f->claims[p][i].paper,
                       f->claims[p][i].simulated, 100 * tn_claim_error(&f->claims[p][i]),
                       f->claims[p][i].unit);
        puts("");
    }
    printf("%-34s %10s", "parameter", "begins at");
    for (int w = 0; w < N_FITS; w++) {
        char column[32];
        snprintf(column, sizeof column, "without %s",
                 w < TN_PAPER_HEXAGON ? tn_paper_name((tn_paper)w) : "none");
        printf(" %18s", column);
    }
    puts("");
    for (int32_t i = 0; tn_sim_param_at(i); i++) {
        const tn_sim_param *p = tn_sim_param_at(i);
        if (!tn_sim_param_is_free(p)) continue;
        printf("%-34s %10.4g", p->name, p->prior);
        for (int w = 0; w < N_FITS; w++) printf(" %18.4g", tn_sim_param_get(p, &in[w]));
        printf("  %s\n", p->unit);
    }
    printf("\n%-34s %10s %10s\n", "median error of what is predicted", "fitted", "held out");
    for (int p = 0; p < TN_PAPER_HEXAGON; p++)
        printf("%-34s %9.1f%% %9.1f%%\n", tn_paper_name((tn_paper)p), 100 * fits[TN_PAPER_HEXAGON].median[p],
               100 * fits[p].median[p]);
    double fitted = median_of_all(fits, false, &n), held_out = median_of_all(fits, true, &n);
    printf("all %-30d %9.1f%% %9.1f%%\n", n, 100 * fitted, 100 * held_out);
}

int tn_print_held_out(bool json) {
    static tn_fit fits[N_FITS];
    static tn_inputs in[N_FITS];
    tern_error err;
    lab l;
    int rc = open_lab(&l);
    if (rc != EXIT_OK) return rc;
    for (int w = 0; w < N_FITS && rc == EXIT_OK; w++) {
        in[w] = l.in;
        if (tn_sim_params_fit(&in[w], (tn_paper)w, TN_FIT_SWEEPS, &l.s, &fits[w], &err) != TERN_OK)
            rc = cli_failed(&err);
    }
    if (rc == EXIT_OK) (json ? print_fits_json : print_fits_text)(in, fits);
    tn_sim_close(&l.s);
    return rc;
}

/* The median error of what was registered of a source, or of all (NULL). */
static void print_registered_median(const tn_registered *r, int32_t n, const char *source) {
    static tn_claim claims[TN_MAX_REGISTERED];
    int32_t counted = 0;
    for (int32_t i = 0; i < n; i++)
        if (!r[i].seen && !r[i].same && (!source || !strcmp(source, r[i].source)))
            claims[counted++] =
                (tn_claim){.kind = TN_CLAIM_PREDICTED, .paper = r[i].published, .simulated = r[i].predicted};
    printf("%s: median error of %d predictions %.1f %%\n", source ? source : "All", counted,
           100 * tn_claims_median_error(claims, counted, false));
}

int tn_print_registration(void) {
    static tn_registered r[TN_MAX_REGISTERED];
    tern_error err;
    lab l;
    int32_t n = 0;
    int rc = open_lab(&l);
    if (rc != EXIT_OK) return rc;
    if (tn_registration(&l.in, &l.s, r, &n, &err) != TERN_OK) rc = cli_failed(&err);
    puts(
        "| | source | device | model | | predicted | published | error |\n|---|---|---|---|---|---|---|---|");
    for (int32_t i = 0; i < n; i++) {
        printf("| %d | %s | %s | %s | %s%s | %.4g %s | %.4g | %+.1f %%%s |\n", i + 1, r[i].source,
               r[i].device, r[i].model, r[i].what, r[i].seen ? " (not counted)" : "", r[i].predicted,
               r[i].unit, r[i].published, 100 * (r[i].predicted / r[i].published - 1),
               r[i].same ? " (not counted)" : "");
    }
    puts("");
    print_registered_median(r, n, NULL);
    for (int32_t i = 0; i < n; i++)
        if (!i || strcmp(r[i].source, r[i - 1].source)) print_registered_median(r, n, r[i].source);
    tn_sim_close(&l.s);
    return rc;
}
