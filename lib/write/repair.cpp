// repair(): reads all that can be read without guessing, and writes it as the reference would.
#include "base/faults.hpp"
#include "base/folder.hpp"
#include "base/text.hpp"
#include "io/file_folder.hpp"
#include "names/model_names.hpp"
#include "safetensors/digests.hpp"
#include "safetensors/header.hpp"
#include "safetensors/index.hpp"
#include "state/contents.hpp"
#include "write/shards.hpp"
#include "write/target.hpp"

#include <safemap/advanced/edit.hpp>
#include <safemap/advanced/file.hpp>
#include <safemap/advanced/stored_tensor.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using safetensors::TensorSpec;
using Metadata = std::map<std::string, std::string>;

/// The contents of the files, and the faults found in them.
struct Found {
    std::vector<LazyTensor> tensors;
    std::vector<std::uint32_t> shards;  ///< for an index: the shard of each tensor
    Metadata metadata;
    std::vector<std::string> repairs;
    std::string stem = "model";  ///< for a folder: the stem of its model
};

/// Returns the head that the reference would have written for these tensors. Sets `in_order` to true if they already
/// have the reference's order.
std::string head_of(const safetensors::Header& header, bool& in_order) {
    std::vector<Shape> shapes;
    std::vector<TensorSpec> specs;
    shapes.reserve(header.tensors.size());
    specs.reserve(header.tensors.size());
    for (const safetensors::TensorInfo info : header.tensors) {
        shapes.push_back(info.shape);
        specs.push_back({.name = info.name, .dtype = info.dtype, .shape = nullptr});
    }
    for (std::size_t i = 0; i < specs.size(); ++i) specs[i].shape = &shapes[i];
    const std::vector<std::uint32_t> order = safetensors::file_order(specs);
    in_order = std::is_sorted(order.begin(), order.end());
    std::vector<TensorSpec> ordered;
    for (const std::uint32_t i : order) ordered.push_back(specs[i]);
    return safetensors::write_header(ordered, header.metadata, header.has_metadata, 8, safetensors::longest_header);
}

class FileReader {
public:
    FileReader(const std::shared_ptr<const Source>& source, std::string name, const OpenOptions& options, Found& found)
        : source_(source), name_(std::move(name)), found_(found) {
        const auto add = [](Error& error) {
            if (error.code() == Errc::header_too_large || error.code() == Errc::header_past_end)
                error.with_hint("safemap inspect says what the file is; convert reads files of other formats");
        };
        adding(add, [&] {
            ThrowFirst faults;
            header_ = safetensors::read_header(*source, safetensors::Rules::repair, options.max_header_bytes, faults);
        });
    }

    const safetensors::Header& header() const noexcept { return header_; }

    void tell_repairs() {
        const std::size_t before = found_.repairs.size();
        for (const Error& fault : header_.tolerated) tell(fault.what());
        bool in_order = true;
        const std::string head = head_of(header_, in_order);
        if (!in_order) tell("the tensors are not in the reference order: by dtype, then by name");
        if (header_.data_offset % 8 != 0)
            tell("the data begins at byte " + std::to_string(header_.data_offset) + ", which is not a multiple of 8");
        if (found_.repairs.size() == before && !same_head(head))
            tell("the header's text differs from the text that the reference writes, for example in spaces or escapes");
    }

    void add_tensors() {
        for (safetensors::TensorInfo info : header_.tensors)
            found_.tensors.emplace_back(std::string(info.name),
                                        stored_run(info.dtype, std::move(info.shape), source_, info.data.offset));
    }

private:
    void tell(const std::string& what) { found_.repairs.push_back(name_ + ": " + what); }

    bool same_head(const std::string& head) const {
        if (header_.data_offset != head.size()) return false;
        std::string now(head.size(), '\0');
        source_->read_at(0, std::as_writable_bytes(std::span(now)));
        return now == head;
    }

    std::shared_ptr<const Source> source_;
    std::string name_;
    Found& found_;
    safetensors::Header header_;
};

