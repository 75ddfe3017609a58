"""Byte-level BPE and Unigram: ids of published files equal to the reference's, templates, files, word starts."""

from __future__ import annotations

import json
import pickle
import shutil
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.tokenizer import unigram
from bertsmith.tokenizer.tokenizer import Tokenizer

NAMES = ["roberta-base", "gpt2", "albert-base"]
SPECIAL_STRINGS = "a <s> b </s> <mask> [MASK] [CLS] <pad> <unk> <|endoftext|> z"


@cache
def load(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def reference_of(name: str, folder: Path) -> Any:
    """Return the reference's fast tokenizer of published files."""
    transformers = pytest.importorskip("transformers")
    if name == "albert-base":  # its loader needs the sentencepiece package; its class does not
        model = unigram.parse_model((folder / "spiece.model").read_bytes(), folder)
        return transformers.AlbertTokenizerFast(
            vocab=model.pieces, _spm_precompiled_charsmap=model.precompiled_charsmap, model_max_length=10**30
        )
    cls = transformers.RobertaTokenizerFast if name == "roberta-base" else transformers.GPT2TokenizerFast
    return cls(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))


@pytest.fixture(scope="module", params=NAMES)
def published(request: pytest.FixtureRequest, shared_data: Path) -> tuple[str, Tokenizer, Any]:
    folder = shared_data / "vocabs" / request.param
    return request.param, load(folder), reference_of(request.param, folder)


def read_lines(shared_data: Path, sample: str) -> list[str]:
    # Even with split_special_tokens, the reference parses ALBERT's `<pad>` and `<unk>` in a text;
    # SentencePiece does not.
    text = (shared_data / f"corpora/sample/{sample}.txt").read_bytes().decode("utf-8")[:250_000]
    return [line for line in text.split("\n") if "<pad>" not in line and "<unk>" not in line]


@pytest.mark.parametrize("sample", ["english", "chinese", "mixed"])
def test_ids_and_offsets_equal_the_reference(
    published: tuple[str, Tokenizer, Any], shared_data: Path, sample: str
) -> None:
    name, ours, reference = published
    lines = read_lines(shared_data, sample)
    texts = [*lines, "\n".join(lines[:200]), "", " ", "  two  blanks "]
    expected = reference(texts, split_special_tokens=True, return_offsets_mapping=True)
    encodings = ours.encode_batch(texts, max_length=10**9)
    assert [e.ids for e in encodings] == expected["input_ids"]
    assert [e.offsets for e in encodings] == expected["offset_mapping"]
    margin = 0 if name == "gpt2" else 1
    inner = [ids[margin : len(ids) - margin] for ids in expected["input_ids"]]
    assert ours.encode_ids(texts) == inner


def test_pairs_equal_the_reference(published: tuple[str, Tokenizer, Any], shared_data: Path) -> None:
    name, ours, reference = published
    lines = [line for line in read_lines(shared_data, "mixed") if line][:200]
    for limit in (16, 64):
        expected = reference(
            lines[:-1], lines[1:], truncation="longest_first", max_length=limit, return_token_type_ids=True
        )
        encodings = ours.encode_batch(lines[:-1], lines[1:], max_length=limit)
        assert [e.ids for e in encodings] == expected["input_ids"]
        if name != "gpt2":  # without segments; the reference returns some on request
            assert [e.type_ids for e in encodings] == expected["token_type_ids"]
        assert all(len(e.ids) == len(e.offsets) == len(e.sequence_ids) == len(e.word_ids) for e in encodings)


@given(st.text())
def test_ids_of_any_text_equal_the_reference(published: tuple[str, Tokenizer, Any], text: str) -> None:
    _, ours, reference = published
    assert [ours.encode(text, max_length=10**9).ids] == reference([text], split_special_tokens=True)[
        "input_ids"
    ]


