"""`python -m training evaluate …`: measure how well a model package recognises people, with the service's own pipeline.

Needs no torch. Each command writes ``result.json`` (and plots) into ``--out`` and prints a table. Templates can be kept
in a file (``--templates``), so that the next command need not make them again.
"""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from app.face.align import align
from app.machine import cores
from app.models.calibration import operating_points as points
from app.models.calibration.fusion import measure_fusion
from app.models.opening import open_embedder
from app.models.packages import with_golden, write_manifest
from app.models.stages import Stages, pixels_of
from app.package.folders import load_package
from app.package.manifest import Calibration, Manifest
from training.commands import options
from training.commands.cards import conditions, groups, turned
from training.commands.liveness import evaluate_liveness
from training.evaluation import identification as searching
from training.evaluation import ijb as measuring
from training.evaluation import metrics, plots, protocols
from training.evaluation.bootstrap import ROUNDS
from training.evaluation.metrics import Curve
from training.evaluation.pairs import person_of
from training.evaluation.photos import Embed
from training.evaluation.results import (
    show_compared,
    show_identification,
    show_ijb,
    show_points,
    show_quality,
    show_retrieval,
    show_speed,
    show_verification,
    write,
    write_found,
    write_scores,
)
from training.evaluation.speed import compare_speed
from training.packages import MODELS, find_package
from training.terminal import counted, told

app = typer.Typer(no_args_is_help=True, help="Measure a model package. Needs no torch.", pretty_exceptions_enable=False)
app.command()(conditions)
app.command()(groups)
app.command()(turned)
app.command("liveness")(evaluate_liveness)


@app.command()
@options.with_template_options()
def pairs(
    way: options.TemplateOptions,
    *,
    out: options.Out,
    images: Annotated[Path | None, typer.Option(help=options.IMAGES_HELP)] = None,
    pairs: Annotated[list[Path] | None, typer.Option(help="LFW pair list; several are joined.")] = None,
    pack: Annotated[
        Path | None, typer.Option(help="Verification pack (lfw.bin …) of aligned crops, in place of --images, --pairs.")
    ] = None,
    protocol: Annotated[options.PairProtocol, typer.Option(help="auto: lfw where the list has folds.")] = "auto",
    folds: Annotated[
        int, typer.Option(help="With --protocol lfw and a list without folds: how many to cut it in.")
    ] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the bootstrap over people.")] = ROUNDS,
    seed: int = 0,
    draw: options.Plots = True,
) -> None:
    """1:1 over a list of pairs: accuracy, EER, 1 − FNMR at FMRs with intervals, failures to detect."""
    with told(ValueError, OSError):
        source, listed = options.photos_and_pairs(images, pairs or [], pack)
        way = replace(way, aligned=way.aligned or pack is not None)
        made = options.read_or_make_templates(source, listed.photos, way)
        figures = protocols.verification(
            made, listed, folds=options.fold_of_each_pair(listed, protocol, folds), rounds=rounds, seed=seed
        )
        scores, mated = protocols.pair_scores(made, listed), listed.mated
        curve = metrics.error_curve(scores[mated], scores[~mated])
        lists = [str(path) for path in pairs or []]
        settings = {"images": str(source), "pairs": lists, "rounds": rounds, "flip": way.flip, "aligned": way.aligned}
        write_found(
            out,
            "verification",
            made,
            settings,
            {"verification": figures, "det": protocols.curve_points(curve)},
        )
        write_scores(out / "scores.csv", listed, scores)
        if draw:
            plots.det({made.package: curve}, out / "det.svg")
            marks = {f"FMR {rate.at:g}": rate.threshold for rate in figures.match_rates}
            plots.score_histogram(scores[mated], scores[~mated], out / "scores.svg", marks)
        show_verification(made, figures)


