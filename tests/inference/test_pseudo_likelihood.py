"""Scores of texts: of a model whose answers are known, one masked copy at a time, and of the reference library."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import write_folder
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.inference.scoring import Scorer, Variant, pseudo_perplexity, score_and_rank
from bertsmith.models.encoder import Encoder
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.tasks import batching

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    ".",
    ",",
    "ka",
    "lo",
    "mi",
    "##ba",
    "##de",
    "##gi",
    "##fo",
]
TOKENIZER = bs.Tokenizer.from_vocabulary(PIECES, lowercase=True, max_length=24)
PLACE = ComputeContext.create("cpu", "fp32")
TEXTS = st.lists(
    st.lists(
        st.sampled_from(["ka", "kaba", "kabadegi", "lofo", "mi", ".", "mideba,", "zzz"]), max_size=30
    ).map(" ".join),
    max_size=6,
)
BOTH: tuple[Variant, Variant] = ("within_word", "token")


def modules(tokenizer: bs.Tokenizer, positions: int = 24) -> tuple[Encoder, MaskedLMHead]:
    """An encoder and a head with weights large enough that each token of a text has its say in each logit."""
    config = bs.ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=positions,
        initializer_range=0.4,
    )
    generator = torch.Generator().manual_seed(5)
    encoder, head = Encoder(config, generator), MaskedLMHead(config, generator)
    with torch.no_grad():
        for part in (*encoder.parameters(), *head.parameters()):
            if part.dim() == 1:
                part.add_(torch.randn(part.shape, generator=generator) * 0.2)
    return encoder.eval(), head.eval()


ENCODER, HEAD = modules(TOKENIZER)


def scorer(variant: Variant = "within_word") -> Scorer:
    return Scorer(ENCODER, TOKENIZER, PLACE, HEAD, variant)


def plainly(text: str, variant: Variant, room: int = 22) -> float:
    """The definition, one masked copy after the other through the padded call: words are told by their marks."""
    tokens = TOKENIZER.encode(text, max_length=10**6).ids[1:-1]
    total = 0.0
    for i, gold in enumerate(tokens):
        hidden = [i]
        if variant == "within_word":
            for j in range(i + 1, len(tokens)):
                if not PIECES[tokens[j]].startswith("##"):
                    break
                hidden.append(j)
        masked = [TOKENIZER.mask_token_id if j in hidden else token for j, token in enumerate(tokens)]
        first = max(0, min(i - room // 2, len(tokens) - room))
        copy = [TOKENIZER.cls_token_id, *masked[first : first + room], TOKENIZER.sep_token_id]
        with torch.no_grad():
            states = ENCODER(torch.tensor([copy]))[0, i - first + 1]
            total += float(HEAD(states[None], ENCODER.embeddings.token.weight).log_softmax(-1)[0, gold])
    return total


@settings(max_examples=20)
@given(TEXTS)
def test_batched_scores_are_those_of_one_masked_copy_at_a_time(texts: list[str]) -> None:
    for variant in BOTH:
        found = scorer(variant).scores(texts)
        assert [one.score or 0.0 for one in found] == pytest.approx(
            [plainly(text, variant) for text in texts], abs=1e-4, rel=1e-5
        )


def test_a_model_of_frequencies_alone_scores_the_sum_of_their_logarithms() -> None:
    encoder, head = modules(TOKENIZER)
    with torch.no_grad():
        head.norm.weight.zero_()
        head.norm.bias.zero_()
    logs = head.bias.detach().double().log_softmax(0)
    for variant in BOTH:
        texts = ["kaba mi.", "lo", "mi mi mi, kadefo"]
        found = Scorer(encoder, TOKENIZER, PLACE, head, variant).scores(texts)
        wanted = [
            sum(float(logs[PIECES.index(piece)]) for piece in pieces)
            for pieces in (["ka", "##ba", "mi", "."], ["lo"], ["mi", "mi", "mi", ",", "ka", "##de", "##fo"])
        ]
        assert [one.score for one in found] == pytest.approx(wanted, abs=1e-5)
        assert [one.tokens for one in found] == [4, 1, 7]
        assert [one.words for one in found] == [3, 1, 5]
        assert [one.pseudo_perplexity for one in found] == pytest.approx(
            [math.exp(-score / tokens) for score, tokens in zip(wanted, (4, 1, 7), strict=True)]
        )
        assert pseudo_perplexity(found) == pytest.approx(math.exp(-sum(wanted) / 12))


def test_the_later_pieces_of_its_word_are_masked_with_a_token_and_no_others() -> None:
    seen: list[list[str]] = []

    class Watched(Encoder):
        def forward(self, inputs, **more):  # type: ignore[no-untyped-def]
            names = [PIECES[i] for i in inputs.tokens.tolist()]
            seen.extend(
                names[begin : begin + n] for begin, n in zip(inputs.cu_seqlens, inputs.lengths, strict=False)
            )
            return super().forward(inputs, **more)

    watched = Watched(ENCODER.config).eval()
    alone = ["? ##ba ##de mi ##gi .", "ka ? ##de mi ##gi .", "ka ##ba ? mi ##gi .", "ka ##ba ##de ? ##gi ."]
    later = ["? ? ? mi ##gi .", "ka ? ? mi ##gi .", "ka ##ba ? mi ##gi .", "ka ##ba ##de ? ? ."]
    last = ["ka ##ba ##de mi ? .", "ka ##ba ##de mi ##gi ?"]
    for variant, copies in zip(BOTH, ([*later, *last], [*alone, *last]), strict=True):
        seen.clear()
        Scorer(watched, TOKENIZER, PLACE, HEAD, variant).scores(["kabade migi."])
        assert [" ".join(copy).replace("[MASK]", "?") for copy in seen] == [
            f"[CLS] {c} [SEP]" for c in copies
        ]


def test_a_texts_score_does_not_depend_on_its_company(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["kaba mi.", "lo " * 20, "", "zzz", "mideba, ka"] * 3
    alone = [scorer().scores([text])[0].score for text in texts]
    for chunk, budget in ((1024, 8192), (2, 8192), (1024, 1), (4, 50)):
        monkeypatch.setattr(Scorer, "chunk_size", chunk)
        monkeypatch.setattr(batching, "_MAX_TOKENS_CPU", budget)
        done: list[int] = []
        found = scorer().scores(texts, done.append)
        assert [one.score for one in found] == pytest.approx(alone, abs=1e-4)
        assert done == sorted(done)
        assert done[-1] == len(texts)


def test_texts_of_the_same_tokens_have_one_score_whatever_pass_they_are_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums that were added in another order differ in their last bits, and two equal hypotheses in their ranks."""
    passes = itertools.count()

    def uneven(self: Scorer, hidden: Tensor, labels: Tensor) -> Tensor:
        return torch.full((len(labels),), -1 - 1e-6 * next(passes))

    monkeypatch.setattr(Scorer, "_log_probabilities", uneven)
    monkeypatch.setattr(batching, "_MAX_TOKENS_CPU", 10)
    monkeypatch.setattr(Scorer, "chunk_size", 3)
    texts = ["kaba mi.", "lo", "", "Kaba  MI .", "lo lo", "lo", "", "kaba mi."]
    done: list[int] = []
    found = scorer().scores(texts, done.append)
    assert found[0] == found[3] == found[7]
    assert found[1] == found[5]
    assert found[1].score != found[4].score / 2  # another pass
    assert (done[0] > 0, done == sorted(done), done[-1]) == (True, True, 8)
    rows = score_and_rank(
        [(f"file:{i}", text) for i, text in enumerate(texts, start=1)], scorer(), lambda text: None
    )
    assert [row["rank"] for row in rows] == [4, 1, 4, 3, 1, 4]


