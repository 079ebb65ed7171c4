// Without MPI, a process is always alone.
#include "many_nodes.hpp"

namespace safemap::cli {

Nodes::~Nodes() = default;

bool Nodes::is_follower() noexcept { return false; }

bool Nodes::begin() { return false; }

Team* Nodes::team_for_save() noexcept { return nullptr; }

void Nodes::tell(const Error& /*error*/) {}

}  // namespace safemap::cli
