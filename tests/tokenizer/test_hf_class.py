"""What is saved is reopened by the reference as the same tokenizer: its class where that builds the same, else
tokenizer.json as it is; frames are the file's own; pieces that go on a word are told by the model's prefix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.errors import InputError
from bertsmith.tokenizer.tokenizer import Tokenizer

UNHEARD = list[str]().append  # what is told of texts that bring special tokens of their own
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *(
        "the",
        "cat",
        "##s",
        "sat",
        "un",
        "##able",
        "1",
        "9",
        "1999",
        "##9",
        "Cat",
        "cafe",
        "café",
        "中",
        "中国",
    ),
    *(",", ".", "'", "-", "well", "well-known", "\x07", "a\x07b", "a", "##b", "b", "##国", "@", "@@s"),
]
LONG = "unable" + "s" * 60
TEXTS = [
    "The cats sat, unable in 1999.",
    "café 中国 a\x07b well-known",
    LONG,
    "Cat's 99 b @@s [MASK] the [SEP]",
    "",
]
Change = Callable[[dict[str, Any]], object]


def definition() -> dict[str, Any]:
    tokenizer = Tokenizer.of_vocabulary([*SPECIALS, *PIECES, "##" + "s" * 60], lowercase=True)
    whole: dict[str, Any] = json.loads(tokenizer.definition)
    return whole


def set_in(*path: str, value: Any) -> Change:
    def change(whole: dict[str, Any]) -> None:
        for name in path[:-1]:
            whole = whole[name]
        whole[path[-1]] = value

    return change


def other_prefix(whole: dict[str, Any]) -> None:
    model = whole["model"]
    model["continuing_subword_prefix"] = "@@"
    model["vocab"] = {token.replace("##", "@@"): i for token, i in model["vocab"].items() if token != "@@s"}
    model["vocab"] = {token: i for i, token in enumerate(model["vocab"])}
    whole["decoder"]["prefix"] = "@@"


def without_cls(whole: dict[str, Any]) -> None:
    whole["post_processor"]["single"] = whole["post_processor"]["single"][1:]
    whole["post_processor"]["pair"] = whole["post_processor"]["pair"][1:]


def two_separators(whole: dict[str, Any]) -> None:
    pair = whole["post_processor"]["pair"]
    pair.insert(2, pair[2])


DIGITS = {
    "type": "Sequence",
    "pretokenizers": [{"type": "BertPreTokenizer"}, {"type": "Digits", "individual_digits": True}],
}
STEPS = {
    "type": "Sequence",
    "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}],
}
EXTRA = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
CHANGES: dict[str, Change] = {
    "digits one by one": set_in("pre_tokenizer", value=DIGITS),
    "blanks alone": set_in("pre_tokenizer", value={"type": "WhitespaceSplit"}),
    "controls kept": set_in("normalizer", "clean_text", value=False),
    "steps for a normaliser": set_in("normalizer", value=STEPS),
    "no normaliser": set_in("normalizer", value=None),
    "short words": set_in("model", "max_input_chars_per_word", value=20),
    "another prefix": other_prefix,
    "no frame": set_in("post_processor", value=None),
    "no [CLS]": without_cls,
    "two [SEP]": two_separators,
    "a word that is never cut": lambda whole: whole["added_tokens"].append(
        {"id": len(whole["model"]["vocab"]), "content": "1999.", "special": False, **EXTRA}
    ),
    "a mask that takes blanks": lambda whole: whole["added_tokens"][4].update(lstrip=True),
}


def written(folder: Path, change: Change) -> Path:
    whole = definition()
    change(whole)
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    return folder


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_another_tokenizer_is_reopened_as_it_is(change: Change, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = written(tmp_path / "in", change) / "tokenizer.json"
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))
    ours = Tokenizer.load(file)
    ours.save(tmp_path / "out")
    assert json.loads((tmp_path / "out/tokenizer_config.json").read_text())["tokenizer_class"] == (
        "PreTrainedTokenizerFast"
    )
    (tmp_path / "out/config.json").write_text('{"model_type": "bert"}')
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    for texts in ((TEXTS,), (TEXTS[:-1], TEXTS[1:])):
        expected = reference(*texts)["input_ids"]
        assert theirs(*texts)["input_ids"] == expected
        found = ours.encode_many(*texts, specials="parse", tell=UNHEARD)
        assert [e.ids for e in found] == expected
        assert all(len(e.ids) == len(e.segments) == len(e.sources) == len(e.offsets) for e in found)
    again = Tokenizer.load(tmp_path / "out")
    assert again.encode_many(TEXTS) == ours.encode_many(TEXTS)
    assert again.digest == ours.digest


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("chinese", [True, False])
@pytest.mark.parametrize("accents", [None, True, False])
def test_what_is_berts_is_called_so(
    lowercase: bool, chinese: bool, accents: bool | None, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")

    def change(whole: dict[str, Any]) -> None:
        whole["normalizer"].update(lowercase=lowercase, handle_chinese_chars=chinese, strip_accents=accents)

    ours = Tokenizer.load(written(tmp_path / "in", change))
    ours.save(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    assert type(theirs) is transformers.BertTokenizer
    assert theirs(TEXTS)["input_ids"] == [
        e.ids for e in ours.encode_many(TEXTS, specials="parse", tell=UNHEARD)
    ]
    (tmp_path / "out/tokenizer.json").unlink()
    assert Tokenizer.load(tmp_path / "out").digest == ours.digest


def test_the_frame_is_the_files(tmp_path: Path) -> None:
    def spelled(name: str) -> tuple[str, str]:
        folder = tmp_path / name.replace("[", "").replace("]", "")
        tokenizer = Tokenizer.load(written(folder, CHANGES[name]))
        one, two = tokenizer.encode("the cat"), tokenizer.encode("the cat", "sat")
        assert len(two.ids) == len(tokenizer.encode("the cat", "sat", max_length=len(two.ids)).ids)
        assert tokenizer.encode("the cat", "sat", max_length=len(two.ids) - 1).cut == 1
        assert tokenizer.separators == (2 if name == "two [SEP]" else 0)
        return tuple(" ".join(tokenizer.tokens[i] for i in e.ids) for e in (one, two))  # type: ignore[return-value]

    assert spelled("no [CLS]") == ("the cat [SEP]", "the cat [SEP] sat [SEP]")
    assert spelled("no frame") == ("the cat", "the cat sat")
    assert spelled("two [SEP]") == ("[CLS] the cat [SEP]", "[CLS] the cat [SEP] [SEP] sat [SEP]")


def test_a_class_that_frames_in_its_program_frames(tmp_path: Path) -> None:
    folder = written(tmp_path / "in", CHANGES["no frame"])
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizerFast"}')
    tokenizer = Tokenizer.load(folder)
    assert [tokenizer.tokens[i] for i in tokenizer.encode("the", "cat").ids] == (
        ["[CLS]", "the", "[SEP]", "cat", "[SEP]"]
    )
    assert (tokenizer.separators, tokenizer.uses_segments) == (1, True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda post: post["pair"].append(post["pair"][1]), "does not lay out each text once"),
        (lambda post: post["pair"][1]["Sequence"].update(type_id=2), "has a segment other than 0 and 1"),
        (lambda post: post["special_tokens"]["[CLS]"].update(ids=[4_000]), "names an id that no token has"),
        (
            lambda post: post["single"][0]["SpecialToken"].update(id="[A]"),
            r"does not say which id '\[A\]' has",
        ),
    ],
)
def test_frames_that_no_model_takes_are_refused(
    change: Callable[[dict[str, Any]], None], told: str, tmp_path: Path
) -> None:
    folder = written(tmp_path / "in", lambda whole: change(whole["post_processor"]))
    with pytest.raises(InputError, match=told) as error:
        Tokenizer.load(folder)
    assert error.value.sentence.startswith(f"{folder / 'tokenizer.json'}: its post-processor")


def test_words_begin_by_the_models_own_prefix(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(written(tmp_path / "in", other_prefix))
    ids = np.array(tokenizer.pieces(["the cats unable"])[0])
    assert [tokenizer.tokens[i] for i in ids] == ["the", "cat", "@@s", "un", "@@able"]
    assert tokenizer.word_starts(ids).tolist() == [True, True, False, True, False]
    assert tokenizer.decode(ids) == "the cats unable"
    none = Tokenizer.load(written(tmp_path / "none", set_in("model", "continuing_subword_prefix", value="")))
    with pytest.raises(InputError, match="does not mark the pieces that continue a word"):
        none.word_starts(ids)


def test_only_the_mask_is_parsed_on_request(shared_data: Path) -> None:
    ours = Tokenizer.of_vocabulary([*SPECIALS, *PIECES, "[", "]", "sep", "cls", "mask"], lowercase=True)
    found = ours.encode("cat [SEP] [CLS] the [MASK] [PAD]", specials="mask")
    inner = [ours.tokens[i] for i, source in zip(found.ids, found.sources, strict=True) if source == 0]
    assert inner == ["cat", "[", "sep", "]", "[", "cls", "]", "the", "[MASK]", "[", "[UNK]", "]"]
    assert ours.encode("the [MASK]").ids.count(ours.mask_id) == 0
    for name in ("roberta-base", "albert-base"):
        tokenizer = Tokenizer.load(shared_data / "vocabs" / name)
        text = f"Paris is <s> the </s> {tokenizer.mask_token} of [SEP] <pad> France [CLS]."
        found = tokenizer.encode(text, specials="mask")
        there = [i for i, source in zip(found.ids, found.sources, strict=True) if source == 0]
        assert [i for i in there if i in tokenizer.special_ids - {tokenizer.unk_id}] == [tokenizer.mask_id]
        assert found.ids.index(tokenizer.mask_id) == tokenizer.encode(
            text.replace(" " + tokenizer.mask_token, " x"), specials="text"
        ).ids.index(tokenizer.pieces([" x"])[0][0])


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("I don't know", "i don't know"),
        ("it's we'll I'm they've", "it's we'll i'm they've"),
        ("it’s", "it’s"),
        ("the 'best' of dogs' tails, isn't it?", "the ' best ' of dogs ' tails, isn't it?"),
    ],
)
def test_contractions_are_joined(shared_data: Path, text: str, decoded: str) -> None:
    tokenizer = Tokenizer.load(shared_data / "vocabs/bert-base-uncased")
    assert tokenizer.decode(tokenizer.encode(text).ids) == decoded
