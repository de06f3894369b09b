"""AWS's own SDKs for Go, as Debian has them, against a real server: nothing is changed but the endpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.client.test_languages import SAMPLES, run
from tests.support.commands import run as likeness
from tests.support.live import LiveServer

pytestmark = pytest.mark.long

GOPATH = Path("/usr/share/gocode")
START = """
package main

import (
	"fmt"
	"os"
%s)

func read(path string) []byte {
	content, err := os.ReadFile(path)
	stop(err)
	return content
}

func stop(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func main() {
	url, crew := os.Args[1], os.Args[4]
	eileen, both := read(os.Args[2]), read(os.Args[3])
%s}
"""
FIRST = START % (
    """
	"github.com/aws/aws-sdk-go/aws"
	"github.com/aws/aws-sdk-go/aws/awserr"
	"github.com/aws/aws-sdk-go/aws/session"
	"github.com/aws/aws-sdk-go/service/rekognition"
""",
    """
	where := &aws.Config{Endpoint: &url, Region: aws.String("eu-west-1")}
	client := rekognition.New(session.Must(session.NewSession(where)))
	_, err := client.CreateCollection(&rekognition.CreateCollectionInput{CollectionId: &crew})
	stop(err)
	name, photo := aws.String("eileen"), &rekognition.Image{Bytes: eileen}
	_, err = client.IndexFaces(&rekognition.IndexFacesInput{CollectionId: &crew, ExternalImageId: name, Image: photo})
	stop(err)
	found, err := client.SearchFacesByImage(&rekognition.SearchFacesByImageInput{CollectionId: &crew, Image: photo})
	stop(err)
	fmt.Println("found", *found.FaceMatches[0].Face.ExternalImageId)
	target := &rekognition.Image{Bytes: both}
	compared, err := client.CompareFaces(&rekognition.CompareFacesInput{SourceImage: photo, TargetImage: target})
	stop(err)
	fmt.Println("same", len(compared.FaceMatches), "other", len(compared.UnmatchedFaces))
	_, err = client.DescribeCollection(&rekognition.DescribeCollectionInput{CollectionId: aws.String("nowhere")})
	fmt.Println("missing", err.(awserr.Error).Code())
""",
)
SECOND = START % (
    """	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/rekognition"
	"github.com/aws/aws-sdk-go-v2/service/rekognition/types"
""",
    """
	all := context.Background()
	resolve := func(string, string, ...interface{}) (aws.Endpoint, error) { return aws.Endpoint{URL: url}, nil }
	where := config.WithEndpointResolverWithOptions(aws.EndpointResolverWithOptionsFunc(resolve))
	loaded, err := config.LoadDefaultConfig(all, config.WithRegion("eu-west-1"), where)
	stop(err)
	client := rekognition.NewFromConfig(loaded)
	_, err = client.CreateCollection(all, &rekognition.CreateCollectionInput{CollectionId: &crew})
	stop(err)
	name, photo := aws.String("eileen"), &types.Image{Bytes: eileen}
	index := &rekognition.IndexFacesInput{CollectionId: &crew, ExternalImageId: name, Image: photo}
	_, err = client.IndexFaces(all, index)
	stop(err)
	search := &rekognition.SearchFacesByImageInput{CollectionId: &crew, Image: photo}
	found, err := client.SearchFacesByImage(all, search)
	stop(err)
	fmt.Println("found", *found.FaceMatches[0].Face.ExternalImageId)
	target := &types.Image{Bytes: both}
	compared, err := client.CompareFaces(all, &rekognition.CompareFacesInput{SourceImage: photo, TargetImage: target})
	stop(err)
	fmt.Println("same", len(compared.FaceMatches), "other", len(compared.UnmatchedFaces))
	_, err = client.DescribeCollection(all, &rekognition.DescribeCollectionInput{CollectionId: aws.String("nowhere")})
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		fmt.Println("missing", missing.ErrorCode())
	}
""",
)


@pytest.mark.parametrize(
    ("program", "package"),
    [(FIRST, "golang-github-aws-aws-sdk-go-dev"), (SECOND, "golang-github-aws-aws-sdk-go-v2-dev")],
    ids=["first", "second"],
)
def test_faces_are_indexed_searched_and_compared(
    shared_server: LiveServer, tmp_path: Path, program: str, package: str
) -> None:
    """The second signs for no region, as its endpoint names none."""
    if shutil.which("go") is None or not Path("/usr/share/doc", package).exists():
        pytest.skip(f"needs go and {package} (Debian)")
    (tmp_path / "main.go").write_text(program)
    made = likeness(shared_server.data_dir, "keys", "create", "--aws", "--json")
    keys = [f"{name.upper()}={value}" for name, value in json.loads(made.stdout).items()]
    go = ("env", f"GOPATH={GOPATH}", "GO111MODULE=off", "GOTOOLCHAIN=local", "GOFLAGS=")
    run(*go, "go", "build", "-o", "use", "main.go", folder=tmp_path)
    photos = (str(SAMPLES / "collins.jpg"), str(SAMPLES / "both.jpg"))
    said = run("env", *keys, "./use", shared_server.url, *photos, f"go-{package[-6:-4]}", folder=tmp_path)
    assert said.split("\n") == ["found eileen", "same 1 other 1", "missing ResourceNotFoundException", ""]
