// Checkpoints of dicts of tensors that a program has in memory.
#include "core.hpp"

#include <safemap/advanced/text.hpp>

#include <algorithm>
#include <unordered_map>

namespace safemap::python {
namespace {

/// The tensors of a flat state dict, and the groups of names that share one.
class FlatDict {
public:
    void add(std::string name, nb::handle value) {
        Found found = found_from(std::move(name), value);
        if (const std::size_t* const first = tied(found)) {
            const auto [group, fresh] = group_of_.try_emplace(*first, groups_.size());
            if (fresh) groups_.push_back({tensors_[*first].name()});
            groups_[group->second].push_back(found.tensor.name());
            return;
        }
        at_.emplace(found.place.address, tensors_.size());
        places_.push_back(found.place);
        tensors_.push_back(std::move(found.tensor));
    }

    Checkpoint checkpoint(std::map<std::string, std::string> metadata) const {
        Checkpoint made = Checkpoint::of(tensors_, std::move(metadata), groups_);
        // The stored name is that which a `.pt` would give: of the embedding, not of the output layer.
        return groups_.empty() ? made : made.stored_as();
    }

private:
    /// Returns the number of the tensor with the same elements, or null.
    const std::size_t* tied(const Found& found) const {
        if (found.place.address == 0 || found.tensor.element_count() == 0) return nullptr;
        const auto [first, last] = at_.equal_range(found.place.address);
        for (auto one = first; one != last; ++one)
            if (same(found, one->second)) return &one->second;
        return nullptr;
    }

    bool same(const Found& found, std::size_t known) const {
        const LazyTensor& other = tensors_[known];
        return places_[known] == found.place && other.dtype() == found.tensor.dtype() &&
               other.shape() == found.tensor.shape() &&
               other.strided_view().strides == found.tensor.strided_view().strides;
    }

    std::vector<LazyTensor> tensors_;
    std::vector<Place> places_;
    std::unordered_multimap<std::uintptr_t, std::size_t> at_;
    std::unordered_map<std::size_t, std::size_t> group_of_;
    std::vector<AliasGroup> groups_;
};

/// Returns the state dict of a module, or the value itself.
nb::object state_dict_of(nb::handle value) {
    if (!nb::hasattr(value, "state_dict") || PyType_Check(value.ptr())) return nb::borrow(value);
    return value.attr("state_dict")();
}

bool is_mapping(nb::handle value) {
    return PyDict_Check(value.ptr()) || (nb::hasattr(value, "keys") && nb::hasattr(value, "items"));
}

void require_tensor(const std::string& name, nb::handle value) {
    if (is_mapping(value) || PyList_Check(value.ptr()) || PyTuple_Check(value.ptr()))
        wrong_type(("a tensor for " + printable(name, 200)).c_str(), value);
}

bool is_list_of_tensors(nb::handle value) {
    return (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) && nb::len(value) > 0 &&
           nb::isinstance<Tensor>(value[0]);
}

Checkpoint checkpoint_of_list(nb::handle list) {
    std::vector<LazyTensor> tensors;
    for (const nb::handle one : nb::iter(list)) {
        if (!nb::isinstance<Tensor>(one)) wrong_type("a list of LazyTensors alone", one);
        tensors.push_back(nb::cast<const Tensor&>(one).lazy);
    }
    return Checkpoint::of(tensors);
}

}  // namespace

Checkpoint checkpoint_of(nb::handle mapping, std::map<std::string, std::string> metadata) {
    const nb::object pairs = pairs_of(mapping, "a dict of tensors");
    FlatDict flat;
    for (const nb::handle pair : nb::iter(pairs)) {
        std::string name = text_from(pair[0], "the name of a tensor");
        require_tensor(name, pair[1]);
        flat.add(std::move(name), pair[1]);
    }
    return flat.checkpoint(std::move(metadata));
}

Checkpoint checkpoint_from(nb::handle value) {
    if (nb::isinstance<Handle>(value)) return nb::cast<const Handle&>(value).get();
    if (is_list_of_tensors(value)) return checkpoint_of_list(value);
    const nb::object state = state_dict_of(value);
    if (is_mapping(state)) return checkpoint_of_objects(state);
    OpenOptions options;
    options.access = Access::private_copy;  // as safemap.open()
    return open_any(value, options);
}

}  // namespace safemap::python
