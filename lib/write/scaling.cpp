// Plans products. From top to bottom:
// - block_of(), as_wide(): which scale belongs to which number, by the shapes alone
// - Scaler: what becomes of each tensor
// - stated_block(), without_quantization(), without_members(): config.json
#include "write/scaling.hpp"

#include "base/json.hpp"
#include "base/name_index.hpp"
#include "base/text.hpp"
#include "lazy/scaled.hpp"
#include "state/quantization.hpp"
#include "tensor/convert.hpp"
#include "write/quantized.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::write {

namespace {

using state::Quantized;

constexpr std::uint64_t usual_block = 128;  // DeepSeek, compressed-tensors
constexpr std::uint64_t mx_block = 32;      // OCP Microscaling Formats, version 1.0
constexpr const char* config_name = "config.json";
constexpr const char* config_key = "quantization_config";
/// Members that describe the quantisation, in files beside a model.
constexpr struct {
    std::string_view file;
    std::string_view key;
} descriptions[] = {
    {config_name, config_key},
    {config_name, "compression_config"},  // compressed-tensors before 0.5
    {"params.json", "quantization"},      // Mistral
};
constexpr std::uint64_t largest_config = 64ULL << 20;

bool is_cut_into(std::uint64_t length, std::uint64_t block, std::uint64_t scales) {
    return block > 0 && length / block + (length % block != 0 ? 1 : 0) == scales;
}

std::optional<std::uint64_t> block_along(std::uint64_t length, std::uint64_t scales, bool mx,
                                         std::optional<std::uint64_t> stated) {
    if (scales == length) return 1;
    if (scales == 1) return length;
    if (stated) return is_cut_into(length, *stated, scales) ? stated : std::nullopt;
    if (mx && is_cut_into(length, mx_block, scales)) return mx_block;
    if (is_cut_into(length, usual_block, scales)) return usual_block;
    // Any other size is clear only if it leaves no remainder, and is one that is in use.
    if (scales > 0 && length % scales == 0 && std::has_single_bit(length / scales)) return length / scales;
    return std::nullopt;
}

/// Returns `scales` with as many dimensions as `numbers`. Returns nothing if they are not one scale for all, one for
/// each index of the first dimensions, or of the same number of dimensions.
std::optional<LazyTensor> as_wide(const LazyTensor& scales, const Shape& numbers) {
    const StridedView view = scales.strided_view();
    std::size_t rank = view.shape.size();
    StridedView wanted{.shape = Shape(numbers.size(), 1), .strides = Strides(numbers.size(), 1), .offset = view.offset};
    if (scales.element_count() != 1) {
        // Dimensions of size 1 at the end change nothing, unless the scales have all dimensions.
        while (rank != numbers.size() && rank > 0 && view.shape[rank - 1] == 1) --rank;
        if (rank > numbers.size()) return std::nullopt;
        for (std::size_t d = 0; d < rank; ++d) {
            if (rank < numbers.size() && view.shape[d] != numbers[d]) return std::nullopt;
            wanted.shape[d] = view.shape[d];
            wanted.strides[d] = view.strides[d];
        }
    }
    const LazyTensor wide(scales.name(), scales.stored(), std::move(wanted), scales.decoding());
    return wide.cast(scales.dtype());
}

class Scaler {
public:
    /// The tensors from index `written` on are not written.
    Scaler(std::span<const LazyTensor> tensors, std::size_t written, std::span<const AliasGroup> ties,
           const SaveOptions& options, std::span<const std::uint64_t> block)
        : tensors_(tensors),
          written_(written),
          ties_(ties),
          options_(options),
          block_(block),
          roles_(tensors.size(), Role::other) {}

