// The streaming writer. The layout is known from the start, so each write goes to its place, and bookkeeping makes sure
// that every byte is written once. From top to bottom:
// - declare(): turns declarations into tensors that are never read, to lay them out.
// - Value, Shaped, lazy(), filled(): the value of a write, as memory or as a tensor, for every overload.
// - Impl(): lays out, copies extras, allocates all files and writes the headers that need no digests.
// - range(), box(), whole(): the bytes of a tensor that a value is for, checked against the declaration.
// - put(), Claim: claims the bytes, copies them, and settles the claim. A claim that is not settled ends the writer.
// - commit(): waits for writes under way, reads files back for digests, and commits the target.
// - find(): the number of a tensor, or an error that suggests similar names.
// - begin_file(), add_digests(): write headers, at the start or in commit().
// - copy(), may_be_straight(): write memory directly, or a value through the buffer of a writer slot.
// - The methods of ShardWriter: each turns its arguments into a region and a value.
#include <safemap/advanced/shard_writer.hpp>

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>

#include "base/checksum.hpp"
#include "base/faults.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "checkpoint/near_names.hpp"
#include "io/file.hpp"
#include "lazy/page_cache.hpp"
#include "lazy/stored_tensor.hpp"
#include "tensor/reach.hpp"
#include "write/copy.hpp"
#include "write/copy_extras.hpp"
#include "write/coverage.hpp"
#include "write/evictions.hpp"
#include "write/file_layout.hpp"
#include "write/open_files.hpp"
#include "write/saving.hpp"
#include "write/shards.hpp"
#include "write/target.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace {

using write::Coverage;
using write::Layout;
using write::Region;

constexpr std::size_t writer_slots = 8;  // 4 MiB each, including a gatherer's memory

/// Returns tensors for laying out; they are never read.
std::vector<LazyTensor> declare(std::span<const Declaration> declarations) {
    const auto nothing = callback_source("a declaration", UINT64_MAX, [](std::uint64_t, std::span<std::byte>) {
        throw Error(Errc::io_error, "a declaration has no bytes");
    });
    std::vector<LazyTensor> tensors;
    tensors.reserve(declarations.size());
    for (const Declaration& declared : declarations) {
        about_tensor(declared.name, [&] {
            if (!in_safetensors(declared.dtype))
                throw Error(Errc::unnamed_dtype,
                            "safetensors has no name for torch." + std::string(torch_name(declared.dtype)));
            tensors.emplace_back(declared.name, stored_run(declared.dtype, declared.shape, nothing, 0));
        });
    }
    return tensors;
}

std::vector<std::string> names_of(const Layout& layout) {
    std::vector<std::string> names;
    for (const write::PlannedFile& file : layout.files) names.push_back(file.name);
    return names;
}

/// The value of a write: bytes in memory in the order in which they are written, or else a tensor to read them from.
struct Value {
    std::span<const std::byte> memory = {};
    std::optional<LazyTensor> tensor = std::nullopt;

    LazyTensor lazy() const {
        if (tensor) return *tensor;
        auto source = memory_source("the caller's memory", SharedBytes{.bytes = memory});
        return {"", stored_run(Dtype::u8, {memory.size()}, std::move(source), 0)};
    }
};

/// A value that has a shape.
struct Shaped {
    Shape shape = {};
    Value value = {};
};

Shaped shaped(const LazyTensor& tensor, Dtype declared) {
    return {.shape = tensor.shape(), .value = {.tensor = tensor.cast(declared)}};
}

/// Returns a strided view as a tensor over the bytes that it touches. A view always has a reach, within its bytes.
LazyTensor lazy(const TensorView& view) {
    const Reach reach =
        view.element_count() == 0 ? Reach{0, -1} : *reach_of({view.shape(), view.strides(), 0});  // within its bytes
    const auto elements = static_cast<std::uint64_t>(reach.last - reach.first + 1);
    // Views of sub-byte dtypes begin and end at whole bytes.
    const std::int64_t before = -reach.first * static_cast<std::int64_t>(bits(view.dtype())) / 8;
    const std::span touched(view.data() - before, static_cast<std::size_t>(*byte_size(view.dtype(), elements)));
    auto source = memory_source("the caller's memory", SharedBytes{.bytes = touched, .owner = view.owner()});
    return {"", stored_run(view.dtype(), {elements}, std::move(source), 0),
            StridedView{.shape = view.shape(), .strides = view.strides(), .offset = -reach.first}};
}

