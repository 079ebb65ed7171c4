"""Fails on an include that breaks the architecture: layers.py ROOT.

The tables below are docs/architecture.md as data. A file of lib/ may include its own layer, the layers in its row, and
the public headers that those own. Public headers follow the same table, and otherwise include only the standard
library. The command line includes public headers only, and the Python package those and the headers of the command
line. A third-party header may be included only by the files listed here.
"""
import fnmatch
import pathlib
import re
import sys

# Layer: the layers that it may include besides itself.
MAY_INCLUDE = {
    'base': [],
    'io': ['base'],
    'tensor': ['base'],
    'lazy': ['base', 'tensor'],
    'safetensors': ['base', 'tensor'],
    'names': ['base'],
    'state': ['base', 'tensor', 'lazy', 'names'],
    'pickle': ['base'],
    'torch': ['base', 'tensor', 'lazy', 'state', 'pickle'],
    'distributed': ['base', 'tensor', 'lazy', 'safetensors', 'names', 'state', 'pickle', 'torch'],
    'open': ['base', 'io', 'tensor', 'lazy', 'safetensors', 'names', 'state', 'pickle', 'torch', 'distributed'],
    'checkpoint': ['base', 'io', 'tensor', 'lazy', 'safetensors', 'names', 'state', 'open'],
    'check': ['base', 'tensor', 'lazy', 'safetensors', 'names', 'state', 'open', 'checkpoint'],
    'write': ['base', 'io', 'tensor', 'lazy', 'safetensors', 'names', 'state', 'checkpoint', 'check'],
    'drivers': ['base'],
    'device': ['base', 'io', 'tensor', 'lazy', 'checkpoint', 'drivers'],
}

# Public header: the layer that owns it. safemap.hpp includes all of them, and must not be included.
OWNER = {
    'api': 'base', 'bytes': 'base', 'error': 'base', 'progress': 'base', 'sink': 'base',
    'source': 'base',
    'advanced/fold': 'base', 'advanced/sha256': 'base', 'advanced/text': 'base',
    'advanced/file': 'io',
    'dtype': 'tensor', 'elements': 'tensor', 'float_types': 'tensor', 'shape': 'tensor', 'tensor_view': 'tensor',
    'advanced/dlpack': 'tensor', 'advanced/dtypes': 'tensor', 'advanced/small_floats': 'tensor',
    'advanced/strides': 'tensor',
    'lazy_tensor': 'lazy', 'advanced/stored_tensor': 'lazy',
    'open_options': 'state', 'state_tree': 'state', 'training_layout': 'state', 'verdict': 'state',
    'advanced/flatten': 'state',
    'checkpoint': 'checkpoint', 'plan': 'checkpoint', 'ranks': 'checkpoint', 'selection': 'checkpoint',
    'advanced/names': 'checkpoint', 'advanced/structure': 'checkpoint',
    'diff': 'check', 'digest': 'check', 'scan': 'check', 'verify': 'check',
    'save': 'write', 'advanced/shard_writer': 'write', 'advanced/edit': 'write', 'advanced/team': 'write',
    'device': 'drivers', 'advanced/device_backend': 'drivers',
    'bundle': 'device', 'device_budget': 'device', 'request': 'device', 'upload_order': 'device',
    'uploader': 'device', 'advanced/device_dlpack': 'device',
}

# Third-party header: the files that may include it.
THIRD_PARTY = {
    'simdjson.h': ['lib/base/json.cpp', 'lib/safetensors/header.cpp'],
    'boost/*': ['lib/io/mapping.cpp'],
    'openssl/*': ['lib/base/libcrypto.cpp'],
    'xxhash.h': ['lib/base/checksum.cpp'],
    'zlib.h': ['lib/base/checksum.cpp', 'lib/base/inflate.cpp', 'bench/base/slices_bench.cpp',
               'bench/make_pt.cpp', 'tests/*'],
    'zstd.h': ['lib/base/zstd.cpp', 'tests/*'],
    'CLI/*': ['cli/*'],
    'fmt/*': ['cli/*'],
    'CL/cl.h': ['lib/drivers/opencl_abi.cpp'],
    'cuda.h': ['lib/drivers/cuda_abi.cpp'],
    'mpi.h': ['cli/many_nodes_mpi.cpp'],
    'nanobind/*': ['python/core/*'],
    'Python.h': ['python/core/*'],
    'doctest/*': ['tests/*'],
    'benchmark/*': ['bench/*'],
}

