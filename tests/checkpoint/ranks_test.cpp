// Tests tensors_of_rank(). From top to bottom: what each rule gives, ties, experts, every error, the bytes that each
// rank reads, and random tensors and rules against a slow twin, which takes whole tensors and picks element by element.
#include <safemap/ranks.hpp>

#include "check_error.hpp"
#include "device/counted.hpp"
#include "forge/containers.hpp"
#include "inspect.hpp"
#include "soak.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/uploader.hpp>

#include <algorithm>
#include <limits>

namespace ranks_test {

using namespace safemap;

namespace {

using Split = RankRule::Split;
using Rules = std::vector<RankRule>;
using Bytes8 = std::vector<int>;

/// Returns a tensor of U8 whose elements are numbered from 0 on.
LazyTensor numbered(std::string name, Shape shape) {
    std::vector<std::byte> bytes(*element_count(shape));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    return {std::move(name), stored_run(Dtype::u8, std::move(shape), memory_source("memory", std::move(bytes)), 0)};
}

Bytes8 values(const LazyTensor& tensor) {
    const TensorView view = tensor.load();
    Bytes8 out;
    for (const std::byte byte : view.bytes()) out.push_back(std::to_integer<int>(byte));
    return out;
}

/// Returns the part of one tensor, which the rank must have.
LazyTensor part(const LazyTensor& tensor, RankRule rule, Rank rank) {
    if (rule.names.empty()) rule.names = "*";
    const std::vector<LazyTensor> parts = tensors_of_rank({&tensor, 1}, {&rule, 1}, rank);
    REQUIRE(parts.size() == 1);
    CHECK(parts[0].name() == tensor.name());
    return parts[0];
}

Bytes8 part_values(const LazyTensor& tensor, const RankRule& rule, Rank rank) {
    return values(part(tensor, rule, rank));
}

}  // namespace

TEST_CASE("a column-parallel layer is split along dimension 0, weight and bias") {
    const RankRule column = {.names = "*", .split = Split::column};
    CHECK(part_values(numbered("weight", {4, 2}), column, {1, 2}) == Bytes8{4, 5, 6, 7});
    CHECK(part_values(numbered("bias", {4}), column, {1, 2}) == Bytes8{2, 3});
    CHECK(part(numbered("scale", {}), column, {1, 2}).shape() == Shape{});
}

TEST_CASE("a row-parallel layer is split along dimension 1, and its bias is replicated") {
    const RankRule row = {.names = "*", .split = Split::row};
    CHECK(part_values(numbered("weight", {2, 4}), row, {1, 2}) == Bytes8{2, 3, 6, 7});
    CHECK(part_values(numbered("bias", {3}), row, {1, 2}) == Bytes8{0, 1, 2});
}

TEST_CASE("a fused QKV gives each rank its heads of Q, K and V") {
    // 4 heads of Q, 2 of K and V, each of 2 rows
    const LazyTensor qkv = numbered("qkv", {16});
    const RankRule rule = {.names = "*",
                           .split = Split::column,
                           .sections = {{.heads = 4}, {.heads = 2, .repeat = true}, {.heads = 2, .repeat = true}}};
    CHECK(part_values(qkv, rule, {0, 2}) == Bytes8{0, 1, 2, 3, 8, 9, 12, 13});
    CHECK(part_values(qkv, rule, {1, 2}) == Bytes8{4, 5, 6, 7, 10, 11, 14, 15});
    // Two ranks share each head of K and V.
    CHECK(part_values(qkv, rule, {1, 4}) == Bytes8{2, 3, 8, 9, 12, 13});
    CHECK(part_values(qkv, rule, {2, 4}) == Bytes8{4, 5, 10, 11, 14, 15});
    CHECK(part_values(qkv, rule, {0, 1}) == values(qkv));
}

TEST_CASE("sections of other sizes than their heads, and groups of sections") {
    const RankRule gate_up = {.names = "*", .split = Split::column, .sections = {{}, {}}};
    CHECK(part_values(numbered("gate_up", {8}), gate_up, {1, 2}) == Bytes8{2, 3, 6, 7});
    const RankRule mamba = {
        .names = "*", .split = Split::column, .sections = {{.size = 6}, {.heads = 1, .repeat = true, .size = 2}}};
    CHECK(part_values(numbered("in_proj", {8}), mamba, {2, 3}) == Bytes8{4, 5, 6, 7});
    // Conv1D of GPT-2 is [in, out].
    const RankRule conv = {.names = "*", .split = Split::column, .sections = {{}, {}, {}}, .dimension = 1};
    CHECK(part_values(numbered("c_attn", {2, 6}), conv, {1, 2}) == Bytes8{1, 3, 5, 7, 9, 11});
    // QKV of Megatron: two groups, each of two heads of Q, one of K and one of V.
    const RankRule megatron = {.names = "*",
                               .split = Split::column,
                               .sections = {{.heads = 2}, {.heads = 1, .repeat = true}, {.heads = 1, .repeat = true}},
                               .groups = 2};
    const LazyTensor qkv = numbered("qkv", {8});
    CHECK(part_values(qkv, megatron, {1, 2}) == Bytes8{4, 5, 6, 7});
    CHECK(part_values(qkv, megatron, {1, 4}) == Bytes8{1, 2, 3});
    CHECK(part_values(qkv, megatron, {2, 4}) == Bytes8{4, 6, 7});
    CHECK(part_values(qkv, megatron, {0, 1}) == values(qkv));
}

TEST_CASE("a vocabulary that does not divide is split as torch.chunk splits, or with its padding") {
    const LazyTensor embedding = numbered("embedding", {10});
    const RankRule uneven = {.names = "*", .split = Split::column, .uneven = true};
    CHECK(part_values(embedding, uneven, {2, 4}) == Bytes8{6, 7, 8});
    CHECK(part_values(embedding, uneven, {3, 4}) == Bytes8{9});
    CHECK(part(embedding, uneven, {6, 7}).shape() == Shape{0});
    const RankRule padded = {.names = "*", .split = Split::column, .padded_size = 16};
    CHECK(part_values(embedding, padded, {0, 4}) == Bytes8{0, 1, 2, 3});
    CHECK(part_values(embedding, padded, {2, 4}) == Bytes8{8, 9});
    CHECK(part(embedding, padded, {3, 4}).shape() == Shape{0});
}

TEST_CASE("experts are whole: the number in a name, or an index of a stacked tensor, chooses the rank") {
    std::vector<LazyTensor> tensors;
    for (const char* name :
         {"0.experts.0.w", "0.experts.3.w", "0/experts/expert_2/w", "0.local_experts.1", "0.experts.w"})
        tensors.push_back(numbered(name, {4, 2}));
    const RankRule rule = {.names = "*", .split = Split::experts, .experts = 4};
    using Names = std::vector<std::string>;
    const auto first = tensors_of_rank(tensors, {&rule, 1}, {0, 2});
    CHECK(names_of(first) == Names{"0.experts.0.w", "0.local_experts.1", "0.experts.w"});
    CHECK(first[0].shape() == Shape{4, 2});
    CHECK(values(first[2]) == Bytes8{0, 1, 2, 3});
    const auto second = tensors_of_rank(tensors, {&rule, 1}, {1, 2});
    CHECK(names_of(second) == Names{"0.experts.3.w", "0/experts/expert_2/w", "0.experts.w"});
    CHECK(values(second[2]) == Bytes8{4, 5, 6, 7});

    const RankRule uneven = {.names = "*", .split = Split::experts, .experts = 4, .uneven = true};
    CHECK(names_of(tensors_of_rank(tensors, {&uneven, 1}, {1, 3})) ==
          Names{"0.experts.3.w", "0/experts/expert_2/w", "0.experts.w"});
    CHECK(names_of(tensors_of_rank(tensors, {&uneven, 1}, {2, 3})) == Names{"0.experts.w"});
    // Other numbers do not name an expert.
    CHECK(part_values(numbered("moe.experts.w.3", {4}), rule, {3, 4}) == Bytes8{3});
    CHECK(part_values(numbered("experts.9x.w", {4}), rule, {3, 4}) == Bytes8{3});
    CHECK(part_values(numbered("w", {2, 4}), {.names = "*", .split = Split::experts, .dimension = 1, .experts = 4},
                      {3, 4}) == Bytes8{3, 7});
}

TEST_CASE("parts are cut again: experts first, then the tensors of an expert") {
    const LazyTensor stacked = numbered("experts.gate_up", {4, 4, 1});
    const RankRule experts = {.names = "*", .split = Split::experts, .experts = 4};
    const RankRule gate_up = {.names = "*", .split = Split::column, .sections = {{}, {}}, .dimension = 1};
    CHECK(part_values(part(stacked, experts, {1, 2}), gate_up, {1, 2}) == Bytes8{9, 11, 13, 15});
    // A tensor of several pieces is cut again, too.
    CHECK(part_values(part(stacked, gate_up, {1, 2}), experts, {1, 2}) == Bytes8{9, 11, 13, 15});
    CHECK(part_values(part(stacked, gate_up, {1, 2}), {.names = "*", .split = Split::column, .sections = {{}, {}}},
                      {0, 2}) == Bytes8{1, 3, 9, 11});
}

TEST_CASE("the first rule that matches counts") {
    const std::vector<LazyTensor> tensors = {numbered("a.norm", {4}), numbered("a.w", {4}), numbered("b", {4})};
    const Rules rules = {{.names = "*norm"}, {.names = "a.*", .split = Split::column}, {.names = "*"}};
    const auto parts = tensors_of_rank(tensors, rules, {3, 4});
    REQUIRE(names_of(parts) == std::vector<std::string>{"a.norm", "a.w", "b"});
    CHECK(parts[0].shape() == Shape{4});
    CHECK(parts[1].shape() == Shape{1});
    CHECK(parts[2].shape() == Shape{4});
    CHECK(tensors_of_rank(std::span<const LazyTensor>(), rules, {}).empty());
}

TEST_CASE("tied tensors stay tied, also if a rank has several ranges of them") {
    const LazyTensor embedding = numbered("embedding", {8, 2});
    const std::vector<LazyTensor> tensors = {embedding, embedding.renamed("head"), embedding.renamed("rows")};
    Rules rules = {{.names = "rows", .split = Split::row}, {.names = "*", .split = Split::column}};
    const auto uploaded = [&] {
        Uploader uploader(Device::open("host"), containers::checkpoint_of(containers::safetensors({})));
        const Lease lease = uploader.acquire(uploader.bundle(tensors_of_rank(tensors, rules, {1, 2})));
        CHECK(lease.tensors().size() == 3);
        return uploader.stats().uploaded_bytes;
    };
    CHECK(uploaded() == 2 * 8);  // once for embedding and head
    rules[1].sections = {{}, {}};
    CHECK(uploaded() == 2 * 8);
    rules.insert(rules.begin(), {.names = "head", .split = Split::column, .sections = {{}, {}, {}, {}}});
    CHECK(uploaded() == 3 * 8);  // cut in another way
}

TEST_CASE("all names of a checkpoint are cut, each by its own rule") {
    const Checkpoint model = containers::checkpoint_of(containers::safetensors(
        {{"head", Dtype::u8, {4}, "abcd"}, {"norm", Dtype::u8, {1}, "n"}}, R"("__metadata__":{"wte":"head"},)"));
    REQUIRE(model.size() == 2);
    const Rules rules = {{.names = "head", .split = Split::column}, {.names = "*"}};
    const auto parts = tensors_of_rank(model, rules, {1, 2});
    REQUIRE(names_of(parts) == std::vector<std::string>{"head", "wte", "norm"});
    CHECK(values(parts[0]) == Bytes8{'c', 'd'});
    CHECK(values(parts[1]) == Bytes8{'a', 'b', 'c', 'd'});
}

TEST_CASE("a tensor that ranks cannot share is an error, with its name, dimension and size") {
    const LazyTensor tensor = numbered("w", {6, 4});
    const auto refused = [&](const RankRule& rule, Rank rank, std::vector<std::string> texts) {
        const auto error = error_of([&] { static_cast<void>(tensors_of_rank({&tensor, 1}, {&rule, 1}, rank)); });
        check_error(error, {Errc::invalid_argument}, {});
        CHECK(error->tensor() == "w");
        for (const std::string& text : texts) {
            INFO(std::string(error->what()) << "; " << error->hint());
            CHECK((error->message() + "; " + error->hint()).find(text) != std::string::npos);
        }
    };
    const auto column = [](std::vector<RankRule::Section> sections, std::uint64_t groups = 1) {
        return RankRule{.names = "*", .split = Split::column, .sections = std::move(sections), .groups = groups};
    };
    refused({.names = "x"}, {0, 2}, {"no rule matches", "\"*\""});
    refused(column({}), {0, 4}, {"dimension 0 has size 6, which 4 ranks", "uneven"});
    refused({.names = "*", .split = Split::row}, {0, 3}, {"dimension 1 has size 4, which 3 ranks"});
    refused({.names = "*", .split = Split::row, .dimension = 2}, {0, 1}, {"no dimension 2 in shape [6, 4]"});
    refused(column({{}, {.size = 3}}), {0, 1}, {"dimension 0 has size 6, which is not a multiple of the 4"});
    refused(column({{.heads = 2, .size = 1}, {.size = 1}}), {0, 1}, {"section 0 of dimension 0 has size 3", "2 heads"});
    refused(column({{}, {}}), {0, 2}, {"section 0 of dimension 0 has size 3, which 2 ranks"});
    refused(column({{.heads = 2}}), {0, 4}, {"dimension 0 has 2 heads, which 4 ranks", "Section::repeat"});
    refused(column({{.heads = 2, .repeat = true}}), {0, 3}, {"dimension 0 has 2 heads, which 3 ranks"});
    refused(column({{.heads = 3, .repeat = true}}), {0, 2}, {"dimension 0 has 3 heads, which 2 ranks"});
    refused(column({{}}, 4), {0, 1}, {"dimension 0 has size 6, which is not a multiple of its 4 groups"});
    refused(column({{}}, 3), {0, 2}, {"dimension 0 has 3 groups, which 2 ranks"});
    refused(column({{}, {}}, 2), {0, 2}, {"size 3 in each of its 2 groups", "multiple of the 2"});
    refused(column({{.heads = 3}}, 2), {0, 4}, {"section 0 of dimension 0 has 3 heads, which 2 ranks"});
    const auto most = std::numeric_limits<std::uint64_t>::max();
    refused(column({{.size = most}, {}}), {0, 1}, {"do not fit in 64 bits"});
    refused({.names = "*", .split = Split::column, .padded_size = 4}, {0, 2}, {"size 6, which is more than", "4"});
    refused({.names = "*", .split = Split::column, .padded_size = 7}, {0, 2}, {"padded size 7, which 2 ranks"});
    refused({.names = "*", .split = Split::experts, .experts = 5}, {0, 5}, {"shape [6, 4]", "5 experts"});
    refused({.names = "*", .split = Split::experts, .experts = 6}, {0, 4}, {"6 experts, which 4 ranks", "uneven"});
}

TEST_CASE("experts beyond the last one, dimensions that cannot be cut, and bytes that cannot be cut are errors") {
    const RankRule experts = {.names = "*", .split = Split::experts, .experts = 4};
    const RankRule column = {.names = "*", .split = Split::column};
    for (const char* name : {"experts.4", "experts.99999999999999999999"})
        CHECK_FAULT(part(numbered(name, {4}), experts, {0, 2}), Errc::invalid_argument);
    CHECK_FAULT(part(numbered("experts.w", {}), experts, {0, 2}), Errc::invalid_argument);
    const std::uint64_t huge = std::uint64_t{1} << 63;
    CHECK_FAULT(part(numbered("w", {0, huge}), {.names = "*", .split = Split::row}, {0, 2}), Errc::invalid_argument);
    const LazyTensor packed("w", stored_run(Dtype::f4, {2, 3}, memory_source("memory", std::vector<std::byte>(3)), 0));
    CHECK_FAULT(part(packed, column, {0, 2}), Errc::partial_byte_slice);
}

TEST_CASE("a rule that contradicts itself, and a rank that does not exist, are errors before any tensor is cut") {
    const auto check = [](const RankRule& rule) {
        CAPTURE(rule.names);
        CHECK_FAULT(tensors_of_rank(std::span<const LazyTensor>(), {&rule, 1}, {0, 1}), Errc::invalid_argument);
    };
    check({.names = ""});
    check({.names = "*", .sections = {{}}});
    check({.names = "*", .groups = 2});
    check({.names = "*", .dimension = 0});
    check({.names = "*", .experts = 1});
    check({.names = "*", .uneven = true});
    check({.names = "*", .padded_size = 1});
    check({.names = "*", .split = Split::column, .groups = 0});
    check({.names = "*", .split = Split::column, .groups = 2});
    check({.names = "*", .split = Split::column, .experts = 1});
    check({.names = "*", .split = Split::column, .sections = {{}}, .uneven = true});
    check({.names = "*", .split = Split::column, .sections = {{}}, .padded_size = 1});
    check({.names = "*", .split = Split::column, .sections = {{.repeat = true}}});
    check({.names = "*", .split = Split::column, .uneven = true, .padded_size = 1});
    check({.names = "*", .split = Split::experts});
    check({.names = "*", .split = Split::experts, .sections = {{}}, .experts = 1});
    for (const Rank rank : {Rank{0, 0}, Rank{2, 2}})
        CHECK_FAULT(tensors_of_rank(std::span<const LazyTensor>(), Rules{{.names = "*"}}, rank),
                    Errc::invalid_argument);
}

namespace {

/// A layer in one source that counts the bytes that are read: 4 heads of Q, 2 of K and V. Every part and every gap is
/// larger than the gaps that are read.
struct CountedLayer {
    static constexpr std::uint64_t unit = 16U << 10;
    static constexpr std::uint64_t size = (8 + 8 + 4 + 4 + 4) * unit + 64;
    Counted source{soak::seed(1), size};
    std::vector<LazyTensor> tensors;
    Rules rules = {{.names = "qkv",
                    .split = Split::column,
                    .sections = {{.heads = 4}, {.heads = 2, .repeat = true}, {.heads = 2, .repeat = true}}},
                   {.names = "o", .split = Split::row},
                   {.names = "gate_up", .split = Split::column, .sections = {{}, {}}},
                   {.names = "experts.*", .split = Split::experts, .experts = 4},
                   {.names = "norm"}};

