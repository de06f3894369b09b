"""Show and write the results of `training.commands.evaluate`: tables, ``result.json``, ``scores.csv``."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.models.calibration import operating_points as points
from app.models.calibration.intervals import Floats, Interval
from app.package.cards import Condition
from training.evaluation import identification as searching
from training.evaluation import ijb, metrics, protocols
from training.evaluation.groups import SPREAD_FMR, GroupFigures
from training.evaluation.pairs import PairList
from training.evaluation.photos import Templates
from training.evaluation.speed import Speed
from training.evaluation.stages.turning import ALL_TURNED, FPIR, MATCH_FMR, STRANGER_FMR, Beside, Turned, together


def _plain(value: object) -> Any:
    """Turn dataclasses and mappings into JSON values; numbers that JSON can't hold become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write(out: Path, document: Mapping[str, object]) -> None:
    """Write ``result.json`` in `out`, which is created if missing."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    (out / "result.json").write_text(text + "\n", encoding="utf-8")


def write_found(
    out: Path, kind: str, made: Templates, settings: Mapping[str, object], figures: Mapping[str, object]
) -> None:
    """Write a result with its package, settings and photos."""
    photos = {"count": len(made.names), "seconds": round(made.seconds, 1), "failures": dict(made.failures)}
    write(out, {"kind": kind, "package": made.package, "settings": settings, "photos": photos, **figures})


def write_scores(path: Path, listed: PairList, scores: Floats) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["first", "second", "mated", "fold", "score"])
        for pair, score in zip(listed.pairs, scores.tolist(), strict=True):
            writer.writerow([pair.first, pair.second, int(pair.mated), pair.fold, f"{score:.7f}"])


def percent(share: float) -> str:
    return f"{100 * share:.2f} %" if math.isfinite(share) else "-"


def interval(figure: Interval | None) -> str:
    return "" if figure is None else f"[{100 * figure.low:.2f}, {100 * figure.high:.2f}]"


def show_verification(made: Templates, figures: protocols.Verification) -> None:
    table = Table(
        "figure", "value", "95 % interval", title=f"{made.package}: {figures.mated} + {figures.nonmated} pairs"
    )
    if figures.accuracy is not None:
        mean, deviation = figures.accuracy.mean, figures.accuracy.deviation
        table.add_row(
            f"accuracy over {len(figures.accuracy.folds)} folds",
            f"{percent(mean)} ± {percent(deviation)}",
            interval(figures.accuracy_interval),
        )
    table.add_row("accuracy at these pairs' own best threshold", percent(figures.best_accuracy), "")
    table.add_row("equal error rate", percent(figures.equal_error_rate), interval(figures.equal_error_rate_interval))
    for rate in figures.match_rates:
        table.add_row(f"1 − FNMR at FMR {rate.at:g}", percent(rate.match.value), interval(rate.match))
    table.add_row("photos without a face", f"{len(figures.photos_without_face)} of {figures.photos}", "")
    table.add_row("pairs refused for that", str(figures.pairs_without_face), "")
    Console().print(table)


def show_identification(made: Templates, figures: searching.Identifications) -> None:
    first = figures.draws[0]
    title = (
        f"{made.package}: {first.subjects} enrolled, {first.mated_searches} searches of theirs, "
        f"{first.stranger_searches} of strangers, {len(figures.draws)} draws"
    )
    table = Table("figure", "mean", "95 % interval", "deviation", "least", "most", title=title)
    for name, row in figures.summary.items():
        spread = (row.deviation, row.least, row.most)
        table.add_row(name, percent(row.mean), interval(row.interval), *map(percent, spread))
    Console().print(table)


def show_ijb(made: Templates, figures: ijb.Figures) -> None:
    title = f"{made.package}: {figures.mated:,} + {figures.nonmated:,} pairs of {figures.templates:,} templates"
    table = Table("figure", "value", "95 % interval", title=title)
    for rate in figures.match_rates:
        fnmr = Interval(1 - rate.match.value, 1 - rate.match.high, 1 - rate.match.low)
        table.add_row(f"FNMR at FMR {rate.at:g}", percent(fnmr.value), interval(fnmr))
    table.add_row("templates without a face", str(figures.templates_without_face), "")
    Console().print(table)
    show_identification(made, figures.identification)


def show_points(package: str, about: str, used: points.Measurement, plain: points.Measurement) -> None:
    apart = {point.fmr: point for point in plain.points}
    table = Table("FMR", "threshold", "95 % interval", "false matches", "FNMR", "95 % interval", "all names apart")
    for point in used.points:
        table.add_row(
            f"{point.fmr:g}",
            f"{point.threshold.value:.4f}",
            f"[{point.threshold.low:.4f}, {point.threshold.high:.4f}]",
            f"{point.false_matches:,}",
            percent(point.fnmr.value),
            interval(point.fnmr),
            f"{apart[point.fmr].threshold.value:.4f}" if point.fmr in apart else "",
        )
    Console().print(f"{package}: {about}; {used.comparisons:,} non-mated, {len(used.pairs.mated):,} mated pairs")
    Console().print(table)


def show_quality(study: metrics.Discarding) -> None:
    title = f"mated pairs dropped by quality, threshold {study.threshold:.4f}"
    table = Table("dropped", "quality up to", "FNMR", "errors", "pairs left", "FNMR at best", title=title)
    for row, best, reached in zip(study.by_quality, study.at_best, study.qualities, strict=True):
        cells = (f"{reached:.1f}", percent(row.fnmr), str(row.errors), str(row.pairs), percent(best.fnmr))
        table.add_row(f"{100 * row.share:g} %", *cells)
    Console().print(table)


def show_retrieval(made: Templates, figures: Mapping[str, Interval]) -> None:
    title = f"{made.package}: retrieval among {len(made.names):,} photos"
    table = Table("figure", "value", "95 % interval", title=title)
    for name, figure in figures.items():
        table.add_row(name, percent(figure.value), interval(figure))
    Console().print(table)


def show_speed(rows: Sequence[Speed]) -> None:
    table = Table("package", "batch", "ms a face", "times as fast", "middle half of the rounds")
    for row in rows:
        spread = f"{row.ratio.low:.2f}-{row.ratio.high:.2f}"
        table.add_row(row.package, str(row.batch), f"{row.milliseconds:.2f}", f"{row.ratio.value:.2f}", spread)
    Console().print(table)


def show_compared(figures: Mapping[str, Any]) -> None:
    """Show a row for each run, from the ``verification`` of its ``result.json``."""
    table = Table("run", "accuracy", "EER", "1 − FNMR at FMR 1e-3", "no face")
    for label, run in figures.items():
        accuracy = run["accuracy"]
        rate = next((rate for rate in run["match_rates"] if math.isclose(rate["at"], 1e-3)), None)
        table.add_row(
            label,
            f"{percent(accuracy['mean'])} ± {percent(accuracy['deviation'])}" if accuracy else "-",
            percent(run["equal_error_rate"]),
            f"{percent(rate['match']['value'])} {interval(Interval(**rate['match']))}" if rate else "-",
            str(len(run["photos_without_face"])),
        )
    Console().print(table)


def show_groups(package: str, figures: Sequence[GroupFigures]) -> None:
    table = Table("group", "photos", "pairs", *(f"FMR {rate.fmr:g}" for rate in figures[0].rates), title=package)
    for group in figures:
        cells = (
            f"{'* ' if rate.exceeds else ''}{rate.rate.value:.2g} [{rate.rate.low:.2g}, {rate.rate.high:.2g}]"
            for rate in group.rates
        )
        table.add_row(group.name, f"{group.photos:,}", f"{group.comparisons:,}", *cells)
    Console().print(table)
    Console().print("* the stated rate does not hold: all of the 95 % interval lies above it")


def show_spread(
    spreads: Mapping[str, Mapping[str, float]],
    apart: Mapping[str, Mapping[str, Sequence[float]]],
    fmrs: Sequence[float],
) -> None:
    """Show each package's FMR by group at the same mean, the ratio of highest to lowest, and FMR by years apart."""
    table = Table("group", *spreads, title=f"FMR where its mean over the groups is {100 * SPREAD_FMR:g} %")
    for name in next(iter(spreads.values())):
        table.add_row(name, *(f"{rates_of[name]:.2g}" if name in rates_of else "" for rates_of in spreads.values()))
    ratios = (
        max(rates_of.values(), default=0) / max(min(rates_of.values(), default=1), 1e-9)
        for rates_of in spreads.values()
    )
    table.add_row("highest over lowest", *(f"{ratio:.1f}" for ratio in ratios))
    Console().print(table)
    for who, rates in apart.items():
        table = Table("ages", *(f"FMR {fmr:g}" for fmr in fmrs), title=f"{who}, by the years between two people")
        for name, values in rates.items():
            table.add_row(name, *(f"{value:.2g}" for value in values))
        Console().print(table)


