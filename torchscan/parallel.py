"""Plans of training on several GPUs, computed in one process."""

from torchscan.ranks.gathering import gather as gather
from torchscan.ranks.meshes import search as search
from torchscan.ranks.pipeline import pipeline as pipeline
from torchscan.ranks.plan import plan as plan

__all__ = ["gather", "pipeline", "plan", "search"]
