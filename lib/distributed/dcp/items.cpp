// Reads items. Data flow:
//
//   open_files     all files, in parallel
//   Plan           the order of the items in the files; their places are checked here
//   Batch          neighbours in a file, on one thread: windows of the file are read, and items are parsed from them
//   read_item      one item: a tensor, which is compared with its chunk, or an object
//   finish         faults and globals in the order of the items, whichever thread found them
//
// An item of torch.save has its pickle in the first few hundred bytes and its directory in the last thousand, with the
// numbers between them. The end of an item and the beginning of the next are one window; small items are wholly in it.
// Tested by tests/distributed/dcp_test.cpp.
#include "distributed/dcp/items.hpp"

#include "base/pool.hpp"
#include "base/text.hpp"
#include "base/watch.hpp"
#include "base/zstd.hpp"
#include "pickle/memory_share.hpp"
#include "pickle/pickle.hpp"
#include "torch/archive.hpp"
#include "torch/rebuild.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

/// Returns true if items with this transform of DcpMetadata::transforms are zstd streams.
bool is_zstd(std::string_view transform) {
    constexpr std::string_view version_1 = "stream.zstd/1";
    return transform == version_1 || transform.starts_with(std::string(version_1) + '.');
}

/// Threads hold windows and pickles; reading is bound by the processor.
constexpr ThreadLimits item_threads{16, 16};
/// Items that one thread reads in a row.
constexpr std::size_t batch_items = 256;
/// Bytes at the beginning of an item with its pickle, and at its end with its directory, as torch.save writes them.
/// A longer pickle or directory takes a read of its own.
constexpr std::uint64_t head_size = 1024;
constexpr std::uint64_t tail_size = 1024;
/// Bytes between two ranges that cost less to read than another read does.
constexpr std::uint64_t worthwhile_gap = 8U << 10;
constexpr std::uint64_t most_window = 256U << 10;
/// Limits of zstd streams: bytes beside those of a chunk, and bytes of an object.
constexpr std::uint64_t most_beside_chunk = 1U << 20;
constexpr std::uint64_t least_unpacked = 256U << 20;
constexpr std::uint64_t most_unpacked_ratio = 1032;  // as of deflate

/// A source that holds the ranges of another that were read last, for readers that jump between a few places near each
/// other. Reads through the source, which must outlive it. Not for several threads at once.
class ReadAhead final : public Source {
public:
    explicit ReadAhead(const Source& source) : source_(source) {}

    /// Reads a range, and keeps it and the range that was read before it. Does nothing if one of them is this range.
    void load(Extent range);
    /// Keeps bytes that the caller has, which begin at `offset`, in place of the older range.
    void keep(std::uint64_t offset, std::span<const std::byte> bytes);

    const std::string& name() const noexcept override { return source_.name(); }
    std::uint64_t size() const noexcept override { return source_.size(); }
    /// Copies bytes that are held; reads others.
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override;

private:
    struct Window {
        std::uint64_t offset = 0;
        std::vector<std::byte> bytes = {};
    };

    const Source& source_;
    std::array<Window, 2> windows_ = {};
    std::size_t latest_ = 0;
};

void ReadAhead::load(Extent range) {
    for (const Window& window : windows_)
        if (window.offset == range.offset && window.bytes.size() == range.size) return;
    latest_ = 1 - latest_;
    Window& window = windows_[latest_];
    window.offset = range.offset;
    window.bytes.resize(range.size);
    try {
        source_.read_at(range.offset, window.bytes);
    } catch (...) {
        window.bytes.clear();
        throw;
    }
}

void ReadAhead::keep(std::uint64_t offset, std::span<const std::byte> bytes) {
    latest_ = 1 - latest_;
    windows_[latest_].offset = offset;
    windows_[latest_].bytes.assign(bytes.begin(), bytes.end());
}

