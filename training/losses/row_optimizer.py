"""SGD and AdamW that step only the rows a sparse gradient names.

torch's own SGD keeps moving every row by its momentum and shrinks it by weight decay; here a row that was not drawn
keeps its value and its state, as if the step had not been. A row's history is that of a dense optimiser that saw just
the steps the row took part in. Parameters with an ordinary gradient are stepped as torch's optimisers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor


class RowOptimizer(torch.optim.Optimizer):
    """Calls `update(group, values, gradient, state)` with the rows at hand; what it returns is written back."""

    row_state: tuple[str, ...] = ()
    """Tensors kept per parameter, of its shape."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(group, parameter, parameter.grad)
        return loss

    def _step(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state.update({name: torch.zeros_like(parameter) for name in self.row_state})
            shape = parameter.shape[:1] + (1,) * (parameter.ndim - 1)
            state["steps"] = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
        if not gradient.is_sparse:
            parameter.copy_(self.update(group, parameter, gradient, state))
            return
        gradient = gradient.coalesce()
        index = gradient.indices()[0]
        rows = {name: kept[index] for name, kept in state.items()}
        parameter[index] = self.update(group, parameter[index], gradient.values(), rows)
        for name, kept in rows.items():
            state[name][index] = kept

    def update(self, group: dict[str, Any], values: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        """The new values; updates `state` in place."""
        raise NotImplementedError


class RowSGD(RowOptimizer):
    """torch.optim.SGD with momentum and (coupled) weight decay."""

    row_state = ("momentum",)

    def __init__(self, params: Iterable[Any], *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def update(self, group: dict[str, Any], values: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        state["steps"].add_(1)
        state["momentum"].mul_(group["momentum"]).add_(gradient + group["weight_decay"] * values)
        stepped: Tensor = values - group["lr"] * state["momentum"]
        return stepped


class RowAdamW(RowOptimizer):
    """torch.optim.AdamW; the bias correction counts each row's own steps."""

    row_state = ("mean", "square")

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def update(self, group: dict[str, Any], values: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        first, second = group["betas"]
        steps = state["steps"].add_(1)
        mean = state["mean"].lerp_(gradient, 1 - first)
        square = state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square / (1 - second**steps)).sqrt() + group["eps"]
        decayed = values * (1 - group["lr"] * group["weight_decay"])
        stepped: Tensor = decayed - group["lr"] * (mean / (1 - first**steps)) / root
        return stepped
