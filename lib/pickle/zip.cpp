// Reads zip directories. The numbers are from PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 and 4.5. No value is trusted
// before it is compared with the rest of the file. From the top:
//
//   ZipBytes      the bytes of the zip, which may be a part of a file
//   EndRecords    finds the end record, from the end of the file backwards, and the directory that it describes;
//                 rejects files in which two programs would find two directories
//   ZipEntry         one entry of the directory, with the values from its zip64 field
//   Entries       checks each entry against its local header, compares names with each other, and finds payloads that
//                 overlap
//   ZipDirectory  the records that have passed
//
// Tested by tests/pickle/zip_test.cpp and zip_end_test.cpp.
#include "pickle/zip.hpp"

#include "base/checked.hpp"
#include "base/inflate.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::uint32_t local_signature = 0x04034b50;
constexpr std::uint32_t central_signature = 0x02014b50;
constexpr std::uint32_t end_signature = 0x06054b50;
constexpr std::uint32_t end64_signature = 0x06064b50;
constexpr std::uint32_t locator_signature = 0x07064b50;
constexpr std::size_t local_size = 30;
constexpr std::size_t central_size = 46;
constexpr std::size_t end_size = 22;
constexpr std::size_t end64_size = 56;
constexpr std::size_t locator_size = 20;
constexpr std::uint16_t flag_encrypted = 0x2041;   ///< bits 0, 6 and 13: encryption, strong encryption, masked headers
constexpr std::uint16_t flag_descriptor = 0x0008;  ///< sizes follow the data; the local header may say 0
constexpr std::uint16_t method_stored = 0;
constexpr std::uint16_t method_deflated = 8;
constexpr std::uint16_t extra_zip64 = 0x0001;
constexpr std::uint32_t see_zip64 = 0xFFFF'FFFF;
/// Largest directory, which is held in memory. A torch checkpoint takes about 70 bytes for each storage.
constexpr std::uint64_t max_directory_size = 256_MiB;
/// Local headers with smaller gaps are read together: another read costs as much as copying a gap of this size.
constexpr std::uint64_t max_gap = 4_KiB;
/// Most bytes of local headers that are read together.
constexpr std::uint64_t max_window = 64_KiB;
/// zlib's technical notes: deflate never packs tighter than 1032 to 1.
constexpr std::uint64_t max_deflate_ratio = 1032;

template <class T> T little(const char* bytes) noexcept {
    T value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
}

/// The bytes of a zip: a part of a source. Offsets count from its beginning.
class ZipBytes {
public:
    ZipBytes(const Source& source, Extent part) : source_(source), part_(part) {}

    std::uint64_t size() const noexcept { return part_.size; }
    void read(std::uint64_t offset, std::span<char> into) const {
        source_.read_at(part_.offset + offset, std::as_writable_bytes(into));
    }

private:
    const Source& source_;
    Extent part_;
};

Error bad_directory(const std::string& what) { return {Errc::zip_bad_directory, what}; }

Error bad_record(std::string_view name, const std::string& what) {
    return {Errc::zip_bad_record, "record " + safemap::quoted(name) + ": " + what};
}

/// The central directory, as the end records describe it.
struct Directory {
    Extent place;                ///< place in the source
    std::uint64_t count = 0;     ///< number of entries
    std::uint64_t prefix = 0;    ///< bytes before the zip: every offset in it is too small by this number
    std::uint64_t trailing = 0;  ///< bytes after the comment
};

/// The search for the end record, from the end of the file backwards. A comment of at most 64 KiB may follow it.
/// Programs differ in which record they take:
/// - miniz, which torch uses, and Python's zipfile take the last signature, whatever the length of its comment. But
///   zipfile first looks for an end record without a comment at the end of the file.
/// - Other programs require that the comment ends where the file ends.
/// If this makes a difference, the file is rejected: safemap would check another model than the one that is run.
class EndRecords {
public:
    explicit EndRecords(const ZipBytes& zip) : zip_(zip) {}

