// Tests digests by SHA-256: the same in every container, and different for tensors with equal XXH3-128.
#include <safemap/digest.hpp>

#include "base/checksum.hpp"
#include "forge/containers.hpp"
#include "torch/sha256.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>

namespace sha256_test {

using namespace safemap;
using namespace containers;

namespace {

/// Returns true if the build has SHA-256. If not, checks that every digest is refused; the test is then over.
bool has_sha256() {
    try {
        static_cast<void>(digests(checkpoint_of(containers::safetensors({})), {.algorithm = DigestAlgorithm::sha256}));
        return true;
    } catch (const Error& error) {
        CHECK(error.code() == Errc::invalid_argument);
        return false;
    }
}

std::string sha256_of(std::string_view bytes) { return sha256(std::as_bytes(std::span(bytes.data(), bytes.size()))); }

/// Computes the digest by the definition.
std::string slow_digest(const std::vector<Sample>& samples) {
    std::vector<std::string> lines;
    for (const Sample& sample : samples)
        lines.push_back(sample.name + '\0' + std::string(name(sample.dtype)) + '\0' + shape_text(sample.shape) + '\0' +
                        sha256_of(sample.bytes) + '\n');
    std::sort(lines.begin(), lines.end());
    std::string all;
    for (const std::string& line : lines) all += line;
    return sha256_of(all);
}

/// Returns bytes whose XXH3 does not depend on `high`: where the lower half of a lane equals that of the default
/// secret, its product is zero, and the rest is a sum in which the two upper halves cancel out.
std::string colliding(std::uint32_t high) {
    std::string bytes(512, 'x');
    const auto put = [&](std::size_t at, std::string_view secret, std::uint32_t upper) {
        for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = secret[i];
        for (std::size_t i = 0; i < 4; ++i) bytes[at + 4 + i] = static_cast<char>(upper >> (8 * i) & 255);
    };
    put(0, "\xb8\xfe\x6c\x39", 1'000'000 + high);
    put(64, "\x7c\x01\x81\x2c", 1'000'000 - high);
    return bytes;
}

}  // namespace

TEST_CASE("SHA-256 is the same in every container, by any number of threads, and as defined") {
    if (!has_sha256()) return;
    std::mt19937 random(5);
    auto samples = random_samples(random, {Dtype::f32, Dtype::bf16, Dtype::i64, Dtype::u8});
    samples.push_back({"large", Dtype::u8, {1'500'000}, std::string(1'500'000, 'x')});  // more than a block
    samples.push_back({"none", Dtype::f32, {0}, ""});
    std::map<std::string, std::string> wanted;
    for (const Sample& sample : samples) wanted.emplace(sample.name, sha256_of(sample.bytes));
    const std::string wanted_of_all = slow_digest(samples);
    const TempDir dir;
    for (const Checkpoint& model : {checkpoint_of(containers::safetensors(samples)),
                                    Checkpoint::open(write_shards(dir, samples)), checkpoint_of(pt(samples))})
        for (const unsigned threads : {1U, 4U}) {
            const auto report = digests(model, {.algorithm = DigestAlgorithm::sha256, .work = {.threads = threads}});
            CHECK(report.algorithm == DigestAlgorithm::sha256);
            CHECK(report.checkpoint == wanted_of_all);
            REQUIRE(report.tensors.size() == samples.size());
            for (const TensorDigest& tensor : report.tensors) {
                REQUIRE(wanted.count(tensor.name) == 1);
                CHECK(tensor.digest == wanted.at(tensor.name));
                CHECK(digest(model[tensor.name], DigestAlgorithm::sha256) == tensor.digest);
            }
        }
    CHECK(name(DigestAlgorithm::sha256) == "sha256");
    CHECK(digests(checkpoint_of(containers::safetensors({}))).algorithm == DigestAlgorithm::xxh3_128);
}

TEST_CASE("two tensors can have the same XXH3-128, and then have different SHA-256") {
    const auto report = [](std::uint32_t high, DigestAlgorithm algorithm) {
        return digests(checkpoint_of(containers::safetensors({{"w", Dtype::u8, {512}, colliding(high)}})),
                       {.algorithm = algorithm});
    };
    REQUIRE(colliding(1) != colliding(2));
    CHECK(report(1, DigestAlgorithm::xxh3_128).checkpoint == report(2, DigestAlgorithm::xxh3_128).checkpoint);
    if (!has_sha256()) return;
    CHECK(report(1, DigestAlgorithm::sha256).checkpoint != report(2, DigestAlgorithm::sha256).checkpoint);
    CHECK(report(1, DigestAlgorithm::sha256).tensors[0].digest != report(2, DigestAlgorithm::sha256).tensors[0].digest);
}

}  // namespace sha256_test
