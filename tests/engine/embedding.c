/* Models that embed: are texts cut into the ids of an independent tokenizer, are the rows of a text, its vector and
 * its score those of a float64 model, from both kinds of files; and does such a model refuse to write? */
#include "model/folder_text.h"
#include "engine/adapters.h"
#include "engine/engine.h"
#include "session/session.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

#define CASES TN_SOURCE_DIR "/tests/oracle/embedding"
enum { MAX_TOK = 512, WIDTH = 32 };
static const double tolerance = 2e-5;

static json_t *load(const char *path) {
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    if (!j) fail_msg("%s:%d: %s", path, e.line, e.text);
    return j;
}

static tern_engine *open_engine(const char *path, const char *scheme) {
    tern_options o;
    tern_error err = {0};
    tn_options_defaults(&o);
    o.scheme = scheme;
    tern_engine *e = NULL;
    if (tern_engine_open(path, &o, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    return e;
}

typedef struct expected {
    const char *path;
    const json_t *at, *rows;
    size_t n, width;
    double worst;
} expected;

static void on_hidden(void *user, size_t i, const float *x) {
    expected *e = user;
    size_t k;
    json_t *at;
    json_array_foreach(e->at, k, at) {
        for (size_t c = 0; (size_t)json_integer_value(at) == i && c < e->width; c++) {
            double d = fabs((double)x[c] - json_number_value(json_array_get(json_array_get(e->rows, k), c)));
            if (d > e->worst) e->worst = d;
            e->n += !c;
        }
    }
}

static size_t ids_of(const tern_engine *e, const json_t *told, int32_t *ids) {
    const char *question = json_string_value(json_object_get(told, "question")),
               *text = json_string_value(json_object_get(told, "text"));
    const tn_tokenizer *t = e->model->tokenizer;
    tern_error err = {0};
    size_t n = 0;
    if (question)
        assert_int_equal(tn_tokenize_pair(t, (const char *const[]){question, text},
                                          (const size_t[]){strlen(question), strlen(text)}, ids, MAX_TOK, &n,
                                          &err),
                         TERN_OK);
    else assert_int_equal(tn_tokenize(t, text, strlen(text), true, false, ids, MAX_TOK, &n, &err), TERN_OK);
    return n;
}

static void check_text(const char *path, tern_engine *e, tern_session *s, const json_t *told) {
    int32_t ids[MAX_TOK];
    float v[WIDTH], row[WIDTH];
    tern_error err = {0};
    size_t n = ids_of(e, told, ids), i;
    json_t *x;
    assert_int_equal(n, json_array_size(json_object_get(told, "ids")));
    json_array_foreach(json_object_get(told, "ids"), i, x) assert_int_equal(ids[i], json_integer_value(x));
    const size_t width = (size_t)e->model->h.n_embd;
    assert_in_range(width, 1, WIDTH);
    assert_int_equal(json_array_size(json_array_get(json_object_get(told, "rows"), 0)), width);
    expected want = {path, json_object_get(told, "at"), json_object_get(told, "rows"), 0, width, 0};
    const tn_scorer scorer = {.first = 0, .user = &want, .on_hidden = on_hidden, .row = row};
    tn_session_truncate(s, 0);
    assert_int_equal(tn_session_append(s, ids, n, &scorer, &err), TERN_OK);
    assert_int_equal(want.n, json_array_size(want.at));
    if (want.worst > tolerance) fail_msg("%s, %zu tokens: a row is off by %g", path, n, want.worst);
    const json_t *vector = json_object_get(told, "vector");
    double worst = 0;
    if (json_array_size(vector) == 1) {
        assert_int_equal(tern_session_embed(s, ids, n, false, v, WIDTH, &err), TERN_E_UNSUPPORTED);
        assert_int_equal(tern_session_rank(s, ids, n, v, &err), TERN_OK);
    } else {
        assert_int_equal(tern_session_rank(s, ids, n, v, &err), TERN_E_UNSUPPORTED);
        assert_int_equal(tern_session_embed(s, ids, n, false, v, WIDTH, &err), TERN_OK);
    }
    json_array_foreach(vector, i, x) worst = fmax(worst, fabs((double)v[i] - json_number_value(x)));
    if (worst > tolerance) fail_msg("%s, %zu tokens: the vector is off by %g", path, n, worst);
}

static void check_file(const char *name, const char *file) {
    char path[600], vectors[600];
    snprintf(path, sizeof path, CASES "/%s/%s", name, file);
    snprintf(vectors, sizeof vectors, CASES "/%s/%s/vectors.json", name, file); /* of a folder alone */
    if (access(vectors, R_OK)) snprintf(vectors, sizeof vectors, CASES "/%s/vectors.json", name);
    if (access(path, R_OK)) return;
    json_t *all = load(vectors), *told;
    size_t i;
    tern_engine *e = open_engine(path, "float");
    tern_session *s = fixture_session(e, MAX_TOK, NULL);
    json_array_foreach(all, i, told) check_text(path, e, s, told);
    tern_session_close(&s);
    tern_engine_close(&e);
    json_decref(all);
}

static void agrees_with_the_definitions(void **state) {
    (void)state;
    DIR *d = opendir(CASES);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *at; (at = readdir(d));) {
        if (at->d_name[0] == '.' || strchr(at->d_name, '.')) continue;
        check_file(at->d_name, "model.gguf");
        check_file(at->d_name, "hf");
        n++;
    }
    closedir(d);
    assert_in_range(n, 15, 100);
}

#define THIRD CASES "/jina-bert-v3"

static tern_engine *open_with(const char *path, const char *scheme, const char *lora) {
    tern_options o;
    tern_error err = {0};
    tn_options_defaults(&o);
    o.scheme = scheme;
    o.lora = lora;
    tern_engine *e = NULL;
    if (tern_engine_open(path, &o, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    return e;
}

/* Every text of tasks.json whose task the engine has, and then without a task what the weights give alone. */
static int check_tasks(const char *path, const char *lora) {
    tern_engine *e = open_with(path, "float", lora);
    tern_session *s = fixture_session(e, MAX_TOK, NULL);
    json_t *all = load(THIRD "/tasks.json"), *bare = load(THIRD "/vectors.json"), *told;
    int n = 0;
    size_t i;
    json_array_foreach(all, i, told) {
        tn_lora_mix mix;
        tern_error err = {0};
        const char *prefix, *task = json_string_value(json_object_get(told, "task"));
        char text[2000];
        if (tn_task_parse(e, task, &mix, &prefix, &err) != TERN_OK) {
            assert_int_equal(err.code, TERN_E_INVALID);
            continue;
        }
        snprintf(text, sizeof text, "%s%s", prefix, json_string_value(json_object_get(told, "bare")));
        assert_string_equal(text, json_string_value(json_object_get(told, "text")));
        tn_session_mix(s, &mix);
        check_text(path, e, s, told);
        n++;
    }
    tern_error err = {0};
    must(tern_session_lora(s, NULL, &err), &err); /* those of a new session: none */
    json_array_foreach(bare, i, told) check_text(path, e, s, told);
    json_decref(all);
    json_decref(bare);
    tern_session_close(&s);
    tern_engine_close(&e);
    return n;
}

/* Jina's third model has an adapter for each task, in its folder or in files of their own. */
static void embeds_for_tasks(void **state) {
    (void)state;
    assert_int_equal(check_tasks(THIRD "/hf", NULL), 10);
    assert_int_equal(check_tasks(THIRD "/model.gguf",
                                 THIRD "/lora-retrieval.query.gguf,b=" THIRD "/lora-text-matching.gguf"),
                     4);
}

/* What a caller of the library sees; and one that is not for a task alone when its scale is said. */
static void tells_tasks(void **state) {
    (void)state;
    const char *prefix = NULL;
    tern_engine *e = open_with(THIRD "/hf", "float", NULL);
    tern_session *s = fixture_session(e, 16, NULL);
    assert_string_equal(tern_engine_lora(e, 0), "retrieval.query");
    assert_string_equal(tern_engine_lora_task(e, 0, &prefix), "retrieval.query");
    assert_string_equal(prefix, "Represent the query for retrieving evidence documents: ");
    assert_string_equal(tern_engine_lora_task(e, 4, &prefix), "text-matching");
    assert_string_equal(prefix, "");
    assert_null(tern_engine_lora_task(e, 5, &prefix));
    assert_int_equal(s->mix.n, 0);
    tern_session_close(&s);
    tern_engine_close(&e);
    e = open_with(THIRD "/model.gguf", "float", "it=" THIRD "/lora-retrieval.query.gguf:0.5");
    s = fixture_session(e, 16, NULL);
    tn_lora_mix mix;
    tern_error err = {0};
    assert_string_equal(tern_engine_lora(e, 0), "it");
    assert_string_equal(tern_engine_lora_task(e, 0, NULL), "retrieval.query");
    assert_int_equal(s->mix.n, 1);
    must(tn_task_parse(e, "retrieval.query", &mix, &prefix, &err), &err);
    assert_true(mix.n == 1 && mix.scale[0] == 0.5f);
    tern_session_close(&s);
    tern_engine_close(&e);
    tern_options o;
    tn_options_defaults(&o);
    o.lora = "x=" THIRD "/lora-retrieval.query.gguf,y=" THIRD "/lora-retrieval.query.gguf";
    assert_int_equal(tern_engine_open(THIRD "/model.gguf", &o, &e, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "for the task retrieval.query, too"));
}

/* In blocks of 8 bits the adapter is added, too. */
static void adds_to_blocks(void **state) {
    (void)state;
    tern_engine *e = open_with(THIRD "/hf", "int8", NULL);
    tern_session *s = fixture_session(e, MAX_TOK, NULL);
    json_t *all = load(THIRD "/tasks.json"), *told = json_array_get(all, 0), *x;
    int32_t ids[MAX_TOK];
    float v[WIDTH];
    double cosine[2] = {0};
    size_t n = ids_of(e, told, ids), i;
    for (int with = 0; with < 2; with++) {
        tern_error err = {0};
        must(tern_session_lora(s, with ? "retrieval.query" : "none", &err), &err);
        must(tern_session_embed(s, ids, n, false, v, WIDTH, &err), &err);
        json_array_foreach(json_object_get(told, "vector"), i, x) cosine[with] +=
            (double)v[i] * json_number_value(x);
    }
    if (cosine[1] < 0.998 || cosine[0] > 0.95)
        fail_msg("%g with the adapter, %g without", cosine[1], cosine[0]);
    json_decref(all);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* The folder with other words about its adapters. */
static void refuses_broken_tasks(void **state) {
    (void)state;
    static const struct {
        const char *patch, *why;
    } all[] = {
        {"{\"lora_adaptations\": null}", "no list lora_adaptations"},
        {"{\"lora_adaptations\": []}", "no list lora_adaptations"},
        {"{\"lora_adaptations\": [\"separation\"]}", "holds 5 matrices, and lora_adaptations has 1 names"},
        {"{\"lora_adaptations\": [1, 2, 3, 4, 5]}", "lora_adaptations[0] is no name"},
        {"{\"lora_adaptations\": [\"separation\", \"separation\", \"a\", \"b\", \"c\"]}", "twice"},
        {"{\"lora_adaptations\": [\"a b\", \"c\", \"d\", \"e\", \"f\"], \"task_instructions\": null}",
         "'a b' is no name of a task"},
        {"{\"task_instructions\": {\"separation\": \"\"}}", "has no text for 'retrieval.query'"},
        {"{\"task_instructions\": []}", "must be an object"},
        {"{\"lora_rank\": 8}", "rank 4: want 8"},
        {"{\"lora_rank\": 0}", "want 1 to"},
        {"{\"lora_alpha\": \"x\"}", "must be numbers"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char folder[FIXTURE_PATH], path[FIXTURE_PATH + 40];
        tern_error err = {0};
        tern_engine *e = NULL;
        fixture_copy_folder(THIRD "/hf", folder, "tasks");
        snprintf(path, sizeof path, "%s/config.json", folder);
        json_t *j = load(path);
        fixture_patch(j, all[i].patch);
        assert_int_equal(json_dump_file(j, path, 0), 0);
        json_decref(j);
        const tern_status st = tern_engine_open(folder, NULL, &e, &err);
        if (st != TERN_E_FORMAT || !strstr(err.message, all[i].why))
            fail_msg("%s: %d, %s", all[i].patch, (int)st, err.message);
    }
}

/* Tensors under another name. */
static void refuses_adapters_of_nothing(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *why;
    } all[] = {
        {"layers.1.mlp.fc2.parametrizations.weight.0.lora_A",
         "layers.1.mlp.fc2.parametrizations.weight.0.lora_C", "has no A beside it"},
        {"layers.1.mlp.fc2.parametrizations.weight.0.lora_",
         "layers.1.mlp.fc9.parametrizations.weight.0.lora_", "changes none of the linears"},
        {"word_embeddings.parametrizations.weight.0.lora_", "word_embeddinks.parametrizations.weight.0.lora_",
         "changes none of the linears"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char folder[FIXTURE_PATH], path[FIXTURE_PATH + 40];
        tern_error err = {0};
        tern_engine *e = NULL;
        fixture_copy_folder(THIRD "/hf", folder, "nothing");
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        fixture_changed(path, path, all[i].from, all[i].to, strlen(all[i].from));
        assert_int_not_equal(tern_engine_open(folder, NULL, &e, &err), TERN_OK);
        if (!strstr(err.message, all[i].why)) fail_msg("%s: %s", all[i].from, err.message);
    }
}

/* A tokenizer that a package holds has the template for a question and a text, too. */
static void keeps_the_template(void **state) {
    (void)state;
    tern_engine *e = open_engine(CASES "/qwen3-rerank/model.gguf", "float");
    json_t *all = load(CASES "/qwen3-rerank/vectors.json"), *told = json_array_get(all, 2), *id;
    const char *const two[2] = {json_string_value(json_object_get(told, "question")),
                                json_string_value(json_object_get(told, "text"))};
    const size_t n_bytes[2] = {strlen(two[0]), strlen(two[1])};
    int32_t ids[MAX_TOK];
    uint8_t *blob;
    size_t n_blob, n, i;
    tn_tokenizer *t;
    tern_error err = {0};
    must(tn_tokenizer_save(e->model->tokenizer, &blob, &n_blob, &err), &err);
    must(tn_tokenizer_load(&e->ctx, blob, n_blob, &t, &err), &err);
    must(tn_tokenize_pair(t, two, n_bytes, ids, MAX_TOK, &n, &err), &err);
    assert_int_equal(n, json_array_size(json_object_get(told, "ids")));
    json_array_foreach(json_object_get(told, "ids"), i, id) assert_int_equal(ids[i], json_integer_value(id));
    assert_true(n <= tn_tokenize_pair_max(t, n_bytes));
    assert_int_equal(tn_tokenize_pair(t, two, n_bytes, ids, n - 1, &i, &err), TERN_E_LIMIT);
    tn_free(&e->ctx, blob);
    tn_tokenizer_close(&t);
    tern_engine_close(&e);
    json_decref(all);
}

/* The folder of a case with another value in one of its configurations: opening it must fail with a message that says
 * `why`. */
static void refuse(const char *name, const char *file, const char *patch, const char *why) {
    char source[600], folder[FIXTURE_PATH], config[FIXTURE_PATH + 40];
    tern_error err = {0};
    tern_options o;
    tern_engine *e = NULL;
    snprintf(source, sizeof source, CASES "/%s/hf", name);
    fixture_copy_folder(source, folder, "refused");
    snprintf(config, sizeof config, "%s/%s", folder, file);
    json_t *j = load(config);
    fixture_patch(j, patch);
    assert_int_equal(json_dump_file(j, config, 0), 0);
    json_decref(j);
    tn_options_defaults(&o);
    o.scheme = "float";
    assert_int_equal(tern_engine_open(folder, &o, &e, &err), TERN_E_UNSUPPORTED);
    if (!strstr(err.message, why)) fail_msg("%s, %s: %s", name, patch, err.message);
}

/* What would be another model is refused by its name. */
static void refuses_what_it_does_not_compute(void **state) {
    (void)state;
    static const struct {
        const char *name, *file, *patch, *why;
    } all[] = {
        {"nomic-bert", "config.json", "{\"prenorm\": true}", "'prenorm'"},
        {"nomic-bert", "config.json", "{\"causal\": true}", "'causal'"},
        {"nomic-bert", "config.json", "{\"rotary_emb_interleaved\": true}", "'rotary_emb_interleaved'"},
        {"nomic-bert", "config.json", "{\"rotary_emb_scale_base\": 512}", "'rotary_emb_scale_base'"},
        {"nomic-bert", "config.json", "{\"activation_function\": \"geglu\"}", "'geglu'"},
        {"nomic-bert-moe", "config.json", "{\"moe_every_n_layers\": 3}", "'moe_every_n_layers'"},
        {"nomic-bert-moe", "config.json", "{\"expert_choice_router\": true}", "'expert_choice_router'"},
        {"nomic-bert-moe", "config.json", "{\"num_shared_experts\": 1}", "'num_shared_experts'"},
        {"modern-bert", "config.json", "{\"norm_bias\": true}", "'norm_bias'"},
        {"modern-bert", "config.json", "{\"hidden_activation\": \"mish\"}", "'mish'"},
        {"modern-bert-rank", "config.json", "{\"classifier_activation\": \"tanh\"}",
         "'classifier_activation'"},
        {"modern-bert-rank", "config.json", "{\"classifier_pooling\": \"max\"}", "'classifier_pooling'"},
        {"jina-bert-v2", "config.json", "{\"feed_forward_type\": \"reglu\"}", "'feed_forward_type'"},
        {"jina-bert-v2", "config.json", "{\"emb_pooler\": \"max\"}", "'emb_pooler'"},
        {"gemma-embedding", "2_Dense/config.json",
         "{\"activation_function\": \"torch.nn.modules.activation.Tanh\"}", "2_Dense"},
        {"gemma-embedding", "2_Dense/config.json", "{\"bias\": true}", "2_Dense"},
        {"modern-bert", "config.json", "{\"local_attention\": 1}", "a window of 1"},
        {"jina-bert-v3", "config.json", "{\"truncate_dim\": 8}", "'truncate_dim'"},
        {"qwen3-rerank", "1_LogitScore/config.json", "{\"false_token_id\": null}", "'false_token_id'"},
        {"qwen3-rerank", "1_LogitScore/config.json", "{\"true_token_id\": 100000}", "'true_token_id'"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        refuse(all[i].name, all[i].file, all[i].patch, all[i].why);
}

/* EmbeddingGemma's folder with another modules.json (NULL: none). */
static void believes_its_modules(void **state) {
    (void)state;
#define MODULE(kind, path) "{\"type\": \"sentence_transformers.models." kind "\", \"path\": \"" path "\"}"
#define TWO MODULE("Dense", "2_Dense") ", " MODULE("Dense", "3_Dense")
#define MODEL MODULE("Transformer", "")
    static const struct {
        const char *modules, *why;
    } all[] = {
        {NULL, "2_Dense"},
        {"{}", "no list"},
        {"[]", "2_Dense"},
        {"[" MODEL ", " MODULE("Pooling", "9_Pooling") ", " TWO "]", "'Pooling'"},
        {"[" MODEL ", " TWO ", " MODULE("Pooling", "1_Pooling") "]", "'Pooling'"},
        {"[" MODEL ", " MODULE("Normalize", "") ", " TWO "]", "'Dense'"},
        {"[" MODEL ", " MODULE("Dense", "../2_Dense") ", " MODULE("Dense", "3_Dense") "]", "'Dense'"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char folder[FIXTURE_PATH], path[FIXTURE_PATH + 40];
        tern_error err = {0};
        tern_engine *e = NULL;
        fixture_copy_folder(CASES "/gemma-embedding/hf", folder, "modules");
        snprintf(path, sizeof path, "%s/modules.json", folder);
        if (all[i].modules) fixture_write(path, all[i].modules, strlen(all[i].modules));
        else assert_int_equal(remove(path), 0);
        assert_int_not_equal(tern_engine_open(folder, NULL, &e, &err), TERN_OK);
        if (!strstr(err.message, all[i].why)) fail_msg("%zu: %s", i, err.message);
    }
}

/* A model that writes is a reranker by its modules or by its card, and what it wants of a question and a text must be known. */
static void tells_rerankers_that_write(void **state) {
    (void)state;
    static const char judge[] = "{{ 'Judge whether the Document meets' }}", card[] = "README.md",
                      modules[] = "modules.json", template[] = "chat_template.jinja";
    static const struct {
        const char *without[2], *with, *why;
        bool scores;
    } all[] = {{{card, NULL}, template, NULL, true},
               {{card, NULL}, NULL, "no Qwen3-Reranker by its README.md", false},
               {{modules, NULL}, NULL, "has no 'yes'", false}, /* as its small vocabulary */
               {{modules, card}, template, NULL, false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char folder[FIXTURE_PATH], path[FIXTURE_PATH + 40];
        tern_error err = {0};
        tern_engine *e = NULL;
        tern_options o;
        fixture_copy_folder(CASES "/qwen3-rerank/hf", folder, "judge");
        for (int k = 0; k < 2 && all[i].without[k]; k++) {
            snprintf(path, sizeof path, "%s/%s", folder, all[i].without[k]);
            assert_int_equal(remove(path), 0);
        }
        snprintf(path, sizeof path, "%s/%s", folder, template);
        if (all[i].with) fixture_write(path, judge, strlen(judge));
        else (void)remove(path);
        tn_options_defaults(&o);
        o.scheme = "float";
        const tern_status st = tern_engine_open(folder, &o, &e, &err);
        assert_int_equal(st == TERN_OK, !all[i].why);
        if (all[i].why && !strstr(err.message, all[i].why)) fail_msg("%zu: %s", i, err.message);
        if (e) assert_int_equal(e->model->h.n_scores, all[i].scores ? 2 : 0);
        tern_engine_close(&e);
    }
}

/* Those that documents are put in order by, where none is named. */
static void is_found_by_its_files(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    static const char *const yes[] = {"jina-rerank-v2/hf",         "jina-rerank-v2/model.gguf",
                                      "modern-bert-rank/hf",       "jina-rerank-v1/hf",
                                      "jina-rerank-v1/model.gguf", "bert-rank/model.gguf"},
                             *const no[] = {"jina-bert-v3/hf", "qwen3-rerank/hf", "bert/hf",
                                            "bert/model.gguf"};
    char path[600];
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        snprintf(path, sizeof path, CASES "/%s", yes[i]);
        assert_true(tn_file_reranks(&ctx, path));
    }
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        snprintf(path, sizeof path, CASES "/%s", no[i]);
        assert_false(tn_file_reranks(&ctx, path));
    }
}

static void writes_nothing(void **state) {
    (void)state;
    tern_engine *e = open_engine(CASES "/bert/model.gguf", "float");
    tern_session *s = fixture_session(e, MAX_TOK, NULL);
    tern_error err = {0};
    const int32_t ids[] = {2, 7, 9, 3};
    assert_int_equal(tern_session_prefill(s, ids, 4, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "embed"));
    assert_int_equal(tern_session_step(s, 7, &err), TERN_E_UNSUPPORTED);
    tern_session_close(&s);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_definitions),
        cmocka_unit_test(embeds_for_tasks),
        cmocka_unit_test(tells_tasks),
        cmocka_unit_test(adds_to_blocks),
        cmocka_unit_test(refuses_broken_tasks),
        cmocka_unit_test(refuses_adapters_of_nothing),
        cmocka_unit_test(keeps_the_template),
        cmocka_unit_test(refuses_what_it_does_not_compute),
        cmocka_unit_test(believes_its_modules),
        cmocka_unit_test(tells_rerankers_that_write),
        cmocka_unit_test(is_found_by_its_files),
        cmocka_unit_test(writes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
