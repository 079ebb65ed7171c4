// Reads the shards that an index names, headers in parallel, and checks that the index and the shards agree.
#include "base/folder.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "base/watch.hpp"
#include "names/model_names.hpp"
#include "open/formats.hpp"
#include "open/layouts.hpp"
#include "open/read.hpp"
#include "safetensors/index.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_set>

namespace safemap::SAFEMAP_ABI::open {

namespace {

using safetensors::Index;

/// A shard: the tensors that the index places in it (numbers in weight_map), its contents and its faults.
struct Shard {
    std::string name = {};
    std::uint32_t number = 0;  // number in the index
    std::vector<std::uint32_t> wanted = {};
    Contents contents = {};
    std::vector<Error> faults = {};
    std::string path = {};
    bool missing = false;
    std::string found = {};  // the kind of what has a missing shard's name: "a broken link"
    bool beside = false;     // a shard of the same set as others, which the index does not name
};

/// A sink that says what an index is that is not JSON.
class IndexFaults final : public FaultSink {
public:
    IndexFaults(FaultSink& next, const Source& index) : next_(next), index_(index) {}
    void fault(Error error) override {
        const bool is_other = error.code() == Errc::index_not_json;
        next_.fault(is_other ? described(error, index_, Content::json, "an index, because of its name") : error);
    }

private:
    FaultSink& next_;
    const Source& index_;
};

/// Returns the shards that have a tensor, by file name.
std::vector<Shard> shards_of(const Index& index) {
    std::vector<Shard> shards(index.shards.size());
    for (std::uint32_t i = 0; i < shards.size(); ++i) {
        shards[i].name = index.shards[i];
        shards[i].number = i;
    }
    for (std::uint32_t i = 0; i < index.weight_map.size(); ++i) shards[index.weight_map[i].shard].wanted.push_back(i);
    // If a name is repeated, a shard may have no tensor left.
    std::erase_if(shards, [](const Shard& shard) { return shard.wanted.empty(); });
    std::sort(shards.begin(), shards.end(), [](const Shard& a, const Shard& b) { return a.name < b.name; });
    return shards;
}

/// Adds the shards that the index does not name, of sets of which it names some.
void add_shards_beside(const Folder& folder, const Index& index, std::vector<Shard>& shards) {
    const std::vector<names::ShardSet> sets = names::shard_sets(index.shards);
    if (std::all_of(sets.begin(), sets.end(), [](const names::ShardSet& set) { return set.complete(); })) return;
    std::vector<std::string> names;
    try {
        names = folder.list();
    } catch (const Error& error) {
        if (error.code() != Errc::permission_denied) throw;
    }
    for (std::string& name : names::shards_beside(index.shards, names)) {
        Shard& shard = shards.emplace_back();
        shard.name = std::move(name);
        shard.number = static_cast<std::uint32_t>(index.shards.size());  // the index places no tensor in it
        shard.beside = true;
    }
}

void read_shard(const Folder& folder, const OpenOptions& options, Shard& shard, FaultSink& faults) {
    const auto source = folder.open(shard.name);
    shard.missing = source == nullptr;
    shard.path = source ? source->name() : folder.name() + "/" + shard.name;
    if (source) shard.contents = read_file(source, options, faults);
    else shard.found = folder.other_kind(shard.name);
    shard.contents.tree = state::Tree();  // a checkpoint of several files has none
}

/// A collector of the tensors that the index names. It takes them from the shards, in order.
class ShardMerge {
    auto name_of() const {
        return [this](std::uint32_t i) { return std::string_view(index_.weight_map[i].tensor); };
    }

public:
    ShardMerge(const Index& index, FaultSink& faults)
        : index_(index), faults_(faults), found_(index.weight_map.size()) {
        names_.add_all(static_cast<std::uint32_t>(index.weight_map.size()), name_of(), [](auto, auto) {});
        joined_.contents.tensors.reserve(index.weight_map.size());
    }

    void add(Shard& shard) {
        if (shard.missing) {
            faults_.fault(fault_of_missing(shard));
            return;
        }
        const bool sound = shard.faults.empty();
        for (Error& fault : shard.faults) faults_.fault(std::move(fault));
        auto parts = noted_parts_ ? std::nullopt : note_of_parts(shard.contents, shard.name);
        take_tensors(shard);
        if (parts) joined_.contents.notes.push_back(std::move(*parts));
        noted_parts_ = noted_parts_ || parts.has_value();
        // Tensors missing from a faulty shard are a consequence of its faults, and are not reported.
        if (sound) require_wanted(shard);
        joined_.add(shard.contents, shard.name);
    }

