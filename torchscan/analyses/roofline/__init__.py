"""The roofline of a pass on a device: which limit each operator runs into, and how long it takes.

The *bound* is the data sheet's: products at the peak of their format, other arithmetic at that of
vector units, necessary traffic at full bandwidth; no operator can be faster than the slowest of the
three. The *estimate* adds what else kernels do (:mod:`~torchscan.analyses.roofline.kernels`), at
the shares of the data sheet that kernels of their class reach
(:mod:`~torchscan.analyses.roofline.constants`), and the time to launch them.
"""

from __future__ import annotations

from torchscan.analyses.roofline.analysis import roofline_of as roofline_of
from torchscan.analyses.roofline.error_margin import ErrorMargin as ErrorMargin
from torchscan.analyses.roofline.links import Fabric as Fabric
from torchscan.analyses.roofline.number_formats import Numbers as Numbers
from torchscan.analyses.roofline.number_formats import Products as Products
from torchscan.analyses.roofline.numbers import numbers_of as numbers_of
from torchscan.analyses.roofline.numbers import require_float8 as require_float8
from torchscan.analyses.roofline.numbers import require_format as require_format
from torchscan.analyses.roofline.pass_loads import group as group
from torchscan.analyses.roofline.pass_loads import rounded as rounded
from torchscan.analyses.roofline.rates import Rates as Rates
from torchscan.analyses.roofline.roofline_result import GroupLoad as GroupLoad
from torchscan.analyses.roofline.roofline_result import Limiter as Limiter
from torchscan.analyses.roofline.roofline_result import OperatorLoad as OperatorLoad
from torchscan.analyses.roofline.roofline_result import Roofline as Roofline
