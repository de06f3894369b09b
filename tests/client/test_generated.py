"""Clients that OpenAPI Generator makes of the committed document are compiled, and find who is in a photo."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.client.test_languages import PAGE, SAMPLES, run
from tests.conftest import PROJECT
from tests.support.live import LiveServer

pytestmark = pytest.mark.long

JARS = [
    Path("/usr/share/java", f"{name}.jar")
    for name in ("httpclient", "httpcore", "httpmime", "commons-logging", "geronimo-annotation-1.3-spec", "jsr305")
]
JAVA = """
import java.io.File;
import java.math.BigDecimal;
import java.util.List;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.GalleriesApi;
import org.openapitools.client.api.RecognitionApi;
import org.openapitools.client.model.GalleryCreate;

class Use {
    public static void main(String[] arguments) throws Exception {
        var client = new ApiClient();
        client.updateBaseUri(arguments[0]);
        client.setRequestInterceptor(request -> request.header("x-api-key", System.getenv("LIKENESS_KEY")));
        var api = new RecognitionApi(client);
        var photo = new File(arguments[2]);
        new GalleriesApi(client).createGallery(new GalleryCreate().id(arguments[3]));
        api.enroll(arguments[3], "eileen", List.of(new File(arguments[1])), null, null, null, null, null, null,
            null, null, null, null, null, null, null, null, null, null);
        var rate = new BigDecimal("0.0001");
        for (var face : api.identify(arguments[3], photo, null, null, null, null, null, null, rate, null, null, null,
                null, null, null, null, null, null).getFaces())
            System.out.println(face.getDecision() + " " + face.getCandidates());
        try {
            api.identify("nowhere", photo, null, null, null, null, null, null, null, null, null, null, null, null, null,
                null, null, null);
        } catch (ApiException failed) {
            System.out.println(failed.getResponseBody());
        }
    }
}
"""
GUZZLE = Path("/usr/share/php/GuzzleHttp/autoload.php")
PHP = """<?php
require '/usr/share/php/GuzzleHttp/autoload.php';
spl_autoload_register(function ($name) {
    require __DIR__ . '/likeness/lib/' . str_replace(['OpenAPI\\\\Client\\\\', '\\\\'], ['', '/'], $name) . '.php';
});
[, $url, $enrolled, $photo, $gallery] = $argv;
$config = OpenAPI\\Client\\Configuration::getDefaultConfiguration();
$config->setHost($url)->setAccessToken(getenv('LIKENESS_KEY'));
$http = new GuzzleHttp\\Client();
$galleries = new OpenAPI\\Client\\Api\\GalleriesApi($http, $config);
$api = new OpenAPI\\Client\\Api\\RecognitionApi($http, $config);
$galleries->createGallery(new OpenAPI\\Client\\Model\\GalleryCreate(['id' => $gallery]));
$api->enroll($gallery, 'eileen', [new SplFileObject($enrolled)]);
foreach ($api->identify($gallery, new SplFileObject($photo))->getFaces() as $face) {
    echo $face->getDecision(), ' ', $face->getCandidates()[0] ?? 'nobody', "\\n";
}
try {
    $api->identify('nowhere', new SplFileObject($photo));
} catch (OpenAPI\\Client\\ApiException $error) {
    echo $error->getResponseBody(), "\\n";
}
"""


def generate(language: str, folder: Path) -> None:
    """Make the client in ``folder``, by the command on the page about clients."""
    [command] = re.findall(
        rf"^(openapi-generator-cli generate -i [^`]*?-g {language}\b[^`]*?[^\\])$", PAGE, re.MULTILINE
    )
    run("bash", "-ec", command.replace("docs/reference", f"{PROJECT}/docs/reference"), folder=folder)


def needed(*programs: str, files: tuple[Path, ...] = (), source: str) -> None:
    missing = [name for name in programs if shutil.which(name) is None] + [
        str(one) for one in files if not one.exists()
    ]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} ({source})")


def generators_jar() -> Path:
    """Return the generator's own jar, which holds Jackson with its module for times; Debian lacks that."""
    program = Path(shutil.which("openapi-generator-cli") or "").resolve()
    [jar] = program.parent.parent.rglob("openapi_generator_cli/openapi-generator.jar")
    return jar


def knows_one_of_two(said: str) -> None:
    assert [line.split()[0] for line in said.splitlines() if line.startswith(("known", "unknown"))] == [
        "known",
        "unknown",
    ]
    assert "eileen" in said
    assert "gallery_not_found" in said


def test_java(shared_server: LiveServer, tmp_path: Path) -> None:
    debian = "Debian: default-jdk-headless libhttpmime-java libgeronimo-annotation-1.3-spec-java libjsr305-java"
    needed("javac", "openapi-generator-cli", files=(*JARS,), source=f"{debian}; pip install openapi-generator-cli")
    generate("java", tmp_path)
    (tmp_path / "Use.java").write_text(JAVA)
    path = ":".join(map(str, (*JARS, generators_jar())))
    sources = [str(file) for file in (tmp_path / "likeness" / "src" / "main").rglob("*.java")]
    run("javac", "-nowarn", "-cp", path, "-d", "out", *sources, "Use.java", folder=tmp_path)
    photos = (SAMPLES / "collins.jpg", SAMPLES / "both.jpg")
    use = ("java", "-cp", f"{path}:out", "Use", shared_server.url, *map(str, photos), "generated-java")
    knows_one_of_two(run(*use, folder=tmp_path, key=shared_server.key))


def test_php(shared_server: LiveServer, tmp_path: Path) -> None:
    debian = "Debian: php-cli php-curl php-guzzlehttp-guzzle"
    needed("php", "openapi-generator-cli", files=(GUZZLE,), source=f"{debian}; pip install openapi-generator-cli")
    generate("php", tmp_path)
    (tmp_path / "use.php").write_text(PHP)
    photos = (SAMPLES / "collins.jpg", SAMPLES / "both.jpg")
    use = ("php", "use.php", shared_server.url, *map(str, photos), "generated-php")
    knows_one_of_two(run(*use, folder=tmp_path, key=shared_server.key))