    Scaling run(const state::QuantizedTensors& found) {
        sort_out(found);
        std::vector<const Quantized*> of(tensors_.size(), nullptr);
        for (const Quantized& quantized : found.all) {
            of[quantized.numbers] = &quantized;
            if (roles_[quantized.numbers] == Role::product) require_product(quantized, found);
        }
        const Groups groups = groups_of_dropped();
        std::uint64_t plain = 0;
        for (std::uint32_t i = 0; i < written_; ++i) {
            if (roles_[i] == Role::dropped) {
                drop(i, groups, found.other_names);
                continue;
            }
            scaling_.kept.push_back(i);
            scaling_.tensors.push_back(roles_[i] == Role::product ? product(*of[i]) : tensors_[i]);
            const bool has_no_scales = of[i] == nullptr && state::is_fp8(tensors_[i].dtype());
            plain += has_no_scales && roles_[i] == Role::other && !state::is_marker(tensors_[i]) ? 1 : 0;
        }
        note(plain);
        return std::move(scaling_);
    }

private:
    enum class Role : std::uint8_t { other, product, stays, dropped };
    using Groups = std::unordered_map<std::string_view, const AliasGroup*, NameHash>;

    bool is_kept(std::uint32_t tensor) const {
        return options_.keep_dtype && options_.keep_dtype->matches(tensors_[tensor].name());
    }

    /// Decides which tensors become products, and which are dropped: what is beside products, and beside nothing else.
    void sort_out(const state::QuantizedTensors& found) {
        std::vector<std::uint32_t> beside_products;
        std::vector<std::uint32_t> beside_others;
        scaling_.all = true;
        for (const Quantized& quantized : found.all) {
            if (quantized.numbers >= written_) {  // its scales stay as they are
                beside_others.insert(beside_others.end(), quantized.scales.begin(), quantized.scales.end());
                continue;
            }
            const bool kept = is_kept(quantized.numbers);
            if (!kept && quantized.name.kind == state::Quantization::packed) refuse_packed(found);
            auto& beside = kept ? beside_others : beside_products;
            beside.insert(beside.end(), quantized.scales.begin(), quantized.scales.end());
            beside.insert(beside.end(), quantized.besides.begin(), quantized.besides.end());
            (kept ? kept_numbers_ : products_).push_back(quantized.numbers);
            scaling_.all = scaling_.all && !kept;
        }
        scaling_.any = !products_.empty();
        keep_dtypes_of(beside_others);
        if (!scaling_.any) return;
        for (const std::uint32_t marker : found.markers)
            if (scaling_.all || marks_products(marker)) beside_products.push_back(marker);
        for (const std::uint32_t tensor : beside_products) roles_[tensor] = Role::dropped;
        for (const std::uint32_t tensor : beside_others) roles_[tensor] = Role::stays;
        for (const std::uint32_t tensor : kept_numbers_) roles_[tensor] = Role::stays;
        for (const std::uint32_t tensor : products_) roles_[tensor] = Role::product;
    }

    /// --dtype casts all but the scales of quantised tensors that are kept.
    void keep_dtypes_of(const std::vector<std::uint32_t>& staying) {
        std::map<Dtype, std::vector<std::string>> names;
        for (const std::uint32_t tensor : staying) {
            if (tensor >= written_ || !is_castable(tensors_[tensor].dtype())) continue;
            const std::string& name = tensors_[tensor].name();
            const auto is_of_it = [&](const SaveOptions::DtypeOf& each) { return each.tensors.matches(name); };
            if (std::none_of(options_.dtype_of.begin(), options_.dtype_of.end(), is_of_it))
                names[tensors_[tensor].dtype()].push_back(name);
        }
        for (auto& [dtype, of_dtype] : names) scaling_.stay.push_back({Selection::names(std::move(of_dtype)), dtype});
    }

    /// Returns true if all quantised tensors of the part that a marker belongs to become products.
    bool marks_products(std::uint32_t marker) const {
        const std::string& name = tensors_[marker].name();
        const std::string_view part = std::string_view(name).substr(0, name.find_last_of("./") + 1);
        const auto is_in_part = [&](std::uint32_t tensor) { return tensors_[tensor].name().starts_with(part); };
        return std::any_of(products_.begin(), products_.end(), is_in_part) &&
               std::none_of(kept_numbers_.begin(), kept_numbers_.end(), is_in_part);
    }

