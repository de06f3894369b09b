"""Pair-level losses: each against an explicit loop over the batch, and against pytorch-metric-learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.support.oracle import oracle
from training import losses
from training.losses import PairLoss, Triplets
from training.losses.pairwise import Margin, all_triplets

B, D = 14, 6
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 0])  # classes of different sizes, one with one image


def built(name: str, **hyper: object) -> PairLoss:
    loss = losses.build(name, **hyper)  # type: ignore[arg-type]  # num_classes may be among them
    assert isinstance(loss, PairLoss)
    loss = loss.double()
    if isinstance(loss, Margin):
        with torch.no_grad():
            loss.beta.fill_(1.2)  # exactly, not float32's 1.2
    return loss


def embeddings() -> Tensor:
    centers = torch.randn(5, D, dtype=torch.float64)
    return centers[LABELS] + 0.8 * torch.randn(B, D, dtype=torch.float64)


def assert_same(first: Tensor, second: Tensor | float, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(first, torch.as_tensor(second, dtype=first.dtype), rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------ slow oracles


def ordered_pairs() -> Iterator[tuple[int, int, bool]]:
    for i in range(B):
        for j in range(B):
            if i != j:
                yield i, j, bool(LABELS[i] == LABELS[j])


def slow_triplets() -> Iterator[tuple[int, int, int]]:
    for i, j, same in ordered_pairs():
        for k in range(B):
            if same and LABELS[k] != LABELS[i]:
                yield i, j, k


def mean_active(terms: list[float]) -> float:
    active = [term for term in terms if term > 0]
    return sum(active) / len(active)


def slow_contrastive(x: Tensor) -> float:
    return mean_active(
        [
            float((x[i] - x[j]).norm()) ** 2 if same else max(0.0, 1 - float((x[i] - x[j]).norm())) ** 2
            for i, j, same in ordered_pairs()
        ]
    )


def slow_triplet(x: Tensor, power: int) -> float:
    return mean_active(
        [
            max(0.0, float((x[a] - x[p]).norm() ** power - (x[a] - x[n]).norm() ** power) + 0.2)
            for a, p, n in slow_triplets()
        ]
    )


def slow_margin(x: Tensor) -> float:
    terms = []
    for a, p, n in slow_triplets():
        terms.append(max(0.0, 0.2 + float((x[a] - x[p]).norm()) - 1.2))
        terms.append(max(0.0, 0.2 - float((x[a] - x[n]).norm()) + 1.2))
    return mean_active(terms)


def slow_unified(x: Tensor, push: Callable[[float], float], pull: Callable[[float], float]) -> float:
    rows = []
    for i in range(B):
        others = [j for j in range(B) if j != i]
        near = [pull(float(x[i] @ x[j])) for j in others if LABELS[i] == LABELS[j]]
        far = [push(float(x[i] @ x[j])) for j in others if LABELS[i] != LABELS[j]]
        if near and far:
            rows.append(math.log1p(sum(math.exp(f + n) for f in far for n in near)))
    return sum(rows) / len(rows)


def slow_lifted(x: Tensor) -> float:
    terms = []
    for i, j, same in ordered_pairs():
        if same:
            crowd = sum(
                math.exp(1 - float((x[e] - x[k]).norm())) for e in (i, j) for k in range(B) if LABELS[k] != LABELS[e]
            )
            terms.append(max(0.0, float((x[i] - x[j]).norm()) + math.log(crowd)) ** 2 / 2)
    return sum(terms) / len(terms)


SLOW: dict[str, tuple[dict[str, object], Callable[[Tensor], float]]] = {
    "contrastive": ({}, slow_contrastive),
    "triplet": ({}, lambda x: slow_triplet(x, 2)),
    "triplet l2": ({"squared": False}, lambda x: slow_triplet(x, 1)),
    "margin": ({}, slow_margin),
    "unified": ({"s": 9.0}, lambda x: slow_unified(x, lambda s: 9 * (s + 0.35), lambda s: -9 * s)),
    "circle_pair": (
        {},
        lambda x: slow_unified(
            x, lambda s: 80 * max(0.0, s + 0.4) * (s - 0.4), lambda s: -80 * max(0.0, 1.4 - s) * (s - 0.6)
        ),
    ),
    "lifted": ({}, slow_lifted),
}


def of_case(case: str, **more: object) -> PairLoss:
    return built(case.partition(" ")[0], **SLOW[case][0] | more)


@pytest.mark.parametrize("case", SLOW)
def test_the_loss_equals_an_explicit_loop_over_the_batch(case: str) -> None:
    x = embeddings()
    expected = SLOW[case][1](F.normalize(x))
    assert expected > 0
    assert_same(of_case(case)(x, LABELS), expected)


@pytest.mark.parametrize("case", SLOW)
def test_only_directions_matter(case: str) -> None:
    x = embeddings()
    loss = of_case(case)
    assert_same(loss(x * torch.linspace(0.1, 50, B)[:, None], LABELS), loss(x, LABELS))


@pytest.mark.parametrize("case", SLOW)
def test_all_triplets_given_are_as_good_as_none_given(case: str) -> None:
    """Except for contrastive, which counts each pair once if left alone: there in a batch of two equal classes."""
    x, labels = embeddings(), LABELS
    if case == "contrastive":
        x, labels = x[:4], torch.tensor([0, 0, 0, 1])
        x[3] = -x[0]
    loss = of_case(case)
    assert_same(loss(x, labels, all_triplets(labels)), loss(x, labels))


@pytest.mark.parametrize("case", SLOW)
def test_mined_triplets_are_all_that_counts(case: str) -> None:
    """A sample that no triplet names has no gradient."""
    x = embeddings().requires_grad_()
    triplets = Triplets(torch.tensor([0, 5]), torch.tensor([1, 6]), torch.tensor([3, 9]))
    kind = {"triplet": {"m": 3.0}, "triplet l2": {"m": 3.0}, "margin": {"alpha": 3.0}, "contrastive": {"m": 3.0}}
    of_case(case, **kind.get(case, {}))(x, LABELS, triplets).backward()
    assert x.grad is not None
    moved = x.grad.abs().amax(dim=1) > 0
    assert moved.nonzero().flatten().tolist() == [0, 1, 3, 5, 6, 9]


def test_contrastive_counts_mined_pairs_as_often_as_they_are_drawn() -> None:
    x = F.normalize(embeddings())
    triplets = Triplets(torch.tensor([0, 0]), torch.tensor([1, 2]), torch.tensor([3, 3]))
    terms = [(x[0] - x[1]).norm() ** 2, (x[0] - x[2]).norm() ** 2, *[(2.5 - (x[0] - x[3]).norm()) ** 2] * 2]
    assert_same(built("contrastive", m=2.5)(x, LABELS, triplets), torch.stack(terms).mean())


# --------------------------------------------------------------------------------- pytorch-metric-learning


def test_circles_gradient_by_default_takes_its_weights_for_constants() -> None:
    """dL/ds_n = g s (s_n + m) softmax_n, dL/ds_p = −g s (1 + m − s_p) softmax_p, g = 1 − e^−L, over the anchors."""
    x, m, s = embeddings().requires_grad_(), 0.4, 80.0
    score = F.normalize(x) @ F.normalize(x).T
    alike = (LABELS[:, None] == LABELS[None, :]) & ~torch.eye(B, dtype=torch.bool)
    unlike = LABELS[:, None] != LABELS[None, :]
    anchors = alike.any(dim=1) & unlike.any(dim=1)
    fixed = score.detach()
    up, down = (fixed + m).clamp(min=0), (1 + m - fixed).clamp(min=0)
    push = (s * up * (fixed - m)).masked_fill(~unlike, -math.inf)
    pull = (-s * down * (fixed - 1 + m)).masked_fill(~alike, -math.inf)
    rows = F.softplus(torch.logsumexp(push, dim=1) + torch.logsumexp(pull, dim=1))
    g = (1 - torch.exp(-rows))[:, None] / anchors.sum()
    slope = g * s * (up * torch.softmax(push, dim=1) - down * torch.softmax(pull, dim=1))
    slope[~anchors] = 0
    (expected,) = torch.autograd.grad((slope * score).sum(), x)
    loss = built("circle_pair")(x, LABELS)
    assert_same(loss, rows[anchors].mean())
    (gradient,) = torch.autograd.grad(loss, x)
    assert_same(gradient, expected, 1e-10)


def test_margin_equals_the_oracle_with_its_price_on_beta_and_so_do_the_gradients() -> None:
    x = embeddings()
    ours = built("margin", nu=0.05, num_classes=5)
    theirs = oracle("losses").MarginLoss(margin=0.2, nu=0.05, beta=1.2, learn_beta=True, num_classes=5).double()
    value, expected = ours(x, LABELS), theirs(x, LABELS)
    assert_same(value, expected.detach(), 1e-6)  # whose β was float32's 1.2
    value.backward()
    expected.backward()
    assert isinstance(ours, Margin)
    assert ours.beta_class is not None
    assert ours.beta_class.grad is not None
    assert ours.beta.grad is not None
    assert_same(ours.beta_class.grad, theirs.beta.grad, 1e-9)
    assert_same(ours.beta.grad, theirs.beta.grad.sum(), 1e-9)


# --------------------------------------------------------------------------------------------- margin's β


def test_beta_is_the_sum_of_its_three_parts() -> None:
    loss = built("margin", num_classes=5, num_images=20)
    assert isinstance(loss, Margin)
    with torch.no_grad():
        loss.get_parameter("beta_class").copy_(torch.arange(5.0))
        loss.get_parameter("beta_image").copy_(torch.arange(20, dtype=torch.float64) / 100)
    images = torch.arange(B) + 3
    assert_same(loss.boundaries(LABELS, images).detach(), 1.2 + LABELS + images.double() / 100, 1e-7)
    assert_same(loss.boundaries(LABELS).detach(), 1.2 + LABELS.double())
    x = embeddings()
    loss(x, LABELS, image_ids=images).backward()
    gradient = loss.get_parameter("beta_image").grad
    assert gradient is not None
    assert gradient[:3].abs().sum() == 0
    assert gradient[3 : 3 + B].abs().sum() > 0


def test_beta_of_classes_can_be_left_out() -> None:
    plain, alone = built("margin", num_classes=5), built("margin", num_classes=5, class_beta=False)
    assert [name for name, _ in alone.named_parameters()] == ["beta"]
    x = embeddings()
    assert_same(alone(x, LABELS), plain(x, LABELS))  # at the start, where every β of a class is 0
    with pytest.raises(ValueError, match="labels must lie in"):
        alone(x, LABELS + 5)


def test_image_ids_are_checked() -> None:
    x = embeddings()
    with pytest.raises(ValueError, match="num_images"):
        built("margin")(x, LABELS, image_ids=torch.arange(B))
    with pytest.raises(ValueError, match="0…9"):
        built("margin", num_images=10)(x, LABELS, image_ids=torch.arange(B))


def test_a_batch_without_active_pairs_costs_nothing_whatever_nu() -> None:
    x = torch.eye(4, D, dtype=torch.float64)[[0, 0, 1, 1]].requires_grad_()
    loss = built("margin", beta=1.0, nu=0.5)  # D_ap = 0, D_an = √2, both beyond the margin
    value = loss(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() == 0
    assert x.grad is not None
    assert x.grad.abs().sum() == 0


# ----------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("triplets", "message"),
    [
        (Triplets(torch.tensor([0]), torch.tensor([1]), torch.tensor([2])), "contradict"),
        (Triplets(torch.tensor([0]), torch.tensor([3]), torch.tensor([4])), "contradict"),
        (Triplets(torch.tensor([0]), torch.tensor([1]), torch.tensor([B])), "outside"),
        (Triplets(torch.tensor([0]), torch.tensor([1, 2]), torch.tensor([3])), "length"),
    ],
)
@pytest.mark.parametrize("name", list(losses.PAIR_LEVEL))
def test_triplets_that_contradict_the_batch_are_refused(name: str, triplets: Triplets, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(name)(embeddings(), LABELS, triplets)