    /// Lists the tensors of a shard that the index does not name. They are left out, and so is the shard.
    void list(Shard& shard) {
        if (shard.missing) return;
        if (!shard.faults.empty()) {
            joined_.contents.notes.push_back(
                "the index does not name " + shard.name +
                ", though it names other shards of the set, and it cannot be read: " + shard.faults.front().what());
            return;
        }
        take_tensors(shard);
    }

    /// Takes the names of all missing shards. The fault of the first one lists them: open() throws only that.
    void expect_missing(FileNames names) { missing_ = std::move(names); }

    /// Returns everything that was added.
    Contents take() { return std::move(joined_.contents); }

private:
    Error fault_of_missing(const Shard& shard) {
        std::string what = "the index places " + counted(shard.wanted.size(), "tensor") + " in it, but " +
                           (shard.found.empty() ? "there is no such file" : "it is " + shard.found);
        if (missing_.size() > 1)
            what += "; " + std::to_string(missing_.size()) + " of " + std::to_string(index_.shards.size()) +
                    " shards are missing: " + listed(missing_);
        missing_.clear();
        Error error(Errc::shard_missing, std::move(what));
        error.with_path(shard.path).with_hint("a download or a copy may not have finished: fetch what is missing");
        return error;
    }

    /// Returns true if the index places that name in this shard. Marks the name as found.
    bool claim(const std::string& name, const Shard& shard) {
        const auto number = names_.find(name, name_of());
        if (!number || index_.weight_map[*number].shard != shard.number) return false;
        found_[*number] = true;
        return true;
    }

    void take_tensors(Shard& shard) {
        std::map<std::string_view, const AliasGroup*> groups;
        for (const AliasGroup& group : shard.contents.aliases) groups.emplace(group.front(), &group);
        std::size_t elsewhere = 0;
        const std::size_t before = joined_.contents.unindexed.size();
        for (LazyTensor& tensor : shard.contents.tensors) {
            const auto group = groups.find(tensor.name());
            const bool named = group == groups.end() ? take_if_claimed(tensor, shard)
                                                     : take_by_any_name(tensor, *group->second, shard);
            if (named) continue;
            if (names_.find(tensor.name(), name_of())) ++elsewhere;
            else leave_out(tensor.name(), shard);
        }
        if (elsewhere > 0)
            joined_.contents.notes.push_back(shard.name + " holds " + counted(elsewhere, "tensor") +
                                             " that the index places in another shard, from which " +
                                             (elsewhere == 1 ? "it is read" : "they are read"));
        const std::size_t unnamed = joined_.contents.unindexed.size() - before;
        if (unnamed > 0)
            joined_.contents.notes.push_back(shard.name + " holds " + counted(unnamed, "tensor") +
                                             " that the index does not name; the first is " +
                                             safemap::quoted(joined_.contents.unindexed[before].name) +
                                             "; `safemap repair` writes an index with all of them");
    }

    void leave_out(const std::string& name, const Shard& shard) {
        joined_.contents.unindexed.push_back({.name = name, .shard = shard.path});
        joined_.contents.skipped.push_back(
            {.name = name, .type = "Tensor", .why = "the index does not name it; " + shard.name + " holds it"});
    }

    bool take_if_claimed(LazyTensor& tensor, const Shard& shard) {
        if (!claim(tensor.name(), shard)) return false;
        joined_.contents.tensors.push_back(std::move(tensor));
        return true;
    }

    bool take_by_any_name(const LazyTensor& tensor, const AliasGroup& names, const Shard& shard) {
        AliasGroup claimed;
        for (const std::string& name : names)
            if (claim(name, shard)) claimed.push_back(name);
        if (claimed.empty()) return false;
        joined_.contents.tensors.push_back(claimed.front() == tensor.name() ? tensor : tensor.renamed(claimed.front()));
        if (claimed.size() > 1) joined_.contents.aliases.push_back(std::move(claimed));
        return true;
    }

    void require_wanted(const Shard& shard) {
        std::unordered_set<std::string_view, NameHash> skipped;
        for (const SkippedObject& object : shard.contents.skipped) skipped.insert(object.name);
        for (const std::uint32_t number : shard.wanted) {
            if (found_[number] || skipped.contains(index_.weight_map[number].tensor)) continue;
            faults_.fault(
                std::move(Error(Errc::shard_lacks_tensor, "the index places it in this shard, which does not have it")
                              .with_path(shard.path)
                              .with_tensor(index_.weight_map[number].tensor)));
        }
    }

