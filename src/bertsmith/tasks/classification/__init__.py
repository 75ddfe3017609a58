"""One label for a text, or for a pair of texts, or any number of labels: `classify`."""

from bertsmith.tasks.registry import Task
from bertsmith.tasks.settings import ClassSettings

TASK = Task(
    name="classify",
    summary="one label for a text, or for a pair of texts; or any number of labels",
    folder=__name__,
    pipeline_tag="text-classification",
    settings_type=ClassSettings,
    metadata_type=".data:ClassificationMetadata",
    data=".data:ClassificationData",
    encoder=".model:ClassificationEncoder",
    model=".model:make_model",
    decoder=".model:make_decoder",
    metrics=".metrics:make_metrics",
    report=".metrics:make_report",
    inputs=("text", "text_pair"),
    optional_inputs=("text_pair",),
    accepts_label_names=True,
    fixed_settings=("head", "second_encoder", "pooler"),
    call_settings=("max_length", "stride", "specials_in_text"),
    averaged_metadata=("weights",),
)
