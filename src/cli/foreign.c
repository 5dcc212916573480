#include "cli/foreign.h"

#include <string.h>

static const foreign_option all[] = {
    {"-ngl --gpu-layers --n-gpu-layers", 1, NULL, "all layers run on the processor: tern uses no GPU"},
    {"-sm --split-mode -ts --tensor-split -mg --main-gpu -dev --device", 1, NULL, "tern uses no GPU"},
    {"-fa --flash-attn", 2, NULL, "attention always runs in blocks, as flash attention does"},
    {"-b --batch-size -ub --ubatch-size", 1, NULL,
     "tern chooses how much of the prompt is read at once (--set chunk)"},
    {"--mlock", 0, NULL, "weights are in tern's own memory and are not locked there"},
    {"--no-mmap", 0, NULL, "weights are read into memory; files are not mapped while a model runs"},
    {"--mmap", 0, NULL, "weights are read into memory (--set load=mmap maps packages)"},
    {"--no-warmup", 0, NULL, "there is no warm-up"},
    {"--numa", 1, NULL, "threads run where --set cores says"},
    {"-tb --threads-batch", 1, NULL, "-t is for the prompt and the answer"},
    {"-ctk --cache-type-k", 1, "--kv", "keys and values are kept in one form (--kv f32, f16, int8, int4)"},
    {"-ctv --cache-type-v", 1, "--kv", "keys and values are kept in one form (--kv f32, f16, int8, int4)"},
    {"--jinja", 0, NULL, "chat templates are always run as Jinja"},
    {"-hf -hfr --hf-repo", 1, "--model",
     "the model is looked for in Hugging Face's cache on this machine; tern pull fetches it"},
    {"-st --single-turn", 0, NULL, "tern run answers one message, tern chat goes on"},
    {"-cnv --conversation", 0, NULL, "tern chat is a conversation; tern run TEXT uses the chat template too"},
    {"-no-cnv --no-conversation", 0, NULL, "tern run -p reads plain text, without the chat template"},
    {"-i --interactive -if --interactive-first", 0, NULL, "tern chat is interactive"},
    {"-s", 1, "--seed", "it is --seed here"},
    {"--predict --n-predict", 1, "-n", "it is -n here"},
    {"--temperature", 1, "--temp", "it is --temp here"},
    {"-sys --system-prompt", 1, "--system", "it is --system here"},
    {"--no-display-prompt --no-prompt --simple-io --log-disable --color --no-perf -co --no-show-timings", 0,
     NULL, "the answer alone goes to standard output"},
    {"--perf --show-timings", 0, NULL, "--stats tells speed and memory"},
    {"-mli --multiline-input", 0, NULL,
     "tern chat takes several lines between two lines of \"\"\", and after a backslash at a line's end"},
    {"-e --escape", 0, NULL, "texts are taken as they are"},
    {"--no-escape", 0, NULL, "texts are taken as they are"},
    {"-r --reverse-prompt", 1, "--stop", "it is --stop here"},
    {"-j", 1, "--json-schema", "it is --json-schema here"},
    {"-v --verbose --verbose-prompt --log-verbose", 0, NULL, "--stats=all and --explain tell what happened"},
    {"-rea --reasoning", 1, "--thinking", "it is --thinking here, which tern serve has"},
    {"--reasoning-budget", 1, "--thinking",
     "0 is --thinking off here and any other on, which tern serve has: thoughts have no length of their own"},
    {"--reasoning-format", 1, NULL, "thoughts are told apart in every reply"},
    {"-lv --verbosity --log-verbosity", 1, NULL, "--stats=all and --explain tell what happened"},
    {"--keep", 1, NULL, "the system message always stays in a full context"},
    {"--context-shift --no-context-shift", 0, NULL, "tern chat and tern serve have --on-full shift and stop"},
    {"-np --parallel", 1, "--sessions", "it is --sessions here, which tern serve has"},
    {"-a --alias", 1, "--model-name", "it is --model-name here, which tern serve has"},
    {"--slots --metrics --props -cb --cont-batching", 0, NULL, "tern serve always does that"},
    {"--embedding --embeddings", 0, NULL, "tern serve answers /v1/embeddings whatever it is told"},
    {"-nkvo --no-kv-offload -kvu --kv-unified", 0, NULL, "keys and values are in memory"},
    {"-cmoe --cpu-moe", 0, NULL, "experts run on the processor: tern uses no GPU"},
    {"-ncmoe --n-cpu-moe", 1, NULL, "experts run on the processor: tern uses no GPU"},
    {"--check-tensors", 0, NULL, "files are always checked while they are read"},
    {"--chat-template-file", 1, "--chat-template", "it is --chat-template here"},
    {"--samplers --sampler-seq --sampling-seq", 1, NULL,
     "samplers have one order: penalties, --top-k, --top-p, --min-p, --temp"},
    {"--top-n-sigma --top-nsigma --typical --typical-p --xtc-probability --xtc-threshold --dynatemp-range "
     "--dynatemp-exp "
     "--mirostat --mirostat-lr --mirostat-ent --dry-multiplier --dry-base --dry-allowed-length "
     "--dry-penalty-last-n "
     "--presence-penalty --frequency-penalty",
     1, NULL,
     "tern run has no such sampler: --top-k, --top-p, --min-p, --temp and --set repeat-penalty shape the "
     "text"},
    {"--warmup --kv-offload --op-offload --repack -nr --no-repack --no-op-offload --no-host", 0, NULL,
     "it has no counterpart here and changes nothing"},
    {"--prio --poll --prio-batch --poll-batch -C --cpu-mask -Cr --cpu-range", 1, NULL,
     "threads run where --set cores says"},
    {"--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor", 1,
     NULL, "positions are scaled as the model's file says"},
    {"-md --model-draft", 1, "--draft", "it is --draft model:FILE here"},
    {"--draft-max --draft-n --draft-min --draft-n-min --draft-p-min", 1, NULL,
     "tern chooses how much is drafted, by what it measures"},
    {"--swa-full", 0, NULL, "keys and values are kept as the model needs them"},
    {"-dt --defrag-thold", 1, NULL, "keys and values are kept as the model needs them"},
    {"-dio --direct-io -ndio --no-direct-io", 0, NULL,
     "files are read in the way that is fastest (--set read)"},
    {"-fit --fit", 2, NULL, "what a model takes is told beforehand, and --max-memory limits it"},
    {"-ot --override-tensor", 1, NULL, "tensors stay on the processor: tern uses no GPU"},
    {"--no-mmproj-offload --mmproj-offload --mmproj-auto", 0, NULL,
     "the encoder of pictures runs on the processor"},
    {"--offline", 0, NULL, "tern pull alone opens a connection"},
    {"--override-kv", -1, NULL, "a file's properties are used as they stand"},
    {"--image", -1, NULL, "a picture is a word: tern run MODEL PICTURE TEXT"},
    {"-sysf --system-prompt-file", -1, NULL, "--system takes the text itself: --system \"$(cat FILE)\""},
    {"--prompt-cache", -1, NULL, "tern run has --save-session FILE and --load-session FILE"},
    {"--api-key", -1, NULL, "other users of this machine see what is on a command line: --api-key-file FILE"},
    {"--ssl-key-file", 1, "--tls-key", "it is --tls-key here, which tern serve has"},
    {"--ssl-cert-file", 1, "--tls-cert", "it is --tls-cert here, which tern serve has"},
    {"--models-dir", 1, "--models", "it is --models here, which tern serve has"},
    {"--rerank --reranking --no-webui --no-ui --webui --no-slots --cache-prompt --no-cache-prompt", 0, NULL,
     "it has no counterpart here and changes nothing"},
    {"--threads-http --timeout -to --cache-reuse -cram --cache-ram -sps --slot-prompt-similarity", 1, NULL,
     "tern serve chooses that by itself"},
    {"-mu --model-url", 1, NULL, "tern pull URL fetches a model; this command opens no connection"},
    {"-hff --hf-file -hft --hf-token", 1, NULL, "tern pull fetches models; this command opens no connection"},
    {"--media-path", 1, "--allow-path", "it is --allow-path here, which tern serve has"},
    {"--grammar-file", 1, "--grammar", "it is --grammar @FILE here"},
    {"--max-tokens --num-predict", 1, "-n", "it is -n here"},
    {"--ctx --num-ctx --context-size", 1, "-c", "it is -c here"},
    {"--keepalive", 1, NULL, "a model leaves memory with the command; tern serve has --idle"},
    {"--nowordwrap --insecure --hidethinking", 0, NULL, "it has no counterpart here and changes nothing"},
    {"--think", -1, NULL, "models think as their templates say; tern serve has --thinking on and off"},
    {"--format", -1, NULL, "--json-schema '{\"type\": \"object\"}' holds the answer to JSON"},
};

