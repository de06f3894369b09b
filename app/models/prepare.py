"""Prepare a model file once: rewrite its graph to the package contract, compare it with the file, and cache it.

The rewriting steps are in `app.models.graph` and `cpu_graph`; a start that finds a cached file imports neither.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.errors import Unusable
from app.files import PUBLIC, replacing
from app.inference.embedders import unit
from app.models.packages import locate
from app.models.reference import external_tensor, keep_data_inputs, plain_session, run_plain
from app.package.folders import Package
from app.package.golden import check_crops
from app.package.manifest import CROP_SIDE, Rewrite, RewriteClassifier, RewriteYuNet, RunAsIs, SourceInput
from app.types import Pixels, Vectors

if TYPE_CHECKING:
    from onnx import ModelProto

Target: TypeAlias = Literal["cpu", "cuda", "cuda-fp16"]
"""What a prepared graph is made for. `cuda-fp16` computes in 16 bits and is for embedders only."""
Plan: TypeAlias = Rewrite | RewriteClassifier | RewriteYuNet

STEPS_VERSION = 4
"""Part of a prepared file's name. Raise it with every change of the steps, so that old files are made again."""
MIN_COSINE = 0.99999
"""Minimum cosine between the outputs of the prepared graph and of the original file, on every crop."""
MIN_COSINE_FP16 = 0.999
"""The same minimum for 16 bits. SFace reaches 0.99999 on photos, and less on the noise that it is checked with."""
MAX_DIFFERENCE = 1e-4
"""Maximum difference between a probability of the prepared classifier and of the original file."""


def prepared(package: Package, cache_dir: Path, target: Target) -> Path:
    """Return the path of the model file to run for ``package`` on ``target``: its own file, or the prepared graph.

    Raises Unusable: package_not_preparable, cache_not_writable, package_external_weights, and what `locate` raises.
    """
    try:
        return _prepared(package, cache_dir, target)
    except FileNotFoundError:  # another process may have just removed the package
        message = f"{package.id} was removed while it was opened. Add it again, or use another model."
        raise Unusable(message, code="package_file_missing", package=package.id) from None


def _prepared(package: Package, cache_dir: Path, target: Target) -> Path:
    source = locate(package, cache_dir)
    # every external tensor has this key: if it is missing, onnx need not be imported
    if b"location" in source.read_bytes():
        _refuse_external_weights(package, source)
    plan = package.manifest.prepare
    if isinstance(plan, RunAsIs) and target != "cuda-fp16":
        return source
    return find_prepared(package, cache_dir, target) or _make(package, plan, source, cache_dir, target)


def prepare_apart(packages: Sequence[Package], cache_dir: Path, target: Target) -> None:
    """Make the prepared graphs that are not cached, in a subprocess, so that the 180 MB of memory needed are freed.

    Failures are ignored: `prepared` will try again, and raise the error.
    """
    missing = [
        str(package.folder)
        for package in packages
        if not isinstance(package.manifest.prepare, RunAsIs)
        and not any(cache_dir.glob(f"{_key(package, target)}.*.onnx"))
    ]
    if missing:
        program = (
            "import sys; from pathlib import Path; from app.package.folders import load_package; "
            "from app.models.prepare import prepared; "
            "[prepared(load_package(Path(each)), Path(sys.argv[1]), sys.argv[2]) for each in sys.argv[3:]]"
        )
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", program, str(cache_dir), target, *missing]
        subprocess.run(command, env=environ, stderr=subprocess.DEVNULL, check=False)  # noqa: S603 - this interpreter


def _key(package: Package, target: Target) -> str:
    """Return the cache key, which contains everything that a prepared file depends on: source bytes, plan, steps,
    target."""
    plan = hashlib.sha256(package.manifest.prepare.model_dump_json().encode()).hexdigest()
    return f"{package.id}-{package.manifest.sha256[:16]}-{plan[:8]}-{target}-v{STEPS_VERSION}"