    static void add_all(const Quantized& quantized, std::vector<std::uint32_t>& keep) {
        keep.push_back(quantized.numbers);
        keep.insert(keep.end(), quantized.scales.begin(), quantized.scales.end());
        keep.insert(keep.end(), quantized.besides.begin(), quantized.besides.end());
    }

    [[noreturn]] void refuse_packed(const state::QuantizedTensors& found) const {
        std::vector<std::uint32_t> keep;
        const Quantized* first = nullptr;
        for (const Quantized& quantized : found.all) {
            if (quantized.name.kind != state::Quantization::packed || quantized.numbers >= written_) continue;
            if (first == nullptr && !is_kept(quantized.numbers)) first = &quantized;
            add_all(quantized, keep);
        }
        const std::string of = " (" + std::string(first->name.text) + ")";
        refuse(*first,
               state::is_fp8(tensors_[first->numbers].dtype())
                   ? "its values belong under the name of the weight, which its numbers do not have" + of
                   : "its numbers are packed" + of + ", and only F8 numbers are multiplied",
               std::move(keep));
    }

    [[noreturn]] void refuse(const Quantized& quantized, const std::string& why,
                             std::vector<std::uint32_t> keep = {}) const {
        if (keep.empty()) add_all(quantized, keep);
        std::sort(keep.begin(), keep.end());
        keep.erase(std::unique(keep.begin(), keep.end()), keep.end());
        std::erase_if(keep, [&](std::uint32_t tensor) { return tensor >= written_; });
        Error error(Errc::quantized_cast, "it cannot be multiplied by its scales: " + why);
        error.with_tensor(tensors_[quantized.numbers].name());
        throw std::move(error.with_hint("copy it as it is:" + keep_options(tensors_.first(written_), keep)));
    }

    /// Refuses values that depend on more than one scale. The hint keeps all tensors of this kind.
    [[noreturn]] void refuse_more_factors(const Quantized& quantized, const state::QuantizedTensors& found) const {
        std::vector<std::uint32_t> keep;
        for (const Quantized& each : found.all) {
            if (!each.more_factors.empty()) add_all(each, keep);
        }
        refuse(quantized,
               "its values depend on " + safemap::quoted(tensors_[quantized.more_factors.front()].name()) +
                   " too, which safemap does not apply",
               std::move(keep));
    }

    void require_product(const Quantized& quantized, const state::QuantizedTensors& found) const {
        if (quantized.scales.size() > 1)
            refuse(quantized, "it has two tensors of scales, " + safemap::quoted(tensors_[quantized.scales[0]].name()) +
                                  " and " + safemap::quoted(tensors_[quantized.scales[1]].name()));
        if (!quantized.more_factors.empty()) refuse_more_factors(quantized, found);
        const LazyTensor& scales = tensors_[quantized.scales.front()];
        if (scales.dtype() != Dtype::f8_e8m0 && !is_castable(scales.dtype()))
            refuse(quantized, "the scales " + safemap::quoted(scales.name()) + " are " +
                                  std::string(name(scales.dtype())) + "; expected floating-point numbers or F8_E8M0");
    }

