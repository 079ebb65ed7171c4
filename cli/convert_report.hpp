// The report of a conversion: what save() returns and what is known around it, as JSON and as text.
#pragma once

#include "output.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/save.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace safemap::cli {

/// The parts of the report that SaveReport does not have.
struct Around {
    std::vector<AliasGroup> aliases = {};
    std::vector<SkippedObject> skipped = {};  ///< `quantized` is set only if the values of the tensor are selected
    std::vector<std::string> notes = {};
    std::optional<TrainingLayout> layout = {};
    Weights weights = Weights::automatic;  ///< the written weights, if `layout` is set
    std::size_t planned_notes = 0;         ///< number of notes that the plan has printed
    double seconds = 0;
    std::uint64_t peak_anon_bytes = 0;
    bool dry_run = false;

    /// Returns the predicted peak: the peak so far, plus the buffers of the save. All else is allocated before the
    /// plan.
    std::uint64_t predicted_anon_bytes(const SaveReport& saved) const;
    /// Returns all skipped objects. A quantised tensor is skipped twice: on opening, which knows the reason, and on
    /// saving its values. It is listed once, and not at all if its values are saved.
    std::vector<SkippedObject> all_skipped(const SaveReport& saved) const;
    /// Returns the groups of tied tensors, without skipped names.
    std::vector<AliasGroup> written_aliases(const SaveReport& saved) const;
    std::vector<std::string> all_notes(const SaveReport& saved) const;
};

JsonWriter convert_json(const SaveReport& saved, const Around& around);
/// Returns the report before the first byte is written.
std::string plan_text(const SaveReport& saved, const Around& around, const std::string& out, bool align_tensors);
std::string outcome_text(const SaveReport& saved, const Around& around, const std::string& out);

}  // namespace safemap::cli
