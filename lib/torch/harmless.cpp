// The table of harmless names. It has classes, by their names or by their packages, and single functions; a package is
// no reason to trust a function in it. An object that is made without its constructor gets its attributes from the
// file, and runs no code; so most classes are harmless only in this use, which is how Python pickles them. A
// constructor with arguments may do anything: that of an ultralytics model evaluates text from its configuration.
//
// Left out, because their objects import, open or download when they are unpickled: flair, spacy, allennlp.
// Tested by tests/torch/verdict_test.cpp.
#include "torch/harmless.hpp"

#include "pickle/words.hpp"
#include "torch/globals.hpp"

#include <algorithm>
#include <iterator>
#include <string>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

/// Classes whose constructors do nothing with their arguments but keep them, and functions that compute with tensors.
constexpr std::string_view any_use = R"(
    argparse.Namespace types.SimpleNamespace collections.deque collections.UserDict collections.UserList
    collections.UserString collections.ChainMap builtins.object builtins.range builtins.slice builtins.Ellipsis
    builtins.NotImplemented builtins.NoneType builtins.Exception builtins.ValueError builtins.KeyError
    builtins.TypeError builtins.RuntimeError builtins.AssertionError builtins.KeyboardInterrupt builtins.IndexError
    builtins.AttributeError builtins.OSError builtins.ImportError builtins.NotImplementedError builtins.StopIteration
    builtins.ArithmeticError builtins.ZeroDivisionError builtins.LookupError builtins.Warning builtins.UserWarning
    builtins.DeprecationWarning builtins.FutureWarning builtins.FileNotFoundError builtins.TimeoutError builtins.len
    builtins.abs builtins.sum builtins.round builtins.reversed builtins.enumerate builtins.zip builtins.all
    builtins.any builtins.repr builtins.ord builtins.chr builtins.hash builtins.id builtins.isinstance
    builtins.issubclass builtins.callable builtins.divmod builtins.pow builtins.ascii builtins.bin builtins.hex
    builtins.oct builtins.print datetime.date datetime.datetime datetime.time datetime.timedelta datetime.timezone
    decimal.Decimal fractions.Fraction pathlib.Path pathlib.PosixPath pathlib.WindowsPath pathlib.PurePath
    pathlib.PurePosixPath pathlib.PureWindowsPath uuid.UUID uuid.SafeUUID re._compile re.RegexFlag sre_compile.compile
    copyreg.__newobj__ copyreg.__newobj_ex__ copyreg._reconstructor functools.partial signal.Signals signal.Handlers
    io.BytesIO io.StringIO _io.BytesIO _io.StringIO itertools.count itertools.chain itertools.cycle itertools.repeat
    itertools.islice string.Template random.Random enum.auto
    typing.Any typing.Union typing.Optional typing.List typing.Dict typing.Tuple typing.Set typing.Callable
    typing.Sequence typing.Iterable typing.Mapping typing.Type typing.Literal
    numpy.bool_ numpy.bool numpy.int8 numpy.int16 numpy.int32 numpy.int64 numpy.intc numpy.intp numpy.int_
    numpy.longlong numpy.uint8 numpy.uint16 numpy.uint32 numpy.uint64 numpy.uintc numpy.uintp numpy.uint
    numpy.ulonglong numpy.float16 numpy.float32 numpy.float64 numpy.longdouble numpy.float128 numpy.float_
    numpy.complex64 numpy.complex128 numpy.clongdouble numpy.str_ numpy.bytes_ numpy.void numpy.object_
    numpy.datetime64 numpy.timedelta64 numpy.generic numpy.number numpy.integer numpy.floating numpy.matrix
    numpy.recarray numpy.record numpy.rec.recarray numpy.rec.record numpy.core.records.recarray
    numpy.core.records.record numpy._core.records.recarray numpy._core.records.record numpy.ma.core.MaskedArray
    numpy.ma.core._mareconstruct numpy.matrixlib.defmatrix.matrix numpy.random._pickle.__bit_generator_ctor
    numpy.random._pickle.__generator_ctor numpy.random._pickle.__randomstate_ctor numpy.random.mtrand.RandomState
    numpy.random._generator.Generator numpy.random._mt19937.MT19937 numpy.random._pcg64.PCG64
    numpy.random._pcg64.PCG64DXSM numpy.random._philox.Philox numpy.random._sfc64.SFC64
    numpy.random.bit_generator.SeedSequence numpy.random.bit_generator.__pyx_unpickle_SeedSequence
    numpy.ma.MaskedArray numpy.linalg.LinAlgError time.struct_time zoneinfo.ZoneInfo zoneinfo.ZoneInfo._unpickle
    ipaddress.IPv4Address ipaddress.IPv6Address ipaddress.IPv4Network ipaddress.IPv6Network ipaddress.IPv4Interface
    ipaddress.IPv6Interface torch.OutOfMemoryError torch.utils.data._utils.collate.default_convert
    numpy.poly1d numpy.lib.polynomial.poly1d
    scipy.sparse._csr.csr_matrix scipy.sparse.csr.csr_matrix scipy.sparse._csc.csc_matrix scipy.sparse.csc.csc_matrix
    scipy.sparse._coo.coo_matrix scipy.sparse.coo.coo_matrix
    torch.torch_version.TorchVersion torch.nn.backends.thnn._get_thnn_function_backend packaging.version.Version
    jsonargparse.namespace.Namespace torch.utils.data._utils.collate.default_collate
    torch.Generator torch.dtype torch.layout torch.memory_format torch.finfo torch.iinfo torch.strided
    torch.contiguous_format torch.channels_last torch.channels_last_3d torch.preserve_format torch.sparse_coo
    torch.sparse_csr torch.sum torch.mean torch.max torch.min torch.abs torch.exp torch.sqrt torch.sin torch.cos
    torch.tanh torch.relu torch.sigmoid torch.softmax torch.log_softmax torch.square torch.add torch.mul torch.cat
    torch.nn.Module torch.nn.Linear torch.nn.ReLU torch.nn.GELU torch.nn.SiLU torch.nn.Tanh torch.nn.Sigmoid
    torch.nn.LayerNorm torch.nn.BatchNorm1d torch.nn.BatchNorm2d torch.nn.Conv1d torch.nn.Conv2d torch.nn.Conv3d
    torch.nn.Dropout torch.nn.Identity torch.nn.Sequential torch.nn.ModuleList torch.nn.ModuleDict
    torch.nn.parameter.UninitializedParameter torch.nn.parameter.UninitializedBuffer
    torch.nn.utils.rnn.PackedSequence torch.cuda.amp.grad_scaler._refresh_per_optimizer_state
    torch.amp.grad_scaler._refresh_per_optimizer_state torch.cuda.amp.grad_scaler.OptState
    torch.distributed.remote_device._remote_device
    torch.amp.grad_scaler.OptState torch.utils.hooks.RemovableHandle torch.utils.hooks.unserializable_hook
    torch.nn.functional.relu torch.nn.functional.relu_ torch.nn.functional.relu6 torch.nn.functional.gelu
    torch.nn.functional.silu torch.nn.functional.mish torch.nn.functional.elu torch.nn.functional.selu
    torch.nn.functional.celu torch.nn.functional.leaky_relu torch.nn.functional.hardtanh torch.nn.functional.hardswish
    torch.nn.functional.hardsigmoid torch.nn.functional.softplus torch.nn.functional.softsign
    torch.nn.functional.sigmoid torch.nn.functional.tanh torch.nn.functional.logsigmoid torch.nn.functional.glu
    torch.nn.functional.prelu torch.nn.functional.rrelu torch.nn.functional.softmax torch.nn.functional.log_softmax
    torch.nn.functional.normalize torch.nn.functional.layer_norm torch.nn.functional.cross_entropy
    torch.nn.functional.mse_loss torch.nn.functional.l1_loss torch.nn.functional.smooth_l1_loss
    torch.nn.functional.nll_loss torch.nn.functional.binary_cross_entropy
    torch.nn.functional.binary_cross_entropy_with_logits torch.nn.functional.kl_div torch.nn.functional.dropout
    torch.nn.functional.linear torch.nn.functional.embedding torch.nn.functional.conv1d torch.nn.functional.conv2d
    torch.nn.functional.interpolate torch.nn.functional.pad torch.nn.functional.max_pool2d
    torch.nn.functional.avg_pool2d torch.nn.functional.scaled_dot_product_attention
    torch.nn.functional.adaptive_avg_pool1d torch.nn.functional.adaptive_avg_pool2d
    torch.nn.functional.adaptive_avg_pool3d torch.nn.functional.adaptive_max_pool1d
    torch.nn.functional.adaptive_max_pool2d torch.nn.functional.adaptive_max_pool3d torch.nn.functional.affine_grid
    torch.nn.functional.alpha_dropout torch.nn.functional.avg_pool1d torch.nn.functional.avg_pool3d
    torch.nn.functional.batch_norm torch.nn.functional.bilinear torch.nn.functional.celu_ torch.nn.functional.conv3d
    torch.nn.functional.conv_transpose1d torch.nn.functional.conv_transpose2d torch.nn.functional.conv_transpose3d
    torch.nn.functional.cosine_embedding_loss torch.nn.functional.cosine_similarity torch.nn.functional.ctc_loss
    torch.nn.functional.dropout1d torch.nn.functional.dropout2d torch.nn.functional.dropout3d torch.nn.functional.elu_
    torch.nn.functional.embedding_bag torch.nn.functional.feature_alpha_dropout torch.nn.functional.fold
    torch.nn.functional.gaussian_nll_loss torch.nn.functional.grid_sample torch.nn.functional.group_norm
    torch.nn.functional.gumbel_softmax torch.nn.functional.hardshrink torch.nn.functional.hardtanh_
    torch.nn.functional.hinge_embedding_loss torch.nn.functional.huber_loss torch.nn.functional.instance_norm
    torch.nn.functional.leaky_relu_ torch.nn.functional.local_response_norm torch.nn.functional.lp_pool1d
    torch.nn.functional.lp_pool2d torch.nn.functional.margin_ranking_loss torch.nn.functional.max_pool1d
    torch.nn.functional.max_pool3d torch.nn.functional.max_unpool1d torch.nn.functional.max_unpool2d
    torch.nn.functional.max_unpool3d torch.nn.functional.multi_margin_loss torch.nn.functional.multilabel_margin_loss
    torch.nn.functional.multilabel_soft_margin_loss torch.nn.functional.one_hot torch.nn.functional.pairwise_distance
    torch.nn.functional.pdist torch.nn.functional.pixel_shuffle torch.nn.functional.pixel_unshuffle
    torch.nn.functional.poisson_nll_loss torch.nn.functional.rms_norm torch.nn.functional.rrelu_
    torch.nn.functional.selu_ torch.nn.functional.soft_margin_loss torch.nn.functional.softmin
    torch.nn.functional.softshrink torch.nn.functional.tanhshrink torch.nn.functional.threshold
    torch.nn.functional.threshold_ torch.nn.functional.triplet_margin_loss torch.nn.functional.unfold
    torch._C._nn.gelu torch._C._nn.silu torch._C._nn.leaky_relu torch._C._nn.hardtanh torch._C._nn.hardswish
    torch._C._nn.hardsigmoid torch._C._nn.softplus torch._C._nn.elu torch._C._nn.mish torch._C._nn.relu6
    torch._C._nn.log_sigmoid torch._C._nn.mse_loss torch._C._nn.linear
    torch.nn.init.uniform_ torch.nn.init.normal_ torch.nn.init.trunc_normal_ torch.nn.init.constant_
    torch.nn.init.ones_ torch.nn.init.zeros_ torch.nn.init.eye_ torch.nn.init.dirac_ torch.nn.init.xavier_uniform_
    torch.nn.init.xavier_normal_ torch.nn.init.kaiming_uniform_ torch.nn.init.kaiming_normal_
    torch.nn.init.orthogonal_ torch.nn.init.sparse_
    timm.layers.norm.LayerNorm timm.layers.norm.LayerNorm2d timm.layers.norm.GroupNorm timm.layers.norm.RmsNorm
    timm.models.layers.norm.LayerNorm timm.models.layers.norm.LayerNorm2d
    torchvision.ops.misc.FrozenBatchNorm2d
    deepspeed.runtime.zero.config.ZeroStageEnum deepspeed.runtime.fp16.loss_scaler.LossScaler
    deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler deepspeed.utils.tensor_fragment.fragment_address
    deepspeed.runtime.zero.stage_1_and_2.fragment_address deepspeed.utils.tensor_fragment.tensor_fragment
    deepspeed.runtime.utils.CheckOverflow
    transformers.trainer_utils.IntervalStrategy transformers.trainer_utils.SchedulerType
    transformers.trainer_utils.HubStrategy transformers.trainer_utils.SaveStrategy
    transformers.trainer_utils.EvaluationStrategy transformers.trainer_utils.FSDPOption
    transformers.trainer_utils.ShardedDDPOption transformers.training_args.OptimizerNames
    transformers.training_args.ParallelMode transformers.debug_utils.DebugOption
    transformers.utils.quantization_config.QuantizationMethod
    accelerate.utils.dataclasses.DistributedType accelerate.utils.dataclasses.PrecisionType
    accelerate.utils.dataclasses.LoggerType accelerate.utils.dataclasses.RNGType
    accelerate.utils.dataclasses.DynamoBackend accelerate.utils.dataclasses.ComputeEnvironment
    accelerate.utils.dataclasses.SageMakerDistributedType accelerate.utils.dataclasses.CustomDtype
    peft.utils.peft_types.PeftType peft.utils.peft_types.TaskType peft.utils.config.PeftType peft.utils.config.TaskType
    trl.trainer.dpo_config.FDivergenceType sentence_transformers.training_args.BatchSamplers
    sentence_transformers.training_args.MultiDatasetBatchSamplers
    pyannote.audio.core.task.Problem pyannote.audio.core.task.Resolution
    torch.distributed.fsdp.api.ShardingStrategy torch.distributed.fsdp.api.BackwardPrefetch
    torch.distributed.fsdp.api.StateDictType torch.distributed.fsdp.fully_sharded_data_parallel.ShardingStrategy
    torch.distributed.fsdp.fully_sharded_data_parallel.BackwardPrefetch
    torch.distributed.fsdp.fully_sharded_data_parallel.StateDictType
    torch.distributed.fsdp.wrap.size_based_auto_wrap_policy torch.distributed.fsdp.wrap.transformer_auto_wrap_policy
    megatron.core.enums.ModelType megatron.model.enums.ModelType megatron.enums.PositionEmbeddingType
    megatron.core.transformer.enums.AttnBackend megatron.core.transformer.enums.AttnMaskType
    megatron.core.transformer.enums.LayerType megatron.core.transformer.enums.AttnType
    olmo.config.StrEnum olmo.config.LayerNormType olmo.config.ActivationType olmo.config.BlockType
    olmo.config.InitFnType olmo.config.OptimizerType olmo.config.SchedulerType olmo.config.FSDPWrapStrategy
    olmo.config.FSDPPrecision olmo.config.CheckpointType olmo.config.ShardedCheckpointerType
    olmo.config.DistributedStrategy olmo.config.ActivationCheckpointingStrategy olmo.config.PaddingDirection
    olmo.config.TruncationDirection olmo.config.SpeedMonitorConfig
    pandas.core.frame.DataFrame pandas.core.series.Series pandas.core.internals.managers.BlockManager
    pandas.core.internals.managers.SingleBlockManager pandas._libs.internals._unpickle_block
    pandas._libs.tslibs.timestamps._unpickle_timestamp pandas.core.indexes.range.RangeIndex
    pandas.core.indexes.base.Index pandas.core.indexes.base._new_Index pandas.core.dtypes.dtypes.CategoricalDtype
    sklearn.tree._tree.Tree sklearn.neighbors._kd_tree.KDTree sklearn.neighbors._kd_tree.newObj
    sklearn.neighbors._ball_tree.BallTree sklearn.neighbors._ball_tree.newObj
    sklearn.metrics._dist_metrics.EuclideanDistance sklearn.metrics._dist_metrics.newObj
    fastai.optimizer.Adam fastai.optimizer.SGD fastai.optimizer.RMSProp fastai.optimizer.Lamb
    fastai.optimizer.sgd_step fastai.optimizer.adam_step fastai.optimizer.weight_decay fastai.optimizer.l2_reg
    fastai.optimizer.average_grad fastai.optimizer.average_sqr_grad fastai.optimizer.momentum_step
    fastai.optimizer.step_stat fastai.optimizer.rms_prop_step fastai.optimizer.debias fastai.metrics.accuracy
    fastai.metrics.error_rate fastai.losses.CrossEntropyLossFlat
    efficientnet_pytorch.utils.GlobalParams efficientnet_pytorch.utils.BlockArgs)";

