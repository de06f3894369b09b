"""What imports and exports take."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from app.api.schemas.base import MAX_ID_LENGTH, ON_CONFLICT, Params
from app.choices import OnConflict, QualityName


class ImportParams(Params):
    content: Literal["photos", "templates", "archive"] = Field(
        default="photos",
        description="The content of the tar. `photos`: one folder per person; `templates`: `templates.npy` with "
        "`faces.jsonl` or `ids.txt`; `archive`: the result of an export.",
    )
    quality: QualityName = Field(default="medium", description="Photos: the least quality to accept.")
    on_conflict: OnConflict | None = Field(
        default=None,
        description=f"{ON_CONFLICT} Default: the gallery's for photos; `allow` for templates and archives, where the "
        "look costs more than the rest of the import.",
    )
    package: str | None = Field(
        default=None, max_length=MAX_ID_LENGTH, description="Templates: the model package that computed them."
    )
    normalize: bool = Field(default=False, description="Templates: normalize them to length 1 first.")
    trust: str | None = Field(
        default=None,
        max_length=128,
        description="Archives: the public key of the server that signed it, base64, or that key's SHA-256.",
    )

    @model_validator(mode="after")
    def _package_named(self) -> Self:
        if self.content == "templates" and self.package is None:
            raise ValueError("name the package that computed the templates")
        return self


class ExportParams(Params):
    crops: bool = Field(default=True, description="Whether to include the stored crops.")
