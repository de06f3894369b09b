"""The closed sets of words that several modules use in requests, answers and settings, each declared once."""

from __future__ import annotations

from typing import Literal, TypeAlias

LivenessMode: TypeAlias = Literal["off", "report", "require"]
"""What liveness is used for: nothing, a verdict on each face, or to require that the used faces are live."""
LivenessOf: TypeAlias = Literal["both", "image1", "image2"]
"""Which photos of a comparison must be live; the other may be of a document."""
OnConflict: TypeAlias = Literal["warn", "reject", "allow"]
"""What to do with a new face that resembles an enrolled one (`app.recognition.duplicates`)."""
CropPolicy: TypeAlias = Literal["crop", "none"]
"""Whether a gallery keeps each face's aligned crop (to re-embed and to show) or only its template."""
IndexKind: TypeAlias = Literal["fp32", "int8"]
"""How vectors are searched (`app.search.index`); answers are exact either way."""
QualityName: TypeAlias = Literal["none", "low", "medium", "high"]
"""The lowest quality that is accepted (`app.face.quality.QualityLevel`)."""
GpuSearch: TypeAlias = Literal["faiss", "product"]
"""How a GPU finds near rows: by FAISS's index, or a matrix product by ONNX Runtime (`app.features.gpu_search`)."""
GpuMath: TypeAlias = Literal["fp32", "nhwc", "fp16"]
"""How a GPU computes models: as the CPU does, with channels last, or (only templates) with numbers of half the size. No
choice combines the last two, since ONNX Runtime 1.31.1 then ends the process."""
CalibrationSource: TypeAlias = Literal["package", "gallery"]
"""The source of the operating points that decide."""
Fallback: TypeAlias = Literal["not_measured", "too_few_subjects", "other_model", "rate_not_supported"]
"""Why the package's calibration decides in a gallery that should decide by its own."""
Decision: TypeAlias = Literal["known", "uncertain", "unknown"]
"""The result of an identification or verification for a face."""
Doubt: TypeAlias = Literal["low_quality"]
"""Why a face whose score reaches the threshold is only `uncertain`."""
PopulationCode: TypeAlias = Literal["population_rate_exceeded", "population_not_measured"]
"""Why a stated false match rate may not hold for a group of people."""
Step: TypeAlias = Literal["ahead", "left", "right", "nearer"]
"""What a challenge asks the person in front of the camera to do."""
JobStateName: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled"]
"""The states of a job."""
FindingKind: TypeAlias = Literal[
    "same_person", "two_people", "misplaced_face", "corrected_face", "outlier", "poor_face", "no_good_face"
]
"""What a review finds: two subjects that may be one person; a subject whose faces look like different people; a face
that looks like another subject and not like its own; one that looks like a recorded wrong probe of its subject
(`app.gallery.corrections`); one that looks like nobody; a poor one that may be confused with another subject, and that
its own subject doesn't need; a subject with only poor faces."""
Used: TypeAlias = Literal["cpu", "cuda", "tensorrt", "rocm", "openvino", "coreml"]
"""A device that models run on."""
Device: TypeAlias = Literal[Used, "auto"]
"""A device to choose; `auto` is CUDA if it is available."""
Stage: TypeAlias = Literal["decode", "detect", "align", "quality", "liveness", "embed", "search", "store"]
"""The stages in which an answer's time is spent."""
EventKind: TypeAlias = Literal["person_seen", "unknown_seen", "name_changed", "left"]
"""The kinds of events in front of a camera (`app.features.watching`)."""
Preset: TypeAlias = Literal["insightface", "adaface", "sface", "facenet", "imagenet", "unit", "opencv"]
"""Input forms of ONNX files, named by their makers (`app.models.presets`)."""
ImportContent: TypeAlias = Literal["photos", "templates", "archive"]
"""What an import reads (`app.features.bulk`)."""
WithoutCrop: TypeAlias = Literal["refuse", "drop"]
"""What a re-embedding does about faces that have no crop to embed: refuse to begin, or delete them at the end."""
