// safemap load: loads every tensor to a device under a budget, and reports time, rate and memory.
#include "command.hpp"
#include "entries.hpp"
#include "memory.hpp"
#include "parse.hpp"
#include "progress.hpp"

#include <safemap/advanced/names.hpp>
#include <safemap/advanced/text.hpp>
#include <safemap/ranks.hpp>
#include <safemap/uploader.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace safemap::cli {
namespace {

struct LoadReport {
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;
    double seconds = 0;
    UploadStats stats = {};
    std::uint64_t peak_anon_bytes = 0;
    std::vector<std::pair<std::string, std::string>> digests = {};  // in the order of the checkpoint

    double bytes_per_second() const { return seconds > 0 ? static_cast<double>(stats.uploaded_bytes) / seconds : 0; }
    double stall_seconds() const { return std::chrono::duration<double>(stats.stalled).count(); }
};

JsonWriter as_json(const LoadReport& report, bool with_digests) {
    JsonWriter json;
    json.begin_object();
    json.member("tensors", report.tensors).member("bytes", report.bytes).member("seconds", report.seconds);
    json.member("bytes_per_second", report.bytes_per_second());
    json.member("peak_device_bytes", report.stats.peak_device_bytes);
    json.member("peak_staging_bytes", report.stats.peak_staging_bytes);
    json.member("peak_anon_bytes", report.peak_anon_bytes);
    json.member("uploaded_bytes", report.stats.uploaded_bytes);
    json.member("stall_seconds", report.stall_seconds());
    json.key("paths").begin_object();
    json.member("pread", report.stats.bytes_pread).member("direct", report.stats.bytes_direct);
    json.end_object();
    if (with_digests) {
        json.key("digests").begin_object();
        for (const auto& [name, digest] : report.digests) json.member(name, digest);
        json.end_object();
    }
    json.end_object();
    return json;
}

std::string as_text(const LoadReport& report, const std::string& device) {
    std::string text = fmt::format("{}: {}, {} in {}, {}/s\n", printable(device), count_text(report.tensors, "tensor"),
                                   bytes_text(report.bytes), duration_text(report.seconds),
                                   bytes_text(static_cast<std::uint64_t>(report.bytes_per_second())));
    text += fmt::format("  uploaded  {}, {} of it with direct I/O\n", bytes_text(report.stats.uploaded_bytes),
                        bytes_text(report.stats.bytes_direct));
    text += fmt::format("  peak      {} on the device, {} staged, {} of memory\n",
                        bytes_text(report.stats.peak_device_bytes), bytes_text(report.stats.peak_staging_bytes),
                        bytes_text(report.peak_anon_bytes));
    text += fmt::format("  waited    {}\n", duration_text(report.stall_seconds()));
    Table digests({Table::Align::left, Table::Align::left});
    for (const auto& [name, digest] : report.digests) digests.row({digest, printable(name)});
    return text + digests.text(unlimited_columns);  // shortened names could look the same
}

/// Returns the rows of a rank, split as torch.chunk splits. A 0-d tensor is loaded by every rank.
std::vector<LazyTensor> rows_of(std::span<const LazyTensor> tensors, Rank rank) {
    const RankRule rules[] = {{.names = "*", .split = RankRule::Split::column, .uneven = true}};
    return tensors_of_rank(tensors, rules, rank);
}

/// Follows an order, unless its bundles fit only one at a time. Then each is uploaded when it is needed.
UploadOrder follow(Uploader& uploader, std::span<const Bundle> bundles, bool once) {
    if (bundles.empty()) return {};
    try {
        return once ? uploader.follow_once(bundles) : uploader.follow(bundles);
    } catch (const Error& error) {
        if (error.code() != Errc::budget_exceeded) throw;
        return {};
    }
}

/// Cuts a list of tensors into bundles of neighbours: together they come faster than one by one. A tensor that is
/// larger than a bundle should be has one of its own.
class Bundles {
public:
    /// A budget of 0 stands for one that the uploader chooses.
    Bundles(Uploader& uploader, std::span<const LazyTensor> tensors, std::uint64_t budget)
        : most_(budget == 0 ? preferred : std::min(preferred, budget / in_budget)) {
        std::size_t first = 0;
        std::uint64_t bytes = 0;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            const std::uint64_t place = (bytes + padding - 1) / padding * padding;
            const std::uint64_t size = tensors[i].nbytes();
            const bool fits = place <= most_ && size <= most_ - place;
            if (i > first && !fits) {
                bundles_.push_back(uploader.bundle(tensors.subspan(first, i - first)));
                first = i;
                bytes = size;
            } else {
                bytes = place + size;
            }
        }
        if (first < tensors.size()) bundles_.push_back(uploader.bundle(tensors.subspan(first)));
    }

