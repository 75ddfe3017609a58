"""Each recipe in recipes/ is a set of settings that pretrain takes; ablations have the figures of their tables."""

import re
from pathlib import Path

import pytest

import tiny_run
from bertsmith.experiments.ablation_recipe import AblationRecipe, read_recipe
from bertsmith.models.family import preset
from bertsmith.pretraining.paper_settings import PAPER_SETTINGS, differences_from_paper
from bertsmith.pretraining.resolve_settings import new_settings
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import read_yaml

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml"))
ABLATIONS = sorted((RECIPES[0].parent / "ablations").glob("*.yaml"))
# The figures of the tables, copied from the papers: recipe, column, and values in the order of the rows.
PUBLISHED = {
    ("pretraining-task", "MNLI-m"): [84.4, 83.9, 82.1, 82.1],
    ("pretraining-task", "QNLI"): [88.4, 84.9, 84.3, 84.1],
    ("pretraining-task", "MRPC"): [86.7, 86.5, 77.5, 75.7],
    ("pretraining-task", "SST-2"): [92.7, 92.6, 92.1, 91.6],
    ("pretraining-task", "SQuAD F1"): [88.5, 87.9, 77.8, 84.9],
    ("model-size", "MLM perplexity"): [5.84, 5.24, 4.68, 3.99, 3.54, 3.23],
    ("model-size", "MNLI-m"): [77.9, 80.6, 81.9, 84.4, 85.7, 86.6],
    ("model-size", "MRPC"): [79.8, 82.2, 84.8, 86.7, 86.9, 87.8],
    ("model-size", "SST-2"): [88.4, 90.7, 91.3, 92.9, 93.3, 93.7],
    ("features", "NER"): [96.4, 91.0, 95.6, 94.9, 95.9, 96.1, 95.5],
    ("mask-split", "MNLI"): [84.2, 84.3, 84.1, 84.4, 83.7, 83.6],
    ("mask-split", "NER"): [95.4, 94.9, 95.2, 95.2, 94.8, 94.9],
    ("mask-split", "NER features"): [94.9, 94.0, 94.6, 94.7, 94.6, 94.6],
    ("static-masks", "SQuAD 2.0"): [78.7, 78.3],
    ("static-masks", "MNLI-m"): [84.0, 84.3],
    ("static-masks", "SST-2"): [92.9, 92.5],
    ("formats", "SQuAD 1.1"): [90.4, 88.7, 90.4, 90.6],
    ("formats", "SQuAD 2.0"): [78.7, 76.2, 79.1, 79.7],
    ("formats", "MNLI-m"): [84.0, 82.9, 84.7, 84.7],
    ("formats", "SST-2"): [92.9, 92.1, 92.5, 92.7],
    ("formats", "RACE"): [64.2, 63.0, 64.8, 65.6],
    ("batch-size", "MLM perplexity"): [3.99, 3.68, 3.77],
    ("batch-size", "MNLI-m"): [84.7, 85.2, 84.6],
    ("batch-size", "SST-2"): [92.7, 92.9, 92.8],
    ("amount-of-data", "SQuAD 1.1"): [94.0, 93.6],
    ("amount-of-data", "SQuAD 2.0"): [87.7, 87.3],
    ("amount-of-data", "MNLI-m"): [89.3, 89.0],
    ("amount-of-data", "SST-2"): [95.6, 95.3],
    ("two-directions", "MNLI-m"): [83.9, 82.1],
    ("two-directions", "QNLI"): [84.9, 84.3],
    ("two-directions", "MRPC"): [86.5, 77.5],
    ("two-directions", "SST-2"): [92.6, 92.1],
    ("two-directions", "SQuAD F1"): [87.9, 77.8],
    ("steps", "MNLI, above half (almost)"): [1.0, 0.0],
    ("distillation", "GLUE, against all three"): [0.0, -2.96, -1.46, -0.31, -3.69],
    ("embedding-size", "average"): [80.1, 79.0, 79.6, 79.8, 81.3, 81.7, 81.8, 82.3],
    ("sharing", "average"): [80.1, 81.7, 80.2, 81.6, 79.8, 81.6, 79.5, 82.3],
    ("sentence-task", "MLM accuracy"): [54.0, 54.5, 54.9],
    ("sentence-task", "NSP accuracy"): [78.9, 90.5, 52.4],
    ("sentence-task", "SOP accuracy"): [86.5, 52.0, 53.3],
    ("sentence-task", "average"): [80.1, 79.2, 79.0],
}


