"""A model's configuration: one frozen class per message of config.pbtxt, with its field names.

Fields have the order of the schema. Enums are their names ("TYPE_INT32", "KIND_CPU"),
repeated fields are tuples, maps are dicts that are never changed. A message field, and every member
of a "one of" group, is None if the config does not set it; at most one of such a group is set.
Change a config with `dataclasses.replace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelRateLimiter:
    """The resources that an instance needs to execute, and its priority."""

    @dataclass(frozen=True, slots=True)
    class Resource:
        """So many of one named resource."""

        name: str = ""
        global_: bool = False  # `global` in the schema, a Python keyword
        count: int = 0

    resources: tuple[Resource, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ModelInstanceGroup:
    """A set of equal instances. `count` is per GPU for KIND_GPU; 0 means the default."""

    @dataclass(frozen=True, slots=True)
    class SecondaryDevice:
        """A deep-learning accelerator beside the GPU."""

        kind: str = "KIND_NVDLA"
        device_id: int = 0

    name: str = ""
    kind: str = "KIND_AUTO"
    count: int = 0
    rate_limiter: ModelRateLimiter | None = None
    gpus: tuple[int, ...] = ()
    secondary_devices: tuple[SecondaryDevice, ...] = ()
    profile: tuple[str, ...] = ()
    passive: bool = False
    host_policy: str = ""


@dataclass(frozen=True, slots=True)
class ModelTensorReshape:
    """The shape the backend sees where it differs from `dims`; () is a scalar."""

    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One input. `dims` leave the batch dimension out; -1 is any size."""

    name: str = ""
    data_type: str = "TYPE_INVALID"
    format: str = "FORMAT_NONE"
    dims: tuple[int, ...] = ()
    reshape: ModelTensorReshape | None = None
    is_shape_tensor: bool = False
    allow_ragged_batch: bool = False
    optional: bool = False
    is_non_linear_format_io: bool = False


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """One output. `dims` leave the batch dimension out; -1 is any size."""

    name: str = ""
    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    reshape: ModelTensorReshape | None = None
    label_filename: str = ""
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False


@dataclass(frozen=True, slots=True)
class BatchInput:
    """An input the server computes from the whole batch."""

    kind: str = "BATCH_ELEMENT_COUNT"
    target_name: tuple[str, ...] = ()
    data_type: str = "TYPE_INVALID"
    source_input: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """An output the server splits by the shapes of an input."""

    target_name: tuple[str, ...] = ()
    kind: str = "BATCH_SCATTER_WITH_INPUT_SHAPE"
    source_input: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelVersionPolicy:
    """Which version folders are served: one of latest, all, specific."""

    @dataclass(frozen=True, slots=True)
    class Latest:
        """The highest numbers."""

        num_versions: int = 0

    @dataclass(frozen=True, slots=True)
    class All:
        """Every version there is."""

    @dataclass(frozen=True, slots=True)
    class Specific:
        """The versions listed."""

        versions: tuple[int, ...] = ()

    latest: Latest | None = None
    all: All | None = None
    specific: Specific | None = None


