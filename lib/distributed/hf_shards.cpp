// Joins Hugging Face shards. From top to bottom:
//   FileNumbers what the names say: ranks, files of each rank, and the numbers that are missing
//   Whole       the parts of one tensor, what they must agree on, and the tensor that they make
//   ShardJoin   reads the place of every part of every file, then makes the tensors, the metadata and the notes
// Tested by tests/distributed/hf_shards_test.cpp.
#include "distributed/hf_shards.hpp"

#include "base/checked.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "distributed/agree.hpp"
#include "lazy/whole.hpp"
#include "names/file_names.hpp"
#include "names/rank_names.hpp"
#include "safetensors/digests.hpp"
#include "safetensors/sharding_info.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using names::RankedName;
using safetensors::ShardPlace;
using state::Contents;
using state::Replica;

/// The numbers in the names of all files, which are sorted. Empty if a name has none.
class FileNumbers {
public:
    explicit FileNumbers(const std::vector<HfFile>& files) {
        for (const HfFile& file : files) {
            const auto parsed = names::shard_file(file.name);
            if (parsed) parsed_.push_back(*parsed);
        }
        if (parsed_.size() < files.size()) parsed_.clear();
    }

    /// Returns a number that files of one rank have in common.
    std::uint64_t rank_of(std::uint32_t file) const { return parsed_.empty() ? file : parsed_[file].shard; }

    std::optional<std::uint64_t> world_size() const {
        if (parsed_.empty()) return std::nullopt;
        return parsed_.back().shard;
    }

    /// Throws world_mismatch if the files cannot be of one save, in which all ranks have the same number of files.
    void require_one_save(const std::vector<HfFile>& files) const {
        for (std::size_t i = 0; i < parsed_.size(); ++i) {
            const RankedName& name = parsed_[i];
            if (name.files == parsed_.front().files && name.shard > 0 && name.file > 0 && name.file <= name.files)
                continue;
            Error error(Errc::world_mismatch, i == 0 || name.files == parsed_.front().files
                                                  ? "the numbers in the name contradict each other"
                                                  : "the name says " + std::to_string(name.files) +
                                                        " files for each rank, and that of " + files.front().name +
                                                        " says " + std::to_string(parsed_.front().files));
            error.with_path(path_of(files[i]));
            throw std::move(error.with_hint("files of an older save may be in the folder: remove them"));
        }
    }

    /// Returns a sentence about the numbers that no file has, and sets `of_ranks` if whole ranks are missing. Returns
    /// an empty text if there are no gaps.
    std::string missing(bool& of_ranks) const {
        std::map<std::uint64_t, std::set<std::uint64_t>> known;  // files of each rank
        for (const RankedName& name : parsed_) known[name.shard].insert(name.file);
        const std::uint64_t last = known.empty() ? 0 : known.rbegin()->first;
        const std::uint64_t files = parsed_.empty() ? 0 : parsed_.front().files;
        of_ranks = last > known.size();
        std::uint64_t count = of_ranks ? last - known.size() : 0;
        if (!of_ranks)
            for (const auto& each : known) count += files - std::min<std::uint64_t>(files, each.second.size());
        names::MissingNames missing(std::min<std::uint64_t>(count, 8));
        for (std::uint64_t rank = known.contains(0) ? 0 : 1; rank <= last && !missing.is_full(); ++rank)
            for (std::uint64_t file = 1; file <= (of_ranks ? 1 : files) && !missing.is_full(); ++file)
                if (!known.contains(rank) || (!of_ranks && !known[rank].contains(file)))
                    missing.add(names::spelled(
                        {.kind = names::NameKind::hf_shard, .shard = rank, .file = file, .files = files}));
        missing.add_unnamed(count - missing.count());
        return count == 0 ? std::string() : "there is no " + missing.text();
    }

    static std::string path_of(const HfFile& file) {
        return file.contents.sources.empty() ? file.name : file.contents.sources.front()->name();
    }

private:
    std::vector<RankedName> parsed_;
};

/// A part of a tensor, and the file that holds it.
struct FilePart {
    Part part;
    std::uint32_t file;
};

/// The parts of one tensor in all files.
class Whole {
public:
    /// Adds a part that stands where `place` says. Throws piece_mismatch, and ranks_differ if it contradicts the part
    /// that was added first.
    void add(const ShardPlace& place, LazyTensor value, std::uint32_t file, const std::vector<HfFile>& files) {
        const std::size_t rank = value.shape().size();
        if (place.offsets.size() != rank)
            throw Error(Errc::piece_mismatch, "saved_offsets has " + counted(place.offsets.size(), "dimension") +
                                                  "; expected " + counted(rank, "dimension") + ", as the tensor has");
        if (place.global_shape && place.global_shape->size() != rank)
            throw Error(Errc::piece_mismatch, "global_shape has " + counted(place.global_shape->size(), "dimension") +
                                                  "; expected " + counted(rank, "dimension") + ", as the tensor has");
        if (!parts_.empty()) require_same(parts_.front(), value, files);
        if (place.global_shape) take_shape(*place.global_shape, file, files);
        parts_.push_back({{place.offsets, std::move(value)}, file});
    }