    Directory find() {
        read_tail();
        const std::size_t end = end_record();
        const char* record = tail_.data() + end;
        const Directory small = small_directory(end);
        if (little<std::uint16_t>(record + 4) != little<std::uint16_t>(record + 6))
            throw bad_directory("the zip is split over several disks");
        const std::uint64_t end_at = tail_at_ + end;
        Directory large;
        const auto large_at = read_zip64(end_at, large);
        if (large_at) refuse_contradiction(small, large);
        Directory found = checked(large_at ? large : small, large_at.value_or(end_at));
        found.trailing = tail_.size() - end_of_comment(end);
        refuse_others(end, found.prefix);
        return found;
    }

private:
    /// Reads the end of the zip: the end record, if it is the last one and has no comment, as in every file of torch.
    /// Otherwise reads all bytes in which it may be.
    void read_tail() {
        read_last(end_size + locator_size + end64_size);
        const bool plain = tail_.size() >= end_size && is_end_record(tail_.size() - end_size);
        if (!plain || end_of_comment(tail_.size() - end_size) != tail_.size())
            read_last(end_size + 0xFFFF + locator_size + end64_size);
    }
    void read_last(std::uint64_t longest) {
        const std::uint64_t size = std::min(zip_.size(), longest);
        tail_at_ = zip_.size() - size;
        tail_.resize(size);
        zip_.read(tail_at_, tail_);
    }

    bool is_end_record(std::size_t at) const {
        return at + end_size <= tail_.size() && little<std::uint32_t>(tail_.data() + at) == end_signature;
    }
    std::size_t end_of_comment(std::size_t at) const {
        return at + end_size + little<std::uint16_t>(tail_.data() + at + 20);
    }
    Directory small_directory(std::size_t at) const {
        return {.place = {.offset = little<std::uint32_t>(tail_.data() + at + 16),
                          .size = little<std::uint32_t>(tail_.data() + at + 12)},
                .count = little<std::uint16_t>(tail_.data() + at + 10)};
    }

    /// Returns the last record whose comment ends where the file ends. If bytes follow the zip, no record does: returns
    /// the last one that has a directory.
    std::size_t end_record() const {
        for (std::size_t at = tail_.size(); at-- > 0;)
            if (is_end_record(at) && end_of_comment(at) == tail_.size()) return at;
        for (std::size_t at = tail_.size(); at-- > 0;)
            if (is_end_record(at) && has_directory(at) && end_of_comment(at) < tail_.size()) return at;
        throw bad_directory("no zip end record: the file is truncated, or not a zip")
            .with_hint("a download or a copy may not have finished: compare the size with that of the original");
    }

    /// Returns true if any program could take this for the end record of a zip.
    bool has_directory(std::size_t at) const {
        const Extent place = small_directory(at).place;
        const std::uint64_t end_at = tail_at_ + at;
        return begins_directory(place.offset) || (place.size <= end_at && begins_directory(end_at - place.size)) ||
               holds(end_at - std::min<std::uint64_t>(end_at, locator_size), locator_signature);
    }
    bool begins_directory(std::uint64_t at) const { return holds(at, central_signature); }
    bool holds(std::uint64_t at, std::uint32_t wanted) const {
        std::array<char, 4> signature;
        if (!Extent{at, signature.size()}.inside(zip_.size())) return false;
        zip_.read(at, signature);
        return little<std::uint32_t>(signature.data()) == wanted;
    }

    /// Rejects other end records with a directory: those after the chosen one and, if bytes follow the zip, those
    /// before its beginning. A zip that is stored in this one has its own end record, which is allowed.
    void refuse_others(std::size_t end, std::uint64_t prefix) const {
        const bool exact = end_of_comment(end) == tail_.size();
        for (std::size_t at = 0; at < tail_.size(); ++at) {
            const bool before = !exact && tail_at_ + at < prefix;
            if ((before || at > end) && is_end_record(at) && has_directory(at))
                throw bad_directory("two end records, each with a directory: programs differ in which one they use");
        }
    }

    /// Rejects a zip64 record that contradicts the end record: some programs take its numbers, others take those of the
    /// end record where they fit there.
    static void refuse_contradiction(const Directory& small, const Directory& large) {
        const bool same = (small.place.offset == see_zip64 || small.place.offset == large.place.offset) &&
                          (small.place.size == see_zip64 || small.place.size == large.place.size) &&
                          (small.count == 0xFFFF || small.count == large.count);
        if (same) return;
        throw bad_directory(
            "the end record and the zip64 end record name different directories: programs differ in "
            "which one they use");
    }

