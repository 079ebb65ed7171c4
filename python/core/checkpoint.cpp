// safemap.Checkpoint and safemap.open().
#include "core.hpp"

#include <safemap/advanced/names.hpp>

#include <string>
#include <utility>

namespace safemap::python {
namespace {

bool is_list(nb::handle value) { return PyList_Check(value.ptr()) || PyTuple_Check(value.ptr()); }

Checkpoint open_list(nb::handle list, const OpenOptions& options) {
    std::vector<std::filesystem::path> paths;
    std::vector<std::shared_ptr<const Source>> sources;
    for (const nb::handle one : nb::iter(list)) {
        if (is_path(one)) paths.push_back(path_from(one));
        else if (auto source = source_from(one)) sources.push_back(std::move(source));
        else wrong_type("paths, bytes or file objects in the list", one);
    }
    if (!paths.empty() && !sources.empty())
        wrong_type("a list of paths alone, or of bytes and file objects alone", list);
    std::optional<Checkpoint> opened;
    interruptible([&](const std::stop_token& stop) {
        OpenOptions with_stop = options;
        with_stop.work.monitor.stop = stop;
        if (sources.empty()) opened = Checkpoint::open(paths, with_stop);
        else opened = Checkpoint::open(sources, with_stop);
    });
    return *opened;
}

OpenOptions options_from(const nb::kwargs& keywords) {
    OpenOptions options;
    options.access = Access::private_copy;
    for (const auto& [key, value] : keywords) {
        const std::string option = text_from(key, "an option");
        if (!set_open_option(options, option, value)) unknown_option("open", option);
    }
    return options;
}

/// Returns the tuple that opens the checkpoint again: paths are absolute, because a worker may be elsewhere.
nb::object origin_of(nb::handle path, const nb::kwargs& keywords) {
    return nb::module_::import_("safemap._origin").attr("of_path")(path, keywords);
}

Handle open(nb::handle path, const nb::kwargs& keywords) {
    const OpenOptions options = options_from(keywords);
    Handle handle{open_any(path, options), nb::none(), options.access == Access::private_copy};
    const bool paths = is_list(path) ? nb::len(path) > 0 && is_path(path[0]) : is_path(path);
    if (paths) handle.origin = origin_of(path, keywords);
    return handle;
}

Handle of(const nb::object& tensors, const nb::object& metadata) {
    if (!metadata.is_none()) return {checkpoint_of(tensors, texts_from(metadata)), nb::none()};
    const bool module = nb::hasattr(tensors, "state_dict") && !PyType_Check(tensors.ptr());
    return {checkpoint_of_objects(module ? tensors.attr("state_dict")() : tensors), nb::none()};
}

/// Returns a checkpoint made of another one by a method, which its origin names.
Handle derived(const Handle& from, Checkpoint checkpoint, const char* method, nb::object argument) {
    nb::object origin = nb::none();
    if (!from.origin.is_none()) origin = nb::make_tuple(method, from.origin, std::move(argument));
    return {std::move(checkpoint), std::move(origin), from.copies_read_only};
}

Handle selected(const Handle& self, const nb::object& selection) {
    return derived(self, self.get().select(selection_from(selection)), "select", selection);
}

Handle below(const Handle& self, const nb::object& path) {
    return derived(self, self.get().below(text_from(path, "a path")), "below", path);
}

Handle renamed(const Handle& self, const nb::object& function) {
    if (function.is_none()) wrong_type("a function from name to name", function);
    const Checkpoint before = self.get();
    Checkpoint checkpoint = before.renamed(renaming_from(function));
    return derived(self, std::move(checkpoint), "renamed", function);
}

Handle stored_as(const Handle& self, nb::handle names) {
    std::vector<std::string> chosen;
    if (!names.is_none()) chosen = texts_of(names, "names");
    return derived(self, self.get().stored_as(chosen), "stored_as", to_python(chosen));
}

nb::object extras(const Handle& self) {
    const Checkpoint checkpoint = self.get();
    const Extras found = without_gil([&] { return checkpoint.extras(); });
    nb::dict files;
    for (const ExtraFile& one : found.files) files[to_python(one.name)] = to_python(one.source->name());
    return record("Extras", files, to_python(found.notes));
}

nb::object optimizer(const Handle& self) {
    const Checkpoint checkpoint = self.get();
    std::optional<Checkpoint> found;
    interruptible([&](const std::stop_token&) { found = checkpoint.optimizer(); });
    if (!found) return nb::none();
    return nb::cast(derived(self, std::move(*found), "optimizer", nb::none()));
}

Tensor item(const Handle& self, nb::handle name) {
    if (!PyUnicode_Check(name.ptr())) wrong_type("a name", name);
    const std::string text = text_from(name, "a name");
    const LazyTensor* const found = self.get().find(text);
    return self.tensor(found != nullptr ? *found : self.get()[text]);
}

bool contains(const Handle& self, nb::handle name) {
    return PyUnicode_Check(name.ptr()) && self.get().find(text_from(name, "a name")) != nullptr;
}

nb::object get(const Handle& self, nb::handle name, const nb::object& otherwise) {
    return contains(self, name) ? nb::cast(item(self, name)) : otherwise;
}

nb::list keys(const Handle& self) {
    const Checkpoint checkpoint = self.get();
    nb::list names;
    for (const NamedTensor& one : all_names(checkpoint)) names.append(to_python(one.name));
    return names;
}

nb::list values(const Handle& self) {
    const Checkpoint checkpoint = self.get();
    nb::list tensors;
    for (const NamedTensor& one : all_names(checkpoint))
        tensors.append(nb::cast(self.tensor(checkpoint.tensor(one.tensor))));
    return tensors;
}

nb::list items(const Handle& self) {
    const Checkpoint checkpoint = self.get();
    nb::list pairs;
    for (const NamedTensor& one : all_names(checkpoint))
        pairs.append(nb::make_tuple(to_python(one.name), self.tensor(checkpoint.tensor(one.tensor))));
    return pairs;
}

std::size_t count(const Handle& self) {
    const Checkpoint checkpoint = self.get();
    std::size_t names = checkpoint.size();
    for (const AliasGroup& group : checkpoint.aliases()) names += group.size() - 1;
    return names;
}

nb::dict metadata(const Handle& self) {
    const Checkpoint checkpoint = self.get();
    nb::dict pairs;
    for (const auto& [key, value] : checkpoint.metadata()) pairs[to_python(key)] = to_python(value);
    return pairs;
}

nb::object numbers(const std::vector<std::uint64_t>& values) {
    return to_python(Shape(std::span<const std::uint64_t>(values)));
}

nb::object layout(const Handle& self) {
    const std::optional<TrainingLayout> found = self.get().layout();  // a copy
    if (!found) return nb::none();
    return record("Layout", to_python(found->kind), to_python(found->stage), to_python(found->world_size),
                  to_python(found->tag), to_python(found->version), to_python(found->dtype),
                  to_python(found->optimizer), numbers(found->mesh), to_python(found->mesh_names),
                  to_python(found->chunks));
}

nb::object training(const Handle& self) {
    const Checkpoint checkpoint = self.get();
    TrainingState state;
    interruptible([&](const std::stop_token&) { state = checkpoint.training(); });
    return record("Training", to_python(state.step), to_python(state.epoch), to_python(state.learning_rate),
                  to_python(state.loss_scale), to_python(state.world_size));
}

nb::object residency(const Handle& self, const nb::object& selection) {
    const Selection selected = selection_from(selection);
    const Checkpoint checkpoint = self.get();
    const Residency found = without_gil([&] { return checkpoint.residency(selected); });
    return record("Residency", found.resident, found.total);
}

void prefetch(const Handle& self, const nb::object& selection, const nb::object& progress, unsigned threads) {
    const Selection selected = selection_from(selection);
    const Work work{.monitor = monitor_for(progress), .threads = threads};
    const Checkpoint checkpoint = self.get();
    without_gil([&] { checkpoint.prefetch(selected, work); });
}

void evict(const Handle& self, const nb::object& selection) {
    const Selection selected = selection_from(selection);
    const Checkpoint checkpoint = self.get();
    without_gil([&] { checkpoint.evict(selected); });
}

nb::object reduced(const Handle& self) {
    if (self.origin.is_none())
        raise(std::move(
            Error(Errc::invalid_argument, "a checkpoint of memory cannot be pickled").with_hint("save it to a file")));
    return nb::make_tuple(nb::module_::import_("safemap._origin").attr("checkpoint"), nb::make_tuple(self.origin));
}

/// Raises an error for bytes that are the path of a file: bytes are contents.
void refuse_path_in_bytes(nb::handle value, const Error& error) {
    std::error_code failed;
    if (!PyBytes_Check(value.ptr()) || !std::filesystem::exists(path_from(value), failed)) return;
    throw Error(error.code(), "the bytes are the path of a file, not its contents")
        .with_hint("give the path as a str: os.fsdecode(path)");
}

nb::list notes(const std::vector<std::string>& sentences) {
    nb::list list;
    for (const std::string& sentence : sentences) list.append(to_python(without_other_doors(sentence)));
    return list;
}

std::string description(const Handle& self) {
    if (!self.checkpoint) return "<safemap.Checkpoint, closed>";
    const Checkpoint checkpoint = self.get();
    return "<safemap.Checkpoint " + std::string(name(checkpoint.format())) + ", " + std::to_string(checkpoint.size()) +
           (checkpoint.size() == 1 ? " tensor, " : " tensors, ") + std::to_string(checkpoint.total_bytes()) + " bytes>";
}

// A function of renamed() may hold the checkpoint that it makes, which keeps the function to be pickled.
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    Py_VISIT(nb::inst_ptr<Handle>(self)->origin.ptr());
    return 0;
}

int clear(PyObject* self) {
    if (!nb::inst_ready(self)) return 0;
    const nb::object origin = std::exchange(nb::inst_ptr<Handle>(self)->origin, nb::none());
    return 0;
}

PyType_Slot handle_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

}  // namespace

