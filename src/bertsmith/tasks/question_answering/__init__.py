"""Question answering: the span of a passage that answers a question (Devlin et al. 2019, sections 4.2 and 4.3).

A passage that does not fit is read in overlapping windows; an answer is always `context[start:end]`. If a training
question had no answer (SQuAD 2.0), the model may answer that there is none.
"""

from bertsmith.tasks.registry import OutputFormat, Task
from bertsmith.tasks.settings import AnswerSettings

TASK = Task(
    name="answer",
    summary="the span of a passage that answers a question",
    folder=__name__,
    pipeline_tag="question-answering",
    settings_type=AnswerSettings,
    data=".data:QuestionAnsweringData",
    encoder=".model:QuestionAnsweringEncoder",
    model=".model:QuestionAnsweringModel",
    decoder=".model:QuestionAnsweringDecoder",
    metrics=".metrics:QuestionAnsweringMetrics",
    report=".metrics:QuestionAnsweringReport",
    metadata_type=".data:AnswerMetadata",
    inputs=("question", "context"),
    annotation_unit="answer",
    fixed_settings=("head", "second_encoder", "transform"),
    call_settings=(
        "max_length",
        "max_query_length",
        "stride",
        "n_best",
        "max_answer_length",
        "null_threshold",
    ),
    output_format=OutputFormat("squad", "one object of each question's id with its answer: SQuAD's"),
    example_file="train.json",
)