    /// Reads the zip64 end record, if there is one. Returns where it begins.
    std::optional<std::uint64_t> read_zip64(std::uint64_t end_at, Directory& found) const {
        std::array<char, locator_size> locator;
        if (end_at < locator_size) return std::nullopt;
        zip_.read(end_at - locator_size, locator);
        if (little<std::uint32_t>(locator.data()) != locator_signature) return std::nullopt;
        const std::uint64_t locator_at = end_at - locator_size;
        const auto holds_record = [&](std::uint64_t at) {
            return Extent{at, end64_size}.inside(locator_at) && holds(at, end64_signature);
        };
        // zipfile always takes the record just before the locator. The record is also there if bytes precede the zip,
        // and the locator points too low.
        std::uint64_t at = little<std::uint64_t>(locator.data() + 8);
        const bool just_before = locator_at >= end64_size && holds_record(locator_at - end64_size);
        if (just_before && at != locator_at - end64_size && holds_record(at))
            throw bad_directory("two zip64 end records: programs differ in which one they use");
        if (just_before) at = locator_at - end64_size;
        else if (!holds_record(at)) throw bad_directory("no zip64 end record where its locator points");
        std::array<char, end64_size> record;
        zip_.read(at, record);
        found = {.place = {.offset = little<std::uint64_t>(record.data() + 48),
                           .size = little<std::uint64_t>(record.data() + 40)},
                 .count = little<std::uint64_t>(record.data() + 32)};
        return at;
    }

    Directory checked(Directory found, std::uint64_t directory_end) const {
        if (!found.place.inside(directory_end)) {
            throw bad_directory("a directory of " + bytes_text(found.place.size) + " at " +
                                std::to_string(found.place.offset) + ", but its end record is at " +
                                std::to_string(directory_end));
        }
        if (found.count > found.place.size / central_size) {
            throw bad_directory(std::to_string(found.count) + " records in a directory of " +
                                bytes_text(found.place.size));
        }
        if (found.place.size > max_directory_size) {
            throw bad_directory("a directory of " + bytes_text(found.place.size) + ", the limit is " +
                                bytes_text(max_directory_size));
        }
        found.prefix = directory_end - found.place.end();
        // miniz reads at the offset from the end record, other programs read just before the end record.
        if (found.prefix > 0 && found.count > 0 && begins_directory(found.place.offset))
            throw bad_directory("a directory at " + std::to_string(found.place.offset) + ", and one " +
                                bytes_text(found.prefix) +
                                " after it, at the end: programs differ in which one they use");
        found.place.offset += found.prefix;
        return found;
    }

    const ZipBytes& zip_;
    std::vector<char> tail_;
    std::uint64_t tail_at_ = 0;
};

/// An entry of the central directory.
struct ZipEntry {
    std::string_view name;
    std::string_view extra;
    std::uint16_t flags = 0;
    std::uint16_t method = 0;
    std::uint32_t crc32 = 0;
    std::uint64_t packed = 0;
    std::uint64_t size = 0;
    std::uint64_t header_at = 0;
};

/// Reads the values that did not fit into the entry; the zip64 field holds them in this order. Returns false if a value
/// did not fit and no field holds it.
bool read_zip64_extra(ZipEntry& entry) {
    std::string_view extra = entry.extra;
    std::array<std::uint64_t*, 3> overflowing{};
    std::size_t wanted = 0;
    for (std::uint64_t* value : {&entry.size, &entry.packed, &entry.header_at}) {
        if (*value == see_zip64) overflowing[wanted++] = value;
    }
    while (wanted > 0 && extra.size() >= 4) {
        const auto id = little<std::uint16_t>(extra.data());
        const std::size_t size = little<std::uint16_t>(extra.data() + 2);
        extra.remove_prefix(4);
        if (size > extra.size()) return false;
        if (id == extra_zip64 && size >= 8 * wanted) {
            for (std::size_t i = 0; i < wanted; ++i) *overflowing[i] = little<std::uint64_t>(extra.data() + 8 * i);
            return true;
        }
        extra.remove_prefix(size);
    }
    return wanted == 0;
}

bool begins_entry(std::string_view rest) {
    return rest.size() >= central_size && little<std::uint32_t>(rest.data()) == central_signature;
}

