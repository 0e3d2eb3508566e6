"""Every private or version-1 TensorFlow symbol that the library uses, with its reason.

Tried on TensorFlow 2.21.0 and 2.22.0rc0. When a release breaks something, it does here.
"""

import ctypes
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

# Memory of what XLA compiled, as its compiler says it; there is no public form.
from tensorflow.compiler.xla.service import hlo_pb2 as _hlo

# Protocol buffers of the runtime; `tf.compat.v1` is their only public home.
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.config_pb2 import ConfigProto

# Bytes that the allocator of a GPU may hand out.
from tensorflow.python import pywrap_tfe as _pywrap_tfe
from tensorflow.python.client import pywrap_tf_session as _pywrap_session

# Iterator elements as the flat tensors that `IteratorGetNext` yields: for sparse and
# ragged elements they are not what `tf.nest.flatten` gives.
from tensorflow.python.data.util import structure as _structure

# Under a strategy of one replica an iterator wraps one for its device.
from tensorflow.python.distribute import input_lib as _input_lib

# A call that is cancelled before it starts: the graph is made, nothing runs.
from tensorflow.python.eager import cancellation as _cancellation

# The eager context: collection of optimised graphs, and Grappler options for the
# calls of one function.
from tensorflow.python.eager import context as _context

# A graph becomes a callable through these; `tf.function` would have to trace.
from tensorflow.python.eager.polymorphic_function import atomic_function as _atomic

# Inputs and outputs that kernels keep in host memory.
from tensorflow.python.framework import kernels as _kernels

# Effects of an op, by its name. The next two again make callables.
from tensorflow.python.framework import op_def_registry as _op_defs
from tensorflow.python.framework import ops as _ops
from tensorflow.python.framework.func_graph import FuncGraph as _FuncGraph

# Shapes and types of the variables behind resource handles, without which shape
# inference ends at every variable read.
from tensorflow.python.ops import handle_data_util as _handle_data

# Host functions called from a graph: `tf.numpy_function` makes a node, but the graph
# is edited as nodes here, and a node names its function by a token.
from tensorflow.python.ops import script_ops as _script_ops

# Use of oneDNN: it depends on the variable, the build and the CPU.
from tensorflow.python.util import _pywrap_determinism, _pywrap_util_port

# Profiles that `tf.profiler` writes. Their reader, a TensorBoard plugin, is not here.
from tensorflow.tsl.profiler.protobuf import xplane_pb2 as _xplane

__all__ = ["END", "ConfigProto", "GraphDef", "Input", "NodeDef", "XSpace", "address_of"]
__all__ += ["aligned", "allocator_limit", "attribute", "build_function", "calls_in"]
__all__ += ["calls_with", "compiled_scratch", "constant", "copied", "copied_to"]
__all__ += ["define_function", "device_name", "devices_are_made", "flat_element"]
__all__ += ["flat_element_specs", "flat_inputs", "get_from_cluster"]
__all__ += ["gradients_forgotten", "graph_def"]
__all__ += ["handle_spec", "has_op", "host_memory", "host_tensor", "infer_shapes"]
__all__ += ["is_pure", "is_stateful_or_calls", "made_node", "move_variable"]
__all__ += ["one_replica_s", "onednn_is_on", "operations", "ops_are_deterministic"]
__all__ += ["optimised_graph", "pack_outputs", "planned_as_is", "put_in_cluster"]
__all__ += ["register_host_function", "set_gpu_options", "wait_for_cluster"]

# Name of an argument's node, its spec, and for a variable's handle the variable's spec.
Input: TypeAlias = tuple[str, tf.TensorSpec, tf.TensorSpec | None]

# Made when their modules are imported: type checkers do not see them.
XSpace: Any = _xplane.XSpace  # pyright: ignore[reportAttributeAccessIssue]
HloProto: Any = _hlo.HloProto  # pyright: ignore[reportAttributeAccessIssue]

_eager_context: Callable[[], Any] = _context.context  # its type allows None

_ALIGNMENT = 64  # bytes; Eigen's, with AVX-512

_MARKER = "lms_end_of_collection"

# Functions of TensorFlow's absl: TF_CPP_MIN_LOG_LEVEL is read once.
_LEVEL, _SET_LEVEL = "11MinLogLevelEv", "14SetMinLogLevelENS0_18LogSeverityAtLeastE"
_ERRORS, _LOGGING, _levels = 2, Lock(), list[int]()  # before each open context


