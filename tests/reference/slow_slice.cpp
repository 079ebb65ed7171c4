// Lists the indices of each slice as Python's range() does, and walks views one element at a time.
#include "reference/slow_slice.hpp"

#include <algorithm>

namespace reference {

std::vector<std::int64_t> python_indices(const safemap::Slice& s, std::int64_t n) {
    const auto clamp = [&](std::int64_t i, std::int64_t low, std::int64_t high) {
        if (i < 0) i += n;
        return i < low ? low : i > high ? high : i;
    };
    const std::int64_t step = std::clamp(s.step, -n - 1, n + 1);  // Python's integers do not overflow
    std::vector<std::int64_t> out;
    if (step > 0) {
        const std::int64_t stop = s.stop ? clamp(*s.stop, 0, n) : n;
        for (std::int64_t i = s.start ? clamp(*s.start, 0, n) : 0; i < stop; i += step) out.push_back(i);
    } else {
        const std::int64_t stop = s.stop ? clamp(*s.stop, -1, n - 1) : -1;
        for (std::int64_t i = s.start ? clamp(*s.start, -1, n - 1) : n - 1; i > stop; i += step) out.push_back(i);
    }
    return out;
}

Cut whole(const safemap::Shape& shape) {
    Cut out{shape, {}};
    const auto count = static_cast<std::int64_t>(*safemap::element_count(shape));
    for (std::int64_t i = 0; i < count; ++i) out.elements.push_back(i);
    return out;
}

Cut walked(const safemap::StridedView& view) {
    Cut out{view.shape, {}};
    const auto walk = [&](const auto& self, std::size_t axis, std::int64_t at) -> void {
        if (axis == view.shape.size()) return out.elements.push_back(at);
        for (std::uint64_t i = 0; i < view.shape[axis]; ++i)
            self(self, axis + 1, at + static_cast<std::int64_t>(i) * view.strides[axis]);
    };
    if (safemap::element_count(view.shape) != 0) walk(walk, 0, view.offset);
    return out;
}

std::optional<Cut> sliced(const Cut& base, const std::vector<safemap::Slice>& slices) {
    using safemap::Slice;
    const std::size_t rank = base.shape.size();
    const auto stands_still = [](const Slice& s) { return s.kind == Slice::Kind::range && s.step == 0; };
    if (std::any_of(slices.begin(), slices.end(), stands_still)) return std::nullopt;
    const auto is_ellipsis = [](const Slice& s) { return s.kind == Slice::Kind::ellipsis; };
    const auto ellipses = static_cast<std::size_t>(std::count_if(slices.begin(), slices.end(), is_ellipsis));
    if (ellipses > 1 || slices.size() - ellipses > rank) return std::nullopt;

    std::vector<Slice> full;  // one per dimension
    for (const Slice& s : slices) {
        if (!is_ellipsis(s)) full.push_back(s);
        else full.insert(full.end(), rank - (slices.size() - 1), Slice{});
    }
    full.resize(rank);

    Cut out;
    std::vector<std::vector<std::int64_t>> chosen;  // indices along each dimension
    for (std::size_t d = 0; d < rank; ++d) {
        const auto n = static_cast<std::int64_t>(base.shape[d]);
        if (full[d].kind == Slice::Kind::index) {
            const std::int64_t i = *full[d].start;
            if (i < -n || i >= n) return std::nullopt;
            chosen.push_back({i < 0 ? i + n : i});
        } else {
            chosen.push_back(python_indices(full[d], n));
            out.shape.push_back(chosen.back().size());
        }
    }
    const auto walk = [&](const auto& self, std::size_t axis, std::int64_t number) -> void {
        if (axis == rank) return out.elements.push_back(base.elements[static_cast<std::size_t>(number)]);
        for (const std::int64_t i : chosen[axis])
            self(self, axis + 1, number * static_cast<std::int64_t>(base.shape[axis]) + i);
    };
    if (safemap::element_count(out.shape) != 0) walk(walk, 0, 0);
    return out;
}

bool in_whole_bytes(const Cut& cut, std::int64_t grain) {
    if (cut.elements.size() % static_cast<std::size_t>(grain) != 0) return false;
    for (std::size_t i = 0; i < cut.elements.size(); ++i) {
        const auto in_group = static_cast<std::int64_t>(i) % grain;
        if (cut.elements[i] % grain != in_group) return false;
        if (in_group > 0 && cut.elements[i] != cut.elements[i - 1] + 1) return false;
    }
    return true;
}

std::vector<safemap::Slice> random_slices(std::mt19937_64& random, std::size_t rank) {
    using safemap::Slice;
    const auto number = [&](std::int64_t most) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(2 * most + 1)) - most;
    };
    std::vector<Slice> out;
    const std::size_t count = random() % (rank + 1);
    for (std::size_t i = 0; i < count; ++i) {
        if (random() % 4 == 0) {
            out.push_back(Slice::at(number(3)));
            continue;
        }
        Slice s;
        if (random() % 3 != 0) s.start = number(5);
        if (random() % 3 != 0) s.stop = number(5);
        if (random() % 2 == 0) s.step = number(3);
        if (s.step == 0) s.step = 1;
        out.push_back(s);
    }
    if (random() % 3 == 0)
        out.insert(out.begin() + static_cast<std::ptrdiff_t>(random() % (count + 1)), Slice::ellipsis());
    return out;
}

}  // namespace reference
