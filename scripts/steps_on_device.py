"""Training steps measured on a GPU, beside estimates of their times and memory.

``python scripts/steps_on_device.py measure FOLDER`` runs each case on the GPU at hand, in a process
of its own, and writes ``steps.csv`` and a timeline of each step there. ``compare`` prints estimates
beside ``scripts/steps_h100.csv``, also on a machine without a GPU. Cases with adapters, 8 bits or
Liger need peft, bitsandbytes, torchao and liger-kernel where they are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from training_models import LLAMA, TitanLlama
from truth_section import Section, percent

import tests.torchvision_cpu  # noqa: F401 - transformers imports torchvision, which needs it
import torchscan
from tests.marked import table
from torchscan.analyses.memory_estimate import MemoryEstimate

_GIB = 2**30
_CARD = "NVIDIA H100 80GB HBM3"
#: steps that were measured on that card (700 W) with torch 2.11 and CUDA 13.0
_MEASURED = Path(__file__).parent / "steps_h100.csv"
#: parts of a step
PARTS = ("products", "attention", "optimizer", "others")
#: seconds that a case takes at least, and that it may take
_LEAST_SECONDS, _MOST_SECONDS = 15, 110
_DEVICE = "cuda"
_LORA_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training step that is measured and estimated."""

    name: str
    build: Callable[[], nn.Module]
    batch: int
    length: int
    inputs: tuple[str, str] = ("input_ids", "labels")
    vocab: int = 128256
    #: "bf16" for the model in bf16, "bf16-mixed" for autocast
    precision: str = "bf16"
    compiled: bool = False
    optimizer: str = "AdamW"
    #: True if constants were set on it
    is_fitted: bool = False
    #: what is done to the real model
    prepare: Callable[[nn.Module], nn.Module] | None = None
    #: the same, as options of torchscan
    recipe: Callable[[], Mapping[str, Any]] = field(default=dict)
    #: seconds of steps that are not counted
    warm_up: float = 2.5


# -- models ---------------------------------------------------------------------------------------


def llama_8b(layers: int) -> nn.Module:
    """Return Llama-3.1-8B with so many layers."""
    return _llama(hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers)


def llama_1b() -> nn.Module:
    """Return Llama-3.2-1B."""
    return _llama(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, tie_word_embeddings=True
    )


def _llama(**sizes: Any) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=128256,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        use_cache=False,
        attn_implementation="sdpa",
        **sizes,
    )
    return transformers.LlamaForCausalLM(config)


def titan(layers: int, length: int) -> nn.Module:
    """Return torchtitan's Llama-3-8B with so many layers."""
    return TitanLlama(LLAMA["8B"], layers, length)


def gpt2_medium() -> nn.Module:
    """Return GPT-2 medium, with its dropout."""
    import transformers

    config = transformers.GPT2Config(
        n_embd=1024, n_layer=24, n_head=16, use_cache=False, attn_implementation="sdpa"
    )
    return transformers.GPT2LMHeadModel(config)


# -- what people do to models ---------------------------------------------------------------------


def checkpointed(model: Any) -> nn.Module:
    """Recompute each layer in the backward pass."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _lora_config() -> Any:
    import peft

    return peft.LoraConfig(r=16, lora_alpha=16, target_modules=list(_LORA_LAYERS))


def with_lora(model: Any) -> nn.Module:
    """Freeze the model and add adapters to the linear layers of its blocks."""
    import peft

    return peft.get_peft_model(model, _lora_config())


def with_qlora(model: Any) -> nn.Module:
    """Quantize the linear layers of the blocks to nf4, and add adapters, as peft's guide does."""
    import bitsandbytes as bnb
    import peft

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name in _LORA_LAYERS:
                packed = bnb.nn.Linear4bit(
                    child.in_features,
                    child.out_features,
                    bias=False,
                    compute_dtype=torch.bfloat16,
                    compress_statistics=False,
                    quant_type="nf4",
                )
                data = child.weight.detach().cpu()
                packed.weight = bnb.nn.Params4bit(
                    data, requires_grad=False, quant_type="nf4", compress_statistics=False
                )
                setattr(module, name, packed.to(_DEVICE))
    peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return with_lora(model)


