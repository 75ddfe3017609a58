"""A number for a text, or for a pair of texts (STS-B; Devlin et al. 2019, section 4.1): `regress`."""

from bertsmith.tasks.registry import Task
from bertsmith.tasks.settings import TextSettings

TASK = Task(
    name="regress",
    summary="a number for a text, or for a pair of texts",
    folder=__name__,
    pipeline_tag="text-classification",
    settings_type=TextSettings,
    metadata_type="bertsmith.tasks.texts:TextMetadata",
    data=".data:RegressionData",
    encoder=".model:RegressionEncoder",
    model=".model:RegressionModel",
    decoder=".model:RegressionDecoder",
    metrics=".metrics:RegressionMetrics",
    report=".metrics:RegressionReport",
    inputs=("text", "text_pair"),
    optional_inputs=("text_pair",),
    fixed_settings=("head", "second_encoder", "pooler"),
    call_settings=("max_length", "stride", "specials_in_text"),
)
