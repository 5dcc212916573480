/* tern.hpp - libtern in C++17: owners that close what they hold, errors as exceptions, texts as std::string.
 *
 *     tern::Model model("m.gguf", {{"temp", "0"}});
 *     model.chat("Hello", [](std::string_view piece) { std::cout << piece; return true; });
 *
 * Header only; link with libtern. Options are those of `tern help set`. Objects are moved, not copied. A Model may be
 * shared by threads and must outlive its sessions; a Session belongs to one thread at a time, but for cancel(). Exceptions
 * of callbacks end the call and come out of it. Where this header has no function, `get()` gives the object of tern.h. */
#ifndef TERN_HPP
#define TERN_HPP

#include <tern.h>

#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tern {

/* What libtern refused or could not do, in its own words. */
class Error : public std::runtime_error {
  public:
    Error(tern_status status, const char *message)
        : std::runtime_error(*message ? message : tern_status_text(status)), status_(status) {}
    tern_status status() const noexcept { return status_; }

  private:
    tern_status status_;
};

using Parameters = std::vector<std::pair<std::string, std::string>>;
/* A piece of text; false ends the answer. */
using OnText = std::function<bool(std::string_view)>;
/* The model's logits before a draw, to be changed in place; false ends the answer. */
using OnLogits = std::function<bool(float *, size_t)>;

namespace detail {

inline void check(tern_status st, const tern_error &err) {
    if (st != TERN_OK) throw Error(st, err.message);
}

template <auto Close> struct Closer {
    template <typename T> void operator()(T *p) const noexcept { Close(&p); }
};

/* Calls a function that follows the cap rule: first for the number, then for the items. */
template <typename T, typename F> std::vector<T> counted(F call) {
    size_t n = 0;
    tern_error err{};
    tern_status st = call(static_cast<T *>(nullptr), size_t{0}, &n, &err);
    if (st != TERN_E_LIMIT) check(st, err);
    std::vector<T> out(n);
    if (n) check(call(out.data(), out.size(), &n, &err), err);
    return out;
}

} // namespace detail

/* Parameters by name. */
class Options {
  public:
    Options(const Parameters &values = {}) {
        tern_options *o = nullptr;
        tern_error err{};
        detail::check(tern_options_new(&o, &err), err);
        o_.reset(o);
        for (const auto &[name, value] : values) set(name, value);
    }
    Options &set(const std::string &name, const std::string &value) {
        tern_error err{};
        detail::check(tern_options_set(o_.get(), name.c_str(), value.c_str(), &err), err);
        return *this;
    }
    tern_options *get() const noexcept { return o_.get(); }

  private:
    std::unique_ptr<tern_options, detail::Closer<tern_options_free>> o_;
};

/* What an answer may be asked for beside parameters. */
struct Form {
    std::string schema, grammar; /* at most one; empty: none */
    std::vector<std::string> stop;
    OnLogits on_logits;
};

class Model;

/* One text over a model. */
class Session {
  public:
    Session(const Model &model, const Parameters &values = {});

    void prefill(const std::vector<int32_t> &ids) {
        tern_error err{};
        detail::check(tern_session_prefill(s_.get(), ids.data(), ids.size(), &err), err);
    }
    void step(int32_t token) {
        tern_error err{};
        detail::check(tern_session_step(s_.get(), token, &err), err);
    }