def with_liger(model: Any) -> nn.Module:
    """Let Liger's kernels compute norms, rotary embeddings, gated layers and the loss."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama(
        rope=True,
        swiglu=True,
        rms_norm=True,
        cross_entropy=False,
        fused_linear_cross_entropy=True,
        model=model,
    )
    return model


def in_float8(recipe: str) -> Callable[[nn.Module], nn.Module]:
    """Convert linear layers but the last with torchao."""

    def convert(model: nn.Module) -> nn.Module:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(recipe)
        convert_to_float8_training(
            model, config=config, module_filter_fn=lambda _module, path: path != "output"
        )
        return model

    return convert


def with_activations_on_host(model: nn.Module) -> nn.Module:
    """Copy what autograd saves to pinned memory of the host, but for the model's own tensors."""
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    forward = model.forward

    def pack(tensor: Tensor) -> Any:
        if tensor.nbytes < 1024 or tensor.untyped_storage().data_ptr() in own:
            return tensor
        kept = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, pin_memory=True
        )
        return kept.copy_(tensor, non_blocking=True), tensor.device

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return kept[0].to(kept[1], non_blocking=True)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return forward(*args, **kwargs)

    model.forward = run
    return model


def _lora_recipe() -> Mapping[str, Any]:
    return {"lora": _lora_config()}


def _qlora_recipe() -> Mapping[str, Any]:
    return {"lora": _lora_config(), "weights": "nf4"}


def _liger_recipe() -> Mapping[str, Any]:
    return {"cross_entropy": "liger", "fused_kernels": ("rms_norm", "rope", "swiglu")}


_TITAN: Mapping[str, Any] = {
    "build": lambda: titan(4, 8192),
    "batch": 1,
    "length": 8192,
    "inputs": ("tokens", "labels"),
    "compiled": True,
}
_FOUR: Mapping[str, Any] = {"build": lambda: llama_8b(4), "batch": 1, "length": 8192}
_ONE_B: Mapping[str, Any] = {"build": llama_1b, "batch": 2, "length": 4096}
_EIGHT: Mapping[str, Any] = {"build": lambda: llama_8b(8), "batch": 1, "length": 4096}
CASES = [
    Case(name="8B x4", warm_up=45.0, is_fitted=True, **_FOUR),
    Case(name="8B x4 compiled", compiled=True, **_FOUR),
    Case(name="1B", **_ONE_B),
    Case(name="titan 8B x4 compiled", **_TITAN),
    Case(
        name="titan 8B x4 float8 tensorwise",
        prepare=in_float8("tensorwise"),
        recipe=lambda: {"float8": "tensorwise", "float8_skip": ["output"]},
        **_TITAN,
    ),
    Case(
        name="titan 8B x4 float8 rowwise",
        prepare=in_float8("rowwise"),
        recipe=lambda: {"float8": "rowwise", "float8_skip": ["output"]},
        **_TITAN,
    ),
    Case(name="8B x4 autocast", precision="bf16-mixed", **_FOUR),
    Case(
        name="8B x4 checkpointed",
        prepare=checkpointed,
        recipe=lambda: {"checkpoint": True},
        **_FOUR,
    ),
    Case(name="8B x8 LoRA", prepare=with_lora, recipe=_lora_recipe, **_EIGHT),
    Case(
        name="8B x8 QLoRA",
        prepare=with_qlora,
        recipe=_qlora_recipe,
        precision="bf16-mixed",
        **_EIGHT,
    ),
    Case(name="1B Liger", prepare=with_liger, recipe=_liger_recipe, **_ONE_B),
    Case(name="1B AdamW8bit", optimizer="AdamW8bit", is_fitted=True, **_ONE_B),
    Case(
        name="8B x4 activations on host",
        prepare=with_activations_on_host,
        recipe=lambda: {"offload": "activations"},
        **_FOUR,
    ),
    Case(name="1B compiled", compiled=True, **_ONE_B),
    Case(
        name="GPT-2 medium autocast",
        build=gpt2_medium,
        batch=8,
        length=1024,
        vocab=50257,
        precision="bf16-mixed",
    ),
    Case(
        name="GPT-2 medium compiled",
        build=gpt2_medium,
        batch=8,
        length=1024,
        vocab=50257,
        precision="bf16-mixed",
        compiled=True,
    ),
]


