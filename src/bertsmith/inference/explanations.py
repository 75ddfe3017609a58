"""The methods of a model that show why it answers as it does: `explain` and `attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bertsmith.errors import InputError
from bertsmith.inference.language_model import LanguageModel
from bertsmith.inference.predictor import not_finite_error
from bertsmith.inference.task_predictor import TaskInterface
from bertsmith.io.sources import Source
from bertsmith.io.values import parse_collection
from bertsmith.tasks.registry import TASKS

if TYPE_CHECKING:  # each verb imports only what it needs
    from bertsmith.explain.attention import AttentionMaps
    from bertsmith.explain.attribution import BaselineName
    from bertsmith.explain.explanation import Explanation
    from bertsmith.explain.neighbors import WordNeighbors
    from bertsmith.explain.probes import ProbeReport

    Explain = Callable[..., Explanation]


class ExplainableModel(LanguageModel, TaskInterface):
    """A model whose single answers can be explained."""

    def explain(
        self,
        *inputs: Any,
        target: str | None = None,
        probability: bool = False,
        baseline: BaselineName = "mask",
        steps: int | None = None,
        attention: bool = False,
        **named_inputs: Any,
    ) -> Explanation:
        """Explain an answer by integrated gradients and by occlusion, and measure how faithful these are.

        A model without a task explains the token that it predicts for the mask of a text.

        Args:
            inputs: The inputs of one example, as in `predict`; two texts for the cosine of their vectors.
            target: The output to explain; None: that of the answer. A label; "none" for no answer; the index of a
                choice; a token for the mask; of tags the index of a word, from 0, or with a label "2=B-PER";
                of a written text, which is explained as a whole, the index of a token.
            probability: Explain the probability of the target instead of its logit.
            baseline: What words are replaced by: "mask" or "pad", the embeddings of [MASK] and [PAD], or "zero".
            steps: The steps of the integral; None: 20, doubled until the attributions sum to the difference of the
                outputs within 1 %, up to 640.
            attention: Return the attention weights, too, if the model has any.
            named_inputs: Inputs by name, as in `predict`.

        Returns:
            `Explanation`: `words` with `attribution`, `occlusion`, and their characters in the text;
            `attributions` of tokens; `gap`; `faithfulness` beside random orders; `agreement` of both methods;
            `attention`; `save("page.html")`.

        Raises:
            InputError: The example is empty, or longer than the model reads; or there is no such output or
                probability.
        """
        from bertsmith.explain.explanation import explain_mask, explain_task

        shared = (self.tokenizer, self._fp32_context)
        has_task = self.folder.record.get("task") in TASKS or not self.folder.has("masked")
        if not has_task and len(inputs) == 1 and not named_inputs:
            head = self._mask_head
            explain: Explain = partial(explain_mask, self.encoder, head, *shared, str(inputs[0]))
        else:
            example, texts = self._example(inputs, named_inputs)
            explain = partial(explain_task, self.encoder, self.task, *shared, example, texts)
        try:
            explanation = explain(
                target=target, probability=probability, baseline=baseline, steps=steps, attention=attention
            )
        except FloatingPointError:
            raise not_finite_error(self.path, inputs or named_inputs, has_precision=False) from None
        return replace(explanation, model=str(self.path))

    def _example(self, inputs: Sequence[Any], named_inputs: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
        """Return an example of the task, and those of its inputs that are texts."""
        names = self.task.declaration.inputs
        values = {**dict(zip(names, inputs, strict=False)), **named_inputs}
        if len(inputs) > len(names) or not set(values) <= set(names):
            message = f"the task '{self.task.name}' takes {', '.join(names)}"
            raise InputError("too_many_inputs", message, hint="pass one text for each of them")
        for name, value in self.task.data.example_inputs().items():
            if isinstance(value, list) and isinstance(text := values.get(name), str):
                values[name] = _parse_list(text)
        (example,) = self.predictor.examples({name: [value] for name, value in values.items()})
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        return example, texts | {
            f"{name}[{i}]": text
            for name, value in values.items()
            if isinstance(value, list | tuple)
            for i, text in enumerate(value)
            if isinstance(text, str)
        }

    def neighbors(
        self,
        word: str,
        texts: Source,
        *,
        text_column: str | None = None,
        sense_column: str | None = None,
        layer: int | None = None,
        max_occurrences: int = 200,
    ) -> WordNeighbors:
        """Compare the vectors of a word in its occurrences, layer by layer.

        Args:
            word: The word, in any case.
            texts: A file or data in memory; texts without senses are split into sentences.
            text_column: The column of the texts; None: "text".
            sense_column: The column of the word's sense in each text; None: there is none.
            layer: The layer whose nearest occurrences are returned; None: the one above the
                embeddings with the highest silhouette.
            max_occurrences: The number of occurrences to read.

        Returns:
            `WordNeighbors`: `separations` by layer beside the static vector and TF-IDF, `occurrences` with the
            `nearest` of each, `vectors`, and `plot("bank.png")`.

        Raises:
            InputError: The word occurs less than four times, or there is a single sense.
        """
        from bertsmith.explain.neighbors import compare_occurrences, find_occurrences
        from bertsmith.inference.text_input import read_sense_texts

        if not word.strip():
            raise InputError(
                "empty_word", "the word is empty", argument="word", hint="name a word of the texts"
            )
        occurrences = find_occurrences(
            word.strip(), read_sense_texts(texts, text_column, sense_column), max_occurrences
        )
        shared = (self.encoder, self.tokenizer, self._fp32_context)
        return compare_occurrences(*shared, word.strip(), occurrences, layer=layer)

    def probe(
        self,
        train: Source,
        validation: Source,
        *,
        settings: Mapping[str, Any] | None = None,
        max_words: int = 20_000,
        seed: int = 0,
    ) -> ProbeReport:
        """Train linear probes that read the label of a word from its state, one for each layer.

        A control probe learns a random label for each word (Hewitt and Liang 2019). A high selectivity, the
        difference of both accuracies, means that the label is in the state rather than learned by heart.

        Args:
            train: Sentences with a label for each word, in the formats of `finetune("tag", …)`.
            validation: Sentences on which the probes are scored.
            settings: Settings of these formats, such as {"tag_column": "UPOS"}.
            max_words: The number of words of random sentences of each.
            seed: The seed of the sentences, of the probes, and of the control task.

        Returns:
            `ProbeReport`: `layers` with `accuracy`, `control_accuracy`, and `selectivity`; `majority` and
            `word_majority`, the accuracies without the model; `plot("probes.png")`.

        Raises:
            InputError: The data are not sentences with labels.
        """
        from bertsmith.explain.probes import probe_layers, read_labeled_words

        train_words, validation_words = read_labeled_words(
            self.encoder,
            self.tokenizer,
            self._fp32_context,
            train,
            validation,
            settings=dict(settings or {}),
            max_words=max_words,
            seed=seed,
        )
        config = self.folder.config
        return probe_layers(train_words, validation_words, config.num_hidden_layers, config.hidden_size, seed)

    def attention(self, text: str, text_pair: str | None = None) -> AttentionMaps:
        """Compute the attention weights of a text, or of a pair of texts.

        Returns:
            `AttentionMaps`: `weights` [L, A, T, T] of `tokens`, `summary()` of each head, `save("page.html")`.

        Raises:
            InputError: The text is longer than the model's maximum length.
        """
        from bertsmith.explain.attention import compute_attention

        maps = compute_attention(self.encoder, self.tokenizer, self._fp32_context, text, text_pair)
        if not np.isfinite(maps.weights).all():
            raise not_finite_error(self.path, text, has_precision=False)
        return replace(maps, model=str(self.path))


def _parse_list(text: str) -> str | list[str]:
    """Return the texts of a list in JSON; any other text as it is."""
    value = parse_collection(text) if text.startswith("[") else None
    return value if isinstance(value, list) and all(isinstance(part, str) for part in value) else text
