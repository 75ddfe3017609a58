"""Continue texts: choice of tokens, ends, batches, streams, and errors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.errors import InputError
from bertsmith.inference.generation import GeneratedText, Sampling
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.tokenizer.tokenizer import Tokenizer
from family_harness import transformers

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128}
TEXT = "Ein Bär trinkt 茶 und schläft. The bear drinks tea — 🐻 every day.\n" * 30
PROMPTS = ["The bear", "Ein Bär trinkt", "", "The bear", "🐻 every day, and then"]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return bs.train_tokenizer(
        folder / "text.txt", folder / "tokenizer", vocab_size=320, kind="byte_level_bpe"
    )


def model_of(folder: Path, tokenizer: Tokenizer, name: str = "gpt2-mini", **changes: Any) -> bs.Model:
    """Return a model with random weights, large enough that continuations vary."""
    sizes = {**SMALL, "vocab_size": tokenizer.vocab_size, "initializer_range": 0.4, **changes}
    config = preset(name, max_position_embeddings=40, **sizes)
    generator = torch.Generator().manual_seed(8)
    parts = {"encoder": build_encoder(config, generator), "masked": MaskedLMHead(config, generator)}
    return bs.load(write_folder(folder, config, parts, tokenizer=tokenizer), "cpu", precision="fp32")


@pytest.fixture(scope="module")
def model(byte_level: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    return model_of(tmp_path_factory.mktemp("model") / "gpt", byte_level)


LOGITS = torch.tensor([[0.0, 2.0, 1.0, -1.0, 0.5]]).log_softmax(1)


def chosen(sampling: Sampling, logits: torch.Tensor = LOGITS, count: int = 2000) -> np.ndarray:
    """Return the frequency of each token among equally spaced random numbers."""
    uniforms = (np.arange(count) + 0.5) / count
    tokens = sampling.choose(logits.expand(count, -1), uniforms)
    return np.bincount(tokens, minlength=logits.shape[1]) / count


def test_tokens_are_chosen_with_their_probabilities() -> None:
    """Equally spaced numbers give each token its probability up to the spacing."""
    for temperature in (0.3, 1.0, 2.0):
        expected = (LOGITS[0].double() / temperature).softmax(0).numpy()
        np.testing.assert_allclose(chosen(Sampling(temperature=temperature)), expected, atol=1e-3)
    assert chosen(Sampling(temperature=0))[1] == 1


def test_top_k_and_top_p_leave_the_most_probable_tokens() -> None:
    probabilities = LOGITS[0].double().exp()
    order = probabilities.argsort(descending=True)
    for k in (1, 2, 4, 5, 9):
        kept = torch.zeros(5, dtype=torch.bool).index_fill(0, order[:k], True)
        expected = (probabilities * kept / probabilities[kept].sum()).numpy()
        np.testing.assert_allclose(chosen(Sampling(top_k=k)), expected, atol=1e-3)
    cumulative = probabilities[order].cumsum(0)
    for p in (0.01, float(cumulative[0]) + 0.01, 0.85, 1.0):
        count = int((cumulative < p).sum()) + 1
        kept = torch.zeros(5, dtype=torch.bool).index_fill(0, order[:count], True)
        expected = (probabilities * kept / probabilities[kept].sum()).numpy()
        np.testing.assert_allclose(chosen(Sampling(top_p=p)), expected, atol=1e-3)


def test_sampling_filters_as_the_reference_does() -> None:
    """The tokens that transformers' warpers leave, in its order: temperature, top k, top p."""
    library = transformers()
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(0)) * 3
    for temperature, top_k, top_p in ((0.7, 10, 0.8), (1.5, 50, 0.3), (1.0, 3, 0.99)):
        scores = logits.double()
        for warper in (
            library.TemperatureLogitsWarper(temperature),
            library.TopKLogitsWarper(top_k),
            library.TopPLogitsWarper(top_p),
        ):
            scores = warper(None, scores)
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        for row, expected in zip(logits, scores.softmax(1).numpy(), strict=True):
            np.testing.assert_allclose(chosen(sampling, row[None]), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("max_new_tokens", 1.5),
        ("temperature", "hot"),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("seed", -1),
    ],
)
def test_settings_out_of_range(model: bs.Model, name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        model.generate("The bear", **{name: value})
    assert (caught.value.code, caught.value.argument) == ("sampling_out_of_range", name)


def test_a_seed_gives_the_same_texts_and_another_one_others(model: bs.Model) -> None:
    first, again, other = (model.generate(PROMPTS, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert all(a.text != b.text for a, b in zip(first, other, strict=True))
    assert [result.prompt for result in first] == PROMPTS
    assert first[0].text != first[3].text  # equal prompts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_continuation_does_not_depend_on_other_prompts(model: bs.Model, temperature: float) -> None:
    together = model.generate(PROMPTS, temperature=temperature)
    for prompt, result in zip(PROMPTS, together, strict=True):
        alone = model.generate(prompt, temperature=temperature)
        assert alone == (result if result is not together[3] else together[0])
    repeated = model.generate(["The bear"] * 40, temperature=temperature)  # more than a batch
    assert repeated[:2] == [together[0], together[3]]


def test_cache_and_recomputing_agree(model: bs.Model) -> None:
    from dataclasses import replace

    for sampling in (Sampling(temperature=0), Sampling(seed=5)):
        generator = model.text_generator(sampling)
        assert generator(PROMPTS) == replace(generator, use_cache=False)(PROMPTS)


@pytest.mark.parametrize("name", ["gpt2-mini", "gpt-mini"])
def test_greedy_is_the_references_greedy(byte_level: Tokenizer, tmp_path: Path, name: str) -> None:
    model = model_of(tmp_path / "m", byte_level, name)
    prefix = {"gpt2-mini": "GPT2", "gpt-mini": "OpenAIGPT"}[name]
    other = getattr(transformers(), f"{prefix}LMHeadModel").from_pretrained(tmp_path / "m")
    end = byte_level.end_token_id
    hidden = [[token] for token in sorted(byte_level.all_special_ids - {end})]
    for prompt in PROMPTS:
        ids = torch.tensor([byte_level.encode_prompt(prompt)])
        theirs = other.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            bad_words_ids=hidden,
            eos_token_id=end,
            pad_token_id=end,
        )[0]
        assert model.generate(prompt, max_new_tokens=12, temperature=0).text == byte_level.decode(
            theirs[ids.shape[1] :].tolist()
        )


def test_pieces_of_a_stream_are_whole_characters_and_the_text_together(model: bs.Model) -> None:
    """Bytes of a random model are seldom UTF-8: what is yielded never changes later."""
    num_pieces = 0
    for seed in range(30):
        pieces = list(model.generate("Ein Bär", seed=seed, stream=True, max_new_tokens=20))
        assert "".join(pieces) == model.generate("Ein Bär", seed=seed, max_new_tokens=20).text
        assert all(pieces)
        assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])
        num_pieces += len(pieces)
    assert num_pieces > 5 * 30