Checkpoint open_any(nb::handle path, const OpenOptions& options) {
    if (is_list(path)) return open_list(path, options);
    std::shared_ptr<const Source> source;
    if (!is_path(path)) source = source_from(path);
    if (!is_path(path) && !source) wrong_type("a path, a list of paths, bytes, or a binary file object", path);
    const std::filesystem::path file = source ? std::filesystem::path() : path_from(path);
    std::optional<Checkpoint> opened;
    try {
        interruptible([&](const std::stop_token& stop) {
            OpenOptions with_stop = options;
            with_stop.work.monitor.stop = stop;
            opened = source ? Checkpoint::open(source, with_stop) : Checkpoint::open(file, with_stop);
        });
    } catch (const Error& error) {
        refuse_path_in_bytes(path, error);
        throw;
    }
    return *opened;
}

const Checkpoint& Handle::get() const {
    if (!checkpoint) raise(Error(Errc::invalid_argument, "the checkpoint is closed"));
    return *checkpoint;
}

nb::object to_python(const Finding& finding) {
    return record("Finding", to_python(finding.name), to_python(finding.why), to_python(name(finding.severity)),
                  to_python(finding.record));
}

Tensor Handle::tensor(const LazyTensor& lazy) const { return {lazy, origin, lazy.name(), {}, copies_read_only}; }

