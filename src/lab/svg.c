#include "lab/svg.h"

#include <math.h>
#include <string.h>

/* Figures bring their paper with them, light or dark as the reader's screen is. The colours of bars can be
 * read on both. */
static const char *const STYLE =
    "<style>text{fill:#1b1f24}.paper{fill:#fff}.lane{fill:#eef1f4}.axis{stroke:#9aa5b1;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#161b22}.lane{fill:#2a313a}}</style>";

static void begin(FILE *f, int width, int height, const char *title) {
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n%s\n"
            "<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n",
            width, height, width, height, STYLE, width, height);
    fprintf(f, "<text x=\"10\" y=\"20\" font-size=\"15\" font-weight=\"bold\">%s</text>\n", title);
}

static void text(FILE *f, double x, double y, const char *anchor, const char *s) {
    fprintf(f, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *s; s++) {
        if (*s == '&') fputs("&amp;", f);
        else if (*s == '<') fputs("&lt;", f);
        else fputc(*s, f);
    }
    fputs("</text>\n", f);
}

static void bar(FILE *f, double x, double y, double w, double h, const char *colour) {
    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, w, h,
            colour);
}

/* Draws the ground of a lane, on which its bars lie. */
static void ground(FILE *f, double x, double y, double w, double h) {
    fprintf(f, "<rect class=\"lane\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", x, y, w, h);
}

/* ---- claims ---------------------------------------------------------------------------------------- */

static bool drawn(const tn_claim *c) {
    return c->kind == TN_CLAIM_PREDICTED || c->kind == TN_CLAIM_DERIVED || c->paper <= 0;
}

/* A bar that would leave the figure ends in a gap and an arrow: it is longer than it looks. */
static void cut_bar(FILE *f, double x, double y, double w, double h, const char *colour) {
    bar(f, x, y, w - 22, h, colour);
    bar(f, x + w - 18, y, 6, h, colour);
    fprintf(f, "<path fill=\"%s\" d=\"M%.1f %.1fl10 %.1fl-10 %.1fz\"/>\n", colour, x + w - 10, y, h / 2,
            h / 2);
}

void tn_svg_claims(FILE *f, const char *title, const tn_claim *c, int32_t n) {
    enum { LABELS = 390, UNIT = 160, MOST = 2, ROW = 30, TOP = 78, N_KEYS = 4 };
    static const char *const grey = "#9aa5b1", *const blue = "#2f6fde", *const pale = "#a9c4f5",
                             *const green = "#7fb069";
    const struct {
        const char *colour, *name;
        int x, y;
    } keys[N_KEYS] = {{grey, "paper", 0, 32},
                      {blue, "simulated: predicted", 80, 32},
                      {green, "simulated: derived from inputs", 250, 32},
                      {pale, "simulated; not printed as a number", 80, 50}};
    int32_t rows = 0;
    for (int32_t i = 0; i < n; i++) rows += drawn(&c[i]);
    begin(f, LABELS + UNIT * MOST + 160, TOP + ROW * rows + 10, title);
    for (int k = 0; k < N_KEYS; k++) {
        bar(f, LABELS - 60 + keys[k].x, keys[k].y, 12, 10, keys[k].colour);
        text(f, LABELS - 42 + keys[k].x, keys[k].y + 9, "start", keys[k].name);
    }
    cut_bar(f, LABELS + 250, 50, 40, 10, blue), text(f, LABELS + 296, 59, "start", "over twice the paper's");
    for (int32_t i = 0, row = 0; i < n; i++) {
        if (!drawn(&c[i])) continue;
        double y = TOP + ROW * row++, ratio = c[i].paper > 0 ? fmax(0, c[i].simulated / c[i].paper) : 1;
        const char *colour = c[i].paper <= 0 ? pale : c[i].kind == TN_CLAIM_DERIVED ? green : blue;
        char v[64];
        if (c[i].paper > 0) snprintf(v, sizeof v, "%.3g | %.3g %s", c[i].paper, c[i].simulated, c[i].unit);
        else snprintf(v, sizeof v, "%.3g %s", c[i].simulated, c[i].unit);
        text(f, LABELS - 8, y + 15, "end", c[i].what);
        if (c[i].paper > 0) bar(f, LABELS, y, UNIT, 10, grey);
        (ratio > MOST ? cut_bar : bar)(f, LABELS, y + 11, UNIT * fmin(ratio, MOST), 10, colour);
        text(f, LABELS + UNIT * fmax(1, fmin(ratio, MOST)) + 6, y + 15, "start", v);
    }
    fputs("</svg>\n", f);
}

/* ---- Gantt ----------------------------------------------------------------------------------------- */

enum { PRODUCT, ATTENTION, FLOAT, OUTLIERS, READ, UNPACK, N_COLOURS };
static const struct {
    const char *name, *colour;
} colours[N_COLOURS] = {[PRODUCT] = {"INT8 products", "#2f6fde"}, [ATTENTION] = {"attention", "#d9822b"},
                        [FLOAT] = {"norms and such", "#7fb069"},  [OUTLIERS] = {"outlier paths", "#8e6bbf"},
                        [READ] = {"set-up, reading", "#9aa5b1"},  [UNPACK] = {"unpacking", "#e6c229"}};

static const char *const SWITCHING = "#c0392b";