/// Drops the digests, which belong to the old files, and the totals, which are written anew.
void drop_derived(Metadata& metadata, std::vector<std::string>& repairs) {
    const auto is_digest = [](const auto& entry) { return safetensors::is_digest_key(entry.first); };
    if (std::any_of(metadata.begin(), metadata.end(), is_digest))
        repairs.push_back("the digests in the metadata are not checked, and are left out");
    std::erase_if(metadata, [](const auto& entry) {
        return safetensors::is_digest_key(entry.first) || entry.first == "total_size" ||
               entry.first == "total_parameters";
    });
}

Found read_one(const std::filesystem::path& file, const OpenOptions& options) {
    Found found;
    about_file(file.native(), [&] {
        FileReader reader(open_file(file), file.filename().native(), options, found);
        reader.tell_repairs();
        reader.add_tensors();
        found.metadata.insert(reader.header().metadata.begin(), reader.header().metadata.end());
    });
    return found;
}

/// If two shards hold a tensor, keeps the one that the index names. Leaves both if it names neither.
void drop_copies(const safetensors::Index& index, Found& found, const std::string& name) {
    std::map<std::string_view, std::uint32_t> placed;
    for (const auto& place : index.weight_map) placed.insert_or_assign(place.tensor, place.shard);
    std::map<std::string_view, std::set<std::uint32_t>> holders;
    for (std::size_t i = 0; i < found.tensors.size(); ++i) holders[found.tensors[i].name()].insert(found.shards[i]);
    std::vector<LazyTensor> tensors;
    std::vector<std::uint32_t> shards;
    for (std::size_t i = 0; i < found.tensors.size(); ++i) {
        const std::string& tensor = found.tensors[i].name();
        const auto place = placed.find(tensor);
        const bool decided = place != placed.end() && holders.at(tensor).contains(place->second);
        if (decided && found.shards[i] != place->second) {
            found.repairs.push_back(name + ": " + safemap::quoted(index.shards[found.shards[i]]) + " also holds " +
                                    safemap::quoted(tensor) + ", which the index places in " +
                                    safemap::quoted(index.shards[place->second]));
            continue;
        }
        tensors.push_back(found.tensors[i]);
        shards.push_back(found.shards[i]);
    }
    found.tensors = std::move(tensors);
    found.shards = std::move(shards);
}

/// Reports each difference between an index and its shards. Throws if two shards hold a tensor, or if no shard holds a
/// tensor that the index names.
void compare_index(const safetensors::Index& index, Found& found, const std::string& name) {
    std::map<std::string_view, std::uint32_t> held;  // tensor name to shard
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < found.tensors.size(); ++i) {
        const LazyTensor& tensor = found.tensors[i];
        const auto [before, is_new] = held.emplace(tensor.name(), found.shards[i]);
        if (!is_new)
            throw Error(Errc::duplicate_name, safemap::quoted(index.shards[before->second]) + " and " +
                                                  safemap::quoted(index.shards[found.shards[i]]) + " both hold it")
                .with_tensor(tensor.name());
        total = write::sum_of_sizes(total, tensor.nbytes());
    }
    std::set<std::string_view> placed;
    std::size_t misplaced = 0;
    for (const auto& place : index.weight_map) {
        placed.insert(place.tensor);
        const auto holder = held.find(place.tensor);
        if (holder == held.end())
            throw Error(Errc::shard_lacks_tensor, "the index names it, but no shard holds it")
                .with_tensor(place.tensor);
        misplaced += holder->second == place.shard ? 0U : 1U;
    }
    if (misplaced > 0)
        found.repairs.push_back(name + ": it places " + counted(misplaced, "tensor") +
                                " in shards that do not hold them");
    for (const auto& [tensor, shard] : held)
        if (placed.count(tensor) == 0)
            found.repairs.push_back(name + ": it does not name " + safemap::quoted(tensor) + ", which a shard holds");
    if (index.total_size != total)
        found.repairs.push_back(name + ": total_size is " +
                                (index.total_size ? std::to_string(*index.total_size) : std::string("not a number")) +
                                ", but the tensors have " + std::to_string(total));
}

