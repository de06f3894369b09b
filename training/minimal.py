"""Train a face embedder, all on one page: `python training/minimal.py PEOPLE PACKAGE`.

PEOPLE is a folder with a folder of photos for each person. PACKAGE, such as `models/mine`, is the folder of the model
package to write. Read this file from top to bottom. `python -m training train` does the same with what a long run
needs: other nets and losses, checkpoints, several GPUs, mixed precision, augmentation, and evaluation during training.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from app.errors import InvalidInput
from app.models.calibration import operating_points
from app.models.opening import open_detector
from app.models.stages import LIMITS
from app.package.folders import find_packages, select
from app.package.manifest import Licence, Provenance, Rewrite
from app.pipeline import Pipeline, main_crop
from training.export import COARSE_RATES, export_fp32, golden_vectors, write_embedder

STEPS, BATCH, DIMENSION, LEARNING_RATE = 2000, 64, 128, 0.05
SCALE, MARGIN = 32.0, 0.3
"""ArcFace's s and m; the paper has 64 and 0.5, for sets of millions of photos."""
HELD_OUT = 5
"""Every fifth person is held out, since thresholds have to hold for people unseen in training."""


# 1. Photos become aligned crops: the service's own stages find the face and turn it upright.
def read_crops(people: Path) -> tuple[Tensor, Tensor]:
    """Return the crops, (N, 112, 112, 3) uint8 RGB, and the number of the person on each, (N,)."""
    detector = open_detector(select(find_packages(Path("models")), "yunet"), Path("build/packages"))
    pipeline, crops, labels = Pipeline(detector, LIMITS), [], []
    for label, folder in enumerate(sorted(path for path in people.iterdir() if path.is_dir())):
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            try:
                crops.append(main_crop(pipeline.detect(file.read_bytes())))
                labels.append(label)
            except InvalidInput as error:
                print(f"{file}: left out: {error.message}")
    if (found := len(set(labels))) <= HELD_OUT:  # two people have to be held out, to compare with each other
        sys.exit(f"{people}: folders with a face: {found}. At least {HELD_OUT + 1} are needed, one for each person.")
    return torch.from_numpy(np.stack(crops)), torch.unique(torch.tensor(labels), return_inverse=True)[1]


# 2. The network: IResNet-18 (arXiv 1801.07698, section 3.2), a ResNet whose blocks begin with a normalisation.
class Block(nn.Module):
    """(B, inside, H, W) -> (B, outside, H / stride, W / stride)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inside), nn.Conv2d(inside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside), nn.PReLU(outside), nn.Conv2d(outside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.shortcut(x)
        return out


class Embedder(nn.Module):
    """(N, 112, 112, 3) uint8 RGB crops -> (N, DIMENSION) float32 of length 1, as a model package's graph does."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.PReLU(64)]
        for inside, outside in ((64, 64), (64, 128), (128, 256), (256, 512)):
            layers += [Block(inside, outside, 2), Block(outside, outside, 1)]  # 112 -> 56 -> 28 -> 14 -> 7
        layers += [nn.BatchNorm2d(512), nn.Flatten(), nn.Linear(512 * 7 * 7, DIMENSION), nn.BatchNorm1d(DIMENSION)]
        self.network = nn.Sequential(*layers)

    def forward(self, crops: Tensor) -> Tensor:
        pixels = (crops.permute(0, 3, 1, 2).float() - 127.5) / 127.5
        embedding = self.network(pixels)
        unit: Tensor = embedding / (embedding * embedding).sum(1, keepdim=True).sqrt().clamp(min=1e-12)
        return unit


# 3. The loss: ArcFace. Each person has a direction. MARGIN is added to the angle between a face and its own person's.
def arcface(embeddings: Tensor, directions: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of unit embeddings (N, D), given the people's directions (C, D) and labels (N,)."""
    cosine = (embeddings @ F.normalize(directions).T).clamp(-1 + 1e-6, 1 - 1e-6)
    is_target = F.one_hot(labels, len(directions)).bool()
    logits = torch.where(is_target, torch.cos(torch.acos(cosine) + MARGIN), cosine)
    return F.cross_entropy(SCALE * logits, labels)


# 4. Training: draw a batch, mirror half of it, step. The learning rate falls to zero along a cosine.
def train(crops: Tensor, labels: Tensor) -> Embedder:
    people, labels = torch.unique(labels, return_inverse=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, directions = Embedder().to(device), nn.Parameter(0.01 * torch.randn(len(people), DIMENSION, device=device))
    weights = [*model.parameters(), directions]
    optimiser = torch.optim.SGD(weights, LEARNING_RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for step in range(1, STEPS + 1):
        chosen = torch.randint(len(crops), (BATCH,))
        batch = torch.where(torch.rand(BATCH, 1, 1, 1) < 0.5, crops[chosen], crops[chosen].flip(2)).to(device)
        loss = arcface(model(batch), directions, labels[chosen].to(device))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, 5.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 0 or step == STEPS:
            print(f"step {step} of {STEPS}: loss {loss.item():.3f}")
    return model.eval().cpu()


# 5. A model package: the graph, checked against torch, with thresholds measured on the people who were held out.
def write(model: Embedder, crops: Tensor, labels: Tensor, package: Path) -> None:
    exported = export_fp32(model, DIMENSION)
    with torch.no_grad():
        vectors = torch.cat([model(part) for part in torch.split(crops, BATCH)]).numpy()
    pairs = operating_points.compare_all(vectors, labels.numpy(), highest_fmr=COARSE_RATES[0])
    measured = operating_points.measure(pairs, labels.numpy(), rates=COARSE_RATES)
    held_out = f"{len(crops)} photos of people not trained on"
    on: dict[str, Any] = {"name": "held-out", "measured_on": held_out, "pairs": "all pairs"}
    enough = len(operating_points.rising(measured.points)) >= 2  # without thresholds the service decides nothing
    write_embedder(
        package, exported.model, DIMENSION, version="1", title="IResNet-18", description="", prepare=Rewrite(),
        calibration=operating_points.calibration(measured, **on, default=True) if enough else None,
        licence=Licence(name="LicenseRef-unspecified", non_commercial=True),  # say what your photos allow
        provenance=Provenance(text="Trained by training/minimal.py.", figures=exported.figures),
        golden=golden_vectors(exported.model),
    )  # fmt: skip


def main(people: str, package: str) -> None:
    torch.manual_seed(0)
    crops, labels = read_crops(Path(people))
    strangers = labels % HELD_OUT == 0
    model = train(crops[~strangers], labels[~strangers])
    write(model, crops[strangers], labels[strangers], Path(package))
    print(f"Serve it: LIKENESS_EMBEDDER={Path(package).name} make serve")


if __name__ == "__main__":
    if len(sys.argv) != 3 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    main(*sys.argv[1:])
