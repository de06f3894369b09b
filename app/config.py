"""Settings, from the environment: `LIKENESS_` + name. Read in `main`, `cli` and `server` only."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.choices import Device, GpuMath, GpuSearch
from app.errors import InvalidSetting
from app.files import sqlite_url
from app.machine import cores
from app.wording import found_wrong, nearest_name

PREFIX = "LIKENESS_"
PROJECT = Path(__file__).resolve().parent.parent
MIB = 1024 * 1024
CLIENT_VARIABLES = frozenset({"LIKENESS_SERVER", "LIKENESS_KEY", "LIKENESS_KEY_FILE", "LIKENESS_PUBLIC_URL"})
"""Variables that only the command line reads, to find a server and to use its address in links."""
MEANT = {
    "PACKAGE": "EMBEDDER", "MODEL": "EMBEDDER", "THRESHOLD": "FMR", "GPU": "DEVICE", "WORKERS": "PHOTO_WORKERS",
    "LISTEN": "HOST", "BIND": "HOST", "ADDRESS": "HOST", "URL": "SERVER", "TIMEOUT": "REQUEST_TIMEOUT",
    "API_KEY": "KEY", "TOKEN": "KEY", "SECRET": "KEYS_FILE", "PASSWORD": "KEYS_FILE", "PROXY": "TRUSTED_PROXIES",
    "DB": "DATABASE_URL", "DEBUG": "LOG_LEVEL", "CAMERAS": "WATCHING", "TLS": "TLS_CERT",
}  # fmt: skip
"""Other programs' names for settings, all without the prefix."""
ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
"""Scheme, host and port as browsers send them: lower case, no path, no wildcard."""

HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
"""A name or an address as in the header `Host`, without its port."""

