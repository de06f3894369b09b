"""What finished experiments say: a grid's figures as plain values, its tables, and which orders of papers are shown.

`Report` is what `GRID.json` holds; the tables are made from nothing else, so that the two can't differ. A difference
counts only where it exceeds the spread over seeds and holds for other people too (`Comparison`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict

from app.calibration.intervals import Floats, Interval, percentile_interval
from app.errors import InvalidInput
from training.recipe import Recipe

SPREADS = 3.0
"""A difference between two entries counts where it exceeds the spread over seeds so many times."""
LEAST_SEEDS = 2
"""With fewer there is no spread, and nothing is compared."""
DECIDES = "match_rate"
"""The figure by which entries are compared."""

Verdict: TypeAlias = Literal["shown", "not shown", "reversed"]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Claim(Part):
    """An order that a paper reports: `better` scores higher than `worse`."""

    better: str
    worse: str
    source: str


class Figure(Part):
    """A figure of each finished seed, and the interval over people of their mean (95 %)."""

    values: tuple[float, ...]
    low: float
    high: float

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; NaN for one."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else math.nan

    @property
    def interval(self) -> Interval:
        return Interval(self.mean, self.low, self.high)


class Result(Part):
    """An entry over its finished seeds; without any, `seeds` and `figures` are empty."""

    says: str
    settings: dict[str, Any]
    """What differs from the grid's recipe."""
    seeds: tuple[int, ...] = ()
    warned: int = 0
    """Runs that warned: collapsed, or a gradient that was not finite."""
    centers: float | None = None
    training: dict[str, tuple[float, ...]] = {}
    """Loss and accuracy of each seed's last logged training batch."""
    figures: dict[str, Figure] = {}


class Order(Claim):
    """A claim with the gap's interval over people (the same people for both sides); none where it wasn't compared."""

    gap: tuple[float, float] | None = None


