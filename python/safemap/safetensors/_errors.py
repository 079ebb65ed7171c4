"""The exceptions of safetensors for the errors of safemap, and arguments that have messages of their own."""

from __future__ import annotations

# The words of the reference for a fault. Messages begin with them, and go on with what safemap found.
_phrases = {
    "header_too_short": "header too small",
    "header_too_large": "header too large",
    "header_past_end": "invalid header length",
    "header_not_utf8": "invalid UTF-8 in header",
    "header_not_json": "invalid JSON in header",
    "header_bad_field": "invalid JSON in header",
    "header_bad_metadata": "invalid JSON in header",
    "unknown_dtype": "invalid JSON in header",
    "offsets_reversed": "invalid offset for tensor `{tensor}`",
    "offsets_overlap": "invalid offset for tensor `{tensor}`",
    "offsets_leave_gap": "invalid offset for tensor `{tensor}`",
    "size_mismatch": "invalid shape, data type, or offset for tensor",
    "partial_byte": "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte boundary, "
    "this is invalid.",
    "shape_overflow": "overflow computing buffer size from shape and/or element type",
    "trailing_bytes": "incomplete metadata, file not fully covered",
    "file_truncated": "incomplete metadata, file not fully covered",
}
_of_system = {"permission_denied", "no_space", "too_many_open_files", "io_error", "path_not_found", "already_exists"}
_devices = ("cuda", "musa", "mps", "npu", "xpu", "xla", "mlu", "hpu")


class SafetensorError(Exception):
    """An error of a safetensors file, or of a call that reads or writes one."""

    __module__ = __package__


def exception_for(operation: str, code: str, text: str, path: str, tensor: str) -> Exception:
    """Returns the exception for an error of the library."""
    opening = operation == "Error while deserializing header"
    if code == "out_of_memory":
        return MemoryError(text)
    if opening and code == "path_not_found":
        return FileNotFoundError(f"No such file or directory: {path}")
    if opening and code == "permission_denied":
        return PermissionError(text)
    if opening and (code in _of_system or code == "invalid_argument"):
        return OSError(text)
    phrase = "I/O error" if code in _of_system else _phrases.get(code, "").format(tensor=tensor)
    return SafetensorError(": ".join(part for part in (operation, phrase, text) if part))


def device_from(device) -> str | int:
    """Returns the device as torch takes it: "cuda" becomes "cuda:0". Raises SafetensorError for any other name."""
    if not isinstance(device, str):
        try:
            number = device.__index__()
        except AttributeError:
            raise SafetensorError(f"device {device!r} is invalid") from None
        if number < 0:
            raise SafetensorError(f"device {device!r} is invalid")
        return number
    kind, colon, number = device.partition(":")
    if kind not in _devices or ":" in number:
        raise SafetensorError(f"device {device} is invalid")
    if colon and not (number.isascii() and number.isdigit()):
        raise ValueError("invalid digit found in string" if number else "cannot parse integer from empty string")
    if kind != "mps":
        return f"{kind}:{int(number or 0)}"
    if int(number or 0) != 0:
        raise SafetensorError(f"device {device} is invalid: only mps or mps:0 is supported")
    return kind


def quoted(text: str) -> str:
    """Returns the text in quotes, as messages show names that are not known."""
    import json

    return json.dumps(text, ensure_ascii=False)
