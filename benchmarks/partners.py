"""How much the lengths of a pair's segments tell of its label, for either way of choosing NotNext's B.

    python benchmarks/partners.py [--documents 10000]

A part of the encyclopedia with the published uncased vocabulary. Someone who sees the lengths of A and B alone
guesses IsNext or NotNext: by a logistic regression on the two and their sum, and by boosted trees on the same,
which find any rule of lengths there is. Both learn from an epoch of one half of the documents and guess on the
other half. A way that gives nothing away leaves them at the share of the more frequent label, and the area under
the curve at a half.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bertsmith as bs
from bertsmith.corpus.near_duplicates import kin_of
from bertsmith.corpus.shards import Shards
from bertsmith.instances.epoch_plan import Plan, covered
from bertsmith.instances.segment_pairs import Partner, plan_pairs
from corpus import FILES
from record import DATA, WORK, section, table, where

PARTNERS: tuple[Partner, ...] = ("matched", "random")
LENGTHS = (128, 512)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=10_000)
    options = parser.parse_args()
    shards = prepared()
    kin = kin_of(shards)
    some = np.arange(min(options.documents, shards.documents))
    rows = []
    for length in LENGTHS:
        for partner in PARTNERS:
            learnt, tested = (
                plan_pairs(shards, half, length=length, seed=0, epoch=0, partner=partner, kin=kin)
                for half in (some[::2], some[1::2])
            )
            rows.append([length, partner, *figures(learnt, tested)])
    text = [
        f"`python benchmarks/partners.py`, {where(1)}. The first {len(some):,} documents of enwiki, published "
        "uncased vocabulary, an epoch of segment pairs with next sentence. The label is guessed from the lengths "
        "of A and B alone, by a logistic regression and by boosted trees, on the half of the documents that they "
        "have not learnt from; chance is the share of the more frequent label, and an area of 0.5."
        " Text used: share of the text that is in the epoch; read: tokens in the epoch for each of the text.",
        table(
            [
                "length",
                "data.partner",
                "pairs",
                "NotNext",
                "chance",
                "logistic",
                "trees",
                "area (logistic)",
                "area (trees)",
                "A + B if IsNext",
                "A + B if NotNext",
                "text used",
                "read",
            ],
            rows,
        ),
    ]
    print("\n\n".join(text))
    section("Next-sentence partners", "\n\n".join(text))


def prepared() -> Shards:
    """The encyclopedia with the published vocabulary."""
    folder = WORK / "enwiki-published-shards"
    if not (folder / "manifest.json").exists():
        bs.prepare(FILES, DATA / "vocabs" / "bert-base-uncased", folder)
    return Shards.open(folder)


def figures(learnt: Plan, tested: Plan) -> list[str]:
    """The cells of one row."""
    x, y = lengths(learnt), learnt.label
    unseen, truth = lengths(tested), tested.label
    straight = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    trees = HistGradientBoostingClassifier(random_state=0).fit(x, y)
    share = float(truth.mean())
    both = tested.a_length + tested.b_length
    whole = tested.counts["tokens_left_out"] + covered(tested.starts, tested.lengths)
    return [
        f"{len(truth):,}",
        f"{share:.1%}",
        f"{max(share, 1 - share):.1%}",
        *(f"{accuracy_score(truth, model.predict(unseen)):.1%}" for model in (straight, trees)),
        *(f"{roc_auc_score(truth, model.predict_proba(unseen)[:, 1]):.3f}" for model in (straight, trees)),
        f"{both[truth == 0].mean():.1f}",
        f"{both[truth == 1].mean():.1f}",
        f"{1 - tested.counts['tokens_left_out'] / whole:.1%}",
        f"{both.sum() / whole:.2f}",
    ]


def lengths(plan: Plan) -> NDArray[np.int64]:
    return np.stack([plan.a_length, plan.b_length, plan.a_length + plan.b_length], 1)


if __name__ == "__main__":
    main()
