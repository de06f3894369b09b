"""Every loss: gradients checked in float64, degenerate batches, half precision, refusals, and the registry."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from training import losses
from training.losses import ClassLoss, LossError, PairLoss, Triplets

C, D = 5, 4
LABELS = torch.tensor([0, 1, 2, 0, 1, 3])
MULTI_CENTRE = {"subcenter_arcface": {"centers": 2}, "softtriple": {"centers": 3}, "hardtriple": {"centers": 2}}
WITH_MODE = [n for n in list(losses.CLASS_LEVEL) if "mode" in losses.hyperparameters(losses.CLASS_LEVEL[n])]
WITH_GRAD = [
    n for n in losses.names() if "grad" in losses.hyperparameters({**losses.CLASS_LEVEL, **losses.PAIR_LEVEL}[n])
]


def built(name: str, **hyper: object) -> ClassLoss | PairLoss:
    return losses.build(name, num_classes=C, dim=D, **MULTI_CENTRE.get(name, {}) | hyper)


# ----------------------------------------------------------------------------------------------- gradients


def gradient_cases() -> list[tuple[str, dict[str, object]]]:
    cases: list[tuple[str, dict[str, object]]] = []
    for name in losses.names():
        exact: dict[str, object] = {"grad": "exact"} if name in WITH_GRAD else {}
        modes = ("none", "easy", "hard", "continuous", "reflect") if name in WITH_MODE else (None,)
        cases += [(name, exact if mode is None else {**exact, "mode": mode}) for mode in modes]
    cases.append(("triplet", {"squared": False}))
    cases.append(("hardtriple", {"tau": 0.2}))
    return cases


@pytest.mark.parametrize(("name", "hyper"), gradient_cases())
def test_the_gradient_is_the_derivative(name: str, hyper: dict[str, object]) -> None:
    """In embeddings and all parameters. AdaFace's ẑ has no gradient, on purpose: its embeddings keep their length."""
    loss = built(name, **hyper).double().eval()
    x = (3 * torch.randn(6, D, dtype=torch.float64)).requires_grad_()
    parameters = dict(loss.named_parameters())
    with torch.no_grad():
        for key, parameter in parameters.items():
            if key in {"weight", "bias"}:
                parameter.copy_(torch.randn_like(parameter))

    def value(x: Tensor, *values: Tensor) -> Tensor:
        at = 3 * F.normalize(x) if name == "adaface" else x
        result: Tensor = torch.func.functional_call(loss, dict(zip(parameters, values, strict=True)), (at, LABELS))
        return result

    assert torch.autograd.gradcheck(value, (x, *parameters.values()), eps=1e-7, atol=1e-4, rtol=1e-4, fast_mode=True)


# --------------------------------------------------------------------------------------- degenerate batches


def along(rows: Tensor, sign: float) -> Tensor:
    """Embeddings exactly on (or opposite to) their class's row; with several centres, its first."""
    return sign * 7 * F.normalize((rows if rows.ndim == 2 else rows[:, 0])[LABELS])


DEGENERATE: dict[str, Callable[[Tensor], Tensor]] = {
    "on its class": lambda rows: along(rows, 1),
    "opposite to its class": lambda rows: along(rows, -1),
    "all the same": lambda rows: torch.ones(6, D, dtype=rows.dtype),
    "all zero": lambda rows: torch.zeros(6, D, dtype=rows.dtype),
    "one zero": lambda rows: torch.randn(6, D, dtype=rows.dtype) * torch.tensor([[0], [1], [1], [1], [1], [1]]),
    "pairs of opposites": lambda rows: torch.tensor([1, 1, 1, -1, -1, -1], dtype=rows.dtype)[:, None].expand(6, D),
    "huge": lambda rows: 1e6 * torch.randn(6, D, dtype=rows.dtype),
    "tiny": lambda rows: 1e-9 * torch.randn(6, D, dtype=rows.dtype),
}


