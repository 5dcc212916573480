/* cli/absent.c - a model that is not there: what its name looks like, and what would help. */
#include "cli/args.h"
#include "cli/output.h"
#include "cli/pull.h"

#include "model/catalogue.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MOST_NAMES = 3 };

typedef struct alike {
    const char *stem; /* of the name that was given: its letters up to a digit or a sign */
    size_t n_stem;
    char names[400];
    int n, n_all;
} alike;

static bool note(void *user, const tn_catalogue_entry *e) {
    alike *a = user;
    a->n_all++;
    bool like = false;
    for (const char *p = e->name; *p && !like; p++) like = !strncasecmp(p, a->stem, a->n_stem);
    size_t at = strlen(a->names);
    if (!like || a->n == MOST_NAMES || at + strlen(e->name) + 3 > sizeof a->names) return true;
    snprintf(a->names + at, sizeof a->names - at, "%s%s", a->n++ ? ", " : "", e->name);
    return true;
}

/* The letters a family's name begins with: "qwen" of "Qwen/Qwen3-0.6B" and "qwen3:0.6b". */
static void stem_of(const char *name, alike *a) {
    const char *slash = strrchr(name, '/');
    a->stem = slash && slash[1] ? slash + 1 : name;
    while (isalpha((unsigned char)a->stem[a->n_stem])) a->n_stem++;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcasecmp(s + n - m, end);
}

/* Whether a name begins with the site that it is to be had from, as an address does without its "https://". */
static bool site(const char *name) {
    static const char *const all[] = {"hf.co/", "huggingface.co/", "ollama.com/"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strncasecmp(name, all[i], strlen(all[i]))) return true;
    return false;
}

static bool has_capitals(const char *s) {
    while (*s && !isupper((unsigned char)*s)) s++;
    return *s;
}

/* The model is here now: the command begins again, as it was typed. It returns where it cannot. */
static void begin_again(void) {
    static char words[1 << 16], *argv[4096];
    FILE *f = fopen("/proc/self/cmdline", "re");
    size_t n = f ? fread(words, 1, sizeof words - 1, f) : 0;
    int argc = 0;
    if (f) fclose(f);
    for (char *p = words; p < words + n && argc < 4095; p += strlen(p) + 1) argv[argc++] = p;
    if (argc && n < sizeof words - 1) execv("/proc/self/exe", argv);
}

int cli_no_model(const char *name) {
    alike a = {0};
    const char *slash = strchr(name, '/'), *shown = cli_shown(name);
    bool path = strchr("./~", name[0]) || ends_with(name, ".gguf") || ends_with(name, ".tern") ||
                (slash && strchr(slash + 1, '/') && !site(name));
    if (!path && cli_pull_offer(name)) begin_again();
    if (strstr(name, "://"))
        return cli_failed_text(
            "%s: this command opens no connection; fetch the file with tern pull and this address", shown);
    if (path)
        return cli_failed_text("%s: no such file or folder (tern models lists the models on this machine)",
                               shown);
    stem_of(name, &a);
    if (a.n_stem > 2) tn_catalogue_each(note, &a);
    char near[480] = "";
    if (a.n) snprintf(near, sizeof near, "; models here with a name like it: %s", a.names);
    if (slash && strncasecmp(name, "ollama.com/", 11))
        return cli_failed_text("%s: no such folder, and no such model in Hugging Face's cache on this "
                               "machine%s; tern pull %s fetches it, and then the name works",
                               shown, near, shown);
    if (has_capitals(name)) /* Ollama's names have none */
        return cli_failed_text(
            "%s: no such file, and no model on this machine has this name%s; tern pull ORG/%s "
            "fetches it from Hugging Face, where ORG publishes it; tern models lists what is here",
            shown, near, shown);
    return cli_failed_text(
        "%s: no such file, and no model on this machine has this name%s; tern pull %s fetches it from "
        "Ollama's registry, tern pull ORG/NAME one from Hugging Face; tern models lists what is here",
        shown, near, shown);
}
