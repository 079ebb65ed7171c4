// Reads several files that are one checkpoint without an index.
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "base/watch.hpp"
#include "names/model_names.hpp"
#include "open/read.hpp"
#include "pickle/memory_share.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

/// The file that owns each name. A name has one owner.
class Names {
public:
    /// Returns the number of the file that owns the name. If the name has no owner, `file` becomes the owner; the name
    /// must then stay where it is in memory.
    std::uint32_t claim(std::string_view name, std::uint32_t file) {
        const auto next = static_cast<std::uint32_t>(owned_.size());
        const auto number = index_.add(name, next, NamesOf(owned_));
        if (number == next) owned_.emplace_back(name, file);
        return owned_[number].second;
    }

private:
    NameIndex index_;
    std::vector<std::pair<std::string_view, std::uint32_t>> owned_;
};

class Merge {
public:
    Merge(std::span<const std::shared_ptr<const Source>> sources, std::size_t tensors, FaultSink& faults)
        : sources_(sources), faults_(faults) {
        joined_.contents.tensors.reserve(tensors);  // claimed names must not move
    }

    void add(Contents& one, std::vector<Error>& faults, std::uint32_t file) {
        for (Error& fault : faults) faults_.fault(std::move(fault));
        if (one.sources.empty()) return;  // nothing of the file could be read
        std::vector<LazyTensor>& tensors = joined_.contents.tensors;
        for (LazyTensor& tensor : one.tensors) {
            tensors.push_back(std::move(tensor));
            if (!claim(tensors.back().name(), file)) tensors.pop_back();
        }
        for (AliasGroup& group : one.aliases) {
            AliasGroup kept;
            kept.reserve(group.size());
            for (std::string& name : group) {
                kept.push_back(std::move(name));
                if (!claim(kept.back(), file)) kept.pop_back();
            }
            if (kept.size() > 1) joined_.contents.aliases.push_back(std::move(kept));
        }
        joined_.add(one, sources_[file]->name());
    }

    Contents take() { return std::move(joined_.contents); }

private:
    bool claim(std::string_view name, std::uint32_t file) {
        const std::uint32_t owner = names_.claim(name, file);
        if (owner == file) return true;
        Error error(Errc::duplicate_name, "duplicate name, also in " + excerpt(sources_[owner]->name()));
        faults_.fault(std::move(error.with_path(sources_[file]->name()).with_tensor(name)));
        return false;
    }

    std::span<const std::shared_ptr<const Source>> sources_;
    FaultSink& faults_;
    Names names_;
    Joined joined_;
};

/// Throws shard_missing if some of the files are numbered shards of one model, and others of its shards are not given.
void require_all_shards(std::span<const std::shared_ptr<const Source>> sources) {
    std::vector<std::string> names;
    for (const auto& source : sources) names.push_back(source->name().substr(source->name().rfind('/') + 1));
    for (const names::ShardSet& set : names::shard_sets(names))
        if (!set.complete()) throw names::lacks_shards(set).with_path(sources.front()->name());
}

}  // namespace

std::vector<std::vector<Error>> read_each(std::size_t files, const Work& work,
                                          const std::function<void(std::size_t, FaultSink&)>& read) {
    std::vector<std::vector<Error>> faults(files);
    const Watch watch(work.monitor, "opening", 0);
    parallel_for_pickles(files, work.threads, [&](std::size_t i) {
        watch.check_stop();
        CollectFaults found;
        reporting(found, [&] { read(i, found); });
        faults[i] = found.take();
    });
    return faults;
}

Contents read_files(std::span<const std::shared_ptr<const Source>> sources, const OpenOptions& options,
                    FaultSink& faults) {
    if (sources.empty()) throw Error(Errc::invalid_argument, "no files to open");
    require_all_shards(sources);
    std::vector<Contents> files(sources.size());
    std::vector<std::vector<Error>> found = read_each(files.size(), options.work, [&](std::size_t i, FaultSink& own) {
        files[i] = read_file(sources[i], options, own);
        files[i].tree = state::Tree();  // a checkpoint of several files has none
    });

    std::size_t tensors = 0;
    for (const Contents& file : files) tensors += file.tensors.size();
    Merge merge(sources, tensors, faults);
    for (std::uint32_t i = 0; i < files.size(); ++i) merge.add(files[i], found[i], i);
    return merge.take();
}

}  // namespace safemap::SAFEMAP_ABI::open