/// Functions of NumPy, which call methods of their arguments.
constexpr std::string_view value_use = R"(
    torch._C._VariableFunctionsClass torch._C.TensorBase numpy.mean numpy.sum numpy.sqrt numpy.exp numpy.log numpy.abs
    numpy.absolute numpy.log1p numpy.expm1 numpy.max
    numpy.min numpy.median numpy.std numpy.var)";

/// Packages whose classes are harmless if their constructors get no arguments of the file. The name of a class begins
/// with a capital letter.
constexpr std::string_view packages = R"(
    torch.nn.modules torch.nn.parallel torch.nn.utils torch.nn.qat torch.nn.quantized torch.nn.quantizable
    torch.nn.intrinsic torch.nn.attention torch.ao.nn torch.ao.quantization torch.ao.pruning torch.quantization
    torch.optim torch.amp torch.cuda.amp torch.utils.data.dataset torch.utils.data.dataloader
    torch.utils.data.sampler torch.utils.data.distributed torch.utils.hooks torch.utils.checkpoint
    torch.distributed._shard torch.distributed._tensor torch.distributed.tensor torch.distributed.device_mesh
    torch.distributed._mesh_layout torch.distributed.remote_device torch.distributed.checkpoint.metadata
    torch.distributed.checkpoint.filesystem torch.distributed.checkpoint.planner torch.distributed.fsdp
    torch.distributed._composable torch.distributed.algorithms torch.distributions torch._subclasses
    numpy.dtypes torchao torchvision.models torchvision.ops torchvision.transforms torchvision.datasets
    torchaudio.models torchaudio.transforms torchtext.vocab torchmetrics torchtune timm
    transformers tokenizers accelerate peft trl diffusers sentence_transformers optimum bitsandbytes
    datasets.features simpletransformers.config adapters
    pytorch_lightning lightning lightning_fabric lightning_lite lightning_utilities lightly
    deepspeed megatron apex fairscale colossalai xformers flash_attn olmo olmo_core verl composer llmfoundry
    fairseq omegaconf yacs.config fvcore detectron2 mmcv mmengine mmdet mmseg mmpretrain mmcls mmaction mmpose mmocr
    ultralytics.nn ultralytics.utils ultralytics.yolo ultralytics.models ultralytics.engine
    models.yolo models.common models.experimental yolov5.models yolov7.models yolov6
    torch.legacy yolox super_gradients groundingdino mobile_sam nnunet nnunetv2 gpytorch
    segment_anything sam2 whisper clip.model open_clip ldm sgm basicsr gfpgan realesrgan facexlib TTS coqpit
    pyannote.audio pyannote.core asteroid monai segmentation_models_pytorch efficientnet_pytorch facenet_pytorch
    kornia einops.layers.torch torch_geometric.data pytorch3d fastai fastcore
    sklearn pandas.core scipy.sparse gym.spaces gymnasium.spaces addict easydict
    munch attrdict box)";