def finite(loss: ClassLoss | PairLoss, x: Tensor, labels: Tensor = LABELS) -> bool:
    """Whether the value and the gradients of embeddings and parameters are finite."""
    x = x.detach().clone().requires_grad_()
    value = loss(x, labels)
    value.backward()
    assert x.grad is not None
    gradients = [x.grad, *(parameter.grad for parameter in loss.parameters() if parameter.grad is not None)]
    return all(bool(tensor.isfinite().all()) for tensor in (value, *gradients))


@pytest.mark.parametrize("name", losses.names())
def test_value_and_gradient_stay_finite(name: str) -> None:
    for case, dtype in product(DEGENERATE, (torch.float32, torch.float64)):
        loss = built(name).to(dtype)
        rows = loss.get_parameter("weight").detach() if isinstance(loss, ClassLoss) else torch.randn(C, D, dtype=dtype)
        assert finite(loss, DEGENERATE[case](rows)), (case, dtype)
        assert name == "margin" or all(parameter.grad is not None for parameter in loss.parameters())


@pytest.mark.parametrize("name", WITH_MODE)
def test_every_mode_stays_finite_at_the_ends_of_the_angle(name: str) -> None:
    ends = "on its class", "opposite to its class"
    for mode, case in product(("none", "easy", "hard", "continuous", "reflect"), ends):
        loss = built(name, mode=mode)
        assert finite(loss, DEGENERATE[case](loss.get_parameter("weight").detach())), (mode, case)


@pytest.mark.parametrize("name", [n for n in losses.names() if n not in {"softmax", "wnorm_softmax", "sphereface"}])
def test_a_zero_embedding_gets_no_direction_to_go(name: str) -> None:
    """Where only the direction counts; for the three that keep |x| or W·x zero is a point like any other."""
    loss = built(name)
    x = torch.randn(6, D)
    x[0] = 0
    x.requires_grad_()
    loss(x, LABELS).backward()
    assert x.grad is not None
    assert x.grad[0].abs().max() == 0


@pytest.mark.parametrize("name", losses.names())
def test_one_sample_or_one_class_is_a_batch_too(name: str) -> None:
    for labels in (torch.tensor([1]), torch.tensor([2, 2, 2]), torch.tensor([0, 1, 2])):
        assert finite(built(name), torch.randn(len(labels), D), labels)


@pytest.mark.parametrize("name", list(losses.PAIR_LEVEL))
def test_no_triplets_cost_nothing(name: str) -> None:
    none = torch.zeros(0, dtype=torch.long)
    x = torch.randn(6, D, requires_grad=True)
    value = built(name)(x, LABELS, Triplets(none, none, none))
    value.backward()
    assert value.item() == 0


