"""Requests that wait for an engine under a steady load, pass by pass."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from torchscan.errors import InputError

#: Irrational steps of two sequences that fill a range evenly, for lengths that vary: the golden
#: ratio, and the square root of 2. They make lengths of prompts and of answers independent.
_GOLDEN, _SQUARE_ROOT = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1
#: queues that are remembered: a search asks for each several times
_NUM_QUEUES = 512


class ServedLoad(NamedTuple):
    """Times of requests under load, in seconds."""

    #: from the arrival of a request to its first new token: mean, median, 99th percentile
    first_token: float
    first_token_median: float
    first_token_p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestQueue:
    """A fixed number of clients, each of which sends a request when its last one has ended.

    An engine works in passes. In each, every sequence that is running gets a token, and prompts
    that wait are processed, in the order of arrival.
    """

    num_clients: int
    #: largest number of sequences that are processed at once; other requests wait
    max_sequences: int
    #: tokens of a request's prompt, and of its answer
    prompt: int
    new: int
    #: seconds of a pass in which all sequences get a token
    token_pass: float
    #: seconds of a prompt that is processed alone, and among others
    prompt_alone: float
    prompt_among: float
    #: prompt tokens of a pass, or None without a limit
    prompt_chunk: int | None = None
    #: True if a prompt is split where it exceeds what is left of a pass
    splits_prompts: bool = True
    #: True if passes with prompts generate no tokens
    prompts_first: bool = False
    #: requests of each client, of which the first are not counted
    num_rounds: int = 10
    num_skipped_rounds: int = 1
    #: lengths are spread evenly over this share of the mean, to each side
    length_spread: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a queue that never ends, or of which nothing is counted."""
        for name in ("num_clients", "max_sequences", "prompt", "new"):
            number = getattr(self, name)
            if not isinstance(number, int) or number < 1:
                raise InputError.of_value(name, number, "give a number of 1 or more")
        if not 0 <= self.num_skipped_rounds < self.num_rounds:
            raise InputError.of_value(
                "num_skipped_rounds",
                self.num_skipped_rounds,
                f"give a number of 0 or more, below num_rounds ({self.num_rounds})",
            )
        if not 0 <= self.length_spread < 1:
            raise InputError.of_value(
                "length_spread", self.length_spread, "give a share of 0 or more, below 1"
            )

    def seconds_of(self, prompt_tokens: int, *, has_tokens: bool) -> float:
        """Return the time of a pass over these tokens of prompts, with or without new tokens."""
        share = prompt_tokens / self.prompt
        alone = max(share * self.prompt_among, min(share, 1.0) * self.prompt_alone)
        if not has_tokens:
            return alone
        return max(alone, self.token_pass + share * self.prompt_among)

    def lengths_of(self, index: int) -> tuple[int, int]:
        """Return the tokens of a request's prompt, and of its answer."""
        if not self.length_spread:
            return self.prompt, self.new
        prompt_factor = 1 + self.length_spread * (2 * (index * _GOLDEN % 1) - 1)
        new_factor = 1 + self.length_spread * (2 * (index * _SQUARE_ROOT % 1) - 1)
        return max(1, round(self.prompt * prompt_factor)), max(1, round(self.new * new_factor))

    def serve(self) -> ServedLoad:
        """Return the times of requests that are served under this load."""
        return _serve(self)


class _Request:
    """A request on its way."""

    __slots__ = ("arrived", "first", "left", "new", "ready")

    def __init__(self, lengths: tuple[int, int], arrived: float, ready: int) -> None:
        #: tokens of the prompt that are left
        self.left, self.new = lengths
        self.arrived = arrived
        #: index of the first pass that can take it
        self.ready = ready
        self.first = 0.0


class _Engine:
    """An engine, between two passes."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._chunk = queue.prompt_chunk or queue.num_clients * 2 * queue.prompt
        self._time = 0.0
        #: passes so far, and those that generated tokens
        self._passes = self._token_passes = 0
        self._waiting: deque[_Request] = deque()
        #: number of requests that generate, by the token pass that ends them; those passes in order
        self._running: dict[int, int] = {}
        self._ends: list[int] = []
        self._num_running = 0
        self.requests: list[_Request] = []

    def serve(self) -> list[_Request]:
        """Return all requests in the order of arrival, once they have ended."""
        for _ in range(self._queue.num_clients):
            self._send(ready=0)
        while self._num_running or self._waiting:
            self._run_passes()
        return self.requests

    def _send(self, *, ready: int) -> None:
        index = len(self.requests)
        if index < self._queue.num_clients * self._queue.num_rounds:
            request = _Request(self._queue.lengths_of(index), self._time, ready)
            self.requests.append(request)
            self._waiting.append(request)

    def _run_passes(self) -> None:
        """Run a pass, or as many alike as there are until a request begins or ends."""
        queue = self._queue
        if not self._num_running:
            self._passes = max(self._passes, self._waiting[0].ready)
        started, tokens = self._take_prompts()
        has_tokens = self._num_running > 0 and not (queue.prompts_first and tokens)
        count = 1
        if not started:
            count = self._count_alike(tokens, has_tokens=has_tokens)
            if tokens:
                self._waiting[0].left -= (count - 1) * tokens
        self._time += count * queue.seconds_of(tokens, has_tokens=has_tokens)
        self._passes += count
        if has_tokens:
            self._token_passes += count
        for each in started:
            self._begin(each)
        # an answer reaches its client while the next pass runs, so that the next request misses it
        ready = self._passes + 1
        while self._ends and self._ends[0] <= self._token_passes:
            for _ in range(self._running.pop(heappop(self._ends))):
                self._num_running -= 1
                self._send(ready=ready)

    def _take_prompts(self) -> tuple[list[_Request], int]:
        """Return the requests whose prompts end in the next pass, and its tokens of prompts."""
        queue, waiting = self._queue, self._waiting
        started: list[_Request] = []
        tokens = 0
        free = queue.max_sequences - self._num_running
        while waiting and waiting[0].ready <= self._passes and len(started) < free:
            request = waiting[0]
            room = self._chunk - tokens
            if request.left <= room or not (queue.splits_prompts or tokens):
                tokens += request.left
                started.append(waiting.popleft())
                continue
            if queue.splits_prompts:
                request.left -= room
                tokens += room
            break
        return started, tokens

    def _count_alike(self, tokens: int, *, has_tokens: bool) -> int:
        """Return the number of passes, from the next on, in which no request begins or ends."""
        counts: list[int] = []
        if has_tokens:
            counts.append(self._ends[0] - self._token_passes)
        if tokens:
            counts.append(1 + (self._waiting[0].left - 1) // self._chunk)
        elif self._waiting and self._num_running < self._queue.max_sequences:
            counts.append(self._waiting[0].ready - self._passes)
        return max(1, min(counts))

    def _begin(self, request: _Request) -> None:
        request.first = self._time
        end = self._token_passes + request.new - 1
        if end not in self._running:
            self._running[end] = 0
            heappush(self._ends, end)
        self._running[end] += 1
        self._num_running += 1


@lru_cache(maxsize=_NUM_QUEUES)
def _serve(queue: RequestQueue) -> ServedLoad:
    requests = _Engine(queue).serve()
    counted = requests[queue.num_clients * queue.num_skipped_rounds :]
    firsts = sorted(each.first - each.arrived for each in counted)
    return ServedLoad(
        first_token=statistics.fmean(firsts),
        first_token_median=statistics.median(firsts),
        first_token_p99=firsts[math.ceil(0.99 * len(firsts)) - 1],
    )