    LazyTensor product(const Quantized& quantized) {
        const LazyTensor& numbers = tensors_[quantized.numbers];
        const LazyTensor& scales = tensors_[quantized.scales.front()];
        const Shape& shape = numbers.shape();
        const std::optional<LazyTensor> wide = as_wide(scales, shape);
        std::optional<Shape> block;
        if (wide) block = block_of(shape, wide->shape(), scales.dtype() == Dtype::f8_e8m0, block_);
        if (!block) {
            std::string why = "it is not clear which of the scales " + safemap::quoted(scales.name()) + ", of shape " +
                              to_string(scales.shape()) + ", belongs to which number of shape " + to_string(shape);
            if (!block_.empty()) why += "; config.json states blocks of " + to_string(Shape(block_));
            refuse(quantized, why);
        }
        scaling_.factors.push_back(numbers);
        scaling_.factors.push_back(scales);
        const Dtype to = asked_dtype(numbers, options_).value_or(Dtype::bf16);
        if (state::is_fp8(to) && !std::exchange(has_fp8_products_, true)) scaling_.notes.push_back(note_on_fp8(to));
        return scaled({numbers, *wide, *std::move(block)}).cast(to);
    }

    /// Returns the groups of the tied tensors that are dropped, by their first names. All others keep their names.
    Groups groups_of_dropped() {
        std::unordered_set<std::string_view, NameHash> dropped;
        if (!ties_.empty())
            for (std::uint32_t i = 0; i < written_; ++i)
                if (roles_[i] == Role::dropped) dropped.insert(tensors_[i].name());
        Groups groups;
        for (const AliasGroup& group : ties_) {
            if (dropped.contains(group.front())) groups.emplace(group.front(), &group);
            else scaling_.ties.push_back(group);
        }
        return groups;
    }

    /// Drops the names of a tensor, except those that mean something else: with them it is written.
    void drop(std::uint32_t tensor, const Groups& groups, const std::set<std::string, std::less<>>& other_names) {
        const auto found = groups.find(tensors_[tensor].name());
        const AliasGroup names = found == groups.end() ? AliasGroup{tensors_[tensor].name()} : *found->second;
        AliasGroup left;
        for (const std::string& name : names) {
            if (other_names.contains(name)) left.push_back(name);
            else skip(tensor, name);
        }
        if (left.empty()) return;
        scaling_.kept.push_back(tensor);
        scaling_.tensors.push_back(tensors_[tensor].renamed(left.front()));
        scaling_.ties.push_back(std::move(left));
    }

    void skip(std::uint32_t tensor, const std::string& name) {
        scaling_.skipped.push_back({.name = name,
                                    .type = "torch." + std::string(torch_name(tensors_[tensor].dtype())),
                                    .why = "describes quantised tensors, which are written as their values "
                                           "(apply_scales)"});
    }

    void note(std::uint64_t plain) {
        if (!scaling_.any)
            scaling_.notes.emplace_back(kept_numbers_.empty() ? "no tensor has scales to apply"
                                                              : "no scales are applied: keep_dtype keeps all numbers");
        if (plain > 0)
            scaling_.notes.push_back(counted(plain, "F8 tensor has", "F8 tensors have") +
                                     " no scales, and no product with them");
    }