/// Takes the next entry off `rest`, without the values from its zip64 field. Returns nothing if there is no entry, or
/// it is cut short.
std::optional<ZipEntry> take_entry(std::string_view& rest) {
    if (!begins_entry(rest)) return std::nullopt;
    const char* fixed = rest.data();
    const std::size_t name_size = little<std::uint16_t>(fixed + 28);
    const std::size_t extra_size = little<std::uint16_t>(fixed + 30);
    const std::size_t comment_size = little<std::uint16_t>(fixed + 32);
    if (name_size + extra_size + comment_size > rest.size() - central_size) return std::nullopt;
    const ZipEntry entry{.name = rest.substr(central_size, name_size),
                         .extra = rest.substr(central_size + name_size, extra_size),
                         .flags = little<std::uint16_t>(fixed + 8),
                         .method = little<std::uint16_t>(fixed + 10),
                         .crc32 = little<std::uint32_t>(fixed + 16),
                         .packed = little<std::uint32_t>(fixed + 20),
                         .size = little<std::uint32_t>(fixed + 24),
                         .header_at = little<std::uint32_t>(fixed + 42)};
    rest.remove_prefix(central_size + name_size + extra_size + comment_size);
    return entry;
}

/// Takes the next entry off `rest`. Returns nothing if the entry is invalid on its own. Throws if the entry is cut
/// short, because the next one cannot be found then.
std::optional<ZipEntry> next_entry(std::string_view& rest, FaultSink& faults) {
    if (!begins_entry(rest)) throw bad_directory("a directory entry does not begin where the one before ends");
    auto entry = take_entry(rest);
    if (!entry) throw bad_directory("a directory entry is truncated");
    if (read_zip64_extra(*entry)) return entry;
    faults.fault(bad_record(entry->name, "a size or offset needs a zip64 field, which is missing"));
    return std::nullopt;
}

std::optional<Error> name_fault(std::string_view name) {
    if (name.empty()) return bad_record(name, "its name is empty");
    const bool plain = name.find('\\') == name.npos && name.find('\0') == name.npos;
    if (plain && stays_below(name)) return std::nullopt;
    return bad_record(name, "its name is absolute or points outside its folder");
}

std::optional<Error> method_fault(const ZipEntry& entry) {
    if ((entry.flags & flag_encrypted) != 0) {
        return Error(Errc::zip_unsupported, "record " + safemap::quoted(entry.name) + " is encrypted");
    }
    if (entry.method == method_stored) {
        if (entry.packed == entry.size) return std::nullopt;
        return bad_record(entry.name, "stored uncompressed in " + bytes_text(entry.packed) + ", but its size is " +
                                          bytes_text(entry.size));
    }
    if (entry.method != method_deflated) {
        return Error(Errc::zip_unsupported, "record " + safemap::quoted(entry.name) + " has compression method " +
                                                std::to_string(entry.method) + "; expected 0 (stored) or 8 (deflate)");
    }
    if (entry.size / max_deflate_ratio <= entry.packed) return std::nullopt;
    return bad_record(entry.name, bytes_text(entry.packed) + " of deflate data cannot hold " + bytes_text(entry.size));
}

/// A record that has passed, and the place of its header.
struct Placed {
    ZipRecord record;
    std::uint64_t header_at = 0;
    bool dropped = false;
};

/// A reader that checks every entry of the directory at `place`.
class Entries {
public:
    Entries(const ZipBytes& zip, const Directory& place, FaultSink& faults)
        : zip_(zip), place_(place), faults_(faults) {}

    std::vector<Placed> read(std::string_view directory) {
        rest_ = directory;
        placed_.reserve(place_.count);
        names_.reserve(place_.count);
        index_.reserve(place_.count);
        for (std::uint64_t i = 0; i < place_.count; ++i) {
            const auto entry = next_entry(rest_, faults_);
            if (const auto fault = entry ? fault_of(*entry) : std::nullopt) faults_.fault(*fault);
        }
        if (!rest_.empty()) {
            faults_.fault(bad_directory(bytes_text(rest_.size()) + " after the last of " +
                                        std::to_string(place_.count) + " directory entries"));
        }
        if (has_capitals_) refuse_same_but_for_case();
        drop_overlaps();
        return std::move(placed_);
    }
    /// Returns the index of the names of all records that read() returned.
    NameIndex index_of(const std::vector<ZipRecord>& records) {
        if (records.size() == names_.size()) return std::move(index_);
        NameIndex index;  // an entry was left out, so the numbers have changed
        index.add_all(NamesOf(records));
        return index;
    }

private:
    /// Keeps a valid record. Returns the fault of an invalid one.
    std::optional<Error> fault_of(ZipEntry entry) {
        if (auto fault = name_fault(entry.name)) return fault;
        if (auto fault = method_fault(entry)) return fault;
        if (!is_new(entry.name)) {
            return Error(Errc::zip_duplicate, "two records named " + safemap::quoted(entry.name));
        }
        const auto header_at = checked_add(entry.header_at, place_.prefix);
        if (!header_at) return bad_record(entry.name, "its header would be beyond 2^64");
        entry.header_at = *header_at;
        Extent payload;
        if (auto fault = header_fault(entry, payload)) return fault;
        const bool folder = entry.name.ends_with('/') && entry.size == 0;
        if (folder) return std::nullopt;
        placed_.push_back({.record = {.name = entry.name,
                                      .packed = payload,
                                      .size = entry.size,
                                      .crc32 = entry.crc32,
                                      .deflated = entry.method == method_deflated},
                           .header_at = entry.header_at});
        return std::nullopt;
    }