void ReadAhead::read_at(std::uint64_t offset, std::span<std::byte> into) const {
    for (const Window& window : windows_) {
        const bool begins = offset >= window.offset && offset - window.offset <= window.bytes.size();
        if (!begins || window.bytes.size() - (offset - window.offset) < into.size()) continue;
        if (!into.empty()) std::memcpy(into.data(), window.bytes.data() + (offset - window.offset), into.size());
        return;
    }
    source_.read_at(offset, into);
}

std::vector<std::shared_ptr<const Source>> open_files(const Folder& folder, const std::vector<std::string>& files,
                                                      const Work& work) {
    std::vector<std::shared_ptr<const Source>> sources(files.size());
    const Watch watch(work.monitor, "opening", 0);
    parallel_for(files.size(), thread_count(work.threads, item_threads), [&](std::size_t i, unsigned) {
        watch.check_stop();
        about_file([&] { return folder.name() + "/" + files[i]; },
                   [&] {
                       try {
                           sources[i] = folder.open(files[i]);
                       } catch (const Error& error) {
                           if (error.code() != Errc::shard_missing) throw;  // a folder, for example
                       }
                   });
    });
    return sources;
}

void report_missing(const Folder& folder, const std::vector<std::string>& files,
                    const std::vector<std::shared_ptr<const Source>>& sources, FaultSink& faults) {
    std::string names;
    std::size_t count = 0;
    for (std::size_t i = 0; i < files.size(); ++i) {
        if (sources[i]) continue;
        names += (count++ > 0 ? ", " : "") + excerpt(files[i]);
    }
    if (count == 0) return;
    faults.fault(Error(Errc::rank_missing,
                       (count == 1 ? std::string("a file that the metadata names is missing: ")
                                   : std::to_string(count) + " files that the metadata names are missing: ") +
                           names)
                     .with_path(folder.name()));
}

/// The items and replicas of a checkpoint, as they follow each other in the files.
class Plan {
public:
    /// An item or a replica by number: replicas follow the items.
    using Number = std::uint32_t;
    /// Items that one thread reads: neighbours in a file.
    struct Batch {
        std::size_t begin;
        std::size_t end;
    };

    explicit Plan(const DcpMetadata& metadata) : metadata_(metadata) {
        const std::size_t all = metadata.items.size() + metadata.replicas.size();
        order_.reserve(all);
        for (std::size_t i = 0; i < all; ++i)
            if (item(static_cast<Number>(i)).file != DcpItem::not_needed) order_.push_back(static_cast<Number>(i));
        const auto key = [&](Number number) {
            const DcpItem& at = item(number);
            return std::make_tuple(at.file, at.offset, at.length, at.transform, number);
        };
        std::sort(order_.begin(), order_.end(), [&](Number a, Number b) { return key(a) < key(b); });
        for (std::size_t i = 0; i < order_.size(); ++i) {
            const bool joins =
                !batches_.empty() && at(i).file == at(i - 1).file && i - batches_.back().begin < batch_items;
            if (joins || (i > 0 && same_place(i - 1, i))) batches_.back().end = i + 1;
            else batches_.push_back({i, i + 1});
        }
    }

    const std::vector<Batch>& batches() const noexcept { return batches_; }
    std::size_t size() const noexcept { return order_.size(); }
    Number number(std::size_t place) const { return order_[place]; }
    const DcpItem& item(Number number) const {
        const std::size_t items = metadata_.items.size();
        return number < items ? metadata_.items[number] : metadata_.replicas[number - items].other;
    }
    const DcpItem& at(std::size_t place) const { return item(order_[place]); }
    /// Returns the chunk that an item holds, or that its replica holds.
    std::uint32_t chunk_of(std::size_t place) const {
        const std::size_t items = metadata_.items.size();
        const Number number = order_[place];
        return number < items ? number : metadata_.replicas[number - items].item;
    }
    bool is_replica(std::size_t place) const { return order_[place] >= metadata_.items.size(); }
    bool same_place(std::size_t a, std::size_t b) const {
        const DcpItem& one = at(a);
        const DcpItem& other = at(b);
        return one.file == other.file && one.offset == other.offset && one.length == other.length &&
               one.transform == other.transform;
    }
    const DcpEntry& entry(std::size_t place) const { return metadata_.entries[at(place).entry]; }

private:
    const DcpMetadata& metadata_;
    std::vector<Number> order_ = {};
    std::vector<Batch> batches_ = {};
};

