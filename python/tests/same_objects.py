"""An equality of nested objects with tensors, down to bits, strides, classes and what is shared."""

import struct

import numpy
import torch


class Differ(AssertionError):
    """Two objects differ; the text says where."""


def bits(tensor):
    """Returns the row-major bytes of a strided tensor's value."""
    plain = torch.empty(0, dtype=tensor.dtype).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    flat = plain.clone(memory_format=torch.contiguous_format).untyped_storage()
    return bytes(torch.empty(0, dtype=torch.uint8).set_(flat)[: tensor.numel() * tensor.element_size()].tolist())


class Comparison:
    """Compares two objects part by part, without recursion."""

    def __init__(self, stands_for=lambda ours, theirs: False, values=False):
        """`stands_for(ours, theirs)`: true if two objects of different classes are all right. `values`: strides,
        storages and lazy bits may differ, as in a file that was saved."""
        self.stands_for, self.values = stands_for, values
        self.seen, self.storages, self.left, self.pairs = {}, {}, [], {}

    def equal(self, ours, theirs):
        self.left = [(ours, theirs, "")]
        while self.left:
            ours, theirs, where = self.left.pop()
            self.compare(ours, theirs, where)

    def require(self, ours, theirs, where):
        if ours != theirs:
            raise Differ(f"{where or 'the root'}: {ours!r}, wanted {theirs!r}")

    def compare(self, ours, theirs, where):
        # Tuples that share tuples have more paths than there is time for.
        if self.stands_for(ours, theirs) or (id(ours), id(theirs)) in self.pairs:
            return
        self.pairs[id(ours), id(theirs)] = ours, theirs  # which keeps their ids
        self.require(type(ours), type(theirs), where)
        if isinstance(theirs, (list, dict, set, bytearray, torch.Tensor, numpy.ndarray)):
            if id(theirs) in self.seen:
                return self.require(id(ours), self.seen[id(theirs)], where + " is shared")
            self.seen[id(theirs)] = id(ours)
        if isinstance(theirs, torch.Tensor):
            self.tensors(ours, theirs, where)
        elif isinstance(theirs, dict):
            self.dicts(ours, theirs, where)
        elif isinstance(theirs, (list, tuple)):
            self.require(len(ours), len(theirs), where)
            self.left += [(a, b, f"{where}/{i}") for i, (a, b) in enumerate(zip(ours, theirs))]
        elif isinstance(theirs, (set, frozenset)):
            self.require(sorted(map(repr, ours)), sorted(map(repr, theirs)), where)
        elif isinstance(theirs, (numpy.ndarray, numpy.generic)):
            self.require(native(ours), native(theirs), where)
        elif isinstance(theirs, (int, str, bytes)):
            self.require(ours, theirs, where)
        elif isinstance(theirs, float):
            self.require(struct.pack(">d", ours), struct.pack(">d", theirs), where)
        elif isinstance(theirs, complex):
            self.left += [(ours.real, theirs.real, where), (ours.imag, theirs.imag, where)]
        elif ours is not theirs:
            self.require(repr(ours), repr(theirs), where)

    def dicts(self, ours, theirs, where):
        self.require(list(map(repr, ours)), list(map(repr, theirs)), where)
        self.left += [(a, b, f"{where}/{key}") for (key, b), a in zip(theirs.items(), ours.values())]
        self.left.append((getattr(ours, "__dict__", None), getattr(theirs, "__dict__", None), where + "/__dict__"))
        self.require(getattr(ours, "default_factory", None), getattr(theirs, "default_factory", None), where)

    def tensors(self, ours, theirs, where):
        for fact in ("dtype", "layout", "device", "requires_grad", "is_leaf", "is_quantized", "is_nested"):
            self.require(getattr(ours, fact), getattr(theirs, fact), f"{where}.{fact}")
        if theirs.layout == torch.jagged:
            return self.parts(ours, theirs, ("values", "offsets", "lengths"), where)
        attributes = ({k: v for k, v in vars(one).items() if "dynamo" not in k} for one in (ours, theirs))
        self.left.append((*attributes, where + "/__dict__"))
        if theirs.is_nested:
            names = ("values", "_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
            return self.parts(ours, theirs, names, where)
        self.require(ours.shape, theirs.shape, where)
        if theirs.layout == torch.sparse_coo:
            self.require(ours.is_coalesced(), theirs.is_coalesced(), where)
            return self.parts(ours, theirs, ("_indices", "_values"), where)
        if theirs.layout in (torch.sparse_csr, torch.sparse_bsr):
            return self.parts(ours, theirs, ("crow_indices", "col_indices", "values"), where)
        if theirs.layout in (torch.sparse_csc, torch.sparse_bsc):
            return self.parts(ours, theirs, ("ccol_indices", "row_indices", "values"), where)
        if not self.values:
            self.require(ours.stride(), theirs.stride(), f"{where}.stride()")
        if theirs.device.type == "meta":
            return None
        return self.strided(ours, theirs, where)

    def parts(self, ours, theirs, names, where):
        for name in names:
            self.left.append((getattr(ours, name)(), getattr(theirs, name)(), f"{where}.{name}()"))

    def strided(self, ours, theirs, where):
        if not self.values:
            self.storage(ours, theirs, where)
        if theirs.is_quantized:
            return self.quantized(ours, theirs, where)
        ours, theirs = (one.detach().resolve_conj().resolve_neg() for one in (ours, theirs))
        return self.require(bits(ours), bits(theirs), f"{where}: the bits")

    def storage(self, ours, theirs, where):
        self.require((ours.is_conj(), ours.is_neg()), (theirs.is_conj(), theirs.is_neg()), where)
        mine, other = ours.untyped_storage(), theirs.untyped_storage()
        self.require(mine.nbytes(), other.nbytes(), f"{where}: the storage")
        if other.nbytes():
            known = self.storages.setdefault(other.data_ptr(), mine.data_ptr())
            self.require(known, mine.data_ptr(), f"{where} shares")
            self.require(ours._is_view(), theirs._is_view(), f"{where}._is_view()")
        if theirs.numel():
            self.require(ours.storage_offset(), theirs.storage_offset(), f"{where}.storage_offset()")

    def quantized(self, ours, theirs, where):
        self.require((ours.qscheme(), raw(ours)), (theirs.qscheme(), raw(theirs)), where)
        if theirs.qscheme() == torch.per_tensor_affine:
            return self.require((ours.q_scale(), ours.q_zero_point()), (theirs.q_scale(), theirs.q_zero_point()), where)
        self.require(ours.q_per_channel_axis(), theirs.q_per_channel_axis(), where)
        return self.parts(ours, theirs, ("q_per_channel_scales", "q_per_channel_zero_points"), where)


def native(array):
    """Returns the dtype, the shape and the bytes of an array or scalar, in the byte order of the machine."""
    array = numpy.asarray(array)
    array = array.astype(array.dtype.newbyteorder("="))
    return array.dtype, array.shape, array.tobytes()


def raw(tensor):
    """Returns the numbers of a quantised tensor as stored."""
    packed = tensor.dtype in (torch.quint4x2, torch.quint2x4)
    return bytes(tensor.untyped_storage().tolist()) if packed else tensor.int_repr().tolist()


def require_same(ours, theirs, **options):
    """Raises Differ unless two objects are equal, leaf by leaf. Options are those of Comparison."""
    Comparison(**options).equal(ours, theirs)
