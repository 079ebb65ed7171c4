// Tests verdicts: names in the tables, and hostile and harmless forms of calls. From top to bottom: names that three
// scanners refuse, harmless names, a table of forms, damaged pickles, pickles in other files, and costs.
#include "torch/dangers.hpp"
#include "torch/examine.hpp"
#include "torch/globals.hpp"
#include "torch/named_globals.hpp"

#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"
#include "forge/zip.hpp"
#include "soak.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verdict_test {

using namespace safemap;

using namespace std::string_literals;

namespace {

torch::Judgement judged(std::string_view name) {
    const std::size_t dot = name.rfind('.');
    return torch::judge({name.substr(0, dot), name.substr(dot + 1)});
}

/// Returns the findings about the pickles in any bytes.
Findings examined(std::string_view bytes) {
    state::FindingList findings;
    static_cast<void>(torch::examine(fixtures::source(bytes), {0, bytes.size()}, "file", findings));
    return findings.findings();
}
/// Returns the findings of a file that is opened; of one that cannot be opened, those of examine().
Findings opened(std::string_view bytes) {
    torch::NamedGlobals globals(false);
    CollectFaults faults;
    if (error_of([&] { fixtures::read(bytes, faults, &globals); }) || !faults.faults().empty()) return examined(bytes);
    return globals.findings();
}
std::string text_of(const Findings& findings) {
    std::string text(name(findings.verdict));
    for (const Finding& each : findings.listed)
        text += "; " + each.name + " " + each.why + " [" + std::string(name(each.severity)) + "]";
    return text;
}

using forge::call;
using forge::dict;
using forge::global;
using forge::text;
using forge::tuple;

std::string with_state(const std::string& object, const std::string& state) { return object + state + "b"; }
std::string newobj(std::string_view module, std::string_view name, const std::string& arguments = ")") {
    return global(module, name) + arguments + "\x81";
}
std::string stack_global(const std::string& module, const std::string& name) { return module + name + "\x93"; }
std::string tuple4(const std::string& a, const std::string& b, const std::string& c, const std::string& d) {
    return "(" + a + b + c + d + "t";
}
std::string partial(const std::string& function, const std::string& keywords = "}") {
    return call("functools", "partial", {function}) + tuple4(function, ")", keywords, "N") + "b";
}
std::string list(std::initializer_list<std::string> items) {
    std::string all = "](";
    for (const std::string& item : items) all += item;
    return all + "e";
}
std::string in_bytes(const std::string& bytes) { return "B" + forge::little(bytes.size(), 4) + bytes; }

const std::string evil = global("posix", "system");
const std::string evil_call = call("posix", "system", {text("id")});
const std::string model = global("ultralytics.nn.tasks", "DetectionModel");
const std::string hostile_yaml = dict({text("activation"), text("__import__('os').system('id')")});

struct Form {
    const char* about;
    std::string value;  ///< opcodes
    Verdict verdict;
};

constexpr Verdict fine = Verdict::ok;
constexpr Verdict classes = Verdict::needs_classes;
constexpr Verdict unknown = Verdict::unknown;
constexpr Verdict code = Verdict::runs_code;

}  // namespace

TEST_CASE("every name that picklescan, modelscan and fickling refuse runs code") {
    std::ifstream file(std::string(SAFEMAP_TEST_DATA) + "/scanned_names.txt");
    std::size_t count = 0;
    for (std::string name; std::getline(file, name);) {
        if (name.starts_with('#')) continue;
        if (name.ends_with(".*")) name.back() = 'x';
        CAPTURE(name);
        ++count;
        // A partial is judged by its function.
        const bool by_use = name == "functools.partial";
        CHECK(judged(name).severity == (by_use ? classes : code));
        const std::size_t dot = name.rfind('.');
        CHECK(opened(forge::pickle(call(name.substr(0, dot), name.substr(dot + 1), {text("x")}))).verdict == code);
    }
    CHECK(count > 180);
}

TEST_CASE("names of many families run code, whichever way they are spelled") {
    for (const char* name : {"os.path.join",
                             "torch.hub.load",
                             "torch._inductor.codecache.compile_file",
                             "torch.utils.cpp_extension.load",
                             "idlelib.run.Executive",
                             "lib2to3.pgen2.grammar.Grammar",
                             "pip._internal.main",
                             "pydoc.pipepager",
                             "doctest.debug_script",
                             "profile.run",
                             "trace.Trace",
                             "ensurepip.bootstrap",
                             "asyncio.subprocess.Process",
                             "cgitb.lookup",
                             "code.InteractiveInterpreter",
                             "logging.config.listen",
                             "test.support.script_helper.spawn",
                             "distutils.file_util.write_file",
                             "numpy.load",
                             "numpy.f2py.crackfortran.param_eval",
                             "pandas.read_pickle",
                             "pandas.eval",
                             "joblib.load",
                             "dill.loads",
                             "cloudpickle.loads",
                             "keras.layers.core.lambda_layer.Lambda",
                             "requests.get",
                             "urllib.request.urlopen",
                             "http.client.HTTPSConnection",
                             "smtplib.SMTP",
                             "ftplib.FTP",
                             "shelve.open",
                             "sqlite3.connect",
                             "ctypes.CDLL",
                             "cffi.FFI",
                             "gc.get_objects",
                             "inspect.getattr_static",
                             "types.FunctionType",
                             "types.CodeType",
                             "bdb.Bdb",
                             "linecache.getline",
                             "marshal.loads",
                             "io.FileIO",
                             "_io.open",
                             "builtins.__import__",
                             "builtins.globals",
                             "builtins.type",
                             "builtins.setattr",
                             "weakref.finalize",
                             "atexit.register",
                             "signal.signal",
                             "threading.Thread",
                             "copyreg.pickle",
                             "itertools.starmap",
                             "copy.deepcopy",
                             "torch.fx.graph_module.reduce_graph_module",
                             "torch.save",
                             "torch.package.PackageImporter",
                             "torch.ops.load_library",
                             "hydra.utils.instantiate",
                             "six.moves.builtins.exec",
                             "yaml.unsafe_load",
                             "sklearn.externals.joblib.load",
                             "transformers.dynamic_module_utils.get_class_from_dynamic_module",
                             "collections.namedtuple",
                             "dataclasses.make_dataclass",
                             "fickling.hook.remove_hook",
                             "mmap.mmap",
                             "multiprocessing.Process",
                             "concurrent.futures.ThreadPoolExecutor",
                             "zipfile.ZipFile",
                             "numpy.ctypeslib.load_library",
                             "torch.distributed.rpc.rpc_sync",
                             "tensorflow.io.write_file",
                             "flair.models.SequenceTagger"}) {
        CAPTURE(name);
        CHECK(judged(name).severity == code);
    }
    CHECK(torch::judge({"torch.serialization", "os.system"}).severity == code);
    CHECK(torch::judge({"torch.nn.modules.linear", "math.os.system"}).severity == code);
    CHECK(torch::judge({"torch.nn.modules.linear", "Linear.__init__"}).severity == code);
    CHECK(torch::judge({"torch.nn.modules.linear", "Linear.forward.__globals__"}).severity == code);
    CHECK(torch::judge({"numpy", "f2py.crackfortran.myeval"}).severity == code);
    CHECK(torch::judge({"numpy", "__builtins__"}).severity == code);
    CHECK(torch::judge({"p\xD0\xBEsix", "system"}).severity == code);  // a Cyrillic letter
    CHECK(torch::judge({"os ", "system"}).severity == code);
    CHECK(torch::judge({"", "system"}).severity == code);
    CHECK(torch::judge({"os", ".system"}).severity == code);
}