/// The windows of a batch: the ends of its items, those that are near each other together.
class Windows {
public:
    void add(Extent item) {
        if (item.size <= head_size + tail_size) {
            const std::size_t window = add_range(item);
            return places_.push_back({window, window});
        }
        const std::size_t head = add_range({item.offset, head_size});
        places_.push_back({head, add_range({item.end() - tail_size, tail_size})});
    }
    /// Reads the windows of the i-th item.
    void load(std::size_t i, ReadAhead& reader) const {
        reader.load(windows_[places_[i].head]);
        reader.load(windows_[places_[i].tail]);
    }

private:
    struct Place {
        std::size_t head;
        std::size_t tail;
    };

    std::size_t add_range(Extent range) {
        if (!windows_.empty()) {
            Extent& last = windows_.back();
            const bool near = range.offset >= last.offset && range.offset <= last.end() + worthwhile_gap;
            if (near && range.end() - last.offset <= most_window) {
                last.size = std::max(last.end(), range.end()) - last.offset;
                return windows_.size() - 1;
            }
        }
        windows_.push_back(range);
        return windows_.size() - 1;
    }

    std::vector<Extent> windows_ = {};
    std::vector<Place> places_ = {};
};

/// The archive in an item.
struct OpenItem {
    std::shared_ptr<const Source> source;  ///< the file, or the stream in it
    Extent part;
};

/// The reader of all items.
class Reader {
public:
    Reader(const DcpMetadata& metadata, DcpItems& out, bool strict)
        : metadata_(metadata), out_(out), plan_(metadata), strict_(strict) {
        out_.forms = std::make_unique<torch::TensorForms>(strict);
        out_.locals.resize(metadata.items.size());
        out_.replicas.resize(metadata.replicas.size());
        out_.tree_of.assign(metadata.entries.size(), DcpItems::no_tree);
        out_.faulty.assign(metadata.entries.size(), false);
        failed_.assign(plan_.size(), false);
    }

    void read(const Work& work) {
        check_places();
        const Watch watch(work.monitor, "opening", 0);
        const unsigned threads = thread_count(work.threads, item_threads);
        share_ = MemoryShare::of_each(threads);
        parallel_for(plan_.batches().size(), threads, [&](std::size_t i, unsigned) {
            watch.check_stop();
            read_batch(plan_.batches()[i]);
        });
        share_ = MemoryShare::least();
        for (const std::size_t place : large_) {
            watch.check_stop();
            read_alone(place);
        }
    }

    /// Reports what threads have found, in the order of the items.
    void finish(FaultSink& faults, FoundGlobals& globals) {
        state::move_to_end(streams_, out_.sources);
        for (std::size_t place = 0; place < plan_.size(); ++place)
            if (failed_[place]) out_.faulty[plan_.at(place).entry] = true;
        for (auto& [place, error] : faults_) faults.fault(std::move(error));
        out_.forms->each_globals(
            [&](std::uint64_t place, const torch::NamedGlobals& named) { globals_.emplace(place, named); });
        for (const auto& [place, named] : globals_) {
            FoundGlobals one = globals.another();
            one.add(named, metadata_.files[plan_.at(place).file]);
            globals.add_new(std::move(one));
        }
    }

private:
    bool failed(std::size_t place) {
        const std::lock_guard lock(mutex_);
        return failed_[place];
    }

