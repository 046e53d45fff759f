"""Requests that wait for an engine, against passes that are counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import torchscan
from tests.models.generating import Echo
from torchscan import InputError
from torchscan.types import Engine, Generation, RequestQueue

#: prompts of 10 tokens, one in a pass
ENGINE = Engine(name="plain", prompt_chunk=10)


def _loaded(engine: Engine = ENGINE, *, clients: int, new: int = 3) -> Generation:
    """Return an estimate in which a prompt takes 2 s, and a pass over tokens 1 s."""
    found = torchscan.analyze_generation(Echo(), 10, new, device="H100", batch_size=clients)
    return replace(
        found, engine=engine, per_token=1.0, first_token=2.0, first_token_of_all=2.0 * clients
    )


def _equal_requests(engine: Engine = ENGINE, *, clients: int, new: int = 3) -> RequestQueue:
    return replace(_loaded(engine, clients=clients, new=new).queue, length_spread=0.0)


def test_a_request_waits_for_the_prompts_before_it() -> None:
    """A steady round of two clients takes 7 s.

    | pass    | prompt | tokens | ends | takes | until |
    | 1       | A      |        |      | 2     | 2     |
    | 2       | B      | A      |      | 3     | 5     |
    | 3       |        | A, B   | A    | 1     | 6     |
    | 4       |        | B      | B    | 1     | 7     |
    | 5       | A      |        |      | 2     | 9     |
    | 6       | B      | A      |      | 3     | 12    |

    A's next request arrives after 6 s and has a token after 9, that of B after 7 and 12.
    """
    served = _equal_requests(clients=2).serve()
    assert served.first_token == pytest.approx((3 + 5) / 2)
    assert served.first_token_median == pytest.approx(4)
    assert served.first_token_p99 == pytest.approx(5)


def test_a_request_misses_the_pass_that_begins_when_its_client_gets_an_answer() -> None:
    """Three clients, whose first tokens come after 2, 5 and 8 s.

    A ends at 8 and B at 9, in the pass that A's next request misses; its prompt is in the pass
    after it, until 12.
    """
    served = _equal_requests(clients=3).serve()
    assert served.first_token == pytest.approx((4 + 6 + 6) / 3)


@pytest.mark.parametrize(("splits", "firsts"), [(True, (3, 5)), (False, (2, 5))])
def test_a_prompt_is_split_or_waits(splits: bool, firsts: tuple[int, int]) -> None:
    """Of two prompts that arrive at once, a pass of 15 tokens takes one and a half, or one."""
    engine = replace(ENGINE, prompt_chunk=15, splits_prompts=splits)
    queue = replace(_equal_requests(engine, clients=2), num_rounds=1, num_skipped_rounds=0)
    assert queue.serve().first_token == pytest.approx(sum(firsts) / 2)
    assert queue.serve().first_token_p99 == pytest.approx(firsts[1])


def test_a_long_prompt_takes_a_pass_for_each_chunk() -> None:
    """The passes of a prompt that is alone take as long as the prompt in one pass."""
    found = _loaded(replace(ENGINE, prompt_chunk=3), clients=1)
    assert found.first_token_under_load == pytest.approx(2)


def test_requests_beyond_the_largest_batch_wait_for_others_to_end() -> None:
    """With room for one sequence, a request waits for one before it: 2 + 2 s, and its prompt."""
    queue = replace(_equal_requests(clients=2), max_sequences=1)
    assert queue.serve().first_token == pytest.approx(4 + 2)


def test_lengths_that_vary_part_requests_that_arrived_together() -> None:
    """Eight prompts fit into a pass; if answers end together, each waits for all eight."""
    engine = replace(ENGINE, prompt_chunk=80)
    queue = _equal_requests(engine, clients=8, new=100)
    assert queue.serve().first_token == pytest.approx(8 * 2)
    assert queue.serve() == queue.serve()
    found = _loaded(engine, clients=8, new=100)
    assert found.queue == replace(queue, length_spread=0.1)
    assert 2 < found.first_token_under_load < 8


def test_lengths_are_spread_to_both_sides_of_the_mean() -> None:
    """A tenth to each side: 900 to 1,100 tokens of prompts, and 90 to 110 of answers.

    The first request is at both lower ends. The second one is 0.618 of the range further in its
    prompt, 900 + 123.6, and 0.414 of it in its answer, 90 + 8.3.
    """
    queue = RequestQueue(
        num_clients=1,
        max_sequences=1,
        prompt=1000,
        new=100,
        token_pass=1.0,
        prompt_alone=2.0,
        prompt_among=2.0,
        length_spread=0.1,
    )
    assert queue.lengths_of(0) == (900, 90)
    assert queue.lengths_of(1) == (1024, 98)
    prompts = [queue.lengths_of(index)[0] for index in range(100)]
    assert max(prompts) <= 1100
    assert sum(prompts) / 100 == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize(
    "wrong",
    [{"max_sequences": 0}, {"num_rounds": 1}, {"length_spread": 1.0}, {"num_clients": 0}],
)
def test_a_queue_of_which_nothing_can_be_counted_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=": give a"):
        replace(_loaded(clients=2).queue, **wrong)
