"""Makes checkpoints in the layout of DeepSpeed ZeRO, stages 2 and 3, and the same weights as one .pt. Needs no torch.

The weights repeat a block of random floats whose length is a prime, so that a reader that takes the wrong offset gets
other values. Nothing that a conversion of the weights reads is missing; records that it does not read, which are Adam's
moments and the 16-bit weights of stage 2, are holes with the checksum 0, as torch.serialization.skip_data() writes
them. With `data=False` the weights are holes, too: a model of terabytes then takes a few megabytes of disk.

From top to bottom: Storage, Tensor and Call are pickled as torch pickles its own; Archive writes the zip; llama() and
experts() name the parameters; stage_2(), stage_3() and one_file() write files.
"""

import array
import collections
import dataclasses
import itertools
import math
import pickle
import random
import shutil
import struct
import sys
import types
import zlib

TAG = "global_step100"
VERSION = "0.19.8"
SUB_GROUP = 10**9  # elements of a rank, DeepSpeed's default
ALIGNMENT = 64
ZIP64 = 0xFFFFFFFF
CHUNK = 1 << 22

# ---- What is pickled


def pickled_as(module, stand_in, name):
    """Makes pickles refer to `stand_in` as `module.name`. This process must not import the module itself."""
    words = module.split(".")
    for end in range(1, len(words) + 1):
        parent = ".".join(words[:end])
        sys.modules.setdefault(parent, types.ModuleType(parent))
    stand_in.__module__, stand_in.__name__, stand_in.__qualname__ = module, name, name
    setattr(sys.modules[module], name, stand_in)
    return stand_in


def stub(module, name):
    """Returns a function that is pickled as `module.name`, and never called."""
    def function(*arguments):
        raise RuntimeError(f"{module}.{name} is a name only")
    return pickled_as(module, function, name)


rebuild_tensor = stub("torch._utils", "_rebuild_tensor_v2")
torch_size = stub("torch", "Size")
stage_enum = stub("deepspeed.runtime.zero.config", "ZeroStageEnum")
STORAGE_TYPES = {4: stub("torch", "FloatStorage"), 2: stub("torch", "BFloat16Storage")}


class LossScaler:
    def __init__(self):
        self.cur_scale, self.dynamic = 1.0, False


class Fragment:
    def __init__(self, numel, start):
        self.numel, self.start = numel, start


pickled_as("deepspeed.runtime.fp16.loss_scaler", LossScaler, "LossScaler")
pickled_as("deepspeed.utils.tensor_fragment", Fragment, "fragment_address")


@dataclasses.dataclass(eq=False)
class Storage:
    """Elements of `width` bytes. `spans` are the elements of the model that are in it; without any it is a hole."""
    count: int
    width: int = 4
    spans: list = dataclasses.field(default_factory=list)


class Tensor:
    def __init__(self, storage, shape=None, offset=0):
        self.storage, self.shape, self.offset = storage, (storage.count,) if shape is None else shape, offset

    def __reduce__(self):
        strides = tuple(itertools.accumulate(self.shape[:0:-1], int.__mul__, initial=1))[::-1] if self.shape else ()
        return rebuild_tensor, (self.storage, self.offset, self.shape, strides, False, collections.OrderedDict())


class Call:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


class Pickler(pickle.Pickler):
    """A pickler that gives each storage a number, in the order of its first use."""

    def __init__(self, file):
        super().__init__(file, protocol=2)
        self.storages = []
        self.keys = {}

    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        if value not in self.keys:
            self.keys[value] = str(len(self.storages))
            self.storages.append(value)
        return "storage", STORAGE_TYPES[value.width], self.keys[value], "cpu", value.count


# ---- Values


class Weights:
    """The elements of the model: element k is number k modulo a prime of a block of random floats."""

    def __init__(self):
        source = random.Random(17)
        floats = array.array("f", (source.uniform(-1, 1) for _ in range(1_048_573)))
        self.block = memoryview(floats.tobytes())

    def chunks(self, begin, end):
        """Yields the bytes of elements [begin, end)."""
        at, stop = 4 * begin, 4 * end
        while at < stop:
            low = at % len(self.block)
            size = min(stop - at, len(self.block) - low)
            yield self.block[low:low + size]
            at += size