def biased(model: bs.Model, token: int) -> bs.Model:
    """Make a token the most probable one everywhere."""
    with torch.no_grad():
        embedding = model.encoder.embeddings.token.weight
        embedding[token] = 100 * torch.ones(embedding.shape[1])
        norm = model.encoder.norm
        assert norm is not None
        norm.bias.fill_(1.0)
    return model


def test_the_end_token_ends_a_text_and_other_special_tokens_never_occur(
    byte_level: Tokenizer, tmp_path: Path
) -> None:
    end = byte_level.end_token_id
    assert end == byte_level.sep_token_id
    ended = biased(model_of(tmp_path / "a", byte_level), end).generate("The bear")
    assert ended == GeneratedText("The bear", "", 0, "end")
    padded = biased(model_of(tmp_path / "b", byte_level), byte_level.pad_token_id)
    for result in padded.generate(PROMPTS):  # the text of special tokens would be empty
        assert (result.tokens == 0) == (result.text == "")


def test_the_models_length_ends_a_text(model: bs.Model, byte_level: Tokenizer) -> None:
    prompts = ["The bear"] * 20
    results = [
        result for result in model.generate(prompts, max_new_tokens=1000) if result.finish_reason != "end"
    ]
    assert results
    for result in results:
        assert result.finish_reason == "max_length"
        assert result.tokens + len(byte_level.encode_prompt("The bear")) == 40
    shorter = [r for r in model.generate(prompts, max_new_tokens=2) if r.finish_reason != "end"]
    assert {(result.tokens, result.finish_reason) for result in shorter} == {(2, "max_new_tokens")}
    with pytest.raises(InputError) as caught:
        model.generate(["The bear", "The bear drinks tea " * 40])
    assert (caught.value.code, caught.value.location) == ("prompt_too_long", "prompt 2")


def test_vocabulary_of_gpt2_has_one_special_token(byte_level: Tokenizer, tmp_path: Path) -> None:
    """It starts an empty prompt, and ends a text; a prompt has no tokens around it."""
    from json import dumps

    entries = [
        token for token in byte_level.tokens if token not in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    ]
    entries.append("<|endoftext|>")
    (tmp_path / "t").mkdir()
    (tmp_path / "t/vocab.json").write_text(dumps({token: i for i, token in enumerate(entries)}))
    (tmp_path / "t/merges.txt").write_text("#version: 0.2\n")
    tokenizer = Tokenizer.load(tmp_path / "t")
    end = len(entries) - 1
    assert (tokenizer.end_token_id, tokenizer.encode_prompt("")) == (end, [end])
    assert tokenizer.encode_prompt("a") == [entries.index("a")]
    model = model_of(tmp_path / "m", tokenizer)
    assert len(model.generate(["", "a b"], temperature=0)) == 2
    assert biased(model, end).generate("a").finish_reason == "end"


