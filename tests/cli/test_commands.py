"""Properties of all commands: what they create, which exit codes they use, what they import, and their help."""

from __future__ import annotations

import io
import json
import os
import pty
import shlex
import shutil
import sqlite3
import subprocess
import sys
import uuid
import zipfile
from contextlib import closing
from functools import partial
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.conftest import PROJECT
from tests.support import packages
from tests.support.commands import run as likeness
from tests.support.documents import load
from tests.support.images import encoded
from tests.support.live import ANSWER_S, LiveServer, environment
from tests.support.ready import give_database, give_models

SAMPLES = PROJECT / "docs" / "samples"
COLLINS, HOPPER = SAMPLES / "collins.jpg", SAMPLES / "hopper.jpg"
READING = (
    ("galleries", "list"),
    ("galleries", "check"),
    ("people", "list", "staff"),
    ("people", "show", "staff", "ada"),
    ("faces", "list", "staff", "ada"),
    ("faces", "check", "staff"),
    ("corrections", "list", "staff", "ada"),
    ("identify", "staff", COLLINS),
    ("enroll", "staff", "ada", COLLINS),
    ("import", "staff", SAMPLES.parent),
    ("export", "staff", "/nowhere/staff.archive"),
    ("backup", "/nowhere/likeness.backup"),
    ("jobs", "list"),
    ("jobs", "show", "1"),
    ("receipts", "list"),
    ("reembed", "show", "staff"),
    ("keys", "list"),
    ("keys", "admin"),
    ("keys", "link"),
    ("audit", "export"),
    ("vault", "status"),
    ("status",),
)
HEAVY = {"cv2", "faiss", "fastapi", "numpy", "onnx", "onnxruntime", "sqlalchemy", "uvicorn"}


@pytest.fixture
def gallery(shared_server: LiveServer) -> str:
    """A gallery with one person, `ada`, and one face."""
    name = f"staff-{uuid.uuid4().hex}"
    done = likeness(shared_server.data_dir, "enroll", name, "ada", COLLINS, "--create")
    assert done.returncode == 0, done.stderr
    return name


