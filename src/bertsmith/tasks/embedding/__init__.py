"""A vector for a text, near the vectors of texts that match it: `embed`."""

from bertsmith.tasks.registry import Task
from bertsmith.tasks.settings import EmbedSettings

TASK = Task(
    name="embed",
    summary="a vector for a text: similarity, search, duplicates",
    folder=__name__,
    pipeline_tag="sentence-similarity",
    settings_type=EmbedSettings,
    metadata_type=".data:EmbeddingMetadata",
    data=".data:EmbeddingData",
    encoder=".model:EmbeddingEncoder",
    model=".model:EmbeddingModel",
    decoder=".model:EmbeddingDecoder",
    metrics=".metrics:EmbeddingMetrics",
    report=".metrics:EmbeddingReport",
    inputs=("text", "text_pair"),
    optional_inputs=("text_pair",),
    averaged_metadata=("lowest_score", "highest_score"),
)
