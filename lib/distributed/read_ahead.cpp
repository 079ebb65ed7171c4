// Keeps two windows of a source in memory, and reads past them from the source itself.
#include "distributed/read_ahead.hpp"

#include <cstring>

namespace safemap::SAFEMAP_ABI::distributed {

void ReadAhead::load(Extent range) {
    for (const Window& window : windows_)
        if (window.offset == range.offset && window.bytes.size() == range.size) return;
    latest_ = 1 - latest_;
    Window& window = windows_[latest_];
    window.offset = range.offset;
    window.bytes.resize(range.size);
    try {
        source_.read_at(range.offset, window.bytes);
    } catch (...) {
        window.bytes.clear();
        throw;
    }
}

void ReadAhead::keep(std::uint64_t offset, std::span<const std::byte> bytes) {
    latest_ = 1 - latest_;
    windows_[latest_].offset = offset;
    windows_[latest_].bytes.assign(bytes.begin(), bytes.end());
}

void ReadAhead::read_at(std::uint64_t offset, std::span<std::byte> into) const {
    for (const Window& window : windows_) {
        const bool begins = offset >= window.offset && offset - window.offset <= window.bytes.size();
        if (!begins || window.bytes.size() - (offset - window.offset) < into.size()) continue;
        if (!into.empty()) std::memcpy(into.data(), window.bytes.data() + (offset - window.offset), into.size());
        return;
    }
    source_.read_at(offset, into);
}

}  // namespace safemap::SAFEMAP_ABI::distributed