def find_prepared(package: Package, cache_dir: Path, target: Target) -> Path | None:
    """Return the cached file; None if there is none. Files whose digest is not the one in their name are deleted."""
    for path in cache_dir.glob(f"{_key(package, target)}.*.onnx"):
        if _digest(path.read_bytes()) == path.suffixes[-2].removeprefix("."):
            return path
        path.unlink(missing_ok=True)
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _make(package: Package, plan: Plan | RunAsIs, source: Path, cache_dir: Path, target: Target) -> Path:
    from onnx import ModelProto  # noqa: PLC0415 - only a first start needs it

    try:
        model = ModelProto.FromString(source.read_bytes())
        graph = _rewritten(model, package, plan, target)
    except Unusable:
        raise
    except OSError as error:
        message = f"{package.id} could not be prepared: {error.strerror}. TMPDIR names the folder for temporary files."
        raise Unusable(message, code="package_not_preparable", package=package.id) from error
    except Exception as error:
        message = f"{source} could not be prepared for {package.id}: {error}. Does the manifest describe its input?"
        raise Unusable(message, code="package_not_preparable", package=package.id) from error
    content: bytes = graph.SerializeToString()
    path = cache_dir / f"{_key(package, target)}.{_digest(content)}.onnx"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with replacing(path, PUBLIC) as file:
            file.write(content)
    except OSError as error:
        remedy = "Free some space." if error.errno == errno.ENOSPC else "Make the folder writable."
        message = f"Cannot keep the prepared model in {cache_dir}: {error.strerror}. {remedy}"
        raise Unusable(message, code="cache_not_writable", folder=str(cache_dir)) from error
    return path


def _rewritten(source: ModelProto, package: Package, plan: Plan | RunAsIs, target: Target) -> ModelProto:
    if isinstance(plan, RewriteYuNet):
        from app.models.yunet_graph import check_yunet, rewrite_yunet  # noqa: PLC0415 - only a first start needs it

        model = rewrite_yunet(source)
        check_yunet(source, model)
    elif isinstance(plan, RewriteClassifier):
        side = int(package.manifest.input.shape[1])
        model = rewrite_classifier(source, plan, side)
        check_classifier(source, model, plan, check_crops(side))
    elif target == "cuda-fp16":
        from app.models.graph import in_half  # noqa: PLC0415 - needs onnx, as only a first start does

        model = in_half(rewrite(source, plan, "cuda") if isinstance(plan, Rewrite) else source)
        kept = plan if isinstance(plan, Rewrite) else Rewrite()
        check_prepared(source, model, kept, check_crops(), least=MIN_COSINE_FP16)
    elif isinstance(plan, Rewrite):
        model = rewrite(source, plan, target)
        check_prepared(source, model, plan, check_crops())
    else:
        raise TypeError(f"{package.id} is run as it is.")
    return model


def rewrite(source: ModelProto, plan: Rewrite, target: Target, *, for_quantising: bool = False) -> ModelProto:
    """Return a new model that fulfils the contract: (N, 112, 112, 3) uint8 RGB -> (N, D) float32 of length 1, for any
    N.

    ``for_quantising`` leaves out what a quantiser cannot handle: subgraphs, and channels of very different scales.
    Raises Unusable package_not_preparable unless the graph has one input and one output, and all weights are in the
    file.
    """
    from app.models import cpu_graph, graph  # noqa: PLC0415 - needs onnx, as only a first start does

    model = _adapted(source, plan.input, CROP_SIDE)
    graph.fuse_affine_into_next(model)
    if not plan.unit_output:
        graph.unit_output(model)
    if target == "cpu":
        cpu_graph.split_prelu(model, keep_scale=for_quantising)
    if target == "cpu" and not for_quantising:
        cpu_graph.run_trunk_per_image(model)
    graph.tidy(model)
    return model


