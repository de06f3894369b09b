"""Losses and miners in somebody else's loop: pytorch-metric-learning's sampler, torch's loader and optimiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.oracle import oracle
from training import losses
from training.losses import miners

PEOPLE, EACH, SIZE, DIM = 8, 12, 20, 16


def vectors(seed: int, images: int) -> tuple[Tensor, Tensor]:
    """What shows a person is in half of the numbers; the other half is louder, and noise."""
    labels = torch.arange(PEOPLE).repeat_interleave(images)
    person = torch.randn(PEOPLE, SIZE, generator=torch.Generator().manual_seed(0))[labels]
    noise = torch.randn(len(labels), 2 * SIZE, generator=torch.Generator().manual_seed(seed))
    return torch.cat([person + 0.5 * noise[:, :SIZE], 6 * noise[:, SIZE:]], dim=1), labels


def right(embeddings: Tensor, labels: Tensor) -> float:
    """The share of vectors whose nearest neighbour shows the same person."""
    unit = nn.functional.normalize(embeddings)
    scores = (unit @ unit.T).fill_diagonal_(-2)
    return float((labels[scores.argmax(dim=1)] == labels).float().mean())


@pytest.mark.parametrize(
    ("name", "miner"),
    [
        pytest.param("arcface", None, marks=pytest.mark.long),
        ("triplet", "semihard"),
        ("margin", "distance_weighted"),
    ],
)
def test_a_plain_loop_learns_with_them(name: str, miner: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(oracle("utils.common_functions"), "NUMPY_RANDOM", np.random.RandomState(0))  # the sampler's
    x, labels = vectors(1, EACH)
    unseen, whose = vectors(2, EACH)
    sampler = oracle("samplers").MPerClassSampler(labels, m=4, batch_size=32, length_before_new_iter=len(labels))
    loader = DataLoader(TensorDataset(x, labels), batch_size=32, sampler=sampler)
    net, loss = (
        nn.Linear(2 * SIZE, DIM),
        losses.build(name, num_classes=PEOPLE, dim=DIM, **({"s": 16.0} if not miner else {})),
    )
    mine = miners.build(miner, seed=0) if miner else None
    optimizer = torch.optim.Adam([*net.parameters(), *loss.parameters()], lr=0.01)
    before = right(net(unseen), whose)
    for _ in range(40):
        for batch, people in loader:
            embeddings = net(batch)
            value = loss(embeddings, people, mine(embeddings, people)) if mine else loss(embeddings, people)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    assert right(net(unseen), whose) > 0.8 > before + 0.2