# ---- The zip of torch.save


class Archive:
    """A zip as PyTorch lays it out: stored records, payloads at multiples of 64, sizes in descriptors behind them."""

    def __init__(self, path, weights):
        self.file = open(path, "wb")
        self.weights = weights
        self.root = path.name.rpartition(".")[0]
        self.directory = []

    def save(self, value):
        sink = bytearray()
        pickler = Pickler(types.SimpleNamespace(write=sink.extend))
        pickler.dump(value)
        self.record("data.pkl", bytes(sink))
        for name, text in ((".format_version", b"1"), (".storage_alignment", b"64"), ("byteorder", b"little")):
            self.record(name, text)
        for key, storage in enumerate(pickler.storages):
            self.record(f"data/{key}", storage)
        self.record("version", b"3\n")
        self.record(".data/serialization_id", b"0" * 40)
        self.close()

    def record(self, name, value):
        name = f"{self.root}/{name}".encode()
        size = value.count * value.width if isinstance(value, Storage) else len(value)
        at = self.file.tell()
        flags = 0x808 if size else 0x800
        large = struct.pack("<QQ", size, 0) if size >= ZIP64 else b""
        large += struct.pack("<Q", at) if at >= ZIP64 else b""
        large = struct.pack("<HH", 1, len(large)) + large if large else b""
        padding = -(at + 30 + len(name) + len(large) + 4) % ALIGNMENT
        self.file.write(struct.pack("<IHHHHHIIIHH", 0x04034B50, 0, flags, 0, 0, 0, 0, 0, 0, len(name),
                                    len(large) + 4 + padding)
                        + name + large + b"FB" + struct.pack("<H", padding) + b"Z" * padding)
        crc = self.payload(value, size)
        if size:
            self.file.write(struct.pack("<IIQQ" if large else "<IIII", 0x08074B50, crc, size, size))
        self.directory.append((name, flags, crc, size, at))

    def payload(self, value, size):
        """Writes the bytes of a record, or leaves a hole. Returns their checksum."""
        if not isinstance(value, Storage):
            self.file.write(value)
            return zlib.crc32(value)
        if not value.spans:
            self.file.seek(size, 1)
            return 0
        crc, end = 0, self.file.tell() + size
        for begin, stop in value.spans:
            for chunk in self.weights.chunks(begin, stop):
                self.file.write(chunk)
                crc = zlib.crc32(chunk, crc)
        assert self.file.tell() == end
        return crc

    def close(self):
        begin = self.file.tell()
        for name, flags, crc, size, at in self.directory:
            large = struct.pack("<QQ", size, size) if size >= ZIP64 else b""
            large += struct.pack("<Q", at) if at >= ZIP64 else b""
            large = struct.pack("<HH", 1, len(large)) + large if large else b""
            self.file.write(struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, flags, 0, 0, 0, crc, min(size, ZIP64),
                                        min(size, ZIP64), len(name), len(large), 0, 0, 0, 0, min(at, ZIP64))
                            + name + large)
        end, count = self.file.tell(), len(self.directory)
        self.file.write(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x31E, 0x2D, 0, 0, count, count, end - begin, begin))
        self.file.write(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        self.file.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, min(count, 0xFFFF), min(count, 0xFFFF),
                                    end - begin, min(begin, ZIP64), 0))
        self.file.close()


# ---- Models


@dataclasses.dataclass(frozen=True)
class Parameter:
    name: str
    shape: tuple
    begin: int  # of its elements among all elements of the model

    @property
    def count(self):
        return math.prod(self.shape)


def numbered(named_shapes):
    """Returns parameters whose elements follow each other."""
    parameters, begin = [], 0
    for name, shape in named_shapes:
        parameters.append(Parameter(name, shape, begin))
        begin += math.prod(shape)
    return parameters