class Report(Part):
    """All that is known of a grid."""

    title: str
    fmr: float
    recipe: Recipe
    """What all entries share, every default written out."""
    entries: dict[str, Result]
    orders: tuple[Order, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """An entry's result, and the mean over its seeds of each figure in each bootstrap round."""

    result: Result
    samples: Mapping[str, Floats] = dataclasses.field(default_factory=dict)

    @property
    def comparable(self) -> bool:
        return len(self.result.seeds) >= LEAST_SEEDS


def summarise(says: str, settings: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> Row:
    """`runs`: what `experiments.run` returned for each finished seed, perhaps none."""
    if not runs:
        return Row(Result(says=says, settings=dict(settings)))
    samples = {name: np.mean([run["samples"][name] for run in runs], axis=0) for name in runs[0]["figures"]}
    figures = {}
    for name, drawn in samples.items():
        values = [run["figures"][name] for run in runs]
        found = percentile_interval(float(np.mean(values)), drawn)
        figures[name] = Figure(values=tuple(values), low=found.low, high=found.high)
    centers = [run["centers"] for run in runs if run["centers"] is not None]
    result = Result(
        says=says,
        settings=dict(settings),
        seeds=tuple(run["seed"] for run in runs),
        warned=sum(bool(run["warnings"]) for run in runs),
        centers=round(float(np.mean(centers)), 4) if centers else None,
        training={name: tuple(run["training"][name] for run in runs) for name in runs[0]["training"]},
        figures=figures,
    )
    return Row(result, samples)


def order(claim: Claim, better: Row, worse: Row) -> Order:
    if not (better.comparable and worse.comparable):
        return Order(**claim.model_dump())
    value = better.result.figures[DECIDES].mean - worse.result.figures[DECIDES].mean
    gap = percentile_interval(value, better.samples[DECIDES] - worse.samples[DECIDES])
    return Order(**claim.model_dump(), gap=(gap.low, gap.high))


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """`gap`: how much higher the better side of a claim scores, with its interval over people."""

    gap: Interval
    spread: float
    """The largest of both sides' standard deviations over seeds and the one pooled over all entries of the grid: two
    or three seeds of one entry may lie close together by luck."""

    @property
    def verdict(self) -> Verdict:
        """`shown` or `reversed` only where the gap exceeds `SPREADS` spreads and its interval leaves out 0."""
        counts = abs(self.gap.value) > SPREADS * self.spread and not self.gap.low <= 0 <= self.gap.high
        if not counts:
            return "not shown"
        return "shown" if self.gap.value > 0 else "reversed"


def compare(report: Report, found: Order) -> Comparison | None:
    """None where a side has too few seeds."""
    if found.gap is None:
        return None
    better, worse = (report.entries[side].figures[DECIDES] for side in (found.better, found.worse))
    spread = max(pooled_spread(report.entries.values()), better.spread, worse.spread)
    return Comparison(Interval(better.mean - worse.mean, *found.gap), spread)


def pooled_spread(results: Iterable[Result]) -> float:
    """The standard deviation over seeds, its square averaged over entries by their degrees of freedom."""
    several = [result.figures[DECIDES] for result in results if len(result.seeds) >= LEAST_SEEDS]
    squares = sum((len(figure.values) - 1) * figure.spread**2 for figure in several)
    return math.sqrt(squares / sum(len(figure.values) - 1 for figure in several)) if several else math.nan


def tables(report: Report) -> str:
    """Two tables in Markdown: the entries, and what became of the papers' orders."""
    several = any(result.centers is not None for result in report.entries.values())
    head = ["", "seeds", f"1 − FNMR at FMR {report.fmr:g}", "95 % over people", "Recall@1"]
    head += ["centres kept"] if several else []
    lines = [*_head(head), *(_line(_cells(result, several)) for result in report.entries.values())]
    if report.orders:
        lines += ["", *_head(["order in the paper", "gap", "95 % over people", "3 × spread", "here"])]
        lines += [_line(_ordered(report, found)) for found in report.orders]
    return "\n".join(lines) + "\n"


def _cells(result: Result, several: bool) -> list[str]:
    if not result.seeds:
        return [result.says, "0", "not run", *[""] * (3 if several else 2)]
    figure = result.figures[DECIDES]
    cells = [result.says + (f" ({result.warned} of {len(result.seeds)} runs warned)" if result.warned else "")]
    cells += [str(len(result.seeds)), _with_spread(figure), f"{figure.low:.3f} to {figure.high:.3f}"]
    cells += [_with_spread(result.figures["recall"])]
    return cells + (["" if result.centers is None else f"{result.centers:.2f}"] if several else [])


def _ordered(report: Report, found: Order) -> list[str]:
    sides = [report.entries[side] for side in (found.better, found.worse)]
    what = f"{sides[0].says} > {sides[1].says} ({found.source})"
    known = compare(report, found)
    if known is None:
        least = min(len(side.seeds) for side in sides)
        return [what, "", "", "", "one seed, not compared" if least else "not run"]
    gap = known.gap
    spread = f"{SPREADS * known.spread:.3f}"
    return [what, f"{gap.value:+.3f}", f"{gap.low:+.3f} to {gap.high:+.3f}", spread, known.verdict]


def _with_spread(figure: Figure) -> str:
    return f"{figure.mean:.3f} ± {figure.spread:.3f}" if len(figure.values) > 1 else f"{figure.mean:.3f}"


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "|---" * len(cells) + "|"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def put_tables(document: Path, name: str, text: str) -> None:
    """Replaces what stands in `document` between the lines `<!-- NAME -->` and `<!-- end -->`.

    Raises InvalidInput (`invalid_document`) where there are no such lines.
    """
    before, opening, rest = document.read_text("utf-8").partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition("<!-- end -->")
    if not opening or not closing:
        raise InvalidInput(f"{document} has no place for {name}.", code="invalid_document")
    document.write_text(f"{before}{opening}\n{text}\n{closing}{after}", "utf-8")