    std::span<const LazyTensor> tensors_;
    std::size_t written_;
    std::span<const AliasGroup> ties_;
    const SaveOptions& options_;
    std::span<const std::uint64_t> block_;
    std::vector<Role> roles_;
    std::vector<std::uint32_t> products_;
    std::vector<std::uint32_t> kept_numbers_;  // quantised numbers that are copied
    bool has_fp8_products_ = false;
    Scaling scaling_;
};

const ExtraFile* config_in(const Extras& extras) {
    const auto found = std::find_if(extras.files.begin(), extras.files.end(),
                                    [](const ExtraFile& file) { return file.name == config_name && file.source; });
    return found == extras.files.end() ? nullptr : &*found;
}

/// Returns the text of a file if it is a JSON object, else nothing: any other file is copied as it is.
std::optional<std::string> object_in(const ExtraFile& file, std::optional<json::Value>& root) {
    try {
        std::string text = json::read_text(*file.source, largest_config, Errc::expectation_not_json, file.name.c_str());
        root.emplace(json::parse(text, Errc::expectation_not_json));
        if (root->object() != nullptr) return text;
    } catch (const Error& error) {
        if (error.code() != Errc::expectation_not_json) throw;
    }
    return std::nullopt;
}

/// Adds the block sizes of weights that a description of the quantisation states, at any depth.
void add_stated_blocks(const json::Value& value, std::set<std::vector<std::uint64_t>>& stated) {
    if (value.object() == nullptr) return;
    for (const json::Member& member : *value.object()) {
        const bool is_size = member.key == "weight_block_size" || member.key == "block_structure";
        if (!is_size || member.value.array() == nullptr) {
            if (!member.key.ends_with("_activations")) add_stated_blocks(member.value, stated);
            continue;
        }
        std::vector<std::uint64_t> block;
        for (const json::Value& each : *member.value.array()) block.push_back(each.unsigned_integer().value_or(0));
        if (!block.empty() && std::ranges::count(block, 0) == 0) stated.insert(std::move(block));
    }
}

/// Returns true if `word`, a string of valid JSON with its quotes, is `key`.
bool spells(std::string_view word, std::string_view key) {
    const std::string_view inside = word.substr(1, word.size() - 2);
    if (inside.find('\\') == std::string_view::npos) return inside == key;
    const json::Value value = json::parse(word, Errc::expectation_not_json);
    return value.string() != nullptr && *value.string() == key;
}

/// Moves through valid JSON.
class Scanner {
public:
    explicit Scanner(std::string_view text) : text_(text) {}