TEST_CASE("classes of training libraries are harmless, and functions beside them are not") {
    for (const char* name : {"torch.nn.modules.conv.Conv2d",
                             "torch.optim.adamw.AdamW",
                             "torch.optim.lr_scheduler.LambdaLR",
                             "torchvision.models.resnet.ResNet",
                             "timm.models.vision_transformer.VisionTransformer",
                             "transformers.training_args.TrainingArguments",
                             "transformers.trainer_utils.IntervalStrategy",
                             "transformers.models.llama.configuration_llama.LlamaConfig",
                             "accelerate.state.PartialState",
                             "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
                             "lightning.fabric.utilities.data.AttributeDict",
                             "deepspeed.runtime.zero.config.ZeroStageEnum",
                             "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
                             "omegaconf.dictconfig.DictConfig",
                             "omegaconf.base.ContainerMetadata",
                             "argparse.Namespace",
                             "typing.Any",
                             "numpy.random._pickle.__randomstate_ctor",
                             "numpy.float64",
                             "pathlib.PosixPath",
                             "datetime.datetime",
                             "collections.deque",
                             "uuid.UUID",
                             "types.SimpleNamespace",
                             "ultralytics.nn.tasks.DetectionModel",
                             "models.yolo.Model",
                             "models.common.Conv",
                             "fairseq.data.dictionary.Dictionary",
                             "yacs.config.CfgNode",
                             "segment_anything.modeling.sam.Sam",
                             "whisper.model.Whisper",
                             "sklearn.svm._classes.SVC",
                             "torch._C._nn.gelu",
                             "peft.utils.peft_types.PeftType",
                             "megatron.core.enums.ModelType",
                             "signal.Signals",
                             "mmengine.logging.history_buffer.HistoryBuffer",
                             "detectron2.structures.instances.Instances",
                             "fastai.learner.Learner",
                             "olmo.config.ActivationType",
                             "tokenizers.AddedToken"}) {
        CAPTURE(name);
        CHECK(judged(name).severity == classes);
    }
    for (const char* name :
         {"torch.nn.modules.utils._pair", "torchvision.models.resnet.resnet50", "transformers.pipeline",
          "transformers.trainer_utils.set_seed", "my_model.Net", "__main__.Config", "mypackage.models.Net",
          "mmengine.config.config.Config", "mmengine.config.lazy.LazyObject", "code.models.Net", "base64.b64decode",
          "transformers.utils.hub.cached_file", "transformers.models.bert._LazyModule", "zlib.decompress",
          "deepspeed.ops.op_builder.builder.OpBuilder", "ultralytics.utils.downloads.safe_download"}) {
        CAPTURE(name);
        CHECK(judged(name).severity == unknown);
    }
}

