"""Recipes: everything that determines a training run, in one TOML file.

Each field below says what it does and its unit. A key that a recipe leaves out has the default below. An unknown key is
an error that names the nearest right one, because a run with an ignored misspelt key is wasted.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from app.errors import InvalidInput
from app.package.manifest import CROP_SIDE
from app.wording import found_wrong

OptionValue: TypeAlias = bool | int | float | str


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Section):
    source: str = "procedural"
    """Aligned crops: a folder per person, a CSV/Parquet list, a `.rec` file, tar shards or their URLs, or drawn faces
    (`procedural:people=500,images=20,seed=0,first=0`)."""
    mix: dict[str, Annotated[float, Field(gt=0, lt=1)]] = {}
    """Further sources and the share of each in every batch; `source` gets the rest. People of different sources count
    as different people. Needs the `plain` sampler."""
    drop: str | None = None
    """A list of what to leave out: people (the JSON or CSV of `data overlap`, or one name per line), or images (the
    report of `data check` or `data outliers`)."""
    min_images: int = Field(default=1, ge=1)
    """People with fewer crops than this are left out."""
    on_error: Literal["raise", "skip"] = "raise"
    """`skip`: another image of the same person replaces a damaged one, for up to a hundredth of the set."""
    held_out: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Share of the people that training never sees, on whom evaluation measures. None = enough for
    `evaluate.max_images` crops, at most a tenth; 0 with an `evaluate.source`."""
    indexes: str = "build/indexes"
    """Folder for the indexes of sets: where images are, who is in them, which are held out. It can be deleted when no
    run uses it."""
    cache: str | None = None
    """Folder for the decoded crops as one memory-mapped uint8 array, which is made again if a file's name, size or time
    has changed; none = each batch is decoded when it is prepared."""
    workers: int = Field(default=0, ge=0)
    """Number of processes of each rank that decode and augment batches. 0 = with a GPU one less than the rank's cores,
    at most 8; on the CPU none, and the training process does it. Results don't depend on the number."""
    prepare_timeout: float = Field(default=14400.0, gt=0)
    """Seconds that ranks wait for the first rank of their machine to prepare the data."""


def _known(known: Sequence[str], name: str) -> str:
    """Return the name if it is one of ``known`` or has the form `module:Class`, for a class of the user's. Raises
    ValueError."""
    if name not in known and ":" not in name:
        raise ValueError(f"no {name!r}; {did_you_mean(name, known)} There are: {', '.join(known)}, or module:Class")
    return name


SAMPLERS, OPTIMIZERS = ("plain", "balanced", "pk", "shards"), ("sgd", "adamw")
Probability: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1)]


class Augmentation(Section):
    """The probability of each change of `training.data.augment`; changes are made in this order, independently."""

    flip: Probability = 0.0
    """Mirror left and right. The trainer always mirrors half of all crops, in a way that a teacher can follow."""
    colour: Probability = 0.0
    """Change brightness, contrast and saturation."""
    grey: Probability = 0.0
    crop_and_paste: Probability = 0.0
    """Keep only a part, in its place, on black, like a face at the photo's edge."""
    occlusion: Probability = 0.0
    """Draw a rectangle, a mask over nose and mouth, or dark glasses."""
    blur: Probability = 0.0
    """Blur as out of focus, or as moved."""
    low_resolution: Probability = 0.0
    """Shrink and enlarge again, by interpolations of many kinds."""
    noise: Probability = 0.0
    jpeg: Probability = 0.0
    own: str | None = None
    """A function of yours as `module:function`, which takes a crop and a `numpy.random.Generator` and returns a crop;
    called last."""


NOT_CHOOSING = {"indexes", "cache", "workers", "prepare_timeout", "on_error"}
"""Keys of `data` that don't change which crops a run takes."""


