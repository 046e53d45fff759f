"""Functions that format the dict of ``crawl_module``, as torchscan 0.1 and 0.2 had them here."""

from torchscan.hints import forward_old_module
from torchscan.report.layer_table import format_info
from torchscan.report.select import aggregate_info

__all__ = ["aggregate_info", "format_info", "format_name", "unit_scale"]


def format_name(name: str, depth: int = 0) -> str:
    """Return a name with the branch of a tree before it."""
    if depth == 0:
        return name
    branch = "├─" if depth == 1 else "|    " * (depth - 1) + "└─"
    return f"{branch}{name}"


def unit_scale(val: float) -> tuple[float, str]:
    """Return a value below 1,000 and its suffix: ``123456 -> (123.456, "k")``."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if val >= size:
            return val / size, suffix
    return val, ""


forward_old_module(__name__)
