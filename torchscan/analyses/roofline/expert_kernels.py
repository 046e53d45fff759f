"""Mixtures of experts as inference engines run them: few kernels around the products of experts.

One kernel turns the scores of a router into picks, and one sorts the picks by expert. Products
gather their rows themselves; they add biases and multiply by scores as they write. A last kernel
adds up the results of each token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from torchscan.analyses.generation.serving_costs import BITS, Compute, Served
from torchscan.analyses.roofline.constants import ROUTER_KERNEL, SORTING_KERNEL
from torchscan.analyses.roofline.kernels import is_launched
from torchscan.analyses.roofline.shared_experts import shared_expert_calls
from torchscan.analyses.routed_calls import RoutedCalls
from torchscan.ops import OpCost
from torchscan.ops.communication import COLLECTIVES
from torchscan.trace.trace import Trace

#: architectures with kernels for mixtures of experts in 4 bits that quantize inputs, and activate
#: results, in their products (trtllm-gen, which TensorRT-LLM, vLLM and SGLang call)
FUSED_EXPERTS_ARCHS = ("Blackwell GB100",)
_GATHERS = frozenset({"aten.index", "aten.index_select", "aten.embedding"})
_SUMS = frozenset({"aten.sum", "aten.index_add", "aten.index_add_", "aten.scatter_add_"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKernels:
    """The calls around products of experts that an engine computes in fewer kernels."""

    #: call -> the call that stands for its kernel
    head_of: Mapping[int, int] = field(default_factory=dict)
    #: such a call -> seconds of its kernel besides traffic and arithmetic
    seconds: Mapping[int, float] = field(default_factory=dict)
    #: product -> bytes of the rows that it gathers, and of those that it gathers them from
    gathered: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    #: call on results of experts in more bits than these -> the share of its bytes that moves
    narrowed: Mapping[int, Fraction] = field(default_factory=dict)
    #: calls of shared experts, which run beside those of routed ones
    beside: frozenset[int] = frozenset()
    #: products whose inputs the kernel before quantizes, or they themselves
    quantized_before: frozenset[int] = frozenset()

    def joined(self, kernels: Sequence[int | None]) -> list[int | None]:
        """Return the kernel of each call, given those of a compiler."""
        return [self.head_of.get(index, kernel) for index, kernel in enumerate(kernels)]

    def served(self, served: Served, compute: Compute | None) -> Served:
        """Return the costs with rows that products gather, and results in the format of products.

        Rows are read, and quantized, where they lie in the order of tokens.
        """
        costs, packed = list(served.costs), list(served.packed)
        for product, (gathered, source) in self.gathered.items():
            bits = 16
            if packed[product].quantized and compute is not None:
                bits = BITS[compute]
                packed[product] = packed[product]._replace(quantized=source)
            read = max(0, costs[product].bytes_read - gathered * bits // 16)
            costs[product] = replace(costs[product], bytes_read=read)
        for product in self.quantized_before:
            packed[product] = packed[product]._replace(is_quantized_before=True)
        for index, share in self.narrowed.items():
            cost = costs[index]
            costs[index] = replace(
                cost,
                bytes_read=int(cost.bytes_read * share),
                bytes_written=int(cost.bytes_written * share),
            )
        return replace(served, costs=tuple(costs), packed=tuple(packed))


def expert_kernels(
    trace: Trace, costs: Sequence[OpCost], routed: RoutedCalls, *, is_fused: bool = False
) -> ExpertKernels:
    """Return the kernels of all mixtures of experts in a trace.

    ``is_fused``: a single kernel picks and sorts, and the first product quantizes its inputs, and
    computes the activation as it writes.
    """
    products: dict[int, list[int]] = defaultdict(list)
    for product, router in routed.router_of_product.items():
        if router >= 0:
            products[router].append(product)
    head_of: dict[int, int] = {}
    seconds: dict[int, float] = {}
    gathered: dict[int, tuple[int, int]] = {}
    narrowed: dict[int, Fraction] = {}
    beside: frozenset[int] = frozenset()
    quantized_before: list[int] = []
    for router, group in products.items():
        mixture = _Mixture(trace, costs, routed, router, group)
        mixture.assign_calls()
        if is_fused:
            mixture.fuse()
            quantized_before += group
        head_of |= mixture.head_of
        seconds |= mixture.seconds
        gathered |= mixture.gathered
        narrowed |= mixture.narrowed
        beside |= mixture.beside
    return ExpertKernels(
        head_of=head_of,
        seconds=seconds,
        gathered=gathered,
        narrowed=narrowed,
        beside=beside,
        quantized_before=frozenset(quantized_before),
    )


class _Mixture:
    """The calls from a router's scores to the sum over its picks."""

    def __init__(
        self,
        trace: Trace,
        costs: Sequence[OpCost],
        routed: RoutedCalls,
        router: int,
        products: Sequence[int],
    ) -> None:
        self._trace = trace
        self._costs = costs
        self._routed = routed
        self._router = router
        self._products = products
        self._routing = routed.routing(products[0])
        self._slots = trace.ops[products[0]].signature.inputs[0].shape[0]
        #: storage of an operand or result of a product -> the product
        self._product_of: dict[int, int] = {}
        #: storages of results in the order of tokens
        self._ordered: set[int] = set()
        self._choosing: list[int] = []
        self._sorting: list[int] = []
        self._adding: list[int] = []
        self.head_of: dict[int, int] = {}
        self.seconds: dict[int, float] = {}
        self.gathered: dict[int, tuple[int, int]] = {}
        self.narrowed: dict[int, Fraction] = {}
        self.beside: frozenset[int] = frozenset()

    def assign_calls(self) -> None:
        """Go through the calls from the scores until the results of experts are summed up."""
        first = self._router
        while first > 0 and not self._costs[first - 1].macs:
            first -= 1

        is_summed = False
        for index in range(first, len(self._trace.ops)):
            if index in self._products:
                self._note(index, index)
            if self._is_apart(index):
                continue
            operator = self._trace.ops[index].signature.operator
            if is_summed and operator != "aten._to_copy":
                break
            self._assign(index)
            is_summed = bool(self._adding) and (is_summed or operator in _SUMS)
        self._add_kernel(self._choosing, ROUTER_KERNEL)
        self._add_kernel(self._sorting, SORTING_KERNEL)
        self._add_kernel(self._adding, 0.0)
        if self._adding and first > 0:
            last = self._adding[-1]
            self.beside = shared_expert_calls(self._trace, first - 1, last, self._ordered)

    def fuse(self) -> None:
        """Pick and sort in one kernel, and activate where the first product writes."""
        calls = self._choosing + self._sorting
        for each in calls:
            self.seconds.pop(each, None)
        self._add_kernel(calls, SORTING_KERNEL)
        first, last = self._products[0], self._products[-1]
        for index in range(first + 1, last):
            if index not in self.head_of and not self._is_apart(index):
                self.head_of[index] = first

    def _is_apart(self, index: int) -> bool:
        """Return whether a call is a product or communicates, or launches no kernel."""
        signature = self._trace.ops[index].signature
        if index in self._products or self._costs[index].macs or not signature.outputs:
            return True
        return signature.operator in COLLECTIVES or not is_launched(signature)

    def _note(self, index: int, product: int) -> None:
        for tensor in self._trace.ops[index].outputs:
            self._product_of[self._trace.tensors[tensor].storage] = product

    def _assign(self, index: int) -> None:
        op = self._trace.ops[index]
        rows = op.signature.outputs[0].shape
        is_gather = op.signature.operator in _GATHERS and rows[:1] == (self._slots,)
        made = self._products_behind(index)
        inputs = {self._trace.tensors[tensor].storage for tensor in op.inputs}
        if self._products[-1] in made and is_gather:
            self._ordered.update(inputs)
        if inputs & self._ordered:
            self._ordered.update(self._trace.tensors[tensor].storage for tensor in op.outputs)
            self._adding.append(index)
            self._narrow(index)
        elif is_gather and len(rows) == 2:
            self._assign_gather(index)
        elif self._is_epilogue(index, made):
            self.head_of[index] = max(made)
            self._note(index, max(made))
            self._narrow(index)
        elif self._counts_picks(index):
            self._sorting.append(index)
        elif self._is_of_scores(index):
            self._choosing.append(index)

    def _products_behind(self, index: int) -> list[int]:
        """Return the product behind each operand that is one, or that is gathered for one."""
        inputs = self._trace.ops[index].inputs
        storages = {self._trace.tensors[tensor].storage for tensor in inputs}
        return [self._product_of[each] for each in storages if each in self._product_of]

    def _assign_gather(self, index: int) -> None:
        """Assign the gather of rows, or of a bias, to the product that reads it."""
        op = self._trace.ops[index]
        product = next(each for each in self._products if each > index)
        self.head_of[index] = product
        self._note(index, product)
        if op.outputs[0] in self._trace.ops[product].inputs:
            gathered, source = op.signature.outputs[0], op.signature.inputs[0]
            self.gathered[product] = gathered.stored_bytes, source.stored_bytes

    def _narrow(self, index: int) -> None:
        """Note that a call moves results in the format of the products."""
        itemsize = self._trace.ops[self._products[-1]].signature.outputs[0].dtype.itemsize
        spec = self._trace.ops[index].signature.outputs[0]
        if spec.dtype.itemsize > itemsize:
            self.narrowed[index] = Fraction(itemsize, spec.dtype.itemsize)

    def _is_epilogue(self, index: int, made: Sequence[int]) -> bool:
        """Return whether a call adds a bias to a product, or multiplies it by scores."""
        signature = self._trace.ops[index].signature
        if signature.operator.rstrip("_") not in ("aten.add", "aten.mul"):
            return False
        if not made or max(made) >= index:
            return False
        is_of_product = len(made) > 1 or made[0] == self._products[-1]
        return is_of_product and signature.outputs[0].shape[:1] == (self._slots,)

    def _counts_picks(self, index: int) -> bool:
        """Return whether a call computes numbers made of picks, or orders something by them."""
        op = self._trace.ops[index]
        if index <= self._router:
            return False
        most = max(self._slots, self._routing.choices)
        if any(spec.numel > most for spec in op.signature.outputs):
            return False
        if not any(spec.is_arithmetic for spec in op.signature.outputs):
            return True
        if not any(self._routed.follows_picks(tensor) for tensor in op.inputs):
            return False
        are_counts = all(self._routed.follows_picks(tensor) for tensor in op.outputs)
        is_gather = op.signature.operator in _GATHERS
        return are_counts or (is_gather and op.signature.outputs[0].shape == (self._slots,))

    def _is_of_scores(self, index: int) -> bool:
        """Return whether a call before the products computes no more elements than scores."""
        if index > self._products[0]:
            return False
        routing = self._routing
        num_scores = routing.rows * routing.choices * routing.num_devices
        outputs = self._trace.ops[index].signature.outputs
        return all(spec.numel <= num_scores for spec in outputs)

    def _add_kernel(self, calls: Sequence[int], seconds: float) -> None:
        if not calls:
            return
        head = calls[-1]
        self.head_of.update(dict.fromkeys(calls, head))
        self.seconds[head] = seconds
