"""No sentence of the page puts a number before a word that stays plural: `count` and `form` choose the word's form."""

from __future__ import annotations

import re

from tests.conftest import PROJECT

SCRIPTS = sorted([*(PROJECT / "app/page").rglob("*.js"), *(PROJECT / "app/features").glob("*/page/*.js")])
COUNTED = re.compile(r"\b(?:count|form)\([^\n]*?, \"([a-z ]+)\"(?:, \"([a-z ]+)\")?\)")
RATES = ("oneIn(", "pace", "percent(")
"""What stands before a plural whatever its value is: one in many, a pace with a decimal, a share."""


def test_a_number_in_a_sentence_gets_the_form_of_its_word_from_one_function() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in SCRIPTS}
    counted = {match.groups() for source in sources.values() for match in COUNTED.finditer(source)}
    plurals = {many or f"{one}s" for one, many in counted} - {"are"}
    assert {"faces", "people", "photos"} <= plurals
    number = re.compile(r"\$\{([^{}]+)\} (?:" + "|".join(sorted(plurals)) + r")\b")
    found = [
        f"{path.relative_to(PROJECT)}: {match[0]}"
        for path, source in sources.items()
        for match in number.finditer(source)
        if not any(rate in match[1] for rate in RATES)
    ]
    assert not found, found


def test_no_script_but_that_of_the_words_compares_a_number_with_one_to_choose_a_word() -> None:
    chosen = re.compile(r'=== 1 \? ["`]\W*[a-z]')
    found = [path.name for path in SCRIPTS if chosen.search(path.read_text(encoding="utf-8"))]
    assert not found, found
