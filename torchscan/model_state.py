"""Settings of a model's modules, and changes of a model since its pass was recorded."""

from __future__ import annotations

from torch import nn

from torchscan.recording.bookkeeping.inventory import type_name_of
from torchscan.trace.trace import Trace


def differs_from_trace(module: nn.Module, trace: Trace) -> bool:
    """Return whether a model has other modules or parameters than its recorded pass."""
    modules = dict(module.named_modules())
    for call in trace.modules:
        found = modules.get(call.path)
        if found is None or type_name_of(found) != call.type_name:
            return True
    parameters = dict(module.named_parameters())
    recorded = {each.identity: each for each in trace.parameters if not each.is_buffer}
    if len(recorded) != len(parameters):
        return True
    for record in recorded.values():
        path = f"{record.owner}.{record.name}".removeprefix(".")
        parameter = parameters.get(path)
        # packed and lazy parameters have other sizes than what they stand for
        if type(parameter) is not nn.Parameter or not parameter.is_floating_point():
            continue
        if parameter.numel() != record.local_numel:
            return True
    return False


def settings_of(module: nn.Module) -> dict[str, str]:
    """Return the ``extra_repr()`` of each module. A module whose method raises is left out."""
    found = {}
    for path, each in module.named_modules():
        try:
            text = each.extra_repr()
        except Exception:  # noqa: S112 - a model's own code, for a tooltip
            continue
        if isinstance(text, str) and text:
            found[path] = text
    return found
