// Tests of shard_writer.hpp: the files are those of save(), for any kind and order of writes. From top to bottom:
// random cuts of random tensors, large tensors, casts, empty and sub-byte tensors, refused writes, missing bytes, the
// writer's lifetime, failing calls, threads.
#include <safemap/advanced/shard_writer.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/dlpack.hpp>
#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

namespace shard_writer_test {

using namespace safemap;
using namespace samples;

namespace {

using Names = std::vector<std::string>;
using Task = std::function<void(ShardWriter&)>;

std::vector<Declaration> declared(std::span<const LazyTensor> tensors) {
    std::vector<Declaration> declarations;
    for (const LazyTensor& t : tensors) declarations.push_back({t.name(), t.dtype(), t.shape()});
    return declarations;
}

/// Runs the tasks on `threads` threads, and rethrows the first exception.
void run(ShardWriter& writer, std::span<const Task> tasks, unsigned threads) {
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;
    std::exception_ptr first;
    const auto work = [&] {
        for (std::size_t i = next++; i < tasks.size(); i = next++) {
            try {
                tasks[i](writer);
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (!first) first = std::current_exception();
            }
        }
    };
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    if (first) std::rethrow_exception(first);
}

/// Cuts tensors into random writes of all kinds.
class Cutter {
public:
    explicit Cutter(std::uint64_t seed) : random_(seed) {}

    std::uint64_t up_to(std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n)(random_); }
    template <class Items> void shuffle(Items& items) { std::shuffle(items.begin(), items.end(), random_); }

    void cut(const LazyTensor& tensor, std::vector<Task>& tasks) {
        if (tensor.element_count() == 0 && up_to(1) == 0) return;
        switch (up_to(2)) {
            case 0: return tasks.push_back(whole(tensor));
            case 1: return ranges(tensor, tasks);
            default:
                return boxes(tensor, {Shape(tensor.shape().size(), 0), tensor.shape()}, static_cast<int>(up_to(4)),
                             tasks);
        }
    }

private:
    static ShardWriter::Fill fill_from(const TensorView& view) {
        return [view, next = std::uint64_t{0}](std::uint64_t offset, std::span<std::byte> into) mutable {
            if (offset != next) throw std::logic_error("a block out of order");
            next += into.size();
            std::copy_n(view.bytes().begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
        };
    }

    Task whole(const LazyTensor& tensor) {
        const std::string name = tensor.name();
        switch (up_to(3)) {
            case 0: return [=](ShardWriter& writer) { writer.write(name, tensor); };
            case 1: return [=, view = tensor.view()](ShardWriter& writer) { writer.write(name, view); };
            case 2: return [=, view = tensor.load()](ShardWriter& writer) { writer.write(name, view.bytes()); };
            default: return [=, fill = fill_from(tensor.load())](ShardWriter& writer) { writer.write(name, fill); };
        }
    }

    void ranges(const LazyTensor& tensor, std::vector<Task>& tasks) {
        const std::string name = tensor.name();
        const TensorView value = tensor.load();
        const std::uint64_t size = tensor.nbytes();
        for (std::uint64_t at = 0; at < size;) {
            // Bytes may be cut anywhere, and values at elements.
            const std::uint64_t unit = whole_bytes(tensor.dtype()) ? element_size(tensor.dtype()) : 3;
            const bool as_value = at % unit == 0 && up_to(1) == 0;
            std::uint64_t end = at + 1 + up_to(size - at - 1);
            if (as_value) end = std::min(size, (end + unit - 1) / unit * unit);
            const std::uint64_t length = end - at;
            const SharedBytes bytes = {.bytes = value.bytes().subspan(at, length), .owner = value.owner()};
            if (as_value) {
                const Shape shape = {length * 8 / bits(tensor.dtype())};
                const auto part = TensorView::row_major(tensor.dtype(), bytes, shape);
                const LazyTensor lazy("part", stored_run(tensor.dtype(), shape, memory_source("m", bytes), 0));
                if (up_to(1) == 0) tasks.push_back([=](ShardWriter& writer) { writer.write_range(name, at, part); });
                else tasks.push_back([=](ShardWriter& writer) { writer.write_range(name, at, lazy); });
            } else if (up_to(1) == 0) {
                tasks.push_back([=](ShardWriter& writer) { writer.write_range(name, at, bytes.bytes); });
            } else {
                const auto fill = fill_from(TensorView::row_major(Dtype::u8, bytes, {length}));
                tasks.push_back([=](ShardWriter& writer) { writer.write_range(name, Extent{at, length}, fill); });
            }
            at = end;
        }
    }

    void boxes(const LazyTensor& tensor, const Box& box, int cuts, std::vector<Task>& tasks) {
        if (cuts > 0 && !box.extent.empty()) {
            const std::size_t d = up_to(box.extent.size() - 1);
            // The last dimension of a sub-byte dtype is a multiple of eight.
            const std::uint64_t unit = !whole_bytes(tensor.dtype()) && d + 1 == box.extent.size() ? 8 : 1;
            if (box.extent[d] > unit) {
                Box low = box;
                Box high = box;
                low.extent[d] = (1 + up_to(box.extent[d] / unit - 2)) * unit;
                high.start[d] += low.extent[d];
                high.extent[d] -= low.extent[d];
                boxes(tensor, low, cuts - 1, tasks);
                boxes(tensor, high, cuts - 1, tasks);
                return;
            }
        }
        std::vector<Slice> slices;
        for (std::size_t d = 0; d < box.start.size(); ++d)
            slices.push_back({.start = static_cast<std::int64_t>(box.start[d]),
                              .stop = static_cast<std::int64_t>(box.start[d] + box.extent[d])});
        const std::string name = tensor.name();
        const LazyTensor part = tensor.slice(slices);
        switch (up_to(3)) {
            case 0: return tasks.push_back([=](ShardWriter& writer) { writer.write_box(name, box.start, part); });
            case 1:
                return tasks.push_back(
                    [=, view = part.view()](ShardWriter& writer) { writer.write_box(name, box.start, view); });
            case 2:
                return tasks.push_back(
                    [=, view = part.load()](ShardWriter& writer) { writer.write_box(name, box, view.bytes()); });
            default:
                return tasks.push_back(
                    [=, fill = fill_from(part.load())](ShardWriter& writer) { writer.write_box(name, box, fill); });
        }
    }

    std::mt19937_64 random_;
};

/// Returns a tensor with its dimensions in random order, some reversed.
LazyTensor random_tensor(const std::string& name, Cutter& random) {
    const auto dtype = static_cast<Dtype>(random.up_to(safetensors_dtypes - 1));
    Shape shape(random.up_to(3), 0);
    for (auto& dimension : shape) dimension = random.up_to(15) == 0 ? 0 : 1 + random.up_to(8);
    if (!whole_bytes(dtype)) {
        shape.push_back(8 + 8 * random.up_to(3));
        return tensor(name, dtype, shape, random.up_to(1'000'000));
    }
    const LazyTensor base = tensor(name, dtype, shape, random.up_to(1'000'000));
    std::vector<std::size_t> order(shape.size());
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
    random.shuffle(order);
    const Strides strides = row_major(shape);
    StridedView view{.shape = shape, .strides = strides};
    for (std::size_t d = 0; d < order.size(); ++d) {
        view.shape[d] = shape[order[d]];
        view.strides[d] = strides[order[d]];
        if (random.up_to(3) != 0 || view.shape[d] == 0) continue;
        view.offset += static_cast<std::int64_t>(view.shape[d] - 1) * view.strides[d];
        view.strides[d] = -view.strides[d];
    }
    return base.element_count() == 0 ? base : LazyTensor(name, base.stored(), view);
}

/// A writer of one 4 × 6 matrix of F32, with its bytes.
struct Matrix {
    TempDir dir = {};
    LazyTensor tensor = samples::tensor("w", Dtype::f32, {4, 6});
    std::vector<std::byte> bytes = random_bytes(96, 1);
    ShardWriter writer{dir / "out", declared(std::vector{tensor})};

