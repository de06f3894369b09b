"""Which liveness packages a server uses, and the operating points that were measured with them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.errors import LivenessUnavailable
from app.inference.manifest import LivenessCalibration, liveness_digest
from app.inference.package import Package, select

TASK = "liveness"


def choose_packages(installed: Mapping[str, Package], names: Sequence[str]) -> list[Package]:
    """Return the packages named, or the only one installed.

    Raises Unusable ``liveness_unavailable``, and ``package_unknown``, ``package_ambiguous`` for a name.
    """
    usable = {key: package for key, package in installed.items() if package.manifest.task == TASK}
    if names:
        chosen = {package.id: package for package in (select(usable, name) for name in names)}
        return list(chosen.values())
    if not usable:
        message = "No liveness package is installed: add one with likeness models add FILE --task liveness"
        raise LivenessUnavailable(message, reason="none_installed")
    if len(usable) > 1:
        message = (
            f"Several liveness packages are installed: name those to average in LIKENESS_LIVENESS ({', '.join(usable)})"
        )
        raise LivenessUnavailable(message, reason="not_named")
    return list(usable.values())


def find_calibration(packages: Sequence[Package]) -> LivenessCalibration | None:
    """Return the calibration that was measured with exactly these packages, wherever among them it is kept."""
    digest = liveness_digest(package.manifest for package in packages)
    kept = (each for package in packages for each in package.manifest.liveness_calibrations)
    return next((each for each in kept if each.measured_with == digest), None)
