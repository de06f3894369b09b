"""Pin the base images by digest: `python docker/digests.py [DOCKER]`. Needs access to a registry.

Writes docker/digests.env, one variable of docker-compose.yml on each line, all of them or none.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TARGET = FOLDER / "digests.env"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def images() -> dict[str, str]:
    """Return the image of each variable, with its tag, as docker-compose.yml has it."""
    compose = (FOLDER.parent / "docker-compose.yml").read_text()
    return dict(re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}", compose))


def digest_of(image: str, docker: str) -> str | None:
    """Return the digest of the tag's manifest list (all platforms), as the registry has it now."""
    inspect = [docker, "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    pulled = [docker, "image", "inspect", "--format", '{{join .RepoDigests " "}}', image]
    for commands in ([inspect], [[docker, "pull", "--quiet", image], pulled]):  # without buildx, pull the image
        answers = [subprocess.run(command, capture_output=True, text=True, check=False) for command in commands]
        found = DIGEST.search(answers[-1].stdout)
        if found and not any(answer.returncode for answer in answers):
            return found[0]
    return None


def main(docker: str = "docker") -> None:
    lines = []
    for name, image in images().items():
        digest = digest_of(image, docker)
        if digest is None:
            sys.exit(f"No registry tells the digest of {image}: nothing was pinned.")
        lines.append(f"{name}={image}@{digest}\n")
    TARGET.write_text("".join(lines))
    sys.stdout.write(f"{TARGET}: {len(lines)} images\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
