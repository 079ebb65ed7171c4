// A device whose memory the host cannot write to, so that every byte passes through the staging ring: main memory that
// hides its address. Its copies are done by the thread that asks for them, before the call returns.
#pragma once

#include <safemap/advanced/device_backend.hpp>

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
    std::shared_ptr<safemap::DeviceMemory> borrow(void* handle, std::uint64_t size) override {
        return std::make_shared<Memory>(host_->borrow(handle, size));
    }
    safemap::DeviceQueue& queue(Lane) override { return queue_; }
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

    class Queue final : public safemap::DeviceQueue {
    public:
        explicit Queue(StagedDevice& device) : device_(device), queue_(device.host_->queue(Lane::bulk)) {}
        void copy(safemap::DeviceMemory& to, std::uint64_t offset, const safemap::StagingBuffer& from,
                  safemap::Extent part) override {
            ++device_.copies;
            queue_.copy(*hidden(to), offset, from, part);
        }
        void copy_rows(safemap::DeviceMemory& to, const safemap::StagingBuffer& from,
                       const safemap::RowCopy& rows) override {
            ++device_.copies;
            queue_.copy_rows(*hidden(to), from, rows);
        }
        std::shared_ptr<safemap::DeviceEvent> record() override { return queue_.record(); }
        void wait_for(const safemap::DeviceEvent& event) override { queue_.wait_for(event); }
        void drain() noexcept override { queue_.drain(); }

    private:
        StagedDevice& device_;
        safemap::DeviceQueue& queue_;
    };

    const std::string name_ = "staged";
    const std::shared_ptr<safemap::Device> host_ = safemap::Device::open("host");
    Queue queue_{*this};
};