def test_special_tokens_and_templates(shared_data: Path) -> None:
    vocabs = shared_data / "vocabs"
    roberta, albert, gpt2 = (load(vocabs / n) for n in ("roberta-base", "albert-base", "gpt2"))
    assert (roberta.kind, albert.kind) == ("byte_level_bpe", "unigram")
    assert (roberta.num_separators, albert.num_separators, gpt2.num_separators) == (2, 1, 0)
    assert (roberta.uses_segments, albert.uses_segments) == (False, True)
    assert [roberta.cls_token_id, roberta.pad_token_id, roberta.sep_token_id, roberta.unk_token_id] == [
        0,
        1,
        2,
        3,
    ]
    assert (roberta.mask_token_id, roberta.vocab_size, roberta.mask_token) == (50264, 50265, "<mask>")
    assert [
        albert.pad_token_id,
        albert.unk_token_id,
        albert.cls_token_id,
        albert.sep_token_id,
        albert.mask_token_id,
    ] == [0, 1, 2, 3, 4]
    pair = roberta.encode("a b", "c")
    assert [roberta.tokens[i] for i in pair.ids] == ["<s>", "a", "Ġb", "</s>", "</s>", "c", "</s>"]
    assert pair.type_ids == [0] * 7
    assert pair.sequence_ids == [None, 0, 0, None, None, 1, None]
    pair = albert.encode("a b", "c")
    assert [albert.tokens[i] for i in pair.ids] == ["[CLS]", "▁a", "▁b", "[SEP]", "▁c", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 0, 1, 1]
    assert (albert.lowercase, roberta.lowercase) == (True, False)


def test_gpt2_has_no_template_and_no_other_special_tokens(shared_data: Path) -> None:
    gpt2 = load(shared_data / "vocabs/gpt2")
    assert [gpt2.tokens[i] for i in gpt2.encode("a b", "c").ids] == ["a", "Ġb", "c"]
    assert gpt2.all_special_ids == {50256}
    assert gpt2.unk_token_id == 50256
    for role in ("cls", "sep", "mask", "pad"):
        with pytest.raises(InputError) as caught:
            getattr(gpt2, f"{role}_token_id")
        assert caught.value.code == "special_token_undefined"
        assert role in caught.value.message
    with pytest.raises(InputError) as caught:
        _ = gpt2.mask_token
    assert caught.value.code == "special_token_undefined"


def test_special_strings_stay_text(published: tuple[str, Tokenizer, Any]) -> None:
    _, ours, _ = published
    for text in (SPECIAL_STRINGS, *SPECIAL_STRINGS.split(), "<pad><pad>", "x<unk>y"):
        encoding = ours.encode(text)
        inner = {i for i, source in zip(encoding.ids, encoding.sequence_ids, strict=True) if source == 0}
        assert not inner & (ours.all_special_ids - {ours.unk_token_id})
        assert not set(ours.encode_ids([text])[0]) & (ours.all_special_ids - {ours.unk_token_id})
    loaded = pickle.loads(pickle.dumps(ours))
    assert loaded.encode(SPECIAL_STRINGS) == ours.encode(SPECIAL_STRINGS)
    assert loaded.digest == ours.digest


@pytest.mark.parametrize(("name", "mask"), [("roberta-base", "<mask>"), ("albert-base", "[MASK]")])
def test_parsed_mask_strips_the_space_before_it(shared_data: Path, name: str, mask: str) -> None:
    ours = load(shared_data / "vocabs" / name)
    ids = ours.encode(f"Paris is the {mask} of France.", special_strings="parse").ids
    position = ids.index(ours.mask_token_id)
    assert ours.tokens[ids[position - 1]].strip("Ġ▁") == "the"
    assert ours.tokens[ids[position + 1]].strip("Ġ▁") == "of"
    assert ours.decode(ids).replace("  ", " ").lower() == "paris is the of france."


def test_saved_folders_load_in_the_reference(
    published: tuple[str, Tokenizer, Any], shared_data: Path, tmp_path: Path
) -> None:
    name, ours, reference = published
    transformers = pytest.importorskip("transformers")
    ours.save(tmp_path)
    vocabulary_files = {"albert-base": ["spiece.model"]}.get(name, ["merges.txt", "vocab.json"])
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(
        [*vocabulary_files, "tokenizer.json", "tokenizer_config.json"]
    )
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert type(theirs) is type(reference)
    texts = [*read_lines(shared_data, "mixed")[:500], SPECIAL_STRINGS.replace("<pad>", "")]
    expected = reference(texts, split_special_tokens=True)["input_ids"]
    assert theirs(texts, split_special_tokens=True)["input_ids"] == expected
    if name != "gpt2":
        masked = [
            f"the {ours.mask_token} sat",
            f"x{ours.mask_token}y",
            f"{ours.mask_token} {ours.mask_token}",
        ]
        ids = [e.ids for e in ours.encode_batch(masked, special_strings="parse")]
        assert theirs(masked)["input_ids"] == ids
        assert theirs("a", "b")["input_ids"] == ours.encode("a", "b").ids
    loaded = Tokenizer.load(tmp_path)
    assert loaded.digest == ours.digest
    (tmp_path / "tokenizer.json").unlink()
    assert Tokenizer.load(tmp_path).encode_batch(texts) == ours.encode_batch(texts)


