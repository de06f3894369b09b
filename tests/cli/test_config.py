"""Settings: what is refused at the door, and what the defaults mean."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from app import config
from app.errors import Unusable
from tests.support.commands import run


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(config.PREFIX)]:
        monkeypatch.delenv(name)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIKENESS_PORT", "9000")
    monkeypatch.setenv("LIKENESS_DATA_DIR", str(tmp_path))
    settings = config.load_settings()
    assert (settings.port, settings.data_dir) == (9000, tmp_path)
    assert settings.database == f"sqlite:///{tmp_path / 'likeness.db'}"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("LIKENESS_PROT", "LIKENESS_PORT"),
        ("LIKENESS_MODEL_DIR", "LIKENESS_MODELS_DIR"),
        ("likeness_devise", "LIKENESS_DEVICE"),
        ("LIKENESS_MAX_IMAGE_BYTE", "LIKENESS_MAX_IMAGE_BYTES"),
        ("LIKENESS_RATE", "LIKENESS_RATE_LIMIT"),
        ("LIKENESS_PACKAGE", "LIKENESS_EMBEDDER"),
        ("LIKENESS_THRESHOLD", "LIKENESS_FMR"),
        ("LIKENESS_LISTEN", "LIKENESS_HOST"),
        ("LIKENESS_API_KEY", "LIKENESS_KEY"),
        ("LIKENESS_CORS", "LIKENESS_CORS_ORIGINS"),
        ("LIKENESS_LOG", "LIKENESS_LOG_LEVEL"),
        ("LIKENESS_TIMEOUT", "LIKENESS_REQUEST_TIMEOUT"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_right_name(
    monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    monkeypatch.setenv(given, "1")
    with pytest.raises(Unusable, match=f"{given} is not a setting; did you mean {meant}") as caught:
        config.load_settings()
    assert caught.value.code == "unknown_setting"


@pytest.mark.parametrize(("given", "meant"), [("[::1]", "::1"), ("::", "::"), ("127.0.0.1", "127.0.0.1"), ("[]", "[]")])
def test_an_address_to_listen_on_may_stand_in_brackets(monkeypatch: pytest.MonkeyPatch, given: str, meant: str) -> None:
    """Without an address in them they are none that can be listened on: an empty one would be every address."""
    monkeypatch.setenv("LIKENESS_HOST", given)
    assert config.load_settings().host == meant
    assert config.load_settings(host=given).host == meant


def test_other_programs_names_for_settings_mean_settings_that_exist() -> None:
    known = {name.upper() for name in config.Settings.model_fields}
    known |= {name.removeprefix(config.PREFIX) for name in config.CLIENT_VARIABLES}
    assert set(config.MEANT.values()) <= known
    assert not set(config.MEANT) & known


def test_a_setting_like_no_other_is_refused_without_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIKENESS_QUALITY", "40")
    with pytest.raises(Unusable, match=r"^LIKENESS_QUALITY is not a setting; docs/reference/settings\.md lists"):
        config.load_settings()


def test_a_score_as_the_default_error_rate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIKENESS_FMR", "0.43")
    with pytest.raises(Unusable, match=r"^LIKENESS_FMR: Give a rate of at most 0\.1, such as 0\.0001"):
        config.load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "70000"), ("PORT", "x"), ("DEVICE", "tpu"), ("FMR", "0"), ("FMR", "nan"), ("THREADS", "-1")],
)
def test_a_value_out_of_range_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"LIKENESS_{name}", value)
    with pytest.raises(Unusable, match=f"^LIKENESS_{name}: ") as caught:
        config.load_settings()
    assert caught.value.code == "invalid_setting"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FMR", "1%", "Give a rate between 0 and 1, such as 0.0001"),
        ("APCER", "2", "Give a rate between 0 and 1"),
        ("MAX_IMAGE_BYTES", "10MB", "Give a whole number, such as 10"),
        ("DRAIN_SECONDS", "long", "Give a number, such as 0.5"),
        ("TRUSTED_PROXIES", "router", "such as 192.168.1.0/24"),
        ("WATCHING", "yes", "'on' or 'off'"),
    ],
)
def test_a_wrong_value_is_answered_with_what_to_write(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(f"LIKENESS_{name}", value)
    with pytest.raises(Unusable, match=re.escape(words)):
        config.load_settings()


def test_a_wrong_setting_stops_the_server_with_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = run(tmp_path / "data", "serve", PROT=1)
    assert done.returncode != 0
    assert "did you mean LIKENESS_PORT" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_the_table_says_every_setting_once() -> None:
    page = (config.PROJECT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| `LIKENESS_")]
    assert [line.split("`")[1] for line in lines] == [
        f"LIKENESS_{name.upper()}" for name in config.Settings.model_fields
    ]
    assert all(line.count("|") == 4 and not line.endswith("| None |") for line in lines)