@dataclass(frozen=True, slots=True)
class ModelOptimizationPolicy:
    """Hints to the backend."""

    @dataclass(frozen=True, slots=True)
    class Graph:
        """How much the backend optimises the graph."""

        level: int = 0

    @dataclass(frozen=True, slots=True)
    class Cuda:
        """CUDA graphs and streams."""

        @dataclass(frozen=True, slots=True)
        class GraphSpec:
            """A batch size and shapes to capture a graph for."""

            @dataclass(frozen=True, slots=True)
            class Shape:
                """One input's shape."""

                dim: tuple[int, ...] = ()

            @dataclass(frozen=True, slots=True)
            class LowerBound:
                """The smallest batch and shapes the graph may serve."""

                batch_size: int = 0
                input: Mapping[str, ModelOptimizationPolicy.Cuda.GraphSpec.Shape] = field(
                    default_factory=dict
                )

            batch_size: int = 0
            input: Mapping[str, Shape] = field(default_factory=dict)
            graph_lower_bound: LowerBound | None = None

        graphs: bool = False
        busy_wait_events: bool = False
        graph_spec: tuple[GraphSpec, ...] = ()
        output_copy_stream: bool = False

    @dataclass(frozen=True, slots=True)
    class ExecutionAccelerators:
        """Execution providers by priority."""

        @dataclass(frozen=True, slots=True)
        class Accelerator:
            """One provider and its options."""

            name: str = ""
            parameters: Mapping[str, str] = field(default_factory=dict)

        gpu_execution_accelerator: tuple[Accelerator, ...] = ()
        cpu_execution_accelerator: tuple[Accelerator, ...] = ()

    @dataclass(frozen=True, slots=True)
    class PinnedMemoryBuffer:
        """Whether host buffers are page-locked."""

        enable: bool = False

    graph: Graph | None = None
    priority: str = "PRIORITY_DEFAULT"
    cuda: Cuda | None = None
    execution_accelerators: ExecutionAccelerators | None = None
    input_pinned_memory: PinnedMemoryBuffer | None = None
    output_pinned_memory: PinnedMemoryBuffer | None = None
    gather_kernel_buffer_threshold: int = 0
    eager_batching: bool = False


@dataclass(frozen=True, slots=True)
class ModelQueuePolicy:
    """What happens to a request that waits too long or meets a full queue. 0 is no limit."""

    timeout_action: str = "REJECT"
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class ModelDynamicBatching:
    """Requests that arrive close together share one execution."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: ModelQueuePolicy | None = None
    priority_queue_policy: Mapping[int, ModelQueuePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelSequenceBatching:
    """Requests with one correlation id go to one instance, in order: one of direct, oldest."""

    @dataclass(frozen=True, slots=True)
    class Control:
        """The meaning of a control tensor, and its values."""

        kind: str = "CONTROL_SEQUENCE_START"
        int32_false_true: tuple[int, ...] = ()
        fp32_false_true: tuple[float, ...] = ()
        bool_false_true: tuple[bool, ...] = ()
        data_type: str = "TYPE_INVALID"

    @dataclass(frozen=True, slots=True)
    class ControlInput:
        """An input the server fills in."""

        name: str = ""
        control: tuple[ModelSequenceBatching.Control, ...] = ()

    @dataclass(frozen=True, slots=True)
    class InitialState:
        """What a state is at the start of a sequence: one of zero_data, data_file."""

        data_type: str = "TYPE_INVALID"
        dims: tuple[int, ...] = ()
        zero_data: bool | None = None
        data_file: str | None = None
        name: str = ""

    @dataclass(frozen=True, slots=True)
    class State:
        """A tensor carried from each request of a sequence to the next."""

        input_name: str = ""
        output_name: str = ""
        data_type: str = "TYPE_INVALID"
        dims: tuple[int, ...] = ()
        initial_state: tuple[ModelSequenceBatching.InitialState, ...] = ()
        use_same_buffer_for_input_output: bool = False
        use_growable_memory: bool = False

    @dataclass(frozen=True, slots=True)
    class StrategyDirect:
        """Each sequence keeps its slot in the batch."""

        max_queue_delay_microseconds: int = 0
        minimum_slot_utilization: float = 0.0

    @dataclass(frozen=True, slots=True)
    class StrategyOldest:
        """Batches are made from the oldest requests of many sequences."""

        max_candidate_sequences: int = 0
        preferred_batch_size: tuple[int, ...] = ()
        max_queue_delay_microseconds: int = 0
        preserve_ordering: bool = False

    direct: StrategyDirect | None = None
    oldest: StrategyOldest | None = None
    max_sequence_idle_microseconds: int = 0
    control_input: tuple[ControlInput, ...] = ()
    state: tuple[State, ...] = ()
    iterative_sequence: bool = False


@dataclass(frozen=True, slots=True)
class ModelEnsembling:
    """A model made of other models."""

    @dataclass(frozen=True, slots=True)
    class Step:
        """One model of the ensemble; its maps go from its own tensor names to the ensemble's."""

        model_name: str = ""
        model_version: int = 0
        input_map: Mapping[str, str] = field(default_factory=dict)
        output_map: Mapping[str, str] = field(default_factory=dict)
        model_namespace: str = ""

    step: tuple[Step, ...] = ()
    max_inflight_requests: int = 0