void require_shards(const Folder& folder, const std::vector<std::string>& shards) {
    constexpr std::size_t most = 8;
    std::vector<std::string> missing;
    std::copy_if(shards.begin(), shards.end(), std::back_inserter(missing),
                 [&folder](const std::string& shard) { return folder.open(shard) == nullptr; });
    if (missing.empty()) return;
    throw Error(Errc::shard_missing, "the index names " + std::to_string(shards.size()) + " shards, of which " +
                                         std::to_string(missing.size()) + " are missing: " + names_text(missing, most))
        .with_path(folder.name())
        .with_hint("repair needs all shards: fetch what is missing");
}

Found read_indexed(const Folder& folder, const std::string& index_name, const OpenOptions& options) {
    Found found;
    const auto source = folder.open(index_name);
    if (!source) throw Error(Errc::path_not_found, "no such file").with_path(folder.name() + '/' + index_name);
    ThrowFirst faults;
    safetensors::Index index = safetensors::read_index(*source, faults);
    for (std::string& shard : names::shards_beside(index.shards, folder.list())) {
        found.repairs.push_back(index_name + ": it does not name " + safemap::quoted(shard) +
                                ", though it names other shards of the set");
        index.shards.push_back(std::move(shard));
    }
    require_shards(folder, index.shards);
    state::Joined joined;
    for (std::uint32_t number = 0; number < index.shards.size(); ++number) {
        const std::string& shard = index.shards[number];
        const auto file = folder.open(shard);
        if (!file) throw Error(Errc::file_changed, "it is gone").with_path(folder.name() + '/' + shard);
        about_file(file->name(), [&] {
            FileReader reader(file, shard, options, found);
            reader.tell_repairs();
            reader.add_tensors();
            found.shards.resize(found.tensors.size(), number);
            state::Contents one;
            one.metadata = reader.header().metadata;
            joined.add(one, shard);
        });
    }
    found.metadata.insert(joined.contents.metadata.begin(), joined.contents.metadata.end());
    for (const auto& [key, value] : index.metadata) found.metadata.insert_or_assign(key, value);
    drop_copies(index, found, index_name);
    compare_index(index, found, index_name);
    return found;
}

Found read(const std::filesystem::path& in, const OpenOptions& options) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(in, ignored)) {
        if (!in.native().ends_with(".index.json")) return read_one(in, options);
        const auto parent = in.parent_path();
        return read_indexed(*open_folder(parent.empty() ? "." : parent), in.filename().native(), options);
    }
    const auto heads = names::find_heads(open_folder(in)->list());
    const std::string stem = names::stem_of_saved(heads.files.empty() ? std::string() : heads.files.front());
    const std::vector<std::string> files = write::model_files(in, options.max_header_bytes, stem);
    if (files.empty())
        throw Error(Errc::not_a_checkpoint, "the folder has neither an index nor a " + stem + ".safetensors")
            .with_path(in.native());
    const bool indexed = files.front().ends_with(".index.json");
    Found found =
        indexed ? read_indexed(*open_folder(in), files.front(), options) : read_one(in / files.front(), options);
    found.stem = stem;
    return found;
}

}  // namespace

RepairReport repair(const std::filesystem::path& in, const std::filesystem::path& out, const SaveOptions& options,
                    const OpenOptions& open) {
    Found found = about_file(in.native(), [&] { return read(in, open); });
    drop_derived(found.metadata, found.repairs);
    SaveOptions saving = options;
    if (saving.stem == SaveOptions().stem) saving.stem = found.stem;
    if (!options.exact_metadata)
        for (const auto& entry : found.metadata) saving.metadata.insert(entry);
    RepairReport report{.repairs = std::move(found.repairs), .saved = save(out, found.tensors, saving)};
    return report;
}

}  // namespace safemap::SAFEMAP_ABI
