// safemap.plan(): compares a checkpoint with what a model expects.
#include "core.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/text.hpp>

#include <unordered_map>

namespace safemap::python {
namespace {

/// The tensors that a model or a dict expects. Tensors of torch with one storage are tied, and so is one object that
/// has two names: tensors on the device meta have no storage.
class Expectation {
public:
    void add(std::string name, nb::handle value) {
        ExpectedTensor expected = of(std::move(name), value);
        const auto [first, fresh] = first_.try_emplace(identity(value), tensors_.size());
        if (!fresh) {
            const ExpectedTensor& other = tensors_[first->second];
            if (other.dtype == expected.dtype && other.shape == expected.shape) expected.alias_of = other.name;
        }
        tensors_.push_back(std::move(expected));
    }
    std::vector<ExpectedTensor> take() { return std::move(tensors_); }

private:
    static ExpectedTensor of(std::string name, nb::handle value) {
        if (PyTuple_Check(value.ptr()) || PyList_Check(value.ptr())) {
            if (nb::len(value) != 2) wrong_type(("(dtype, shape) for " + printable(name, 200)).c_str(), value);
            return {.name = std::move(name), .dtype = dtype_from(value[0]), .shape = shape_from(value[1])};
        }
        if (!nb::hasattr(value, "dtype") || !nb::hasattr(value, "shape"))
            wrong_type(("a tensor or (dtype, shape) for " + printable(name, 200)).c_str(), value);
        ExpectedTensor expected{.name = std::move(name),
                                .dtype = dtype_from(value.attr("dtype")),
                                .shape = shape_from(value.attr("shape"))};
        const bool pairs = expected.dtype == Dtype::f4 && !nb::isinstance<Tensor>(value);
        if (pairs && !expected.shape.empty()) expected.shape.back() *= 2;
        return expected;
    }

    /// Returns a text that two names of one tensor share.
    static std::string identity(nb::handle value) {
        const auto by_object = [&] {
            return "object " + std::to_string(reinterpret_cast<std::uintptr_t>(value.ptr()));
        };
        if (!nb::hasattr(value, "data_ptr") || nb::cast<bool>(nb::getattr(value, "is_meta", nb::cast(true))))
            return by_object();
        const auto address = nb::cast<std::uint64_t>(nb::object(value.attr("data_ptr")()));
        if (address == 0) return by_object();
        return std::to_string(address) + nb::cast<std::string>(nb::str(nb::object(value.attr("stride")())));
    }

    std::vector<ExpectedTensor> tensors_;
    std::unordered_map<std::string, std::size_t> first_;
};

std::vector<ExpectedTensor> expected_from(nb::handle model, const OpenOptions& options) {
    if (nb::isinstance<Handle>(model)) return expected_tensors(nb::cast<const Handle&>(model).get());
    if (is_path(model)) {
        const std::filesystem::path path = path_from(model);
        std::vector<ExpectedTensor> expected;
        interruptible([&](const std::stop_token&) { expected = read_expected(path, options); });
        return expected;
    }
    nb::object state = nb::borrow(model);
    // Parameters themselves, and not copies of them: a tied one is one object.
    if (nb::hasattr(model, "state_dict")) state = model.attr("state_dict")(nb::arg("keep_vars") = true);
    Expectation expectation;
    for (const nb::handle pair :
         nb::iter(pairs_of(state, "a module, a state dict, a path, or a dict of (dtype, shape)")))
        expectation.add(text_from(pair[0], "the name of a tensor"), pair[1]);
    return expectation.take();
}

Fill fill_from(const std::string& text) {
    if (text == "error") return Fill::error;
    if (text == "none") return Fill::none;
    if (text == "zeros") return Fill::zeros;
    if (text == "nan") return Fill::nan;
    raise(Error(Errc::invalid_argument, "fill is \"error\", \"none\", \"zeros\" or \"nan\", not '" + text + "'"));
}

/// A plan, and how tensors of its checkpoint are given to torch.
struct Plan {
    LoadPlan plan;
    bool copies_read_only = true;

