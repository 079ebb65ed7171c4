// Joins the metadata of ranks that saved without each other: `__0.metadata`, `__1.metadata` and so on. Each lists the
// chunks and objects of its rank, so what all ranks have is in all of them. Tested by
// tests/distributed/dcp_metadata_test.cpp.
#include "distributed/dcp/dcp_metadata.hpp"

#include "base/faults.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "distributed/agree.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

/// An entry of one rank.
struct OfRank {
    std::uint32_t rank;
    std::uint32_t entry;
};

/// A chunk of one rank.
struct RankChunk {
    OfRank of;
    std::uint32_t number;
};

bool is_empty(std::span<const std::uint64_t> sizes) { return std::find(sizes.begin(), sizes.end(), 0U) != sizes.end(); }

bool are_equal(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

/// Returns a text that differs if two paths do.
std::string path_text(const DcpMetadata& metadata, const DcpEntry& entry) {
    std::string text;
    for (const DcpStep& step : metadata.path(entry))
        text += step.text == DcpStep::no_text ? '[' + std::to_string(step.place) + ']'
                                              : '/' + safemap::json_quoted(metadata.texts[step.text]);
    return text.empty() ? "none" : text;
}

/// The joining of all ranks. Ranks that come first decide the order.
class MetadataJoin {
public:
    MetadataJoin(std::vector<DcpMetadata> ranks, std::span<const std::string> files)
        : ranks_(std::move(ranks)), names_(files) {
        out_.transforms.emplace_back();
    }

    DcpMetadata run() {
        for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) list(rank);
        for (const std::vector<OfRank>& group : groups_) {
            const std::string& name = entry(group.front()).name;
            about_tensor(name, [&] { add(group); });
        }
        for (const DcpMetadata& rank : ranks_)
            for (const std::string& note : rank.notes)
                if (std::find(out_.notes.begin(), out_.notes.end(), note) == out_.notes.end())
                    out_.notes.push_back(note);
        if (!ranks_.empty()) out_.version = ranks_.front().version;
        return std::move(out_);
    }

private:
    const DcpEntry& entry(const OfRank& of) const { return ranks_[of.rank].entries[of.entry]; }

    void list(std::uint32_t rank) {
        const std::vector<DcpEntry>& entries = ranks_[rank].entries;
        for (std::uint32_t i = 0; i < entries.size(); ++i) {
            const auto next = static_cast<std::uint32_t>(groups_.size());
            const auto name_of = [&](std::uint32_t group) -> std::string_view {
                return group == next ? entries[i].name : entry(groups_[group].front()).name;
            };
            const std::uint32_t group = by_name_.add(entries[i].name, next, name_of);
            if (group == next) groups_.emplace_back();
            groups_[group].push_back({rank, i});
        }
    }

    Agreement agreement(const OfRank& a, const OfRank& b) const {
        return Agreement(names_[a.rank], {}, "in " + names_[b.rank]);
    }

    [[noreturn]] void differ(const OfRank& a, const OfRank& b, std::string_view what, const std::string& in_a,
                             const std::string& in_b) const {
        agreement(a, b).differ(what, in_a, in_b);
    }

    void compare(const OfRank& a, const OfRank& b) const {
        const DcpEntry& one = entry(a);
        const DcpEntry& other = entry(b);
        const auto kind = [](const DcpEntry& each) { return std::string(each.tensor ? "a tensor" : "an object"); };
        const Agreement agree = agreement(a, b);
        agree("what this is", kind(one), kind(other));
        agree("the dtype", one.dtype, other.dtype);
        agree("the shape", one.shape, other.shape);
        agree("the path", path_text(ranks_[a.rank], one), path_text(ranks_[b.rank], other));
    }

    void add(const std::vector<OfRank>& group) {
        for (const OfRank& of : group) compare(group.front(), of);
        const DcpEntry& first = entry(group.front());
        out_.entries.push_back(first);
        DcpEntry& made = out_.entries.back();
        made.first_item = static_cast<std::uint32_t>(out_.items.size());
        made.item_count = 0;
        made.first_place = out_.places.size();
        add_path(ranks_[group.front().rank], first, made);
        if (first.tensor) return add_chunks(group);
        for (const OfRank& of : group) add_item(of.rank, entry(of).first_item, made.item_count > 0);
    }

    void add_path(const DcpMetadata& rank, const DcpEntry& from, DcpEntry& to) {
        to.first_step = out_.steps.size();
        for (DcpStep step : rank.path(from)) {
            if (step.text != DcpStep::no_text) step.text = interned(rank.texts[step.text], texts_, out_.texts);
            out_.steps.push_back(step);
        }
    }

    /// Adds an item of a rank to the last entry: as a replica of the last item, or as another item.
    void add_item(std::uint32_t rank, std::uint32_t number, bool replica) {
        DcpItem item = ranks_[rank].items[number];
        const bool needed = item.file != DcpItem::not_needed;
        if (needed) item.file = interned(ranks_[rank].files[item.file], files_, out_.files);
        item.transform =
            item.transform == 0 ? 0 : interned(ranks_[rank].transforms[item.transform], transforms_, out_.transforms);
        item.entry = static_cast<std::uint32_t>(out_.entries.size() - 1);
        if (!replica) {
            out_.items.push_back(item);
            ++out_.entries.back().item_count;
        } else if (needed) {
            out_.replicas.push_back({static_cast<std::uint32_t>(out_.items.size() - 1), item});
        }
    }

    static std::uint32_t interned(const std::string& text, NameIndex& index, std::vector<std::string>& texts) {
        if (const auto known = index.find(text, NamesOf(texts))) return *known;
        texts.push_back(text);
        return index.add(text, static_cast<std::uint32_t>(texts.size() - 1), NamesOf(texts));
    }

    // Chunks.

    std::span<const std::uint64_t> start(const RankChunk& chunk) const {
        return ranks_[chunk.of.rank].start(entry(chunk.of), chunk.number);
    }
    std::span<const std::uint64_t> size(const RankChunk& chunk) const {
        return ranks_[chunk.of.rank].size(entry(chunk.of), chunk.number);
    }

    void add_chunks(const std::vector<OfRank>& group) {
        std::vector<RankChunk> chunks;
        for (const OfRank& of : group)
            for (std::uint32_t k = 0; k < entry(of).item_count; ++k) chunks.push_back({of, k});
        // At one offset, chunks with elements come first.
        std::stable_sort(chunks.begin(), chunks.end(), [&](const RankChunk& a, const RankChunk& b) {
            const auto at_a = start(a);
            const auto at_b = start(b);
            if (!are_equal(at_a, at_b))
                return std::lexicographical_compare(at_a.begin(), at_a.end(), at_b.begin(), at_b.end());
            return !is_empty(size(a)) && is_empty(size(b));
        });
        const RankChunk* kept = nullptr;
        for (const RankChunk& chunk : chunks) {
            const bool beside =
                kept != nullptr && are_equal(start(chunk), start(*kept)) && chunk.of.rank != kept->of.rank;
            const bool same = beside && are_equal(size(chunk), size(*kept));
            if (beside && !same && is_empty(size(chunk))) continue;
            if (beside && !same)
                differ(kept->of, chunk.of, "the chunk at " + to_string(Shape(start(chunk))),
                       to_string(Shape(size(*kept))), to_string(Shape(size(chunk))));
            add_item(chunk.of.rank, entry(chunk.of).first_item + chunk.number, same);
            if (same) continue;
            kept = &chunk;
            for (const auto& numbers : {start(chunk), size(chunk)})
                out_.places.insert(out_.places.end(), numbers.begin(), numbers.end());
        }
    }

    std::vector<DcpMetadata> ranks_;
    std::span<const std::string> names_;
    DcpMetadata out_;
    std::vector<std::vector<OfRank>> groups_;  ///< entries of one name
    NameIndex by_name_;                        ///< index of groups_
    NameIndex files_;                          ///< index of out_.files
    NameIndex transforms_;                     ///< index of out_.transforms
    NameIndex texts_;                          ///< index of out_.texts
};

}  // namespace

DcpMetadata joined(std::vector<DcpMetadata> ranks, std::span<const std::string> files) {
    return MetadataJoin(std::move(ranks), files).run();
}

}  // namespace safemap::SAFEMAP_ABI::distributed