    CountedLayer() {
        add("qkv", {8, unit});
        add("o", {2, 4 * unit});
        add("gate_up", {8, unit / 2});
        for (const char* name : {"experts.0", "experts.1", "experts.2", "experts.3"}) add(name, {unit});
        add("experts.stacked", {4, unit});
        add("norm", {64});
        CHECK(end == size);
    }
    void add(const char* name, Shape shape) {
        const std::uint64_t offset = end;
        end += *element_count(shape);
        tensors.emplace_back(name, stored_run(Dtype::u8, std::move(shape), source.source(), offset));
    }
    std::uint64_t end = 0;
};

}  // namespace

TEST_CASE("a rank reads the bytes of its tensors and no others") {
    for (const std::uint64_t ranks : {1U, 2U, 4U}) {
        CAPTURE(ranks);
        std::uint64_t all = 0;
        for (std::uint64_t number = 0; number < ranks; ++number) {
            const CountedLayer layer;
            const auto parts = tensors_of_rank(layer.tensors, layer.rules, {number, ranks});
            CHECK(layer.source.bytes() == 0);
            std::uint64_t mine = 0;
            for (const LazyTensor& tensor : parts) mine += tensor.nbytes();
            std::vector<TensorView> loaded;
            for (const LazyTensor& tensor : parts) loaded.push_back(tensor.load());
            CHECK(layer.source.bytes() == mine);

            // The same bytes come to a device, in one bundle.
            Uploader uploader(Device::open("host"), containers::checkpoint_of(containers::safetensors({})));
            const Lease lease = uploader.acquire(uploader.bundle(parts));
            CHECK(layer.source.bytes() == 2 * mine);
            REQUIRE(lease.tensors().size() == parts.size());
            for (std::size_t i = 0; i < parts.size(); ++i) {
                const auto bytes = lease.tensors()[i].host_bytes();
                CHECK(std::equal(bytes.begin(), bytes.end(), loaded[i].bytes().begin(), loaded[i].bytes().end()));
            }
            all += mine;
        }
        // Every rank has the norm. Of four ranks, two have each head of K and V.
        CHECK(all == CountedLayer::size + (ranks - 1) * 64 + (ranks == 4 ? 4 * CountedLayer::unit : 0));
    }
}

TEST_CASE("small gaps between the rows of a rank are read, and large ones are not") {
    for (const std::uint64_t gap : {2U << 10, 6U << 10, 8U << 10, 9U << 10, 40U << 10}) {
        CAPTURE(gap);
        constexpr std::uint64_t rows = 64;
        const Counted counted(1, rows * 2 * gap);
        const LazyTensor tensor = counted.tensor("w", Dtype::u8, {rows, 2 * gap});
        const LazyTensor mine = part(tensor, {.names = "*", .split = Split::row}, {1, 2});
        static_cast<void>(mine.load());
        CHECK(counted.bytes() >= mine.nbytes());
        CHECK(counted.bytes() <= mine.nbytes() + (gap <= 8U << 10 ? (rows - 1) * gap : 0));
    }
}

}  // namespace ranks_test