/// Packages among these with constructors that evaluate text, or load or download files.
constexpr std::string_view unsafe_constructors = R"(
    ultralytics yolov5 yolov6 yolov7 models yolox super_gradients TTS sentence_transformers pyannote.audio.core.model
    pyannote.audio.core.inference pyannote.audio.pipelines diffusers mmcv mmengine mmdet mmseg detectron2.checkpoint
    detectron2.engine fastai.learner facenet_pytorch transformers.trainer lightning.pytorch.trainer
    pytorch_lightning.trainer basicsr gfpgan realesrgan facexlib optimum)";

/// Single classes of other packages, likewise: configurations, and subclasses of TrainingArguments of transformers.
constexpr std::string_view single_classes = R"(
    sentencepiece.SentencePieceProcessor
    ml_collections.config_dict.config_dict.ConfigDict ml_collections.config_dict.config_dict.FrozenConfigDict
    mmengine.config.config.ConfigDict mmcv.utils.config.ConfigDict
    llava.train.train.TrainingArguments llava.train.train_dpo_ori.TrainingArguments
    fastchat.train.train.TrainingArguments h4.training.config.DPOTrainingArguments
    h4.training.config.TrainingArguments alignment.configs.SFTConfig alignment.configs.DPOConfig
    swift.trainers.rlhf_arguments.DPOConfig open_r1.configs.SFTConfig open_r1.configs.GRPOConfig
    axolotl.core.trainer_builder.AxolotlTrainingArguments
    FlagEmbedding.baai_general_embedding.finetune.arguments.RetrieverTrainingArguments)";