    /* Goes on from what was read. */
    tern_generate_result generate(const OnText &on_text, const Form &form = {}) {
        tern_error err{};
        tern_generate_options g{};
        tern_generate_result result{};
        Call call{on_text, form.on_logits, nullptr};
        std::vector<const char *> stops;
        for (const std::string &s : form.stop) stops.push_back(s.c_str());
        stops.push_back(nullptr);
        detail::check(tern_options_answer_sized(options_.get(), nullptr, 0, &g, sizeof g, &err), err);
        if (!form.stop.empty()) g.stop = stops.data();
        if (!form.schema.empty()) g.json_schema = form.schema.c_str();
        if (!form.grammar.empty()) g.grammar = form.grammar.c_str();
        g.user = &call;
        g.no_logprobs = true;
        g.on_token = [](void *user, int32_t, const char *text, size_t n, float) -> bool {
            return n == 0 || static_cast<Call *>(user)->guarded([&](Call &c) { return c.on_text({text, n}); });
        };
        if (form.on_logits)
            g.on_logits = [](void *user, float *logits, size_t n) -> bool {
                return static_cast<Call *>(user)->guarded([&](Call &c) { return c.on_logits(logits, n); });
            };
        tern_status st = tern_session_generate(s_.get(), &g, &result, &err);
        if (call.thrown) std::rethrow_exception(call.thrown);
        detail::check(st, err);
        return result;
    }
    std::string generate(const Form &form = {}) {
        std::string out;
        generate([&](std::string_view piece) { return out.append(piece), true; }, form);
        return out;
    }

    /* float[n_vocab] behind the last token, valid until the next call; NULL if none. */
    const float *logits() const noexcept { return tern_session_logits(s_.get()); }
    size_t size() const noexcept { return tern_session_length(s_.get()); }
    std::vector<int32_t> tokens() const {
        const int32_t *p = tern_session_tokens(s_.get());
        return p ? std::vector<int32_t>(p, p + size()) : std::vector<int32_t>();
    }
    void truncate(size_t n) {
        tern_error err{};
        detail::check(tern_session_truncate(s_.get(), n, &err), err);
    }
    void save(const std::string &path) const {
        tern_error err{};
        detail::check(tern_session_save(s_.get(), path.c_str(), &err), err);
    }
    void load(const std::string &path) {
        tern_error err{};
        detail::check(tern_session_load(s_.get(), path.c_str(), &err), err);
    }
    /* From any thread: what runs throws an Error of TERN_E_CANCELLED. */
    void cancel() const noexcept { tern_session_cancel(s_.get()); }
    tern_session *get() const noexcept { return s_.get(); }

  private:
    struct Call {
        const OnText &on_text;
        const OnLogits &on_logits;
        std::exception_ptr thrown;
        /* No exception crosses the C code above. */
        template <typename F> bool guarded(F f) noexcept {
            try {
                return f(*this);
            } catch (...) {
                thrown = std::current_exception();
                return false;
            }
        }
    };
    Options options_;
    std::unique_ptr<tern_session, detail::Closer<tern_session_close>> s_;
};

/* An opened model: a GGUF file, a Hugging Face folder or a package. The parameters hold for its answers too. */
class Model {
  public:
    explicit Model(const std::string &path, Parameters values = {}) : values_(std::move(values)) {
        tern_engine *e = nullptr;
        tern_error err{};
        detail::check(tern_engine_open(path.c_str(), Options(values_).get(), &e, &err), err);
        e_.reset(e);
    }

    tern_model_info info() const {
        tern_model_info i{};
        if (tern_engine_info(e_.get(), &i) != TERN_OK) throw std::logic_error("a model that was moved from");
        return i;
    }
    std::vector<int32_t> tokenize(std::string_view text, bool special = true, bool parse_special = false) const {
        return detail::counted<int32_t>([&](int32_t *out, size_t cap, size_t *n, tern_error *err) {
            return tern_tokenize(e_.get(), text.data(), text.size(), special, parse_special, out, cap, n, err);
        });
    }
    std::string detokenize(const std::vector<int32_t> &ids, bool special = false) const {
        std::string out;
        std::vector<char> buf(256);
        for (int32_t id : ids) {
            size_t n = tern_token_bytes(e_.get(), id, special, buf.data(), buf.size());
            if (n > buf.size()) {
                buf.resize(n);
                n = tern_token_bytes(e_.get(), id, special, buf.data(), buf.size());
            }
            out.append(buf.data(), n);
        }
        return out;
    }
    /* The prompt of a conversation; messages and tools are JSON, as OpenAI's API has them. */
    std::vector<int32_t> chat_tokens(const std::string &messages, const std::string &tools = "") const {
        tern_chat_options c{};
        tern_chat_options_defaults(&c);
        c.messages = messages.c_str();
        c.tools = tools.empty() ? nullptr : tools.c_str();
        return detail::counted<int32_t>([&](int32_t *out, size_t cap, size_t *n, tern_error *err) {
            return tern_chat_tokens(e_.get(), nullptr, 0, &c, out, cap, n, err);
        });
    }
    /* The prompt of one message of the user. */
    std::vector<int32_t> user_tokens(const std::string &text) const {
        const tern_message m{"user", text.c_str()};
        return detail::counted<int32_t>([&](int32_t *out, size_t cap, size_t *n, tern_error *err) {
            return tern_chat_tokens(e_.get(), &m, 1, nullptr, out, cap, n, err);
        });
    }