@contextmanager
def errors_alone() -> Iterator[None]:
    """Within the context, let TensorFlow's C++ log errors alone.

    Its allocator logs each chunk where memory runs out, also if lms goes on.
    """
    level, set_level = _absl(_LEVEL), _absl(_SET_LEVEL)
    with _LOGGING:
        _levels.append(level())
        set_level(max(_levels[0], _ERRORS))
    try:
        yield
    finally:
        with _LOGGING:
            before = _levels.pop()
            if not _levels:
                set_level(before)


@contextmanager
def gradients_forgotten() -> Iterator[None]:
    """Forget traces made within: `tf.custom_gradient` keeps their graphs for good."""
    known = {*_ops.gradient_registry.list()}
    yield
    for name in {*_ops.gradient_registry.list()} - known:
        del _ops.gradient_registry._registry[name]


@cache
def _absl(function: str) -> Callable[..., Any]:
    """Find a function of TensorFlow's absl by absl's version, or one for no effect."""
    headers = Path(tf.sysconfig.get_include()).glob("absl/base/options.h")
    text = "".join(header.read_text() for header in headers)
    (version,) = re.findall(r"NAMESPACE_NAME (lts_\w+)$", text, re.M) or [""]
    found = Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework.*")
    library = ctypes.CDLL(next(map(str, found), None))
    return getattr(library, f"_ZN4absl{len(version)}{version}{function}", lambda *_: 0)


def device_name(short: str) -> str:
    """Full name of a device of this process, as in placed ops."""
    return f"{_eager_context().host_address_space()}/device:{short}"


def is_alone() -> bool:
    """Tell whether this process is no worker of a cluster."""
    return "/job:localhost/" in device_name("")


def devices_are_made() -> bool:
    """Tell whether TensorFlow has made its devices: no cluster can be joined then."""
    return _eager_context()._context_handle is not None


def wait_for_cluster(workers: int, seconds: float) -> None:
    """Let the start of a cluster wait up to `seconds` until all processes are there.

    If a process is missing, all others get an error. Else some would wait for ever.
    """
    context = _eager_context()
    context.configure_coordination_service("standalone", "/job:worker/task:0")
    options = context.coordination_service
    options.coordinated_job_list.add(name="worker", num_tasks=workers)
    options.cluster_register_timeout_in_ms = int(seconds * 1000)
    options.cluster_register_with_barrier = True


def put_in_cluster(key: str, value: str) -> None:
    """Publish a value to all processes of a cluster, by its coordination service."""
    _eager_context().set_config_key_value(key, value)


def get_from_cluster(key: str, seconds: float) -> str:
    """The value that a process of the cluster has put, or puts within `seconds`.

    Raises:
        tf.errors.OpError: If no process puts one, or a process has died.
    """
    return _eager_context().get_config_key_value(key, int(seconds * 1000))


def calls_in(model: Any) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """The calls that a functional model is made of: operation, inputs, outputs."""
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            yield node.operation, list(node.input_tensors), list(node.outputs)


def move_variable(variable: Any, device: str) -> None:
    """Move a Keras variable to another device: it gets another `tf.Variable`."""
    with tf.device(device):
        variable._initialize(tf.identity(variable.value))


def handle_spec(handle: tf.Tensor) -> tf.TensorSpec | None:
    """Shape and type of the variable behind a resource handle; None for others."""
    if handle.dtype != tf.resource:
        return None
    data = _handle_data.get_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    (known,) = data.shape_and_type
    return tf.TensorSpec(tf.TensorShape(known.shape), tf.as_dtype(known.dtype))


def pack_outputs(concrete: Any, flat: Sequence[tf.Tensor]) -> Any:
    """Give flat outputs the structure that the traced function returned."""
    return concrete.function_type.pack_output(flat)


def flat_inputs(concrete: Any, args: Sequence[Any]) -> list[tf.Tensor]:
    """The flat tensors of a call's arguments; omitted arguments are as traced.

    Arrays become tensors of the host, so that only the step takes device memory.
    """
    called = concrete.function_type
    bound = called.bind_partial(*args)
    for name, parameter in called.parameters.items():
        kind = parameter.type_constraint
        if name not in bound.arguments and not isinstance(kind, tf.TypeSpec):
            bound.arguments[name] = kind.placeholder_value(None)
    with tf.device("CPU:0"):
        return list(called.unpack_inputs(called.bind(*bound.args, **bound.kwargs)))


