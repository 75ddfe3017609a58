"""Relation extraction: the relation of two entities that are marked in a text."""

from bertsmith.tasks.registry import OutputFormat, Task
from bertsmith.tasks.settings import RelateSettings

TASK = Task(
    name="relate",
    summary="the relation of two entities that are marked in a text",
    folder=__name__,
    pipeline_tag="text-classification",
    settings_type=RelateSettings,
    data=".data:RelationData",
    encoder=".model:RelationEncoder",
    model=".model:RelationModel",
    decoder=".model:RelationDecoder",
    metrics=".metrics:RelationMetrics",
    report=".metrics:RelationReport",
    metadata_type=".data:RelationMetadata",
    inputs=("text", "head", "tail"),
    optional_inputs=("head", "tail"),
    accepts_label_names=True,
    annotation_unit="relation",
    output_format=OutputFormat(
        "semeval", "each example's number, a tab, its relation: SemEval-2010 task 8's"
    ),
    example_file="train.txt",
)
