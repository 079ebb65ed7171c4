// safemap.save(): a checkpoint or a dict of tensors to a path or a file object.
#include "core.hpp"
#include "parse.hpp"

#include <safemap/advanced/text.hpp>

namespace safemap::python {
namespace {

nb::object to_python(const SaveReport::Count& count) { return record("SaveCount", count.tensors, count.bytes); }
nb::object to_python(const SaveReport::File& file) { return record("SaveFile", file.tensors, file.bytes); }
nb::object to_python(const SaveReport::Unsupported& one) {
    return record("Unsupported", python::to_python(name(one.dtype)), one.tensors);
}
nb::object to_python(const SaveReport::Cast& cast) {
    return record("Cast", python::to_python(name(cast.from)), python::to_python(name(cast.to)), cast.tensors,
                  cast.values, cast.overflowed, cast.non_finite);
}
nb::object to_python(const SaveReport::Reading& reading) {
    return record("SaveReading", to_python(reading.copied), to_python(reading.gathered), to_python(reading.scaled),
                  to_python(reading.views), reading.unreferenced_bytes);
}

template <class T> nb::list records_of(const std::vector<T>& values) {
    nb::list list;
    for (const T& value : values) list.append(to_python(value));
    return list;
}

nb::object to_python(const SaveReport::Layout& layout) {
    return record("SaveLayout", records_of(layout.files), layout.unaligned_tensors, layout.buffer_bytes);
}

SaveOptions save_options(const nb::kwargs& keywords, const Checkpoint& saved) {
    SaveOptions options;
    options.work.monitor = monitor_for(nb::none());
    for (const auto& [key, value] : keywords) {
        const std::string option = text_from(key, "an option");
        if (option == "extras" && value.is(nb::handle(Py_True))) options.extras = saved.extras();
        else if (!set_save_option(options, option, value)) unknown_option("save", option);
    }
    // PEFT finds an adapter under no other name.
    if (!options.extras.files.empty() && !keywords.contains("stem")) options.stem = saved.stem();
    return options;
}

bool is_file_object(nb::handle value) { return nb::hasattr(value, "write"); }

nb::object save(nb::handle out, nb::handle tensors, const nb::kwargs& keywords) {
    if (!is_path(out) && !is_file_object(out)) wrong_type("a path or a binary file object to write to", out);
    const Checkpoint checkpoint = checkpoint_from(tensors);
    const SaveOptions options = save_options(keywords, checkpoint);
    if (!is_path(out)) return python::to_python(save_to_file(out, checkpoint, options));
    const std::filesystem::path path = path_from(out);
    if (!options.one_file) cli::require_out(path.native());
    return python::to_python(without_gil([&] { return safemap::save(path, checkpoint, options); }));
}

}  // namespace

nb::object to_python(const SkippedObject& skipped) {
    return record("Skipped", to_python(skipped.name), to_python(skipped.type),
                  to_python(without_other_doors(skipped.why)), skipped.quantized);
}

nb::object to_python(const SaveReport& report) {
    return record("SaveReport", to_python(report.files), report.tensors, report.bytes_read, report.bytes_written,
                  to_python(report.notes), to_python(report.resumed), to_python(report.extras), list_of(report.skipped),
                  records_of(report.unsupported), records_of(report.casts), to_python(report.reading),
                  to_python(report.layout));
}

void bind_saving(nb::module_& module) {
    module.def(
        "save", save, nb::arg("out").none(), nb::arg("tensors").none(), nb::arg("options"),
        nb::sig("def save(out: str | os.PathLike | typing.BinaryIO, tensors: typing.Any, *, "
                "dtype: typing.Any = None, dtype_of: collections.abc.Mapping[str, typing.Any] = {}, "
                "keep_dtype: str | collections.abc.Iterable[str] | None = None, "
                "optimizer_dtype: typing.Any = None, apply_scales: bool = False, one_file: bool = False, "
                "stem: str = \"model\", max_shard_size: int | str = \"5GB\", "
                "max_header_bytes: int | str = 100_000_000, "
                "metadata: collections.abc.Mapping[str, str] | None = None, exact_metadata: bool = False, "
                "empty_metadata: bool = False, alignment: int = 8, align_tensors: bool = False, "
                "strategy: str = \"greedy\", index_style: str = \"hub\", structure: str = \"automatic\", "
                "untie: bool = False, checksums: bool = False, extras: typing.Any = False, "
                "folders: collections.abc.Mapping[str, typing.Any] = {}, ranks: int = 0, rank_dimension: int = 0, "
                "overwrite: bool = False, resume: bool = False, durable: bool = True, drop_cache: bool = False, "
                "plan_only: bool = False, allow_empty: bool = True, "
                "on_plan: collections.abc.Callable[[safemap._records.SaveReport], object] | None = None, "
                "progress: typing.Any = None, threads: int = 0) -> safemap._records.SaveReport"),
        R"doc(Saves tensors as safetensors, all or nothing, and returns a report.

`tensors` is a Checkpoint, a path that safemap.open() takes, a dict of tensors of torch or NumPy (a state dict), a list
of LazyTensors, or a module of torch. Tied tensors are stored once, with their other names in the metadata; `untie=True`
stores each.

`out` is one file if it ends in .safetensors or .sft, else a folder of shards with an index, as huggingface_hub names
them. Until all is written, it holds what it held before. It may be a binary file object, which gets one file from its
position on; the file object is written by several threads, one at a time.

Options are those of SaveOptions in C++. The most used ones:

- dtype: "bf16", torch.float16, ...: casts floating-point tensors; or a dict of patterns and dtypes
- max_shard_size: bytes, or a text such as "5GB"
- checksums: stores a digest of each tensor, which verify() checks
- extras: True copies the configuration, tokenizer and licence beside the checkpoint; another checkpoint copies its own
- folders: other checkpoints to save in the same commit, such as {"optimizer": optimizer.state_dict()}
- overwrite: replaces what is at `out`
- durable: False returns before the bytes are on the disk
- progress: True shows a bar (tqdm, where it is installed); a callable (stage, done, total) cancels by returning False

Raises SafemapError: FileExistsError if `out` exists, code `cancelled`, and so on; then nothing is left. Ctrl-C ends it
in the same way.

Example:
    safemap.save("out/", model.state_dict(), dtype="bf16", max_shard_size="2GB"))doc");
}

}  // namespace safemap::python
