// Conversions of arguments and results: text, paths, dtypes, sizes, selections, slices.
#include "core.hpp"
#include "parse.hpp"

#include <limits>

namespace safemap::python {
namespace {

/// Returns the os.PathLike's path, or the value itself.
nb::object file_system_path(nb::handle value) {
    PyObject* const path = PyOS_FSPath(value.ptr());
    if (path == nullptr) throw nb::python_error();
    return nb::steal(path);
}

/// Returns "bfloat16" for "torch.bfloat16".
std::string_view without_module(std::string_view text) {
    constexpr std::string_view torch = "torch.";
    return text.starts_with(torch) ? text.substr(torch.size()) : text;
}

/// Returns the name of what numpy.dtype() makes of the value; empty if it refuses.
std::string numpy_name(nb::handle value) {
    try {
        return nb::cast<std::string>(nb::module_::import_("numpy").attr("dtype")(value).attr("name"));
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ImportError)) throw;
        return {};
    }
}

std::int64_t index_from(nb::handle value) {
    const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
    if (!index.is_valid()) throw nb::python_error();
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0)
        return overflow < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
    return number;
}

std::optional<std::int64_t> bound_from(nb::handle value) {
    if (value.is_none()) return std::nullopt;
    return index_from(value);
}

Slice slice_from(nb::handle key) {
    if (key.is(nb::handle(Py_Ellipsis))) return Slice::ellipsis();
    if (PySlice_Check(key.ptr())) {
        const std::optional<std::int64_t> step = bound_from(key.attr("step"));
        return {.start = bound_from(key.attr("start")), .stop = bound_from(key.attr("stop")), .step = step.value_or(1)};
    }
    if (PyBool_Check(key.ptr()) || !PyIndex_Check(key.ptr()))
        wrong_type("integers, slices and ... as indices (index .torch() or .numpy() with others)", key);
    return Slice::at(index_from(key));
}

}  // namespace

nb::object to_python(std::string_view text) {
    PyObject* const object = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
    if (object == nullptr) throw nb::python_error();
    return nb::steal(object);
}

std::string without_other_doors(std::string sentence) {
    for (const std::string_view words : {"Checkpoint::", ", --optimizer converts it"}) {
        const std::size_t at = sentence.find(words);
        if (at != std::string::npos) sentence.erase(at, words.size());
    }
    return sentence;
}

nb::object to_python(const std::vector<std::string>& texts) {
    nb::list list;
    for (const std::string& text : texts) list.append(to_python(text));
    return list;
}

nb::object to_python(const Shape& shape) {
    const nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
    for (std::size_t i = 0; i < shape.size(); ++i)
        NB_TUPLE_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromUnsignedLongLong(shape[i]));
    return tuple;
}

std::string text_from(nb::handle value, const char* what) {
    if (!PyUnicode_Check(value.ptr())) wrong_type((std::string("a str for ") + what).c_str(), value);
    Py_ssize_t size = 0;
    if (const char* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &size))
        return {text, static_cast<std::size_t>(size)};
    PyErr_Clear();
    const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(value.ptr(), "utf-8", "surrogateescape"));
    if (!bytes.is_valid()) throw nb::python_error();
    return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

std::map<std::string, std::string> texts_from(nb::handle mapping) {
    std::map<std::string, std::string> texts;
    for (const nb::handle pair : nb::iter(pairs_of(mapping, "a dict of texts")))
        texts.insert_or_assign(text_from(pair[0], "a key"), text_from(pair[1], "a value"));
    return texts;
}

std::vector<std::string> texts_of(nb::handle value, const char* what) {
    if (PyUnicode_Check(value.ptr())) return {text_from(value, what)};
    if (!nb::hasattr(value, "__iter__")) wrong_type((std::string("a list of texts for ") + what).c_str(), value);
    std::vector<std::string> texts;
    for (const nb::handle one : nb::iter(value)) texts.push_back(text_from(one, what));
    return texts;
}

nb::object pairs_of(nb::handle mapping, const char* wanted) {
    if (!nb::hasattr(mapping, "items") || PyType_Check(mapping.ptr())) wrong_type(wanted, mapping);
    return mapping.attr("items")();
}

bool is_path(nb::handle value) { return PyUnicode_Check(value.ptr()) || nb::hasattr(value, "__fspath__"); }

