"""The settings that say how files of examples are read: the same of every task that has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

FileEncoding = Annotated[
    str | None, Field(description="the encoding of files that are not UTF-8: cp1252, gb18030, …")
]
Delimiter = Annotated[
    str | None,
    Field(
        description="what separates columns; none: comma in .csv (or what its header has), tab in other tables"
    ),
]
Header = Annotated[
    bool, Field(description="whether the first line names the columns; if not they are 1, 2, …")
]