Shaped shaped(const TensorView& view, Dtype declared) {
    if (view.dtype() != declared || !view.contiguous()) return shaped(lazy(view), declared);
    return {.shape = view.shape(), .value = {.memory = view.bytes()}};
}

Value filled(const ShardWriter::Fill& fill, std::uint64_t size) {
    return {.tensor = LazyTensor("", stored_run(Dtype::u8, {size}, callback_source("a fill", size, fill), 0))};
}

void require_size(std::uint64_t size, std::uint64_t wanted) {
    if (size != wanted)
        throw Error(Errc::invalid_argument, bytes_text(size) + " given, expected " + std::to_string(wanted));
}

std::string range_text(Extent range) { return bytes_text(range.size) + " from byte " + std::to_string(range.offset); }

}  // namespace

class ShardWriter::Impl {
public:
    Impl(const std::filesystem::path& out, std::span<const Declaration> declarations, const SaveOptions& options)
        : out_(out),
          one_file_(options.one_file),
          declared_(declare(declarations)),
          layout_(write::lay_out_at(out, {.tensors = declared_, .metadata = options.metadata},
                                    write::options_of_writer(options))),
          direct_io_(io::prefers_direct_io(layout_.data_bytes)),
          drop_cache_(options.drop_cache),
          target_(out, options, names_of(layout_), {.durable = options.durable}),
          files_(target_.staging(), names_of(layout_), direct_io_),
          tensors_(declared_.size()),
          report_(write::report_on(layout_)) {
        names_.add_all(
            static_cast<std::uint32_t>(declared_.size()), [this](std::uint32_t i) { return name(i); },
            [](std::uint32_t, std::uint32_t) {});  // the layout has refused duplicate names
        report_.bytes_read = 0;
        const write::PlannedExtras extras = write::plan_extras(out, options, layout_);
        extras.report(report_);
        write::copy_extras(extras, target_.staging());
        for (const write::PlannedFile& file : layout_.files) write::allocate(target_.staging(), layout_, file);
        for (std::uint32_t i = 0; i < layout_.files.size(); ++i) begin_file(i);
        if (options.checksums) digests_.emplace(declared_.size());
    }

    /// Runs `work` with the number of the tensor called `name`. Adds the operation and the tensor to its errors.
    template <class Work> void on_tensor(std::string_view name, Work&& work) {
        write::during_save(out_, one_file_, [&] {
            const std::uint32_t number = find(name);
            about_tensor(name, [&] { work(number); });
        });
    }

    // `Given` is a TensorView or a LazyTensor.
    template <class Given> void write_whole(std::string_view name, const Given& given) {
        write_at(name, given, [this](std::uint32_t number, const Shape& shape) { return whole(number, shape); });
    }
    template <class Given> void write_range(std::string_view name, std::uint64_t offset, const Given& given) {
        write_at(name, given, [&](std::uint32_t number, const Shape& shape) { return range(number, offset, shape); });
    }
    template <class Given> void write_box(std::string_view name, const Shape& start, const Given& given) {
        write_at(name, given, [&](std::uint32_t number, const Shape& shape) {
            return box(number, {.start = start, .extent = shape});
        });
    }

    const LazyTensor& declared(std::uint32_t number) const noexcept { return declared_[number]; }

    Region range(std::uint32_t number, Extent range) const {
        const std::uint64_t size = declared(number).nbytes();
        if (!range.inside(size))
            throw Error(Errc::index_out_of_range, range_text(range) + " are outside its " + bytes_text(size));
        return write::byte_range(range.offset, range.size);
    }

    Region box(std::uint32_t number, const Box& box) const {
        const Shape& shape = declared(number).shape();
        if (!is_inside(box, shape))
            throw Error(Errc::index_out_of_range, "a box at " + to_string(box.start) + " of " + to_string(box.extent) +
                                                      " is outside shape " + to_string(shape));
        const Dtype dtype = declared(number).dtype();
        if (!whole_bytes(dtype) && !cuts_whole_bytes(dtype, view_of(box, shape)))
            throw Error(Errc::partial_byte_slice, "a box at " + to_string(box.start) + " of " + to_string(box.extent) +
                                                      " cuts bytes of " + std::string(safemap::name(dtype)));
        return {.shape = shape, .box = box, .element_bits = bits(dtype)};
    }

    std::uint64_t size_of(std::uint32_t number, const Region& region) const {
        return *byte_size(declared(number).dtype(), *element_count(region.box.extent));
    }