std::filesystem::path path_from(nb::handle value) {
    const nb::object path = file_system_path(value);
    if (PyBytes_Check(path.ptr()))
        return std::string(PyBytes_AsString(path.ptr()), static_cast<std::size_t>(PyBytes_Size(path.ptr())));
    return text_from(path, "a path");
}

Dtype dtype_from(nb::handle value) {
    if (PyUnicode_Check(value.ptr())) return cli::parse_dtype_name(without_module(text_from(value, "a dtype")));
    const std::string text = nb::cast<std::string>(nb::str(value));
    if (const std::optional<Dtype> dtype = parse_dtype(without_module(text))) return *dtype;
    const std::string name = value.is_none() ? "" : numpy_name(value);  // NumPy takes None for float64
    if (name == "bool") return Dtype::boolean;
    if (const std::optional<Dtype> dtype = parse_dtype(name)) return *dtype;
    wrong_type("a dtype such as \"bf16\", torch.bfloat16 or numpy.float16", value);
}

std::uint64_t size_from(nb::handle value) {
    if (PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr())) {
        const unsigned long long number = PyLong_AsUnsignedLongLong(value.ptr());
        if (PyErr_Occurred()) throw nb::python_error();
        return number;
    }
    if (!PyUnicode_Check(value.ptr())) wrong_type("a size: an int, or a text such as \"5GB\"", value);
    return cli::parse_size(text_from(value, "a size"));
}

unsigned count_from(nb::handle value, const char* what) {
    if (!PyLong_Check(value.ptr()) || PyBool_Check(value.ptr()))
        wrong_type((std::string("an int for ") + what).c_str(), value);
    const long long number = index_from(value);
    if (number >= 0 && number <= std::numeric_limits<unsigned>::max()) return static_cast<unsigned>(number);
    raise(Error(Errc::invalid_argument, std::string(what) + " is " + std::to_string(number) + "; expected 0 or more"));
}

Shape shape_from(nb::handle value, const char* what) {
    if (PyUnicode_Check(value.ptr()) || PyBytes_Check(value.ptr()) || !nb::hasattr(value, "__iter__"))
        wrong_type((std::string("a list of ints for ") + what).c_str(), value);
    Shape shape;
    for (const nb::handle one : nb::iter(value)) {
        if (!PyIndex_Check(one.ptr())) wrong_type((std::string("ints in ") + what).c_str(), one);
        const std::int64_t number = index_from(one);
        if (number < 0)
            raise(Error(Errc::invalid_argument,
                        std::string(what) + " has the number " + std::to_string(number) + "; expected 0 or more"));
        shape.push_back(static_cast<std::uint64_t>(number));
    }
    return shape;
}

Selection selection_from(nb::handle value) {
    if (value.is_none()) return {};
    if (PyUnicode_Check(value.ptr())) return Selection::glob(text_from(value, "a pattern"));
    if (PyBytes_Check(value.ptr()) || !nb::hasattr(value, "__iter__"))
        wrong_type("a pattern or a list of patterns", value);
    // No pattern selects nothing, as an empty list does everywhere in Python.
    Selection selection = Selection::names({});
    bool first = true;
    for (const nb::handle pattern : nb::iter(value)) {
        std::string text = text_from(pattern, "a pattern");
        if (std::exchange(first, false)) selection = Selection::glob(std::move(text));
        else selection.include(std::move(text));
    }
    return selection;
}

std::function<std::string(std::string_view)> renaming_from(nb::handle value) {
    if (value.is_none()) return {};
    if (!PyDict_Check(value.ptr()) && !PyCallable_Check(value.ptr()))
        wrong_type("a dict of names, or a function from name to name", value);
    return [kept = std::make_shared<Kept>(nb::borrow(value))](std::string_view name) {
        const GilAcquire acquired;
        const nb::object before = to_python(name);
        if (!PyDict_Check(kept->get().ptr())) return text_from(kept->get()(before), "the new name");
        return text_from(kept->get().attr("get")(before, before), "the new name");
    };
}

std::vector<Slice> slices_from(nb::handle key) {
    std::vector<Slice> slices;
    if (!PyTuple_Check(key.ptr())) {
        slices.push_back(slice_from(key));
        return slices;
    }
    for (const nb::handle one : nb::borrow<nb::tuple>(key)) slices.push_back(slice_from(one));
    return slices;
}

}  // namespace safemap::python
