"""Log-likelihood from left to right: by its definition, by the reference, whatever the texts stand beside."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.errors import InputError
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.tasks import batching
from family_harness import transformers

TEXTS = ["kaba lode mi", "", "kaba lode. mide nugi", "soba", "kaba lode mi"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    tokenizer = tiny_run.tokenizer()
    config = preset(
        "bert-tiny-uncased",
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=12,
        initializer_range=0.3,
        causal=True,
    )
    generator = torch.Generator().manual_seed(3)
    parts = {"encoder": build_encoder(config, generator), "masked": MaskedLMHead(config, generator)}
    folder = tmp_path_factory.mktemp("causal") / "m"
    return bs.load(write_folder(folder, config, parts, tokenizer=tokenizer), precision="fp32")


def test_scores_are_the_references_loss(model: bs.Model) -> None:
    other = transformers().BertLMHeadModel.from_pretrained(model.model_folder).eval()
    found = [one.to_dict() for one in model.score([text for text in TEXTS if text])]
    for row, text in zip(found, [text for text in TEXTS if text], strict=True):
        ids = torch.tensor([model.tokenizer.encode(text).ids])
        with torch.no_grad():
            logs = other(ids).logits[0].log_softmax(-1)
        wanted = sum(float(logs[at - 1, ids[0, at]]) for at in range(1, ids.shape[1] - 1))  # but [SEP]
        assert row["score"] == pytest.approx(wanted, abs=1e-4)
        assert row["tokens"] == ids.shape[1] - 2


def test_neighbours_and_order_change_nothing(model: bs.Model, caplog: pytest.LogCaptureFixture) -> None:
    together = [row.score for row in model.score(TEXTS)]
    assert any(message.startswith("1 text is empty and not scored") for message in caplog.messages)
    assert together[1] is None
    assert together[0] == together[4]
    alone = [model.score([text])[0].score for text in TEXTS if text]
    assert [score for score in together if score is not None] == pytest.approx(alone, abs=1e-5)


def test_equal_texts_have_equal_scores_in_whichever_pass(
    model: bs.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of two passes may differ in their last bits, and equal hypotheses in their ranks with them."""
    passes: list[int] = []
    encoder = model.encoder.forward
    monkeypatch.setattr(batching, "_MAX_TOKENS_CPU", 12)
    monkeypatch.setattr(
        model.encoder,
        "forward",
        lambda packed, rows: passes.append(packed.num_sequences) or encoder(packed, rows=rows),
    )
    texts = [" ".join(tiny_run.WORDS[i : i + 4]) for i in range(6)] * 3
    scores = [one.score for one in model.scorer().scores(texts)]
    assert scores[:6] == scores[6:12] == scores[12:]
    assert (len(passes), sum(passes)) == (3, 6)  # two texts of six tokens or five at a time, each text once


def test_a_long_text_is_read_in_windows(model: bs.Model) -> None:
    """12 positions hold 10 tokens of a text; each token counts once, with at least five before it."""
    words = (tiny_run.WORDS * 2)[:37]
    scorer = model.scorer()
    (found,) = scorer.scores([" ".join(words)])
    assert (found.tokens, found.is_complete) == (37, False)
    ids = model.tokenizer.encode(" ".join(words), max_length=100).ids[1:-1]
    total, room = 0.0, scorer.max_tokens
    with torch.no_grad():
        for at in range(37):
            start = 0 if at < room else 5 * ((at - room) // 5 + 1)
            part = [model.tokenizer.cls_token_id, *ids[start:at]]
            hidden = model.encoder(torch.tensor([part]))[0, -1:]
            logits = scorer.head(hidden, model.encoder.embeddings.token.weight)
            total += float(logits.log_softmax(-1)[0, ids[at]])
    assert found.score == pytest.approx(total, abs=1e-3)


def test_a_backwards_model_scores_each_token_by_those_behind_it(model: bs.Model, tmp_path: Path) -> None:
    """Of a long text each token has at least five behind it, but for the last ones."""
    config = model.folder.config.model_copy(update={"backwards": True})
    parts = {"encoder": model.encoder, "masked": model.scorer().head}
    folder = write_folder(tmp_path / "back", config, parts, tokenizer=model.tokenizer)
    back = bs.load(folder, precision="fp32")
    scorer = back.scorer()
    for number in (1, 4, 10, 11, 37):
        words = (tiny_run.WORDS * 2)[:number]
        (found,) = scorer.scores([" ".join(words)])
        ids = model.tokenizer.encode(" ".join(words), max_length=100).ids[1:-1]
        total, room = 0.0, scorer.max_tokens
        with torch.no_grad():
            for at in range(number):
                left = number - at  # tokens from this one on
                stop = number - (0 if left <= room else 5 * ((left - room - 1) // 5 + 1))
                start = max(0, stop - room)
                part = [model.tokenizer.cls_token_id, *ids[start:stop], model.tokenizer.sep_token_id]
                hidden = back.encoder(torch.tensor([part]))[0, at - start + 2 : at - start + 3]
                logits = scorer.head(hidden, back.encoder.embeddings.token.weight)
                total += float(logits.log_softmax(-1)[0, ids[at]])
        assert found.score == pytest.approx(total, abs=1e-3)


def test_pairs_and_variants(model: bs.Model, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("good,bad\nkaba lode,lode kaba\nmi so,so mi so\n", encoding="utf-8")
    scores = model.score_pairs(pairs)
    assert (scores["pairs"], scores["variant"]) == (2, "left_to_right")
    with pytest.raises(InputError) as caught:
        model.score(["kaba"], variant="token")
    assert (caught.value.code, caught.value.argument) == ("unknown_variant", "variant")


def test_pairs_on_a_runs_way(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("good,bad\nkaba lode,lode kaba\n", encoding="utf-8")
    causal = ["objective.name=causal", "data.instances=full_sentences", "data.sentence_task=none"]
    run = tiny_run.run(
        tiny_run.make_shards(tmp_path), tmp_path / "run", *causal, "train.max_steps=2", evaluate_pairs=pairs
    )
    assert run.score_pairs(pairs)["variant"] == "left_to_right"


def test_the_only_special_token_of_gpt2_is_before_a_text(shared_data: Path, tmp_path: Path) -> None:
    """A folder of transformers, whose tokenizer adds no special token and has no mask."""
    library, tokenizer = transformers(), bs.Tokenizer.load(shared_data / "vocabs/gpt2")
    sizes = {"n_positions": 16, "n_embd": 32, "n_head": 4, "n_layer": 1, "initializer_range": 0.3}
    torch.manual_seed(5)
    reference = library.GPT2LMHeadModel(library.GPT2Config(**sizes)).eval()
    reference.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    text = "The river sings 河."
    ids = torch.tensor([[tokenizer.end_token_id, *tokenizer.encode(text).ids]])
    with torch.no_grad():
        logs = reference(ids).logits[0, :-1].log_softmax(-1)
    model = bs.load(tmp_path, precision="fp32")
    score = model.score(text)
    assert model.scorer().perplexity_name == "perplexity"
    assert score.tokens == ids.shape[1] - 1
    assert score.score == pytest.approx(float(logs.gather(1, ids[0, 1:, None]).sum()), abs=1e-4)