static int colour_of(const char *name) {
    if (strstr(name, "outliers")) return OUTLIERS;
    if (!strcmp(name, "read")) return READ;
    if (!strcmp(name, "unpack") || !strcmp(name, "load")) return UNPACK;
    if (!strcmp(name, "attention") || !strcmp(name, "plan")) return ATTENTION;
    return !strcmp(name, "qkv") || !strcmp(name, "o") || !strcmp(name, "ffn") || !strcmp(name, "down")
               ? PRODUCT
               : FLOAT;
}

/* Draws a track, column by column, in the colour of what took most of it, as one path per colour. */
static void track(FILE *f, const tn_timeline *tl, int32_t i_track, double ms_per_column, double x0, double y,
                  double height, int n_columns, double column) {
    enum { MOST = 1024 };
    double part[MOST][N_COLOURS];
    int8_t seen[MOST];
    if (n_columns > MOST) n_columns = MOST;
    memset(part, 0, sizeof part);
    for (int32_t i = 0; i < tn_timeline_n_events(tl, i_track); i++) {
        const tn_event *e = tn_timeline_event(tl, i_track, i);
        double from = (double)e->start_ns / 1e6 / ms_per_column, to = (double)e->end_ns / 1e6 / ms_per_column;
        for (int c = (int)from; c < n_columns && c < to; c++)
            part[c][colour_of(e->name)] += fmin(to, c + 1) - fmax(from, c);
    }
    for (int c = 0; c < n_columns; c++) {
        double busy = 0;
        int most = 0;
        for (int k = 0; k < N_COLOURS; k++) busy += part[c][k], most = part[c][k] > part[c][most] ? k : most;
        seen[c] = (int8_t)(busy >= 0.5 ? most : -1);
    }
    for (int k = 0; k < N_COLOURS; k++) {
        bool any = false;
        for (int c = 0, end; c < n_columns; c = end) {
            for (end = c + 1; end < n_columns && seen[end] == seen[c]; end++) {
            }
            if (seen[c] != k) continue;
            if (!any) fprintf(f, "<path fill=\"%s\" d=\"", colours[k].colour);
            any = true;
            fprintf(f, "M%.1f %.0fh%.1fv%.0fh-%.1fz", x0 + c * column, y, (end - c) * column, height,
                    (end - c) * column);
        }
        if (any) fputs("\"/>\n", f);
    }
}

/* Draws a line of time below the lanes: some five marks at round numbers. */
static void time_axis(FILE *f, double x0, double y, double width, double longest_ms) {
    double step = pow(10, floor(log10(longest_ms / 5)));
    while (longest_ms / step > 8) step *= longest_ms / step > 16 ? 5 : 2;
    fprintf(f, "<path class=\"axis\" d=\"M%.0f %.0fh%.0f\"/>\n", x0, y, width);
    for (int i = 0; i * step <= longest_ms * 1.0001; i++) {
        char label[32];
        double x = x0 + width * i * step / longest_ms;
        snprintf(label, sizeof label, i ? "%.4g" : "%.4g ms", i * step);
        fprintf(f, "<path class=\"axis\" d=\"M%.1f %.0fv5\"/>\n", x, y);
        text(f, x, y + 17, "middle", label);
    }
}

void tn_svg_gantt(FILE *f, const char *title, const tn_svg_run *runs, int32_t n) {
    enum { LEFT = 60, WIDTH = 900, LANE = 16, BAND = 3 * LANE + 34, TOP = 56, COLUMNS = 600 };
    static const char *const lanes[TN_N_LANES] = {"CPU", "NPU", "flash"};
    double longest = 1e-9;
    for (int32_t i = 0; i < n; i++) longest = fmax(longest, runs[i].ttft_ms + runs[i].after_ms);
    begin(f, LEFT + WIDTH + 30, TOP + BAND * n + 34, title);
    for (int k = 0; k < N_COLOURS; k++)
        bar(f, LEFT + 130 * k, 32, 12, 10, colours[k].colour),
            text(f, LEFT + 130 * k + 16, 41, "start", colours[k].name);
    bar(f, LEFT + 130 * N_COLOURS, 32, 12, 10, SWITCHING);
    text(f, LEFT + 130 * N_COLOURS + 16, 41, "start", "switching graphs");
    for (int32_t i = 0; i < n; i++) {
        const tn_svg_run *r = &runs[i];
        double y = TOP + BAND * i, first = LEFT + WIDTH * r->ttft_ms / longest;
        char label[256];
        snprintf(label, sizeof label,
                 r->after_ms >= 1 ? "%s: %.0f ms to the first token, switching for %.0f ms after it"
                                  : "%s: %.0f ms to the first token",
                 r->label, r->ttft_ms, r->after_ms);
        text(f, LEFT, y + 12, "start", label);
        for (int l = 0; l < TN_N_LANES; l++) {
            text(f, LEFT - 6, y + 18 + LANE * l + 11, "end", lanes[l]);
            ground(f, LEFT, y + 18 + LANE * l, first - LEFT, LANE - 2);
            track(f, r->timeline, tn_timeline_first_track(r->timeline, (tn_lane)l), longest / COLUMNS, LEFT,
                  y + 18 + LANE * l, LANE - 2, COLUMNS, (double)WIDTH / COLUMNS);
        }
        if (r->after_ms > 0) bar(f, first, y + 18 + LANE, WIDTH * r->after_ms / longest, LANE - 2, SWITCHING);
    }
    time_axis(f, LEFT, TOP + BAND * n + 6, WIDTH, longest);
    fputs("</svg>\n", f);
}
