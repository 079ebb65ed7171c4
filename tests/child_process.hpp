// Runs work in a child process: work that gives up privileges, descriptors or memory, or ends in a signal.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <exception>

/// Runs `work` in a child, and returns true if `work` returned true. Exceptions do not leave the child, so that it does
/// not run the remaining tests.
template <class Work> bool true_in_child(Work&& work) {
    const pid_t child = ::fork();
    if (child < 0) return false;
    if (child == 0) {
        bool well = false;
        try {
            well = work();
        } catch (const std::exception&) {
        }
        ::_exit(well ? 0 : 1);
    }
    int status = -1;
    return ::waitpid(child, &status, 0) == child && status == 0;
}
