// Judges how a pickle uses the classes and functions that it names.
#pragma once

#include "state/findings.hpp"
#include "torch/dangers.hpp"

#include <functional>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// The judgement of each global of a pickle, and findings about calls whose function no name gives.
struct PickleJudgement {
    std::vector<std::pair<PickleGraph::Id, Judgement>> globals = {};  ///< by node; data are `ok`
    std::vector<Finding> calls = {};                                  ///< without records
};

/// Judges a pickle. `is_data` tells which globals are read as data. Linear in the size of the pickle.
PickleJudgement judge_pickle(const PickleGraph& pickle, const std::function<bool(const PickleGraph::Global&)>& is_data);

}  // namespace safemap::SAFEMAP_ABI::torch
