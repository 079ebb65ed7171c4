// Copies extras before the tensors. Extras are small, so one thread copies them.
#include "write/copy_extras.hpp"

#include "base/faults.hpp"
#include "base/folder.hpp"
#include "base/text.hpp"
#include "io/file_folder.hpp"
#include "write/target.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>
#include <system_error>

namespace safemap::SAFEMAP_ABI::write {

namespace {

constexpr std::uint64_t block = 1 << 20;

void require_name(const ExtraFile& extra, const Layout& layout, std::set<std::string_view>& taken) {
    const std::string& name = extra.name;
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos || name == io::HiddenSibling::suffix)
        throw Error(Errc::invalid_argument, "invalid name of an extra file: " + safemap::quoted(name) +
                                                "; expected a file name without a folder");
    if (!extra.source)
        throw Error(Errc::invalid_argument, "the extra file " + safemap::quoted(name) + " has no source");
    const bool planned = std::any_of(layout.files.begin(), layout.files.end(),
                                     [&name](const PlannedFile& file) { return file.name == name; });
    if (planned || !taken.insert(name).second)
        throw Error(Errc::invalid_argument,
                    "an extra file and another file would both be named " + safemap::quoted(name));
}

/// Calls `part(offset, bytes)` for each block in turn.
template <class Part> void for_each_block(const Source& source, Part&& part) {
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(block, source.size())));
    for (std::uint64_t done = 0; done < source.size();) {
        const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), source.size() - done));
        source.read_at(done, std::span(buffer).first(size));
        part(done, std::span<const std::byte>(buffer).first(size));
        done += size;
    }
}

bool same_bytes(const Source& a, const Source& b) {
    if (a.size() != b.size()) return false;
    std::vector<std::byte> other(static_cast<std::size_t>(std::min(block, b.size())));
    bool same = true;
    for_each_block(a, [&](std::uint64_t offset, std::span<const std::byte> bytes) {
        const auto of_b = std::span(other).first(bytes.size());
        if (same) b.read_at(offset, of_b);
        same = same && std::equal(bytes.begin(), bytes.end(), of_b.begin());
    });
    return same;
}

/// Returns true if both are the same file. Also compares the bytes: files on two disks may have equal identities by
/// chance.
bool same_file(const Source& a, const Source& b) {
    return !a.identity().empty() && a.identity() == b.identity() && same_bytes(a, b);
}

class ExtrasPlanner {
public:
    ExtrasPlanner(const std::filesystem::path& out, bool overwrite) : overwrite_(overwrite) {
        std::error_code ignored;
        if (std::filesystem::is_directory(out, ignored)) there_ = open_folder(out, Mapping::never);
    }

    void add(const ExtraFile& extra) {
        if (!there_) return copy(extra);
        std::shared_ptr<const Source> old;
        try {
            old = there_->open(extra.name);
        } catch (const Error& error) {
            if (error.code() != Errc::shard_missing) throw;
            return note(extra, "the output folder has that name, but not as a regular file");
        }
        if (!old) return copy(extra);
        if (same_file(*old, *extra.source)) return;
        if (overwrite_) return copy(extra);
        if (!same_bytes(*old, *extra.source)) note(extra, "the output folder has a different file of that name");
    }

    PlannedExtras planned;

private:
    void copy(const ExtraFile& extra) { planned.files.push_back(&extra); }
    void note(const ExtraFile& extra, std::string_view why) {
        planned.notes.push_back(safemap::quoted(extra.name).append(" is not copied: ").append(why));
    }

    std::shared_ptr<const Folder> there_;  // folder that exists at the target, if any
    bool overwrite_;
};

}  // namespace

void PlannedExtras::report(SaveReport& report) const {
    for (const ExtraFile* extra : files) report.extras.push_back(extra->name);
    report.notes.insert(report.notes.end(), notes.begin(), notes.end());
}

PlannedExtras plan_extras(const std::filesystem::path& out, const SaveOptions& options, const Layout& layout) {
    if (is_one_file(out, options)) return {};
    std::set<std::string_view> taken;
    for (const ExtraFile& extra : options.extras.files) require_name(extra, layout, taken);
    ExtrasPlanner planner(out, options.overwrite);
    planner.planned.notes = options.extras.notes;
    for (const ExtraFile& extra : options.extras.files) planner.add(extra);
    return std::move(planner.planned);
}

void copy_extras(const PlannedExtras& extras, io::Staging& staging) {
    for (const ExtraFile* extra : extras.files) {
        about_file([&] { return staging.path_of(extra->name); },
                   [&] {
                       io::OutputFile file = staging.add(extra->name);
                       file.allocate(extra->source->size());
                       for_each_block(*extra->source, [&](std::uint64_t offset, std::span<const std::byte> bytes) {
                           file.write_at(offset, bytes);
                       });
                       extra->source->require_unchanged();
                       file.finish();
                   });
    }
}

}  // namespace safemap::SAFEMAP_ABI::write
