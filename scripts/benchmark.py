"""See scripts/benchmark."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
TRUTH = ROOT.parent / "shared" / "truth"
sys.path.insert(0, str(ROOT))  # for tests.models, which the tests share


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--zoo", action="store_true", help="compare with the published figures of the zoo"
    )
    parser.add_argument(
        "--transformers",
        action="store_true",
        help="compare published language models with counts by hand",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="time estimates of training steps, of Llama-3.1-70B among others",
    )
    parser.add_argument(
        "--roofline",
        action="store_true",
        help="compare estimated with measured step times of some 1,400 models",
    )
    parser.add_argument(
        "--at-hand",
        action="store_true",
        help="compare estimated with measured times on the device at hand",
    )
    parser.add_argument(
        "--table",
        default="",
        help="with --roofline: another table, with model, img_size, batch and step_ms",
    )
    parser.add_argument("--device", default="", help="with --roofline: the card that was measured")
    parser.add_argument(
        "--compiled", action="store_true", help="with --roofline: measured with torch.compile"
    )
    parser.add_argument("--training", action="store_true", help="with --roofline: training steps")
    parser.add_argument(
        "--leave-one-out",
        action="store_true",
        help="with --roofline or --truth: constants set from one card's table, checked on another's",
    )
    parser.add_argument(
        "--truth", action="store_true", help="compare everything, and write docs/accuracy.md"
    )
    parser.add_argument(
        "--projective",
        action="store_true",
        help="compare projective fields with forward-mode differentiation",
    )
    parser.add_argument(
        "--field", action="store_true", help="measure the default call on models that people have"
    )
    parser.add_argument(
        "--meshes",
        action="store_true",
        help="compare training on 64 cards with published throughputs",
    )
    parser.add_argument(
        "--finetuning",
        action="store_true",
        help="compare memory and times of fine-tuning with published ones",
    )
    parser.add_argument(
        "--generation",
        action="store_true",
        help="compare estimated with measured times of generated tokens",
    )
    parser.add_argument(
        "--inspect",
        action="store_true",
        help="what inspecting real steps costs, and how much it attributes",
    )
    parser.add_argument("--watch", action="store_true", help="what watching training costs")
    parser.add_argument(
        "--watch-others",
        action="store_true",
        help="what it costs beside other tools, which log every step",
    )
    parser.add_argument(
        "--store", action="store_true", help="size of a run of 4,000 steps, and time to read it"
    )
    parser.add_argument(
        "--small",
        action="store_true",
        help="what watching and inspecting costs where steps take milliseconds",
    )
    parser.add_argument(
        "--what",
        choices=("watch", "auto", "inspect"),
        help="with --small: watch every step, watch with every='auto', or inspect",
    )
    parser.add_argument(
        "--watch-long",
        action="store_true",
        help="what a step costs after 10,000, in time, memory and disk",
    )
    parser.add_argument(
        "--watch-killed",
        action="store_true",
        help="Kill 100 watched runs at random moments, and count the steps that are lost and reported.",
    )
    parser.add_argument(
        "--growth", action="store_true", help="time chains of 100 to 30,000 operators"
    )
    parser.add_argument("--picture", type=Path, help="with --growth: where to draw it, as SVG")
    parser.add_argument(
        "--only",
        default="",
        help="models whose name contains this; with --field: PACKAGE,… or PACKAGE:PART of a name",
    )
    parser.add_argument(
        "--again", action="store_true", help="with --field: measure models that have an answer, too"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.zoo:
        from benchmark_zoo import compare_zoo

        sys.exit(compare_zoo(TRUTH / "zoo.csv", options.only))
    if options.transformers:
        from benchmark_transformers import compare_transformers

        sys.exit(compare_transformers(options.only))
    if options.truth:
        from benchmark_truth import write_truth

        sys.exit(
            write_truth(TRUTH, ROOT / "docs" / "accuracy.md", leave_one_out=options.leave_one_out)
        )
    if options.roofline and options.leave_one_out:
        from benchmark_constants import leave_one_out, print_checked, two_cards

        print_checked(leave_one_out(two_cards(TRUTH)))
        return
    if options.roofline:
        from benchmark_roofline import compare_step_times

        table, card = _table_of(options)
        mode = "training" if options.training else "compiled" if options.compiled else "eager"
        sys.exit(compare_step_times(table, card, options.only, mode))
    if options.projective:
        from truth_projective import compare_projective

        compare_projective(options.only)
        return
    if options.field:
        from benchmark_field import measure_field

        answers, page = ROOT / "build" / "field-answers.jsonl", ROOT / "docs" / "accuracy.md"
        sys.exit(measure_field(options.only, answers, page, again=options.again))
    if options.at_hand:
        from benchmark_device import compare_with_device

        compare_with_device(options.only)
        return
    if options.memory:
        from benchmark_memory import time_estimates

        time_estimates(options.only)
        return
    if options.meshes:
        from benchmark_meshes import compare_meshes

        compare_meshes()
        return
    if options.finetuning:
        from truth_finetuning import FIGURES, TRACES, StoredFigures, print_finetuning

        sys.exit(print_finetuning(TRUTH, TRACES, StoredFigures(FIGURES)))
    if options.generation:
        from benchmark_generation import compare_generation, compare_joined
        from truth_serving import compare_serving

        compare_serving()
        compare_generation()
        compare_joined()
        return
    if options.inspect:
        from benchmark_inspection import measure_checks, measure_inspection

        measure_checks(options.only)
        measure_inspection(options.only)
        return
    if options.watch:
        from benchmark_watching import measure_watching

        measure_watching(options.only)
        return
    if options.small:
        from benchmark_small_steps import OBSERVERS, measure_small_steps

        measure_small_steps(options.only, OBSERVERS if options.what is None else (options.what,))
        return
    if options.watch_others:
        from benchmark_watching_others import compare_with_others

        compare_with_others(options.only)
        return
    if options.store:
        from benchmark_store import measure_store

        measure_store()
        return
    if options.watch_long:
        from benchmark_watching_long import measure_over_time

        measure_over_time()
        return
    if options.watch_killed:
        from benchmark_kills import measure_kills

        measure_kills()
        return
    if options.growth:
        from benchmark_growth import measure_growth

        measure_growth(options.only, options.picture)
        return
    from benchmark_speed import compare_speed

    compare_speed(options.only)


def _table_of(options: argparse.Namespace) -> tuple[Path, str]:
    """The table that was asked for, or that of the mode and the card; and the card."""
    card = options.device or f"NVIDIA GeForce RTX {4090 if options.compiled else 3090}"
    kind = "training" if options.training else "throughput"
    name = f"{kind}_rtx{card[-4:]}{'_compiled' * options.compiled}.csv"
    return Path(options.table) if options.table else TRUTH / name, card


if __name__ == "__main__":
    main()
