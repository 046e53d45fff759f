"""Destinations of a watched run besides its own file."""

from torchscan.live.schema import CurvePoint as CurvePoint
from torchscan.live.sinks.aim import Aim as Aim
from torchscan.live.sinks.mlflow import MLflow as MLflow
from torchscan.live.sinks.sink import Sink as Sink
from torchscan.live.sinks.sink import SinkData as SinkData
from torchscan.live.sinks.tensorboard import TensorBoard as TensorBoard
from torchscan.live.sinks.trackio import Trackio as Trackio
from torchscan.live.sinks.video import Video as Video
from torchscan.live.sinks.weights_and_biases import WandB as WandB

__all__ = ["Aim", "MLflow", "TensorBoard", "Trackio", "Video", "WandB"]
__all__ += ["CurvePoint", "Sink", "SinkData"]
