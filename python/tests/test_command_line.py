"""Tests of the command line in the package: it behaves as the program does, whose own tests are in tests/cli."""

import hashlib
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest

from safemap import _core

PROGRAM = [sys.executable, "-m", "safemap"]


def call(*words, **options):
    return subprocess.run([*PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, **options)


def write_safetensors(path, tensors, holes=False):
    """Writes tensors, each (name, bytes), of dtype U8. With holes, a value is a size, and the file is sparse."""
    header, offset = {}, 0
    for name, value in tensors:
        size = value if holes else len(value)
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if holes:
            file.truncate(8 + len(text) + offset)
        for _, value in [] if holes else tensors:
            file.write(value)


@pytest.fixture
def checkpoint(tmp_path, rng):
    path = tmp_path / "model.safetensors"
    tensors = [("a", rng.randbytes(5)), ("empty", b""), ("big", rng.randbytes(3_000_000)), ("small", b"abc")]
    write_safetensors(path, tensors)
    return path, dict(tensors)


def test_sha256_is_that_of_hashlib(checkpoint):
    path, tensors = checkpoint
    found = json.loads(call("hash", path, "--algorithm", "sha256", "--json").stdout)
    assert found["tensors"] == {name: hashlib.sha256(value).hexdigest() for name, value in tensors.items()}
    lines = (f"{name}\0U8\0{len(tensors[name])}\0{found['tensors'][name]}\n".encode() for name in sorted(tensors))
    assert found["checkpoint"] == hashlib.sha256(b"".join(lines)).hexdigest()


def test_exit_codes_and_streams(checkpoint, tmp_path):
    done = call("verify", checkpoint[0])
    assert (done.returncode, done.stderr) == (0, "")
    assert call("--version").stdout == f"safemap {_core.__version__}\n"
    missing = call("verify", tmp_path / "none.pt")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("safemap: error: ")
    assert json.loads(call("verify", "--json", tmp_path / "none.pt").stdout)["error"]["code"] == "path_not_found"
    assert "did you mean --tree?" in call("inspect", checkpoint[0], "--tre").stderr


def test_names_that_are_no_unicode(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.safetensors"
    write_safetensors(path, [("a", b"1")])
    done = subprocess.run([*PROGRAM, "verify", path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_no_traceback(checkpoint):
    process = subprocess.Popen([*PROGRAM, "inspect", checkpoint[0]], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 3


def test_ctrl_c_ends_a_conversion_and_names_the_command_that_continues(tmp_path):
    write_safetensors(tmp_path / "in.safetensors", [(f"t{i}", 1 << 26) for i in range(32)], holes=True)
    words = ["in.safetensors", "out", "--max-shard-size", "64MiB", "--resume"]
    process = subprocess.Popen([*PROGRAM, "convert", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    said = process.stderr.read()
    assert process.wait() == 130
    assert time.monotonic() - began < 5  # and one second where nobody else works
    assert f"{sys.executable} -m safemap convert {' '.join(words)}" in said
    assert not (tmp_path / "out").exists()


def test_a_process_that_goes_on_keeps_its_handlers(checkpoint):
    received = []
    before = signal.signal(signal.SIGINT, lambda *_: received.append(1))
    try:
        for calls in (1, 2):
            assert _core.run_command_line(["safemap"], ["verify", "--quiet", str(checkpoint[0])]) == 0
            signal.raise_signal(signal.SIGINT)
            assert len(received) == calls
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_go_on(tmp_path):
    write_safetensors(tmp_path / "big.safetensors", [("a", 1 << 28)], holes=True)
    counted, done = 0, threading.Event()

    def count():
        nonlocal counted
        while not done.wait(0.001):
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    began = time.monotonic()
    path = str(tmp_path / "big.safetensors")
    assert _core.run_command_line(["safemap"], ["hash", "--quiet", "--algorithm", "sha256", path]) == 0
    took = time.monotonic() - began
    done.set()
    thread.join()
    assert counted > min(3, took * 20)


def test_words_must_be_texts():
    for program, words in (([1], []), (["safemap"], [None]), (1, [])):
        with pytest.raises(TypeError):
            _core.run_command_line(program, words)


def test_importing_the_package_imports_little():
    code = "import sys; before = set(sys.modules); import safemap; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True,
                            env={**os.environ, "PYTHONPATH": str(pathlib.Path(_core.__file__).parents[1])})
    others = {name.partition(".")[0] for name in loaded.stdout.split()} - {"safemap", "__future__"}
    assert not others & {"torch", "numpy", "hashlib", "json", "pathlib", "re", "typing", "inspect", "dataclasses"}
