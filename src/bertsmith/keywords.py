"""Types of keyword settings, with which editors complete and check the names.

`python docs/keyword_types.py` writes this file from the settings.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict


class ReadingKeywords(TypedDict, total=False):
    """Rules by which files become documents."""

    documents: Literal["blank_line", "file", "line"]
    text_column: str
    delimiter: str | None
    encoding: str | None


class CheckKeywords(ReadingKeywords, total=False):
    """Options of a check of a corpus."""

    language: str | None
    ngram: int
    near_duplicate_threshold: float
    sample: int | None
    max_examples: int


class ExtendKeywords(ReadingKeywords, total=False):
    """Rules for added words."""

    words: int
    min_frequency: int
    min_pieces: int
    against: Any


class TrainingKeywords(TypedDict, total=False):
    """Settings of both kinds of training."""

    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    classifier_dropout: float | None
    max_steps: int | None
    max_tokens: int | None
    max_minutes: float | None
    num_train_epochs: float | None
    batch_size: int
    gradient_accumulation_steps: int
    optim: Literal["adamw", "muon"]
    learning_rate: float
    muon_learning_rate: float
    muon_momentum: float
    muon_weight_decay: float | None
    warmup_steps: float
    lr_scheduler_type: Literal[
        "linear",
        "linear_google",
        "cosine",
        "constant_with_warmup",
        "warmup_stable_decay",
        "one_cycle",
        "one_cycle_linear",
        "step",
        "inverse_sqrt",
        "reduce_lr_on_plateau",
    ]
    decay_ratio: float
    pct_start: float
    lr_decay_factor: float
    lr_milestones: Sequence[float]
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    bias_correction: bool
    max_grad_norm: float
    logging_steps: int
    eval_steps: int | None
    save_steps: int
    save_total_limit: int
    seed: int
    precision: Literal["auto", "fp32", "bf16"]
    kernels: Literal["auto", "torch", "numba", "flash", "triton"]
    cuda_graphs: bool
    deterministic: bool
    device: str
    threads: int | None
    dataloader_num_workers: int
    fsdp: bool
    report_to: Sequence[Literal["tensorboard", "wandb", "mlflow"]]


class PretrainKeywords(TrainingKeywords, total=False):
    """Settings of pre-training."""

    name: str
    reduction: Literal["mean", "sum"]
    model_type: str
    vocab_size: int
    hidden_size: int
    embedding_size: int | None
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    share: Literal["none", "all", "attention", "feed_forward"]
    share_groups: int
    hidden_act: Literal["gelu", "gelu_new", "relu"]
    max_position_embeddings: int
    first_position: Literal["zero", "after_padding"]
    position: Literal["learned", "sinusoidal", "none"]
    embedding_norm: bool
    norm: Literal["post", "pre"]
    causal: bool
    tie_word_embeddings: bool
    backwards: bool
    type_vocab_size: int
    context_size: int
    direct_connections: bool
    embedding_type: Literal["token", "char_cnn"]
    tie_directions: bool
    initializer_range: float
    layer_norm_eps: float
    pad_token_id: int | None
    tokens: Literal["normal", "neighbours"]
    token_vectors: str
    positions: Literal["normal", "sinusoidal"]
    attention: Literal["normal", "local"]
    output_bias: Literal["zero", "unigram"]
    instances: Literal["segment_pair", "sentence_pair", "full_sentences", "doc_sentences"]
    sequence_length: int
    long_sequence_length: int | None
    long_sequence_ratio: float
    short_seq_prob: float
    masking: Literal["token", "whole_word", "span"]
    mlm_probability: float
    mlm_probability_of: Literal["ordinary", "all"]
    maskable_tokens: Literal["ordinary", "all"]
    random_tokens: Literal["ordinary", "all"]
    replacement_probabilities: Sequence[float]
    max_predictions_per_seq: int | None
    long_max_predictions_per_seq: int | None
    corruption: Literal["none", "insertion", "deletion"]
    corruption_ratio: float
    span_length_distribution: Literal["geometric", "harmonic"]
    span_geometric_p: float
    max_span_length: int
    word_segmenter: Literal["none", "jieba"]
    dynamic_masking: bool
    dupe_factor: int
    sentence_task: Literal["nsp", "sop", "none"]
    is_next_label: Literal[0, 1]
    nsp_sampling: Literal["other_document", "same_document"]
    nsp_balance: bool
    train_fraction: float
    max_validation_instances: int
    batch_tokens: int | None
    pairs: str | None
    pairs_encoding: str | None
    pairs_sample: int | None


class FinetuneKeywords(TrainingKeywords, total=False):
    """Settings of fine-tuning."""

    text_column: str | None
    second_column: str | None
    label_column: str | None
    delimiter: str | None
    header: bool
    encoding: str | None
    max_length: int | None
    stride: int | None
    specials_in_text: Literal["text", "parse"]
    pooler: bool
    layers: Literal[
        "last",
        "second_to_last",
        "embeddings",
        "sum_last_four",
        "sum_all",
        "concat_last_four",
        "sum_with_embeddings",
    ]
    head: Literal["linear", "bilstm"]
    second_encoder: str
    multi_label: bool
    label_separator: str
    class_weights: Literal["none", "balanced"] | Any
    thresholds: Literal["half", "shared", "each"]
    init_head_from: Literal["none", "nsp"]
    calibrate: bool
    temperature: float
    soft_weight: float
    task_weight: float
    head_probe: bool | None
    patience: int | None
    lr_patience: int
    freeze_encoder: bool
    freeze_embeddings: bool
    freeze_layers: int
    unfreeze_every: int | Literal["epoch"] | None
    layerwise_lr_decay: float
    lm_weight: float | None
    word_column: str | None
    tag_column: str | None
    predicate_column: str | None
    scheme: Literal["iobes", "iob2", "iob1", "as_written"]
    decoder: Literal["softmax", "crf"]
    question_column: str | None
    context_column: str | None
    answer_column: str | None
    start_column: str | None
    max_query_length: int
    n_best: int
    max_answer_length: int
    transform: bool
    null_threshold: float | None
    rules: Literal["auto", "squad", "cmrc"]
    choices_column: str | None
    first_index: int
    none_label: str | None
    head_column: str | None
    tail_column: str | None
    negative_column: str | None
    pooling: Literal["mean", "cls", "max"] | None
    normalize: bool | None
    loss: Literal["auto", "cosine", "cosent", "contrastive", "softmax"]
    scale: float
    margin: float
    same_label: str | None
    target_column: str
    max_target_length: int | None
    decoder_type: Literal["transformer", "lstm"]
    attention_score: Literal["dot", "bilinear", "concat", "additive", "none"]
    label_smoothing: float
    num_beams: int


class NgramKeywords(TypedDict, total=False):
    """Settings of n-gram models."""

    order: int
    smoothing: Literal["kneser_ney", "interpolated", "add_k", "maximum_likelihood"]
    k: float
    interpolation_weights: Sequence[float] | None
    prune: Sequence[int]
    discount_fallback: Sequence[float] | None
    vocabulary_size: int | None
    lowercase: bool
    sentence_boundaries: bool
    unknown_words: bool


class WordVectorKeywords(TypedDict, total=False):
    """Settings of word vectors."""

    algorithm: Literal["skip_gram", "cbow"]
    loss: Literal["negative_sampling", "hierarchical_softmax", "softmax"]
    dimensions: int
    window: int
    negatives: int
    num_train_epochs: float
    max_minutes: float | None
    learning_rate: float
    min_count: int
    max_words: int | None
    subsampling: float
    min_subword: int
    max_subword: int
    phrase_passes: int
    phrase_threshold: float
    lowercase: bool
    seed: int