@pytest.mark.parametrize("name", NAMES)
def test_segments_of_a_saved_folder_in_the_reference(shared_data: Path, tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    ours = load(shared_data / "vocabs" / name)
    ours.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))("a film", "no plot")
    pair = ours.encode("a film", "no plot")
    assert theirs["input_ids"] == pair.ids
    if name == "albert-base":  # without token_type_ids, both texts are 0 to the model
        assert theirs["token_type_ids"] == pair.type_ids == sorted(pair.type_ids)
        assert set(pair.type_ids) == {0, 1}
    else:
        assert "token_type_ids" not in theirs
        assert set(pair.type_ids) == {0}


def test_load_a_folder_of_the_reference(
    published: tuple[str, Tokenizer, Any], shared_data: Path, tmp_path: Path
) -> None:
    _, ours, reference = published
    reference.save_pretrained(str(tmp_path))
    loaded = Tokenizer.load(tmp_path)
    texts = read_lines(shared_data, "mixed")[:500]
    assert loaded.encode_batch(texts) == ours.encode_batch(texts)
    assert (loaded.kind, loaded.num_separators, loaded.uses_segments) == (
        ours.kind,
        ours.num_separators,
        ours.uses_segments,
    )


def test_offsets_slice_the_text(published: tuple[str, Tokenizer, Any], shared_data: Path) -> None:
    name, ours, _ = published
    for line in [*read_lines(shared_data, "mixed")[:300], "naïve 中国 😀👍🏽 e\u0301"]:
        encoding = ours.encode(line, max_length=10**9)
        slices = [
            (pair, i)
            for pair, i, s in zip(encoding.offsets, encoding.ids, encoding.sequence_ids, strict=True)
            if s == 0
        ]
        assert all(a[0][0] <= b[0][0] and a[0][1] <= b[0][1] <= len(line) for a, b in pairwise(slices))
        for (start, end), i in slices:
            if name == "roberta-base" and ours.tokens[i].isascii() and ours.tokens[i].isalnum():
                assert line[start:end] == ours.tokens[i]
    if name != "albert-base":
        text = "double  spaces \t any\ntext: 中国 😀 é \x00"
        assert ours.decode(ours.encode_ids([text])[0]) == text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("roberta-base", "Nationalisation isn't 12345abc!!? OK", "Nationalisation| isn|'t| 12345|abc|!!?| OK"),
        ("roberta-base", "中国人是 😀😀 naïveté\n\n x", "中国人是| 😀😀| naïveté|\n\n| x"),
        ("gpt2", "a  b\tc d", "a| | b|\t|c| d"),
        ("albert-base", "Nationalisation (isn't) well-known", "▁nationalisation|▁|(|isn|'|t|)|▁well|-|known"),
    ],
)  # fmt: skip
def test_word_starts(shared_data: Path, name: str, text: str, words: str) -> None:
    tokenizer = load(shared_data / "vocabs" / name)
    ids = np.array(tokenizer.encode_ids([text])[0])
    starts = tokenizer.word_starts(ids)
    assert starts.dtype == np.bool_
    assert starts.shape == ids.shape
    cuts = [*np.flatnonzero(starts), len(ids)]
    groups = [ids[a:b] for a, b in pairwise(cuts)]
    if name == "albert-base":
        spelled = ["".join(tokenizer.tokens[i] for i in group) for group in groups]
    else:
        spelled = [tokenizer.decode(group) for group in groups]
    assert spelled == words.split("|")
    special = np.array([tokenizer.unk_token_id, *ids[:1], tokenizer.unk_token_id, tokenizer.unk_token_id])
    assert tokenizer.word_starts(special).all()
    assert tokenizer.word_starts(np.array([], dtype=np.int64)).shape == (0,)


