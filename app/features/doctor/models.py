"""Check model packages: those that the settings name, and those that galleries need."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

from app.config import Settings
from app.errors import DeviceUnavailable, LikenessError, PackageTemplatesDiffer
from app.features.doctor.inspection import inspect
from app.features.doctor.results import CheckResult, Outcome
from app.inference.session import resolve_device
from app.models.opening import open_embedder, target_of
from app.models.packages import locate
from app.models.prepare import find_prepared
from app.package.folders import OWN_FOLDER, find_packages, scan_packages, select
from app.package.manifest import RunAsIs

STATES = {
    ("embed", True): "; its templates are checked when it is opened",
    ("embed", False): "; it has no golden vectors, so that its templates are not checked when it is opened",
    ("liveness", True): "; it has operating points",
    ("liveness", False): "; it decides nothing before it is measured",
}
"""What is said about a package, by its task and by whether it has golden vectors (for liveness: operating points)."""


def check_models(settings: Settings) -> Iterator[CheckResult]:
    """Check the manifest and the file of every package. The packages that the settings name must exist."""
    scan = scan_packages(settings.models_dir, settings.data_dir)
    for skipped in scan.skipped:
        yield CheckResult("warning", f"skipped: {skipped.problem}", f"Repair or remove {skipped.folder}.")
    running = set()
    for wanted, task in ((settings.detector, "detect"), (settings.embedder, "embed")):
        package = select(scan.packages, wanted)
        running.add(package.id)
        if package.manifest.task != task:
            yield CheckResult("failed", f"{package.id} is not a package for `{task}`", "Choose another one.")
    for package in scan.packages.values():
        manifest = package.manifest
        state = STATES.get((manifest.task, bool(manifest.golden or manifest.liveness_calibrations)), "")
        try:
            locate(package, settings.data_dir / "models")
        except LikenessError as error:
            verdict: Outcome = "failed" if package.id in running else "warning"
            yield CheckResult(verdict, error.message, f"See `likeness models list`, and {package.folder}.")
        else:
            yield CheckResult("ok", f"{package.id}: SHA-256 {manifest.sha256[:12]}… as its manifest says{state}")
        for warning in package.warnings:
            yield CheckResult("warning", warning, "Measure them again: likeness models measure.")


def check_liveness(settings: Settings) -> Iterator[CheckResult]:
    """Open the liveness packages that the server would use, and look for their operating points."""
    installed = find_packages(settings.models_dir, settings.data_dir)
    if find_spec("app.features.liveness") is None:
        yield CheckResult("ok", "this installation does without liveness; requests for it are answered with 503")
        return
    if not settings.liveness and not any(package.manifest.task == "liveness" for package in installed.values()):
        yield CheckResult("ok", "no liveness package is installed; requests for liveness are answered with 503")
        return
    from app.features.liveness.gate import choose_packages, find_calibration, liveness_point  # noqa: PLC0415 - a feature
    from app.features.liveness.scorer import open_liveness  # noqa: PLC0415 - a feature

    try:
        chosen = choose_packages(installed, settings.liveness)
        with tempfile.TemporaryDirectory() as folder:
            for package in chosen:
                open_liveness(package, Path(folder), settings.device)
    except LikenessError as error:
        yield CheckResult("warning", error.message, "See docs/how-to/liveness.md.")
        return
    names = ", ".join(package.id for package in chosen)
    calibration = find_calibration(chosen)
    if calibration is None or liveness_point(calibration, settings.apcer, settings.bpcer) is None:
        message = (
            f"{names}: not measured at APCER {settings.apcer:g} and BPCER {settings.bpcer:g}, so it decides nothing"
        )
        yield CheckResult("warning", message, "Measure it: docs/how-to/liveness.md.")
        return
    yield CheckResult("ok", f"{names}: decides by {calibration.name}")


def check_device(settings: Settings) -> Iterator[CheckResult]:
    """Run the embedder on its device. If the package isn't prepared yet, this is done in a temporary folder."""
    package = select(find_packages(settings.models_dir, settings.data_dir), settings.embedder)
    cache = settings.data_dir / "models"
    try:
        kept = find_prepared(package, cache, target_of(resolve_device(settings.device)))
        ready = kept or isinstance(package.manifest.prepare, RunAsIs)
        with nullcontext(cache) if ready else tempfile.TemporaryDirectory() as folder:
            session = open_embedder(package, Path(folder), settings.device)
    except DeviceUnavailable as error:
        remedy = (
            "Install what is missing (the GPU's driver, likeness-server[gpu]), show the GPU to the container, or set "
            "LIKENESS_DEVICE=cpu."
        )
        yield CheckResult("failed", error.message, remedy)
    except PackageTemplatesDiffer as error:
        remedy = (
            "Install the tested versions (constraints.txt), change LIKENESS_DEVICE, or name another LIKENESS_EMBEDDER."
        )
        yield CheckResult("failed", error.message, remedy)
    except LikenessError as error:
        remedy = "Download the model's file again, or set LIKENESS_EMBEDDER to another package."
        yield CheckResult("failed", error.message, remedy)
    else:
        state = "as prepared" if kept else "not prepared yet: the first start prepares it"
        yield CheckResult("ok", f"{package.id} runs on {session.device} (asked for: {settings.device}), {state}")


def check_galleries(settings: Settings) -> Iterator[CheckResult]:
    """Check that the packages that galleries need are installed and are the same models, and how many are kept open."""
    database = inspect(settings.data_dir, settings.database)
    if not database.exists or database.problem:
        yield CheckResult("ok", "no database yet")
        return
    packages = find_packages(settings.models_dir, settings.data_dir)
    for need in database.needs:
        package = packages.get(need.package)
        whose = f"needed by {need.galleries} galleries ({need.example}{', …' if need.galleries > 1 else ''})"
        way_out = f"or move the galleries to another: likeness reembed start {need.example} PACKAGE"
        if package is None or package.manifest.task != "embed":
            remedy = f"Put its folder back into {settings.data_dir / OWN_FOLDER}, {way_out}"
            yield CheckResult("failed", f"{need.package} is not installed, and {whose}", remedy)
            continue
        try:
            locate(package, settings.data_dir / "models")
        except LikenessError as error:
            yield CheckResult("failed", f"{error.message} It is {whose}", f"Download its file again, {way_out}")
            continue
        if need.digest not in {None, package.manifest.recipe_digest}:
            message = f"{need.package} in {package.folder} is another model than the one of the galleries' templates"
            remedy = f"Put the previous package of this name back, or give this one another version {way_out}"
            yield CheckResult("failed", f"{message}; {whose}", remedy)
        elif package.manifest.dimension != need.dimension:
            message = (
                f"{need.package} makes {package.manifest.dimension} numbers, not the {need.dimension} of the galleries"
            )
            remedy = f"Put the previous package of this name back, {way_out}"
            yield CheckResult("failed", f"{message}; {whose}", remedy)
        else:
            yield CheckResult("ok", f"{need.package}: {whose}")
    if not database.needs:
        yield CheckResult("ok", "none yet")
    if len({need.package for need in database.needs}) > settings.max_embedders:
        message = f"galleries need {len(database.needs)} packages, and {settings.max_embedders} are kept open at once"
        yield CheckResult(
            "warning", message, "Raise LIKENESS_MAX_EMBEDDERS, or requests wait while a package is opened."
        )