def show_turned(package: str, figures: Sequence[Turned], beside: Sequence[Beside]) -> None:
    columns = ("turned by", "found", "unalignable", "matches itself", "made up", "enrolled", "mated match", "strangers")
    table = Table(*columns, "one upright", "strangers find", title=package)
    rows = [(f"{row.degrees}°", row) for row in figures]
    if beside:
        rows.append((ALL_TURNED, together(figures)))
    for name, row in rows:
        table.add_row(
            name,
            f"{row.found} of {row.photos}",
            str(row.unalignable),
            f"{row.with_itself / row.photos:.1%}",
            str(row.made_up),
            str(row.made_up_enrolled),
            f"{row.mated_matches} of {row.mated}",
            f"{row.false_matches} of {row.strangers}",
            f"{row.mixed_matches} of {row.mixed}",
            f"{row.false_finds} of {row.searches}",
        )
    Console().print(table)
    rates = f"FMR {STRANGER_FMR:g}", f"FMR {STRANGER_FMR:g}, one upright", f"FPIR {FPIR:g}"
    table = Table(
        "turned by", f"mated match, FMR {MATCH_FMR:g}", *rates, title="times as often as upright (95 % over people)"
    )
    for turned in beside:
        table.add_row(
            turned.turned_by, *map(_multiple, (turned.mated, turned.strangers, turned.mixed, turned.searches))
        )
    Console().print(table)


def _multiple(times: Interval | None) -> str:
    return "" if times is None else f"{times.value:.2f} ({times.low:.2f}-{times.high:.2f})"


def show_conditions(package: str, figures: Sequence[Condition]) -> None:
    stated = [rate.fmr for rate in figures[0].rates]
    table = Table("condition", "without face", *(f"FNMR, FMR at {fmr:g}" for fmr in stated), title=package)
    for condition in figures:
        cells = (f"{rate.fnmr.value:.2%}, {rate.found.value:.2g}" for rate in condition.rates)
        table.add_row(condition.name, f"{condition.without_face} of {condition.photos}", *cells)
    Console().print(table)
