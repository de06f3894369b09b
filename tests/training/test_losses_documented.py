"""docs/losses.md names every loss, miner, sampler and argument with its default, and only tests that exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from training import losses, miners, sampler

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs" / "losses.md").read_text()
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


@pytest.mark.parametrize("name", [*KINDS, *sampler.names()])
def test_each_loss_miner_and_sampler_has_a_test_in_the_table(name: str) -> None:
    rows = re.findall(
        r"^\| (.+) \| [CPRMFS] `test_", PAGE.partition("## Which test pins which formula")[2], re.MULTILINE
    )
    assert any(re.search(rf"\b{name}\b", row) for row in rows)


def test_each_test_that_the_table_names_exists() -> None:
    written = "".join(path.read_text() for path in (PROJECT / "tests").glob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert len(named) > 40
    for name in named:
        assert f"def {name}(" in written, name
