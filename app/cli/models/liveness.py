"""`likeness models add --task liveness`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from app.cli import options, output

if TYPE_CHECKING:
    from app.adding.add import AddedLiveness
    from app.adding.new_package import NewPackage
    from app.adding.presets import Stated
    from app.inference.manifest import LivenessCut

CUTS = {"square": ("square", "reflect", "area"), "box": ("box", "move", "linear")}
"""Two ways to cut around a face: a square that is mirrored beyond the photo's edge, and the box's own proportions,
moved into the photo. They are those that facenox's and minivision's models were trained with."""


def stated_of(cut: str | None, scale: float | None, classes: str | None) -> tuple[LivenessCut, tuple[str, ...]]:
    """Return what the options of `likeness models add` say. Raises BadParameter."""
    from app.inference.manifest import LivenessCut  # noqa: PLC0415 - slow to import

    if cut is None or scale is None or classes is None:
        message = "what the model is shown and answers is not in its file: give all three, as it was trained"
        raise typer.BadParameter(message, param_hint="--cut, --scale, --classes")
    names = tuple(one.strip() for one in classes.split(","))
    for one in names:
        options.check_name(one, "--classes")
    shape, edge, resize = CUTS[cut]
    shown = LivenessCut.model_validate({"scale": scale, "shape": shape, "edge": edge, "resize": resize})
    return shown, names


def add(
    new: NewPackage, cut: LivenessCut, classes: tuple[str, ...], stated: Stated, time_limit: float, *, as_json: bool
) -> None:
    """Add a file as a liveness package, and say what it rests on."""
    from app.adding.add import StatedLiveness, add_liveness  # noqa: PLC0415 - slow to import
    from app.adding.child import within  # noqa: PLC0415 - slow to import

    _say(within(time_limit, add_liveness, new, StatedLiveness(cut, classes, stated)), classes, as_json=as_json)


def _say(added: AddedLiveness, classes: tuple[str, ...], *, as_json: bool) -> None:
    package, facts = added.package, added.facts
    if as_json:
        answer = {"model": package.id, "folder": str(package.folder), "side": facts.side, "classes": list(classes)}
        output.say_json({**answer, "input": added.form.model_dump(mode="json", exclude_none=True)})
        return
    answers = "probabilities" if facts.probabilities else "logits"
    output.say(f"Input {facts.shape} {facts.dtype} ({facts.layout}), output {facts.classes} {answers}.")
    output.say(f"{package.id}: {package.folder}, prepared; its probabilities equal the file's own.")
    output.say("It decides nothing yet: docs/how-to/liveness.md measures its error rates on your camera.")
