"""Texts on which exported models without labeled data are compared with the original."""

SAMPLE_TEXTS = (
    "The train to the coast leaves at 7:45 from platform 3.",
    "Is anybody at home?",
    "She wrote to info@example.org, but nobody answered for three weeks; then a parcel came.",
    "A model reads a sentence as a sequence of tokens, and computes a vector for each of them.",
    "In 2019 prices rose by 2.5 %, more than in the ten years before (see the table on page 12).",
    "Rain.",
    "Don't open the window: it's cold, it's windy, and the cat would jump out again!",
    "Zoë's café in Münster sells crêpes, jalapeños, and smørrebrød.",
    "今天天气很好，我们一起去公园散步吧。",
    "北京是中国的首都，人口超过两千万。",
    "这本书多少钱？",
    "他用Python写了一个程序，运行了3个小时才结束。",
)
"""English texts, and Chinese ones, since most vocabularies are for one of these languages."""
