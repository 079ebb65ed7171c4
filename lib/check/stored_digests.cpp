// Reads lists of digests, and compares them with the digest of the whole checkpoint.
#include "check/stored_digests.hpp"

#include "base/name_index.hpp"
#include "base/text.hpp"
#include "check/whole_digest.hpp"
#include "open/formats.hpp"
#include "safetensors/digests.hpp"
#include "safetensors/header.hpp"

#include <algorithm>
#include <optional>

namespace safemap::SAFEMAP_ABI::check {
namespace {

/// A sink that drops the faults of a header: they were reported when the header was read first.
class ToldBefore final : public FaultSink {
public:
    void fault(Error) override { any = true; }
    bool any = false;
};

/// The tensors of one file, and the digests that the file's list has for them.
class ListReader {
public:
    explicit ListReader(const safetensors::TensorList& header) {
        tensors_.reserve(header.size());
        for (const safetensors::TensorInfo info : header) tensors_.push_back({info.name, info.data});
        names_.add_all(NamesOf(tensors_));
        listed_.resize(tensors_.size());
    }

    /// Reads the list. Throws header_bad_metadata.
    void read(const std::string& text) {
        if (text.size() > longest_list())
            throw bad("have " + bytes_text(text.size()) + ", more than the tensors of the file need");
        safetensors::read_digests(text, [this](std::string_view name, const Digest& digest) { add(name, digest); });
    }

    void report(FaultSink& faults) const {
        if (unknown_ > 0)
            faults.fault(bad("name " + counted(unknown_, "tensor") + " that the file does not have; the first is " +
                             safemap::quoted(first_unknown_)));
        if (!repeated_.empty()) faults.fault(bad("name " + safemap::quoted(repeated_) + " more than once"));
    }

    void take(FileDigests& digests) {
        digests.of_all = std::find(listed_.begin(), listed_.end(), false) == listed_.end();
        std::size_t size = 0;
        for (std::size_t i = 0; i < tensors_.size(); ++i) size += listed_[i] ? tensors_[i].name.size() : 0;
        // The names are copied. The header's text is not kept: with the list in it, it has every name three times.
        digests.names.reserve(size);
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            if (!listed_[i]) continue;
            const std::string_view name = tensors_[i].name;
            digests.tensors.push_back(tensors_[i]);
            digests.tensors.back().name = {digests.names.data() + digests.names.size(), name.size()};
            digests.names.insert(digests.names.end(), name.begin(), name.end());
        }
    }

private:
    static Error bad(const std::string& what) {
        return Error(Errc::header_bad_metadata,
                     "the digests in " + safemap::quoted(safetensors::digests_key) + ' ' + what);
    }

    /// Returns the largest size of a list that names all tensors, however it is spelled. Longer lists are refused,
    /// because JSON in memory takes several times its text.
    std::uint64_t longest_list() const {
        constexpr std::uint64_t around = 128;
        constexpr std::uint64_t most_escaped = 6;  // \u0000
        std::uint64_t size = around;
        for (const StoredDigest& tensor : tensors_) size += around + most_escaped * tensor.name.size();
        return size;
    }

    void add(std::string_view name, const Digest& digest) {
        const auto number = names_.find(name, NamesOf(tensors_));
        if (!number) {
            if (unknown_++ == 0) first_unknown_ = name;
            return;
        }
        if (listed_[*number] && repeated_.empty()) repeated_ = name;
        listed_[*number] = true;
        tensors_[*number].digest = digest;
    }

