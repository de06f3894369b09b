"""Class-level losses: the formulas of their papers, the identities between them, and their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.support.oracle import oracle
from tests.support.runs import count_centers
from training import losses
from training.losses import ClassLoss
from training.losses.base import Part, psi
from training.losses.centers import HardTriple
from training.losses.sphereface2 import initial_bias

C, D, B = 7, 8, 12


def built(name: str, weight: Tensor | None = None, **hyper: object) -> ClassLoss:
    """In float64 and eval mode (no statistics move)."""
    loss = losses.build(name, num_classes=C, dim=D, **hyper)
    assert isinstance(loss, ClassLoss)
    loss = loss.double().eval()
    if weight is not None:
        with torch.no_grad():
            loss.weight.copy_(weight)
    return loss


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings (B, D), labels (B,), weight (C, D), of many lengths."""
    lengths = torch.linspace(0.5, 4, B, dtype=torch.float64)[:, None]
    return torch.randn(B, D, dtype=torch.float64) * lengths, torch.arange(B) % C, torch.randn(C, D).double()


def at_angle(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings at the given angles (n,) to class 0; every class's vector is a coordinate axis."""
    x = torch.zeros(len(theta), D, dtype=torch.float64)
    x[:, 0], x[:, -1] = torch.cos(theta), torch.sin(theta)
    return x, torch.zeros(len(theta), dtype=torch.long), torch.eye(C, D, dtype=torch.float64)


def target_logits(name: str, theta: Tensor, **hyper: object) -> Tensor:
    x, labels, weight = at_angle(theta)
    return built(name, weight, **hyper).margin_logits(x, labels)[:, 0]


def logits_of_scores(loss: ClassLoss, x: Tensor, labels: Tensor) -> tuple[Part, Tensor, Tensor]:
    """The batch, its scores as a leaf, and the logits that they give."""
    part = loss._whole(x, labels)
    scores = loss.scores(part.x, part.rows).detach().requires_grad_()
    return part, scores, loss.margined(part, scores)


def cosines(x: Tensor, weight: Tensor) -> Tensor:
    return F.normalize(x) @ F.normalize(weight).T


def assert_same(first: Tensor, second: Tensor | float, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(first, torch.as_tensor(second, dtype=first.dtype), rtol=tolerance, atol=tolerance)


SWEEP = torch.linspace(0.01, math.pi - 0.01, 200, dtype=torch.float64)

# ----------------------------------------------------------------------------- formulas, term by term


def test_softmax_is_cross_entropy_of_an_affine_map_with_a_bias() -> None:
    x, labels, weight = batch()
    loss = built("softmax", weight)
    with torch.no_grad():
        loss.get_parameter("bias").copy_(torch.randn(C))
    expected = F.cross_entropy(x @ weight.T + loss.get_parameter("bias"), labels)
    assert_same(loss(x, labels), expected)


def test_wnorm_softmax_keeps_the_length_of_the_embedding() -> None:
    x, labels, weight = batch()
    assert_same(built("wnorm_softmax", weight)(x, labels), F.cross_entropy(x @ F.normalize(weight).T, labels))


@pytest.mark.parametrize(
    ("name", "hyper", "expected"),
    [
        ("norm_softmax", {"s": 9.0}, lambda t: 9 * np.cos(t)),
        ("cosface", {}, lambda t: 64 * (np.cos(t) - 0.35)),
        ("arcface", {"mode": "none"}, lambda t: 64 * np.cos(t + 0.5)),
        ("combined", {"mode": "none"}, lambda t: 64 * (np.cos(t + 0.3) - 0.2)),
        (
            "combined",
            {"m1": 0.9, "m2": 0.4, "m3": 0.15, "s": 8.0, "mode": "none"},
            lambda t: 8 * (np.cos(0.9 * t + 0.4) - 0.15),
        ),
        ("hardtriple", {"centers": 1}, lambda t: 20 * (np.cos(t) - 0.01)),
        ("circle", {}, lambda t: 256 * np.maximum(1.25 - np.cos(t), 0) * (np.cos(t) - 0.75)),
    ],
)
def test_the_target_logit_follows_the_paper_over_the_whole_range_of_angles(name, hyper, expected) -> None:  # type: ignore[no-untyped-def]  # a table of formulas
    if name == "hardtriple":
        x, labels, weight = at_angle(SWEEP)
        values = built(name, weight[:, None], **hyper).margin_logits(x, labels)[:, 0]
    else:
        values = target_logits(name, SWEEP, **hyper)
    assert_same(values, torch.from_numpy(expected(SWEEP.numpy())), 1e-10)


@pytest.mark.parametrize("name", ["arcface", "cosface", "combined"])
def test_other_classes_above_the_conflict_count_as_0(name: str) -> None:
    x, labels, weight = batch()
    plain, filtered = (built(name, weight, conflict=limit).margin_logits(x, labels) for limit in (0.0, 0.2))
    near = F.linear(F.normalize(x), F.normalize(weight)) > 0.2
    near &= F.one_hot(labels, C) == 0
    assert near.any()
    assert_same(filtered, plain.masked_fill(near, 0.0))


@pytest.mark.parametrize("name", list(losses.CLASS_LEVEL))
def test_the_margin_touches_the_target_alone_and_logits_have_none(name: str) -> None:
    """Except where the paper changes the other classes too (circle, curricularface, sphereface2)."""
    x, labels, _ = batch()
    loss = built(name)
    changed = loss.margin_logits(x, labels) != loss.logits(x)
    others = torch.ones(B, C, dtype=torch.bool).scatter_(1, labels[:, None], False)
    if name not in {"circle", "curricularface", "sphereface2"}:
        assert not changed[others].any()
    if name not in {"softmax", "wnorm_softmax", "norm_softmax"}:
        assert changed[~others].any()


# ------------------------------------------------------------------------------- identities between losses


@pytest.mark.parametrize("m", [1.0, 1.35, 1.7, 2.0, 3.0, 4.0])
def test_psi_falls_without_jump_or_kink(m: float) -> None:
    theta = torch.linspace(0, math.pi, 40_001, dtype=torch.float64, requires_grad=True)
    value = psi(m * theta, last=math.ceil(m) - 1)
    (slope,) = torch.autograd.grad(value.sum(), theta)
    steps = value.detach().diff()
    assert (steps <= 1e-12).all()
    assert steps.abs().max() < m * math.pi / 40_000 * 1.01
    assert slope.diff().abs().max() < m * m * math.pi / 40_000 * 1.01
    if m == int(m):
        assert_same(value[-1].detach(), 1 - 2 * m)


def test_sphereface_anneals_by_its_saved_iteration() -> None:
    x, labels, weight = batch()
    loss = built("sphereface", weight)
    assert isinstance(loss, losses.CLASS_LEVEL["sphereface"])
    assert_same(loss(x, labels), built("sphereface", weight, lam=1000.0)(x, labels))
    loss.train()
    for _ in range(3):
        loss(x, labels)
    resumed = built("sphereface", weight)
    resumed.load_state_dict(loss.state_dict())
    assert_same(resumed(x, labels), built("sphereface", weight, lam=1000 / 1.36)(x, labels))
    loss.get_buffer("iteration").fill_(10**7)
    assert_same(loss.eval()(x, labels), built("sphereface", weight, lam=5.0)(x, labels))


def test_softtriple_lies_between_hardtriple_and_the_mean_of_centres() -> None:
    x, labels, _ = batch()
    weight = torch.randn(C, 4, D).double()
    hard = built("hardtriple", weight, centers=4)(x, labels)
    assert_same(built("softtriple", weight, centers=4, gamma=1e-6, tau=0.0)(x, labels), hard)
    mean = torch.einsum("bd,ckd->bc", F.normalize(x), F.normalize(weight, dim=2)) / 4
    expected = F.cross_entropy(20 * (mean - 0.01 * F.one_hot(labels, C)), labels)
    assert_same(built("softtriple", weight, centers=4, gamma=1e9, tau=0.0)(x, labels), expected, 1e-9)


def test_the_centre_regulariser_equals_its_oracle_and_vanishes_for_equal_centres() -> None:
    x, labels, _ = batch()
    weight = torch.randn(C, 4, D).double()

    def cost(weight: Tensor) -> Tensor:
        with_tau = built("softtriple", weight, centers=4, tau=0.2)(x, labels)
        difference: Tensor = with_tau - built("softtriple", weight, centers=4, tau=0.0)(x, labels)
        return difference

    regularizer = oracle("regularizers").SparseCentersRegularizer
    theirs = regularizer(num_classes=C, centers_per_class=4)(weight.reshape(C * 4, D))
    assert_same(cost(weight), 0.2 * theirs, 1e-5)
    assert cost(weight[:, :1].expand(-1, 4, -1)) < 0.2 * math.sqrt(1e-5)


def test_a_class_has_as_many_groups_as_centres_that_no_near_ones_join() -> None:
    weight = torch.eye(4, D).repeat(3, 1, 1)
    weight[0, 1] = weight[0, 0] * 3  # the same direction
    chain = torch.tensor([0.0, 0.09, 0.18, 1.5])  # each near the next: 0, 1 and 2 are one
    weight[1] = torch.stack([torch.cos(chain), torch.sin(chain), *torch.zeros(D - 2, 4)], 1)
    assert count_centers(weight).tolist() == [3, 2, 4]
    assert count_centers(weight, 1.5).tolist() == [1] * 3


@pytest.mark.parametrize("name", ["softtriple", "hardtriple"])
def test_centres_that_lie_close_become_one_and_act_as_one(name: str) -> None:
    loss = losses.build(name, num_classes=2, dim=3, centers=4, merge=0.2)
    assert isinstance(loss, HardTriple)
    axes = torch.eye(3)
    near = F.normalize(axes[0] + torch.tensor([0.0, 0.1, 0.0]), dim=0)
    with torch.no_grad():
        loss.weight.copy_(torch.stack([torch.stack([axes[0], near, axes[1], axes[2]]), torch.stack([axes[0]] * 4)]))
    loss.merge_centers()
    middle = F.normalize(axes[0] + near, dim=0)
    torch.testing.assert_close(loss.weight[0].detach(), torch.stack([middle, middle, axes[1], axes[2]]))
    assert count_centers(loss.weight).tolist() == [3, 1]
    x = torch.randn(5, 3)
    alone = losses.build("norm_softmax", num_classes=2, dim=3, s=20.0)
    assert isinstance(alone, ClassLoss)
    with torch.no_grad():
        alone.weight.copy_(loss.weight[:, 0])
    torch.testing.assert_close(loss.logits(x)[:, 1], alone.logits(x)[:, 1])
    kept = loss.weight.detach().clone()
    loss.merge_centers()
    torch.testing.assert_close(loss.weight.detach(), kept)


# --------------------------------------------------------------------------------------- beyond π


def test_the_modes_beyond_the_turn() -> None:
    theta = SWEEP[(SWEEP + 0.5).gt(math.pi)]
    c, m = torch.cos(theta), 0.5
    assert_same(target_logits("arcface", theta, s=1.0, mode="hard"), c - m * math.sin(m))
    assert_same(target_logits("arcface", theta, s=1.0, mode="continuous"), c - (1 - math.cos(m)))
    assert_same(target_logits("arcface", theta, s=1.0, mode="reflect"), -torch.cos(theta + m) - 2)
    assert_same(target_logits("arcface", theta, s=1.0, mode="none"), torch.cos(theta + m))
    easy = target_logits("arcface", SWEEP, s=1.0, mode="easy")
    cos = torch.cos(SWEEP)
    assert_same(easy, torch.where(cos > 0, torch.cos(SWEEP + m), cos))


@pytest.mark.parametrize(("name", "hyper"), [("arcface", {}), ("combined", {"m1": 1.3, "m2": 0.3, "m3": 0.1})])
@pytest.mark.parametrize("mode", ["continuous", "reflect"])
def test_the_default_mode_is_monotone_without_jump(name: str, hyper: dict[str, float], mode: str) -> None:
    theta = torch.linspace(1e-3, math.pi - 1e-3, 20_001, dtype=torch.float64)
    steps = target_logits(name, theta, s=1.0, mode=mode, **hyper).diff()
    assert (steps < 1e-12).all()
    assert steps.abs().max() < 1.4 * math.pi / 20_000


@pytest.mark.parametrize(
    "name",
    [
        "arcface",
        "combined",
        "sphereface",
        "sphereface_fnorm",
        "adaface",
        "magface",
        "curricularface",
        "elasticface",
        "subcenter_arcface",
    ],
)
def test_the_detached_gradient_leaves_the_margin_out(name: str) -> None:
    """Forward as exact; backward with dz_y/dcos θ_y = s, so that the cosines' gradient is s·(p − onehot)/B."""
    x, labels, _ = batch()
    exact, detached = built(name, grad="exact"), built(name, grad="detached")
    detached.load_state_dict(exact.state_dict())
    assert_same(detached(x, labels), exact(x, labels))
    _, scores, logits = logits_of_scores(detached, x, labels)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, labels), scores)
    scale = detached.scale(x)
    expected = scale * (torch.softmax(logits, dim=1) - F.one_hot(labels, C)) / B
    target = F.one_hot(labels, C).bool()
    assert_same(gradient[target], expected[target])
    if name != "curricularface":  # whose other classes carry their own factor
        assert_same(gradient, expected)