    /// Adds a fault of the item at a place. Keeps the first one.
    void add_fault(std::size_t place, const Error& error) {
        constexpr std::size_t most = 4096;
        const std::lock_guard lock(mutex_);
        failed_[place] = true;
        if (faults_.size() == most) return;
        const DcpEntry& entry = plan_.entry(place);
        const std::shared_ptr<const Source>& file = out_.sources[plan_.at(place).file];
        Error about(error.code(), error.message());
        about.with_hint(error.hint()).with_path(error.path()).with_path(file ? file->name() : std::string());
        // Tensors in an object have a name of their own.
        about.with_tensor(entry.tensor || error.tensor().empty() ? entry.name : entry.name + '/' + error.tensor());
        faults_.try_emplace(place, std::move(about));
    }

    /// Keeps an item for read_alone(). Until then, it counts as failed.
    void postpone(std::size_t place) {
        const std::lock_guard lock(mutex_);
        failed_[place] = true;
        large_.insert(place);
    }

    // Places.

    /// Adds the faults of items that are not where they should be: past their file, or over each other.
    void check_places() {
        std::uint64_t end = 0;
        for (std::size_t i = 0; i < plan_.size(); ++i) {
            const DcpItem& item = plan_.at(i);
            if (i == 0 || item.file != plan_.at(i - 1).file) end = 0;
            if (!out_.sources[item.file]) failed_[i] = true;  // report_missing() has reported it
            else if (const auto fault = fault_of(i, end)) add_fault(i, *fault);
            else end = item.extent().end();
            if (!failed_[i]) list(i);
        }
    }

    /// Lists the place of an item for verify().
    void list(std::size_t place) {
        StoredItems& stored = out_.stored;
        const DcpItem& item = plan_.at(place);
        const std::shared_ptr<const Source>& file = out_.sources[item.file];
        if (stored.files.empty() || stored.files.back() != file) stored.files.push_back(file);
        const auto number = static_cast<std::uint32_t>(stored.files.size() - 1);
        const bool again =
            !stored.items.empty() && stored.items.back().file == number && stored.items.back().offset == item.offset;
        if (again) return;
        stored.items.push_back({.offset = item.offset,
                                .length = item.length,
                                .file = number,
                                .name = item.entry,
                                .zstd = item.transform != 0});
    }

    std::optional<Error> fault_of(std::size_t place, std::uint64_t end) const {
        const DcpItem& item = plan_.at(place);
        const std::shared_ptr<const Source>& file = out_.sources[item.file];
        const auto where = [&] {
            return "its item of " + bytes_text(item.length) + " at offset " + std::to_string(item.offset);
        };
        if (!item.extent().inside(file->size()))
            return Error(Errc::piece_missing,
                         where() + " reaches past the end of the file, which has " + bytes_text(file->size()));
        const bool again = place > 0 && plan_.same_place(place - 1, place) && !failed_[place - 1];
        if (item.offset < end && !again)
            return Error(Errc::zip_overlap, where() + " overlaps the item before it in the file, that of " +
                                                safemap::quoted(plan_.entry(place - 1).name));
        const std::string& transform = metadata_.transforms[item.transform];
        if (item.transform != 0 && !is_zstd(transform))
            return Error(Errc::unknown_transform, "its item was stored through the transform " +
                                                      safemap::quoted(transform) + ", which is unknown");
        return std::nullopt;
    }

    // Items.

    void read_batch(Plan::Batch batch) {
        Windows windows;
        std::vector<std::size_t> places;
        for (std::size_t i = batch.begin; i < batch.end; ++i) {
            if (failed(i)) continue;
            places.push_back(i);
            windows.add(plan_.at(i).extent());
        }
        if (places.empty()) return;
        ReadAhead reader(*out_.sources[plan_.at(places.front()).file]);
        for (std::size_t i = 0; i < places.size(); ++i) {
            keeping_fault(places[i], [&] {
                if (i > 0 && repeats(places[i - 1], places[i])) return;
                if (plan_.at(places[i]).transform == 0) windows.load(i, reader);
                read_item(places[i], reader);
            });
        }
    }

    /// Reads an item whose pickle needs more memory than the share of a thread. No other item may be read meanwhile.
    void read_alone(std::size_t place) {
        failed_[place] = false;
        ReadAhead reader(*out_.sources[plan_.at(place).file]);
        keeping_fault(place, [&] {
            if (place == 0 || !repeats(place - 1, place)) read_item(place, reader);
        });
    }