@pytest.mark.long
def test_photos_of_one_person_are_one_track(shared_server: LiveServer, tmp_path: Path) -> None:
    name, ada = f"staff-{uuid.uuid4().hex}", tmp_path / "ada"
    ada.mkdir()
    for sample in ("collins.jpg", "collins_again.jpg"):
        shutil.copy(SAMPLES / sample, ada)

    def answered(*words: object) -> dict[str, object]:
        done = likeness(shared_server.data_dir, *words, "--track", "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, object] = json.loads(done.stdout)
        return answer

    enrolled = answered("enroll", name, "ada", ada, "--create")
    assert isinstance(enrolled["enrolled"], list)
    assert len(enrolled["enrolled"]) == 2
    single = likeness(shared_server.data_dir, "verify", COLLINS, SAMPLES / "collins_again.jpg", "--json")
    compared = answered("verify", ada, COLLINS)
    assert compared["match"] is True
    assert compared["threshold"] > json.loads(single.stdout)["threshold"], "two photos that differ"


class TestWithoutADataFolder:
    @pytest.mark.parametrize("words", READING, ids=lambda words: " ".join(map(str, words[:2])))
    def test_a_command_that_reads_says_where_it_looked_and_creates_nothing(
        self, tmp_path: Path, words: tuple[object, ...]
    ) -> None:
        folder = tmp_path / "data"
        answers = [likeness(folder, *words)]
        if words != ("keys", "admin"):  # prints one word, and has no --json
            answers.append(likeness(folder, *words, "--json"))
            assert json.loads(answers[1].stderr)["error"]["code"] == "no_data_folder"
        for done in answers:
            assert (done.returncode, done.stdout) == (4, "")
            assert str(folder) in done.stderr
            assert "likeness serve" in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_a_command_that_stores_something_says_which_folder_is_new(self, tmp_path: Path) -> None:
        words = ("keys", "create", "--id", "door", "--scope", "read")
        made, again = (likeness(tmp_path / "data", *words[:3], name, *words[4:]) for name in ("door", "gate"))
        assert (made.returncode, again.returncode) == (0, 0)
        assert f"{tmp_path / 'data'} is a new data folder" in made.stderr
        assert "new data folder" not in again.stderr

    def test_a_file_in_place_of_a_folder_is_named(self, tmp_path: Path) -> None:
        give_models(tmp_path)
        give_database(tmp_path)
        (tmp_path / "snapshots").write_text("")
        done = likeness(tmp_path, "galleries", "create", "staff")
        assert done.returncode == 4
        assert f"{tmp_path / 'snapshots'} can't be written: File exists. (not_writable)" in done.stderr

    def test_a_folder_of_prepared_models_is_no_data_either(self, tmp_path: Path) -> None:
        give_models(tmp_path)
        before = sorted(tmp_path.rglob("*"))
        assert likeness(tmp_path, "galleries", "list").returncode == 4
        assert sorted(tmp_path.rglob("*")) == before

    @pytest.mark.long
    def test_photos_are_compared_without_leaving_anything(self, tmp_path: Path) -> None:
        models = tmp_path / "models"
        shutil.copytree(PROJECT / "models" / "yunet", models / "yunet")
        packages.install(models, "small")
        small = {"MODELS_DIR": models, "EMBEDDER": "small"}
        assert likeness(tmp_path / "data", "verify", COLLINS, COLLINS, **small).stdout.startswith("same person")
        assert likeness(tmp_path / "data", "models", "list", **small).returncode == 0
        assert list(tmp_path.iterdir()) == [models]


class TestStatus:
    def test_of_a_server(self, shared_server: LiveServer, gallery: str) -> None:
        done = likeness(shared_server.data_dir, "status")
        assert done.returncode == 0
        ours = (shared_server.url, str(shared_server.data_dir), f"{gallery} (1 people, 1 faces)")
        for wanted in (*ours, "sface@", "ok"):
            assert wanted in done.stdout
        (told,) = likeness(shared_server.data_dir, "status", "--json").rows
        assert (told["health"], told["server"]) == ("ok", shared_server.url)

    def test_of_a_data_folder_without_a_server(self, tmp_path: Path) -> None:
        folder = tmp_path / "data"
        give_models(folder)
        assert likeness(folder, "galleries", "create", "staff").returncode == 0
        before = set(folder.rglob("*"))
        done = likeness(folder, "status", "--json")
        (told,) = done.rows
        assert (done.returncode, told["health"], told["server"]) == (1, "not running", None)
        assert told["galleries"] == ["1 with templates of sface@2021dec_int8bq"]
        assert set(folder.rglob("*")) == before

    def test_of_a_server_that_does_not_answer(self, tmp_path: Path, port: int) -> None:
        done = likeness(tmp_path, "status", "--server", f"http://127.0.0.1:{port}", "--json")
        assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (4, "unreachable")
        assert "likeness serve" in done.stderr


class TestPeopleAndFaces:
    def test_people_are_listed_shown_renamed_and_deleted(self, shared_server: LiveServer, gallery: str) -> None:
        folder = shared_server.data_dir
        assert [row["id"] for row in likeness(folder, "people", "list", gallery, "--json").rows] == ["ada"]
        assert "Ada Lovelace" in likeness(folder, "people", "rename", gallery, "ada", "Ada Lovelace").stdout
        assert "Ada Lovelace" in likeness(folder, "people", "list", gallery, "--search", "lovelace").stdout
        assert likeness(folder, "people", "list", gallery, "--search", "hopper", "--json").rows == []
        (shown,) = likeness(folder, "people", "show", gallery, "ada", "--json").rows
        assert (shown["name"], shown["face_count"]) == ("Ada Lovelace", 1)
        assert likeness(folder, "people", "delete", gallery, "ada").returncode == 2, "nobody confirmed it"
        assert likeness(folder, "people", "delete", gallery, "ada", "--yes").stdout == "ada: deleted\n"
        assert likeness(folder, "people", "show", gallery, "ada").returncode == 5

    def test_two_people_are_merged(self, shared_server: LiveServer, gallery: str) -> None:
        folder = shared_server.data_dir
        assert likeness(folder, "enroll", gallery, "grace", HOPPER).returncode == 0
        assert likeness(folder, "people", "merge", gallery, "grace", "nobody", "--yes").returncode == 5
        assert likeness(folder, "people", "merge", gallery, "grace", "grace", "--yes").returncode == 2
        assert likeness(folder, "people", "merge", gallery, "grace", "ada").returncode == 2, "nobody confirmed it"
        assert likeness(folder, "people", "merge", gallery, "grace", "ada", "--yes").stdout.startswith("grace: merged")
        assert len(likeness(folder, "faces", "list", gallery, "ada", "--json").rows) == 2
        assert likeness(folder, "people", "show", gallery, "grace").returncode == 5

    def test_corrections_are_added_listed_and_deleted(self, gallery: str, shared_server: LiveServer) -> None:
        folder = shared_server.data_dir
        made = likeness(folder, "corrections", "add", gallery, "ada", HOPPER, "--json")
        assert made.returncode == 0, made.stderr
        correction_id = json.loads(made.stdout)["id"]
        listed = likeness(folder, "corrections", "list", gallery, "ada", "--json").stdout.splitlines()
        assert [json.loads(line)["id"] for line in listed] == [correction_id]
        assert correction_id in likeness(folder, "corrections", "list", gallery, "ada").stdout
        assert likeness(folder, "corrections", "delete", gallery, "ada", correction_id).returncode == 0
        assert likeness(folder, "corrections", "delete", gallery, "ada", correction_id).returncode == 5
        assert likeness(folder, "corrections", "list", gallery, "ada", "--json").stdout == ""

    def test_faces_are_listed_moved_and_deleted(self, shared_server: LiveServer, gallery: str) -> None:
        folder = shared_server.data_dir
        assert likeness(folder, "enroll", gallery, "grace", HOPPER).returncode == 0
        (face,) = likeness(folder, "faces", "list", gallery, "ada", "--json").rows
        assert likeness(folder, "faces", "move", gallery, "ada", face["face_id"], "grace").returncode == 0
        assert len(likeness(folder, "faces", "list", gallery, "grace", "--json").rows) == 2
        gone = ("faces", "delete", gallery, "grace", face["face_id"], "--yes")
        assert likeness(folder, *gone).returncode == 0
        assert likeness(folder, *gone).returncode == 5

    @pytest.mark.parametrize("degrees", [0, 90, 135, 225])
    def test_faces_that_were_enrolled_by_made_up_landmarks_are_found(
        self, shared_server: LiveServer, gallery: str, degrees: int
    ) -> None:
        """Their crops show a turned face, as versions before 0.2.0 kept them."""
        folder = shared_server.data_dir
        (face,) = likeness(folder, "faces", "list", gallery, "ada", "--json").rows
        with closing(sqlite3.connect(folder / "likeness.db")) as database, database:
            key, jpeg = database.execute(
                "SELECT key, jpeg FROM faces JOIN crops ON face_key = key WHERE face_id = ?", [face["face_id"]]
            ).fetchone()
            turned = encoded(Image.open(io.BytesIO(jpeg)).rotate(degrees), "JPEG", quality=95)
            database.execute("UPDATE crops SET jpeg = ? WHERE face_key = ?", [turned, key])
        done = likeness(folder, "faces", "check", gallery)
        listed = likeness(folder, "faces", "check", gallery, "--json").rows
        assert done.returncode == bool(degrees), done.stderr
        assert f"{gallery}: {int(bool(degrees))} of 1 crops show no upright face" in done.stdout
        assert listed == ([{"subject": "ada", "face_id": face["face_id"]}] if degrees else [])


class TestErrors:
    @pytest.mark.parametrize(
        "words", [("people", "list"), ("galleries", "check"), ("identify",), ("export",), ("reembed", "show")]
    )
    def test_a_missing_gallery_has_an_exit_code_of_its_own(
        self, shared_server: LiveServer, words: tuple[str, ...], tmp_path: Path
    ) -> None:
        rest = {"identify": [COLLINS], "export": [tmp_path / "archive"]}.get(words[0], [])
        done = likeness(shared_server.data_dir, *words, "nope", *rest)
        assert (done.returncode, "gallery_not_found" in done.stderr) == (5, True), done.stderr

    @pytest.mark.parametrize(
        ("words", "option"),
        [
            (("keys", "create", "--scope", "fly"), "--scope"),
            (("keys", "create", "--scope", "read", "--id", "NO"), "--id"),
            (("keys", "create", "--scope", "read", "--rate", "often"), "--rate"),
            (("keys", "create", "--scope", "read", "--expires", "2001-01-01"), "--expires"),
            (("verify", COLLINS, HOPPER, "--fmr", "2"), "--fmr"),
            (("verify", COLLINS, HOPPER, "--model", "nothing"), "--model"),
            (("enroll", "g", "s", COLLINS, "--quality", "superb"), "--quality"),
            (("galleries", "create", "g", "--search", "magic"), "--search"),
            (("galleries", "create", "g", "--embedder", "nothing"), "--embedder"),
            (("jobs", "list", "--state", "lost"), "--state"),
        ],
    )
    def test_a_wrong_value_names_its_option(
        self, shared_server: LiveServer, words: tuple[object, ...], option: str
    ) -> None:
        plain = likeness(shared_server.data_dir, *words)
        assert (plain.returncode, option in plain.stderr) == (2, True), plain.stderr
        done = likeness(shared_server.data_dir, *words, "--json")
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, done.stdout, option in error["message"]) == (2, "", True)
        assert "body." not in done.stderr

    def test_errors_are_json_where_json_is_asked_for(self, tmp_path: Path) -> None:
        for words in (("frobnicate",), ("galleries", "list", "--frob"), ("people", "list"), ("detect", "nowhere.jpg")):
            done = likeness(tmp_path, *words, "--json")
            assert (done.returncode, done.stdout) == (2, "")
            assert json.loads(done.stderr)["error"]["message"]

    def test_a_missing_path_does_not_stop_the_others(self, shared_server: LiveServer, gallery: str) -> None:
        for words in (("detect",), ("identify", gallery), ("enroll", gallery, "eileen")):
            done = likeness(shared_server.data_dir, *words, "nowhere.jpg", COLLINS)
            assert done.returncode == 3
            assert "nowhere.jpg: no such file or folder" in done.stderr
            assert done.stdout
        assert likeness(shared_server.data_dir, "detect", "nowhere.jpg", "neither.jpg").returncode == 2

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("identify", "{almost}", COLLINS), "Did you mean {gallery}?"),
            (("enroll", "{almost}", "ann", COLLINS), "With --create it is made."),
            (("people", "list", "{almost}"), "Did you mean {gallery}?"),
            (("identify", "{gallery}", "https://example.org/a.jpg"), "nothing is fetched"),
            (("models", "use", "best"), "likeness reembed start"),
            (("verify", COLLINS, COLLINS, "--fmr", "often"), "Give a rate between 0 and 1, such as 0.0001"),
            (("identify", "{gallery}", COLLINS, "--fpir", "1%"), "1 % is 0.01"),
            (("identify", "{gallery}", COLLINS, "--limit", "many"), "Give a whole number, such as 10"),
            (("keys", "create", "--scope", "read", "--expires", "soon"), "such as 2026-01-31T12:00:00Z"),
            (("keys", "create", "--scope", "read", "--id", "My key"), "--id: Use a-z, 0-9 and inner hyphens"),
            (("enroll", "{gallery}", "", COLLINS), "the id is empty"),
            (("galleries", "list", "--server", "localhost:8000"), "begin with http:// or https://"),
            (("cameras",), "Did you mean 'watch'?"),
            (("identify", "{gallery}", COLLINS, "--threshold", "0.8"), "by its error rate, as --fmr or --fpir"),
            (("start",), "Did you mean 'serve'?"),
            (("faces", "show"), "There are list, delete"),
            (("people", "remove", "{gallery}", "ann"), "Did you mean 'likeness people delete'?"),
            (("people", "erase", "{gallery}", "ann"), "Did you mean 'likeness erase'?"),
            (("keys", "delete", "door"), "Did you mean 'likeness keys revoke'?"),
            (("subjects", "list"), "Did you mean 'people'?"),
            (("people", "create"), "Did you mean 'likeness enroll'?"),
            (("keys", "create"), "read, recognize, enroll"),
            (("import", "{gallery}", COLLINS), "likeness enroll GALLERY PERSON PHOTO"),
            (("galleries", "delete", "{gallery}"), "nobody is there to answer"),
        ],
        ids=[
            *(
                "almost",
                "create",
                "list",
                "address",
                "use",
                "rate",
                "percent",
                "count",
                "time",
                "key-id",
                "empty-id",
                "server",
                "cameras",
                "threshold",
                "start",
                "no-command",
                "remove",
                "erase",
                "delete-key",
                "subjects",
                "create-person",
                "scopes",
            ),
            *("photo", "yes"),
        ],
    )
    def test_messages_say_what_to_do(
        self, shared_server: LiveServer, gallery: str, words: tuple[str, ...], said: str
    ) -> None:
        names = {"gallery": gallery, "almost": f"{gallery[:-1]}_"}
        done = likeness(shared_server.data_dir, *(str(word).format(**names) for word in words), "--json")
        message = json.loads(done.stderr)["error"]["message"]
        assert done.returncode in {1, 2, 4, 5}
        assert said.format(**names) in message
        assert "unable to" not in message

    def test_what_is_not_there_says_how_to_get_it(
        self, shared_server: LiveServer, gallery: str, tmp_path: Path
    ) -> None:
        pulled = likeness(shared_server.data_dir, "models", "pull", "bestt")
        assert (pulled.returncode, "Did you mean best?" in pulled.stderr) == (4, True)
        moved = likeness(shared_server.data_dir, "reembed", "start", gallery, "best")
        assert (moved.returncode, "`likeness models pull` lists more" in moved.stderr) == (2, True)
        with zipfile.ZipFile(tmp_path / "people.zip", "w") as archive:
            archive.write(COLLINS, "ann/1.jpg")
        imported = likeness(shared_server.data_dir, "import", gallery, tmp_path / "people.zip")
        assert (imported.returncode, "unpack it" in imported.stderr) == (2, True)
        watched = likeness(shared_server.data_dir, "watch", COLLINS, "--gallery", gallery)
        assert (watched.returncode, "LIKENESS_WATCHING=on" in watched.stderr) == (4, True)

    def test_an_import_prints_what_was_refused(self, shared_server: LiveServer, gallery: str, tmp_path: Path) -> None:
        (tmp_path / "people" / "bob").mkdir(parents=True)
        for number in range(12):
            (tmp_path / "people" / "bob" / f"{number:02}.jpg").write_bytes(b"no photo")
        done = likeness(shared_server.data_dir, "import", gallery, tmp_path / "people")
        assert done.returncode == 3
        assert done.stderr.count("unsupported_image") == 10
        assert "and 2 more: likeness jobs report" in done.stderr


