"""`bertsmith pretrain`: token shards → a pre-trained BERT in a run folder, resumable to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bertsmith import disk
from bertsmith.artifacts.folder import refuse_foreign, write_folder
from bertsmith.errors import InputError
from bertsmith.instances.batches import PairStream, ids_of, split_documents, token_counts
from bertsmith.instances.buckets import check_budget
from bertsmith.instances.plan import Ints
from bertsmith.instances.word_borders import word_borders
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, family
from bertsmith.models.start import start_from_sinusoids, start_from_unigrams, unigram
from bertsmith.objectives.mlm_nsp import MlmNsp
from bertsmith.shards.shards import Shards
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.loop import (
    Evaluation,
    Phase,
    Progress,
    fingerprint,
    seconds_per_update,
    train,
)
from bertsmith.workflows.predict import Model, load
from bertsmith.workflows.pretrain_settings import PretrainSettings, asked_for, resolved
from bertsmith.workflows.run import (
    MODEL,
    SETTINGS,
    as_assignments,
    numbers,
    prepare_machine,
    refuse_existing,
    settings_of_run,
    write_report,
    write_whole,
)

_EVALUATION_BATCH = 64
_UNEVEN = 0.05  # how far the share of IsNext may be from a half before it is told
_CALIBRATION_SHARE = 0.02  # of a budget in minutes: time spent on measuring how long an update takes


@dataclass(frozen=True)
class _Data:
    """The two sides of the corpus."""

    shards: Shards
    training: Ints
    held_out: Ints


def pretrain(
    data: Shards | str | Path,
    out: str | Path,
    *,
    preset: str | None = None,
    recipe: str | Path | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    minutes: float | None = None,
    settings: Sequence[str] = (),
    resume: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Model:
    """Pre-train a BERT on prepared shards with masked LM and what is asked of pairs (next sentence).

    data: a folder of `prepare`, or its Shards. out: the run folder: settings.yaml, log.jsonl, checkpoints/,
    model/ (the field's layout), report.json. preset: sizes of the model (none: the recipe's, or
    bert-mini-uncased); the vocabulary's size comes from the data. recipe: YAML of settings; `settings`:
    assignments like "train.max_steps=500", which win. minutes: a budget, turned into a number of updates by
    measuring a few. tokenizer: only checked against the data's.
    resume: go on from the newest whole checkpoint of `out`, with its settings; a recipe or assignments that say
    otherwise are refused.

    Returns the model, with its report. Raises InputError for what a user can mend, MachineError, or Stopped
    after a signal.
    """
    out = Path(out)
    shards = data if isinstance(data, Shards) else Shards.open(data)
    shards.verify()
    own = shards.tokenizer
    if tokenizer is not None:
        _same_tokenizer(tokenizer, own, shards)
    assignments = [*settings, *([f"train.max_minutes={minutes}"] if minutes is not None else [])]
    sizes, values = asked_for(preset, recipe)
    resuming = resume and (out / SETTINGS).exists()
    if resuming:
        asked = [*as_assignments({"model": sizes}), *as_assignments(values), *assignments]
        chosen = settings_of_run(PretrainSettings, out, asked)
    else:
        refuse_existing(out)
        if resume:
            tell(f"there is no run in {out} to go on with; a new one starts")
        chosen = resolved(sizes, values, recipe, assignments, own)
    refuse_foreign(out / MODEL)
    _check_length(chosen)
    precision, threads = prepare_machine(chosen.train, tell)
    source = _data(shards, chosen)
    tell(
        f"{shards.documents:,} documents, {shards.tokens:,} tokens; {len(source.held_out):,} documents held out"
    )
    counts = token_counts(shards, source.training, own.vocab_size)
    if not resuming:
        chosen = _budgeted(chosen, source, counts, precision, threads, tell)
        write_whole(out / SETTINGS, chosen.to_yaml())
    encoder, objective = first_weights(chosen, counts)
    phases = _phases(chosen, source)
    batches = _tell_of_instances(chosen, source, tell)
    measure, unigram_loss = _evaluation(chosen, source, encoder, objective, counts)
    progress = train(
        encoder,
        objective,
        phases,
        chosen.train,
        out,
        title="pretrain",
        generator=encoder.generator,
        fingerprint=fingerprint(numbers(chosen), disk.digest(shards.folder / "manifest.json")),
        precision=precision,
        evaluation=measure,
        resume=resume,
        tell=tell,
    )
    return _finished(out, chosen, source, encoder, objective, progress, unigram_loss, batches)


def _same_tokenizer(tokenizer: Tokenizer | str | Path, own: Tokenizer, shards: Shards) -> None:
    given = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    if given.digest != own.digest:
        raise InputError(
            f"{shards.folder}: this data was prepared with another tokenizer than the one given",
            "prepare the data again with this tokenizer, or leave --tokenizer out",
        )


def _check_length(chosen: PretrainSettings) -> None:
    longest = max(chosen.data.sequence_length, chosen.data.long_sequence_length or 0)
    if longest > chosen.model.longest:
        raise InputError(
            f"sequences of {longest} tokens do not fit {chosen.model.longest} positions",
            "lower data.sequence_length, or raise model.max_position_embeddings",
        )
    check_budget(chosen.train.batch_tokens, longest)


def _data(shards: Shards, chosen: PretrainSettings) -> _Data:
    least = chosen.data.least_documents
    return _Data(shards, *split_documents(shards.hashes, chosen.data.held_out, least))


def first_weights(chosen: PretrainSettings, counts: Ints | None = None) -> tuple[Encoder, MlmNsp]:
    """Encoder and heads before the first update: a function of the settings (and of the corpus's token counts
    [V], where the output bias starts from them)."""
    encoder = build_encoder(chosen.model, torch.Generator().manual_seed(chosen.train.seed))
    objective = MlmNsp(chosen.model, encoder.generator, chosen.data.sentence_task)
    # refused before hours of work: a family that has no class with these heads
    family(chosen.model.model_type).architecture(["encoder", *objective.heads])
    if chosen.start.positions == "sinusoidal":
        table = encoder.embeddings.position.weight
        start_from_sinusoids(table, chosen.model.initializer_range, chosen.model.position_offset)
    if chosen.start.output_bias == "unigram" and counts is not None:
        start_from_unigrams(objective.masked.bias, counts)
    return encoder, objective


def instances_of(
    shards: Shards,
    documents: Ints,
    chosen: PretrainSettings,
    length: int,
    batch_tokens: int | None = None,
) -> PairStream:
    """The instances of some documents as a run with these settings sees them."""
    tokenizer = shards.tokenizer
    return PairStream(
        shards,
        documents,
        ids_of(tokenizer),
        chosen.data,
        length=length,
        seed=chosen.train.seed,
        word_starts=word_borders(tokenizer, chosen.data),
        batch_tokens=batch_tokens,
    )


def _stream(source: _Data, chosen: PretrainSettings, length: int) -> PairStream:
    return instances_of(source.shards, source.training, chosen, length, chosen.train.batch_tokens)


def _phases(chosen: PretrainSettings, source: _Data) -> list[Phase]:
    """One phase of short sequences, and a second of long ones where asked (Devlin et al. 2019, A.2)."""
    updates = chosen.train.max_steps or 1
    size = chosen.train.batch_size
    short = _stream(source, chosen, chosen.data.sequence_length)
    if chosen.data.long_sequence_length is None:
        return [Phase(short, updates, size)]
    long_updates = max(1, round(updates * chosen.data.long_share))
    long = _stream(source, chosen, chosen.data.long_sequence_length)
    return [Phase(short, max(0, updates - long_updates), size), Phase(long, long_updates, size)]


def _budgeted(
    chosen: PretrainSettings,
    source: _Data,
    counts: Ints,
    precision: str,
    threads: int,
    tell: Callable[[str], None],
) -> PretrainSettings:
    """The settings with the budget as a number of updates, and the precision and threads it will have."""
    settings = chosen.train
    if settings.max_steps:
        updates = settings.max_steps
    elif settings.max_tokens:
        updates = math.ceil(settings.max_tokens / _tokens_per_update(chosen, source))
    elif settings.max_minutes:
        seconds = _seconds_per_update(chosen, source, counts, precision)
        updates = max(1, int(settings.max_minutes * 60 * (1 - 2 * _CALIBRATION_SHARE) / seconds))
        tell(
            f"{settings.max_minutes:g} minutes are {updates:,} updates at the {seconds:.3f} s measured for one"
        )
    else:
        updates = max(1, math.ceil(settings.epochs * _updates_per_epoch(chosen, source)))
    fixed = {
        "max_steps": updates,
        "max_tokens": None,
        "max_minutes": None,
        "precision": precision,
        "threads": threads,
    }
    return chosen.model_copy(update={"train": settings.model_copy(update=fixed)})


def _per_phase(chosen: PretrainSettings, source: _Data) -> list[tuple[Phase, float]]:
    """Each phase with its share of the updates."""
    long = chosen.data.long_share if chosen.data.long_sequence_length else 0.0
    shares = [1 - long, long] if long else [1.0]
    return list(zip(_phases(chosen, source), shares, strict=True))


def _updates_per_epoch(chosen: PretrainSettings, source: _Data) -> float:
    train = chosen.train
    stream = _stream(source, chosen, chosen.data.sequence_length)
    if train.batch_tokens is None:
        return stream.size(0) / (train.batch_size * train.accumulate)
    return len(stream.filling(0, train.batch_size).tokens) / train.accumulate


def _tokens_per_update(chosen: PretrainSettings, source: _Data) -> float:
    train = chosen.train
    lengths = [chosen.data.sequence_length, chosen.data.long_sequence_length or 0]
    shares = [share for _, share in _per_phase(chosen, source)]
    return train.accumulate * sum(
        share * float(_stream(source, chosen, length).filling(0, train.batch_size).tokens.mean())
        for length, share in zip(lengths, shares, strict=False)
    )


def _seconds_per_update(chosen: PretrainSettings, source: _Data, counts: Ints, precision: str) -> float:
    budget = (chosen.train.max_minutes or 1.0) * 60 * _CALIBRATION_SHARE
    total = 0.0
    for phase, share in _per_phase(chosen, source):
        encoder, objective = first_weights(chosen, counts)
        total += share * seconds_per_update(
            encoder, objective, phase, chosen.train, precision, seconds=min(10.0, budget)
        )
    return total


def _evaluation(
    chosen: PretrainSettings, source: _Data, encoder: Encoder, objective: MlmNsp, counts: Ints
) -> tuple[Evaluation | None, float | None]:
    """How the run is judged on its held-out documents, and what a unigram model would lose there."""
    if not len(source.held_out):
        return None, None
    stream = instances_of(source.shards, source.held_out, chosen, chosen.data.sequence_length)
    last = min(stream.size(0), chosen.data.held_out_instances)
    if not last:
        return None, None
    batches = [
        stream.batch(0, start, min(start + _EVALUATION_BATCH, last))
        for start in range(0, last, _EVALUATION_BATCH)
    ]
    surprise = -np.log(unigram(counts))
    labels = np.concatenate([batch.labels.numpy() for batch in batches])
    return Evaluation(lambda: objective.measure(encoder, batches)), float(surprise[labels].mean())


def _tell_of_instances(
    chosen: PretrainSettings, source: _Data, tell: Callable[[str], None]
) -> dict[str, float | int]:
    """Say how the text became instances and batches, in the first epoch; the figures of the batches."""
    stream = _stream(source, chosen, chosen.data.sequence_length)
    if not stream.size(0):
        raise InputError(
            f"{source.shards.folder}: no instance can be made of these documents",
            "give longer documents, or other data.instances",
        )
    counts = stream.plan(0).counts
    _tell_of_labels(counts, tell)
    if counts["tokens_left_out"]:
        tell(f"{counts['tokens_left_out']:,} tokens stand in no instance")
    found = stream.filling(0, chosen.train.batch_size).report
    limit = (
        f"{chosen.train.batch_tokens:,} tokens"
        if chosen.train.batch_tokens
        else "the longest instances' tokens"
    )
    tell(
        f"{counts['instances']:,} instances an epoch in {found['number']:,} batches, filled to "
        f"{found['fill_mean']:.1%} of {limit} (the least full to {found['fill_min']:.1%}); no padding "
        f"(padded, {found['padding_if_padded']:.1%} of them would be)"
    )
    return found


def _tell_of_labels(counts: dict[str, int], tell: Callable[[str], None]) -> None:
    """Say so where the corpus cannot give as many IsNext as NotNext pairs, or not without using text twice."""
    if "is_next" not in counts:
        return
    if counts["added_for_balance"]:
        tell(
            f"one document holds most of the text: {counts['added_for_balance']:,} of {counts['instances']:,} "
            "pairs use a segment a second time, so that half are NotNext"
        )
    share = counts["is_next"] / max(1, counts["instances"])
    if abs(share - 0.5) > _UNEVEN:
        tell(
            f"only {share:.0%} of the pairs are IsNext: {counts['documents_of_one_fragment']:,} of "
            f"{counts['documents']:,} documents have one sentence, which has no next one"
        )


def _finished(
    out: Path,
    chosen: PretrainSettings,
    source: _Data,
    encoder: Encoder,
    objective: MlmNsp,
    progress: Progress,
    unigram_loss: float | None,
    batches: dict[str, float | int],
) -> Model:
    plan = _stream(source, chosen, chosen.data.sequence_length).plan(0)
    report = {
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9), 1),
        "precision": chosen.train.precision,
        "threads": chosen.train.threads,
        "held_out": progress.evaluation
        | ({"unigram_mlm_loss": unigram_loss} if unigram_loss is not None else {}),
        "corpus": source.shards.counts,
        "first_epoch": plan.counts,
        "batches": batches,
    }
    write_folder(
        out / MODEL,
        chosen.model,
        {"encoder": encoder, **objective.heads},
        tokenizer=source.shards.tokenizer,
        record={"task": "pretrain", **{k: report[k] for k in ("steps", "tokens", "held_out")}},
    )
    write_report(out, report)
    return load(out)
