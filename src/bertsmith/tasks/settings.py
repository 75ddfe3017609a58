"""The settings of each task; importing them loads neither PyTorch nor the tasks."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PositiveFloat

from bertsmith.models.config import Layers, Pooling
from bertsmith.settings import Settings

FileEncoding = Annotated[
    str | None, Field(description="the encoding of files that are not UTF-8: cp1252, gb18030, …")
]
Delimiter = Annotated[
    str | None,
    Field(
        description="what separates columns; none: comma in .csv (or what its header has), tab in other tables"
    ),
]
Header = Annotated[
    bool, Field(description="whether the first line names the columns; if not they are 1, 2, …")
]
Head = Annotated[
    Literal["linear", "bilstm"],
    Field(
        description="what reads the encoder's states: linear: the task's own layers; bilstm: two layers of a "
        "bidirectional LSTM below them",
    ),
]
SecondEncoderRun = Annotated[
    str,
    Field(
        description="of a left-to-right model: a run of the same size that reads the other way, whose states are "
        "joined to this one's; empty: none",
    ),
]
ClassWeights = Literal["none", "balanced"] | dict[str, PositiveFloat]
Rules = Literal["auto", "squad", "cmrc"]


class TextSettings(Settings):
    """Settings of tasks on texts and pairs of texts."""

    text_column: str = Field(
        "text", description="the column of the text (a number where the file has no header)"
    )
    second_column: str | None = Field(None, description="the column of a second text, for tasks on pairs")
    label_column: str = Field("label", description="the column of the label")
    delimiter: Delimiter = None
    header: Header = True
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None, ge=3, description="tokens read at a time, special ones included; none: what the model can take"
    )
    stride: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="tokens from the start of one window of a longer text to the next's, whose answers are "
        "averaged; none: its end is not read",
    )
    specials_in_text: Literal["text", "parse"] = Field(
        "text",
        description="what strings such as [SEP] in a text are: text like all other (text), or the model's special "
        "tokens (parse)",
    )
    pooler: bool = Field(
        True,
        description="whether the head of a BERT or an ALBERT reads the pooler, as in the releases, or the first "
        "token's hidden state itself",
    )
    head: Head = "linear"
    second_encoder: SecondEncoderRun = ""


class ClassSettings(TextSettings):
    """Settings of `classify`."""

    multi_label: bool = Field(False, description="whether a text has any number of labels, or exactly one")
    label_separator: str = Field(
        ",", min_length=1, description="with multi_label: what separates labels in the label column"
    )
    class_weights: ClassWeights = Field(
        "none",
        description="what weighs each label in the loss: balanced (the rarer, the more), or {label: weight, …}",
    )
    thresholds: Literal["half", "shared", "each"] = Field(
        "shared",
        description="with multi_label: above which probability a label is predicted: a half; one for all labels, "
        "or one for each, chosen on dev by macro F1",
    )
    init_head_from: Literal["none", "nsp"] = Field(
        "none",
        description="what the head is at first: drawn (none), or for two labels the base's head for the next "
        "sentence (nsp); which label begins as IsNext is told",
    )
    calibrate: bool = Field(
        False,
        description="whether probabilities are calibrated: divide logits by a temperature that is chosen on dev",
    )


class TagSettings(Settings):
    """Settings of `tag`."""

    word_column: str | None = Field(
        None,
        description="the column of the words: a number (1 the first, -1 the last), in .conllu and .jsonl a name; "
        "none: the first, FORM, words",
    )
    tag_column: str | None = Field(
        None, description="the column of the tags, likewise; none: the last, UPOS, tags"
    )
    predicate_column: str | None = Field(
        None,
        description="for semantic roles: the column that has each predicate's sense, _ elsewhere; each column "
        "behind it has the roles of one predicate; none: the eleventh of a .conllu file that has it, where "
        "tag_column is not given; in .jsonl the name of the predicate's position, predicate",
    )
    scheme: Literal["iobes", "iob2", "iob1", "as_written"] = Field(
        "iobes",
        description="how entities are learnt, whatever scheme the file has: IOBES tells their ends and single "
        "words, too; answers are always in the file's scheme",
    )
    decoder: Literal["softmax", "crf"] = Field(
        "softmax",
        description="the likeliest legal tags: softmax, each word's by itself; crf: with learnt weights of a tag "
        "after another (a conditional random field)",
    )
    layers: Layers = Field(
        "last",
        description="which layers are read: last, second_to_last, embeddings; several with learnt weights: "
        "sum_last_four, sum_all; side by side: concat_last_four",
    )
    head: Head = "linear"
    second_encoder: SecondEncoderRun = ""
    layout: Literal["auto", "columns", "lines"] = Field(
        "auto",
        description="columns: one word per line; lines: one sentence per line, to predict; auto: columns, but "
        "lines for a .txt to predict that has none",
    )
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None, ge=3, description="tokens of a window, special ones included; none: what the model can take"
    )


class AnswerSettings(Settings):
    """Settings of `answer`; the defaults are those of the release of BERT."""

    question_column: str | None = Field(
        None,
        description="of rows, not SQuAD's JSON: the column of the question; none: question",
    )
    context_column: str | None = Field(None, description="likewise the column of the passage; none: context")
    answer_column: str | None = Field(
        None,
        description="likewise the column of the answer, empty where there is none; none: answer, answer_text or "
        "answers",
    )
    start_column: str | None = Field(
        None,
        description="likewise the column of the character of the passage that the answer begins at, from 0; none: "
        "start or answer_start",
    )
    delimiter: Delimiter = None
    header: Header = True
    max_query_length: int = Field(64, ge=1, le=100_000, description="tokens read of a question")
    stride: int = Field(
        128, ge=1, le=100_000, description="tokens from the start of one window of a passage to the next's"
    )
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None, ge=8, description="tokens of a window, question included; none: what the model can take"
    )
    n_best: int = Field(20, ge=1, le=1000, description="answers listed a question, the best first")
    max_answer_length: int = Field(30, ge=1, le=10_000, description="tokens of an answer at most")
    transform: bool = Field(
        False,
        description="whether the two vectors have a layer before them (Linear and activation); BERT has none",
    )
    null_threshold: float | None = Field(
        None,
        allow_inf_nan=False,
        description="an answer only where its score is more than that above the score of none; none: as chosen on "
        "dev, and always an answer if all training questions had one",
    )
    rules: Rules = Field(
        "auto",
        description="how answers are compared: as SQuAD's script does, or as CMRC 2018's for Chinese; auto: by "
        "the letters of most answers",
    )
    head: Head = "linear"
    second_encoder: SecondEncoderRun = ""


class ChoiceNames(NamedTuple):
    """The columns of questions with choices; None stands for the usual names.

    Attributes:
        context: The column of the context.
        question: The column of the question.
        choices: The column of the list of choices, or those of the choices with commas between.
        label: The column of the right choice.
        first: The label of the first choice as a number.
    """

    context: str | None = None
    question: str | None = None
    choices: str | None = None
    label: str | None = None
    first: int = 0

    @property
    def are_given(self) -> bool:
        """Return True if any column is named."""
        return any(name is not None for name in self[:4])


class ChooseSettings(Settings):
    """Settings of `choose`."""

    context_column: str | None = Field(
        None,
        description="the column of the context; none: context, article, passage, premise, …, if there is one",
    )
    question_column: str | None = Field(
        None,
        description="the column of the question; none: question, where there is one",
    )
    choices_column: str | None = Field(
        None,
        description="the column of the choices, a list, or those of each choice with commas between: A,B,C,D; "
        "none: choices, options, endings, or choice0, choice1, …",
    )
    label_column: str | None = Field(
        None,
        description="the column of the right choice, as its index, its letter or its text; none: label, answerKey "
        "or answer",
    )
    first_index: int = Field(
        0,
        ge=0,
        le=1,
        description="the index that the label has for the first choice: 0, or 1",
    )
    delimiter: Delimiter = None
    header: Header = True
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None,
        ge=8,
        description="tokens of context, question and choice read together, special ones included; none: what the "
        "model can take. The context's end is cut",
    )
    head: Head = "linear"
    second_encoder: SecondEncoderRun = ""

    @property
    def file_names(self) -> ChoiceNames:
        """The columns, as the reading function takes them."""
        return ChoiceNames(
            self.context_column,
            self.question_column,
            self.choices_column,
            self.label_column,
            self.first_index,
        )

    @property
    def choice_columns(self) -> list[str]:
        """The column of the list of choices, or of each choice."""
        return [name.strip() for name in (self.choices_column or "choices").split(",")]


class RelateSettings(Settings):
    """Settings of `relate`."""

    none_label: str | None = Field(
        None,
        description="the label that means no relation, which F1 leaves out; none: Other, no_relation or NA, where "
        "there is one",
    )
    text_column: str | None = Field(
        None,
        description="of rows: the column of the text, or in .jsonl of the list of words; none: text, sentence, "
        "tokens or words",
    )
    head_column: str | None = Field(
        None,
        description="the column of the first entity's [start, end]; none: head, e1 or subj, or tags in the text",
    )
    tail_column: str | None = Field(None, description="likewise of the second; none: tail, e2 or obj")
    label_column: str | None = Field(None, description="the column of the relation; none: relation or label")
    delimiter: Delimiter = None
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None,
        ge=8,
        description="tokens read of a text, markers and special ones included; none: what the model can take. A "
        "window around both entities is read",
    )
    head: Head = "linear"
    second_encoder: SecondEncoderRun = ""


class EmbedSettings(Settings):
    """Settings of `embed`."""

    text_column: str | None = Field(
        None, description="the column of the text, anchor or query; none: text, sentence1, anchor, query, …"
    )
    second_column: str | None = Field(
        None,
        description="the column of what it is compared with; none: second, sentence2, positive, passage, …",
    )
    label_column: str | None = Field(
        None, description="the column of a pair's score or label; none: label or score, where there is one"
    )
    negative_column: str | None = Field(
        None, description="the column of a text that does not match; none: negative, where there is one"
    )
    delimiter: Delimiter = None
    header: Header = True
    encoding: FileEncoding = None
    max_length: int | None = Field(
        None,
        ge=3,
        description="tokens read of a text, special ones included; none: as many as the base, if that is a model "
        "for vectors itself, else what the model can take",
    )
    pooling: Pooling | None = Field(
        None,
        description="how a text's states become its vector: their mean, the first token's, the maximum; none: as "
        "the base's, if that is a model for vectors itself, else the mean",
    )
    normalize: bool | None = Field(
        None,
        description="whether finished vectors get the length 1, so that products are cosines; none: as the base's "
        "do, if that is a model for vectors itself, else they get it",
    )
    loss: Literal["auto", "cosine", "cosent", "contrastive", "softmax"] = Field(
        "auto",
        description="what is learnt by; auto: cosine for scores, contrastive for two labels, else softmax",
    )
    scale: float = Field(
        20.0,
        gt=0,
        le=1000,
        description="what cosines are multiplied by in softmax and cosent: 1 / temperature",
    )
    margin: float = Field(
        0.5, gt=0, le=2, description="of contrastive: how far apart (1 - cosine) different texts should be"
    )
    symmetric: bool = Field(
        False, description="whether softmax also asks for the query of each passage: the mean of both"
    )
    same_label: str | None = Field(
        None, description="the label of pairs that mean the same; none: 1, true, yes, same, duplicate, …"
    )
    lowest_score: float | None = Field(
        None, description="the score that stands for a cosine of 0; none: the lowest of the training pairs"
    )
    highest_score: float | None = Field(
        None, description="the score that stands for a cosine of 1; none: the highest of the training pairs"
    )
