"""/v1/search: results equal those of `Run.search`, from documents and from vector files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from http_served import ROOM, TEXTS, client, index_texts, trained_model
from starlette.testclient import TestClient

from tercet.api import Run
from tercet.checkpoint import Card, save_model
from tercet.cli.main import main
from tercet.config import UserError
from tercet.encoding import SearchIndex
from tercet.serve.engine import Limits
from tercet.serve.http.routes import search as route
from tercet.serve.registry import LoadedModel

LONG = "the cat sat on the mat and a dog ran until the mat was worn " * 6
DOCUMENTS = [*TEXTS, "", LONG]
QUERIES = ["a dog ran", "unbelievable", LONG]
RUN = Run(trained_model=trained_model("bert"))


@pytest.fixture(scope="module")
def test_client() -> Iterator[TestClient]:
    with client("bert", "texts", "gpt", indexes={"bert": index_texts("bert", DOCUMENTS)}) as models:
        yield models


def search(test_client: TestClient, query: Any, **body: Any) -> Any:
    answer = test_client.post("/v1/search", json={"query": query, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def check_results(answers: Any, queries: list[str], top: int, *, has_places: bool = True, **lengths: Any) -> None:
    """Check that the answers are those of `Run.search` in the documents."""
    found = RUN.search(queries, DOCUMENTS, top=top, **lengths)
    for number, (query, answer) in enumerate(zip(queries, answers, strict=True)):
        assert answer["query"] == query
        neighbors = answer["neighbors"]
        scores = [row["score"] for row in neighbors]
        assert scores == pytest.approx(found.scores[number].tolist(), abs=1e-5)
        assert scores == sorted(scores, reverse=True)
        expected = [found.numbers[number].tolist()]
        if has_places:
            assert found.starts is not None
            assert found.ends is not None
            expected += [found.starts[number].tolist(), found.ends[number].tolist()]
        columns = ("index", "start", "end")[: len(expected)]
        assert [tuple(row[name] for name in columns) for row in neighbors] == list(zip(*expected, strict=True))
        for row in neighbors:
            assert row["id"] == f"{row['index']}.txt"
            assert row["text"] == DOCUMENTS[row["index"]][row["start"] or 0 : row["end"]]


def test_results_equal_those_of_search(test_client: TestClient) -> None:
    answer = search(test_client, QUERIES, top=4)
    check_results(answer["answers"], QUERIES, 4)
    assert answer["model"] == "bert"
    chunks = RUN.embed_chunks(QUERIES).chunks
    assert answer["usage"]["chunks"] == len(chunks) > len(QUERIES)
    assert answer["usage"]["prompt_tokens"] == sum(chunk.tokens for chunk in chunks)
    assert any(row["index"] == 4 and row["start"] > 0 for row in answer["answers"][2]["neighbors"])
    check_results(search(test_client, QUERIES[0])["answers"], QUERIES[:1], 5)
    check_results(search(test_client, QUERIES[0], top=1000)["answers"], QUERIES[:1], 1000)


def test_texts_of_results_are_optional(test_client: TestClient) -> None:
    whole, short = (search(test_client, "a dog", return_documents=flag)["answers"][0] for flag in (True, False))
    assert all(row["text"] is not None for row in whole["neighbors"])
    assert short["neighbors"] == [{**row, "text": None} for row in whole["neighbors"]]


def test_queries_may_be_cut(test_client: TestClient) -> None:
    answer = search(test_client, LONG, truncate=True)
    assert answer["usage"]["truncated_texts"] == 1
    cut = RUN.tokenizer.decode(RUN.tokenizer.encode(LONG)[: ROOM - 2])
    check_results([{**answer["answers"][0], "query": cut}], [cut], 5)


def test_results_with_long_texts_are_bounded(test_client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "MAX_FOUND_CHARACTERS", 1000)
    answer = test_client.post("/v1/search", json={"query": "a dog", "top": 9})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top")
    assert "request fewer (top), or return_documents: false" in answer.json()["error"]["message"]
    assert len(search(test_client, "a dog", top=2)["answers"][0]["neighbors"]) == 2


def test_only_a_model_with_documents_supports_the_route(test_client: TestClient) -> None:
    routes = {model["id"]: model["routes"] for model in test_client.get("/v1/models").json()["data"]}
    assert {name for name, supported in routes.items() if "/v1/search" in supported} == {"bert"}
    answer = test_client.post("/v1/search", json={"model": "texts", "query": "a"})
    assert answer.status_code == 400
    assert "texts has no documents to search; start it with `tercet serve RUN --input" in answer.text
    with pytest.raises(UserError, match="is a language model, not an encoder"):
        LoadedModel(trained_model("gpt"), name="gpt", limits=Limits(), index=index_texts("bert"))


def test_no_field_of_a_request_names_a_file(test_client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret")
    for query in (str(tmp_path / "secret.txt"), "../0.txt", f"file://{tmp_path}/secret.txt"):
        assert 'secret"' not in json.dumps(search(test_client, query)["answers"][0]["neighbors"])
    for field in ("input", "vectors", "path", "index", "documents"):
        answer = test_client.post("/v1/search", json={"query": "a", field: str(tmp_path / "secret.txt")})
        assert answer.status_code == 400
        assert f"unknown field '{field}'" in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the model `bert`, and vector files of documents and of their chunks."""
    path, model = tmp_path_factory.mktemp("files"), trained_model("bert")
    save_model(path / "bert", model.model, model.tokenizer, Card(name="bert"))
    rows = (json.dumps({"id": f"{number}.txt", "text": text}) + "\n" for number, text in enumerate(DOCUMENTS))
    (path / "texts.jsonl").write_text("".join(rows))
    for name, flags in {"chunks": ["--per-chunk", "--chunk", "12"], "whole": []}.items():
        words = ["--input", str(path / "texts.jsonl"), "--output", str(path / f"{name}.npz")]
        assert main(["embed", str(path / "bert"), *words, *flags]) == 0
    return path