static bool names(const char *list, const char *arg, size_t n_arg) {
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, " ");
        if (n == n_arg && !strncmp(p, arg, n)) return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

const foreign_option *cli_foreign_find(const char *arg, size_t n) {
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (names(all[i].names, arg, n)) return &all[i];
    return NULL;
}

void cli_foreign_try(spelling *s) {
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        for (const char *p = all[i].names; *p;) {
            size_t n = strcspn(p, " ");
            if (all[i].values >= 0 && !strncmp(p, "--", 2)) cli_spelling_try(s, p, n);
            p += n + (p[n] == ' ');
        }
    }
}

bool cli_foreign_value(const char *word) {
    static const char *const words[] = {"on", "off", "auto", "0", "1", "-1"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strcmp(word, words[i])) return true;
    return false;
}

const char *cli_foreign_word(const foreign_option *f, const char *value) {
    static const char *const cache[][2] = {{"q8_0", "int8"},  {"q4_0", "int4"}, {"q4_1", "int4"},
                                           {"q5_0", "int8"},  {"q5_1", "int8"}, {"bf16", "f16"},
                                           {"iq4_nl", "int4"}};
    if (f->instead && !strcmp(f->instead, "--thinking"))
        return !strcmp(value, "off") || !strcmp(value, "0") ? "off" : "on";
    if (!f->instead || strcmp(f->instead, "--kv")) return value;
    for (size_t i = 0; i < sizeof cache / sizeof cache[0]; i++)
        if (!strcmp(value, cache[i][0])) return cache[i][1];
    return value;
}