def operations(graph: Any) -> Iterator[tf.Operation]:
    """The ops of a traced graph; ops of called functions come first."""
    for op in graph.get_operations():
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            yield from graph._get_function(op.get_attr("f").name).graph.get_operations()
    yield from graph.get_operations()


def one_replica_s(iterator: Any) -> Any:
    """Return the iterator of a strategy's only device; any other one as it is.

    A draw from either iterator is a draw from both. A distributed iterator asks in a
    branch for a next element, and the branch's result would have no shape.
    """
    if not isinstance(iterator, _input_lib.DistributedIteratorBase):
        return iterator
    own = [o for each in iterator._iterators for o in each._iterator._device_iterators]
    return own[0] if len(own) == 1 else iterator


def flat_element(iterator_spec: Any, element: Any) -> list[tf.Tensor]:
    """An iterator's element as the outputs of its `IteratorGetNext` op."""
    return _structure.to_tensor_list(iterator_spec, element)


def flat_element_specs(iterator_spec: Any) -> list[tf.TensorSpec]:
    """Specs of `flat_element`: a sparse or ragged part is one tensor."""
    return _structure.get_flat_tensor_specs(iterator_spec)


def allocator_limit(device: str) -> int | None:
    """Bytes that the allocator of a device, by its full name, may hand out.

    Covers logical devices with a limit and whole GPUs; there is no public form. The
    program's own devices are asked: `device_lib` would make new ones on every GPU of
    the machine, and take the memory.

    Returns:
        None where no limit is known, as with `TF_GPU_ALLOCATOR=cuda_malloc`.
    """
    context = _eager_context()
    context.ensure_initialized()
    devices = _pywrap_tfe.TFE_ContextListDevices(context._handle)
    try:
        for i in range(_pywrap_session.TF_DeviceListCount(devices)):
            if _pywrap_session.TF_DeviceListName(devices, i) == device:
                return _pywrap_session.TF_DeviceListMemoryBytes(devices, i) or None
    finally:
        _pywrap_session.TF_DeleteDeviceList(devices)
    return None


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def address_of(tensor: Any) -> int:
    """Address of an eager tensor in its device's memory; ValueError without one.

    DLPack's capsule holds a `DLManagedTensor`, which begins with a pointer to the data
    (dlpack.h).
    """
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    found = ctypes.c_void_p.from_address(_pointer_of(capsule, b"dltensor")).value
    if found is None:
        raise ValueError("`tensor` must have memory of its own, got none")
    return found


def copied_to(device: str, tensor: Any) -> Any:
    """An eager tensor's copy on a device; what functions want on the host as it is.

    `tf.identity` would leave a second copy on the device as long as the host's tensor
    lives ("mirror" in tensor_handle.h). Functions take text and numbers of int32 from
    the host (`MTypeFromDType` in memory_types.cc).
    """
    stays = tensor.dtype in (tf.int32, tf.string, tf.resource, tf.variant)
    if stays or tensor.backing_device == device:
        return tensor
    return tensor._copy_nograd(device_name=device)


def aligned(array: Any) -> np.ndarray:
    """A NumPy array, or its copy, in memory that TensorFlow can take without a copy."""
    array = np.asarray(array)  # a NumPy scalar is no array
    if array.ctypes.data % _ALIGNMENT == 0 and array.flags.c_contiguous:
        return array
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    own = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    own[...] = array
    return own


def host_tensor(array: Any) -> Any:
    """An eager tensor that shares a NumPy array's memory, and keeps it alive.

    `tf.constant` copies the array to memory of NumPy's. If that is not aligned, the
    CPU's allocator copies again; on an emulated device that is full, the process dies
    of the second copy (`NdarrayToTensor` in ndarray_tensor.cc).

    Args:
        array: Not to be written to afterwards; copied within NumPy's memory if it is
            not aligned.
    """
    own = array if array.dtype == object else aligned(array)  # text has no such memory
    return _ops.EagerTensor(own, device_name("CPU:0"), None)


@tf.function(autograph=False)
def _end_collection() -> None:
    tf.no_op(name=_MARKER)