# -- measuring ------------------------------------------------------------------------------------


class _Clocks:
    """Samples of clock, power and temperature while steps run."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int, float, int]] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Sample until the block ends."""
        ends = threading.Event()
        thread = threading.Thread(target=self._sample, args=(ends,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    def _sample(self, ends: threading.Event) -> None:
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not ends.wait(0.05):
            clock = pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM)
            power = pynvml.nvmlDeviceGetPowerUsage(card) / 1000
            heat = pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU)
            self.samples.append((time.perf_counter(), clock, power, heat))


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Return times, memory, clocks and kernels of a step."""
    torch.manual_seed(0)
    step = _step_of(case)
    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    clocks = _Clocks()
    with clocks.watch():
        _run_for(step, case.warm_up)
        begin = time.perf_counter()
        times = _run_for(step, 2.5)
    memory = {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "in_use": _in_use(),
    }
    _profile(step, _path_of(folder, case, "timeline"))
    later = [each for each in clocks.samples if each[0] >= begin]
    return {
        "times": times,
        "first": first,
        "memory": memory,
        "clock_mhz": statistics.median(each[1] for each in later),
        "power_w": statistics.median(each[2] for each in later),
        "heat": later[-1][3],
        "clocks": clocks.samples[:: max(1, len(clocks.samples) // 40)],
    }


def _step_of(case: Case) -> Callable[[], None]:
    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
    torch.set_default_dtype(dtype)
    with torch.device(_DEVICE):
        model = case.build().train()
    torch.set_default_dtype(torch.float32)
    turns = getattr(model, "freqs_cis", None)
    if turns is not None:
        model.freqs_cis = torch.polar(torch.ones_like(turns.real), turns.real)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    if case.prepare is not None:
        model = case.prepare(model)
    trained = [each for each in model.parameters() if each.requires_grad]
    if case.optimizer == "AdamW8bit":
        import bitsandbytes as bnb

        optimizer: Any = bnb.optim.AdamW8bit(trained, lr=1e-5)
    else:
        optimizer = torch.optim.AdamW(trained, lr=1e-5)
    run = torch.compile(model) if case.compiled else model
    shape = (case.batch, case.length)
    names = case.inputs
    tokens = {name: torch.randint(0, case.vocab, shape, device=_DEVICE) for name in names}
    is_mixed = case.precision == "bf16-mixed"

    def step() -> None:
        with torch.autocast(_DEVICE, torch.bfloat16) if is_mixed else nullcontext():
            output = run(**tokens)
        loss = output if isinstance(output, Tensor) else output["loss"]
        del output  # it would hold the logits until the end of the backward pass
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _run_for(step: Callable[[], None], seconds: float) -> list[float]:
    """Run steps for so long and return the time of each in seconds, after the device did it."""
    marks = [torch.cuda.Event(enable_timing=True)]
    marks[0].record()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        step()
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        # the host stays at most two steps ahead, as where a loss is read from time to time
        if len(marks) > 3:
            marks[-3].synchronize()
    torch.cuda.synchronize()
    pairs = itertools.pairwise(marks)
    return [before.elapsed_time(after) / 1000 for before, after in pairs]


def _in_use() -> int:
    import pynvml

    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    return int(pynvml.nvmlDeviceGetMemoryInfo(card).used)


def _profile(step: Callable[[], None], path: Path) -> None:
    """Store the timeline of one step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as p:
        step()
        torch.cuda.synchronize()
    p.export_chrome_trace(f"{path}.gz")


