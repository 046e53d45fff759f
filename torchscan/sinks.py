"""Destinations of a watched run besides its own file."""

from torchscan.live.sinks.mlflow import MLflow as MLflow
from torchscan.live.sinks.sink import Sink as Sink
from torchscan.live.sinks.sink import SinkData as SinkData
from torchscan.live.sinks.tensorboard import TensorBoard as TensorBoard
from torchscan.live.sinks.video import Video as Video
from torchscan.live.sinks.weights_and_biases import WandB as WandB

__all__ = ["MLflow", "Sink", "SinkData", "TensorBoard", "Video", "WandB"]
