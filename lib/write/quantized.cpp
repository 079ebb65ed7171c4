// Finds casts that would change what quantised tensors mean. Tested by tests/write/quantized_test.cpp.
#include "write/quantized.hpp"

#include "base/name_index.hpp"
#include "base/text.hpp"
#include "checkpoint/origin.hpp"
#include "tensor/convert.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::write {

namespace {

using state::LoneScale;
using state::Quantized;
using state::QuantizedTensors;

constexpr std::size_t most_globs = 16;

/// Returns the last `parts` components of a name, or all of it if it has no more.
std::string_view last_parts(std::string_view name, unsigned parts) {
    std::size_t from = name.size();
    for (; parts > 0; --parts) {
        if (from == 0) return name;
        const std::size_t dot = name.find_last_of("./", from - 1);
        if (dot == std::string_view::npos) return name;
        from = dot;
    }
    return name.substr(from);  // with the dot before it
}

std::string as_glob(std::string_view text) {
    std::string glob;
    for (const char c : text) {
        if (c == '*' || c == '?' || c == '[') (glob += '[') += c, glob += ']';
        else glob += c;
    }
    return glob;
}

/// Chooses short globs that match some names and no other ones.
class GlobChooser {
public:
    explicit GlobChooser(unsigned most_parts) : others_(most_parts) {}

    void avoid(std::string_view name) {
        for (unsigned parts = 1; parts <= others_.size(); ++parts) others_[parts - 1].insert(last_parts(name, parts));
    }
    std::string glob_of(std::string_view name) const {
        for (unsigned parts = 1; parts <= others_.size(); ++parts) {
            const std::string_view end = last_parts(name, parts);
            if (end.size() == name.size()) return as_glob(name);
            if (!others_[parts - 1].contains(end)) return '*' + as_glob(end);
        }
        return '*' + as_glob(last_parts(name, 1));
    }

private:
    std::vector<std::unordered_set<std::string_view, NameHash>> others_;  // endings of one part, of two, …
};

std::vector<std::string> globs_of(std::span<const LazyTensor> tensors, std::span<const std::uint32_t> wanted,
                                  unsigned most_parts) {
    GlobChooser chooser(most_parts);
    for (std::uint32_t i = 0; i < tensors.size(); ++i)
        if (is_castable(tensors[i].dtype()) && !std::binary_search(wanted.begin(), wanted.end(), i))
            chooser.avoid(tensors[i].name());
    std::vector<std::string> globs;
    for (const std::uint32_t i : wanted) globs.push_back(chooser.glob_of(tensors[i].name()));
    std::sort(globs.begin(), globs.end());
    globs.erase(std::unique(globs.begin(), globs.end()), globs.end());
    return globs;
}

using NameSet = std::set<std::string, std::less<>>;

/// Returns the names that tensors with `other_names` have in `checkpoint`, which was derived from `origin`. Where it is
/// not known which name became which, all of them: such a tensor is then written.
NameSet other_names_in(const Checkpoint& checkpoint, const Checkpoint& origin, const NameSet& other_names) {
    NameSet in_checkpoint;
    if (other_names.empty()) return in_checkpoint;
    std::unordered_map<std::string_view, const AliasGroup*> groups;
    for (const AliasGroup& group : checkpoint.aliases()) groups.emplace(group.front(), &group);
    for (const AliasGroup& before : origin.aliases()) {
        const auto is_other = [&](const std::string& name) { return other_names.contains(name); };
        const LazyTensor* const tensor = checkpoint::Origin::find(checkpoint, before.front());
        if (tensor == nullptr || std::none_of(before.begin(), before.end(), is_other)) continue;
        const auto group = groups.find(tensor->name());
        const AliasGroup after = group == groups.end() ? AliasGroup{tensor->name()} : *group->second;
        for (std::size_t i = 0; i < after.size(); ++i) {
            const bool is_same = std::find(before.begin(), before.end(), after[i]) != before.end();
            if (after.size() == before.size() ? is_other(before[i]) : !is_same || is_other(after[i]))
                in_checkpoint.insert(after[i]);
        }
    }
    return in_checkpoint;
}

/// Looks for the first cast that does harm, and for all tensors that must keep their dtypes.
class SplitCasts {
public:
    SplitCasts(const Input& input, const SaveOptions& options)
        : tensors_(input.tensors), options_(options), quantized_(quantized_in(input)) {
        const QuantizedTensors& found = quantized_.found;
        bool any_fp8 = false;
        for (const Quantized& quantized : found.all) {
            any_fp8 = any_fp8 || quantized.name.kind == state::Quantization::scaled_fp8;
            bool split = look_at(quantized.numbers, quantized);
            for (const std::uint32_t scale : quantized.scales) split = look_at(scale, quantized) || split;
            for (const std::uint32_t beside : quantized.besides) split = look_at(beside, quantized) || split;
            split_ += split ? 1 : 0;
        }
        if (any_fp8)
            for (const std::uint32_t marker : found.markers) look_at(marker, found.all.front());
        for (const LoneScale& lone : found.lone) look_at(lone);
    }