def measure_one(name: str, folder: Path) -> None:
    """Measure a case in this process, and store the result or the error."""
    case = next(each for each in CASES if each.name == name)
    try:
        result = measure(case, folder)
    except Exception:
        result = {"error": traceback.format_exc()[-600:]}
    _path_of(folder, case, "result").write_text(json.dumps(result))


def _path_of(folder: Path, case: Case, kind: str) -> Path:
    return folder / f"{case.name.replace(' ', '_')}.{kind}.json"


def measure_all(folder: Path, only: Sequence[str], seconds: float) -> None:
    """Measure cases one after the other until the time is up, and write their figures."""
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    idle = _in_use()
    for case in CASES:
        left = seconds - (time.perf_counter() - start)
        if (only and case.name not in only) or left < _LEAST_SECONDS:
            continue
        path = _path_of(folder, case, "result")
        path.unlink(missing_ok=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, __file__, "one", str(folder), "--only", case.name],
                timeout=min(left, _MOST_SECONDS),
                check=False,
            )
        result = json.loads(path.read_text()) if path.exists() else {"error": "no result"}
        print(case.name, result.get("error", ""), flush=True)
    write_figures(folder, idle)


def write_figures(folder: Path, idle: int) -> None:
    """Write a line for each case that was measured in the folder.

    Args:
        folder: where results and timelines are.
        idle: bytes of the card that were in use before.
    """
    with (folder / "steps.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Measured)])
        writer.writeheader()
        for case in CASES:
            path = _path_of(folder, case, "result")
            if not path.exists():
                continue
            result = json.loads(path.read_text())
            if "error" in result:
                continue
            parts = _parts_of(_path_of(folder, case, "timeline"))
            memory = result["memory"]
            line = Measured(
                case=case.name,
                step=1000 * statistics.median(result["times"]),
                **parts,
                allocated=memory["allocated"] / _GIB,
                reserved=memory["reserved"] / _GIB,
                in_use=(memory["in_use"] - idle) / _GIB,
                megahertz=result["clock_mhz"],
                watts=result["power_w"],
            )
            rounded = {
                name: f"{value:.5g}" if isinstance(value, float) else value
                for name, value in asdict(line).items()
            }
            writer.writerow(rounded)


def _parts_of(path: Path) -> dict[str, float]:
    """Return milliseconds of a step's kernels by part."""
    with gzip.open(f"{path}.gz") as file:
        events = json.load(file)["traceEvents"]
    names = {}
    for event in events:
        if event.get("cat") == "cpu_op":
            names[event["args"].get("External id")] = event["name"]
    parts = dict.fromkeys(PARTS, 0.0)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            operator = names.get(event["args"].get("External id"), "")
            parts[_part_of(operator, event["name"].lower())] += event["dur"] / 1000
    return parts


def _part_of(operator: str, kernel: str) -> str:
    if "multi_tensor" in kernel or "optimizer_update" in operator:
        return "optimizer"
    if any(word in kernel for word in ("sdpa", "flash", "fmha")):
        return "attention"
    is_product = any(word in kernel for word in ("nvjet", "gemm", "cutlass", "xmma", "splitk"))
    return "products" if is_product else "others"


# -- estimates ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A step that was measured: milliseconds, and GiB of memory."""

    case: str
    step: float
    #: of one step under the profiler
    products: float
    attention: float
    optimizer: float
    others: float
    allocated: float
    reserved: float
    #: of the card, by NVML, beyond what was in use before
    in_use: float
    #: medians while steps ran
    megahertz: float
    watts: float
    #: "yes" if the loop kept the output of the model until the end of a step
    holds_output: str = "no"


class Compared(NamedTuple):
    """A case beside its estimate."""

    case: Case
    measured: Measured
    #: milliseconds of the step, and of its parts
    step: float
    parts: Mapping[str, float]
    memory: MemoryEstimate

    @property
    def ratio(self) -> float:
        """Estimated by measured time."""
        return self.step / self.measured.step


def measured_steps(path: Path = _MEASURED) -> Iterator[tuple[Case, Measured]]:
    """Yield the cases of a file with their figures."""
    cases = {case.name: case for case in CASES}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            texts = {name: row.pop(name) for name in ("case", "holds_output")}
            numbers = {name: float(text) for name, text in row.items()}
            yield cases[texts["case"]], Measured(**texts, **numbers)


def compare(case: Case, measured: Measured) -> Compared:
    """Estimate a case on the GPU that was measured."""
    with torch.device("meta"):
        model = case.build().train()
    turns = getattr(model, "freqs_cis", None)
    model = model.to(torch.bfloat16 if case.precision == "bf16" else torch.float32)
    if turns is not None:
        model.freqs_cis = turns
    tokens = torch.zeros(case.batch, case.length, dtype=torch.long)
    scan = torchscan.Scan(
        model,
        kwargs=dict.fromkeys(case.inputs, tokens),
        training=True,
        loss=_loss_of,
        holds_output=measured.holds_output == "yes",
        optimizer=case.optimizer,
        device=_CARD,
        compiled=case.compiled,
        precision=None if case.precision == "bf16" else case.precision,
        progress=False,
        **case.recipe(),
    )
    roofline = scan.roofline
    parts = dict.fromkeys(PARTS, 0.0)
    for each in roofline.operators:
        parts[_estimated_part(each.phase, each.operator)] += 1000 * each.time_estimate
    return Compared(case, measured, 1000 * roofline.time_estimate, parts, scan.memory)


def _loss_of(output: Any) -> Tensor:
    loss: Tensor = output if isinstance(output, Tensor) else output["loss"]
    return loss


def _estimated_part(phase: str, operator: str) -> str:
    if phase == "optimizer":
        return "optimizer"
    if "attention" in operator:
        return "attention"
    is_product = any(word in operator for word in ("mm", "linear", "product_of_4bit"))
    return "products" if is_product else "others"


def steps_section(found: Sequence[Compared]) -> Section:
    """Return the comparison for the page on accuracy."""
    rows, sizes = [], []
    for each in found:
        measured, verdict = each.measured, each.memory.verdict
        if verdict is None:
            continue
        allocated, reserved = (
            size / _GIB for size in (verdict.allocated_bytes, verdict.reserved_bytes)
        )
        sizes.append(abs(allocated / measured.allocated - 1))
        rows.append(
            (
                each.case.name + ("" if each.case.is_fitted else ", held out"),
                f"{each.step:.1f} / {measured.step:.1f} ms",
                *(f"{each.parts[name]:.1f} / {getattr(measured, name):.1f}" for name in PARTS),
                f"{allocated:.2f} / {measured.allocated:.2f} GiB",
                f"{reserved:.2f} / {measured.reserved:.2f}",
            )
        )
    apart = [each for each in found if not each.case.is_fitted]
    errors = [abs(each.ratio - 1) for each in apart]
    result = f"time: median error {percent(statistics.median(errors or [0.0]))}"
    result += f"; allocated memory: {percent(statistics.median(sizes))}"
    summary = [("training steps on one H100, CUDA 13", "own measurements", f"{len(apart)}", result)]
    headings = ("step", "time", *PARTS, "allocated", "reserved")
    return Section(summary, {"steps": f"\n{table(headings, rows)}\n"})


def steps(_truth: Path) -> Section:
    """Return the comparison with the steps that are stored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return steps_section([compare(*pair) for pair in measured_steps()])


# -- as a program ---------------------------------------------------------------------------------


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "one", "compare"])
    parser.add_argument("folder", type=Path, nargs="?", help="folder of the measurements")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    parser.add_argument("--seconds", type=float, default=1e9, help="time for all cases")
    options = parser.parse_args()
    if options.what == "one":
        measure_one(options.only[0], options.folder)
    elif options.what == "measure":
        measure_all(options.folder, options.only, options.seconds)
    else:
        path = options.folder / "steps.csv" if options.folder else _MEASURED
        pairs = [
            pair
            for pair in measured_steps(path)
            if not options.only or pair[0].name in options.only
        ]
        section = steps_section([compare(*pair) for pair in pairs])
        print(*section.summary[0], section.blocks["steps"], sep="\n")


if __name__ == "__main__":
    _main()
