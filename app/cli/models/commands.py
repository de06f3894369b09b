"""The commands below `likeness models`."""

from __future__ import annotations

import typer

from app.cli.models import adding, calibrations, fusing, listing, measuring

models = typer.Typer(no_args_is_help=True, epilog="Example: likeness models list")
models.command("list", epilog="Example: likeness models list --json")(listing.list_models)
models.command(epilog="Example: likeness models show sface")(listing.show)
models.command(epilog="Example: likeness models pull best")(adding.pull)
models.command(epilog="Example: likeness models add w600k_r50.onnx --name mine --preset insightface --licence MIT")(
    adding.add
)
models.command(epilog="Example: likeness models measure auraface --photos people/")(measuring.measure)
models.command(epilog="Example: likeness models quantize sface --photos photos/")(measuring.quantize)
models.command(epilog="Example: likeness models fuse sface intel-face --name pair --photos people/")(fusing.fuse)
models.add_typer(calibrations.commands, name="calibrations", help="Which operating points of a package decide.")
