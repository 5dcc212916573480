#include "lab/svg.h"

#include <math.h>
#include <string.h>

/* Figures bring their paper with them, light or dark as the reader's screen is. The colours of bars can be
 * read on both. */
static const char *const STYLE =
    "<style>text{fill:#1b1f24}.paper{fill:#fff}.lane{fill:#eef1f4}"
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

void tn_svg_claims(FILE *f, const char *title, const tn_claim *c, int32_t n) {
    enum { LABELS = 390, UNIT = 160, MOST = 2, ROW = 30, TOP = 60 };
    static const char *const grey = "#9aa5b1", *const blue = "#2f6fde", *const pale = "#a9c4f5";
    int32_t rows = 0;
    for (int32_t i = 0; i < n; i++) rows += c[i].kind == TN_CLAIM_PREDICTED || c[i].paper <= 0;
    begin(f, LABELS + UNIT * MOST + 140, TOP + ROW * rows + 10, title);
    bar(f, LABELS, 32, 12, 10, grey), text(f, LABELS + 18, 41, "start", "paper");
    bar(f, LABELS + 80, 32, 12, 10, blue), text(f, LABELS + 98, 41, "start", "simulated");
    bar(f, LABELS + 180, 32, 12, 10, pale),
        text(f, LABELS + 198, 41, "start", "simulated; not printed as a number");
    for (int32_t i = 0, row = 0; i < n; i++) {
        if (c[i].kind != TN_CLAIM_PREDICTED && c[i].paper > 0) continue;
        double y = TOP + ROW * row++, ratio = c[i].paper > 0 ? c[i].simulated / c[i].paper : 1;
        char v[64];
        snprintf(v, sizeof v, "%.3g", c[i].simulated);
        if (c[i].paper > 0) snprintf(v, sizeof v, "%.3g | %.3g %s", c[i].paper, c[i].simulated, c[i].unit);
        else snprintf(v, sizeof v, "%.3g %s", c[i].simulated, c[i].unit);
        text(f, LABELS - 8, y + 15, "end", c[i].what);
        if (c[i].paper > 0) bar(f, LABELS, y, UNIT, 10, grey);
        bar(f, LABELS, y + 11, UNIT * fmax(0, fmin(ratio, MOST)), 10, c[i].paper > 0 ? blue : pale);
        text(f, LABELS + UNIT * fmax(1, fmin(ratio, MOST)) + 6, y + 15, "start", v);
    }
    fputs("</svg>\n", f);
}

/* ---- Gantt ----------------------------------------------------------------------------------------- */

enum { PRODUCT, ATTENTION, FLOAT, OUTLIERS, READ, UNPACK, N_COLOURS };
static const struct {
    const char *name, *colour;
} colours[N_COLOURS] = {
    [PRODUCT] = {"INT8 products", "#2f6fde"},    [ATTENTION] = {"attention", "#d9822b"},
    [FLOAT] = {"norms and the like", "#7fb069"}, [OUTLIERS] = {"outlier paths", "#8e6bbf"},
    [READ] = {"set-up and reading", "#9aa5b1"},  [UNPACK] = {"unpacking", "#e6c229"}};

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

void tn_svg_gantt(FILE *f, const char *title, const tn_svg_run *runs, int32_t n) {
    enum { LEFT = 60, WIDTH = 900, LANE = 16, BAND = 3 * LANE + 34, TOP = 56, COLUMNS = 600 };
    static const char *const lanes[TN_N_LANES] = {"CPU", "NPU", "flash"};
    double longest = 1e-9;
    for (int32_t i = 0; i < n; i++) longest = fmax(longest, runs[i].ttft_ms + runs[i].after_ms);
    begin(f, LEFT + WIDTH + 20, TOP + BAND * n + 10, title);
    for (int k = 0; k < N_COLOURS; k++)
        bar(f, LEFT + 150 * k, 32, 12, 10, colours[k].colour),
            text(f, LEFT + 150 * k + 16, 41, "start", colours[k].name);
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
        if (r->after_ms > 0) bar(f, first, y + 18 + LANE, WIDTH * r->after_ms / longest, LANE - 2, "#c0392b");
    }
    fputs("</svg>\n", f);
}
