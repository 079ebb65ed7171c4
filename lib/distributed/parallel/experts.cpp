// Takes the numbers of experts from the names of parameters and of files, and checks that none is missing.
#include "distributed/parallel/experts.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/text.hpp"
#include "names/zero_files.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>

namespace safemap::SAFEMAP_ABI::distributed {

using names::ZeroFile;

namespace {

constexpr std::string_view experts_path = "deepspeed_moe.experts.deepspeed_experts.";

/// The name of a parameter of an expert: what stands before the number, the number, and what stands after it.
struct ExpertName {
    std::string_view before;
    std::uint64_t number = 0;
    std::string_view after;
};

std::optional<ExpertName> expert_name(std::string_view name) {
    const std::size_t found = name.find(experts_path);
    if (found == name.npos) return std::nullopt;
    const std::size_t begin = found + experts_path.size();
    ExpertName parsed{.before = name.substr(0, begin), .after = {}};
    const auto [end, error] = std::from_chars(name.data() + begin, name.data() + name.size(), parsed.number);
    if (error != std::errc()) return std::nullopt;
    parsed.after = name.substr(static_cast<std::size_t>(end - name.data()));
    return parsed;
}

/// Returns how many experts a rank has in each layer, by the text before their numbers. Throws unless they are 0 to
/// n - 1.
std::map<std::string_view, std::uint64_t> experts_of(const Group& parameters, const std::string& file) {
    std::map<std::string_view, std::set<std::uint64_t>> numbers;
    for (const Parameter& parameter : parameters) {
        const auto name = expert_name(parameter.name);
        if (!name)
            throw Error(Errc::unsupported_layout,
                        "the parameter is in a group that is partitioned over fewer ranks, "
                        "but its name is not that of an expert")
                .with_path(file)
                .with_tensor(parameter.name);
        numbers[name->before].insert(name->number);
    }
    std::map<std::string_view, std::uint64_t> counts;
    for (const auto& [before, all] : numbers) {
        if (*all.rbegin() != all.size() - 1)
            throw Error(Errc::unsupported_layout, "the numbers of the experts " + excerpt(before) + "* are not 0 to " +
                                                      std::to_string(all.size() - 1))
                .with_path(file);
        counts.emplace(before, all.size());
    }
    return counts;
}

std::string global_name(const std::string& local, std::uint64_t rank,
                        const std::map<std::string_view, std::uint64_t>& counts) {
    const ExpertName name = *expert_name(local);
    const auto first = checked_mul(rank, counts.at(name.before));
    const auto number = first ? checked_add(*first, name.number) : std::nullopt;
    if (!number) throw Error(Errc::shape_overflow, "the number of an expert does not fit in 64 bits");
    return std::string(name.before) + std::to_string(*number) + std::string(name.after);
}

std::string expert_file(std::uint64_t layer, std::uint64_t expert, std::uint64_t model_rank) {
    return names::spelled(
        {.kind = names::NameKind::zero_expert, .model_rank = model_rank, .layer = layer, .expert = expert});
}

/// Throws unless every layer has the files of `counts[layer]` experts, or of as many as its largest number says.
void require_experts(const std::vector<ZeroFile>& files, std::uint64_t model_rank,
                     const std::vector<std::uint64_t>& counts) {
    std::map<std::uint64_t, std::set<std::uint64_t>> layers;
    for (const ZeroFile& file : files) layers[file.name.layer].insert(file.name.expert);
    std::string missing;
    std::size_t place = 0;
    for (const auto& [layer, experts] : layers) {
        const bool is_listed = counts.size() == layers.size();
        const std::uint64_t wanted = is_listed ? counts[place++] : *experts.rbegin() + 1;
        if (*experts.rbegin() >= wanted)
            throw Error(Errc::world_mismatch, "num_experts says that the layer has " + std::to_string(wanted) +
                                                  " experts; there is also " +
                                                  expert_file(layer, *experts.rbegin(), model_rank));
        constexpr std::uint64_t most = 1 << 16;
        for (std::uint64_t expert = 0; expert < std::min(wanted, most) && missing.size() < 1024; ++expert)
            if (!experts.contains(expert))
                missing += (missing.empty() ? "" : ", ") + expert_file(layer, expert, model_rank);
    }
    if (!missing.empty()) throw Error(Errc::rank_missing, "files of experts are missing: " + missing);
    if (counts.size() > layers.size())
        throw Error(Errc::rank_missing, "num_experts lists " + std::to_string(counts.size()) +
                                            " layers with experts; there are files of " +
                                            std::to_string(layers.size()));
}

}  // namespace

std::vector<ExpertShare> expert_shares(const Group& parameters, std::uint64_t data_ranks, std::uint64_t partition_count,
                                       bool data_first, const std::string& file) {
    if (partition_count == 0 || data_ranks % partition_count != 0)
        throw Error(Errc::world_mismatch, "partition_count says that a group is partitioned over " +
                                              std::to_string(partition_count) + " ranks; there are " +
                                              std::to_string(data_ranks))
            .with_path(file);
    const std::uint64_t shares = data_ranks / partition_count;
    std::vector<ExpertShare> made(shares);
    for (std::uint64_t rank = 0; rank < data_ranks; ++rank)
        made[data_first ? rank / partition_count : rank % shares].ranks.push_back(rank);
    if (shares == 1) {
        made.front().parameters = parameters;
        return made;
    }
    const auto counts = experts_of(parameters, file);
    for (std::uint64_t rank = 0; rank < shares; ++rank) {
        Group& group = made[rank].parameters = parameters;
        for (Parameter& parameter : group) parameter.name = global_name(parameter.name, rank, counts);
    }
    return made;
}

ExpertFiles read_experts(const Folder& folder, std::uint64_t model_rank, const std::vector<std::uint64_t>& experts,
                         const Work& work, FoundGlobals* globals) {
    std::vector<ZeroFile> files = names::zero_files(folder.list()).experts;
    std::erase_if(files, [model_rank](const ZeroFile& file) { return file.name.model_rank != model_rank; });
    about_file(folder.name(), [&] { require_experts(files, model_rank, experts); });
    ExpertFiles read;
    for (const ZeroFile& file : files) read.files.push_back(file.file);
    read.weights = read_tensors(folder, read.files, work, globals);
    return read;
}

void throw_autoep(const std::string& file) {
    throw Error(Errc::unsupported_layout,
                "the experts are placed by AutoEP (ds_autoep_layers, autoep_layers, ds_zero_partition_groups), which "
                "safemap does not "
                "read")
        .with_path(file);
}

}  // namespace safemap::SAFEMAP_ABI::distributed