/// Modules and classes in these packages that do more than to keep the attributes that they get: their __setstate__ or
/// __del__ opens files, or calls what the attributes hold.
constexpr std::string_view left_out = R"(
    torch.utils.data.dataloader._MultiProcessingDataLoaderIter torch.utils.data.dataloader._BaseDataLoaderIter
    torch.utils.data.dataloader._SingleProcessDataLoaderIter torch.ao.pruning torch._subclasses.fake_tensor
    deepspeed.comm deepspeed.io deepspeed.runtime.swap_tensor deepspeed.runtime.checkpoint_engine
    deepspeed.runtime.data_pipeline.data_sampling deepspeed.runtime.engine deepspeed.runtime.pipe.engine
    deepspeed.runtime.hybrid_engine megatron.data megatron.core.datasets fairseq.data.indexed_dataset
    fairseq.data.huffman olmo.data olmo_core.data monai.data torch_geometric.data.database
    torch_geometric.data.on_disk_dataset
    deepspeed.ops deepspeed.launcher torch.utils.data.datapipes transformers.agents transformers.tools
    transformers.pipelines transformers.dynamic_module_utils transformers.commands transformers.onnx
    accelerate.commands lightning.app pytorch_lightning.cli lightning.pytorch.cli sklearn.externals fastai.torch_imports
    datasets.load optimum.exporters torchvision.io monai.bundle monai.apps mmengine.config mmcv.utils.config)";

