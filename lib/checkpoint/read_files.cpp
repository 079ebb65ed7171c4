// Reads files that are one checkpoint without an index.
#include "base/name_index.hpp"
#include "base/pool.hpp"
#include "base/text.hpp"
#include "checkpoint/contents.hpp"

namespace safemap::checkpoint {

namespace {

struct OneOfThem {
    Contents contents = {};
    std::vector<Error> faults = {};
};

/// Every name is one tensor's, in whichever file.
class Names {
public:
    /// The file, by number, that has the name already; else it is `file`'s from now on.
    std::uint32_t claim(std::string_view name, std::uint32_t file) {
        const auto next = static_cast<std::uint32_t>(names_.size());
        const auto number = index_.add(name, next, [this](std::uint32_t i) { return std::string_view(names_[i]); });
        if (number != next) return files_[number];
        names_.emplace_back(name);
        files_.push_back(file);
        return file;
    }

private:
    NameIndex index_;
    std::vector<std::string> names_;
    std::vector<std::uint32_t> files_;
};

}  // namespace

Contents read_files(std::span<const std::shared_ptr<const Source>> sources, const OpenOptions& options,
                    FaultSink& faults) {
    if (sources.empty()) throw Error(Errc::invalid_argument, "no files to open");
    std::vector<OneOfThem> files(sources.size());
    parallel_for(files.size(), options.threads, [&](std::size_t i, unsigned) {
        CollectFaults found;
        reporting(found, [&] { files[i].contents = read_file(sources[i], options, found); });
        files[i].faults = found.take();
    });

    Contents all;
    CommonMetadata metadata;
    Names names;
    for (std::uint32_t i = 0; i < files.size(); ++i) {
        for (Error& fault : files[i].faults) faults.fault(std::move(fault));
        Contents& one = files[i].contents;
        if (one.sources.empty()) continue;  // nothing of it could be read
        for (LazyTensor& tensor : one.tensors) {
            const std::uint32_t owner = names.claim(tensor.name(), i);
            if (owner == i) {
                all.tensors.push_back(std::move(tensor));
                continue;
            }
            Error error(Errc::duplicate_name, "it is in " + printable(sources[owner]->name()) + " too");
            faults.fault(std::move(error.with_path(sources[i]->name()).with_tensor(tensor.name())));
        }
        if (one.format == Format::torch) all.format = Format::torch;
        for (const std::string& note : one.notes) all.notes.push_back(one.files.front() + ": " + note);
        metadata.add(one.metadata);
        move_to_end(one.files, all.files);
        move_to_end(one.skipped, all.skipped);
        move_to_end(one.aliases, all.aliases);
        move_to_end(one.checksums, all.checksums);
        move_to_end(one.sources, all.sources);
    }
    all.metadata = metadata.take();
    return all;
}

}  // namespace safemap::checkpoint
