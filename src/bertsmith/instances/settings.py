"""Settings of training instances: sequence lengths, pairs, masks, and the validation split."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bertsmith.settings import Settings

_Probability = Annotated[float, Field(ge=0, le=1)]
PAIRS = ("segment_pair", "sentence_pair")
"""The values of `instances` that are pairs of segments."""
MEAN_FILL_RATIO = 0.91
"""The mean length of next-sentence pairs at a maximum of 128 tokens, as a ratio of it (English Wikipedia)."""
TOKEN_REPETITION = 1.24
"""The tokens in the next-sentence pairs of an epoch, per token of the text: NotNext repeats some (same corpus)."""


class DataSettings(Settings):
    """Settings that determine how text becomes training instances."""

    instances: Literal["segment_pair", "sentence_pair", "full_sentences", "doc_sentences"] = Field(
        "segment_pair",
        description="segment_pair, sentence_pair, full_sentences (across documents), or doc_sentences",
    )
    sequence_length: int = Field(
        128, ge=8, le=8192, description="maximum tokens per instance, special tokens included"
    )
    long_sequence_length: int | None = Field(
        None, ge=8, le=8192, description="maximum tokens per instance in the second phase; none: one phase"
    )
    long_sequence_ratio: float = Field(0.1, gt=0, lt=1, description="ratio of the steps in the second phase")
    short_seq_prob: float = Field(
        0.1, ge=0, le=1, description="probability of a random shorter target length for segment pairs"
    )
    masking: Literal["token", "whole_word", "span"] = Field(
        "token", description="unit that is masked: token, whole_word, or span (of whole words)"
    )
    mlm_probability: float = Field(0.15, gt=0, le=1, description="ratio of the tokens that are predicted")
    mlm_probability_of: Literal["ordinary", "all"] = Field(
        "ordinary",
        description="tokens that mlm_probability counts: ordinary ones, or all, [CLS] and [SEP] included, as in "
        "BERT's release",
    )
    maskable_tokens: Literal["ordinary", "all"] = Field(
        "ordinary",
        description="tokens that may be predicted: ordinary ones, or all except [CLS] and [SEP], and so [UNK], as "
        "in BERT's release",
    )
    random_tokens: Literal["ordinary", "all"] = Field(
        "ordinary",
        description="tokens that random replacements are drawn from: ordinary ones, or the whole vocabulary with "
        "its special tokens, as in BERT's release",
    )
    replacement_probabilities: tuple[_Probability, _Probability, _Probability] = Field(
        (0.8, 0.1, 0.1),
        description="probabilities that a predicted token becomes [MASK], becomes a random token, or stays",
    )
    max_predictions_per_seq: int | None = Field(
        None,
        ge=1,
        description="maximum predicted tokens per instance; an instance whose words are all longer has none; "
        "none: no limit",
    )
    long_max_predictions_per_seq: int | None = Field(
        None,
        ge=1,
        description="maximum predicted tokens per instance in the second phase; none: max_predictions_per_seq",
    )
    corruption: Literal["none", "insertion", "deletion"] = Field(
        "none",
        description="corruption of training text before it is masked: none, as in BERT; insertion of random "
        "tokens (never predicted); or deletion of tokens",
    )
    corruption_ratio: float = Field(
        0.05,
        gt=0,
        le=0.5,
        description="tokens that corruption inserts or deletes, as a ratio of each segment's tokens, rounded down",
    )
    span_length_distribution: Literal["geometric", "harmonic"] = Field(
        "geometric", description="words per span: geometric (SpanBERT), or harmonic, p(n) ~ 1/n (ALBERT)"
    )
    span_geometric_p: float = Field(0.2, gt=0, lt=1, description="p of the geometric distribution")
    max_span_length: int = Field(10, ge=1, le=64, description="maximum words per span (ALBERT: 3)")
    word_segmenter: Literal["none", "jieba"] = Field(
        "none",
        description="segmenter that joins Chinese characters into words to mask: none, or jieba (extra zh)",
    )
    dynamic_masking: bool = Field(
        True,
        description="true: new instances and masks in each epoch; false: they repeat after dupe_factor epochs",
    )
    dupe_factor: int = Field(
        10, ge=1, le=1_000_000, description="epochs with different masks if dynamic_masking is false"
    )
    sentence_task: Literal["nsp", "sop", "none"] = Field(
        "nsp",
        description="label of a pair: nsp (does B follow A), sop (are they in order), none; other tools read a "
        "BERT's sop head as nsp, bertsmith.json says which it is",
    )
    is_next_label: Literal[0, 1] = Field(
        0,
        description="label of a pair whose B follows A, in nsp; other tools assume 0, and a model with 1 says so "
        "in bertsmith.json",
    )
    nsp_sampling: Literal["other_document", "same_document"] = Field(
        "other_document",
        description="source of NotNext's B: other_document, or same_document (A's own, but not adjacent to A)",
    )
    nsp_balance: bool = Field(
        False,
        description="false: as in BERT's release, a coin decides between IsNext and NotNext, and a single "
        "sentence is always NotNext, so that IsNext is rarer in short documents; true: the coin is biased so that "
        "half of the pairs are IsNext, as far as single sentences allow",
    )
    validation_split: float = Field(
        0.01, ge=0, lt=1, description="fraction of the documents to validate on, by hash of their text"
    )
    train_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="fraction of the other documents to train on, selected by hash: a smaller fraction is a "
        "subset of a larger one, and the validation split stays the same",
    )
    max_validation_instances: int = Field(
        1024, ge=1, description="maximum instances to validate on; their masks are the same for every seed"
    )

    @model_validator(mode="after")
    def _check_combinations(self) -> DataSettings:
        if abs(sum(self.replacement_probabilities) - 1) > 1e-6:
            probabilities = list(self.replacement_probabilities)
            raise ValueError(f"replacement_probabilities {probabilities} does not sum to 1")
        task = self.sentence_task
        if task != "none" and self.instances not in PAIRS:
            raise ValueError(
                f"sentence_task {task} needs pairs, and instances {self.instances} are no pairs: set "
                "data.sentence_task=none, or data.instances to segment_pair or sentence_pair"
            )
        if self.long_max_predictions_per_seq is not None and self.long_sequence_length is None:
            raise ValueError(
                "long_max_predictions_per_seq is for a second phase: set data.long_sequence_length, or omit it"
            )
        if self.nsp_sampling != "other_document" and task != "nsp":
            raise ValueError(f"nsp_sampling is for sentence_task nsp, not {task}: omit data.nsp_sampling")
        if self.nsp_balance and task != "nsp":
            raise ValueError(f"nsp_balance is for sentence_task nsp, not {task}: omit data.nsp_balance")
        if self.is_next_label and task != "nsp":
            raise ValueError(f"is_next_label is for sentence_task nsp, not {task}: omit data.is_next_label")
        if self.word_segmenter != "none" and self.masking == "token":
            raise ValueError(
                f"word_segmenter {self.word_segmenter} joins words, and masking token masks no whole words: "
                "set data.masking to whole_word or span"
            )
        return self

    def of_phase(self, index: int) -> DataSettings:
        """Return the settings with the prediction limit of a phase; 0 is the first one."""
        if not index or self.long_max_predictions_per_seq is None:
            return self
        return self.model_copy(update={"max_predictions_per_seq": self.long_max_predictions_per_seq})

    @property
    def min_documents(self) -> int:
        """The minimum number of different documents: 2 if NotNext segments come from another document, else 1."""
        return 2 if self.uses_other_documents else 1

    @property
    def uses_other_documents(self) -> bool:
        """True if NotNext segments come from other documents."""
        return self.sentence_task == "nsp" and self.nsp_sampling == "other_document"