def optimised_graph(concrete: Any, arguments: Sequence[tf.Tensor]) -> GraphDef | None:
    """The placed and optimised graph of a concrete function, which is not run.

    The call of the function is cancelled beforehand: the runtime makes the graph, then
    refuses to start ("Function was cancelled before it was started"). Graphs are handed
    over at the end of a successful call only: a call of an empty marker function closes
    the collection, which `tf.summary.trace_on(graph=True)` uses too. `arguments` are
    all flat inputs; of their values only handles matter.

    Returns:
        The graph. None if another thread called a new function in the meantime: the
        runtime collects the graphs of all threads in one.
    """
    context = _eager_context()
    cancelled = _cancellation.CancellationManager()
    cancelled.start_cancel()
    context.enable_graph_collection()
    try:
        with (
            suppress(tf.errors.CancelledError),
            _cancellation.CancellationManagerContext(cancelled),
            _with_memory_for_all(),
        ):
            concrete.inference_fn.call_flat(*arguments)
        _end_collection()
        metadata = context.export_run_metadata()
    finally:
        context.disable_graph_collection()
    for function in metadata.function_graphs:
        graph = function.post_optimization_graph
        kept = [node for node in graph.node if not node.name.startswith(_MARKER)]
        if _is_of(concrete, kept):
            del graph.node[:]
            graph.node.extend(kept)
            return graph
    return None


def _is_of(concrete: Any, nodes: Sequence[NodeDef]) -> bool:
    """Tell whether nodes have all of a function's results, and only its arguments."""
    signature = concrete.function_def.signature
    results = sorted(n.name for n in nodes if n.op == "_Retval")
    if results != sorted(f"{result.name}_RetVal" for result in signature.output_arg):
        return False
    known = set(enumerate(argument.name for argument in signature.input_arg))
    found = ((attribute(n, "index").i, n.name) for n in nodes if n.op == "_Arg")
    return known.issuperset(found)


def attribute(node: NodeDef, key: str) -> AttrValue:
    """A node's attribute, to be read only; an empty value if the node has none.

    `node.attr[key]` would add an empty attribute, and TensorFlow refuses to import a
    node with one.
    """
    return node.attr[key] if key in node.attr else AttrValue()


def graph_def(nodes: Iterable[NodeDef], library: Any) -> GraphDef:
    """Nodes and the functions they call as one graph."""
    result = GraphDef(node=nodes, library=library)
    result.versions.producer = tf.compat.v1.GRAPH_DEF_VERSION
    return result


# Methods that give a variable a value: a `tf.train.Checkpoint` calls the second.
ASSIGNS = ("assign", "_restore_from_tensors")


def copied(node: NodeDef, inputs: Iterable[str] | None = None) -> NodeDef:
    """A copy of a node, with other inputs where they are given."""
    copy = NodeDef()
    copy.CopyFrom(node)
    copy.input[:] = list(node.input if inputs is None else inputs)
    return copy


def made_node(
    name: str, op: str, inputs: Iterable[str], device: str = "", **types: Any
) -> NodeDef:
    """Make a node; `types` are its attributes that are types."""
    node = NodeDef(name=name, op=op, input=inputs, device=device)
    for key, dtype in types.items():
        node.attr[key].type = tf.as_dtype(dtype).as_datatype_enum
    return node


def constant(name: str, value: Any, dtype: tf.DType, device: str = "") -> NodeDef:
    """Make a `Const` node."""
    node = made_node(name, "Const", (), device, dtype=dtype)
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype=dtype))
    return node


def define_function(function: Any) -> None:
    """Let nodes of any graph call a function; equal ones may be given again."""
    context = _eager_context()
    if not context.has_function(function.signature.name):
        context.add_function_def(function)


@cache
def compiled_scratch(
    name: str, inputs: tuple[tf.TensorSpec, ...], device: str
) -> int | None:
    """Scratch bytes of a function that XLA compiles, beside inputs and outputs.

    XLA allocates scratch as one block, and its compiler tells the bytes without a run:
    the filter gradient of a grouped convolution holds, twice, the gradient of a filter
    between all channels (`BufferAllocationProto` in xla/service/hlo.proto).

    Returns:
        None if XLA does not tell: an argument is a variable, or XLA needs its value.
    """
    if any(spec.dtype == tf.resource for spec in inputs):
        return None
    buffers = compiled_buffers(name, inputs, (), device)
    scratch = (b.size for b in buffers if not (b.maybe_live_out or b.is_constant))
    return sum(scratch) if buffers else None