def test_causal_model_with_word_pieces(tmp_path: Path) -> None:
    model = model_of(tmp_path / "m", tiny_run.tokenizer(), "bert-tiny-uncased", causal=True)
    for seed in range(10):
        result = model.generate("kaba lode", seed=seed)
        pieces = list(model.generate("kaba lode", seed=seed, stream=True))
        assert "".join(pieces) == result.text
        assert "##" not in result.text


def test_models_that_cannot_continue_texts(byte_level: Tokenizer, tmp_path: Path) -> None:
    word_pieces = tiny_run.tokenizer()
    cases = {"model_not_causal": {}, "model_reads_backwards": {"causal": True, "backwards": True}}
    for code, changes in cases.items():
        model = model_of(tmp_path / code, word_pieces, "bert-tiny-uncased", **changes)
        with pytest.raises(InputError) as caught:
            model.generate("kaba")
        assert (caught.value.code, caught.value.location) == (code, str(model.path))
    int8 = bs.load(model_of(tmp_path / "gpt", byte_level).path, "cpu", precision="int8")
    with pytest.raises(InputError) as caught:
        int8.generate("The bear")
    assert (caught.value.code, caught.value.argument) == ("int8_not_for_generation", "precision")


def test_refusals_name_a_command_that_the_model_serves(tmp_path: Path) -> None:
    """A model is never sent to a command that refuses it."""
    pieces, sizes = tiny_run.tokenizer(), {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}
    bilstm = bs.create_model("lstm-mini", pieces, tmp_path / "bilstm", causal=False, **sizes)
    with pytest.raises(InputError) as caught:
        bs.create_model("lstm-mini", pieces, tmp_path / "bilstm")
    assert (caught.value.code, caught.value.argument) == ("output_exists", "output_dir")
    bilstm = bs.create_model(
        "lstm-mini", pieces, tmp_path / "bilstm", causal=False, overwrite=True, seed=1, **sizes
    )
    pairs = [{"source": "kaba", "target": "lode"}, {"source": "lode", "target": "kaba"}] * 2
    transformer = bs.create_model("transformer-mini", pieces, tmp_path / "new", **SMALL)
    translator = bs.finetune(
        "translate", transformer, tmp_path / "translator", train=pairs, validation=pairs, max_steps=1
    )
    elmo = model_of(tmp_path / "elmo", pieces, "elmo-mini", **sizes, num_attention_heads=1, embedding_size=16)
    bert = model_of(tmp_path / "bert", pieces, "bert-tiny-uncased")
    gpt = model_of(tmp_path / "gpt", pieces, "bert-tiny-uncased", causal=True)
    run = tiny_run.run(tiny_run.make_shards(tmp_path / "run"), tmp_path / "run" / "bert")
    served = [
        (bilstm, "embed"),
        (translator, "predict"),
        (elmo, "score"),
        (bert, "fill_mask"),
        (run, "fill_mask"),
    ]
    for model, usage in served:
        with pytest.raises(InputError) as caught:
            model.generate("kaba")
        assert f"bertsmith.Model.{usage} " in (caught.value.hint or "")
    for model, usage in ((bilstm, "embed"), (translator, "predict"), (elmo, "score"), (gpt, "generate")):
        with pytest.raises(InputError) as caught:
            model.fill_mask("kaba [MASK]")
        assert f"bertsmith.Model.{usage} " in (caught.value.hint or "")
    assert elmo.score("kaba lode").tokens == 2
    assert bert.fill_mask("kaba [MASK]")


def test_empty_prompts_are_logged(model: bs.Model, caplog: pytest.LogCaptureFixture) -> None:
    model.generate(["The bear", "", " "], max_new_tokens=1)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "prompt 2, prompt 3" in record.getMessage().replace(" and ", ", ")


def test_only_one_prompt_is_streamed(model: bs.Model) -> None:
    with pytest.raises(InputError) as caught:
        model.generate(["a", "b"], stream=True)
    assert (caught.value.code, caught.value.argument) == ("stream_of_several_prompts", "stream")


def test_outputs_that_are_not_finite_are_an_error(byte_level: Tokenizer, tmp_path: Path) -> None:
    model = model_of(tmp_path / "m", byte_level)
    with torch.no_grad():
        model.encoder.blocks[0].output_norm.weight.fill_(torch.inf)
    with pytest.raises(InputError) as caught:
        model.generate("The bear")
    assert caught.value.code == "outputs_not_finite"