    void require_none() {
        if (keep_.empty()) return;
        std::sort(keep_.begin(), keep_.end());
        keep_.erase(std::unique(keep_.begin(), keep_.end()), keep_.end());
        Error error(Errc::quantized_cast, first_ ? message() : message_of_lone());
        std::string hint = "copy them as they are:" + keep_options(tensors_, keep_);
        if (!first_) hint = "convert all files of the model together, or " + hint;
        else if (!options_.apply_scales && may_be_multiplied(*first_))
            hint = "multiply the numbers by their scales with --apply-scales, or " + hint;
        throw std::move(error.with_tensor(tensors_[tensor_].name()).with_hint(std::move(hint)));
    }

    /// Returns a note on casts of tensors that may be scales.
    std::string note() const {
        if (unsure_ == 0) return {};
        const std::string other = unsure_ == 1 ? "" : " and " + std::to_string(unsure_ - 1) + " other tensors";
        return safemap::quoted(name_of(unsure_first_->scale)) + other + (unsure_ == 1 ? " is" : " are") +
               " cast, and the name is one of scales: if quantised numbers such as " +
               safemap::quoted(unsure_first_->numbers) + " are in other files, convert all files together";
    }

private:
    static bool may_be_multiplied(const Quantized& quantized) {
        return quantized.name.kind == state::Quantization::scaled_fp8 && quantized.scales.size() == 1 &&
               quantized.more_factors.empty();
    }

    bool would_cast(std::uint32_t tensor) const {
        return tensor < tensors_.size() &&  // else it is not written
               written_dtype(tensors_[tensor], options_) != tensors_[tensor].dtype();
    }

    void look_at(const LoneScale& lone) {
        if (!would_cast(lone.scale)) return;
        if (!lone.is_sure) {
            if (unsure_++ == 0) unsure_first_ = lone;
            return;
        }
        keep_.push_back(lone.scale);
        ++lone_;
        if (first_ || lone_first_) return;
        lone_first_ = lone;
        tensor_ = lone.scale;
    }

    /// Returns true if a tensor of `quantized` would be cast.
    bool look_at(std::uint32_t tensor, const Quantized& quantized) {
        if (!would_cast(tensor)) return false;
        keep_.push_back(tensor);
        if (first_) return true;
        first_ = quantized;
        tensor_ = tensor;
        return true;
    }

    std::string message() const {
        const std::string to(name(written_dtype(tensors_[tensor_], options_)));
        const std::string numbers = safemap::quoted(name_of(first_->numbers));
        const std::string scales = safemap::quoted(name_of(first_->scales.front()));
        std::string text =
            tensor_ == first_->numbers
                ? "a cast to " + to + " would leave out the scales of its quantised numbers, which are in " + scales
                : "a cast to " + to + " would change it without the quantised numbers that it belongs to, " + numbers;
        text += " (" + std::string(first_->name.text) + ")";
        if (split_ > 1) text += "; so it would for " + std::to_string(split_ - 1) + " other quantised tensors";
        return text;
    }

    std::string message_of_lone() const {
        std::string text = "a cast to " + std::string(name(written_dtype(tensors_[tensor_], options_))) +
                           " would change scales whose quantised numbers, " + safemap::quoted(lone_first_->numbers) +
                           ", are not there (" + std::string(lone_first_->convention) + ")";
        if (lone_ > 1) text += "; so it would " + std::to_string(lone_ - 1) + " other scales";
        return text;
    }