/// The modules of Python 3.11.
constexpr std::string_view python_modules = R"(
    abc aifc antigravity argparse array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii bisect
    builtins bz2 cProfile calendar cgi cgitb chunk cmath cmd code codecs codeop collections colorsys compileall
    concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes curses dataclasses datetime dbm
    decimal difflib dis distutils doctest email encodings ensurepip enum errno faulthandler fcntl filecmp
    fileinput fnmatch fractions ftplib functools gc genericpath getopt getpass gettext glob graphlib grp gzip
    hashlib heapq hmac html http idlelib imaplib imghdr imp importlib inspect io ipaddress itertools json
    keyword lib2to3 linecache locale logging lzma mailbox mailcap marshal math mimetypes mmap modulefinder
    msilib msvcrt multiprocessing netrc nis nntplib nt ntpath nturl2path numbers opcode operator optparse os
    ossaudiodev pathlib pdb pickle pickletools pipes pkgutil platform plistlib poplib posix posixpath pprint
    profile pstats pty pwd py_compile pyclbr pydoc pydoc_data pyexpat queue quopri random re readline reprlib
    resource rlcompleter runpy sched secrets select selectors shelve shlex shutil signal site smtpd smtplib
    sndhdr socket socketserver spwd sqlite3 sre_compile sre_constants sre_parse ssl stat statistics string
    stringprep struct subprocess sunau symtable sys sysconfig syslog tabnanny tarfile telnetlib tempfile termios
    textwrap this threading time timeit tkinter token tokenize tomllib trace traceback tracemalloc tty turtle
    turtledemo types typing unicodedata unittest urllib uu uuid venv warnings wave weakref webbrowser winreg
    winsound wsgiref xdrlib xml xmlrpc zipapp zipfile zipimport zlib zoneinfo)";