    std::size_t parts() const noexcept { return parts_.size(); }

    /// Returns the tensor. Moves the parts that other ranks repeat to `replicas`.
    LazyTensor make(const std::string& name, const FileNumbers& numbers, const std::vector<HfFile>& files,
                    std::vector<Replica>& replicas) {
        const Shape shape = shape_ ? *shape_ : reach();
        const Dtype dtype = parts_.front().part.value.dtype();
        drop_replicas(name, numbers, files, replicas);
        std::vector<Part> parts;
        parts.reserve(parts_.size());
        for (FilePart& each : parts_) parts.push_back(std::move(each.part));
        parts_.clear();
        return whole(name, dtype, shape, parts);
    }

private:
    static void require_same(const FilePart& first, const LazyTensor& value, const std::vector<HfFile>& files) {
        const LazyTensor& known = first.part.value;
        const Agreement agree(files[first.file].name);
        agree("the dtype", known.dtype(), value.dtype());
        agree("the number of dimensions", known.shape().size(), value.shape().size());
    }

    void take_shape(const Shape& stated, std::uint32_t file, const std::vector<HfFile>& files) {
        if (shape_) Agreement(files[shape_file_].name)("global_shape", *shape_, stated);
        shape_ = stated;
        shape_file_ = file;
    }

    /// Returns the smallest shape that holds all parts.
    Shape reach() const {
        Shape shape(parts_.front().part.start.size(), 0);
        for (const FilePart& each : parts_)
            for (std::size_t d = 0; d < shape.size(); ++d) {
                const auto end = checked_add(each.part.start[d], each.part.value.shape()[d]);
                if (!end) throw Error(Errc::shape_overflow, "saved_offsets and shape do not fit in 64 bits together");
                shape[d] = std::max(shape[d], *end);
            }
        return shape;
    }

    /// Keeps one of the parts that are at the same place in the files of several ranks: that of the lowest rank.
    void drop_replicas(const std::string& name, const FileNumbers& numbers, const std::vector<HfFile>& files,
                       std::vector<Replica>& replicas) {
        if (parts_.size() < 2) return;
        const auto order = [](const FilePart& a, const FilePart& b) {
            const int starts = compare(a.part.start, b.part.start);
            return starts != 0 ? starts < 0 : compare(a.part.value.shape(), b.part.value.shape()) < 0;
        };
        std::stable_sort(parts_.begin(), parts_.end(), order);
        std::vector<FilePart> kept;
        for (FilePart& each : parts_) {
            const bool repeats = !kept.empty() && each.part.value.element_count() > 0 && !order(kept.back(), each) &&
                                 numbers.rank_of(kept.back().file) != numbers.rank_of(each.file);
            if (!repeats) {
                kept.push_back(std::move(each));
                continue;
            }
            replicas.push_back({.name = name,
                                .first = kept.back().part.value,
                                .other = each.part.value,
                                .first_file = files[kept.back().file].name,
                                .other_file = files[each.file].name});
        }
        parts_ = std::move(kept);
    }

    static int compare(const Shape& a, const Shape& b) {
        for (std::size_t d = 0; d < a.size(); ++d)
            if (a[d] != b[d]) return a[d] < b[d] ? -1 : 1;
        return 0;
    }

    std::vector<FilePart> parts_;
    std::optional<Shape> shape_;  // as the files state it
    std::uint32_t shape_file_ = 0;
};

/// A sink that remembers that the file has faults.
class MarkUnsound final : public FaultSink {
public:
    MarkUnsound(FaultSink& next, HfFile& file) : next_(next), file_(file) {}
    void fault(Error error) override {
        file_.sound = false;
        next_.fault(std::move(error));
    }

private:
    FaultSink& next_;
    HfFile& file_;
};

/// The files that are joined, and what is known of the whole.
class ShardJoin {
public:
    ShardJoin(std::vector<HfFile> files, FaultSink& faults)
        : files_(std::move(files)), faults_(faults), numbers_(files_) {}