    void put(std::uint32_t number, const Region& region, const Value& value) {
        const std::vector<Extent> pieces = write::pieces_of(region);
        Claim claim(*this, number, pieces);
        CastCounts counts;
        if (!pieces.empty()) {
            const Tensor& tensor = tensors_[number];
            in_file(tensor.file, [&](const io::OutputFile& file) {
                counts = copy({.file = file, .tensor = tensor.offset, .region = region, .pieces = pieces}, value);
            });
            if (value.tensor) require_unchanged({&*value.tensor, 1});
        }
        claim.settle(value, counts);
    }

    SaveReport commit() {
        return write::during_save(out_, one_file_, [&] {
            close();
            for (std::uint32_t i = 0; digests_ && i < layout_.files.size(); ++i) add_digests(i, *digests_);
            files_.finish();
            target_.commit();
            report_.notes.insert(report_.notes.end(), target_.notes().begin(), target_.notes().end());
            return report_;
        });
    }

private:
    struct Tensor {
        std::uint32_t file = 0;
        std::uint64_t offset = 0;  // in the file
        Coverage written = {};
    };

    /// Bytes that are being written. They count as written from the start, so that no other write takes them. If a
    /// claim ends without being settled, the writer fails.
    class Claim {
    public:
        Claim(Impl& writer, std::uint32_t number, std::span<const Extent> pieces) : writer_(writer), number_(number) {
            const std::lock_guard lock(writer_.mutex_);
            writer_.require_open();
            Coverage& written = writer_.tensors_[number].written;
            if (const auto common = written.first_common(pieces))
                throw Error(Errc::written_twice, range_text(*common) + " are already written");
            written.add(pieces);
            ++writer_.under_way_;
        }
        ~Claim() {
            const std::lock_guard lock(writer_.mutex_);
            if (!settled_) writer_.state_ = State::failed;
            if (--writer_.under_way_ == 0) writer_.idle_.notify_all();
        }
        Claim(const Claim&) = delete;
        Claim& operator=(const Claim&) = delete;

        void settle(const Value& value, const CastCounts& counts) {
            const std::lock_guard lock(writer_.mutex_);
            writer_.note(number_, value, counts);
            settled_ = true;
        }

    private:
        Impl& writer_;
        std::uint32_t number_;
        bool settled_ = false;
    };

    enum class State : std::uint8_t { open, failed, closed };

    const std::string& name(std::uint32_t number) const noexcept { return declared_[number].name(); }

    std::uint32_t find(std::string_view wanted) const {
        if (const auto number = names_.find(wanted, [this](std::uint32_t i) { return name(i); })) return *number;
        checkpoint::throw_not_found(wanted, {declared_, {}});
    }

    /// Writes a value to the region that `place` returns for its shape.
    template <class Given, class Place> void write_at(std::string_view name, const Given& given, Place&& place) {
        on_tensor(name, [&](std::uint32_t number) {
            const Shaped value = shaped(given, declared(number).dtype());
            put(number, place(number, value.shape), value.value);
        });
    }

    Region whole(std::uint32_t number, const Shape& shape) const {
        if (shape != declared(number).shape())
            throw Error(Errc::invalid_argument, "the value has shape " + to_string(shape) +
                                                    ", but the declared shape is " +
                                                    to_string(declared(number).shape()));
        return write::whole_value(shape, declared(number).dtype());
    }

    Region range(std::uint32_t number, std::uint64_t offset, const Shape& shape) const {
        const Dtype dtype = declared(number).dtype();
        // A value of that shape and dtype exists, so its size fits in 64 bits.
        static_cast<void>(range(number, {offset, *byte_size(dtype, *element_count(shape))}));
        const unsigned unit = whole_bytes(dtype) ? element_size(dtype) : bits(dtype) % 3 == 0 ? 3 : 1;
        if (offset % unit != 0)
            throw Error(Errc::invalid_argument, "the value starts at byte " + std::to_string(offset) +
                                                    ", where no element of " + std::string(safemap::name(dtype)) +
                                                    " begins");
        return write::whole_value(shape, dtype, offset);
    }

    static StridedView view_of(const Box& box, const Shape& shape) {
        StridedView view{.shape = box.extent, .strides = row_major(shape)};
        for (std::size_t d = 0; d < shape.size(); ++d)
            view.offset += static_cast<std::int64_t>(box.start[d]) * view.strides[d];
        return view;
    }

