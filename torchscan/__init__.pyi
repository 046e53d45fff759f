"""torchscan: what a PyTorch model consists of and what it costs, before anything is trained.

The public names, each with the module that defines it. The package reads this list to import a
name when it is first used.
"""

from torchscan import parallel as parallel
from torchscan import sinks as sinks
from torchscan import types as types
from torchscan._version import __version__ as __version__
from torchscan.budgets import Budget as Budget
from torchscan.budgets import assert_budget as assert_budget
from torchscan.comparing import compare as compare
from torchscan.crawler import crawl_module as crawl_module
from torchscan.crawler import module_dmas as module_dmas
from torchscan.crawler import module_flops as module_flops
from torchscan.crawler import module_macs as module_macs
from torchscan.crawler import module_rf as module_rf
from torchscan.crawler import projective_field as projective_field
from torchscan.crawler import receptive_field as receptive_field
from torchscan.crawler import record as record
from torchscan.crawler import summary as summary
from torchscan.errors import AlarmError as AlarmError
from torchscan.errors import BudgetError as BudgetError
from torchscan.errors import InputError as InputError
from torchscan.errors import MissingFormulaError as MissingFormulaError
from torchscan.errors import NeedsValuesError as NeedsValuesError
from torchscan.errors import NonFiniteError as NonFiniteError
from torchscan.errors import RecordError as RecordError
from torchscan.errors import TorchscanError as TorchscanError
from torchscan.estimator import analyze_roofline as analyze_roofline
from torchscan.estimator import estimate_memory as estimate_memory
from torchscan.generation import analyze_generation as analyze_generation
from torchscan.generation import symbolic_costs as symbolic_costs
from torchscan.hardware.device_specs import register_device as register_device
from torchscan.hardware.process_memory import get_process_gpu_ram as get_process_gpu_ram
from torchscan.inspection import inspect as inspect
from torchscan.ops import cost_of as cost_of
from torchscan.ops import window_of as window_of
from torchscan.ops import windows as windows
from torchscan.pages import html_report as html_report
from torchscan.report.data import from_json as from_json
from torchscan.report.layer_table import format_info as format_info
from torchscan.report.select import aggregate_info as aggregate_info
from torchscan.report.select import select_layers as select_layers
from torchscan.scan import Scan as Scan
from torchscan.snapshots import read_snapshot as read_snapshot
from torchscan.tables import model_table as model_table
from torchscan.watching.explore.serving import serve as serve
from torchscan.watching.opening import open_run as open_run
from torchscan.watching.watch import watch as watch
from torchscan.watching.watcher import attach as attach

__all__: list[str]