    bool at_end() const noexcept { return at_ >= text_.size(); }
    std::size_t place() const noexcept { return at_; }
    char next() const noexcept { return at_end() ? '\0' : text_[at_]; }
    void skip(std::size_t count = 1) noexcept { at_ += count; }
    void skip_space() noexcept {
        while (!at_end() && (next() == ' ' || next() == '\t' || next() == '\n' || next() == '\r')) ++at_;
    }
    /// Skips a string, and returns it with its quotes.
    std::string_view string() noexcept {
        const std::size_t begin = at_++;
        for (; !at_end() && next() != '"'; ++at_)
            if (next() == '\\') ++at_;
        at_ = std::min(at_ + 1, text_.size());
        return text_.substr(begin, at_ - begin);
    }
    /// Skips a value of any kind.
    void value() noexcept {
        std::size_t depth = 0;
        for (; !at_end(); ++at_) {
            const char c = next();
            if (c == '"') {
                string();
                --at_;
            } else if (c == '{' || c == '[') ++depth;
            else if (c == '}' || c == ']') {
                if (depth == 0) return;
                if (--depth == 0) return skip();
            } else if (depth == 0 && (c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r')) return;
            if (c == '"' && depth == 0) return skip();
        }
    }

private:
    std::string_view text_;
    std::size_t at_ = 0;
};

/// Removes the members of a copied file that describe the quantisation.
void remove_descriptions(ExtraFile& file, std::vector<std::string>& notes) {
    if (!file.source ||
        std::ranges::find(descriptions, file.name, [](const auto& d) { return d.file; }) == std::end(descriptions))
        return;
    std::optional<json::Value> root;
    const std::optional<std::string> text = object_in(file, root);
    if (!text) {
        notes.push_back(file.name +
                        " is copied as it is, because it is not a JSON object: it may still describe the "
                        "quantisation, which is gone");
        return;
    }
    std::string edited = *text;
    for (const auto& description : descriptions) {
        if (description.file != file.name) continue;
        const std::size_t before = edited.size();
        edited = write::without_members(edited, description.key);
        if (edited.size() < before)
            notes.push_back(file.name + " is copied without its " + std::string(description.key));
    }
    if (edited.size() == text->size()) return;
    file.source->require_unchanged();
    const auto bytes = std::as_bytes(std::span(edited));
    file.source = memory_source(file.source->name(), std::vector<std::byte>(bytes.begin(), bytes.end()));
}

}  // namespace

std::optional<Shape> block_of(const Shape& numbers, const Shape& scales, bool mx,
                              std::span<const std::uint64_t> block) {
    if (scales.size() != numbers.size()) return std::nullopt;
    Shape blocks;
    for (std::size_t d = 0; d < numbers.size(); ++d) {
        const std::size_t from_last = numbers.size() - d;
        std::optional<std::uint64_t> stated;
        if (from_last <= block.size()) stated = block[block.size() - from_last];
        const auto size = block_along(numbers[d], scales[d], mx && from_last == 1, stated);
        if (!size) return std::nullopt;
        blocks.push_back(std::max<std::uint64_t>(*size, 1));
    }
    return blocks;
}

Scaling apply_scales(std::span<const LazyTensor> tensors, std::span<const AliasGroup> ties,
                     const QuantizedInput& quantized, const SaveOptions& options,
                     std::span<const std::uint64_t> block) {
    std::vector<LazyTensor> all(tensors.begin(), tensors.end());
    all.insert(all.end(), quantized.unwritten.begin(), quantized.unwritten.end());
    return Scaler(all, tensors.size(), ties, options, block).run(quantized.found);
}

std::vector<std::uint64_t> stated_block(const Extras& extras) {
    const ExtraFile* const config = config_in(extras);
    std::optional<json::Value> root;
    if (config == nullptr || !object_in(*config, root)) return {};
    std::set<std::vector<std::uint64_t>> stated;
    const auto look_in = [&](const json::Value& part) {
        for (const auto& description : descriptions)
            if (description.file == config_name)
                if (const json::Value* const quantization = part.find(description.key))
                    add_stated_blocks(*quantization, stated);
    };
    look_in(*root);
    for (const json::Member& member : *root->object()) look_in(member.value);  // text_config and so on
    if (stated.size() > 1)
        throw Error(Errc::quantized_cast, "config.json states blocks of " + to_string(Shape(*stated.begin())) +
                                              " and of " + to_string(Shape(*stated.rbegin())) +
                                              "; expected one block size for all weights");
    return stated.empty() ? std::vector<std::uint64_t>() : *stated.begin();
}

Extras without_quantization(const Extras& extras, std::vector<std::string>& notes) {
    Extras without = extras;
    const auto is_description = [](const ExtraFile& file) { return file.name == "hf_quant_config.json"; };
    if (std::erase_if(without.files, is_description) > 0)
        notes.emplace_back("hf_quant_config.json is not copied: it describes the quantisation");
    for (ExtraFile& file : without.files) remove_descriptions(file, notes);
    return without;
}

std::string without_members(std::string_view text, std::string_view key) {
    std::string out;
    std::size_t copied = 0;
    std::size_t comma = std::string_view::npos;  // the comma before the next member, if it is the last token
    for (Scanner scan(text); !scan.at_end();) {
        if (scan.next() != '"') {
            if (scan.next() == ',') comma = scan.place();
            else if (std::string_view(" \t\n\r").find(scan.next()) == std::string_view::npos)
                comma = std::string_view::npos;
            scan.skip();
            continue;
        }
        const std::size_t begin = scan.place();
        const std::string_view word = scan.string();
        const std::size_t comma_before = std::exchange(comma, std::string_view::npos);
        scan.skip_space();
        if (!spells(word, key) || scan.next() != ':') continue;
        scan.skip();
        scan.skip_space();
        scan.value();
        std::size_t end = scan.place();
        scan.skip_space();
        if (scan.next() == ',') {  // the next member moves to the place of this one
            scan.skip();
            scan.skip_space();
            end = scan.place();
            out += text.substr(copied, begin - copied);
            comma = comma_before;
        } else {
            const std::size_t from = comma_before == std::string_view::npos ? begin : comma_before;
            if (from < copied) out.erase(out.rfind(','));  // copied before another member that was removed
            else out += text.substr(copied, from - copied);
        }
        copied = end;
    }
    return out += text.substr(std::min(copied, text.size()));
}

}  // namespace safemap::SAFEMAP_ABI::write