def ablation(name: str) -> AblationRecipe:
    return read_recipe(RECIPES[0].parent / "ablations" / f"{name}.yaml")


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 2


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_read_whole(recipe: Path) -> None:
    values = read_yaml(recipe)
    values["model"] = preset(values.pop("preset")).model_dump() | values.get("model", {})
    chosen = PretrainSettings.of(values, str(recipe))
    assert chosen.train.batch_size == values["train"]["batch_size"]
    assert PretrainSettings.of(chosen.model_dump(mode="json"), "again") == chosen


def test_the_laptops_recipe_is_what_minutes_make_of_that_size() -> None:
    """So that the file cannot fall behind what was measured since."""
    tokenizer = tiny_run.tokenizer()
    recipe = RECIPES[0].parent / "laptop.yaml"
    written = new_settings(None, recipe, {"train.max_minutes": 60}, tokenizer)
    usual = new_settings("bert-mini-uncased", None, {"train.max_minutes": 60}, tokenizer)
    assert written == usual


def test_each_column_of_each_ablation_is_checked() -> None:
    columns = {(file.stem, column) for file in ABLATIONS for column in read_recipe(file).paper}
    assert columns <= PUBLISHED.keys()


@pytest.mark.parametrize(("name", "column"), PUBLISHED, ids="-".join)
def test_an_ablation_has_the_figures_of_its_table(name: str, column: str) -> None:
    recipe = ablation(name)
    values = recipe.paper[column]
    assert [values[row] for row in recipe.rows if row in values] == PUBLISHED[name, column]


def test_rows_that_a_paper_quotes_are_not_run() -> None:
    masks, formats = ablation("static-masks"), ablation("formats")
    assert [masks.quoted[column]["reference"] for column in masks.paper] == [76.3, 84.3, 92.8]
    assert [formats.quoted[column]["BERT base"] for column in formats.paper] == [88.5, 76.3, 84.3, 92.8, 64.3]
    assert formats.quoted["MNLI-m"]["XLNet base, K = 7"] == 85.8
    assert not set(masks.quoted["MNLI-m"]) & set(masks.rows)


def test_no_figure_is_made_up_for_steps() -> None:
    """The appendix prints one difference; 83.4 would be 84.4 minus a point."""
    (values,) = ablation("steps").paper.values()
    assert values == {"whole": 1.0, "half": 0.0}


@pytest.mark.parametrize("file", ABLATIONS, ids=lambda file: file.stem)
def test_an_ablation_states_its_source_and_what_differs(file: Path) -> None:
    recipe = read_recipe(file)
    assert re.search(r"20\d\d, (table|appendix) \S+", recipe.source)
    assert {"data", "model", "budget", "length", "optimizer", "seeds"} <= recipe.departures.keys()
    assert "million tokens" in recipe.departures["budget"] or "million in all" in recipe.departures["budget"]
    for row in recipe.rows.values():
        settings = {**recipe.settings, **row}
        assert f"{settings['train.max_steps']:,}" in recipe.departures["budget"]
        batch = settings.get("train.batch_size") or settings["train.batch_tokens"]
        assert f"{batch:,}" in recipe.departures["budget"]


@pytest.mark.parametrize("file", ABLATIONS, ids=lambda file: file.stem)
def test_the_optimizer_that_an_ablation_states_is_that_of_each_row(file: Path) -> None:
    recipe = read_recipe(file)
    if recipe.preset is None:
        return  # the teacher's size decides
    for row in recipe.rows:
        preset_name, changes = recipe.pretraining(row, {})
        train = new_settings(preset_name, None, changes, tiny_run.tokenizer()).train
        assert recipe.departures["optimizer"].startswith({"muon": "Muon", "adamw": "AdamW"}[train.optim])


DEVLIN = PAPER_SETTINGS
LIU = DEVLIN | {
    "data.sentence_task": "none",
    "data.instances": "full_sentences",
    "data.dynamic_masking": True,
}
LAN = DEVLIN | {"data.sentence_task": "sop", "data.masking": "span"}
BY_PAPER = {
    "Devlin et al. 2019": DEVLIN,
    "Liu et al. 2019": LIU,
    "Liu et al. 2019, table 1": DEVLIN | {"data.dynamic_masking": True},  # BERT with other masks
    "Lan et al. 2020": LAN,
}
SUBJECTS = {
    "data.sentence_task": ("objective", "instances"),
    "data.instances": ("objective", "instances"),
    "data.masking": ("masks",),
    "data.dynamic_masking": ("masks",),
    "model.hidden_dropout_prob": ("dropout",),
    "train.warmup_steps": ("schedule",),
}
"""The departures of which one must speak of a setting that is unlike the paper's."""
SMALL = "settings for small models (pretrain lists them)"