/// Packages of others in which safemap does not know every class.
constexpr std::string_view other_packages = R"(
    torch torchvision torchaudio torchtext numpy scipy pandas sklearn matplotlib PIL cv2 sympy IPython ipykernel jupyter
    jinja2 flask django fastapi celery keras tensorflow jax flax dask ray pyspark mlflow wandb fsspec paramiko fabric
    invoke boto3 google azure docker kubernetes sqlalchemy requests httpx aiohttp tornado twisted yaml dill cloudpickle
    joblib cffi numba pip setuptools wheel pytest hypothesis sh plumbum pexpect)";

constexpr std::string_view is_harmless = "makes an object of a class that holds data, a module or an optimizer";

/// Returns true if the module, or a package that it is in, is listed.
bool is_below(std::string_view module, const WordSet& listed) {
    for (std::size_t end = module.size(); end != module.npos && end > 0; end = module.substr(0, end).rfind('.'))
        if (listed.contains(module.substr(0, end))) return true;
    return false;
}

bool begins_with_capital(std::string_view name) { return !name.empty() && name[0] >= 'A' && name[0] <= 'Z'; }

/// Returns true for a class of torch.nn, whose constructors only make tensors and keep their arguments.
bool is_layer(const PickleGraph::Global& global) {
    return global.module.starts_with("torch.nn.modules.") || global.module == "torch.nn.modules";
}

