"""docs/reference/losses.md names every loss, miner, sampler and argument, with its default."""

from __future__ import annotations

import inspect
import re

import pytest

from tests.conftest import PROJECT
from training import losses
from training.data import sampler
from training.losses import miners

PAGE = (PROJECT / "docs" / "reference" / "losses.md").read_text()
KINDS: dict[str, type] = {**losses.CLASS_LEVEL, **losses.PAIR_LEVEL, **miners.MINERS}


@pytest.mark.parametrize("name", KINDS)
def test_each_loss_and_miner_has_a_row_with_its_arguments_and_defaults(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \|.*$", PAGE, flags=re.MULTILINE)
    for argument in inspect.signature(KINDS[name]).parameters.values():
        explained_once = argument.name in {"mode", "seed"} or argument.default == "exact"
        if argument.kind is not inspect.Parameter.KEYWORD_ONLY or explained_once:
            continue
        assert re.search(rf"\b{argument.name}\b", row), argument.name
        if isinstance(argument.default, float):
            assert re.search(rf"\b{argument.name} {argument.default:g}\b", row), f"{argument.name} {argument.default}"


def test_each_sampler_is_explained() -> None:
    for name in sampler.names():
        assert f"`{name}`" in PAGE
