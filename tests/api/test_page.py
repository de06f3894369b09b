"""The page's files over HTTP: whole, unchanged, closed to everything from elsewhere, and the same in the wheel."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tomllib

import httpx
import pytest

from app.api.middleware import ANSWER_POLICY, CSP
from app.api.page_files import POLICY, TYPES, read_files, served_files
from app.api.page_modules import join_modules
from app.error_codes import ERROR_CODES, javascript
from app.types import Reason
from tests.conftest import PROJECT
from tests.support.service import error_of

FOLDER = PROJECT / "app" / "page"
PICTURE = ".webp"
ADDED = [PROJECT / "app" / "features" / name / "page" for name in ("models", "watching", "webhook_form")]
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.suffix[1:] in TYPES)
TEXTS = [name for name in FILES if not name.endswith(PICTURE)]
SHEET = re.compile(r"""^  \["(\w+)", (?:null|"(\w+)"), """, re.MULTILINE)
USED = re.compile(r"""(?:\bfrom |\bimport |\bimport\(|\bhref=|\bsrc=)"((?:\.{1,2}/|/page/)[\w./-]+)\"""")


def sheet_of_advice() -> list[tuple[str, str]]:
    """The photos of the page's advice, each with the reason for which it is refused; empty for a good one."""
    listed = (FOLDER / "views" / "advice.js").read_text().partition("const SHEET = [")[2].partition("];")[0]
    return SHEET.findall(listed)


def test_each_file_comes_without_a_key_as_what_it_is(api: httpx.Client) -> None:
    files = served_files(ADDED)  # where all features are on, as they are here
    assert files.keys() > {name for name in FILES if name.endswith((".html", ".svg", PICTURE))}
    for name, file in files.items():
        answer = api.get(f"/page/{name}", headers={"x-api-key": ""}).raise_for_status()
        assert answer.content == file.content
        assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
        if not name.endswith(".html"):
            assert answer.headers[CSP] == (POLICY if name.endswith(".svg") else ANSWER_POLICY)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"


def test_the_address_itself_is_the_page(api: httpx.Client) -> None:
    answer = api.get("/", headers={"x-api-key": ""})
    body = read_files(ADDED)["index.html"].content.decode().partition("<body>")[2]
    assert answer.text.partition("<body>")[2] == body
    assert answer.headers["cache-control"] == "no-cache"
    assert "camera=(self)" in answer.headers["permissions-policy"]
    head = api.head("/", headers={"x-api-key": ""})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == answer.headers["etag"]


def test_a_browser_that_has_the_file_gets_it_once(api: httpx.Client) -> None:
    tag = api.get("/page/views/compare.js").headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}"):
        again = api.get("/page/views/compare.js", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert api.get("/page/views/compare.js", headers={"if-none-match": '"other"'}).status_code == 200


def test_what_the_start_names_never_changes_and_is_kept(api: httpx.Client) -> None:
    named = set(re.findall(r'(?:href|src)="(/page/[^"]+)"', api.get("/", headers={"x-api-key": ""}).text))
    names = {path.split("/", 3)[3] for path in named}
    files = served_files(ADDED)
    assert names == {name for name in files if name.endswith((".js", ".svg"))}
    for path in named:
        answer = api.get(path, headers={"x-api-key": ""}).raise_for_status()
        assert answer.content == files[path.split("/", 3)[3]].content
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


def test_a_file_of_another_version_is_ours_and_not_kept(api: httpx.Client) -> None:
    answer = api.get(f"/page/{'0' * 16}/views/compare.js").raise_for_status()
    assert answer.content == api.get("/page/views/compare.js").content
    assert answer.headers["cache-control"] == "no-cache"
    assert api.get(f"/page/{'0' * 16}/nothing.js").status_code == 404


ACCEPTED = {
    "gzip;q=0": False,
    "gzip; q=0.000, br": False,
    "GZIP;Q=0": False,
    "*;q=0": False,
    "identity;q=1, *;q=0": False,
    "gzip;q=0, *": False,
    "": False,
    "br, deflate": False,
    "deflate, gzip;q=0.001": True,
    "X-Gzip": True,
    "*": True,
    "br;q=1.0, GZIP ;q=0.8": True,
    "gzip, *;q=0": True,
}
"""Headers of RFC 9110, 12.5.3, and whether they take gzip."""


def test_files_are_packed_for_those_who_read_gzip_and_a_first_view_is_small(api: httpx.Client) -> None:
    """What a first view takes of the page's files; answers of the API, headers and pictures come on top."""
    packed = api.get("/", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "accept-encoding"
    assert packed.content == served_files(ADDED)["index.html"].content, "unpacked by the client"
    plain = api.get("/", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for accepted, is_packed in ACCEPTED.items():
        answer = api.get("/", headers={"accept-encoding": accepted})
        assert (answer.headers.get("content-encoding") == "gzip") is is_packed, accepted
        assert answer.content == plain.content
    at_once = plain.text.partition('<template id="later">')[0] + plain.text.partition("</template>")[2]
    first = {path.split("/", 3)[3] for path in re.findall(r'(?:href|src)="(/page/[^"]+)"', at_once)}
    assert first == {"icon.svg"}, "each would be a request of its own"
    files = served_files(ADDED)
    assert len(files["index.html"].packed) + len(files["icon.svg"].packed) < 60_000


def test_modules_that_are_joined_have_their_scopes_and_the_others_share_them() -> None:
    modules = {
        "a.js": 'import {\n  kept as mine,\n  size,\n} from "./parts/b.js";\nexport const both = () => mine + size;\n'
        'export const late = () => import("./later.js");\nboth();\n',
        "parts/b.js": "export const size = 2;\nexport async function fetched() {}\nexport class Kept {}\n"
        "export const kept = 1;\nconst hidden = 0;\n",
        "later.js": "import * as all from './parts/b.js'\nimport { both } from \"/page/a.js\";\n"
        'import { other } from "./other.js";\nexport const sum = all.size + both() + other;\n',
        "other.js": "export const other = 4;\n",
    }
    text, later = join_modules(modules, ["a.js"], "/page/")
    assert later["other.js"] == modules["other.js"]
    assert later.keys() == {"later.js", "other.js"}
    assert text.index("const $0_parts_b = ") < text.index("const $1_a = "), "those that others need come first"
    assert "const { kept: mine, size, } = $0_parts_b;\n\n\n\n" in text, "on as many lines as before"
    assert "return { size, fetched, Kept, kept };" in text
    assert 'import("/page/later.js")' in text
    assert text.endswith("globalThis.likeness = Object.freeze({ $0_parts_b, $1_a });\n")
    assert later["later.js"].splitlines() == [
        "const all = likeness.$0_parts_b;",
        "const { both } = likeness.$1_a;",
        'import { other } from "./other.js";',
        "export const sum = all.size + both() + other;",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("export default 1;\n", "b.js: .*export default 1;"),
        ("const x = 1;\nexport { x };\n", "b.js: .*export { x };"),
        ("export let x = 1;\n", "b.js: .*export let x = 1;"),
        ('import wanted from "./a.js";\n', "b.js: .*import wanted"),
        ("const here = import.meta.url;\n", r"b.js: .*import\.meta\.url"),
        ('import "./a.js";\n', "a.js and b.js import each other"),
    ],
)
def test_what_can_not_be_joined_is_said_when_the_server_starts(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        join_modules({"a.js": 'import "./b.js";\n', "b.js": text}, ["a.js"], "/page/")


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/nothing.js", "/page/__init__.py", "/page/../main.py", "/page/%2e%2e/main.py", "/page/views"],
)
def test_nothing_else_of_the_folder_is_served(api: httpx.Client, path: str) -> None:
    assert api.get(path).status_code == 404


def test_only_reading_is_open(api: httpx.Client) -> None:
    assert api.post("/", headers={"x-api-key": ""}).is_client_error
    error_of(api.post("/page/icon.svg", headers={"x-api-key": ""}), 401, "missing_key")
    error_of(api.delete("/page/icon.svg", headers={"x-api-key": ""}), 401, "missing_key")


def test_of_what_is_inline_the_policy_lets_in_the_pages_own_by_its_hash(api: httpx.Client) -> None:
    answer = api.get("/")
    policy = POLICY
    for element in ("script", "style"):
        (text,) = re.findall(rf"<{element}[^>]*>(.+?)</{element}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        policy = policy.replace(f"{element}-src 'self'", f"{element}-src 'self' 'sha256-{digest}'")
    assert answer.headers[CSP] == policy


def test_the_policy_lets_nothing_in_from_elsewhere_and_nothing_inline() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


def test_the_files_that_others_name_are_those_that_are_there_and_none_is_of_another_host() -> None:
    sheet = sheet_of_advice()
    used = {"index.html", *(f"samples/{name}{PICTURE}" for name, _ in sheet)}
    for name in TEXTS:
        text = (FOLDER / name).read_text()
        for target in USED.findall(text):
            home = FOLDER if target.startswith("/") else (FOLDER / name).parent
            used.add(str((home / target.removeprefix("/page/")).resolve().relative_to(FOLDER)))
        hosts = set(re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]+[\w./-]*", re.sub(r"^\s*//.*", "", text)))
        assert hosts <= {"http://www.w3.org/2000/svg"}, name
    assert used == set(FILES)


def test_a_features_styles_are_not_those_of_the_pages_own_classes() -> None:
    """Both sheets are loaded where the feature is on: a rule for such a class would change the page's own views."""
    modules = [path.read_text() for path in FOLDER.rglob("*.js")]
    used = {
        name
        for text in modules
        for names in re.findall(r'"[a-z]\w*((?:\.[a-z-]+)+)"', text)
        for name in names.split(".")
    }
    assert {"seen", "card"} <= used
    for sheet in (PROJECT / "app" / "features").glob("*/page/style.css"):
        selectors = {part.strip() for rule in re.findall(r"([^{}]+)\{", sheet.read_text()) for part in rule.split(",")}
        bare = {selector[1:] for selector in selectors if re.fullmatch(r"\.[a-z-]+", selector)}
        assert not bare & used, sheet


def test_the_wheel_takes_every_file() -> None:
    taken = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["app.page"]
    assert {str(path.relative_to(FOLDER)) for glob in taken for path in FOLDER.glob(glob)} == set(FILES)
    assert sorted(read_files()) == FILES


NEVER_MET = {
    *("invalid_http", "invalid_json", "invalid_multipart", "invalid_path", "method_not_allowed"),
    *("uri_too_long", "head_too_large", "invalid_base64", "missing_image"),
    "host_not_allowed",  # nobody sees the page then
    "sighting_taken",  # watchers send sightings
}
"""Codes of requests that the page does not make."""


def test_the_page_has_a_sentence_of_its_own_for_every_code_that_its_user_can_meet() -> None:
    words = (FOLDER / "words.js").read_text()
    known = set(re.findall(r"^  (\w+):(?= \"|\n)", words.partition("REASONS")[0], re.MULTILINE))
    known.add("invalid_request")  # `explain` says what of the request it is
    assert {error.code for error in ERROR_CODES} - known == NEVER_MET


def test_the_photos_of_the_advice_are_what_it_says_of_them(api: httpx.Client, gallery: str) -> None:
    sheet = sheet_of_advice()
    assert len(sheet) > 6
    for name, reason in sheet:
        photo = (FOLDER / "samples" / f"{name}{PICTURE}").read_bytes()
        answer = api.post(f"{gallery}/subjects/{name}/faces", files={"images": photo}, params={"on_conflict": "allow"})
        if not reason:
            assert answer.is_success, name
            continue
        problem = answer.json()["error"]
        (rejected,) = problem["details"]["rejected"]
        assert reason in {problem["code"], *rejected["reasons"]}, (name, problem)


def test_the_page_knows_what_each_code_is_about() -> None:
    assert (FOLDER / "codes.js").read_text() == javascript(), "run make generated"


def test_the_page_has_words_for_every_reason_of_poor_quality() -> None:
    words = (FOLDER / "words.js").read_text().partition("REASONS")[2].partition("ADVICE")[0]
    assert set(re.findall(r"^  (\w+): \"", words, re.MULTILINE)) == {reason.value for reason in Reason}


def test_no_line_is_longer_than_a_hundred_and_twenty() -> None:
    for name in TEXTS:
        longest = max(map(len, (FOLDER / name).read_text().splitlines()))
        assert longest <= 120 or name.endswith(".svg"), name


def test_what_checks_the_page_is_pinned_by_hash_and_from_no_host() -> None:
    lock = json.loads((PROJECT / ".ci" / "page" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert {"node_modules/@biomejs/biome", "node_modules/typescript"} <= set(packages)
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())
