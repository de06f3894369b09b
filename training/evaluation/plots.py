"""Plots of scores and curves; never of faces. matplotlib is imported when something is drawn.

The path's extension chooses the format: .svg (small, for documents) or .png.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from app.models.calibration.intervals import Floats, Interval, Ints
from app.models.calibration.pairs import HISTOGRAM_BINS
from training.evaluation.metrics import Curve, Discard
from training.evaluation.protocols import curve_points
from training.evaluation.stages.turning import FPIR, MATCH_FMR, STRANGER_FMR, Turned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES = (6.4, 4.2)
BINS = 120


def _figure() -> tuple[Figure, Axes]:
    """Return a figure outside of pyplot's global state; saving it needs no display."""
    from matplotlib.figure import Figure  # noqa: PLC0415  only drawing needs matplotlib

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    from matplotlib import rc_context  # noqa: PLC0415  only drawing needs matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and fixed ids, so that the same curves give the same bytes.
    options: dict[str, Any] = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    with rc_context({"svg.hashsalt": "likeness"}):
        figure.savefig(path, **options)


def det(curves: Mapping[str, Curve], path: Path) -> None:
    """Draw FNMR over FMR, both logarithmic (ISO/IEC 19795-1)."""
    figure, axes = _figure()
    anything = False
    for name, curve in curves.items():
        _, fmr, fnmr = np.array(curve_points(curve)).T
        shown = (fmr > 0) & (fnmr > 0)
        anything |= bool(shown.any())
        axes.plot(fmr[shown], fnmr[shown], drawstyle="steps-post", label=name)
    # Zero has no logarithm.
    scale = "log" if anything else "linear"
    axes.set(xscale=scale, yscale=scale, xlabel="false match rate", ylabel="false non-match rate")
    axes.legend()
    _save(figure, path)


def cmc(shares: Sequence[Interval], path: Path) -> None:
    """Draw the share of searches whose person is found at rank 1, 2, … or better, with its interval as a band."""
    figure, axes = _figure()
    ranks = range(1, len(shares) + 1)
    axes.fill_between(ranks, [share.low for share in shares], [share.high for share in shares], alpha=0.25)
    axes.plot(ranks, [share.value for share in shares], marker="o", markersize=3)
    axes.set_xticks(list(ranks))
    axes.set(xlabel="rank", ylabel="found at this rank or better")
    _save(figure, path)


def fnir(curves: Sequence[Curve], rates: Mapping[float, Interval], path: Path) -> None:
    """Draw FNIR over a logarithmic FPIR: a thin line for each draw of people, and at each of ``rates``, by FPIR, the
    mean with its interval."""
    figure, axes = _figure()
    for curve in curves:
        _, fpir, missed = np.array(curve_points(curve)).T
        axes.plot(fpir[fpir > 0], missed[fpir > 0], drawstyle="steps-post", color="C0", alpha=0.4, linewidth=0.8)
    for at, rate in rates.items():
        # Error bars can't be negative, but a bootstrap's interval may not contain its figure.
        arms = np.maximum([[rate.value - rate.low], [rate.high - rate.value]], 0)
        axes.errorbar(at, rate.value, arms, fmt="o", color="C1", capsize=3)
    # Without strangers there are no rates.
    axes.set_xscale("log" if curves else "linear")
    axes.set(xlabel="false positive identification rate", ylabel="false negative identification rate")
    _save(figure, path)


def score_histogram(mated: ArrayLike, nonmated: ArrayLike, path: Path, thresholds: Mapping[str, float]) -> None:
    """Draw mated and non-mated scores as densities, with named thresholds."""
    counts, edges = np.histogram(np.asarray(nonmated), BINS, (-1, 1))
    _histogram(counts, edges, mated, path, thresholds)


def counted_histogram(histogram: Ints, mated: ArrayLike, path: Path, thresholds: Mapping[str, float]) -> None:
    """Draw mated and non-mated scores, the latter from a histogram of `app.models.calibration.pairs.AllPairs`."""
    counts = histogram.reshape(-1, HISTOGRAM_BINS // 200).sum(axis=1)
    _histogram(counts, np.linspace(-1, 1, len(counts) + 1), mated, path, thresholds)


def _histogram(counts: Ints, edges: Floats, mated: ArrayLike, path: Path, thresholds: Mapping[str, float]) -> None:
    figure, axes = _figure()
    axes.stairs(counts / counts.sum() / np.diff(edges), edges, fill=True, alpha=0.6, label="non-mated")
    axes.hist(np.asarray(mated), edges.tolist(), density=True, alpha=0.6, label="mated")
    for name, threshold in thresholds.items():
        axes.axvline(threshold, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(name, (threshold, 1), xycoords=("data", "axes fraction"), rotation=90, va="top", fontsize=7)
    axes.set(xlabel="score (cosine)", ylabel="density", yscale="log")
    axes.legend()
    _save(figure, path)


def discard(rows: Sequence[Discard], fmr: float, path: Path) -> None:
    """Draw FNMR over the share of mated pairs that is dropped."""
    figure, axes = _figure()
    shares, rates = zip(*((100 * row.share, max(row.fnmr, 1e-5)) for row in rows), strict=True)
    axes.plot(shares, rates, marker="o", markersize=3)
    axes.set(xlabel="mated pairs dropped, worst quality first (%)", ylabel=f"FNMR at FMR {fmr:g}", yscale="log")
    _save(figure, path)


def turned(figures: Sequence[Turned], path: Path) -> None:
    """Draw two figures over the angle of turned photos: the share of mated pairs that match, and how often strangers
    match, as a multiple of the stated rates."""
    figure, axes = _figure()
    degrees = [row.degrees for row in figures]
    matching = [100 * row.mated_matches / max(1, row.mated) for row in figures]
    axes.plot(degrees, matching, marker="o", markersize=3, label=f"mated pairs match at FMR {MATCH_FMR:g} (%)")
    axes.set(xlabel="turned by (degrees)", ylabel="mated pairs match (%)", ylim=(0, 101), xticks=range(0, 361, 45))
    beside = axes.twinx()
    pairs = [row.false_matches / max(1, row.strangers) / STRANGER_FMR for row in figures]
    searches = [row.false_finds / max(1, row.searches) / FPIR for row in figures]
    beside.plot(degrees, pairs, marker="s", markersize=3, color="C1", label=f"pairs of strangers, FMR {STRANGER_FMR:g}")
    beside.plot(degrees, searches, marker="^", markersize=3, color="C2", label=f"strangers who search, FPIR {FPIR:g}")
    beside.set(ylabel="found / stated", ylim=(0, 2))
    figure.legend(loc="outside upper center", ncols=3, fontsize=7)
    _save(figure, path)
