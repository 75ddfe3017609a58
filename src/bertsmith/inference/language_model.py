"""The verbs of a language model: fill masks, generate, and score texts and minimal pairs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from bertsmith.errors import InputError, command, option
from bertsmith.inference.precision import INT8, CheckedModel, compare_masks, compare_scores
from bertsmith.io.sources import Source, column_values
from bertsmith.models.family import predicts_from_both_sides
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.notebook import Report
from bertsmith.objectives.objective import GENERATOR
from bertsmith.tokenizer.tokenizer import validate_texts

if TYPE_CHECKING:  # each verb imports only what it needs
    from bertsmith.inference.fill_mask import MaskFiller
    from bertsmith.inference.generation import Sampling, TextGenerator
    from bertsmith.inference.scoring import Scorer, Variant

logger = logging.getLogger(__name__)


class LanguageModel(CheckedModel):
    """A model with a head for the tokens of its vocabulary."""

    def fill_mask(
        self, text: Any, top_k: int = 5, max_length: int | None = None, *, batch_size: int | None = None
    ) -> list[Any]:
        """Predict the words behind each [MASK] of a text.

        Args:
            text: A text, or a list or column of texts.
            top_k: Tokens per mask.
            max_length: Tokens that are read at a time, special tokens included. Each mask of a longer text, which
                is logged, is predicted from a window around it.
            batch_size: The maximum number of sequences per forward pass.

        Returns:
            For each mask, in order, the `top_k` most probable tokens: a list of lists of `MaskPrediction` with
            `token`, `score` (probability), and `text`. For a list of texts, a list of that.
        """
        fill = self.mask_filler(top_k, max_length, batch_size)
        return fill([text])[0] if isinstance(text, str) else fill(column_values(text, "texts"))

    def mask_filler(
        self, top_k: int = 5, max_length: int | None = None, batch_size: int | None = None
    ) -> MaskFiller:
        """Return an object that predicts masked words as `fill_mask` does.

        Raises:
            InputError: The model has no masked-LM head, or reads in one direction only.
        """
        from bertsmith.inference.fill_mask import MaskFiller

        options = {"head": self._mask_head, "max_length": max_length, "top_k": top_k}
        return self._create_predictor(MaskFiller, compare_masks, batch_size, **options)

    def generate(
        self,
        prompts: Any,
        *,
        max_new_tokens: int = 50,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        stream: bool = False,
    ) -> Any:
        """Continue texts by a left-to-right language model, such as GPT.

        Args:
            prompts: A string, a list, or a column of texts.
            max_new_tokens: The maximum number of tokens to generate; the model's maximum length limits them, too.
            temperature: The divisor of the logits; 0: always the most probable token (greedy).
            top_k: The number of most probable tokens to choose among; None: all.
            top_p: Choose among the fewest tokens that have this probability together.
            seed: The seed. A continuation depends on it, on the prompt, and on how many equal prompts came before.
            stream: Return an iterator of the pieces of the continuation of one prompt, as they are generated.

        Returns:
            A `GeneratedText` for a string, a list of them for a list: `text`, `tokens`, and `finish_reason`.

        Raises:
            InputError: The model is not one that reads from left to right, or a prompt is too long.
        """
        from bertsmith.inference.generation import Sampling

        generator = self.text_generator(Sampling(max_new_tokens, temperature, top_k, top_p, seed))
        if isinstance(prompts, str):
            return generator.stream(prompts) if stream else generator([prompts])[0]
        if stream:
            message, hint = "only one prompt can be streamed", f"give one text, or omit {option('stream')}"
            raise InputError("stream_of_several_prompts", message, argument="stream", hint=hint)
        return generator(list(validate_texts(column_values(prompts, "prompts"))))

    def text_generator(self, sampling: Sampling) -> TextGenerator:
        """Return an object that continues texts as `generate` does."""
        from bertsmith.inference.generation import TextGenerator, check_left_to_right

        config = self.folder.config
        check_left_to_right(
            causal=config.causal, backwards=config.backwards, location=self.path, usage=self._usage
        )
        if self.precision == INT8:
            message, hint = "texts are not generated in int8", f"omit {option('precision', INT8)}"
            raise InputError("int8_not_for_generation", message, argument="precision", hint=hint)
        head = self._vocabulary_head
        return TextGenerator(self.encoder, head, self.tokenizer, self.context, sampling, self.path)

    def scorer(self, variant: Variant | None = None, batch_size: int | None = None) -> Scorer:
        """Return an object that scores texts as `score` does.

        Raises:
            InputError: The model has no masked-LM head, or the variant does not fit it.
        """
        from bertsmith.inference.scoring import Scorer, default_variant

        head, variant = self._vocabulary_head, variant or default_variant(self.folder.config)
        options = {"head": head, "variant": variant, "tokenizer": self.tokenizer.with_end_tokens()}
        return self._create_predictor(Scorer, compare_scores, batch_size, **options)

    def score(self, texts: Any, *, variant: Variant | None = None, batch_size: int | None = None) -> Any:
        """Score texts by their pseudo-log-likelihood (Salazar et al. 2020): the sum of log p(token | the others).

        Sums rank hypotheses, such as those of a speech recognizer. Pseudo-perplexities compare texts of different
        lengths, for models with one tokenizer. A causal model scores by its log-likelihood.

        Args:
            texts: A string, a list, or a column of texts.
            variant: "within_word" masks the later tokens of a word with a token, which otherwise reveal it (Kauf
                and Ivanova 2023); "token" masks single tokens. None: "within_word". A causal model has no variant.
            batch_size: The maximum number of masked copies per forward pass.

        Returns:
            A `TextScore` for a string, a list of them for a list: `score` in nats (None for an empty or missing
            text, which is logged), `tokens`, `words`, `unknown` tokens, and `pseudo_perplexity`,
            exp(-score / tokens). Each token of a text longer than the model's maximum length, which is logged, is
            predicted from a window around it.
        """
        from bertsmith.inference.scoring import log_scores

        values = [texts] if isinstance(texts, str) else column_values(texts, "texts")
        scores = self.scorer(variant, batch_size).scores(values)
        log_scores(scores, [f"text {i}" for i in range(1, len(scores) + 1)])
        return scores[0] if isinstance(texts, str) else scores

    def score_pairs(
        self,
        pairs: Source,
        *,
        variant: Variant | None = None,
        good_column: str | None = None,
        bad_column: str | None = None,
        group_columns: Sequence[str] = (),
        encoding: str | None = None,
        sample: int | None = None,
        seed: int = 0,
    ) -> Report:
        """Compute the accuracy on minimal pairs: the fraction in which the good sentence has the higher score.

        Chance is 0.5; ties are wrong.

        Args:
            pairs: A table, or data in memory.
            variant: As in `score`.
            good_column: The column of good sentences; None: "good" or "sentence_good".
            bad_column: The column of bad sentences; None: "bad" or "sentence_bad".
            group_columns: The columns to group by; empty: "phenomenon" and "paradigm" if they exist.
            encoding: The encoding of a file that is not UTF-8.
            sample: The number of pairs to score, drawn in proportion to the groups; None: all.
            seed: The seed of the sample.

        Returns:
            The accuracy over all pairs, by each column of groups (`by_phenomenon`), and its mean over groups
            (`mean_over`).
        """
        from bertsmith.inference.minimal_pairs import read_pairs, score_pairs

        all_pairs = read_pairs(
            pairs,
            good_column=good_column,
            bad_column=bad_column,
            group_columns=[group_columns] if isinstance(group_columns, str) else group_columns,
            encoding=encoding,
        )
        scores = score_pairs(all_pairs.sample(sample, seed), self.scorer(variant))
        for message in scores.messages():
            logger.info("%s", message)
        return Report(scores.to_dict())

    @cached_property
    def _vocabulary_head(self) -> MaskedLMHead:
        """The head with a logit for each token of the vocabulary."""
        if not self.folder.has("masked"):
            message = "this model has no masked-LM head, so it cannot predict masked words"
            hint = f"use {self._usage} with it, or a pre-trained run ({command('pretrain')})"
            hint += f", or the {GENERATOR} in one with ELECTRA"
            raise InputError("no_masked_lm_head", message, location=self.path, hint=hint)
        with torch.inference_mode(False):
            head = MaskedLMHead(self.folder.config, torch.Generator())
            self.folder.load_into("masked", head)
            self._requested_context.prepare_modules(head)
        return head.eval()

    @property
    def _mask_head(self) -> MaskedLMHead:
        """The head that predicts masked words from both sides."""
        config = self.folder.config
        if not predicts_from_both_sides(config):
            way = "in each direction alone"
            if config.causal:
                way = "from right to left" if config.backwards else "from left to right"
            message = f"this model reads {way}, so it cannot predict a word from both sides"
            other = option("objective.name", "mlm_nsp")
            hint = f"use {self._usage} with it, or a model that was pre-trained with {other}"
            raise InputError("model_is_causal", message, location=self.path, hint=hint)
        return self._vocabulary_head
