// The options of safemap.open() and safemap.save(): each has its name in C++.
#include "core.hpp"
#include "parse.hpp"

#include <safemap/advanced/text.hpp>

namespace safemap::python {
namespace {

Access access_from(const std::string& text) {
    if (text == "private_copy") return Access::private_copy;
    if (text == "automatic") return Access::automatic;
    if (text == "mapped") return Access::mapped;
    if (text == "copied") return Access::copied;
    raise(Error(Errc::invalid_argument,
                "access is \"private_copy\", \"mapped\", \"copied\" or \"automatic\", not '" + text + "'"));
}

/// Returns the dtypes of a dict of patterns, in its order: the last one that matches counts.
std::vector<SaveOptions::DtypeOf> dtypes_from(nb::handle mapping) {
    std::vector<SaveOptions::DtypeOf> dtypes;
    for (const nb::handle pair : nb::iter(pairs_of(mapping, "a dict of patterns and dtypes")))
        dtypes.push_back({Selection::glob(text_from(pair[0], "a pattern")), dtype_from(pair[1])});
    return dtypes;
}

void set_dtype(SaveOptions& options, nb::handle value) {
    if (value.is_none()) options.dtype.reset();
    else if (PyDict_Check(value.ptr())) options.dtype_of = dtypes_from(value);
    else options.dtype = dtype_from(value);
}

std::map<std::string, Checkpoint> folders_from(nb::handle mapping) {
    std::map<std::string, Checkpoint> folders;
    for (const nb::handle pair : nb::iter(pairs_of(mapping, "a dict of checkpoints")))
        folders.insert_or_assign(text_from(pair[0], "the name of a folder"), checkpoint_from(pair[1]));
    return folders;
}

std::function<void(const SaveReport&)> plan_hook(nb::handle function) {
    if (!PyCallable_Check(function.ptr())) wrong_type("a callable for on_plan", function);
    return [kept = std::make_shared<Kept>(nb::borrow(function))](const SaveReport& plan) {
        const GilAcquire acquired;
        kept->get()(to_python(plan));
    };
}

bool set_contents(SaveOptions& options, const std::string& key, nb::handle value) {
    const auto text = [&] { return text_from(value, key.c_str()); };
    const auto flag = [&] { return flag_from(value, key.c_str()); };
    const auto count = [&] { return count_from(value, key.c_str()); };
    if (key == "one_file") options.one_file = flag();
    else if (key == "dtype") set_dtype(options, value);
    else if (key == "dtype_of") options.dtype_of = dtypes_from(value);
    else if (key == "keep_dtype" && value.is_none()) options.keep_dtype.reset();
    else if (key == "keep_dtype") options.keep_dtype = selection_from(value);
    else if (key == "optimizer_dtype" && value.is_none()) options.optimizer_dtype.reset();
    else if (key == "optimizer_dtype") options.optimizer_dtype = dtype_from(value);
    else if (key == "stem") options.stem = text();
    else if (key == "apply_scales") options.apply_scales = flag();
    else if (key == "max_shard_size") options.max_shard_size = size_from(value);
    else if (key == "max_header_bytes") options.max_header_bytes = size_from(value);
    else if (key == "metadata" && value.is_none()) options.metadata.clear();
    else if (key == "metadata") options.metadata = texts_from(value);
    else if (key == "exact_metadata") options.exact_metadata = flag();
    else if (key == "empty_metadata") options.empty_metadata = flag();
    else if (key == "alignment") options.alignment = count();
    else if (key == "align_tensors") options.align_tensors = flag();
    else if (key == "strategy") options.strategy = cli::parse_strategy(text());
    else if (key == "index_style") options.index_style = cli::parse_index_style(text());
    else if (key == "structure" && text() == "automatic") options.structure = StructurePolicy::automatic;
    else if (key == "structure") options.structure = cli::parse_structure(text());
    else if (key == "untie") options.untie = flag();
    else if (key == "checksums") options.checksums = flag();
    else if (key == "folders") options.folders = folders_from(value);
    else if (key == "ranks") options.ranks = count();
    else if (key == "rank_dimension") options.rank_dimension = count();
    else return false;
    return true;
}

}  // namespace

void unknown_option(const char* function, const std::string& key) {
    const nb::object text =
        nb::module_::import_("safemap._errors").attr("unknown_option")(function, to_python(printable(key, 200)));
    throw nb::type_error(text_from(text, "a text").c_str());
}

bool flag_from(nb::handle value, const char* what) {
    if (!PyBool_Check(value.ptr())) wrong_type((std::string("a bool for ") + what).c_str(), value);
    return value.is(nb::handle(Py_True));
}

double real_from(nb::handle value, const char* what) {
    if (PyBool_Check(value.ptr()) || (!PyFloat_Check(value.ptr()) && !PyLong_Check(value.ptr())))
        wrong_type((std::string("a number for ") + what).c_str(), value);
    const double number = PyFloat_AsDouble(value.ptr());
    if (number == -1 && PyErr_Occurred()) throw nb::python_error();
    return number;
}

bool set_open_option(OpenOptions& options, const std::string& key, nb::handle value) {
    const auto text = [&] { return text_from(value, key.c_str()); };
    const auto flag = [&] { return flag_from(value, key.c_str()); };
    if (key == "policy") options.policy = cli::parse_policy(text());
    else if (key == "access") options.access = access_from(text());
    else if (key == "max_header_bytes") options.max_header_bytes = size_from(value);
    else if (key == "strict_globals") options.strict_globals = flag();
    else if (key == "olmo_names") options.olmo_names = flag();
    else if (key == "weights")
        options.weights = text() == "automatic" ? Weights::automatic : cli::parse_weights(text());
    else if (key == "deepspeed_compat") options.deepspeed_compat = flag();
    else if (key == "manifest") options.manifest = path_from(value);
    else if (key == "as_parts") options.as_parts = flag();
    else if (key == "root" && value.is_none()) options.root.reset();
    else if (key == "root") options.root = text();
    else if (key == "root_auto") options.root_auto = flag();
    else if (key == "stored_names") options.stored_names = flag();
    else if (key == "ema") options.ema = flag();
    else if (key == "threads") options.work.threads = count_from(value, "threads");
    else return false;
    return true;
}

bool set_save_option(SaveOptions& options, const std::string& key, nb::handle value) {
    const auto flag = [&] { return flag_from(value, key.c_str()); };
    if (key == "overwrite") options.overwrite = flag();
    else if (key == "resume") options.resume = flag();
    else if (key == "durable") options.durable = flag();
    else if (key == "drop_cache") options.drop_cache = flag();
    else if (key == "plan_only") options.plan_only = flag();
    else if (key == "allow_empty") options.allow_empty = flag();
    else if (key == "on_plan" && value.is_none()) options.on_plan = nullptr;
    else if (key == "on_plan") options.on_plan = plan_hook(value);
    else if (key == "extras" && value.is(nb::handle(Py_False))) options.extras = {};
    else if (key == "extras") options.extras = checkpoint_from(value).extras();
    else if (key == "progress") options.work.monitor = monitor_for(nb::borrow(value));
    else if (key == "threads") options.work.threads = count_from(value, "threads");
    else return set_contents(options, key, value);
    return true;
}

}  // namespace safemap::python
