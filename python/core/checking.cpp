// Functions that compare, check and change checkpoints: diff, digests, verify, examine, scan, edit, repair.
#include "core.hpp"
#include "parse.hpp"

#include <safemap/advanced/edit.hpp>
#include <safemap/advanced/names.hpp>

namespace safemap::python {
namespace {

// diff()

nb::object to_python(const TensorDifference::Side& side) {
    return record("Side", python::to_python(name(side.dtype)), python::to_python(side.shape),
                  python::to_python(side.value));
}

nb::object to_python(const TensorDifference& one) {
    return record("Difference", python::to_python(one.name), python::to_python(name(one.what)), to_python(one.a),
                  to_python(one.b),
                  one.what == TensorDifference::What::value ? python::to_python(one.index) : nb::none(),
                  python::to_python(one.max_abs));
}

nb::object to_python(const CloseTensor& one) { return record("Close", python::to_python(one.name), one.max_abs); }

template <class T> nb::list listed(const std::vector<T>& values) {
    nb::list list;
    for (const T& value : values) list.append(to_python(value));
    return list;
}

nb::object diff_of(nb::handle a, nb::handle b, nb::handle atol, nb::handle rtol, bool cast, nb::handle patterns,
                   nb::handle rename, nb::object progress, unsigned threads) {
    DiffOptions options{.selection = selection_from(patterns), .cast = cast, .rename = renaming_from(rename)};
    options.work = {.monitor = monitor_for(std::move(progress)), .threads = threads};
    if (!atol.is_none() || !rtol.is_none())
        options.tolerance = Tolerance{.atol = atol.is_none() ? 0 : real_from(atol, "atol"),
                                      .rtol = rtol.is_none() ? 0 : real_from(rtol, "rtol")};
    const Checkpoint left = checkpoint_from(a);
    const Checkpoint right = checkpoint_from(b);
    const DiffReport report = without_gil([&] { return diff(left, right, options); });
    return record("DiffReport", python::to_python(report.only_in_a), python::to_python(report.only_in_b),
                  listed(report.different), listed(report.close), python::to_python(report.notes), report.tensors,
                  report.bytes);
}

// digests()

nb::object digests_of(nb::handle checkpoint, const std::string& algorithm, nb::handle patterns, nb::object progress,
                      unsigned threads) {
    const DigestOptions options{.algorithm = cli::parse_digest_algorithm(algorithm),
                                .selection = selection_from(patterns),
                                .work = {.monitor = monitor_for(std::move(progress)), .threads = threads}};
    const Checkpoint hashed = checkpoint_from(checkpoint);
    const CheckpointDigests found = without_gil([&] { return digests(hashed, options); });
    nb::dict tensors;
    for (const TensorDigest& one : found.tensors) tensors[python::to_python(one.name)] = python::to_python(one.digest);
    return record("Digests", python::to_python(name(found.algorithm)), python::to_python(found.checkpoint), tensors,
                  found.bytes);
}

// verify(), examine(), scan()

/// Returns the path that a checkpoint was opened from, or the path itself.
std::filesystem::path place_of(nb::handle value) {
    if (!nb::isinstance<Handle>(value)) return path_from(value);
    const nb::object origin = nb::cast<const Handle&>(value).origin;
    if (!origin.is_none() && origin[0].equal(nb::str("open")) && is_path(origin[1])) return path_from(origin[1]);
    raise(std::move(Error(Errc::invalid_argument, "the checkpoint was not opened from one path")
                        .with_hint("give the path of a file or a folder")));
}

/// Takes the options of open() out of keywords.
OpenOptions open_options(const char* function, const nb::kwargs& keywords) {
    OpenOptions options;
    for (const auto& [key, value] : keywords) {
        const std::string option = text_from(key, "an option");
        if (option != "progress" && !set_open_option(options, option, value)) unknown_option(function, option);
    }
    return options;
}

nb::object progress_of(const nb::kwargs& keywords) {
    return keywords.contains("progress") ? nb::object(keywords["progress"]) : nb::none();
}

nb::object verify_path(nb::handle path, const nb::kwargs& keywords) {
    VerifyOptions options{.open = open_options("verify", keywords)};
    options.work = {.monitor = monitor_for(progress_of(keywords)), .threads = options.open.work.threads};
    const std::filesystem::path place = place_of(path);
    const VerifyReport report = without_gil([&] { return verify(place, options); });
    nb::list faults;
    for (const Error& fault : report.faults) faults.append(exception_of(fault));
    return record("VerifyReport", report.tensors, report.bytes, report.checked_bytes, faults,
                  python::to_python(report.notes), report.asks_for_code, python::to_python(name(report.verdict())),
                  list_of(report.findings.listed));
}

nb::object examine_path(nb::handle path, const nb::kwargs& keywords) {
    if (keywords.contains("progress")) unknown_option("examine", "progress");
    OpenOptions options = open_options("examine", keywords);
    const std::filesystem::path place = place_of(path);
    Findings found;
    interruptible([&](const std::stop_token& stop) {
        options.work.monitor.stop = stop;
        found = examine(place, options);
    });
    return record("Examined", python::to_python(name(found.verdict)), list_of(found.listed), found.not_listed);
}

bool set_scan_option(ScanOptions& options, const std::string& key, nb::handle value) {
    if (key == "includes") options.includes = texts_of(value, "includes");
    else if (key == "excludes") options.excludes = texts_of(value, "excludes");
    else if (key == "hidden") options.hidden = flag_from(value, "hidden");
    else return set_open_option(options.open, key, value);
    return true;
}

nb::object to_python(const ScannedCheckpoint& found, const nb::kwargs& open_keywords) {
    nb::object checkpoint = nb::none();
    const nb::object path = python::to_python(found.path.string());
    if (found.checkpoint) {
        const nb::object origin = nb::module_::import_("safemap._origin").attr("of_path")(path, open_keywords);
        checkpoint = nb::cast(Handle{found.checkpoint, origin});
    }
    nb::list files;
    for (const std::filesystem::path& file : found.files) files.append(python::to_python(file.string()));
    return record("Scanned", path, checkpoint, found.fault ? exception_of(*found.fault) : nb::none(), files,
                  found.file_bytes, python::to_python(name(found.findings.verdict)), list_of(found.findings.listed));
}

nb::object scan_paths(nb::handle paths, const nb::kwargs& keywords) {
    ScanOptions options;
    options.open.access = Access::private_copy;
    nb::kwargs open_keywords;
    for (const auto& [key, value] : keywords) {
        const std::string option = text_from(key, "an option");
        if (!set_scan_option(options, option, value)) unknown_option("scan", option);
        if (option != "includes" && option != "excludes" && option != "hidden") open_keywords[key] = value;
    }
    std::vector<std::filesystem::path> places;
    if (is_path(paths)) places.push_back(path_from(paths));
    else
        for (const nb::handle one : nb::iter(paths)) places.push_back(path_from(one));
    std::vector<ScannedCheckpoint> found;
    std::uint64_t not_opened = 0;
    interruptible([&](const std::stop_token& stop) {
        options.open.work.monitor.stop = stop;
        not_opened = scan(places, options, [&](const ScannedCheckpoint& one) { found.push_back(one); });
    });
    nb::list list;
    for (const ScannedCheckpoint& one : found) list.append(to_python(one, open_keywords));
    return record("ScanReport", list, not_opened);
}

// edit(), repair()

/// Returns the names that a function or dict changes.
std::map<std::string, std::string> renames_of(const std::filesystem::path& file, nb::handle rename,
                                              const OpenOptions& options) {
    std::map<std::string, std::string> renames;
    if (rename.is_none()) return renames;
    if (PyDict_Check(rename.ptr())) return texts_from(rename);
    const auto function = renaming_from(rename);
    OpenOptions open = options;
    open.stored_names = true;
    const Checkpoint model = Checkpoint::open(file, open);
    for (const NamedTensor& named : all_names(model)) {
        std::string after = function(named.name);
        if (after != named.name) renames.emplace(named.name, std::move(after));
    }
    return renames;
}

nb::object edit_file(nb::handle path, nb::handle set, nb::handle unset, nb::handle rename, nb::object progress,
                     const nb::kwargs& keywords) {
    const std::filesystem::path file = place_of(path);
    EditOptions options{.open = open_options("edit", keywords)};
    if (!set.is_none()) options.set = texts_from(set);
    if (!unset.is_none()) options.unset = texts_of(unset, "unset");
    options.rename = renames_of(file, rename, options.open);
    options.work = {.monitor = monitor_for(std::move(progress)), .threads = options.open.work.threads};
    const EditReport report = without_gil([&] { return edit(file, options); });
    nb::dict metadata;
    for (const auto& [key, value] : report.metadata) metadata[python::to_python(key)] = python::to_python(value);
    return record("EditReport", report.changed, report.renamed, metadata, python::to_python(report.notes));
}

nb::object repair_path(nb::handle path, nb::handle out, const nb::kwargs& keywords) {
    SaveOptions options;
    options.work.monitor = monitor_for(nb::none());
    OpenOptions open;
    for (const auto& [key, value] : keywords) {
        const std::string option = text_from(key, "an option");
        const bool saves = set_save_option(options, option, value);
        // The limit of a header and the threads are options of both.
        const bool opens = set_open_option(open, option, value);
        if (!saves && !opens) unknown_option("repair", option);
    }
    const std::filesystem::path from = place_of(path);
    const std::filesystem::path to = path_from(out);
    if (!options.one_file) cli::require_out(to.native());
    const RepairReport report = without_gil([&] { return repair(from, to, options, open); });
    return record("RepairReport", python::to_python(report.repairs), python::to_python(report.saved));
}

constexpr const char* diff_doc =
    R"doc(Compares two checkpoints, whatever their formats, and returns a DiffReport; `.equal` says if they are equal.

`a` and `b` are what safemap.save() takes: a Checkpoint, a path, a dict of tensors, a module. Tensors match by name, and
are equal if their bytes are. With `atol` or `rtol` they are compared as numbers: |a - b| <= atol + rtol * |b|. With
`cast`, tensors of different floating-point dtypes are compared, too. `rename` maps names of `a`: a dict or a function.
`patterns` selects names.

Memory does not grow with the size of a tensor. Ctrl-C ends it.

Example:
    report = safemap.diff("model/", model.state_dict(), atol=1e-6)
    assert report.equal, report.different)doc";

constexpr const char* digests_doc =
    R"doc(Returns the digest of each tensor, and one of them all, which do not depend on format and shards.

`checkpoint` is what safemap.save() takes. The algorithm is "xxh3-128", which detects accidents, or "sha256", for data
of an adversary. The result has the fields algorithm, checkpoint (hex digits), tensors (a dict of names and hex digits)
and bytes.

Example:
    assert safemap.digests("model/").checkpoint == safemap.digests("model.pt").checkpoint)doc";

