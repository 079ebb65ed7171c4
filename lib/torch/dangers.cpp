// The table of dangers: functions that run code, by what they do. A row may list
//
//   builtins.eval  one function or class, and everything in it
//   os.*           everything in a module or package
//   code:          everything in a module, but not in modules below it: `code.models` is not Python's
//
// The rows cover what picklescan 1.0.5, modelscan 0.8.8 and fickling 0.1.12 refuse, and more of the same families.
// harmless.cpp has the classes that files of training libraries need. Tested by tests/torch/verdict_test.cpp.
#include "torch/dangers.hpp"

#include "pickle/words.hpp"
#include "torch/globals.hpp"
#include "torch/harmless.hpp"

#include <algorithm>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

struct Family {
    std::string_view why;
    std::string_view names;
};

constexpr Family families[] = {
    {"runs a program", R"(
        os.* posix: nt: subprocess.* _posixsubprocess: pty: commands: popen2: multiprocessing.* asyncio.* webbrowser:
        antigravity: platform: pydoc.* uuid: _osx_support: _aix_support: _pyrepl.* mailcap: distutils.* setuptools.*
        pip.* ensurepip.* venv.* virtualenv.* imaplib.IMAP4_stream pexpect.* ptyprocess.* paramiko.* fabric.* invoke.*
        sh: plumbum.* psutil.* git.* IPython.* ipykernel.* ray.* numpy.f2py.* numpy.distutils.*
        torch.utils.collect_env: torch.utils.cpp_extension: torch.utils._cpp_extension_versioner: torch._inductor.*
        torch.multiprocessing.* torch.distributed.run: torch.distributed.launch: torch.distributed.launcher.*
        torch.distributed.elastic.* torch._appdirs: deepspeed.launcher.* accelerate.commands.*
        accelerate.launchers: concurrent.futures.* loky.* cgitb: tkinter.* _tkinter: turtle: turtledemo.*)"},
    {"evaluates text as code", R"(
        builtins.eval builtins.exec builtins.compile builtins.execfile builtins.breakpoint builtins.input runpy: code:
        codeop: bdb: pdb: timeit: cProfile: profile: _lsprof: trace: doctest: test.* unittest.* idlelib.* lib2to3.*
        collections.namedtuple collections._sys typing.NamedTuple typing.ForwardRef typing.get_type_hints
        typing._eval_type dataclasses.make_dataclass dataclasses._create_fn annotationlib: pandas.eval
        pandas.core.computation.* pandas.DataFrame.eval pandas.DataFrame.query pandas.core.frame.DataFrame.eval
        pandas.core.frame.DataFrame.query numexpr.* sympy.* sage.* numpy.testing.* numpy.lib.utils: torch.jit.*
        torch._dynamo.* torch.compile torch.fx.* torch.export.* torch._export.* torch.package.* torch.testing.*
        torch.utils._config_module: torch.utils.benchmark.* torch.utils.bottleneck.* torch._lobpcg: torch._guards:
        torch.utils._sympy.* torchgen.* keras.layers.Lambda keras.layers.core.Lambda
        keras.layers.core.lambda_layer.Lambda keras.src.layers.core.lambda_layer.Lambda keras.src.layers.Lambda
        tensorflow.keras.layers.Lambda tensorflow.python.keras.layers.core.Lambda
        tensorflow.python.keras.layers.Lambda keras.utils.generic_utils.func_load
        keras.src.utils.python_utils.func_load tensorflow.python.keras.utils.generic_utils.func_load
        tensorflow.py_function tensorflow.numpy_function tensorflow.python.ops.script_ops.* jinja2.* mako.*
        torch_utils.persistence: dnnlib.* js2py.* execjs.* pycparser.* ply.* lark.*
        asteval.* simpleeval.* RestrictedPython.* py_mini_racer.*)"},
    {"imports a module", R"(
        builtins.__import__ importlib.* _frozen_importlib: _frozen_importlib_external: _imp: imp: ihooks: pkgutil:
        zipimport: site: sitecustomize: usercustomize: modulefinder: pkg_resources.* six.* future.*
        importlib_metadata.* importlib_resources.* stevedore.* pluggy.* torch._ops: torch.ops.* torch.classes.*
        torch._classes: transformers.dynamic_module_utils: transformers.utils.import_utils: hydra.*
        detectron2.config.instantiate.* detectron2.utils.registry.* detectron2.config.lazy.LazyConfig
        mmengine.config.config.Config.fromfile mmcv.utils.misc.import_modules_from_strings
        mmengine.utils.misc.import_modules_from_strings mmengine.utils.package_utils.* werkzeug.utils.import_string
        django.* zope.dottedname.* twisted.* ldm.util.* sgm.util.* pyximport.* Cython.* rpy2.* jpype.*)"},
    {"makes functions or classes from parts", R"(
        types: builtins.type builtins.super builtins.property builtins.classmethod builtins.staticmethod
        builtins.__build_class__ new: abc.ABCMeta enum.EnumMeta enum.EnumType typing.NewType)"},
    {"hides which function it calls", R"(
        builtins.getattr builtins.apply builtins.map builtins.filter builtins.iter builtins.sorted builtins.min
        builtins.max builtins.vars builtins.globals builtins.locals builtins.dir builtins.hasattr functools:
        operator: _operator: _functools: itertools.starmap itertools.accumulate itertools.filterfalse
        itertools.takewhile itertools.dropwhile itertools.groupby gc: inspect: weakref: _weakref: contextlib:
        contextvars: _collections_abc.__builtins__ string.Formatter toolz.* cytoolz.* wrapt.* decorator:
        torch.utils._pytree: torch.overrides: copyreg.__reduce_ex__ torch.utils._python_dispatch:
        torch._decomp.* tree: dm_tree: optree.* copy:)"},
    {"reaches into Python's interpreter or its modules", R"(
        sys: linecache: traceback: tracemalloc: faulthandler: _testcapi: _testinternalcapi: _xxsubinterpreters:
        _interpreters: dis: builtins: __builtin__: __builtins__: eval: exec: compile:
        builtins.__loader__ builtins.__spec__ builtins.memoryview builtins.exit builtins.quit
        builtins.help builtins.copyright builtins.credits builtins.license)"},
    {"changes attributes of other objects", R"(
        builtins.setattr builtins.delattr copyreg.pickle copyreg.constructor copyreg.add_extension
        copyreg.remove_extension copyreg.clear_extension_cache copyreg.dispatch_table copyreg._extension_registry
        copyreg._inverted_registry copyreg._extension_cache)"},
    {"starts threads, or sets handlers of signals or of the program's exit", R"(
        signal: _signal: threading: _thread: _threading_local: _dummy_thread: dummy_threading: atexit: sched:
        resource: syslog: readline: rlcompleter: curses.* greenlet.* gevent.* eventlet.*)"},
    {"reaches native code or memory", R"(
        ctypes.* _ctypes: cffi.* _cffi_backend: mmap: fcntl: termios: msvcrt: winreg: _winreg: _winapi: winsound:
        numpy.ctypeslib.* numba.* llvmlite.* triton.* cupy.* pycuda.* tensorflow.load_op_library
        tensorflow.load_library tensorflow.python.framework.load_library.* torch.utils._triton:
        torch.cuda._utils: torch.cuda.CUDAPluggableAllocator torch.cuda.memory.* torch.utils.dlpack:)"},
    {"reads or writes files", R"(
        builtins.open io.open io.open_code io.FileIO _io.open _io.open_code _io.FileIO _pyio.* codecs.open
        codecs.StreamReaderWriter shutil: tempfile: filecmp: fileinput: glob: difflib: compileall: py_compile:
        tarfile: zipfile.* gzip: bz2: lzma: sqlite3.* _sqlite3: dbm.* _dbm: _gdbm: logging.* netrc: csv.*
        configparser.RawConfigParser.read pathlib.Path.* pathlib.PosixPath.* pathlib.WindowsPath.* fsspec.*
        smart_open.* s3fs.* gcsfs.* zarr.* h5py.* tables.* lmdb.* pyarrow.* numpy.save numpy.savez
        numpy.savez_compressed numpy.savetxt numpy.fromfile numpy.loadtxt numpy.genfromtxt numpy.memmap
        numpy.fromregex numpy.DataSource numpy.lib.npyio.* numpy.lib._npyio_impl.* numpy.lib._datasource.*
        numpy.lib.format.* numpy.core.memmap.* numpy._core.memmap.* numpy.core.multiarray.fromfile
        numpy._core.multiarray.fromfile numpy.ndarray.tofile numpy.ndarray.dump torch.save torch.from_file
        torch.UntypedStorage.* torch.TypedStorage.* torch.storage.UntypedStorage.* torch.storage.TypedStorage.*
        torch.FloatStorage.* torch._C._VariableFunctions.from_file
        torch._C._VariableFunctionsClass.from_file torch.serialization.save pandas.io.*
        PIL.Image.open cv2.imread cv2.imwrite imageio.* skimage.io.* scipy.io.* torchvision.io.* torchaudio.load
        torchaudio.save soundfile.* librosa.* tensorflow.io.* tensorflow.python.ops.io_ops.*
        tensorflow.python.ops.gen_io_ops.* tensorflow.raw_ops.* tensorflow.python.lib.io.* safetensors.*
        matplotlib.* dotenv.* xml.* lxml.* pwd: grp: spwd: nis: crypt: stringprep:)"},
    {"opens a network connection", R"(
        socket: _socket: ssl: _ssl: http.* httplib: httplib2.* urllib.* urllib2: urllib3.* requests.* aiohttp.*
        httpx.* httpcore.* websocket.* websockets.* smtplib: imaplib: ftplib: poplib: telnetlib: nntplib:
        socketserver: xmlrpc.* select: selectors: asyncore: asynchat: smtpd: wsgiref.* zmq.* tornado.* flask.*
        fastapi.* starlette.* uvicorn.* grpc.* redis.* pymongo.* psycopg2.* pymysql.* sqlalchemy.* boto3.*
        botocore.* google.cloud.* azure.* huggingface_hub.* gradio.* datasets.load_dataset torch.hub.*
        torch.utils.model_zoo: torch.distributed.rpc.* torch.distributed.nn.* torch.distributed.init_process_group
        torch.distributed.distributed_c10d.init_process_group torch.distributed.TCPStore torch._C._distributed_c10d.*
        torch.distributed.rendezvous.* dns.* whois.* scapy.* telegram.* discord.* slack.*)"},
    {"unpickles or loads again", R"(
        pickle: _pickle: cPickle: pickletools: _compat_pickle: dill.* _dill: cloudpickle.* joblib.* marshal: shelve:
        jsonpickle.* klepto.* pickleshare: zodbpickle.* sklearn.externals.* yaml.* ruamel.* toml: msgpack_numpy.*
        torch.load torch.serialization.* torch.storage._load_from_bytes torch.utils.data.datapipes.*
        torch.utils.data.graph.* torch.distributed.distributed_c10d._tensor_to_object
        torch.distributed.distributed_c10d.broadcast_object_list torch.distributed.checkpoint.state_dict_loader.*
        torch.utils.serialization.* torch._weights_only_unpickler: torch.package.* numpy.load pandas.read_pickle
        pandas.compat.pickle_compat.* pandas.io.pickle.* scipy._lib._ccallback.* keras.models.load_model
        keras.saving.* keras.src.saving.* tensorflow.keras.models.load_model tensorflow.saved_model.*
        tensorflow.python.saved_model.* tensorflow.python.keras.saving.* mlflow.* skops.* stable_baselines3.common.*
        flair.* spacy.* allennlp.*)"},
    {"acts on a scanner of pickles", R"(
        fickling.* picklescan.* modelscan.* model_unpickler.* saferpickle.* modelaudit.*)"},
};

