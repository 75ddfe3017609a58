"""What a mistyped name was meant to be: names spelled alike, words they share, other libraries' names for them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from bertsmith.errors import InputError

_SHOWN = 3
_LONGEST_PATH = 1_000  # characters of one that people type

# The last part of a setting's name → what the same is called elsewhere (transformers, Keras, fairseq, BERT's
# release) or for short. They serve suggestions only; nothing is read under such a name.
_ELSEWHERE = {
    "learning_rate": "lr rate peak_lr max_lr",
    "batch_size": "bs batch per_device_train_batch_size train_batch_size per_device_batch_size minibatch",
    "accumulate": "grad_accum gradient_accumulation_steps accumulation_steps grad_accumulation accum",
    "epochs": "num_train_epochs num_epochs n_epochs max_epochs epoch passes",
    "max_steps": "steps updates num_steps max_updates total_steps iterations num_train_steps max_train_steps",
    "max_minutes": "minutes time max_time hours",
    "max_tokens": "tokens",
    "warmup": "warmup_steps warmup_ratio warmup_proportion num_warmup_steps warm_up",
    "schedule": "lr_scheduler_type lr_scheduler scheduler lr_schedule lr_decay",
    "weight_decay": "wd l2 decay",
    "betas": "adam_beta1 adam_beta2 beta1 beta2 beta",
    "epsilon": "adam_epsilon adam_eps eps",
    "bias_correction": "correct_bias",
    "clip_norm": "max_grad_norm grad_clip clip gradient_clip_val clip_grad_norm grad_norm",
    "log_every": "logging_steps log_interval log_steps",
    "evaluate_every": "eval_steps eval_every eval_interval val_every eval_strategy",
    "checkpoint_every": "save_steps save_every save_interval checkpoint_steps",
    "keep_checkpoints": "save_total_limit max_checkpoints",
    "precision": "fp16 bf16 fp32 amp dtype mixed_precision half",
    "int8": "integers quantize quantized quantization load_in_8bit 8bit eight_bit",
    "device": "gpu cuda no_cuda use_cpu",
    "threads": "num_threads cpus cores nthreads",
    "workers": "num_workers dataloader_num_workers num_proc",
    "seed": "random_seed random_state manual_seed",
    "tensorboard": "report_to",
    "sequence_length": "max_len max_length max_seq_length max_seq_len seq_len seq_length block_size",
    "max_length": "max_len max_seq_length max_seq_len seq_len seq_length sequence_length",
    "masking": "whole_word whole_word_mask wwm",
    "mask_share": "mlm_probability mlm_prob mask_prob mask_rate masking_rate masked_lm_prob",
    "predictions_max": "max_predictions_per_seq",
    "sentence_task": "nsp sop next_sentence",
    "held_out": "validation_split val_split validation test_size eval_share validation_split_percentage",
    "duplicates": "dupe_factor",
    "short_share": "short_seq_prob",
    "hidden_size": "hidden d_model dim width n_embd embed_dim hidden_dim",
    "num_hidden_layers": "layers n_layers num_layers depth n_layer",
    "num_attention_heads": "heads n_heads num_heads n_head attention_heads",
    "intermediate_size": "ffn ffn_dim feed_forward d_ff",
    "hidden_dropout_prob": "dropout drop dropout_rate dropout_prob hidden_dropout",
    "attention_probs_dropout_prob": "attention_dropout attn_dropout",
    "classifier_dropout": "head_dropout cls_dropout",
    "max_position_embeddings": "positions n_positions max_positions",
    "vocab_size": "vocab vocabulary_size",
    "hidden_act": "activation act",
    "layer_norm_eps": "layernorm_eps ln_eps norm_eps",
    "text_column": "text text_field text_key input_column sentence",
    "label_column": "label labels target label_field label_key",
    "delimiter": "sep separator",
    "header": "has_header",
    "train": "data train_file training_file",
}


def nearest(wrong: str, known: Iterable[str]) -> list[str]:
    """At most three of the known names, the likeliest first; [] where none is like the wrong one.

    Names may be dotted ("train.learning_rate"), and the wrong one may lack its group or have another.
    """
    import difflib  # some milliseconds, which --help has not to spare

    names = list(known)
    word = _last(wrong)[:100].lower().replace("-", "_")
    found = [name for name in names if _last(name) == word]
    found += [name for name in names if word in _ELSEWHERE.get(_last(name), "").split()]
    if not found and not any(word in others.split() for others in _ELSEWHERE.values()):
        if near := difflib.get_close_matches(wrong[:100], names, n=1, cutoff=0.9):
            return near
        found = difflib.get_close_matches(wrong[:100], names, n=_SHOWN, cutoff=0.75)
        alike = difflib.get_close_matches(word, {_last(name) for name in names}, n=_SHOWN, cutoff=0.7)
        found += [name for part in alike for name in names if _last(name) == part]
    if not found and len(word) > 2:
        found = [name for name in names if word in _last(name).split("_")]
    return list(dict.fromkeys(found))[:_SHOWN]


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def did_you_mean(names: list[str]) -> str:
    """The question that names them: did you mean 'a' or 'b'?"""
    return f"did you mean {' or '.join(repr(name) for name in names)}?"


def absent(
    path: str | Path,
    what: Literal["file", "folder", "file or folder"] = "file",
    remedy: str = "check the path",
) -> InputError:
    """The error that a path is not there. The remedy is what is here under nearly its name, else the one given."""
    if not str(path).strip():
        return InputError(f"the name of a {what} is empty", remedy)
    near = nearest_here(str(path))
    return InputError(f"{path}: no such {what}", f"did you mean {near}?" if near else remedy)


def nearest_here(name: str) -> str | None:
    """The path that exists and differs from this one by a little in one of its parts, None if there is none."""
    if "\0" in name or len(name) > _LONGEST_PATH:
        return None
    path = Path(name).expanduser()
    folder = next((above for above in path.parents if above.is_dir()), None)
    if folder is None:
        return None
    first, *rest = path.relative_to(folder).parts
    try:
        here = [entry.name for entry in os.scandir(folder)]
    except OSError:
        return None
    import difflib  # see `nearest`

    for found in difflib.get_close_matches(first, here, n=3, cutoff=0.75):
        if (folder / found).joinpath(*rest).exists():
            return str((folder / found).joinpath(*rest))
    return None
