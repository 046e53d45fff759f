"""Models by name, as a shell, a budget file or a table of models names them."""

from torchscan.targets.building import with_model
from torchscan.targets.built import Built, asked
from torchscan.targets.inputs import InputSpec, parse_input
from torchscan.targets.parsing import Target, parse_target

__all__ = ["Built", "InputSpec", "Target", "asked", "parse_input", "parse_target", "with_model"]
