"""Models by name, as they stand in a shell, a budget file or a table of models."""

from torchscan.targets.building import may_need_data as may_need_data
from torchscan.targets.building import with_model as with_model
from torchscan.targets.built import Built as Built
from torchscan.targets.built import inputs_of as inputs_of
from torchscan.targets.inputs import InputSpec as InputSpec
from torchscan.targets.inputs import parse_input as parse_input
from torchscan.targets.parsing import Target as Target
from torchscan.targets.parsing import parse_target as parse_target