AskedRate = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Switch = Literal["on", "off"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Days = Annotated[float, Field(gt=0, le=3650, allow_inf_nan=False)]
Workers = Annotated[int, Field(ge=1, le=256)]


def _split(value: object) -> object:
    """Split a comma-separated list from the environment."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _origin(value: str) -> str:
    if not ORIGIN.fullmatch(value):
        raise ValueError("give exact origins, such as https://example.org or http://localhost:3000")
    return value


def _host(value: str) -> str:
    if not HOST.fullmatch(value):
        raise ValueError("give names without scheme and port, such as faces.example.org")
    return value.lower()


Item = TypeVar("Item")
Listed: TypeAlias = Annotated[tuple[Item, ...], NoDecode, BeforeValidator(_split)]
WebOrigin: TypeAlias = Annotated[str, AfterValidator(_origin)]
Host: TypeAlias = Annotated[str, AfterValidator(_host)]
Address: TypeAlias = Annotated[str, AfterValidator(lambda value: value.strip("[]") or value)]  # `[::1]`, as in URLs
Network: TypeAlias = Annotated[str, AfterValidator(lambda value: str(ipaddress.ip_network(value)))]


class Settings(BaseSettings):
    """All settings with their defaults."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True)

    host: Address = Field(default="127.0.0.1", description="Address to listen on; `::` is all, `0.0.0.0` all of IPv4.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    hosts: Listed[Host] = Field(
        default=(),
        description="Names, separated by commas, that requests may name the server by (header `Host`), such as "
        "`faces.example.org`; others are refused. The address that a connection arrives at is always accepted. All "
        "names by default: set it where more than this machine can reach the server.",
    )
    data_dir: Path = Field(
        default=Path("data"),
        description="Folder of the database, index snapshots and prepared models, and of what can't be made again: "
        "`admin.key`, `vault.key`, `packages` and `calibrations`. Keep a copy of these.",
    )
    models_dir: Path = Field(
        default=PROJECT / "models",
        description="Folder of the shipped model packages, only read; the data folder's `packages` has others.",
    )
    database_url: str | None = Field(
        default=None,
        description="SQLAlchemy URL, e.g. `postgresql+psycopg://user:password@host/name`; "
        "by default SQLite in the data folder.",
    )
    index: str = Field(
        default="faiss",
        description="Where vectors are searched: `faiss`, in this process's memory, or a Milvus, "
        "`milvus://host:port/database` (`docs/how-to/milvus.md`).",
    )
    index_token: SecretStr | None = Field(
        default=None, description="What Milvus asks for: an API key, or `user:password`."
    )
    device: Device = Field(
        default="cpu",
        description="Where templates are made and, with `likeness-server[gpu]`, large galleries are searched. `auto` "
        "tries `cuda`; any other device that can't be used is an error at the start.",
    )
    detect_device: Device = Field(default="cpu", description="Where faces are found.")
    gpu_memory_mib: int | None = Field(
        default=None, ge=64, description="Most memory in MiB of each model on a CUDA device; by default no limit."
    )
    gpu_math: GpuMath = Field(
        default="fp32",
        description="How a CUDA device computes models: `fp32`; `nhwc`, channels last, also for finding faces; or "
        "`fp16`, half the size, for templates only: their cosine with `fp32`'s is 0.99999. Both make a fifth more "
        "templates a second on an H200 in batches of 64, an eighth more in small ones. The package's golden vectors "
        "check it at start.",
    )
    gpu_search: GpuSearch = Field(
        default="faiss",
        description="What searches large galleries on a GPU: `faiss`, or `product`, a matrix product by ONNX Runtime, "
        "made for millions of faces: faster by itself on an H200, but not yet tried there as a gallery's index.",
    )
    embedder: str = Field(
        default="sface",
        description="Model package that makes templates where neither a gallery nor a request names one: `name` or "
        "`name@version`.",
    )
    max_embedders: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Embedding packages kept loaded; the least recently used one is closed first.",
    )
    detector: str = Field(default="yunet", description="Model package that finds faces: `name` or `name@version`.")
    fmr: Annotated[AskedRate, Field(le=0.1)] = Field(
        default=1e-4, description="False match rate that verification decides at unless asked otherwise; at most 0.1."
    )
    fpir: AskedRate = Field(
        default=0.01,
        description="False positive identification rate that identification decides at unless asked otherwise. Never "
        "laxer than `LIKENESS_FMR` against each subject, which decides in galleries of fewer than a hundred.",
    )
    liveness: Listed[str] = Field(
        default=(),
        description="Liveness packages whose scores are averaged, separated by commas; by default the only one "
        "installed (`docs/how-to/liveness.md`).",
    )
    apcer: AskedRate = Field(
        default=0.05, description="Share of attacks, of any kind, that may be judged `live` (ISO/IEC 30107-3's APCER)."
    )
    bpcer: AskedRate = Field(
        default=0.05, description="Share of live faces that may be judged `spoof` (ISO/IEC 30107-3's BPCER)."
    )
    min_face: int = Field(default=20, ge=10, le=1000, description="Smallest face to look for, in pixels.")
    max_image_bytes: int = Field(default=10 * MIB, ge=1024, description="Largest image file, in bytes.")
    max_image_pixels: int = Field(default=50_000_000, ge=1, description="Most pixels an image may have.")
    max_image_side: int = Field(default=16_384, ge=1, description="Longest side an image may have, in pixels.")
    max_images: int = Field(default=50, ge=1, le=1000, description="Most images in one enrollment.")
    max_request_bytes: int = Field(
        default=64 * MIB,
        ge=1024,
        description="Largest body of any request, in bytes; never more than an eighth of the memory for requests.",
    )
    max_metadata_bytes: int = Field(
        default=16 * 1024, ge=2, description="Largest metadata of one subject, in bytes of JSON."
    )
    threads: int = Field(
        # Most requests wait for a core, their batch or the database, and more of them fill the batches.
        default_factory=lambda: max(16, 4 * cores()),
        ge=1,
        le=1024,
        description="Requests worked on at once, including those that wait for templates or the database; by default "
        "four times the cores, at least sixteen.",
    )
    photo_workers: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Processes that read photos and find their faces, each with a limit of memory, without "
        "files and network: a photo that crashes one fails alone. With 0 the server's own process reads photos. By "
        "default, on Linux, as many as cores, at most one for each 256 MiB of memory; 0 where a GPU finds faces.",
    )
    detect_threads: Workers = Field(default=1, description="Threads that look for the faces of one photo.")
    embed_workers: Workers | None = Field(
        default=None,
        description="Batches embedded side by side, a second one where it is full; by default as many as cores, one "
        "on a GPU.",
    )
    embed_threads: Workers = Field(default=1, description="Threads that embed one batch.")
    max_batch: int | None = Field(
        default=None, ge=1, le=1024, description="Most faces embedded in one batch; by default 8 on a CPU, 64 on a GPU."
    )
    queue_limit: int = Field(
        default=64, ge=1, description="Requests held at once, including waiting ones; more are answered with 429."
    )
    memory_bytes: int | None = Field(
        default=None,
        ge=1024,
        description="Memory that the server may take in all. What it needs at rest and a fifth of all are set aside; "
        "bodies, photos and crops of all requests share the rest; what does not fit waits, or is answered with 429. "
        "By default the container's (cgroup's) limit, or half of the machine's memory where there is none.",
    )
    request_timeout: Seconds = Field(
        default=60,
        description="Seconds until a request is given up. The client has as long to send the body, and as long to read "
        "the answer.",
    )
    header_timeout: Seconds = Field(
        default=10, description="Seconds in which a request's head must have arrived; the connection is closed after."
    )
    keep_alive: Seconds = Field(
        default=75,
        description="Seconds that an idle connection is kept. Set it longer than clients and proxies keep theirs: "
        "otherwise a request may arrive as the connection is closed.",
    )
    drain_seconds: Seconds = Field(
        default=30, description="Seconds that requests in progress may still take when the server stops."
    )
    tls_cert: Path | None = Field(
        default=None, description="Certificate chain (PEM) to serve HTTPS with, together with `LIKENESS_TLS_KEY`."
    )
    tls_key: Path | None = Field(default=None, description="The certificate's private key (PEM).")
    trusted_proxies: Listed[Network] = Field(
        default=(),
        description="Addresses or networks of proxies, separated by commas, whose `X-Forwarded-For` and "
        "`X-Forwarded-Proto` are believed; nobody's by default.",
    )
    cors_origins: Listed[WebOrigin] = Field(
        default=(),
        description="Origins, separated by commas, whose pages may call from a browser, e.g. `https://example.org`; "
        "none by default.",
    )
    snapshot_seconds: float = Field(
        default=300,
        ge=0,
        le=86_400,
        description="Seconds between snapshots of changed search indexes in the data folder; "
        "0 for none, each start then reads every template from the database.",
    )
    encryption_key_file: Path | None = Field(
        default=None,
        description="File of the keys that templates, crops and index snapshots are sealed with: each 32 bytes as "
        "base64, one a line; the first seals, all open. None by default: they are stored as they are.",
    )
    encryption_key: SecretStr | None = Field(
        default=None, description="The same keys themselves, separated by commas, in place of the file."
    )
    encryption: Literal["seal", "open"] = Field(
        default="seal",
        description="With `open`, the encryption keys only open sealed data, and new data is stored plain: "
        "for switching encryption on or off.",
    )
    expiry_seconds: Seconds = Field(
        default=60, description="Seconds between checks for subjects whose `expires_at` has passed; these are erased."
    )
    keys_file: Path | None = Field(
        default=None, description="YAML file that declares API keys, applied at each start; none by default."
    )
    rate_limit: str = Field(
        default="unlimited",
        description="How often a key without a rate of its own may ask: `10/s`, `600/m`, `600/m:20` (with a burst).",
    )
    failed_keys: str = Field(
        default="20/m",
        description="How many wrong keys one address may send before it is answered with 429; all addresses together "
        "may send a hundred times as many. Keys that have worked since the start are still accepted.",
    )
    vector_rate: str = Field(
        default="60/m",
        description="How many embeddings one key with the scope `templates` may have compared with enrolled faces, "
        "and at most in one request (the burst); `unlimited` for no limit.",
    )
    audit_days: float = Field(
        default=365, ge=0, allow_inf_nan=False, description="How long audit entries are kept; 0: for ever."
    )
    audit_sink: str | None = Field(
        default=None,
        description="Where each entry of the audit log is also written, as a line of JSON when it is committed: "
        "`stdout` or a file that lines are appended to. Nowhere by default.",
    )
    correction_days: Days = Field(
        default=365,
        description="How long a correction (a probe that is not a subject) counts, unless the call says otherwise.",
    )
    max_import_bytes: int = Field(
        default=10 * 1024 * MIB, ge=1024, description="Largest upload of an import, packed and unpacked, in bytes."
    )
    job_days: Days = Field(
        default=7,
        description="How long finished jobs are kept, with their reports and the files they left to be fetched.",
    )
    session_days: float = Field(
        default=30,
        ge=0,
        le=365,
        description="How long a browser stays signed in where its user asks for that; 0: nobody stays signed in.",
    )
    compreface: Switch = Field(
        default="on", description="Whether CompreFace's REST interface is answered below `/api/v1/`."
    )
    rekognition: Switch = Field(default="on", description="Whether Amazon Rekognition's API is answered at `POST /`.")
    deepstack: Switch = Field(
        default="off",
        description="Whether DeepStack's and CodeProject.AI's face interface is answered below `/v1/vision/`.",
    )
    immich: Switch = Field(
        default="off", description="Whether Immich may have faces found and embedded, at `/ping` and `/predict`."
    )
    immich_networks: Listed[Network] = Field(
        default=(),
        description="Networks, separated by commas, whose addresses may call `/predict` without a key, which Immich "
        "can't send, such as `172.18.0.0/16`. They see no gallery.",
    )
    immich_others: WebOrigin | None = Field(
        default=None,
        description="Immich's own machine learning, `http://immich-machine-learning:3003`, which gets Immich's "
        "requests for anything but faces; by default such requests are refused.",
    )
    watching: Switch = Field(
        default="off", description="Whether watchers of cameras may tell of sightings (`docs/how-to/cameras.md`)."
    )
    sightings_days: Days = Field(default=7, description="How long sightings and their events are kept.")
    unknown_days: Days = Field(
        default=2,
        description="How long crops and templates of people without a name are kept; never longer than sightings.",
    )
    stranger_days: float = Field(
        default=0,
        ge=0,
        le=3650,
        allow_inf_nan=False,
        description="How long unknown people are kept as strangers after they were seen last; 0: not at all.",
    )
    webhook_networks: Listed[Network] = Field(
        default=(),
        description="Private networks, separated by commas, that webhooks may be sent to, such as `192.168.1.0/24` or "
        "`127.0.0.1/32`; by default public addresses alone.",
    )
    mqtt: SecretStr | None = Field(
        default=None,
        description="MQTT broker that events go to, `mqtt://user:password@host:1883` or `mqtts://`, with Home "
        "Assistant's discovery; none by default. Needs `likeness-server[mqtt]`.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severity that is logged; `info` logs each request."
    )

    @property
    def database(self) -> str:
        """Return the database's URL, given or in the data folder."""
        return self.database_url or sqlite_url(self.data_dir / "likeness.db")

    @property
    def encryption_keys(self) -> str | None:
        """Return the text of `encryption_key`, which must not be shown or logged."""
        return self.encryption_key.get_secret_value() if self.encryption_key else None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("LIKENESS_TLS_CERT and LIKENESS_TLS_KEY go together")
        if self.encryption_key is not None and self.encryption_key_file is not None:
            raise ValueError("give LIKENESS_ENCRYPTION_KEY_FILE or LIKENESS_ENCRYPTION_KEY, not both")
        return self