    bool is_new(std::string_view name) {
        const auto number = static_cast<std::uint32_t>(names_.size());
        names_.push_back(name);
        if (index_.add(name, number, NamesOf(names_)) != number) {
            names_.pop_back();
            return false;
        }
        has_capitals_ = has_capitals_ || std::any_of(name.begin(), name.end(), is_capital);
        return true;
    }
    static bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }

    /// Reports names that differ only in case: torch ignores the case of names, and may take another of these records
    /// than is read here.
    void refuse_same_but_for_case() {
        std::unordered_set<std::string, NameHash> seen;
        for (const std::string_view name : names_) {
            std::string lower(name);
            for (char& c : lower)
                if (is_capital(c)) c = static_cast<char>(c - 'A' + 'a');
            if (!seen.insert(std::move(lower)).second)
                faults_.fault({Errc::zip_duplicate, "two records named " + safemap::quoted(name) + ", ignoring case"});
        }
    }

    /// Compares the local header with the entry, and finds the payload after it. Only the local header says how much
    /// padding there is.
    std::optional<Error> header_fault(const ZipEntry& entry, Extent& payload) {
        const std::uint64_t limit = place_.place.offset;
        const std::size_t header_size = local_size + entry.name.size();
        if (!Extent{entry.header_at, header_size}.inside(limit)) {
            return bad_record(entry.name, "its header would be at " + std::to_string(entry.header_at) +
                                              ", the directory is at " + std::to_string(limit));
        }
        const char* header = read_header({entry.header_at, header_size});
        if (little<std::uint32_t>(header) != local_signature) return bad_record(entry.name, "no header at its offset");
        const std::size_t name_size = little<std::uint16_t>(header + 26);
        if (name_size != entry.name.size() || std::string_view(header + local_size, name_size) != entry.name) {
            return bad_record(entry.name, "the header at its offset belongs to another record");
        }
        const auto flags = little<std::uint16_t>(header + 6);
        if ((flags & flag_encrypted) != 0 || little<std::uint16_t>(header + 8) != entry.method) {
            return bad_record(entry.name, "its header and the directory differ in compression or encryption");
        }
        const auto packed = little<std::uint32_t>(header + 18);
        if ((flags & flag_descriptor) == 0 && packed != see_zip64 && packed != entry.packed) {
            return bad_record(entry.name, "its size is " + bytes_text(packed) + " in its header, but " +
                                              bytes_text(entry.packed) + " in the directory");
        }
        payload = {.offset = entry.header_at + header_size + little<std::uint16_t>(header + 28), .size = entry.packed};
        if (payload.inside(limit)) return std::nullopt;
        return bad_record(entry.name, bytes_text(payload.size) + " at " + std::to_string(payload.offset) +
                                          ", but the directory is at " + std::to_string(limit));
    }

    /// Returns the bytes of a header. Reads headers that follow it closely at the same time.
    const char* read_header(Extent header) {
        if (header.offset < window_.offset || header.end() > window_.end()) {
            window_ = {header.offset, end_of_close_headers(header) - header.offset};
            buffer_.resize(window_.size);
            zip_.read(window_.offset, buffer_);
        }
        return buffer_.data() + (header.offset - window_.offset);
    }

    /// Returns the end of the last header to read together with this one: the next entries follow as long as the gaps
    /// are small.
    std::uint64_t end_of_close_headers(Extent header) const {
        std::uint64_t end = header.end();
        for (std::string_view rest = rest_; auto entry = take_entry(rest);) {
            if (!read_zip64_extra(*entry)) break;
            const auto at = checked_add(entry->header_at, place_.prefix);
            const Extent next{at.value_or(0), local_size + entry->name.size()};
            if (next.offset < end || next.offset - end > max_gap || !next.inside(place_.place.offset)) break;
            if (next.end() - header.offset > max_window) break;
            end = next.end();
        }
        return end;
    }

    /// Reports and drops every record whose header begins before the end of the record ahead of it.
    void drop_overlaps() {
        std::vector<Placed*> order;
        order.reserve(placed_.size());
        for (Placed& each : placed_) order.push_back(&each);
        const auto before = [](const Placed* a, const Placed* b) { return a->header_at < b->header_at; };
        if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
        const Placed* ahead = nullptr;
        for (Placed* each : order) {
            if (ahead != nullptr && each->header_at < ahead->record.packed.end()) {
                each->dropped = true;
                faults_.fault({Errc::zip_overlap, "records " + safemap::quoted(ahead->record.name) + " and " +
                                                      safemap::quoted(each->record.name) + " overlap"});
                if (each->record.packed.end() <= ahead->record.packed.end()) continue;
            }
            ahead = each;
        }
        std::erase_if(placed_, [](const Placed& each) { return each.dropped; });
    }

    const ZipBytes& zip_;
    const Directory& place_;
    FaultSink& faults_;
    std::vector<Placed> placed_;
    std::string_view rest_;  ///< bytes of the directory after the current entry
    std::vector<std::string_view> names_;
    NameIndex index_;  ///< index of names_
    bool has_capitals_ = false;
    Extent window_;  ///< the part of the source that is in buffer_
    std::vector<char> buffer_;
};

}  // namespace

