// A source whose bytes are a mean: it reads and adds up a block of each tensor, in F32 as torch does.
#include "distributed/parallel/mean.hpp"

#include "base/text.hpp"
#include "lazy/stored_tensor.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

constexpr std::size_t block_elements = 16 << 10;

/// The bytes of the mean.
class MeanSource final : public Source {
public:
    explicit MeanSource(std::vector<LazyTensor> tensors) : tensors_(std::move(tensors)) {
        tensors_.front().stored()->each_source([this](const Source& source) {
            if (name_.empty()) name_ = source.name();
        });
    }

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return tensors_.front().nbytes(); }
    void require_unchanged() const override {
        for (const LazyTensor& tensor : tensors_)
            tensor.stored()->each_source([](const Source& source) { source.require_unchanged(); });
    }
    std::string identity() const override {
        std::string all = "mean";
        bool known = true;
        for (const LazyTensor& tensor : tensors_)
            tensor.stored()->each_source([&](const Source& source) {
                const std::string one = source.identity();
                known = known && !one.empty();
                all += ' ' + one;
            });
        return known ? all : std::string();
    }

    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        if (!Extent{offset, into.size()}.inside(size()))
            throw Error(Errc::file_truncated, bytes_text(into.size()) + " requested at offset " +
                                                  std::to_string(offset) + ", but there are " + bytes_text(size()))
                .with_path(name_);
        std::vector<float> sum;
        std::vector<float> other;
        while (!into.empty()) {
            const std::uint64_t first = offset / sizeof(float);
            const std::uint64_t skipped = offset % sizeof(float);
            const std::uint64_t wanted = (skipped + into.size() + sizeof(float) - 1) / sizeof(float);
            compute(first, std::min<std::uint64_t>(wanted, block_elements), sum, other);
            const std::size_t bytes = std::min(into.size(), sum.size() * sizeof(float) - skipped);
            std::memcpy(into.data(), std::as_bytes(std::span(sum)).data() + skipped, bytes);
            into = into.subspan(bytes);
            offset += bytes;
        }
    }

private:
    /// Computes elements [first, first + count) into `sum`. torch begins with 0, which turns -0 into 0.
    void compute(std::uint64_t first, std::uint64_t count, std::vector<float>& sum, std::vector<float>& other) const {
        sum.assign(static_cast<std::size_t>(count), 0.0F);
        other.resize(sum.size());
        for (const LazyTensor& tensor : tensors_) {
            tensor.read(first * sizeof(float), std::as_writable_bytes(std::span(other)));
            for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
        }
        const auto number = static_cast<float>(tensors_.size());
        for (float& value : sum) value /= number;
    }

    std::vector<LazyTensor> tensors_;
    std::string name_ = {};
};

}  // namespace

LazyTensor mean_of(std::string name, std::span<const LazyTensor* const> tensors) {
    const Shape& shape = tensors.front()->shape();
    if (tensors.front()->element_count() == 0) return tensors.front()->renamed(std::move(name));
    std::vector<LazyTensor> all;
    for (const LazyTensor* const tensor : tensors) all.push_back(*tensor);
    auto source = std::make_shared<const MeanSource>(std::move(all));
    return {std::move(name), stored_run(Dtype::f32, shape, std::move(source), 0)};
}

}  // namespace safemap::SAFEMAP_ABI::distributed