@pytest.mark.parametrize("file", ABLATIONS, ids=lambda file: file.stem)
def test_the_departures_of_an_ablation_are_those_of_its_settings(file: Path) -> None:
    """Sizes, tokens, rates, and each setting of all rows that differs from the paper of the table."""
    recipe = read_recipe(file)
    if recipe.preset is None:
        return  # the teacher's size decides
    rows = [new_settings(*recipe_settings(recipe, row), tiny_run.tokenizer()) for row in recipe.rows]
    departures, first = recipe.departures, rows[0]
    sizes = {(row.model.num_hidden_layers, row.model.hidden_size) for row in rows}
    if len(sizes) == 1:
        assert departures["model"].startswith("{} layers of {}".format(*sizes.pop()))
    if first.train.optim == "adamw":
        assert (
            float(re.search(r"AdamW at ([\de-]+)", departures["optimizer"])[1]) == first.train.learning_rate
        )  # type: ignore[index]
    assert departures["length"].startswith(f"{first.data.sequence_length} tokens")
    if stated := re.search(r"([\d.]+) million", departures["budget"]):
        tokens = [
            (row.train.batch_tokens or row.train.batch_size * row.data.sequence_length)
            * (row.train.max_steps or 0)
            for row in rows
        ]
        assert float(stated[1]) == round(max(tokens) / 1e6, 1)
    assert (first.model.initializer_range != 0.02) == (SMALL in departures["model"])
    key = max((name for name in BY_PAPER if recipe.source.startswith(name)), key=len)
    flat = [row.flat() for row in rows]
    for name, subjects in SUBJECTS.items():
        values = {str(values[name]) for values in flat}
        is_small = SMALL in departures["model"] and name not in (
            "data.sentence_task",
            "data.instances",
            "data.masking",
        )
        if len(values) == 1 and values != {str(BY_PAPER[key][name])} and not is_small:
            assert set(subjects) & departures.keys(), (name, values)


def test_rows_of_mask_percentages_run_what_their_names_say() -> None:
    """[MASK], same, random in the names, as in the paper; [MASK], random, same in the setting."""
    recipe = ablation("mask-split")
    for row, settings in recipe.rows.items():
        mask, same, random = (int(number) / 100 for number in row.split("/"))
        assert settings["data.replacement_probabilities"] == [mask, random, same]


def test_rows_of_sizes_are_an_eighth_of_the_papers() -> None:
    recipe = ablation("model-size")
    for row, settings in recipe.rows.items():
        layers, hidden_size, heads = map(int, row.split("/"))
        values = list(settings.values())
        assert values == [layers, hidden_size / 8, heads, 4 * hidden_size / 8]
    differences = [
        differences_from_paper(new_settings(*recipe_settings(recipe, row), tiny_run.tokenizer()))
        for row in recipe.rows
    ]
    assert all(row == differences[0] for row in differences)  # only the size differs


def recipe_settings(recipe: AblationRecipe, row: str) -> tuple[str | None, None, dict[str, object]]:
    preset_name, changes = recipe.pretraining(row, {})
    return preset_name, None, changes


@pytest.mark.parametrize(("name", "unit"), [("embedding-size", 4), ("sharing", 4)])
def test_rows_of_embedding_sizes_are_a_quarter_of_the_papers(name: str, unit: int) -> None:
    for row, settings in ablation(name).rows.items():
        assert settings["model.embedding_size"] * unit == int(row.rpartition(" ")[2])


def test_batches_see_equally_many_sequences_in_the_papers_proportion_and_each_rate_is_both_optimizers() -> (
    None
):
    recipe = ablation("batch-size")
    rows = [new_settings(*recipe_settings(recipe, row), tiny_run.tokenizer()).train for row in recipe.rows]
    assert len({train.batch_size * (train.max_steps or 0) for train in rows}) == 1
    assert [train.batch_size / rows[0].batch_size for train in rows] == [1, 8, 32]
    assert {train.optim for train in rows} == {"muon"}
    assert len({train.learning_rate for train in rows}) == 3
    assert {round(train.muon_learning_rate / train.learning_rate, 6) for train in rows} == {2.5}


def test_formats_hold_tokens_per_batch() -> None:
    recipe = ablation("formats")
    assert {recipe.pretraining(row, {})[1]["train.batch_tokens"] for row in recipe.rows} == {32 * 128}


