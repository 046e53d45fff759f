"""Lets a CUDA build of torch run on the CPU without gigabytes of CUDA packages: `python scripts/cuda_stand_ins.py ENVIRONMENT`.

What its libraries need of CUDA is compiled as libraries of the same names whose functions answer "no device". They lie beside
torch's own, where the loader looks first, in an environment that serves for nothing but tests. Needs a C compiler and binutils.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

_NO_DEVICE = 100  # cudaErrorNoDevice; to cuDNN, cuBLAS and NCCL it is an error too
_CUDA = ("libcu", "libnv", "libnccl")
_PREFIXES = ("cu", "nccl", "nvml", "nvrtc", "nvshmem", "nvJitLink", "nvtx", "__cuda")
_WORDS = ("ErrorString", "ErrorName", "StatusString", "StatusName")
_OTHER_VERSIONS = {
    "libnvshmem_host": "NVSHMEM"
}  # as a rule a symbol's version is the name of its library


def main(environment: Path) -> None:
    """Compile what is missing."""
    folder = next(environment.glob("lib/python3*/site-packages/torch/lib"))
    libraries = sorted(folder.glob("*.so*"))
    own = {each.name for each in libraries}
    missing = sorted(
        {name for each in libraries for name in _needed_libraries(each) if name.startswith(_CUDA)}
        - own
    )
    symbols = {symbol for each in libraries for symbol in _undefined(each)}
    for name in missing:
        _compile(folder / name, *_symbols_of(name, symbols, is_first=name == missing[0]))


def _needed_libraries(library: Path) -> list[str]:
    lines = _output("readelf", "--dynamic", "--wide", str(library)).splitlines()
    return [line.partition("[")[2].rstrip("]") for line in lines if "(NEEDED)" in line]


def _undefined(library: Path) -> list[tuple[str, str]]:
    """Names that others must define, each with the version it must have, "" for any."""
    names = (
        line.split()[-1]
        for line in _output("nm", "--dynamic", "--undefined-only", str(library)).splitlines()
    )
    return [(name, version) for name, _, version in (each.partition("@") for each in names)]


def _symbols_of(
    library: str, symbols: set[tuple[str, str]], *, is_first: bool
) -> tuple[dict[str, list[str]], list[str]]:
    """Those with a version of this library, and, in the first library, all that have none."""
    versions = defaultdict(list)
    stem = library.partition(".so")[0]
    for name, version in sorted(symbols):
        if version == _OTHER_VERSIONS.get(stem) or version.startswith(f"{stem}.so"):
            versions[version].append(name)
    return versions, sorted(
        name for name, version in symbols if is_first and not version and name.startswith(_PREFIXES)
    )


def _compile(target: Path, versions: dict[str, list[str]], plain: list[str]) -> None:
    names = sorted({*plain, *(name for group in versions.values() for name in group)})
    source = "\n".join(map(_definition, names))
    script = "\n".join(
        f"{version} {{ {' '.join(f'{name};' for name in group)} }};"
        for version, group in versions.items()
    )
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "all.c").write_text(source + "\n", encoding="utf-8")
        (Path(scratch) / "all.map").write_text(script + "\n", encoding="utf-8")
        options = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{target.name}"]
        options += [f"-Wl,--version-script={scratch}/all.map"] if versions else []
        subprocess.run(["cc", *options, "-o", str(target), f"{scratch}/all.c"], check=True)


def _definition(name: str) -> str:
    """Torch asks for the words of an error, and takes any address for words."""
    # the driver's functions write words to an address that they are given
    if (name.endswith(_WORDS) and not name.startswith("cuGet")) or name == "ncclGetLastError":
        return f'const char *{name}(void) {{ return "a stand-in: there is no CUDA device"; }}'
    return f"int {name}(void) {{ return {_NO_DEVICE}; }}"


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