# System headers: C++ and C, POSIX and Linux.
SYSTEM = re.compile(r'[a-z_]+|sys/[a-z_]+\.h|linux/[a-z_]+\.h|'
                    r'(dirent|dlfcn|errno|fcntl|fnmatch|glob|malloc|poll|pthread|sched|signal|stdlib|string|time|'
                    r'unistd)\.h')
STANDARD = re.compile(r'[a-z_]+')
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
FOLDERS = ['include', 'lib', 'cli', 'python', 'tests', 'bench', 'fuzz', 'examples']


def includes(path):
    """Yields (line number, quoted, name) for each include of a file."""
    for number, line in enumerate(path.read_text(encoding='utf-8', errors='replace').splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == '"', match.group(2)


def public_fault(name, layer):
    """Returns the fault if `layer` includes the public header `name` ("safemap/x.hpp"), or nothing."""
    stem = name[len('safemap/'):].removesuffix('.hpp')
    if stem not in OWNER:
        return 'safemap.hpp is for users' if stem == 'safemap' else 'no layer owns this header'
    owner = OWNER[stem]
    if owner == layer or owner in MAY_INCLUDE[layer]:
        return None
    return f'it belongs to {owner}, which {layer} may not include'


def lib_fault(layer, quoted, name):
    if name.startswith('safemap/'):
        return 'public headers are included with <>' if quoted else public_fault(name, layer)
    if not quoted:
        return None
    other = name.split('/')[0]
    if '/' not in name or other not in MAY_INCLUDE:
        return 'headers of lib/ are included as "layer/file.hpp"'
    if other == layer or other in MAY_INCLUDE[layer]:
        return None
    return f'{layer} may not include {other}'


def header_fault(stem, quoted, name):
    if name.startswith('safemap/') and not quoted:
        return None if stem == 'safemap' else public_fault(name, OWNER[stem])
    if quoted or not STANDARD.fullmatch(name):
        return 'a public header includes the standard library and <safemap/...> only'
    return None


def cli_fault(root, path, quoted, name):
    if not quoted:
        return None
    if (path.parent / name).is_file() or (root / 'cli' / name).is_file():
        return None
    return 'the command line and the Python package include <safemap/...>, headers of cli/ and their own only'


def third_party_fault(relative, name):
    for pattern, allowed in THIRD_PARTY.items():
        if fnmatch.fnmatchcase(name, pattern):
            if any(fnmatch.fnmatchcase(relative, place) for place in allowed):
                return None
            return 'only ' + ', '.join(allowed) + ' may see it'
    if name.startswith('safemap/') or SYSTEM.fullmatch(name):
        return None
    return 'a header that tests/tools/layers.py does not know'


def fault_of(root, path, quoted, name):
    relative = path.relative_to(root).as_posix()
    folder, layer = relative.split('/')[:2]
    fault = None if quoted else third_party_fault(relative, name)
    if fault:
        return fault
    if folder == 'lib':
        return lib_fault(layer, quoted, name) if layer in MAY_INCLUDE else f'lib/{layer} is no layer'
    if folder == 'include':
        stem = relative.removeprefix('include/safemap/').removesuffix('.hpp')
        if stem != 'safemap' and stem not in OWNER:
            return 'no layer owns this header'
        return header_fault(stem, quoted, name)
    if folder in ('cli', 'python'):
        return cli_fault(root, path, quoted, name)
    return None


def check(root):
    """Returns all faults of a tree, as "file:line: text"."""
    root = pathlib.Path(root)
    faults = []
    sources = [p for f in FOLDERS for p in sorted((root / f).rglob('*')) if p.suffix in ('.hpp', '.cpp', '.h')]
    for path in sources:
        for number, quoted, name in includes(path):
            fault = fault_of(root, path, quoted, name)
            if fault:
                faults.append(f'{path.relative_to(root)}:{number}: includes {name}: {fault}')
    if not sources:
        faults.append(f'{root}: no sources here')
    return faults


if __name__ == '__main__':
    found = check(sys.argv[1])
    print(*found, sep='\n')
    sys.exit(bool(found))