    nb::object tensor(const LazyTensor& lazy) const {
        return nb::cast(Tensor{lazy, nb::none(), lazy.name(), {}, copies_read_only});
    }
    nb::list tensors(const std::vector<LazyTensor>& lazies) const {
        nb::list list;
        for (const LazyTensor& lazy : lazies) list.append(tensor(lazy));
        return list;
    }
    nb::list mismatches(const std::vector<TensorMismatch>& found) const {
        nb::list list;
        for (const auto& [expected, lazy] : found) list.append(record("Mismatch", record_of(expected), tensor(lazy)));
        return list;
    }
    static nb::object record_of(const ExpectedTensor& one) {
        return record("Expected", to_python(one.name), to_python(name(one.dtype)), to_python(one.shape),
                      to_python(one.alias_of));
    }
    nb::list missing() const {
        nb::list list;
        for (const ExpectedTensor& one : plan.missing) list.append(record_of(one));
        return list;
    }
    std::string description() const {
        std::string text = plan.ok() ? "<safemap.LoadPlan, ok" : "<safemap.LoadPlan, not ok";
        const auto add = [&](std::size_t count, const char* what) {
            if (count > 0) text += ", " + std::to_string(count) + ' ' + what;
        };
        add(plan.missing.size(), "missing");
        add(plan.unexpected.size(), "unexpected");
        add(plan.shape.size(), "with another shape");
        add(plan.dtype.size(), "with another dtype");
        return text + '>';
    }
};

Plan make_plan(nb::handle checkpoint, nb::handle model, const std::string& fill, bool ignore_unexpected,
               nb::handle patterns) {
    const LoadOptions options{
        .fill = fill_from(fill), .ignore_unexpected = ignore_unexpected, .selection = selection_from(patterns)};
    const Checkpoint found = checkpoint_from(checkpoint);
    const std::vector<ExpectedTensor> expected = expected_from(model, {});
    const bool copies = !nb::isinstance<Handle>(checkpoint) || nb::cast<const Handle&>(checkpoint).copies_read_only;
    return {without_gil([&] { return plan_load(found, expected, options); }), copies};
}

}  // namespace

void bind_plan(nb::module_& module) {
    nb::class_<Plan>(module, "LoadPlan", nb::is_final(),
                     "The differences between a checkpoint and what a model expects; true if it is ok.")
        .def_prop_ro("missing", &Plan::missing, nb::sig("def missing(self, /) -> list[safemap._records.Expected]"),
                     "Expected tensors that the checkpoint lacks: records (name, dtype, shape, alias_of).")
        .def_prop_ro(
            "unexpected", [](const Plan& self) { return self.tensors(self.plan.unexpected); },
            nb::sig("def unexpected(self, /) -> list[LazyTensor]"), "Tensors that the model does not expect.")
        .def_prop_ro(
            "shape", [](const Plan& self) { return self.mismatches(self.plan.shape); },
            nb::sig("def shape(self, /) -> list[safemap._records.Mismatch]"),
            "Tensors of another shape: records (expected, found).")
        .def_prop_ro(
            "dtype", [](const Plan& self) { return self.mismatches(self.plan.dtype); },
            nb::sig("def dtype(self, /) -> list[safemap._records.Mismatch]"),
            "Tensors of another dtype: records (expected, found).")
        .def_prop_ro(
            "tied", [](const Plan& self) { return list_of(self.plan.tied); },
            nb::sig("def tied(self, /) -> list[list[str]]"), "The names of each used tensor that has several.")
        .def_prop_ro(
            "checkpoint_prefix", [](const Plan& self) { return to_python(self.plan.checkpoint_prefix); },
            nb::sig("def checkpoint_prefix(self, /) -> str"), "A prefix that only names of the checkpoint have.")
        .def_prop_ro(
            "model_prefix", [](const Plan& self) { return to_python(self.plan.model_prefix); },
            nb::sig("def model_prefix(self, /) -> str"), "A prefix that only names of the model have.")
        .def_prop_ro(
            "notes", [](const Plan& self) { return to_python(self.plan.notes); },
            nb::sig("def notes(self, /) -> list[str]"))
        .def_prop_ro("ok", [](const Plan& self) { return self.plan.ok(); })
        .def_prop_ro(
            "text", [](const Plan& self) { return to_python(self.plan.text()); }, nb::sig("def text(self, /) -> str"),
            "The differences as lines of text.")
        .def(
            "tensors", [](const Plan& self) { return self.tensors(self.plan.tensors()); },
            nb::sig("def tensors(self) -> list[LazyTensor]"),
            "Returns the tensors to load, under the names of the model. Raises SafemapError, code `model_mismatch`, "
            "unless ok.")
        .def(
            "require", [](const Plan& self) { self.plan.require(); },
            "Raises SafemapError, code `model_mismatch`, unless ok.")
        .def("__bool__", [](const Plan& self) { return self.plan.ok(); })
        .def("__repr__", &Plan::description);
    module.def("plan", make_plan, nb::arg("checkpoint").none(), nb::arg("model").none(), nb::kw_only(),
               nb::arg("fill") = "error", nb::arg("ignore_unexpected") = false, nb::arg("patterns") = nb::none(),
               nb::sig("def plan(checkpoint: typing.Any, model: typing.Any, *, fill: str = \"error\", "
                       "ignore_unexpected: bool = False, "
                       "patterns: str | collections.abc.Iterable[str] | None = None) -> LoadPlan"),
               R"doc(Compares a checkpoint with the tensors that a model expects. Reads no tensor.

`checkpoint` is what safemap.save() takes. `model` is a module of torch, which may be on the device meta, a state dict,
a dict of names and (dtype, shape), a Checkpoint, or the path of one or of JSON. `fill` says what missing tensors
become: "error", "none" (the model keeps its own), "zeros" or "nan".

Example:
    plan = safemap.plan("model.pt", model, fill="none", ignore_unexpected=True)
    print(plan.text)
    model.load_state_dict({t.name: t.torch() for t in plan.tensors()}, strict=False, assign=True))doc");
}

}  // namespace safemap::python
