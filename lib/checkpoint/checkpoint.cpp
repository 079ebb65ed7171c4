// Implements Checkpoint: opens checkpoints and gives access to their contents.
#include <safemap/checkpoint.hpp>

#include "base/faults.hpp"
#include "base/text.hpp"
#include "checkpoint/all_names.hpp"
#include "checkpoint/near_names.hpp"
#include "checkpoint/state.hpp"
#include "lazy/page_cache.hpp"
#include "open/formats.hpp"
#include "open/read.hpp"
#include "safetensors/digests.hpp"
#include "state/fingerprint.hpp"
#include "state/flat_dict.hpp"
#include "state/parts.hpp"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI {

using state::Contents;

std::string_view name(Format format) noexcept { return open::name_of(format); }

Checkpoint::State::State(Contents from, std::shared_ptr<const State> origin_, std::vector<std::uint32_t> by_origin)
    : contents(std::move(from)),
      total_bytes(state::total_bytes(contents)),
      origin(std::move(origin_)),
      numbers(std::move(by_origin)) {
    index_tensors();
    // A derived checkpoint has its ties from its origin.
    if (!origin && contents.format == Format::safetensors) alias_by_metadata();
    for (const AliasGroup& group : contents.aliases) add_aliases(group);
}

const LazyTensor* Checkpoint::State::find(std::string_view name) const noexcept {
    const auto found = number(name);
    if (!found) return nullptr;
    const std::size_t tensors = contents.tensors.size();
    return *found < tensors ? &contents.tensors[*found] : &aliases[*found - tensors];
}

const StateTree* Checkpoint::State::tree() const {
    if (!contents.tree.late) return contents.tree.get();
    if (origin) return origin->tree();
    std::call_once(asked_for_tree, [this] {
        made_tree = std::make_shared<const StateTree>(contents.tree.late->tree(contents.tensors));
    });
    return made_tree.get();
}

void Checkpoint::State::index_tensors() { names.add_all(NamesOf(contents.tensors)); }

void Checkpoint::State::alias_by_metadata() {
    if (contents.metadata.empty()) return;
    std::vector<AliasGroup>& groups = contents.aliases;
    std::vector<std::uint32_t> group_of(contents.tensors.size(), UINT32_MAX);
    std::unordered_set<std::string> known;  // ties that the caller has declared
    for (std::uint32_t i = 0; i < groups.size(); ++i) {
        known.insert(groups[i].begin() + 1, groups[i].end());
        if (const auto tensor = number(groups[i].front())) group_of[*tensor] = i;
    }
    const auto alias = [&](const std::string& dropped, std::uint32_t tensor) {
        if (known.contains(dropped)) return;
        if (group_of[tensor] == UINT32_MAX) {
            group_of[tensor] = static_cast<std::uint32_t>(groups.size());
            groups.push_back({contents.tensors[tensor].name()});
        }
        groups[group_of[tensor]].push_back(dropped);
    };
    safetensors::for_each_alias(
        contents.metadata, [this](std::string_view name) { return number(name); }, alias);
}

void Checkpoint::State::add_aliases(const AliasGroup& group) {
    const auto tensor = number(group.front());
    if (!tensor || *tensor >= contents.tensors.size()) return;
    for (std::size_t i = 1; i < group.size(); ++i) {
        const auto next = static_cast<std::uint32_t>(contents.tensors.size() + aliases.size());
        aliases.push_back(contents.tensors[*tensor].renamed(group[i]));
        if (names.add(group[i], next, name_of()) != next) aliases.pop_back();
    }
}

std::shared_ptr<const Checkpoint::State> Checkpoint::State::opened(Contents contents, const std::string& where,
                                                                   const OpenOptions& options) {
    about_file(where, [&] {
        if (options.ema) open::take_averages(contents, where, options);
        else state::note_averages(contents);
        state::take_root(contents, options);
    });
    const bool stored_names = contents.format == Format::safetensors;  // a pickle has no stored names
    const Checkpoint checkpoint(std::make_shared<const State>(std::move(contents)));
    return stored_names ? checkpoint.state_ : checkpoint.stored_as().state_;
}