    std::span<const std::byte> part(std::size_t offset, std::size_t size) const {
        return std::span(bytes).subspan(offset, size);
    }
};

std::size_t open_descriptors() {
    const fs::directory_iterator all("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

}  // namespace

TEST_CASE("random tensors, cut randomly and written in any order by several threads, give the files of save()") {
    const unsigned seed = std::random_device()();
    CAPTURE(seed);
    Cutter random(seed);
    for (int round = 0; round < soak::rounds(60); ++round) {
        CAPTURE(round);
        const TempDir dir;
        std::vector<LazyTensor> tensors;
        const std::size_t count = random.up_to(10);
        for (std::size_t i = 0; i < count; ++i) tensors.push_back(random_tensor("t" + std::to_string(i), random));
        const SaveOptions options{.max_shard_size = 1 + random.up_to(4'000),
                                  .metadata = {{"round", std::to_string(round)}},
                                  .alignment = random.up_to(1) == 0 ? 8U : 64U,
                                  .align_tensors = random.up_to(1) == 0,
                                  .strategy = static_cast<ShardStrategy>(random.up_to(2)),
                                  .index_style = static_cast<IndexStyle>(random.up_to(1)),
                                  .checksums = random.up_to(1) == 0};
        const SaveReport saved = save(dir / "saved", tensors, options);

        std::vector<Task> tasks;
        for (const LazyTensor& t : tensors) random.cut(t, tasks);
        random.shuffle(tasks);
        ShardWriter writer(dir / "written", declared(tensors), options);
        run(writer, tasks, 1 + static_cast<unsigned>(random.up_to(3)));
        CHECK_FALSE(fs::exists(dir / "written"));
        const SaveReport written = writer.commit();

        REQUIRE(contents_of(dir / "written") == contents_of(dir / "saved"));
        CHECK(written.files == saved.files);
        CHECK(written.tensors == saved.tensors);
        CHECK(written.bytes_read == saved.bytes_read);
        CHECK(written.bytes_written == saved.bytes_written);
        CHECK(written.casts.empty());
        CHECK(names_in(dir.path()) == Names{"saved", "written"});
    }
}

TEST_CASE("a writer writes one file on request, whatever its name") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {4, 6}), tensor("b", Dtype::u8, {3})};
    save_everywhere(dir / "saved.safetensors", tensors);
    ShardWriter writer(dir / "x", declared(tensors), {.one_file = true, .max_shard_size = 8});
    for (const LazyTensor& t : tensors) writer.write(t.name(), t);
    CHECK(writer.commit().files == Names{"x"});
    CHECK(TempDir::read(dir / "x") == TempDir::read(dir / "saved.safetensors"));
    CHECK_FAULT(ShardWriter(dir / "y/", declared(tensors), {.one_file = true}), Errc::invalid_argument);
    CHECK(names_in(dir.path()) == Names{"saved.safetensors", "x"});
}

TEST_CASE("large tensors, contiguous and transposed, are written through the page cache and bypassing it") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {
        tensor("odd", Dtype::u8, {3'333'333}, 1),      transposed("turned", Dtype::f32, 1'100, 1'300, 2),
        tensor("rows", Dtype::bf16, {1'000, 900}, 3),  tensor("six", Dtype::f6_e3m2, {4'000'000}, 4),
        tensor("boxes", Dtype::f64, {300, 2, 700}, 5), transposed("tiles", Dtype::f32, 1'500, 800, 6)};
    save_everywhere(dir / "saved.safetensors", tensors);
    const std::string wanted = TempDir::read(dir / "saved.safetensors");
    const auto slice = [&](std::size_t i, std::int64_t from, std::int64_t to) {
        return tensors[i].slice({Slice::ellipsis(), {.start = from, .stop = to}});
    };
    const TensorView odd = tensors[0].load();
    const TensorView six = tensors[3].load();
    for (const bool direct_io : {false, true}) {
        CAPTURE(direct_io);
        std::optional<ShrunkMemory> small;
        if (direct_io) small.emplace();
        const std::vector<Task> tasks = {
            [&](ShardWriter& w) { w.write_range("odd", 1'234'567, odd.bytes().subspan(1'234'567)); },
            [&](ShardWriter& w) { w.write_range("odd", 0, odd.bytes().first(1'234'567)); },
            [&](ShardWriter& w) { w.write("turned", tensors[1]); },
            [&](ShardWriter& w) {
                w.write_box("rows", {0, 450}, slice(2, 450, 900));
            },
            [&](ShardWriter& w) {
                w.write_box("rows", {0, 0}, slice(2, 0, 450).load());
            },
            [&](ShardWriter& w) {
                w.write("six", [&](std::uint64_t offset, std::span<std::byte> into) {
                    std::copy_n(six.bytes().begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
                });
            },
            [&](ShardWriter& w) {
                w.write_box("boxes", {0, 0, 0}, slice(4, 0, 99));
            },
            [&](ShardWriter& w) {
                w.write_box("boxes", {0, 0, 99}, slice(4, 99, 700));
            },
            [&](ShardWriter& w) {
                w.write_box("tiles", {0, 0}, slice(5, 0, 3).view());
            },
            [&](ShardWriter& w) {
                w.write_box("tiles", {0, 3}, slice(5, 3, 800));
            },
        };
        const fs::path out = dir / (direct_io ? "around.safetensors" : "through.safetensors");
        ShardWriter writer(out, declared(tensors));
        run(writer, tasks, 3);
        writer.commit();
        CHECK(TempDir::read(out) == wanted);
    }
}

TEST_CASE("a value of another dtype is cast, and the report counts the casts as save() does") {
    const TempDir dir;
    const float values[] = {1.0F, -2.5F, 1e30F, std::numeric_limits<float>::quiet_NaN(), 65'504.0F, 3.0F};
    std::vector<std::byte> bytes(sizeof values);
    std::memcpy(bytes.data(), values, sizeof values);
    const auto source = memory_source("m", bytes);
    const std::vector<LazyTensor> tensors = {{"x", stored_run(Dtype::f32, {2, 3}, source, 0)},
                                             tensor("half", Dtype::f16, {3}, 7),
                                             tensor("double", Dtype::f64, {200'000}, 8),
                                             {"swapped", stored_run(Dtype::f32, {6}, source, 0), {.byte_swap = true}}};
    const SaveReport saved = save(dir / "saved", tensors, {.dtype = Dtype::f16});
    std::vector<Declaration> declarations = declared(tensors);
    for (Declaration& declaration : declarations) declaration.dtype = Dtype::f16;

    ShardWriter writer(dir / "written", declarations);
    writer.write("double", tensors[2]);
    writer.write_box("x", {0, 1}, tensors[0].slice({Slice::ellipsis(), {.start = 1}}).view());
    writer.write_box("x", {0, 0}, tensors[0].slice({Slice::ellipsis(), {.stop = 1}}));
    writer.write("swapped", tensors[3]);
    writer.write_range("half", 2, tensors[1].slice({{.start = 1}}).view());
    writer.write_range("half", 0, tensors[1].slice({{.stop = 1}}));
    const SaveReport written = writer.commit();

    CHECK(contents_of(dir / "written") == contents_of(dir / "saved"));
    CHECK(written.bytes_read == saved.bytes_read);
    REQUIRE(written.casts.size() == 2);
    for (const SaveReport::Cast& cast : saved.casts) {
        const auto same = std::find_if(written.casts.begin(), written.casts.end(),
                                       [&](const SaveReport::Cast& other) { return other.from == cast.from; });
        REQUIRE(same != written.casts.end());
        CHECK(same->to == cast.to);
        CHECK(same->tensors == cast.tensors);
        CHECK(same->values == cast.values);
        CHECK(same->overflowed == cast.overflowed);
        CHECK(same->non_finite == cast.non_finite);
    }
}

TEST_CASE("tensors of other libraries are written through DLPack") {
    const TempDir dir;
    const LazyTensor turned = transposed("w", Dtype::f32, 5, 7);
    save(dir / "saved", std::vector{turned});
    ShardWriter writer(dir / "written", declared(std::vector{turned}));
    writer.write("w", dlpack::import_tensor(dlpack::export_versioned(turned.view())));
    writer.commit();
    CHECK(contents_of(dir / "written") == contents_of(dir / "saved"));
}

TEST_CASE("empty tensors need no write, but accept one; a 0-d tensor has one element") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("none", Dtype::f32, {0, 4}), tensor("nothing", Dtype::u8, {0}),
                                             tensor("one", Dtype::f64, {})};
    save(dir / "saved", tensors);
    ShardWriter writer(dir / "written", declared(tensors));
    for (int again = 0; again < 2; ++again) {
        writer.write("nothing", tensors[1]);
        writer.write("nothing", std::span<const std::byte>());
        writer.write_box("nothing", {0}, tensors[1].load());
        writer.write_range("nothing", {0, 0}, [](std::uint64_t, std::span<std::byte>) { FAIL("nothing to fill"); });
    }
    check_error(error_of([&] { writer.commit(); }), {Errc::not_written}, {}, {.tensor = "one"});
    writer.write_box("one", {}, tensors[2]);
    CHECK_FAULT(writer.write("one", tensors[2]), Errc::written_twice);
    writer.commit();
    CHECK(contents_of(dir / "written") == contents_of(dir / "saved"));

    ShardWriter(dir / "empty", {}).commit();
    save(dir / "saved_empty", std::vector<LazyTensor>());
    CHECK(contents_of(dir / "empty") == contents_of(dir / "saved_empty"));
}

TEST_CASE("sub-byte tensors are written at whole bytes") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("four", Dtype::f4, {3, 8}), tensor("six", Dtype::f6_e2m3, {2, 8})};
    save(dir / "saved", tensors);
    ShardWriter writer(dir / "written", declared(tensors));
    const TensorView six = tensors[1].load();
    const auto three = TensorView::row_major(Dtype::f6_e2m3, {.bytes = six.bytes().subspan(3, 9)}, {12});
    CHECK_FAULT(writer.write_range("six", 1, three), Errc::invalid_argument);
    CHECK_FAULT(writer.write_box("six", Box{{0, 0}, {2, 2}}, six.bytes().first(3)), Errc::partial_byte_slice);
    CHECK_FAULT(writer.write_box("four", Box{{0, 1}, {3, 2}}, six.bytes().first(3)), Errc::partial_byte_slice);
    writer.write_range("six", 3, three);
    writer.write_range("six", 0, six.bytes().first(3));
    writer.write_box("four", {0, 2}, tensors[0].slice({Slice::ellipsis(), {.start = 2}}));
    const TensorView left = tensors[0].slice({Slice::ellipsis(), {.stop = 2}}).load();
    writer.write_box("four", Box{{0, 0}, {3, 2}}, left.bytes());
    writer.commit();
    CHECK(contents_of(dir / "written") == contents_of(dir / "saved"));
}

TEST_CASE("bytes that are already written are refused with their offset, before anything is written") {
    Matrix m;
    m.writer.write_range("w", 8, m.part(8, 8));
    const std::vector<std::byte> wrong(96, std::byte{0xAA});
    const auto refused = [&](auto&& write, const char* range) {
        const auto error = error_of(write);
        check_error(error, {Errc::written_twice}, {});
        CHECK(error->tensor() == "w");
        CHECK(error->message() == std::string(range) + " are already written");
        CHECK(std::string(error->what()).starts_with("save " + (m.dir / "out").native() + "/: "));
    };
    refused([&] { m.writer.write("w", wrong); }, "8 bytes from byte 8");
    refused([&] { m.writer.write("w", m.tensor.load()); }, "8 bytes from byte 8");
    refused([&] { m.writer.write_range("w", 0, std::span(wrong).first(12)); }, "4 bytes from byte 8");
    refused([&] { m.writer.write_range("w", 12, std::span(wrong).first(84)); }, "4 bytes from byte 12");
    refused([&] { m.writer.write_box("w", Box{{0, 3}, {4, 3}}, std::span(wrong).first(48)); }, "4 bytes from byte 12");
    bool asked = false;
    const auto fill = [&](std::uint64_t, std::span<std::byte>) { asked = true; };
    refused([&] { m.writer.write_range("w", {15, 2}, fill); }, "1 byte from byte 15");
    CHECK_FALSE(asked);

    m.writer.write_box("w", {1, 0}, m.tensor.slice({{.start = 1}}));
    refused(
        [&] {
            m.writer.write_box("w", {3, 5}, m.tensor.slice({{.start = 3}, {.start = 5}}));
        },
        "4 bytes from byte 92");
    m.writer.write_range("w", 0, m.part(0, 8));
    m.writer.write_range("w", 16, m.part(16, 8));
    m.writer.commit();
    CHECK(read_file(m.dir / "out/model.safetensors").at("w").bytes == m.bytes);
}

TEST_CASE("a write that does not match the declaration is refused, and the writer stays usable") {
    Matrix m;
    ShardWriter& w = m.writer;
    const auto column = tensor("c", Dtype::f32, {4, 1});
    CHECK_FAULT(w.write("v", m.bytes), Errc::tensor_not_found);
    CHECK_FAULT(w.write("w", m.part(0, 95)), Errc::invalid_argument);
    CHECK_FAULT(w.write("w", tensor("x", Dtype::f32, {6, 4})), Errc::invalid_argument);
    CHECK_FAULT(w.write("w", tensor("x", Dtype::f32, {24}).load()), Errc::invalid_argument);
    CHECK_FAULT(w.write("w", tensor("x", Dtype::i32, {4, 6})), Errc::unsupported_cast);
    CHECK_FAULT(w.write("w", tensor("x", Dtype::i32, {4, 6}).load()), Errc::unsupported_cast);
    CHECK_FAULT(w.write("w", tensor("x", Dtype::f32, {4, 6}).cast(Dtype::f16)), Errc::unsupported_cast);
    CHECK_FAULT(w.write("w", ShardWriter::Fill()), Errc::invalid_argument);
    CHECK_FAULT(w.write_range("w", 1, m.bytes), Errc::index_out_of_range);
    CHECK_FAULT(w.write_range("w", UINT64_MAX, m.part(0, 1)), Errc::index_out_of_range);
    CHECK_FAULT(w.write_range("w", 84, column), Errc::index_out_of_range);
    CHECK_FAULT(w.write_range("w", 2, column), Errc::invalid_argument);
    CHECK_FAULT(w.write_range("w", Extent{96, 1}, [](std::uint64_t, std::span<std::byte>) {}),
                Errc::index_out_of_range);
    CHECK_FAULT(w.write_box("w", {0, 6}, column), Errc::index_out_of_range);
    CHECK_FAULT(w.write_box("w", {1, 0}, column), Errc::index_out_of_range);
    CHECK_FAULT(w.write_box("w", {0}, column), Errc::index_out_of_range);
    CHECK_FAULT(w.write_box("w", Box{{0, 0}, {4, 1}}, m.part(0, 12)), Errc::invalid_argument);
    CHECK_FAULT(w.write_box("w", Box{{0, UINT64_MAX}, {4, 2}}, m.part(0, 32)), Errc::index_out_of_range);
    const auto near = error_of([&] { w.write("ww", m.bytes); });
    REQUIRE(near);
    CHECK(near->hint() == "did you mean 'w'?");
    w.write("w", m.bytes);
    w.commit();
    CHECK(read_file(m.dir / "out/model.safetensors").at("w").bytes == m.bytes);
}

TEST_CASE("a commit with missing bytes names the first of them and counts the tensors, and can be repeated") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("a", Dtype::u8, {4}), tensor("b", Dtype::u8, {10}),
                                             tensor("c", Dtype::u8, {5})};
    ShardWriter writer(dir / "out", declared(tensors));
    const auto missing = [&] {
        const auto error = error_of([&] { writer.commit(); });
        check_error(error, {Errc::not_written}, {});
        CHECK_FALSE(fs::exists(dir / "out"));
        return error->tensor() + ": " + error->message();
    };
    CHECK(missing() == "a: 4 bytes from byte 0 are missing; 3 of 3 tensors are incomplete");
    writer.write("a", tensors[0]);
    writer.write_range("b", 2, tensors[1].load().slice({{.start = 2, .stop = 4}}));
    CHECK(missing() == "b: 2 bytes from byte 0 are missing; 2 of 3 tensors are incomplete");
    writer.write_range("b", 0, tensors[1].slice({{.stop = 2}}));
    CHECK(missing() == "b: 6 bytes from byte 4 are missing; 2 of 3 tensors are incomplete");
    writer.write("c", tensors[2]);
    CHECK(missing() == "b: 6 bytes from byte 4 are missing; 1 of 3 tensors is incomplete");
    writer.write_range("b", 4, tensors[1].slice({{.start = 4}}));
    writer.commit();
    CHECK_FAULT(writer.commit(), Errc::writer_closed);
    CHECK_FAULT(writer.write("a", tensors[0]), Errc::writer_closed);
    CHECK_FAULT(writer.write_range("a", 0, std::span<const std::byte>()), Errc::writer_closed);
    CHECK(read_file(dir / "out/model.safetensors").at("b").bytes == random_bytes(10, 1));
}

TEST_CASE("invalid declarations and options are refused before anything is created") {
    const TempDir dir;
    const auto refused = [&](const std::vector<Declaration>& tensors, const SaveOptions& options, Errc code) {
        for (const auto* out : {"out", "out.safetensors"}) CHECK_FAULT(ShardWriter(dir / out, tensors, options), code);
        CHECK(names_in(dir.path()).empty());
    };
    const Declaration one{"w", Dtype::f32, {2}};
    refused({{"z", Dtype::c128, {2}}}, {}, Errc::unnamed_dtype);
    refused({one, {"v", Dtype::f32, {2}}, one}, {}, Errc::name_collision);
    refused({{"__metadata__", Dtype::f32, {2}}}, {}, Errc::name_collision);
    refused({{"\xff", Dtype::f32, {2}}}, {}, Errc::invalid_argument);
    refused({{"w", Dtype::f32, {UINT64_MAX, 2}}}, {}, Errc::shape_overflow);
    refused({{"w", Dtype::f4, {3}}}, {}, Errc::partial_byte);
    refused({one}, {.dtype = Dtype::f32}, Errc::invalid_argument);
    refused({one}, {.keep_dtype = Selection()}, Errc::invalid_argument);
    refused({one}, {.alignment = 12}, Errc::invalid_argument);
    refused({one}, {.plan_only = true}, Errc::invalid_argument);
    refused({one}, {.resume = true}, Errc::invalid_argument);
    refused({{"w", Dtype::u8, {std::uint64_t{1} << 60}}}, {}, Errc::no_space);

    const auto error = error_of([&] { ShardWriter(dir / "out", std::vector{Declaration{"z", Dtype::c32, {}}}); });
    REQUIRE(error);
    CHECK(error->tensor() == "z");
    CHECK(std::string(error->what()).starts_with("save " + (dir / "out").native() + "/: "));

    fs::create_directory(dir / "out");
    dir.write("out/model.safetensors", "old");
    CHECK_FAULT(ShardWriter(dir / "out", std::vector{one}), Errc::already_exists);
    CHECK_FAULT(ShardWriter(dir / "no/out", std::vector{one}), Errc::path_not_found);
}

TEST_CASE("a writer without a commit leaves nothing, and a moved writer continues") {
    const TempDir dir;
    const std::vector<Declaration> tensors = {{"w", Dtype::u8, {3}}};
    {
        ShardWriter writer(dir / "out", tensors);
        CHECK(names_in(dir.path()) == Names{".out.safemap-tmp"});
        CHECK_FAULT(ShardWriter(dir / "out", tensors), Errc::busy);
        writer.write("w", random_bytes(3, 1));
    }
    CHECK(names_in(dir.path()).empty());

    ShardWriter first(dir / "first", tensors);
    ShardWriter writer(dir / "second", tensors);
    first.write("w", random_bytes(3, 1));
    writer = std::move(first);
    CHECK(names_in(dir.path()) == Names{".first.safemap-tmp"});
    writer.commit();
    CHECK(names_in(dir.path()) == Names{"first"});
}

TEST_CASE("a writer that overwrites does not touch the old checkpoint until the commit") {
    const TempDir dir;
    const std::vector<LazyTensor> old = {tensor("old", Dtype::u8, {10}), tensor("older", Dtype::u8, {10})};
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::u8, {3})};
    for (const auto* out : {"out", "out.safetensors"}) {
        CAPTURE(out);
        save(dir / out, old, {.max_shard_size = 10});
        CHECK_FAULT(ShardWriter(dir / out, declared(tensors)), Errc::already_exists);
        { ShardWriter(dir / out, declared(tensors), {.overwrite = true}).write("w", tensors[0]); }
        CHECK(Checkpoint::open(dir / out).size() == 2);
        ShardWriter writer(dir / out, declared(tensors), {.overwrite = true});
        writer.write("w", tensors[0]);
        CHECK(Checkpoint::open(dir / out).size() == 2);
        writer.commit();
        const auto now = Checkpoint::open(dir / out);
        CHECK(now.size() == 1);
        const TensorView value = now["w"].load();
        CHECK(std::equal(value.bytes().begin(), value.bytes().end(), random_bytes(3, 1).begin()));
    }
    CHECK(names_in(dir / "out") == Names{"model.safetensors"});
    CHECK(names_in(dir.path()) == Names{"out", "out.safetensors"});
}