def test_batches_keep_to_the_budget_and_only_predicted_rows_reach_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batching, "_MAX_TOKENS_CPU", 100)
    tokens, rows = [], []
    hooks = [
        ENCODER.embeddings.register_forward_hook(lambda module, given, out: tokens.append(len(out))),
        HEAD.transform.register_forward_hook(lambda module, given, out: rows.append(len(out))),
    ]
    texts = ["kaba mi.", "mi mi mi mi", "lo", "kabadegi, lofo."] * 5
    found = scorer().scores(texts)
    for hook in hooks:
        hook.remove()
    assert max(tokens) <= 100
    different = found[:4]  # the others are the same again
    assert sum(tokens) == scorer().cost(texts[:4]) == sum(one.tokens * (one.tokens + 2) for one in different)
    assert sum(rows) == sum(one.tokens for one in different)


def test_each_token_of_a_text_longer_than_the_model_is_guessed_from_the_text_around_it() -> None:
    text = "kaba mi. lofo, " * 20
    for variant in BOTH:
        (long, short) = scorer(variant).scores([text, "kaba"])
        assert long.score == pytest.approx(plainly(text, variant), abs=1e-3)
        assert (long.tokens, long.is_complete, short.is_complete) == (140, False, True)
        assert scorer(variant).cost([text]) == 140 * 24


def test_a_text_without_a_token_has_no_perplexity_and_unknown_ones_are_counted() -> None:
    empty, blank, unknown = scorer().scores(["", " \n", "zzz ka zzz"])
    for one in (empty, blank):
        assert (one.score, one.tokens, one.words, one.pseudo_perplexity) == (None, 0, 0, None)
    assert (unknown.tokens, unknown.unknown, unknown.words) == (3, 2, 3)
    assert scorer().scores([]) == []