class TestServe:
    @pytest.mark.long
    def test_options_precede_the_environment_and_a_terminal_is_shown_a_link_that_signs_in_once(
        self, tmp_path: Path, port: int
    ) -> None:
        give_models(tmp_path / "here")
        terminal, end = pty.openpty()
        program = str(Path(sys.executable).with_name("likeness"))
        command = [program, "serve", "--port", str(port), "--host", "127.0.0.1", "--data", "here"]
        environ = environment(tmp_path / "elsewhere", PORT=1, HOST="192.0.2.1")
        with subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=end) as process:
            os.close(end)
            with os.fdopen(terminal, encoding="utf-8", errors="replace") as shown:
                said = ""
                while "Try it" not in said:
                    said += shown.readline()
                link = next(word for word in said.split() if "#code=" in word)
                url, code = link.split("/#code=")
                asked = partial(httpx.post, f"{url}/v1/sign-in", headers={"x-api-key": code}, timeout=ANSWER_S)
                statuses = [asked().status_code for _ in range(2)]
                audited = likeness(tmp_path / "here", "audit", "export", "--json", "--operation", "create_sign_in_code")
                process.terminate()
        assert statuses == [200, 401]
        assert url == f"http://127.0.0.1:{port}"
        assert not (tmp_path / "elsewhere").exists()
        assert "once, within a minute" in said
        assert f"whenever you need one: {program} keys link" in said, "as it was called: it may not be on the PATH"
        assert len(audited.rows) == 1
        assert code not in audited.stdout

    def test_a_wrong_port_is_a_wrong_option(self, tmp_path: Path) -> None:
        done = likeness(tmp_path / "data", "serve", "--port", "70000")
        assert (done.returncode, "--port" in done.stderr) == (2, True)


