// Splits tensors into shards.
#include "write/shards.hpp"

#include <safemap/bytes.hpp>
#include <safemap/error.hpp>

#include <cstdio>
#include <unordered_map>

namespace safemap::write {

namespace {

class Splitter {
public:
    explicit Splitter(std::uint64_t max_shard_size) : max_(max_shard_size) {}

    void add(std::uint32_t tensor, const Sized& sized) {
        if (sized.storage != 0) {
            const auto [known, first_seen] = storages_.try_emplace(sized.storage, followers_.size());
            if (!first_seen) {
                followers_[known->second].push_back(tensor);
                return;
            }
            followers_.push_back({tensor});
        }
        split_.total_size = sum_of_sizes(split_.total_size, sized.size);
        if (sized.size > max_) {
            split_.shards.push_back({tensor});
            return;
        }
        if (sized.size > max_ - open_size_) close();
        open_.push_back(tensor);
        open_size_ += sized.size;
    }

    Split finish(std::size_t tensors) {
        if (!open_.empty()) close();
        std::vector<std::uint32_t> shard_of(tensors);
        for (std::uint32_t shard = 0; shard < split_.shards.size(); ++shard)
            for (const std::uint32_t tensor : split_.shards[shard]) shard_of[tensor] = shard;
        for (const auto& group : followers_) {
            auto& shard = split_.shards[shard_of[group.front()]];
            shard.insert(shard.end(), group.begin() + 1, group.end());
        }
        return std::move(split_);
    }

private:
    void close() {
        split_.shards.push_back(std::move(open_));
        open_.clear();
        open_size_ = 0;
    }

    std::uint64_t max_;
    std::uint64_t open_size_ = 0;
    std::vector<std::uint32_t> open_;
    std::unordered_map<std::uint64_t, std::size_t> storages_;
    std::vector<std::vector<std::uint32_t>> followers_;  // by storage: the first tensor, then those that follow it
    Split split_;
};

}  // namespace

std::uint64_t sum_of_sizes(std::uint64_t sum, std::uint64_t size) {
    if (const auto next = checked_add(sum, size)) return *next;
    throw Error(Errc::shape_overflow, "the sizes of all tensors do not fit in 64 bits");
}

Split split(std::span<const Sized> tensors, std::uint64_t max_shard_size) {
    Splitter splitter(max_shard_size);
    for (std::uint32_t i = 0; i < tensors.size(); ++i) splitter.add(i, tensors[i]);
    return splitter.finish(tensors.size());
}

std::string shard_name(std::size_t shard, std::size_t shards) {
    if (shards == 1) return single_name;
    char text[64];
    std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", shard + 1, shards);
    return text;
}

}  // namespace safemap::write
