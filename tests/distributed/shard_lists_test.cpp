// Tests that lists of shards are read from their bytes with the result that the machine gives. The twin is the same
// set, read without this: whatever the files hold, both give the same tensors, or the same error.
#include "distributed/ranks/shard_lists.hpp"

#include "distributed/ranks/read_rank_files.hpp"
#include "doctest_safemap.hpp"
#include "forge/ranks.hpp"
#include "inspect.hpp"
#include "pickle/memory_share.hpp"
#include "soak.hpp"
#include "torch/fixtures.hpp"
#include "torch/parts.hpp"

#include <safemap/error.hpp>

#include <functional>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace shard_lists_test {

using namespace safemap;
using namespace std::string_literals;
using distributed::ShardLists;

namespace {

/// How a set is pickled.
struct Style {
    std::size_t ranks = 3;
    std::size_t tensors = 2;
    std::uint64_t rows = 2;     ///< the rows of each shard
    bool slots = true;          ///< ShardMetadata has slots, as in torch 2.13
    bool own_in_list = false;   ///< the metadata of the local shard is the object in the list
    bool device_text = false;   ///< the device is a text
    bool device_index = false;  ///< the device has a number
    bool spec = true;           ///< the spec names the devices of the list
};

/// Writes pickles with a memo, as torch.save does in protocol 2.
class Pickler {
public:
    explicit Pickler(const Style& style) : style_(style) {}

    std::string opcodes = "\x80\x02"s;
    /// Entries of the memo: of the list, a shard, its sizes, and the metadata with the list, of each tensor.
    struct Entries {
        std::size_t list, shard, sizes, metadata;
    };
    std::vector<Entries> entries = {};

    std::size_t put() {
        opcodes += memo_ < 256 ? "q"s + static_cast<char>(memo_) : "r"s + forge::little(memo_, 4);
        return memo_++;
    }
    void get(std::size_t entry) {
        opcodes += entry < 256 ? "h"s + static_cast<char>(entry) : "j"s + forge::little(entry, 4);
    }
    static std::string integer(std::uint64_t value) {
        if (value < 256) return "K"s + forge::little(value, 1);
        return value < 65'536 ? "M"s + forge::little(value, 2) : "J"s + forge::little(value, 4);
    }
    void number(std::uint64_t value) { opcodes += integer(value); }
    void text(const std::string& value) {
        once("text " + value, [&] { opcodes += forge::text(value); });
    }
    void global(const std::string& module, const std::string& name) {
        once(module + " " + name, [&] { opcodes += forge::global(module, name); });
    }
    void object(const std::string& module, const std::string& name) {
        global(module, name);
        opcodes += ")\x81"s;
    }

    void begin() { opcodes += "}("s; }
    void end() { opcodes += "u."s; }

