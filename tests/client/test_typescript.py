"""The TypeScript client uploads a photo to a real server, and what generators make of the document does too.

They run on the Node.js and with the programs that `make page` and `make openapi` have installed, and in Chromium.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.support.live import LiveServer, serving
from tests.support.node import node, program

CLIENT = PROJECT / "clients" / "typescript"
sys.path.append(str(CLIENT))
sys.path.append(str(PROJECT / "clients" / "python"))

import write_typescript  # noqa: E402 - below the path

PHOTO = PROJECT / "docs" / "samples" / "both.jpg"
COLLINS = PROJECT / "docs" / "samples" / "collins.jpg"
COMPILER: Mapping[str, Any] = {
    "strict": True,
    "target": "es2022",
    "module": "node16",
    "moduleResolution": "node16",
    "lib": ["es2022", "dom", "dom.iterable"],
    "types": [],
    "skipLibCheck": True,
    "rootDir": ".",
    "outDir": "built",
}
USE = {
    "orval": """
        import { identify } from "./made";
        export async function run(url: string, key: string, photo: Blob) {
          const send = globalThis.fetch;
          globalThis.fetch = (path, init) =>
            send(url + String(path), { ...init, headers: { ...init?.headers, "x-api-key": key } });
          const answer = await identify("abroad", { image: photo });
          if (answer.status !== 200) throw new Error(answer.data.error.code);
          return answer.data.faces.map((face) => face.decision);
        }
    """,
    "hey-api": """
        import { identify } from "./made";
        import { client } from "./made/client.gen";
        export async function run(url: string, key: string, photo: Blob) {
          client.setConfig({ baseUrl: url, auth: key });
          const { data, error } = await identify({ path: { gallery: "abroad" }, body: { image: photo } });
          if (!data) throw new Error(error.error.code);
          return data.faces.map((face) => face.decision);
        }
    """,
    "openapi-typescript": """
        import type { paths } from "./made";
        type Identify = paths["/v1/galleries/{gallery}/identify"]["post"];
        type Answer = Identify["responses"][200]["content"]["application/json"];
        export async function run(url: string, key: string, photo: Blob) {
          const form = new FormData();
          const field: keyof Identify["requestBody"]["content"]["multipart/form-data"] = "image";
          form.append(field, photo);
          const path: keyof paths = "/v1/galleries/{gallery}/identify";
          const to = url + path.replace("{gallery}", "abroad");
          const answer = await fetch(to, { method: "POST", headers: { "x-api-key": key }, body: form });
          const { faces } = (await answer.json()) as Answer;
          return faces.map((face) => face.decision);
        }
    """,
}
OWN = """
import { readFileSync } from "node:fs";
import { Client, LikenessError } from "%s";
const [url, key, photo] = process.argv.slice(2);
const client = new Client({ url, key });
const image = new Blob([readFileSync(photo)]);
const found = await client.identify("abroad", image, { limit: 1 });
const galleries = [];
for await (const gallery of client.allGalleries({ limit: 1 })) galleries.push(gallery.id);
const wrong = await client.gallery("not there").catch((error) => error);
const unreachable = await new Client({ url: "http://127.0.0.1:1" }).version().catch((error) => error);
const lost = [];
for (const id of ["", ".", ".."]) lost.push(await client.deleteSubject("abroad", id).catch((error) => error.code));
await client.updateGallery("abroad", { on_conflict: "allow" });
console.log(JSON.stringify({
  decisions: found.faces.map((face) => face.decision),
  galleries: galleries.includes("abroad"),
  codes: [wrong, unreachable].map((error) => error instanceof LikenessError && error.code),
  lost,
  changed: (await client.gallery("abroad")).on_conflict,
}));
"""

PAGE = """<!doctype html><meta charset="utf-8"><title>Who is it?</title>
<label>Photo <input type="file"></label>
<script type="module">
import { Client, LikenessError } from "./index.js";
window.ask = async (url, key) => {
  const client = new Client({ url, key });
  const [photo] = document.querySelector("input").files;
  await client.createGallery({ id: "abroad" });
  const enrolled = await client.enroll("abroad", "eileen", [photo]);
  const found = await client.identify("abroad", photo);
  const wrong = await client.gallery("elsewhere").catch((error) => error);
  return {
    enrolled: enrolled.enrolled.length,
    decisions: found.faces.map((face) => [face.decision, face.candidates[0]?.subject]),
    code: wrong instanceof LikenessError && wrong.code,
  };
};
</script>"""


@pytest.fixture(scope="module")
def crew(shared_server: LiveServer) -> LiveServer:
    """A server with one person of the photo in the gallery `abroad`."""
    with shared_server.client() as client:
        client.post("/v1/galleries", json={"id": "abroad"})
        files = {"images": COLLINS.read_bytes()}
        client.post("/v1/galleries/abroad/subjects/eileen/faces", files=files).raise_for_status()
    return shared_server


def test_the_client_is_what_the_declarations_say() -> None:
    """`make generated` writes it anew."""
    for name, text in write_typescript.write(write_typescript.generate.document()).items():
        assert write_typescript.FILES[name].read_text(encoding="utf-8") == text, name


def test_the_client_uploads_a_photo_pages_and_throws_errors_with_codes(crew: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "use.mts").write_text(OWN % (CLIENT / "src" / "index.ts"))
    said = json.loads(node(tmp_path / "use.mts", crew.url, crew.key, PHOTO))
    assert sorted(said["decisions"]) == ["known", "unknown"]
    assert said["galleries"] is True
    assert said["codes"] == ["gallery_not_found", "unreachable"]
    assert said["lost"] == ["invalid_id"] * 3, "with `..` the path would be the gallery's"
    assert said["changed"] == "allow"


def compile_client(folder: Path) -> None:
    compiler = program("typescript/bin/tsc")
    config = {"extends": str(CLIENT / "tsconfig.json"), "compilerOptions": {"outDir": str(folder)}}
    config["include"] = [str(CLIENT / "src")]
    (folder / "tsconfig.json").write_text(json.dumps(config))
    node(compiler, "--project", folder)


@contextmanager
def website(folder: Path) -> Iterator[str]:
    """A web server of these files, of another origin than Likeness."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.long
