"""The task `tag`: a tag for each word of a sentence (Devlin et al. 2019, section 5.3)."""

from bertsmith.tasks.registry import OutputFormat, Task
from bertsmith.tasks.settings import TagSettings

TASK = Task(
    name="tag",
    summary="a tag for each word of a sentence: entities, chunks, parts of speech",
    folder=__name__,
    pipeline_tag="token-classification",
    settings_type=TagSettings,
    data=".data:TagData",
    encoder=".encode:TagEncoder",
    model=".model:TagModel",
    decoder=".model:TagDecoder",
    metrics=".metrics:TagMetrics",
    report=".metrics:TagReport",
    metadata_type=".data:TagMetadata",
    inputs=("words", "predicate"),
    optional_inputs=("predicate",),
    accepts_label_names=True,
    annotation_unit="tag",
    fixed_settings=("scheme", "decoder", "layers", "head", "second_encoder"),
    output_format=OutputFormat("conll", "the file's columns, the predicted tag behind them", ".conll"),
    example_file="train.conll",
)
