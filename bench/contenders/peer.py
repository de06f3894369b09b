"""Published speeds of the nearest other self-hosted server, as constants: PyPI doesn't have it with weights.

InsightFace Server 0.2.0 (deepinsight/insightface, folder `server`), measured in 2026 on a machine of two cores (Zen 5,
AVX-512) with authentication on: its HTTP server with a stand-in for the model, and its real stages separately, so each
figure combines the two. Where two runs differed, the higher figure is used. Ratios mean something only on a machine of
that kind.
"""

from __future__ import annotations

from typing import Final

NAME: Final = "InsightFace Server 0.2.0, keys checked (its published range's best)"
IDENTIFY: Final = 29.0
"""Photos a second searched among 1,000 people (20-29)."""
VERIFY: Final = 21.0
"""Pairs of photos a second compared (15-21)."""
ENROLL: Final = 20.0
"""Photos a second enrolled."""
TEMPLATES_IN: Final = 380.0
"""Templates made elsewhere taken in a second (320-380, in twenties)."""
