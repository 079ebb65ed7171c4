// Tests tensors of dtypes that safetensors does not have: stored as the raw dtype, with the real dtype in the document.
#include <safemap/save.hpp>

#include "doctest_safemap.hpp"
#include "forge/pickle.hpp"
#include "forge/zip.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/edit.hpp>
#include <safemap/advanced/structure.hpp>
#include <safemap/diff.hpp>
#include <safemap/digest.hpp>
#include <safemap/verify.hpp>

#include <algorithm>

namespace raw_dtypes_test {

using namespace safemap;
using namespace samples;

namespace {

const fs::path pt = fs::path(SAFEMAP_TEST_DATA) / "pt";

/// Returns a one-dimensional tensor of `size` elements from `first` on, optionally conjugated.
std::string view(std::string_view type, std::string_view key, std::int64_t size, std::int64_t first, bool conj) {
    const std::string lazy = std::string("}(") + forge::text("conj") + (conj ? "\x88" : "\x89") + "u";
    return forge::call(
        "torch._utils", "_rebuild_tensor_v2",
        {forge::storage(type, key, size + first), forge::integer(first), forge::tuple({forge::integer(size)}),
         forge::tuple({forge::integer(1)}), "\x89", forge::ordered(), lazy});
}

/// Writes a nested dictionary: one F64 element, so that complex128 data begins at an odd multiple of eight bytes, and
/// complex128 tensors that are plain, tied, conjugated, part of a storage, and empty.
fs::path complexes(const TempDir& dir, std::size_t elements, const char* byte_order = "little") {
    const auto size = static_cast<std::int64_t>(elements);
    const char* const type = "ComplexDoubleStorage";
    const std::string dict =
        forge::dict({forge::text("a"), view("DoubleStorage", "0", 1, 0, false), forge::text("z"),
                     view(type, "1", size, 0, false), forge::text("tied"), view(type, "1", size, 0, false),
                     forge::text("conj"), view(type, "1", size, 0, true), forge::text("part"),
                     view(type, "1", size - 3, 3, false), forge::text("none"), view(type, "1", 0, size, false)});
    forge::Zip zip;
    zip.add("a/data.pkl", forge::pickle(forge::dict({forge::text("m"), dict, forge::text("n"), forge::integer(3)})));
    zip.add("a/byteorder", byte_order);
    const auto data = random_bytes(elements * 16, 7);
    zip.add("a/data/0", std::string(8, 'd'));
    zip.add("a/data/1", std::string(reinterpret_cast<const char*>(data.data()), data.size()));
    return dir.write("complex.pt", zip.join());
}

std::vector<std::byte> loaded(const LazyTensor& tensor) {
    const TensorView value = tensor.load();
    return {value.bytes().begin(), value.bytes().end()};
}

bool is_unnamed(const LazyTensor& tensor) { return !in_safetensors(tensor.dtype()); }

void check_same(const Checkpoint& a, const Checkpoint& b) {
    CHECK(digests(a).checkpoint == digests(b).checkpoint);
    CHECK(diff(a, b).equal());
    CHECK(structure_of(a) == structure_of(b));
    CHECK(a.aliases() == b.aliases());
}

/// Checks what other readers see: dtypes and shapes that they know, and the bytes of the values.
void check_stored(const fs::path& file, const Checkpoint& source) {
    const auto found = read_file(file);
    for (const LazyTensor& tensor : source) {
        CAPTURE(tensor.name());
        const auto stored = found.find(tensor.name());
        REQUIRE(stored != found.end());
        Shape shape = tensor.shape();
        if (is_unnamed(tensor) && kind(tensor.dtype()) == DtypeKind::complex) shape.push_back(2);
        CHECK(stored->second.shape == shape);
        CHECK(in_safetensors(stored->second.dtype));
        CHECK(stored->second.bytes == loaded(tensor));
    }
}

std::string safetensors_of(const std::string& header, const std::string& data) {
    return forge::little(header.size(), 8) + header + data;
}

/// Writes a file with the document `root`, in `version`, and the tensors F64 [3, 2], F32 [2] and U8 [2].
fs::path with_document(const TempDir& dir, const std::string& root, int version = 2) {
    std::string escaped;
    for (const char c : root) escaped += c == '"' ? std::string("\\\"") : std::string(1, c);
    const std::string header = R"({"__metadata__":{"safemap.structure":"{\"v\":)" + std::to_string(version) +
                               R"(,\"root\":)" + escaped +
                               R"(}"},"d":{"dtype":"F64","shape":[3,2],"data_offsets":[0,48]},)"
                               R"("f":{"dtype":"F32","shape":[2],"data_offsets":[48,56]},)"
                               R"("u":{"dtype":"U8","shape":[2],"data_offsets":[56,58]}})";
    return dir.write("document.safetensors", safetensors_of(header, std::string(58, 'x')));
}

}  // namespace

