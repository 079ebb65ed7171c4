// Forks, saves in the child, and lets it kill itself before its nth system call.
#include "write/killed_save.hpp"

#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"

#include <safemap/checkpoint.hpp>

#include <sys/wait.h>
#include <unistd.h>

bool killed_at(int nth, const std::filesystem::path& in, const std::filesystem::path& out,
               const safemap::SaveOptions& options) {
    const pid_t child = ::fork();
    if (child == 0) {
        const auto error = error_of([&] {
            const safemap::Checkpoint model = safemap::Checkpoint::open(in);
            ScriptedCalls calls;
            calls.die_at(nth);
            safemap::save(out, model, options);
        });
        ::_exit(error ? 99 : 0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE((WIFSIGNALED(status) || status == 0));
    return WIFSIGNALED(status);
}