def test_sphereface2s_gradient_detached_by_default_leaves_margin_and_sharpening_out() -> None:
    """dL/dcos θ_y = (lw/B) α (σ(z_y) − 1), dL/dcos θ_j = (lw/B) (1 − α) σ(z_j)."""
    x, labels, weight = batch()
    loss = built("sphereface2", weight)
    part, scores, logits = logits_of_scores(loss, x, labels)
    (gradient,) = torch.autograd.grad(loss.per_sample(part, logits).mean(), scores)
    share = torch.sigmoid(logits.detach())
    is_target = F.one_hot(labels, C).bool()
    expected = 50 / B * torch.where(is_target, 0.7 * (share - 1), 0.3 * share)
    assert_same(gradient, expected, 1e-8)  # softplus takes its argument for its value above 20
    exact = built("sphereface2", weight, grad="exact")
    assert_same(exact(x, labels), loss(x, labels))


# ------------------------------------------------------------------------------- circle and its family


def test_circles_gradient_is_the_papers_not_the_product_rule() -> None:
    x, labels, weight = batch()
    for grad, factor, shift in (("detached", 1, 0.25), ("exact", 2, 0.0)):
        _, scores, logits = logits_of_scores(built("circle", weight, grad=grad), x, labels)
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), scores)
        pushed = (F.one_hot(labels, C) == 0) & (scores.detach() > -0.25)
        expected = 256 * (factor * scores.detach() + shift) * torch.softmax(logits, dim=1)
        assert_same(gradient[pushed], expected[pushed])


