// Fuzzes DCP folders: small forged checkpoints, in which one file is replaced or changed. Property: the folder opens,
// and its tensors load, or an Error says that the data is wrong, in time and memory proportional to the input.
//
// In the first byte of an input, two bits pick the file (metadata of the whole, an item, metadata of one of two ranks,
// an item that is a zstd stream), and two the version of torch. If its highest bit is set, the rest is a list of
// changes of that file: a kind, a place of two bytes, and a value. Otherwise the rest is the file itself. Another bit
// has faults collected, as verify() does, where open() stops at the first.
#include "base/zstd.hpp"
#include "forge/dcp.hpp"
#include "forge/zstd.hpp"
#include "fuzz_target.hpp"
#include "open/read.hpp"

#include <safemap/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>

namespace fuzz_dcp {

using namespace safemap;
using dcp_forge::Save;

namespace {

using Files = std::map<std::string, std::string>;

void require(bool holds) {
    if (!holds) std::abort();
}

/// A folder that has every file of items that is asked for: real metadata names its own.
class AnyFolder final : public Folder {
public:
    explicit AnyFolder(Files files) : files_(std::move(files)) {}

    const std::string& name() const noexcept override { return files_.name(); }
    std::vector<std::string> list() const override { return files_.list(); }
    std::vector<std::string> folders() const override { return files_.folders(); }
    std::shared_ptr<const Folder> folder(std::string_view below) const override { return files_.folder(below); }
    std::shared_ptr<const Source> open(std::string_view file) const override {
        const auto found = files_.open(file);
        return found || !file.ends_with(".distcp") ? found : files_.open("__0_0.distcp");
    }

private:
    forge::Folder files_;
};

Save forged(dcp_forge::Era era) {
    std::mt19937 random(1);
    Save save;
    save.metadata.era = era;
    dcp_forge::add_tensor(save, random, "model.w", Dtype::bf16, {3, 2}, std::string(12, 'w'),
                          {{{0, 0}, {2, 2}}, {{2, 0}, {1, 2}}}, 1);
    save.metadata["model.w"].path = std::vector<dcp_forge::Step>{"model", "w"};
    const std::string tensor = forge::tensor(forge::storage("ByteStorage", "0", 2), 0, {forge::integer(2)}, {"K\1"});
    save.metadata.entries.push_back(
        {.name = "groups.0.lr",
         .path = std::vector<dcp_forge::Step>{"groups", 0, "lr"},
         .item = save.put("__0_0.distcp", dcp_forge::object_item(forge::dict({forge::text("t"), tensor}), {"tt"}))});
    return save;
}

/// Packs the last item.
void pack(Save& save) {
    dcp_forge::Item& item = save.metadata["groups.0.lr"].item;
    std::string& file = save.files["__0_0.distcp"];
    const std::string packed = forge::zstd_frame(std::string_view(file).substr(static_cast<std::size_t>(item.offset)));
    file.resize(static_cast<std::size_t>(item.offset));
    item = save.put("__0_0.distcp", packed);
    item.transforms = {"stream.zstd/1"};
}

std::string changed(std::string file, std::string_view changes) {
    for (; changes.size() >= 4 && !file.empty(); changes.remove_prefix(4)) {
        const auto byte = [changes](std::size_t i) { return static_cast<unsigned char>(changes[i]); };
        const std::size_t place = (byte(1) + 256U * byte(2)) % file.size();
        switch (byte(0) % 3) {
            case 0: file[place] = changes[3]; break;
            case 1: file.insert(place, 1, changes[3]); break;
            default: file.erase(place, 1U + byte(3) % 8); break;
        }
    }
    return file;
}

void open_all(const Files& files, FaultSink& faults) {
    const OpenOptions options = {.work = {.threads = 1}};
    const auto contents = open::read_located(open::locate(std::make_shared<AnyFolder>(files)), options, faults);
    for (const LazyTensor& tensor : contents.tensors)
        if (tensor.nbytes() <= 65536) static_cast<void>(tensor.load());
}

}  // namespace

FUZZ_TARGET(dcp, data, size) {
    if (size == 0) return 0;
    const unsigned target = data[0] & 3U;
    Save save = forged(static_cast<dcp_forge::Era>(data[0] >> 2U & 3U));
    if (target == 3 && has_zstd()) pack(save);
    Files files = save.all();
    if (target == 2) {
        files["__0.metadata"] = files[".metadata"];
        files["__1.metadata"] = files[".metadata"];
        files.erase(".metadata");
    }
    std::string& file = files[target == 0 ? ".metadata" : target == 2 ? "__1.metadata" : "__0_0.distcp"];
    const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    file = (data[0] & 0x80U) != 0 ? changed(file, rest) : std::string(rest);
    try {
        CollectFaults collected;
        ThrowFirst first;
        open_all(files, (data[0] & 0x40U) != 0 ? static_cast<FaultSink&>(collected) : first);
        for (const Error& error : collected.take()) require(remedy(error.code()) == Remedy::reject_data);
    } catch (const Error& error) {
        require(remedy(error.code()) == Remedy::reject_data);
    }
    return 0;
}

}  // namespace fuzz_dcp