    void tensor(const std::string& name, std::uint64_t rank, std::size_t storage) {
        opcodes += forge::text(name);
        put();
        const std::string api = "torch.distributed._shard.sharded_tensor.api";
        const std::uint64_t rows = style_.rows * style_.ranks;
        global("torch._tensor", "_rebuild_from_type_v2");
        opcodes += "("s;
        global("torch._utils", "_rebuild_wrapper_subclass");
        global(api, "ShardedTensor");
        opcodes += "("s;
        global(api, "ShardedTensor");
        global("torch", "float32");
        pair(rows, 4);
        opcodes += "t(]"s;
        put();
        object("torch.distributed._shard.sharded_tensor.shard", "Shard");
        opcodes += "}("s;
        text("tensor");
        global("torch._utils", "_rebuild_tensor_v2");
        opcodes += "(("s;
        text("storage");
        global("torch", "FloatStorage");
        opcodes += forge::text(std::to_string(storage)) + forge::text("cpu");
        number(4 * style_.rows);
        opcodes += "tQ"s;
        number(0);
        pair(style_.rows, 4);
        pair(4, 1);
        opcodes += "\x89"s;
        object("collections", "OrderedDict");
        opcodes.back() = 'R';
        opcodes += "tR"s;
        text("metadata");
        const std::size_t own = shard(rank).shard;
        opcodes += "uba"s;
        object("torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata");
        Entries& here = entries.emplace_back();
        here.metadata = put();
        opcodes += "}("s;
        text("shards_metadata");
        opcodes += "]"s;
        here.list = put();
        opcodes += "("s;
        std::vector<std::size_t> devices;
        for (std::size_t r = 0; r < style_.ranks; ++r) {
            if (r == rank && style_.own_in_list) {
                get(own);
            } else {
                const Shard made = shard(r);
                devices.push_back(made.device);
                here.shard = made.shard;
                here.sizes = made.sizes;
            }
        }
        opcodes += "e"s;
        text("size");
        global("torch", "Size");
        pair(rows, 4);
        opcodes += "\x85R"s;
        text("tensor_properties");
        opcodes += "Nub"s;
        object(api, "ShardedTensor.ProcessGroupState");
        opcodes += "}("s;
        text("global_rank");
        number(rank);
        opcodes += "ub"s;
        if (style_.spec && !devices.empty()) {
            object("torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec");
            opcodes += "}("s;
            text("dim");
            number(0);
            text("placements");
            opcodes += "]"s;
            put();
            opcodes += "("s;
            for (const std::size_t device : devices) get(device);
            opcodes += "eub"s;
        } else {
            opcodes += "N"s;
        }
        opcodes += "\x89ttR"s;
    }

private:
    struct Shard {
        std::size_t shard, sizes, device;
    };

    void once(const std::string& what, const std::function<void()>& write) {
        const auto [known, fresh] = known_.try_emplace(what, memo_);
        if (!fresh) return get(known->second);
        write();
        put();
    }
    void pair(std::uint64_t first, std::uint64_t second) {
        number(first);
        number(second);
        opcodes += "\x86"s;
        put();
    }
    std::size_t list(std::uint64_t first, std::uint64_t second) {
        opcodes += "]"s;
        const std::size_t entry = put();
        opcodes += "("s;
        number(first);
        number(second);
        opcodes += "e"s;
        return entry;
    }
    Shard shard(std::uint64_t rank) {
        Shard out{};
        object("torch.distributed._shard.metadata", "ShardMetadata");
        out.shard = put();
        opcodes += style_.slots ? "N}"s : "}"s;
        put();
        opcodes += "("s;
        text("shard_offsets");
        list(rank * style_.rows, 0);
        text("shard_sizes");
        out.sizes = list(style_.rows, 4);
        text("placement");
        object("torch.distributed.remote_device", "_remote_device");
        out.device = put();
        opcodes += "}"s;
        put();
        opcodes += "("s;
        text("_worker_name");
        opcodes += "N"s;
        text("_rank");
        number(rank);
        text("_device");
        device(rank);
        opcodes += "ubu"s;
        if (style_.slots) {
            opcodes += "\x86"s;
            put();
        }
        opcodes += "b"s;
        return out;
    }
    void device(std::uint64_t rank) {
        if (style_.device_text) return text("cpu");
        global("torch", "device");
        opcodes += forge::text("cuda");
        put();
        if (style_.device_index) number(rank);
        opcodes += style_.device_index ? "\x86"s : "\x85"s;
        put();
        opcodes += "R"s;
        put();
    }