class Sampler(Section):
    name: Annotated[str, AfterValidator(partial(_known, SAMPLERS))] = "plain"
    """`plain`, `balanced`, `pk`, `shards`, or a `BatchSampler` of yours as `module:Class`, called with the crops'
    labels, `batch_size` and `seed`. `shards` reads tar shards one after another in a shuffled order. It keeps three
    times `shards` of those in object storage on disk, in `data.indexes`; the other samplers keep all. Held-out people
    may be in any shard, so name an `evaluate.source`."""
    batch_size: int = Field(default=128, ge=2)
    """Crops in one batch over all ranks together, so that a run means the same on any number of them."""
    images: int = Field(default=4, ge=2)
    """Only for `pk`: crops of each person in a batch (K); batch_size / images people (P)."""
    shards: int = Field(default=8, ge=1)
    """Only for `shards`: number of shards whose crops are shuffled together."""

    @property
    def copies(self) -> int | None:
        """Return how many shards' copies to keep: those being shuffled, read ahead, and just finished. None: all."""
        return 3 * self.shards if self.name == "shards" else None


class Model(Section):
    backbone: str = "mobilefacenet"
    """A name of ours, `timm:NAME` where timm is installed, or a class of yours as `module:Class`, called with `dim`,
    `size` if it takes that, and `options`."""
    dim: int = Field(default=128, ge=2)
    """Length of the embedding."""
    input_size: int = Field(default=CROP_SIDE, ge=16, le=CROP_SIDE)
    """Side in pixels to which the model reduces crops by averaging areas. A smaller side is faster but loses detail."""
    options: dict[str, OptionValue | tuple[int, ...]] = {}
    """Passed unchanged to the backbone's builder."""
    start: str | None = None
    """Weights to start from: a run's folder or checkpoint, a `.pt` file of weights, or a network with its weights: a
    model package (its name in `models/` or its folder) or an `.onnx` file, which then stands for `backbone`,
    `input_size` and `options`. None = fresh weights."""
    fresh: tuple[str, ...] = ()
    """Names of weights, with `*` for any part, that may differ from those of `start`: the model's are fresh, the
    start's are left out (`backbone.output.*` for another `dim`). Any other weight without a counterpart is an error."""
    imprint: bool = False
    """Start each person's class weights as the mean of the person's templates, made with the starting weights
    (imprinted weights, Qi, Brown and Lowe 2018). Random class weights would spoil a good model in the first steps."""
    freeze: tuple[str, ...] = ()
    """Names of weights that don't learn, with `*` for any part (`backbone.stages.0.*`)."""
    frozen_statistics: bool = False
    """Batch normalisation keeps the statistics it started with."""
    lora: int = Field(default=0, ge=0)
    """Rank of the adapters that linear layers and convolutions learn in place of all weights of the network; 0 = none.
    Batch normalisation then keeps its statistics. Adapters are merged at export."""
    towers: Literal["single", "siamese", "pseudo_siamese"] = "single"
    """`siamese`: half of each person's crops go through a second tower with the same weights; `pseudo_siamese`: with
    its own. Needs the `pk` sampler with an even number of images."""

    @property
    def starts_with_network(self) -> bool:
        """Return whether `start` names a network, not only weights."""
        if self.start is None or self.start.endswith(".pt"):
            return False
        folder = Path(self.start)
        is_run = folder.is_dir() and not (folder / "manifest.json").is_file()
        return not is_run