constexpr const char* verify_doc =
    R"doc(Checks a whole checkpoint, and returns a VerifyReport with every fault; true if it is ok.

Checks headers, indexes and directories, that every byte can be read, the CRC-32 of zip records, and the digests that
save(..., checksums=True) stores. Faults are SafemapErrors in a list. Options are those of safemap.open(), and
`progress`.

Example:
    report = safemap.verify("model/")
    for fault in report.faults:
        print(fault.code, fault))doc";

constexpr const char* examine_doc =
    R"doc(Says what unpickling the files of a path would do, also if they cannot be opened. Executes nothing.

Returns a record with the fields verdict ("ok", "needs classes", "unknown" or "runs code"), findings and
not_listed.)doc";

constexpr const char* scan_doc =
    R"doc(Opens every checkpoint that is one of the paths or below them.

Returns a record with the fields found, a list of records (path, checkpoint, fault, files, file_bytes, verdict,
findings), and not_opened, the number of files that hold no checkpoint. A checkpoint that cannot be opened has its
fault, a SafemapError. `includes` and `excludes` are patterns of files; `hidden` enters hidden folders. Other options
are those of safemap.open().)doc";

constexpr const char* edit_doc =
    R"doc(Changes the metadata and the tensor names of a safetensors file, which is replaced by a new one at once.