TEST_CASE("a failed write closes the writer, and nothing is left") {
    const TempDir dir;
    const std::vector<Declaration> tensors = {{"w", Dtype::u8, {3'000}}, {"v", Dtype::u8, {8}}};
    const auto ends = [&](const std::function<void(ShardWriter&)>& write) {
        {
            ShardWriter writer(dir / "out", tensors);
            writer.write("v", random_bytes(8, 1));
            write(writer);
            CHECK_FAULT(writer.write("w", random_bytes(3'000, 1)), Errc::writer_closed);
            CHECK_FAULT(writer.commit(), Errc::writer_closed);
        }
        CHECK(names_in(dir.path()) == Names{"in"});
    };
    dir.write("in", std::string(3'000, 'x'));
    ends([&](ShardWriter& writer) {
        CHECK_THROWS_AS(writer.write("w", [](std::uint64_t, std::span<std::byte>) { throw std::logic_error("mine"); }),
                        std::logic_error);
    });
    ends([&](ShardWriter& writer) {
        const LazyTensor source("source", stored_run(Dtype::u8, {3'000}, open_file(dir / "in"), 0));
        fs::resize_file(dir / "in", 100);
        check_error(error_of([&] { writer.write("w", source); }), {Errc::file_changed}, {},
                    {.path = (dir / "in").native()});
        fs::resize_file(dir / "in", 3'000);
    });
    ends([&](ShardWriter& writer) {
        // All bytes can be read, but the file is not the one that was opened.
        const LazyTensor source("source", stored_run(Dtype::u8, {3'000}, open_file(dir / "in"), 0));
        fs::last_write_time(dir / "in", fs::last_write_time(dir / "in") + std::chrono::seconds(1));
        CHECK_FAULT(writer.write("w", source), Errc::file_changed);
    });
    ends([&](ShardWriter& writer) {
        ScriptedCalls calls;
        calls.fail_all("pwrite", ENOSPC);
        check_error(error_of([&] { writer.write("w", random_bytes(3'000, 1)); }), {Errc::no_space}, {},
                    {.tensor = "w", .path = (dir / "out/model.safetensors").native()});
    });
}

TEST_CASE("every system call of a writer may fail: exit code 3, no leftovers, nothing at the target") {
    const TempDir dir;
    const std::vector<Declaration> tensors = {
        {"a", Dtype::u8, {3'000}}, {"b", Dtype::u8, {3'000}}, {"c", Dtype::u8, {3'000}}};
    const auto bytes = random_bytes(3'000, 1);
    struct Row {
        const char* out;
        std::uint64_t max_shard_size;
        int at_least;  // number of calls that a writer makes at least
    };
    for (const Row row : {Row{"out", 3'000, 35}, Row{"out.safetensors", 9'000, 15}}) {
        for (const int number : {EIO, ENOSPC, EACCES}) {
            bool survived = false;
            for (int nth = soak::step(3); !survived; nth += soak::step(3)) {
                CAPTURE(nth);
                REQUIRE(nth < 200);
                const FewDescriptors few(16);  // two files are open at a time
                const auto failure = fail_at(nth, number, [&] {
                    ShardWriter writer(dir / row.out, tensors, {.max_shard_size = row.max_shard_size});
                    for (const auto* name : {"c", "a", "b"}) writer.write(name, bytes);
                    writer.commit();
                });
                const auto& error = failure.error;
                const auto& which = failure.which;
                CAPTURE(which);
                REQUIRE(error.has_value() == !which.empty());
                if (error) {
                    CHECK(exit_code(error->code()) == 3);
                    CHECK(std::string(error->what()).starts_with("save "));
                    CHECK(error->path().starts_with((dir.path()).native()));
                    CHECK(names_in(dir.path()).empty());
                    continue;
                }
                survived = true;
                CHECK(nth > row.at_least);
                CHECK(names_in(dir.path()) == Names{row.out});
                fs::remove_all(dir / row.out);
            }
        }
    }
}

TEST_CASE("interrupted and short system calls make no difference to a writer") {
    Matrix m;
    {
        ScriptedCalls calls;
        calls.stutter(7);
        m.writer.write_box("w", {0, 0}, m.tensor.slice({Slice::ellipsis(), {.stop = 3}}));
        m.writer.write_box("w", {0, 3}, m.tensor.slice({Slice::ellipsis(), {.start = 3}}));
        m.writer.commit();
    }
    CHECK(read_file(m.dir / "out/model.safetensors").at("w").bytes == m.bytes);
}

TEST_CASE("more shards than descriptors are written in any order, with few of them open at a time") {
    const TempDir dir;
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 60; ++i) tensors.push_back(tensor("t" + std::to_string(i), Dtype::u8, {100}, i));
    const SaveOptions options{.max_shard_size = 100};
    save(dir / "saved", tensors, options);
    for (const bool direct_io : {false, true}) {
        CAPTURE(direct_io);
        const fs::path out = dir / (direct_io ? "around" : "through");
        std::optional<ShrunkMemory> small;
        if (direct_io) small.emplace();
        const FewDescriptors few(64);
        const std::size_t before = open_descriptors();
        ShardWriter writer(out, declared(tensors), options);
        std::size_t most = 0;
        for (const std::uint64_t half : {0U, 50U}) {
            for (const LazyTensor& t : tensors) {
                writer.write_range(t.name(), half,
                                   t.slice({{.start = half == 0 ? 0 : 50, .stop = half == 0 ? 50 : 100}}));
                most = std::max(most, open_descriptors());
            }
        }
        // The parent folder, the hidden folder, the lock and `content`; and eight files, with up to two descriptors
        // each.
        CHECK(most <= before + 4 + (direct_io ? 16 : 8));
        CHECK(most >= before + 4 + 8);
        writer.commit();
        CHECK(contents_of(out) == contents_of(dir / "saved"));
    }
}

TEST_CASE("writes run in parallel, and a commit waits for them") {
    const TempDir dir;
    const std::vector<Declaration> tensors = {{"w", Dtype::u8, {2}}, {"v", Dtype::u8, {1}}};
    ShardWriter writer(dir / "out", tensors);
    std::atomic<int> filling = 0;
    std::atomic<bool> go_on = false;
    const auto fill = [&](std::uint64_t, std::span<std::byte> into) {
        // Each continues only after all are running, and after a commit that does not wait would have finished.
        ++filling;
        while (!go_on) std::this_thread::yield();
        std::fill(into.begin(), into.end(), std::byte{7});
    };
    std::vector<std::thread> threads;
    for (const std::uint64_t at : {0U, 1U}) threads.emplace_back([&, at] { writer.write_range("w", {at, 1}, fill); });
    threads.emplace_back([&] { writer.write("v", fill); });
    while (filling < 3) std::this_thread::yield();
    std::atomic<bool> committed = false;
    std::thread committing([&] {
        writer.commit();
        committed = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK_FALSE(committed);
    CHECK_FALSE(fs::exists(dir / "out"));
    go_on = true;
    for (std::thread& thread : threads) thread.join();
    committing.join();
    CHECK(read_file(dir / "out/model.safetensors").at("w").bytes == std::vector(2, std::byte{7}));
}

TEST_CASE("a commit that waits for a failing write fails") {
    const TempDir dir;
    std::optional<ShardWriter> writer(std::in_place, dir / "out", std::vector{Declaration{"w", Dtype::u8, {1}}});
    std::atomic<bool> filling = false;
    std::atomic<bool> go_on = false;
    std::thread thread([&] {
        const auto fill = [&](std::uint64_t, std::span<std::byte>) {
            filling = true;
            while (!go_on) std::this_thread::yield();
            throw std::runtime_error("mine");
        };
        CHECK_THROWS_AS(writer->write("w", fill), std::runtime_error);
    });
    while (!filling) std::this_thread::yield();
    std::thread committing([&] { CHECK_FAULT(writer->commit(), Errc::writer_closed); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    go_on = true;
    thread.join();
    committing.join();
    writer.reset();
    CHECK(names_in(dir.path()).empty());
}

TEST_CASE("eight threads have buffers at a time, however many write") {
    const TempDir dir;
    constexpr std::uint64_t count = 20;
    ShardWriter writer(dir / "out", std::vector{Declaration{"w", Dtype::u8, {count}}});
    std::atomic<int> inside = 0;
    std::atomic<int> most = 0;
    const auto fill = [&](std::uint64_t, std::span<std::byte> into) {
        const int now = ++inside;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::fill(into.begin(), into.end(), std::byte{1});
        --inside;
    };
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < count; ++i) threads.emplace_back([&, i] { writer.write_range("w", {i, 1}, fill); });
    for (std::thread& thread : threads) thread.join();
    CHECK(most <= 8);
    CHECK(most > 1);
    writer.commit();
}

TEST_CASE("of several threads that write the same bytes, one succeeds") {
    const TempDir dir;
    const std::vector<Declaration> tensors = {{"w", Dtype::u8, {1'000}}};
    ShardWriter writer(dir / "out", tensors);
    const auto bytes = random_bytes(1'000, 1);
    std::atomic<int> refused = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            for (std::size_t at = 0; at < 1'000; at += 10) {
                const auto error = error_of([&] { writer.write_range("w", at, std::span(bytes).subspan(at, 10)); });
                if (error && error->code() == Errc::written_twice) ++refused;
            }
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(refused == 300);
    writer.commit();
    CHECK(read_file(dir / "out/model.safetensors").at("w").bytes == bytes);
}

}  // namespace shard_writer_test
