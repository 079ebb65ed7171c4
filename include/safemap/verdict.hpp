// Verdict and Finding: what the pickles of a file would do on the machine that unpickles them. docs/untrusted.md has
// the table of dangers, and says what no reading of a file can know.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The effect of unpickling, in order of danger.
enum class Verdict : std::uint8_t {
    ok,             ///< calls only functions that safemap reads as data; also for safetensors
    needs_classes,  ///< makes objects of known harmless classes: modules, configurations, optimizers
    unknown,        ///< names a class or function that safemap cannot judge, or holds a part that it cannot read
    runs_code       ///< calls or hands on a function that executes, imports, opens, or hides what it calls
};

/// Returns "ok", "needs classes", "unknown" or "runs code".
[[nodiscard]] SAFEMAP_API std::string_view name(Verdict verdict) noexcept;

/// A class or function that a pickle names and that is not plain data, or another reason for a verdict.
struct Finding {
    std::string name = {};                ///< dotted: "posix.system"
    std::string why = {};                 ///< the reason, as a sentence without a subject: "runs a program"
    Verdict severity = Verdict::unknown;  ///< never ok
    std::string record = {};              ///< the pickle, as in NamedGlobal
};

/// The findings of a file or a folder.
struct Findings {
    static constexpr std::size_t most_listed = 16'384;

    Verdict verdict = Verdict::ok;     ///< the worst severity, also of findings that are not listed
    std::vector<Finding> listed = {};  ///< the worst ones first, each name once for each reason
    std::uint64_t not_listed = 0;      ///< findings beyond the list; several files may count the same one
};

}  // namespace safemap::SAFEMAP_ABI
