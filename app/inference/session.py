"""ONNX Runtime sessions with explicit providers, and an embedder's contract on top of them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from app.choices import Device, GpuMath, Used
from app.errors import DeviceUnavailable, ModelNotLoadable, Unusable
from app.inference import cuda
from app.inference.libraries import find_missing
from app.machine import cores, cpuinfo
from app.package import golden
from app.package.folders import Package
from app.types import UNIT_TOLERANCE, Pixels, Vectors

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
PROVIDERS: Mapping[Used, list[str]] = {
    "cpu": [CPU],
    "cuda": [CUDA, CPU],
    "tensorrt": ["TensorrtExecutionProvider", CUDA, CPU],
    "rocm": ["MIGraphXExecutionProvider", CPU],
    "openvino": [OPENVINO, CPU],
    "coreml": ["CoreMLExecutionProvider", CPU],
}
"""ONNX Runtime's providers for each device, in the order in which they take a graph's nodes."""
INSTALLED_BY: Mapping[Used, str] = {
    "cuda": "likeness-server[gpu]",
    "tensorrt": "likeness-server[gpu] and TensorRT",
    "rocm": "onnxruntime-migraphx",
    "openvino": "onnxruntime-openvino",
    "coreml": "onnxruntime, on macOS",
}
"""Packages whose ONNX Runtime has the device's provider."""
FIXED_BATCH: Mapping[Used, int] = {"cuda": 64, "tensorrt": 64, "rocm": 64}
"""Items of every run on these devices: they make a plan for each new input shape, so all runs have the same."""
FEW: Mapping[Used, int] = {"cuda": 8}
"""Items of each run for up to twice as many. They have a session of their own: one that changes its shape makes a
new plan for 0.9 s. Eight of SFace take 1.1 ms on an H200, and sixty-four 4.7; most batches of a server are small."""
MIB = 2**20
CUDA_LIBRARY = "libonnxruntime_providers_cuda.so"
ERRORS_ONLY, FATAL_ONLY = 3, 4
"""ONNX Runtime's log levels: its warnings are not needed, since problems are checked and raised here."""
KEPT_FOR = 2**21
"""Bytes of input up to which a run's memory is kept for the next run: 46 MB for the detector, for photos of up to 2.8
megapixels. Allocating it again takes up to half of a run's time (2 megapixels from decoding to the crops take 37 ms of
processor time with kept memory, else 46; medians on a busy machine). After a large run, hundreds of megabytes would be
kept that may never be needed again."""
EXACT_SUMS = "session.x64quantprecision"
"""ONNX Runtime's option for x86: products of uint8 and int8 are computed exactly, but slower, if its kernels could
saturate. Weights within ±64 can't saturate and are not affected (its Avx2WeightS8ToU8Transformer)."""
EXACT_INSTRUCTIONS = frozenset({"avx512_vnni", "avx_vnni"})
"""Linux's names of the instructions that sum such products in 32 bits. ONNX Runtime would also apply the option to
them, which would halve their speed."""

BF16_INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16"})
"""Linux's names of the instructions that multiply bfloat16 numbers. With them OpenVINO takes 0.4 of the processor time
for SFace's templates, whose median cosine with the usual ones is 0.9999 (docs/explanation/performance.md)."""


@dataclass(frozen=True, slots=True)
class OnGpu:
    """How a CUDA device runs a model, in at most ``memory_mib`` of its memory."""

    memory_mib: int | None = None
    math: GpuMath = "fp32"


