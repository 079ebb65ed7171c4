// Judges the pickles of files that may not open as a checkpoint.
#include "base/faults.hpp"
#include "open/read.hpp"

namespace safemap::SAFEMAP_ABI::open {

Findings examine(const std::filesystem::path& path, const OpenOptions& options) {
    CollectFaults faults;
    Contents contents;
    OpenOptions lenient = options;
    lenient.strict_globals = false;
    reporting(faults, [&] { contents = read_path(path, lenient, faults); });
    return std::move(contents.findings);
}

}  // namespace safemap::SAFEMAP_ABI::open