@dataclass(frozen=True, slots=True)
class ModelParameter:
    """A value the backend or the model reads."""

    string_value: str = ""


@dataclass(frozen=True, slots=True)
class ModelWarmup:
    """A request that every instance answers before the model is ready. `count` 0 is once."""

    @dataclass(frozen=True, slots=True)
    class Input:
        """One tensor of it: one of zero_data, random_data, input_data_file."""

        data_type: str = "TYPE_INVALID"
        dims: tuple[int, ...] = ()
        zero_data: bool | None = None
        random_data: bool | None = None
        input_data_file: str | None = None

    name: str = ""
    batch_size: int = 0
    inputs: Mapping[str, Input] = field(default_factory=dict)
    count: int = 0


@dataclass(frozen=True, slots=True)
class ModelOperations:
    """Libraries of custom operators."""

    op_library_filename: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelTransactionPolicy:
    """How many responses a request has: one, or with `decoupled` any number."""

    decoupled: bool = False


@dataclass(frozen=True, slots=True)
class ModelRepositoryAgents:
    """Agents that inspect the model's folder before it is loaded."""

    @dataclass(frozen=True, slots=True)
    class Agent:
        """One agent and its settings."""

        name: str = ""
        parameters: Mapping[str, str] = field(default_factory=dict)

    agents: tuple[Agent, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelResponseCache:
    """Whether responses to equal requests may come from the cache."""

    enable: bool = False


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """Changes to the model's metrics."""

    @dataclass(frozen=True, slots=True)
    class MetricControl:
        """Options for one metric family."""

        @dataclass(frozen=True, slots=True)
        class MetricIdentifier:
            """Which family."""

            family: str = ""

        @dataclass(frozen=True, slots=True)
        class HistogramOptions:
            """The upper bounds of a histogram's buckets."""

            buckets: tuple[float, ...] = ()

        metric_identifier: MetricIdentifier | None = None
        histogram_options: HistogramOptions | None = None

    metric_control: tuple[MetricControl, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The whole of config.pbtxt. Scheduling is at most one of dynamic, sequence, ensemble."""

    name: str = ""
    platform: str = ""
    backend: str = ""
    runtime: str = ""
    version_policy: ModelVersionPolicy | None = None
    max_batch_size: int = 0
    input: tuple[ModelInput, ...] = ()
    output: tuple[ModelOutput, ...] = ()
    batch_input: tuple[BatchInput, ...] = ()
    batch_output: tuple[BatchOutput, ...] = ()
    optimization: ModelOptimizationPolicy | None = None
    dynamic_batching: ModelDynamicBatching | None = None
    sequence_batching: ModelSequenceBatching | None = None
    ensemble_scheduling: ModelEnsembling | None = None
    instance_group: tuple[ModelInstanceGroup, ...] = ()
    default_model_filename: str = ""
    cc_model_filenames: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, ModelParameter] = field(default_factory=dict)
    model_warmup: tuple[ModelWarmup, ...] = ()
    model_operations: ModelOperations | None = None
    model_transaction_policy: ModelTransactionPolicy | None = None
    model_repository_agents: ModelRepositoryAgents | None = None
    response_cache: ModelResponseCache | None = None
    model_metrics: ModelMetrics | None = None
