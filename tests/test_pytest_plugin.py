"""The fixture ``model_budget`` and its option, in a run of pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import torchscan.budgets  # noqa: F401 - pytester forgets what its runs import, and torch takes an operator only once

NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.fc = nn.Linear(4, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.fc(x))
"""
FILE = """
[budgets.net]
target = "nets.py:Net"
input = "4"
max_params = 60
baseline = "net.json"
"""


@pytest.fixture
def run(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(nets=NETS)
    pytester.path.joinpath("torchscan.toml").write_text(FILE)
    return pytester


def outcome(run: pytest.Pytester, test: str, *options: str) -> pytest.RunResult:
    run.makepyfile(test_it=f"from nets import Net\n\ndef test_it(model_budget):\n    {test}\n")
    return run.runpytest_inprocess("-p", "no:randomly", "-p", "no:cacheprovider", *options)


def test_within_and_beyond_a_limit(run: pytest.Pytester) -> None:
    outcome(run, "model_budget(Net(), (4,), max_params=58, max_macs='48')").assert_outcomes(
        passed=1
    )
    failed = outcome(run, "model_budget(Net(), (4,), max_params=57)")
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(
        ["Net exceeds its budget", "  Parameters: 58, at most 57 (+1.75 %)", "    fc (Linear): 40"]
    )
    failed.stdout.no_fnmatch_line("*Traceback*")
    failed.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_inputs_may_be_whole_arguments(run: pytest.Pytester) -> None:
    for inputs in ("args=(torch.zeros(3, 4),)", "kwargs={'x': torch.zeros(3, 4)}"):
        test = f"import torch; model_budget(Net(), {inputs}, max_macs="
        outcome(run, f"{test}144)").assert_outcomes(passed=1)
        outcome(run, f"{test}143)").assert_outcomes(failed=1)


def test_results_and_samples_can_be_limited(run: pytest.Pytester) -> None:
    """48 MACs a sample."""
    of_batch = "model_budget(Net(), (4,), batch_size=32, per_sample=True, max_macs="
    outcome(run, f"{of_batch}48)").assert_outcomes(passed=1)
    failed = outcome(run, f"{of_batch}47)")
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["  MACs: 48 per sample, at most 47 (+2.13 %)"])
    info = "import torchscan; info = torchscan.crawl_module(Net(), (4,)); model_budget(info, "
    outcome(run, f"{info}max_macs=48)").assert_outcomes(passed=1)
    outcome(run, f"{info}max_macs=47)").assert_outcomes(failed=1)
    refused = outcome(run, f"{info}max_macs=48, name='net')")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines(["torchscan: name is for a model, and this is an info dict: *"])


def test_a_baseline_is_missing_recorded_kept_and_exceeded(run: pytest.Pytester) -> None:
    baseline = run.path / "net.json"
    missing = outcome(run, "model_budget(name='net')")
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(
        ["torchscan: torchscan.toml: net: there is no baseline *net.json* --torchscan-update*"]
    )
    assert not baseline.exists()

    updated = outcome(run, "model_budget(name='net')", "--torchscan-update")
    updated.assert_outcomes(passed=1)
    updated.stdout.fnmatch_lines(["*= torchscan =*", "net: wrote *net.json"])
    assert baseline.exists()

    outcome(run, "model_budget(name='net')").assert_outcomes(passed=1)
    outcome(run, "model_budget(Net(), (4,), name='net')").assert_outcomes(passed=1)
    outcome(run, "model_budget(Net(), name='net')").assert_outcomes(
        passed=1
    )  # the inputs of the file

    grown = outcome(run, "model_budget(Net(9), (4,), name='net')")
    grown.assert_outcomes(failed=1)
    grown.stdout.fnmatch_lines(
        ["net exceeds its budget", "  Parameters: 65, 58 before*", "    fc (Linear): +5"]
    )

    smaller = outcome(run, "model_budget(Net(7), (4,), name='net')")
    smaller.assert_outcomes(passed=1)
    smaller.stdout.fnmatch_lines(["net: below the baseline: *`torchscan check --update`*"])


