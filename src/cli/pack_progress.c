#include "cli/pack_progress.h"

#include "cli/live.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

typedef struct stage_words {
    const char *stage;
    double
        share; /* of what is left when it begins, by what packing models of 10 million to a billion weights took */
    const char *words;
} stage_words;

static const stage_words *stage_of(const char *name) {
    static const stage_words all[] = {
        {"load", 0.08, "reading the model"},
        {"encoder", 0.10, "judging the encoder of pictures"},
        {"text", 0.02, "reading the text"},
        {"sample", 0.12, "letting the model write"},
        {"sense", 0.38, "measuring which weights matter"},
        {"allocate", 0.15, "dealing out the bits"},
        {"calibrate", 0.60, "rounding the weights"}, /* once, or until the bits suffice */
        {"heads", 0.60, "measuring the attention heads"},
        {"pack", 0.90, "writing the package"},
    };
    static const stage_words other = {"", 0.10, "working"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(name, all[i].stage)) return &all[i];
    return &other;
}

double cli_pack_progress(pack_progress *p, const char *stage, double fraction) {
    if (strncmp(p->stage, stage, sizeof p->stage - 1) ||
        fraction < p->fraction) { /* the next, or once more */
        p->begin += (p->end - p->begin) * p->fraction;
        p->end = p->begin + (1 - p->begin) * stage_of(stage)->share;
        snprintf(p->stage, sizeof p->stage, "%s", stage);
    }
    p->fraction = fraction;
    return p->begin + (p->end - p->begin) * fraction;
}

const char *cli_pack_progress_line(pack_progress *p, const char *stage, double fraction, double now_s,
                                   char *out, size_t cap) {
    enum { FIRST_S = 2 }; /* earlier there is nothing to go by */
    double done = cli_pack_progress(p, stage, fraction);
    if (p->started_s <= 0) p->started_s = now_s;
    double took = now_s - p->started_s, left = done > 0 ? took * (1 - done) / done : 0;
    char estimate[48] = "";
    if (took >= FIRST_S && left >= 1)
        snprintf(estimate, sizeof estimate, ", about %.0f %s left", left < 100 ? left : left / 60,
                 left < 100 ? "s" : "min");
    snprintf(out, cap, "packing: %.0f %%%s (%s)", done * 100, estimate, stage_of(stage)->words);
    return out;
}

bool cli_pack_progress_show(void *user, const char *stage, double fraction) {
    pack_progress *p = user;
    char line[160];
    p->shown = true;
    cli_live_line("%s", cli_pack_progress_line(p, stage, fraction, tn_now_s(), line, sizeof line));
    return true;
}

void cli_pack_progress_done(pack_progress *p) {
    if (p->shown) cli_live_clear();
    p->shown = false;
}
