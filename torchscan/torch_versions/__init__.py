"""Everything that is private to torch, or that some supported versions of torch lack.

The rest of the package imports it from here and uses nothing else that is private. Features are
detected, not versions compared, where that is possible. torch 2.6 and later are supported. An
operator that a version lacks is a name that never appears.
"""

# The names below are imported for others.
# ruff: noqa: F401
# mypy: implicit-reexport

from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as without_functorch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.library import CustomOpDef  # type: ignore[attr-defined] # it is not exported
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes

from torchscan.torch_versions.autograd_graph import (
    FORMATS_STACK,
    LEAF_NODE,
    NO_BACKWARD_PASS,
    RUNS_BACKWARD,
    SHOWS_SAVED_TENSOR_HOOKS,
    TELLS_UNPACKING,
    GradientHook,
    at_end_of_backward_pass,
    backward_pass,
    current_node,
    engine,
    keeps_for_gradients,
    next_node,
    set_grad_enabled,
    set_version,
    share_memory,
    take_wide_gradients,
    without_hooks_for_gradients,
)
from torchscan.torch_versions.compiler import (
    as_written,
    compile_callbacks,
    compile_records,
    compiled_from,
    compiles_flex_attention,
    graph_breaks,
    has_compiler,
    import_compiler,
    not_compiled,
    recompile_reason,
    skip_in_compiler,
    wrapper_types,
)
from torchscan.torch_versions.cuda_state import (
    allocator_snapshot,
    current_stream,
    device_switches,
    is_capturing,
    is_capturing_now,
)
from torchscan.torch_versions.dispatch_modes import (
    below_autograd,
    count_dispatch_modes,
    count_function_modes,
    innermost_transform,
    is_functorch_wrapped,
    is_tracing,
    is_transforming,
    leave_later_modes,
    making_ordinary_tensors,
    outside_of_everything,
    traces,
    without_dispatch,
    without_python_dispatcher,
    without_torch_function,
    without_tracing,
    without_transforms,
)
from torchscan.torch_versions.fake_tensors import (
    WithoutData,
    fake_mode,
    has_no_data,
    is_fake_type,
    making_fakes,
    pinning_verbs,
    stands_for_itself,
)
from torchscan.torch_versions.fsdp_shards import (
    ShardOfFSDP,
    chunking_verbs,
    is_offloaded,
    is_sharded_by_fsdp,
    resizing_verbs,
    sharded_by_gathered,
    sharded_tensor_verbs,
    shards_of_fsdp,
    with_inputs_copied,
    with_shards_copied,
)
from torchscan.torch_versions.hook_tables import (
    GlobalHooks,
    forget_hooks,
    hooks_of,
    keyword_arguments,
    optimizer_hooks,
    put_back_hooks,
    strip_hooks,
)
from torchscan.torch_versions.process_groups import (
    exchange_rows,
    fake_store,
    flight_records,
    gather_columns,
    gather_rows,
    has_collectives_on_shapes,
    has_process_group,
    is_group_pretended,
    is_wrapped_by_ddp,
    place_in_group,
    ranks_by_group,
    reducing_verbs,
    scatter_rows,
    sum_over,
    sum_up_in_python,
    waiting_verbs,
    with_buckets_without_data,
)
from torchscan.torch_versions.sharded_tensors import (
    arrived,
    dimensions_of,
    forget_placements,
    groups_of_shards,
    is_divided_along,
    is_divided_unevenly,
    is_placed_elsewhere,
    is_sharded_type,
    joined_mesh,
    local_part,
    on_its_way,
    placed_like,
    placement_verbs,
    sharded_from,
    whole_mesh_of,
)
from torchscan.torch_versions.torch_operators import (
    BLOCKS_OF_WIDE_STATES,
    FUSES_GROUPED_QUERIES,
    GATHERS_VECTORS,
    HAS_FUSED_RMS_NORM,
    HAS_SCALES_IN_8_BITS,
    WRITTEN_IN_PYTHON,
    MissingOperator,
    aten,
    has_cpu_kernel,
    join_values,
    norms_of,
    one_hot,
    prefers_cudnn_attention,
    runs_libraries_of_cuda_13,
    scaled_dot_product_attention,
    threads_of_loss,
)
from torchscan.torch_versions.torch_switches import (
    anomaly_flags,
    attention_order,
    default_device,
    print_options,
    products_in_tf32,
    set_anomaly_flags,
    set_attention_order,
    set_default_device,
    shortened_to_tf32,
    unoptimized_scripts,
)
from torchscan.torch_versions.user_functions import (
    arranged_like,
    call_of,
    control_flow,
    function_of_triton_op,
    leaves_in,
    requires_gpu,
    scan_in_pairs,
    with_operands_of_functions,
    without_wrapped_kernels,
)
