// Links the shared library through its public headers only, as a user does, to check that it exports what they declare.
#include <safemap/safemap.hpp>

#include <safemap/advanced/stored_tensor.hpp>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace safemap;

#define TEXT_OF(macro) QUOTED(macro)
#define QUOTED(text) #text
#define TWO_NUMBERS(separator) TEXT_OF(SAFEMAP_VERSION_MAJOR) separator TEXT_OF(SAFEMAP_VERSION_MINOR)

// meson.build states the version too, and the two must agree; the ABI name has the first two numbers.
static_assert(std::string_view(SAFEMAP_VERSION) == PROJECT_VERSION);
static_assert(std::string_view(SAFEMAP_VERSION) == TWO_NUMBERS(".") "." TEXT_OF(SAFEMAP_VERSION_PATCH));
static_assert(std::string_view(TEXT_OF(SAFEMAP_ABI)) == "inline v" TWO_NUMBERS("_"));

std::shared_ptr<const Source> four_floats() {
    const float values[] = {1, 2, 3, 4};
    std::vector<std::byte> bytes(sizeof(values));
    std::memcpy(bytes.data(), values, sizeof(values));
    return memory_source("four floats", std::move(bytes));
}

/// Takes a tensor to a file, and from the file to a device.
bool there_and_back(const std::filesystem::path& file) {
    const LazyTensor tensor("w", stored_run(Dtype::f32, {2, 2}, four_floats(), 0));
    save(file, std::span<const LazyTensor>(&tensor, 1));

    const auto checkpoint = Checkpoint::open(file);
    const TensorView view = checkpoint["w"].slice({{.start = 1}}).load();
    if (view.as<float>()[1] != 4 || !verify(file).ok()) return false;
    if (plan_load(checkpoint, expected_tensors(checkpoint)).tensors().size() != 1) return false;
    if (tensors_of_rank(checkpoint, std::vector<RankRule>{{.names = "*"}}, {}).size() != 1) return false;
    if (!diff(checkpoint, checkpoint).equal() || digests(checkpoint).tensors[0].digest != digest(tensor)) return false;

    Uploader uploader(Device::open("host"), checkpoint, {.device_budget = 4096});
    const Lease lease = uploader.acquire(uploader.bundle(Selection::glob("*")));
    return lease["w"].nbytes() == 16;
}

/// Checks that exceptions keep their type across the boundary of the shared library.
bool errors_arrive() {
    try {
        static_cast<void>(Checkpoint::open("/nowhere/at/all"));
    } catch (const Error& error) {
        return error.code() == Errc::path_not_found && exit_code(error.code()) == 2;
    }
    return false;
}

}  // namespace

int main() {
    std::string pattern = (std::filesystem::temp_directory_path() / "safemap-consumer-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) return 2;
    bool good = false;
    try {
        good = there_and_back(pattern + "/w.safetensors") && errors_arrive();
    } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    std::filesystem::remove_all(pattern);
    return good ? 0 : 1;
}
