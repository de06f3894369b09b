"""Miners: what each may draw, how often, and that it does so again with the same seed."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import scipy
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.support.oracle import oracle
from training.losses import LossError, Triplets, miners
from training.losses.miners import DistanceWeightedMiner, gumbel_argmax
from training.losses.pairwise import all_triplets, pair_masks

VARIANTS: list[tuple[str, dict[str, object]]] = [
    ("random", {}),
    ("hard", {}),
    ("hard", {"hardest_positive": True}),
    ("semihard", {"variant": "facenet"}),
    ("semihard", {"variant": "wu"}),
    ("semihard", {"variant": "roth"}),
    ("semihard", {"variant": "all"}),
    ("distance_weighted", {}),
    ("distance_weighted", {"fallback": "skip"}),
]
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 0])


def embeddings(dim: int = 6, spread: float = 1.0) -> Tensor:
    return torch.randn(5, dim)[LABELS] + spread * torch.randn(len(LABELS), dim)


def rows(triplets: Triplets) -> set[tuple[int, int, int]]:
    return set(zip(*(part.tolist() for part in triplets), strict=True))


def pairwise(x: Tensor) -> Tensor:
    unit = F.normalize(x.double())
    gaps: Tensor = unit[:, None] - unit[None, :]
    return gaps.square().sum(dim=2).sqrt()


# ----------------------------------------------------------------------------------------- every miner


@pytest.mark.parametrize(("name", "hyper"), VARIANTS)
def test_positives_are_alike_negatives_unlike_and_none_is_its_own(name: str, hyper: dict[str, object]) -> None:
    for _ in range(20):
        anchor, positive, negative = miners.build(name, **hyper)(embeddings(), LABELS)
        assert (LABELS[anchor] == LABELS[positive]).all()
        assert (LABELS[anchor] != LABELS[negative]).all()
        assert (anchor != positive).all()


@pytest.mark.parametrize(
    ("name", "hyper"), [case for case in VARIANTS if case[1].get("variant") not in {"facenet", "wu", "all"}]
)
def test_each_pair_of_a_class_gets_one_negative(name: str, hyper: dict[str, object]) -> None:
    anchor, positive, _ = miners.build(name, **hyper)(embeddings(), LABELS)
    pairs = list(zip(anchor.tolist(), positive.tolist(), strict=True))
    expected = {(int(a), int(p)) for a, p in pair_masks(LABELS)[0].nonzero()}
    if hyper.get("hardest_positive"):
        assert sorted(a for a, _ in pairs) == sorted({a for a, _ in expected})
    else:
        assert len(pairs) == len(set(pairs))
        assert set(pairs) == expected


@pytest.mark.parametrize(("name", "hyper"), VARIANTS)
def test_a_seed_makes_the_draw_repeat_and_a_saved_state_lets_it_go_on(name: str, hyper: dict[str, object]) -> None:
    x = embeddings()
    first, same, other = (miners.build(name, **hyper, seed=seed) for seed in (1, 1, 2))
    assert [rows(first(x, LABELS)) for _ in range(3)] == [rows(same(x, LABELS)) for _ in range(3)]
    if name in {"random", "distance_weighted"}:
        assert [rows(other(x, LABELS)) for _ in range(3)] != [rows(same(x, LABELS)) for _ in range(3)]
    resumed = miners.build(name, **hyper)
    resumed.load_state_dict(first.state_dict())
    assert rows(resumed(x, LABELS)) == rows(first(x, LABELS))


@pytest.mark.parametrize(("name", "hyper"), VARIANTS)
def test_degenerate_batches_are_mined_without_harm(name: str, hyper: dict[str, object]) -> None:
    miner = miners.build(name, **hyper)
    batches = torch.zeros(6, 4), torch.ones(6, 4), torch.tensor([1.0, -1] * 3)[:, None].expand(6, 4)
    people = [0, 0, 1, 1, 2, 2], [0] * 6, [0, 1, 2, 3, 4, 5]
    for x, labels, dtype in product(batches, people, (torch.float16, torch.bfloat16, torch.float64)):
        anchor, positive, negative = miner(x.to(dtype), torch.tensor(labels))
        assert len(anchor) == len(positive) == len(negative)
        assert anchor.dtype == torch.int64
        assert len(set(labels)) == 3 or len(anchor) == 0


@pytest.mark.parametrize(("name", "hyper"), VARIANTS)
def test_mining_leaves_no_gradient_and_no_global_chance_behind(name: str, hyper: dict[str, object]) -> None:
    x = embeddings().requires_grad_()
    before = torch.get_rng_state()
    triplets = miners.build(name, **hyper)(x, LABELS)
    assert not any(part.requires_grad for part in triplets)
    assert torch.get_rng_state().equal(before)


def test_wrong_names_name_the_nearest_right_one() -> None:
    assert list(miners.MINERS) == ["random", "hard", "semihard", "distance_weighted"]
    with pytest.raises(LossError, match="did you mean 'semihard'"):
        miners.build("semi_hard")
    with pytest.raises(LossError, match="did you mean 'cutoff'"):
        miners.build("distance_weighted", cut=0.5)
    with pytest.raises(LossError, match="variant"):
        miners.build("semihard", variant="swedish")
    with pytest.raises(LossError, match="cutoff"):
        miners.build("distance_weighted", cutoff=1.5)


# -------------------------------------------------------------------------------------- which negatives


def test_hard_takes_the_nearest_negative_and_batch_hard_the_farthest_positive() -> None:
    x = embeddings()
    distance = pairwise(x)
    for anchor, _, negative in rows(miners.build("hard")(x, LABELS)):
        others = [n for n in range(len(LABELS)) if LABELS[n] != LABELS[anchor]]
        assert negative == min(others, key=lambda n: distance[anchor, n])
    ours = rows(miners.build("hard", hardest_positive=True)(x, LABELS))
    assert ours == rows(oracle("miners").BatchHardMiner(distance=oracle("distances").LpDistance())(x, LABELS))


@pytest.mark.parametrize("squared", [True, False])
def test_all_of_the_semihard_band_equals_the_oracle(squared: bool) -> None:
    x = embeddings()
    distance = oracle("distances").LpDistance(power=2 if squared else 1)
    theirs = oracle("miners").TripletMarginMiner(margin=0.2, type_of_triplets="semihard", distance=distance)
    ours = rows(miners.build("semihard", variant="all", squared=squared)(x, LABELS))
    assert ours == rows(theirs(x, LABELS))
    assert len(ours) > 5


def test_the_semihard_variants_choose_within_or_beyond_the_band() -> None:
    x = embeddings()
    distance = pairwise(x)
    band = {(a, p, n) for a, p, n in rows(all_triplets(LABELS)) if 0 < distance[a, n] ** 2 - distance[a, p] ** 2 < 0.2}
    pairs_with_band = {(a, p) for a, p, _ in band}
    drawn = rows(miners.build("semihard", variant="facenet")(x, LABELS))
    assert drawn <= band
    assert {(a, p) for a, p, _ in drawn} == pairs_with_band
    roth = rows(miners.build("semihard", variant="roth")(x, LABELS))
    assert all(((a, p) not in pairs_with_band) or ((a, p, n) in band) for a, p, n in roth)
    assert any((a, p) not in pairs_with_band for a, p, _ in roth)
    for a, p, n in rows(miners.build("semihard", variant="wu")(x, LABELS)):
        beyond = [k for k in range(len(LABELS)) if LABELS[k] != LABELS[a] and distance[a, k] > distance[a, p]]
        assert n == min(beyond, key=lambda k: distance[a, k])


def test_random_draws_every_negative_as_often() -> None:
    labels = torch.tensor([0, 0, 1, 2, 3, 4])
    miner, x = miners.build("random"), torch.randn(6, 4)
    drawn = torch.cat([miner(x, labels).negative for _ in range(2000)])
    counts = torch.bincount(drawn, minlength=6)[2:]
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-4


# ------------------------------------------------------------------------------------ distance weighting


@pytest.mark.parametrize("dim", [8, 128, 512])
def test_draws_follow_the_weights_of_the_formula(dim: int) -> None:
    """10⁵ draws for one anchor; probabilities of min(λ, 1/q(d)) worked out in log space with other code."""
    distance = torch.tensor([0.0, 0.3, 0.45, 0.52, 0.53, 0.9, 1.2, 1.38, 1.41, 1.9], dtype=torch.float64)
    if dim > 8:  # at large dimensions only near ties share the draws
        distance = torch.tensor([0.0, 0.3, 0.45, 0.5005, 0.501, 0.502, 0.504, 0.51, 1.41, 1.9], dtype=torch.float64)
    negatives = torch.tensor([False, True, True, True, True, True, True, True, True, True])
    log_q = [
        (dim - 2) * math.log(max(d, 0.5)) + (dim - 3) / 2 * math.log(1 - max(d, 0.5) ** 2 / 4)
        for d in distance.tolist()
    ]
    weight = np.array(
        [math.exp(log_q[1] - q) if 0 < d < 1.4 else 0 for d, q in zip(distance.tolist(), log_q, strict=True)]
    )
    expected = weight / weight.sum()
    miner = DistanceWeightedMiner(seed=5)
    draws = 100_000
    chosen, found = miner.choose(torch.zeros(draws), distance.expand(draws, -1), negatives.expand(draws, -1), dim)
    assert found.all()
    counts = np.bincount(chosen.numpy(), minlength=10)
    assert (counts[expected == 0] == 0).all()
    often = expected * draws > 5
    assert often.sum() >= 5
    assert (
        scipy.stats.chisquare(counts[often], expected[often] / expected[often].sum() * counts[often].sum()).pvalue
        > 1e-4
    )


def test_one_pair_of_mislabelled_twins_does_not_cost_other_anchors_their_negatives() -> None:
    """The published codes subtract one maximum over the whole batch and lose nearly every anchor at 512 dimensions."""
    dim, people = 512, 35
    labels = torch.arange(people * 2) // 2
    x = torch.randn(people * 2, dim)
    x[2] = x[0]  # two people, one face
    miner = miners.build("distance_weighted", fallback="skip", nonzero_loss_cutoff=1.45)
    near = (pairwise(x) < 1.45) & (labels[:, None] != labels[None, :])
    anchor, _, negative = miner(x, labels)
    assert set(anchor.tolist()) == set(near.any(dim=1).nonzero().flatten().tolist())
    assert len(anchor) > 60
    assert near[anchor, negative].all()
    assert negative[anchor == 0].tolist() == [2]


def test_where_no_negative_is_near_the_fallback_decides() -> None:
    x = torch.tensor([[1.0, 0], [1, 0.01], [-1, 0], [-1, 0.01], [-1, -0.01]])
    labels = torch.tensor([0, 0, 1, 1, 1])
    assert len(miners.build("distance_weighted", fallback="skip")(x, labels).anchor) == 0
    miner = miners.build("distance_weighted")
    drawn = torch.cat([miner(x, labels).negative[:2] for _ in range(500)])
    assert scipy.stats.chisquare(torch.bincount(drawn, minlength=5)[2:].numpy()).pvalue > 1e-4


def test_a_row_with_one_choice_takes_it_whatever_its_weight() -> None:
    weights = torch.full((1000, 5), -math.inf, dtype=torch.float64)
    weights[:, 3] = -1e6
    assert (gumbel_argmax(weights, torch.Generator().manual_seed(0)) == 3).all()