def test_the_settings_of_the_paper_are_those_of_its_recipe() -> None:
    recipe = RECIPES[0].parent / "bert-paper.yaml"
    settings = new_settings(None, recipe, {}, tiny_run.tokenizer())
    different = {
        name: value for name, value in settings.flat().items() if value != PAPER_SETTINGS.get(name, value)
    }
    assert different == {"train.warmup_steps": 10_000}  # of 1,000,000, which the table has as a fraction
    assert settings.train.max_steps == 10_000 / PAPER_SETTINGS["train.warmup_steps"]
    assert (settings.data.max_predictions_per_seq, settings.data.long_max_predictions_per_seq) == (20, 77)


FURTHER_NAMES = {
    *("train.muon_learning_rate", "train.muon_momentum", "train.muon_weight_decay", "train.decay_ratio"),
    *("train.pct_start", "train.lr_decay_factor", "train.lr_milestones", "data.corruption_ratio"),
    *("data.word_segmenter", "data.span_length_distribution", "data.span_geometric_p"),
    "data.max_span_length",
}
"""Settings that the paper does not have; listed if they are read."""
NOT_COMPARED = {
    # sizes and budgets
    *("model.vocab_size", "model.hidden_size", "model.embedding_size", "model.num_hidden_layers"),
    *("model.num_attention_heads", "model.intermediate_size", "model.max_position_embeddings"),
    *("data.sequence_length", "data.long_sequence_length", "data.long_sequence_ratio"),
    *("data.max_predictions_per_seq", "data.long_max_predictions_per_seq", "data.train_fraction"),
    *("data.validation_split", "data.max_validation_instances"),
    *("train.max_steps", "train.max_tokens", "train.max_minutes", "train.num_train_epochs"),
    *("train.batch_size", "train.batch_tokens", "train.gradient_accumulation_steps"),
    # other objectives and families, fine-tuning, and the tokenizer
    *("base", "model.context_size", "model.direct_connections", "model.embedding_type"),
    *("model.tie_directions", "model.classifier_dropout", "model.pad_token_id"),
    # this machine, and what is reported
    *("train.logging_steps", "train.eval_steps", "train.save_steps", "train.save_total_limit"),
    *("train.seed", "train.precision", "train.kernels", "train.cuda_graphs", "train.deterministic"),
    *("train.device", "train.threads", "train.dataloader_num_workers", "train.fsdp", "train.report_to"),
    *("evaluate.pairs", "evaluate.pairs_encoding", "evaluate.pairs_sample"),
}


def test_each_setting_is_compared_with_the_papers_or_is_a_size_or_a_matter_of_the_machine() -> None:
    settings = new_settings("bert-tiny-uncased", None, {}, tiny_run.tokenizer())
    assert settings.flat().keys() == {*PAPER_SETTINGS, *FURTHER_NAMES, *NOT_COMPARED}
    assert not PAPER_SETTINGS.keys() & NOT_COMPARED


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({"model.norm": "pre"}, {"model.norm": "pre"}),
        ({"model.position": "none"}, {"model.position": "none"}),
        ({"model.hidden_act": "relu"}, {"model.hidden_act": "relu"}),
        ({"data.nsp_balance": True}, {"data.nsp_balance": True}),
        ({"data.dupe_factor": 1}, {"data.dupe_factor": 1}),
        ({"objective.reduction": "sum"}, {"objective.reduction": "sum"}),
        (
            {"data.corruption": "deletion", "data.corruption_ratio": 0.1},
            {"data.corruption": "deletion", "data.corruption_ratio": 0.1},
        ),
        ({"data.corruption_ratio": 0.1}, {}),  # of no corruption
    ],
    ids=str,
)
def test_a_setting_unlike_the_papers_is_listed(
    changes: dict[str, object], differences: dict[str, object]
) -> None:
    recipe = RECIPES[0].parent / "bert-paper.yaml"
    settings = new_settings(None, recipe, {**changes, "train.warmup_steps": 0.01}, tiny_run.tokenizer())
    assert differences_from_paper(settings) == differences


def test_everything_that_small_models_have_unlike_the_paper_is_listed() -> None:
    settings = new_settings("bert-tiny-uncased", None, {"train.max_minutes": 60}, tiny_run.tokenizer())
    differences = differences_from_paper(settings)
    assert differences["train.optim"] == "muon"
    assert differences["model.initializer_range"] == 0.06
    assert differences["start.positions"] == "sinusoidal"
    assert differences["start.tokens"] == "neighbours"
    assert differences["start.output_bias"] == "unigram"
    assert differences["start.attention"] == "local"
    assert (
        differences["model.hidden_dropout_prob"] == differences["model.attention_probs_dropout_prob"] == 0.0
    )
    assert differences["data.mlm_probability"] == 0.3
    assert differences["train.muon_learning_rate"] == 5e-3