    Style style_;
    std::size_t memo_ = 0;
    std::map<std::string, std::size_t> known_ = {};
};

/// Called before the end of the pickle, whose stack has the dictionary and a mark: may add keys and values.
using Change = std::function<void(Pickler&, std::uint64_t rank)>;

std::string pickle(const Style& style, std::uint64_t rank, const Change& change = {}) {
    Pickler pickler(style);
    pickler.begin();
    for (std::size_t t = 0; t < style.tensors; ++t) pickler.tensor("t" + std::to_string(t), rank, t);
    if (change) change(pickler, rank);
    pickler.end();
    return pickler.opcodes;
}

std::string file(const Style& style, std::uint64_t rank, const std::string& pickle) {
    std::vector<forge::Zip::Record> records = {{.name = "archive/data.pkl", .data = pickle},
                                               {.name = "archive/byteorder", .data = "little"}};
    for (std::size_t t = 0; t < style.tensors; ++t)
        records.push_back({.name = "archive/data/" + std::to_string(t),
                           .data = std::string(16 * style.rows, static_cast<char>('a' + rank + t))});
    return forge::zip(records);
}

using Pickles = std::vector<std::string>;

Pickles pickles(const Style& style, const Change& change = {}) {
    Pickles out;
    for (std::size_t r = 0; r < style.ranks; ++r) out.push_back(pickle(style, r, change));
    return out;
}

/// Returns everything that opening a set gives, or its error, as text.
std::string outcome(const Style& style, const Pickles& all, bool takes_lists) {
    std::map<std::string, std::string> files;
    distributed::RankFiles set;
    for (std::size_t r = 0; r < all.size(); ++r) {
        set.files.push_back("rank_" + std::to_string(r) + ".pt");
        files[set.files.back()] = file(style, r, all[r]);
    }
    set.folder = std::make_shared<forge::Folder>(std::move(files), "run");
    set.takes_lists = takes_lists;
    std::string out;
    const auto error = error_of([&] {
        const state::Contents contents = distributed::read_rank_files(set, {});
        for (const LazyTensor& one : contents.tensors)
            out +=
                one.name() + " " + std::string(name(one.dtype())) + to_string(one.shape()) + " " + bytes_of(one) + "\n";
        for (const auto& [key, value] : contents.metadata) out += key + " = " + value + "\n";
        for (const auto& one : contents.skipped) out += "skipped " + one.name + "\n";
        // The calls in a list that is taken are not counted one by one.
        const std::regex times(" \\([0-9]+ times\\)");
        for (const auto& one : contents.notes) out += std::regex_replace(one, times, "") + "\n";
        for (const auto& one : contents.globals)
            out += one.record + " " + one.module + "." + one.name + (one.called ? "()" : "") + "\n";
    });
    return error ? std::string(safemap::name(error->code())) + error->path() + error->tensor() + error->message() : out;
}

std::string same_outcome(const Style& style, const Pickles& all) {
    const std::string fast = outcome(style, all, true);
    CHECK(fast == outcome(style, all, false));
    return fast;
}

/// Returns the number of lists that are taken from a pickle, and the number of nodes of its tree.
std::pair<std::size_t, std::size_t> taken(const Style& style, const std::string& pickle) {
    ShardLists lists;
    const auto parts = torch::read_whole(fixtures::source(file(style, 0, pickle), "rank_0.pt"), nullptr, &lists);
    return {parts.taken_lists.size(), parts.tree.size()};
}

std::vector<Style> styles() {
    std::vector<Style> out;
    for (unsigned bits = 0; bits < 32; ++bits)
        out.push_back({.slots = (bits & 1) != 0,
                       .own_in_list = (bits & 2) != 0,
                       .device_text = (bits & 4) != 0,
                       .device_index = (bits & 8) != 0,
                       .spec = (bits & 16) != 0});
    return out;
}

}  // namespace