    void keeping_fault(std::size_t place, const auto& read) {
        const MemoryShare limit(share_);
        std::optional<Error> fault;
        try {
            read();
        } catch (const Error& error) {
            fault = error;
        }
        if (MemoryShare::was_too_small()) return postpone(place);
        if (!fault) return;
        if (exit_code(fault->code()) != 1) throw Error(*fault);
        add_fault(place, *fault);
    }

    /// Does for an item what was done for the item before it, if that is in the same place. Returns false if the item
    /// must be read itself. So it is with a tensor whose fault may be that it does not fit its chunk.
    bool repeats(std::size_t before, std::size_t place) {
        if (!plan_.same_place(before, place)) return false;
        if (!failed(before)) return share(before, place);
        std::optional<Error> fault;
        {
            const std::lock_guard lock(mutex_);
            if (large_.contains(before) && large_.insert(place).second) return failed_[place] = true;
            const auto found = faults_.find(before);
            if (found != faults_.end() && !plan_.entry(before).tensor && !plan_.entry(place).tensor)
                fault = Error(found->second.code(), found->second.message())
                            .with_hint(found->second.hint())
                            .with_path(found->second.path());
        }
        if (fault) add_fault(place, *fault);
        return fault.has_value();
    }

    /// Gives an item what the item before it, which is in the same place, holds. Returns false if that was read as
    /// something else.
    bool share(std::size_t before, std::size_t place) {
        const DcpEntry& entry = plan_.entry(place);
        if (plan_.entry(before).tensor != entry.tensor) return false;
        if (entry.tensor) {
            set_local(place, local(before));
        } else if (!plan_.is_replica(place)) {
            const std::lock_guard lock(mutex_);
            out_.tree_of[plan_.at(place).entry] = out_.tree_of[plan_.at(before).entry];
            return out_.tree_of[plan_.at(place).entry] != DcpItems::no_tree;
        }
        return true;
    }

    void read_item(std::size_t place, ReadAhead& file) {
        const DcpItem& item = plan_.at(place);
        const std::shared_ptr<const Source>& source = out_.sources[item.file];
        if (item.transform == 0) return read_archive(place, {source, item.extent()}, item.file, file);
        const std::string& name = plan_.entry(place).name;
        const ZstdContent content = scan_zstd(name, *source, item.extent(), most_unpacked(place));
        const auto stream = zstd_source(name, source, item.extent(), content.size);
        ReadAhead reader(*stream);
        reader.keep(0, content.head);
        reader.keep(content.size - content.tail.size(), content.tail);
        read_archive(place, {stream, {0, content.size}}, add_source(stream), reader);
    }

    /// Returns the most bytes that an item may unpack to: those of its chunk, or for an object, a multiple of its own.
    std::uint64_t most_unpacked(std::size_t place) const {
        const DcpEntry& entry = plan_.entry(place);
        if (!entry.tensor) return least_unpacked + most_unpacked_ratio * plan_.at(place).length;
        const auto size = metadata_.size(entry, plan_.chunk_of(place) - entry.first_item);
        return most_beside_chunk + byte_size(entry.dtype, element_count(Shape(size)).value_or(0)).value_or(0);
    }

    void read_archive(std::size_t place, const OpenItem& item, std::uint32_t source, const Source& reader) {
        ThrowFirst faults;
        torch::ArchiveRecords records(item.source, item.part, reader, faults);
        const bool unchecked = records.unchecked() > 0;
        if (plan_.entry(place).tensor) read_tensor(place, records, item, source);
        else read_object(place, std::move(records));
        const std::lock_guard lock(mutex_);
        if (unchecked) ++out_.unchecked;
    }

    void read_tensor(std::size_t place, torch::ArchiveRecords& records, const OpenItem& item, std::uint32_t source) {
        const torch::PlacedTensor found = out_.forms->read(records, place);
        const bool own = found.source == nullptr || found.source == item.source;
        set_local(place,
                  {.offset = found.offset, .source = own ? source : add_source(found.source), .form = found.form});
    }