bool ends_as_zip(const Source& source) {
    try {
        return EndRecords(ZipBytes(source, {0, source.size()})).find().trailing == 0;
    } catch (const Error& error) {
        if (remedy(error.code()) != Remedy::reject_data) throw;
        return false;
    }
}

ZipDirectory ZipDirectory::read(std::shared_ptr<const Source> source, FaultSink& faults) {
    const Source& reader = *source;
    const Extent all{0, reader.size()};
    return read(std::move(source), all, reader, faults);
}

ZipDirectory ZipDirectory::read(std::shared_ptr<const Source> source, Extent part, const Source& reader,
                                FaultSink& faults) {
    ZipDirectory zip;
    zip.source_ = std::move(source);
    const ZipBytes bytes(reader, part);
    const Directory place = EndRecords(bytes).find();
    zip.trailing_ = place.trailing;
    zip.preceding_ = place.prefix;
    zip.names_.resize(place.place.size);  // for the whole directory, until the records are known
    bytes.read(place.place.offset, zip.names_);
    const std::string_view directory(zip.names_.data(), zip.names_.size());
    Entries entries(bytes, place, faults);
    const std::vector<Placed> placed = entries.read(directory);
    zip.records_.reserve(placed.size());
    for (const Placed& each : placed) {
        zip.records_.push_back(each.record);
        zip.records_.back().packed.offset += part.offset;
    }
    zip.by_name_ = entries.index_of(zip.records_);
    zip.keep_names();
    return zip;
}

/// Replaces the directory by the names of the records, which outlive it: entries are several times as long as their
/// names.
void ZipDirectory::keep_names() {
    std::size_t size = 0;
    for (const ZipRecord& record : records_) size += record.name.size();
    std::vector<char> names;
    names.reserve(size);
    for (ZipRecord& record : records_) {
        const auto at = names.insert(names.end(), record.name.begin(), record.name.end());
        record.name = {names.data() + (at - names.begin()), record.name.size()};
    }
    names_ = std::move(names);
}

const ZipRecord* ZipDirectory::find(std::string_view name) const noexcept {
    const auto found = by_name_.find(name, NamesOf(records_));
    return found ? &records_[*found] : nullptr;
}

RecordData ZipDirectory::open(const ZipRecord& record) const {
    if (!record.deflated) return {source_, record.packed};
    const auto crc32 = record.has_crc32() ? std::optional(record.crc32) : std::nullopt;
    return {inflated_source(std::string(record.name), source_, record.packed, record.size, crc32),
            {.offset = 0, .size = record.size}};
}

}  // namespace safemap::SAFEMAP_ABI