def imported(script: str, environ: dict[str, str]) -> set[str]:
    """The top-level packages that a process imports."""
    code = f"import sys\ntry:\n    {script}\nexcept SystemExit:\n    pass\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stderr.split()}


class TestHelp:
    def test_the_version_is_printed(self, tmp_path: Path) -> None:
        done = likeness(tmp_path, "--version")
        assert (done.returncode, done.stdout.split()[0]) == (0, "likeness")

    def test_help_imports_nothing_slow(self, tmp_path: Path) -> None:
        found = imported("import app.cli; sys.argv = ['likeness', '-h']; app.cli.main()", environment(tmp_path))
        assert found & (HEAVY | {"httpx", "pydantic"}) == set()

    def test_a_command_for_a_server_imports_only_the_client(self, shared_server: LiveServer) -> None:
        script = "import app.cli; sys.argv = ['likeness', 'galleries', 'list', '--json']; app.cli.main()"
        assert imported(script, environment(shared_server.data_dir)) & HEAVY == set()

    def test_every_command_has_help_and_examples_that_parse(self) -> None:
        for name, command in load("reference").every_command():
            assert command.help, name
            lines = (command.epilog or "").removeprefix("Examples:").removeprefix("Example:").strip().split("\n\n")
            for line in lines:
                words = shlex.split(line.partition("|")[0].partition(" > ")[0].strip("\n)"), comments=True)
                start = next(number for number, word in enumerate(words) if word.endswith("likeness"))
                rest = words[start + 1 :]
                assert rest[: len(name.split())] == name.split(), line
                command.make_context(name, rest[len(name.split()) :])


