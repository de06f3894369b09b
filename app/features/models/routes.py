"""The REST operations that pull model packages by name, add uploaded ones, and remove packages."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

from fastapi import Query, Request
from pydantic import Field

from app.access.grants import Grant, Scope
from app.api import schemas
from app.api.body import GZIP_TYPES, RAW_TYPE, TAR_TYPE, BodyLimits, File
from app.api.components import Components, path_id
from app.api.feature import Feature, Part
from app.api.route import Router
from app.api.routes import jobs
from app.api.schemas.base import Example, Params, Wire
from app.choices import Preset
from app.concurrency.admission import Admission, WorkerPool
from app.features.models.job import ADD, PULL, ModelAdder
from app.features.models.removal import ModelRemover
from app.features.uploads import receive_upload

router = Router("server")

MODELS = "/v1/models"
MODEL_FILE = File(
    (TAR_TYPE, *GZIP_TYPES, RAW_TYPE, "multipart/form-data"),
    "The tar (or tar.gz) of a model package, or an ONNX file.",
    field="file",
)
_NAME = r"^[a-z0-9][a-z0-9._-]*$"
_PACKAGE = r"^[a-z0-9][a-z0-9._-]*(@[A-Za-z0-9._-]+)?$"
PackageName: TypeAlias = Annotated[
    str,
    path_id("The package, as `name` or `name@version`.", "mine@1", _PACKAGE),
]


class PullableFile(Wire):
    url: str
    sha256: str | None = Field(description="Null: nobody published it, so confirm the file's with `sha256`.")


class PullableModel(Wire):
    """A model that this version can pull by name."""

    example: ClassVar[Example] = {"name": "best"}
    name: str
    installed: bool
    licence: schemas.Licence
    accuracy: str | None = Field(description="What was measured with it; null if nothing was.")
    max_bytes: int = Field(description="Maximum bytes of its files.")
    files: list[PullableFile] = Field(description="Where they are fetched from.")


class PullableModels(Wire):
    models: list[PullableModel]


class PullParams(Params):
    example: ClassVar[Example] = {"name": "best"}
    name: str = Field(pattern=_NAME, max_length=100, description="One of `GET /v1/models/pullable`.")
    accept_non_commercial: bool = Field(
        default=False,
        description="Accept a model whose licence forbids commercial use, since your use is not commercial.",
    )
    sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="For a model whose hash nobody published: the file's SHA-256, which you confirm.",
    )


class NewModelParams(Params):
    """The facts that an ONNX file doesn't contain: a name, what its input is, and its licence. A package's archive
    contains them."""

    name: str | None = Field(default=None, pattern=_NAME, max_length=100, description="ONNX: name of the new package.")
    preset: Preset | None = Field(
        default=None, description="ONNX: the model whose form of input the file takes, as for `likeness models add`."
    )
    licence: str | None = Field(
        default=None, min_length=1, max_length=100, description="ONNX: licence of the weights, an SPDX identifier."
    )
    non_commercial: bool = Field(default=False, description="ONNX: the licence forbids commercial use.")


@router.operation("GET", f"{MODELS}/pullable", scope=Scope.ADMIN, unrestricted=True, name="list_pullable_models")
def list_pullable(model_adder: ModelAdder, components: Components) -> PullableModels:
    """List the models that can be pulled.

    Lists the models that this version knows by name, with licence, measurements, size, and where their files are.
    """
    installed = {model.id.partition("@")[0] for model in components.models()}
    known = [model | {"installed": model["name"] in installed} for model in map(dict, model_adder.known())]
    return PullableModels(models=[PullableModel.model_validate(model) for model in known])


@router.operation(
    "POST",
    f"{MODELS}/pull",
    scope=Scope.ADMIN,
    unrestricted=True,
    name="pull_model",
    changes=True,
    status=202,
    codes=("package_unknown",),
)
def pull_model(model_adder: ModelAdder, grant: Grant, wanted: PullParams) -> schemas.Job:
    """Pull a model.

    Answers with the job that downloads the model, checks its SHA-256 and adds it as a package. If the server can't
    reach the network, the job's `error` says which files to copy to it. A gallery uses the package if it names it as
    its `embedder`.
    """
    return jobs.job_answer(model_adder.begin_pull(wanted.model_dump(), grant.key_id))


@router.operation(
    "POST",
    MODELS,
    scope=Scope.ADMIN,
    unrestricted=True,
    name="add_model",
    changes=True,
    status=202,
    upload=MODEL_FILE,
)
async def add_model(
    request: Request,
    model_adder: ModelAdder,
    admission: Admission,
    workers: WorkerPool,
    limits: BodyLimits,
    grant: Grant,
    query: Annotated[NewModelParams, Query()],
) -> schemas.Job:
    """Add a model.

    Takes a face embedder's ONNX file, with `name`, `preset` and `licence`, or the tar of a model package: its folder
    with `manifest.json` and the file that the manifest names. Answers with the job that checks and adds the model, in a
    process with limits of memory and time. An archive's operating points are accepted without a check.
    """
    file = await workers.run(lambda: model_adder.receive(grant.key_id))
    try:
        begin = partial(model_adder.begin_add, query.model_dump(), file, grant.key_id)
        job = await receive_upload(request, MODEL_FILE, file, begin, admission=admission, limits=limits)
    finally:
        model_adder.end_upload()
    return jobs.job_answer(job)


@router.operation(
    "DELETE",
    f"{MODELS}/{{package}}",
    scope=Scope.ADMIN,
    unrestricted=True,
    name="remove_model",
    changes=True,
    codes=("package_not_found", "package_ambiguous", "package_in_use", "package_shipped"),
)
def remove_model(model_remover: ModelRemover, package: PackageName) -> None:
    """Remove a model.

    Deletes a package that was added here, with its downloaded and prepared files. Fails if galleries have templates of
    the package, are moving to it or can go back to it, or if the server uses it. Operating points measured here stay,
    and are used again if the same package is added again.
    """
    model_remover.remove(package)


def _start(core: Components, data_dir: Path, models_dir: Path, detector: str) -> Part:
    adder, remover = ModelAdder(core, data_dir, models_dir), ModelRemover(core, data_dir, detector)
    works = {PULL: adder.pull, ADD: adder.add}
    return Part({"model_adder": adder, "model_remover": remover}, works, apart=tuple(works))


FEATURE = Feature(
    [router], _start, settings=("data_dir", "models_dir", "detector"), page=Path(__file__).parent / "page"
)
