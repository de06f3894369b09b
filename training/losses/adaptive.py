"""Margins that depend on the sample: its norm, the state of training, or chance."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from training.losses.base import ClassTable, Gradient, Part, require
from training.losses.margin import AngularLoss, Mode, angular_margin

NORM_MEAN_START = 20.0
NORM_STD_START = 100.0
"""Norm statistics before the first batch, as in AdaFace's released code: every ẑ is then close to 0."""
STD_FLOOR = 1e-3
"""Keeps ẑ finite when all norms are equal (AdaFace's released code)."""


class AdaFace(AngularLoss):
    """z_y = s·(cos(θ_y − m·ẑ) − (m + m·ẑ)), ẑ = clip(h·(|x| − μ)/σ, −1, 1) (AdaFace, arXiv 2204.00964).

    μ and σ are running statistics of |x|, moved by t_alpha a step; ẑ carries no gradient. s = 64, m = 0.4, h = 0.333,
    t_alpha = 0.01 (an average with momentum 0.99): that paper. If ẑ > 0, the angle θ_y − m·ẑ may be negative; it is not
    clipped, so that no sample loses its gradient.
    """

    norm_mean: Tensor
    norm_std: Tensor

    def __init__(
        self,
        table: ClassTable,
        *,
        s: float = 64.0,
        m: float = 0.4,
        h: float = 0.333,
        t_alpha: float = 0.01,
        mode: Mode = "continuous",
        grad: Gradient = "exact",
    ) -> None:
        require(0 < t_alpha <= 1, f"t_alpha must lie in (0, 1], not {t_alpha}")
        super().__init__(table, s=s, m=m, mode=mode, grad=grad)
        self.h, self.t_alpha = h, t_alpha
        self.register_buffer("norm_mean", torch.tensor(NORM_MEAN_START))
        self.register_buffer("norm_std", torch.tensor(NORM_STD_START))

    def observe(self, part: Part, scores: Tensor) -> None:
        del scores
        norm = torch.linalg.vector_norm(part.x, dim=1)
        self.norm_mean.lerp_(norm.mean().to(self.norm_mean), self.t_alpha)
        if len(norm) > 1:
            self.norm_std.lerp_(norm.std().to(self.norm_std), self.t_alpha)

    def quality(self, x: Tensor) -> Tensor:
        """Return ẑ in [−1, 1], without gradient: (B, D) → (B,)."""
        norm = torch.linalg.vector_norm(x.detach(), dim=1)
        deviation: Tensor = self.h * (norm - self.norm_mean) / (self.norm_std + STD_FLOOR)
        return deviation.clamp(-1, 1)

    def shifted(self, part: Part, theta: Tensor, cosine: Tensor) -> Tensor:
        m = self.m * self.margin_scale
        z = self.quality(part.x)
        return angular_margin(theta, cosine, 1.0, -m * z, self.mode) - (m + m * z)


class MagFace(AngularLoss):
    """z_y = s·cos(θ_y + m(a)), plus lam·(1/a + a/ua²), a = clip(|x|, la, ua) (MagFace, arXiv 2103.06627).

    m(a) = (um − lm)/(ua − la)·(a − la) + lm. la = 10, ua = 110, lm = 0.45, um = 0.8, lam = 35, s = 64: that paper.
    a keeps its gradient, in both margin and penalty: a longer embedding has to be better placed.
    """

    def __init__(
        self,
        table: ClassTable,
        *,
        s: float = 64.0,
        la: float = 10.0,
        ua: float = 110.0,
        lm: float = 0.45,
        um: float = 0.8,
        lam: float = 35.0,
        mode: Mode = "continuous",
        grad: Gradient = "exact",
    ) -> None:
        require(0 < la < ua, f"expected 0 < la < ua, got {la} and {ua}")
        super().__init__(table, s=s, m=lm, mode=mode, grad=grad)
        self.la, self.ua, self.lm, self.um, self.lam = la, ua, lm, um, lam

    def magnitude(self, x: Tensor) -> Tensor:
        """Return |x| within [la, ua]: (B, D) → (B,)."""
        length: Tensor = torch.linalg.vector_norm(x, dim=1)
        return length.clamp(self.la, self.ua)

    def margins(self, x: Tensor) -> Tensor:
        """Return m(a) in radians: (B, D) → (B,)."""
        return (self.um - self.lm) / (self.ua - self.la) * (self.magnitude(x) - self.la) + self.lm

    def shifted(self, part: Part, theta: Tensor, cosine: Tensor) -> Tensor:
        margins = self.margins(part.x) * self.margin_scale
        return angular_margin(theta, cosine, 1.0, margins, self.mode)

    def sample_penalty(self, x: Tensor) -> Tensor:
        a = self.magnitude(x)
        return self.lam * (1 / a + a / self.ua**2)