/// Returns true for a tokenizer that opens the file which its state names.
bool loads_vocabulary(const PickleGraph::Global& global) {
    const std::string_view file = global.module.substr(global.module.rfind('.') + 1);
    return file.starts_with("tokenization_") && !file.starts_with("tokenization_utils") &&
           !global.name.ends_with("Fast");
}

/// Judges functions of torch and types of their results by where they are, and names that are nested and listed.
std::optional<Judgement> tensor_operation(const PickleGraph::Global& global) {
    constexpr std::string_view of_functions = "_VariableFunctionsClass.";
    constexpr std::string_view of_tensors = "TensorBase.";
    static const WordSet listed = words_of(any_use);
    const auto is_function = [](std::string_view name) {
        return !name.empty() && name[0] >= 'a' && name[0] <= 'z' && name.find('.') == name.npos;
    };
    const Judgement any{Verdict::needs_classes, is_harmless};
    if (global.name.find('.') != global.name.npos && listed.contains(dotted(global))) return any;
    if ((global.module == "torch._C._nn" || global.module == "torch.return_types") && is_function(global.name) &&
        global.name != "pytree_register_structseq" && global.name != "inspect" && global.name != "torch")
        return any;
    const bool functions = global.name.starts_with(of_functions);
    if (global.module != "torch._C" || (!functions && !global.name.starts_with(of_tensors))) return std::nullopt;
    const std::string_view name = global.name.substr((functions ? of_functions : of_tensors).size());
    if (listed.contains("torch." + std::string(name))) return any;
    if (!functions || !is_function(name)) return std::nullopt;
    return Judgement{Verdict::needs_classes, is_harmless, Use::value};
}

}  // namespace