def _adapted(source: ModelProto, form: SourceInput, side: int) -> ModelProto:
    """Return a new, optimised model that takes (N, side, side, 3) uint8 RGB pictures and has the source's output."""
    from app.models import graph  # noqa: PLC0415 - needs onnx, as only a first start does

    model = type(source).FromString(source.SerializeToString())
    keep_data_inputs(model)
    if (outside := external_tensor(model)) is not None:
        message = f"The graph keeps weights outside its file ({outside}...), which no hash covers: export one file."
        raise Unusable(message, code="package_not_preparable")
    if (len(model.graph.input), len(model.graph.output)) != (1, 1):
        names = [value.name for value in (*model.graph.input, *model.graph.output)]
        raise Unusable(f"The graph must have one input and one output, not {names}.", code="package_not_preparable")
    model = graph.raised_opset(model)
    graph.free_batch(model)
    if form != SourceInput():
        graph.accept_crops(model, form, side)
    return graph.optimised(model)


def _refuse_external_weights(package: Package, source: Path) -> None:
    from onnx import ModelProto  # noqa: PLC0415 - see where it is called

    try:
        name = external_tensor(ModelProto.FromString(source.read_bytes()))
    except Exception as error:
        message = f"{source} can't be read as an ONNX model: {error}"
        raise Unusable(message, code="package_not_preparable", package=package.id) from error
    if name is not None:
        message = (
            f"The model of {package.id} keeps weights outside {source.name} ({name!r} ...), which no hash covers. "
            "Export it as one file: onnx.save(model, path, save_as_external_data=False)."
        )
        raise Unusable(message, code="package_external_weights", package=package.id)


def check_prepared(
    source: ModelProto, rewritten: ModelProto, plan: Rewrite, crops: Pixels, *, least: float = MIN_COSINE
) -> float:
    """Return the lowest cosine between the outputs of both graphs on crops, (N, 112, 112, 3) uint8 RGB.

    The source gets the crops one by one in its own form of input, the rewritten graph all at once. Raises Unusable
    package_not_preparable below ``least``.
    """
    # In float32, the rounding of lengths would be larger than the difference between the graphs.
    expected = unit(run_plain(source, plan.input, crops).astype(np.float64))
    worst = float((expected * unit(_run(rewritten, crops).astype(np.float64))).sum(axis=1).min())
    if not worst >= least:
        message = f"The rewritten graph differs from its source: cosine {worst:.7f}, at least {least} is needed."
        raise Unusable(message, code="package_not_preparable", cosine=worst)
    return worst


def rewrite_classifier(source: ModelProto, plan: RewriteClassifier, side: int) -> ModelProto:
    """Return a new model: (N, side, side, 3) uint8 RGB -> (N, C) float32 probabilities, for any N.

    Raises Unusable package_not_preparable as `rewrite` does.
    """
    from app.models import graph  # noqa: PLC0415 - needs onnx, as only a first start does

    model = _adapted(source, plan.input, side)
    if plan.output == "logits":
        graph.softmax_output(model)
    graph.tidy(model)
    return model


def check_classifier(source: ModelProto, rewritten: ModelProto, plan: RewriteClassifier, cuts: Pixels) -> float:
    """Return the largest difference between the probabilities of both graphs on cuts, (N, S, S, 3) uint8 RGB.

    Raises Unusable package_not_preparable above `MAX_DIFFERENCE`.
    """
    expected = run_plain(source, plan.input, cuts)
    if plan.output == "logits":
        expected = softmax(expected)
    worst = float(np.abs(_run(rewritten, cuts) - expected).max())
    if not worst <= MAX_DIFFERENCE:
        message = (
            f"The rewritten graph differs from its source: a probability by {worst:.2g}, {MAX_DIFFERENCE} is allowed."
        )
        raise Unusable(message, code="package_not_preparable", difference=worst)
    return worst


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities, (N, C), for logits, (N, C)."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return probabilities


def _run(model: ModelProto, crops: Pixels) -> Vectors:
    session = plain_session(model)
    vectors: Vectors = session.run(None, {session.get_inputs()[0].name: crops})[0]
    return vectors
