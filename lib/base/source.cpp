// Sources that are not files: memory, and a function of the caller.
#include <safemap/error.hpp>
#include <safemap/source.hpp>

#include "base/folder.hpp"
#include "base/memory_source.hpp"
#include "base/text.hpp"

#include <cstring>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

void require_inside(Extent extent, std::uint64_t size, const std::string& name) {
    if (extent.inside(size)) return;
    throw Error(Errc::file_truncated, bytes_text(extent.size) + " requested at offset " +
                                          std::to_string(extent.offset) + ", but there are " + bytes_text(size))
        .with_path(name);
}

class MemorySource final : public Source {
public:
    MemorySource(std::string name, SharedBytes bytes) : name_(std::move(name)), bytes_(std::move(bytes)) {}

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return bytes_.bytes.size(); }

    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        require_inside({offset, into.size()}, size(), name_);
        if (!into.empty()) std::memcpy(into.data(), bytes_.bytes.data() + offset, into.size());
    }

    std::span<const std::byte> at(Extent extent) const {
        require_inside(extent, size(), name_);
        return bytes_.bytes.subspan(extent.offset, extent.size);
    }
    std::optional<SharedBytes> map(Extent extent) const override {
        return SharedBytes{at(extent), bytes_.owner, bytes_.writable};
    }

    Residency residency(Extent extent) const override {
        require_inside(extent, size(), name_);
        return {extent.size, extent.size};
    }

private:
    std::string name_;
    SharedBytes bytes_;
};

class CallbackSource final : public Source {
public:
    using Read = std::function<void(std::uint64_t, std::span<std::byte>)>;
    CallbackSource(std::string name, std::uint64_t size, Read read)
        : name_(std::move(name)), size_(size), read_(std::move(read)) {}

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return size_; }

    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        require_inside({offset, into.size()}, size_, name_);
        if (!into.empty()) read_(offset, into);
    }

private:
    std::string name_;
    std::uint64_t size_;
    Read read_;
};

}  // namespace

std::optional<SharedBytes> Source::map(Extent) const { return std::nullopt; }
Residency Source::residency(Extent) const { return {}; }
void Source::prefetch(Extent) const {}
void Source::evict(Extent) const {}

void Source::read_scattered(std::uint64_t offset, std::span<const std::span<std::byte>> into) const {
    if (into.empty()) return read_at(offset, {});  // refuses an offset outside the source
    for (const std::span<std::byte> place : into) {
        read_at(offset, place);
        offset += place.size();
    }
}

bool Source::read_direct(std::uint64_t, std::span<const std::span<std::byte>>, std::span<std::byte>) const {
    return false;
}

std::shared_ptr<const Folder> Folder::folder(std::string_view) const { return nullptr; }
std::string Folder::link_to_folder(const std::string&) const { return {}; }
std::string Folder::link_out(const std::string&) const { return {}; }
std::string Folder::other_kind(const std::string&) const { return {}; }

std::optional<std::span<const std::byte>> bytes_in_memory(const Source& source, Extent extent) {
    const auto* const memory = dynamic_cast<const MemorySource*>(&source);
    return memory == nullptr ? std::nullopt : std::optional(memory->at(extent));
}

std::shared_ptr<const Source> memory_source(std::string name, SharedBytes bytes) {
    return std::make_shared<MemorySource>(std::move(name), std::move(bytes));
}

std::shared_ptr<const Source> memory_source(std::string name, std::vector<std::byte> bytes) {
    const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    return memory_source(std::move(name), SharedBytes{*owner, owner});
}

std::shared_ptr<const Source> callback_source(std::string name, std::uint64_t size,
                                              std::function<void(std::uint64_t, std::span<std::byte>)> read) {
    if (!read) throw Error(Errc::invalid_argument, "the read function is missing").with_path(name);
    return std::make_shared<CallbackSource>(std::move(name), size, std::move(read));
}

}  // namespace safemap::SAFEMAP_ABI
