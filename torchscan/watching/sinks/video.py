"""A video of tensors while a model trains."""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any, get_args

from torchscan.errors import InputError
from torchscan.watching import argument_checks
from torchscan.watching.argument_checks import choice, quote, texts, whole_number
from torchscan.watching.schema import Phase
from torchscan.watching.sinks.frames import Frames, FrameSeries
from torchscan.watching.sinks.sink import Sink, SinkData, require

#: series that there is room for
_MAX_SERIES = 16
_MIN_SIDE, _MAX_SIDE, _MAX_FPS = 128, 8192, 1000
#: seconds from one picture that stands alone to the next: players jump to these
_APART = 5
_FRAGMENTED = {"movflags": "frag_every_frame+empty_moov+default_base_moof"}
#: what is a codec's own: nothing waits in the encoder, so that what was shown is in the file
_OPTIONS = {"libx264": {"tune": "zerolatency", "preset": "veryfast", "crf": "20"}}
_ENCODERS = {
    "h264": "libx264",
    "h265": "libx265",
    "hevc": "libx265",
    "vp9": "libvpx-vp9",
    "av1": "libsvtav1",
}


class Video(Sink):
    """A frame for each step: maps as pictures, few columns as lines, all else as histograms.

    Each has its range. What was shown is in the file: if training is killed, it plays to its end. A
    file that is there is kept, and the next is called ``first-2.mp4``.

    Args:
        path: the file: .mp4, .mkv or .webm.
        series: which, as patterns of what :attr:`Series.label` is, 16 at most:
            ``["conv1.weight", "layer?.* output"]``.
        size: width and height in pixels, which are even.
        fps: frames in a second.
        codec: "h264", "vp9", "av1" or whatever encoder of FFmpeg's PyAV has.
        max_elements: tensors that have more values are histograms.
        max_frames: frames of a file, after which the next one begins. None: one file has all.
        phase: the steps that are shown: "train" or "eval".
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        series: Sequence[str] | str,
        *,
        size: tuple[int, int] = (640, 480),
        fps: int = 10,
        codec: str = "h264",
        max_elements: int = 65_536,
        max_frames: int | None = None,
        phase: Phase = "train",
    ) -> None:
        require("av", "Video", "av")
        require("PIL", "Video", "pillow")
        self.path = argument_checks.path("path", path, "a file such as 'first.mp4'").absolute()
        self.whole = (
            [series]
            if isinstance(series, str)
            else texts("series", series, "patterns such as 'conv1.weight'")
        )
        self.size = _size_of(size)
        self.fps = whole_number("fps", fps, 1, _MAX_FPS)
        self.codec = _codec_of(codec)
        self.max_elements = whole_number("max_elements", max_elements, 0, sys.maxsize)
        self.max_frames = sys.maxsize
        if max_frames is not None:
            self.max_frames = whole_number("max_frames", max_frames, 1, sys.maxsize)
        choice("phase", phase, get_args(Phase))
        self.phase: Phase = phase
        self._frames = Frames(self.size)
        self._num_frames = 0
        self._file: Any = None
        self._stream: Any = None

    def on_data(self, seen: SinkData) -> None:
        """Draw a frame."""
        shown = list(islice(self._chosen(seen), _MAX_SERIES + 1))
        if seen.phase != self.phase or not shown:
            return
        more = f"the first {_MAX_SERIES} series" if len(shown) > _MAX_SERIES else ""
        about = f"{more}   {seen.phase}".strip()
        frame = self._frames.draw(f"step {seen.step:,}", about, shown[:_MAX_SERIES])
        self._write(frame)

    def on_close(self) -> None:
        """Finish the file."""
        if self._file is not None:
            self._file.mux(self._stream.encode(None))
            self._file.close()
            self._file = None

    def _chosen(self, seen: SinkData) -> Iterator[FrameSeries]:
        """In the order of the patterns."""
        known = {series.label: series for series in seen.distributions}
        chosen = dict.fromkeys(
            said for pattern in self.whole for said in fnmatch.filter(known, pattern)
        )
        for series in map(known.__getitem__, chosen):
            found = seen.distributions[series]
            values = None
            if series in seen.values and found.numel <= self.max_elements:
                values = seen.values[series]
            yield FrameSeries(series, found, values)

    def _write(self, picture: Any) -> None:
        import av

        if self._num_frames == self.max_frames:
            self.on_close()
        if self._file is None:
            self._open()
            self._num_frames = 0
        self._num_frames += 1
        self._file.mux(self._stream.encode(av.VideoFrame.from_image(picture)))

    def _open(self) -> None:
        import av

        path = self.path
        others = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
        while path.exists():
            path = next(others)
        path.parent.mkdir(parents=True, exist_ok=True)
        name = _ENCODERS.get(self.codec, self.codec)
        fragmented = _FRAGMENTED if path.suffix in (".mp4", ".m4v", ".mov") else {}
        self._file = av.open(str(path), "w", options={"flush_packets": "1", **fragmented})
        stream = self._stream = self._file.add_stream(
            name, rate=self.fps, options=_OPTIONS.get(name, {})
        )
        stream.width, stream.height = self.size
        stream.pix_fmt, stream.gop_size, stream.thread_count = "yuv420p", _APART * self.fps, 1


def _size_of(size: object) -> tuple[int, int]:
    """Return width and height."""
    given = list(size) if isinstance(size, list | tuple) else []
    sides = [
        side
        for side in given
        if type(side) is int and _MIN_SIDE <= side <= _MAX_SIDE and side % 2 == 0
    ]
    if len(given) != 2 or len(sides) != 2:
        limits = f"{_MIN_SIDE} to {_MAX_SIDE}"
        raise InputError(f"size is {quote(size)}: give two even numbers of pixels ({limits})")
    return sides[0], sides[1]


def _codec_of(codec: object) -> str:
    """Return the name of a codec that FFmpeg can encode with here."""
    import av

    if not isinstance(codec, str):
        raise InputError(f"codec is {quote(codec)}: give a name such as 'h264'")
    try:
        av.Codec(_ENCODERS.get(codec, codec), "w")
    except (ValueError, OSError) as error:
        raise InputError(
            f"codec is {quote(codec)}, which this FFmpeg cannot encode: "
            f"choose from {', '.join(_ENCODERS)}"
        ) from error
    return codec