    std::vector<StoredDigest> tensors_;
    NameIndex names_;
    std::vector<bool> listed_;
    std::size_t unknown_ = 0;
    std::string first_unknown_;
    std::string repeated_;
};

/// Adds notes on what is not compared although the checkpoint has digests.
void note_unchecked(state::Contents& contents, std::span<const FileDigests> files, bool has_checkpoint_digest) {
    const auto count = [&](auto&& matches) { return std::count_if(files.begin(), files.end(), matches); };
    const auto listed = count([](const FileDigests& file) { return file.listed; });
    const auto whole = count([](const FileDigests& file) { return file.of_all; });
    if (listed == 0 && !has_checkpoint_digest) {
        if (holds_parts(contents))
            contents.notes.emplace_back("the files have no digests, so their bytes are read and not compared");
        return;
    }
    if (!has_checkpoint_digest)
        contents.notes.emplace_back(
            "there is no digest of the checkpoint, so names, dtypes and shapes are not checked");
    if (!has_checkpoint_digest && whole < std::ssize(files))
        contents.notes.emplace_back("some tensors have no digest and are not checked");
    if (contents.structure_unchecked)
        contents.notes.emplace_back("the structure document has no digest and is not checked");
}

/// Returns the fault of a digest whose document is missing, or whose tensors lack digests.
std::optional<Error> orphan(const state::Contents& contents, std::span<const FileDigests> files,
                            bool has_checkpoint_digest) {
    if (state::find_value(contents.metadata, safetensors::structure_digest_key) != nullptr)
        return Error(Errc::header_bad_metadata,
                     "the metadata has the digest of a structure document, but there is no structure document");
    const auto lacks = std::find_if(files.begin(), files.end(), [](const FileDigests& file) { return !file.of_all; });
    if (!has_checkpoint_digest || lacks == files.end()) return std::nullopt;
    Error error(Errc::header_bad_metadata,
                "the checkpoint has a digest, but the metadata key " + safemap::quoted(safetensors::digests_key) +
                    (lacks->listed ? " of this file does not list all of its tensors" : " is missing from this file"));
    return std::move(error.with_path(lacks->source->name()));
}

/// Returns the digest of the checkpoint, over all of its names. Returns nothing if its tensors cannot be identified
/// among the tensors of the files.
std::optional<Digest> found_identity(const state::Contents& contents, std::span<const FileDigests> files) {
    std::vector<const StoredDigest*> known;
    for (const FileDigests& file : files)
        for (const StoredDigest& tensor : file.tensors) known.push_back(&tensor);
    NameIndex names;
    bool unique = true;
    const auto name_of_known = [&](std::uint32_t i) { return known[i]->name; };
    names.add_all(static_cast<std::uint32_t>(known.size()), name_of_known, [&](auto, auto) { unique = false; });
    // Two files have a tensor of the same name. The index places the name in one of them, but `contents` does not say
    // in which, so either digest may be the right one.
    if (!unique) return std::nullopt;

    std::vector<safetensors::NamedDigest> all;
    all.reserve(contents.tensors.size());
    NameIndex open;
    const NamesOf opened(contents.tensors);
    for (std::uint32_t i = 0; i < contents.tensors.size(); ++i) {
        const LazyTensor& tensor = contents.tensors[i];
        const auto number = names.find(tensor.name(), name_of_known);
        if (!number) return std::nullopt;
        open.add(tensor.name(), i, opened);
        all.push_back({tensor.name(), tensor.dtype(), &tensor.shape(), known[*number]->digest});
    }
    safetensors::for_each_alias(
        contents.metadata, [&](std::string_view name) { return open.find(name, opened); },
        [&](const std::string& dropped, std::uint32_t i) {
            safetensors::NamedDigest other = all[i];
            other.name = dropped;
            all.push_back(other);
        });
    return safetensors::digest_of_all(std::move(all));
}

}  // namespace

FileDigests read_file_digests(const Source& source, const OpenOptions& options, FaultSink& faults) {
    FileDigests digests{.source = &source};
    if (open::recognise(source).content != open::Content::safetensors) return digests;
    ToldBefore told;
    const safetensors::Header header =
        safetensors::read_header(source, safetensors::Rules::lenient, options.max_header_bytes, told);
    const std::string* const list = state::find_value(header.metadata, safetensors::digests_key);
    if (told.any || list == nullptr) return digests;
    digests.listed = true;
    PathSink with_path(faults, source.name());
    reporting(with_path, [&] {
        ListReader reader(header.tensors);
        reader.read(*list);
        reader.report(with_path);
        reader.take(digests);
    });
    return digests;
}

void check_identity(state::Contents& contents, std::span<const FileDigests> files, const std::filesystem::path& path,
                    FaultSink& faults) {
    PathSink with_path(faults, path.native());
    if (contents.structure_fault) with_path.fault(*contents.structure_fault);
    const std::string* const stored = state::find_value(contents.metadata, safetensors::checkpoint_digest_key);
    note_unchecked(contents, files, stored != nullptr);
    if (auto fault = orphan(contents, files, stored != nullptr)) return with_path.fault(std::move(*fault));
    if (stored == nullptr || holds_parts(contents)) return;
    const auto found = found_identity(contents, files);
    if (!found) {
        contents.notes.emplace_back(
            "the digest of the checkpoint is not checked: its tensors cannot be found in its files by name");
        return;
    }
    if (hex(*found) == *stored) return;
    with_path.fault(Error(Errc::checksum_mismatch,
                          "the digest of the checkpoint is " + hex(*found) + ", expected " + safemap::quoted(*stored)));
}

}  // namespace safemap::SAFEMAP_ABI::check