def load_settings(**given: object) -> Settings:
    """Return the settings from the environment; those ``given`` take precedence.

    Raises Unusable (code ``unknown_setting`` or ``invalid_setting``) with one line that names what is wrong.
    """
    refuse_unknown(os.environ)
    try:
        return Settings(**given)  # type: ignore[arg-type]  # validated right here
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # the message names settings that don't fit together
            raise InvalidSetting(found_wrong(first)) from None
        name = PREFIX + str(first["loc"][0]).upper()
        raise InvalidSetting(f"{name}: {found_wrong(first)}", setting=name) from None


def refuse_unknown(environ: Mapping[str, str]) -> None:
    """Raise Unusable (``unknown_setting``) for an unknown variable, naming the one that is probably meant."""
    known = [name.upper() for name in Settings.model_fields] + [
        name.removeprefix(PREFIX) for name in sorted(CLIENT_VARIABLES)
    ]
    for name in sorted(environ):
        short = name.upper().removeprefix(PREFIX)
        if name.upper().startswith(PREFIX) and short not in known:
            nearest = MEANT.get(short) or nearest_name(short, known)
            guess = f"did you mean {PREFIX}{nearest}?" if nearest else "docs/reference/settings.md lists all of them."
            raise InvalidSetting(f"{name} is not a setting; {guess}", code="unknown_setting", nearest=nearest)
