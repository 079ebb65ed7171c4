// Prints tensors for people to read, in the layout of NumPy arrays.
#include <safemap/tensor_view.hpp>

#include "tensor/element_text.hpp"

#include <ostream>
#include <vector>

namespace safemap::SAFEMAP_ABI {
namespace {

constexpr std::uint64_t most_whole = 1000;  // elements; larger tensors show only their edges
constexpr std::uint64_t edge = 3;           // elements shown at each end of a dimension
constexpr std::size_t line_width = 75;
// Limits: the edges of many dimensions are many elements, and a file may claim any number of dimensions.
constexpr std::size_t most_words = 2000;
constexpr std::size_t most_dimensions = 64;
constexpr int digits = 6;
constexpr const char* gap = "...";

/// The values in nested brackets. Collects all words first, because each is padded to the width of the widest.
class Layout {
public:
    explicit Layout(const TensorView& view)
        : view_(view), shape_(view.shape()), strides_(view.strides()), abbreviated_(view.element_count() > most_whole) {
        collect(0, 0);
        for (const std::string& word : words_) width_ = std::max(width_, word.size());
    }

    std::string text() { return nested(0, " ", line_width); }

private:
    bool has_gap(std::size_t axis) const { return abbreviated_ && shape_[axis] > 2 * edge; }

    /// Calls show(i) for each index that is shown, and skip() between the two edges.
    template <class Show, class Skip> void for_shown(std::size_t axis, Show&& show, Skip&& skip) const {
        const std::uint64_t length = shape_[axis];
        const std::uint64_t leading = has_gap(axis) ? edge : length;
        for (std::uint64_t i = 0; i < leading; ++i) show(i);
        if (!has_gap(axis)) return;
        skip();
        for (std::uint64_t i = length - edge; i < length; ++i) show(i);
    }

    void collect(std::size_t axis, std::int64_t number) {
        if (words_.size() == most_words) return;
        if (axis == shape_.size()) {
            words_.push_back(element_text(view_.dtype(), view_.data(), number, digits));
            return;
        }
        for_shown(
            axis, [&](std::uint64_t i) { collect(axis + 1, number + static_cast<std::int64_t>(i) * strides_[axis]); },
            [] {});
    }

    std::string next_word() {
        const std::string& word = words_[next_++];
        return std::string(width_ - word.size(), ' ') + word;
    }

    std::string nested(std::size_t axis, const std::string& indent, std::size_t width) {
        if (next_ == words_.size()) return gap;
        if (axis == shape_.size()) return next_word();
        return '[' + (axis + 1 == shape_.size() ? row(axis, indent, width) : block(axis, indent, width)) + ']';
    }

    /// Returns the last dimension: words on lines, wrapped at `width`.
    std::string row(std::size_t axis, const std::string& indent, std::size_t width) {
        std::string lines;
        std::string line = indent;
        const auto extend = [&](const std::string& word) {
            if (line.size() > indent.size()) line += ' ';
            if (line.size() + word.size() > width - 1 && line.size() > indent.size()) {
                line.pop_back();
                lines += line + '\n';
                line = indent;
            }
            line += word;
        };
        for_shown(
            axis, [&](std::uint64_t) { extend(next_ == words_.size() ? gap : next_word()); }, [&] { extend(gap); });
        return (lines + line).substr(indent.size());
    }

    /// Returns an outer dimension: its items below each other, separated by as many line feeds as there are dimensions
    /// after it.
    std::string block(std::size_t axis, const std::string& indent, std::size_t width) {
        const std::string separator(shape_.size() - axis - 1, '\n');
        std::string text;
        const auto add = [&](const std::string& part) {
            if (!text.empty()) text += separator + indent;
            text += part;
        };
        for_shown(
            axis, [&](std::uint64_t) { add(nested(axis + 1, indent + ' ', width - 1)); }, [&] { add(gap); });
        return text;
    }

    const TensorView& view_;
    const Shape& shape_;
    const Strides& strides_;
    bool abbreviated_;
    std::vector<std::string> words_;
    std::size_t width_ = 0;
    std::size_t next_ = 0;
};

}  // namespace

std::string to_string(const TensorView& view) {
    std::string text = std::string(name(view.dtype())) + ' ' + to_string(view.shape()) + '\n';
    if (view.element_count() == 0) return text + "[]";
    if (view.shape().size() > most_dimensions) return text + '[' + gap + ']';
    return text + Layout(view).text();
}

std::ostream& operator<<(std::ostream& out, const TensorView& view) { return out << to_string(view); }

}  // namespace safemap::SAFEMAP_ABI
