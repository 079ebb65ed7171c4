// Several processes of one `convert`, as mpirun and srun start them. Only many_nodes_mpi.cpp knows MPI; without it, a
// process is always alone.
#pragma once

#include <safemap/advanced/team.hpp>
#include <safemap/error.hpp>

namespace safemap::cli {

/// The processes that were started together with this one. There is one object, in run().
class Nodes {
public:
    Nodes() = default;
    /// Waits for the others and ends MPI: a launcher kills all processes when the first one exits with an error, which
    /// must not be before the process that prints has done so.
    ~Nodes();
    Nodes(const Nodes&) = delete;
    Nodes& operator=(const Nodes&) = delete;

    /// Returns true if the launcher says that this is not the first process. Only begin() knows whether MPI agrees.
    static bool is_follower() noexcept;
    /// Begins MPI if this process was started by a launcher of MPI. Returns true if another process speaks for it.
    static bool begin();
    /// Returns the team for save(), or null if this process is alone. From now on, save() tells of errors.
    static Team* team_for_save() noexcept;
    /// Ends the other processes with this error if save() has not begun. Throws the error that all of them report.
    static void tell(const Error& error);
};

}  // namespace safemap::cli
