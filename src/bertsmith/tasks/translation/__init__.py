"""A text for a text, such as its translation, by an encoder and a decoder (Vaswani et al. 2017): `translate`."""

from bertsmith.tasks.registry import Task
from bertsmith.tasks.settings import TranslateSettings

TASK = Task(
    name="translate",
    summary="a text for a text, such as its translation",
    folder=__name__,
    pipeline_tag="translation",
    settings_type=TranslateSettings,
    data=".data:TranslationData",
    encoder=".model:TranslationEncoder",
    model=".model:TranslationModel",
    decoder=".model:TranslationDecoder",
    metrics=".metrics:TranslationMetrics",
    report=".metrics:TranslationReport",
    fixed_settings=("decoder_type", "attention_score"),
    call_settings=("max_length", "max_target_length", "num_beams"),
    example_file="pairs.csv",
)
