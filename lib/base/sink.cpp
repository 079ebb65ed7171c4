// Sinks that are not files: memory, and a function of the caller.
#include <safemap/sink.hpp>

#include <safemap/error.hpp>

#include "base/text.hpp"

#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

void copy(std::span<const std::byte> from, std::span<std::byte> to) {
    if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
}

class VectorSink final : public Sink {
public:
    VectorSink(std::string name, std::vector<std::byte>& into) : name_(std::move(name)), into_(into) {}

    const std::string& name() const noexcept override { return name_; }

    void allocate(std::uint64_t size) override {
        try {
            std::vector<std::byte>(size).swap(file_);
        } catch (const std::bad_alloc&) {
            refuse(size);
        } catch (const std::length_error&) {
            refuse(size);
        }
    }

    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        copy(bytes, std::span(file_).subspan(static_cast<std::size_t>(offset), bytes.size()));
    }
    bool read_back(std::uint64_t offset, std::span<std::byte> into) const override {
        copy(std::span(file_).subspan(static_cast<std::size_t>(offset)), into);
        return true;
    }

    void commit() override {
        into_.swap(file_);
        abandon();
    }

    void abandon() noexcept override { std::vector<std::byte>().swap(file_); }

private:
    [[noreturn]] void refuse(std::uint64_t size) const {
        throw Error(Errc::out_of_memory, "cannot allocate memory for a file of " + bytes_text(size)).with_path(name_);
    }

    std::string name_;
    std::vector<std::byte>& into_;
    std::vector<std::byte> file_;
};

class SpanSink final : public Sink {
public:
    SpanSink(std::string name, std::span<std::byte> into) : name_(std::move(name)), into_(into) {}

    const std::string& name() const noexcept override { return name_; }

    void allocate(std::uint64_t size) override {
        if (size <= into_.size()) return;
        throw Error(Errc::no_space,
                    "the file needs " + bytes_text(size) + ", but its memory has " + bytes_text(into_.size()))
            .with_path(name_);
    }

    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        copy(bytes, into_.subspan(static_cast<std::size_t>(offset), bytes.size()));
    }
    bool read_back(std::uint64_t offset, std::span<std::byte> into) const override {
        copy(into_.subspan(static_cast<std::size_t>(offset)), into);
        return true;
    }

    void commit() override {}

private:
    std::string name_;
    std::span<std::byte> into_;
};

class CallbackSink final : public Sink {
public:
    using Write = std::function<void(std::uint64_t, std::span<const std::byte>)>;
    CallbackSink(std::string name, Write write) : name_(std::move(name)), write_(std::move(write)) {}

    const std::string& name() const noexcept override { return name_; }
    void allocate(std::uint64_t) override {}
    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        if (!bytes.empty()) write_(offset, bytes);
    }
    void commit() override {}

private:
    std::string name_;
    Write write_;
};

}  // namespace

bool Sink::read_back(std::uint64_t, std::span<std::byte>) const { return false; }

std::shared_ptr<Sink> memory_sink(std::string name, std::vector<std::byte>& into) {
    return std::make_shared<VectorSink>(std::move(name), into);
}

std::shared_ptr<Sink> memory_sink(std::string name, std::span<std::byte> into) {
    return std::make_shared<SpanSink>(std::move(name), into);
}

std::shared_ptr<Sink> callback_sink(std::string name,
                                    std::function<void(std::uint64_t, std::span<const std::byte>)> write) {
    if (!write) throw Error(Errc::invalid_argument, "the write function is missing").with_path(name);
    return std::make_shared<CallbackSink>(std::move(name), std::move(write));
}

}  // namespace safemap::SAFEMAP_ABI