/// The rows of the table by their names.
struct Dangers {
    using Rows = std::unordered_map<std::string_view, const Family*>;
    Rows exact = {};     ///< functions and classes
    Rows packages = {};  ///< `os.*`
    Rows modules = {};   ///< `code:`

    Dangers() {
        for (const Family& family : families) {
            each_word(family.names, [&](std::string_view word) {
                if (word.ends_with(':')) modules.emplace(word.substr(0, word.size() - 1), &family);
                else if (word.ends_with(".*")) packages.emplace(word.substr(0, word.size() - 2), &family);
                else exact.emplace(word, &family);
            });
        }
    }
};

const Dangers& dangers() {
    static const Dangers table;
    return table;
}

const Family* find_family(const Dangers::Rows& rows, std::string_view name) {
    const auto found = rows.find(name);
    return found == rows.end() ? nullptr : found->second;
}

/// Calls visit() with a dotted name and each shorter one that begins it, the longest first, until it returns a row.
template <class Visit> const Family* in_prefixes(std::string_view dotted_name, Visit&& visit) {
    for (std::size_t end = dotted_name.size(); end != dotted_name.npos && end > 0;) {
        if (const Family* const family = visit(dotted_name.substr(0, end))) return family;
        end = dotted_name.substr(0, end).rfind('.');
    }
    return nullptr;
}