def compiled_buffers(
    name: Any, inputs: Sequence[Any], captured: Sequence[tf.Tensor], device: str
) -> list[Any]:
    """Return constants, scratch and outputs of a function that XLA compiles.

    A variable's new value has the old one's place. Empty if XLA cannot compile it.
    """
    try:
        compiled = _eager_context().get_compiler_ir(
            device_name=device,
            platform_name=None,
            function_name=name,
            flat_args=list(inputs),
            captured_inputs=captured,
            stage="optimized_hlo_proto_serialized",
        )
    except (tf.errors.OpError, ValueError):
        return []
    buffers = HloProto.FromString(compiled).buffer_assignment.buffer_allocations
    own = (buffer for buffer in buffers if not buffer.is_entry_computation_parameter)
    return [buffer for buffer in own if not buffer.is_thread_local]


def has_op(name: str) -> bool:
    """Tell whether this TensorFlow knows an op."""
    return _op_defs.get(name) is not None


def host_memory(node: NodeDef) -> tuple[frozenset[int], frozenset[int]]:
    """Indices of a GPU node's inputs, and of its outputs, that lie in host memory.

    Kernels of a GPU declare this of shapes, and of most int32 tensors.
    """
    known: Any = _op_defs.get(node.op)
    for limits, names in _gpu_kernels(node.op) if known else ():
        if all(attribute(node, key).type in types for key, types in limits):
            read, made = known.input_arg, known.output_arg
            return _numbers(node, read, names), _numbers(node, made, names)
    return frozenset(), frozenset()


@cache
def _gpu_kernels(op: str) -> list[tuple[list[tuple[str, set[int]]], list[str]]]:
    """(types by attribute, arguments in host memory), the highest priority first."""
    found: Any = _kernels.get_registered_kernels_for_op(op)
    own = (k for k in found.kernel if k.device_type in ("GPU", "DEFAULT"))
    return [
        ([(c.name, {*c.allowed_values.list.type}) for c in k.constraint], names)
        for k in sorted((k for k in own if not k.label), key=lambda k: -k.priority)
        for names in [[*k.host_memory_arg]]
    ]


def _numbers(
    node: NodeDef, args: Iterable[Any], names: Sequence[str]
) -> frozenset[int]:
    """Indices of the tensors of the named arguments."""
    at, found = 0, list[int]()
    for arg in args if names else ():
        count = attribute(node, arg.number_attr).i if arg.number_attr else 1
        if arg.type_list_attr:
            count = len(attribute(node, arg.type_list_attr).list.type)
        if arg.name in names:
            found += range(at, at + count)
        at += count
    return frozenset(found)


def is_stateful_or_calls(node: NodeDef) -> bool:
    """Tell whether an op has effects, calls functions, or is unknown."""
    known = _op_defs.get(node.op)
    calls = any(value.HasField("func") for value in node.attr.values())
    return known is None or known.is_stateful or calls


def is_pure(node: NodeDef) -> bool:
    """Tell whether an op's outputs follow only from the numbers that it reads."""
    if is_stateful_or_calls(node):
        return False
    handles = tf.resource.as_datatype_enum, tf.variant.as_datatype_enum
    known: Any = _op_defs.get(node.op)
    return not any(a.is_ref or a.type in handles for a in known.input_arg)