TEST_CASE("lists of shards are taken in every form that torch gives them, and the tensors are the same") {
    for (Style style : styles()) {
        for (const std::uint64_t rows : {1U, 100U, 20'000U}) {
            style.rows = rows;
            CHECK(same_outcome(style, pickles(style)).starts_with("t0 F32["));
            CHECK(taken(style, pickle(style, 1)).first == style.tensors * (style.spec ? 2 : 1));
        }
    }
    // More than a thousand items are written in parts.
    const Style many{.ranks = 1003, .tensors = 1};
    CHECK(taken(many, pickle(many, 7)).first == 2);
    CHECK(taken(many, pickle(many, 7)).second < 5000);
}

TEST_CASE("a list that is longer than the pickle's memory is not taken") {
    const Style many{.ranks = 10'000, .tensors = 1, .spec = false};
    const auto source = fixtures::source(file(many, 0, pickle(many, 7)), "rank_0.pt");
    for (const std::uint64_t memory : {std::uint64_t{256} << 10, std::uint64_t{16} << 20}) {
        CAPTURE(memory);
        const MemoryShare limit(memory, memory);
        ShardLists lists;
        const auto error = error_of([&] { static_cast<void>(torch::read_whole(source, nullptr, &lists)); });
        // Each shard has five numbers, in a vector that grows: 800 KB in all.
        CHECK(lists.empty() == (memory < 1 << 20));
        CHECK(error.has_value() == (memory < 1 << 20));
        if (error) CHECK(error->code() == Errc::pickle_too_large);
    }
}

TEST_CASE("one difference in a list gives the error that the machine's reading gives") {
    const Style style{.ranks = 3, .tensors = 2};
    const Pickles good = pickles(style);
    // One number of the last shard of the last tensor.
    for (const std::string& from : {"K\x04K\x00\x65"s, "K\x02K\x04\x65"s}) {
        Pickles bad = good;
        const std::size_t at = bad[1].rfind(from);
        REQUIRE(at != std::string::npos);
        bad[1][at + 1] = '\x05';
        const std::string result = same_outcome(style, bad);
        CHECK(result.starts_with("ranks_differ"));
        CHECK(result.find("t1ranks differ in the shards") != std::string::npos);
    }
    // The rank of a shard is not compared, but its file must be there.
    for (const char rank : {'\x00', '\x07'}) {
        Pickles bad = good;
        const std::size_t at = bad[1].rfind("K\x02h");
        REQUIRE(at != std::string::npos);
        bad[1][at + 1] = rank;
        CHECK(same_outcome(style, bad).starts_with(rank == 0 ? "t0 F32" : "rank_missing"));
    }
    // It may be no rank at all.
    for (const std::string& rank : {"J\xff\xff\xff\xff"s, "\x8a\x00"s, "\x8a\x01\xff"s, "\x8a\x01\x80"s, "\x88"s}) {
        Pickles bad = good;
        const std::size_t at = bad[1].rfind("K\x02h");
        REQUIRE(at != std::string::npos);
        bad[1].replace(at, 2, rank);
        static_cast<void>(same_outcome(style, bad));
    }
}

TEST_CASE("who uses a value of a list in another way gets the value") {
    const auto key = [](Pickler& pickler, const std::string& name) { pickler.opcodes += forge::text(name); };
    const std::vector<Change> changes = {
        // The list, a shard or a part of it is a value of its own.
        [&](Pickler& to, std::uint64_t) { key(to, "x"), to.get(to.entries[0].list); },
        [&](Pickler& to, std::uint64_t) { key(to, "x"), to.get(to.entries[0].shard); },
        [&](Pickler& to, std::uint64_t) { key(to, "x"), to.get(to.entries[1].sizes); },
        [&](Pickler& to, std::uint64_t) { key(to, "x"), to.get(to.entries[1].metadata); },
        [&](Pickler& to, std::uint64_t) {
            key(to, "x"), to.opcodes += "("s, to.get(to.entries[1].list), to.opcodes += "t"s;
        },
        // In one rank only.
        [&](Pickler& to, std::uint64_t rank) {
            key(to, "x");
            if (rank == 1) to.get(to.entries[0].list);
            else to.opcodes += "]"s;
        },
        // It is changed later: an item more, a size more, another state.
        [&](Pickler& to, std::uint64_t) { key(to, "x"), to.get(to.entries[0].list), to.opcodes += "Na"s; },
        [&](Pickler& to, std::uint64_t) { key(to, "x"), to.get(to.entries[0].sizes), to.opcodes += "K\001a"s; },
        [&](Pickler& to, std::uint64_t) {
            key(to, "x");
            to.get(to.entries[0].shard);
            to.opcodes += "}" + forge::text("shard_sizes") + "]K\007asb"s;
        },
        // As a key, as arguments, as the state of an object, twice.
        [&](Pickler& to, std::uint64_t) { to.get(to.entries[0].list), to.opcodes += "N"s; },
        [&](Pickler& to, std::uint64_t) { to.get(to.entries[0].metadata), to.opcodes += "N"s; },
        [&](Pickler& to, std::uint64_t) {
            key(to, "x"), to.opcodes += forge::global("torch", "Size") + "(", to.get(to.entries[0].sizes),
                to.opcodes += "tR"s;
        },
        [&](Pickler& to, std::uint64_t) {
            key(to, "x"), to.opcodes += forge::global("torch", "Size") + "(", to.get(to.entries[0].list),
                to.opcodes += "tR"s;
        },
        [&](Pickler& to, std::uint64_t) {
            key(to, "x"), to.opcodes += forge::global("a", "B") + ")\x81", to.get(to.entries[0].list),
                to.opcodes += "b"s;
        },
        [&](Pickler& to, std::uint64_t) { key(to, "x"), to.get(to.entries[0].list), key(to, "x"), to.opcodes += "N"s; },
        // A list of shards under another place's name.
        [&](Pickler& to, std::uint64_t) {
            key(to, "shards_metadata"), to.opcodes += "]"s, to.put(), to.opcodes += "("s, to.get(to.entries[0].shard),
                to.opcodes += "e"s;
        },
        [&](Pickler& to, std::uint64_t) {
            key(to, "placements"), to.opcodes += "]"s, to.put(), to.opcodes += "("s, to.get(to.entries[0].shard),
                to.opcodes += "e"s;
        },
    };
    for (const bool own : {false, true})
        for (std::size_t i = 0; i < changes.size(); ++i) {
            CAPTURE(i);
            const Style style{.own_in_list = own};
            static_cast<void>(same_outcome(style, pickles(style, changes[i])));
        }
}

TEST_CASE("a mutated set gives the same tensors or the same error as without taken lists") {
    const unsigned seed = soak::seed(11);
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto all = styles();
    std::size_t opened = 0;
    const int rounds = soak::rounds(4000);
    for (int round = 0; round < rounds; ++round) {
        const Style& style = all[random() % all.size()];
        Pickles set = pickles(style);
        std::string& one = set[random() % set.size()];
        const std::string& other = set[random() % set.size()];
        const std::size_t changes = 1 + random() % 2;
        for (std::size_t c = 0; c < changes; ++c) {
            const std::size_t at = 2 + random() % (one.size() - 2);
            switch (random() % 5) {
                case 0: one[at] = static_cast<char>(random() % 256); break;
                case 1: one[at] = static_cast<char>(static_cast<unsigned char>(one[at]) ^ (1U << random() % 8)); break;
                case 2: one[at] = one[2 + random() % (one.size() - 2)]; break;
                case 3: one.erase(at, 1 + random() % 3); break;
                default: one.insert(at, other.substr(std::min(at, other.size()), 1 + random() % 4));
            }
        }
        CAPTURE(round);
        opened += same_outcome(style, set).starts_with("t0") ? 1 : 0;
    }
    CHECK(opened > 0);
}

TEST_CASE("lists of other forms are not compared without end") {
    // Each list has the right key, and ends in a value of another kind.
    std::string pickle = "\x80\x02}("s;
    for (int i = 0; i < 20'000; ++i) pickle += forge::text("shards_metadata") + "]q\x01("s + "K\001e"s;
    // Calls of two nodes of one class, which a list names in turn: they are not searched for each item.
    const std::string shard = forge::global("torch.distributed._shard.metadata", "ShardMetadata");
    for (int i = 0; i < 20'000; ++i) pickle += "I" + std::to_string(i) + "\ncx\ny\n)R"s;
    for (const char* put : {"q\x02", "q\x03"}) pickle += forge::text(put) + shard + put + ")R"s;
    pickle += forge::text("placements") + "]r"s + forge::little(1000, 4) + "("s;
    for (int i = 0; i < 20'000; ++i) pickle += "h\x02h\x03"s;
    pickle += "eu."s;
    const Style style{.tensors = 0};
    CHECK(taken(style, pickle).first == 0);
}

}  // namespace shard_lists_test
