"""Words added to a vocabulary and a model: what was there stays bit for bit, what is new is made of its pieces."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import bertsmith as bs
import tiny_run
from bertsmith.artifacts.folder import read_folder, write_folder
from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import preset
from bertsmith.models.pretraining_heads import MaskedLMHead, Pooler, SentencePairHead
from bertsmith.models.task_heads import LinearHead
from bertsmith.packed import Packed
from bertsmith.pretraining.extend_vocabulary import Choice, extend_rows, extend_tokenizer
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training import extend as extension
from bertsmith.tokenizer_training.added_words import VOCABULARY_KINDS
from bertsmith.tokenizer_training.extend import (
    WordCounts,
    add_words,
    compare_tokenizations,
    count_domain_words,
    propose_words,
)

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = [
    *SPECIALS,
    *LETTERS,
    *(f"##{c}" for c in LETTERS),
    "the",
    "card",
    "##io",
    "##gram",
    ".",
    "猫",
    "3",
    "##7",
]
CORPUS = "The cardio cardio cardio. The cardiogram, cardio! A gram gram gram; 37 37 37 37 37 zoo"


def small() -> Tokenizer:
    return Tokenizer.from_vocabulary(TOKENS, lowercase=True, max_length=64)


def config(**more: int) -> ModelConfig:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    return ModelConfig(**{"vocab_size": len(TOKENS), "max_position_embeddings": 64, **sizes, **more})  # type: ignore


def model(path: Path, kind: str = "BertForPreTraining", **more: int) -> Path:
    c, g = config(**more), torch.Generator().manual_seed(3)
    modules: dict[str, torch.nn.Module] = {"encoder": Encoder(c, g)}
    labels, record = None, {"task": "none", "tokens_seen": 7}
    if kind != "BertModel":
        modules["pooler"] = Pooler(c, g)
    if kind == "BertForPreTraining":
        head = MaskedLMHead(c, g)
        torch.nn.init.normal_(head.bias, generator=g)
        modules |= {"masked": head, "pair": SentencePairHead(c, g)}
    if kind == "BertForSequenceClassification":
        modules["classifier"] = LinearHead(c, g, 3)
        labels, record = ["froh", "traurig", "<b>"], {"task": "classify", "numbered": False}
    return write_folder(path, c, modules, architecture=kind, tokenizer=small(), labels=labels, record=record)


def corpus(tmp_path: Path, text: str = CORPUS) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text(text + "\n", encoding="utf-8")
    return file


def counted(text: str) -> WordCounts:
    words = Counter(text.split())
    return WordCounts(words, words.total())


# Which words ------------------------------------------------------------------------------------------------


def test_words_are_counted_as_the_tokenizer_reads_them(tmp_path: Path) -> None:
    found = count_domain_words(
        [corpus(tmp_path, "Cardio\u00a0CARDIO, cárdio\ncardio  猫猫 " + "x" * 101)], small()
    )
    assert found.counts == {"cardio": 4, ",": 1, "猫": 2}
    assert (found.total, found.too_long) == (8, 1)


def test_proposals_are_ranked_by_what_they_save() -> None:
    words = counted("cardio " * 3 + "gram " * 5 + "37 " * 9 + "the " * 9 + "ab")
    rows = propose_words(words, small(), min_frequency=2)
    assert [(r.word, r.count, r.pieces, r.saved) for r in rows] == [
        ("gram", 5, ["g", "##r", "##a", "##m"], 15),
        ("cardio", 3, ["card", "##io"], 3),
    ]
    assert [r.word for r in propose_words(words, small(), min_frequency=1)] == ["gram", "cardio", "ab"]
    assert [r.word for r in propose_words(words, small(), min_frequency=1, max_words=1)] == ["gram"]
    assert [r.word for r in propose_words(words, small(), min_frequency=1, min_pieces=3)] == ["gram"]
    assert propose_words(counted("猫 the . 狗 狗狗"), small(), min_frequency=1) == []  # whole, or unknown


def test_a_comparison_leaves_out_what_is_common_everywhere() -> None:
    here, there = counted("cardio " * 4 + "gram " * 4 + "the " * 92), counted("gram " * 40 + "the " * 60)
    rows = propose_words(here, small(), reference_counts=there)
    assert [r.word for r in rows] == []
    rows = propose_words(here, small(), min_frequency=1, reference_counts=there)
    assert [r.word for r in rows] == ["cardio"]
    assert rows[0].commoner == pytest.approx((4 / 100) / (1 / 101))


word = st.text(st.sampled_from("abc"), min_size=1, max_size=5)


@settings(max_examples=60)
@given(st.lists(word, min_size=1, max_size=40))
def test_new_words_are_one_token_and_texts_without_them_keep_their_ids(found: list[str]) -> None:
    old, words = small(), counted(" ".join(found))
    chosen = [r.word for r in propose_words(words, old, max_words=4, min_frequency=1)]
    new = add_words(old, chosen)
    assert new.tokens == [*old.tokens, *chosen]
    changed = 0
    for text in set(found):
        before, after = old.encode_ids([text])[0], new.encode_ids([text])[0]
        if text in chosen:
            assert after == [len(TOKENS) + chosen.index(text)]
        elif not any(text.startswith(other) for other in chosen):
            assert after == before
        else:
            changed += after != before
            assert new.decode(after) == text
    told = compare_tokenizations(words, old, new, chosen)
    assert told["other_words"]["distinct"] == changed
    both = [sum(map(len, t.encode_ids(found))) for t in (old, new)]
    assert [told["tokens_before"], told["tokens_after"]] == both


def test_the_effect_tells_which_other_words_change(tmp_path: Path) -> None:
    words = count_domain_words([corpus(tmp_path)], small())
    told = compare_tokenizations(words, small(), add_words(small(), ["cardio"]), ["cardio"])
    assert told["tokens_before"] - told["tokens_after"] == 4 + 1
    assert told["other_words"] == {
        "distinct": 1, "times": 1, "longer": 0, "become_unknown": 0,
        "examples": [
            {"word": "cardiogram", "times": 1, "before": ["card", "##io", "##gram"], "after": ["cardio", "##gram"]}
        ],
    }  # fmt: skip
    # A longest match can also lose: "abcd" = ab ##cd, but abc has no ##d to go on with.
    tokens = [*SPECIALS, "a", "ab", "##c", "##cd"]
    narrow = Tokenizer.from_vocabulary(tokens, lowercase=True)
    told = compare_tokenizations(counted("abc abcd abcd"), narrow, add_words(narrow, ["abc"]), ["abc"])
    assert told["other_words"]["become_unknown"] == 1
    assert (told["unknown_before"], told["unknown_after"]) == (0, 2)


def test_memory_is_bounded_and_what_is_forgotten_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = corpus(tmp_path, "cardio cardio\n" * 30 + " ".join(a + b for a in LETTERS for b in LETTERS))
    monkeypatch.setattr(extension, "_MAX_DISTINCT_WORDS", 100)
    found = count_domain_words([file], small())
    assert found.counts["cardio"] == 60
    assert len(found.counts) == 50
    assert found.num_evicted == 676 - 49
    assert found.total == 736
    told = compare_tokenizations(found, small(), small(), [])
    assert told["words_forgotten"] == 627


# The tokenizer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", ["hf", "google"])
def test_its_files_load_in_the_reference_with_equal_ids(tmp_path: Path, reading: Any) -> None:
    from transformers import AutoTokenizer, BertTokenizer

    tokenizer = Tokenizer.from_vocabulary(TOKENS, lowercase=True, max_length=64, normalizer=reading)
    tokenizer.save(tmp_path / "old")
    report = extend_tokenizer(
        [corpus(tmp_path)], tmp_path / "new", tokenizer=tmp_path / "old", choice=Choice(min_frequency=3)
    )
    assert [row["word"] for row in report["words"]] == ["gram", "cardio"]
    assert report["vocab_size"] == report["vocab_size_before"] + 2 == len(TOKENS) + 2
    ours = Tokenizer.load(tmp_path / "new")
    texts = [CORPUS, "cardio", "unrelated words", "Grams [MASK] gram"]
    for reference in (
        AutoTokenizer.from_pretrained(tmp_path / "new"),
        BertTokenizer(str(tmp_path / "new/vocab.txt")),
    ):
        for text in texts[:3]:
            assert reference(text)["input_ids"] == ours.encode(text).ids
    assert Tokenizer.load(tmp_path / "new" / "vocab.txt").encode_ids(texts) == ours.encode_ids(texts)
    kept = json.loads((tmp_path / "new" / "extension.json").read_text())
    assert kept == {k: v for k, v in report.items() if k != "output_dir"}
    assert ours.max_length == 64
    assert ours.all_special_ids == tokenizer.all_special_ids


def test_special_tokens_behind_the_vocabulary_keep_their_ids(tmp_path: Path) -> None:
    definition = json.loads(small().definition)
    size = len(TOKENS)
    extra = dict(definition["added_tokens"][0]) | {"id": size, "content": "[E1]", "special": True}
    definition["added_tokens"].append(extra)
    small().save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    old = Tokenizer.load(tmp_path)
    assert old.vocab_size == size + 1
    new = add_words(old, ["cardio"])
    assert new.tokens == [*TOKENS, "[E1]", "cardio"]
    new.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.encode_ids(["cardio"]) == [[size + 1]]
    assert again.encode_ids(["[E1] e1"]) == old.encode_ids(["[E1] e1"])
    assert again.encode("[E1]", special_strings="parse").ids[1] == size
    definition["added_tokens"][-1] |= {"content": "zoo", "special": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(InputError) as caught:
        add_words(Tokenizer.load(tmp_path), ["cardio"])
    assert caught.value.code == "added_token_is_word"


MEDICAL = (
    "The cardiogram,   cardiograms and cardio:\t(cardiogram)  cardiogram troponin-T troponin's naïve 🫀\n"
)


@pytest.mark.parametrize("name", ["gpt2", "roberta-base", "albert-base"])
def test_other_kinds_grow_and_load_in_the_reference(name: str, shared_data: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    old = Tokenizer.load(shared_data / "vocabs" / name)
    report = extend_tokenizer(
        [corpus(tmp_path, MEDICAL * 5)], tmp_path / "new", tokenizer=shared_data / "vocabs" / name
    )
    found = {row["word"]: (row["count"], len(row["pieces"])) for row in report["words"]}
    assert {"troponin", "cardiogram"} <= found.keys()
    new = Tokenizer.load(tmp_path / "new")
    assert new.tokens[: old.vocab_size] == old.tokens
    assert new.all_special_ids == old.all_special_ids
    assert report["vocab_size"] == new.vocab_size > old.vocab_size + 1
    mark = "▁" if name == "albert-base" else "Ġ"
    for word in found:
        assert [new.tokens[i] for i in new.encode_ids([f" {word}"])[0]] == [f"{mark}{word}"]
    unrelated = "Nothing of this is in it: 3.14, naïve [MASK] 猫 </s>"
    assert new.encode_ids([unrelated]) == old.encode_ids([unrelated])
    reference = AutoTokenizer.from_pretrained(tmp_path / "new")
    for text in (MEDICAL.strip(), unrelated.replace("[MASK] ", "").replace(" </s>", "")):
        assert reference(text, add_special_tokens=False)["input_ids"] == new.encode_ids([text])[0]
    assert report["effect"]["tokens_before"] == len(old.encode_ids([MEDICAL.strip()])[0]) * 5
    assert report["effect"]["tokens_after"] == len(new.encode_ids([MEDICAL.strip()])[0]) * 5
    if name == "albert-base":
        assert (tmp_path / "new" / "spiece.model").exists()
        (tmp_path / "new" / "tokenizer.json").unlink()
        assert Tokenizer.load(tmp_path / "new").encode_ids([MEDICAL]) == new.encode_ids([MEDICAL])
        assert Tokenizer.load(tmp_path / "new").digest == new.digest


@pytest.fixture(scope="module", params=["byte_level_bpe", "unigram"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "text.txt").write_text("ab abc cab cabab bcab a b c bca, aab\n" * 20, encoding="utf-8")
    size = {"byte_level_bpe": 275, "unigram": 24}[request.param]
    return bs.train_tokenizer(folder / "text.txt", folder / "tok", vocab_size=size, kind=request.param)


letters = st.lists(st.text(st.sampled_from("abc"), min_size=1, max_size=12), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(words=letters, text=letters)
def test_whatever_words_are_added_each_is_one_token(
    words: list[str], text: list[str], trained: Tokenizer
) -> None:
    kind = VOCABULARY_KINDS[trained.kind]
    new_ones = [word for word in dict.fromkeys(words) if kind.to_token(word) not in trained.tokens]
    new = add_words(trained, new_ones)
    assert new.tokens[: trained.vocab_size] == trained.tokens
    for word in new_ones:
        assert [new.tokens[i] for i in new.encode_ids([kind.to_text(word)])[0]] == [kind.to_token(word)]
    joined = " ".join(["a", *text])
    before, after = (tokenizer.encode_ids([joined])[0] for tokenizer in (trained, new))
    assert new.decode(after) == trained.decode(before) == joined
    assert trained.kind == "unigram" or len(after) <= len(before)  # what merges did stays done


def test_a_model_of_another_kind_grows(shared_data: Path, tmp_path: Path) -> None:
    """Joints have rows of their own, made of their pieces as words are."""
    tokenizer = Tokenizer.load(shared_data / "vocabs" / "roberta-base")
    sizes = ("hidden_size=8", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=12")
    c = preset("roberta-mini", vocab_size=tokenizer.vocab_size).changed(sizes)
    g = torch.Generator().manual_seed(3)
    parts = {"encoder": Encoder(c, g), "masked": MaskedLMHead(c, g)}
    old = write_folder(tmp_path / "old", c, parts, architecture="RobertaForMaskedLM", tokenizer=tokenizer)
    (tmp_path / "list.txt").write_text("troponin\n")
    report = extend_tokenizer([], tmp_path / "new", model=old, word_list=tmp_path / "list.txt")
    pieces = report["words"][0]["pieces"]
    assert len(pieces) > 2
    assert report["vocab_size"] == tokenizer.vocab_size + len(pieces) - 1
    first, second = (read_folder(place).weights() for place in (old, tmp_path / "new"))
    name = "encoder.embeddings.token.weight"
    ids = [tokenizer.tokens.index(piece) for piece in pieces]
    assert torch.equal(second[name][: len(first[name])], first[name])
    assert torch.equal(second[name][-1], first[name][ids].mean(0))
    assert torch.equal(second[name][len(first[name])], first[name][ids[:2]].mean(0))
    assert bs.load(tmp_path / "new").fill_mask("<mask> troponin", top_k=1)[0]
    assert read_folder(tmp_path / "new").record["extended"][0]["words"] == 1  # joints are none


def test_a_word_of_the_text_that_a_joint_joins_is_told(tmp_path: Path) -> None:
    text = corpus(tmp_path, "ab ac ba " * 30)
    bs.train_tokenizer(text, tmp_path / "bpe", vocab_size=270, kind="byte_level_bpe")
    (tmp_path / "list.txt").write_text("cardiomyopathy\n")
    report = extend_tokenizer(
        [corpus(tmp_path, "a cardiomy, a cardiomyopathy")],
        None,
        tokenizer=tmp_path / "bpe",
        word_list=tmp_path / "list.txt",
    )
    assert [one["word"] for one in report["effect"]["other_words"]["examples"]] == ["cardiomy"]


def test_a_list_for_unigram_has_letters_and_digits(shared_data: Path, tmp_path: Path) -> None:
    for line in ("COVID-19", "foo_bar"):
        (tmp_path / "list.txt").write_text(f"{line}\n")
        with pytest.raises(InputError) as caught:
            extend_tokenizer(
                [], None, tokenizer=shared_data / "vocabs" / "albert-base", word_list=tmp_path / "list.txt"
            )
        assert caught.value.code == "word_has_other_characters"


# The list ---------------------------------------------------------------------------------------------------


def listed(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "list.txt").write_text(text, encoding="utf-8")
    small().save(tmp_path / "old")
    return extend_tokenizer([], None, tokenizer=tmp_path / "old", word_list=tmp_path / "list.txt")


def test_a_list_is_added_in_its_order_and_what_needs_no_entry_is_told(tmp_path: Path) -> None:
    report = listed(tmp_path, "cardio\n\n the \ngram\ncardio\n狗\n")
    assert [(r["word"], r["pieces"], r["count"]) for r in report["words"]] == [
        ("cardio", ["card", "##io"], 0), ("gram", ["g", "##r", "##a", "##m"], 0), ("狗", ["[UNK]"], 0),
    ]  # fmt: skip
    assert report["already_whole"] == ["the", "cardio"]
    assert report["effect"] is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("Cardió", "word_not_normalized"),
        ("heart attack", "several_words"),
        ("covid-19", "several_words"),
        ("猫狗", "several_words"),
        ("[MASK]", "word_is_special_token"),
        ("##gram", "word_is_continuation"),
        ("\u0007", "word_normalizes_to_nothing"),
        ("x" * 101, "word_too_long"),
    ],
)
def test_lines_that_cannot_become_one_token(tmp_path: Path, line: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        listed(tmp_path, f"gram\n{line}\n")
    assert (caught.value.code, caught.value.location) == (code, f"{tmp_path / 'list.txt'}:2")
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "\n \n", "the\n.\n"])
def test_a_list_without_a_word_to_add(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        listed(tmp_path, text)
    assert caught.value.code == "no_new_words"


# The model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["mean", "first"])
@pytest.mark.parametrize("kind", ["BertForPreTraining", "BertModel", "BertForSequenceClassification"])
def test_a_model_grows_by_rows_and_nothing_else_moves(tmp_path: Path, kind: str, init: Any) -> None:
    old = model(tmp_path / "old", kind)
    extend_tokenizer(
        [corpus(tmp_path)], tmp_path / "new", model=old, choice=Choice(min_frequency=3), init=init
    )
    first, second = load_file(old / "model.safetensors"), load_file(tmp_path / "new" / "model.safetensors")
    assert first.keys() == second.keys()
    size = len(TOKENS)
    grown = [name for name in first if first[name].shape != second[name].shape]
    assert {name.split(".", 1)[-1] for name in grown} <= {
        "embeddings.word_embeddings.weight", "word_embeddings.weight", "predictions.bias",
    }  # fmt: skip
    assert len(grown) == (2 if kind == "BertForPreTraining" else 1)
    for name, tensor in first.items():
        assert torch.equal(second[name][:size] if name in grown else second[name], tensor), name
    pieces = [[TOKENS.index(p) for p in found] for found in (["g", "##r", "##a", "##m"], ["card", "##io"])]
    for name in grown:
        wanted = [first[name][ids].mean(0) if init == "mean" else first[name][ids[0]] for ids in pieces]
        assert torch.equal(second[name][size:], torch.stack(wanted)), name
    before, after = read_folder(old), read_folder(tmp_path / "new")
    assert after.config.model_dump() == {**before.config.model_dump(), "vocab_size": size + 2}
    assert (after.labels, after.architecture) == (before.labels, before.architecture)
    assert {k: after.record[k] for k in before.record if k != "weights_sha256"} == {
        k: v for k, v in before.record.items() if k != "weights_sha256"
    }
    assert after.record["extended"] == [{"words": 2, "vocab_size_before": size, "init": init}]


def test_hidden_states_of_texts_without_new_words_are_bit_equal(tmp_path: Path) -> None:
    old, new = bs.load(model(tmp_path / "old")), tmp_path / "new"
    extend_tokenizer([corpus(tmp_path)], new, model=old.path, choice=Choice(min_frequency=3))
    grown = bs.load(new)
    texts = ["the zoo.", "a card 37", "unrelated [MASK] words"]
    for text in texts:
        a, b = (m.tokenizer.encode(text, special_strings="parse") for m in (old, grown))
        assert a == b
        packed = Packed.from_lists([a.ids], [a.type_ids])
        with torch.inference_mode():
            assert torch.equal(old.encoder(packed), grown.encoder(packed))
    assert len(grown.tokenizer.encode("cardio gram").ids) == 4
    filled = grown.fill_mask("the [MASK].", top_k=len(TOKENS) + 2)[0]
    assert {"cardio", "gram"} <= {row.token for row in filled}
    assert sum(row.score for row in filled) == pytest.approx(1, abs=1e-5)


def test_the_reference_loads_it_without_a_missing_key(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BertForPreTraining

    extend_tokenizer(
        [corpus(tmp_path)], tmp_path / "new", model=model(tmp_path / "old"), choice=Choice(min_frequency=3)
    )
    theirs, told = BertForPreTraining.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ours = bs.load(tmp_path / "new")
    encoding = ours.tokenizer.encode("the cardio gram", "a zoo cardiogram")
    reference = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert reference("the cardio gram", "a zoo cardiogram")["input_ids"] == encoding.ids
    packed = Packed.from_lists([encoding.ids], [encoding.type_ids])
    with torch.inference_mode():
        answer = theirs.eval()(torch.tensor([encoding.ids]), token_type_ids=torch.tensor([encoding.type_ids]))
        logits = ours.scorer().head(ours.encoder(packed), ours.encoder.embeddings.token.weight)
    assert torch.allclose(answer.prediction_logits[0], logits, atol=1e-5)


def test_rows_that_no_token_had_are_used_before_the_table_grows(tmp_path: Path) -> None:
    old = model(tmp_path / "old", vocab_size=len(TOKENS) + 1)
    extend_tokenizer([corpus(tmp_path)], tmp_path / "new", model=old, choice=Choice(min_frequency=3))
    assert read_folder(tmp_path / "new").config.vocab_size == len(TOKENS) + 2
    roomy = model(tmp_path / "roomy", vocab_size=len(TOKENS) + 9)
    extend_tokenizer([corpus(tmp_path)], tmp_path / "more", model=roomy, choice=Choice(min_frequency=3))
    assert read_folder(tmp_path / "more").config.vocab_size == len(TOKENS) + 9
    table = torch.arange(12.0).reshape(6, 2).half()
    new = extend_rows(table, 4, [[0, 1]], "mean")
    assert new.dtype == torch.float16
    assert new.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [1, 2], [10, 11]]


def test_half_precision_and_twice_extended(tmp_path: Path) -> None:
    old = model(tmp_path / "old")
    file = old / "model.safetensors"
    save_file({k: v.half() for k, v in load_file(file).items()}, file, {"format": "pt"})
    (old / "bertsmith.json").unlink()
    extend_tokenizer([corpus(tmp_path)], tmp_path / "a", model=old, choice=Choice(words=1, min_frequency=3))
    extend_tokenizer([corpus(tmp_path)], tmp_path / "b", model=tmp_path / "a", choice=Choice(min_frequency=3))
    assert {t.dtype for t in load_file(tmp_path / "b" / "model.safetensors").values()} == {torch.float16}
    assert bs.load(tmp_path / "b").tokenizer.tokens[-2:] == ["gram", "cardio"]
    assert [row["words"] for row in read_folder(tmp_path / "b").record["extended"]] == [1, 1]


def test_a_run_that_was_fine_tuned_still_predicts(tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    tiny_run.run(shards, tmp_path / "bert", "train.max_steps=1")
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(12))
    moods = bs.finetune(
        "classify", tmp_path / "bert", tmp_path / "moods", train=train, validation_split=0.3,
        settings=["train.max_steps=2", "train.threads=1", "train.precision=fp32"],
    )  # fmt: skip
    (tmp_path / "list.txt").write_text("kabalode\n")
    report = extend_tokenizer([], tmp_path / "new", model=tmp_path / "moods", word_list=tmp_path / "list.txt")
    assert report["words"][0]["pieces"] == ["[UNK]"]
    grown = bs.load(tmp_path / "new")
    assert grown.predict(["kaba lode", "mi"]) == moods.predict(["kaba lode", "mi"])
    assert grown.tokenizer.encode_ids(["kabalode"]) == [[tiny_run.tokenizer().vocab_size]]


# What is refused --------------------------------------------------------------------------------------------


def test_bad_calls(tmp_path: Path) -> None:
    small().save(tmp_path / "t")
    file = corpus(tmp_path)

    def fails(code: str, files: Any = (file,), output_dir: Any = tmp_path / "o", **more: Any) -> None:
        with pytest.raises(InputError) as caught:
            extend_tokenizer(files, output_dir, **more)
        assert caught.value.code == code
        assert not (tmp_path / "o").exists()

    fails("tokenizer_or_model")
    fails("tokenizer_or_model", tokenizer=tmp_path / "t", model=tmp_path / "t")
    fails("no_files", files=(), tokenizer=tmp_path / "t")
    fails("no_new_words", tokenizer=tmp_path / "t", choice=Choice(min_frequency=100))
    fails("output_exists", output_dir=tmp_path / "t", tokenizer=tmp_path / "t")
    fails("not_found", files=[tmp_path / "none.txt"], tokenizer=tmp_path / "t")
    fails("not_found", tokenizer=tmp_path / "nowhere" / "x")
    fails("not_a_model", model=tmp_path / "t")
    old = model(tmp_path / "m")
    shutil.copy(tmp_path / "t" / "vocab.txt", tmp_path / "more.txt")
    add_words(small(), ["zoo"]).save(old)
    fails("tokenizer_too_large", model=old)
    for words in (["the"], ["zoo", "zoo"]):
        with pytest.raises(InputError) as caught:
            add_words(small(), words)
        assert caught.value.code == "word_not_new"


def test_only_proposing_writes_nothing_and_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small().save(tmp_path / "t")
    file = corpus(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    report = extend_tokenizer([file], None, tokenizer=tmp_path / "t", choice=Choice(min_frequency=3))
    assert report["added"] == 2
    assert "output_dir" not in report
    assert sorted(tmp_path.rglob("*")) == before

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertsmith.io.atomic.os.replace", full)
    with pytest.raises((bs.BertsmithError, OSError), match="No space left"):
        extend_tokenizer([file], tmp_path / "o", tokenizer=tmp_path / "t", choice=Choice(min_frequency=3))
    assert sorted(tmp_path.rglob("*")) == before
