"""torch's fused SGD and AdamW, stepping only the rows that a sparse gradient names.

torch's own SGD moves every row at every step, by momentum and weight decay. Here a row that was not drawn keeps its
value and its state, as if the step had not happened. A row ends where a dense optimiser would bring it with only the
steps in which the row was drawn. As with torch's fused optimisers, nothing is stepped if `found_inf` is set to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class RowOptimizer(torch.optim.Optimizer):
    """A mixin: `update(group, values, gradient, state)` steps sparse gradients, the host class all others."""

    row_state: tuple[str, ...] = ()
    """Names of the tensors kept for each parameter, of its shape."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # not torch's two
        sparse = [
            (group, parameter, parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter.grad.is_sparse
        ]
        for _, parameter, _ in sparse:
            parameter.grad = None
        loss = super().step(closure)
        for group, parameter, gradient in sparse:
            parameter.grad = gradient
            self._step_rows(group, parameter, gradient.coalesce())
        return loss

    def _step_rows(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        state = self.state[parameter]
        if "steps" not in state:
            for name in self.row_state:
                state.setdefault(name, torch.zeros_like(parameter))
            shape = parameter.shape[:1] + (1,) * (parameter.ndim - 1)
            state["steps"] = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
        index = gradient.indices()[0]
        rows = {name: kept[index] for name, kept in state.items()}
        values = self.update(group, parameter[index], gradient.values(), rows)
        void = getattr(self, "found_inf", None)
        for kept, new in ((parameter, values), *((state[name], rows[name]) for name in rows)):
            kept[index] = new if void is None else torch.where(void.bool(), kept[index], new)

    def update(self, group: dict[str, Any], values: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Return the new values; update `state` in place."""
        raise NotImplementedError


class RowSGD(RowOptimizer, torch.optim.SGD):
    """torch.optim.SGD with momentum and (coupled) weight decay."""

    row_state = ("momentum_buffer",)

    def update(self, group: dict[str, Any], values: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        state["steps"].add_(1)
        state["momentum_buffer"].mul_(group["momentum"]).add_(gradient + group["weight_decay"] * values)
        stepped: Tensor = values - group["lr"] * state["momentum_buffer"]
        return stepped


class RowAdamW(RowOptimizer, torch.optim.AdamW):
    """torch.optim.AdamW; the bias correction counts each row's own steps."""

    row_state = ("exp_avg", "exp_avg_sq")

    def update(self, group: dict[str, Any], values: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        first, second = group["betas"]
        steps = state["steps"].add_(1)
        mean = state["exp_avg"].lerp_(gradient, 1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square / (1 - second**steps)).sqrt() + group["eps"]
        decayed = values * (1 - group["lr"] * group["weight_decay"])
        stepped: Tensor = decayed - group["lr"] * (mean / (1 - first**steps)) / root
        return stepped