@app.command()
@options.with_template_options()
def identification(
    way: options.TemplateOptions,
    *,
    images: options.Images,
    out: options.Out,
    people: Annotated[int, typer.Option(help="How many people are enrolled, with one photo each.")] = 500,
    seeds: Annotated[int, typer.Option(min=1, help="How many draws of people (seeds 0, 1, …).")] = 10,
    strangers: Annotated[int, typer.Option(help="People not enrolled who search, one photo each; 0 = all.")] = 0,
    photos_of: options.PhotosOf = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the bootstrap over people.")] = ROUNDS,
    draw: options.Plots = True,
) -> None:
    """1:N with one enrolled photo per person: rank-1, CMC, FNIR at FPIR with strangers."""
    with told(ValueError, OSError):
        made = options.templates_of(images, photos_of or [], way)
        draws = [searching.draw_people(made.names, people, seed, strangers or None) for seed in range(seeds)]
        stated = options.service_threshold(way.folder, people)
        searched = searching.measure(made, draws, service_threshold=stated, rounds=rounds)
        settings = {
            "images": str(images),
            "people": people,
            "seeds": seeds,
            "photos": len(made.names),
            "rounds": rounds,
            "flip": way.flip,
        }
        result = {"summary": searched.summary, "cmc": searched.cmc, "draws": searched.draws}
        write_found(out, "identification", made, settings, result)
        if draw:
            plots.cmc(searched.cmc, out / "cmc.svg")
            rates = {
                rate.at: searched.summary[f"FNIR at FPIR {rate.at:g}"].interval
                for rate in searched.draws[0].match_rates
            }
            plots.fnir(searched.curves, rates, out / "fnir.svg")
        show_identification(made, searched)


