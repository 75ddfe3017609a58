"""The clients of other servers, unchanged, against a server with a model of each kind."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

import tiny_run
from bertsmith.serving import huggingface_routes
from served import served
from served_models import World

openai = pytest.importorskip("openai")
cohere = pytest.importorskip("cohere")
hub = pytest.importorskip("huggingface_hub")

WORDS = tiny_run.WORDS
TEXT, OTHER = " ".join(WORDS[:5]), " ".join(WORDS[7:9])
DOCUMENTS = [" ".join(WORDS[i : i + 3]) for i in range(4)]


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.fixture(autouse=True)
def closed_session() -> Iterator[None]:
    """Close the connections that huggingface_hub keeps."""
    yield
    hub.close_session()


# OpenAI


@pytest.fixture
def openai_client(world: World) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="-", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("encoding_format", ["base64", "float"])
def test_openai_embeddings(world: World, openai_client: Any, encoding_format: str) -> None:
    texts = [TEXT, "", OTHER]
    reply = openai_client.embeddings.create(model="bert", input=texts, encoding_format=encoding_format)
    vectors = [item.embedding for item in reply.data]
    if encoding_format == "base64":
        vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors]
    assert [item.index for item in reply.data] == [0, 1, 2]
    np.testing.assert_array_equal(np.array(vectors, np.float32), world["bert"].embed(texts))
    num_tokens = sum(len(world["bert"].tokenizer(text).ids) for text in texts)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == num_tokens


def test_openai_default_format_is_decoded_by_the_client(world: World, openai_client: Any) -> None:
    reply = openai_client.embeddings.create(model="bert", input=TEXT)
    np.testing.assert_array_equal(np.array(reply.data[0].embedding, np.float32), world["bert"].embed(TEXT))


def test_openai_token_ids(world: World, openai_client: Any) -> None:
    tokenizer, create = world["bert"].tokenizer, openai_client.embeddings.create
    ids = tokenizer.encode_ids([TEXT, OTHER])
    of_texts = create(model="bert", input=[TEXT, OTHER]).data
    of_ids = create(model="bert", input=ids).data
    assert [item.embedding for item in of_ids] == [item.embedding for item in of_texts]
    assert create(model="bert", input=ids[0]).data[0].embedding == of_texts[0].embedding
    with pytest.raises(openai.UnprocessableEntityError) as error:
        create(model="bert", input=[10**6])
    assert error.value.code == "token_id_out_of_range"


def test_openai_dimensions(world: World, openai_client: Any) -> None:
    create, size = openai_client.embeddings.create, world["bert"].embed(TEXT).size
    vector = create(model="bert", input=TEXT, dimensions=3).data[0].embedding
    assert vector == create(model="bert", input=TEXT).data[0].embedding[:3]
    with pytest.raises(openai.UnprocessableEntityError) as error:
        create(model="bert", input=TEXT, dimensions=size + 1)
    assert (error.value.code, error.value.param) == ("too_many_dimensions", "dimensions")


def test_openai_models_and_errors(world: World, openai_client: Any) -> None:
    assert [model.id for model in openai_client.models.list()] == list(world.models)
    with pytest.raises(openai.NotFoundError) as error:
        openai_client.embeddings.create(model="text-embedding-3-small", input=TEXT)
    assert error.value.code == "model_unknown"
    for name in world.models:
        assert name in error.value.message
    with pytest.raises(openai.APIStatusError) as error:
        openai_client.embeddings.create(model="bert", input=[TEXT] * 33)
    assert (error.value.status_code, error.value.code) == (413, "too_many_inputs")
    with pytest.raises(openai.BadRequestError) as error:
        openai_client.embeddings.create(model="bert", input=[])
    assert error.value.code == "no_inputs"


# Cohere


@pytest.fixture
def cohere_client(world: World) -> Iterator[Any]:
    with cohere.ClientV2("-", base_url=world.url) as client:
        yield client


def test_cohere_rerank(world: World, cohere_client: Any) -> None:
    predictions = world["nli"].predict([TEXT] * 4, DOCUMENTS)
    scores = {i: prediction.scores["entailment"] for i, prediction in enumerate(predictions)}
    expected = sorted(scores, key=lambda i: -scores[i])
    reply = cohere_client.rerank(model="nli", query=TEXT, documents=DOCUMENTS)
    assert [result.index for result in reply.results] == expected
    assert [result.relevance_score for result in reply.results] == near([scores[i] for i in expected])
    best = cohere_client.rerank(model="nli", query=TEXT, documents=DOCUMENTS, top_n=2).results
    assert [result.index for result in best] == expected[:2]
    documents = [{"text": text} for text in DOCUMENTS]
    with cohere.Client("-", base_url=world.url) as client:
        reply = client.rerank(model="nli", query=TEXT, documents=documents, return_documents=True)
    assert [result.document.text for result in reply.results] == [DOCUMENTS[i] for i in expected]


def test_cohere_embed(world: World, cohere_client: Any) -> None:
    reply = cohere_client.embed(
        model="bert", texts=[TEXT, OTHER], input_type="search_document", embedding_types=["float", "base64"]
    )
    expected = world["bert"].embed([TEXT, OTHER])
    np.testing.assert_array_equal(np.array(reply.embeddings.float_, np.float32), expected)
    np.testing.assert_array_equal(
        np.frombuffer(base64.b64decode(reply.embeddings.base64[1]), "<f4"), expected[1]
    )
    assert reply.texts == [TEXT, OTHER]


def test_cohere_errors(cohere_client: Any) -> None:
    with pytest.raises(cohere.NotFoundError) as error:
        cohere_client.rerank(model="rerank-v3.5", query=TEXT, documents=DOCUMENTS)
    assert "there is no model" in error.value.body["message"]
    with pytest.raises(cohere.NotFoundError) as error:
        cohere_client.rerank(model="tags", query=TEXT, documents=DOCUMENTS)
    assert error.value.body["error"]["code"] == "route_missing"


# huggingface_hub


def hub_client(world: World, path: str = "") -> Any:
    return hub.InferenceClient(world.url + path)


def test_hub_vectors(world: World) -> None:
    client = hub_client(world, "/models/bert/feature-extraction")
    expected = world["bert"].embed(TEXT)
    np.testing.assert_array_equal(client.feature_extraction(TEXT), [expected])
    normalized = client.feature_extraction(TEXT, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(normalized), 1, rtol=1e-6)
    a, b = world["bert"].embed([TEXT, OTHER], normalize=True)
    similar = hub_client(world, "/models/bert/sentence-similarity").sentence_similarity(TEXT, [TEXT, OTHER])
    assert similar == near([1, float(a @ b)])
    assert hub_client(world).sentence_similarity(TEXT, [OTHER]) == near(
        [float(a @ b)]
    )  # by its form, also at /


def test_hub_text_classification(world: World) -> None:
    client, pair = hub_client(world, "/models/nli/text-classification"), {"text": TEXT, "text_pair": OTHER}
    scores = client.text_classification(pair)
    prediction = world["nli"].predict(**pair)
    assert {row.label: row.score for row in scores} == near(dict(prediction.scores))
    assert [row.score for row in scores] == sorted((row.score for row in scores), reverse=True)
    assert [row.label for row in client.text_classification(pair, top_k=1)] == [prediction.label]
    logits = np.array([row.score for row in client.text_classification(pair, function_to_apply="none")])
    assert (np.exp(logits) / np.exp(logits).sum()).tolist() == near([row.score for row in scores])
    (number,) = hub_client(world, "/models/grades/text-classification").text_classification(pair)
    assert number.score == near(world["grades"].predict(**pair).number)


def test_hub_token_classification(world: World) -> None:
    client, prediction = hub_client(world, "/models/tags/token-classification"), world["tags"].predict(TEXT)
    words = client.token_classification(TEXT, aggregation_strategy="none", ignore_labels=[])
    assert [(row.entity, row.word, [row.start, row.end]) for row in words] == list(
        zip(prediction.tags, prediction.words, prediction.offsets, strict=True)
    )
    assert [row.score for row in words] == near(prediction.scores)
    entities = client.token_classification(TEXT)
    assert [(row.entity_group, row.word, row.start, row.end) for row in entities] == [
        (entity["type"], entity["text"], entity["start_char"], entity["end_char"])
        for entity in prediction.entities
    ]


def test_hub_question_answering(world: World) -> None:
    client, context = hub_client(world, "/models/answers/question-answering"), f"{TEXT} kaba {OTHER}"
    prediction = world["answers"].predict(question="lode", context=context)
    one = client.question_answering(question="lode", context=context, handle_impossible_answer=False)
    best = prediction.n_best[0]
    assert (one.answer, one.start, one.end) == (best["answer"], best["start"], best["end"])
    assert context[one.start : one.end] == one.answer
    several = client.question_answering(
        question="lode", context=context, top_k=3, max_answer_len=1, handle_impossible_answer=False
    )
    assert len(several) == 3
    assert all(" " not in span.answer for span in several)


def test_hub_fill_mask(world: World) -> None:
    text, model = f"{TEXT} [MASK]", world["bert"]
    (expected,) = model.fill_mask(text, top_k=3)
    for path in ("", "/models/bert/fill-mask"):
        reply = hub_client(world, path).fill_mask(text, top_k=3)
        assert [(row.token_str, row.sequence) for row in reply] == [(row.token, row.text) for row in expected]
        assert [row.score for row in reply] == near([row.score for row in expected])
        assert [model.tokenizer.tokens[row.token] for row in reply] == [row.token for row in expected]
    targets = [row.token for row in expected[1:]]
    chosen = hub_client(world).fill_mask(text, targets=targets)
    assert [(row.token_str, row.score) for row in chosen] == [
        (row.token, near(row.score)) for row in expected[1:]
    ]


def test_hub_zero_shot_classification(world: World) -> None:
    client, labels = hub_client(world, "/models/nli/zero-shot-classification"), WORDS[:3]
    reply = client.zero_shot_classification(TEXT, labels, hypothesis_template="ka {}")
    assert sorted(row.label for row in reply) == sorted(labels)
    assert sum(row.score for row in reply) == near(1)
    several = client.zero_shot_classification(TEXT, labels, multi_label=True, hypothesis_template="ka {}")
    predictions = world["nli"].predict([TEXT] * 3, [f"ka {label}" for label in labels])
    expected = {
        label: p.scores["entailment"] / (p.scores["entailment"] + p.scores["contradiction"])
        for label, p in zip(labels, predictions, strict=True)
    }
    assert {row.label: row.score for row in several} == near(expected)


def test_a_task_without_a_pipeline_answers_as_its_native_route(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(huggingface_routes.PIPELINES, "token-classification")
    body: dict[str, Any] = {"inputs": TEXT, "parameters": {"max_length": 20}}
    reply = world.client.post("/models/tags/token-classification", body)
    native = world.client.post(
        "/v1/models/tags/predict", {"inputs": {"words": TEXT}, "settings": {"max_length": 20}}
    )
    assert [reply.value] == native.value["predictions"]


def test_hub_errors(world: World) -> None:
    for path, call, status in (
        ("/models/none/fill-mask", lambda client: client.fill_mask("[MASK]"), 404),
        ("/models/bert/question-answering", lambda client: client.question_answering("a", "b"), 404),
        ("/models/bert/fill-mask", lambda client: client.fill_mask(TEXT), 422),
        ("/models/nli/text-classification", lambda client: client.text_classification([[1]]), 422),
    ):
        with pytest.raises(hub.errors.HfHubHTTPError) as error:
            call(hub_client(world, path))
        assert error.value.response.status_code == status


@pytest.mark.parametrize("key", ["secret", "wrong"])
def test_all_clients_send_the_key(world: World, key: str) -> None:
    with (
        served(f"bert={world['bert'].path}", api_key="secret") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as openai_client,
        cohere.ClientV2(key, base_url=server.url) as cohere_client,
    ):
        texts = {"texts": [TEXT], "input_type": "search_query", "embedding_types": ["float"]}
        client = hub.InferenceClient(server.url, token=key)
        for error, call in (
            (openai.AuthenticationError, openai_client.models.list),
            (cohere.UnauthorizedError, partial(cohere_client.embed, model="bert", **texts)),
            (hub.errors.HfHubHTTPError, partial(client.fill_mask, "[MASK]")),
        ):
            with nullcontext() if key == "secret" else pytest.raises(error):
                call()
        assert server.post("/", {"inputs": "[MASK]"}).status == 401
        assert server.get("/health").status == 200
        reply = server.post("/v1/rerank", {"query": TEXT, "documents": [TEXT]}, Authorization="Bearer secret")
        assert (reply.status, reply.code) == (404, "route_missing")  # no model scores pairs