def llama(hidden, narrow, inner, layers, vocabulary):
    """Returns the parameters of a llama; keys and values have `narrow` rows."""
    def shapes():
        yield "model.embed_tokens.weight", (vocabulary, hidden)
        for number in range(layers):
            prefix = f"model.layers.{number}."
            for name, rows in (("q", hidden), ("k", narrow), ("v", narrow), ("o", hidden)):
                yield f"{prefix}self_attn.{name}_proj.weight", (rows, hidden)
            yield f"{prefix}mlp.gate_proj.weight", (inner, hidden)
            yield f"{prefix}mlp.up_proj.weight", (inner, hidden)
            yield f"{prefix}mlp.down_proj.weight", (hidden, inner)
            yield f"{prefix}input_layernorm.weight", (hidden,)
            yield f"{prefix}post_attention_layernorm.weight", (hidden,)
        yield "model.norm.weight", (hidden,)
        yield "lm_head.weight", (vocabulary, hidden)
    return numbered(shapes())


def llama_405b():
    return llama(hidden=16384, narrow=1024, inner=53248, layers=126, vocabulary=128256)


def llama_of(elements):
    """Returns a llama of about so many elements, as wide as four layers allow."""
    hidden = max(width for width in (64, 128, 256, 512, 1024, 2048, 4096) if width == 64 or 85 * width**2 <= elements)
    vocabulary = min(16 * hidden, 32_000)
    layer = 2 * hidden**2 + 2 * (hidden // 4) * hidden + 3 * (7 * hidden // 2) * hidden + 2 * hidden
    layers = max(1, round((elements - 2 * vocabulary * hidden) / layer))
    return llama(hidden, hidden // 4, 7 * hidden // 2, layers, vocabulary)


def experts(elements):
    """Returns about so many elements in matrices of 512 × 512: a mixture of experts, 192 matrices a layer."""
    def shapes():
        for number in range(max(1, elements // 512**2)):
            layer, matrix = divmod(number, 192)
            expert, name = divmod(matrix, 3)
            if matrix == 0:
                yield f"model.layers.{layer}.input_layernorm.weight", (512,)
            yield f"model.layers.{layer}.mlp.experts.{expert}.w{name + 1}.weight", (512, 512)
    return numbered(shapes())


def groups_of(model):
    """Returns the two groups of an optimizer: with weight decay, and without."""
    return [[p for p in model if (len(p.shape) == 1) == plain] for plain in (False, True)]


# ---- Files


def one_file(path, model, weights):
    """Writes a flat state dict, as torch.save would."""
    Archive(path, weights).save(collections.OrderedDict(
        (p.name, Tensor(Storage(p.count, spans=[(p.begin, p.begin + p.count)]), p.shape)) for p in model))


def hyperparameters(groups):
    return [{"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": decay, "amsgrad": False, "params": group}
            for group, decay in zip(groups, (0.1, 0.0))]


def adam_state(count):
    return {"step": 100, "exp_avg": Tensor(Storage(count)), "exp_avg_sq": Tensor(Storage(count))}


def common_state(stage):
    return {"zero_stage": Call(stage_enum, stage), "loss_scaler": LossScaler(), "dynamic_loss_scale": False,
            "overflow": False}


def configuration(stage):
    return {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}


def model_states(stage, world, groups, module):
    shapes = [collections.OrderedDict((p.name, Call(torch_size, p.shape)) for p in group) for group in groups]
    return {"module": module, "buffer_names": [], "optimizer": None, "param_shapes": shapes,
            "frozen_param_shapes": collections.OrderedDict(), "shared_params": collections.OrderedDict(),
            "frozen_param_fragments": collections.OrderedDict(), "lr_scheduler": None, "data_sampler": None,
            "random_ltd": None, "sparse_tensor_module_names": set(), "skipped_steps": 0, "global_steps": 100,
            "global_samples": 100 * world, "dp_world_size": world, "mp_world_size": 1,
            "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1}, "ds_config": configuration(stage),
            "ds_version": VERSION}


def optimizer_file(folder, rank, stage, state, weights):
    file = folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
    Archive(file, weights).save({"optimizer_state_dict": state, "ds_config": configuration(stage),
                                 "ds_version": VERSION})


def write(root, stage, world, model, weights=None, data=True):
    """Makes a folder of DeepSpeed: stage 2 or 3, saved by `world` ranks in bf16."""
    folder = root / TAG
    folder.mkdir(parents=True)
    (root / "latest").write_text(TAG)
    {2: stage_2, 3: stage_3}[stage](folder, world, model, weights, data)


def stage_2(folder, world, model, weights, data):
    """The parameters of a group follow each other in a flat buffer; each rank has an equal part of it."""
    groups = groups_of(model)
    for rank in range(world):
        parts = [flat_part(group, rank, world, data) for group in groups]
        state = {"base_optimizer_state": {"state": {i: adam_state(part.size) for i, part in enumerate(parts)},
                                          "param_groups": hyperparameters([[0], [1]])},
                 "single_partition_of_fp32_groups": [Tensor(part.storage) for part in parts], **common_state(2),
                 "clip_grad": 1.0, "group_paddings": [part.size - part.storage.count for part in parts],
                 "param_alignment_paddings": [[0] * len(group) for group in groups],
                 "partition_count": [world] * len(groups), "ds_version": VERSION,
                 "param_slice_mappings": [part.mapping for part in parts]}
        optimizer_file(folder, rank, 2, state, weights)
    module = {}
    for group in groups:
        flat, at = Storage(sum(p.count for p in group), width=2), 0
        for p in group:
            module[p.name] = Tensor(flat, p.shape, at)
            at += p.count
    ordered = collections.OrderedDict((p.name, module[p.name]) for p in model)
    Archive(folder / "mp_rank_00_model_states.pt", weights).save(model_states(2, world, groups, ordered))


@dataclasses.dataclass
class FlatPart:
    size: int  # with padding
    storage: Storage
    mapping: dict


def flat_part(group, rank, world, data):
    total = sum(p.count for p in group)
    size = 2 * math.ceil(total / (2 * world))
    low, high = rank * size, (rank + 1) * size
    spans, mapping, at = [], collections.OrderedDict(), 0
    for p in group:
        begin, end = max(at, low), min(at + p.count, high)
        if begin < end:
            spans.append((p.begin + begin - at, p.begin + end - at))
            mapping[p.name] = Fragment(end - begin, begin - low)
        at += p.count
    kept = max(0, min(high, total) - low)
    return FlatPart(size, Storage(kept, spans=spans if data else []), mapping)


def share(parameter, world):
    return math.ceil(parameter.count / world)


def sub_groups(group, world):
    """Cuts a group where a rank's shares have reached the size of a sub-group."""
    cut, held = [[]], 0
    for p in group:
        if held >= SUB_GROUP:
            cut.append([])
            held = 0
        cut[-1].append(p)
        held += share(p, world)
    return cut


def stage_3(folder, world, model, weights, data):
    """Each parameter is cut into equal shares; a rank has one flat buffer of its shares for each sub-group."""
    by_group = [sub_groups(group, world) for group in groups_of(model)]
    groups = list(itertools.chain(*by_group))
    numbers = iter(range(len(groups)))
    hyper = hyperparameters([[next(numbers) for _ in cut] for cut in by_group])
    for rank in range(world):
        storages = [shares(group, rank, world, data) for group in groups]
        state = {**common_state(3), "partition_count": world,
                 "optimizer_state_dict": {"state": {i: adam_state(s.count) for i, s in enumerate(storages)},
                                          "param_groups": hyper},
                 "fp32_flat_groups": [Tensor(storage) for storage in storages]}
        optimizer_file(folder, rank, 3, state, weights)
    # The files of model states do not depend on the rank. Each placeholder has a storage of its own.
    first = folder / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    module = collections.OrderedDict((p.name, Tensor(Storage(0, width=2))) for p in model)
    Archive(first, weights).save(model_states(3, world, groups, module))
    for rank in range(1, world):
        shutil.copyfile(first, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")


def shares(group, rank, world, data):
    spans, count = [], 0
    for p in group:
        width = share(p, world)
        begin, end = min(rank * width, p.count), min((rank + 1) * width, p.count)
        # The padding has values, too: those of the first elements of the model.
        spans += [(p.begin + begin, p.begin + end), (0, width - (end - begin))]
        count += width
    return Storage(count, spans=[span for span in spans if span[0] < span[1]] if data else [])


def pieces(stage, world, model):
    """Returns the number of pieces that the weights are in."""
    if stage == 3:
        return sum(math.ceil(p.count / share(p, world)) for p in model)
    count = 0
    for group in groups_of(model):
        size, at = 2 * math.ceil(sum(p.count for p in group) / (2 * world)), 0
        for p in group:
            count += (at + p.count - 1) // size - at // size + 1
            at += p.count
    return count
