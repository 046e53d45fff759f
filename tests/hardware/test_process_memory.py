"""What a process is said to hold on GPUs, on machines of every kind; a stand-in for the driver answers as NVML would there."""

# ruff: noqa: N802 (NVML's names)

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest
import torch

from torchscan.hardware import process_memory as room
from torchscan.hardware.process_memory import (
    Overhead,
    ProcessMemory,
    cuda_overhead,
    get_process_gpu_ram,
    process_memory,
)
from torchscan.notes import Note

ME = os.getpid()
MIB = 1024 * 1024
#: beyond the largest number that Linux gives out, so they are in no /proc
STRANGER, OTHER_STRANGER = 5_000_001, 5_000_002

on_linux = pytest.mark.skipif(not os.path.exists("/proc/self"), reason="there is no /proc here")


# -- a module in pynvml's place ------------------------------------------------------------------------------------------

Processes = list[tuple[int, int | None]]


@dataclass(eq=False)
class Gpu:
    """A device as NVML shows it: its lists of processes, or the number of the error that it answers with."""

    compute: Processes | int = field(default_factory=list)
    graphics: Processes | int = pynvml.NVML_ERROR_NOT_SUPPORTED
    mps: Processes | int = field(default_factory=list)
    #: MIG mode is on: its instances, with None where an index is not used
    instances: list[Gpu | None] | None = None
    handle_error: int = 0


class Nvml(ModuleType):
    """Answers as pynvml does and counts sessions; errors and constants are pynvml's own."""

    def __init__(
        self,
        *gpus: Gpu,
        init_error: int = 0,
        shutdown_error: int = 0,
        names: dict[int, str] | None = None,
    ) -> None:
        super().__init__("pynvml")
        kept = {
            name: value
            for name, value in vars(pynvml).items()
            if name.startswith(("NVML_", "NVMLError", "NVMLLibrary"))
        }
        vars(self).update(kept)
        self.gpus, self.names = gpus, names or {}
        self.init_error, self.shutdown_error = init_error, shutdown_error
        self.started = self.ended = 0

    def nvmlInit(self) -> None:
        refuse(self.init_error)
        self.started += 1

    def nvmlShutdown(self) -> None:
        self.ended += 1
        refuse(self.shutdown_error)

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        refuse(self.gpus[index].handle_error)
        return self.gpus[index]

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[int]:
        if gpu.instances is None:
            refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [pynvml.NVML_DEVICE_MIG_ENABLE, pynvml.NVML_DEVICE_MIG_ENABLE]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        return len(gpu.instances or [])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, index: int) -> Gpu:
        instance = (gpu.instances or [])[index]
        return instance or refuse(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[Any]:
        return listed(gpu.compute)

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: Gpu) -> list[Any]:
        return listed(gpu.graphics)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, gpu: Gpu) -> list[Any]:
        return listed(gpu.mps)

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        return self.names.get(pid) or refuse(pynvml.NVML_ERROR_NOT_FOUND)


def refuse(error: int) -> Any:
    if error:
        raise pynvml.NVMLError(error)


def listed(processes: Processes | int) -> list[Any]:
    if isinstance(processes, int):
        return refuse(processes)
    return [
        pynvml.nvmlFriendlyObject({"pid": pid, "usedGpuMemory": size}) for pid, size in processes
    ]


Machine = Callable[..., Nvml]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Build the machine that the process runs on. In the end every session with its driver must have been closed."""
    built: list[Nvml] = []

    def build(*gpus: Gpu, **answers: Any) -> Nvml:
        built.append(Nvml(*gpus, **answers))
        monkeypatch.setitem(sys.modules, "pynvml", built[-1])
        return built[-1]

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    yield build
    assert all(nvml.started == nvml.ended for nvml in built)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let CUDA be initialised, with what torch's allocator has reserved and allocated on each device."""

    def initialise(reserved: list[int], allocated: list[int] | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(reserved))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: reserved[index])
        monkeypatch.setattr(
            torch.cuda, "memory_allocated", lambda index: (allocated or reserved)[index]
        )

    return initialise