void bind_checkpoint(nb::module_& module) {
    module.def(
        "open", open, nb::arg("path").none(), nb::arg("options"),
        nb::sig("def open(path: str | os.PathLike | bytes | typing.BinaryIO | collections.abc.Sequence, *, "
                "root: str | None = None, root_auto: bool = False, ema: bool = False, "
                "access: str = \"private_copy\", policy: str = \"compatible\", strict_globals: bool = False, "
                "weights: str = \"automatic\", deepspeed_compat: bool = False, "
                "manifest: str | os.PathLike = \"\", as_parts: bool = False, stored_names: bool = False, "
                "olmo_names: bool = True, max_header_bytes: int | str = 100_000_000, threads: int = 0) "
                "-> Checkpoint"),
        R"doc(Opens a checkpoint of any format: a file, folder, index, list of shards, bytes, or binary file object.

Reads headers, indexes and pickles, and no tensor. Executes nothing of a pickle.

- root: the part of a nested state dict whose tensors are given, "" for all of it
- root_auto: take the model, by the names that trainers give to it
- ema: averages of weights in the place of the weights
- access: "private_copy" (tensors may be written to, files never change), "mapped" (read-only; a write by torch ends the
  process), "copied" (files are read, never mapped), "automatic" (files of local disks are mapped)
- policy: "compatible" accepts what the package safetensors accepts, "strict", "lenient"
- strict_globals: refuse a pickle that names an unknown class or function
- weights, deepspeed_compat: of a folder of DeepSpeed
- manifest, as_parts: of files of ranks
- threads: for the headers of many files; 0 is one for each processor

Raises SafemapError, and FileNotFoundError for a path that does not exist. Ctrl-C ends it.)doc");
    nb::class_<Handle>(module, "Checkpoint", nb::is_final(),
                       nb::sig("class Checkpoint(collections.abc.Mapping[str, LazyTensor])"),
                       nb::type_slots(handle_slots),
                       R"doc(An open checkpoint: a mapping of names to lazy tensors.

All names are keys, those of tied tensors too. Tensors may outlive it. All threads may use it. It can be pickled if it
was opened from a path: another process opens it again.

Example:
    with safemap.open("model/") as checkpoint:
        weight = checkpoint["model.embed_tokens.weight"].torch())doc")
        .def_static("of", of, nb::arg("tensors").none(), nb::kw_only(), nb::arg("metadata") = nb::none(),
                    nb::sig("def of(tensors: typing.Any, *, "
                            "metadata: collections.abc.Mapping[str, str] | None = None) -> Checkpoint"),
                    R"doc(Returns a checkpoint of tensors in memory: of a dict of tensors of torch or NumPy or of
LazyTensors, of a module, or of what load() and tree() give: dicts, lists, tuples, sets, plain values, tensors and
Parameters, at any depth.

Shares the memory of tensors, which must not change while it is read. Tensors of torch with the same storage, offset,
shape and strides are tied, and objects in several places stay one. A tensor on a GPU is copied to the host when it is
read, block by block. With `metadata`, takes a dict of tensors only.

Raises TypeError for other values, with their path.

Example:
    trained = safemap.Checkpoint.of({"model": model.state_dict(), "step": 3})
    print(safemap.digests(trained).checkpoint))doc")
        .def(
            "__init__",
            [](Handle*, const nb::args&, const nb::kwargs&) {
                throw nb::type_error("a Checkpoint is made by safemap.open(path) or Checkpoint.of(tensors)");
            },
            nb::sig("def __init__(self, *args: object, **options: object) -> None"))
        .def("__getitem__", item, nb::sig("def __getitem__(self, name: str, /) -> LazyTensor"))
        .def("__contains__", contains)
        .def("__len__", count, "Returns the number of names, which counts tied tensors once for each name.")
        .def(
            "__iter__", [](const Handle& self) { return nb::iter(keys(self)); },
            nb::sig("def __iter__(self) -> collections.abc.Iterator[str]"))
        .def("_ipython_key_completions_", keys)
        .def("keys", keys, nb::sig("def keys(self) -> list[str]"))
        .def("values", values, nb::sig("def values(self) -> list[LazyTensor]"))
        .def("items", items, nb::sig("def items(self) -> list[tuple[str, LazyTensor]]"))
        .def("get", get, nb::arg("name"), nb::arg("default") = nb::none(),
             nb::sig("def get(self, name: str, default: typing.Any = None) -> LazyTensor | typing.Any"))
        .def_prop_ro(
            "format", [](Handle self) { return to_python(name(self.get().format())); },
            nb::sig("def format(self, /) -> str"), R"doc("safetensors", "torch", "zero", "dcp" or "fsdp".)doc")
        .def_prop_ro(
            "files", [](Handle self) { return to_python(self.get().files()); },
            nb::sig("def files(self, /) -> list[str]"))
        .def_prop_ro("metadata", metadata, nb::sig("def metadata(self, /) -> dict[str, str]"),
                     "The pairs of `__metadata__`, without the structure document.")
        .def_prop_ro(
            "notes", [](Handle self) { return notes(self.get().notes()); }, nb::sig("def notes(self, /) -> list[str]"),
            "Sentences about what was unusual, or skipped.")
        .def_prop_ro(
            "verdict", [](Handle self) { return to_python(name(self.get().verdict())); },
            nb::sig("def verdict(self, /) -> str"),
            R"doc(What unpickling the files would do: "ok", "needs classes", "unknown" or "runs code".)doc")
        .def_prop_ro(
            "findings", [](Handle self) { return list_of(self.get().findings().listed); },
            nb::sig("def findings(self, /) -> list[safemap._records.Finding]"), "The reasons for the verdict.")
        .def_prop_ro(
            "skipped", [](Handle self) { return list_of(self.get().skipped()); },
            nb::sig("def skipped(self, /) -> list[safemap._records.Skipped]"),
            "Contents that are not among the tensors.")
        .def_prop_ro(
            "ties", [](Handle self) { return list_of(self.get().aliases()); },
            nb::sig("def ties(self, /) -> list[list[str]]"), "The names of each tied tensor, the stored name first.")
        .def_prop_ro(
            "root", [](Handle self) { return to_python(self.get().root()); }, nb::sig("def root(self, /) -> str"),
            "The path of the part that names are relative to.")
        .def_prop_ro(
            "parts", [](Handle self) { return to_python(self.get().parts()); },
            nb::sig("def parts(self, /) -> list[str]"), "Arguments for below().")
        .def_prop_ro("layout", layout, nb::sig("def layout(self, /) -> safemap._records.Layout | None"),
                     "What the folder of a training framework says of the run.")
        .def_prop_ro(
            "total_bytes", [](const Handle& self) { return self.get().total_bytes(); },
            nb::sig("def total_bytes(self, /) -> int"), "The size of all values; a tied tensor counts once.")
        .def("select", selected, nb::arg("patterns"),
             nb::sig("def select(self, patterns: str | list[str]) -> Checkpoint"),
             "Returns a checkpoint of the tensors whose names match one of the patterns of a shell, \"*.attn.*\".")
        .def("renamed", renamed, nb::arg("function"),
             nb::sig("def renamed(self, function: collections.abc.Callable[[str], str]) -> Checkpoint"),
             "Returns a checkpoint of the same tensors under the names that `function` gives.")
        .def("below", below, nb::arg("path"), nb::sig("def below(self, path: str) -> Checkpoint"),
             "Returns a checkpoint of one part of a nested state dict, \"state_dict\"; names are relative to it.")
        .def("stored_as", stored_as, nb::arg("names") = nb::none(),
             nb::sig("def stored_as(self, names: str | collections.abc.Iterable[str] | None = None) -> Checkpoint"),
             R"doc(Returns a checkpoint in which each tied tensor is stored under one of `names`.

A tensor without one of them is stored under the name that the base class of a model loads.)doc")
        .def(
            "extras", extras, nb::sig("def extras(self) -> safemap._records.Extras"),
            R"doc(Lists the small files that belong to the model: configuration, tokenizer, licence. Reads none of them.

Returns a record with the fields files, a dict of names and paths, and notes. save(..., extras=True) copies them.)doc")
        .def("optimizer", optimizer, nb::sig("def optimizer(self) -> Checkpoint | None"),
             "Returns the state of the optimizer, of a training folder or beside the model.")
        .def("training", training, nb::sig("def training(self) -> safemap._records.Training"),
             "Returns how far the training had come.")
        .def("tree", lazy_tree, nb::sig("def tree(self) -> typing.Any"),
             "Returns the nested state dict, with lazy tensors in the place of tensors; else a dict of all tensors.")
        .def("residency", residency, nb::arg("patterns") = nb::none(),
             nb::sig("def residency(self, patterns: str | list[str] | None = None) -> safemap._records.Residency"),
             "Returns how many bytes of the selected tensors are in memory, and of how many that is known.")
        .def("prefetch", prefetch, nb::arg("patterns") = nb::none(), nb::kw_only(), nb::arg("progress") = nb::none(),
             nb::arg("threads") = 0U,
             nb::sig("def prefetch(self, patterns: str | list[str] | None = None, *, progress: object = None, "
                     "threads: int = 0) -> None"),
             "Reads the selected tensors into the page cache, and returns when they are there.")
        .def("evict", evict, nb::arg("patterns") = nb::none(),
             nb::sig("def evict(self, patterns: str | list[str] | None = None) -> None"),
             "Evicts the selected tensors from the page cache.")
        .def(
            "close", [](Handle& self) { self.checkpoint.reset(); }, nb::sig("def close(self) -> None"),
            "Lets go of the files. Tensors of the checkpoint stay valid.")
        .def(
            "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Checkpoint"))
        .def(
            "__exit__", [](Handle& self, const nb::args&) { self.checkpoint.reset(); },
            nb::sig("def __exit__(self, *error: object) -> None"))
        .def(
            "_repr_html_", [](Handle self) { return html_of(self.get()); }, nb::sig("def _repr_html_(self) -> str"))
        .def("__repr__", description)
        .def("__reduce__", reduced);
}

}  // namespace safemap::python
