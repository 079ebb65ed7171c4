"""safemap.Uploader on the device "host", on OpenCL where there is one, and on the stand-in for CUDA."""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
import threading

import pytest

import safemap

np = pytest.importorskip("numpy")

LAYERS = 6


def layer(i):
    return {f"model.layers.{i}.w": np.full((64, 1024), i, "f4"), f"model.layers.{i}.b": np.arange(i, i + 8, dtype="i2")}


@pytest.fixture
def model(tmp_path):
    tensors = {"embed": np.arange(12.0).reshape(3, 4)}
    for i in range(LAYERS):
        tensors.update(layer(i))
    safemap.save(tmp_path / "m.safetensors", tensors)
    return safemap.open(tmp_path / "m.safetensors")


def test_leases_have_the_tensors(model):
    with safemap.Uploader(model, "host", budget="8MB") as uploader:
        assert (uploader.device, repr(uploader)) == ("host", "<safemap.Uploader to host>")
        with uploader.acquire("model.layers.1") as lease:
            assert sorted(lease) == sorted(lease.keys()) == ["model.layers.1.b", "model.layers.1.w"] and len(lease) == 2
            tensor = lease["model.layers.1.w"]
            assert repr(lease) == "<safemap.Lease of 2 tensors on host>"
            assert (tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, tensor.device) == (
                "model.layers.1.w", "F32", (64, 1024), 1 << 18, "host")
            assert tensor.address % 64 == 0 and "F32" in repr(tensor)
            np.testing.assert_array_equal(tensor.numpy(), layer(1)["model.layers.1.w"])
            assert not tensor.numpy().flags.writeable
            assert tensor.digest() == model["model.layers.1.w"].digest()
            assert "model.layers.1.b" in lease and "embed" not in lease
            with pytest.raises(KeyError):
                lease["embed"]
            with pytest.raises(TypeError):
                lease[0]
        assert uploader.stats().uploaded_bytes >= 1 << 18


def test_names_of_devices(model):
    torch = pytest.importorskip("torch")
    for device in ("host", "cpu", torch.device("cpu")):
        assert safemap.Uploader(model, device).device == "host"
    with pytest.raises(TypeError, match="expected a device such as"):
        safemap.Uploader(model, None)
    with pytest.raises(safemap.SafemapError, match="cuda:99"):
        safemap.Uploader(model, torch.device("cuda", 99))


def test_what_can_be_acquired(model):
    uploader = safemap.Uploader(model)
    names = {"embed": 1, "model.layers": 12, "model.layers.1": 2, "*.w": 6}
    for what, count in names.items():
        assert len(uploader.acquire(what)) == count
    assert uploader.acquire(["embed", "model.layers.0.b"]).keys() == ["embed", "model.layers.0.b"]
    assert uploader.acquire(model["embed"][1:])["embed"].numpy().tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert uploader.acquire([model["model.layers.2.w"].to("f16")])["model.layers.2.w"].dtype == "F16"
    bundle = uploader.bundle("model.layers.3")
    assert len(bundle) == 2 and bundle.device_bytes >= 1 << 18 and len(uploader.acquire(bundle)) == 2
    for wrong in (3, None, b"embed", [3], object()):
        with pytest.raises(TypeError):
            uploader.acquire(wrong)
    for missing in ("nothing", ["nothing"], "model.layers.9"):
        with pytest.raises(KeyError):
            uploader.acquire(missing)


def test_sources_of_an_uploader(model, tmp_path):
    tensors = {"w": np.ones((2, 2), "f4")}
    for source in (tensors, tmp_path / "m.safetensors", safemap.Checkpoint.of(tensors),
                   open(tmp_path / "m.safetensors", "rb")):
        uploader = safemap.Uploader(source, "host")
        name = "w" if "w" in uploader.acquire("*").keys() else "embed"
        assert uploader.acquire(name)[name].shape in ((2, 2), (3, 4))
        uploader.close()
    for wrong in ({"budget": 1.5}, {"budget": "many"}, {"readers": -1}, {"nonsense": 1}, {"direct_reads": 1}):
        with pytest.raises((TypeError, ValueError)):
            safemap.Uploader(model, "host", **wrong)
    for device in ("gpu", "cuda:99", "", "opencl:x"):
        with pytest.raises(safemap.SafemapError) as error:
            safemap.Uploader(model, device)
        assert error.value.code == "no_such_device"
    with pytest.raises(TypeError):
        safemap.Uploader(model, 3)


