"""The settings of each task; importing them loads neither PyTorch nor the tasks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from bertsmith.models.config import Layers, Pooling
from bertsmith.settings import Settings

FileEncoding = Annotated[
    str | None, Field(description="encoding of files that are not UTF-8: cp1252, gb18030, …")
]
Delimiter = Annotated[
    str | None,
    Field(description="column separator; none: a comma in .csv (or what its header has), else a tab"),
]
Header = Annotated[bool, Field(description="the first line names the columns; false: they are 1, 2, …")]
Head = Annotated[
    Literal["linear", "bilstm"],
    Field(description="linear: the task's own layers; bilstm: a two-layer bidirectional LSTM below them"),
]
HeadLayers = Annotated[
    Layers,
    Field(
        description="layers that the head reads: last, second_to_last, embeddings; sum_last_four, sum_all, and "
        "sum_with_embeddings: a learned weighted sum; concat_last_four: concatenated"
    ),
]
SecondEncoderRun = Annotated[
    str,
    Field(
        description="for a left-to-right model: a run of the same size that reads right to left, whose hidden "
        "states are concatenated; empty: none"
    ),
]
ClassWeights = Literal["none", "balanced"] | dict[str, PositiveFloat]
Rules = Literal["auto", "squad", "cmrc"]


class TextSettings(Settings):
    """Settings of tasks on texts and pairs of texts."""

    text_column: str = Field("text", description="column of the text (a number without a header)")
    second_column: str | None = Field(None, description="column of the second text of a pair")
    label_column: str = Field("label", description="column of the label")
    delimiter: Delimiter = None
    header: Header = True
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None, ge=3, description="maximum number of tokens, special tokens included; none: the model's maximum"
    )
    stride: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="read longer texts in windows that start this many tokens apart, and average their "
        "predictions; none: truncate",
    )
    specials_in_text: Literal["text", "parse"] = Field(
        "text", description="read strings such as [SEP] in a text as ordinary text or as special tokens"
    )
    pooler: bool = Field(
        True,
        description="the head of a BERT or ALBERT reads the pooler; false: the first token's hidden state",
    )
    layers: HeadLayers = "last"
    head: Head = "linear"
    second_encoder: SecondEncoderRun = ""


class ClassSettings(TextSettings):
    """Settings of `classify`."""

    label_column: str = Field(
        "label",
        description="column of the label; with multi_label also columns of 0 and 1, one for each label: a,b,c",
    )
    multi_label: bool = Field(False, description="a text has any number of labels; false: exactly one")
    label_separator: str = Field(
        ",", min_length=1, description="with multi_label: the separator of labels in the label column"
    )
    class_weights: ClassWeights = Field(
        "none",
        description="weights of labels in the loss: balanced (by inverse frequency), or {label: weight, …}",
    )
    thresholds: Literal["half", "shared", "each"] = Field(
        "shared",
        description="with multi_label, the probability from which a label is predicted: half: 0.5; shared or "
        "each: the best by macro F1 on the validation data, one for all labels or one for each",
    )
    init_head_from: Literal["none", "nsp"] = Field(
        "none", description="initial weights of the head: random; or for two labels, the next-sentence head"
    )
    calibrate: bool = Field(
        False, description="divide logits by a temperature that is fitted on the validation data"
    )

    @field_validator("label_column", mode="before")
    @classmethod
    def _join_columns(cls, value: Any) -> Any:
        """Return a list of columns as text; a name with a comma in quotes."""
        if not isinstance(value, list | tuple):
            return value
        return value[0] if len(value) == 1 else ",".join(f'"{n}"' if "," in str(n) else f"{n}" for n in value)


class TagSettings(Settings):
    """Settings of `tag`."""

    word_column: str | None = Field(
        None,
        description="column of the words, by number (-1: the last) or name; none: the first, FORM, words",
    )
    tag_column: str | None = Field(
        None, description="column of the tags, by number or name; none: the last, UPOS, tags"
    )
    predicate_column: str | None = Field(
        None,
        description="for semantic roles: column of the predicates' senses (else _), followed by a column of roles "
        "for each; none: column 11 of a .conllu file; in .jsonl the key of the predicate's index",
    )
    scheme: Literal["iobes", "iob2", "iob1", "as_written"] = Field(
        "iobes",
        description="tagging scheme to train with; iobes also marks ends and single words; predictions have the "
        "scheme of the file",
    )
    decoder: Literal["softmax", "crf"] = Field(
        "softmax", description="score of tags: each by itself, or by a conditional random field"
    )
    layers: HeadLayers = "last"
    head: Head = "linear"
    second_encoder: SecondEncoderRun = ""
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None, ge=3, description="maximum number of tokens of a window; none: the model's maximum"
    )


class AnswerSettings(Settings):
    """Settings of `answer`; the defaults are those of the release of BERT."""

    question_column: str | None = Field(None, description="column of the question; none: question")
    context_column: str | None = Field(None, description="column of the passage; none: context")
    answer_column: str | None = Field(None, description="column of the answer; none: answer, answer_text, …")
    start_column: str | None = Field(
        None, description="column of the answer's first character, from 0; none: start or answer_start"
    )
    delimiter: Delimiter = None
    header: Header = True
    max_query_length: int = Field(64, ge=1, le=100_000, description="maximum number of tokens of a question")
    stride: int = Field(128, ge=1, le=100_000, description="tokens between the starts of two windows")
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None, ge=8, description="maximum number of tokens of a window; none: the model's maximum"
    )
    n_best: int = Field(20, ge=1, le=1000, description="answers to list for each question, the best first")
    max_answer_length: int = Field(30, ge=1, le=10_000, description="maximum number of tokens of an answer")
    transform: bool = Field(False, description="add a dense layer with an activation below the span head")
    null_threshold: float | None = Field(
        None,
        allow_inf_nan=False,
        description="predict an answer only if its score exceeds the score of no answer by more than this; none: "
        "fitted on the validation data, or always an answer if all training questions have one",
    )
    rules: Rules = Field(
        "auto",
        description="scoring as in SQuAD's script, or CMRC 2018's for Chinese; auto: by most answers' script",
    )
    layers: HeadLayers = "last"
    head: Head = "linear"
    second_encoder: SecondEncoderRun = ""


class ChooseSettings(Settings):
    """Settings of `choose`."""

    context_column: str | None = Field(None, description="column of the context; none: context, article, …")
    question_column: str | None = Field(None, description="column of the question; none: question")
    choices_column: str | None = Field(
        None,
        description="column of the list of choices, or the columns of the choices, separated by commas: A,B,C,D; "
        "none: choices, options, endings, or choice0, choice1, …",
    )
    label_column: str | None = Field(
        None,
        description="column of the correct choice: its text, else its index or letter (a number of JSON or Python "
        "is an index); none: label, answerKey, or answer",
    )
    first_index: int = Field(0, ge=0, le=1, description="label of the first choice: 0 or 1")
    delimiter: Delimiter = None
    header: Header = True
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None,
        ge=8,
        description="maximum number of tokens; none: the model's maximum; the end of the context is truncated",
    )
    layers: HeadLayers = "last"
    head: Head = "linear"
    second_encoder: SecondEncoderRun = ""

    @property
    def choice_columns(self) -> list[str]:
        """The column of the list of choices, or of each choice."""
        return [name.strip() for name in (self.choices_column or "choices").split(",")]


class RelateSettings(Settings):
    """Settings of `relate`."""

    none_label: str | None = Field(None, description="label of no relation; none: Other, no_relation, or NA")
    text_column: str | None = Field(
        None, description="column of the text or its words; none: text, sentence, tokens, or words"
    )
    head_column: str | None = Field(
        None,
        description="column of the first entity's [start, end]; none: head, e1, or subj, or tags in the text",
    )
    tail_column: str | None = Field(
        None,
        description="column of the second entity's [start, end]; none: tail, e2, or obj, or tags in the text",
    )
    label_column: str | None = Field(None, description="column of the relation; none: relation or label")
    delimiter: Delimiter = None
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None, ge=8, description="maximum number of tokens around both entities; none: the model's maximum"
    )
    layers: HeadLayers = "last"
    head: Head = "linear"
    second_encoder: SecondEncoderRun = ""


class EmbedSettings(Settings):
    """Settings of `embed`."""

    text_column: str | None = Field(
        None, description="column of the text, anchor, or query; none: text, sentence1, anchor, query, …"
    )
    second_column: str | None = Field(
        None, description="column of the other text; none: second, sentence2, positive, …"
    )
    label_column: str | None = Field(None, description="column of the score or label of a pair")
    negative_column: str | None = Field(None, description="column of another text; none: negative")
    delimiter: Delimiter = None
    header: Header = True
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None,
        ge=3,
        description="maximum number of tokens; none: that of a base model for embeddings, or the model's maximum",
    )
    pooling: Pooling | None = Field(
        None,
        description="pooling of the hidden states: their mean, the first token, or the maximum; none: that of a "
        "base model for embeddings, else the mean",
    )
    normalize: bool | None = Field(
        None, description="scale vectors to length 1; none: as a base model for embeddings, else true"
    )
    loss: Literal["auto", "cosine", "cosent", "contrastive", "softmax"] = Field(
        "auto", description="loss; auto: cosine for scores, contrastive for two labels, else softmax"
    )
    scale: float = Field(20.0, gt=0, le=1000, description="factor of cosines in softmax and cosent")
    margin: float = Field(
        0.5, gt=0, le=2, description="contrastive: the minimum distance (1 - cosine) of different texts"
    )
    same_label: str | None = Field(None, description="label of pairs that match; none: 1, true, yes, …")


class TranslateSettings(Settings):
    """Settings of `translate`."""

    text_column: str = Field("source", description="column of the source text (a number without a header)")
    target_column: str = Field("target", description="column of the target text")
    delimiter: Delimiter = None
    header: Header = True
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None, ge=3, description="maximum number of tokens of a source text; none: the model's maximum"
    )
    max_target_length: int | None = Field(
        None,
        ge=3,
        description="maximum number of tokens of a target text, special tokens included; none: the model's "
        "maximum, and in prediction at most 50 tokens more than the source has",
    )
    decoder_type: Literal["transformer", "lstm"] = Field(
        "transformer", description="transformer: as many layers as the encoder has; lstm: one layer"
    )
    attention_score: Literal["dot", "bilinear", "concat", "additive", "none"] = Field(
        "dot",
        description="score by which an lstm attends to a source token; none: it reads one vector of the source; a "
        "transformer has dot",
    )
    label_smoothing: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="share of the probability in the loss that all tokens of the vocabulary share",
    )
    num_beams: int = Field(
        1, ge=1, le=100, description="hypotheses of the beam search; 1: the likeliest token in each step"
    )

    @model_validator(mode="after")
    def _check_score(self) -> TranslateSettings:
        if self.decoder_type == "transformer" and self.attention_score != "dot":
            raise ValueError("attention_score is a setting of decoder_type=lstm: omit it, or set that")
        return self
