"""Destinations of a watched run besides its own file."""

from torchscan.watching.schema import CurvePoint as CurvePoint
from torchscan.watching.sinks.aim import Aim as Aim
from torchscan.watching.sinks.mlflow import MLflow as MLflow
from torchscan.watching.sinks.sink import Sink as Sink
from torchscan.watching.sinks.sink import SinkData as SinkData
from torchscan.watching.sinks.tensorboard import TensorBoard as TensorBoard
from torchscan.watching.sinks.trackio import Trackio as Trackio
from torchscan.watching.sinks.video import Video as Video
from torchscan.watching.sinks.weights_and_biases import WandB as WandB

__all__ = ["Aim", "MLflow", "TensorBoard", "Trackio", "Video", "WandB"]
__all__ += ["CurvePoint", "Sink", "SinkData"]