def completed(data: Path, line: str) -> list[str]:
    """What a shell offers for the last word of ``line``."""
    script = Path(sys.executable).with_name("likeness")
    if not script.exists():
        pytest.skip("the command is not installed")
    given = {"_LIKENESS_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    environ = environment(data) | given | {"_TYPER_COMPLETE_ARGS": line}
    done = subprocess.run([script], env=environ, capture_output=True, text=True, check=False)
    return [word.split("\t")[0] for word in done.stdout.split("\n") if word]


class TestCompletion:
    @pytest.mark.long
    def test_of_galleries_models_and_scopes(self, shared_server: LiveServer, gallery: str, tmp_path: Path) -> None:
        assert gallery in completed(shared_server.data_dir, f"likeness galleries check {gallery[:12]}")
        assert completed(shared_server.data_dir, "likeness keys create --scope re") == ["read", "recognize"]
        assert "sface@2021dec_int8bq" in completed(shared_server.data_dir, "likeness models pull sf")
        assert completed(tmp_path / "data", "likeness galleries check ") == []
        assert list(tmp_path.iterdir()) == [], "completion creates nothing"


class TestResultsThatCannotBeWritten:
    @pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
    def test_nothing_is_done_for_them(
        self, shared_server: LiveServer, gallery: str, tmp_path: Path, as_json: bool
    ) -> None:
        nowhere, folder = tmp_path / "missing" / "file", shared_server.data_dir
        for words in (
            ("erase", gallery, "ada", "--yes", "--save", nowhere),
            ("export", gallery, nowhere),
            ("export", gallery, tmp_path),
            ("import", gallery, SAMPLES.parent, "--report", nowhere),
        ):
            done = likeness(folder, *words, *(["--json"] if as_json else []))
            assert (done.returncode, done.stdout) == (4, "")
            assert "not_writable" in done.stderr
            assert str(tmp_path) in done.stderr
        (person,) = likeness(folder, "people", "list", gallery, "--json").rows
        assert (person["id"], person["face_count"]) == ("ada", 1)
        with shared_server.client() as client:
            assert client.get("/v1/jobs", params={"gallery": gallery}).json()["jobs"] == []

    def test_where_writing_fails_after_all_it_is_shown(self, shared_server: LiveServer, gallery: str) -> None:
        """A disk that is full by then: `/dev/full` takes no byte."""
        done = likeness(shared_server.data_dir, "erase", gallery, "ada", "--yes", "--save", "/dev/full", "--json")
        assert done.returncode == 4
        assert done.rows[0]["erased"]["faces"] == 1
        assert "disk_full" in done.stderr


@pytest.mark.long
def test_a_named_server_is_asked_with_the_key_of_a_file(tmp_path: Path, shared_server: LiveServer) -> None:
    """As in containers, where commands speak to another container's server over the network."""
    file = tmp_path / "key"
    file.write_text(shared_server.key + "\n")
    environ = environment(tmp_path / "none", SERVER=shared_server.url, KEY_FILE=file, PUBLIC_URL="http://8000")
    command = [sys.executable, "-m", "app", "keys", "link"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("http://127.0.0.1:8000/#code="), done.stderr
    link = subprocess.run(
        [*command, "--url", "https://faces.example.org/"], env=environ, capture_output=True, text=True, check=False
    )
    assert link.stdout.startswith("https://faces.example.org/#code=")
    file.write_text("")
    assert subprocess.run(command, env=environ, capture_output=True, text=True, check=False).returncode == 4


@pytest.mark.parametrize(("command", "missing"), [("serve", "faiss"), ("serve", "onnxruntime"), ("doctor", "faiss")])
def test_an_installation_without_engines_says_what_to_install(command: str, missing: str, tmp_path: Path) -> None:
    """`pip install likeness-server` without `[cpu]` brings none."""
    code = f"import sys; sys.modules[{missing!r}] = None; from app.cli import main; main()"
    environ = environment(tmp_path, port=0)
    done = subprocess.run(
        [sys.executable, "-c", code, command], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "[cpu]" in said
    assert missing in said
    assert "Traceback" not in said
