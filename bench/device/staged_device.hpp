// A device whose memory the host cannot write to, so that every byte passes through the staging ring: main memory that
// hides its address. Its copies are done by the thread that asks for them, before the call returns.
#pragma once

#include <safemap/device.hpp>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

class StagedDevice final : public safemap::Device {
public:
    std::atomic<std::uint64_t> copies = 0;

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t free_memory() const override { return host_->free_memory(); }

    std::shared_ptr<safemap::DeviceMemory> allocate(std::uint64_t size) override {
        return std::make_shared<Memory>(host_->allocate(size));
    }
    std::shared_ptr<safemap::StagingBuffer> allocate_staging(std::uint64_t size) override {
        return host_->allocate_staging(size);
    }
    std::shared_ptr<safemap::DeviceEvent> copy_to_device(const std::shared_ptr<safemap::DeviceMemory>& to,
                                                         std::uint64_t offset,
                                                         const std::shared_ptr<safemap::StagingBuffer>& from,
                                                         safemap::Extent part) override {
        ++copies;
        return host_->copy_to_device(hidden(*to), offset, from, part);
    }
    std::shared_ptr<safemap::DeviceEvent> copy_rows_to_device(const std::shared_ptr<safemap::DeviceMemory>& to,
                                                              const std::shared_ptr<safemap::StagingBuffer>& from,
                                                              const safemap::RowCopy& rows) override {
        ++copies;
        return host_->copy_rows_to_device(hidden(*to), from, rows);
    }
    void copy_to_host(std::span<std::byte> to, const safemap::DeviceMemory& from, std::uint64_t offset) override {
        host_->copy_to_host(to, *hidden(from), offset);
    }

private:
    struct Memory final : safemap::DeviceMemory {
        explicit Memory(std::shared_ptr<safemap::DeviceMemory> of) : hidden(std::move(of)) {}
        std::uint64_t size() const noexcept override { return hidden->size(); }
        void* handle() const noexcept override { return hidden->handle(); }
        const std::shared_ptr<safemap::DeviceMemory> hidden;
    };
    static const std::shared_ptr<safemap::DeviceMemory>& hidden(const safemap::DeviceMemory& memory) {
        return static_cast<const Memory&>(memory).hidden;
    }

    const std::string name_ = "staged";
    const std::shared_ptr<safemap::Device> host_ = safemap::Device::open("host");
};
