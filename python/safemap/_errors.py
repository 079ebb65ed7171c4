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


def exception_for(code, text, message, path, tensor, hint, exit_code) -> SafemapError:
    """Returns the exception for an error of the library."""
    error = _class_for(code)(text)
    error.code, error._text, error.message = code, text, message
    error.path, error.tensor, error.hint, error.exit_code = path, tensor, hint, exit_code
    return error
