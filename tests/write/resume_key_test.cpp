// Tests the key that identifies a save for resuming: it depends on where values are read, not on unused sources.
#include "write/plan_keys.hpp"

#include "doctest_safemap.hpp"

#include <safemap/advanced/stored_tensor.hpp>

#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace resume_key_test {

using namespace safemap;

namespace {

/// A source of zeros with an identity.
class Named final : public Source {
public:
    Named(std::string name, std::uint64_t size) : name_(std::move(name)), size_(size) {}
    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return size_; }
    void read_at(std::uint64_t, std::span<std::byte> into) const override { std::memset(into.data(), 0, into.size()); }
    std::string identity() const override { return name_; }

private:
    std::string name_;
    std::uint64_t size_;
};

std::shared_ptr<const Source> named(const char* name, std::uint64_t size = 1'000) {
    return std::make_shared<Named>(name, size);
}

std::string resume_key_of(std::shared_ptr<const StoredTensor> stored) {
    const std::vector<LazyTensor> tensors{{"w", std::move(stored)}};
    return write::resume_key_of(tensors, write::lay_out({.tensors = tensors}, {}, std::nullopt));
}

std::string resume_key_of(std::vector<std::shared_ptr<const Source>> sources, std::vector<IndexedRun> runs) {
    const auto table = std::make_shared<const SourceTable>(std::move(sources));
    return resume_key_of(stored_runs(Dtype::u8, {8}, table, runs));
}

}  // namespace

TEST_CASE("a save is identified by the sources that it reads, not by their numbers") {
    const auto a = named("a");
    const auto b = named("b");
    const std::string job = resume_key_of({a, b}, {{0, 0, 4, 0}, {0, 4, 4, 1}});
    CHECK_FALSE(job.empty());
    CHECK(job == resume_key_of({named("other"), b, a}, {{0, 0, 4, 2}, {0, 4, 4, 1}}));
    CHECK(job == resume_key_of({named("a"), named("b")}, {{0, 0, 4, 0}, {0, 4, 4, 1}}));
    const std::set<std::string> others = {
        job,
        resume_key_of({a, b}, {{0, 0, 4, 1}, {0, 4, 4, 0}}),
        resume_key_of({a, b}, {{0, 0, 4, 0}, {0, 4, 4, 0}}),
        resume_key_of({a, b}, {{0, 0, 3, 0}, {0, 3, 5, 1}}),
        resume_key_of({a, b}, {{0, 0, 4, 0}, {1, 4, 4, 1}}),
        resume_key_of({a, named("c")}, {{0, 0, 4, 0}, {0, 4, 4, 1}}),
    };
    CHECK(others.size() == 6);
    CHECK(resume_key_of({a, memory_source("m", std::vector<std::byte>(9))}, {{0, 0, 4, 0}, {0, 4, 4, 1}}).empty());
}

TEST_CASE("a save of boxes is identified by each box, however many rows they have") {
    constexpr std::uint64_t rows = std::uint64_t{1} << 40;
    const auto source = named("s", rows * 8);
    const auto halves = [&](std::uint64_t cut, std::uint64_t offset, bool transposed) {
        const Strides strides = transposed ? Strides{1, static_cast<std::int64_t>(rows)} : Strides{4, 1};
        const BoxPiece boxes[] = {{source, 0, {{0, 0}, {rows, cut}}, {static_cast<std::int64_t>(cut), 1}},
                                  {source, offset, {{0, cut}, {rows, 4 - cut}}, strides}};
        return resume_key_of(stored_boxes(Dtype::u8, {rows, 4}, boxes));
    };
    const std::set<std::string> jobs = {halves(2, 0, false), halves(1, 0, false), halves(2, 1, false),
                                        halves(2, 0, true)};
    CHECK(jobs.size() == 4);
    CHECK(halves(2, 0, false) == halves(2, 0, false));
}

}  // namespace resume_key_test
