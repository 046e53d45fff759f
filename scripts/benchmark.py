"""See scripts/benchmark."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for tests.models, which the tests share

from tests.models.catalogue import LLAMA_3_1_405B, TIMED, Case  # noqa: E402
from torchscan import crawl_module  # noqa: E402


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zoo", action="store_true", help="compare with the published figures of the zoo")
    parser.add_argument("--transformers", action="store_true", help="compare published language models with counts by hand")
    parser.add_argument("--memory", action="store_true", help="time estimates of training steps, of Llama-3.1-70B among others")
    parser.add_argument(
        "--roofline", action="store_true", help="compare estimated with measured step times of some 1,400 models"
    )
    parser.add_argument("--at-hand", action="store_true", help="compare estimated with measured times on the device at hand")
    parser.add_argument("--table", default="", help="with --roofline: another table, with model, img_size, batch and step_ms")
    parser.add_argument("--device", default="NVIDIA GeForce RTX 3090", help="with --roofline: the card that was measured")
    parser.add_argument("--field", action="store_true", help="measure the default call on models that people have")
    parser.add_argument("--only", default="", help="models whose name contains this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.zoo:
        from benchmark_zoo import compare_zoo

        sys.exit(compare_zoo(ROOT.parent / "shared" / "truth" / "zoo.csv", options.only))
    if options.transformers:
        from benchmark_transformers import compare_transformers

        sys.exit(compare_transformers(options.only))
    if options.roofline:
        from benchmark_roofline import compare_step_times

        table = Path(options.table) if options.table else ROOT.parent / "shared" / "truth" / "throughput_rtx3090.csv"
        sys.exit(compare_step_times(table, options.device, options.only))
    if options.field:
        from benchmark_field import measure_field

        sys.exit(measure_field(options.only, ROOT / "build" / "field-answers.jsonl"))
    if options.at_hand:
        from benchmark_device import compare_with_device

        compare_with_device(options.only)
        return
    if options.memory:
        from benchmark_memory import time_estimates

        time_estimates(options.only)
        return
    compare_times(options.only)


def compare_times(only: str) -> None:
    """Time crawl_module against a bare forward pass of the same model on the meta device, the faster of two grad modes.

    The receptive field is timed against crawl_module without it.
    """
    fields = f"{'with rf ms':>12}{'ratio':>8}"
    print(f"{'model':18}{'crawl ms':>10}{'bare ms':>10}{'ratio':>8}{fields}   (bare: {'inference_mode':>14} {'no_grad':>8})")
    ratios = [_compare(name, case) for name, case in TIMED.items() if only.lower() in name.lower()]
    if ratios:
        of_crawl, of_field = (statistics.median(each) for each in zip(*ratios, strict=True))
        print(f"{'median':38}{of_crawl:8.2f}{'':12}{of_field:8.2f}")
    if only.lower() in "llama-3.1-405b":
        before = _resident_memory()
        _compare("Llama-3.1-405B", LLAMA_3_1_405B, lambda: print(f"{'':18}memory added: {_resident_memory() - before} MiB"))


def _compare(name: str, case: Case, after_crawl: Callable[[], None] = lambda: None) -> tuple[float, float]:
    model = case.on_meta()
    crawl = _best_of(lambda: crawl_module(model, **case.inputs, receptive_field=False))
    with_field = _best_of(lambda: crawl_module(model, **case.inputs))
    bare = {mode: _bare(model, case, mode) for mode in (torch.inference_mode, torch.no_grad)}
    ratio = crawl / min(bare.values())
    times = " ".join(f"{1000 * seconds:11.1f}" for seconds in bare.values())
    fields = f"{1000 * with_field:12.1f}{with_field / crawl:8.2f}"
    print(f"{name:18}{1000 * crawl:10.1f}{1000 * min(bare.values()):10.1f}{ratio:8.2f}{fields}   ({times})")
    after_crawl()
    return ratio, with_field / crawl


def _bare(model: nn.Module, case: Case, mode: Any) -> float:
    """Some models ask for values on the way, so integers come with theirs, as in a record."""
    with mode():
        dtype = case.inputs.get("dtype", torch.float32)
        inputs: Tensor = torch.zeros(1, *case.inputs["input_shape"], dtype=dtype, device="meta")
        return _best_of(lambda: model(inputs))


def _best_of(run: Callable[[], Any], times: int = 5) -> float:
    """The first run loads what torch loads lazily; the best of the others is the least disturbed."""
    run()
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _resident_memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 // 2**20


if __name__ == "__main__":
    main()
