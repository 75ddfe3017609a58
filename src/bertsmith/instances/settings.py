"""How text becomes instances: what a user may set of the data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bertsmith.settings import ADDED_LATER, Settings

_Share = Annotated[float, Field(ge=0, le=1)]
PAIRS = ("segment_pair", "sentence_pair")
FILL = 0.83
"""What of an instance's room is filled, as measured on encyclopedia articles."""


class DataSettings(Settings):
    """How text becomes instances."""

    instances: Literal["segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "single"] = Field(
        "segment_pair",
        description="segment_pair, sentence_pair; full_sentences (across documents), doc_sentences (within "
        "one); single (a document is an instance)",
    )
    sequence_length: int = Field(
        128, ge=8, le=8192, description="tokens an instance may have, specials included"
    )
    long_sequence_length: int | None = Field(
        None, ge=8, le=8192, description="tokens an instance may have in the second phase; none: one phase"
    )
    long_share: float = Field(0.1, gt=0, lt=1, description="share of the steps that the second phase takes")
    short_share: float = Field(
        0.1, ge=0, le=1, description="share of segment pairs with a random shorter target length"
    )
    masking: Literal["token", "whole_word", "span"] = Field(
        "token", description="what is masked together: token, whole_word, or span (of whole words)"
    )
    mask_share: float = Field(0.15, gt=0, le=1, description="share of the tokens to predict")
    mask_share_of: Literal["ordinary", "all"] = Field(
        "ordinary",
        description="of which tokens mask_share is a share: ordinary ones, or all, [CLS] and [SEP] included, as "
        "BERT's release counts",
    )
    mask_candidates: Literal["ordinary", "all"] = Field(
        "ordinary",
        description="which tokens may be predicted: ordinary ones, or all but [CLS] and [SEP], so [UNK] too, as "
        "in BERT's release",
    )
    random_tokens: Literal["ordinary", "all"] = Field(
        "ordinary",
        description="what a random token is drawn from: ordinary tokens, or the whole vocabulary with its special "
        "tokens, as in BERT's release",
    )
    mask_split: tuple[_Share, _Share, _Share] = Field(
        (0.8, 0.1, 0.1), description="of those: share that becomes [MASK], a random token, or stays"
    )
    predictions_max: int | None = Field(
        None,
        ge=1,
        description="predicted tokens an instance has at most, in both phases; an instance all of whose words are "
        "longer has none; none: no limit",
    )
    corrupt: Literal["none", "insert", "delete"] = Field(
        "none",
        description="what becomes of training text before it is masked: nothing, as in BERT (none), random tokens "
        "inserted (insert; never predicted), or tokens deleted (delete)",
        json_schema_extra=ADDED_LATER,
    )
    corrupt_share: float = Field(
        0.05,
        gt=0,
        le=0.5,
        description="with corrupt: tokens inserted or deleted, as a share of those of each segment, rounded down",
        json_schema_extra=ADDED_LATER,
    )
    span_lengths: Literal["geometric", "harmonic"] = Field(
        "geometric", description="words a span has: geometric (SpanBERT), or harmonic, p(n) ~ 1/n (ALBERT)"
    )
    span_p: float = Field(0.2, gt=0, lt=1, description="p of the geometric lengths")
    span_max: int = Field(10, ge=1, le=64, description="words in a span at most (ALBERT: 3)")
    word_segmenter: Literal["none", "jieba"] = Field(
        "none", description="who joins Chinese characters into words to mask: none, or jieba (extra zh)"
    )
    masks: Literal["dynamic", "static"] = Field(
        "dynamic",
        description="new instances and masks each epoch, or the same again after `duplicates` epochs",
    )
    duplicates: int = Field(10, ge=1, description="epochs with masks of their own, where masks are static")
    sentence_task: Literal["nsp", "sop", "none"] = Field(
        "nsp",
        description="what is asked of a pair: nsp (does B follow A), sop (are they in order), none; other tools "
        "take a BERT's sop head for nsp, bertsmith.json says which it is",
    )
    is_next_label: Literal[0, 1] = Field(
        0,
        description="the label of a pair whose B follows A, in nsp; other tools take 0 for it, and a model with 1 "
        "says so in bertsmith.json",
        json_schema_extra=ADDED_LATER,
    )
    partner: Literal["matched", "random"] = Field(
        "matched",
        description="where NotNext's B comes from: matched (exchanged with one as alike in length as can be, so "
        "that lengths tell nothing of the label) or random (BERT's release: any place of any other document; "
        "lengths tell a little, with an area under the curve of 0.56)",
    )
    nsp_negatives: Literal["other_document", "same_document"] = Field(
        "other_document",
        description="in which document NotNext's B is looked for: other_document, or same_document (A's own, but "
        "not beside A)",
        json_schema_extra=ADDED_LATER,
    )
    twin_overlap: float = Field(
        0.5,
        gt=0,
        le=1,
        description="share of all their runs of three tokens from which two documents are twins: neither lends "
        "the other a NotNext, and they are held out together; 1: equal documents only",
    )
    held_out: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="share of the documents kept for evaluation, chosen by hash of their text",
    )
    training_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the other documents to train on, chosen by hash, so that less of them is a part of "
        "more and what is held out stays the same",
        json_schema_extra=ADDED_LATER,
    )
    held_out_instances: int = Field(
        1024,
        ge=1,
        description="instances of the held-out documents to evaluate on; their masks are the same for every seed",
    )

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> DataSettings:
        if abs(sum(self.mask_split) - 1) > 1e-6:
            raise ValueError(f"mask_split {list(self.mask_split)} does not sum to 1")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> DataSettings:
        if self.sentence_task != "none" and self.instances not in PAIRS:
            raise ValueError(
                f"sentence_task {self.sentence_task} asks about a pair, and instances {self.instances} are no "
                "pairs: set data.sentence_task=none, or data.instances to segment_pair or sentence_pair"
            )
        if self.partner == "random" and self.sentence_task != "nsp":
            raise ValueError(
                f"partner random chooses NotNext's B, and sentence_task {self.sentence_task} has no NotNext: "
                "leave data.partner out"
            )
        if self.nsp_negatives != "other_document" and self.sentence_task != "nsp":
            raise ValueError(
                f"nsp_negatives {self.nsp_negatives} chooses NotNext's B, and sentence_task {self.sentence_task} "
                "has no NotNext: leave data.nsp_negatives out"
            )
        if self.is_next_label and self.sentence_task != "nsp":
            raise ValueError(
                f"is_next_label is a label of nsp, and sentence_task is {self.sentence_task}: "
                "leave data.is_next_label out"
            )
        if self.word_segmenter != "none" and self.masking == "token":
            raise ValueError(
                f"word_segmenter {self.word_segmenter} joins words, and masking token masks none whole: "
                "set data.masking to whole_word or span"
            )
        return self

    @property
    def least_documents(self) -> int:
        """How many documents instances can be made of: where a NotNext segment comes from another one, two."""
        return 2 if self.lends else 1

    @property
    def lends(self) -> bool:
        """Whether a NotNext segment comes from another document."""
        return self.sentence_task == "nsp" and self.nsp_negatives == "other_document"
