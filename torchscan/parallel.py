"""Plans of training and serving on several GPUs, computed in one process."""

from torchscan.ranks.gathering import gather as gather
from torchscan.ranks.meshes import search as search
from torchscan.ranks.pipeline import pipeline as pipeline
from torchscan.ranks.plan import plan as plan
from torchscan.ranks.serving_ways import search_serving as search_serving

__all__ = ["gather", "pipeline", "plan", "search", "search_serving"]
