"""`python -m training evaluate ijb`: the protocols of IJB-B and IJB-C, for those who have the data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from app.face.align import align
from app.stages import Stages, pixels_of
from training.commands import options
from training.evaluation import ijb as measuring
from training.evaluation import metrics, plots, protocols
from training.evaluation.metrics import Curve
from training.evaluation.photos import Embed
from training.evaluation.results import show_ijb, write_found
from training.terminal import told


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
            def one(name: str) -> tuple[np.ndarray, float]:
                photo = pixels_of((folder / "loose_crop" / name).read_bytes())
                return stages.embed_pixels(align(photo, landmarks[name])), 100.0

            return one

        made = options.read_or_embed(folder, faces.names, way, embed)
        pooled = measuring.pool(made, protocol, by_score=by_score)
        figures = measuring.measure(pooled, protocol, rounds=rounds, seed=seed)
        scores, mated = measuring.pair_scores(pooled, protocol), protocol.pairs[:, 2] == 1
        points = protocols.curve_points(metrics.error_curve(scores[mated], scores[~mated]))
        settings = {"folder": str(folder), "by_score": by_score, "rounds": rounds, "flip": way.flip}
        found = figures.identification
        result = {
            "templates": figures.templates,
            "templates_without_face": figures.templates_without_face,
            "mated": figures.mated,
            "nonmated": figures.nonmated,
            "match_rates": figures.match_rates,
            "det": points,
            "identification": {"summary": found.summary, "cmc": found.cmc, "galleries": found.draws},
        }
        write_found(out, "ijb", made, settings, result)
        if draw:
            threshold, fmr, fnmr = np.array(points).T
            plots.det({made.package: Curve(threshold, fmr, fnmr)}, out / "det.svg")
        show_ijb(made, figures)
