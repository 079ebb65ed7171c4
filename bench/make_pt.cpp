// Makes a large .pt without Python: the file that torch.save would write for a llama of fp32 weights. For
// demonstrations and benchmarks. Memory use is small and does not depend on the size.
//
//     make_pt OUT SIZE [--transposed]        make_pt big.pt 4GB
//
// The zip has PyTorch's layout: stored records, payloads at multiples of 64, sizes and CRC-32 in data descriptors after
// the payloads, zip64 from 4 GiB on. With --transposed, each matrix is a transposed view of its storage.
//
// From top to bottom: llama() chooses names and shapes for the size; pickle() writes data.pkl; the class Zip writes
// records and the central directory; Weights generates the floats, block by block; main() connects them.
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace {

constexpr std::uint64_t element_bytes = 4;
constexpr std::uint64_t payload_alignment = 64;
constexpr std::uint64_t zip64_from = 0xFFFF'FFFF;
constexpr std::size_t block_bytes = 4U << 20;

// ---- The tensors of the model

struct Tensor {
    std::string name;
    std::vector<std::uint64_t> shape;

    std::uint64_t elements() const {
        std::uint64_t count = 1;
        for (const std::uint64_t extent : shape) count *= extent;
        return count;
    }
};

std::uint64_t bytes_of(const std::vector<Tensor>& tensors) {
    std::uint64_t total = 0;
    for (const Tensor& tensor : tensors) total += tensor.elements() * element_bytes;
    return total;
}

std::vector<Tensor> embedding(std::uint64_t hidden) {
    return {{"model.embed_tokens.weight", {std::min<std::uint64_t>(hidden * 16, 32'000), hidden}}};
}

std::vector<Tensor> layer(std::uint64_t number, std::uint64_t hidden) {
    const std::string prefix = "model.layers." + std::to_string(number) + ".";
    const std::uint64_t inner = hidden * 11 / 4;  // as in llama, rounded to a multiple that hardware prefers
    return {
        {prefix + "self_attn.q_proj.weight", {hidden, hidden}}, {prefix + "self_attn.k_proj.weight", {hidden, hidden}},
        {prefix + "self_attn.v_proj.weight", {hidden, hidden}}, {prefix + "self_attn.o_proj.weight", {hidden, hidden}},
        {prefix + "mlp.gate_proj.weight", {inner, hidden}},     {prefix + "mlp.up_proj.weight", {inner, hidden}},
        {prefix + "mlp.down_proj.weight", {hidden, inner}},     {prefix + "input_layernorm.weight", {hidden}},
        {prefix + "post_attention_layernorm.weight", {hidden}},
    };
}

/// Returns the tensors of a llama: as wide as possible with at least four layers, and with the depth that comes nearest
/// to `size`.
std::vector<Tensor> llama(std::uint64_t size) {
    std::uint64_t hidden = 4096;
    while (hidden > 16 && bytes_of(embedding(hidden)) + 4 * bytes_of(layer(0, hidden)) > size) hidden /= 2;

    std::vector<Tensor> tensors = embedding(hidden);
    const std::uint64_t one_layer = bytes_of(layer(0, hidden));
    const std::uint64_t rest = size - std::min(size, bytes_of(tensors));
    const std::uint64_t layers = std::max<std::uint64_t>((rest + one_layer / 2) / one_layer, 1);
    for (std::uint64_t i = 0; i < layers; ++i)
        for (Tensor& tensor : layer(i, hidden)) tensors.push_back(std::move(tensor));
    tensors.push_back({"model.norm.weight", {hidden}});
    return tensors;
}

// ---- The pickle

void put_little(std::string& to, std::uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i) & 0xFF);
}

void put_text(std::string& to, std::string_view text) {
    to += 'X';  // BINUNICODE
    put_little(to, text.size(), 4);
    to += text;
}

void put_integer(std::string& to, std::uint64_t value) {
    if (value < 0x8000'0000) {
        to += 'J';  // BININT
        put_little(to, value, 4);
    } else {
        to += "\x8a\x08";  // LONG1 of eight bytes
        put_little(to, value, 8);
    }
}

void put_tuple(std::string& to, const std::vector<std::uint64_t>& values) {
    to += '(';
    for (const std::uint64_t value : values) put_integer(to, value);
    to += 't';
}

void put_tensor(std::string& to, const Tensor& tensor, std::size_t storage, bool transposed) {
    std::vector<std::uint64_t> strides(tensor.shape.size(), 1);
    for (std::size_t d = tensor.shape.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * tensor.shape[d + 1];
    if (transposed && tensor.shape.size() == 2) strides = {1, tensor.shape[0]};

    to += "ctorch._utils\n_rebuild_tensor_v2\n((";
    put_text(to, "storage");
    to += "ctorch\nFloatStorage\n";
    put_text(to, std::to_string(storage));
    put_text(to, "cpu");
    put_integer(to, tensor.elements());
    to += "tQ";  // TUPLE, BINPERSID
    put_integer(to, 0);
    put_tuple(to, tensor.shape);
    put_tuple(to, strides);
    to +=
        "\x89"
        "ccollections\nOrderedDict\n)RtR";  // False, an empty OrderedDict; TUPLE, REDUCE
}

std::string pickle(const std::vector<Tensor>& tensors, bool transposed) {
    std::string out =
        "\x80\x02"
        "ccollections\nOrderedDict\n)R(";
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        put_text(out, tensors[i].name);
        put_tensor(out, tensors[i], i, transposed);
    }
    return out + "u.";  // SETITEMS, STOP
}

// ---- The zip

class Zip {
public:
    explicit Zip(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "wbx")) {
        if (file_ == nullptr) fail();
        std::setvbuf(file_, nullptr, _IONBF, 0);  // unbuffered: the blocks are large
    }
    ~Zip() {
        if (file_ == nullptr) return;
        std::fclose(file_);
        std::remove(path_.c_str());  // an incomplete file is useless
    }
    Zip(const Zip&) = delete;
    Zip& operator=(const Zip&) = delete;

    /// Adds a record of `size` bytes, which `fill` produces block by block.
    template <class Fill> void add(std::string name, std::uint64_t size, Fill&& fill) {
        Record record{std::move(name), 0, size, at_};
        begin(record);
        std::uint64_t left = size;
        while (left > 0) {
            const auto here = static_cast<std::size_t>(std::min<std::uint64_t>(left, block_bytes));
            fill(block_.data(), here);
            record.crc = static_cast<std::uint32_t>(
                ::crc32(record.crc, reinterpret_cast<const Bytef*>(block_.data()), static_cast<uInt>(here)));
            write(block_.data(), here);
            left -= here;
        }
        end(record);
        records_.push_back(std::move(record));
    }
    void add(std::string name, std::string_view content) {
        add(std::move(name), content.size(), [&](char* to, std::size_t bytes) {
            std::memcpy(to, content.data(), bytes);
            content.remove_prefix(bytes);
        });
    }

    void finish() {
        const std::uint64_t directory = at_;
        std::string out;
        for (const Record& record : records_) put_directory_entry(out, record);
        const std::uint64_t directory_size = out.size();
        put_end(out, directory, directory_size);
        write(out.data(), out.size());
        if (std::fclose(std::exchange(file_, nullptr)) != 0) fail();
    }

private:
    struct Record {
        std::string name;
        std::uint32_t crc;
        std::uint64_t size;
        std::uint64_t offset;
        bool zip64() const { return size >= zip64_from || offset >= zip64_from; }
    };
    static constexpr std::uint64_t has_descriptor_and_utf8 = 0x0808;

    /// Writes the local header, padded by an extra field so that the payload is aligned.
    void begin(const Record& record) {
        std::string extra = zip64_extra(record);
        const std::uint64_t unpadded = record.offset + 30 + record.name.size() + extra.size() + 4;
        const std::uint64_t padding = (payload_alignment - unpadded % payload_alignment) % payload_alignment;
        extra += "FB";
        put_little(extra, padding, 2);
        extra.append(padding, 'Z');

        std::string out = "PK\x03\x04";
        put_little(out, record.zip64() ? 45 : 0, 2);
        put_little(out, has_descriptor_and_utf8, 2);
        put_little(out, 0, 2 + 4 + 4 + 4 + 4);  // stored, no time; CRC and sizes follow the payload
        put_little(out, record.name.size(), 2);
        put_little(out, extra.size(), 2);
        out += record.name + extra;
        write(out.data(), out.size());
    }

    void end(const Record& record) {
        const unsigned width = record.zip64() ? 8 : 4;
        std::string out = "PK\x07\x08";
        put_little(out, record.crc, 4);
        put_little(out, record.size, width);
        put_little(out, record.size, width);
        write(out.data(), out.size());
    }

    static std::string zip64_extra(const Record& record) {
        if (!record.zip64()) return {};
        std::string values;
        if (record.size >= zip64_from) {
            put_little(values, record.size, 8);
            put_little(values, record.size, 8);
        }
        if (record.offset >= zip64_from) put_little(values, record.offset, 8);
        std::string out;
        put_little(out, 1, 2);
        put_little(out, values.size(), 2);
        return out + values;
    }

    static void put_directory_entry(std::string& out, const Record& record) {
        const std::string extra = zip64_extra(record);
        out += "PK\x01\x02";
        put_little(out, record.zip64() ? 45 : 0, 2);  // version made by, version needed
        put_little(out, record.zip64() ? 45 : 0, 2);
        put_little(out, has_descriptor_and_utf8, 2);
        put_little(out, 0, 2 + 4);  // stored, no time
        put_little(out, record.crc, 4);
        put_little(out, std::min(record.size, zip64_from), 4);
        put_little(out, std::min(record.size, zip64_from), 4);
        put_little(out, record.name.size(), 2);
        put_little(out, extra.size(), 2);
        put_little(out, 0, 2 + 2 + 2 + 4);  // no comment, first disk, no attributes
        put_little(out, std::min(record.offset, zip64_from), 4);
        out += record.name + extra;
    }

    void put_end(std::string& out, std::uint64_t directory, std::uint64_t directory_size) const {
        const std::uint64_t count = records_.size();
        const std::uint64_t end = directory + directory_size;
        if (directory >= zip64_from || count >= 0xFFFF) {
            out += "PK\x06\x06";
            put_little(out, 44, 8);  // size of the rest of this record
            put_little(out, 45, 2);
            put_little(out, 45, 2);
            put_little(out, 0, 4 + 4);  // disks
            put_little(out, count, 8);
            put_little(out, count, 8);
            put_little(out, directory_size, 8);
            put_little(out, directory, 8);
            out += "PK\x06\x07";
            put_little(out, 0, 4);
            put_little(out, end, 8);
            put_little(out, 1, 4);
        }
        out += "PK\x05\x06";
        put_little(out, 0, 2 + 2);
        put_little(out, std::min<std::uint64_t>(count, 0xFFFF), 2);
        put_little(out, std::min<std::uint64_t>(count, 0xFFFF), 2);
        put_little(out, std::min(directory_size, zip64_from), 4);
        put_little(out, std::min(directory, zip64_from), 4);
        put_little(out, 0, 2);
    }

    void write(const char* bytes, std::size_t size) {
        if (size > 0 && std::fwrite(bytes, 1, size, file_) != size) fail();
        at_ += size;
    }
    [[noreturn]] void fail() const { throw std::system_error(errno, std::generic_category(), path_); }

    std::string path_;
    std::FILE* file_;
    std::uint64_t at_ = 0;
    std::vector<char> block_ = std::vector<char>(block_bytes);
    std::vector<Record> records_;
};

/// Generates floats between 2^-7 and 2 of either sign, the same in every run: splitmix64, two floats per step.
class Weights {
public:
    explicit Weights(std::uint64_t seed) : state_(seed * 0xD6E8'FEB8'6659'FD93) {}
    void operator()(char* to, std::size_t bytes) {
        for (std::size_t i = 0; i < bytes; i += 8) {
            state_ += 0x9E37'79B9'7F4A'7C15;
            std::uint64_t x = state_;
            x = (x ^ x >> 30) * 0xBF58'476D'1CE4'E5B9;
            x = (x ^ x >> 27) * 0x94D0'49BB'1331'11EB;
            x ^= x >> 31;
            x = (x & 0x83FF'FFFF'83FF'FFFF) | 0x3C00'0000'3C00'0000;
            std::memcpy(to + i, &x, std::min<std::size_t>(8, bytes - i));
        }
    }

private:
    std::uint64_t state_;
};

std::optional<std::uint64_t> parse_size(std::string_view text) {
    constexpr std::pair<std::string_view, std::uint64_t> units[] = {
        {"", 1},           {"KB", 1'000},     {"MB", 1'000'000}, {"GB", 1'000'000'000},
        {"KiB", 1U << 10}, {"MiB", 1U << 20}, {"GiB", 1U << 30},
    };
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{}) return std::nullopt;
    const std::string_view unit(end, text.data() + text.size());
    for (const auto& [suffix, factor] : units)
        if (unit == suffix && number <= (std::uint64_t{1} << 46) / factor) return number * factor;
    return std::nullopt;
}

void make(const std::string& path, std::uint64_t size, bool transposed) {
    const std::vector<Tensor> tensors = llama(size);
    Zip zip(path);
    zip.add("archive/data.pkl", pickle(tensors, transposed));
    zip.add("archive/byteorder", "little");
    for (std::size_t i = 0; i < tensors.size(); ++i)
        zip.add("archive/data/" + std::to_string(i), tensors[i].elements() * element_bytes, Weights(i + 1));
    zip.add("archive/version", "3\n");
    zip.finish();
    std::printf("%s: %zu tensors, %llu bytes of them\n", path.c_str(), tensors.size(),
                static_cast<unsigned long long>(bytes_of(tensors)));
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string_view> arguments(argv + 1, argv + argc);
    const bool transposed = arguments.size() == 3 && arguments[2] == "--transposed";
    const auto size = arguments.size() >= 2 ? parse_size(arguments[1]) : std::nullopt;
    if (!size || (arguments.size() > 2 && !transposed) || arguments.size() > 3) {
        std::fputs("usage: make_pt OUT SIZE [--transposed]      make_pt big.pt 4GB\n", stderr);
        return 2;
    }
    try {
        make(std::string(arguments[0]), *size, transposed);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "make_pt: %s\n", error.what());
        return 3;
    }
    return 0;
}