# --------------------------------------------------------------------------------------- adaptive margins


def test_adaface_follows_its_formula_and_without_h_it_is_cosface() -> None:
    x, labels, weight = batch()
    loss = built("adaface", weight)
    loss.get_buffer("norm_mean").fill_(3.0)
    loss.get_buffer("norm_std").fill_(0.5)
    z = (0.333 * (x.norm(dim=1) - 3) / 0.501).clamp(-1, 1)
    assert z.min() < -0.5 < 0.2 < z.max()
    c = cosines(x, weight)
    target = torch.cos(torch.acos(c[range(B), labels]) - 0.4 * z) - (0.4 + 0.4 * z)
    expected = 64 * c.scatter(1, labels[:, None], target[:, None])
    turned = torch.acos(c[range(B), labels]) - 0.4 * z > math.pi
    assert_same(loss.margin_logits(x, labels)[~turned], expected[~turned], 1e-10)
    assert_same(built("adaface", weight, h=0.0)(x, labels), built("cosface", weight, m=0.4)(x, labels), 1e-12)


def test_adaface_follows_the_norms_with_momentum_only_in_training() -> None:
    x, labels, weight = batch()
    loss = built("adaface", weight)
    loss(x, labels)
    assert loss.get_buffer("norm_mean").item() == 20
    loss.train()(x, labels)
    norm = x.norm(dim=1)
    assert loss.get_buffer("norm_mean").item() == pytest.approx(0.99 * 20 + 0.01 * norm.mean().item())
    assert loss.get_buffer("norm_std").item() == pytest.approx(0.99 * 100 + 0.01 * norm.std().item())