    std::uint32_t add_source(const std::shared_ptr<const Source>& source) {
        const std::lock_guard lock(mutex_);
        streams_.push_back(source);
        return static_cast<std::uint32_t>(metadata_.files.size() + streams_.size() - 1);
    }

    void read_object(std::size_t place, torch::ArchiveRecords records) {
        torch::NamedGlobals named(strict_);
        const auto all = [](const PickleGraph& pickle, const torch::Storages& storages, FaultSink& sink) {
            torch::Storages safe = storages;
            safe.refuses_code = true;
            return torch::rebuild(pickle, safe, sink);
        };
        ThrowFirst faults;
        StateTree tree = torch::read_archive_with(all, std::move(records), faults, &named).tree;
        const std::lock_guard lock(mutex_);
        globals_.emplace(place, std::move(named));
        if (plan_.is_replica(place)) return;
        out_.tree_of[plan_.at(place).entry] = static_cast<std::uint32_t>(out_.trees.size());
        out_.trees.push_back(std::move(tree));
    }

    // Tensors.

    const DcpItems::Local& local(std::size_t place) const {
        const Plan::Number number = plan_.number(place);
        return plan_.is_replica(place) ? out_.replicas[number - metadata_.items.size()] : out_.locals[number];
    }

    /// Compares the tensor of an item with its chunk, and keeps it.
    void set_local(std::size_t place, const DcpItems::Local& found) {
        const DcpEntry& entry = plan_.entry(place);
        const std::uint32_t chunk = plan_.chunk_of(place) - entry.first_item;
        const torch::TensorForm& form = out_.forms->form(found.form);
        const auto in_item = [&] {
            return "; its item for the chunk at " + to_string(Shape(metadata_.start(entry, chunk))) + " holds ";
        };
        if (form.dtype != entry.dtype)
            throw Error(Errc::piece_mismatch, "the metadata says the dtype " + std::string(safemap::name(entry.dtype)) +
                                                  in_item() + std::string(safemap::name(form.dtype)));
        const auto wanted = metadata_.size(entry, chunk);
        if (!std::equal(wanted.begin(), wanted.end(), form.shape.begin(), form.shape.end()))
            throw Error(Errc::piece_mismatch,
                        "the metadata says the shape " + to_string(Shape(wanted)) + in_item() + to_string(form.shape));
        const Plan::Number number = plan_.number(place);
        if (plan_.is_replica(place)) out_.replicas[number - metadata_.items.size()] = found;
        else out_.locals[number] = found;
    }

    const DcpMetadata& metadata_;
    DcpItems& out_;
    Plan plan_;
    bool strict_;
    std::mutex mutex_;                          ///< guards everything below, and what items share of out_
    std::vector<bool> failed_ = {};             ///< by place
    std::set<std::size_t> large_ = {};          ///< places for read_alone()
    std::uint64_t share_ = 0;                   ///< the memory that a small pickle may take, in bytes
    std::map<std::size_t, Error> faults_ = {};  ///< the first ones, by place
    std::multimap<std::size_t, torch::NamedGlobals> globals_ = {};
    std::vector<std::shared_ptr<const Source>> streams_ = {};
};

}  // namespace

LazyTensor DcpItems::value(const Local& local) const {
    return forms->form(local.form).at(local.source == no_source ? nullptr : sources[local.source], local.offset);
}

DcpItems read_dcp_items(const Folder& folder, const DcpMetadata& metadata, const Work& work, FaultSink& faults,
                        FoundGlobals& globals) {
    DcpItems out;
    out.sources = open_files(folder, metadata.files, work);
    report_missing(folder, metadata.files, out.sources, faults);
    Reader reader(metadata, out, globals.strict());
    reader.read(work);
    reader.finish(faults, globals);
    return out;
}

}  // namespace safemap::SAFEMAP_ABI::distributed