/// Returns the row of a function, or of a class that it is in.
const Family* exact_danger(std::string_view name) {
    return in_prefixes(name, [](std::string_view part) { return find_family(dangers().exact, part); });
}

/// Returns the row of a module or package that `name` is in. Its first `module` bytes are the name of a module.
const Family* module_danger(std::string_view name, std::size_t module) {
    return in_prefixes(name, [&](std::string_view part) -> const Family* {
        if (part.size() == name.size()) return nullptr;
        if (const Family* const family = find_family(dangers().packages, part)) return family;
        const char next = name[part.size() + 1];
        const bool is_class = next >= 'A' && next <= 'Z';  // code.InteractiveInterpreter, whichever way it is split
        return part.size() >= module || is_class ? find_family(dangers().modules, part) : nullptr;
    });
}

/// Returns the first row that `find` gives for the parts of a name that begin after one of its dots:
/// torch.serialization imports os, so that its os.system runs a program. The last part alone may be a module, too.
template <class Find> const Family* danger_inside(std::string_view name, Find&& find) {
    for (std::size_t at = 0;; at = name.find('.', at) + 1) {
        const std::string_view rest = name.substr(at);
        if (const Family* const family = find(rest)) return family;
        if (rest.find('.') == rest.npos) return nullptr;
    }
}