def test_what_has_ended_raises(model):
    uploader = safemap.Uploader(model)
    lease = uploader.acquire("embed")
    tensor = lease["embed"]
    lease.release()
    lease.release()
    for call in (lambda: lease["embed"], lease.keys, lambda: len(lease), lease.wait, lambda: lease.ready,
                 tensor.numpy, tensor.__dlpack__, lambda: tensor.shape, lambda: tensor.address, tensor.digest):
        with pytest.raises(safemap.SafemapError, match="ended"):
            call()
    assert "ended" in repr(tensor)
    lease = uploader.acquire("embed")
    uploader.close()
    uploader.close()
    assert lease["embed"].numpy()[0, 1] == 1
    for call in (lambda: uploader.acquire("embed"), lambda: uploader.prefetch("embed"), uploader.stats, uploader.sleep,
                 lambda: uploader.follow(["embed"]), lambda: uploader.bundle("embed"), uploader.wake):
        with pytest.raises(safemap.SafemapError, match="closed"):
            call()
    assert "closed" in repr(uploader)


def test_arrays_keep_the_lease(model):
    uploader = safemap.Uploader(model, budget=3 << 18)
    lease = uploader.acquire("model.layers.1")
    array = lease["model.layers.1.w"].numpy()
    address = lease["model.layers.1.w"].address
    lease.release()
    for i in range(LAYERS):
        if i != 1:
            assert uploader.acquire(f"model.layers.{i}")[f"model.layers.{i}.w"].address != address
    assert (array == 1).all()
    del array
    gc.collect()
    uploader.sleep()
    assert uploader.stats().resident_bytes == 0


def test_tensors_of_torch_keep_the_lease(model):
    torch = pytest.importorskip("torch")
    uploader = safemap.Uploader(model, budget=3 << 18)
    tensor = uploader.acquire("model.layers.1")["model.layers.1.w"].torch()
    other = torch.from_dlpack(uploader.acquire("model.layers.2")["model.layers.2.w"])
    with pytest.raises(safemap.SafemapError) as error:
        uploader.acquire("model.layers.3")
    assert error.value.code == "budget_exceeded"
    assert (tensor == 1).all() and (other == 2).all()
    thread = threading.Thread(target=lambda held: held.clear(), args=([other],))
    del tensor, other
    thread.start()
    thread.join()
    del thread
    gc.collect()
    assert len(uploader.acquire("model.layers.3")) == 2


