// safemap completions: prints what a shell reads to complete commands and options.
#include "command.hpp"
#include "shell_texts.hpp"

#include <safemap/advanced/text.hpp>

#include <fmt/core.h>

namespace safemap::cli {
namespace {

class Completions final : public Command {
public:
    Completions() { common.opens = false; }

    void declare(CLI::App& app) override {
        app.add_option("SHELL", shell_, "bash, zsh or fish")->required()->type_name("");
    }

    int run(Console& console) override {
        const std::string script = this->script();
        if (!console.json()) {
            console.result(script);
            return 0;
        }
        JsonWriter json;
        json.begin_object().member("shell", shell_).member("script", script).end_object();
        console.result(json);
        return 0;
    }

private:
    std::string script() const {
        if (shell_ == "bash") return bash_completion();
        if (shell_ == "zsh") return zsh_completion();
        if (shell_ == "fish") return fish_completion();
        throw Error(Errc::invalid_argument, fmt::format("'{}' is not bash, zsh or fish", printable(shell_)));
    }

    std::string shell_;
};

}  // namespace

std::unique_ptr<Command> make_completions() { return std::make_unique<Completions>(); }

}  // namespace safemap::cli
