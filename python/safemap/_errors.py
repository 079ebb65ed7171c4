"""The exceptions of safemap: SafemapError, and classes of it that are also what Python calls such a fault."""

from __future__ import annotations


class SafemapError(Exception):
    """An error of safemap.

    Where Python has a word for the fault, the exception is of that class too: a file that does not exist is both a
    SafemapError and a FileNotFoundError.

    Attributes:
        code: the kind of fault, "header_too_large"; compare codes, never texts. C++'s safemap::Errc lists them.
        message: what was found and what was expected, without context.
        path: the file concerned, or "".
        tensor: the tensor concerned, or "".
        hint: one sentence that says what to try, or "".
        exit_code: what the command line exits with: 1 the data is wrong, 2 the call is wrong, 3 the system failed,
            130 cancelled.
    """

    code = ""
    message = ""
    path = ""
    tensor = ""
    hint = ""
    exit_code = 1
    _text = ""

    def __str__(self) -> str:
        return f"{self._text}\nhint: {self.hint}" if self.hint else self._text

    def __reduce__(self):
        return exception_for, (self.code, self._text, self.message, self.path, self.tensor, self.hint, self.exit_code)


_builtin_of = {
    "path_not_found": FileNotFoundError,
    "shard_missing": FileNotFoundError,
    "rank_missing": FileNotFoundError,
    "already_exists": FileExistsError,
    "tensor_not_found": KeyError,
    "permission_denied": PermissionError,
    "out_of_memory": MemoryError,
    "no_space": OSError,
    "too_many_open_files": OSError,
    "io_error": OSError,
    "file_changed": OSError,
    "busy": OSError,
    "device_failed": OSError,
    "deadline_passed": TimeoutError,
    "invalid_argument": ValueError,
    "name_collision": ValueError,
    "index_out_of_range": IndexError,
    "too_many_indices": IndexError,
    "no_dlpack": BufferError,
}
_classes: dict[type, type] = {}


def _class_for(code: str) -> type:
    builtin = _builtin_of.get(code)
    if builtin is None:
        return SafemapError
    if builtin not in _classes:
        _classes[builtin] = type("Safemap" + builtin.__name__, (SafemapError, builtin), {"__module__": __name__})
    return _classes[builtin]


# Options of the command line that hints name, and what they are in Python, where the second kind takes a value.
_flags = {
    "allow-empty": "allow_empty",
    "apply-scales": "apply_scales",
    "as-parts": "as_parts",
    "deepspeed-compat": "deepspeed_compat",
    "ema": "ema",
    "force": "overwrite",
    "resume": "resume",
    "strict-globals": "strict_globals",
}
_valued = {
    "dtype": "dtype",
    "dtype-optimizer": "optimizer_dtype",
    "keep-dtype": "keep_dtype",
    "manifest": "manifest",
    "max-header-size": "max_header_bytes",
    "max-shard-size": "max_shard_size",
    "policy": "policy",
    "root": "root",
    "structure": "structure",
    "weights": "weights",
}


def _in_python(hint: str) -> str:
    """Returns a hint of the command line with the options of Python."""
    if "--" not in hint or "safemap " in hint:
        return hint
    import re

    def option(found) -> str:
        flag, value = found.groups()
        if flag in _flags:
            return f"{_flags[flag]}=True" + (f" {value}" if value else "")
        if flag not in _valued or not value:
            return _valued.get(flag, found.group())
        return f"{_valued[flag]}={repr(value) if value[0].islower() else value}"

    of_model = hint.startswith("names of the model")
    renaming = r"renamed(lambda name: '\1' + name)" if of_model else r"renamed(lambda name: name.removeprefix('\1'))"
    hint = re.sub(r"--strip-prefix '?([^\s')]+)'?", renaming, hint)
    hint = re.sub(r" \(\w+Options::\w+\)", "", hint)
    value = r"'[^']*'|[A-Z]+\b|[0-9]+|bf16\b|keep\b|lenient\b|module\b"
    return re.sub(rf"--([a-z][a-z-]*[a-z])(?: ({value}))?", option, hint)


_advice = {
    "map_location": "tensors are on the CPU, and go elsewhere with .to(device)",
    "mmap": "files are mapped, unless access='copied'",
    "pickle_module": "no pickle is run",
    "weights_only": "no pickle is run",
}


def unknown_option(function: str, option: str) -> str:
    """Returns the message of the TypeError for an option that a function does not have."""
    import difflib
    import re

    from . import _core

    text = f"{function}() has no option {option!r}"
    if option in _advice:
        return f"{text}: {_advice[option]}"
    own = _core.ShardWriter.__init__ if function == "ShardWriter" else getattr(_core, function)
    others = {"open": (), "save": (), "ShardWriter": (_core.save,), "repair": (_core.save, _core.open)}
    functions = own, *others.get(function, (_core.open,))
    known = [name for each in functions for name in re.findall(r"(\w+): ", (each.__doc__ or "").partition("\n")[0])]
    near = difflib.get_close_matches(option, known, 1)
    return f"{text}; did you mean {near[0]!r}?" if near else text


def exception_for(code, text, message, path, tensor, hint, exit_code) -> SafemapError:
    """Returns the exception for an error of the library."""
    error = _class_for(code)(text)
    error.code, error._text, error.message = code, text, message
    error.path, error.tensor, error.hint, error.exit_code = path, tensor, _in_python(hint), exit_code
    return error
