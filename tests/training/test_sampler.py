"""Batch samplers: what an epoch covers, agreement between ranks, and resuming."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from training.data import sampler
from training.data.sampler import (
    BalancedSampler,
    BatchSampler,
    MixedSampler,
    PKSampler,
    PlainSampler,
    SamplerError,
    permuted,
)

LABELS = [5] * 3 + [9] * 1 + [2] * 7 + [7] * 4 + [1] * 2 + [3] * 12 + [0] * 5  # seven people, unsorted, 34 images


def epoch(name: str, *, rank: int = 0, world_size: int = 1, number: int = 0, batch_size: int = 8) -> list[list[int]]:
    built = sampler.build(name, LABELS, batch_size=batch_size, images=2, seed=3, rank=rank, world_size=world_size)
    built.set_epoch(number)
    return list(built)


@given(
    counts=st.lists(st.integers(1, 9), min_size=3, max_size=30),
    people=st.integers(1, 3),
    images=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_pk_shows_every_person_every_epoch_with_k_images(
    counts: list[int], people: int, images: int, seed: int
) -> None:
    labels = np.repeat(np.arange(len(counts)) * 3 + 1, counts)
    batches = list(PKSampler(labels, people=people, images=images, seed=seed))
    seen = set()
    for batch in batches:
        assert len(batch) == people * images
        groups = [batch[start : start + images] for start in range(0, len(batch), images)]
        for group in groups:
            assert len({labels[position] for position in group}) == 1
            have = counts[(labels[group[0]] - 1) // 3]
            assert max(Counter(group).values()) == -(-images // have)  # each image once before any twice
        assert len({labels[group[0]] for group in groups}) == people
        seen |= {labels[position] for position in batch}
    assert seen == set(labels)
    assert len(batches) == -(-len(counts) // people)


def test_over_epochs_pk_shows_every_image() -> None:
    built = PKSampler(LABELS, people=2, images=2)
    seen: set[int] = set()
    for number in range(60):
        built.set_epoch(number)
        seen.update(position for batch in built for position in batch)
    assert seen == set(range(len(LABELS)))


def test_plain_shows_every_image_once_and_fills_up_the_last_batch() -> None:
    batches = epoch("plain")
    assert [len(batch) for batch in batches] == [8] * 5
    shown = [position for batch in batches for position in batch]
    assert sorted(shown[:34]) == list(range(34))
    assert shown[34:] == shown[:6]


def test_balanced_gives_every_person_the_same_share_and_every_image_its_persons() -> None:
    built = BalancedSampler(LABELS, batch_size=50, seed=1)
    drawn: Counter[int] = Counter()
    for number in range(400):
        built.set_epoch(number)
        drawn.update(position for batch in built for position in batch)
    total = drawn.total()
    for position, label in enumerate(LABELS):
        expected = total / 7 / LABELS.count(label)
        assert abs(drawn[position] - expected) < 5 * expected**0.5


@pytest.mark.parametrize("name", sampler.names())
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_together_draw_what_one_process_would(name: str, world_size: int) -> None:
    ranks = [epoch(name, rank=rank, world_size=world_size) for rank in range(world_size)]
    joined = [list(chain(*parts)) for parts in zip(*ranks, strict=True)]
    assert joined == epoch(name)


@pytest.mark.parametrize("name", sampler.names())
def test_epochs_differ_and_repeat_with_their_seed(name: str) -> None:
    assert epoch(name, number=1) == epoch(name, number=1)
    assert epoch(name, number=1) != epoch(name, number=2)
    other = sampler.build(name, LABELS, batch_size=8, images=2, seed=4)
    assert list(other) != epoch(name)


@pytest.mark.parametrize("name", sampler.names())
@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_resumed_epoch_goes_on_where_it_stopped(name: str, done: int) -> None:
    whole = epoch(name, number=6)
    first = sampler.build(name, LABELS, batch_size=8, images=2, seed=3)
    first.set_epoch(6)
    assert list(islice(iter(first), done)) == whole[:done]
    resumed = sampler.build(name, LABELS, batch_size=8, images=2, seed=99)
    resumed.load_state_dict(first.state_dict())
    resumed.set_epoch(6)
    assert list(resumed) == whole[done:]
    resumed.set_epoch(7)
    assert list(resumed) == epoch(name, number=7)


@pytest.mark.parametrize("name", sampler.names())
def test_it_resumes_on_another_number_of_ranks(name: str) -> None:
    first = sampler.build(name, LABELS, batch_size=8, images=2, seed=3)
    next(iter(first))
    halves = []
    for rank in range(2):
        half = sampler.build(name, LABELS, batch_size=8, images=2, rank=rank, world_size=2)
        half.load_state_dict(first.state_dict())
        halves.append(list(half))
    assert [left + right for left, right in zip(*halves, strict=True)] == epoch(name)[1:]


def test_the_cursor_can_be_set_to_what_was_trained_where_workers_run_ahead() -> None:
    built = PlainSampler(LABELS, batch_size=8, seed=3)
    loader: DataLoader[int] = DataLoader(list(range(34)), batch_sampler=built)  # type: ignore[arg-type]  # a list will do
    batches = iter(loader)
    trained = [next(batches).tolist() for _ in range(2)]
    built.cursor = 2
    rest = [batch.tolist() for batch in loader]
    assert trained + rest == epoch("plain")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sampler.build("pk", LABELS, batch_size=9, images=2),
        lambda: sampler.build("pk", LABELS, batch_size=16, images=2),  # eight people of seven
        lambda: sampler.build("plain", LABELS, batch_size=7, world_size=2),
        lambda: sampler.build("plain", LABELS, batch_size=8, rank=2, world_size=2),
        lambda: sampler.build("plain", [], batch_size=8),
        lambda: sampler.build("balanced", np.array([0.5, 1.0]), batch_size=2),
        lambda: MixedSampler(np.arange(8) % 4, shares=(0.25,) * 4, batch_size=2),
        lambda: BatchSampler(0),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong) -> None:  # type: ignore[no-untyped-def]  # a table of calls
    with pytest.raises(SamplerError):
        wrong()


def test_a_wrong_name_names_the_nearest_right_one() -> None:
    with pytest.raises(SamplerError, match="did you mean 'balanced'"):
        sampler.build("ballanced", LABELS, batch_size=8)


@given(size=st.integers(1, 5000), seed=st.integers(0, 2**32))
def test_a_permutation_takes_every_number_once(size: int, seed: int) -> None:
    found = permuted(np.arange(size), size, np.random.default_rng(seed))
    assert sorted(found.tolist()) == list(range(size))
    places = np.array([size - 1, 0])
    assert permuted(places, size, np.random.default_rng(seed)).tolist() == [found[-1], found[0]]


def test_permutations_are_as_even_as_random_ones() -> None:
    """How often each number of 12 stands at each place of 6,000 permutations: chi-squared, 121 degrees of freedom."""
    counts = np.zeros((12, 12))
    for seed in range(6000):
        counts[np.arange(12), permuted(np.arange(12), 12, np.random.default_rng(seed))] += 1
    assert ((counts - 500) ** 2 / 500).sum() < 190  # p = 6e-5; always the same seeds


def test_large_sets_are_permuted_place_by_place() -> None:
    size = 10**12
    places = np.arange(1000)
    found = permuted(places, size, np.random.default_rng(0))
    assert len(set(found.tolist())) == 1000
    assert found.min() >= 0
    assert found.max() < size
    assert abs(np.mean(found / size) - 0.5) < 0.05