bool is_plain_name(std::string_view name) {
    const auto is_plain = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
    };
    return std::all_of(name.begin(), name.end(), is_plain) && !name.starts_with('.') && !name.ends_with('.') &&
           name.find("..") == name.npos;
}

bool has_dunder(std::string_view name) {
    for (std::size_t at = 0;;) {
        const std::size_t dot = name.find('.', at);
        if (is_dunder(name.substr(at, dot - at))) return true;
        if (dot == name.npos) return false;
        at = dot + 1;
    }
}

Judgement runs(const Family& family) { return {Verdict::runs_code, family.why}; }

}  // namespace

bool is_dunder(std::string_view name) noexcept {
    return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

bool is_plain_global(const PickleGraph::Global& global) {
    return !global.module.empty() && !global.name.empty() && is_plain_name(dotted(global));
}

Judgement unknown_global() { return {Verdict::unknown, "is not a class or function that safemap knows"}; }

Judgement judge(const PickleGraph::Global& global) {
    const std::string name = dotted(global);
    if (!is_plain_global(global)) return {Verdict::runs_code, hides_function};
    const bool nested = global.name.find('.') != global.name.npos;
    if (const Family* const family = exact_danger(name)) return runs(*family);
    if (!nested) {
        if (const auto harmless = harmless_name(name)) return *harmless;
    }
    if (has_dunder(global.name)) return {Verdict::runs_code, hides_function};
    if (const Family* const family = module_danger(name, global.module.size())) return runs(*family);
    if (nested) {
        const std::string_view inner = global.name.substr(global.name.find('.') + 1);
        if (const Family* const family = danger_inside(inner, exact_danger)) return runs(*family);
        const auto in_module = [](std::string_view part) -> const Family* {
            if (const Family* const family = module_danger(part, 0)) return family;
            return find_family(dangers().packages, part);
        };
        if (const Family* const family = danger_inside(inner, in_module)) return runs(*family);
    }
    if (const auto harmless = harmless_class(global)) return *harmless;
    return unknown_global();
}

}  // namespace safemap::SAFEMAP_ABI::torch