`set` adds pairs to the metadata, `unset` removes keys, `rename` changes names of tensors: a dict, or a function of all
names. Returns a record with the fields changed, renamed, metadata and notes.

Example:
    safemap.edit("model.safetensors", set={"license": "mit"}, rename=lambda name: name.removeprefix("module.")))doc";

constexpr const char* repair_doc =
    R"doc(Writes a conforming copy of safetensors that the reference implementation refuses or would not have written.

Options are those of safemap.save() and safemap.open(). Missing bytes and unreadable headers raise, as in open().
Returns a record with the fields repairs, a list of sentences, and saved, a SaveReport.)doc";

}  // namespace

void bind_checking(nb::module_& module) {
    module.def(
        "diff", diff_of, nb::arg("a").none(), nb::arg("b").none(), nb::kw_only(), nb::arg("atol") = nb::none(),
        nb::arg("rtol") = nb::none(), nb::arg("cast") = false, nb::arg("patterns") = nb::none(),
        nb::arg("rename") = nb::none(), nb::arg("progress") = nb::none(), nb::arg("threads") = 0U,
        nb::sig(
            "def diff(a: typing.Any, b: typing.Any, *, atol: float | None = None, rtol: float | None = "
            "None, cast: bool = False, patterns: str | collections.abc.Iterable[str] | None = None, "
            "rename: typing.Any = None, progress: typing.Any = None, threads: int = 0) -> safemap._records.DiffReport"),
        diff_doc);
    module.def("digests", digests_of, nb::arg("checkpoint").none(), nb::kw_only(), nb::arg("algorithm") = "xxh3-128",
               nb::arg("patterns") = nb::none(), nb::arg("progress") = nb::none(), nb::arg("threads") = 0U,
               nb::sig("def digests(checkpoint: typing.Any, *, algorithm: str = \"xxh3-128\", "
                       "patterns: str | collections.abc.Iterable[str] | None = None, progress: typing.Any = None, "
                       "threads: int = 0) -> safemap._records.Digests"),
               digests_doc);
    module.def("verify", verify_path, nb::arg("path").none(), nb::arg("options"),
               nb::sig("def verify(path: str | os.PathLike, *, progress: typing.Any = None, **options: typing.Any) "
                       "-> safemap._records.VerifyReport"),
               verify_doc);
    module.def("examine", examine_path, nb::arg("path").none(), nb::arg("options"),
               nb::sig("def examine(path: str | os.PathLike, **options: typing.Any) -> safemap._records.Examined"),
               examine_doc);
    module.def("scan", scan_paths, nb::arg("paths").none(), nb::arg("options"),
               nb::sig("def scan(paths: str | os.PathLike | collections.abc.Iterable[str | os.PathLike], *, "
                       "includes: collections.abc.Iterable[str] = (), excludes: collections.abc.Iterable[str] = (), "
                       "hidden: bool = False, **options: typing.Any) -> safemap._records.ScanReport"),
               scan_doc);
    module.def("edit", edit_file, nb::arg("path").none(), nb::kw_only(), nb::arg("set") = nb::none(),
               nb::arg("unset") = nb::none(), nb::arg("rename") = nb::none(), nb::arg("progress") = nb::none(),
               nb::arg("options"),
               nb::sig("def edit(path: str | os.PathLike, *, set: collections.abc.Mapping[str, str] | None = None, "
                       "unset: collections.abc.Iterable[str] | None = None, rename: typing.Any = None, "
                       "progress: typing.Any = None, **options: typing.Any) -> safemap._records.EditReport"),
               edit_doc);
    module.def("repair", repair_path, nb::arg("path").none(), nb::arg("out").none(), nb::arg("options"),
               nb::sig("def repair(path: str | os.PathLike, out: str | os.PathLike, *, progress: typing.Any = None, "
                       "**options: typing.Any) -> safemap._records.RepairReport"),
               repair_doc);
}

}  // namespace safemap::python
