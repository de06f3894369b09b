"""The closed sets of words in requests, answers and settings: each is declared here once, for all who read it."""

from __future__ import annotations

from typing import Literal, TypeAlias

LivenessMode: TypeAlias = Literal["off", "report", "require"]
"""What is asked of liveness: nothing, a verdict on each face, or that the faces that are used are live."""
LivenessOf: TypeAlias = Literal["both", "image1", "image2"]
"""Which photos of a comparison must be live: the other may be of a document."""
OnConflict: TypeAlias = Literal["warn", "reject", "allow"]
"""What to do with a new face that resembles an enrolled one (`app.recognition.duplicates`)."""
CropPolicy: TypeAlias = Literal["crop", "none"]
"""Whether a gallery keeps each face's aligned crop (to re-embed and to show) or only its template."""
IndexKind: TypeAlias = Literal["fp32", "int8"]
"""How vectors are searched (`app.search.quantised`); answers are exact either way."""
QualityName: TypeAlias = Literal["none", "low", "medium", "high"]
"""The lowest quality that is accepted (`app.face.quality.QualityLevel`)."""
GpuSearch: TypeAlias = Literal["faiss", "product"]
"""What finds near rows on a GPU: FAISS's index, or a matrix product by ONNX Runtime (`app.features.gpu_search`)."""
GpuMath: TypeAlias = Literal["fp32", "nhwc", "fp16"]
"""How a GPU computes models: as the CPU does, with channels last, or, templates alone, with numbers of half the size.
ONNX Runtime 1.31.1 ends the process where both are asked for, so that no choice does."""
CalibrationSource: TypeAlias = Literal["package", "gallery"]
"""Whose operating points decide."""
Fallback: TypeAlias = Literal["not_measured", "too_few_subjects", "other_model", "rate_not_supported"]
"""Why the package's calibration decides in a gallery that is to decide by its own."""
Decision: TypeAlias = Literal["known", "uncertain", "unknown"]
"""What an identification or verification says of a face."""
Doubt: TypeAlias = Literal["low_quality"]
"""Why a face whose score reaches the threshold is only `uncertain`."""
PopulationCode: TypeAlias = Literal["population_rate_exceeded", "population_not_measured"]
"""Why a stated false match rate may not hold for a group of people."""
Step: TypeAlias = Literal["ahead", "left", "right", "nearer"]
"""What a challenge asks of the person in front of the camera."""
JobStateName: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled"]
"""The states of a job."""
FindingKind: TypeAlias = Literal[
    "same_person", "two_people", "misplaced_face", "corrected_face", "outlier", "poor_face", "no_good_face"
]
"""What a review finds: two subjects that may be one person; a subject whose faces look like different people; a face
that looks like another subject and not like its own; one that looks like somebody who was recorded as not its subject
(`app.gallery.corrections`); one that looks like nobody; a poor one that could be confused with another subject, while
its own doesn't need it; a subject all of whose faces are poor."""
Used: TypeAlias = Literal["cpu", "cuda", "tensorrt", "rocm", "openvino", "coreml"]
"""A device that models run on."""
Device: TypeAlias = Literal[Used, "auto"]
"""A device to choose; `auto` is CUDA where it can be had."""
Stage: TypeAlias = Literal["decode", "detect", "align", "quality", "liveness", "embed", "search", "store"]
"""What the time of an answer is spent on."""
EventKind: TypeAlias = Literal["person_seen", "unknown_seen", "name_changed", "left"]
"""What happens before a camera (`app.features.watching`)."""
Preset: TypeAlias = Literal["insightface", "adaface", "sface", "facenet", "imagenet", "unit", "opencv"]
"""Whose input an ONNX file takes (`app.models.presets`)."""
ImportContent: TypeAlias = Literal["photos", "templates", "archive"]
"""What an import reads (`app.features.bulk`)."""
WithoutCrop: TypeAlias = Literal["refuse", "drop"]
"""What a re-embedding does with faces that have no crop to embed: refuse to begin, or delete them at the end."""
