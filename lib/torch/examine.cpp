// Walks over files, records and bytes that may hold pickles. Tested by tests/torch/verdict_test.cpp.
#include "torch/examine.hpp"

#include "base/faults.hpp"
#include "base/inflate.hpp"
#include "pickle/tar_members.hpp"
#include "pickle/zip.hpp"
#include "torch/dangers.hpp"
#include "torch/globals.hpp"
#include "torch/harmless.hpp"
#include "torch/judge_pickle.hpp"
#include "torch/named_globals.hpp"
#include "torch/python_values.hpp"
#include "torch/tar.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

using Kind = PickleGraph::Kind;
using namespace std::string_view_literals;

/// Most levels of pickles in pickles, and zips in zips.
constexpr unsigned deepest = 6;
/// Bytes that are searched for the local headers of a zip whose directory is damaged.
constexpr std::uint64_t most_searched = 64 << 20;
constexpr std::uint64_t window_size = 4096;
constexpr std::uint64_t window_growth = 8;
/// Longest text that may be a pickle of protocol 0, which has no signature.
constexpr std::size_t longest_old_pickle = 1 << 20;
/// Bytes that begin the record of a zip.
constexpr std::string_view local_header = "PK\x03\x04"sv;

std::string bytes_at(const Source& source, Extent part, std::uint64_t most) {
    std::string bytes(std::min(part.size, most), '\0');
    source.read_at(part.offset, std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    return bytes;
}

bool begins_pickle(std::string_view bytes) {
    return bytes.size() >= 2 && bytes[0] == '\x80' && static_cast<unsigned char>(bytes[1]) <= 5;
}
bool begins_zip(std::string_view bytes) { return bytes.starts_with(local_header) || bytes.starts_with("PK\x05\x06"sv); }
std::string in_lower_case(std::string_view text) {
    std::string lower(text);
    for (char& c : lower)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return lower;
}
bool begins_array(std::string_view bytes) { return bytes.starts_with("\x93NUMPY"sv); }

/// Returns true for bytes that may be a pickle or hold one, as far as their first and last bytes tell.
bool may_be_pickle(std::string_view bytes) {
    if (begins_pickle(bytes) || begins_zip(bytes)) return true;
    return bytes.size() <= longest_old_pickle && bytes.ends_with('.') && bytes.find('\n') != bytes.npos;
}

class Examiner {
public:
    explicit Examiner(state::FindingList& findings) : findings_(findings) {}

    Looked examine(const std::shared_ptr<const Source>& source, Extent part, const std::string& record,
                   unsigned depth) {
        if (depth > deepest) {
            add_unread(record, "holds pickles inside pickles, deeper than safemap looks");
            return Looked::at_pickles;
        }
        // A file may be of several formats. torch.load takes a zip only by its first bytes, others by their last ones.
        const std::string head = bytes_at(*source, part, 512);
        const bool whole = part.offset == 0 && part.size == source->size();
        const bool zip = begins_zip(head) || (whole && ends_as_zip(*source));
        const bool tar = begins_tar(head);
        if (zip) examine_zip(source, part, record, depth);
        if (head.starts_with(local_header)) return Looked::at_pickles;
        if (tar) examine_tar(source, part, record, depth);
        const Looked looked = begins_array(head) ? examine_array(source, part, record, depth)
                                                 : examine_stream(source, part, record, depth);
        return zip || tar ? Looked::at_pickles : looked;
    }

    void examine_inside(const PickleGraph& pickle, std::string_view record, unsigned depth) {
        for (PickleGraph::Id id = 0; id < pickle.size(); ++id) {
            const Kind kind = pickle.kind(id);
            if (kind == Kind::bytes || kind == Kind::bytearray || kind == Kind::text) {
                if (may_be_pickle(pickle.text(id))) examine_bytes(pickle.text(id), record, depth);
            } else if (is_call_of(pickle, id, load_from_bytes)) {
                examine_loaded(pickle, pickle.items(pickle.call(id).arguments), record, depth);
            } else if (is_call_of(pickle, id, "_codecs.encode")) {
                // The text of a pickle begins with the first byte in UTF-8. Other texts are examined as such.
                const auto given = pickle.items(pickle.call(id).arguments);
                if (given.empty() || pickle.kind(given[0]) != Kind::text) continue;
                if (!pickle.text(given[0]).starts_with("\xC2\x80")) continue;
                if (const auto bytes = encoded_bytes(pickle, id)) examine_bytes(*bytes, record, depth);
            }
        }
    }

    /// Examines the records of a zip, but for one that is read otherwise.
    void examine_records(const ZipDirectory& zip, const ZipRecord* read, unsigned depth) {
        const auto& all = zip.records();
        script_ = script_ || std::any_of(all.begin(), all.end(), [](const ZipRecord& each) {
                      return in_lower_case(each.name).ends_with("/constants.pkl");
                  });
        for (const ZipRecord& each : all)
            if (&each != read) examine_record(zip.open(each), std::string(each.name), depth);
    }

    void examine_record(const RecordData& data, const std::string& name, unsigned depth) {
        // torch finds records whatever the case of their names.
        const std::string lower = in_lower_case(name);
        try {
            if (lower.ends_with(".py") && lower.find("/code/") != lower.npos) return examine_code(data, name);
            if (data.extent.size == 0 || !may_hold_pickles(lower)) return;
            if (!names_pickle(lower) && !has_signature(bytes_at(*data.source, data.extent, 8))) return;
            examine(data.source, data.extent, name, depth + 1);
        } catch (const Error& error) {
            if (remedy(error.code()) != Remedy::reject_data) throw;
            if (names_pickle(lower)) add_unread(name, "cannot be read: " + error.message());
        }
    }

private:
    void add_unread(std::string record, std::string why) {
        findings_.add({"the pickle", std::move(why), Verdict::unknown, std::move(record)});
    }

    Looked examine_bytes(std::string_view bytes, std::string_view record, unsigned depth) {
        std::vector<std::byte> copy(bytes.size());
        if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
        const std::uint64_t size = copy.size();
        return examine(memory_source("bytes in a pickle", std::move(copy)), {0, size},
                       std::string(record) + ", bytes in it", depth + 1);
    }
    /// Returns the bytes that protocol 2 writes as a text.
    static std::optional<std::string> encoded_bytes(const PickleGraph& pickle, PickleGraph::Id call) {
        const auto given = pickle.items(pickle.call(call).arguments);
        if (given.empty() || pickle.kind(given[0]) != Kind::text) return std::nullopt;
        Allowance allowance(2 * pickle.text(given[0]).size());
        return encoded_text(pickle, given, allowance);
    }
    /// Examines the argument of torch.storage._load_from_bytes, which loads any pickle.
    void examine_loaded(const PickleGraph& pickle, std::span<const PickleGraph::Id> given, std::string_view record,
                        unsigned depth) {
        Looked looked = Looked::at_other_data;
        if (given.size() == 1) {
            const Kind kind = pickle.kind(given[0]);
            const bool plain = kind == Kind::bytes || kind == Kind::bytearray;
            const bool encoded = is_call_of(pickle, given[0], "_codecs.encode");
            const auto bytes = plain     ? std::optional(std::string(pickle.text(given[0])))
                               : encoded ? encoded_bytes(pickle, given[0])
                                         : std::nullopt;
            if (bytes) looked = examine_bytes(*bytes, record, depth);
        }
        if (looked == Looked::at_pickles) return;
        findings_.add({std::string(load_from_bytes), "unpickles again, but what it gets is no pickle that can be read",
                       Verdict::runs_code, std::string(record)});
    }

    // Pickles that follow each other.

    Looked examine_stream(const std::shared_ptr<const Source>& source, Extent part, const std::string& record,
                          unsigned depth) {
        Looked looked = Looked::at_other_data;
        const std::uint64_t end = part.end();
        for (std::uint64_t at = part.offset; at < end;) {
            const auto read = read_pickle_at(*source, {at, end - at}, record);
            if (!read) return looked;
            const PickleGraph& pickle = read->pickle.graph;
            const auto& fault = read->pickle.fault;
            const bool signed_ = at == part.offset && begins_pickle({read->bytes.data(), read->bytes.size()});
            if (fault && !signed_) {
                const Looked fragment = examine_fragment(pickle, record, depth);
                if (fragment == Looked::at_other_data) return looked;
                looked = std::min(looked, fragment);
            } else {
                looked = Looked::at_pickles;
                judge(pickle, record, depth);
            }
            // If the bytes end, unpickling ends with them. After other faults, some unpickler may go on.
            if (fault && !is_end(fault->code()))
                add_unread(record, "cannot be read to its end" + (signed_ ? ": " + fault->message() : ""));
            if (pickle.root() == PickleGraph::nothing) return looked;
            at += pickle.consumed();
        }
        return looked;
    }

    /// Examines what begins like a pickle without a signature, and is damaged. A text may begin so, too: unless it
    /// names a function that runs code, its words are not findings.
    Looked examine_fragment(const PickleGraph& pickle, const std::string& record, unsigned depth) {
        const auto globals = pickle.globals();
        const bool runs = std::any_of(globals.begin(), globals.end(), is_listed_danger);
        const bool plain = !globals.empty() && std::all_of(globals.begin(), globals.end(), is_plain_global);
        if (!runs && !plain) return Looked::at_other_data;
        state::FindingList own;
        Examiner(own).judge(pickle, record, depth);
        for (Finding finding : own.findings().listed) {
            if (finding.record == record &&
                std::none_of(globals.begin(), globals.end(), [&](const PickleGraph::Global& global) {
                    return is_listed(global) && dotted(global) == finding.name;
                }))
                finding.name = "a name in the file";
            findings_.add(std::move(finding));
        }
        return runs ? Looked::at_pickles : Looked::at_fragments;
    }
    static bool is_listed_danger(const PickleGraph::Global& global) {
        const bool in_table = global.name.find("__") == global.name.npos || global.module == "builtins";
        return in_table && is_plain_global(global) && runs_code(global);
    }
    static bool is_listed(const PickleGraph::Global& global) {
        return is_listed_danger(global) || is_known(global) ||
               (!is_project_class(global) && torch::judge(global).severity == Verdict::needs_classes);
    }

    static bool is_end(Errc code) noexcept {
        return code == Errc::pickle_truncated || code == Errc::file_truncated || code == Errc::pickle_bad_count;
    }

    struct Read {
        std::vector<char> bytes;  ///< a vector, whose bytes stay in their place when it is moved: texts are views
        PartialPickle pickle;
    };
    /// Reads the pickle that begins a part, through windows that grow until they hold its end.
    std::optional<Read> read_pickle_at(const Source& source, Extent part, const std::string& record) {
        const std::uint64_t most = std::min(part.size, PickleLimits::most_bytes);
        for (std::uint64_t window = std::min(window_size, most);; window = std::min(window * window_growth, most)) {
            Read read{.bytes = std::vector<char>(window), .pickle = {}};
            source.read_at(part.offset, std::as_writable_bytes(std::span(read.bytes)));
            PickleLimits limits = PickleLimits::of_packed(window);
            limits.follows = part.size - window;
            try {
                read.pickle = read_damaged_pickle(read.bytes, limits);
            } catch (const Error& error) {
                add_unread(record, "cannot be read: " + error.message());
                return std::nullopt;
            }
            if (!read.pickle.cut || window == most) return read;
        }
    }

    void judge(const PickleGraph& pickle, const std::string& record, unsigned depth) {
        add_findings(pickle, record, script_ ? is_known_in_script : is_known, findings_);
        examine_inside(pickle, record, depth);
    }

    // Containers of pickles.

    void examine_zip(const std::shared_ptr<const Source>& source, Extent part, const std::string& record,
                     unsigned depth) {
        CollectFaults faults;
        try {
            const ZipDirectory zip = ZipDirectory::read(source, part, *source, faults);
            examine_records(zip, nullptr, depth);
            if (faults.faults().empty() && zip.preceding() == 0 && zip.trailing() == 0) return;
            if (faults.faults().empty()) return static_cast<void>(examine_local_headers(source, part, depth));
        } catch (const Error& error) {
            if (remedy(error.code()) != Remedy::reject_data) throw;
        }
        // Programs that read local headers, or are less strict about the directory, find other records.
        if (!examine_local_headers(source, part, depth))
            add_unread(record, "is in a zip whose directory cannot be read");
    }

    /// Examines code of TorchScript, which torch.jit.load compiles and runs. Its operators compute, but for two.
    void examine_code(const RecordData& data, const std::string& name) {
        const std::string text = bytes_at(*data.source, data.extent, most_searched);
        const bool files = text.find("torch.save(") != text.npos || text.find("torch.from_file(") != text.npos;
        findings_.add({"TorchScript", files ? "reads or writes files" : "is code, whose operators compute with tensors",
                       files ? Verdict::runs_code : Verdict::needs_classes, name});
    }
    static bool has_signature(std::string_view bytes) {
        return begins_pickle(bytes) || begins_zip(bytes) || begins_array(bytes);
    }
    /// Returns false for records that hold the bytes of tensors, or texts.
    static bool may_hold_pickles(std::string_view name) {
        if (names_pickle(name)) return true;
        const std::size_t slash = name.rfind('/');
        const std::string_view folder = name.substr(0, slash == name.npos ? 0 : slash);
        const bool is_storage = folder.ends_with("/data") || folder.ends_with("/constants") || folder == "data";
        const std::string_view file = name.substr(slash == name.npos ? 0 : slash + 1);
        const bool is_text = file == "version" || file == "byteorder" || folder.ends_with("/.data");
        return !is_storage && !is_text && !file.starts_with('.') && !file.ends_with(".py") &&
               !file.ends_with(".debug_pkl");
    }

    /// Returns true if there are records that are pickles by their names.
    bool examine_local_headers(const std::shared_ptr<const Source>& source, Extent part, unsigned depth) {
        const std::string bytes = bytes_at(*source, part, most_searched);
        bool any = false;
        for (std::size_t at = 0; (at = bytes.find(local_header, at)) != bytes.npos; at += 4) {
            if (bytes.size() - at < 30) break;
            const auto number = [&](std::size_t offset, std::size_t size) {
                std::uint64_t value = 0;
                std::memcpy(&value, bytes.data() + at + offset, size);
                return value;
            };
            const std::uint64_t data = at + 30 + number(26, 2) + number(28, 2);
            const std::string name = bytes.substr(at + 30, number(26, 2));
            if (data >= part.size) continue;
            any = any || names_pickle(in_lower_case(name));
            examine_local(source, {part.offset + data, part.size - data}, name, number(8, 2) == 8, number(18, 4),
                          number(22, 4), depth);
        }
        return any;
    }
    /// Examines a record of which only the local header is known. `rest` begins with its data.
    void examine_local(const std::shared_ptr<const Source>& source, Extent rest, const std::string& name, bool deflated,
                       std::uint64_t packed, std::uint64_t size, unsigned depth) {
        if (!deflated) return examine_record({source, rest}, name, depth);
        if (!names_pickle(in_lower_case(name))) return;
        packed = packed == 0 ? rest.size : std::min(packed, rest.size);
        if (size == 0 || size > PickleLimits::most_bytes)
            return add_unread(name, "cannot be read: its size is unknown");
        examine_record({inflated_source(name, source, {rest.offset, packed}, size), {0, size}}, name, depth);
    }

    /// Examines what follows each header, whatever else the header says: links and headers of pax give members other
    /// names and sizes.
    void examine_tar(const std::shared_ptr<const Source>& source, Extent part, const std::string& record,
                     unsigned depth) {
        if (part.offset != 0 || part.size != source->size()) return add_unread(record, "is in a tar inside a file");
        bool of_torch = false;
        for (const TarPlace& place : tar_places(*source, most_searched)) {
            if (place.type == 'S') add_unread(place.name, "is a file with holes in a tar");
            of_torch = of_torch || place.name == "storages" || place.name == "tensors" || place.name == "pickle";
            if (has_signature(bytes_at(*source, place.data, 8)) && !begins_pickle(bytes_at(*source, place.data, 2)))
                examine(source, place.data, place.name, depth + 1);
            else examine_stream(source, {place.data.offset, source->size() - place.data.offset}, place.name, depth + 1);
        }
        if (of_torch) examine_tar_of_torch(source, record);
    }
    /// Examines the pickles between the storages and tensors of a file of torch 0.1.
    void examine_tar_of_torch(const std::shared_ptr<const Source>& source, const std::string& record) {
        NamedGlobals globals(false);
        CollectFaults faults;
        reporting(faults, [&] { static_cast<void>(read_tar(source, faults, &globals)); });
        for (const Finding& finding : globals.findings().listed) findings_.add(finding);
        if (!faults.faults().empty()) add_unread(record, "is in a tar that cannot be read to its end");
    }

    /// Examines an array in a file of NumPy. Its elements are a pickle if they are objects.
    Looked examine_array(const std::shared_ptr<const Source>& source, Extent part, const std::string& record,
                         unsigned depth) {
        const std::string head = bytes_at(*source, part, 1 << 16);
        const bool long_header = head.size() > 12 && head[6] > 1;
        std::uint32_t length = 0;
        std::memcpy(&length, head.data() + 8, head.size() > 12 ? (long_header ? 4 : 2) : 0);
        const std::uint64_t begin = (long_header ? 12 : 10) + std::uint64_t{length};
        const bool objects = std::string_view(head).substr(0, begin).find('O') != head.npos;
        if (begin >= part.size || !objects) return Looked::at_other_data;
        return examine_stream(source, {part.offset + begin, part.size - begin}, record, depth);
    }

    state::FindingList& findings_;
    bool script_ = false;  ///< true in an archive of TorchScript
};

}  // namespace

Looked examine(const std::shared_ptr<const Source>& source, Extent part, const std::string& record,
               state::FindingList& findings) {
    return Examiner(findings).examine(source, part, record, 0);
}

void examine_records(const ZipDirectory& zip, const ZipRecord& read, state::FindingList& findings) {
    Examiner examiner(findings);
    examiner.examine_records(zip, &read, 0);
}

void examine_inside(const PickleGraph& pickle, std::string_view record, state::FindingList& findings) {
    Examiner(findings).examine_inside(pickle, record, 0);
}

bool names_pickle(std::string_view name) noexcept {
    constexpr std::string_view endings[] = {".pkl", ".pickle", ".pt",  ".pth", ".bin", ".ckpt", ".joblib", ".dill",
                                            ".dat", ".npy",    ".npz", ".zip", ".tar", ".data", ".p"};
    return std::any_of(std::begin(endings), std::end(endings),
                       [name](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace safemap::SAFEMAP_ABI::torch