    template <class Work> void in_file(std::uint32_t number, Work&& work) {
        about_file([&] { return target_.staging().path_of(layout_.files[number].name); },
                   [&] {
                       const write::OpenFiles::Use file(files_, number);
                       work(*file);
                   });
    }

    /// Writes the head of a file and drops the parts of the plan that are no longer needed. If a head has places for
    /// digests, commit() writes it.
    void begin_file(std::uint32_t number) {
        write::PlannedFile& planned = layout_.files[number];
        for (const write::PlannedTensor& tensor : planned.tensors)
            tensors_[tensor.number] = {.file = number, .offset = tensor.offset};
        if (planned.lists_digests || planned.has_checkpoint_digest) return;
        in_file(number, [&](const io::OutputFile& file) { file.write_at(0, std::as_bytes(std::span(planned.head))); });
        std::string().swap(planned.head);
        std::vector<write::PlannedTensor>().swap(planned.tensors);
    }

    /// Reads a file back, puts digests into its head and writes the head. Digests need the bytes in order, and writes
    /// come in any order.
    void add_digests(std::uint32_t number, std::vector<Digest>& digests) {
        write::PlannedFile& planned = layout_.files[number];
        in_file(number, [&](const io::OutputFile& file) {
            const io::File written = file.reader(target_.staging().path_of(planned.name));
            const write::WriterSlots::Taken slot = slots_.take();
            for (const write::PlannedTensor& tensor : planned.tensors)
                digests[tensor.number] = digest_in(written, {tensor.offset, declared(tensor.number).nbytes()},
                                                   slot->buffer(write::copy_buffer));
            write::put_digests(planned, layout_, declared_, digests);
            file.write_at(0, std::as_bytes(std::span(planned.head)));
        });
    }

    static Digest digest_in(const io::File& file, Extent extent, std::span<std::byte> buffer) {
        Xxh3 hash;
        while (extent.size > 0) {
            const auto bytes =
                buffer.first(static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), extent.size)));
            file.read_at(extent.offset, bytes);
            hash.update(bytes);
            extent = {extent.offset + bytes.size(), extent.size - bytes.size()};
        }
        return hash.digest();
    }

    CastCounts copy(const write::OutputPlace& to, const Value& value) {
        if (!value.tensor && may_be_straight(to, value.memory)) {
            write::copy_memory(to, value.memory);
            return {};
        }
        const write::WriterSlots::Taken slot = slots_.take();
        write::copy_value(to, value.lazy(), *slot);
        if (drop_cache_ && value.tensor) write::evict_quietly(ranges_of({&*value.tensor, 1}));
        return slot->gatherer.take_counts();
    }

    /// Returns true if `memory` can be written without a copy. To be written past the page cache, memory must have the
    /// same offset in a page as in the file. Other memory is copied to a buffer with that offset. The rows of a box
    /// have arbitrary offsets in the file, so a copy would gain nothing for them.
    bool may_be_straight(const write::OutputPlace& to, std::span<const std::byte> memory) const noexcept {
        if (!direct_io_ || to.pieces.size() > 1) return true;
        const std::uint64_t place = to.tensor + to.pieces.front().offset;
        return (reinterpret_cast<std::uintptr_t>(memory.data()) - place) % io::direct_alignment == 0;
    }

    void require_open() const {
        if (state_ == State::failed) throw Error(Errc::writer_closed, "the writer is closed: a write failed");
        if (state_ == State::closed) throw Error(Errc::writer_closed, "the writer is closed: commit() was called");
    }

    void require_whole() const {
        std::size_t incomplete = 0;
        std::size_t first = 0;
        for (std::size_t i = tensors_.size(); i-- > 0;) {
            if (!tensors_[i].written.first_gap(declared_[i].nbytes())) continue;
            ++incomplete;
            first = i;
        }
        if (incomplete == 0) return;
        const Extent gap = *tensors_[first].written.first_gap(declared_[first].nbytes());
        throw Error(Errc::not_written, range_text(gap) + " are missing; " + std::to_string(incomplete) + " of " +
                                           std::to_string(tensors_.size()) +
                                           (incomplete == 1 ? " tensors is incomplete" : " tensors are incomplete"))
            .with_tensor(declared_[first].name());
    }

    void close() {
        std::unique_lock lock(mutex_);
        require_open();
        require_whole();
        state_ = State::closed;
        idle_.wait(lock, [this] { return under_way_ == 0; });
        if (state_ == State::failed) require_open();
    }

    void note(std::uint32_t number, const Value& value, const CastCounts& counts) {
        if (!value.tensor) {
            report_.bytes_read = write::sum_of_sizes(report_.bytes_read, value.memory.size());
            return;
        }
        const Dtype from = value.tensor->stored()->dtype();
        const Dtype to = value.tensor->dtype();
        report_.bytes_read = write::sum_of_sizes(report_.bytes_read, *byte_size(from, value.tensor->element_count()));
        if (from == to) return;
        SaveReport::Cast& cast = write::cast_of(report_.casts, from, to);
        if (cast_.emplace(number, from).second) ++cast.tensors;
        write::add_counts(cast, counts);
    }

    std::filesystem::path out_;
    bool one_file_;
    std::vector<LazyTensor> declared_;
    NameIndex names_;
    Layout layout_;
    bool direct_io_;
    bool drop_cache_;
    write::Target target_;
    write::OpenFiles files_;
    write::WriterSlots slots_{writer_slots};
    std::optional<std::vector<Digest>> digests_;  // if digests are wanted; computed by commit()

    std::mutex mutex_;  // guards all members below
    std::condition_variable idle_;
    std::vector<Tensor> tensors_;  // file and offset do not change
    SaveReport report_;
    std::set<std::pair<std::uint32_t, Dtype>> cast_;
    std::size_t under_way_ = 0;
    State state_ = State::open;
};

