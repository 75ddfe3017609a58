"""The settings of BERT's paper, and those of a run that differ from them.

They are those of recipes/bert-paper.yaml: Devlin et al. 2019, section 3.1 and appendix A.2, and the release where
the paper leaves something open. Sizes and budgets are not among them.
"""

from __future__ import annotations

from typing import Any

from bertsmith.pretraining.settings import PretrainSettings

PAPER_SETTINGS: dict[str, Any] = {
    "objective.name": "mlm_nsp",
    "objective.reduction": "mean",
    "model.model_type": "bert",
    "model.share": "none",
    "model.share_groups": 1,
    "model.hidden_act": "gelu",
    "model.position": "learned",
    "model.first_position": "zero",
    "model.embedding_norm": True,
    "model.norm": "post",
    "model.causal": False,
    "model.backwards": False,
    "model.tie_word_embeddings": True,
    "model.type_vocab_size": 2,
    "model.layer_norm_eps": 1e-12,
    "model.initializer_range": 0.02,
    "model.hidden_dropout_prob": 0.1,
    "model.attention_probs_dropout_prob": 0.1,
    "start.tokens": "normal",
    "start.positions": "normal",
    "start.attention": "normal",
    "start.output_bias": "zero",
    "start.token_vectors": "",
    "data.instances": "segment_pair",
    "data.sentence_task": "nsp",
    "data.nsp_sampling": "other_document",
    "data.nsp_balance": False,
    "data.is_next_label": 0,
    "data.short_seq_prob": 0.1,
    "data.masking": "token",
    "data.mlm_probability": 0.15,
    "data.mlm_probability_of": "all",
    "data.maskable_tokens": "all",
    "data.replacement_probabilities": [0.8, 0.1, 0.1],
    "data.random_tokens": "all",
    "data.dynamic_masking": False,
    "data.dupe_factor": 10,
    "data.corruption": "none",
    "train.optim": "adamw",
    "train.learning_rate": 1e-4,
    "train.warmup_steps": 0.01,
    "train.lr_scheduler_type": "linear_google",
    "train.adam_beta1": 0.9,
    "train.adam_beta2": 0.999,
    "train.adam_epsilon": 1e-6,
    "train.bias_correction": False,
    "train.weight_decay": 0.01,
    "train.max_grad_norm": 1.0,
}
_FURTHER_SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "train.optim": {"muon": ("train.muon_learning_rate", "train.muon_momentum", "train.muon_weight_decay")},
    "train.lr_scheduler_type": {
        "warmup_stable_decay": ("train.decay_ratio",),
        "one_cycle_linear": ("train.pct_start",),
        "step": ("train.lr_decay_factor", "train.lr_milestones"),
    },
    "data.masking": {
        "whole_word": ("data.word_segmenter",),
        "span": (
            "data.word_segmenter",
            "data.span_length_distribution",
            "data.span_geometric_p",
            "data.max_span_length",
        ),
    },
    "data.corruption": dict.fromkeys(("insertion", "deletion"), ("data.corruption_ratio",)),
}
"""Settings that the paper does not have, by the setting and its value with which they are read."""


def differences_from_paper(settings: PretrainSettings) -> dict[str, Any]:
    """Return the settings of a run, without sizes and budget, that differ from those of BERT's paper."""
    values = settings.flat()
    differences = {name: values[name] for name, paper in PAPER_SETTINGS.items() if values[name] != paper}
    for name, further_settings in _FURTHER_SETTINGS.items():
        differences |= {further: values[further] for further in further_settings.get(values[name], ())}
    return differences
