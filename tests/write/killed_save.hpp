// Saves in a child process that a signal ends at a chosen system call.
#pragma once

#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/save.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

/// Saves the checkpoint `in` to `out` in another process, which dies at its nth system call. Returns false if the save
/// finished before that call.
inline bool killed_at(int nth, const std::filesystem::path& in, const std::filesystem::path& out,
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
