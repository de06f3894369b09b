"""How published embedders want their input: colour order, mean, scale and size, by their makers' names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.adding.graph_facts import Dtype, Layout
from app.errors import Unusable
from app.inference.manifest import SourceInput

Colour: TypeAlias = Literal["rgb", "bgr"]
Preset: TypeAlias = Literal["insightface", "adaface", "sface", "facenet", "imagenet", "unit", "opencv"]
Channels: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Stated:
    """The caller's facts about a file's input; ``mean`` and ``std`` in the order of its channels, for pixels 0-255."""

    colour: Colour | None = None
    mean: Channels | None = None
    std: Channels | None = None
    size: int | None = None
    """Side in pixels, for graphs that declare none."""

    def over(self, preset: Stated) -> Stated:
        """Return these facts, and those of the preset that are not stated."""
        return Stated(
            self.colour or preset.colour,
            self.mean or preset.mean,
            self.std or preset.std,
            self.size or preset.size,
        )


def _same(mean: float, std: float) -> tuple[Channels, Channels]:
    return (mean,) * 3, (std,) * 3


PRESETS: Mapping[Preset, Stated] = {
    "insightface": Stated("rgb", *_same(127.5, 127.5)),
    "adaface": Stated("bgr", *_same(127.5, 127.5)),
    "sface": Stated("rgb", *_same(0.0, 1.0)),
    "facenet": Stated("rgb", *_same(127.5, 128.0), size=160),
    "imagenet": Stated("rgb", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "unit": Stated("rgb", *_same(0.0, 255.0)),
    "opencv": Stated("bgr", *_same(0.0, 1.0)),
}
"""From the preprocessing in InsightFace's ArcFaceONNX, AdaFace's to_input, OpenCV's FaceRecognizerSF, facenet-pytorch's
fixed_image_standardization and torchvision's ImageNet; `unit` is 0 to 1, `opencv` cv2.imread's pixels as they are."""


def input_form(stated: Stated, layout: Layout, dtype: Dtype) -> SourceInput:
    """Return the form of input for these facts.

    Raises Unusable: model_facts_missing (to be stated), model_input_contradicted (the graph says otherwise).
    """
    if dtype == "uint8":
        if stated.mean not in {None, (0.0,) * 3} or stated.std not in {None, (1.0,) * 3}:
            message = "The file takes uint8 pixels, so its normalisation is inside: state --colour alone."
            raise Unusable(message, code="model_input_contradicted")
        stated = Stated(stated.colour, (0.0,) * 3, (1.0,) * 3)
    if stated.colour is None or stated.mean is None or stated.std is None:
        wanted = "--colour" if dtype == "uint8" else f"--preset ({', '.join(PRESETS)}), or --colour, --mean, --std"
        message = f"State how the file's input is made: {wanted}. The page that you have the file from says it."
        raise Unusable(message, code="model_facts_missing")
    return SourceInput(layout=layout, dtype=dtype, colour=stated.colour, mean=stated.mean, std=stated.std)