def test_special_tokens_in_a_text_are_text() -> None:
    (found,) = scorer().scores(["[MASK] ka"])
    assert (found.tokens, found.unknown) == (4, 3)  # "[", "mask", "]" are not in this vocabulary


def test_nothing_is_drawn_and_no_gradient_is_kept() -> None:
    before = PLACE.generator.get_state(), torch.get_rng_state()
    scorer().scores(["kaba mi."])
    assert torch.equal(PLACE.generator.get_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    assert all(p.grad is None for p in ENCODER.parameters())


def test_what_cannot_score_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        scorer("words")  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.argument) == ("unknown_variant", "variant")
    bare = bs.Tokenizer.from_vocabulary(PIECES, lowercase=True)
    bare.continuation_prefix = ""
    with pytest.raises(InputError) as caught:
        Scorer(ENCODER, bare, PLACE, HEAD)
    assert caught.value.code == "continuation_prefix_missing"
    assert Scorer(ENCODER, bare, PLACE, HEAD, "token").scores(["ka"])[0].words is None
    encoder, head = modules(TOKENIZER, positions=2)
    with pytest.raises(InputError) as caught:
        Scorer(encoder, TOKENIZER, PLACE, head)
    assert caught.value.code == "model_too_short"


@pytest.mark.parametrize("kind", ["byte_level_bpe", "unigram"])
def test_words_of_other_kinds_of_tokenizer_begin_with_a_blank(tmp_path: Path, kind: str) -> None:
    """Letters only, where a blank alone parts words: each piece is scored with the rest of its word masked."""
    (tmp_path / "corpus.txt").write_text(tiny_run.corpus(60).replace(".", ""), encoding="utf-8")
    tokenizer = bs.train_tokenizer(
        [tmp_path / "corpus.txt"], tmp_path / "tokenizer", vocab_size=290, kind=kind
    )
    encoder, head = modules(tokenizer, positions=40)
    text = "kaba mizu solode Rizu nufopegi"
    encoding = tokenizer.encode(text)
    own = [i for i, source in enumerate(encoding.sequence_ids) if source is not None]
    marks = ("Ġ", "▁")
    first, total = own[0], 0.0
    words: list[int] = []
    for i in own:
        words.append(words[-1] + encoding.tokens[i].startswith(marks) if words else 1)
    assert len(own) > max(words) == 5
    for i in own:
        hidden = [j for j in own if j == i or (j > i and words[j - first] == words[i - first])]
        copy = [tokenizer.mask_token_id if j in hidden else token for j, token in enumerate(encoding.ids)]
        with torch.no_grad():
            states = encoder(torch.tensor([copy]))[0, i]
            logs = head(states[None], encoder.embeddings.token.weight).log_softmax(-1)
        total += float(logs[0, encoding.ids[i]])
    (found,) = Scorer(encoder, tokenizer, PLACE, head).scores([text])
    assert found.score == pytest.approx(total, abs=1e-4)
    assert (found.tokens, found.words) == (len(own), 5)


def test_a_saved_model_scores_as_the_reference_library_does(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_folder(
        tmp_path / "model", ENCODER.config, {"encoder": ENCODER, "masked": HEAD}, tokenizer=TOKENIZER
    )
    model = transformers.BertForMaskedLM.from_pretrained(tmp_path / "model").eval()
    tokenizer = transformers.BertTokenizerFast.from_pretrained(tmp_path / "model")
    texts = ["kaba mi, lofo kabadegi.", "mi", "lofo mideba. kade, ka"]

    def reference(text: str, variant: Variant) -> float:
        encoded = tokenizer(text, return_tensors="pt")
        ids: Tensor = encoded["input_ids"][0]
        words, rows = encoded.word_ids(), range(1, len(ids) - 1)
        copies = ids.repeat(len(rows), 1)
        for copy, row in zip(copies, rows, strict=True):
            later = [j for j in rows if j > row and words[j] == words[row] and variant == "within_word"]
            copy[[row, *later]] = tokenizer.mask_token_id
        with torch.no_grad():
            logs = model(copies).logits.log_softmax(-1)
        return sum(float(logs[i, row, ids[row]]) for i, row in enumerate(rows))

    for variant in BOTH:
        ours = bs.load(tmp_path / "model", precision="fp32")
        found = [row.score for row in ours.score(texts, variant=variant)]
        assert found == pytest.approx([reference(text, variant) for text in texts], abs=1e-4)
    assert found != pytest.approx([reference(text, "within_word") for text in texts], abs=1e-2)