class Loss(Section):
    """One term of the sum; keys that are not named here are the loss's own (s, m, gamma…)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    """A name of ours, or a class of yours as `module:Class`: a `ClassLoss`, or any module that takes embeddings, labels
    and a miner's triplets."""
    weight: float = Field(default=1.0, gt=0)
    """Factor of this loss in the sum of the losses."""
    miner: str | None = None
    """Pair-level losses: random, hard, semihard, distance_weighted…; none = the loss's own choice of pairs."""
    miner_options: dict[str, OptionValue] = {}
    image_beta: bool = False
    """The margin loss's third β, one for each crop of the training set."""

    @property
    def hyper(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


MANY_CLASSES = 100_000
"""From this number of classes on, their weights are sampled by default: about where it is faster in Partial FC's
paper."""


class PartialFC(Section):
    enabled: Literal["auto"] | bool = "auto"
    """Shard the class weights over the ranks. `auto`: if the recipe has one class-level loss, and there are several
    ranks or 100,000 classes or more."""
    sample_rate: float | None = Field(default=None, gt=0, le=1)
    """Share of the classes that take part in a step, at least as many as crops. The batch's own classes are always
    among them. None = 0.1 from 100,000 classes on, else all."""

    def rate(self, people: int) -> float:
        return self.sample_rate or (0.1 if people >= MANY_CLASSES else 1.0)


class Distill(Section):
    teacher: str | None = None
    """A model package's name in `models/` or the path of its folder; none = no teacher."""
    embedding: float = Field(default=1.0, ge=0)
    """Weight of 1 − cos(student, teacher), averaged over the batch."""
    relation: float = Field(default=0.0, ge=0)
    """Weight of the mean squared difference between the two nets' score matrices of the batch."""
    cache: bool = True
    """Run the teacher once on each crop and its mirror image, unaugmented, and keep its templates on disk beside the
    crops' cache; otherwise run it on every augmented batch."""
    mirror_mean: bool = True
    """Use the mean of the templates of the crop and its mirror image as the target, which is the better teacher."""


class Optimizer(Section):
    name: Annotated[str, AfterValidator(partial(_known, OPTIMIZERS))] = "sgd"
    """`sgd`, `adamw`, or an optimiser of yours as `module:Class`, called with parameter groups, `lr` and `options`. An
    optimiser that isn't fused waits for the device at each step."""
    options: dict[str, OptionValue | tuple[float, ...]] = {}
    """Passed unchanged to an optimiser of yours."""
    lr: float = Field(default=0.1, gt=0)
    """Peak learning rate of the backbone."""
    head_lr: float | None = Field(default=None, gt=0)
    """Peak learning rate of class weights and centres; none = lr."""
    first_layer: float = Field(default=1.0, gt=0, le=1)
    """Share of lr for the first layer's weights; it rises geometrically to 1 at the last layer (discriminative
    fine-tuning, Howard and Ruder 2018)."""
    beta_lr: float = Field(default=0.1, gt=0)
    """Peak learning rate of the margin loss's β (0.1 in Wu et al. 2017)."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """SGD's momentum; AdamW's β1."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """Weight decay of the backbone's matrices and kernels, but never of normalisations, PReLU slopes, biases or β."""
    head_weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of class weights. Since these are normalised in use, decay only raises their effective rate."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW's ε (SoftTriple's paper trains with 0.01)."""


class Schedule(Section):
    name: Literal["cosine", "poly", "step", "constant"] = "cosine"
    warmup: float = Field(default=0, ge=0)
    """Steps of linear warm-up from 0; below 1 a share of the run."""
    power: float = Field(default=2.0, gt=0)
    """`poly`: (1 − progress)^power (2 in insightface's recipes)."""
    milestones: tuple[float, ...] = (0.5, 0.75, 0.9)
    """`step`: shares of the run after which the rate is multiplied by `gamma`."""
    gamma: float = Field(default=0.1, gt=0, lt=1)
    floor: float = Field(default=0.0, ge=0, lt=1)
    """`cosine` and `poly` end at this share of the peak."""
    margin_warmup: float = Field(default=0, ge=0)
    """Steps in which the margin rises linearly from 0 to its full value; below 1 a share of the run."""

    def in_steps(self, steps: int) -> Schedule:
        """Return the schedule of a run of `steps`, with shares of the run turned into steps."""
        shares = {"warmup": self.warmup, "margin_warmup": self.margin_warmup}
        return self.model_copy(update={k: round(v * steps) if v < 1 else v for k, v in shares.items()})


class Train(Section):
    steps: int | None = Field(default=None, ge=1)
    """Optimiser steps of the whole run; none = `epochs`, or 1000."""
    epochs: float | None = Field(default=None, gt=0)
    """Length of the run in passes over the data, in place of `steps`."""
    accumulate: int = Field(default=1, ge=1)
    """Batches whose gradients make one step; running statistics of the losses change only with the last of them."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Autocast of the backbone; losses are always computed in float32. `auto`: on GPUs bf16, or fp16 where that is
    faster; on a CPU with AMX bf16; fp32 elsewhere, and for depthwise convolutions on any CPU."""
    clip_norm: float = Field(default=5.0, ge=0)
    """Maximum norm of the gradient (L2 over all parameters); 0 = no clipping."""
    ema: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the average of the weights, which is then evaluated and exported in place of the weights; 0 = none."""
    channels_last: bool = True
    compile: bool = False
    """torch.compile of the backbone."""
    gradient_checkpointing: bool = False
    """Recompute the blocks of an IResNet or transformer in the backward pass, in place of keeping their results. This
    needs a fraction of the memory, and a third more time."""
    sync_batchnorm: bool = False
    """Compute batch statistics over all ranks (torch's SyncBatchNorm, GPUs only), not on each rank."""
    log_every: int = Field(default=50, ge=1)
    trackers: tuple[str, ...] = ("tensorboard",)
    """Besides `metrics.jsonl`: tensorboard (if installed), mlflow, wandb, or a function of yours as `module:function`,
    like those in `training.run.log`."""
    checkpoint_every: int = Field(default=1000, ge=1)
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept besides the best one."""
    max_skipped: int = Field(default=20, ge=1)
    """Number of void steps in a row (steps that a gradient or loss that isn't finite would spoil) after which the run
    ends when it next logs."""

    def length(self, batches: int) -> int:
        """Return the number of steps of the run, for `batches` in an epoch."""
        if self.epochs is None:
            return self.steps or 1000
        return max(1, round(self.epochs * batches / self.accumulate))


class Evaluate(Section):
    every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 = only at the end."""
    source: str | None = None
    """A dataset of unseen people; none = the held-out share of the training data."""
    packs: tuple[str, ...] = ()
    """InsightFace's verification packs (`lfw.bin`). If there are some, the best checkpoint is that with the highest
    mean accuracy over them, 10 folds each; otherwise that with the lowest FNMR on unseen people."""
    flip: bool = False
    """Sum a pack's templates with those of the mirror images; arcface_torch sums embeddings before normalising them."""
    max_images: int = Field(default=3000, ge=4)
    """Maximum number of crops to compare, all with all. People are taken with all their crops."""
    fmr: float = Field(default=1e-3, gt=0, lt=1)
    """FMR at which the FNMR decides which checkpoint is the best."""


class Recipe(Section):
    name: str = Field(min_length=1, pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    seed: int = Field(default=1, ge=0)
    data: Data = Data()
    augment: Augmentation = Augmentation()
    sampler: Sampler = Sampler()
    model: Model = Model()
    losses: tuple[Loss, ...] = ()
    partial_fc: PartialFC = PartialFC()
    distill: Distill = Distill()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()

    @model_validator(mode="after")
    def _can_be_trained(self) -> Recipe:
        data, sampler, train = self.data, self.sampler, self.train
        together = "can't be used together"
        wrong = {
            "nothing to learn from: a recipe needs [[losses]] or distill.teacher": not (
                self.losses or self.distill.teacher
            ),
            "model.imprint needs model.start: a fresh network's templates say nothing": self.model.imprint
            and self.model.start is None,
            "sampler.batch_size must be a multiple of sampler.images": sampler.name == "pk"
            and sampler.batch_size % sampler.images > 0,
            'data.mix needs shares below 1 together and sampler.name = "plain"': data.mix
            and (sum(data.mix.values()) >= 1 or sampler.name != "plain"),
            f"train.steps and train.epochs {together}": train.steps and train.epochs,
            f"train.compile and train.gradient_checkpointing {together}": train.compile
            and train.gradient_checkpointing,
            'model.towers needs sampler.name = "pk" and an even sampler.images': self.model.towers != "single"
            and (sampler.name != "pk" or sampler.images % 2 > 0),
        }
        for problem, found in wrong.items():
            if found:
                raise ValueError(problem)
        return self

    def digest(self) -> str:
        """Return the first 16 hex digits of the SHA-256 of every value, defaults included."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; `overrides` are `key=value` with dotted keys and TOML values (`losses.0.m=0.3`).

    Raises InvalidInput (code `invalid_recipe`) for a missing or broken file, an unknown key or a value out of range.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _invalid(f"There is no recipe {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _invalid(f"{path} is not TOML: {error}.") from error
    for override in overrides:
        apply_override(table, override)
    return parse_recipe(table)


def parse_recipe(table: Mapping[str, Any]) -> Recipe:
    """Parse a recipe from a table of plain values; raises the same errors as `load_recipe`."""
    try:
        return Recipe.model_validate(table)
    except ValidationError as error:
        for problem in error.errors():
            if problem["type"] == "extra_forbidden":
                key = ".".join(map(str, problem["loc"]))
                raise _invalid(f"Unknown key {key!r} in the recipe; {_suggestion(key)}", key=key) from error
        raise _invalid(f"The recipe cannot be used: {problems_of(error)}.") from error


def problems_of(error: ValidationError) -> str:
    """Return what is wrong with each value, in one line."""
    return "; ".join(f"{'.'.join(map(str, wrong['loc'])) or 'all'}: {found_wrong(wrong)}" for wrong in error.errors())


def did_you_mean(choice: str, known: Sequence[str]) -> str:
    """Return the question "did you mean …?" with the known word nearest to a mistyped one."""
    return f"did you mean {difflib.get_close_matches(choice, known, n=1, cutoff=0)[0]!r}?"


def named(what: str, name: str) -> Any:
    """Import the object that a recipe names as `module:name`; Python searches the current folder, too.

    Raises InvalidInput (`invalid_recipe`).
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # of ":Net", ".net:Net"
        raise _invalid(f"The {what} {name!r} can't be imported: {error}. Install it, or run where it lies.") from error


def recipe_keys(model: type[Section] = Recipe, prefix: str = "") -> list[str]:
    """Return every key a recipe may have, dotted, with `losses.` for each `[[losses]]` table."""
    keys = []
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))  # a section, or a tuple of sections
        section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)
        keys += recipe_keys(section, f"{prefix}{name}.") if section else [prefix + name]
    return keys


def _invalid(message: str, **details: object) -> InvalidInput:
    return InvalidInput(message, code="invalid_recipe", **details)


def _suggestion(key: str) -> str:
    """Suggest the same word in another section, else the nearest key."""
    known = [*recipe_keys(), *Recipe.model_fields]
    same = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    return did_you_mean(key, same or known)


def apply_override(table: dict[str, Any], override: str) -> None:
    """Set a value of a recipe's table from ``key=value``; a run's length in steps replaces one in epochs, and vice
    versa. Raises InvalidInput (`invalid_recipe`)."""
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise _invalid(f"{override!r} is not key=value.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    node: Any = table
    *path, last = key.strip().split(".")
    try:
        for part in path:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        node[int(last) if isinstance(node, list) else last] = value
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise _invalid(f"{key!r} cannot be set: it leads through a value, or to no place of a list.") from error
    if path == ["train"] and last in LENGTHS:
        node.pop(LENGTHS[last], None)


LENGTHS = {"steps": "epochs", "epochs": "steps"}
