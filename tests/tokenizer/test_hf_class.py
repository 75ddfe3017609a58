"""Saved tokenizers in the reference library: its model class if that builds the same one, else tokenizer.json.

Templates and the continuation prefix are those of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.errors import InputError
from bertsmith.tokenizer.tokenizer import Tokenizer

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
    tokenizer = Tokenizer.from_vocabulary([*SPECIALS, *PIECES, "##" + "s" * 60], lowercase=True)
    content: dict[str, Any] = json.loads(tokenizer.definition)
    return content


def set_in(*path: str, value: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = value

    return change


def other_prefix(content: dict[str, Any]) -> None:
    model = content["model"]
    model["continuing_subword_prefix"] = "@@"
    model["vocab"] = {token.replace("##", "@@"): i for token, i in model["vocab"].items() if token != "@@s"}
    model["vocab"] = {token: i for i, token in enumerate(model["vocab"])}
    content["decoder"]["prefix"] = "@@"


def without_cls(content: dict[str, Any]) -> None:
    content["post_processor"]["single"] = content["post_processor"]["single"][1:]
    content["post_processor"]["pair"] = content["post_processor"]["pair"][1:]


def two_separators(content: dict[str, Any]) -> None:
    pair = content["post_processor"]["pair"]
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
    "whitespace only": set_in("pre_tokenizer", value={"type": "WhitespaceSplit"}),
    "controls kept": set_in("normalizer", "clean_text", value=False),
    "a sequence of normalizers": set_in("normalizer", value=STEPS),
    "no normalizer": set_in("normalizer", value=None),
    "short words": set_in("model", "max_input_chars_per_word", value=20),
    "another prefix": other_prefix,
    "no template": set_in("post_processor", value=None),
    "no [CLS]": without_cls,
    "two [SEP]": two_separators,
    "a word that is never split": lambda content: content["added_tokens"].append(
        {"id": len(content["model"]["vocab"]), "content": "1999.", "special": False, **EXTRA}
    ),
    "a mask that strips spaces": lambda content: content["added_tokens"][4].update(lstrip=True),
}


def write_tokenizer(folder: Path, change: Change) -> Path:
    content = definition()
    change(content)
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    return folder


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_other_tokenizers_are_loaded_through_tokenizer_json(change: Change, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = write_tokenizer(tmp_path / "in", change) / "tokenizer.json"
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
        encodings = ours.encode_batch(*texts, special_strings="parse")
        assert [e.ids for e in encodings] == expected
        assert all(len(e.ids) == len(e.type_ids) == len(e.sequence_ids) == len(e.offsets) for e in encodings)
    loaded = Tokenizer.load(tmp_path / "out")
    assert loaded.encode_batch(TEXTS) == ours.encode_batch(TEXTS)
    assert loaded.digest == ours.digest


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("chinese", [True, False])
@pytest.mark.parametrize("accents", [None, True, False])
def test_bert_tokenizers_name_the_bert_class(
    lowercase: bool, chinese: bool, accents: bool | None, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")

    def change(content: dict[str, Any]) -> None:
        content["normalizer"].update(lowercase=lowercase, handle_chinese_chars=chinese, strip_accents=accents)

    ours = Tokenizer.load(write_tokenizer(tmp_path / "in", change))
    ours.save(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    assert type(theirs) is transformers.BertTokenizer
    assert theirs(TEXTS)["input_ids"] == [e.ids for e in ours.encode_batch(TEXTS, special_strings="parse")]
    (tmp_path / "out/tokenizer.json").unlink()
    assert Tokenizer.load(tmp_path / "out").digest == ours.digest


def test_template_is_the_files(tmp_path: Path) -> None:
    def encode(name: str) -> tuple[str, str]:
        folder = tmp_path / name.replace("[", "").replace("]", "")
        tokenizer = Tokenizer.load(write_tokenizer(folder, CHANGES[name]))
        single, pair = tokenizer.encode("the cat"), tokenizer.encode("the cat", "sat")
        assert len(pair.ids) == len(tokenizer.encode("the cat", "sat", max_length=len(pair.ids)).ids)
        assert tokenizer.encode("the cat", "sat", max_length=len(pair.ids) - 1).num_truncated == 1
        assert tokenizer.num_separators == (2 if name == "two [SEP]" else 0)
        return tuple(" ".join(tokenizer.tokens[i] for i in e.ids) for e in (single, pair))  # type: ignore[return-value]

    assert encode("no [CLS]") == ("the cat [SEP]", "the cat [SEP] sat [SEP]")
    assert encode("no template") == ("the cat", "the cat sat")
    assert encode("two [SEP]") == ("[CLS] the cat [SEP]", "[CLS] the cat [SEP] [SEP] sat [SEP]")


def test_class_with_a_built_in_template(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "in", CHANGES["no template"])
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizerFast"}')
    tokenizer = Tokenizer.load(folder)
    assert [tokenizer.tokens[i] for i in tokenizer.encode("the", "cat").ids] == (
        ["[CLS]", "the", "[SEP]", "cat", "[SEP]"]
    )
    assert (tokenizer.num_separators, tokenizer.uses_segments) == (1, True)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda post: post["pair"].append(post["pair"][1]), "post_processor_text_count"),
        (lambda post: post["pair"][1]["Sequence"].update(type_id=2), "post_processor_segment_out_of_range"),
        (lambda post: post["special_tokens"]["[CLS]"].update(ids=[4_000]), "post_processor_id_out_of_range"),
        (lambda post: post["single"][0]["SpecialToken"].update(id="[A]"), "post_processor_token_without_id"),
    ],
)
def test_unsupported_templates(change: Callable[[dict[str, Any]], None], code: str, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "in", lambda content: change(content["post_processor"]))
    with pytest.raises(InputError) as caught:
        Tokenizer.load(folder)
    assert (caught.value.code, caught.value.location) == (code, str(folder / "tokenizer.json"))


def test_a_template_in_a_nested_sequence(tmp_path: Path) -> None:
    def nest(content: dict[str, Any]) -> None:
        inner = {"type": "Sequence", "processors": [content["post_processor"]]}
        content["post_processor"] = {"type": "Sequence", "processors": [inner]}

    tokenizer = Tokenizer.load(write_tokenizer(tmp_path / "in", nest))
    ids = tokenizer.encode("the", "cat").ids
    assert [tokenizer.tokens[i] for i in ids] == ["[CLS]", "the", "[SEP]", "cat", "[SEP]"]


def test_word_starts_with_another_prefix(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tokenizer(tmp_path / "in", other_prefix))
    ids = np.array(tokenizer.encode_ids(["the cats unable"])[0])
    assert [tokenizer.tokens[i] for i in ids] == ["the", "cat", "@@s", "un", "@@able"]
    assert tokenizer.word_starts(ids).tolist() == [True, True, False, True, False]
    assert tokenizer.decode(ids) == "the cats unable"
    none = Tokenizer.load(
        write_tokenizer(tmp_path / "none", set_in("model", "continuing_subword_prefix", value=""))
    )
    with pytest.raises(InputError) as caught:
        none.word_starts(ids)
    assert caught.value.code == "continuation_prefix_missing"


def test_only_the_mask_is_parsed(shared_data: Path) -> None:
    ours = Tokenizer.from_vocabulary([*SPECIALS, *PIECES, "[", "]", "sep", "cls", "mask"], lowercase=True)
    encoding = ours.encode("cat [SEP] [CLS] the [MASK] [PAD]", special_strings="mask")
    inner = [
        ours.tokens[i] for i, source in zip(encoding.ids, encoding.sequence_ids, strict=True) if source == 0
    ]
    assert inner == ["cat", "[", "sep", "]", "[", "cls", "]", "the", "[MASK]", "[", "[UNK]", "]"]
    assert ours.encode("the [MASK]").ids.count(ours.mask_token_id) == 0
    for name in ("roberta-base", "albert-base"):
        tokenizer = Tokenizer.load(shared_data / "vocabs" / name)
        text = f"Paris is <s> the </s> {tokenizer.mask_token} of [SEP] <pad> France [CLS]."
        encoding = tokenizer.encode(text, special_strings="mask")
        inner_ids = [i for i, source in zip(encoding.ids, encoding.sequence_ids, strict=True) if source == 0]
        assert [i for i in inner_ids if i in tokenizer.all_special_ids - {tokenizer.unk_token_id}] == [
            tokenizer.mask_token_id
        ]
        assert encoding.ids.index(tokenizer.mask_token_id) == tokenizer.encode(
            text.replace(" " + tokenizer.mask_token, " x"), special_strings="text"
        ).ids.index(tokenizer.encode_ids([" x"])[0][0])


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
