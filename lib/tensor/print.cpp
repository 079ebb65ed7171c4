// Tensors for people to read, laid out as NumPy lays out arrays.
#include <safemap/tensor_view.hpp>

#include <charconv>
#include <cmath>
#include <complex>
#include <ostream>
#include <type_traits>
#include <vector>

namespace safemap {
namespace {

constexpr std::uint64_t most_whole = 1000;  // elements; of larger tensors only the edges are shown
constexpr std::uint64_t edge = 3;           // so many from each end of a dimension
constexpr std::size_t line_width = 75;
// The edges of many dimensions are many elements, and a file may claim any number of dimensions.
constexpr std::size_t most_words = 2000;
constexpr std::size_t most_dimensions = 64;
constexpr const char* gap = "...";

std::string text_of(bool value) { return value ? "true" : "false"; }

template <std::integral T> std::string text_of(T value) { return std::to_string(value); }

std::string text_of(double value) {
    if (std::isnan(value)) return "nan";
    char text[32];
    const auto end = std::to_chars(std::begin(text), std::end(text), value, std::chars_format::general, 6).ptr;
    return {text, end};
}

template <class T> std::string text_of(std::complex<T> value) {
    const std::string imag = text_of(static_cast<double>(value.imag()));
    return text_of(static_cast<double>(value.real())) + (imag.front() == '-' ? "" : "+") + imag + 'j';
}

template <class T> std::string text_at(const std::byte* base, std::int64_t number) {
    const T value = detail::read_element<T>(base, number);
    if constexpr (std::is_same_v<T, c32>) return text_of(static_cast<std::complex<float>>(value));
    else if constexpr (requires { value.bits; }) return text_of(static_cast<double>(value));
    else if constexpr (std::is_same_v<T, float>) return text_of(static_cast<double>(value));
    else return text_of(value);
}

template <class T> std::string hex_at(const std::byte* base, std::int64_t number) {
    const T value = detail::read_element<T>(base, number);
    std::string text = "0x";
    for (unsigned shift = sizeof(T) * 8; shift > 0;) text += "0123456789abcdef"[value >> (shift -= 4) & 15U];
    return text;
}

using TextAt = std::string (*)(const std::byte* base, std::int64_t number);

TextAt text_for(Dtype dtype) noexcept {
    switch (dtype) {
        case Dtype::boolean: return text_at<bool>;
        case Dtype::f4: return text_at<f4>;
        case Dtype::f6_e2m3: return text_at<f6_e2m3>;
        case Dtype::f6_e3m2: return text_at<f6_e3m2>;
        case Dtype::u8: return text_at<std::uint8_t>;
        case Dtype::i8: return text_at<std::int8_t>;
        case Dtype::f8_e5m2: return text_at<f8_e5m2>;
        case Dtype::f8_e4m3: return text_at<f8_e4m3>;
        case Dtype::f8_e8m0: return text_at<f8_e8m0>;
        case Dtype::f8_e4m3fnuz: return text_at<f8_e4m3fnuz>;
        case Dtype::f8_e5m2fnuz: return text_at<f8_e5m2fnuz>;
        case Dtype::i16: return text_at<std::int16_t>;
        case Dtype::u16: return text_at<std::uint16_t>;
        case Dtype::f16: return text_at<f16>;
        case Dtype::bf16: return text_at<bf16>;
        case Dtype::i32: return text_at<std::int32_t>;
        case Dtype::u32: return text_at<std::uint32_t>;
        case Dtype::f32: return text_at<float>;
        case Dtype::c64: return text_at<std::complex<float>>;
        case Dtype::f64: return text_at<double>;
        case Dtype::i64: return text_at<std::int64_t>;
        case Dtype::u64: return text_at<std::uint64_t>;
        case Dtype::c32: return text_at<c32>;
        case Dtype::c128: return text_at<std::complex<double>>;
        case Dtype::qint8:
        case Dtype::quint8:
        case Dtype::quint4x2:
        case Dtype::quint2x4:
        case Dtype::bits8:
        case Dtype::bits1x8:
        case Dtype::bits2x4:
        case Dtype::bits4x2: return hex_at<std::uint8_t>;
        case Dtype::bits16: return hex_at<std::uint16_t>;
        case Dtype::qint32: return hex_at<std::uint32_t>;
    }
    return hex_at<std::uint8_t>;
}

/// The values in nested brackets. Collects the words first, since all of them get the width of the widest.
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

    /// Calls show(i) for each index that is shown, and skip() between those of the two edges.
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
            words_.push_back(text_for(view_.dtype())(view_.data(), number));
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

    /// The last dimension: words on lines, broken where they get too long.
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

    /// A dimension before it: what is nested in it one below the other, with as many lines between as there are
    /// dimensions.
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

}  // namespace safemap
