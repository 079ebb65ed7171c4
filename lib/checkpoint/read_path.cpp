// Opens paths of the file system.
#include "checkpoint/contents.hpp"
#include "checkpoint/sniff.hpp"
#include "checkpoint/twin.hpp"
#include "safetensors/index.hpp"

#include <safemap/file.hpp>

#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::checkpoint {

namespace {

/// By name, so that one that is damaged is told as such; else by content, whatever its name.
bool is_index(const Source& source) {
    const std::string_view name = source.name();
    if (name.ends_with(".index.json")) return true;
    return !name.ends_with(".safetensors") && sniff(source).content == Content::json && safetensors::is_index(source);
}

/// A save has replaced what a folder holds while it was read.
struct Replaced {};

/// Passes faults on, unless they are those of a folder that is being replaced.
class SettledSink final : public FaultSink {
public:
    SettledSink(FaultSink& next, const Folder& folder) : next_(next), folder_(folder) {}
    void fault(Error error) override {
        if (folder_.changed()) throw Replaced();
        next_.fault(std::move(error));
    }

private:
    FaultSink& next_;
    const Folder& folder_;
};

/// Of a folder that is replaced meanwhile, what is read may be of two models, or gone: then it is read again.
Contents read_settled(const std::filesystem::path& path, Mapping mapping, const OpenOptions& options,
                      FaultSink& faults) {
    constexpr int most_attempts = 20;
    for (int attempt = 1;; ++attempt) {
        const auto folder = open_folder(path, mapping);
        if (attempt == most_attempts) {
            Contents contents = read_folder(*folder, options, faults);
            contents.folder = folder;
            return contents;
        }
        try {
            SettledSink settled(faults, *folder);
            Contents contents = read_folder(*folder, options, settled);
            contents.folder = folder;
            if (!folder->changed()) return contents;
        } catch (const Replaced&) {
            continue;
        } catch (const Error&) {
            if (!folder->changed()) throw;
        }
    }
}

}  // namespace

Contents read_path(const std::filesystem::path& path, const OpenOptions& options, FaultSink& faults) {
    const Mapping mapping = mapping_of(options.access);
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return read_settled(path, mapping, options, faults);

    const auto source = open_file(path, mapping);
    if (!is_index(*source)) {
        Contents contents = read_file(source, options, faults);
        note_twin(path, contents);
        return contents;
    }
    const auto parent = path.parent_path();
    return read_shards(*open_folder(parent.empty() ? "." : parent, mapping), source, options, faults);
}

}  // namespace safemap::SAFEMAP_ABI::checkpoint