    const Index& index_;
    FaultSink& faults_;
    NameIndex names_;
    std::vector<bool> found_;
    FileNames missing_ = {};
    bool noted_parts_ = false;  // a note names the first shard that has some
    Joined joined_;
};

/// Returns the strings of the index, and the strings of the shards with other keys.
state::Metadata merged_metadata(const Index& index, const state::Metadata& of_shards) {
    std::map<std::string, std::string> merged(index.metadata.begin(), index.metadata.end());
    merged.insert(of_shards.begin(), of_shards.end());
    return {merged.begin(), merged.end()};
}

/// Merges the metadata, and takes the structure document out of it.
void take_metadata(const Index& index, const std::shared_ptr<const Source>& source, const OpenOptions& options,
                   FaultSink& faults, Contents& contents) {
    state::Metadata of_shards = std::move(contents.metadata);
    contents.metadata = merged_metadata(index, of_shards);
    contents.has_metadata = contents.has_metadata || !index.metadata.empty();
    const std::size_t pairs = contents.metadata.size();
    take_structure(contents, options.policy, faults);
    if (contents.metadata.size() == pairs && !options.ema) return;
    contents.raw_metadata = [source, of_shards = std::move(of_shards)] {
        return about_file(source->name(), [&] {
            ThrowFirst first;
            source->require_unchanged();
            const Index again = safetensors::read_index(*source, first);
            source->require_unchanged();
            return merged_metadata(again, of_shards);
        });
    };
}

void compare_total_size(const Index& index, Contents& contents) {
    std::uint64_t total = 0;
    for (const LazyTensor& tensor : contents.tensors) total += tensor.nbytes();
    if (index.total_size && *index.total_size != total)
        contents.notes.push_back("the index says total_size " + std::to_string(*index.total_size) +
                                 ", but its tensors have " + bytes_text(total));
}

/// Reports names that the index has more than once. Python takes the last of them; only the strict policy refuses them.
void judge_repeated(const Index& index, Policy policy, FaultSink& faults, Contents& contents) {
    for (const std::string& key : index.repeated_keys) {
        const std::string what = "the index has the key " + safemap::quoted(key) + " more than once";
        if (policy == Policy::strict) faults.fault({Errc::duplicate_name, what});
        else contents.notes.push_back(what + "; the last one counts");
    }
    if (index.repeated.empty()) return;
    const std::string& first = index.weight_map[index.repeated.front()].tensor;
    if (policy != Policy::strict) {
        contents.notes.push_back("the weight_map names " + safemap::quoted(first) +
                                 (index.repeated.size() == 1 ? std::string() : " and others") +
                                 " more than once; the last shard named counts");
        return;
    }
    for (const std::uint32_t number : index.repeated) {
        Error error(Errc::duplicate_name, "the weight_map names it more than once");
        faults.fault(std::move(error.with_tensor(index.weight_map[number].tensor)));
    }
}

}  // namespace

Contents read_shards(const Folder& folder, const std::shared_ptr<const Source>& index_source,
                     const OpenOptions& options, FaultSink& faults) {
    PathSink with_path(faults, index_source->name());
    IndexFaults index_faults(with_path, *index_source);
    const Index index = safetensors::read_index(*index_source, index_faults);
    std::vector<Shard> shards = shards_of(index);
    add_shards_beside(folder, index, shards);
    auto found = read_each(shards.size(), options.work,
                           [&](std::size_t i, FaultSink& own) { read_shard(folder, options, shards[i], own); });

    ShardMerge merge(index, faults);
    FileNames missing;
    for (const Shard& shard : shards)
        if (shard.missing && !shard.beside) missing.push_back(shard.name);
    merge.expect_missing(std::move(missing));
    for (std::size_t i = 0; i < shards.size(); ++i) {
        Shard& shard = shards[i];
        shard.faults = std::move(found[i]);
        if (shard.beside) merge.list(shard);
        else merge.add(shard);
    }
    Contents contents = merge.take();
    compare_total_size(index, contents);
    judge_repeated(index, options.policy, with_path, contents);
    take_metadata(index, index_source, options, with_path, contents);
    return contents;
}

}  // namespace safemap::SAFEMAP_ABI::open