class _StepGraph(_FuncGraph):
    """A graph whose imported ops keep their devices: Python would set each again."""

    def _add_new_tf_operations(self, compute_devices: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 - TensorFlow's
        super()._add_new_tf_operations(compute_devices)
        return []


END = "lms/end"  # prefix of ops that run although no other op waits for them


def build_function(
    graph_def: GraphDef, inputs: Sequence[Input], outputs: Sequence[str]
) -> Any:
    """Build a function of flat tensors from a graph that reads `inputs` by their names.

    Returns:
        An object with `call_flat(*tensors)`, and its `graph`.
    """
    graph, placeholders = _imported(graph_def, inputs)
    graph.inputs = placeholders
    graph.outputs = [graph.get_tensor_by_name(name) for name in outputs]
    graph.structured_outputs = graph.outputs
    specs = tuple(tf.TensorSpec(t.shape, t.dtype) for t in placeholders)
    graph.structured_input_signature = specs, {}
    graph.control_outputs = [
        op
        for op in graph.get_operations()
        if (op.op_def and op.op_def.is_stateful) or op.name.startswith(END)
    ]
    return _atomic.from_func_graph(f"__lms_step_{_ops.uid()}", graph, {})


def infer_shapes(
    graph_def: GraphDef, inputs: Sequence[Input]
) -> dict[str, list[tf.TensorSpec]]:
    """Types and shapes of every op's outputs, by op name, as TensorFlow infers them."""
    graph, _ = _imported(graph_def, inputs)
    return {
        op.name: [tf.TensorSpec(t.shape, t.dtype) for t in op.outputs]
        for op in graph.get_operations()
    }


def _imported(
    graph_def: GraphDef, inputs: Sequence[Input]
) -> tuple[Any, list[tf.Tensor]]:
    """A function graph with a placeholder for each input."""
    read = {name.partition(":")[0] for node in graph_def.node for name in node.input}
    graph = _StepGraph("lms_step")
    with graph.as_default():
        placeholders = list[tf.Tensor]()
        for name, spec, variable in inputs:
            kind: Any = {"dtype": spec.dtype, "shape": spec.shape, "name": name}
            placeholders.append(tf.raw_ops.Placeholder(**kind))
            if variable is not None:
                data = _handle_data.create_handle_data(variable.shape, variable.dtype)
                _handle_data.set_handle_data(placeholders[-1], data)
        tf.graph_util.import_graph_def(
            graph_def,
            name="",
            input_map={t.name: t for t in placeholders if t.op.name in read},
        )
    return graph, placeholders


def planned_as_is() -> AbstractContextManager[None]:
    """Within the context, Grappler does not optimise the functions that are run."""
    options = ConfigProto()
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    return calls_with(options)


def _with_memory_for_all() -> AbstractContextManager[None]:
    """Within the context, Grappler saves memory only if the user has asked for that.

    By default Grappler would swap on a GPU where it foresees an out of memory, and add
    up gradients in another order, with other bits than on a larger card (`SwappingPass`
    and `SchedulingPass` in memory_optimizer.cc).
    """
    serialised = _eager_context().function_call_options.config_proto_serialized
    options = ConfigProto.FromString(serialised)
    rewriting: Any = options.graph_options.rewrite_options
    if rewriting.memory_optimization == rewriting.DEFAULT_MEM_OPT:
        rewriting.memory_optimization = rewriting.NO_MEM_OPT
    return calls_with(options)


@contextmanager
def calls_with(options: ConfigProto) -> Iterator[None]:
    """Within the context, call functions with these options of Grappler.

    Soft placement stays as in other calls: a node without a kernel for the GPU (such as
    a constant that lms made) goes to the host rather than failing.
    """
    context = _eager_context()
    options.allow_soft_placement = context.soft_device_placement
    before = context.function_call_options
    context.function_call_options = _context.FunctionCallOptions(
        config_proto=options, executor_type=before.executor_type
    )
    try:
        yield
    finally:
        context.function_call_options = before


def set_gpu_options(**options: Any) -> None:
    """Set options of GPUs that have no public setter; only before the first op.

    Args:
        **options: Fields of GPUOptions, or of its part `experimental`.

    Raises:
        AttributeError: If there is no such option.
    """
    context = _eager_context()
    config = ConfigProto()
    config.MergeFrom(context._config or ConfigProto())
    known = config.gpu_options.DESCRIPTOR.fields_by_name
    for name, value in options.items():
        part = config.gpu_options if name in known else config.gpu_options.experimental
        setattr(part, name, value)
    context._config = config


def register_host_function(function: Callable[..., Any]) -> str:
    """Register a function of NumPy arrays; returns the token of its `PyFunc` nodes.

    TensorFlow keeps a weak reference only: keep the function as long as the graph.
    """
    return _script_ops._py_funcs.insert(function)


def ops_are_deterministic() -> bool:
    """Tell whether `tf.config.experimental.enable_op_determinism` was called."""
    return _pywrap_determinism.is_enabled()


def onednn_is_on() -> bool:
    """Tell whether TensorFlow's ops on the CPU come from oneDNN."""
    return _pywrap_util_port.IsMklEnabled()


@contextmanager
def initialised_late(
    late: Sequence[Any], then: Callable[[Any], object]
) -> Iterator[None]:
    """Within the context, some variables of a trace are initialised one by one.

    `tf.function` initialises all variables at once, when the trace has ended. The trace
    adds each variable to `late` when it is made; `then` gets each initialised one.
    """
    kind: Any = type(tf.function(lambda: None))
    own = kind._initialize_uninitialized_variables

    def initialise(function: Any, pairs: Sequence[Any]) -> None:
        ones = {id(variable) for variable in late}
        own(function, [pair for pair in pairs if id(pair[0]) not in ones])
        for pair in pairs:
            if id(pair[0]) in ones:
                own(function, [pair])
                then(pair[0])

    kind._initialize_uninitialized_variables = initialise
    try:
        yield
    finally:
        kind._initialize_uninitialized_variables = own
