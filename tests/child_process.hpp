// Work that needs a process of its own: it gives up rights, descriptors or memory, or ends in a signal.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <exception>

/// Whether `work`, run in a child, gives true. The child runs none of the tests that follow, whatever it throws.
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