Cuda = Callable[..., None]


@pytest.fixture
def neighbour() -> Iterator[int]:
    """Another process of this container."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n")


# -- a process on the lists ----------------------------------------------------------------------------------------------


def test_what_a_process_holds_is_summed_over_all_gpus(machine: Machine) -> None:
    machine(Gpu([(ME, 300 * MIB), (STRANGER, 7)]), Gpu([(STRANGER, 8)]), Gpu([(ME, 200 * MIB)]))
    assert process_memory() == ProcessMemory(500 * MIB, "nvml")
    assert process_memory(STRANGER) == ProcessMemory(15, "nvml")


def test_in_mib_it_is_the_same_and_nothing_is_warned_of(machine: Machine) -> None:
    machine(Gpu([(ME, 3 * MIB // 2)]))
    assert get_process_gpu_ram() == get_process_gpu_ram(ME) == 1.5


@pytest.mark.parametrize("graphics", [70, 90])
def test_a_process_of_two_kinds_is_counted_once(machine: Machine, graphics: int) -> None:
    machine(Gpu(compute=[(ME, 80)], graphics=[(ME, graphics)]))
    assert process_memory() == ProcessMemory(max(80, graphics), "nvml")


def test_a_process_that_only_draws_counts(machine: Machine) -> None:
    machine(Gpu(compute=[], graphics=[(ME, 60)]))
    assert process_memory() == ProcessMemory(60, "nvml")


def test_a_client_of_mps_that_is_listed_as_such_counts(machine: Machine, cuda: Cuda) -> None:
    cuda(reserved=[30])
    machine(
        Gpu(compute=[(STRANGER, 500)], mps=[(ME, 40)]), names={STRANGER: "nvidia-cuda-mps-server"}
    )
    assert process_memory() == ProcessMemory(40, "nvml")


def failed(part: str, error: str) -> Note:
    return Note.of("nvml-failed", part=part, error=error)


def test_that_lists_of_a_gpu_fail_is_said_once(machine: Machine) -> None:
    machine(
        Gpu(compute=[(ME, 80)], graphics=pynvml.NVML_ERROR_UNKNOWN, mps=pynvml.NVML_ERROR_UNKNOWN)
    )
    assert process_memory() == ProcessMemory(
        80, "nvml", (failed("GPU 0", "Unknown Error"),), lower_bound=True
    )


@pytest.mark.parametrize("initialised", [False, True])
def test_another_process_on_no_list_holds_nothing(
    machine: Machine, cuda: Cuda, neighbour: int, initialised: bool
) -> None:
    if initialised:
        cuda(reserved=[50])
    machine(Gpu([(neighbour, 70)]))
    assert process_memory(STRANGER) == ProcessMemory(0, "nvml")


@on_linux
def test_another_process_where_numbers_are_those_of_the_host_is_unknown(
    machine: Machine, neighbour: int
) -> None:
    machine(Gpu([(STRANGER, 70)]))
    memory = process_memory(neighbour)
    assert (memory.size, memory.source, memory.lower_bound) == (0, "none", True)
    assert "IDs of another container or of the host" in memory.reason


def test_a_process_without_cuda_on_no_list_holds_nothing(machine: Machine) -> None:
    machine(Gpu([(STRANGER, 70)]))
    assert process_memory() == ProcessMemory(0, "nvml")


# -- MIG -----------------------------------------------------------------------------------------------------------------


def test_instances_are_asked_in_place_of_the_gpu_that_they_are_parts_of(machine: Machine) -> None:
    machine(
        Gpu([(ME, 90)], instances=[Gpu([(ME, 50)]), None, Gpu([(ME, 40), (STRANGER, 3)]), None]),
        Gpu([(ME, 5)]),
    )
    assert process_memory() == ProcessMemory(95, "nvml")


def test_an_instance_that_fails_does_not_hide_the_others(machine: Machine) -> None:
    broken = Gpu(compute=pynvml.NVML_ERROR_UNKNOWN)
    machine(Gpu(instances=[Gpu([(ME, 50)]), broken, Gpu([(ME, 40)])]))
    reasons = (failed("GPU 0, MIG instance 1", "Unknown Error"),)
    assert process_memory() == ProcessMemory(90, "nvml", reasons, lower_bound=True)


# -- GPUs and drivers that fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "error"),
    [
        (Gpu(compute=pynvml.NVML_ERROR_GPU_IS_LOST), "GPU is lost"),
        (Gpu(handle_error=pynvml.NVML_ERROR_NO_PERMISSION), "Insufficient Permissions"),
    ],
)
def test_a_gpu_that_fails_is_named_and_does_not_hide_the_others(
    machine: Machine, gpu: Gpu, error: str
) -> None:
    machine(Gpu([(ME, 30)]), gpu, Gpu([(ME, 20)]))
    assert process_memory() == ProcessMemory(
        50, "nvml", (failed("GPU 1", error),), lower_bound=True
    )


def test_where_every_gpu_fails_nothing_is_known(machine: Machine) -> None:
    machine(*[Gpu(compute=pynvml.NVML_ERROR_GPU_IS_LOST)] * 2)
    memory = process_memory()
    assert (memory.size, memory.source, memory.lower_bound) == (0, "none", True)
    reason = "GPU 0 does not answer (GPU is lost); GPU 1 does not answer (GPU is lost)"
    assert memory.reason == reason


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch."),
    ],
)
@pytest.mark.parametrize("initialised", [False, True])
def test_without_a_driver_torch_is_asked(
    machine: Machine, cuda: Cuda, error: int, text: str, initialised: bool
) -> None:
    """It knows more where a driver was updated under a running process, and on GPUs of another maker."""
    if initialised:
        cuda(reserved=[20, 30])
    machine(init_error=error)
    size, source = (50, "allocator") if initialised else (0, "none")
    memory = process_memory()
    assert (memory.size, memory.source, memory.reason) == (
        size,
        source,
        f"NVML does not answer ({text})",
    )
    assert memory.lower_bound
    assert process_memory(STRANGER).source == "none"


def test_a_driver_without_gpus_knows_of_nothing(machine: Machine) -> None:
    machine()
    assert process_memory() == ProcessMemory(0, "none", (Note.of("nvml-no-gpu"),), lower_bound=True)


def test_a_session_that_does_not_close_is_no_error(machine: Machine) -> None:
    machine(Gpu([(ME, 30)]), shutdown_error=pynvml.NVML_ERROR_UNINITIALIZED)
    assert process_memory() == ProcessMemory(30, "nvml")


def test_the_session_is_closed_when_something_else_goes_wrong(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    nvml = machine(Gpu())
    monkeypatch.setattr(nvml, "nvmlDeviceGetCount", interrupt)
    with pytest.raises(KeyboardInterrupt):
        process_memory()
    assert nvml.ended == 1


# -- figures that NVML withholds -----------------------------------------------------------------------------------------

WITHHELD = Note.of("nvml-withholds-size")


def test_where_the_figure_is_withheld_torch_is_asked(machine: Machine, cuda: Cuda) -> None:
    machine(Gpu([(ME, None), (STRANGER, None)]), Gpu([(ME, 10)]))
    assert process_memory() == ProcessMemory(0, "allocator", (WITHHELD,), lower_bound=True)
    cuda(reserved=[20, 30])
    assert process_memory() == ProcessMemory(50, "allocator", (WITHHELD,), lower_bound=True)
    assert process_memory(STRANGER) == ProcessMemory(0, "none", (WITHHELD,), lower_bound=True)


def test_a_figure_withheld_on_one_list_may_stand_on_another(machine: Machine) -> None:
    machine(
        Gpu(compute=[(ME, None)], graphics=[(ME, 40)]),
        Gpu(compute=[(ME, 7)], graphics=[(ME, None)]),
    )
    assert process_memory() == ProcessMemory(47, "nvml")


def test_a_figure_that_cannot_be_all_is_not_believed(machine: Machine, cuda: Cuda) -> None:
    """As where a process of the host has by coincidence the number that this one has in its container."""
    cuda(reserved=[20, 30])
    machine(Gpu([(ME, 49)]))
    memory = process_memory()
    assert (memory.size, memory.source, memory.lower_bound) == (50, "allocator", True)
    assert memory.reasons[0].code == "nvml-reports-too-little"


# -- containers and MPS --------------------------------------------------------------------------------------------------


@on_linux
def test_in_a_container_the_only_process_from_outside_is_taken_to_be_this_one(
    machine: Machine, cuda: Cuda, neighbour: int
) -> None:
    cuda(reserved=[20, 30])
    machine(Gpu([(STRANGER, 40), (neighbour, 999)]), Gpu([(STRANGER, 35)]))
    memory = process_memory()
    assert (memory.size, memory.source, memory.lower_bound) == (75, "nvml", False)
    assert memory.reason == (
        f"process {STRANGER} is assumed to be this one, because it is the only process on a GPU "
        "from outside this container"
    )
    assert process_memory(OTHER_STRANGER).size == 0, "another process is not guessed"


@pytest.mark.parametrize(
    "processes",
    [[], [(STRANGER, 60), (OTHER_STRANGER, 70)], [(STRANGER, 49)], [(STRANGER, None)]],
    ids=[
        "an empty list",
        "two of them",
        "one that holds too little",
        "one whose figure is withheld",
    ],
)
@on_linux
def test_who_is_this_process_is_not_guessed_at(
    machine: Machine, cuda: Cuda, processes: Processes
) -> None:
    cuda(reserved=[20, 30])
    machine(Gpu(processes))
    memory = process_memory()
    assert (memory.size, memory.source, memory.lower_bound) == (50, "allocator", True)
    assert memory.reason


def test_where_there_is_no_proc_nobody_is_a_stranger(
    machine: Machine, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: not str(path).startswith("/proc"))
    cuda(reserved=[50])
    machine(Gpu([(STRANGER, 60)]))
    assert process_memory().source == "allocator"


@pytest.mark.parametrize("in_this_container", [False, True])
def test_under_mps_the_server_is_not_taken_to_be_this_process(
    machine: Machine, cuda: Cuda, neighbour: int, in_this_container: bool
) -> None:
    server = neighbour if in_this_container else STRANGER
    cuda(reserved=[50])
    machine(Gpu([(server, 900)]), names={server: "/usr/bin/nvidia-cuda-mps-server"})
    memory = process_memory()
    assert (memory.size, memory.source) == (50, "allocator")
    assert "MPS" in memory.reason


@on_linux
def test_a_name_that_is_no_text_is_no_servers_name(
    machine: Machine, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = machine(Gpu([(STRANGER, 60)]))
    monkeypatch.setattr(nvml, "nvmlSystemGetProcessName", lambda pid: b"\xff".decode())
    cuda(reserved=[50])
    assert (process_memory().size, process_memory().source) == (60, "nvml")


# -- warnings ------------------------------------------------------------------------------------------------------------


def test_each_reason_is_warned_of_once(
    machine: Machine, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_reported_reasons", set())
    machine()
    with pytest.warns(UserWarning, match="so the result is 0: NVML finds no GPU") as said:
        assert [get_process_gpu_ram(), get_process_gpu_ram()] == [0.0, 0.0]
    assert [Path(each.filename) for each in said] == [Path(__file__)], (
        "the warning points at who asked"
    )
    cuda(reserved=[MIB, 2 * MIB])
    machine(Gpu([(ME, None)]))
    with pytest.warns(
        UserWarning, match=f"so the result is what torch's allocator holds: {WITHHELD}"
    ) as said:
        assert [get_process_gpu_ram(), get_process_gpu_ram()] == [3.0, 3.0]
    assert len(said) == 1


# -- overheads -----------------------------------------------------------------------------------------------------------


def test_overheads_are_what_is_between_process_reserved_and_allocated(
    machine: Machine, cuda: Cuda
) -> None:
    cuda(reserved=[20 * MIB, 30 * MIB], allocated=[15 * MIB, 5 * MIB])
    machine(Gpu([(ME, 320 * MIB)]), Gpu([(ME, 230 * MIB)]))
    assert cuda_overhead() == Overhead(cuda=500.0, framework=30.0)


def test_there_are_none_before_cuda_is_initialised(machine: Machine) -> None:
    machine(Gpu([(ME, 320 * MIB)]))
    assert cuda_overhead() == Overhead(cuda=0.0, framework=0.0)


@pytest.mark.parametrize(
    "gpus",
    [
        [Gpu([(ME, None)])],
        [Gpu()],
        [Gpu([(ME, 99 * MIB)]), Gpu(compute=pynvml.NVML_ERROR_GPU_IS_LOST)],
        [],
    ],
    ids=["withheld", "unlisted", "not from every GPU", "no GPU"],
)
def test_what_cuda_holds_is_unknown_where_the_process_is(
    machine: Machine, cuda: Cuda, gpus: list[Gpu]
) -> None:
    cuda(reserved=[20 * MIB], allocated=[15 * MIB])
    machine(*gpus)
    assert cuda_overhead() == Overhead(cuda=None, framework=5.0)


def test_overheads_are_never_negative(
    machine: Machine, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the others the allocator takes another block and fills it."""
    readings = iter([10, 30])
    cuda(reserved=[0])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: next(readings))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: 40)
    machine(Gpu([(ME, 20)]))
    assert cuda_overhead() == Overhead(cuda=0.0, framework=0.0)