TEST_CASE("tensors of dtypes without a name are read back the same, from one file and from shards") {
    const TempDir dir;
    std::vector<fs::path> files{complexes(dir, 20)};
    for (const char* const file : {"odd_dtypes.pt", "conj_neg.pt", "strided.pt", "quantized.pt"})
        files.push_back(pt / file);
    for (const fs::path& file : files) {
        CAPTURE(file.native());
        const Checkpoint source = Checkpoint::open(file);
        CHECK(std::any_of(source.begin(), source.end(), is_unnamed));
        for (const bool checksums : {false, true}) {
            const fs::path one = dir / "one.safetensors";
            const SaveOptions options{.structure = StructurePolicy::keep, .checksums = checksums, .overwrite = true};
            const SaveReport report = save(one, source, options);
            CHECK(report.skipped.empty());
            CHECK(report.unsupported.empty());
            CHECK(report.tensors == source.size());
            check_stored(one, source);
            CHECK(verify(one).ok());
            const Checkpoint again = Checkpoint::open(one);
            CHECK(again.notes().empty());
            check_same(source, again);
            CHECK(save(dir / "two.safetensors", again, options).skipped.empty());
            CHECK(TempDir::read(dir / "two.safetensors") == TempDir::read(one));
            SaveOptions small = options;
            small.max_shard_size = 40;
            save(dir / "shards", source, small);
            CHECK(verify(dir / "shards").ok());
            check_same(source, Checkpoint::open(dir / "shards"));
        }
    }
}

TEST_CASE("without a document they are skipped and listed, also when read from safetensors") {
    const TempDir dir;
    const Checkpoint source = Checkpoint::open(complexes(dir, 20));
    save(dir / "kept.safetensors", source);
    for (const Checkpoint& each : {source, Checkpoint::open(dir / "kept.safetensors")}) {
        const SaveReport report =
            save(dir / "plain.safetensors", each, {.structure = StructurePolicy::drop, .overwrite = true});
        CHECK(report.tensors == 1);
        CHECK(report.skipped.size() == 5);  // including both names of the tied tensor
        REQUIRE(report.unsupported.size() == 1);
        CHECK(report.unsupported[0].dtype == Dtype::c128);
        CHECK(report.unsupported[0].tensors == 4);
        CHECK(read_file(dir / "plain.safetensors").size() == 1);
        const Checkpoint plain = Checkpoint::open(dir / "plain.safetensors");
        CHECK(plain.aliases().empty());
    }
}

TEST_CASE("a flat dictionary is an ordinary file, unless its source has a document") {
    const TempDir dir;
    const fs::path out = dir / "out.safetensors";
    const Checkpoint source = Checkpoint::open(pt / "odd_dtypes.pt");
    CHECK_FALSE(save(out, source).skipped.empty());
    save(dir / "kept.safetensors", source, {.structure = StructurePolicy::keep});
    CHECK(save(out, Checkpoint::open(dir / "kept.safetensors"), {.overwrite = true}).skipped.empty());
    CHECK(TempDir::read(out) == TempDir::read(dir / "kept.safetensors"));
}

