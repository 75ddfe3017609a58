"""Compiled loops of word2vec: stochastic gradient descent over the words of sentences, in their order.

One thread does all updates, so that the vectors do not depend on the number of processors. Each sentence has its
own stream of random numbers (SplitMix64, as in rng.py), so that they do not depend on the size of blocks either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import config, njit

from bertsmith.errors import InputError
from bertsmith.kernels.kernel_cache import NO_FOLDER, cache_folder

NEGATIVE_SAMPLING, HIERARCHICAL_SOFTMAX, SOFTMAX = range(3)

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LOW_BITS = np.uint64(0xFFFFFFFF)
_MAX_LOGIT = np.float32(6)  # beyond it, the sigmoid counts as 0 or 1, as in word2vec.c
_TABLE_SIZE = 4096
_LOGITS = ((np.arange(_TABLE_SIZE) + 0.5) / _TABLE_SIZE * 2 - 1) * float(_MAX_LOGIT)
_SIGMOID = (1 / (1 + np.exp(-_LOGITS))).astype(np.float32)
_LOSS = np.log1p(np.exp(-_LOGITS)).astype(np.float32)  # −log sigmoid
_SCALE = np.float32(_TABLE_SIZE / 12)


def _compile(function: Any) -> Any:
    """Compile a function on its first call, or load it from the cache of kernels."""
    folder = cache_folder()
    if folder is None:
        raise InputError("kernels_not_compiled", NO_FOLDER, hint="name a folder in NUMBA_CACHE_DIR")
    user_folder, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        return njit(
            cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"}
        )(function)
    finally:
        config.CACHE_DIR = user_folder


@_compile
def _mix(state):
    """Apply SplitMix64's finalizer to 64 bits."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


@_compile
def _update_output(hidden, gradient, output, label, rate):
    """Predict a binary label with one output vector, update it, add to the input's gradient; return the loss."""
    logit = np.float32(0)
    for k in range(len(hidden)):
        logit += hidden[k] * output[k]
    signed = logit if label else -logit
    if signed >= _MAX_LOGIT:
        return np.float32(0)
    if signed > -_MAX_LOGIT:
        index = min(int((signed + _MAX_LOGIT) * _SCALE), _TABLE_SIZE - 1)
        probability, loss = _SIGMOID[index], _LOSS[index]
    else:
        probability, loss = np.float32(0), -signed
    step = (np.float32(1) - probability) * rate
    step = step if label else -step
    for k in range(len(hidden)):
        gradient[k] += step * output[k]
        output[k] += step * hidden[k]
    return loss


@_compile
def _update_softmax(hidden, gradient, outputs, target, rate, logits):
    """Predict a word by a softmax over all words; return the loss."""
    highest = np.float32(-np.inf)
    for word in range(len(outputs)):
        logit = np.float32(0)
        for k in range(len(hidden)):
            logit += hidden[k] * outputs[word, k]
        logits[word] = logit
        highest = max(highest, logit)
    total = np.float32(0)
    for word in range(len(outputs)):
        logits[word] = np.exp(logits[word] - highest)
        total += logits[word]
    loss = np.log(total) - np.log(logits[target])
    for word in range(len(outputs)):
        step = (np.float32(word == target) - logits[word] / total) * rate
        for k in range(len(hidden)):
            gradient[k] += step * outputs[word, k]
            outputs[word, k] += step * hidden[k]
    return loss


@_compile
def _update_target(
    hidden, gradient, outputs, target, rate, state, loss_name, tree, sampler, negatives, logits
):
    """Predict one word; return the loss and the state of the random numbers."""
    loss = np.float32(0)
    if loss_name == SOFTMAX:
        loss += _update_softmax(hidden, gradient, outputs, target, rate, logits)
    elif loss_name == HIERARCHICAL_SOFTMAX:
        offsets, nodes, codes = tree
        for i in range(offsets[target], offsets[target + 1]):
            loss += _update_output(hidden, gradient, outputs[nodes[i]], codes[i] == 0, rate)
    else:
        thresholds, aliases = sampler
        loss += _update_output(hidden, gradient, outputs[target], True, rate)
        for _ in range(negatives):
            state += _GOLDEN_GAMMA
            bits = _mix(state)
            word = np.int64(((bits >> np.uint64(32)) * np.uint64(len(aliases))) >> np.uint64(32))
            word = word if (bits & _LOW_BITS) < thresholds[word] else aliases[word]
            if word != target:
                loss += _update_output(hidden, gradient, outputs[word], False, rate)
    return loss, state


@_compile
def _sample_words(ids, keep_thresholds, state, words):
    """Copy the words of a sentence that subsampling keeps; return their number and the random state."""
    count = 0
    for word in ids:
        state += _GOLDEN_GAMMA
        if (_mix(state) >> np.uint64(32)) <= keep_thresholds[word]:
            words[count] = word
            count += 1
    return count, state


