// The table of dangers. Tested by tests/torch/dangers_test.cpp.
#include "torch/dangers.hpp"

#include "torch/named_globals.hpp"

namespace safemap::SAFEMAP_ABI::torch {

Judgement judge(const PickleGraph::Global& global) noexcept {
    if (runs_code(global)) return {Verdict::runs_code, "runs code that the file chooses"};
    return {Verdict::unknown, "a class or function that safemap does not know"};
}

}  // namespace safemap::SAFEMAP_ABI::torch