bool names_enumeration(std::string_view name) {
    constexpr std::string_view endings[] = {"Enum",   "Type",   "Strategy", "Mode",     "Names",   "Option",
                                            "Policy", "Status", "Backend",  "Method",   "Kind",    "Precision",
                                            "State",  "Format", "Level",    "Behavior", "ENCODING"};
    return std::any_of(std::begin(endings), std::end(endings),
                       [name](std::string_view ending) { return name.ends_with(ending); });
}

bool is_project_class(const PickleGraph::Global& global) {
    static const WordSet python = words_of(python_modules);
    static const WordSet listed = words_of(packages);
    static const WordSet others = words_of(other_packages);
    const std::string_view root = global.module.substr(0, global.module.find('.'));
    if (root.starts_with('_') && global.module != "__main__") return false;
    if (python.contains(root) || others.contains(root) || is_below(global.module, listed)) return false;
    for (std::size_t at = 0;; at = global.name.find('.', at) + 1) {
        if (!begins_with_capital(global.name.substr(at))) return false;
        if (global.name.find('.', at) == global.name.npos) return true;
    }
}

std::optional<Judgement> harmless_name(std::string_view name) {
    static const WordSet listed = words_of(any_use);
    static const WordSet values = words_of(value_use);
    static const WordSet arguments = words_of(single_classes);
    if (listed.contains(name)) return Judgement{Verdict::needs_classes, is_harmless};
    if (values.contains(name)) return Judgement{Verdict::needs_classes, is_harmless, Use::value};
    if (arguments.contains(name)) return Judgement{Verdict::needs_classes, is_harmless, Use::empty};
    return std::nullopt;
}

std::optional<Judgement> harmless_class(const PickleGraph::Global& global) {
    static const WordSet listed = words_of(packages);
    static const WordSet unsafe = words_of(unsafe_constructors);
    static const WordSet excluded = words_of(left_out);
    if (const auto operation = tensor_operation(global)) return operation;
    const std::size_t dot = global.name.find('.');
    const std::string_view outer = global.name.substr(0, dot);
    std::string whole = dotted({global.module, outer});
    const bool by_name = harmless_name(whole).has_value();
    // In torch, classes that others derive from have names such as _BatchNorm. Elsewhere, such a class may import.
    const bool underscore = outer.starts_with('_') && global.module.starts_with("torch.");
    const bool by_package = begins_with_capital(outer.substr(underscore ? 1 : 0)) && is_below(global.module, listed) &&
                            !is_below(whole, excluded) && !loads_vocabulary({global.module, outer});
    if (!by_name && !by_package) return std::nullopt;
    if (dot == global.name.npos)
        return Judgement{Verdict::needs_classes, is_harmless,
                         is_layer(global)                              ? Use::any
                         : !by_name && is_below(global.module, unsafe) ? Use::made
                                                                       : Use::empty};
    // A nested class, or a member of an enumeration. A method may be anything, and an object may call it.
    const std::string_view inner = global.name.substr(global.name.rfind('.') + 1);
    if (begins_with_capital(inner)) return Judgement{Verdict::needs_classes, is_harmless, Use::empty};
    if (by_name && names_enumeration(outer)) return Judgement{Verdict::needs_classes, is_harmless, Use::value};
    return std::nullopt;
}

}  // namespace safemap::SAFEMAP_ABI::torch
