"""Multiple choice: the correct choice for a context, a question, or both (Devlin et al. 2019, section 4.4)."""

from bertsmith.tasks.registry import Task
from bertsmith.tasks.settings import ChooseSettings

TASK = Task(
    name="choose",
    summary="the right one of several choices for a context or a question",
    folder=__name__,
    pipeline_tag="multiple-choice",
    settings_type=ChooseSettings,
    data=".data:MultipleChoiceData",
    encoder=".model:MultipleChoiceEncoder",
    model=".model:MultipleChoiceModel",
    decoder=".model:MultipleChoiceDecoder",
    metrics=".metrics:MultipleChoiceMetrics",
    report=".metrics:MultipleChoiceReport",
    inputs=("context", "choices", "question"),
    optional_inputs=("choices", "question"),
    example_file="train.jsonl",
)
