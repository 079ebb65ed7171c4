// The report of a conversion: what save() returns and what is known around it, as JSON and as text.
#pragma once

#include "output.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/save.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

/// The parts of the report that SaveReport does not have.
struct Around {
    std::string from = {};  ///< the paths of IN, for people
    std::vector<AliasGroup> aliases = {};
    std::vector<SkippedObject> skipped = {};  ///< `quantized` is set only if the values of the tensor are selected
    std::vector<std::string> notes = {};
    Findings findings = {};
    std::optional<TrainingLayout> layout = {};
    Weights weights = Weights::automatic;  ///< the written weights, if `layout` is set
    bool planned = false;                  ///< the plan is printed
    std::size_t planned_notes = 0;         ///< number of notes of the save that the plan has
    double seconds = 0;
    std::uint64_t peak_anon_bytes = 0;
    bool dry_run = false;
    bool verbose = false;  ///< all notes are printed, not only those that a person can act on

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

/// Returns the report as JSON, with the parts of the checkpoint that was opened.
JsonWriter convert_json(const SaveReport& saved, const Around& around, const Checkpoint& opened);
/// Returns the report before the first byte is written. It has every note in a dry run.
std::string plan_text(const SaveReport& saved, const Around& around, const std::string& out, bool align_tensors);
/// Returns a line on the conversion, and after it what the plan has not said: skipped tensors, values that a cast
/// cannot hold, notes.
std::string outcome_text(const SaveReport& saved, const Around& around, const std::string& out);

/// Returns "model.pt → out/: 113 tensors, 2 files, 658.7 kB", for example with "would write " before the numbers.
std::string saved_text(const std::string& from, const std::string& out, std::string_view verb, const SaveReport& saved);

/// Returns true if a person can act on a note of the library, or on a reason why an object is skipped: choose another
/// option or file, or look at one. All others say how a file was read; --verbose prints them, and JSON has them.
bool is_actionable(std::string_view note);

}  // namespace safemap::cli
