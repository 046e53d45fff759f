"""Models by name, as they stand in a shell, a budget file or a table of models."""

from torchscan.targets.building import may_need_data, with_model
from torchscan.targets.built import Built, inputs_of
from torchscan.targets.inputs import InputSpec, parse_input
from torchscan.targets.parsing import Target, parse_target

__all__ = [
    "Built",
    "InputSpec",
    "Target",
    "inputs_of",
    "may_need_data",
    "parse_input",
    "parse_target",
    "with_model",
]
