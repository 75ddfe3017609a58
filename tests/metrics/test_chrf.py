"""chrF beside sacreBLEU 2.6.0, whose numbers are written down here."""

from __future__ import annotations

import numpy as np
import pytest

from bertsmith.metrics.chrf import chrf, chrf_counts

TEXTS = [  # prediction, reference, CHRF().corpus_score([prediction], [[reference]]).score
    ("I am a student", "I am a student", 100.0),
    ("I love Chine", "I love China", 85.90608465608466),
    ("learning", "machine learning", 48.45075981843299),
    ("", "the rain falls", 0.0),
    ("a b", "ab", 100.0),
    ("我爱中囯", "我爱中国", 47.91666666666667),
]


@pytest.mark.parametrize(("prediction", "reference", "score"), TEXTS)
def test_a_text(prediction: str, reference: str, score: float) -> None:
    counts = np.array(chrf_counts(prediction, reference), np.float64)
    assert 100 * chrf(counts) == pytest.approx(score, abs=1e-9)


def test_all_texts_together_and_several_sums_at_once() -> None:
    counts = np.array([chrf_counts(prediction, reference) for prediction, reference, _ in TEXTS], np.float64)
    assert 100 * chrf(counts.sum(0)) == pytest.approx(58.61116531386797, abs=1e-9)
    assert (100 * chrf(counts)).tolist() == pytest.approx([score for *_, score in TEXTS])
