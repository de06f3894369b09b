"""What has to be said before a gallery takes a package: that nothing was measured, that it is for research only."""

from __future__ import annotations

from app.errors import InvalidInput
from app.inference.manifest import Manifest

SHOWN_FMR = 1e-4
"""The error rate whose FNMR is told: the service's default."""


def check_choice(manifest: Manifest, *, force: bool, accept_non_commercial: bool) -> None:
    """Raise InvalidInput ``licence_not_accepted`` or ``package_not_measured`` for what was not accepted."""
    about = f"{manifest.id}: licence {manifest.licence.name}; {accuracy(manifest)}."
    if manifest.licence.non_commercial and not accept_non_commercial:
        message = (
            f"{about} It may not be used commercially. If yours is another use, say so: accept_non_commercial "
            "(--accept-non-commercial)"
        )
        raise InvalidInput(message, code="licence_not_accepted", package=manifest.id, licence=manifest.licence.name)
    if not manifest.calibrations and not force:
        message = (
            f"{about} Nobody can be identified or verified by it before it is measured: likeness models measure "
            f"{manifest.name}. To take it anyway: force (--force)"
        )
        raise InvalidInput(message, code="package_not_measured", package=manifest.id)


def accuracy(manifest: Manifest) -> str:
    """Return how often the package misses somebody, by its deciding calibration, as text."""
    calibration = next((each for each in manifest.calibrations if each.default), None)
    if calibration is None:
        return "no operating points were measured"
    measured = [point for point in calibration.points if point.fnmr is not None]
    if not measured:
        return f"measured on {calibration.measured_on}, without misses"
    point = min(measured, key=lambda each: abs(each.fmr - SHOWN_FMR))
    return f"FNMR {point.fnmr:.2%} at FMR {point.fmr:g} on {calibration.measured_on}"
