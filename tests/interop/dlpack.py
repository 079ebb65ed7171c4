"""Tests DLPack with NumPy and PyTorch, and with JAX if it is installed: exports and imports without a copy."""
import ctypes
import functools
import importlib.util
import json
import os
import unittest
import weakref

import numpy as np
import safetensors.torch
import torch

import common
from common import Case, raw, shape_of, tensor_of

# A PyCapsule keeps the pointer to its name, so the names must stay alive.
VERSIONED, UNVERSIONED = b'dltensor_versioned', b'dltensor'
USED = {VERSIONED: b'used_dltensor_versioned', UNVERSIONED: b'used_dltensor'}
CPU = (1, 0)


def python(name, result, *arguments):
    function = getattr(ctypes.pythonapi, name)
    function.restype, function.argtypes = result, arguments
    return function


new_capsule = python('PyCapsule_New', ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
pointer_of = python('PyCapsule_GetPointer', ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
rename = python('PyCapsule_SetName', ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


@functools.cache
def bridge():
    library = ctypes.CDLL(common.BUILD / 'tests/interop/libdlpack_bridge.so')
    text, pointer = ctypes.c_char_p, ctypes.c_void_p
    for name, result, arguments in [
            ('open_view', pointer, [text, text, ctypes.c_bool, ctypes.c_bool]), ('close_view', None, [pointer]),
            ('export_versioned', pointer, [pointer]), ('export_unversioned', pointer, [pointer]),
            ('import_versioned', pointer, [pointer]), ('import_unversioned', pointer, [pointer]),
            ('describe', text, [pointer]), ('last_error', text, [])]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class View:
    """A TensorView as an object with the DLPack protocol."""

    def __init__(self, handle, versioned=True):
        if not handle:
            raise BufferError(bridge().last_error().decode())
        self.handle, self.versioned = handle, versioned

    @classmethod
    def open(cls, path, name, private_copy=False, flipped=False, versioned=True):
        return cls(bridge().open_view(str(path).encode(), name.encode(), private_copy, flipped), versioned)

    @classmethod
    def take(cls, producer, versioned):
        capsule = producer.__dlpack__(max_version=(1, 1)) if versioned else producer.__dlpack__()
        name = VERSIONED if versioned else UNVERSIONED
        take = bridge().import_versioned if versioned else bridge().import_unversioned
        view = cls(take(pointer_of(capsule, name)))
        rename(capsule, USED[name])
        return view

    def __del__(self):
        if getattr(self, 'handle', None):
            bridge().close_view(self.handle)

    def __dlpack_device__(self):
        return CPU

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        del stream, max_version, dl_device, copy
        export = bridge().export_versioned if self.versioned else bridge().export_unversioned
        tensor = export(self.handle)
        if not tensor:
            raise BufferError(bridge().last_error().decode())
        return new_capsule(tensor, VERSIONED if self.versioned else UNVERSIONED, None)

    def describe(self):
        return json.loads(bridge().describe(self.handle))


def mappings_of(path):
    with open('/proc/self/maps', encoding='utf-8') as maps:
        return sum(str(path) in line for line in maps)


class DLPack(Case):
    def saved(self, state):
        file = self.folder / 'model.safetensors'
        safetensors.torch.save_file(state, file)
        return file

    def random_state(self, dtypes):
        return {f'{i}.{dtype}': tensor_of(self.rng, dtype, shape_of(self.rng))
                for dtype in dtypes for i in range(4)}

    def test_torch_takes_views_without_a_copy(self):
        state = self.random_state(common.DTYPES)
        file = self.saved(state)
        for versioned in (True, False):
            for name, tensor in state.items():
                with self.subTest(name=name, versioned=versioned):
                    view = View.open(file, name, versioned=versioned)
                    taken = torch.from_dlpack(view)
                    self.assert_same(taken, tensor, name)
                    if tensor.numel():
                        self.assertEqual(taken.data_ptr(), view.describe()['data'])
                        self.assertEqual(mappings_of(file), 1)
                        del view
                        self.assert_same(taken, tensor, name)  # the tensor keeps the mapping alive
                    del taken
            self.assertEqual(mappings_of(file), 0)

    def test_numpy_takes_views_without_a_copy(self):
        dtypes = [d for d in common.DTYPES if d != torch.bfloat16 and 'float8' not in str(d)]
        state = self.random_state(dtypes)
        file = self.saved(state)
        for versioned in (True, False):
            for name, tensor in state.items():
                with self.subTest(name=name, versioned=versioned):
                    view = View.open(file, name, flipped=tensor.dim() > 0, versioned=versioned)
                    taken = np.from_dlpack(view)
                    wanted = tensor.numpy()[::-1] if tensor.dim() else tensor.numpy()
                    self.assertEqual((taken.shape, taken.dtype), (wanted.shape, wanted.dtype))
                    self.assertEqual(taken.tobytes(), wanted.tobytes())
                    self.assertFalse(taken.flags.writeable and tensor.numel())
                    if tensor.numel():
                        self.assertEqual(taken.ctypes.data, view.describe()['data'])
                        del view
                        self.assertEqual(mappings_of(file), 1)
                    del taken
            self.assertEqual(mappings_of(file), 0)

    def test_writes_of_numpy_to_a_private_copy_do_not_reach_the_file(self):
        file = self.saved({'w': torch.arange(6, dtype=torch.float32)})
        before = file.read_bytes()
        view = View.open(file, 'w', private_copy=True)
        array = np.from_dlpack(view)
        self.assertTrue(array.flags.writeable)
        array[:] = 7
        self.assertEqual(bytes.fromhex(view.describe()['bytes']), array.tobytes())
        self.assertEqual(file.read_bytes(), before)

    def test_tensors_of_torch_are_taken_without_a_copy(self):
        for dtype in common.DTYPES:
            for versioned in (True, False):
                with self.subTest(dtype=dtype, versioned=versioned):
                    tensor = common.strided(self.rng, tensor_of(self.rng, dtype, shape_of(self.rng)))
                    wanted, pointer, elements = raw(tensor), tensor.data_ptr(), tensor.numel()
                    view = View.take(tensor, versioned)
                    told = view.describe()
                    self.assertEqual(told['shape'], list(tensor.shape))
                    self.assertEqual('torch.' + told['dtype'], str(dtype))
                    del tensor
                    told = view.describe()
                    self.assertEqual(bytes.fromhex(told['bytes']), wanted)
                    if elements:
                        self.assertEqual(told['data'], pointer)

    def test_arrays_of_numpy_are_taken_without_a_copy_and_released(self):
        for versioned in (True, False):
            with self.subTest(versioned=versioned):
                base = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
                array = base[::-1, :, ::2]
                alive = weakref.ref(array)
                view = View.take(array, versioned)
                told = view.describe()
                self.assertEqual((told['data'], told['shape']), (array.ctypes.data, [2, 3, 2]))
                self.assertEqual(bytes.fromhex(told['bytes']), array.tobytes())
                self.assertEqual(told['writable'], versioned)
                del array
                self.assertIsNotNone(alive())
                del view
                self.assertIsNone(alive())

    def test_a_read_only_array_stays_read_only(self):
        array = np.arange(3.0)
        array.flags.writeable = False
        self.assertFalse(View.take(array, True).describe()['writable'])

    def test_a_tensor_that_was_taken_can_be_given_on(self):
        tensor = torch.arange(6).reshape(2, 3).t()
        back = torch.from_dlpack(View.take(tensor, True))
        self.assert_same(back, tensor, 'back')
        self.assertEqual(back.data_ptr(), tensor.data_ptr())

    def test_float4_is_exchanged_with_torch_in_both_directions(self):
        tensor = torch.arange(8, dtype=torch.uint8).reshape(2, 4).view(torch.float4_e2m1fn_x2)
        told = View.take(tensor, True).describe()
        self.assertEqual((told['dtype'], told['shape']), ('float4_e2m1fn_x2', [2, 8]))
        view = View.open(self.saved({'w': tensor}), 'w')
        taken = torch.from_dlpack(view)
        self.assertEqual((taken.dtype, taken.shape), (tensor.dtype, tensor.shape))
        self.assertTrue(torch.equal(taken.view(torch.uint8), tensor.view(torch.uint8)))
        self.assertEqual(taken.data_ptr(), view.describe()['data'])

    @unittest.skipUnless(importlib.util.find_spec('jax'), 'JAX is not installed')
    def test_jax_takes_views_and_gives_arrays(self):
        os.environ['JAX_PLATFORMS'] = 'cpu'
        import jax  # imported only here: it is large, and optional
        jax.config.update('jax_enable_x64', True)
        state = self.random_state(common.DTYPES)
        file = self.saved(state)
        for name, tensor in state.items():
            with self.subTest(name=name):
                view = View.open(file, name, versioned=False)  # JAX 0.10 supports only the unversioned form
                taken = jax.dlpack.from_dlpack(view)
                self.assertEqual(taken.shape, tuple(tensor.shape))
                self.assertEqual(np.asarray(taken).tobytes(), raw(tensor))
                address = view.describe()['data']
                if tensor.numel() and address % 64 == 0:  # JAX copies data with a smaller alignment
                    self.assertEqual(taken.unsafe_buffer_pointer(), address)
                told = View.take(taken, False).describe()
                self.assertEqual(bytes.fromhex(told['bytes']), raw(tensor))
                if tensor.numel():
                    self.assertEqual(told['data'], taken.unsafe_buffer_pointer())