def test_dtypes_of_torch_on_a_device():
    torch = pytest.importorskip("torch")
    tensors = {str(dtype): torch.arange(8).to(dtype) for dtype in (torch.bfloat16, torch.bool, torch.float8_e4m3fn,
                                                                   torch.complex128, torch.uint16)}
    tensors["f4"] = torch.arange(8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    tensors["empty"], tensors["scalar"] = torch.zeros(0, 3), torch.tensor(2.5)
    lease = safemap.Uploader(tensors).acquire(list(tensors))
    for name, tensor in tensors.items():
        found = lease[name].torch()
        assert found.dtype == tensor.dtype and found.shape == tensor.shape
        assert found.reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()


def test_dlpack_of_a_device(model):
    lease = safemap.Uploader(model).acquire("embed")
    tensor = lease["embed"]
    assert tensor.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(tensor).tolist() == np.arange(12.0).reshape(3, 4).tolist()
    for options in ({"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**options)
    for stream in (7, "7"):
        with pytest.raises((ValueError, TypeError)):
            tensor.__dlpack__(stream=stream)
    tensor.__dlpack__()
    tensor.__dlpack__(max_version=(1, 0))


def test_requests_and_prefetches(model):
    uploader = safemap.Uploader(model, budget="8MB")
    assert uploader.try_acquire("model.layers.1") is None
    lease = uploader.request("model.layers.1", priority=2)
    lease.wait()
    assert lease.ready and lease["model.layers.1.w"].numpy()[0, 0] == 1
    assert uploader.try_acquire("model.layers.1").keys() == lease.keys()
    uploader.prefetch("model.layers.2", "model.layers.3")
    assert len(uploader.acquire("model.layers.3", deadline=60)) == 2
    lease.release()
    uploader.evict("model.layers.1")
    assert uploader.try_acquire("model.layers.1") is None
    for wrong in ("1", object(), True):
        with pytest.raises(TypeError):
            uploader.acquire("embed", deadline=wrong)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError):
            uploader.acquire("embed", deadline=wrong)
    assert uploader.acquire("embed", deadline=float("inf"))
    with pytest.raises(ValueError):
        uploader.acquire("embed", stream=7)  # a host has no streams


class Slow:
    """A file object whose reads wait for `go`."""

    def __init__(self, path):
        self.file, self.go, self.slow = open(path, "rb"), threading.Event(), False

    def read(self, size=-1):
        if self.slow:
            assert self.go.wait(60)
        return self.file.read(size)

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_deadlines_progress_and_files_that_wait(model, tmp_path):
    source = Slow(tmp_path / "m.safetensors")
    uploader = safemap.Uploader(source)
    source.slow = True
    with pytest.raises(TimeoutError) as error:
        uploader.acquire("embed", deadline=0.05)
    assert error.value.code == "deadline_passed"
    source.go.set()
    assert uploader.acquire("embed")["embed"].numpy()[2, 3] == 11
    calls = []
    uploader.acquire("model.layers", progress=lambda *call: calls.append(call))
    assert all(stage == "uploading" for stage, _, _ in calls)
    source.go.clear()
    uploader.sleep()
    lease = uploader.request("embed")
    threading.Timer(0.2, source.go.set).start()
    uploader.close()  # waits for the read, which needs the interpreter
    with pytest.raises(safemap.SafemapError):
        lease.wait()


def test_faults_of_a_source_pass(tmp_path, model):
    class Broken(Slow):
        def read(self, size=-1):
            if self.slow:
                raise ZeroDivisionError
            return self.file.read(size)

    source = Broken(tmp_path / "m.safetensors")
    uploader = safemap.Uploader(source)
    source.slow = True
    with pytest.raises(ZeroDivisionError):
        uploader.acquire("embed")
    with pytest.raises(ZeroDivisionError):
        uploader.acquire("model.layers.1", progress=lambda *_: 1 // 0)


def test_an_order_is_followed(model):
    bundles = [f"model.layers.{i}" for i in range(LAYERS)]
    uploader = safemap.Uploader(model, budget="1MB")
    with uploader.follow(bundles) as order:
        assert len(order) == LAYERS
        for _ in range(3):
            for i, lease in enumerate(order):
                assert (lease[f"model.layers.{i}.w"].numpy() == i).all()
        assert order.upcoming == 0
        lease = order.next(deadline=60)
        assert "model.layers.0.w" in lease
        lease.release()
        order.reset()
        with pytest.raises(safemap.SafemapError):
            uploader.follow(bundles)  # one order at a time
    assert sum(len(lease) for lease in uploader.follow(bundles, once=True)) == 2 * LAYERS
    for wrong in (3, "model", None, [3]):
        with pytest.raises(TypeError):
            uploader.follow(wrong)
    with pytest.raises(ValueError):
        uploader.follow([])


def test_sleep_and_wake(model):
    uploader = safemap.Uploader(model, keep_addresses=True)
    with uploader.acquire("model.layers.1") as lease:
        address = lease["model.layers.1.w"].address
        assert uploader.sleep() > 0
    assert uploader.sleep() == 0
    uploader.wake()
    assert uploader.acquire("model.layers.1")["model.layers.1.w"].address == address


def test_threads_share_an_uploader(model):
    uploader = safemap.Uploader(model, budget="2MB")
    faults = []

    def work(first):
        for step in range(40):
            i = (first + step) % LAYERS
            try:
                with uploader.acquire(f"model.layers.{i}") as lease:
                    if not (lease[f"model.layers.{i}.w"].numpy() == i).all():
                        faults.append(i)
            except safemap.SafemapError as error:
                if error.code != "budget_exceeded":
                    faults.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_threads_that_share_a_lease(model):
    lease = safemap.Uploader(model).acquire("model.layers")

    def work():
        try:
            for _ in range(200):
                assert (lease["model.layers.4.w"].numpy() == 4).all()
        except safemap.SafemapError as error:
            assert "ended" in str(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    lease.release()
    for thread in threads:
        thread.join()


def run(script, **variables):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **variables})
    assert (done.returncode, done.stderr) == (0, ""), done


def test_a_process_may_end_with_leases_and_orders(model, tmp_path):
    for last in ("", "import os; os._exit(0)", "raise SystemExit"):
        run(f"""
import safemap
uploader = safemap.Uploader({str(tmp_path / "m.safetensors")!r}, budget="1MB")
lease = uploader.acquire("model.layers.1")
array = lease["model.layers.1.w"].numpy()
order = uploader.follow([f"model.layers.{{i}}" for i in range({LAYERS})])
held = order.next()
pending = safemap.Uploader({str(tmp_path / "m.safetensors")!r}).request("model.layers")
{last}
""")


def test_opencl(model):
    try:
        uploader = safemap.Uploader(model, "opencl:0", budget="8MB")
    except safemap.SafemapError as error:
        pytest.skip(str(error))
    lease = uploader.acquire("model.layers.1")
    tensor = lease["model.layers.1.w"]
    assert tensor.__dlpack_device__() == (4, 0) and tensor.address is None
    assert tensor.digest() == model["model.layers.1.w"].digest()


def test_the_stand_in_for_cuda(model, tmp_path):
    stub = str(pathlib.Path(__file__).resolve().parents[2] / "build" / "tests" / "cuda" / "stub")
    if not os.path.isdir(stub):
        pytest.skip("the stand-in is not built")
    run(f"""
import safemap
checkpoint = safemap.open({str(tmp_path / "m.safetensors")!r})
uploader = safemap.Uploader(checkpoint, "cuda:0", budget="8MB")
with uploader.acquire("model.layers.1", stream=1) as lease:
    tensor = lease["model.layers.1.w"]
    assert tensor.__dlpack_device__() == (2, 0), tensor.__dlpack_device__()
    assert tensor.digest() == checkpoint["model.layers.1.w"].digest()
    for stream in (None, -1, 1, 2):
        tensor.__dlpack__(stream=stream, max_version=(1, 1))
    lease.release(1)
""", LD_LIBRARY_PATH=stub)