    Contents run() {
        reporting(faults_, [&] { numbers_.require_one_save(files_); });
        for (std::uint32_t i = 0; i < files_.size(); ++i) {
            PathSink with_path(faults_, FileNumbers::path_of(files_[i]));
            MarkUnsound marked(with_path, files_[i]);
            reporting(marked, [&] { add_file(i, marked); });
        }
        for (std::size_t i = 0; i < wholes_.size(); ++i) make(i);
        take_metadata();
        note_missing();
        Contents contents = std::move(joined_.contents);
        contents.format = Format::dcp;
        contents.layout = TrainingLayout{.kind = "hf_shards", .world_size = numbers_.world_size(), .chunks = chunks_};
        return contents;
    }

private:
    void add_file(std::uint32_t number, FaultSink& faults) {
        Contents& contents = files_[number].contents;
        const std::string* const info = state::find_value(contents.metadata, safetensors::sharding_info_key);
        if (info == nullptr) {
            if (!files_[number].sound && contents.tensors.empty()) return;
            throw Error(Errc::field_missing, "the metadata has no " + std::string(safetensors::sharding_info_key) +
                                                 ", so the places of its tensors are unknown");
        }
        const NamesOf names(contents.tensors);
        NameIndex index;
        index.add_all(names);
        std::vector<std::optional<ShardPlace>> places(contents.tensors.size());
        safetensors::read_sharding_info(
            *info, [&](std::string_view stored) { return index.find(stored, names).has_value(); },
            [&](const ShardPlace& place) {
                auto& known = places[*index.find(place.stored, names)];
                if (known && *known != place)
                    throw Error(Errc::header_bad_metadata, "there are two different places for it");
                known = place;
            });
        for (std::size_t i = 0; i < places.size(); ++i)
            reporting(faults, [&] {
                const std::string name = contents.tensors[i].name();
                // Parts need no names, and there may be very many.
                about_tensor(name, [&] { add_part(number, places[i], contents.tensors[i].renamed({})); });
            });
        // They are in the wholes now.
        std::vector<LazyTensor>().swap(contents.tensors);
        std::erase_if(contents.metadata, [](const auto& pair) { return safetensors::is_sharding_key(pair.first); });
    }

    void add_part(std::uint32_t file, const std::optional<ShardPlace>& place, LazyTensor tensor) {
        if (!place)
            throw Error(Errc::field_missing,
                        std::string(safetensors::sharding_info_key) + " has no saved_offsets for it");
        ++chunks_;
        const auto next = static_cast<std::uint32_t>(wholes_.size());
        const std::uint32_t number = names_.add(place->name, next, NamesOf(wholes_));
        if (number == next) wholes_.emplace_back(place->name, Whole());
        wholes_[number].second.add(*place, std::move(tensor), file, files_);
    }

    void make(std::size_t number) {
        auto& [name, parts] = wholes_[number];
        if (parts.parts() == 0) return;
        try {
            joined_.contents.tensors.push_back(parts.make(name, numbers_, files_, joined_.contents.replicas));
        } catch (Error& error) {
            error.with_tensor(name);
            if (exit_code(error.code()) != 1) throw;
            if (error.code() == Errc::not_covered) report_gap(std::move(error));
            else faults_.fault(std::move(error));
        }
    }

    /// Reports elements that no file holds: by the files that are missing, if names show some.
    void report_gap(Error error) {
        // A consequence of the faults of a file.
        if (std::any_of(files_.begin(), files_.end(), [](const HfFile& file) { return !file.sound; })) return;
        bool of_ranks = false;
        const std::string missing = numbers_.missing(of_ranks);
        if (missing.empty()) return faults_.fault(std::move(error));
        if (std::exchange(told_missing_, true)) return;
        Error gap(of_ranks ? Errc::rank_missing : Errc::shard_missing,
                  missing + ", and the others do not cover the tensor: " + error.message());
        gap.with_path(error.path());
        faults_.fault(std::move(gap.with_tensor(error.tensor())));
    }

    void take_metadata() {
        state::Metadata own;
        for (HfFile& file : files_) {
            for (const auto& pair : file.contents.metadata)
                if (pair.first.starts_with("safemap.") && pair.first != safetensors::digests_key &&
                    state::find_value(own, pair.first) == nullptr)
                    own.push_back(pair);
            joined_.add(file.contents, file.name);
        }
        state::Metadata& metadata = joined_.contents.metadata;
        std::erase_if(metadata, [&](const auto& pair) {
            return safetensors::is_sharding_key(pair.first) || pair.first == safetensors::digests_key ||
                   state::find_value(own, pair.first) != nullptr;
        });
        metadata.insert(metadata.end(), own.begin(), own.end());
        std::sort(metadata.begin(), metadata.end());
    }

    void note_missing() {
        bool of_ranks = false;
        const std::string missing = numbers_.missing(of_ranks);
        if (missing.empty() || told_missing_) return;
        joined_.contents.notes.push_back(missing +
                                         "; the other files cover all of their tensors, and a rank that held nothing "
                                         "has no file");
    }

    std::vector<HfFile> files_;
    FaultSink& faults_;
    FileNumbers numbers_;
    std::vector<std::pair<std::string, Whole>> wholes_;
    NameIndex names_;
    state::Joined joined_;
    std::uint64_t chunks_ = 0;
    bool told_missing_ = false;
};

}  // namespace

Contents join_hf_shards(std::vector<HfFile> files, FaultSink& faults) {
    const auto key = [](const HfFile& file) {
        const auto name = names::shard_file(file.name);
        return name ? std::tuple(name->shard, name->file, std::string_view(file.name))
                    : std::tuple(std::uint64_t{0}, std::uint64_t{0}, std::string_view(file.name));
    };
    std::stable_sort(files.begin(), files.end(), [&](const HfFile& a, const HfFile& b) { return key(a) < key(b); });
    return ShardJoin(std::move(files), faults).run();
}

}  // namespace safemap::SAFEMAP_ABI::distributed
