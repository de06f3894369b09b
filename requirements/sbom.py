"""Write a CycloneDX bill of materials: `python requirements/sbom.py CYCLONEDX_PY FILE`.

The packages that are installed beside this Python, as cyclonedx-py lists them, and the model packages in `models/`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent


def main(program: str, target: Path) -> None:
    command = [program, "environment", sys.executable, "--pyproject", str(PROJECT / "pyproject.toml"), "--of", "JSON"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (our own tool)
    if done.returncode:
        sys.exit(f"The packages can't be listed:\n{done.stderr.strip()}")
    bill = with_models(json.loads(done.stdout), PROJECT / "models")
    target.write_text(json.dumps(bill, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.write(f"{target}: {len(bill['components'])} components\n")


def with_models(bill: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the bill with a component for each model package, which the project depends on."""
    models = [model(json.loads(path.read_text())) for path in sorted(folder.glob("*/manifest.json"))]
    names = [one["bom-ref"] for one in models]
    root = bill["metadata"]["component"]["bom-ref"]
    edges = [
        {**edge, "dependsOn": sorted({*edge.get("dependsOn", ()), *names})} if edge["ref"] == root else edge
        for edge in bill["dependencies"]
    ]
    components = [*bill.get("components", ()), *models]
    return {**bill, "components": components, "dependencies": [*edges, *({"ref": name} for name in names)]}


def model(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the component of a model package: its weights' SHA-256, its licence, and where it comes from."""
    licence = manifest["licence"]
    named = {"name": licence["name"], **({"url": licence["url"]} if licence.get("url") else {})}
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{manifest['name']}@{manifest['version']}",
        "name": manifest["name"],
        "version": manifest["version"],
        "description": manifest["description"],
        "hashes": [{"alg": "SHA-256", "content": manifest["sha256"]}],
        "licenses": [{"license": named}],
        "properties": [{"name": "likeness:non-commercial", "value": str(licence["non_commercial"]).lower()}],
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