class CurricularFace(AngularLoss):
    """ArcFace whose harder negatives count more as training succeeds (CurricularFace, arXiv 2004.00288).

    A negative with cos θ_j > the target's margined score becomes cos θ_j·(t + cos θ_j); t is the running mean of
    cos θ_y, moved by `momentum` a step, at first 0. s = 64, m = 0.5, momentum = 0.01 (the paper's 0.99 of the old
    value). The comparison and t carry no gradient.
    """

    t: Tensor

    def __init__(
        self,
        table: ClassTable,
        *,
        s: float = 64.0,
        m: float = 0.5,
        momentum: float = 0.01,
        mode: Mode = "continuous",
        grad: Gradient = "exact",
    ) -> None:
        super().__init__(table, s=s, m=m, mode=mode, grad=grad)
        self.momentum = momentum
        self.register_buffer("t", torch.zeros(()))

    def observe(self, part: Part, scores: Tensor) -> None:
        self.t.lerp_(part.spread(part.at_target(scores)).mean().to(self.t), self.momentum)

    def margined(self, part: Part, scores: Tensor) -> Tensor:
        target = self.target(part, scores)
        hard = scores > part.spread(target)[:, None]
        return self.s * part.put(torch.where(hard, scores * (self.t + scores), scores), target)


ELASTIC_MARGIN = {"arc": 0.5, "cos": 0.35}
ELASTIC_SIGMA = {("arc", False): 0.05, ("arc", True): 0.0175, ("cos", False): 0.05, ("cos", True): 0.02}


class ElasticFace(AngularLoss):
    """ArcFace or CosFace with each sample's margin drawn from N(m, sigma²) (ElasticFace, arXiv 2109.09416).

    kind = `arc`: z_y = s·cos(θ_y + m_i); `cos`: z_y = s·(cos θ_y − m_i). plus = True sorts a batch's margins so that
    the sample farthest from its class gets the largest. m = 0.5 (arc) or 0.35 (cos), sigma = 0.05, with plus 0.0175
    (arc) or 0.02 (cos), s = 64: that paper. Margins are drawn in training mode, from torch's generator; otherwise they
    are m.
    """

    def __init__(
        self,
        table: ClassTable,
        *,
        kind: Literal["arc", "cos"] = "arc",
        plus: bool = False,
        s: float = 64.0,
        m: float | None = None,
        sigma: float | None = None,
        mode: Mode = "continuous",
        grad: Gradient = "exact",
    ) -> None:
        require(kind in ELASTIC_MARGIN, f"kind must be arc or cos, not {kind!r}")
        super().__init__(table, s=s, m=ELASTIC_MARGIN[kind] if m is None else m, mode=mode, grad=grad)
        self.kind, self.plus = kind, plus
        self.sigma = ELASTIC_SIGMA[kind, plus] if sigma is None else sigma

    def margins(self, part: Part, cosine: Tensor) -> Tensor:
        """Return a margin for each sample, (B,)."""
        drawn = torch.full_like(part.x[:, 0], self.m).detach()
        if self.training:
            drawn = part.ranks.same(drawn + self.sigma * torch.randn_like(drawn))
        if self.plus:
            farthest_last = part.spread(cosine).argsort(descending=True)
            drawn = torch.empty_like(drawn).index_put((farthest_last,), drawn.sort().values)
        return drawn * self.margin_scale

    def shifted(self, part: Part, theta: Tensor, cosine: Tensor) -> Tensor:
        margins = self.margins(part, cosine)
        if self.kind == "cos":
            return cosine - margins
        return angular_margin(theta, cosine, 1.0, margins, self.mode)