def test_adaface_gives_no_gradient_through_its_quality() -> None:
    """The gradient has no part along x: the length of an embedding moves the loss only by the detached ẑ."""
    x, labels, weight = batch()
    x.requires_grad_()
    loss = built("adaface", weight)
    loss.get_buffer("norm_mean").fill_(2.0)
    loss.get_buffer("norm_std").fill_(1.0)
    (gradient,) = torch.autograd.grad(loss(x, labels), x)
    assert (gradient * x).sum(dim=1).abs().max() < 1e-10


def test_magface_follows_its_formula_and_with_a_constant_margin_it_is_arcface() -> None:
    x, labels, weight = batch()
    x = x * 30
    a = x.norm(dim=1).clamp(10, 110)
    m = 0.35 / 100 * (a - 10) + 0.45
    c = cosines(x, weight)
    theta = torch.acos(c[range(B), labels])
    target = torch.where(theta + m <= math.pi, torch.cos(theta + m), torch.cos(theta) - 1 + torch.cos(m))
    logits = 64 * c.scatter(1, labels[:, None], target[:, None])
    expected = F.cross_entropy(logits, labels) + 35 * (1 / a + a / 110**2).mean()
    assert_same(built("magface", weight)(x, labels), expected, 1e-10)
    flat = built("magface", weight, lm=0.5, um=0.5, lam=0.0)(x, labels)
    assert_same(flat, built("arcface", weight)(x, labels))