    Session session(const Parameters &values = {}) const { return Session(*this, values); }

    /* The answer to a message of the user, piece by piece; and whole. */
    tern_generate_result chat(const std::string &text, const OnText &on_text, const Form &form = {}) const {
        Session s(*this);
        s.prefill(user_tokens(text));
        return s.generate(on_text, form);
    }
    std::string chat(const std::string &text, const Form &form = {}) const {
        Session s(*this);
        s.prefill(user_tokens(text));
        return s.generate(form);
    }
    /* How a text goes on. */
    std::string complete(std::string_view text, const Form &form = {}) const {
        Session s(*this);
        s.prefill(tokenize(text));
        return s.generate(form);
    }
    /* A text as a vector of length 1. */
    std::vector<float> embed(std::string_view text, bool mean = false) const {
        Session s(*this);
        std::vector<int32_t> ids = tokenize(text);
        std::vector<float> out(static_cast<size_t>(info().n_embd));
        tern_error err{};
        detail::check(tern_session_embed(s.get(), ids.data(), ids.size(), mean, out.data(), out.size(), &err), err);
        return out;
    }

    const Parameters &parameters() const noexcept { return values_; }
    tern_engine *get() const noexcept { return e_.get(); }

  private:
    Parameters values_;
    std::unique_ptr<tern_engine, detail::Closer<tern_engine_close>> e_;
};

inline Session::Session(const Model &model, const Parameters &values) : options_(model.parameters()) {
    for (const auto &[name, value] : values) options_.set(name, value);
    tern_session *s = nullptr;
    tern_session_options so{};
    tern_error err{};
    detail::check(tern_options_answer_sized(options_.get(), &so, sizeof so, nullptr, 0, &err), err);
    detail::check(tern_session_open(model.get(), &so, &s, &err), err);
    s_.reset(s);
}

/* Makes a package, which is there whole or not at all. progress gets a stage and a fraction; false ends it. */
inline tern_pack_report pack(const std::string &src, const std::string &out, tern_pack_options options,
                             const std::function<bool(const char *, double)> &progress = nullptr) {
    struct Call {
        const std::function<bool(const char *, double)> &progress;
        std::exception_ptr thrown;
    } call{progress, nullptr};
    tern_hooks hooks{};
    tern_hooks_defaults(&hooks);
    if (options.hooks) hooks = *options.hooks;
    if (progress) {
        hooks.user = &call;
        hooks.progress = [](void *user, const char *stage, double fraction) -> bool {
            auto *c = static_cast<Call *>(user);
            try {
                return c->progress(stage, fraction);
            } catch (...) {
                c->thrown = std::current_exception();
                return false;
            }
        };
        options.hooks = &hooks;
    }
    tern_pack_report report{};
    tern_error err{};
    tern_status st = tern_pack(src.c_str(), out.c_str(), &options, &report, &err);
    if (call.thrown) std::rethrow_exception(call.thrown);
    detail::check(st, err);
    return report;
}

inline tern_pack_report pack(const std::string &src, const std::string &out) {
    tern_pack_options options{};
    tern_pack_options_defaults(&options);
    return pack(src, out, options);
}

} // namespace tern
#endif