# -- the real pynvml over a driver library made here ----------------------------------------------------------------------

#: NVML's C interface as far as it is asked; it reads "gpu kind pid bytes" lines from the file that NVML_LISTS names
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } process;
typedef struct { unsigned gpu; } *device;

static void log_session(const char *what) {
    FILE *log = fopen(getenv("NVML_LOG"), "a");
    fprintf(log, "%s\n", what);
    fclose(log);
}

int nvmlInitWithFlags(unsigned flags) {
    if (getenv("NVML_NO_DRIVER")) return DRIVER_NOT_LOADED;
    log_session("init");
    return SUCCESS;
}
int nvmlShutdown(void) { log_session("shutdown"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *handle) {
    *handle = malloc(sizeof **handle);
    (*handle)->gpu = index;
    return SUCCESS;
}

static int list(device handle, const char *wanted, unsigned *count, process *into) {
    unsigned room = *count, found = 0, gpu;
    char kind[16];
    process each = {0, 0, -1, -1};
    FILE *lists = fopen(getenv("NVML_LISTS"), "r");
    while (fscanf(lists, "%u %15s %u %llu", &gpu, kind, &each.pid, &each.bytes) == 4) {
        if (gpu != handle->gpu || strcmp(kind, wanted)) continue;
        if (into && found < room) into[found] = each;
        found++;
    }
    fclose(lists);
    *count = found;
    return found > room || (found && !into) ? INSUFFICIENT_SIZE : SUCCESS;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetMigMode(device handle, unsigned *now, unsigned *next) { return NOT_SUPPORTED; }
int nvmlDeviceGetComputeRunningProcesses_v3(device handle, unsigned *count, process *into) {
    return list(handle, "compute", count, into);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device handle, unsigned *count, process *into) {
    return list(handle, "graphics", count, into);
}
#endif
"""

ASK = """
import os, pathlib, sys
from torchscan.hardware.process_memory import process_memory
lists = pathlib.Path(os.environ["NVML_LISTS"])
lists.write_text(lists.read_text().replace("ME", str(os.getpid())))
for pid in sys.argv[1:]:
    memory = process_memory(None if pid == "ME" else int(pid))
    print(memory.size, memory.source, memory.lower_bound, memory.reason, sep="|")
"""


@dataclass
class Driver:
    """Asks, in a process of its own, the real pynvml over a libnvidia-ml.so.1 compiled here."""

    folder: Path

    def compile(self, *flags: str) -> None:
        compiler = shutil.which("cc")
        if compiler is None or sys.platform != "linux":
            pytest.skip("no C compiler here to make a driver library with")
        source = self.folder / "nvml.c"
        source.write_text(DRIVER)
        command = [
            compiler,
            "-shared",
            "-fPIC",
            *flags,
            "-o",
            str(self.folder / "libnvidia-ml.so.1"),
            str(source),
        ]
        subprocess.run(command, check=True)  # noqa: S603

    def answers(self, lists: str, *pids: str, **variables: str) -> list[str]:
        (self.folder / "lists").write_text(lists)
        (self.folder / "log").touch()
        files = {"NVML_LISTS": str(self.folder / "lists"), "NVML_LOG": str(self.folder / "log")}
        libraries = os.pathsep.join(
            filter(None, [str(self.folder), os.environ.get("LD_LIBRARY_PATH")])
        )
        environment = {**os.environ, "LD_LIBRARY_PATH": libraries, **files, **variables}
        command = [sys.executable, "-W", "error", "-c", ASK, *pids]
        asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
        return asked.stdout.splitlines()

    @property
    def sessions(self) -> list[str]:
        return (self.folder / "log").read_text().split()


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


NOT_AVAILABLE = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value


@pytest.mark.slow
def test_through_pynvml_two_gpus_with_computing_and_drawing_processes(driver: Driver) -> None:
    driver.compile()
    lists = f"""
        0 compute ME 1000
        0 graphics ME 1000
        1 compute ME 500
        1 compute 777 4294967296
        0 graphics 777 50
        1 graphics 778 {NOT_AVAILABLE}
        0 compute 779 20
    """
    assert driver.answers(lists, "ME", "777", "778", "780") == [
        "1500|nvml|False|",
        "4294967346|nvml|False|",
        f"0|none|True|{WITHHELD}",
        "0|nvml|False|",
    ]
    assert driver.sessions == ["init", "shutdown"] * 4


@pytest.mark.slow
@pytest.mark.sweep
def test_through_pynvml_a_figure_that_is_not_available(driver: Driver) -> None:
    driver.compile()
    assert driver.answers(f"0 compute ME {NOT_AVAILABLE}", "ME") == [f"0|allocator|True|{WITHHELD}"]


@pytest.mark.slow
def test_through_pynvml_a_driver_older_than_what_pynvml_asks_for(driver: Driver) -> None:
    driver.compile("-DOLD_DRIVER")
    (answer,) = driver.answers("0 compute ME 1000", "ME")
    assert answer.startswith("0|none|True|GPU 0 does not answer (")
    assert "version" in answer
    assert driver.sessions == ["init", "shutdown"]


@pytest.mark.slow
@pytest.mark.sweep
def test_through_pynvml_a_library_without_its_driver(driver: Driver) -> None:
    driver.compile()
    assert driver.answers("", "ME", NVML_NO_DRIVER="1") == [
        "0|none|True|NVML does not answer (Driver Not Loaded)"
    ]
    assert driver.sessions == []


# -- this machine --------------------------------------------------------------------------------------------------------


def test_on_this_machine_without_a_gpu_it_is_nothing_and_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "_reported_reasons", set())
    if process_memory().source == "nvml" or torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [get_process_gpu_ram(), get_process_gpu_ram()] == [0.0, 0.0]
    assert [str(each.message) for each in said] == [
        f"measuring the GPU memory of this process failed, so the result is 0: {process_memory().reason}"
    ]
    assert cuda_overhead() == Overhead(0.0, 0.0)