def test_word_starts_of_wordpiece_are_not_continuations(shared_data: Path) -> None:
    tokenizer = Tokenizer.load(shared_data / "vocabs/bert-base-uncased")
    encoding = tokenizer.encode("Unbelievable internationalisation, [MASK] it is")
    assert tokenizer.word_starts(np.array(encoding.ids)).tolist() == [
        not tokenizer.tokens[i].startswith("##") for i in encoding.ids
    ]
    assert (tokenizer.kind, tokenizer.num_separators, tokenizer.uses_segments) == ("wordpiece", 1, True)


def test_ids_equal_sentencepiece(shared_data: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    ours = load(shared_data / "vocabs/albert-base")
    theirs = sentencepiece.SentencePieceProcessor(
        model_file=str(shared_data / "vocabs/albert-base/spiece.model")
    )
    normalizer = unigram.unigram_normalizer(True, False, b"")
    text = (shared_data / "corpora/sample/mixed.txt").read_bytes().decode("utf-8")
    lines = [line for line in text.split("\n") if "\x85" not in line]  # whitespace only for the library
    assert [theirs.encode(normalizer.normalize_str(line)) for line in lines] == ours.encode_ids(lines)


# --- damaged files -----------------------------------------------------------------------------------------


def copy_folder(shared_data: Path, tmp_path: Path, name: str) -> Path:
    for file in (shared_data / "vocabs" / name).iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    return tmp_path


def load_error(path: Path) -> tuple[str, str | None]:
    """Return the code and the location of the error."""
    with pytest.raises(InputError) as caught:
        Tokenizer.load(path)
    assert caught.value.hint
    return caught.value.code, caught.value.location


def test_invalid_vocab_json(shared_data: Path, tmp_path: Path) -> None:
    file = copy_folder(shared_data, tmp_path, "gpt2") / "vocab.json"
    vocabulary = json.loads(file.read_text("utf-8"))
    for change, code in (
        ({"hello": 90_000}, "token_ids_not_contiguous"),
        ({"hello": "7"}, "invalid_token_id"),
    ):
        file.write_text(json.dumps({**vocabulary, **change}), "utf-8")
        assert load_error(tmp_path) == (code, str(file))
    file.write_text(json.dumps({"a": 0, "b": 1}))
    assert load_error(file) == ("byte_piece_missing", str(file))
    file.write_text('{"a": 0,')
    assert load_error(tmp_path) == ("invalid_json", str(file))


def test_invalid_merges(shared_data: Path, tmp_path: Path) -> None:
    file = copy_folder(shared_data, tmp_path, "roberta-base") / "merges.txt"
    lines = file.read_text("utf-8").split("\n")
    for line, code in (
        ("Ġ", "invalid_merge"),
        ("a b c", "invalid_merge"),
        ("hel qqqqq", "merge_not_in_vocabulary"),
    ):
        file.write_text("\n".join([*lines[:6], line, *lines[7:]]), "utf-8")
        assert load_error(tmp_path) == load_error(file) == (code, f"{file}:7")
    file.unlink()
    with pytest.raises(InputError) as caught:
        Tokenizer.load(tmp_path)
    assert str(file) in str(caught.value)


def test_damaged_sentencepiece_model(shared_data: Path, tmp_path: Path) -> None:
    file = copy_folder(shared_data, tmp_path, "albert-base") / "spiece.model"
    data = file.read_bytes()
    for cut in (0, 1, 1_000, 400_001, len(data) - 1, len(data) - 100_000):
        file.write_bytes(data[:cut])
        assert load_error(tmp_path)[1] == str(file)
    file.write_bytes(b"this is no model at all, only text")
    assert load_error(file) == ("invalid_sentencepiece_model", str(file))
    file.write_bytes(bytes(range(256)))
    assert load_error(file) == ("invalid_sentencepiece_model", str(file))


def test_lowercase_of_files(shared_data: Path) -> None:
    file = shared_data / "vocabs/albert-base/spiece.model"
    assert not Tokenizer.load(file, lowercase=False).lowercase
    with pytest.raises(InputError) as caught:
        Tokenizer.load(shared_data / "vocabs/gpt2", lowercase=True)
    assert (caught.value.code, caught.value.argument) == ("case_conflict", "lowercase")


def test_bpe_must_be_byte_level(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    file.write_text(json.dumps({"model": model, "pre_tokenizer": {"type": "Whitespace"}}))
    assert load_error(tmp_path) == ("unsupported_tokenizer_model", str(file))
    file.write_text(json.dumps({"model": model, "pre_tokenizer": {"type": "ByteLevel"}}))
    assert load_error(tmp_path)[1] == str(file)
