"""python -m labelled [--mistakes]: score the classifier; `--mistakes` shows those of the tuning set."""

from __future__ import annotations

import sys

from labelled.score import scores


def main() -> None:
    for found in scores():
        print(found)
        if "--mistakes" in sys.argv and found.name.startswith("tune"):
            for row, failure in found.mistakes:
                print(
                    f"  {row['id']}: {row['cls']} called {failure.cls} by {failure.rule}: {row['text'][-160:]!r}"
                )


main()