def test_a_page_of_another_origin_uploads_a_photo_in_chromium(tmp_path: Path) -> None:
    browsing = pytest.importorskip("tests.support.browsing", reason="needs Playwright")
    site = tmp_path / "site"
    site.mkdir()
    compile_client(site)
    (site / "index.html").write_text(PAGE)
    with (
        website(site) as origin,
        serving(tmp_path / "data", {"cors_origins": origin}) as server,
        browsing.browser() as chromium,
    ):
        page = chromium.new_page()
        page.set_default_timeout(browsing.WAIT_MS)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(origin)
        page.wait_for_function("window.ask !== undefined")
        page.locator("input").set_input_files(COLLINS)
        said = page.evaluate("([url, key]) => window.ask(url, key)", [server.url, server.key])
    assert said == {"enrolled": 1, "decisions": [["known", "eileen"]], "code": "gallery_not_found"}
    assert complaints == []


def test_the_client_compiles_strictly(tmp_path: Path) -> None:
    compile_client(tmp_path)
    assert (tmp_path / "index.js").is_file()
    assert (tmp_path / "index.d.ts").is_file()


@pytest.mark.long
@pytest.mark.parametrize("generator", USE)
def test_a_generated_client_compiles_and_uploads_a_photo(crew: LiveServer, tmp_path: Path, generator: str) -> None:
    document = PROJECT / "docs" / "reference" / "openapi.json"
    if generator == "orval":
        config = {"likeness": {"input": str(document), "output": {"target": "./made.ts", "client": "fetch"}}}
        (tmp_path / "orval.config.mjs").write_text(f"export default {json.dumps(config)};")
        node(program("orval/dist/bin/orval.mjs"), "--config", "orval.config.mjs", cwd=tmp_path)
    elif generator == "hey-api":
        node(program("@hey-api/openapi-ts/bin/run.js"), "-i", document, "-o", "made", cwd=tmp_path)
    else:
        node(program("openapi-typescript/bin/cli.js"), document, "-o", "made.ts", cwd=tmp_path)
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / "use.ts").write_text(USE[generator])
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": COMPILER, "files": ["use.ts"]}))
    node(program("typescript/bin/tsc"), "--project", tmp_path)
    (tmp_path / "run.cjs").write_text(
        'const { readFileSync } = require("node:fs");\nconst [url, key, photo] = process.argv.slice(2);\n'
        'require("./built/use.js").run(url, key, new Blob([readFileSync(photo)]))'
        ".then((found) => console.log(JSON.stringify(found)));\n"
    )
    assert sorted(json.loads(node(tmp_path / "run.cjs", crew.url, crew.key, PHOTO))) == ["known", "unknown"]