@pytest.mark.parametrize("content", ["", "{", '{"schema": "torchscan/info/2"}', "[]"])
def test_a_baseline_that_is_broken_is_said_and_left_alone(
    run: pytest.Pytester, content: str
) -> None:
    baseline = run.path / "net.json"
    baseline.write_text(content)
    failed = outcome(run, "model_budget(name='net')")
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(
        ["torchscan: torchscan.toml: net: reading the baseline failed: *net.json: *"]
    )
    assert baseline.read_text() == content


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("model_budget(name='nat')", "torchscan: there is no budget 'nat': did you mean net?"),
        (
            "model_budget(Net(), (4,))",
            "torchscan: there is nothing to check: give a model and limits, *",
        ),
        (
            "model_budget(max_params=3)",
            "torchscan: there is nothing to check: give a model and limits, *",
        ),
        ("model_budget(name='net', max_params=3)", "torchscan: budget 'net' has its own target: *"),
        (
            "model_budget(Net(), (4,), max_parms=3)",
            "torchscan: max_parms is not a limit of a model: give max_params, *",
        ),
        ("model_budget(Net(), (5,), max_params=3)", "torchscan: fc (Linear) failed in *"),
    ],
)
def test_wrong_use_fails_in_a_line(run: pytest.Pytester, test: str, says: str) -> None:
    failed = outcome(run, test)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines([says])


@pytest.mark.parametrize(("most", "failed"), [("1000 s", 0), ("0 s", 1)])
def test_steps_are_taken_only_when_they_are_asked_for(
    run: pytest.Pytester, most: str, failed: int
) -> None:
    """Limits that any step is within, and that none is."""
    limits = f'[budgets.net]\ntarget = "nets.py:Net"\ninput = "4"\nmax_step_time = "{most}"\nmeasured_on = "CPU"\n'
    run.path.joinpath("torchscan.toml").write_text(limits)
    test = "model_budget(name='net')"
    asked_not = outcome(run, test)
    asked_not.assert_outcomes(passed=1)
    asked_not.stdout.fnmatch_lines(
        [
            "net: the time of a step (*) is only checked with --timings (in pytest, --torchscan-timings)"
        ]
    )
    asked = outcome(run, test, "--torchscan-timings")
    asked.assert_outcomes(passed=1 - failed, failed=failed)
    asked.stdout.no_fnmatch_line("*not checked*")
    if failed:
        asked.stdout.fnmatch_lines(
            [
                "net exceeds its budget",
                "  a step took * on CPU *, at most 0.00 µs",
                "    *(Linear): *",
            ]
        )


def test_a_model_of_the_tests_own_takes_no_steps(run: pytest.Pytester) -> None:
    limits = '[budgets.net]\nmax_step_time = "0 s"\nmeasured_on = "CPU"\n'
    run.path.joinpath("torchscan.toml").write_text(limits)
    passed = outcome(run, "model_budget(Net(), (4,), name='net')", "--torchscan-timings")
    passed.assert_outcomes(passed=1)
    passed.stdout.fnmatch_lines(
        ["net: the time of a step is only checked with a target: model_budget(name='net')"]
    )


@pytest.mark.parametrize(("most", "failed"), [(64, 0), (63, 1)])
def test_a_model_of_the_tests_own_is_asked_what_it_generates(
    run: pytest.Pytester, most: int, failed: int
) -> None:
    """A key and a value of 8 numbers for each token, of 4 bytes."""
    limits = f'[budgets.net]\ndevice = "NVIDIA L4"\n[budgets.net.generation]\nmax_cache_per_token = {most}\n'
    run.path.joinpath("torchscan.toml").write_text(limits)
    found = outcome(
        run, "from tests.models.generating import Echo; model_budget(Echo(10, 8), name='net')"
    )
    found.assert_outcomes(passed=1 - failed, failed=failed)
    if failed:
        found.stdout.fnmatch_lines(
            ["net exceeds its budget", "  Cache per token: 64 B, at most 63 B (+1.59 %)"]
        )


def test_the_file_of_the_nearest_folder_counts(run: pytest.Pytester) -> None:
    inner = run.mkdir("inner")
    (inner / "torchscan.toml").write_text(
        '[budgets.other]\ntarget = "nets.py:Net"\ninput = "4"\nmax_params = 1\n'
    )
    Path(inner / "nets.py").write_text(NETS)
    Path(inner / "test_inner.py").write_text(
        "def test_it(model_budget):\n    model_budget(name='other')\n"
    )
    failed = run.runpytest_inprocess("-p", "no:randomly", "inner")
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["other exceeds its budget"])


@pytest.mark.slow
def test_a_run_of_its_own_finds_the_fixture_by_its_entry_point(run: pytest.Pytester) -> None:
    run.makepyfile(
        "from nets import Net\n\ndef test_it(model_budget):\n    model_budget(Net(), (4,), max_params=58)\n"
    )
    run.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_run_without_the_fixture_does_not_wait_for_torch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\n\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=1)