    const std::string& name_of(std::uint32_t tensor) const {
        return tensor < tensors_.size() ? tensors_[tensor].name()
                                        : quantized_.unwritten[tensor - tensors_.size()].name();
    }

    std::span<const LazyTensor> tensors_;
    const SaveOptions& options_;
    QuantizedInput quantized_;
    std::optional<Quantized> first_;
    std::uint32_t tensor_ = 0;  // the tensor of first_ that would be cast, or of lone_first_
    std::uint64_t split_ = 0;
    std::optional<LoneScale> lone_first_;
    std::uint64_t lone_ = 0;
    std::optional<LoneScale> unsure_first_;
    std::uint64_t unsure_ = 0;
    std::vector<std::uint32_t> keep_;
};

}  // namespace

std::optional<Dtype> asked_dtype(const LazyTensor& tensor, const SaveOptions& options) {
    if (!asks_for_casts(options) || !is_castable(tensor.dtype()) || state::is_marker(tensor)) return std::nullopt;
    if (options.keep_dtype && options.keep_dtype->matches(tensor.name())) return std::nullopt;
    for (auto each = options.dtype_of.rbegin(); each != options.dtype_of.rend(); ++each)
        if (each->tensors.matches(tensor.name())) return each->dtype;
    return options.dtype;
}

Dtype written_dtype(const LazyTensor& tensor, const SaveOptions& options) {
    return asked_dtype(tensor, options).value_or(tensor.dtype());
}

QuantizedInput quantized_in(const Input& input) {
    if (input.quantized) return *input.quantized;
    return {.found = state::find_quantized(input.tensors, input.ties)};
}

std::shared_ptr<const QuantizedInput> quantized_by_origin(const Checkpoint& checkpoint) {
    const Checkpoint origin = checkpoint::Origin::of(checkpoint);
    if (origin.begin() == checkpoint.begin()) return nullptr;
    auto quantized = std::make_shared<QuantizedInput>();
    QuantizedTensors found = state::find_quantized({origin.begin(), origin.size()}, origin.aliases());
    std::unordered_map<std::uint32_t, std::uint32_t> numbers;
    // Replaces the index of a tensor of the origin.
    const auto place = [&](std::uint32_t& tensor) {
        const auto [known, is_new] = numbers.try_emplace(tensor);
        if (is_new) {
            const LazyTensor& whole = origin.tensor(tensor);
            const LazyTensor* const written = checkpoint::Origin::find(checkpoint, whole.name());
            if (written == nullptr) quantized->unwritten.push_back(whole);
            known->second =
                static_cast<std::uint32_t>(written == nullptr ? checkpoint.size() + quantized->unwritten.size() - 1
                                                              : static_cast<std::size_t>(written - checkpoint.begin()));
        }
        tensor = known->second;
    };
    for (Quantized& each : found.all) {
        place(each.numbers);
        for (std::uint32_t& scale : each.scales) place(scale);
        for (std::uint32_t& beside : each.besides) place(beside);
    }
    for (std::uint32_t& marker : found.markers) place(marker);
    for (state::LoneScale& lone : found.lone) place(lone.scale);
    found.other_names = other_names_in(checkpoint, origin, found.other_names);
    quantized->found = std::move(found);
    return quantized;
}

std::string require_whole_casts(const Input& input, const SaveOptions& options) {
    if (!asks_for_casts(options)) return {};
    SplitCasts split(input, options);
    split.require_none();
    return split.note();
}

std::string note_on_fp8(Dtype to) {
    return "the cast to " + std::string(name(to)) + " makes no scales: values beyond the range of the dtype overflow";
}

std::string keep_options(std::span<const LazyTensor> tensors, std::span<const std::uint32_t> wanted) {
    std::vector<std::string> globs = globs_of(tensors, wanted, 2);
    if (globs.size() > most_globs) globs = globs_of(tensors, wanted, 0);
    std::string options;
    for (const std::string& glob : globs) options += " --keep-dtype " + shell_word(glob);
    return options;
}

}  // namespace safemap::SAFEMAP_ABI::write