TEST_CASE("blocks do not cut elements of sixteen bytes, at any offset in the file") {
    const TempDir dir;
    for (const char* const order : {"little", "big"}) {
        CAPTURE(order);
        const Checkpoint source = Checkpoint::open(complexes(dir, 150'000, order));
        const fs::path out = dir / "out.safetensors";
        save(out, source, {.alignment = 64, .checksums = true, .overwrite = true});
        CHECK(Checkpoint::open(out)["conj"].placement()->extent.offset % 16 == 8);
        CHECK(verify(out).ok());
        check_stored(out, source);
        check_same(source, Checkpoint::open(out));
    }
}

TEST_CASE("selections, renamed tensors, parts and edits keep their dtypes") {
    const TempDir dir;
    const fs::path file = dir / "kept.safetensors";
    const fs::path out = dir / "out.safetensors";
    const Checkpoint source = Checkpoint::open(complexes(dir, 20));
    save(file, source, {.checksums = true});
    const Checkpoint kept = Checkpoint::open(file);
    const auto renamed = [](const Checkpoint& from) {
        return from.select(Selection::names({"z", "tied", "a"})).renamed([](std::string_view name) {
            return "x/" + std::string(name);
        });
    };
    save(out, renamed(kept));
    check_same(renamed(source), Checkpoint::open(out));
    CHECK(Checkpoint::open(out)["x/tied"].dtype() == Dtype::c128);

    const Checkpoint part = kept.below("m");
    CHECK(part["z"].dtype() == Dtype::c128);
    save(out, part, {.overwrite = true});
    CHECK(digests(Checkpoint::open(out)).checkpoint == digests(source.below("m")).checkpoint);

    CHECK_OK(edit(file, {.set = {{"who", "me"}}, .rename = {{"z", "zeta"}}}));
    CHECK(verify(file).ok());
    CHECK(Checkpoint::open(file)["zeta"].dtype() == Dtype::c128);
    CHECK(loaded(Checkpoint::open(file)["zeta"]) == loaded(source["z"]));
    CHECK_OK(repair(file, out, {.overwrite = true}));
    CHECK(Checkpoint::open(out)["zeta"].dtype() == Dtype::c128);
}

TEST_CASE("a document may give a tensor only a dtype that matches its raw dtype") {
    const TempDir dir;
    const Checkpoint good =
        Checkpoint::open(with_document(dir, R"({"d":["T",{"dtype":"complex128"}],"f":["T"],)"
                                            R"("u":["T",{"dtype":"bits8","p":1}],"v":["@T","u"]})"));
    CHECK(good["d"].dtype() == Dtype::c128);
    CHECK(good["d"].shape() == Shape{3});
    CHECK(good["u"].dtype() == Dtype::bits8);
    CHECK(good["f"].dtype() == Dtype::f32);
    for (const char* const root : {
             R"({"f":["T",{"dtype":"qint8"}]})",       // a different width
             R"({"f":["T",{"dtype":"qint32"}]})",      // the same width
             R"({"u":["T",{"dtype":"qint8"}]})",       // U8 is the raw dtype of quint8
             R"({"d":["T",{"dtype":"complex32"}]})",   // F64 is not the raw dtype of complex32
             R"({"u":["T",{"dtype":"complex128"}]})",  // neither dtype nor shape match
             R"({"d":["T",{"dtype":"float64"}]})",     // its own dtype, which needs no entry
             R"({"d":["T",{"dtype":"complex64"}]})",   // safetensors has complex64
             R"({"d":["T",{"dtype":"torch.complex128"}]})",
             R"({"d":["T",{"dtype":"COMPLEX128"}]})",
             R"({"d":["T",{"dtype":""}]})",
             R"({"d":["T",{"dtype":1}]})",
             R"({"d":["T",{"dtype":"complex128"}],"e":["T",{"n":"d"}]})",  // one tensor with two dtypes
             R"({"e":["T",{"n":"d"}],"d":["T",{"dtype":"complex128"}]})",
             R"({"u":["T",{"dtype":"bits8"}],"e":["T",{"n":"u","dtype":"quint8"}]})",
         }) {
        CAPTURE(root);
        CHECK_FAULT(Checkpoint::open(with_document(dir, root)), Errc::bad_structure);
        const Checkpoint lenient = Checkpoint::open(dir / "document.safetensors", {.policy = Policy::lenient});
        CHECK(lenient["d"].dtype() == Dtype::f64);
    }
    // Readers of version 1 do not look for a dtype.
    CHECK_FAULT(Checkpoint::open(with_document(dir, R"({"d":["T",{"dtype":"complex128"}]})", 1)), Errc::bad_structure);
    // A shape whose last dimension is not 2.
    const std::string header =
        R"({"__metadata__":{"safemap.structure":"{\"v\":2,\"root\":[\"T\",{\"n\":\"d\",)"
        R"(\"dtype\":\"complex128\"}]}"},"d":{"dtype":"F64","shape":SHAPE,"data_offsets":[0,8]}})";
    for (const char* const shape : {"[]", "[1]", "[1,1]"}) {
        std::string with_shape = header;
        with_shape.replace(header.find("SHAPE"), 5, shape);
        const fs::path file = dir.write("shape.safetensors", safetensors_of(with_shape, "abcdefgh"));
        CHECK_FAULT(Checkpoint::open(file), Errc::bad_structure);
    }
}

TEST_CASE("joined files keep the dtypes in their documents") {
    const TempDir dir;
    const Checkpoint source = Checkpoint::open(complexes(dir, 4));
    save(dir / "a.safetensors", source, {.structure = StructurePolicy::keep});
    save(dir / "b.safetensors", std::vector{tensor("other", Dtype::f32, {2})});
    const std::vector<fs::path> files = {dir / "a.safetensors", dir / "b.safetensors"};
    const SaveReport report = save(dir / "joined.safetensors", Checkpoint::open(files));
    CHECK(report.skipped.empty());
    const Checkpoint joined = Checkpoint::open(dir / "joined.safetensors");
    REQUIRE(joined.size() == source.size() + 1);
    for (const LazyTensor& tensor : source) CHECK(joined[tensor.name()].dtype() == tensor.dtype());
}

}  // namespace raw_dtypes_test