@_compile
def _add_rows(word, row_offsets, rows, inputs, hidden):
    """Add the input vectors of a word (its own and its subwords') to the hidden vector; return their number."""
    for i in range(row_offsets[word], row_offsets[word + 1]):
        row = inputs[rows[i]]
        for k in range(len(hidden)):
            hidden[k] += row[k]
    return row_offsets[word + 1] - row_offsets[word]


@_compile
def _update_rows(word, row_offsets, rows, inputs, gradient):
    """Add a gradient to the input vectors of a word."""
    for i in range(row_offsets[word], row_offsets[word + 1]):
        row = inputs[rows[i]]
        for k in range(len(gradient)):
            row[k] += gradient[k]


@_compile
def train_sentences(
    ids,
    sentence_ends,
    random_states,
    keep_thresholds,
    row_offsets,
    rows,
    inputs,
    outputs,
    is_skip_gram,
    window,
    loss_name,
    tree,
    sampler,
    negatives,
    rates,
):
    """Train on sentences, in order; return the sum of the losses and the number of predictions.

    Args:
        ids: Words of all sentences, int32 [N].
        sentence_ends: The end of each sentence, int64 [S].
        random_states: The state of the random numbers of each sentence, uint64 [S].
        keep_thresholds: The probability to keep each word, times 2**32, uint64 [V].
        row_offsets: The range in `rows` of each word, int64 [V + 1].
        rows: The rows of `inputs` of each word, whose mean is its vector, int32.
        inputs: Input vectors, fp32 [R, H].
        outputs: Output vectors of words, or of inner nodes of the tree, fp32 [V, H].
        is_skip_gram: True to predict the words around a word, False to predict a word from those around it.
        window: The maximum distance; the distance of each position is drawn from 1 to it.
        loss_name: NEGATIVE_SAMPLING, HIERARCHICAL_SOFTMAX, or SOFTMAX.
        tree: The path of each word: offsets int64 [V + 1], nodes int32, codes int8.
        sampler: The alias table: thresholds uint64 [V], aliases int64 [V].
        negatives: The number of negative samples.
        rates: The learning rate of each sentence, fp32 [S].
    """
    hidden, gradient = np.empty(inputs.shape[1], np.float32), np.empty(inputs.shape[1], np.float32)
    logits = np.empty(len(outputs) if loss_name == SOFTMAX else 0, np.float32)
    words = np.empty(len(ids), np.int64)
    total_loss, predictions, begin = 0.0, 0, 0
    for sentence in range(len(sentence_ends)):
        rate = rates[sentence]
        end = sentence_ends[sentence]
        count, state = _sample_words(ids[begin:end], keep_thresholds, random_states[sentence], words)
        begin = end
        for center in range(count):
            state += _GOLDEN_GAMMA
            distance = 1 + np.int64(((_mix(state) >> np.uint64(32)) * np.uint64(window)) >> np.uint64(32))
            first, last = max(0, center - distance), min(count, center + distance + 1)
            if last - first < 2:
                continue
            hidden[:] = 0
            gradient[:] = 0
            num_rows = 0
            if is_skip_gram:
                num_rows += _add_rows(words[center], row_offsets, rows, inputs, hidden)
            else:
                for i in range(first, last):
                    if i != center:
                        num_rows += _add_rows(words[i], row_offsets, rows, inputs, hidden)
            scale = np.float32(1) / np.float32(num_rows)
            for k in range(len(hidden)):
                hidden[k] *= scale
            for i in range(first, last):
                if (i != center) == is_skip_gram:
                    loss, state = _update_target(
                        hidden,
                        gradient,
                        outputs,
                        words[i],
                        rate,
                        state,
                        loss_name,
                        tree,
                        sampler,
                        negatives,
                        logits,
                    )
                    total_loss += loss
                    predictions += 1
            for i in range(first, last):
                if (i == center) == is_skip_gram:
                    _update_rows(words[i], row_offsets, rows, inputs, gradient)
    return total_loss, predictions


@_compile
def build_alias_table(weights, thresholds, aliases):
    """Fill Walker's alias table of weights, fp64 [V] (Vose 1991)."""
    size = len(weights)
    scaled = weights * (size / weights.sum())
    small, large = np.empty(size, np.int64), np.empty(size, np.int64)
    num_small = num_large = 0
    for i in range(size):
        if scaled[i] < 1:
            small[num_small] = i
            num_small += 1
        else:
            large[num_large] = i
            num_large += 1
    while num_small and num_large:
        num_small -= 1
        low, high = small[num_small], large[num_large - 1]
        thresholds[low], aliases[low] = np.uint64(scaled[low] * 2.0**32), high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            num_large -= 1
            small[num_small] = high
            num_small += 1
    for i in range(num_large):
        thresholds[large[i]], aliases[large[i]] = np.uint64(2**32), large[i]
    for i in range(num_small):
        thresholds[small[i]], aliases[small[i]] = np.uint64(2**32), small[i]
