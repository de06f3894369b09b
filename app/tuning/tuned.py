"""What `likeness tune` found out, in a file of the data folder that the server reads at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.files import PUBLIC, replacing
from app.machine import cores, processor

FILE = "tuned.json"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Where(_Strict):
    """The machine and packages that the figures hold for."""

    machine: str
    onnxruntime: str
    device: Literal["cpu", "cuda"]
    embedder: str
    """Package id."""
    detector: str
    """Package id."""


class Choice(_Strict):
    """The chosen settings, by their names."""

    threads: int = Field(ge=1, le=1024)
    detect_threads: int = Field(ge=1, le=256)
    embed_workers: int = Field(ge=1, le=256)
    embed_threads: int = Field(ge=1, le=256)
    max_batch: int = Field(ge=1, le=1024)


class Tuned(_Strict):
    """The content of the file."""

    measured_at: str
    """ISO 8601, UTC."""
    where: Where
    choice: Choice


@dataclass(frozen=True, slots=True)
class Found:
    """The content of the file, or why it is not used."""

    tuned: Tuned | None
    problem: str | None = None


def here(device: Literal["cpu", "cuda"], embedder: str, detector: str) -> Where:
    """Return this machine with these packages."""
    return Where(
        machine=f"{processor()}, {cores()} cores",
        onnxruntime=_runtime_version(),
        device=device,
        embedder=embedder,
        detector=detector,
    )


def _runtime_version() -> str:
    import onnxruntime  # noqa: PLC0415 - whichever of its two distributions is installed

    return str(onnxruntime.__version__)


def read(data_dir: Path, where: Where) -> Found:
    """Read the file that `write` wrote; its figures are used only if they were measured here."""
    path = data_dir / FILE
    try:
        tuned = Tuned.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Found(None)
    except OSError as error:
        return Found(None, f"{path} cannot be read ({error.strerror})")
    except ValidationError as error:
        first = error.errors()[0]
        return Found(None, f"{path} is damaged: {'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}")
    differing = [
        f"{name} {there!r}, not {now!r}"
        for (name, there), (_, now) in zip(tuned.where, where, strict=True)
        if there != now
    ]
    if differing:
        return Found(None, f"{path} was measured with {'; '.join(differing)}")
    return Found(tuned)


def write(data_dir: Path, tuned: Tuned) -> Path:
    """Replace the file in one step; create the folder. Raises OSError."""
    path = data_dir / FILE
    data_dir.mkdir(parents=True, exist_ok=True)
    with replacing(path, PUBLIC) as file:
        file.write(tuned.model_dump_json(indent=2).encode() + b"\n")
    return path