@app.command()
@options.with_template_options()
def retrieval(
    way: options.TemplateOptions,
    *,
    images: options.Images,
    out: options.Out,
    photos_of: options.PhotosOf = None,
    nmi: Annotated[
        bool, typer.Option("--nmi", help="Also NMI of k-means clusters (slow; needs scikit-learn).")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the bootstrap over people.")] = ROUNDS,
    seed: int = 0,
) -> None:
    """Recall@k, MAP@R, R-precision (and NMI) of a set of photos, as metric-learning papers report them."""
    with told(ValueError, OSError):
        made = options.templates_of(images, photos_of or [], way)
        people = points.number_people([person_of(name) for name in made.names])
        figures = protocols.retrieval_figures(made.vectors, people, rounds=rounds, seed=seed, nmi=nmi)
        settings = {"images": str(images), "photos": len(made.names), "rounds": rounds, "flip": way.flip}
        write_found(out, "retrieval", made, settings, {"retrieval": figures})
        show_retrieval(made, figures)


@app.command(name="operating-points")
@options.with_template_options()
def operating_points(
    way: options.TemplateOptions,
    *,
    images: options.Images,
    out: options.Out,
    name: Annotated[str, typer.Option(help="What the calibration is called in the manifest.")],
    measured_on: Annotated[str, typer.Option(help="One sentence for the manifest: which photos.")],
    photos_of: options.PhotosOf = None,
    same_above: Annotated[
        float | None,
        typer.Option(
            help="Leave out pairs of people who are one person under two names: those whose photos' mean score is at "
            "or above this (docs/explanation/accuracy.md); by default nobody's."
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Put the calibration into the package's manifest.")] = False,
    default: Annotated[bool, typer.Option("--default", help="Make it the package's default calibration.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the bootstrap over people.")] = points.ROUNDS,
    seed: int = 0,
    draw: options.Plots = True,
) -> None:
    """Measure thresholds at FMRs on all non-mated pairs of a set, and the FNMRs; write them into the manifest."""
    with told(ValueError, OSError):
        made = options.templates_of(images, photos_of or [], way)
        shown = made.with_face()
        vectors, people = shown.vectors, points.number_people([person_of(photo) for photo in shown.names])
        with counted("comparing", len(vectors)) as advance:
            compared = points.compare_all(vectors, people, progress=advance)
        same = None if same_above is None else points.same_people(vectors, people, compared, above=same_above)
        plain = points.measure(compared, people, rounds=rounds, seed=seed)
        used = plain if same is None else points.measure(compared, people, same=same, rounds=rounds, seed=seed)
        about = f"all pairs of {len(vectors)} photos of {int(people.max()) + 1} people"
        if same is not None:
            about += (
                f", without {len(same.keys)} that show one person: {same.people} pairs of names, "
                f"{same.photos} photos in another's folder, {same.copies} copies of a photo"
            )
        settings = {"images": str(images), "same_above": same_above, "rounds": rounds, "seed": seed, "flip": way.flip}
        result = {
            "about": about,
            "comparisons": used.comparisons,
            "mated": len(compared.mated),
            "points": used.points,
            "points_with_all_names_apart": plain.points,
            "highest_left_out": [float(score) for score in compared.top.score[used.left_out][:20]],
            "highest_kept": [float(score) for score in compared.top.score[~used.left_out][:20]],
        }
        write_found(out, "operating_points", made, settings, result)
        if draw:
            marks = {f"FMR {point.fmr:g}": point.threshold.value for point in used.points}
            plots.counted_histogram(compared.histogram, compared.mated, out / "scores.svg", marks)
        show_points(made.package, about, used, plain)
        if write:
            facts = {"name": name, "measured_on": measured_on, "pairs": about}
            fusion = measure_fusion(vectors, people, same=same or points.NOBODY)
            new = points.calibration(used, **facts, default=default, fusion=fusion)
            package = load_package(way.folder)
            manifest = with_golden(
                package.manifest, lambda crops: open_embedder(package, way.cache, way.device).run(crops)
            )
            write_manifest(way.folder, with_calibration(manifest, new))
            Console().print(f"Written to {way.folder}/manifest.json")


def with_calibration(manifest: Manifest, new: Calibration) -> Manifest:
    """Return the manifest with ``new`` in place of the calibration of that name, or added to the others.

    If ``new`` is the default, the others no longer are. A calibration without others is always the default.
    """
    new = manifest.bind(new)
    others = [calibration for calibration in manifest.calibrations if calibration.name != new.name]
    if new.default:
        others = [calibration.model_copy(update={"default": False}) for calibration in others]
    elif not any(calibration.default for calibration in others):
        new = new.model_copy(update={"default": True})
    calibrations = tuple(sorted([*others, new], key=lambda calibration: calibration.name))
    # model_copy doesn't validate, so validate here.
    return Manifest.model_validate_json(manifest.model_copy(update={"calibrations": calibrations}).model_dump_json())


@app.command()
@options.with_template_options("aligned")
def quality(
    way: options.TemplateOptions,
    *,
    images: options.Images,
    out: options.Out,
    photos_of: options.PhotosOf = None,
    fmr: Annotated[float, typer.Option(help="The FMR whose threshold decides, from these photos' own pairs.")] = 1e-3,
    draw: options.Plots = True,
) -> None:
    """Error versus discard by quality: FNMR of the remaining pairs when those of the worst quality are dropped."""
    with told(ValueError, OSError):
        made = options.templates_of(images, photos_of or [], way)
        shown = made.with_face()
        people = points.number_people([person_of(name) for name in shown.names])
        compared = points.compare_all(shown.vectors, people, highest_fmr=fmr)
        threshold = compared.threshold(fmr)
        study = metrics.discarding_of(compared, shown.quality.astype(np.float64), threshold)
        settings = {"images": str(images), "photos": len(made.names), "fmr": fmr, "flip": way.flip}
        result = {
            "threshold": threshold,
            "mated": len(compared.mated),
            "qualities": {f"{share:g}": float(np.quantile(shown.quality, share)) for share in metrics.SHARES},
            "discard": study,
        }
        write_found(out, "quality", made, settings, result)
        if draw:
            plots.discard(study.by_quality, fmr, out / "discard.svg")
        show_quality(study)


@app.command()
def speed(
    *,
    packages: Annotated[
        list[str], typer.Argument(help="Embedder packages; the first is what the others are compared to.")
    ],
    out: options.Out,
    batches: Annotated[list[int] | None, typer.Option("--batch", help="Crops a call; may be given again.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds in which each package has its turn.")] = 25,
    threads: Annotated[int, typer.Option(help="Threads on each call.")] = 1,
    models: options.Models = MODELS,
    cache: options.Cache = options.CACHE,
    device: options.OnDevice = "cpu",
) -> None:
    """Milliseconds per face of several packages, measured in turns on the same crops."""
    with told(ValueError, OSError):
        chosen = [find_package(name, models) for name in packages]
        opened = [open_embedder(package, cache, device, threads) for package in chosen]
        sessions = {session.package_id: session for session in opened}
        sizes = batches or [1, 4]
        with counted("timing", len(sizes) * (rounds + 1) * len(sessions)) as advance:
            timed = [compare_speed(sessions, size, rounds=rounds, progress=advance) for size in sizes]
        rows = [row for table in timed for row in table]
        show_speed(rows)
        machine = {"processor": platform.processor() or platform.machine(), "cores": cores(), "threads": threads}
        write(out, {"kind": "speed", "machine": machine, "rounds": rounds, "device": device, "speed": rows})


@app.command()
def compare(
    results: Annotated[list[Path], typer.Argument(help="result.json of `evaluate pairs`, two or more.")],
    out: Annotated[Path, typer.Option(help="The picture to draw: .svg or .png.")],
    labels: Annotated[list[str] | None, typer.Option(help="A label for each, in order.")] = None,
) -> None:
    """Show several runs of `evaluate pairs` in one DET plot and one table."""
    with told(ValueError, OSError):
        if labels and len(labels) != len(results):
            raise ValueError(f"{len(results)} results and {len(labels)} labels: give one label for each")
        curves: dict[str, Curve] = {}
        figures: dict[str, Any] = {}
        for i, path in enumerate(results):
            found = json.loads(path.read_text(encoding="utf-8"))
            if found.get("kind") != "verification":
                raise ValueError(f"{path} is no result of `evaluate pairs`")
            label = labels[i] if labels else f"{path.parent.name} ({found['package']})"
            curves[label] = Curve(*np.array(found["det"], np.float64).T)
            figures[label] = found["verification"]
        plots.det(curves, out)
        show_compared(figures)


@app.command()
@options.with_template_options("aligned")
def ijb(
    way: options.TemplateOptions,
    *,
    folder: Annotated[Path, typer.Option(help="Folder of IJB-B or IJB-C with loose_crop/ and meta/.")],
    out: options.Out,
    by_score: Annotated[
        bool, typer.Option("--by-score", help="Weigh each face by its detector's score, as InsightFace does.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the bootstrap over people.")] = 200,
    seed: int = 0,
    draw: options.Plots = True,
) -> None:
    """IJB-B or IJB-C: 1 − FNMR over the listed pairs of templates, FNIR at FPIR 0.01 and 0.003 in both galleries."""
    with told(ValueError, OSError):
        protocol = measuring.read_protocol(folder)
        faces = protocol.faces
        landmarks = dict(zip(faces.names, faces.landmarks, strict=True))

        def embed(stages: Stages) -> Embed:
            def embed_name(name: str) -> tuple[np.ndarray, float]:
                photo = pixels_of((folder / "loose_crop" / name).read_bytes())
                return stages.embed_pixels(align(photo, landmarks[name])), 100.0

            return embed_name

        made = options.read_or_embed(folder, faces.names, way, embed)
        pooled = measuring.pool(made, protocol, by_score=by_score)
        figures = measuring.measure(pooled, protocol, rounds=rounds, seed=seed)
        scores, mated = measuring.pair_scores(pooled, protocol), protocol.pairs[:, 2] == 1
        curve = metrics.error_curve(scores[mated], scores[~mated])
        settings = {"folder": str(folder), "by_score": by_score, "rounds": rounds, "flip": way.flip}
        searched = figures.identification
        result = {
            "templates": figures.templates,
            "templates_without_face": figures.templates_without_face,
            "mated": figures.mated,
            "nonmated": figures.nonmated,
            "match_rates": figures.match_rates,
            "det": protocols.curve_points(curve),
            "identification": {"summary": searched.summary, "cmc": searched.cmc, "galleries": searched.draws},
        }
        write_found(out, "ijb", made, settings, result)
        if draw:
            plots.det({made.package: curve}, out / "det.svg")
        show_ijb(made, figures)
