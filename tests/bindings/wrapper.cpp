/* tern.hpp as C++17, beside the program: wrapper MODEL FOLDER CHAT COMPLETION, the last two what the program says to
 * "What is a dog?" and behind "Once upon a time", 12 tokens, greedy. */
#include <tern.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

static int n_checked;
#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        n_checked++;                                                                                         \
        if (!(what)) std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what), std::exit(1);   \
    } while (0)

/* Tells whether f throws an Error of this status that says this. */
template <typename F> static bool fails(F f, tern_status status, const char *says) {
    try {
        f();
    } catch (const tern::Error &e) {
        return e.status() == status && std::string(e.what()).find(says) != std::string::npos;
    }
    return false;
}

static_assert(!std::is_copy_constructible_v<tern::Model> && std::is_nothrow_move_constructible_v<tern::Session>);

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    const std::string path = argv[1], folder = argv[2], chat = argv[3], completion = argv[4];
    tern::Model opened(path, {{"temp", "0"}, {"n-predict", "12"}, {"threads", "2"}});
    tern::Model model = std::move(opened);

    std::string pieces;
    int n_pieces = 0;
    tern_generate_result r = model.chat("What is a dog?", [&](std::string_view p) { return pieces += p, ++n_pieces; });
    CHECK(pieces == chat);
    CHECK(n_pieces > 3);
    CHECK(r.reason == TERN_STOP_END);
    CHECK(model.chat("What is a dog?") == chat);
    CHECK(model.complete("Once upon a time") == completion);
    CHECK(model.chat_tokens(R"([{"role":"user","content":"What is a dog?"}])") == model.user_tokens("What is a dog?"));
    CHECK(model.detokenize(model.tokenize("It's 日本語", false)) == "It's 日本語");

    tern::Form form;
    form.grammar = "root ::= \"yes\" | \"no\"";
    std::string word = model.chat("Is it?", form);
    CHECK(word == "yes" || word == "no");
    form = {};
    form.stop = {"nowhere", completion.substr(4, 5)};
    CHECK(model.complete("Once upon a time", form) == completion.substr(0, completion.find(form.stop[1])));

    tern::Session s = model.session({{"ctx-size", "300"}});
    CHECK(!s.logits());
    s.prefill(model.tokenize("Once upon a time"));
    CHECK(s.logits() && tern_session_capacity(s.get()) == 300);
    s.save(folder + "/s");
    tern::Session t = model.session();
    t.load(folder + "/s");
    CHECK(t.tokens() == model.tokenize("Once upon a time") && t.generate() == completion);
    int32_t forbidden = t.tokens()[s.size()];
    form = {};
    form.on_logits = [&](float *logits, size_t n) { return logits[forbidden] = -INFINITY, n > 0; };
    CHECK(!s.generate(form).empty());
    for (int32_t id : s.tokens()) CHECK(id != forbidden);
    s.truncate(2);
    CHECK(s.size() == 2);

    std::vector<float> v = model.embed("a dog");
    double square = 0;
    for (float x : v) square += double(x) * double(x);
    CHECK(std::fabs(square - 1) < 1e-5);

    /* Exceptions of callbacks come out; the session goes on. */
    t.truncate(3);
    t.prefill(model.tokenize("Once upon a time"));
    bool thrown = false;
    try {
        t.generate([](std::string_view) -> bool { throw std::out_of_range("mine"); });
    } catch (const std::out_of_range &e) {
        thrown = std::string(e.what()) == "mine";
    }
    CHECK(thrown);
    t.prefill(model.tokenize("Once upon a time"));
    CHECK(t.generate() == completion);
    CHECK(fails([] { tern::Model("nowhere.gguf"); }, TERN_E_IO, "nowhere.gguf: cannot open"));
    CHECK(fails([&] { tern::Model(path, {{"thread", "1"}}); }, TERN_E_INVALID, "no parameter is called 'thread'"));
    form = {};
    form.schema = R"({"type":"wish"})";
    CHECK(fails([&] { model.complete("a", form); }, TERN_E_INVALID, "wish") ||
          fails([&] { model.complete("a", form); }, TERN_E_UNSUPPORTED, "wish"));

    tern_pack_options po{};
    tern_pack_options_defaults(&po);
    po.scheme = "llm-npu";
    double last = 0;
    tern_pack_report report = tern::pack(folder + "/m.gguf", folder + "/m.tern", po, [&](const char *, double f) { return last = f, true; });
    CHECK(report.n_sites > 0 && last > 0);
    CHECK(std::string(tern::Model(folder + "/m.tern").info().scheme) == "llm-npu");
    CHECK(fails([&] { tern::pack(folder + "/m.gguf", folder + "/n.tern", po, [](const char *, double) { return false; }); }, TERN_E_CANCELLED, ""));
    std::printf("tern.hpp: %d checks\n", n_checked);
}
