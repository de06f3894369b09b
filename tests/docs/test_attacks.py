"""The page of attacks names tests that exist."""

from __future__ import annotations

import re

from tests.conftest import PROJECT

PAGE = PROJECT / "docs" / "decisions" / "attacks.md"


def test_each_attack_has_a_test() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for attack, *_, named in rows:
        found = re.fullmatch(r" `([\w/]+\.py)::(\w+)` ", named)
        assert found, attack
        path, name = found.groups()
        assert re.search(rf"^(async )?def {name}\(", (PROJECT / "tests" / path).read_text(), re.MULTILINE), named