    const std::vector<Bundle>& all() const noexcept { return bundles_; }

private:
    static constexpr std::uint64_t preferred = 64_MiB;
    static constexpr std::uint64_t padding = 256;  // alignment of the tensors in a bundle
    // Two bundles are on their way or in use; the rest of the budget is for bundles that stay for the next pass.
    static constexpr std::uint64_t in_budget = 32;

    std::uint64_t most_;
    std::vector<Bundle> bundles_;
};

class Load final : public Command {
public:
    void declare(CLI::App& app) override {
        app.add_option("PATH", path_, "a file, a folder or an index")->required()->type_name("");
        app.add_option("--device", device_, "the device to load to: host, cuda:N or opencl:N")
            ->required()
            ->type_name("DEVICE");
        add_parsed(app, "--budget", upload_.device_budget, parse_size,
                   "most device memory to use (default: nine tenths of what is free)")
            ->type_name("SIZE");
        app.add_flag("--digest", digest_, "read every tensor back and print its XXH3-128");
        add_parsed(app, "--rank", rank_, parse_rank,
                   "load only the rows of rank r of N, split along dimension 0 as torch.chunk splits")
            ->type_name("r/N");
        const auto passes = [](std::string_view text) { return parse_count(text, 1'000'000); };
        add_parsed(app, "--repeat", repeat_, passes, "number of passes (default: 1)")->type_name("N");
    }

    int run(Console& console) override {
        MemoryPeak memory;
        const std::shared_ptr<Device> device = Device::open(device_);
        const Checkpoint checkpoint = Checkpoint::open(path_, common.open);
        require_selection({checkpoint}, common);
        const LoadReport report = load(console, device, checkpoint.select(common.selection()), memory);
        if (console.json()) console.result(as_json(report, digest_));
        else console.result(as_text(report, device_));
        return 0;
    }

private:
    LoadReport load(const Console& console, const std::shared_ptr<Device>& device, const Checkpoint& chosen,
                    MemoryPeak& memory) const {
        try {
            return measure(console, device, chosen, memory);
        } catch (Error& error) {
            if (!error.tensor().empty()) error.with_path(path_);
            throw;
        }
    }

    LoadReport measure(const Console& console, const std::shared_ptr<Device>& device, const Checkpoint& chosen,
                       MemoryPeak& memory) const {
        UploadOptions options = upload_;
        options.readers = common.open.work.threads;
        ProgressBar bar(console);
        Uploader uploader(device, chosen, options);
        LoadReport report{.tensors = chosen.size()};
        std::vector<LazyTensor> tensors(chosen.begin(), chosen.end());
        if (rank_) tensors = rows_of(tensors, *rank_);
        for (const LazyTensor& tensor : tensors) report.bytes += tensor.nbytes();
        Progress progress{.stage = "loading", .bytes_total = report.bytes * repeat_};
        std::vector<std::string> digests(tensors.size());

        const Bundles bundles(uploader, tensors, options.device_budget);
        UploadOrder order;
        for (unsigned pass = 0; pass < repeat_; ++pass) {
            const bool last = pass + 1 == repeat_;
            if (last) order.end();
            if (pass == 0 || last) order = follow(uploader, bundles.all(), last);
            std::size_t i = 0;  // in `tensors`
            for (const Bundle& bundle : bundles.all()) {
                const Lease lease = uploader.acquire(bundle);
                for (const DeviceTensor& tensor : lease.tensors()) {
                    if (last && digest_) digests[i] = digest(*device, tensor);
                    progress.bytes_done += tensors[i++].nbytes();
                }
                progress.bytes_per_second = static_cast<double>(progress.bytes_done) / bar.seconds();
                bar.show(progress);
            }
        }
        if (digest_)
            for (const NamedTensor& named : all_names(chosen))
                report.digests.emplace_back(named.name, digests[named.tensor]);
        report.stats = uploader.stats();
        report.seconds = bar.seconds();
        report.peak_anon_bytes = memory.bytes();  // while tensors are there
        return report;
    }

    std::string path_;
    std::string device_;
    UploadOptions upload_;
    std::optional<Rank> rank_;
    bool digest_ = false;
    unsigned repeat_ = 1;
};

}  // namespace

std::unique_ptr<Command> make_load() { return std::make_unique<Load>(); }

}  // namespace safemap::cli
