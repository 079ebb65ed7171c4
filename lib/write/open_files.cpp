// Opens output files on demand and closes the files that are unused for longest. Lends out slots and creates each when
// it is first needed.
#include "write/open_files.hpp"

#include "base/faults.hpp"
#include "io/calls.hpp"

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::write {

OpenFiles::OpenFiles(const io::Staging& staging, std::vector<std::string> names, bool direct_io)
    : staging_(staging),
      direct_io_(direct_io),
      most_(std::max<std::size_t>(1, static_cast<std::size_t>(io::calls.descriptor_limit() / 8))),
      files_(names.size()) {
    for (std::size_t i = 0; i < names.size(); ++i) files_[i].name = std::move(names[i]);
}

void OpenFiles::begin(std::size_t number) {
    {
        const std::lock_guard lock(mutex_);
        File& file = files_[number];
        if (!file.output) open(file);
        file.last_use = ++uses_;
        ++file.users;
    }
    try {
        close_idle();
    } catch (...) {
        end(number);
        throw;
    }
}

void OpenFiles::end(std::size_t number) noexcept {
    const std::lock_guard lock(mutex_);
    --files_[number].users;
}

void OpenFiles::open(File& file) {
    about_file([&] { return staging_.path_of(file.name); },
               [&] {
                   io::OutputFile output = staging_.reopen(file.name);
                   if (direct_io_) output.bypass_cache();
                   file.output.emplace(std::move(output));
                   ++open_;
               });
}

/// Closes the file that was unused for longest, if too many are open. Does not hold the lock during the flush; a thread
/// that needs the file meanwhile opens it again.
void OpenFiles::close_idle() {
    std::optional<io::OutputFile> output;
    std::string name;
    {
        const std::lock_guard lock(mutex_);
        if (open_ <= most_) return;
        File* oldest = nullptr;
        for (File& file : files_)
            if (file.output && file.users == 0 && (oldest == nullptr || file.last_use < oldest->last_use))
                oldest = &file;
        if (oldest == nullptr) return;  // every open file is in use
        output.swap(oldest->output);
        name = oldest->name;
        --open_;
    }
    finish(*output, name);
}

void OpenFiles::finish(io::OutputFile& output, const std::string& name) const {
    about_file([&] { return staging_.path_of(name); }, [&] { output.finish(); });
}

void OpenFiles::finish() {
    for (File& file : files_) {
        if (!file.output) continue;
        finish(*file.output, file.name);
        file.output.reset();
        --open_;
    }
}

WriterSlots::Taken WriterSlots::take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !free_.empty() || left_ > 0; });
    if (free_.empty()) {
        auto slot = std::make_unique<Worker>();
        --left_;
        return {*this, std::move(slot)};
    }
    std::unique_ptr<Worker> slot = std::move(free_.back());
    free_.pop_back();
    return {*this, std::move(slot)};
}

void WriterSlots::give_back(std::unique_ptr<Worker> slot) noexcept {
    {
        const std::lock_guard lock(mutex_);
        free_.push_back(std::move(slot));  // never allocates: the constructor reserved room for all slots
    }
    changed_.notify_one();
}

}  // namespace safemap::SAFEMAP_ABI::write