@pytest.mark.parametrize(("name", "lengths"), [("chunks", {"chunk": 12}), ("whole", {})])
def test_vector_file_is_searched(folder: Path, name: str, lengths: dict[str, int]) -> None:
    index = RUN.open_index(folder / f"{name}.npz")
    assert index.documents == len(DOCUMENTS)
    with client(models={"bert": trained_model("bert")}, indexes={"bert": index}) as test_client:
        answers = search(test_client, QUERIES[:2], top=3, **lengths)["answers"]
    if name == "chunks":
        check_results(answers, QUERIES[:2], 3, **lengths)
        return
    found = RUN.search(QUERIES[:2], RUN.embed(DOCUMENTS), top=3)
    assert [[row["index"] for row in answer["neighbors"]] for answer in answers] == found.numbers.tolist()
    assert all(row["start"] is row["end"] is None for answer in answers for row in answer["neighbors"])


def test_vectors_of_another_model_are_rejected(folder: Path, tmp_path: Path) -> None:
    other = trained_model("bert")
    with torch.no_grad():
        next(other.model.parameters()).neg_()
    with pytest.raises(UserError, match="has vectors of another model"):
        Run(trained_model=other).open_index(folder / "whole.npz")
    with pytest.raises(UserError, match="has vectors of another model"):
        RUN.open_index(folder / "whole.npz", pooling="first")
    with np.load(folder / "whole.npz") as arrays:
        vectors = dict(arrays)
    vectors["vectors"][1, 2] = np.inf
    np.savez(tmp_path / "infinite.npz", **vectors)
    with pytest.raises(UserError, match="vector 1 has a number that is not finite"):
        RUN.open_index(tmp_path / "infinite.npz")
    np.savez(
        tmp_path / "empty.npz", **{name: array[:0] if name != "probe" else array for name, array in vectors.items()}
    )
    with pytest.raises(UserError, match="has no text to search"):
        RUN.open_index(tmp_path / "empty.npz")
    with pytest.raises(UserError, match="there are no documents to search"):
        RUN.index([])


def test_documents_of_an_index_may_be_cut() -> None:
    index = RUN.index(enumerate(DOCUMENTS), truncate=True)
    assert (index.documents, len(index.vectors), index.truncated) == (5, 5, 1)
    np.testing.assert_allclose(index.vectors, RUN.embed(DOCUMENTS, truncate=True), atol=1e-6)
    assert index.get_text(4).text == LONG


def test_documents_of_several_pools_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.encoding.search_index.POOL", 2)
    index, expected = RUN.index(enumerate(DOCUMENTS)), RUN.embed_chunks(DOCUMENTS)
    np.testing.assert_allclose(index.vectors, expected.vectors, atol=1e-5)
    texts = [index.get_text(number) for number in range(len(index.vectors))]
    assert [(text.index, text.id, text.start, text.end) for text in texts] == [
        (chunk.document, chunk.document, chunk.start, chunk.end) for chunk in expected.chunks
    ]
    assert isinstance(index, SearchIndex)
