// Opens and reads the files of ranks on the threads of the pool. Tested by tests/distributed/rank_files_test.cpp.
#include "distributed/rank_files.hpp"

#include "base/faults.hpp"
#include "base/pool.hpp"
#include "base/watch.hpp"
#include "pickle/memory_share.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using Read = std::function<void(std::size_t, const std::shared_ptr<const Source>&)>;

/// Each thread holds the pickle and the tree of one file: of a large model, a few megabytes.
constexpr ThreadLimits rank_threads{8, 8};

std::shared_ptr<const Source> open_file_of(const Folder& folder, const std::string& file) {
    try {
        if (auto source = folder.open(file)) return source;
    } catch (const Error& error) {
        if (error.code() != Errc::shard_missing) throw;
        throw Error(Errc::rank_missing, error.message());
    }
    throw Error(Errc::rank_missing, "there is no such file (or it is a broken link)");
}

void read_one(const Folder& folder, std::span<const std::string> files, std::size_t i, const Read& read) {
    const auto path = [&] { return folder.name() + "/" + files[i]; };
    about_file(path, [&] {
        const auto source = open_file_of(folder, files[i]);
        about_file(source->name(), [&] { read(i, source); });
    });
}

}  // namespace

void for_each_file(const Folder& folder, std::span<const std::string> files, const Work& work, const Read& read) {
    const Watch watch(work.monitor, "opening", 0);
    parallel_for_pickles(files.size(), thread_count(work.threads, rank_threads), [&](std::size_t i) {
        watch.check_stop();
        read_one(folder, files, i, read);
    });
}

}  // namespace safemap::SAFEMAP_ABI::distributed