ShardWriter::ShardWriter(const std::filesystem::path& out, std::span<const Declaration> tensors,
                         const SaveOptions& options)
    : impl_(write::during_save(out, options.one_file, [&] { return std::make_unique<Impl>(out, tensors, options); })) {}

ShardWriter::~ShardWriter() = default;
ShardWriter::ShardWriter(ShardWriter&&) noexcept = default;
ShardWriter& ShardWriter::operator=(ShardWriter&&) noexcept = default;

ShardWriter::Impl& ShardWriter::impl() const {
    if (!impl_) throw Error(Errc::invalid_argument, "the writer was moved from");
    return *impl_;
}

void ShardWriter::write(std::string_view name, std::span<const std::byte> bytes) {
    impl().on_tensor(name, [&](std::uint32_t number) {
        require_size(bytes.size(), impl_->declared(number).nbytes());
        impl_->put(number, impl_->range(number, {0, bytes.size()}), {.memory = bytes});
    });
}

void ShardWriter::write(std::string_view name, const TensorView& value) { impl().write_whole(name, value); }
void ShardWriter::write(std::string_view name, const LazyTensor& value) { impl().write_whole(name, value); }

void ShardWriter::write(std::string_view name, const Fill& fill) {
    impl().on_tensor(name, [&](std::uint32_t number) {
        const std::uint64_t size = impl_->declared(number).nbytes();
        impl_->put(number, impl_->range(number, {0, size}), filled(fill, size));
    });
}

void ShardWriter::write_range(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes) {
    impl().on_tensor(name, [&](std::uint32_t number) {
        impl_->put(number, impl_->range(number, {offset, bytes.size()}), {.memory = bytes});
    });
}

void ShardWriter::write_range(std::string_view name, std::uint64_t offset, const TensorView& value) {
    impl().write_range(name, offset, value);
}

void ShardWriter::write_range(std::string_view name, std::uint64_t offset, const LazyTensor& value) {
    impl().write_range(name, offset, value);
}

void ShardWriter::write_range(std::string_view name, Extent range, const Fill& fill) {
    impl().on_tensor(
        name, [&](std::uint32_t number) { impl_->put(number, impl_->range(number, range), filled(fill, range.size)); });
}

void ShardWriter::write_box(std::string_view name, const Box& box, std::span<const std::byte> bytes) {
    impl().on_tensor(name, [&](std::uint32_t number) {
        const Region region = impl_->box(number, box);
        require_size(bytes.size(), impl_->size_of(number, region));
        impl_->put(number, region, {.memory = bytes});
    });
}

void ShardWriter::write_box(std::string_view name, const Shape& start, const TensorView& value) {
    impl().write_box(name, start, value);
}

void ShardWriter::write_box(std::string_view name, const Shape& start, const LazyTensor& value) {
    impl().write_box(name, start, value);
}

void ShardWriter::write_box(std::string_view name, const Box& box, const Fill& fill) {
    impl().on_tensor(name, [&](std::uint32_t number) {
        const Region region = impl_->box(number, box);
        impl_->put(number, region, filled(fill, impl_->size_of(number, region)));
    });
}

SaveReport ShardWriter::commit() { return impl().commit(); }

}  // namespace safemap::SAFEMAP_ABI