TEST_CASE("the verdict of a pickle counts how it uses what it names") {
    const std::string linear = newobj("torch.nn.modules.linear", "Linear");
    const std::string layer_norm = global("torch.nn.modules.normalization", "LayerNorm");
    const std::string eps = dict({text("eps"), "G\x3e\xb0\xc6\xf7\xa0\xb5\xed\x8d"s});
    const std::string space = call("argparse", "Namespace", {});
    const std::string attributes = newobj("pytorch_lightning.utilities.parsing", "AttributeDict");
    const Form forms[] = {
        // Data, and what training libraries write.
        {"plain values", dict({text("a"), list({"N", "\x88"})}), fine},
        {"an OrderedDict", forge::ordered(), fine},
        {"a module", with_state(linear, dict({text("training"), "\x88"})), classes},
        {"a module by copyreg",
         with_state(call("copyreg", "_reconstructor",
                         {global("torch.nn.modules.linear", "Linear"), global("builtins", "object"), "N"}),
                    dict({})),
         classes},
        {"a layer with arguments", call("torch.nn.modules.linear", "Linear", {forge::integer(2), forge::integer(3)}),
         classes},
        {"a model without its constructor", with_state(model + ")\x81", dict({text("yaml"), hostile_yaml})), classes},
        {"a member of an enumeration", call("transformers.trainer_utils", "IntervalStrategy", {text("steps")}),
         classes},
        {"a member of an enumeration of Python 3.11",
         call("builtins", "getattr", {global("transformers.trainer_utils", "IntervalStrategy"), text("STEPS")}),
         classes},
        {"an enumeration by its name alone", call("peft.tuners.lora", "InitType", {text("gaussian")}), classes},
        {"a class as a key",
         dict({global("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint"), dict({})}), classes},
        {"a namespace", with_state(space, dict({text("lr"), forge::integer(1)})), classes},
        {"a partial of a layer", partial(layer_norm, eps), classes},
        {"a partial of an activation", partial(global("torch.nn.functional", "gelu")), classes},
        {"Optional[int]", call("_operator", "getitem", {global("typing", "Optional"), global("builtins", "int")}),
         classes},
        {"the class of None", call("builtins", "type", {"N"}), classes},
        {"a random state",
         call("numpy.random._pickle", "__randomstate_ctor",
              {text("MT19937"), global("numpy.random._pickle", "__bit_generator_ctor")}),
         classes},
        {"a default dictionary", call("collections", "defaultdict", {global("builtins", "list")}), fine},
        {"a DeepSpeed loss scaler",
         with_state(newobj("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
                    dict({text("cur_scale"), forge::integer(1)})),
         classes},
        {"a tensor of a subclass",
         call("torch._tensor", "_rebuild_from_type_v2",
              {global("torch", "Size"), global("torch.nn.parameter", "Parameter"), ")", "}"}) +
             "0}",
         fine},
        {"a NumPy array",
         call("numpy.core.multiarray", "_reconstruct", {global("numpy", "ndarray"), tuple({"K\x00"s}), "C\001b"}),
         fine},
        {"a module with a function", with_state(linear, dict({text("act"), global("torch._C._nn", "gelu")})), classes},
        {"a function of torch as Python names it",
         call("builtins", "getattr", {global("torch._C", "_VariableFunctionsClass"), text("relu")}), classes},
        {"a function of torch", tuple({global("torch._C", "_VariableFunctionsClass.cosine_similarity")}), classes},
        {"a method of tensors", tuple({global("torch._C", "TensorBase.add")}), classes},
        {"an activation that attends", tuple({global("torch._C._nn", "scaled_dot_product_attention")}), classes},
        {"a result of torch.max", call("torch.return_types", "max", {tuple({"N", "N"}), "}"}), classes},
        {"a loss", partial(global("torch.nn.functional", "huber_loss")), classes},
        {"a partial of an optimizer", partial(global("torch.optim.sgd", "SGD"), dict({text("lr"), "K\1"})), classes},
        {"a partial of a scheduler",
         partial(global("torch.optim.lr_scheduler", "StepLR"), dict({text("step_size"), "K\1"})), classes},
        {"the seed of a generator",
         call("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence",
              {global("numpy.random.bit_generator", "SeedSequence"), "K\1", "N"}),
         classes},
        {"a masked array",
         call("numpy.ma.core", "_mareconstruct",
              {global("numpy.ma", "MaskedArray"), global("numpy", "ndarray"), tuple({"K\0"s}), text("b")}),
         classes},
        {"an error of torch", call("torch", "OutOfMemoryError", {text("x")}), classes},
        {"a time", call("time", "struct_time", {tuple({"K\1"}), "}"}), classes},
        {"a time zone",
         call("builtins", "getattr", {global("zoneinfo", "ZoneInfo"), text("_unpickle")}) +
             tuple({text("Europe/Paris"), "\x88"}) + "R",
         classes},
        {"an address", call("ipaddress", "IPv4Address", {"K\1"}), classes},
        {"a layer without a shape",
         newobj("torch.nn.modules.linear", "LazyLinear") + "q\x07" +
             dict({text("_load_hook"), call("builtins", "getattr", {"h\x07", text("_lazy_load_hook")})}) + "b",
         classes},
        {"a private attribute", with_state(space, dict({text("__orig_class__"), global("typing", "Any")})), classes},
        // Classes of a project.
        {"a class of a project", with_state(newobj("my", "Thing"), dict({text("a"), "N"})), classes},
        {"a nested class of a project", newobj("__main__", "Outer.Inner"), classes},
        {"a class of a project as a value", tuple({global("my", "Thing")}), classes},
        {"a member of an enumeration", call("my", "Phase", {text("decay")}), classes},
        {"a class of a project with a state of its own", with_state(newobj("my", "Thing"), text("a")), unknown},
        {"a class of a project with arguments", call("my", "Thing", {text("a b")}), unknown},
        {"a function of a project", call("my", "thing", {}), unknown},
        {"the name of a function", tuple({global("my", "thing")}), unknown},
        {"a method of a project", call("my", "Thing.run", {}), unknown},
        {"a class of Python without a row", newobj("statistics", "NormalDist"), unknown},
        {"a class of a library without a row", newobj("PIL.Image", "Thing"), unknown},
        // Neither.
        {"a partial of an unknown class", partial(global("my", "Thing")), unknown},
        {"a subclass of an array, of a project",
         call("numpy.core.multiarray", "_reconstruct", {global("my", "Array"), tuple({"K\x00"s}), "C\001b"}), classes},
        {"an unknown decoder", call("base64", "b64decode", {text("gASVIg==")}), unknown},
        // Constructors and methods of harmless classes.
        {"a model by its constructor", model + tuple({hostile_yaml}) + "R", unknown},
        {"a model by OBJ", "(" + model + hostile_yaml + "o", unknown},
        {"a model by INST", "(" + hostile_yaml + "iultralytics.nn.tasks\nDetectionModel\n", unknown},
        {"a model as the base class", call("copyreg", "_reconstructor", {model, model, hostile_yaml}), unknown},
        {"a model as the constructor of a generator",
         call("numpy.random._pickle", "__randomstate_ctor", {hostile_yaml, model}), unknown},
        {"a model as the function of a tensor",
         call("torch._tensor", "_rebuild_from_type_v2",
              {model, global("torch", "Tensor"), tuple({hostile_yaml}), "}"}) +
             "0}",
         unknown},
        {"a model as the function of a tensor in a tensor",
         call("torch._tensor", "_rebuild_from_type_v2",
              {global("torch._tensor", "_rebuild_from_type_v2"), global("torch", "Tensor"),
               tuple({model, global("torch", "Tensor"), tuple({hostile_yaml}), "}"}), "}"}) +
             "0}",
         unknown},
        {"a partial of a model", partial(model, dict({text("cfg"), hostile_yaml})), unknown},
        {"a partial whose state names a model",
         call("functools", "partial", {layer_norm}) + tuple4(model, ")", hostile_yaml, "N") + "b", unknown},
        {"a method of a harmless class", call("transformers.training_args", "TrainingArguments.from_dict", {"}"}),
         unknown},
        {"a static method by getattr",
         call("builtins", "getattr",
              {global("transformers.configuration_utils", "PretrainedConfig"), text("from_pretrained")}) +
             tuple({text("x")}) + "R",
         unknown},
        {"a method that is handed on",
         with_state(newobj("argparse", "Namespace"),
                    dict({text("f"), global("deepspeed.runtime.utils", "CheckOverflow.check")})),
         unknown},
        {"a method of a backend", tuple({global("deepspeed.comm.ccl", "CCLBackend.run_collective")}), unknown},
        {"an iterator that joins its workers",
         with_state(newobj("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"), dict({})), unknown},
        {"a data set that opens its state",
         with_state(newobj("deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset", "MMapIndexedDataset"),
                    text("/etc/passwd")),
         unknown},
        {"a tokenizer that opens a file", newobj("transformers.models.llama.tokenization_llama", "LlamaTokenizer"),
         unknown},
        {"a file as a tensor", tuple({global("torch._C", "_VariableFunctionsClass.from_file")}), code},
        {"a method of any object",
         call("builtins", "getattr", {newobj("torch.nn.modules.linear", "Linear"), text("forward")}), code},
        {"a function of a module of classes", call("transformers.trainer_utils", "set_seed", {forge::integer(1)}),
         unknown},
        {"a list of an object that calls what it holds",
         call("builtins", "list",
              {with_state(newobj("torch.utils.data.dataloader", "DataLoader"),
                          dict({text("dataset"), list({hostile_yaml})}))}),
         unknown},
        {"pairs of such an object",
         call("collections", "OrderedDict", {list({newobj("torch.utils.data.dataloader", "DataLoader")})}), unknown},
        {"such an object as a state",
         with_state(call("random", "Random", {}), newobj("torchvision.datasets.folder", "ImageFolder")), unknown},
        {"such an object in a random state",
         with_state(call("numpy.random._pickle", "__bit_generator_ctor", {text("MT19937")}),
                    dict({text("state"), dict({text("key"), newobj("torchvision.datasets.folder", "ImageFolder")})})),
         unknown},
        {"such an object in a default dictionary",
         call("collections", "defaultdict", {"N", newobj("torch.utils.data.dataloader", "DataLoader")}), unknown},
        {"such an object for a list that is reconstructed",
         call("copyreg", "_reconstructor",
              {global("collections", "UserList"), global("builtins", "list"),
               newobj("torch.utils.data.dataloader", "DataLoader")}),
         unknown},
        {"estimators in a pipeline",
         with_state(newobj("sklearn.pipeline", "Pipeline"),
                    dict({text("steps"), list({tuple({text("svc"), newobj("sklearn.svm._classes", "SVC")})})})),
         classes},
        {"a layer of such an object",
         call("torch.nn.modules.container", "ModuleList", {newobj("torch.utils.data.dataloader", "DataLoader")}),
         unknown},
        {"a model class that is handed on",
         with_state(newobj("torchvision.datasets.folder", "ImageFolder"), dict({text("loader"), model})), unknown},
        {"a model class as a key", dict({model, "N"}), classes},
        {"objects in a list", list({with_state(newobj("torch.utils.data.dataloader", "DataLoader"), dict({}))}),
         classes},
        // Names that run code, in each opcode and place.
        {"REDUCE", evil_call, code},
        {"a dropped result", evil_call + "0}", code},
        {"an overwritten value", dict({text("a"), evil_call, text("a"), "N"}), code},
        {"INST", "(" + text("id") + "iposix\nsystem\n", code},
        {"OBJ", "(" + evil + text("id") + "o", code},
        {"NEWOBJ", evil + tuple({text("id")}) + "\x81", code},
        {"NEWOBJ_EX", evil + tuple({text("id")}) + "}\x92", code},
        {"STACK_GLOBAL", stack_global(text("posix"), text("system")) + tuple({text("id")}) + "R", code},
        {"STACK_GLOBAL from the memo",
         text("system") + "q\0010" + text("posix") + "q\0020" + "h\2h\1\x93"s + tuple({text("id")}) + "R", code},
        {"STACK_GLOBAL of old strings", "U\5posixU\6system\x93"s + tuple({text("id")}) + "R", code},
        {"STACK_GLOBAL of computed names",
         stack_global(call("builtins", "str", {text("posix")}), text("system")) + tuple({text("id")}) + "R", code},
        {"a code of the extension registry", "\x82\1"s + tuple({text("id")}) + "R", code},
        {"a code of four bytes", "\x84\1\0\0\0"s, code},
        {"a name of Python 2", call("__builtin__", "eval", {text("1")}), code},
        {"a module of Python 2", call("commands", "getoutput", {text("id")}), code},
        {"execfile", call("__builtin__", "execfile", {text("x")}), code},
        {"os through another module", call("torch.serialization", "os.system", {text("id")}), code},
        {"sys.modules", call("builtins", "getattr", {global("sys", "modules"), text("get")}), code},
        {"a name that is handed on", call("collections", "defaultdict", {evil}), code},
        {"a name in a list", list({evil}), code},
        {"a name as a key", dict({evil, "N"}), code},
        {"a name in a set", "\x8f(" + evil + "\x90", code},
        {"a name in a frozenset", "(" + evil + "\x91", code},
        {"a name in a persistent id", tuple({text("storage"), evil, text("0"), text("cpu"), "K\1"s}) + "Q", code},
        {"a call in a persistent id", evil_call + "Q", code},
        {"a call as a key", dict({evil_call, "N"}), code},
        {"a call in the arguments of a tensor",
         call("torch._utils", "_rebuild_tensor_v2", {evil_call, "K\0"s, ")", ")", "\x89", forge::ordered()}) + "0}",
         code},
        {"a hook of a tensor",
         call("torch._utils", "_rebuild_tensor_v2",
              {"N", "K\0"s, ")", ")", "\x89", forge::ordered() + "K\0"s + evil + "s"}) +
             "0}",
         code},
        {"the constructor of a random state", call("numpy.random._pickle", "__randomstate_ctor", {text("id"), evil}),
         code},
        {"a class that is reconstructed", call("copyreg", "_reconstructor", {evil, global("builtins", "object"), "N"}),
         code},
        {"__newobj__", call("copyreg", "__newobj__", {evil, text("id")}), code},
        {"a partial", partial(evil), code},
        {"a partial of a partial", call("functools", "partial", {partial(layer_norm)}), code},
        {"a partial whose state names a program",
         call("functools", "partial", {layer_norm}) + tuple4(evil, tuple({text("id")}), "}", "N") + "b", code},
        {"a partial with a computed state",
         call("functools", "partial", {layer_norm}) + call("builtins", "tuple", {list({layer_norm, ")", "}", "N"})}) +
             "b",
         code},
        {"partial itself", tuple({global("functools", "partial")}), code},
        {"a partial that is called", partial(layer_norm) + tuple({forge::integer(3)}) + "R", code},
        {"reduce", call("functools", "reduce", {global("my", "f"), list({"N"})}), code},
        {"map", call("builtins", "list", {call("builtins", "map", {global("my", "f"), list({"N"})})}), code},
        {"filter", call("builtins", "filter", {global("builtins", "bool"), list({"N"})}), code},
        {"attrgetter",
         call("operator", "attrgetter", {text("system")}) + tuple({global("torch.serialization", "os")}) + "R", code},
        {"itemgetter", call("operator", "itemgetter", {text("x")}), code},
        {"methodcaller", call("operator", "methodcaller", {text("system"), text("id")}), code},
        {"getitem of a dictionary", call("_operator", "getitem", {dict({}), text("x")}), code},
        {"getattr of a dunder",
         call("builtins", "getattr", {global("torch.nn.modules.linear", "Linear"), text("__init__")}), code},
        {"getattr with a default", call("builtins", "getattr", {global("my", "Thing"), text("x"), "N"}), code},
        {"getattr of an object", call("builtins", "getattr", {space, text("x")}), code},
        {"getattr that is handed on", tuple({global("builtins", "getattr")}), code},
        {"a chain of getattr",
         call("builtins", "getattr",
              {call("builtins", "getattr", {global("torch", "serialization"), text("os")}), text("system")}) +
             tuple({text("id")}) + "R",
         code},
        {"__getattribute__", call("builtins", "object.__getattribute__", {space, text("x")}), code},
        {"__globals__", call("torch.nn.modules.linear", "Linear.forward.__globals__.get", {text("os")}), code},
        {"__subclasses__", call("builtins", "object.__subclasses__", {}), code},
        {"__builtins__", call("my", "__builtins__.get", {text("eval")}), code},
        {"__import__", call("builtins", "__import__", {text("os")}), code},
        {"setattr", call("builtins", "setattr", {global("torch", "Tensor"), text("x"), "N"}), code},
        {"a class made of parts",
         call("builtins", "type",
              {text("X"), tuple({global("builtins", "dict")}), dict({text("__del__"), global("my", "f")})}),
         code},
        {"a look-alike", call("p\xD0\xBEsix", "system", {text("id")}), code},
        {"a name with a space", call("os ", "system", {text("id")}), code},
        {"the result of a call is called", call("my", "factory", {}) + ")R", code},
        {"the result of a harmless call is called", call("collections", "OrderedDict", {}) + ")R", code},
        {"an object is called", linear + tuple({"N"}) + "R", code},
        {"a persistent id is called", text("x") + "Q)R", code},
        {"the result of a call through the memo", call("my", "factory", {}) + "q\1N\x85" + "h\1)R0h\1)R"s, code},
        {"a call of a value that a dictionary hides", call("builtins", "dict", {}) + text("x") + evil + "s", code},
        // Attributes that unpickling or torch call.
        {"__setstate__", with_state(space, dict({text("__setstate__"), model})) + hostile_yaml + "b", code},
        {"__setstate__ in slots",
         with_state(space, tuple({"N", dict({text("__setstate__"), global("my", "f")})})) + "}b", code},
        {"__setstate__ as an item", attributes + text("__setstate__") + model + "s" + hostile_yaml + "b", code},
        {"__setstate__ under a computed name",
         with_state(space, dict({call("builtins", "str", {text("__setstate__")}), model})) + hostile_yaml + "b", code},
        {"__setstate__ as a keyword",
         global("argparse", "Namespace") + ")" + dict({text("__setstate__"), model}) + "\x92" + hostile_yaml + "b",
         code},
        {"__setstate__ of a partial", partial(global("argparse", "Namespace"), dict({text("__setstate__"), model})),
         code},
        {"__reduce_ex__", with_state(space, dict({text("__reduce_ex__"), model})), code},
        {"extend", with_state(space, dict({text("extend"), model})) + "(" + hostile_yaml + "e", code},
        {"a tensor whose detach makes an object",
         call(
             "torch._utils", "_rebuild_parameter",
             {with_state(space, dict({text("detach"), partial(global("argparse", "Namespace"))})), hostile_yaml, "N"}) +
             "0}",
         code},
        {"requires_grad_ of an object", with_state(space, dict({text("requires_grad_"), model})), code},
        {"attributes of a class", with_state(global("torch", "Tensor"), tuple({"N", dict({text("x"), model})})), code},
        {"attributes of a module",
         with_state(global("torch", "serialization"), tuple({"N", dict({text("pickle"), "N"})})), code},
        {"attributes of a harmless class",
         with_state(global("torch.nn.modules.linear", "Linear"), tuple({"N", dict({text("forward"), model})})), code},
        // Pickles in pickles.
        {"loads", call("pickle", "loads", {in_bytes(forge::pickle(evil_call))}), code},
        {"torch.load of a text", call("torch", "load", {text("x.pt")}), code},
        {"_load_from_bytes of a program",
         forge::load_from_bytes(forge::Legacy{.object = evil_call, .machine = "}"}.join()) + "0}", code},
        {"_load_from_bytes of a plain pickle", forge::load_from_bytes(forge::pickle(evil_call)) + "0}", code},
        {"_load_from_bytes of a zip", forge::load_from_bytes(forge::archive(evil_call)) + "0}", code},
        {"_load_from_bytes that is handed on",
         call("collections", "defaultdict", {global("torch.storage", "_load_from_bytes")}), code},
        {"bytes that are a pickle", dict({text("x"), in_bytes(forge::pickle(evil_call))}), code},
        {"a bytearray that is a pickle",
         dict({text("x"), "\x96" + forge::little(forge::pickle(evil_call).size(), 8) + forge::pickle(evil_call)}),
         code},
        {"bytes in the form of protocol 2",
         call("_codecs", "encode", {text("\xC2\x80\2" + evil_call + "."), text("latin1")}), code},
        {"bytes that are a pickle of protocol 0", dict({text("x"), in_bytes("cposix\nsystem\n(S'id'\ntR.")}), code},
        {"a text that is a pickle of protocol 0", dict({text("x"), text("cposix\nsystem\n(S'id'\ntR.")}), code},
        {"pickles in pickles in pickles",
         in_bytes(forge::pickle(in_bytes(forge::pickle(in_bytes(forge::pickle(evil_call)))))), code},
        {"bytes that are a zip of torch", dict({text("x"), in_bytes(forge::archive(evil_call))}), code},
        {"bytes that begin like a pickle", dict({text("x"), in_bytes("\x80\2 and other bytes")}), unknown},
        {"bytes that are not", dict({text("x"), in_bytes("\1\2\3")}), fine},
    };
    CHECK(std::size(forms) >= 130);
    for (const Form& form : forms) {
        CAPTURE(form.about);
        const std::string bytes = forge::pickle(form.value);
        CAPTURE(text_of(opened(bytes)));
        CAPTURE(text_of(examined(bytes)));
        CHECK(opened(bytes).verdict == form.verdict);
        CHECK(examined(bytes).verdict == form.verdict);
        CHECK(opened(forge::archive(form.value)).verdict == form.verdict);
        CHECK(examined(forge::archive(form.value)).verdict == form.verdict);
        // Inside a pickle that needs nothing, and after it.
        CHECK(examined(forge::pickle("}") + bytes).verdict == form.verdict);
        CHECK(opened(forge::pickle("}") + bytes).verdict == form.verdict);
    }
}

TEST_CASE("files that torch wrote need classes at most") {
    std::size_t count = 0;
    for (const auto& file : fixtures::table()) {
        if (file.file.find('/') != std::string::npos) continue;
        CAPTURE(file.file);
        const std::string bytes = fixtures::content(file.file);
        CAPTURE(text_of(opened(bytes)));
        CHECK(opened(bytes).verdict <= classes);
        CHECK(examined(bytes).verdict <= classes);
        ++count;
    }
    CHECK(count > 30);
    for (const char* const file : {"broken/os_system.pt", "broken/legacy_os_system.pt", "broken/eval.pt",
                                   "broken/getattr.pt", "broken/extension.pt"})
        CHECK(opened(fixtures::content(file)).verdict == code);
}

TEST_CASE("a damaged pickle is judged up to its damage, and beyond faults that some unpickler does not see") {
    const std::string head = "\x80\2"s;
    const std::string payload = head + evil_call + "0";
    const std::pair<const char*, std::string> damaged[] = {
        {"no STOP", payload},
        {"an unknown opcode", payload + "\xff}."},
        {"an empty stack", payload + "0."},
        {"a text that is cut", payload + "X\xff\xff\xff\x0f" + "abc"},
        {"a negative count", payload + "T\xff\xff\xff\xff."},
        {"an unknown protocol after it", payload + "\x80\x09}."},
        {"a memo entry that does not exist", payload + "h\x63."},
        {"a call of None", payload + "N)R."},
        {"a key that is a list", payload + "}]Ns."},
        {"a state for a list before it", head + "]}b0" + evil_call + "."},
        {"items for a number before it", head + "K\1(NNe0" + evil_call + "."},
        {"a text that is not UTF-8 before it", head + "X\2\0\0\0\xff\xfe"s + "0" + evil_call + "."},
        {"a code of the registry before it", head + "\x82\1"s + "0" + evil_call + "."},
        {"a persistent id of protocol 0 before it", head + "Pabc\n0" + evil_call + "."},
        {"a buffer outside of the pickle before it", head + "\x97" + "0" + evil_call + "."},
        {"a frame inside a frame before it", head + "\x95\x20\0\0\0\0\0\0\0\x95\1\0\0\0\0\0\0\0"s + evil_call + "."},
        {"a key without a value before it", head + "}(Nu0" + evil_call + "."},
        {"a list in a frozenset before it", head + "(]\x91" + "0" + evil_call + "."},
        {"a long integer before it",
         head + "\x8b" + forge::little(70'000, 4) + std::string(70'000, '\1') + "0" + evil_call + "."},
        {"an octal number before it", head + "I010\n0" + evil_call + "."},
        {"members for a dictionary before it", head + "}(N\x90" + "0" + evil_call + "."},
    };
    for (const auto& row : damaged) {
        const auto& about = row.first;
        const auto& bytes = row.second;
        CAPTURE(about);
        CAPTURE(text_of(examined(bytes)));
        CHECK(examined(bytes).verdict == code);
        CHECK(opened(bytes).verdict == code);
        CHECK(examined(forge::pickle("}") + bytes).verdict == code);
        forge::Zip zip;
        zip.add("a/data.pkl", bytes);
        CHECK(examined(zip.join()).verdict == code);
    }
    // A download that was cut has no verdict of its own.
    const std::string whole = forge::pickle(dict({text("a"), forge::ordered(), text("b"), forge::ordered()}));
    for (std::size_t size = 2; size < whole.size(); ++size) CHECK(examined(whole.substr(0, size)).verdict == fine);
    CHECK(examined(head + "}]Ns.").verdict == unknown);
}

TEST_CASE("any bytes have a verdict") {
    const std::string whole[] = {
        forge::pickle(tuple({partial(model), with_state(newobj("my", "Thing"), dict({text("a"), list({evil})}))})),
        forge::archive(evil_call), forge::pickle(in_bytes(forge::archive(evil_call))),
        forge::Legacy{.object = evil_call, .machine = "}"}.join()};
    std::mt19937 random(soak::seed(7));
    for (int round = soak::rounds_of_one_thread(8000); round > 0; --round) {
        std::string bytes = whole[random() % std::size(whole)];
        for (auto count = random() % 4 + 1; count > 0; --count) {
            const std::size_t at = random() % bytes.size();
            if (random() % 3 == 0) bytes.erase(at, random() % 9);
            else bytes[at] = static_cast<char>(random());
            if (bytes.empty()) bytes = "x";
        }
        CHECK_OK(examined(bytes));
        CHECK_OK(opened(bytes));
    }
}

TEST_CASE("pickles are found in every record of a zip, also without its directory") {
    const std::string harmless = forge::pickle("}");
    const std::string payload = forge::pickle(evil_call);
    const auto zip_with = [&](const std::string& name, const std::string& data) {
        forge::Zip zip;
        zip.add("a/data.pkl", harmless);
        zip.add(name, data);
        return zip.join();
    };
    for (const char* name : {"a/other.pkl", "a/extra/data.pkl", "b/data.pkl", "a/model.bin", "a/script", "x.pickle",
                             "a/inner.zip", "a/objects.npy"}) {
        CAPTURE(name);
        CHECK(examined(zip_with(name, payload)).verdict == code);
        CHECK(examined(zip_with(name, forge::archive(evil_call))).verdict == code);
        if (std::string(name).starts_with("a/")) CHECK(opened(zip_with(name, payload)).verdict == code);
        CHECK(examined(zip_with(name, "no pickle")).verdict == fine);
    }
    CHECK(examined(zip_with("a/data/0", payload)).verdict == fine);  // the bytes of a tensor
    std::string broken = zip_with("a/other.pkl", payload);
    broken.resize(broken.size() - 10);
    CHECK(examined(broken).verdict == code);
    const std::size_t directory = broken.find("PK\1\2");
    REQUIRE(directory != broken.npos);
    CHECK(examined(broken.substr(0, directory)).verdict == code);
    std::string renamed = zip_with("a/other.pkl", payload);
    renamed[renamed.rfind("PK\1\2") + 4] ^= '\x20';
    CHECK(examined(renamed).verdict == code);
    CHECK(examined("#!/bin/sh\n" + forge::archive(evil_call)).verdict == code);
    CHECK(opened(forge::archive("}" + "0"s + evil_call)).verdict == code);
}

TEST_CASE("a file of several formats is judged in each") {
    const std::string old = "cposix\nsystem\n(S'id'\ntR0}.";
    const std::string harmless = forge::archive("}");
    const auto v7 = [](const std::vector<std::pair<std::string, std::string>>& members, const char* sum_format) {
        std::string tar;
        for (const auto& [name, data] : members) {
            std::string head(512, '\0');
            const auto put = [&](std::size_t at, const std::string& field) { head.replace(at, field.size(), field); };
            put(0, name);
            char octal[24];
            static_cast<void>(std::snprintf(octal, sizeof octal, "%011o", static_cast<unsigned>(data.size())));
            put(124, octal);
            head[156] = '0';
            put(148, "        ");
            unsigned sum = 0;
            for (const char c : head) sum += static_cast<unsigned char>(c);
            static_cast<void>(std::snprintf(octal, sizeof octal, sum_format, sum));
            put(148, octal);
            tar += head + data + std::string((512 - data.size() % 512) % 512, '\0');
        }
        return tar + std::string(1024, '\0');
    };
    const std::string empty = forge::pickle("}");
    const std::string payload = forge::pickle(evil_call);
    const auto tar = [&](const std::string& bytes, const char* sum_format = "%06o") {
        return v7({{"storages", bytes}, {"tensors", empty}, {"pickle", empty}}, sum_format);
    };
    const std::string mixed[] = {old + harmless,
                                 tar(payload),
                                 tar(old),
                                 tar(payload, "0o%o"),
                                 tar(payload) + harmless,
                                 v7({{"x", empty}, {"tensors", old}}, "%06o"),
                                 v7({{"\x80\2U\x80", payload}}, "%06o")};
    for (const std::string& bytes : mixed) {
        CAPTURE(&bytes - mixed);
        CAPTURE(text_of(examined(bytes)));
        CHECK(examined(bytes).verdict == code);
        CHECK(opened(bytes).verdict == code);
        CHECK(opened(forge::pickle(forge::load_from_bytes(bytes) + "0}")).verdict == code);
    }
    for (const std::string& bytes : {old + harmless, tar(payload) + harmless, "text" + harmless}) {
        torch::NamedGlobals strict(true);
        ThrowFirst faults;
        CHECK_FAULT(fixtures::read(bytes, faults, &strict), Errc::unknown_global);
    }
    CHECK(examined("text" + harmless).verdict == fine);
    CHECK(examined(v7({{"README", "command: a text\nof two lines"}}, "%06o")).verdict == fine);
    // Zips that follow each other, of which each has its readers.
    CHECK(examined(forge::archive(evil_call) + harmless).verdict == code);
    CHECK(examined(harmless + forge::archive(evil_call)).verdict == code);
}

TEST_CASE("records are found whatever the case of their names") {
    const std::string old = "cposix\nsystem\n(S'id'\ntR0}.";
    for (const auto& row : {std::pair{"a/DATA.PKL", "a/version"}, std::pair{"a/data.PKL", "a/data.pkl"},
                            std::pair{"a/data.pkl", "a/Data.Pkl"}}) {
        const auto& first = row.first;
        const auto& second = row.second;
        CAPTURE(first);
        forge::Zip zip;
        zip.add(first, second == "a/Data.Pkl"s ? forge::pickle("}") : old);
        zip.add(second, second == "a/Data.Pkl"s ? old : forge::pickle("}"));
        CHECK(examined(zip.join()).verdict == code);
        CHECK(opened(forge::pickle(forge::load_from_bytes(zip.join()) + "0}")).verdict == code);
    }
}

TEST_CASE("an old pickle is judged up to its damage, and a text that begins like one stays unsaid") {
    const std::string old = "cposix\nsystem\n(S'id'\ntR0";
    for (const std::string& bytes :
         {old + "c\xd0\xbe\nx\n\xff\xff", "N0I1\n0(lp0\n0" + old + "c\nx y\n\xff", old + "\xff"})
        CHECK(examined(bytes).verdict == code);
    for (const char* const bytes : {"correcthorse\nbatterystaple\n", "correcthorse\nbatterystaple\n.x",
                                    "cposix\nsystem\n0correcthorse\nbatterystaple\n"}) {
        CAPTURE(bytes);
        const std::string text = text_of(examined(bytes));
        CHECK((text.find("orrect") == text.npos || std::string_view(bytes).ends_with(".x")));
        CHECK(examined(bytes).verdict >= unknown);
    }
}

TEST_CASE("the code of TorchScript is judged by its operators") {
    const auto script = [](const std::string& source) {
        forge::Zip zip;
        zip.add("a/data.pkl", forge::pickle(newobj("__torch__", "Net") + "}b"));
        zip.add("a/constants.pkl", forge::pickle(")"));
        zip.add("a/code/__torch__.py", source);
        return zip.join();
    };
    for (const auto& judge : {opened, examined}) {
        CHECK(judge(script("def forward(self, x): return torch.relu(x)")).verdict == classes);
        forge::Zip traced;
        traced.add("a/data.pkl", forge::pickle(newobj("__torch__", "Net") + "}b"));
        traced.add("a/constants.pkl", forge::pickle(")"));
        traced.add("a/traced_inputs.pkl",
                   forge::pickle(call("torch.jit._pickle", "restore_type_tag", {list({"N"}), text("List[int]")})));
        CHECK(judge(traced.join()).verdict <= classes);
        traced.add("a/more.pkl", forge::pickle(tuple({global("torch.jit._pickle", "__builtins__")})));
        CHECK(judge(traced.join()).verdict == code);
        CHECK(judge(script("def __setstate__(self, x): torch.save(x, \"/tmp/x\")")).verdict == code);
    }
}

TEST_CASE("arrays of objects, old files and other data are told apart") {
    const auto array = [](const std::string& dtype, const std::string& data) {
        std::string header = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': (1,), }";
        return "\x93NUMPY\1\0"s + forge::little(header.size(), 2) + header + data;
    };
    CHECK(examined(array("|O", forge::pickle(evil_call))).verdict == code);
    CHECK(examined(array("<f4", forge::pickle(evil_call))).verdict == fine);
    const auto legacy = [](const std::string& machine, const std::string& object, const std::string& after) {
        return forge::Legacy{.object = object, .machine = machine, .trailing = after}.join();
    };
    CHECK(opened(legacy(evil_call, "}", {})).verdict == code);
    CHECK(opened(legacy("}", evil_call, {})).verdict == code);
    CHECK(opened(legacy("}", "}", forge::pickle(evil_call))).verdict == code);
    CHECK(opened(legacy("}", "}", "some bytes")).verdict == fine);
    const auto looked = [](std::string_view bytes) {
        state::FindingList findings;
        const auto at = torch::examine(fixtures::source(bytes), {0, bytes.size()}, "file", findings);
        CHECK(findings.findings().verdict == fine);
        return at;
    };
    CHECK(looked("command: a text\nthat begins with an opcode\nand goes on.") == torch::Looked::at_other_data);
    CHECK(looked("GGUF and more") == torch::Looked::at_other_data);
    CHECK(looked("{\"a\": 1}") == torch::Looked::at_other_data);
    CHECK(looked("") == torch::Looked::at_other_data);
    CHECK(looked(forge::pickle("}")) == torch::Looked::at_pickles);
}

TEST_CASE("the cost of a verdict is linear") {
    std::string chain = global("my", "factory");
    for (int i = 0; i < 20'000; ++i) chain += ")R";
    CHECK(examined(forge::pickle(chain)).verdict == code);
    std::string deep = forge::pickle(evil_call);
    for (int i = 0; i < 50; ++i) deep = forge::pickle(in_bytes(deep));
    CHECK(examined(deep).verdict == unknown);
    std::string nested = call("my", "thing", {});
    for (int i = 0; i < 20'000; ++i) nested += "\x85";
    CHECK(examined(forge::pickle(nested)).verdict == unknown);
    std::string names = "(";
    for (int i = 0; i < 40'000; ++i) names += global("my", "f" + std::to_string(i));
    const Findings many = examined(forge::pickle(names + evil + "t"));
    CHECK(many.verdict == code);
    CHECK(many.listed.size() == Findings::most_listed);
    CHECK(many.listed.front().name == "posix.system");
    CHECK(many.not_listed == 40'001 - Findings::most_listed);
}

}  // namespace verdict_test