def test_curricularface_weighs_negatives_harder_than_the_target() -> None:
    x, labels, weight = batch()
    loss = built("curricularface", weight)
    loss.get_buffer("t").fill_(0.3)
    c = cosines(x, weight)
    target_cosine = c[range(B), labels]
    theta = torch.acos(target_cosine)
    target = torch.where(theta + 0.5 <= math.pi, torch.cos(theta + 0.5), target_cosine - 1 + math.cos(0.5))
    harder = c > target[:, None]
    assert 0 < harder.sum() < harder.numel()
    expected = 64 * torch.where(harder, c * (0.3 + c), c).scatter(1, labels[:, None], target[:, None])
    assert_same(loss.margin_logits(x, labels), expected, 1e-10)
    loss.train()(x, labels)
    assert loss.get_buffer("t").item() == pytest.approx(0.99 * 0.3 + 0.01 * target_cosine.mean().item())


@pytest.mark.parametrize(("kind", "plain"), [("arc", "arcface"), ("cos", "cosface")])
def test_elasticface_is_its_base_in_eval_mode_and_without_sigma(kind: str, plain: str) -> None:
    x, labels, weight = batch()
    expected = built(plain, weight)(x, labels)
    assert_same(built("elasticface", weight, kind=kind)(x, labels), expected)
    assert_same(built("elasticface", weight, kind=kind, sigma=0.0).train()(x, labels), expected)


@pytest.mark.parametrize("plus", [False, True])
def test_elasticface_draws_its_margins_from_a_normal_distribution(plus: bool) -> None:
    theta = torch.linspace(0.2, 2.0, 4000, dtype=torch.float64)
    x, labels, weight = at_angle(theta)
    loss = built("elasticface", weight, kind="cos", plus=plus, s=1.0).train()
    margins = torch.cos(theta) - loss.margin_logits(x, labels)[:, 0]
    sigma = 0.02 if plus else 0.05
    assert margins.mean().item() == pytest.approx(0.35, abs=4 * sigma / math.sqrt(4000))
    assert margins.std().item() == pytest.approx(sigma, rel=0.06)
    rising = bool((margins.diff() >= 0).all())  # the farther from its class, the larger
    assert rising is plus


def test_sphereface2_follows_its_formula() -> None:
    x, labels, weight = batch()
    loss = built("sphereface2", weight)
    b = loss.get_parameter("b").detach()
    g = 2 * ((cosines(x, weight) + 1) / 2) ** 3 - 1
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(B):
        for j in range(C):
            if j == labels[i]:
                expected += 0.7 * F.softplus(-(40 * (g[i, j] - 0.4) + b))
            else:
                expected += 0.3 * F.softplus(40 * (g[i, j] + 0.4) + b)
    assert_same(loss(x, labels), 50 / 40 * expected / B)
    assert_same(loss.logits(x), 40 * g + b)


@pytest.mark.parametrize("num_classes", [2, 3, 1000, 10**6])
@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_sphereface2_starts_where_pull_and_push_are_equal(num_classes: int, alpha: float) -> None:
    b = initial_bias(num_classes, 40, 0.4, 3, alpha)
    g = 2 * 0.5**3 - 1
    pull = alpha / (1 + math.exp(40 * (g - 0.4) + b))
    push = (1 - alpha) * (num_classes - 1) / (1 + math.exp(-(40 * (g + 0.4) + b)))
    assert pull == pytest.approx(push, rel=1e-9)