class Session:
    """One loaded graph on one device; `run` may be called from several threads at once.

    With a fixed shape every run has that number of items, or FEW if these are enough: fewer are padded with zeros, more
    take several runs. So the first run, when the package is checked, makes the only plan, and all runs share buffers
    on the device.

    ``threads`` is the number of threads for one call (CPU); several callers with 1 each have the highest throughput.
    Raises Unusable: device_unavailable (``cuda`` was wanted but is not really used), model_not_loadable.
    """

    def __init__(
        self,
        model: Path | bytes,
        device: Device = "auto",
        threads: int = 1,
        *,
        sizes_vary: bool = False,
        shape: tuple[int, ...] | None = None,
        gpu: OnGpu = OnGpu(),
        bf16: bool = False,
    ) -> None:
        """``sizes_vary``: inputs have many sizes, so memory is not planned by size, and released after a large input.
        ``shape`` is the inputs' only shape on a device of FIXED_BATCH. ``bf16`` lets OpenVINO compute in 16 bits, if
        the processor supports it."""
        chosen = resolve_device(device)
        self._session = _open(model, chosen, threads, sizes_vary=sizes_vary, gpu=gpu, bf16=bf16)
        used = self._session.get_providers()
        if device == chosen == "cuda" and CUDA not in used:
            lacking = ", ".join(map(str, find_missing(Path(ort.__file__).parent / "capi" / CUDA_LIBRARY)))
            reason = f"the session did not get the CUDA provider; missing: {lacking or 'no library'}"
            raise _unavailable("cuda", reason)
        if device == chosen and PROVIDERS[chosen][0] not in used:
            raise _unavailable(chosen, f"the session did not get {PROVIDERS[chosen][0]}")
        self.device: Used = chosen if PROVIDERS[chosen][0] in used else "cpu"
        self._giving_back = _giving_back() if sizes_vary and self.device == "cpu" else None
        self.inputs: list[Any] = self._session.get_inputs()
        """The inputs, each with name, shape and type, as ONNX Runtime describes them."""
        self.shapes: Counter[tuple[int, ...]] = Counter()
        """Number of runs by the shape of their input, except those of FEW."""
        self._shape = shape if self.device in FIXED_BATCH else None
        self._bound: _Bound | None = None
        self._few: Session | None = None
        if self._shape is not None:
            self._bound = _Bound(self._session, self.inputs[0].name, self._shape, self.device)
            few = FEW.get(self.device, 0)
            if few and self._shape[0] == FIXED_BATCH[self.device]:
                self._few = Session(model, self.device, threads, shape=(few, *self._shape[1:]), gpu=gpu)
                self._bound.run(np.zeros(self._shape, np.uint8))  # else the first large batch would wait for its plan
        self.outputs: list[Any] = self._session.get_outputs()

    def run(self, items: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        """Run the graph on its one input, any number of items, and return all outputs in the graph's order."""
        if self._shape is None or self._bound is None:
            self.shapes[items.shape] += 1
            options = self._giving_back if items.nbytes > KEPT_FOR else None
            outputs: list[NDArray[np.generic]] = self._session.run(None, {self.inputs[0].name: items}, options)
            return outputs
        if self._few is not None and 0 < len(items) <= 2 * FEW[self.device]:
            return self._few.run(items)
        runs = []
        for start in range(0, len(items), self._shape[0]):
            part = items[start : start + self._shape[0]]
            filled = np.zeros(self._shape, part.dtype)
            filled[: len(part)] = part
            self.shapes[filled.shape] += 1
            runs.append([output[: len(part)] for output in self._bound.run(filled)])
        return [np.concatenate(parts) for parts in zip(*runs, strict=True)]


class _Bound:
    """A graph bound to buffers on its device, which all runs reuse."""

    def __init__(self, session: Any, name: str, shape: tuple[int, ...], device: Used) -> None:
        self._session = session
        self._lock = threading.Lock()  # the buffers are shared
        place = "cuda" if CUDA in PROVIDERS[device] else "cpu"
        self._input = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.uint8), place, 0)
        self._binding = session.io_binding()
        self._binding.bind_ortvalue_input(name, self._input)
        for output in session.get_outputs():
            self._binding.bind_output(output.name, place)

    def run(self, filled: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        with self._lock:
            self._input.update_inplace(filled)
            self._session.run_with_iobinding(self._binding)
            outputs: list[NDArray[np.generic]] = self._binding.copy_outputs_to_cpu()
            return outputs


def resolve_device(device: Device) -> Used:
    """Return the device to use: ``auto`` is CUDA if a session really gets it, else the CPU.

    Raises Unusable device_unavailable if a device is wanted but not available.
    """
    wanted: Used = "cuda" if device == "auto" else device
    if PROVIDERS[wanted][0] in ort.get_available_providers():
        return wanted
    if device == "auto":
        return "cpu"
    reason = f"this ONNX Runtime {ort.__version__} was built without {wanted.upper()}; install {INSTALLED_BY[wanted]}"
    raise _unavailable(wanted, reason)


def _unavailable(device: Used, reason: str) -> Unusable:
    message = f"device={device} cannot be used: {reason}. Or set LIKENESS_DEVICE=cpu."
    return DeviceUnavailable(message, device=device, reason=reason)


def _giving_back() -> Any:
    """Return run options that make a run release its memory when it ends."""
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def _openvino(threads: int, *, bf16: bool) -> dict[str, object]:
    """Return the options of OpenVINO's provider: one call per core at a time, each with this many threads, on any core.

    By default all calls wait for one thread, which is bound to a core that other processes may also want.
    """
    config: dict[str, object] = {
        "NUM_STREAMS": cores(),
        "INFERENCE_NUM_THREADS": cores() * threads,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    if bf16 and not BF16_INSTRUCTIONS.isdisjoint(cpuinfo("flags").split()):
        config["INFERENCE_PRECISION_HINT"] = "bf16"
    return {"device_type": "CPU", "load_config": json.dumps({"CPU": config})}


def _open(model: Path | bytes, device: Used, threads: int, *, sizes_vary: bool, gpu: OnGpu, bf16: bool) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    # spinning threads nearly double a face's processor time, and take it from the other stages
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.enable_mem_pattern = not sizes_vary
    if EXACT_INSTRUCTIONS.isdisjoint(cpuinfo("flags").split()):
        options.add_session_config_entry(EXACT_SUMS, "1")
    of_cuda: dict[str, object] = {"arena_extend_strategy": "kSameAsRequested"}  # with fixed shapes it stays the same
    if gpu.memory_mib is not None:
        of_cuda["gpu_mem_limit"] = gpu.memory_mib * MIB
    if gpu.math == "nhwc":
        of_cuda["prefer_nhwc"] = "1"
    if CUDA in PROVIDERS[device]:
        ort.set_default_logger_severity(FATAL_ONLY)  # it would print missing libraries in four lines
        ort.preload_dlls()  # finds CUDA libraries installed by pip
        cuda.sleep_while_waiting()
    given = {CUDA: of_cuda, OPENVINO: _openvino(threads, bf16=bf16)}
    providers = [(name, given[name]) if name in given else name for name in PROVIDERS[device]]
    try:
        return ort.InferenceSession(model if isinstance(model, bytes) else str(model), options, providers=providers)
    except Exception as error:
        name = "the model" if isinstance(model, bytes) else str(model)
        message = f"ONNX Runtime cannot load {name}: {error}"
        raise ModelNotLoadable(message) from error


class EmbedderSession:
    """A loaded embedding package, which turns aligned crops into unit vectors.

    Raises Unusable: package_contract_broken if the graph doesn't fit its manifest, package_templates_differ if it makes
    other templates here than the manifest's golden vectors.
    """

    def __init__(self, package: Package, session: Session) -> None:
        self.package_id = package.id
        self.device = session.device
        self._session = session
        dimension = package.manifest.dimension
        if package.manifest.task != "embed" or dimension is None:
            raise contract_broken(package.id, f"its task is {package.manifest.task}, not embed")
        self.dimension = dimension
        # run the crops, since a graph may do something else than its shapes declare
        vectors = run_two(package.id, session, golden.golden_crops())
        lengths = np.linalg.norm(vectors, axis=-1)
        if vectors.shape != (2, dimension) or not np.allclose(lengths, 1, atol=UNIT_TOLERANCE):
            raise contract_broken(package.id, f"it answers {vectors.shape} with lengths {lengths}")
        golden.check(package, vectors, session.device)

    def run(self, crops: Pixels) -> Vectors:
        """Run the model: (N, 112, 112, 3) uint8 RGB aligned crops -> (N, D) float32 unit vectors, N >= 0."""
        if len(crops) == 0:
            return np.zeros((0, self.dimension), np.float32)
        vectors: Vectors = self._session.run(crops)[0].astype(np.float32, copy=False)
        return vectors


def run_two(package_id: str, session: Session, pictures: Pixels) -> NDArray[np.float32]:
    """Return the graph's outputs for (2, S, S, 3) pictures. Raises Unusable if it doesn't accept them."""
    expected = ("tensor(uint8)", list(pictures.shape[1:]))
    given = [(tensor.type, list(tensor.shape[1:])) for tensor in session.inputs]
    if given != [expected]:
        raise contract_broken(package_id, f"its input is {given}, not {expected}")
    try:
        return session.run(pictures)[0].astype(np.float32, copy=False)
    except Exception as error:
        raise contract_broken(package_id, f"it cannot run two crops at once: {error}") from error


def contract_broken(package_id: str, problem: str) -> Unusable:
    """Return the error of a package whose graph doesn't fit its manifest."""
    message = f"The model of {package_id} does not keep the package contract: {problem}. Export it anew."
    return Unusable(message, code="package_contract_broken", package=package_id)