Checkpoint::Checkpoint(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Checkpoint Checkpoint::open(const std::filesystem::path& path, const OpenOptions& options) {
    ThrowFirst faults;
    return Checkpoint(State::opened(open::read_path(path, options, faults), path.native(), options));
}

Checkpoint Checkpoint::open(const char* path, const OpenOptions& options) {
    return open(std::filesystem::path(not_null(path, "path to open")), options);
}

Checkpoint Checkpoint::open(std::span<const std::filesystem::path> files, const OpenOptions& options) {
    ThrowFirst faults;
    Contents contents = open::read_paths(files, options, faults);
    return Checkpoint(State::opened(std::move(contents), files.front().native(), options));
}

Checkpoint Checkpoint::open(std::span<const std::shared_ptr<const Source>> files, const OpenOptions& options) {
    if (std::find(files.begin(), files.end(), nullptr) != files.end())
        throw Error(Errc::invalid_argument, "the source is null");
    ThrowFirst faults;
    Contents contents = open::read_files(files, options, faults);
    return Checkpoint(State::opened(std::move(contents), files.front()->name(), options));
}

Checkpoint Checkpoint::open(std::shared_ptr<const Source> source, const OpenOptions& options) {
    if (!source) throw Error(Errc::invalid_argument, "the source is null");
    ThrowFirst faults;
    return Checkpoint(State::opened(open::read_file(source, options, faults), source->name(), options));
}

Format Checkpoint::format() const noexcept { return state_->contents.format; }
const std::vector<std::string>& Checkpoint::files() const& noexcept { return state_->contents.files; }
const std::vector<std::pair<std::string, std::string>>& Checkpoint::metadata() const& noexcept {
    return state_->contents.metadata;
}
std::vector<std::pair<std::string, std::string>> Checkpoint::raw_metadata() const {
    const Contents& opened = (state_->origin ? state_->origin : state_)->contents;
    return opened.raw_metadata ? opened.raw_metadata() : opened.metadata;
}
bool Checkpoint::has_metadata() const noexcept { return state_->contents.has_metadata; }
const std::vector<std::string>& Checkpoint::notes() const& noexcept { return state_->contents.notes; }
const std::vector<NamedGlobal>& Checkpoint::globals() const& noexcept { return state_->contents.globals; }
const Findings& Checkpoint::findings() const& noexcept { return state_->contents.findings; }
const std::vector<SkippedObject>& Checkpoint::skipped() const& noexcept { return state_->contents.skipped; }
const std::vector<AliasGroup>& Checkpoint::aliases() const& noexcept { return state_->contents.aliases; }
const StateTree* Checkpoint::tree() const& { return state_->tree(); }
const std::vector<StatePart>& Checkpoint::all_parts() const& noexcept { return state_->contents.parts; }
const std::string& Checkpoint::root() const& noexcept { return state_->contents.root; }

const std::optional<TrainingLayout>& Checkpoint::layout() const& noexcept { return state_->contents.layout; }

std::optional<Checkpoint> Checkpoint::optimizer() const {
    if (!state_->contents.optimizer) return std::nullopt;
    return Checkpoint(std::make_shared<const State>(state_->contents.optimizer()));
}

std::optional<std::string> Checkpoint::fingerprint() const {
    const auto& sources = state_->contents.sources;
    if (sources.size() != 1) return std::nullopt;
    return state::fingerprint(*sources.front());
}

std::size_t Checkpoint::size() const noexcept { return state_->contents.tensors.size(); }
std::uint64_t Checkpoint::total_bytes() const noexcept { return state_->total_bytes; }
const LazyTensor& Checkpoint::tensor(std::size_t i) const& noexcept { return state_->contents.tensors[i]; }
const LazyTensor* Checkpoint::begin() const& noexcept { return state_->contents.tensors.data(); }
const LazyTensor* Checkpoint::end() const& noexcept { return begin() + size(); }

const LazyTensor* Checkpoint::find(std::string_view name) const& noexcept { return state_->find(name); }

const LazyTensor& Checkpoint::operator[](const char* name) const& {
    return (*this)[not_null(name, "name of a tensor")];
}

const LazyTensor& Checkpoint::operator[](std::string_view name) const& {
    if (const LazyTensor* const tensor = find(name)) return *tensor;
    checkpoint::throw_not_found(name, {state_->contents.tensors, state_->aliases});
}

Residency Checkpoint::residency(const Selection& selection) const {
    return safemap::residency(checkpoint::selected(*this, selection));
}
void Checkpoint::prefetch(const Selection& selection, const Work& work) const {
    safemap::prefetch(checkpoint::selected(*this, selection), work);
}
void Checkpoint::evict(const Selection& selection) const { safemap::evict(checkpoint::selected(*this, selection)); }

}  // namespace safemap::SAFEMAP_ABI