# ------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("name", losses.names())
def test_half_precision_embeddings_are_computed_in_float32(name: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        loss = built(name).eval()
        x = (10 * torch.randn(6, D)).to(dtype).requires_grad_()
        value = loss(x, LABELS)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, loss(x.detach().float(), LABELS))
        value.backward()
        assert x.grad is not None
        assert x.grad.dtype == dtype
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", losses.names())
def test_autocast_around_a_loss_changes_nothing(name: str) -> None:
    loss = built(name).eval()
    x = torch.randn(6, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        within = loss(x, LABELS)
    assert within.dtype == torch.float32
    assert within.equal(loss(x, LABELS))


def test_the_target_angle_keeps_its_digits_near_zero() -> None:
    """In float32 acos of the inner product is 9 % off at 1e-3 and gives 0 at 1e-4."""
    for theta in (1e-2, 1e-3, 1e-4):
        true = torch.tensor([theta], dtype=torch.float64)
        u = torch.stack((torch.cos(true), torch.sin(true)), dim=1).float()
        v = torch.tensor([[1.0, 0.0]])
        assert losses.base.angle(u, v).item() == pytest.approx(theta, rel=1e-3)
        assert losses.base.angle(u, -v).item() == pytest.approx(3.14159265 - theta, rel=1e-6)


# --------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", losses.names())
def test_labels_that_name_no_class_are_refused(name: str) -> None:
    loss, x = built(name), torch.randn(6, D)
    for labels in (LABELS + C, LABELS - 1, torch.tensor([0, 1, 2, 0, 1, C])):
        with pytest.raises(ValueError, match=r"labels must lie in 0…4"):
            loss(x, labels)
    for dtype in (torch.float32, torch.float64, torch.bool):
        with pytest.raises(ValueError, match="integers"):
            loss(x, LABELS.to(dtype))
    for labels in (LABELS[:5], LABELS[:, None]):
        with pytest.raises(ValueError, match="labels in one dimension"):
            loss(x, labels)


@pytest.mark.parametrize("name", losses.names())
def test_embeddings_of_another_shape_are_refused(name: str) -> None:
    loss = built(name)
    with pytest.raises(ValueError, match="dimensions"):
        loss(torch.randn(6, D + 1), LABELS)
    with pytest.raises(ValueError, match="floats"):
        loss(torch.ones(6, D, dtype=torch.long), LABELS)
    with pytest.raises(ValueError, match="floats"):
        loss(torch.randn(6, D, 1), LABELS)
    with pytest.raises(ValueError, match="empty"):
        loss(torch.randn(0, D), LABELS[:0])


@pytest.mark.parametrize("name", losses.names())
def test_any_integer_labels_will_do(name: str) -> None:
    loss, x = built(name).eval(), torch.randn(6, D)
    for dtype in (torch.int32, torch.uint8, torch.int16):
        assert loss(x, LABELS.to(dtype)).equal(loss(x, LABELS)), dtype


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("cosface", {"s": 0.0}),
        ("arcface", {"mode": "soft"}),
        ("arcface", {"grad": "none"}),
        ("combined", {"m1": 0.0}),
        ("sphereface", {"m": 0.5}),
        ("sphereface", {"lam": -1.0}),
        ("softtriple", {"gamma": 0.0}),
        ("softtriple", {"centers": 0}),
        ("hardtriple", {"tau": -0.1}),
        ("magface", {"la": 200.0}),
        ("sphereface2", {"alpha": 1.0}),
        ("sphereface2", {"t": 0.5}),
        ("elasticface", {"kind": "sphere"}),
        ("adaface", {"t_alpha": 0.0}),
        ("circle_pair", {"grad": "maybe"}),
        ("unified", {"s": -1.0}),
    ],
)
def test_values_without_meaning_are_refused(name: str, hyper: dict[str, object]) -> None:
    with pytest.raises(LossError):
        losses.build(name, num_classes=C, dim=D, **hyper)


# ---------------------------------------------------------------------------------------------- registry


@pytest.mark.parametrize(
    ("name", "hyper", "near"),
    [
        ("arcfase", {}, "'arcface'"),
        ("softripple", {}, "'softtriple'"),
        ("cosface", {"scale": 3}, "'s'"),
        ("softtriple", {"centres": 3}, "'centers'"),
        ("margin", {"apha": 3}, "'alpha'"),
        ("arcface", {"gradient": "exact"}, "'grad'"),
    ],
)
def test_a_wrong_name_names_the_nearest_right_one(name: str, hyper: dict[str, object], near: str) -> None:
    with pytest.raises(LossError, match=f"did you mean {near}"):
        losses.build(name, num_classes=C, dim=D, **hyper)


@pytest.mark.parametrize("name", list(losses.CLASS_LEVEL))
def test_class_losses_have_a_row_per_class_and_scores_without_labels(name: str) -> None:
    loss = built(name)
    assert isinstance(loss, ClassLoss)
    weight = loss.get_parameter("weight")
    assert weight.shape == ((C, MULTI_CENTRE[name]["centers"], D) if name in MULTI_CENTRE else (C, D))
    logits = loss.logits(torch.randn(3, D))
    assert logits.shape == (3, C)
    with pytest.raises(LossError, match="num_classes"):
        losses.build(name)
    with pytest.raises(LossError):
        losses.build(name, num_classes=0, dim=D)
