"""What the package says about how good it is, as docs/accuracy.md has it."""

from __future__ import annotations

from torchscan.analyses.roofline.error_margin import COMPARED


def stated() -> dict[str, tuple[str, str]]:
    """Models and range, by what was compared."""
    return {
        f"{each.mode}, {each.gpu.removeprefix('NVIDIA GeForce ')}, {each.kind}": (
            f"{each.models:,}",
            range_of(each.share),
        )
        for each in COMPARED
    }


def range_of(share: float) -> str:
    """In whole per cent."""
    return f"± {100 * share:.0f} %"