@pytest.mark.parametrize("name", [n for n in list(losses.CLASS_LEVEL) if n not in {"sphereface2", "circle"}])
def test_the_margin_can_be_warmed_up_from_none(name: str) -> None:
    """At a margin scale of 0 the target's logit is the plain one; in between the loss rises."""
    x, labels, _ = batch()
    loss = built(name)
    values = []
    for share in (0.0, 0.5, 1.0):
        loss.margin_scale = share
        values.append(loss(x, labels).item())
    loss.margin_scale = 0.0
    target_logits = loss.margin_logits(x, labels)[range(B), labels]
    assert_same(target_logits, loss.logits(x)[range(B), labels], 1e-9)
    assert values[0] <= values[1] <= values[2]


@pytest.mark.parametrize("name", ["adaface", "arcface", "cosface", "sphereface2"])
def test_a_share_of_the_margin_is_the_loss_with_a_smaller_one(name: str) -> None:
    x, labels, _ = batch()
    whole = built(name, m=0.4)
    less = built(name, m=0.1)
    if name == "adaface":
        whole.get_buffer("norm_mean").fill_(2.0)
        whole.get_buffer("norm_std").fill_(1.0)
    less.load_state_dict(whole.state_dict())
    assert not torch.isclose(whole(x, labels), less(x, labels))
    whole.margin_scale = 0.25
    assert_same(whole(x, labels), less(x, labels))


def test_circle_has_no_margin_to_be_warmed_up_since_a_smaller_one_asks_for_more() -> None:
    x, labels, weight = batch()
    values = [built("circle", weight, m=m)(x, labels).item() for m in (0.1, 0.2, 0.3)]
    assert values[0] > values[1] > values[2]
    loss = built("circle", weight)
    full = loss(x, labels)
    loss.margin_scale = 0.0
    assert_same(loss(x, labels), full)


# ------------------------------------------------------------------------- pytorch-metric-learning as oracle


def transplant(theirs: torch.nn.Module, attribute: str, weight: Tensor) -> torch.nn.Module:
    theirs = theirs.double()
    with torch.no_grad():
        getattr(theirs, attribute).copy_(weight)
    return theirs


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # inside of the oracle
def test_class_losses_equal_the_oracle() -> None:
    x, labels, weight = batch()
    degrees, pml = math.degrees(0.5), oracle("losses")
    pairs = [
        (
            built("arcface", weight, mode="hard"),
            transplant(pml.ArcFaceLoss(C, D, margin=degrees, scale=64), "W", weight.T),
        ),
        (built("cosface", weight), transplant(pml.CosFaceLoss(C, D, margin=0.35, scale=64), "W", weight.T)),
        (
            built("norm_softmax", weight, s=20.0),
            transplant(pml.NormalizedSoftmaxLoss(C, D, temperature=0.05), "W", weight.T),
        ),
        (
            built("sphereface", weight, m=4.0, lam=0.0),
            transplant(pml.SphereFaceLoss(C, D, margin=4, scale=1), "W", weight.T),
        ),
    ]
    for ours, theirs in pairs:
        assert_same(ours(x, labels), theirs(x, labels).detach(), 1e-9)


def test_multi_centre_losses_equal_the_oracle() -> None:
    x, labels, _ = batch()
    weight, pml = torch.randn(C, 3, D).double(), oracle("losses")
    flat = weight.reshape(C * 3, D).T
    theirs = pml.SoftTripleLoss(C, D, centers_per_class=3, la=20, gamma=0.1, margin=0.01)
    soft = built("softtriple", weight, centers=3, tau=0.0)(x, labels)
    assert_same(soft, transplant(theirs, "fc", flat)(x, labels).detach(), 1e-9)
    sub = pml.SubCenterArcFaceLoss(num_classes=C, embedding_size=D, margin=math.degrees(0.5), scale=64, sub_centers=3)
    ours = built("subcenter_arcface", weight, mode="hard")(x, labels)
    assert_same(ours, transplant(sub, "W", flat)(x, labels).detach(), 1e-9)
